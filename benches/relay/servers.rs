//! The servers of the child processes: relay, plain proxy and upstream.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use sealwire_relay::{config, serve::Server};
use tokio::net::{TcpListener, TcpStream};

/// Pause between the first and the second event of a stream.
const EVENT_PAUSE: Duration = Duration::from_millis(2);

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Runs a server until standard input ends.
pub(crate) fn serve(role: &str, argument: &Path) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match role {
        "relay" => {
            let text = std::fs::read_to_string(argument)?;
            let config = config::parse(&text, []).map_err(io::Error::other)?;
            let compiled = config::compile(&config)
                .map_err(|errors| io::Error::other(format!("{errors:?}")))?;
            let server = runtime.block_on(async {
                let server = Server::start(&config, compiled)
                    .await
                    .map_err(io::Error::other)?;
                while server.unready_reason().is_some() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Ok::<_, io::Error>(server)
            })?;
            announce(server.addresses()[0].1)?;
            runtime.block_on(server.shutdown());
        }
        "plain" => {
            let upstream = argument
                .to_string_lossy()
                .parse()
                .map_err(io::Error::other)?;
            let pool = Arc::new(PlainPool {
                upstream,
                idle: Mutex::default(),
            });
            run(&runtime, move |request| forward(Arc::clone(&pool), request))?;
        }
        _ => run(&runtime, respond)?,
    }
    Ok(())
}

/// Prints the address and waits for the end of standard input.
fn announce(address: SocketAddr) -> io::Result<()> {
    writeln!(io::stdout(), "{address}")?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn run<H, F>(runtime: &tokio::runtime::Runtime, handle: H) -> io::Result<()>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Response<Body>, hyper::Error>> + Send + 'static,
{
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            let handle = handle.clone();
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                let _ = builder
                    .serve_connection_with_upgrades(TokioIo::new(stream), service_fn(handle))
                    .await;
            });
        }
    });
    announce(address)
}

fn empty() -> Body {
    Full::new(Bytes::new())
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// Connections of the plain proxy to its upstream.
struct PlainPool {
    upstream: SocketAddr,
    idle: Mutex<Vec<SendRequest<Incoming>>>,
}

impl PlainPool {
    fn take(&self) -> Option<SendRequest<Incoming>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|sender| !sender.is_closed());
        let ready = idle.iter().rposition(SendRequest::is_ready)?;
        Some(idle.swap_remove(ready))
    }
}

/// Forwards a request without any check.
async fn forward(
    pool: Arc<PlainPool>,
    request: Request<Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let mut sender = match pool.take() {
        Some(sender) => sender,
        None => {
            let stream = TcpStream::connect(pool.upstream)
                .await
                .expect("the upstream listens");
            let _ = stream.set_nodelay(true);
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender
        }
    };
    let response = sender.send_request(request).await?;
    pool.idle
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(sender);
    Ok(response.map(|body| body.boxed_unsync()))
}

/// The upstream: `/chat` accepts a WebSocket and keeps it, `/long` sends 64 MiB, `/events` sends
/// the request's body as an event at once and another one later, `/mirror` sends it back, and every
/// other path reads it and answers a short JSON document.
async fn respond(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let path = request.uri().path().to_owned();
    if path.ends_with("/chat") {
        tokio::spawn(async move {
            let open = hyper::upgrade::on(request).await;
            std::future::pending::<()>().await;
            drop(open);
        });
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        for (name, value) in [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            // For the key of RFC 6455, section 1.3.
            ("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="),
        ] {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        return Ok(response);
    }
    if path.ends_with("/long") {
        let frame = || Ok(Frame::data(Bytes::from_static(&[b'x'; 16 << 10])));
        let frames = stream::iter(std::iter::repeat_with(frame).take(4_096));
        return Ok(Response::new(StreamBody::new(frames).boxed_unsync()));
    }
    let mut body = request.into_body();
    if path.ends_with("/events") {
        let mut event = b"data: ".to_vec();
        event.extend_from_slice(&body.collect().await?.to_bytes());
        event.extend_from_slice(b"\n\n");
        let event = Bytes::from(event);
        let events = stream::unfold(0_u8, move |sent| {
            let event = event.clone();
            async move {
                if sent == 1 {
                    tokio::time::sleep(EVENT_PAUSE).await;
                }
                (sent < 2).then(|| (Ok(Frame::data(event)), sent + 1))
            }
        });
        let mut response = Response::new(StreamBody::new(events).boxed_unsync());
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        return Ok(response);
    }
    let text = if path.ends_with("/mirror") {
        body.collect().await?.to_bytes()
    } else {
        let mut bytes = 0;
        while let Some(frame) = body.frame().await.transpose()? {
            bytes += frame.data_ref().map_or(0, Bytes::len);
        }
        format!("{{\"bytes\":{bytes}}}").into()
    };
    let length = text.len();
    let full = Full::new(text).map_err(|never: Infallible| match never {});
    let mut response = Response::new(full.boxed_unsync());
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(CONTENT_LENGTH, length.into());
    Ok(response)
}
