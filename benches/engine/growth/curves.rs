//! The measurements behind each curve.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sealwire_benches::document::{APP, document};
use sealwire_benches::is_smoke_run;
use sealwire_benches::stats::quantile;
use sealwire_client::{Client, Decrypt, Encrypt};
use sealwire_crypto::{AppId, Suite};
use sealwire_server::server::open_control;
use sealwire_settings::Mode;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::Curve;
use crate::child::{EngineChild, Folder, Setting};
use crate::cpu::load::{BenchOperation, CpuLoad, measure};
use crate::cpu::place::Place;
use crate::cpu::{PRODUCTION, callers};
use crate::fair::connection::{BenchConnection, identity};

/// The requests that are measured where the size is not that of a request.
const STEADY: CpuLoad = CpuLoad {
    operation: BenchOperation::EncryptText,
    fields: 100,
    callers: 8,
};
/// File descriptors that a process needs besides idle connections.
const SPARE_FILES: u64 = 256;
const MIB: f64 = 1_048_576.0;

/// Most fields of a document that is decrypted again. The envelopes of more are longer than the
/// engine's limit for a request.
const CHECKED_FIELDS_MAX: usize = 400_000;
/// Callers of the requests that are spread over apps.
const APP_CALLERS: usize = 8;

pub(super) fn fields(sizes: &[usize], time: Duration) -> io::Result<Curve> {
    let mut curve = Curve::new(
        "fields",
        "fields per request",
        "One caller encrypts documents of 16-byte fields, one request at a time.",
        &[
            ("CPU per field", "us"),
            ("CPU per request", "us"),
            ("p50", "us"),
            ("p99", "us"),
            ("peak memory", "MiB"),
        ],
    );
    let callers = callers()?;
    let place = Place::process(&PRODUCTION)?;
    warm_up(&callers, &place)?;
    for size in sizes {
        let load = CpuLoad {
            operation: BenchOperation::EncryptText,
            fields: *size,
            callers: 1,
        };
        let measured = measure(&callers, &place, load, time)?;
        let [p50, p99] = measured.latency_us;
        let Place::Process(engine, _) = &place else {
            unreachable!("started as a process")
        };
        let memory = engine.resident_max_mib()?;
        curve.push(
            *size,
            &[
                measured.cpu_ns() / 1e3,
                measured.per_request_us(),
                p50,
                p99,
                memory,
            ],
        );
        // After the reading of the peak memory, because decryption needs memory, too.
        check(
            &callers,
            &place.client(&callers),
            APP,
            (*size).min(CHECKED_FIELDS_MAX),
        )?;
    }
    place.stop();
    Ok(curve)
}

pub(super) fn connections(sizes: &[usize], time: Duration) -> io::Result<Curve> {
    let mut curve = Curve::new(
        "connections",
        "idle connections",
        "Connections over mutual TLS that send nothing, while 8 callers encrypt 100 fields on two others.",
        &[
            ("memory per connection", "KiB"),
            ("CPU per handshake", "us"),
            ("CPU per request", "us"),
            ("p50", "us"),
            ("p99", "us"),
        ],
    );
    let files = raise_file_limit();
    let limits: [Setting; 2] = [
        ("limits.connections_max", "65536"),
        ("limits.connections_per_principal_max", "65536"),
    ];
    let callers = callers()?;
    let place = Place::process(&[&PRODUCTION[..], &limits].concat())?;
    warm_up(&callers, &place)?;
    let Place::Process(engine, folder) = &place else {
        unreachable!("started as a process")
    };
    let identity = identity(folder.path(), "client")?;
    let before = engine.resident_mib()?;
    let mut idle = Vec::new();
    for size in sizes {
        if *size as u64 + SPARE_FILES > files {
            curve.notes.push(format!(
                "{size} connections need more than the {files} files that a process may open here."
            ));
            break;
        }
        let (cpu, opened) = (place.cpu()?, *size - idle.len());
        while idle.len() < *size {
            idle.push(BenchConnection::open(engine.address, &identity)?);
        }
        let handshake = place.cpu()?.since(cpu).all().as_nanos() as f64 / opened as f64 / 1e3;
        let memory = (engine.resident_mib()? - before).max(0.0) * MIB / 1_024.0 / *size as f64;
        check(&callers, &place.client(&callers), APP, STEADY.fields)?;
        let measured = measure(&callers, &place, STEADY, time)?;
        let [p50, p99] = measured.latency_us;
        curve.push(
            *size,
            &[
                memory.max(0.1),
                handshake,
                measured.per_request_us(),
                p50,
                p99,
            ],
        );
    }
    drop(idle);
    place.stop();
    Ok(curve)
}

pub(super) fn apps(sizes: &[usize], time: Duration) -> io::Result<Curve> {
    let mut curve = Curve::new(
        "apps",
        "apps",
        "8 callers encrypt one field per request, for all apps in turn, and then for one of them. The creation is that of the last app.",
        &[
            ("CPU per request", "us"),
            ("p50", "us"),
            ("p99", "us"),
            ("CPU per request, one app", "us"),
            ("p50, one app", "us"),
            ("p99, one app", "us"),
            ("memory", "MiB"),
            ("start of the engine", "ms"),
            ("creation of an app", "ms"),
        ],
    );
    let (folder, config) = Folder::make_with_config(&["client"], Mode::Embedded)?;
    let callers = callers()?;
    let mut names: Vec<String> = Vec::new();
    for size in sizes {
        let created = callers.block_on(async {
            let (control, _) = open_control(&config).await.map_err(io::Error::other)?;
            let mut took = Duration::ZERO;
            while names.len() < *size {
                let name = format!("app-{}", names.len());
                let begun = Instant::now();
                let app = AppId::new(&name).expect("a good name");
                control
                    .create(&app, &Suite::ALL)
                    .await
                    .map_err(io::Error::other)?;
                took = begun.elapsed();
                names.push(name);
            }
            io::Result::Ok(took)
        })?;
        let begun = Instant::now();
        let engine = EngineChild::start_with(&folder, &PRODUCTION)?;
        let start = begun.elapsed();
        let place = Place::Process(engine, folder.clone());
        let client = place.client(&callers);
        for name in names.first().into_iter().chain(names.last()) {
            check(&callers, &client, name, 1)?;
        }
        let [cpu, p50, p99] = measure_apps(&callers, &place, &client, &names, time)?;
        let [cpu_one, p50_one, p99_one] =
            measure_apps(&callers, &place, &client, &names[..1], time)?;
        let Place::Process(engine, _) = &place else {
            unreachable!("started as a process")
        };
        let memory = engine.resident_mib()?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        curve.push(
            *size,
            &[
                cpu,
                p50,
                p99,
                cpu_one,
                p50_one,
                p99_one,
                memory,
                ms(start),
                ms(created),
            ],
        );
        drop(client);
        place.stop();
    }
    Ok(curve)
}

/// Encrypts a document, decrypts the response and compares the result.
fn check(callers: &Runtime, client: &Client, app: &str, fields: usize) -> io::Result<()> {
    let payload = document(fields);
    let opened = callers.block_on(async {
        let sealed = client
            .encrypt(Encrypt::new(app, &payload))
            .await
            .map_err(io::Error::other)?
            .payload;
        client
            .decrypt(Decrypt::new(app, &sealed))
            .await
            .map_err(io::Error::other)
    })?;
    let is_right = opened.payload == payload;
    is_right
        .then_some(())
        .ok_or_else(|| io::Error::other(format!("{fields} fields of {app}: a wrong document")))
}

/// Measures requests for these apps after a warm-up. Returns CPU time per request, p50 and p99, in
/// microseconds.
fn measure_apps(
    callers: &Runtime,
    place: &Place,
    client: &Client,
    names: &[String],
    time: Duration,
) -> io::Result<[f64; 3]> {
    callers.block_on(spread(client, names, time / 4));
    let before = place.cpu()?;
    let mut latencies = callers.block_on(spread(client, names, time));
    // The CPU time of threads is complete only after they sleep.
    std::thread::sleep(Duration::from_millis(20));
    let cpu = place.cpu()?.since(before).all().as_nanos() as f64 / latencies.len() as f64 / 1e3;
    latencies.sort_by(f64::total_cmp);
    Ok([cpu, quantile(&latencies, 0.5), quantile(&latencies, 0.99)])
}

/// Sends one-field requests of several callers to all apps in turn. Returns the latencies in
/// microseconds.
async fn spread(client: &Client, names: &[String], time: Duration) -> Vec<f64> {
    let (end, payload) = (Instant::now() + time, document(1));
    let mut callers = JoinSet::new();
    for caller in 0..APP_CALLERS {
        let (client, payload, names) = (client.clone(), payload.clone(), names.to_vec());
        callers.spawn(async move {
            let (mut latencies, mut begun) = (Vec::new(), Instant::now());
            for name in names
                .iter()
                .cycle()
                .skip(caller * names.len() / APP_CALLERS)
            {
                client
                    .encrypt(Encrypt::new(name, &payload))
                    .await
                    .expect("is answered");
                let answered = Instant::now();
                latencies.push((answered - begun).as_nanos() as f64 / 1e3);
                begun = answered;
                if begun >= end {
                    break;
                }
            }
            latencies
        });
    }
    callers.join_all().await.into_iter().flatten().collect()
}

/// Sends requests until the engine has found the app busy and made its table.
fn warm_up(callers: &Runtime, place: &Place) -> io::Result<()> {
    if !is_smoke_run() {
        measure(callers, place, STEADY, Duration::from_millis(2_500))?;
    }
    Ok(())
}

/// Raises the number of files that this process and its engines may open to what the system allows,
/// and returns it.
fn raise_file_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
