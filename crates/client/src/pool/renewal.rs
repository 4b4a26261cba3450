//! Certificates that are renewed under a running client: connections made with the old ones are replaced, none is broken.
//!
//! An endpoint's connections are kept until a new one has proven itself: a new certificate may not be trusted there yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use crate::endpoints::{EndpointTable, Slot};

/// How often files are looked at while calls are made, and unproven replacements are tried again.
pub(super) const LOOK_PERIOD: Duration = Duration::from_secs(10);

impl Inner {
    /// Looks for renewed certificates if it is time, off the caller's path.
    pub(super) fn look_for_renewal(self: &Arc<Self>, table: &mut EndpointTable, now: Instant) {
        if self.renewals.is_none() || table.look_at.is_none_or(|at| at > now) {
            return;
        }
        // One at a time.
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

    /// Replaces connections that are older than that, endpoint by endpoint.
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
                    // It ends with the last call that has it.
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
