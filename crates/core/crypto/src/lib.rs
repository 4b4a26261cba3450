//! Key management, the HPKE key schedule, AEAD, and the envelope format of one encrypted field.
//!
//! Bytes in, bytes out: no I/O, clock, async or logging, so that this crate can be reviewed alone.
//! The constructions are HPKE in base and PSK mode (RFC 9180) and XAES-256-GCM (C2SP), with the
//! sequence number written into every envelope. `proto/envelope.md` specifies the exact bytes of
//! envelopes. This crate defines no new primitives. Curves and AES-GCM come from AWS-LC,
//! libsecp256k1 and OpenSSL, point decompression and HKDF from RustCrypto. Short fields of one
//! request are sealed together by `gcm_batch`.
//!
//! Important: [`CannotOpen`] carries no reason, on purpose. A client must not be able to tell a
//! wrong key, a wrong context and altered bytes apart.

pub mod aead;
mod agreement_queue;
mod app;
mod context;
mod curve;
mod envelope;
mod epoch;
mod error;
pub mod evervault;
pub mod gcm_batch;
mod hpke;
mod hybrid;
mod import;
mod kek;
mod key;
mod key_schedule;
mod mutex;
mod open;
mod open_key_cache;
mod precomputed;
mod psk;
mod recipient;
mod recovery;
mod root;
mod seal;
mod short_fields;
mod signature;
mod suite;
mod xaes;

pub use agreement_queue::AgreementQueue;
pub use app::{AppId, AppKeys, KeyId, KeyMaterial, KeyState, KeyVersion, Origin};
pub use curve::Curve;
pub use envelope::{
    Datatype, ENCAPSULATION_TEXT_BYTES, EncapsulationPlace, Encoding, Envelope, TEXT_PREFIX,
    looks_like_binary, looks_like_text,
};
pub use epoch::{Clock, EpochLifetime};
pub use error::{CannotOpen, Error};
pub use hybrid::{HYBRID_PUBLIC_KEY_BYTES, HybridKey, HybridPublicKey, HybridSeed};
pub use kek::Kek;
pub use key::{KeyPair, PublicKey, Scalar};
pub use open::{Opened, Opener};
pub use open_key_cache::OpenKeyCache;
pub use psk::{PskKey, PskSeed};
pub use recovery::RECOVERY_COPY_BYTES;
pub use root::{RootKey, StateKey, WRAPPED_BYTES_MAX};
pub use seal::{KeyScope, SEALER_ENCAPSULATIONS_MAX, Sealer};
pub use signature::{SIGNATURE_BYTES, SigningKey, VerifyingKey};
pub use suite::{Suite, SuiteSet};
pub use xaes::{XaesKey, XaesSecret};

#[cfg(test)]
mod tests;
