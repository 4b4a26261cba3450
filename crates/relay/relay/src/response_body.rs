//! Bodies of responses that hyper polls. Their bytes count as offered to the client
//! ([`sealwire_service::http_server::stall`]), and the end of a body ends the exchange.
//!
//! hyper releases an HTTP/2 stream at the end of its body, even if the client has not read all of
//! it. After that, the relay could not reset the stream. The end is therefore a separate frame,
//! sent after all bytes were written to the connection. Over HTTP/1.1, the end comes with the last
//! bytes, because a client that does not read ends the whole connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use crate::body::Outgoing;
use crate::completion::Completion;
use crate::error::Failure;
use sealwire_service::http_server::activity::InFlight;
use sealwire_service::http_server::stall::OfferedBytes;

/// The body of a response.
pub struct ResponseBody {
    body: Outgoing,
    is_http2: bool,
    /// True after bytes were given to the client.
    has_started: bool,
    /// The end of the body, once it is known, with its trailers until they are sent.
    end: Option<Option<HeaderMap>>,
    in_flight: Arc<InFlight>,
    /// Ends the exchange at the end of the body.
    completion: Option<Completion>,
}

impl std::fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResponseBody")
    }
}

impl ResponseBody {
    /// Creates the body of a response whose end also ends the exchange.
    pub fn with_completion(body: Outgoing, mut completion: Completion) -> Self {
        if body.is_end_stream() {
            completion.set_complete();
        }
        let in_flight = completion.in_flight();
        let is_http2 = completion.is_http2();
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
            has_started: false,
            end: None,
            in_flight,
            completion: None,
        }
    }

    fn set_complete(&mut self) {
        if let Some(completion) = &mut self.completion {
            completion.set_complete();
        }
    }

    /// Offers bytes to the client.
    fn offer_bytes(&mut self, bytes: Bytes) -> Frame<OfferedBytes> {
        self.has_started = true;
        if let Some(completion) = &mut self.completion {
            completion.add_sent_bytes(bytes.len());
        }
        // hyper does not poll a body again after its end.
        if self.is_end_stream() {
            self.set_complete();
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
                Some(Ok(Ok(bytes))) => return Poll::Ready(Some(Ok(this.offer_bytes(bytes)))),
                Some(Ok(Err(frame))) => this.end = frame.into_trailers().ok().map(Some),
                None => this.end = Some(None),
                Some(Err(failure)) => {
                    if let Some(completion) = &mut this.completion {
                        completion.set_failure(&failure);
                    }
                    return Poll::Ready(Some(Err(failure)));
                }
            }
        }
        if this.is_http2 {
            ready!(this.in_flight.offer().poll_all_taken(cx));
        }
        this.set_complete();
        let trailers = this.end.as_mut().and_then(Option::take);
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && !(self.is_http2 && self.has_started)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
