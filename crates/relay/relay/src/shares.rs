//! Shares of clients: each client has its own permits, so no client can take all permits of a
//! shared limit.
//!
//! A host can appear as several clients: with addresses in several networks, or with an address on
//! one listener and a name or token on another. A client must therefore leave a part of the
//! permits that other clients do not use
//! ([`leaves_enough_for_others`](sealwire_service::memory::leaves_enough_for_others)). A few clients together
//! then leave a part too.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use http::HeaderMap;
use tokio::sync::Semaphore;

/// Number of entries from which entries of disconnected clients are removed. A removal also needs
/// twice as many entries as remained after the last one.
const ENTRIES_MIN: usize = 64;

/// The client that a share belongs to.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum ClientId {
    /// The name in the client's certificate.
    Name(Arc<str>),
    /// The digest of the client's token.
    Token([u8; 32]),
    /// The client's address, where clients are not authenticated. For IPv6 this is the network,
    /// since one host can have all its addresses.
    Address(IpAddr),
}

impl ClientId {
    /// Creates the id of a client that is known by its address. Only the first `ipv6_bits` bits of
    /// an IPv6 address count.
    pub fn of_address(address: IpAddr, ipv6_bits: u8) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let rest = 128_u32.saturating_sub(ipv6_bits.into());
                let network = address.to_bits().checked_shr(rest).unwrap_or(0);
                IpAddr::V6(network.checked_shl(rest).unwrap_or(0).into())
            }
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// Returns the client's address as seen by the proxy in front of the relay: the last one of
/// `X-Forwarded-For`, which the proxy adds. The client can invent earlier ones. Returns `None` if
/// the last one is missing or not an address.
pub fn forwarded_address(headers: &HeaderMap) -> Option<IpAddr> {
    let last = headers
        .get_all("x-forwarded-for")
        .iter()
        .next_back()?
        .to_str()
        .ok()?;
    let last = last.rsplit(',').next()?.trim();
    if let Ok(address) = last.parse() {
        return Some(address);
    }
    if let Ok(address) = last.parse::<SocketAddr>() {
        return Some(address.ip());
    }
    last.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

impl fmt::Debug for ClientId {
    /// Omits digests of tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "Name({name})"),
            Self::Token(_) => f.write_str("Token"),
            Self::Address(address) => write!(f, "Address({address})"),
        }
    }
}

/// A semaphore per client.
#[derive(Debug)]
pub struct ClientShares {
    permits: usize,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    shares: HashMap<ClientId, Weak<Semaphore>>,
    /// Number of entries at which entries of disconnected clients are removed.
    sweep_at: usize,
}

impl ClientShares {
    /// Creates shares with `permits` permits each.
    pub fn new(permits: usize) -> Self {
        Self {
            permits: permits.clamp(1, Semaphore::MAX_PERMITS),
            clients: Mutex::default(),
        }
    }

    /// Returns the number of permits of one client.
    pub const fn permits_per_client(&self) -> usize {
        self.permits
    }

    /// Returns the share of a client. Permits must be taken from it as owned permits, which keep
    /// the share alive. A client without a permit has its whole share again.
    pub fn share_of(&self, client: &ClientId) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = clients.shares.get(client).and_then(Weak::upgrade) {
            return share;
        }
        if clients.shares.len() >= clients.sweep_at.max(ENTRIES_MIN) {
            clients.shares.retain(|_, share| share.strong_count() > 0);
            clients.sweep_at = 2 * clients.shares.len();
        }
        let share = Arc::new(Semaphore::new(self.permits));
        clients
            .shares
            .insert(client.clone(), Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> ClientId {
        ClientId::of_address(text.parse().unwrap(), 56)
    }

    #[test]
    fn the_network_of_an_ipv6_address_has_the_configured_length() {
        let network = |bits| {
            format!(
                "{:?}",
                ClientId::of_address("2001:db8:ffff:ffff:ffff::1".parse().unwrap(), bits)
            )
        };
        for (bits, expected) in [
            (128, "Address(2001:db8:ffff:ffff:ffff::1)"),
            (64, "Address(2001:db8:ffff:ffff::)"),
            (56, "Address(2001:db8:ffff:ff00::)"),
            (48, "Address(2001:db8:ffff::)"),
            (0, "Address(::)"),
        ] {
            assert_eq!(network(bits), expected);
        }
    }

    #[test]
    fn the_last_address_is_that_of_the_proxy() {
        for (lines, expected) in [
            (&["192.0.2.1"][..], Some("192.0.2.1")),
            (&["10.0.0.1, 192.0.2.1"], Some("192.0.2.1")),
            (&["10.0.0.1", "10.0.0.2,192.0.2.1"], Some("192.0.2.1")),
            (&["192.0.2.1:8080"], Some("192.0.2.1")),
            (&["[2001:db8::1]:8080"], Some("2001:db8::1")),
            (&["[2001:db8::1]"], Some("2001:db8::1")),
            (&["2001:db8::1"], Some("2001:db8::1")),
            (&[], None),
            (&[""], None),
            (&["192.0.2.1,"], None),
            (&["192.0.2.1, unknown"], None),
            (&["192.0.2.1, _hidden"], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().unwrap());
            }
            assert_eq!(
                forwarded_address(&headers),
                expected.map(|text| text.parse().unwrap()),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_client_is_one_however_it_connects() {
        for (one, other, is_same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("2001:db8::1", "2001:db8::ffff:2", true),
            ("2001:db8::1", "2001:db8:0:ff::1", true),
            ("2001:db8::1", "2001:db8:0:100::1", false),
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
        let take = |client| shares.share_of(client).try_acquire_owned().ok();
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
        let stays = shares
            .share_of(&address("10.1.0.0"))
            .try_acquire_owned()
            .unwrap();
        for last in 0..10_000_u32 {
            let client = ClientId::Address(IpAddr::V4(last.into()));
            drop(shares.share_of(&client).try_acquire_owned().unwrap());
        }
        assert!(shares.clients.lock().unwrap().shares.len() <= 2 * ENTRIES_MIN);
        assert!(
            shares
                .share_of(&address("10.1.0.0"))
                .try_acquire_owned()
                .is_err()
        );
        drop(stays);
    }
}
