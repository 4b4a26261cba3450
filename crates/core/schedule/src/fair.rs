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
//! next():  for k in 0..8:  among tenants whose smallest call is of class k, the least u[k], if u[k] <= V + 20 ms
//!          else:           the tenant with the least u[7]
//! ```
//!
//! So a tenant's own 100 ms of batch never disqualifies its next small call, only a flood of small
//! calls does. Since `u[j]` does not fall with `j`, a tenant that fails the gate for its smallest
//! call would fail it for every other, and one look per tenant is enough. Both bounds on `u`
//! matter: without the lower a tenant saves up seconds of credit, without the upper it is punished
//! for seconds for having used what nobody wanted.
//!
//! A tenant without calls is forgotten once `u[7] <= V - 20 ms`, which is how it would begin anew.

use crate::arena::Id;
use crate::class::{CLASSES, Class};
use crate::heap::{HeapIndex, IndexedHeap};
use crate::tuning::Tuning;
use crate::units::Cost;

/// One tenant's standing.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    served: [u64; CLASSES],
    weight: u32,
    place: QueuePosition,
}

/// Where a tenant is listed, under the values it was listed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueuePosition {
    /// Nowhere: it has calls, none of them to run now.
    None,
    /// It has a call to run.
    Ready {
        class: Class,
        served: u64,
        total: u64,
    },
    /// It has no calls.
    Idle { total: u64 },
}

/// Runnable work of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TenantState {
    /// A call to run, the smallest of this class.
    Ready(Class),
    /// Calls, none of them to run now.
    Busy,
    /// No call.
    Idle,
}

impl Account {
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    fn total(&self) -> u64 {
        self.served[CLASSES - 1]
    }
}

/// All tenants that may have a turn, in order.
#[derive(Debug)]
pub(crate) struct RunQueue {
    now: u64,
    carry: u64,
    weights: u64,
    /// Tenants with a call to run, by service in the class of their smallest.
    by_class: [IndexedHeap; CLASSES],
    places_by_class: HeapIndex,
    /// Tenants with work, by total service.
    by_total: IndexedHeap,
    /// Tenants without calls, by service in all.
    idle: IndexedHeap,
    places_by_total: HeapIndex,
    credit_max: u64,
    lead_max: u64,
    debt_max: u64,
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
            lead_max: tuning.lead_max,
            debt_max: tuning.debt_max,
        }
    }

    /// A newcomer's standing: all the credit there is.
    pub(crate) fn join(&self, weight: u32) -> Account {
        Account {
            served: [self.floor(); CLASSES],
            weight: weight.max(1),
            place: QueuePosition::None,
        }
    }

    /// Sum of the weights of tenants with work to run.
    pub(crate) fn weights(&self) -> u64 {
        self.weights
    }

    /// A tenant begins to have work.
    pub(crate) fn begin(&mut self, account: &Account) {
        self.weights += u64::from(account.weight);
    }

    /// A tenant has no more work.
    pub(crate) fn end(&mut self, account: &Account) {
        self.weights -= u64::from(account.weight);
    }

    /// Counts `work` that a tenant with work got in `class`.
    pub(crate) fn charge(&mut self, account: &mut Account, class: Class, work: Cost) {
        let total = work.as_nanos() + self.carry;
        let weights = self.weights.max(1);
        self.now += total / weights;
        self.carry = total % weights;
        let (floor, ceiling) = (self.floor(), self.now.saturating_add(self.debt_max));
        for served in &mut account.served[class.index()..] {
            *served =
                ((*served).max(floor) + work.as_nanos() / u64::from(account.weight)).min(ceiling);
        }
    }

    /// Lists a tenant where it now belongs.
    pub(crate) fn place(&mut self, tenant: Id, account: &mut Account, standing: TenantState) {
        let total = account.total();
        let place = match standing {
            TenantState::Ready(class) => QueuePosition::Ready {
                class,
                served: account.served[class.index()],
                total,
            },
            TenantState::Busy => QueuePosition::None,
            TenantState::Idle => QueuePosition::Idle { total },
        };
        if place == account.place {
            return;
        }
        match account.place {
            QueuePosition::None => (),
            QueuePosition::Ready { class, .. } => {
                self.by_class[class.index()].remove(&mut self.places_by_class, tenant);
                self.by_total.remove(&mut self.places_by_total, tenant);
            }
            QueuePosition::Idle { .. } => self.idle.remove(&mut self.places_by_total, tenant),
        }
        match place {
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
        account.place = place;
    }

    /// The tenant whose smallest call is next.
    pub(crate) fn next(&self) -> Option<Id> {
        let gate = self.now.saturating_add(self.lead_max);
        let due = |class: &IndexedHeap| class.first().filter(|(served, _)| *served <= gate);
        self.by_class
            .iter()
            .find_map(due)
            .or_else(|| self.by_total.first())
            .map(|(_, tenant)| tenant)
    }

    /// The tenant with a call to run that was served least.
    pub(crate) fn least_served(&self) -> Option<Id> {
        self.by_total.first().map(|(_, tenant)| tenant)
    }

    /// A tenant without calls that would not be missed.
    pub(crate) fn forgettable(&mut self) -> Option<Id> {
        let (_, tenant) = self
            .idle
            .first()
            .filter(|(total, _)| *total <= self.floor())?;
        self.idle.remove(&mut self.places_by_total, tenant);
        Some(tenant)
    }

    #[cfg(test)]
    pub(crate) fn check(&self, account: &Account) {
        assert!(
            account.served.is_sorted(),
            "service in a class counts in all larger ones"
        );
        assert!(account.total() <= self.now + self.debt_max);
    }

    fn floor(&self) -> u64 {
        self.now.saturating_sub(self.credit_max)
    }
}
