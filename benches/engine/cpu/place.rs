//! The measured engine: a process of its own, as in production.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use sealwire_benches::world::{CRYPTO, NETWORK};
use sealwire_client::{Client, ClientConfig};
use sealwire_settings::Mode;
use tokio::runtime::Runtime;

use crate::child::{EngineChild, Folder, Setting};

/// Connections of a client.
pub(crate) const CONNECTIONS: usize = 2;

/// A running engine and its files.
#[derive(Debug)]
pub(crate) struct Place {
    engine: EngineChild,
    folder: Folder,
}

/// CPU time of an engine's threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CpuTime {
    pub(crate) crypto: Duration,
    pub(crate) network: Duration,
    /// The audit writer, and what is neither for requests: health, allocator.
    pub(crate) other: Duration,
}

impl CpuTime {
    pub(crate) fn all(self) -> Duration {
        self.crypto + self.network + self.other
    }

    /// A thread that was idle for long can have ended, and its CPU time is then missing.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            crypto: self.crypto.saturating_sub(before.crypto),
            network: self.network.saturating_sub(before.network),
            other: self.other.saturating_sub(before.other),
        }
    }
}

impl Place {
    /// Starts an engine as in production: a process with embedded state, where every request is
    /// authorized and has an audit record.
    pub(crate) fn process(settings: &[Setting]) -> io::Result<Self> {
        let folder = Folder::make(&["client"], Mode::Embedded)?;
        let engine = EngineChild::start_with(&folder, settings)?;
        Ok(Self { engine, folder })
    }

    pub(crate) fn client(&self, callers: &Runtime) -> Client {
        self.client_of(callers, CONNECTIONS)
    }

    /// Returns a client with so many connections.
    pub(crate) fn client_of(&self, callers: &Runtime, connections: usize) -> Client {
        let config = ClientConfig {
            connections,
            ..self.folder.client("client", self.engine.address)
        };
        callers.block_on(Client::connect(config)).expect("connects")
    }

    /// Returns the folder of certificates and keys.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the address for requests over HTTP.
    pub(crate) fn http_address(&self) -> io::Result<SocketAddr> {
        self.engine
            .http
            .ok_or_else(|| io::Error::other("the engine serves no HTTP"))
    }

    pub(crate) fn cpu(&self) -> io::Result<CpuTime> {
        let crypto = self.engine.cpu_of(CRYPTO)?;
        let network = self.engine.cpu_of(NETWORK)?;
        Ok(CpuTime {
            crypto,
            network,
            other: self.engine.cpu()?.saturating_sub(crypto + network),
        })
    }
}
