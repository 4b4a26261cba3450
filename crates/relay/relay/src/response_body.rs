//! Bodies of responses, as hyper polls them: their bytes are offers to the client
//! ([`crate::stall`]), and their end ends the exchange.
//!
//! hyper lets go of a stream of HTTP/2 with the end of its body, also if the client has not taken
//! all of it. Nothing could reset the stream then. So the end comes as a frame of its own, after
//! all bytes were written to the connection. Over HTTP/1.1 the whole connection ends if its client
//! takes nothing, and the end comes with the last bytes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::activity::InFlight;
use crate::body::Outgoing;
use crate::completion::Completion;
use crate::error::Failure;
use crate::stall::OfferedBytes;

/// The body of a response.
pub struct ResponseBody {
    body: Outgoing,
    is_http2: bool,
    /// True once the client was given bytes.
    has_begun: bool,
    /// The end of the body, once it is known: its trailers, until they are sent.
    end: Option<Option<HeaderMap>>,
    in_flight: Arc<InFlight>,
    /// Ends the exchange when the body ends.
    completion: Option<Completion>,
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseBody")
    }
}

impl ResponseBody {
    /// Creates the body of a response that ends an exchange.
    pub fn completing(body: Outgoing, mut completion: Completion) -> Self {
        if body.is_end_stream() {
            completion.is_complete();
        }
        let (in_flight, is_http2) = (completion.in_flight(), completion.is_http2());
        Self {
            completion: Some(completion),
            ..Self::new(body, in_flight, is_http2)
        }
    }

    /// Creates the body of a response whose exchange ends elsewhere.
    pub const fn new(body: Outgoing, in_flight: Arc<InFlight>, is_http2: bool) -> Self {
        Self {
            body,
            is_http2,
            has_begun: false,
            end: None,
            in_flight,
            completion: None,
        }
    }

    fn is_complete(&mut self) {
        if let Some(completion) = &mut self.completion {
            completion.is_complete();
        }
    }

    /// Offers bytes to the client.
    fn offer(&mut self, bytes: Bytes) -> Frame<OfferedBytes> {
        self.has_begun = true;
        if let Some(completion) = &mut self.completion {
            completion.sent(bytes.len());
        }
        // hyper does not poll a body again that is at its end.
        if self.is_end_stream() {
            self.is_complete();
        }
        Frame::data(OfferedBytes::new(bytes, self.in_flight.offer()))
    }
}

impl Body for ResponseBody {
    type Data = OfferedBytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<OfferedBytes>, Failure>>> {
        let this = &mut *self;
        while this.end.is_none() {
            match ready!(Pin::new(&mut this.body).poll_frame(cx))
                .map(|frame| frame.map(Frame::into_data))
            {
                Some(Ok(Ok(bytes))) => return Poll::Ready(Some(Ok(this.offer(bytes)))),
                Some(Ok(Err(frame))) => this.end = frame.into_trailers().ok().map(Some),
                None => this.end = Some(None),
                Some(Err(failure)) => {
                    if let Some(completion) = &mut this.completion {
                        completion.broke_off(&failure);
                    }
                    return Poll::Ready(Some(Err(failure)));
                }
            }
        }
        if this.is_http2 {
            ready!(this.in_flight.offer().poll_all_taken(cx));
        }
        this.is_complete();
        let trailers = this.end.as_mut().and_then(Option::take);
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && !(self.is_http2 && self.has_begun)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
