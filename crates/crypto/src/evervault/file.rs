//! The bytes of a file around its content.
//!
//! ```text
//! "%EVENC" 6 | version 1 | offset of the ciphertext 2, little-endian | ephemeral point 33 | IV 12 | flags 1
//! versions 4 and 5: length 2, little-endian | encrypted metadata, tag included
//! ciphertext | tag 16 | CRC-32 of all before it 4, little-endian
//! ```
//! The CRC finds an accident, not an attacker: only the tag says that the content is what was sealed.

use super::Legacy;
use super::derive::Kdf;
use super::metadata::Metadata;
use super::ring::Scheme;
use super::text::POINT_BYTES;
use crate::aead::{NONCE_BYTES, TAG_BYTES};
use crate::{CannotOpen, Curve};

const MAGIC: &[u8; 6] = b"%EVENC";
/// Bytes before the content of versions 2 and 3.
pub const FILE_HEADER_BYTES: usize = 55;
/// Tag and checksum behind the content.
pub(super) const TRAILER_BYTES: usize = TAG_BYTES + 4;
/// Longest content the published clients take, and so the longest we write: 25 MiB. Reading has no limit of its own.
pub const FILE_BYTES_MAX: u64 = 25 << 20;

/// Whether bytes claim to be a file. What claims to be one must open or fail; it is never data.
#[must_use]
#[inline]
pub fn looks_like_file(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Why a file was not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// More than [`FILE_BYTES_MAX`]. The caller's to split.
    #[error("a file holds at most 25 MiB")]
    TooLong,
    /// This format has no role for a file that cannot be stripped, so none is written. The caller's to decide.
    #[error("a file takes no role")]
    Role,
    /// The content begins as metadata does, and readers would judge it by that. The caller's to put in another form.
    #[error("the content begins as metadata does")]
    Ambiguous,
    /// The system's random source or the crypto library failed. Stop using this process.
    #[error("the crypto library failed")]
    Library,
}

impl From<crate::Error> for FileError {
    fn from(_: crate::Error) -> Self {
        Self::Library
    }
}

/// How a file was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileVersion {
    /// secp256k1, neither key derivation nor additional data.
    V2 = 2,
    /// P-256.
    V3 = 3,
    /// secp256k1 with a role. Legacy: its role can be read by guessing.
    V4 = 4,
    /// P-256 with a role. Legacy: its role can be stripped.
    V5 = 5,
}

impl FileVersion {
    /// What is written for a curve.
    #[must_use]
    pub fn of(curve: Curve) -> Self {
        match curve {
            Curve::Secp256k1 => Self::V2,
            Curve::P256 => Self::V3,
        }
    }

    /// The curve of its keys.
    #[must_use]
    pub fn curve(self) -> Curve {
        match self {
            Self::V2 | Self::V4 => Curve::Secp256k1,
            Self::V3 | Self::V5 => Curve::P256,
        }
    }

    /// Whether opening it takes [`Legacy::Allowed`].
    #[must_use]
    pub fn is_legacy(self) -> bool {
        matches!(self, Self::V4 | Self::V5)
    }

    pub(super) fn scheme(self) -> Scheme {
        let kdf = if self == Self::V2 { Kdf::None } else { Kdf::X963 };
        Scheme { kdf, is_mixed: self.curve() == Curve::Secp256k1 }
    }

    /// The additional data, given the app's compressed point.
    pub(super) fn aad(self, app: &[u8; POINT_BYTES]) -> &[u8] {
        if self == Self::V2 { &[] } else { app }
    }
}

/// The first 55 bytes of a file. Nothing in them is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// How it was made.
    pub version: FileVersion,
    /// Whether it was made for the vendor's published debug key; such a file never opens here.
    pub is_debug: bool,
    /// The writer's ephemeral key, compressed.
    pub ephemeral: [u8; POINT_BYTES],
    pub(super) iv: [u8; NONCE_BYTES],
    /// Bytes of encrypted metadata, of versions 4 and 5.
    pub(super) metadata_bytes: usize,
    pub(super) bytes: [u8; FILE_HEADER_BYTES],
}

impl FileHeader {
    /// Reads the first bytes of a file; `None` when it is none.
    #[must_use]
    pub fn read(bytes: &[u8; FILE_HEADER_BYTES]) -> Option<Self> {
        let (version, rest) = bytes.strip_prefix(MAGIC)?.split_first()?;
        let version = [FileVersion::V2, FileVersion::V3, FileVersion::V4, FileVersion::V5]
            .into_iter()
            .find(|known| *known as u8 == *version)?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (ephemeral, rest) = rest.split_first_chunk()?;
        let (iv, flags) = rest.split_first_chunk()?;
        let offset = usize::from(u16::from_le_bytes(*offset));
        let metadata_bytes = match version.is_legacy() {
            true => offset.checked_sub(FILE_HEADER_BYTES + 2)?,
            false => offset.checked_sub(FILE_HEADER_BYTES).filter(|more| *more == 0)?,
        };
        // Bits without a meaning are refused rather than guessed at.
        let is_debug = match flags {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Self { version, is_debug, ephemeral: *ephemeral, iv: *iv, metadata_bytes, bytes: *bytes })
    }

    /// Header and the rest of a whole file.
    pub(super) fn split(file: &[u8]) -> Option<(Self, &[u8])> {
        let (header, rest) = file.split_first_chunk()?;
        Some((Self::read(header)?, rest))
    }

    pub(super) fn write(
        version: FileVersion,
        ephemeral: &[u8; POINT_BYTES],
        iv: [u8; NONCE_BYTES],
    ) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        bytes[..6].copy_from_slice(MAGIC);
        bytes[6] = version as u8;
        bytes[7] = FILE_HEADER_BYTES as u8;
        bytes[9..42].copy_from_slice(ephemeral);
        bytes[42..54].copy_from_slice(&iv);
        bytes
    }

    /// Refuses what is never or not now read.
    pub(super) fn check(&self, legacy: Legacy) -> Result<(), CannotOpen> {
        let refused = self.is_debug || (self.version.is_legacy() && legacy == Legacy::Refused);
        if refused { Err(CannotOpen) } else { Ok(()) }
    }

    /// What lies between header and content: a length and as many bytes, or nothing.
    pub(super) fn split_metadata<'a>(&self, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if !self.version.is_legacy() {
            return Some(rest.split_at(0));
        }
        let (length, rest) = rest.split_first_chunk()?;
        self.check_metadata_length(*length)?;
        rest.split_at_checked(self.metadata_bytes)
    }

    /// The length is said twice, and must agree.
    pub(super) fn check_metadata_length(&self, length: [u8; 2]) -> Option<()> {
        let bytes = usize::from(u16::from_le_bytes(length));
        (bytes == self.metadata_bytes && bytes >= TAG_BYTES).then_some(())
    }
}

/// What a whole file says about itself without being opened. Nothing in it is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInspection {
    /// How it was made.
    pub version: FileVersion,
    /// Whether it was made for the vendor's published debug key; such a file never opens here.
    pub is_debug: bool,
    /// Length of the content.
    pub content_bytes: usize,
}

/// Reads what is around a file's content; `None` when it is none. Does not look at the checksum.
#[must_use]
pub fn inspect_file(file: &[u8]) -> Option<FileInspection> {
    let (header, rest) = FileHeader::split(file)?;
    let (_, content) = header.split_metadata(rest)?;
    let FileHeader { version, is_debug, .. } = header;
    Some(FileInspection { version, is_debug, content_bytes: content.len().checked_sub(TRAILER_BYTES)? })
}

/// The role in the opened metadata of versions 4 and 5, its spent tag still behind it.
pub(super) fn role(opened: &[u8]) -> Result<Option<&str>, CannotOpen> {
    let map = opened.split_last_chunk::<TAG_BYTES>().map(|(map, _)| map);
    map.and_then(Metadata::parse).map(|metadata| metadata.role).ok_or(CannotOpen)
}

/// The role in metadata that the content of versions 2 and 3 begins with: some Android clients put it there, and so
/// does whoever makes a file of a `TENZ` string, which has the same key and additional data as version 3.
pub(super) fn unmarked_role(content: &[u8], legacy: Legacy) -> Result<Option<&str>, CannotOpen> {
    match Metadata::in_front(content)? {
        Some(_) if legacy == Legacy::Refused => Err(CannotOpen),
        metadata => Ok(metadata.and_then(|metadata| metadata.role)),
    }
}

/// Refuses content that would be read as having metadata.
pub(super) fn check_front(content: &[u8]) -> Result<(), FileError> {
    match Metadata::in_front(content) {
        Ok(None) => Ok(()),
        Ok(Some(_)) | Err(CannotOpen) => Err(FileError::Ambiguous),
    }
}
