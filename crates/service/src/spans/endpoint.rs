//! The address of a collector.

/// An address in plain HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name or an IP address, and a port.
    pub authority: String,
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
        let (authority, path) = (
            uri.authority()?,
            uri.path_and_query().map_or("/", |path| path.as_str()),
        );
        // A user stands in front of the host.
        let port = match authority.as_str().strip_prefix(authority.host())? {
            "" => 80,
            port => port
                .strip_prefix(':')?
                .parse()
                .ok()
                .filter(|port: &u16| *port != 0)?,
        };
        let authority = format!("{}:{port}", authority.host());
        (!authority.starts_with(':')).then(|| Self {
            authority,
            path: path.to_owned(),
        })
    }
}
