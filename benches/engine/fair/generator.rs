//! Generates load and measures latencies: one thread, one `poll`, non-blocking connections.
//!
//! Open loops send at times that were fixed beforehand, and a latency counts from there: a late
//! send makes the figure worse, never better. How late the sends were is kept beside it, so that a
//! figure which is the generator's and not the server's can be told. Closed loops send again when
//! they have their answer. A caller that is told to wait does so, and what an open loop would have
//! sent meanwhile counts as offered and not served.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sealwire_benches::stats::{Random, Summary};
use sealwire_benches::thread_cpu;
use sealwire_msgpack::TokenReader;
use sealwire_wire::{DetailValue, Document, ErrorCode, Response, RpcError};

use crate::child::{EngineChild, Folder};
use crate::fair::connection::{BenchConnection, Frame, Pending, READ_BYTES, identity};

/// Timeout for missing responses, which ends the run. Long enough for a slow machine.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(60);
/// Interval at which [`Generator::run_until`] looks for the end of the run.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The times at which a load sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Drive {
    /// Open loop: so many requests per second, evenly spaced with jitter of half an interval.
    Even(f64),
    /// Requests at random times (a Poisson process).
    Random(f64),
    /// Closed loop: so many requests in flight on each connection.
    Closed(usize),
}

/// A stream of requests of one kind or mix, from one tenant.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Index of each frame, and its share of the requests.
    pub(crate) calls: Vec<(usize, f64)>,
    /// Its connections, as returned by [`Generator::connect`].
    pub(crate) connections: Range<usize>,
    /// The times of its sends.
    pub(crate) drive: Drive,
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Sealed.
    Ok,
    /// Rejected, with the reason.
    Overloaded(String),
    /// The deadline passed at the server.
    Late,
    /// Cancelled.
    Cancelled,
    /// Not sent, because the client had been asked to wait.
    Paused,
    /// The connection was closed.
    Closed,
}

/// One offered request. Times are nanoseconds of the generator's clock.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Index of its load.
    pub(crate) load: usize,
    /// Number of fields.
    pub(crate) fields: usize,
    /// Scheduled send time.
    pub(crate) intended: u64,
    /// Actual send time.
    pub(crate) sent: u64,
    /// Time of the response.
    pub(crate) done: u64,
    /// True if it was the first one on its connection after a wait that the server had asked for.
    pub(crate) is_retry: bool,
    /// Its outcome.
    pub(crate) outcome: Outcome,
}

impl Sample {
    /// Returns the time from the scheduled send to the response, in milliseconds.
    pub(crate) fn latency_ms(&self) -> f64 {
        self.done.saturating_sub(self.intended) as f64 / 1e6
    }

    /// Returns true if it was served, within a limit if there is one.
    pub(crate) fn is_served(&self, within_ms: f64) -> bool {
        self.outcome == Outcome::Ok && self.latency_ms() <= within_ms
    }
}

#[derive(Debug)]
struct GeneratorState {
    load: Load,
    active: bool,
    /// Time of an open loop's next send.
    due: u64,
    /// Pending sends of a closed loop, by time.
    waiting: BTreeMap<(u64, usize), usize>,
    next_connection: usize,
}

/// Resources that the generator used itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Number of responses.
    pub(crate) calls: usize,
    /// CPU time per response, in microseconds.
    pub(crate) cpu_us: f64,
    /// Share of the CPU time of all cores.
    pub(crate) share: f64,
    /// Lag of sends, in milliseconds.
    pub(crate) lag_ms: Summary,
}

/// The load generator for one engine.
pub(crate) struct Generator {
    clock: Instant,
    connections: Vec<BenchConnection>,
    frames: Vec<Frame>,
    loads: Vec<GeneratorState>,
    samples: Vec<Sample>,
    random: Random,
    scratch: Vec<u8>,
    /// The last successful response of each frame.
    replies: BTreeMap<usize, Vec<u8>>,
    /// The first incorrect response.
    wrong: Option<String>,
    /// CPU time of the runs so far.
    cpu: Duration,
    /// The CPU time and the clock when measuring of the cost began.
    begun: (Duration, Duration),
}

impl Generator {
    /// Makes a generator without connections and loads.
    pub(crate) fn new(frames: Vec<Frame>) -> Self {
        Self::with_clock(Instant::now(), frames)
    }

    /// Makes a generator whose times are those of this one. It can run in another thread beside
    /// this one.
    pub(crate) fn sibling(&self, frames: Vec<Frame>) -> Self {
        Self::with_clock(self.clock, frames)
    }

    fn with_clock(clock: Instant, frames: Vec<Frame>) -> Self {
        Self {
            clock,
            connections: Vec::new(),
            frames,
            loads: Vec::new(),
            samples: Vec::new(),
            random: Random::new(7),
            scratch: vec![0; READ_BYTES],
            replies: BTreeMap::new(),
            wrong: None,
            cpu: Duration::ZERO,
            begun: (Duration::ZERO, Duration::ZERO),
        }
    }

    /// Opens connections of a tenant.
    pub(crate) fn connect(
        &mut self,
        engine: &EngineChild,
        folder: &Folder,
        tenant: &str,
        count: usize,
    ) -> io::Result<Range<usize>> {
        let identity = identity(folder.path(), tenant)?;
        let begin = self.connections.len();
        for _ in 0..count {
            self.connections
                .push(BenchConnection::open(engine.address, &identity)?);
        }
        Ok(begin..begin + count)
    }

    /// Adds a load, which is stopped. Returns its index.
    pub(crate) fn add(&mut self, load: Load) -> usize {
        let next_connection = load.connections.start;
        self.loads.push(GeneratorState {
            load,
            active: false,
            due: 0,
            waiting: BTreeMap::new(),
            next_connection,
        });
        self.loads.len() - 1
    }

    /// Returns nanoseconds since the generator was made.
    pub(crate) fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Starts a load.
    pub(crate) fn start(&mut self, load: usize) {
        let now = self.now();
        let first = now + self.interval(load) / 2;
        let state = &mut self.loads[load];
        if std::mem::replace(&mut state.active, true) {
            return;
        }
        state.due = first;
        if let Drive::Closed(calls) = state.load.drive {
            for connection in state.load.connections.clone() {
                // Requests in flight from before count as in flight again.
                let busy = self.connections[connection]
                    .pending
                    .values()
                    .filter(|call| call.load == load)
                    .count();
                state
                    .waiting
                    .extend((busy..calls).map(|nth| ((now, connection * calls + nth), connection)));
            }
        }
    }

    /// Stops a load from sending. Requests in flight stay in flight.
    pub(crate) fn stop(&mut self, load: usize) {
        self.loads[load].active = false;
        self.loads[load].waiting.clear();
    }

    /// Stops a load and cancels its requests in flight.
    pub(crate) fn cancel(&mut self, load: usize) {
        self.stop(load);
        for connection in self.loads[load].load.connections.clone() {
            self.connections[connection].cancel(|pending| pending.load == load);
        }
    }

    /// Returns the number of a load's requests in flight.
    pub(crate) fn under_way(&self, load: usize) -> usize {
        let connections = &self.connections[self.loads[load].load.connections.clone()];
        connections
            .iter()
            .flat_map(|one| one.pending.values())
            .filter(|pending| pending.load == load)
            .count()
    }

    /// Runs the active loads for a time. Returns the start and the end on the generator's clock.
    pub(crate) fn run(&mut self, time: Duration) -> io::Result<Range<u64>> {
        let begin = self.now();
        let end = begin + time.as_nanos() as u64;
        self.turn_while(end, |_| true)?;
        Ok(begin..self.now())
    }

    /// Runs the active loads until another thread sets `stop`.
    pub(crate) fn run_until(&mut self, stop: &AtomicBool) -> io::Result<()> {
        while !stop.load(Ordering::Relaxed) {
            self.run(STOP_CHECK_INTERVAL)?;
        }
        Ok(())
    }

    /// Runs until a load has no requests in flight, for [`SETTLE_TIME_MAX`] at most.
    pub(crate) fn settle(&mut self, load: usize) -> io::Result<()> {
        let end = self.now() + SETTLE_TIME_MAX.as_nanos() as u64;
        self.turn_while(end, |generator| generator.under_way(load) > 0)
    }

    /// Handles events until a time while a condition holds, and counts their CPU time.
    fn turn_while(&mut self, end: u64, condition: impl Fn(&Self) -> bool) -> io::Result<()> {
        let before = thread_cpu::current()?;
        while self.now() < end && condition(self) {
            self.turn(end)?;
        }
        self.cpu += thread_cpu::current()?.saturating_sub(before);
        Ok(())
    }

    /// Sends due requests, waits for the next event, and handles it.
    fn turn(&mut self, end: u64) -> io::Result<()> {
        let next = self.send_due().min(end);
        let mut numbers = Vec::with_capacity(self.connections.len());
        let mut polled = Vec::with_capacity(self.connections.len());
        for (number, connection) in self
            .connections
            .iter()
            .enumerate()
            .filter(|(_, one)| one.open)
        {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, connection.wants_write());
            numbers.push(number);
            polled.push(PollFd::new(connection.socket(), flags));
        }
        let wait = Duration::from_nanos(next.saturating_sub(self.now()));
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match poll(&mut polled, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<(usize, PollFlags)> = numbers
            .into_iter()
            .zip(polled.iter().map(PollFd::revents))
            .collect();
        drop(polled);
        for (number, flags) in ready {
            if flags.contains(PollFlags::OUT) {
                self.connections[number].flush();
            }
            if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.receive(number);
            }
        }
        Ok(())
    }

    /// Sends every due request. Returns the time of the next.
    fn send_due(&mut self) -> u64 {
        let mut next = u64::MAX;
        for load in 0..self.loads.len() {
            if !self.loads[load].active {
                continue;
            }
            if let Drive::Closed(_) = self.loads[load].load.drive {
                while let Some((&(due, _), _)) = self.loads[load].waiting.first_key_value() {
                    let now = self.now();
                    if due > now {
                        next = next.min(due);
                        break;
                    }
                    if let Some((_, connection)) = self.loads[load].waiting.pop_first() {
                        self.send(load, connection, now);
                    }
                }
            } else {
                // A send on a connection that is told to wait for longer needs no waking up for: at
                // ten times the capacity most sends are of that kind.
                while self.loads[load].due <= self.now() || self.is_paused_when_due(load) {
                    let intended = self.loads[load].due;
                    self.loads[load].due += self.interval(load);
                    let connection = self.next_connection(load);
                    self.send(load, connection, intended);
                }
                next = next.min(self.loads[load].due);
            }
        }
        next
    }

    /// Returns the time to the next send of an open loop, in nanoseconds.
    fn interval(&mut self, load: usize) -> u64 {
        let seconds = match self.loads[load].load.drive {
            Drive::Even(per_s) => (0.5 + self.random.unit()) / per_s,
            Drive::Random(per_s) => self.random.exponential(1.0 / per_s),
            Drive::Closed(_) => 0.0,
        };
        (seconds * 1e9) as u64
    }

    /// Returns true if the connection of an open loop's next send will be told to wait at that
    /// time.
    fn is_paused_when_due(&self, load: usize) -> bool {
        let GeneratorState {
            due,
            next_connection,
            ..
        } = self.loads[load];
        let connection = &self.connections[next_connection];
        connection.open && connection.paused_until > due
    }

    fn next_connection(&mut self, load: usize) -> usize {
        let state = &mut self.loads[load];
        let connection = state.next_connection;
        let Range { start, end } = state.load.connections;
        state.next_connection = if connection + 1 == end {
            start
        } else {
            connection + 1
        };
        connection
    }

    fn send(&mut self, load: usize, connection: usize, intended: u64) {
        let frame = self.draw(load);
        let fields = self.frames[frame].fields;
        let sent = self.now().max(intended);
        let connection = &mut self.connections[connection];
        let instead = match connection.open {
            false => Some(Outcome::Closed),
            true => (connection.paused_until > sent).then_some(Outcome::Paused),
        };
        match instead {
            Some(outcome) => {
                self.samples.push(Sample {
                    load,
                    fields,
                    intended,
                    sent,
                    done: sent,
                    is_retry: false,
                    outcome,
                });
            }
            None => {
                let is_retry = std::mem::take(&mut connection.has_waited);
                connection.send(
                    &mut self.frames[frame],
                    Pending {
                        load,
                        frame,
                        intended,
                        sent,
                        is_retry,
                    },
                );
            }
        }
    }

    /// Picks one of a load's frames at random, by its share.
    fn draw(&mut self, load: usize) -> usize {
        let calls = &self.loads[load].load.calls;
        let all: f64 = calls.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.unit() * all;
        let drawn = calls.iter().find(|(_, weight)| {
            at -= weight;
            at < 0.0
        });
        drawn.or(calls.last()).map_or(0, |(frame, _)| *frame)
    }

    fn receive(&mut self, number: usize) {
        let now = self.now();
        let Self {
            connections,
            scratch,
            loads,
            samples,
            frames,
            replies,
            wrong,
            ..
        } = self;
        connections[number].receive(scratch, |connection, msgid, values, message| {
            let Some(Pending {
                load,
                frame,
                intended,
                sent,
                is_retry,
            }) = connection.pending.remove(&msgid)
            else {
                wrong.get_or_insert_with(|| {
                    format!("an answer to call {msgid}, which was not made")
                });
                return;
            };
            let outcome = match judge(message, values, &frames[frame]) {
                Ok(Verdict::Good) => {
                    replies.entry(frame).or_insert_with(|| message.to_vec());
                    Outcome::Ok
                }
                Ok(Verdict::Wait(reason, pause)) => {
                    connection.paused_until = connection.paused_until.max(now + pause);
                    connection.has_waited = true;
                    Outcome::Overloaded(reason)
                }
                Ok(Verdict::Late) => Outcome::Late,
                Ok(Verdict::Cancelled) => Outcome::Cancelled,
                Err(what) => {
                    wrong.get_or_insert(what);
                    return;
                }
            };
            samples.push(Sample {
                load,
                fields: frames[frame].fields,
                intended,
                sent,
                done: now,
                is_retry,
                outcome,
            });
            let state = &mut loads[load];
            if state.active && matches!(state.load.drive, Drive::Closed(_)) {
                state.waiting.insert(
                    (
                        now.max(connection.paused_until),
                        msgid as usize ^ (number << 32),
                    ),
                    number,
                );
            }
        });
        if !connections[number].open {
            let lost = std::mem::take(&mut connections[number].pending).into_values();
            samples.extend(lost.map(
                |Pending {
                     load,
                     frame,
                     intended,
                     sent,
                     is_retry,
                     ..
                 }| {
                    let fields = frames[frame].fields;
                    Sample {
                        load,
                        fields,
                        intended,
                        sent,
                        done: now,
                        is_retry,
                        outcome: Outcome::Closed,
                    }
                },
            ));
        }
    }

    /// Returns all samples so far, and clears them. Samples of one load are in order of completion.
    pub(crate) fn take(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// Starts measuring the generator's own cost.
    pub(crate) fn begin_cost(&mut self) {
        self.begun = (self.cpu, Duration::from_nanos(self.now()));
    }

    /// Returns the generator's cost since [`Generator::begin_cost`], given the samples of that
    /// time.
    pub(crate) fn cost(&self, samples: &[Sample]) -> Cost {
        let cpu = (self.cpu - self.begun.0).as_secs_f64();
        let wall = (Duration::from_nanos(self.now()) - self.begun.1).as_secs_f64();
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        let open = |load: usize| !matches!(self.loads[load].load.drive, Drive::Closed(_));
        let sent = || {
            samples
                .iter()
                .filter(|sample| sample.outcome != Outcome::Paused)
        };
        let lag = |sample: &Sample| sample.sent.saturating_sub(sample.intended) as f64 / 1e6;
        Cost {
            calls: sent().count(),
            cpu_us: cpu * 1e6 / sent().count().max(1) as f64,
            share: cpu / (wall * cores),
            lag_ms: Summary::of(sent().filter(|sample| open(sample.load)).map(lag).collect()),
        }
    }

    /// Returns the last successful response of each frame, with the plaintext and the sealed
    /// document.
    ///
    /// # Errors
    /// If a response was incorrect, or none was ever successful.
    pub(crate) fn replies(&self) -> io::Result<Vec<(&[u8], &[u8])>> {
        let replies = self.replies_if_any()?;
        if replies.is_empty() {
            Err(io::Error::other("no call was ever answered"))
        } else {
            Ok(replies)
        }
    }

    /// Returns the same, which is empty if no response was successful.
    ///
    /// # Errors
    /// If a response was incorrect.
    pub(crate) fn replies_if_any(&self) -> io::Result<Vec<(&[u8], &[u8])>> {
        if let Some(wrong) = &self.wrong {
            return Err(io::Error::other(format!("a wrong answer: {wrong}")));
        }
        let replies = self.replies.iter().map(|(frame, message)| {
            let reply = Response::decode(message).map_err(io::Error::other)?;
            let result = reply.outcome.map_err(io::Error::other)?;
            let sealed = Document::decode(result).map_err(io::Error::other)?.payload;
            Ok((self.frames[*frame].payload.as_slice(), sealed))
        });
        replies.collect()
    }
}

/// Classification of a response.
enum Verdict {
    Good,
    /// Rejected, with the reason and the nanoseconds for which the client must wait.
    Wait(String, u64),
    Late,
    Cancelled,
}

/// Checks one response: it must have the expected number of values, or be an error that load can
/// cause.
fn judge(message: &[u8], values: u64, frame: &Frame) -> Result<Verdict, String> {
    // The scanner has parsed the result, so a successful response is not parsed again.
    let mut head = TokenReader::new(message);
    let kind = head
        .array_len()
        .and_then(|_| head.u64())
        .and_then(|_| head.u32());
    kind.map_err(|error| error.to_string())?;
    if head.take_nil() {
        let wrong = || {
            format!(
                "a reply of {values} values to a call of {} fields",
                frame.fields
            )
        };
        return if values == frame.values {
            Ok(Verdict::Good)
        } else {
            Err(wrong())
        };
    }
    let Err(error) = Response::decode(message)
        .map_err(|error| error.to_string())?
        .outcome
    else {
        return Err("an answer with neither error nor result".to_owned());
    };
    match error.code {
        ErrorCode::Overloaded => Ok(Verdict::Wait(
            reason(&error),
            u64::from(error.retry_after_ms.unwrap_or(0)) * 1_000_000,
        )),
        ErrorCode::DeadlineExceeded => Ok(Verdict::Late),
        ErrorCode::Cancelled => Ok(Verdict::Cancelled),
        _ => Err(error.to_string()),
    }
}

/// Returns the reason in an error's details, or else its message.
fn reason(error: &RpcError) -> String {
    let detail = error
        .details
        .iter()
        .find(|detail| ["reason", "limit"].contains(&detail.key.as_ref()));
    match detail.map(|detail| &detail.value) {
        Some(DetailValue::Text(reason)) => reason.to_string(),
        _ => error.message.to_string(),
    }
}
