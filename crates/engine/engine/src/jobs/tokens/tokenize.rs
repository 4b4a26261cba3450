//! One field of `tokenize`: a token made, kept or replaced by the one that was there.
//!
//! The first walk makes a token for each field, seals the row and writes the token into the reply,
//! as if the store would take all of them. A later walk goes over the same fields and does only
//! what the store's answer asks for.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use sealwire_access::Principal;
use sealwire_crypto::Datatype;
use sealwire_msgpack::write;
use sealwire_payload::{Field, Outcome, Path, Transform};
use sealwire_records::token::{
    NewToken, OpenedToken, RowBuffer, SubjectKey, TokenContext, TokenPrincipal, Unfit,
};
use sealwire_store::SubjectId;
use sealwire_store::{Fingerprint, Group, Row, TokenId, Written};

use super::{Bounds, Canonical, Collection, CollectionKind, canonical, value_of};
use crate::jobs::cancel_token::CancelToken;
use crate::jobs::error::CallFailure;
use crate::jobs::field_errors::{FieldErrors, FieldFault, FieldProblem};

/// How often the store is asked to take other tokens where some of a group were taken.
const TRIES_MAX: u32 = 16;
/// How often a token is drawn that this call knows to be taken. Costs no more than sealing a few
/// rows.
const DRAWS_MAX: u32 = 256;
/// Longest token of a format whose tokens may be longer than their values, with its MessagePack
/// header.
pub const TOKEN_BYTES: usize = 48;
/// Bytes per entry beside its value and tags: its row as made, requested and returned, its token
/// and its positions.
const ENTRY_BYTES: usize = 1_024;
/// Bytes of a tag beside its text.
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

/// How a call's tokens are made.
#[derive(Debug)]
pub struct TokenizeSpec {
    /// Where they go.
    pub collection: Arc<Collection>,
    /// Context to which values are bound.
    pub context: Box<[u8]>,
    /// Tags of new tokens, sorted, without doubles.
    pub tags: Vec<String>,
    /// When new tokens expire.
    pub expires: Option<u64>,
    /// Now.
    pub created: u64,
    /// Key that makes the tokens of a repeated request the same. Unused if equal values have equal
    /// tokens anyway.
    pub idempotency_key: Option<IdempotencyKey>,
    /// Key of the data subject whom the document is about; absent if the request names none. It
    /// must be set before the first walk.
    pub subject: Option<Arc<OnceLock<SubjectKey>>>,
    /// Limits of the request.
    pub bounds: Bounds,
}

impl TokenizeSpec {
    fn subject(&self) -> Option<&SubjectKey> {
        self.subject.as_ref()?.get()
    }

    /// Bytes to set aside for entries, before any is made: rows for as many fields, and the values
    /// of a message.
    pub fn entry_bytes(&self, fields: usize, message_bytes: usize) -> usize {
        let tags: usize = self.tags.iter().map(|tag| tag.len() + TAG_BYTES).sum();
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
    minting: TokenizeSpec,
    /// The context under which rows are sealed.
    context: TokenContext,
    /// The scope in which rows are found: the context, or that of a subject under it.
    scope: TokenContext,
    /// The client, if the request has an idempotency key.
    principal: Option<TokenPrincipal>,
    /// Of each field, in the order of the document.
    slots: Vec<Slot>,
    /// The next field.
    at: usize,
    entries: Vec<TokenEntry>,
    /// Of each entry.
    rows: Vec<Row>,
    by_fingerprint: HashMap<Fingerprint, u32>,
    /// Drawn by this call, whatever became of them.
    drawn: HashSet<TokenId>,
    tries: u32,
    /// The store has taken the rows.
    settled: bool,
    text: String,
    buffer: RowBuffer,
    cancel: Arc<CancelToken>,
    /// Rows that the store found for a value and that are of another one.
    pub mismatched: u64,
    /// Fields that have no token.
    pub faults: FieldErrors,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    TokenEntry(u32),
    Refused(FieldProblem),
}

#[derive(Debug)]
struct TokenEntry {
    token: Box<str>,
    state: EntryState,
    /// The row that the store gave is of another value, and was counted.
    is_mismatched: bool,
}

#[derive(Debug)]
enum EntryState {
    /// Its token is the one to give, if the store takes it.
    Made,
    /// The store wants another one.
    Taken,
    /// The store had this one.
    Given(Row),
}

impl TokenizeFields {
    /// Nothing done yet. Hashes the context: for a crypto thread.
    pub fn new(minting: TokenizeSpec, cancel: Arc<CancelToken>, faults: FieldErrors) -> Self {
        let context = minting.collection.scope(&minting.context);
        let scope = minting.subject().map_or(context, |subject| {
            minting
                .collection
                .keys
                .subject_scope(&context, subject.id(), subject.version())
        });
        let principal = minting
            .idempotency_key
            .as_ref()
            .map(|key| minting.collection.keys.principal(&key.principal));
        Self {
            context,
            scope,
            principal,
            minting,
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
            faults,
        }
    }

    /// Returns true if the response waits for the store.
    pub fn asks(&self) -> bool {
        !self.settled && !self.entries.is_empty()
    }

    /// Returns the rows to write.
    pub fn group(&self) -> Group {
        Group {
            map: self.minting.collection.map,
            rows: self.rows.clone(),
        }
    }

    /// Takes the store's answer in. `true`: the document has to be walked again.
    ///
    /// # Errors
    ///
    /// [`CallFailure::Exhausted`] once tokens were taken too often;
    /// [`CallFailure::SubjectsChanged`] if the data subject was erased.
    pub fn answered(&mut self, written: Written) -> Result<bool, CallFailure> {
        let changed = match written {
            Written::Done(given) => {
                self.settled = true;
                let mut changed = false;
                for (entry, row) in self.entries.iter_mut().zip(given) {
                    if let Some(row) = row {
                        entry.state = EntryState::Given(row);
                        changed = true;
                    }
                }
                changed
            }
            Written::Taken(positions) => {
                self.tries += 1;
                if self.tries == TRIES_MAX {
                    return Err(CallFailure::Exhausted);
                }
                for position in positions {
                    if let Some(entry) = self.entries.get_mut(position) {
                        entry.state = EntryState::Taken;
                    }
                }
                true
            }
            Written::SubjectsChanged => return Err(CallFailure::SubjectsChanged),
        };
        Ok(changed)
    }

    /// Begins the next walk.
    pub fn restart(&mut self, faults: FieldErrors) {
        (self.at, self.faults) = (0, faults);
    }

    /// Handles a field that was not seen before.
    fn meet(&mut self, datatype: Datatype, value: &[u8]) -> Result<Slot, FieldFault> {
        let at = self.slots.len();
        if at >= self.minting.bounds.fields_max {
            return Err(FieldFault::TooManyFields(self.minting.bounds.fields_max));
        }
        if value.len() > self.minting.bounds.value_bytes_max {
            return Ok(Slot::Refused(FieldProblem::ValueTooLong));
        }
        let fingerprint = self.fingerprint(at, datatype, value);
        if let Some(entry) =
            fingerprint.and_then(|fingerprint| self.by_fingerprint.get(&fingerprint))
        {
            return Ok(Slot::TokenEntry(*entry));
        }
        let (id, sealed) = match self.make(datatype, value, fingerprint) {
            Ok(made) => made,
            Err(FieldFault::Refused(refusal)) => return Ok(Slot::Refused(refusal)),
            Err(fault) => return Err(fault),
        };
        let entry = u32::try_from(self.entries.len()).map_err(|_| FieldFault::Library)?;
        let TokenizeSpec {
            tags,
            expires,
            created,
            ..
        } = &self.minting;
        self.rows.push(Row {
            id,
            fingerprint,
            sealed,
            tags: tags.clone(),
            expires: *expires,
            created: *created,
            archived: None,
            subject: self
                .minting
                .subject()
                .map(|subject| SubjectId(*subject.id())),
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
        } = &*self.minting.collection;
        if *kind == CollectionKind::Random && self.minting.idempotency_key.is_none() {
            return None;
        }
        let value = Canonical::of(datatype, value);
        Some(Fingerprint(
            match (kind, &self.minting.idempotency_key, &self.principal) {
                (CollectionKind::Random, Some(IdempotencyKey { key, .. }), Some(principal)) => {
                    let at = u32::try_from(at).unwrap_or(u32::MAX);
                    keys.fingerprint_of_call(
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
    fn make(
        &mut self,
        datatype: Datatype,
        value: &[u8],
        fingerprint: Option<Fingerprint>,
    ) -> Result<(TokenId, Bytes), FieldFault> {
        let Collection {
            keys,
            map,
            kind,
            format,
            ..
        } = &*self.minting.collection;
        for _ in 0..DRAWS_MAX {
            format.generate(datatype, value, &mut self.text)?;
            let id = TokenId(keys.id(map.collection, &self.text));
            if self.drawn.insert(id) {
                // A deterministic row's value proves what it is found by; a one-way row has none,
                // and that of a call does not say which call it was.
                let bound = fingerprint.filter(|_| *kind != CollectionKind::Deterministic);
                let sealed = keys.seal(&NewToken {
                    collection: map.collection,
                    id: &id.0,
                    context: &self.context,
                    fingerprint: bound.as_ref().map(|bound| &bound.0),
                    subject: self.minting.subject(),
                    token: &self.text,
                    value: (*kind != CollectionKind::OneWay).then_some((datatype, value)),
                });
                return Ok((id, sealed.map_err(|_| FieldFault::Library)?.into()));
            }
        }
        Err(FieldFault::Exhausted)
    }

    /// Does to an entry what the store's answer asks for, once.
    fn settle(&mut self, entry: usize, datatype: Datatype, value: &[u8]) -> Result<(), FieldFault> {
        match std::mem::replace(&mut self.entries[entry].state, EntryState::Made) {
            EntryState::Made => (),
            EntryState::Taken => {
                let (id, sealed) = self.make(datatype, value, self.rows[entry].fingerprint)?;
                (self.rows[entry].id, self.rows[entry].sealed) = (id, sealed);
                self.entries[entry].token = self.text.as_str().into();
            }
            EntryState::Given(row) => {
                let Collection { keys, map, .. } = &*self.minting.collection;
                let subject = self.minting.subject();
                let opened = keys.open(
                    map.collection,
                    &row.id.0,
                    subject,
                    &row.sealed,
                    &mut self.buffer,
                );
                // Not what the store says that it is found by, but what was asked for.
                let wanted = self.rows[entry]
                    .fingerprint
                    .map_or([0; 16], |fingerprint| fingerprint.0);
                let under = (!self.minting.collection.is_shared()).then_some(&self.context);
                let is_of = |opened: &OpenedToken<'_>| {
                    opened.is_of(&wanted, under, datatype, value, canonical)
                };
                let token = match &opened {
                    Ok(opened) if is_of(opened) => Some(Box::from(opened.token())),
                    Ok(_) => {
                        self.mismatched += u64::from(!self.entries[entry].is_mismatched);
                        self.entries[entry].is_mismatched = true;
                        None
                    }
                    Err(_) => None,
                };
                let Some(token) = token else {
                    // For its next field the same.
                    self.entries[entry].state = EntryState::Given(row);
                    return Err(FieldProblem::CannotOpen.into());
                };
                self.entries[entry].token = token;
            }
        }
        Ok(())
    }
}

impl From<Unfit> for FieldFault {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::NotDigits => FieldProblem::NotDigits.into(),
            Unfit::NotCard => FieldProblem::NotCard.into(),
            Unfit::Library => Self::Library,
        }
    }
}

impl Transform for TokenizeFields {
    type Error = FieldFault;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, FieldFault> {
        if let Some(reason) = self.cancel.stop_reason() {
            return Err(FieldFault::Stopped(reason));
        }
        let (datatype, value) = value_of(field.token, field.raw);
        if self.at == self.slots.len() {
            let slot = self.meet(datatype, value)?;
            self.slots.push(slot);
        }
        self.at += 1;
        match self.slots[self.at - 1] {
            Slot::Refused(refusal) => Err(refusal.into()),
            Slot::TokenEntry(entry) => {
                let entry = entry as usize;
                self.settle(entry, datatype, value)?;
                write::str(out, &self.entries[entry].token);
                Ok(Outcome::Replaced)
            }
        }
    }

    fn failed(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        self.faults.decide(path, fault)
    }
}
