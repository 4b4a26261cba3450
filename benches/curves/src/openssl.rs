//! OpenSSL: the vendored one or the system's, depending on how this package is built. Also the
//! reference for correctness.

use openssl::bn::{BigNum, BigNumContext};
use openssl::cipher::Cipher;
use openssl::cipher_ctx::CipherCtx;
use openssl::ec::{EcGroup, EcKey, EcPoint, PointConversionForm};
use openssl::kdf::{HkdfMode, hkdf};
use openssl::md::Md;
use openssl::nid::Nid;
use openssl::pkey::Private;
use openssl::symm;

use crate::{Aead, Agreement, Curve, Hkdf, Key, Nonce, Point, split_tag};

/// OpenSSL's elliptic curves, through `EC_KEY` and `EC_POINT`. An `EVP_PKEY` of a fresh key is
/// first copied to a provider, which costs more. Constant time: both operations are one
/// multiplication of one point.
pub struct OpenSsl(EcGroup);

impl OpenSsl {
    /// Makes an implementation for one curve.
    ///
    /// # Panics
    /// If this build does not have the curve.
    #[must_use]
    pub fn new(curve: Curve) -> Self {
        let name = match curve {
            Curve::P256 => Nid::X9_62_PRIME256V1,
            Curve::Secp256k1 => Nid::SECP256K1,
        };
        Self(EcGroup::from_curve_name(name).expect("knows the curve"))
    }
}

impl std::fmt::Debug for OpenSsl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OpenSsl")
            .field(&self.0.curve_name())
            .finish()
    }
}

impl Agreement for OpenSsl {
    type Private = EcKey<Private>;
    type Peer = EcPoint;

    fn generate(&self) -> (Self::Private, Point) {
        let key = EcKey::generate(&self.0).expect("makes a key");
        let mut context = BigNumContext::new().expect("memory");
        let point =
            key.public_key()
                .to_bytes(&self.0, PointConversionForm::UNCOMPRESSED, &mut context);
        (key, point.expect("writes").try_into().expect("65 bytes"))
    }

    fn peer(&self, point: &Point) -> Self::Peer {
        let mut context = BigNumContext::new().expect("memory");
        EcPoint::from_bytes(&self.0, point, &mut context).expect("a point")
    }

    fn agree(&self, private: Self::Private, peer: &Self::Peer) -> [u8; 32] {
        let mut context = BigNumContext::new_secure().expect("memory");
        let mut product = EcPoint::new(&self.0).expect("memory");
        product
            .mul2(&self.0, peer, private.private_key(), &mut context)
            .expect("multiplies");
        let (mut x, mut y) = (
            BigNum::new().expect("memory"),
            BigNum::new().expect("memory"),
        );
        product
            .affine_coordinates(&self.0, &mut x, &mut y, &mut context)
            .expect("is finite");
        x.to_vec_padded(32)
            .expect("fits")
            .try_into()
            .expect("32 bytes")
    }
}

impl Hkdf for OpenSsl {
    fn extract(salt: &[u8], ikm: &[u8]) -> [u8; 32] {
        let mut prk = [0; 32];
        hkdf(
            Md::sha256(),
            ikm,
            Some(salt),
            None,
            HkdfMode::ExtractOnly,
            None,
            &mut prk,
        )
        .expect("extracts");
        prk
    }

    fn expand(prk: &[u8; 32], info: &[u8], okm: &mut [u8]) {
        hkdf(
            Md::sha256(),
            prk,
            None,
            Some(info),
            HkdfMode::ExpandOnly,
            None,
            okm,
        )
        .expect("expands");
    }
}

/// AES-256-GCM with a new cipher context for every message, as `EVP_CIPHER_CTX_new` suggests.
#[derive(Debug)]
pub struct OneShot(Key);

impl Aead for OneShot {
    fn new(key: &Key) -> Self {
        Self(*key)
    }

    fn seal(&mut self, nonce: &Nonce, aad: &[u8], message: &mut [u8]) {
        let (data, tag) = split_tag(message);
        let sealed = symm::encrypt_aead(
            symm::Cipher::aes_256_gcm(),
            &self.0,
            Some(nonce),
            aad,
            data,
            tag,
        );
        data.copy_from_slice(&sealed.expect("seals"));
    }

    fn open(&mut self, nonce: &Nonce, aad: &[u8], sealed: &mut [u8]) -> bool {
        let (data, tag) = split_tag(sealed);
        symm::decrypt_aead(
            symm::Cipher::aes_256_gcm(),
            &self.0,
            Some(nonce),
            aad,
            data,
            tag,
        )
        .map(|opened| data.copy_from_slice(&opened))
        .is_ok()
    }
}

/// AES-256-GCM with one cipher context per direction, which holds the key. A message only sets its
/// nonce.
pub struct ReusedContext {
    sealing: CipherCtx,
    opening: CipherCtx,
}

impl std::fmt::Debug for ReusedContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReusedContext")
    }
}

impl Aead for ReusedContext {
    fn new(key: &Key) -> Self {
        let cipher = Cipher::fetch(None, "AES-256-GCM", None).expect("knows the cipher");
        let (mut sealing, mut opening) = (
            CipherCtx::new().expect("memory"),
            CipherCtx::new().expect("memory"),
        );
        sealing
            .encrypt_init(Some(&cipher), Some(key), None)
            .expect("takes a key");
        opening
            .decrypt_init(Some(&cipher), Some(key), None)
            .expect("takes a key");
        Self { sealing, opening }
    }

    fn seal(&mut self, nonce: &Nonce, aad: &[u8], message: &mut [u8]) {
        let (data, tag) = split_tag(message);
        self.sealing
            .encrypt_init(None, None, Some(nonce))
            .expect("takes a nonce");
        self.sealing
            .cipher_update(aad, None)
            .expect("takes additional data");
        self.sealing
            .cipher_update_inplace(data, data.len())
            .expect("seals");
        self.sealing.cipher_final(&mut []).expect("ends");
        self.sealing.tag(tag).expect("has a tag");
    }

    fn open(&mut self, nonce: &Nonce, aad: &[u8], sealed: &mut [u8]) -> bool {
        let (data, tag) = split_tag(sealed);
        self.opening
            .decrypt_init(None, None, Some(nonce))
            .expect("takes a nonce");
        self.opening.set_tag(tag).expect("takes a tag");
        self.opening
            .cipher_update(aad, None)
            .expect("takes additional data");
        self.opening
            .cipher_update_inplace(data, data.len())
            .expect("opens");
        self.opening.cipher_final(&mut []).is_ok()
    }
}
