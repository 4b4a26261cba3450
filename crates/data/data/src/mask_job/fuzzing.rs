//! Entry points for fuzz targets: a job for text in memory, on the calling thread. Not part of the
//! public API.

use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};

use sealwire_mask_rules::Rules;
use tokio::sync::Semaphore;

use crate::mask_job::batch::MaskedValues;
use crate::mask_job::chunker::{Chunk, ChunkReader, RecordBoundary};
use crate::mask_job::error::JobError;
use crate::mask_job::file::FileText;
use crate::mask_job::file_format::FileFormat;
use crate::mask_job::limits::Limits;
use crate::mask_job::parquet;
use crate::mask_job::pipeline::{self, Format, PipelineState};
use crate::mask_job::plan::Plan;
use crate::mask_job::postgres::catalog::{self, Class, Table};
use crate::mask_job::postgres::rows::Rows;
use crate::mask_job::report::{FieldReport, Progress, RunningReport};
use sealwire_mask_rules::Column;

/// The output of a job.
#[derive(Debug, PartialEq, Eq)]
pub struct Masked {
    /// The text with its values masked.
    pub text: Vec<u8>,
    /// Number of records or rows.
    pub records: u64,
    /// Counts by path or column, sorted by name and rule. Counts of kept values and nulls of JSON
    /// are missing.
    pub fields: Vec<FieldReport>,
}

/// Masks the text of a file. `mask` returns one scalar per value of a column.
///
/// # Errors
/// [`JobError`], as for a file job.
pub fn file(
    text: &[u8],
    format: FileFormat,
    rules: &Arc<Rules>,
    limits: Limits,
    mask: impl FnMut(&Column) -> Vec<u8>,
) -> Result<Masked, JobError> {
    let plan = Arc::new(Plan::for_file(Arc::clone(rules), format)?);
    let running_report = Arc::new(RunningReport::default());
    let text_of = FileText {
        format,
        name: "-".to_owned(),
        plan: Arc::clone(&plan),
        running_report: Arc::clone(&running_report),
        columns: OnceLock::new(),
    };
    run(
        text,
        format.record_boundary(),
        text_of,
        (plan, running_report),
        limits,
        |format, chunk| format.read_header(chunk),
        mask,
    )
}

/// Masks rows of a table `shop.people` in COPY's text format. The columns are `id`, `name`, `paid`,
/// `active`, `notes` and `born`, one of each class. `mask` returns one scalar per value of a
/// column.
///
/// # Errors
/// [`JobError`], as for a database job.
pub fn rows(
    text: &[u8],
    rules: &Arc<Rules>,
    limits: Limits,
    mask: impl FnMut(&Column) -> Vec<u8>,
) -> Result<Masked, JobError> {
    let plan = Arc::new(Plan::new(Arc::clone(rules)));
    let running_report = Arc::new(RunningReport::default());
    let columns = [
        ("id", Class::Integer),
        ("name", Class::Text(Some(20))),
        ("paid", Class::Decimal),
        ("active", Class::Boolean),
        ("notes", Class::Json),
        ("born", Class::Other),
    ];
    let columns = columns
        .iter()
        .zip(1..)
        .map(|((name, class), number)| catalog::Column {
            name: (*name).to_owned(),
            type_text: String::new(),
            class: *class,
            kinds: catalog::KindScope::Values,
            is_generated: false,
            is_not_null: false,
            number,
        });
    let table = Table {
        schema: "shop".to_owned(),
        name: "people".to_owned(),
        is_partitioned: false,
        rows_estimated: 0,
        bytes: 0,
        columns: columns.collect(),
        parents: Vec::new(),
        uniques: Vec::new(),
        foreign_keys: Vec::new(),
    };
    let rows = Rows::new(&table, &plan, &running_report)?;
    run(
        text,
        RecordBoundary::Lines,
        rows,
        (plan, running_report),
        limits,
        |_, _| Ok(()),
        mask,
    )
}

/// Masks a Parquet file, and drops the output. `mask` returns one scalar per value of a column.
/// Returns the number of rows.
///
/// # Errors
/// [`JobError`], as for a file job.
pub fn parquet(
    bytes: &[u8],
    rules: &Arc<Rules>,
    limits: Limits,
    mask: impl FnMut(&Column) -> Vec<u8>,
) -> Result<u64, JobError> {
    let mut file = tempfile::tempfile().map_err(JobError::io("-"))?;
    file.write_all(bytes).map_err(JobError::io("-"))?;
    parquet::mask_here(file, Arc::clone(rules), limits, mask)
}

fn run<F: Format>(
    text: &[u8],
    boundary: RecordBoundary,
    format: F,
    (plan, running_report): (Arc<Plan>, Arc<RunningReport>),
    limits: Limits,
    start: impl Fn(&F, &mut Chunk) -> Result<(), JobError>,
    mut mask: impl FnMut(&Column) -> Vec<u8>,
) -> Result<Masked, JobError> {
    let shared = PipelineState {
        format,
        engine: Arc::new(()),
        plan,
        running_report,
        limits,
        progress: Arc::new(Progress::default()),
        cpu: Arc::new(Semaphore::new(1)),
        memories: Mutex::default(),
    };
    let mut cutter = ChunkReader::new(text, boundary, limits, "-".to_owned());
    let mut masked = Masked {
        text: Vec::new(),
        records: 0,
        fields: Vec::new(),
    };
    while let Some(mut chunk) = cutter.next()? {
        if chunk.is_first {
            start(&shared.format, &mut chunk)?;
        }
        let (chunk, mut batch) = pipeline::scan(&shared, chunk)?;
        let mut masked_values = MaskedValues::default();
        for part in std::mem::take(&mut batch.parts) {
            let sent: Vec<(usize, usize)> = part
                .columns
                .iter()
                .map(|column| (column.rule, column.count))
                .collect();
            let outcome = masked_values.take(&sent, part.columns.iter().map(&mut mask).collect());
            outcome.map_err(|error| JobError::Engine(error.to_string()))?;
        }
        let done = pipeline::put_back(&shared, chunk, batch, &masked_values)?;
        masked.text.extend_from_slice(&done.bytes);
        masked.records += done.records;
    }
    masked.fields = shared.running_report.rows();
    masked
        .fields
        .sort_by(|a, b| (&a.field, a.rule).cmp(&(&b.field, b.rule)));
    Ok(masked)
}
