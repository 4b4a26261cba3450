//! Connections to several engines. Connections that end are opened again by threads of their own,
//! so that the load continues on the others.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sealwire_wire::{Info, Scanner, request};

use super::driver::Operation;
use crate::ask::{ask, result};
use crate::calls::Calls;
use crate::fault::Fault;
use crate::stream::{READ_BYTES, Stream};
use crate::target::Target;
use crate::{frames, host};

/// Timeout of a first connection.
const PATIENCE: Duration = Duration::from_secs(20);
/// Timeout of an attempt to connect again.
const AGAIN_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two such attempts.
const AGAIN_PAUSE: Duration = Duration::from_millis(20);

/// A connection with its requests in flight.
pub(super) struct VaultLink {
    pub(super) stream: Stream,
    pub(super) calls: Calls<Operation>,
}

/// A place for a connection to one engine.
pub(super) struct LinkSlot {
    /// Index of the engine.
    pub(super) engine: usize,
    /// `None` while the connection is down.
    pub(super) link: Option<VaultLink>,
    /// Number of times that the connection was opened again.
    pub(super) renewals: u32,
}

/// An engine under load.
#[derive(Clone)]
pub(super) struct EngineEndpoint {
    pub(super) target: Target,
    /// The engine's process, if it is on this machine.
    pub(super) pid: Option<u32>,
    tls: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// A connection that was opened again.
struct RenewedLink {
    slot: usize,
    stream: Stream,
    /// The engine's process, if it is on this machine.
    pid: Option<u32>,
}

/// All connections of a load.
pub(super) struct EngineLinks {
    pub(super) engines: Vec<EngineEndpoint>,
    pub(super) slots: Vec<LinkSlot>,
    /// Bytes sent and received by connections that have ended.
    pub(super) ended_bytes: (u64, u64),
    /// The engines' version.
    pub(super) version: String,
    renewed: (Sender<RenewedLink>, Receiver<RenewedLink>),
    stop: Arc<AtomicBool>,
}

impl EngineLinks {
    /// Opens `connections` connections to each engine. Connections of one engine are not
    /// neighbours, so that bursts of requests spread over the engines.
    pub(super) fn open(targets: &[Target], connections: u32) -> Result<Self, Fault> {
        let endpoint = |target: &Target| -> Result<EngineEndpoint, Fault> {
            let (tls, name) = target.tls()?;
            Ok(EngineEndpoint {
                pid: host::engine(&target.address),
                target: target.clone(),
                tls,
                name,
            })
        };
        let engines = targets
            .iter()
            .map(endpoint)
            .collect::<Result<Vec<_>, _>>()?;
        let (mut slots, mut version) = (Vec::new(), String::new());
        for _ in 0..connections {
            for (number, engine) in engines.iter().enumerate() {
                let (stream, info) = engine.connect(PATIENCE)?;
                version = info;
                let link = Some(VaultLink {
                    stream,
                    calls: Calls::new(),
                });
                slots.push(LinkSlot {
                    engine: number,
                    link,
                    renewals: 0,
                });
            }
        }
        let stop = Arc::new(AtomicBool::new(false));
        Ok(Self {
            engines,
            slots,
            ended_bytes: (0, 0),
            version,
            renewed: channel(),
            stop,
        })
    }

    /// Returns the negotiated TLS parameters.
    pub(super) fn negotiated(&self) -> String {
        self.links()
            .next()
            .map_or_else(String::new, |link| link.stream.negotiated())
    }

    /// Returns the connections that are up.
    pub(super) fn links(&self) -> impl Iterator<Item = &VaultLink> {
        self.slots.iter().filter_map(|slot| slot.link.as_ref())
    }

    /// Returns the number of requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.links().map(|link| link.calls.under_way()).sum()
    }

    /// Returns bytes sent and received on all connections so far.
    pub(super) fn bytes(&self) -> (u64, u64) {
        self.links().fold(self.ended_bytes, |(out, read), link| {
            (out + link.stream.bytes_out, read + link.stream.bytes_in)
        })
    }

    /// Removes a connection that has ended, starts to open it again, and returns it.
    pub(super) fn take_ended(&mut self, slot: usize) -> Option<VaultLink> {
        let link = self.slots[slot].link.take()?;
        self.ended_bytes.0 += link.stream.bytes_out;
        self.ended_bytes.1 += link.stream.bytes_in;
        let engine = self.engines[self.slots[slot].engine].clone();
        let (sender, stop) = (self.renewed.0.clone(), Arc::clone(&self.stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if let Ok((stream, _)) = engine.connect(AGAIN_PATIENCE) {
                    // Looked up here because it reads much of `/proc`, which would delay the load.
                    let pid = host::engine(&engine.target.address);
                    // The receiver has ended if the load has.
                    let _ = sender.send(RenewedLink { slot, stream, pid });
                    return;
                }
                std::thread::sleep(AGAIN_PAUSE);
            }
        });
        Some(link)
    }

    /// Puts connections that were opened again into their places.
    pub(super) fn accept_renewed(&mut self) {
        while let Ok(RenewedLink { slot, stream, pid }) = self.renewed.1.try_recv() {
            let slot = &mut self.slots[slot];
            slot.link = Some(VaultLink {
                stream,
                calls: Calls::new(),
            });
            slot.renewals += 1;
            self.engines[slot.engine].pid = pid;
        }
    }
}

impl Drop for EngineLinks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl EngineEndpoint {
    /// Connects, and returns the connection and the engine's version.
    fn connect(&self, patience: Duration) -> Result<(Stream, String), Fault> {
        let address = &self.target.address;
        let at = |what: String| Fault::Failed(format!("no engine answers at {address}: {what}"));
        let socket_address = self
            .target
            .dial()
            .to_socket_addrs()
            .map_err(|error| at(error.to_string()))?
            .next();
        let socket_address = socket_address.ok_or_else(|| at("it has no address".to_owned()))?;
        let socket = TcpStream::connect_timeout(&socket_address, patience)
            .map_err(|error| at(error.to_string()))?;
        let tls = rustls::ClientConnection::new(Arc::clone(&self.tls), self.name.clone());
        let tls = tls.map_err(|error| at(error.to_string()))?;
        let mut stream = Stream::begin(socket, tls, Scanner::for_replies, patience)
            .map_err(|error| at(error.to_string()))?;
        // In TLS 1.3, the client handshake completes before the engine checks the certificate, so
        // the first response reports errors.
        request::info(stream.out(), frames::MSGID);
        let mut scratch = vec![0; READ_BYTES];
        let answer = ask(&mut stream, &mut scratch).map_err(|fault| at(fault.to_string()))?;
        let info = Info::decode(result(&answer).map_err(|fault| at(fault.to_string()))?);
        Ok((stream, info.map_err(|error| at(error.to_string()))?.version))
    }
}
