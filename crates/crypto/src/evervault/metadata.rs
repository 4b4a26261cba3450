//! The map in front of the text: role, origin and time.
//!
//! Reading fails closed. A policy is decided by the role, so a map that cannot be read, says its role twice or says it
//! in anything but a string refuses the whole value rather than giving it out without a role.

use sealwire_msgpack::{Token, TokenReader, write};
use zeroize::Zeroizing;

use crate::CannotOpen;

/// What we write as a value's origin: the ASCII letter S. Published clients use 5 to 13.
pub const ORIGIN: u8 = b'S';

/// Longest role in characters.
const ROLE_CHARS_MAX: usize = 20;
/// Longest role that is carried over from a string that another client made: 20 characters in UTF-8.
pub(super) const CARRIED_ROLE_BYTES_MAX: usize = 4 * ROLE_CHARS_MAX;

/// A data role: 1 to 20 of `a-z 0-9 -`. Safe to log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Role(Box<str>);

/// A role has 1 to 20 characters of `a-z 0-9 -`. The caller's bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a role is 1 to 20 lower-case letters, digits or hyphens")]
pub struct InvalidRole;

impl Role {
    /// Checks a role.
    ///
    /// # Errors
    /// [`InvalidRole`] for any other length or character.
    pub fn new(role: &str) -> Result<Self, InvalidRole> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = (1..=ROLE_CHARS_MAX).contains(&role.len()) && role.bytes().all(allowed);
        if valid { Ok(Self(role.into())) } else { Err(InvalidRole) }
    }

    /// The role.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a map says. The published clients write no other keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata<'a> {
    pub(super) role: Option<&'a str>,
    pub(super) origin: Option<u64>,
    pub(super) encrypted_at: Option<u64>,
}

impl<'a> Metadata<'a> {
    /// Splits a payload into its metadata and its text.
    #[inline]
    pub(super) fn split(payload: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (length, rest) = payload.split_first_chunk()?;
        let (map, text) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        Some((Self::parse(map)?, text))
    }

    /// Metadata that a file's content begins with and nothing marks: a length and a map of just that length in which
    /// a key of ours occurs. Random bytes begin so by less than one chance in 2^32.
    ///
    /// # Errors
    /// [`CannotOpen`] when it is such a map and [`Metadata::parse`] does not take it.
    pub(super) fn in_front(content: &'a [u8]) -> Result<Option<Self>, CannotOpen> {
        let map = content.split_first_chunk().and_then(|(length, rest)| rest.get(..u16::from_le_bytes(*length).into()));
        match map.filter(|map| names_a_key(map) == Some(true)) {
            None => Ok(None),
            Some(map) => Self::parse(map).map(Some).ok_or(CannotOpen),
        }
    }

    /// Reads a map: keys in any order, unknown ones ignored, nothing behind it.
    pub(super) fn parse(map: &'a [u8]) -> Option<Self> {
        let mut reader = TokenReader::new(map);
        let mut metadata = Self::default();
        let mut seen = [false; 3];
        for _ in 0..reader.map_len().ok()? {
            let known = key(&mut reader)?;
            match known {
                Some(key) if seen[key] => return None,
                Some(0) => metadata.role = Some(reader.str_utf8().ok()?),
                // Advisory: nobody decides by these two, so another type is no reason to refuse.
                Some(1) => metadata.origin = integer_or_skip(&mut reader)?,
                Some(_) => metadata.encrypted_at = integer_or_skip(&mut reader)?,
                None => reader.skip_value().ok()?,
            }
            if let Some(key) = known {
                seen[key] = true;
            }
        }
        reader.is_at_end().then_some(metadata)
    }
}

/// Reads a key; the number of one of ours.
fn key(reader: &mut TokenReader<'_>) -> Option<Option<usize>> {
    let known = match reader.peek().ok()? {
        Token::Str(b"dr") => Some(0),
        Token::Str(b"eo") => Some(1),
        Token::Str(b"et") => Some(2),
        _ => None,
    };
    reader.skip_value().ok()?;
    Some(known)
}

/// Whether this is one whole map, to its last byte, in which a key of ours occurs.
fn names_a_key(map: &[u8]) -> Option<bool> {
    let mut reader = TokenReader::new(map);
    let mut is_ours = false;
    for _ in 0..reader.map_len().ok()? {
        is_ours |= key(&mut reader)?.is_some();
        reader.skip_value().ok()?;
    }
    Some(is_ours && reader.is_at_end())
}

/// Collects the first bytes of a content that comes in pieces, until [`Metadata::in_front`] can judge them.
#[derive(Default)]
pub(super) struct Front(Zeroizing<Vec<u8>>);

impl Front {
    /// Takes the next bytes; `true` once there are enough. Content that ends before has no metadata.
    pub(super) fn take(&mut self, mut content: &[u8]) -> bool {
        loop {
            let length = self.0.first_chunk().map_or(0, |length| u16::from_le_bytes(*length).into());
            let missing = 2 + length - self.0.len();
            if missing == 0 || content.is_empty() {
                return missing == 0;
            }
            let (now, later) = content.split_at(missing.min(content.len()));
            // Once for the length and once for the map, so that no more than the length is left behind unwiped.
            self.0.reserve_exact(missing);
            self.0.extend_from_slice(now);
            content = later;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

fn integer_or_skip(reader: &mut TokenReader<'_>) -> Option<Option<u64>> {
    if let Ok(value) = reader.u64() {
        return Some(Some(value));
    }
    reader.skip_value().ok()?;
    Some(None)
}

/// What goes in front of every text of one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) origin: u8,
    pub(super) encrypted_at: u32,
}

impl Stamp {
    /// Puts length and map in `map`, ready to go in front of a text. A role has at most [`CARRIED_ROLE_BYTES_MAX`].
    pub(super) fn encode(self, role: Option<&str>, map: &mut Vec<u8>) {
        debug_assert!(self.origin < 0x80, "a positive fixint");
        map.clear();
        map.extend_from_slice(&[0, 0, if role.is_some() { 0x83 } else { 0x82 }]);
        if let Some(role) = role {
            map.extend_from_slice(&[0xa2, b'd', b'r']);
            write::str(map, role);
        }
        map.extend_from_slice(&[0xa2, b'e', b'o', self.origin, 0xa2, b'e', b't', 0xce]);
        map.extend_from_slice(&self.encrypted_at.to_be_bytes());
        let length = u16::try_from(map.len() - 2).expect("a role is short");
        map[..2].copy_from_slice(&length.to_le_bytes());
    }
}
