//! The HTTP and JSON interface to the methods of the data listener.
//!
//! [`serve`] handles one HTTP connection. Each HTTP request becomes one request of the
//! MessagePack-RPC contract, on a connection inside the process. The engine treats that connection
//! like any other of the same principal, so permissions, admission, fairness, deadlines, audit
//! records and limits are those of the contract. This crate has neither keys nor permissions.
//!
//! The principal is that of the client certificate. On a connection without one, each request has a
//! bearer token, and each principal has its own connection to the engine.
//!
//! | module | purpose |
//! | --- | --- |
//! | `route` | finds the method and the app in the path |
//! | `params` | reads parameters from headers or from a request object |
//! | `framing` | makes ambiguous heads (request smuggling) invalid, so that hyper rejects them |
//! | `body` | reads a body within limits, and converts JSON |
//! | `authorization` | reads the bearer token of a request |
//! | `clients` | finds the principal of a request, and its connection to the engine |
//! | `exchange` | handles one request, step by step |
//! | `session` | carries many requests over the connection inside the process |
//! | `problem` | writes errors as problem documents (RFC 9457) |

mod authorization;
mod body;
mod clients;
mod exchange;
mod framing;
mod params;
mod problem;
mod route;
mod session;

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use sealwire_access::Principal;
use sealwire_wire::Method;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_io_timeout::TimeoutWriter;

use crate::clients::{BearerClients, Client, ConnectionClients};
use crate::exchange::Exchange;
use crate::framing::CheckedFraming;
use crate::params::Params;

/// The application protocols of a TLS handshake on the HTTP listener, in the order of preference.
pub const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Longest header list of an HTTP/2 request, in bytes.
const HEADER_BYTES_MAX: u32 = 64 << 10;
/// Largest buffer of an HTTP/1.1 connection, in bytes. Bounds the headers of a request there.
const BUFFER_BYTES_MAX: usize = 2 * HEADER_BYTES_MAX as usize;

/// Starts a task of a connection.
pub type Spawn = Arc<dyn Fn(Pin<Box<dyn Future<Output = ()> + Send>>) + Send + Sync>;

/// Slows down a client whose requests are rejected before they reach the engine. The engine itself
/// slows down a client whose requests it rejects.
pub trait Pace: Send + Sync {
    /// Counts a rejected request.
    fn count_rejected(&self);

    /// Returns the end of the pause that the client must make now, if any.
    fn pause(&self) -> Option<Instant>;
}

/// Limits and services of one connection.
#[derive(Clone)]
pub struct HttpOptions {
    /// Longest body of a request and longest document after its conversion, in bytes.
    pub body_bytes_max: usize,
    /// Most bytes of a rejected body that are read and dropped.
    pub discard_bytes_max: usize,
    /// Deepest nesting of a document.
    pub depth_max: usize,
    /// Longest response of the engine, in bytes.
    pub response_bytes_max: usize,
    /// Bytes of results that the client has not read yet. Beyond them, the connection takes no
    /// further results from the engine.
    pub result_bytes_max: usize,
    /// Longest time of a connection without a request, and longest time for the headers of a
    /// request.
    pub idle_time_max: Duration,
    /// Time for the body of a request.
    pub body_time_max: Duration,
    /// Longest time in which the connection takes no bytes before it is closed.
    pub write_time_max: Duration,
    /// Time for running requests after the engine has begun to shut down.
    pub drain_time_max: Duration,
    /// Time for the first request with a valid token, on a connection without a client certificate.
    pub authentication_time_max: Duration,
    /// Most concurrent requests of an HTTP/2 connection.
    pub streams_max: u32,
    /// Starts the tasks of an HTTP/2 connection.
    pub spawn: Spawn,
}

/// A principal's connection to the engine, and what its requests share with its other connections.
pub struct ClientLink {
    /// The client's end of a connection to the engine with this principal.
    pub engine: DuplexStream,
    /// Memory for the bodies of requests and responses.
    pub body_memory: Permits,
    /// Permits for conversions of long documents, each on a thread.
    pub conversions: Permits,
    /// The pace of the principal.
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

/// A future that a trait object returns.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Authenticates the requests of a connection without a client certificate.
pub trait Bearers: Send + Sync {
    /// Returns the principal of a token.
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Principal, AuthenticationError>>;

    /// Counts a request that has no well-formed token. Returns the pause that such clients must make
    /// now, if any.
    fn count_rejected(&self) -> Option<Duration>;

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
    /// Too many tokens from the same address were not valid.
    Limited {
        /// Pause before the next attempt.
        retry_after: Duration,
    },
}

/// Permits for the bytes of bodies (see [`memory_permits`]) or for threads.
#[derive(Clone, Debug)]
pub struct Permits {
    /// Permits that all principals share.
    pub all: Arc<Semaphore>,
    /// Permits of this principal.
    pub principal: Arc<Semaphore>,
}

/// Returns the number of permits for a number of bytes.
pub const fn memory_permits(bytes: usize) -> usize {
    let permits = bytes.div_ceil(body::UNIT);
    if permits > Semaphore::MAX_PERMITS {
        Semaphore::MAX_PERMITS
    } else {
        permits
    }
}

/// Serves an HTTP connection until the client or the engine ends it.
pub async fn serve<S>(stream: S, clients: Clients, options: HttpOptions)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // The engine closes the connection of a certificate when it drains, when the certificate is
    // revoked, or after a long idle time. By then, every running request has its response.
    let (clients, ended, finish_time_max): (_, BoxFuture<'static, ()>, _) = match clients {
        Clients::Certificate(link) => {
            let (client, relay) = Client::new(link, &options);
            let clients = ConnectionClients::Certificate(Arc::new(client));
            (clients, Box::pin(relay), options.write_time_max)
        }
        Clients::Bearer(bearers) => {
            let clients = Arc::new(BearerClients::new(bearers, options.clone()));
            let ended = Arc::clone(&clients);
            let ended = Box::pin(async move { ended.ended().await });
            let finish_time_max = options.drain_time_max + options.write_time_max;
            (ConnectionClients::Bearer(clients), ended, finish_time_max)
        }
    };
    let exchange = Arc::new(Exchange::new(clients, options.clone()));
    let service = service_fn(move |request| {
        let exchange = Arc::clone(&exchange);
        async move { Ok::<_, Infallible>(exchange.handle(request).await) }
    });

    let mut builder = auto::Builder::new(Executor(options.spawn));
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.idle_time_max)
        .max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX)
        .max_concurrent_streams(options.streams_max)
        .keep_alive_interval(options.write_time_max)
        .keep_alive_timeout(options.write_time_max);
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(options.write_time_max));
    let connection =
        builder.serve_connection(TokioIo::new(CheckedFraming::new(Box::pin(stream))), service);
    let mut connection = pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = ended => {
            connection.as_mut().graceful_shutdown();
            timeout(finish_time_max, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(error, "HTTP connection ends");
    }
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
        .map(|payload| params.encode(payload, &mut out))
        .map_err(|problem| problem.error.message.into_owned())?;
    Ok(out)
}

/// Starts the tasks of an HTTP/2 connection.
#[derive(Clone)]
struct Executor(Spawn);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Executor {
    fn execute(&self, future: F) {
        (self.0)(Box::pin(future));
    }
}
