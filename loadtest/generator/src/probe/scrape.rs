//! The listener for `/metrics`, in plain HTTP/1.1, without authentication.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sealwire_service::admin_server::{AdminResponse, AdminRoutes, AdminServer};

use super::metrics::ProbeMetrics;

struct ProbeRoutes(Arc<ProbeMetrics>);

/// Binds the listener and serves until it is dropped.
pub(crate) fn start(address: SocketAddr, metrics: Arc<ProbeMetrics>) -> io::Result<AdminServer> {
    AdminServer::start(address, "probe-metrics", ProbeRoutes(metrics))
}

impl AdminRoutes for ProbeRoutes {
    const PATHS: &'static [&'static str] = &["/metrics"];

    fn get(&self, _: &str) -> AdminResponse {
        AdminResponse::Metrics(self.0.encode())
    }
}
