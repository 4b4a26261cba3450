//! Resolves an upstream's name, checks the addresses against policy, and dials a checked address.
//!
//! Resolving and dialling are one step: the address that was checked is the one that is connected to, so a name that
//! changes its address between the two (DNS rebinding) gains nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use tokio::net::{TcpStream, lookup_host};

use super::Upstream;
use super::error::{Stage, UpstreamError};

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// IPv4 networks without public hosts (IANA's registry of special purposes), as address and prefix length.
const V4_SPECIAL: [([u8; 4], u32); 15] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Networks within 2000::/3 without public hosts, or that carry an IPv4 address: Teredo and other protocol assignments,
/// documentation, 6to4. Everything outside 2000::/3 is special too: loopback, mapped, NAT64, ULA, link-local, multicast.
const V6_SPECIAL: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Returns true if an upstream may have this address: it is in one of `networks`, or these are empty and it is public.
pub fn is_allowed(address: IpAddr, networks: &[IpNet]) -> bool {
    if networks.is_empty() { is_public(address) } else { networks.iter().any(|network| network.contains(&address)) }
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            let is_in =
                |(network, length): &([u8; 4], u32)| (bits ^ Ipv4Addr::from(*network).to_bits()) >> (32 - length) == 0;
            !V4_SPECIAL.iter().any(is_in)
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let is_in = |(network, length): &(Ipv6Addr, u32)| (bits ^ network.to_bits()) >> (128 - length) == 0;
            bits >> 125 == 0b001 && !V6_SPECIAL.iter().any(is_in)
        }
    }
}

/// Resolves a host once. Dropping the future is safe.
///
/// # Errors
///
/// [`Stage::Resolve`] without addresses, [`Stage::Denied`] if any address is not allowed: a name with public and private
/// addresses is either misconfigured or an attack.
pub async fn resolve(host: &str, port: u16, networks: &[IpNet]) -> Result<Vec<SocketAddr>, UpstreamError> {
    let found = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => lookup_host((host, port))
            .await
            .map_err(|error| UpstreamError::unsent(Stage::Resolve).because(error))?
            .collect(),
    };
    if found.is_empty() {
        return Err(UpstreamError::unsent(Stage::Resolve));
    }
    if !found.iter().all(|address| is_allowed(address.ip(), networks)) {
        return Err(UpstreamError::unsent(Stage::Denied));
    }
    Ok(found)
}

/// Resolves, checks and connects. Addresses are tried in order; each has an equal share of the rest of the connect
/// timeout, so that one silent address does not use it up. The caller bounds the whole by that timeout.
pub async fn dial(upstream: &Upstream) -> Result<TcpStream, UpstreamError> {
    dial_host(&upstream.host, upstream.port, &upstream.addresses, upstream.connect_timeout).await
}

/// As [`dial`], for a host that is no upstream. Without `networks`, its addresses must be public.
pub async fn dial_host(
    host: &str,
    port: u16,
    networks: &[IpNet],
    connect_timeout: Duration,
) -> Result<TcpStream, UpstreamError> {
    let end = tokio::time::Instant::now() + connect_timeout;
    let addresses = resolve(host, port, networks).await?;
    let tried = addresses.len().min(ADDRESSES_MAX);
    let mut last = UpstreamError::unsent(Stage::Connect);
    for (index, address) in addresses.into_iter().take(tried).enumerate() {
        let rest = end.saturating_duration_since(tokio::time::Instant::now());
        match tokio::time::timeout(rest / (tried - index) as u32, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are written whole; Nagle's algorithm would delay the last segment.
                stream.set_nodelay(true).map_err(|error| UpstreamError::unsent(Stage::Connect).because(error))?;
                return Ok(stream);
            }
            Ok(Err(error)) => last = UpstreamError::unsent(Stage::Connect).because(error),
            Err(_) => last = UpstreamError::unsent(Stage::ConnectTimeout),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        let special = "0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 100.127.255.255 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1
            172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9
            224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
            :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 64:ff9b::808:808 64:ff9b:1::1 100::1 2001::1 2001:db8::1
            2001:10::1 2002:7f00:1:: 3fff::1 5f00::1 fc00::1 fd12::1 fe80::1 fec0::1 ff02::1";
        for address in special.split_whitespace() {
            assert!(!is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
        let public = "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 172.15.255.255
            172.32.0.0 191.255.255.255 198.17.255.255 198.20.0.0 223.255.255.255 2001:200::1 2001:4860:4860::8888
            2003::1 2606:4700::1111 3ffe::1";
        for address in public.split_whitespace() {
            assert!(is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
    }

    #[test]
    fn networks_replace_the_policy() {
        let networks: Vec<IpNet> = ["10.2.0.0/16", "fd00::/8"].iter().map(|text| text.parse().unwrap()).collect();
        let cases = [
            ("10.2.3.4", true),
            ("fd00::1", true),
            ("10.3.0.1", false),
            ("8.8.8.8", false),
            ("::ffff:10.2.3.4", false),
        ];
        for (address, expected) in cases {
            assert_eq!(is_allowed(address.parse().unwrap(), &networks), expected, "{address}");
        }
    }

    #[tokio::test]
    async fn literals_and_names_follow_the_policy() {
        for host in ["127.0.0.1", "::1", "169.254.169.254", "localhost"] {
            assert_eq!(resolve(host, 9, &[]).await.unwrap_err().stage, Stage::Denied, "{host}");
        }
        let networks = ["127.0.0.0/8".parse().unwrap()];
        assert_eq!(resolve("127.0.0.1", 9, &networks).await.unwrap(), ["127.0.0.1:9".parse().unwrap()]);
    }
}
