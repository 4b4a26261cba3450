//! A database of a server: its addresses, and SQL in it.

use super::{Failure, OWNER, Postgres};

/// A database of a [`Postgres`]. It stays until the server goes.
#[derive(Clone, Debug)]
pub struct Database<'a> {
    pub(super) server: &'a Postgres,
    pub(super) name: String,
}

impl Database<'_> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Over the unix socket, as the role `sealwire`, without the password.
    #[must_use]
    pub fn socket_url(&self) -> String {
        let (folder, port) = (self.server.folder.display(), self.server.port);
        format!("postgres:///{}?user={OWNER}&host={folder}&port={port}", self.name)
    }

    /// Over loopback, as the role `sealwire`, without the password.
    #[must_use]
    pub fn tls_url(&self) -> String {
        self.url(&[self.server.port])
    }

    /// Over loopback at other ports, of proxies or of other servers: they are tried in that order.
    #[must_use]
    pub fn url(&self, ports: &[u16]) -> String {
        let hosts: Vec<String> = ports.iter().map(|port| format!("localhost:{port}")).collect();
        format!("postgres://{OWNER}@{}/{}", hosts.join(","), self.name)
    }

    /// Runs SQL in it as the superuser; see [`Postgres::sql`].
    ///
    /// # Errors
    /// As there.
    pub fn sql(&self, sql: &str) -> Result<String, Failure> {
        self.server.sql(&self.name, sql)
    }
}
