//! The machine, and what processes on it have used, as the kernel tells (Linux). What it does not tell is `None`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};

use crate::figures::Machine;

/// The kernel counts CPU time of a process in hundredths of a second.
const TICK: Duration = Duration::from_millis(10);
/// State of a socket that listens, in the kernel's table.
const LISTENS: &str = "0A";
/// What an engine's process is called.
const ENGINE: &str = "sealwire";

/// What this machine is.
pub(crate) fn machine() -> Machine {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let system = |what: &str| read(&format!("/proc/sys/kernel/{what}")).trim().to_owned();
    Machine {
        cores: cores(),
        cpu: model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned()),
        os: format!("{} {}", system("ostype"), system("osrelease")),
    }
}

/// Cores of this machine that this process may use.
pub(crate) fn cores() -> u32 {
    thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// CPU time of the calling thread so far.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long the calling thread has been ready to run and had no core.
pub(crate) fn thread_queued() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split(' ').nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// CPU time of a process so far, ended threads included.
pub(crate) fn process_cpu(pid: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything, its state is the first.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u32>().ok();
    Some(TICK * (ticks(11)? + ticks(12)?))
}

/// The engine's process on this machine that listens there, if it may be looked at. What only passes calls on to an engine is
/// none: its CPU time is not the engine's.
pub(crate) fn engine(address: &str) -> Option<u32> {
    let is_engine = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == ENGINE);
    listener(address).filter(is_engine)
}

/// The process on this machine that listens there, if it may be looked at.
fn listener(address: &str) -> Option<u32> {
    let wanted = address.to_socket_addrs().ok()?.next()?;
    if !wanted.ip().is_loopback() && !is_ours(wanted.ip()) {
        return None;
    }
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let listens = || tables.iter().flat_map(|table| table.lines().filter_map(listens));
    let of = |ip: IpAddr| listens().find(|(at, _)| at.port() == wanted.port() && at.ip().to_canonical() == ip);
    // Who took the very address is who is called.
    let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let (_, inode) = of(wanted.ip().to_canonical()).or_else(|| any.into_iter().find_map(of))?;
    let target = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.into_iter().find(|pid: &u32| holds(*pid, Path::new(&target)))
}

/// Of a line of the kernel's table where a socket listens, and its inode.
fn listens(line: &str) -> Option<(SocketAddr, &str)> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let (ip, port) = columns.get(1)?.rsplit_once(':')?;
    // Each 32 bits are written as a number of this machine.
    let words = (0..ip.len() / 8).map(|at| u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok());
    let bytes = words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<u8>>();
    let ip =
        <[u8; 4]>::try_from(&*bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(&*bytes).map(IpAddr::from));
    let address = SocketAddr::new(ip.ok()?, u16::from_str_radix(port, 16).ok()?);
    (columns.get(3) == Some(&LISTENS)).then_some((address, *columns.get(9)?))
}

fn holds(pid: u32, target: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|link| link == target))
}

/// Whether an address is one of this machine's: only then can it be bound.
fn is_ours(ip: IpAddr) -> bool {
    std::net::TcpListener::bind((ip, 0)).is_ok()
}

/// Whether an address is on this machine.
pub(crate) fn is_here(address: &str) -> bool {
    let found = address.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    found.is_some_and(|address| address.ip().is_loopback() || is_ours(address.ip()))
}

/// Makes sleeps of the calling thread end when they should; the kernel otherwise joins wake-ups within 50 us.
pub(crate) fn wake_on_time() {
    let link = fs::read_link("/proc/thread-self").unwrap_or_default();
    if let Some(thread) = link.file_name() {
        let _ = fs::write(Path::new("/proc").join(thread).join("timerslack_ns"), "1000");
    }
}

/// Gives the calling thread the precedence of callers on a machine of their own: an engine beside it must not keep its sends from
/// the core. Only some may; without it sends are late more often, and the figures say so. Gives the nice value that it has then.
pub(crate) fn take_precedence() -> Option<i32> {
    let _ = setpriority_process(None, -10);
    getpriority_process(None).ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn whoever_listens_is_found_and_its_cpu_read() {
        let listener_ = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener_.local_addr().unwrap().to_string();
        assert_eq!(listener(&address), Some(std::process::id()));
        assert!(is_here(&address) && process_cpu(std::process::id()).is_some() && thread_cpu() > Duration::ZERO);
        // A test is no engine.
        assert_eq!(engine(&address), None);
        let port = listener_.local_addr().unwrap().port();
        // Another address of this machine with the same port is somebody else, or nobody.
        assert_eq!(listener(&format!("127.0.0.2:{port}")), None);
        let other = TcpListener::bind(("127.0.0.2", port)).unwrap();
        drop(listener_);
        assert_eq!(listener(&address), None);
        drop(other);
        for any in ["0.0.0.0:0", "[::]:0"] {
            let Ok(listener_) = TcpListener::bind(any) else { continue };
            let port = listener_.local_addr().unwrap().port();
            assert_eq!(listener(&format!("127.0.0.1:{port}")), Some(std::process::id()), "{any}");
        }
        assert_eq!((listener("192.0.2.1:7443"), is_here("192.0.2.1:7443")), (None, false));
        assert_eq!(process_cpu(u32::MAX), None);
    }
}
