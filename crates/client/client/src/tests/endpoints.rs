//! Several endpoints, and the choice between them.

use crate::{Encrypt, Pacer, RetryLimits, Tokenize};
use std::sync::Mutex;

use sealwire_wire::{ErrorFormat, response};
use tokio::sync::Notify;
use tokio::time::sleep;

use super::*;
use crate::jitter::{self, seeded};

/// Behaviour of a test server.
#[derive(Clone, Debug)]
pub(super) enum ServerBehaviour {
    /// Responds after this many milliseconds.
    Answer(u64),
    /// Responds with this error.
    Say(RpcError),
    /// Responds `deadline_exceeded`, this many milliseconds after the request's deadline.
    Late(u64),
    /// Responds only to a cancel: `cancelled`, after this many milliseconds.
    Obey(u64),
    /// Responds at once to this percentage of requests, and to the others as with `Obey(0)`.
    Sometimes(usize),
    /// Closes the connection.
    HangUp,
    Nothing,
}

/// A test engine over in-memory streams.
pub(super) struct TestServer {
    does: Mutex<ServerBehaviour>,
    /// The reaction to token requests, if different.
    tokens: Mutex<Option<ServerBehaviour>>,
    health: Mutex<ServerBehaviour>,
    /// The reaction to connection attempts: accepted, refused, or left hanging (`None`).
    door: Mutex<Option<bool>>,
    pub(super) calls: AtomicUsize,
    killed: Notify,
    healths: AtomicUsize,
    pub(super) connections: AtomicUsize,
    /// Number of connections so far.
    pub(super) connects: AtomicUsize,
    /// Number of attempts to connect so far.
    pub(super) attempts: AtomicUsize,
}

impl TestServer {
    pub(super) fn does(&self, does: ServerBehaviour) {
        *self.does.lock().unwrap() = does;
    }

    pub(super) fn takes(&self) -> usize {
        self.calls.swap(0, Ordering::Relaxed)
    }

    /// Ends every connection and accepts no more.
    pub(super) fn kill(&self) {
        self.door(Some(false));
        self.killed.notify_waiters();
    }

    pub(super) fn door(&self, open: Option<bool>) {
        *self.door.lock().unwrap() = open;
    }

    async fn serve(self: Arc<Self>, mut peer: Peer) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.connects.fetch_add(1, Ordering::Relaxed);
        let (answers, mut ready) = mpsc::unbounded_channel::<Vec<u8>>();
        loop {
            let heard = tokio::select! {
                () = self.killed.notified() => break,
                heard = peer.next() => heard,
                Some(answer) = ready.recv() => {
                    peer.say(&answer).await;
                    continue;
                }
            };
            let mut out = Vec::new();
            let (msgid, does, document) = match heard {
                PeerMessage::Closed => break,
                other @ PeerMessage::Small(_) => panic!("{other:?}"),
                PeerMessage::Tokenize { msgid, .. } => {
                    self.calls.fetch_add(1, Ordering::Relaxed);
                    let tokens = self.tokens.lock().unwrap().clone();
                    (
                        msgid,
                        tokens.unwrap_or_else(|| self.does.lock().unwrap().clone()),
                        true,
                    )
                }
                PeerMessage::Cancel(msgid) => match *self.does.lock().unwrap() {
                    ServerBehaviour::Obey(ms) => {
                        response::error(
                            &mut out,
                            msgid,
                            &RpcError::new(ErrorCode::Cancelled, "cancelled"),
                            ErrorFormat::Map,
                        );
                        answer_in(ms, &answers, out);
                        continue;
                    }
                    ServerBehaviour::Sometimes(_) => {
                        let cancelled = RpcError::new(ErrorCode::Cancelled, "cancelled");
                        response::error(&mut out, msgid, &cancelled, ErrorFormat::Map);
                        answer_in(0, &answers, out);
                        continue;
                    }
                    _ => continue,
                },
                PeerMessage::Call {
                    msgid, deadline_ms, ..
                } => {
                    self.calls.fetch_add(1, Ordering::Relaxed);
                    let mut does = self.does.lock().unwrap().clone();
                    if let ServerBehaviour::Late(ms) = does {
                        response::error(
                            &mut out,
                            msgid,
                            &RpcError::new(ErrorCode::DeadlineExceeded, "late"),
                            ErrorFormat::Map,
                        );
                        answer_in(
                            u64::from(deadline_ms.unwrap()) + ms,
                            &answers,
                            std::mem::take(&mut out),
                        );
                        does = ServerBehaviour::Nothing;
                    }
                    if let ServerBehaviour::Sometimes(percent) = does {
                        let answers = jitter::below(100) < percent;
                        does = if answers {
                            ServerBehaviour::Answer(0)
                        } else {
                            ServerBehaviour::Nothing
                        };
                    }
                    (msgid, does, true)
                }
                PeerMessage::Health(msgid) => {
                    self.healths.fetch_add(1, Ordering::Relaxed);
                    (msgid, self.health.lock().unwrap().clone(), false)
                }
            };
            match &does {
                ServerBehaviour::Say(error) => {
                    response::error(&mut out, msgid, error, ErrorFormat::Map)
                }
                _ if document => {
                    let document = response::Document::start(&mut out, msgid);
                    out.push(1);
                    document.finish(&mut out, 1, (&[], 0), &[], &[]);
                }
                _ => {
                    response::start(&mut out, msgid);
                    crate::peer::encode_health(&mut out);
                }
            }
            match does {
                ServerBehaviour::HangUp => break,
                ServerBehaviour::Nothing
                | ServerBehaviour::Late(_)
                | ServerBehaviour::Obey(_)
                | ServerBehaviour::Sometimes(_) => {}
                ServerBehaviour::Say(_) => answers.send(out).unwrap(),
                ServerBehaviour::Answer(ms) => answer_in(ms, &answers, out),
            }
        }
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer_in(ms: u64, answers: &mpsc::UnboundedSender<Vec<u8>>, answer: Vec<u8>) {
    let answers = answers.clone();
    tokio::spawn(async move {
        sleep(Duration::from_millis(ms)).await;
        let _ = answers.send(answer);
    });
}

/// Creates a client of `N` engines, which respond at once until told otherwise.
pub(super) fn engines<const N: usize>(config: ClientConfig) -> (Client, [Arc<TestServer>; N]) {
    engines_under(config, None)
}

/// Starts test servers whose certificates can be renewed.
pub(super) fn engines_under<const N: usize>(
    config: ClientConfig,
    renewals: Option<Renewals>,
) -> (Client, [Arc<TestServer>; N]) {
    let engine = |_| {
        Arc::new(TestServer {
            does: Mutex::new(ServerBehaviour::Answer(0)),
            tokens: Mutex::new(None),
            health: Mutex::new(ServerBehaviour::Answer(0)),
            door: Mutex::new(Some(true)),
            calls: AtomicUsize::new(0),
            killed: Notify::new(),
            healths: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            connects: AtomicUsize::new(0),
            attempts: AtomicUsize::new(0),
        })
    };
    let engines: [Arc<TestServer>; N] = std::array::from_fn(engine);
    let doors = engines.clone();
    let connector: Connector = Box::new(move |endpoint| {
        let engine = Arc::clone(&doors[endpoint]);
        Box::pin(async move {
            engine.attempts.fetch_add(1, Ordering::Relaxed);
            let door = *engine.door.lock().unwrap();
            match door {
                Some(true) => {
                    let (near, far) = duplex(1 << 16);
                    tokio::spawn(engine.serve(Peer::new(far)));
                    Ok(Connection::start(near, BOUNDS))
                }
                Some(false) => Err(Error::Connect(Arc::new(
                    io::ErrorKind::ConnectionRefused.into(),
                ))),
                None => std::future::pending().await,
            }
        })
    });
    let endpoints = (0..N)
        .map(|index| Endpoint::new(format!("engine:{index}"), "engine"))
        .collect();
    let config = ClientConfig {
        endpoints,
        ..config
    };
    config.check().unwrap();
    (Client::over(&config, connector, renewals), engines)
}

pub(super) async fn one(client: &Client) -> Result<Document, Error> {
    client
        .encrypt(Encrypt::new("a", &[1]).deadline(Duration::from_millis(2_000)))
        .await
}

/// Sends requests one after the other. Returns true if all succeeded.
pub(super) async fn calls(client: &Client, count: usize) -> bool {
    let mut well = true;
    for _ in 0..count {
        well &= one(client).await.is_ok();
    }
    well
}

/// Connects every endpoint.
pub(super) async fn warm(client: &Client) {
    assert!(one(client).await.is_ok());
    settle().await;
}

pub(super) fn says(code: ErrorCode, retry_after_ms: Option<u32>) -> ServerBehaviour {
    let mut error = RpcError::new(code, "no");
    error.retry_after_ms = retry_after_ms;
    ServerBehaviour::Say(error)
}

#[tokio::test(start_paused = true)]
async fn calls_spread_over_endpoints() {
    let (client, engines) = engines::<3>(config());
    warm(&client).await;
    assert!(calls(&client, 3_000).await);
    let taken = engines.each_ref().map(|engine| engine.takes());
    assert!(
        taken.iter().all(|calls| (800..1_200).contains(calls)),
        "{taken:?}"
    );
    let connections = engines
        .each_ref()
        .map(|engine| engine.connections.load(Ordering::Relaxed));
    assert_eq!(connections, [1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_endpoint_gets_fewer_calls() {
    let (client, [slow, fast]) = engines::<2>(config());
    warm(&client).await;
    slow.does(ServerBehaviour::Answer(100));
    fast.does(ServerBehaviour::Answer(10));
    let (before, _) = (slow.takes(), fast.takes());
    assert!(before <= 1);
    let callers: Vec<_> = (0..16)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { calls(&client, 100).await })
        })
        .collect();
    for caller in callers {
        assert!(caller.await.unwrap());
    }
    let (slow, fast) = (slow.takes(), fast.takes());
    assert_eq!(slow + fast, 1_600);
    // Equal numbers in flight give request shares proportional to speed: one in eleven.
    assert!((80..280).contains(&slow), "{slow} of 1600");
    assert_eq!(client.at_rest(), (2 * 64, 0));
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_asks_for_a_pause_gets_one_if_another_is_there() {
    // The endpoint is paused for the given time, up to one second. Engines delay large requests of
    // a connection for at most this time.
    let long = [1_000, 60_000, u32::MAX].map(Some);
    for pause in long {
        let (client, [one, two]) = engines::<2>(config());
        warm(&client).await;
        one.takes();
        one.does(says(ErrorCode::Overloaded, pause));
        while one.takes() == 0 {
            let _ = calls(&client, 1).await;
        }
        one.does(ServerBehaviour::Answer(0));
        two.takes();
        advance(Duration::from_millis(900)).await;
        assert!(calls(&client, 100).await);
        assert_eq!((one.takes(), two.takes()), (0, 100), "{pause:?}");
        advance(Duration::from_millis(200)).await;
        assert!(calls(&client, 100).await);
        assert!((20..80).contains(&one.takes()), "{pause:?}");
        // If both engines ask for a pause, both are used.
        for engine in [&one, &two] {
            engine.does(says(ErrorCode::Overloaded, Some(60_000)));
        }
        assert!(!calls(&client, 50).await);
        for engine in [&one, &two] {
            assert!(engine.takes() > 0);
            engine.does(ServerBehaviour::Answer(0));
        }
        assert!(calls(&client, 50).await);
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_without_its_store_is_spared_calls_on_tokens_and_no_others() {
    for pause in [1_000, 60_000] {
        let (client, [one, two]) = engines::<2>(config());
        warm(&client).await;
        let lacks = says(ErrorCode::Unavailable, Some(pause));
        *one.tokens.lock().unwrap() = Some(lacks.clone());
        let tokenize = async || client.tokenize(Tokenize::new("a", "c", &[1])).await.is_ok();
        for round in 0..10 {
            one.takes();
            while one.takes() == 0 {
                let _ = tokenize().await;
            }
            two.takes();
            advance(Duration::from_millis(900)).await;
            for _ in 0..100 {
                assert!(tokenize().await);
            }
            assert_eq!((one.takes(), two.takes()), (0, 100), "round {round}");
            assert!(calls(&client, 100).await);
            assert!((20..80).contains(&one.takes()), "round {round}");
            advance(Duration::from_millis(200)).await;
        }
        assert_eq!(client.stats().ejections, 0);
        // If the other engine also lacks its store, each is tried.
        *two.tokens.lock().unwrap() = Some(lacks);
        for _ in 0..50 {
            assert!(!tokenize().await);
        }
        assert!(one.takes() > 0 && two.takes() > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_eject_and_refusals_do_not() {
    for (does, ejects) in [
        (says(ErrorCode::Unavailable, None), true),
        (says(ErrorCode::Unavailable, Some(1)), false),
        (says(ErrorCode::Internal, None), true),
        (ServerBehaviour::Nothing, true),
        (ServerBehaviour::HangUp, true),
        (says(ErrorCode::Overloaded, Some(1)), false),
        (says(ErrorCode::Conflict, Some(1)), false),
        (says(ErrorCode::BadRequest, None), false),
        (says(ErrorCode::CannotOpen, None), false),
        // The other endpoint does the same work in time.
        (says(ErrorCode::DeadlineExceeded, None), true),
        (ServerBehaviour::Obey(0), true),
        (ServerBehaviour::Late(0), true),
        (ServerBehaviour::Answer(0), false),
    ] {
        let (client, [bad, good]) = engines::<2>(config());
        warm(&client).await;
        bad.does(does.clone());
        let begun = Instant::now();
        while client.stats().ejections == 0 && begun.elapsed() < Duration::from_secs(30) {
            let _ = calls(&client, 1).await;
            sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(client.stats().ejections, u64::from(ejects), "{does:?}");
        assert!(bad.takes() > 4, "{does:?}");
        good.takes();
        if ejects {
            assert!(calls(&client, 100).await, "{does:?}");
            assert_eq!((bad.takes(), good.takes()), (0, 100), "{does:?}");
        }
        assert_eq!(client.at_rest(), (2 * 64, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_between_them_ends_a_row_of_failures() {
    let (client, [one, two]) = engines::<2>(config());
    warm(&client).await;
    two.does(says(ErrorCode::BadRequest, None));
    for _ in 0..20 {
        one.does(says(ErrorCode::Internal, None));
        one.takes();
        while one.calls.load(Ordering::Relaxed) < 4 {
            let _ = calls(&client, 1).await;
        }
        one.does(ServerBehaviour::Answer(0));
        while one.calls.load(Ordering::Relaxed) < 5 {
            let _ = calls(&client, 1).await;
        }
    }
    assert_eq!(client.stats().ejections, 0);
}

/// Sends requests until this many ejections are counted.
async fn ejected(client: &Client, count: u64) {
    while client.stats().ejections < count {
        let _ = calls(client, 1).await;
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_decides_when_an_ejection_is_over() {
    let (client, [bad, good]) = engines::<2>(config());
    warm(&client).await;
    bad.does(says(ErrorCode::Internal, None));
    *bad.health.lock().unwrap() = ServerBehaviour::Nothing;
    ejected(&client, 1).await;
    bad.takes();
    let begun = Instant::now();
    // The probe is a request of the client itself and fails, without effect on application
    // requests.
    while client.stats().ejections < 2 {
        assert!(calls(&client, 1).await);
        sleep(Duration::from_millis(1)).await;
    }
    // One second, up to a quarter more, and the five seconds that the probe waits for a response.
    let length = begun.elapsed().as_millis();
    assert!((6_000..6_300).contains(&length), "{length}");
    assert_eq!((bad.takes(), bad.healths.load(Ordering::Relaxed)), (0, 1));
    // The probe succeeds at last, but the first request fails: ejected for longer.
    *bad.health.lock().unwrap() = says(ErrorCode::Overloaded, Some(1));
    let begun = Instant::now();
    ejected(&client, 3).await;
    let length = begun.elapsed().as_millis();
    assert!((2_000..2_600).contains(&length), "{length}");
    assert_eq!(bad.takes(), 1);
    // The engine is healthy again.
    bad.does(ServerBehaviour::Answer(0));
    let begun = Instant::now();
    while bad.calls.load(Ordering::Relaxed) == 0 {
        assert!(calls(&client, 1).await);
        sleep(Duration::from_millis(1)).await;
    }
    let length = begun.elapsed().as_millis();
    assert!((3_000..3_900).contains(&length), "{length}");
    good.takes();
    bad.takes();
    assert!(calls(&client, 100).await);
    assert!((20..80).contains(&bad.takes()));
    settle().await;
    assert_eq!(
        bad.connections.load(Ordering::Relaxed),
        1,
        "those from before are closed"
    );
}

#[tokio::test(start_paused = true)]
async fn an_attempt_from_before_a_probe_passed_changes_nothing() {
    let (client, [back, good]) = engines::<2>(ClientConfig {
        connections: 2,
        ..config()
    });
    warm(&client).await;
    // Another connection is attempted, which hangs, and missed deadlines eject it meanwhile.
    back.does(ServerBehaviour::Nothing);
    back.door(None);
    good.does(ServerBehaviour::Answer(40));
    while client.stats().ejections == 0 {
        let client = client.clone();
        tokio::spawn(async move {
            client
                .encrypt(Encrypt::new("a", &[1]).deadline(Duration::from_millis(50)))
                .await
        });
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(100)).await;
    assert_eq!(back.attempts.load(Ordering::Relaxed), 2);
    // The probe succeeds before that attempt times out.
    back.door(Some(true));
    back.does(ServerBehaviour::Answer(0));
    good.does(ServerBehaviour::Answer(0));
    back.takes();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(8) {
        assert!(calls(&client, 1).await);
        sleep(Duration::from_millis(10)).await;
    }
    assert!(back.takes() > 200);
    assert!(good.takes() > 200);
    assert_eq!(client.stats().ejections, 1);
    let counts = [&back.connects, &back.connections].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [2, 1], "the probe's is kept");
}

#[tokio::test(start_paused = true)]
async fn with_every_endpoint_ejected_all_are_used() {
    let (client, engines) = engines::<3>(config());
    warm(&client).await;
    for engine in &engines {
        engine.does(says(ErrorCode::Internal, None));
        *engine.health.lock().unwrap() = ServerBehaviour::Nothing;
    }
    ejected(&client, 3).await;
    for engine in &engines {
        engine.takes();
        engine.does(ServerBehaviour::Answer(0));
    }
    assert!(calls(&client, 300).await);
    let taken = engines.each_ref().map(|engine| engine.takes());
    assert!(taken.iter().all(|calls| *calls > 50), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_cannot_be_reached_costs_no_call_and_no_time() {
    for door in [Some(false), None] {
        let (client, [gone, there]) = engines::<2>(config());
        gone.door(door);
        let begun = Instant::now();
        assert!(calls(&client, 10).await);
        assert_eq!(begun.elapsed().as_millis(), 0, "{door:?}");
        while client.stats().ejections == 0 {
            assert!(calls(&client, 1).await);
            sleep(Duration::from_millis(50)).await;
        }
        gone.door(Some(true));
        let begun = Instant::now();
        while gone.calls.load(Ordering::Relaxed) == 0 {
            assert!(calls(&client, 1).await);
            sleep(Duration::from_millis(50)).await;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(2),
            "{:?}",
            begun.elapsed()
        );
        assert!(there.takes() > 10);
    }
}

#[tokio::test(start_paused = true)]
async fn with_no_endpoint_in_reach_calls_fail_and_the_first_to_return_is_used() {
    let (client, engines) = engines::<2>(config());
    for engine in &engines {
        engine.door(Some(false));
    }
    for _ in 0..50 {
        let failed = one(&client).await;
        assert!(matches!(failed, Err(Error::Connect(_))), "{failed:?}");
    }
    engines[1].door(Some(true));
    let begun = Instant::now();
    while one(&client).await.is_err() {}
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn short_deadlines_eject_who_is_silent_and_not_who_is_slow() {
    for (does, ejects) in [
        (ServerBehaviour::Answer(20), false),
        (ServerBehaviour::Nothing, true),
    ] {
        let (client, [bad, good]) = engines::<2>(config());
        warm(&client).await;
        for engine in [&bad, &good] {
            engine.does(does.clone());
        }
        for _ in 0..400 {
            let short = Encrypt::new("a", &[1]).deadline(Duration::from_millis(5));
            assert!(matches!(client.encrypt(short).await, Err(Error::Deadline)));
        }
        assert_eq!(
            client.stats().ejections > 0,
            ejects,
            "{does:?}: {:?}",
            client.stats()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn engines_that_respond_to_missed_deadlines_are_not_silent() {
    for (does, alive) in [
        (ServerBehaviour::Late(0), true),
        (ServerBehaviour::Late(2), true),
        (ServerBehaviour::Late(300), true),
        (ServerBehaviour::Obey(0), true),
        (ServerBehaviour::Obey(300), true),
        // The maximum time that an engine delays a connection after `overloaded`.
        (ServerBehaviour::Obey(1_000), true),
        (ServerBehaviour::Nothing, false),
    ] {
        let (client, [one, two]) = engines::<2>(config());
        warm(&client).await;
        for engine in [&one, &two] {
            engine.does(does.clone());
        }
        // One request at a time, so that no other data arrives on the connection.
        for deadline_ms in [5, 500, 700, 2_000].repeat(8) {
            let begun = Instant::now();
            let late = client
                .encrypt(Encrypt::new("a", &[1]).deadline(Duration::from_millis(deadline_ms)))
                .await;
            assert!(matches!(late, Err(Error::Deadline)), "{late:?}");
            assert_eq!(
                begun.elapsed().as_millis(),
                u128::from(deadline_ms),
                "{does:?}: told in time"
            );
            sleep(Duration::from_secs(2)).await;
        }
        assert_eq!(client.stats().ejections == 0, alive, "{does:?}");
        let connects = [&one, &two].map(|engine| engine.connects.load(Ordering::Relaxed));
        assert_eq!(connects == [1, 1], alive, "{does:?}: {connects:?}");
        assert_eq!(client.at_rest(), (2 * 64, 0));
    }
}

/// Sends requests one after the other, or twenty at once, for a minute. Returns how many were lost
/// and how many there were.
async fn lost_in_a_minute(client: &Client, at_once: usize, gives_up: bool) -> (usize, usize) {
    let lost = Arc::new(AtomicUsize::new(0));
    let all = Arc::new(AtomicUsize::new(0));
    let end = Instant::now() + Duration::from_secs(60);
    let callers = (0..at_once).map(|_| {
        let (client, lost, all) = (client.clone(), Arc::clone(&lost), Arc::clone(&all));
        tokio::spawn(async move {
            while Instant::now() < end {
                let call =
                    client.encrypt(Encrypt::new("a", &[1]).deadline(Duration::from_millis(3_000)));
                let patience = Duration::from_millis(if gives_up { 1_500 } else { 60_000 });
                let is_lost = !matches!(timeout(patience, call).await, Ok(Ok(_)));
                lost.fetch_add(usize::from(is_lost), Ordering::Relaxed);
                all.fetch_add(1, Ordering::Relaxed);
                // Applications check the health of their engines, which says little about the work.
                assert!(client.health().await.is_ok());
                sleep(Duration::from_millis(20)).await;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    (lost.load(Ordering::Relaxed), all.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_does_no_work_is_left_though_it_answers_cancel_and_health() {
    seeded::seed(1);
    for (does, gives_up) in [
        (ServerBehaviour::Obey(0), false),
        (ServerBehaviour::Obey(0), true),
        (ServerBehaviour::Late(0), false),
        (says(ErrorCode::DeadlineExceeded, None), false),
    ] {
        for at_once in [1, 20] {
            let (client, [hangs, _good]) = engines::<2>(config());
            warm(&client).await;
            hangs.does(does.clone());
            let (lost, all) = lost_in_a_minute(&client, at_once, gives_up).await;
            // Those until the other endpoint did enough, and one for each time that the endpoint is
            // tried again.
            let ejections = client.stats().ejections as usize;
            assert!(
                (1..=12).contains(&ejections),
                "{does:?} {at_once}: {ejections}"
            );
            // Requests that are dropped together count as one, so it takes five rounds of them.
            let rounds = if gives_up { 5 } else { 1 };
            assert!(
                lost <= 20 + rounds * at_once + ejections,
                "{does:?} {at_once}: {lost} of {all} are lost"
            );
            assert!(all > 500, "{does:?} {at_once}: {all}");
            assert_eq!(client.at_rest(), (2 * 64, 0));
            // It is used again once it works.
            hangs.does(ServerBehaviour::Answer(0));
            sleep(Duration::from_secs(40)).await;
            while hangs.takes() == 0 {
                assert!(calls(&client, 1).await);
                sleep(Duration::from_millis(20)).await;
            }
            assert!(calls(&client, 100).await);
            assert!((20..80).contains(&hangs.takes()), "{does:?} {at_once}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_ejects_no_endpoint() {
    let (client, [busy, quick]) = engines::<2>(ClientConfig {
        in_flight_max: 512,
        ..config()
    });
    warm(&client).await;
    for engine in [&busy, &quick] {
        engine.does(ServerBehaviour::Obey(0));
    }
    let mut job: Vec<_> = (0..=255).map(|byte| call(&client, byte % 100)).collect();
    sleep(Duration::from_secs(2)).await;
    // The other endpoint works on smaller requests meanwhile.
    quick.does(ServerBehaviour::Answer(0));
    job.extend((0..20).map(|byte| call(&client, byte)));
    settle().await;
    assert!(busy.takes() > 100);
    for request in &job {
        request.abort();
    }
    for request in job {
        let _ = request.await;
    }
    assert_eq!(client.stats().ejections, 0);
    assert_eq!(client.at_rest(), (2 * 512, 0));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_the_retry_time_cut_counts_as_a_request_that_is_dropped() {
    for (retry_ms, ejects) in [(500, false), (1_500, true)] {
        let (client, [slow, _quick]) = engines::<2>(config());
        warm(&client).await;
        slow.does(ServerBehaviour::Obey(0));
        let pacer = Pacer::new(8);
        let limits = RetryLimits {
            deadline: Duration::from_secs(30),
            retry_timeout: Duration::from_millis(retry_ms),
        };
        for _ in 0..200 {
            let send = |deadline| client.encrypt(Encrypt::new("a", &[1]).deadline(deadline));
            let _ = pacer.run(limits, send, |_, _| {}).await;
        }
        assert!(slow.takes() > 5, "{retry_ms}");
        assert_eq!(client.stats().ejections > 0, ejects, "{retry_ms}");
    }
}

/// Sends requests with a deadline of a second from many callers. Returns the number of requests
/// that succeeded, and of endpoints that were ejected at once.
async fn ejected_at_once(client: &Client, callers: usize) -> (usize, usize) {
    let end = Instant::now() + Duration::from_secs(if callers > 10 { 15 } else { 60 });
    let running = (0..callers).map(|_| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut succeeded = 0;
            while Instant::now() < end {
                let request = Encrypt::new("a", &[1]).deadline(Duration::from_millis(1_000));
                succeeded += usize::from(client.encrypt(request).await.is_ok());
                sleep(Duration::from_millis(10 + jitter::below(20) as u64)).await;
            }
            succeeded
        })
    });
    let running: Vec<_> = running.collect();
    let mut ejected = 0;
    while Instant::now() < end {
        ejected = ejected.max(client.ejected_now());
        sleep(Duration::from_millis(5)).await;
    }
    let mut succeeded = 0;
    for caller in running {
        succeeded += caller.await.unwrap();
    }
    (succeeded, ejected)
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_miss_deadlines_alike_stay_in_use() {
    use ServerBehaviour::{Answer, Obey, Sometimes};
    seeded::seed(1);
    for (does, most) in [
        // All are overloaded, and some requests pass.
        ([Sometimes(5), Sometimes(5), Sometimes(5), Sometimes(5)], 0),
        (
            [Sometimes(30), Sometimes(30), Sometimes(30), Sometimes(30)],
            0,
        ),
        (
            [Sometimes(60), Sometimes(60), Sometimes(60), Sometimes(60)],
            0,
        ),
        (
            [Sometimes(75), Sometimes(75), Sometimes(75), Sometimes(75)],
            0,
        ),
        (
            [Sometimes(90), Sometimes(90), Sometimes(90), Sometimes(90)],
            1,
        ),
        // All stop at once: the first to be noticed can be ejected.
        ([Obey(0), Obey(0), Obey(0), Obey(0)], 1),
        // Some do no work.
        ([Obey(0), Answer(5), Answer(5), Answer(5)], 1),
        ([Obey(0), Obey(0), Answer(5), Answer(5)], 2),
        ([Obey(0), Obey(0), Obey(0), Answer(5)], 3),
        ([Obey(0), Sometimes(90), Sometimes(90), Sometimes(90)], 2),
    ] {
        for callers in [1, 8, 64] {
            let (client, engines) = engines::<4>(config());
            warm(&client).await;
            // Work is under way when the behaviour changes.
            let (worked, ejected) = (calls(&client, 100).await, client.ejected_now());
            assert_eq!((worked, ejected), (true, 0));
            for (engine, does) in engines.iter().zip(&does) {
                engine.does(does.clone());
            }
            let (succeeded, ejected) = ejected_at_once(&client, callers).await;
            println!(
                "{does:?} {callers}: {succeeded} succeeded, {ejected} ejected at once, {:?}",
                client.stats()
            );
            assert!(
                ejected <= most,
                "{does:?} {callers}: {ejected} are ejected at once"
            );
            if does.iter().any(|does| matches!(does, Answer(_))) {
                let dead = does.iter().filter(|does| matches!(does, Obey(_))).count();
                assert_eq!(ejected, dead, "{does:?} {callers}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_on_probation_is_ejected_for_a_missed_deadline_only_if_others_do_better() {
    seeded::seed(1);
    for (others, at_once, ejects) in [
        (ServerBehaviour::Answer(0), 1, true),
        (ServerBehaviour::Answer(0), 20, true),
        (ServerBehaviour::Sometimes(50), 20, false),
        (ServerBehaviour::Obey(0), 1, false),
        (ServerBehaviour::Obey(0), 20, false),
    ] {
        let (client, [bad, other]) = engines::<2>(config());
        warm(&client).await;
        bad.does(says(ErrorCode::Internal, None));
        ejected(&client, 1).await;
        bad.does(ServerBehaviour::Obey(0));
        other.does(others.clone());
        bad.takes();
        lost_in_a_minute(&client, at_once, false).await;
        assert!(bad.takes() > 0);
        assert_eq!(
            client.stats().ejections > 1,
            ejects,
            "{others:?} {at_once}: {:?}",
            client.stats()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_hangs_does_not_hide_an_endpoint_that_returns() {
    let (client, [hangs, returns]) = engines::<2>(config());
    hangs.door(None);
    returns.door(Some(false));
    let begun = Instant::now();
    let waiting = call(&client, 1);
    settle().await;
    returns.door(Some(true));
    assert!(waiting.await.unwrap().is_ok());
    assert!(
        begun.elapsed() < Duration::from_millis(60),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn calls_dropped_at_any_time_leave_nothing() {
    let config = ClientConfig {
        connections: 2,
        in_flight_max: 3,
        ..config()
    };
    let (client, engines) = engines::<2>(config);
    for round in 0..200_u64 {
        engines[0].does(ServerBehaviour::Answer(round % 7));
        engines[1].does(
            [
                ServerBehaviour::Answer(3),
                ServerBehaviour::Nothing,
                ServerBehaviour::HangUp,
                ServerBehaviour::Answer(0),
            ][round as usize % 4]
                .clone(),
        );
        let calls: Vec<_> = (0..30).map(|byte| call(&client, byte)).collect();
        sleep(Duration::from_millis(round % 11)).await;
        for call in &calls {
            call.abort();
        }
        for call in calls {
            let _ = call.await;
        }
        assert_eq!(client.at_rest(), (12, 0), "round {round}");
    }
    for engine in &engines {
        engine.does(ServerBehaviour::Answer(0));
    }
    sleep(Duration::from_secs(10)).await;
    assert!(calls(&client, 20).await);
}
