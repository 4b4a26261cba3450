//! Retries: conditions, times, counts and limits.
use crate::{Encrypt, Page, Tokenize};
use std::sync::atomic::AtomicBool;
use std::task::Poll;

use tokio::io::{AsyncRead, AsyncWrite};

use super::endpoints::{ServerBehaviour, TestServer, calls, engines, one, says, warm};
use super::*;
use crate::retry::Course;

/// Returns the default configuration with one connection per endpoint.
fn config() -> ClientConfig {
    ClientConfig {
        attempts_max: 4,
        ..super::config()
    }
}

#[tokio::test(start_paused = true)]
async fn retries_follow_errors_that_may_pass_and_no_others() {
    use ErrorCode::*;
    for (does, attempts, ms) in [
        (says(Overloaded, Some(100)), 4, 300..=450),
        (says(Overloaded, Some(0)), 4, 0..=3),
        (says(Overloaded, None), 4, 0..=350), // any part of 50, 100 and 200
        (says(Unavailable, Some(100)), 4, 300..=450),
        (says(Unavailable, None), 4, 0..=350),
        (says(Conflict, Some(100)), 4, 300..=450),
        (says(Conflict, None), 1, 0..=0),
        (says(BadRequest, Some(100)), 1, 0..=0),
        (says(TooLarge, None), 1, 0..=0),
        (says(Forbidden, None), 1, 0..=0),
        (says(NotFound, None), 1, 0..=0),
        (says(CannotOpen, None), 1, 0..=0),
        (says(Cancelled, None), 1, 0..=0),
        (says(DeadlineExceeded, None), 1, 0..=0),
        (says(Internal, None), 1, 0..=0),
        (ServerBehaviour::HangUp, 4, 0..=700),
        (ServerBehaviour::Nothing, 1, 2_000..=2_000),
        (ServerBehaviour::Answer(5), 1, 5..=5),
    ] {
        let (client, [engine]) = engines::<1>(config());
        engine.does(does.clone());
        let begun = Instant::now();
        let outcome = one(&client).await;
        // Timers have millisecond resolution, so each pause can be 1 ms longer.
        let took = begun.elapsed().as_millis();
        assert!(
            ms.contains(&took) || (attempts > 1 && ms.contains(&(took - 3))),
            "{does:?}: {took} ms"
        );
        assert_eq!(engine.takes(), attempts, "{does:?}");
        let stats = client.stats();
        assert_eq!(
            (stats.attempts, stats.retries, stats.retries_refused),
            (attempts as u64, attempts as u64 - 1, 0)
        );
        match (does, outcome) {
            (ServerBehaviour::Answer(_), Ok(_))
            | (ServerBehaviour::Nothing, Err(Error::Deadline)) => {}
            (
                ServerBehaviour::Say(RpcError {
                    code: DeadlineExceeded,
                    ..
                }),
                Err(Error::Deadline),
            ) => {}
            (ServerBehaviour::Say(said), Err(Error::Rpc(error))) => {
                assert_eq!(error, said, "the answer comes whole")
            }
            (ServerBehaviour::HangUp, Err(Error::Disconnected { .. })) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(client.at_rest(), (64, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_are_as_told_and_differ() {
    // The request itself waits for the full time, even if its endpoint is paused for less.
    for ms in [200, 1_200] {
        let mut seen = Vec::new();
        for _ in 0..50 {
            let (client, [engine]) = engines::<1>(ClientConfig {
                attempts_max: 2,
                ..config()
            });
            engine.does(says(ErrorCode::Overloaded, Some(ms)));
            let begun = Instant::now();
            assert!(one(&client).await.is_err());
            assert_eq!(engine.takes(), 2);
            seen.push(begun.elapsed().as_millis());
        }
        seen.sort_unstable();
        let ms = u128::from(ms);
        assert!(seen[0] >= ms && seen[49] <= ms * 3 / 2 + 1, "{seen:?}");
        seen.dedup();
        assert!(seen.len() > 10, "{seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_ends_too_late_is_not_begun() {
    // The deadline of each request is two seconds.
    for (retry_after_ms, attempts) in [
        (1_999, None),
        (2_000, Some(1)),
        (60_000, Some(1)),
        (u32::MAX, Some(1)),
        (1_300, Some(2)),
    ] {
        let (client, [engine]) = engines::<1>(config());
        engine.does(says(ErrorCode::Overloaded, Some(retry_after_ms)));
        let begun = Instant::now();
        let Err(Error::Rpc(error)) = one(&client).await else {
            panic!("{retry_after_ms}")
        };
        assert_eq!(error.retry_after_ms, Some(retry_after_ms));
        assert!(begun.elapsed() < Duration::from_secs(2));
        if let Some(attempts) = attempts {
            assert_eq!(engine.takes(), attempts, "{retry_after_ms}");
            assert!(attempts > 1 || begun.elapsed().is_zero());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_endpoint_is_asked_at_once() {
    for does in [
        says(ErrorCode::Overloaded, Some(1_000)),
        says(ErrorCode::Overloaded, None),
        says(ErrorCode::Unavailable, None),
        says(ErrorCode::Conflict, Some(1_000)),
        ServerBehaviour::HangUp,
    ] {
        let (client, [bad, good]) = engines::<2>(config());
        warm(&client).await;
        bad.takes();
        good.takes();
        bad.does(does.clone());
        let begun = Instant::now();
        assert!(calls(&client, 20).await, "{does:?}");
        assert_eq!(begun.elapsed().as_millis(), 0, "{does:?}");
        assert_eq!(good.takes(), 20);
        let stats = client.stats();
        assert_eq!(
            (stats.attempts, stats.retries),
            (21 + bad.takes() as u64, stats.attempts - 21),
            "{does:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn retries_ask_each_endpoint_once_and_then_keep_the_shortest_pause() {
    let (client, engines) = engines::<3>(config());
    warm(&client).await;
    for (engine, ms) in engines.iter().zip([900, 100, 900]) {
        engine.takes();
        engine.does(says(ErrorCode::Overloaded, Some(ms)));
    }
    let begun = Instant::now();
    let waiting = call(&client, 1);
    settle().await;
    assert_eq!(
        engines
            .each_ref()
            .map(|engine| engine.calls.load(Ordering::Relaxed)),
        [1, 1, 1]
    );
    engines[1].does(ServerBehaviour::Answer(0));
    assert!(waiting.await.unwrap().is_ok());
    assert!(
        (100..=152).contains(&begun.elapsed().as_millis()),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(engines.each_ref().map(|engine| engine.takes()), [1, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_is_not_asked_before_the_end_of_the_pause_that_it_named() {
    for (short, long, deadline_ms) in [
        (100, 900, 10_000),
        (1_500, 4_000, 10_000),
        (1_500, 60_000, 10_000),
    ] {
        for _ in 0..20 {
            let (client, [one, two]) = engines::<2>(config());
            warm(&client).await;
            one.takes();
            two.takes();
            one.does(says(ErrorCode::Overloaded, Some(short)));
            two.does(says(ErrorCode::Overloaded, Some(long)));
            let calling = tokio::spawn(async move {
                client
                    .encrypt(
                        Encrypt::new("a", &[1]).deadline(Duration::from_millis(deadline_ms.into())),
                    )
                    .await
            });
            settle().await;
            assert_eq!((one.takes(), two.takes()), (1, 1));
            // The one that may be asked again goes away.
            one.kill();
            sleep(Duration::from_millis(u64::from(long.min(deadline_ms)) - 2)).await;
            assert_eq!(two.takes(), 0, "{short} {long}");
            two.does(ServerBehaviour::Answer(0));
            assert_eq!(
                calling.await.unwrap().is_ok(),
                long < deadline_ms,
                "{short} {long}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retries_never_multiply_an_overload() {
    for (percent, most) in [(10, 200), (0, 0), (100, 2_000)] {
        let (client, [engine]) = engines::<1>(ClientConfig {
            retry_percent: percent,
            ..config()
        });
        engine.does(says(ErrorCode::Overloaded, Some(1)));
        let begun = Instant::now();
        assert!(!calls(&client, 2_000).await);
        let stats = client.stats();
        // Retries earned by requests, the full bucket at the start, and one per second.
        let most = most + 64 + begun.elapsed().as_secs() + 1;
        assert!(
            (most - 10..=most).contains(&stats.retries),
            "{percent} %: {stats:?}"
        );
        assert_eq!(
            (stats.attempts, engine.takes() as u64),
            (2_000 + stats.retries, stats.attempts)
        );
        assert!(stats.retries_refused > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_sent_is_repeated_unless_that_is_switched_off() {
    for repeat_sent in [true, false] {
        let (client, [one, two]) = engines::<2>(ClientConfig {
            repeat_sent,
            ..config()
        });
        warm(&client).await;
        for engine in [&one, &two] {
            engine.does(ServerBehaviour::Answer(50));
        }
        let running: Vec<_> = (0..100).map(|byte| call(&client, byte)).collect();
        sleep(Duration::from_millis(20)).await;
        let lost = one.takes();
        assert!(lost > 30, "{lost}");
        one.kill();
        let mut failed = 0;
        for call in running {
            match call.await.unwrap() {
                Ok(_) => {}
                Err(Error::Disconnected { .. }) => failed += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
        let lost = if one.takes() == 0 {
            lost
        } else {
            panic!("it is dead")
        };
        // The request of `warm` can be among those counted, and is not in flight.
        assert!(
            if repeat_sent {
                failed == 0
            } else {
                lost - failed <= 1
            },
            "{failed} of {lost}"
        );
        assert!(calls(&client, 50).await, "nobody else notices");
        assert_eq!(client.at_rest(), (128, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_between_attempts_is_not_noticed() {
    let (client, [engine]) = engines::<1>(config());
    warm(&client).await;
    engine.kill();
    let waiting = call(&client, 1);
    sleep(Duration::from_millis(60)).await;
    engine.door(Some(true));
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_reason_is_given_where_the_deadline_cuts_a_wait_short() {
    let config = ClientConfig {
        backoff_min: Duration::from_secs(10),
        backoff_max: Duration::from_secs(10),
        ..config()
    };
    let (client, [engine]) = engines::<1>(config);
    engine.door(Some(false));
    let begun = Instant::now();
    assert!(matches!(one(&client).await, Err(Error::Connect(_))));
    assert_eq!(begun.elapsed(), Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_will_not_do_is_not_tried_again() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let connector: Connector = Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async { Err(Error::Connect(Arc::new(io::ErrorKind::InvalidData.into()))) })
    });
    let client = Client::over(&config(), connector, None);
    assert!(matches!(one(&client).await, Err(Error::Connect(_))));
    assert_eq!(attempts.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_one_endpoint_rejects_does_not_hide_the_return_of_another() {
    let rejected =
        || crate::error::rejected_certificate(rustls::AlertDescription::CertificateExpired);
    let mistrusted = || Error::Connect(Arc::new(io::ErrorKind::InvalidData.into()));
    let refused = || Error::Connect(Arc::new(io::ErrorKind::ConnectionRefused.into()));
    for failure in [rejected(), mistrusted()] {
        // The other endpoint was used for long, or never.
        for was_used in [false, true] {
            for round in 0..20 {
                let is_open = Arc::new(AtomicBool::new(was_used));
                let door = Arc::clone(&is_open);
                let (sender, mut peers) = mpsc::unbounded_channel();
                let failure = failure.clone();
                let connector: Connector = Box::new(move |endpoint| {
                    let (near, far) = duplex(1 << 16);
                    let outcome = if endpoint == 0 {
                        Err(failure.clone())
                    } else if door.load(Ordering::Relaxed) {
                        sender
                            .send(Peer::new(far))
                            .map_err(|_| refused())
                            .map(|()| near)
                    } else {
                        Err(refused())
                    };
                    Box::pin(async move { Ok(Connection::start(outcome?, BOUNDS)) })
                });
                let endpoints = vec![
                    Endpoint::new("engine:0", "engine"),
                    Endpoint::new("engine:1", "engine"),
                ];
                let client = Client::over(
                    &ClientConfig {
                        endpoints,
                        ..config()
                    },
                    connector,
                    None,
                );
                if was_used {
                    let used = call(&client, 1);
                    let mut peer = next_peer(&mut peers).await;
                    let (msgid, _) = peer.hear_call().await;
                    peer.answer(msgid, &[1]).await;
                    assert!(used.await.unwrap().is_ok());
                    sleep(Duration::from_secs(10)).await;
                }
                is_open.store(false, Ordering::Relaxed);
                settle().await;
                let waiting = call(&client, 2);
                sleep(Duration::from_millis(60)).await;
                is_open.store(true, Ordering::Relaxed);
                let answering = tokio::spawn(async move {
                    let mut peer = next_peer(&mut peers).await;
                    let (msgid, _) = peer.hear_call().await;
                    peer.answer(msgid, &[2]).await;
                    sleep(Duration::from_secs(1)).await;
                });
                let outcome = waiting.await.unwrap();
                assert!(outcome.is_ok(), "{was_used} {round}: {outcome:?}");
                answering.abort();
            }
        }
    }
}

/// A stream to a peer that takes what is written, may answer, and then sends a TLS alert about this
/// client's certificate.
struct AlertingStream {
    near: DuplexStream,
    alert_at: std::pin::Pin<Box<tokio::time::Sleep>>,
}

impl AsyncRead for AlertingStream {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.alert_at.as_mut().poll(context).is_ready() {
            let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRevoked);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, alert)));
        }
        std::pin::Pin::new(&mut self.near).poll_read(context, buffer)
    }
}

impl AsyncWrite for AlertingStream {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        std::pin::Pin::new(&mut self.near).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.near).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<io::Result<()>> {
        std::pin::Pin::new(&mut self.near).poll_shutdown(context)
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_sent_before_an_alert_is_repeated_only_if_it_may_be() {
    let repeats = || Course::default();
    for (course, repeat_sent, answers_first, is_repeated) in [
        (repeats as fn() -> Course, true, false, true),
        (repeats, true, true, true),
        (repeats, false, false, false),
        (repeats, false, true, false),
        (Course::once, true, false, false),
        (Course::once, true, true, false),
    ] {
        let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
        let peers = Arc::clone(&heard);
        let connector: Connector = Box::new(move |endpoint| {
            let (near, far) = duplex(1 << 16);
            let heard = Arc::clone(&peers);
            tokio::spawn(async move {
                let mut peer = Peer::new(far);
                while let PeerMessage::Call { msgid, payload, .. } = peer.next().await {
                    heard.lock().unwrap().push((endpoint, payload[0]));
                    if endpoint == 1 || payload == [1] {
                        peer.answer(msgid, &[1]).await;
                    }
                }
            });
            let wait = Duration::from_millis(if endpoint == 0 { 500 } else { 1_000_000 });
            Box::pin(async move {
                if endpoint == 1 {
                    // The first one is connected earlier.
                    sleep(Duration::from_millis(100)).await;
                }
                Ok(Connection::start(
                    AlertingStream {
                        near,
                        alert_at: Box::pin(sleep(wait)),
                    },
                    BOUNDS,
                ))
            })
        });
        let endpoints = vec![
            Endpoint::new("engine:0", "engine"),
            Endpoint::new("engine:1", "engine"),
        ];
        let client = Client::over(
            &ClientConfig {
                endpoints,
                repeat_sent,
                ..config()
            },
            connector,
            None,
        );
        if answers_first {
            assert!(call(&client, 1).await.unwrap().is_ok());
        }
        let request = Encrypt::new("a", &[2]);
        let encode = |out: &mut Vec<u8>, msgid: u32, _| {
            sealwire_wire::request::encrypt(out, msgid, &request.0)
        };
        let outcome = client.call(Duration::from_secs(10), course(), encode).await;
        let sent: Vec<_> = heard
            .lock()
            .unwrap()
            .iter()
            .filter(|(_, byte)| *byte == 2)
            .map(|(at, _)| *at)
            .collect();
        let expected: &[usize] = if is_repeated { &[0, 1] } else { &[0] };
        assert_eq!(
            (outcome.is_ok(), &*sent),
            (is_repeated, expected),
            "{repeat_sent} {answers_first}: {outcome:?}"
        );
        // An alert after an answer does not reject the handshake.
        if let Err(error) = outcome {
            assert_eq!(matches!(error, Error::Tls(_)), !answers_first, "{error:?}");
            assert!(error.to_string().contains("revoked"), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn calls_dropped_in_a_pause_leave_nothing() {
    let (client, engines): (_, [Arc<TestServer>; 2]) = engines(ClientConfig {
        in_flight_max: 5,
        ..config()
    });
    for engine in &engines {
        engine.does(says(ErrorCode::Overloaded, Some(500)));
    }
    for round in 0..50 {
        let waiting: Vec<_> = (0..20).map(|byte| call(&client, byte)).collect();
        sleep(Duration::from_millis(round)).await;
        for call in &waiting {
            call.abort();
        }
        for call in waiting {
            let _ = call.await;
        }
        assert_eq!(client.at_rest(), (10, 0));
    }
    for engine in &engines {
        engine.does(ServerBehaviour::Answer(0));
    }
    assert!(calls(&client, 20).await);
}

/// Returns the requests that a client sends to peers that hang up on it.
async fn heard_by_peers_that_hang_up(config: &ClientConfig, call: Task) -> Vec<PeerMessage> {
    let (client, mut peers) = client(config, 1 << 16);
    let call = tokio::spawn(async move { call(client).await });
    let mut heard = Vec::new();
    while let Ok(Some(mut peer)) = timeout(Duration::from_secs(60), peers.recv()).await {
        heard.push(peer.hear().await);
    }
    assert!(matches!(
        call.await.unwrap(),
        Some(Error::Disconnected { .. })
    ));
    heard
}

type Task = fn(Client) -> std::pin::Pin<Box<dyn Future<Output = Option<Error>> + Send>>;

#[tokio::test(start_paused = true)]
async fn a_repeated_tokenize_carries_one_random_key() {
    let own: Task = |client| {
        Box::pin(async move {
            client
                .tokenize(Tokenize::new("a", "c", &[1]).idempotency_key(b"own"))
                .await
                .err()
        })
    };
    let none: Task = |client| {
        Box::pin(async move { client.tokenize(Tokenize::new("a", "c", &[1])).await.err() })
    };
    let keys = async |config: &ClientConfig, call| {
        let heard = heard_by_peers_that_hang_up(config, call).await;
        let key = |heard| match heard {
            PeerMessage::Tokenize {
                idempotency_key, ..
            } => idempotency_key,
            other => panic!("{other:?}"),
        };
        heard.into_iter().map(key).collect::<Vec<_>>()
    };
    assert_eq!(keys(&config(), own).await, vec![Some(b"own".to_vec()); 4]);
    let drawn = keys(&config(), none).await;
    assert_eq!(drawn, vec![drawn[0].clone(); 4]);
    assert_eq!(drawn[0].as_ref().unwrap().len(), 16);
    assert_ne!(
        drawn,
        keys(&config(), none).await,
        "another call, another key"
    );
    let never = ClientConfig {
        repeat_sent: false,
        ..config()
    };
    assert_eq!(keys(&never, none).await, [None]);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_a_server_may_have_seen_is_not_repeated() {
    use crate::control::AppOperation;
    let list: Task = |client| Box::pin(async move { client.apps(Page::default()).await.err() });
    assert_eq!(heard_by_peers_that_hang_up(&config(), list).await.len(), 4);
    let create: Task = |client| {
        Box::pin(async move { client.change_app("a", AppOperation::create()).await.err() })
    };
    assert_eq!(
        heard_by_peers_that_hang_up(&config(), create).await.len(),
        1
    );
    for (code, pause, attempts) in [
        (ErrorCode::Unavailable, Some(10), 1),
        (ErrorCode::Conflict, None, 1),
        (ErrorCode::Conflict, Some(10), 4),
        (ErrorCode::Overloaded, Some(10), 4),
    ] {
        let (client, mut peers) = client(&config(), 1 << 16);
        let call =
            tokio::spawn(async move { client.change_app("a", AppOperation::create()).await });
        let mut peer = next_peer(&mut peers).await;
        for _ in 0..attempts {
            let PeerMessage::Small(msgid) = peer.hear().await else {
                panic!("no call")
            };
            let mut error = RpcError::new(code, "no");
            error.retry_after_ms = pause;
            let mut out = Vec::new();
            response::error(&mut out, msgid, &error, ErrorFormat::Map);
            peer.say(&out).await;
        }
        assert!(matches!(call.await.unwrap(), Err(Error::Rpc(error)) if error.code == code));
    }
}
