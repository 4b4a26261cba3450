//! Bytes held for requests and replies: a bound over all connections, and one per connection.
//!
//! Pure bookkeeping in atomics. Over the global bound a call is refused; over its own bound a connection is not
//! read until it holds less. A reservation is made before memory is, and gives back on drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

/// What all connections hold together.
#[derive(Debug)]
pub struct GlobalBytes {
    used: AtomicUsize,
    max: usize,
    gauge: Gauge,
}

impl GlobalBytes {
    /// A budget of `max` bytes that shows its use in `gauge`.
    pub fn new(max: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max, gauge })
    }

    /// Bytes reserved now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn try_take(&self, bytes: usize) -> bool {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|used| *used <= self.max)
        });
        if taken.is_ok() {
            self.gauge.inc_by(signed(bytes));
        }
        taken.is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        // By the difference: to set what `used` was would let a late thread overwrite a newer number.
        self.gauge.dec_by(signed(bytes));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// What one connection holds.
#[derive(Debug)]
pub struct ConnectionBytes {
    global: Arc<GlobalBytes>,
    used: AtomicUsize,
    max: usize,
    lowered: Notify,
}

impl ConnectionBytes {
    /// A connection's share; it may pass `max` by the call that takes it there.
    pub fn new(global: Arc<GlobalBytes>, max: usize) -> Arc<Self> {
        Arc::new(Self { global, used: AtomicUsize::new(0), max, lowered: Notify::new() })
    }

    /// A reservation of no bytes, to grow.
    pub fn nothing(self: &Arc<Self>) -> Reservation {
        Reservation { connection: Arc::clone(self), bytes: 0 }
    }

    /// Waits until the connection holds no more than its bound. Safe to drop midway.
    pub async fn below_max(&self) {
        loop {
            let lowered = self.lowered.notified();
            if self.used.load(Ordering::Acquire) <= self.max {
                return;
            }
            lowered.await;
        }
    }
}

/// Bytes set aside; given back on drop.
#[derive(Debug)]
pub struct Reservation {
    connection: Arc<ConnectionBytes>,
    bytes: usize,
}

impl Reservation {
    /// Raises the reservation to `bytes`; `false`, and no change, when the global budget is spent.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 && !self.connection.global.try_take(more) {
            return false;
        }
        self.connection.used.fetch_add(more, Ordering::AcqRel);
        self.bytes += more;
        true
    }

    /// Bytes set aside.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Lowers the reservation to `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.connection.global.give_back(less);
        self.connection.used.fetch_sub(less, Ordering::AcqRel);
        self.connection.lowered.notify_one();
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserve(connection: &Arc<ConnectionBytes>, bytes: usize) -> Option<Reservation> {
        let mut reservation = connection.nothing();
        reservation.grow_to(bytes).then_some(reservation)
    }

    fn budget(global: usize, connection: usize) -> (Arc<GlobalBytes>, Arc<ConnectionBytes>) {
        let global = GlobalBytes::new(global, Gauge::default());
        (Arc::clone(&global), ConnectionBytes::new(global, connection))
    }

    #[test]
    fn what_is_reserved_is_given_back() {
        let (global, connection) = budget(100, 1_000);
        let mut first = reserve(&connection, 60).unwrap();
        assert!(reserve(&connection, 41).is_none());
        let second = reserve(&connection, 40).unwrap();
        assert!(!first.grow_to(61));
        assert_eq!(global.used(), 100);
        first.shrink_to(10);
        assert!(first.grow_to(60) && first.grow_to(20), "growing to less changes nothing");
        drop((first, second));
        assert_eq!((global.used(), connection.used.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn the_gauge_follows_from_any_thread() {
        let gauge = Gauge::default();
        let connection = ConnectionBytes::new(GlobalBytes::new(1_000, gauge.clone()), 1_000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|bytes| drop(reserve(&connection, bytes % 100))));
            }
        });
        assert_eq!(gauge.get(), 0);
    }

    #[tokio::test]
    async fn a_connection_over_its_bound_waits_until_it_holds_less() {
        let (_, connection) = budget(1_000, 50);
        let held = reserve(&connection, 60).unwrap();
        let waiting = tokio::spawn({
            let connection = Arc::clone(&connection);
            async move { connection.below_max().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        waiting.await.unwrap();
    }
}
