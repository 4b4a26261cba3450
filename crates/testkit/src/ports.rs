//! Ports for programs that are told theirs before they start.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first of them. They lie below those that Linux hands out by itself, one of which may be anybody's connection by the
/// time that a program starts, or starts again.
const FIRST: u16 = 20_000;
const COUNT: u32 = 7_000;
/// How far apart processes begin whose numbers follow each other.
const APART: u32 = 97;

/// Ports of 127.0.0.1 that nobody listens at. No two calls in a process get the same.
///
/// # Panics
/// All are taken.
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
