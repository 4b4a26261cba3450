//! State of one tenant: its requests by size and by age, its service, its queues and its bytes.

use crate::admission::TenantAdmission;
use crate::arena::Id;
use crate::class::Class;
use crate::fair::Account;
use crate::heap::{HeapIndex, IndexedHeap};
use crate::units::Time;

/// State of one tenant.
#[derive(Debug)]
pub(crate) struct Tenant<K> {
    pub(crate) key: K,
    pub(crate) account: Account,
    pub(crate) admission: TenantAdmission,
    pub(crate) ready: Ready,
    /// Number of requests that are submitted and not done.
    pub(crate) unfinished: usize,
    /// Number of requests that are not closed.
    pub(crate) requests: usize,
    pub(crate) bytes: u64,
}

impl<K> Tenant<K> {
    pub(crate) fn new(key: K, account: Account, now: Time) -> Self {
        Self {
            key,
            account,
            admission: TenantAdmission::new(now),
            ready: Ready::default(),
            unfinished: 0,
            requests: 0,
            bytes: 0,
        }
    }
}

/// A tenant's requests that are ready to run.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    by_size: IndexedHeap,
    by_age: IndexedHeap,
}

/// Positions of requests in the heaps of their tenant.
#[derive(Debug, Default)]
pub(crate) struct ReadyPlaces {
    by_size: HeapIndex,
    by_age: HeapIndex,
}

impl Ready {
    pub(crate) fn insert(&mut self, places: &mut ReadyPlaces, id: Id, class: Class) {
        self.by_size
            .insert(&mut places.by_size, class.index() as u64, id);
        // The heap orders equal keys by age.
        self.by_age.insert(&mut places.by_age, 0, id);
    }

    pub(crate) fn remove(&mut self, places: &mut ReadyPlaces, id: Id) {
        self.by_size.remove(&mut places.by_size, id);
        self.by_age.remove(&mut places.by_age, id);
    }

    /// Returns the oldest request of the smallest class.
    pub(crate) fn smallest(&self) -> Option<Id> {
        self.by_size.first().map(|(_, id)| id)
    }

    pub(crate) fn oldest(&self) -> Option<Id> {
        self.by_age.first().map(|(_, id)| id)
    }
}
