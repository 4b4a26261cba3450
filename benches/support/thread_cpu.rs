//! CPU time by thread, from `/proc` (Linux only), in nanoseconds as the scheduler counts them,
//! including system calls.
//!
//! The kernel processes packets sent over loopback on the sender's thread. So a server's CPU time
//! includes the delivery of its responses, but not of its requests. With a real network card, it is
//! the reverse.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Returns the CPU time of the calling thread so far.
///
/// # Errors
/// If `/proc` is not available.
pub fn current() -> io::Result<Duration> {
    // Yielding once makes the scheduler update this thread's CPU time. Otherwise the time can be a
    // tick behind.
    std::thread::yield_now();
    used(Path::new("/proc/thread-self"))
}

/// Returns the CPU time so far of this process's threads whose name begins with `prefix`. Ended
/// threads do not count. The time of a running thread can be a tick behind, so measure when the
/// work is done.
///
/// # Errors
/// If `/proc` is not available.
pub fn of_threads(prefix: &str) -> io::Result<Duration> {
    of_tasks(Path::new("/proc/self"), prefix)
}

/// Returns the CPU time of threads of another process.
///
/// # Errors
/// If there is no such process.
pub fn of_process(pid: u32, prefix: &str) -> io::Result<Duration> {
    of_tasks(&Path::new("/proc").join(pid.to_string()), prefix)
}

fn of_tasks(process: &Path, prefix: &str) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for task in fs::read_dir(process.join("task"))? {
        let task = task?.path();
        match fs::read_to_string(task.join("comm")) {
            Ok(name) if name.starts_with(prefix) => sum += used(&task)?,
            Ok(_) => (),
            // The thread has ended since the listing.
            Err(_) => (),
        }
    }
    Ok(sum)
}

fn used(task: &Path) -> io::Result<Duration> {
    let text = fs::read_to_string(task.join("schedstat"))?;
    let nanoseconds = text
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok());
    nanoseconds
        .map(Duration::from_nanos)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat"))
}
