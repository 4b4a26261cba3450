//! A client: one connection of HTTP/1.1 that is kept, with one request at a time.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpSocket;

/// Bytes of one frame of a body that is sent.
const FRAME_BYTES: usize = 64 << 10;

/// A body that is sent in frames.
#[derive(Debug)]
struct Frames(Bytes);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = self.0.len().min(FRAME_BYTES);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(self.0.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// A response with its times.
#[derive(Debug)]
pub(crate) struct Timed {
    /// The body.
    pub(crate) body: Bytes,
    /// Time to the first byte of the body.
    pub(crate) first: Duration,
    /// Time to the end of the body.
    pub(crate) end: Duration,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Client(SendRequest<Frames>);

impl Client {
    /// Connects.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        Self::open_from(Ipv4Addr::LOCALHOST, address).await
    }

    /// Connects from this address.
    pub(crate) async fn open_from(client: Ipv4Addr, address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((client, 0).into())?;
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Sends a body and reads the response. A status other than success is an error.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        media_type: &str,
        body: &Bytes,
    ) -> io::Result<Timed> {
        let request = Request::post(path)
            .header("host", "bench")
            .header("content-type", media_type);
        let request = request
            .body(Frames(body.clone()))
            .map_err(io::Error::other)?;
        self.0.ready().await.map_err(io::Error::other)?;
        let begun = Instant::now();
        let response = self
            .0
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        let status = response.status();
        let (mut received, mut first) = (Vec::new(), None);
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await.transpose().map_err(io::Error::other)? {
            first.get_or_insert_with(|| begun.elapsed());
            if let Some(data) = frame.data_ref() {
                received.extend_from_slice(data);
            }
        }
        let end = begun.elapsed();
        if !status.is_success() {
            return Err(io::Error::other(format!(
                "{path}: {status} {}",
                String::from_utf8_lossy(&received)
            )));
        }
        Ok(Timed {
            body: received.into(),
            first: first.unwrap_or(end),
            end,
        })
    }
}

/// Returns a JSON document of about 4 KB with 30 fields.
pub(crate) fn document() -> Bytes {
    let fields: Vec<String> = (0..30)
        .map(|at| format!("\"f{at:02}\":\"{}\"", format!("{at:02}").repeat(63)))
        .collect();
    format!("{{{}}}", fields.join(",")).into()
}
