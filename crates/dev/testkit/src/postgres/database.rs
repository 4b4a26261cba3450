//! A database of a server: its URLs, and SQL in it.

use super::{Failure, OWNER, Postgres};

/// A database of a [`Postgres`]. Exists until the server is removed.
#[derive(Clone, Debug)]
pub struct Database<'a> {
    pub(super) server: &'a Postgres,
    pub(super) name: String,
}

impl<'a> Database<'a> {
    /// Returns the server that clients connect to.
    #[must_use]
    pub fn server(&self) -> &'a Postgres {
        self.server
    }

    /// Returns the database's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a URL over the Unix socket, as the role `sealwire`, without the password.
    #[must_use]
    pub fn socket_url(&self) -> String {
        let (folder, port) = (self.server.folder.display(), self.server.port);
        format!(
            "postgres:///{}?user={OWNER}&host={folder}&port={port}",
            self.name
        )
    }

    /// Returns a URL over loopback, as the role `sealwire`, without the password.
    #[must_use]
    pub fn tls_url(&self) -> String {
        self.url(&[self.server.port])
    }

    /// Returns a URL over loopback at other ports, such as those of proxies or other servers. A
    /// client tries them in this order.
    #[must_use]
    pub fn url(&self, ports: &[u16]) -> String {
        let hosts: Vec<String> = ports
            .iter()
            .map(|port| format!("localhost:{port}"))
            .collect();
        format!("postgres://{OWNER}@{}/{}", hosts.join(","), self.name)
    }

    /// Runs SQL in this database as the superuser; see [`Postgres::sql`].
    ///
    /// # Errors
    /// As for [`Postgres::sql`].
    pub fn sql(&self, sql: &str) -> Result<String, Failure> {
        self.server.sql(&self.name, sql)
    }
}
