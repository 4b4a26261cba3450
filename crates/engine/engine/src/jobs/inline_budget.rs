//! The budget of work on fields that a network thread does itself, without a crypto thread.
//!
//! Each time a network thread wakes up, it can do `schedule.inline_us` of predicted work for all
//! requests together. A thread that never sleeps, because it always has data to read, therefore
//! does no such work: under load, all work goes to the crypto threads. A thread of a runtime that
//! does not call [`renew`] does none either.

use std::cell::Cell;
use std::time::Duration;

use sealwire_schedule::Cost;

thread_local! {
    /// Predicted nanoseconds of work that this thread can still do before it sleeps again.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Gives the calling thread a new budget. A network thread calls this when it wakes up.
pub fn renew(budget: Cost) {
    LEFT.set(budget.as_nanos());
}

/// Takes `cost` from the calling thread's budget. Returns the budget before, which bounds the time
/// of the work. Returns `None`, and takes nothing, if less than `cost` is left.
pub(crate) fn take(cost: Cost) -> Option<Cost> {
    let left = LEFT.get();
    LEFT.set(left.checked_sub(cost.as_nanos())?);
    Some(Cost::from_nanos(left))
}

/// Takes the time by which work exceeded its predicted cost.
pub(crate) fn take_excess(excess: Duration) {
    let excess = u64::try_from(excess.as_nanos()).unwrap_or(u64::MAX);
    LEFT.set(LEFT.get().saturating_sub(excess));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_does_its_budget_between_two_sleeps() {
        const fn us(us: u64) -> Cost {
            Cost::from_nanos(us * 1_000)
        }

        assert!(
            take(us(1)).is_none(),
            "a thread that never woke up has none"
        );
        renew(us(30));
        assert_eq!(
            [20, 11, 10, 1].map(|cost| take(us(cost))),
            [Some(us(30)), None, Some(us(10)), None]
        );
        renew(us(30));
        renew(us(30));
        assert_eq!(
            [30, 1].map(|cost| take(us(cost)).is_some()),
            [true, false],
            "budgets do not add up"
        );
        renew(us(30));
        assert_eq!(take(us(10)), Some(us(30)));
        take_excess(Duration::from_micros(15));
        assert_eq!(
            [6, 5].map(|cost| take(us(cost))),
            [None, Some(us(5))],
            "work that took longer took it from others"
        );
        take_excess(Duration::from_secs(1));
        assert_eq!(take(us(1)), None);
        assert!(
            std::thread::spawn(move || take(us(1)))
                .join()
                .unwrap()
                .is_none(),
            "each thread has its own"
        );
    }
}
