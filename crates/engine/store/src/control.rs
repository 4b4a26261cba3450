//! Storage of control state: records by key under one generation, and the instances that serve the
//! records.
//!
//! A store does not interpret records. Every change writes one or more records under the next
//! generation. A change succeeds only if the generation is still the one that the change was based
//! on. So two concurrent changes cannot overwrite each other.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::StoreError;

/// Key prefix of the records that are read individually. A store can hold hundreds of thousands of
/// such records, so [`ControlStore::load`] omits them.
pub const SINGLE: &str = "principal/";

/// Returns true if the record with this key is read individually.
pub fn is_single(key: &str) -> bool {
    key.starts_with(SINGLE)
}

/// The records that a change writes, by key. `None` removes the record.
pub type Changes = BTreeMap<String, Option<Vec<u8>>>;

/// Control state at one generation: all records, or the subset that a method documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Generation of the records. Grows by one with every change; 0 before the first change.
    pub generation: u64,
    /// Records by key.
    pub records: BTreeMap<String, Vec<u8>>,
}

impl Snapshot {
    /// Returns the part of all records that [`ControlStore::load`] returns.
    pub fn loaded(&self) -> Self {
        let together = self.records.iter().filter(|(key, _)| !is_single(key));
        Self {
            generation: self.generation,
            records: together
                .map(|(key, of)| (key.clone(), of.clone()))
                .collect(),
        }
    }

    /// Returns a single record, as [`ControlStore::read`] does.
    pub fn one(&self, key: &str) -> (u64, Option<Vec<u8>>) {
        (self.generation, self.records.get(key).cloned())
    }

    /// Returns a page of all records, as [`ControlStore::singles`] does.
    pub fn page(&self, after: Option<&str>, limit: usize) -> Self {
        let from = after
            .filter(|after| *after >= SINGLE)
            .map_or(Bound::Included(SINGLE), Bound::Excluded);
        let found = self
            .records
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| is_single(key));
        let records = found
            .take(limit)
            .map(|(key, of)| (key.clone(), of.clone()))
            .collect();
        Self {
            generation: self.generation,
            records,
        }
    }

    /// Applies a change in memory, for stores that keep or rewrite the whole state. `place` names
    /// the store in errors.
    pub fn apply(
        &mut self,
        place: &str,
        base: u64,
        changes: &Changes,
    ) -> Result<Commit, StoreError> {
        if base != self.generation {
            return Ok(Commit::Moved);
        }
        self.generation = after(place, base)?;
        for (key, record) in changes {
            match record {
                Some(record) => self.records.insert(key.clone(), record.clone()),
                None => self.records.remove(key),
            };
        }
        Ok(Commit::Done(self.generation))
    }

    /// Replaces this state in memory, as [`ControlStore::replace`] specifies.
    pub fn become_state(
        &mut self,
        place: &str,
        base: u64,
        state: &Self,
    ) -> Result<Commit, StoreError> {
        if base != self.generation {
            return Ok(Commit::Moved);
        }
        self.generation = state.generation.max(after(place, base)?);
        self.records.clone_from(&state.records);
        Ok(Commit::Done(self.generation))
    }
}

/// Returns the next generation. `place` names the store in errors.
pub fn after(place: &str, generation: u64) -> Result<u64, StoreError> {
    generation
        .checked_add(1)
        .ok_or_else(|| StoreError::Damaged {
            place: place.to_owned(),
            what: "no generation left".into(),
        })
}

/// Result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The change is durable, under this generation.
    Done(u64),
    /// Nothing was written, because the generation is not the one that the change was based on.
    /// Load and try again.
    Moved,
}

/// Status that an engine instance reports about itself, and its age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Random id of this run of the engine. After a restart the engine is another instance.
    pub id: String,
    /// Listen address, for people.
    pub address: String,
    /// Version of the program.
    pub version: String,
    /// Generation that the instance serves; 0 before the first load.
    pub generation: u64,
    /// Time since the last report, by the store's clock.
    pub age: Duration,
}

/// Maximum age of the last report of a live instance. An instance can miss two polls.
pub const LIVE_AGE_MAX: Duration = Duration::from_secs(90);

/// Instances and leases of stores within one process, without persistence.
#[derive(Debug, Default)]
pub struct InstanceTable {
    /// By instance id, with the time of the last report.
    last: Mutex<BTreeMap<String, (Instance, Instant)>>,
    /// Holders of leases by lease name, and the expiry time of each lease.
    leases: Mutex<BTreeMap<String, (String, Instant)>>,
}

impl InstanceTable {
    fn last(&self) -> MutexGuard<'_, BTreeMap<String, (Instance, Instant)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Implements [`ControlStore::beat`].
    pub fn beat(&self, instance: &Instance) {
        self.last()
            .insert(instance.id.clone(), (instance.clone(), Instant::now()));
    }

    /// Implements [`ControlStore::leave`].
    pub fn leave(&self, id: &str) {
        self.last().remove(id);
        self.leases().retain(|_, (holder, _)| holder != id);
    }

    fn leases(&self) -> MutexGuard<'_, BTreeMap<String, (String, Instant)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Implements [`ControlStore::lease`].
    pub fn lease(&self, name: &str, holder: &str, time: Duration) -> bool {
        let mut leases = self.leases();
        let now = Instant::now();
        if leases
            .get(name)
            .is_some_and(|(other, until)| other != holder && *until > now)
        {
            return false;
        }
        leases.insert(name.to_owned(), (holder.to_owned(), now + time));
        true
    }

    /// Implements [`ControlStore::instances`].
    pub fn instances(&self, age_max: Duration) -> Vec<Instance> {
        let mut last = self.last();
        last.retain(|_, (_, beat)| beat.elapsed() <= age_max);
        last.values()
            .map(|(instance, beat)| Instance {
                age: beat.elapsed(),
                ..instance.clone()
            })
            .collect()
    }
}

/// Persistent control state. Every method returns in bounded time.
#[async_trait]
pub trait ControlStore: Send + Sync {
    /// Returns the current generation. This method must be cheap, because every poll calls it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Io`] or [`StoreError::Damaged`], as in every
    /// method of this trait.
    async fn generation(&self) -> Result<u64, StoreError>;

    /// Returns all records of one generation, except the individually read records ([`SINGLE`]).
    ///
    /// # Errors
    /// As for [`ControlStore::generation`].
    async fn load(&self) -> Result<Snapshot, StoreError>;

    /// Returns the record of a key, and the generation of the read. The record is `None` if it does
    /// not exist.
    ///
    /// # Errors
    /// As for [`ControlStore::generation`].
    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError>;

    /// Returns a page of the individually read records at one generation. The page has the first
    /// `limit` records whose keys follow `after`, in byte order.
    ///
    /// # Errors
    /// As for [`ControlStore::generation`].
    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError>;

    /// Writes and removes records under one new generation, if the generation is still `base`.
    /// Makes all of `changes` or none. The changes are durable on [`Commit::Done`]. After an error,
    /// the changes may or may not have been made.
    ///
    /// # Errors
    /// As for [`ControlStore::generation`]; [`StoreError::ReadOnly`] if this store cannot be
    /// written.
    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError>;

    /// Writes `record` at `key`, or removes the record at `key`, as [`Self::commit_all`] does.
    ///
    /// # Errors
    /// As for [`Self::commit_all`].
    async fn commit(
        &self,
        base: u64,
        key: &str,
        record: Option<&[u8]>,
    ) -> Result<Commit, StoreError> {
        self.commit_all(
            base,
            &Changes::from([(key.to_owned(), record.map(<[u8]>::to_vec))]),
        )
        .await
    }

    /// Replaces all records with `state`, if the generation is still `base`. Copying a store starts
    /// and ends with this call. The generation becomes that of `state` or the one after `base`,
    /// whichever is higher. The change is durable on [`Commit::Done`]. After an error, the whole
    /// change may or may not have been made.
    ///
    /// # Errors
    /// As for [`ControlStore::commit`].
    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError>;

    /// Waits until the generation may have changed. A store without notifications never returns, so
    /// callers must also poll. The future is cancel-safe: a change between two waits is not missed.
    /// Only one task may wait on an opened store, because a notification wakes only one task.
    async fn changed(&self);

    /// Records that an instance is alive and which generation it serves. The `age` field is
    /// ignored.
    ///
    /// # Errors
    /// As for [`ControlStore::generation`].
    async fn beat(&self, instance: &Instance) -> Result<(), StoreError>;

    /// Acquires or extends the lease `name` for the instance `holder`, for `time` from now. Returns
    /// true if `holder` has the lease. By the store's clock, at most one instance has the lease.
    ///
    /// # Errors
    /// As for [`ControlStore::generation`].
    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError>;

    /// Removes an instance at the end of its drain, and releases its leases.
    ///
    /// # Errors
    /// As for [`ControlStore::generation`].
    async fn leave(&self, id: &str) -> Result<(), StoreError>;

    /// Returns every instance that reported within `age_max`, by id. Older instances can be
    /// removed.
    ///
    /// # Errors
    /// As for [`ControlStore::generation`].
    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError>;
}

/// Records requested per page.
const PAGE: usize = 1_000;
/// Maximum number of attempts to read everything while records change.
const TRIES_MAX: u32 = 16;

/// Returns all records of one generation, including the individually read ones. All records are in
/// memory at once.
///
/// # Errors
/// Any error of the store; [`StoreError::Unavailable`] if records changed during every attempt.
pub async fn everything(store: &dyn ControlStore) -> Result<Snapshot, StoreError> {
    'again: for _ in 0..TRIES_MAX {
        let mut all = store.load().await?;
        let mut after: Option<String> = None;
        loop {
            let page = store.singles(after.as_deref(), PAGE).await?;
            if page.generation != all.generation {
                continue 'again;
            }
            let Some((last, _)) = page.records.last_key_value() else {
                return Ok(all);
            };
            after = Some(last.clone());
            all.records.extend(page.records);
        }
    }
    Err(StoreError::Unavailable(
        "its records are being changed all the time".into(),
    ))
}
