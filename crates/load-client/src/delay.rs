//! A TCP relay in this process that delays bytes, as a network between clients and engine does.
//!
//! Each direction has half of the delay. Order is kept, and bandwidth is not limited. Threads with
//! precise timers do the work, because the timers of an async runtime have a resolution of a
//! millisecond. A connection's first bytes wait for one more round trip, which is that of TCP's own
//! handshake.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use crate::host;
use crate::random::Random;
use crate::target::Target;
use sealwire_load_report::results::Delay;

/// Size of one piece in bytes.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of pieces under way in one direction of a connection: 16 MiB. Above it, reading
/// pauses.
const PIECES_MAX: usize = 256;
/// Stack of a relaying thread.
const STACK_BYTES: usize = 256 << 10;
/// Timeout of a connection to the engine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Options of a delay.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Network")]
pub struct DelayArgs {
    /// Delay each round trip between this program and the engine by this time, half of it in each
    /// direction, as a network does. It is part of every latency and never subtracted; the figures
    /// state it
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    delay: Option<f64>,
    /// Delay each round trip by a further random time from 0 to this
    #[arg(long, value_name = "MS", requires = "delay", value_parser = milliseconds)]
    jitter: Option<f64>,
}

/// Parses a delay in milliseconds, from 0 to a minute.
///
/// # Errors
/// Describes the valid values.
pub fn milliseconds(text: &str) -> Result<f64, String> {
    let time: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=60_000.0).contains(&time) {
        Ok(time)
    } else {
        Err("must be in 0..=60000".to_owned())
    }
}

impl DelayArgs {
    /// Starts a relay in front of the target if a delay was asked for, and makes the target's
    /// clients use it. The relay works until it is dropped.
    pub fn relay(&self, target: &mut Target) -> Result<Option<Relay>, Fault> {
        let Some(ms) = self.delay else {
            return Ok(None);
        };
        let delay = Delay {
            ms,
            jitter_ms: self.jitter.unwrap_or(0.0),
        };
        let relay = Relay::start(&target.address, delay)?;
        target.relay = Some((relay.address.to_string(), delay));
        Ok(Some(relay))
    }
}

/// A running relay. Dropping it ends the accepting of connections; those that exist end with their
/// clients.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    is_stopped: Arc<AtomicBool>,
    unreachable: Arc<AtomicU64>,
}

impl Relay {
    /// Starts a relay to `upstream` at a free port of 127.0.0.1.
    ///
    /// # Errors
    /// Fails if the address cannot be resolved or no port is free.
    pub fn start(upstream: &str, delay: Delay) -> Result<Self, Fault> {
        let found = upstream
            .to_socket_addrs()
            .ok()
            .and_then(|mut found| found.next());
        let found = found.ok_or_else(|| {
            Fault::Failed(format!(
                "{upstream} has no address: give another with --connect"
            ))
        })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let (is_stopped, unreachable) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stop, failed) = (Arc::clone(&is_stopped), Arc::clone(&unreachable));
        let accept = move || {
            for (number, client) in (0..).zip(listener.incoming()) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let failed = Arc::clone(&failed);
                let Ok(client) = client else {
                    // Without file descriptors, the next attempt fails at once as well.
                    thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                let path = Path {
                    delay,
                    accepted: Instant::now(),
                    seed: number,
                };
                // A connection that cannot be relayed is closed by its drop.
                let _ = spawn(move || {
                    if path.connect(client, found).is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        };
        spawn(accept)?;
        Ok(Self {
            address,
            is_stopped,
            unreachable,
        })
    }

    /// Returns the address that clients connect to.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Checks that the engine accepted every relayed connection.
    ///
    /// # Errors
    /// [`Fault::Lost`] if it did not. The clients saw a closed connection then, and no reason.
    pub fn check(&self) -> Result<(), Fault> {
        match self.unreachable.load(Ordering::Relaxed) {
            0 => Ok(()),
            count => Err(Fault::Lost(format!(
                "{count} connections to the engine could not be opened: start it again, or allow this program more open \
                 files (ulimit -n), and repeat"
            ))),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name("relay".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map(drop)
}

/// One relayed connection.
#[derive(Clone, Copy, Debug)]
struct Path {
    delay: Delay,
    accepted: Instant,
    seed: u64,
}

/// Bytes, and the time when they arrive at the other end.
type Piece = (Instant, Vec<u8>);

impl Path {
    /// Connects to the engine and relays in both directions.
    fn connect(self, client: TcpStream, upstream: SocketAddr) -> io::Result<()> {
        let engine = TcpStream::connect_timeout(&upstream, CONNECT_TIMEOUT)?;
        client.set_nodelay(true)?;
        engine.set_nodelay(true)?;
        let handshake = self.accepted + Duration::from_secs_f64(self.delay.ms / 1e3);
        self.relay(client.try_clone()?, engine.try_clone()?, handshake)?;
        self.relay(engine, client, self.accepted)
    }

    /// Relays one direction. No byte is read before `begin`, as far as its arrival tells.
    fn relay(self, from: TcpStream, to: TcpStream, begin: Instant) -> io::Result<()> {
        let (sender, pieces) = sync_channel(PIECES_MAX);
        spawn(move || self.read(from, begin, &sender))?;
        spawn(move || write(to, &pieces))
    }

    fn read(self, mut from: TcpStream, begin: Instant, pieces: &SyncSender<Piece>) {
        let mut random = Random::new(self.seed);
        let mut arrival = begin;
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            // An error ends the direction, as the end of the stream does.
            let read = from.read(&mut buffer).unwrap_or(0);
            let half_ms = (self.delay.ms + self.delay.jitter_ms * random.unit()) / 2.0;
            let now = Instant::now().max(begin);
            // A piece never overtakes the one before.
            arrival = arrival.max(now + Duration::from_secs_f64(half_ms / 1e3));
            if pieces.send((arrival, buffer[..read].to_vec())).is_err() || read == 0 {
                let _ = from.shutdown(Shutdown::Read);
                return;
            }
        }
    }
}

/// Writes each piece when it arrives. An empty piece is the end of the stream.
fn write(mut to: TcpStream, pieces: &Receiver<Piece>) {
    host::wake_on_time();
    for (arrival, bytes) in pieces {
        thread::sleep(arrival.saturating_duration_since(Instant::now()));
        if bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts a server that sends back what it receives, and a relay before it.
    fn echo(delay: Delay) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut back = client.try_clone().unwrap();
                thread::spawn(move || {
                    let _ = io::copy(&mut &client, &mut back);
                    let _ = back.shutdown(Shutdown::Write);
                });
            }
        });
        Relay::start(&address, delay).unwrap()
    }

    #[test]
    fn each_round_trip_takes_the_delay_at_least() {
        let relay = echo(Delay {
            ms: 20.0,
            jitter_ms: 5.0,
        });
        let since = Instant::now();
        let mut client = TcpStream::connect(relay.address).unwrap();
        let mut trip = |since: Instant| {
            client.write_all(b"ping").unwrap();
            let mut back = [0; 4];
            client.read_exact(&mut back).unwrap();
            assert_eq!(&back, b"ping");
            since.elapsed()
        };
        let first = trip(since);
        assert!(
            first >= Duration::from_millis(40),
            "{first:?}: TCP's handshake and a round trip"
        );
        for _ in 0..5 {
            let took = trip(Instant::now());
            assert!(took >= Duration::from_millis(20), "{took:?}");
        }
        relay.check().unwrap();
    }

    #[test]
    fn bytes_and_their_order_stay_the_same() {
        let relay = echo(Delay {
            ms: 2.0,
            jitter_ms: 2.0,
        });
        let mut random = Random::new(7);
        let sent: Vec<u8> = (0..3 << 20).map(|_| random.bits() as u8).collect();
        let mut client = TcpStream::connect(relay.address).unwrap();
        let mut writer = client.try_clone().unwrap();
        let copy = sent.clone();
        let writing = thread::spawn(move || {
            copy.chunks(70_001)
                .for_each(|piece| writer.write_all(piece).unwrap());
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        writing.join().unwrap();
        assert!(
            sent == received,
            "{} bytes of {}",
            received.len(),
            sent.len()
        );
    }

    #[test]
    fn an_engine_that_is_away_closes_the_connection() {
        let gone = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let relay = Relay::start(
            &gone,
            Delay {
                ms: 1.0,
                jitter_ms: 0.0,
            },
        )
        .unwrap();
        let mut client = TcpStream::connect(relay.address).unwrap();
        assert!(matches!(client.read(&mut [0; 1]), Ok(0) | Err(_)));
        while relay.check().is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
