//! Shares of clients: each client has permits of its own, so none can take all permits of a limit that clients share.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;

/// Entries of clients that left are removed when there are more than this, and twice as many as at the last removal.
const ENTRIES_MIN: usize = 64;

/// The client that a share is counted for.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum ClientId {
    /// The name in its certificate.
    Name(Arc<str>),
    /// The digest of its token.
    Token([u8; 32]),
    /// Its address, where clients are not authenticated. Of IPv6 the network of 64 bits, which one host can have.
    Address(IpAddr),
}

impl ClientId {
    /// A client that is known by its address.
    pub fn of_address(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => address,
        })
    }
}

impl fmt::Debug for ClientId {
    /// Without digests of tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "Name({name})"),
            Self::Token(_) => f.write_str("Token"),
            Self::Address(address) => write!(f, "Address({address})"),
        }
    }
}

/// One semaphore per client.
#[derive(Debug)]
pub struct ClientShares {
    permits: usize,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    shares: HashMap<ClientId, Weak<Semaphore>>,
    /// Entries at which those of clients that left are removed.
    sweep_at: usize,
}

impl ClientShares {
    /// Creates shares of this many permits.
    pub fn new(permits: usize) -> Self {
        Self { permits: permits.clamp(1, Semaphore::MAX_PERMITS), clients: Mutex::default() }
    }

    /// Returns the share of a client. Its permits must be taken from it as owned permits, which keep it alive: a client
    /// without a permit has its whole share again.
    pub fn of(&self, client: &ClientId) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = clients.shares.get(client).and_then(Weak::upgrade) {
            return share;
        }
        if clients.shares.len() >= clients.sweep_at.max(ENTRIES_MIN) {
            clients.shares.retain(|_, share| share.strong_count() > 0);
            clients.sweep_at = 2 * clients.shares.len();
        }
        let share = Arc::new(Semaphore::new(self.permits));
        clients.shares.insert(client.clone(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ClientId {
        ClientId::of_address(text.parse().unwrap())
    }

    #[test]
    fn a_client_is_one_however_it_connects() {
        for (one, other, is_same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("2001:db8::1", "2001:db8::ffff:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
        ] {
            assert_eq!(address(one) == address(other), is_same, "{one} {other}");
        }
        assert_ne!(ClientId::Token([0; 32]), ClientId::Token([1; 32]));
        assert_eq!(format!("{:?}", ClientId::Token([7; 32])), "Token");
    }

    #[test]
    fn a_client_has_its_share_and_no_other() {
        let shares = ClientShares::new(2);
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        let take = |client| shares.of(client).try_acquire_owned().ok();
        let held = [take(&one), take(&one)];
        assert!(held.iter().all(Option::is_some));
        assert!(take(&one).is_none());
        assert!(take(&other).is_some());
        drop(held);
        assert!(take(&one).is_some());
    }

    #[test]
    fn clients_that_left_are_forgotten() {
        let shares = ClientShares::new(1);
        let stays = shares.of(&address("10.1.0.0")).try_acquire_owned().unwrap();
        for last in 0..10_000_u32 {
            let client = ClientId::Address(IpAddr::V4(last.into()));
            drop(shares.of(&client).try_acquire_owned().unwrap());
        }
        assert!(shares.clients.lock().unwrap().shares.len() <= 2 * ENTRIES_MIN);
        assert!(shares.of(&address("10.1.0.0")).try_acquire_owned().is_err());
        drop(stays);
    }
}
