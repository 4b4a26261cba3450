//! The record of a store's root key: wrapped copies of the root key, one per slot, and the wrapped
//! audit secret.
//!
//! The record contains no secrets. The whole record is checked when it is read and before it is
//! written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

use super::record::{Entry, damaged};
use sealwire_crypto::WRAPPED_BYTES_MAX;
use sealwire_store::{Snapshot, StoreError};

/// Key of the [`RootRecord`] in the control store.
pub const ROOT_RECORD: &str = "root";
/// Maximum number of slots of a root key.
pub const SLOTS_MAX: usize = 8;
/// Maximum bytes of a provider's name.
const PROVIDER_BYTES_MAX: usize = 64;
/// Maximum number of public settings of a slot, and maximum bytes of a name or value.
const FIELDS_MAX: usize = 16;
const FIELD_BYTES_MAX: usize = 4 << 10;

/// The root keys of a store: the active one, and during a rotation the incoming one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootRecord {
    /// Identifies the store's set of root keys. Random and never changed.
    pub set: [u8; 16],
    /// The root key under which the store's keys are wrapped.
    pub active: RootEntry,
    /// The root key that a rotation prepares.
    pub incoming: Option<IncomingRoot>,
    /// The audit secret, wrapped under the active root key.
    pub wrapped_audit: Vec<u8>,
    /// Number of the next slot. Numbers are never reused.
    pub next_slot: u32,
    /// Time at which the store was sealed, in seconds since 1970-01-01 UTC, while it is sealed.
    pub sealed_unix_s: Option<u64>,
}

/// A root key that a rotation has added and that is not used yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingRoot {
    /// The root key.
    pub entry: RootEntry,
    /// Generation at which the root key was added. An instance that serves this generation has the
    /// root key.
    pub generation: u64,
}

/// A root key and its wrapped copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootEntry {
    /// A commitment to the root key.
    pub id: [u8; 16],
    /// Time of creation, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// 1 to [`SLOTS_MAX`] copies, by number. Each copy unwraps to the root key.
    pub slots: Vec<RootSlot>,
}

/// A wrapped copy of a root key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootSlot {
    /// Number of the slot, to which the copy is bound.
    pub number: u32,
    /// Name of the provider in the configuration. A root key has one slot per provider.
    pub provider: String,
    /// Kind of the provider.
    pub kind: String,
    /// Settings of the provider that locate its key, without credentials.
    pub fields: BTreeMap<String, String>,
    /// The wrapped copy, as the provider returned it.
    pub wrapped: Vec<u8>,
    /// Time of creation, in seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
    /// Time of the last successful test of the copy, in seconds since 1970-01-01 UTC; 0: never.
    pub verified_unix_s: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootFields {
    set: String,
    roots: Vec<RootKeyFields>,
    audit: String,
    next_slot: u32,
    /// Absent for stores that are not sealed, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed_unix_s: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RootKeyFields {
    id: String,
    state: RootStateName,
    created_unix_s: u64,
    /// [`IncomingRoot::generation`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    generation: Option<u64>,
    slots: Vec<SlotFields>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RootStateName {
    Active,
    Incoming,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SlotFields {
    number: u32,
    provider: String,
    kind: String,
    fields: BTreeMap<String, String>,
    wrapped: String,
    created_unix_s: u64,
    verified_unix_s: u64,
}

type RootRecordEntry = Entry<RootFields, ()>;

impl RootRecord {
    /// Parses a record.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], which names [`ROOT_RECORD`].
    pub fn parse(record: &[u8]) -> Result<Self, StoreError> {
        let entry = RootRecordEntry::read(ROOT_RECORD, record)?;
        entry
            .live()
            .cloned()
            .ok_or_else(|| problem("not live"))?
            .try_into()
    }

    /// Serializes the record.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] if [`Self::parse`] would reject the result.
    pub fn to_bytes(&self) -> Result<Vec<u8>, StoreError> {
        self.check()?;
        Ok(RootRecordEntry::Live(self.into()).into_bytes())
    }

    /// Returns the record of a snapshot, if the store has a root key.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn of(snapshot: &Snapshot) -> Result<Option<Self>, StoreError> {
        snapshot
            .records
            .get(ROOT_RECORD)
            .map(|record| Self::parse(record))
            .transpose()
    }

    /// Returns the active root key, then the incoming root key.
    pub fn roots(&self) -> impl Iterator<Item = &RootEntry> {
        [&self.active]
            .into_iter()
            .chain(self.incoming.as_ref().map(|incoming| &incoming.entry))
    }

    /// Returns the ids of [`Self::roots`].
    #[must_use]
    pub fn ids(&self) -> Arc<[[u8; 16]]> {
        self.roots().map(|root| root.id).collect()
    }

    pub(super) fn root_mut(&mut self, id: &[u8; 16]) -> Option<&mut RootEntry> {
        let incoming = self.incoming.as_mut().map(|incoming| &mut incoming.entry);
        [&mut self.active]
            .into_iter()
            .chain(incoming)
            .find(|root| root.id == *id)
    }

    fn check(&self) -> Result<(), StoreError> {
        let mut numbers = BTreeSet::new();
        for root in self.roots() {
            if !(1..=SLOTS_MAX).contains(&root.slots.len()) {
                return Err(problem(format!(
                    "a root key has {} slots, not 1 to {SLOTS_MAX}",
                    root.slots.len()
                )));
            }
            let mut providers = BTreeSet::new();
            for slot in &root.slots {
                slot.check()?;
                if slot.number >= self.next_slot || !numbers.insert(slot.number) {
                    return Err(problem(format!(
                        "slot number {} is used twice or was never assigned",
                        slot.number
                    )));
                }
                if !providers.insert(&slot.provider) {
                    return Err(problem(format!(
                        "provider {} has two slots of one root key",
                        slot.provider
                    )));
                }
            }
        }

        if self
            .incoming
            .as_ref()
            .is_some_and(|incoming| incoming.entry.id == self.active.id)
        {
            return Err(problem("both root keys have the same id"));
        }
        Ok(())
    }
}

impl RootSlot {
    fn check(&self) -> Result<(), StoreError> {
        if !is_provider_name(&self.provider) || !is_provider_name(&self.kind) {
            return Err(problem(format!(
                "slot {} has an invalid provider or kind",
                self.number
            )));
        }

        if self.fields.len() > FIELDS_MAX
            || !self
                .fields
                .iter()
                .all(|(name, value)| is_field_text(name) && is_field_text(value))
        {
            return Err(problem(format!("slot {} has invalid fields", self.number)));
        }

        if !(1..=WRAPPED_BYTES_MAX).contains(&self.wrapped.len()) {
            return Err(problem(format!(
                "the copy in slot {} has {} bytes",
                self.number,
                self.wrapped.len()
            )));
        }
        Ok(())
    }
}

fn is_provider_name(name: &str) -> bool {
    (1..=PROVIDER_BYTES_MAX).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_')
}

fn is_field_text(text: &str) -> bool {
    text.len() <= FIELD_BYTES_MAX && !text.chars().any(char::is_control)
}

impl TryFrom<RootFields> for RootRecord {
    type Error = StoreError;

    fn try_from(fields: RootFields) -> Result<Self, StoreError> {
        let RootFields {
            set,
            roots,
            audit,
            next_slot,
            sealed_unix_s,
        } = fields;

        let mut active = None;
        let mut incoming = None;
        for RootKeyFields {
            id,
            state,
            created_unix_s,
            generation,
            slots,
        } in roots
        {
            let slots = slots
                .into_iter()
                .map(RootSlot::try_from)
                .collect::<Result<_, _>>()?;
            let entry = RootEntry {
                id: bytes(&id)?,
                created_unix_s,
                slots,
            };
            let earlier = match (state, generation) {
                (RootStateName::Active, None) => active.replace(entry).is_some(),
                (RootStateName::Incoming, Some(generation)) => incoming
                    .replace(IncomingRoot { entry, generation })
                    .is_some(),
                _ => {
                    return Err(problem(
                        "an incoming root key must have a generation, and an active root key must not",
                    ));
                }
            };
            if earlier {
                return Err(problem("two root keys are in the same state"));
            }
        }

        let record = Self {
            set: bytes(&set)?,
            active: active.ok_or_else(|| problem("no root key is active"))?,
            incoming,
            wrapped_audit: decoded(&audit)?,
            next_slot,
            sealed_unix_s,
        };

        record.check()?;
        Ok(record)
    }
}

impl TryFrom<SlotFields> for RootSlot {
    type Error = StoreError;

    fn try_from(slot: SlotFields) -> Result<Self, StoreError> {
        let SlotFields {
            number,
            provider,
            kind,
            fields,
            wrapped,
            created_unix_s,
            verified_unix_s,
        } = slot;

        let wrapped = decoded(&wrapped)?;
        Ok(Self {
            number,
            provider,
            kind,
            fields,
            wrapped,
            created_unix_s,
            verified_unix_s,
        })
    }
}

impl From<&RootRecord> for RootFields {
    fn from(record: &RootRecord) -> Self {
        let active = RootKeyFields::new(&record.active, RootStateName::Active, None);
        let incoming = record.incoming.as_ref().map(|incoming| {
            let generation = Some(incoming.generation);
            RootKeyFields::new(&incoming.entry, RootStateName::Incoming, generation)
        });
        Self {
            set: HEXLOWER.encode(&record.set),
            roots: [active].into_iter().chain(incoming).collect(),
            audit: STANDARD.encode(&record.wrapped_audit),
            next_slot: record.next_slot,
            sealed_unix_s: record.sealed_unix_s,
        }
    }
}

impl RootKeyFields {
    fn new(entry: &RootEntry, state: RootStateName, generation: Option<u64>) -> Self {
        Self {
            id: HEXLOWER.encode(&entry.id),
            state,
            created_unix_s: entry.created_unix_s,
            generation,
            slots: entry.slots.iter().map(SlotFields::from).collect(),
        }
    }
}

impl From<&RootSlot> for SlotFields {
    fn from(slot: &RootSlot) -> Self {
        let RootSlot {
            number,
            provider,
            kind,
            fields,
            wrapped,
            created_unix_s,
            verified_unix_s,
        } = slot.clone();

        let wrapped = STANDARD.encode(wrapped);
        Self {
            number,
            provider,
            kind,
            fields,
            wrapped,
            created_unix_s,
            verified_unix_s,
        }
    }
}

impl fmt::Display for RootEntry {
    /// Prints the id.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.id))
    }
}

fn bytes(text: &str) -> Result<[u8; 16], StoreError> {
    let decoded = HEXLOWER
        .decode(text.as_bytes())
        .ok()
        .and_then(|bytes| bytes.try_into().ok());
    decoded.ok_or_else(|| problem("an id is not of 32 hexadecimal digits"))
}

fn decoded(text: &str) -> Result<Vec<u8>, StoreError> {
    super::record::base64(ROOT_RECORD, text)
}

fn problem(what: impl Into<String>) -> StoreError {
    damaged(ROOT_RECORD, what.into())
}
