//! Time and memory for large bodies: one that is held, and two that stream.

use std::fmt::Write as _;
use std::io;

use hyper::body::Bytes;

use crate::child::ServerChild;
use crate::client::Client;
use crate::report::{Ask, Report};
use crate::setup::Setup;

const MIB: f64 = 1_048_576.0;
/// Bytes of one row.
const ROW_BYTES: usize = 1_000;
/// Memory that a streamed body may take: its window in both directions, twice for the allocator, in
/// MiB.
const GROWTH_MIB_MAX: f64 = 8.0;

pub(crate) fn run(setup: &Setup, report: &mut Report) -> io::Result<()> {
    let (streamed, rounds) = if setup.is_smoke {
        (1_000_000, 1)
    } else {
        (50_000_000, 3)
    };
    let held_ask = Ask::None;
    for (route, name, media_type, body, ask) in [
        (
            "held",
            "400 KB held",
            "application/json",
            rows(400_000, "{\"rows\":[", ",", "]}"),
            held_ask,
        ),
        (
            "array",
            "50 MB array streamed",
            "application/json",
            rows(streamed, "[", ",", "]"),
            Ask::AtMost(GROWTH_MIB_MAX),
        ),
        (
            "lines",
            "50 MB NDJSON streamed",
            "application/x-ndjson",
            rows(streamed, "", "\n", "\n"),
            Ask::AtMost(GROWTH_MIB_MAX),
        ),
    ] {
        // The first request opens connections and fills caches.
        let warm_up = rows(
            200_000,
            if route == "held" {
                "{\"rows\":["
            } else if route == "array" {
                "["
            } else {
                ""
            },
            if route == "lines" { "\n" } else { "," },
            if route == "held" {
                "]}"
            } else if route == "array" {
                "]"
            } else {
                "\n"
            },
        );
        let _ = send(setup, &setup.relay, route, media_type, &warm_up)?;
        let (mut plain_ms, mut relay_ms, mut rate, mut growth) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            plain_ms.push(send(setup, &setup.plain, route, media_type, &body)?);
            setup.relay.reset_peak()?;
            let before = setup.relay.resident()?;
            let ms = send(setup, &setup.relay, route, media_type, &body)?;
            growth.push((setup.relay.peak()? - before).max(0.0) / MIB);
            relay_ms.push(ms);
            rate.push(body.len() as f64 / 1e6 / (ms / 1e3));
        }
        report.add(
            format!("large: {name}, plain proxy"),
            "ms",
            &plain_ms,
            Ask::None,
        );
        report.add(format!("large: {name}, relay"), "ms", &relay_ms, Ask::None);
        report.add(format!("large: {name}, relay"), "MB/s", &rate, Ask::None);
        report.add(
            format!("large: {name}, growth of relay"),
            "MiB",
            &growth,
            ask,
        );
    }
    Ok(())
}

/// Returns rows of JSON with a number to encrypt.
fn rows(bytes: usize, begin: &str, between: &str, end: &str) -> Bytes {
    let filler = "x".repeat(ROW_BYTES - 50);
    let mut text = String::with_capacity(bytes + ROW_BYTES);
    text += begin;
    for row in 0..bytes / ROW_BYTES {
        let comma = if row == 0 { "" } else { between };
        let _ = write!(
            text,
            "{comma}{{\"number\":\"{row:016}\",\"note\":\"{filler}\"}}"
        );
    }
    text += end;
    text.into()
}

/// Sends a body and returns the time to the end of the response in milliseconds.
fn send(
    setup: &Setup,
    proxy: &ServerChild,
    route: &str,
    media_type: &'static str,
    body: &Bytes,
) -> io::Result<f64> {
    let (address, path, body) = (proxy.address, format!("/{route}/x"), body.clone());
    let sent = setup.clients().spawn(async move {
        let mut client = Client::open(address).await?;
        Ok::<_, io::Error>(
            client
                .post(&path, media_type, &body)
                .await?
                .end
                .as_secs_f64()
                * 1e3,
        )
    });
    setup.clients().block_on(sent)?
}
