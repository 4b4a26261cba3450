//! A client that sends arbitrary bytes and reads complete messages.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use sealwire_client::RpcError;
use sealwire_dev_ca::Issued;
use sealwire_wire::{
    CommonParams, Encrypt, KeyScope, Limits, MessageHeader, Response, Scan, Scanner, Writing,
    decode_protocol_error, request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::e2e::harness::{APP, HANG, fields};

/// A result, which is too long to print.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Value(Vec<u8>);

impl std::ops::Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Value({} bytes)", self.0.len())
    }
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The response to a request.
    Response(u32, Result<Value, RpcError>),
    /// The error notification before the server closes the connection.
    Notice(RpcError),
    /// The connection is closed.
    End,
}

/// A connection over mutual TLS, without the client library.
pub(crate) struct Raw {
    pub(crate) stream: TlsStream<TcpStream>,
    buffer: BytesMut,
    scanner: Scanner,
}

/// Connects over TLS, with a certificate or none.
pub(crate) async fn tls_connect(
    address: SocketAddr,
    ca: &str,
    identity: Option<&Issued>,
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(sealwire_server::tls::provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(issued) => {
            let certificate = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(issued.key_pem.expose().as_bytes()).unwrap();
            // A resolver sends the certificate as it is. The builder would reject an invalid
            // one itself.
            let key = provider.key_provider.load_private_key(key).unwrap();
            let certified = CertifiedKey::new(vec![certificate], key);
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    };
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

impl Raw {
    /// Connects. Under TLS 1.3, a rejected certificate can show only at the first read.
    pub(crate) async fn connect(
        address: SocketAddr,
        ca: &str,
        identity: Option<&Issued>,
    ) -> io::Result<Self> {
        let stream = tls_connect(address, ca, identity).await?;
        let limits = Limits {
            message_bytes_max: 256 << 20,
            elements_max: 10_000_000,
            ..Limits::default()
        };
        Ok(Self {
            stream,
            buffer: BytesMut::new(),
            scanner: Scanner::for_replies(limits),
        })
    }

    /// Sends all bytes.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).await.unwrap();
    }

    /// Sends all bytes. Returns an error if the server closes the connection.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Reads the next message, or the end. Fails after a timeout.
    pub(crate) async fn hear(&mut self) -> Heard {
        loop {
            match self.scanner.scan(&self.buffer) {
                Scan::Message(boundary) => {
                    let message = self.buffer.split_to(boundary.bytes);
                    return match boundary.header {
                        MessageHeader::Response { .. } => {
                            let reply = Response::decode(&message).unwrap();
                            Heard::Response(
                                reply.msgid,
                                reply.outcome.map(|result| Value(result.to_vec())),
                            )
                        }
                        _ => Heard::Notice(decode_protocol_error(&message).unwrap()),
                    };
                }
                Scan::Discard { bytes, .. } => self.buffer.advance(bytes),
                Scan::Rejected { error, .. } => {
                    panic!("the server sent what no client takes: {error}")
                }
                Scan::Incomplete => {
                    self.buffer.reserve(64 << 10);
                    let read = timeout(HANG, self.stream.read_buf(&mut self.buffer)).await;
                    match read.expect("the server says nothing") {
                        Ok(1..) => (),
                        Ok(0) | Err(_) => return Heard::End,
                    }
                }
            }
        }
    }

    /// Reads that many bytes without decoding them. Returns true if they contain a complete
    /// message.
    pub(crate) async fn hear_part(&mut self, bytes: usize) -> bool {
        while self.buffer.len() < bytes {
            self.buffer.reserve(64 << 10);
            assert_ne!(self.stream.read_buf(&mut self.buffer).await.unwrap(), 0);
        }
        self.scanner.scan(&self.buffer) != Scan::Incomplete
    }

    /// Reads the response to the request `msgid`. Fails if another message comes first.
    pub(crate) async fn answer(&mut self, msgid: u32) -> Result<Value, RpcError> {
        match self.hear().await {
            Heard::Response(answered, outcome) if answered == msgid => outcome,
            other => panic!("expected the answer to {msgid}, heard {other:?}"),
        }
    }

    /// Asserts that the server still responds on the connection.
    pub(crate) async fn is_alive(&mut self) {
        let mut out = Vec::new();
        request::health(&mut out, u32::MAX);
        self.send(&out).await;
        self.answer(u32::MAX).await.unwrap();
    }

    /// Returns true if the connection ends without data: under TLS 1.3 a rejected certificate shows
    /// only so.
    pub(crate) async fn refuses_to_speak(&mut self) -> bool {
        let mut out = Vec::new();
        request::health(&mut out, 0);
        // Fails if the connection has already ended.
        let _ = self.stream.write_all(&out).await;
        let _ = self.stream.flush().await;
        self.hear().await == Heard::End
    }

    /// Asserts that the connection ends, after responses and at most one error notification, which
    /// is returned.
    pub(crate) async fn ends(&mut self) -> Option<RpcError> {
        let mut notice = None;
        loop {
            match self.hear().await {
                Heard::Response(..) => (),
                Heard::Notice(error) => assert!(notice.replace(error).is_none(), "a second notice"),
                Heard::End => return notice,
            }
        }
    }
}

/// Encodes a request that occupies one core for `count` key agreements, about 70 us each.
pub(crate) fn heavy(msgid: u32, count: u32) -> Vec<u8> {
    heavy_within(msgid, count, None)
}

/// Returns a heavy request with a deadline.
pub(crate) fn heavy_within(msgid: u32, count: u32, deadline_ms: Option<u32>) -> Vec<u8> {
    let payload = fields(count);
    let writing = Writing {
        key_scope: KeyScope::Field,
        ..Writing::default()
    };
    encrypt(
        msgid,
        &Encrypt {
            writing,
            options: CommonParams {
                deadline_ms,
                ..CommonParams::default()
            },
            ..Encrypt::new(APP, &payload)
        },
    )
}

/// Five requests for a connection that can have three in flight. The last two wait for a permit:
/// they are too long to be read before they have one, and short enough for the buffers of any
/// socket, since nobody reads replies yet.
pub(crate) fn three_and_two_waiting() -> Vec<u8> {
    (1..=5)
        .flat_map(|msgid| heavy(msgid, if msgid <= 3 { 100 } else { 3_000 }))
        .collect()
}

/// Encodes an `encrypt` request.
pub(crate) fn encrypt(msgid: u32, call: &Encrypt<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request::encrypt(&mut out, msgid, call);
    out
}

/// Encodes a `cancel`.
pub(crate) fn cancel(msgid: u32) -> Vec<u8> {
    let mut out = Vec::new();
    request::cancel(&mut out, msgid);
    out
}

/// Encodes a `health` request.
pub(crate) fn health(msgid: u32) -> Vec<u8> {
    let mut out = Vec::new();
    request::health(&mut out, msgid);
    out
}
