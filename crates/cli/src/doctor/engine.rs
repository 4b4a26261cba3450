//! Reads the state of a running engine from its health listener.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Timeout of each network operation. The engine responds from a separate thread within
/// milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Longest response that is read.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// An engine that responds.
#[derive(Clone, Debug)]
pub(super) struct RunningEngine {
    /// The text of `/ready`, and true if the engine is ready.
    pub(super) ready: (bool, String),
    /// The engine's version.
    pub(super) version: Option<String>,
    /// The engine's limit of file descriptors.
    pub(super) max_fds: Option<u64>,
}

/// Reads the state of the engine at the health address. Returns `None` if no engine listens there.
pub(super) fn find_engine(address: SocketAddr) -> Option<RunningEngine> {
    if address.port() == 0 {
        return None;
    }
    let (status, ready_text) = request_path(address, "/ready/store")?;
    let (metrics_status, metrics) = request_path(address, "/metrics")?;
    if metrics_status != 200 || !metrics.contains("sealwire_build_info") {
        return None;
    }
    let version = metrics
        .split_once("sealwire_build_info{version=\"")
        .and_then(|(_, rest)| rest.split('"').next());
    let max_fds = metrics
        .lines()
        .find_map(|line| line.strip_prefix("process_max_fds "));
    Some(RunningEngine {
        ready: (status == 200, ready_text.trim().to_owned()),
        version: version.map(str::to_owned),
        max_fds: max_fds
            .and_then(|text| text.parse::<f64>().ok())
            .map(|count| count as u64),
    })
}

/// Replaces the unspecified address, which listens on all interfaces, by loopback.
pub(super) fn loopback_if_unspecified(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn request_path(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&loopback_if_unspecified(address), TIMEOUT).ok()?;
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(TIMEOUT)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut response = String::new();
    stream
        .take(RESPONSE_BYTES_MAX)
        .read_to_string(&mut response)
        .ok()?;
    let status = response.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, response.split_once("\r\n\r\n")?.1.to_owned()))
}
