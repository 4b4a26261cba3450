//! The paths of an engine's admin listener.
//!
//! `/live` reports only that the process runs, because a lost dependency is no reason to restart
//! it. `/ready` reports whether to send requests to this engine. Requests that need no store are
//! served while the store is lost. `/ready/store` reports whether the other requests are served,
//! too.
//!
//! No path contacts another service while it responds. The admin listener shares only atomics with
//! the engine.

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
