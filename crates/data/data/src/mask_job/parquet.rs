//! Jobs for a Parquet file: masking, encryption and decryption of columns.
//!
//! A thread reads the changed columns in batches of rows, tasks change the batches, and another
//! thread writes the output in the order of the input. Row groups and their order stay. The chunks
//! of all other columns are copied byte by byte.
//!
//! A job holds in memory:
//!
//! * the batches in flight, whose bytes a semaphore bounds,
//! * of the column that is read, a page and the dictionary,
//! * of the column that is written, a page. A column with a dictionary also needs the dictionary
//!   (at most a megabyte) and the encoded indices of the row group, since the dictionary comes
//!   first in the file.
//!
//! All other data is streamed.

mod column_rows;
mod delta;
mod layout;
mod mask;
mod pages;
mod read;
pub(crate) mod sample;
mod seal;
mod source;
mod thrift;
mod values;
pub(crate) mod verify;
mod write;

use std::sync::Arc;
use std::time::Instant;

use parquet::file::reader::Length;
use sealwire_columns::{LeafDecision, LeafPlan};
use sealwire_mask_rules::{Column, Rules};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

pub use seal::{ColumnsJob, Direction, DocumentEngine, change_columns, named_type};

use crate::mask_job::engine::Engine;
use crate::mask_job::error::JobError;
use crate::mask_job::file::FileJob;
use crate::mask_job::limits::Limits;
use crate::mask_job::memory::{ByteBudget, BytePermit};
use crate::mask_job::output::{Input, Output, UnfinishedOutput};
use crate::mask_job::pipeline::{Sink, in_order};
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Progress, Report};
use crate::mask_job::stop::JobStop;
use layout::Layout;
use read::{ColumnPart, ReadBatch};
use source::{Origin, SourceFile};
use values::{Levels, Values};
use write::WrittenFile;

/// Masks a Parquet file. See [`crate::mask_job::mask_file`].
pub(crate) async fn mask_parquet<E: Engine>(
    job: FileJob,
    rules: Arc<Rules>,
    engine: Arc<E>,
    progress: Arc<Progress>,
) -> Result<Report, JobError> {
    let started_at = Instant::now();
    let limits = job.limits;
    let stop = progress.job_stop().clone();
    let opened = spawn_blocking(move || {
        let plan = Arc::new(Plan::new(rules));
        open_job(&job.input, &job.output, &stop, |name, metadata| {
            Layout::new(name, plan, metadata, is_masked)
        })
    });
    let job = opened.await??;
    job.run(
        limits,
        Arc::new(mask::MaskWork { engine }),
        progress,
        started_at,
    )
    .await
}

/// For fuzzing: masks a file on this thread, and drops the output. `mask` returns one MessagePack
/// scalar per value of a column. Errors name the file `-`. Returns the number of rows.
pub(crate) fn mask_here(
    file: std::fs::File,
    rules: Arc<Rules>,
    limits: Limits,
    mut mask: impl FnMut(&Column) -> Vec<u8>,
) -> Result<u64, JobError> {
    let length = file.metadata().map_err(JobError::io("-"))?.len();
    let source = SourceFile::new(file, length);
    let metadata = source::read_metadata("-", &source)?;

    let layout = Layout::new(
        "-".to_owned(),
        Arc::new(Plan::new(rules)),
        metadata,
        is_masked,
    )?;

    // The queue holds all batches of the file, because this thread writes only after it has read.
    let (to_write, changed) = mpsc::channel(Semaphore::MAX_PERMITS);
    let shared = Arc::new(source.clone());

    let mut first_row = 0;
    for group in layout.metadata.row_groups() {
        for column in layout.changed_columns() {
            let chunk = read::ChunkRows {
                layout: &layout,
                source: &shared,
                group,
                column,
                first_row,
                limits,
            };
            chunk.read_all(|batch| {
                let masked = mask::mask_batch(&layout, limits, batch, &mut mask)?;
                to_write
                    .try_send(ColumnPart::Batch(masked))
                    .map_err(|_| JobError::Stopped)
            })?;
            to_write
                .try_send(ColumnPart::End)
                .map_err(|_| JobError::Stopped)?;
        }
        first_row += group.num_rows() as u64;
    }

    drop(to_write);
    let unfinished = UnfinishedOutput::create(&Output::Nowhere, None, &JobStop::default())?;
    write::write_file(&source, &layout, unfinished, changed, &Progress::default()).outcome?;
    Ok(first_row)
}

fn is_masked(plan: &LeafPlan) -> bool {
    plan.decision != LeafDecision::Keep
}

/// An opened job, after all checks that do not read values.
struct OpenedJob {
    source: SourceFile,
    layout: Layout,
    unfinished: UnfinishedOutput,
}

/// Opens the input and begins the output. `make_layout` checks the columns and returns the layout.
fn open_job(
    input: &Input,
    output: &Output,
    stop: &JobStop,
    make_layout: impl FnOnce(
        String,
        parquet::file::metadata::ParquetMetaData,
    ) -> Result<Layout, JobError>,
) -> Result<OpenedJob, JobError> {
    let source = source::open(input, stop)?;
    let metadata = source::read_metadata(&input.name(), &source)?;
    let layout = make_layout(input.name(), metadata)?;

    let unfinished = match (source.origin(), output) {
        (Origin::Object(reader, _), Output::Object { object, .. }) if reader.object() == object => {
            return Err(JobError::SameFile {
                path: object.to_string().into(),
            });
        }
        (Origin::File(file), _) => UnfinishedOutput::create(output, file.metadata().ok(), stop)?,
        (Origin::Object(..), _) => UnfinishedOutput::create(output, None, stop)?,
    };
    Ok(OpenedJob {
        source,
        layout,
        unfinished,
    })
}

/// Data that all batches of a job share.
struct JobState {
    layout: Layout,
    limits: Limits,
    /// Limits the batches that threads work on; one permit per batch.
    cpu_permits: Arc<Semaphore>,
}

impl JobState {
    /// Runs CPU work on a blocking thread when a permit is available.
    async fn on_thread<I: Send + 'static, O: Send + 'static>(
        self: &Arc<Self>,
        input: I,
        work: impl FnOnce(&Self, I) -> O + Send + 'static,
    ) -> Result<O, JobError> {
        // An error is impossible: the semaphore is never closed.
        let permit = Arc::clone(&self.cpu_permits).acquire_owned().await;
        let job = Arc::clone(self);
        let outcome = spawn_blocking(move || {
            let _permit = permit;
            work(&job, input)
        });
        Ok(outcome.await?)
    }
}

/// Changes the values of batches.
trait BatchWork: Send + Sync + 'static {
    /// Returns the batch with new values.
    fn change(
        &self,
        job: &Arc<JobState>,
        batch: ReadBatch,
    ) -> impl Future<Output = Result<ChangedBatch, JobError>> + Send;
}

/// A batch with new values.
#[derive(Debug)]
struct ChangedBatch {
    column: usize,
    values: Values,
    levels: Levels,
    /// Held until the batch is written.
    #[expect(dead_code, reason = "it is held, not read")]
    permit: BytePermit,
}

impl OpenedJob {
    async fn run<W: BatchWork>(
        self,
        limits: Limits,
        work: Arc<W>,
        progress: Arc<Progress>,
        started_at: Instant,
    ) -> Result<Report, JobError> {
        let Self {
            source,
            layout,
            unfinished,
        } = self;
        let bytes_in = source.len();
        let records = layout.metadata.file_metadata().num_rows().max(0) as u64;
        progress.set_totals(bytes_in, records);
        let stop = progress.job_stop().clone();
        let cpu_permits = Arc::new(Semaphore::new(limits.workers.max(1)));
        let job = Arc::new(JobState {
            layout,
            limits,
            cpu_permits,
        });

        // Short queues: the budget of bytes limits the batches in flight.
        let (to_change, batches) = mpsc::channel(1);
        let (to_write, changed) = mpsc::channel(2);

        let reading = spawn_blocking({
            let source = source.clone();
            let job = Arc::clone(&job);
            let budget = ByteBudget::new(limits.in_flight_bytes_max);
            move || read::read_columns(&source, &job.layout, (limits, &budget), &to_change)
        });

        let writing = spawn_blocking({
            let source = source.clone();
            let job = Arc::clone(&job);
            move || write::write_file(&source, &job.layout, unfinished, changed, &progress)
        });

        let changing = async {
            let mut writer = ToWriter(to_write);
            in_order(
                limits.in_flight(),
                batches,
                |part| tokio::spawn(change_part(Arc::clone(&job), Arc::clone(&work), part)),
                &mut writer,
            )
            .await
        };

        // When `changing` ends or is dropped by a stop, both queues close, so that both threads
        // end.
        let outcome = tokio::select! {
            outcome = changing => outcome,
            () = stop.requested() => Err(JobError::Stopped),
        };

        let WrittenFile {
            unfinished,
            bytes: bytes_out,
            outcome: written,
        } = writing.await?;

        let failed = match (written, outcome) {
            (Ok(()), Ok(())) => None,
            // If the job failed elsewhere, the writer only reports `Stopped`, so the other error is
            // the cause.
            (Err(JobError::Stopped) | Ok(()), Err(error)) | (Err(error), _) => {
                // If reading an object failed first, that is the cause.
                Some(source.cause(error))
            }
        };

        // A thread that panicked closes the queues of the others, so its error takes precedence. A
        // stopped job does not wait for its input.
        let panicked = tokio::select! {
            read = reading => read.err().map(JobError::from),
            () = stop.requested() => None,
        };

        // After a stop, the errors of the threads only follow from the stop.
        let failed = if stop.is_requested() {
            Some(JobError::Stopped)
        } else {
            panicked.or(failed)
        };

        spawn_blocking(move || match failed {
            None => unfinished.finish(),
            Some(error) => Err(unfinished.discard(error)),
        })
        .await??;

        Ok(Report {
            records,
            bytes_in,
            bytes_out,
            elapsed_ms: started_at.elapsed().as_millis() as u64,
            peak_memory_bytes: crate::mask_job::report::peak_memory(),
            fields: job.layout.running_report.rows(),
            ..Report::default()
        })
    }
}

async fn change_part<W: BatchWork>(
    job: Arc<JobState>,
    work: Arc<W>,
    part: ColumnPart<ReadBatch>,
) -> Result<ColumnPart<ChangedBatch>, JobError> {
    match part {
        ColumnPart::Batch(batch) => work.change(&job, batch).await.map(ColumnPart::Batch),
        ColumnPart::End => Ok(ColumnPart::End),
    }
}

/// Sends changed batches to the writer's thread.
struct ToWriter(mpsc::Sender<ColumnPart<ChangedBatch>>);

impl Sink<ColumnPart<ChangedBatch>> for ToWriter {
    async fn take(&mut self, done: ColumnPart<ChangedBatch>) -> Result<(), JobError> {
        self.0
            .send(done)
            .await
            // The error of the writer, if it has one, replaces this one.
            .map_err(|_| JobError::Panicked("the thread that writes the output ended".to_owned()))
    }
}
