//! Bodies of messages: sources that the relay reads, and outgoing bodies that hyper polls.
//!
//! hyper polls an outgoing body when it can write, so a slow reader slows the source down. An outgoing body that fails
//! makes hyper break the message off: HTTP/1.1 closes without the last chunk, HTTP/2 resets the stream. No reader takes
//! a broken body for a complete one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::completion::Completion;
use crate::edit::Editor;
use crate::error::{Failure, Reason};
use crate::usage::Usage;

/// A body that the relay reads, with every failure already named.
pub type Source = UnsyncBoxBody<Bytes, Failure>;

/// Creates a source of a client's request. It fails if the relay waits for `idle` without a byte.
pub fn from_client(body: Incoming, idle: Duration, usage: Arc<Usage>) -> Source {
    let body = body.map_err(|_| Failure::request(Reason::Ambiguous("the body is malformed or broke off")));
    with_idle_limit(body, idle, Failure::request(Reason::ClientTimeout), Some(usage))
}

/// Creates a source that fails with `late` if the relay waits for `idle` without a byte, and adds its bytes to `usage`.
pub fn with_idle_limit<B>(body: B, idle: Duration, late: Failure, usage: Option<Arc<Usage>>) -> Source
where
    B: Body<Data = Bytes, Error = Failure> + Unpin + Send + 'static,
{
    Idle { body, idle, late, usage, waits: None }.boxed_unsync()
}

/// Fails if no frame arrives for some time.
struct Idle<B> {
    body: B,
    idle: Duration,
    late: Failure,
    usage: Option<Arc<Usage>>,
    /// Set while the relay waits for a frame: a slow upstream is not the client's fault.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = Bytes, Error = Failure> + Unpin> Body for Idle<B> {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.waits = None;
            if let (Some(usage), Some(Ok(frame))) = (&this.usage, &frame) {
                usage.received(frame.data_ref().map_or(0, Bytes::len));
            }
            return Poll::Ready(frame);
        }
        let idle = this.idle;
        ready!(this.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep(idle))).as_mut().poll(cx));
        Poll::Ready(Some(Err(this.late.clone())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Longest frame that is given to hyper, which holds a frame until it is sent, also after the exchange has ended.
const FRAME_BYTES_MAX: usize = 32 << 10;
/// Shortest one.
const FRAME_BYTES_MIN: usize = 512;
/// The first one.
const FRAME_BYTES_FIRST: usize = 4 << 10;
/// A frame that is taken within this time is followed by one of twice its length, and one that takes ten times as long by
/// one of an eighth.
const FRAME_TIME: Duration = Duration::from_millis(100);

/// Length of the next frame. That a client takes bytes is seen when a whole frame is taken, so a client that reads slowly
/// has short ones. Otherwise it would count as one that reads nothing.
#[derive(Debug)]
struct FrameLength {
    bytes: usize,
    given: Option<Instant>,
}

impl FrameLength {
    const fn new() -> Self {
        Self { bytes: FRAME_BYTES_FIRST, given: None }
    }

    /// Returns the longest length of a frame that is given to hyper now.
    fn give(&mut self, now: Instant) -> usize {
        self.given = Some(now);
        self.bytes
    }

    /// Notes that hyper asks for more: it has sent what was given before.
    fn taken(&mut self, now: Instant) {
        match self.given.take().map(|given| now.saturating_duration_since(given)) {
            Some(time) if time <= FRAME_TIME => self.bytes = (2 * self.bytes).min(FRAME_BYTES_MAX),
            Some(time) if time >= 10 * FRAME_TIME => self.bytes = (self.bytes / 8).max(FRAME_BYTES_MIN),
            _ => {}
        }
    }
}

/// Edited frames, as a stream.
type Edited = Pin<Box<dyn Stream<Item = Result<Bytes, Failure>> + Send>>;

enum Content {
    Whole(Option<Bytes>),
    Pass(Source),
    Edited(Edited),
}

/// A body that leaves the relay.
pub struct Outgoing {
    content: Content,
    /// The rest of a frame that is longer than [`FRAME_BYTES_MAX`].
    rest: Bytes,
    frame_length: FrameLength,
    /// Takes the failure of the body, for the side that only sees that it broke off.
    failed: Arc<OnceLock<Failure>>,
    /// Ends the exchange when the body ends.
    completion: Option<Completion>,
    allowed_trailers: fn(&mut HeaderMap),
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outgoing")
    }
}

impl Outgoing {
    fn new(content: Content) -> Self {
        Self {
            content,
            rest: Bytes::new(),
            frame_length: FrameLength::new(),
            failed: Arc::default(),
            completion: None,
            allowed_trailers: HeaderMap::clear,
        }
    }

    /// A body without bytes.
    pub fn empty() -> Self {
        Self::new(Content::Whole(None))
    }

    /// A body with these bytes.
    pub fn whole(bytes: Bytes) -> Self {
        Self::new(Content::Whole((!bytes.is_empty()).then_some(bytes)))
    }

    /// A body that passes unchanged. `filter` removes trailers that must not pass.
    pub fn pass(source: Source, filter: fn(&mut HeaderMap)) -> Self {
        Self { allowed_trailers: filter, ..Self::new(Content::Pass(source)) }
    }

    /// A body that is edited while it passes. The first frames were edited before.
    pub fn edited(first: VecDeque<Bytes>, editor: Editor) -> Self {
        let next = async |(mut first, mut editor): (VecDeque<Bytes>, Editor)| match first.pop_front() {
            Some(bytes) => Ok(Some((bytes, (first, editor)))),
            None => Ok(editor.next().await?.map(|bytes| (bytes, (first, editor)))),
        };
        Self::new(Content::Edited(Box::pin(futures_util::stream::try_unfold((first, editor), next))))
    }

    /// The cell that takes the failure of this body.
    pub fn failed(&self) -> Arc<OnceLock<Failure>> {
        Arc::clone(&self.failed)
    }

    /// Attaches the end of the exchange.
    pub fn completing(mut self, mut completion: Completion) -> Self {
        if self.is_end_stream() {
            completion.is_complete();
        }
        self.completion = Some(completion);
        self
    }

    fn poll_content(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        if self.rest.is_empty() {
            match ready!(self.poll_whole_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(frame))) => return Poll::Ready(Some(Ok(frame))),
                Some(Err(failure)) => return Poll::Ready(Some(Err(failure))),
                None => return Poll::Ready(None),
            }
        }
        let len = self.rest.len().min(self.frame_length.give(Instant::now()));
        let piece = self.rest.split_to(len);
        // The last piece can stay with HTTP/2 after the exchange has ended. A part of a body that was held would keep all of
        // it, whose memory is not counted any more.
        let is_part_of_held = self.rest.is_empty() && !matches!(self.content, Content::Pass(_));
        let piece = if is_part_of_held { Bytes::copy_from_slice(&piece) } else { piece };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn poll_whole_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match &mut self.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Edited(stream) => stream.as_mut().poll_next(cx).map_ok(Frame::data),
            Content::Pass(source) => Pin::new(source).poll_frame(cx).map_ok(|frame| match frame.into_trailers() {
                Ok(mut trailers) => {
                    (self.allowed_trailers)(&mut trailers);
                    Frame::trailers(trailers)
                }
                Err(frame) => frame,
            }),
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = &mut *self;
        this.frame_length.taken(Instant::now());
        let frame = this.poll_content(cx);
        if let Some(completion) = &this.completion {
            // Polled again, hyper has taken what was there before.
            completion.offers(matches!(frame, Poll::Ready(Some(Ok(_)))));
        }
        let frame = ready!(frame);
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(completion), Some(data)) = (&mut this.completion, frame.data_ref()) {
                    completion.sent(data.len());
                }
            }
            Some(Err(failure)) => {
                let _ = this.failed.set(failure.clone());
                if let Some(completion) = &mut this.completion {
                    completion.broke_off(failure);
                }
            }
            None => {
                if let Some(completion) = &mut this.completion {
                    completion.is_complete();
                }
            }
        }
        // hyper does not poll a body again that is at its end.
        if this.is_end_stream()
            && let Some(completion) = &mut this.completion
        {
            completion.is_complete();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let content_ended = match &self.content {
            Content::Whole(bytes) => bytes.is_none(),
            Content::Pass(source) => source.is_end_stream(),
            Content::Edited(_) => false,
        };
        content_ended && self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let content = match &self.content {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Content::Pass(source) => source.size_hint(),
            Content::Edited(_) => SizeHint::default(),
        };
        content.exact().map_or(content, |bytes| SizeHint::with_exact(bytes + self.rest.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[test]
    fn frames_are_as_long_as_the_client_reads_fast() {
        let (mut length, mut now) = (FrameLength::new(), Instant::now());
        // Bytes per second of a client, and the length and time of its frames after a while.
        for (speed, frames) in [(10e6, FRAME_BYTES_MAX), (300.0, FRAME_BYTES_MIN), (100.0, FRAME_BYTES_MIN)] {
            let (mut bytes, mut took) = (0, Duration::ZERO);
            for _ in 0..20 {
                bytes = length.give(now);
                took = Duration::from_secs_f64(bytes as f64 / speed);
                now += took;
                length.taken(now);
            }
            assert_eq!(bytes, frames, "{speed} bytes/s");
            assert!(took <= Duration::from_secs(6), "{speed} bytes/s: {took:?}");
        }
        const { assert!(FRAME_BYTES_FIRST / 300 <= 15, "the first frame of a slow client") };
    }

    #[tokio::test]
    async fn the_last_piece_of_a_held_body_keeps_no_other() {
        for len in [1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 5 * FRAME_BYTES_MAX] {
            let held: Bytes = (0..len).map(|at| at as u8).collect();
            let range = held.as_ptr_range();
            let mut body = Outgoing::whole(held.clone());
            let (mut taken, mut last) = (Vec::new(), Bytes::new());
            while let Some(frame) = body.frame().await {
                last = frame.unwrap().into_data().unwrap();
                taken.extend_from_slice(&last);
            }
            assert_eq!(taken, held, "{len}");
            assert!(!range.contains(&last.as_ptr()), "{len}: the last piece is a part of the whole body");
        }
    }
}
