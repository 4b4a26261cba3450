//! A write batch of the writer. Contains the changes of several requests, which become durable
//! together. Each request sees the changes of earlier requests.
//!
//! Each request makes a [`RequestEdit`], which takes effect completely or not at all.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fjall::{Keyspace, OwnedWriteBatch, Snapshot, UserKey, UserValue};

use super::database::{Database, GENERATION_KEY};
use super::keys::{
    Key, PostingKey, SubjectEntryKey, TermKey, fence_key, fingerprint_key, object_key, posting_key,
    record_key, row_key, subject_key, term_key,
};
use super::{object_row, row};
use sealwire_store::{
    Fingerprint, MapId, ObjectChanges, ObjectId, ObjectRow, Row, StoreError, Term, TokenId, after,
};

/// Size at which a batch is committed: rows, objects and terms, and their bytes. The limits bound a
/// batch's memory and the wait of its first request.
const BATCH_ROWS_MAX: usize = 8_192;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Estimated bytes of the change of a term.
const TERM_BYTES: usize = 64;

/// New values by key; `None` means that the key is removed.
#[derive(Default)]
struct Changes {
    rows: HashMap<Key, Option<Row>>,
    holders: HashMap<Key, Option<TokenId>>,
    /// Rows that name a subject. The value is `Some` if the key is present.
    token_subjects: HashMap<SubjectEntryKey, Option<()>>,
    objects: HashMap<Key, Option<ObjectRow>>,
    /// Objects that hold unique terms.
    unique: HashMap<TermKey, Option<ObjectId>>,
    /// Non-unique terms of objects. The value is `Some` if the key is present.
    terms: HashMap<PostingKey, Option<()>>,
    /// Objects that name a subject. The value is `Some` if the key is present.
    subjects: HashMap<SubjectEntryKey, Option<()>>,
    fences: BTreeMap<MapId, u64>,
    records: BTreeMap<String, Option<Vec<u8>>>,
    generation: Option<u64>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        let Self {
            rows,
            holders,
            token_subjects,
            objects,
            unique,
            terms,
            subjects,
            fences,
            records,
            generation,
        } = self;
        rows.is_empty()
            && holders.is_empty()
            && token_subjects.is_empty()
            && objects.is_empty()
            && unique.is_empty()
            && terms.is_empty()
            && subjects.is_empty()
            && fences.is_empty()
            && records.is_empty()
            && generation.is_none()
    }

    /// Returns the number of changed rows, objects and terms.
    fn count(&self) -> usize {
        let entries =
            self.unique.len() + self.terms.len() + self.subjects.len() + self.token_subjects.len();
        self.rows.len() + self.objects.len() + entries
    }

    fn bytes(&self) -> usize {
        self.rows.values().flatten().map(Row::bytes).sum::<usize>()
            + self
                .objects
                .values()
                .flatten()
                .map(ObjectRow::bytes)
                .sum::<usize>()
            + self.records.values().flatten().map(Vec::len).sum::<usize>()
            + TERM_BYTES
                * (self.unique.len()
                    + self.terms.len()
                    + self.subjects.len()
                    + self.token_subjects.len())
    }

    /// Adds changes that were made on top of these.
    fn extend(&mut self, later: Self) {
        self.rows.extend(later.rows);
        self.holders.extend(later.holders);
        self.token_subjects.extend(later.token_subjects);
        self.objects.extend(later.objects);
        self.unique.extend(later.unique);
        self.terms.extend(later.terms);
        self.subjects.extend(later.subjects);
        self.fences.extend(later.fences);
        self.records.extend(later.records);
        self.generation = later.generation.or(self.generation);
    }
}

/// Adds changes of a keyspace to a batch of the database.
fn add_to_batch<K: Into<UserKey>, V: Into<UserValue>>(
    batch: &mut OwnedWriteBatch,
    keyspace: &Keyspace,
    changes: impl Iterator<Item = (K, Option<V>)>,
) {
    for (key, value) in changes {
        match value {
            Some(value) => batch.insert(keyspace, key, value),
            None => batch.remove(keyspace, key),
        }
    }
}

/// A write batch; see the module documentation.
pub(super) struct WriteBatch<'a> {
    database: &'a Database,
    at: Snapshot,
    /// The generation that is durable.
    generation: u64,
    pending: Changes,
    bytes: usize,
}

impl<'a> WriteBatch<'a> {
    pub(super) fn new(database: &'a Database, generation: u64) -> Self {
        Self {
            database,
            at: database.snapshot(),
            generation,
            pending: Changes::default(),
            bytes: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.pending.count() < BATCH_ROWS_MAX && self.bytes < BATCH_BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Runs `change` on an edit. A failed edit, or an edit that discards its changes, changes
    /// nothing.
    pub(super) fn edit<T>(
        &mut self,
        change: impl FnOnce(&mut RequestEdit<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut edit = RequestEdit {
            batch: self,
            changes: Changes::default(),
        };
        let result = change(&mut edit)?;
        let changes = edit.changes;
        self.bytes += changes.bytes();
        self.pending.extend(changes);
        Ok(result)
    }

    /// Makes all changes durable and then visible. Returns the new generation.
    pub(super) fn commit(self) -> Result<u64, StoreError> {
        let database = self.database;
        let mut batch = self.database.start_batch();
        let Changes {
            rows,
            holders,
            token_subjects,
            objects,
            unique,
            terms,
            subjects,
            fences,
            records,
            generation,
        } = self.pending;
        let rows = rows
            .into_iter()
            .map(|(key, row)| (key, row.map(|row| row::encode(&row))));
        add_to_batch(&mut batch, &database.rows, rows);
        add_to_batch(
            &mut batch,
            &database.fingerprints,
            holders
                .into_iter()
                .map(|(key, id)| (key, id.map(|id| id.0))),
        );
        add_to_batch(
            &mut batch,
            &database.token_subjects,
            token_subjects
                .into_iter()
                .map(|(key, held)| (key, held.map(|()| []))),
        );
        let objects = objects
            .into_iter()
            .map(|(key, row)| (key, row.map(|row| object_row::encode(&row))));
        add_to_batch(&mut batch, &database.objects, objects);
        add_to_batch(
            &mut batch,
            &database.object_unique,
            unique.into_iter().map(|(key, id)| (key, id.map(|id| id.0))),
        );
        add_to_batch(
            &mut batch,
            &database.object_terms,
            terms
                .into_iter()
                .map(|(key, held)| (key, held.map(|()| []))),
        );
        add_to_batch(
            &mut batch,
            &database.object_subjects,
            subjects
                .into_iter()
                .map(|(key, held)| (key, held.map(|()| []))),
        );
        let fences = fences
            .into_iter()
            .map(|(map, generation)| (fence_key(map), Some(generation.to_be_bytes())));
        add_to_batch(&mut batch, &database.facts, fences);
        add_to_batch(
            &mut batch,
            &database.records,
            records
                .into_iter()
                .map(|(key, record)| (record_key(&key), record)),
        );
        let facts = generation.map(|generation| (GENERATION_KEY, Some(generation.to_be_bytes())));
        add_to_batch(&mut batch, &database.facts, facts.into_iter());
        batch
            .commit()
            .map_err(|error| database.database_error(error))?;
        Ok(generation.unwrap_or(self.generation))
    }
}

/// Returns the fingerprint under which the row is indexed.
pub(super) fn indexed_fingerprint(row: &Row) -> Option<Fingerprint> {
    row.fingerprint.filter(|_| row.archived.is_none())
}

/// The changes of one request, on top of the batch's changes, on top of the database.
pub(super) struct RequestEdit<'a> {
    batch: &'a WriteBatch<'a>,
    changes: Changes,
}

impl RequestEdit<'_> {
    pub(super) fn row(&self, map: MapId, id: TokenId) -> Result<Option<Row>, StoreError> {
        let key = row_key(map, id);
        match self
            .changes
            .rows
            .get(&key)
            .or_else(|| self.batch.pending.rows.get(&key))
        {
            Some(changed) => Ok(changed.clone()),
            None => self.batch.database.find_row(&self.batch.at, &key),
        }
    }

    /// Returns the live or expired row that has the fingerprint.
    pub(super) fn fingerprint_holder(
        &self,
        map: MapId,
        fingerprint: Fingerprint,
    ) -> Result<Option<Row>, StoreError> {
        let Some(id) = self.holder_id(map, fingerprint)? else {
            return Ok(None);
        };
        let row = self.row(map, id)?;
        row.map(Some).ok_or_else(|| {
            self.batch
                .database
                .damage("the index of fingerprints contains a missing row")
        })
    }

    fn holder_id(
        &self,
        map: MapId,
        fingerprint: Fingerprint,
    ) -> Result<Option<TokenId>, StoreError> {
        let key = fingerprint_key(map, fingerprint);
        match self
            .changes
            .holders
            .get(&key)
            .or_else(|| self.batch.pending.holders.get(&key))
        {
            Some(changed) => Ok(*changed),
            None => self.batch.database.fingerprint_holder(&self.batch.at, &key),
        }
    }

    /// Writes a row; `old` is the existing row with this id.
    pub(super) fn put_row(&mut self, map: MapId, old: Option<&Row>, row: Row) {
        if let Some(fingerprint) = old
            .and_then(indexed_fingerprint)
            .filter(|old| indexed_fingerprint(&row) != Some(*old))
        {
            self.changes
                .holders
                .insert(fingerprint_key(map, fingerprint), None);
        }
        if let Some(fingerprint) = indexed_fingerprint(&row) {
            self.changes
                .holders
                .insert(fingerprint_key(map, fingerprint), Some(row.id));
        }

        if let Some(subject) = old
            .and_then(|old| old.subject)
            .filter(|subject| row.subject != Some(*subject))
        {
            self.changes
                .token_subjects
                .insert(subject_key(map, subject, row.id.0), None);
        }
        if let Some(subject) = row
            .subject
            .filter(|subject| old.and_then(|old| old.subject) != Some(*subject))
        {
            self.changes
                .token_subjects
                .insert(subject_key(map, subject, row.id.0), Some(()));
        }
        self.changes.rows.insert(row_key(map, row.id), Some(row));
    }

    pub(super) fn remove_row(&mut self, map: MapId, row: &Row) {
        if let Some(fingerprint) = indexed_fingerprint(row) {
            self.changes
                .holders
                .insert(fingerprint_key(map, fingerprint), None);
        }
        self.changes.token_subjects.extend(
            row.subject
                .map(|subject| (subject_key(map, subject, row.id.0), None)),
        );
        self.changes.rows.insert(row_key(map, row.id), None);
    }

    /// Discards the changes of this edit so far.
    pub(super) fn discard_changes(&mut self) {
        self.changes = Changes::default();
    }

    /// Returns the fence of a map, if the map has one.
    pub(super) fn fence(&self, map: MapId) -> Result<Option<u64>, StoreError> {
        match self
            .changes
            .fences
            .get(&map)
            .or_else(|| self.batch.pending.fences.get(&map))
        {
            Some(fence) => Ok(Some(*fence)),
            None => self.batch.database.fence(&self.batch.at, map),
        }
    }

    /// Raises the fence of a map, unless it is higher.
    pub(super) fn raise_fence(&mut self, map: MapId, generation: u64) -> Result<(), StoreError> {
        if self.fence(map)?.is_none_or(|fence| fence < generation) {
            self.changes.fences.insert(map, generation);
        }
        Ok(())
    }

    pub(super) fn generation(&self) -> u64 {
        self.batch
            .pending
            .generation
            .unwrap_or(self.batch.generation)
    }

    /// Changes records under the next generation.
    pub(super) fn change_records(
        &mut self,
        changes: sealwire_store::Changes,
    ) -> Result<u64, StoreError> {
        let next = after("the embedded store", self.generation())?;
        self.changes.records.extend(changes);
        self.changes.generation = Some(next);
        Ok(next)
    }

    /// Replaces all records with the records of `state`.
    pub(super) fn replace_records(
        &mut self,
        state: sealwire_store::Snapshot,
    ) -> Result<u64, StoreError> {
        let next = after("the embedded store", self.generation())?.max(state.generation);
        let stored = self.batch.database.records(&self.batch.at)?;
        let removed = stored
            .into_keys()
            .chain(self.batch.pending.records.keys().cloned());
        self.changes.records.extend(removed.map(|key| (key, None)));
        self.changes.records.extend(
            state
                .records
                .into_iter()
                .map(|(key, record)| (key, Some(record))),
        );
        self.changes.generation = Some(next);
        Ok(next)
    }
}

impl ObjectChanges for RequestEdit<'_> {
    fn object(&self, map: MapId, id: ObjectId) -> Result<Option<ObjectRow>, StoreError> {
        let key = object_key(map, id);
        match self
            .changes
            .objects
            .get(&key)
            .or_else(|| self.batch.pending.objects.get(&key))
        {
            Some(changed) => Ok(changed.clone()),
            None => self.batch.database.find_object(&self.batch.at, &key),
        }
    }

    fn holder(&self, map: MapId, term: Term) -> Result<Option<ObjectRow>, StoreError> {
        let key = term_key(map, term);
        let id = match self
            .changes
            .unique
            .get(&key)
            .or_else(|| self.batch.pending.unique.get(&key))
        {
            Some(changed) => *changed,
            None => self.batch.database.unique_holder(&self.batch.at, &key)?,
        };
        let Some(id) = id else { return Ok(None) };
        let row = self.object(map, id)?;
        row.map(Some).ok_or_else(|| {
            self.batch
                .database
                .damage("the index of unique terms contains a missing object")
        })
    }

    fn put_object(&mut self, map: MapId, old: Option<&ObjectRow>, new: ObjectRow) {
        let (old_unique, old_terms) =
            old.map_or((&[][..], &[][..]), |old| (&old.unique, &old.terms));
        let (freed, taken) = differences(old_unique, &new.unique);
        self.changes
            .unique
            .extend(freed.map(|term| (term_key(map, term), None)));
        self.changes
            .unique
            .extend(taken.map(|term| (term_key(map, term), Some(new.id))));
        let (freed, taken) = differences(old_terms, &new.terms);
        self.changes
            .terms
            .extend(freed.map(|term| (posting_key(map, term, new.id), None)));
        self.changes
            .terms
            .extend(taken.map(|term| (posting_key(map, term, new.id), Some(()))));
        if let Some(subject) = old
            .and_then(|old| old.subject)
            .filter(|subject| new.subject != Some(*subject))
        {
            self.changes
                .subjects
                .insert(subject_key(map, subject, new.id.0), None);
        }
        if let Some(subject) = new
            .subject
            .filter(|subject| old.and_then(|old| old.subject) != Some(*subject))
        {
            self.changes
                .subjects
                .insert(subject_key(map, subject, new.id.0), Some(()));
        }
        self.changes
            .objects
            .insert(object_key(map, new.id), Some(new));
    }

    fn remove_object(&mut self, map: MapId, old: &ObjectRow) {
        self.changes
            .unique
            .extend(old.unique.iter().map(|term| (term_key(map, *term), None)));
        self.changes.terms.extend(
            old.terms
                .iter()
                .map(|term| (posting_key(map, *term, old.id), None)),
        );
        self.changes.subjects.extend(
            old.subject
                .map(|subject| (subject_key(map, subject, old.id.0), None)),
        );
        self.changes.objects.insert(object_key(map, old.id), None);
    }
}

/// Returns the terms that only the old object holds, and the terms that only the new object holds.
fn differences(
    old: &[Term],
    new: &[Term],
) -> (impl Iterator<Item = Term>, impl Iterator<Item = Term>) {
    let old: BTreeSet<Term> = old.iter().copied().collect();
    let new: BTreeSet<Term> = new.iter().copied().collect();
    let freed: Vec<_> = old.difference(&new).copied().collect();
    let taken: Vec<_> = new.difference(&old).copied().collect();
    (freed.into_iter(), taken.into_iter())
}
