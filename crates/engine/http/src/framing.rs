//! Input of hyper, in which heads that two readers can read differently are broken.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use sealwire_service::http_framing::FramingScanner;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// I/O of a connection whose incoming heads are checked.
#[derive(Debug)]
pub(crate) struct CheckedFraming<T> {
    io: T,
    scanner: FramingScanner,
}

impl<T> CheckedFraming<T> {
    pub(crate) const fn new(io: T) -> Self {
        Self {
            io,
            scanner: FramingScanner::new().strict(),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for CheckedFraming<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(context, buffer);
        self.scanner.scan_bytes(&mut buffer.filled_mut()[before..]);
        poll
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CheckedFraming<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
