//! Neighbours of a hostile client: their latency and refusals beside readers that stall, bodies
//! that do not come, windows of decoders, and idle WebSockets; and the memory that the relay counts
//! beside the memory that it takes.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::Request;
use hyper::body::{Body, Bytes, Frame};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use sealwire_benches::stats::Summary;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::client::{Client, document};
use crate::report::{Ask, Report};
use crate::setup::Setup;

const MIB: f64 = 1_048_576.0;
/// The neighbours' address, which is not that of the hostile client.
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Time after which a neighbour gives up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Failures after which no more neighbours are tried.
const FAILURES_MAX: usize = 3;
/// Bytes of a body that is held beside the window of its decoder.
const HELD_BYTES: usize = 6_000_000;

pub(crate) fn run(setup: &Setup, report: &mut Report) -> io::Result<()> {
    let requests = if setup.is_smoke { 5 } else { 300 };
    setup.clients().block_on(async {
        stalled(setup, report, requests).await?;
        announced(setup, report, requests).await?;
        windows(setup, report, requests).await?;
        websockets(setup, report, requests).await
    })
}

/// Readers that take nothing of a response, on one connection, beside neighbours with the same
/// connection to the upstream.
async fn stalled(setup: &Setup, report: &mut Report, requests: usize) -> io::Result<()> {
    let mut attacker = attacker::<Silent>(setup.relay.address).await?;
    let mut readers = Vec::new();
    for count in [0, 5, 50, 99] {
        while readers.len() < count {
            let request = Request::get("http://bench/shared/long")
                .body(Silent(None))
                .map_err(io::Error::other)?;
            readers.push(
                attacker
                    .send_request(request)
                    .await
                    .map_err(io::Error::other)?,
            );
        }
        sleep(Duration::from_millis(500)).await;
        neighbours(
            setup,
            report,
            &format!("fair: {count} stalled readers"),
            "/shared/x",
            requests,
        )
        .await?;
    }
    Ok(())
}

/// Heads of compressed bodies that do not come, on one connection.
async fn announced(setup: &Setup, report: &mut Report, requests: usize) -> io::Result<()> {
    let mut attacker = attacker::<Silent>(setup.relay.address).await?;
    let mut waiting = Vec::new();
    for _ in 0..62 {
        waiting.push(tokio::spawn(
            attacker.send_request(upload("gzip", Silent(None))?),
        ));
    }
    sleep(Duration::from_millis(500)).await;
    report.add(
        "fair: 62 heads, counted",
        "MiB",
        &[counted(setup).await?],
        Ask::None,
    );
    neighbours(setup, report, "fair: 62 heads", "/three/x", requests).await?;
    drop(attacker);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    sleep(Duration::from_millis(500)).await;
    Ok(())
}

/// Bodies in brotli with the largest window, which do not end.
async fn windows(setup: &Setup, report: &mut Report, requests: usize) -> io::Result<()> {
    let before = setup.relay.resident()?;
    let body = brotli(if setup.is_smoke { 60_000 } else { HELD_BYTES });
    let (mut attackers, mut waiting) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let mut attacker = attacker::<Silent>(setup.relay.address).await?;
        for _ in 0..4 {
            waiting.push(tokio::spawn(
                attacker.send_request(upload("br", Silent(Some(body.clone())))?),
            ));
        }
        attackers.push(attacker);
    }
    sleep(Duration::from_secs(2)).await;
    let (counted, resident) = (
        counted(setup).await?,
        (setup.relay.resident()? - before) / MIB,
    );
    report.add(
        "fair: 40 brotli bodies, counted",
        "MiB",
        &[counted],
        Ask::None,
    );
    report.add(
        "fair: 40 brotli bodies, growth of relay",
        "MiB",
        &[resident],
        Ask::None,
    );
    let refused = waiting
        .iter()
        .filter(|request| request.is_finished())
        .count();
    report.add(
        "fair: 40 brotli bodies, refused",
        "count",
        &[refused as f64],
        Ask::None,
    );
    neighbours(
        setup,
        report,
        "fair: 40 brotli bodies",
        "/three/x",
        requests,
    )
    .await?;
    drop(attackers);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    sleep(Duration::from_millis(500)).await;
    Ok(())
}

/// WebSockets without a message.
async fn websockets(setup: &Setup, report: &mut Report, requests: usize) -> io::Result<()> {
    let (mut open, mut refused) = (Vec::new(), 0_u32);
    for _ in 0..256 {
        let mut stream = TcpStream::connect(setup.relay.address).await?;
        stream.write_all(HANDSHAKE.as_bytes()).await?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).await?;
        if status.ends_with(b"101") {
            open.push(stream);
        } else {
            refused += 1;
        }
    }
    report.add(
        "fair: 256 WebSockets, refused",
        "count",
        &[f64::from(refused)],
        Ask::None,
    );
    report.add(
        "fair: 256 WebSockets, counted",
        "MiB",
        &[counted(setup).await?],
        Ask::None,
    );
    neighbours(setup, report, "fair: 256 WebSockets", "/three/x", requests).await
}

const HANDSHAKE: &str = "GET /pass/chat HTTP/1.1\r\nhost: bench\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Sends requests of neighbours one after the other, and reports their latency and how many failed.
async fn neighbours(
    setup: &Setup,
    report: &mut Report,
    name: &str,
    path: &str,
    requests: usize,
) -> io::Result<()> {
    let document = document();
    let (mut samples, mut failed) = (Vec::new(), 0);
    let mut client = None;
    for _ in 0..requests {
        let begun = Instant::now();
        let request = async {
            let open = match client.take() {
                Some(open) => open,
                None => Client::open_from(NEIGHBOUR, setup.relay.address).await?,
            };
            let client = client.insert(open);
            client.post(path, "application/json", &document).await
        };
        let answered = timeout(PATIENCE, request).await;
        if matches!(answered, Ok(Ok(_))) {
            samples.push(begun.elapsed().as_secs_f64() * 1e3);
            continue;
        }
        client = None;
        failed += 1;
        if failed == FAILURES_MAX {
            break;
        }
    }
    report.add(
        format!("{name}, neighbours failed"),
        "count",
        &[failed as f64],
        Ask::AtMost(0.0),
    );
    if !samples.is_empty() {
        let summary = Summary::of(samples);
        report.add(
            format!("{name}, neighbours, p50"),
            "ms",
            &[summary.p50],
            Ask::None,
        );
        report.add(
            format!("{name}, neighbours, p99"),
            "ms",
            &[summary.p99],
            Ask::None,
        );
    }
    Ok(())
}

/// A body that begins with these bytes and does not end.
struct Silent(Option<Bytes>);

impl Body for Silent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.take().map_or(Poll::Pending, |bytes| {
            Poll::Ready(Some(Ok(Frame::data(bytes))))
        })
    }
}

fn upload(coding: &str, body: Silent) -> io::Result<Request<Silent>> {
    let request = Request::post("http://bench/three/x").header("content-type", "application/json");
    request
        .header("content-encoding", coding)
        .body(body)
        .map_err(io::Error::other)
}

/// A connection over HTTP/2 whose streams take one byte.
async fn attacker<B>(address: SocketAddr) -> io::Result<SendRequest<B>>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let io = TokioIo::new(TcpStream::connect(address).await?);
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(1)
        .initial_connection_window_size(64 << 20);
    let (sender, connection) = builder.handshake(io).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(sender)
}

/// A begin of a JSON text in brotli, in blocks that are not compressed, with a window of 16 MiB.
fn brotli(bytes: usize) -> Bytes {
    let mut text = b"{\"a\":\"".to_vec();
    text.resize(bytes, b'x');
    let (mut out, mut is_first) = (Vec::new(), true);
    for block in text.chunks(1 << 16) {
        // Bits from the lowest: the window (1111) before the first block, not the last one (0),
        // four nibbles of length (00), the length less one, not compressed (1).
        let header = (block.len() as u32 - 1) << 3 | 1 << 19;
        let header = if is_first { 0xf | header << 4 } else { header };
        out.extend_from_slice(&header.to_le_bytes()[..3]);
        out.extend_from_slice(block);
        is_first = false;
    }
    out.into()
}

/// Memory that the relay counts, in MiB.
async fn counted(setup: &Setup) -> io::Result<f64> {
    let mut stream = TcpStream::connect(setup.admin).await?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("sealwire_relay_memory_bytes "));
    let bytes = line.and_then(|value| value.trim().parse::<f64>().ok());
    bytes
        .map(|bytes| bytes / MIB)
        .ok_or_else(|| io::Error::other("no metric of memory"))
}
