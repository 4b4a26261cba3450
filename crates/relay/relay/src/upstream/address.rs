//! Resolves an upstream's name, checks the addresses against policy, and dials a checked address.
//!
//! The connection goes to the address that was checked. A name that changes its address between the
//! check and the connection (DNS rebinding) therefore gains nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};

use super::Upstream;
use super::error::{Stage, UpstreamError};
use crate::shares::{ClientId, ClientShares};

/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Most concurrent look-ups of different names. Each occupies a thread of tokio's pool of 512 until
/// the system's resolver responds, even if no task waits for it any more. The rest of the pool is
/// for files, such as certificates.
const LOOKUPS_MAX: usize = 64;
/// Most concurrent look-ups of one client. Further look-ups of the client wait.
const LOOKUPS_PER_CLIENT_MAX: usize = 8;

/// The addresses of a name once they are known, or a text that tells why the look-up failed.
type Outcome = Option<Result<Vec<SocketAddr>, Arc<str>>>;
/// Running look-ups, by name in lower case.
type Running = BTreeMap<Box<str>, watch::Receiver<Outcome>>;

/// Running look-ups. Look-ups for one name share a thread, so a name whose servers do not respond
/// occupies only one thread.
#[derive(Debug)]
struct Lookups {
    permits: Semaphore,
    clients: ClientShares,
    running: Mutex<Running>,
}

static OF_UPSTREAMS: LazyLock<Lookups> = LazyLock::new(Lookups::new);
static OF_TUNNELS: LazyLock<Lookups> = LazyLock::new(Lookups::new);

/// Source of the host in a look-up.
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// The configuration.
    OfUpstream,
    /// A client. Such look-ups delay neither those of upstreams nor those of other clients.
    OfTunnel(&'a ClientId),
}

impl Lookup<'_> {
    async fn run(self, host: &str) -> io::Result<Vec<SocketAddr>> {
        match self {
            Self::OfUpstream => OF_UPSTREAMS.run(host, None, look_up).await,
            Self::OfTunnel(client) => OF_TUNNELS.run(host, Some(client), look_up).await,
        }
    }
}

/// Requests the addresses of a name from the system's resolver. Blocks.
fn look_up(host: &str) -> io::Result<Vec<SocketAddr>> {
    Ok((host, 0).to_socket_addrs()?.collect())
}

impl Lookups {
    fn new() -> Self {
        Self {
            permits: Semaphore::const_new(LOOKUPS_MAX),
            clients: ClientShares::new(LOOKUPS_PER_CLIENT_MAX),
            running: Mutex::default(),
        }
    }

    /// Runs a blocking look-up, or waits for one that already runs for the name.
    async fn run(
        &'static self,
        host: &str,
        client: Option<&ClientId>,
        look_up: impl FnOnce(&str) -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        let key = host.to_ascii_lowercase().into_boxed_str();
        let found = self.lock_running().get(&key).cloned();
        let mut outcome = match found {
            Some(outcome) => outcome,
            None => {
                // The share and the permit are held until the system's resolver responds.
                let share = match client {
                    Some(client) => Some(
                        self.clients
                            .share_of(client)
                            .acquire_owned()
                            .await
                            .map_err(io::Error::other)?,
                    ),
                    None => None,
                };
                let permit = self.permits.acquire().await.map_err(io::Error::other)?;
                // Another task may have started a look-up for the name while this task waited for a
                // permit.
                match self.lock_running().entry(key) {
                    Entry::Occupied(entry) => entry.get().clone(),
                    Entry::Vacant(entry) => {
                        let key = entry.key().clone();
                        let (sender, outcome) = watch::channel(None);
                        entry.insert(outcome.clone());
                        tokio::task::spawn_blocking(move || {
                            let _permits = (permit, share);
                            let found = look_up(&key).map_err(|error| error.to_string().into());
                            self.lock_running().remove(&key);
                            let _ = sender.send(Some(found));
                        });
                        outcome
                    }
                }
            }
        };
        let found = outcome
            .wait_for(Option::is_some)
            .await
            .map_err(io::Error::other)?;
        let found = (*found).clone().unwrap_or_else(|| Ok(Vec::new()));
        found.map_err(|error| io::Error::other(error.to_string()))
    }

    fn lock_running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// IPv4 networks without public hosts (IANA's special-purpose address registry), as address and
/// prefix length.
const V4_SPECIAL: [([u8; 4], u32); 16] = [
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    // Azure's virtual host, which the registry does not list.
    ([168, 63, 129, 16], 32),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Networks within 2000::/3 that have no public hosts or embed an IPv4 address: Teredo and other
/// protocol assignments, documentation, 6to4. All addresses outside 2000::/3 are special too:
/// loopback, mapped, NAT64, ULA, link-local, multicast.
const V6_SPECIAL: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

/// Addresses at which clouds give credentials to any client. A wider network in the configuration
/// does not include them.
const METADATA: [&str; 11] = [
    // Link-local addresses: AWS, Azure, Google, Scaleway and most others.
    "169.254.0.0/16",
    "fe80::/10",
    // Azure's virtual host, Alibaba, Oracle.
    "168.63.129.16/32",
    "100.100.100.200/32",
    "192.0.0.192/32",
    // AWS, Google, Scaleway, Linode and Oracle over IPv6.
    "fd00:ec2::254/128",
    "fd00:ec2::23/128",
    "fd20:ce::254/128",
    "fd00:42::42/128",
    "fd00:a9fe:a9fe::1/128",
    "fd00:c1::a9fe:a9fe/128",
];

/// [`METADATA`], parsed once.
static METADATA_ADDRESSES: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    METADATA
        .iter()
        .filter_map(|text| text.parse().ok())
        .collect()
});

/// Returns true if an upstream may have this address: it is in one of `networks`, or `networks` is
/// empty and it is public. A link-local address or the address of a metadata service must be listed
/// alone, as a network of one address.
pub fn is_allowed(address: IpAddr, networks: &[IpNet]) -> bool {
    if networks.is_empty() {
        return is_public(address);
    }
    let is_metadata = is_metadata_address(address)
        || embedded_addresses(address)
            .into_iter()
            .any(|v4| is_metadata_address(v4.into()));
    networks.iter().any(|network| {
        network.contains(&address)
            && (!is_metadata || network.prefix_len() == network.max_prefix_len())
    })
}

fn is_metadata_address(address: IpAddr) -> bool {
    METADATA_ADDRESSES
        .iter()
        .any(|network| network.contains(&address))
}

/// Returns the IPv4 addresses that an IPv6 address can lead to: those of mapped, translated, NAT64
/// and 6to4 addresses. A local NAT64 prefix can have any length that RFC 6052, section 2.2, and RFC
/// 8215 allow.
fn embedded_addresses(address: IpAddr) -> Vec<Ipv4Addr> {
    let IpAddr::V6(v6) = address else {
        return Vec::new();
    };
    let bits = v6.to_bits();
    let last = bits as u32;
    let found = match v6.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, ..]
        | [0, 0, 0, 0, 0xffff, 0, ..]
        | [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![last],
        [0x2002, ..] => vec![(bits >> 80) as u32],
        [0x64, 0xff9b, 1, ..] => {
            // Skip bits 64 to 71 (RFC 6052, section 2.2).
            let joined = (bits >> 64 << 64) | (bits << 72 >> 64);
            [48, 56, 64]
                .map(|prefix| (joined << prefix >> 96) as u32)
                .into_iter()
                .chain([last])
                .collect()
        }
        _ => Vec::new(),
    };
    found.into_iter().map(Ipv4Addr::from_bits).collect()
}

fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            !V4_SPECIAL.iter().any(|(network, length)| {
                (bits ^ Ipv4Addr::from(*network).to_bits()) >> (32 - length) == 0
            })
        }
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            let is_special = V6_SPECIAL
                .iter()
                .any(|(network, length)| (bits ^ network.to_bits()) >> (128 - length) == 0);
            bits >> 125 == 0b001 && !is_special
        }
    }
}

/// Resolves a host once. Dropping the future is safe.
///
/// # Errors
///
/// [`Stage::Resolve`] if the host has no addresses. [`Stage::Denied`] if any address is not
/// allowed: a name with public and private addresses is either misconfigured or an attack.
pub async fn resolve(
    host: &str,
    port: u16,
    networks: &[IpNet],
    lookup: Lookup<'_>,
) -> Result<Vec<SocketAddr>, UpstreamError> {
    let mut found = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => lookup
            .run(host)
            .await
            .map_err(|error| UpstreamError::before_sending(Stage::Resolve).with_cause(error))?,
    };
    found.iter_mut().for_each(|address| address.set_port(port));
    if found.is_empty() {
        return Err(UpstreamError::before_sending(Stage::Resolve));
    }
    if !found
        .iter()
        .all(|address| is_allowed(address.ip(), networks))
    {
        return Err(UpstreamError::before_sending(Stage::Denied));
    }
    Ok(found)
}

/// Resolves, checks and connects. Addresses are tried in order. Each gets an equal share of the
/// remaining connect timeout, so that one silent address does not use it up. The caller must apply
/// that timeout to the whole call.
pub async fn dial_upstream(upstream: &Upstream) -> Result<TcpStream, UpstreamError> {
    dial_host(
        &upstream.host,
        upstream.port,
        &upstream.addresses,
        upstream.connect_timeout,
        Lookup::OfUpstream,
    )
    .await
}

/// Dials a host that is not an upstream, as [`dial_upstream`] does. If `networks` is empty, its addresses
/// must be public.
pub async fn dial_host(
    host: &str,
    port: u16,
    networks: &[IpNet],
    connect_timeout: Duration,
    lookup: Lookup<'_>,
) -> Result<TcpStream, UpstreamError> {
    let end = tokio::time::Instant::now() + connect_timeout;
    let addresses = resolve(host, port, networks, lookup).await?;
    let tried = addresses.len().min(ADDRESSES_MAX);
    let mut last = UpstreamError::before_sending(Stage::Connect);
    for (index, address) in addresses.into_iter().take(tried).enumerate() {
        let rest = end.saturating_duration_since(tokio::time::Instant::now());
        match tokio::time::timeout(rest / (tried - index) as u32, TcpStream::connect(address)).await
        {
            Ok(Ok(stream)) => {
                // Each request is written at once, and Nagle's algorithm would delay the last segment.
                stream.set_nodelay(true).map_err(|error| {
                    UpstreamError::before_sending(Stage::Connect).with_cause(error)
                })?;
                return Ok(stream);
            }
            Ok(Err(error)) => {
                last = UpstreamError::before_sending(Stage::Connect).with_cause(error)
            }
            Err(_) => last = UpstreamError::before_sending(Stage::ConnectTimeout),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        let special = "0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 100.127.255.255 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1
            172.31.255.255 192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9
            224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 168.63.129.16 100.100.100.200 192.0.0.192 169.254.170.2
            :: ::1 ::7f00:1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 64:ff9b::808:808 64:ff9b:1::1 100::1 2001::1 2001:db8::1
            2001:10::1 2002:7f00:1:: 3fff::1 5f00::1 fc00::1 fd12::1 fd00:ec2::254 fd20:ce::254 fe80::1 fec0::1 ff02::1";
        for address in special.split_whitespace() {
            assert!(!is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
        let public = "1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 172.15.255.255
            172.32.0.0 191.255.255.255 198.17.255.255 198.20.0.0 223.255.255.255 2001:200::1 2001:4860:4860::8888
            2003::1 2606:4700::1111 3ffe::1";
        for address in public.split_whitespace() {
            assert!(is_allowed(address.parse().unwrap(), &[]), "{address}");
        }
    }

    #[test]
    fn networks_replace_the_policy() {
        let networks: Vec<IpNet> = ["10.2.0.0/16", "fd00::/8"]
            .iter()
            .map(|text| text.parse().unwrap())
            .collect();
        let cases = [
            ("10.2.3.4", true),
            ("fd00::1", true),
            ("10.3.0.1", false),
            ("8.8.8.8", false),
            ("::ffff:10.2.3.4", false),
        ];
        for (address, expected) in cases {
            assert_eq!(
                is_allowed(address.parse().unwrap(), &networks),
                expected,
                "{address}"
            );
        }
    }

    #[test]
    fn addresses_of_metadata_services_are_in_no_wide_network() {
        for (network, address, expected) in [
            ("0.0.0.0/0", "169.254.169.254", false),
            ("169.254.0.0/16", "169.254.169.254", false),
            ("169.254.169.254/32", "169.254.169.254", true),
            ("169.254.0.0/16", "169.254.1.1", false),
            ("169.254.1.0/31", "169.254.1.1", false),
            ("169.254.1.1/32", "169.254.1.1", true),
            ("169.254.0.0/16", "169.254.42.42", false),
            ("fe80::/10", "fe80::1", false),
            ("fe80::/10", "fe80::a9fe:a9fe", false),
            ("fe80::1/128", "fe80::1", true),
            ("fd00::/8", "fd00:42::42", false),
            ("fd00::/8", "fd00:a9fe:a9fe::1", false),
            ("fd00::/8", "fd00:c1::a9fe:a9fe", false),
            ("fd00::/8", "fd00:42::43", true),
            ("64:ff9b:1::/48", "64:ff9b:1::a9fe:a9fe", false),
            ("64:ff9b:1::/48", "64:ff9b:1:7::a9fe:a9fe", false),
            ("64:ff9b:1::/48", "64:ff9b:1:a9fe:a9:fe00::", false),
            ("64:ff9b:1::/48", "64:ff9b:1::a02:304", true),
            ("::/0", "::a9fe:a9fe", false),
            ("::/0", "::ffff:0:a9fe:a9fe", false),
            ("168.0.0.0/8", "168.63.129.16", false),
            ("168.63.129.16/32", "168.63.129.16", true),
            ("168.0.0.0/8", "168.63.129.17", true),
            ("100.64.0.0/10", "100.100.100.200", false),
            ("100.64.0.0/10", "100.100.100.201", true),
            ("192.0.0.0/24", "192.0.0.192", false),
            ("fd00::/8", "fd00:ec2::254", false),
            ("fd00::/8", "fd20:ce::254", false),
            ("fd00::/8", "fd00:ec1::254", true),
            ("fd00:ec2::254/128", "fd00:ec2::254", true),
            ("::/0", "::ffff:169.254.169.254", false),
            ("::ffff:0:0/96", "::ffff:168.63.129.16", false),
            ("64:ff9b::/96", "64:ff9b::a9fe:a9fe", false),
            ("64:ff9b::/96", "64:ff9b::a02:304", true),
            ("2002::/16", "2002:a9fe:a9fe::1", false),
        ] {
            let networks = [network.parse().unwrap()];
            assert_eq!(
                is_allowed(address.parse().unwrap(), &networks),
                expected,
                "{address} in {network}"
            );
        }
    }

    #[tokio::test]
    async fn literals_and_names_follow_the_policy() {
        for host in ["127.0.0.1", "::1", "169.254.169.254", "localhost"] {
            assert_eq!(
                resolve(host, 9, &[], Lookup::OfUpstream)
                    .await
                    .unwrap_err()
                    .stage,
                Stage::Denied,
                "{host}"
            );
        }
        let networks = ["127.0.0.0/8".parse().unwrap()];
        assert_eq!(
            resolve("127.0.0.1", 9, &networks, Lookup::OfUpstream)
                .await
                .unwrap(),
            ["127.0.0.1:9".parse().unwrap()]
        );
    }

    #[test]
    fn look_ups_that_hang_leave_threads_for_files() {
        static LOOKUPS: LazyLock<Lookups> = LazyLock::new(Lookups::new);
        let ids: [ClientId; 2] =
            ["192.0.2.1", "192.0.2.2"].map(|text| ClientId::of_address(text.parse().unwrap(), 56));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(LOOKUPS_MAX + 1)
            .enable_all()
            .build()
            .unwrap();
        let (release, hang) = std::sync::mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let hanging = async |host: &str, client: Option<&ClientId>| {
            let hang = Arc::clone(&hang);
            // The task does not wait for the result in the end, as for a look-up that timed out.
            let look_up = LOOKUPS.run(host, client, move |_| {
                let _ = hang.lock().map(|hang| hang.recv());
                Ok(Vec::new())
            });
            assert!(
                tokio::time::timeout(Duration::from_millis(1), look_up)
                    .await
                    .is_err(),
                "{host}"
            );
        };
        let address = SocketAddr::from(([192, 0, 2, 1], 1));
        runtime.block_on(async {
            // One name takes one thread, and others are found meanwhile.
            for _ in 0..3 * LOOKUPS_MAX {
                hanging("one.example", None).await;
                hanging("ONE.example", None).await;
            }
            // However many names a client looks up, the names of other clients are resolved
            // meanwhile.
            for at in 0..3 * LOOKUPS_MAX {
                hanging(&format!("{at}.of.one"), Some(&ids[0])).await;
            }
            let held = LOOKUPS_MAX - LOOKUPS.permits.available_permits();
            assert_eq!(held, 1 + LOOKUPS_PER_CLIENT_MAX);
            let found = LOOKUPS.run("other.example", Some(&ids[1]), move |_| Ok(vec![address]));
            let found = tokio::time::timeout(Duration::from_secs(60), found)
                .await
                .expect("no thread is left");
            assert_eq!(found.unwrap(), [address]);
            for at in 0..3 * LOOKUPS_MAX {
                hanging(&format!("{at}.example"), None).await;
            }
            let file = tokio::task::spawn_blocking(|| ());
            tokio::time::timeout(Duration::from_secs(60), file)
                .await
                .expect("no thread is left")
                .unwrap();

            drop(release);
            let found = LOOKUPS
                .run("one.example", None, move |_| Ok(vec![address]))
                .await
                .unwrap();
            assert!(found.is_empty() || found == [address]);
            let failed = LOOKUPS
                .run("failing.example", None, |_| {
                    Err(io::Error::other("no such name"))
                })
                .await;
            assert_eq!(failed.unwrap_err().to_string(), "no such name");
        });
    }
}
