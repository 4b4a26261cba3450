//! Compares implementations of cryptographic primitives: the traits that each implements, and the
//! measurements.
//!
//! A library is one file in `rivals/` that implements [`Agreement`], [`Hkdf`] or [`Aead`].
//! [`measure`] first compares its results with those of [`openssl`], so that nothing wrong is ever
//! timed. Nothing here is for use outside of benches.

pub use cpu_time::CpuTime;
use criterion::Criterion;
pub use run::{criterion, is_smoke_run, say, target};

pub mod compare;
mod cpu_time;
pub mod hpke;
mod machine;
pub mod measure;
pub mod openssl;
pub mod openssl_build;
pub mod report;
mod results;
#[path = "../../support/run.rs"]
mod run;

/// A public point, SEC 1 uncompressed.
pub type Point = [u8; 65];
/// An AES-256 key.
pub type Key = [u8; 32];
/// The nonce of one AES-GCM message.
pub type Nonce = [u8; 12];
/// Bytes of an AES-GCM tag.
pub const TAG_BYTES: usize = 16;

/// Splits a message into its bytes and its tag.
///
/// # Panics
/// If it is shorter than a tag.
#[must_use]
pub fn split_tag(message: &mut [u8]) -> (&mut [u8], &mut [u8; TAG_BYTES]) {
    message.split_last_chunk_mut().expect("holds a tag")
}

/// The two curves of envelopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// secp256k1.
    Secp256k1,
}

impl Curve {
    /// Returns the curve's part of a bench's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P256 => "p256",
            Self::Secp256k1 => "secp256k1",
        }
    }
}

/// Diffie-Hellman on one curve. Implementations panic on any library failure.
pub trait Agreement {
    /// The private key of a key pair.
    type Private;
    /// A peer's public point, parsed and checked as far as the library can do in advance.
    type Peer;

    /// Generates a key pair and encodes its public point.
    fn generate(&self) -> (Self::Private, Point);
    /// Parses a peer's public point.
    fn peer(&self, point: &Point) -> Self::Peer;
    /// Computes the shared x coordinate. Takes the private key by value, because some libraries
    /// consume it, so wiping is measured too.
    fn agree(&self, private: Self::Private, peer: &Self::Peer) -> [u8; 32];
}

/// HKDF-SHA256, RFC 5869.
pub trait Hkdf {
    /// HKDF-Extract, section 2.2.
    fn extract(salt: &[u8], ikm: &[u8]) -> [u8; 32];
    /// HKDF-Expand, section 2.3, for at most one hash length.
    fn expand(prk: &[u8; 32], info: &[u8], okm: &mut [u8]);
}

/// AES-256-GCM under one key, in place.
pub trait Aead {
    /// Expands a key.
    fn new(key: &Key) -> Self;
    /// Encrypts all but the last 16 bytes of `message` in place, and writes the tag to these.
    fn seal(&mut self, nonce: &Nonce, aad: &[u8], message: &mut [u8]);
    /// Decrypts `sealed` (ciphertext and tag) in place; the plaintext is then at its start. Returns
    /// `false` if the tag does not match.
    fn open(&mut self, nonce: &Nonce, aad: &[u8], sealed: &mut [u8]) -> bool;
}

/// Compares primitives by CPU time.
pub type Comparison = Criterion<CpuTime>;
