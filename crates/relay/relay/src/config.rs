//! Configuration: one TOML file with environment overrides, complete and checked before a port is
//! bound.
//!
//! [`parse`] checks a text by the table of keys and gives a [`Config`], with defaults. [`compile`]
//! checks the rules between keys and turns it into listeners, upstreams and routes. Each lists all
//! errors at once, with line and key. No error repeats a value, because a secret can be pasted into
//! the wrong key.

mod compiler;
mod document;
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

use sealwire_service::spans::Endpoint;
use serde::Deserialize;

pub use compiler::{Compiled, CompiledListener, compile};
pub use route_config::{
    ActionKind, ContainersKind, ContextConfig, FailKind, RouteConfig, RuleConfig, UnneededKind,
    UnparsedKind,
};
pub use template::{markdown, template};
pub use text::{ConfigError, ConfigErrors, FILE_VARIABLE, load, parse};

/// The whole configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The engine.
    pub engine: EngineConfig,
    /// Limits of the process.
    #[serde(default)]
    pub limits: Limits,
    /// Probes and metrics.
    #[serde(default)]
    pub admin: AdminConfig,
    /// Log.
    #[serde(default)]
    pub log: LogConfig,
    /// Spans.
    #[serde(default)]
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
    /// Lines of the file, for errors of [`compile`].
    #[serde(skip)]
    lines: document::Lines,
}

/// Addresses and certificates for the engine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// `host:port` of each engine.
    pub endpoints: Vec<String>,
    /// Name in the engines' certificates; the host of each endpoint if empty.
    #[serde(default)]
    pub server_name: String,
    /// Authority of the engines' certificates, PEM.
    pub ca: PathBuf,
    /// The relay's certificate chain, PEM.
    pub certificate: PathBuf,
    /// The relay's private key, PEM.
    pub key: PathBuf,
    /// Longest time of one call in milliseconds.
    #[serde(default = "defaults::deadline_ms")]
    pub deadline_ms: u32,
    /// Connections to each engine.
    #[serde(default = "defaults::connections")]
    pub connections: usize,
    /// Age at which a connection is replaced, in seconds.
    #[serde(default = "defaults::connection_age_max_s")]
    pub connection_age_max_s: u32,
    /// Calls at once on one connection.
    #[serde(default = "defaults::in_flight_max")]
    pub in_flight_max: usize,
}

mod defaults {
    pub(super) const fn deadline_ms() -> u32 {
        2_000
    }
    pub(super) const fn connections() -> usize {
        2
    }
    pub(super) const fn connection_age_max_s() -> u32 {
        1_800
    }
    pub(super) const fn in_flight_max() -> usize {
        256
    }
    pub(super) const fn yes() -> bool {
        true
    }
}

/// Limits of the process. Every number is per process unless its name says otherwise.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections of clients.
    pub connections_max: u32,
    /// Exchanges at once.
    pub requests_max: u32,
    /// Exchanges at once of one client; see [`Limits::requests_per_client_max`].
    pub requests_per_client_max: Option<u32>,
    /// First bits of an IPv6 address that are one client.
    pub client_ipv6_bits: u8,
    /// Bytes of bodies that are held or streamed at once.
    pub memory_bytes: usize,
    /// Of them those of one client; see [`Limits::client_memory_bytes`].
    pub client_memory_bytes: Option<usize>,
    /// Of them those of one connection; see [`Limits::connection_memory_bytes`].
    pub connection_memory_bytes: Option<usize>,
    /// Longest body that is held, in bytes, unless its route says otherwise.
    pub body_bytes: usize,
    /// Longest body that is held after it was decompressed, in bytes.
    pub decoded_bytes: usize,
    /// Most memory for each direction of a body that streams, in bytes.
    pub stream_window_bytes: usize,
    /// Bytes of one body that HTTP/2 holds while nobody reads them.
    pub http2_window_bytes: u32,
    /// Longest selected value, in bytes.
    pub value_bytes: usize,
    /// Longest line of JSON lines or event of an event stream that is held because malformed ones
    /// pass, in bytes.
    pub record_bytes: usize,
    /// Longest head of a request over HTTP/2, in bytes.
    pub header_bytes: u32,
    /// Requests at once on one connection over HTTP/2.
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

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 12_000,
            requests_max: 4_096,
            requests_per_client_max: None,
            client_ipv6_bits: 56,
            memory_bytes: 1 << 30,
            client_memory_bytes: None,
            connection_memory_bytes: None,
            body_bytes: 1 << 20,
            decoded_bytes: 10 << 20,
            stream_window_bytes: 2 << 20,
            http2_window_bytes: 128 << 10,
            value_bytes: 1 << 20,
            record_bytes: 1 << 20,
            header_bytes: 32 << 10,
            streams_per_connection: 100,
            header_timeout_ms: 10_000,
            body_idle_timeout_ms: 15_000,
            idle_timeout_ms: 60_000,
            websocket_idle_timeout_ms: 300_000,
            ext_proc_stream_ms: 3_600_000,
            drain_ms: 25_000,
        }
    }
}

impl Limits {
    /// Exchanges at once of one client: three quarters of all, unless set.
    pub fn requests_per_client_max(&self) -> usize {
        self.requests_per_client_max.map_or_else(
            || three_quarters(self.requests_max as usize),
            |max| max as usize,
        )
    }

    /// Memory of one client in bytes: half of all, unless set.
    pub fn client_memory_bytes(&self) -> usize {
        self.client_memory_bytes.unwrap_or(self.memory_bytes / 2)
    }

    /// Memory of one connection in bytes: a quarter of all, unless set.
    pub fn connection_memory_bytes(&self) -> usize {
        self.connection_memory_bytes
            .unwrap_or(self.memory_bytes / 4)
    }

    /// Time without a byte of a body.
    pub const fn body_idle(&self) -> Duration {
        Duration::from_millis(self.body_idle_timeout_ms)
    }

    /// Time for a head or a handshake.
    pub const fn header_timeout(&self) -> Duration {
        Duration::from_millis(self.header_timeout_ms)
    }

    /// Time without a request.
    pub const fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms)
    }

    /// Time without a WebSocket message.
    pub const fn websocket_idle(&self) -> Duration {
        Duration::from_millis(self.websocket_idle_timeout_ms)
    }

    /// Time for one external-processing stream.
    pub const fn ext_proc_stream(&self) -> Duration {
        Duration::from_millis(self.ext_proc_stream_ms)
    }

    /// Time for a drain.
    pub const fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }
}

/// The share of a client in a number, which leaves some for others.
const fn three_quarters(of: usize) -> usize {
    let rest = of / 4;
    of - rest
}

/// Probes and metrics.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// Address of `/live`, `/ready` and `/metrics`.
    pub address: SocketAddr,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8_444)),
        }
    }
}

/// Log.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Form of the lines.
    pub format: LogFormat,
    /// Least important level.
    pub level: LogLevel,
    /// One line per request.
    pub access: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: LogLevel::Info,
            access: true,
        }
    }
}

/// Spans of exchanges.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracesConfig {
    /// URL of the collector; empty for no spans.
    pub endpoint: String,
    /// Fraction of requests without a trace context that are kept.
    pub sample_ratio: f64,
    /// Most spans made in a second.
    pub spans_per_s_max: u32,
    /// Most spans that wait to be sent.
    pub queue_spans: usize,
    /// Most spans sent together.
    pub batch_spans: usize,
    /// Longest wait of a span for its batch, in milliseconds.
    pub batch_ms: u64,
    /// Time for a batch and, at the end, for all spans that are left, in milliseconds.
    pub timeout_ms: u64,
}

impl Default for TracesConfig {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            sample_ratio: 0.0,
            spans_per_s_max: 100,
            queue_spans: 2_048,
            batch_spans: 512,
            batch_ms: 1_000,
            timeout_ms: 2_000,
        }
    }
}

impl TracesConfig {
    /// The settings of the exporter.
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

/// Form of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Level of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Errors alone.
    Error,
    /// And warnings.
    Warn,
    /// And changes of state.
    Info,
    /// And details.
    Debug,
}

/// A listener.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListenConfig {
    /// Address.
    pub address: SocketAddr,
    /// Reverse proxy, CONNECT proxy or external processor.
    #[serde(default)]
    pub kind: ListenKind,
    /// Certificate chain towards clients, PEM. Without it the listener speaks plaintext.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// Allows plaintext on an address that is not loopback.
    #[serde(default)]
    pub plaintext: bool,
    /// Authentication of clients.
    #[serde(default)]
    pub clients: ClientsKind,
    /// Authority of clients' certificates, PEM, with `clients = "mtls"`.
    pub client_ca: Option<PathBuf>,
    /// Names of clients that are let in, with `clients = "mtls"`; all of the authority if empty.
    #[serde(default)]
    pub principals: Vec<String>,
    /// File with one token per line, with `clients = "bearer"`.
    pub tokens: Option<PathBuf>,
    /// Keeps `Forwarded` and `X-Forwarded-*` of clients.
    #[serde(default)]
    pub trust_forwarded: bool,
    /// Authority for interception, PEM; `kind = "forward"`.
    pub authority_certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub authority_key: Option<PathBuf>,
    /// `host:port` whose tunnels pass untouched; `kind = "forward"`.
    #[serde(default)]
    pub tunnel: Vec<String>,
    /// Networks of the addresses of tunnels that pass untouched; public addresses alone if empty.
    #[serde(default)]
    pub tunnel_addresses: Vec<ipnet::IpNet>,
    /// Handling of hosts that neither a route nor `tunnel` names; `kind = "forward"`.
    #[serde(default)]
    pub unlisted: Unlisted,
    /// Protocols in tunnels that pass untouched; `kind = "forward"`.
    #[serde(default)]
    pub tunnel_protocols: TunnelProtocols,
}

/// Kind of a listener.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ListenKind {
    /// Reverse proxy.
    #[default]
    Reverse,
    /// CONNECT proxy.
    Forward,
    /// Envoy's external-processing service.
    #[serde(rename = "ext_proc")]
    ExtProc,
}

/// Authentication of clients.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ClientsKind {
    /// By certificate. The default, so that an open listener is said to be one.
    #[default]
    Mtls,
    /// By a token in `Authorization`, or in `Proxy-Authorization` of a CONNECT proxy.
    Bearer,
    /// None.
    Open,
}

/// Handling of hosts that a CONNECT proxy does not know.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Unlisted {
    /// 403.
    #[default]
    Deny,
    /// The bytes pass untouched.
    Tunnel,
}

/// Protocols in tunnels that pass untouched.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum TunnelProtocols {
    /// TLS for the tunnel's host.
    #[default]
    Tls,
    /// That, and everything that does not begin as TLS does.
    Any,
}

/// An upstream.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamConfig {
    /// `https://host[:port][/prefix]` or `http://...`.
    pub url: String,
    /// Authorities that are trusted for it, PEM. Needed with https.
    pub roots: Option<PathBuf>,
    /// The relay's certificate chain towards it, PEM.
    pub certificate: Option<PathBuf>,
    /// Its private key, PEM.
    pub key: Option<PathBuf>,
    /// Networks of its addresses; public addresses alone if empty.
    #[serde(default)]
    pub addresses: Vec<ipnet::IpNet>,
    /// HTTP versions.
    #[serde(default)]
    pub protocol: ProtocolConfig,
    /// Connections at once over HTTP/1.1.
    #[serde(default = "UpstreamConfig::connections_max")]
    pub connections_max: usize,
    /// Of them those of one client; see [`UpstreamConfig::connections_per_client_max`].
    pub connections_per_client_max: Option<usize>,
    /// WebSockets at once, over all routes.
    #[serde(default = "UpstreamConfig::websockets_max")]
    pub websockets_max: usize,
    /// Time for DNS, TCP and TLS, in milliseconds.
    #[serde(default = "UpstreamConfig::connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// Time from the end of the request to the head of the response, in milliseconds.
    #[serde(default = "UpstreamConfig::first_byte_timeout_ms")]
    pub first_byte_timeout_ms: u64,
    /// Time without a byte of a body, in milliseconds.
    #[serde(default = "UpstreamConfig::body_idle_timeout_ms")]
    pub body_idle_timeout_ms: u64,
    /// Time after which an unused connection is closed, in milliseconds.
    #[serde(default = "UpstreamConfig::idle_timeout_ms")]
    pub idle_timeout_ms: u64,
}

impl UpstreamConfig {
    /// Connections at once of one client over HTTP/1.1: three quarters of all, unless set.
    pub fn connections_per_client_max(&self) -> usize {
        self.connections_per_client_max
            .unwrap_or_else(|| three_quarters(self.connections_max))
    }
    const fn connections_max() -> usize {
        256
    }
    const fn websockets_max() -> usize {
        4_096
    }
    const fn connect_timeout_ms() -> u64 {
        5_000
    }
    const fn first_byte_timeout_ms() -> u64 {
        30_000
    }
    const fn body_idle_timeout_ms() -> u64 {
        15_000
    }
    const fn idle_timeout_ms() -> u64 {
        30_000
    }
}

/// HTTP versions towards an upstream.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ProtocolConfig {
    /// ALPN decides; HTTP/1.1 without TLS.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, also without TLS.
    Http2,
}
