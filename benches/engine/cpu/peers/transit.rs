//! A load on OpenBao's transit: batches under one key in a closed loop, on one kept connection per
//! caller.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::Method;
use hyper::body::Bytes;
use sealwire_benches::document::FIELD_BYTES;
use sealwire_benches::stats::quantile;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::https::Https;
use super::openbao::{DECRYPT, ENCRYPT, OpenBao};
use crate::cpu::load::{BenchOperation, CpuLoad, Measured};
use crate::cpu::place::CpuTime;

/// The prefix of every ciphertext under the first version of a key.
const CIPHERTEXT: &str = "vault:v1:";

/// One kind of request, as often as its callers send it.
#[derive(Debug)]
pub(super) struct TransitLoad {
    load: CpuLoad,
    connections: Vec<Https>,
    batch: Arc<Batch>,
}

#[derive(Debug)]
struct Batch {
    path: &'static str,
    token: String,
    body: Bytes,
    /// Fields in base64, in order.
    plaintexts: Vec<String>,
}

impl TransitLoad {
    /// Opens the connections and prepares the request. Encrypts and decrypts the batch once: the
    /// result must be what was encrypted.
    pub(super) fn prepare(callers: &Runtime, server: &OpenBao, load: CpuLoad) -> io::Result<Self> {
        // The values that `document` has.
        let field = |field| BASE64_STANDARD.encode(format!("{field:0FIELD_BYTES$}"));
        let plaintexts: Vec<String> = (0..load.fields).map(field).collect();
        callers.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..load.callers {
                connections.push(server.connect().await?);
            }
            let batch = |path, key: &str, values: Vec<&str>| {
                let items: Vec<Value> = values.iter().map(|value| json!({ key: value })).collect();
                let body = json!({ "batch_input": items }).to_string().into();
                Batch {
                    path,
                    token: server.token.clone(),
                    body,
                    plaintexts: plaintexts.clone(),
                }
            };
            let encrypt = batch(
                ENCRYPT,
                "plaintext",
                plaintexts.iter().map(String::as_str).collect(),
            );
            let sealed = encrypt.send(&mut connections[0]).await?;
            let decrypt = batch(
                DECRYPT,
                "ciphertext",
                values(&sealed, "ciphertext").collect(),
            );
            decrypt.send(&mut connections[0]).await?;
            let batch = if load.operation == BenchOperation::DecryptText {
                decrypt
            } else {
                encrypt
            };
            Ok(Self {
                load,
                connections,
                batch: Arc::new(batch),
            })
        })
    }

    /// Runs the load: a warm-up of a tenth of the time, and then the measurement, as for the
    /// engine.
    pub(super) fn measure(
        &mut self,
        callers: &Runtime,
        server: &OpenBao,
        time: Duration,
    ) -> io::Result<Measured> {
        callers.block_on(self.closed_loop(time / 10))?;
        let before = server.cpu()?;
        let begin = Instant::now();
        let mut latencies = callers.block_on(self.closed_loop(time))?;
        let wall = begin.elapsed();
        // The CPU time of threads is complete only after they sleep.
        std::thread::sleep(Duration::from_millis(20));
        let cpu = CpuTime {
            other: server.cpu()?.saturating_sub(before),
            ..CpuTime::default()
        };
        latencies.sort_by(f64::total_cmp);
        let latency_us = [0.5, 0.99].map(|q| quantile(&latencies, q));
        Ok(Measured {
            load: self.load,
            requests: latencies.len() as u64,
            wall,
            cpu,
            latency_us,
        })
    }

    /// Returns the latency of each response in microseconds. Each caller sends at least one
    /// request.
    async fn closed_loop(&mut self, time: Duration) -> io::Result<Vec<f64>> {
        let end = Instant::now() + time;
        let mut callers = JoinSet::new();
        for mut connection in self.connections.drain(..) {
            let batch = Arc::clone(&self.batch);
            callers.spawn(async move {
                let (mut latencies, mut begun) = (Vec::new(), Instant::now());
                while latencies.is_empty() || begun < end {
                    batch.send(&mut connection).await?;
                    let answered = Instant::now();
                    latencies.push((answered - begun).as_nanos() as f64 / 1e3);
                    begun = answered;
                }
                io::Result::Ok((connection, latencies))
            });
        }
        let mut all = Vec::new();
        for ended in callers.join_all().await {
            let (connection, latencies) = ended?;
            self.connections.push(connection);
            all.extend(latencies);
        }
        Ok(all)
    }
}

impl Batch {
    /// Sends the request and checks that its response has every result.
    async fn send(&self, connection: &mut Https) -> io::Result<Value> {
        let response = connection
            .send(Method::PUT, self.path, &self.token, self.body.clone())
            .await?;
        let is_right = if self.path == DECRYPT {
            values(&response, "plaintext").eq(self.plaintexts.iter().map(String::as_str))
        } else {
            let sealed =
                values(&response, "ciphertext").filter(|text| text.starts_with(CIPHERTEXT));
            sealed.count() == self.plaintexts.len()
        };
        is_right
            .then_some(response)
            .ok_or_else(|| io::Error::other(format!("{}: a wrong result", self.path)))
    }
}

/// Returns the results of a batch in order. One without the value counts as an empty text.
fn values<'a>(response: &'a Value, key: &'a str) -> impl Iterator<Item = &'a str> {
    let results = response
        .pointer("/data/batch_results")
        .and_then(Value::as_array);
    results
        .into_iter()
        .flatten()
        .map(move |result| result[key].as_str().unwrap_or_default())
}
