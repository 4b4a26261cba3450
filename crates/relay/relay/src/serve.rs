//! A running relay: reads the files of a configuration, binds its listeners, probes the engine, and
//! drains.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_client::Client;
use sealwire_service::admin_server::AdminServer;
use sealwire_service::spans::{Service, Traces};
use sealwire_service::trusted_file::{FileKind, TrustedFile};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::{self, Readiness};
use crate::clients::Clients;
use crate::config::{ClientsKind, Compiled, CompiledListener, Config};
use crate::egress::authority::Authority;
use crate::engine::Engine;
use crate::listener;
use crate::metrics::Metrics;
use crate::relay::{Listener, Relay, wait_for_stop};
use crate::server_tls::{ServerFiles, ServerTls, first_expiry, read_secret};

/// Interval of engine probes and of checks of certificate files.
const WATCH_EVERY: Duration = Duration::from_secs(2);

/// The reason why a relay does not start: a sentence with the setting, but never a value.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {message}")]
pub struct StartError {
    place: String,
    message: String,
}

fn start_error(place: impl Into<String>, message: impl ToString) -> StartError {
    StartError {
        place: place.into(),
        message: message.to_string(),
    }
}

/// A running relay.
pub struct Server {
    relay: Arc<Relay>,
    readiness: Arc<Readiness>,
    addresses: Vec<(Arc<str>, SocketAddr)>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    admin: AdminServer,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Starts a relay. The engine need not respond yet: `/ready` reports when it does.
    ///
    /// # Errors
    /// A file cannot be used, or an address cannot be bound.
    pub async fn start(config: &Config, compiled: Compiled) -> Result<Self, StartError> {
        check_secrets(config)?;
        let metrics = Arc::new(Metrics::default());
        let client =
            Client::lazy(config.engine.client()).map_err(|cause| start_error("engine", cause))?;
        let deadline = Duration::from_millis(config.engine.deadline_ms.into());
        let engine = Engine::new(client, deadline, Arc::clone(&metrics));

        let service = Service {
            name: "sealwire-relay",
            instance: format!("{:016x}", rand::random::<u64>()),
        };
        let traces = Traces::start(&config.traces.settings(), service, &metrics.span_metrics());
        let traces = traces.map_err(|cause| start_error("traces", cause))?;

        let relay = Arc::new(Relay::new(
            config.limits.clone(),
            engine,
            metrics,
            traces,
            config.log.access,
        ));

        let readiness = Arc::new(Readiness::default());
        let admin = admin::start(
            config.admin.address,
            Arc::clone(&relay),
            Arc::clone(&readiness),
        )
        .map_err(|cause| {
            start_error(
                "admin.address",
                format!("cannot listen on {}: {cause}", config.admin.address),
            )
        })?;
        let (stop, stopped) = watch::channel(false);

        let mut tasks = JoinSet::new();
        let mut addresses = Vec::new();
        let mut listeners = Vec::new();
        let mut certificates = vec![CertificateFile::new(
            "",
            "engine",
            &config.engine.certificate,
        )];
        for compiled in compiled.listeners {
            let files = [
                ("server", &compiled.config.certificate),
                ("client_ca", &compiled.config.client_ca),
            ];
            certificates.extend(files.into_iter().filter_map(|(of, file)| {
                Some(CertificateFile::new(&compiled.name, of, file.as_ref()?))
            }));
            let place = format!("listen.{}", compiled.name);
            let address = compiled.config.address;
            let socket = TcpListener::bind(address).await.map_err(|cause| {
                start_error(&place, format!("cannot listen on {address}: {cause}"))
            })?;

            let listener = Arc::new(open_listener(
                compiled,
                &place,
                config.limits.client_ipv6_bits,
            )?);
            addresses.push((
                Arc::clone(&listener.name),
                socket
                    .local_addr()
                    .map_err(|cause| start_error(&place, cause))?,
            ));
            listeners.push(Arc::clone(&listener));
            tasks.spawn(listener::accept(
                Arc::clone(&relay),
                listener,
                socket,
                stopped.clone(),
            ));
        }

        readiness.is_listening.store(true, Ordering::Relaxed);
        tasks.spawn(watch_engine_and_files(
            Arc::clone(&relay),
            Arc::clone(&readiness),
            listeners,
            certificates,
            stopped,
        ));
        Ok(Self {
            relay,
            readiness,
            addresses,
            stop,
            tasks,
            admin,
        })
    }

    /// Returns names and addresses of the listeners, with the ports that the operating system
    /// chose.
    pub fn addresses(&self) -> &[(Arc<str>, SocketAddr)] {
        &self.addresses
    }

    /// Returns the address of `/live`, `/ready` and `/metrics`.
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Returns the reason why `/ready` fails, if it fails.
    pub fn unready_reason(&self) -> Option<&'static str> {
        self.readiness.unready_reason()
    }

    /// Returns the metrics as text.
    pub fn metrics_text(&self) -> String {
        self.relay.update_gauges();
        self.relay.metrics.to_text()
    }

    /// Stops accepting connections, waits up to `limits.drain_ms` for exchanges, and then ends the
    /// rest.
    pub async fn shutdown(mut self) {
        self.readiness.is_draining.store(true, Ordering::Relaxed);
        let _ = self.stop.send(true);
        if tokio::time::timeout(self.relay.limits.drain(), self.relay.wait_until_drained())
            .await
            .is_err()
        {
            tracing::warn!("exchanges were still running at the end of the drain");
        }
        self.tasks.shutdown().await;
        let relay = self.relay;
        let _ = tokio::task::spawn_blocking(move || relay.traces.close()).await;
    }
}

/// Rejects keys that other users can read, including keys that are read later.
fn check_secrets(config: &Config) -> Result<(), StartError> {
    let upstreams = config
        .upstream
        .iter()
        .map(|(name, upstream)| (format!("upstream.{name}.key"), upstream.key.as_deref()));
    let listeners = config.listen.iter().flat_map(|(name, listener)| {
        [
            ("key", &listener.key),
            ("tokens", &listener.tokens),
            ("authority_key", &listener.authority_key),
        ]
        .map(|(key, file)| (format!("listen.{name}.{key}"), file.as_deref()))
    });
    let engine = ("engine.key".to_owned(), Some(&*config.engine.key));
    for (place, file) in [engine].into_iter().chain(upstreams).chain(listeners) {
        if let Some(file) = file {
            TrustedFile::open(file, FileKind::Secret).map_err(|cause| start_error(place, cause))?;
        }
    }
    Ok(())
}

/// Reads the files of a listener.
fn open_listener(
    compiled: CompiledListener,
    place: &str,
    ipv6_bits: u8,
) -> Result<Listener, StartError> {
    let config = compiled.config;
    let tls = match (config.certificate, config.key) {
        (Some(certificate), Some(key)) => {
            let files = ServerFiles {
                certificate,
                key,
                client_ca: config.client_ca,
            };
            Some(ServerTls::load(files).map_err(|cause| start_error(place, cause))?)
        }
        _ => None,
    };

    let clients = match (config.clients, &config.tokens) {
        (ClientsKind::Mtls, _) => {
            Clients::from_principals(config.principals.iter().map(String::as_str))
        }
        (ClientsKind::Bearer, Some(path)) => {
            Clients::read_tokens(path).map_err(|cause| start_error(place, cause))?
        }
        _ => Clients::Open,
    };

    let authority = match (&config.authority_certificate, &config.authority_key) {
        (Some(certificate), Some(key)) => {
            let key = read_secret(key).map_err(|cause| start_error(place, cause))?;
            let certificate = std::fs::read_to_string(certificate).map_err(|cause| {
                start_error(place, format!("{}: {cause}", certificate.display()))
            })?;
            Some(Authority::load(&certificate, &key).map_err(|cause| start_error(place, cause))?)
        }
        _ => None,
    };
    Ok(Listener {
        name: compiled.name,
        kind: config.kind,
        tls,
        clients,
        routes: compiled.routes,
        trust_forwarded: config.trust_forwarded,
        ipv6_bits,
        authority,
        tunnel: compiled.tunnel,
        tunnel_addresses: config.tunnel_addresses,
        unlisted: config.unlisted,
        tunnel_protocols: config.tunnel_protocols,
    })
}

/// A certificate file whose expiry is a metric.
struct CertificateFile {
    listener: Arc<str>,
    of: &'static str,
    file: PathBuf,
    /// Expiry in seconds since 1970, from the last time when the file was readable and in use.
    expires_unix_s: Option<i64>,
}

impl CertificateFile {
    fn new(listener: &str, of: &'static str, file: &Path) -> Self {
        Self {
            listener: listener.into(),
            of,
            file: file.to_owned(),
            expires_unix_s: None,
        }
    }

    /// Reads the expiry of the file. Blocks.
    fn read_expiry(&mut self) {
        self.expires_unix_s = first_expiry(&self.file).or(self.expires_unix_s);
    }

    /// Sets the metric.
    fn update_gauge(&self, metrics: &Metrics) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64();
        if let Some(expires) = self.expires_unix_s {
            metrics.set_certificate_remaining(&self.listener, self.of, expires as f64 - now);
        }
    }
}

/// Reloads the certificates of a listener if their files have changed. Returns false if the new
/// files are rejected. Blocks.
fn reload_certificates(listener: &Listener) -> bool {
    match listener.tls.as_ref().map(ServerTls::reload_if_changed) {
        Some(Ok(true)) => tracing::info!(listener = %listener.name, "certificates were reloaded"),
        Some(Err(cause)) => {
            tracing::error!(listener = %listener.name, error = %cause, "cannot reload the certificates; the old certificates stay in use");
            return false;
        }
        Some(Ok(false)) | None => {}
    }
    true
}

/// Probes the engine and reloads certificates until `stop` becomes true.
async fn watch_engine_and_files(
    relay: Arc<Relay>,
    readiness: Arc<Readiness>,
    listeners: Vec<Arc<Listener>>,
    mut certificates: Vec<CertificateFile>,
    mut stop: watch::Receiver<bool>,
) {
    loop {
        let is_ready = relay.engine.is_ready().await;
        if is_ready != readiness.has_engine.swap(is_ready, Ordering::Relaxed) {
            if is_ready {
                tracing::info!("an engine responds");
            } else {
                tracing::error!(
                    "no engine responds: requests with values to replace fail; see engine.endpoints"
                );
            }
        }
        relay.metrics.set_engine_ready(is_ready);

        let listeners = listeners.clone();
        let metrics = Arc::clone(&relay.metrics);
        let reloaded = tokio::task::spawn_blocking(move || {
            let mut rejected = Vec::new();
            for listener in listeners.iter().filter(|listener| listener.tls.is_some()) {
                let is_accepted = reload_certificates(listener);
                metrics.set_certificates_rejected(&listener.name, !is_accepted);
                rejected.extend((!is_accepted).then_some(listener));
            }
            for file in &mut certificates {
                // Rejected files are not in use.
                if rejected
                    .iter()
                    .all(|listener| listener.name != file.listener)
                {
                    file.read_expiry();
                }
                file.update_gauge(&metrics);
            }
            certificates
        });
        certificates = reloaded.await.unwrap_or_default();
        tokio::select! {
            () = tokio::time::sleep(WATCH_EVERY) => {}
            () = wait_for_stop(&mut stop) => return,
        }
    }
}
