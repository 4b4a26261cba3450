use super::*;
use sealwire_telemetry::{Condition, Phase};
use std::io::{Read, Write};
use std::net::TcpStream as Socket;

fn start() -> (AdminServer, Arc<Telemetry>) {
    let state = Arc::new(Telemetry::default());
    let server =
        AdminServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), Arc::clone(&state)).unwrap();
    (server, state)
}

fn connect(server: &AdminServer) -> Socket {
    let socket = Socket::connect(server.address()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(300)))
        .unwrap();
    socket
}

/// Everything the server says to one request, then the end of the connection.
fn ask(server: &AdminServer, method: &str, path: &str) -> String {
    let mut socket = connect(server);
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    text
}

fn check(server: &AdminServer, method: &str, path: &str, status: u16, body: &str) {
    let text = ask(server, method, path);
    assert!(
        text.starts_with(&format!("HTTP/1.1 {status} ")),
        "{method} {path}: {text}"
    );
    assert!(
        text.ends_with(&format!("\r\n\r\n{body}")),
        "{method} {path}: {text}"
    );
}

#[test]
fn every_path_and_method_has_its_answer() {
    let (server, state) = start();
    check(&server, "GET", "/live", 200, "live\n");
    check(&server, "HEAD", "/live", 200, "");
    check(&server, "GET", "/live?verbose", 200, "live\n");
    check(&server, "GET", "/ready", 503, "starting\n");
    state.readiness.enter(Phase::Ready);
    check(&server, "GET", "/ready", 200, "ready\n");
    check(&server, "GET", "/ready/store", 200, "ready\n");
    state.readiness.set(Condition::Store, false);
    check(&server, "GET", "/ready", 200, "ready, but failing: store\n");
    check(&server, "GET", "/ready/store", 503, "failing: store\n");
    check(&server, "HEAD", "/ready", 200, "");
    check(&server, "HEAD", "/ready/store", 503, "");
    state.readiness.set(Condition::Permissions, false);
    check(
        &server,
        "GET",
        "/ready",
        503,
        "failing: store, permissions\n",
    );
    check(
        &server,
        "GET",
        "/ready/store",
        503,
        "failing: store, permissions\n",
    );
    check(&server, "GET", "/live", 200, "live\n");
    state.readiness.enter(Phase::Draining);
    check(&server, "GET", "/ready", 503, "draining\n");
    check(
        &server,
        "GET",
        "/",
        404,
        "try /live, /ready, /ready/store or /metrics\n",
    );
    check(
        &server,
        "POST",
        "/",
        404,
        "try /live, /ready, /ready/store or /metrics\n",
    );
    check(
        &server,
        "GET",
        "/live/",
        404,
        "try /live, /ready, /ready/store or /metrics\n",
    );
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "BREW"] {
        check(&server, method, "/live", 405, "only GET and HEAD\n");
    }
    assert!(ask(&server, "POST", "/ready").contains("allow: GET, HEAD\r\n"));
    server.shutdown();
}

#[test]
fn metrics_come_as_openmetrics() {
    let (server, state) = start();
    state.metrics.connections.set(7);
    let text = ask(&server, "GET", "/metrics");
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    assert!(
        text.contains(&format!("content-type: {}\r\n", metrics::CONTENT_TYPE)),
        "{text}"
    );
    assert!(
        text.contains("\nsealwire_connections_open 7\n") && text.ends_with("# EOF\n"),
        "{text}"
    );
}

#[test]
fn a_connection_carries_many_requests() {
    let (server, _) = start();
    let mut socket = connect(&server);
    for _ in 0..100 {
        socket
            .write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut text = [0; 512];
        let mut have = 0;
        while !text[..have].ends_with(b"live\n") {
            let read = socket.read(&mut text[have..]).unwrap();
            assert_ne!(read, 0, "closed");
            have += read;
        }
    }
}

#[test]
fn what_is_not_http_is_closed() {
    let (server, _) = start();
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"NONSENSE\r\n\r\n",
        long.as_bytes(),
    ] {
        let mut socket = connect(&server);
        // The server may close before it has read all of it.
        let _ = socket.write_all(bytes);
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    check(&server, "GET", "/live", 200, "live\n");
}

#[test]
fn idle_and_stalled_connections_keep_nobody_out() {
    let (server, _) = start();
    let idle: Vec<Socket> = (0..100).map(|_| connect(&server)).collect();
    check(&server, "GET", "/live", 200, "live\n");
    // Half a request each, and one more probe while they stall.
    let stalled: Vec<Socket> = (0..100)
        .map(|_| {
            let mut socket = connect(&server);
            socket.write_all(b"GET /live HTTP/1.1\r\nHo").unwrap();
            socket
        })
        .collect();
    check(&server, "GET", "/live", 200, "live\n");
    drop((idle, stalled));
}

#[test]
fn a_busy_connection_outlives_a_pile_of_idle_ones() {
    let (server, _) = start();
    let mut busy = connect(&server);
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(connect(&server));
        busy.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut text = [0; 512];
        assert_ne!(
            busy.read(&mut text).unwrap(),
            0,
            "closed while it was the busiest"
        );
    }
}

#[test]
fn a_slow_writer_is_cut_off() {
    let (server, _) = start();
    let mut socket = connect(&server);
    // A byte now and then never completes a header; the time for the whole header counts, not the
    // time between bytes. All that is sent in this time is much less than a header may hold.
    for bytes in 0.. {
        assert!(bytes < BUFFER_BYTES_MAX / 2, "still open");
        let sent = socket.write_all(b"G");
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let gone = match socket.read(&mut [0; 512]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ),
        };
        if gone || sent.is_err() {
            break;
        }
        check(&server, "GET", "/live", 200, "live\n");
    }
}

#[test]
fn it_answers_while_every_core_is_busy() {
    let (server, _) = start();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cores = thread::available_parallelism().map_or(2, usize::from);
    let busy: Vec<_> = (0..cores * 2)
        .map(|_| {
            let done = Arc::clone(&done);
            thread::spawn(move || while !done.load(Ordering::Relaxed) {})
        })
        .collect();
    for _ in 0..20 {
        check(&server, "GET", "/live", 200, "live\n");
    }
    done.store(true, Ordering::Relaxed);
    for thread in busy {
        thread.join().unwrap();
    }
}

#[test]
fn a_taken_address_is_said() {
    let (server, state) = start();
    let error = AdminServer::start(server.address(), state).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("admin.address: cannot listen on 127.0.0.1:"),
        "{error}"
    );
}

#[test]
fn shutdown_frees_the_address_and_closes_what_is_open() {
    let (server, _) = start();
    let address = server.address();
    let mut socket = connect(&server);
    check(&server, "GET", "/live", 200, "live\n");
    server.shutdown();
    assert!(matches!(socket.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert!(Socket::connect(address).is_err());
}
