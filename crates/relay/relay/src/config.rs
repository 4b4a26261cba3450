//! Configuration: one TOML file with environment overrides, checked completely before a port is
//! bound.
//!
//! [`parse`] checks a text against the table of keys and returns a [`Config`] with defaults.
//! [`compile`] checks the rules between keys and builds listeners, upstreams and routes. Each
//! reports all its errors together, with line and key. No error repeats a value, because a secret
//! can be pasted into the wrong key.

mod compiler;
mod engine;
mod keys;
mod oracle;
mod route_config;
mod routes;
mod template;
mod text;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sealwire_service::settings::Lines;
use sealwire_service::spans::Endpoint;
use serde::Deserialize;

pub use compiler::{Compiled, CompiledListener, compile};
pub use route_config::{
    ActionKind, ContainersKind, ContextConfig, FailKind, RouteConfig, RuleConfig, UnneededKind,
    UnparsedKind,
};
pub use template::{markdown, template};
pub use text::{FILE_VARIABLE, load, parse};

/// The whole configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The engine.
    pub engine: EngineConfig,
    /// Limits of the process.
    pub limits: Limits,
    /// Settings of probes and metrics.
    pub admin: AdminConfig,
    /// Settings of the log.
    pub log: LogConfig,
    /// Settings of spans.
    pub traces: TracesConfig,
    /// Listeners by name.
    #[serde(default)]
    pub listen: BTreeMap<String, ListenConfig>,
    /// Upstreams by name.
    #[serde(default)]
    pub upstream: BTreeMap<String, UpstreamConfig>,
    /// Routes.
    #[serde(default)]
    pub route: Vec<RouteConfig>,
    /// Line numbers of the file, for errors of [`compile`].
    #[serde(skip)]
    lines: Lines,
}

/// Addresses and certificates for the engine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// `host:port` of each engine.
    pub endpoints: Vec<String>,
    /// Name in the engines' certificates; the host of each endpoint if empty.
    pub server_name: String,
    /// PEM file of the authority of the engines' certificates.
    pub ca: PathBuf,
    /// PEM file of the relay's certificate chain.
    pub certificate: PathBuf,
    /// PEM file of the relay's private key.
    pub key: PathBuf,
    /// Longest time of one request to the engine, in milliseconds.
    pub deadline_ms: u32,
    /// Connections to each engine.
    pub connections: usize,
    /// Age at which a connection is replaced, in seconds.
    pub connection_age_max_s: u32,
    /// Concurrent requests on one connection.
    pub in_flight_max: usize,
}

/// Limits of the process. Every number is per process unless its name says otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Connections of clients.
    pub connections_max: u32,
    /// Concurrent exchanges.
    pub requests_max: u32,
    /// Concurrent exchanges of one client; see [`Limits::requests_per_client_max`].
    pub requests_per_client_max: Option<u32>,
    /// Length of the prefix of an IPv6 address that identifies a client, in bits.
    pub client_ipv6_bits: u8,
    /// Memory for bodies that are held or streamed, in bytes.
    pub memory_bytes: usize,
    /// Part of this memory for one client; see [`Limits::client_memory_bytes`].
    pub client_memory_bytes: Option<usize>,
    /// Part of this memory for one connection; see [`Limits::connection_memory_bytes`].
    pub connection_memory_bytes: Option<usize>,
    /// Longest body that is held, in bytes, unless the route sets another limit.
    pub body_bytes: usize,
    /// Longest body that is held after decompression, in bytes.
    pub decoded_bytes: usize,
    /// Most memory for each direction of a streamed body, in bytes.
    pub stream_window_bytes: usize,
    /// Bytes of one body that HTTP/2 buffers while no task reads them.
    pub http2_window_bytes: u32,
    /// Longest selected value, in bytes.
    pub value_bytes: usize,
    /// Longest line of JSON lines, or longest event of an event stream, that is held where
    /// malformed ones pass, in bytes.
    pub record_bytes: usize,
    /// Longest head of a request over HTTP/2, in bytes.
    pub header_bytes: u32,
    /// Concurrent requests on one connection over HTTP/2.
    pub streams_per_connection: u32,
    /// Time for the head of a request and for a TLS handshake, in milliseconds.
    pub header_timeout_ms: u64,
    /// Time without a byte of a body, or without progress of a write, in milliseconds.
    pub body_idle_timeout_ms: u64,
    /// Time without a request after which a connection is closed, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Time without a message after which a WebSocket is closed, in milliseconds.
    pub websocket_idle_timeout_ms: u64,
    /// Time for one external-processing stream, in milliseconds.
    pub ext_proc_stream_ms: u64,
    /// Time for exchanges to end at a shutdown, in milliseconds.
    pub drain_ms: u64,
}

impl Limits {
    /// Returns the most concurrent exchanges of one client. The default is three quarters of all.
    pub fn requests_per_client_max(&self) -> usize {
        self.requests_per_client_max.map_or_else(
            || three_quarters(self.requests_max as usize),
            |max| max as usize,
        )
    }

    /// Returns the memory for one client in bytes. The default is half of all.
    pub fn client_memory_bytes(&self) -> usize {
        self.client_memory_bytes.unwrap_or(self.memory_bytes / 2)
    }

    /// Returns the memory for one connection in bytes. The default is a quarter of all.
    pub fn connection_memory_bytes(&self) -> usize {
        self.connection_memory_bytes
            .unwrap_or(self.memory_bytes / 4)
    }

    /// Returns the longest time without a byte of a body.
    pub const fn body_idle(&self) -> Duration {
        Duration::from_millis(self.body_idle_timeout_ms)
    }

    /// Returns the longest time for the head of a request or a TLS handshake.
    pub const fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.header_timeout_ms)
    }

    /// Returns the longest time without a request.
    pub const fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms)
    }

    /// Returns the longest time without a WebSocket message.
    pub const fn websocket_idle(&self) -> Duration {
        Duration::from_millis(self.websocket_idle_timeout_ms)
    }

    /// Returns the longest time of an external-processing stream.
    pub const fn ext_proc_stream(&self) -> Duration {
        Duration::from_millis(self.ext_proc_stream_ms)
    }

    /// Returns the longest time of a drain.
    pub const fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }
}

/// Returns three quarters of a limit: the share of one client, which leaves a quarter for others.
const fn three_quarters(of: usize) -> usize {
    let rest = of / 4;
    of - rest
}

/// Settings of the admin listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminConfig {
    /// Address that serves `/live`, `/ready` and `/metrics`.
    pub address: SocketAddr,
}

/// Settings of the log.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Format of the lines.
    pub format: LogFormat,
    /// Least important level that is written.
    pub level: LogLevel,
    /// If true, each request writes one line.
    pub access: bool,
}

/// Settings of the spans of exchanges.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracesConfig {
    /// URL of the collector. Empty for no spans.
    pub endpoint: String,
    /// Fraction of requests without a trace context that are kept.
    pub sample_ratio: f64,
    /// Most spans per second.
    pub spans_per_s_max: u32,
    /// Most spans that wait for the exporter.
    pub queue_spans: usize,
    /// Most spans per request to the collector.
    pub batch_spans: usize,
    /// Longest wait of a span for its batch, in milliseconds.
    pub batch_ms: u64,
    /// Longest time to send a batch and, at shutdown, to send all remaining spans, in milliseconds.
    pub timeout_ms: u64,
}

impl TracesConfig {
    /// Returns the settings of the exporter.
    pub fn settings(&self) -> sealwire_service::spans::Settings {
        sealwire_service::spans::Settings {
            endpoint: Endpoint::parse(&self.endpoint),
            sample_ppm: (self.sample_ratio * 1e6).round() as u32,
            spans_per_s_max: self.spans_per_s_max,
            queue_spans: self.queue_spans,
            batch_spans: self.batch_spans,
            batch: Duration::from_millis(self.batch_ms),
            timeout: Duration::from_millis(self.timeout_ms),
        }
    }
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Level of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Only errors.
    Error,
    /// Errors and warnings.
    Warn,
    /// Errors, warnings and changes of state.
    Info,
    /// All of these and details.
    Debug,
}

/// A listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenConfig {
    /// Address.
    pub address: SocketAddr,
    /// Kind of the listener: reverse proxy, CONNECT proxy or external processor.
    pub kind: ListenKind,
    /// PEM file of the certificate chain towards clients. Without it, the listener is plaintext.
    pub certificate: Option<PathBuf>,
    /// PEM file of the private key.
    pub key: Option<PathBuf>,
    /// Allows plaintext on an address that is not loopback.
    pub plaintext: bool,
    /// Authentication of clients.
    pub clients: ClientsKind,
    /// PEM file of client authorities, for `clients = "mtls"`.
    pub client_ca: Option<PathBuf>,
    /// Names of permitted clients, for `clients = "mtls"`. Empty for all clients of the authority.
    pub principals: Vec<String>,
    /// File with one token per line, for `clients = "bearer"`.
    pub tokens: Option<PathBuf>,
    /// If true, `Forwarded` and `X-Forwarded-*` headers of clients are kept.
    pub trust_forwarded: bool,
    /// PEM file of the interception authority, for `kind = "forward"`.
    pub authority_certificate: Option<PathBuf>,
    /// PEM file of the authority's private key.
    pub authority_key: Option<PathBuf>,
    /// `host:port` of tunnels that pass untouched, for `kind = "forward"`.
    pub tunnel: Vec<String>,
    /// Networks that the addresses of such tunnels must be in. Empty for public addresses only.
    pub tunnel_addresses: Vec<ipnet::IpNet>,
    /// Handling of hosts that neither a route nor `tunnel` names, for `kind = "forward"`.
    pub unlisted: Unlisted,
    /// Protocols in tunnels that pass untouched, for `kind = "forward"`.
    pub tunnel_protocols: TunnelProtocols,
}

/// Kind of a listener.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ListenKind {
    /// Reverse proxy.
    Reverse,
    /// CONNECT proxy.
    Forward,
    /// Envoy's external-processing service.
    #[serde(rename = "ext_proc")]
    ExtProc,
}

/// Authentication of clients.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ClientsKind {
    /// By certificate. This is the default, so an open listener must be configured explicitly.
    Mtls,
    /// By a token in `Authorization`, or in `Proxy-Authorization` of a CONNECT proxy.
    Bearer,
    /// No authentication.
    Open,
}

/// Handling of hosts that neither a route nor `tunnel` of a CONNECT proxy names.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Unlisted {
    /// The request gets 403.
    Deny,
    /// The bytes pass untouched.
    Tunnel,
}

/// Protocols in tunnels that pass untouched.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TunnelProtocols {
    /// Only TLS for the tunnel's host.
    Tls,
    /// TLS for the tunnel's host, and every protocol that does not start like TLS.
    Any,
}

/// An upstream.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamConfig {
    /// `https://host[:port][/prefix]` or `http://...`.
    pub url: String,
    /// PEM file of the authorities that are trusted for the upstream. Required with https.
    pub roots: Option<PathBuf>,
    /// PEM file of the relay's certificate chain towards the upstream.
    pub certificate: Option<PathBuf>,
    /// PEM file of the private key.
    pub key: Option<PathBuf>,
    /// Networks that the addresses of the upstream must be in. Empty for public addresses only.
    #[serde(default)]
    pub addresses: Vec<ipnet::IpNet>,
    /// HTTP versions towards the upstream.
    pub protocol: ProtocolConfig,
    /// Concurrent connections over HTTP/1.1.
    pub connections_max: usize,
    /// Part of these connections for one client; see
    /// [`UpstreamConfig::connections_per_client_max`].
    pub connections_per_client_max: Option<usize>,
    /// Concurrent WebSockets of all routes.
    pub websockets_max: usize,
    /// Time for DNS, TCP and TLS together, in milliseconds.
    pub connect_timeout_ms: u64,
    /// Time from the end of the request to the head of the response, in milliseconds.
    pub first_byte_timeout_ms: u64,
    /// Time without a byte of a body, in milliseconds.
    pub body_idle_timeout_ms: u64,
    /// Time after which an unused connection is closed, in milliseconds.
    pub idle_timeout_ms: u64,
}

impl UpstreamConfig {
    /// Returns the most concurrent HTTP/1.1 connections of one client. The default is three
    /// quarters of all.
    pub fn connections_per_client_max(&self) -> usize {
        self.connections_per_client_max
            .unwrap_or_else(|| three_quarters(self.connections_max))
    }
}

/// HTTP versions towards an upstream.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolConfig {
    /// The version that ALPN selects. HTTP/1.1 without TLS.
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, also without TLS.
    Http2,
}
