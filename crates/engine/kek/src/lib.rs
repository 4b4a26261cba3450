//! Providers of key-encryption keys (KEK).
//!
//! The root key of a store is stored once per provider, wrapped under the KEK of that provider. The
//! KEK never leaves the provider. Each wrapped copy is bound to its [`WrapSlot`], so that a copy
//! cannot be moved to another store, root key or slot.
//!
//! This crate does the I/O with providers and stores nothing. Callers keep the list of copies and
//! decide the order of providers.

#[cfg(feature = "awskms")]
mod aws_kms;
mod aws_kms_options;
mod https;
pub mod local;
pub mod pkcs11;
pub mod recovery;
mod secret_file;
pub mod settings;
pub mod shares;
#[cfg(test)]
mod test_log;
mod transit;

#[cfg(feature = "awskms")]
pub use aws_kms::AwsKms;
pub use aws_kms_options::{AwsCredentials, AwsKmsOptions};
pub use transit::{SecretIdSource, Transit, TransitLogin, TransitOptions};

use std::fmt;

use async_trait::async_trait;
use zeroize::Zeroizing;

pub use local::{EnvironmentProvider, FileProvider};
pub use pkcs11::{Pkcs11Options, Pkcs11Provider};
pub use recovery::{RecoveryError, RecoveryKey, RecoveryPublicKey, SharesProvider};
pub use sealwire_crypto::WRAPPED_BYTES_MAX;
pub use secret_file::{SECRET_FILE_BYTES_MAX, read_secret_file};
pub use settings::{ProviderSettings, SettingsError};
pub use shares::{JoinError, Share, ShareError, SplitError};

/// The bytes of a root key, wiped on drop. A separate allocation ensures that moves leave no copies
/// in memory.
pub type RootBytes = Box<Zeroizing<[u8; 32]>>;

/// Rejects a wrapped copy that is longer than any provider makes.
fn reject_long(wrapped: &[u8]) -> Result<(), ProviderError> {
    if wrapped.len() <= WRAPPED_BYTES_MAX {
        return Ok(());
    }
    Err(ProviderError::DoesNotUnwrap(format!(
        "a wrapped copy has at most {WRAPPED_BYTES_MAX} bytes"
    )))
}

/// Returns the error for options that cannot be used. `text` names the setting.
fn settings_error(text: &str) -> ProviderError {
    ProviderError::Settings(text.into())
}

/// The place of a wrapped copy. The provider authenticates these fields, which are not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrapSlot {
    /// Identifies the set of root keys of one store. Random and never changed.
    pub set: [u8; 16],
    /// Identifies the root key and is a commitment to it.
    pub root: [u8; 16],
    /// The slot's number. Numbers are not reused.
    pub number: u32,
}

impl WrapSlot {
    /// Returns the additional authenticated data: `sealwire/slot/1`, set, root, number (4 bytes,
    /// big endian).
    #[must_use]
    pub fn aad(&self) -> Vec<u8> {
        [
            b"sealwire/slot/1",
            &self.set[..],
            &self.root,
            &self.number.to_be_bytes(),
        ]
        .concat()
    }
}

/// Kinds of providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProviderKind {
    /// A file that contains the KEK.
    File,
    /// An environment variable that contains the KEK.
    Environment,
    /// A PKCS #11 token: a hardware security module or a smart card.
    Pkcs11,
    /// AWS Key Management Service.
    AwsKms,
    /// The transit engine of HashiCorp Vault or OpenBao.
    Transit,
    /// A recovery public key, whose private key is split into shares.
    Shares,
}

impl ProviderKind {
    /// Returns the name in configuration, records, metrics and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Environment => "environment",
            Self::Pkcs11 => "pkcs11",
            Self::AwsKms => "awskms",
            Self::Transit => "transit",
            Self::Shares => "shares",
        }
    }

    /// Returns the kind for a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [
            Self::File,
            Self::Environment,
            Self::Pkcs11,
            Self::AwsKms,
            Self::Transit,
            Self::Shares,
        ]
        .into_iter()
        .find(|kind| kind.name() == name)
    }

    /// Returns true if this kind wraps automatically but needs the holders of shares to unwrap.
    #[must_use]
    pub const fn needs_holders(self) -> bool {
        matches!(self, Self::Shares)
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A failure of a provider. Texts contain no bytes of a key, a credential or a wrapped copy. Texts
/// name files, variables, tokens and keys as configured, so a secret that was configured as a name
/// is shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// The provider did not respond or failed temporarily. A retry can help.
    #[error("{0}")]
    Unavailable(String),
    /// The credential was rejected or does not permit the operation.
    #[error("{0}")]
    Denied(String),
    /// The configured key, token, module or file does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The provider responded, but the copy does not unwrap. The copy was altered, or belongs to
    /// another slot or key.
    #[error("{0}")]
    DoesNotUnwrap(String),
    /// The response violates the protocol of the provider.
    #[error("{0}")]
    WrongAnswer(String),
    /// The settings cannot be used.
    #[error("{0}")]
    Settings(String),
    /// The copy unwraps only with the shares of a recovery key, and no configuration contains
    /// shares. Not a failure of the provider.
    #[error("{}", recovery::NEEDS_HOLDERS)]
    NeedsHolders,
}

/// Wraps and unwraps root keys.
///
/// Each call ends within the time limits of its provider. Dropping a call midway is safe.
#[async_trait]
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns the kind of this provider.
    fn kind(&self) -> ProviderKind;

    /// Wraps a root key for a slot. The result is at most [`WRAPPED_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// See [`ProviderError`].
    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError>;

    /// Unwraps a copy that [`Self::wrap`] returned for the same slot.
    ///
    /// # Errors
    /// See [`ProviderError`].
    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError>;
}
