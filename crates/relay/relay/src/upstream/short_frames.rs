//! Joins the short frames of a request's body before HTTP/2 sends them.
//!
//! Servers count the overhead of short frames that their application has not read. After some
//! thousands of them, they close the connection, which requests of other clients share (hyper
//! closes it with `ENHANCE_YOUR_CALM`). HTTP/2 does not tell the relay which frames were read.
//!
//! Each stream can therefore send a few short frames at once, and a connection can send a limited
//! number more, which regrows slowly. When that number is used up, a stream holds its bytes until a
//! frame is long enough, the body ends, or a time limit passes.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tokio::time::{Instant, Sleep};

/// Length from which a frame is not short. Servers offset the overhead of short frames with the
/// bytes of long frames.
pub(super) const SHORT_FRAME_BYTES: usize = 256;
/// Short frames that each stream can send at once, independent of other streams of the connection.
const FRAMES_OF_STREAM: u32 = 4;
/// Most further short frames that a connection can send at once.
const FRAMES_MAX: u32 = 64;
/// Time after which a connection can send one more at once.
const FRAME_EVERY: Duration = Duration::from_millis(62);
/// Longest time that short frames are held before the upstream has responded, because it may not
/// have read any of them.
const DELAY_MAX: Duration = Duration::from_secs(4);
/// Longest time that short frames are held after the response has started, because both sides can
/// wait for each other.
const DELAY_RESPONDING_MAX: Duration = Duration::from_millis(50);

/// The number of short frames that a connection can still send at once.
#[derive(Debug)]
pub(super) struct ShortFrames(Mutex<(u32, Instant)>);

impl Default for ShortFrames {
    fn default() -> Self {
        Self(Mutex::new((FRAMES_MAX, Instant::now())))
    }
}

impl ShortFrames {
    /// Takes the permission to send one short frame. Returns false if none is left.
    fn take_permission(&self, now: Instant) -> bool {
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
pub(super) struct HeldFrames {
    bytes: BytesMut,
    /// Trailers after these bytes.
    trailers: Option<Frame<Bytes>>,
    /// Number of short frames that the body has sent at once.
    taken: u32,
    /// Time at which the held bytes must be sent.
    due: Option<Pin<Box<Sleep>>>,
}

impl HeldFrames {
    /// Returns true if no bytes or trailers are held.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none()
    }

    /// Returns the number of held bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the next frame of a body. Returns the frame to send, or `None` if further bytes can be
    /// joined.
    pub(super) fn push(&mut self, frame: Frame<Bytes>, is_last: bool) -> Option<Frame<Bytes>> {
        match frame.into_data() {
            Ok(data) if self.bytes.is_empty() && (is_last || data.len() >= SHORT_FRAME_BYTES) => {
                Some(Frame::data(data))
            }
            Ok(data) => {
                self.bytes.extend_from_slice(&data);
                (is_last || self.bytes.len() >= SHORT_FRAME_BYTES)
                    .then(|| self.take_frame())
                    .flatten()
            }
            Err(trailers) => {
                self.trailers = Some(trailers);
                self.take_rest()
            }
        }
    }

    /// Returns the held bytes or trailers at the end of the body.
    pub(super) fn take_rest(&mut self) -> Option<Frame<Bytes>> {
        self.take_frame().or_else(|| self.trailers.take())
    }

    /// Waits until the held bytes must be sent. Called while the body has no further bytes.
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
        if self.due.is_some() || !self.take_permission(frames, now) {
            let delay = if is_responding {
                DELAY_RESPONDING_MAX
            } else {
                DELAY_MAX
            };
            let due = self
                .due
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(now + delay)));
            // The response can start meanwhile, which shortens the delay.
            if due.deadline() > now + delay {
                due.as_mut().reset(now + delay);
            }
            ready!(due.as_mut().poll(cx));
        }
        Poll::Ready(self.take_frame())
    }

    /// Takes the permission to send a short frame at once. Uses the frames of this body first, then
    /// those of the connection.
    fn take_permission(&mut self, frames: &ShortFrames, now: Instant) -> bool {
        if self.taken < FRAMES_OF_STREAM {
            self.taken += 1;
            return true;
        }
        frames.take_permission(now)
    }

    fn take_frame(&mut self) -> Option<Frame<Bytes>> {
        self.due = None;
        let bytes = std::mem::take(&mut self.bytes);
        (!bytes.is_empty()).then(|| Frame::data(bytes.freeze()))
    }
}
