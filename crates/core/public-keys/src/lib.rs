//! Public keys that an app publishes, so that others seal for it without an engine.
//!
//! An engine signs a text with [`publish`]. A client checks it with [`Signed::verify`] and seals
//! documents with [`PublicKeys::seal`], which selects the same fields and makes the same envelopes
//! as an engine. `proto/README.md` ("Public keys result") describes the text, and
//! `proto/envelope.md` ("Sealing outside") how to seal with any HPKE library.

mod error;
pub mod fuzzing;
mod seal;
mod text;

#[cfg(test)]
mod tests;

pub use error::{KeysError, SealError};
pub use seal::{SealOptions, Sealed};
pub use text::{
    Expected, LIFETIME, PublicKeys, Signed, TEXT_BYTES_MAX, publish, signer_from_base64,
};

/// Items of the crypto crate that users of this crate need.
pub use sealwire_crypto::{EncapsulationPlace, Encoding, KeyScope, Suite, VerifyingKey};
