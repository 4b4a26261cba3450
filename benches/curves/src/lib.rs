//! How implementations of the same primitives are compared: what each must offer, and what is measured of it.
//!
//! A library is one file in `rivals/` that implements [`Agreement`], [`Hkdf`] or [`Aead`]. [`measure`] first compares
//! its results with those of [`openssl`], so that nothing wrong is ever timed. Nothing here is for use outside of
//! benches.

pub use cpu_time::CpuTime;
use criterion::Criterion;
pub use run::{criterion, is_smoke_run, say, target};

mod cpu_time;
pub mod hpke;
pub mod measure;
pub mod openssl;
pub mod report;
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

/// A message's bytes and its tag.
///
/// # Panics
/// If it is shorter than a tag.
#[must_use]
pub fn split_tag(message: &mut [u8]) -> (&mut [u8], &mut [u8; TAG_BYTES]) {
    message.split_last_chunk_mut().expect("holds a tag")
}

/// The two curves of the envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// NIST P-256.
    P256,
    /// secp256k1.
    Secp256k1,
}

impl Curve {
    /// Its part of a bench's address.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::P256 => "p256",
            Self::Secp256k1 => "secp256k1",
        }
    }
}

/// Diffie-Hellman on one curve. Every library failure is a panic: a bench has nobody to tell.
pub trait Agreement {
    /// The private half of a key pair.
    type Private;
    /// A peer's point, read and checked as far as the library can do that ahead.
    type Peer;

    /// A fresh key pair, its point written down.
    fn generate(&self) -> (Self::Private, Point);
    /// Reads a peer's point.
    fn peer(&self, point: &Point) -> Self::Peer;
    /// The shared x coordinate. Takes the private half, which some libraries use up; so its wiping is measured too.
    fn agree(&self, private: Self::Private, peer: &Self::Peer) -> [u8; 32];
}

/// HKDF-SHA256, RFC 5869.
pub trait Hkdf {
    /// Section 2.2.
    fn extract(salt: &[u8], ikm: &[u8]) -> [u8; 32];
    /// Section 2.3, at most one hash long.
    fn expand(prk: &[u8; 32], info: &[u8], okm: &mut [u8]);
}

/// AES-256-GCM under one key, in place.
pub trait Aead {
    /// Expands a key.
    fn new(key: &Key) -> Self;
    /// Encrypts all but the last 16 bytes of `message` where they lie; those become the tag.
    fn seal(&mut self, nonce: &Nonce, aad: &[u8], message: &mut [u8]);
    /// Decrypts `sealed`, ciphertext and tag, where it lies; the plaintext is then its beginning. `false`: forged.
    fn open(&mut self, nonce: &Nonce, aad: &[u8], sealed: &mut [u8]) -> bool;
}

/// Compares primitives by CPU time.
pub type Comparison = Criterion<CpuTime>;
