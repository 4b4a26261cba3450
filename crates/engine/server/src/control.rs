//! The control plane: a listener for changes of apps, keys and collections.
//!
//! Control requests are rare and small. Each connection therefore has a single task, which handles
//! one request at a time and does not use the scheduler. The operations are in
//! [`sealwire_engine::control`], which the command line also uses on a file.
//!
//! Clients are authorized twice: by the authority that issued their certificate, and by the
//! configured list of principals. A client that is not listed gets one error and is disconnected.
//! The number of such connections that are served at a time is limited.
//!
//! A change that has started always completes, even if its client disconnects or stops waiting. A
//! drain waits for it.

mod audit;
mod connection;

use audit::Applied;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealwire_access::Permit;
use sealwire_wire::control::{Control, Instances, RootOperation};
use sealwire_wire::{ErrorCode, Info, Method, Methods, ResultCodec as _, RpcError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::accept::{Acceptor, PrincipalEntry, Principals, Serve, bind};
use crate::certificates::ConnectionRegistry;
use crate::connection::Peer;
use crate::error::StartError;
use crate::network_scheduler::NetworkScheduler;
use crate::shutdown::Shutdown;
use sealwire_access::{AccessMode, Principal};
use sealwire_engine::engine::Engine;
use sealwire_engine::jobs::error::RequestFailure;
use sealwire_engine::root::RootAdmin;
use sealwire_engine::{access, control};
use sealwire_settings::{Access, Caller, ControlListen};
use sealwire_telemetry::LogThrottle;

/// Maximum number of connections to the control listener.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections per principal.
const CONNECTIONS_PER_PRINCIPAL_MAX: usize = 16;
/// Maximum number of concurrent handshakes.
const HANDSHAKES_MAX: usize = 8;
/// Maximum number of concurrent clients that are not listed. Their connections are not available to
/// operators.
const UNAUTHORIZED_MAX: usize = 8;
/// Time limit for an unlisted client to send its first message and receive the error. The command
/// line sends its request immediately.
const UNAUTHORIZED_TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum number of concurrent requests, including those whose client no longer waits.
const REQUESTS_MAX: usize = CONNECTIONS_MAX;
/// Maximum length of a message. A private key with its names takes a tenth of it.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of values in one message. `roles.set` needs the most.
const ELEMENTS_MAX: u64 = 1_000;
/// Maximum nesting of containers. A request has three levels.
const DEPTH_MAX: u32 = 8;
/// How long a client waits for its request. The store responds earlier, with a result or an error.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);
/// How long one request to rotate the root key waits for live engines.
const ROTATION_WAIT: Duration = Duration::from_secs(15);
/// How long an unseal request waits until this engine serves requests and can write audit records.
const UNSEAL_WAIT: Duration = Duration::from_secs(10);

/// A running control listener.
#[derive(Debug)]
pub(crate) struct ControlServer {
    address: SocketAddr,
    accepting: JoinHandle<()>,
    connections: Arc<Semaphore>,
    request_permits: Arc<Semaphore>,
}

/// A bound listener that does not accept connections yet.
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl ControlServer {
    /// Binds the address.
    ///
    /// # Errors
    ///
    /// [`StartError::Bind`].
    pub(crate) fn bind(control: &ControlListen) -> Result<Bound, StartError> {
        let (listener, address) = bind("control.address", control.address)?;
        Ok(Bound { listener, address })
    }

    /// Accepts connections until the engine drains.
    pub(crate) fn start(
        bound: Bound,
        registry: Arc<ConnectionRegistry>,
        service: ControlService,
        network: NetworkScheduler,
        drains: watch::Receiver<bool>,
    ) -> Self {
        let Bound { listener, address } = bound;
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let request_permits = Arc::clone(&service.request_permits);
        let acceptor = Acceptor {
            listener,
            registry,
            engine: Arc::clone(&service.engine),
            service: Arc::new(service),
            connections: Arc::clone(&connections),
            handshakes: Arc::new(Semaphore::new(HANDSHAKES_MAX)),
            per_principal_max: CONNECTIONS_PER_PRINCIPAL_MAX,
            principals: Arc::<Principals>::default(),
            handshaking: network.flow(),
            network,
            drains,
        };

        Self {
            address,
            accepting: tokio::spawn(acceptor.run()),
            connections,
            request_permits,
        }
    }

    /// Returns the address of the control listener, with the port that the system chose.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every connection and every request has ended. Each connection ends after its
    /// current request when the engine drains.
    pub(crate) async fn wait_until_ended(self) {
        let _ = self.accepting.await;
        let _ = self.connections.acquire_many(CONNECTIONS_MAX as u32).await;
        let _ = self.request_permits.acquire_many(REQUESTS_MAX as u32).await;
    }
}

/// State that control connections share.
#[derive(Debug)]
pub(crate) struct ControlService {
    /// The engine that holds apps, keys and collections.
    engine: Arc<Engine>,
    /// Changes the root key.
    root: RootAdmin,
    /// The principals of `access.administrators`. `None` if access control is off, so that no role
    /// is needed.
    ///
    /// While the store is sealed, only these principals can read the state of the root key and
    /// unseal the store. Their list is in a file that only the owner of the machine can write.
    /// Roles cannot be used: they are in the store, and the key that verifies its records is wiped.
    administrators: Option<Vec<Principal>>,
    /// The permitted clients. An empty list permits every client with a certificate of the
    /// authority.
    callers: Vec<Caller>,
    /// Permits for concurrent requests.
    request_permits: Arc<Semaphore>,
    /// State of the operations on the rows of key versions.
    keys: control::KeyPermits,
    /// Permits for concurrent clients that are not listed.
    unauthorized: Semaphore,
    /// Throttles the log messages that name unlisted clients.
    unauthorized_log: LogThrottle,
}

impl ControlService {
    /// Creates the service for an engine. `callers` lists the permitted clients. An empty list
    /// permits every client with a certificate of the authority.
    pub(crate) fn new(
        engine: Arc<Engine>,
        root: RootAdmin,
        access: &Access,
        callers: Vec<Caller>,
    ) -> Self {
        let request_permits = Arc::new(Semaphore::new(REQUESTS_MAX));
        let unauthorized = Semaphore::new(UNAUTHORIZED_MAX);
        let administrators =
            (access.mode != AccessMode::Off).then(|| access.administrators.clone());
        let keys = control::KeyPermits::default();
        let unauthorized_log = LogThrottle::default();
        Self {
            engine,
            root,
            administrators,
            callers,
            request_permits,
            keys,
            unauthorized,
            unauthorized_log,
        }
    }

    fn permits(&self, principal: &Principal) -> bool {
        self.callers.is_empty()
            || self
                .callers
                .iter()
                .any(|caller| caller.0 == principal.kind() && caller.1 == principal.as_str())
    }

    /// Checks that a request can start now. A sealed engine accepts only the status and unseal
    /// requests. An engine that started sealed has no audit log yet, but it must still accept
    /// these two requests.
    fn check_ready(&self, request: &Control<'_>) -> Result<(), RequestFailure> {
        let works_sealed = matches!(
            request,
            Control::Root(RootOperation::Status | RootOperation::Unseal)
        );
        match self.engine.apps.check_unsealed() {
            Err(_) if works_sealed && !self.engine.audit.is_open() => Ok(()),
            Err(sealed) if !works_sealed => Err(sealed),
            _ => self.engine.audit.check_ready(),
        }
    }

    /// Returns true if the store is sealed, even if this engine has not noticed that yet: a role in
    /// its cache must not unseal the store. Returns `None` if the store has no root key.
    async fn is_sealed(&self) -> Result<Option<bool>, RpcError> {
        let apps = &self.engine.apps;
        let (_, root) = apps.control().root().await.map_err(control::store_error)?;
        Ok(root.map(|root| apps.is_sealed() || root.sealed_unix_s.is_some()))
    }

    /// Authorizes a request, executes it and appends its result to `out`.
    async fn handle(
        &self,
        principal: &Principal,
        request: &Control<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Applied, RpcError> {
        let authorization = access::control_authorization(request).ok_or_else(|| {
            RpcError::new(
                ErrorCode::Internal,
                "a control request without an operation",
            )
        })?;
        let sealed = match request {
            Control::Root(RootOperation::Status | RootOperation::Unseal) => {
                self.is_sealed().await?
            }
            _ => None,
        };

        if let (Control::Root(operation), Some(true)) = (request, sealed) {
            if self
                .administrators
                .as_ref()
                .is_some_and(|listed| !listed.contains(principal))
            {
                return Err(RpcError::new(
                    ErrorCode::Forbidden,
                    "the store is sealed: only principals of access.administrators may do this",
                ));
            }
            return self
                .change_root(principal, request.method(), operation, out)
                .await;
        }

        let permit = self
            .engine
            .decider
            .decide(principal, authorization)
            .await
            .map_err(RpcError::from)?;

        if let Control::Root(RootOperation::Unseal) = request {
            // The store may have been sealed since the check. A role must not undo that.
            return match sealed {
                Some(_) => {
                    self.change_root(principal, request.method(), &RootOperation::Status, out)
                        .await
                }
                None => Err(RpcError::new(
                    ErrorCode::BadRequest,
                    "the store has no root key; `sealwire kek init` creates one",
                )),
            };
        }

        let applied = self.execute(&permit, principal, request, out).await;
        if applied
            .as_ref()
            .is_err_and(|error| error.code == ErrorCode::Internal)
            && is_change(request)
        {
            // The change may have been made even though its anchor was not written.
            self.engine.apps.changed_here().await;
        }
        applied
    }

    async fn execute(
        &self,
        permit: &Permit<'_>,
        principal: &Principal,
        request: &Control<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Applied, RpcError> {
        let state = self.engine.apps.control();
        let method = permit.operation();
        let store = &**state.store();
        match request {
            Control::Apps(page) => {
                let response = control::apps(state, *page).await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::Export(page) => {
                let response = control::export(state, *page).await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::Collections(request) => {
                let response = control::collections(state, request.app, request.page).await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::Root(operation) => {
                self.change_root(principal, request.method(), operation, out)
                    .await
            }
            Control::Census(request) => {
                let response = control::census(&self.engine, &self.keys, request).await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::RewrapRows(request) => {
                let response = control::rewrap(&self.engine, &self.keys, request).await?;
                response.encode(out);
                Ok(Applied {
                    rows: (
                        response.rewrapped,
                        response.unopened + response.unauthenticated,
                    ),
                    ..Applied::at(response.generation)
                })
            }
            Control::Migrate(request) => {
                let response = control::migrate(&self.engine, &self.keys, request).await?;
                response.encode(out);
                let unaccepted = if request.accept_unauthenticated {
                    0
                } else {
                    response.unauthenticated.len()
                };
                let unchanged = response.unopened.len() + response.erased.len() + unaccepted;
                Ok(Applied {
                    rows: (response.migrated, unchanged as u64),
                    ..Applied::at(response.generation)
                })
            }
            Control::Instances => {
                let response = self.instances().await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::Roles(page) => {
                let response = control::roles(store, *page).await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::Principals(page) => {
                let response = control::principals(store, *page).await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::Check(request) => {
                let response = control::check(&self.engine.decider, request).await?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::PublicKeys(request) => {
                let response = self
                    .engine
                    .public_keys(permit, request.options.min_generation)
                    .map_err(RpcError::from)?;
                response.encode(out);
                Ok(Applied::at(response.generation))
            }
            Control::App(request) => {
                let changed = control::change_app(state, request.clone()).await?;
                changed.encode(out);
                tracing::info!(
                    %principal, %method, app = request.app, key = changed.key, generation = changed.generation,
                    "changed an app"
                );
                self.engine.apps.changed_here().await;
                Ok(Applied {
                    key: changed.key,
                    ..Applied::at(changed.generation)
                })
            }
            Control::Collection(request) => {
                let objects = self
                    .engine
                    .objects
                    .as_ref()
                    .map(|objects| &**objects.store());
                let changed = control::change_collection(state, objects, request).await?;
                changed.encode(out);
                tracing::info!(
                    %principal, %method, app = request.app, collection = request.collection,
                    generation = changed.generation, "changed a collection"
                );
                self.engine.apps.changed_here().await;
                Ok(Applied::at(changed.generation))
            }
            Control::Role(request) => {
                let changed = control::change_role(store, request).await?;
                changed.encode(out);
                tracing::info!(%principal, %method, role = request.role, generation = changed.generation, "changed a role");
                self.engine.apps.changed_here().await;
                Ok(Applied::at(changed.generation))
            }
            Control::Principal(request) => {
                let changed = control::change_principal(store, *request).await?;
                changed.encode(out);
                let generation = changed.generation;
                tracing::info!(%principal, %method, of = request.principal, generation, "changed the roles of a principal");
                self.engine.apps.changed_here().await;
                Ok(Applied::at(generation))
            }
        }
    }

    async fn change_root(
        &self,
        principal: &Principal,
        method: Method,
        operation: &RootOperation<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Applied, RpcError> {
        let changed = self.root.run(operation, ROTATION_WAIT, |_| ()).await;
        if !matches!(operation, RootOperation::Status) {
            tracing::info!(%principal, %method, is_done = changed.is_ok(), "changed the root key");
            if changed.is_ok() {
                self.engine.apps.changed_here().await;
            } else {
                // A part of the operation may be complete. The operation changes no role, so cached
                // permissions stay valid. Keep them, because the store may be lost.
                self.engine.apps.request_refresh();
            }
        }

        let changed = changed.map_err(control::store_error)?;
        if matches!(operation, RootOperation::Unseal) {
            // The audit record of this request needs the audit log. An engine that started sealed
            // opens the trail only now.
            let _ = timeout(UNSEAL_WAIT, async {
                self.engine.apps.wait_until_unsealed().await;
                self.engine.audit.wait_until_open().await;
            })
            .await;
        }

        changed.encode(out);
        Ok(Applied::at(changed.generation))
    }

    async fn instances(&self) -> Result<Instances, RpcError> {
        let control = self.engine.apps.control();
        let generation = control.generation().await.map_err(control::store_error)?;
        let instances = control.instances().await.map_err(control::store_error)?;
        Ok(Instances {
            instances: instances.into_iter().map(control::instance).collect(),
            generation,
        })
    }

    fn info(&self) -> Info {
        Info {
            methods: Methods::CONTROL
                .iter()
                .map(|method| method.name().to_owned())
                .collect(),
            limits: vec![
                ("message_bytes_max".into(), MESSAGE_BYTES_MAX),
                ("depth_max".into(), DEPTH_MAX.into()),
                ("elements_max".into(), ELEMENTS_MAX),
            ],
            ..self.engine.info()
        }
    }
}

impl Serve for Arc<ControlService> {
    async fn serve<S>(self, peer: Peer, _entry: Arc<PrincipalEntry>, stream: S, shutdown: Shutdown)
    where
        S: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static,
    {
        connection::Connection::new(self, peer, stream)
            .serve(shutdown)
            .await;
    }
}

/// Returns the error for principals that `control.principals` does not list.
fn not_listed() -> RpcError {
    RpcError::new(
        ErrorCode::Forbidden,
        "this is the control listener (control.address), and control.principals does not list this certificate; requests for data go to listen.address",
    )
}

/// Returns true if a request changes grants or the objects that clients can use. Cached permissions
/// are outdated after such a request.
const fn is_change(request: &Control<'_>) -> bool {
    matches!(
        request,
        Control::App(_)
            | Control::Collection(_)
            | Control::Migrate(_)
            | Control::Role(_)
            | Control::Principal(_)
    )
}
