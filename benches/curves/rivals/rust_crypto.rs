//! RustCrypto: `p256`, `k256`, `hkdf` (the engine's HKDF), `aes-gcm`.

use std::marker::PhantomData;

use aes_gcm::Aes256Gcm;
use aes_gcm::aead::{AeadInOut, KeyInit};
use hkdf::HkdfExtract;
use p256::elliptic_curve::sec1::{FromSec1Point, ModulusSize, ToSec1Point};
use p256::elliptic_curve::{AffinePoint, CurveArithmetic, FieldBytesSize, PublicKey, SecretKey};
use sealwire_curves::{Aead, Agreement, Hkdf, Key, Nonce, Point, split_tag};
use sha2::Sha256;

/// A RustCrypto curve, with its table of the generator.
pub(crate) struct RustCrypto<C>(PhantomData<C>);

impl<C> RustCrypto<C> {
    pub(crate) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<C> Agreement for RustCrypto<C>
where
    C: CurveArithmetic,
    AffinePoint<C>: FromSec1Point<C> + ToSec1Point<C>,
    FieldBytesSize<C>: ModulusSize,
{
    type Private = SecretKey<C>;
    type Peer = PublicKey<C>;

    fn generate(&self) -> (Self::Private, Point) {
        let private =
            SecretKey::from_slice(&super::random()).expect("below the order, but for one in 2^32");
        let point = private
            .public_key()
            .to_sec1_point(false)
            .as_bytes()
            .try_into()
            .expect("uncompressed");
        (private, point)
    }

    fn peer(&self, point: &Point) -> Self::Peer {
        PublicKey::from_sec1_bytes(point).expect("a point")
    }

    fn agree(&self, private: Self::Private, peer: &Self::Peer) -> [u8; 32] {
        private.diffie_hellman(peer).raw_secret_bytes()[..]
            .try_into()
            .expect("32 bytes")
    }
}

/// HKDF does not depend on the curve.
pub(crate) struct RustCryptoHkdf;

impl Hkdf for RustCryptoHkdf {
    fn extract(salt: &[u8], ikm: &[u8]) -> [u8; 32] {
        let mut extract = HkdfExtract::<Sha256>::new(Some(salt));
        extract.input_ikm(ikm);
        extract.finalize().0.into()
    }

    fn expand(prk: &[u8; 32], info: &[u8], okm: &mut [u8]) {
        hkdf::Hkdf::<Sha256>::from_prk(prk)
            .expect("one hash")
            .expand(info, okm)
            .expect("one hash at most");
    }
}

pub(crate) struct AesGcm(Aes256Gcm);

impl Aead for AesGcm {
    fn new(key: &Key) -> Self {
        Self(Aes256Gcm::new(key.into()))
    }

    fn seal(&mut self, nonce: &Nonce, aad: &[u8], message: &mut [u8]) {
        let (data, tag) = split_tag(message);
        *tag = self
            .0
            .encrypt_inout_detached(nonce.into(), aad, data.into())
            .expect("seals")
            .into();
    }

    fn open(&mut self, nonce: &Nonce, aad: &[u8], sealed: &mut [u8]) -> bool {
        let (data, tag) = split_tag(sealed);
        self.0
            .decrypt_inout_detached(nonce.into(), aad, data.into(), (&*tag).into())
            .is_ok()
    }
}
