//! Control state at rest: records by key under one generation, and the instances that serve it.
//!
//! A store knows nothing of what a record says. Every change is one record, written under the next generation, and only
//! if the generation is the one that the change was made from: two changes at once cannot both succeed unseen.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;

use crate::StoreError;

/// How the keys of records begin that are read one by one. There may be hundreds of thousands, so
/// [`ControlStore::load`] leaves them out.
pub const SINGLE: &str = "principal/";

/// Whether the record of that key is read by itself.
pub(crate) fn is_single(key: &str) -> bool {
    key.starts_with(SINGLE)
}

/// Control state as it was at one generation: all of it, or what a method says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Grows by one with every change; 0 before the first.
    pub generation: u64,
    /// What there is, by key.
    pub records: BTreeMap<String, Vec<u8>>,
}

impl Snapshot {
    /// What [`ControlStore::load`] gives of all records.
    pub(crate) fn loaded(&self) -> Self {
        let together = self.records.iter().filter(|(key, _)| !is_single(key));
        Self { generation: self.generation, records: together.map(|(key, of)| (key.clone(), of.clone())).collect() }
    }

    /// What [`ControlStore::read`] gives of all records.
    pub(crate) fn one(&self, key: &str) -> (u64, Option<Vec<u8>>) {
        (self.generation, self.records.get(key).cloned())
    }

    /// What [`ControlStore::singles`] gives of all records.
    pub(crate) fn page(&self, after: Option<&str>, limit: usize) -> Self {
        let from = after.filter(|after| *after >= SINGLE).map_or(Bound::Included(SINGLE), Bound::Excluded);
        let found = self.records.range::<str, _>((from, Bound::Unbounded)).take_while(|(key, _)| is_single(key));
        let records = found.take(limit).map(|(key, of)| (key.clone(), of.clone())).collect();
        Self { generation: self.generation, records }
    }

    /// Makes a change in memory, for stores that hold or rewrite the whole. `place` names the store in errors.
    pub(crate) fn apply(
        &mut self,
        place: &str,
        base: u64,
        key: &str,
        record: Option<&[u8]>,
    ) -> Result<Commit, StoreError> {
        if base != self.generation {
            return Ok(Commit::Moved);
        }
        self.generation = after(place, base)?;
        match record {
            Some(record) => self.records.insert(key.to_owned(), record.to_owned()),
            None => self.records.remove(key),
        };
        Ok(Commit::Done(self.generation))
    }

    /// Takes another state's place in memory, as [`ControlStore::replace`] says.
    pub(crate) fn become_state(&mut self, place: &str, base: u64, state: &Self) -> Result<Commit, StoreError> {
        if base != self.generation {
            return Ok(Commit::Moved);
        }
        self.generation = state.generation.max(after(place, base)?);
        self.records.clone_from(&state.records);
        Ok(Commit::Done(self.generation))
    }
}

/// The next generation. `place` names the store in errors.
pub(crate) fn after(place: &str, generation: u64) -> Result<u64, StoreError> {
    let no_number = || StoreError::Damaged { place: place.to_owned(), what: "no generation left".into() };
    generation.checked_add(1).ok_or_else(no_number)
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// It is durable, under this generation.
    Done(u64),
    /// Nothing was written: the generation is not the one that the change was made from. Load and try again.
    Moved,
}

/// What an instance says of itself, and how long ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Names this run of this engine; random, so that a restart is another instance.
    pub id: String,
    /// Where it takes calls, for people.
    pub address: String,
    /// Its program's version.
    pub version: String,
    /// The generation that it serves; 0 while it has none.
    pub generation: u64,
    /// Since it last said so, by the store's clock.
    pub age: Duration,
}

/// Instances of one process, which need not outlive it.
#[derive(Debug, Default)]
pub(crate) struct Beats {
    /// By id, with the time of the last beat.
    last: Mutex<BTreeMap<String, (Instance, Instant)>>,
    /// Holders of leases by name, and the time at which each runs out.
    leases: Mutex<BTreeMap<String, (String, Instant)>>,
}

impl Beats {
    fn last(&self) -> MutexGuard<'_, BTreeMap<String, (Instance, Instant)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`ControlStore::beat`].
    pub(crate) fn beat(&self, instance: &Instance) {
        self.last().insert(instance.id.clone(), (instance.clone(), Instant::now()));
    }

    /// As [`ControlStore::leave`].
    pub(crate) fn leave(&self, id: &str) {
        self.last().remove(id);
        self.leases().retain(|_, (holder, _)| holder != id);
    }

    fn leases(&self) -> MutexGuard<'_, BTreeMap<String, (String, Instant)>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`ControlStore::lease`].
    pub(crate) fn lease(&self, name: &str, holder: &str, time: Duration) -> bool {
        let (mut leases, now) = (self.leases(), Instant::now());
        if leases.get(name).is_some_and(|(other, until)| other != holder && *until > now) {
            return false;
        }
        leases.insert(name.to_owned(), (holder.to_owned(), now + time));
        true
    }

    /// As [`ControlStore::instances`].
    pub(crate) fn instances(&self, age_max: Duration) -> Vec<Instance> {
        let mut last = self.last();
        last.retain(|_, (_, beat)| beat.elapsed() <= age_max);
        last.values().map(|(instance, beat)| Instance { age: beat.elapsed(), ..instance.clone() }).collect()
    }
}

/// Where control state rests. Every method answers in bounded time.
#[async_trait]
pub trait ControlStore: Send + Sync {
    /// The present generation. Cheap: it is asked at every poll.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Io`] or [`StoreError::Damaged`]; so in every method here.
    async fn generation(&self) -> Result<u64, StoreError>;

    /// Everything but what is read one by one ([`SINGLE`]), as it was at one generation.
    ///
    /// # Errors
    /// As above.
    async fn load(&self) -> Result<Snapshot, StoreError>;

    /// The record of one key, whichever it is, and the generation this is true of. `None`: there is none.
    ///
    /// # Errors
    /// As above.
    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError>;

    /// A part of the records that are read one by one, as they were at one generation: the first `limit` whose keys come
    /// after `after`, in the order of bytes.
    ///
    /// # Errors
    /// As above.
    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError>;

    /// Puts `record` at `key`, or removes what is there, if the generation is still `base`. Durable when it returns
    /// [`Commit::Done`]; after an error it may have happened or not.
    ///
    /// # Errors
    /// As above; [`StoreError::ReadOnly`] where this store is not written.
    async fn commit(&self, base: u64, key: &str, record: Option<&[u8]>) -> Result<Commit, StoreError>;

    /// Puts `state` in the place of everything, if the generation is still `base`: to copy a store, which begins and ends
    /// so. The generation becomes that of `state`, or the next one after `base` where that is higher. Durable when it
    /// returns [`Commit::Done`]; after an error it may have happened or not, whole.
    ///
    /// # Errors
    /// As for [`ControlStore::commit`].
    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError>;

    /// Returns when the generation may have moved, as soon as the store can tell. A store that cannot tell never
    /// returns; whoever waits also polls. Safe to drop midway; a change between two waits is not missed. One task waits
    /// on an opened store: what it was told, another is not.
    async fn changed(&self);

    /// Says that an instance lives and which generation it serves. Its `age` is ignored.
    ///
    /// # Errors
    /// As above.
    async fn beat(&self, instance: &Instance) -> Result<(), StoreError>;

    /// Takes the lease called `name` for the instance `holder` until `time` from now has passed, or extends it. Returns
    /// whether `holder` has it: at most one instance does, by the store's clock.
    ///
    /// # Errors
    /// As above.
    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError>;

    /// Takes an instance out, at the end of its drain, and gives up its leases.
    ///
    /// # Errors
    /// As above.
    async fn leave(&self, id: &str) -> Result<(), StoreError>;

    /// Every instance that has said so within `age_max`, by id; older ones may be removed.
    ///
    /// # Errors
    /// As above.
    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError>;
}

/// Records asked for at once.
const PAGE: usize = 1_000;
/// How often everything is read again because something changed meanwhile.
const TRIES_MAX: u32 = 16;

/// All records of one generation, those too that are read one by one. All of them are in memory then.
///
/// # Errors
/// What the store says; [`StoreError::Unavailable`] when it changes all the time.
pub async fn everything(store: &dyn ControlStore) -> Result<Snapshot, StoreError> {
    'again: for _ in 0..TRIES_MAX {
        let mut all = store.load().await?;
        let mut after: Option<String> = None;
        loop {
            let page = store.singles(after.as_deref(), PAGE).await?;
            if page.generation != all.generation {
                continue 'again;
            }
            let Some((last, _)) = page.records.last_key_value() else { return Ok(all) };
            after = Some(last.clone());
            all.records.extend(page.records);
        }
    }
    Err(StoreError::Unavailable("its records are being changed all the time".into()))
}
