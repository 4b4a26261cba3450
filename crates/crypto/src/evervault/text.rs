//! The parts of a string, before any key is involved.
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

/// Standard base64 as the format writes it, without padding, and with it as some of its examples have it.
pub(super) static BASE64: LazyLock<Simd> = LazyLock::new(|| Simd::standard(NO_PAD));
static PADDED: LazyLock<Simd> = LazyLock::new(|| Simd::standard(PAD));

pub(super) const PREFIX: &[u8; 3] = b"ev:";
pub(super) const SUFFIX: &[u8; 2] = b":$";
pub(super) const IV_CHARS: usize = 16;
pub(super) const POINT_BYTES: usize = 33;
pub(super) const POINT_CHARS: usize = 44;

/// Longest text that is sealed: 25 MiB, as of a file's content. A reader goes over it once per key that it tries.
pub const TEXT_BYTES_MAX: usize = 25 << 20;
/// Its characters once sealed, with the longest metadata there is in front, and padded.
pub(super) const SEALED_CHARS_MAX: usize = (2 + u16::MAX as usize + TEXT_BYTES_MAX + TAG_BYTES).div_ceil(3) * 4;

/// Whether a string claims to be one. What claims to be one must open or fail; it is never data.
#[must_use]
#[inline]
pub fn looks_like(text: &[u8]) -> bool {
    text.len() >= PREFIX.len() + SUFFIX.len() && text.starts_with(PREFIX) && text.ends_with(SUFFIX)
}

/// The four characters that say how a string was made. Compared exactly, never decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// `RFVC`: secp256k1, no role; datatype not authenticated.
    Rfvc,
    /// `Tk9D`: P-256, no role; datatype not authenticated.
    Tk9d,
    /// `S0lS`: secp256k1, with metadata. What we write on that curve.
    S0ls,
    /// `QkTC`: P-256, with metadata. What we write by default.
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

/// What a tag binds as additional data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Binding {
    Nothing,
    /// The app's compressed point.
    App,
    /// Debug mark, datatype and this version number; the ephemeral and the app's compressed point.
    V2(u8),
}

impl Tag {
    /// Every tag, those we write first.
    pub const ALL: [Self; 8] =
        [Self::Qktc, Self::S0ls, Self::Tk9d, Self::Rfvc, Self::Tenz, Self::Qljv, Self::T1jl, Self::Untagged];

    /// The characters; empty for an untagged string.
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

    /// The curve of its keys.
    #[must_use]
    pub fn curve(self) -> Curve {
        match self {
            Self::Rfvc | Self::S0ls | Self::Qljv | Self::Untagged => Curve::Secp256k1,
            Self::Tk9d | Self::Qktc | Self::Tenz | Self::T1jl => Curve::P256,
        }
    }

    /// Whether opening it takes [`Legacy::Allowed`](super::Legacy::Allowed).
    #[must_use]
    pub fn is_legacy(self) -> bool {
        matches!(self, Self::Qljv | Self::Tenz | Self::T1jl | Self::Untagged)
    }

    /// Whether the payload begins with metadata: the only place for a role.
    #[must_use]
    pub fn has_metadata(self) -> bool {
        matches!(self, Self::S0ls | Self::Qktc | Self::Qljv | Self::Tenz)
    }

    /// Whether the declared datatype is authenticated. Where it is not, whoever holds a string can change it.
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

    /// Whether real clients wrote this tag under the other derivation too: those of 2022 and later on secp256k1
    /// keep the key of their first call, whatever a later call asks for.
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
        Self::ALL.into_iter().find(|tag| !tag.text().is_empty() && tag.text().as_bytes() == text)
    }
}

/// The datatype a string declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Datatype {
    /// Text; written without a word.
    String = 0,
    /// A number in decimal.
    Number = 1,
    /// `true` or `false`.
    Boolean = 2,
}

impl Datatype {
    /// Every datatype.
    pub const ALL: [Self; 3] = [Self::String, Self::Number, Self::Boolean];

    /// The word in a string, with the colon behind it.
    pub(super) fn word(self) -> &'static [u8] {
        match self {
            Self::String => b"",
            Self::Number => b"number:",
            Self::Boolean => b"boolean:",
        }
    }

    #[inline]
    fn strip_word(rest: &[u8]) -> (Self, &[u8]) {
        // Nobody writes the word for a string, but the published readers accept it.
        let words: [(&[u8], Self); 3] =
            [(Self::Number.word(), Self::Number), (Self::Boolean.word(), Self::Boolean), (b"string:", Self::String)];
        let stripped = words.into_iter().find_map(|(word, datatype)| Some((datatype, rest.strip_prefix(word)?)));
        stripped.unwrap_or((Self::String, rest))
    }
}

/// Additional data of one string, at most 67 bytes.
pub(super) struct Aad {
    bytes: [u8; 1 + 2 * POINT_BYTES],
    length: usize,
}

impl Aad {
    #[inline]
    pub(super) fn new(tag: Tag, datatype: Datatype, ephemeral: &[u8; POINT_BYTES], app: &[u8; POINT_BYTES]) -> Self {
        let mut aad = Self { bytes: [0; 1 + 2 * POINT_BYTES], length: 0 };
        match tag.binding() {
            Binding::Nothing => {}
            Binding::App => {
                aad.bytes[..POINT_BYTES].copy_from_slice(app);
                aad.length = POINT_BYTES;
            }
            Binding::V2(version) => {
                // Bit 7 is the debug mark; debug strings are neither read nor written here.
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

/// A string cut at its colons; nothing decoded yet.
pub(super) struct Parts<'a> {
    pub(super) is_debug: bool,
    pub(super) tag: Tag,
    pub(super) datatype: Datatype,
    iv: &'a [u8; IV_CHARS],
    pub(super) ephemeral: &'a [u8; POINT_CHARS],
    pub(super) sealed: &'a [u8],
}

impl<'a> Parts<'a> {
    /// Cuts a string; `None` when it has another shape.
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
        Some(Self { is_debug, tag, datatype, iv, ephemeral, sealed: rest.strip_prefix(b":")? })
    }

    #[inline]
    pub(super) fn nonce(&self) -> Result<[u8; NONCE_BYTES], CannotOpen> {
        let mut nonce = [0; NONCE_BYTES];
        BASE64.decode_slice(self.iv, &mut nonce).map_err(|_| CannotOpen)?;
        Ok(nonce)
    }

    /// Decodes ciphertext and tag into `body`, which is as long as the characters at least; returns the length.
    /// Padding is exact or absent: the published clients strip it, the vendor's examples show it.
    #[inline]
    pub(super) fn decode_sealed(&self, body: &mut [u8]) -> Result<usize, CannotOpen> {
        let engine = if self.sealed.ends_with(b"=") { &PADDED } else { &BASE64 };
        engine.decode_slice(self.sealed, body).map_err(|_| CannotOpen)
    }
}

/// The compressed form of an uncompressed point.
pub(super) fn compressed(point: &[u8; 65]) -> [u8; POINT_BYTES] {
    let mut compressed = [0; POINT_BYTES];
    compressed[0] = 2 | (point[64] & 1);
    compressed[1..].copy_from_slice(&point[1..POINT_BYTES]);
    compressed
}

/// Decodes the characters of a compressed point.
pub(super) fn point(chars: &[u8; POINT_CHARS]) -> Result<[u8; POINT_BYTES], CannotOpen> {
    let mut point = [0; POINT_BYTES];
    BASE64.decode_slice(chars, &mut point).map_err(|_| CannotOpen)?;
    Ok(point)
}

/// What a string says about itself without being opened. Nothing in it is authenticated, and a role is known only
/// once the string opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// How it was made.
    pub tag: Tag,
    /// Curve of its keys.
    pub curve: Curve,
    /// The datatype it declares.
    pub datatype: Datatype,
    /// Whether it was made for the vendor's published debug key; such a string never opens here.
    pub is_debug: bool,
    /// The writer's ephemeral key, compressed. Values made together normally share it.
    pub ephemeral: [u8; 33],
    /// Length of the payload: of the text, and of the metadata in front of it where the tag has any.
    pub payload_bytes: usize,
}

/// Reads a string's outer parts; `None` when it is none.
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
