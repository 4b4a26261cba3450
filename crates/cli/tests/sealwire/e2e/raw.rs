//! A peer that sends any bytes it likes and hears whole messages.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use sealwire_client::RpcError;
use sealwire_dev_ca::Issued;
use sealwire_wire::{Encrypt, Head, KeyScope, Limits, Reply, Scan, Scanner, Writing, decode_protocol_error, request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::e2e::harness::{APP, HANG, fields};

/// A result, whose bytes are too many to print.
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
    /// The answer to a call.
    Reply(u32, Result<Value, RpcError>),
    /// Why the connection is about to close.
    Notice(RpcError),
    /// The connection is closed.
    End,
}

/// A connection over mutual TLS with nothing in between.
pub(crate) struct Raw {
    pub(crate) stream: TlsStream<TcpStream>,
    buffer: BytesMut,
    scanner: Scanner,
}

impl Raw {
    /// Under TLS 1.3 a refused certificate may only show at the first read.
    pub(crate) async fn connect(address: SocketAddr, ca: &str, identity: Option<&Issued>) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(sealwire_server::tls::provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(issued) => {
                let certificate = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(issued.key_pem.expose().as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![certificate], key).unwrap()
            }
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let limits = Limits { message_bytes_max: 256 << 20, elements_max: 10_000_000, ..Limits::default() };
        Ok(Self { stream, buffer: BytesMut::new(), scanner: Scanner::for_replies(limits) })
    }

    /// Sends everything.
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).await.unwrap();
    }

    /// Sends everything, unless the server closes.
    pub(crate) async fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// The next message, or the end. Fails when the server hangs.
    pub(crate) async fn hear(&mut self) -> Heard {
        loop {
            match self.scanner.scan(&self.buffer) {
                Scan::Message(boundary) => {
                    let message = self.buffer.split_to(boundary.bytes);
                    return match boundary.head {
                        Head::Response { .. } => {
                            let reply = Reply::decode(&message).unwrap();
                            Heard::Reply(reply.msgid, reply.outcome.map(|result| Value(result.to_vec())))
                        }
                        _ => Heard::Notice(decode_protocol_error(&message).unwrap()),
                    };
                }
                Scan::Discard { bytes, .. } => self.buffer.advance(bytes),
                Scan::Refused { error, .. } => panic!("the server sent what no client takes: {error}"),
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

    /// Takes that many bytes in, without looking at them. Whether they hold a whole message.
    pub(crate) async fn hear_part(&mut self, bytes: usize) -> bool {
        while self.buffer.len() < bytes {
            self.buffer.reserve(64 << 10);
            assert_ne!(self.stream.read_buf(&mut self.buffer).await.unwrap(), 0);
        }
        self.scanner.scan(&self.buffer) != Scan::Incomplete
    }

    /// The answer to that call; nothing else may come before it.
    pub(crate) async fn answer(&mut self, msgid: u32) -> Result<Value, RpcError> {
        match self.hear().await {
            Heard::Reply(answered, outcome) if answered == msgid => outcome,
            other => panic!("expected the answer to {msgid}, heard {other:?}"),
        }
    }

    /// Asserts that the connection still answers.
    pub(crate) async fn is_alive(&mut self) {
        let mut out = Vec::new();
        request::health(&mut out, u32::MAX);
        self.send(&out).await;
        self.answer(u32::MAX).await.unwrap();
    }

    /// Returns true if the connection ends without data: under TLS 1.3 a rejected certificate shows only so.
    pub(crate) async fn refuses_to_speak(&mut self) -> bool {
        let mut out = Vec::new();
        request::health(&mut out, 0);
        // Fails if the end is seen already.
        let _ = self.stream.write_all(&out).await;
        let _ = self.stream.flush().await;
        self.hear().await == Heard::End
    }

    /// Asserts that it ends, after answers to calls and at most one notice, which is returned.
    pub(crate) async fn ends(&mut self) -> Option<RpcError> {
        let mut notice = None;
        loop {
            match self.hear().await {
                Heard::Reply(..) => (),
                Heard::Notice(error) => assert!(notice.replace(error).is_none(), "a second notice"),
                Heard::End => return notice,
            }
        }
    }
}

/// A call that keeps one core busy for that many key agreements, about 70 us each.
pub(crate) fn heavy(msgid: u32, count: u32) -> Vec<u8> {
    heavy_within(msgid, count, None)
}

/// Returns a heavy request with a deadline.
pub(crate) fn heavy_within(msgid: u32, count: u32, deadline_ms: Option<u32>) -> Vec<u8> {
    let payload = fields(count);
    let writing = Writing { key_scope: KeyScope::Field, ..Writing::default() };
    encrypt(msgid, &Encrypt { writing, deadline_ms, ..Encrypt::new(APP, &payload) })
}

/// Five requests for a connection that can have three in flight. The last two wait for a permit: they are too long to
/// be read before they have one, and short enough for the buffers of any socket, since nobody reads replies yet.
pub(crate) fn three_and_two_waiting() -> Vec<u8> {
    (1..=5).flat_map(|msgid| heavy(msgid, if msgid <= 3 { 100 } else { 3_000 })).collect()
}

/// One `encrypt` request.
pub(crate) fn encrypt(msgid: u32, call: &Encrypt<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request::encrypt(&mut out, msgid, call);
    out
}

/// One `cancel`.
pub(crate) fn cancel(msgid: u32) -> Vec<u8> {
    let mut out = Vec::new();
    request::cancel(&mut out, msgid);
    out
}

/// One `health` request.
pub(crate) fn health(msgid: u32) -> Vec<u8> {
    let mut out = Vec::new();
    request::health(&mut out, msgid);
    out
}
