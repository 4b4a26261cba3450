//! Configuration of a client, checked before anything is opened.
//!
//! Every bound has its unit, range and default here. The private key is never printed: [`Pem`]
//! shows its source only.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// Prefix of each object in PEM text.
const PEM_HEADER: &[u8] = b"-----BEGIN";
/// Number of hexadecimal digits of a private key of 32 bytes.
const KEY_DIGITS: usize = 64;
/// Shortest private key in DER as base64: an Ed25519 key in PKCS #8.
const KEY_BASE64_MIN: usize = 64;
/// First letter of a DER sequence in base64.
const DER_SEQUENCE: u8 = b'M';
/// Longest name of a file on Linux.
const NAME_BYTES_MAX: usize = 255;

/// PEM text or the file that holds it.
///
/// ```
/// use sealwire_client::Pem;
///
/// let key = Pem::File("/etc/shop/sealwire/shop.key".into());
/// assert_eq!(format!("{key:?}"), "File(/etc/shop/sealwire/shop.key)");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Pem {
    /// A file, read when the client is created, and again if it has changed: before each
    /// connection, and every ten seconds while requests are made. Connections with the earlier
    /// content are then replaced, each after a new connection is proven to work, and end with their
    /// last request. So certificates can be renewed under a running client without a failed
    /// request.
    File(PathBuf),
    /// The PEM text itself.
    Bytes(Vec<u8>),
}

impl Pem {
    /// Returns true if the path is the content of a file rather than its name. Content in PEM has a
    /// header. Other content has a control character such as a line break, has a part longer than
    /// any file system allows, or is a key in hexadecimal or base64. Such a path can be a private
    /// key, and is not shown.
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

/// A server. All endpoints of a client serve the same apps.
///
/// ```
/// use sealwire_client::Endpoint;
///
/// let endpoint = Endpoint::new("10.0.0.7:31101", "engine-1.acme.example");
/// assert_eq!(endpoint.server_name, "engine-1.acme.example");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpoint {
    /// `host:port` of the server. A name is resolved for every connection. If the name has several
    /// addresses, they count as one endpoint. The client tries them in the resolver's order, with
    /// alternating families. It tries the next address if an attempt fails, has no connection after
    /// 250 ms, or has no TLS handshake 1.5 s later. The earlier attempts continue meanwhile (RFC
    /// 8305).
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

/// Permitted values of the age at which connections are replaced.
const AGES: RangeInclusive<Duration> = Duration::from_secs(10)..=Duration::from_secs(30 * 86_400);

/// Addresses of the servers, limits, and retry behaviour. Create a configuration with
/// [`ClientConfig::new`] and change individual settings.
///
/// ```
/// use std::time::Duration;
/// use sealwire_client::{ClientConfig, Pem};
///
/// let file = |name: &str| Pem::File(format!("/etc/shop/sealwire/{name}").into());
/// let (ca, certificate, key) = (file("ca.pem"), file("shop.pem"), file("shop.key"));
/// let mut config =
///     ClientConfig::new("10.0.0.7:31101", "engine-1.acme.example", ca, certificate, key);
/// config.deadline = Duration::from_secs(5);
/// config.connections = 4;
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "workspace"), non_exhaustive)]
pub struct ClientConfig {
    /// The servers. Each must be able to serve every request. A request goes to the less busy of two
    /// randomly chosen endpoints that are connected, not ejected and not paused.
    ///
    /// Length: 1 to 128.
    pub endpoints: Vec<Endpoint>,
    /// The only certificate authorities that are trusted for server certificates.
    pub ca: Pem,
    /// This client's certificate chain, starting with its own certificate.
    pub certificate: Pem,
    /// This client's private key.
    pub key: Pem,
    /// Maximum number of connections to each endpoint. Connections are opened on demand. One
    /// connection carries many concurrent requests; more connections spread TLS work over more
    /// cores of the server.
    ///
    /// Range: 1 to 1,024.
    /// Default: 2.
    pub connections: usize,
    /// Age at which a connection is replaced. Each connection is replaced up to a quarter earlier,
    /// so that replacements spread over time. Requests move to a new connection once it is proven
    /// to work, and the old one closes after its last request. Behind a TCP balancer, or a name with
    /// several addresses, a restarted server gets connections within that age, while requests are
    /// sent. If a server permits no further connection, the client keeps the old ones: leave room
    /// for one more per client.
    ///
    /// Range: 10 s to 30 days.
    /// Default: 30 min.
    pub connection_age_max: Duration,
    /// Maximum number of concurrent requests per connection. Further requests wait in FIFO order.
    ///
    /// Range: 1 to 65,536.
    /// Default: 64.
    pub in_flight_max: usize,
    /// Timeout for TCP and TLS handshakes together.
    ///
    /// Range: at least 1 ms.
    /// Default: 5 s.
    pub connect_timeout: Duration,
    /// Deadline of requests that set none.
    ///
    /// Range: 1 ms to 1 h.
    /// Default: 30 s.
    pub deadline: Duration,
    /// Pause after the first failed attempt to connect to an endpoint. The pause doubles with each
    /// further failure. The actual pause is a random time between half of it and all of it, so that
    /// many clients do not return at once.
    ///
    /// Range: at least 1 ms.
    /// Default: 50 ms.
    pub backoff_min: Duration,
    /// Maximum of that pause.
    ///
    /// Range: at least `backoff_min`.
    /// Default: 2 s.
    pub backoff_max: Duration,
    /// Maximum number of attempts of a request, including the first; 1 turns retries off. Within its
    /// deadline, a request is retried if it was never sent, or if the response was `overloaded`,
    /// `unavailable`, or `conflict` with a `retry_after_ms`. If another endpoint can take the
    /// request, the retry is immediate. Otherwise the client waits for the named time plus up to
    /// half of it. If the server named no time, the client waits for a random part of a pause as
    /// under `backoff_min`. If the wait would exceed the deadline, the request ends with the error
    /// that it had.
    ///
    /// Range: 1 to 100.
    /// Default: 4.
    pub attempts_max: u32,
    /// If true, a request is also retried if its connection ended after it was sent. A retry is made
    /// only if the request is safe to repeat, and costs at most the repeated work. `tokenize` is
    /// safe by an idempotency key, which the client draws unless the request names one or this
    /// setting is off. Changes over the control listener are never retried in this way.
    ///
    /// Default: true.
    pub repeat_sent: bool,
    /// Number of retries per hundred requests, so that retries never multiply an overload. One
    /// further retry per second is allowed. The whole client has one budget, over all endpoints.
    /// Unused retries are kept, up to the number of requests that fit on one endpoint's
    /// connections, at least 10 and at most 1,000. A retry of a request that was never sent needs
    /// no budget.
    ///
    /// Range: 0 to 100.
    /// Default: 10.
    pub retry_percent: u32,
    /// Number of consecutive failures that eject an endpoint. The following events are failures:
    ///
    /// * a failed attempt to connect;
    /// * a connection that ends with requests in flight, or soon after it was opened;
    /// * a response of `unavailable` or `internal`;
    /// * a missed deadline whose cancel draws no sign of life within 1.5 s.
    ///
    /// `overloaded` is not a failure. `unavailable` with a retry time is not a failure either: only
    /// the endpoint's store is down, and token requests prefer other endpoints.
    ///
    /// Deadlines missed in a row also eject an endpoint, if their number reaches this setting and
    /// the other endpoints do better. The others must meanwhile do the work of as many requests,
    /// and of four for each deadline that they miss. Other responses of the endpoint do not matter.
    /// A request that its caller drops after a second or more counts as a missed deadline; requests
    /// that are dropped together count as one. If all endpoints miss deadlines alike, none is
    /// ejected. After such an ejection, only requests that were sent later can cause the next one.
    ///
    /// An ejected endpoint gets no requests while another endpoint is available. If all endpoints
    /// are ejected, all are used. The only endpoint of a client is never ejected.
    ///
    /// Range: 1 to 1,000.
    /// Default: 5, as in Envoy.
    pub eject_after: u32,
    /// Length of the first ejection. The second consecutive ejection is twice as long, the third
    /// three times. Each is up to a quarter longer, so that clients do not return together. After
    /// an ejection, the client sends a `health` request. If it fails, the endpoint is ejected again.
    /// If it succeeds, the endpoint gets one request at a time until it has done the work of one.
    /// Until then its next failure ejects it, and so does a missed deadline if the others do better.
    /// The default is short, because the probe delays no request.
    ///
    /// Range: at least 1 ms.
    /// Default: 1 s.
    pub ejection_min: Duration,
    /// Longest ejection without that quarter. After a longer healthy time, ejections start again at
    /// `ejection_min`.
    ///
    /// Range: at least `ejection_min`.
    /// Default: 30 s.
    pub ejection_max: Duration,
    /// Longest request in bytes. A longer request would close the connection and so disrupt other
    /// requests.
    ///
    /// Range: at least 1 KiB.
    /// Default: 64 MiB, which is the servers' default limit.
    pub request_bytes_max: usize,
    /// Longest response in bytes.
    ///
    /// Range: at least 1 KiB.
    /// Default: 256 MiB, which is the servers' default limit.
    pub response_bytes_max: usize,
}

impl ClientConfig {
    /// Maximum number of endpoints, because every request examines each endpoint.
    pub const ENDPOINTS_MAX: usize = 128;

    /// Creates a configuration for one server with default values. Further servers can be pushed to
    /// `endpoints`. `address` and `server_name` are those of an [`Endpoint`].
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
            response_bytes_max: 256 << 20,
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
                self.response_bytes_max >= 1_024,
                "response_bytes_max must be at least 1024",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Config(Arc::from(*rule))),
            None => Ok(()),
        }
    }
}
