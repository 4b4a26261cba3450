//! Input of hyper, in which ambiguous heads (request smuggling) are made invalid.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use sealwire_service::http_framing::FramingScanner;
use tokio::io::{AsyncRead, ReadBuf};

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

sealwire_service::write_through!(CheckedFraming);
