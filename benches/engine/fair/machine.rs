//! The machine's state: CPU use by other processes, and threads that keep the CPU clocks up.

use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::child::EngineChild;

/// Ticks per second of the kernel's CPU times.
const TICK_S: f64 = 0.01;

/// A reading of CPU time, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    at: Instant,
    /// CPU time of all processes on all cores, including time that the host gave to other guests.
    busy: f64,
    /// CPU time of this process, of ended engines, and of the given engines.
    ours: f64,
}

impl Usage {
    /// Reads the current values. `engines` are the running ones.
    pub(crate) fn read(engines: &[&EngineChild]) -> io::Result<Self> {
        let ticks = |text: &str| -> Vec<f64> {
            text.split_whitespace()
                .filter_map(|ticks| ticks.parse().ok())
                .collect()
        };
        let of = |ticks: &[f64], columns: &[usize]| -> f64 {
            columns.iter().filter_map(|at| ticks.get(*at)).sum::<f64>() * TICK_S
        };
        let all = fs::read_to_string("/proc/stat")?;
        let all = ticks(all.lines().next().unwrap_or(""));
        let own = fs::read_to_string("/proc/self/stat")?;
        // After the name, which can contain any character: the state, which is no number, then ten
        // fields, then our CPU times and our children's.
        let own = ticks(own.rsplit_once(')').map_or("", |(_, rest)| rest));
        let engines = engines
            .iter()
            .map(|engine| engine.cpu())
            .sum::<io::Result<Duration>>()?;
        Ok(Self {
            at: Instant::now(),
            // user, nice, system, irq, softirq and steal, without idle and iowait.
            busy: of(&all, &[0, 1, 2, 5, 6, 7]),
            ours: of(&own, &[10, 11, 12, 13]) + engines.as_secs_f64(),
        })
    }

    /// Returns the share of all cores that other processes took since the reading `before`.
    pub(crate) fn foreign_since(self, before: Self) -> f64 {
        let cores = thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        let all = (self.at - before.at).as_secs_f64() * cores;
        ((self.busy - before.busy - (self.ours - before.ours)) / all).max(0.0)
    }
}

/// Raises the priority of the calling thread and the threads that it starts, as if clients had
/// their own machine: the engine must not displace them. Not all users may do this. Without the
/// higher priority, sends are late more often, and the report says so.
pub(crate) fn raise_priority() {
    let _ = rustix::process::setpriority_process(None, -10);
}

/// Lowers the priority of the calling thread below that of the engine, for a client whose own work
/// must not displace the engine and whose latency is not measured.
pub(crate) fn lower_priority() {
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Puts the calling thread under the kernel's idle policy with a program of util-linux, because
/// there is no safe function for it. Returns whether this succeeded.
fn idle_policy() -> bool {
    let link = fs::read_link("/proc/thread-self").unwrap_or_default();
    let Some(thread) = link.file_name() else {
        return false;
    };
    let chrt = Command::new("chrt")
        .args(["--idle", "--pid", "0"])
        .arg(thread)
        .stderr(Stdio::null())
        .status();
    chrt.is_ok_and(|status| status.success())
}

const REST: u8 = 0;
const SPIN: u8 = 1;
const END: u8 = 2;

/// One thread per core that spins on demand under the kernel's idle policy, so that its core counts
/// as free. An idle machine lowers its clocks and wakes slowly, which would make results on an idle
/// machine look worse than on a busy one. A low priority is not enough: the kernel wakes no thread
/// on such a busy core, so the engine's threads would share one. Without `chrt` the threads do not
/// spin, and "alone" equals "idle".
#[derive(Debug)]
pub(crate) struct Warmth {
    state: Arc<AtomicU8>,
    threads: Vec<JoinHandle<()>>,
}

impl Warmth {
    /// Starts the threads, without spinning.
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
        Self {
            threads: (0..cores).map(spin).collect(),
            state,
        }
    }

    /// Starts or stops spinning.
    pub(crate) fn set(&self, on: bool) {
        self.state
            .store(if on { SPIN } else { REST }, Ordering::Relaxed);
    }
}

impl Drop for Warmth {
    fn drop(&mut self) {
        self.state.store(END, Ordering::Relaxed);
        self.threads
            .drain(..)
            .for_each(|thread| drop(thread.join()));
    }
}
