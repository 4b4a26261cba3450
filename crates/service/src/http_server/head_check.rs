//! Rejects HTTP/1 heads with conflicting lengths, by a [`FramingScanner`] over the plaintext that
//! hyper reads.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::activity::Activity;
use crate::http_framing::FramingScanner;
use crate::write_through;

/// Ends the checks of a connection that leaves HTTP.
#[derive(Clone, Debug, Default)]
pub struct Upgrade(Arc<AtomicBool>);

impl Upgrade {
    /// Records that the next bytes are not HTTP.
    pub fn start(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// I/O that checks incoming heads. This wrapper must be above TLS, because it reads plaintext.
#[derive(Debug)]
pub struct HeadCheck<T> {
    io: T,
    scanner: FramingScanner,
    upgrade: Upgrade,
    activity: Arc<Activity>,
}

impl<T> HeadCheck<T> {
    /// Checks the bytes that are read until `upgrade` is set, and tells `activity` whether a head
    /// is incomplete.
    pub const fn new(io: T, upgrade: Upgrade, activity: Arc<Activity>) -> Self {
        Self {
            io,
            scanner: FramingScanner::new(),
            upgrade,
            activity,
        }
    }

    /// Also rejects the heads that [`FramingScanner::strict`] breaks.
    #[must_use]
    pub fn strict(self) -> Self {
        Self {
            scanner: self.scanner.strict(),
            ..self
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for HeadCheck<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let poll = Pin::new(&mut self.io).poll_read(cx, buf);
        if !self.upgrade.0.load(Ordering::Acquire) {
            self.scanner.scan_bytes(&mut buf.filled_mut()[before..]);
            self.activity.set_within_head(self.scanner.is_within_head());
            self.activity
                .set_between_requests(self.scanner.is_between_requests());
        }
        poll
    }
}

write_through!(HeadCheck);
