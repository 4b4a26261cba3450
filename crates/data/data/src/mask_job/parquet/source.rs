//! The input, a file or an object: positioned reads, and the checks of its footer.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::Type;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    FooterTail, PageIndexPolicy, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
};
use parquet::file::reader::{ChunkReader, Length};

use super::thrift::footer_summary;
use crate::mask_job::error::JobError;
use crate::mask_job::output::Input;
use crate::mask_job::s3::S3Reader;
use crate::mask_job::stop::JobStop;

const MAGIC_LEN: u64 = 4;
const FOOTER_TAIL_LEN: u64 = 8;
/// Maximum bytes of a footer. A footer is read whole.
const FOOTER_BYTES_MAX: usize = 256 << 20;
/// Maximum number of structs in lists of a footer: elements of the schema, row groups, column
/// chunks, counts of encodings. Each struct takes up to 640 bytes in memory, so 1.3 GB in all, but
/// can be a single byte in the file.
const FOOTER_STRUCTS_MAX: u64 = 1 << 21;
/// Maximum bytes of the paths of all elements of a schema. The path of each column repeats the
/// names of all groups above it.
const SCHEMA_PATH_BYTES_MAX: u64 = 64 << 20;
/// Maximum bytes from the first page index to the end of the last one.
const INDEXES_SPAN_MAX: u64 = 256 << 20;
/// Maximum bytes of the header of a bloom filter. A usual header has about 20 bytes.
const BLOOM_HEADER_BYTES_MAX: u64 = 64;

/// An open input. Each read states its position, so several threads can read at once.
#[derive(Clone, Debug)]
pub(super) struct SourceFile {
    origin: Arc<Origin>,
    length: u64,
}

#[derive(Debug)]
pub(super) enum Origin {
    File(File),
    /// An object, and its first error. The error is kept here, because the `parquet` crate would
    /// lose its kind.
    Object(Box<S3Reader>, Mutex<Option<JobError>>),
}

impl Origin {
    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read_at(buffer, at),
            Self::Object(reader, failed) => reader
                .read_at(buffer, at)
                .map_err(|error| io::Error::other(keep_first_error(failed, error))),
        }
    }
}

/// Keeps the first error of an object. Returns the text for the `parquet` crate.
fn keep_first_error(failed: &Mutex<Option<JobError>>, error: JobError) -> &'static str {
    failed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert(error);
    "the object could not be read"
}

impl SourceFile {
    /// Creates a source from a file of `length` bytes.
    pub(super) fn new(file: File, length: u64) -> Self {
        Self {
            origin: Arc::new(Origin::File(file)),
            length,
        }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the first error of reading, or else `error`.
    pub(super) fn cause(&self, error: JobError) -> JobError {
        match &*self.origin {
            Origin::Object(_, failed) => failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
                .unwrap_or(error),
            Origin::File(_) => error,
        }
    }
}

impl Length for SourceFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for SourceFile {
    type T = BufReader<SourceRead>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(BufReader::new(SourceRead {
            origin: Arc::clone(&self.origin),
            at: start,
        }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        // A length beyond the end of the file would allocate memory before the read fails.
        if start
            .checked_add(length as u64)
            .is_none_or(|end| end > self.length)
        {
            return Err(ParquetError::EOF(
                "the file is shorter than its metadata announces".to_owned(),
            ));
        }
        match &*self.origin {
            Origin::File(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, start)?;
                Ok(bytes.into())
            }
            Origin::Object(reader, failed) => reader
                .read_exact(start, length)
                .map_err(|error| ParquetError::General(keep_first_error(failed, error).to_owned())),
        }
    }
}

/// Reads sequentially from a position.
#[derive(Debug)]
pub(super) struct SourceRead {
    origin: Arc<Origin>,
    at: u64,
}

impl Read for SourceRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.origin.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Reads and checks the footer. Page indexes are read too.
pub(super) fn read_metadata(name: &str, source: &SourceFile) -> Result<ParquetMetaData, JobError> {
    let metadata = read_footer(name, source).map_err(|error| source.cause(error))?;
    if let Origin::Object(reader, _) = source.origin() {
        let chunks = metadata
            .row_groups()
            .iter()
            .flat_map(|group| group.columns());
        reader.set_chunks(
            chunks
                .map(|chunk| chunk.byte_range())
                .map(|(start, length)| start..start + length)
                .collect(),
        );
    }
    Ok(metadata)
}

fn read_footer(name: &str, source: &SourceFile) -> Result<ParquetMetaData, JobError> {
    checked_footer(source).map_err(|FooterError(what)| JobError::Invalid {
        name: name.to_owned(),
        what,
    })
}

/// A reason why a footer is invalid.
struct FooterError(String);

impl From<ParquetError> for FooterError {
    fn from(error: ParquetError) -> Self {
        Self(error.to_string())
    }
}

impl From<&str> for FooterError {
    fn from(what: &str) -> Self {
        Self(what.to_owned())
    }
}

const ENCRYPTED: &str = "it is encrypted, and only Parquet files without encryption can be masked";

fn checked_footer(source: &SourceFile) -> Result<ParquetMetaData, FooterError> {
    if source.len() < MAGIC_LEN + FOOTER_TAIL_LEN {
        return Err("it is too short for a Parquet file".into());
    }
    let tail_at = source.len() - FOOTER_TAIL_LEN;
    let tail = source.get_bytes(tail_at, FOOTER_TAIL_LEN as usize)?;
    let tail = FooterTail::try_from(&tail[..])?;
    if tail.is_encrypted_footer() {
        return Err(ENCRYPTED.into());
    }
    let footer_at = tail_at
        .checked_sub(tail.metadata_length() as u64)
        .filter(|at| *at >= MAGIC_LEN)
        .ok_or("its footer is longer than the file")?;
    if tail.metadata_length() > FOOTER_BYTES_MAX {
        return Err(FooterError(format!(
            "its footer has more than {FOOTER_BYTES_MAX} bytes"
        )));
    }

    let footer = source.get_bytes(footer_at, tail.metadata_length())?;
    let summary = footer_summary(&footer).ok_or("its footer is invalid")?;
    drop(footer);
    if summary.is_encrypted {
        return Err(ENCRYPTED.into());
    }
    if summary.structs > FOOTER_STRUCTS_MAX || summary.path_bytes > SCHEMA_PATH_BYTES_MAX {
        return Err(
            "its footer describes more columns and row groups than this program reads".into(),
        );
    }

    let options = ParquetMetaDataOptions::new().with_encoding_stats_as_mask(false);
    let reader = ParquetMetaDataReader::new().with_metadata_options(Some(options));
    let metadata = reader.parse_and_finish(source)?;
    check_chunks(source, &metadata, footer_at).map_err(FooterError)?;

    let has_readable_indexes = indexes_span(&metadata) <= INDEXES_SPAN_MAX;
    let reader = ParquetMetaDataReader::new_with_metadata(metadata);
    let policy = if has_readable_indexes {
        PageIndexPolicy::Optional
    } else {
        PageIndexPolicy::Skip
    };
    let mut reader = reader.with_page_index_policy(policy);
    reader.read_page_indexes(source)?;
    Ok(reader.finish()?)
}

/// Returns the number of bytes from the first page index to the end of the last one. The `parquet`
/// crate reads this range at once.
fn indexes_span(metadata: &ParquetMetaData) -> u64 {
    let chunks = metadata
        .row_groups()
        .iter()
        .flat_map(|group| group.columns());
    let ranges = chunks.flat_map(|chunk| {
        let column_index = chunk.column_index_offset().zip(chunk.column_index_length());
        [
            column_index,
            chunk.offset_index_offset().zip(chunk.offset_index_length()),
        ]
    });
    let mut first = i64::MAX;
    let mut end = 0;
    for (start, length) in ranges.flatten() {
        first = first.min(start);
        end = end.max(start.saturating_add(i64::from(length)));
    }
    u64::try_from(end.saturating_sub(first)).unwrap_or(0)
}

/// Rejects invalid numbers of rows, and column chunks that overlap. With an overlap, the original
/// bytes of a masked column could be copied with another column.
fn check_chunks(
    source: &SourceFile,
    metadata: &ParquetMetaData,
    footer_at: u64,
) -> Result<(), String> {
    let rows = metadata.row_groups().iter().try_fold(0_i64, |rows, group| {
        (group.num_rows() >= 0).then_some(())?;
        rows.checked_add(group.num_rows())
    });
    if rows.is_none() {
        return Err("the numbers of rows of its row groups are invalid".to_owned());
    }

    let mut ranges = Vec::new();
    let groups = metadata.row_groups().iter();
    for (group, chunk) in
        groups.flat_map(|group| group.columns().iter().map(move |chunk| (group, chunk)))
    {
        let column = chunk.column_path().string();
        if chunk.column_type() == Type::FIXED_LEN_BYTE_ARRAY
            && chunk.column_descr().type_length() < 0
        {
            return Err(format!("column {column} has values of a negative length"));
        }
        if chunk.file_path().is_some_and(|path| !path.is_empty()) {
            return Err(format!("column {column} is in another file"));
        }

        let data = chunk.data_page_offset();
        let start = chunk.dictionary_page_offset().unwrap_or(data);
        let length = chunk.compressed_size();
        let end = u64::try_from(start).ok().zip(u64::try_from(length).ok());
        let end = end.and_then(|(start, length)| start.checked_add(length));
        // In a row group without rows, some writers state no offset of data pages. For a chunk
        // without pages, some writers state no offset at all.
        let has_data_behind = data >= start || chunk.num_values() == 0;
        let is_behind_start = start >= MAGIC_LEN as i64 || (chunk.num_values(), length) == (0, 0);
        let is_valid =
            is_behind_start && has_data_behind && end.is_some_and(|end| end <= footer_at);
        let is_flat = chunk.column_descr().max_rep_level() == 0;
        if !is_valid || chunk.num_values() < 0 || is_flat && chunk.num_values() != group.num_rows()
        {
            return Err(format!("the metadata of column {column} is invalid"));
        }

        // Indexes and bloom filters are copied with a kept column, so they must not overlap with
        // another column.
        let column_index = chunk.column_index_offset().zip(chunk.column_index_length());
        let offset_index = chunk.offset_index_offset().zip(chunk.offset_index_length());
        // Old writers do not state the length of a bloom filter.
        let bloom_filter =
            chunk
                .bloom_filter_offset()
                .map(|start| match chunk.bloom_filter_length() {
                    Some(length) => Some((start, length)),
                    None => bloom_filter_len(source, start).map(|length| (start, length)),
                });
        if bloom_filter == Some(None) {
            return Err(format!("the bloom filter of column {column} is invalid"));
        }
        for (start, length) in [column_index, offset_index, bloom_filter.flatten()]
            .into_iter()
            .flatten()
        {
            let length = i64::from(length);
            let is_inside = start >= MAGIC_LEN as i64 && length >= 0 && start <= i64::MAX - length;
            if !is_inside || (start + length) as u64 > footer_at {
                return Err(format!("the metadata of column {column} is invalid"));
            }
            ranges.push((start, length, column.clone()));
        }
        ranges.push((start, length, column));
    }

    ranges.sort_unstable();
    match ranges
        .windows(2)
        .find(|pair| pair[0].0 + pair[0].1 > pair[1].0)
    {
        None => Ok(()),
        Some(pair) => Err(format!(
            "the columns {} and {} overlap",
            pair[0].2, pair[1].2
        )),
    }
}

/// Opens a file or an object of a job.
pub(super) fn open(input: &Input, stop: &JobStop) -> Result<SourceFile, JobError> {
    let (origin, length) = match input {
        Input::File(path) => {
            let file = File::open(path).map_err(JobError::io(path))?;
            let length = file.metadata().map_err(JobError::io(path))?.len();
            return Ok(SourceFile::new(file, length));
        }
        Input::Object(object) => {
            let reader = S3Reader::open(object, stop)?;
            let length = reader.len();
            (Origin::Object(Box::new(reader), Mutex::default()), length)
        }
        Input::Stdin => {
            let why = "a Parquet file is not read from standard input, since its index is at its end: name a file";
            return Err(JobError::Plan(why.to_owned()));
        }
    };
    Ok(SourceFile {
        origin: Arc::new(origin),
        length,
    })
}

/// Reads the length of a bloom filter from its header.
fn bloom_filter_len(source: &SourceFile, start: i64) -> Option<i32> {
    let start = u64::try_from(start).ok()?;
    let length = source.len().checked_sub(start)?.min(BLOOM_HEADER_BYTES_MAX);
    let header = source
        .get_bytes(start, usize::try_from(length).ok()?)
        .ok()?;
    i32::try_from(super::thrift::bloom_filter_len(&header)?).ok()
}
