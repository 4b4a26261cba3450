//! First byte of an event stream whose values are decrypted while it passes.

use std::io;

use hyper::body::Bytes;
use sealwire_benches::stats::Summary;

use crate::child::ServerChild;
use crate::client::{Client, document};
use crate::report::{Ask, Report};
use crate::setup::Setup;

pub(crate) fn run(setup: &Setup, report: &mut Report) -> io::Result<()> {
    let sealed = setup.clients().block_on(async {
        let mut client = Client::open(setup.relay.address).await?;
        Ok::<_, io::Error>(
            client
                .post("/three/mirror", "application/json", &document())
                .await?
                .body,
        )
    })?;
    let (rounds, requests) = if setup.is_smoke { (1, 5) } else { (9, 150) };
    let (mut plain_first, mut relay_first, mut later) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let plain = first_byte(setup, &setup.plain, &sealed, requests, false)?;
        let relay = first_byte(setup, &setup.relay, &sealed, requests, true)?;
        plain_first.push(plain);
        relay_first.push(relay);
        later.push(relay - plain);
    }
    report.add(
        "stream: first byte, plain proxy, p50",
        "ms",
        &plain_first,
        Ask::None,
    );
    report.add(
        "stream: first byte, relay with decrypt, p50",
        "ms",
        &relay_first,
        Ask::None,
    );
    report.add("stream: first byte later", "ms", &later, Ask::AtMost(1.0));
    Ok(())
}

/// Returns the median time to the first byte in milliseconds.
fn first_byte(
    setup: &Setup,
    proxy: &ServerChild,
    sealed: &Bytes,
    requests: usize,
    is_decrypted: bool,
) -> io::Result<f64> {
    let (address, sealed) = (proxy.address, sealed.clone());
    let measured = setup.clients().spawn(async move {
        let mut client = Client::open(address).await?;
        let mut samples = Vec::with_capacity(requests);
        for at in 0..=requests {
            let timed = client
                .post("/decrypt/events", "application/json", &sealed)
                .await?;
            let has_value = timed
                .body
                .windows(10)
                .any(|window| window == b"\"000000000");
            let events = timed
                .body
                .windows(6)
                .filter(|window| window == b"data: ")
                .count();
            assert_eq!(
                (has_value, events),
                (is_decrypted, 2),
                "an event stream is wrong"
            );
            // The first request opens connections.
            if at > 0 {
                samples.push(timed.first.as_secs_f64() * 1e3);
            }
        }
        Ok::<_, io::Error>(Summary::of(samples).p50)
    });
    setup.clients().block_on(measured)?
}
