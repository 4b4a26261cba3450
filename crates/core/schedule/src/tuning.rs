//! The operator's settings of the scheduler, and constants that should need no change.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::units::Cost;

/// The order in which requests run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RunOrder {
    /// Runs smaller requests and less served tenants first, in slices. Delays or rejects requests
    /// that do not fit.
    #[default]
    Fair,
    /// FIFO, as a baseline: one queue for all tenants, and each request runs in one slice. No
    /// request is delayed, or rejected unless all memory is used. Gauges count every request in the
    /// first class.
    Arrival,
}

/// Options of the scheduler. The crate's README names the experiment that shows the effect of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Number of workers that run slices.
    pub workers: NonZeroU32,
    /// Work per slice of a request with at most this much work left; a longer request gets half of
    /// it. With shorter slices small requests wait less; with longer slices there are fewer
    /// scheduling decisions. 50 to 250 us; default 100 us.
    pub slice: Cost,
    /// Predicted wait at which a request of ordinary size is rejected. Requests are delayed from a
    /// quarter of it on. Such a request is also rejected once it has waited for twice as long,
    /// whatever was predicted. A quarter of the time that clients wait; default 250 ms.
    pub wait_max: Duration,
    /// Bytes held for requests over all tenants. One tenant gets at most half. Default 256 MiB.
    pub memory_bytes_max: u64,
    /// The order in which requests run. Default [`RunOrder::Fair`].
    pub order: RunOrder,
}

impl SchedulerOptions {
    /// Returns the default options for a number of workers.
    pub fn new(workers: NonZeroU32) -> Self {
        Self {
            workers,
            slice: Cost::from_nanos(100_000),
            wait_max: Duration::from_millis(250),
            memory_bytes_max: 256 << 20,
            order: RunOrder::Fair,
        }
    }
}

/// Constants of the scheduler. Tests replace them one by one, to show that a limit is exceeded
/// without each of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Maximum work of class 0.
    pub(crate) class_first: Cost,
    /// Number of parts of a slice. A request that does not fit a slice runs one part at a time.
    pub(crate) slice_parts: u64,
    /// Every `guard`-th slice goes to the oldest request of the least served tenant. A value of 4
    /// costs small requests 45 % of p99 at load 0.95; 0 disables the guard.
    pub(crate) guard: u32,
    /// Maximum work that a tenant can save up below its share.
    pub(crate) credit_max: u64,
    /// Maximum work by which a tenant can exceed its share and still run before larger work of
    /// others.
    pub(crate) surplus_max: u64,
    /// Maximum remembered work of a tenant beyond its share. Work on otherwise idle workers took
    /// nothing from others.
    pub(crate) deficit_max: u64,
    /// Fraction of the maximum wait from which requests are delayed.
    pub(crate) wait_min: f64,
    /// Fraction of `wait_max`: a request whose own work takes at most this is of ordinary size.
    pub(crate) ordinary: f64,
    /// Maximum load of smaller work that a prediction assumes. The guard leaves the largest
    /// requests one slice in 16.
    pub(crate) smaller_max: f64,
    /// Time over which the rates of offered, admitted and rejected work decay, in nanoseconds.
    pub(crate) window: f64,
    /// Multiple of its rate above which a tenant's classes are rejected in proportion.
    pub(crate) overload: f64,
    /// Multiple of such a tenant's deficit that is repaid within the window. A negative deficit
    /// permits as much further backlog.
    pub(crate) catch_up: f64,
    /// Fraction of recently rejected work that is expected to be retried. With 1, one request in 30
    /// is rejected twice. At ten times its capacity, a real engine is then idle for a fifth of its
    /// time while clients wait as asked.
    pub(crate) returning: f64,
    /// Requests that have waited as asked are rejected in proportion only if their class is
    /// rejected less than this share of the worst class. With none, large requests, which come back
    /// rarely, pay for the small ones.
    pub(crate) waited_ease: f64,
    /// Maximum rejected fraction of a class, as a multiple of the overall rejected fraction.
    /// Without it, one rejected large request would reject half of the small ones.
    pub(crate) worst_max: f64,
    /// Worker time over which the speed of the workers is averaged, in nanoseconds: 50 ms of two
    /// workers.
    pub(crate) speed_window: f64,
    /// Multiple of its wait bound after which a queued request expires.
    pub(crate) expires_after: u32,
    /// Maximum bytes of a tenant, as a multiple of the free bytes.
    pub(crate) memory_alpha: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        const MS: u64 = 1_000_000;
        Self {
            class_first: Cost::from_nanos(MS / 10),
            slice_parts: 2,
            guard: 16,
            credit_max: 20 * MS,
            surplus_max: 20 * MS,
            deficit_max: 40 * MS,
            wait_min: 0.25,
            ordinary: 1.0 / 16.0,
            smaller_max: 15.0 / 16.0,
            window: 1e9,
            overload: 1.0,
            catch_up: 4.0,
            returning: 0.5,
            waited_ease: 0.8,
            worst_max: 4.0,
            speed_window: 1e8,
            expires_after: 2,
            memory_alpha: 1.0,
        }
    }
}
