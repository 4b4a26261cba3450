//! Operations on a store's root key, for the control listener of an engine and for the command line
//! on a store.
//!
//! Errors are [`StoreError`]s: a request that cannot be met in the present state is
//! [`StoreError::Invalid`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::{Control, FIRST_SLOT, RootEntry, RootRecord, RootSlot, SlotChange};
use sealwire_crypto::RootKey;
use sealwire_kek::recovery::recovery_key_of;
use sealwire_store::{CommitSteps, StoreError};
use sealwire_wire::control::{RootKeyState, RootOperation, RootProvider, RootSlotState, RootState};
use tokio::time::Instant;

use super::{Providers, Unsealer};

/// Pause between two looks at engines that are behind.
const WAIT_PAUSE: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Clone)]
pub struct RootAdmin {
    control: Control,
    unsealer: Arc<Unsealer>,
}

/// Results of unwrapping slots, by number. An error is the reason.
type UnwrapResults = BTreeMap<u32, Result<(), String>>;

impl RootAdmin {
    /// Creates the operations on a store, whose keys `unsealer` finds.
    #[must_use]
    pub fn new(control: Control, unsealer: Arc<Unsealer>) -> Self {
        Self { control, unsealer }
    }

    /// Runs an operation. A rotation of the root key waits at most `wait` for live engines, and
    /// calls `waits` with their ids whenever these change.
    ///
    /// # Errors
    /// [`StoreError::Invalid`], [`StoreError::RootKey`]; [`StoreError::NotServed`] after `wait`,
    /// and the operation then continues when it is repeated; [`StoreError::Sealed`]; any error of
    /// the store.
    pub async fn run(
        &self,
        operation: &RootOperation<'_>,
        wait: Duration,
        waits: impl FnMut(&[String]) + Send,
    ) -> Result<RootState, StoreError> {
        match operation {
            RootOperation::Status => self.state(None).await,
            RootOperation::Init { providers } => self.init(providers.as_deref()).await,
            RootOperation::Rotate { abandon: true } => {
                self.changed(self.control.abandon_root().await?).await
            }
            RootOperation::Rotate { abandon: false } => self.rotate(wait, waits).await,
            RootOperation::Seal => self.changed(self.control.seal().await?).await,
            RootOperation::Unseal => self.changed(self.control.unseal().await?).await,
            RootOperation::AddSlot { provider } => self.add_slot(provider).await,
            RootOperation::RemoveSlot { slot } => self.remove_slot(*slot).await,
            RootOperation::Verify => self.verify().await,
            RootOperation::RotateSlots => self.rotate_slots().await,
        }
    }

    /// Describes the root key, and unwraps every slot to find out which ones are right. Records
    /// nothing.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn inspect(&self) -> Result<RootState, StoreError> {
        let (_, record) = self.control.root().await?;
        if record
            .as_ref()
            .is_some_and(|record| record.sealed_unix_s.is_some())
        {
            return self.state(None).await;
        }

        let mut results = UnwrapResults::new();
        for (set, root) in record
            .iter()
            .flat_map(|record| record.roots().map(|root| (record.set, root)))
        {
            results.extend(self.unwrapped(set, root).await);
        }
        self.state(Some(results)).await
    }

    /// Returns the unsealer of this store.
    #[must_use]
    pub fn unsealer(&self) -> &Arc<Unsealer> {
        &self.unsealer
    }

    fn providers(&self) -> &Providers {
        self.unsealer.providers()
    }

    /// Returns the stored root record without verification, even if no provider unseals the store.
    /// Fails if the store is sealed, before any request to a provider.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key; [`StoreError::Sealed`]; any error of
    /// the store.
    pub async fn stored_record(&self) -> Result<RootRecord, StoreError> {
        let record = self.stored_record_if_sealed().await?;
        if record.sealed_unix_s.is_some() {
            Err(StoreError::Sealed)
        } else {
            Ok(record)
        }
    }

    /// Returns the root record as [`Self::stored_record`] does, also of a sealed store.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key; any error of the store.
    pub async fn stored_record_if_sealed(&self) -> Result<RootRecord, StoreError> {
        self.control.root().await?.1.ok_or_else(no_root)
    }

    /// Returns the root record, verified: it decides which providers get copies.
    async fn record(&self) -> Result<RootRecord, StoreError> {
        self.stored_record().await?;
        self.control.verified_root().await?.1.ok_or_else(no_root)
    }

    /// Returns the root record, which must have no incoming root key.
    async fn record_outside_rotation(&self) -> Result<RootRecord, StoreError> {
        let record = self.record().await?;
        if record.incoming.is_some() {
            return Err(invalid(
                "a rotation of the root key is not finished; run `sealwire root rotate` first",
            ));
        }
        Ok(record)
    }

    async fn init(&self, names: Option<&[&str]>) -> Result<RootState, StoreError> {
        if self.control.root().await?.1.is_some() {
            return Err(invalid(
                "the store has a root key already; `sealwire kek list` shows its slots",
            ));
        }

        let names: Vec<&str> = match names {
            Some(names) => names.to_vec(),
            None => self.providers().iter().map(|(name, _)| name).collect(),
        };
        // The id of a second random key is random, too, and no other random source is needed.
        let root = RootKey::generate()?;
        let set = RootKey::generate()?.id(&[0; 16])?;
        let slots = self
            .new_slots(names.into_iter(), set, &root, FIRST_SLOT)
            .await?;
        self.changed(self.control.create_root(set, &root, slots).await?)
            .await
    }

    async fn add_slot(&self, name: &str) -> Result<RootState, StoreError> {
        let record = self.record_outside_rotation().await?;
        let root = self.unsealer.unseal(record.set, &record.active).await?;
        let add = self
            .new_slots([name].into_iter(), record.set, &root, record.next_slot)
            .await?;
        let generation = self
            .control
            .set_slots(
                record.active.id,
                SlotChange {
                    add,
                    ..SlotChange::default()
                },
            )
            .await?;

        Ok(RootState {
            slot: Some(record.next_slot),
            ..self.changed(generation).await?
        })
    }

    async fn remove_slot(&self, number: u32) -> Result<RootState, StoreError> {
        let record = self.record().await?;
        let root = record
            .roots()
            .find(|root| root.slots.iter().any(|slot| slot.number == number));
        let root = root.ok_or_else(|| invalid(format!("the root key has no slot {number}")))?;
        let slots = root
            .slots
            .iter()
            .filter(|slot| slot.number != number)
            .cloned()
            .collect();
        let others = RootEntry {
            slots,
            ..root.clone()
        };

        if others.slots.is_empty() {
            return Err(invalid(
                "the last slot cannot be removed; add another one first",
            ));
        }

        let results = self.unwrapped(record.set, &others).await;
        // The change names the slots that must stay, so that of two removals at once only one can
        // rely on the other's slot.
        let verified = slots_that_unwrap(&results);

        if verified.is_empty() {
            let reasons: Vec<String> = results.into_values().filter_map(Result::err).collect();
            let reasons = reasons.join("; ");
            return Err(invalid(format!(
                "no other slot unwraps the root key now, so slot {number} stays: {reasons}"
            )));
        }

        let change = SlotChange {
            remove: vec![number],
            verified,
            ..SlotChange::default()
        };
        self.changed(self.control.set_slots(root.id, change).await?)
            .await
    }

    async fn verify(&self) -> Result<RootState, StoreError> {
        // Also where no slot unwraps, to say why. A change of the record verifies it.
        let record = self.stored_record().await?;
        let mut results = UnwrapResults::new();
        let mut steps = CommitSteps::default();

        for root in record.roots() {
            let unwrapped = self.unwrapped(record.set, root).await;
            let verified = slots_that_unwrap(&unwrapped);
            if !verified.is_empty() {
                steps.made(
                    self.control
                        .set_slots(
                            root.id,
                            SlotChange {
                                verified,
                                ..SlotChange::default()
                            },
                        )
                        .await,
                )?;
            }
            results.extend(unwrapped);
        }

        steps.end()?;
        self.state(Some(results)).await
    }

    async fn rotate_slots(&self) -> Result<RootState, StoreError> {
        let record = self.record_outside_rotation().await?;
        let root = self.unsealer.unseal(record.set, &record.active).await?;
        let names = record.active.slots.iter().map(|slot| &*slot.provider);
        let add = self
            .new_slots(names, record.set, &root, record.next_slot)
            .await?;
        check_same_keys(&record.active.slots, &add)?;
        let remove = record.active.slots.iter().map(|slot| slot.number).collect();
        let change = SlotChange {
            add,
            remove,
            ..SlotChange::default()
        };
        self.changed(self.control.set_slots(record.active.id, change).await?)
            .await
    }

    async fn rotate(
        &self,
        wait: Duration,
        mut waits: impl FnMut(&[String]) + Send,
    ) -> Result<RootState, StoreError> {
        let record = self.record().await?;
        let mut steps = CommitSteps::default();
        let incoming = match &record.incoming {
            Some(incoming) => self.unsealer.unseal(record.set, &incoming.entry).await?,
            None => {
                let root = Arc::new(RootKey::generate()?);
                let names = record.active.slots.iter().map(|slot| &*slot.provider);
                let slots = self
                    .new_slots(names, record.set, &root, record.next_slot)
                    .await?;
                check_same_keys(&record.active.slots, &slots)?;
                steps.made(self.control.stage_root(&root, slots).await)?;
                root
            }
        };

        let started = Instant::now();
        let mut behind = Vec::new();
        loop {
            match self.control.activate_root(&incoming).await {
                Err(StoreError::NotServed { instances, .. }) if started.elapsed() < wait => {
                    if instances != behind {
                        waits(&instances);
                        behind = instances;
                    }
                    tokio::time::sleep(WAIT_PAUSE).await;
                }
                Err(error @ StoreError::NotServed { .. }) => {
                    // A repeated command finishes both steps, but the anchor must be repaired
                    // first.
                    steps.end().map_err(StoreError::unfinished)?;
                    return Err(error);
                }
                done => return self.changed(done?).await,
            }
        }
    }

    /// Creates one slot per provider, with the numbers from `first` on.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if a provider is not configured; [`StoreError::RootKey`], which
    /// names the provider.
    pub async fn new_slots<'a>(
        &self,
        names: impl Iterator<Item = &'a str> + Send,
        set: [u8; 16],
        root: &RootKey,
        first: u32,
    ) -> Result<Vec<RootSlot>, StoreError> {
        let mut slots = Vec::new();
        for (name, number) in names.zip(first..) {
            if self
                .providers()
                .iter()
                .all(|(configured, _)| configured != name)
            {
                return Err(invalid(format!("provider {name}: not configured here")));
            }
            slots.push(self.providers().new_slot(name, set, root, number).await?);
        }
        Ok(slots)
    }

    async fn unwrapped(&self, set: [u8; 16], root: &RootEntry) -> UnwrapResults {
        let mut results = UnwrapResults::new();
        for slot in &root.slots {
            results.insert(
                slot.number,
                self.providers()
                    .unwrap_slot(set, root, slot)
                    .await
                    .map(drop),
            );
        }
        results
    }

    /// Describes the state after a change.
    async fn changed(&self, generation: u64) -> Result<RootState, StoreError> {
        Ok(RootState {
            generation,
            ..self.state(None).await?
        })
    }

    /// Describes the root key, from the verified record if there is one, or else from the record as
    /// it is stored, which is then marked.
    async fn state(&self, results: Option<UnwrapResults>) -> Result<RootState, StoreError> {
        let (generation, record, unverified_reason) = match self.control.verified_root().await {
            Ok((generation, None)) => {
                let reason = "the store has no root key, so its records are not authenticated";
                (generation, None, Some(reason.to_owned()))
            }
            Ok((generation, record)) => (generation, record, None),
            // No slot unwraps, or the store is sealed, was restored to an earlier state, or was
            // written by another program.
            Err(reason) => {
                let (generation, record) = self.control.root().await?;
                (generation, record, Some(reason.to_string()))
            }
        };

        let roots = record
            .iter()
            .flat_map(RootRecord::roots)
            .enumerate()
            .map(|(at, root)| RootKeyState {
                id: root.to_string(),
                state: if at == 0 { "active" } else { "incoming" }.into(),
                created_unix_s: root.created_unix_s,
                slots: root
                    .slots
                    .iter()
                    .map(|slot| {
                        let result = results
                            .as_ref()
                            .and_then(|results| results.get(&slot.number));
                        slot_state(slot, result)
                    })
                    .collect(),
            });

        let providers = self
            .providers()
            .iter()
            .map(|(name, settings)| RootProvider {
                name: name.to_owned(),
                kind: settings.kind().name().to_owned(),
                fields: settings
                    .public_fields()
                    .into_iter()
                    .map(|(field, value)| (field.to_owned(), value))
                    .collect(),
            });

        let sealed_unix_s = record.as_ref().and_then(|record| record.sealed_unix_s);
        Ok(RootState {
            sealed_unix_s,
            verified: unverified_reason.is_none(),
            unverified_reason,
            roots: roots.collect(),
            providers: providers.collect(),
            slot: None,
            generation,
        })
    }
}

/// Returns the numbers of the slots that unwrapped.
fn slots_that_unwrap(results: &UnwrapResults) -> Vec<u32> {
    results
        .iter()
        .filter(|(_, result)| result.is_ok())
        .map(|(number, _)| *number)
        .collect()
}

/// Rejects new copies that are sealed to another recovery key than the copies before of the same
/// provider: someone replaced the public key. Without this check, a rotation could silently wrap
/// the root key for other holders.
fn check_same_keys(before: &[RootSlot], new: &[RootSlot]) -> Result<(), StoreError> {
    for slot in new {
        let Some(key) = recovery_key_of(&slot.wrapped) else {
            continue;
        };
        let same = before.iter().filter(|old| old.provider == slot.provider);
        if let Some(old) = same
            .filter_map(|old| recovery_key_of(&old.wrapped))
            .find(|old| *old != key)
        {
            return Err(invalid(format!(
                "provider {}: its public key is of recovery key {key}, and its slot is sealed to {old}; put the old file back, \
                 or `kek add` the new one under another provider name",
                slot.provider
            )));
        }
    }
    Ok(())
}

fn no_root() -> StoreError {
    invalid("the store has no root key; `sealwire kek init` creates one")
}

fn slot_state(slot: &RootSlot, result: Option<&Result<(), String>>) -> RootSlotState {
    let RootSlot {
        number,
        provider,
        kind,
        fields,
        created_unix_s,
        verified_unix_s,
        ..
    } = slot.clone();

    RootSlotState {
        number,
        provider,
        kind,
        fields,
        created_unix_s,
        verified_unix_s,
        unwraps: result.map(Result::is_ok),
        error: result.and_then(|result| result.as_ref().err().cloned()),
    }
}

fn invalid(what: impl Into<String>) -> StoreError {
    StoreError::Invalid(what.into())
}

impl fmt::Debug for RootAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootAdmin").finish_non_exhaustive()
    }
}
