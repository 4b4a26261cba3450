//! Ports for programs that get a port number before they start.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port of the range. The range lies below the ports that Linux assigns by itself. A port that Linux assigns
/// can be in use by another connection when a program starts or restarts.
const FIRST: u16 = 20_000;
const COUNT: u32 = 7_000;
/// Distance between the starting ports of processes with consecutive process ids.
const APART: u32 = 97;

/// Returns ports of 127.0.0.1 without a listener. Calls in one process never return the same port, until the range
/// repeats.
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
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    [(); N].map(|()| (0..COUNT).map(|_| next()).find(is_free).expect("a free port"))
}

#[cfg(test)]
mod tests {
    use super::free_ports;

    #[test]
    fn no_port_is_given_twice() {
        let mut ports = [free_ports::<3>(), free_ports::<3>()].concat();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), 6);
    }
}
