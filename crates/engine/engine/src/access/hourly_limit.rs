//! Limits the number of fields per hour that a principal can process with an operation.
//!
//! Use a limit for roles whose principals could guess values. Each field is at most one guess, so
//! the limit bounds the number of guesses. The limiter is a leaky bucket per principal, operation
//! and limit. A bucket drains evenly, by the limit within one hour. The buckets are in memory, so
//! each engine counts separately. Requests under a grant without an hourly limit are not counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sealwire_access::{Operation, Permit, Principal};
use tokio::time::Instant;

use crate::jobs::error::RequestFailure;

/// Maximum number of buckets.
const BUCKETS_MAX: usize = 16_384;
const HOUR: Duration = Duration::from_secs(3_600);

/// A leaky bucket for each principal, operation and limit in fields per hour.
#[derive(Debug, Default)]
pub(super) struct HourlyLimiter(Mutex<HashMap<(Principal, Operation, u32), Bucket>>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Number of charged fields that have not drained yet.
    level: f64,
    /// Fields that drain per hour; also the maximum level.
    hourly: u32,
    updated: Instant,
}

impl Bucket {
    fn drain(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.updated);
        self.level = (self.level
            - f64::from(self.hourly) * elapsed.as_secs_f64() / HOUR.as_secs_f64())
        .max(0.0);
        self.updated = now;
    }
}

impl HourlyLimiter {
    /// Charges `fields` to the principal's bucket if the permit has an hourly limit.
    ///
    /// # Errors
    /// [`RequestFailure::HourlyLimitReached`] if the fields do not fit now, or if there are too many
    /// buckets. [`RequestFailure::AboveHourlyLimit`] if `fields` is above the limit itself.
    pub(super) fn charge(
        &self,
        principal: &Principal,
        permit: &Permit<'_>,
        fields: u64,
        now: Instant,
    ) -> Result<(), RequestFailure> {
        let Some(hourly) = permit.hourly() else {
            return Ok(());
        };
        if fields > u64::from(hourly) {
            return Err(RequestFailure::AboveHourlyLimit { hourly });
        }

        // A poisoned lock can be used: no code below panics while a bucket is partly updated.
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (principal.clone(), permit.operation(), hourly);
        if buckets.len() >= BUCKETS_MAX && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| {
                bucket.drain(now);
                bucket.level > 0.0
            });
            if buckets.len() >= BUCKETS_MAX {
                return Err(RequestFailure::HourlyLimitReached {
                    hourly,
                    retry_after: HOUR,
                });
            }
        }

        let bucket = buckets.entry(key).or_insert(Bucket {
            level: 0.0,
            hourly,
            updated: now,
        });
        bucket.drain(now);
        let excess = bucket.level + fields as f64 - f64::from(hourly);

        if excess > 0.0 {
            let retry_after = HOUR.mul_f64(excess / f64::from(hourly));
            return Err(RequestFailure::HourlyLimitReached {
                hourly,
                retry_after,
            });
        }

        bucket.level += fields as f64;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sealwire_access::{AuthorizationRequest, Grant, Grants, Role};

    use super::*;

    fn grants(text: &str) -> Grants {
        Grants::of([Role::new("support", vec![Grant::from_text(text).unwrap()])
            .unwrap()
            .into()])
    }

    fn authorization_request(operation: Operation) -> AuthorizationRequest<'static> {
        AuthorizationRequest::new(operation, Some("shop"), Some("cards"))
    }

    #[test]
    fn a_bucket_holds_the_limit_and_drains_evenly() {
        let limiter = HourlyLimiter::default();
        let grants = grants("decrypt,tokenize apps=shop hourly=3600");
        let start = Instant::now();
        let charge = |principal: &str, operation, fields, seconds| {
            let permit = grants.decide(authorization_request(operation)).unwrap();
            let now = start + Duration::from_secs(seconds);
            match limiter.charge(
                &Principal::from_text(principal).unwrap(),
                &permit,
                fields,
                now,
            ) {
                Ok(()) => Ok(()),
                Err(RequestFailure::HourlyLimitReached { retry_after, .. }) => {
                    Err(retry_after.as_secs())
                }
                Err(RequestFailure::AboveHourlyLimit { hourly }) => Err(hourly.into()),
                Err(other) => panic!("{other}"),
            }
        };
        for (principal, operation, fields, seconds, expected) in [
            ("a", Operation::Decrypt, 3_601, 0, Err(3_600)),
            ("a", Operation::Decrypt, 3_000, 0, Ok(())),
            ("a", Operation::Decrypt, 700, 0, Err(100)),
            ("a", Operation::Decrypt, 600, 0, Ok(())),
            ("a", Operation::Decrypt, 1, 0, Err(1)),
            // Other principals and other operations have their own buckets.
            ("b", Operation::Decrypt, 3_600, 0, Ok(())),
            ("a", Operation::Tokenize, 3_600, 0, Ok(())),
            ("a", Operation::Decrypt, 10, 9, Err(1)),
            ("a", Operation::Decrypt, 10, 10, Ok(())),
            ("a", Operation::Decrypt, 3_600, 10_000, Ok(())),
            ("a", Operation::Decrypt, 1, 10_000, Err(1)),
        ] {
            assert_eq!(
                charge(principal, operation, fields, seconds),
                expected,
                "{principal} {operation} {fields} {seconds}"
            );
        }
    }

    #[test]
    fn grants_with_different_limits_use_different_buckets() {
        let grant = |text: &str| Grant::from_text(text).unwrap();
        let role = vec![
            grant("decrypt apps=cards hourly=10"),
            grant("decrypt apps=misc hourly=1000000"),
        ];
        let limiter = HourlyLimiter::default();
        let grants = Grants::of([Role::new("r", role).unwrap().into()]);
        let principal = Principal::from_text("a").unwrap();
        let now = Instant::now();
        let charge = |app, fields, ms| {
            let permit = grants
                .decide(AuthorizationRequest::new(
                    Operation::Decrypt,
                    Some(app),
                    None,
                ))
                .unwrap();
            limiter
                .charge(&principal, &permit, fields, now + Duration::from_millis(ms))
                .is_ok()
        };
        assert!(charge("cards", 10, 0) && charge("misc", 1_000, 0));
        assert!(!charge("cards", 1, 100) && charge("misc", 1_000, 100) && !charge("cards", 1, 200));
    }

    #[test]
    fn only_limited_principals_use_buckets_and_buckets_are_bounded() {
        let limiter = HourlyLimiter::default();
        let unlimited = grants("tokenize apps=shop");
        let limited = grants("tokenize apps=shop hourly=10");
        let now = Instant::now();
        let charge = |grants: &Grants, principal: usize, now| {
            let principal = Principal::from_text(&format!("p{principal}")).unwrap();
            limiter.charge(
                &principal,
                &grants
                    .decide(authorization_request(Operation::Tokenize))
                    .unwrap(),
                10,
                now,
            )
        };
        charge(&unlimited, 0, now).unwrap();
        assert_eq!(limiter.0.lock().unwrap().len(), 0);
        (0..BUCKETS_MAX).for_each(|principal| charge(&limited, principal, now).unwrap());
        assert!(matches!(
            charge(&limited, BUCKETS_MAX, now),
            Err(RequestFailure::HourlyLimitReached { .. })
        ));
        charge(&limited, BUCKETS_MAX, now + HOUR).unwrap();
        assert_eq!(
            limiter.0.lock().unwrap().len(),
            1,
            "empty buckets are removed"
        );
    }
}
