//! Carries many concurrent requests over one MessagePack-RPC connection to the engine, inside the
//! process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use sealwire_wire::{
    ErrorCode, Limits, MessageHeader, Response, RpcError, Scan, Scanner, decode_protocol_error,
    request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::{HttpOptions, memory_permits};

/// Number of requests that can wait until the connection takes their bytes.
const QUEUE: usize = 64;
/// Bytes that one read makes room for.
const READ_BYTES: usize = 16 << 10;

/// A message of the engine, with the memory that it takes.
struct Received {
    message: Bytes,
    memory: OwnedSemaphorePermit,
}

/// The result of a request, with the memory that it takes until it is dropped.
pub(crate) struct EngineResult {
    pub(crate) bytes: Bytes,
    pub(crate) memory: OwnedSemaphorePermit,
}

/// The requests that wait for a message of the engine, by msgid.
#[derive(Clone, Default)]
struct Pending(Arc<Mutex<HashMap<u32, oneshot::Sender<Received>>>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, oneshot::Sender<Received>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells every waiting request that no response comes, when it is dropped.
struct ClearOnDrop(Pending);

impl Drop for ClearOnDrop {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}

/// A request that waits until the connection takes its bytes.
struct Queued {
    msgid: u32,
    frame: Vec<u8>,
}

/// Sends requests to the engine and returns their responses.
pub(crate) struct Session {
    requests: mpsc::Sender<Queued>,
    cancels: mpsc::UnboundedSender<u32>,
    pending: Pending,
    next: AtomicU32,
    /// The reason for which the engine closed the connection.
    closed: Arc<OnceLock<RpcError>>,
}

impl Session {
    /// Creates a session over a connection to the engine, and the future that moves its messages.
    /// The future ends when the engine closes the connection, or when the client does not read its
    /// responses.
    pub(crate) fn new(
        stream: DuplexStream,
        options: &HttpOptions,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (requests, queued) = mpsc::channel(QUEUE);
        let (cancels, cancelled) = mpsc::unbounded_channel();
        let pending = Pending::default();
        let closed = Arc::new(OnceLock::new());
        let session = Self {
            requests,
            cancels,
            pending: pending.clone(),
            next: AtomicU32::new(0),
            closed: Arc::clone(&closed),
        };

        let (reader, writer) = tokio::io::split(stream);
        let receiver = Receiver {
            pending: pending.clone(),
            response_bytes_max: options.response_bytes_max,
            memory: Arc::new(Semaphore::new(memory_permits(options.result_bytes_max))),
            memory_permits: memory_permits(options.result_bytes_max),
            write_time_max: options.write_time_max,
        };
        let relay = async move {
            let clear = ClearOnDrop(pending.clone());
            let send = send_requests(writer, queued, cancelled, &pending);
            let reason = tokio::select! {
                reason = receiver.read_responses(reader) => reason,
                // Responses can still follow after the last request.
                never = async { send.await; std::future::pending().await } => never,
            };
            if let Some(reason) = reason {
                let _ = closed.set(reason);
            }
            drop(clear);
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
    ) -> Result<EngineResult, RpcError> {
        let msgid = self.next.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::new();
        encode(&mut frame, msgid);
        let (sender, receiver) = oneshot::channel();
        self.pending.lock().insert(msgid, sender);
        let mut guard = CancelOnDrop {
            session: self,
            msgid: Some(msgid),
        };

        if self.requests.send(Queued { msgid, frame }).await.is_err() {
            return Err(self.close_reason());
        }
        let Received { message, memory } = receiver.await.map_err(|_| self.close_reason())?;
        guard.msgid = None;

        let response = Response::decode(&message)
            .map_err(|_| RpcError::new(ErrorCode::Internal, "internal error"))?;
        let result = response.outcome?;
        Ok(EngineResult {
            bytes: message.slice_ref(result),
            memory,
        })
    }

    /// Returns true after the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    fn close_reason(&self) -> RpcError {
        self.closed.get().cloned().unwrap_or_else(|| {
            RpcError::new(
                ErrorCode::Unavailable,
                "the engine closed the connection before it responded",
            )
        })
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
            let removed = self.session.pending.lock().remove(&msgid);
            if removed.is_some() {
                // A closed connection has no request to cancel.
                let _ = self.session.cancels.send(msgid);
            }
        }
    }
}

/// Writes queued requests and cancels until the session is dropped or the connection ends.
async fn send_requests(
    mut writer: WriteHalf<DuplexStream>,
    mut queued: mpsc::Receiver<Queued>,
    mut cancelled: mpsc::UnboundedReceiver<u32>,
    pending: &Pending,
) {
    loop {
        let frame = tokio::select! {
            biased;
            Some(msgid) = cancelled.recv() => {
                let mut frame = Vec::new();
                request::cancel(&mut frame, msgid);
                frame
            }
            Some(Queued { msgid, frame }) = queued.recv() => {
                // Nobody waits for a request that was dropped in the queue.
                if !pending.lock().contains_key(&msgid) {
                    continue;
                }
                frame
            }
            else => return,
        };
        if writer.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// Reads the engine's messages.
struct Receiver {
    pending: Pending,
    response_bytes_max: usize,
    /// Permits for the bytes of results that the client has not read yet.
    memory: Arc<Semaphore>,
    memory_permits: usize,
    write_time_max: Duration,
}

impl Receiver {
    /// Reads messages until the connection ends. Returns the reason, if there is one.
    async fn read_responses(&self, mut reader: ReadHalf<DuplexStream>) -> Option<RpcError> {
        let limits = Limits {
            message_bytes_max: self.response_bytes_max as u64,
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
                            if let Err(error) = self.deliver(msgid, message).await {
                                return Some(error);
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

    /// Hands a response to its request. Waits while the client has not read enough of the earlier
    /// ones, so that the engine is slowed down as by a client that does not read its socket.
    ///
    /// # Errors
    /// The client does not read.
    async fn deliver(&self, msgid: u32, message: Bytes) -> Result<(), RpcError> {
        let permits = memory_permits(message.len()).min(self.memory_permits);
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        let memory = Arc::clone(&self.memory).acquire_many_owned(permits);
        let memory = match timeout(self.write_time_max, memory).await {
            Ok(Ok(memory)) => memory,
            _ => {
                return Err(RpcError::new(
                    ErrorCode::DeadlineExceeded,
                    "the client does not read its responses",
                ));
            }
        };
        let waiting = self.pending.lock().remove(&msgid);
        if let Some(sender) = waiting {
            // The request can have been dropped meanwhile.
            let _ = sender.send(Received { message, memory });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sealwire_wire::response;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn options() -> HttpOptions {
        HttpOptions {
            body_bytes_max: 1 << 20,
            discard_bytes_max: 1 << 20,
            depth_max: 64,
            response_bytes_max: 1 << 20,
            result_bytes_max: 10 << 10,
            idle_time_max: Duration::from_secs(60),
            body_time_max: Duration::from_secs(60),
            write_time_max: Duration::from_millis(200),
            drain_time_max: Duration::from_secs(60),
            authentication_time_max: Duration::from_secs(60),
            streams_max: 100,
            spawn: Arc::new(|task| drop(tokio::spawn(task))),
        }
    }

    fn health(out: &mut Vec<u8>, msgid: u32) {
        request::health(out, msgid);
    }

    /// A response with a binary result of this length.
    fn response_of(msgid: u32, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        response::start(&mut out, msgid);
        sealwire_msgpack::write::bin(&mut out, &vec![0; len]);
        out
    }

    #[tokio::test]
    async fn results_that_the_client_does_not_read_end_the_session() {
        let (client, mut engine) = tokio::io::duplex(64 << 10);
        let (session, relay) = Session::new(client, &options());
        let relay = tokio::spawn(relay);
        let (first, second) = (session.call(health), session.call(health));
        let serve = async {
            let mut read = vec![0; 1_024];
            assert!(engine.read(&mut read).await.unwrap() > 0);
            for msgid in [0, 1] {
                engine
                    .write_all(&response_of(msgid, 8 << 10))
                    .await
                    .unwrap();
            }
        };
        // The first result is kept, as by a client that does not read its socket.
        let (first, second, ()) = tokio::join!(first, second, serve);
        assert_eq!(
            second.err().unwrap().message,
            "the client does not read its responses"
        );
        relay.await.unwrap();
        drop(first.unwrap());
    }

    #[tokio::test]
    async fn results_that_the_client_reads_make_room_for_others() {
        let (client, mut engine) = tokio::io::duplex(64 << 10);
        let (session, relay) = Session::new(client, &options());
        tokio::spawn(relay);
        let serve = async {
            let mut read = vec![0; 1_024];
            for msgid in 0..20 {
                assert!(engine.read(&mut read).await.unwrap() > 0);
                engine
                    .write_all(&response_of(msgid, 8 << 10))
                    .await
                    .unwrap();
            }
        };
        let calls = async {
            for _ in 0..20 {
                assert!(session.call(health).await.unwrap().bytes.len() > 8 << 10);
            }
        };
        tokio::join!(serve, calls);
    }

    #[tokio::test]
    async fn request_that_nobody_waits_for_is_cancelled() {
        let (client, mut engine) = tokio::io::duplex(64 << 10);
        let (session, relay) = Session::new(client, &options());
        tokio::spawn(relay);
        let mut frame = Vec::new();
        health(&mut frame, 0);
        let mut read = vec![0; frame.len()];
        tokio::select! {
            _ = session.call(health) => panic!("there is no response"),
            _ = engine.read_exact(&mut read) => (),
        }
        assert_eq!(read, frame);
        let mut cancel = Vec::new();
        request::cancel(&mut cancel, 0);
        let mut read = vec![0; cancel.len()];
        engine.read_exact(&mut read).await.unwrap();
        assert_eq!(read, cancel);
    }
}
