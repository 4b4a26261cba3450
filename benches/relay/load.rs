//! Requests per second of many connections, and latency of one connection.

use std::io;
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use sealwire_benches::stats::Summary;

use crate::child::ServerChild;
use crate::client::{Client, document};
use crate::report::{Ask, Report};
use crate::setup::Setup;

/// Connections of the throughput rounds.
const CONNECTIONS: usize = 32;
/// Routes, their names in the report, and the share of the plain proxy's requests that they must
/// reach.
const ROUTES: [(&str, &str, Ask, Ask); 3] = [
    ("pass", "no field", Ask::None, Ask::None),
    ("three", "3 fields encrypted", Ask::None, Ask::None),
    (
        "thirty",
        "30 fields encrypted",
        Ask::AtLeast(60.0),
        Ask::AtMost(0.5),
    ),
];

pub(crate) fn run(setup: &Setup, report: &mut Report) -> io::Result<()> {
    let document = document();
    let (rounds, time, requests) = if setup.is_smoke {
        (1, Duration::from_millis(150), 10)
    } else {
        (7, Duration::from_millis(2_000), 400)
    };
    let mut plain_rates = Vec::new();
    let mut rates = [const { Vec::new() }; ROUTES.len()];
    let mut ratios = [const { Vec::new() }; ROUTES.len()];
    let mut cpu = [const { Vec::new() }; ROUTES.len()];
    let mut plain_cpu = Vec::new();
    for _ in 0..rounds {
        let (plain, cpu_of_plain) = throughput(setup, &setup.plain, "/plain/x", &document, time)?;
        plain_rates.push(plain);
        plain_cpu.push(cpu_of_plain);
        for (at, (route, ..)) in ROUTES.iter().enumerate() {
            let (relay, cpu_of_relay) =
                throughput(setup, &setup.relay, &format!("/{route}/x"), &document, time)?;
            rates[at].push(relay);
            ratios[at].push(100.0 * relay / plain);
            cpu[at].push(cpu_of_relay);
        }
    }
    report.add(
        "load: plain proxy, 32 connections",
        "1/s",
        &plain_rates,
        Ask::None,
    );
    report.add(
        "load: plain proxy, CPU per request",
        "us",
        &plain_cpu,
        Ask::None,
    );
    for (at, (_, name, ask, _)) in ROUTES.iter().enumerate() {
        report.add(format!("load: relay, {name}"), "1/s", &rates[at], Ask::None);
        report.add(
            format!("load: relay, {name}, CPU per request"),
            "us",
            &cpu[at],
            Ask::None,
        );
        report.add(
            format!("load: share of plain, {name}"),
            "%",
            &ratios[at],
            *ask,
        );
    }
    let mut added = [const { Vec::new() }; ROUTES.len()];
    let (mut plain_p50, mut p50) = (Vec::new(), [const { Vec::new() }; ROUTES.len()]);
    for _ in 0..rounds {
        let plain = latency(setup, &setup.plain, "/plain/x", &document, requests)?;
        plain_p50.push(plain);
        for (at, (route, ..)) in ROUTES.iter().enumerate() {
            let relay = latency(
                setup,
                &setup.relay,
                &format!("/{route}/x"),
                &document,
                requests,
            )?;
            p50[at].push(relay);
            added[at].push(relay - plain);
        }
    }
    report.add(
        "load: plain proxy, 1 connection, p50",
        "ms",
        &plain_p50,
        Ask::None,
    );
    for (at, (_, name, _, ask)) in ROUTES.iter().enumerate() {
        report.add(
            format!("load: relay, {name}, p50"),
            "ms",
            &p50[at],
            Ask::None,
        );
        report.add(format!("load: p50 added, {name}"), "ms", &added[at], *ask);
    }
    Ok(())
}

/// Returns requests per second, and CPU time of the proxy per request in microseconds.
fn throughput(
    setup: &Setup,
    proxy: &ServerChild,
    path: &str,
    document: &Bytes,
    time: Duration,
) -> io::Result<(f64, f64)> {
    setup.clients().block_on(async {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut client = Client::open(proxy.address).await?;
            client.post(path, "application/json", document).await?;
            clients.push(client);
        }
        let (cpu, begun) = (proxy.cpu()?, Instant::now());
        let end = begun + time;
        let workers = clients.into_iter().map(|mut client| {
            let (path, document) = (path.to_owned(), document.clone());
            tokio::spawn(async move {
                let mut requests = 0_u32;
                while Instant::now() < end {
                    client.post(&path, "application/json", &document).await?;
                    requests += 1;
                }
                Ok::<_, io::Error>(requests)
            })
        });
        let workers: Vec<_> = workers.collect();
        let mut requests = 0_u32;
        for worker in workers {
            requests += worker.await??;
        }
        let (seconds, cpu) = (
            begun.elapsed().as_secs_f64(),
            proxy.cpu()?.saturating_sub(cpu),
        );
        Ok((
            f64::from(requests) / seconds,
            cpu.as_secs_f64() * 1e6 / f64::from(requests),
        ))
    })
}

/// Returns the median latency of one connection in milliseconds.
fn latency(
    setup: &Setup,
    proxy: &ServerChild,
    path: &str,
    document: &Bytes,
    requests: usize,
) -> io::Result<f64> {
    let (address, path, document) = (proxy.address, path.to_owned(), document.clone());
    let measured = setup.clients().spawn(async move {
        let mut client = Client::open(address).await?;
        client.post(&path, "application/json", &document).await?;
        let mut samples = Vec::with_capacity(requests);
        for _ in 0..requests {
            samples.push(
                client
                    .post(&path, "application/json", &document)
                    .await?
                    .end
                    .as_secs_f64()
                    * 1e3,
            );
        }
        Ok::<_, io::Error>(Summary::of(samples).p50)
    });
    setup.clients().block_on(measured)?
}
