//! Multiplication of the generator of secp256k1.
//!
//! libsecp256k1 multiplies in constant time, and blinds the multiplication with a random value in
//! its context. The safe bindings draw a new value after each multiplication, which doubles its
//! cost. Here a thread draws one for every 64 multiplications. This needs `unsafe` because the safe
//! bindings have no function that takes a context.

use std::cell::RefCell;

use openssl::rand::rand_bytes;
use secp256k1::{PublicKey, Secp256k1, SignOnly, ffi};
use zeroize::Zeroizing;

use crate::Error;

/// Number of multiplications with one blinding value.
const USES_PER_BLINDING: u32 = 64;

struct Blinded {
    context: Secp256k1<SignOnly>,
    uses_left: u32,
}

thread_local! {
    static BLINDED: RefCell<Blinded> =
        RefCell::new(Blinded { context: Secp256k1::signing_only(), uses_left: 0 });
}

impl Blinded {
    fn renew_blinding(&mut self) -> Result<(), Error> {
        let mut seed = Zeroizing::new([0; 32]);
        rand_bytes(&mut seed[..])?;
        self.context.seeded_randomize(&seed);
        self.uses_left = USES_PER_BLINDING;
        Ok(())
    }
}

/// Returns the public key of a private key: `scalar` times the generator, in SEC 1 uncompressed
/// form. The scalar is 32 bytes big-endian.
///
/// # Errors
///
/// [`Error::NotAScalar`], or [`Error::Library`] if the random number generator fails.
pub fn multiply_generator(scalar: &[u8; 32]) -> Result<[u8; 65], Error> {
    BLINDED.with_borrow_mut(|blinded| {
        if blinded.uses_left == 0 {
            blinded.renew_blinding()?;
        }
        blinded.uses_left -= 1;
        let point = create_public_key(&blinded.context, scalar).ok_or(Error::NotAScalar)?;
        Ok(PublicKey::from(point).serialize_uncompressed())
    })
}

#[allow(unsafe_code)]
fn create_public_key(context: &Secp256k1<SignOnly>, scalar: &[u8; 32]) -> Option<ffi::PublicKey> {
    let context = context.ctx();
    // SAFETY: `new` is unsafe only because its zeros do not encode a valid point. The function below
    // overwrites them with a point, or fails and the zeros are dropped unread.
    let mut point = unsafe { ffi::PublicKey::new() };
    // SAFETY: the context is live, created for signing and borrowed for the call. The scalar is 32
    // readable bytes and the point is writable memory, as `secp256k1.h` requires. Any scalar is
    // allowed: the function returns 0 for an invalid one.
    let created = unsafe {
        ffi::secp256k1_ec_pubkey_create(context.as_ptr(), &raw mut point, scalar.as_ptr())
    };
    (created == 1).then_some(point)
}

#[cfg(test)]
mod tests {
    use secp256k1::SecretKey;

    use super::*;

    fn scalar(last: u8) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[31] = last;
        bytes
    }

    /// SEC 2, section 2.4.1.
    const GENERATOR: &str = "0479be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798\
                             483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8";
    const ORDER: &str = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141";

    fn unhex<const N: usize>(text: &str) -> [u8; N] {
        crate::p256::tests::unhex(text)
    }

    #[test]
    fn scalars_one_and_minus_one_give_mirrored_generators() {
        let generator: [u8; 65] = unhex(GENERATOR);
        assert_eq!(multiply_generator(&scalar(1)), Ok(generator));
        let mut minus_one: [u8; 32] = unhex(ORDER);
        minus_one[31] -= 1;
        let mirrored = multiply_generator(&minus_one).unwrap();
        assert_eq!(mirrored[..33], generator[..33]);
        assert_ne!(mirrored[33..], generator[33..]);
    }

    /// Uses several blinding values, on several threads.
    #[test]
    fn generator_products_match_the_safe_bindings() {
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for _ in 0..3 * USES_PER_BLINDING {
                        let mut bytes = [0; 32];
                        rand_bytes(&mut bytes).unwrap();
                        let Ok(secret) = SecretKey::from_secret_bytes(bytes) else {
                            continue;
                        };
                        let expected = PublicKey::from_secret_key(&secret).serialize_uncompressed();
                        assert_eq!(multiply_generator(&bytes), Ok(expected));
                    }
                });
            }
        });
    }

    #[test]
    fn invalid_scalars_are_errors() {
        let order: [u8; 32] = unhex(ORDER);
        for bad in [scalar(0), order, [0xff; 32]] {
            assert_eq!(multiply_generator(&bad), Err(Error::NotAScalar));
        }
        assert!(
            multiply_generator(&scalar(2)).is_ok(),
            "an error leaves no state"
        );
    }
}
