//! Connects to one of several addresses of a name (RFC 8305, "Happy Eyeballs").
//!
//! An address that drops packets must not make the endpoint unreachable. So the next address is
//! tried when an attempt fails or takes long. The earlier attempts continue meanwhile, and the
//! first connection wins.

use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Time after which the next address is also tried, while no TCP connection exists (RFC 8305,
/// section 5).
pub(crate) const CONNECT_DELAY: Duration = Duration::from_millis(250);
/// Time after which the next address is also tried, while a TLS handshake is not complete. Longer
/// than [`CONNECT_DELAY`], because a busy server must not receive twice the handshakes.
pub(crate) const HANDSHAKE_DELAY: Duration = Duration::from_millis(1_500);
/// Maximum number of addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Tells the race that an attempt has a TCP connection.
pub(crate) type Reached = watch::Sender<bool>;

/// Orders addresses so that the families alternate, starting with the first address (RFC 8305,
/// section 4). Returns at most [`ADDRESSES_MAX`] of them. If one family has many addresses, some of
/// the other family still find room.
pub(crate) fn interleave(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let all: Vec<SocketAddr> = addresses.into_iter().collect();
    let Some(first) = all.first() else { return all };
    let is_v6 = first.is_ipv6();
    let mut same = all.iter().filter(|address| address.is_ipv6() == is_v6);
    let mut other = all.iter().filter(|address| address.is_ipv6() != is_v6);
    let count = all.len().min(ADDRESSES_MAX);
    let mut ordered = Vec::with_capacity(count + 1);
    while ordered.len() < count {
        ordered.extend(same.next());
        ordered.extend(other.next());
    }
    ordered.truncate(count);
    ordered
}

/// Runs `attempt` for each address in order, without ending the earlier attempts, and returns the
/// first connection. Dropping the future ends all attempts.
///
/// # Errors
/// If all attempts fail: the error of a TLS handshake if there is one, otherwise the error of the
/// last attempt.
pub(crate) async fn race<T, F>(
    addresses: &[SocketAddr],
    mut attempt: impl FnMut(SocketAddr, Reached) -> F,
) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = io::Result<T>> + Send + 'static,
{
    let mut left = addresses.iter();
    let mut attempts = JoinSet::new();
    let mut error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    // The state of the newest attempt.
    let mut newest: Option<watch::Receiver<bool>> = None;
    loop {
        if newest.is_none()
            && let Some(address) = left.next()
        {
            let (reached, receiver) = watch::channel(false);
            attempts.spawn(attempt(*address, reached));
            newest = Some(receiver);
        }
        tokio::select! {
            biased;
            ended = attempts.join_next() => match ended {
                None => return Err(error),
                Some(Ok(Ok(connection))) => return Ok(connection),
                Some(Ok(Err(failed))) => {
                    // A rejected certificate is more informative than an unreachable address.
                    if error.kind() != io::ErrorKind::InvalidData {
                        error = failed;
                    }
                    newest = None;
                }
                Some(Err(panicked)) => return Err(io::Error::other(panicked)),
            },
            () = takes_long(newest.clone()), if left.len() > 0 => newest = None,
        }
    }
}

/// Completes when the newest attempt has taken so long that the next one should start.
async fn takes_long(newest: Option<watch::Receiver<bool>>) {
    let Some(mut reached) = newest else {
        return pending().await;
    };
    if let Ok(is_reached) = timeout(CONNECT_DELAY, reached.wait_for(|is_reached| *is_reached))
        .await
        .map(|is| is.is_ok())
    {
        // A completed attempt cannot take longer, so this future never completes.
        if !is_reached {
            return pending().await;
        }
        sleep(HANDSHAKE_DELAY).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;

    /// What happens at an address, with times in milliseconds.
    #[derive(Clone, Copy)]
    enum Peer {
        Connects(u64),
        /// Connects at once, and completes the handshake after this time.
        Handshakes(u64),
        Refuses(u64),
        RejectsCertificate,
        DropsPackets,
        /// Connects, and says nothing.
        Hangs,
    }

    async fn connect(peer: Peer, reached: Reached) -> io::Result<()> {
        match peer {
            Peer::Connects(ms) => {
                sleep(Duration::from_millis(ms)).await;
                let _ = reached.send(true);
                Ok(())
            }
            Peer::Handshakes(ms) => {
                let _ = reached.send(true);
                sleep(Duration::from_millis(ms)).await;
                Ok(())
            }
            Peer::Refuses(ms) => {
                sleep(Duration::from_millis(ms)).await;
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            Peer::RejectsCertificate => {
                let _ = reached.send(true);
                Err(io::ErrorKind::InvalidData.into())
            }
            Peer::DropsPackets => pending().await,
            Peer::Hangs => {
                let _ = reached.send(true);
                pending().await
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_answer_hides_no_other() {
        use Peer::*;
        for (peers, expected, ms, tried) in [
            (&[Connects(10)][..], Ok(()), 10, 1),
            (&[Connects(200), Connects(0)], Ok(()), 200, 1),
            (&[Connects(400), Connects(0)], Ok(()), 250, 2),
            (&[Connects(260), Connects(100)], Ok(()), 260, 2),
            (&[DropsPackets, Connects(5)], Ok(()), 255, 2),
            (
                &[DropsPackets, DropsPackets, DropsPackets, Connects(5)],
                Ok(()),
                755,
                4,
            ),
            (&[Refuses(10), Connects(5)], Ok(()), 15, 2),
            (&[DropsPackets, Refuses(10), Connects(5)], Ok(()), 265, 3),
            (&[Hangs, Connects(5)], Ok(()), 1_505, 2),
            // A busy server does not get twice the handshakes.
            (&[Handshakes(1_400), Handshakes(0)], Ok(()), 1_400, 1),
            (&[RejectsCertificate, Connects(5)], Ok(()), 5, 2),
            (
                &[RejectsCertificate, Refuses(5)],
                Err(io::ErrorKind::InvalidData),
                5,
                2,
            ),
            (
                &[Refuses(5), Refuses(5)],
                Err(io::ErrorKind::ConnectionRefused),
                10,
                2,
            ),
            (&[], Err(io::ErrorKind::NotFound), 0, 0),
        ] {
            let addresses: Vec<SocketAddr> = (0..peers.len())
                .map(|at| ([127, 0, 0, 1], at as u16).into())
                .collect();
            let begun = Arc::new(Mutex::new(0));
            let attempt = |address: SocketAddr, reached| {
                *begun.lock().unwrap() += 1;
                connect(peers[usize::from(address.port())], reached)
            };
            let started = Instant::now();
            let raced = timeout(Duration::from_secs(60), race(&addresses, attempt))
                .await
                .expect("ends");
            let took = started.elapsed().as_millis();
            assert_eq!(raced.map_err(|error| error.kind()), expected, "{ms} ms");
            assert!((ms..=ms + 4).contains(&took), "{took} ms instead of {ms}");
            assert_eq!(*begun.lock().unwrap(), tried, "{ms} ms");
        }
    }

    #[test]
    fn many_addresses_of_a_family_hide_none_of_the_other() {
        let family = |is_v6: bool, count: u16| {
            (0..count).map(move |port| -> SocketAddr {
                if is_v6 {
                    ([0, 0, 0, 0, 0, 0, 0, 1], port).into()
                } else {
                    ([127, 0, 0, 1], port).into()
                }
            })
        };
        for (first_is_v6, same, other, same_left, other_left) in [
            (true, 16, 2, 14, 2),
            (false, 40, 1, 15, 1),
            (true, 100, 100, 8, 8),
            (true, 16, 0, 16, 0),
            (false, 3, 60, 3, 13),
        ] {
            let ordered = interleave(family(first_is_v6, same).chain(family(!first_is_v6, other)));
            let kept = |is_v6| {
                ordered
                    .iter()
                    .filter(|address| address.is_ipv6() == is_v6)
                    .count()
            };
            let left = (kept(first_is_v6), kept(!first_is_v6));
            assert_eq!(
                left,
                (same_left, other_left),
                "{first_is_v6} {same} {other}"
            );
            assert!(
                other == 0 || ordered[1].is_ipv6() != first_is_v6,
                "{ordered:?}"
            );
        }
    }

    #[test]
    fn families_alternate_from_the_first_address_on() {
        for (given, expected) in [
            (
                &["[::1]:1", "[::2]:1", "1.1.1.1:1", "2.2.2.2:1"][..],
                &["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1"][..],
            ),
            (
                &["1.1.1.1:1", "2.2.2.2:1", "[::1]:1"],
                &["1.1.1.1:1", "[::1]:1", "2.2.2.2:1"],
            ),
            (&["1.1.1.1:1", "2.2.2.2:1"], &["1.1.1.1:1", "2.2.2.2:1"]),
            (&[], &[]),
        ] {
            let parse = |texts: &[&str]| {
                texts
                    .iter()
                    .map(|text| text.parse().unwrap())
                    .collect::<Vec<SocketAddr>>()
            };
            assert_eq!(interleave(parse(given)), parse(expected));
        }
    }
}
