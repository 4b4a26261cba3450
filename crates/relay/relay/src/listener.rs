//! Listeners: accept connections of clients, with TLS if configured.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::connection;
use crate::relay::{Listener, Peer, Relay, wait_for_stop};
use sealwire_service::http_server::activity::{Activity, Timeouts, Watched};

/// Pause after an accept failed, such as when the process has no file descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until `stop` becomes true.
pub async fn accept(
    relay: Arc<Relay>,
    listener: Arc<Listener>,
    socket: TcpListener,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = wait_for_stop(&mut stop) => return,
        };
        match accepted {
            Ok((stream, address)) => {
                let Some(permit) = relay.connection_permit() else {
                    relay.metrics.count_rejected_connection(&listener.name);
                    continue;
                };
                let _ = stream.set_nodelay(true);
                tokio::spawn(handle_connection(
                    Arc::clone(&relay),
                    Arc::clone(&listener),
                    stream,
                    address,
                    permit,
                    stop.clone(),
                ));
            }
            Err(error) => {
                tracing::warn!(listener = %listener.name, %error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection from its handshake to its end.
async fn handle_connection(
    relay: Arc<Relay>,
    listener: Arc<Listener>,
    stream: TcpStream,
    address: SocketAddr,
    _permit: OwnedSemaphorePermit,
    stop: watch::Receiver<bool>,
) {
    let limits = &relay.limits;
    let timeouts = Timeouts {
        header: limits.header_timeout(),
        idle: limits.idle_timeout(),
        write: limits.body_idle(),
    };

    let activity = Arc::new(Activity::new(timeouts));
    let open = relay.metrics.count_open_connection(&listener.name);
    let io = Watched::new(stream, Arc::clone(&activity));
    match &listener.tls {
        None => {
            let peer = Peer::new(
                Arc::clone(&listener),
                address,
                false,
                None,
                relay.connection_memory(&listener),
                stop.clone(),
            );
            connection::serve(
                Arc::clone(&relay),
                Arc::new(peer),
                io,
                Arc::clone(&activity),
                stop,
            )
            .await;
        }
        Some(tls) => match timeout(
            limits.header_timeout(),
            TlsAcceptor::from(tls.config()).accept(io),
        )
        .await
        {
            Ok(Ok(stream)) => {
                let certificate = stream
                    .get_ref()
                    .1
                    .peer_certificates()
                    .and_then(|chain| chain.first());
                let memory = relay.connection_memory(&listener);
                let peer = Peer::new(
                    Arc::clone(&listener),
                    address,
                    true,
                    certificate,
                    memory,
                    stop.clone(),
                );
                connection::serve(
                    Arc::clone(&relay),
                    Arc::new(peer),
                    stream,
                    Arc::clone(&activity),
                    stop,
                )
                .await;
            }
            _ => relay.metrics.count_failed_handshake(&listener.name),
        },
    }
    let (received, sent) = activity.byte_counts();
    relay
        .metrics
        .count_connection_bytes(&listener.name, received, sent);
    drop(open);
}
