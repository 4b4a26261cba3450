//! CONNECT: tunnels to permitted hosts. A tunnel is intercepted if a route is for its host.
//!
//! An intercepted tunnel ends at the relay. The client gets a leaf certificate of the relay's
//! authority, and each request inside is handled like any other request. Tunnels to other hosts are
//! denied, or their bytes pass untouched if the listener permits it. In both cases, the name in the
//! client's TLS ClientHello must be the tunnel's host.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use time::OffsetDateTime;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::{Destination, first_bytes};
use crate::body::Outgoing;
use crate::clients::Client;
use crate::completion::Completion;
use crate::config::Unlisted;
use crate::connection;
use crate::error::{Failure, Reason};
use crate::relay::{Listener, Peer, Relay, wait_for_stop};
use crate::request_check::CheckedTarget;
use crate::upstream::address::{Lookup, dial_host};
use sealwire_service::http_server::activity::{Activity, Timeouts, Watched};

/// Longest time for the client's TLS handshake after the tunnel was opened.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Longest time to connect to the destination of a tunnel that passes untouched.
const DIAL_MAX: Duration = Duration::from_secs(5);

/// Opens a tunnel for an authenticated client, or returns the reason why it cannot.
///
/// # Errors
/// The request is not a CONNECT, or its destination is not permitted or cannot be reached.
pub async fn open_tunnel(
    relay: &Arc<Relay>,
    peer: &Arc<Peer>,
    completion: &Completion,
    client: Client,
    target: &CheckedTarget,
    mut request: Request<Incoming>,
) -> Result<Response<Outgoing>, Failure> {
    if request.method() != Method::CONNECT {
        return Err(Failure::request(Reason::Forbidden(
            "this listener serves only CONNECT requests",
        )));
    }
    let destination = target
        .port
        .and_then(|port| Destination::parse(&format!("{}:{port}", target.host)));
    let destination = destination.ok_or_else(|| {
        Failure::request(Reason::Forbidden(
            "the destination must be a DNS name and a port",
        ))
    })?;

    let listener = &peer.listener;
    let upgrade = hyper::upgrade::on(&mut request);
    // hyper no longer manages the connection of a tunnel. The tunnel therefore has its own permit,
    // which a drain waits for. Over HTTP/2 the connection carries other streams, and must not
    // appear idle meanwhile.
    let in_flight = completion.in_flight();
    let permit = relay
        .connection_permit()
        .ok_or_else(|| Failure::request(Reason::Busy("limits.connections_max are open")))?;

    if is_intercepted(listener, &destination) {
        let relay = Arc::clone(relay);
        let peer = Arc::clone(peer);
        tokio::spawn(async move {
            let _permits = (permit, in_flight);
            if let Ok(io) = upgrade.await {
                serve_intercepted(relay, peer, destination, client, TokioIo::new(io)).await;
            }
        });
    } else if listener.tunnel.contains(&destination) || listener.unlisted == Unlisted::Tunnel {
        let dialling = dial_host(
            &destination.host,
            destination.port,
            &listener.tunnel_addresses,
            DIAL_MAX,
            Lookup::OfTunnel(&client.id),
        );
        let dialled = timeout(DIAL_MAX, dialling)
            .await
            .map_err(|_| Failure::request(Reason::UpstreamUnreachable("connect timeout")))?;
        let upstream = dialled.map_err(|error| error.into_failure())?;
        relay.metrics.count_tunnel(&listener.name);

        let relay = Arc::clone(relay);
        let peer = Arc::clone(peer);
        tokio::spawn(async move {
            let _permits = (permit, in_flight);
            let Ok(client) = upgrade.await else { return };
            let idle = relay.limits.idle_timeout();
            if let Err(cause) = forward_untouched(
                TokioIo::new(client),
                upstream,
                &destination.host,
                idle,
                &peer,
            )
            .await
            {
                tracing::warn!(listener = &*peer.listener.name, host = &*destination.host, cause = %cause, "closed a tunnel that did not start with TLS for its host");
                relay.metrics.count_failed_handshake(&peer.listener.name);
            }
        });
    } else {
        return Err(Failure::request(Reason::Forbidden(
            "neither a route nor `tunnel` permits the destination",
        )));
    }
    Ok(Response::new(Outgoing::empty()))
}

/// Returns true if a route is for the destination.
fn is_intercepted(listener: &Listener, destination: &Destination) -> bool {
    !listener.tunnel.contains(destination)
        && listener
            .routes
            .has_destination(&destination.host, destination.port)
}

/// Serves requests inside a tunnel in the role of the destination.
async fn serve_intercepted(
    relay: Arc<Relay>,
    peer: Arc<Peer>,
    destination: Destination,
    owner: Client,
    client: TokioIo<Upgraded>,
) {
    let Some(authority) = &peer.listener.authority else {
        return;
    };
    let config = match authority.server_config(&destination.host, OffsetDateTime::now_utc()) {
        Ok(config) => config,
        Err(error) => {
            tracing::warn!(listener = %peer.listener.name, error = &error as &dyn std::error::Error, "cannot issue a certificate for an intercepted tunnel");
            return;
        }
    };
    let limits = &relay.limits;
    let timeouts = Timeouts {
        header: limits.header_timeout(),
        idle: limits.idle_timeout(),
        write: limits.body_idle(),
    };
    let activity = Arc::new(Activity::new(timeouts));
    let io = Watched::new(client, Arc::clone(&activity));
    match timeout(HANDSHAKE_MAX, TlsAcceptor::from(config).accept(io)).await {
        Ok(Ok(stream)) => {
            let inside = Arc::new(peer.in_tunnel(destination, owner));
            connection::serve(
                Arc::clone(&relay),
                inside,
                stream,
                activity,
                peer.stop.clone(),
            )
            .await;
        }
        // Includes clients that pin the destination's certificate. List such destinations under
        // `tunnel`.
        _ => relay.metrics.count_failed_handshake(&peer.listener.name),
    }
}

/// Forwards bytes until both sides end, no bytes move for `idle`, or the relay drains.
///
/// # Errors
/// The reason why the client's first bytes must not pass.
async fn forward_untouched(
    client: TokioIo<Upgraded>,
    upstream: TcpStream,
    host: &str,
    idle: Duration,
    peer: &Peer,
) -> io::Result<()> {
    let timeouts = Timeouts {
        header: idle,
        idle,
        write: idle,
    };
    let activity = Arc::new(Activity::new(timeouts));
    let mut client = Watched::new(client, Arc::clone(&activity));
    let mut upstream = Watched::new(upstream, Arc::clone(&activity));
    let protocols = peer.listener.tunnel_protocols;
    let mut stop = peer.stop.clone();

    let forwarding = async {
        match first_bytes::forward_first_bytes(
            &mut client,
            &mut upstream,
            host,
            protocols,
            HANDSHAKE_MAX,
        )
        .await
        {
            Ok(()) => drop(copy_bidirectional(&mut client, &mut upstream).await),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData | io::ErrorKind::TimedOut
                ) =>
            {
                return Err(error);
            }
            // The client or the upstream has closed the connection.
            Err(_) => {}
        }
        Ok(())
    };
    let outcome = tokio::select! {
        outcome = forwarding => outcome,
        () = wait_until_idle(&activity, idle) => Ok(()),
        () = wait_for_stop(&mut stop) => Ok(()),
    };

    close_gracefully(&mut client).await;
    close_gracefully(&mut upstream).await;
    outcome
}

async fn wait_until_idle(activity: &Activity, idle: Duration) {
    let mut before = activity.byte_counts();
    loop {
        tokio::time::sleep(idle).await;
        let now = activity.byte_counts();
        if now == before {
            return;
        }
        before = now;
    }
}

async fn close_gracefully<T: AsyncRead + AsyncWrite + Unpin>(io: &mut T) {
    let _ = timeout(Duration::from_secs(1), io.shutdown()).await;
}
