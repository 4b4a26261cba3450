//! Tests the client against a peer that the test drives, over in-memory streams. Time is paused, so
//! that deadlines and pauses pass at once. TLS is tested in `tls.rs`, and end to end in the
//! server's tests.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sealwire_wire::{ErrorFormat, RpcError, ScanError, response};
use tokio::io::{AsyncReadExt, BufWriter, DuplexStream, duplex};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::client::Client;
use crate::config::{ClientConfig, Endpoint, Pem};
use crate::connection::{Bounds, Connection};
use crate::peer::{Peer, PeerMessage};
use crate::pool::{Connector, Renewals};
use crate::state::{Failure, GRACE};
use crate::{Document, Encrypt, Error, ErrorCode};

mod endpoints;
mod renewals;
mod retries;
mod schedules;

const BOUNDS: Bounds = Bounds {
    request_bytes_max: 8 << 20,
    response_bytes_max: 1 << 20,
};

fn config() -> ClientConfig {
    let none = || Pem::Bytes(Vec::new());
    ClientConfig {
        connections: 1,
        attempts_max: 1,
        ..ClientConfig::new("peer:1", "peer", none(), none(), none())
    }
}

/// Creates a client, and a channel that yields the peer of every connection. Each stream buffers
/// `stream_bytes`.
fn client(config: &ClientConfig, stream_bytes: usize) -> (Client, mpsc::UnboundedReceiver<Peer>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let connector: Connector = Box::new(move |_| {
        let (near, far) = duplex(stream_bytes);
        let sent = sender.send(Peer::new(far));
        Box::pin(async move {
            sent.map_err(|_| Error::Connect(Arc::new(io::ErrorKind::ConnectionRefused.into())))?;
            Ok(Connection::start(near, BOUNDS))
        })
    });
    (Client::over(config, connector, None), receiver)
}

/// Returns the peer of the next connection that the client opens.
async fn next_peer(peers: &mut mpsc::UnboundedReceiver<Peer>) -> Peer {
    timeout(Duration::from_secs(60), peers.recv())
        .await
        .expect("no connection for a minute")
        .unwrap()
}

/// Starts a request in its own task, with this byte as payload.
fn call(client: &Client, byte: u8) -> JoinHandle<Result<Document, Error>> {
    let client = client.clone();
    tokio::spawn(async move { client.encrypt(Encrypt::new("a", &[byte])).await })
}

fn payload(done: Result<Result<Document, Error>, tokio::task::JoinError>) -> Vec<u8> {
    done.unwrap().unwrap().payload.to_vec()
}

/// Creates a single connection and its peer.
fn connection(stream_bytes: usize) -> (Arc<Connection>, Peer) {
    let (near, far) = duplex(stream_bytes);
    (Arc::new(Connection::start(near, BOUNDS)), Peer::new(far))
}

/// Starts an `encrypt` request with `payload` on a single connection.
fn call_on(
    connection: &Arc<Connection>,
    payload: Vec<u8>,
) -> JoinHandle<Result<bytes::Bytes, Failure>> {
    let connection = Arc::clone(connection);
    tokio::spawn(async move {
        let deadline = Instant::now() + Duration::from_secs(30);
        let call = Encrypt::new("a", &payload);
        connection
            .call(deadline, |out, msgid| {
                sealwire_wire::request::encrypt(out, msgid, &call.0)
            })
            .await
    })
}

/// Returns one MessagePack string of this many bytes.
fn long_payload(bytes: usize) -> Vec<u8> {
    let mut payload = vec![0xdb];
    payload.extend_from_slice(&u32::try_from(bytes).unwrap().to_be_bytes());
    payload.resize(5 + bytes, b'x');
    payload
}

/// Runs all tasks until every task waits.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn answers_find_their_calls_in_any_order() {
    let (client, mut peers) = client(&config(), 1 << 16);
    let calls: Vec<_> = (1..=3).map(|byte| call(&client, byte)).collect();
    let mut peer = next_peer(&mut peers).await;
    let mut heard = vec![
        peer.hear_call().await,
        peer.hear_call().await,
        peer.hear_call().await,
    ];
    heard.sort_by_key(|(_, payload)| std::cmp::Reverse(payload[0]));
    for (msgid, payload) in heard {
        peer.answer(msgid, &[payload[0] + 100]).await;
    }
    for (byte, call) in (101..).zip(calls) {
        assert_eq!(payload(call.await), [byte]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_cancelled_and_leaves_nothing() {
    let (connection, mut peer) = connection(1 << 16);
    let (given_up, kept) = (call_on(&connection, vec![1]), call_on(&connection, vec![2]));
    let (first, _) = peer.hear_call().await;
    let (second, _) = peer.hear_call().await;
    assert_eq!(connection.state().sizes(), (2, 0, 0));
    given_up.abort();
    assert_eq!(peer.hear().await, PeerMessage::Cancel(first));
    assert_eq!(connection.state().sizes(), (1, 0, 0));
    // A late response is discarded and affects no other request.
    peer.answer(first, &[1]).await;
    peer.answer(second, &[2]).await;
    assert!(kept.await.unwrap().is_ok());
    assert_eq!(connection.state().sizes(), (0, 0, 0));
    peer.hears_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_before_it_is_written_is_never_written() {
    let (connection, mut peer) = connection(64);
    let large = call_on(&connection, long_payload(200_000));
    settle().await;
    let dropped = call_on(&connection, vec![2]);
    settle().await;
    assert_eq!(connection.state().sizes(), (2, 1, 0));
    dropped.abort();
    settle().await;
    assert_eq!(connection.state().sizes(), (1, 0, 0));
    let (msgid, payload) = peer.hear_call().await;
    assert_eq!(payload.len(), 200_005);
    peer.answer(msgid, &[0]).await;
    assert!(large.await.unwrap().is_ok());
    peer.hears_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_dropped_half_written_is_written_and_cancelled() {
    let (connection, mut peer) = connection(64);
    let large = call_on(&connection, long_payload(200_000));
    settle().await;
    large.abort();
    settle().await;
    assert_eq!(connection.state().sizes(), (0, 0, 1));
    let (msgid, _) = peer.hear_call().await;
    assert_eq!(peer.hear().await, PeerMessage::Cancel(msgid));
    assert_eq!(connection.state().sizes(), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_sent_kept_and_cancels() {
    let (client, mut peers) = client(&config(), 1 << 16);
    let started = Instant::now();
    let short = {
        let client = client.clone();
        tokio::spawn(async move {
            client
                .encrypt(Encrypt::new("a", &[1]).deadline(Duration::from_millis(700)))
                .await
        })
    };
    let mut peer = next_peer(&mut peers).await;
    let PeerMessage::Call {
        msgid, deadline_ms, ..
    } = peer.hear().await
    else {
        panic!("no call")
    };
    assert_eq!(deadline_ms, Some(700));
    assert!(matches!(short.await.unwrap(), Err(Error::Deadline)));
    assert_eq!(started.elapsed().as_millis(), 700);
    assert_eq!(peer.hear().await, PeerMessage::Cancel(msgid));

    // The cancel causes no response, so the next request uses another connection, with the default
    // deadline.
    sleep(GRACE + Duration::from_millis(2)).await;
    let next = call(&client, 2);
    let mut other = next_peer(&mut peers).await;
    let PeerMessage::Call {
        msgid, deadline_ms, ..
    } = other.hear().await
    else {
        panic!("no call")
    };
    assert!(
        deadline_ms.is_some_and(|ms| (29_000..=30_000).contains(&ms)),
        "{deadline_ms:?}"
    );
    other.answer(msgid, &[2]).await;
    assert_eq!(payload(next.await), [2]);
    assert_eq!(
        peer.hear().await,
        PeerMessage::Closed,
        "the silent one is closed once it is empty"
    );
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_takes_bytes_is_slow_and_one_that_takes_none_is_silent() {
    let (near, mut far) = duplex(64);
    let connection = Arc::new(Connection::start(near, BOUNDS));
    let large = call_on(&connection, long_payload(2_000));
    settle().await;
    large.abort();
    let watch = Arc::clone(connection.state());
    let watch = tokio::spawn(async move { watch.goes_silent().await });
    for _ in 0..20 {
        assert_eq!(far.read_exact(&mut [0; 64]).await.unwrap(), 64);
        sleep(Duration::from_secs(1)).await;
        assert!(connection.is_usable());
    }
    let begun = Instant::now();
    assert!(watch.await.unwrap());
    assert!(begun.elapsed() < GRACE);
    assert!(!connection.is_usable());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_that_its_answer_overtook_is_not_written() {
    let (connection, mut peer) = connection(64);
    let answered = call_on(&connection, vec![1]);
    let (msgid, _) = peer.hear_call().await;
    let large = call_on(&connection, long_payload(200_000));
    settle().await;
    answered.abort();
    settle().await;
    assert_eq!(
        connection.state().sizes(),
        (1, 0, 1),
        "it waits behind the large one"
    );
    peer.answer(msgid, &[1]).await;
    settle().await;
    assert_eq!(connection.state().sizes(), (1, 0, 0));
    let (msgid, _) = peer.hear_call().await;
    assert!(!connection.state().goes_silent().await, "nothing is owed");
    peer.answer(msgid, &[2]).await;
    assert!(large.await.unwrap().is_ok());
    peer.hears_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_cost_a_connection_that_speaks() {
    let (client, mut peers) = client(&config(), 1 << 16);
    let slow = call(&client, 1);
    let mut peer = next_peer(&mut peers).await;
    peer.hear_call().await;
    advance(Duration::from_secs(10)).await;
    let quick = call(&client, 2);
    let (msgid, _) = peer.hear_call().await;
    peer.answer(msgid, &[2]).await;
    assert_eq!(payload(quick.await), [2]);
    assert!(matches!(slow.await.unwrap(), Err(Error::Deadline)));
    let PeerMessage::Cancel(_) = peer.hear().await else {
        panic!("no cancel")
    };
    let again = call(&client, 3);
    let (msgid, _) = peer.hear_call().await;
    peer.answer(msgid, &[3]).await;
    assert_eq!(payload(again.await), [3]);
    assert!(peers.try_recv().is_err(), "no second connection");
}

#[tokio::test(start_paused = true)]
async fn the_servers_deadline_is_a_deadline_and_other_errors_come_whole() {
    let (client, mut peers) = client(&config(), 1 << 16);
    let (late, busy) = (call(&client, 1), call(&client, 2));
    let mut peer = next_peer(&mut peers).await;
    let overloaded = RpcError::new(ErrorCode::Overloaded, "later").retry_after_ms(40);
    for _ in 0..2 {
        let (msgid, payload) = peer.hear_call().await;
        let late = RpcError::new(ErrorCode::DeadlineExceeded, "late");
        let mut out = Vec::new();
        response::error(
            &mut out,
            msgid,
            if payload == [1] { &late } else { &overloaded },
            ErrorFormat::Map,
        );
        peer.say(&out).await;
    }
    assert!(matches!(late.await.unwrap(), Err(Error::Deadline)));
    assert!(matches!(busy.await.unwrap(), Err(Error::Rpc(error)) if error == overloaded));
}

#[tokio::test(start_paused = true)]
async fn a_message_of_a_server_has_no_control_characters() {
    let (client, mut peers) = client(&config(), 1 << 16);
    for (said, shown) in [
        ("plain", "plain"),
        ("Zoë 🦀", "Zoë 🦀"),
        ("\u{1b}[2J", "\\u{1b}[2J"),
        ("a\r\nsealwire: b", "a\\u{d}\\u{a}sealwire: b"),
        ("\u{9b}1A", "\\u{9b}1A"),
        ("\u{202e}x", "\\u{202e}x"),
    ] {
        let call = call(&client, 1);
        let mut peer = match peers.try_recv() {
            Ok(peer) => peer,
            Err(_) => next_peer(&mut peers).await,
        };
        let (msgid, _) = peer.hear_call().await;
        let mut out = Vec::new();
        response::error(
            &mut out,
            msgid,
            &RpcError::new(ErrorCode::Internal, said.to_owned()),
            ErrorFormat::Map,
        );
        peer.say(&out).await;
        let Err(Error::Rpc(error)) = call.await.unwrap() else {
            panic!("no error")
        };
        assert_eq!(error.message, shown);
        drop(peer);
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_goes_away_fails_what_it_may_have_seen_and_nothing_else() {
    let config = ClientConfig {
        attempts_max: 2,
        repeat_sent: false,
        ..config()
    };
    let (client, mut peers) = client(&config, 64);
    let large = {
        let client = client.clone();
        tokio::spawn(async move {
            client
                .encrypt(Encrypt::new("a", &long_payload(200_000)))
                .await
        })
    };
    let peer = next_peer(&mut peers).await;
    settle().await;
    let unsent = call(&client, 2);
    settle().await;
    drop(peer);
    assert!(
        matches!(large.await.unwrap(), Err(Error::Disconnected { .. })),
        "half of it was sent"
    );
    let mut other = next_peer(&mut peers).await;
    let (msgid, sent) = other.hear_call().await;
    assert_eq!(sent, [2], "never written, so it is sent again");
    other.answer(msgid, &[9]).await;
    assert_eq!(payload(unsent.await), [9]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_takes_no_requests_after_a_write_failed() {
    // The peer has closed its side for writing, and its last bytes are still on the way.
    let (near, far) = duplex(1 << 16);
    let (reader, _) = tokio::io::split(near);
    let (broken, gone) = duplex(64);
    drop(gone);
    let connection = Arc::new(Connection::start(tokio::io::join(reader, broken), BOUNDS));
    let sent = call_on(&connection, vec![1]);
    settle().await;
    assert!(!connection.is_usable());
    assert!(
        matches!(connection.end_error(), Error::Disconnected { why } if !why.contains("certificate"))
    );
    let begun = Instant::now();
    let unsent = call_on(&connection, vec![2]).await.unwrap();
    assert!(matches!(unsent, Err(Failure::NotSent)), "{unsent:?}");
    assert!(begun.elapsed().is_zero());
    // What the peer has said is still read.
    assert!(!sent.is_finished());
    let mut peer = Peer::new(far);
    peer.answer(0, &[9]).await;
    assert!(sent.await.unwrap().is_ok());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(connection.state().sizes(), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_server_says_why_it_closes() {
    let (client, mut peers) = client(&config(), 1 << 16);
    let call = call(&client, 1);
    let mut peer = next_peer(&mut peers).await;
    peer.hear_call().await;
    let mut out = Vec::new();
    response::protocol_error(
        &mut out,
        &RpcError::new(ErrorCode::BadRequest, "reserved marker 0xc1"),
    );
    peer.say(&out).await;
    let Err(Error::Disconnected { why }) = call.await.unwrap() else {
        panic!("no disconnect")
    };
    assert_eq!(&*why, "the server said bad_request: reserved marker 0xc1");
}

#[tokio::test(start_paused = true)]
async fn response_beyond_the_limit_fails_only_its_request() {
    let (connection, mut peer) = connection(1 << 16);
    let (large, small) = (call_on(&connection, vec![1]), call_on(&connection, vec![2]));
    let (first, _) = peer.hear_call().await;
    let (second, _) = peer.hear_call().await;
    peer.answer(first, &long_payload(3 << 20)).await;
    peer.answer(second, &[2]).await;
    let refused = ScanError::TooLong {
        max: BOUNDS.response_bytes_max as u64,
    };
    assert!(matches!(large.await.unwrap(), Err(Failure::Refused(error)) if error == refused));
    assert!(small.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn malformed_responses_end_the_connection() {
    for (nonsense, both_fail) in [
        (&b"\x94\x01\x00\xc0\xdb\xff\xff\xff\xff"[..], true), // a result of 4 GiB
        (b"\x94\x00\x00\xa4info\x90", true),                  // a request
        (b"HTTP/1.1 400 Bad Request\r\n", true),
        (b"\xc1", true),
        (b"\x94\x01\x00\x07\xc0", true),  // an error that is a number
        (b"\x94\x01\x63\xc0\xc0", false), // an answer to nobody
        (b"\x93\x02\xa5hello\x90", false), // an unknown notification
    ] {
        let (connection, mut peer) = connection(1 << 16);
        let (first, second) = (call_on(&connection, vec![1]), call_on(&connection, vec![2]));
        peer.hear_call().await;
        peer.hear_call().await;
        peer.say(nonsense).await;
        settle().await;
        if both_fail {
            let error = first.await.unwrap().unwrap_err();
            if nonsense.starts_with(b"HTTP") {
                assert!(format!("{error:?}").contains("http.address"), "{error:?}");
            }
            assert!(second.await.unwrap().is_err(), "{nonsense:02x?}");
            assert!(!connection.is_usable());
            assert_eq!(peer.hear().await, PeerMessage::Closed);
        } else {
            peer.answer(0, &[0]).await;
            peer.answer(1, &[0]).await;
            assert!(
                first.await.unwrap().is_ok() && second.await.unwrap().is_ok(),
                "{nonsense:02x?}"
            );
        }
        assert_eq!(connection.state().sizes(), (0, 0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_msgid_in_use_is_not_used_again() {
    let (connection, mut peer) = connection(1 << 16);
    connection.state().set_next_msgid(u32::MAX);
    let waiting = call_on(&connection, vec![1]);
    assert_eq!(peer.hear_call().await.0, u32::MAX);
    let wrapped = call_on(&connection, vec![2]);
    assert_eq!(peer.hear_call().await.0, 0);
    connection.state().set_next_msgid(u32::MAX);
    let third = call_on(&connection, vec![3]);
    assert_eq!(peer.hear_call().await.0, 1, "both others are in use");
    for msgid in [1, 0, u32::MAX] {
        peer.answer(msgid, &[0]).await;
    }
    for call in [waiting, wrapped, third] {
        assert!(call.await.unwrap().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_request_and_reply_are_flushed() {
    // A stream that buffers data until it is flushed, as TLS can.
    let (near, far) = duplex(4 << 10);
    let buffered: BufWriter<DuplexStream> = BufWriter::with_capacity(16 << 20, near);
    let bounds = Bounds {
        response_bytes_max: 8 << 20,
        ..BOUNDS
    };
    let connection = Arc::new(Connection::start(buffered, bounds));
    let mut peer = Peer::new(far);
    for bytes in [10, 300 << 10, 5 << 20] {
        let sent = long_payload(bytes);
        let call = call_on(&connection, sent.clone());
        let (msgid, heard) = peer.hear_call().await;
        assert!(heard == sent);
        peer.answer(msgid, &sent).await;
        let result = call.await.unwrap().unwrap();
        assert!(sealwire_wire::Document::decode(&result).unwrap().payload == sent);
    }
    let too_long = call_on(&connection, long_payload(9 << 20)).await.unwrap();
    assert!(matches!(too_long, Err(Failure::TooLong)));
    peer.hears_nothing().await;
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_is_not_one_value_is_not_sent() {
    let (client, mut peers) = client(&config(), 1 << 16);
    for payload in [&[][..], &[1, 1], &[0x92, 1], &[0xc1]] {
        let refused = client.encrypt(Encrypt::new("a", payload)).await;
        assert!(matches!(refused, Err(Error::Payload(_))), "{payload:02x?}");
    }
    assert!(peers.try_recv().is_err(), "nothing was opened");
}

#[tokio::test(start_paused = true)]
async fn calls_spread_over_connections_and_wait_for_room() {
    let config = ClientConfig {
        connections: 2,
        in_flight_max: 2,
        ..config()
    };
    let (client, mut peers) = client(&config, 1 << 16);
    let first = call(&client, 1);
    let mut one = next_peer(&mut peers).await;
    let (first_id, _) = one.hear_call().await;
    assert!(peers.try_recv().is_err(), "one call needs one connection");
    // The second request finds a busy connection. It uses that connection and opens another for
    // later requests.
    let second = call(&client, 2);
    let (second_id, _) = one.hear_call().await;
    let mut two = next_peer(&mut peers).await;
    settle().await;
    let (third, fourth, fifth) = (call(&client, 3), call(&client, 4), call(&client, 5));
    let (third_id, _) = two.hear_call().await;
    let (fourth_id, _) = two.hear_call().await;
    settle().await;
    assert!(!fifth.is_finished());
    two.answer(third_id, &[3]).await;
    let (fifth_id, sent) = two.hear_call().await;
    assert_eq!(sent, [5], "room on the second connection");
    two.answer(fourth_id, &[4]).await;
    two.answer(fifth_id, &[5]).await;
    one.answer(second_id, &[2]).await;
    one.answer(first_id, &[1]).await;
    for (byte, call) in (1..).zip([first, second, third, fourth, fifth]) {
        assert_eq!(payload(call.await), [byte]);
    }
    drop(client);
    assert_eq!(one.hear().await, PeerMessage::Closed);
    assert_eq!(two.hear().await, PeerMessage::Closed);
}

/// Creates a client that can never connect, and a counter of its attempts.
fn unreachable(config: &ClientConfig) -> (Client, Arc<AtomicUsize>) {
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&attempts);
    let connector: Connector = Box::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async {
            Err(Error::Connect(Arc::new(
                io::ErrorKind::ConnectionRefused.into(),
            )))
        })
    });
    (Client::over(config, connector, None), attempts)
}

#[tokio::test(start_paused = true)]
async fn attempts_to_connect_back_off_and_are_shared() {
    let (client, attempts) = unreachable(&config());
    let calls: Vec<_> = (0..50).map(|byte| call(&client, byte)).collect();
    for call in calls {
        assert!(matches!(call.await.unwrap(), Err(Error::Connect(_))));
    }
    assert_eq!(
        attempts.load(Ordering::Relaxed),
        1,
        "fifty calls, one attempt"
    );
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        assert!(matches!(
            call(&client, 1).await.unwrap(),
            Err(Error::Connect(_))
        ));
    }
    // Pauses of 25-50, 50-100, .. 1,000-2,000 ms: 30 to 66 attempts per minute once the pauses are
    // long.
    let attempts = attempts.load(Ordering::Relaxed);
    assert!((30..=70).contains(&attempts), "{attempts} attempts");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_covers_the_wait_for_a_connection() {
    let config = ClientConfig {
        deadline: Duration::from_secs(3),
        ..config()
    };
    let connector: Connector = Box::new(|_| Box::pin(std::future::pending()));
    let client = Client::over(&config, connector, None);
    let started = Instant::now();
    assert!(matches!(
        call(&client, 1).await.unwrap(),
        Err(Error::Deadline)
    ));
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    // The attempt continues without the request and ends at its own timeout.
    assert!(matches!(
        call(&client, 1).await.unwrap(),
        Err(Error::Connect(_))
    ));
    assert_eq!(started.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_closes_is_not_hammered() {
    let (client, mut peers) = client(&config(), 1 << 16);
    let hang_up = tokio::spawn(async move {
        let mut count = 0;
        while let Some(peer) = peers.recv().await {
            drop(peer);
            count += 1;
        }
        count
    });
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        let failed = call(&client, 1).await.unwrap();
        assert!(
            matches!(failed, Err(Error::Disconnected { .. })),
            "{failed:?}"
        );
    }
    drop(client);
    let connections = hang_up.await.unwrap();
    assert!(
        (25..=80).contains(&connections),
        "{connections} connections in a minute"
    );
}

#[tokio::test(start_paused = true)]
async fn values_make_the_round_trip() {
    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct Card {
        number: String,
        year: u16,
    }
    let (client, mut peers) = client(&config(), 1 << 16);
    let card = Card {
        number: "4242".to_owned(),
        year: 2031,
    };
    let echo = tokio::spawn(async move {
        let mut peer = next_peer(&mut peers).await;
        for _ in 0..2 {
            let (msgid, payload) = peer.hear_call().await;
            assert_eq!(payload[0], 0x82, "a map of field names");
            peer.answer(msgid, &payload).await;
        }
        let (msgid, _) = peer.hear_call().await;
        peer.answer(msgid, &[0xc0]).await;
    });
    let document = client.encrypt_value("a", &card).await.unwrap();
    assert_eq!(document.to_value::<Card>().unwrap(), card);
    assert_eq!(
        client
            .decrypt_value::<Card>("a", &document.payload)
            .await
            .unwrap(),
        card
    );
    let other = client.decrypt_value::<Card>("a", &[0xc0]).await;
    assert!(matches!(other, Err(Error::Value(_))), "{other:?}");
    echo.await.unwrap();
}

#[test]
fn a_configuration_out_of_range_is_refused_by_name() {
    let check = |change: fn(&mut ClientConfig), expect: &str| {
        let mut config = config();
        change(&mut config);
        let refused = config.check().map_err(|error| error.to_string());
        let expect = if expect.is_empty() {
            Ok(())
        } else {
            Err(format!("configuration: {expect}"))
        };
        assert_eq!(refused, expect);
    };
    check(|_| (), "");
    check(
        |config| config.endpoints.clear(),
        "endpoints must be 1 to 128",
    );
    check(
        |config| config.endpoints = vec![Endpoint::new("peer:1", "peer"); 129],
        "endpoints must be 1 to 128",
    );
    check(
        |config| config.endpoints[0].address.clear(),
        "address must be host:port",
    );
    check(
        |config| config.connections = 0,
        "connections must be in 1..=1024",
    );
    check(
        |config| config.connections = 1_025,
        "connections must be in 1..=1024",
    );
    for age in [Duration::from_secs(9), Duration::MAX] {
        let mut config = config();
        config.connection_age_max = age;
        let refused = config.check().map_err(|error| error.to_string());
        assert_eq!(
            refused,
            Err("configuration: connection_age_max must be from 10 s to 30 days".to_owned())
        );
    }
    check(
        |config| config.in_flight_max = 0,
        "in_flight_max must be in 1..=65536",
    );
    check(
        |config| config.connect_timeout = Duration::ZERO,
        "connect_timeout must be at least 1 ms",
    );
    check(
        |config| config.deadline = Duration::from_secs(3_601),
        "deadline must be from 1 ms to 1 hour",
    );
    check(
        |config| config.backoff_min = Duration::ZERO,
        "backoff_min must be at least 1 ms",
    );
    check(
        |config| config.backoff_max = Duration::ZERO,
        "backoff_max must be at least backoff_min",
    );
    check(
        |config| config.attempts_max = 0,
        "attempts_max must be in 1..=100",
    );
    check(
        |config| config.attempts_max = 101,
        "attempts_max must be in 1..=100",
    );
    check(
        |config| config.retry_percent = 101,
        "retry_percent must be in 0..=100",
    );
    check(
        |config| config.eject_after = 0,
        "eject_after must be in 1..=1000",
    );
    check(
        |config| config.eject_after = 1_001,
        "eject_after must be in 1..=1000",
    );
    check(
        |config| config.ejection_min = Duration::ZERO,
        "ejection_min must be at least 1 ms",
    );
    check(
        |config| config.ejection_max = Duration::ZERO,
        "ejection_max must be at least ejection_min",
    );
    check(
        |config| config.request_bytes_max = 0,
        "request_bytes_max must be at least 1024",
    );
    check(
        |config| config.response_bytes_max = 0,
        "response_bytes_max must be at least 1024",
    );
}
