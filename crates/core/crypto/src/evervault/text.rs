//! The syntax of an Evervault string, without any key.
//!
//! ```text
//! ev:[debug:][TAG:][TYPE:]IV:EPH:CT:$
//! ```

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::{NO_PAD, PAD};
use base64::engine::simd::Simd;

use super::derive::Kdf;
use crate::aead::{NONCE_BYTES, TAG_BYTES};
use crate::{CannotOpen, Curve};

/// Standard base64 without padding, as the format writes it. `PADDED` accepts padding, as in some
/// of the vendor's examples.
pub(super) static BASE64: LazyLock<Simd> = LazyLock::new(|| Simd::standard(NO_PAD));
static PADDED: LazyLock<Simd> = LazyLock::new(|| Simd::standard(PAD));

pub(super) const PREFIX: &[u8; 3] = b"ev:";
pub(super) const SUFFIX: &[u8; 2] = b":$";
pub(super) const IV_CHARS: usize = 16;
pub(super) const POINT_BYTES: usize = 33;
pub(super) const POINT_CHARS: usize = 44;

/// Longest text that is sealed: 25 MiB, like the content of a file. A reader processes the text
/// once per key that it tries.
pub const TEXT_BYTES_MAX: usize = 25 << 20;
/// Characters of the longest sealed text, with the longest possible metadata and padding.
pub(super) const SEALED_CHARS_MAX: usize =
    (2 + u16::MAX as usize + TEXT_BYTES_MAX + TAG_BYTES).div_ceil(3) * 4;

/// Returns true if a string has the prefix of an Evervault string. Such a string must open or fail;
/// it is never treated as data.
#[must_use]
#[inline]
pub fn looks_like(text: &[u8]) -> bool {
    text.len() >= PREFIX.len() + SUFFIX.len() && text.starts_with(PREFIX) && text.ends_with(SUFFIX)
}

/// The four characters that identify how a string was made. Compared exactly, never decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// `RFVC`: secp256k1, no role; datatype not authenticated.
    Rfvc,
    /// `Tk9D`: P-256, no role; datatype not authenticated.
    Tk9d,
    /// `S0lS`: secp256k1, with metadata. We write this tag on that curve.
    S0ls,
    /// `QkTC`: P-256, with metadata. We write this tag by default.
    Qktc,
    /// `QlJV`: secp256k1 with metadata, October 2023 to May 2024. Legacy.
    Qljv,
    /// `TENZ`: P-256 with metadata, the same months. Legacy: its role can be stripped.
    Tenz,
    /// `T1JL`: P-256 without key derivation, January to March 2022. Legacy.
    T1jl,
    /// No tag: secp256k1, before July 2021. Legacy.
    Untagged,
}

/// The additional data that a tag binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    Nothing,
    /// The app's compressed point.
    App,
    /// The debug mark, the datatype and this version number; then the compressed points of the
    /// ephemeral key and the app.
    V2(u8),
}

impl Tag {
    /// Every tag. The tags that we write come first.
    pub const ALL: [Self; 8] = [
        Self::Qktc,
        Self::S0ls,
        Self::Tk9d,
        Self::Rfvc,
        Self::Tenz,
        Self::Qljv,
        Self::T1jl,
        Self::Untagged,
    ];

    /// Returns the four characters; empty for an untagged string.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Rfvc => "RFVC",
            Self::Tk9d => "Tk9D",
            Self::S0ls => "S0lS",
            Self::Qktc => "QkTC",
            Self::Qljv => "QlJV",
            Self::Tenz => "TENZ",
            Self::T1jl => "T1JL",
            Self::Untagged => "",
        }
    }

    /// Returns the curve of the tag's keys.
    #[must_use]
    pub fn curve(self) -> Curve {
        match self {
            Self::Rfvc | Self::S0ls | Self::Qljv | Self::Untagged => Curve::Secp256k1,
            Self::Tk9d | Self::Qktc | Self::Tenz | Self::T1jl => Curve::P256,
        }
    }

    /// Returns true if opening requires [`Legacy::Allowed`](super::Legacy::Allowed).
    #[must_use]
    pub fn is_legacy(self) -> bool {
        matches!(self, Self::Qljv | Self::Tenz | Self::T1jl | Self::Untagged)
    }

    /// Returns true if the payload begins with metadata, which is the only place for a role.
    #[must_use]
    pub fn has_metadata(self) -> bool {
        matches!(self, Self::S0ls | Self::Qktc | Self::Qljv | Self::Tenz)
    }

    /// Returns true if the declared datatype is authenticated. Otherwise anyone who holds a string
    /// can change its datatype.
    #[must_use]
    pub fn authenticates_datatype(self) -> bool {
        matches!(self.binding(), Binding::V2(_))
    }

    pub(super) fn kdf(self) -> Kdf {
        match self {
            Self::Rfvc | Self::T1jl | Self::Untagged => Kdf::None,
            Self::Tk9d | Self::S0ls | Self::Qktc | Self::Qljv | Self::Tenz => Kdf::X963,
        }
    }

    /// Returns true if real clients also wrote this tag under the other derivation. Clients of 2022
    /// and later on secp256k1 keep the key of their first call, even if a later call requests the
    /// other derivation.
    pub(super) fn mixes_derivations(self) -> bool {
        matches!(self, Self::Rfvc | Self::S0ls | Self::Qljv)
    }

    fn binding(self) -> Binding {
        match self {
            Self::Rfvc | Self::T1jl | Self::Untagged => Binding::Nothing,
            Self::Tk9d | Self::Qljv | Self::Tenz => Binding::App,
            Self::S0ls => Binding::V2(0),
            Self::Qktc => Binding::V2(1),
        }
    }

    fn from_text(text: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|tag| !tag.text().is_empty() && tag.text().as_bytes() == text)
    }
}

/// The datatype that a string declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Datatype {
    /// Text; written without a datatype word.
    String = 0,
    /// A number in decimal.
    Number = 1,
    /// `true` or `false`.
    Boolean = 2,
}

impl Datatype {
    /// Every datatype.
    pub const ALL: [Self; 3] = [Self::String, Self::Number, Self::Boolean];

    /// Returns the datatype word in a string, with the colon after it.
    pub(super) fn word(self) -> &'static [u8] {
        match self {
            Self::String => b"",
            Self::Number => b"number:",
            Self::Boolean => b"boolean:",
        }
    }

    #[inline]
    fn strip_word(rest: &[u8]) -> (Self, &[u8]) {
        // No client writes the word for a string, but the published readers accept it.
        let words: [(&[u8], Self); 3] = [
            (Self::Number.word(), Self::Number),
            (Self::Boolean.word(), Self::Boolean),
            (b"string:", Self::String),
        ];
        let stripped = words
            .into_iter()
            .find_map(|(word, datatype)| Some((datatype, rest.strip_prefix(word)?)));
        stripped.unwrap_or((Self::String, rest))
    }
}

/// The additional data of one string, at most 67 bytes.
pub(super) struct Aad {
    bytes: [u8; 1 + 2 * POINT_BYTES],
    length: usize,
}

impl Aad {
    #[inline]
    pub(super) fn new(
        tag: Tag,
        datatype: Datatype,
        ephemeral: &[u8; POINT_BYTES],
        app: &[u8; POINT_BYTES],
    ) -> Self {
        let mut aad = Self {
            bytes: [0; 1 + 2 * POINT_BYTES],
            length: 0,
        };
        match tag.binding() {
            Binding::Nothing => {}
            Binding::App => {
                aad.bytes[..POINT_BYTES].copy_from_slice(app);
                aad.length = POINT_BYTES;
            }
            Binding::V2(version) => {
                // Bit 7 is the debug mark. Debug strings are neither read nor written here.
                aad.bytes[0] = (datatype as u8) << 4 | version;
                aad.bytes[1..=POINT_BYTES].copy_from_slice(ephemeral);
                aad.bytes[1 + POINT_BYTES..].copy_from_slice(app);
                aad.length = aad.bytes.len();
            }
        }
        aad
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A string split at its colons, not yet decoded.
pub(super) struct Parts<'a> {
    pub(super) is_debug: bool,
    pub(super) tag: Tag,
    pub(super) datatype: Datatype,
    iv: &'a [u8; IV_CHARS],
    pub(super) ephemeral: &'a [u8; POINT_CHARS],
    pub(super) sealed: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Splits a string. Returns `None` when its syntax is invalid.
    #[inline]
    pub(super) fn of(text: &'a [u8]) -> Option<Self> {
        let rest = text.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        let (is_debug, rest) = match rest.strip_prefix(b"debug:") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (tag, rest) = match rest.split_at_checked(4) {
            Some((tag, [b':', rest @ ..])) => (Tag::from_text(tag)?, rest),
            _ => (Tag::Untagged, rest),
        };
        let (datatype, rest) = Datatype::strip_word(rest);
        let (iv, rest) = rest.split_first_chunk()?;
        let (ephemeral, rest) = rest.strip_prefix(b":")?.split_first_chunk()?;
        Some(Self {
            is_debug,
            tag,
            datatype,
            iv,
            ephemeral,
            sealed: rest.strip_prefix(b":")?,
        })
    }

    #[inline]
    pub(super) fn nonce(&self) -> Result<[u8; NONCE_BYTES], CannotOpen> {
        let mut nonce = [0; NONCE_BYTES];
        BASE64
            .decode_slice(self.iv, &mut nonce)
            .map_err(|_| CannotOpen)?;
        Ok(nonce)
    }

    /// Decodes ciphertext and tag into `body` and returns their length. `body` must be at least as
    /// long as the characters. Padding must be exact or absent: the published clients strip it, the
    /// vendor's examples contain it.
    #[inline]
    pub(super) fn decode_sealed(&self, body: &mut [u8]) -> Result<usize, CannotOpen> {
        let engine = if self.sealed.ends_with(b"=") {
            &PADDED
        } else {
            &BASE64
        };
        engine
            .decode_slice(self.sealed, body)
            .map_err(|_| CannotOpen)
    }
}

/// Returns the compressed form of an uncompressed point.
pub(super) fn compressed(point: &[u8; 65]) -> [u8; POINT_BYTES] {
    let mut compressed = [0; POINT_BYTES];
    compressed[0] = 2 | (point[64] & 1);
    compressed[1..].copy_from_slice(&point[1..POINT_BYTES]);
    compressed
}

/// Decodes the characters of a compressed point.
pub(super) fn point(chars: &[u8; POINT_CHARS]) -> Result<[u8; POINT_BYTES], CannotOpen> {
    let mut point = [0; POINT_BYTES];
    BASE64
        .decode_slice(chars, &mut point)
        .map_err(|_| CannotOpen)?;
    Ok(point)
}

/// The public parts of a string, readable without a key. No part of them is authenticated. The role
/// is known only after the string opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The tag, which identifies how the string was made.
    pub tag: Tag,
    /// The curve of the string's keys.
    pub curve: Curve,
    /// The datatype that the string declares.
    pub datatype: Datatype,
    /// True if the string was made for the vendor's published debug key. Such a string never opens
    /// here.
    pub is_debug: bool,
    /// The sealer's ephemeral key, compressed. Values made together normally share this key.
    pub ephemeral: [u8; 33],
    /// Length of the payload in bytes: the text, and the metadata before it if the tag has any.
    pub payload_bytes: usize,
}

/// Parses a string's public parts. Returns `None` when `text` is not an Evervault string.
#[must_use]
pub fn inspect(text: &[u8]) -> Option<Inspection> {
    let parts = Parts::of(text)?;
    parts.nonce().ok()?;
    let sealed = parts.decode_sealed(&mut vec![0; parts.sealed.len()]).ok()?;
    Some(Inspection {
        tag: parts.tag,
        curve: parts.tag.curve(),
        datatype: parts.datatype,
        is_debug: parts.is_debug,
        ephemeral: point(parts.ephemeral).ok()?,
        payload_bytes: sealed.checked_sub(TAG_BYTES)?,
    })
}
