//! Limits the records of rejected requests, because any client with a certificate can send an
//! unlimited number of them. A few requests per principal are recorded individually, and the rest
//! are counted. So a flood cannot fill the disk that holds the records of permitted requests.
//!
//! The caller passes the current time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::record::{Event, Record};
use crate::timestamp::Timestamp;

/// Time for which requests are counted before the count is recorded.
pub(super) const WINDOW: Duration = Duration::from_secs(60);
/// Maximum burst of rejected requests per principal that are recorded individually.
const SINGLE_MAX: u32 = 20;
/// Time after which one more rejected request can be recorded individually.
const SINGLE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of counts per principal in a window. Further combinations share an additional
/// count.
const COUNTS_MAX: usize = 8;
/// Maximum number of principals with separate counts. Further principals share an entry.
const PRINCIPALS_MAX: usize = 1_024;
/// Replaces a name if several names are counted together.
const SEVERAL: &str = "*";

/// Counts of rejected requests that are not recorded yet. The constants above limit memory to about
/// 20 KiB per principal.
#[derive(Debug, Default)]
pub(super) struct RejectionCounts {
    principals: HashMap<Box<str>, Principal>,
    /// Start time of the oldest unrecorded count.
    started: Option<Instant>,
}

#[derive(Debug)]
struct Principal {
    kind: Box<str>,
    /// Requests that can still be recorded individually, as of `refilled`.
    left: u32,
    refilled: Instant,
    counts: Vec<Count>,
}

#[derive(Debug)]
struct Count {
    method: Box<str>,
    outcome: Box<str>,
    count: u64,
    first: Timestamp,
    last: Timestamp,
    bytes_in: u64,
}

impl Count {
    fn is_of(&self, method: &str, outcome: &str) -> bool {
        *self.method == *method && *self.outcome == *outcome
    }
}

impl Principal {
    fn new(kind: &str, now: Instant) -> Self {
        Self {
            kind: kind.into(),
            left: SINGLE_MAX,
            refilled: now,
            counts: Vec::new(),
        }
    }

    fn refill(&mut self, now: Instant) {
        let passed =
            now.saturating_duration_since(self.refilled).as_nanos() / SINGLE_EVERY.as_nanos();
        let more = u32::try_from(passed)
            .unwrap_or(u32::MAX)
            .min(SINGLE_MAX - self.left);
        self.left += more;
        // A full burst does not grow further.
        self.refilled = if self.left == SINGLE_MAX {
            now
        } else {
            self.refilled + SINGLE_EVERY * more
        };
    }

    fn add_to_counts(&mut self, record: &Record<'_>, at: Timestamp) {
        let known = self
            .counts
            .iter()
            .position(|count| count.is_of(record.method, record.outcome));
        let (method, outcome) = match known {
            None if self.counts.len() >= COUNTS_MAX => (SEVERAL, SEVERAL),
            _ => (record.method, record.outcome),
        };

        if let Some(count) = self
            .counts
            .iter_mut()
            .find(|count| count.is_of(method, outcome))
        {
            count.count += 1;
            count.last = at;
            count.bytes_in = count.bytes_in.saturating_add(record.bytes_in);
            return;
        }
        let method = method.into();
        let outcome = outcome.into();
        self.counts.push(Count {
            method,
            outcome,
            count: 1,
            first: at,
            last: at,
            bytes_in: record.bytes_in,
        });
    }
}

impl RejectionCounts {
    /// Handles a rejected request. Returns true if it should be recorded individually; otherwise
    /// the request is counted. While space is `short`, all requests are counted.
    pub(super) fn admit(
        &mut self,
        record: &Record<'_>,
        short: bool,
        now: Instant,
        at: Timestamp,
    ) -> bool {
        let (name, kind) = if self.principals.len() < PRINCIPALS_MAX
            || self.principals.contains_key(record.principal)
        {
            (record.principal, record.kind)
        } else {
            (SEVERAL, SEVERAL)
        };
        if !self.principals.contains_key(name) {
            self.principals
                .insert(name.into(), Principal::new(kind, now));
        }

        let Some(principal) = self.principals.get_mut(name) else {
            return true;
        };

        principal.refill(now);
        if principal.left > 0 && !short {
            principal.left -= 1;
            return true;
        }

        principal.add_to_counts(record, at);
        self.started.get_or_insert(now);
        false
    }

    /// Emits all counts if the window has passed, or immediately if `end`. Then removes principals
    /// whose burst is full again.
    pub(super) fn flush_counts(
        &mut self,
        end: bool,
        now: Instant,
        mut each: impl FnMut(&Event<'_>),
    ) {
        if !end
            && self
                .started
                .is_none_or(|started| now.saturating_duration_since(started) < WINDOW)
        {
            return;
        }
        self.started = None;
        self.principals.retain(|name, principal| {
            for Count {
                method,
                outcome,
                count,
                first,
                last,
                bytes_in,
            } in principal.counts.drain(..)
            {
                let kind = &*principal.kind;
                let method = &*method;
                let outcome = &*outcome;
                each(&Event::Refused {
                    principal: name,
                    kind,
                    method,
                    outcome,
                    count,
                    first,
                    last,
                    bytes_in,
                });
            }
            principal.refill(now);
            principal.left < SINGLE_MAX
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection<'a>(principal: &'a str, method: &'a str, outcome: &'a str) -> Record<'a> {
        Record {
            principal,
            kind: "dns",
            method,
            outcome,
            bytes_in: 10,
            ..Record::default()
        }
    }

    /// Returns all counts, as principal, method, outcome and count.
    fn flushed(
        rejections: &mut RejectionCounts,
        end: bool,
        now: Instant,
    ) -> Vec<(String, String, String, u64)> {
        let mut all = Vec::new();
        rejections.flush_counts(end, now, |event| {
            let Event::Refused {
                principal,
                method,
                outcome,
                count,
                bytes_in,
                ..
            } = event
            else {
                panic!("{event:?}")
            };
            assert_eq!(*bytes_in, 10 * count);
            all.push((
                String::from(*principal),
                String::from(*method),
                String::from(*outcome),
                *count,
            ));
        });
        all.sort();
        all
    }

    #[test]
    fn a_flood_is_some_records_and_one_count_of_each_kind_in_a_window() {
        let (mut rejections, started) = (RejectionCounts::default(), Instant::now());
        let mut now = started;
        let (mut singles, mut counts, mut counted) = (0_u64, 0, 0);
        // 10 minutes with 1,000 requests per second, of two kinds.
        for ms in 0..600_000_u64 {
            now = started + Duration::from_millis(ms);
            let method = if ms % 2 == 0 { "unknown" } else { "decrypt" };
            singles += u64::from(rejections.admit(
                &rejection("a", method, "forbidden"),
                false,
                now,
                Timestamp::now(),
            ));
            if ms % 1_000 == 999 {
                for (_, _, _, count) in flushed(&mut rejections, false, now) {
                    (counts, counted) = (counts + 1, counted + count);
                }
            }
        }
        counted += flushed(&mut rejections, true, now)
            .iter()
            .map(|(_, _, _, count)| count)
            .sum::<u64>();
        assert_eq!(singles + counted, 600_000);
        assert_eq!(singles, 20 + 59);
        assert!((16..=20).contains(&counts), "{counts}");
    }

    #[test]
    fn kinds_and_principals_beyond_their_bounds_are_counted_as_one() {
        let (mut rejections, now) = (RejectionCounts::default(), Instant::now());
        let methods: Vec<_> = (0..100).map(|number| format!("m{number}")).collect();
        for method in &methods {
            rejections.admit(
                &rejection("a", method, "forbidden"),
                true,
                now,
                Timestamp::now(),
            );
        }
        let all = flushed(&mut rejections, true, now);
        assert_eq!(all.len(), COUNTS_MAX + 1);
        assert_eq!(
            all[0],
            (
                "a".into(),
                "*".into(),
                "*".into(),
                (100 - COUNTS_MAX) as u64
            )
        );

        let names: Vec<_> = (0..2 * PRINCIPALS_MAX)
            .map(|number| format!("p{number}"))
            .collect();
        for name in &names {
            for _ in 0..=SINGLE_MAX {
                rejections.admit(
                    &rejection(name, "m", "forbidden"),
                    false,
                    now,
                    Timestamp::now(),
                );
            }
        }
        assert_eq!(rejections.principals.len(), PRINCIPALS_MAX + 1);
        let all = flushed(&mut rejections, true, now);
        // The principals beyond the limit share one entry, so only their first requests were
        // recorded individually.
        let beyond = (PRINCIPALS_MAX * (SINGLE_MAX as usize + 1) - SINGLE_MAX as usize) as u64;
        assert_eq!(all[0], ("*".into(), "m".into(), "forbidden".into(), beyond));
    }

    #[test]
    fn a_principal_that_rests_is_forgotten_and_begins_anew() {
        let (mut rejections, started) = (RejectionCounts::default(), Instant::now());
        let take = |rejections: &mut RejectionCounts, short, now| {
            rejections.admit(
                &rejection("a", "m", "forbidden"),
                short,
                now,
                Timestamp::now(),
            )
        };
        assert!(
            (0..30)
                .filter(|_| take(&mut rejections, false, started))
                .count()
                == SINGLE_MAX as usize
        );
        assert!(
            flushed(
                &mut rejections,
                false,
                started + WINDOW - Duration::from_millis(1)
            )
            .is_empty()
        );
        assert_eq!(flushed(&mut rejections, false, started + WINDOW).len(), 1);
        assert_eq!(rejections.principals.len(), 1);
        // Six more individual records after a minute, all twenty after 200 s.
        assert_eq!(
            (0..30)
                .filter(|_| take(&mut rejections, false, started + WINDOW))
                .count(),
            6
        );
        let later = started + WINDOW + SINGLE_EVERY * SINGLE_MAX;
        assert_eq!(flushed(&mut rejections, false, later).len(), 1);
        assert!(rejections.principals.is_empty());
        // All requests are counted if space is short.
        assert!((0..30).all(|_| !take(&mut rejections, true, later)));
        assert_eq!(flushed(&mut rejections, true, later)[0].3, 30);
    }
}
