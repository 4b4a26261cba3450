//! A limit on log lines that any client can cause.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Minimum time between two log lines.
const PERIOD: Duration = Duration::from_secs(10);

/// Admits at most one event in ten seconds and counts the others.
#[derive(Debug, Default)]
pub struct LogThrottle(Mutex<ThrottleState>);

#[derive(Debug, Default)]
struct ThrottleState {
    logged: Option<Instant>,
    suppressed: u64,
}

impl LogThrottle {
    /// Creates a throttle that admits the first event.
    pub const fn new() -> Self {
        Self(Mutex::new(ThrottleState {
            logged: None,
            suppressed: 0,
        }))
    }

    /// Records an event. Returns the number of suppressed events if this one should be logged.
    pub fn record(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state
            .logged
            .is_some_and(|logged| now.saturating_duration_since(logged) < PERIOD)
        {
            state.suppressed += 1;
            return None;
        }
        state.logged = Some(now);
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_event_is_logged_and_then_one_in_ten_seconds() {
        let throttle = LogThrottle::default();
        let start = Instant::now();
        for (ms, suppressed) in [
            (0, Some(0)),
            (1, None),
            (9_999, None),
            (10_000, Some(2)),
            (10_001, None),
            (60_000, Some(1)),
        ] {
            assert_eq!(
                throttle.record(start + Duration::from_millis(ms)),
                suppressed,
                "{ms}"
            );
        }
    }
}
