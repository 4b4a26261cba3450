//! Loads on one engine: requests of one kind, in a closed loop.

use std::io;
use std::time::{Duration, Instant};

use sealwire_benches::document::{APP, document};
use sealwire_benches::stats::quantile;
use sealwire_client::{
    Client, Decrypt, Encapsulation, Encoding, Encrypt, KeyScope, Suite, Writing,
};
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
    /// With suite `xaes`.
    EncryptXaes,
    /// With suite `p256-mlkem768`, its encapsulation apart.
    EncryptHybrid,
    /// With suite `p256-psk`.
    EncryptPsk,
    /// With suite `secp256k1-psk`.
    EncryptPskK1,
    DecryptText,
    /// Every field has a key of its own, as if each came from another request.
    DecryptKeyed,
    /// Suite `xaes`.
    DecryptXaes,
    /// Suite `xaes`, and every field as if from another request.
    DecryptXaesKeyed,
    /// Suite `p256-mlkem768`, its encapsulation apart.
    DecryptHybrid,
    /// Suite `p256-psk`.
    DecryptPsk,
    /// Suite `p256-psk`, and every field as if from another request.
    DecryptPskKeyed,
}

impl BenchOperation {
    const fn name(self) -> &'static str {
        match self {
            Self::EncryptText => "encrypt_text",
            Self::EncryptK1 => "encrypt_k1",
            Self::EncryptEpoch => "encrypt_epoch",
            Self::EncryptBinary => "encrypt_binary",
            Self::EncryptXaes => "encrypt_xaes",
            Self::EncryptHybrid => "encrypt_hybrid",
            Self::DecryptText => "decrypt_text",
            Self::DecryptKeyed => "decrypt_keyed",
            Self::DecryptXaes => "decrypt_xaes",
            Self::DecryptXaesKeyed => "decrypt_xaes_keyed",
            Self::DecryptHybrid => "decrypt_hybrid",
            Self::EncryptPsk => "encrypt_psk",
            Self::EncryptPskK1 => "encrypt_psk_k1",
            Self::DecryptPsk => "decrypt_psk",
            Self::DecryptPskKeyed => "decrypt_psk_keyed",
        }
    }

    const fn decrypts(self) -> bool {
        match self {
            Self::DecryptText
            | Self::DecryptKeyed
            | Self::DecryptXaes
            | Self::DecryptXaesKeyed
            | Self::DecryptHybrid
            | Self::DecryptPsk
            | Self::DecryptPskKeyed => true,
            Self::EncryptText
            | Self::EncryptK1
            | Self::EncryptEpoch
            | Self::EncryptBinary
            | Self::EncryptXaes
            | Self::EncryptHybrid
            | Self::EncryptPsk
            | Self::EncryptPskK1 => false,
        }
    }

    /// Returns how the documents of the requests are encrypted.
    fn writing(self) -> Writing<'static> {
        // The suite is named, so that no figure changes its meaning with the suite of new apps.
        let default = Writing {
            suite: Some(Suite::P256),
            ..Writing::default()
        };
        match self {
            Self::EncryptText | Self::DecryptText => default,
            Self::EncryptK1 => Writing {
                suite: Some(Suite::Secp256k1),
                ..default
            },
            Self::EncryptEpoch => Writing {
                key_scope: KeyScope::Epoch,
                ..default
            },
            Self::EncryptBinary => Writing {
                encoding: Encoding::Binary,
                ..default
            },
            Self::EncryptXaes | Self::DecryptXaes => Writing {
                suite: Some(Suite::Xaes),
                ..default
            },
            Self::EncryptHybrid | Self::DecryptHybrid => Writing {
                suite: Some(Suite::P256MlKem768),
                encapsulation: Encapsulation::Apart,
                ..default
            },
            Self::EncryptPsk | Self::DecryptPsk => Writing {
                suite: Some(Suite::P256Psk),
                ..default
            },
            Self::EncryptPskK1 => Writing {
                suite: Some(Suite::Secp256k1Psk),
                ..default
            },
            Self::DecryptPskKeyed => Writing {
                suite: Some(Suite::P256Psk),
                key_scope: KeyScope::Field,
                ..default
            },
            Self::DecryptKeyed => Writing {
                key_scope: KeyScope::Field,
                ..default
            },
            Self::DecryptXaesKeyed => Writing {
                suite: Some(Suite::Xaes),
                key_scope: KeyScope::Field,
                ..default
            },
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

pub(crate) const LOADS: [CpuLoad; 16] = [
    CpuLoad {
        operation: BenchOperation::EncryptText,
        fields: 1,
        callers: 1,
    },
    CpuLoad {
        operation: BenchOperation::EncryptText,
        fields: 1,
        callers: 64,
    },
    CpuLoad {
        operation: BenchOperation::EncryptEpoch,
        fields: 1,
        callers: 1,
    },
    CpuLoad {
        operation: BenchOperation::EncryptEpoch,
        fields: 1,
        callers: 64,
    },
    CpuLoad {
        operation: BenchOperation::EncryptText,
        fields: 30,
        callers: 8,
    },
    CpuLoad {
        operation: BenchOperation::EncryptText,
        fields: 100,
        callers: 8,
    },
    CpuLoad {
        operation: BenchOperation::EncryptText,
        fields: 2_000,
        callers: 4,
    },
    CpuLoad {
        operation: BenchOperation::EncryptText,
        fields: 60_000,
        callers: 2,
    },
    CpuLoad {
        operation: BenchOperation::EncryptK1,
        fields: 1,
        callers: 64,
    },
    CpuLoad {
        operation: BenchOperation::EncryptK1,
        fields: 30,
        callers: 8,
    },
    CpuLoad {
        operation: BenchOperation::EncryptK1,
        fields: 2_000,
        callers: 4,
    },
    CpuLoad {
        operation: BenchOperation::EncryptBinary,
        fields: 2_000,
        callers: 4,
    },
    CpuLoad {
        operation: BenchOperation::DecryptText,
        fields: 1,
        callers: 64,
    },
    CpuLoad {
        operation: BenchOperation::DecryptText,
        fields: 100,
        callers: 8,
    },
    CpuLoad {
        operation: BenchOperation::DecryptKeyed,
        fields: 100,
        callers: 8,
    },
    CpuLoad {
        operation: BenchOperation::DecryptText,
        fields: 2_000,
        callers: 4,
    },
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
    let sent = payload(callers, &client, load);
    measure_sent(callers, place, load, &sent, time)
}

/// Runs a load, as [`measure`] does, with a payload of its own.
pub(crate) fn measure_sent(
    callers: &Runtime,
    place: &Place,
    load: CpuLoad,
    sent: &Sent,
    time: Duration,
) -> io::Result<Measured> {
    let client = place.client(callers);
    callers.block_on(closed_loop(&client, load, sent, time / 10));
    let before = place.cpu()?;
    let begin = Instant::now();
    let mut latencies = callers.block_on(closed_loop(&client, load, sent, time));
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

/// The parameters that the requests of a load send.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) payload: Vec<u8>,
    pub(crate) encapsulations: Vec<String>,
}

fn payload(callers: &Runtime, client: &Client, load: CpuLoad) -> Sent {
    let payload = document(load.fields);
    if !load.operation.decrypts() {
        return Sent {
            payload,
            encapsulations: Vec::new(),
        };
    }
    let writing = load.operation.writing();
    let sealed = callers.block_on(client.encrypt(Encrypt {
        writing,
        ..Encrypt::new(APP, &payload)
    }));
    let sealed = sealed.expect("encrypts");
    Sent {
        payload: sealed.payload.to_vec(),
        encapsulations: sealed.encapsulations,
    }
}

/// Returns the latency of each response in microseconds. Each caller sends at least one request.
async fn closed_loop(client: &Client, load: CpuLoad, sent: &Sent, time: Duration) -> Vec<f64> {
    let end = Instant::now() + time;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..load.callers {
        let (client, sent) = (client.clone(), sent.clone());
        callers.spawn(async move {
            let (mut latencies, mut begun) = (Vec::new(), Instant::now());
            while latencies.is_empty() || begun < end {
                call(&client, load.operation, &sent).await;
                let answered = Instant::now();
                latencies.push((answered - begun).as_nanos() as f64 / 1e3);
                begun = answered;
            }
            latencies
        });
    }
    callers.join_all().await.into_iter().flatten().collect()
}

async fn call(
    client: &Client,
    operation: BenchOperation,
    Sent {
        payload,
        encapsulations,
    }: &Sent,
) {
    let reply = if operation.decrypts() {
        let encapsulations = encapsulations.iter().map(String::as_str).collect();
        client
            .decrypt(Decrypt {
                encapsulations,
                ..Decrypt::new(APP, payload)
            })
            .await
    } else {
        client
            .encrypt(Encrypt {
                writing: operation.writing(),
                ..Encrypt::new(APP, payload)
            })
            .await
    };
    reply.expect("is answered");
}
