//! The root key of a store: the random key from which the key-encryption key (KEK) of its records
//! is derived.
//!
//! Providers keep wrapped copies of the root key. All derivations name the store's set of root
//! keys, so that one root key in two stores gives unrelated keys.

use std::fmt;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::{Error, Kek};

/// Longest wrapped copy of a root key that is accepted from a provider or a record, in bytes.
pub const WRAPPED_BYTES_MAX: usize = 8 << 10;

/// The HKDF label of a root key's id.
const ID_LABEL: &[u8] = b"sealwire/root-id/1";
/// The HKDF label of the key that authenticates a store's control state.
const STATE_LABEL: &[u8] = b"sealwire/root-state/1";
/// The HKDF label of the key that wraps a store's keys.
const WRAP_LABEL: &[u8] = b"sealwire/root-wrap/1";

/// Authenticates the control state of a store with HMAC-SHA-256 (RFC 2104). Derived from the
/// store's root key.
pub struct StateKey(Box<Zeroizing<[u8; 32]>>);

impl StateKey {
    /// Returns the authentication code of a message.
    #[must_use]
    pub fn code(&self, message: &[u8]) -> [u8; 32] {
        self.hmac(message).finalize().into_bytes().into()
    }

    /// Returns true if `code` is the code of the message. Takes the same time for every code of 32
    /// bytes.
    #[must_use]
    pub fn verifies(&self, message: &[u8], code: &[u8]) -> bool {
        self.hmac(message).verify_slice(code).is_ok()
    }

    fn hmac(&self, message: &[u8]) -> Hmac<Sha256> {
        let mut hmac = Hmac::new_from_slice(&self.0[..]).expect("HMAC takes keys of any length");
        hmac.update(message);
        hmac
    }
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateKey")
    }
}

/// The 32 bytes of a root key, wiped on drop. The bytes have a separate allocation, so that moves
/// leave no copies behind.
pub struct RootKey(Box<Zeroizing<[u8; 32]>>);

impl RootKey {
    /// Generates a random root key.
    ///
    /// # Errors
    /// [`Error::Library`] when the random source fails.
    pub fn generate() -> Result<Self, Error> {
        let mut bytes = Box::new(Zeroizing::new([0; 32]));
        aws_lc_rs::rand::fill(&mut bytes[..]).map_err(|_| Error::Library)?;
        Ok(Self(bytes))
    }

    /// Takes the bytes of a root key that a provider unwrapped. [`Self::id`] tells whether they are
    /// the expected root key.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Box<Zeroizing<[u8; 32]>>>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes, for a provider that wraps them.
    #[must_use]
    #[allow(clippy::borrowed_box)] // Providers take it so.
    pub fn expose(&self) -> &Box<Zeroizing<[u8; 32]>> {
        &self.0
    }

    /// Returns the root key's id in a set. The id commits to the key: no other key has the same id.
    /// The key cannot be computed from the id.
    ///
    /// # Errors
    /// [`Error::Library`] when the library fails.
    pub fn id(&self, set: &[u8; 16]) -> Result<[u8; 16], Error> {
        let mut id = [0; 16];
        self.expand(ID_LABEL, set, &mut id)?;
        Ok(id)
    }

    /// Derives the KEK of a set's records, which carries `audit_secret`.
    ///
    /// # Errors
    /// [`Error::Library`] when the library rejects the key.
    pub fn kek(&self, set: &[u8; 16], audit_secret: Zeroizing<[u8; 32]>) -> Result<Kek, Error> {
        let mut key = Zeroizing::new([0; 32]);
        self.expand(WRAP_LABEL, set, &mut key[..])?;
        let mut state = Box::new(Zeroizing::new([0; 32]));
        self.expand(STATE_LABEL, set, &mut state[..])?;
        Kek::of_root(&key, audit_secret, StateKey(state))
    }

    /// Derives the KEK of a set's records, which carries the audit secret that the same KEK wrapped
    /// ([`Kek::wrap_audit_secret`]).
    ///
    /// # Errors
    /// [`Error::Unwrap`] when `wrapped_audit` was wrapped under another root key, for another set,
    /// or altered.
    pub fn kek_with_wrapped_audit(
        &self,
        set: &[u8; 16],
        wrapped_audit: &[u8],
    ) -> Result<Kek, Error> {
        let audit_secret = self
            .kek(set, Zeroizing::default())?
            .unwrap_audit_secret(wrapped_audit, set)?;
        self.kek(set, audit_secret)
    }

    fn expand(&self, label: &[u8], set: &[u8; 16], to: &mut [u8]) -> Result<(), Error> {
        let expander = Hkdf::<Sha256>::from_prk(&self.0[..]).map_err(|_| Error::Library)?;
        expander
            .expand_multi_info(&[label, set], to)
            .map_err(|_| Error::Library)
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootKey")
    }
}
