//! Tests of the pool against raw servers on loopback.

use super::*;

pub(crate) fn upstream(host: &str, port: u16, networks: &[&str]) -> Upstream {
    Upstream {
        name: "test".into(),
        is_tls: false,
        host: host.into(),
        port,
        base_path: "".into(),
        roots: None,
        identity: None,
        addresses: networks.iter().map(|network| network.parse().unwrap()).collect(),
        protocol: Protocol::Auto,
        connections_max: 4,
        connect_timeout: Duration::from_secs(20),
        first_byte_timeout: Duration::from_secs(20),
        body_idle_timeout: Duration::from_secs(20),
        idle_timeout: Duration::from_secs(60),
    }
}
