//! The HTTP and JSON interface to the methods of the data listener.
//!
//! [`serve`] handles one authenticated HTTP connection. Each HTTP request becomes one
//! request of the MessagePack-RPC contract, on a connection inside the process. The
//! engine treats that connection like any other of the same principal, so permissions, admission,
//! fairness, deadlines, audit records and limits are those of the contract. This crate has neither
//! keys nor permissions.
//!
//! | module | purpose |
//! | --- | --- |
//! | `route` | finds the method and the app in the path |
//! | `params` | reads parameters from headers or from a request object |
//! | `head` | checks the size of a head, and rejects ambiguous heads (request smuggling) |
//! | `body` | reads the body of a request within limits, and sends that of a response |
//! | `memory` | divides memory between bodies of requests and results, and between principals |
//! | `exchange` | handles one request, step by step |
//! | `session` | carries many requests over the connection inside the process |
//! | `problem` | writes errors as problem documents (RFC 9457) |
//! | `openapi` | serves the description of this interface (OpenAPI 3.1) |

mod body;
mod exchange;
mod head;
mod memory;
mod openapi;
mod params;
mod problem;
mod route;
mod session;

use std::convert::Infallible;
use std::num::NonZeroU64;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Version};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use sealwire_service::http_server::activity::{Activity, Expired, Timeouts, Watched};
use sealwire_service::http_server::head_check::{HeadCheck, Upgrade};
use sealwire_service::http_server::stall::{Spawn, StreamExecutor};
use sealwire_wire::Method;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::time::{Instant, timeout};

use crate::exchange::Exchange;
use crate::head::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::params::Params;
use crate::session::Session;

pub use memory::{BodyAccount, Memory, Permits, PrincipalMemory, ResultMemory, TakenMemory};

/// The application protocols of a TLS handshake on the HTTP listener, in the order of preference.
pub const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Most concurrent requests of an HTTP/2 connection, whatever its options are.
const STREAMS_MAX: u32 = 128;
/// Most streams of an HTTP/2 connection that its client reset before they were handled.
const PENDING_RESETS_MAX: usize = 20;
/// Most streams of an HTTP/2 connection that the server reset because of errors of its client.
const ERROR_RESETS_MAX: usize = 128;
/// Bytes of a body that an HTTP/2 client can send before they are read.
const STREAM_WINDOW: u32 = 64 << 10;
/// Bytes of all bodies that an HTTP/2 client can send before they are read: a connection takes at
/// most so much memory beside the counted memory.
const CONNECTION_WINDOW: u32 = 256 << 10;
/// Lowest average rate at which a client must read a response, in bytes per second.
const RESPONSE_BYTES_PER_S_MIN: NonZeroU64 = NonZeroU64::new(1 << 20).expect("not zero");
/// Longest time to close an idle connection gracefully.
const GRACEFUL_CLOSE_MAX: Duration = Duration::from_secs(2);

/// Observes rejected requests, and slows down a client whose requests are rejected before they
/// reach the engine. The engine itself slows down a client whose requests it rejects.
pub trait Pace: Send + Sync {
    /// Counts a request that was rejected with this status before it reached the engine.
    /// `is_fault_of_sender` is false if memory was missing.
    fn count_rejected(&self, status: u16, is_fault_of_sender: bool);

    /// Returns the end of the pause that the client must make now, if any.
    fn pause(&self) -> Option<Instant>;
}

/// A future that resolves at the end of a drain.
pub type DrainEnd = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Limits and services of one connection.
#[derive(Clone)]
pub struct HttpOptions {
    /// Longest body of a request and longest document after its conversion, in bytes.
    pub body_bytes_max: usize,
    /// Most bytes of a rejected body that are read and dropped.
    pub discard_bytes_max: usize,
    /// Deepest nesting of a document.
    pub depth_max: usize,
    /// Longest response of the engine, and longest document of a response, in bytes.
    pub response_bytes_max: usize,
    /// Longest time of a connection without a request.
    pub idle_time_max: Duration,
    /// Time for the head of a request, from its first byte.
    pub head_time_max: Duration,
    /// Time for the body of a request.
    pub body_time_max: Duration,
    /// Longest time in which the client takes no bytes of a response.
    pub write_time_max: Duration,
    /// Most concurrent requests of an HTTP/2 connection.
    pub streams_max: u32,
    /// Memory for heads and bodies of requests.
    pub body_memory: BodyAccount,
    /// Permits for conversions of long documents, each on a thread.
    pub conversions: Permits,
    /// The pace of the client, on all its connections.
    pub pace: Arc<dyn Pace>,
    /// Starts the tasks of an HTTP/2 connection.
    pub spawn: Spawn,
}

/// Serves an HTTP connection until the client or the engine ends it, or until the drain ends.
/// `engine` is the client's end of a connection to the engine with the same principal, and `results`
/// the memory that the engine has taken for the results on it.
pub async fn serve<S>(
    stream: S,
    engine: DuplexStream,
    results: TakenMemory,
    options: HttpOptions,
    drain_end: DrainEnd,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let pace = Arc::clone(&options.pace);
    let timeouts = Timeouts {
        header: options.head_time_max,
        idle: options.idle_time_max,
        write: options.write_time_max,
    };
    let activity = Arc::new(Activity::new(timeouts).with_rate(RESPONSE_BYTES_PER_S_MIN));
    let watched = Watched::new(stream, Arc::clone(&activity));
    let io = HeadCheck::new(watched, Upgrade::default(), Arc::clone(&activity)).strict();

    let builder = builder(&options);
    let (session, relay) = Session::new(engine, results, &options);
    let exchange = Arc::new(Exchange::new(session, options));
    let started = Arc::clone(&activity);
    let service = service_fn(move |request: http::Request<_>| {
        let exchange = Arc::clone(&exchange);
        let mut in_flight = started.start_exchange(request.version() == Version::HTTP_2);
        async move {
            in_flight.use_stream_of_task();
            Ok::<_, Infallible>(exchange.handle(request, in_flight).await)
        }
    });
    let connection = builder.serve_connection(TokioIo::new(io), service);

    let mut connection = pin!(connection);
    let mut relay = pin!(relay);
    let mut drain_end = drain_end;
    let mut is_ending = false;
    let result = loop {
        tokio::select! {
            result = connection.as_mut() => break result,
            // The engine closes the connection when it drains, or when the client's certificate is
            // revoked. By then it has responded to every request that runs. The client can read
            // these responses until the drain ends.
            () = relay.as_mut(), if !is_ending => {
                connection.as_mut().graceful_shutdown();
                is_ending = true;
            }
            () = drain_end.as_mut() => break Ok(()),
            expired = activity.wait_until_expired() => {
                if expired == Expired::Idle && !is_ending {
                    connection.as_mut().graceful_shutdown();
                    let _ = timeout(GRACEFUL_CLOSE_MAX, connection.as_mut()).await;
                }
                break Ok(());
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "HTTP connection ends");
        let error = error.downcast_ref::<hyper::Error>();
        // hyper has responded to these heads itself.
        if error.is_some_and(hyper::Error::is_parse_too_large) {
            pace.count_rejected(431, true);
        } else if error.is_some_and(hyper::Error::is_parse) {
            pace.count_rejected(400, true);
        }
    }
}

/// Creates the builder of a connection with the limits of its options.
fn builder(options: &HttpOptions) -> auto::Builder<StreamExecutor> {
    let executor = StreamExecutor::new(options.write_time_max)
        .with_rate(RESPONSE_BYTES_PER_S_MIN)
        .with_spawn(Arc::clone(&options.spawn));
    let mut builder = auto::Builder::new(executor);
    builder
        .http1()
        .timer(TokioTimer::new())
        // `Activity` limits the time for heads.
        .header_read_timeout(None)
        .max_headers(HEADERS_MAX)
        // hyper rejects a head that does not fit into its buffer.
        .max_buf_size(HEADER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .max_concurrent_streams(options.streams_max.min(STREAMS_MAX))
        .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
        .max_local_error_reset_streams(ERROR_RESETS_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(options.write_time_max)
        .keep_alive_timeout(options.write_time_max);
    builder
}

/// Returns the parameters of a request as the engine gets them. For the fuzz target, which reads
/// what this crate reads.
///
/// # Errors
/// The sentence of the problem document.
#[doc(hidden)]
pub fn encode_params(
    method: Method,
    app: &str,
    headers: &HeaderMap,
    object: Option<&[u8]>,
) -> Result<Vec<u8>, String> {
    let mut params = Params::of_app(app);
    let mut out = Vec::new();
    params
        .add_headers(method, headers)
        .and_then(|()| object.map_or(Ok(None), |object| params.add_object(object)))
        .map(|payload| {
            for piece in params.encode(payload.map(bytes::Bytes::copy_from_slice)) {
                out.extend_from_slice(&piece);
            }
        })
        .map_err(|problem| problem.error.message.into_owned())?;
    Ok(out)
}
