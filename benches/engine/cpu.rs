//! The engine's CPU time per field over mutual TLS, against the budgets of the design.
//!
//! Not a Criterion bench: wall time on shared cores mixes the engine with its callers. Here the engine's threads are
//! told apart by name and their CPU time is read from the scheduler (Linux). The floors are measured in the same run,
//! by CPU time as well, before and after the load; their mean is the unit that the budgets are ratios of.
//!
//! `cargo bench -p sealwire-benches --bench engine -- cpu`; `--help` prints the options. The app is warm, with its
//! table and ready keys made, unless `--cold` switches those off; it allows epochs. Closed loop: each caller sends its
//! next request when it has the reply to the last.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use sealwire_benches::document::{APP, FIELD_BYTES, document};
use sealwire_benches::floor::{Aes, KeygenAndEcdh, TAG_BYTES};
use sealwire_benches::world::{CRYPTO, NETWORK, World};
use sealwire_benches::{is_smoke_run, say, thread_cpu};
use sealwire_client::{Client, Curve, Decrypt, Encoding, Encrypt, KeyScope, Writing};
use serde_json::json;

const HELP: &str = "\
CPU time of the engine per field over mutual TLS, against its budgets.

    cargo bench -p sealwire-benches --bench engine -- cpu [OPTIONS]

    --only TEXT    Only loads whose name contains this, such as encrypt_text/c4/2000.
    --cold         Without tables, ready keys and opened keys, so that every request makes its own.
    --seconds N    Of each load; 3 by default.
    --json         JSON on standard output instead of tables.
    --help         This.
";

/// OpenBao transit: CPU nanoseconds per field by batch size, measured on the reference machine.
const OPENBAO_NS: [(usize, f64); 4] = [(1, 600_000.0), (30, 26_000.0), (100, 11_000.0), (2_000, 4_900.0)];
/// Budget for a field in a request of 2,000, as a multiple of a bare AES-256-GCM seal.
const SEALS_MAX: f64 = 4.0;
/// Least throughput in fields per core of server time, in requests of 2,000.
const FIELDS_PER_CPU_SECOND_MIN: f64 = 1_500_000.0;
/// Least throughput in fields per CPU-second, as a multiple of OpenBao's.
const OPENBAO_FACTOR_MIN: f64 = 10.0;
/// Budget for a cold request of one field, as a multiple of a bare key generation with a Diffie-Hellman.
const KEYGENS_MAX: f64 = 1.5;
/// Budget for a request of one field if warm or in an epoch, in that unit.
const WARM_SHARE_MAX: f64 = 0.5;
/// Budget for a field on secp256k1, as a multiple of its cost on P-256.
const K1_FACTOR_MAX: f64 = 2.0;
/// Budget for opening a field of a request, as a multiple of sealing it.
const DECRYPT_FACTOR_MAX: f64 = 1.3;
/// Warm-up time, longer than the engine needs to find an app busy and compute its table.
const WARM_UP: Duration = Duration::from_millis(2_500);

#[derive(Clone, Copy, PartialEq, Eq)]
enum BenchOperation {
    EncryptText,
    /// On secp256k1.
    EncryptK1,
    /// With the key of the app's epoch.
    EncryptEpoch,
    EncryptBinary,
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
            Self::DecryptText => "decrypt_text",
            Self::DecryptKeyed => "decrypt_keyed",
        }
    }
}

/// One kind of load: operation, fields per request, and clients.
#[derive(Clone, Copy)]
struct CpuLoad {
    operation: BenchOperation,
    fields: usize,
    callers: usize,
}

impl CpuLoad {
    /// Returns the load's name: `operation/callers/fields`.
    fn name(self) -> String {
        format!("{}/c{}/{}", self.operation.name(), self.callers, self.fields)
    }
}

const LOADS: [CpuLoad; 16] = [
    CpuLoad { operation: BenchOperation::EncryptText, fields: 1, callers: 1 },
    CpuLoad { operation: BenchOperation::EncryptText, fields: 1, callers: 64 },
    CpuLoad { operation: BenchOperation::EncryptEpoch, fields: 1, callers: 1 },
    CpuLoad { operation: BenchOperation::EncryptEpoch, fields: 1, callers: 64 },
    CpuLoad { operation: BenchOperation::EncryptText, fields: 30, callers: 8 },
    CpuLoad { operation: BenchOperation::EncryptText, fields: 100, callers: 8 },
    CpuLoad { operation: BenchOperation::EncryptText, fields: 2_000, callers: 4 },
    CpuLoad { operation: BenchOperation::EncryptText, fields: 60_000, callers: 2 },
    CpuLoad { operation: BenchOperation::EncryptK1, fields: 1, callers: 64 },
    CpuLoad { operation: BenchOperation::EncryptK1, fields: 30, callers: 8 },
    CpuLoad { operation: BenchOperation::EncryptK1, fields: 2_000, callers: 4 },
    CpuLoad { operation: BenchOperation::EncryptBinary, fields: 2_000, callers: 4 },
    CpuLoad { operation: BenchOperation::DecryptText, fields: 1, callers: 64 },
    CpuLoad { operation: BenchOperation::DecryptText, fields: 100, callers: 8 },
    CpuLoad { operation: BenchOperation::DecryptKeyed, fields: 100, callers: 8 },
    CpuLoad { operation: BenchOperation::DecryptText, fields: 2_000, callers: 4 },
];

/// Measurement of one load.
struct Measured {
    load: CpuLoad,
    requests: u64,
    wall: Duration,
    crypto: Duration,
    network: Duration,
}

impl Measured {
    fn fields(&self) -> f64 {
        self.requests as f64 * self.load.fields as f64
    }

    fn per_field_ns(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / self.fields()
    }

    fn cpu_ns(&self) -> f64 {
        self.per_field_ns(self.crypto + self.network)
    }

    fn fields_per_cpu_second(&self) -> f64 {
        1e9 / self.cpu_ns()
    }

    fn fields_per_second(&self) -> f64 {
        self.fields() / self.wall.as_secs_f64()
    }
}

/// CPU time in nanoseconds.
#[derive(Clone, Copy)]
struct Floors {
    seal: f64,
    keygen_ecdh: f64,
}

struct Options {
    json: bool,
    cold: bool,
    seconds: f64,
    /// Run only loads whose name contains this text.
    only: String,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return write!(io::stdout(), "{HELP}");
    }
    let options = options(arguments).map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let floor_time = Duration::from_secs_f64(options.seconds / 4.0);
    let before = floors(floor_time)?;
    let world = World::start(options.cold);
    let time = Duration::from_secs_f64(options.seconds);
    if !options.cold && !is_smoke_run() {
        measure(&world, LOADS[1], WARM_UP)?;
    }
    let loads = LOADS.iter().filter(|load| load.name().contains(&options.only));
    let measured = loads.map(|load| measure(&world, *load, time)).collect::<io::Result<Vec<_>>>()?;
    world.stop();
    let after = floors(floor_time)?;
    let mean = |a: f64, b: f64| (a + b) / 2.0;
    if is_smoke_run() {
        return say("cpu: every request was answered");
    }
    let floors =
        Floors { seal: mean(before.seal, after.seal), keygen_ecdh: mean(before.keygen_ecdh, after.keygen_ecdh) };
    let verdicts = verdicts(&measured, floors, options.cold);
    let out = io::stdout().lock();
    if options.json { print_json(out, &measured, floors, &verdicts) } else { print(out, &measured, floors, &verdicts) }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let seconds = if is_smoke_run() { 0.05 } else { 3.0 };
    let mut options = Options { json: false, cold: false, seconds, only: String::new() };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--json" => options.json = true,
            "--cold" => options.cold = true,
            "--seconds" => options.seconds = value()?.parse().map_err(|_| "--seconds is a number".to_owned())?,
            "--only" => options.only = value()?.clone(),
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}

fn floors(time: Duration) -> io::Result<Floors> {
    let (mut aes, mut data) = (Aes::default(), [b'x'; FIELD_BYTES + TAG_BYTES]);
    let seal = cpu_per_run(time, 1_000, || {
        aes.seal(black_box(&mut data));
    })?;
    let pair = KeygenAndEcdh::default();
    let keygen_ecdh = cpu_per_run(time, 10, || {
        black_box(pair.run());
    })?;
    Ok(Floors { seal, keygen_ecdh })
}

/// Measures this thread's CPU time per run in nanoseconds. Reads the clock every `batch` runs.
fn cpu_per_run(time: Duration, batch: u32, mut run: impl FnMut()) -> io::Result<f64> {
    (0..batch).for_each(|_| run());
    let (begin, end, mut runs) = (thread_cpu::current()?, Instant::now() + time, 0.0);
    while Instant::now() < end {
        (0..batch).for_each(|_| run());
        runs += f64::from(batch);
    }
    Ok((thread_cpu::current()? - begin).as_nanos() as f64 / runs)
}

/// Runs a load: a warm-up of a tenth of the time, and then the measurement.
fn measure(world: &World, load: CpuLoad, time: Duration) -> io::Result<Measured> {
    let client = world.client(2);
    let payload = document(load.fields);
    let payload = match load.operation {
        BenchOperation::DecryptText | BenchOperation::DecryptKeyed => {
            let keyed = load.operation == BenchOperation::DecryptKeyed;
            let key_scope = if keyed { KeyScope::Field } else { KeyScope::Request };
            let writing = Writing { key_scope, ..Writing::default() };
            let sealed = world.callers().block_on(client.encrypt(Encrypt { writing, ..Encrypt::new(APP, &payload) }));
            sealed.expect("encrypts").payload.to_vec()
        }
        BenchOperation::EncryptText
        | BenchOperation::EncryptK1
        | BenchOperation::EncryptEpoch
        | BenchOperation::EncryptBinary => payload,
    };
    world.callers().block_on(closed_loop(&client, load, &payload, time / 10));
    let (crypto, network) = (thread_cpu::of_threads(CRYPTO)?, thread_cpu::of_threads(NETWORK)?);
    let begin = Instant::now();
    let requests = world.callers().block_on(closed_loop(&client, load, &payload, time));
    let wall = begin.elapsed();
    // The CPU time of threads is complete only after they sleep.
    std::thread::sleep(Duration::from_millis(20));
    Ok(Measured {
        load,
        requests,
        wall,
        // A thread that was idle for long can have ended, and its CPU time is then missing.
        crypto: thread_cpu::of_threads(CRYPTO)?.saturating_sub(crypto),
        network: thread_cpu::of_threads(NETWORK)?.saturating_sub(network),
    })
}

/// Counts the responses. Each client sends at least one request.
async fn closed_loop(client: &Client, load: CpuLoad, payload: &[u8], time: Duration) -> u64 {
    let end = Instant::now() + time;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..load.callers {
        let (client, payload) = (client.clone(), payload.to_vec());
        callers.spawn(async move {
            let mut requests = 0;
            while requests == 0 || Instant::now() < end {
                call(&client, load.operation, &payload).await;
                requests += 1;
            }
            requests
        });
    }
    callers.join_all().await.into_iter().sum()
}

async fn call(client: &Client, operation: BenchOperation, payload: &[u8]) {
    let reply = match operation {
        BenchOperation::EncryptText => client.encrypt(Encrypt::new(APP, payload)).await,
        BenchOperation::EncryptK1 => {
            let writing = Writing { curve: Curve::K1, ..Writing::default() };
            client.encrypt(Encrypt { writing, ..Encrypt::new(APP, payload) }).await
        }
        BenchOperation::EncryptEpoch => {
            let writing = Writing { key_scope: KeyScope::Epoch, ..Writing::default() };
            client.encrypt(Encrypt { writing, ..Encrypt::new(APP, payload) }).await
        }
        BenchOperation::EncryptBinary => {
            let writing = Writing { encoding: Encoding::Binary, ..Writing::default() };
            client.encrypt(Encrypt { writing, ..Encrypt::new(APP, payload) }).await
        }
        BenchOperation::DecryptText | BenchOperation::DecryptKeyed => client.decrypt(Decrypt::new(APP, payload)).await,
    };
    reply.expect("is answered");
}

/// One budget, its measured value and its verdict.
struct FloorVerdict {
    budget: String,
    measured: String,
    met: bool,
}

fn verdicts(measured: &[Measured], floors: Floors, cold: bool) -> Vec<FloorVerdict> {
    let of = |operation: BenchOperation, fields: usize| {
        measured.iter().filter(move |one| one.load.operation == operation && one.load.fields == fields)
    };
    let encrypt = |fields| of(BenchOperation::EncryptText, fields);
    let mut verdicts = Vec::new();
    for one in encrypt(2_000) {
        let seals = one.cpu_ns() / floors.seal;
        verdicts.push(FloorVerdict {
            budget: format!("2,000 fields: CPU per field <= {SEALS_MAX} seals"),
            measured: format!("{seals:.2} seals"),
            met: seals <= SEALS_MAX,
        });
        let rate = one.fields_per_cpu_second();
        verdicts.push(FloorVerdict {
            budget: format!(
                "2,000 fields: >= {:.1}M fields per server core and second",
                FIELDS_PER_CPU_SECOND_MIN / 1e6
            ),
            measured: format!("{:.2}M", rate / 1e6),
            met: rate >= FIELDS_PER_CPU_SECOND_MIN,
        });
    }
    for (fields, openbao_ns) in OPENBAO_NS {
        for one in encrypt(fields) {
            let factor = openbao_ns / one.cpu_ns();
            verdicts.push(FloorVerdict {
                budget: format!("{fields} fields, {} callers: >= {OPENBAO_FACTOR_MIN}x OpenBao", one.load.callers),
                measured: format!("{factor:.1}x"),
                met: factor >= OPENBAO_FACTOR_MIN,
            });
        }
    }
    for one in encrypt(1).chain(of(BenchOperation::EncryptEpoch, 1)) {
        let keygens = one.cpu_ns() / floors.keygen_ecdh;
        let (max, state) = match one.load.operation {
            BenchOperation::EncryptEpoch => (KEYGENS_MAX * WARM_SHARE_MAX, "epoch"),
            _ if cold => (KEYGENS_MAX, "cold"),
            _ => (KEYGENS_MAX * WARM_SHARE_MAX, "warm"),
        };
        verdicts.push(FloorVerdict {
            budget: format!("1 field, {} callers, {state}: CPU <= {max}x (keygen + ECDH)", one.load.callers),
            measured: format!("{keygens:.2}x"),
            met: keygens <= max,
        });
    }
    for (operation, what, factor_max) in [
        (BenchOperation::EncryptK1, "on secp256k1: CPU <= {}x P-256", K1_FACTOR_MAX),
        (BenchOperation::DecryptText, "to decrypt: CPU <= {}x encrypt", DECRYPT_FACTOR_MAX),
    ] {
        for one in measured.iter().filter(|one| one.load.operation == operation) {
            let CpuLoad { fields, callers, .. } = one.load;
            for text in encrypt(fields).filter(|text| text.load.callers == callers) {
                let factor = one.cpu_ns() / text.cpu_ns();
                verdicts.push(FloorVerdict {
                    budget: format!(
                        "{fields} fields, {callers} callers, {}",
                        what.replace("{}", &factor_max.to_string())
                    ),
                    measured: format!("{factor:.2}x"),
                    met: factor <= factor_max,
                });
            }
        }
    }
    verdicts
}

fn print(mut out: impl Write, measured: &[Measured], floors: Floors, verdicts: &[FloorVerdict]) -> io::Result<()> {
    writeln!(out, "floors, CPU ns: AES-256-GCM seal of {FIELD_BYTES} B {:.1}", floors.seal)?;
    writeln!(out, "                P-256 keygen + ECDH {:.0}\n", floors.keygen_ecdh)?;
    writeln!(
        out,
        "{:<24}{:>11}{:>11} |{:>11}{:>11}{:>11}{:>8} |{:>13}",
        "load", "requests/s", "fields/s", "CPU ns/f", "crypto", "network", "seals", "fields/CPU s"
    )?;
    for one in measured {
        writeln!(
            out,
            "{:<24}{:>11.0}{:>11.0} |{:>11.1}{:>11.1}{:>11.1}{:>8.2} |{:>13.0}",
            one.load.name(),
            one.fields_per_second() / one.load.fields as f64,
            one.fields_per_second(),
            one.cpu_ns(),
            one.per_field_ns(one.crypto),
            one.per_field_ns(one.network),
            one.cpu_ns() / floors.seal,
            one.fields_per_cpu_second(),
        )?;
    }
    writeln!(out)?;
    for FloorVerdict { budget, measured, met } in verdicts {
        writeln!(out, "{:<8}{budget}: {measured}", if *met { "met" } else { "NOT MET" })?;
    }
    Ok(())
}

fn print_json(mut out: impl Write, measured: &[Measured], floors: Floors, verdicts: &[FloorVerdict]) -> io::Result<()> {
    let loads: Vec<_> = measured
        .iter()
        .map(|one| {
            json!({
                "load": one.load.name(),
                "fields": one.load.fields,
                "callers": one.load.callers,
                "fields_per_s": one.fields_per_second(),
                "cpu_ns_per_field": one.cpu_ns(),
                "crypto_ns_per_field": one.per_field_ns(one.crypto),
                "network_ns_per_field": one.per_field_ns(one.network),
                "fields_per_cpu_s": one.fields_per_cpu_second(),
            })
        })
        .collect();
    let verdicts: Vec<_> =
        verdicts.iter().map(|one| json!({ "budget": one.budget, "measured": one.measured, "met": one.met })).collect();
    let floors = json!({ "seal_ns": floors.seal, "keygen_ecdh_ns": floors.keygen_ecdh });
    writeln!(out, "{:#}", json!({ "floors": floors, "loads": loads, "budgets": verdicts }))
}
