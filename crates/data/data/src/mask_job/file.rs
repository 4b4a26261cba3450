//! The job for one file. Text formats (NDJSON, JSON, CSV) are here, and Parquet has its own module.
//!
//! All bytes outside of masked values stay unchanged: white space, the spelling of numbers and
//! strings, key order, line ends, quotes. A masked JSON string uses as few escapes as possible. A
//! masked CSV field is quoted if the original field was, or if the new content requires quotes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use sealwire_mask_rules::Rules;
use sealwire_msgpack::Token;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

use crate::mask_job::batch::{Batch, Form, FoundValue};
use crate::mask_job::chunker::{Chunk, Cutter};
use crate::mask_job::engine::Engine;
use crate::mask_job::error::JobError;
use crate::mask_job::file_format::FileFormat;
use crate::mask_job::limits::Limits;
use crate::mask_job::memory::{ByteBudget, BytePermit};
use crate::mask_job::output::{Input, Output, UnfinishedOutput, only_parquet};
use crate::mask_job::parquet::mask_parquet;
use crate::mask_job::pipeline::{self, Format, MaskedChunk, PipelineState, Sink};
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Progress, Report, RunningReport};
use crate::mask_job::scan::csv::{self, Columns};
use crate::mask_job::scan::json::{Memory, Scan, Unknown};
use crate::mask_job::scan::text::write_json;
use crate::mask_job::scan::{Fault, place};
use crate::mask_job::stop::JobStop;

/// A job for one file.
#[derive(Clone, Debug)]
pub struct FileJob {
    /// The input.
    pub input: Input,
    /// The output.
    pub output: Output,
    /// The input's format.
    pub format: FileFormat,
    /// Limits of the job.
    pub limits: Limits,
    /// True if rules by path or key of JSON may match nothing. Otherwise that is an error, unless
    /// the file has no records. Rules must always name existing columns of CSV and Parquet.
    pub allow_unmatched: bool,
}

/// Masks one file. The output appears only on success; after an error it is unchanged.
/// [`Progress::stop`] stops the job. Dropping the future also leaves no output, unless the output
/// is just being completed.
///
/// # Errors
/// [`JobError`].
pub async fn mask_file<E: Engine>(
    job: FileJob,
    rules: Arc<Rules>,
    engine: Arc<E>,
    progress: Arc<Progress>,
) -> Result<Report, JobError> {
    if job.format == FileFormat::Parquet {
        return mask_parquet(job, rules, engine, progress).await;
    }
    let begun = Instant::now();
    let plan = Arc::new(Plan::for_file(rules, job.format)?);
    let ledger = Arc::new(RunningReport::default());
    let name = job.input.name();
    let (reader, draft) = spawn_blocking({
        let job = job.clone();
        let stop = progress.job_stop().clone();
        move || open(&job, &stop)
    })
    .await??;
    if let Reader::File { length, .. } = &reader {
        progress.expect(*length, 0);
    }
    let format = FileText {
        format: job.format,
        name: name.clone(),
        plan: Arc::clone(&plan),
        ledger: Arc::clone(&ledger),
        columns: OnceLock::new(),
    };
    let shared = Arc::new(PipelineState {
        format,
        engine,
        plan,
        ledger: Arc::clone(&ledger),
        limits: job.limits,
        progress: Arc::clone(&progress),
        cpu: Arc::new(Semaphore::new(job.limits.workers.max(1))),
        memories: Mutex::default(),
    });

    let (chunks, source) = mpsc::channel(1);
    let header = Arc::clone(&shared);
    let budget = ByteBudget::new(job.limits.in_flight_bytes_max);
    let reading = spawn_blocking(move || read((reader, name), &header, &budget, &chunks));
    let (to_write, done) = mpsc::channel(2);
    let writing = spawn_blocking(move || write(draft, done));
    let mut writer = Writer { to_write, bytes: 0 };
    let stop = progress.job_stop();
    let outcome = tokio::select! {
        outcome = pipeline::run(&shared, source, &mut writer) => outcome,
        // The reading thread can wait for its input forever, so the job does not wait for the
        // threads. Both threads end by themselves.
        () = stop.asked() => return Err(JobError::Stopped),
    };
    let bytes_out = writer.bytes;
    drop(writer);
    // The output stays invisible until the whole pipeline has succeeded. The writer's error comes
    // first, since it is the cause of the pipeline's error.
    let draft = writing.await??;
    outcome?;
    reading.await?;
    for memory in &mut *shared
        .memories
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        memory.tree.settle(&shared.plan, &shared.ledger);
    }
    let moment = progress.moment();
    let is_json = matches!(job.format, FileFormat::Ndjson | FileFormat::Json);
    if is_json && !job.allow_unmatched && moment.records > 0 {
        shared.plan.all_rules_met(&ledger.rows())?;
    }
    stop.check()?;
    spawn_blocking(move || draft.finish()).await??;

    Ok(Report {
        records: moment.records,
        bytes_in: moment.bytes,
        bytes_out,
        elapsed_ms: begun.elapsed().as_millis() as u64,
        peak_memory_bytes: crate::mask_job::report::peak_memory(),
        fields: ledger.rows_without_map_keys(),
        ..Report::default()
    })
}

/// Sends masked chunks to the writer thread.
struct Writer {
    to_write: mpsc::Sender<(Vec<u8>, BytePermit)>,
    bytes: u64,
}

impl Sink for Writer {
    async fn take(&mut self, done: MaskedChunk) -> Result<(), JobError> {
        self.bytes += done.bytes.len() as u64;
        let closed = |_| JobError::Panicked("the writer ended".to_owned());
        self.to_write
            .send((done.bytes, done.permit))
            .await
            .map_err(closed)
    }
}

enum Reader {
    File {
        file: File,
        length: u64,
        /// Number of bytes still to be read, from the file's length when it was opened.
        left: u64,
    },
    Stdin(io::Stdin),
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File { file, left, .. } => {
                let count = file.read(buffer)?;
                // Without this error, the output would lack the last records.
                if count == 0 && *left > 0 && !buffer.is_empty() {
                    return Err(io::Error::other(
                        "the file became shorter while it was read",
                    ));
                }
                *left = left.saturating_sub(count as u64);
                Ok(count)
            }
            Self::Stdin(stdin) => stdin.read(buffer),
        }
    }
}

fn open(job: &FileJob, stop: &JobStop) -> Result<(Reader, UnfinishedOutput), JobError> {
    if let Output::Object { object, .. } = &job.output {
        return Err(only_parquet(object));
    }
    match &job.input {
        Input::Object(object) => Err(only_parquet(object)),
        Input::Stdin => {
            // Standard input can be a file, too.
            let input = fs::metadata("/dev/stdin").ok();
            Ok((
                Reader::Stdin(io::stdin()),
                UnfinishedOutput::begin(&job.output, input, stop)?,
            ))
        }
        Input::File(path) => {
            let file = File::open(path).map_err(JobError::io(path))?;
            let input = file.metadata().map_err(JobError::io(path))?;
            let (length, is_regular) = (input.len(), input.is_file());
            let draft = UnfinishedOutput::begin(&job.output, Some(input), stop)?;
            let left = if is_regular { length } else { 0 };
            Ok((Reader::File { file, length, left }, draft))
        }
    }
}

/// Reads until the end of the input, or until the receiver is closed.
fn read<E>(
    (reader, name): (Reader, String),
    shared: &PipelineState<FileText, E>,
    budget: &ByteBudget,
    chunks: &mpsc::Sender<Result<Chunk, JobError>>,
) {
    let cut = shared.format.format.cut();
    let mut cutter = Cutter::new(reader, cut, shared.limits, name);
    loop {
        let next = cutter.next().and_then(|chunk| match chunk {
            Some(mut chunk) if chunk.is_first => {
                shared.format.begin(&mut chunk).map(|()| Some(chunk))
            }
            chunk => Ok(chunk),
        });
        let next = match next {
            Ok(Some(mut chunk)) => {
                let Some(permit) = budget.reserve_blocking(chunk.bytes.len(), chunks) else {
                    return;
                };
                chunk.permit = permit;
                Ok(chunk)
            }
            Ok(None) => return,
            Err(error) => Err(error),
        };
        let is_over = next.is_err();
        if chunks.blocking_send(next).is_err() || is_over {
            return;
        }
    }
}

fn write(
    mut draft: UnfinishedOutput,
    mut done: mpsc::Receiver<(Vec<u8>, BytePermit)>,
) -> Result<UnfinishedOutput, JobError> {
    while let Some((bytes, _permit)) = done.blocking_recv() {
        draft.write(&bytes)?;
    }
    Ok(draft)
}

/// The text format of a file.
pub(crate) struct FileText {
    pub(crate) format: FileFormat,
    pub(crate) name: String,
    pub(crate) plan: Arc<Plan>,
    pub(crate) ledger: Arc<RunningReport>,
    /// The columns of a CSV file, set after the header was read.
    pub(crate) columns: OnceLock<Columns>,
}

impl FileText {
    /// Reads the CSV header at the start of the first chunk.
    pub(crate) fn begin(&self, chunk: &mut Chunk) -> Result<(), JobError> {
        let FileFormat::Csv { delimiter } = self.format else {
            return Ok(());
        };
        let read = Columns::read(
            &chunk.bytes,
            chunk.skipped,
            delimiter,
            &self.plan,
            &self.ledger,
        );
        let (columns, end) = read
            .map_err(|fault| self.broken(chunk, &fault))?
            .map_err(JobError::Plan)?;
        self.refused(chunk, columns.unknown(&self.plan))?;
        chunk.skipped = end;
        let _ = self.columns.set(columns);
        Ok(())
    }

    fn broken(&self, chunk: &Chunk, fault: &Fault) -> JobError {
        let (line, column) = place(&chunk.bytes, chunk.first_line, fault.at);
        JobError::Broken {
            name: self.name.clone(),
            line,
            column,
            what: fault.what.clone(),
        }
    }

    fn refused(&self, chunk: &Chunk, unknown: Unknown) -> Result<(), JobError> {
        let Unknown {
            first_at: Some(at),
            fields,
            more,
        } = unknown
        else {
            return Ok(());
        };
        let (line, _) = place(&chunk.bytes, chunk.first_line, at);
        Err(JobError::Unknown {
            name: self.name.clone(),
            line,
            fields,
            more,
        })
    }

    fn json(
        &self,
        chunk: &Chunk,
        memory: &mut Memory,
        batch: &mut Batch,
    ) -> Result<Unknown, Fault> {
        let mut scan = Scan::new(&chunk.bytes, &self.plan, &self.ledger, memory, batch)?;
        match self.format {
            FileFormat::Ndjson => scan.lines(chunk.skipped)?,
            _ if chunk.is_array => {
                scan.elements(chunk.skipped, chunk.first_record, chunk.is_last)?
            }
            _ => scan.document(chunk.skipped)?,
        }
        Ok(scan.unknown)
    }
}

impl Format for FileText {
    type Memory = Memory;

    fn memory(&self) -> Memory {
        Memory::new()
    }

    fn scan(&self, chunk: &Chunk, memory: &mut Memory, batch: &mut Batch) -> Result<(), JobError> {
        let unknown = match self.columns.get() {
            Some(columns) => {
                columns.records(&chunk.bytes, chunk.skipped, &self.plan, &self.ledger, batch)
            }
            None => self.json(chunk, memory, batch),
        };
        self.refused(chunk, unknown.map_err(|fault| self.broken(chunk, &fault))?)
    }

    fn encode(
        &self,
        found: &FoundValue,
        answer: Token<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let written = match (found.form, self.format) {
            (Form::Csv { quoted }, FileFormat::Csv { delimiter }) => {
                let is_alone = self
                    .columns
                    .get()
                    .is_some_and(|columns| columns.names().take(2).count() == 1);
                csv::write_field(answer, (quoted, is_alone), delimiter, out)
            }
            _ => write_json(answer, out),
        };
        written.ok_or_else(|| {
            format!(
                "its answer is {}, which this format cannot hold",
                answer.kind()
            )
        })
    }

    fn unfit(&self, chunk: &Chunk, found: &FoundValue, why: String) -> JobError {
        let (line, column) = place(&chunk.bytes, chunk.first_line, found.span.start);
        JobError::Unfit {
            name: self.name.clone(),
            line,
            column,
            field: self.ledger.field(found.label),
            function: self.plan.function(found.rule).to_owned(),
            why,
        }
    }
}
