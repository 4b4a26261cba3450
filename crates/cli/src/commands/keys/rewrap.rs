//! The rewrap of an app's rows: passes over all rows at a bounded rate, until a pass changes
//! nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use sealwire_client::Client;
use sealwire_service::output::errln;
use sealwire_wire::OBJECTS_MAX;
use sealwire_wire::control::{RewrapRowsRequest, RewrappedRows};
use serde::Serialize;
use tokio::time::Instant;

use super::census::AppCensus;
use crate::commands::Failure;
use crate::commands::collections::repeat_safely;
use crate::commands::documents::DocumentProgress;

/// The rows to rewrap.
#[derive(Clone, Copy, Debug)]
pub(super) struct RewrapJob<'a> {
    pub(super) app: &'a str,
    pub(super) collection: Option<&'a str>,
    /// Maximum number of rows per second.
    pub(super) rate: Option<u32>,
}

/// Totals of a rewrap.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct RewrapTotals {
    rewrapped: u64,
    passes: u64,
    /// Rows that do not open, by collection, in the last pass.
    unopened: BTreeMap<String, u64>,
    /// Objects in an old format, by collection, in the last pass.
    unauthenticated: BTreeMap<String, u64>,
}

/// Totals of a rewrap, and the rows under each key version after it.
#[derive(Debug, Serialize)]
pub(super) struct RewrapReport {
    #[serde(flatten)]
    pub(super) done: RewrapTotals,
    pub(super) census: AppCensus,
}

impl RewrapJob<'_> {
    /// Seals rows at the engine. Dropping the future is safe: each row is under the old or the new
    /// version.
    pub(super) async fn run(
        &self,
        client: &Client,
        progress: &DocumentProgress,
    ) -> Result<RewrapTotals, Failure> {
        self.run_passes(
            async |request: RewrapRowsRequest<'_>| {
                repeat_safely(
                    async || Ok(client.keys_rewrap(request).await?),
                    |message| errln!("waiting: {message}"),
                )
                .await
            },
            progress,
        )
        .await
    }

    /// Repeats passes of `page` until one changes nothing.
    async fn run_passes(
        &self,
        page: impl AsyncFn(RewrapRowsRequest<'_>) -> Result<RewrappedRows, Failure>,
        progress: &DocumentProgress,
    ) -> Result<RewrapTotals, Failure> {
        let mut totals = RewrapTotals::default();
        let mut pace = RowPacer::new(self.rate);
        let limit = Some(
            self.rate
                .map_or(OBJECTS_MAX as u32, |rate| rate.min(OBJECTS_MAX as u32)),
        );
        loop {
            let mut active = 0;
            let mut after: Option<String> = None;
            totals.passes += 1;
            totals.unopened.clear();
            totals.unauthenticated.clear();
            loop {
                let call = RewrapRowsRequest {
                    app: self.app,
                    collection: self.collection,
                    after: after.as_deref(),
                    limit,
                };
                let RewrappedRows {
                    rewrapped,
                    changed,
                    unopened,
                    unauthenticated,
                    collection,
                    next,
                    ..
                } = page(call).await?;
                active += rewrapped + changed;
                totals.rewrapped += rewrapped;
                if unauthenticated > 0 {
                    *totals
                        .unauthenticated
                        .entry(collection.clone())
                        .or_default() += unauthenticated;
                }
                if unopened > 0 {
                    *totals.unopened.entry(collection).or_default() += unopened;
                }
                progress.say(&format!(
                    "pass {}: {} rows rewrapped",
                    totals.passes, totals.rewrapped
                ));
                after = next;
                if after.is_none() {
                    break;
                }
                pace.wait(rewrapped).await;
            }
            if active == 0 {
                return Ok(totals);
            }
        }
    }
}

/// Bounds the rows per second.
struct RowPacer {
    rate: Option<u32>,
    free: Instant,
}

impl RowPacer {
    fn new(rate: Option<u32>) -> Self {
        Self {
            rate,
            free: Instant::now(),
        }
    }

    /// Waits for the time that `rows` take at the rate, counted from the end of the last wait.
    async fn wait(&mut self, rows: u64) {
        let Some(rate) = self.rate else { return };
        self.free += Duration::from_secs_f64(rows as f64 / f64::from(rate));
        tokio::time::sleep_until(self.free).await;
        // Slow requests do not allow a higher rate later.
        self.free = self.free.max(Instant::now());
    }
}

impl RewrapTotals {
    /// Fails if a row did not open, or is in an old format.
    pub(super) fn check_finished(&self, app: &str) -> Result<(), String> {
        let mut reasons = Vec::new();
        let (unopened, of) = listed(&self.unopened);
        if unopened > 0 {
            let how = "enable their key version and repeat";
            reasons.push(format!(
                "{unopened} rows do not open and stay as they are ({of}): {how}"
            ));
        }
        let (unauthenticated, of) = listed(&self.unauthenticated);
        if unauthenticated > 0 {
            reasons.push(format!(
                "{unauthenticated} objects are in an old format that does not prove who sealed them, and stay as they are \
                 ({of}): run `sealwire collections migrate {app} COLLECTION`"
            ));
        }
        if reasons.is_empty() {
            Ok(())
        } else {
            Err(reasons.join("; "))
        }
    }
}

/// Returns the sum of rows, and the rows of each collection as text.
fn listed(rows: &BTreeMap<String, u64>) -> (u64, String) {
    let of: Vec<String> = rows
        .iter()
        .map(|(collection, rows)| format!("{rows} of {collection}"))
        .collect();
    (rows.values().sum(), of.join(", "))
}

impl fmt::Display for RewrapReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RewrapTotals {
            rewrapped, passes, ..
        } = self.done;
        writeln!(f, "{rewrapped} rows rewrapped, {passes} passes")?;
        self.census.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    fn page(rewrapped: u64, changed: u64, unopened: u64, next: Option<&str>) -> RewrappedRows {
        let (collection, next) = ("people".to_owned(), next.map(str::to_owned));
        RewrappedRows {
            rewrapped,
            changed,
            unopened,
            unauthenticated: 0,
            collection,
            next,
            generation: 1,
        }
    }

    /// Runs a job over these pages. Returns the totals, the cursors and the limit of the requests,
    /// and the time it took.
    fn run(
        rate: Option<u32>,
        pages: Vec<RewrappedRows>,
    ) -> (RewrapTotals, Vec<String>, Option<u32>, Duration) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let (pages, asked) = (
            RefCell::new(VecDeque::from(pages)),
            RefCell::new((Vec::new(), None)),
        );
        let operation = async |call: RewrapRowsRequest<'_>| {
            asked
                .borrow_mut()
                .0
                .push(call.after.unwrap_or("-").to_owned());
            asked.borrow_mut().1 = call.limit;
            Ok(pages
                .borrow_mut()
                .pop_front()
                .expect("no more passes than needed"))
        };
        let job = RewrapJob {
            app: "shop",
            collection: None,
            rate,
        };
        let (totals, took) = runtime.block_on(async {
            let began = Instant::now();
            (
                job.run_passes(operation, &DocumentProgress::start())
                    .await
                    .unwrap(),
                began.elapsed(),
            )
        });
        assert!(pages.borrow().is_empty());
        let (cursors, limit) = asked.into_inner();
        (totals, cursors, limit, took)
    }

    #[test]
    fn passes_are_repeated_until_one_changes_nothing() {
        let pages = vec![
            page(3, 0, 1, Some("a")),
            page(0, 1, 0, None),
            page(0, 1, 1, None),
            page(0, 0, 1, Some("b")),
            page(0, 0, 2, None),
        ];
        let (totals, cursors, limit, _) = run(None, pages);
        assert_eq!(cursors, ["-", "a", "-", "-", "b"]);
        assert_eq!(limit, Some(500));
        let unopened = BTreeMap::from([("people".to_owned(), 3)]);
        assert_eq!(
            totals,
            RewrapTotals {
                rewrapped: 3,
                passes: 3,
                unopened,
                ..RewrapTotals::default()
            }
        );
        let error = totals.check_finished("shop").unwrap_err();
        assert_eq!(
            error,
            "3 rows do not open and stay as they are (3 of people): enable their key version and repeat"
        );
        assert_eq!(RewrapTotals::default().check_finished("shop"), Ok(()));
        let old = RewrappedRows {
            unauthenticated: 2,
            ..page(1, 0, 0, None)
        };
        let (totals, ..) = run(
            None,
            vec![
                old.clone(),
                RewrappedRows {
                    rewrapped: 0,
                    ..old
                },
            ],
        );
        let error = totals.check_finished("shop").unwrap_err();
        assert!(
            error.contains("2 objects are in an old format") && error.contains("(2 of people)"),
            "{error}"
        );
        assert!(
            error.contains("`sealwire collections migrate shop COLLECTION`"),
            "{error}"
        );
    }

    #[test]
    fn the_rate_is_bounded() {
        let pages = vec![
            page(20, 0, 0, Some("a")),
            page(10, 0, 0, Some("b")),
            page(20, 0, 0, None),
            page(0, 0, 0, None),
        ];
        let (totals, _, limit, took) = run(Some(20), pages);
        // Behind the last page of a pass, nothing waits.
        assert_eq!((totals.rewrapped, limit), (50, Some(20)));
        assert!(
            (Duration::from_millis(1_500)..Duration::from_millis(1_600)).contains(&took),
            "{took:?}"
        );
    }
}
