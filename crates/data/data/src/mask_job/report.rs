//! The report of a job by path or column, and its progress.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sealwire_discover::hide_map_keys;
use serde::Serialize;

use crate::mask_job::stop::JobStop;

/// Maximum number of paths or columns that a report lists. All others are counted together.
const FIELDS_MAX: usize = 10_000;

/// The name under which all other fields are counted.
const OTHERS: &str = "(other fields)";

/// Identifies a path or column under one rule, for counting.
pub(crate) type Label = u32;

/// The report of a job.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Records of a file, or rows of all tables.
    pub records: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// Duration of the job in milliseconds.
    pub elapsed_ms: u64,
    /// Peak memory of the process, if the system reports it (Linux).
    pub peak_memory_bytes: Option<u64>,
    /// Counts by path or column, in the order of first occurrence.
    pub fields: Vec<FieldReport>,
    /// Columns of a database that no rule names and that kind rules do not check, with their types.
    pub not_judged: Vec<String>,
    /// Objects of the source database that are missing in the target, since only a superuser could
    /// create them there.
    pub not_copied: Vec<String>,
}

/// Returns the peak memory of this process in bytes.
#[must_use]
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// Counts of the values of one path or column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldReport {
    /// Path (`$.orders[*].pan`), CSV column, or `schema.table.column`. Keys of maps are `[*]`.
    pub field: String,
    /// The function that masks the field. `None` if no rule names the field and it was kept.
    pub function: Option<String>,
    /// Index of the rule, from 0.
    pub rule: Option<usize>,
    /// The kind of the rule, if the rule applies to a kind.
    pub kind: Option<String>,
    /// Number of masked values.
    pub masked: u64,
    /// Number of masked values that are equal to the original. A function that selects from a small
    /// set can return the original by chance.
    pub unchanged: u64,
    /// Number of values kept, because no rule names them or the rule keeps them.
    pub kept: u64,
    /// Number of nulls, which stay nulls.
    pub nulls: u64,
}

/// Counts of one chunk, by label.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    by_label: Vec<Count>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    masked: u64,
    unchanged: u64,
    kept: u64,
    nulls: u64,
}

impl Counts {
    pub(crate) fn add_masked(&mut self, label: Label, is_unchanged: bool) {
        let count = self.count_of(label);
        count.masked += 1;
        count.unchanged += u64::from(is_unchanged);
    }

    pub(crate) fn add_kept(&mut self, label: Label, values: u64) {
        let count = self.count_of(label);
        // A file's metadata can state any number.
        count.kept = count.kept.saturating_add(values);
    }

    pub(crate) fn add_nulls(&mut self, label: Label, values: u64) {
        let count = self.count_of(label);
        count.nulls = count.nulls.saturating_add(values);
    }

    fn count_of(&mut self, label: Label) -> &mut Count {
        let at = label as usize;
        if at >= self.by_label.len() {
            self.by_label.resize(at + 1, Count::default());
        }
        &mut self.by_label[at]
    }
}

/// The report of a running job.
#[derive(Debug, Default)]
pub(crate) struct RunningReport {
    fields: Mutex<Fields>,
}

#[derive(Debug, Default)]
struct Fields {
    known: HashMap<(String, Option<usize>), Label>,
    rows: Vec<FieldReport>,
}

impl RunningReport {
    /// Returns the label of a field and adds the field if it is new. All counts of `field` must be
    /// zero.
    pub(crate) fn label(&self, field: FieldReport) -> Label {
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        let mut key = (field.field.clone(), field.rule);
        if let Some(label) = fields.known.get(&key) {
            return *label;
        }
        let mut row = field;
        if fields.rows.len() >= FIELDS_MAX {
            key.0 = OTHERS.to_owned();
            if let Some(label) = fields.known.get(&key) {
                return *label;
            }
            row.field = OTHERS.to_owned();
        }
        let label = fields.rows.len() as Label;
        fields.rows.push(row);
        fields.known.insert(key, label);
        label
    }

    pub(crate) fn add(&self, counts: &Counts) {
        let mut fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        for (row, count) in fields.rows.iter_mut().zip(&counts.by_label) {
            row.masked += count.masked;
            row.unchanged += count.unchanged;
            row.kept = row.kept.saturating_add(count.kept);
            row.nulls = row.nulls.saturating_add(count.nulls);
        }
    }

    /// Returns the name of a label's field.
    pub(crate) fn field(&self, label: Label) -> String {
        let fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        fields
            .rows
            .get(label as usize)
            .map(|row| row.field.clone())
            .unwrap_or_default()
    }

    pub(crate) fn rows(&self) -> Vec<FieldReport> {
        self.fields
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .rows
            .clone()
    }

    /// Returns the rows for a report. Fields of maps are counted together, since keys of maps are
    /// data.
    pub(crate) fn rows_without_map_keys(&self) -> Vec<FieldReport> {
        let rows = self.rows();
        let paths: Vec<String> = rows.iter().map(|row| row.field.clone()).collect();
        let mut merged: Vec<FieldReport> = Vec::new();
        let mut known = HashMap::new();
        for (path, row) in hide_map_keys(&paths).into_iter().zip(rows) {
            let at = *known
                .entry((path.clone(), row.rule))
                .or_insert(merged.len());
            match merged.get_mut(at) {
                Some(other) => {
                    other.masked = other.masked.saturating_add(row.masked);
                    other.unchanged = other.unchanged.saturating_add(row.unchanged);
                    other.kept = other.kept.saturating_add(row.kept);
                    other.nulls = other.nulls.saturating_add(row.nulls);
                }
                None => merged.push(FieldReport { field: path, ..row }),
            }
        }
        merged
    }
}

/// Progress counters of a job, and its stop signal. The job writes the counters; any thread can
/// read them and stop the job.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    bytes_all: AtomicU64,
    records: AtomicU64,
    records_all: AtomicU64,
    stop: JobStop,
}

/// A snapshot of [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgressSnapshot {
    /// Bytes processed.
    pub bytes: u64,
    /// Total bytes; 0 if unknown.
    pub bytes_all: u64,
    /// Records or rows processed.
    pub records: u64,
    /// Total records or rows, possibly an estimate; 0 if unknown.
    pub records_all: u64,
}

impl Progress {
    /// Returns the current progress.
    pub fn snapshot(&self) -> ProgressSnapshot {
        ProgressSnapshot {
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_all: self.bytes_all.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            records_all: self.records_all.load(Ordering::Relaxed),
        }
    }

    /// Stops a job for a file; other jobs ignore this. The job fails with
    /// [`JobError::Stopped`](crate::mask_job::JobError::Stopped) and leaves no output, unless the
    /// output is just being completed: then the job continues to its end. In both cases the job
    /// waits for an object store for at most 25 s.
    pub fn stop(&self) {
        self.stop.request();
    }

    /// Returns true if [`stop`](Self::stop) was called.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_requested()
    }

    pub(crate) fn job_stop(&self) -> &JobStop {
        &self.stop
    }

    pub(crate) fn set_totals(&self, bytes: u64, records: u64) {
        self.bytes_all.store(bytes, Ordering::Relaxed);
        self.records_all.store(records, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64, records: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
    }
}
