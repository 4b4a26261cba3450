//! Errors of keys and envelopes. The errors reveal as little as possible.

/// An envelope did not open: wrong key, wrong context, unknown key version or altered bytes.
///
/// This error carries no reason, so that no response, log line or metric can reveal it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot open")]
pub struct CannotOpen;

/// An invalid key or name, or a request for key material that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not a scalar in `1..order` of the curve. The stored key is damaged.
    #[error("not a private key of this curve")]
    InvalidPrivateKey,
    /// A private key file has an unsupported form, is encrypted, or is of another curve. The
    /// operator must fix it.
    #[error(
        "not a private key of this curve as PEM without a password, 64 hexadecimal digits or base64 of 32 bytes"
    )]
    UnreadableKey,
    /// The bytes are not a point of the curve, or are its point at infinity. This is a bug of the
    /// peer.
    #[error("not a public key of this curve")]
    InvalidPublicKey,
    /// An app name must be 1 to 64 of `A-Z a-z 0-9 . _ -`. This is a bug of the client.
    #[error("an app name is 1 to 64 letters, digits, dots, underscores or hyphens")]
    InvalidAppId,
    /// The signature was not made by the key for this label and message.
    #[error("the signature does not match")]
    InvalidSignature,
    /// A key id must be 10 hexadecimal digits. This is a bug of the client.
    #[error("a key id is 10 hexadecimal digits")]
    InvalidKeyId,
    /// An epoch's lifetime must be 1 to 15,000 ms. The operator must fix it.
    #[error("an epoch lasts 1 to 15000 ms")]
    InvalidEpoch,
    /// The key-encryption key is not 32 bytes. The operator must fix it.
    #[error("a key-encryption key is 32 bytes, as 64 hexadecimal digits")]
    InvalidKek,
    /// A wrapped private key does not unwrap: the key-encryption key is wrong or bytes were
    /// altered.
    #[error("wrapped key does not open: another key-encryption key, or an altered record")]
    Unwrap,
    /// A text is longer than [`TEXT_BYTES_MAX`](crate::evervault::TEXT_BYTES_MAX). The client must
    /// split it.
    #[error("an Evervault string holds at most 25 MiB")]
    TextTooLong,
    /// A format or operation needs a key pair, and this key version is a symmetric key. This is a
    /// bug of the caller.
    #[error("the key version is not a key pair")]
    NoKeyPair,
    /// A symmetric key has sealed as many requests as it may. The operator must make the next
    /// version.
    #[error("the key has sealed as many requests as it may; rotate it")]
    KeyUsedUp,
    /// Two key versions of one app share a key id (probability 2^-40). Make another key.
    #[error("key id is taken")]
    KeyIdTaken,
    /// Numbers of an app's token keys must start at 1 and be unique, and version 1 must exist. The
    /// record is damaged.
    #[error("token keys begin with version 1 and have each number once")]
    InvalidTokenKeys,
    /// Every token key of the app is disabled. The operator must make a new key.
    #[error("no active token key")]
    NoTokenKey,
    /// A token must have at most 65,535 bytes. This is a bug of the client.
    #[error("a token has at most 65535 bytes")]
    TokenTooLong,
    /// A card token keeps at most 6 digits at the start and 4 at the end. The operator must fix it.
    #[error("a card token keeps at most the first 6 and the last 4 digits")]
    InvalidCardEnds,
    /// The system's random source or the crypto library failed. Stop using this process.
    #[error("the crypto library failed")]
    Library,
}
