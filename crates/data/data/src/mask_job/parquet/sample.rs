//! Samples the columns of a Parquet file for discovery.

use std::sync::Arc;

use parquet::file::reader::Length;
use sealwire_columns::Leaf;
use sealwire_discover::{ArrowSamples, DiscoverOptions, SampleRandom};
use sealwire_mask_rules::{Rules, Unknown};

use super::layout::Layout;
use super::read::ChunkRows;
use super::source;
use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::output::Input;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::Progress;

/// A file with at most this many encoded bytes, before compression, is read whole. From a larger
/// file, parts with this many decoded bytes in all are read.
const BYTES_MAX: u64 = 64 << 20;
/// A file with at most this many values is read whole. Encoded values can be far smaller than
/// decoded values.
const VALUES_MAX: u64 = 20_000_000;
/// Maximum number of row groups that are read from a larger file.
const GROUPS_MAX: usize = 16;
/// Minimum number of bytes that are read from a column of a row group: about the first batch of
/// rows.
const CHUNK_BYTES_MIN: u64 = 4 << 10;

/// The samples of a file.
pub(crate) struct FileSamples {
    pub(crate) samples: ArrowSamples,
    /// True if all rows were read.
    pub(crate) is_whole: bool,
    /// Describes the parts that were read, if the file was not read whole.
    pub(crate) note: Option<String>,
}

/// Samples a file or an object. Blocks while it reads.
pub(crate) fn sample(
    input: &Input,
    options: DiscoverOptions,
    progress: &Progress,
) -> Result<FileSamples, JobError> {
    let source = source::open(input, progress.job_stop())?;
    sample_source(input.name(), &source, options, BYTES_MAX, progress)
        .map_err(|error| source.cause(error))
}

fn sample_source(
    name: String,
    source: &source::SourceFile,
    options: DiscoverOptions,
    bytes_max: u64,
    progress: &Progress,
) -> Result<FileSamples, JobError> {
    let metadata = source::read_metadata(&name, source)?;
    let rules = Rules::new(Unknown::Keep, Vec::new(), Vec::new())
        .map_err(|error| JobError::Plan(error.to_string()))?;
    let layout = Layout::new(name, Arc::new(Plan::new(Arc::new(rules))), metadata, |_| {
        false
    })?;
    let mut samples = ArrowSamples::new(&layout.schema()?, options);
    let columns: Vec<usize> = (0..layout.leaves.len())
        .filter(|column| match layout.check_column(*column) {
            Ok(()) => true,
            Err(_) => {
                samples.reject(
                    *column,
                    "the column has a type or codec that cannot be masked",
                );
                false
            }
        })
        .collect();

    let groups = layout.metadata.row_groups();
    let sizes = groups
        .iter()
        .flat_map(|group| group.columns())
        .map(|chunk| (chunk.uncompressed_size(), chunk.num_values()));
    let is_whole = is_small(sizes, bytes_max);
    let chosen = if is_whole {
        (0..groups.len()).collect()
    } else {
        spread_groups(groups.len(), options.seed)
    };
    let chunks = chosen.len() * columns.len();
    let chunk_bytes_max = (bytes_max / chunks.max(1) as u64).max(CHUNK_BYTES_MIN);

    progress.set_totals(source.len(), 0);
    let shared = Arc::new(source.clone());
    let mut done = 0;
    for group in &chosen {
        for column in &columns {
            let limits = Limits::default();
            let group = &groups[*group];
            let chunk = ChunkRows {
                layout: &layout,
                source: &shared,
                group,
                column: *column,
                first_row: 0,
                limits,
            };
            let mut read = 0;
            chunk.read_while(|batch| {
                let values = layout.to_arrow(*column, &batch.values);
                let values = values.map_err(|(at, what)| layout.value_error(&batch, at, what))?;
                samples.add_leaf(*column, &Leaf::new(values));
                read += batch.values.bytes() as u64;
                Ok(is_whole || read < chunk_bytes_max)
            })?;
            let bytes_before = source.len() * done / chunks.max(1) as u64;
            done += 1;
            let bytes_after = source.len() * done / chunks.max(1) as u64;
            progress.add(bytes_after - bytes_before, 0);
        }
    }

    let note = (!is_whole).then(|| {
        format!(
            "of {} of {} row groups, the first {} KiB of each column were read; other values can need other functions",
            chosen.len(),
            groups.len(),
            chunk_bytes_max >> 10
        )
    });
    Ok(FileSamples {
        samples,
        is_whole,
        note,
    })
}

/// Returns true if a file is read whole. `chunks` are the numbers of bytes and values in the
/// metadata of each column chunk. A hostile file can state any numbers.
fn is_small(chunks: impl Iterator<Item = (i64, i64)>, bytes_max: u64) -> bool {
    let mut bytes = 0_u64;
    let mut values = 0_u64;
    for (chunk_bytes, chunk_values) in chunks {
        bytes = bytes.saturating_add(u64::try_from(chunk_bytes).unwrap_or(u64::MAX));
        values = values.saturating_add(u64::try_from(chunk_values).unwrap_or(u64::MAX));
    }
    bytes <= bytes_max && values <= VALUES_MAX
}

/// Returns one row group, chosen by `seed`, of each of up to [`GROUPS_MAX`] equal ranges.
fn spread_groups(groups: usize, seed: u64) -> Vec<usize> {
    let count = groups.min(GROUPS_MAX);
    let mut random = SampleRandom::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..count)
        .map(|part| {
            let start = groups * part / count;
            let end = groups * (part + 1) / count;
            start + (random.number() % (end - start) as u64) as usize
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    use super::*;

    /// Returns a file of row groups of 100 rows, of which the last ones have addresses.
    fn file(groups: usize) -> source::SourceFile {
        let value = |at: usize| {
            (!at.is_multiple_of(3)).then(|| {
                if at >= groups * 50 {
                    format!("u{at}@mail.test")
                } else {
                    format!("word{at}")
                }
            })
        };
        let texts: ArrayRef = Arc::new((0..groups * 100).map(value).collect::<StringArray>());
        let batch =
            RecordBatch::try_from_iter([("a", Arc::clone(&texts)), ("b", texts)]).expect("a batch");
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(100))
            .build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).expect("a writer");
        writer.write(&batch).expect("writes");
        let bytes = writer.into_inner().expect("closes");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&bytes).expect("writes");
        source::SourceFile::new(file, bytes.len() as u64)
    }

    #[test]
    fn large_files_are_sampled_in_spread_row_groups() {
        let options = DiscoverOptions {
            sample: 10_000,
            ..DiscoverOptions::new(2025)
        };
        for (bytes_max, is_whole, values) in [
            (BYTES_MAX, true, 2_666..=2_666),
            (1_000, false, 800..=1_200),
        ] {
            let read = sample_source(
                "t".to_owned(),
                &file(40),
                options,
                bytes_max,
                &Progress::default(),
            )
            .expect("reads");
            assert_eq!(
                (read.is_whole, read.note.is_none()),
                (is_whole, is_whole),
                "{:?}",
                read.note
            );
            let expected = "of 16 of 40 row groups, the first 4 KiB of each column were read";
            assert!(read.note.is_none_or(|note| note.starts_with(expected)));
            let found = read
                .samples
                .judge("t")
                .decide::<JobError>(None)
                .expect("decides");
            for field in &found.fields {
                assert!(values.contains(&field.values), "{field:?}");
                assert_eq!(
                    field.category,
                    Some(sealwire_discover::Category::Email),
                    "{field:?}"
                );
            }
        }
    }

    #[test]
    fn stated_sizes_decide_whether_a_file_is_read_whole() {
        const VALUES: i64 = VALUES_MAX as i64;
        for (chunks, expected) in [
            (&[][..], true),
            (&[(500, 7), (500, VALUES - 7)], true),
            (&[(500, 7), (501, 7)], false),
            (&[(1, 7), (1, VALUES - 6)], false),
            (&[(i64::MAX, 7), (i64::MAX, 7), (i64::MAX, 7)], false),
            (&[(1, i64::MAX), (1, i64::MAX), (1, i64::MAX)], false),
            (&[(-1, 7)], false),
            (&[(1, -1)], false),
        ] {
            assert_eq!(
                is_small(chunks.iter().copied(), 1_000),
                expected,
                "{chunks:?}"
            );
        }
    }

    #[test]
    fn row_groups_are_spread_over_the_file() {
        for (groups, count) in [(0, 0), (1, 1), (7, 7), (16, 16), (17, 16), (1_000, 16)] {
            for seed in 0..50 {
                let chosen = spread_groups(groups, seed);
                assert_eq!(chosen.len(), count, "{groups} groups");
                assert!(
                    chosen.is_sorted_by(|a, b| a < b) && chosen.iter().all(|group| *group < groups),
                    "{chosen:?}"
                );
                assert_eq!(
                    chosen,
                    spread_groups(groups, seed),
                    "equal seeds choose equal row groups"
                );
            }
        }
        assert_ne!(spread_groups(1_000, 1), spread_groups(1_000, 2));
    }
}
