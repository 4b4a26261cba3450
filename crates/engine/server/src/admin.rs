//! The paths of an engine's admin listener.
//!
//! `/live` says that the process runs, and nothing else: a lost dependency is no reason to restart
//! it. `/ready` says whether to send requests here: those that need no store are served while the
//! store is lost. `/ready/store` says whether the others are served, too. None asks anything of
//! anybody while answering, and only atomics are shared with the engine.

use std::net::SocketAddr;
use std::sync::Arc;

use sealwire_service::admin_server::{AdminResponse, AdminRoutes, AdminServer};
use sealwire_telemetry::{State, Telemetry};

use crate::error::StartError;

struct EngineRoutes(Arc<Telemetry>);

/// Starts the listener on the thread `sealwire-admin`.
pub(crate) fn start(address: SocketAddr, state: Arc<Telemetry>) -> Result<AdminServer, StartError> {
    let server = AdminServer::start(address, "sealwire-admin", EngineRoutes(state));
    server.map_err(|source| StartError::Bind {
        key: "admin.address",
        address,
        source,
    })
}

impl AdminRoutes for EngineRoutes {
    const PATHS: &'static [&'static str] = &["/live", "/ready", "/ready/store", "/metrics"];

    fn get(&self, path: &str) -> AdminResponse {
        match path {
            "/live" => AdminResponse::Ok("live\n".to_owned()),
            "/metrics" => AdminResponse::Metrics(self.0.exposition()),
            _ => match self.0.readiness.state() {
                State::Ready => AdminResponse::Ok("ready\n".to_owned()),
                State::ReadyWithoutStore(failing) if path == "/ready" => {
                    AdminResponse::Ok(format!("ready, but {failing}\n"))
                }
                State::ReadyWithoutStore(reason) | State::NotReady(reason) => {
                    AdminResponse::Unavailable(format!("{reason}\n"))
                }
            },
        }
    }
}

#[cfg(test)]
mod tests;
