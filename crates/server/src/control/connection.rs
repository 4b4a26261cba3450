//! One control connection: a call is read, answered and forgotten before the next.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use sealwire_wire::{Boundary, Call, ErrorCode, Fate, Head, Limits, Methods, RpcError, Scan, Scanner, reply};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;
use zeroize::{Zeroize as _, Zeroizing};

use super::{CALL_MAX, DEPTH_MAX, Desk, ELEMENTS_MAX, MESSAGE_BYTES_MAX, not_listed};
use crate::metrics::{CallCode, CallReport, MethodLabel};
use crate::pki::Principal;

/// Room for any call that carries a private key, so that its bytes are never moved and left behind unwiped.
const BUFFER_BYTES: usize = 128 << 10;

pub(super) struct Connection<S> {
    desk: Arc<Desk>,
    principal: Principal,
    stream: S,
    scanner: Scanner,
    /// What has come and is not read yet. Wiped: a private key may be in it.
    buffer: Zeroizing<Vec<u8>>,
}

/// Nothing more is said to this peer.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Self {
        Self
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) fn new(desk: Arc<Desk>, principal: Principal, stream: S) -> Self {
        let limits = Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            depth_max: DEPTH_MAX,
            elements_max: ELEMENTS_MAX,
            discard_bytes_max: 4 * MESSAGE_BYTES_MAX,
        };
        let scanner = Scanner::for_requests(limits).serving(Methods::CONTROL);
        let buffer = Zeroizing::new(Vec::with_capacity(BUFFER_BYTES));
        Self { desk, principal, stream, scanner, buffer }
    }

    /// Answers calls until the peer leaves, is silent for too long, or the engine drains.
    pub(super) async fn serve(mut self, mut draining: watch::Receiver<bool>) {
        while self.step(&mut draining).await.is_ok() {}
        let _ = timeout(self.patience(), self.stream.shutdown()).await;
    }

    async fn step(&mut self, draining: &mut watch::Receiver<bool>) -> Result<(), Over> {
        match self.scanner.scan(&self.buffer) {
            Scan::Incomplete => {
                tokio::select! {
                    more = self.more() => more,
                    _ = draining.wait_for(|draining| *draining) => Err(Over),
                }
            }
            Scan::Message(boundary) => {
                let done = self.take_call(&boundary).await;
                self.discard(boundary.bytes);
                done
            }
            Scan::Discard { bytes, .. } => {
                self.discard(bytes);
                Ok(())
            }
            Scan::Refused { head, error, fate } => {
                match head.and_then(|head| head.answer_to()) {
                    Some(msgid) => self.refuse(msgid, MethodLabel::Unknown, &error.into()).await?,
                    None if fate == Fate::Close => {
                        let mut out = Vec::new();
                        reply::protocol_error(&mut out, &error.into());
                        self.send(&out).await?;
                    }
                    None => (),
                }
                if fate == Fate::Close { Err(Over) } else { Ok(()) }
            }
        }
    }

    async fn more(&mut self) -> Result<(), Over> {
        let limits = &self.desk.engine.limits;
        let begun = !self.buffer.is_empty() || !self.scanner.is_idle();
        let patience = Duration::from_millis(if begun { limits.message_ms_max } else { limits.idle_ms_max });
        // What the buffer has no room for moves it, which only a message without a key is long enough for.
        match timeout(patience, self.stream.read_buf(&mut *self.buffer)).await {
            Ok(Ok(1..)) => Ok(()),
            _ => Err(Over),
        }
    }

    /// Answers the message at the front of the buffer; a notification gets none.
    async fn take_call(&mut self, boundary: &Boundary) -> Result<(), Over> {
        let Head::Request { msgid, method } = boundary.head else { return Ok(()) };
        let label = method.map_or(MethodLabel::Unknown, MethodLabel::from);
        if !self.desk.admits(&self.principal) {
            tracing::warn!(principal = %self.principal, "not in control.principals");
            self.refuse(msgid, label, &not_listed()).await?;
            return Err(Over);
        }
        let mut out = Vec::with_capacity(1_024);
        reply::begin(&mut out, msgid);
        let answer = match Call::decode(&self.buffer[..boundary.bytes], boundary) {
            Ok(Call::Control(call)) => {
                let answer = self.desk.answer(&self.principal, &call, &mut out);
                timeout(CALL_MAX, answer).await.unwrap_or_else(|_| Err(late()))
            }
            Ok(Call::Info) => {
                self.desk.info().encode(&mut out);
                Ok(())
            }
            Ok(Call::Health) => {
                sealwire_wire::Health.encode(&mut out);
                Ok(())
            }
            Ok(_) => Err(RpcError::new(ErrorCode::Internal, "the scan and the decoder disagree on the method")),
            Err(error) => Err(error.into()),
        };
        match answer {
            Ok(()) => {
                self.count(label, CallCode::Ok);
                self.send(&out).await
            }
            Err(error) => self.refuse(msgid, label, &error).await,
        }
    }

    async fn refuse(&mut self, msgid: u32, method: MethodLabel, error: &RpcError) -> Result<(), Over> {
        tracing::debug!(principal = %self.principal, msgid, %error, "control call failed");
        self.count(method, error.code.into());
        let mut out = Vec::new();
        reply::error(&mut out, msgid, error);
        self.send(&out).await
    }

    fn count(&self, method: MethodLabel, code: CallCode) {
        self.desk.engine.metrics.call_done(&CallReport { method, code, times: None });
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Over> {
        let patience = self.patience();
        let stream = &mut self.stream;
        let sent = async {
            stream.write_all(bytes).await?;
            stream.flush().await
        };
        timeout(patience, sent).await.map_err(|_| Over)?.map_err(Over::from)
    }

    /// How long a reply may be in nobody's hands.
    fn patience(&self) -> Duration {
        Duration::from_millis(self.desk.engine.limits.write_stall_ms_max)
    }

    /// Wipes the front of the buffer.
    fn discard(&mut self, bytes: usize) {
        let left = self.buffer.len() - bytes;
        self.buffer.copy_within(bytes.., 0);
        self.buffer[left..].zeroize();
        self.buffer.truncate(left);
    }
}

fn late() -> RpcError {
    RpcError::new(ErrorCode::DeadlineExceeded, "the store took too long; the change may have been made")
}
