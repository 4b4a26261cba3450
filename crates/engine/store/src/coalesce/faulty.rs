//! A wrapper for a working store that is slow or fails on demand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use crate::{
    Filter, Fingerprint, FoundRow, Group, MapId, MemoryStore, Page, Reseal, Row, StoreError,
    SubjectId, Sweep, TokenId, TokenStore, Written,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InjectedFault {
    None,
    /// Fails without doing the operation.
    Before,
    /// Does the operation and then fails, like a connection that breaks during the commit.
    After,
    Panic,
    /// Returns one result too few.
    Short,
}

/// A recorded batch: its time, and the number of rows or keys per request, if the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedBatch {
    pub(super) now: u64,
    pub(super) apps: Vec<(u32, usize)>,
}

impl RecordedBatch {
    pub(super) fn items(&self) -> usize {
        self.apps.iter().map(|(_, items)| items).sum()
    }
}

#[derive(Default)]
pub(super) struct Faulty {
    pub(super) inner: MemoryStore,
    /// Duration of a batch, and of each row or key in it.
    pub(super) trip: Duration,
    pub(super) item: Duration,
    /// Faults of the next batches.
    pub(super) faults: Mutex<VecDeque<InjectedFault>>,
    pub(super) writes: Mutex<Vec<RecordedBatch>>,
    pub(super) looks: Mutex<Vec<RecordedBatch>>,
}

impl Faulty {
    pub(super) fn slow(trip: Duration, item: Duration) -> Arc<Self> {
        Arc::new(Self {
            trip,
            item,
            ..Self::default()
        })
    }

    async fn wait(&self, items: usize) -> InjectedFault {
        sleep(self.trip + self.item * items as u32).await;
        let fault = self
            .faults
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(InjectedFault::None);
        assert!(fault != InjectedFault::Panic, "injected fault");
        fault
    }
}

fn failure() -> StoreError {
    StoreError::Unavailable("injected fault".to_owned())
}

#[async_trait]
impl TokenStore for Faulty {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        let apps = groups
            .iter()
            .map(|group| (group.map.app, group.rows.len()))
            .collect();
        let trip = RecordedBatch { now, apps };
        let items = trip.items();
        self.writes.lock().unwrap().push(trip);
        let calls = groups.len();
        match self.wait(items).await {
            InjectedFault::Before => (0..calls).map(|_| Err(failure())).collect(),
            InjectedFault::After => {
                self.inner.write(now, groups).await;
                (0..calls).map(|_| Err(failure())).collect()
            }
            fault => {
                let mut answers = self.inner.write(now, groups).await;
                answers.truncate(calls - usize::from(fault == InjectedFault::Short));
                answers
            }
        }
    }

    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.looks.lock().unwrap().push(RecordedBatch {
            now,
            apps: keys.iter().map(|(map, _)| (map.app, 1)).collect(),
        });
        match self.wait(keys.len()).await {
            InjectedFault::Before | InjectedFault::After => Err(failure()),
            _ => self.inner.get(now, keys).await,
        }
    }

    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.looks.lock().unwrap().push(RecordedBatch {
            now,
            apps: keys.iter().map(|(map, _)| (map.app, 1)).collect(),
        });
        match self.wait(keys.len()).await {
            InjectedFault::Before | InjectedFault::After => Err(failure()),
            _ => self.inner.find(now, keys).await,
        }
    }

    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        self.inner.delete(map, ids).await
    }

    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        self.inner.expire(now, map, ids, expires).await
    }

    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.inner.list(map, filter, after, limit).await
    }

    async fn archive(
        &self,
        now: u64,
        map: MapId,
        expired_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.inner
            .archive(now, map, expired_before, after, limit, dry_run)
            .await
    }

    async fn prune(
        &self,
        map: MapId,
        archived_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.inner
            .prune(map, archived_before, after, limit, dry_run)
            .await
    }

    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError> {
        self.inner.sweep(now, map, sweep, after, limit).await
    }

    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        self.inner.count_keys(map, after, limit).await
    }

    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.inner
            .rows_of_other_keys(map, number, after, limit)
            .await
    }

    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError> {
        self.inner.reseal(map, rows).await
    }

    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.inner.subject_rows(app, subject, after, limit).await
    }

    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        self.inner
            .erase_subject_rows(app, subject, version, after, limit)
            .await
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.inner.next_map(after).await
    }

    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.inner.scan(after, limit).await
    }

    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        self.inner.put(rows).await
    }
}
