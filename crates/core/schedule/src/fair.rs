//! Chooses the next tenant: size classes first, bounded by fairness between tenants.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng 1996) keeps a virtual time `V`, which advances by
//! `work / sum of weights` of the tenants with work, and per tenant the virtual service it got,
//! `u`. Here a tenant has one `u` per class, which counts service in that class **and all smaller
//! ones**:
//!
//! ```text
//! charge(tenant, class k, work):
//!          V += work / weights
//!          for j >= k:  u[j] = min(max(u[j], V - 20 ms) + work / w, V + 40 ms)
//! next_tenant():
//!          for k in 0..8:  among tenants whose smallest request is of class k, the least u[k], if u[k] <= V + 20 ms
//!          else:           the tenant with the least u[7]
//! ```
//!
//! So a tenant's own 100 ms of batch work never disqualifies its next small request; only many
//! small requests do. Since `u[j]` does not fall with `j`, a tenant whose smallest request fails the
//! limit would fail it with every other, so one check per tenant is enough. Both bounds on `u`
//! matter. Without the lower bound, a tenant saves up seconds of credit. Without the upper bound, a
//! tenant waits for seconds because it used otherwise idle workers.
//!
//! A tenant without requests is forgotten once `u[7] <= V - 20 ms`: a new tenant starts there.

use crate::arena::Id;
use crate::class::{CLASSES, Class};
use crate::heap::{HeapIndex, IndexedHeap};
use crate::tuning::Tuning;
use crate::units::Cost;

/// Service that one tenant received, and its position in the run queue.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    served: [u64; CLASSES],
    weight: u32,
    position: QueuePosition,
}

/// Position of a tenant in the run queue, with the keys of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePosition {
    /// Not queued: the tenant has requests, and none of them is ready.
    None,
    /// The tenant has a ready request.
    Ready {
        class: Class,
        served: u64,
        total: u64,
    },
    /// The tenant has no requests.
    Idle { total: u64 },
}

/// Runnable work of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantState {
    /// The smallest ready request is of this class.
    Ready(Class),
    /// The tenant has requests, and none of them is ready.
    Busy,
    /// The tenant has no requests.
    Idle,
}

impl Account {
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    fn total_service(&self) -> u64 {
        self.served[CLASSES - 1]
    }
}

/// Tenants in the order in which they run.
#[derive(Debug)]
pub(crate) struct RunQueue {
    now: u64,
    carry: u64,
    weights: u64,
    /// Tenants with a ready request, by service in the class of their smallest.
    by_class: [IndexedHeap; CLASSES],
    places_by_class: HeapIndex,
    /// Tenants with a ready request, by total service.
    by_total: IndexedHeap,
    /// Tenants without requests, by total service.
    idle: IndexedHeap,
    places_by_total: HeapIndex,
    credit_max: u64,
    surplus_max: u64,
    deficit_max: u64,
}

impl RunQueue {
    pub(crate) fn new(tuning: &Tuning) -> Self {
        Self {
            now: 0,
            carry: 0,
            weights: 0,
            by_class: Default::default(),
            places_by_class: HeapIndex::default(),
            by_total: IndexedHeap::default(),
            idle: IndexedHeap::default(),
            places_by_total: HeapIndex::default(),
            credit_max: tuning.credit_max,
            surplus_max: tuning.surplus_max,
            deficit_max: tuning.deficit_max,
        }
    }

    /// Returns the account of a new tenant, with the maximum credit.
    pub(crate) fn new_account(&self, weight: u32) -> Account {
        Account {
            served: [self.service_min(); CLASSES],
            weight: weight.max(1),
            position: QueuePosition::None,
        }
    }

    /// Returns the sum of the weights of tenants with unfinished work.
    pub(crate) fn weights(&self) -> u64 {
        self.weights
    }

    /// Adds the weight of a tenant that got its first unfinished work.
    pub(crate) fn add_weight(&mut self, account: &Account) {
        self.weights += u64::from(account.weight);
    }

    /// Subtracts the weight of a tenant whose work is finished.
    pub(crate) fn remove_weight(&mut self, account: &Account) {
        self.weights -= u64::from(account.weight);
    }

    /// Charges a tenant for `work` done in `class`, and advances the virtual time.
    pub(crate) fn charge_work(&mut self, account: &mut Account, class: Class, work: Cost) {
        let total = work.as_nanos() + self.carry;
        let weights = self.weights.max(1);
        self.now += total / weights;
        self.carry = total % weights;

        let floor = self.service_min();
        let ceiling = self.now.saturating_add(self.deficit_max);
        for served in &mut account.served[class.index()..] {
            *served =
                ((*served).max(floor) + work.as_nanos() / u64::from(account.weight)).min(ceiling);
        }
    }

    /// Moves a tenant to the position that its state requires.
    pub(crate) fn update_position(
        &mut self,
        tenant: Id,
        account: &mut Account,
        state: TenantState,
    ) {
        let total = account.total_service();
        let position = match state {
            TenantState::Ready(class) => QueuePosition::Ready {
                class,
                served: account.served[class.index()],
                total,
            },
            TenantState::Busy => QueuePosition::None,
            TenantState::Idle => QueuePosition::Idle { total },
        };
        if position == account.position {
            return;
        }

        match account.position {
            QueuePosition::None => (),
            QueuePosition::Ready { class, .. } => {
                self.by_class[class.index()].remove(&mut self.places_by_class, tenant);
                self.by_total.remove(&mut self.places_by_total, tenant);
            }
            QueuePosition::Idle { .. } => self.idle.remove(&mut self.places_by_total, tenant),
        }
        match position {
            QueuePosition::None => (),
            QueuePosition::Ready {
                class,
                served,
                total,
            } => {
                self.by_class[class.index()].insert(&mut self.places_by_class, served, tenant);
                self.by_total
                    .insert(&mut self.places_by_total, total, tenant);
            }
            QueuePosition::Idle { total } => {
                self.idle.insert(&mut self.places_by_total, total, tenant)
            }
        }
        account.position = position;
    }

    /// Returns the tenant whose smallest request runs next.
    pub(crate) fn next_tenant(&self) -> Option<Id> {
        let limit = self.now.saturating_add(self.surplus_max);
        self.by_class
            .iter()
            .find_map(|class| class.first().filter(|(served, _)| *served <= limit))
            .or_else(|| self.by_total.first())
            .map(|(_, tenant)| tenant)
    }

    /// Returns the least served tenant with a ready request.
    pub(crate) fn least_served(&self) -> Option<Id> {
        self.by_total.first().map(|(_, tenant)| tenant)
    }

    /// Removes and returns a tenant without requests whose account equals that of a new tenant.
    pub(crate) fn pop_forgettable(&mut self) -> Option<Id> {
        let (_, tenant) = self
            .idle
            .first()
            .filter(|(total, _)| *total <= self.service_min())?;
        self.idle.remove(&mut self.places_by_total, tenant);
        Some(tenant)
    }

    #[cfg(test)]
    pub(crate) fn check(&self, account: &Account) {
        assert!(
            account.served.is_sorted(),
            "service in a class counts in all larger ones"
        );
        assert!(account.total_service() <= self.now + self.deficit_max);
    }

    /// Returns the least service of any tenant: the virtual time less the maximum credit.
    fn service_min(&self) -> u64 {
        self.now.saturating_sub(self.credit_max)
    }
}
