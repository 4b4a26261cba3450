//! Ports for programs that get a port number before they start.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The first port of the range. The range lies below the ports that Linux assigns by itself. A port
/// that Linux assigns can be in use by another connection when a program starts or restarts.
const FIRST: u16 = 20_000;
const COUNT: u32 = 7_000;
/// Distance between the starting ports of processes with consecutive process ids.
const APART: u32 = 97;

/// The reservations of this process, which end with the process.
static RESERVED: Mutex<Vec<(u16, UnixListener)>> = Mutex::new(Vec::new());

/// Returns ports of 127.0.0.1 without a listener. No other call gets such a port while this process
/// runs, in this process or in another.
///
/// # Panics
/// If all ports are taken.
#[must_use]
pub fn free_ports<const N: usize>() -> [u16; N] {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let next = || {
        let given = GIVEN.fetch_add(1, Ordering::Relaxed);
        FIRST + (process::id().wrapping_mul(APART).wrapping_add(given) % COUNT) as u16
    };
    [(); N].map(|()| {
        (0..COUNT)
            .map(|_| next())
            .find(|port| reserve(*port))
            .expect("a free port")
    })
}

/// Reserves `port` if no process has reserved it and nothing listens there. The reservation is a
/// Unix socket with an abstract name, which the kernel gives to one process at a time. Without a
/// reservation, the check whether a port is free would make the port look taken to a program that
/// starts there at this moment.
fn reserve(port: u16) -> bool {
    let name = format!("sealwire-test-port-{port}");
    let Ok(reservation) =
        SocketAddr::from_abstract_name(name).and_then(|name| UnixListener::bind_addr(&name))
    else {
        return false;
    };
    let is_free = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    if is_free {
        RESERVED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((port, reservation));
    }
    is_free
}

/// Listens on a port of [`free_ports`].
///
/// The check whether the port was free opened a listener. A process that was forked at that moment,
/// by this one, holds a copy of it until it runs its own program, so the port can be in use for a
/// while.
///
/// # Errors
/// The port is still taken after ten seconds, or cannot be used.
pub(crate) fn listen_on(port: u16) -> io::Result<TcpListener> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RESERVED, free_ports, listen_on, reserve};

    #[test]
    fn ports_are_not_given_twice() {
        let mut ports = [free_ports::<3>(), free_ports::<3>()].concat();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), 6);
    }

    #[test]
    fn a_port_is_reserved_before_and_after_something_listens_there() {
        let [port] = free_ports();
        assert!(!reserve(port));
        let listener = listen_on(port).unwrap();
        assert!(!reserve(port));
        drop(listener);
        assert!(!reserve(port));
    }

    #[test]
    fn a_port_with_a_listener_of_others_is_not_reserved() {
        let [port] = free_ports();
        // While the port is reserved: no other test takes it before the listener does.
        let listener = listen_on(port).unwrap();
        RESERVED
            .lock()
            .unwrap()
            .retain(|(reserved, _)| *reserved != port);
        assert!(!reserve(port));
        drop(listener);
        // A process that was forked meanwhile can hold the listener for a moment.
        drop(listen_on(port).unwrap());
        assert!((0..1_000).any(|_| reserve(port)));
    }
}
