//! aws-lc-rs and ring, which share one API for HKDF and AES-GCM. One macro implements the benches
//! for both.

use sealwire_curves::{Agreement, Point};

macro_rules! hkdf_and_aead {
    ($library:ident, $agreement:ident, $aead:ident, $seal:expr) => {
        pub(crate) struct $agreement;

        impl sealwire_curves::Hkdf for $agreement {
            fn extract(salt: &[u8], ikm: &[u8]) -> [u8; 32] {
                // Their HKDF does not expose a PRK, and HPKE needs some as bytes, so this uses HMAC
                // (RFC 5869, section 2.2).
                use $library::hmac;
                let prk = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, salt), ikm);
                prk.as_ref().try_into().expect("one hash")
            }

            fn expand(prk: &[u8; 32], info: &[u8], okm: &mut [u8]) {
                struct Bytes(usize);
                impl $library::hkdf::KeyType for Bytes {
                    fn len(&self) -> usize {
                        self.0
                    }
                }
                let prk = $library::hkdf::Prk::new_less_safe($library::hkdf::HKDF_SHA256, prk);
                prk.expand(&[info], Bytes(okm.len()))
                    .and_then(|expanded| expanded.fill(okm))
                    .expect("expands");
            }
        }

        pub(crate) struct $aead($library::aead::LessSafeKey);

        impl sealwire_curves::Aead for $aead {
            fn new(key: &sealwire_curves::Key) -> Self {
                use $library::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
                Self(LessSafeKey::new(
                    UnboundKey::new(&AES_256_GCM, key).expect("32 bytes"),
                ))
            }

            fn seal(&mut self, nonce: &sealwire_curves::Nonce, aad: &[u8], message: &mut [u8]) {
                use $library::aead::{Aad, LessSafeKey, Nonce};
                type Seal = fn(&LessSafeKey, Nonce, Aad<&[u8]>, &mut [u8], &mut [u8; 16]);
                const SEAL: Seal = $seal;
                let (data, tag) = sealwire_curves::split_tag(message);
                SEAL(
                    &self.0,
                    Nonce::assume_unique_for_key(*nonce),
                    Aad::from(aad),
                    data,
                    tag,
                );
            }

            fn open(
                &mut self,
                nonce: &sealwire_curves::Nonce,
                aad: &[u8],
                sealed: &mut [u8],
            ) -> bool {
                use $library::aead::{Aad, Nonce};
                self.0
                    .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(aad), sealed)
                    .is_ok()
            }
        }
    };
}

// The tag is written in place, as in the engine. Returning the tag by value costs four copies.
hkdf_and_aead!(aws_lc_rs, AwsLc, AwsLcAead, |key, nonce, aad, data, tag| {
    key.seal_in_place_scatter(nonce, aad, data, &[], tag)
        .expect("seals");
});
hkdf_and_aead!(ring, Ring, RingAead, |key, nonce, aad, data, tag| {
    tag.copy_from_slice(
        key.seal_in_place_separate_tag(nonce, aad, data)
            .expect("seals")
            .as_ref(),
    );
});

impl Agreement for AwsLc {
    type Private = aws_lc_rs::agreement::PrivateKey;
    type Peer = aws_lc_rs::agreement::ParsedPublicKey;

    fn generate(&self) -> (Self::Private, Point) {
        let private =
            Self::Private::generate(&aws_lc_rs::agreement::ECDH_P256).expect("makes a key");
        let point = private
            .compute_public_key()
            .expect("public half")
            .as_ref()
            .try_into()
            .expect("uncompressed");
        (private, point)
    }

    fn peer(&self, point: &Point) -> Self::Peer {
        use aws_lc_rs::agreement::{ECDH_P256, UnparsedPublicKey};
        Self::Peer::try_from(UnparsedPublicKey::new(&ECDH_P256, point)).expect("a point")
    }

    fn agree(&self, private: Self::Private, peer: &Self::Peer) -> [u8; 32] {
        aws_lc_rs::agreement::agree(&private, peer.clone(), (), |x| x.try_into().map_err(|_| ()))
            .expect("agrees")
    }
}

impl Agreement for Ring {
    type Private = ring::agreement::EphemeralPrivateKey;
    /// The point is parsed at every agreement.
    type Peer = ring::agreement::UnparsedPublicKey<Point>;

    fn generate(&self) -> (Self::Private, Point) {
        let random = ring::rand::SystemRandom::new();
        let private =
            Self::Private::generate(&ring::agreement::ECDH_P256, &random).expect("makes a key");
        let point = private
            .compute_public_key()
            .expect("public half")
            .as_ref()
            .try_into()
            .expect("uncompressed");
        (private, point)
    }

    fn peer(&self, point: &Point) -> Self::Peer {
        ring::agreement::UnparsedPublicKey::new(&ring::agreement::ECDH_P256, *point)
    }

    fn agree(&self, private: Self::Private, peer: &Self::Peer) -> [u8; 32] {
        ring::agreement::agree_ephemeral(private, peer, |x| x.try_into().expect("32 bytes"))
            .expect("agrees")
    }
}
