//! Operations on a store's root key: create, rotate and remove it, and change its slots.
//!
//! Without a root key, a plain key-encryption key (KEK) wraps the store's keys directly. With a
//! root key, the KEK is derived from the root key. A change of the KEK rewraps every key in memory
//! and commits all changed records at once. So a reader finds all keys under the same KEK, and a
//! process that is killed midway has changed nothing. The root key also authenticates the records
//! ([`AuthenticatedStore`](crate::AuthenticatedStore)).
//!
//! A sealed store has a mark in its root record. While the mark exists, every load fails with
//! [`StoreError::Sealed`] before it uses a provider, and wipes the keys that this process holds.
//! Only [`Control::unseal`] loads a sealed store.
//!
//! A rotation has two commits. [`Control::stage_root`] adds the incoming root key, which every
//! engine then unwraps in addition to the active root key. When all live engines have the incoming
//! root key, [`Control::activate_root`] makes it the only root key.

use std::sync::Arc;

use async_trait::async_trait;
use sealwire_crypto::{Kek, RootKey};

use super::authenticated::StateId;
use super::record::Contents;
use super::root_record::{IncomingRoot, ROOT_RECORD, RootEntry, RootRecord, RootSlot};
use super::{Control, RecordEdit, TRIES_MAX, always_late, blocking, keys, pause, unix_s};
use sealwire_store::{Changes, Commit, ControlStore as _, Snapshot, StoreError, everything};

/// Number of the first slot of a store.
pub const FIRST_SLOT: u32 = 1;

/// Highest generation that can be skipped, so that enough generations remain.
const GENERATION_SKIP_MAX: u64 = 1 << 60;

/// Finds the key-encryption key of a store.
#[async_trait]
pub trait FindKek: Send + Sync {
    /// Returns the KEK under which a store's keys are wrapped. `root`: the root record of the same
    /// generation as the keys, if the store has one.
    ///
    /// # Errors
    /// [`StoreError::RootKey`].
    async fn find(&self, root: Option<&RootRecord>) -> Result<Arc<Kek>, StoreError>;

    /// Called after a state was verified with the key of its root record, or after a store without
    /// a root key was read. `seen`: the latest state that this process saw before the read. An
    /// error rejects the state.
    ///
    /// # Errors
    /// [`StoreError::RootKey`] or [`StoreError::RolledBack`].
    async fn verified(
        &self,
        state: Option<(&RootRecord, &StateId)>,
        seen: Option<&StateId>,
    ) -> Result<Freshness, StoreError> {
        match (state, seen) {
            (Some((_, id)), Some(seen)) if id.contradicts(seen) => Err(StoreError::RolledBack {
                generation: id.generation,
                seen: seen.generation,
            }),
            _ => Ok(Freshness::Latest),
        }
    }

    /// Records a state that this process committed, before the commit is reported. `roots`: ids of
    /// the state's root keys. Implementations that detect older states must have stored the state
    /// durably when this returns.
    ///
    /// # Errors
    /// [`StoreError::NotAnchored`]. The commit was made nevertheless.
    async fn committed(&self, _state: &StateId, _roots: &[[u8; 16]]) -> Result<(), StoreError> {
        Ok(())
    }

    /// Wipes all cached keys, because the store is sealed. Running calls of [`FindKek::find`] must
    /// not cache their result.
    fn wipe(&self) {}
}

/// The age of a verified and accepted state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The state has the highest generation that was seen.
    Latest,
    /// An older state was restored. The state is served but must not be changed.
    RolledBack {
        /// Highest generation that was seen.
        seen: u64,
    },
}

/// The plain KEK of a store without a root key.
#[async_trait]
impl FindKek for Arc<Kek> {
    async fn find(&self, root: Option<&RootRecord>) -> Result<Self, StoreError> {
        match root {
            None => Ok(Self::clone(self)),
            Some(_) => Err(StoreError::RootKey(
                "the store has a root key, and no provider of it was given".into(),
            )),
        }
    }
}

/// An atomic change of a root key's slots.
#[derive(Clone, Debug, Default)]
pub struct SlotChange {
    /// Slots to add, with numbers from [`RootRecord::next_slot`] on.
    pub add: Vec<RootSlot>,
    /// Numbers of slots to remove.
    pub remove: Vec<u32>,
    /// Numbers of slots that were just tested successfully.
    pub verified: Vec<u32>,
}

/// The records after a change of the KEK.
struct NewState {
    kek: Arc<Kek>,
    root: Option<RootRecord>,
    /// Minimum generation of every live instance for the change.
    served: Option<u64>,
}

impl Control {
    /// Returns the generation and the root record, if the store has a root key. Needs no key and
    /// does not verify the record.
    ///
    /// # Errors
    /// Any error of the store; [`StoreError::Damaged`].
    pub async fn root(&self) -> Result<(u64, Option<RootRecord>), StoreError> {
        let (generation, record) = self.store.unverified().read(ROOT_RECORD).await?;
        Ok((
            generation,
            record
                .map(|record| RootRecord::parse(&record))
                .transpose()?,
        ))
    }

    /// Returns the root record as [`Control::root`] does, verified.
    ///
    /// # Errors
    /// As for [`Control::load`].
    pub async fn verified_root(&self) -> Result<(u64, Option<RootRecord>), StoreError> {
        let (generation, record) = self.store.read(ROOT_RECORD).await?;
        Ok((
            generation,
            record
                .map(|record| RootRecord::parse(&record))
                .transpose()?,
        ))
    }

    /// Returns the KEK of the store's current keys. Verifies the root record.
    ///
    /// # Errors
    /// As for [`Control::load`].
    pub async fn kek(&self) -> Result<Arc<Kek>, StoreError> {
        let (_, root) = self.verified_root().await?;
        self.keks.find(root.as_ref()).await
    }

    /// Creates the first root key of a store and rewraps all keys under it. The audit secret stays
    /// the same. Slot numbers start at [`FIRST_SLOT`]. Returns the new generation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has a root key, or for invalid slots;
    /// [`StoreError::WrongKek`] if the current KEK does not unwrap all keys; any error of the
    /// store, after which the change may or may not have been made.
    pub async fn create_root(
        &self,
        set: [u8; 16],
        root: &RootKey,
        slots: Vec<RootSlot>,
    ) -> Result<u64, StoreError> {
        let entry = new_entry(set, root, slots)?;
        self.wrap_anew(|contents, kek| {
            if contents.root.is_some() {
                return Err(StoreError::Invalid(
                    "the store has a root key already".into(),
                ));
            }
            let next_slot = next_slot(FIRST_SLOT, &entry.slots)?;
            let new = Arc::new(root.kek(&set, kek.audit_secret().clone())?);
            let wrapped_audit = new.wrap_audit_secret(&set)?;
            let active = entry.clone();
            let record = RootRecord {
                set,
                active,
                incoming: None,
                wrapped_audit,
                next_slot,
                sealed_unix_s: None,
            };
            Ok(NewState {
                kek: new,
                root: Some(record),
                served: None,
            })
        })
        .await
    }

    /// Adds a root key that [`Control::activate_root`] can activate. Returns the generation that
    /// every live instance must serve before the activation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key or already has an incoming root key, or
    /// for invalid slots; any error of the store.
    pub async fn stage_root(
        &self,
        root: &RootKey,
        slots: Vec<RootSlot>,
    ) -> Result<u64, StoreError> {
        let bytes = root.expose().clone();
        self.change_root(move |generation, record| {
            if record.incoming.is_some() {
                return Err(StoreError::Invalid(
                    "the store has an incoming root key already".into(),
                ));
            }
            let entry = new_entry(
                record.set,
                &RootKey::from_bytes(bytes.clone()),
                slots.clone(),
            )?;
            record.next_slot = next_slot(record.next_slot, &entry.slots)?;
            record.incoming = Some(IncomingRoot { entry, generation });
            Ok(())
        })
        .await
    }

    /// Makes the incoming root key the only root key. Rewraps all keys and the audit secret under
    /// it. Returns the new generation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no incoming root key; [`StoreError::RootKey`] if
    /// `incoming` is not that key; [`StoreError::NotServed`] while a live instance can lack the
    /// incoming root key; otherwise as for [`Control::create_root`].
    pub async fn activate_root(&self, incoming: &RootKey) -> Result<u64, StoreError> {
        // Checks before the expensive rewrap; the check is repeated before the commit.
        let (_, root) = self.root().await?;
        if root
            .as_ref()
            .is_some_and(|root| root.sealed_unix_s.is_some())
        {
            return Err(StoreError::Sealed);
        }

        self.check_served(
            root.and_then(|root| root.incoming)
                .map(|incoming| incoming.generation),
        )
        .await?;
        self.wrap_anew(|contents, kek| {
            let mut record = contents.root.clone().ok_or_else(no_root)?;
            let IncomingRoot { entry, generation } =
                record.incoming.take().ok_or_else(no_incoming)?;
            let set = record.set;
            if incoming.id(&set)? != entry.id {
                return Err(StoreError::RootKey(
                    "another root key than the incoming one was given".into(),
                ));
            }
            let new = Arc::new(incoming.kek(&set, kek.audit_secret().clone())?);
            (record.active, record.wrapped_audit) = (entry, new.wrap_audit_secret(&set)?);
            Ok(NewState {
                kek: new,
                root: Some(record),
                served: Some(generation),
            })
        })
        .await
    }

    /// Removes the incoming root key. Idempotent. Returns the new generation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key; any error of the store.
    pub async fn abandon_root(&self) -> Result<u64, StoreError> {
        self.change_root(|_, record| {
            record.incoming = None;
            Ok(())
        })
        .await
    }

    /// Changes the slots of the root key with this id. Returns the new generation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no such root key or slot, or if the result has no
    /// slots or too many. Also if new slots do not have the next numbers. Any error of the store.
    pub async fn set_slots(&self, root: [u8; 16], change: SlotChange) -> Result<u64, StoreError> {
        self.change_root(move |_, record| {
            let next_slot = next_slot(record.next_slot, &change.add)?;
            let found = record.root_mut(&root);
            let found = found
                .ok_or_else(|| StoreError::Invalid("the store has no such root key".into()))?;
            let wanted = change.remove.iter().chain(&change.verified);
            let missing = wanted
                .into_iter()
                .find(|number| found.slots.iter().all(|slot| slot.number != **number));
            if let Some(number) = missing {
                return Err(StoreError::Invalid(format!(
                    "the root key has no slot {number}"
                )));
            }
            let now = unix_s();
            for slot in found
                .slots
                .iter_mut()
                .filter(|slot| change.verified.contains(&slot.number))
            {
                slot.verified_unix_s = now;
            }
            found
                .slots
                .retain(|slot| !change.remove.contains(&slot.number));
            found.slots.extend(change.add.iter().cloned());
            record.next_slot = next_slot;
            Ok(())
        })
        .await
    }

    /// Removes the root key and rewraps all keys under `plain`. Returns the new generation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key or has an incoming root key. Also if
    /// the audit secret is not that of `plain`, because the audit log could then no longer be
    /// verified; otherwise as for [`Control::create_root`].
    pub async fn remove_root(&self, plain: Arc<Kek>) -> Result<u64, StoreError> {
        self.wrap_anew(|contents, kek| {
            let record = contents.root.as_ref().ok_or_else(no_root)?;
            if record.incoming.is_some() {
                return Err(StoreError::Invalid(
                    "the store has an incoming root key; activate or abandon it".into(),
                ));
            }
            if plain.audit_secret() != kek.audit_secret() {
                let what = "the audit log is not of this key-encryption key; give the one that the store had before its \
                            root key";
                return Err(StoreError::Invalid(what.into()));
            }
            Ok(NewState {
                kek: Arc::clone(&plain),
                root: None,
                served: None,
            })
        }).await
    }

    /// Seals the store: every process that loads it wipes its keys and serves nothing until
    /// [`Control::unseal`]. Idempotent. Returns the generation. When the method returns, the keys
    /// that this process holds are wiped.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key; [`StoreError::NotAnchored`] although
    /// the store is sealed; any other error of the store, after which the change may or may not
    /// have been made.
    pub async fn seal(&self) -> Result<u64, StoreError> {
        match self
            .change_root(|_, record| {
                record.sealed_unix_s = Some(unix_s());
                Ok(())
            })
            .await
        {
            // Anyone who can write to the store can create the mark, so it must be verified.
            Err(StoreError::Sealed) => {
                let verified = self.store.load_sealed().await;
                self.store.wipe();
                let (generation, _, state) = verified?;
                // The commit of the seal can have stopped before this step.
                self.store.note_committed(&state).await?;
                Ok(generation)
            }
            done => done,
        }
    }

    /// Reverts [`Control::seal`]. Idempotent. Unwraps the root key with the providers and verifies
    /// all records with it. Returns the generation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key; [`StoreError::RootKey`] if no slot
    /// unwraps; [`StoreError::NotAuthentic`] if the mark or another record was not written by a
    /// holder of the root key; any error of the store. After these errors the store stays sealed,
    /// and the keys are wiped again. [`StoreError::NotAnchored`] although the store is unsealed.
    pub async fn unseal(&self) -> Result<u64, StoreError> {
        let (generation, root) = self.root().await?;
        if root.ok_or_else(no_root)?.sealed_unix_s.is_none() {
            return Ok(generation);
        }
        let unsealed = self.remove_seal().await;
        if unsealed
            .as_ref()
            .is_err_and(|error| !matches!(error, StoreError::NotAnchored { .. }))
        {
            self.store.wipe();
        }
        unsealed
    }

    async fn remove_seal(&self) -> Result<u64, StoreError> {
        for tries in 0..TRIES_MAX {
            let (generation, mut record, state) = self.store.load_sealed().await?;
            if record.sealed_unix_s.take().is_none() {
                return Ok(generation);
            }
            let changes = Changes::from([(ROOT_RECORD.to_owned(), Some(checked(&record)?))]);
            match self.store.commit_on(&state, changes, None).await? {
                Commit::Done(generation) => return Ok(generation),
                Commit::Moved => tokio::time::sleep(pause(tries)).await,
            }
        }
        Err(always_late())
    }

    /// Loads the store and returns the id of its state. `None`: a store without a root key.
    ///
    /// # Errors
    /// As for [`Control::load`].
    pub async fn state_id(&self) -> Result<Option<StateId>, StoreError> {
        self.store.load().await?;
        Ok(self.store.seen())
    }

    /// After an older state was restored, raises the generation above the generation that engines
    /// have seen. Changes nothing else. Returns the new generation.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] if the store has no root key, or already has a later generation; any
    /// error of the store.
    pub async fn skip_generations(&self, seen: u64) -> Result<u64, StoreError> {
        if seen > GENERATION_SKIP_MAX {
            return Err(StoreError::Invalid(format!(
                "a generation is at most {GENERATION_SKIP_MAX} here"
            )));
        }

        for tries in 0..TRIES_MAX {
            let mut state = everything(&*self.store).await?;
            let base = state.generation;
            RootRecord::of(&state)?.ok_or_else(no_root)?;
            if base > seen {
                return Err(StoreError::Invalid(format!(
                    "the store is of generation {base} already, later than {seen}"
                )));
            }
            state.generation = seen + 1;
            match self.store.replace(base, &state).await? {
                Commit::Done(generation) => return Ok(generation),
                Commit::Moved => tokio::time::sleep(pause(tries)).await,
            }
        }
        Err(always_late())
    }

    /// Changes only the root record. `edit` gets the generation of the change.
    async fn change_root(
        &self,
        edit: impl Fn(u64, &mut RootRecord) -> Result<(), StoreError> + Send + Sync + 'static,
    ) -> Result<u64, StoreError> {
        Ok(self
            .change(move |contents| {
                let mut record = contents.root.clone().ok_or_else(no_root)?;
                edit(contents.generation + 1, &mut record)?;
                let record = checked(&record)?;
                Ok(RecordEdit {
                    key: ROOT_RECORD.into(),
                    record: Some(record),
                    made: (),
                    reused: None,
                })
            })
            .await?
            .0)
    }

    /// Rewraps all keys under the KEK of the state that `plan` returns, and commits all records at
    /// once. Retries if another change was committed first.
    async fn wrap_anew(
        &self,
        plan: impl Fn(&Contents, &Kek) -> Result<NewState, StoreError> + Send + Sync,
    ) -> Result<u64, StoreError> {
        for tries in 0..TRIES_MAX {
            let (snapshot, old) = self.store.load_with_kek().await?;
            let base = snapshot.generation;
            let (snapshot, contents) = blocking(move || {
                let contents = Contents::read(&snapshot)?;
                Ok((snapshot, contents))
            })
            .await?;
            let new = plan(&contents, &old)?;
            // An instance that starts after this check loads the records of this or a later
            // generation.
            self.check_served(new.served).await?;
            let kek = Arc::clone(&new.kek);
            let changes = blocking(move || wrapped_anew(snapshot, &contents, &old, &new)).await?;
            match self.store.commit_under(base, changes, Some(&kek)).await? {
                Commit::Done(generation) => return Ok(generation),
                Commit::Moved => tokio::time::sleep(pause(tries)).await,
            }
        }
        Err(always_late())
    }

    /// Rejects a change while a live instance serves an older generation than the change requires.
    async fn check_served(&self, generation: Option<u64>) -> Result<(), StoreError> {
        let Some(generation) = generation else {
            return Ok(());
        };
        let instances = self.behind(generation).await?;
        if instances.is_empty() {
            Ok(())
        } else {
            Err(StoreError::NotServed {
                generation,
                instances,
            })
        }
    }
}

/// Returns the changes that rewrap every key under the new KEK. Fails if a key does not unwrap with
/// the old KEK, or if its new copy does not unwrap with the new KEK.
fn wrapped_anew(
    mut snapshot: Snapshot,
    contents: &Contents,
    old: &Kek,
    new: &NewState,
) -> Result<Changes, StoreError> {
    let wrapped = keys::wrap_anew(old, &new.kek, contents)?
        .into_iter()
        .map(|(key, record)| (key, Some(record)));
    let mut changes: Changes = wrapped.collect();
    changes.insert(
        ROOT_RECORD.into(),
        new.root.as_ref().map(checked).transpose()?,
    );
    snapshot.apply("control state", snapshot.generation, &changes)?;
    keys::unwrap_state(&new.kek, &Contents::read(&snapshot)?)?;
    Ok(changes)
}

fn new_entry(set: [u8; 16], root: &RootKey, slots: Vec<RootSlot>) -> Result<RootEntry, StoreError> {
    Ok(RootEntry {
        id: root.id(&set)?,
        created_unix_s: unix_s(),
        slots,
    })
}

/// Checks that new slots have the next numbers. Returns the number that follows.
fn next_slot(next: u32, slots: &[RootSlot]) -> Result<u32, StoreError> {
    slots
        .iter()
        .try_fold(next, |number, slot| {
            (slot.number == number)
                .then(|| number.checked_add(1))
                .flatten()
        })
        .ok_or_else(|| {
            StoreError::Invalid(format!(
                "new slots must be numbered from {next} on; read the root record anew"
            ))
        })
}

/// Serializes a record whose content comes from the operator.
fn checked(record: &RootRecord) -> Result<Vec<u8>, StoreError> {
    record.to_bytes().map_err(|error| match error {
        StoreError::Damaged { what, .. } => StoreError::Invalid(what),
        other => other,
    })
}

fn no_root() -> StoreError {
    StoreError::Invalid("the store has no root key".into())
}

fn no_incoming() -> StoreError {
    StoreError::Invalid("the store has no incoming root key".into())
}
