//! Writes the output: copies the chunks of unchanged columns, and encodes the changed columns.
//!
//! A copied chunk keeps all its bytes, including encodings, dictionary, statistics and checksums. A
//! masked chunk is encoded anew from the masked values, with the codec of the input. A masked chunk
//! has a dictionary, statistics, bloom filter and page index if the input had them.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{ColumnOrder, Encoding};
use parquet::bloom_filter::Sbbf;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use tokio::sync::mpsc;

use super::ChangedBatch;
use super::layout::{Indexing, Layout};
use super::pages::check_pages;
use super::read::ColumnPart;
use super::source::SourceFile;
use super::thrift::with_column_orders;
use super::values::write;
use crate::mask_job::error::JobError;
use crate::mask_job::output::UnfinishedOutput;
use crate::mask_job::report::Progress;

/// Maximum number of distinct values for which a bloom filter is sized. Such a filter takes a
/// megabyte.
const BLOOM_VALUES_MAX: u64 = 1_000_000;
/// A field of the union `ColumnOrder` that the format does not define.
const UNKNOWN_ORDER: u8 = 15;

/// An output that keeps the error of a write. The `parquet` crate would lose the kind of the error.
struct Output<'a> {
    unfinished: UnfinishedOutput,
    progress: &'a Progress,
    error: Option<JobError>,
    bytes: u64,
    /// The end of the file: the page indexes and the footer. Held back so that it can be completed
    /// before it is written.
    end: Option<Vec<u8>>,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(end) = &mut self.end {
            end.extend_from_slice(bytes);
            return Ok(bytes.len());
        }
        // A copied chunk can be large.
        let written = self
            .progress
            .job_stop()
            .check()
            .and_then(|()| self.unfinished.write(bytes));
        match written {
            Ok(()) => {
                self.bytes += bytes.len() as u64;
                Ok(bytes.len())
            }
            Err(error) => {
                self.error = Some(error);
                Err(io::Error::other("the output failed"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An error of the job, or of the `parquet` crate for the file as a whole.
enum WriteError {
    Job(JobError),
    Parquet(ParquetError),
}

impl From<JobError> for WriteError {
    fn from(error: JobError) -> Self {
        Self::Job(error)
    }
}

impl From<ParquetError> for WriteError {
    fn from(error: ParquetError) -> Self {
        Self::Parquet(error)
    }
}

/// A written output, which is not visible yet.
pub(super) struct WrittenFile {
    pub(super) unfinished: UnfinishedOutput,
    /// The length of the output.
    pub(super) bytes: u64,
    pub(super) outcome: Result<(), JobError>,
}

/// Writes the file. `parts` are the masked columns in order.
pub(super) fn write_file(
    source: &SourceFile,
    layout: &Layout,
    unfinished: UnfinishedOutput,
    mut parts: mpsc::Receiver<ColumnPart<ChangedBatch>>,
    progress: &Progress,
) -> WrittenFile {
    let mut output = Output {
        unfinished,
        progress,
        error: None,
        bytes: 0,
        end: None,
    };
    let mut writer = FileWriter {
        source,
        layout,
        parts: &mut parts,
        progress,
    };
    let outcome = writer.write_groups(&mut output);
    let Output {
        unfinished,
        error: write_error,
        bytes,
        ..
    } = output;
    WrittenFile {
        unfinished,
        bytes,
        outcome: outcome.map_err(|error| {
            write_error.unwrap_or_else(|| match error {
                WriteError::Job(error) => error,
                WriteError::Parquet(error) => layout.invalid(&error.to_string()),
            })
        }),
    }
}

struct FileWriter<'a> {
    source: &'a SourceFile,
    layout: &'a Layout,
    parts: &'a mut mpsc::Receiver<ColumnPart<ChangedBatch>>,
    progress: &'a Progress,
}

impl FileWriter<'_> {
    fn write_groups(&mut self, output: &mut Output<'_>) -> Result<(), WriteError> {
        let layout = self.layout;
        let metadata = &layout.metadata;
        let schema = layout.output.columns.root_schema_ptr();
        let properties = Arc::new(writer_properties(layout));
        let mut writer = SerializedFileWriter::new(&mut *output, schema, properties)?;

        for (at, group) in metadata.row_groups().iter().enumerate() {
            let mut rows = writer.next_row_group()?;
            for (column, chunk) in group.columns().iter().enumerate() {
                if layout.is_changed(column) && group.num_rows() == 0 {
                    self.write_empty(&mut rows, (at, column))?;
                } else if layout.is_changed(column) {
                    self.write_changed(&mut rows, column)?;
                } else {
                    check_pages(self.source, chunk)
                        .map_err(|error| layout.column_invalid(column, &error.to_string()))?;
                    let close = close_result(metadata, self.source, (at, column))?;
                    rows.append_column(self.source, close)?;
                }
                self.progress
                    .add(u64::try_from(chunk.compressed_size()).unwrap_or(0), 0);
            }
            rows.close()?;
            self.progress.add(0, group.num_rows() as u64);
        }

        // The library states the order of statistics that it would write itself, even for copied
        // chunks.
        writer.flush().map_err(ParquetError::from)?;
        writer.inner_mut().end = Some(Vec::new());
        writer.close()?;
        let end = output.end.take().unwrap_or_default();
        let end = with_column_orders(end, &column_orders(layout));
        let end = end.ok_or_else(|| layout.invalid("its footer cannot be written"))?;
        Ok(output.write_all(&end).map_err(ParquetError::from)?)
    }

    /// Writes a changed chunk of a row group without rows, as a chunk without pages. The library
    /// would state an offset of pages outside of the chunk, which readers reject.
    fn write_empty<W: Write + Send>(
        &mut self,
        rows: &mut SerializedRowGroupWriter<'_, W>,
        (group, column): (usize, usize),
    ) -> Result<(), JobError> {
        let Some(ColumnPart::End) = self.parts.blocking_recv() else {
            return Err(JobError::Stopped);
        };
        let compression = self
            .layout
            .metadata
            .row_group(group)
            .column(column)
            .compression();
        let chunk = ColumnChunkMetaData::builder(self.layout.output.columns.column(column));
        let chunk = chunk
            .set_compression(compression)
            .build()
            .map_err(|error| self.column_error(column, &error))?;
        let close = ColumnCloseResult {
            bytes_written: 0,
            rows_written: 0,
            metadata: chunk,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        rows.append_column(self.source, close)
            .map_err(|error| self.column_error(column, &error))
    }

    fn column_error(&self, column: usize, error: &ParquetError) -> JobError {
        self.layout.column_invalid(column, &error.to_string())
    }

    /// Encodes the masked values of a column chunk.
    fn write_changed<W: Write + Send>(
        &mut self,
        rows: &mut SerializedRowGroupWriter<'_, W>,
        column: usize,
    ) -> Result<(), JobError> {
        let writer = rows
            .next_column()
            .map_err(|error| self.column_error(column, &error))?;
        let mut writer = writer.ok_or_else(|| {
            self.layout
                .column_invalid(column, "it has no place in the output")
        })?;
        loop {
            match self.parts.blocking_recv() {
                Some(ColumnPart::Batch(batch)) if batch.column == column => {
                    write(writer.untyped(), &batch.values, &batch.levels)
                        .map_err(|error| self.column_error(column, &error))?;
                }
                Some(ColumnPart::End) => {
                    return writer
                        .close()
                        .map_err(|error| self.column_error(column, &error));
                }
                // The job failed, and another part of the job returns the error.
                Some(ColumnPart::Batch(_)) | None => return Err(JobError::Stopped),
            }
        }
    }
}

/// Returns the metadata of a chunk in the form that the writer needs to copy the chunk's bytes.
fn close_result(
    metadata: &ParquetMetaData,
    source: &SourceFile,
    (group, column): (usize, usize),
) -> Result<ColumnCloseResult, ParquetError> {
    let rows = metadata.row_group(group);
    let mut chunk = rows.column(column).clone();
    let (start, length) = chunk.byte_range();
    // Some writers state a placeholder offset for a chunk without data pages. Moved with the chunk,
    // this offset would be outside of the file.
    if u64::try_from(chunk.data_page_offset()).is_ok_and(|data| data < start) {
        let end = i64::try_from(start + length)
            .map_err(|error| ParquetError::General(error.to_string()))?;
        chunk = chunk.into_builder().set_data_page_offset(end).build()?;
    }
    let index = metadata.page_index();
    Ok(ColumnCloseResult {
        bytes_written: chunk.compressed_size() as u64,
        rows_written: rows.num_rows() as u64,
        bloom_filter: Sbbf::read_from_column_chunk(&chunk, source)?,
        metadata: chunk,
        column_index: index
            .and_then(|index| index.column_index(group, column))
            .cloned(),
        offset_index: index
            .and_then(|index| index.offset_index(group, column))
            .cloned(),
    })
}

/// Returns the orders of statistics for the footer, as a field of a union for each column. A copied
/// column keeps the order of the input, and a changed column gets the library's order. Returns
/// `None` if the input states no orders, since the output then cannot state any.
fn column_orders(layout: &Layout) -> Option<Vec<u8>> {
    let file = layout.metadata.file_metadata();
    let stated = file.column_orders()?;
    let columns = layout.output.columns.columns();
    let orders = columns
        .iter()
        .zip(stated)
        .enumerate()
        .map(|(at, (column, stated))| {
            let own = ColumnOrder::column_order_for_type(
                column.logical_type_ref(),
                column.converted_type(),
                column.physical_type(),
            );
            match if layout.is_changed(at) { own } else { *stated } {
                ColumnOrder::TYPE_DEFINED_ORDER(_) => 1,
                ColumnOrder::IEEE_754_TOTAL_ORDER => 2,
                ColumnOrder::INT96_TIMESTAMP_ORDER => 3,
                // Readers ignore the statistics of a column whose order they do not know.
                ColumnOrder::UNDEFINED | ColumnOrder::UNKNOWN => UNKNOWN_ORDER,
            }
        });
    Some(orders.collect())
}

/// Returns the settings of the output, which follow the input.
fn writer_properties(layout: &Layout) -> WriterProperties {
    let metadata = &layout.metadata;
    let file = metadata.file_metadata();
    let has_offset_index = metadata
        .page_index()
        .is_some_and(|index| index.has_offset_indexes());
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_key_value_metadata(layout.output.key_values.clone())
        .set_sorting_columns(kept_sorting(layout))
        .set_offset_index_disabled(!has_offset_index);
    // From this name, readers recognize chunks with known errors of old writers. Copied chunks can
    // have such errors.
    if let Some(created_by) = file.created_by() {
        properties = properties.set_created_by(created_by.to_owned());
    }
    for column in layout.changed_columns() {
        let chunks: Vec<&ColumnChunkMetaData> = metadata
            .row_groups()
            .iter()
            .map(|group| group.column(column))
            .collect();
        let Some(first) = chunks.first() else {
            continue;
        };
        let path = first.column_path().clone();
        let has_column_index = (0..metadata.num_row_groups()).any(|group| {
            metadata
                .page_index()
                .is_some_and(|index| index.column_index(group, column).is_some())
        });
        properties = properties
            .set_column_compression(path.clone(), first.compression())
            .set_column_encoding(path.clone(), Encoding::PLAIN);
        if layout.output.indexing != Indexing::Kept {
            let is_usual = layout.output.indexing == Indexing::Usual;
            let statistics = if is_usual {
                EnabledStatistics::Chunk
            } else {
                EnabledStatistics::None
            };
            properties = properties
                .set_column_dictionary_enabled(path.clone(), is_usual)
                .set_column_statistics_enabled(path, statistics);
            continue;
        }

        let has_statistics = chunks.iter().any(|chunk| chunk.statistics().is_some());
        let statistics = match (has_column_index && has_offset_index, has_statistics) {
            (true, _) => EnabledStatistics::Page,
            (false, true) => EnabledStatistics::Chunk,
            (false, false) => EnabledStatistics::None,
        };
        let is_dictionary_enabled = chunks.iter().any(|chunk| has_dictionary(chunk));
        properties = properties
            .set_column_dictionary_enabled(path.clone(), is_dictionary_enabled)
            .set_column_statistics_enabled(path.clone(), statistics);

        let has_bloom_filter = chunks
            .iter()
            .any(|chunk| chunk.bloom_filter_offset().is_some());
        if has_bloom_filter {
            let values = chunks
                .iter()
                .map(|chunk| chunk.num_values().max(1) as u64)
                .max()
                .unwrap_or(1);
            properties = properties
                .set_column_bloom_filter_enabled(path.clone(), true)
                .set_column_bloom_filter_max_ndv(path, values.min(BLOOM_VALUES_MAX));
        }
    }
    properties
        .set_bloom_filter_for_dictionary_encoded_chunks(true)
        .build()
}

fn has_dictionary(chunk: &ColumnChunkMetaData) -> bool {
    chunk.dictionary_page_offset().is_some()
        || chunk.encodings().any(|encoding| {
            matches!(
                encoding,
                Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY
            )
        })
}

/// Returns the sorting of rows within row groups that still holds: the columns before the first
/// masked column. If row groups differ in their sorting, the output states no sorting.
fn kept_sorting(layout: &Layout) -> Option<Vec<SortingColumn>> {
    let groups = layout.metadata.row_groups();
    let first = groups.first()?.sorting_columns()?;
    if groups
        .iter()
        .any(|group| group.sorting_columns() != Some(first))
    {
        return None;
    }
    let kept: Vec<SortingColumn> = first
        .iter()
        .take_while(|order| {
            usize::try_from(order.column_idx)
                .is_ok_and(|column| column < layout.leaves.len() && !layout.is_changed(column))
        })
        .cloned()
        .collect();
    (!kept.is_empty()).then_some(kept)
}
