//! Certificates that expire or are renewed under a running client, without effect on requests.

use std::sync::Mutex;

use super::endpoints::{ServerBehaviour, calls, engines, engines_under, one, says, warm};
use super::*;

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_not_accepted_any_more_is_replaced() {
    let (client, [engine]) = engines::<1>(ClientConfig {
        attempts_max: 4,
        ..config()
    });
    warm(&client).await;
    sleep(Duration::from_secs(60)).await;
    engine.does(says(ErrorCode::Unauthenticated, None));
    let calling = tokio::spawn({
        let client = client.clone();
        async move { one(&client).await }
    });
    // The first connection has responded; the next one waits for its backoff.
    sleep(Duration::from_millis(10)).await;
    engine.does(ServerBehaviour::Answer(0));
    assert!(calling.await.unwrap().is_ok());
    assert_eq!(
        (
            engine.connects.load(Ordering::Relaxed),
            engine.connections.load(Ordering::Relaxed)
        ),
        (2, 1)
    );
    assert_eq!(client.stats().retries, 0, "it costs no budget");

    engine.takes();
    engine.does(says(ErrorCode::Unauthenticated, None));
    let Err(Error::Rpc(error)) = one(&client).await else {
        panic!("answered")
    };
    assert_eq!(
        (error.code, engine.takes()),
        (ErrorCode::Unauthenticated, 4),
        "no more than its attempts"
    );
}

#[tokio::test(start_paused = true)]
async fn requests_move_from_old_connections_to_new_ones_and_none_is_lost() {
    let age = Duration::from_secs(1_800);
    let (client, [engine]) = engines::<1>(ClientConfig {
        connection_age_max: age,
        ..config()
    });
    let counts = || {
        (
            engine.connects.load(Ordering::Relaxed),
            engine.connections.load(Ordering::Relaxed),
        )
    };
    warm(&client).await;
    sleep(age * 3 / 4 - Duration::from_secs(1)).await;
    assert!(calls(&client, 10).await);
    assert_eq!(counts(), (1, 1), "no connection is old");

    // Connections end at a random age between three quarters and the whole.
    sleep(age / 4 + Duration::from_secs(1)).await;
    engine.does(ServerBehaviour::Answer(1_500));
    let slow = tokio::spawn({
        let client = client.clone();
        async move { one(&client).await.is_ok() }
    });
    sleep(Duration::from_millis(400)).await;
    engine.does(ServerBehaviour::Answer(0));
    // Later than the next check.
    sleep(Duration::from_millis(10)).await;
    assert!(calls(&client, 10).await);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(counts(), (2, 2), "a request in flight keeps its connection");
    assert!(slow.await.unwrap());
    sleep(Duration::from_millis(1)).await;
    assert_eq!(counts(), (2, 1));

    // An old connection stays while no new one gets through, and attempts are rare.
    engine.door(Some(false));
    sleep(age).await;
    assert!(calls(&client, 10).await);
    let attempts = || engine.attempts.load(Ordering::Relaxed);
    sleep(Duration::from_secs(1)).await;
    let before = attempts();
    for _ in 0..14 {
        sleep(Duration::from_secs(10)).await;
        assert!(calls(&client, 10).await);
    }
    assert_eq!((attempts(), counts().1), (before, 1));
    engine.door(Some(true));
    for _ in 0..18 {
        sleep(Duration::from_secs(10)).await;
        assert!(calls(&client, 10).await);
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(counts(), (3, 1));
    // Without requests nothing is opened.
    sleep(age * 3).await;
    assert_eq!(counts(), (3, 1));
    assert_eq!((client.stats().retries, client.stats().ejections), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_move_to_connections_under_renewed_certificates_and_none_is_lost() {
    let renewed = Arc::new(Mutex::new(None));
    let looks: Renewals = {
        let renewed = Arc::clone(&renewed);
        Box::new(move || {
            let renewed = *renewed.lock().unwrap();
            Box::pin(async move { renewed })
        })
    };
    let (client, [one_engine, other]) = engines_under::<2>(config(), Some(looks));
    let connects = || [&one_engine, &other].map(|engine| engine.connects.load(Ordering::Relaxed));
    let open = || [&one_engine, &other].map(|engine| engine.connections.load(Ordering::Relaxed));
    warm(&client).await;
    sleep(Duration::from_millis(10_100)).await;
    assert!(calls(&client, 10).await);
    assert_eq!(connects(), [1, 1], "nothing was renewed");

    // The certificates are renewed, and one engine does not accept the new certificate yet.
    sleep(Duration::from_millis(9_800)).await;
    *renewed.lock().unwrap() = Some(Instant::now());
    other.door(Some(false));
    for engine in [&one_engine, &other] {
        engine.does(ServerBehaviour::Answer(1_500));
    }
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let client = client.clone();
        callers.spawn(async move { one(&client).await.is_ok() });
    }
    sleep(Duration::from_millis(400)).await;
    for engine in [&one_engine, &other] {
        engine.does(ServerBehaviour::Answer(0));
    }
    assert!(calls(&client, 10).await);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(
        (connects(), open()),
        ([2, 1], [2, 1]),
        "calls in flight keep the connection that they are on"
    );
    assert!(callers.join_all().await.into_iter().all(|ok| ok));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(open(), [1, 1]);

    other.door(Some(true));
    sleep(Duration::from_secs(11)).await;
    assert!(calls(&client, 10).await);
    sleep(Duration::from_millis(1)).await;
    assert_eq!((connects(), open()), ([2, 2], [1, 1]), "tried again");
    sleep(Duration::from_secs(60)).await;
    assert!(calls(&client, 10).await);
    assert_eq!(connects(), [2, 2], "once");
    assert_eq!((client.stats().retries, client.stats().ejections), (0, 0));
}
