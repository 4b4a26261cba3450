//! Reads the rows of a column chunk up to a number of bytes.
//!
//! The `parquet` crate reads a number of rows, however long they are. This module reads at most to
//! the end of a page at once. Values share the memory of their page or dictionary, so rows that do
//! not fit the batch can wait for the next batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;

use super::layout::LeafLayout;
use super::pages::{CheckedPages, PageState};
use super::source::SourceFile;
use super::values::{Levels, Values, read};
use crate::mask_job::limits::Limits;

/// Bytes that an entry of a column in lists takes in addition to its value.
pub(super) const ENTRY_BYTES: usize = 8;

/// Rows of a column.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) values: Values,
    pub(super) levels: Levels,
    pub(super) records: usize,
    pub(super) entries: usize,
}

/// A reason why rows cannot be read.
#[derive(Debug)]
pub(super) enum RowsError {
    Invalid(String),
    /// The next row is longer than a record can be.
    TooLong,
}

impl From<ParquetError> for RowsError {
    fn from(error: ParquetError) -> Self {
        Self::Invalid(error.to_string())
    }
}

fn invalid(what: &str) -> RowsError {
    RowsError::Invalid(what.to_owned())
}

/// Reads the rows of a column chunk.
pub(super) struct ColumnRows<'a> {
    leaf: &'a LeafLayout,
    reader: ColumnReader,
    pages: Arc<PageState>,
    limits: Limits,
    /// Number of entries that were read from the pages.
    entries_read: u64,
    /// The rows that were read and not yet taken. The last row can be incomplete.
    waiting: Rows,
    /// Numbers of values and entries of `waiting` that were taken.
    taken: (usize, usize),
    /// Bytes of the values of `waiting` that were not taken.
    bytes: usize,
}

impl<'a> ColumnRows<'a> {
    pub(super) fn new(
        source: &Arc<SourceFile>,
        chunk: &ColumnChunkMetaData,
        leaf: &'a LeafLayout,
        (rows, limits): (usize, Limits),
    ) -> Result<Self, ParquetError> {
        let state = Arc::new(PageState::default());
        let pages = CheckedPages::new(source, chunk, rows, &state)?;
        Ok(Self {
            leaf,
            reader: get_column_reader(chunk.column_descr_ptr(), Box::new(pages)),
            pages: state,
            limits,
            entries_read: 0,
            waiting: Rows {
                values: Values::empty(chunk.column_type()),
                levels: Levels::default(),
                records: 0,
                entries: 0,
            },
            taken: (0, 0),
            bytes: 0,
        })
    }

    /// Reads up to `records` rows, as many as fit a batch. Returns the number of rows that can be
    /// taken, at least one unless the chunk ends.
    pub(super) fn read_rows(&mut self, records: usize) -> Result<usize, RowsError> {
        while self.waiting.records < records {
            let is_full = self.bytes >= self.limits.batch_bytes_max
                || self.waiting.entries - self.taken.1 >= self.limits.batch_values_max;
            if self.waiting.records > 0 && is_full {
                break;
            }
            // The first row of a new page shows how long the page's values are.
            let is_new_page = self.pages.entries() == self.entries_read;
            if is_new_page {
                self.pages.allow_next();
            }
            let by_bytes = self.limits.batch_bytes_max / self.pages.longest().max(1);
            let step = if is_new_page {
                1
            } else {
                by_bytes.clamp(1, records - self.waiting.records)
            };
            if !self.read_page(step)? {
                break;
            }
        }
        self.count_fitting(records)
    }

    /// Reads up to `records` rows of one page. Returns false if the chunk ends.
    fn read_page(&mut self, records: usize) -> Result<bool, RowsError> {
        let Rows { values, levels, .. } = &mut self.waiting;
        let before = (
            values.len(),
            levels.definitions.len(),
            levels.repetitions.len(),
        );
        // The library panics for some invalid pages that do not justify separate checks.
        let read = catch_unwind(AssertUnwindSafe(|| {
            read(&mut self.reader, records, levels, values)
        }));
        let (records, entries) = read.map_err(|_| invalid("its pages are invalid"))??;
        self.check_levels(before, entries)?;
        let values = &self.waiting.values;
        self.bytes += (before.0..values.len())
            .map(|at| values.value_bytes(at))
            .sum::<usize>();
        self.entries_read += entries as u64;
        self.waiting.entries += entries;
        self.waiting.records += records;
        let row_bytes = self.bytes + ENTRY_BYTES * (self.waiting.entries - self.taken.1);
        if self.waiting.records == 0
            && self.leaf.repetition_max > 0
            && row_bytes > self.limits.record_bytes_max
        {
            return Err(RowsError::TooLong);
        }
        Ok(records > 0 || entries > 0)
    }

    /// Checks that the levels that were read fit their values.
    fn check_levels(
        &self,
        (values, definitions, repetitions): (usize, usize, usize),
        entries: usize,
    ) -> Result<(), RowsError> {
        let Rows {
            values: all_values,
            levels,
            ..
        } = &self.waiting;
        let definition_max = self.leaf.definition_max;
        let repetition_max = self.leaf.repetition_max;
        let definitions = &levels.definitions[definitions..];
        let repetitions = &levels.repetitions[repetitions..];

        let values_of_levels = match definition_max {
            0 => entries,
            max => definitions.iter().filter(|level| **level == max).count(),
        };
        let is_complete = (definition_max == 0 || definitions.len() == entries)
            && (repetition_max == 0 || repetitions.len() == entries);
        // The library decodes as many bits as the greatest level has. The writer of the library
        // relies on levels within their range.
        let is_in_range = definitions
            .iter()
            .all(|level| (0..=definition_max).contains(level))
            && repetitions
                .iter()
                .all(|level| (0..=repetition_max).contains(level));
        // A chunk begins with a row.
        let begins = self.entries_read > 0 || repetitions.first().is_none_or(|level| *level == 0);
        if is_complete && is_in_range && begins && values_of_levels == all_values.len() - values {
            Ok(())
        } else {
            Err(invalid("its levels do not fit its values"))
        }
    }

    /// Returns the number of waiting rows that fit a batch.
    fn count_fitting(&self, records: usize) -> Result<usize, RowsError> {
        let mut fit = 0;
        let mut bytes = 0;
        let mut row = (0, 0);
        let (mut value, first) = self.taken;
        let complete = self.waiting.records.min(records);
        let mut entry = first;
        while fit < complete {
            // Find the end of the next row.
            let row_start = entry;
            while entry < self.waiting.entries && (entry == row_start || self.continues_row(entry))
            {
                if self.is_value(entry) {
                    row.0 += self.waiting.values.value_bytes(value);
                    value += 1;
                }
                row.1 += ENTRY_BYTES * usize::from(self.leaf.repetition_max > 0);
                entry += 1;
            }
            if row.0 + row.1 > self.limits.record_bytes_max {
                return if fit > 0 {
                    Ok(fit)
                } else {
                    Err(RowsError::TooLong)
                };
            }
            bytes += row.0;
            let is_full =
                bytes > self.limits.batch_bytes_max || entry - first > self.limits.batch_values_max;
            if fit > 0 && is_full {
                break;
            }
            fit += 1;
            row = (0, 0);
        }
        Ok(fit)
    }

    fn continues_row(&self, entry: usize) -> bool {
        self.leaf.repetition_max > 0 && self.waiting.levels.repetitions[entry] > 0
    }

    fn is_value(&self, entry: usize) -> bool {
        let max = self.leaf.definition_max;
        max == 0 || self.waiting.levels.definitions[entry] == max
    }

    /// Takes rows that are complete.
    pub(super) fn take(&mut self, records: usize) -> Rows {
        let (first_value, first) = self.taken;
        let mut entry = first;
        let mut value = first_value;
        for _ in 0..records {
            let row_start = entry;
            while entry < self.waiting.entries && (entry == row_start || self.continues_row(entry))
            {
                value += usize::from(self.is_value(entry));
                entry += 1;
            }
        }
        let entries = entry - first;

        if first == 0 && entry == self.waiting.entries {
            self.bytes = 0;
            let empty = self.waiting.values.range(0..0);
            let values = std::mem::replace(&mut self.waiting.values, empty);
            let levels = std::mem::take(&mut self.waiting.levels);
            self.waiting.records -= records;
            self.waiting.entries = 0;
            return Rows {
                values,
                levels,
                records,
                entries,
            };
        }

        let levels = self.waiting.levels.range(first..entry);
        let values = self.waiting.values.range(first_value..value);
        self.bytes -= values.bytes();
        self.waiting.records -= records;
        self.taken = (value, entry);

        // Returned rows are dropped once they are more than half of all rows, so that each value is
        // copied at most once.
        if entry * 2 > self.waiting.entries {
            let Rows {
                values,
                levels,
                entries,
                ..
            } = &mut self.waiting;
            *values = values.range(value..values.len());
            levels
                .definitions
                .drain(..entry.min(levels.definitions.len()));
            levels
                .repetitions
                .drain(..entry.min(levels.repetitions.len()));
            *entries -= entry;
            self.taken = (0, 0);
        }
        Rows {
            values,
            levels,
            records,
            entries,
        }
    }
}
