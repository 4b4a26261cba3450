//! The fields of `tokenize`: makes a token for each field, or uses the existing token.
//!
//! The first walk makes a token for each field, seals the row and writes the token into the
//! response, on the assumption that the store will accept all rows. A later walk visits the same
//! fields and changes only the tokens for which the store's response requires it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sealwire_access::Principal;
use sealwire_crypto::Datatype;
use sealwire_msgpack::write;
use sealwire_payload::{ExtraWork, Field, Outcome, Path, Transform};
use sealwire_records::token::{
    NewToken, RowBuffer, SubjectKey, TokenContext, TokenPrincipal, Unfit,
};
use sealwire_store::SubjectId;
use sealwire_store::{Fingerprint, Group, Row, TokenId, Written};

use super::{Bounds, Canonical, Collection, CollectionKind, canonical, value_of};
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFailure, FieldProblem};
use crate::jobs::item_contexts::{ItemContexts, ItemStep};

/// Maximum number of writes of a group if some of its tokens are already in use.
const TRIES_MAX: u32 = 16;
/// Maximum number of draws of a token that differs from the other tokens of the request. All draws
/// cost no more than sealing a few rows.
const DRAWS_MAX: u32 = 256;
/// Longest token of a format whose tokens may be longer than their values, with its MessagePack
/// header.
pub const TOKEN_BYTES: usize = 48;
/// Bytes per entry besides its value and tags: three copies of its row (here, in the request to the
/// store and in the response of the store), its token and its positions.
const ENTRY_BYTES: usize = 1_024;
/// Bytes of a tag besides its text.
const TAG_BYTES: usize = 48;

/// An idempotency key, bound to the client that sent it: the same key of two principals is two
/// keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey {
    /// The full name of the client with its kind.
    pub principal: Box<str>,
    /// The key, as the client gave it.
    pub key: Box<[u8]>,
}

impl IdempotencyKey {
    /// Binds a key to the principal of its request.
    pub fn new(principal: &Principal, key: &[u8]) -> Self {
        Self {
            principal: principal.to_text().into(),
            key: key.into(),
        }
    }
}

/// The parameters of new tokens of a request.
#[derive(Debug)]
pub struct TokenizeSpec {
    /// Collection of the new tokens.
    pub collection: Arc<Collection>,
    /// Context to which values are bound.
    pub context: Box<[u8]>,
    /// Tags of new tokens, sorted, without doubles.
    pub tags: Vec<String>,
    /// Time at which new tokens expire, in seconds since 1970.
    pub expires: Option<u64>,
    /// Creation time of new tokens, in seconds since 1970.
    pub created: u64,
    /// Key that makes the tokens of a repeated request the same. Unused if equal values have equal
    /// tokens anyway.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Key of the document's data subject; absent if the request names no subject. The key must be
    /// set before the first walk.
    pub subject: Option<Arc<OnceLock<SubjectKey>>>,
    /// Limits of the request.
    pub bounds: Bounds,
}

impl TokenizeSpec {
    fn subject(&self) -> Option<&SubjectKey> {
        self.subject.as_ref()?.get()
    }

    /// Returns the scope in which rows under a context are found: the context, or the subject's
    /// scope under the context.
    fn scope_of(&self, context: TokenContext) -> TokenContext {
        self.subject().map_or(context, |subject| {
            self.collection
                .keys
                .subject_scope(&context, subject.id(), subject.version())
        })
    }

    /// Returns the bytes to reserve for the rows of `fields` fields and the values of a message.
    pub fn entry_bytes(&self, fields: usize, message_bytes: usize) -> usize {
        let tags: usize = self.tags.iter().map(|tag| tag.len() + TAG_BYTES).sum();
        // Tags and values are in the row here, and in its copy in the request to the store.
        let each = ENTRY_BYTES + 2 * tags;
        fields
            .min(self.bounds.fields_max)
            .saturating_mul(each)
            .saturating_add(message_bytes.saturating_mul(2))
    }
}

/// Replaces every field by a token.
#[derive(Debug)]
pub struct TokenizeFields {
    spec: TokenizeSpec,
    /// The contexts of the document's items, if each has its own.
    contexts: Option<Box<ItemContexts>>,
    /// The context under which rows are sealed.
    context: TokenContext,
    /// The scope in which rows are found: the context, or a subject's scope under the context.
    scope: TokenContext,
    /// The client, if the request has an idempotency key.
    principal: Option<TokenPrincipal>,
    /// Result of each field, in the order of the document.
    slots: Vec<Slot>,
    /// Position of the next field.
    at: usize,
    entries: Vec<TokenEntry>,
    /// Row of each entry.
    rows: Vec<Row>,
    by_fingerprint: HashMap<Fingerprint, u32>,
    /// Tokens that this request drew, used or not.
    drawn: HashSet<TokenId>,
    tries: u32,
    /// True once the store has accepted the rows.
    settled: bool,
    text: String,
    buffer: RowBuffer,
    cancel: Arc<CancelToken>,
    /// Number of rows that the store found for a value but that contain another value.
    pub mismatched: u64,
    /// Errors of fields without a token.
    pub field_errors: FieldErrors,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    TokenEntry(u32),
    Problem(FieldProblem),
}

#[derive(Debug)]
struct TokenEntry {
    token: Box<str>,
    state: EntryState,
    /// True if the store's row contains another value, and was counted.
    is_mismatched: bool,
}

#[derive(Debug)]
enum EntryState {
    /// The token was made. It is final if the store accepts its row.
    Made,
    /// The token is already in use, so another one must be made.
    Taken,
    /// The store had this row for the value already.
    Existing(Row),
}

impl TokenizeFields {
    /// Creates the operation. It must run on a crypto thread, because it hashes the context.
    pub fn new(spec: TokenizeSpec, cancel: Arc<CancelToken>, field_errors: FieldErrors) -> Self {
        let context = spec.collection.scope(&spec.context);
        let scope = spec.scope_of(context);
        let principal = spec
            .idempotency_key
            .as_ref()
            .map(|key| spec.collection.keys.principal(&key.principal));
        Self {
            contexts: None,
            context,
            scope,
            principal,
            spec,
            slots: Vec::new(),
            at: 0,
            entries: Vec::new(),
            rows: Vec::new(),
            by_fingerprint: HashMap::new(),
            drawn: HashSet::new(),
            tries: 0,
            settled: false,
            text: String::new(),
            buffer: RowBuffer::default(),
            cancel,
            mismatched: 0,
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

    /// Prepares the context of a field's item. Returns true if the field is the context.
    fn enter(&mut self, field: &Field<'_>) -> Result<bool, FieldProblem> {
        let Some(contexts) = &mut self.contexts else {
            return Ok(false);
        };
        let step = contexts.enter(field)?;
        if step == ItemStep::Changed {
            self.context = self.spec.collection.scope(contexts.context());
            self.scope = self.spec.scope_of(self.context);
        }
        Ok(step == ItemStep::Source)
    }

    /// Returns true if the response waits for the store.
    pub fn needs_store(&self) -> bool {
        !self.settled && !self.entries.is_empty()
    }

    /// Returns the rows to write.
    pub fn group(&self) -> Group {
        Group {
            map: self.spec.collection.map,
            rows: self.rows.clone(),
        }
    }

    /// Applies the result of the write. Returns true if the document must be walked again.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Exhausted`] if tokens were already in use at every try;
    /// [`RequestFailure::SubjectsChanged`] if the data subject was erased.
    pub fn apply_written(&mut self, written: Written) -> Result<bool, RequestFailure> {
        let changed = match written {
            Written::Done(existing) => {
                self.settled = true;
                let mut changed = false;
                for (entry, row) in self.entries.iter_mut().zip(existing) {
                    if let Some(row) = row {
                        entry.state = EntryState::Existing(row);
                        changed = true;
                    }
                }
                changed
            }
            Written::Taken(positions) => {
                self.tries += 1;
                if self.tries == TRIES_MAX {
                    return Err(RequestFailure::Exhausted);
                }
                for position in positions {
                    if let Some(entry) = self.entries.get_mut(position) {
                        entry.state = EntryState::Taken;
                    }
                }
                true
            }
            Written::SubjectsChanged => return Err(RequestFailure::SubjectsChanged),
        };
        Ok(changed)
    }

    /// Starts the next walk.
    pub fn restart(&mut self, field_errors: FieldErrors) {
        self.at = 0;
        self.field_errors = field_errors;
        if let Some(contexts) = &mut self.contexts {
            contexts.restart();
        }
    }

    /// Handles a field in the first walk.
    fn add_field(&mut self, datatype: Datatype, value: &[u8]) -> Result<Slot, FieldFailure> {
        let at = self.slots.len();
        if at >= self.spec.bounds.fields_max {
            return Err(FieldFailure::TooManyFields(self.spec.bounds.fields_max));
        }
        if value.len() > self.spec.bounds.value_bytes_max {
            return Ok(Slot::Problem(FieldProblem::ValueTooLong));
        }

        let fingerprint = self.fingerprint(at, datatype, value);
        if let Some(entry) =
            fingerprint.and_then(|fingerprint| self.by_fingerprint.get(&fingerprint))
        {
            return Ok(Slot::TokenEntry(*entry));
        }

        let (id, sealed) = match self.make_token(datatype, value, fingerprint) {
            Ok(made) => made,
            Err(FieldFailure::Problem(problem)) => return Ok(Slot::Problem(problem)),
            Err(failure) => return Err(failure),
        };

        let entry = u32::try_from(self.entries.len()).map_err(|_| FieldFailure::Library)?;
        let TokenizeSpec {
            tags,
            expires,
            created,
            ..
        } = &self.spec;
        self.rows.push(Row {
            id,
            fingerprint,
            sealed,
            tags: tags.clone(),
            expires: *expires,
            created: *created,
            archived: None,
            subject: self.spec.subject().map(|subject| SubjectId(*subject.id())),
        });
        self.entries.push(TokenEntry {
            token: self.text.as_str().into(),
            state: EntryState::Made,
            is_mismatched: false,
        });
        if let Some(fingerprint) = fingerprint {
            self.by_fingerprint.insert(fingerprint, entry);
        }
        Ok(Slot::TokenEntry(entry))
    }

    fn fingerprint(&self, at: usize, datatype: Datatype, value: &[u8]) -> Option<Fingerprint> {
        let Collection {
            keys, map, kind, ..
        } = &*self.spec.collection;
        if *kind == CollectionKind::Random && self.spec.idempotency_key.is_none() {
            return None;
        }

        let value = Canonical::of(datatype, value);
        Some(Fingerprint(
            match (kind, &self.spec.idempotency_key, &self.principal) {
                (CollectionKind::Random, Some(IdempotencyKey { key, .. }), Some(principal)) => {
                    let at = u32::try_from(at).unwrap_or(u32::MAX);
                    keys.fingerprint_of_request(
                        map.collection,
                        &self.scope,
                        principal,
                        key,
                        at,
                        datatype,
                        &value,
                    )
                }
                _ => keys.fingerprint_of_value(map.collection, &self.scope, datatype, &value),
            },
        ))
    }

    /// Draws a token into `text` and seals its row.
    fn make_token(
        &mut self,
        datatype: Datatype,
        value: &[u8],
        fingerprint: Option<Fingerprint>,
    ) -> Result<(TokenId, Bytes), FieldFailure> {
        let Collection {
            keys,
            map,
            kind,
            format,
            ..
        } = &*self.spec.collection;

        for _ in 0..DRAWS_MAX {
            format.generate(datatype, value, &mut self.text)?;
            let id = TokenId(keys.id(map.collection, &self.text));
            if self.drawn.insert(id) {
                // The value of a deterministic row proves the row's fingerprint. A one-way row has
                // no value, and the value of a row with an idempotency key does not identify the
                // request, so these rows are bound to their fingerprint.
                let bound = fingerprint.filter(|_| *kind != CollectionKind::Deterministic);
                let sealed = keys.seal(&NewToken {
                    collection: map.collection,
                    id: &id.0,
                    context: &self.context,
                    fingerprint: bound.as_ref().map(|bound| &bound.0),
                    subject: self.spec.subject(),
                    token: &self.text,
                    value: (*kind != CollectionKind::OneWay).then_some((datatype, value)),
                });
                return Ok((id, sealed.map_err(|_| FieldFailure::Library)?.into()));
            }
        }
        Err(FieldFailure::Exhausted)
    }

    /// Applies the store's response to an entry, once.
    fn update_entry(
        &mut self,
        entry: usize,
        datatype: Datatype,
        value: &[u8],
    ) -> Result<(), FieldFailure> {
        match std::mem::replace(&mut self.entries[entry].state, EntryState::Made) {
            EntryState::Made => (),
            EntryState::Taken => {
                let (id, sealed) =
                    self.make_token(datatype, value, self.rows[entry].fingerprint)?;
                self.rows[entry].id = id;
                self.rows[entry].sealed = sealed;
                self.entries[entry].token = self.text.as_str().into();
            }
            EntryState::Existing(row) => {
                let Collection { keys, map, .. } = &*self.spec.collection;
                let subject = self.spec.subject();
                let opened = keys.open(
                    map.collection,
                    &row.id.0,
                    subject,
                    &row.sealed,
                    &mut self.buffer,
                );
                // The row is compared with the requested fingerprint, because the fingerprint that
                // the store returns is not trustworthy. A row is found only by its fingerprint, so
                // this entry has one.
                let wanted = self.rows[entry]
                    .fingerprint
                    .map_or([0; 16], |fingerprint| fingerprint.0);
                let under = (!self.spec.collection.is_shared()).then_some(&self.context);
                let token = match &opened {
                    Ok(opened) if opened.is_of(&wanted, under, datatype, value, canonical) => {
                        Some(Box::from(opened.token()))
                    }
                    Ok(_) => {
                        self.mismatched += u64::from(!self.entries[entry].is_mismatched);
                        self.entries[entry].is_mismatched = true;
                        None
                    }
                    Err(_) => None,
                };
                let Some(token) = token else {
                    // Further fields with the same value must fail, too.
                    self.entries[entry].state = EntryState::Existing(row);
                    return Err(FieldProblem::CannotOpen.into());
                };
                self.entries[entry].token = token;
            }
        }
        Ok(())
    }
}

impl From<Unfit> for FieldFailure {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::NotDigits => FieldProblem::NotDigits.into(),
            Unfit::NotCard => FieldProblem::NotCard.into(),
            Unfit::Library => Self::Library,
        }
    }
}

impl Transform for TokenizeFields {
    type Error = FieldFailure;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFailure::Stopped(reason));
        }

        if self.enter(&field)? {
            return Ok(Outcome::Keep);
        }
        let (datatype, value) = value_of(field.token, field.raw);
        if self.at == self.slots.len() {
            let slot = self.add_field(datatype, value)?;
            self.slots.push(slot);
        }

        self.at += 1;
        match self.slots[self.at - 1] {
            Slot::Problem(problem) => Err(problem.into()),
            Slot::TokenEntry(entry) => {
                let entry = entry as usize;
                self.update_entry(entry, datatype, value)?;
                write::str(out, &self.entries[entry].token);
                Ok(Outcome::Replaced)
            }
        }
    }

    fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        self.field_errors.handle(path, failure)
    }
}
