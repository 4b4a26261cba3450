//! Bodies of requests: reading within limits, and the forms that they can have. Bodies of responses:
//! memory and the client's reading.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use sealwire_payload::json::JsonError;
use sealwire_service::http_server::activity::InFlight;
use sealwire_service::http_server::stall::OfferedBytes;
use sealwire_service::memory::{GrowError, Reservation};
use tokio::time::timeout;

use crate::problem::Problem;
use crate::{HttpOptions, Pace};

/// Suggested pause before the next attempt if no memory is left.
const MEMORY_RETRY_MS: u32 = 100;

/// Most bytes of a body that are read before the principal must have a role.
const BYTES_WITHOUT_ROLE_MAX: usize = 64 << 10;

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// JSON text.
    Json,
    /// A single MessagePack value.
    MsgPack,
}

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) encoding: Encoding,
    /// True if the body is an object of all parameters. Otherwise the body is the payload, and
    /// headers carry the other parameters.
    pub(crate) is_request: bool,
}

/// Media types of a payload and of a request object, per encoding.
pub(crate) const JSON: &str = "application/json";
pub(crate) const MSGPACK: &str = "application/msgpack";
pub(crate) const JSON_REQUEST: &str = "application/vnd.sealwire.request+json";
pub(crate) const MSGPACK_REQUEST: &str = "application/vnd.sealwire.request+msgpack";

impl Form {
    /// Returns the form that the content type names.
    ///
    /// # Errors
    /// No or another content type, more than one, or a compressed body. A body without a content
    /// type is rejected because web pages can send it to other sites.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Problem> {
        if headers.contains_key(CONTENT_ENCODING) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "the body must have no content encoding",
            ));
        }
        let mut values = headers.get_all(CONTENT_TYPE).iter();
        let essence = match (values.next(), values.next()) {
            (Some(value), None) => value
                .to_str()
                .ok()
                .and_then(|text| text.split(';').next())
                .map(str::trim),
            _ => None,
        };
        match essence.map(str::to_ascii_lowercase).as_deref() {
            Some(JSON) => Ok(Self::document(Encoding::Json)),
            Some(MSGPACK | "application/x-msgpack") => Ok(Self::document(Encoding::MsgPack)),
            Some(JSON_REQUEST) => Ok(Self::request(Encoding::Json)),
            Some(MSGPACK_REQUEST) => Ok(Self::request(Encoding::MsgPack)),
            _ => Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                format!(
                    "the content type must be {JSON}, {MSGPACK}, {JSON_REQUEST} or {MSGPACK_REQUEST}"
                ),
            )),
        }
    }

    const fn document(encoding: Encoding) -> Self {
        Self {
            encoding,
            is_request: false,
        }
    }

    const fn request(encoding: Encoding) -> Self {
        Self {
            encoding,
            is_request: true,
        }
    }
}

impl Encoding {
    /// Returns the content type of a response.
    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::MsgPack => MSGPACK,
        }
    }
}

/// Limits for the rest of a rejected body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiscardLimits {
    /// Most bytes that are read and dropped.
    pub(crate) bytes_max: usize,
    pub(crate) time_max: Duration,
}

/// The body of a request, which may be read or not.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// True after the first read. A client that expects `100-continue` sends its body only then.
    is_started: bool,
}

impl RequestBody {
    pub(crate) const fn new(incoming: Incoming) -> Self {
        Self {
            incoming,
            is_started: false,
        }
    }

    /// Returns true if bytes were requested from the client.
    pub(crate) const fn is_started(&self) -> bool {
        self.is_started
    }

    fn announced(&self) -> usize {
        usize::try_from(self.incoming.size_hint().lower()).unwrap_or(usize::MAX)
    }

    /// Reads a whole body within the limits of length, time and memory. Memory is taken as bytes
    /// arrive: at most twice their length, and never more than the announced length. `head_bytes`
    /// are already in the reservation.
    ///
    /// # Errors
    /// A body that is too long, too slow, cut, or for which no memory is left, or a long body of a
    /// principal without a role.
    pub(crate) async fn read(
        &mut self,
        options: &HttpOptions,
        pace: &dyn Pace,
        memory: &mut Reservation<2>,
        head_bytes: usize,
    ) -> Result<Bytes, Problem> {
        let announced = self.announced();
        if announced > options.body_bytes_max {
            return Err(too_large(options));
        }
        let longest = if self.incoming.size_hint().exact().is_some() {
            announced
        } else {
            options.body_bytes_max
        };
        self.is_started = true;
        let mut bytes = Vec::new();
        let reading = async {
            let mut has_role = false;
            while let Some(frame) = self.incoming.frame().await {
                let frame = frame.map_err(|_| Problem::bad_request("the body ended too early"))?;
                let Ok(chunk) = frame.into_data() else {
                    continue; // Trailers.
                };
                let len = bytes.len() + chunk.len();
                if len > options.body_bytes_max {
                    return Err(too_large(options));
                }
                if len > BYTES_WITHOUT_ROLE_MAX && !has_role {
                    pace.require_role().await.map_err(Problem::rejected_here)?;
                    has_role = true;
                }
                if len > bytes.capacity() {
                    let capacity = (2 * len).min(longest).max(len);
                    grow(memory, head_bytes + capacity)?;
                    bytes.reserve_exact(capacity - bytes.len());
                }
                bytes.extend_from_slice(&chunk);
            }
            Ok(())
        };
        timeout(options.body_time_max, reading)
            .await
            .map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long"))??;
        Ok(bytes.into())
    }

    /// Reads and drops the rest of a body within limits. Beyond them, the connection or stream
    /// breaks.
    pub(crate) async fn discard(&mut self, limits: DiscardLimits) {
        if self.announced() > limits.bytes_max {
            return;
        }
        let discarding = async {
            let mut discarded = 0;
            while let Some(Ok(frame)) = self.incoming.frame().await {
                discarded += frame.data_ref().map_or(0, Bytes::len);
                if discarded > limits.bytes_max {
                    return;
                }
            }
        };
        // The response is due in any case.
        let _ = timeout(limits.time_max, discarding).await;
    }
}

/// Raises a reservation to at least `bytes`.
///
/// # Errors
/// 429 if memory is in use, and 413 if it is more than the principal can ever have.
pub(crate) fn grow(memory: &mut Reservation<2>, bytes: usize) -> Result<(), Problem> {
    memory.grow_to(bytes).map_err(|error| match error {
        GrowError::Busy(exceeded) => {
            let mut problem = Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!("no memory for the body: {exceeded}"),
            );
            problem.error = problem.error.retry_after_ms(MEMORY_RETRY_MS);
            problem
        }
        GrowError::TooLarge(_, most) => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!(
                "the request needs more than the {most} bytes of schedule.memory_mib that one client can have"
            ),
        ),
    })
}

fn too_large(options: &HttpOptions) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        format!(
            "the body is longer than limits.message_bytes_max, {} bytes",
            options.body_bytes_max
        ),
    )
}

/// Returns the problem of a body that is not JSON, or that has a value which would change.
pub(crate) fn json_problem(error: &JsonError) -> Problem {
    let status = match error {
        JsonError::TooDeep { .. } | JsonError::OutTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    };
    Problem::new(status, format!("body: {error}"))
}

/// Returns the bytes of a response, which hold `memory` until they were sent.
pub(crate) fn held_bytes(bytes: Bytes, memory: impl Send + 'static) -> Bytes {
    struct Held<M> {
        bytes: Bytes,
        _memory: M,
    }
    impl<M> AsRef<[u8]> for Held<M> {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Bytes::from_owner(Held {
        bytes,
        _memory: memory,
    })
}

/// The body of a response. Its bytes count as offered to the client until the connection has
/// written them, so that a client that does not read ends its stream or connection.
///
/// hyper releases an HTTP/2 stream at the end of its body, even if the client has not read all of
/// it. After that, the stream could not be ended. The end is therefore a separate frame, sent after
/// all bytes were written.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    bytes: Bytes,
    is_http2: bool,
    in_flight: InFlight,
}

impl ResponseBody {
    pub(crate) const fn new(bytes: Bytes, is_http2: bool, in_flight: InFlight) -> Self {
        Self {
            bytes,
            is_http2,
            in_flight,
        }
    }
}

impl Body for ResponseBody {
    type Data = OfferedBytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<OfferedBytes>, Infallible>>> {
        if !self.bytes.is_empty() {
            let bytes = std::mem::take(&mut self.bytes);
            let offered = OfferedBytes::new(bytes, self.in_flight.offer());
            return Poll::Ready(Some(Ok(Frame::data(offered))));
        }
        if self.is_http2 {
            ready!(self.in_flight.offer().poll_all_taken(cx));
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && !self.is_http2
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
