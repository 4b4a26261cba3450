//! A wrapper of a working token store that can be made to fail or to delay its callers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use sealwire_store::{
    Filter, Fingerprint, FoundRow, Group, MapId, Page, Reseal, Row, StoreError, SubjectId, Sweep,
    TokenId, TokenStore, Written,
};
use tokio::sync::watch;

/// A token store that delays and fails on command.
pub(crate) struct Balky {
    store: Arc<dyn TokenStore>,
    lost: AtomicBool,
    held: watch::Sender<bool>,
    waits: watch::Sender<u32>,
}

impl Balky {
    pub(crate) fn over(store: Arc<dyn TokenStore>) -> Self {
        Self {
            store,
            lost: AtomicBool::new(false),
            held: watch::Sender::new(false),
            waits: watch::Sender::new(0),
        }
    }

    /// Sets whether every operation fails as unavailable.
    pub(crate) fn lose(&self, lost: bool) {
        self.lost.store(lost, Ordering::Relaxed);
    }

    /// Sets whether every operation waits.
    pub(crate) fn hold(&self, held: bool) {
        self.held.send_replace(held);
    }

    /// Waits until `count` operations wait.
    pub(crate) async fn holds(&self, count: u32) {
        self.waits
            .subscribe()
            .wait_for(|waits| *waits >= count)
            .await
            .unwrap();
    }

    /// Returns the number of waiting operations, including those that were dropped while they
    /// waited.
    pub(crate) fn waits(&self) -> u32 {
        *self.waits.borrow()
    }

    async fn ready(&self) -> Result<(), StoreError> {
        if self.lost.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("it was told to".into()));
        }
        self.waits.send_modify(|waits| *waits += 1);
        self.held.subscribe().wait_for(|held| !*held).await.unwrap();
        self.waits.send_modify(|waits| *waits -= 1);
        Ok(())
    }
}

#[async_trait]
impl TokenStore for Balky {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        match self.ready().await {
            Ok(()) => self.store.write(now, groups).await,
            Err(error) => groups
                .iter()
                .map(|_| Err(StoreError::Unavailable(error.to_string())))
                .collect(),
        }
    }

    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.ready().await?;
        self.store.get(now, keys).await
    }

    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.ready().await?;
        self.store.find(now, keys).await
    }

    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        self.ready().await?;
        self.store.delete(map, ids).await
    }

    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        self.ready().await?;
        self.store.expire(now, map, ids, expires).await
    }

    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.ready().await?;
        self.store.list(map, filter, after, limit).await
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
        self.ready().await?;
        self.store
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
        self.ready().await?;
        self.store
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
        self.store.sweep(now, map, sweep, after, limit).await
    }

    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        self.store.count_keys(map, after, limit).await
    }

    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.store
            .rows_of_other_keys(map, number, after, limit)
            .await
    }

    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError> {
        self.store.reseal(map, rows).await
    }

    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.store.subject_rows(app, subject, after, limit).await
    }

    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        self.store
            .erase_subject_rows(app, subject, version, after, limit)
            .await
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.store.next_map(after).await
    }

    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.store.scan(after, limit).await
    }

    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        self.store.put(rows).await
    }
}
