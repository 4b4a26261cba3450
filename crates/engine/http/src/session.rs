//! Carries many concurrent requests over one MessagePack-RPC connection to the engine, inside the
//! process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{Bytes, BytesMut};
use sealwire_wire::{
    ErrorCode, Limits, MessageHeader, RpcError, Scan, Scanner, decode_protocol_error, request,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};

use crate::HttpOptions;
use crate::memory::{ResultReservation, TakenMemory};

/// Number of requests that can wait until the connection takes their bytes.
const QUEUE: usize = 64;
/// Bytes that one read makes room for. Shorter messages are copied, so that they do not keep the
/// buffer of other messages.
const READ_BYTES: usize = 16 << 10;
/// Suggested pause before a request is sent again that the engine did not read.
const RETRY_MS: u32 = 100;

/// A response of the engine, with the memory that it takes until it is dropped.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) message: Bytes,
    pub(crate) memory: ResultReservation,
}

/// A request without a response yet.
struct Waiting {
    sender: oneshot::Sender<Result<Received, RpcError>>,
    /// True when its first byte is written, so that the engine may run it.
    is_written: bool,
}

/// The requests that wait for a message of the engine, by msgid.
#[derive(Clone, Default)]
struct Pending(Arc<Mutex<HashMap<u32, Waiting>>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request is written. Returns false if nobody waits for it.
    fn set_written(&self, msgid: u32) -> bool {
        match self.lock().get_mut(&msgid) {
            Some(waiting) => {
                waiting.is_written = true;
                true
            }
            None => false,
        }
    }
}

/// The reason for which the engine closed the connection, if it named one.
#[derive(Clone, Default)]
struct CloseReason(Arc<OnceLock<RpcError>>);

impl CloseReason {
    /// Returns the error of a request that the engine did not run.
    fn not_run(&self) -> RpcError {
        self.0.get().cloned().unwrap_or_else(|| {
            RpcError::new(
                ErrorCode::Unavailable,
                "the engine closed the connection before it ran the request; send it again",
            )
            .retry_after_ms(RETRY_MS)
        })
    }
}

/// Tells every waiting request that no response comes, when it is dropped.
struct EndOnDrop {
    pending: Pending,
    reason: CloseReason,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        for (_, waiting) in self.pending.lock().drain() {
            let error = if waiting.is_written {
                RpcError::new(
                    ErrorCode::Unavailable,
                    "the engine closed the connection before it responded; it may have run the request",
                )
            } else {
                self.reason.not_run()
            };
            // The request can have been dropped meanwhile.
            let _ = waiting.sender.send(Err(error));
        }
    }
}

/// A request that waits until the connection takes its bytes.
struct Queued {
    msgid: u32,
    frame: Vec<Bytes>,
}

/// Sends requests to the engine and returns their responses.
pub(crate) struct Session {
    requests: mpsc::Sender<Queued>,
    cancels: mpsc::UnboundedSender<u32>,
    pending: Pending,
    next: AtomicU32,
    closed: CloseReason,
}

impl Session {
    /// Creates a session over a connection to the engine, and the future that moves its messages.
    /// The future ends when the engine closes the connection.
    pub(crate) fn new(
        stream: DuplexStream,
        results: TakenMemory,
        options: &HttpOptions,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let (requests, queued) = mpsc::channel(QUEUE);
        let (cancels, cancelled) = mpsc::unbounded_channel();
        let pending = Pending::default();
        let closed = CloseReason::default();
        let session = Self {
            requests,
            cancels,
            pending: pending.clone(),
            next: AtomicU32::new(0),
            closed: closed.clone(),
        };

        let (reader, writer) = tokio::io::split(stream);
        let receiver = Receiver {
            pending: pending.clone(),
            response_bytes_max: options.response_bytes_max,
            results,
        };
        // Also if the future is dropped before its first poll.
        let end = EndOnDrop {
            pending: pending.clone(),
            reason: closed.clone(),
        };
        let relay = async move {
            let send = send_requests(writer, queued, cancelled, &pending);
            let reason = tokio::select! {
                reason = receiver.read_responses(reader) => reason,
                // Responses can still follow after the last request.
                never = async { send.await; std::future::pending().await } => never,
            };
            if let Some(reason) = reason {
                let _ = closed.0.set(reason);
            }
            drop(end);
        };
        (session, relay)
    }

    /// Sends the request that `encode` returns for a msgid, in pieces, and waits for the response.
    /// Dropping the future cancels the request.
    ///
    /// # Errors
    /// The connection ended before the response. The error says whether the engine may have run the
    /// request.
    pub(crate) async fn call(
        &self,
        encode: impl FnOnce(u32) -> Vec<Bytes>,
    ) -> Result<Received, RpcError> {
        let msgid = self.next.fetch_add(1, Ordering::Relaxed);
        let frame = encode(msgid);
        let (sender, receiver) = oneshot::channel();
        let waiting = Waiting {
            sender,
            is_written: false,
        };
        self.pending.lock().insert(msgid, waiting);
        let _guard = CancelOnDrop {
            session: self,
            msgid,
        };

        // The queue is closed when the connection has ended.
        if self.requests.send(Queued { msgid, frame }).await.is_err() {
            return Err(self.closed.not_run());
        }
        receiver
            .await
            .unwrap_or_else(|_| Err(self.closed.not_run()))
    }

    /// Returns true after the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }
}

/// Cancels a request whose response nobody waits for any more.
struct CancelOnDrop<'a> {
    session: &'a Session,
    msgid: u32,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        // A request with a response is not pending. The engine does not know a request that was not
        // written, and never will.
        let removed = self.session.pending.lock().remove(&self.msgid);
        if removed.is_some_and(|waiting| waiting.is_written) {
            // A closed connection has no request to cancel.
            let _ = self.session.cancels.send(self.msgid);
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
                vec![frame.into()]
            }
            Some(Queued { msgid, frame }) = queued.recv() => {
                // Nobody waits for a request that was dropped in the queue.
                if !pending.set_written(msgid) {
                    continue;
                }
                frame
            }
            else => return,
        };
        for piece in frame {
            if writer.write_all(&piece).await.is_err() {
                return;
            }
        }
    }
}

/// Reads the engine's messages.
struct Receiver {
    pending: Pending,
    response_bytes_max: usize,
    /// The memory that the engine has taken for its messages.
    results: TakenMemory,
}

impl Receiver {
    /// Reads messages until the connection ends. Returns the reason, if there is one.
    async fn read_responses(mut self, mut reader: ReadHalf<DuplexStream>) -> Option<RpcError> {
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
                    let message = take_message(&mut buffer, layout.bytes);
                    let memory = self.results.next().await?;
                    match layout.header {
                        MessageHeader::Response { msgid } => {
                            let waiting = self.pending.lock().remove(&msgid);
                            if let Some(waiting) = waiting {
                                // The request can have been dropped meanwhile.
                                let _ = waiting.sender.send(Ok(Received { message, memory }));
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
}

/// Removes and returns the message at the front. A long message takes its buffer with it.
fn take_message(buffer: &mut BytesMut, bytes: usize) -> Bytes {
    if bytes <= READ_BYTES {
        let message = Bytes::copy_from_slice(&buffer[..bytes]);
        drop(buffer.split_to(bytes));
        return message;
    }
    let message = buffer.split_to(bytes).freeze();
    *buffer = BytesMut::from(&buffer[..]);
    message
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sealwire_wire::response;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{Memory, ResultMemory};

    /// A session, the future that moves its messages, the engine's end, and the memory of results,
    /// of which one principal can have 15 KiB.
    fn session() -> (
        Session,
        impl Future<Output = ()>,
        DuplexStream,
        ResultMemory,
    ) {
        let (client, engine) = tokio::io::duplex(64 << 10);
        let memory = Memory::new(60 << 10, 10 << 10, 10 << 10);
        let principal = memory.of_principal();
        let (results, taken) = memory.result_memory(&principal);
        let options = HttpOptions {
            body_bytes_max: 1 << 20,
            discard_bytes_max: 1 << 20,
            depth_max: 64,
            response_bytes_max: 1 << 20,
            idle_time_max: Duration::from_secs(60),
            head_time_max: Duration::from_secs(60),
            body_time_max: Duration::from_secs(60),
            write_time_max: Duration::from_secs(60),
            streams_max: 100,
            spawn: Arc::new(|task| drop(tokio::spawn(task))),
        };
        let (session, relay) = Session::new(client, taken, &options);
        (session, relay, engine, results)
    }

    fn health(msgid: u32) -> Vec<Bytes> {
        let mut out = Vec::new();
        request::health(&mut out, msgid);
        // Pieces are joined.
        let rest = out.split_off(2);
        vec![out.into(), rest.into()]
    }

    /// A response with a binary result of this length.
    fn response_of(msgid: u32, len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        response::start(&mut out, msgid);
        sealwire_msgpack::write::bin(&mut out, &vec![0; len]);
        out
    }

    async fn respond(engine: &mut DuplexStream, results: &ResultMemory, response: &[u8]) {
        results.take(response.len()).await;
        engine.write_all(response).await.unwrap();
    }

    #[tokio::test]
    async fn result_that_is_not_read_keeps_the_next_one_in_the_engine() {
        let (session, relay, mut engine, results) = session();
        tokio::spawn(relay);
        let serve = async {
            let mut read = vec![0; 1_024];
            assert!(engine.read(&mut read).await.unwrap() > 0);
            for msgid in [0, 1] {
                respond(&mut engine, &results, &response_of(msgid, 8 << 10)).await;
            }
        };
        let calls = async {
            let (first, second) = (session.call(health), session.call(health));
            tokio::pin!(second);
            let first = tokio::select! {
                // The requests are sent in this order.
                biased;
                first = first => first.unwrap(),
                _ = &mut second => panic!("the first response comes first"),
            };
            assert!(!results.try_take(8 << 10));
            // The client has read the first response.
            drop(first);
            second.await.unwrap()
        };
        let (second, ()) = tokio::join!(calls, serve);
        assert!(second.message.len() > 8 << 10);
    }

    #[tokio::test]
    async fn results_that_the_client_reads_make_room_for_others() {
        let (session, relay, mut engine, results) = session();
        tokio::spawn(relay);
        let serve = async {
            let mut read = vec![0; 1_024];
            for msgid in 0..20 {
                assert!(engine.read(&mut read).await.unwrap() > 0);
                respond(&mut engine, &results, &response_of(msgid, 8 << 10)).await;
            }
        };
        let calls = async {
            for _ in 0..20 {
                let received = session.call(health).await.unwrap();
                assert!(received.message.len() > 8 << 10);
            }
        };
        tokio::join!(serve, calls);
    }

    #[tokio::test]
    async fn request_that_nobody_waits_for_is_cancelled_if_it_was_written() {
        let (session, relay, mut engine, _results) = session();
        // Not written, because nothing moves messages yet.
        tokio::select! {
            biased;
            _ = session.call(health) => panic!("there is no response"),
            () = std::future::ready(()) => {}
        }
        tokio::spawn(relay);
        let frame = health(1).concat();
        let mut read = vec![0; frame.len()];
        tokio::select! {
            _ = session.call(health) => panic!("there is no response"),
            _ = engine.read_exact(&mut read) => (),
        }
        assert_eq!(read, frame);
        let mut cancel = Vec::new();
        request::cancel(&mut cancel, 1);
        let mut read = vec![0; cancel.len()];
        engine.read_exact(&mut read).await.unwrap();
        assert_eq!(read, cancel);
    }

    #[tokio::test]
    async fn closed_connection_says_whether_the_engine_may_have_run_the_request() {
        for is_read in [true, false] {
            let (session, relay, mut engine, _results) = session();
            let mut relay = Box::pin(relay);
            let call = session.call(health);
            tokio::pin!(call);
            let end = async {
                if is_read {
                    let mut read = vec![0; health(0).concat().len()];
                    tokio::select! {
                        () = &mut relay => panic!("the engine is there"),
                        read = engine.read_exact(&mut read) => drop(read.unwrap()),
                    }
                }
                drop(engine);
                if !is_read {
                    // The connection ends before the request is written.
                    tokio::task::yield_now().await;
                    drop(relay);
                }
            };
            let (error, ()) = tokio::join!(call, end);
            let error = error.unwrap_err();
            assert_eq!(error.code, ErrorCode::Unavailable);
            assert_eq!(error.message.contains("may have run"), is_read, "{error}");
            assert_eq!(error.retry_after_ms.is_some(), !is_read, "{error}");
        }
    }

    #[test]
    fn short_messages_do_not_keep_a_long_buffer() {
        let mut buffer = BytesMut::from(&vec![7; 3 * READ_BYTES + 5][..]);
        let long = take_message(&mut buffer, 2 * READ_BYTES);
        let short = take_message(&mut buffer, READ_BYTES);
        assert_eq!(
            (long.len(), short.len(), buffer.len()),
            (2 * READ_BYTES, READ_BYTES, 5)
        );
        assert!(short.try_into_mut().is_ok(), "the message is a copy");
    }
}
