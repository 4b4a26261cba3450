//! The state of one connection: requests that wait for a response, data to write, and liveness.
//!
//! Plain data behind one lock, held for a few map operations at a time and never across an await. A
//! request is in the map exactly while a future waits for it. Completing, cancelling and closing
//! all start by removing the request from the map.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustls::AlertDescription;
use sealwire_wire::{Malformed, RpcError, ScanError, request};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::error::rejected_certificate;

/// Requests are combined into one write up to this many bytes. A longer request is written without
/// a copy.
const BATCH_BYTES: usize = 64 << 10;
/// Time that a peer can leave a cancel without a sign of life, or accept no bytes, before it counts
/// as silent. A server can hold a connection back for a second after `overloaded`; the rest is for
/// the round trip.
pub(crate) const GRACE: Duration = Duration::from_millis(1_500);

/// The reason why a request got no result from its connection.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server responded with an error.
    Rpc(RpcError),
    /// The connection ended before it took the request. Another connection can retry.
    NotSent,
    /// The connection ended, and the request may have reached the server.
    Disconnected(Arc<str>),
    /// The server rejected this client's certificate. In TLS 1.3 a request can be written before
    /// the alert arrives, and the server may then have seen it.
    Rejected { alert: AlertDescription, sent: bool },
    /// The deadline passed on the client.
    Deadline,
    /// The encoded request is longer than allowed.
    TooLong,
    /// The response exceeded the client's limits.
    Refused(ScanError),
    /// The response was malformed.
    Protocol(Malformed),
}

pub(crate) type Answer = Result<Bytes, Failure>;

/// The reason why a connection ended.
#[derive(Clone, Debug)]
pub(crate) enum CloseReason {
    /// The reason, for people.
    Ended(Arc<str>),
    /// The server rejected this client's certificate with this alert.
    Rejected(AlertDescription),
}

impl From<&str> for CloseReason {
    fn from(why: &str) -> Self {
        Self::Ended(why.into())
    }
}

struct Waiter {
    answer: oneshot::Sender<Answer>,
    /// True after the request was at least partly written to the socket. From then on, only a
    /// cancel can revoke it.
    sent: bool,
}

struct Books {
    next_msgid: u32,
    waiting: HashMap<u32, Waiter>,
    /// Encoded requests that are not written yet, each with its msgid.
    queue: VecDeque<(u32, Bytes)>,
    /// Requests that were abandoned after they were sent, and whose cancel is not written yet.
    /// Bounded by the number of requests sent without a response: while cancels wait for the
    /// socket, so do all requests.
    cancels: Vec<u32>,
    closed: Option<CloseReason>,
    /// Reason why nothing more can be written, although responses may still arrive.
    write_failed: Option<CloseReason>,
    /// True after data arrived from the peer, so that the TLS handshake is complete for it.
    has_heard: bool,
    /// True if requests were waiting when the connection closed.
    lost_calls: bool,
    /// Time when the first cancel was written, since the last data from the peer. Each cancel
    /// causes a response.
    cancelled_at: Option<Instant>,
    /// During a write: the last time that the socket accepted bytes or that data arrived.
    stalled_at: Option<Instant>,
}

impl Books {
    /// Returns the reason why no new request is taken.
    fn end(&self) -> Option<&CloseReason> {
        self.closed.as_ref().or(self.write_failed.as_ref())
    }

    /// Returns the failure of a request whose connection ends.
    fn failure(&self, reason: &CloseReason, sent: bool) -> Failure {
        match reason {
            // The server had accepted the certificate before, and may have worked on the request.
            CloseReason::Rejected(alert) if sent && self.has_heard => {
                Failure::Disconnected(rejected_certificate(*alert).to_string().into())
            }
            CloseReason::Rejected(_) if self.has_heard => Failure::NotSent,
            CloseReason::Rejected(alert) => Failure::Rejected {
                alert: *alert,
                sent,
            },
            CloseReason::Ended(why) if sent => Failure::Disconnected(Arc::clone(why)),
            CloseReason::Ended(_) => Failure::NotSent,
        }
    }

    fn heard(&mut self) {
        self.has_heard = true;
        self.cancelled_at = None;
        self.stalled_at = self.stalled_at.map(|_| Instant::now());
    }
}

/// The state that a connection's driver and its requests share.
pub(crate) struct State {
    books: Mutex<Books>,
    /// Signals that there is data to write.
    pub(crate) work: Notify,
    /// The negation of `closed`, readable without the lock: every request checks it on every
    /// connection.
    open: AtomicBool,
    /// True after the peer was found silent. The connection takes no new requests.
    silent: AtomicBool,
    /// True after the connection was replaced. A retired connection takes no new requests, and ends
    /// with its last one.
    retired: AtomicBool,
}

impl State {
    pub(crate) fn new() -> Self {
        let books = Books {
            next_msgid: 0,
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            cancels: Vec::new(),
            closed: None,
            write_failed: None,
            has_heard: false,
            lost_calls: false,
            cancelled_at: None,
            stalled_at: None,
        };
        Self {
            books: Mutex::new(books),
            work: Notify::new(),
            open: AtomicBool::new(true),
            silent: AtomicBool::new(false),
            retired: AtomicBool::new(false),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // No code under the lock can panic in the middle of a change.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new request under an unused msgid.
    pub(crate) fn open(self: &Arc<Self>) -> Result<(InFlight, oneshot::Receiver<Answer>), Failure> {
        let mut books = self.books();
        if let Some(reason) = books.end() {
            return Err(books.failure(reason, false));
        }
        while books.waiting.contains_key(&books.next_msgid) {
            books.next_msgid = books.next_msgid.wrapping_add(1);
        }
        let msgid = books.next_msgid;
        books.next_msgid = msgid.wrapping_add(1);
        let (answer, receiver) = oneshot::channel();
        books.waiting.insert(
            msgid,
            Waiter {
                answer,
                sent: false,
            },
        );
        Ok((
            InFlight {
                state: Arc::clone(self),
                msgid,
                settled: false,
            },
            receiver,
        ))
    }

    /// Queues the encoded request. If the connection has closed since, the request was already
    /// completed with an error.
    pub(crate) fn queue(&self, msgid: u32, request: Bytes) {
        let mut books = self.books();
        if books.end().is_none() {
            books.queue.push_back((msgid, request));
            drop(books);
            self.work.notify_one();
        }
    }

    /// Records that the previous bytes are written. Returns the next bytes to write, empty if none:
    /// cancels, then requests, which are marked as sent.
    pub(crate) fn next_write(&self) -> Bytes {
        let mut guard = self.books();
        let books = &mut *guard;
        let mut batch = Vec::new();
        books.stalled_at = None;
        if books.cancels.is_empty() && books.queue.is_empty() {
            return Bytes::new();
        }
        let now = Instant::now();
        books.stalled_at = Some(now);
        if !books.cancels.is_empty() {
            books.cancelled_at.get_or_insert(now);
        }
        for msgid in books.cancels.drain(..) {
            request::cancel(&mut batch, msgid);
        }
        while let Some((_, request)) = books.queue.front() {
            let alone = batch.is_empty() && request.len() >= BATCH_BYTES;
            if !alone && batch.len() + request.len() > BATCH_BYTES {
                break;
            }
            let Some((msgid, request)) = books.queue.pop_front() else {
                break;
            };
            if let Some(waiter) = books.waiting.get_mut(&msgid) {
                waiter.sent = true;
            }
            if alone {
                return request;
            }
            batch.extend_from_slice(&request);
        }
        Bytes::from(batch)
    }

    /// Records that the socket accepted part of a write.
    pub(crate) fn wrote(&self) {
        self.books().stalled_at = Some(Instant::now());
    }

    /// Records that data arrived from the peer.
    pub(crate) fn heard(&self) {
        self.books().heard();
    }

    /// Waits for [`GRACE`] after a missed deadline. Returns true if the peer was silent; the
    /// connection is then abandoned.
    pub(crate) async fn goes_silent(&self) -> bool {
        sleep(GRACE).await;
        while let Some(at) = self.silent_at() {
            if at <= Instant::now() {
                self.silent.store(true, Ordering::Relaxed);
                return true;
            }
            sleep_until(at).await;
        }
        false
    }

    /// Returns the time from which the peer counts as silent, unless there is a sign of life
    /// before. Returns `None` if no sign of life is due, or if the connection closed.
    fn silent_at(&self) -> Option<Instant> {
        let books = self.books();
        if books.end().is_some() && !self.is_silent() {
            return None;
        }
        [books.cancelled_at, books.stalled_at]
            .into_iter()
            .flatten()
            .min()
            .map(|since| since + GRACE)
    }

    /// Returns true if the peer was found silent.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// Stops new requests on this connection.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Returns true if the connection was retired.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Passes a response to its waiting request. The response to an abandoned request is dropped. A
    /// cancel of that request that is not written yet is also dropped, because the server would not
    /// respond to it.
    pub(crate) fn answer(&self, msgid: u32, answer: Answer) {
        let mut books = self.books();
        let waiter = books.waiting.remove(&msgid);
        if waiter.is_none() {
            books.cancels.retain(|cancel| *cancel != msgid);
            // The cancel may have been written after these bytes were read.
            books.heard();
        }
        drop(books);
        if let Some(waiter) = waiter {
            // Sending fails only if the request future is being dropped.
            let _ = waiter.answer.send(answer);
        }
    }

    /// Rejects new requests and fails those that are not sent, because nothing more can be written.
    /// Requests that were sent can still get a response until the connection is closed.
    pub(crate) fn stop_writes(&self, reason: CloseReason) {
        let mut books = self.books();
        self.open.store(false, Ordering::Release);
        books.write_failed = Some(reason.clone());
        books.queue.clear();
        let unsent: Vec<_> = books.waiting.extract_if(|_, waiter| !waiter.sent).collect();
        books.lost_calls |= !unsent.is_empty();
        let failure = books.failure(&reason, false);
        drop(books);
        for (_, waiter) in unsent {
            let _ = waiter.answer.send(Err(failure.clone()));
        }
    }

    /// Closes the connection: rejects new requests and fails the waiting ones. Only the first
    /// reason is kept.
    pub(crate) fn close(&self, reason: CloseReason) {
        let mut books = self.books();
        self.open.store(false, Ordering::Release);
        let reason = books.closed.get_or_insert(reason).clone();
        let waiting = std::mem::take(&mut books.waiting);
        books.lost_calls |= !waiting.is_empty();
        books.queue.clear();
        books.cancels.clear();
        let sent = books.failure(&reason, true);
        let unsent = books.failure(&reason, false);
        drop(books);
        for waiter in waiting.into_values() {
            let _ = waiter.answer.send(Err(if waiter.sent {
                sent.clone()
            } else {
                unsent.clone()
            }));
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Returns true if requests were waiting when it closed.
    pub(crate) fn lost_calls(&self) -> bool {
        self.books().lost_calls
    }

    /// Returns the reason for the close, or `None` while the connection is open.
    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        self.books().end().cloned()
    }

    /// Abandons a request: removes an unsent request, or queues a cancel for a sent one.
    fn give_up(&self, msgid: u32) {
        let mut books = self.books();
        let Some(waiter) = books.waiting.remove(&msgid) else {
            return;
        };
        if waiter.sent {
            books.cancels.push(msgid);
            drop(books);
            self.work.notify_one();
        } else {
            books.queue.retain(|(queued, _)| *queued != msgid);
        }
    }

    #[cfg(test)]
    pub(crate) fn set_next_msgid(&self, msgid: u32) {
        self.books().next_msgid = msgid;
    }

    /// Returns the number of waiting requests, queued requests and queued cancels.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        let books = self.books();
        (books.waiting.len(), books.queue.len(), books.cancels.len())
    }
}

/// Registration of a request. Dropping it abandons the request, unless the request is settled.
pub(crate) struct InFlight {
    state: Arc<State>,
    msgid: u32,
    settled: bool,
}

impl InFlight {
    pub(crate) fn msgid(&self) -> u32 {
        self.msgid
    }

    /// Marks the request as completed. Another request can then use its msgid.
    pub(crate) fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if !self.settled {
            self.state.give_up(self.msgid);
        }
    }
}
