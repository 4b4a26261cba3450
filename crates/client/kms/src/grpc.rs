//! The service over gRPC: paths, deadlines, limits of messages, metrics.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use prost::Message;
use tokio::time::{Instant, timeout_at};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::metrics::{Method, Metrics};
use crate::plugin::Plugin;
use crate::proto::{
    DECRYPT, DecryptRequest, ENCRYPT, EncryptRequest, STATUS, StatusRequest, VERSION_1,
};

/// Longest message in bytes. The API server sends less than 3 KiB: a ciphertext and a key id of at
/// most 1 KiB each. Annotations, of which this plugin writes none, have at most 32 KiB.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Units of the header `grpc-timeout`, in nanoseconds.
const TIMEOUT_UNITS: [(u8, u64); 6] = [
    (b'H', 3_600_000_000_000),
    (b'M', 60_000_000_000),
    (b'S', 1_000_000_000),
    (b'm', 1_000_000),
    (b'u', 1_000),
    (b'n', 1),
];
/// Most digits in `grpc-timeout`.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// The service of all connections.
#[derive(Clone, Debug)]
pub struct Service {
    /// The plugin.
    pub plugin: Arc<Plugin>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

impl Service {
    /// Handles one request. Safe to drop: the engine receives a cancel.
    ///
    /// # Errors
    /// Never fails: the response has failures as statuses of gRPC.
    pub async fn handle(self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let started = Instant::now();
        let longest = self.plugin.deadline();
        let asked = timeout_of(request.headers()).unwrap_or(longest);
        let deadline = started + asked.min(longest);
        let method = match request.uri().path() {
            STATUS => Method::Status,
            ENCRYPT => Method::Encrypt,
            DECRYPT => Method::Decrypt,
            path => {
                let text = if path.starts_with(VERSION_1) {
                    "this plugin serves KMS v2: set apiVersion: v2 for this provider in the EncryptionConfiguration"
                } else {
                    "this plugin serves v2.KeyManagementService with Status, Encrypt and Decrypt"
                };
                return Ok(Status::unimplemented(text).into_http());
            }
        };

        // The limit also ends a request whose body does not arrive.
        let response = timeout_at(deadline, self.call(method, request, deadline)).await;
        let response = response.unwrap_or_else(|_| {
            Status::deadline_exceeded("the deadline of the request passed").into_http()
        });
        // A response without a message has its status in the headers.
        let code =
            Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
        self.metrics.count_request(method, code, started.elapsed());
        Ok(response)
    }

    async fn call(
        &self,
        method: Method,
        request: Request<Incoming>,
        deadline: Instant,
    ) -> Response<Body> {
        let plugin = Arc::clone(&self.plugin);
        match method {
            Method::Status => {
                let call = move |_: tonic::Request<StatusRequest>| {
                    let plugin = Arc::clone(&plugin);
                    async move { Ok(tonic::Response::new(plugin.status(deadline).await)) }
                };
                unary(request, call).await
            }
            Method::Encrypt => {
                let call = move |request: tonic::Request<EncryptRequest>| {
                    let plugin = Arc::clone(&plugin);
                    async move {
                        let response = plugin.encrypt(request.into_inner(), deadline).await;
                        response.map(tonic::Response::new)
                    }
                };
                unary(request, call).await
            }
            Method::Decrypt => {
                let call = move |request: tonic::Request<DecryptRequest>| {
                    let plugin = Arc::clone(&plugin);
                    async move {
                        let response = plugin.decrypt(request.into_inner(), deadline).await;
                        response.map(tonic::Response::new)
                    }
                };
                unary(request, call).await
            }
        }
    }
}

/// A function as a method with one request and one response.
struct UnaryMethod<C>(C);

impl<C, F, Q, A> UnaryService<Q> for UnaryMethod<C>
where
    C: FnMut(tonic::Request<Q>) -> F,
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    type Response = A;
    type Future = F;

    fn call(&mut self, request: tonic::Request<Q>) -> F {
        self.0(request)
    }
}

/// Reads the message of a request, calls a method, and writes its response.
async fn unary<Q, A, F>(
    request: Request<Incoming>,
    call: impl FnMut(tonic::Request<Q>) -> F,
) -> Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Send + 'static,
    F: Future<Output = Result<tonic::Response<A>, Status>>,
{
    Grpc::new(ProstCodec::<A, Q>::default())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
        .unary(UnaryMethod(call), request)
        .await
}

/// Returns the time that the client gives the request, or `None` if the header is absent or
/// malformed.
fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let (unit, digits) = headers.get("grpc-timeout")?.as_bytes().split_last()?;
    let (_, nanoseconds) = TIMEOUT_UNITS.iter().find(|(letter, _)| letter == unit)?;
    let is_number =
        (1..=TIMEOUT_DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_number)?;
    let amount: u64 = digits.parse().ok()?;
    Some(Duration::from_nanos(amount.saturating_mul(*nanoseconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        for (text, expected) in [
            ("3S", Some(Duration::from_secs(3))),
            ("2999m", Some(Duration::from_millis(2_999))),
            ("10u", Some(Duration::from_micros(10))),
            ("7n", Some(Duration::from_nanos(7))),
            ("1M", Some(Duration::from_secs(60))),
            ("1H", Some(Duration::from_secs(3_600))),
            ("0m", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_nanos(u64::MAX))),
            ("123456789m", None),
            ("3s", None),
            ("3", None),
            ("S", None),
            ("", None),
            ("-1S", None),
            ("+1S", None),
            ("1.5S", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            assert_eq!(timeout_of(&headers), expected, "{text}");
        }
        assert_eq!(timeout_of(&HeaderMap::new()), None);
    }
}
