//! Every bound of a job.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// Bounds of a job. What is in memory at once is about six times `chunk_bytes` times twice the workers and two, plus
/// what the engine holds; more only where single records are longer than a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Input that is worked on at once, cut between records. Default 512 KiB.
    pub chunk_bytes: usize,
    /// The longest record: a line, a row, an element of a JSON array, or a JSON document that is no array. Default 64 MiB.
    pub record_bytes_max: usize,
    /// Values in one call to the engine. Default 10,000.
    pub batch_values_max: usize,
    /// Bytes of values in one call to the engine, unless one value alone is longer. Default 256 KiB.
    pub batch_bytes_max: usize,
    /// Chunks that are read and spliced at the same time; as many again may wait for the engine. Default: the cores.
    pub workers: usize,
    /// Tables of PostgreSQL that are copied at the same time. Default 2.
    pub tables: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            chunk_bytes: 512 << 10,
            record_bytes_max: 64 << 20,
            batch_values_max: 10_000,
            batch_bytes_max: 256 << 10,
            workers: available_parallelism().map_or(1, NonZeroUsize::get),
            tables: 2,
        }
    }
}

impl Limits {
    /// Chunks between being read and being written.
    pub(crate) fn in_flight(&self) -> usize {
        self.workers.max(1) * 2 + 2
    }
}
