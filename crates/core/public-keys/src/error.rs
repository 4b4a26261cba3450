//! Errors.

use sealwire_crypto::KeyId;
use thiserror::Error;

/// Why public keys are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The signature is not the pinned signer's, or the text was altered.
    #[error("the signature is not that of the pinned signer")]
    Signature,
    /// The text is not one of this format.
    #[error("not a text of public keys: {0}")]
    Malformed(String),
    /// The text has a version that this program does not know.
    #[error("the text has version {0}; this program knows version 1")]
    Version(u32),
    /// The text is another app's.
    #[error("the keys are those of app {0}")]
    OtherApp(String),
    /// The text is past its time.
    #[error("the keys expired {seconds} s ago; fetch them again")]
    Expired {
        /// How long ago.
        seconds: u64,
    },
    /// The text is older than one that was seen before.
    #[error("the keys are of generation {have}, older than generation {least}; fetch them again")]
    Old {
        /// The generation of the text.
        have: u64,
        /// The least that is accepted.
        least: u64,
    },
    /// A key has another id than the text says.
    #[error("key {0} does not have that id")]
    KeyId(KeyId),
    /// The text has no key of a suite that this program knows.
    #[error("there is no key that this program can seal to")]
    NoKey,
}

/// Why a document is not sealed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SealError {
    /// The document is not one MessagePack value, is nested too deep, or becomes too large.
    #[error("{0}")]
    Document(String),
    /// A path is not one.
    #[error("{0}")]
    Path(String),
    /// The context is longer than an engine accepts.
    #[error("the context is longer than {max} bytes")]
    Context {
        /// The limit.
        max: usize,
    },
    /// The context is one of an engine's own, under which no request opens a field.
    #[error("the context begins with sealwire/, which is reserved")]
    ContextReserved,
    /// The app publishes no key of the suite.
    #[error("there is no key of that suite")]
    NoKey,
    /// The encapsulation cannot be apart from the fields.
    #[error("an encapsulation cannot be apart here: {0}")]
    Apart(&'static str),
    /// The system's random source or the crypto library failed.
    #[error("the crypto library failed")]
    Library,
}
