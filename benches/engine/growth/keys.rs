//! Decryption of documents whose fields were sealed by many requests: each of these used a key of
//! its own.

use std::io;
use std::time::Duration;

use sealwire_benches::document::{APP, document};
use sealwire_benches::is_smoke_run;
use sealwire_benches::stats::median;
use sealwire_client::{Client, Decrypt, Encrypt, Suite, Writing};
use sealwire_msgpack::write;
use tokio::runtime::Runtime;

use super::Curve;
use crate::child::Setting;
use crate::cpu::load::{BenchOperation, CpuLoad, Measured, Sent, measure_sent};
use crate::cpu::place::Place;
use crate::cpu::{PRODUCTION, callers};

/// Fields of every document.
const FIELDS: usize = 2_000;
/// Most keys in a document, so that all of them have as many fields.
pub(super) const KEYS_MAX: usize = 1_000;
/// Turns in which the engines are measured at each size. Medians of them are shown.
const ROUNDS: usize = 5;
/// No key outlives its request, so every key of a document takes its agreement.
const NO_CACHE: Setting = ("crypto.open_key_cache_entries", "0");
const ONE_THREAD: Setting = ("crypto.threads", "1");

pub(super) fn keys(sizes: &[usize], time: Duration) -> io::Result<Curve> {
    let mut curve = Curve::new(
        "keys",
        "keys in a document of 2,000 fields",
        "One caller decrypts documents, one request at a time, whose fields were sealed by that many requests. No key is cached. \
         With P-256, an engine with one crypto thread beside one with a thread per core.",
        &[
            ("CPU per field", "us"),
            ("p50, one thread", "us"),
            ("p50, all threads", "us"),
            ("p50, one thread over all", "times"),
            ("CPU per field, xaes", "us"),
            ("p50, xaes", "us"),
        ],
    );
    let callers = callers()?;
    let engine =
        |settings: &[Setting]| Place::process(&[&PRODUCTION[..], &[NO_CACHE], settings].concat());
    let engines = [engine(&[ONE_THREAD])?, engine(&[])?];
    let rounds = if is_smoke_run() { 1 } else { ROUNDS };
    for size in sizes {
        let documents = [Suite::P256, Suite::Xaes].map(|suite| {
            engines
                .each_ref()
                .map(|place| sealed(&callers, &place.client(&callers), *size, suite))
        });
        let arms = [(0, 0), (0, 1), (1, 1)];
        let mut measured: [Vec<Measured>; 3] = Default::default();
        for _ in 0..rounds {
            for (arm, (suite, engine)) in arms.into_iter().enumerate() {
                let load = CpuLoad {
                    operation: BenchOperation::DecryptText,
                    fields: FIELDS,
                    callers: 1,
                };
                let sent = &documents[suite][engine];
                measured[arm].push(measure_sent(
                    &callers,
                    &engines[engine],
                    load,
                    sent,
                    time / ROUNDS as u32,
                )?);
            }
        }
        let of = |arm: usize, figure: fn(&Measured) -> f64| {
            median(measured[arm].iter().map(figure).collect())
        };
        let p50 = |one: &Measured| one.latency_us[0];
        let cpu = |one: &Measured| one.cpu_ns() / 1e3;
        let ratios = measured[0]
            .iter()
            .zip(&measured[1])
            .map(|(one, all)| p50(one) / p50(all))
            .collect();
        curve.push(
            *size,
            &[
                of(1, cpu),
                of(0, p50),
                of(1, p50),
                median(ratios),
                of(2, cpu),
                of(2, p50),
            ],
        );
    }
    engines.into_iter().for_each(Place::stop);
    Ok(curve)
}

/// Makes an array of documents, each encrypted by a request, and checks that they decrypt.
fn sealed(callers: &Runtime, client: &Client, keys: usize, suite: Suite) -> Sent {
    let part = document(FIELDS / keys);
    let writing = Writing {
        suite: Some(suite),
        ..Writing::default()
    };
    let (mut payload, mut plain) = (Vec::new(), Vec::new());
    for out in [&mut payload, &mut plain] {
        write::array_len(out, u32::try_from(keys).expect("fits"));
    }
    for _ in 0..keys {
        let call = Encrypt {
            writing,
            ..Encrypt::new(APP, &part)
        };
        payload.extend_from_slice(
            &callers
                .block_on(client.encrypt(call))
                .expect("encrypts")
                .payload,
        );
        plain.extend_from_slice(&part);
    }
    let opened = callers
        .block_on(client.decrypt(Decrypt::new(APP, &payload)))
        .expect("decrypts");
    assert_eq!(opened.payload, plain);
    Sent {
        payload,
        encapsulations: Vec::new(),
    }
}
