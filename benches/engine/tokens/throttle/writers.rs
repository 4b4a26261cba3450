//! Writers of single random tokens, and the admission control before the coalescer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use sealwire_benches::stats::Random;
use sealwire_store::{Coalescer, Group, Permit, WriteThrottle, Written};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::tokens::place::{MAP, failed, row};

/// Admission control for rows.
pub(crate) enum Door {
    /// The engine's throttle. A rejected writer retries after the time that it is given.
    Throttle(WriteThrottle),
    /// A fixed number of rows, with FIFO waiting and without a delay curve.
    Bound(Arc<Semaphore>, usize),
}

/// Permit for a row that is not durable yet. Dropping it returns the permit.
enum Room {
    Permit(Permit),
    Held(#[expect(dead_code, reason = "its drop gives it back")] OwnedSemaphorePermit),
}

/// The times at which rows arrive.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// A writer's next row arrives when its last is durable.
    Closed,
    /// A writer's next row arrives at an exponential interval after its last was admitted. The
    /// value is the mean in seconds.
    Steady(f64),
    /// An exponential time after the one before was due, whatever became of it: `over` the capacity
    /// and `under` it, mean seconds of a writer, in turns of `phase`.
    Bursts {
        over: f64,
        under: f64,
        phase: Duration,
    },
}

/// Times of one row, in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// Arrival, from the beginning.
    pub(crate) due: f64,
    /// Lag of the writer's wake-up.
    pub(crate) late: f64,
    /// From its first attempt to its admission.
    pub(crate) door: f64,
    /// From its arrival until it was durable.
    pub(crate) durable: f64,
    pub(crate) refused: u32,
}

/// State shared by the writers of one run.
pub(crate) struct Desk {
    door: Door,
    coalescer: Coalescer,
    numbers: Arc<AtomicU64>,
    row_bytes: usize,
    promised_max: AtomicUsize,
}

/// An admitted row.
struct Entered {
    room: Room,
    sample: Sample,
    due: Instant,
}

impl Desk {
    /// Makes the state. `numbers` counts the rows of all runs.
    pub(crate) fn new(door: Door, coalescer: Coalescer, numbers: Arc<AtomicU64>) -> Self {
        let row_bytes = row(0, false).bytes();
        Self {
            door,
            coalescer,
            numbers,
            row_bytes,
            promised_max: AtomicUsize::new(0),
        }
    }

    /// Returns the largest number of rows that were admitted and not durable.
    pub(crate) fn promised_max(&self) -> usize {
        self.promised_max.load(Ordering::Relaxed)
    }

    /// Rows that are due in a time, of so many writers; returns when all are durable. The same seed
    /// gives the same gaps.
    pub(crate) async fn run(
        self: &Arc<Self>,
        writers: usize,
        load: Load,
        time: Duration,
        seed: u64,
    ) -> io::Result<Vec<Sample>> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for writer in 0..writers as u64 {
            let random = Random::new((seed << 32) + writer);
            tasks.spawn(Arc::clone(self).writer(load, random, begun, begun + time));
        }
        let samples = tasks
            .join_all()
            .await
            .into_iter()
            .collect::<io::Result<Vec<_>>>()?
            .concat();
        self.coalescer.close().await;
        Ok(samples)
    }

    async fn writer(
        self: Arc<Self>,
        load: Load,
        mut random: Random,
        begun: Instant,
        end: Instant,
    ) -> io::Result<Vec<Sample>> {
        let mut writes = JoinSet::new();
        let mut samples = Vec::new();
        let mut due = begun;
        loop {
            due += Duration::from_secs_f64(random.exponential(load.mean(due - begun)));
            if due >= end {
                break;
            }
            sleep_until(due).await;
            let desk = Arc::clone(&self);
            match load {
                Load::Closed => {
                    let entered = desk.enter(begun, due, &mut random).await;
                    samples.push(desk.write(entered).await?);
                    due = Instant::now();
                }
                Load::Steady(_) => {
                    let entered = desk.enter(begun, due, &mut random).await;
                    writes.spawn(desk.write(entered));
                    due = Instant::now();
                }
                Load::Bursts { .. } => {
                    let mut random = Random::new(random.bits());
                    writes.spawn(async move {
                        let entered = desk.enter(begun, due, &mut random).await;
                        desk.write(entered).await
                    });
                }
            }
        }
        for sample in writes.join_all().await {
            samples.push(sample?);
        }
        Ok(samples)
    }

    async fn enter(&self, begun: Instant, due: Instant, random: &mut Random) -> Entered {
        let asked = Instant::now();
        let mut refused = 0;
        let room = match &self.door {
            Door::Bound(rows, _) => Room::Held(
                Arc::clone(rows)
                    .acquire_owned()
                    .await
                    .expect("is never closed"),
            ),
            Door::Throttle(throttle) => loop {
                match throttle.reserve(1, self.row_bytes, None).await {
                    Ok(permit) => break Room::Permit(permit),
                    Err(refusal) => {
                        refused += 1;
                        sleep(refusal.retry_after.mul_f64(1.0 + random.unit() / 4.0)).await;
                    }
                }
            },
        };
        let promised = match &self.door {
            Door::Throttle(throttle) => throttle.pressure().dirty as usize,
            Door::Bound(rows, rows_max) => rows_max - rows.available_permits(),
        };
        self.promised_max.fetch_max(promised, Ordering::Relaxed);
        let sample = Sample {
            due: (due - begun).as_secs_f64(),
            late: (asked - due).as_secs_f64(),
            door: asked.elapsed().as_secs_f64(),
            durable: 0.0,
            refused,
        };
        Entered { room, sample, due }
    }

    async fn write(
        self: Arc<Self>,
        Entered {
            room,
            mut sample,
            due,
        }: Entered,
    ) -> io::Result<Sample> {
        let rows = vec![row(self.numbers.fetch_add(1, Ordering::Relaxed), false)];
        let (permit, held) = match room {
            Room::Permit(permit) => (Some(permit), None),
            held @ Room::Held(_) => (None, Some(held)),
        };
        let written = self
            .coalescer
            .write(1, Group { map: MAP, rows }, None, permit)
            .await
            .map_err(failed)?;
        sample.durable = due.elapsed().as_secs_f64();
        drop(held);
        match written {
            Written::Done(held) if held == [None] => Ok(sample),
            other => Err(failed(format!("a new row was not written: {other:?}"))),
        }
    }
}

impl Load {
    /// Returns the seconds between two rows of a writer, at a time after the beginning.
    fn mean(self, after: Duration) -> f64 {
        match self {
            Self::Closed => 0.0,
            Self::Steady(mean) => mean,
            Self::Bursts { over, under, phase } => {
                let turn = after.as_nanos() / phase.as_nanos();
                if turn.is_multiple_of(2) { over } else { under }
            }
        }
    }
}
