//! Replacement of connections under a running client: old connections, and those whose certificates
//! were renewed. No request fails.
//!
//! A connection is kept until a new one is proven to work. Otherwise requests could fail, because
//! the endpoint may not trust a renewed certificate yet, or may permit no further connection.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Inner;
use crate::endpoints::{EndpointTable, Slot};
use crate::jitter;

/// Time between checks of the certificate files and of the connections' ages.
pub(super) const LOOK_PERIOD: Duration = Duration::from_secs(10);
/// Time until the next attempt to replace old connections of an endpoint to which no new connection
/// succeeds. The actual time is up to twice as long, so that many clients do not return together.
const OLD_RETRY_PERIOD: Duration = Duration::from_secs(150);

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
            if let Some(look) = &inner.renewals
                && let Some(since) = look().await
            {
                inner.renew(since).await;
            }
            inner.replace_old().await;
            inner.table().look_at = Some(Instant::now() + LOOK_PERIOD);
        });
    }

    /// Replaces connections that were opened before `since`, one endpoint after another. All
    /// connections of an endpoint end at once, because their certificates will soon be rejected;
    /// requests open new ones.
    async fn renew(&self, since: Instant) {
        let is_before =
            |slot: &Slot| matches!(slot, Slot::Taken { since: made, .. } if *made < since);
        let mut failed: Option<Arc<str>> = None;
        for endpoint in 0..self.doubted.len() {
            if !self.table().targets[endpoint].slots.iter().any(is_before) {
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
                let text = format!(
                    "no connection to {} gets through under the renewed certificates",
                    target.address
                );
                failed.get_or_insert(text.into());
                continue;
            };
            tracing::info!(
                address = target.address,
                "connections are replaced under renewed certificates"
            );
            target
                .slots
                .iter_mut()
                .filter(|slot| is_before(slot))
                .for_each(Slot::retire);
            if let Some(slot) = target
                .slots
                .iter_mut()
                .find(|slot| matches!(slot, Slot::Empty))
            {
                *slot = self.taken(connection, Instant::now());
            }
            drop(table);
            self.changed.notify_waiters();
        }
        *self
            .renewal_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = failed;
    }

    /// Replaces old connections one by one.
    async fn replace_old(&self) {
        let now = Instant::now();
        let is_old = |slot: &Slot| matches!(slot, Slot::Taken { old_at, .. } if *old_at <= now);
        for endpoint in 0..self.doubted.len() {
            let old = {
                let table = self.table();
                let target = &table.targets[endpoint];
                if target.keep_old_until > now {
                    0
                } else {
                    target.slots.iter().filter(|slot| is_old(slot)).count()
                }
            };
            for _ in 0..old {
                let proven = self.proven(endpoint).await;
                let mut table = self.table();
                let target = &mut table.targets[endpoint];
                let Some(connection) = proven else {
                    tracing::debug!(
                        address = target.address,
                        "no new connection gets through; old ones stay"
                    );
                    target.keep_old_until =
                        Instant::now() + OLD_RETRY_PERIOD + jitter::part_of(OLD_RETRY_PERIOD);
                    break;
                };
                // The old connection can have ended meanwhile. The new connection then closes.
                if let Some(slot) = target.slots.iter_mut().find(|slot| is_old(slot)) {
                    slot.retire();
                    *slot = self.taken(connection, Instant::now());
                }
                drop(table);
                self.changed.notify_waiters();
            }
        }
    }
}

impl Slot {
    /// Empties the slot. The connection closes after its last request.
    fn retire(&mut self) {
        if let Self::Taken { connection, .. } = std::mem::replace(self, Self::Empty) {
            connection.state().retire();
        }
    }
}
