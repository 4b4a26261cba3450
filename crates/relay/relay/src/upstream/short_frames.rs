//! Joins the short frames of a request's body before HTTP/2 sends them.
//!
//! Servers count the overhead of short frames that their application has not read: beyond some
//! thousands of them they end the connection, which requests of other clients share (hyper with
//! `ENHANCE_YOUR_CALM`). HTTP/2 does not tell the relay what was read. So each stream has a few
//! short frames that leave at once, and a connection has a number of them, which grows back slowly.
//! When it is used up, a stream holds its bytes until a frame is long enough, the body ends, or
//! some time has passed.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::time::{Instant, Sleep};

/// Length from which a frame is not short: servers credit the overhead of short frames with the
/// bytes of long ones.
pub(super) const SHORT_FRAME_BYTES: usize = 256;
/// Short frames of each stream that leave at once, whatever other streams of the connection have
/// used.
const FRAMES_OF_STREAM: u32 = 4;
/// Most further short frames that leave at once on a connection.
const FRAMES_MAX: u32 = 64;
/// Time after which one more leaves at once.
const FRAME_EVERY: Duration = Duration::from_millis(62);
/// Longest time that short frames are held before the upstream has responded: it may not have read
/// any of them.
const DELAY_MAX: Duration = Duration::from_secs(4);
/// Longest time that they are held afterwards: both sides can wait for each other.
const DELAY_RESPONDING_MAX: Duration = Duration::from_millis(50);

/// The short frames that a connection can still send at once.
#[derive(Debug)]
pub(super) struct ShortFrames(Mutex<(u32, Instant)>);

impl Default for ShortFrames {
    fn default() -> Self {
        Self(Mutex::new((FRAMES_MAX, Instant::now())))
    }
}

impl ShortFrames {
    /// Takes the right to send one. Returns false if there is none left.
    fn take(&self, now: Instant) -> bool {
        let (left, since) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let grown = now.saturating_duration_since(*since).as_millis() / FRAME_EVERY.as_millis();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        *since += FRAME_EVERY.saturating_mul(grown);
        *left = left.saturating_add(grown).min(FRAMES_MAX);
        let is_left = *left > 0;
        *left = left.saturating_sub(1);
        is_left
    }
}

/// Bytes of short frames that one body holds.
#[derive(Debug, Default)]
pub(super) struct Joined {
    bytes: BytesMut,
    /// Trailers that follow the bytes.
    trailers: Option<Frame<Bytes>>,
    /// Short frames of the body's own that have left.
    taken: u32,
    /// End of the time that the bytes are held.
    due: Option<Pin<Box<Sleep>>>,
}

impl Joined {
    /// Returns true if nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none()
    }

    /// Bytes that are held.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the next frame of a body. Returns the frame to send, or `None` if more can be joined
    /// to it.
    pub(super) fn push(&mut self, frame: Frame<Bytes>, is_last: bool) -> Option<Frame<Bytes>> {
        match frame.into_data() {
            Ok(data) if self.bytes.is_empty() && (is_last || data.len() >= SHORT_FRAME_BYTES) => {
                Some(Frame::data(data))
            }
            Ok(data) => {
                self.bytes.extend_from_slice(&data);
                (is_last || self.bytes.len() >= SHORT_FRAME_BYTES)
                    .then(|| self.joined())
                    .flatten()
            }
            Err(trailers) => {
                self.trailers = Some(trailers);
                self.rest()
            }
        }
    }

    /// Returns what is held, after which the body ends.
    pub(super) fn rest(&mut self) -> Option<Frame<Bytes>> {
        self.joined().or_else(|| self.trailers.take())
    }

    /// Waits until the bytes that are held must be sent, while the body has no more of them.
    pub(super) fn poll_due(
        &mut self,
        cx: &mut Context<'_>,
        frames: &ShortFrames,
        is_responding: bool,
    ) -> Poll<Option<Frame<Bytes>>> {
        if self.bytes.is_empty() {
            return Poll::Pending;
        }
        let now = Instant::now();
        if self.due.is_some() || !self.take(frames, now) {
            let delay = if is_responding {
                DELAY_RESPONDING_MAX
            } else {
                DELAY_MAX
            };
            let due = self
                .due
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(now + delay)));
            // The response can begin meanwhile.
            if due.deadline() > now + delay {
                due.as_mut().reset(now + delay);
            }
            ready!(due.as_mut().poll(cx));
        }
        Poll::Ready(self.joined())
    }

    /// Takes the right to send a short frame at once: of this body first, then of the connection.
    fn take(&mut self, frames: &ShortFrames, now: Instant) -> bool {
        if self.taken < FRAMES_OF_STREAM {
            self.taken += 1;
            return true;
        }
        frames.take(now)
    }

    fn joined(&mut self) -> Option<Frame<Bytes>> {
        self.due = None;
        let bytes = std::mem::take(&mut self.bytes);
        (!bytes.is_empty()).then(|| Frame::data(bytes.freeze()))
    }
}
