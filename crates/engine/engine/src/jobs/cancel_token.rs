//! Stops requests: one atomic flag, which the job of a request checks before every field.
//!
//! The connection holds one [`CancelToken`] per request in flight, by msgid, and the job holds a
//! clone. The response to a stopped request does not wait for the job, which ends at its next
//! field.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sealwire_mask::Mask;
use sealwire_telemetry::metrics::CancelReason;
use tokio::sync::Notify;

/// The reason for which a request is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The client sent `cancel`.
    Cancel = 1,
    /// The request's deadline passed.
    Deadline = 2,
    /// The request's connection ended.
    Disconnect = 3,
    /// The engine shuts down.
    Drain = 4,
    /// The client certificate of the connection is no longer accepted.
    CertificateRejected = 5,
}

impl StopReason {
    /// Returns the label under which stopped requests are counted. Drains and expired certificates
    /// are not counted, since the operator caused them.
    pub fn cancel_reason(self) -> Option<CancelReason> {
        match self {
            Self::Cancel => Some(CancelReason::Cancel),
            Self::Deadline => Some(CancelReason::Deadline),
            Self::Disconnect => Some(CancelReason::Disconnect),
            Self::Drain | Self::CertificateRejected => None,
        }
    }
}

/// Tells the job of one request whether to continue.
#[derive(Debug, Default)]
pub struct CancelToken {
    stopped: AtomicU8,
    notify: Notify,
    done: [AtomicU64; 2],
    /// The generation plus one; 0: not planned yet.
    planned: AtomicU64,
    /// The mask through which the principal sees values, if its role has one.
    mask: OnceLock<Box<str>>,
    /// Data subjects of the request. Most requests have none.
    subjects: OnceLock<Mutex<SubjectNotes>>,
}

/// Notes on data subjects, for the audit record of a request.
#[derive(Debug, Default)]
struct SubjectNotes {
    /// Data subjects whose objects the request reads or writes.
    ids: BTreeSet<[u8; 16]>,
    /// Version and creation time of the key that the request erases.
    erases: Option<(u64, u64)>,
}

impl CancelToken {
    /// Stops the request. The first reason stays.
    pub fn stop(&self, reason: StopReason) {
        // Relaxed: the flag guards no other memory.
        if self
            .stopped
            .compare_exchange(0, reason as u8, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        {
            self.notify.notify_one();
        }
    }

    /// Returns the reason for which the request is stopped, if it is. Takes one relaxed load.
    #[inline]
    pub fn stop_reason(&self) -> Option<StopReason> {
        match self.stopped.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(StopReason::Cancel),
            2 => Some(StopReason::Deadline),
            3 => Some(StopReason::Disconnect),
            4 => Some(StopReason::Drain),
            _ => Some(StopReason::CertificateRejected),
        }
    }

    /// Sets the number of fields done so far, and of those that failed.
    pub fn set_field_counts(&self, fields: u64, errors: u64) {
        self.done[0].store(fields, Ordering::Relaxed);
        self.done[1].store(errors, Ordering::Relaxed);
    }

    /// Returns the last counts. The counts are final once the job has sent its result.
    pub fn field_counts(&self) -> (u64, u64) {
        (
            self.done[0].load(Ordering::Relaxed),
            self.done[1].load(Ordering::Relaxed),
        )
    }

    /// Notes the generation under which the request was planned.
    pub fn set_generation(&self, generation: u64) {
        self.planned
            .store(generation.saturating_add(1), Ordering::Relaxed);
    }

    /// Returns the generation under which the request was planned.
    pub fn planned_generation(&self) -> Option<u64> {
        self.planned.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Notes that the principal sees values through a mask.
    pub fn set_mask(&self, mask: &Mask) {
        let _ = self.mask.set(mask.function().to_string().into());
    }

    /// Returns the function of that mask.
    pub fn mask_text(&self) -> Option<&str> {
        self.mask.get().map(|mask| &**mask)
    }

    /// Notes the version and the creation time of the key of a data subject, before it is erased.
    pub fn note_erasure(&self, version: u64, created: u64) {
        lock(self.subjects.get_or_init(Mutex::default)).erases = Some((version, created));
    }

    /// Returns the version and the creation time of the key that the request erases.
    pub fn erasure(&self) -> Option<(u64, u64)> {
        lock(self.subjects.get()?).erases
    }

    /// Notes data subjects whose objects the request reads or writes.
    pub fn note_subjects(&self, subjects: impl IntoIterator<Item = [u8; 16]>) {
        let mut subjects = subjects.into_iter().peekable();
        if subjects.peek().is_some() {
            lock(self.subjects.get_or_init(Mutex::default))
                .ids
                .extend(subjects);
        }
    }

    /// Returns the noted data subjects, sorted.
    pub fn subjects(&self) -> Vec<[u8; 16]> {
        self.subjects
            .get()
            .map_or_else(Vec::new, |notes| lock(notes).ids.iter().copied().collect())
    }

    /// Waits until the request is stopped. There must be at most one waiter. Cancel-safe.
    pub async fn stopped(&self) -> StopReason {
        loop {
            if let Some(reason) = self.stop_reason() {
                return reason;
            }
            self.notify.notified().await;
        }
    }
}

fn lock(notes: &Mutex<SubjectNotes>) -> MutexGuard<'_, SubjectNotes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cancel tokens of the requests in flight on one connection, by msgid.
#[derive(Clone, Debug, Default)]
pub struct CancelTokens(Arc<Mutex<HashMap<u32, Arc<CancelToken>>>>);

impl CancelTokens {
    /// Issues the token of a new request; `None` if its msgid is in flight already.
    pub fn issue(&self, msgid: u32) -> Option<CancelGuard> {
        match self.lock().entry(msgid) {
            Entry::Occupied(_) => None,
            Entry::Vacant(entry) => {
                let cancel = Arc::clone(entry.insert(Arc::default()));
                Some(CancelGuard {
                    cancel,
                    msgid,
                    cancel_tokens: self.clone(),
                })
            }
        }
    }

    /// Stops one request, if it is in flight.
    pub fn stop(&self, msgid: u32, reason: StopReason) {
        if let Some(cancel) = self.lock().get(&msgid) {
            cancel.stop(reason);
        }
    }

    /// Stops every request in flight.
    pub fn stop_all(&self, reason: StopReason) {
        self.lock().values().for_each(|cancel| cancel.stop(reason));
    }

    /// Returns true if a request of that msgid is in flight.
    pub fn contains(&self, msgid: u32) -> bool {
        self.lock().contains_key(&msgid)
    }

    /// Returns the number of requests in flight.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns true if no request is in flight.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<CancelToken>>> {
        // A map of flags is consistent after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a token in its connection's map. Dropping the guard removes it.
#[derive(Debug)]
pub struct CancelGuard {
    cancel: Arc<CancelToken>,
    msgid: u32,
    cancel_tokens: CancelTokens,
}

impl CancelGuard {
    /// Returns the token.
    pub fn token(&self) -> &Arc<CancelToken> {
        &self.cancel
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.cancel_tokens.lock().remove(&self.msgid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_msgid_is_in_flight_once_and_its_entry_goes_with_the_guard() {
        let cancel_tokens = CancelTokens::default();
        let first = cancel_tokens.issue(7).unwrap();
        assert!(cancel_tokens.issue(7).is_none());
        cancel_tokens.stop(8, StopReason::Cancel);
        assert_eq!(first.token().stop_reason(), None);
        cancel_tokens.stop(7, StopReason::Cancel);
        cancel_tokens.stop_all(StopReason::Disconnect);
        assert_eq!(
            first.token().stop_reason(),
            Some(StopReason::Cancel),
            "the first reason stays"
        );
        drop(first);
        assert!(cancel_tokens.is_empty() && cancel_tokens.issue(7).is_some());
    }

    #[tokio::test]
    async fn a_stop_before_and_after_the_wait_is_seen() {
        let cancel = Arc::new(CancelToken::default());
        cancel.stop(StopReason::Deadline);
        assert_eq!(cancel.stopped().await, StopReason::Deadline);
        let cancel = Arc::new(CancelToken::default());
        let waiting = tokio::spawn({
            let cancel = Arc::clone(&cancel);
            async move { cancel.stopped().await }
        });
        tokio::task::yield_now().await;
        cancel.stop(StopReason::Drain);
        assert_eq!(waiting.await.unwrap(), StopReason::Drain);
    }
}
