//! Paths of the relay's admin listener. `/live` reports that the process runs, `/ready` whether to
//! send requests here.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sealwire_service::admin_server::{AdminResponse, AdminRoutes, AdminServer};

use crate::relay::Relay;

/// Conditions of `/ready`.
#[derive(Debug, Default)]
pub struct Readiness {
    /// True once all listeners are bound.
    pub is_listening: AtomicBool,
    /// True if an engine responded to the last probe.
    pub has_engine: AtomicBool,
    /// True while the relay drains.
    pub is_draining: AtomicBool,
}

impl Readiness {
    /// Returns the reason why the relay is not ready, or `None` if it is ready.
    pub fn unready_reason(&self) -> Option<&'static str> {
        if self.is_draining.load(Ordering::Relaxed) {
            return Some("draining");
        }
        if !self.is_listening.load(Ordering::Relaxed) {
            return Some("starting");
        }
        (!self.has_engine.load(Ordering::Relaxed)).then_some("no engine answers")
    }
}

struct RelayRoutes {
    relay: Arc<Relay>,
    readiness: Arc<Readiness>,
}

/// Starts the listener on the thread `relay-admin`.
///
/// # Errors
/// The address cannot be bound, or the operating system cannot create a thread.
pub fn start(
    address: SocketAddr,
    relay: Arc<Relay>,
    readiness: Arc<Readiness>,
) -> io::Result<AdminServer> {
    AdminServer::start(address, "relay-admin", RelayRoutes { relay, readiness })
}

impl AdminRoutes for RelayRoutes {
    const PATHS: &'static [&'static str] = &["/live", "/ready", "/metrics"];

    fn get(&self, path: &str) -> AdminResponse {
        match path {
            "/live" => AdminResponse::Ok("live\n".to_owned()),
            "/metrics" => {
                self.relay.update_gauges();
                AdminResponse::Metrics(self.relay.metrics.to_text())
            }
            _ => match self.readiness.unready_reason() {
                None => AdminResponse::Ok("ready\n".to_owned()),
                Some(reason) => AdminResponse::Unavailable(format!("{reason}\n")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::time::Duration;

    use sealwire_client::{Client, ClientConfig, Pem};
    use sealwire_dev_ca::{Authority, Leaf, Usage, Validity};

    use super::*;
    use crate::config;
    use crate::engine::Engine;
    use crate::metrics::Metrics;

    fn start_relay() -> (AdminServer, Arc<Readiness>) {
        let authority = Authority::create("test", Validity::days(2)).unwrap();
        let leaf = Leaf {
            common_name: "relay".into(),
            names: Vec::new(),
            usage: Usage::Client,
            validity: Validity::days(1),
        };
        let issued = authority.issue(&leaf).unwrap();
        let pem = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
        let key = pem(issued.key_pem.expose());
        let config = ClientConfig::new(
            "127.0.0.1:1",
            "e",
            pem(authority.cert_pem()),
            pem(&issued.cert_pem),
            key,
        );
        let metrics = Arc::new(Metrics::default());
        let engine = Engine::new(
            Client::lazy(config).unwrap(),
            Duration::from_secs(1),
            Arc::clone(&metrics),
        );
        let relay = Arc::new(Relay::new(
            config::parse(&config::template(), []).unwrap().limits,
            engine,
            metrics,
            sealwire_service::spans::Traces::default(),
            false,
        ));
        let readiness = Arc::new(Readiness::default());
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        (
            start(address, relay, Arc::clone(&readiness)).unwrap(),
            readiness,
        )
    }

    /// Status line and body of a response.
    fn ask(server: &AdminServer, request: &str) -> (String, String) {
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        write!(
            stream,
            "{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (
            head.lines().next().unwrap_or_default().to_owned(),
            body.to_owned(),
        )
    }

    // The client of the engine starts tasks.
    #[tokio::test]
    async fn readiness_follows_its_conditions() {
        let (server, readiness) = start_relay();
        let conditions = [
            &readiness.is_listening,
            &readiness.has_engine,
            &readiness.is_draining,
        ];
        for (set, status, body) in [
            (None, "503 Service Unavailable", "starting\n"),
            (Some(0), "503 Service Unavailable", "no engine answers\n"),
            (Some(1), "200 OK", "ready\n"),
            (Some(2), "503 Service Unavailable", "draining\n"),
        ] {
            if let Some(condition) = set.and_then(|set: usize| conditions.get(set)) {
                condition.store(true, Ordering::Relaxed);
            }
            assert_eq!(
                ask(&server, "GET /ready"),
                (format!("HTTP/1.1 {status}"), body.to_owned())
            );
            assert_eq!(
                ask(&server, "GET /live"),
                ("HTTP/1.1 200 OK".to_owned(), "live\n".to_owned())
            );
        }
    }

    #[tokio::test]
    async fn only_reads_of_known_paths_are_answered() {
        let (server, _) = start_relay();
        for (request, status) in [
            ("HEAD /live", "200 OK"),
            ("POST /live", "405 Method Not Allowed"),
            ("DELETE /metrics", "405 Method Not Allowed"),
            ("GET /", "404 Not Found"),
            ("GET /live/", "404 Not Found"),
            ("GET /env.json", "404 Not Found"),
            ("GET /metrics?x", "200 OK"),
        ] {
            assert_eq!(
                ask(&server, request).0,
                format!("HTTP/1.1 {status}"),
                "{request}"
            );
        }
        let (_, metrics) = ask(&server, "GET /metrics");
        assert!(
            metrics.contains("sealwire_relay_in_flight 0\n") && metrics.ends_with("# EOF\n"),
            "{metrics}"
        );
    }
}
