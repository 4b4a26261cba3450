//! Captures log events of a test at every level.

use std::io;
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;
use tracing_subscriber::fmt::MakeWriter;

/// The events of this thread, as text.
#[derive(Clone, Default)]
pub(crate) struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl CapturedLog {
    /// Captures the events of this thread until the guard is dropped.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(log.clone());
        (log, tracing::subscriber::set_default(subscriber.finish()))
    }

    /// Returns the events so far. Fails if no event is captured.
    pub(crate) fn text(&self) -> String {
        tracing::trace!("a control event");
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        assert!(text.contains("a control event"), "{text}");
        text
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for CapturedLog {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
