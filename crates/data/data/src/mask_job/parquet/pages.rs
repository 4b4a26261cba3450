//! Reads the pages of a column chunk. Checks the sizes in page headers before memory is allocated.
//!
//! The `parquet` crate allocates as much memory as a header announces, and relies on dictionaries
//! and lengths that may be missing or too short. The crate's decompression of GZIP and Brotli has
//! no limit.

use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, PageType, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::properties::ReaderProperties;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::delta;
use super::source::SourceFile;
use super::thrift::{PageHeader, page_header};

/// Maximum bytes of a page before or after decompression: 256 MiB. A page is read whole. Writers
/// make pages of 1 MiB (DuckDB: up to 100 MB), unless a single value is longer.
pub(super) const PAGE_BYTES_MAX: usize = 256 << 20;
/// Maximum number of values of a dictionary. Each value takes up to 32 bytes in addition to the
/// page, so 128 MiB in all.
const DICTIONARY_VALUES_MAX: usize = 1 << 22;
/// Maximum number of entries of a page of a column in lists. A single row can contain all of them.
/// Each entry takes up to 36 bytes, so 144 MiB in all.
const NESTED_ENTRIES_MAX: usize = 1 << 22;
/// Maximum bytes of a page's header, which can contain statistics. The same limit as in other
/// readers.
const HEADER_BYTES_MAX: usize = 16 << 20;
/// Number of bytes that are read first to find a header.
const HEADER_BYTES_FIRST: usize = 1 << 10;

/// State that the page reader and the reader of values share.
#[derive(Debug, Default)]
pub(super) struct PageState {
    /// True if the next data page can be read. Otherwise the reader of values sees the end of the
    /// pages.
    is_next_allowed: AtomicBool,
    /// Number of entries of all data pages that were read.
    entries: AtomicU64,
    /// Length of the page's longest value, if values are created when they are read. Otherwise 0.
    longest: AtomicUsize,
}

impl PageState {
    /// Permits the reader to read the next data page after the current page.
    pub(super) fn allow_next(&self) {
        self.is_next_allowed.store(true, Ordering::Relaxed);
    }

    /// Returns the number of entries of all data pages that were read.
    pub(super) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the length of the longest value that takes memory when it is read. Returns 0 if the
    /// values share the memory of the page.
    pub(super) fn longest(&self) -> usize {
        self.longest.load(Ordering::Relaxed)
    }
}

/// Reads the pages of a column chunk.
pub(super) struct CheckedPages {
    source: Arc<SourceFile>,
    /// Decodes a page whose header was checked.
    inner: SerializedPageReader<PageSource>,
    headers: Arc<PageSource>,
    chunk: ColumnChunkMetaData,
    /// Position of the next page.
    at: u64,
    /// Bytes up to the end of the chunk.
    left: u64,
    has_dictionary: bool,
    state: Arc<PageState>,
}

/// Returns the header of one page from memory, and other bytes from the file.
struct PageSource {
    source: Arc<SourceFile>,
    /// The position of the header, and the header.
    header: Mutex<(u64, Bytes)>,
}

impl Length for PageSource {
    fn len(&self) -> u64 {
        self.source.len()
    }
}

impl ChunkReader for PageSource {
    type T = Cursor<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let header = self.header.lock().unwrap_or_else(PoisonError::into_inner);
        if header.0 == start {
            Ok(Cursor::new(header.1.clone()))
        } else {
            Err(invalid("a page has an invalid header"))
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.source.get_bytes(start, length)
    }
}

fn invalid(what: &str) -> ParquetError {
    ParquetError::General(what.to_owned())
}

/// Reads the header of the page at an offset, `left` bytes before the end of its chunk. Returns the
/// header and its bytes.
fn read_header(
    source: &SourceFile,
    at: u64,
    left: u64,
) -> Result<(PageHeader, Bytes), ParquetError> {
    let mut size = HEADER_BYTES_FIRST;
    loop {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(size);
        let bytes = source.get_bytes(at, length)?;
        if let Some((header, length)) = page_header(&bytes) {
            return Ok((header, bytes.slice(..length)));
        }
        if length < size || size >= HEADER_BYTES_MAX {
            return Err(invalid("a page has an invalid header"));
        }
        size *= 16;
    }
}

/// Checks that the pages of a chunk end at the offset in the chunk's metadata, and have the stated
/// number of values. A chunk is copied by its stated length. Old writers stated a length without
/// the header of the dictionary (PARQUET-816).
pub(super) fn check_pages(
    source: &SourceFile,
    chunk: &ColumnChunkMetaData,
) -> Result<(), ParquetError> {
    let (mut at, mut left) = chunk.byte_range();
    let mut values = 0_i64;
    while left > 0 {
        let (header, bytes) = read_header(source, at, left)?;
        let page = u64::try_from(header.compressed_bytes).map(|length| length + bytes.len() as u64);
        let page = page
            .ok()
            .filter(|page| *page <= left)
            .ok_or_else(|| invalid("a page is longer than its column chunk"))?;
        if matches!(header.kind, 0 | 3) {
            values = values.saturating_add(header.values.into());
        }
        at += page;
        left -= page;
    }
    if values == chunk.num_values() {
        return Ok(());
    }
    Err(invalid(
        "its pages have another number of values than its metadata says: write the file anew",
    ))
}

impl CheckedPages {
    pub(super) fn new(
        source: &Arc<SourceFile>,
        chunk: &ColumnChunkMetaData,
        rows: usize,
        state: &Arc<PageState>,
    ) -> Result<Self, ParquetError> {
        let headers = Arc::new(PageSource {
            source: Arc::clone(source),
            header: Mutex::default(),
        });
        let (at, left) = chunk.byte_range();
        let properties = ReaderProperties::builder()
            .set_backward_compatible_lz4(false)
            .build();
        let compression = if is_decompressed_here(chunk) {
            Compression::UNCOMPRESSED
        } else {
            chunk.compression()
        };
        let inner = chunk
            .clone()
            .into_builder()
            .set_compression(compression)
            .build()?;
        // Ignores the page locations in the file's metadata, since they can be wrong.
        let inner = SerializedPageReader::new_with_properties(
            Arc::clone(&headers),
            &inner,
            rows,
            None,
            Arc::new(properties),
        )?;
        Ok(Self {
            source: Arc::clone(source),
            inner,
            headers,
            chunk: chunk.clone(),
            at,
            left,
            has_dictionary: false,
            state: Arc::clone(state),
        })
    }

    /// Reads and checks the header of the next page. Returns the header and its bytes.
    fn next_header(&self) -> Result<Option<(PageHeader, Bytes)>, ParquetError> {
        if self.left == 0 {
            return Ok(None);
        }
        let (header, bytes) = read_header(&self.source, self.at, self.left)?;
        self.check_header(&header, self.left - bytes.len() as u64)?;
        Ok(Some((header, bytes)))
    }

    fn check_header(&self, header: &PageHeader, left: u64) -> Result<(), ParquetError> {
        let compressed = header_number(header.compressed_bytes)?;
        let uncompressed = header_number(header.uncompressed_bytes)?;
        if compressed as u64 > left {
            return Err(invalid("a page is longer than its column chunk"));
        }
        if compressed.max(uncompressed) > PAGE_BYTES_MAX {
            return Err(ParquetError::General(format!(
                "a page has more than {PAGE_BYTES_MAX} bytes: write the file with smaller pages"
            )));
        }

        let values = header_number(header.values)?;
        let has_room = match header.kind {
            0 => true,
            2 => self.has_room(values, uncompressed),
            3 => {
                let (definitions, repetitions) = header.level_bytes;
                let levels = header_number(definitions)
                    .ok()
                    .zip(header_number(repetitions).ok());
                levels.is_some_and(|(one, other)| one + other <= compressed.min(uncompressed))
            }
            _ => return Err(invalid("a page is of an unknown kind")),
        };
        if !has_room {
            return Err(invalid("a page announces more values than it has"));
        }
        if header.kind == 2 && values > DICTIONARY_VALUES_MAX {
            return Err(ParquetError::General(format!(
                "a dictionary has more than {DICTIONARY_VALUES_MAX} values: write the column without a dictionary"
            )));
        }
        if self.chunk.column_descr().max_rep_level() > 0 && values > NESTED_ENTRIES_MAX {
            return Err(ParquetError::General(format!(
                "a page has more than {NESTED_ENTRIES_MAX} entries of lists: write the file with smaller pages"
            )));
        }
        Ok(())
    }

    /// Returns true if this number of bytes can hold this number of dictionary values.
    fn has_room(&self, values: usize, bytes: usize) -> bool {
        let width = match self.chunk.column_type() {
            Type::BOOLEAN => return values <= bytes.saturating_mul(8),
            Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => {
                usize::try_from(self.chunk.column_descr().type_length()).unwrap_or(0)
            }
        };
        values
            .checked_mul(width)
            .is_some_and(|needed| needed <= bytes)
    }

    /// Decodes the page whose header was checked.
    fn decode_page(&mut self, header: &PageHeader, bytes: Bytes) -> Result<Page, ParquetError> {
        let length = bytes.len() as u64 + header.compressed_bytes as u64;
        *self
            .headers
            .header
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = (self.at, bytes);
        let page = self
            .inner
            .get_next_page()?
            .ok_or_else(|| invalid("its pages end within"))?;
        self.at += length;
        self.left -= length;
        let kind = match page.page_type() {
            PageType::DATA_PAGE => 0,
            PageType::INDEX_PAGE => 1,
            PageType::DICTIONARY_PAGE => 2,
            PageType::DATA_PAGE_V2 => 3,
        };
        if kind != header.kind || u32::try_from(header.values) != Ok(page.num_values()) {
            return Err(invalid("a page has an invalid header"));
        }
        if is_decompressed_here(&self.chunk) {
            self.decompress_page(page, header.uncompressed_bytes as usize)
        } else {
            Ok(page)
        }
    }

    /// Returns the page with its bytes decompressed.
    fn decompress_page(&self, mut page: Page, length: usize) -> Result<Page, ParquetError> {
        let (bytes, levels) = match &mut page {
            Page::DataPageV2 {
                is_compressed: false,
                ..
            } => return Ok(page),
            Page::DataPageV2 {
                buf,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => (
                buf,
                *def_levels_byte_len as usize + *rep_levels_byte_len as usize,
            ),
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => (buf, 0),
        };
        let packed = bytes.get(levels..).ok_or_else(|| invalid(PAGE_LENGTH))?;
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(&bytes[..levels]);
        // A page without values has no compressed bytes.
        if length > levels {
            // Reads one byte more than announced, to detect a page that is too long.
            let rest = (length - levels) as u64 + 1;
            match self.chunk.compression() {
                Compression::GZIP(_) => flate2::read::MultiGzDecoder::new(packed)
                    .take(rest)
                    .read_to_end(&mut out)?,
                _ => brotli_decompressor::Decompressor::new(packed, 4096)
                    .take(rest)
                    .read_to_end(&mut out)?,
            };
        }
        if out.len() != length {
            return Err(invalid(PAGE_LENGTH));
        }
        *bytes = out.into();
        Ok(page)
    }

    /// Checks the parts of a page that its decoder relies on.
    fn check_page(&self, page: &Page) -> Result<(), ParquetError> {
        let descriptor = self.chunk.column_descr();
        let (data, encoding) = match page {
            Page::DictionaryPage {
                buf, num_values, ..
            } => {
                let has_room = self.has_room(*num_values as usize, buf.len());
                return has_room
                    .then_some(())
                    .ok_or_else(|| invalid("a dictionary announces more values than it has"));
            }
            Page::DataPage {
                buf,
                encoding,
                def_level_encoding,
                rep_level_encoding,
                num_values,
                ..
            } => {
                let mut at = 0_usize;
                for (max, encoding) in [
                    (descriptor.max_rep_level(), rep_level_encoding),
                    (descriptor.max_def_level(), def_level_encoding),
                ] {
                    if max > 0 {
                        let length = levels_len(&buf[at..], *encoding, max, *num_values);
                        at += length
                            .filter(|length| *length <= buf.len() - at)
                            .ok_or_else(|| invalid(LEVELS))?;
                    }
                }
                (&buf[at..], *encoding)
            }
            Page::DataPageV2 {
                buf,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                (buf.get(levels..).ok_or_else(|| invalid(LEVELS))?, *encoding)
            }
        };
        let values = page.num_values() as usize;
        let mut longest = 0;
        let is_valid = match (encoding, descriptor.physical_type()) {
            (Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY, _) => self.has_dictionary,
            (Encoding::DELTA_BINARY_PACKED, _) => delta::check_numbers(data).is_some(),
            (Encoding::DELTA_LENGTH_BYTE_ARRAY, _) => delta::check_lengths(data, values).is_some(),
            (Encoding::DELTA_BYTE_ARRAY, _) => match delta::longest_value(data, values) {
                Some(length) => {
                    longest = length;
                    true
                }
                None => false,
            },
            _ => true,
        };
        self.state.longest.store(longest, Ordering::Relaxed);
        is_valid
            .then_some(())
            .ok_or_else(|| invalid("a page is invalid in its encoding"))
    }
}

const LEVELS: &str = "a page ends within its levels";
const PAGE_LENGTH: &str = "the length of a page differs from the announced length";

/// Returns a number of a page's header, which must not be negative.
fn header_number(number: i32) -> Result<usize, ParquetError> {
    usize::try_from(number).map_err(|_| invalid("a page has an invalid header"))
}

/// Returns true if pages are decompressed here, since the `parquet` crate has no limit for their
/// codec.
fn is_decompressed_here(chunk: &ColumnChunkMetaData) -> bool {
    matches!(
        chunk.compression(),
        Compression::GZIP(_) | Compression::BROTLI(_)
    )
}

/// Returns the length of levels of a page of version 1.
fn levels_len(bytes: &[u8], encoding: Encoding, max: i16, values: u32) -> Option<usize> {
    #[expect(deprecated, reason = "old files have it")]
    match encoding {
        Encoding::RLE => {
            let length = u32::from_le_bytes(*bytes.first_chunk()?);
            Some(usize::try_from(length).ok()? + 4)
        }
        Encoding::BIT_PACKED => {
            let width = i16::BITS - max.leading_zeros();
            Some((u64::from(values) * u64::from(width)).div_ceil(8) as usize)
        }
        _ => None,
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        while self.state.is_next_allowed.load(Ordering::Relaxed) {
            let Some((header, bytes)) = self.next_header()? else {
                return Ok(None);
            };
            let page = self.decode_page(&header, bytes)?;
            self.check_page(&page)?;
            if page.is_dictionary_page() {
                self.has_dictionary = true;
            } else if page.num_values() == 0 {
                // The `parquet` crate would treat an empty page as the end.
                continue;
            } else {
                self.state.is_next_allowed.store(false, Ordering::Relaxed);
                self.state
                    .entries
                    .fetch_add(u64::from(page.num_values()), Ordering::Relaxed);
            }
            return Ok(Some(page));
        }
        Ok(None)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        let Some((header, _)) = self.next_header()? else {
            return Ok(None);
        };
        let values = usize::try_from(header.values).ok();
        Ok(Some(PageMetadata {
            // A page of version 2 begins with a row.
            num_rows: values.filter(|_| header.kind == 3),
            num_levels: values.filter(|_| header.kind == 0),
            is_dict: header.kind == 2,
        }))
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        Err(io::Error::from(io::ErrorKind::Unsupported).into())
    }

    fn at_record_boundary(&mut self) -> Result<bool, ParquetError> {
        Ok(self
            .peek_next_page()?
            .is_none_or(|page| page.num_rows.is_some()))
    }
}
