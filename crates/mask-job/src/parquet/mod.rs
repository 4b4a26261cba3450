//! The job for a Parquet file.
//!
//! One thread reads the masked columns in batches of rows, tasks mask the batches, and one thread writes the output in the
//! order of the input. Row groups and their order stay. The chunks of columns that no rule masks are copied byte by byte.
//!
//! Memory holds the batches in flight, a dictionary of the column that is read, and the encoded chunk of the column that is
//! written: pages are buffered until their dictionary is complete, which is at most a megabyte. All else is streamed.

mod mask;
mod read;
mod source;
mod thrift;
mod values;
pub(crate) mod verify;
mod write;

use std::sync::Arc;
use std::time::Instant;

use parquet::arrow::parquet_to_arrow_schema;
use parquet::basic::Repetition;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::Length;
use sealwire_columns::{LeafDecision, LeafPlan, resolve};
use sealwire_mask_rules::{Rules, Target};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::spawn_blocking;

use crate::engine::Engine;
use crate::error::JobError;
use crate::file::FileJob;
use crate::limits::Limits;
use crate::output::{Input, UnfinishedOutput};
use crate::pipeline::{Sink, in_order};
use crate::plan::Plan;
use crate::report::{Counts, Label, Progress, Report, RunningReport};
use mask::MaskedBatch;
use read::{ColumnPart, ReadBatch};
use source::SourceFile;
use values::{Levels, Values};

/// Masks a Parquet file. See [`crate::mask_file`].
pub(crate) async fn mask_parquet<E: Engine>(
    job: FileJob,
    rules: Arc<Rules>,
    engine: Arc<E>,
    progress: Arc<Progress>,
) -> Result<Report, JobError> {
    let begun = Instant::now();
    let limits = job.limits;
    let (source, layout, unfinished) = spawn_blocking(move || open(&job, rules)).await??;
    let (layout, bytes_in) = (Arc::new(layout), source.len());
    let records = layout.metadata.file_metadata().num_rows().max(0) as u64;
    progress.expect(bytes_in, records);

    let (to_mask, batches) = mpsc::channel(1);
    let (to_write, masked) = mpsc::channel(2);
    let reading = spawn_blocking({
        let (source, layout) = (source.clone(), Arc::clone(&layout));
        move || read::read_columns(&source, &layout, limits, &to_mask)
    });
    let writing = spawn_blocking({
        let (layout, progress) = (Arc::clone(&layout), Arc::clone(&progress));
        move || write::write_file(&source, &layout, unfinished, masked, &progress)
    });
    let cpu = Arc::new(Semaphore::new(limits.workers.max(1)));
    let start = |part| tokio::spawn(process(Arc::clone(&layout), Arc::clone(&engine), limits, Arc::clone(&cpu), part));
    let outcome = in_order(limits.in_flight(), batches, start, &mut ToWriter(to_write)).await;
    // A thread that panicked ends the queues of the others, so its error comes before theirs.
    reading.await?;
    let written = writing.await?;
    let (unfinished, bytes_out) = match (written, outcome) {
        (Ok(written), Ok(())) => written,
        // The writer stops without an error of its own if the job failed elsewhere.
        (Err(JobError::Stopped) | Ok(_), Err(error)) | (Err(error), _) => return Err(error),
    };
    spawn_blocking(move || unfinished.finish()).await??;

    Ok(Report {
        records,
        bytes_in,
        bytes_out,
        elapsed_ms: begun.elapsed().as_millis() as u64,
        peak_memory_bytes: crate::report::peak_memory(),
        fields: layout.ledger.rows(),
    })
}

/// Opens the input and begins the output, after all checks that need no values.
fn open(job: &FileJob, rules: Arc<Rules>) -> Result<(SourceFile, Layout, UnfinishedOutput), JobError> {
    let Input::File(path) = &job.input else {
        let why = "a Parquet file is not read from standard input, since its index is at its end: name a file";
        return Err(JobError::Plan(why.to_owned()));
    };
    let source = source::open(path)?;
    let metadata = source::read_metadata(&job.input.name(), &source)?;
    let layout = Layout::new(job.input.name(), Arc::new(Plan::new(rules)), metadata)?;
    let unfinished = UnfinishedOutput::begin(&job.output, Some(source.file()))?;
    Ok((source, layout, unfinished))
}

/// Sends masked batches to the writer's thread.
struct ToWriter(mpsc::Sender<ColumnPart<MaskedBatch>>);

impl Sink<ColumnPart<MaskedBatch>> for ToWriter {
    async fn take(&mut self, done: ColumnPart<MaskedBatch>) -> Result<(), JobError> {
        let closed = |_| JobError::Panicked("the writer ended".to_owned());
        self.0.send(done).await.map_err(closed)
    }
}

async fn process<E: Engine>(
    layout: Arc<Layout>,
    engine: Arc<E>,
    limits: Limits,
    cpu: Arc<Semaphore>,
    part: ColumnPart<ReadBatch>,
) -> Result<ColumnPart<MaskedBatch>, JobError> {
    let ColumnPart::Batch(batch) = part else { return Ok(ColumnPart::End) };
    let permit = Arc::clone(&cpu).acquire_owned().await;
    let selected = spawn_blocking({
        let layout = Arc::clone(&layout);
        move || {
            let _permit = permit;
            mask::select(&layout, limits, batch)
        }
    });
    let selected = selected.await??;
    let answers = selected.send(&layout, limits, engine.as_ref()).await?;
    let permit = cpu.acquire_owned().await;
    let masked = spawn_blocking(move || {
        let _permit = permit;
        selected.put_back(&layout, answers)
    });
    Ok(ColumnPart::Batch(masked.await??))
}

/// A checked file, with the decision for each of its columns.
struct Layout {
    name: String,
    plan: Arc<Plan>,
    metadata: Arc<ParquetMetaData>,
    leaves: Vec<LeafLayout>,
    ledger: RunningReport,
}

/// A column of the file: a leaf of its schema.
struct LeafLayout {
    plan: LeafPlan,
    definition_max: i16,
    repetition_max: i16,
    is_optional: bool,
    /// The length of values of fixed length.
    width: i32,
    /// The label of each rule that can mask the column.
    labels: Vec<(usize, Label)>,
    /// The label under which nulls and kept values are counted.
    kept: Label,
}

impl LeafLayout {
    fn label(&self, rule: usize) -> Label {
        self.labels.iter().find(|(of, _)| *of == rule).map_or(self.kept, |(_, label)| *label)
    }

    /// Returns the number of nulls. Empty lists and what is missing with its struct are none.
    fn nulls(&self, levels: &Levels) -> u64 {
        let is_null = |level: &&i16| self.is_optional && **level == self.definition_max - 1;
        levels.definitions.iter().filter(is_null).count() as u64
    }
}

impl Layout {
    fn new(name: String, plan: Arc<Plan>, metadata: ParquetMetaData) -> Result<Self, JobError> {
        let invalid = |what: String| JobError::Invalid { name: name.clone(), what };
        let schema = metadata.file_metadata().schema_descr_ptr();
        // Without the Arrow schema that the file may state: the types are those of Parquet.
        let arrow = parquet_to_arrow_schema(&schema, None).map_err(|error| invalid(error.to_string()))?;
        let plans = resolve(plan.rules(), &arrow).map_err(|error| JobError::Plan(format!("{name}: {error}")))?;
        if plans.len() != schema.num_columns() || plans.is_empty() {
            return Err(invalid("it has columns of a kind that cannot be read".to_owned()));
        }
        let ledger = RunningReport::default();
        let mut leaves = Vec::with_capacity(plans.len());
        for (plan_of_leaf, column) in plans.into_iter().zip(schema.columns()) {
            let leaf = LeafLayout {
                definition_max: column.max_def_level(),
                repetition_max: column.max_rep_level(),
                is_optional: column.self_type().get_basic_info().has_repetition()
                    && column.self_type().get_basic_info().repetition() == Repetition::OPTIONAL,
                width: column.type_length(),
                labels: labels(&plan, &ledger, &plan_of_leaf),
                kept: kept_label(&plan, &ledger, &plan_of_leaf),
                plan: plan_of_leaf,
            };
            leaves.push(leaf);
        }
        let layout = Self { name, plan, metadata: Arc::new(metadata), leaves, ledger };
        layout.check_masked()?;
        layout.count_copied();
        Ok(layout)
    }

    fn masked_columns(&self) -> impl Iterator<Item = usize> {
        (0..self.leaves.len()).filter(|column| self.is_masked(*column))
    }

    fn is_masked(&self, column: usize) -> bool {
        self.leaves[column].plan.decision != LeafDecision::Keep
    }

    /// Rejects masked columns that cannot be read or written.
    fn check_masked(&self) -> Result<(), JobError> {
        for column in self.masked_columns() {
            let plan = &self.leaves[column].plan;
            let error =
                |what: String| Err(JobError::Plan(format!("{}: column {}: {what}", self.name, plan.path.text())));
            let descriptor = self.metadata.file_metadata().schema_descr().column(column);
            if let Err((_, what)) = Values::empty(descriptor.physical_type()).to_arrow(plan.field.data_type()) {
                return error(format!("{what} (as {})", plan.field.data_type()));
            }
            let codecs = self.metadata.row_groups().iter().map(|group| group.column(column).compression());
            if let Some(codec) = codecs.filter_map(write::unknown_codec).next() {
                return error(format!("it is compressed with {codec}, which this program lacks"));
            }
        }
        Ok(())
    }

    /// Returns true if the values of a column can be read as Arrow values of a type that masks know.
    fn is_readable(&self, column: usize) -> bool {
        let physical = self.metadata.file_metadata().schema_descr().column(column).physical_type();
        Values::empty(physical).to_arrow(self.leaves[column].plan.field.data_type()).is_ok()
    }

    /// Counts the values of columns that are copied, as the metadata states them.
    fn count_copied(&self) {
        let mut counts = Counts::default();
        for column in (0..self.leaves.len()).filter(|column| !self.is_masked(*column)) {
            for chunk in self.metadata.row_groups().iter().map(|group| group.column(column)) {
                let values = u64::try_from(chunk.num_values()).unwrap_or(0);
                let nulls = chunk.statistics().and_then(|statistics| statistics.null_count_opt()).unwrap_or(0);
                counts.kept(self.leaves[column].kept, values.saturating_sub(nulls));
                counts.nulls(self.leaves[column].kept, nulls);
            }
        }
        self.ledger.add(&counts);
    }

    fn invalid(&self, what: &str) -> JobError {
        JobError::Invalid { name: self.name.clone(), what: what.to_owned() }
    }

    fn column_invalid(&self, column: usize, what: &str) -> JobError {
        self.invalid(&format!("column {}: {what}", self.leaves[column].plan.path.text()))
    }

    /// Creates the error for the value with this index in its batch.
    fn value_error(&self, batch: &ReadBatch, at: usize, what: &str) -> JobError {
        let leaf = &self.leaves[batch.column];
        let is_value =
            |entry: &usize| leaf.definition_max == 0 || batch.levels.definitions[*entry] == leaf.definition_max;
        let entry = (0..batch.entries).filter(is_value).nth(at).unwrap_or(0);
        let row = match leaf.repetition_max {
            0 => entry as u64,
            _ => batch.levels.repetitions[1..=entry].iter().filter(|level| **level == 0).count() as u64,
        };
        JobError::Row {
            table: self.name.clone(),
            column: leaf.plan.path.text().to_owned(),
            row: batch.first_row + row + 1,
            what: what.to_owned(),
        }
    }
}

/// Returns the label of each rule that can mask a column.
fn labels(plan: &Plan, ledger: &RunningReport, leaf: &LeafPlan) -> Vec<(usize, Label)> {
    let name = leaf.path.text();
    match leaf.decision {
        LeafDecision::Rule(rule) => vec![(rule, ledger.label(plan.field(name.to_owned(), Some(rule), None)))],
        LeafDecision::Keep => Vec::new(),
        LeafDecision::Kinds => {
            let kinds = plan.rules().iter().enumerate().filter(|(_, rule)| matches!(rule.target, Target::Kind(_)));
            let label = |rule| ledger.label(plan.field(name.to_owned(), Some(rule), plan.kind_name(rule)));
            kinds.map(|(rule, _)| (rule, label(rule))).collect()
        }
    }
}

/// Returns the label under which nulls and kept values of a column are counted.
fn kept_label(plan: &Plan, ledger: &RunningReport, leaf: &LeafPlan) -> Label {
    ledger.label(plan.field(leaf.path.text().to_owned(), leaf.rule, None))
}
