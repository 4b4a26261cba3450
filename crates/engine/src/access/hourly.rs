//! Hourly budgets of principals: the fields that each has left for an operation.
//!
//! For roles whose callers could guess: each field of theirs is a guess at most. A bucket for each principal, operation
//! and number holds what grants of that number allow in an hour and fills evenly; it is this engine's own, in memory.
//! Only calls under such a grant come here.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sealwire_access::{Operation, Permit, Principal};
use tokio::time::Instant;

use sealwire_jobs::error::CallFailure;

/// Principals and operations that are counted at a time, at most.
const BUCKETS_MAX: usize = 16_384;
const HOUR: Duration = Duration::from_secs(3_600);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Hourly(Mutex<HashMap<(Principal, Operation, u32), Bucket>>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Fields that were taken and have not filled up again.
    taken: f64,
    hourly: u32,
    at: Instant,
}

impl Bucket {
    fn fill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.at);
        self.taken = (self.taken - f64::from(self.hourly) * since.as_secs_f64() / HOUR.as_secs_f64()).max(0.0);
        self.at = now;
    }
}

impl Hourly {
    /// Takes so many fields, if the permit is by the hour.
    ///
    /// # Errors
    /// [`CallFailure::Spent`], and [`CallFailure::BeyondHourly`] of more than it could ever have at once.
    pub(super) fn take(
        &self,
        principal: &Principal,
        permit: &Permit<'_>,
        fields: u64,
        now: Instant,
    ) -> Result<(), CallFailure> {
        let Some(hourly) = permit.hourly() else { return Ok(()) };
        if fields > u64::from(hourly) {
            return Err(CallFailure::BeyondHourly { hourly });
        }
        // Nothing here panics between two steps of a change.
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (principal.clone(), permit.operation(), hourly);
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| {
                bucket.fill(now);
                bucket.taken > 0.0
            });
            if buckets.len() >= BUCKETS_MAX {
                return Err(CallFailure::Spent { hourly, retry_after: HOUR });
            }
        }
        let bucket = buckets.entry(key).or_insert(Bucket { taken: 0.0, hourly, at: now });
        bucket.fill(now);
        let missing = bucket.taken + fields as f64 - f64::from(hourly);
        if missing > 0.0 {
            let retry_after = HOUR.mul_f64(missing / f64::from(hourly));
            return Err(CallFailure::Spent { hourly, retry_after });
        }
        bucket.taken += fields as f64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sealwire_access::{AuthorizationRequest, Grant, Grants, Role};

    use super::*;

    fn grants(text: &str) -> Grants {
        Grants::of([Role::new("support", vec![Grant::from_text(text).unwrap()]).unwrap().into()])
    }

    fn ask(operation: Operation) -> AuthorizationRequest<'static> {
        AuthorizationRequest::new(operation, Some("shop"), Some("cards"))
    }

    #[test]
    fn an_hour_has_so_many_fields_and_fills_evenly() {
        let (hourly, grants) = (Hourly::default(), grants("decrypt,tokenize apps=shop hourly=3600"));
        let began = Instant::now();
        let take = |principal: &str, operation, fields, seconds| {
            let permit = grants.decide(ask(operation)).unwrap();
            let now = began + Duration::from_secs(seconds);
            match hourly.take(&Principal::from_text(principal).unwrap(), &permit, fields, now) {
                Ok(()) => Ok(()),
                Err(CallFailure::Spent { retry_after, .. }) => Err(retry_after.as_secs()),
                Err(CallFailure::BeyondHourly { hourly }) => Err(hourly.into()),
                Err(other) => panic!("{other}"),
            }
        };
        for (principal, operation, fields, seconds, expected) in [
            ("a", Operation::Decrypt, 3_601, 0, Err(3_600)),
            ("a", Operation::Decrypt, 3_000, 0, Ok(())),
            ("a", Operation::Decrypt, 700, 0, Err(100)),
            ("a", Operation::Decrypt, 600, 0, Ok(())),
            ("a", Operation::Decrypt, 1, 0, Err(1)),
            // Others have theirs, and so has another operation.
            ("b", Operation::Decrypt, 3_600, 0, Ok(())),
            ("a", Operation::Tokenize, 3_600, 0, Ok(())),
            ("a", Operation::Decrypt, 10, 9, Err(1)),
            ("a", Operation::Decrypt, 10, 10, Ok(())),
            ("a", Operation::Decrypt, 3_600, 10_000, Ok(())),
            ("a", Operation::Decrypt, 1, 10_000, Err(1)),
        ] {
            assert_eq!(
                take(principal, operation, fields, seconds),
                expected,
                "{principal} {operation} {fields} {seconds}"
            );
        }
    }

    #[test]
    fn a_wider_grant_on_something_else_fills_no_narrow_one() {
        let grant = |text: &str| Grant::from_text(text).unwrap();
        let role = vec![grant("decrypt apps=cards hourly=10"), grant("decrypt apps=misc hourly=1000000")];
        let (hourly, grants) = (Hourly::default(), Grants::of([Role::new("r", role).unwrap().into()]));
        let (principal, now) = (Principal::from_text("a").unwrap(), Instant::now());
        let take = |app, fields, ms| {
            let permit = grants.decide(AuthorizationRequest::new(Operation::Decrypt, Some(app), None)).unwrap();
            hourly.take(&principal, &permit, fields, now + Duration::from_millis(ms)).is_ok()
        };
        assert!(take("cards", 10, 0) && take("misc", 1_000, 0));
        assert!(!take("cards", 1, 100) && take("misc", 1_000, 100) && !take("cards", 1, 200));
    }

    #[test]
    fn who_has_no_bound_is_not_counted_and_those_who_have_are_so_many() {
        let (hourly, free, bound) =
            (Hourly::default(), grants("tokenize apps=shop"), grants("tokenize apps=shop hourly=10"));
        let now = Instant::now();
        let take = |grants: &Grants, principal: usize, now| {
            let principal = Principal::from_text(&format!("p{principal}")).unwrap();
            hourly.take(&principal, &grants.decide(ask(Operation::Tokenize)).unwrap(), 10, now)
        };
        take(&free, 0, now).unwrap();
        assert_eq!(hourly.0.lock().unwrap().len(), 0);
        (0..BUCKETS_MAX).for_each(|principal| take(&bound, principal, now).unwrap());
        assert!(matches!(take(&bound, BUCKETS_MAX, now), Err(CallFailure::Spent { .. })));
        take(&bound, BUCKETS_MAX, now + HOUR).unwrap();
        assert_eq!(hourly.0.lock().unwrap().len(), 1, "those that are full again are forgotten");
    }
}
