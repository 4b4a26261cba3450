//! Writers of single random tokens, and what stands between them and the coalescer.

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

/// Lets rows in.
pub(crate) enum Door {
    /// The engine's. Who is refused comes again when it was told to.
    Throttle(WriteThrottle),
    /// So many rows, in order, and no curve.
    Bound(Arc<Semaphore>, usize),
}

/// Room for a row that is not durable yet; dropped, it is given back.
enum Room {
    Permit(Permit),
    Held(#[expect(dead_code, reason = "its drop gives it back")] OwnedSemaphorePermit),
}

/// When rows are due.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// The next when the last is durable.
    Closed,
    /// The next of a writer an exponential time after the last was let in, by the mean in seconds.
    Steady(f64),
    /// An exponential time after the one before was due, whatever became of it: `over` the capacity and `under` it,
    /// mean seconds of a writer, in turns of `phase`.
    Bursts { over: f64, under: f64, phase: Duration },
}

/// Times of one row, in seconds.
#[derive(Clone, Copy)]
pub(crate) struct Sample {
    /// When it was due, from the beginning.
    pub(crate) due: f64,
    /// By how much its writer woke too late.
    pub(crate) late: f64,
    /// From its first coming until it was let in.
    pub(crate) door: f64,
    /// From when it was due until it was durable.
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

/// A row that was let in.
struct Entered {
    room: Room,
    sample: Sample,
    due: Instant,
}

impl Desk {
    /// `numbers` are those of the rows.
    pub(crate) fn new(door: Door, coalescer: Coalescer, numbers: Arc<AtomicU64>) -> Self {
        let row_bytes = row(0, false).bytes();
        Self { door, coalescer, numbers, row_bytes, promised_max: AtomicUsize::new(0) }
    }

    /// The most rows that were let in and not durable.
    pub(crate) fn promised_max(&self) -> usize {
        self.promised_max.load(Ordering::Relaxed)
    }

    /// Rows that are due in a time, of so many writers; returns when all are durable. The same seed gives the same
    /// gaps.
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
        let samples = tasks.join_all().await.into_iter().collect::<io::Result<Vec<_>>>()?.concat();
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
            Door::Bound(rows, _) => Room::Held(Arc::clone(rows).acquire_owned().await.expect("is never closed")),
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

    async fn write(self: Arc<Self>, Entered { room, mut sample, due }: Entered) -> io::Result<Sample> {
        let rows = vec![row(self.numbers.fetch_add(1, Ordering::Relaxed), false)];
        let (permit, held) = match room {
            Room::Permit(permit) => (Some(permit), None),
            held @ Room::Held(_) => (None, Some(held)),
        };
        let written = self.coalescer.write(1, Group { map: MAP, rows }, None, permit).await.map_err(failed)?;
        sample.durable = due.elapsed().as_secs_f64();
        drop(held);
        match written {
            Written::Done(held) if held == [None] => Ok(sample),
            other => Err(failed(format!("a new row was not written: {other:?}"))),
        }
    }
}

impl Load {
    /// Seconds between two rows of a writer, so long after the beginning.
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
