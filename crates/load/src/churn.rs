//! The churn load: clients that open a connection for every few requests, by a clock, beside a
//! steady client on a kept connection.
//!
//! The load has two parts. In the first, only the steady client sends. In the second, new
//! connections are opened beside it. The difference of the steady client's latency between the
//! parts is what it feels of the handshakes.

mod clients;
mod connection;
mod counts;
mod figures;
mod usage;

use std::io::Write as _;
use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::Resumption;
use sealwire_wire::{Info, request};

use crate::ask::result;
use crate::fault::Fault;
use crate::histograms::Spread;
use crate::load::{ArrivalRule, Arrivals, Call, Load, Method, Scope, Suite};
use crate::random::Random;
use crate::results::{ChurnSecond, Run};
use crate::table::time;
use crate::target::Target;
use crate::{frames, host};

use clients::{ClientResult, LoadClock, Request, Schedule, Shared};
use connection::Endpoint;
use counts::{ChurnCounts, ChurnWindow, Kind};
use figures::{Ended, figures};
use usage::{UsageReading, UsageSource};

const SECOND: f64 = 1e9;
/// Bytes of each field.
const FIELD_BYTES: u32 = 16;
/// Maximum length of each part of the load. There are histograms for each second.
const SECONDS_MAX: f64 = 600.0;

/// Description of a churn load.
#[derive(Clone, Debug)]
pub(crate) struct ChurnSettings {
    pub(crate) target: Target,
    pub(crate) app: String,
    /// Fields of each request.
    pub(crate) fields: u32,
    /// New connections per second.
    pub(crate) per_s: f64,
    pub(crate) arrivals: Arrivals,
    /// Requests per connection, at least 1.
    pub(crate) calls: u32,
    /// Maximum number of new connections at once.
    pub(crate) at_once_max: u32,
    /// Offer to resume TLS sessions.
    pub(crate) resume: bool,
    /// Requests per second of the steady client.
    pub(crate) steady_per_s: f64,
    pub(crate) warm_up_s: f64,
    /// Length of the part without new connections.
    pub(crate) alone_s: f64,
    /// Length of the part with new connections.
    pub(crate) churn_s: f64,
    /// Time limit of each wait of a client.
    pub(crate) timeout: Duration,
    pub(crate) seed: u64,
}

impl ChurnSettings {
    /// Checks that the load can run.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let invalid = |what: &str| Err(Fault::Failed(what.to_owned()));
        if !(1e-3..=1e6).contains(&self.per_s) || !(1e-3..=1e5).contains(&self.steady_per_s) {
            return invalid(
                "--rate is 0.001 to 1,000,000 connections/s, and --steady-rate 0.001 to 100,000 requests/s",
            );
        }
        if !(0.1..=SECONDS_MAX).contains(&self.churn_s)
            || !(0.0..=SECONDS_MAX).contains(&self.alone_s)
        {
            return invalid("--seconds is 0.1 to 600, and --alone 0 to 600");
        }
        self.load().check()
    }

    /// Returns the load in the form that runs of other loads have.
    fn load(&self) -> Load {
        let call = |kind: Kind| Call {
            name: kind.name().to_owned(),
            method: Method::Encrypt,
            fields: self.fields,
            field_bytes: FIELD_BYTES,
            weight: 1.0,
            suite: Suite::P256,
            scope: Scope::Request,
            collection: String::new(),
            deadline_ms: None,
            cancel_after_ms: None,
        };
        Load {
            target: self.target.clone(),
            app: self.app.clone(),
            calls: Kind::ALL.map(call).into(),
            drive: ArrivalRule::Open {
                per_s: self.offered_per_s(),
                arrivals: self.arrivals,
            },
            connections: self.at_once_max + 1,
            duration_s: self.alone_s + self.churn_s,
            warm_up_s: self.warm_up_s,
            drain_s: self.timeout.as_secs_f64(),
            check: 1,
            distinct: 1,
            ignore_retry: true,
            seed: self.seed,
            tick_us: None,
        }
    }

    /// Returns the requests per second of all clients, on average over both parts.
    fn offered_per_s(&self) -> f64 {
        let share = self.churn_s / (self.alone_s + self.churn_s);
        self.steady_per_s + self.per_s * f64::from(self.calls) * share
    }

    fn endpoint(&self) -> Result<Endpoint, Fault> {
        let (tls, name) = self.target.tls()?;
        let mut tls = ClientConfig::clone(&tls);
        if !self.resume {
            tls.resumption = Resumption::disabled();
        }
        let address = &self.target.address;
        let found = self
            .target
            .dial()
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next());
        let found = found.ok_or_else(|| {
            Fault::Failed(format!(
                "{address} has no address: give another with --connect"
            ))
        })?;
        let (tls, bytes) = (Arc::new(tls), Arc::default());
        Ok(Endpoint {
            engine: address.clone(),
            address: found,
            name,
            tls,
            timeout: self.timeout,
            bytes,
        })
    }

    fn request(&self) -> Request {
        let plain = frames::document(self.fields, FIELD_BYTES, &mut Random::new(self.seed));
        let mut bytes = Vec::new();
        frames::encode(
            &mut bytes,
            frames::MSGID,
            &self.app,
            &self.load().calls[0],
            Method::Encrypt,
            &plain,
        );
        Request { bytes, plain }
    }
}

/// Runs the load. With `live`, prints a line per second to standard error.
///
/// # Errors
/// Fails if the first connection is not served, if no connection was served, or if a response is
/// wrong.
pub(crate) fn run(settings: &ChurnSettings, name: &str, live: bool) -> Result<Run, Fault> {
    settings.check()?;
    let (endpoint, request) = (settings.endpoint()?, Arc::new(settings.request()));
    let usage = UsageSource {
        engine: host::engine(&settings.target.address),
        bytes: Arc::clone(&endpoint.bytes),
    };
    let mut steady = clients::connect_first(&endpoint, &settings.app, &request)?;
    let (tls, version) = (steady.negotiated(), version(&mut steady)?);

    let ns = |seconds: f64| (seconds * SECOND) as u64;
    let begin = ns(settings.warm_up_s);
    let churn = begin + ns(settings.alone_s);
    let window = ChurnWindow {
        begin,
        churn,
        end: churn + ns(settings.churn_s),
    };
    let (sender, results) = channel();
    let started = crate::results::now();
    let shared = Shared {
        endpoint,
        request,
        clock: LoadClock::start(),
        results: sender,
    };
    let rule = ArrivalRule::Open {
        per_s: settings.steady_per_s,
        arrivals: settings.arrivals,
    };
    let schedule = Schedule::new(rule, 0, window.end, settings.seed);
    let steady = clients::start_steady(shared.clone(), steady, schedule)?;
    let rule = ArrivalRule::Open {
        per_s: settings.per_s,
        arrivals: settings.arrivals,
    };
    let schedule = Schedule::new(rule, window.churn, window.end, settings.seed + 1);
    let churning = clients::start_churn(&shared, schedule, settings.at_once_max, settings.calls)?;
    let clock = shared.clock;
    drop(shared);

    let mut counts = ChurnCounts::new(window);
    let usage = collect(&results, clock, window, &usage, &mut counts, live)?;
    let nice = joined(steady)?;
    let unsent = churning.into_iter().map(joined).sum::<Result<u64, _>>()?;
    figures(
        settings,
        name,
        &counts,
        Ended {
            usage,
            unsent,
            nice,
            tls,
            version,
            started,
        },
    )
}

fn joined<T>(thread: JoinHandle<T>) -> Result<T, Fault> {
    thread
        .join()
        .map_err(|_| Fault::Failed("a client's thread panicked; its message is above".to_owned()))
}

/// Returns the engine's version.
fn version(connection: &mut connection::Connection) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    request::info(&mut bytes, frames::MSGID);
    let (answer, _) = connection
        .ask(&bytes)
        .map_err(|fault| Fault::Lost(fault.describe()))?;
    Ok(Info::decode(result(&answer)?)
        .map_err(|error| Fault::Wrong(format!("info: {error}")))?
        .version)
}

/// Counts results until all clients have ended. Reads CPU times at the start of the window, at the
/// start of the churn, at its end, and each second.
fn collect(
    results: &Receiver<ClientResult>,
    clock: LoadClock,
    window: ChurnWindow,
    usage: &UsageSource,
    counts: &mut ChurnCounts,
    live: bool,
) -> Result<[UsageReading; 3], Fault> {
    let borders = [window.begin, window.churn, window.end];
    let mut read = [UsageReading::default(); 3];
    let mut next_border = 0;
    let mut last: Option<(u64, UsageReading)> = None;
    let mut next_second = window.begin;
    loop {
        let border = borders.get(next_border).copied().unwrap_or(u64::MAX);
        let wait = Duration::from_nanos(
            border
                .min(next_second)
                .saturating_sub(clock.now())
                .min(1_000_000_000),
        );
        match results.recv_timeout(wait) {
            Ok(result) => {
                if let Some(why) = counts.add(result) {
                    return Err(Fault::Wrong(why));
                }
            }
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => {
                if let Some((at, before)) = last {
                    let cores = before
                        .cores(usage.read(), (clock.now() - at) as f64 / SECOND)
                        .0;
                    second(counts, next_second - window.begin, cores, live);
                }
                read[next_border..].fill(usage.read());
                return Ok(read);
            }
        }
        let now = clock.now();
        while borders
            .get(next_border)
            .is_some_and(|border| *border <= now)
        {
            read[next_border] = usage.read();
            next_border += 1;
        }
        if now >= next_second {
            let reading = usage.read();
            if let Some((at, before)) = last.filter(|(at, _)| now > *at) {
                second(
                    counts,
                    next_second - window.begin,
                    before.cores(reading, (now - at) as f64 / SECOND).0,
                    live,
                );
            }
            last = Some((now, reading));
            next_second += SECOND as u64;
        }
    }
}

/// Records the engine's CPU use of the second that ended at `end`, and prints its progress.
fn second(counts: &mut ChurnCounts, end: u64, engine_cores: Option<f64>, live: bool) {
    let at = (end / SECOND as u64) as usize;
    let Some(second) = at.checked_sub(1).and_then(|at| counts.seconds.get_mut(at)) else {
        return;
    };
    second.engine_cores = engine_cores;
    let line = progress(second, &counts.recent);
    counts.recent = Spread::coarse();
    if live {
        // A closed standard error must not stop a load.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// Formats the progress of one second. `handshakes` are those of the second.
fn progress(second: &ChurnSecond, handshakes: &Spread) -> String {
    format!(
        "{:7.1} s  {} handshakes/s  {} rejected  {} failed  p50 {}  p99 {}",
        second.t_s,
        second.done,
        second.rejected,
        second.failed,
        time(handshakes.quantile_us(0.5)),
        time(handshakes.quantile_us(0.99)),
    )
}
