//! Where the engine runs: as a process of its own, as in production, or in this one.

use std::io;
use std::time::Duration;

use sealwire_benches::thread_cpu;
use sealwire_benches::world::{CRYPTO, NETWORK, World};
use sealwire_client::{Client, ClientConfig};
use sealwire_settings::Mode;
use tokio::runtime::Runtime;

use crate::child::{EngineChild, Folder, Setting};

/// Connections of a client.
const CONNECTIONS: usize = 2;

/// A running engine.
#[derive(Debug)]
pub(crate) enum Place {
    /// In this process, without state and audit trail.
    Here(Box<World>),
    /// A process of its own, with its files.
    Process(EngineChild, Folder),
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
        Ok(Self::Process(engine, folder))
    }

    pub(crate) fn client(&self, callers: &Runtime) -> Client {
        let config = match self {
            Self::Here(world) => world.client_config().clone(),
            Self::Process(engine, folder) => folder.client("client", engine.address),
        };
        let config = ClientConfig {
            connections: CONNECTIONS,
            ..config
        };
        callers.block_on(Client::connect(config)).expect("connects")
    }

    pub(crate) fn cpu(&self) -> io::Result<CpuTime> {
        Ok(match self {
            Self::Here(_) => CpuTime {
                crypto: thread_cpu::of_threads(CRYPTO)?,
                network: thread_cpu::of_threads(NETWORK)?,
                other: Duration::ZERO,
            },
            Self::Process(engine, _) => {
                let (crypto, network) = (engine.cpu_of(CRYPTO)?, engine.cpu_of(NETWORK)?);
                CpuTime {
                    crypto,
                    network,
                    other: engine.cpu()?.saturating_sub(crypto + network),
                }
            }
        })
    }

    pub(crate) fn stop(self) {
        if let Self::Here(world) = self {
            world.stop();
        }
    }
}
