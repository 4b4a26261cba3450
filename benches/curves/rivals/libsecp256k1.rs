//! libsecp256k1 through its Rust binding.
//!
//! The binding blinds its context anew after every multiplication of the generator, which doubles
//! the cost. The engine's own function (`crates/core/fixed-base`) blinds once per 64 multiplications.
//! Both run in constant time. `PublicKey::mul_tweak` does not, and is not measured.

use sealwire_curves::{Agreement, Point};
use secp256k1::{PublicKey, SecretKey};

/// Measures both ways to multiply the generator.
pub(crate) struct LibSecp256k1 {
    public: fn(&SecretKey) -> Point,
}

impl LibSecp256k1 {
    pub(crate) const BINDING: Self = Self {
        public: |private| PublicKey::from_secret_key(private).serialize_uncompressed(),
    };
    pub(crate) const ENGINE: Self = Self {
        public: |private| {
            sealwire_fixed_base::secp256k1::multiply_generator(private.as_secret_bytes())
                .expect("multiplies")
        },
    };
}

impl Agreement for LibSecp256k1 {
    type Private = SecretKey;
    type Peer = PublicKey;

    fn generate(&self) -> (Self::Private, Point) {
        let private = SecretKey::from_secret_bytes(super::random())
            .expect("below the order, but for one in 2^128");
        (private, (self.public)(&private))
    }

    fn peer(&self, point: &Point) -> Self::Peer {
        PublicKey::from_slice(point).expect("a point")
    }

    fn agree(&self, mut private: Self::Private, peer: &Self::Peer) -> [u8; 32] {
        let point = secp256k1::ecdh::shared_secret_point(peer, &private);
        private.non_secure_erase();
        point[..32].try_into().expect("x")
    }
}
