//! Tests against a server with scripted responses: retries, rejected requests, and stores without
//! support for conditions.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::mask_job::stop::JobStop;

mod upload;

const KEY_ID: &str = "AKIAHUNTER2KEYID";
const SECRET: &str = "hunter2-secret";
const TOKEN: &str = "hunter2-token";

/// A request: method, path with query, and the header `If-None-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    request: String,
    is_conditional: bool,
}

/// A server whose responses come from a function.
struct Script {
    url: String,
    shared: Arc<ScriptState>,
}

struct ScriptState {
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    /// The marker of the last upload that was started.
    marker: Mutex<String>,
    first: Box<RespondFn>,
    later: Box<RespondFn>,
}

/// Creates a response from the request's method and path, and the number of earlier requests. An
/// empty response closes the connection, [`HANG`] keeps the client waiting, and [`MARKER`] stands
/// for the marker of the upload.
type Respond = fn(&str, usize) -> Vec<u8>;
type RespondFn = dyn Fn(&str, usize) -> Vec<u8> + Send + Sync;

/// A placeholder instead of a response: the server waits until the client closes the connection.
const HANG: &[u8] = b"hang";
/// A placeholder with the length of a marker.
const MARKER: &str = "MARKERMARKERMARKERMARKERMARKERMA";

impl Script {
    fn start(respond: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + Copy + 'static) -> Self {
        Self::start_with(respond, respond)
    }

    /// Starts a server whose first response comes from another function.
    fn start_with(
        later: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static,
        first: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let shared = Arc::new(ScriptState {
            seen: Mutex::default(),
            connections: AtomicUsize::default(),
            marker: Mutex::default(),
            first: Box::new(first),
            later: Box::new(later),
        });
        let script = Self {
            url,
            shared: Arc::clone(&shared),
        };
        // The thread ends with the process.
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let shared = Arc::clone(&shared);
                thread::spawn(move || serve(socket, &shared));
            }
        });
        script
    }

    fn object(&self) -> S3Object {
        self.object_named("s3://lake/in.parquet", RequestTimeouts::DEFAULT)
    }

    /// Returns an object with a short timeout of all requests except completions. Four retries
    /// allow for a slow machine.
    fn impatient(&self) -> S3Object {
        let response = Duration::from_secs(2);
        let timeouts = RequestTimeouts {
            response,
            rate_min: u64::MAX,
            ..RequestTimeouts::DEFAULT
        };
        self.object_named("s3://lake/in.parquet", timeouts)
    }

    fn object_named(&self, name: &str, timeouts: RequestTimeouts) -> S3Object {
        let settings = S3Settings {
            endpoint: Some(self.url.clone()),
            access_key_id: Some(KEY_ID.into()),
            secret_access_key: Some(SECRET.into()),
            session_token: Some(TOKEN.into()),
            ..S3Settings::default()
        };
        S3Store::with_timeouts(settings, timeouts)
            .and_then(|store| store.object(name))
            .expect("an object")
    }

    fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("a lock").clone()
    }
}

fn serve(socket: TcpStream, script: &ScriptState) -> io::Result<()> {
    let mut reader = BufReader::new(socket);
    loop {
        let mut head = Vec::new();
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line == "\r\n" {
                break;
            }
            let line = line.trim_end().to_owned();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = value.parse().expect("a length");
            }
            if let Some(marker) = line.strip_prefix("x-amz-meta-sealwire-upload: ") {
                assert_eq!(marker.len(), MARKER.len());
                *script.marker.lock().expect("a lock") = marker.to_owned();
            }
            head.push(line);
        }
        io::copy(&mut reader.by_ref().take(length), &mut io::sink())?;
        let mut words = head[0].split(' ');
        let request = format!(
            "{} {}",
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default()
        );
        let is_conditional = head
            .iter()
            .any(|line| line.eq_ignore_ascii_case("if-none-match: *"));
        let number = {
            let mut seen = script.seen.lock().expect("a lock");
            seen.push(Seen {
                request: request.clone(),
                is_conditional,
            });
            seen.len() - 1
        };
        let mut response = if number == 0 {
            (script.first)(&request, number)
        } else {
            (script.later)(&request, number)
        };
        if let Some(at) = response
            .windows(MARKER.len())
            .position(|bytes| bytes == MARKER.as_bytes())
        {
            let marker = script.marker.lock().expect("a lock");
            response[at..at + MARKER.len()].copy_from_slice(marker.as_bytes());
        }
        if response.is_empty() {
            return Ok(());
        }
        if response == HANG {
            return io::copy(&mut reader, &mut io::sink()).map(drop);
        }
        reader.get_mut().write_all(&response)?;
    }
}

fn response(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A part of an object of 20 bytes.
fn part(etag: &str, range: &str, body: &str) -> Vec<u8> {
    let headers = format!(
        "ETag: {etag}\r\nContent-Range: bytes {range}/20\r\nLast-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n"
    );
    response("206 Partial Content", &headers, body)
}

fn refusal(status: &str, code: &str) -> Vec<u8> {
    // A hostile server that tries to get secrets into a log.
    let text =
        format!("<Error><Code>{code}</Code><Message>{SECRET} {TOKEN} {KEY_ID}</Message></Error>");
    response(status, "", &text)
}

const WHOLE: &str = "01234567890123456789";

fn whole(_: &str, _: usize) -> Vec<u8> {
    part("\"one\"", "0-19", WHOLE)
}

#[track_caller]
fn check_secrets(error: &JobError) -> String {
    let text = format!("{error} {error:?}");
    assert!(
        !text.contains("hunter2") && !text.contains(KEY_ID),
        "{text}"
    );
    error.to_string()
}

#[test]
fn an_object_is_opened_by_its_end() {
    let script = Script::start(whole);
    let reader = S3Reader::open(&script.object(), &JobStop::default()).expect("opens");
    assert_eq!(
        (reader.len(), &reader.read_exact(3, 4).expect("reads")[..]),
        (20, &b"3456"[..])
    );
    let mut buffer = [0; 8];
    assert_eq!(reader.read_at(&mut buffer, 15).expect("reads"), 5);
    assert_eq!(&buffer[..5], b"56789");
    assert_eq!(reader.read_at(&mut buffer, 20).expect("reads"), 0);
    // The first response contained all of these bytes.
    assert_eq!(script.seen().len(), 1);
}

#[test]
fn a_request_is_repeated_a_bounded_number_of_times() {
    let fails_twice: Respond = |_, number| match number {
        0 => refusal("503 Slow Down", "SlowDown"),
        // The server closes the connection.
        1 => Vec::new(),
        _ => whole("", number),
    };
    let script = Script::start(fails_twice);
    S3Reader::open(&script.object(), &JobStop::default()).expect("opens");
    assert_eq!(script.seen().len(), 3);

    let script = Script::start(|_, _| refusal("500 Internal Server Error", "InternalError"));
    let error =
        check_secrets(&S3Reader::open(&script.object(), &JobStop::default()).expect_err("fails"));
    assert!(
        error.contains("try again later (status 500, InternalError)"),
        "{error}"
    );
    assert_eq!(script.seen().len(), RETRIES_MAX + 1);
}

#[test]
fn refusals_say_what_to_do() {
    let cases: &[(Respond, &str)] = &[
        (
            |_, _| refusal("403 Forbidden", "AccessDenied"),
            "access denied: the credentials need s3:GetObject",
        ),
        (
            |_, _| refusal("403 Forbidden", "hunter2-secret"),
            "access denied: the credentials need s3:GetObject",
        ),
        (
            |_, _| refusal("403 Forbidden", "InvalidAccessKeyId"),
            "does not know the access key: see AWS_ACCESS_KEY_ID",
        ),
        (
            |_, _| refusal("403 Forbidden", "SignatureDoesNotMatch"),
            "see AWS_SECRET_ACCESS_KEY",
        ),
        (
            |_, _| refusal("403 Forbidden", "RequestTimeTooSkewed"),
            "this machine's clock is wrong",
        ),
        (
            |_, _| refusal("400 Bad Request", "ExpiredToken"),
            "the credentials are expired",
        ),
        (
            |_, _| refusal("400 Bad Request", "InvalidToken"),
            "see AWS_SESSION_TOKEN",
        ),
        (
            |_, _| refusal("400 Bad Request", "AuthorizationHeaderMalformed"),
            "set AWS_REGION",
        ),
        (
            |_, _| response("301 Moved Permanently", "", ""),
            "set AWS_REGION",
        ),
        (
            |_, _| refusal("404 Not Found", "NoSuchBucket"),
            "the bucket does not exist",
        ),
        (
            |_, _| refusal("404 Not Found", "NoSuchKey"),
            "the object does not exist",
        ),
        (
            |_, _| response("404 Not Found", "", ""),
            "the object or the bucket does not exist",
        ),
        (
            |_, _| refusal("416 Range Not Satisfiable", "InvalidRange"),
            "it is empty",
        ),
        (
            |_, _| refusal("418 Teapot", "Teapot"),
            "an unexpected response of the object store (status 418)",
        ),
        (
            |_, _| b"hello\r\n\r\n".to_vec(),
            "is not HTTP: see AWS_ENDPOINT_URL",
        ),
        (
            |_, _| response("200 OK", "ETag: \"one\"\r\n", WHOLE),
            "does not conform to the S3 protocol",
        ),
        (
            |_, _| part("\"one\"", "0-19", &WHOLE.repeat(1 << 19)),
            "is longer than requested",
        ),
        (
            |_, _| {
                response(
                    "206 Partial Content",
                    "Content-Range: bytes 0-19/20\r\n",
                    WHOLE,
                )
            },
            "states no ETag",
        ),
    ];
    for (respond, expected) in cases {
        let script = Script::start(*respond);
        let error = check_secrets(
            &S3Reader::open(&script.object(), &JobStop::default()).expect_err(expected),
        );
        assert!(
            error.starts_with("s3://lake/in.parquet: ") && error.contains(expected),
            "{expected}: {error}"
        );
        assert_eq!(script.seen().len(), 1, "{expected}");
    }
}

/// A part of an object of 600,000 bytes.
fn large_part(etag: &str, start: usize, length: usize) -> Vec<u8> {
    let range = format!(
        "Content-Range: bytes {start}-{}/600000\r\n",
        start + length - 1
    );
    let headers =
        format!("ETag: {etag}\r\n{range}Last-Modified: Wed, 21 Oct 2026 07:28:00 GMT\r\n");
    response("206 Partial Content", &headers, &"x".repeat(length))
}

#[test]
fn a_store_that_ignores_conditions_cannot_mix_versions() {
    const LENGTH: usize = 256 << 10;
    let cases: &[(Respond, Result<usize, &str>)] = &[
        (|_, _| large_part("\"one\"", 0, LENGTH), Ok(LENGTH)),
        (
            |_, _| large_part("\"two\"", 0, LENGTH),
            Err("the object changed while it was read"),
        ),
        (
            |_, _| refusal("412 Precondition Failed", "PreconditionFailed"),
            Err("the object changed while it was read"),
        ),
        (
            |_, _| large_part("\"one\"", 1, LENGTH),
            Err("does not conform to the S3 protocol"),
        ),
        (
            |_, _| large_part("\"one\"", 0, LENGTH - 1),
            Err("does not conform to the S3 protocol"),
        ),
    ];
    for (later, expected) in cases {
        let script = Script::start_with(*later, |_, _| {
            large_part("\"one\"", 600_000 - LENGTH, LENGTH)
        });
        let reader = S3Reader::open(&script.object(), &JobStop::default()).expect("opens");
        match (reader.read_exact(0, LENGTH), expected) {
            (Ok(bytes), Ok(length)) => assert_eq!(bytes.len(), *length),
            (Err(error), Err(expected)) => {
                assert!(check_secrets(&error).contains(expected), "{error}")
            }
            (read, _) => panic!("{expected:?}: {:?}", read.map(|bytes| bytes.len())),
        }
        assert_eq!(script.seen().len(), 2);
    }
}

#[test]
fn a_request_is_repeated_after_a_time_out() {
    let script = Script::start(|_, number| {
        if number == 0 {
            HANG.to_vec()
        } else {
            whole("", number)
        }
    });
    S3Reader::open(&script.impatient(), &JobStop::default()).expect("opens");
    assert!(script.seen().len() > 1);
}

#[test]
fn settings_are_complete_and_never_shown() {
    let all = |name: &str| {
        let value = match name {
            "AWS_ENDPOINT_URL" => "http://127.0.0.1:9",
            "AWS_ACCESS_KEY_ID" => KEY_ID,
            "AWS_SECRET_ACCESS_KEY" => SECRET,
            "AWS_SESSION_TOKEN" => TOKEN,
            _ => return None,
        };
        Some(value.to_owned())
    };
    S3Store::new(S3Settings::from_variables(all)).expect("complete");
    let text = format!("{:?}", S3Settings::from_variables(all));
    assert!(
        !text.contains("hunter2") && !text.contains(KEY_ID),
        "{text}"
    );
    for (name, value, expected) in [
        (
            "AWS_ACCESS_KEY_ID",
            "",
            "no credentials for the object store: set AWS_ACCESS_KEY_ID",
        ),
        (
            "AWS_SECRET_ACCESS_KEY",
            "",
            "no credentials for the object store: set AWS_SECRET_ACCESS_KEY",
        ),
        (
            "AWS_SECRET_ACCESS_KEY",
            "hunter2\nx",
            "holds blanks or other characters",
        ),
        (
            "AWS_ENDPOINT_URL",
            "",
            "set AWS_REGION, or AWS_ENDPOINT_URL",
        ),
        ("AWS_ENDPOINT_URL", "https://127.0.0.1:9", "--s3-ca"),
        (
            "AWS_ENDPOINT_URL",
            "http://minio.example:9000",
            "--s3-plain",
        ),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1.example", "--s3-plain"),
        (
            "AWS_ENDPOINT_URL",
            "http://user:hunter2@127.0.0.1",
            "must not hold credentials",
        ),
        (
            "AWS_ENDPOINT_URL",
            "http://127.0.0.1/hunter2",
            "without more",
        ),
        (
            "AWS_ENDPOINT_URL",
            "http://127.0.0.1/#hunter2",
            "without more",
        ),
        (
            "AWS_ENDPOINT_URL",
            "http://127.0.0.1:99999",
            "must have a port from 1 to 65535",
        ),
        (
            "AWS_ENDPOINT_URL",
            "ftp://127.0.0.1",
            "must begin with https://",
        ),
        (
            "AWS_ENDPOINT_URL",
            "127.0.0.1:9",
            "must begin with https://",
        ),
        ("AWS_REGION", "eu central", "the name of a region"),
    ] {
        let variable = |wanted: &str| {
            if wanted == name {
                Some(value.to_owned())
            } else {
                all(wanted)
            }
        };
        let error = S3Store::new(S3Settings::from_variables(variable)).expect_err(value);
        let text = check_secrets(&error);
        assert!(text.contains(expected), "{value}: {text}");
    }
    let settings = S3Settings {
        endpoint: Some("http://minio.example:9000".into()),
        plain: true,
        ..S3Settings::from_variables(all)
    };
    S3Store::new(settings).expect("permitted");
}

#[test]
fn names_of_objects_are_taken_as_they_are() {
    let script = Script::start(whole);
    let store = script.object().store;
    for name in [
        "s3://lake/a.parquet",
        "s3://lake/a b/ü%20?x#y.parquet",
        "s3://my-lake.example/a/b/c",
    ] {
        assert_eq!(store.object(name).expect(name).to_string(), name);
    }
    for name in [
        "lake/a",
        "s3:/lake/a",
        "s3://lake",
        "s3://lake/",
        "s3:///a",
        "s3://la/a",
        "s3://lake//a",
        "s3://lake/a//b",
        "s3://lake/a/",
        "s3://lake/../a",
        "s3://lake/./a",
        "s3://la@ke/a",
        "s3://lake:9/a",
        "s3://lake/a\nb",
    ] {
        assert!(
            matches!(store.object(name), Err(JobError::Plan(_))),
            "{name}"
        );
    }
    for (length, is_valid) in [(1_024, true), (1_025, false)] {
        assert_eq!(
            store
                .object(&format!("s3://lake/{}", "k".repeat(length)))
                .is_ok(),
            is_valid,
            "{length}"
        );
    }
}

#[test]
fn a_stopped_job_does_not_wait_for_a_read() {
    let stop = JobStop::default();
    let asked = stop.clone();
    let hangs = move |_: &str, _: usize| {
        asked.request();
        HANG.to_vec()
    };
    let script = Script::start_with(whole, hangs);
    let error = S3Reader::open(&script.object(), &stop).expect_err("stopped");
    assert!(matches!(error, JobError::Stopped), "{error}");
}
