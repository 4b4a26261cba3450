//! The two quantities everything here is counted in: points in time and CPU work, both in
//! nanoseconds.

use std::time::Duration;

/// A point in time, in nanoseconds since an origin of the caller's choice. Later calls pass later
/// times; an earlier one is taken as "no time has passed".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Later than any call: a deadline that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The point `nanos` after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds after the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if that is in the future.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Time {
    type Output = Self;

    /// Saturates at [`Time::NEVER`].
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

/// CPU work: the nanoseconds it takes one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// Work of so many nanoseconds of one worker.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds of one worker.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// A span in nanoseconds, at most what a `u64` holds (584 years).
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
