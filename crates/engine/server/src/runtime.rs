//! The tokio runtime of an engine: network threads, and a blocking pool with room for the crypto
//! threads.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::available_parallelism;

use sealwire_engine::jobs::inline_budget;
use sealwire_schedule::Cost;
use sealwire_settings::Config;
use tokio::runtime::{Builder, Runtime};

use crate::network_scheduler;

/// Prefix of the names of network threads.
pub const NETWORK: &str = "network";
/// Prefix of the names of crypto threads, and of the few others in the blocking pool.
pub const CRYPTO: &str = "crypto";
/// Threads for blocking work, in addition to the crypto threads: file reads, name look-ups, and
/// conversions of long HTTP documents (at most `http::CONVERSIONS_MAX`).
const SPARE_BLOCKING_THREADS: usize = 8;

/// Number of ready tasks that a network thread polls before it asks the system for events. Asking
/// also starts a round of the [`network_scheduler`], which should start only after every ready task
/// was polled. Otherwise a flood gets its next share before another principal gets its first.
///
/// Tokio's default of 61 is too small. A flood has more connections, each of which is polled once
/// without a result. The delay of other principals is limited by the shares, not by this number.
const POLLS_BETWEEN_EVENTS: u32 = 1_024;

/// Starts a runtime with the configured numbers of threads, and waits until every network thread
/// runs.
///
/// # Errors
/// Returns an error if the system cannot start more threads.
pub fn start(config: &Config) -> io::Result<Runtime> {
    let cores = available_parallelism().map_or(1, usize::from);
    let network_threads = config.network.threads_on(cores);
    let started = AtomicUsize::new(0);
    let inline = Cost::from_nanos(config.schedule.inline_us * 1_000);
    let runtime = Builder::new_multi_thread()
        .worker_threads(network_threads)
        .max_blocking_threads(config.crypto.threads_on(cores) + SPARE_BLOCKING_THREADS)
        .thread_name_fn(move || {
            let number = started.fetch_add(1, Ordering::Relaxed);
            number
                .checked_sub(network_threads)
                .map_or(format!("{NETWORK}-{number}"), |number| {
                    format!("{CRYPTO}-{number}")
                })
        })
        .on_thread_unpark(move || {
            inline_budget::renew(inline);
            network_scheduler::thread_woke();
        })
        .event_interval(POLLS_BETWEEN_EVENTS)
        .enable_all()
        .build()?;

    // Tokio names a thread when it starts, and starts network threads first. But each thread runs
    // any waiting task, so nothing else must be spawned before every network thread runs.
    let all = Arc::new(Barrier::new(network_threads + 1));
    for _ in 0..network_threads {
        let all = Arc::clone(&all);
        runtime.spawn(async move { all.wait() });
    }
    all.wait();
    Ok(runtime)
}
