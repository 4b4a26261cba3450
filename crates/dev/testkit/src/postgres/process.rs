//! Finds server processes in `/proc` and sends signals to them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Returns a process and its direct children. Every process of a server is a child of its first
/// process.
pub(super) fn family(parent: u32) -> Vec<u32> {
    let children = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            (state_and_parent(pid)?.1 == parent).then_some(pid)
        });
    std::iter::once(parent).chain(children).collect()
}

/// Stops a process, and then lists its family. A stopped process cannot start children meanwhile.
pub(super) fn stopped_family(parent: u32, patience: Duration) -> Vec<u32> {
    signal(&[parent], Signal::STOP);
    let until = Instant::now() + patience;
    // The signal can arrive while the process starts a child.
    while state_and_parent(parent).is_some_and(|(state, _)| !['T', 'Z'].contains(&state))
        && Instant::now() < until
    {
        thread::sleep(Duration::from_millis(2));
    }
    family(parent)
}

/// Sends a signal to each process. Ignores processes that have ended.
pub(super) fn signal(pids: &[u32], signal: Signal) {
    for pid in pids {
        if let Some(pid) = i32::try_from(*pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }
}

/// Waits until all processes have ended or are zombies. Returns false if some still run after the
/// given time.
pub(super) fn gone(pids: &[u32], patience: Duration) -> bool {
    let until = Instant::now() + patience;
    while pids
        .iter()
        .any(|pid| state_and_parent(*pid).is_some_and(|(state, _)| state != 'Z'))
    {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(2));
    }
    true
}

fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses can contain any character, so the fields after it are found from the
    // end.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
