//! A control store that verifies records on read and authenticates records on write.
//!
//! Only a store with a root key has an index of its records ([`RecordIndex`]). The records of a
//! store without a root key pass unchanged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sealwire_crypto::{Kek, StateKey};
use sealwire_store::{
    Changes, Commit, ControlStore, Instance, Snapshot, StoreError, after as next_generation,
    everything,
};

use super::record_index::{HEAD, RecordIndex, check_page, check_without_root, code_of, head};
use super::root::{FindKek, Freshness};
use super::root_record::{ROOT_RECORD, RootRecord};
use super::{TRIES_MAX, blocking, pause};

/// The store; see the module documentation. [`Self::unverified`] reads without the index.
pub struct AuthenticatedStore {
    store: Arc<dyn ControlStore>,
    keks: Arc<dyn FindKek>,
    latest: Mutex<Latest>,
    /// Held while a lookup loads the records, so that concurrent lookups wait and use the result.
    loading: tokio::sync::Mutex<()>,
}

/// The latest state that this process knows.
#[derive(Default)]
struct Latest {
    state: Option<Arc<VerifiedState>>,
    /// The state of the highest generation that this process verified or wrote. When set, this
    /// process rejects other sets of root keys, and a store without a root key.
    seen: Option<StateId>,
    /// Number of wipes of the keys. A load that started before the last wipe keeps no key.
    wipes: u64,
}

impl Latest {
    /// Records a state that was verified or written. Returns false if a state of a later generation
    /// is recorded.
    fn note(&mut self, id: StateId) -> bool {
        let is_later = self
            .seen
            .is_some_and(|seen| seen.generation > id.generation);
        if !is_later {
            self.seen = Some(id);
        }
        !is_later
    }
}

/// Identifies a state of a store with a root key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateId {
    /// Identifies the set of root keys.
    pub set: [u8; 16],
    /// Generation of the records.
    pub generation: u64,
    /// Authentication code of the records.
    pub code: [u8; 32],
}

impl StateId {
    /// Returns true if this state cannot follow a state that was seen. Such a state has an earlier
    /// generation, or differs in the same generation.
    #[must_use]
    pub fn contradicts(&self, seen: &Self) -> bool {
        let is_other = self.generation == seen.generation && self.code != seen.code;
        self.set == seen.set && (self.generation < seen.generation || is_other)
    }
}

/// A generation that this process verified or wrote.
pub(super) struct VerifiedState {
    generation: u64,
    /// `None`: a store without a root key.
    index: Option<StateIndex>,
    freshness: Freshness,
}

#[derive(Clone)]
struct StateIndex {
    id: StateId,
    /// Ids of the root keys: the active root key, then the incoming root key.
    roots: Arc<[[u8; 16]]>,
    kek: Arc<Kek>,
    records: RecordIndex,
    /// The digests of individually read records. Set when the first page of them is read.
    singles: Arc<OnceLock<BTreeMap<String, String>>>,
}

impl StateIndex {
    fn new(
        set: [u8; 16],
        roots: Arc<[[u8; 16]]>,
        generation: u64,
        kek: Arc<Kek>,
        records: RecordIndex,
    ) -> Result<Self, StoreError> {
        let id = StateId {
            set,
            generation,
            code: records.code(state_key(&kek)?, generation),
        };
        Ok(Self {
            id,
            roots,
            kek,
            records,
            singles: Arc::default(),
        })
    }
}

impl AuthenticatedStore {
    pub(super) fn new(store: Arc<dyn ControlStore>, keks: Arc<dyn FindKek>) -> Self {
        Self {
            store,
            keks,
            latest: Mutex::default(),
            loading: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the underlying store, whose records are not verified.
    #[must_use]
    pub fn unverified(&self) -> &Arc<dyn ControlStore> {
        &self.store
    }

    /// Returns the highest generation that was seen, if the last verified state is a restored older
    /// state.
    #[must_use]
    pub fn rolled_back(&self) -> Option<u64> {
        match self.latest().state.as_ref()?.freshness {
            Freshness::RolledBack { seen } => Some(seen),
            Freshness::Latest => None,
        }
    }

    /// Returns the state of the highest generation that this process verified or wrote.
    pub(super) fn seen(&self) -> Option<StateId> {
        self.latest().seen
    }

    /// Loads and verifies the records. Also returns the key-encryption key of the store's keys.
    pub(super) async fn load_with_kek(&self) -> Result<(Snapshot, Arc<Kek>), StoreError> {
        let (snapshot, kek) = self.load_verified().await?;
        let kek = match kek {
            Some(kek) => kek,
            None => self.keks.find(None).await?,
        };
        Ok((snapshot, kek))
    }

    /// Loads and verifies the records. Also returns the key-encryption key if the store has a root
    /// key.
    async fn load_verified(&self) -> Result<(Snapshot, Option<Arc<Kek>>), StoreError> {
        // Of concurrent loads, the older one can end last. So the lower bound for this load is the
        // state that was seen before its start.
        let (seen, wipes) = self.bounds();
        let stored = self.store.load().await?;
        let generation = stored.generation;
        let root = RootRecord::of(&stored)?;

        if seen.is_some_and(|seen| root.as_ref().is_none_or(|root| root.set != seen.set)) {
            return Err(other_root());
        }

        let Some(root) = root else {
            check_without_root(&stored)?;
            self.verified_without_root(generation).await?;
            return Ok((stored, None));
        };

        if root.sealed_unix_s.is_some() {
            self.apply_seal(&root, stored, seen).await;
            return Err(StoreError::Sealed);
        }

        let kek = self.keks.find(Some(&root)).await?;
        let (snapshot, state) = self.verify(&root, Arc::clone(&kek), stored, seen).await?;
        self.keep(state, wipes);
        if self.bounds().1 != wipes {
            // The key was found after the wipe, so it can be cached.
            self.keks.wipe();
        }
        Ok((snapshot, Some(kek)))
    }

    /// Verifies a state with the key of its root record.
    async fn verify(
        &self,
        root: &RootRecord,
        kek: Arc<Kek>,
        stored: Snapshot,
        seen: Option<StateId>,
    ) -> Result<(Snapshot, VerifiedState), StoreError> {
        let generation = stored.generation;
        let set = root.set;
        let roots = root.ids();
        let (snapshot, index) = blocking(move || {
            let (snapshot, records) = RecordIndex::open(state_key(&kek)?, stored)?;
            Ok((
                snapshot,
                StateIndex::new(set, roots, generation, kek, records)?,
            ))
        })
        .await?;

        let freshness = self
            .keks
            .verified(Some((root, &index.id)), seen.as_ref())
            .await?;
        Ok((
            snapshot,
            VerifiedState {
                generation,
                index: Some(index),
                freshness,
            },
        ))
    }

    /// Wipes all keys, even if the mark is not authentic. If this process still has the key and the
    /// sealed state verifies, records that state, so that earlier states are rejected.
    async fn apply_seal(&self, root: &RootRecord, stored: Snapshot, seen: Option<StateId>) {
        let index = self
            .latest()
            .state
            .as_ref()
            .and_then(|state| state.index.clone());

        if let Some(StateIndex { kek, .. }) = index.filter(|index| index.id.set == root.set)
            && let Ok((
                _,
                VerifiedState {
                    index: Some(index),
                    freshness: Freshness::Latest,
                    ..
                },
            )) = self.verify(root, kek, stored, seen).await
        {
            self.latest().note(index.id);
        }
        self.wipe();
    }

    /// Wipes all keys that this process holds.
    pub(super) fn wipe(&self) {
        let mut latest = self.latest();
        latest.state = None;
        latest.wipes += 1;
        drop(latest);
        self.keks.wipe();
    }

    /// Loads and verifies the records of a sealed store, only for [`Self::commit_on`]. Caches
    /// nothing. Returns the generation, the root record and the verified state.
    pub(super) async fn load_sealed(&self) -> Result<(u64, RootRecord, VerifiedState), StoreError> {
        let (seen, _) = self.bounds();
        let stored = self.store.load().await?;
        let root = RootRecord::of(&stored)?
            .ok_or_else(|| StoreError::Invalid("the store has no root key".into()))?;
        if seen.is_some_and(|seen| root.set != seen.set) {
            return Err(other_root());
        }
        let kek = self.keks.find(Some(&root)).await?;
        let (snapshot, state) = self.verify(&root, kek, stored, seen).await?;
        Ok((snapshot.generation, root, state))
    }

    #[cfg(test)]
    pub(super) fn keeps_a_key(&self) -> bool {
        self.latest().state.is_some()
    }

    /// Returns the lower bound for a load that starts now, and the current number of wipes.
    fn bounds(&self) -> (Option<StateId>, u64) {
        let latest = self.latest();
        (latest.seen, latest.wipes)
    }

    async fn verified_without_root(
        &self,
        generation: u64,
    ) -> Result<Arc<VerifiedState>, StoreError> {
        let (_, wipes) = self.bounds();
        let freshness = self.keks.verified(None, None).await?;
        Ok(self.keep(
            VerifiedState {
                generation,
                index: None,
                freshness,
            },
            wipes,
        ))
    }

    /// Makes a change after which the store's keys are wrapped under `kek`. If the store has no
    /// root record after the change, `kek` is not used.
    pub(super) async fn commit_under(
        &self,
        base: u64,
        changes: Changes,
        kek: Option<&Arc<Kek>>,
    ) -> Result<Commit, StoreError> {
        let Some(state) = self.state(base).await? else {
            return Ok(Commit::Moved);
        };
        self.commit_on(&state, changes, kek).await
    }

    /// Makes a change on a verified state, as [`Self::commit_under`] does.
    pub(super) async fn commit_on(
        &self,
        state: &VerifiedState,
        changes: Changes,
        kek: Option<&Arc<Kek>>,
    ) -> Result<Commit, StoreError> {
        let base = state.generation;
        if let Freshness::RolledBack { seen } = state.freshness {
            return Err(StoreError::RolledBack {
                generation: base,
                seen,
            });
        }

        if let Some(index) = &state.index
            && !self.is_stored(&index.id).await?
        {
            // The cached index belongs to another, lost state of this generation.
            self.latest().state = None;
            return Ok(Commit::Moved);
        }

        let generation = next_generation("control state", base)?;
        let (changes, after) = match (&state.index, changes.get(ROOT_RECORD)) {
            (None, None | Some(None)) => (changes, None),
            (None, Some(Some(root))) => {
                let root = RootRecord::parse(root)?;
                let set = root.set;
                let roots = root.ids();
                let mut all = everything(&*self.store).await?;
                if all.apply("control state", base, &changes)? == Commit::Moved {
                    return Ok(Commit::Moved);
                }
                let kek = kek.cloned().ok_or_else(no_root_key)?;
                blocking(move || {
                    let records = RecordIndex::of(&all.records);
                    let rows = records
                        .clone()
                        .into_rows()
                        .map(|(key, row)| (key, Some(row)));
                    let changes = changes.into_iter().chain(rows).collect();
                    Ok((
                        changes,
                        Some(StateIndex::new(set, roots, generation, kek, records)?),
                    ))
                })
                .await?
            }
            (Some(index), Some(None)) => {
                // Without an index, individually read records are no longer verified, so all
                // records are read and checked here.
                if everything(self).await?.generation != base {
                    return Ok(Commit::Moved);
                }
                let rows = index
                    .records
                    .clone()
                    .into_rows()
                    .map(|(key, _)| (key, None));
                (
                    changes
                        .into_iter()
                        .chain(rows)
                        .chain([(HEAD.into(), None)])
                        .collect(),
                    None,
                )
            }
            (Some(index), root @ (None | Some(Some(_)))) => {
                let kek = kek.unwrap_or(&index.kek).clone();
                let index = index.clone();
                // Each reader rejects a damaged record.
                let changed = root
                    .and_then(Option::as_ref)
                    .and_then(|root| RootRecord::parse(root).ok());
                let roots = changed.map_or_else(|| Arc::clone(&index.roots), |root| root.ids());
                blocking(move || {
                    let (records, rows) = index.records.changed(&changes)?;
                    let changes = changes.into_iter().chain(rows).collect();
                    Ok((
                        changes,
                        Some(StateIndex::new(
                            index.id.set,
                            roots,
                            generation,
                            kek,
                            records,
                        )?),
                    ))
                })
                .await?
            }
        };
        self.commit_state(base, changes, after).await
    }

    /// Commits changes, which include changes of the index but not of its head.
    async fn commit_state(
        &self,
        base: u64,
        mut changes: Changes,
        index: Option<StateIndex>,
    ) -> Result<Commit, StoreError> {
        if let Some(StateIndex { id, .. }) = &index {
            changes.insert(HEAD.into(), Some(head(id.generation, &id.code)));
        }

        let removes_root = changes.get(ROOT_RECORD) == Some(&None);
        let root = changes.get(ROOT_RECORD).and_then(Option::as_deref);
        let is_sealed = root.is_some_and(|root| {
            RootRecord::parse(root).is_ok_and(|root| root.sealed_unix_s.is_some())
        });
        let (_, wipes) = self.bounds();
        let commit = self.store.commit_all(base, &changes).await?;
        let Commit::Done(generation) = commit else {
            return Ok(commit);
        };
        let committed = index
            .as_ref()
            .map(|index| (index.id, Arc::clone(&index.roots)));

        match index {
            Some(StateIndex { id, .. }) if is_sealed => {
                self.latest().note(id);
                self.wipe();
            }
            index => {
                if removes_root {
                    self.latest().seen = None;
                }
                self.keep(
                    VerifiedState {
                        generation,
                        index,
                        freshness: Freshness::Latest,
                    },
                    wipes,
                );
            }
        }

        // Every commit passes through this function or `replace`. The state is recorded here and
        // not by the next load, because a seal wipes the keys that the load needs to verify it.
        if let Some((id, roots)) = committed {
            self.keks.committed(&id, &roots).await?;
        }
        Ok(commit)
    }

    /// Calls [`FindKek::committed`] for a state, if the store has a root key.
    pub(super) async fn note_committed(&self, state: &VerifiedState) -> Result<(), StoreError> {
        match &state.index {
            Some(index) if state.freshness == Freshness::Latest => {
                self.keks.committed(&index.id, &index.roots).await
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the store currently has this state.
    async fn is_stored(&self, id: &StateId) -> Result<bool, StoreError> {
        let (generation, stored) = self.store.read(HEAD).await?;
        let code = stored.map(|stored| code_of(&stored)).transpose()?;
        Ok(generation == id.generation && code.as_deref() == Some(&id.code[..]))
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Caches a state, unless a later state is known or keys were wiped after `wipes` was read. A
    /// restored older state is cached, but not recorded as seen.
    fn keep(&self, state: VerifiedState, wipes: u64) -> Arc<VerifiedState> {
        let state = Arc::new(state);
        let mut latest = self.latest();
        if latest.wipes != wipes || state.index.is_none() && latest.seen.is_some() {
            return state;
        }
        if let (Some(id), Freshness::Latest) =
            (state.index.as_ref().map(|index| index.id), state.freshness)
            && !latest.note(id)
        {
            return state;
        }
        latest.state = Some(Arc::clone(&state));
        state
    }

    /// Returns the verified state of a generation. Returns `None` if the store has another
    /// generation.
    async fn state(&self, generation: u64) -> Result<Option<Arc<VerifiedState>>, StoreError> {
        if let Some(state) = self.cached_state(generation) {
            return Ok(Some(state));
        }

        let _guard = self.loading.lock().await;
        if let Some(state) = self.cached_state(generation) {
            return Ok(Some(state));
        }

        // A store without a root key can have many records, so it is recognized without loading
        // them.
        if self.latest().seen.is_none() {
            let (found, root) = self.store.read(ROOT_RECORD).await?;
            if found == generation && root.is_none() && self.store.read(HEAD).await?.1.is_none() {
                return self.verified_without_root(generation).await.map(Some);
            }
        }

        self.load_verified().await?;
        Ok(self.cached_state(generation))
    }

    fn cached_state(&self, generation: u64) -> Option<Arc<VerifiedState>> {
        let state = self.latest().state.clone();
        state.filter(|state| state.generation == generation)
    }
}

/// Returns the error for a store that lost or changed its set of root keys while this process runs.
fn other_root() -> StoreError {
    let what = "it was removed, or is of another set of root keys than before; if that was you, restart this process";
    StoreError::NotAuthentic {
        key: ROOT_RECORD.into(),
        what: what.into(),
    }
}

fn state_key(kek: &Kek) -> Result<&StateKey, StoreError> {
    kek.state_key().ok_or_else(no_root_key)
}

fn no_root_key() -> StoreError {
    StoreError::RootKey(
        "the key of a root key is needed, and a plain key-encryption key was given".into(),
    )
}

fn always_changed() -> StoreError {
    StoreError::Unavailable("its records are being changed all the time".into())
}

#[async_trait]
impl ControlStore for AuthenticatedStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        self.store.generation().await
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(self.load_verified().await?.0)
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        for tries in 0..TRIES_MAX {
            let (generation, record) = self.store.read(key).await?;
            let Some(state) = self.state(generation).await? else {
                tokio::time::sleep(pause(tries)).await;
                continue;
            };
            if let Some(index) = &state.index {
                index.records.check(key, record.as_deref())?;
            }
            return Ok((generation, record));
        }
        Err(always_changed())
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        for tries in 0..TRIES_MAX {
            let page = self.store.singles(after, limit).await?;
            let Some(state) = self.state(page.generation).await? else {
                tokio::time::sleep(pause(tries)).await;
                continue;
            };
            let Some(index) = state.index.clone() else {
                return Ok(page);
            };
            let after = after.map(str::to_owned);
            return blocking(move || {
                let singles = match index.singles.get() {
                    Some(singles) => singles,
                    None => {
                        let parsed = index.records.singles()?;
                        index.singles.get_or_init(|| parsed)
                    }
                };
                check_page(singles, after.as_deref(), limit, &page.records)?;
                Ok(page)
            })
            .await;
        }
        Err(always_changed())
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        self.commit_under(base, changes.clone(), None).await
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        let Some(root) = RootRecord::of(state)? else {
            return self.store.replace(base, state).await;
        };
        let kek = self.keks.find(Some(&root)).await?;
        let generation = next_generation("control state", base)?.max(state.generation);
        let mut records = state.records.clone();
        let index = RecordIndex::of(&records);
        let id = StateId {
            set: root.set,
            generation,
            code: index.code(state_key(&kek)?, generation),
        };
        records.insert(HEAD.into(), head(generation, &id.code));
        records.extend(index.into_rows());
        let commit = self
            .store
            .replace(
                base,
                &Snapshot {
                    generation,
                    records,
                },
            )
            .await?;

        if let Commit::Done(_) = commit {
            self.keks.committed(&id, &root.ids()).await?;
        }
        Ok(commit)
    }

    async fn changed(&self) {
        self.store.changed().await;
    }

    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.store.beat(instance).await
    }

    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        self.store.lease(name, holder, time).await
    }

    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.store.leave(id).await
    }

    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        self.store.instances(age_max).await
    }
}

impl std::fmt::Debug for AuthenticatedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthenticatedStore").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sealwire_store::MemoryStore;

    use super::*;

    /// A store without a root key keeps every promise of the store below it.
    async fn open() -> (Arc<dyn ControlStore>, ()) {
        let kek = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
        (
            Arc::new(AuthenticatedStore::new(
                Arc::new(MemoryStore::default()),
                Arc::new(Arc::new(kek)),
            )),
            (),
        )
    }

    sealwire_store::control_promises!(open);
}
