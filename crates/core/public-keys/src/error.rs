//! Errors of checking public keys and of sealing to them.

use sealwire_crypto::KeyId;
use thiserror::Error;

/// The reason why public keys are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The signature is not the pinned signer's, or the text was altered.
    #[error("the signature is not that of the pinned signer")]
    Signature,
    /// The text does not have the format of public keys.
    #[error("these are not public keys: {0}")]
    Malformed(String),
    /// The text has a version that this program does not know.
    #[error("the text has version {0}; this program knows version 1")]
    Version(u32),
    /// The text belongs to another app.
    #[error("the keys are those of app {0}")]
    OtherApp(String),
    /// The text has expired.
    #[error("the keys expired {seconds} s ago; fetch them again")]
    Expired {
        /// Seconds since the expiry.
        seconds: u64,
    },
    /// The text is older than a text that was seen before.
    #[error("the keys are of generation {have}, older than generation {least}; fetch them again")]
    Old {
        /// The generation of the text.
        have: u64,
        /// The lowest accepted generation.
        least: u64,
    },
    /// The id of a key differs from the id in the text.
    #[error("key {0} does not have that id")]
    KeyId(KeyId),
    /// The text has no key of a suite that this program knows.
    #[error("no key has a suite to which this version can seal")]
    NoKey,
}

/// The reason why a document is not sealed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SealError {
    /// The document is not one MessagePack value, is nested too deep, or becomes too large.
    #[error("{0}")]
    Document(String),
    /// A path is invalid.
    #[error("{0}")]
    Path(String),
    /// The context is longer than an engine accepts.
    #[error("the context is longer than {max} bytes")]
    Context {
        /// The limit in bytes.
        max: usize,
    },
    /// The context is reserved for engines, and no request can open a field under it.
    #[error("the context begins with sealwire/, which is reserved")]
    ContextReserved,
    /// The app publishes no key of the suite.
    #[error("the app has no key of that suite")]
    NoKey,
    /// The encapsulation cannot be apart from the fields.
    #[error("an encapsulation cannot be apart here: {0}")]
    Apart(&'static str),
    /// The system's random source or the crypto library failed.
    #[error("the crypto library failed")]
    Library,
}
