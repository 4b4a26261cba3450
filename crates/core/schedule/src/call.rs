//! Inputs and outputs of the core.

use std::time::Duration;

use crate::admission::Rejection;
use crate::arena::Id;
use crate::class::CLASSES;
use crate::units::{Cost, Time};

/// A request as its header describes it.
#[derive(Clone, Copy, Debug)]
pub struct OfferedRequest<'a, K> {
    /// The tenant: the identity in the client's certificate, however many connections it has.
    pub tenant: &'a K,
    /// The tenant's weight, at least 1; one of 2 gets twice the share. A change counts once the
    /// tenant had no calls for long enough to be forgotten.
    pub weight: u32,
    /// Predicted cost ([`CostModel::estimate`](crate::CostModel::estimate)), at least 1 ns and at
    /// most an hour.
    pub cost: Cost,
    /// Bytes it will hold, request and reply.
    pub bytes: u64,
    /// When its wait began, which has a bound: now, or earlier if it was kept before it was
    /// offered.
    pub since: Time,
    /// When its answer is of no more use.
    pub deadline: Time,
    /// All of it is there, so that it is submitted as soon as it is admitted. Of one whose body is
    /// still arriving that is said later, by
    /// [`Core::update_estimate`](crate::Core::update_estimate).
    pub whole: bool,
    /// Its connection has waited as an earlier [`Rejection`] asked, and this is the first request
    /// since. It is rejected for [`Reason::Proportion`](crate::Reason::Proportion) only if its size
    /// was rejected much less than another.
    pub has_waited: bool,
}

/// Decision on an offered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum AdmissionDecision {
    /// Read it and submit it.
    Admitted {
        /// The call.
        id: Id,
        /// How long it is expected to take, from now to its end.
        predicted: Duration,
    },
    /// It need not be read yet: [`Core::promoted`](crate::Core::promoted) will name it, or it
    /// expires or its deadline passes first and it is closed.
    Waiting {
        /// The call.
        id: Id,
        /// How long it is expected to take, from now to its end.
        predicted: Duration,
    },
    /// Answer that, and begin no call of its class or above on its connection for
    /// [`Rejection::retry_after`], at most a second.
    Refused(Rejection),
}

/// A slice to run.
#[derive(Debug)]
pub struct Slice<T> {
    /// The call.
    pub id: Id,
    /// Its work.
    pub work: T,
    /// How much of it to do.
    pub budget: Cost,
}

/// Result of [`Core::expire`](crate::Core::expire).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Expiry<T> {
    /// The call had waited for too long and is closed.
    Expired {
        /// The answer to it.
        refusal: Rejection,
        /// Its work, to be dropped outside the lock, if it was submitted.
        work: Option<T>,
    },
    /// Ask again then.
    Later(Time),
    /// The call has begun, or is closed.
    Never,
}

/// A call that was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed<T> {
    /// Its work, to be dropped outside the lock, unless that runs or there is none.
    pub work: Option<T>,
    /// Work that is not needed any more: zero if the request is done. The whole slice of a running
    /// request is subtracted.
    pub left: Cost,
}

/// Gauges of the scheduler. Arrays are by class, smallest first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Tenants that are remembered.
    pub tenants: usize,
    /// Calls not closed.
    pub calls: usize,
    /// Slices running.
    pub running: u32,
    /// Calls that wait for admission, by their whole work.
    pub waiting: [u32; CLASSES],
    /// Calls ready to run, by the work they have left.
    pub ready: [u32; CLASSES],
    /// Work admitted and not done, by the work its calls have left, in nanoseconds.
    pub backlog: [u64; CLASSES],
    /// Bytes held.
    pub bytes: u64,
    /// Nanoseconds of work that one worker does in one. [`Self::backlog`] over this and the number
    /// of workers is how long what there is will take.
    pub speed: f64,
    /// Calls refused since the start because they had waited for twice their bound. They count as
    /// refused, too.
    pub expired: u64,
    /// Calls refused since the start, in the order of [`Reason::ALL`](crate::Reason::ALL).
    pub refused: [u64; 4],
}
