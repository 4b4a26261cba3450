//! Bodies towards and from an upstream: both tell the pool how far they are.

use std::future::Future as _;
use std::pin::Pin;
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

/// How far the body of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The upstream takes no more bytes for now.
    Offered(Instant),
    /// The client gives no more bytes for now.
    Awaited(Instant),
    /// All bytes are handed over.
    Ended(Instant),
    /// The client's body failed.
    Failed,
}

/// Body of a request that reports its progress.
pub(super) struct RequestBody {
    inner: UnsyncBoxBody<Bytes, Cause>,
    progress: watch::Sender<Progress>,
}

impl RequestBody {
    pub(super) fn new<B>(body: B) -> (Self, watch::Receiver<Progress>)
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Cause>,
    {
        let now = Instant::now();
        let start = if body.is_end_stream() { Progress::Ended(now) } else { Progress::Offered(now) };
        let (progress, receiver) = watch::channel(start);
        (Self { inner: body.map_err(Into::into).boxed_unsync(), progress }, receiver)
    }

    fn report(&self, new: Progress) {
        self.progress.send_if_modified(|old| {
            let is_over = matches!(old, Progress::Ended(_) | Progress::Failed);
            // A client that gives nothing for long is polled repeatedly; the first time counts.
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        let now = Instant::now();
        self.report(match &polled {
            Poll::Pending => Progress::Awaited(now),
            Poll::Ready(Some(Ok(_))) if !self.inner.is_end_stream() => Progress::Offered(now),
            Poll::Ready(Some(Err(_))) => Progress::Failed,
            Poll::Ready(_) => Progress::Ended(now),
        });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.report(Progress::Ended(Instant::now()));
    }
}

/// Body of a response. Read to its end, it gives the connection back to the pool. Dropped earlier, it closes an HTTP/1
/// connection and resets an HTTP/2 stream.
#[derive(Debug)]
pub struct UpstreamBody {
    incoming: Incoming,
    lease: Option<Lease>,
    idle_timeout: Duration,
    idle: Option<Pin<Box<Sleep>>>,
    is_close_delimited: bool,
}

impl UpstreamBody {
    pub(super) fn new(incoming: Incoming, lease: Lease, idle_timeout: Duration, is_close_delimited: bool) -> Self {
        let mut body = Self { incoming, lease: Some(lease), idle_timeout, idle: None, is_close_delimited };
        body.release_at_end();
        body
    }

    /// Returns true if only the end of the connection ends the body, so that a broken connection looks like an end.
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let body = &mut *self;
        match Pin::new(&mut body.incoming).poll_frame(cx) {
            Poll::Ready(frame) => {
                body.idle = None;
                match &frame {
                    Some(Ok(_)) => body.release_at_end(),
                    Some(Err(_)) => drop(body.lease.take()),
                    None => body.release(),
                }
                Poll::Ready(frame.map(|frame| frame.map_err(|e| UpstreamError::sent(Stage::Exchange).because(e))))
            }
            // The clock starts when the upstream is waited for: a slow client does not poll, and is not its fault.
            Poll::Pending => {
                let end = Instant::now() + body.idle_timeout;
                ready!(body.idle.get_or_insert_with(|| Box::pin(sleep_until(end))).as_mut().poll(cx));
                body.lease = None;
                Poll::Ready(Some(Err(UpstreamError::sent(Stage::BodyTimeout))))
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
