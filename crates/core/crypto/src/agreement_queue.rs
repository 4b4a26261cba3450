//! Key agreements of one request that any thread can make before the request needs them.
//!
//! A document whose fields were sealed by many requests takes one Diffie-Hellman per field, and
//! these do not depend on each other. Helpers append envelopes in document order and compute
//! agreements from the end. The opener takes them from the front. If an agreement is not ready, the
//! opener computes it: the opener waits for no other thread's computation.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;

use crate::Suite;
use crate::envelope::{BASE64, BINARY_PREFIX, ENCAPSULATION_BYTES, Header, Parts};
use crate::hybrid::ENC_BYTES;
use crate::recipient::{HeldContext, Recipient};

/// Maximum number of envelopes in a queue, with contexts or without: about 1 KiB each.
const QUEUED_MAX: usize = 128;
/// Number of headers after which the duplicate filter is cleared.
const RECENT_MAX: usize = 1_024;

/// The queue of one request, as the module docs describe it.
pub struct AgreementQueue {
    recipient: Recipient,
    state: Mutex<State>,
}

struct State {
    /// Envelopes in the order of the document.
    entries: VecDeque<Entry>,
    /// The duplicate filter: headers that were added, or whose contexts the opener had.
    recent: HashSet<Header>,
    /// Number of agreements that helpers started.
    started: u64,
}

struct Entry {
    header: Header,
    stage: Stage,
}

enum Stage {
    /// No thread has started the agreement. If the envelope has an encapsulation, it is stored
    /// here.
    Waiting(Option<Box<[u8; ENC_BYTES]>>),
    /// A helper is computing it.
    Running,
    Made(HeldContext),
}

impl AgreementQueue {
    /// `known_headers` are the headers whose contexts the opener has.
    pub(crate) fn new<'a>(
        recipient: Recipient,
        known_headers: impl Iterator<Item = &'a Header>,
    ) -> Self {
        let state = State {
            entries: VecDeque::new(),
            recent: known_headers.copied().collect(),
            started: 0,
        };
        Self {
            recipient,
            state: Mutex::new(state),
        }
    }

    /// Returns true if the queue takes another envelope.
    pub fn has_room(&self) -> bool {
        self.lock().entries.len() < QUEUED_MAX
    }

    /// Adds the agreement of a text envelope, if it needs one that was not added before.
    pub fn add_text(&self, text: &[u8]) {
        let Some(parts) = Header::split_text(text) else {
            return;
        };
        self.add(&parts, || {
            let mut bytes = [0; ENCAPSULATION_BYTES];
            BASE64.decode_slice(parts.encapsulation, &mut bytes).ok()?;
            parts.header.checked_enc(&bytes).copied().map(Box::new)
        });
    }

    /// Does the same for a binary envelope.
    pub fn add_binary(&self, bytes: &[u8]) {
        let Some(parts) = bytes.strip_prefix(BINARY_PREFIX).and_then(Header::split) else {
            return;
        };
        self.add(&parts, || {
            parts
                .header
                .checked_enc(parts.encapsulation)
                .copied()
                .map(Box::new)
        });
    }

    /// `enc` returns the encapsulation if it is the one that the header names.
    fn add(&self, parts: &Parts<'_>, enc: impl FnOnce() -> Option<Box<[u8; ENC_BYTES]>>) {
        let header = parts.header;
        // Skips envelopes that cannot open or need no agreement.
        if header.suite() == Suite::Xaes
            || self.recipient.lacks_encapsulation(parts)
            || self.recipient.key_version(header).is_err()
        {
            return;
        }
        {
            let mut state = self.lock();
            if state.recent.len() == RECENT_MAX {
                state.recent.clear();
            }
            if state.entries.len() == QUEUED_MAX || !state.recent.insert(header) {
                return;
            }
        }
        // Checked without the lock, for which the opener would wait.
        if self.recipient.is_cached(header) {
            return;
        }
        let enc = match parts.encapsulation {
            [] => None,
            _ => match enc() {
                Some(enc) => Some(enc),
                None => return,
            },
        };
        self.lock().entries.push_back(Entry {
            header,
            stage: Stage::Waiting(enc),
        });
    }

    /// Makes the last agreement that no thread has started. Returns false if none is left.
    pub fn agree_next(&self) -> bool {
        let mut state = self.lock();
        let started = state
            .entries
            .iter_mut()
            .rev()
            .find_map(|entry| match &mut entry.stage {
                Stage::Waiting(enc) => {
                    let enc = enc.take();
                    entry.stage = Stage::Running;
                    Some((entry.header, enc))
                }
                Stage::Running | Stage::Made(_) => None,
            });
        state.started += u64::from(started.is_some());
        drop(state);
        let Some((header, enc)) = started else {
            return false;
        };
        // A failed agreement is not kept: the opener repeats it and gets the error.
        let made = self.recipient.agree(header, enc.as_deref()).ok();
        let mut state = self.lock();
        if let Some(at) = state.entries.iter().rposition(|entry: &Entry| {
            entry.header == header && matches!(entry.stage, Stage::Running)
        }) {
            match made {
                Some(held) => state.entries[at].stage = Stage::Made(held),
                None => drop(state.entries.remove(at)),
            }
        }
        true
    }

    /// Returns the number of agreements that no thread has started.
    pub fn waiting(&self) -> usize {
        self.lock()
            .entries
            .iter()
            .filter(|entry| matches!(entry.stage, Stage::Waiting(_)))
            .count()
    }

    /// Returns the number of agreements that helpers started.
    pub fn started(&self) -> u64 {
        self.lock().started
    }

    /// Forgets all envelopes: the opener has passed them.
    pub fn clear(&self) {
        self.lock().entries.clear();
    }

    /// Returns the context of a header if it was made. Removes the header and those before it,
    /// which the opener has passed.
    pub(crate) fn take(&self, header: &Header) -> Option<HeldContext> {
        let mut state = self.lock();
        let at = state
            .entries
            .iter()
            .position(|entry| entry.header == *header)?;
        match state.entries.drain(..=at).next_back()?.stage {
            Stage::Made(held) => Some(held),
            Stage::Waiting(_) | Stage::Running => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for AgreementQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgreementQueue")
            .field("queued", &self.lock().entries.len())
            .finish_non_exhaustive()
    }
}
