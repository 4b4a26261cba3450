//! The bytes that have arrived on a connection, and the source of more.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use crate::network_scheduler::NetworkSlice;

/// Size of one read in bytes: more than a TLS record. Each connection can use this much memory, and
/// the same for deferred requests. A message that needs more counts against the memory quota of its
/// principal.
pub(super) const READ_BYTES: usize = 32 << 10;
/// Messages up to this size are copied out of the buffer. Otherwise each message would keep the
/// whole buffer alive without being counted.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Time that a peer has to close its side after the engine closed its own side.
const LINGER: Duration = Duration::from_secs(1);

/// The bytes that have arrived, and the source of more.
pub(super) struct Input<R> {
    read: R,
    pub(super) buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(super) fn new(read: R) -> Self {
        Self {
            read,
            buffer: BytesMut::new(),
        }
    }

    /// Returns true if the buffered message is longer than the connection's own memory.
    pub(super) fn is_long(&self) -> bool {
        self.buffer.len() > READ_BYTES
    }

    /// Removes and returns the message at the front. A long message keeps its part of the buffer
    /// without a copy.
    pub(super) fn take(&mut self, bytes: usize) -> Bytes {
        if bytes <= COPIED_BYTES_MAX {
            let frame = Bytes::copy_from_slice(&self.buffer[..bytes]);
            self.discard(bytes);
            return frame;
        }
        let frame = self.buffer.split_to(bytes).freeze();
        if bytes > READ_BYTES {
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        frame
    }

    /// Drops bytes at the front.
    pub(super) fn discard(&mut self, bytes: usize) {
        self.buffer.advance(bytes);
        if self.buffer.is_empty() && self.buffer.capacity() > READ_BYTES {
            self.buffer = BytesMut::new();
        }
    }

    /// Reads once. Cancel-safe.
    pub(super) async fn more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        self.read.read_buf(&mut self.buffer).await
    }

    /// Reads and drops bytes until the responses are `written`, and for a moment longer. Some peers
    /// start to read only after they have sent everything. If the engine closed the connection with
    /// unread bytes, the system would reset it and the last responses could be lost.
    pub(super) async fn linger(mut self, written: impl Future<Output = ()>) {
        let drop_all = async {
            let mut slice = NetworkSlice::default();
            while let Ok(bytes @ 1..) = self.more().await {
                self.buffer.clear();
                slice.count_unit(bytes).await;
            }
        };
        let mut drop_all = pin!(drop_all);
        let mut written = pin!(written);
        tokio::select! {
            () = &mut drop_all => written.await,
            () = &mut written => drop(timeout(LINGER, drop_all).await),
        }
    }
}
