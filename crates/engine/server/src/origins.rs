//! Limits of clients without a certificate, by their address.
//!
//! Such a client is known only after it has sent a valid token. Until then its address stands for it:
//! connections per address are limited, and so are the memory for heads of requests whose token is
//! not checked yet and the rate of tokens that are not valid. The rate is
//! charged before a signature is checked and paid back if the token is valid, so a flood of forged
//! tokens costs no signature checks beyond the rate.
//!
//! Behind a proxy all clients have one address, and share its limits.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire_http::BodyAccount;
use sealwire_service::memory::{Account, Budget, leaves_enough_for_others};
use sealwire_settings::Limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::connection::Pace;
use crate::network_scheduler::{Flow, NetworkScheduler};

/// Longest wait of a token for its check, while others of the same address are not valid.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Part of all connections that can be open without a valid token so far.
const UNAUTHENTICATED_PART: usize = 4;
/// Part of those connections that one address can have.
const UNAUTHENTICATED_PART_PER_ORIGIN: usize = 4;
/// Memory for heads of requests whose token is not checked yet, of all addresses.
const HEAD_BYTES_MAX: usize = 4 << 20;
/// The same of one address: 256 heads of up to 4 KiB.
const HEAD_BYTES_PER_ORIGIN_MAX: usize = 1 << 20;
/// Detail of the error if that memory is in use.
const HEADS_IN_USE: &str = "too many requests wait for the check of their tokens";

/// The addresses of clients without a certificate.
pub(crate) struct Origins {
    known: Mutex<HashMap<IpAddr, KnownOrigin>>,
    /// Permits for connections that have sent no valid token yet.
    unauthenticated: Arc<Semaphore>,
    /// Number of all these permits.
    unauthenticated_max: usize,
    connections_max: usize,
    rejected_per_s_max: u32,
    network: NetworkScheduler,
    /// The share of the network threads for all connections without a valid token so far. With
    /// shares of their own, many addresses would leave little to principals.
    unauthenticated_network: Arc<Flow>,
    heads: Budget,
}

struct KnownOrigin {
    connections: usize,
    origin: Arc<Origin>,
}

/// State that all connections of an address share.
pub(crate) struct Origin {
    pace: Pace,
    /// Connections that have sent no valid token yet.
    unauthenticated: AtomicUsize,
    /// Permit of the token that is next to be charged, so that tokens are checked in their order.
    next: Semaphore,
    /// The share of the network threads for TLS and HTTP of connections after a valid token.
    network: Arc<Flow>,
    heads: Budget,
}

/// Counts a connection until it is dropped.
pub(crate) struct OriginEntry {
    origins: Arc<Origins>,
    address: IpAddr,
    origin: Arc<Origin>,
    /// Held until the first valid token.
    unauthenticated: Mutex<Option<UnauthenticatedConnection>>,
    is_authenticated: watch::Sender<bool>,
}

/// Counts a connection without a valid token until it is dropped.
struct UnauthenticatedConnection {
    origin: Arc<Origin>,
    _permit: OwnedSemaphorePermit,
}

/// A token that was charged before its check. Dropping it leaves the charge.
pub(crate) struct ChargedToken<'a>(&'a Origin);

impl Origins {
    pub(crate) fn new(limits: &Limits, network: &NetworkScheduler) -> Arc<Self> {
        let unauthenticated_max = (limits.connections_max / UNAUTHENTICATED_PART).max(1);
        Arc::new(Self {
            known: Mutex::default(),
            unauthenticated: Arc::new(Semaphore::new(unauthenticated_max)),
            unauthenticated_max,
            connections_max: limits.connections_per_principal_max,
            rejected_per_s_max: limits.rejected_per_s_max,
            network: network.clone(),
            unauthenticated_network: network.flow(),
            heads: Budget::new(HEAD_BYTES_MAX, HEADS_IN_USE),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, KnownOrigin>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection. Returns `None` if its address has too many, or if too many connections
    /// of this address or of all addresses have sent no valid token yet.
    pub(crate) fn register(self: &Arc<Self>, address: IpAddr) -> Option<OriginEntry> {
        let permit = Arc::clone(&self.unauthenticated).try_acquire_owned().ok()?;
        let address = origin_of(address);
        let mut known = self.lock();
        // An address without connections is remembered until it has made its pause.
        let now = Instant::now();
        known.retain(|_, known| known.connections > 0 || known.origin.pace.owes(now));

        let known = known.entry(address).or_insert_with(|| KnownOrigin {
            connections: 0,
            origin: Arc::new(Origin {
                pace: Pace::new(self.rejected_per_s_max),
                unauthenticated: AtomicUsize::new(0),
                next: Semaphore::new(1),
                network: self.network.flow(),
                heads: Budget::new(HEAD_BYTES_PER_ORIGIN_MAX, HEADS_IN_USE),
            }),
        });
        if known.connections >= self.connections_max {
            return None;
        }
        // The count grows only under the lock of the table. The permit is taken already.
        let used = known.origin.unauthenticated.load(Ordering::Relaxed) + 1;
        if !self.leaves_enough_for_others(used) {
            return None;
        }
        known.origin.unauthenticated.fetch_add(1, Ordering::Relaxed);
        known.connections += 1;
        let unauthenticated = UnauthenticatedConnection {
            origin: Arc::clone(&known.origin),
            _permit: permit,
        };
        Some(OriginEntry {
            origins: Arc::clone(self),
            address,
            origin: Arc::clone(&known.origin),
            unauthenticated: Mutex::new(Some(unauthenticated)),
            is_authenticated: watch::Sender::new(false),
        })
    }

    /// Returns true if an address with `used` connections without a valid token leaves enough of
    /// them to other addresses. Otherwise one address could keep out all clients with valid tokens.
    fn leaves_enough_for_others(&self, used: usize) -> bool {
        let total = self.unauthenticated_max;
        let share = (total / UNAUTHENTICATED_PART_PER_ORIGIN).max(1);
        let left = self.unauthenticated.available_permits() + used;
        used <= share && leaves_enough_for_others(used, left, share, total)
    }
}

impl OriginEntry {
    /// Returns the share of the network threads for new tasks of the connection.
    pub(crate) fn network(&self) -> &Arc<Flow> {
        if *self.is_authenticated.borrow() {
            &self.origin.network
        } else {
            &self.origins.unauthenticated_network
        }
    }

    /// Runs a future of the connection. It uses the share of all connections without a valid token
    /// until the first valid token, and then that of its address.
    pub(crate) async fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let unauthenticated = Arc::clone(&self.origins.unauthenticated_network);
        tokio::select! {
            biased;
            output = unauthenticated.run(future.as_mut()) => return output,
            () = self.wait_until_authenticated() => (),
        }
        Arc::clone(&self.origin.network).run(future).await
    }

    async fn wait_until_authenticated(&self) {
        let mut changes = self.is_authenticated.subscribe();
        // The sender lives as long as `self`.
        let _ = changes.wait_for(|is_authenticated| *is_authenticated).await;
    }

    /// Returns the memory for heads of requests whose token is not checked yet: that of the
    /// address, and that of all addresses.
    pub(crate) fn head_memory(&self) -> BodyAccount {
        Account {
            budgets: [self.origin.heads.clone(), self.origins.heads.clone()],
        }
    }

    /// Notes that the connection has sent a valid token, and that its principal has a session.
    pub(crate) fn authenticated(&self) {
        let mut unauthenticated = self
            .unauthenticated
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if unauthenticated.take().is_some() {
            self.is_authenticated.send_replace(true);
        }
    }

    /// Charges the address for a token, before it is checked. Waits while earlier tokens of the
    /// address were not valid at too high a rate.
    ///
    /// # Errors
    /// The pause to make, if the wait is too long.
    pub(crate) async fn charge(&self) -> Result<ChargedToken<'_>, Duration> {
        let origin = &*self.origin;
        let charging = async {
            // The semaphore is never closed. It serves waiting tokens in their order.
            let _next = origin.next.acquire().await;
            while let Some(until) = origin.pace.pause(Instant::now()) {
                sleep_until(until).await;
            }
            origin.pace.count_rejection(Instant::now());
        };
        match timeout(WAIT_MAX, charging).await {
            Ok(()) => Ok(ChargedToken(origin)),
            Err(_) => Err(WAIT_MAX),
        }
    }

    /// Charges the address for a request without a token that could be checked. Returns the pause
    /// that the address must make, if any.
    pub(crate) fn charge_rejected(&self) -> Option<Duration> {
        let now = Instant::now();
        // A token that waits for its check goes first. Otherwise requests without tokens would take
        // each place before it.
        let is_token_waiting = self.origin.next.available_permits() == 0;
        if is_token_waiting && self.origin.pace.owes(now) {
            return Some(WAIT_MAX);
        }
        let pause = self.origin.pace.pause(now);
        if pause.is_none() {
            self.origin.pace.count_rejection(now);
        }
        pause.map(|until| until - now)
    }
}

impl ChargedToken<'_> {
    /// Pays back a token that is valid.
    pub(crate) fn refund(self) {
        self.0.pace.refund_rejection();
    }
}

impl Drop for UnauthenticatedConnection {
    fn drop(&mut self) {
        self.origin.unauthenticated.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for OriginEntry {
    fn drop(&mut self) {
        let mut known = self.origins.lock();
        if let Some(known) = known.get_mut(&self.address) {
            known.connections -= 1;
        }
    }
}

/// Returns the address that stands for a client. A network of IPv6 with 64 bits is one client, since
/// its members choose their addresses.
fn origin_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(change: impl FnOnce(&mut Limits)) -> Arc<Origins> {
        let mut limits = Limits::default();
        change(&mut limits);
        Origins::new(&limits, &NetworkScheduler::new(1))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn origins_are_addresses_and_networks() {
        for (address, origin) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("::1", "::"),
        ] {
            assert_eq!(origin_of(ip(address)), ip(origin), "{address}");
        }
    }

    #[test]
    fn connections_are_limited_per_address_and_until_the_first_token() {
        let origins = origins(|limits| {
            limits.connections_per_principal_max = 2;
            limits.connections_max = 12;
        });
        let first = origins.register(ip("192.0.2.1")).unwrap();
        assert!(
            origins.register(ip("192.0.2.1")).is_none(),
            "one of one without a token"
        );
        first.authenticated();
        let second = origins.register(ip("192.0.2.1")).unwrap();
        second.authenticated();
        assert!(origins.register(ip("192.0.2.1")).is_none(), "two of two");
        let third = origins.register(ip("192.0.2.2")).unwrap();
        let others = ["192.0.2.3", "192.0.2.4"].map(|other| origins.register(ip(other)).unwrap());
        assert!(
            origins.register(ip("192.0.2.5")).is_none(),
            "three of three without a token"
        );
        third.authenticated();
        let fourth = origins.register(ip("192.0.2.5")).unwrap();
        drop(first);
        drop(fourth);
        let again = origins.register(ip("192.0.2.1")).unwrap();
        drop((second, third, again, others));
        assert_eq!(origins.unauthenticated.available_permits(), 3);
        let _last = origins.register(ip("192.0.2.9")).unwrap();
        assert_eq!(origins.lock().len(), 1, "others are forgotten");
    }

    #[test]
    fn connections_of_one_address_leave_some_to_others() {
        let origins = origins(|_| ());
        let total = origins.unauthenticated_max;
        let fill = |address: &str| -> Vec<OriginEntry> {
            (0..=total)
                .map_while(|_| origins.register(ip(address)))
                .collect()
        };
        let mut first = fill("192.0.2.1");
        assert_eq!(first.len(), total / 4);
        // Each further address leaves a part of what the others leave.
        let mut held = Vec::new();
        for number in 2..=5 {
            let address = format!("192.0.2.{number}");
            let others = fill(&address);
            assert!(!others.is_empty(), "{address}");
            assert!(origins.unauthenticated.available_permits() > 0, "{address}");
            held.push(others);
        }
        drop(held);

        // Connections with a valid token do not count, and closed ones no longer do.
        assert!(origins.register(ip("192.0.2.1")).is_none());
        first[0].authenticated();
        first[0].authenticated();
        let again = origins.register(ip("192.0.2.1")).unwrap();
        assert!(origins.register(ip("192.0.2.1")).is_none());
        drop(again);
        first.truncate(1);
        let origin = Arc::clone(&first[0].origin);
        assert_eq!(origin.unauthenticated.load(Ordering::Relaxed), 0);
        drop(first);
        assert_eq!(origin.unauthenticated.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn connections_share_one_flow_until_the_first_token() {
        let origins = origins(|_| ());
        let entries = ["192.0.2.1", "192.0.2.2"].map(|one| origins.register(ip(one)).unwrap());
        let shared = &origins.unauthenticated_network;
        for entry in &entries {
            assert!(Arc::ptr_eq(entry.network(), shared));
            assert_eq!(entry.run(std::future::ready(7)).await, 7);
        }

        let [first, second] = &entries;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let running = first.run(async {
            first.authenticated();
            tokio::task::yield_now().await;
            // The connection runs on with the share of its address, and uses some of it.
            std::thread::sleep(Duration::from_millis(1));
            receiver.await
        });
        let (output, sent) = tokio::join!(running, async {
            first.wait_until_authenticated().await;
            sender.send(8)
        });
        assert_eq!((output, sent), (Ok(8), Ok(())));
        assert!(Arc::ptr_eq(first.network(), &first.origin.network));
        assert!(!first.origin.network.used()[0].is_zero());
        assert!(Arc::ptr_eq(second.network(), shared));
        assert!(second.origin.network.used()[0].is_zero());
    }

    #[test]
    fn heads_of_one_address_leave_memory_to_others() {
        let origins = origins(|_| ());
        let connections: Vec<_> = [1, 1, 2]
            .iter()
            .map(|host| origins.register(ip(&format!("192.0.2.{host}"))).unwrap())
            .collect();
        let mut held = Vec::new();
        for number in 0.. {
            let mut head = connections[number % 2].head_memory().new_reservation();
            if head.grow_to(16 << 10).is_err() {
                break;
            }
            held.push(head);
        }
        assert_eq!(held.len(), HEAD_BYTES_PER_ORIGIN_MAX / (16 << 10));
        let mut other = connections[2].head_memory().new_reservation();
        assert!(other.grow_to(16 << 10).is_ok());
        held.pop();
        let mut head = connections[0].head_memory().new_reservation();
        assert!(head.grow_to(16 << 10).is_ok());
    }

    /// Returns how many rejected requests an address can send now before it must pause.
    fn count_unpaused(entry: &OriginEntry) -> usize {
        (0..10_000)
            .take_while(|_| entry.charge_rejected().is_none())
            .count()
    }

    #[tokio::test(start_paused = true)]
    async fn invalid_tokens_are_limited_and_valid_ones_are_not() {
        let origins = origins(|limits| limits.rejected_per_s_max = 100);
        let entry = origins.register(ip("192.0.2.1")).unwrap();
        let start = Instant::now();
        for _ in 0..1_000 {
            entry.charge().await.unwrap().refund();
        }
        assert_eq!(start.elapsed(), Duration::ZERO);

        let mut checked = 0;
        while start.elapsed() < Duration::from_secs(10) {
            if entry.charge().await.is_ok() {
                checked += 1;
            }
        }
        assert!((1_000..=1_030).contains(&checked), "{checked}");
        // Another connection does not help, also after the first one has ended.
        drop(entry);
        let entry = origins.register(ip("192.0.2.1")).unwrap();
        let other = origins.register(ip("192.0.2.2")).unwrap();
        assert!(count_unpaused(&entry) < count_unpaused(&other));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_wait_too_long_are_not_checked() {
        let origins = origins(|limits| limits.rejected_per_s_max = 10);
        let entry = origins.register(ip("192.0.2.1")).unwrap();
        let charges: Vec<_> = (0..100).map(|_| entry.charge()).collect();
        let mut checked = 0;
        for charged in futures_in_order(charges).await {
            checked += u32::from(charged);
        }
        assert!((10..=13).contains(&checked), "{checked}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_token_yield_to_waiting_tokens() {
        let origins = origins(|limits| limits.rejected_per_s_max = 100);
        let entry = origins.register(ip("192.0.2.1")).unwrap();
        while entry.charge_rejected().is_none() {}

        // A flood asks for each place before the token can.
        let flood = async {
            for _ in 0..10_000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert_eq!(entry.charge_rejected(), Some(WAIT_MAX));
            }
        };
        tokio::select! {
            biased;
            charged = entry.charge() => assert!(charged.is_ok(), "the token waits too long"),
            () = flood => panic!("the token waits longer than the flood"),
        }

        // Without a waiting token, the rate is theirs.
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(entry.charge_rejected(), None);
        let other = origins.register(ip("192.0.2.2")).unwrap();
        assert_eq!(other.charge_rejected(), None);
    }

    /// Polls all futures together. Returns for each whether it succeeded.
    async fn futures_in_order<'a>(
        futures: Vec<impl Future<Output = Result<ChargedToken<'a>, Duration>>>,
    ) -> Vec<bool> {
        let mut futures: Vec<_> = futures
            .into_iter()
            .map(|future| Some(Box::pin(future)))
            .collect();
        let mut done = vec![false; futures.len()];
        std::future::poll_fn(|context| {
            for (at, slot) in futures.iter_mut().enumerate() {
                if let Some(future) = slot
                    && let std::task::Poll::Ready(charged) = future.as_mut().poll(context)
                {
                    done[at] = charged.is_ok();
                    *slot = None;
                }
            }
            if futures.iter().all(Option::is_none) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
        done
    }
}
