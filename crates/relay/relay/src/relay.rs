//! Shared state of a relay: limits and permits, the engine, listeners and peers.

use std::net::SocketAddr;
use std::sync::Arc;

use http::request::Parts;
use rustls::pki_types::CertificateDer;
use sealwire_service::spans::Traces;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::clients::{Client, Clients, name_of};
use crate::config::{Limits, ListenKind, TunnelProtocols, Unlisted};
use crate::egress::Destination;
use crate::egress::authority::Authority;
use crate::engine::Engine;
use crate::error::{Failure, Reason};
use crate::memory::{Account, Budget};
use crate::metrics::Metrics;
use crate::route_table::RouteTable;
use crate::server_tls::ServerTls;
use crate::shares::{ClientId, ClientShares, forwarded_address};
use sealwire_service::memory::leaves_enough_for_others;

/// State that all connections share.
#[derive(Debug)]
pub struct Relay {
    /// Limits of the configuration.
    pub limits: Limits,
    /// The engine.
    pub engine: Engine,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Spans of exchanges.
    pub traces: Traces,
    /// True if each exchange writes a log line.
    pub logs_access: bool,
    connections: Arc<Semaphore>,
    requests: Arc<Semaphore>,
    client_requests: ClientShares,
    memory: Budget,
    client_memory: ClientShares,
}

impl Relay {
    /// Creates the state.
    pub fn new(
        limits: Limits,
        engine: Engine,
        metrics: Arc<Metrics>,
        traces: Traces,
        logs_access: bool,
    ) -> Self {
        Self {
            connections: new_semaphore(limits.connections_max),
            requests: new_semaphore(limits.requests_max),
            client_requests: ClientShares::new(limits.requests_per_client_max()),
            memory: Budget::new(limits.memory_bytes, "limits.memory_bytes are in use"),
            client_memory: ClientShares::new(Budget::count_units(limits.client_memory_bytes())),
            limits,
            engine,
            metrics,
            traces,
            logs_access,
        }
    }

    /// Takes the permit of a connection. Returns `None` if none is left.
    pub fn connection_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.connections).try_acquire_owned().ok()
    }

    /// Waits until no connection is open.
    pub async fn wait_until_drained(&self) {
        let _all = self
            .connections
            .acquire_many(self.limits.connections_max)
            .await;
    }

    /// Takes the permit of one exchange.
    ///
    /// # Errors
    /// All permits are in use.
    pub fn request_permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let permit = Arc::clone(&self.requests).try_acquire_owned();
        permit.map_err(|_| Failure::request(Reason::Busy("limits.requests_max exchanges run")))
    }

    /// Takes the client's permit of an exchange. The exchange must already have its permit of the
    /// process.
    ///
    /// # Errors
    /// The client's share is in use.
    pub fn client_permit(&self, client: &ClientId) -> Result<OwnedSemaphorePermit, Failure> {
        const BUSY: Failure = Failure::request(Reason::Busy(
            "limits.requests_per_client_max exchanges of the client run",
        ));
        let share = self.client_requests.share_of(client);
        let permit = Arc::clone(&share).try_acquire_owned().map_err(|_| BUSY)?;

        let used = self.client_requests.permits_per_client() - share.available_permits();
        // The exchange already has its permit of the process.
        let left = self.requests.available_permits() + used;
        let is_within = leaves_enough_for_others(
            used,
            left,
            self.client_requests.permits_per_client(),
            self.limits.requests_max as usize,
        );
        if is_within { Ok(permit) } else { Err(BUSY) }
    }

    /// Returns the memory budget of a new connection. A trusted proxy's connection gets all memory,
    /// because its clients have their own shares.
    pub fn connection_memory(&self, listener: &Listener) -> Budget {
        if listener.trust_forwarded {
            return Budget::new(self.limits.memory_bytes, "limits.memory_bytes are in use");
        }
        Budget::new(
            self.limits.connection_memory_bytes(),
            "limits.connection_memory_bytes are in use",
        )
    }

    /// Returns the memory that exchanges of a client can take on a connection.
    pub fn memory_account(&self, peer: &Peer, client: &ClientId) -> Account {
        let bytes = self.limits.client_memory_bytes();
        let share = Budget::with_semaphore(
            self.client_memory.share_of(client),
            bytes,
            "limits.client_memory_bytes are in use",
        );
        Account {
            budgets: [peer.memory.clone(), share, self.memory.clone()],
        }
    }

    /// Updates the gauges of permits.
    pub fn update_gauges(&self) {
        let in_flight = self.limits.requests_max as usize - self.requests.available_permits();
        self.metrics
            .set_usage(in_flight, self.memory.used_bytes(self.limits.memory_bytes));
    }
}

fn new_semaphore(permits: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(
        (permits as usize).min(Semaphore::MAX_PERMITS),
    ))
}

/// A listener with its routes.
#[derive(Debug)]
pub struct Listener {
    /// Name.
    pub name: Arc<str>,
    /// Reverse proxy, CONNECT proxy or external processor.
    pub kind: ListenKind,
    /// Certificates for clients. `None` for plaintext.
    pub tls: Option<ServerTls>,
    /// Authentication.
    pub clients: Clients,
    /// Routes.
    pub routes: RouteTable,
    /// If true, forwarding headers of clients are kept, and limits apply to the client in these
    /// headers.
    pub trust_forwarded: bool,
    /// Length of the prefix of an IPv6 address that identifies a client, in bits.
    pub ipv6_bits: u8,
    /// Interception authority of a CONNECT proxy.
    pub authority: Option<Authority>,
    /// Destinations whose tunnels pass untouched.
    pub tunnel: std::collections::HashSet<Destination>,
    /// Networks that the addresses of these tunnels must be in. Empty for public addresses only.
    pub tunnel_addresses: Vec<ipnet::IpNet>,
    /// Handling of other destinations.
    pub unlisted: Unlisted,
    /// Protocols in tunnels that pass untouched.
    pub tunnel_protocols: TunnelProtocols,
}

/// The client's side of a connection.
#[derive(Debug)]
pub struct Peer {
    /// The listener.
    pub listener: Arc<Listener>,
    /// Address of the client.
    pub address: SocketAddr,
    /// True if the connection is over TLS.
    pub is_tls: bool,
    /// Name of the client's verified certificate.
    name: Option<Arc<str>>,
    /// Destination of the tunnel around the connection, and the client that opened the tunnel.
    pub tunnel: Option<Destination>,
    opened_by: Option<Client>,
    /// Memory for bodies of the connection.
    memory: Budget,
    /// Becomes true when the relay drains.
    pub stop: watch::Receiver<bool>,
}

impl Peer {
    /// Creates a peer. The handshake has verified `certificate`.
    pub fn new(
        listener: Arc<Listener>,
        address: SocketAddr,
        is_tls: bool,
        certificate: Option<&CertificateDer<'_>>,
        memory: Budget,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let name = certificate.and_then(name_of);
        Self {
            listener,
            address,
            is_tls,
            name,
            tunnel: None,
            opened_by: None,
            memory,
            stop,
        }
    }

    /// Returns the peer inside an intercepted tunnel, whose client was authenticated when the
    /// tunnel was opened.
    pub fn in_tunnel(&self, tunnel: Destination, client: Client) -> Self {
        Self {
            listener: Arc::clone(&self.listener),
            address: self.address,
            is_tls: true,
            name: self.name.clone(),
            tunnel: Some(tunnel),
            opened_by: Some(client),
            memory: self.memory.clone(),
            stop: self.stop.clone(),
        }
    }

    /// Returns true if `Authorization` is for the relay and not for the upstream.
    pub fn authorizes_by_header(&self) -> bool {
        self.tunnel.is_none() && matches!(self.listener.clients, Clients::Bearer(_))
    }

    /// Authenticates a request.
    ///
    /// # Errors
    /// [`Reason::Unauthenticated`].
    pub fn authenticate(&self, parts: &Parts) -> Result<Client, Failure> {
        if let Some(client) = &self.opened_by {
            return Ok(client.clone());
        }
        let listener = &self.listener;
        let is_proxy = listener.kind == ListenKind::Forward;
        let address = ClientId::of_address(self.address.ip(), listener.ipv6_bits);
        let mut client =
            listener
                .clients
                .authenticate(&parts.headers, is_proxy, self.name.as_ref(), address)?;

        // Behind a proxy, certificate and address belong to the proxy. A token belongs to the
        // client.
        if listener.trust_forwarded
            && !matches!(client.id, ClientId::Token(_))
            && let Some(address) = forwarded_address(&parts.headers)
        {
            client.id = ClientId::of_address(address, listener.ipv6_bits);
        }
        Ok(client)
    }
}

/// Waits until a relay drains or has ended. Safe to drop.
pub async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|is_stopped| *is_stopped).await;
}
