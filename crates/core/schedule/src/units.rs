//! The two quantities of this crate, points in time and CPU work, both in nanoseconds.

use std::time::Duration;

/// A point in time, in nanoseconds since an origin that the owner of the core chooses. A time before
/// the previous one counts as "no time has passed".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Later than every other time: a deadline that never passes.
    pub const NEVER: Self = Self(u64::MAX);

    /// Creates the point `nanos` after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds after the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time passed since `earlier`; zero if `earlier` is in the future.
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

/// CPU work, in nanoseconds of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u64);

impl Cost {
    /// Creates work of `nanos` nanoseconds of one worker.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds of one worker.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
}

/// Returns a duration in nanoseconds, at most `u64::MAX` (584 years).
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
