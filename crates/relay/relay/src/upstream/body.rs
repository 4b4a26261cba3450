//! Bodies to and from an upstream, which report their progress to the pool.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};

use super::error::{Cause, Stage, UpstreamError};
use super::pool::Lease;
use super::short_frames::{HeldFrames, ShortFrames};

/// Progress of the body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The upstream accepts no more bytes for now.
    Offered(Instant),
    /// The client sends no more bytes for now.
    Awaited(Instant),
    /// All bytes were given to hyper.
    Ended(Instant),
    /// The client's body failed.
    Failed,
}

/// Body of a request that reports its progress.
pub(super) struct RequestBody {
    inner: UnsyncBoxBody<Bytes, Cause>,
    progress: Arc<watch::Sender<Progress>>,
    /// Waits for the start of the response. `None` before bytes are held, and after the response
    /// has started.
    response: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    is_responding: bool,
    /// The counter of short frames of an HTTP/2 connection, then the held frames of this body.
    short_frames: Option<Arc<ShortFrames>>,
    held_frames: HeldFrames,
}

impl RequestBody {
    pub(super) fn new<B>(body: B) -> (Self, watch::Receiver<Progress>)
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Cause>,
    {
        let now = Instant::now();
        let start = if body.is_end_stream() {
            Progress::Ended(now)
        } else {
            Progress::Offered(now)
        };
        let (progress, receiver) = watch::channel(start);
        let inner = body.map_err(Into::into).boxed_unsync();
        let body = Self {
            inner,
            progress: Arc::new(progress),
            response: None,
            is_responding: false,
            short_frames: None,
            held_frames: HeldFrames::default(),
        };
        (body, receiver)
    }

    /// Sets the connection that sends the body.
    pub(super) fn set_short_frames(&mut self, short_frames: Option<Arc<ShortFrames>>) {
        self.short_frames = short_frames;
    }

    /// Returns true after the pool has stopped waiting for the head of the response. Otherwise
    /// registers the task to be woken then.
    fn poll_responding(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.is_responding {
            let progress = &self.progress;
            let response = self.response.get_or_insert_with(|| {
                let progress = Arc::clone(progress);
                Box::pin(async move { progress.closed().await })
            });
            self.is_responding = response.as_mut().poll(cx).is_ready();
        }
        if self.is_responding {
            self.response = None;
        }
        self.is_responding
    }

    fn poll_joined(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        let Some(short_frames) = self.short_frames.clone() else {
            return Pin::new(&mut self.inner).poll_frame(cx);
        };
        loop {
            match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Some(frame) = self.held_frames.push(frame, self.inner.is_end_stream()) {
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    self.report_progress(Progress::Offered(Instant::now()));
                }
                Poll::Ready(Some(Err(cause))) => return Poll::Ready(Some(Err(cause))),
                Poll::Ready(None) => return Poll::Ready(self.held_frames.take_rest().map(Ok)),
                Poll::Pending => {
                    if self.held_frames.is_empty() {
                        return Poll::Pending;
                    }
                    let is_responding = self.poll_responding(cx);
                    return self
                        .held_frames
                        .poll_due(cx, &short_frames, is_responding)
                        .map(|frame| frame.map(Ok));
                }
            }
        }
    }

    fn report_progress(&self, new: Progress) {
        self.progress.send_if_modified(|old| {
            let is_over = matches!(old, Progress::Ended(_) | Progress::Failed);
            // A client that sends nothing for a long time is polled repeatedly. The first time
            // counts.
            let is_same_wait = matches!((&*old, new), (Progress::Awaited(_), Progress::Awaited(_)));
            if !is_over && !is_same_wait {
                *old = new;
            }
            !is_over && !is_same_wait
        });
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        let polled = self.poll_joined(cx);
        let now = Instant::now();
        self.report_progress(match &polled {
            Poll::Pending => Progress::Awaited(now),
            Poll::Ready(Some(Ok(_))) if !self.is_end_stream() => Progress::Offered(now),
            Poll::Ready(Some(Err(_))) => Progress::Failed,
            Poll::Ready(_) => Progress::Ended(now),
        });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream() && self.held_frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let hint = self.inner.size_hint();
        hint.exact().map_or(hint, |bytes| {
            SizeHint::with_exact(bytes + self.held_frames.len() as u64)
        })
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.report_progress(Progress::Ended(Instant::now()));
    }
}

/// Body of a response. After it was read to its end, it returns the connection to the pool.
/// Dropping it earlier closes an HTTP/1 connection and resets an HTTP/2 stream.
#[derive(Debug)]
pub struct UpstreamBody {
    incoming: Incoming,
    lease: Option<Lease>,
    idle_timeout: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    is_close_delimited: bool,
}

impl UpstreamBody {
    pub(super) fn new(
        incoming: Incoming,
        lease: Lease,
        idle_timeout: Duration,
        is_close_delimited: bool,
    ) -> Self {
        let mut body = Self {
            incoming,
            lease: Some(lease),
            idle_timeout,
            idle: None,
            is_close_delimited,
        };
        body.release_at_end();
        body
    }

    /// Returns true if only the end of the connection ends the body, so that a broken connection
    /// looks like an end.
    pub fn is_close_delimited(&self) -> bool {
        self.is_close_delimited
    }

    fn release_at_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(lease) = self.lease.take_if(|lease| !lease.is_upgrade()) {
            lease.release();
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let body = &mut *self;
        match Pin::new(&mut body.incoming).poll_frame(cx) {
            Poll::Ready(frame) => {
                body.idle = None;
                match &frame {
                    Some(Ok(_)) => body.release_at_end(),
                    Some(Err(_)) => drop(body.lease.take()),
                    None => body.release(),
                }
                Poll::Ready(frame.map(|frame| {
                    frame.map_err(|e| UpstreamError::after_sending(Stage::Exchange).with_cause(e))
                }))
            }
            // Start the time limit when the relay waits for the upstream. A slow client does not
            // poll, and its time must not count against the upstream.
            Poll::Pending => {
                let end = Instant::now() + body.idle_timeout;
                ready!(
                    body.idle
                        .get_or_insert_with(|| Box::pin(sleep_until(end)))
                        .as_mut()
                        .poll(cx)
                );
                body.lease = None;
                Poll::Ready(Some(Err(UpstreamError::after_sending(Stage::BodyTimeout))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::StreamBody;
    use tokio::sync::mpsc;

    use super::super::short_frames::SHORT_FRAME_BYTES;
    use super::*;

    type Sender = mpsc::UnboundedSender<Frame<Bytes>>;

    /// A body on a connection over HTTP/2, with the sender of its frames.
    fn body() -> (Sender, RequestBody, watch::Receiver<Progress>) {
        body_on(Arc::default())
    }

    fn body_on(short_frames: Arc<ShortFrames>) -> (Sender, RequestBody, watch::Receiver<Progress>) {
        let (sender, mut frames) = mpsc::unbounded_channel();
        let stream = futures_util::stream::poll_fn(move |cx| {
            frames
                .poll_recv(cx)
                .map(|frame| frame.map(Ok::<_, Infallible>))
        });
        let (mut body, progress) = RequestBody::new(StreamBody::new(stream));
        body.set_short_frames(Some(short_frames));
        (sender, body, progress)
    }

    fn send(sender: &Sender, bytes: &[u8]) {
        sender
            .send(Frame::data(Bytes::copy_from_slice(bytes)))
            .unwrap();
    }

    /// Lengths of the frames of a body, with the milliseconds at which they came.
    async fn frames(mut body: RequestBody) -> Vec<(usize, u128)> {
        let (started, mut frames) = (Instant::now(), Vec::new());
        while let Some(frame) = body.frame().await {
            let len = frame.unwrap().into_data().map_or(0, |data| data.len());
            frames.push((len, started.elapsed().as_millis()));
        }
        frames
    }

    #[tokio::test(start_paused = true)]
    async fn short_frames_that_are_there_are_joined() {
        let (sender, body, _progress) = body();
        (0..1_000).for_each(|_| send(&sender, b"x"));
        send(&sender, &[b'x'; 5_000]);
        send(&sender, &[b'x'; 5_000]);
        send(&sender, b"x");
        drop(sender);
        let held_frames = 1_000 - 3 * SHORT_FRAME_BYTES + 5_000;
        // All frames that are there are taken at once.
        let frames = tokio::task::unconstrained(frames(body)).await;
        let lengths: Vec<_> = frames.into_iter().map(|(len, _)| len).collect();
        assert_eq!(
            lengths,
            [
                SHORT_FRAME_BYTES,
                SHORT_FRAME_BYTES,
                SHORT_FRAME_BYTES,
                held_frames,
                5_000,
                1
            ]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn short_frames_of_a_connection_are_few() {
        for (is_responding, frames_max, delay_max) in [(false, 400, 4_012), (true, 800, 62)] {
            let (sender, body, progress) = body();
            let _progress = (!is_responding).then_some(progress);
            let sending = async {
                for _ in 0..2_000 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    send(&sender, b"x");
                }
                drop(sender);
            };
            let ((), frames) = tokio::join!(sending, frames(body));
            assert_eq!(frames.iter().map(|(len, _)| len).sum::<usize>(), 2_000);
            // The first ones leave at once.
            assert!(
                frames[..32]
                    .iter()
                    .enumerate()
                    .all(|(at, frame)| *frame == (1, 10 * (at as u128 + 1))),
                "{frames:?}"
            );
            assert!(
                frames.len() < frames_max,
                "{is_responding}: {}",
                frames.len()
            );
            // With the pause before the first byte of a frame.
            let longest = frames
                .windows(2)
                .map(|pair| pair[1].1 - pair[0].1)
                .max()
                .unwrap();
            assert!(longest <= delay_max, "{is_responding}: {longest} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_are_held_leave_once_the_upstream_responds() {
        // Without a response the last bytes leave after about 4,080 ms.
        for (response_ms, last_ms) in [(1_000, 1_040..1_060), (4_070, 4_070..4_100)] {
            let (sender, body, progress) = body();
            let started = Instant::now();
            let sending = async {
                for _ in 0..200 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    send(&sender, b"x");
                }
                tokio::time::sleep_until(started + Duration::from_millis(response_ms)).await;
                drop(progress);
                tokio::time::sleep(Duration::from_secs(10)).await;
                drop(sender);
            };
            let ((), frames) = tokio::join!(sending, frames(body));
            assert_eq!(frames.iter().map(|(len, _)| len).sum::<usize>(), 200);
            let last = frames.last().unwrap().1;
            assert!(last_ms.contains(&last), "{response_ms}: {last} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_short_frames_of_a_stream_leave_at_once() {
        let short_frames = Arc::<ShortFrames>::default();
        // Another stream uses up the short frames of the connection.
        let (other_sender, other, _other_progress) = body_on(Arc::clone(&short_frames));
        let (sender, body, _progress) = body_on(short_frames);
        let started = Instant::now();
        let others = async {
            for _ in 0..3_000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                send(&other_sender, b"x");
            }
            drop(other_sender);
        };
        let sending = async {
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                send(&sender, b"x");
            }
            tokio::time::sleep_until(started + Duration::from_secs(20)).await;
            drop(sender);
        };
        let ((), (), _, frames) = tokio::join!(others, sending, frames(other), frames(body));
        assert_eq!(
            frames[..4],
            [(1, 1_001), (1, 1_002), (1, 1_003), (1, 1_004)]
        );
        assert!(frames.len() < 20, "{frames:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn trailers_follow_bytes_that_were_held() {
        let (sender, mut body, _progress) = body();
        send(&sender, b"a");
        send(&sender, b"b");
        sender
            .send(Frame::trailers(http::HeaderMap::new()))
            .unwrap();
        drop(sender);
        assert_eq!(
            body.frame().await.unwrap().unwrap().into_data().unwrap(),
            "ab"
        );
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        assert!(body.frame().await.is_none());
    }
}
