//! What happens with every call while something is wrong, and is worth saying once in a while.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two.
const PERIOD: Duration = Duration::from_secs(10);

/// Counts what is not said until it is time again.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Since>);

#[derive(Debug, Default)]
struct Since {
    said: Option<Instant>,
    unsaid: u64,
}

impl Seldom {
    /// Nothing happened yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Since { said: None, unsaid: 0 }))
    }

    /// It happened. Whether it is to be said, and then how often it was not since the last time.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if since.said.is_some_and(|said| now.saturating_duration_since(said) < PERIOD) {
            since.unsaid += 1;
            return None;
        }
        since.said = Some(now);
        Some(std::mem::take(&mut since.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_at_once_and_then_once_in_a_while() {
        let (seldom, begun) = (Seldom::default(), Instant::now());
        for (ms, said) in [(0, Some(0)), (1, None), (9_999, None), (10_000, Some(2)), (10_001, None), (60_000, Some(1))]
        {
            assert_eq!(seldom.due(begun + Duration::from_millis(ms)), said, "{ms}");
        }
    }
}
