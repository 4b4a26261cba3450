//! Checks and counts responses. Compares a sample of the results with the documents that were sent.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use sealwire_msgpack::{Malformed, TokenReader};
use sealwire_wire::{Document, ErrorCode, FrameLayout, MessageHeader, Response, RpcError};

use crate::ask::end_by_notice;
use crate::calls::Calls;
use crate::fault::Fault;
use crate::frames::{self, every_field_changed};
use crate::histograms::{RequestCounts, Spread};
use crate::load::{Load, Method};
use crate::random::Random;
use crate::session::{ConnectionPause, Pending, SessionKind};
use crate::stream::Stream;

/// A request that is sent later than this after its due time counts as late.
const LATE_NS: u64 = 1_000_000;

/// The measurement window, in nanoseconds of the generator's clock, and the length of its
/// intervals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) interval: u64,
}

impl Window {
    pub(crate) fn holds(&self, time: u64) -> bool {
        (self.begin..self.end).contains(&time)
    }
}

/// The generator's clock.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Reports the time elapsed since this instant.
    Since(Instant),
    /// Reports the nanoseconds that a test has set.
    #[cfg(test)]
    Set(std::rc::Rc<std::cell::Cell<u64>>),
}

/// Counts of responses since the last progress report.
#[derive(Clone, Debug)]
pub(crate) struct Recent {
    pub(crate) ok: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Spread,
}

impl Recent {
    pub(crate) fn new() -> Self {
        Self {
            ok: 0,
            errors: 0,
            latency: Spread::coarse(),
        }
    }
}

/// State that responses change.
pub(crate) struct Book {
    pub(crate) kinds: Vec<SessionKind>,
    pub(crate) tallies: Vec<RequestCounts>,
    pub(crate) window: Window,
    pub(crate) lag: Spread,
    /// Requests of a closed loop that wait for their due time, each with its connection.
    pub(crate) waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// The fault that must end the load.
    pub(crate) fault: Option<Fault>,
    pub(crate) recent: Recent,
    /// The last error that the engine returned.
    pub(crate) last_error: Option<String>,
    app: String,
    clock: Clock,
    closed_loop: bool,
    check: u32,
    heeds_retry: bool,
    random: Random,
}

impl Book {
    pub(crate) fn new(load: &Load, kinds: Vec<SessionKind>, window: Window, clock: Clock) -> Self {
        let intervals = (window.end - window.begin).div_ceil(window.interval) as usize;
        Self {
            tallies: kinds
                .iter()
                .map(|_| RequestCounts::new(intervals))
                .collect(),
            kinds,
            window,
            lag: Spread::fine(),
            waiting: BinaryHeap::new(),
            fault: None,
            recent: Recent::new(),
            last_error: None,
            app: load.app.clone(),
            clock,
            closed_loop: matches!(load.drive, crate::load::ArrivalRule::Closed { .. }),
            check: load.check,
            heeds_retry: !load.ignore_retry,
            random: Random::new(load.seed ^ 0xc4ec),
        }
    }

    /// Returns the nanoseconds since the start of the load.
    pub(crate) fn now(&self) -> u64 {
        match &self.clock {
            Clock::Since(began) => began.elapsed().as_nanos() as u64,
            #[cfg(test)]
            Clock::Set(time) => time.get(),
        }
    }

    /// Counts a request that is due, and records how late it is sent.
    pub(crate) fn sent(&mut self, kind: u32, due: u64, now: u64) {
        if self.window.holds(due) {
            let behind = now.saturating_sub(due);
            let tally = &mut self.tallies[kind as usize];
            tally.sent += 1;
            tally.late += u64::from(behind > LATE_NS);
            self.lag.record(behind);
        }
    }

    /// Counts a request that failed with `code`.
    pub(crate) fn failed(&mut self, kind: u32, due: u64, now: u64, code: &str) {
        let tally = &mut self.tallies[kind as usize];
        if self.window.holds(due) {
            tally.error(code);
        }
        if self.window.holds(now) {
            tally.intervals[((now - self.window.begin) / self.window.interval) as usize].errors +=
                1;
        }
        self.recent.errors += 1;
    }

    fn succeeded(&mut self, call: &Pending, now: u64) {
        let tally = &mut self.tallies[call.kind as usize];
        let latency = now.saturating_sub(call.due);
        if self.window.holds(call.due) {
            tally.ok += 1;
            tally.latency.record(latency);
            tally.service.record(now.saturating_sub(call.sent));
        }
        if self.window.holds(now) {
            let interval =
                &mut tally.intervals[((now - self.window.begin) / self.window.interval) as usize];
            interval.ok += 1;
            interval.latency.record(latency);
        }
        self.recent.ok += 1;
        self.recent.latency.record(latency);
    }

    fn wrong(&mut self, what: String) {
        self.fault.get_or_insert(Fault::Wrong(what));
    }

    /// Processes one message received on a connection.
    pub(crate) fn take(
        &mut self,
        number: usize,
        (stream, calls, pause): (&mut Stream, &mut Calls<Pending>, &mut ConnectionPause),
        boundary: &FrameLayout,
        message: &[u8],
    ) {
        let MessageHeader::Response { msgid } = boundary.header else {
            return end_by_notice(stream, message);
        };
        let Some(call) = calls.end(msgid) else {
            return self.wrong(format!(
                "to call {msgid}, which was not made or has its answer"
            ));
        };
        let outcome = self.judge(&call, boundary.elements, message);
        if call.is_check {
            return self.checked(&call, outcome.map(|()| message));
        }
        let now = self.now();
        let mut again = now;
        match outcome {
            Ok(()) => {
                self.succeeded(&call, now);
                if self.is_sampled(&call) {
                    self.compare(&call, message, stream, calls);
                }
            }
            Err(error) => {
                self.failed(call.kind, call.due, now, error.code.name());
                if error.code == ErrorCode::Overloaded && self.heeds_retry {
                    let until = now + u64::from(error.retry_after_ms.unwrap_or(0)) * 1_000_000;
                    let fields = self.kinds[call.kind as usize].call.fields;
                    let fields = if pause.until > now {
                        fields.min(pause.fields)
                    } else {
                        fields
                    };
                    *pause = ConnectionPause {
                        until: until.max(pause.until),
                        fields,
                    };
                    again = until;
                }
                self.last_error = Some(error.to_string());
            }
        }
        if self.closed_loop {
            self.waiting.push(Reverse((again, number)));
        }
    }

    /// Checks that a message is a result with the expected number of values, or returns the error
    /// that it carries.
    fn judge(&mut self, call: &Pending, values: u64, message: &[u8]) -> Result<(), RpcError> {
        // The scanner has already validated the whole message, so a correct result is not parsed
        // again.
        let mut head = TokenReader::new(message);
        let is_result = head
            .array_len()
            .and_then(|_| head.u64())
            .and_then(|_| head.u32())
            .is_ok()
            && head.take_nil();
        if is_result {
            let kind = &self.kinds[call.kind as usize];
            let wanted = kind.frames[call.frame as usize].values;
            if values != wanted && !call.is_check {
                let name = kind.call.name.clone();
                self.wrong(format!(
                    "{values} values to a call of {name}, whose answer has {wanted}"
                ));
            }
            return Ok(());
        }
        match Response::decode(message) {
            Ok(Response {
                outcome: Err(error),
                ..
            }) => Err(error),
            _ => {
                self.wrong("an answer with neither error nor result".to_owned());
                Ok(())
            }
        }
    }

    /// Selects the first result of each kind, then one of every `check` results at random.
    fn is_sampled(&mut self, call: &Pending) -> bool {
        let tally = &self.tallies[call.kind as usize];
        self.check > 0
            && self.window.holds(call.due)
            && (tally.ok == 1 || self.check == 1 || self.random.below(self.check as usize) == 0)
    }

    /// Compares a result with the document that was sent, or sends a request that opens the result
    /// for a later comparison.
    fn compare(
        &mut self,
        call: &Pending,
        message: &[u8],
        stream: &mut Stream,
        calls: &mut Calls<Pending>,
    ) {
        let payload = match payload(message) {
            Ok(payload) => payload,
            Err(error) => return self.wrong(error.to_string()),
        };
        let kind = &self.kinds[call.kind as usize];
        let plain = &kind.frames[call.frame as usize].plain;
        let back = match kind.call.method {
            Method::Decrypt | Method::Detokenize => return self.equal(call, payload),
            Method::Encrypt => Method::Decrypt,
            Method::Tokenize => Method::Detokenize,
        };
        if !every_field_changed(plain, payload).unwrap_or(false) {
            return self.wrong(format!("{}: a field came back as it went", kind.call.name));
        }
        if let Some(msgid) = calls.begin(Pending {
            is_check: true,
            ..*call
        }) {
            frames::encode(stream.out(), msgid, &self.app, &kind.call, back, payload);
        }
    }

    /// Handles the response to a request that opened an earlier result for comparison.
    fn checked(&mut self, call: &Pending, outcome: Result<&[u8], RpcError>) {
        match outcome.map(payload) {
            Ok(Ok(payload)) => self.equal(call, payload),
            Ok(Err(error)) => self.wrong(error.to_string()),
            // Load can cause these errors. The failed check then says nothing about the earlier
            // result.
            Err(RpcError {
                code: ErrorCode::Overloaded | ErrorCode::Unavailable,
                ..
            }) => (),
            Err(RpcError {
                code: ErrorCode::DeadlineExceeded | ErrorCode::Cancelled,
                ..
            }) => (),
            Err(error) => self.wrong(format!("it does not open again: {error}")),
        }
    }

    fn equal(&mut self, call: &Pending, payload: &[u8]) {
        let kind = &self.kinds[call.kind as usize];
        if payload == kind.frames[call.frame as usize].plain {
            self.tallies[call.kind as usize].checked += 1;
        } else {
            self.wrong(format!(
                "{}: it is not the document that was sent",
                kind.call.name
            ));
        }
    }
}

/// Returns the document in a complete response message.
fn payload(message: &[u8]) -> Result<&[u8], Malformed> {
    let result = Response::decode(message)?.outcome;
    let none = Malformed::Expected {
        expected: "a result",
        found: "an error",
    };
    Ok(Document::decode(result.map_err(|_| none)?)?.payload)
}
