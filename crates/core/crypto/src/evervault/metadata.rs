//! The metadata before the text of a sealed string: the length of a MessagePack map (2 bytes,
//! little endian), and the map, with role, origin and time. `proto/evervault.md` describes it.
//!
//! Parsing is strict, because a policy depends on the role. A map is rejected with its whole value
//! if it is unreadable, repeats a known key, or has a role that is not a UTF-8 string.

use sealwire_msgpack::{Token, TokenReader, write};
use zeroize::Zeroizing;

use crate::CannotOpen;

/// The origin that we write: the ASCII letter S. Published clients use 5 to 13.
pub const ORIGIN: u8 = b'S';

/// Longest role in characters.
const ROLE_CHARS_MAX: usize = 20;
/// Longest role, in bytes, that `rewrap` keeps from a string of another client: 20 characters in
/// UTF-8.
pub(super) const CARRIED_ROLE_BYTES_MAX: usize = 4 * ROLE_CHARS_MAX;

/// A data role: 1 to 20 of `a-z 0-9 -`. Safe to log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Role(Box<str>);

/// The text is not a role: a role has 1 to 20 characters of `a-z 0-9 -`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a role is 1 to 20 lower-case letters, digits or hyphens")]
pub struct InvalidRole;

impl Role {
    /// Checks a role.
    ///
    /// # Errors
    /// [`InvalidRole`] for any other length or character.
    pub fn new(role: &str) -> Result<Self, InvalidRole> {
        let valid = (1..=ROLE_CHARS_MAX).contains(&role.len())
            && role
                .bytes()
                .all(|byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if valid {
            Ok(Self(role.into()))
        } else {
            Err(InvalidRole)
        }
    }

    /// Returns the role as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The content of a metadata map. The published clients write no other keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata<'a> {
    /// Data role, for a policy.
    pub(super) role: Option<&'a str>,
    /// Number of the client program that sealed the value.
    pub(super) origin: Option<u64>,
    /// Unix seconds by the clock of that client.
    pub(super) encrypted_at: Option<u64>,
}

impl<'a> Metadata<'a> {
    /// Splits a payload into its metadata and its text. Returns `None` if the metadata is invalid.
    #[inline]
    pub(super) fn split(payload: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (length, rest) = payload.split_first_chunk()?;
        let (map, text) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        Some((Self::parse(map)?, text))
    }

    /// Detects unmarked metadata at the start of a file's content. Metadata is a length and a map
    /// of exactly that length with at least one known key. Random bytes look like this with a
    /// probability below 2^-32.
    ///
    /// # Errors
    /// [`CannotOpen`] when there is such a map and [`Metadata::parse`] rejects it.
    pub(super) fn in_front(content: &'a [u8]) -> Result<Option<Self>, CannotOpen> {
        let map = content
            .split_first_chunk()
            .and_then(|(length, rest)| rest.get(..u16::from_le_bytes(*length).into()));
        match map.filter(|map| names_a_key(map) == Some(true)) {
            None => Ok(None),
            Some(map) => Self::parse(map).map(Some).ok_or(CannotOpen),
        }
    }

    /// Parses a map. Keys can be in any order, unknown keys are ignored, and no bytes may follow
    /// the map.
    pub(super) fn parse(map: &'a [u8]) -> Option<Self> {
        let mut reader = TokenReader::new(map);
        let mut metadata = Self::default();
        let mut seen = [false; 3];
        for _ in 0..reader.map_len().ok()? {
            let known = read_key(&mut reader)?;
            match known {
                Some(key) if seen[key] => return None,
                Some(0) => metadata.role = Some(reader.str_utf8().ok()?),
                // Origin and time are advisory and no policy uses them, so another type is not an
                // error.
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

/// Reads a key. Returns 0 for the role, 1 for the origin, 2 for the time, and `Some(None)` for
/// another key. Returns `None` if the map is malformed.
fn read_key(reader: &mut TokenReader<'_>) -> Option<Option<usize>> {
    let known = match reader.peek().ok()? {
        Token::Str(b"dr") => Some(0),
        Token::Str(b"eo") => Some(1),
        Token::Str(b"et") => Some(2),
        _ => None,
    };
    reader.skip_value().ok()?;
    Some(known)
}

/// Returns true if `map` is exactly one map that contains a known key, and `None` if it is
/// malformed.
fn names_a_key(map: &[u8]) -> Option<bool> {
    let mut reader = TokenReader::new(map);
    let mut has_known_key = false;
    for _ in 0..reader.map_len().ok()? {
        has_known_key |= read_key(&mut reader)?.is_some();
        reader.skip_value().ok()?;
    }
    Some(has_known_key && reader.is_at_end())
}

/// Collects the first bytes of content that arrives in pieces, until [`Metadata::in_front`] can
/// decide.
#[derive(Default)]
pub(super) struct ContentPrefix(Zeroizing<Vec<u8>>);

impl ContentPrefix {
    /// Takes the next bytes. Returns `true` once there are enough. Content that ends earlier has no
    /// metadata.
    pub(super) fn take(&mut self, mut content: &[u8]) -> bool {
        loop {
            let length = self
                .0
                .first_chunk()
                .map_or(0, |length| u16::from_le_bytes(*length).into());
            let missing = 2 + length - self.0.len();
            if missing == 0 || content.is_empty() {
                return missing == 0;
            }
            let (now, later) = content.split_at(missing.min(content.len()));
            // A vector that grows frees its old buffer unwiped. This vector grows at most twice,
            // for the length and for the map, so that the freed buffer holds only the length.
            self.0.reserve_exact(missing);
            self.0.extend_from_slice(now);
            content = later;
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Reads an integer, or skips a value of another type and returns `Some(None)`. Returns `None` if
/// the value is malformed.
fn integer_or_skip(reader: &mut TokenReader<'_>) -> Option<Option<u64>> {
    if let Ok(value) = reader.u64() {
        return Some(Some(value));
    }
    reader.skip_value().ok()?;
    Some(None)
}

/// The origin and the time that a sealer writes before every text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MetadataStamp {
    pub(super) origin: u8,
    /// Unix seconds.
    pub(super) encrypted_at: u32,
}

impl MetadataStamp {
    /// Writes length and map into `map`, ready to precede a text. A role has at most
    /// [`CARRIED_ROLE_BYTES_MAX`] bytes.
    pub(super) fn encode(self, role: Option<&str>, map: &mut Vec<u8>) {
        debug_assert!(
            self.origin < 0x80,
            "the origin must fit in one byte of MessagePack"
        );
        map.clear();
        // Two bytes for the length, and the header of a map with 3 or 2 entries.
        map.extend_from_slice(&[0, 0, if role.is_some() { 0x83 } else { 0x82 }]);
        if let Some(role) = role {
            map.extend_from_slice(&[0xa2, b'd', b'r']);
            write::str(map, role);
        }
        // 0xa2: a string of two bytes. 0xce: an unsigned integer of 32 bits.
        map.extend_from_slice(&[0xa2, b'e', b'o', self.origin, 0xa2, b'e', b't', 0xce]);
        map.extend_from_slice(&self.encrypted_at.to_be_bytes());
        let length = u16::try_from(map.len() - 2).expect("a role is short");
        map[..2].copy_from_slice(&length.to_le_bytes());
    }
}
