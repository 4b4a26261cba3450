//! The input file: positioned reads, and the checks of its footer.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    FooterTail, PageIndexPolicy, ParquetMetaData, ParquetMetaDataOptions, ParquetMetaDataReader,
};
use parquet::file::reader::{ChunkReader, Length};

use super::thrift::is_encrypted;
use crate::error::JobError;

const MAGIC_LEN: u64 = 4;
const FOOTER_TAIL_LEN: u64 = 8;

/// An open file. Reads name their position, so several threads can read at once.
#[derive(Clone, Debug)]
pub(super) struct SourceFile {
    file: Arc<File>,
    length: u64,
}

impl SourceFile {
    pub(super) fn new(file: File, length: u64) -> Self {
        Self { file: Arc::new(file), length }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
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
        Ok(BufReader::new(SourceRead { file: Arc::clone(&self.file), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        // A length beyond the file would take memory before the read fails.
        if start.checked_add(length as u64).is_none_or(|end| end > self.length) {
            return Err(ParquetError::EOF("the file ends within what its metadata announces".to_owned()));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// Reads on from a position.
#[derive(Debug)]
pub(super) struct SourceRead {
    file: Arc<File>,
    at: u64,
}

impl Read for SourceRead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Reads and checks the footer. Page indexes are read too.
pub(super) fn read_metadata(name: &str, source: &SourceFile) -> Result<ParquetMetaData, JobError> {
    let broken = |error: ParquetError| JobError::Invalid { name: name.to_owned(), what: error.to_string() };
    let invalid = |what: &str| JobError::Invalid { name: name.to_owned(), what: what.to_owned() };
    if source.len() < MAGIC_LEN + FOOTER_TAIL_LEN {
        return Err(invalid("it is too short for a Parquet file"));
    }
    let tail_at = source.len() - FOOTER_TAIL_LEN;
    let tail = source.get_bytes(tail_at, FOOTER_TAIL_LEN as usize).map_err(broken)?;
    let tail = FooterTail::try_from(&tail[..]).map_err(broken)?;
    let encrypted = "it is encrypted, and only Parquet files without encryption can be masked";
    if tail.is_encrypted_footer() {
        return Err(invalid(encrypted));
    }
    let footer_at = tail_at.checked_sub(tail.metadata_length() as u64).filter(|at| *at >= MAGIC_LEN);
    let footer_at = footer_at.ok_or_else(|| invalid("its footer is longer than the file"))?;
    let footer = source.get_bytes(footer_at, tail.metadata_length()).map_err(broken)?;
    match is_encrypted(&footer) {
        Some(false) => {}
        Some(true) => return Err(invalid(encrypted)),
        None => return Err(invalid("its footer is invalid")),
    }
    drop(footer);
    let options = ParquetMetaDataOptions::new().with_encoding_stats_as_mask(false);
    let reader = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Optional)
        .with_metadata_options(Some(options));
    let metadata = reader.parse_and_finish(source).map_err(broken)?;
    check_chunks(&metadata, footer_at).map_err(|what| invalid(&what))?;
    Ok(metadata)
}

/// Rejects column chunks that overlap. The bytes of a masked column could be copied with another one.
fn check_chunks(metadata: &ParquetMetaData, footer_at: u64) -> Result<(), String> {
    let mut ranges = Vec::new();
    for chunk in metadata.row_groups().iter().flat_map(|group| group.columns()) {
        let column = chunk.column_path().string();
        if chunk.file_path().is_some_and(|path| !path.is_empty()) {
            return Err(format!("column {column} is in another file"));
        }
        let data = chunk.data_page_offset();
        let start = chunk.dictionary_page_offset().unwrap_or(data);
        let length = chunk.compressed_size();
        let end = u64::try_from(start).ok().zip(u64::try_from(length).ok());
        let end = end.and_then(|(start, length)| start.checked_add(length));
        // In a row group without rows, some writers state no place of data pages.
        let has_data_behind = data >= start || chunk.num_values() == 0;
        let is_valid = start >= MAGIC_LEN as i64 && has_data_behind && end.is_some_and(|end| end <= footer_at);
        if !is_valid || chunk.num_values() < 0 {
            return Err(format!("the metadata of column {column} is invalid"));
        }
        // Indexes and bloom filters are copied with a kept column, so they must not overlap with another column.
        let column_index = chunk.column_index_offset().zip(chunk.column_index_length());
        let offset_index = chunk.offset_index_offset().zip(chunk.offset_index_length());
        let bloom_filter = chunk.bloom_filter_offset().map(|start| (start, chunk.bloom_filter_length().unwrap_or(1)));
        for (start, length) in [column_index, offset_index, bloom_filter].into_iter().flatten() {
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
    match ranges.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        None => Ok(()),
        Some(pair) => Err(format!("the columns {} and {} overlap", pair[0].2, pair[1].2)),
    }
}

/// Opens a file.
pub(super) fn open(path: &Path) -> Result<SourceFile, JobError> {
    let file = File::open(path).map_err(JobError::io(path))?;
    let length = file.metadata().map_err(JobError::io(path))?.len();
    Ok(SourceFile::new(file, length))
}
