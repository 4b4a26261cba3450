//! A prober: encrypts and decrypts a small document at a fixed rate, for as long as it runs.
//!
//! The rate is an open loop. A thread starts each probe at its due time, regardless of earlier
//! probes. A task per probe sends the requests with `sealwire-client`, which reconnects and reads
//! renewed certificates. Another thread collects the outcomes and prints reports, so that a slow
//! terminal delays no probe.

mod metrics;
mod outcome;
mod report;
mod scrape;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sealwire_client::{Client, CommonParams, Decrypt, Encrypt, Error};
use sealwire_service::admin_server::AdminServer;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::fault::Fault;
use crate::frames::every_field_changed;
use crate::random::Random;
use crate::target::Target;
use crate::{frames, host};

pub use metrics::ProbeMetrics;
use outcome::{Outcome, ProbeResult};
pub(crate) use report::{ProbeReport, ReportWindow, Totals};

/// Bytes of each field.
const FIELD_BYTES: u32 = 16;
/// Pause after a first failed connection attempt. The pause doubles up to [`backoff_max`].
const BACKOFF_MIN: Duration = Duration::from_millis(20);

/// The target of the probes, and their interval.
#[derive(Clone, Debug)]
pub(crate) struct ProbeSettings {
    pub(crate) target: Target,
    pub(crate) app: String,
    /// Fields of each document, at least 1.
    pub(crate) fields: u32,
    /// Probes per second, above 0.
    pub(crate) per_s: f64,
    /// Time limit of a probe, from its due time.
    pub(crate) timeout: Duration,
    /// Number of probes; `None`: until a signal.
    pub(crate) count: Option<u64>,
    /// Time between two reports.
    pub(crate) report_every: Duration,
    /// Address of the metrics listener, if there is one.
    pub(crate) metrics: Option<SocketAddr>,
}

/// A prober, ready to run.
pub(crate) struct Prober {
    settings: ProbeSettings,
    runtime: Runtime,
    client: Client,
    metrics: Arc<ProbeMetrics>,
    metrics_server: Option<AdminServer>,
    /// Receives a message when the probes must stop. The collector uses the sender too.
    stop: (Sender<()>, Receiver<()>),
}

impl Prober {
    /// Reads the certificates and binds the metrics listener. From then on, SIGINT and SIGTERM no
    /// longer end the process. Does not connect to the engine.
    pub(crate) fn new(settings: ProbeSettings) -> Result<Self, Fault> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let client = client(&settings)?;
        let metrics = Arc::new(ProbeMetrics::new());
        metrics.started(unix_s());
        let listener = settings.metrics.map(|address| {
            let started = scrape::start(address, Arc::clone(&metrics));
            started.map_err(|error| Fault::Failed(format!("--metrics {address}: {error}")))
        });
        let metrics_server = listener.transpose()?;
        let stop = channel();
        let signals = {
            let _inside = runtime.enter();
            [
                signal(SignalKind::interrupt())?,
                signal(SignalKind::terminate())?,
            ]
        };
        runtime.spawn(stop_at_signal(signals, stop.0.clone()));
        Ok(Self {
            settings,
            runtime,
            client,
            metrics,
            metrics_server,
            stop,
        })
    }

    /// Returns the address of the metrics listener, with the port that the system chose.
    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_server.as_ref().map(AdminServer::address)
    }

    /// Probes until the count is reached, SIGINT or SIGTERM arrives, or `emit` fails. Passes each
    /// report to `emit`.
    pub(crate) fn run(
        &self,
        emit: impl FnMut(&ProbeReport) -> io::Result<()> + Send,
    ) -> io::Result<Totals> {
        // The first probe must not pay for the first connection. If the engine is unreachable, the
        // probes report it.
        let _ = self.runtime.block_on(self.client.health());
        let (ended, results) = channel();
        let report_every = self.settings.report_every;
        let stop = self.stop.0.clone();
        let stopped = &self.stop.1;
        std::thread::scope(|scope| {
            let collector = scope.spawn(move || {
                let totals = collect(&results, report_every, emit);
                // Stops the probes even if a report could not be printed.
                let _ = stop.send(());
                totals
            });
            self.pace(stopped, ended);
            collector
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts each probe at its due time.
    fn pace(&self, stopped: &Receiver<()>, ended: Sender<ProbeResult>) {
        host::wake_on_time();
        let settings = &self.settings;
        let mut random = Random::new(unix_s().to_bits());
        let start = Instant::now();
        for number in 0..settings.count.unwrap_or(u64::MAX) {
            // Each probe has a new document, so that no cached response can satisfy it.
            let plain = frames::document(settings.fields, FIELD_BYTES, &mut random);
            let due = start + due_after(number, settings.per_s);
            let wait = due.saturating_duration_since(Instant::now());
            if !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout)) {
                return;
            }
            let client = self.client.clone();
            let metrics = Arc::clone(&self.metrics);
            let ended = ended.clone();
            let app = settings.app.clone();
            let limit = TimeLimit {
                due,
                timeout: settings.timeout,
            };
            self.runtime.spawn(async move {
                let late = due.elapsed();
                let (outcome, why) = probe(&client, &app, &plain, limit).await;
                let result = ProbeResult {
                    outcome,
                    took: due.elapsed(),
                    late,
                    why,
                };
                metrics.record(&result, unix_s());
                // The collector has ended if a report could not be printed.
                let _ = ended.send(result);
            });
        }
    }
}

/// Returns the time from the start to the due time of a probe.
fn due_after(number: u64, per_s: f64) -> Duration {
    Duration::from_secs_f64(number as f64 / per_s)
}

/// Returns the longest pause between two connection attempts: a quarter of the time limit, so that
/// each probe during an outage sees an attempt fail.
fn backoff_max(timeout: Duration) -> Duration {
    (timeout / 4).clamp(BACKOFF_MIN, Duration::from_secs(2))
}

fn client(settings: &ProbeSettings) -> Result<Client, Fault> {
    let mut config = settings.target.client();
    // A single connection, and no retries: a retry would hide the failure that a probe must find.
    config.connections = 1;
    config.attempts_max = 1;
    config.in_flight_max = 65_536;
    config.deadline = settings.timeout;
    config.connect_timeout = settings.timeout;
    config.backoff_min = BACKOFF_MIN;
    config.backoff_max = backoff_max(settings.timeout);
    Client::lazy(config).map_err(|error| Fault::Failed(outcome::describe(&error)))
}

/// Returns the system time in seconds since 1970.
fn unix_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

/// Stops the probes at the first signal.
async fn stop_at_signal([mut interrupt, mut terminate]: [Signal; 2], stop: Sender<()>) {
    tokio::select! {
        _ = interrupt.recv() => (),
        _ = terminate.recv() => (),
    }
    // The receiver has ended if the prober has.
    let _ = stop.send(());
}

/// The time limit of one probe.
#[derive(Clone, Copy, Debug)]
struct TimeLimit {
    due: Instant,
    timeout: Duration,
}

impl TimeLimit {
    /// Returns the remaining whole milliseconds, or `None` if no time is left.
    fn left_ms(&self, now: Instant) -> Option<u32> {
        let left = (self.due + self.timeout)
            .saturating_duration_since(now)
            .as_millis();
        u32::try_from(left).ok().filter(|left| *left > 0)
    }
}

/// Encrypts a document, decrypts the result and compares. Returns the outcome, and the reason for a
/// failure.
async fn probe(
    client: &Client,
    app: &str,
    plain: &[u8],
    limit: TimeLimit,
) -> (Outcome, Option<String>) {
    let late = || {
        (
            Outcome::Timeout,
            Some("the time limit passed before a request could be sent".to_owned()),
        )
    };
    let wrong = |why: &str| (Outcome::Wrong, Some(why.to_owned()));

    let Some(deadline_ms) = limit.left_ms(Instant::now()) else {
        return late();
    };
    let placed = client.stats().attempts;
    let sealed = client
        .encrypt(Encrypt {
            options: CommonParams {
                deadline_ms: Some(deadline_ms),
                ..CommonParams::default()
            },
            ..Encrypt::new(app, plain)
        })
        .await;
    let sealed = match sealed {
        Ok(sealed) => sealed,
        Err(error) => return failed("encrypt", &error, client.stats().attempts == placed),
    };
    if !every_field_changed(plain, &sealed.payload).unwrap_or(false) {
        return wrong("encrypt: a field is not sealed");
    }

    let Some(deadline_ms) = limit.left_ms(Instant::now()) else {
        return late();
    };
    let placed = client.stats().attempts;
    let call = Decrypt {
        options: CommonParams {
            deadline_ms: Some(deadline_ms),
            ..CommonParams::default()
        },
        ..Decrypt::new(app, &sealed.payload)
    };
    match client.decrypt(call).await {
        Ok(opened) if opened.payload == plain => (Outcome::Ok, None),
        Ok(_) => wrong("decrypt: the value differs from the value that was encrypted"),
        Err(error) => failed("decrypt", &error, client.stats().attempts == placed),
    }
}

/// Returns the outcome of a failed request. `is_unplaced` tells that no connection took a request
/// since its start.
fn failed(method: &str, error: &Error, is_unplaced: bool) -> (Outcome, Option<String>) {
    let outcome = Outcome::of_error(error, is_unplaced);
    (
        outcome,
        Some(format!("{method}: {}", outcome::describe(error))),
    )
}

/// Adds up results until the last probe has ended, and passes a report per interval to `emit`.
fn collect(
    results: &Receiver<ProbeResult>,
    every: Duration,
    mut emit: impl FnMut(&ProbeReport) -> io::Result<()>,
) -> io::Result<Totals> {
    let mut totals = Totals::default();
    let mut window = ReportWindow::new();
    let mut began = Instant::now();
    loop {
        match results.recv_timeout((began + every).saturating_duration_since(Instant::now())) {
            Ok(result) => {
                totals.add(&result);
                window.add(&result);
            }
            Err(end) => {
                let is_last = end == RecvTimeoutError::Disconnected;
                let seconds = if is_last { began.elapsed() } else { every };
                if !is_last || !window.is_empty() {
                    emit(&window.report(crate::results::now(), seconds))?;
                }
                if is_last {
                    return Ok(totals);
                }
                window = ReportWindow::new();
                began += every;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_due_at_a_fixed_rate_without_drift() {
        for (number, per_s, expected) in [
            (0, 1.0, Duration::ZERO),
            (1, 1.0, Duration::from_secs(1)),
            (3, 0.5, Duration::from_secs(6)),
            (7, 1_000.0, Duration::from_millis(7)),
            // A year at ten per second.
            (315_360_000, 10.0, Duration::from_secs(31_536_000)),
        ] {
            let due = due_after(number, per_s);
            assert!(
                due.abs_diff(expected) < Duration::from_micros(1),
                "{number} at {per_s}: {due:?}"
            );
        }
    }

    #[test]
    fn time_that_is_left_counts_from_when_a_probe_was_due() {
        let due = Instant::now();
        let limit = TimeLimit {
            due,
            timeout: Duration::from_millis(100),
        };
        for (passed_us, expected) in [
            (0, Some(100)),
            (1, Some(99)),
            (98_999, Some(1)),
            (99_001, None),
            (500_000, None),
        ] {
            assert_eq!(
                limit.left_ms(due + Duration::from_micros(passed_us)),
                expected,
                "{passed_us}"
            );
        }
    }

    #[test]
    fn pauses_between_connection_attempts_fit_into_the_time_limit() {
        for (timeout_ms, expected_ms) in [(10, 20), (100, 25), (1_000, 250), (60_000, 2_000)] {
            assert_eq!(
                backoff_max(Duration::from_millis(timeout_ms)),
                Duration::from_millis(expected_ms)
            );
        }
    }

    #[test]
    fn a_report_that_cannot_be_printed_ends_the_collection() {
        let (ended, results) = channel();
        ended.send(ProbeResult::of(Outcome::Ok)).unwrap();
        drop(ended);
        let broken = collect(&results, Duration::from_secs(3_600), |_| {
            Err(io::ErrorKind::BrokenPipe.into())
        });
        assert_eq!(broken.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn totals_and_the_last_report_have_every_probe() {
        let (ended, results) = channel();
        for outcome in [Outcome::Ok, Outcome::Timeout, Outcome::Ok] {
            ended.send(ProbeResult::of(outcome)).unwrap();
        }
        drop(ended);
        let mut reports = Vec::new();
        let totals = collect(&results, Duration::from_secs(3_600), |report| {
            reports.push((report.probes, report.ok));
            Ok(())
        });
        assert_eq!(
            (totals.unwrap(), reports),
            (
                Totals {
                    probes: 3,
                    failed: 1
                },
                vec![(3, 2)]
            )
        );
    }
}
