//! Information about the machine and its processes from the Linux kernel. Unavailable values are
//! `None`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};

use sealwire_load_report::results::Machine;

/// Unit in which the kernel reports the CPU time of a process, in milliseconds.
const TICK_MS: u64 = 10;
/// State of a listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";
/// Process name of an engine.
const ENGINE: &str = "sealwire";

/// Describes this machine.
pub(crate) fn machine() -> Machine {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let system = |what: &str| read(&format!("/proc/sys/kernel/{what}")).trim().to_owned();
    Machine {
        cores: cores(),
        cpu: model.map_or_else(
            || std::env::consts::ARCH.to_owned(),
            |(_, model)| model.trim().to_owned(),
        ),
        os: format!("{} {}", system("ostype"), system("osrelease")),
    }
}

/// Returns the number of CPU cores that this process may use.
pub(crate) fn cores() -> u32 {
    thread::available_parallelism()
        .map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// Returns the CPU time used by the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the time that the calling thread was ready to run without a core.
pub(crate) fn thread_queued() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ')
        .nth(1)?
        .parse()
        .ok()
        .map(Duration::from_nanos)
}

/// Returns the CPU time used by a process, including ended threads.
pub(crate) fn process_cpu(pid: u32) -> Option<Duration> {
    Some(ticks(stat(pid, [11, 12])?.iter().sum()))
}

fn ticks(count: u64) -> Duration {
    Duration::from_millis(count.saturating_mul(TICK_MS))
}

/// Returns numbers of `/proc/PID/stat`, counted from the state of the process, which is 0.
fn stat<const N: usize>(pid: u32, at: [usize; N]) -> Option<[u64; N]> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name can contain any character. The first field after the name is the state.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let mut numbers = [0; N];
    for (number, at) in numbers.iter_mut().zip(at) {
        *number = fields.get(at)?.parse().ok()?;
    }
    Some(numbers)
}

/// Returns the engine process on this machine that listens on `address`, if it can be inspected.
/// Ignores proxies, since their CPU time is not the engine's.
pub(crate) fn engine(address: &str) -> Option<u32> {
    let is_engine = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == ENGINE)
    };
    listener(address).filter(is_engine)
}

/// Returns the process on this machine that listens on `address`, if it can be inspected.
fn listener(address: &str) -> Option<u32> {
    let wanted = address.to_socket_addrs().ok()?.next()?;
    if !wanted.ip().is_loopback() && !is_ours(wanted.ip()) {
        return None;
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"]
        .map(|table| fs::read_to_string(table).unwrap_or_default());
    let listens = || {
        tables
            .iter()
            .flat_map(|table| table.lines().filter_map(listens))
    };
    let of = |ip: IpAddr| {
        listens().find(|(at, _)| at.port() == wanted.port() && at.ip().to_canonical() == ip)
    };
    // A listener on the exact address takes precedence over a listener on all addresses.
    let any = [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ];
    let (_, inode) = of(wanted.ip().to_canonical()).or_else(|| any.into_iter().find_map(of))?;
    let target = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes
        .into_iter()
        .find(|pid: &u32| holds(*pid, Path::new(&target)))
}

/// Parses a line of `/proc/net/tcp`. Returns address and inode if the socket listens.
fn listens(line: &str) -> Option<(SocketAddr, &str)> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let (ip, port) = columns.get(1)?.rsplit_once(':')?;
    // Each group of 32 bits is a number in host byte order.
    let words =
        (0..ip.len() / 8).map(|at| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok());
    let bytes = words
        .collect::<Option<Vec<u32>>>()?
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect::<Vec<u8>>();
    let ip = <[u8; 4]>::try_from(&*bytes)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(&*bytes).map(IpAddr::from));
    let address = SocketAddr::new(ip.ok()?, u16::from_str_radix(port, 16).ok()?);
    (columns.get(3) == Some(&LISTENS)).then_some((address, *columns.get(9)?))
}

fn holds(pid: u32, target: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    files
        .flatten()
        .any(|file| fs::read_link(file.path()).is_ok_and(|link| link == target))
}

/// Returns true if the address belongs to this machine, which is tested by binding a socket to it.
fn is_ours(ip: IpAddr) -> bool {
    std::net::TcpListener::bind((ip, 0)).is_ok()
}

/// Returns true if the address is a loopback address or belongs to this machine.
pub(crate) fn is_here(address: &str) -> bool {
    let found = address
        .to_socket_addrs()
        .ok()
        .and_then(|mut addresses| addresses.next());
    found.is_some_and(|address| address.ip().is_loopback() || is_ours(address.ip()))
}

/// Sets the timer slack of the calling thread to 1 us. By default the kernel merges wake-ups within
/// 50 us.
pub(crate) fn wake_on_time() {
    let link = fs::read_link("/proc/thread-self").unwrap_or_default();
    if let Some(thread) = link.file_name() {
        let _ = fs::write(
            Path::new("/proc").join(thread).join("timerslack_ns"),
            "1000",
        );
    }
}

/// Raises the priority of the calling thread, so that an engine on the same machine does not delay
/// sends. Needs a privilege; without it more sends are late and the figures report so. Returns the
/// resulting nice value.
pub(crate) fn take_precedence() -> Option<i32> {
    let _ = setpriority_process(None, -10);
    getpriority_process(None).ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn listening_processes_are_found_and_their_cpu_read() {
        let listener_ = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener_.local_addr().unwrap().to_string();
        assert_eq!(listener(&address), Some(std::process::id()));
        assert!(
            is_here(&address)
                && process_cpu(std::process::id()).is_some()
                && thread_cpu() > Duration::ZERO
        );
        // The process of this test is not an engine.
        assert_eq!(engine(&address), None);
        let port = listener_.local_addr().unwrap().port();
        // A listener on another address of this machine with the same port must not match.
        assert_eq!(listener(&format!("127.0.0.2:{port}")), None);
        let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        drop(listener_);
        assert_eq!(listener(&address), None);
        drop(other);
        for any in ["0.0.0.0:0", "[::]:0"] {
            let Ok(listener_) = TcpListener::bind(any) else {
                continue;
            };
            let port = listener_.local_addr().unwrap().port();
            assert_eq!(
                listener(&format!("127.0.0.1:{port}")),
                Some(std::process::id()),
                "{any}"
            );
        }
        assert_eq!(
            (listener("192.0.2.1:7443"), is_here("192.0.2.1:7443")),
            (None, false)
        );
        assert_eq!(process_cpu(u32::MAX), None);
    }
}
