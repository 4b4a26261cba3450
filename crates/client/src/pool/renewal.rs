//! Renewal of certificates under a running client. Connections with old certificates are replaced, and no request
//! fails.
//!
//! Old connections of an endpoint are kept until a new connection is proven to work, because the endpoint may not trust
//! the new certificate yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use crate::endpoints::{EndpointTable, Slot};

/// Time between checks of the certificate files, and between attempts to replace old connections.
pub(super) const LOOK_PERIOD: Duration = Duration::from_secs(10);

impl Inner {
    /// Starts a check for renewed certificates if one is due, in a task outside the request path.
    pub(super) fn look_for_renewal(self: &Arc<Self>, table: &mut EndpointTable, now: Instant) {
        if self.renewals.is_none() || table.look_at.is_none_or(|at| at > now) {
            return;
        }
        // Only one check runs at a time.
        table.look_at = None;
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            if let Some(look) = &inner.renewals
                && let Some(since) = look().await
            {
                inner.renew(since).await;
            }
            inner.table().look_at = Some(Instant::now() + LOOK_PERIOD);
        });
    }

    /// Replaces connections that were opened before `since`, one endpoint after another.
    async fn renew(&self, since: Instant) {
        let is_old = |slot: &Slot| matches!(slot, Slot::Taken { since: made, .. } if *made < since);
        for endpoint in 0..self.doubted.len() {
            if !self.table().targets[endpoint].slots.iter().any(is_old) {
                continue;
            }
            let proven = self.proven(endpoint).await;
            let mut table = self.table();
            let target = &mut table.targets[endpoint];
            let Some(connection) = proven else {
                tracing::warn!(
                    address = target.address,
                    "renewed certificates do not get through; old connections stay"
                );
                continue;
            };
            tracing::info!(address = target.address, "connections are replaced under renewed certificates");
            for slot in target.slots.iter_mut().filter(|slot| is_old(slot)) {
                if let Slot::Taken { connection, .. } = std::mem::replace(slot, Slot::Empty) {
                    // The connection closes after its last request.
                    connection.state().retire();
                }
            }
            if let Some(slot) = target.slots.iter_mut().find(|slot| matches!(slot, Slot::Empty)) {
                *slot = Slot::Taken { connection: Arc::new(connection), since: Instant::now() };
            }
            drop(table);
            self.changed.notify_waiters();
        }
    }
}
