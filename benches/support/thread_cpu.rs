//! CPU time by thread, from `/proc` (Linux only). Nanoseconds as the scheduler counts them, system calls included.
//!
//! Packets that a sender pushes through the loopback device are handled on the sender's thread, so a server's share
//! holds the delivery of its replies and not that of its requests, as it would with a network card of its own.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// CPU time of the calling thread so far.
///
/// # Errors
/// If `/proc` is not there.
pub fn current() -> io::Result<Duration> {
    // Giving way once makes the scheduler book what this thread has used; else it may be a tick behind.
    std::thread::yield_now();
    used(Path::new("/proc/thread-self"))
}

/// CPU time so far of this process's threads whose name begins with `prefix`. Threads that have ended do not count.
/// A thread that runs at this moment may be up to a tick behind: ask when the work is done.
///
/// # Errors
/// If `/proc` is not there.
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
            // Ended since it was listed.
            Err(_) => (),
        }
    }
    Ok(sum)
}

fn used(task: &Path) -> io::Result<Duration> {
    let text = fs::read_to_string(task.join("schedstat"))?;
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    nanoseconds.map(Duration::from_nanos).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat"))
}
