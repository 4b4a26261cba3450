//! The byte layout of the native envelope, version 1 (`proto/envelope.md`).
//!
//! ```text
//! text:   "sw1:" base64url( header | body )        binary: 53 57 01 | header | body
//! header: suite 1 | key id 5 | ephemeral public key, compressed 33        suites 01, 02, 05 and 06
//!         suite 1 | key id 5 | random 20 | 00                             suite 03
//!         suite 1 | key id 5 | header id 20 | 01 | enc 1153 | 00 00       suite 04
//!         suite 1 | key id 5 | header id 20 | 00                          suite 04, its encapsulation apart
//! body:   datatype 1 | sequence 4 | ciphertext | tag 16
//! ```
//! All fields that a request seals under one key share the same header. A header has a multiple of
//! 3 bytes, so header and body are encoded separately, and the header only once. In suite 04,
//! [`Header`] is the part before `enc`, and the header id stands for `enc`.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::NO_PAD;
use base64::engine::simd::Simd;
use sha2::{Digest as _, Sha256};

use crate::aead::TAG_BYTES;
use crate::hybrid::ENC_BYTES;
use crate::xaes::RANDOM_BYTES;
use crate::{KeyId, Suite};

/// base64url without padding. Decoding rejects padding and non-zero trailing bits, so that each
/// envelope has exactly one text. Vectorised from 64 characters on where the processor supports it.
pub(crate) static BASE64: LazyLock<Simd> = LazyLock::new(|| Simd::url_safe(NO_PAD));

/// The first bytes of every text envelope (`proto/envelope.md`).
pub const TEXT_PREFIX: &[u8; 4] = b"sw1:";
pub(crate) const BINARY_PREFIX: &[u8; 3] = &[0x53, 0x57, 0x01];
/// Bytes of the longest header.
pub(crate) const HEADER_BYTES_MAX: usize = 39;
const HEADER_TEXT_BYTES_MAX: usize = TEXT_PREFIX.len() + HEADER_BYTES_MAX / 3 * 4;
/// Bytes of the id that stands for an encapsulation in a header.
const HEADER_ID_BYTES: usize = 20;
const HEADER_ID_LABEL: &[u8] = b"sealwire/header/1";
/// The last byte of a header of [`Suite::P256MlKem768`]: the encapsulation follows, or is apart.
const INLINE: u8 = 1;
const APART: u8 = 0;
/// Prefix of the text of an encapsulation that is apart; base64url of suite byte, key id and `enc`
/// follows.
pub(crate) const ENCAPSULATION_PREFIX: &[u8; 5] = b"sw1h:";
const ENCAPSULATION_HEAD_BYTES: usize = 6;
/// Characters of the text of an encapsulation.
pub const ENCAPSULATION_TEXT_BYTES: usize =
    ENCAPSULATION_PREFIX.len() + base64_chars(ENCAPSULATION_HEAD_BYTES + ENC_BYTES);
/// Bytes of an encapsulation in an envelope: `enc`, then zeros up to a multiple of 3.
pub(crate) const ENCAPSULATION_BYTES: usize = ENC_BYTES.next_multiple_of(3);
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
    /// Returns the size of an envelope in bytes for a plaintext of `plaintext` bytes, with its
    /// encapsulation if its suite has one.
    #[must_use]
    #[inline]
    pub fn sealed_bytes(self, suite: Suite, plaintext: usize) -> usize {
        self.sealed_bytes_apart(suite, plaintext)
            + match self {
                Self::Text => suite.encapsulation_bytes() / 3 * 4,
                Self::Binary => suite.encapsulation_bytes(),
            }
    }

    /// Returns the size of an envelope in bytes, as [`Self::sealed_bytes`], but without an
    /// encapsulation.
    #[must_use]
    #[inline]
    pub fn sealed_bytes_apart(self, suite: Suite, plaintext: usize) -> usize {
        match self {
            Self::Text => {
                TEXT_PREFIX.len()
                    + suite.header_bytes() / 3 * 4
                    + base64_chars(BODY_OVERHEAD + plaintext)
            }
            Self::Binary => BINARY_PREFIX.len() + suite.header_bytes() + BODY_OVERHEAD + plaintext,
        }
    }
}

/// Where the encapsulation of an envelope of [`Suite::P256MlKem768`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncapsulationPlace {
    /// In the envelope.
    #[default]
    Inline,
    /// Apart, once for all fields of a request. The client passes it when it opens a field.
    Apart,
}

impl Suite {
    /// Returns the suite that a text envelope names. Checks nothing else of the envelope.
    #[must_use]
    #[inline]
    pub fn of_text_envelope(text: &[u8]) -> Option<Self> {
        // The suite is in the first two characters.
        let mut bytes = [0; 3];
        BASE64
            .decode_slice(text.strip_prefix(TEXT_PREFIX)?.get(..4)?, &mut bytes)
            .ok()?;
        Self::from_byte(bytes[0])
    }

    /// Returns the suite that a binary envelope names. Checks nothing else of the envelope.
    #[must_use]
    pub fn of_binary_envelope(bytes: &[u8]) -> Option<Self> {
        Self::from_byte(*bytes.strip_prefix(BINARY_PREFIX)?.first()?)
    }

    /// Returns the number of bytes of a header.
    #[inline]
    fn header_bytes(self) -> usize {
        match self {
            Self::P256 | Self::Secp256k1 | Self::P256Psk | Self::Secp256k1Psk => HEADER_BYTES_MAX,
            Self::Xaes => 1 + 5 + RANDOM_BYTES + 1,
            Self::P256MlKem768 => 1 + 5 + HEADER_ID_BYTES + 1,
        }
    }

    /// Returns the number of bytes between header and body.
    #[inline]
    fn encapsulation_bytes(self) -> usize {
        match self {
            Self::P256MlKem768 => ENCAPSULATION_BYTES,
            _ => 0,
        }
    }
}

/// Returns the number of unpadded base64 characters for `bytes` bytes.
#[inline]
pub(crate) const fn base64_chars(bytes: usize) -> usize {
    bytes / 3 * 4 + [0, 2, 3][bytes % 3]
}

/// The type of a plaintext, authenticated as additional data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datatype {
    /// The UTF-8 bytes of a string.
    String = 0,
    /// Bytes.
    Binary = 1,
    /// A MessagePack value of any other type, containers included.
    Value = 2,
}

impl Datatype {
    /// All datatypes, in the order of their bytes.
    pub(crate) const ALL: [Self; 3] = [Self::String, Self::Binary, Self::Value];

    /// Returns the datatype of a byte, if there is one.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|datatype| *datatype as u8 == byte)
    }
}

/// Returns true if a string has the prefix of an envelope. Such a string must open or fail; it is
/// never treated as data.
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

/// The parts of an envelope after its prefix.
pub(crate) struct Parts<'a> {
    pub(crate) header: Header,
    /// The input of [`Header::checked_enc`], in the encoding of the envelope. Empty for all suites
    /// except [`Suite::P256MlKem768`].
    pub(crate) encapsulation: &'a [u8],
    /// The body, in the encoding of the envelope.
    pub(crate) body: &'a [u8],
}

/// The part between header and body, in both encodings.
pub(crate) struct Encapsulation {
    bytes: [u8; ENCAPSULATION_BYTES],
    text: [u8; ENCAPSULATION_BYTES / 3 * 4],
    /// The text of the header before fields whose encapsulation is apart.
    pub(crate) apart_text: HeaderText,
}

impl Encapsulation {
    pub(crate) fn new(header: &Header, enc: &[u8; ENC_BYTES]) -> Self {
        let mut bytes = [0; ENCAPSULATION_BYTES];
        let mut text = [0; ENCAPSULATION_BYTES / 3 * 4];
        bytes[..ENC_BYTES].copy_from_slice(enc);
        BASE64
            .encode_slice(&bytes[..], &mut text[..])
            .expect("the room is that of its text");
        Self {
            bytes,
            text,
            apart_text: header.text_of(&header.apart()),
        }
    }

    /// Returns the text of an encapsulation that is apart from its fields.
    pub(crate) fn to_text(&self, header: &Header) -> String {
        let mut bytes = Vec::with_capacity(ENCAPSULATION_HEAD_BYTES + ENC_BYTES);
        bytes.extend_from_slice(&header.bytes[..ENCAPSULATION_HEAD_BYTES]);
        bytes.extend_from_slice(&self.bytes[..ENC_BYTES]);
        let mut text = String::with_capacity(ENCAPSULATION_TEXT_BYTES);
        text.extend(ENCAPSULATION_PREFIX.map(char::from));
        BASE64.encode_string(bytes, &mut text);
        text
    }

    /// Parses the text of an encapsulation that is apart. Returns the header that names it.
    pub(crate) fn from_text(text: &[u8]) -> Option<(Header, Box<[u8; ENC_BYTES]>)> {
        let bytes = BASE64
            .decode(text.strip_prefix(ENCAPSULATION_PREFIX)?)
            .ok()?;
        let (head, enc) = bytes.split_at_checked(ENCAPSULATION_HEAD_BYTES)?;
        let enc: Box<[u8; ENC_BYTES]> = Box::new(enc.try_into().ok()?);
        let (suite, key) = head.split_first()?;
        let key = KeyId::from_bytes(key.try_into().ok()?);
        (*suite == Suite::P256MlKem768.byte()).then(|| (Header::of_encapsulation(key, &enc), enc))
    }

    pub(crate) fn as_bytes(&self, encoding: Encoding) -> &[u8] {
        match encoding {
            Encoding::Text => &self.text[..],
            Encoding::Binary => &self.bytes[..],
        }
    }
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
        Self {
            length: text.len(),
            bytes,
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Header {
    /// Builds the header of an ephemeral key. `ephemeral` is SEC 1 uncompressed; the header stores
    /// it compressed.
    pub(crate) fn of_ephemeral(suite: Suite, key: KeyId, ephemeral: &[u8; 65]) -> Self {
        let mut header = Self::new(suite, key);
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

    /// Builds the header of an encapsulation.
    pub(crate) fn of_encapsulation(key: KeyId, enc: &[u8; ENC_BYTES]) -> Self {
        let mut header = Self::new(Suite::P256MlKem768, key);
        let id = header.id_of(enc);
        header.bytes[6..][..HEADER_ID_BYTES].copy_from_slice(&id);
        header.bytes[6 + HEADER_ID_BYTES] = INLINE;
        header
    }

    /// Returns the id of an encapsulation under this header's suite and key.
    fn id_of(&self, enc: &[u8; ENC_BYTES]) -> [u8; HEADER_ID_BYTES] {
        let digest = Sha256::new()
            .chain_update(HEADER_ID_LABEL)
            .chain_update(&self.bytes[..6])
            .chain_update(enc);
        *digest
            .finalize()
            .first_chunk()
            .expect("a digest has 32 bytes")
    }

    /// Returns the `enc` in the bytes that follow this header, if the id in the header matches it.
    pub(crate) fn checked_enc<'a>(&self, encapsulation: &'a [u8]) -> Option<&'a [u8; ENC_BYTES]> {
        let (enc, zeros) = encapsulation.split_first_chunk()?;
        let is_whole =
            zeros.len() == ENCAPSULATION_BYTES - ENC_BYTES && zeros.iter().all(|byte| *byte == 0);
        (is_whole && self.bytes[6..][..HEADER_ID_BYTES] == self.id_of(enc)).then_some(enc)
    }

    fn new(suite: Suite, key: KeyId) -> Self {
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[0] = suite.byte();
        bytes[1..6].copy_from_slice(key.as_bytes());
        Self { suite, bytes }
    }

    /// Parses the bytes of a header. Returns it with the number of bytes of the encapsulation that
    /// follows it, or `None` if the last byte is not one of its suite. A header is the same whether
    /// its encapsulation follows or is apart.
    #[inline]
    fn parse(suite: Suite, header: &[u8]) -> Option<(Self, usize)> {
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..header.len()].copy_from_slice(header);
        let encapsulation = match (suite, *header.last()?) {
            (Suite::P256 | Suite::Secp256k1 | Suite::P256Psk | Suite::Secp256k1Psk, _)
            | (Suite::Xaes, 0) => 0,
            (Suite::P256MlKem768, INLINE) => ENCAPSULATION_BYTES,
            (Suite::P256MlKem768, APART) => {
                bytes[header.len() - 1] = INLINE;
                0
            }
            _ => return None,
        };
        Some((Self { suite, bytes }, encapsulation))
    }

    /// Returns the bytes of this header before a field whose encapsulation is apart.
    pub(crate) fn apart(&self) -> [u8; HEADER_BYTES_MAX] {
        let mut bytes = self.bytes;
        bytes[6 + HEADER_ID_BYTES] = APART;
        bytes
    }

    /// Splits an envelope without its prefix. Returns `None` if the envelope is too short, the
    /// suite is unknown, or a reserved byte is wrong. An encapsulation is not checked.
    #[inline]
    pub(crate) fn split(envelope: &[u8]) -> Option<Parts<'_>> {
        let suite = Suite::from_byte(*envelope.first()?)?;
        let (header, rest) = envelope.split_at_checked(suite.header_bytes())?;
        let (header, bytes) = Self::parse(suite, header)?;
        let (encapsulation, body) = rest.split_at_checked(bytes)?;
        Some(Parts {
            header,
            encapsulation,
            body,
        })
    }

    /// Splits a text envelope, as [`Self::split`] does. Encapsulation and body are text.
    #[inline]
    pub(crate) fn split_text(envelope: &[u8]) -> Option<Parts<'_>> {
        let text = envelope.strip_prefix(TEXT_PREFIX)?;
        // The length of the header depends on the suite.
        let suite = Suite::of_text_envelope(envelope)?;
        let mut bytes = [0; HEADER_BYTES_MAX];
        let length = suite.header_bytes();
        let (header, rest) = text.split_at_checked(length / 3 * 4)?;
        BASE64.decode_slice(header, &mut bytes).ok()?;
        let (header, encapsulation) = Self::parse(suite, &bytes[..length])?;
        let (encapsulation, body) = rest.split_at_checked(encapsulation / 3 * 4)?;
        Some(Parts {
            header,
            encapsulation,
            body,
        })
    }

    #[inline]
    pub(crate) fn suite(&self) -> Suite {
        self.suite
    }

    pub(crate) fn key_id(&self) -> KeyId {
        let [_, a, b, c, d, e, ..] = self.bytes;
        KeyId::from_bytes([a, b, c, d, e])
    }

    /// Returns the ephemeral public key of a suite with DHKEM.
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
        self.text_of(&self.bytes)
    }

    /// Returns the text of a header of this length.
    fn text_of(&self, header: &[u8; HEADER_BYTES_MAX]) -> HeaderText {
        let header = &header[..self.suite.header_bytes()];
        let mut bytes = [0; HEADER_TEXT_BYTES_MAX];
        let (prefix, chars) = bytes.split_at_mut(TEXT_PREFIX.len());
        prefix.copy_from_slice(TEXT_PREFIX);
        let written = BASE64
            .encode_slice(header, chars)
            .expect("the room is that of the longest header");
        HeaderText {
            length: TEXT_PREFIX.len() + written,
            bytes,
        }
    }
}

/// The public metadata of an envelope, readable without opening it. No part of the metadata is
/// authenticated.
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
    /// Where the encapsulation is, if its suite has one.
    pub encapsulation: Option<EncapsulationPlace>,
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
        let Parts {
            header,
            encapsulation,
            body,
        } = Header::split(bytes)?;
        let place = if encapsulation.is_empty() {
            EncapsulationPlace::Apart
        } else {
            EncapsulationPlace::Inline
        };
        let plaintext_bytes = body.len().checked_sub(BODY_OVERHEAD)?;
        let (datatype, rest) = body.split_first()?;
        Some(Self {
            encoding,
            suite: header.suite(),
            key_id: header.key_id(),
            datatype: Datatype::from_byte(*datatype)?,
            sequence: u32::from_be_bytes(*rest.first_chunk()?),
            plaintext_bytes,
            encapsulation: (header.suite() == Suite::P256MlKem768).then_some(place),
        })
    }
}
