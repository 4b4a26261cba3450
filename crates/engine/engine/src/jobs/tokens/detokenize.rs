//! One field of `detokenize`: a token looked up, and opened.
//!
//! The first walk hashes every string that has the shape of the collection's tokens and copies the
//! document as it is. The second one goes over the same strings with the rows that the store gave.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use sealwire_msgpack::Token;
use sealwire_payload::{ExtraWork, Field, Outcome, Path, Transform};
use sealwire_records::token::{RowBuffer, SubjectKey, TokenContext, TokenKeys};
use sealwire_store::{FoundRow, MapId, SUBJECTS_COLLECTION, SubjectId, TokenId};

use super::{Bounds, Collection};
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::field_errors::{FieldErrors, FieldFault, FieldProblem};
use crate::jobs::masks::disclosure::Disclosure;

/// Bytes per token until the store has responded: its key, its positions, and the row without its
/// sealed part.
const ENTRY_BYTES: usize = 384;
/// Bytes of the opened key of a subject, with its place in the map.
const SUBJECT_BYTES: usize = 1_024;

/// The lookup of a `detokenize` request.
#[derive(Debug)]
pub struct DetokenizeSpec {
    /// Where.
    pub collection: Arc<Collection>,
    /// Context to which values must be bound.
    pub context: Box<[u8]>,
    /// Limits of the request.
    pub bounds: Bounds,
    /// Disclosure of values.
    pub shown: Disclosure,
}

impl DetokenizeSpec {
    /// Bytes to set aside for tokens of a document of so many fields.
    pub fn entry_bytes(&self, fields: usize) -> usize {
        fields
            .min(self.bounds.fields_max)
            .saturating_mul(ENTRY_BYTES)
    }
}

/// Replaces every token by its value, and keeps what has another shape.
#[derive(Debug)]
pub struct DetokenizeFields {
    looking: DetokenizeSpec,
    context: TokenContext,
    /// The context of rows. In a collection whose tokens are the same for all contexts, rows that
    /// an earlier version made are sealed under the context of their first request.
    scope: TokenContext,
    /// Of each string that may be a token, in the order of the document: its key.
    slots: Vec<u32>,
    /// The next string that may be one.
    at: usize,
    ids: Vec<TokenId>,
    by_id: HashMap<TokenId, u32>,
    /// The row of each key, as far as the store was asked.
    rows: Vec<Option<SealedRow>>,
    subjects: SubjectKeys,
    /// The rows are being used.
    answered: bool,
    buffer: RowBuffer,
    cancel: Arc<CancelToken>,
    /// Tokens that gave no value.
    pub faults: FieldErrors,
}

/// The parts of a row that opening it needs.
#[derive(Debug)]
struct SealedRow {
    sealed: Bytes,
    /// The subject that the row names, and the version of its key.
    subject: Option<(SubjectId, u64)>,
}

/// The keys of subjects by version, opened when they are needed.
#[derive(Debug, Default)]
struct SubjectKeys(HashMap<(SubjectId, u64), KeyOfSubject>);

#[derive(Debug)]
enum KeyOfSubject {
    Sealed(Bytes),
    Opened(Box<SubjectKey>),
    Unreadable,
}

impl SubjectKeys {
    /// Keeps a stored key. Returns the bytes that it takes.
    fn add(&mut self, subject: (SubjectId, u64), key: Bytes) -> usize {
        match self.0.entry(subject) {
            Entry::Occupied(_) => 0,
            Entry::Vacant(entry) => {
                let bytes = SUBJECT_BYTES + key.len();
                entry.insert(KeyOfSubject::Sealed(key));
                bytes
            }
        }
    }

    /// Returns the key of a row's subject, if the row names one.
    fn of(
        &mut self,
        row: &SealedRow,
        keys: &TokenKeys,
    ) -> Result<Option<&SubjectKey>, FieldProblem> {
        let Some((id, version)) = row.subject else {
            return Ok(None);
        };
        let key = self
            .0
            .get_mut(&(id, version))
            .ok_or(FieldProblem::CannotOpen)?;
        if let KeyOfSubject::Sealed(stored) = key {
            let opened = SubjectKey::open(keys, SUBJECTS_COLLECTION, id.0, version, stored);
            *key = opened.map_or(KeyOfSubject::Unreadable, |opened| {
                KeyOfSubject::Opened(Box::new(opened))
            });
        }
        match key {
            KeyOfSubject::Opened(key) => Ok(Some(key)),
            KeyOfSubject::Sealed(_) | KeyOfSubject::Unreadable => Err(FieldProblem::CannotOpen),
        }
    }
}

impl DetokenizeFields {
    /// Nothing done yet. Hashes the context: for a crypto thread.
    pub fn new(looking: DetokenizeSpec, cancel: Arc<CancelToken>, faults: FieldErrors) -> Self {
        Self {
            context: looking.collection.keys.context(&looking.context),
            scope: looking.collection.scope(&looking.context),
            looking,
            slots: Vec::new(),
            at: 0,
            ids: Vec::new(),
            by_id: HashMap::new(),
            rows: Vec::new(),
            subjects: SubjectKeys::default(),
            answered: false,
            buffer: RowBuffer::default(),
            cancel,
            faults,
        }
    }

    /// Returns true if the response waits for the store.
    pub fn asks(&self) -> bool {
        !self.answered && !self.ids.is_empty()
    }

    /// At most `most` keys that the store was not asked for yet.
    pub fn keys(&self, most: usize) -> Vec<(MapId, TokenId)> {
        let map = self.looking.collection.map;
        self.ids[self.rows.len()..]
            .iter()
            .take(most)
            .map(|id| (map, *id))
            .collect()
    }

    /// Takes the rows of these keys in, and gives the bytes they take.
    pub fn found(&mut self, rows: Vec<Option<FoundRow>>) -> usize {
        let mut bytes = 0;
        for found in rows {
            let sealed = found.map(|FoundRow { row, subject_key }| {
                let subject = row.claim();
                bytes += row.sealed.len();
                bytes += subject
                    .zip(subject_key)
                    .map_or(0, |(subject, key)| self.subjects.add(subject, key));
                SealedRow {
                    sealed: row.sealed,
                    subject,
                }
            });
            self.rows.push(sealed);
        }
        bytes
    }

    /// Tokens that the store has, and those that it has not.
    pub fn outcome(&self) -> (u64, u64) {
        let found = self.rows.iter().flatten().count();
        (found as u64, (self.rows.len() - found) as u64)
    }

    /// The most by which the values may make the document longer.
    pub fn value_bytes(&self) -> usize {
        let sealed = |key: &u32| {
            self.rows[*key as usize]
                .as_ref()
                .map_or(0, |row| row.sealed.len())
        };
        let bytes = self.slots.iter().map(sealed).fold(0, usize::saturating_add);
        bytes.saturating_add(self.looking.shown.growth(self.slots.len(), bytes))
    }

    /// Returns the work of masking so far.
    pub fn mask_work(&self) -> ExtraWork {
        self.looking.shown.work()
    }

    /// Values masked so far.
    pub fn masked(&self) -> u64 {
        self.looking.shown.masked()
    }

    /// Begins the next walk.
    pub fn restart(&mut self, faults: FieldErrors) {
        (self.at, self.answered, self.faults) = (0, true, faults);
    }

    /// Notes a token to be looked up.
    fn meet(&mut self, text: &str) -> Result<(), FieldFault> {
        if self.slots.len() >= self.looking.bounds.fields_max {
            return Err(FieldFault::TooManyFields(self.looking.bounds.fields_max));
        }
        let Collection { keys, map, .. } = &*self.looking.collection;
        let id = TokenId(keys.id(map.collection, text));
        let next = u32::try_from(self.ids.len()).map_err(|_| FieldFault::Library)?;
        let key = *self.by_id.entry(id).or_insert(next);
        if key == next {
            self.ids.push(id);
        }
        self.slots.push(key);
        Ok(())
    }

    /// Writes the value of a token.
    fn reveal(&mut self, key: usize, out: &mut Vec<u8>) -> Result<(), FieldFault> {
        let Collection { keys, map, .. } = &*self.looking.collection;
        let Some(Some(row)) = self.rows.get(key) else {
            return Err(FieldProblem::NoToken.into());
        };
        let subject = self.subjects.of(row, keys)?;
        let opened = keys.open(
            map.collection,
            &self.ids[key].0,
            subject,
            &row.sealed,
            &mut self.buffer,
        );
        let opened = opened.map_err(|_| FieldProblem::CannotOpen)?;
        // Under another context it is as good as absent: that it is there is nothing for who cannot
        // have it.
        let value = opened
            .value(&self.scope)
            .or_else(|_| opened.value(&self.context));
        let value = value.map_err(|_| FieldProblem::NoToken)?;
        self.cancel
            .note_subjects(subject.map(|subject| *subject.id()));
        let (datatype, value) = value.ok_or(FieldProblem::OneWay)?;
        self.looking.shown.write(datatype, value, out);
        Ok(())
    }
}

impl Transform for DetokenizeFields {
    type Error = FieldFault;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFault::Stopped(reason));
        }
        let Token::Str(text) = field.token else {
            return Ok(Outcome::Keep);
        };
        // The walk has checked it.
        let Ok(text) = std::str::from_utf8(text) else {
            return Ok(Outcome::Keep);
        };
        if !self.looking.collection.format.has_shape(text) {
            return Ok(Outcome::Keep);
        }
        if !self.answered {
            self.meet(text)?;
            return Ok(Outcome::Keep);
        }
        let key = self
            .slots
            .get(self.at)
            .copied()
            .ok_or(FieldFault::Library)?;
        self.at += 1;
        self.reveal(key as usize, out)?;
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.faults.decide(path, fault)
    }
}
