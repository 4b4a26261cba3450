//! Upstreams: the servers that requests are forwarded to.

pub mod address;
pub mod body;
mod connection;
pub mod error;
pub mod pool;
mod short_frames;
pub mod tls;

use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

pub use connection::STREAMS_MAX;

/// One upstream, as configured.
#[derive(Debug)]
pub struct Upstream {
    /// Unique name, for logs and metrics.
    pub name: Box<str>,
    /// True for `https`.
    pub is_tls: bool,
    /// Host name or IP address, without brackets.
    pub host: Box<str>,
    /// Port.
    pub port: u16,
    /// Path prefix of the upstream's URL without the final `/`; empty for the root.
    pub base_path: Box<str>,
    /// File with the certificate authorities that are trusted for it, in PEM; required with TLS.
    pub roots: Option<PathBuf>,
    /// Files with the relay's own certificate chain and key towards it, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Networks that its addresses must be in. Empty: any public address, and none that is
    /// loopback, private, link-local or otherwise special.
    pub addresses: Vec<IpNet>,
    /// HTTP versions that are offered.
    pub protocol: Protocol,
    /// Most connections at once, over HTTP/1.1; half as many are kept idle. WebSockets do not
    /// count.
    pub connections_max: usize,
    /// Most of these connections that one client uses at once.
    pub connections_per_client_max: usize,
    /// Bytes of one body that HTTP/2 holds while nobody reads them.
    pub window_bytes: u32,
    /// Time for DNS, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Time from the end of a request to the head of its response.
    pub first_byte_timeout: Duration,
    /// Time without any byte of a body after which it is broken off.
    pub body_idle_timeout: Duration,
    /// Time after which an unused connection is closed.
    pub idle_timeout: Duration,
}

/// HTTP versions towards an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The version that ALPN chooses; HTTP/1.1 without TLS.
    #[default]
    Auto,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only, also without TLS (prior knowledge).
    Http2,
}
