//! Providers of key-encryption keys (KEK).
//!
//! The root key of a store is stored once per provider, wrapped under its KEK. A provider has a KEK
//! of its own and wraps or unwraps the root key with it; the KEK never leaves the provider. Each
//! wrapped copy is bound to its [`WrapSlot`], so that a copy cannot be moved to another store, root
//! key or slot.
//!
//! This crate does the I/O with providers. It stores nothing and decides nothing: which copies
//! exist, and which provider is asked first, is the caller's.

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

/// The bytes of a root key, wiped on drop. They have their own allocation, so that moves leave no
/// copies behind.
pub type RootBytes = Box<Zeroizing<[u8; 32]>>;

/// Rejects a wrapped copy that no provider made.
fn reject_long(wrapped: &[u8]) -> Result<(), ProviderError> {
    if wrapped.len() <= WRAPPED_BYTES_MAX {
        return Ok(());
    }
    Err(ProviderError::DoesNotUnwrap(format!(
        "a wrapped copy has at most {WRAPPED_BYTES_MAX} bytes"
    )))
}

/// The place of a wrapped copy, which its provider authenticates. None of it is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrapSlot {
    /// Names the set of root keys of one store: random, chosen once.
    pub set: [u8; 16],
    /// Names the root key, and commits to it.
    pub root: [u8; 16],
    /// The slot's number. Numbers are not used again.
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
    /// A file with the KEK.
    File,
    /// An environment variable with the KEK.
    Environment,
    /// A token behind PKCS #11: a hardware security module, a smart card.
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

    /// Returns the kind with a name.
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

    /// Returns true if the kind wraps by itself but unwraps only with people: the holders of
    /// shares.
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

/// A provider did not do what was asked. Texts contain no bytes of a key, a credential or a wrapped
/// copy. They name files, variables, tokens and keys as the settings do, so a secret that is set as
/// such a name is shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// No answer, or a temporary failure. Trying again can help.
    #[error("{0}")]
    Unavailable(String),
    /// The credential was rejected, or does not permit this.
    #[error("{0}")]
    Denied(String),
    /// The key, token, module or file that the settings name is not there.
    #[error("{0}")]
    NotFound(String),
    /// The provider answered, but the copy does not unwrap: it was altered, is another slot's or
    /// another key's.
    #[error("{0}")]
    DoesNotUnwrap(String),
    /// The answer is not what the protocol says.
    #[error("{0}")]
    WrongAnswer(String),
    /// The settings cannot be used.
    #[error("{0}")]
    Settings(String),
    /// The copy unwraps only with the shares of a recovery key, which no configuration has. Not a
    /// failure of the provider.
    #[error("{}", recovery::NEEDS_HOLDERS)]
    NeedsHolders,
}

/// Wraps and unwraps root keys.
///
/// Each call ends within the time limits of its provider. A call that is dropped midway has no
/// effect that matters.
#[async_trait]
pub trait Provider: Send + Sync + fmt::Debug {
    /// Returns its kind.
    fn kind(&self) -> ProviderKind;

    /// Wraps a root key for a slot. The result is at most [`WRAPPED_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// See [`ProviderError`].
    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError>;

    /// Unwraps what [`Self::wrap`] returned for the same slot.
    ///
    /// # Errors
    /// See [`ProviderError`].
    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError>;
}
