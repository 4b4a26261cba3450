//! The byte layout of the native envelope, version 1 (`proto/envelope.md`).
//!
//! ```text
//! text:   "sw1:" base64url( header | body )        binary: 53 57 01 | header | body
//! header: suite 1 | key id 5 | ephemeral public key, compressed 33        suites 01 and 02
//!         suite 1 | key id 5 | random 20 | 00                             suite 03
//! body:   datatype 1 | sequence 4 | ciphertext | tag 16
//! ```
//! All fields that a request seals under one key share the same header. A header has a multiple of 3 bytes, so header
//! and body are encoded separately, and the header only once.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::NO_PAD;
use base64::engine::simd::Simd;

use crate::aead::TAG_BYTES;
use crate::xaes::RANDOM_BYTES;
use crate::{Curve, KeyId, Suite};

/// base64url without padding. Decoding rejects padding and non-zero trailing bits, so that each envelope has exactly
/// one text. Vectorised from 64 characters on where the processor supports it.
pub(crate) static BASE64: LazyLock<Simd> = LazyLock::new(|| Simd::url_safe(NO_PAD));

pub(crate) const TEXT_PREFIX: &[u8; 4] = b"sw1:";
pub(crate) const BINARY_PREFIX: &[u8; 3] = &[0x53, 0x57, 0x01];
/// Bytes of the longest header.
pub(crate) const HEADER_BYTES_MAX: usize = 39;
const HEADER_TEXT_BYTES_MAX: usize = TEXT_PREFIX.len() + HEADER_BYTES_MAX / 3 * 4;
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
    /// Returns the size of an envelope in bytes for a plaintext of `plaintext` bytes. No suite's envelope is longer than
    /// that of [`Suite::P256`].
    #[must_use]
    #[inline]
    pub fn sealed_bytes(self, suite: Suite, plaintext: usize) -> usize {
        match self {
            Self::Text => TEXT_PREFIX.len() + suite.header_bytes() / 3 * 4 + base64_chars(BODY_OVERHEAD + plaintext),
            Self::Binary => BINARY_PREFIX.len() + suite.header_bytes() + BODY_OVERHEAD + plaintext,
        }
    }
}

impl Suite {
    /// Returns the number of bytes of a header.
    #[inline]
    fn header_bytes(self) -> usize {
        match self {
            Self::P256 | Self::Secp256k1 => HEADER_BYTES_MAX,
            Self::Xaes => 1 + 5 + RANDOM_BYTES + 1,
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

/// The bytes before every body.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Header {
    suite: Suite,
    /// Zeros follow a shorter header.
    bytes: [u8; HEADER_BYTES_MAX],
}

/// The text of a header, with the prefix of text envelopes.
#[derive(Clone, Copy)]
pub(crate) struct HeaderText {
    length: usize,
    bytes: [u8; HEADER_TEXT_BYTES_MAX],
}

impl HeaderText {
    /// Copies the text of a header, with its prefix.
    pub(crate) fn new(text: &[u8]) -> Self {
        let mut bytes = [0; HEADER_TEXT_BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Self { length: text.len(), bytes }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Header {
    /// Builds the header of an ephemeral key. `ephemeral` is SEC 1 uncompressed; the header stores it compressed.
    pub(crate) fn of_ephemeral(curve: Curve, key: KeyId, ephemeral: &[u8; 65]) -> Self {
        let mut header = Self::new(curve.into(), key);
        header.bytes[6] = 2 | (ephemeral[64] & 1);
        header.bytes[7..].copy_from_slice(&ephemeral[1..33]);
        header
    }

    /// Builds a header of [`Suite::Xaes`].
    pub(crate) fn of_random(key: KeyId, random: &[u8; RANDOM_BYTES]) -> Self {
        let mut header = Self::new(Suite::Xaes, key);
        header.bytes[6..][..RANDOM_BYTES].copy_from_slice(random);
        header
    }

    fn new(suite: Suite, key: KeyId) -> Self {
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[0] = suite.byte();
        bytes[1..6].copy_from_slice(key.as_bytes());
        Self { suite, bytes }
    }

    /// Splits an envelope without its prefix into header and body. Returns `None` if the envelope is too short, the suite
    /// is unknown, or a reserved byte is not zero.
    #[inline]
    pub(crate) fn split(envelope: &[u8]) -> Option<(Self, &[u8])> {
        let suite = Suite::from_byte(*envelope.first()?)?;
        let (header, body) = envelope.split_at_checked(suite.header_bytes())?;
        if suite == Suite::Xaes && header.last() != Some(&0) {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..header.len()].copy_from_slice(header);
        Some((Self { suite, bytes }, body))
    }

    /// Splits a text envelope into header and the text of its body, as [`Self::split`] does.
    #[inline]
    pub(crate) fn split_text(envelope: &[u8]) -> Option<(Self, &[u8])> {
        let text = envelope.strip_prefix(TEXT_PREFIX)?;
        // The suite is in the first two characters, and decides how long the header is.
        let mut bytes = [0; HEADER_BYTES_MAX];
        BASE64.decode_slice(text.get(..4)?, &mut bytes).ok()?;
        let length = Suite::from_byte(bytes[0])?.header_bytes();
        let (header, body) = text.split_at_checked(length / 3 * 4)?;
        BASE64.decode_slice(header, &mut bytes).ok()?;
        Some((Self::split(&bytes[..length])?.0, body))
    }

    #[inline]
    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }

    pub(crate) fn key_id(&self) -> KeyId {
        let [_, a, b, c, d, e, ..] = self.bytes;
        KeyId::from_bytes([a, b, c, d, e])
    }

    /// Returns the ephemeral public key of an HPKE suite.
    pub(crate) fn ephemeral(&self) -> &[u8] {
        &self.bytes[6..]
    }

    /// Returns the random bytes of [`Suite::Xaes`].
    pub(crate) fn random(&self) -> &[u8; RANDOM_BYTES] {
        self.bytes[6..].first_chunk().expect("a header is longer")
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.suite.header_bytes()]
    }

    pub(crate) fn text(&self) -> HeaderText {
        let mut bytes = [0; HEADER_TEXT_BYTES_MAX];
        let (prefix, chars) = bytes.split_at_mut(TEXT_PREFIX.len());
        prefix.copy_from_slice(TEXT_PREFIX);
        let written = BASE64.encode_slice(self.as_bytes(), chars).expect("the room is that of the longest header");
        HeaderText { length: TEXT_PREFIX.len() + written, bytes }
    }
}

/// The public metadata of an envelope, readable without opening it. None of it is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The encoding: text or binary.
    pub encoding: Encoding,
    /// The cipher suite.
    pub suite: Suite,
    /// The key version that opens the envelope.
    pub key_id: KeyId,
    /// The type of the plaintext.
    pub datatype: Datatype,
    /// Sequence number of the field among the fields of its header.
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
        let (header, body) = Header::split(bytes)?;
        let plaintext_bytes = body.len().checked_sub(BODY_OVERHEAD)?;
        let (datatype, rest) = body.split_first()?;
        Some(Self {
            encoding,
            suite: header.suite(),
            key_id: header.key_id(),
            datatype: Datatype::from_byte(*datatype)?,
            sequence: u32::from_be_bytes(*rest.first_chunk()?),
            plaintext_bytes,
        })
    }
}
