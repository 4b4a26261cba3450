use std::io::{Read, Write};
use std::net::TcpStream as Socket;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

struct Routes;

impl AdminRoutes for Routes {
    const PATHS: &'static [&'static str] = &["/live", "/ready", "/metrics"];

    fn get(&self, path: &str) -> AdminResponse {
        match path {
            "/live" => AdminResponse::Ok("live\n".to_owned()),
            "/metrics" => AdminResponse::Metrics("# EOF\n".to_owned()),
            _ => AdminResponse::Unavailable("starting\n".to_owned()),
        }
    }
}

fn start() -> AdminServer {
    AdminServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), "admin", Routes).unwrap()
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
fn paths_and_methods_have_their_responses() {
    let server = start();
    let unknown = "try /live, /ready or /metrics\n";
    for (method, path, status, body) in [
        ("GET", "/live", 200, "live\n"),
        ("HEAD", "/live", 200, ""),
        ("GET", "/live?verbose", 200, "live\n"),
        ("GET", "/ready", 503, "starting\n"),
        ("HEAD", "/ready", 503, ""),
        ("GET", "/metrics", 200, "# EOF\n"),
        ("GET", "/metrics?x", 200, "# EOF\n"),
        ("GET", "/", 404, unknown),
        ("POST", "/", 404, unknown),
        ("GET", "/live/", 404, unknown),
        ("GET", "/ready/store", 404, unknown),
        ("GET", "/env.json", 404, unknown),
        ("POST", "/live", 405, "only GET and HEAD\n"),
        ("PUT", "/live", 405, "only GET and HEAD\n"),
        ("DELETE", "/metrics", 405, "only GET and HEAD\n"),
        ("OPTIONS", "/live", 405, "only GET and HEAD\n"),
        ("BREW", "/ready", 405, "only GET and HEAD\n"),
    ] {
        check(&server, method, path, status, body);
    }
    for (method, path, header) in [
        ("POST", "/ready", "allow: GET, HEAD".to_owned()),
        ("GET", "/live", "cache-control: no-store".to_owned()),
        ("GET", "/live", format!("content-type: {TEXT_TYPE}")),
        ("GET", "/metrics", format!("content-type: {METRICS_TYPE}")),
    ] {
        let text = ask(&server, method, path);
        assert!(text.contains(&format!("{header}\r\n")), "{path}: {text}");
    }
}

#[test]
fn unknown_paths_are_told_the_known_ones() {
    for (paths, expected) in [
        (&[][..], ""),
        (&["/a"], "/a"),
        (&["/a", "/b"], "/a or /b"),
        (&["/a", "/b", "/c"], "/a, /b or /c"),
    ] {
        assert_eq!(listed(paths), expected);
    }
}

#[test]
fn a_connection_carries_many_requests() {
    let server = start();
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
fn connections_without_http_are_closed() {
    let server = start();
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
    let server = start();
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
    let server = start();
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
    let server = start();
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
fn admin_server_responds_while_all_cores_are_busy() {
    let server = start();
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
fn taken_addresses_are_an_error() {
    let server = start();
    let error = AdminServer::start(server.address(), "admin", Routes).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn dropping_frees_the_address_and_closes_what_is_open() {
    let server = start();
    let address = server.address();
    let mut socket = connect(&server);
    check(&server, "GET", "/live", 200, "live\n");
    drop(server);
    assert!(matches!(socket.read(&mut [0; 1]), Ok(0) | Err(_)));
    assert!(Socket::connect(address).is_err());
}

/// Serves one end of a pipe of `bytes` bytes. Returns the other end.
fn serve_pipe(bytes: usize) -> (tokio::io::DuplexStream, tokio::task::JoinHandle<()>) {
    let (client, stream) = tokio::io::duplex(bytes);
    let last = Arc::default();
    let connection = converse(stream, Arc::new(Routes), Instant::now(), last);
    (client, tokio::spawn(connection))
}

const REQUEST: &[u8] = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n";

/// The clock is paused, so no time passes while something can run.
#[tokio::test(start_paused = true)]
async fn connection_whose_response_is_not_read_is_cut() {
    let (mut client, serving) = serve_pipe(16);
    client.write_all(REQUEST).await.unwrap();
    timeout(2 * CUT_AGE, serving)
        .await
        .expect("the connection ends")
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn old_connection_is_told_to_close_before_it_closes() {
    let (mut client, serving) = serve_pipe(4_096);
    let mut responses = Vec::new();
    while opened_for(&responses) < AGE_MAX {
        client.write_all(REQUEST).await.unwrap();
        responses.push(read_response(&mut client).await);
        tokio::time::sleep(REQUEST_INTERVAL).await;
    }
    assert!(
        responses
            .iter()
            .all(|text| !text.contains("connection: close"))
    );

    client.write_all(REQUEST).await.unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    assert!(
        text.contains("connection: close") && text.ends_with("live\n"),
        "{text}"
    );
    serving.await.unwrap();
}

const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

fn opened_for(responses: &[String]) -> Duration {
    REQUEST_INTERVAL * u32::try_from(responses.len()).unwrap()
}

async fn read_response(client: &mut tokio::io::DuplexStream) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"live\n") {
        bytes.push(client.read_u8().await.unwrap());
    }
    String::from_utf8(bytes).unwrap()
}
