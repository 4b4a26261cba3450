//! Key agreement on P-256 with a fixed public key, about five times as fast as with any other key.
//!
//! OpenSSL multiplies its own generator with a table of 37 x 64 precomputed points. A group whose
//! generator is the public key gets the same table for that key, and the same constant-time code
//! (`ecp_nistz256.c`: it reads every table row, and a mask selects one).
//!
//! The module needs `unsafe` because the safe bindings can set a group's generator and multiply by
//! it, but cannot precompute the table. A table takes about 20 ms, as long as 400 plain agreements.
//! So tables are for keys that are used often, and no request computes one.

use std::fmt;

use foreign_types::ForeignType as _;
use openssl::bn::{BigNum, BigNumContext};
use openssl::ec::{EcGroup, EcPoint};
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use zeroize::{Zeroize as _, Zeroizing};

use crate::Error;

impl From<ErrorStack> for Error {
    fn from(_: ErrorStack) -> Self {
        Self::Library
    }
}

/// A fixed public key with its table. Holds no secret, and can be used from many threads at once.
pub struct FixedBase {
    /// P-256 with the fixed point as its generator.
    group: EcGroup,
}

impl FixedBase {
    /// Memory of a table in bytes: 37 rows of 64 affine points.
    pub const BYTES: usize = 37 * 64 * 64;

    /// Precomputes the table of a point in SEC 1 uncompressed form. Takes about 20 ms.
    ///
    /// # Errors
    ///
    /// [`Error::NotAPoint`] or [`Error::Library`].
    pub fn new(point: &[u8; 65]) -> Result<Self, Error> {
        let mut group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
        let mut context = BigNumContext::new()?;
        let generator =
            EcPoint::from_bytes(&group, point, &mut context).map_err(|_| Error::NotAPoint)?;

        let mut order = BigNum::new()?;
        group.order(&mut order, &mut context)?;
        group.set_generator(generator, order, BigNum::from_u32(1)?)?;
        precompute(&mut group, &mut context)?;
        Ok(Self { group })
    }

    /// Computes a Diffie-Hellman secret: the x coordinate of `scalar` times the fixed point. The
    /// scalar is 32 bytes big-endian.
    ///
    /// # Errors
    ///
    /// [`Error::Library`], also when the result is the point at infinity.
    pub fn multiply(&self, scalar: &[u8; 32]) -> Result<Zeroizing<[u8; 32]>, Error> {
        let mut context = BigNumContext::new()?;
        let mut product = EcPoint::new(&self.group)?;
        let mut number = BigNum::from_slice(scalar)?;
        let mut x = BigNum::new()?;
        let mut y = BigNum::new()?;
        let computed = product
            .mul_generator2(&self.group, &number, &mut context)
            .and_then(|()| product.affine_coordinates(&self.group, &mut x, &mut y, &mut context));

        // All secrets are wiped before an error can return.
        clear_free(product);
        number.clear();
        y.clear();
        computed?;

        let mut bytes = x.to_vec_padded(32)?;
        x.clear();
        let mut shared = Zeroizing::new([0; 32]);
        shared.copy_from_slice(&bytes);
        bytes.zeroize();
        Ok(shared)
    }
}

impl fmt::Debug for FixedBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FixedBase")
    }
}

#[allow(unsafe_code)]
unsafe extern "C" {
    /// Declared in `openssl/ec.h`. Deprecated in favour of providers, which do not offer custom
    /// generators.
    fn EC_GROUP_precompute_mult(
        group: *mut openssl_sys::EC_GROUP,
        context: *mut openssl_sys::BN_CTX,
    ) -> i32;
    fn EC_GROUP_have_precompute_mult(group: *const openssl_sys::EC_GROUP) -> i32;
    fn EC_POINT_clear_free(point: *mut openssl_sys::EC_POINT);
}

/// Precomputes the table of the group's generator, and checks that the table exists: a library
/// without tables would be slow and return no error.
#[allow(unsafe_code)]
fn precompute(group: &mut EcGroup, context: &mut BigNumContext) -> Result<(), Error> {
    // SAFETY: both pointers are live for the call and not shared: `group` and `context` are
    // borrowed mutably. The function keeps neither the context nor anything it points to.
    let precomputed = unsafe { EC_GROUP_precompute_mult(group.as_ptr(), context.as_ptr()) };
    // SAFETY: reads the live group.
    let has_table = unsafe { EC_GROUP_have_precompute_mult(group.as_ptr()) };
    if precomputed == 1 && has_table == 1 {
        Ok(())
    } else {
        Err(Error::Library)
    }
}

/// Wipes and frees a point. `EcPoint` itself frees it without wiping.
#[allow(unsafe_code)]
fn clear_free(point: EcPoint) {
    let raw = point.as_ptr();
    // The wrapper must not free the pointer again.
    let _wrapper = std::mem::ManuallyDrop::new(point);
    // SAFETY: `raw` came from a live `EcPoint` whose own free will not run, so it is freed once.
    unsafe { EC_POINT_clear_free(raw) };
}

#[cfg(test)]
pub(crate) mod tests {
    use openssl::ec::{EcKey, PointConversionForm};

    use super::*;

    /// k*G from NIST's P-256 point multiplication vectors: scalar, x, y.
    const VECTORS: [(&str, &str, &str); 3] = [
        (
            "0000000000000000000000000000000000000000000000000000000000000002",
            "7cf27b188d034f7e8a52380304b51ac3c08969e277f21b35a60b48fc47669978",
            "07775510db8ed040293d9ac69f7430dbba7dade63ce982299e04b79d227873d1",
        ),
        (
            "018ebbb95eed0e13000000000000000000000000000000000000000000000000",
            "339150844ec15234807fe862a86be77977dbfb3ae3d96f4c22795513aeaab82f",
            "b1c14ddfdc8ec1b2583f51e85a5eb3a155840f2034730e9b5ada38b674336a21",
        ),
        (
            "ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632550",
            "6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296",
            "b01cbd1c01e58065711814b583f061e9d431cca994cea1313449bf97c840ae0a",
        ),
    ];

    pub(crate) fn unhex<const N: usize>(text: &str) -> [u8; N] {
        let bytes: Vec<u8> = (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect();
        bytes.try_into().unwrap()
    }

    fn sec1(x: &str, y: &str) -> [u8; 65] {
        unhex(&format!("04{x}{y}"))
    }

    /// Checks (2G) * k = 2(kG), and compares scalars of any size with OpenSSL's general
    /// multiplication.
    #[test]
    fn table_products_match_general_multiplication() {
        let standard = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let mut context = BigNumContext::new().unwrap();
        for (_, x, y) in VECTORS {
            let point = sec1(x, y);
            let table = FixedBase::new(&point).unwrap();
            let general = EcPoint::from_bytes(&standard, &point, &mut context).unwrap();
            let random: Vec<[u8; 32]> = (0..50)
                .map(|_| {
                    EcKey::generate(&standard)
                        .unwrap()
                        .private_key()
                        .to_vec_padded(32)
                        .unwrap()[..]
                        .try_into()
                        .unwrap()
                })
                .collect();
            for scalar in VECTORS.iter().map(|v| unhex(v.0)).chain(random) {
                let mut product = EcPoint::new(&standard).unwrap();
                let number = BigNum::from_slice(&scalar).unwrap();
                product
                    .mul2(&standard, &general, &number, &mut context)
                    .unwrap();
                let mut px = BigNum::new().unwrap();
                let mut py = BigNum::new().unwrap();
                product
                    .affine_coordinates(&standard, &mut px, &mut py, &mut context)
                    .unwrap();
                assert_eq!(
                    table.multiply(&scalar).unwrap()[..],
                    px.to_vec_padded(32).unwrap()
                );
            }
        }
    }

    #[test]
    fn table_of_the_doubled_generator_matches_published_points() {
        let [(two, x2, y2), ..] = VECTORS;
        let table = FixedBase::new(&sec1(x2, y2)).unwrap();
        let one = unhex("0000000000000000000000000000000000000000000000000000000000000001");
        assert_eq!(*table.multiply(&one).unwrap(), unhex(x2));
        // 2 * 2G = 4G.
        let four_g = "e2534a3532d08fbba02dde659ee62bd0031fe2db785596ef509302446b030852";
        assert_eq!(*table.multiply(&unhex(two)).unwrap(), unhex(four_g));
    }

    #[test]
    fn agreements_of_both_sides_match() {
        let standard = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
        let mut context = BigNumContext::new().unwrap();
        for _ in 0..5 {
            let [a, b] = [(); 2].map(|()| EcKey::generate(&standard).unwrap());
            let shared = agree(&standard, &mut context, a.public_key(), b.private_key());
            assert_eq!(
                agree(&standard, &mut context, b.public_key(), a.private_key()),
                shared
            );
        }
    }

    fn agree(
        standard: &EcGroup,
        context: &mut BigNumContext,
        point: &openssl::ec::EcPointRef,
        scalar: &openssl::bn::BigNumRef,
    ) -> Result<Zeroizing<[u8; 32]>, Error> {
        let form = PointConversionForm::UNCOMPRESSED;
        let point = point.to_bytes(standard, form, context).unwrap();
        let scalar = scalar.to_vec_padded(32).unwrap();
        FixedBase::new(&point[..].try_into().unwrap())
            .unwrap()
            .multiply(&scalar[..].try_into().unwrap())
    }

    #[test]
    fn invalid_points_and_products_are_errors() {
        let [(_, x, y), ..] = VECTORS;
        let mut off_curve = sec1(x, y);
        off_curve[64] ^= 1;
        assert_eq!(FixedBase::new(&off_curve).err(), Some(Error::NotAPoint));
        assert_eq!(FixedBase::new(&[0; 65]).err(), Some(Error::NotAPoint));
        let table = FixedBase::new(&sec1(x, y)).unwrap();
        let order = unhex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551");
        for scalar in [[0; 32], order] {
            assert_eq!(table.multiply(&scalar).err(), Some(Error::Library));
        }
    }
}
