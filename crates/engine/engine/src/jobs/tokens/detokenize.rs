//! The fields of `detokenize`: looks up each token and opens its row.
//!
//! The first walk hashes every string that has the shape of the collection's tokens, and copies the
//! document unchanged. The second walk visits the same strings with the rows from the store.

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
use crate::jobs::field_errors::{FieldErrors, FieldFailure, FieldProblem};
use crate::jobs::item_contexts::{ItemContexts, ItemStep};
use crate::jobs::masks::disclosure::Disclosure;

/// Bytes per token until the store has responded: its key, its positions, and the row without its
/// sealed part.
const ENTRY_BYTES: usize = 384;
/// Bytes of the opened key of a subject, with its entry in the map.
const SUBJECT_BYTES: usize = 1_024;

/// The lookup of a `detokenize` request.
#[derive(Debug)]
pub struct DetokenizeSpec {
    /// Collection of the tokens.
    pub collection: Arc<Collection>,
    /// Context to which values must be bound.
    pub context: Box<[u8]>,
    /// Limits of the request.
    pub bounds: Bounds,
    /// Disclosure of values.
    pub disclosure: Disclosure,
}

impl DetokenizeSpec {
    /// Returns the bytes to reserve for the tokens of a document with `fields` fields.
    pub fn entry_bytes(&self, fields: usize) -> usize {
        fields
            .min(self.bounds.fields_max)
            .saturating_mul(ENTRY_BYTES)
    }
}

/// Replaces every token by its value, and keeps strings without the shape of a token.
#[derive(Debug)]
pub struct DetokenizeFields {
    spec: DetokenizeSpec,
    /// The contexts of the document's items, if each has its own.
    contexts: Option<Box<ItemContexts>>,
    context: TokenContext,
    /// The context of rows. In a collection whose tokens are the same for all contexts, rows that
    /// an earlier version made are sealed under the context of their first request.
    scope: TokenContext,
    /// Index into `ids` of each string with the shape of a token, in the order of the document.
    slots: Vec<u32>,
    /// Position of the next such string.
    at: usize,
    ids: Vec<TokenId>,
    by_id: HashMap<TokenId, u32>,
    /// Row of each id that was looked up so far.
    rows: Vec<Option<SealedRow>>,
    subjects: SubjectKeys,
    /// True in the second walk, when all rows are there.
    has_rows: bool,
    buffer: RowBuffer,
    cancel: Arc<CancelToken>,
    /// Errors of tokens without a value.
    pub field_errors: FieldErrors,
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
    /// Creates the operation. It must run on a crypto thread, because it hashes the context.
    pub fn new(spec: DetokenizeSpec, cancel: Arc<CancelToken>, field_errors: FieldErrors) -> Self {
        Self {
            context: spec.collection.keys.context(&spec.context),
            scope: spec.collection.scope(&spec.context),
            contexts: None,
            spec,
            slots: Vec::new(),
            at: 0,
            ids: Vec::new(),
            by_id: HashMap::new(),
            rows: Vec::new(),
            subjects: SubjectKeys::default(),
            has_rows: false,
            buffer: RowBuffer::default(),
            cancel,
            field_errors,
        }
    }

    /// Adds the contexts of the document's items.
    #[must_use]
    pub fn with_contexts(self, contexts: Option<Box<ItemContexts>>) -> Self {
        Self { contexts, ..self }
    }

    /// Returns the work of hashing the contexts of items so far.
    pub fn context_work(&self) -> ExtraWork {
        let contexts = self.contexts.as_deref();
        contexts.map_or(ExtraWork::default(), ItemContexts::work_of_items)
    }

    /// Prepares the context of a token's item. Returns true if the token is the context.
    fn enter(&mut self, field: &Field<'_>) -> Result<bool, FieldProblem> {
        let Some(contexts) = &mut self.contexts else {
            return Ok(false);
        };
        let step = contexts.enter(field)?;
        if step == ItemStep::Changed {
            self.context = self.spec.collection.keys.context(contexts.context());
            self.scope = self.spec.collection.scope(contexts.context());
        }
        Ok(step == ItemStep::Source)
    }

    /// Returns true if the response waits for the store.
    pub fn needs_store(&self) -> bool {
        !self.has_rows && !self.ids.is_empty()
    }

    /// Returns at most `most` keys that were not looked up yet.
    pub fn next_keys(&self, most: usize) -> Vec<(MapId, TokenId)> {
        let map = self.spec.collection.map;
        self.ids[self.rows.len()..]
            .iter()
            .take(most)
            .map(|id| (map, *id))
            .collect()
    }

    /// Adds the rows of the keys that [`Self::next_keys`] returned. Returns the bytes of the rows.
    pub fn add_rows(&mut self, rows: Vec<Option<FoundRow>>) -> usize {
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

    /// Returns the number of tokens that the store has, and of those that it does not have.
    pub fn found_and_missing(&self) -> (u64, u64) {
        let found = self.rows.iter().flatten().count();
        (found as u64, (self.rows.len() - found) as u64)
    }

    /// Returns an upper bound of the bytes that the values add to the document.
    pub fn value_bytes(&self) -> usize {
        let bytes = self
            .slots
            .iter()
            .filter_map(|key| self.rows[*key as usize].as_ref())
            .map(|row| row.sealed.len())
            .fold(0, usize::saturating_add);
        bytes.saturating_add(self.spec.disclosure.growth(self.slots.len(), bytes))
    }

    /// Returns the work of masking so far.
    pub fn mask_work(&self) -> ExtraWork {
        self.spec.disclosure.work()
    }

    /// Returns the number of values masked so far.
    pub fn masked(&self) -> u64 {
        self.spec.disclosure.masked()
    }

    /// Starts the second walk.
    pub fn restart(&mut self, field_errors: FieldErrors) {
        self.at = 0;
        self.has_rows = true;
        self.field_errors = field_errors;
        if let Some(contexts) = &mut self.contexts {
            contexts.restart();
        }
    }

    /// Records a token to be looked up.
    fn add_token(&mut self, text: &str) -> Result<(), FieldFailure> {
        if self.slots.len() >= self.spec.bounds.fields_max {
            return Err(FieldFailure::TooManyFields(self.spec.bounds.fields_max));
        }
        let Collection { keys, map, .. } = &*self.spec.collection;
        let id = TokenId(keys.id(map.collection, text));
        let next = u32::try_from(self.ids.len()).map_err(|_| FieldFailure::Library)?;
        let key = *self.by_id.entry(id).or_insert(next);
        if key == next {
            self.ids.push(id);
        }
        self.slots.push(key);
        Ok(())
    }

    /// Writes the value of a token.
    fn write_value(&mut self, key: usize, out: &mut Vec<u8>) -> Result<(), FieldFailure> {
        let Collection { keys, map, .. } = &*self.spec.collection;
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
        // A token under another context must look like a missing token: a client that cannot read
        // its value must not learn that the token exists.
        let value = opened
            .value(&self.scope)
            .or_else(|_| opened.value(&self.context));
        let value = value.map_err(|_| FieldProblem::NoToken)?;
        self.cancel
            .note_subjects(subject.map(|subject| *subject.id()));
        let (datatype, value) = value.ok_or(FieldProblem::OneWay)?;
        self.spec.disclosure.write(datatype, value, out);
        Ok(())
    }
}

impl Transform for DetokenizeFields {
    type Error = FieldFailure;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFailure::Stopped(reason));
        }

        let Token::Str(text) = field.token else {
            return Ok(Outcome::Keep);
        };
        // The walk has checked the encoding already.
        let Ok(text) = std::str::from_utf8(text) else {
            return Ok(Outcome::Keep);
        };

        if !self.spec.collection.format.has_shape(text) || self.enter(&field)? {
            return Ok(Outcome::Keep);
        }
        if !self.has_rows {
            self.add_token(text)?;
            return Ok(Outcome::Keep);
        }

        let key = self
            .slots
            .get(self.at)
            .copied()
            .ok_or(FieldFailure::Library)?;
        self.at += 1;
        self.write_value(key as usize, out)?;
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        self.field_errors.handle(path, failure)
    }
}
