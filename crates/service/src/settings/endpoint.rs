//! Addresses of servers in settings: `host:port`, in which the host can be a name.

use std::net::Ipv6Addr;

/// Returns true if a text is `host:port`. An IPv6 address is in brackets. Port 0 is invalid.
#[must_use]
pub fn is_endpoint(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_host = match bare {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        }
    };
    is_host && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Returns the host of `host:port`, without brackets.
#[must_use]
pub fn host_of(endpoint: &str) -> &str {
    endpoint
        .rsplit_once(':')
        .map_or(endpoint, |(host, _)| host)
        .trim_matches(['[', ']'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_a_host_and_a_port() {
        for (text, host) in [
            (
                "engine-1.acme_x.internal:7443",
                Some("engine-1.acme_x.internal"),
            ),
            ("10.0.0.7:1", Some("10.0.0.7")),
            ("[::1]:65535", Some("::1")),
            ("engine", None),
            (":7443", None),
            ("engine:0", None),
            ("engine:65536", None),
            ("engine:", None),
            ("::1:7443", None),
            ("[engine]:7443", None),
            ("https://engine:7443", None),
            ("a b:7443", None),
        ] {
            let found = is_endpoint(text).then(|| host_of(text));
            assert_eq!(found, host, "{text}");
        }
    }
}
