//! `floods`: latency and rate of one client beside another principal that floods the engine with
//! cheap messages.
//!
//! The neighbour sends requests of one field on one connection, one after the other. It is measured
//! alone, beside an honest client with as many connections as the flood, which has 100 requests in
//! flight and sends another for each response, and beside each flood. All of that is one run on one
//! engine. On a machine with few cores the flood's own thread competes with the engine, as the
//! honest client's does: read ratios only.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use sealwire_benches::document::{APP, document};
use sealwire_benches::stats::Summary;
use sealwire_benches::{is_smoke_run, say};
use sealwire_settings::Mode;
use sealwire_wire::{Encrypt, Limits, MessageHeader, Scan, Scanner, request};

use crate::child::{EngineChild, Folder};
use crate::fair::connection::identity;

pub(crate) const HELP: &str = "\
What a client feels of another principal that floods the engine with cheap messages.

    cargo bench -p sealwire-benches --bench engine -- floods [OPTIONS]

    --only NAMES     Only floods whose names contain one of these, with commas between.
    --connections N  Numbers of the flood's connections, with commas between; 1,100 by default.
    --seconds N      Of each window; 3 by default.
    --help           This.

A ratio is a figure beside the flood, divided by that beside an honest client with as many connections and 100 requests in
flight; of the rate, the inverse. 1.5 is the limit.
";

/// Longest wait for a response or a handshake, which turns a hang into an error.
const HANG: Duration = Duration::from_secs(60);
/// Limit for a ratio.
const RATIO_MAX: f64 = 1.5;
/// Principals: the neighbour, the honest client and the flood.
const CLIENTS: [&str; 3] = ["neighbour", "honest", "flood"];
/// Requests that the honest client has in flight on all its connections.
const HONEST_IN_FLIGHT: usize = 100;
/// Requests with different msgids.
const DISTINCT: u32 = 20_000;
/// Bytes that a flood writes at once.
const CHUNK_BYTES: usize = 16 << 10;

struct Options {
    only: Vec<String>,
    connections: Vec<usize>,
    time: Duration,
}

/// What a flood sends on each connection.
#[derive(Clone)]
enum Traffic {
    /// These bytes again and again, in records of so many bytes, at most so many bytes per second
    /// on all connections.
    Bytes {
        bytes: Vec<u8>,
        record: usize,
        per_s: Option<f64>,
    },
    /// A handshake, and the end of the connection.
    Handshakes,
    /// Distinct requests of one length, so many in flight on each connection, and another for each
    /// response.
    Honest { requests: Vec<u8>, in_flight: usize },
}

struct Flood {
    name: &'static str,
    principal: &'static str,
    traffic: Traffic,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let folder = Folder::make(&CLIENTS, Mode::Stateless)?;
    let engine = EngineChild::start(&folder, &[])?;
    measure(&options, &folder, engine.address)
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        only: Vec::new(),
        connections: if is_smoke_run() {
            vec![2]
        } else {
            vec![1, 100]
        },
        time: Duration::from_millis(if is_smoke_run() { 50 } else { 3_000 }),
    };
    let mut named = None;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
            "--connections" => {
                let numbers: Result<Vec<usize>, _> = value()?.split(',').map(str::parse).collect();
                named = Some(numbers.map_err(|_| "--connections has numbers".to_owned())?);
            }
            "--seconds" => {
                let seconds: f64 = value()?
                    .parse()
                    .map_err(|_| "--seconds is a number".to_owned())?;
                options.time =
                    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
            }
            other => return Err(format!("{other} is not an option")),
        }
    }
    options.connections = named.unwrap_or(options.connections);
    Ok(options)
}

/// Returns the floods, by name.
fn floods() -> Vec<Flood> {
    let one = encrypt(1, None);
    let paths: Vec<String> = (0..64).map(|path| format!("rows.*.column{path}")).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let mut health = Vec::new();
    request::health(&mut health, 7);
    // Announces a document of 200 MB, more than a message may have, and begins with it.
    let announced = [
        &b"\x94\x00\x07\xa7encrypt\x91\x82\xa3app\xa5bench\xa7payload\xc6\x0c\x00\x00\x00"[..],
        &[0; 4_096],
    ];
    let plain = |name, bytes: Vec<u8>| Flood {
        name,
        principal: CLIENTS[2],
        traffic: Traffic::Bytes {
            bytes: bytes.repeat((CHUNK_BYTES / bytes.len()).max(1)),
            record: CHUNK_BYTES,
            per_s: None,
        },
    };
    let mut floods = vec![
        plain("cancel", b"\x93\x02\xa6cancel\x91\x07".to_vec()),
        plain("unknown notification", b"\x93\x02\xa3foo\x90".to_vec()),
        plain("health", health),
        plain("unknown method", b"\x94\x00\x07\xa3foo\x91\x80".to_vec()),
        // No role of these clients grants it.
        plain(
            "denied",
            b"\x94\x00\x07\xb0apps.public_keys\x91\x81\xa3app\xa5bench".to_vec(),
        ),
        plain("no params", b"\x94\x00\x07\xa7encrypt\x91\x80".to_vec()),
        plain("many names", encrypt(1, Some(&paths))),
        plain("announced", announced.concat()),
        plain("one field", distinct(&one)),
    ];
    floods.push(Flood {
        name: "one field, 2 MB/s",
        principal: CLIENTS[2],
        traffic: Traffic::Bytes {
            bytes: distinct(&one),
            record: CHUNK_BYTES,
            per_s: Some(2e6),
        },
    });
    floods.push(Flood {
        name: "records of a byte",
        principal: CLIENTS[2],
        traffic: Traffic::Bytes {
            bytes: distinct(&one)[..1_024].to_vec(),
            record: 1,
            per_s: None,
        },
    });
    floods.push(Flood {
        name: "handshakes",
        principal: CLIENTS[2],
        traffic: Traffic::Handshakes,
    });
    floods
}

/// Returns a request of so many fields. Its msgid has five bytes.
fn encrypt(fields: usize, select: Option<&[&str]>) -> Vec<u8> {
    let (payload, mut bytes) = (document(fields), Vec::new());
    let call = Encrypt {
        select: select.map(<[&str]>::to_vec),
        ..Encrypt::new(APP, &payload)
    };
    request::encrypt(&mut bytes, 0x8000_0000, &call);
    bytes
}

/// Returns copies of a request with different msgids, so many that none is in flight when its msgid
/// comes again.
fn distinct(request: &[u8]) -> Vec<u8> {
    (0..DISTINCT)
        .flat_map(|msgid| {
            [
                &request[..3],
                &(0x8000_0000 | msgid).to_be_bytes(),
                &request[7..],
            ]
            .concat()
        })
        .collect()
}

/// Figures of the neighbour in one window.
#[derive(Clone, Copy)]
struct Figures {
    latency: Summary,
    per_s: f64,
}

fn measure(options: &Options, folder: &Folder, engine: SocketAddr) -> io::Result<()> {
    let smoke = is_smoke_run();
    let mut neighbour = Neighbour::connect(folder, engine)?;
    neighbour.window(options.time)?;
    let alone = neighbour.window(options.time)?;
    if !smoke {
        say(
            "| beside | connections | p50 ms | p99 ms | per s | p50 ratio | p99 ratio | rate ratio | flood MB/s |",
        )?;
        say("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")?;
        say(&row("nobody", 0, alone, None, 0.0))?;
    }
    let wanted = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|only| name.contains(only.as_str()))
    };
    for &connections in &options.connections {
        let in_flight = (HONEST_IN_FLIGHT / connections).max(1);
        let traffic = Traffic::Honest {
            requests: distinct(&encrypt(1, None)),
            in_flight,
        };
        let honest = Flood {
            name: "honest",
            principal: CLIENTS[1],
            traffic,
        };
        let (honest, sent) = beside(
            &honest,
            connections,
            folder,
            engine,
            &mut neighbour,
            options.time,
        )?;
        if !smoke {
            say(&row("an honest client", connections, honest, None, sent))?;
        }
        for flood in floods().into_iter().filter(|flood| wanted(flood.name)) {
            let (figures, sent) = beside(
                &flood,
                connections,
                folder,
                engine,
                &mut neighbour,
                options.time,
            )?;
            if !smoke {
                say(&row(flood.name, connections, figures, Some(honest), sent))?;
            }
        }
    }
    if !smoke {
        let after = neighbour.window(options.time)?;
        say(&format!(
            "{}\n",
            row("nobody, at the end", 0, after, None, 0.0)
        ))?;
    }
    Ok(())
}

fn row(
    name: &str,
    connections: usize,
    figures: Figures,
    honest: Option<Figures>,
    sent: f64,
) -> String {
    let Figures { latency, per_s } = figures;
    let ratios = honest.map(|honest| {
        [
            latency.p50 / honest.latency.p50,
            latency.p99 / honest.latency.p99,
            honest.per_s / per_s.max(1e-9),
        ]
    });
    format!(
        "| {name} | {connections} | {:.3} | {:.3} | {per_s:.0} | {} | {sent:.2} |",
        latency.p50,
        latency.p99,
        ratio_cells(ratios)
    )
}

/// Returns ratios as the cells of a table row; one above the limit is bold.
fn ratio_cells(ratios: Option<[f64; 3]>) -> String {
    let cell = |ratio: f64| {
        if ratio > RATIO_MAX {
            format!("**{ratio:.2}**")
        } else {
            format!("{ratio:.2}")
        }
    };
    ratios.map_or_else(|| " |  | ".into(), |ratios| ratios.map(cell).join(" | "))
}

/// Measures the neighbour beside a flood. Also returns the flood's rate in megabytes per second.
fn beside(
    flood: &Flood,
    connections: usize,
    folder: &Folder,
    engine: SocketAddr,
    neighbour: &mut Neighbour,
    time: Duration,
) -> io::Result<(Figures, f64)> {
    let (stop, sent) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let tls = identity(folder.path(), flood.principal)?;
    let mut open = Vec::new();
    if !matches!(flood.traffic, Traffic::Handshakes) {
        for _ in 0..connections {
            open.push(FloodConnection::open(engine, &tls)?);
        }
    }
    let traffic = flood.traffic.clone();
    let (ends, counts) = (Arc::clone(&stop), Arc::clone(&sent));
    let flooding = thread::spawn(move || match traffic {
        Traffic::Handshakes => shake_hands(engine, &tls, connections, &ends),
        traffic => send_all(&mut open, &traffic, &ends, &counts),
    });
    neighbour.window(time / 4)?;
    let before = sent.load(Ordering::Relaxed);
    let figures = neighbour.window(time);
    let bytes = sent.load(Ordering::Relaxed) - before;
    stop.store(true, Ordering::Relaxed);
    flooding
        .join()
        .map_err(|_| io::Error::other("the flood panicked"))??;
    // What the flood has left is not for the next one.
    neighbour.window(time / 4)?;
    Ok((figures?, bytes as f64 / 1e6 / time.as_secs_f64()))
}

/// Writes to all connections as fast as they accept, and drops what comes back.
fn send_all(
    open: &mut [FloodConnection],
    traffic: &Traffic,
    stop: &AtomicBool,
    sent: &AtomicU64,
) -> io::Result<()> {
    let (begun, mut total) = (Instant::now(), 0_u64);
    let mut scratch = vec![0; 64 << 10];
    while !stop.load(Ordering::Relaxed) {
        for connection in open.iter_mut().filter(|connection| connection.is_open) {
            let received = connection.drop_received(&mut scratch);
            let written = match traffic {
                Traffic::Bytes {
                    bytes,
                    record,
                    per_s,
                } => {
                    let allowed = per_s
                        .is_none_or(|per_s| (total as f64) < per_s * begun.elapsed().as_secs_f64());
                    if allowed {
                        connection.write(bytes, *record)
                    } else {
                        0
                    }
                }
                Traffic::Honest {
                    requests,
                    in_flight,
                } => {
                    let owed = connection.owed(received, *in_flight);
                    connection.write_requests(requests, owed)
                }
                Traffic::Handshakes => 0,
            };
            total += written;
        }
        sent.store(total, Ordering::Relaxed);
        let only_reads = matches!(traffic, Traffic::Honest { .. })
            || matches!(traffic, Traffic::Bytes { per_s: Some(_), .. });
        let mut fds: Vec<_> = open
            .iter()
            .filter(|connection| connection.is_open)
            .map(|connection| {
                let wants_write = !only_reads || connection.tls.wants_write();
                let events = if wants_write {
                    PollFlags::IN | PollFlags::OUT
                } else {
                    PollFlags::IN
                };
                PollFd::new(&connection.socket, events)
            })
            .collect();
        poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            }),
        )?;
    }
    Ok(())
}

/// Opens and closes connections, `at_once` at a time.
fn shake_hands(
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    at_once: usize,
    stop: &AtomicBool,
) -> io::Result<()> {
    thread::scope(|scope| {
        for _ in 0..at_once.min(8) {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // The engine can reject connections of a flood.
                    let _ = FloodConnection::open(address, tls);
                }
            });
        }
    });
    Ok(())
}

/// A connection of a flood: what it receives is not read further.
struct FloodConnection {
    socket: TcpStream,
    tls: ClientConnection,
    /// Position in the bytes that it sends.
    at: usize,
    /// Bytes of each response, once the first has come, and bytes received of the next.
    reply_bytes: Option<usize>,
    received: usize,
    has_begun: bool,
    is_open: bool,
}

impl FloodConnection {
    fn open(address: SocketAddr, tls: &Arc<ClientConfig>) -> io::Result<Self> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(HANG))?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(Arc::clone(tls), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            tls,
            at: 0,
            reply_bytes: None,
            received: 0,
            has_begun: false,
            is_open: true,
        })
    }

    /// Reads what is there. Returns the number of bytes.
    fn drop_received(&mut self, scratch: &mut [u8]) -> usize {
        let mut bytes = 0;
        loop {
            match self.socket.read(scratch) {
                Ok(read @ 1..) => {
                    let mut received = &scratch[..read];
                    while !received.is_empty() {
                        let taken = self
                            .tls
                            .read_tls(&mut received)
                            .and_then(|_| self.tls.process_new_packets().map_err(io::Error::other));
                        let Ok(state) = taken else {
                            self.is_open = false;
                            return bytes;
                        };
                        let mut plain = vec![0; state.plaintext_bytes_to_read()];
                        self.is_open &= self.tls.reader().read_exact(&mut plain).is_ok();
                        bytes += plain.len();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return bytes,
                Ok(0) | Err(_) => {
                    self.is_open = false;
                    return bytes;
                }
            }
        }
    }

    /// Continues to send `bytes` in a circle, in records of `record` bytes, until the socket is
    /// full. Returns how many.
    fn write(&mut self, bytes: &[u8], record: usize) -> u64 {
        self.flush();
        let mut sent = 0;
        while self.is_open && !self.tls.wants_write() && sent < CHUNK_BYTES {
            // A few records at once, as a program with one buffer would.
            for _ in 0..(CHUNK_BYTES / record / 16).max(1) {
                let end = (self.at + record).min(bytes.len());
                self.is_open &= self.tls.writer().write_all(&bytes[self.at..end]).is_ok();
                sent += end - self.at;
                self.at = if end == bytes.len() { 0 } else { end };
            }
            self.flush();
        }
        sent as u64
    }

    /// Returns the number of requests that an honest client sends now. The first goes alone,
    /// because its response tells how long each is.
    fn owed(&mut self, received: usize, in_flight: usize) -> usize {
        if !std::mem::replace(&mut self.has_begun, true) {
            return 1;
        }
        let Some(reply_bytes) = self.reply_bytes else {
            if received == 0 {
                return 0;
            }
            self.reply_bytes = Some(received);
            return in_flight;
        };
        self.received += received;
        let replies = self.received / reply_bytes;
        self.received %= reply_bytes;
        replies
    }

    /// Sends so many of the requests, which have one length. Returns their bytes.
    fn write_requests(&mut self, requests: &[u8], count: usize) -> u64 {
        let length = requests.len() / DISTINCT as usize;
        for _ in 0..count {
            self.is_open &= self
                .tls
                .writer()
                .write_all(&requests[self.at..self.at + length])
                .is_ok();
            self.at = (self.at + length) % requests.len();
        }
        self.flush();
        (count * length) as u64
    }

    fn flush(&mut self) {
        while self.is_open && self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => (),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.is_open = false,
            }
        }
    }
}

/// The client that is measured: one request after the other, on a blocking socket.
struct Neighbour {
    stream: rustls::StreamOwned<ClientConnection, TcpStream>,
    scanner: Scanner,
    request: Vec<u8>,
    msgid: u32,
    input: Vec<u8>,
}

impl Neighbour {
    fn connect(folder: &Folder, address: SocketAddr) -> io::Result<Self> {
        let FloodConnection { socket, tls, .. } =
            FloodConnection::open(address, &identity(folder.path(), CLIENTS[0])?)?;
        socket.set_nonblocking(false)?;
        let scanner = Scanner::for_replies(Limits::default());
        let stream = rustls::StreamOwned::new(tls, socket);
        Ok(Self {
            stream,
            scanner,
            request: encrypt(1, None),
            msgid: 0x8000_0000,
            input: Vec::new(),
        })
    }

    /// Sends requests for so long.
    fn window(&mut self, time: Duration) -> io::Result<Figures> {
        let (begun, mut latencies) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let sent = Instant::now();
            self.request()?;
            latencies.push(sent.elapsed().as_secs_f64() * 1e3);
        }
        let per_s = latencies.len() as f64 / begun.elapsed().as_secs_f64();
        Ok(Figures {
            latency: Summary::of(latencies),
            per_s,
        })
    }

    fn request(&mut self) -> io::Result<()> {
        self.msgid = self.msgid.wrapping_add(1) | 0x8000_0000;
        self.request[3..7].copy_from_slice(&self.msgid.to_be_bytes());
        self.stream.write_all(&self.request)?;
        self.stream.flush()?;
        let mut scratch = [0; 4_096];
        loop {
            match self.scanner.scan(&self.input) {
                Scan::Incomplete => {
                    let read = self.stream.read(&mut scratch)?;
                    if read == 0 {
                        return Err(ErrorKind::UnexpectedEof.into());
                    }
                    self.input.extend_from_slice(&scratch[..read]);
                }
                Scan::Message(boundary) => {
                    let is_answer =
                        boundary.header == MessageHeader::Response { msgid: self.msgid };
                    // The error of a successful response is nil.
                    let is_served = self.input.get(7) == Some(&0xc0);
                    self.input.drain(..boundary.bytes);
                    return if is_answer && is_served {
                        Ok(())
                    } else {
                        Err(io::Error::other("the neighbour was rejected"))
                    };
                }
                Scan::Rejected { .. } | Scan::Discard { .. } => {
                    return Err(io::Error::other("not a response"));
                }
            }
        }
    }
}
