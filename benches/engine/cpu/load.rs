//! Loads on one engine: requests of one kind, in a closed loop.

use std::io;
use std::time::{Duration, Instant};

use sealwire_benches::document::{APP, document, rows};
use sealwire_benches::stats::quantile;
use sealwire_client::{Client, Decrypt, Encoding, Encrypt, EnvelopeOptions, KeyScope, Suite};
use tokio::runtime::Runtime;

use crate::cpu::place::{CpuTime, Place};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchOperation {
    EncryptText,
    /// On secp256k1.
    EncryptK1,
    /// With the key of the app's epoch.
    EncryptEpoch,
    EncryptBinary,
    /// One field of each row, under one context.
    EncryptRows,
    /// One field of each row, under the row's own context.
    EncryptRowsBound,
    DecryptText,
    /// Every field has a key of its own, as if each came from another request.
    DecryptKeyed,
}

impl BenchOperation {
    const fn name(self) -> &'static str {
        match self {
            Self::EncryptText => "encrypt_text",
            Self::EncryptK1 => "encrypt_k1",
            Self::EncryptEpoch => "encrypt_epoch",
            Self::EncryptBinary => "encrypt_binary",
            Self::EncryptRows => "encrypt_rows",
            Self::EncryptRowsBound => "encrypt_rows_bound",
            Self::DecryptText => "decrypt_text",
            Self::DecryptKeyed => "decrypt_keyed",
        }
    }

    const fn decrypts(self) -> bool {
        matches!(self, Self::DecryptText | Self::DecryptKeyed)
    }

    /// Makes the plain document of a request.
    fn document(self, fields: usize) -> Vec<u8> {
        match self {
            Self::EncryptRows | Self::EncryptRowsBound => rows(fields),
            _ => document(fields),
        }
    }

    /// Makes a request that encrypts a document.
    fn encrypt(self, payload: &[u8]) -> Encrypt<'_> {
        let request = Encrypt::new(APP, payload).envelope_options(self.writing());
        match self {
            Self::EncryptRows => request.select(["$[*].number"]).context("1000000"),
            Self::EncryptRowsBound => request.select(["$[*].number"]).context_path("$.id"),
            _ => request,
        }
    }

    /// Returns how the documents of the requests are encrypted.
    fn writing(self) -> EnvelopeOptions {
        // The suite is named, so that no figure changes its meaning with the suite of new apps.
        let default = EnvelopeOptions::new().suite(Suite::P256);
        match self {
            Self::EncryptText | Self::EncryptRows | Self::EncryptRowsBound | Self::DecryptText => {
                default
            }
            Self::EncryptK1 => default.suite(Suite::Secp256k1),
            Self::EncryptEpoch => default.key_scope(KeyScope::Epoch),
            Self::EncryptBinary => default.encoding(Encoding::Binary),
            Self::DecryptKeyed => default.key_scope(KeyScope::Field),
        }
    }
}

/// One kind of load: operation, fields per request, and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuLoad {
    pub(crate) operation: BenchOperation,
    pub(crate) fields: usize,
    pub(crate) callers: usize,
}

impl CpuLoad {
    const fn of(operation: BenchOperation, fields: usize, callers: usize) -> Self {
        Self {
            operation,
            fields,
            callers,
        }
    }

    /// Returns the load's name: `operation/callers/fields`.
    pub(crate) fn name(self) -> String {
        format!(
            "{}/c{}/{}",
            self.operation.name(),
            self.callers,
            self.fields
        )
    }
}

pub(crate) const LOADS: [CpuLoad; 18] = [
    CpuLoad::of(BenchOperation::EncryptText, 1, 1),
    CpuLoad::of(BenchOperation::EncryptText, 1, 64),
    CpuLoad::of(BenchOperation::EncryptEpoch, 1, 1),
    CpuLoad::of(BenchOperation::EncryptEpoch, 1, 64),
    CpuLoad::of(BenchOperation::EncryptText, 30, 8),
    CpuLoad::of(BenchOperation::EncryptText, 100, 8),
    CpuLoad::of(BenchOperation::EncryptText, 2_000, 4),
    CpuLoad::of(BenchOperation::EncryptText, 60_000, 2),
    CpuLoad::of(BenchOperation::EncryptK1, 1, 64),
    CpuLoad::of(BenchOperation::EncryptK1, 30, 8),
    CpuLoad::of(BenchOperation::EncryptK1, 2_000, 4),
    CpuLoad::of(BenchOperation::EncryptBinary, 2_000, 4),
    CpuLoad::of(BenchOperation::DecryptText, 1, 64),
    CpuLoad::of(BenchOperation::DecryptText, 100, 8),
    CpuLoad::of(BenchOperation::DecryptKeyed, 100, 8),
    CpuLoad::of(BenchOperation::DecryptText, 2_000, 4),
    CpuLoad::of(BenchOperation::EncryptRows, 100, 8),
    CpuLoad::of(BenchOperation::EncryptRowsBound, 100, 8),
];

/// Measurement of one load.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) load: CpuLoad,
    pub(crate) requests: u64,
    pub(crate) wall: Duration,
    pub(crate) cpu: CpuTime,
    /// Median and p99 of the latency, in microseconds.
    pub(crate) latency_us: [f64; 2],
}

impl Measured {
    pub(crate) fn fields(&self) -> f64 {
        self.requests as f64 * self.load.fields as f64
    }

    pub(crate) fn per_field_ns(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / self.fields()
    }

    pub(crate) fn per_request_us(&self) -> f64 {
        self.cpu.all().as_nanos() as f64 / self.requests as f64 / 1e3
    }

    pub(crate) fn cpu_ns(&self) -> f64 {
        self.per_field_ns(self.cpu.all())
    }

    pub(crate) fn fields_per_cpu_second(&self) -> f64 {
        1e9 / self.cpu_ns()
    }

    pub(crate) fn fields_per_second(&self) -> f64 {
        self.fields() / self.wall.as_secs_f64()
    }

    pub(crate) fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.wall.as_secs_f64()
    }
}

/// Runs a load: a warm-up of a tenth of the time, and then the measurement.
pub(crate) fn measure(
    callers: &Runtime,
    place: &Place,
    load: CpuLoad,
    time: Duration,
) -> io::Result<Measured> {
    let client = place.client(callers);
    let payload = payload(callers, &client, load);
    callers.block_on(closed_loop(&client, load, &payload, time / 10));
    let before = place.cpu()?;
    let begin = Instant::now();
    let mut latencies = callers.block_on(closed_loop(&client, load, &payload, time));
    let wall = begin.elapsed();
    // The CPU time of threads is complete only after they sleep.
    std::thread::sleep(Duration::from_millis(20));
    let cpu = place.cpu()?.since(before);
    latencies.sort_by(f64::total_cmp);
    let latency_us = [0.5, 0.99].map(|q| quantile(&latencies, q));
    Ok(Measured {
        load,
        requests: latencies.len() as u64,
        wall,
        cpu,
        latency_us,
    })
}

/// Returns the payload that the requests of a load send.
fn payload(callers: &Runtime, client: &Client, load: CpuLoad) -> Vec<u8> {
    let payload = load.operation.document(load.fields);
    if !load.operation.decrypts() {
        return payload;
    }
    let sealed = callers.block_on(client.encrypt(load.operation.encrypt(&payload)));
    sealed.expect("encrypts").payload.to_vec()
}

/// Returns the latency of each response in microseconds. Each caller sends at least one request.
async fn closed_loop(client: &Client, load: CpuLoad, payload: &[u8], time: Duration) -> Vec<f64> {
    let end = Instant::now() + time;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..load.callers {
        let client = client.clone();
        let payload = payload.to_vec();
        callers.spawn(async move {
            let (mut latencies, mut begun) = (Vec::new(), Instant::now());
            while latencies.is_empty() || begun < end {
                call(&client, load.operation, &payload).await;
                let answered = Instant::now();
                latencies.push((answered - begun).as_nanos() as f64 / 1e3);
                begun = answered;
            }
            latencies
        });
    }
    callers.join_all().await.into_iter().flatten().collect()
}

async fn call(client: &Client, operation: BenchOperation, payload: &[u8]) {
    let reply = if operation.decrypts() {
        client.decrypt(Decrypt::new(APP, payload)).await
    } else {
        client.encrypt(operation.encrypt(payload)).await
    };
    reply.expect("is answered");
}
