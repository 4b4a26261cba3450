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
use crate::mask_job::chunker::{Chunk, ChunkReader};
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
use crate::mask_job::scan::{ScanError, place};
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
    let started_at = Instant::now();
    let plan = Arc::new(Plan::for_file(rules, job.format)?);
    let running_report = Arc::new(RunningReport::default());
    let name = job.input.name();
    let (reader, output) = spawn_blocking({
        let job = job.clone();
        let stop = progress.job_stop().clone();
        move || open_files(&job, &stop)
    })
    .await??;
    if let Reader::File { length, .. } = &reader {
        progress.set_totals(*length, 0);
    }

    let format = FileText {
        format: job.format,
        name: name.clone(),
        plan: Arc::clone(&plan),
        running_report: Arc::clone(&running_report),
        columns: OnceLock::new(),
    };
    let shared = Arc::new(PipelineState {
        format,
        engine,
        plan,
        running_report: Arc::clone(&running_report),
        limits: job.limits,
        progress: Arc::clone(&progress),
        cpu: Arc::new(Semaphore::new(job.limits.workers.max(1))),
        memories: Mutex::default(),
    });

    let (chunks, source) = mpsc::channel(1);
    let header = Arc::clone(&shared);
    let budget = ByteBudget::new(job.limits.in_flight_bytes_max);
    let reading = spawn_blocking(move || read_chunks((reader, name), &header, &budget, &chunks));
    let (to_write, done) = mpsc::channel(2);
    let writing = spawn_blocking(move || write_chunks(output, done));
    let mut writer = Writer { to_write, bytes: 0 };
    let stop = progress.job_stop();
    let outcome = tokio::select! {
        outcome = pipeline::run(&shared, source, &mut writer) => outcome,
        // The reading thread can wait for its input forever, so the job does not wait for the
        // threads. The threads end when their channels close.
        () = stop.requested() => return Err(JobError::Stopped),
    };
    let bytes_out = writer.bytes;
    drop(writer);

    // The output stays invisible until the whole pipeline has succeeded. The writer's error comes
    // first, since it is the cause of the pipeline's error.
    let output = writing.await??;
    outcome?;
    reading.await?;

    for memory in &mut *shared
        .memories
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
    {
        memory
            .tree
            .report_counts(&shared.plan, &shared.running_report);
    }
    let snapshot = progress.snapshot();
    let is_json = matches!(job.format, FileFormat::Ndjson | FileFormat::Json);
    if is_json && !job.allow_unmatched && snapshot.records > 0 {
        shared.plan.check_rules_matched(&running_report.rows())?;
    }
    stop.check()?;
    spawn_blocking(move || output.finish()).await??;

    Ok(Report {
        records: snapshot.records,
        bytes_in: snapshot.bytes,
        bytes_out,
        elapsed_ms: started_at.elapsed().as_millis() as u64,
        peak_memory_bytes: crate::mask_job::report::peak_memory(),
        fields: running_report.rows_without_map_keys(),
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
        self.to_write
            .send((done.bytes, done.permit))
            .await
            .map_err(|_| JobError::Panicked("the thread that writes the output ended".to_owned()))
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

fn open_files(job: &FileJob, stop: &JobStop) -> Result<(Reader, UnfinishedOutput), JobError> {
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
                UnfinishedOutput::create(&job.output, input, stop)?,
            ))
        }
        Input::File(path) => {
            let file = File::open(path).map_err(JobError::io(path))?;
            let input = file.metadata().map_err(JobError::io(path))?;
            let length = input.len();
            let left = if input.is_file() { length } else { 0 };
            let output = UnfinishedOutput::create(&job.output, Some(input), stop)?;
            Ok((Reader::File { file, length, left }, output))
        }
    }
}

/// Reads until the end of the input, or until the receiver is closed.
fn read_chunks<E>(
    (reader, name): (Reader, String),
    shared: &PipelineState<FileText, E>,
    budget: &ByteBudget,
    chunks: &mpsc::Sender<Result<Chunk, JobError>>,
) {
    let boundary = shared.format.format.record_boundary();
    let mut cutter = ChunkReader::new(reader, boundary, shared.limits, name);
    loop {
        let next = cutter.next().and_then(|chunk| match chunk {
            Some(mut chunk) if chunk.is_first => {
                shared.format.read_header(&mut chunk).map(|()| Some(chunk))
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

fn write_chunks(
    mut output: UnfinishedOutput,
    mut done: mpsc::Receiver<(Vec<u8>, BytePermit)>,
) -> Result<UnfinishedOutput, JobError> {
    while let Some((bytes, _permit)) = done.blocking_recv() {
        output.write(&bytes)?;
    }
    Ok(output)
}

/// The text format of a file.
pub(crate) struct FileText {
    pub(crate) format: FileFormat,
    pub(crate) name: String,
    pub(crate) plan: Arc<Plan>,
    pub(crate) running_report: Arc<RunningReport>,
    /// The columns of a CSV file, set after the header was read.
    pub(crate) columns: OnceLock<Columns>,
}

impl FileText {
    /// Reads the CSV header at the start of the first chunk.
    pub(crate) fn read_header(&self, chunk: &mut Chunk) -> Result<(), JobError> {
        let FileFormat::Csv { delimiter } = self.format else {
            return Ok(());
        };
        let read = Columns::read(
            &chunk.bytes,
            chunk.skipped,
            delimiter,
            &self.plan,
            &self.running_report,
        );
        let (columns, end) = read
            .map_err(|error| error.in_chunk(&self.name, chunk))?
            .map_err(JobError::Plan)?;
        self.reject_unknown(chunk, columns.unknown(&self.plan))?;
        chunk.skipped = end;
        let _ = self.columns.set(columns);
        Ok(())
    }

    /// Returns an error if some fields are named by no rule.
    fn reject_unknown(&self, chunk: &Chunk, unknown: Unknown) -> Result<(), JobError> {
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

    fn scan_json(
        &self,
        chunk: &Chunk,
        memory: &mut Memory,
        batch: &mut Batch,
    ) -> Result<Unknown, ScanError> {
        let mut scan = Scan::new(
            &chunk.bytes,
            &self.plan,
            &self.running_report,
            memory,
            batch,
        )?;
        scan.scan_chunk(self.format, chunk)?;
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
            Some(columns) => columns.records(
                &chunk.bytes,
                chunk.skipped,
                &self.plan,
                &self.running_report,
                batch,
            ),
            None => self.scan_json(chunk, memory, batch),
        };
        let unknown = unknown.map_err(|error| error.in_chunk(&self.name, chunk))?;
        self.reject_unknown(chunk, unknown)
    }

    fn encode(
        &self,
        found: &FoundValue,
        masked: Token<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let written = match (found.form, self.format) {
            (Form::Csv { quoted }, FileFormat::Csv { delimiter }) => {
                let is_alone = self
                    .columns
                    .get()
                    .is_some_and(|columns| columns.names().take(2).count() == 1);
                csv::write_field(masked, (quoted, is_alone), delimiter, out)
            }
            _ => write_json(masked, out),
        };
        written.ok_or_else(|| {
            format!(
                "its masked value is {}, which this format cannot hold",
                masked.kind()
            )
        })
    }

    fn unfit(&self, chunk: &Chunk, found: &FoundValue, why: String) -> JobError {
        let (line, column) = place(&chunk.bytes, chunk.first_line, found.span.start);
        JobError::Unfit {
            name: self.name.clone(),
            line,
            column,
            field: self.running_report.field(found.label),
            function: self.plan.function(found.rule).to_owned(),
            why,
        }
    }
}
