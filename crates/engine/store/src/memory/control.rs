//! Control state and instances behind one lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::MemoryStore;
use crate::control::InstanceTable;
use crate::{Changes, Commit, ControlStore, Instance, Snapshot, StoreError};

/// A handle on the shared state, with the last change that it was notified of.
#[derive(Debug)]
pub(super) struct Handle {
    shared: Arc<MemoryState>,
    told: tokio::sync::Mutex<watch::Receiver<()>>,
}

#[derive(Debug)]
struct MemoryState {
    snapshot: Mutex<Snapshot>,
    beats: InstanceTable,
    moved: watch::Sender<()>,
}

impl Handle {
    fn on(shared: Arc<MemoryState>) -> Self {
        Self {
            told: tokio::sync::Mutex::new(shared.moved.subscribe()),
            shared,
        }
    }

    fn snapshot(&self) -> MutexGuard<'_, Snapshot> {
        self.shared
            .snapshot
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Handle {
    fn default() -> Self {
        Self::on(Arc::new(MemoryState {
            snapshot: Mutex::default(),
            beats: InstanceTable::default(),
            moved: watch::Sender::new(()),
        }))
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::on(Arc::clone(&self.shared))
    }
}

#[async_trait]
impl ControlStore for MemoryStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        Ok(self.control.snapshot().generation)
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(self.control.snapshot().loaded())
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        Ok(self.control.snapshot().one(key))
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        Ok(self.control.snapshot().page(after, limit))
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        let commit = self.control.snapshot().apply("memory", base, changes)?;
        if commit != Commit::Moved {
            self.control.shared.moved.send_replace(());
        }
        Ok(commit)
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        let commit = self
            .control
            .snapshot()
            .become_state("memory", base, state)?;
        if commit != Commit::Moved {
            self.control.shared.moved.send_replace(());
        }
        Ok(commit)
    }

    async fn changed(&self) {
        // The handle owns the sender, so the channel is never closed.
        let _ = self.control.told.lock().await.changed().await;
    }

    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.control.shared.beats.beat(instance);
        Ok(())
    }

    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        Ok(self.control.shared.beats.lease(name, holder, time))
    }

    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.control.shared.beats.leave(id);
        Ok(())
    }

    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        Ok(self.control.shared.beats.instances(age_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn open() -> (Arc<dyn ControlStore>, ()) {
        (Arc::new(MemoryStore::default()), ())
    }

    crate::control_promises!(open);

    #[tokio::test]
    async fn changes_reach_all_handles() {
        let one = MemoryStore::default();
        let other = one.clone();
        one.commit(0, "app/shop", Some(b"{}")).await.unwrap();
        tokio::join!(one.changed(), other.changed());
        assert_eq!(other.load().await.unwrap().records.len(), 1);
    }
}
