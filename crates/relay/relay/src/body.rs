//! Bodies of messages: sources that the relay reads, and outgoing bodies that hyper polls.
//!
//! hyper polls an outgoing body when it can write, so a slow reader slows the source down. If an
//! outgoing body fails, hyper truncates the message: HTTP/1.1 closes the connection without the
//! last chunk, HTTP/2 resets the stream. No reader can mistake a truncated body for a complete one.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::edit::Editor;
use crate::error::{Failure, Reason};
use crate::usage::Usage;

/// A body that the relay reads, with its errors already converted to failures.
pub type Source = UnsyncBoxBody<Bytes, Failure>;

/// Creates a source for a client's request. The source fails if the relay waits for `idle` without
/// a byte.
pub fn from_client(body: Incoming, idle: Duration, usage: Arc<Usage>) -> Source {
    let body =
        body.map_err(|_| Failure::request(Reason::Ambiguous("the body is malformed or broke off")));
    with_idle_limit(
        body,
        idle,
        Failure::request(Reason::ClientTimeout),
        Some(usage),
    )
}

/// Creates a source that fails with `late` if the relay waits for `idle` without a byte. The length
/// of its frames is added to `usage`.
pub fn with_idle_limit<B>(
    body: B,
    idle: Duration,
    late: Failure,
    usage: Option<Arc<Usage>>,
) -> Source
where
    B: Body<Data = Bytes, Error = Failure> + Unpin + Send + 'static,
{
    IdleLimited {
        body,
        idle,
        late,
        usage,
        deadline: None,
    }
    .boxed_unsync()
}

/// Fails if no frame arrives within a time limit.
struct IdleLimited<B> {
    body: B,
    idle: Duration,
    late: Failure,
    usage: Option<Arc<Usage>>,
    /// Set only while the relay waits for a frame, so that the time of a slow upstream does not
    /// count against the client.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<B: Body<Data = Bytes, Error = Failure> + Unpin> Body for IdleLimited<B> {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.deadline = None;
            if let (Some(usage), Some(Ok(frame))) = (&this.usage, &frame) {
                usage.add_received(frame.data_ref().map_or(0, Bytes::len));
            }
            return Poll::Ready(frame);
        }
        let idle = this.idle;
        ready!(
            this.deadline
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(idle)))
                .as_mut()
                .poll(cx)
        );
        Poll::Ready(Some(Err(this.late.clone())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns true if a body has no byte. Waits for the first byte, which stays in `source`.
///
/// # Errors
/// The failure of the source.
pub async fn is_empty(source: &mut Source) -> Result<bool, Failure> {
    if source.is_end_stream() || source.size_hint().lower() > 0 {
        return Ok(source.is_end_stream());
    }
    loop {
        match source.frame().await.transpose()?.map(Frame::into_data) {
            None => return Ok(true),
            Some(Ok(data)) if data.is_empty() => {}
            // No rule is applied to trailers, so a message with rules drops them.
            Some(Err(_trailers)) => {}
            Some(Ok(data)) => {
                let rest = std::mem::replace(
                    source,
                    Empty::new().map_err(|never| match never {}).boxed_unsync(),
                );
                *source = FirstFrameRead {
                    first: Some(data),
                    rest,
                }
                .boxed_unsync();
                return Ok(false);
            }
        }
    }
}

/// A body whose first frame was already read.
struct FirstFrameRead {
    first: Option<Bytes>,
    rest: Source,
}

impl Body for FirstFrameRead {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(first + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(first + upper);
        }
        hint
    }
}

/// Longest frame for hyper, which buffers the frame until it is written.
const FRAME_BYTES_MAX: usize = 32 << 10;

/// Edited frames, as a stream.
type Edited = Pin<Box<dyn Stream<Item = Result<Bytes, Failure>> + Send>>;

enum Content {
    Bytes(Option<Bytes>),
    Unchanged(Source),
    Edited(Edited),
}

/// A body that the relay sends.
pub struct Outgoing {
    content: Content,
    /// The rest of a frame that is longer than [`FRAME_BYTES_MAX`].
    rest: Bytes,
    /// Receives the failure of the body, because hyper's side sees only that the body was
    /// truncated.
    failed: Arc<OnceLock<Failure>>,
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
            failed: Arc::default(),
            allowed_trailers: HeaderMap::clear,
        }
    }

    /// Creates a body without bytes.
    pub fn empty() -> Self {
        Self::new(Content::Bytes(None))
    }

    /// Creates a body with these bytes.
    pub fn from_bytes(bytes: Bytes) -> Self {
        Self::new(Content::Bytes((!bytes.is_empty()).then_some(bytes)))
    }

    /// Creates a body that passes unchanged. `filter` removes trailers that must not pass.
    pub fn unchanged(source: Source, filter: fn(&mut HeaderMap)) -> Self {
        Self {
            allowed_trailers: filter,
            ..Self::new(Content::Unchanged(source))
        }
    }

    /// Creates a body that is edited while it is sent. The frames in `first` are already edited.
    pub fn from_editor(first: VecDeque<Bytes>, editor: Editor) -> Self {
        Self::new(Content::Edited(Box::pin(futures_util::stream::try_unfold(
            (first, editor),
            next_edited_frame,
        ))))
    }

    /// Returns the cell that receives the failure of this body.
    pub fn failure_cell(&self) -> Arc<OnceLock<Failure>> {
        Arc::clone(&self.failed)
    }

    fn poll_content(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        // Drop empty frames, because HTTP/2 libraries close a connection after a hundred of them.
        while self.rest.is_empty() {
            match ready!(self.poll_unsplit_frame(cx)).map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(frame))) => return Poll::Ready(Some(Ok(frame))),
                Some(Err(failure)) => return Poll::Ready(Some(Err(failure))),
                None => return Poll::Ready(None),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(FRAME_BYTES_MAX));
        // Over HTTP/1.1, hyper can keep the last piece after the end of the exchange. A slice of a
        // held body would keep the whole body, whose memory is no longer counted. Copy it instead.
        let is_part_of_held =
            self.rest.is_empty() && !matches!(self.content, Content::Unchanged(_));
        let piece = if is_part_of_held {
            Bytes::copy_from_slice(&piece)
        } else {
            piece
        };
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn poll_unsplit_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match &mut self.content {
            Content::Bytes(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Edited(stream) => stream.as_mut().poll_next(cx).map_ok(Frame::data),
            Content::Unchanged(source) => {
                Pin::new(source)
                    .poll_frame(cx)
                    .map_ok(|frame| match frame.into_trailers() {
                        Ok(mut trailers) => {
                            (self.allowed_trailers)(&mut trailers);
                            Frame::trailers(trailers)
                        }
                        Err(frame) => frame,
                    })
            }
        }
    }
}

/// Returns the next edited frame and the rest of the stream.
async fn next_edited_frame(
    (mut first, mut editor): (VecDeque<Bytes>, Editor),
) -> Result<Option<(Bytes, (VecDeque<Bytes>, Editor))>, Failure> {
    match first.pop_front() {
        Some(bytes) => Ok(Some((bytes, (first, editor)))),
        None => Ok(editor
            .next_frame()
            .await?
            .map(|bytes| (bytes, (first, editor)))),
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let frame = ready!(self.poll_content(cx));
        if let Some(Err(failure)) = &frame {
            let _ = self.failed.set(failure.clone());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let content_ended = match &self.content {
            Content::Bytes(bytes) => bytes.is_none(),
            Content::Unchanged(source) => source.is_end_stream(),
            Content::Edited(_) => false,
        };
        content_ended && self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let content = match &self.content {
            Content::Bytes(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64)
            }
            Content::Unchanged(source) => source.size_hint(),
            Content::Edited(_) => SizeHint::default(),
        };
        content.exact().map_or(content, |bytes| {
            SizeHint::with_exact(bytes + self.rest.len() as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn empty_frames_are_dropped() {
        let frames =
            ["", "a", "", "", "b", ""].map(|text| Ok::<_, Failure>(Frame::data(Bytes::from(text))));
        let source =
            http_body_util::StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
        let mut body = Outgoing::unchanged(source, HeaderMap::clear);
        let mut taken = Vec::new();
        while let Some(frame) = body.frame().await {
            taken.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(taken, ["a", "b"]);
    }

    #[tokio::test]
    async fn the_last_piece_of_a_held_body_keeps_no_other() {
        for len in [1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1, 5 * FRAME_BYTES_MAX] {
            let held: Bytes = (0..len).map(|at| at as u8).collect();
            let range = held.as_ptr_range();
            let mut body = Outgoing::from_bytes(held.clone());
            let (mut taken, mut last) = (Vec::new(), Bytes::new());
            while let Some(frame) = body.frame().await {
                last = frame.unwrap().into_data().unwrap();
                taken.extend_from_slice(&last);
            }
            assert_eq!(taken, held, "{len}");
            assert!(
                !range.contains(&last.as_ptr()),
                "{len}: the last piece is a part of the whole body"
            );
        }
    }
}
