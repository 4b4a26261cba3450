use bytes::Bytes;
use http_body_util::Full;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// Longest response body, in bytes.
const BODY_BYTES_MAX: usize = 64 << 10;
/// No test waits for it.
const LIMIT: Duration = Duration::from_secs(600);

fn origin(address: impl ToString) -> Origin {
    let authority = address.to_string();
    Origin::new(&authority.parse().unwrap(), 80).unwrap()
}

fn post() -> Request<Full<Bytes>> {
    let request = Request::post("http://elsewhere/path?query");
    request.body(Full::new("hello".into())).unwrap()
}

/// Reads one request, and returns its text.
async fn read_request(socket: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\nhello") {
        assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0);
    }
    String::from_utf8(request).unwrap()
}

/// Sends a request to a server that sends these bytes and closes the connection. Returns status and
/// body.
async fn respond_with(response: Vec<u8>) -> Result<(u16, Zeroizing<Vec<u8>>), HttpClientError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let request = read_request(&mut socket).await;
        // The client can close the connection before it has read everything.
        let _ = socket.write_all(&response).await;
        request
    });
    let received = async {
        let mut connection =
            HttpConnection::open(&origin(address), &Transport::Loopback, LIMIT).await?;
        let response = connection.send(post()).await?;
        let status = response.status().as_u16();
        Ok((
            status,
            read_body(response.into_body(), BODY_BYTES_MAX).await?,
        ))
    };
    let received = within(LIMIT, received).await;
    let request = server.await.unwrap();
    assert!(
        request.starts_with("POST /path?query HTTP/1.1\r\n")
            && request.contains(&format!("host: {address}\r\n")),
        "{request}"
    );
    received
}

#[tokio::test]
async fn responses_are_bounded_and_complete() {
    let most = " ".repeat(BODY_BYTES_MAX);
    let chunk = format!("{:x}\r\n{most}\r\n", most.len());
    for (response, expected) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned(),
            Ok((200, 2)),
        ),
        (
            "HTTP/1.1 503 Sealed\r\ncontent-length: 2\r\n\r\nno".to_owned(),
            Ok((503, 2)),
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\nuntil the end".to_owned(),
            Ok((200, 13)),
        ),
        ("HTTP/1.1 204 No Content\r\n\r\n".to_owned(), Ok((204, 0))),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
                .to_owned(),
            Ok((200, 2)),
        ),
        (
            format!("HTTP/1.1 200 OK\r\n\r\n{most}"),
            Ok((200, BODY_BYTES_MAX)),
        ),
        (format!("HTTP/1.1 200 OK\r\n\r\n{most} "), Err("more than")),
        (
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}{chunk}"),
            Err("more than"),
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok".to_owned(),
            Err("broke"),
        ),
        ("HTTP/1.1 200 OK\r\ncontent-le".to_owned(), Err("broke")),
        (String::new(), Err("broke")),
        ("hello\r\n\r\n".to_owned(), Err("not HTTP")),
        ("HTTP/1.1 2000 OK\r\n\r\n".to_owned(), Err("not HTTP")),
        (
            format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "x".repeat(1 << 20)),
            Err(""),
        ),
    ] {
        let start = &response[..response.len().min(80)];
        match (respond_with(response.clone().into_bytes()).await, expected) {
            (Ok((status, body)), Ok(expected)) => {
                assert_eq!((status, body.len()), expected, "{start}");
            }
            (Err(error), Err(part)) => {
                assert!(error.to_string().contains(part), "{start}: {error}");
            }
            (found, _) => panic!("{start}: {:?}", found.map(|(status, _)| status)),
        }
    }
}

#[tokio::test]
async fn bodies_without_a_length_arrive_whole() {
    let text: String = (0..5_000).map(|number| format!("{number};")).collect();
    let response = format!("HTTP/1.1 200 OK\r\n\r\n{text}");
    let (_, body) = respond_with(response.into_bytes()).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&body), text);
}

#[tokio::test]
async fn idle_connections_are_used_again_unless_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = origin(listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        // Two requests over one connection, which the server closes, and one over another.
        for requests in [2, 1] {
            let (mut socket, _) = listener.accept().await.unwrap();
            for number in 1..=requests {
                read_request(&mut socket).await;
                let close = if number == 2 {
                    "connection: close\r\n"
                } else {
                    ""
                };
                let response = format!("HTTP/1.1 200 OK\r\n{close}content-length: 2\r\n\r\nok");
                socket.write_all(response.as_bytes()).await.unwrap();
            }
        }
    });
    let idle = IdleConnections::new(1, LIMIT);
    for is_kept in [false, true, false] {
        let kept = idle.take().await;
        assert_eq!(kept.is_some(), is_kept);
        let mut connection = match kept {
            Some(connection) => connection,
            None => HttpConnection::open(&origin, &Transport::Loopback, LIMIT)
                .await
                .unwrap(),
        };
        let response = connection.send(post()).await.unwrap();
        let body = read_body(response.into_body(), 2).await.unwrap();
        assert_eq!(*body, b"ok");
        idle.put(connection);
    }
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silent_servers_end_in_a_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = origin(listener.local_addr().unwrap());
    let exchange = async {
        let mut connection = HttpConnection::open(&origin, &Transport::Loopback, LIMIT).await?;
        connection.send(post()).await
    };
    let error = within(Duration::from_secs(1), exchange).await.unwrap_err();
    // A paused clock can pass the time of the connection, too.
    assert!(error.is_transient(), "{error}");
}

#[test]
fn origins_have_a_port_and_no_credential() {
    for (authority, expected) in [
        ("host", Some(("host", 80))),
        ("host:8200", Some(("host", 8200))),
        ("[::1]:8200", Some(("::1", 8200))),
        ("[::1]", Some(("::1", 80))),
        ("127.0.0.1", Some(("127.0.0.1", 80))),
        ("host:", None),
        ("host:0", None),
        ("host:70000", None),
        ("user:hunter2@host", None),
    ] {
        let parsed = Origin::new(&authority.parse().unwrap(), 80);
        let found = parsed.as_ref().map(|origin| (&*origin.host, origin.port));
        assert_eq!(found, expected, "{authority}");
    }
}

#[test]
fn connections_that_waited_for_long_are_not_used() {
    let now = Instant::now();
    let age_max = Duration::from_secs(20);
    let later = now + age_max;
    let mut idle = vec![("old", now), ("new", now + Duration::from_secs(1))];
    assert_eq!(pop_fresh(&mut idle, age_max, later), Some("new"));
    assert_eq!(pop_fresh(&mut idle, age_max, later), Some("old"));
    assert_eq!(pop_fresh(&mut idle, age_max, later), None);
    let mut idle = vec![("older", now), ("old", now)];
    let too_late = later + Duration::from_nanos(1);
    assert_eq!(pop_fresh(&mut idle, age_max, too_late), None);
    assert!(idle.is_empty());
}
