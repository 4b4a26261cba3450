//! Carries many concurrent requests over one MessagePack-RPC connection to the engine, inside the
//! process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use sealwire_wire::{
    ErrorCode, Limits, MessageHeader, Response, RpcError, Scan, Scanner, decode_protocol_error,
    request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{mpsc, oneshot};

/// Number of requests that can wait until the connection takes their bytes.
const QUEUE: usize = 64;
/// Bytes that one read makes room for.
const READ_BYTES: usize = 16 << 10;

/// The messages of the engine that wait for their request, by msgid.
type Pending = Arc<Mutex<HashMap<u32, oneshot::Sender<Bytes>>>>;

/// Sends requests to the engine and returns their responses.
pub(crate) struct Session {
    requests: mpsc::Sender<Vec<u8>>,
    cancels: mpsc::UnboundedSender<u32>,
    pending: Pending,
    next: AtomicU32,
    /// The reason for which the engine closed the connection.
    closed: Arc<Mutex<Option<RpcError>>>,
}

impl Session {
    /// Creates a session over a connection to the engine, and the future that moves its messages.
    /// The future ends when the engine closes the connection.
    pub(crate) fn new(
        stream: DuplexStream,
        response_bytes_max: usize,
    ) -> (Self, impl Future<Output = ()>) {
        let (requests, mut queued) = mpsc::channel::<Vec<u8>>(QUEUE);
        let (cancels, mut cancelled) = mpsc::unbounded_channel::<u32>();
        let pending = Pending::default();
        let closed = Arc::new(Mutex::new(None));
        let session = Self {
            requests,
            cancels,
            pending: Arc::clone(&pending),
            next: AtomicU32::new(0),
            closed: Arc::clone(&closed),
        };

        let (reader, mut writer) = tokio::io::split(stream);
        let send = async move {
            loop {
                let frame = tokio::select! {
                    biased;
                    Some(msgid) = cancelled.recv() => {
                        let mut frame = Vec::new();
                        request::cancel(&mut frame, msgid);
                        frame
                    }
                    Some(frame) = queued.recv() => frame,
                    else => return,
                };
                if writer.write_all(&frame).await.is_err() {
                    return;
                }
            }
        };
        let receive = async move {
            let reason = read_responses(reader, &pending, response_bytes_max).await;
            *closed.lock().unwrap_or_else(PoisonError::into_inner) = reason;
            // Dropping the senders tells every waiting request.
            pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        };
        let relay = async move {
            tokio::select! {
                () = receive => {}
                () = async { send.await; std::future::pending::<()>().await } => {}
            }
        };
        (session, relay)
    }

    /// Sends the request that `encode` appends for a msgid, and waits for the response. Dropping
    /// the future cancels the request.
    ///
    /// # Errors
    /// The error of the engine, or `unavailable` if the connection ended before the response.
    pub(crate) async fn call(
        &self,
        encode: impl FnOnce(&mut Vec<u8>, u32),
    ) -> Result<Bytes, RpcError> {
        let msgid = self.next.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::new();
        encode(&mut frame, msgid);
        let (sender, receiver) = oneshot::channel();
        self.pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(msgid, sender);
        let mut guard = CancelOnDrop {
            session: self,
            msgid: Some(msgid),
        };

        if self.requests.send(frame).await.is_err() {
            return Err(self.close_reason());
        }
        let message = receiver.await.map_err(|_| self.close_reason())?;
        guard.msgid = None;
        let response = Response::decode(&message)
            .map_err(|_| RpcError::new(ErrorCode::Internal, "internal error"))?;
        let result = response.outcome?;
        Ok(message.slice_ref(result))
    }

    fn close_reason(&self) -> RpcError {
        let reason = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        reason
            .clone()
            .unwrap_or_else(|| RpcError::new(ErrorCode::Unavailable, "the engine is shutting down"))
    }
}

/// Cancels a request whose response nobody waits for any more.
struct CancelOnDrop<'a> {
    session: &'a Session,
    msgid: Option<u32>,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(msgid) = self.msgid {
            let mut pending = self
                .session
                .pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if pending.remove(&msgid).is_some() {
                // A closed connection has no request to cancel.
                let _ = self.session.cancels.send(msgid);
            }
        }
    }
}

/// Reads messages until the connection ends. Returns the reason that the engine gave.
async fn read_responses(
    mut reader: tokio::io::ReadHalf<DuplexStream>,
    pending: &Pending,
    response_bytes_max: usize,
) -> Option<RpcError> {
    let limits = Limits {
        message_bytes_max: response_bytes_max as u64,
        depth_max: u32::MAX,
        elements_max: u64::MAX,
        ..Limits::default()
    };
    let mut scanner = Scanner::for_replies(limits);
    let mut buffer = BytesMut::new();
    loop {
        match scanner.scan(&buffer) {
            Scan::Incomplete => {
                buffer.reserve(READ_BYTES);
                match reader.read_buf(&mut buffer).await {
                    Ok(0) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
            Scan::Message(layout) => {
                let message = buffer.split_to(layout.bytes).freeze();
                match layout.header {
                    MessageHeader::Response { msgid } => {
                        let waiting = pending
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .remove(&msgid);
                        if let Some(sender) = waiting {
                            // The request can have been dropped meanwhile.
                            let _ = sender.send(message);
                        }
                    }
                    MessageHeader::Notification { .. } => {
                        if let Ok(error) = decode_protocol_error(&message) {
                            return Some(error);
                        }
                    }
                    MessageHeader::Request { .. } => {}
                }
            }
            Scan::Discard { bytes, .. } => drop(buffer.split_to(bytes)),
            Scan::Rejected { error, .. } => {
                tracing::error!(%error, "a response of the engine is malformed");
                return Some(RpcError::new(ErrorCode::Internal, "internal error"));
            }
        }
    }
}
