//! What a client needs to know, checked before anything is opened.
//!
//! Every bound has its unit, range and default here. The private key is never printed: [`Pem`] shows where it comes from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// PEM text, or where to find it.
#[derive(Clone)]
pub enum Pem {
    /// A file, read when the client is made and again before a connection if it has changed, so certificates can be
    /// renewed under a running client.
    File(PathBuf),
    /// The text itself.
    Bytes(Vec<u8>),
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Bytes(bytes) => write!(f, "Bytes({} bytes)", bytes.len()),
        }
    }
}

/// How to reach a server and how hard to lean on it. Make one with [`ClientConfig::new`] and set what differs.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// `host:port` of the server. A name is resolved for every connection.
    pub address: String,
    /// The DNS name or IP address that the server's certificate must carry.
    pub server_name: String,
    /// The certificates that a server's certificate must chain to, and no others.
    pub ca: Pem,
    /// This client's certificate chain, its own first.
    pub certificate: Pem,
    /// This client's private key.
    pub key: Pem,
    /// Connections kept at most, `1..=1_024`, default 2. They are opened as calls need them: one connection carries
    /// many calls at once, more of them spread TLS work over more cores of the server.
    pub connections: usize,
    /// Calls at once on one connection, `1..=65_536`, default 64. More wait here, in order.
    pub in_flight_max: usize,
    /// Time for TCP and TLS together, at least 1 ms, default 5 s.
    pub connect_timeout: Duration,
    /// Deadline of a call that sets none, at least 1 ms and at most one hour, default 30 s.
    pub deadline: Duration,
    /// Pause after the first failed attempt to connect, default 50 ms. It doubles with each further failure, and the
    /// real pause is between half of it and all of it, so that many clients do not return at once.
    pub backoff_min: Duration,
    /// Longest such pause, default 2 s.
    pub backoff_max: Duration,
    /// Longest request in bytes, at least 1 KiB, default 64 MiB, which is what servers accept by default. A longer
    /// one would cost the connection and so the calls of others.
    pub request_bytes_max: usize,
    /// Longest answer in bytes, at least 1 KiB, default 256 MiB, which is what servers send by default.
    pub reply_bytes_max: usize,
}

impl ClientConfig {
    /// The defaults, with what has none.
    pub fn new(
        address: impl Into<String>,
        server_name: impl Into<String>,
        ca: Pem,
        certificate: Pem,
        key: Pem,
    ) -> Self {
        Self {
            address: address.into(),
            server_name: server_name.into(),
            ca,
            certificate,
            key,
            connections: 2,
            in_flight_max: 64,
            connect_timeout: Duration::from_secs(5),
            deadline: Duration::from_secs(30),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            request_bytes_max: 64 << 20,
            reply_bytes_max: 256 << 20,
        }
    }

    /// Refuses what is out of range, by its name.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let millisecond = Duration::from_millis(1);
        let hour = Duration::from_secs(3_600);
        let rules = [
            (!self.address.is_empty(), "address must be host:port"),
            ((1..=1_024).contains(&self.connections), "connections must be in 1..=1024"),
            ((1..=65_536).contains(&self.in_flight_max), "in_flight_max must be in 1..=65536"),
            (self.connect_timeout >= millisecond, "connect_timeout must be at least 1 ms"),
            ((millisecond..=hour).contains(&self.deadline), "deadline must be from 1 ms to 1 hour"),
            (self.backoff_min >= millisecond, "backoff_min must be at least 1 ms"),
            (self.backoff_max >= self.backoff_min, "backoff_max must be at least backoff_min"),
            (self.request_bytes_max >= 1_024, "request_bytes_max must be at least 1024"),
            (self.reply_bytes_max >= 1_024, "reply_bytes_max must be at least 1024"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::Config(Arc::from(*rule))),
            None => Ok(()),
        }
    }
}
