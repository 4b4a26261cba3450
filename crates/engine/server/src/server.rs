//! Assembles the engine from its configuration, starts its listeners and shuts the engine down in
//! order.
//!
//! [`Server::start`] checks the configuration, the key-encryption key, the apps and the
//! certificates before it binds a port. Call it on a multi-threaded runtime.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::Control;
use sealwire_audit::AuditKey;
use sealwire_crypto::OpenKeyCache;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::accept::{Acceptor, Principals, Serve, bind};
pub use crate::error::StartError;
use crate::http::HttpService;
use sealwire_engine::access::Authorizer;
use sealwire_engine::control::first_start;
use sealwire_engine::root::{RootAdmin, SlotProber, Unsealer};
use sealwire_store::StoreError;
use sealwire_telemetry::{Condition, Phase, Telemetry};

use crate::admin;
use crate::bearers::BearerAuthentication;
use crate::certificates::{Certificates, ConnectionRegistry, Reload};
use crate::control::{ControlServer, ControlService};
use crate::network_scheduler::NetworkScheduler;
use crate::origins::Origins;
use crate::tls::TlsError;
use sealwire_engine::apps::Apps;
use sealwire_engine::audit::Audit;
use sealwire_engine::engine::Engine;
use sealwire_engine::jobs::scheduler::Scheduler;
use sealwire_engine::jobs::tokens::now;
use sealwire_engine::key_warmer::KeyWarmer;
use sealwire_engine::stores::{Access, Stores};
use sealwire_engine::sweeper::Sweeper;
use sealwire_service::admin_server::AdminServer;
use sealwire_service::bearer::{TokenVerifier, UnixClock};
use sealwire_service::spans::{Service, Traces};
use sealwire_settings::{Config, ControlListen};
use sealwire_telemetry::metrics::AppGauges;

/// Pause between attempts to complete the start after the store was unsealed.
const COMPLETION_PAUSE: Duration = Duration::from_secs(1);

/// A listener for requests on data: MessagePack-RPC or HTTP.
#[derive(Debug)]
struct DataListener {
    address: SocketAddr,
    /// Makes the listener accept connections. The sender is dropped unused if the engine shuts down
    /// first.
    open: Option<oneshot::Sender<()>>,
    accepting: JoinHandle<()>,
}

/// A running engine.
#[derive(Debug)]
pub struct Server {
    /// `None` if the configuration names no address for MessagePack-RPC.
    data: Option<DataListener>,
    /// `None` if the configuration names no address for HTTP.
    http: Option<DataListener>,
    admin: AdminServer,
    control: Option<ControlServer>,
    telemetry: Arc<Telemetry>,
    engine: Arc<Engine>,
    stores: Stores,
    draining: watch::Sender<bool>,
    config: Config,
    certificates: Reload,
    background_tasks: Vec<JoinHandle<()>>,
    /// `None` if the configuration names no issuer of tokens.
    verifier: Option<Arc<TokenVerifier>>,
    /// Ends without an abort when the engine drains.
    sweeping: Option<JoinHandle<()>>,
    connections: Arc<Semaphore>,
}

impl Server {
    /// Starts the engine. Reads files. Needs a multi-threaded runtime whose blocking threads
    /// suffice for the crypto threads.
    ///
    /// # Errors
    ///
    /// [`StartError`]. Every task that was started is stopped.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let mut server = Self::start_closed(config).await?;
        server.open();
        Ok(server)
    }

    /// Starts the server, but leaves data connections in the kernel's queue until [`Server::open`].
    /// Use this function if apps or roles must first be created over the control listener.
    ///
    /// # Errors
    ///
    /// [`StartError`]. Every task that was started is stopped.
    pub async fn start_closed(config: &Config) -> Result<Self, StartError> {
        let unsealer = Unsealer::open(config)?;
        Self::start_with_unsealer(config, unsealer, Stores::open(config, Access::Serve).await?)
            .await
    }

    /// Starts to accept data connections.
    pub fn open(&mut self) {
        if self.telemetry.readiness.phase() != Phase::Starting {
            return;
        }

        // The engine becomes ready before it accepts the first connection, so that no client gets a
        // response from an engine that reports that it is not ready.
        self.telemetry.readiness.enter(Phase::Ready);
        for listener in [&mut self.data, &mut self.http].into_iter().flatten() {
            if let Some(open) = listener.open.take() {
                let _ = open.send(());
            }
        }

        let admin = self.admin.address();
        let generation = self.engine.apps.generation();
        let [address, http, control] =
            [self.address(), self.http_address(), self.control_address()]
                .map(|at| at.map(tracing::field::display));
        tracing::info!(address, http, control, %admin, generation, "ready");
    }

    /// Starts the server with stores that are already open.
    ///
    /// # Errors
    ///
    /// [`StartError`]. Every task that was started is stopped.
    pub async fn start_with(config: &Config, stores: Stores) -> Result<Self, StartError> {
        let mut server = Self::start_with_unsealer(config, Unsealer::open(config)?, stores).await?;
        server.open();
        Ok(server)
    }

    async fn start_with_unsealer(
        config: &Config,
        unsealer: Unsealer,
        stores: Stores,
    ) -> Result<Self, StartError> {
        let opened = NonZeroUsize::new(config.crypto.open_key_cache_entries)
            .map(|capacity| Arc::new(OpenKeyCache::new(capacity, config.crypto.open_key_cache_s)));
        let unsealer = Arc::new(unsealer);
        let control = Control::with_finder(
            Arc::clone(&stores.control),
            Arc::<Unsealer>::clone(&unsealer),
        );
        let apps = Arc::new(
            Apps::load(
                control,
                format_address(config.listen.address.or(config.http.address)),
                opened,
            )
            .await?,
        );
        let start = async {
            if !apps.is_sealed() {
                match make_administrators(config, &apps).await {
                    Ok(()) | Err(StoreError::Sealed) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // The audit key derives from the verified root record.
            let audit_key = match apps.control().kek().await {
                Ok(kek) => Some(AuditKey::new(kek.audit_secret())),
                Err(StoreError::Sealed) => None,
                Err(error) => return Err(error.into()),
            };
            Self::start_with_apps(
                config,
                stores,
                Arc::clone(&apps),
                Arc::clone(&unsealer),
                audit_key,
            )
            .await
        };

        match start.await {
            Ok(server) => {
                if let Some(folder) = &config.audit.folder {
                    unsealer.keep_copy(folder).await;
                }
                unsealer.keep_anchor().await;
                Ok(server)
            }
            Err(error) => {
                // This instance never served a request, so names can be reused without waiting for
                // it.
                let _ = apps.leave().await;
                Err(error)
            }
        }
    }

    async fn start_with_apps(
        config: &Config,
        stores: Stores,
        apps: Arc<Apps>,
        unsealer: Arc<Unsealer>,
        audit_key: Option<AuditKey>,
    ) -> Result<Self, StartError> {
        let telemetry = Arc::new(Telemetry::default());
        telemetry
            .readiness
            .set(Condition::Unsealed, !apps.is_sealed());
        let (certificates, reload) = Certificates::load(config, &telemetry)?;
        let verifier = open_verifier(config)?;

        let listener = config
            .listen
            .address
            .map(|address| bind("listen.address", address))
            .transpose()?;
        let http_listener = config
            .http
            .address
            .map(|address| bind("http.address", address))
            .transpose()?;
        let control = match (&config.control, certificates.control_registry()) {
            (Some(control), Some(registry)) => Some((
                ControlServer::bind(control)?,
                registry,
                control.principals.clone(),
            )),
            _ => None,
        };

        let admin = admin::start(config.admin.address, Arc::clone(&telemetry))?;
        let audit = Audit::new(&config.audit);
        let is_complete = audit_key.is_some() && !apps.is_sealed();
        if let Some(key) = audit_key {
            audit.open(&config.audit, key, apps.instance_id(), &telemetry)?;
        }

        let service = Service {
            name: "sealwire",
            instance: apps.instance_id(),
        };
        let traces = Traces::start(&config.traces, service, &telemetry.metrics.traces())
            .map_err(StartError::Traces)?;

        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let metrics = Arc::clone(&telemetry.metrics);

        let key_warmer = KeyWarmer::new(&config.crypto);
        let idle_warmer = Arc::clone(&key_warmer);
        let threads = u32::try_from(config.crypto.threads_on(cores))
            .ok()
            .and_then(NonZeroU32::new);
        let scheduler = Scheduler::start(
            threads.unwrap_or(NonZeroU32::MIN),
            &config.schedule,
            sealwire_engine::calibrate::calibrate()?,
            Arc::new(move || idle_warmer.make_ready()),
        );
        metrics.watch_scheduler(scheduler.probe());

        let (tokens, objects) = stores.batched(config.limits.token_value_bytes_max, &metrics);
        let engine = Arc::new(Engine {
            decider: Authorizer::new(&config.access, &apps, &metrics),
            apps: Arc::clone(&apps),
            scheduler,
            tokens,
            objects,
            audit,
            traces,
            metrics,
            limits: config.limits.clone(),
            evervault: Arc::new(config.evervault.clone()),
            failures: sealwire_engine::jobs::failures::Failures::default(),
        });

        telemetry
            .metrics
            .watch_served(app_gauges(Arc::clone(&apps), &stores));
        if is_complete {
            unsealer
                .providers()
                .observe(Arc::clone(&telemetry.metrics), engine.audit.clone());
        }

        let retried_unsealer = Arc::clone(&unsealer);
        apps.before_first_try(Box::new(move || retried_unsealer.retry_at_next_load()));

        let (draining, drains) = watch::channel(false);
        let network =
            NetworkScheduler::new(tokio::runtime::Handle::current().metrics().num_workers());
        let connections = Arc::new(Semaphore::new(config.limits.connections_max));
        let shared = SharedAcceptor {
            registry: certificates.data_registry(),
            engine: Arc::clone(&engine),
            connections: Arc::clone(&connections),
            principals: Arc::<Principals>::default(),
            network: network.clone(),
            drains,
        };

        let data = listener.map(|bound| shared.start(bound, Arc::clone(&engine)));
        let bearers = verifier.as_ref().map(|verifier| BearerAuthentication {
            verifier: Arc::clone(verifier),
            origins: Origins::new(&config.limits, &network),
            principals: Arc::clone(&shared.principals),
            network: network.clone(),
            drains: shared.drains.clone(),
            rejections: Arc::default(),
        });
        let http = http_listener.map(|bound| {
            let service = HttpService::new(&engine, config, bearers);
            shared.start(bound, service)
        });

        let root = RootAdmin::new(apps.control().clone(), Arc::clone(&unsealer));
        let control = control.map(|(bound, registry, callers)| {
            ControlServer::start(
                bound,
                registry,
                ControlService::new(Arc::clone(&engine), root.clone(), &config.access, callers),
                network.clone(),
                draining.subscribe(),
            )
        });

        let sweeping = stores
            .tokens
            .clone()
            .zip(stores.objects.clone())
            .map(|rows| {
                let control = apps.control().clone();
                let recorder = Arc::clone(&engine);
                let sweeper = Sweeper::new(
                    control,
                    rows,
                    apps.instance_id(),
                    config.sweep,
                    recorder,
                    now,
                    draining.subscribe(),
                );
                tokio::spawn(sweeper.run())
            });

        let listener = data.as_ref().or(http.as_ref());
        apps.set_listen_address(format_address(listener.map(|listener| listener.address)));

        let interval = Duration::from_secs(config.kek_probe_interval_s);
        let slot_probing =
            tokio::spawn(SlotProber::new(&unsealer, interval, draining.subscribe()).run());

        let key_warming = tokio::spawn(key_warmer.follow(Arc::clone(&apps)));
        let cache_aging = tokio::spawn(Arc::clone(&apps).age());

        let authorizing_engine = Arc::clone(&engine);
        let permission_reloading =
            tokio::spawn(async move { authorizing_engine.decider.reload_permissions().await });

        let state_watching = tokio::spawn(apps.watch(
            config.state.poll(),
            config.access.stale(),
            Arc::clone(&telemetry),
        ));
        let recorder = Arc::clone(&engine);
        let certificate_reloading = tokio::spawn(
            certificates.run(move |outcome| recorder.audit.record_reload("certificates", outcome)),
        );

        let start_completing = (!is_complete).then(|| {
            tokio::spawn(complete_start(
                config.clone(),
                Arc::clone(&engine),
                Arc::clone(&telemetry),
                unsealer,
            ))
        });
        let issuer_key_loading = verifier.clone().map(|verifier| {
            let watch = Some(config.tls.watch_s).filter(|watch_s| *watch_s > 0);
            let metrics = Arc::clone(&telemetry.metrics);
            let report = move |failing| metrics.set_failing_issuers(failing);
            tokio::spawn(verifier.run(watch.map(Duration::from_secs), report))
        });
        let recorder = Arc::clone(&engine);

        let audit_flushing = tokio::spawn(async move { recorder.audit.flush_periodically().await });
        Ok(Self {
            data,
            http,
            admin,
            control,
            telemetry,
            engine,
            stores,
            draining,
            config: config.clone(),
            certificates: reload,
            verifier,
            background_tasks: [
                state_watching,
                cache_aging,
                key_warming,
                certificate_reloading,
                audit_flushing,
                slot_probing,
                permission_reloading,
            ]
            .into_iter()
            .chain(start_completing)
            .chain(issuer_key_loading)
            .collect(),
            sweeping,
            connections,
        })
    }

    /// Returns the address of the data listener, if there is one, with the port that the system
    /// chose.
    pub fn address(&self) -> Option<SocketAddr> {
        self.data.as_ref().map(|data| data.address)
    }

    /// Returns the address of the HTTP listener, if there is one, with the port that the system
    /// chose.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.as_ref().map(|http| http.address)
    }

    /// Returns the address that serves `/live`, `/ready` and `/metrics`.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.address()
    }

    /// Returns the address of the control listener, if it is configured.
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control.as_ref().map(ControlServer::address)
    }

    /// Returns the state that connections share, for observers inside the process.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Applies the settings that need no restart: certificates, revocation lists and the other
    /// settings of `[tls]`, and the certificate files of `[control]`. Also reads the files with keys
    /// of token issuers again.
    ///
    /// Returns after every connected client was verified against the new files. The result names
    /// the changed settings that take effect only after a restart.
    ///
    /// # Errors
    ///
    /// The first error of the files. Certificates, and the keys of each issuer, stay as they were if
    /// one of their files cannot be used. The others are in use.
    pub async fn reload(&self, config: &Config) -> Result<Vec<&'static str>, TlsError> {
        let control = self
            .config
            .control
            .clone()
            .map(|own| match &config.control {
                // A change of `control.principals` needs a restart, because that list decides
                // whether the control listener may share the authority of all clients.
                Some(new) => ControlListen {
                    client_ca: new.client_ca.clone(),
                    client_crl: new.client_crl.clone(),
                    ..own
                },
                None => own,
            });

        // A broken certificate file must not keep removed keys of an issuer in use.
        let certificates = self.certificates.reload(config.tls.clone(), control).await;
        let issuer_keys = match &self.verifier {
            Some(verifier) => {
                let reloaded = verifier.reload_files().await;
                self.telemetry
                    .metrics
                    .set_failing_issuers(verifier.failing());
                reloaded.map_err(TlsError::IssuerKeys)
            }
            None => Ok(()),
        };
        certificates.and(issuer_keys)?;
        Ok(self.config.needs_restart_for(config))
    }

    /// Shuts the engine down. For `limits.drain_delay_ms` only `/ready` changes. Then the engine
    /// accepts no new connections or requests. Running requests can finish within
    /// `limits.drain_ms_max`; the rest get `unavailable`. Returns when every connection has ended,
    /// or at the latest two `limits.write_stall_ms_max` later.
    pub async fn shutdown(self) {
        self.telemetry.readiness.enter(Phase::Draining);
        tracing::info!("draining");
        tokio::time::sleep(Duration::from_millis(self.engine.limits.drain_delay_ms)).await;
        let _ = self.draining.send(true);

        for DataListener {
            open, accepting, ..
        } in [self.data, self.http].into_iter().flatten()
        {
            drop(open);
            let _ = accepting.await;
        }

        self.background_tasks.iter().for_each(JoinHandle::abort);
        if let Some(sweeping) = self.sweeping {
            // The sweeper finishes its batch and records the rows that were removed.
            let _ = sweeping.await;
        }

        let limits = &self.engine.limits;
        let all = u32::try_from(limits.connections_max).unwrap_or(u32::MAX);
        // Each connection enforces its own drain limit. This later limit covers peers that do not
        // close their side of the connection.
        let drain_limit =
            Duration::from_millis(limits.drain_ms_max + 2 * limits.write_stall_ms_max);
        let ended = async {
            let _ = self.connections.acquire_many(all).await;
            if let Some(control) = self.control {
                control.wait_until_ended().await;
            }
        };

        if timeout(drain_limit, ended).await.is_err() {
            tracing::warn!("connections remain at the end of the drain");
        }
        if let Err(error) = self.engine.apps.leave().await {
            tracing::warn!(%error, "this instance stays in the store until it is too old");
        }
        if let Some(tokens) = &self.engine.tokens {
            tokens.close().await;
        }
        if let Some(objects) = &self.engine.objects {
            objects.close().await;
        }

        self.stores.close().await;
        let admin = self.admin;
        let engine = self.engine;
        let _ = tokio::task::spawn_blocking(move || {
            engine.audit.close();
            engine.traces.close();
            drop(admin);
        })
        .await;
        tracing::info!("stopped");
    }
}

/// Creates the verifier of bearer tokens, if there are issuers.
fn open_verifier(config: &Config) -> Result<Option<Arc<TokenVerifier>>, StartError> {
    let issuers = &config.issuers.0;
    if issuers.is_empty() {
        return Ok(None);
    }
    Ok(Some(TokenVerifier::open(issuers, UnixClock::system())?))
}

/// Grants the configured administrators their role if this is the first start on the store.
async fn make_administrators(config: &Config, apps: &Apps) -> Result<(), StoreError> {
    if first_start(&config.access, &**apps.control().store()).await? {
        apps.changed_here().await;
    }
    Ok(())
}

/// Completes the start of an engine that found its store sealed, as soon as the store is unsealed.
/// Until then, requests that need an audit record fail.
async fn complete_start(
    config: Config,
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    unsealer: Arc<Unsealer>,
) {
    let apps = &engine.apps;
    let mut is_audited = engine.audit.check_ready().is_ok();
    loop {
        apps.wait_until_unsealed().await;
        let completed: Result<(), StartError> = async {
            if !is_audited {
                let key = AuditKey::new(apps.control().kek().await?.audit_secret());
                engine
                    .audit
                    .open(&config.audit, key, apps.instance_id(), &telemetry)?;
                is_audited = true;
                telemetry.readiness.set(Condition::Audit, true);
            }
            unsealer
                .providers()
                .observe(Arc::clone(&telemetry.metrics), engine.audit.clone());
            Ok(make_administrators(&config, apps).await?)
        }
        .await;
        match completed {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(%error, "the start is not complete after the unsealing; it is tried again");
                telemetry.readiness.set(Condition::Audit, is_audited);
                tokio::time::sleep(COMPLETION_PAUSE).await;
            }
        }
    }
}

/// Returns a function that collects the gauges of apps and stores for each scrape of the metrics.
fn app_gauges(apps: Arc<Apps>, stores: &Stores) -> Box<dyn Fn() -> AppGauges + Send + Sync> {
    let links = stores.links();
    Box::new(move || {
        let (generation, count) = apps.generation_and_app_count();
        let opened = apps.opened().map_or((0, 0, 0), |opened| {
            let (hits, misses) = opened.lookups();
            (opened.len(), hits, misses)
        });
        let rolled_back = apps.control().store().rolled_back().is_some();
        AppGauges {
            generation,
            apps: count,
            opened,
            links: links(),
            rolled_back,
        }
    })
}

/// The parts that the listeners of requests on data share.
struct SharedAcceptor {
    registry: Arc<ConnectionRegistry>,
    engine: Arc<Engine>,
    connections: Arc<Semaphore>,
    principals: Arc<Principals>,
    network: NetworkScheduler,
    drains: watch::Receiver<bool>,
}

impl SharedAcceptor {
    /// Starts a listener. It accepts its first connection when it is opened.
    fn start<T: Serve>(
        &self,
        (listener, address): (TcpListener, SocketAddr),
        service: T,
    ) -> DataListener {
        let limits = &self.engine.limits;
        let acceptor = Acceptor {
            listener,
            registry: Arc::clone(&self.registry),
            engine: Arc::clone(&self.engine),
            service,
            connections: Arc::clone(&self.connections),
            handshakes: Arc::new(Semaphore::new(limits.handshakes_max)),
            per_principal_max: limits.connections_per_principal_max,
            principals: Arc::clone(&self.principals),
            handshaking: self.network.flow(),
            network: self.network.clone(),
            drains: self.drains.clone(),
        };

        let (open, opened) = oneshot::channel();
        let accepting = tokio::spawn(async move {
            if opened.await.is_ok() {
                acceptor.run().await;
            }
        });
        DataListener {
            address,
            open: Some(open),
            accepting,
        }
    }
}

/// Formats the address of an instance. The address is empty for an instance that serves only
/// requests of operators.
fn format_address(address: Option<SocketAddr>) -> String {
    address
        .map(|address| address.to_string())
        .unwrap_or_default()
}

/// Opens the apps of a configuration so that a program can change them without a running engine.
///
/// # Errors
///
/// [`StartError::Kek`] or [`StartError::Store`].
pub async fn open_control(config: &Config) -> Result<(Control, Stores), StartError> {
    let unsealer = Unsealer::open(config)?;
    let stores = Stores::open(config, Access::Change).await?;
    Ok((
        Control::with_finder(Arc::clone(&stores.control), Arc::new(unsealer)),
        stores,
    ))
}
