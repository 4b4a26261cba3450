//! What has arrived on a connection, and where more comes from.

use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use sealwire_engine::io_fairness::IoFairness;

/// Room for one read, in bytes: a TLS record and some. A connection has this much for itself, and as much for calls
/// that may not begin yet; what a message takes beyond it counts against its caller's share.
pub(super) const READ_BYTES: usize = 32 << 10;
/// Shorter messages are copied out of the buffer: each would keep all of it, which nobody has counted.
const COPIED_BYTES_MAX: usize = 16 << 10;
/// Time a peer has to close its end after we closed ours.
const LINGER: Duration = Duration::from_secs(1);

/// What has arrived, and where more comes from.
pub(super) struct Input<R> {
    read: R,
    pub(super) buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Input<R> {
    pub(super) fn new(read: R) -> Self {
        Self { read, buffer: BytesMut::new() }
    }

    /// More has arrived of one message than a connection has room for.
    pub(super) fn is_long(&self) -> bool {
        self.buffer.len() > READ_BYTES
    }

    /// Takes a message off the front. The memory of a long one goes with it.
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

    /// The same for bytes that nobody wants.
    pub(super) fn discard(&mut self, bytes: usize) {
        self.buffer.advance(bytes);
        if self.buffer.is_empty() && self.buffer.capacity() > READ_BYTES {
            self.buffer = BytesMut::new();
        }
    }

    /// Reads once. Safe to drop midway.
    pub(super) async fn more(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        self.read.read_buf(&mut self.buffer).await
    }

    /// Reads on and drops what comes until the rest is `written`, and for a moment longer: a peer may read only once it has
    /// sent all it has to say; and to close on unread bytes would make the system reset the connection, and what was just
    /// written might never arrive.
    pub(super) async fn linger(mut self, turns: &IoFairness, written: impl Future<Output = ()>) {
        let drop_all = async {
            while matches!(self.more().await, Ok(1..)) {
                self.buffer.clear();
                turns.next().await;
            }
        };
        let (mut drop_all, mut written) = (pin!(drop_all), pin!(written));
        tokio::select! {
            () = &mut drop_all => written.await,
            () = &mut written => drop(timeout(LINGER, drop_all).await),
        }
    }
}
