//! Settings of the operator, and constants that should need no change.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::units::Cost;

/// In which order calls run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Smaller calls and tenants served less go first, in slices, and what does not fit is delayed
    /// or refused.
    #[default]
    Fair,
    /// First come, first served, to compare with: whole calls in one queue of all tenants, none
    /// delayed, none refused unless all memory is taken. Gauges count every call in the first
    /// class.
    Arrival,
}

/// The knobs. The crate's README names the experiment that shows what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Workers that take slices.
    pub workers: NonZeroU32,
    /// Work per slice of a request with at most this left; half of it for a longer one. Shorter:
    /// small requests wait less. Longer: fewer picks. 50 to 250 us; default 100 us.
    pub slice: Cost,
    /// Predicted wait at which a call of ordinary size is refused; from a quarter of it on calls
    /// are delayed. Whatever was predicted, such a call is refused once it has waited for twice as
    /// long. A quarter of what callers wait; default 250 ms.
    pub wait_max: Duration,
    /// Bytes held for calls over all tenants; one tenant alone gets a half. Default 256 MiB.
    pub memory_bytes_max: u64,
    /// In which order calls run. Default [`Order::Fair`].
    pub order: Order,
}

impl SchedulerOptions {
    /// The defaults, for so many workers.
    pub fn new(workers: NonZeroU32) -> Self {
        Self {
            workers,
            slice: Cost::from_nanos(100_000),
            wait_max: Duration::from_millis(250),
            memory_bytes_max: 256 << 20,
            order: Order::Fair,
        }
    }
}

/// Constants. Tests replace them one by one, to show that a gate fails without what each of them
/// does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    /// Class 0 reaches up to this much work.
    pub(crate) class_first: Cost,
    /// Number of parts of a slice; a request that does not fit a slice runs one part at a time.
    pub(crate) slice_parts: u64,
    /// Every so many picks the oldest call of the least served tenant runs instead. 4 costs the
    /// small 45 % of p99 at load 0.95; 0 is never.
    pub(crate) guard: u32,
    /// Work that a tenant may save up below its share.
    pub(crate) credit_max: u64,
    /// Work that a tenant may be ahead of its share and still go before larger work of others.
    pub(crate) lead_max: u64,
    /// Maximum remembered work of a tenant beyond its share. Work on otherwise idle workers took
    /// nothing from others.
    pub(crate) debt_max: u64,
    /// Delay begins at this part of the wait at which it ends in refusal.
    pub(crate) wait_min: f64,
    /// A call whose own work takes at most this part of `wait_max` is of ordinary size.
    pub(crate) ordinary: f64,
    /// Load of smaller work that a prediction reckons with at most. The guard leaves the largest
    /// one turn in 16.
    pub(crate) smaller_max: f64,
    /// Rates of offered, admitted and refused work are those of about the last so many nanoseconds.
    pub(crate) window: f64,
    /// A tenant that offers more than its rate times this is refused in proportion over its
    /// classes.
    pub(crate) overload: f64,
    /// How many times what it is behind such a tenant is to make good within the window. Below
    /// zero, it may get so much further behind.
    pub(crate) catch_up: f64,
    /// How much of what was refused of late is expected to come again. With all of it one in 30 is
    /// refused twice, and at ten times the capacity a real engine stands idle for a fifth of its
    /// time while everybody does as told.
    pub(crate) returning: f64,
    /// Requests that have waited as asked are rejected in proportion only if their class is
    /// rejected less than this share of the worst class. With none, large requests, which come back
    /// rarely, pay for the small ones.
    pub(crate) waited_ease: f64,
    /// A class is refused at most so many times the fraction that is refused in all, or one large
    /// call that was refused would have half of the small ones refused as well.
    pub(crate) worst_max: f64,
    /// The speed of the workers is that of about the last so many nanoseconds of their time: 50 ms
    /// of two of them.
    pub(crate) speed_window: f64,
    /// A queued call expires after so many times the wait that is its bound.
    pub(crate) expires_after: u32,
    /// A tenant's bytes may be this many times what is free.
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
            lead_max: 20 * MS,
            debt_max: 40 * MS,
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
