//! The chunk pipeline: scans, masks and splices several chunks concurrently and returns them in
//! order.
//!
//! Scanning and splicing are CPU work and run on blocking threads, at most one per worker. Dropping
//! the future cancels chunks that wait for the engine. A running thread finishes its current chunk.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use sealwire_msgpack::Token;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};

use crate::mask_job::batch::{Batch, FoundValue, MaskedValues, splice};
use crate::mask_job::chunker::Chunk;
use crate::mask_job::engine::{Engine, EngineError};
use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::memory::BytePermit;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Progress, RunningReport};

/// Scans text of one format and encodes masked values in that format.
pub(crate) trait Format: Send + Sync + 'static {
    /// State that a scan keeps for later scans.
    type Memory: Send + 'static;

    fn memory(&self) -> Self::Memory;

    /// Adds the values of a chunk that are to be masked to `batch`.
    fn scan(
        &self,
        chunk: &Chunk,
        memory: &mut Self::Memory,
        batch: &mut Batch,
    ) -> Result<(), JobError>;

    /// Appends one masked value as text.
    fn encode(
        &self,
        found: &FoundValue,
        masked: Token<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String>;

    /// Creates the error for one value, with its position.
    fn unfit(&self, chunk: &Chunk, found: &FoundValue, why: String) -> JobError;
}

/// Data that all chunks of a job share.
pub(crate) struct PipelineState<F: Format, E> {
    pub(crate) format: F,
    pub(crate) engine: Arc<E>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) running_report: Arc<RunningReport>,
    pub(crate) limits: Limits,
    pub(crate) progress: Arc<Progress>,
    /// Limits the chunks that threads work on; one permit per chunk.
    pub(crate) cpu: Arc<Semaphore>,
    pub(crate) memories: Mutex<Vec<F::Memory>>,
}

/// A masked chunk.
#[derive(Debug)]
pub(crate) struct MaskedChunk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) bytes_in: u64,
    pub(crate) records: u64,
    /// Held until the chunk is written.
    pub(crate) permit: BytePermit,
}

/// Consumes the results of tasks in order.
pub(crate) trait Sink<T = MaskedChunk>: Send {
    /// Consumes one result.
    fn take(&mut self, done: T) -> impl Future<Output = Result<(), JobError>> + Send;
}

/// Takes chunks from `source` until it ends, and sends each to `sink` when the chunk is masked.
pub(crate) async fn run<F: Format, E: Engine>(
    shared: &Arc<PipelineState<F, E>>,
    source: mpsc::Receiver<Result<Chunk, JobError>>,
    sink: &mut impl Sink,
) -> Result<(), JobError> {
    let mut counted = Counted {
        sink,
        progress: &shared.progress,
    };
    in_order(
        shared.limits.in_flight(),
        source,
        |chunk| tokio::spawn(process(Arc::clone(shared), chunk)),
        &mut counted,
    )
    .await
}

/// Counts chunks on their way to a sink.
struct Counted<'a, S> {
    sink: &'a mut S,
    progress: &'a Progress,
}

impl<S: Sink> Sink for Counted<'_, S> {
    async fn take(&mut self, done: MaskedChunk) -> Result<(), JobError> {
        self.progress.add(done.bytes_in, done.records);
        self.sink.take(done).await
    }
}

/// Starts a task for each input until `source` ends, at most `in_flight` at once, and sends the
/// results to `sink` in order.
pub(crate) async fn in_order<I: Send, O: Send>(
    in_flight: usize,
    mut source: mpsc::Receiver<Result<I, JobError>>,
    start: impl Fn(I) -> JoinHandle<Result<O, JobError>> + Send,
    sink: &mut impl Sink<O>,
) -> Result<(), JobError> {
    let mut running_tasks: VecDeque<Task<O>> = VecDeque::with_capacity(in_flight);
    let mut is_over = false;
    loop {
        tokio::select! {
            biased;
            next = source.recv(), if !is_over && running_tasks.len() < in_flight => match next {
                Some(input) => running_tasks.push_back(Task::new(start(input?))),
                None => is_over = true,
            },
            Some(done) = first_or_error(&mut running_tasks) => sink.take(done?).await?,
            else => return Ok(()),
        }
    }
}

/// Waits for the first task in flight and takes its output, or for the first error of any task. A
/// failed job discards all output, so an error does not wait for slow tasks that began earlier.
/// Returns `None` if there are no tasks. Safe to cancel.
async fn first_or_error<O>(running_tasks: &mut VecDeque<Task<O>>) -> Option<Result<O, JobError>> {
    if running_tasks.is_empty() {
        return None;
    }
    let first = poll_fn(|context| {
        for task in running_tasks.iter_mut() {
            task.poll(context)?;
        }
        match running_tasks
            .front_mut()
            .and_then(|first| first.output.take())
        {
            Some(output) => Poll::Ready(Ok(output)),
            None => Poll::Pending,
        }
    });
    let outcome = first.await;
    running_tasks.pop_front();
    Some(outcome)
}

/// A task that is aborted when its owner drops it.
struct Task<O> {
    running: JoinHandle<Result<O, JobError>>,
    is_done: bool,
    /// The output of the task, until it is taken.
    output: Option<O>,
}

impl<O> Task<O> {
    fn new(running: JoinHandle<Result<O, JobError>>) -> Self {
        Self {
            running,
            is_done: false,
            output: None,
        }
    }

    /// Takes the output from the task once it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> Result<(), JobError> {
        if !self.is_done
            && let Poll::Ready(ended) = Pin::new(&mut self.running).poll(context)
        {
            self.is_done = true;
            self.output = Some(ended??);
        }
        Ok(())
    }
}

impl<O> Drop for Task<O> {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn process<F: Format, E: Engine>(
    shared: Arc<PipelineState<F, E>>,
    chunk: Chunk,
) -> Result<MaskedChunk, JobError> {
    let (chunk, mut batch) = on_thread(&shared, chunk, scan).await??;
    let parts = std::mem::take(&mut batch.parts);
    let mut masked = MaskedValues::default();
    let mut sent_before = Vec::new();
    for part in parts {
        let sent: Vec<(usize, usize)> = part
            .columns
            .iter()
            .map(|column| (column.rule, column.count))
            .collect();
        let outcome = shared.engine.mask(part.columns).await;
        let outcome = outcome.and_then(|columns| masked.take(&sent, columns));
        if let Err(error) = outcome {
            return Err(locate_error(
                &shared,
                &chunk,
                &batch,
                &sent_before,
                &sent,
                error,
            ));
        }
        sent_before.extend(sent);
    }
    let work = (chunk, batch, masked);
    on_thread(&shared, work, |shared, (chunk, batch, masked)| {
        put_back(shared, chunk, batch, &masked)
    })
    .await?
}

/// Runs CPU work on a blocking thread when a permit is available.
async fn on_thread<F: Format, E: Engine, I: Send + 'static, O: Send + 'static>(
    shared: &Arc<PipelineState<F, E>>,
    input: I,
    work: impl FnOnce(&PipelineState<F, E>, I) -> O + Send + 'static,
) -> Result<O, JobError> {
    let permit = Arc::clone(&shared.cpu).acquire_owned().await;
    let shared = Arc::clone(shared);
    let outcome = spawn_blocking(move || {
        let _permit = permit;
        work(&shared, input)
    });
    Ok(outcome.await?)
}

pub(crate) fn scan<F: Format, E>(
    shared: &PipelineState<F, E>,
    chunk: Chunk,
) -> Result<(Chunk, Batch), JobError> {
    let kept = shared
        .memories
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop();
    let mut memory = kept.unwrap_or_else(|| shared.format.memory());
    let mut batch = Batch::new(shared.limits);
    let outcome = shared.format.scan(&chunk, &mut memory, &mut batch);
    shared
        .memories
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(memory);
    outcome.map(|()| (chunk, batch))
}

pub(crate) fn put_back<F: Format, E>(
    shared: &PipelineState<F, E>,
    mut chunk: Chunk,
    mut batch: Batch,
    masked: &MaskedValues,
) -> Result<MaskedChunk, JobError> {
    let bytes_in = chunk.bytes.len() as u64;
    let permit = std::mem::take(&mut chunk.permit);
    let bytes = if batch.found.is_empty() {
        chunk.bytes
    } else {
        let spliced = splice(
            &chunk.bytes,
            &batch.found,
            masked,
            &mut batch.counts,
            |found, masked, out| shared.format.encode(found, masked, out),
        );
        spliced.map_err(|(at, what)| shared.format.unfit(&chunk, &batch.found[at], what))?
    };
    shared.running_report.add(&batch.counts);
    Ok(MaskedChunk {
        bytes,
        bytes_in,
        records: batch.records,
        permit,
    })
}

/// Adds the position of the value to the engine's error.
fn locate_error<F: Format, E>(
    shared: &PipelineState<F, E>,
    chunk: &Chunk,
    batch: &Batch,
    sent_before: &[(usize, usize)],
    sent: &[(usize, usize)],
    error: EngineError,
) -> JobError {
    let EngineError::Unfit { column, value, why } = error else {
        return JobError::Engine(error.to_string());
    };
    let Some((rule, _)) = sent.get(column) else {
        return JobError::Engine(why);
    };
    let before: usize = sent_before
        .iter()
        .filter(|(other, _)| other == rule)
        .map(|(_, count)| count)
        .sum();
    match batch
        .found
        .iter()
        .filter(|found| found.rule == *rule)
        .nth(before + value)
    {
        Some(found) => shared.format.unfit(chunk, found, why),
        None => JobError::Engine(why),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    struct Outputs(Vec<u64>);

    impl Sink<u64> for Outputs {
        async fn take(&mut self, done: u64) -> Result<(), JobError> {
            self.0.push(done);
            Ok(())
        }
    }

    /// Runs a task for each number of seconds, the last of which can fail. Returns the outputs, the
    /// error and the seconds.
    async fn run_tasks(seconds: &[u64], is_last_bad: bool) -> (Vec<u64>, Option<String>, u64) {
        let (sender, source) = mpsc::channel(seconds.len());
        for (index, seconds_each) in seconds.iter().enumerate() {
            let is_bad = is_last_bad && index + 1 == seconds.len();
            sender
                .send(Ok((*seconds_each, is_bad)))
                .await
                .expect("there is room");
        }
        drop(sender);
        let start = |(seconds, is_bad)| {
            tokio::spawn(async move {
                sleep(Duration::from_secs(seconds)).await;
                if is_bad {
                    Err(JobError::Engine("forbidden".to_owned()))
                } else {
                    Ok(seconds)
                }
            })
        };
        let started = Instant::now();
        let mut outputs = Outputs(Vec::new());
        let ended = in_order(4, source, start, &mut outputs).await;
        (
            outputs.0,
            ended.err().map(|error| error.to_string()),
            started.elapsed().as_secs(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn errors_do_not_wait_for_earlier_slower_tasks() {
        assert_eq!(
            run_tasks(&[3, 1, 2, 5, 1], false).await,
            (vec![3, 1, 2, 5, 1], None, 5)
        );
        let (outputs, error, seconds) = run_tasks(&[100, 100, 1], true).await;
        assert_eq!((outputs, seconds), (vec![], 1));
        assert!(error.is_some_and(|error| error.contains("forbidden")));
        let (outputs, error, seconds) = run_tasks(&[1, 100, 2], true).await;
        assert_eq!((outputs, error.is_some(), seconds), (vec![1], true, 2));
    }
}
