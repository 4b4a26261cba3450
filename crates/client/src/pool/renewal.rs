//! Replacement of connections under a running client: those under certificates that were renewed since, and old ones. No
//! request fails.
//!
//! Connections of an endpoint are kept until a new connection is proven to work, because the endpoint may not trust a
//! renewed certificate yet, or may not accept connections.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use crate::endpoints::{EndpointTable, Slot};

/// Time between checks of the certificate files and of the connections' ages.
pub(super) const LOOK_PERIOD: Duration = Duration::from_secs(10);

impl Inner {
    /// Starts a check for connections to replace if one is due, in a task outside the request path.
    pub(super) fn look_for_renewal(self: &Arc<Self>, table: &mut EndpointTable, now: Instant) {
        if table.look_at.is_none_or(|at| at > now) {
            return;
        }
        // Only one check runs at a time.
        table.look_at = None;
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let renewed = match &inner.renewals {
                Some(look) => look().await,
                None => None,
            };
            inner.renew(renewed).await;
            inner.table().look_at = Some(Instant::now() + LOOK_PERIOD);
        });
    }

    /// Replaces old connections, and those that were opened before the certificates were `renewed`, one endpoint after
    /// another.
    async fn renew(&self, renewed: Option<Instant>) {
        let now = Instant::now();
        let is_old = |slot: &Slot| {
            let Slot::Taken { since, old_at, .. } = slot else { return false };
            *old_at <= now || renewed.is_some_and(|renewed| *since < renewed)
        };
        for endpoint in 0..self.doubted.len() {
            if !self.table().targets[endpoint].slots.iter().any(is_old) {
                continue;
            }
            let proven = self.proven(endpoint).await;
            let mut table = self.table();
            let target = &mut table.targets[endpoint];
            let Some(connection) = proven else {
                tracing::warn!(address = target.address, "no new connection gets through; old connections stay");
                continue;
            };
            if renewed.is_some() {
                tracing::info!(address = target.address, "connections are replaced under renewed certificates");
            }
            for slot in target.slots.iter_mut().filter(|slot| is_old(slot)) {
                if let Slot::Taken { connection, .. } = std::mem::replace(slot, Slot::Empty) {
                    // The connection closes after its last request.
                    connection.state().retire();
                }
            }
            if let Some(slot) = target.slots.iter_mut().find(|slot| matches!(slot, Slot::Empty)) {
                *slot = self.taken(connection, Instant::now());
            }
            drop(table);
            self.changed.notify_waiters();
        }
    }
}
