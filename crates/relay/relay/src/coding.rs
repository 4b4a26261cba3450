//! Decodes the content codings gzip, deflate, br and zstd of bodies that are changed, within
//! limits.
//!
//! Input is pushed as it arrives. A decoder fails once its output exceeds a number of bytes or a
//! ratio to its input, so a small body cannot fill the memory. A body that is truncated, or has
//! bytes after its end, is an error: another decoder could read it differently.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use brotli_decompressor::writer::DecompressorWriterCustomAlloc;
use brotli_decompressor::{Allocator, SliceWrapper as _, StandardAlloc};
use flate2::write::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::Reason;

/// Most bytes of output per byte of input, once the output exceeds [`RATIO_FREE_BYTES`].
pub const RATIO_MAX: u64 = 100;
/// Output for which no ratio applies: short repetitive documents compress well.
pub const RATIO_FREE_BYTES: u64 = 64 << 10;
/// Largest window of a zstd frame (RFC 9659). The largest window of brotli is 16 MiB, that of
/// deflate 32 KiB.
const ZSTD_WINDOW_BYTES_MAX: u64 = 8 << 20;
/// Most output of a zstd block.
const ZSTD_BLOCK_BYTES_MAX: u64 = 128 << 10;
/// Scratch memory of one step.
const STEP_BYTES: usize = 8 << 10;
/// Memory of a decoder of gzip or deflate: its window, tables and buffers.
const INFLATE_BYTES: usize = 128 << 10;

/// Reason why a body cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodingError {
    /// A coding that is not supported, or more than one.
    #[error("an unknown content coding, or more than one")]
    Unknown,
    /// The bytes are not in the content coding.
    #[error("the body is malformed for its content coding")]
    Malformed,
    /// The body ended before the end of the coding.
    #[error("the compressed body is incomplete")]
    Truncated,
    /// Bytes follow the end of the coding.
    #[error("bytes follow the end of the compressed body")]
    Trailing,
    /// The output exceeds this number of bytes.
    #[error("the body has more than {0} bytes when decompressed")]
    TooLarge(u64),
    /// The output exceeds [`RATIO_MAX`] times the input.
    #[error("the body is compressed more than {RATIO_MAX} to 1")]
    Ratio,
}

impl CodingError {
    /// Returns the reason of the failure. The caller adds the phase.
    pub const fn to_reason(self) -> Reason {
        match self {
            Self::Unknown => Reason::Unreadable("content coding"),
            Self::Malformed => Reason::Invalid("compressed body"),
            Self::Truncated => Reason::Invalid("compressed body is incomplete"),
            Self::Trailing => Reason::Invalid("bytes after the compressed body"),
            Self::TooLarge(max) => Reason::TooLarge("decompressed body bytes", max),
            Self::Ratio => Reason::TooLarge("compression ratio", RATIO_MAX),
        }
    }
}

/// A decoder of one body. The decoder takes no memory before the first byte.
pub struct Decoder {
    coding: Coding,
    bytes_max: u64,
    state: Option<CodingState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

enum CodingState {
    Gzip(Box<MultiGzDecoder<Sink>>),
    Deflate {
        state: Decompress,
        sink: Sink,
        is_done: bool,
    },
    Brotli {
        writer: Box<Brotli>,
        /// Bytes that the library has allocated.
        allocated: Arc<AtomicUsize>,
    },
    /// Holds the compressed body, because the library reads whole blocks only.
    Zstd {
        input: Vec<u8>,
        blocks: ZstdBlocks,
        sink: Sink,
    },
}

impl CodingState {
    fn new(coding: Coding, bytes_max: u64) -> Self {
        let sink = Sink {
            output: Vec::new(),
            input_bytes: 0,
            output_bytes: 0,
            bytes_max,
            exceeded: None,
        };
        match coding {
            Coding::Gzip => Self::Gzip(Box::new(MultiGzDecoder::new(sink))),
            Coding::Deflate => Self::Deflate {
                state: Decompress::new(true),
                sink,
                is_done: false,
            },
            Coding::Brotli => {
                let allocated = Arc::<AtomicUsize>::default();
                let mut alloc = CountingAlloc(Arc::clone(&allocated));
                let buffer = Allocator::<u8>::alloc_cell(&mut alloc, STEP_BYTES);
                let writer = Brotli::new(sink, buffer, alloc.clone(), alloc.clone(), alloc);
                Self::Brotli {
                    writer: Box::new(writer),
                    allocated,
                }
            }
            Coding::Zstd => Self::Zstd {
                input: Vec::new(),
                blocks: ZstdBlocks::default(),
                sink,
            },
        }
    }

    fn sink_mut(&mut self) -> &mut Sink {
        match self {
            Self::Gzip(writer) => writer.get_mut(),
            Self::Brotli { writer, .. } => writer.get_mut(),
            Self::Deflate { sink, .. } | Self::Zstd { sink, .. } => sink,
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("coding", &self.coding.name())
            .finish_non_exhaustive()
    }
}

impl Decoder {
    /// Creates a decoder for the value of `Content-Encoding`; `None` for an empty value or
    /// `identity`. The output has at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// [`CodingError::Unknown`].
    pub fn new(coding: &str, bytes_max: u64) -> Result<Option<Self>, CodingError> {
        let coding = match coding.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => return Ok(None),
            "gzip" | "x-gzip" => Coding::Gzip,
            "deflate" => Coding::Deflate,
            "br" => Coding::Brotli,
            "zstd" => Coding::Zstd,
            _ => return Err(CodingError::Unknown),
        };
        Ok(Some(Self {
            coding,
            bytes_max,
            state: None,
        }))
    }

    /// Returns true if the decoder returns its output only at the end.
    pub const fn holds_input(&self) -> bool {
        matches!(self.coding, Coding::Zstd)
    }

    /// Returns the memory of the decoder itself in bytes: window, tables and held input. After
    /// [`Decoder::push`] this is the memory that the decoder has allocated. For zstd, the memory of
    /// [`Decoder::finish`] is included from the start, because that call allocates the most.
    pub fn memory_bytes(&self) -> usize {
        match &self.state {
            None => 0,
            Some(CodingState::Gzip(_) | CodingState::Deflate { .. }) => INFLATE_BYTES,
            Some(CodingState::Brotli { allocated, .. }) => allocated.load(Ordering::Relaxed),
            Some(CodingState::Zstd {
                input,
                blocks,
                sink,
            }) => {
                // `finish` holds all output at once, beside the window.
                let ratio_max =
                    RATIO_FREE_BYTES.max((input.len() as u64).saturating_mul(RATIO_MAX));
                let output = sink.bytes_max.min(ratio_max).min(blocks.output_max());
                let window = blocks.window.min(ZSTD_WINDOW_BYTES_MAX).min(output);
                input.capacity() + usize::try_from(window + output).unwrap_or(usize::MAX)
            }
        }
    }

    /// Decodes a part of the body and appends the output to `output`. zstd returns its output only
    /// in [`Decoder::finish`].
    ///
    /// # Errors
    ///
    /// See [`CodingError`]. The decoder must not be used after an error.
    pub fn push(&mut self, part: &[u8], output: &mut Vec<u8>) -> Result<(), CodingError> {
        if part.is_empty() {
            return Ok(());
        }
        let state = self
            .state
            .get_or_insert_with(|| CodingState::new(self.coding, self.bytes_max));
        state.sink_mut().input_bytes += part.len() as u64;
        match state {
            CodingState::Gzip(writer) => {
                let result = writer.write_all(part).and_then(|()| writer.flush());
                writer.get_mut().check_result(result)?;
            }
            CodingState::Brotli { writer, .. } => {
                let result = writer.write_all(part);
                writer.get_mut().check_result(result)?;
            }
            CodingState::Deflate {
                state,
                sink,
                is_done,
            } => decode_deflate(state, part, sink, is_done)?,
            CodingState::Zstd {
                input,
                blocks,
                sink,
            } => {
                let needed = input.len() + part.len();
                if needed as u64 > sink.bytes_max {
                    return Err(CodingError::TooLarge(sink.bytes_max));
                }
                if needed > input.capacity() {
                    let most = usize::try_from(sink.bytes_max).unwrap_or(usize::MAX);
                    input.reserve_exact(needed.max(2 * input.capacity()).min(most) - input.len());
                }
                input.extend_from_slice(part);
                blocks.read_headers(input);
            }
        }
        output.append(&mut state.sink_mut().output);
        Ok(())
    }

    /// Ends the body and appends the rest of the output.
    ///
    /// # Errors
    ///
    /// [`CodingError::Truncated`] if the coding is incomplete. See [`CodingError`] for others.
    pub fn finish(self, output: &mut Vec<u8>) -> Result<(), CodingError> {
        let mut state = self.state.ok_or(CodingError::Truncated)?;
        match &mut state {
            CodingState::Gzip(writer) => {
                let result = writer.try_finish();
                writer.get_mut().check_result(result)?;
            }
            CodingState::Brotli { writer, .. } => {
                let result = writer.close();
                writer.get_mut().check_result(result)?;
            }
            CodingState::Deflate { is_done: false, .. } => return Err(CodingError::Truncated),
            CodingState::Deflate { .. } => {}
            CodingState::Zstd { input, sink, .. } => decode_zstd(input, sink)?,
        }
        output.append(&mut state.sink_mut().output);
        Ok(())
    }
}

/// A decoder of brotli whose allocations are counted.
type Brotli = DecompressorWriterCustomAlloc<
    Sink,
    <StandardAlloc as Allocator<u8>>::AllocatedMemory,
    CountingAlloc,
    CountingAlloc,
    CountingAlloc,
>;

/// Counts the allocated bytes. A brotli stream can request a window of up to 16 MiB, and its tables
/// take more.
#[derive(Clone)]
struct CountingAlloc(Arc<AtomicUsize>);

impl<T: Clone + Default> Allocator<T> for CountingAlloc {
    type AllocatedMemory = <StandardAlloc as Allocator<T>>::AllocatedMemory;

    fn alloc_cell(&mut self, len: usize) -> Self::AllocatedMemory {
        self.0.fetch_add(len * size_of::<T>(), Ordering::Relaxed);
        Allocator::<T>::alloc_cell(&mut StandardAlloc::default(), len)
    }

    fn free_cell(&mut self, data: Self::AllocatedMemory) {
        self.0
            .fetch_sub(size_of_val(data.slice()), Ordering::Relaxed);
    }
}

/// Output of a decoder with its limits.
struct Sink {
    output: Vec<u8>,
    input_bytes: u64,
    output_bytes: u64,
    bytes_max: u64,
    exceeded: Option<CodingError>,
}

impl Sink {
    fn append(&mut self, bytes: &[u8]) -> Result<(), CodingError> {
        self.output_bytes += bytes.len() as u64;
        if self.output_bytes > self.bytes_max {
            return Err(CodingError::TooLarge(self.bytes_max));
        }
        if self.output_bytes > RATIO_FREE_BYTES.max(self.input_bytes.saturating_mul(RATIO_MAX)) {
            return Err(CodingError::Ratio);
        }
        self.output.extend_from_slice(bytes);
        Ok(())
    }

    /// Translates an error of a library's writer.
    fn check_result(&self, result: io::Result<()>) -> Result<(), CodingError> {
        let Err(error) = result else { return Ok(()) };
        Err(self.exceeded.unwrap_or(match error.kind() {
            io::ErrorKind::UnexpectedEof => CodingError::Truncated,
            io::ErrorKind::WriteZero => CodingError::Trailing,
            _ => CodingError::Malformed,
        }))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(|error| {
            self.exceeded = Some(error);
            io::Error::other(error)
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decodes zlib. Some old servers send raw deflate under this name, which is malformed here.
fn decode_deflate(
    state: &mut Decompress,
    mut part: &[u8],
    sink: &mut Sink,
    is_done: &mut bool,
) -> Result<(), CodingError> {
    let mut step = [0; STEP_BYTES];
    loop {
        if *is_done {
            return if part.is_empty() {
                Ok(())
            } else {
                Err(CodingError::Trailing)
            };
        }
        let read_before = state.total_in();
        let written_before = state.total_out();
        let status = state
            .decompress(part, &mut step, FlushDecompress::None)
            .map_err(|_| CodingError::Malformed)?;
        let read = (state.total_in() - read_before) as usize;
        let written = (state.total_out() - written_before) as usize;
        sink.append(&step[..written])?;
        part = &part[read..];
        *is_done = status == Status::StreamEnd;
        if !*is_done && part.is_empty() && written < step.len() {
            return Ok(());
        }
        if !*is_done && read == 0 && written == 0 {
            return Err(CodingError::Malformed);
        }
    }
}

/// Decodes zstd data frames and skips other frames (RFC 8878, section 3.1).
fn decode_zstd(input: &[u8], sink: &mut Sink) -> Result<(), CodingError> {
    let mut rest = input;
    let mut decoder = FrameDecoder::new();
    while !rest.is_empty() {
        match ZstdMagic::read_from(rest) {
            Some(ZstdMagic::Data) => decode_zstd_frame(&mut decoder, &mut rest, sink)?,
            Some(ZstdMagic::Skippable) => {
                let end = skippable_end(rest).ok_or(CodingError::Truncated)?;
                rest = rest.get(end..).ok_or(CodingError::Truncated)?;
            }
            None if rest.len() < ZSTD_MAGIC_BYTES => return Err(CodingError::Truncated),
            None if rest.len() < input.len() => return Err(CodingError::Trailing),
            None => return Err(CodingError::Malformed),
        }
    }
    Ok(())
}

/// Decodes one frame. The library does not check the checksum, because the transport already
/// protects the bytes.
fn decode_zstd_frame(
    decoder: &mut FrameDecoder,
    rest: &mut &[u8],
    sink: &mut Sink,
) -> Result<(), CodingError> {
    let input = *rest;
    let before = sink.output_bytes;
    let header = zstd_header(input)?;
    if header.window > ZSTD_WINDOW_BYTES_MAX {
        return Err(CodingError::TooLarge(ZSTD_WINDOW_BYTES_MAX));
    }
    let content = header.content;
    if decoder.reset(&mut *rest).is_err() {
        return Err(if rest.is_empty() {
            CodingError::Truncated
        } else {
            CodingError::Malformed
        });
    }
    while !decoder.is_finished() {
        let step = BlockDecodingStrategy::UptoBlocks(1);
        if decoder.decode_blocks(&mut *rest, step).is_err() {
            return Err(if is_truncated(input, rest) {
                CodingError::Truncated
            } else {
                CodingError::Malformed
            });
        }
        if let Some(bytes) = decoder.collect() {
            sink.append(&bytes)?;
        }

        // The library ignores the content size in the frame header.
        if content.is_some_and(|content| sink.output_bytes - before > content) {
            return Err(CodingError::Malformed);
        }
    }
    if let Some(bytes) = decoder.collect() {
        sink.append(&bytes)?;
    }
    if content.is_some_and(|content| sink.output_bytes - before != content) {
        return Err(CodingError::Malformed);
    }
    Ok(())
}

/// Returns true if a failed read was at the end of the input: fewer bytes are left than the header
/// of a block needs.
fn is_truncated(input: &[u8], rest: &[u8]) -> bool {
    rest.len() < input.len() && rest.len() < 3
}

/// Length of the magic number at the start of a frame.
const ZSTD_MAGIC_BYTES: usize = 4;
/// Length of the header of a skippable frame: its magic number and its length.
const SKIPPABLE_HEADER_BYTES: usize = 8;

/// Kind of a zstd frame.
enum ZstdMagic {
    Data,
    Skippable,
}

impl ZstdMagic {
    /// Reads the magic number of a frame.
    fn read_from(input: &[u8]) -> Option<Self> {
        match u32::from_le_bytes(*input.first_chunk()?) {
            0xfd2f_b528 => Some(Self::Data),
            0x184d_2a50..=0x184d_2a5f => Some(Self::Skippable),
            _ => None,
        }
    }
}

/// Returns the end of a skippable frame, once its header is complete.
fn skippable_end(input: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(*input.get(ZSTD_MAGIC_BYTES..)?.first_chunk()?);
    usize::try_from(length)
        .ok()?
        .checked_add(SKIPPABLE_HEADER_BYTES)
}

/// Header of a zstd frame.
struct ZstdHeader {
    /// Length of the header.
    bytes: usize,
    /// Bytes of output that the decoder must keep.
    window: u64,
    /// Bytes of all output, if the header has them.
    content: Option<u64>,
    /// True if a checksum follows the last block.
    has_checksum: bool,
}

/// Reads the header of a frame (RFC 8878, section 3.1.1.1).
fn zstd_header(input: &[u8]) -> Result<ZstdHeader, CodingError> {
    let Some((&descriptor, fields)) = input.get(4..).and_then(<[u8]>::split_first) else {
        return Err(CodingError::Truncated);
    };
    let is_single_segment = descriptor & 0x20 != 0;
    if descriptor & 3 != 0 {
        // The frame needs a dictionary, which the relay does not have.
        return Err(CodingError::Malformed);
    }

    let window_bytes = usize::from(!is_single_segment);
    let size_bytes = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        flag => 1 << flag,
    };
    let size = fields
        .get(window_bytes..window_bytes + size_bytes)
        .ok_or(CodingError::Truncated)?;
    let offset = if size_bytes == 2 { 256 } else { 0 };
    let size = size
        .iter()
        .rev()
        .fold(0_u64, |size, byte| size << 8 | u64::from(*byte))
        .saturating_add(offset);

    let window = match fields.first() {
        _ if is_single_segment => size,
        Some(byte) => {
            let base = 1_u64 << (10 + (byte >> 3));
            base + base / 8 * u64::from(byte & 7)
        }
        None => return Err(CodingError::Truncated),
    };
    Ok(ZstdHeader {
        bytes: 5 + window_bytes + size_bytes,
        window,
        content: (size_bytes > 0).then_some(size),
        has_checksum: descriptor & 4 != 0,
    })
}

/// An upper bound of the output of all blocks whose headers have arrived, over all frames.
#[derive(Default)]
struct ZstdBlocks {
    /// Position of the next header of a frame or a block.
    next: usize,
    /// The frame of the next block.
    frame: Option<ZstdHeader>,
    /// Upper bound of the output of that frame, and of the frames before it.
    frame_output_max: u64,
    ended_output_max: u64,
    /// Largest window of a frame.
    window: u64,
}

impl ZstdBlocks {
    fn output_max(&self) -> u64 {
        self.ended_output_max.saturating_add(self.frame_output_max)
    }

    /// Reads the headers of frames and blocks (RFC 8878, section 3.1.1). Malformed headers are
    /// reported later, when the body is decoded.
    fn read_headers(&mut self, input: &[u8]) {
        while let Some(rest) = input.get(self.next..) {
            let Some(frame) = &self.frame else {
                if !self.start_frame(rest) {
                    return;
                }
                continue;
            };
            let Some(&[low, middle, high]) = rest.first_chunk() else {
                return;
            };

            let block = u32::from_le_bytes([low, middle, high, 0]);
            let size = block >> 3;
            let (input_bytes, output_bytes) = match block >> 1 & 3 {
                0 => (size, size.into()),
                1 => (1, size.into()),
                _ => (size, frame.window.min(ZSTD_BLOCK_BYTES_MAX)),
            };
            self.next += 3 + input_bytes as usize;
            let output = self.frame_output_max.saturating_add(output_bytes);
            self.frame_output_max = output.min(frame.content.unwrap_or(u64::MAX));
            if block & 1 == 1 {
                self.next += if frame.has_checksum { 4 } else { 0 };
                self.frame = None;
                self.ended_output_max = self.output_max();
                self.frame_output_max = 0;
            }
        }
    }

    /// Reads the header of a frame. Returns false if the header is incomplete or invalid.
    fn start_frame(&mut self, rest: &[u8]) -> bool {
        let end = match ZstdMagic::read_from(rest) {
            Some(ZstdMagic::Data) => {
                let Ok(header) = zstd_header(rest) else {
                    return false;
                };
                self.window = self.window.max(header.window);
                self.frame.insert(header).bytes
            }
            Some(ZstdMagic::Skippable) => {
                let Some(end) = skippable_end(rest) else {
                    return false;
                };
                end
            }
            None => return false,
        };
        self.next = self.next.saturating_add(end);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};

    const TEXT: &[u8] = br#"{"card":"4111111111111111","card2":"4111111111111111"}"#;
    /// TEXT compressed by node's `zlib.brotliCompressSync` and by `zstd -19`.
    const BR: &[u8] =
        b"\x1b\x35\x00\xf8\x8d\xd4\x62\xcd\x18\xef\xd4\x22\x31\x32\x7b\x9b\x85\x46\xa7\x0f\x6c\xc0\x81\x6a\
        \xc0\x61\x2b\x9e\x05\xa4\xc0\x49\xf7\x28\x56\x0d\xdd\x71";
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x24\x36\xe5\x00\x00\xa0\x7b\x22\x63\x61\x72\x64\x22\x3a\x22\x34\x31\x22\x2c\
        \x22\x63\x61\x72\x64\x32\x7d\x02\x00\x3e\x69\x2e\x03\x2f\x98\x98\xc2\x2e";
    /// 4 MiB of zeros.
    const BR_BOMB: &[u8] = b"\x9b\xff\xff\x3f\xf8\x27\x00\xe2\xb1\x40\x20\xf7\xfe\x07";

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zlib(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// A zstd frame with blocks of 128 KiB of zeros, each of 4 bytes.
    fn zstd_bomb(blocks: usize) -> Vec<u8> {
        let mut frame = b"\x28\xb5\x2f\xfd\x00\x40".to_vec();
        for index in 0..blocks {
            let header = u32::from(index + 1 == blocks) | 1 << 1 | (128 << 10) << 3;
            frame.extend_from_slice(&header.to_le_bytes()[..3]);
            frame.push(0);
        }
        frame
    }

    fn samples() -> [(&'static str, Vec<u8>); 4] {
        [
            ("gzip", gzip(TEXT)),
            ("deflate", zlib(TEXT)),
            ("br", BR.to_vec()),
            ("zstd", ZSTD.to_vec()),
        ]
    }

    fn decode(coding: &str, parts: &[&[u8]], bytes_max: u64) -> Result<Vec<u8>, CodingError> {
        let mut decoder = Decoder::new(coding, bytes_max)?.unwrap();
        let mut output = Vec::new();
        for part in parts {
            decoder.push(part, &mut output)?;
        }
        decoder.finish(&mut output)?;
        Ok(output)
    }

    #[test]
    fn codings_are_one_known_name() {
        for (coding, expected) in [
            ("", true),
            (" Identity ", true),
            ("GZIP", false),
            ("x-gzip", false),
            ("br", false),
        ] {
            assert_eq!(
                Decoder::new(coding, 9).unwrap().is_none(),
                expected,
                "{coding}"
            );
        }
        for coding in ["compress", "gzip, br", "gzip,", "gzip;q=1", "aws-chunked"] {
            assert_eq!(
                Decoder::new(coding, 9).unwrap_err(),
                CodingError::Unknown,
                "{coding}"
            );
        }
    }

    #[test]
    fn bodies_decode_alike_for_any_split() {
        for (coding, body) in samples() {
            for cut in 0..=body.len() {
                let (head, tail) = body.split_at(cut);
                assert_eq!(
                    decode(coding, &[head, tail], 1 << 20),
                    Ok(TEXT.to_vec()),
                    "{coding} {cut}"
                );
            }
            let bytes: Vec<&[u8]> = body.chunks(1).collect();
            assert_eq!(
                decode(coding, &bytes, 1 << 20),
                Ok(TEXT.to_vec()),
                "{coding}"
            );
        }
    }

    #[test]
    fn windows_of_decoders_are_counted() {
        let memory = |coding: &str, body: &[u8]| {
            let mut decoder = Decoder::new(coding, 10 << 20).unwrap().unwrap();
            let mut output = Vec::new();
            decoder.push(body, &mut output).unwrap();
            decoder.memory_bytes()
        };
        // A window of 16 MiB, and a block of one byte that is not the last.
        let wide = memory("br", b"\x0f\x00\x80x");
        assert!((16 << 20..24 << 20).contains(&wide), "{wide}");
        // A short body needs less, whatever window its encoder allows.
        let short = memory("br", BR);
        assert!((STEP_BYTES..1 << 20).contains(&short), "{short}");
        assert_eq!(memory("gzip", &gzip(TEXT)), INFLATE_BYTES);
        assert_eq!(memory("deflate", &zlib(TEXT)), INFLATE_BYTES);
        // zstd returns its output at the end. Its size is the one that the frame states, or the
        // most that its blocks can have, up to the ratio.
        let stated = memory("zstd", ZSTD);
        assert!((TEXT.len()..1 << 10).contains(&stated), "{stated}");
        let raw = [b"\x28\xb5\x2f\xfd\x00\x58\x81\x00\x00", &[b'x'; 16][..]].concat();
        let raw = memory("zstd", &raw);
        assert!((48..1 << 10).contains(&raw), "{raw}");
        assert!(memory("zstd", &zstd_bomb(400)[..1_000]) > 100_000);
    }

    #[test]
    fn decoders_take_no_memory_before_the_first_byte() {
        for (coding, body) in samples() {
            let mut decoder = Decoder::new(coding, 1 << 20).unwrap().unwrap();
            decoder.push(&[], &mut Vec::new()).unwrap();
            assert!(
                decoder.state.is_none() && decoder.memory_bytes() == 0,
                "{coding}"
            );
            decoder.push(&body[..1], &mut Vec::new()).unwrap();
            assert!(decoder.memory_bytes() > 0, "{coding}");
        }
    }

    #[test]
    fn a_zstd_frame_has_the_length_that_it_says() {
        for (length, expected) in [
            (0x36, Ok(TEXT.to_vec())),
            (0x35, Err(CodingError::Malformed)),
            (0x37, Err(CodingError::Malformed)),
        ] {
            let mut body = ZSTD.to_vec();
            body[5] = length;
            assert_eq!(decode("zstd", &[&body], 1 << 20), expected, "{length}");
        }
    }

    #[test]
    fn truncated_bodies_are_errors() {
        for (coding, body) in samples() {
            for end in 0..body.len() {
                let result = decode(coding, &[&body[..end]], 1 << 20);
                assert!(result.is_err(), "{coding} {end}: {result:?}");
            }
        }
    }

    #[test]
    fn trailing_bytes_are_errors() {
        for (coding, body) in samples() {
            for tail in [&b"x"[..], b"\0", b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", b"{}"] {
                let whole = [&body, tail].concat();
                assert!(
                    decode(coding, &[&whole], 1 << 20).is_err(),
                    "{coding} joined {tail:?}"
                );
                assert!(
                    decode(coding, &[&body, tail], 1 << 20).is_err(),
                    "{coding} apart {tail:?}"
                );
            }
        }
    }

    #[test]
    fn members_of_gzip_are_joined_and_limited_together() {
        let two = [gzip(TEXT), gzip(TEXT)].concat();
        assert_eq!(decode("gzip", &[&two], 1 << 20).unwrap(), TEXT.repeat(2));
        let limit = TEXT.len() as u64 + 1;
        assert_eq!(
            decode("gzip", &[&two], limit).unwrap_err(),
            CodingError::TooLarge(limit)
        );
    }

    #[test]
    fn bombs_stop_at_the_ratio_or_the_limit() {
        let zeros = vec![0; 4 << 20];
        let bombs = [
            ("gzip", gzip(&zeros)),
            ("deflate", zlib(&zeros)),
            ("br", BR_BOMB.into()),
            ("zstd", zstd_bomb(32)),
        ];
        for (coding, body) in bombs {
            assert_eq!(
                decode(coding, &[&body], 64 << 20).unwrap_err(),
                CodingError::Ratio,
                "{coding}"
            );
            let limit = 32 << 10;
            assert_eq!(
                decode(coding, &[&body], limit).unwrap_err(),
                CodingError::TooLarge(limit),
                "{coding}"
            );
        }
    }

    #[test]
    fn zstd_frames_are_joined_and_others_skipped() {
        let skipped = b"\x5a\x2a\x4d\x18\x03\x00\x00\x00abc".as_slice();
        let nothing = b"\x50\x2a\x4d\x18\x00\x00\x00\x00".as_slice();
        for (parts, times) in [
            (&[ZSTD, ZSTD][..], 2),
            (&[skipped, ZSTD], 1),
            (&[ZSTD, skipped], 1),
            (&[nothing, ZSTD, skipped, nothing, ZSTD, ZSTD, nothing], 3),
            (&[skipped], 0),
        ] {
            let whole = parts.concat();
            let expected = TEXT.repeat(times);
            assert_eq!(
                decode("zstd", &[&whole], 1 << 20),
                Ok(expected.clone()),
                "{whole:?}"
            );
            let bytes: Vec<&[u8]> = whole.chunks(1).collect();
            assert_eq!(decode("zstd", &bytes, 1 << 20), Ok(expected), "{whole:?}");
            // Every cut is an error, or the end of a frame.
            for end in 1..whole.len() {
                let is_whole = (1..parts.len()).any(|count| parts[..count].concat().len() == end);
                assert_eq!(
                    decode("zstd", &[&whole[..end]], 1 << 20).is_ok(),
                    is_whole,
                    "{end} {whole:?}"
                );
            }
        }
        let two = [ZSTD, ZSTD].concat();
        let limit = TEXT.len() as u64 + 1;
        assert_eq!(
            decode("zstd", &[&two], limit),
            Err(CodingError::TooLarge(limit))
        );
        let mut wide = [ZSTD, &zstd_bomb(1)].concat();
        wide[ZSTD.len() + 5] = 0xff;
        assert_eq!(
            decode("zstd", &[&wide], 1 << 20),
            Err(CodingError::TooLarge(ZSTD_WINDOW_BYTES_MAX))
        );
        // A magic number of neither kind.
        let other = [ZSTD, b"\x60\x2a\x4d\x18\x00\x00\x00\x00"].concat();
        assert_eq!(
            decode("zstd", &[&other], 1 << 20),
            Err(CodingError::Trailing)
        );
    }

    #[test]
    fn zstd_counts_the_blocks_of_every_frame_and_nothing_else() {
        let memory = |body: &[u8]| {
            let mut decoder = Decoder::new("zstd", 10 << 20).unwrap().unwrap();
            for byte in body.chunks(1) {
                decoder.push(byte, &mut Vec::new()).unwrap();
            }
            decoder.memory_bytes()
        };
        // A raw block of 1,000 bytes, and a checksum that is no header of a block.
        let last = (1_u32 | 1_000 << 3).to_le_bytes();
        let frame = [
            b"\x28\xb5\x2f\xfd\x04\x40",
            &last[..3],
            &[b'x'; 1_000],
            &[0xff; 4],
        ]
        .concat();
        let one = memory(&frame);
        assert!((3_000..5_000).contains(&one), "{one}");
        let two = memory(
            &[
                &frame[..],
                b"\x50\x2a\x4d\x18\x04\x00\x00\x00\xff\xff\xff\xff",
                &frame,
            ]
            .concat(),
        );
        assert!((6_000..10_000).contains(&two), "{two}");
        assert!(memory(&[ZSTD, &zstd_bomb(400)[..1_000]].concat()) > 100_000);
    }

    #[test]
    fn large_zstd_windows_are_rejected() {
        let mut body = zstd_bomb(1);
        body[5] = 0xff;
        assert_eq!(
            decode("zstd", &[&body], 1 << 20).unwrap_err(),
            CodingError::TooLarge(ZSTD_WINDOW_BYTES_MAX)
        );
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        for (coding, _) in samples() {
            assert!(decode(coding, &[TEXT], 1 << 20).is_err(), "{coding}");
        }
    }
}
