//! Sends the operations of a vault load when they are due, to several engines: one thread,
//! nonblocking connections.
//!
//! The plan does not depend on responses, and latency counts from the time when an operation was
//! due, through all retries. An operation whose connection ends, or that an engine rejects, is sent
//! again to another engine: equal values have equal tokens, so that repeating a request is safe.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use sealwire_msgpack::{TokenReader, write};
use sealwire_wire::{Document, ErrorCode, MessageHeader, Reply, RpcError};

use super::engines::{EngineLinks, VaultLink};
use super::mix::{MixDeck, OperationKind};
use super::rows::{TokenRow, TokenRows, token};
use super::{VaultSettings, bulk};
use crate::ask::end_by_notice;
use crate::fault::Fault;
use crate::histograms::{RequestCounts, Spread};
use crate::load::Call;
use crate::progress::{Live, ProgressSample};
use crate::random::Random;
use crate::response_checker::{Recent, Window};
use crate::results::Phase;
use crate::stream::READ_BYTES;
use crate::{frames, host, results};

/// An operation that is sent later than this after its due time counts as late.
const LATE_NS: u64 = 1_000_000;
/// Time from its due time in which an operation is sent again.
const RETRY_NS: u64 = 20_000_000_000;
/// Pause before a retry if the error names none.
const RETRY_PAUSE_NS: u64 = 5_000_000;
/// Maximum operations sent in one iteration, before responses are read again.
const TURN_OPERATIONS: usize = 1_024;
/// Maximum bytes of operations due together that go to one connection.
const TOGETHER_BYTES: usize = 4 << 10;
/// Maximum unsent bytes of a connection if the engine stops reading.
const BACKLOG_BYTES_MAX: usize = 4 << 20;
/// Longest wait for responses, so that connections that were opened again are found.
const WAIT_NS: u64 = 5_000_000;
/// Rate from which responses are read at a fixed interval, instead of after each byte.
const TICK_FROM_PER_S: f64 = 20_000.0;
/// That interval.
const TICK_NS: u64 = 100_000;
/// Interval between progress reports.
const LIVE_NS: u64 = 1_000_000_000;
const SECOND: f64 = 1e9;

/// An operation that waits for its response. Times are nanoseconds of the load's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    kind: OperationKind,
    /// Index of the row, or the number of a new row.
    row: u32,
    due: u64,
    sent: u64,
}

/// A kill of an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct KillTimes {
    /// Index of the killed engine.
    pub(super) engine: usize,
    pub(super) at: u64,
    /// Time when all connections to the restarted engine were up.
    pub(super) recovered: Option<u64>,
    /// Operations in flight at the engine when it was killed.
    pub(super) in_flight: u64,
}

impl KillTimes {
    /// Returns the phase of an operation that was due at `due` and has ended now.
    fn phase(kill: Option<&Self>, due: u64) -> Phase {
        match kill {
            None => Phase::Before,
            Some(Self {
                recovered: Some(recovered),
                ..
            }) if due >= *recovered => Phase::After,
            Some(_) => Phase::During,
        }
    }
}

/// Latencies of the operations of one kind that ended in one phase.
#[derive(Clone, Debug)]
pub(super) struct PhaseLatency {
    pub(super) ok: u64,
    pub(super) failed: u64,
    pub(super) latency: Spread,
}

/// Counts and rows that responses change.
pub(super) struct OperationLog {
    pub(super) rows: TokenRows,
    pub(super) tallies: Vec<RequestCounts>,
    /// Per phase after [`Phase::Fill`], then per kind.
    pub(super) phases: Vec<[PhaseLatency; 3]>,
    pub(super) lag: Spread,
    pub(super) kill: Option<KillTimes>,
    /// Operations that were sent again because of the kill, by the reason.
    pub(super) retried: BTreeMap<String, u64>,
    /// Errors and lost connections outside the kill window, by code.
    pub(super) errors: BTreeMap<String, u64>,
    /// Operations of the kill window that were given up, by the last reason.
    pub(super) given_up: BTreeMap<String, u64>,
    /// Wrong responses, and the description of the first.
    pub(super) wrong: (u64, Option<String>),
    pub(super) last_error: Option<String>,
    window: Window,
    began: Instant,
    recent: Recent,
    /// Operations to send again, by the time and a running number.
    retries: BTreeMap<(u64, u64), Operation>,
    retry_number: u64,
}

impl OperationLog {
    pub(super) fn new(rows: TokenRows, window: Window) -> Self {
        let intervals = (window.end - window.begin).div_ceil(window.interval) as usize;
        let empty = || PhaseLatency {
            ok: 0,
            failed: 0,
            latency: Spread::fine(),
        };
        Self {
            rows,
            tallies: OperationKind::ALL
                .map(|_| RequestCounts::new(intervals))
                .into(),
            phases: (1..Phase::ALL.len())
                .map(|_| OperationKind::ALL.map(|_| empty()))
                .collect(),
            lag: Spread::fine(),
            kill: None,
            retried: BTreeMap::new(),
            errors: BTreeMap::new(),
            given_up: BTreeMap::new(),
            wrong: (0, None),
            last_error: None,
            window,
            began: Instant::now(),
            recent: Recent::new(),
            retries: BTreeMap::new(),
            retry_number: 0,
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn interval(&self, now: u64) -> Option<usize> {
        let last = self.tallies[0].intervals.len() - 1;
        self.window
            .holds(now)
            .then(|| (((now - self.window.begin) / self.window.interval) as usize).min(last))
    }

    /// Counts an operation that is sent for the first time.
    fn sent(&mut self, operation: &Operation) {
        if self.window.holds(operation.due) {
            let behind = operation.sent.saturating_sub(operation.due);
            let tally = &mut self.tallies[operation.kind.index()];
            tally.sent += 1;
            tally.late += u64::from(behind > LATE_NS);
            self.lag.record(behind);
        }
    }

    /// Processes the response of engine `engine`: a token, a value, or an error.
    fn ended(&mut self, operation: &Operation, engine: usize, outcome: Result<&[u8], RpcError>) {
        match outcome {
            Ok(text) => self.compare(operation, engine, text),
            Err(error) => {
                self.last_error = Some(error.to_string());
                let is_final = !(error.code.is_retryable()
                    || matches!(
                        error.code,
                        ErrorCode::DeadlineExceeded | ErrorCode::Cancelled
                    ));
                let pause = error
                    .retry_after_ms
                    .map_or(RETRY_PAUSE_NS, |ms| u64::from(ms) * 1_000_000);
                self.set_back(operation, error.code.name(), pause, is_final);
            }
        }
    }

    fn compare(&mut self, operation: &Operation, engine: usize, text: &[u8]) {
        let now = self.now();
        let phase = KillTimes::phase(self.kill.as_ref(), operation.due);
        let rows = &mut self.rows;
        let right = match operation.kind {
            OperationKind::LookUp => text == rows.value(rows.get(operation.row as usize).number),
            OperationKind::KnownValue => text == rows.get(operation.row as usize).token,
            OperationKind::NewValue => match token(text) {
                Ok(token) => {
                    rows.acknowledge(TokenRow {
                        token,
                        engine: engine as u8,
                        phase,
                        number: operation.row,
                    });
                    true
                }
                Err(_) => false,
            },
        };
        if !right {
            return self.wrong(format!(
                "{} of row {} through engine {}",
                operation.kind.name(),
                operation.row,
                engine + 1
            ));
        }
        let latency = now.saturating_sub(operation.due);
        let interval = self.interval(now);
        let tally = &mut self.tallies[operation.kind.index()];
        if self.window.holds(operation.due) {
            tally.ok += 1;
            tally.checked += u64::from(operation.kind != OperationKind::NewValue);
            tally.latency.record(latency);
            tally.service.record(now.saturating_sub(operation.sent));
            let of_phase = &mut self.phases[phase as usize - 1][operation.kind.index()];
            of_phase.ok += 1;
            of_phase.latency.record(latency);
        }
        if let Some(interval) = interval {
            tally.intervals[interval].ok += 1;
            tally.intervals[interval].latency.record(latency);
        }
        self.recent.ok += 1;
        self.recent.latency.record(latency);
    }

    fn wrong(&mut self, what: String) {
        self.wrong.0 += 1;
        self.wrong.1.get_or_insert(what);
    }

    /// Handles an operation without a result: it is sent again after `pause`, unless its error is
    /// final or it is too late.
    fn set_back(&mut self, operation: &Operation, code: &str, pause: u64, is_final: bool) {
        let now = self.now();
        let phase = KillTimes::phase(self.kill.as_ref(), operation.due);
        let is_given_up = is_final || now + pause > operation.due + RETRY_NS;
        let counts = match (phase, is_given_up) {
            (Phase::During, false) => &mut self.retried,
            (Phase::During, true) => &mut self.given_up,
            _ => &mut self.errors,
        };
        *counts.entry(code.to_owned()).or_default() += 1;
        self.recent.errors += 1;
        let interval = self.interval(now);
        let tally = &mut self.tallies[operation.kind.index()];
        if let Some(interval) = interval {
            tally.intervals[interval].errors += 1;
        }
        if !is_given_up {
            self.retry_number += 1;
            self.retries
                .insert((now + pause, self.retry_number), *operation);
        } else if self.window.holds(operation.due) {
            tally.error(code);
            self.phases[phase as usize - 1][operation.kind.index()].failed += 1;
        }
    }

    /// Takes an operation that is to be sent again by now.
    fn due_retry(&mut self, now: u64) -> Option<Operation> {
        let entry = self
            .retries
            .first_entry()
            .filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }
}

/// Cumulative resource use at one time.
struct Reading {
    at: u64,
    bytes: (u64, u64),
    cpu: Duration,
    queued: Option<Duration>,
    engines: Option<Duration>,
}

/// Resource use in the measurement window.
#[derive(Debug)]
pub(super) struct LoadUsage {
    pub(super) started: String,
    pub(super) wall_s: f64,
    pub(super) bytes_out: u64,
    pub(super) bytes_in: u64,
    pub(super) cpu_s: f64,
    pub(super) queued_s: Option<f64>,
    pub(super) engines_cpu_s: Option<f64>,
    pub(super) nice: Option<i32>,
    /// Due operations that were not sent.
    pub(super) unsent: u64,
}

/// A running load.
pub(super) struct Driver<'a> {
    settings: &'a VaultSettings,
    /// The request of each kind.
    calls: Vec<Call>,
    links: EngineLinks,
    log: OperationLog,
    deck: MixDeck,
    random: Random,
    due: f64,
    next: usize,
    together: usize,
    /// CPU time of engine processes that have ended.
    ended_cpu: Duration,
    payload: Vec<u8>,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        settings: &'a VaultSettings,
        calls: Vec<Call>,
        links: EngineLinks,
        rows: TokenRows,
        window: Window,
    ) -> Self {
        Self {
            settings,
            calls,
            links,
            log: OperationLog::new(rows, window),
            deck: MixDeck::new(),
            random: Random::new(settings.seed ^ 0x7a17),
            due: 0.0,
            next: 0,
            together: 0,
            ended_cpu: Duration::ZERO,
            payload: Vec::new(),
        }
    }

    /// Closes the connections and returns the log.
    pub(super) fn into_log(self) -> OperationLog {
        self.log
    }

    /// Runs the load to its end.
    pub(super) fn run(&mut self, live: Option<&Live>) -> Result<LoadUsage, Fault> {
        host::wake_on_time();
        let nice = host::take_precedence();
        let mut scratch = vec![0; READ_BYTES];
        let Window { begin, end, .. } = self.log.window;
        let kill_at = self
            .settings
            .kill_after_s
            .map(|seconds| begin + (seconds * SECOND) as u64);
        let give_up = end + (self.settings.drain_s * SECOND) as u64;
        let (mut first, mut last, mut started) = (None, None, String::new());
        let mut next_live = LIVE_NS;
        self.log.began = Instant::now();
        loop {
            let now = self.log.now();
            if first.is_none() && now >= begin {
                (first, started) = (Some(self.reading(now)), results::now());
            }
            if last.is_none() && now >= end {
                last = Some(self.reading(now));
            }
            if self.log.kill.is_none() && kill_at.is_some_and(|at| now >= at) {
                self.kill()?;
            }
            self.renew(now);
            let mut next = self.send_due(now.min(end));
            if now >= end {
                let is_answered = self.links.in_flight() == 0
                    && self.log.retries.is_empty()
                    && self.due >= end as f64;
                let is_recovered = self.log.kill.is_none_or(|kill| kill.recovered.is_some());
                if (is_answered && is_recovered) || now >= give_up {
                    break;
                }
                next = u64::MAX;
            }
            if let Some(live) = live.filter(|_| now >= next_live) {
                next_live += LIVE_NS;
                let recent = std::mem::replace(&mut self.log.recent, Recent::new());
                let under_way = (self.links.in_flight() + self.log.retries.len()) as u64;
                live.tell(ProgressSample {
                    t_s: now as f64 / SECOND - self.settings.warm_up_s,
                    under_way,
                    recent,
                });
            }
            self.flush();
            self.wait(next)?;
            self.receive(&mut scratch);
        }
        let unsent = self.leave(end);
        let now = self.log.now();
        let last = last.unwrap_or_else(|| self.reading(now));
        let first =
            first.ok_or_else(|| Fault::Failed("the load ended before it began".to_owned()))?;
        let used = |from: Option<Duration>, to: Option<Duration>| {
            Some(to?.saturating_sub(from?).as_secs_f64())
        };
        Ok(LoadUsage {
            started,
            wall_s: Duration::from_nanos(last.at - first.at).as_secs_f64(),
            bytes_out: last.bytes.0 - first.bytes.0,
            bytes_in: last.bytes.1 - first.bytes.1,
            cpu_s: (last.cpu - first.cpu).as_secs_f64(),
            queued_s: used(first.queued, last.queued),
            engines_cpu_s: used(first.engines, last.engines),
            nice,
            unsent,
        })
    }

    fn reading(&self, at: u64) -> Reading {
        let engines = self
            .links
            .engines
            .iter()
            .map(|engine| engine.pid.and_then(host::process_cpu));
        Reading {
            at,
            bytes: self.links.bytes(),
            cpu: host::thread_cpu(),
            queued: host::thread_queued(),
            engines: engines
                .sum::<Option<Duration>>()
                .map(|cpu| cpu + self.ended_cpu),
        }
    }

    /// Kills the last engine.
    fn kill(&mut self) -> Result<(), Fault> {
        let engine = self.links.engines.len() - 1;
        let endpoint = &mut self.links.engines[engine];
        let pid = endpoint
            .pid
            .take()
            .and_then(|pid| Some((pid, Pid::from_raw(i32::try_from(pid).ok()?)?)));
        let (pid, target) = pid.ok_or_else(|| super::no_process(&endpoint.target.address))?;
        self.ended_cpu += host::process_cpu(pid).unwrap_or_default();
        let of_engine = self.links.slots.iter().filter(|slot| slot.engine == engine);
        let in_flight = of_engine
            .filter_map(|slot| slot.link.as_ref())
            .map(|link| link.calls.under_way() as u64)
            .sum();
        kill_process(target, Signal::KILL).map_err(std::io::Error::from)?;
        self.log.kill = Some(KillTimes {
            engine,
            at: self.log.now(),
            recovered: None,
            in_flight,
        });
        Ok(())
    }

    /// Takes connections that were opened again. After a kill, the engine has recovered when all of
    /// its connections are new.
    fn renew(&mut self, now: u64) {
        self.links.accept_renewed();
        if let Some(kill) = self
            .log
            .kill
            .as_mut()
            .filter(|kill| kill.recovered.is_none())
        {
            let mut of_engine = self
                .links
                .slots
                .iter()
                .filter(|slot| slot.engine == kill.engine);
            if of_engine.all(|slot| slot.renewals > 0 && slot.link.is_some()) {
                kill.recovered = Some(now);
            }
        }
    }

    /// Sends the operations that are due by this time, and those to send again. Returns the next
    /// due time.
    fn send_due(&mut self, by: u64) -> u64 {
        self.advance();
        let gap = SECOND / self.settings.per_s;
        let mut count = 0;
        while self.due <= by as f64
            && self.due < self.log.window.end as f64
            && count < TURN_OPERATIONS
        {
            let due = self.due as u64;
            self.due += self.random.exponential(gap);
            let kind = self.deck.draw(&mut self.random);
            let row = match kind {
                OperationKind::NewValue => self.log.rows.reserve(1),
                OperationKind::LookUp | OperationKind::KnownValue => {
                    self.log.rows.choose(&mut self.random) as u32
                }
            };
            let operation = Operation {
                kind,
                row,
                due,
                sent: self.log.now(),
            };
            self.log.sent(&operation);
            self.send(operation);
            count += 1;
        }
        let now = self.log.now();
        for _ in 0..TURN_OPERATIONS {
            let Some(operation) = self.log.due_retry(now) else {
                break;
            };
            self.send(operation);
        }
        let retry = self
            .log
            .retries
            .first_key_value()
            .map_or(u64::MAX, |((at, _), _)| *at);
        retry.min(self.due as u64)
    }

    /// Moves to the next connection.
    fn advance(&mut self) {
        self.together = 0;
        self.next = (self.next + 1) % self.links.slots.len();
    }

    fn send(&mut self, operation: Operation) {
        for _ in 0..self.links.slots.len() {
            let sent = self.log.now();
            if let Some(VaultLink { stream, calls }) = &mut self.links.slots[self.next].link
                && stream.backlog() < BACKLOG_BYTES_MAX
                && let Some(msgid) = calls.begin(Operation { sent, ..operation })
            {
                let rows = &self.log.rows;
                let call = &self.calls[operation.kind.index()];
                self.payload.clear();
                let mut text = |bytes: &[u8]| {
                    write::str_header(&mut self.payload, bytes.len());
                    self.payload.extend_from_slice(bytes);
                };
                match operation.kind {
                    OperationKind::LookUp => text(&rows.get(operation.row as usize).token),
                    OperationKind::KnownValue => {
                        text(&rows.value(rows.get(operation.row as usize).number))
                    }
                    OperationKind::NewValue => text(&rows.value(operation.row)),
                }
                let before = stream.out().len();
                frames::encode(
                    stream.out(),
                    msgid,
                    &self.settings.app,
                    call,
                    call.method,
                    &self.payload,
                );
                self.together += stream.out().len() - before;
                if self.together >= TOGETHER_BYTES {
                    self.advance();
                }
                return;
            }
            self.advance();
        }
        self.log
            .set_back(&operation, "no_connection", RETRY_PAUSE_NS, false);
    }

    fn flush(&mut self) {
        let links = self
            .links
            .slots
            .iter_mut()
            .filter_map(|slot| slot.link.as_mut());
        links
            .filter(|link| link.stream.wants_write())
            .for_each(|link| link.stream.flush());
    }

    /// Waits until a connection is readable or the time is reached. At a high rate, waits for the
    /// next tick.
    fn wait(&self, next: u64) -> Result<(), Fault> {
        if self.settings.per_s >= TICK_FROM_PER_S {
            std::thread::sleep(Duration::from_nanos(TICK_NS - self.log.now() % TICK_NS));
            return Ok(());
        }
        let flags = |link: &VaultLink| {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, link.stream.wants_write());
            flags
        };
        let mut polled: Vec<_> = self
            .links
            .links()
            .map(|link| PollFd::new(&link.stream, flags(link)))
            .collect();
        let wait = Duration::from_nanos(next.saturating_sub(self.log.now()).min(WAIT_NS));
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match poll(&mut polled, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(std::io::Error::from(error).into()),
        }
    }

    fn receive(&mut self, scratch: &mut [u8]) {
        for number in 0..self.links.slots.len() {
            let slot = &mut self.links.slots[number];
            let engine = slot.engine;
            let Some(VaultLink { stream, calls }) = &mut slot.link else {
                continue;
            };
            let log = &mut self.log;
            stream.receive(scratch, |stream, layout, message| {
                let MessageHeader::Response { msgid } = layout.head else {
                    return end_by_notice(stream, message);
                };
                match calls.end(msgid) {
                    Some(operation) => respond(log, &operation, engine, message),
                    None => log.wrong(format!(
                        "a response to request {msgid}, which was not made or has one"
                    )),
                }
            });
            if let Some(why) = stream.ended() {
                log.last_error = Some(format!("engine {}: {why}", engine + 1));
                self.lost(number);
            }
        }
    }

    /// Sends the operations of an ended connection again, through others.
    fn lost(&mut self, number: usize) {
        let engine = self.links.slots[number].engine;
        let Some(mut link) = self.links.take_ended(number) else {
            return;
        };
        let is_killed = self
            .log
            .kill
            .is_some_and(|kill| kill.engine == engine && kill.recovered.is_none());
        if !is_killed {
            *self
                .log
                .errors
                .entry("connection_lost".to_owned())
                .or_default() += 1;
        }
        for operation in link.calls.drain() {
            self.log.set_back(&operation, "connection_lost", 0, false);
        }
    }

    /// Counts operations without a response. Returns the number of due operations that were not
    /// sent.
    fn leave(&mut self, end: u64) -> u64 {
        let mut open: Vec<Operation> = std::mem::take(&mut self.log.retries)
            .into_values()
            .collect();
        for slot in &mut self.links.slots {
            open.extend(slot.link.iter_mut().flat_map(|link| link.calls.drain()));
        }
        open.iter()
            .for_each(|operation| self.log.set_back(operation, "unanswered", 0, true));
        let left = (end as f64 - self.due).max(0.0);
        let unsent = (left / SECOND * self.settings.per_s) as u64;
        if unsent > 0 {
            *self.log.errors.entry("unsent".to_owned()).or_default() += unsent;
        }
        unsent
    }
}

/// Reads a response, and passes its text or its error to the log.
fn respond(log: &mut OperationLog, operation: &Operation, engine: usize, message: &[u8]) {
    let reply = Reply::decode(message).and_then(|reply| match reply.outcome {
        Ok(result) => Ok(Ok(bulk::text(&mut TokenReader::new(
            Document::decode(result)?.payload,
        ))?)),
        Err(error) => Ok(Err(error)),
    });
    match reply {
        Ok(outcome) => log.ended(operation, engine, outcome),
        Err(error) => log.wrong(format!("engine {}: {error}", engine + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault::rows::TOKEN_BYTES;

    const MS: u64 = 1_000_000;

    fn log() -> OperationLog {
        let mut rows = TokenRows::new(1);
        for number in 0..rows.reserve(2) + 2 {
            let token = [b'a' + number as u8; TOKEN_BYTES];
            rows.acknowledge(TokenRow {
                token,
                engine: 0,
                phase: Phase::Fill,
                number,
            });
        }
        OperationLog::new(
            rows,
            Window {
                begin: 0,
                end: 60_000 * MS,
                interval: 1_000 * MS,
            },
        )
    }

    fn operation(kind: OperationKind, row: u32, due: u64) -> Operation {
        Operation {
            kind,
            row,
            due,
            sent: due,
        }
    }

    fn killed(recovered: Option<u64>) -> Option<KillTimes> {
        Some(KillTimes {
            engine: 1,
            at: 10 * MS,
            recovered,
            in_flight: 0,
        })
    }

    #[test]
    fn operations_that_overlap_the_kill_window_belong_to_it() {
        for (kill, due, expected) in [
            (None, 5, Phase::Before),
            (killed(None), 5, Phase::During),
            (killed(None), 15, Phase::During),
            (killed(Some(20 * MS)), 15, Phase::During),
            (killed(Some(20 * MS)), 20, Phase::After),
        ] {
            assert_eq!(
                KillTimes::phase(kill.as_ref(), due * MS),
                expected,
                "{kill:?} {due}"
            );
        }
    }

    #[test]
    fn a_response_is_compared_with_the_row() {
        use OperationKind::{KnownValue, LookUp, NewValue};
        let value = |number| crate::vault::rows::value(1, number);
        for (kind, row, text, is_right) in [
            (LookUp, 1, value(1).to_vec(), true),
            (LookUp, 1, value(0).to_vec(), false),
            (LookUp, 0, vec![b'a'; TOKEN_BYTES], false),
            (KnownValue, 1, vec![b'b'; TOKEN_BYTES], true),
            (KnownValue, 1, vec![b'c'; TOKEN_BYTES], false),
            (NewValue, 2, vec![b'c'; TOKEN_BYTES], true),
            (NewValue, 2, b"tok_short".to_vec(), false),
        ] {
            let mut log = log();
            log.ended(&operation(kind, row, 0), 1, Ok(&text));
            assert_eq!(log.wrong.0, u64::from(!is_right), "{kind:?} {row}");
            assert_eq!(log.tallies[kind.index()].ok, u64::from(is_right));
            let is_added = is_right && kind == NewValue;
            assert_eq!(log.rows.len(), 2 + usize::from(is_added));
            if is_added {
                let row = log.rows.get(2);
                assert_eq!((row.number, row.engine, row.phase), (2, 1, Phase::Before));
            }
        }
    }

    #[test]
    fn errors_are_retried_in_the_kill_window_and_counted_outside() {
        let sum = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>();
        let overloaded = || RpcError::new(ErrorCode::Overloaded, "too much work is waiting");
        let missing = || RpcError::new(ErrorCode::NotFound, "no such token");
        for (kill, error, retried, errors, given_up, retries) in [
            (None, overloaded(), 0, 1, 0, 1),
            (killed(None), overloaded(), 1, 0, 0, 1),
            (killed(Some(0)), overloaded(), 0, 1, 0, 1),
            (None, missing(), 0, 1, 0, 0),
            (killed(None), missing(), 0, 0, 1, 0),
        ] {
            let mut log = log();
            log.kill = kill;
            log.ended(
                &operation(OperationKind::LookUp, 0, 0),
                0,
                Err(error.clone()),
            );
            let counts = (
                sum(&log.retried),
                sum(&log.errors),
                sum(&log.given_up),
                log.retries.len(),
            );
            assert_eq!(
                counts,
                (retried, errors, given_up, retries),
                "{kill:?} {error:?}"
            );
            assert_eq!(log.tallies[0].errors.len(), usize::from(retries == 0));
        }
    }

    #[test]
    fn an_operation_is_retried_after_its_pause_and_keeps_its_due_time() {
        let mut log = log();
        log.set_back(
            &operation(OperationKind::NewValue, 7, 3),
            "connection_lost",
            60_000 * MS,
            false,
        );
        assert!(log.retries.is_empty(), "too late");
        log.set_back(
            &operation(OperationKind::NewValue, 7, 3),
            "connection_lost",
            1_000 * MS,
            false,
        );
        assert!(log.due_retry(log.now()).is_none());
        let again = log.due_retry(log.now() + 1_000 * MS).unwrap();
        assert_eq!((again.row, again.due), (7, 3));
        assert!(log.due_retry(u64::MAX).is_none());
    }
}
