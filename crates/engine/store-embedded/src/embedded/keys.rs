//! Keys of the database. Numbers in keys are big endian, so that keys are in the order of maps and
//! ids.

use sealwire_store::{Fingerprint, MapId, ObjectId, SubjectId, Term, TokenId};

/// The bytes `app u32 | collection u32 | id or fingerprint 16`, in the order of maps and ids.
pub(super) type Key = [u8; 24];

pub(super) fn row_key(map: MapId, id: TokenId) -> Key {
    map_entry_key(map, id.0)
}

pub(super) fn fingerprint_key(map: MapId, fingerprint: Fingerprint) -> Key {
    map_entry_key(map, fingerprint.0)
}

pub(super) fn object_key(map: MapId, id: ObjectId) -> Key {
    map_entry_key(map, id.0)
}

pub(super) fn map_entry_key(map: MapId, last: [u8; 16]) -> Key {
    let mut key = [0; 24];
    key[..8].copy_from_slice(&map_key(map));
    key[8..].copy_from_slice(&last);
    key
}

pub(super) fn map_key(map: MapId) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&map.app.to_be_bytes());
    key[4..].copy_from_slice(&map.collection.to_be_bytes());
    key
}

/// Returns the map of a key of [`map_key`]. Returns `None` if the length is wrong.
pub(super) fn parse_map(key: &[u8]) -> Option<MapId> {
    let (app, collection) = key.split_first_chunk()?;
    Some(MapId {
        app: u32::from_be_bytes(*app),
        collection: u32::from_be_bytes(collection.try_into().ok()?),
    })
}

/// The bytes `app u32 | collection u32 | index u32 | hash 16`.
pub(super) type TermKey = [u8; 28];

pub(super) fn term_key(map: MapId, term: Term) -> TermKey {
    let mut key = [0; 28];
    key[..8].copy_from_slice(&map_key(map));
    key[8..12].copy_from_slice(&term.index.to_be_bytes());
    key[12..].copy_from_slice(&term.hash);
    key
}

/// A [`TermKey`], and the id of an object that holds the term: `id 16`.
pub(super) type PostingKey = [u8; 44];

pub(super) fn posting_key(map: MapId, term: Term, id: ObjectId) -> PostingKey {
    let mut key = [0; 44];
    key[..28].copy_from_slice(&term_key(map, term));
    key[28..].copy_from_slice(&id.0);
    key
}

/// The bytes `app u32 | subject 16 | collection u32 | id 16`, of a token's row or an object.
pub(super) type SubjectEntryKey = [u8; 40];

pub(super) fn subject_key(map: MapId, subject: SubjectId, id: [u8; 16]) -> SubjectEntryKey {
    let mut key = [0; 40];
    key[..4].copy_from_slice(&map.app.to_be_bytes());
    key[4..20].copy_from_slice(&subject.0);
    key[20..24].copy_from_slice(&map.collection.to_be_bytes());
    key[24..].copy_from_slice(&id);
    key
}

/// Returns map and id of a [`SubjectEntryKey`]. Returns `None` if the length is wrong.
pub(super) fn subject_row(key: &[u8]) -> Option<(MapId, [u8; 16])> {
    let (app, rest) = key.split_first_chunk()?;
    let (_, rest) = rest.split_first_chunk::<16>()?;
    let (collection, id) = rest.split_first_chunk()?;
    let map = MapId {
        app: u32::from_be_bytes(*app),
        collection: u32::from_be_bytes(*collection),
    };
    Some((map, id.try_into().ok()?))
}

/// Returns the object of a posting key. Returns `None` if the length is wrong.
pub(super) fn posting_id(key: &[u8]) -> Option<ObjectId> {
    let (_, id) = key
        .split_last_chunk()
        .filter(|(term, _)| term.len() == size_of::<TermKey>())?;
    Some(ObjectId(*id))
}

/// Prefix of the keys of fences.
pub(super) const FENCE: &[u8] = b"fence/";

pub(super) fn fence_key(map: MapId) -> Vec<u8> {
    [FENCE, &map_key(map)].concat()
}

/// Returns the database key of a record. The prefix ensures that the key is not empty, which the
/// database does not allow.
pub(super) fn record_key(key: &str) -> String {
    format!("/{key}")
}

/// Returns the first key after all keys with the prefix `prefix`. The last byte of `prefix` must be
/// ASCII.
pub(super) fn past_prefix(prefix: &str) -> String {
    let (kept, last) = prefix.split_at(prefix.len() - 1);
    format!("{kept}{}", char::from(last.as_bytes()[0] + 1))
}

/// Splits a row key into map and id. Returns `None` if the length is wrong.
pub(super) fn map_and_id(key: &[u8]) -> Option<(MapId, [u8; 16])> {
    let (map, id) = key.split_at_checked(8)?;
    Some((parse_map(map)?, id.try_into().ok()?))
}
