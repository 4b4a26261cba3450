//! Configuration of a client, checked before anything is opened.
//!
//! Every bound has its unit, range and default here. The private key is never printed: [`Pem`]
//! shows where it comes from.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// Begins each object in PEM text.
const PEM_HEADER: &[u8] = b"-----BEGIN";
/// Digits of a private key of 32 bytes.
const KEY_DIGITS: usize = 64;
/// Shortest private key in DER as base64: one of Ed25519 in PKCS #8.
const KEY_BASE64_MIN: usize = 64;
/// First letter of a DER sequence in base64.
const DER_SEQUENCE: u8 = b'M';
/// Longest name of a file on Linux.
const NAME_BYTES_MAX: usize = 255;

/// PEM text or the file that holds it.
#[derive(Clone)]
pub enum Pem {
    /// A file, read when the client is made and again if it has changed: before each connection,
    /// and every ten seconds while calls are made. Connections under what was there before are then
    /// replaced, each once a new one has proven itself, and end with their last call: certificates
    /// are renewed under a running client, and no call fails for it.
    File(PathBuf),
    /// The PEM text itself.
    Bytes(Vec<u8>),
}

impl Pem {
    /// Returns true if the path is the content of a file rather than its name: it has a PEM header,
    /// a line break or another control character, a part that is longer than any file system
    /// allows, or is a key in hexadecimal or base64. It can be a private key, and is not shown.
    #[must_use]
    pub fn is_content(path: &Path) -> bool {
        let bytes = path.as_os_str().as_encoded_bytes();
        let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
        let is_long = |part: &[u8]| part.len() > NAME_BYTES_MAX;
        bytes
            .windows(PEM_HEADER.len())
            .any(|part| part == PEM_HEADER)
            || bytes.iter().any(u8::is_ascii_control)
            || (bytes.len() == KEY_DIGITS && bytes.iter().all(u8::is_ascii_hexdigit))
            || (bytes.len() >= KEY_BASE64_MIN
                && bytes[0] == DER_SEQUENCE
                && bytes.iter().all(is_base64))
            || bytes.split(|byte| *byte == b'/').any(is_long)
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) if Self::is_content(path) => f.write_str("File(not a path)"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
        }
    }
}

/// One of several servers that serve the same apps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `host:port` of the server. A name is resolved for every connection. If the name has several
    /// addresses, they count as one endpoint. They are tried in the resolver's order, with
    /// alternating families: the next one when an attempt fails, has made no connection after 250
    /// ms, or no TLS handshake 1.5 s later, while the earlier attempts go on (RFC 8305).
    pub address: String,
    /// The DNS name or IP address that the server's certificate must carry.
    pub server_name: String,
}

impl Endpoint {
    /// Creates an endpoint.
    pub fn new(address: impl Into<String>, server_name: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            server_name: server_name.into(),
        }
    }
}

/// Ages at which connections can be replaced.
const AGES: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(30 * 86_400);

/// Addresses of the servers, limits, and retry behaviour. Create a configuration with
/// [`ClientConfig::new`] and change individual settings.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The servers, `1..=128`. Each must be able to serve every request. A request goes to the less
    /// busy of two randomly chosen endpoints that are connected, not ejected and not paused.
    pub endpoints: Vec<Endpoint>,
    /// The only certificate authorities that are trusted for server certificates.
    pub ca: Pem,
    /// This client's certificate chain, starting with its own certificate.
    pub certificate: Pem,
    /// This client's private key.
    pub key: Pem,
    /// Connections kept to each endpoint at most, `1..=1_024`, default 2. They are opened as calls
    /// need them: one connection carries many calls at once, more of them spread TLS work over more
    /// cores of the server.
    pub connections: usize,
    /// Age at which a connection is replaced, 10 s to 30 days, default 30 min; each is replaced up
    /// to a quarter earlier, so that many are not at once. Requests move to a new connection once
    /// it is proven to work, and the old one ends with its last request. Behind a TCP balancer, or
    /// a name with several addresses, a server that was started again gets connections within that
    /// age, while requests are sent. A server that permits no further connection keeps the old
    /// ones: leave room for one more per client.
    pub connection_age_max: Duration,
    /// Maximum number of concurrent requests per connection, `1..=65_536`, default 64. Further
    /// requests wait in FIFO order.
    pub in_flight_max: usize,
    /// Timeout for TCP and TLS handshakes together, at least 1 ms, default 5 s.
    pub connect_timeout: Duration,
    /// Deadline of requests that set none, at least 1 ms and at most one hour, default 30 s.
    pub deadline: Duration,
    /// Pause after the first failed attempt to connect to an endpoint, at least 1 ms, default 50
    /// ms. It doubles with each further failure, and the real pause is between half of it and all
    /// of it, so that many clients do not return at once.
    pub backoff_min: Duration,
    /// Maximum of that pause, at least `backoff_min`, default 2 s.
    pub backoff_max: Duration,
    /// Times that a call is tried at most, the first included, `1..=100`, default 4; 1 turns
    /// retries off. Tried again, within its deadline, is a request that was never sent, and one
    /// that was answered `overloaded`, `unavailable`, or `conflict` with a `retry_after_ms`: at
    /// once where another endpoint will have it, else after that time and up to half as much again,
    /// or where none is named after any part of a pause as under `backoff_min`. If that is beyond
    /// the deadline, the call ends with the answer it had.
    pub attempts_max: u32,
    /// If true (the default), a request is also retried if its connection ended after it was sent.
    /// Every data method is safe to repeat; it costs at most the repeated work. `tokenize` is safe
    /// by an idempotency key, which the client draws unless the request names one or this is off.
    /// Changes over the control listener are never repeated so.
    pub repeat_sent: bool,
    /// Retries for every hundred calls, `0..=100`, default 10, so that retries never multiply an
    /// overload. One a second is allowed besides. The budget is the client's, over all endpoints;
    /// what is not used is kept, up to as many retries as calls fit on one endpoint's connections,
    /// at least 10 and at most 1,000. A request that was never sent needs none.
    pub retry_percent: u32,
    /// Failures in a row that eject an endpoint, `1..=1_000`, default 5 as in Envoy. Failures are:
    /// an attempt to connect that fails, a connection that ends under its calls or at once, a call
    /// that is answered `unavailable` or `internal`, and one whose deadline passes and whose cancel
    /// draws no sign of life within a second and a half. An endpoint is also ejected that lets so
    /// many deadlines pass in a row while the others do the work of as many calls, and of four for
    /// each deadline that they miss, whatever else it answers; calls that their callers drop after
    /// a second or more, those that are dropped together as one, count as such. Of endpoints that
    /// miss deadlines alike none is ejected, and only calls that were sent after such an ejection
    /// can cause the next one. `overloaded` is none, nor is `unavailable` with a time to come
    /// again: then only its store is away, and it gets no calls on tokens while there is another.
    /// An ejected endpoint gets no calls while there is another; with all of them ejected, all are
    /// used. The only endpoint is never ejected.
    pub eject_after: u32,
    /// Length of the first ejection, at least 1 ms, default 1 s. The second in a row is twice as
    /// long, the third three times; each up to a quarter longer, so that clients do not return
    /// together. Then this client makes a `health` call of its own: passed, the endpoint gets one
    /// call at a time until it has done the work of one, and its next failure ejects it, or its
    /// next missed deadline if the others do better; failed, it is ejected again. Short, because
    /// the probe costs no caller anything.
    pub ejection_min: Duration,
    /// Longest ejection without that quarter, at least `ejection_min`, default 30 s. An endpoint
    /// that was fit for longer begins anew.
    pub ejection_max: Duration,
    /// Longest request in bytes, at least 1 KiB, default 64 MiB, which is the servers' default
    /// limit. A longer request would close the connection and so disrupt other requests.
    pub request_bytes_max: usize,
    /// Longest response in bytes, at least 1 KiB, default 256 MiB, which is the servers' default
    /// limit.
    pub reply_bytes_max: usize,
}

impl ClientConfig {
    /// Maximum number of endpoints. Every request examines each endpoint.
    pub const ENDPOINTS_MAX: usize = 128;

    /// Creates a configuration for one server with default values. Further servers can be pushed to
    /// `endpoints`.
    pub fn new(
        address: impl Into<String>,
        server_name: impl Into<String>,
        ca: Pem,
        certificate: Pem,
        key: Pem,
    ) -> Self {
        Self {
            endpoints: vec![Endpoint::new(address, server_name)],
            ca,
            certificate,
            key,
            connections: 2,
            connection_age_max: Duration::from_secs(1_800),
            in_flight_max: 64,
            connect_timeout: Duration::from_secs(5),
            deadline: Duration::from_secs(30),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            attempts_max: 4,
            repeat_sent: true,
            retry_percent: 10,
            eject_after: 5,
            ejection_min: Duration::from_secs(1),
            ejection_max: Duration::from_secs(30),
            request_bytes_max: 64 << 20,
            reply_bytes_max: 256 << 20,
        }
    }

    /// Rejects values that are out of range. The error names the setting.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let millisecond = Duration::from_millis(1);
        let hour = Duration::from_secs(3_600);
        let rules = [
            (
                (1..=Self::ENDPOINTS_MAX).contains(&self.endpoints.len()),
                "endpoints must be 1 to 128",
            ),
            (
                self.endpoints
                    .iter()
                    .all(|endpoint| !endpoint.address.is_empty()),
                "address must be host:port",
            ),
            (
                (1..=1_024).contains(&self.connections),
                "connections must be in 1..=1024",
            ),
            (
                AGES.contains(&self.connection_age_max),
                "connection_age_max must be from 10 s to 30 days",
            ),
            (
                (1..=65_536).contains(&self.in_flight_max),
                "in_flight_max must be in 1..=65536",
            ),
            (
                self.connect_timeout >= millisecond,
                "connect_timeout must be at least 1 ms",
            ),
            (
                (millisecond..=hour).contains(&self.deadline),
                "deadline must be from 1 ms to 1 hour",
            ),
            (
                self.backoff_min >= millisecond,
                "backoff_min must be at least 1 ms",
            ),
            (
                self.backoff_max >= self.backoff_min,
                "backoff_max must be at least backoff_min",
            ),
            (
                (1..=100).contains(&self.attempts_max),
                "attempts_max must be in 1..=100",
            ),
            (
                self.retry_percent <= 100,
                "retry_percent must be in 0..=100",
            ),
            (
                (1..=1_000).contains(&self.eject_after),
                "eject_after must be in 1..=1000",
            ),
            (
                self.ejection_min >= millisecond,
                "ejection_min must be at least 1 ms",
            ),
            (
                self.ejection_max >= self.ejection_min,
                "ejection_max must be at least ejection_min",
            ),
            (
                self.request_bytes_max >= 1_024,
                "request_bytes_max must be at least 1024",
            ),
            (
                self.reply_bytes_max >= 1_024,
                "reply_bytes_max must be at least 1024",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Config(Arc::from(*rule))),
            None => Ok(()),
        }
    }
}
