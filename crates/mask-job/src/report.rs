//! What a job did, by path or column; and how far it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Paths or columns that a report lists each; the rest are counted together.
const FIELDS_MAX: usize = 10_000;

/// What those are counted under.
const OTHERS: &str = "(other fields)";

/// Names a path or column under one rule, for counting.
pub(crate) type Label = u32;

/// What a job did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Records of a file, or rows of all tables.
    pub records: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes written.
    pub bytes_out: u64,
    /// From begin to end, in milliseconds.
    pub elapsed_ms: u64,
    /// The most memory that the process held so far, where the system tells (Linux).
    pub peak_memory_bytes: Option<u64>,
    /// By path or column, in the order they were first met.
    pub fields: Vec<FieldReport>,
}

/// The most memory that this process held so far.
#[must_use]
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// What was done to the values of one path or column.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FieldReport {
    /// Path (`$.orders[*].pan`), CSV column, or `schema.table.column`.
    pub field: String,
    /// What masked it; `None`: no rule names it, and it was kept.
    pub function: Option<String>,
    /// The rule, from 0.
    pub rule: Option<usize>,
    /// The kind that was detected in its values, if that is why.
    pub kind: Option<String>,
    /// Values masked.
    pub masked: u64,
    /// Of those, how many came out as they were. A function that picks from a small set does that by chance.
    pub unchanged: u64,
    /// Values kept because no rule names them or the rule says so.
    pub kept: u64,
    /// Nulls, which stay nulls.
    pub nulls: u64,
}

/// Counts of one chunk.
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
    pub(crate) fn masked(&mut self, label: Label, is_unchanged: bool) {
        let count = self.of(label);
        count.masked += 1;
        count.unchanged += u64::from(is_unchanged);
    }

    pub(crate) fn kept(&mut self, label: Label, values: u64) {
        self.of(label).kept += values;
    }

    pub(crate) fn nulls(&mut self, label: Label, values: u64) {
        self.of(label).nulls += values;
    }

    fn of(&mut self, label: Label) -> &mut Count {
        let at = label as usize;
        if at >= self.by_label.len() {
            self.by_label.resize(at + 1, Count::default());
        }
        &mut self.by_label[at]
    }
}

/// The report while the job runs.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    fields: Mutex<Fields>,
}

#[derive(Debug, Default)]
struct Fields {
    known: HashMap<(String, Option<usize>), Label>,
    rows: Vec<FieldReport>,
}

impl Ledger {
    /// The label of a field, new or known. `field` comes with zero counts.
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
            row.kept += count.kept;
            row.nulls += count.nulls;
        }
    }

    /// What a label stands for.
    pub(crate) fn field(&self, label: Label) -> String {
        let fields = self.fields.lock().unwrap_or_else(PoisonError::into_inner);
        fields.rows.get(label as usize).map(|row| row.field.clone()).unwrap_or_default()
    }

    pub(crate) fn rows(&self) -> Vec<FieldReport> {
        self.fields.lock().unwrap_or_else(PoisonError::into_inner).rows.clone()
    }
}

/// How far a job is; written by the job, read by whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    bytes: AtomicU64,
    bytes_all: AtomicU64,
    records: AtomicU64,
    records_all: AtomicU64,
}

/// A moment of [`Progress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// Bytes done.
    pub bytes: u64,
    /// Bytes in all; 0: not known.
    pub bytes_all: u64,
    /// Records or rows done.
    pub records: u64,
    /// Records or rows in all, perhaps by estimate; 0: not known.
    pub records_all: u64,
}

impl Progress {
    /// How far it is now.
    pub fn moment(&self) -> Moment {
        Moment {
            bytes: self.bytes.load(Ordering::Relaxed),
            bytes_all: self.bytes_all.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
            records_all: self.records_all.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn expect(&self, bytes: u64, records: u64) {
        self.bytes_all.store(bytes, Ordering::Relaxed);
        self.records_all.store(records, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64, records: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.records.fetch_add(records, Ordering::Relaxed);
    }
}
