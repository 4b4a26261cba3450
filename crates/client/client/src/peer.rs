//! A server for tests: one end of an in-memory stream, driven step by step by the test.

use std::time::Duration;

use sealwire_wire::{
    FrameLayout, Limits, MessageHeader, Request, Scan, Scanner, decode_cancel, response,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;

/// A message that the test peer received.
#[derive(Debug, PartialEq)]
pub(crate) enum PeerMessage {
    /// A document request: its msgid, payload and deadline.
    Call {
        msgid: u32,
        payload: Vec<u8>,
        deadline_ms: Option<u32>,
    },
    /// A `tokenize` request and its idempotency key.
    Tokenize {
        msgid: u32,
        idempotency_key: Option<Vec<u8>>,
    },
    /// A token request without a document, or a control request.
    Small(u32),
    /// A cancel of this msgid.
    Cancel(u32),
    /// A `health` request.
    Health(u32),
    /// The client closed the stream.
    Closed,
}

pub(crate) struct Peer {
    stream: DuplexStream,
    scanner: Scanner,
    buffer: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(stream: DuplexStream) -> Self {
        Self {
            stream,
            scanner: Scanner::for_requests(Limits::default()),
            buffer: Vec::new(),
        }
    }

    /// Returns the next message, which must arrive within a minute. With paused time, a missing
    /// message fails the test instead of hanging it.
    pub(crate) async fn hear(&mut self) -> PeerMessage {
        timeout(Duration::from_secs(60), self.next())
            .await
            .expect("nothing came for a minute")
    }

    /// Returns the next message, without a time limit.
    pub(crate) async fn next(&mut self) -> PeerMessage {
        loop {
            match self.scanner.scan(&self.buffer) {
                Scan::Message(boundary) => {
                    let message: Vec<u8> = self.buffer.drain(..boundary.bytes).collect();
                    return heard(&boundary, &message);
                }
                Scan::Incomplete => {}
                other => panic!("the client sent nonsense: {other:?}"),
            }
            if self.stream.read_buf(&mut self.buffer).await.unwrap() == 0 {
                assert!(self.buffer.is_empty(), "the client left half a message");
                return PeerMessage::Closed;
            }
        }
    }

    /// Returns the msgid and payload of the next message, which must be a document request.
    pub(crate) async fn hear_call(&mut self) -> (u32, Vec<u8>) {
        match self.hear().await {
            PeerMessage::Call { msgid, payload, .. } => (msgid, payload),
            other => panic!("not a call: {other:?}"),
        }
    }

    /// Asserts that nothing more was sent. Needs paused time.
    pub(crate) async fn hears_nothing(&mut self) {
        let heard = timeout(Duration::from_secs(5), self.hear()).await;
        assert!(heard.is_err(), "{heard:?}");
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Responds to a request with a document.
    pub(crate) async fn answer(&mut self, msgid: u32, payload: &[u8]) {
        let mut out = Vec::new();
        let document = response::Document::start(&mut out, msgid);
        out.extend_from_slice(payload);
        document.finish(&mut out, 1, (&[], 0), &[], &[]);
        self.say(&out).await;
    }
}

fn heard(boundary: &FrameLayout, message: &[u8]) -> PeerMessage {
    match boundary.header {
        MessageHeader::Request { msgid, .. } => match Request::decode(message, boundary).unwrap() {
            Request::Encrypt(call) | Request::Rewrap(call) => PeerMessage::Call {
                msgid,
                payload: call.payload.to_vec(),
                deadline_ms: call.options.deadline_ms,
            },
            Request::Decrypt(call) => PeerMessage::Call {
                msgid,
                payload: call.payload.to_vec(),
                deadline_ms: call.options.deadline_ms,
            },
            Request::Tokenize(call) => PeerMessage::Tokenize {
                msgid,
                idempotency_key: call.writing.idempotency_key.map(<[u8]>::to_vec),
            },
            Request::Tokens(_) | Request::Control(_) => PeerMessage::Small(msgid),
            Request::Health => PeerMessage::Health(msgid),
            other => panic!("{other:?}"),
        },
        MessageHeader::Notification { .. } => PeerMessage::Cancel(decode_cancel(message).unwrap()),
        MessageHeader::Response { .. } => panic!("a response from a client"),
    }
}
