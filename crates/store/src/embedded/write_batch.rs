//! One turn of the writer: changes of several calls, seen by each other, that become durable together.
//!
//! Each call makes an [`Edit`], which counts as a whole or not at all.

use std::collections::{BTreeMap, HashMap};

use fjall::Snapshot;

use super::database::{Database, GENERATION_KEY, Key, fingerprint_key, record_key, row_key};
use super::row;
use crate::control::after;
use crate::tokens::{Fingerprint, MapId, Row, TokenId};
use crate::{StoreError, control as state};

/// What one turn takes before it commits: bounds the memory of a turn and the wait of the first in it.
const TURN_ROWS_MAX: usize = 8_192;
const TURN_BYTES_MAX: usize = 8 << 20;

/// By key, what is put there; `None`: it is removed.
#[derive(Default)]
struct Changes {
    rows: HashMap<Key, Option<Row>>,
    holders: HashMap<Key, Option<TokenId>>,
    records: BTreeMap<String, Option<Vec<u8>>>,
    generation: Option<u64>,
}

/// See the module.
pub(super) struct Turn<'a> {
    database: &'a Database,
    at: Snapshot,
    /// Of what is durable.
    generation: u64,
    pending: Changes,
    bytes: usize,
}

impl<'a> Turn<'a> {
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

    /// Lets `change` edit. Of an edit that fails, or that drops what it changed, nothing remains.
    pub(super) fn edit<T>(
        &mut self,
        change: impl FnOnce(&mut Edit<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut edit = Edit { turn: self, changes: Changes::default() };
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

    /// Makes all of it durable, then visible. Gives the generation after it.
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

/// The fingerprint that leads to a row.
pub(super) fn indexed(row: &Row) -> Option<Fingerprint> {
    row.fingerprint.filter(|_| row.archived.is_none())
}

/// The changes of one call, over those of the turn, over the database.
pub(super) struct Edit<'a> {
    turn: &'a Turn<'a>,
    changes: Changes,
}

impl Edit<'_> {
    pub(super) fn row(&self, map: MapId, id: TokenId) -> Result<Option<Row>, StoreError> {
        let key = row_key(map, id);
        match self.changes.rows.get(&key).or_else(|| self.turn.pending.rows.get(&key)) {
            Some(changed) => Ok(changed.clone()),
            None => self.turn.database.row(&self.turn.at, &key),
        }
    }

    /// The row that has a fingerprint, live or expired.
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

    /// Puts a row over what has its id; `old` is what is there.
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

    /// Takes back what this edit has changed so far.
    pub(super) fn forget(&mut self) {
        self.changes = Changes::default();
    }

    pub(super) fn generation(&self) -> u64 {
        self.turn.pending.generation.unwrap_or(self.turn.generation)
    }

    /// Changes one record under the next generation.
    pub(super) fn change_record(&mut self, key: &str, record: Option<&[u8]>) -> Result<u64, StoreError> {
        let next = after("the embedded store", self.generation())?;
        self.changes.records.insert(key.to_owned(), record.map(<[u8]>::to_vec));
        self.changes.generation = Some(next);
        Ok(next)
    }

    /// Puts `state` in the place of all records.
    pub(super) fn replace_records(&mut self, state: state::Snapshot) -> Result<u64, StoreError> {
        let next = after("the embedded store", self.generation())?.max(state.generation);
        let there = self.turn.database.records(&self.turn.at)?;
        let gone = there.into_keys().chain(self.turn.pending.records.keys().cloned());
        self.changes.records.extend(gone.map(|key| (key, None)));
        self.changes.records.extend(state.records.into_iter().map(|(key, record)| (key, Some(record))));
        self.changes.generation = Some(next);
        Ok(next)
    }
}
