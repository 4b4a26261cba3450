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

/// An upstream, as configured.
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
    /// PEM file of the certificate authorities that are trusted for the upstream. Required with
    /// TLS.
    pub roots: Option<PathBuf>,
    /// PEM files of the relay's own certificate chain and key towards the upstream.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Networks that the addresses of the upstream must be in. Empty: any public address, but no
    /// loopback, private, link-local or otherwise special address.
    pub addresses: Vec<IpNet>,
    /// HTTP versions that are offered.
    pub protocol: Protocol,
    /// Most concurrent connections over HTTP/1.1, without WebSockets. At most half as many are kept
    /// idle.
    pub connections_max: usize,
    /// Most of these connections that one client can use concurrently.
    pub connections_per_client_max: usize,
    /// Bytes of one body that HTTP/2 buffers while no task reads them.
    pub window_bytes: u32,
    /// Time for DNS, TCP and TLS together.
    pub connect_timeout: Duration,
    /// Time from the end of a request to the head of its response.
    pub first_byte_timeout: Duration,
    /// Longest time without a byte of a body, after which the body fails.
    pub body_idle_timeout: Duration,
    /// Time after which an unused connection is closed.
    pub idle_timeout: Duration,
}

/// HTTP versions towards an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The version that ALPN selects. HTTP/1.1 without TLS.
    #[default]
    Auto,
    /// HTTP/1.1 only.
    Http1,
    /// HTTP/2 only, also without TLS (prior knowledge).
    Http2,
}
