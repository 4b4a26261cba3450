//! A write batch (turn) of the writer: changes of several requests that see each other and become durable together.
//!
//! Each request makes an [`RequestEdit`], which takes effect completely or not at all.

use std::collections::{BTreeMap, HashMap};

use fjall::Snapshot;

use super::database::{Database, GENERATION_KEY, Key, fingerprint_key, record_key, row_key};
use super::row;
use sealwire_store::{Fingerprint, MapId, Row, StoreError, TokenId, after};

/// Size at which a batch is committed. The limits bound a batch's memory and the wait of its first request.
const TURN_ROWS_MAX: usize = 8_192;
const TURN_BYTES_MAX: usize = 8 << 20;

/// New values by key; `None` means that the key is removed.
#[derive(Default)]
struct Changes {
    rows: HashMap<Key, Option<Row>>,
    holders: HashMap<Key, Option<TokenId>>,
    records: BTreeMap<String, Option<Vec<u8>>>,
    generation: Option<u64>,
}

/// A write batch; see the module.
pub(super) struct WriteBatch<'a> {
    database: &'a Database,
    at: Snapshot,
    /// The durable generation.
    generation: u64,
    pending: Changes,
    bytes: usize,
}

impl<'a> WriteBatch<'a> {
    pub(super) fn new(database: &'a Database, generation: u64) -> Self {
        Self { database, at: database.snapshot(), generation, pending: Changes::default(), bytes: 0 }
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.rows.len() < TURN_ROWS_MAX && self.bytes < TURN_BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        let Changes { rows, holders, records, generation } = &self.pending;
        rows.is_empty() && holders.is_empty() && records.is_empty() && generation.is_none()
    }

    /// Runs `change` on an edit. An edit that fails, or that forgets its changes, changes nothing.
    pub(super) fn edit<T>(
        &mut self,
        change: impl FnOnce(&mut RequestEdit<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut edit = RequestEdit { turn: self, changes: Changes::default() };
        let answer = change(&mut edit)?;
        let Changes { rows, holders, records, generation } = edit.changes;
        self.bytes += rows.values().flatten().map(Row::bytes).sum::<usize>();
        self.bytes += records.values().flatten().map(Vec::len).sum::<usize>();
        self.pending.rows.extend(rows);
        self.pending.holders.extend(holders);
        self.pending.records.extend(records);
        self.pending.generation = generation.or(self.pending.generation);
        Ok(answer)
    }

    /// Makes all changes durable, then visible. Returns the new generation.
    pub(super) fn commit(self) -> Result<u64, StoreError> {
        let (database, mut batch) = (self.database, self.database.batch());
        for (key, row) in self.pending.rows {
            match row {
                Some(row) => batch.insert(&database.rows, key, row::encode(&row)),
                None => batch.remove(&database.rows, key),
            }
        }
        for (key, holder) in self.pending.holders {
            match holder {
                Some(id) => batch.insert(&database.fingerprints, key, id.0),
                None => batch.remove(&database.fingerprints, key),
            }
        }
        for (key, record) in self.pending.records {
            match record {
                Some(record) => batch.insert(&database.records, record_key(&key), record),
                None => batch.remove(&database.records, record_key(&key)),
            }
        }
        if let Some(generation) = self.pending.generation {
            batch.insert(&database.facts, GENERATION_KEY, generation.to_be_bytes());
        }
        batch.commit().map_err(|error| database.failed(error))?;
        Ok(self.pending.generation.unwrap_or(self.generation))
    }
}

/// Returns the fingerprint under which the row is indexed.
pub(super) fn indexed(row: &Row) -> Option<Fingerprint> {
    row.fingerprint.filter(|_| row.archived.is_none())
}

/// The changes of one request, on top of the batch's changes, on top of the database.
pub(super) struct RequestEdit<'a> {
    turn: &'a WriteBatch<'a>,
    changes: Changes,
}

impl RequestEdit<'_> {
    pub(super) fn row(&self, map: MapId, id: TokenId) -> Result<Option<Row>, StoreError> {
        let key = row_key(map, id);
        match self.changes.rows.get(&key).or_else(|| self.turn.pending.rows.get(&key)) {
            Some(changed) => Ok(changed.clone()),
            None => self.turn.database.row(&self.turn.at, &key),
        }
    }

    /// Returns the live or expired row that has the fingerprint.
    pub(super) fn holder(&self, map: MapId, fingerprint: Fingerprint) -> Result<Option<Row>, StoreError> {
        let Some(id) = self.holder_id(map, fingerprint)? else { return Ok(None) };
        let row = self.row(map, id)?;
        row.map(Some).ok_or_else(|| self.turn.database.damaged("a fingerprint leads to a row that is not there"))
    }

    fn holder_id(&self, map: MapId, fingerprint: Fingerprint) -> Result<Option<TokenId>, StoreError> {
        let key = fingerprint_key(map, fingerprint);
        match self.changes.holders.get(&key).or_else(|| self.turn.pending.holders.get(&key)) {
            Some(changed) => Ok(*changed),
            None => self.turn.database.holder(&self.turn.at, &key),
        }
    }

    /// Writes a row; `old` is the existing row with this id.
    pub(super) fn put(&mut self, map: MapId, old: Option<&Row>, row: Row) {
        if let Some(fingerprint) = old.and_then(indexed).filter(|old| indexed(&row) != Some(*old)) {
            self.changes.holders.insert(fingerprint_key(map, fingerprint), None);
        }
        if let Some(fingerprint) = indexed(&row) {
            self.changes.holders.insert(fingerprint_key(map, fingerprint), Some(row.id));
        }
        self.changes.rows.insert(row_key(map, row.id), Some(row));
    }

    pub(super) fn remove(&mut self, map: MapId, row: &Row) {
        if let Some(fingerprint) = indexed(row) {
            self.changes.holders.insert(fingerprint_key(map, fingerprint), None);
        }
        self.changes.rows.insert(row_key(map, row.id), None);
    }

    /// Discards the changes of this edit so far.
    pub(super) fn forget(&mut self) {
        self.changes = Changes::default();
    }

    pub(super) fn generation(&self) -> u64 {
        self.turn.pending.generation.unwrap_or(self.turn.generation)
    }

    /// Changes records under the next generation.
    pub(super) fn change_records(&mut self, changes: sealwire_store::Changes) -> Result<u64, StoreError> {
        let next = after("the embedded store", self.generation())?;
        self.changes.records.extend(changes);
        self.changes.generation = Some(next);
        Ok(next)
    }

    /// Replaces all records with those of `state`.
    pub(super) fn replace_records(&mut self, state: sealwire_store::Snapshot) -> Result<u64, StoreError> {
        let next = after("the embedded store", self.generation())?.max(state.generation);
        let there = self.turn.database.records(&self.turn.at)?;
        let gone = there.into_keys().chain(self.turn.pending.records.keys().cloned());
        self.changes.records.extend(gone.map(|key| (key, None)));
        self.changes.records.extend(state.records.into_iter().map(|(key, record)| (key, Some(record))));
        self.changes.generation = Some(next);
        Ok(next)
    }
}
