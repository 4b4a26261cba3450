//! Probes `/live` ten times per second, over a new connection each time, during all experiments.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval between probes.
const EVERY: Duration = Duration::from_millis(100);
/// Timeout of a probe.
const PATIENCE: Duration = Duration::from_secs(2);

/// The result of one probe.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    /// The experiment that ran meanwhile.
    pub(crate) during: String,
    /// Time from the scheduled probe to the complete response, or `None` without a successful
    /// response.
    pub(crate) ms: Option<f64>,
}

#[derive(Debug, Default)]
struct LiveState {
    target: Mutex<Option<(SocketAddr, String)>>,
    probes: Mutex<Vec<Probe>>,
    stop: AtomicBool,
}

/// Polls `/live` on a thread of its own.
#[derive(Debug)]
pub(crate) struct Prober {
    shared: Arc<LiveState>,
    thread: Option<JoinHandle<()>>,
}

impl Prober {
    /// Starts the thread, which has no target yet.
    pub(crate) fn start() -> Self {
        let shared = Arc::new(LiveState::default());
        let of_thread = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut due = Instant::now();
            while !of_thread.stop.load(Ordering::Relaxed) {
                due += EVERY;
                thread::sleep(due.saturating_duration_since(Instant::now()));
                let target = of_thread
                    .target
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                let Some((address, during)) = target else {
                    continue;
                };
                let ms = ask(address).then(|| due.elapsed().as_secs_f64() * 1e3);
                // Between two engines there is no target.
                let target = of_thread
                    .target
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if target.as_ref().is_some_and(|(now, _)| *now == address) {
                    of_thread
                        .probes
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(Probe { during, ms });
                }
                // A late response must not be followed by a burst of probes.
                due = due.max(Instant::now().checked_sub(EVERY).unwrap_or(due));
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// Sets the engine to probe from now on, or none.
    pub(crate) fn ask(&self, target: Option<(SocketAddr, &str)>) {
        let target = target.map(|(address, during)| (address, during.to_owned()));
        *self
            .shared
            .target
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Ends the thread and returns the results.
    pub(crate) fn finish(mut self) -> Vec<Probe> {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        std::mem::take(
            &mut self
                .shared
                .probes
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

fn ask(address: SocketAddr) -> bool {
    let answer = || -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    };
    answer().is_ok_and(|answer| answer.starts_with(b"HTTP/1.1 200"))
}
