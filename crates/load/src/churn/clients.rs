//! The clients of a churn load: threads that open connections when they are due, and the steady
//! client on a kept connection. All blocking; their results go to one channel.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sealwire_wire::{Decrypt, Document, ErrorCode, Reply, RpcError, request};

use super::connection::{Connection, ConnectionFault, Endpoint, Reason};
use crate::fault::Fault;
use crate::frames::every_field_changed;
use crate::load::{ArrivalRule, Arrivals};
use crate::random::Random;
use crate::{frames, host};

const SECOND: f64 = 1e9;
/// Stack of a thread that opens connections. TLS needs the most.
const STACK_BYTES: usize = 512 << 10;

/// A request with the document in it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    pub(super) plain: Vec<u8>,
}

/// Outcome of a request: its error code, if it has no result.
type RequestOutcome = Result<(), &'static str>;

/// A response. Times are nanoseconds of the load's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// Time when the last byte arrived.
    pub(super) at: u64,
    /// Time from send to response.
    pub(super) took: Duration,
    pub(super) outcome: RequestOutcome,
}

/// A result of a client. Times are nanoseconds of the load's clock.
#[derive(Debug)]
pub(super) enum ClientResult {
    /// A new connection, with the responses on it.
    Connection {
        due: u64,
        started: u64,
        ended: u64,
        result: Result<Handshake, Reason>,
        answers: Vec<Answer>,
    },
    /// A request of the steady client.
    Steady {
        due: u64,
        started: u64,
        answer: Answer,
    },
    /// A response that is wrong, which ends the load.
    Wrong(String),
}

/// A complete handshake.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handshake {
    /// Time when the client's side was complete.
    pub(super) at: u64,
    pub(super) is_resumed: bool,
}

/// The load's clock: nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadClock(Instant);

impl LoadClock {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn now(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    fn sleep_until(self, time: u64) {
        let wait = Duration::from_nanos(time).saturating_sub(self.0.elapsed());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
    }
}

/// Due times of one open loop, in nanoseconds of the load's clock.
#[derive(Debug)]
pub(super) struct Schedule {
    arrivals: Arrivals,
    mean: f64,
    next: f64,
    end: u64,
    random: Random,
}

impl Schedule {
    /// Creates a schedule from `begin` to `end`. `rule` must be an open loop.
    pub(super) fn new(rule: ArrivalRule, begin: u64, end: u64, seed: u64) -> Self {
        let (per_s, arrivals) = match rule {
            ArrivalRule::Open { per_s, arrivals } => (per_s, arrivals),
            ArrivalRule::Closed { .. } => unreachable!("a churn load is an open loop"),
        };
        Self {
            arrivals,
            mean: SECOND / per_s,
            next: begin as f64,
            end,
            random: Random::new(seed),
        }
    }

    /// Returns the next due time, or `None` at the end.
    fn due(&mut self) -> Option<u64> {
        let due = self.next as u64;
        self.next += match self.arrivals {
            Arrivals::Even => self.mean,
            Arrivals::Poisson => self.random.exponential(self.mean),
        };
        (due < self.end).then_some(due)
    }

    /// Returns the number of due times that are left.
    fn rest(&mut self) -> u64 {
        let mut count = 0;
        while self.due().is_some() {
            count += 1;
        }
        count
    }
}

/// Everything that the threads share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) endpoint: Endpoint,
    pub(super) request: Arc<Request>,
    pub(super) clock: LoadClock,
    pub(super) results: Sender<ClientResult>,
}

impl Shared {
    /// Returns the time after which no request is sent, for a load that ends at `end`. A request
    /// that is due before the end can be late by as long as a response may take.
    fn last(&self, end: u64) -> u64 {
        end.saturating_add(u64::try_from(self.endpoint.timeout.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Starts threads that open connections by the schedule, with `calls` requests on each connection.
/// Every thread returns the number of connections that it did not open, because all were due after
/// the end of the load.
pub(super) fn start_churn(
    shared: &Shared,
    schedule: Schedule,
    threads: u32,
    calls: u32,
) -> Result<Vec<thread::JoinHandle<u64>>, Fault> {
    let schedule = Arc::new(Mutex::new(schedule));
    let one = |_| {
        let (shared, schedule) = (shared.clone(), Arc::clone(&schedule));
        let builder = thread::Builder::new()
            .name("churn".to_owned())
            .stack_size(STACK_BYTES);
        Ok(builder.spawn(move || churn(&shared, &schedule, calls))?)
    };
    (0..threads).map(one).collect()
}

fn churn(shared: &Shared, schedule: &Mutex<Schedule>, calls: u32) -> u64 {
    host::wake_on_time();
    loop {
        let (due, end) = {
            let mut schedule = schedule.lock().unwrap_or_else(PoisonError::into_inner);
            if shared.clock.now() >= schedule.end {
                return schedule.rest();
            }
            (schedule.due(), schedule.end)
        };
        let Some(due) = due else { return 0 };
        shared.clock.sleep_until(due);
        if shared.clock.now() >= end {
            return 1;
        }
        // The receiver has ended if the load has.
        if shared
            .results
            .send(connect(shared, due, calls, shared.last(end)))
            .is_err()
        {
            return 0;
        }
    }
}

/// Opens a connection, sends its requests one after the other, and closes it.
fn connect(shared: &Shared, due: u64, calls: u32, last: u64) -> ClientResult {
    let clock = shared.clock;
    let started = clock.now();
    let failed = |reason, answers| ClientResult::Connection {
        due,
        started,
        ended: clock.now(),
        result: Err(reason),
        answers,
    };
    let mut connection = match Connection::open(&shared.endpoint) {
        Ok(connection) => connection,
        Err(fault) => return failed(fault.reason, Vec::new()),
    };
    let handshake = Handshake {
        at: clock.now(),
        is_resumed: connection.is_resumed(),
    };
    let mut answers = Vec::with_capacity(calls as usize);
    for _ in 0..calls {
        if clock.now() >= last {
            break;
        }
        match ask(shared, &mut connection) {
            Ok(Ok(answer)) => answers.push(answer),
            Ok(Err(wrong)) => return ClientResult::Wrong(wrong),
            // Before the first response, the engine has not accepted the connection.
            Err(fault) if answers.is_empty() => return failed(fault.reason, answers),
            Err(fault) => {
                let outcome = Err(fault.reason.name());
                answers.push(Answer {
                    at: clock.now(),
                    took: Duration::ZERO,
                    outcome,
                });
                break;
            }
        }
    }
    ClientResult::Connection {
        due,
        started,
        ended: clock.now(),
        result: Ok(handshake),
        answers,
    }
}

/// Sends the request and checks the response. The inner error describes a wrong response.
fn ask(
    shared: &Shared,
    connection: &mut Connection,
) -> Result<Result<Answer, String>, ConnectionFault> {
    let (response, took) = connection.ask(&shared.request.bytes)?;
    let at = shared.clock.now();
    Ok(check(&response, &shared.request.plain).map(|outcome| Answer { at, took, outcome }))
}

/// Checks that every field was sealed. Returns the code of an error response.
fn check(response: &[u8], plain: &[u8]) -> Result<RequestOutcome, String> {
    match Reply::decode(response)
        .map_err(|error| error.to_string())?
        .outcome
    {
        Err(RpcError { code, .. }) => Ok(Err(ErrorCode::name(code))),
        Ok(result) => {
            let sealed = Document::decode(result)
                .map_err(|error| error.to_string())?
                .payload;
            let is_sealed = every_field_changed(plain, sealed).unwrap_or(false);
            if is_sealed {
                Ok(Ok(()))
            } else {
                Err("encrypt: a field came back as it went".to_owned())
            }
        }
    }
}

/// Connects alone, before the load, and sends the request. The response is opened again and
/// compared with the document. Returns the connection.
///
/// # Errors
/// Fails with the reason and what to do about it.
pub(super) fn connect_first(
    endpoint: &Endpoint,
    app: &str,
    request: &Request,
) -> Result<Connection, Fault> {
    let at = |why: String| Fault::Failed(format!("no engine serves {}: {why}", endpoint.engine));
    let document = |response: &[u8]| -> Result<Vec<u8>, Fault> {
        let reply = Reply::decode(response).map_err(|error| Fault::Wrong(error.to_string()))?;
        let result = reply.outcome.map_err(|error| match error.code {
            ErrorCode::CannotOpen => Fault::Wrong(format!("it does not open again: {error}")),
            _ => at(error.to_string()),
        })?;
        Ok(Document::decode(result)
            .map_err(|error| Fault::Wrong(error.to_string()))?
            .payload
            .to_vec())
    };
    let mut connection = Connection::open(endpoint).map_err(|fault| at(fault.describe()))?;
    let (sealed, _) = connection
        .ask(&request.bytes)
        .map_err(|fault| at(fault.describe()))?;
    let sealed_document = document(&sealed)?;
    let _ = check(&sealed, &request.plain).map_err(Fault::Wrong)?;
    let mut open = Vec::new();
    request::decrypt(
        &mut open,
        frames::MSGID,
        &Decrypt::new(app, &sealed_document),
    );
    let (opened, _) = connection
        .ask(&open)
        .map_err(|fault| at(fault.describe()))?;
    if document(&opened)? == request.plain {
        return Ok(connection);
    }
    Err(Fault::Wrong(
        "decrypt: it is not the document that was sent".to_owned(),
    ))
}

/// Starts the steady client: one request after the other on a kept connection, each when it is due.
/// A connection that ends is opened again. The thread returns its nice value.
pub(super) fn start_steady(
    shared: Shared,
    connection: Connection,
    mut schedule: Schedule,
) -> Result<thread::JoinHandle<Option<i32>>, Fault> {
    let builder = thread::Builder::new().name("steady".to_owned());
    let thread = builder.spawn(move || {
        host::wake_on_time();
        let nice = host::take_precedence();
        let (mut kept, last) = (Some(connection), shared.last(schedule.end));
        while let Some(due) = schedule.due() {
            shared.clock.sleep_until(due);
            let started = shared.clock.now();
            // An engine that does not answer must not make the run longer.
            if started >= last {
                let answer = Answer {
                    at: started,
                    took: Duration::ZERO,
                    outcome: Err("unsent"),
                };
                if shared
                    .results
                    .send(ClientResult::Steady {
                        due,
                        started,
                        answer,
                    })
                    .is_err()
                {
                    break;
                }
                continue;
            }
            let result = match kept
                .take()
                .map_or_else(|| Connection::open(&shared.endpoint), Ok)
            {
                Ok(mut connection) => {
                    ask(&shared, &mut connection).inspect(|_| kept = Some(connection))
                }
                Err(fault) => Err(fault),
            };
            let result = match result {
                Ok(Ok(answer)) => ClientResult::Steady {
                    due,
                    started,
                    answer,
                },
                Ok(Err(wrong)) => ClientResult::Wrong(wrong),
                Err(fault) => {
                    let (at, outcome) = (shared.clock.now(), Err(fault.reason.name()));
                    ClientResult::Steady {
                        due,
                        started,
                        answer: Answer {
                            at,
                            took: Duration::ZERO,
                            outcome,
                        },
                    }
                }
            };
            // The receiver has ended if the load has.
            if shared.results.send(result).is_err() {
                break;
            }
        }
        nice
    });
    Ok(thread?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_has_its_rate_and_its_end() {
        let of = |arrivals| {
            let rule = ArrivalRule::Open {
                per_s: 1_000.0,
                arrivals,
            };
            Schedule::new(rule, 1_000_000_000, 3_000_000_000, 1)
        };
        let mut even = of(Arrivals::Even);
        assert_eq!(
            (even.due(), even.due()),
            (Some(1_000_000_000), Some(1_001_000_000))
        );
        assert_eq!((even.rest(), even.due()), (1_998, None));
        assert!((1_800..2_200).contains(&of(Arrivals::Poisson).rest()));
    }
}
