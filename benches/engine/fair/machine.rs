//! The machine beside us: whether others used it, and threads that keep its clocks warm.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::fair::child::EngineChild;

/// The kernel counts CPU time of all in hundredths of a second.
const TICK_S: f64 = 0.01;

/// CPU time so far, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    /// Of everybody, all cores, and what the host gave to others.
    busy: f64,
    /// Of this process, the engines that have ended, and those that are given.
    ours: f64,
}

impl Usage {
    /// Now. `engines` are those that run.
    pub(crate) fn read(engines: &[&EngineChild]) -> io::Result<Self> {
        let ticks =
            |text: &str| -> Vec<f64> { text.split_whitespace().filter_map(|ticks| ticks.parse().ok()).collect() };
        let of = |ticks: &[f64], columns: &[usize]| -> f64 {
            columns.iter().filter_map(|at| ticks.get(*at)).sum::<f64>() * TICK_S
        };
        let all = fs::read_to_string("/proc/stat")?;
        let all = ticks(all.lines().next().unwrap_or(""));
        let own = fs::read_to_string("/proc/self/stat")?;
        // Behind the name, which may hold anything: state, which is no number, then ten, then our times and our children's.
        let own = ticks(own.rsplit_once(')').map_or("", |(_, rest)| rest));
        let engines = engines.iter().map(|engine| engine.cpu()).sum::<io::Result<Duration>>()?;
        Ok(Self {
            at: Instant::now(),
            // user, nice, system, irq, softirq and steal; idle and iowait are no use.
            busy: of(&all, &[0, 1, 2, 5, 6, 7]),
            ours: of(&own, &[10, 11, 12, 13]) + engines.as_secs_f64(),
        })
    }

    /// The share of all cores that others took since then.
    pub(crate) fn foreign_since(self, before: Self) -> f64 {
        let cores = thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        let all = (self.at - before.at).as_secs_f64() * cores;
        ((self.busy - before.busy - (self.ours - before.ours)) / all).max(0.0)
    }
}

/// Gives the calling thread, and those that it starts, the priority of callers on a machine of their own: the engine must
/// not keep them from the core. Only some may; without it sends are late more often, and the report says so.
pub(crate) fn raise_priority() {
    let _ = rustix::process::setpriority_process(None, -10);
}

/// Takes that back, in the engine's process, before it starts a thread.
pub(crate) fn usual_priority() {
    let _ = rustix::process::setpriority_process(None, 0);
}

/// Puts the calling thread under the kernel's idle policy. There is no safe call for that at hand, but util-linux has a
/// program. Gives whether it is so.
fn idle_policy() -> bool {
    let link = fs::read_link("/proc/thread-self").unwrap_or_default();
    let Some(thread) = link.file_name() else { return false };
    let chrt = Command::new("chrt").args(["--idle", "--pid", "0"]).arg(thread).stderr(Stdio::null()).status();
    chrt.is_ok_and(|status| status.success())
}

const REST: u8 = 0;
const SPIN: u8 = 1;
const END: u8 = 2;

/// One thread per core that spins while it is told to, under the kernel's idle policy: to everybody else its core is free.
/// An idle machine lowers its clocks and is slow to wake, so that it answers later than a busy one: what is measured alone
/// would look worse than it is. A low priority would not do: the kernel wakes no thread on a core that is taken so, and the
/// engine's threads would share one. Without `chrt` the threads rest, and "alone" is "idle".
#[derive(Debug)]
pub(crate) struct Warmth {
    state: Arc<AtomicU8>,
    threads: Vec<JoinHandle<()>>,
}

impl Warmth {
    /// Starts the threads, at rest.
    pub(crate) fn start() -> Self {
        let state = Arc::new(AtomicU8::new(REST));
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spin = |_| {
            let state = Arc::clone(&state);
            thread::spawn(move || {
                let idle = idle_policy();
                loop {
                    match state.load(Ordering::Relaxed) {
                        SPIN if idle => (0..1_000).for_each(|_| std::hint::spin_loop()),
                        END => return,
                        _ => thread::sleep(Duration::from_millis(5)),
                    }
                }
            })
        };
        Self { threads: (0..cores).map(spin).collect(), state }
    }

    /// Spins or rests.
    pub(crate) fn set(&self, on: bool) {
        self.state.store(if on { SPIN } else { REST }, Ordering::Relaxed);
    }
}

impl Drop for Warmth {
    fn drop(&mut self) {
        self.state.store(END, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
