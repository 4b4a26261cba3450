//! A client for JSON over HTTPS: one kept connection of HTTP/1.1, with one request at a time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// An open connection.
#[derive(Debug)]
pub(super) struct Https(SendRequest<Full<Bytes>>);

impl Https {
    /// Connects and completes the TLS handshake with the client's certificate.
    pub(super) async fn open(
        address: SocketAddr,
        identity: &Arc<ClientConfig>,
    ) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(identity))
            .connect(name, socket)
            .await?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // An error of the connection is returned by the next request, too.
        tokio::spawn(connection);
        Ok(Self(sender))
    }

    /// Sends a request and returns the JSON of its response, null if the response is empty. A
    /// status other than success is an error with the response's text.
    pub(super) async fn send(
        &mut self,
        method: Method,
        path: &str,
        token: &str,
        body: Bytes,
    ) -> io::Result<Value> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost");
        if !token.is_empty() {
            request = request.header("x-vault-token", token);
        }
        let request = request.body(Full::new(body)).map_err(io::Error::other)?;
        self.0.ready().await.map_err(io::Error::other)?;
        let response = self
            .0
            .send_request(request)
            .await
            .map_err(io::Error::other)?;
        let status = response.status();
        let body = response
            .into_body()
            .collect()
            .await
            .map_err(io::Error::other)?
            .to_bytes();
        if !status.is_success() {
            return Err(io::Error::other(format!(
                "{path}: {status} {}",
                String::from_utf8_lossy(&body).trim()
            )));
        }
        if body.is_empty() {
            Ok(Value::Null)
        } else {
            serde_json::from_slice(&body).map_err(io::Error::other)
        }
    }
}
