//! The HTTP and JSON interface to the methods of the data listener.
//!
//! [`serve`] handles one HTTP connection. Each HTTP request becomes one request of the
//! MessagePack-RPC contract, on a connection inside the process. The engine treats that connection
//! like any other of the same principal, so permissions, admission, fairness, deadlines, audit
//! records and limits are those of the contract. This crate has neither keys nor permissions.
//!
//! The principal is that of the client certificate. On a connection without one, each request has a
//! bearer token, and each principal has its own connection to the engine. Memory, threads and pace
//! are those of the principal of the request in both cases.
//!
//! | module | purpose |
//! | --- | --- |
//! | `route` | finds the method and the app in the path |
//! | `params` | reads parameters from headers or from a request object |
//! | `head` | checks the size of a head, and rejects ambiguous heads (request smuggling) |
//! | `body` | reads the body of a request within limits, and sends that of a response |
//! | `memory` | divides memory between bodies of requests and results, and between principals |
//! | `authorization` | reads the bearer token of a request |
//! | `clients` | finds the principal of a request, and its connection to the engine |
//! | `exchange` | handles one request, step by step |
//! | `session` | carries many requests over the connection inside the process |
//! | `problem` | writes errors as problem documents (RFC 9457) |
//! | `openapi` | serves the description of this interface (OpenAPI 3.1) |

mod authorization;
mod body;
mod clients;
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
use sealwire_access::Principal;
use sealwire_service::http_server::activity::{Activity, Expired, Timeouts, Watched};
use sealwire_service::http_server::head_check::{HeadCheck, Upgrade};
use sealwire_service::http_server::stall::{Spawn, StreamExecutor};
use sealwire_wire::{Method, RpcError};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::time::{Instant, timeout};

use crate::clients::{BearerClients, Client, ConnectionClients, ConnectionEnd};
use crate::exchange::Exchange;
use crate::head::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::params::Params;

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
/// reach the engine. The engine itself slows down a client whose requests it rejects. Also says
/// whether long bodies of the client are read.
pub trait Pace: Send + Sync {
    /// Counts a request that was rejected with this status before it reached the engine.
    /// `is_fault_of_sender` is false if memory was missing.
    fn count_rejected(&self, status: u16, is_fault_of_sender: bool);

    /// Returns the end of the pause that the client must make now, if any.
    fn pause(&self) -> Option<Instant>;

    /// Checks that the principal has a role, before more than a small part of a body is read.
    /// Otherwise a principal without a role could occupy memory.
    fn require_role(&self) -> BoxFuture<'_, Result<(), RpcError>>;
}

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

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
    /// Time for the head of a request, from its first byte. Also the time for the first request
    /// with a valid token, on a connection without a client certificate.
    pub head_time_max: Duration,
    /// Time for the body of a request.
    pub body_time_max: Duration,
    /// Longest time in which the client takes no bytes of a response.
    pub write_time_max: Duration,
    /// Most concurrent requests of an HTTP/2 connection.
    pub streams_max: u32,
    /// Starts the tasks of an HTTP/2 connection.
    pub spawn: Spawn,
}

/// A principal's connection to the engine, and what its requests share with its other connections.
pub struct ClientLink {
    /// The client's end of a connection to the engine with this principal.
    pub engine: DuplexStream,
    /// The memory that the engine has taken for the results on that connection.
    pub results: TakenMemory,
    /// Memory for heads and bodies of requests.
    pub body_memory: BodyAccount,
    /// Permits for conversions of long documents, each on a thread.
    pub conversions: Permits,
    /// The pace of the principal. Requests and their responses hold it until they end.
    pub pace: Arc<dyn Pace>,
    /// Starts tasks that use the principal's share of the network threads.
    pub spawn: Spawn,
}

/// The clients that send requests over a connection.
pub enum Clients {
    /// The client certificate names the principal of all requests.
    Certificate(ClientLink),
    /// Each request has the bearer token of its principal.
    Bearer(Arc<dyn Bearers>),
}

/// Authenticates the requests of a connection without a client certificate.
pub trait Bearers: Send + Sync {
    /// Returns the principal of a token that was verified a short time ago. Does not wait.
    fn remembered(&self, token: &str) -> Option<Principal>;

    /// Returns the principal of a token that is not remembered.
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Principal, AuthenticationError>>;

    /// Notes that a request with a valid token has its client.
    fn note_authenticated(&self);

    /// Charges the address of the client for a request that has no well-formed head or token.
    /// Returns the pause that such clients must make now, if any.
    fn charge_rejected(&self) -> Option<Duration>;

    /// Counts a request in the metrics that was rejected with this status before it reached the
    /// engine, and before a principal was known to whose pace it counts.
    fn count_rejected(&self, status: u16);

    /// Returns the memory for heads of requests that have no principal yet: that of the client's
    /// address, and that of all addresses.
    fn head_memory(&self) -> BodyAccount;

    /// Opens a connection to the engine. Returns `None` if the principal has too many.
    fn connect(&self, principal: &Principal) -> Option<ClientLink>;

    /// Waits until the engine shuts down.
    fn shutdown(&self) -> BoxFuture<'_, ()>;
}

/// The reason why a request is not authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthenticationError {
    /// The token is not valid. Contains the reason, of printable ASCII without quotes and
    /// backslashes, and without any part of the token.
    Invalid(String),
    /// The token cannot be checked now. Contains the reason.
    Unavailable(String),
    /// Too many requests from the same address had no valid token.
    Limited {
        /// Pause before the next attempt.
        retry_after: Duration,
    },
}

/// Serves an HTTP connection until the client or the engine ends it, or until the drain ends.
pub async fn serve<S>(
    stream: S,
    clients: Clients,
    options: HttpOptions,
    drain_end: BoxFuture<'static, ()>,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let timeouts = Timeouts {
        header: options.head_time_max,
        idle: options.idle_time_max,
        write: options.write_time_max,
    };
    let activity = Arc::new(Activity::new(timeouts).with_rate(RESPONSE_BYTES_PER_S_MIN));
    let watched = Watched::new(stream, Arc::clone(&activity));
    let io = HeadCheck::new(watched, Upgrade::default(), Arc::clone(&activity)).strict();

    let builder = builder(&options);
    let (clients, mut ended) = start_clients(clients, &options);
    let exchange = Arc::new(Exchange::new(clients.clone(), options));
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
    let mut drain_end = drain_end;
    let mut is_ending = false;
    let result = loop {
        tokio::select! {
            result = connection.as_mut() => break result,
            // The client can read responses to running requests until the drain ends.
            end = ended.as_mut(), if !is_ending => {
                connection.as_mut().graceful_shutdown();
                if end == ConnectionEnd::Unauthenticated {
                    let _ = timeout(GRACEFUL_CLOSE_MAX, connection.as_mut()).await;
                    break Ok(());
                }
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
            clients.count_invalid_head(431);
        } else if error.is_some_and(hyper::Error::is_parse) {
            clients.count_invalid_head(400);
        }
    }
}

/// Starts the clients of a connection. The returned future resolves when the connection must end.
fn start_clients(
    clients: Clients,
    options: &HttpOptions,
) -> (ConnectionClients, BoxFuture<'static, ConnectionEnd>) {
    match clients {
        // The engine closes the connection of a certificate when it drains, or when the certificate
        // is revoked. By then it has responded to every request that runs.
        Clients::Certificate(link) => {
            let (client, relay) = Client::new(link, options);
            let ended = async move {
                relay.await;
                ConnectionEnd::Closed
            };
            let clients = ConnectionClients::Certificate(Arc::new(client));
            (clients, Box::pin(ended))
        }
        Clients::Bearer(bearers) => {
            let clients = Arc::new(BearerClients::new(bearers, options.clone()));
            let ended = Arc::clone(&clients);
            let ended = async move { ended.ended().await };
            (ConnectionClients::Bearer(clients), Box::pin(ended))
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
