//! What can go wrong with keys and envelopes, and how little of it anyone learns.

/// An envelope did not open: wrong key, wrong context, unknown key version or altered bytes.
///
/// One value without a reason, so that neither a reply, a log line nor a metric can tell which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot open")]
pub struct CannotOpen;

/// A key, a name or a request for key material that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no scalar in `1..order` of the curve. The stored key is damaged.
    #[error("not a private key of this curve")]
    InvalidPrivateKey,
    /// A private key's file has another form, is encrypted, or is of another curve. The operator's to mend.
    #[error("not a private key of this curve as PEM without a password, 64 hexadecimal digits or base64 of 32 bytes")]
    UnreadableKey,
    /// The bytes are no point of the curve, or its point at infinity. The peer's bug.
    #[error("not a public key of this curve")]
    InvalidPublicKey,
    /// An app name is 1 to 64 of `A-Z a-z 0-9 . _ -`. The caller's bug.
    #[error("an app name is 1 to 64 letters, digits, dots, underscores or hyphens")]
    InvalidAppId,
    /// A key id is 10 hexadecimal digits. The caller's bug.
    #[error("a key id is 10 hexadecimal digits")]
    InvalidKeyId,
    /// An epoch's lifetime is 1 to 15,000 ms. The operator's bug.
    #[error("an epoch lasts 1 to 15000 ms")]
    InvalidEpoch,
    /// The key-encryption key is not 32 bytes. The operator's to mend.
    #[error("a key-encryption key is 32 bytes, as 64 hexadecimal digits")]
    InvalidKek,
    /// A wrapped private key does not unwrap: another key-encryption key, or altered bytes.
    #[error("wrapped key does not open: another key-encryption key, or an altered record")]
    Unwrap,
    /// A text beyond [`TEXT_BYTES_MAX`](crate::evervault::TEXT_BYTES_MAX) for an Evervault string. The caller's to split.
    #[error("an Evervault string holds at most 25 MiB")]
    TextTooLong,
    /// Two key versions of one app share a key id (chance 2^-40). Make another key.
    #[error("key id is taken")]
    KeyIdTaken,
    /// An app's token keys are numbered from 1, each number once, and the first is always there. The record is damaged.
    #[error("token keys begin with version 1 and have each number once")]
    InvalidTokenKeys,
    /// Every token key of the app is disabled. The operator's to make a new one.
    #[error("no active token key")]
    NoTokenKey,
    /// A token has at most 65,535 bytes. The caller's bug.
    #[error("a token has at most 65535 bytes")]
    TokenTooLong,
    /// A card token keeps at most 6 digits at the start and 4 at the end. The operator's to mend.
    #[error("a card token keeps at most the first 6 and the last 4 digits")]
    InvalidCardEnds,
    /// The system's random source or the crypto library failed. Stop using this process.
    #[error("the crypto library failed")]
    Library,
}
