//! The limits of a job.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// Maximum number of values of one record that rules mask. Each value takes up to 120 bytes in
/// addition to its text.
pub(crate) const RECORD_VALUES_MAX: usize = 1 << 22;

/// Maximum number of columns of a CSV file.
pub(crate) const CSV_COLUMNS_MAX: usize = 1 << 16;

/// Limits of a job. The number of chunks in flight is twice the workers plus two, and their bytes
/// are at most `in_flight_bytes_max`. Memory use is about six times the bytes in flight, plus the
/// engine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of a chunk of input, which ends between records. Default 512 KiB.
    pub chunk_bytes: usize,
    /// Maximum length of a record: a line, a row, an element of a JSON array, or a JSON document
    /// that is not an array. Of Parquet, the bytes of a row in one column, and eight more for each
    /// entry of a list. Default 64 MiB.
    pub record_bytes_max: usize,
    /// Maximum number of values in one request to the engine. Default 10,000.
    pub batch_values_max: usize,
    /// Maximum bytes of values in one request to the engine, unless a single value is longer.
    /// Default 256 KiB.
    pub batch_bytes_max: usize,
    /// Maximum bytes of records between reading and writing. A record that is longer is in flight
    /// alone. Default 64 MiB.
    pub in_flight_bytes_max: usize,
    /// Number of chunks that are scanned or spliced concurrently. As many further chunks can wait
    /// for the engine. Default: the number of cores.
    pub workers: usize,
    /// Number of PostgreSQL tables that are copied concurrently. Default 2.
    pub tables: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            chunk_bytes: 512 << 10,
            record_bytes_max: 64 << 20,
            batch_values_max: 10_000,
            batch_bytes_max: 256 << 10,
            in_flight_bytes_max: 64 << 20,
            workers: available_parallelism().map_or(1, NonZeroUsize::get),
            tables: 2,
        }
    }
}

impl Limits {
    /// Returns the maximum number of chunks between reading and writing.
    pub(crate) fn in_flight(&self) -> usize {
        self.workers.max(1) * 2 + 2
    }
}
