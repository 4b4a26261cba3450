//! Jobs against servers that fail at random, in 1,000 schedules: a client and a pacer keep every
//! time that they are given.
//!
//! Each schedule follows from its number, which a failure names.

use crate::{Encrypt, Pacer, RetryLimits};
use std::collections::HashMap;
use std::sync::Mutex;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use sealwire_wire::response;
use tokio::task::LocalSet;

use super::*;
use crate::jitter::seeded;

const SCHEDULES: u64 = 1_000;
/// Resolution of the runtime's timers, for the few that follow each other.
const SLACK: Duration = Duration::from_millis(5);

/// What a faulty server does with a request.
enum Fault {
    Answer(Duration),
    Say(RpcError),
    Hang,
    HangUp,
}

/// The servers of a schedule, and what they saw.
struct Faults {
    seed: u64,
    started: Instant,
    random: Mutex<StdRng>,
    /// Probability that a request succeeds.
    successes: f64,
    /// The request that is forbidden, if one is.
    forbidden: Option<u8>,
    /// By request and server: the end of the longest pause that the server named.
    told: Mutex<HashMap<(u8, usize), Instant>>,
    forbidden_at: Mutex<Option<Instant>>,
}

impl Faults {
    fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.random.lock().unwrap().random_range(range)
    }

    /// Draws what happens to a request that arrives at a server now.
    fn receive(&self, request: u8, server: usize) -> Fault {
        let now = Instant::now();
        let told = self.told.lock().unwrap().get(&(request, server)).copied();
        assert!(
            told.is_none_or(|until| until <= now),
            "seed {}: request {request} came {:?} before the pause ended that server {server} named",
            self.seed,
            told.unwrap() - now
        );
        assert!(
            self.forbidden_at.lock().unwrap().is_none() || self.forbidden != Some(request),
            "seed {}",
            self.seed
        );
        if self.forbidden == Some(request) {
            *self.forbidden_at.lock().unwrap() = Some(now);
            return Fault::Say(RpcError::new(ErrorCode::Forbidden, "no"));
        }
        if self.random.lock().unwrap().random_bool(self.successes) {
            return Fault::Answer(Duration::from_millis(self.draw(0..400)));
        }
        match self.draw(0..7) {
            0 => Fault::Hang,
            1 => Fault::HangUp,
            2 => Fault::Answer(Duration::from_millis(self.draw(400..20_000))),
            3 => Fault::Say(RpcError::new(ErrorCode::Unavailable, "no")),
            kind => {
                let code = [
                    ErrorCode::Unavailable,
                    ErrorCode::Conflict,
                    ErrorCode::Overloaded,
                ][kind as usize - 4];
                let pause = [self.draw(0..100), self.draw(0..3_000)][self.draw(0..2) as usize];
                let mut told = self.told.lock().unwrap();
                told.insert((request, server), now + Duration::from_millis(pause));
                Fault::Say(RpcError::new(code, "no").retry_after_ms(pause as u32))
            }
        }
    }

    async fn serve(self: Arc<Self>, server: usize, mut peer: Peer) {
        let (answers, mut ready) = mpsc::unbounded_channel::<Vec<u8>>();
        loop {
            let heard = tokio::select! {
                heard = peer.next() => heard,
                Some(answer) = ready.recv() => {
                    peer.say(&answer).await;
                    continue;
                }
            };
            let mut out = Vec::new();
            match heard {
                PeerMessage::Call { msgid, payload, .. } => {
                    match self.receive(payload[0], server) {
                        Fault::Hang => {}
                        Fault::HangUp => return,
                        Fault::Say(error) => {
                            response::error(&mut out, msgid, &error, ErrorFormat::Map);
                            peer.say(&out).await;
                        }
                        Fault::Answer(delay) => {
                            let document = response::Document::start(&mut out, msgid);
                            out.push(1);
                            document.finish(&mut out, 1, (&[], 0), &[], &[]);
                            let answers = answers.clone();
                            tokio::spawn(async move {
                                sleep(delay).await;
                                let _ = answers.send(out);
                            });
                        }
                    }
                }
                PeerMessage::Cancel(msgid) => {
                    let cancelled = RpcError::new(ErrorCode::Cancelled, "cancelled");
                    response::error(&mut out, msgid, &cancelled, ErrorFormat::Map);
                    peer.say(&out).await;
                }
                PeerMessage::Health(msgid) => {
                    response::start(&mut out, msgid);
                    crate::peer::encode_health(&mut out);
                    peer.say(&out).await;
                }
                PeerMessage::Closed => return,
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Creates a client of `servers` faulty servers. Some attempts to connect are refused or hang.
fn faulty_client(config: &ClientConfig, faults: &Arc<Faults>, servers: usize) -> Client {
    let doors = Arc::clone(faults);
    let connector: Connector = Box::new(move |server| {
        let faults = Arc::clone(&doors);
        Box::pin(async move {
            match faults.draw(0..20) {
                0 => std::future::pending().await,
                1 | 2 => Err(Error::Connect(Arc::new(
                    io::ErrorKind::ConnectionRefused.into(),
                ))),
                _ => {
                    let (near, far) = duplex(1 << 16);
                    tokio::spawn(faults.serve(server, Peer::new(far)));
                    Ok(Connection::start(near, BOUNDS))
                }
            }
        })
    });
    let endpoints = (0..servers)
        .map(|index| Endpoint::new(format!("engine:{index}"), "engine"))
        .collect();
    Client::over(
        &ClientConfig {
            endpoints,
            ..config.clone()
        },
        connector,
        None,
    )
}

/// Runs a job of some requests. Returns how many of them succeeded and failed.
async fn run_schedule(seed: u64) -> (usize, usize) {
    seeded::seed(seed);
    let mut random = StdRng::seed_from_u64(seed);
    let requests = random.random_range(1..=12_u8);
    let servers = random.random_range(1..=3);
    let limits = RetryLimits {
        deadline: Duration::from_millis(random.random_range(100..10_000)),
        retry_timeout: Duration::from_millis(
            [0, random.random_range(50..5_000)][random.random_range(0..4_usize).min(1)],
        ),
    };
    let forbidden = random
        .random_bool(0.2)
        .then(|| random.random_range(0..requests));
    let successes = [0.0, 0.1, 0.5, 0.9][random.random_range(0..4_usize)];
    let faults = Arc::new(Faults {
        seed,
        started: Instant::now(),
        random: Mutex::new(random),
        successes,
        forbidden,
        told: Mutex::default(),
        forbidden_at: Mutex::default(),
    });
    let client = faulty_client(
        &ClientConfig {
            attempts_max: 4,
            ..config()
        },
        &faults,
        servers,
    );
    let pacer = Arc::new(Pacer::new(8));
    let ends = Arc::new(Mutex::new(Vec::<(u8, Instant, Result<(), Error>)>::new()));
    let tasks = LocalSet::new();
    for request in 0..requests {
        let (client, pacer, ends) = (client.clone(), Arc::clone(&pacer), Arc::clone(&ends));
        tasks.spawn_local(async move {
            let send = |deadline| {
                let client = &client;
                async move {
                    client
                        .encrypt(Encrypt::new("a", &[request]).deadline(deadline))
                        .await
                }
            };
            let outcome = pacer.run(limits, send, |_, _| {}).await;
            ends.lock()
                .unwrap()
                .push((request, Instant::now(), outcome.map(|_| ())));
        });
    }
    tasks.await;

    let ends = ends.lock().unwrap();
    let bound = if limits.retry_timeout.is_zero() {
        limits.deadline
    } else {
        limits.retry_timeout
    };
    for (index, (request, at, outcome)) in ends.iter().enumerate() {
        // A job that makes progress only makes its other requests wait.
        let progress = ends[..index]
            .iter()
            .filter(|(_, _, outcome)| outcome.is_ok())
            .map(|(_, at, _)| *at)
            .max();
        let since = progress.unwrap_or(faults.started);
        let took = *at - since;
        assert!(
            took <= bound + SLACK,
            "seed {seed}: request {request} took {took:?} under {limits:?}: {outcome:?}"
        );
        let is_forbidden =
            matches!(outcome, Err(Error::Rpc(error)) if error.code == ErrorCode::Forbidden);
        if let Some(forbidden_at) = *faults.forbidden_at.lock().unwrap()
            && Some(*request) == forbidden
        {
            assert!(is_forbidden, "seed {seed}: {outcome:?}");
            assert!(
                *at - forbidden_at <= SLACK,
                "seed {seed}: a permanent error is told at once"
            );
        } else {
            assert!(!is_forbidden, "seed {seed}");
        }
    }
    let succeeded = ends
        .iter()
        .filter(|(_, _, outcome)| outcome.is_ok())
        .count();
    (succeeded, ends.len() - succeeded)
}

#[tokio::test(start_paused = true)]
async fn retry_timeout_and_retry_after_are_kept_in_a_thousand_schedules() {
    let (mut succeeded, mut failed) = (0, 0);
    for seed in 0..SCHEDULES {
        let (well, ill) = run_schedule(seed).await;
        (succeeded, failed) = (succeeded + well, failed + ill);
    }
    println!("{succeeded} requests succeeded, {failed} failed");
    assert!(succeeded > 1_000 && failed > 1_000, "{succeeded} {failed}");
}
