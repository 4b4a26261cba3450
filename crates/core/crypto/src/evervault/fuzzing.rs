//! Entry points for fuzz targets. Not part of the public API.

use super::metadata::{CARRIED_ROLE_BYTES_MAX, ContentPrefix, Metadata, MetadataStamp};
use super::number::{self, Number, Parsed};
use crate::CannotOpen;

/// Role, origin and time from a metadata map.
pub type Fields<'a> = (Option<&'a str>, Option<u64>, Option<u64>);

/// Longest role that can be stamped, in bytes.
pub const ROLE_BYTES_MAX: usize = CARRIED_ROLE_BYTES_MAX;

fn fields<'a>(metadata: Metadata<'a>) -> Fields<'a> {
    (metadata.role, metadata.origin, metadata.encrypted_at)
}

/// Parses a metadata map.
#[must_use]
pub fn parse(map: &[u8]) -> Option<Fields<'_>> {
    Metadata::parse(map).map(fields)
}

/// Splits a payload into its metadata and its text.
#[must_use]
pub fn split(payload: &[u8]) -> Option<(Fields<'_>, &[u8])> {
    Metadata::split(payload).map(|(metadata, text)| (fields(metadata), text))
}

/// Parses metadata at the start of a file's content, fed in pieces of `piece` bytes.
///
/// # Errors
/// [`CannotOpen`] when the metadata cannot be read.
pub fn in_front(content: &[u8], piece: usize) -> Result<Option<Fields<'_>>, CannotOpen> {
    let mut front = ContentPrefix::default();
    let taken = content.chunks(piece.max(1)).any(|piece| front.take(piece));
    let collected = Metadata::in_front(front.bytes()).map(|found| found.map(fields));
    let whole = Metadata::in_front(content).map(|found| found.map(fields));
    assert!(!taken || collected == whole, "{collected:?} {whole:?}");
    assert!(taken || whole == Ok(None), "{whole:?}");
    whole
}

/// Encodes metadata with its length, in the form that precedes a text.
#[must_use]
pub fn stamp(origin: u8, encrypted_at: u32, role: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    MetadataStamp {
        origin,
        encrypted_at,
    }
    .encode(role, &mut out);
    out
}

/// Parses a number. Returns `None` if no client writes it, and `Some(None)` if only its text is
/// exact.
#[must_use]
pub fn number(text: &str) -> Option<Option<Number>> {
    match number::parse(text) {
        Parsed::Exact(number) => Some(Some(number)),
        Parsed::Text => Some(None),
        Parsed::Refused => None,
    }
}
