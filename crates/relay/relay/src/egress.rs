//! Outbound traffic: a CONNECT proxy that intercepts the hosts of its routes.

pub mod authority;
pub mod connect;
pub mod first_bytes;

/// The destination of a tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// DNS name in lower case.
    pub host: Box<str>,
    /// Port.
    pub port: u16,
}

impl Destination {
    /// Parses `host:port`. IP addresses are rejected, because they would bypass a policy of names.
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.to_ascii_lowercase();
        let labels_fit = host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
        });
        // The last label of an IPv4 address is a number, in any of its spellings.
        let last = host.rsplit('.').next()?;
        let is_address = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
        let port_fits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| *port > 0 && port_fits)?;
        (labels_fit && host.len() <= 253 && !is_address).then(|| Self {
            host: host.into(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Destination;

    #[test]
    fn a_destination_is_a_name_and_a_port() {
        for (text, expected) in [
            ("api.example.com:443", Some(("api.example.com", 443))),
            ("API.example.com:8443", Some(("api.example.com", 8443))),
            ("localhost:1", Some(("localhost", 1))),
            ("api.example.com", None),
            ("api.example.com:", None),
            ("api.example.com:0", None),
            ("api.example.com:65536", None),
            ("api.example.com:+443", None),
            ("api..example.com:443", None),
            (".example.com:443", None),
            ("api.example.com.:443", None),
            ("user@api.example.com:443", None),
            ("10.0.0.1:443", None),
            ("0x7f000001:443", None),
            ("0x7f.1:443", None),
            ("127.1:443", None),
            ("[::1]:443", None),
            ("::1:443", None),
            ("a/b:443", None),
            (":443", None),
        ] {
            let found = Destination::parse(text);
            assert_eq!(
                found.as_ref().map(|found| (&*found.host, found.port)),
                expected,
                "{text}"
            );
        }
    }
}
