//! Ed25519 signatures (RFC 8032) over data that the engine publishes.

use std::fmt;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use zeroize::Zeroizing;

use crate::Error;

/// Length of a signature.
pub const SIGNATURE_BYTES: usize = 64;

/// The key that signs. Wiped on drop; `Debug` shows the public half only.
pub struct SigningKey {
    /// AWS-LC wipes every allocation that it frees.
    pair: Ed25519KeyPair,
    seed: Box<Zeroizing<[u8; 32]>>,
    public: VerifyingKey,
}

impl SigningKey {
    /// Generates a key from the system's random source.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source or the library fails.
    pub fn generate() -> Result<Self, Error> {
        let mut seed = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(&mut seed[..]).map_err(|_| Error::Library)?;
        Self::from_seed(seed)
    }

    /// Creates the key of a seed (RFC 8032, section 5.1.5, "private key").
    ///
    /// # Errors
    /// [`Error::Library`] when the library fails.
    pub fn from_seed(seed: Zeroizing<[u8; 32]>) -> Result<Self, Error> {
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed[..]).map_err(|_| Error::Library)?;
        let public = VerifyingKey(
            pair.public_key()
                .as_ref()
                .try_into()
                .map_err(|_| Error::Library)?,
        );
        Ok(Self {
            pair,
            seed: Box::new(seed),
            public,
        })
    }

    pub(crate) fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// Returns the public half.
    #[must_use]
    pub fn verifying_key(&self) -> &VerifyingKey {
        &self.public
    }

    /// Signs `label | 00 | message`. The label tells the kind of message, so that a signature over
    /// one kind is never valid for another.
    #[must_use]
    pub fn sign(&self, label: &str, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let signature = self.pair.sign(&labelled(label, message));
        signature
            .as_ref()
            .try_into()
            .expect("an Ed25519 signature has 64 bytes")
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public).finish()
    }
}

/// The public half of a [`SigningKey`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct VerifyingKey([u8; 32]);

impl VerifyingKey {
    /// Takes the bytes of RFC 8032, which are checked at use.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Checks a signature of `label | 00 | message`.
    ///
    /// # Errors
    /// [`Error::InvalidSignature`].
    pub fn verify(&self, label: &str, message: &[u8], signature: &[u8]) -> Result<(), Error> {
        let key = UnparsedPublicKey::new(&ED25519, self.0);
        key.verify(&labelled(label, message), signature)
            .map_err(|_| Error::InvalidSignature)
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerifyingKey(")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

fn labelled(label: &str, message: &[u8]) -> Vec<u8> {
    [label.as_bytes(), &[0], message].concat()
}
