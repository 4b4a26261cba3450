//! Sends requests when they are due and measures their latency: one thread, nonblocking
//! connections, no task per request.
//!
//! An open loop sends by a plan that does not depend on responses. Latency counts from the planned
//! time, so delays inside the generator make a figure worse, never better. The delays are also
//! reported separately. Requests that are due together share a connection, up to one TLS record, to
//! save system calls. At high rates the generator polls its connections at a fixed interval (the
//! tick) instead of after each byte. A latency can then be too long by up to one tick.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sealwire_wire::request;

use crate::fault::Fault;
use crate::host;
use crate::load::{ArrivalRule, Arrivals, Load};
use crate::progress::{Live, ProgressSample};
use crate::random::Random;
use crate::response_checker::{Book, Clock, Recent, Window};
use crate::results;
use crate::session::{Link, Pending, Session};
use crate::stream::READ_BYTES;
use crate::usage::{UsageReading, UsageWindow};
use crate::worker_result::Part;

/// Maximum bytes of requests due together that go to one connection: one TLS record.
const TOGETHER_BYTES: usize = 16 << 10;
/// Maximum requests sent in one iteration, before responses are read again.
const TURN_CALLS: usize = 4_096;
/// Maximum unsent bytes of a connection if the engine stops reading.
const BACKLOG_BYTES_MAX: usize = 16 << 20;
/// Rate from which the generator polls its connections at the tick.
const TICK_FROM_PER_S: f64 = 20_000.0;
/// The tick, in microseconds.
const TICK_US: u32 = 100;
/// Maximum time after the end of the load in which a late generator still sends planned requests.
const GRACE_NS: u64 = 1_000_000_000;
/// Interval between progress reports.
const LIVE_NS: u64 = 1_000_000_000;
const SECOND: f64 = 1e9;

/// State of a running load.
struct Generator<'a> {
    load: &'a Load,
    links: Vec<Link>,
    book: Book,
    scratch: Vec<u8>,
    random: Random,
    /// Cumulative weights of the kinds.
    odds: Vec<f64>,
    /// Due time of the next request of an open loop.
    due: f64,
    /// The connection for the next requests; `together` counts the bytes given to it in this
    /// iteration.
    next_link: usize,
    together: usize,
    /// Requests to cancel, per kind: time, connection and msgid.
    cancels: Vec<VecDeque<(u64, usize, u32)>>,
    tick: u64,
    last_turn: u64,
}

/// Runs a load over a session.
///
/// # Errors
/// Returns a [`Fault`] if the load gives no figures.
pub(crate) fn run(load: &Load, session: Session, live: Option<Live>) -> Result<Part, Fault> {
    host::wake_on_time();
    let nice = host::take_precedence();
    let tls = session.tls.clone();
    let version = session.version.clone();
    let mut generator = Generator::new(load, session, Clock::Since(Instant::now()));
    let marks = generator.drive(live)?;
    Ok(Part {
        nice,
        ..generator.part(marks, tls, version)?
    })
}

/// Returns the length of an interval of the measurement window, in seconds.
pub(crate) fn interval_s(load: &Load) -> f64 {
    // A whole number of intervals, at most 100, each of at least 0.25 s if the window is long
    // enough.
    let parts = (load.duration_s / 0.25).floor().clamp(1.0, 100.0);
    load.duration_s / parts
}

impl<'a> Generator<'a> {
    fn new(load: &'a Load, session: Session, clock: Clock) -> Self {
        let begin = (load.warm_up_s * SECOND) as u64;
        let length = (load.duration_s * SECOND) as u64;
        let window = Window {
            begin,
            end: begin + length,
            interval: (interval_s(load) * SECOND) as u64,
        };
        let mut odds = Vec::new();
        for call in &load.calls {
            odds.push(odds.last().copied().unwrap_or(0.0) + call.weight);
        }
        let ticks =
            matches!(load.drive, ArrivalRule::Open { per_s, .. } if per_s >= TICK_FROM_PER_S);
        Self {
            load,
            links: session.links,
            book: Book::new(load, session.kinds, window, clock),
            scratch: vec![0; READ_BYTES],
            random: Random::new(load.seed),
            odds,
            due: 0.0,
            next_link: 0,
            together: 0,
            cancels: vec![VecDeque::new(); load.calls.len()],
            tick: u64::from(load.tick_us.unwrap_or(if ticks { TICK_US } else { 0 })) * 1_000,
            last_turn: 0,
        }
    }

    fn drive(&mut self, live: Option<Live>) -> Result<UsageWindow, Fault> {
        let Window { begin, end, .. } = self.book.window;
        let engine = host::engine(&self.load.target.address);
        let give_up = end + GRACE_NS + (self.load.drain_s * SECOND) as u64;
        let mut marks = UsageWindow::default();
        let mut next_live = LIVE_NS;
        self.begin();
        loop {
            let now = self.book.now();
            if marks.first.is_none() {
                if now >= begin {
                    (marks.first, marks.started) = (
                        Some(UsageReading::read(&self.links, now, engine)),
                        results::now(),
                    );
                }
            } else if marks.last.is_none() && now >= end {
                // The first and last readings are in different iterations, even if the machine
                // slept past both times: rates need the time between them.
                marks.last = Some(UsageReading::read(&self.links, now, engine));
            }
            let mut next = if now < begin { begin } else { end };
            if marks.unsent.is_none() {
                next = next.min(self.send_due(now.min(end - 1)));
                let is_behind =
                    matches!(self.load.drive, ArrivalRule::Open { .. }) && self.due < end as f64;
                if now >= end && (!is_behind || now >= end + GRACE_NS) {
                    marks.unsent = Some(self.give_up(now));
                }
            } else if self.links.iter().all(|link| link.calls.under_way() == 0) || now >= give_up {
                return Ok(marks);
            } else {
                next = now + 100_000_000;
            }
            next = next.min(self.cancel_due(now));
            if let Some(live) = &live {
                if now >= next_live {
                    next_live += LIVE_NS;
                    live.tell(self.moment(now));
                }
                next = next.min(next_live);
            }
            self.turn(next)?;
        }
    }

    /// Builds the results of this process.
    fn part(mut self, marks: UsageWindow, tls: String, version: String) -> Result<Part, Fault> {
        self.leave();
        let (Some(first), Some(last)) = (marks.first, marks.last) else {
            return Err(Fault::Failed("the load ended before it began".to_owned()));
        };
        let used = first.until(&last);
        Ok(Part {
            tallies: self.book.tallies,
            lag: self.book.lag,
            bytes_out: used.bytes_out,
            bytes_in: used.bytes_in,
            cpu_s: used.cpu_s,
            busiest: used.cpu_s / used.wall_s,
            queued: used.queued_s.map(|seconds| seconds / used.wall_s),
            nice: None,
            engine_cpu_s: used.engine_cpu_s,
            wall_s: used.wall_s,
            unsent: marks.unsent.unwrap_or(0),
            last_error: self.book.last_error,
            tls,
            version,
            started: marks.started,
        })
    }

    /// Plans the first requests.
    fn begin(&mut self) {
        match self.load.drive {
            ArrivalRule::Open { .. } => self.due = self.gap(),
            ArrivalRule::Closed { callers } => {
                let links = self.links.len();
                self.book
                    .waiting
                    .extend((0..callers as usize).map(|caller| Reverse((0, caller % links))));
            }
        }
    }

    /// Returns the time until the next request of an open loop, in nanoseconds.
    fn gap(&mut self) -> f64 {
        match self.load.drive {
            ArrivalRule::Open {
                per_s,
                arrivals: Arrivals::Even,
            } => SECOND / per_s,
            ArrivalRule::Open {
                per_s,
                arrivals: Arrivals::Poisson,
            } => self.random.exponential(SECOND / per_s),
            ArrivalRule::Closed { .. } => f64::INFINITY,
        }
    }

    /// Sends the requests due by this time. Returns the due time of the next request.
    fn send_due(&mut self, by: u64) -> u64 {
        self.advance();
        let mut calls = 0;
        if let ArrivalRule::Closed { .. } = self.load.drive {
            while let Some(&Reverse((due, link))) = self.book.waiting.peek() {
                if due > by || calls == TURN_CALLS {
                    return due;
                }
                self.book.waiting.pop();
                let kind = self.draw();
                let due = self.book.now();
                self.send(kind, Some(link), due);
                calls += 1;
            }
            return u64::MAX;
        }
        while self.due <= by as f64 && calls < TURN_CALLS {
            let due = self.due as u64;
            self.due += self.gap();
            let kind = self.draw();
            let link = self.pick(kind);
            self.send(kind, link, due);
            calls += 1;
        }
        self.due as u64
    }

    fn draw(&mut self) -> usize {
        let Some(all) = self.odds.last().filter(|_| self.odds.len() > 1) else {
            return 0;
        };
        let at = self.random.unit() * all;
        self.odds
            .partition_point(|odds| *odds <= at)
            .min(self.odds.len() - 1)
    }

    /// Chooses the connection for a request; `None` if the engine has asked to pause such requests
    /// on all connections.
    fn pick(&mut self, kind: usize) -> Option<usize> {
        let fields = self.load.calls[kind].fields;
        let now = self.book.now();
        for _ in 0..self.links.len() {
            let pause = self.links[self.next_link].pause;
            if pause.until <= now || fields < pause.fields {
                return Some(self.next_link);
            }
            self.advance();
        }
        None
    }

    /// Flushes the current connection and moves to the next connection.
    fn advance(&mut self) {
        if self.together > 0 {
            self.links[self.next_link].stream.flush();
        }
        self.together = 0;
        self.next_link = (self.next_link + 1) % self.links.len();
    }

    fn send(&mut self, kind: usize, link: Option<usize>, due: u64) {
        let number = self.random.below(self.book.kinds[kind].frames.len());
        let now = self.book.now();
        let kind = kind as u32;
        self.book.sent(kind, due, now);
        let Some(at) = link else {
            return self.book.failed(kind, due, now, "paused");
        };
        let Link { stream, calls, .. } = &mut self.links[at];
        let pending = Pending {
            kind,
            frame: number as u32,
            is_check: false,
            due,
            sent: now,
        };
        let room = stream.backlog() < BACKLOG_BYTES_MAX;
        let Some(msgid) = room.then(|| calls.begin(pending)).flatten() else {
            if matches!(self.load.drive, ArrivalRule::Closed { .. }) {
                self.book.waiting.push(Reverse((now + 1_000_000, at)));
            }
            return self.book.failed(kind, due, now, "blocked");
        };
        let frame = &self.book.kinds[kind as usize].frames[number];
        frame.append(stream.out(), msgid);
        self.together += frame.size();
        if let Some(after) = self.load.calls[kind as usize].cancel_after_ms {
            self.cancels[kind as usize].push_back((now + u64::from(after) * 1_000_000, at, msgid));
        }
        if self.together >= TOGETHER_BYTES {
            self.advance();
        }
    }

    /// Cancels requests that have waited long enough. Returns the time of the next cancellation.
    fn cancel_due(&mut self, now: u64) -> u64 {
        let mut next = u64::MAX;
        for queue in &mut self.cancels {
            while let Some(&(due, link, msgid)) = queue.front() {
                let Link { stream, calls, .. } = &mut self.links[link];
                let is_under_way = calls.is_under_way(msgid);
                if is_under_way && due > now {
                    next = next.min(due);
                    break;
                }
                if is_under_way {
                    request::cancel(stream.out(), msgid);
                }
                queue.pop_front();
            }
        }
        next
    }

    /// Waits until the given time at most, and processes received responses.
    fn turn(&mut self, next: u64) -> Result<(), Fault> {
        self.links
            .iter_mut()
            .filter(|link| link.stream.wants_write())
            .for_each(|link| link.stream.flush());
        if self.tick > 0 {
            let rest = (self.last_turn + self.tick).saturating_sub(self.book.now());
            if rest > 0 {
                std::thread::sleep(Duration::from_nanos(rest));
            }
            self.last_turn = self.book.now();
            (0..self.links.len()).for_each(|number| self.receive(number));
        } else {
            for number in self.ready(next)? {
                self.receive(number);
            }
        }
        match self.book.fault.take() {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    /// Waits until a connection is readable or the time is reached. Returns the readable
    /// connections.
    fn ready(&self, next: u64) -> io::Result<Vec<usize>> {
        let flags = |link: &Link| {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, link.stream.wants_write());
            flags
        };
        let mut polled: Vec<_> = self
            .links
            .iter()
            .map(|link| PollFd::new(&link.stream, flags(link)))
            .collect();
        let wait = Duration::from_nanos(next.saturating_sub(self.book.now()));
        let wait = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        match poll(&mut polled, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => (),
            Err(error) => return Err(error.into()),
        }
        let came = PollFlags::IN | PollFlags::HUP | PollFlags::ERR;
        Ok((0..polled.len())
            .filter(|at| polled[*at].revents().intersects(came))
            .collect())
    }

    fn receive(&mut self, number: usize) {
        let Self {
            links,
            book,
            scratch,
            ..
        } = self;
        let count = links.len();
        let Link {
            stream,
            calls,
            pause,
        } = &mut links[number];
        stream.receive(scratch, |stream, boundary, message| {
            book.take(number, (stream, calls, pause), boundary, message);
        });
        if let Some(why) = stream.ended() {
            let lost = calls.under_way();
            let seconds = book.now() as f64 / SECOND;
            book.fault.get_or_insert(Fault::Lost(format!(
                "connection {} of {count} ended after {seconds:.1} s with {lost} calls under way: {why}",
                number + 1
            )));
        }
    }

    /// Stops sending. Returns the number of due requests that were not sent.
    fn give_up(&mut self, now: u64) -> u64 {
        self.book.waiting.clear();
        let mut unsent = 0;
        if let ArrivalRule::Open { per_s, .. } = self.load.drive {
            let end = self.book.window.end as f64;
            while self.due < end && unsent < 1_000_000 {
                let due = self.due as u64;
                let kind = self.draw() as u32;
                self.book.sent(kind, due, now);
                self.book.failed(kind, due, now, "unsent");
                self.due += self.gap();
                unsent += 1;
            }
            // Beyond a million requests the remainder is computed from the rate.
            unsent += ((end - self.due).max(0.0) / SECOND * per_s) as u64;
        }
        unsent
    }

    /// Counts requests without a response as unanswered.
    fn leave(&mut self) {
        let now = self.book.now();
        for link in &mut self.links {
            for call in link.calls.drain().filter(|call| !call.is_check) {
                self.book.failed(call.kind, call.due, now, "unanswered");
            }
        }
    }

    fn moment(&mut self, now: u64) -> ProgressSample {
        let recent = std::mem::replace(&mut self.book.recent, Recent::new());
        ProgressSample {
            t_s: now as f64 / SECOND - self.load.warm_up_s,
            under_way: self
                .links
                .iter()
                .map(|link| link.calls.under_way() as u64)
                .sum(),
            recent,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;
    use std::rc::Rc;

    use super::*;
    use crate::certs;
    use crate::null_server::NullServer;
    use crate::target::Target;

    const MS: u64 = 1_000_000;

    /// Runs a load against a responder that withholds responses for the first second of an injected
    /// clock, then sends them all at once. Returns the number of requests with a latency above 0.2
    /// s.
    fn long_after_a_stall(drive: serde_json::Value) -> u64 {
        let folder = tempfile::tempdir().unwrap();
        certs::fill(folder.path()).unwrap();
        let mut null = NullServer::new(folder.path(), 0).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::of_folder(folder.path(), &listener.local_addr().unwrap().to_string());
        let load: Load = serde_json::from_value(serde_json::json!({
            "target": target, "app": "demo", "calls": [{
                "name": "one", "method": "encrypt", "fields": 1, "field_bytes": 16, "weight": 1, "suite": "p256",
                "scope": "request", "collection": "people", "deadline_ms": null, "cancel_after_ms": null
            }],
            "drive": drive, "connections": 2, "duration_s": 60.0, "warm_up_s": 0.0, "check": 0, "distinct": 1,
            "drain_s": 0.0, "ignore_retry": false, "seed": 1, "tick_us": null
        }))
        .unwrap();
        let (stop, ends) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| null.serve(&listener, Some(stop.as_fd())).unwrap());
            let time = Rc::new(Cell::new(0));
            let mut generator = Generator::new(
                &load,
                Session::open(&load).unwrap(),
                Clock::Set(Rc::clone(&time)),
            );
            generator.begin();
            for ms in 0..=1_010 {
                time.set(ms * MS);
                generator.send_due(ms * MS);
                while ms >= 1_000
                    && generator
                        .links
                        .iter()
                        .any(|link| link.calls.under_way() > 0)
                {
                    generator.turn(u64::MAX).unwrap();
                }
            }
            drop(ends);
            let tally = &generator.book.tallies[0];
            assert!(
                tally.errors.is_empty() && tally.ok == tally.sent,
                "{tally:?}"
            );
            let long = tally
                .latency
                .buckets_us()
                .into_iter()
                .filter(|(upper, _)| *upper > 200_000.0);
            long.map(|(_, count)| count).sum()
        })
    }

    #[test]
    fn what_waits_in_an_open_loop_counts_and_in_a_closed_one_it_does_not() {
        let open =
            long_after_a_stall(serde_json::json!({"open": {"per_s": 300, "arrivals": "even"}}));
        // The expected requests are those of the first 0.8 s, of 300 that were due in the second.
        assert!((238..=241).contains(&open), "{open}");
        // With two clients a stall delays two requests.
        assert_eq!(
            long_after_a_stall(serde_json::json!({"closed": {"callers": 2}})),
            2
        );
    }
}
