//! A server that does its cryptography on the runtime of its network I/O, as the original engine
//! did.
//!
//! It exists for this bench alone. It uses the TLS, the wire codec, the keys and the sealing code
//! of the engine, and has no scheduler, no slices, no admission, no roles and no audit trail. A
//! connection has two tasks: one reads and decodes messages, the other seals requests in the order
//! of their arrival, each to its end without yielding, and writes the responses. `cancel` and the
//! end of a connection stop its requests, if the runtime finds time to read them.

use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use sealwire_crypto::{self as crypto, AppKeys, Sealer};
use sealwire_engine::jobs::cancel_token::{CancelGuard, CancelTokens, StopReason};
use sealwire_engine::jobs::field_errors::FieldErrors;
use sealwire_engine::jobs::field_sealer::FieldSealer;
use sealwire_engine::operations::SealFields;
use sealwire_payload::{Budget, Containers, Progress, Selection, Walk, WalkLimits};
use sealwire_server::server::open_control;
use sealwire_wire::{
    Call, Encrypt, ErrorCode, ErrorFormat, FrameLayout, KeyScope, Limits, MessageHeader,
    Notification, OnError, RpcError, Scan, Scanner, Suite, decode_cancel, reply,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::child;

/// The hidden argument: run this server from the folder that follows.
pub(crate) const SERVE: &str = "--serve-shared-runtime";
/// Bytes per read of a connection.
const READ_BYTES: usize = 64 << 10;

/// Runs the child until standard input ends.
pub(crate) fn serve(folder: &Path) -> io::Result<()> {
    let config = child::config(folder)?;
    let threads = config.crypto.threads_on(super::arms::cores());
    let runtime = Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("network")
        .enable_all()
        .build()?;
    let tls = sealwire_server::tls::load(&config.tls, None).map_err(io::Error::other)?;
    let acceptor = TlsAcceptor::from(tls.data.config);
    let keys = runtime.block_on(async {
        let (control, stores) = open_control(&config).await.map_err(io::Error::other)?;
        let state = control.load().await.map_err(io::Error::other)?;
        stores.close().await;
        let app = state
            .apps
            .into_iter()
            .next()
            .ok_or_else(|| io::Error::other("there is no app"))?;
        Ok::<_, io::Error>(app.keys)
    })?;
    // The engine makes this table for a busy key. Curves and places must not differ by it.
    if let Some(version) = keys.newest(crypto::Curve::P256) {
        version.make_table().map_err(io::Error::other)?;
    }
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (acceptor, keys) = (acceptor.clone(), Arc::clone(&keys));
            tokio::spawn(async move {
                let _ = socket.set_nodelay(true);
                if let Ok(stream) = acceptor.accept(socket).await {
                    // An error ends the connection, and its client sees that.
                    let _ = serve_connection(stream, &keys).await;
                }
            });
        }
    });
    // It has no administration: the second address is the first.
    writeln!(io::stdout(), "{address} {address}")?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    // Abandoned work may take longer than the whole bench.
    runtime.shutdown_background();
    Ok(())
}

/// A request that was read.
struct Request {
    cancel: CancelGuard,
    msgid: u32,
    layout: FrameLayout,
    message: Vec<u8>,
}

async fn serve_connection(stream: TlsStream<TcpStream>, keys: &AppKeys) -> io::Result<()> {
    let (reader, mut writer) = tokio::io::split(stream);
    let (queue, mut requests) = unbounded_channel();
    tokio::spawn(read(reader, queue));
    let mut out = Vec::new();
    while let Some(request) = requests.recv().await {
        out.clear();
        request.answer(keys, &mut out);
        drop(request);
        writer.write_all(&out).await?;
        writer.flush().await?;
    }
    Ok(())
}

/// Reads messages until the connection ends, which stops its requests.
async fn read(mut reader: ReadHalf<TlsStream<TcpStream>>, queue: UnboundedSender<Request>) {
    let (tokens, mut scanner) = (
        CancelTokens::default(),
        Scanner::for_requests(Limits::default()),
    );
    let mut input = Vec::with_capacity(READ_BYTES);
    while let Ok(1..) = reader.read_buf(&mut input).await {
        loop {
            let layout = match scanner.scan(&input) {
                Scan::Message(layout) => layout,
                Scan::Incomplete => break,
                // The clients of this bench send no such message.
                Scan::Refused { .. } | Scan::Discard { .. } => {
                    return tokens.stop_all(StopReason::Disconnect);
                }
            };
            let message: Vec<u8> = input.drain(..layout.bytes).collect();
            match layout.head {
                MessageHeader::Request { msgid, .. } => {
                    if let Some(cancel) = tokens.issue(msgid) {
                        let _ = queue.send(Request {
                            cancel,
                            msgid,
                            layout,
                            message,
                        });
                    }
                }
                MessageHeader::Notification {
                    notice: Some(Notification::Cancel),
                } => {
                    if let Ok(msgid) = decode_cancel(&message) {
                        tokens.stop(msgid, StopReason::Cancel);
                    }
                }
                MessageHeader::Notification { .. } | MessageHeader::Response { .. } => (),
            }
        }
    }
    tokens.stop_all(StopReason::Disconnect);
}

impl Request {
    /// Appends the response.
    fn answer(&self, keys: &AppKeys, out: &mut Vec<u8>) {
        if let Err(error) = self.seal(keys, out) {
            reply::error(out, self.msgid, &error, ErrorFormat::Map);
        }
    }

    /// Seals the whole document at once. Appends nothing if that fails.
    fn seal(&self, keys: &AppKeys, out: &mut Vec<u8>) -> Result<(), RpcError> {
        let failed = |what| RpcError::new(ErrorCode::Internal, what);
        let cancelled = || RpcError::new(ErrorCode::Cancelled, "the client cancelled");
        let Ok(Call::Encrypt(call)) = Call::decode(&self.message, &self.layout) else {
            return Err(RpcError::new(
                ErrorCode::BadRequest,
                "this server only encrypts",
            ));
        };
        if self.cancel.token().stop_reason().is_some() {
            return Err(cancelled());
        }
        let faults = FieldErrors::new(OnError::Fail, 0, 0);
        let writer = FieldSealer::Native(sealer(keys, &call)?.into());
        let mut fields = SealFields {
            writer,
            cancel: Arc::clone(self.cancel.token()),
            faults,
        };
        let mut walk = Walk::new(
            Arc::new(Selection::everything()),
            Containers::Whole,
            WalkLimits::default(),
        );
        let document = reply::Document::begin(out, self.msgid);
        match walk.advance(call.payload, out, &mut fields, Budget::UNLIMITED) {
            Ok(Progress::Done { .. }) => document.finish(out, 1, (&[], 0), &[], &[]),
            _ => {
                document.discard(out);
                let stopped = self.cancel.token().stop_reason().is_some();
                return Err(if stopped {
                    cancelled()
                } else {
                    failed("a field was not sealed")
                });
            }
        }
        Ok(())
    }
}

fn sealer(keys: &AppKeys, call: &Encrypt<'_>) -> Result<Sealer, RpcError> {
    let suite = match call.writing.suite.unwrap_or(Suite::P256) {
        Suite::P256 => crypto::Suite::P256,
        Suite::Secp256k1 => crypto::Suite::Secp256k1,
        Suite::Xaes | Suite::P256MlKem768 | Suite::P256Psk | Suite::Secp256k1Psk => {
            return Err(RpcError::new(
                ErrorCode::BadRequest,
                "this server has only key pairs",
            ));
        }
    };
    let scope = match call.writing.key_scope {
        KeyScope::Request => crypto::KeyScope::Request,
        KeyScope::Field => crypto::KeyScope::Field,
        KeyScope::Epoch => {
            return Err(RpcError::new(
                ErrorCode::BadRequest,
                "this server has no epochs",
            ));
        }
    };
    let failed = |what| RpcError::new(ErrorCode::Internal, what);
    let version = keys
        .newest(suite)
        .ok_or_else(|| failed("no key of the suite"))?;
    Sealer::new(
        keys.app(),
        Arc::clone(version),
        scope,
        crypto::Encoding::Text,
        call.context,
    )
    .map_err(|_| failed("the crypto library failed"))
}
