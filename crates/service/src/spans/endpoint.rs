//! The address of a collector.

use crate::http_client::Origin;

/// An address in plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an IP address, and a port.
    pub origin: Origin,
    /// The path, with a query if there is one.
    pub path: String,
}

impl Endpoint {
    /// Reads `http://host[:port][/path]`. Returns `None` for anything else, and for an address with
    /// a user or password.
    pub fn parse(text: &str) -> Option<Self> {
        let uri: http::Uri = text
            .parse()
            .ok()
            .filter(|uri: &http::Uri| uri.scheme_str() == Some("http"))?;
        let authority = uri.authority()?;
        let port = Origin::new(authority, 80)?.port;
        let with_port = format!("{}:{port}", authority.host()).parse().ok()?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Some(Self {
            origin: Origin::new(&with_port, port)?,
            path: path.to_owned(),
        })
    }
}
