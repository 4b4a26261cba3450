//! The experiments and their shared parts: the mix of requests, the engine's capacity, and the work
//! done by a time.

use std::io;
use std::ops::Range;
use std::time::Duration;

use sealwire_benches::document::APP;
use sealwire_benches::stats::Summary;
use sealwire_client::{Client, ClientConfig, Decrypt, Pem};
use sealwire_wire::KeyScope;
use tokio::runtime::Builder;

use crate::child::{EngineChild, Setting};
use crate::fair::Bench;
use crate::fair::connection::Frame;
use crate::fair::generator::{Drive, Generator, Load, Outcome, Sample};

pub(crate) mod beside;
pub(crate) mod hog;
pub(crate) mod overload;

/// The mix of requests: fields per request, and share of the requests.
pub(crate) const MIX: [(usize, f64); 3] = [(30, 0.80), (150, 0.18), (2_000, 0.02)];
/// Names of its size classes.
pub(crate) const CLASSES: [&str; 3] = ["S, 30 fields", "M, 150 fields", "L, 2,000 fields"];
/// Deadline of the mix's requests.
pub(crate) const PATIENCE_MS: u32 = 1_000;
/// Connections of a tenant that sends the mix.
pub(crate) const MIX_CONNECTIONS: usize = 64;

/// Mean work of a request in the mix, in fields. With a key per field, a request costs as much as
/// its fields.
pub(crate) fn mean_fields() -> f64 {
    MIX.iter()
        .map(|(fields, share)| *fields as f64 * share)
        .sum()
}

/// Makes the mix's frames, in the order of [`MIX`], with a key per field and the deadline.
pub(crate) fn mix_frames() -> Vec<Frame> {
    MIX.iter()
        .map(|(fields, _)| Frame::new(*fields, KeyScope::Field, Some(PATIENCE_MS)))
        .collect()
}

/// Makes a load of the mix. The mix's frames must be the generator's first.
pub(crate) fn mix(connections: Range<usize>, drive: Drive) -> Load {
    Load {
        calls: MIX
            .iter()
            .enumerate()
            .map(|(at, (_, share))| (at, *share))
            .collect(),
        connections,
        drive,
    }
}

/// An engine, a generator for it, and a load of the mix to measure its capacity.
pub(crate) struct Mixed {
    /// The engine.
    pub(crate) engine: EngineChild,
    /// The generator of its load.
    pub(crate) generator: Generator,
    /// Connections of the tenant that measures the capacity.
    pub(crate) connections: Range<usize>,
    closed: usize,
}

impl Mixed {
    /// Starts the engine and warms it up. `tenant` sends the mix.
    pub(crate) fn start(bench: &Bench, tenant: &str, settings: &[Setting]) -> io::Result<Self> {
        let engine = bench.engine(settings)?;
        let mut generator = Generator::new(mix_frames());
        let connections = generator.connect(&engine, &bench.folder, tenant, MIX_CONNECTIONS)?;
        let closed = generator.add(mix(connections.clone(), Drive::Closed(1)));
        warm_up(bench, &mut generator, &connections)?;
        Ok(Self {
            engine,
            generator,
            connections,
            closed,
        })
    }

    /// Measures the capacity in fields per second: every connection sends its next request after
    /// each response.
    pub(crate) fn capacity(&mut self, bench: &Bench) -> io::Result<f64> {
        let (before, time) = bench.length.pick((1.5, 6.0), (1.0, 3.0), (0.1, 0.5));
        self.generator.take();
        self.generator.start(self.closed);
        self.generator.run(Duration::from_secs_f64(before))?;
        let window = self.generator.run(Duration::from_secs_f64(time))?;
        self.generator.cancel(self.closed);
        self.generator.settle(self.closed)?;
        let samples = self.generator.take();
        Ok(work_rate(
            samples
                .iter()
                .filter(|sample| sample.outcome == Outcome::Ok),
            &window,
        ))
    }

    /// Closes the connections, checks the responses and ends the engine.
    pub(crate) fn finish(self, bench: &Bench) -> io::Result<()> {
        finish(bench, self.engine, self.generator)
    }
}

/// Sends single requests until the engine has found its app busy and made its table.
fn warm_up(bench: &Bench, generator: &mut Generator, connections: &Range<usize>) -> io::Result<()> {
    let one = connections.start..connections.start + 1;
    let load = generator.add(Load {
        calls: vec![(0, 1.0)],
        connections: one,
        drive: Drive::Closed(1),
    });
    generator.start(load);
    generator.run(bench.length.pick(
        Duration::from_secs(3),
        Duration::from_secs(3),
        Duration::from_millis(100),
    ))?;
    generator.stop(load);
    generator.settle(load)?;
    generator.take();
    Ok(())
}

/// Checks a generator's responses, and ends generator and engine.
pub(crate) fn finish(
    bench: &Bench,
    mut engine: EngineChild,
    generator: Generator,
) -> io::Result<()> {
    if !engine.is_running() {
        return Err(io::Error::other("the engine ended by itself"));
    }
    check(bench, &engine, &generator)?;
    Ok(())
}

/// Checks a generator's responses by opening one of each kind.
fn check(bench: &Bench, engine: &EngineChild, generator: &Generator) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let file = |name: &str| Pem::File(bench.folder.path().join(name));
        let (ca, certificate, key) = (file("ca.pem"), file("checker.pem"), file("checker.key"));
        let mut config = ClientConfig::new(
            engine.address.to_string(),
            "localhost",
            ca,
            certificate,
            key,
        );
        config.deadline = Duration::from_secs(60);
        let client = Client::connect(config).await.map_err(io::Error::other)?;
        for (payload, sealed) in generator.replies()? {
            let opened = client
                .decrypt(Decrypt::new(APP, sealed))
                .await
                .map_err(io::Error::other)?;
            if opened.payload != payload {
                return Err(io::Error::other(
                    "a reply opens to another document than was sealed",
                ));
            }
        }
        Ok(())
    })
}

/// Returns the work done by a time, in fields. Between two completed requests, work is
/// interpolated.
fn work_until(ends: &[(u64, f64)], at: u64) -> f64 {
    let next = ends.partition_point(|(end, _)| *end <= at);
    let (before, done) = next.checked_sub(1).map_or((0, 0.0), |last| ends[last]);
    match ends.get(next) {
        Some((after, more)) if next > 0 => {
            done + (more - done) * (at - before) as f64 / (after - before) as f64
        }
        _ => done,
    }
}

/// Returns fields per second over a window. Large requests complete rarely, so those in flight at
/// its ends count in part.
pub(crate) fn work_rate<'a>(served: impl Iterator<Item = &'a Sample>, window: &Range<u64>) -> f64 {
    let mut ends: Vec<(u64, f64)> = served
        .map(|sample| (sample.done, sample.fields as f64))
        .collect();
    ends.sort_by_key(|(end, _)| *end);
    let mut sum = 0.0;
    for (_, fields) in &mut ends {
        sum += *fields;
        *fields = sum;
    }
    (work_until(&ends, window.end) - work_until(&ends, window.start)) * 1e9
        / (window.end - window.start) as f64
}

/// Returns the latencies of samples, in milliseconds.
pub(crate) fn latencies<'a>(samples: impl Iterator<Item = &'a Sample>) -> Vec<f64> {
    samples.map(Sample::latency_ms).collect()
}

/// Returns the summary of these samples.
pub(crate) fn summary<'a>(samples: impl Iterator<Item = &'a Sample>) -> Summary {
    Summary::of(latencies(samples))
}

/// Returns the samples whose scheduled send time is within a window.
pub(crate) fn within<'a>(
    samples: &'a [Sample],
    window: &'a Range<u64>,
) -> impl Iterator<Item = &'a Sample> + Clone {
    samples
        .iter()
        .filter(|sample| window.contains(&sample.intended))
}
