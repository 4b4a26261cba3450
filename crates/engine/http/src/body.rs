//! Bodies of requests: reading within limits, and the forms that they can have.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming};
use sealwire_payload::json::JsonError;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::problem::Problem;
use crate::{HttpOptions, Permits, memory_permits};

/// Bytes of one permit for memory.
pub(crate) const UNIT: usize = 1 << 10;
/// Suggested pause before the next attempt if no memory is left.
const MEMORY_RETRY_MS: u32 = 100;
/// Largest buffer that is made for a body before its bytes arrive.
const READ_AHEAD: usize = 64 << 10;

/// The encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// JSON text.
    Json,
    /// A single MessagePack value.
    MsgPack,
}

/// The body of a response.
pub(crate) type ResponseBody = Full<Bytes>;

/// The form of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) encoding: Encoding,
    /// True if the body is an object of all parameters. Otherwise the body is the payload, and
    /// headers carry the other parameters.
    pub(crate) is_request: bool,
}

/// Media types of a payload and of a request object, per encoding.
const JSON: &str = "application/json";
const MSGPACK: &str = "application/msgpack";
const JSON_REQUEST: &str = "application/vnd.sealwire.request+json";
const MSGPACK_REQUEST: &str = "application/vnd.sealwire.request+msgpack";

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

/// Memory that a request holds until it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    bytes: usize,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Reservation {
    /// Raises the reservation to `bytes`.
    ///
    /// # Errors
    /// No memory is left for all clients or for this one.
    pub(crate) fn grow(&mut self, bytes: usize, memory: &Permits) -> Result<(), Problem> {
        let more = memory_permits(bytes) - memory_permits(self.bytes.min(bytes));
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        // The client's own part comes first, so that a client beyond it takes nothing from others.
        for semaphore in [&memory.principal, &memory.all] {
            let permit = Arc::clone(semaphore)
                .try_acquire_many_owned(more)
                .map_err(|_| no_memory())?;
            self.permits.push(permit);
        }
        self.bytes = self.bytes.max(bytes);
        Ok(())
    }

    /// Adds memory for the result of an executed request, as far as memory is left. Such a result is
    /// never rejected, because its client would repeat a change that was made.
    pub(crate) fn add_available(&mut self, bytes: usize, memory: &Permits) {
        for semaphore in [&memory.principal, &memory.all] {
            let permits = memory_permits(bytes).min(semaphore.available_permits());
            let permits = u32::try_from(permits).unwrap_or(u32::MAX);
            if let Ok(permit) = Arc::clone(semaphore).try_acquire_many_owned(permits) {
                self.permits.push(permit);
            }
        }
    }
}

/// Returns the body of a response, which holds `memory` until its bytes were sent.
pub(crate) fn response_body(bytes: Bytes, memory: impl Send + 'static) -> ResponseBody {
    struct Held<M> {
        bytes: Bytes,
        _memory: M,
    }
    impl<M> AsRef<[u8]> for Held<M> {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    Full::new(Bytes::from_owner(Held {
        bytes,
        _memory: memory,
    }))
}

/// Reads a whole body within the limits of length, time and memory.
///
/// # Errors
/// A body that is too long, too slow, cut, or for which no memory is left.
pub(crate) async fn read(
    body: &mut Incoming,
    options: &HttpOptions,
    permits: &Permits,
    memory: &mut Reservation,
) -> Result<Bytes, Problem> {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > options.body_bytes_max {
        return Err(too_large(options));
    }
    memory.grow(announced, permits)?;
    let mut bytes = BytesMut::with_capacity(announced.min(READ_AHEAD));
    let reading = async {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|_| Problem::bad_request("the body ended too early"))?;
            let Ok(chunk) = frame.into_data() else {
                continue; // Trailers.
            };
            let len = bytes.len() + chunk.len();
            if len > options.body_bytes_max {
                return Err(too_large(options));
            }
            if len > memory.bytes {
                // A body without a length takes memory in growing steps.
                let doubled = (2 * memory.bytes).clamp(len, options.body_bytes_max.max(len));
                memory.grow(doubled, permits)?;
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(())
    };
    timeout(options.body_time_max, reading)
        .await
        .map_err(|_| Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long"))??;
    Ok(bytes.freeze())
}

/// Reads and drops the rest of a body within limits. Beyond them, the connection or stream breaks.
pub(crate) async fn discard(body: &mut Incoming, bytes_max: usize, time_max: Duration) {
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > bytes_max {
        return;
    }
    let discarding = async {
        let mut discarded = 0;
        while let Some(Ok(frame)) = body.frame().await {
            discarded += frame.data_ref().map_or(0, Bytes::len);
            if discarded > bytes_max {
                return;
            }
        }
    };
    // The response is due in any case.
    let _ = timeout(time_max, discarding).await;
}

fn no_memory() -> Problem {
    let mut problem = Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "no memory for the body: too many long requests at once",
    );
    problem.error = problem.error.retry_after_ms(MEMORY_RETRY_MS);
    problem
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
