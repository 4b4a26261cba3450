//! The client side of gRPC, as an API server has it, without a library of gRPC.

use std::path::Path;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use percent_encoding::percent_decode_str;
use prost::Message;
use sealwire_kms::proto::{
    DECRYPT, DecryptRequest, DecryptResponse, ENCRYPT, EncryptRequest, EncryptResponse, STATUS,
    StatusRequest, StatusResponse,
};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::site::HANG;

/// Status code and message of gRPC.
pub(crate) type GrpcError = (u16, String);

pub(crate) const INVALID_ARGUMENT: u16 = 3;
pub(crate) const DEADLINE_EXCEEDED: u16 = 4;
pub(crate) const PERMISSION_DENIED: u16 = 7;
pub(crate) const FAILED_PRECONDITION: u16 = 9;
pub(crate) const OUT_OF_RANGE: u16 = 11;
pub(crate) const UNIMPLEMENTED: u16 = 12;
pub(crate) const UNAVAILABLE: u16 = 14;

/// A connection to a plugin.
#[derive(Clone)]
pub(crate) struct ApiServer(SendRequest<Full<Bytes>>);

impl ApiServer {
    /// Connects to a socket.
    pub(crate) async fn connect(socket: &Path) -> Self {
        let io = TokioIo::new(UnixStream::connect(socket).await.unwrap());
        let (sender, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    pub(crate) async fn status(&self) -> StatusResponse {
        self.call(STATUS, &StatusRequest {}).await.unwrap()
    }

    /// Encrypts, and fails the test if that fails.
    pub(crate) async fn encrypt(&self, plaintext: &[u8]) -> EncryptResponse {
        self.try_encrypt(plaintext).await.unwrap()
    }

    pub(crate) async fn try_encrypt(&self, plaintext: &[u8]) -> Result<EncryptResponse, GrpcError> {
        let request = EncryptRequest {
            plaintext: plaintext.to_vec(),
            uid: "uid-1".into(),
        };
        self.call(ENCRYPT, &request).await
    }

    /// Decrypts what [`Self::encrypt`] returned.
    pub(crate) async fn decrypt(&self, sealed: &EncryptResponse) -> Result<Vec<u8>, GrpcError> {
        let request = DecryptRequest {
            ciphertext: sealed.ciphertext.clone(),
            uid: "uid-2".into(),
            key_id: sealed.key_id.clone(),
        };
        let response: DecryptResponse = self.call(DECRYPT, &request).await?;
        Ok(response.plaintext)
    }

    /// Calls a method.
    pub(crate) async fn call<A: Message + Default>(
        &self,
        path: &str,
        message: &impl Message,
    ) -> Result<A, GrpcError> {
        let message = message.encode_to_vec();
        let mut frame = BytesMut::with_capacity(5 + message.len());
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).unwrap());
        frame.put_slice(&message);
        let mut body = self.send(path, frame.freeze(), "60S").await?;
        let length = usize::try_from(u32::from_be_bytes(body[1..5].try_into().unwrap())).unwrap();
        assert_eq!(body.len(), 5 + length, "one message");
        Ok(A::decode(body.split_off(5)).unwrap())
    }

    /// Sends a body, and returns that of the response.
    pub(crate) async fn send(
        &self,
        path: &str,
        body: Bytes,
        time: &str,
    ) -> Result<Bytes, GrpcError> {
        let request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", time)
            .body(Full::new(body))
            .unwrap();
        let mut sender = self.0.clone();
        let exchange = async move {
            let response = sender.send_request(request).await.unwrap();
            let (parts, body) = response.into_parts();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned().unwrap_or_default();
            let headers = [trailers, parts.headers];
            let value = |name: &str| {
                let mut found = headers.iter().filter_map(|headers| headers.get(name));
                found.next().map(|value| value.to_str().unwrap().to_owned())
            };
            let code: u16 = value("grpc-status").expect("a status").parse().unwrap();
            match code {
                0 => Ok(body.to_bytes()),
                _ => {
                    let message = value("grpc-message").unwrap_or_default();
                    let message = percent_decode_str(&message).decode_utf8().unwrap();
                    Err((code, message.into_owned()))
                }
            }
        };
        timeout(HANG + Duration::from_secs(1), exchange)
            .await
            .expect("a response")
    }
}
