//! The control plane: a listener for changes of apps, keys and collections.
//!
//! Control requests are few and small, so one task serves a connection, one request after the
//! other, without the scheduler. Clients are authorized twice: by the authority of their
//! certificate, and by the configured list of principals. A client that is not listed gets one
//! error and is disconnected; few such connections are served at a time. The operations are in
//! `calls.rs`, which the command line also uses on a file.
//!
//! A change that has begun completes, even if its client disconnects or stops waiting; a drain
//! waits for it.

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
use sealwire_engine::jobs::error::CallFailure;
use sealwire_engine::root::RootAdmin;
use sealwire_engine::{access, control};
use sealwire_settings::{Access, Caller, ControlListen};
use sealwire_telemetry::LogThrottle;

/// Connections to the control listener at most.
const CONNECTIONS_MAX: usize = 64;
/// Largest number of connections of one principal.
const CONNECTIONS_PER_PRINCIPAL_MAX: usize = 16;
/// Handshakes at once.
const HANDSHAKES_MAX: usize = 8;
/// Callers at once that are not listed: what they hold, no operator has.
const STRANGERS_MAX: usize = 8;
/// How long one of them has for its first message and what it is told. The command line speaks at
/// once.
const STRANGER_TIME_MAX: Duration = Duration::from_secs(3);
/// Calls at once, with those that nobody waits for any more.
const CALLS_MAX: usize = CONNECTIONS_MAX;
/// The longest message: a private key and its names take a tenth.
const MESSAGE_BYTES_MAX: u64 = 1 << 20;
/// Values in one message; `roles.set` has the most.
const ELEMENTS_MAX: u64 = 1_000;
/// Nested containers; a call has three.
const DEPTH_MAX: u32 = 8;
/// How long a caller waits for a call. The store answers sooner, whatever has become of it.
const CALL_MAX: Duration = Duration::from_secs(30);
/// How long a rotation of the root key waits for live engines within one call.
const ROTATION_WAIT: Duration = Duration::from_secs(15);
/// How long the call that unseals the store waits until this engine serves and can record.
const UNSEAL_WAIT: Duration = Duration::from_secs(10);

/// The control listener while it is open.
#[derive(Debug)]
pub(crate) struct ControlServer {
    address: SocketAddr,
    accepting: JoinHandle<()>,
    connections: Arc<Semaphore>,
    calls: Arc<Semaphore>,
}

/// A listener that nobody takes connections from yet.
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

    /// Takes connections until the engine drains.
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

    /// Where control calls are taken, with the port the system chose.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when every connection has ended, which the drain tells them to: after its call. Then
    /// every call has, too.
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
    /// The principals of `access.administrators`. `None`: nobody needs a role.
    ///
    /// While the store is sealed, these alone may read the state of the root key and unseal. Their
    /// list is in a file that only the machine's owner writes. Roles are in the store, and the key
    /// that verifies its records is wiped.
    administrators: Option<Vec<Principal>>,
    /// The permitted clients; empty: everyone with a certificate of the authority.
    callers: Vec<Caller>,
    /// A permit for each call at once.
    calls: Arc<Semaphore>,
    /// State of the operations on the rows of key versions.
    keys: control::KeyPermits,
    /// A permit for each caller at once that is not listed.
    strangers: Semaphore,
    /// Says who they are, once in a while.
    stranger: LogThrottle,
}

impl ControlService {
    /// Serves an engine to these clients; empty: to everyone with a certificate of the authority.
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

    /// Fails where a call cannot begin now. A sealed engine has two methods left. One that started
    /// sealed has no audit trail yet, which is no reason not to unseal it.
    fn ready(&self, call: &Control<'_>) -> Result<(), CallFailure> {
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

    /// Returns true if the store is sealed, also if this engine has not heard of that yet: roles in
    /// its cache must not unseal. `None`: the store has no root key.
    async fn is_sealed(&self) -> Result<Option<bool>, RpcError> {
        let apps = &self.engine.apps;
        let (_, root) = apps.control().root().await.map_err(control::refused)?;
        Ok(root.map(|root| apps.is_sealed() || root.sealed_unix_s.is_some()))
    }

    /// Decides on a call and answers it: appends its result.
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
            .map_err(|failure| failure.answer())?;
        if let Control::Root(RootOperation::Unseal) = call {
            // A seal since then must not be undone by a role.
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
            // A change can have been made, although its anchor was not written.
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
                    .map_err(|failure| failure.answer())?;
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
                // A part may be done. No role is changed by it, so cached permissions stay: the
                // store may be lost.
                self.engine.apps.look();
            }
        }
        let changed = changed.map_err(control::refused)?;
        if matches!(operation, RootOperation::Unseal) {
            // Its own record needs the audit trail, which an engine that started sealed opens only
            // now.
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
/// Returns true if a request changes what is granted, or what is served to whom. Cached permissions
/// are no longer true after it.
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
