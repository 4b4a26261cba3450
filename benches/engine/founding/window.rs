//! One arm's window: the small client, and the batch client that grows from step to step.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use sealwire_benches::document::APP;
use sealwire_client::{Client, Decrypt};
use tokio::runtime::Builder;

use crate::child::{EngineChild, Folder};
use crate::fair::connection::Frame;
use crate::fair::generator::{Drive, Generator, Load, Outcome, Sample};
use crate::fair::machine::{Usage, lower_priority};
use crate::founding::arms::{Arm, cores};
use crate::founding::seconds;

/// Steps of a window: the first without batches, and then batches under way that double.
pub(super) const STEPS: usize = 6;
/// Interval at which the batch client looks for requests to give up.
const TIMEOUT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The loads of every arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// Fields of a small request.
    pub(super) small_fields: usize,
    /// Small requests per second.
    pub(super) small_per_s: f64,
    /// Fields of a batch.
    pub(super) batch_fields: usize,
    /// Batches under way in the step after the first.
    pub(super) batches: usize,
    /// Time after which the batch client gives up.
    pub(super) timeout: Duration,
    /// Length of a step.
    pub(super) step: Duration,
    /// Length of the warm-up, in which only small requests are sent. The engine makes its tables in
    /// it.
    pub(super) warm_up: Duration,
    /// Time for which small requests are awaited after the window.
    pub(super) settle: Duration,
}

impl Plan {
    /// Returns the loads of a measurement with windows of that many seconds.
    pub(super) fn full(window: f64) -> Self {
        Self {
            small_fields: 10,
            small_per_s: 100.0,
            batch_fields: 1_000,
            batches: (cores() / 2).max(1),
            timeout: Duration::from_millis(250),
            step: seconds(window / STEPS as f64),
            warm_up: Duration::from_millis(1_500),
            settle: seconds(1.0),
        }
    }

    /// Returns small loads, so that a slow program answers some requests of each kind.
    pub(super) fn smoke() -> Self {
        Self {
            batch_fields: 40,
            batches: 1,
            step: Duration::from_millis(60),
            warm_up: Duration::from_millis(50),
            // Turns a hang into an error even on a slow machine.
            settle: seconds(60.0),
            ..Self::full(1.0)
        }
    }

    /// Returns the number of batches under way in a step.
    pub(super) fn under_way(&self, step: usize) -> usize {
        if step == 0 {
            0
        } else {
            self.batches << (step - 1)
        }
    }

    /// Returns the length of a window.
    pub(super) fn window_s(&self) -> f64 {
        self.step.as_secs_f64() * STEPS as f64
    }
}

/// One request. Times are seconds since the start of the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Time at which it was due.
    pub(super) due: f64,
    /// Time from then to its response, or to when the client gave up: at least 1 us.
    pub(super) latency: f64,
    /// Number of fields.
    pub(super) fields: usize,
    /// Its outcome.
    pub(super) outcome: &'static str,
}

/// Outcome of a request that was sealed.
pub(super) const SEALED: &str = "sealed";

impl Request {
    fn of(sample: &Sample, start: u64) -> Self {
        let outcome = match sample.outcome {
            Outcome::Ok => SEALED,
            Outcome::Overloaded(_) => "overloaded",
            Outcome::Late => "deadline",
            Outcome::Cancelled => "cancelled",
            Outcome::Paused => "waited as told",
            Outcome::Closed => "closed",
            Outcome::GivenUp => "given up",
        };
        let due = (sample.intended as f64 - start as f64) / 1e9;
        Self {
            due,
            latency: (sample.latency_ms() / 1e3).max(1e-6),
            fields: sample.fields,
            outcome,
        }
    }

    /// Returns true if it was sealed.
    pub(super) fn is_sealed(&self) -> bool {
        self.outcome == SEALED
    }
}

/// The measurement of an arm.
#[derive(Debug)]
pub(super) struct ArmResult {
    pub(super) arm: Arm,
    /// Requests of the small client, in the order of their due times.
    pub(super) small: Vec<Request>,
    /// Requests of the batch client, in the same order.
    pub(super) batch: Vec<Request>,
    /// Share of the machine that other processes took.
    pub(super) foreign: f64,
    /// A document of each kind, and how it was sealed.
    sealed: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Runs an arm.
pub(super) fn run(folder: &Folder, arm: Arm, plan: &Plan) -> io::Result<ArmResult> {
    let mut server = arm.start(folder)?;
    let mut small = Generator::new(vec![Frame::with(plan.small_fields, arm.writing(), None)]);
    let mut batch = small.sibling(vec![Frame::with(plan.batch_fields, arm.writing(), None)]);
    let connections = small.connect(&server, folder, "small", 1)?;
    let drive = Drive::Even(plan.small_per_s);
    let load = small.add(Load {
        calls: vec![(0, 1.0)],
        connections,
        drive,
    });
    let steps = add_batches(&server, folder, plan, &mut batch)?;
    small.start(load);
    small.run(plan.warm_up)?;
    small.take();
    let usage = Usage::read(&[&server])?;
    let (start, stop) = (small.now(), AtomicBool::new(false));
    thread::scope(|scope| {
        let batches = scope.spawn(|| grow(&mut batch, &steps, arm, plan, &stop));
        let ran = small.run(plan.step * STEPS as u32);
        stop.store(true, Ordering::Relaxed);
        let grown = batches
            .join()
            .map_err(|_| io::Error::other("the batch client panicked"));
        ran.and(grown?)
    })?;
    let foreign = Usage::read(&[&server])?.foreign_since(usage);
    // The batches stay under way meanwhile. A request without a response by then counts with the
    // time until then.
    small.stop(load);
    let end = small.now() + plan.settle.as_nanos() as u64;
    while small.now() < end && small.under_way(load) > 0 {
        small.run(TIMEOUT_CHECK_INTERVAL)?;
    }
    small.give_up(load, Duration::ZERO, false);
    if !server.is_running() {
        return Err(io::Error::other(
            "the server ended by itself; what it said is above",
        ));
    }
    let mut sealed = Vec::new();
    for generator in [&small, &batch] {
        let replies = generator.replies_if_any()?;
        sealed.extend(
            replies
                .into_iter()
                .map(|(payload, sealed)| (payload.to_vec(), sealed.to_vec())),
        );
    }
    let window = start..start + (plan.step * STEPS as u32).as_nanos() as u64;
    let (small, batch) = (requests(small, &window), requests(batch, &window));
    Ok(ArmResult {
        arm,
        small,
        batch,
        foreign,
        sealed,
    })
}

/// Adds a load per step after the first: the connections that the step adds, with one batch under
/// way on each.
fn add_batches(
    server: &EngineChild,
    folder: &Folder,
    plan: &Plan,
    batch: &mut Generator,
) -> io::Result<Vec<usize>> {
    let mut loads = Vec::new();
    for step in 1..STEPS {
        let more = plan.under_way(step) - plan.under_way(step - 1);
        let connections = batch.connect(server, folder, "batch", more)?;
        loads.push(batch.add(Load {
            calls: vec![(0, 1.0)],
            connections,
            drive: Drive::Closed(1),
        }));
    }
    Ok(loads)
}

/// Runs the batch client until the end of the window.
fn grow(
    batch: &mut Generator,
    loads: &[usize],
    arm: Arm,
    plan: &Plan,
    stop: &AtomicBool,
) -> io::Result<()> {
    lower_priority();
    let begin = batch.now();
    while !stop.load(Ordering::Relaxed) {
        let step = (batch.now() - begin) / plan.step.as_nanos().max(1) as u64;
        for load in loads.iter().take(step as usize) {
            // Does nothing to a load that was started.
            batch.start(*load);
            batch.give_up(*load, plan.timeout, arm.cancels);
        }
        batch.run(TIMEOUT_CHECK_INTERVAL)?;
    }
    loads.iter().for_each(|load| batch.stop(*load));
    Ok(())
}

/// Returns a generator's requests that were due in the window, and closes its connections.
fn requests(mut generator: Generator, window: &Range<u64>) -> Vec<Request> {
    let mut samples = generator.take();
    samples.retain(|sample| window.contains(&sample.intended));
    samples.sort_by_key(|sample| sample.intended);
    samples
        .iter()
        .map(|sample| Request::of(sample, window.start))
        .collect()
}

/// Opens one response of each kind of every arm, with an engine that has the same keys.
pub(super) fn check(folder: &Folder, results: &[ArmResult]) -> io::Result<()> {
    let engine = EngineChild::start(folder, &[])?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(folder.client("checker", engine.address))
            .await
            .map_err(io::Error::other)?;
        for result in results {
            let wrong = |what: &str| io::Error::other(format!("{}: {what}", result.arm.name()));
            if result.sealed.is_empty() {
                return Err(wrong("no request was ever sealed; try a longer --seconds"));
            }
            for (payload, sealed) in &result.sealed {
                let opened = client
                    .decrypt(Decrypt::new(APP, sealed))
                    .await
                    .map_err(io::Error::other)?;
                if opened.payload != *payload {
                    return Err(wrong(
                        "a response opens to another document than was sealed",
                    ));
                }
            }
        }
        Ok(())
    })
}
