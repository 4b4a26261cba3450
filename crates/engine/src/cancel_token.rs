//! How a call is told to stop: one atomic that the work looks at before every field.
//!
//! The connection holds one [`CancelToken`] per call in flight, by msgid; the work holds the other. Whoever stops a
//! call does not wait for the work to notice: the answer goes out at once and the work ends at its next field.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sealwire_mask::Mask;
use sealwire_telemetry::metrics::CancelReason;
use tokio::sync::Notify;

/// Why a call is stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its caller sent `cancel`.
    Cancel = 1,
    /// Its deadline passed.
    Deadline = 2,
    /// Its connection went.
    Disconnect = 3,
    /// The engine shuts down.
    Drain = 4,
    /// The certificate that opened its connection is not accepted any more.
    Expelled = 5,
}

impl StopReason {
    /// Returns the label under which stopped calls are counted. Drains and expired certificates are not counted, since the
    /// operator caused them.
    pub fn counted(self) -> Option<CancelReason> {
        match self {
            Self::Cancel => Some(CancelReason::Cancel),
            Self::Deadline => Some(CancelReason::Deadline),
            Self::Disconnect => Some(CancelReason::Disconnect),
            Self::Drain | Self::Expelled => None,
        }
    }
}

/// Tells the job of one request whether to go on.
#[derive(Debug, Default)]
pub struct CancelToken {
    stopped: AtomicU8,
    notify: Notify,
    done: [AtomicU64; 2],
    /// One more than the generation; 0: not planned yet.
    planned: AtomicU64,
    /// The function that the caller sees values through, if it is not to see them.
    mask: OnceLock<Box<str>>,
}

impl CancelToken {
    /// Stops the call. The first reason stays.
    pub fn stop(&self, reason: StopReason) {
        // Relaxed: the flag guards no other memory.
        if self.stopped.compare_exchange(0, reason as u8, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.notify.notify_one();
        }
    }

    /// Why the call is stopped, if it is. One relaxed load.
    #[inline]
    pub fn stop_reason(&self) -> Option<StopReason> {
        match self.stopped.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(StopReason::Cancel),
            2 => Some(StopReason::Deadline),
            3 => Some(StopReason::Disconnect),
            4 => Some(StopReason::Drain),
            _ => Some(StopReason::Expelled),
        }
    }

    /// Notes what was done so far: fields, and of them those that were refused.
    pub fn did(&self, fields: u64, errors: u64) {
        self.done[0].store(fields, Ordering::Relaxed);
        self.done[1].store(errors, Ordering::Relaxed);
    }

    /// Returns the counts noted last. They are complete once the job has sent its end.
    pub fn done(&self) -> (u64, u64) {
        (self.done[0].load(Ordering::Relaxed), self.done[1].load(Ordering::Relaxed))
    }

    /// Notes the generation that the call was planned under.
    pub fn plan_under(&self, generation: u64) {
        self.planned.store(generation.saturating_add(1), Ordering::Relaxed);
    }

    /// That generation, once it was planned.
    pub fn planned_under(&self) -> Option<u64> {
        self.planned.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Notes that the caller sees values through a mask.
    pub fn show_through(&self, mask: &Mask) {
        let _ = self.mask.set(mask.function().to_string().into());
    }

    /// That function.
    pub fn shown_through(&self) -> Option<&str> {
        self.mask.get().map(|mask| &**mask)
    }

    /// Waits until the call is stopped. One waiter at a time. Safe to drop midway.
    pub async fn stopped(&self) -> StopReason {
        loop {
            if let Some(reason) = self.stop_reason() {
                return reason;
            }
            self.notify.notified().await;
        }
    }
}

/// The calls in flight on one connection, by msgid.
#[derive(Clone, Debug, Default)]
pub struct CancelTokens(Arc<Mutex<HashMap<u32, Arc<CancelToken>>>>);

impl CancelTokens {
    /// A ticket for a new call; `None` when its msgid is in flight already.
    pub fn issue(&self, msgid: u32) -> Option<CancelGuard> {
        match self.lock().entry(msgid) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                let ticket = Arc::clone(entry.insert(Arc::default()));
                Some(CancelGuard { ticket, msgid, tickets: self.clone() })
            }
        }
    }

    /// Stops one call, if it is in flight.
    pub fn stop(&self, msgid: u32, reason: StopReason) {
        if let Some(ticket) = self.lock().get(&msgid) {
            ticket.stop(reason);
        }
    }

    /// Stops every call in flight.
    pub fn stop_all(&self, reason: StopReason) {
        self.lock().values().for_each(|ticket| ticket.stop(reason));
    }

    /// Returns true if a request of that msgid is in flight.
    pub fn contains(&self, msgid: u32) -> bool {
        self.lock().contains_key(&msgid)
    }

    /// Calls in flight.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns true if no request is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<CancelToken>>> {
        // A map of flags is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a call in its connection's map; dropping it takes the entry out, whatever became of the call.
#[derive(Debug)]
pub struct CancelGuard {
    ticket: Arc<CancelToken>,
    msgid: u32,
    tickets: CancelTokens,
}

impl CancelGuard {
    /// The ticket.
    pub fn ticket(&self) -> &Arc<CancelToken> {
        &self.ticket
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.tickets.lock().remove(&self.msgid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_msgid_is_in_flight_once_and_its_entry_goes_with_the_guard() {
        let tickets = CancelTokens::default();
        let first = tickets.issue(7).unwrap();
        assert!(tickets.issue(7).is_none());
        tickets.stop(8, StopReason::Cancel);
        assert_eq!(first.ticket().stop_reason(), None);
        tickets.stop(7, StopReason::Cancel);
        tickets.stop_all(StopReason::Disconnect);
        assert_eq!(first.ticket().stop_reason(), Some(StopReason::Cancel), "the first reason stays");
        drop(first);
        assert!(tickets.is_empty() && tickets.issue(7).is_some());
    }

    #[tokio::test]
    async fn a_stop_before_and_after_the_wait_is_seen() {
        let ticket = Arc::new(CancelToken::default());
        ticket.stop(StopReason::Deadline);
        assert_eq!(ticket.stopped().await, StopReason::Deadline);
        let ticket = Arc::new(CancelToken::default());
        let waiting = tokio::spawn({
            let ticket = Arc::clone(&ticket);
            async move { ticket.stopped().await }
        });
        tokio::task::yield_now().await;
        ticket.stop(StopReason::Drain);
        assert_eq!(waiting.await.unwrap(), StopReason::Drain);
    }
}
