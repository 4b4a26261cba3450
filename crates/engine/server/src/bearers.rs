//! Clients of the HTTP listener that authenticate each request by a bearer token.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sealwire_access::Principal;
use sealwire_engine::engine::Engine;
use sealwire_http::{AuthenticationError, Bearers, BodyAccount, BoxFuture, ClientLink};
use sealwire_service::bearer::TokenVerifier;
use sealwire_telemetry::LogThrottle;
use sealwire_telemetry::metrics::{BearerOutcome, HttpStatusLabel};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::accept::Principals;
use crate::connection::{self, Peer, PrincipalState};
use crate::http::{EngineLink, HttpService};
use crate::network_scheduler::NetworkScheduler;
use crate::origins::{OriginEntry, Origins};
use crate::shutdown::Shutdown;

/// What the connections of all clients with tokens share.
#[derive(Clone)]
pub(crate) struct BearerAuthentication {
    pub(crate) verifier: Arc<TokenVerifier>,
    pub(crate) origins: Arc<Origins>,
    /// The principals of all listeners, with their connections.
    pub(crate) principals: Arc<Principals>,
    pub(crate) network: NetworkScheduler,
    pub(crate) drains: watch::Receiver<bool>,
    /// Limits the log lines about tokens that are not valid.
    pub(crate) rejections: Arc<LogThrottle>,
}

impl BearerAuthentication {
    /// Returns the shutdown of a connection inside the process: that of the engine, since no
    /// certificate can be revoked.
    pub(crate) fn shutdown(&self) -> Shutdown {
        Shutdown::new(self.drains.clone(), watch::channel(None).1)
    }
}

/// The clients of one connection.
pub(crate) struct ConnectionBearers {
    service: HttpService,
    engine: Arc<Engine>,
    shared: BearerAuthentication,
    origin: Arc<OriginEntry>,
    /// The connections to the engine, one per principal that is in use.
    sessions: Mutex<JoinSet<()>>,
}

impl ConnectionBearers {
    pub(crate) fn new(
        service: HttpService,
        engine: Arc<Engine>,
        shared: BearerAuthentication,
        origin: Arc<OriginEntry>,
    ) -> Self {
        Self {
            service,
            engine,
            shared,
            origin,
            sessions: Mutex::default(),
        }
    }

    /// Waits until the connections to the engine have ended. They end after the client's connection.
    pub(crate) async fn wait_for_sessions(&self) {
        let mut sessions =
            std::mem::take(&mut *self.sessions.lock().unwrap_or_else(PoisonError::into_inner));
        while sessions.join_next().await.is_some() {}
    }

    async fn principal_of(&self, token: &str) -> Result<Principal, AuthenticationError> {
        let metrics = &self.engine.metrics;
        let charged = self.origin.charge().await.map_err(|retry_after| {
            metrics.bearer_token(BearerOutcome::Limited);
            AuthenticationError::Limited { retry_after }
        })?;
        match self.shared.verifier.verify(token).await {
            Ok(principal) => {
                charged.refund();
                metrics.bearer_token(BearerOutcome::Verified);
                Ok(principal)
            }
            // The token stays charged, because it was parsed like every other one.
            Err(error) if error.is_unavailable() => {
                metrics.bearer_token(BearerOutcome::Unavailable);
                Err(AuthenticationError::Unavailable(error.to_string()))
            }
            Err(error) => {
                metrics.bearer_token(BearerOutcome::Rejected);
                if let Some(suppressed) = self.shared.rejections.record(std::time::Instant::now()) {
                    let reason = error.kind();
                    tracing::warn!(
                        reason,
                        suppressed,
                        "rejected a token; the response says why"
                    );
                }
                Err(AuthenticationError::Invalid(error.to_string()))
            }
        }
    }

    /// Starts a connection to the engine, under the limits of the principal.
    fn start_session(&self, principal: &Principal) -> Option<ClientLink> {
        let engine = &self.engine;
        let per_principal_max = engine.limits.connections_per_principal_max;
        let entry = self
            .shared
            .principals
            .register(principal, per_principal_max, || {
                PrincipalState::new(&engine.limits, &self.shared.network)
            })?;
        let entry = Arc::new(entry);
        let state = Arc::clone(&entry.state);
        let EngineLink {
            client,
            engine: pipe,
            results,
        } = self.service.link(&entry);
        let peer = Peer {
            principal: principal.clone(),
            state: Arc::clone(&state),
        };
        let shutdown = self.shared.shutdown();
        let engine = Arc::clone(engine);
        let serving = Arc::clone(&state.network).run(async move {
            connection::serve_http(engine, peer, pipe, shutdown, results).await;
            drop(entry);
        });
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        while sessions.try_join_next().is_some() {}
        sessions.spawn(serving);
        Some(client)
    }
}

impl Bearers for ConnectionBearers {
    fn remembered(&self, token: &str) -> Option<Principal> {
        let principal = self.shared.verifier.cached(token)?;
        self.engine.metrics.bearer_token(BearerOutcome::Cached);
        Some(principal)
    }

    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Principal, AuthenticationError>> {
        Box::pin(self.principal_of(token))
    }

    fn note_authenticated(&self) {
        self.origin.authenticated();
    }

    fn charge_rejected(&self) -> Option<Duration> {
        let pause = self.origin.charge_rejected();
        let outcome = match pause {
            Some(_) => BearerOutcome::Limited,
            None => BearerOutcome::Rejected,
        };
        self.engine.metrics.bearer_token(outcome);
        pause
    }

    fn count_rejected(&self, status: u16) {
        let label = HttpStatusLabel::of_status(status);
        self.engine.metrics.count_http_rejection(label);
    }

    fn head_memory(&self) -> BodyAccount {
        self.origin.head_memory()
    }

    fn connect(&self, principal: &Principal) -> Option<ClientLink> {
        self.start_session(principal)
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        let mut drains = self.shared.drains.clone();
        Box::pin(async move {
            // A dropped sender means that the engine is gone.
            let _ = drains.wait_for(|draining| *draining).await;
        })
    }
}
