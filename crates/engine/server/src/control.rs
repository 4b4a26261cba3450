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
use sealwire_wire::{ErrorCode, Info, Method, Methods, RpcError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::accept::{Acceptor, Principals, Serve, listen};
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
const STRANGERS_MAX: usize = 8;
/// Time limit for an unlisted client to send its first message and receive the error. The command
/// line sends its request immediately.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum number of concurrent requests, including those whose client no longer waits.
const CALLS_MAX: usize = CONNECTIONS_MAX;
/// Maximum length of a message. A private key with its names takes a tenth of it.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of values in one message. `roles.set` needs the most.
const ELEMENTS_MAX: u64 = 1_000;
/// Maximum nesting of containers. A request has three levels.
const DEPTH_MAX: u32 = 8;
/// How long a client waits for its request. The store responds earlier, with a result or an error.
const CALL_MAX: Duration = Duration::from_secs(30);
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
    calls: Arc<Semaphore>,
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
        let bind = |source| StartError::Bind {
            key: "control.address",
            address: control.address,
            source,
        };
        let listener = listen(control.address).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        Ok(Bound { listener, address })
    }

    /// Accepts connections until the engine drains.
    pub(crate) fn start(
        bound: Bound,
        gate: Arc<ConnectionRegistry>,
        desk: ControlService,
        network: NetworkScheduler,
        drains: watch::Receiver<bool>,
    ) -> Self {
        let Bound { listener, address } = bound;
        let (connections, calls) = (
            Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            Arc::clone(&desk.calls),
        );
        let acceptor = Acceptor {
            listener,
            gate,
            engine: Arc::clone(&desk.engine),
            service: Arc::new(desk),
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
            calls,
        }
    }

    /// Returns the address of the control listener, with the port that the system chose.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every connection and every request has ended. Each connection ends after its
    /// current request when the engine drains.
    pub(crate) async fn ended(self) {
        let _ = self.accepting.await;
        let _ = self.connections.acquire_many(CONNECTIONS_MAX as u32).await;
        let _ = self.calls.acquire_many(CALLS_MAX as u32).await;
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
    calls: Arc<Semaphore>,
    /// State of the operations on the rows of key versions.
    keys: control::KeyPermits,
    /// Permits for concurrent clients that are not listed.
    strangers: Semaphore,
    /// Throttles the log messages that name unlisted clients.
    stranger: LogThrottle,
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
        let (calls, strangers) = (
            Arc::new(Semaphore::new(CALLS_MAX)),
            Semaphore::new(STRANGERS_MAX),
        );
        let administrators =
            (access.mode != AccessMode::Off).then(|| access.administrators.clone());
        let (keys, stranger) = (control::KeyPermits::default(), LogThrottle::default());
        Self {
            engine,
            root,
            administrators,
            callers,
            calls,
            keys,
            strangers,
            stranger,
        }
    }

    fn admits(&self, principal: &Principal) -> bool {
        let listed =
            |caller: &Caller| caller.0 == principal.kind() && caller.1 == principal.as_str();
        self.callers.is_empty() || self.callers.iter().any(listed)
    }

    /// Checks that a request can start now. A sealed engine accepts only the status and unseal
    /// requests. An engine that started sealed has no audit trail yet, but it must still accept
    /// these two requests.
    fn ready(&self, call: &Control<'_>) -> Result<(), RequestFailure> {
        let is_open = matches!(
            call,
            Control::Root(RootOperation::Status | RootOperation::Unseal)
        );
        match self.engine.apps.check_unsealed() {
            Err(_) if is_open && !self.engine.audit.is_open() => Ok(()),
            Err(sealed) if !is_open => Err(sealed),
            _ => self.engine.audit.ready(),
        }
    }

    /// Returns true if the store is sealed, even if this engine has not noticed that yet: a role in
    /// its cache must not unseal the store. Returns `None` if the store has no root key.
    async fn is_sealed(&self) -> Result<Option<bool>, RpcError> {
        let apps = &self.engine.apps;
        let (_, root) = apps.control().root().await.map_err(control::refused)?;
        Ok(root.map(|root| apps.is_sealed() || root.sealed_unix_s.is_some()))
    }

    /// Authorizes a request, executes it and appends its result to `out`.
    async fn answer(
        &self,
        principal: &Principal,
        call: &Control<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Applied, RpcError> {
        let asked = access::of_control(call);
        let asked = asked.ok_or_else(|| {
            RpcError::new(ErrorCode::Internal, "a control call without an operation")
        })?;
        let sealed = match call {
            Control::Root(RootOperation::Status | RootOperation::Unseal) => {
                self.is_sealed().await?
            }
            _ => None,
        };
        if let (Control::Root(operation), Some(true)) = (call, sealed) {
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
                .change_root(principal, call.method(), operation, out)
                .await;
        }
        let permit = self
            .engine
            .decider
            .decide(principal, asked)
            .await
            .map_err(|failure| failure.to_rpc_error())?;
        if let Control::Root(RootOperation::Unseal) = call {
            // The store may have been sealed since the check. A role must not undo that.
            return match sealed {
                Some(_) => {
                    self.change_root(principal, call.method(), &RootOperation::Status, out)
                        .await
                }
                None => Err(RpcError::new(
                    ErrorCode::BadRequest,
                    "the store has no root key; `sealwire kek init` creates one",
                )),
            };
        }
        let done = self.answer_permitted(&permit, principal, call, out).await;
        if done
            .as_ref()
            .is_err_and(|error| error.code == ErrorCode::Internal)
            && is_change(call)
        {
            // The change may have been made even though its anchor was not written.
            self.engine.apps.changed_here().await;
        }
        done
    }

    async fn answer_permitted(
        &self,
        permit: &Permit<'_>,
        principal: &Principal,
        call: &Control<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Applied, RpcError> {
        let (state, method) = (self.engine.apps.control(), permit.operation());
        let store = &**state.store();
        match call {
            Control::Apps(page) => {
                let found = control::apps(state, *page).await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::Export(page) => {
                let found = control::export(state, *page).await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::Collections(call) => {
                let found = control::collections(state, call.app, call.page).await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::Root(operation) => {
                self.change_root(principal, call.method(), operation, out)
                    .await
            }
            Control::Census(call) => {
                let found = control::census(&self.engine, &self.keys, call).await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::RewrapRows(call) => {
                let done = control::rewrap(&self.engine, &self.keys, call).await?;
                done.encode(out);
                Ok(Applied {
                    rows: (done.rewrapped, done.unopened + done.unauthenticated),
                    ..Applied::at(done.generation)
                })
            }
            Control::Migrate(call) => {
                let done = control::migrate(&self.engine, &self.keys, call).await?;
                done.encode(out);
                let unaccepted = if call.accept_unauthenticated {
                    0
                } else {
                    done.unauthenticated.len()
                };
                let left = done.unopened.len() + done.erased.len() + unaccepted;
                Ok(Applied {
                    rows: (done.migrated, left as u64),
                    ..Applied::at(done.generation)
                })
            }
            Control::Instances => {
                let found = self.instances().await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::Roles(page) => {
                let found = control::roles(store, *page).await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::Principals(page) => {
                let found = control::principals(store, *page).await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::Check(call) => {
                let found = control::check(&self.engine.decider, call).await?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::PublicKeys(call) => {
                let found = self
                    .engine
                    .public_keys(permit, call.options.min_generation)
                    .map_err(|failure| failure.to_rpc_error())?;
                found.encode(out);
                Ok(Applied::at(found.generation))
            }
            Control::App(call) => {
                let changed = control::change_app(state, call.clone()).await?;
                changed.encode(out);
                tracing::info!(
                    %principal, %method, app = call.app, key = changed.key, generation = changed.generation,
                    "changed an app"
                );
                self.engine.apps.changed_here().await;
                Ok(Applied {
                    key: changed.key,
                    ..Applied::at(changed.generation)
                })
            }
            Control::Collection(call) => {
                let objects = self
                    .engine
                    .objects
                    .as_ref()
                    .map(|objects| &**objects.store());
                let changed = control::change_collection(state, objects, call).await?;
                changed.encode(out);
                tracing::info!(
                    %principal, %method, app = call.app, collection = call.collection,
                    generation = changed.generation, "changed a collection"
                );
                self.engine.apps.changed_here().await;
                Ok(Applied::at(changed.generation))
            }
            Control::Role(call) => {
                let changed = control::change_role(store, call).await?;
                changed.encode(out);
                tracing::info!(%principal, %method, role = call.role, generation = changed.generation, "changed a role");
                self.engine.apps.changed_here().await;
                Ok(Applied::at(changed.generation))
            }
            Control::Principal(call) => {
                let changed = control::change_principal(store, *call).await?;
                changed.encode(out);
                let generation = changed.generation;
                tracing::info!(%principal, %method, of = call.principal, generation, "changed the roles of a principal");
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
                self.engine.apps.look();
            }
        }
        let changed = changed.map_err(control::refused)?;
        if matches!(operation, RootOperation::Unseal) {
            // The audit record of this request needs the audit trail. An engine that started sealed
            // opens the trail only now.
            let _ = timeout(UNSEAL_WAIT, async {
                self.engine.apps.unsealed().await;
                self.engine.audit.opened().await;
            })
            .await;
        }
        changed.encode(out);
        Ok(Applied::at(changed.generation))
    }

    async fn instances(&self) -> Result<Instances, RpcError> {
        let control = self.engine.apps.control();
        let generation = control.generation().await.map_err(control::refused)?;
        let instances = control.instances().await.map_err(control::refused)?;
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
    async fn serve<S>(self, peer: Peer, stream: S, shutdown: Shutdown)
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
        "this certificate may not change control state: control.principals lists who may",
    )
}
/// Returns true if a request changes grants or the objects that clients can use. Cached permissions
/// are outdated after such a request.
const fn is_change(call: &Control<'_>) -> bool {
    matches!(
        call,
        Control::App(_)
            | Control::Collection(_)
            | Control::Migrate(_)
            | Control::Role(_)
            | Control::Principal(_)
    )
}
