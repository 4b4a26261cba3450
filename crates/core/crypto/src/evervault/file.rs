//! The file layout around the content.
//!
//! ```text
//! "%EVENC" 6 | version 1 | offset of the ciphertext 2, little-endian | ephemeral point 33 | IV 12 | flags 1
//! versions 4 and 5: length 2, little-endian | encrypted metadata, tag included
//! ciphertext | tag 16 | CRC-32 of all before it 4, little-endian
//! ```
//! The CRC detects accidental damage only. The tag alone authenticates the content.

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
/// Bytes of tag and checksum after the content.
pub(super) const TRAILER_BYTES: usize = TAG_BYTES + 4;
/// Longest content that the published clients accept and that we write: 25 MiB. Reading has no
/// limit here.
pub const FILE_BYTES_MAX: u64 = 25 << 20;

/// Returns true if bytes have the prefix of a file. Such bytes must open or fail; they are never
/// treated as data.
#[must_use]
#[inline]
pub fn looks_like_file(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// The reason why a file was not sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The content is longer than [`FILE_BYTES_MAX`]. The client must split it.
    #[error("a file holds at most 25 MiB")]
    TooLong,
    /// A role was requested. In this format anyone can strip the role of a file, so none is
    /// written.
    #[error("a file takes no role")]
    Role,
    /// The content begins like metadata, and readers would take it for metadata. The client must
    /// change its form.
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

/// The version of a file, which decides its curve and key derivation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileVersion {
    /// secp256k1, without key derivation or additional data.
    V2 = 2,
    /// P-256.
    V3 = 3,
    /// secp256k1 with a role. Legacy: its role can be read by guessing.
    V4 = 4,
    /// P-256 with a role. Legacy: its role can be stripped.
    V5 = 5,
}

impl FileVersion {
    /// Returns the version that is written for a curve.
    #[must_use]
    pub fn of(curve: Curve) -> Self {
        match curve {
            Curve::Secp256k1 => Self::V2,
            Curve::P256 => Self::V3,
        }
    }

    /// Returns the curve of this version's keys.
    #[must_use]
    pub fn curve(self) -> Curve {
        match self {
            Self::V2 | Self::V4 => Curve::Secp256k1,
            Self::V3 | Self::V5 => Curve::P256,
        }
    }

    /// Returns true if opening this version requires [`Legacy::Allowed`].
    #[must_use]
    pub fn is_legacy(self) -> bool {
        matches!(self, Self::V4 | Self::V5)
    }

    pub(super) fn scheme(self) -> Scheme {
        let kdf = if self == Self::V2 {
            Kdf::None
        } else {
            Kdf::X963
        };
        Scheme {
            kdf,
            is_mixed: self.curve() == Curve::Secp256k1,
        }
    }

    /// Returns the additional data, given the app's compressed point.
    pub(super) fn aad(self, app: &[u8; POINT_BYTES]) -> &[u8] {
        if self == Self::V2 { &[] } else { app }
    }
}

/// The first 55 bytes of a file. No part of them is authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The version of the file.
    pub version: FileVersion,
    /// True if the file was made for the vendor's published debug key. Such a file never opens
    /// here.
    pub is_debug: bool,
    /// The sealer's ephemeral key, compressed.
    pub ephemeral: [u8; POINT_BYTES],
    pub(super) iv: [u8; NONCE_BYTES],
    /// Bytes of encrypted metadata in versions 4 and 5.
    pub(super) metadata_bytes: usize,
    pub(super) bytes: [u8; FILE_HEADER_BYTES],
}

impl FileHeader {
    /// Parses the first bytes of a file. Returns `None` when they are not a file header.
    #[must_use]
    pub fn read(bytes: &[u8; FILE_HEADER_BYTES]) -> Option<Self> {
        let (version, rest) = bytes.strip_prefix(MAGIC)?.split_first()?;
        let version = [
            FileVersion::V2,
            FileVersion::V3,
            FileVersion::V4,
            FileVersion::V5,
        ]
        .into_iter()
        .find(|known| *known as u8 == *version)?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (ephemeral, rest) = rest.split_first_chunk()?;
        let (iv, flags) = rest.split_first_chunk()?;
        let offset = usize::from(u16::from_le_bytes(*offset));
        let metadata_bytes = match version.is_legacy() {
            true => offset.checked_sub(FILE_HEADER_BYTES + 2)?,
            false => offset
                .checked_sub(FILE_HEADER_BYTES)
                .filter(|more| *more == 0)?,
        };
        // Unknown flag bits are rejected.
        let is_debug = match flags {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        Some(Self {
            version,
            is_debug,
            ephemeral: *ephemeral,
            iv: *iv,
            metadata_bytes,
            bytes: *bytes,
        })
    }

    /// Splits a whole file into its header and the rest.
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

    /// Rejects debug files, and legacy versions unless `legacy` allows them.
    pub(super) fn check(&self, legacy: Legacy) -> Result<(), CannotOpen> {
        let refused = self.is_debug || (self.version.is_legacy() && legacy == Legacy::Refused);
        if refused { Err(CannotOpen) } else { Ok(()) }
    }

    /// Splits off the bytes between header and content: a length and as many bytes, or nothing.
    pub(super) fn split_metadata<'a>(&self, rest: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if !self.version.is_legacy() {
            return Some(rest.split_at(0));
        }
        let (length, rest) = rest.split_first_chunk()?;
        self.check_metadata_length(*length)?;
        rest.split_at_checked(self.metadata_bytes)
    }

    /// Checks that the two copies of the metadata length agree.
    pub(super) fn check_metadata_length(&self, length: [u8; 2]) -> Option<()> {
        let bytes = usize::from(u16::from_le_bytes(length));
        (bytes == self.metadata_bytes && bytes >= TAG_BYTES).then_some(())
    }
}

/// The public metadata of a whole file, readable without opening it. No part of it is
/// authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInspection {
    /// The version of the file.
    pub version: FileVersion,
    /// True if the file was made for the vendor's published debug key. Such a file never opens
    /// here.
    pub is_debug: bool,
    /// Length of the content in bytes.
    pub content_bytes: usize,
}

/// Parses the parts around a file's content. Returns `None` when `file` is not a file. Does not
/// check the CRC.
#[must_use]
pub fn inspect_file(file: &[u8]) -> Option<FileInspection> {
    let (header, rest) = FileHeader::split(file)?;
    let (_, content) = header.split_metadata(rest)?;
    let FileHeader {
        version, is_debug, ..
    } = header;
    Some(FileInspection {
        version,
        is_debug,
        content_bytes: content.len().checked_sub(TRAILER_BYTES)?,
    })
}

/// Returns the role in the opened metadata of versions 4 and 5. The metadata still ends with its
/// used tag.
pub(super) fn role(opened: &[u8]) -> Result<Option<&str>, CannotOpen> {
    let map = opened.split_last_chunk::<TAG_BYTES>().map(|(map, _)| map);
    map.and_then(Metadata::parse)
        .map(|metadata| metadata.role)
        .ok_or(CannotOpen)
}

/// Returns the role in metadata at the start of the content of versions 2 and 3. Some Android
/// clients put metadata there. A file built from a `TENZ` string has it too, since that tag shares
/// key and additional data with version 3.
pub(super) fn unmarked_role(content: &[u8], legacy: Legacy) -> Result<Option<&str>, CannotOpen> {
    match Metadata::in_front(content)? {
        Some(_) if legacy == Legacy::Refused => Err(CannotOpen),
        metadata => Ok(metadata.and_then(|metadata| metadata.role)),
    }
}

/// Rejects content that readers would take for metadata.
pub(super) fn check_front(content: &[u8]) -> Result<(), FileError> {
    match Metadata::in_front(content) {
        Ok(None) => Ok(()),
        Ok(Some(_)) | Err(CannotOpen) => Err(FileError::Ambiguous),
    }
}
