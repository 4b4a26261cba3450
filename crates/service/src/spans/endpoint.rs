//! The endpoint of a collector.

use crate::http_client::Origin;

/// A URL in plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host and port of the collector.
    pub origin: Origin,
    /// The path, including a query.
    pub path: String,
}

impl Endpoint {
    /// Parses `http://host[:port][/path]`. Returns `None` for any other text, including URLs with a
    /// user or password.
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
