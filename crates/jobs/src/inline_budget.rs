//! How much work on fields a network thread may do by itself, without a crypto thread.
//!
//! Each time a network thread wakes up it may do `schedule.inline_us` of predicted work, all requests together. A
//! thread with so much to read that it never sleeps therefore does none: under load, all work goes to the crypto
//! threads. A thread of a runtime that does not call [`renew`] does none either.

use std::cell::Cell;

use sealwire_schedule::Cost;

thread_local! {
    /// Predicted nanoseconds of work that this thread may still do before it sleeps again.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Gives the calling thread a new budget. A network thread calls this when it wakes up.
pub fn renew(budget: Cost) {
    LEFT.set(budget.as_nanos());
}

/// Takes `cost` from the calling thread's budget. Returns false, and takes nothing, if less is left.
pub(crate) fn take(cost: Cost) -> bool {
    let left = LEFT.get().checked_sub(cost.as_nanos());
    if let Some(left) = left {
        LEFT.set(left);
    }
    left.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_does_as_much_as_its_budget_between_two_sleeps() {
        let us = |us: u64| Cost::from_nanos(us * 1_000);
        assert!(!take(us(1)), "a thread that never woke up has none");
        renew(us(30));
        assert_eq!([20, 11, 10, 1].map(|cost| take(us(cost))), [true, false, true, false]);
        renew(us(30));
        renew(us(30));
        assert_eq!([30, 1].map(|cost| take(us(cost))), [true, false], "budgets do not add up");
        assert!(!std::thread::spawn(move || take(us(1))).join().unwrap(), "each thread has its own");
    }
}
