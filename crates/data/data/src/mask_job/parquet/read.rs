//! Reads changed columns in batches of rows.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_buffer::NullBuffer;
use parquet::file::metadata::RowGroupMetaData;
use sealwire_columns::{Leaf, SubjectValues};
use tokio::sync::mpsc;

use super::column_rows::{ColumnRows, Rows, RowsError};
use super::layout::Layout;
use super::source::SourceFile;
use super::values::{Levels, Values};
use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::memory::{ByteBudget, BytePermit};

/// Maximum number of rows of the first batch of a column chunk. The size of the values determines
/// the rows of later batches.
const FIRST_ROWS_MAX: usize = 64;
/// Bytes that an entry takes in addition to the bytes of its value: a reference, levels, and an
/// offset in an array.
const VALUE_BYTES: usize = 40;
/// Maximum factor by which a batch can be larger than the batch before.
const GROWTH_MAX: usize = 4;

/// Rows of one changed column.
#[derive(Debug)]
pub(super) struct ReadBatch {
    /// Index of the column among all leaves.
    pub(super) column: usize,
    /// Number of the first row in the file, from 0.
    pub(super) first_row: u64,
    pub(super) values: Values,
    pub(super) levels: Levels,
    pub(super) entries: usize,
    pub(super) subjects: Vec<ReadSubjects>,
    /// Held until the batch is written.
    pub(super) permit: BytePermit,
}

impl ReadBatch {
    /// Returns the memory of the batch in bytes: the bytes of the values, and an estimate of their
    /// overhead.
    fn memory_bytes(&self) -> usize {
        let subjects = self
            .subjects
            .iter()
            .map(|subjects| subjects.values.bytes() + VALUE_BYTES * subjects.rows.len());
        self.values.bytes() + VALUE_BYTES * self.entries + subjects.sum::<usize>()
    }
}

/// The subjects of one rule for the values of a batch.
#[derive(Debug)]
pub(super) struct ReadSubjects {
    rule: usize,
    column: usize,
    values: Values,
    /// The index in `values` of each value's subject. An index equal to the length of `values`
    /// stands for a missing subject.
    rows: Vec<usize>,
}

/// A part of a changed column.
#[derive(Debug)]
pub(super) enum ColumnPart<B> {
    Batch(B),
    /// The end of the column chunk.
    End,
}

/// Reads the changed columns of all row groups, in the order in which they are written. Stops early
/// if the receiver is closed.
pub(super) fn read_columns(
    source: &SourceFile,
    layout: &Layout,
    (limits, budget): (Limits, &ByteBudget),
    parts: &mpsc::Sender<Result<ColumnPart<ReadBatch>, JobError>>,
) {
    if let Err(Stop::Failed(error)) = send_columns(source, layout, (limits, budget), parts) {
        // If the receiver is closed, nothing waits for the error.
        let _ = parts.blocking_send(Err(error));
    }
}

fn send_columns(
    source: &SourceFile,
    layout: &Layout,
    (limits, budget): (Limits, &ByteBudget),
    parts: &mpsc::Sender<Result<ColumnPart<ReadBatch>, JobError>>,
) -> Result<(), Stop> {
    let source = Arc::new(source.clone());
    let mut first_row = 0;
    for group in layout.metadata.row_groups() {
        for column in layout.changed_columns() {
            let chunk = ChunkRows {
                layout,
                source: &source,
                group,
                column,
                first_row,
                limits,
            };
            chunk.read(|mut batch| {
                batch.permit = budget
                    .reserve_blocking(batch.memory_bytes(), parts)
                    .ok_or(Stop::Closed)?;
                parts
                    .blocking_send(Ok(ColumnPart::Batch(batch)))
                    .map_err(|_| Stop::Closed)
            })?;
            parts
                .blocking_send(Ok(ColumnPart::End))
                .map_err(|_| Stop::Closed)?;
        }
        first_row += group.num_rows() as u64;
    }
    Ok(())
}

/// A reason to stop reading.
enum Stop {
    /// The receiver is closed.
    Closed,
    Failed(JobError),
}

impl From<JobError> for Stop {
    fn from(error: JobError) -> Self {
        Self::Failed(error)
    }
}

/// The rows of one column chunk.
pub(super) struct ChunkRows<'a> {
    pub(super) layout: &'a Layout,
    pub(super) source: &'a Arc<SourceFile>,
    pub(super) group: &'a RowGroupMetaData,
    pub(super) column: usize,
    /// Number of the row group's first row in the file.
    pub(super) first_row: u64,
    pub(super) limits: Limits,
}

impl ChunkRows<'_> {
    fn column_rows(&self, column: usize) -> Result<ColumnRows<'_>, JobError> {
        let rows = usize::try_from(self.group.num_rows()).unwrap_or(usize::MAX);
        let leaf = &self.layout.leaves[column];
        let rows = ColumnRows::new(
            self.source,
            self.group.column(column),
            leaf,
            (rows, self.limits),
        );
        rows.map_err(|error| self.layout.column_invalid(column, &error.to_string()))
    }

    /// Calls `visit` with all batches.
    pub(super) fn read_all(
        &self,
        mut visit: impl FnMut(ReadBatch) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        match self.read(|batch| visit(batch).map_err(Stop::Failed)) {
            Ok(()) | Err(Stop::Closed) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    /// Calls `visit` with batches until it returns false.
    pub(super) fn read_while(
        &self,
        mut visit: impl FnMut(ReadBatch) -> Result<bool, JobError>,
    ) -> Result<(), JobError> {
        match self.read(|batch| {
            if visit(batch)? {
                Ok(())
            } else {
                Err(Stop::Closed)
            }
        }) {
            Ok(()) | Err(Stop::Closed) => Ok(()),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn read(&self, mut send: impl FnMut(ReadBatch) -> Result<(), Stop>) -> Result<(), Stop> {
        let plan = &self.layout.leaves[self.column].plan;
        let mut own = self.column_rows(self.column)?;
        let mut subjects = Vec::new();
        for (rule, column) in plan.subject_leaves() {
            subjects.push((rule, column, self.column_rows(column)?));
        }

        let rows = self.group.num_rows() as u64;
        let mut done = 0;
        let mut take = self.first_rows();
        while done < rows {
            let wanted = take.min(usize::try_from(rows - done).unwrap_or(take));
            let mut records = self.read_rows(self.column, &mut own, wanted, done)?;
            for (_, column, subject) in &mut subjects {
                records = self.read_rows(*column, subject, records, done)?;
            }
            let Rows {
                values,
                levels,
                entries,
                ..
            } = own.take(records);
            let subjects = subjects.iter_mut().map(|(rule, column, subject)| {
                self.read_subjects((*rule, *column, subject.take(records)), (&levels, entries))
            });
            let subjects = subjects.collect::<Result<_, _>>()?;
            take = next_rows(
                take,
                records,
                entries.max(values.len()),
                values.bytes(),
                self.limits,
            );
            send(ReadBatch {
                column: self.column,
                first_row: self.first_row + done,
                // A batch in flight must not keep a whole page in memory.
                values: values.detached(),
                levels,
                entries,
                subjects,
                permit: BytePermit::default(),
            })?;
            done += records as u64;
        }
        Ok(())
    }

    /// Returns the number of rows of a column for the next batch. `done` is the number of rows
    /// before the batch.
    fn read_rows(
        &self,
        column: usize,
        rows: &mut ColumnRows<'_>,
        records: usize,
        done: u64,
    ) -> Result<usize, JobError> {
        match rows.read_rows(records) {
            Ok(0) => Err(self
                .layout
                .column_invalid(column, "it has fewer rows than its row group")),
            Ok(records) => Ok(records),
            Err(RowsError::Invalid(what)) => Err(self.layout.column_invalid(column, &what)),
            Err(RowsError::TooLong) => Err(JobError::RowTooLong {
                name: self.layout.name.clone(),
                column: self.layout.leaves[column].plan.path.text().to_owned(),
                row: self.first_row + done + 1,
                bytes_max: self.limits.record_bytes_max,
            }),
        }
    }

    /// Returns the number of rows of the first batch, estimated from the size of the chunk. Values
    /// in a dictionary can be longer than this estimate.
    fn first_rows(&self) -> usize {
        let size = usize::try_from(self.group.column(self.column).uncompressed_size()).unwrap_or(0);
        let rows = usize::try_from(self.group.num_rows()).unwrap_or(1).max(1);
        let by_bytes = self.limits.batch_bytes_max / (size / rows).max(1);
        by_bytes
            .min(self.limits.batch_values_max)
            .clamp(1, FIRST_ROWS_MAX)
    }

    /// Returns the subjects of a batch. Values in a list below the struct share the subject of the
    /// struct.
    fn read_subjects(
        &self,
        (rule, column, rows): (usize, usize, Rows),
        (levels, entries): (&Levels, usize),
    ) -> Result<ReadSubjects, JobError> {
        let leaf = &self.layout.leaves[column];
        let own = &self.layout.leaves[self.column];
        let Rows {
            values,
            levels: subject_levels,
            entries: instances,
            ..
        } = rows;

        let mut next_value = 0;
        let value_of_instance: Vec<usize> = (0..instances)
            .map(|instance| {
                let is_present = leaf.definition_max == 0
                    || subject_levels.definitions[instance] == leaf.definition_max;
                next_value += usize::from(is_present);
                if is_present {
                    next_value - 1
                } else {
                    values.len()
                }
            })
            .collect();

        // Number of instances of the struct that started up to the current entry.
        let mut started = 0_usize;
        let mut rows = Vec::new();
        for entry in 0..entries {
            let repetition = levels.repetitions.get(entry).copied().unwrap_or(0);
            started += usize::from(repetition <= leaf.repetition_max);
            if own.definition_max == 0 || levels.definitions[entry] == own.definition_max {
                let row = started
                    .checked_sub(1)
                    .and_then(|instance| value_of_instance.get(instance))
                    .ok_or_else(|| self.subjects_invalid(column))?;
                rows.push(*row);
            }
        }
        if started != instances {
            return Err(self.subjects_invalid(column));
        }
        Ok(ReadSubjects {
            rule,
            column,
            values: values.detached(),
            rows,
        })
    }

    fn subjects_invalid(&self, column: usize) -> JobError {
        self.layout.column_invalid(
            column,
            "its rows do not fit the rows of the column that it is the subject of",
        )
    }
}

/// Returns the number of rows for the next batch: as many as fit in a request, estimated from the
/// previous batch.
fn next_rows(take: usize, records: usize, values: usize, bytes: usize, limits: Limits) -> usize {
    let by_bytes = records.saturating_mul(limits.batch_bytes_max) / bytes.max(1);
    let by_values = records.saturating_mul(limits.batch_values_max) / values.max(1);
    by_bytes
        .min(by_values)
        .clamp(1, take.saturating_mul(GROWTH_MAX))
}

impl ReadSubjects {
    /// Returns the subjects as columns. `Err` contains the column and the problem.
    pub(super) fn values(
        mut self,
        layout: &Layout,
    ) -> Result<SubjectValues, (usize, &'static str)> {
        let count = self.values.len();
        self.values.push_empty();
        let data_type = layout.leaves[self.column].plan.field.data_type();
        let array: ArrayRef = self
            .values
            .to_arrow(data_type)
            .map_err(|(_, what)| (self.column, what))?;
        let present: NullBuffer = (0..=count)
            .map(|at| at < count)
            .collect::<Vec<bool>>()
            .into();
        Ok(SubjectValues {
            rule: self.rule,
            leaf: Leaf::of(array, Some(present)),
            rows: Some(self.rows),
        })
    }
}
