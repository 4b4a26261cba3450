//! The cost of HTTP: the same requests to one engine over RPC, HTTP/1.1 and HTTP/2, alternating.
//!
//! The engine is a process of its own, as in the bench `cpu`. Over HTTP/1.1 each caller has a
//! connection of its own with one request at a time, as HTTP libraries do. Callers of RPC and of
//! HTTP/2 share [`CONNECTIONS`] connections, so one system call can carry several requests; a
//! further arm gives each caller of RPC its own. Ratios are of rounds that follow one another.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::http::uri::Authority;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use sealwire_benches::document::{APP, document};
use sealwire_benches::stats::{Interval, bootstrap, median, quantile};
use sealwire_benches::{is_smoke_run, say};
use sealwire_client::{Client, Encrypt};
use sealwire_payload::{WalkLimits, json};
use sealwire_service::http_client::{HttpConnection, Origin, Transport, read_body};
use sealwire_service::tls_files;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio_rustls::TlsConnector;

use crate::cpu::load::{BenchOperation, CpuLoad, measure};
use crate::cpu::place::{CONNECTIONS, Place};
use crate::cpu::{PRODUCTION, WARM_UP, callers};

pub(crate) const HELP: &str = "\
The cost of HTTP beside RPC: the same documents to one engine, alternating.

    cargo bench -p sealwire-benches --bench engine -- http [OPTIONS]

    --rounds N     Measurements of each protocol, one second each; 8 by default.
    --only N       Only requests of so many fields.
    --json         JSON on standard output instead of a table.
    --help         This.
";

/// Fields per request and callers.
const LOADS: [(usize, usize); 8] = [
    (1, 1),
    (1, 64),
    (30, 1),
    (30, 64),
    (100, 1),
    (100, 64),
    (2_000, 1),
    (2_000, 64),
];
/// Greatest CPU time over HTTP, as a multiple of that over RPC, of requests of 30 fields and more.
const FACTOR_MAX: f64 = 1.6;
/// Greatest CPU time that HTTP adds to a request of one field of a lone caller, in microseconds.
const LONE_US_MAX: f64 = 25.0;
/// Time for a connection or a response, which turns a hang into an error even on a slow machine.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Pause before a request is repeated that the engine was too busy for.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Longest response, in bytes.
const RESPONSE_BYTES_MAX: usize = 64 << 20;

/// A protocol of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Rpc,
    /// Each caller has its own connection.
    RpcApart,
    Http1Json,
    Http1MsgPack,
    Http2Json,
}

const PROTOCOLS: [Protocol; 5] = [
    Protocol::Rpc,
    Protocol::RpcApart,
    Protocol::Http1Json,
    Protocol::Http1MsgPack,
    Protocol::Http2Json,
];

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Rpc => "RPC",
            Self::RpcApart => "RPC, 1 caller each",
            Self::Http1Json => "HTTP/1.1, JSON",
            Self::Http1MsgPack => "HTTP/1.1, MessagePack",
            Self::Http2Json => "HTTP/2, JSON",
        }
    }
}

/// The figures of one measurement.
#[derive(Clone, Copy, Debug)]
struct Measurement {
    cpu_us: f64,
    p50_us: f64,
    p99_us: f64,
    requests_per_second: f64,
}

struct Options {
    rounds: usize,
    fields: Option<usize>,
    json: bool,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let time_of_each = Duration::from_secs_f64(if is_smoke_run() { 0.05 } else { 1.0 });
    let callers = callers()?;
    let settings = [&PRODUCTION[..], &[("http.address", "127.0.0.1:0")]].concat();
    let engine = Place::process(&settings)?;
    if !is_smoke_run() {
        let warm_up = CpuLoad {
            operation: BenchOperation::EncryptText,
            fields: 1,
            callers: 64,
        };
        measure(&callers, &engine, warm_up, WARM_UP)?;
    }

    let mut results = Vec::new();
    for (fields, count) in LOADS {
        if options.fields.is_some_and(|only| only != fields) {
            continue;
        }
        let load = Load::new(&callers, &engine, fields, count)?;
        let mut measurements = [const { Vec::new() }; PROTOCOLS.len()];
        for round in 0..options.rounds {
            for at in 0..PROTOCOLS.len() {
                let at = if round % 2 == 0 {
                    at
                } else {
                    PROTOCOLS.len() - 1 - at
                };
                measurements[at].push(load.measure(
                    &callers,
                    &engine,
                    PROTOCOLS[at],
                    time_of_each,
                )?);
            }
        }
        results.push(Compared {
            fields,
            callers: count,
            measurements,
        });
    }

    if is_smoke_run() {
        return say("http: every request got a response");
    }
    if options.json {
        let rows = results.iter().flat_map(Compared::json).collect();
        return say(&format!("{:#}", Value::Array(rows)));
    }
    print(&results)
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        rounds: if is_smoke_run() { 1 } else { 8 },
        fields: None,
        json: false,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().and_then(|value| value.parse().ok());
            value.ok_or(format!("{argument} needs a number"))
        };
        match argument.as_str() {
            "--json" => options.json = true,
            "--rounds" => options.rounds = number()?,
            "--only" => options.fields = Some(number()?),
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}

/// The clients of one load.
struct Load {
    payload: Vec<u8>,
    json: Bytes,
    rpc: Client,
    /// A connection of each caller.
    rpc_apart: Vec<Client>,
    http1: Vec<Arc<Mutex<HttpConnection<Full<Bytes>>>>>,
    http2: Vec<http2::SendRequest<Full<Bytes>>>,
}

impl Load {
    fn new(callers: &Runtime, engine: &Place, fields: usize, count: usize) -> io::Result<Self> {
        let payload = document(fields);
        let mut text = Vec::new();
        json::from_msgpack(&payload, &mut text, false, WalkLimits::default())
            .map_err(io::Error::other)?;

        let file = |name: &str| engine.folder().join(name);
        let tls = tls_files::client_config(
            Some(&file("ca.pem")),
            Some((&file("client.pem"), &file("client.key"))),
        );
        let tls = tls.map_err(io::Error::other)?;
        let address = engine.http_address()?;
        Ok(Self {
            payload,
            json: text.into(),
            rpc: engine.client(callers),
            rpc_apart: (0..count).map(|_| engine.client_of(callers, 1)).collect(),
            http1: callers.block_on(connect_http1(tls.clone(), address, count))?,
            http2: callers.block_on(connect_http2(tls, address))?,
        })
    }

    /// Runs a warm-up of a tenth of the time, and then the measurement.
    fn measure(
        &self,
        callers: &Runtime,
        engine: &Place,
        protocol: Protocol,
        time: Duration,
    ) -> io::Result<Measurement> {
        callers.block_on(self.closed_loop(protocol, time / 10))?;
        let before = engine.cpu()?;
        let begin = Instant::now();
        let mut latencies = callers.block_on(self.closed_loop(protocol, time))?;
        let wall = begin.elapsed();
        // The CPU time of threads is complete only after they sleep.
        std::thread::sleep(Duration::from_millis(20));
        let cpu = engine.cpu()?.since(before).all();
        latencies.sort_by(f64::total_cmp);
        let requests = latencies.len() as f64;
        Ok(Measurement {
            cpu_us: cpu.as_secs_f64() * 1e6 / requests,
            p50_us: quantile(&latencies, 0.5),
            p99_us: quantile(&latencies, 0.99),
            requests_per_second: requests / wall.as_secs_f64(),
        })
    }

    /// Returns the latency of each response in microseconds. Each caller sends at least one request.
    async fn closed_loop(&self, protocol: Protocol, time: Duration) -> io::Result<Vec<f64>> {
        let end = Instant::now() + time;
        let mut tasks = tokio::task::JoinSet::new();
        for caller in 0..self.http1.len() {
            match protocol {
                Protocol::Rpc | Protocol::RpcApart => {
                    let client = match protocol {
                        Protocol::Rpc => &self.rpc,
                        _ => &self.rpc_apart[caller],
                    };
                    tasks.spawn(call_rpc(client.clone(), self.payload.clone(), end))
                }
                Protocol::Http1Json | Protocol::Http1MsgPack | Protocol::Http2Json => {
                    let connection = match protocol {
                        Protocol::Http2Json => {
                            HttpCaller::Http2(self.http2[caller % self.http2.len()].clone())
                        }
                        _ => HttpCaller::Http1(Arc::clone(&self.http1[caller]).lock_owned().await),
                    };
                    let (media_type, body) = match protocol {
                        Protocol::Http1MsgPack => {
                            ("application/msgpack", self.payload.clone().into())
                        }
                        _ => ("application/json", self.json.clone()),
                    };
                    tasks.spawn(call_http(connection, media_type, body, end))
                }
            };
        }
        let mut latencies = Vec::new();
        while let Some(of_caller) = tasks.join_next().await {
            latencies.extend(of_caller.map_err(io::Error::other)??);
        }
        Ok(latencies)
    }
}

async fn call_rpc(client: Client, payload: Vec<u8>, end: Instant) -> io::Result<Vec<f64>> {
    let mut latencies = Vec::new();
    let mut begin = Instant::now();
    while latencies.is_empty() || begin < end {
        client
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .map_err(io::Error::other)?;
        let now = Instant::now();
        latencies.push((now - begin).as_secs_f64() * 1e6);
        begin = now;
    }
    Ok(latencies)
}

async fn call_http(
    mut connection: HttpCaller,
    media_type: &'static str,
    body: Bytes,
    end: Instant,
) -> io::Result<Vec<f64>> {
    let mut latencies = Vec::new();
    let mut begin = Instant::now();
    while latencies.is_empty() || begin < end {
        // The client of RPC repeats overloaded requests, too.
        while !connection.post(media_type, &body).await? {
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        let now = Instant::now();
        latencies.push((now - begin).as_secs_f64() * 1e6);
        begin = now;
    }
    Ok(latencies)
}

/// The connection of one caller.
enum HttpCaller {
    Http1(OwnedMutexGuard<HttpConnection<Full<Bytes>>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl HttpCaller {
    /// Sends a request and reads its response. Returns false if the engine was overloaded.
    async fn post(&mut self, media_type: &'static str, body: &Bytes) -> io::Result<bool> {
        let request = Request::post(format!("https://localhost/v1/apps/{APP}/encrypt"))
            .header("content-type", media_type)
            .body(Full::new(body.clone()))
            .map_err(io::Error::other)?;
        let response = match self {
            Self::Http1(connection) => connection.send(request).await.map_err(io::Error::other)?,
            Self::Http2(sender) => {
                sender.ready().await.map_err(io::Error::other)?;
                let response = sender.send_request(request).await;
                response.map_err(io::Error::other)?
            }
        };
        let status = response.status();
        let read = read_body(response.into_body(), RESPONSE_BYTES_MAX).await;
        let text = read.map_err(io::Error::other)?;
        if status == StatusCode::TOO_MANY_REQUESTS {
            return Ok(false);
        }
        if !status.is_success() {
            let text = String::from_utf8_lossy(&text);
            return Err(io::Error::other(format!("{status} {text}")));
        }
        Ok(true)
    }
}

/// Opens a connection of HTTP/1.1 for each caller.
async fn connect_http1(
    tls: ClientConfig,
    address: SocketAddr,
    count: usize,
) -> io::Result<Vec<Arc<Mutex<HttpConnection<Full<Bytes>>>>>> {
    let transport = Transport::Tls(Arc::new(tls));
    let authority = format!("localhost:{}", address.port()).parse::<Authority>();
    let origin = Origin::new(&authority.map_err(io::Error::other)?, 443)
        .ok_or_else(|| io::Error::other("no origin"))?;
    let mut connections = Vec::new();
    for _ in 0..count {
        let opened = HttpConnection::open(&origin, &transport, TIME_MAX).await;
        let connection = opened.map_err(io::Error::other)?;
        connections.push(Arc::new(Mutex::new(connection)));
    }
    Ok(connections)
}

/// Opens the shared connections of HTTP/2.
async fn connect_http2(
    mut tls: ClientConfig,
    address: SocketAddr,
) -> io::Result<Vec<http2::SendRequest<Full<Bytes>>>> {
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(tls));
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let stream = connector.connect(name.clone(), socket).await?;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(connection);
        connections.push(sender);
    }
    Ok(connections)
}

/// The measurements of every protocol under one load.
struct Compared {
    fields: usize,
    callers: usize,
    measurements: [Vec<Measurement>; PROTOCOLS.len()],
}

impl Compared {
    fn median_of(&self, at: usize, of: impl Fn(&Measurement) -> f64) -> f64 {
        median(self.measurements[at].iter().map(of).collect())
    }

    /// Returns the CPU time of a protocol as a multiple of that of RPC, by rounds.
    fn factor(&self, at: usize) -> Interval {
        let rpc = &self.measurements[0];
        let measurements = &self.measurements[at];
        bootstrap(measurements.len(), |chosen| {
            let ratio = |round: &usize| measurements[*round].cpu_us / rpc[*round].cpu_us;
            median(chosen.iter().map(ratio).collect())
        })
    }

    /// Prints whether a protocol meets the budget of the load, if it has one.
    fn print_verdict(&self, protocol: Protocol, out: &mut impl Write) -> io::Result<()> {
        let at = protocol as usize;
        let (budget, measured, is_met) = if self.fields >= 30 {
            let factor = self.factor(at).value;
            (
                format!("CPU <= {FACTOR_MAX}x RPC"),
                format!("{factor:.2}x"),
                factor <= FACTOR_MAX,
            )
        } else if self.callers == 1 {
            let cpu_us = |at| self.median_of(at, |measurement: &Measurement| measurement.cpu_us);
            let added = cpu_us(at) - cpu_us(0);
            (
                format!("HTTP adds <= {LONE_US_MAX} us of CPU"),
                format!("{added:.1} us"),
                added <= LONE_US_MAX,
            )
        } else {
            return Ok(());
        };
        writeln!(
            out,
            "{:<8}{} fields, {} callers, {}: {budget}: {measured}",
            if is_met { "met" } else { "NOT MET" },
            self.fields,
            self.callers,
            protocol.name()
        )
    }

    fn json(&self) -> Vec<Value> {
        let row = |at: usize| {
            let Interval { low, value, high } = self.factor(at);
            json!({
                "fields": self.fields,
                "callers": self.callers,
                "protocol": PROTOCOLS[at].name(),
                "requests_per_s": self.median_of(at, |measurement| measurement.requests_per_second),
                "cpu_us_per_request": self.median_of(at, |measurement| measurement.cpu_us),
                "p50_us": self.median_of(at, |measurement| measurement.p50_us),
                "p99_us": self.median_of(at, |measurement| measurement.p99_us),
                "cpu_over_rpc": [low, value, high],
            })
        };
        (0..PROTOCOLS.len()).map(row).collect()
    }
}

fn print(results: &[Compared]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{:>6}{:>8}  {:<23}{:>11}{:>9}{:>9} |{:>11}{:>10} | CPU over RPC (90 %)",
        "fields", "callers", "protocol", "requests/s", "p50 us", "p99 us", "CPU us", "CPU ns/f"
    )?;
    for one in results {
        for (at, protocol) in PROTOCOLS.iter().enumerate() {
            let cpu_us = one.median_of(at, |measurement| measurement.cpu_us);
            let Interval { low, value, high } = one.factor(at);
            writeln!(
                out,
                "{:>6}{:>8}  {:<23}{:>11.0}{:>9.0}{:>9.0} |{cpu_us:>11.1}{:>10.0} | {value:.2} ({low:.2} to {high:.2})",
                one.fields,
                one.callers,
                protocol.name(),
                one.median_of(at, |measurement| measurement.requests_per_second),
                one.median_of(at, |measurement| measurement.p50_us),
                one.median_of(at, |measurement| measurement.p99_us),
                cpu_us * 1e3 / one.fields as f64,
            )?;
        }
    }
    writeln!(out)?;
    for one in results {
        for protocol in [Protocol::Http1Json, Protocol::Http2Json] {
            one.print_verdict(protocol, &mut out)?;
        }
    }
    Ok(())
}
