//! Input and output types of [`Core`](crate::Core).

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
    /// The tenant's weight, at least 1; a weight of 2 gets twice the share. A change takes effect
    /// once the tenant had no requests for long enough to be forgotten.
    pub weight: u32,
    /// Predicted cost ([`CostModel::estimate`](crate::CostModel::estimate)), at least 1 ns and at
    /// most an hour.
    pub cost: Cost,
    /// Bytes that the request and its response will hold.
    pub bytes: u64,
    /// Start of the wait, which has a bound: now, or earlier if the request was deferred before its
    /// offer.
    pub since: Time,
    /// Time after which the response has no use.
    pub deadline: Time,
    /// True if the body has arrived, so that the request is submitted as soon as it is admitted.
    /// For a body that is still arriving,
    /// [`Core::update_estimate`](crate::Core::update_estimate) reports it later.
    pub has_body: bool,
    /// True for the first request of a connection that has waited as an earlier [`Rejection`]
    /// asked. The request is rejected for [`RejectionReason::Proportion`](crate::RejectionReason::Proportion) only if
    /// its size was rejected much less than another.
    pub has_waited: bool,
}

/// Decision on an offered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum AdmissionDecision {
    /// The request must be read and submitted.
    Admitted {
        /// Id of the request.
        id: Id,
        /// Predicted time from now to the end of the request.
        predicted: Duration,
    },
    /// The request need not be read yet. [`Core::next_promoted`](crate::Core::next_promoted)
    /// returns its id later, unless it expires or its owner closes it at its deadline.
    Waiting {
        /// Id of the request.
        id: Id,
        /// Predicted time from now to the end of the request.
        predicted: Duration,
    },
    /// The owner must respond with this rejection, and must not start requests of this class or
    /// above on the connection for [`Rejection::retry_after`], at most for a second.
    Rejected(Rejection),
}

/// A slice to run.
#[derive(Debug)]
pub struct Slice<T> {
    /// Id of the request.
    pub id: Id,
    /// Work of the request.
    pub work: T,
    /// Amount of the work to do.
    pub budget: Cost,
}

/// Result of [`Core::expire_request`](crate::Core::expire_request).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Expiry<T> {
    /// The request had waited for too long and is closed.
    Expired {
        /// Rejection to respond with.
        rejection: Rejection,
        /// Submitted work, to be dropped outside the lock.
        work: Option<T>,
    },
    /// The request can expire at this time at the earliest.
    Later(Time),
    /// The request has started, or is closed.
    Never,
}

/// A request that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed<T> {
    /// Submitted work that does not run, to be dropped outside the lock.
    pub work: Option<T>,
    /// Remaining work, which is not needed any more: zero if the request is done. The whole slice
    /// of a running request is subtracted.
    pub left: Cost,
}

/// Gauges of the scheduler. Arrays are by class, smallest first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Number of remembered tenants.
    pub tenants: usize,
    /// Number of requests that are not closed.
    pub requests: usize,
    /// Number of running slices.
    pub running: u32,
    /// Number of requests that wait for admission, by class of their work.
    pub waiting: [u32; CLASSES],
    /// Number of requests ready to run, by class of their remaining work.
    pub ready: [u32; CLASSES],
    /// Work admitted and not done, by class of the remaining work of its request, in nanoseconds.
    pub backlog: [u64; CLASSES],
    /// Bytes held.
    pub bytes: u64,
    /// Nanoseconds of work that one worker does per nanosecond. [`Self::backlog`] divided by this
    /// and by the number of workers is the time until the backlog is done.
    pub speed: f64,
    /// Requests rejected since the start because they had waited for twice their bound. Included in
    /// [`Self::rejected`].
    pub expired: u64,
    /// Requests rejected since the start, in the order of [`RejectionReason::ALL`](crate::RejectionReason::ALL).
    pub rejected: [u64; 4],
}
