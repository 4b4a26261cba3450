//! Key pairs and Diffie-Hellman on either curve.
//!
//! P-256 runs on AWS-LC, secp256k1 on libsecp256k1; both are constant time for secret scalars.
//! Public points are stored in both SEC 1 forms: envelopes carry the compressed form, and HKDF
//! hashes the uncompressed form.

use std::fmt;

use aws_lc_rs::agreement::{self, ECDH_P256, ParsedPublicKey, UnparsedPublicKey};
use aws_lc_rs::encoding::{AsBigEndian, EcPrivateKeyBin};
use p256::elliptic_curve::sec1::ToSec1Point;
use sealwire_fixed_base::{self as fixed_base, FixedBase};
use zeroize::{Zeroize, Zeroizing};

use crate::{Curve, Error};

/// A private scalar, 32 bytes big-endian, wiped on drop. No `Clone`; `Debug` shows none of its
/// bytes.
pub struct Scalar(Zeroizing<[u8; 32]>);

impl Scalar {
    /// Takes ownership of bytes from a key pair or from unwrapping a stored key. The bytes are
    /// checked at use.
    #[must_use]
    pub fn new(bytes: Zeroizing<[u8; 32]>) -> Self {
        Self(bytes)
    }

    /// Exposes the bytes. For wrapping a key under the KEK, and for test vectors only.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scalar(32 bytes)")
    }
}

/// The shared x coordinate of a Diffie-Hellman, wiped on drop.
pub(crate) struct SharedX(pub(crate) Zeroizing<[u8; 32]>);

/// A point that was checked to be on its curve.
#[derive(Clone)]
pub struct PublicKey {
    compressed: [u8; 33],
    uncompressed: [u8; 65],
    parsed: Parsed,
}

#[derive(Clone)]
enum Parsed {
    P256(ParsedPublicKey),
    Secp256k1(secp256k1::PublicKey),
}

impl PublicKey {
    /// Parses a SEC 1 point, 33 bytes compressed or 65 uncompressed.
    ///
    /// # Errors
    /// [`Error::InvalidPublicKey`] when the bytes are not a point of `curve`.
    pub fn from_sec1(curve: Curve, sec1: &[u8]) -> Result<Self, Error> {
        // AWS-LC also accepts hybrid points and SubjectPublicKeyInfo. An envelope contains neither.
        if !matches!(
            (sec1.len(), sec1.first()),
            (33, Some(2 | 3)) | (65, Some(4))
        ) {
            return Err(Error::InvalidPublicKey);
        }
        match curve {
            Curve::P256 => {
                // AWS-LC's Rust API does not return the decompressed point, so the p256 crate
                // decompresses it. Points are public.
                let point =
                    p256::PublicKey::from_sec1_bytes(sec1).map_err(|_| Error::InvalidPublicKey)?;
                let mut uncompressed = [0; 65];
                uncompressed.copy_from_slice(point.to_sec1_point(false).as_bytes());
                Self::p256(uncompressed)
            }
            Curve::Secp256k1 => secp256k1::PublicKey::from_slice(sec1)
                .map(Self::secp256k1)
                .map_err(|_| Error::InvalidPublicKey),
        }
    }

    fn p256(uncompressed: [u8; 65]) -> Result<Self, Error> {
        let parsed = ParsedPublicKey::try_from(UnparsedPublicKey::new(&ECDH_P256, uncompressed))
            .map_err(|_| Error::InvalidPublicKey)?;
        let mut compressed = [0; 33];
        compressed[0] = 2 | (uncompressed[64] & 1);
        compressed[1..].copy_from_slice(&uncompressed[1..33]);
        Ok(Self {
            compressed,
            uncompressed,
            parsed: Parsed::P256(parsed),
        })
    }

    fn secp256k1(point: secp256k1::PublicKey) -> Self {
        Self {
            compressed: point.serialize(),
            uncompressed: point.serialize_uncompressed(),
            parsed: Parsed::Secp256k1(point),
        }
    }

    /// Returns the curve of this point.
    #[must_use]
    pub fn curve(&self) -> Curve {
        match self.parsed {
            Parsed::P256(_) => Curve::P256,
            Parsed::Secp256k1(_) => Curve::Secp256k1,
        }
    }

    /// Returns the SEC 1 compressed form.
    #[must_use]
    pub fn compressed(&self) -> &[u8; 33] {
        &self.compressed
    }

    /// Returns the SEC 1 uncompressed form, which HPKE calls the serialized public key.
    #[must_use]
    pub fn uncompressed(&self) -> &[u8; 65] {
        &self.uncompressed
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.curve().name())
    }
}

/// A private key and its public point. Wiped on drop; `Debug` shows the curve only.
pub struct KeyPair {
    private: Private,
    public: PublicKey,
}

enum Private {
    /// AWS-LC wipes every allocation it frees (`OPENSSL_free`).
    P256(agreement::PrivateKey),
    /// The key in its own allocation, so that a move leaves no copy behind.
    Secp256k1(Box<WipedSecret>),
}

/// libsecp256k1's key type, which does not wipe itself.
struct WipedSecret(secp256k1::SecretKey);

impl Drop for WipedSecret {
    fn drop(&mut self) {
        self.0.non_secure_erase();
    }
}

impl KeyPair {
    /// Generates a key pair from the system's random source.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the library fails.
    pub fn generate(curve: Curve) -> Result<Self, Error> {
        match curve {
            Curve::P256 => {
                let private =
                    agreement::PrivateKey::generate(&ECDH_P256).map_err(|_| Error::Library)?;
                Self::p256(private)
            }
            Curve::Secp256k1 => {
                let Ephemeral { private, public } = Ephemeral::generate(curve)?;
                Ok(Self {
                    private,
                    public: PublicKey::from_sec1(curve, &public)?,
                })
            }
        }
    }

    /// Creates the key pair of a stored scalar, 32 bytes big-endian.
    ///
    /// # Errors
    /// [`Error::InvalidPrivateKey`] when the scalar is zero or not below the order of the curve.
    pub fn from_scalar(curve: Curve, scalar: &[u8; 32]) -> Result<Self, Error> {
        match curve {
            Curve::P256 => {
                let private = agreement::PrivateKey::from_private_key(&ECDH_P256, scalar)
                    .map_err(|_| Error::InvalidPrivateKey)?;
                Self::p256(private)
            }
            Curve::Secp256k1 => {
                let private = Private::secp256k1(scalar)?;
                let point = fixed_base::secp256k1::multiply_generator(scalar)
                    .map_err(|_| Error::InvalidPrivateKey)?;
                Ok(Self {
                    private,
                    public: PublicKey::from_sec1(curve, &point)?,
                })
            }
        }
    }

    fn p256(private: agreement::PrivateKey) -> Result<Self, Error> {
        let point = private.compute_public_key().map_err(|_| Error::Library)?;
        let uncompressed = point.as_ref().try_into().map_err(|_| Error::Library)?;
        Ok(Self {
            private: Private::P256(private),
            public: PublicKey::p256(uncompressed)?,
        })
    }

    /// Returns the public half.
    #[must_use]
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the private half, for wrapping under the KEK.
    ///
    /// # Errors
    /// [`Error::Library`] when the library cannot serialize its key.
    pub fn scalar(&self) -> Result<Scalar, Error> {
        self.private.scalar()
    }

    /// Computes a Diffie-Hellman: the x coordinate of `self * peer`.
    ///
    /// # Errors
    /// [`Error::InvalidPublicKey`] when the peer's point is on the other curve.
    pub(crate) fn agree(&self, peer: &PublicKey) -> Result<SharedX, Error> {
        self.private.agree(peer)
    }
}

impl Private {
    fn secp256k1(scalar: &[u8; 32]) -> Result<Self, Error> {
        let mut secret = secp256k1::SecretKey::from_secret_bytes(*scalar)
            .map_err(|_| Error::InvalidPrivateKey)?;
        let private = Self::Secp256k1(Box::new(WipedSecret(secret)));
        secret.non_secure_erase();
        Ok(private)
    }

    fn scalar(&self) -> Result<Scalar, Error> {
        let mut bytes = Zeroizing::new([0; 32]);
        match self {
            Self::P256(key) => {
                let encoded: EcPrivateKeyBin<'_> = key.as_be_bytes().map_err(|_| Error::Library)?;
                bytes.copy_from_slice(encoded.as_ref());
            }
            Self::Secp256k1(secret) => bytes.copy_from_slice(secret.0.as_secret_bytes()),
        }
        Ok(Scalar(bytes))
    }

    fn agree(&self, peer: &PublicKey) -> Result<SharedX, Error> {
        let mut shared = SharedX(Zeroizing::new([0; 32]));
        match (self, &peer.parsed) {
            (Self::P256(private), Parsed::P256(peer)) => {
                agreement::agree(private, peer.clone(), Error::InvalidPublicKey, |x| {
                    shared.0.copy_from_slice(x);
                    Ok(())
                })?;
            }
            (Self::Secp256k1(secret), Parsed::Secp256k1(peer)) => {
                let mut point = secp256k1::ecdh::shared_secret_point(peer, &secret.0);
                shared.0.copy_from_slice(&point[..32]);
                point.zeroize();
            }
            _ => return Err(Error::InvalidPublicKey),
        }
        Ok(shared)
    }
}

/// A key pair for one key agreement. The peer receives its point, which is never used for an
/// agreement on this side.
pub(crate) struct Ephemeral {
    private: Private,
    public: [u8; 65],
}

impl Ephemeral {
    pub(crate) fn generate(curve: Curve) -> Result<Self, Error> {
        match curve {
            Curve::P256 => {
                let private =
                    agreement::PrivateKey::generate(&ECDH_P256).map_err(|_| Error::Library)?;
                let point = private.compute_public_key().map_err(|_| Error::Library)?;
                let public = point.as_ref().try_into().map_err(|_| Error::Library)?;
                Ok(Self {
                    private: Private::P256(private),
                    public,
                })
            }
            Curve::Secp256k1 => {
                let mut bytes = Zeroizing::new([0; 32]);
                // A random string is outside the scalar range with probability 2^-128, so the loop
                // ends.
                loop {
                    aws_lc_rs::rand::fill(&mut bytes[..]).map_err(|_| Error::Library)?;
                    match fixed_base::secp256k1::multiply_generator(&bytes) {
                        Ok(public) => {
                            return Ok(Self {
                                private: Private::secp256k1(&bytes)?,
                                public,
                            });
                        }
                        Err(fixed_base::Error::NotAScalar) => (),
                        Err(_) => return Err(Error::Library),
                    }
                }
            }
        }
    }

    /// Returns the SEC 1 uncompressed public point.
    pub(crate) fn public(&self) -> &[u8; 65] {
        &self.public
    }

    pub(crate) fn agree(&self, peer: &PublicKey) -> Result<SharedX, Error> {
        self.private.agree(peer)
    }

    /// Computes the Diffie-Hellman with the peer's table, which must be of the peer's point.
    pub(crate) fn agree_by(&self, table: &FixedBase) -> Result<SharedX, Error> {
        let scalar = self.private.scalar()?;
        table
            .multiply(scalar.expose())
            .map(SharedX)
            .map_err(|_| Error::Library)
    }
}

impl From<KeyPair> for Ephemeral {
    fn from(pair: KeyPair) -> Self {
        Self {
            public: pair.public.uncompressed,
            private: pair.private,
        }
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public.curve().name())
    }
}
