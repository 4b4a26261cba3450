//! IP addresses in text form: RFC 4291, section 2.2, and dotted decimal without leading zeros.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Minimum length of an IPv6 address, which excludes `::`, `::1` and times such as `12::30`.
const IPV6_BYTES_MIN: usize = 7;

/// Returns true for an IPv4 or IPv6 address without port, prefix length or zone. `0.0.0.0` and IPv6
/// addresses of less than seven characters are not matched.
pub(super) fn is_ip_address(text: &str) -> bool {
    match text.as_bytes().first() {
        Some(byte) if byte.is_ascii_hexdigit() || *byte == b':' => {}
        _ => return false,
    }
    is_ipv4(text) || is_ipv6(text)
}

fn is_ipv4(text: &str) -> bool {
    text.parse::<Ipv4Addr>()
        .is_ok_and(|address| !address.is_unspecified())
}

fn is_ipv6(text: &str) -> bool {
    text.len() >= IPV6_BYTES_MIN && text.contains(':') && text.parse::<Ipv6Addr>().is_ok()
}
