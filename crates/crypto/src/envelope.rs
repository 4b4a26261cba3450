//! The byte layout of the native envelope, version 1 (`proto/envelope.md`).
//!
//! ```text
//! text:   "sw1:" base64url( header | body )        binary: 53 57 01 | header | body
//! header: suite 1 | key id 5 | ephemeral public key, compressed 33
//! body:   datatype 1 | sequence 4 | ciphertext | tag 16
//! ```
//! All fields that one ephemeral key sealed share the same header. The 39 header bytes encode to exactly 52 characters.
//! Header and body are therefore encoded separately, and the header only once.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::NO_PAD;
use base64::engine::simd::Simd;

use crate::aead::TAG_BYTES;
use crate::{CannotOpen, Curve, KeyId};

/// base64url without padding. Decoding rejects padding and non-zero trailing bits, so that each envelope has exactly
/// one text. Vectorised from 64 characters on where the processor supports it.
pub(crate) static BASE64: LazyLock<Simd> = LazyLock::new(|| Simd::url_safe(NO_PAD));

pub(crate) const TEXT_PREFIX: &[u8; 4] = b"sw1:";
pub(crate) const BINARY_PREFIX: &[u8; 3] = &[0x53, 0x57, 0x01];
pub(crate) const HEADER_BYTES: usize = 39;
pub(crate) const HEADER_CHARS: usize = 52;
/// Length of the fields before the ciphertext: datatype and sequence.
pub(crate) const BODY_PREFIX_BYTES: usize = 5;
/// Bytes that a body adds to its plaintext.
pub(crate) const BODY_OVERHEAD: usize = BODY_PREFIX_BYTES + TAG_BYTES;
/// Prefix of the HPKE `info`; the app id follows.
pub(crate) const INFO_PREFIX: &[u8] = b"sealwire/1";

/// The encoding of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A string: `sw1:` and base64url.
    Text,
    /// Bytes.
    Binary,
}

impl Encoding {
    /// Returns the size of an envelope in bytes for a plaintext of `plaintext_bytes` bytes.
    #[must_use]
    #[inline]
    pub fn sealed_bytes(self, plaintext: usize) -> usize {
        match self {
            Self::Text => TEXT_PREFIX.len() + HEADER_CHARS + base64_chars(BODY_OVERHEAD + plaintext),
            Self::Binary => BINARY_PREFIX.len() + HEADER_BYTES + BODY_OVERHEAD + plaintext,
        }
    }
}

/// Returns the number of unpadded base64 characters for `bytes` bytes.
#[inline]
pub(crate) fn base64_chars(bytes: usize) -> usize {
    bytes / 3 * 4 + [0, 2, 3][bytes % 3]
}

/// The type of a plaintext, authenticated as additional data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// The UTF-8 bytes of a string.
    String = 0,
    /// Bytes.
    Binary = 1,
    /// One MessagePack value of any other type, containers included.
    Value = 2,
}

impl Datatype {
    /// All, in the order of their bytes.
    pub(crate) const ALL: [Self; 3] = [Self::String, Self::Binary, Self::Value];

    /// Returns the datatype of a byte, if there is one.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| *datatype as u8 == byte)
    }
}

/// Returns true if a string has the prefix of an envelope. Such a string must open or fail; it is never treated as
/// data.
#[must_use]
#[inline]
pub fn looks_like_text(text: &[u8]) -> bool {
    text.starts_with(TEXT_PREFIX)
}

/// Returns true if bytes have the prefix of an envelope.
#[must_use]
#[inline]
pub fn looks_like_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(BINARY_PREFIX)
}

/// The 39 bytes before every body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Header(pub(crate) [u8; HEADER_BYTES]);

impl Header {
    /// Builds a header. `ephemeral` is SEC 1 uncompressed; the header stores it compressed.
    pub(crate) fn new(curve: Curve, key: KeyId, ephemeral: &[u8; 65]) -> Self {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = curve.suite();
        bytes[1..6].copy_from_slice(key.as_bytes());
        bytes[6] = 2 | (ephemeral[64] & 1);
        bytes[7..].copy_from_slice(&ephemeral[1..33]);
        Self(bytes)
    }

    pub(crate) fn curve(&self) -> Option<Curve> {
        Curve::from_suite(self.0[0])
    }

    pub(crate) fn key_id(&self) -> KeyId {
        let [_, a, b, c, d, e, ..] = self.0;
        KeyId::from_bytes([a, b, c, d, e])
    }

    pub(crate) fn ephemeral(&self) -> &[u8] {
        &self.0[6..]
    }

    pub(crate) fn from_chars(chars: &[u8; HEADER_CHARS]) -> Result<Self, CannotOpen> {
        let mut bytes = [0; HEADER_BYTES];
        BASE64.decode_slice(chars, &mut bytes).map_err(|_| CannotOpen)?;
        Ok(Self(bytes))
    }

    pub(crate) fn chars(&self) -> [u8; HEADER_CHARS] {
        let mut chars = [0; HEADER_CHARS];
        BASE64.encode_slice(self.0, &mut chars).expect("39 bytes are 52 characters");
        chars
    }
}

/// The public metadata of an envelope, readable without opening it. None of it is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The encoding: text or binary.
    pub encoding: Encoding,
    /// The curve of the envelope's keys.
    pub curve: Curve,
    /// The key version that opens the envelope.
    pub key_id: KeyId,
    /// The type of the plaintext.
    pub datatype: Datatype,
    /// Sequence number of the field among the fields of its ephemeral key.
    pub sequence: u32,
    /// Length of the plaintext in bytes.
    pub plaintext_bytes: usize,
}

impl Envelope {
    /// Parses a text envelope. Returns `None` when `text` is not an envelope.
    #[must_use]
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let bytes = BASE64.decode(text.strip_prefix(TEXT_PREFIX)?).ok()?;
        Self::parse(Encoding::Text, &bytes)
    }

    /// Parses a binary envelope. Returns `None` when `bytes` is not an envelope.
    #[must_use]
    pub fn from_binary(bytes: &[u8]) -> Option<Self> {
        Self::parse(Encoding::Binary, bytes.strip_prefix(BINARY_PREFIX)?)
    }

    fn parse(encoding: Encoding, bytes: &[u8]) -> Option<Self> {
        let (header, body) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let header = Header(*header);
        let plaintext_bytes = body.len().checked_sub(BODY_OVERHEAD)?;
        let (datatype, rest) = body.split_first()?;
        Some(Self {
            encoding,
            curve: header.curve()?,
            key_id: header.key_id(),
            datatype: Datatype::from_byte(*datatype)?,
            sequence: u32::from_be_bytes(*rest.first_chunk()?),
            plaintext_bytes,
        })
    }
}
