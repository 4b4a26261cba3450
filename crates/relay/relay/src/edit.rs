//! Edits one body: reads the source, scans it, sends values to the engine, and returns the edited
//! bytes in order.
//!
//! A body is split by its content and never by reads: the scanner finds the same pieces for any
//! split. A batch starts as soon as fewer than two engine requests run. A single event therefore
//! leaves at once, and a burst fills its batches. The memory is bounded by one read, three batches
//! and the value that is being read.
//!
//! The future of [`Editor::next_frame`] can be dropped at any time. Running engine requests continue
//! with the next call, and end with the editor.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use http_body_util::BodyExt as _;
use sealwire_relay_body::{Piece, Scanner};

use crate::body::Source;
use crate::coding::Decoder;
use crate::engine::{Engine, Scope};
use crate::error::{Failure, Reason};
use crate::memory::Reservation;

/// Concurrent engine requests of one body.
const REQUESTS_MAX: usize = 2;
/// Most values of one batch.
const BATCH_VALUES_MAX: usize = 512;
/// A batch closes when its pieces have this many bytes.
const BATCH_BYTES_MAX: usize = 256 << 10;

/// Bytes that are decoded and scanned in one step.
const SLICE_BYTES_MAX: usize = 8 << 10;
/// Least bytes that a frame of the source counts: its handle, and those of its pieces.
const FRAME_BYTES_MIN: usize = 128;
/// An edited body that is held can be at most this many times longer than the limit of its source.
pub const EXPANSION_MAX: usize = 8;

/// The part of a body that is in memory at the same time.
#[derive(Clone, Copy, Debug)]
pub enum Extent {
    /// The whole body.
    Held {
        /// Longest body in bytes, after decoding.
        bytes_max: usize,
    },
    /// A window of the body.
    Streams {
        /// Most memory in bytes.
        memory_bytes_max: usize,
    },
}

/// An editor of one body.
pub struct Editor {
    source: Source,
    decoder: Option<Decoder>,
    scanner: Scanner,
    engine: Engine,
    scope: Arc<Scope>,
    /// Pieces that are not yet in a batch.
    pending: VecDeque<Piece>,
    pending_bytes: usize,
    pending_values: usize,
    requests: FuturesOrdered<BoxFuture<'static, Result<Vec<Bytes>, Failure>>>,
    output: VecDeque<Bytes>,
    source_ended: bool,
    /// Bytes that were read but not scanned.
    unread: Bytes,
    /// True after the end was scanned.
    is_scanned: bool,
    /// Longest source in bytes, after decoding. `None` for a streamed body.
    bytes_left: Option<usize>,
    bytes_max: usize,
    /// Source bytes as read, if the caller can need them.
    originals: Option<Vec<Bytes>>,
    /// Bytes of the source so far, after decoding, with the overhead of short frames.
    read_bytes: usize,
    /// Memory that is counted for the body, and the limit for its bytes.
    memory: Reservation,
    memory_bytes_max: usize,
}

impl Editor {
    /// Creates an editor.
    pub fn new(
        source: Source,
        decoder: Option<Decoder>,
        scanner: Scanner,
        engine: Engine,
        scope: Arc<Scope>,
        extent: Extent,
        memory: Reservation,
    ) -> Self {
        let (bytes_max, memory_bytes_max) = match extent {
            Extent::Held { bytes_max } => (Some(bytes_max), usize::MAX),
            Extent::Streams { memory_bytes_max } => (None, memory_bytes_max),
        };
        Self {
            source,
            decoder,
            scanner,
            engine,
            scope,
            pending: VecDeque::new(),
            pending_bytes: 0,
            pending_values: 0,
            requests: FuturesOrdered::new(),
            output: VecDeque::new(),
            source_ended: false,
            unread: Bytes::new(),
            is_scanned: false,
            bytes_left: bytes_max,
            bytes_max: bytes_max.unwrap_or(0),
            originals: None,
            read_bytes: 0,
            memory,
            memory_bytes_max,
        }
    }

    /// Keeps the source bytes, for [`Editor::into_originals`].
    pub fn keep_originals(&mut self) {
        self.originals = Some(Vec::new());
    }

    /// Returns the reserved memory, which belongs to the returned bytes.
    pub fn into_memory(self) -> Reservation {
        self.memory
    }

    /// Returns the next edited bytes, or `None` after all bytes.
    ///
    /// # Errors
    /// The failure that ends the body. Bytes that were returned earlier are correct.
    pub async fn next_frame(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(bytes) = self.output.pop_front() {
                return Ok(Some(bytes));
            }
            while self.may_scan() {
                self.scan_slice()?;
            }
            while self.requests.len() < REQUESTS_MAX && !self.pending.is_empty() {
                self.start_batch();
            }
            if !self.output.is_empty() || self.may_scan() {
                continue;
            }
            if self.is_scanned && self.requests.is_empty() {
                return Ok(None);
            }
            let may_read = !self.source_ended && self.unread.is_empty();
            tokio::select! {
                biased;
                Some(edited) = self.requests.next(), if !self.requests.is_empty() => self.output.extend(edited?),
                frame = self.source.frame(), if may_read => self.store_frame(frame.transpose()?.map(|frame| frame.into_data())),
            }
        }
    }

    /// Returns all edited bytes of a body that is held.
    ///
    /// # Errors
    /// The errors of [`Editor::next_frame`].
    pub async fn collect_frames(&mut self) -> Result<Vec<Bytes>, Failure> {
        let mut frames = Vec::new();
        let mut bytes = 0;
        // Short values become long envelopes.
        let max = self.bytes_max.saturating_mul(EXPANSION_MAX);
        while let Some(frame) = self.next_frame().await? {
            bytes += frame.len();
            if bytes > max {
                return Err(self
                    .scope
                    .failure(Reason::TooLarge("edited body", max as u64)));
            }
            frames.push(frame);
            // The caller joins the frames, so count their bytes twice.
            self.reserve_memory(2 * bytes + size_of::<Bytes>() * frames.len())?;
        }
        Ok(frames)
    }

    /// Reads the rest of the source and returns all of it decoded, without edits.
    ///
    /// # Errors
    /// A failure of the source, or a body beyond its limit.
    pub async fn into_originals(mut self) -> Result<(Vec<Bytes>, Reservation), Failure> {
        let unread = std::mem::take(&mut self.unread);
        drop(self.decode(unread)?);
        while !self.source_ended {
            match self
                .source
                .frame()
                .await
                .transpose()?
                .map(http_body::Frame::into_data)
            {
                Some(Ok(data)) => drop(self.decode(data)?),
                Some(Err(_trailers)) => {}
                None => self.source_ended = true,
            }
        }
        if let Some(decoder) = self.decoder.take() {
            let mut rest = Vec::new();
            decoder
                .finish(&mut rest)
                .map_err(|error| self.scope.failure(error.to_reason()))?;
            self.count(rest.into())?;
        }
        Ok((self.originals.unwrap_or_default(), self.memory))
    }

    /// Stores a frame of the source, or its end.
    fn store_frame(&mut self, frame: Option<Result<Bytes, http_body::Frame<Bytes>>>) {
        match frame {
            // Trailers can be digests of the original bytes, so an edited body drops them.
            Some(Err(_trailers)) => {}
            Some(Ok(data)) => self.unread = data,
            None => self.source_ended = true,
        }
    }

    /// Scans the next slice of the unread bytes, or the end. Slices limit the number of pieces per
    /// step.
    fn scan_slice(&mut self) -> Result<(), Failure> {
        let mut found = Vec::new();
        if self.unread.is_empty() {
            self.is_scanned = true;
            if let Some(decoder) = self.decoder.take() {
                let mut rest = Vec::new();
                decoder
                    .finish(&mut rest)
                    .map_err(|error| self.scope.failure(error.to_reason()))?;
                let rest = self.count(rest.into())?;
                self.scanner
                    .push(&rest, &mut found)
                    .map_err(|error| self.failure_of(&error))?;
            }
            self.scanner
                .finish(&mut found)
                .map_err(|error| self.failure_of(&error))?;
        } else {
            let slice = self.unread.split_to(self.unread.len().min(SLICE_BYTES_MAX));
            let data = self.decode(slice)?;
            self.scanner
                .push(&data, &mut found)
                .map_err(|error| self.failure_of(&error))?;
        }

        for piece in &found {
            self.pending_bytes += piece.source().len();
            self.pending_values += usize::from(piece.hole().is_some());
        }
        self.pending.extend(found);
        Ok(())
    }

    /// Returns true if unscanned input exists, and the pending batch has room for its pieces.
    fn may_scan(&self) -> bool {
        let has_input = !self.unread.is_empty() || (self.source_ended && !self.is_scanned);
        has_input && self.pending_bytes < BATCH_BYTES_MAX && self.pending_values < BATCH_VALUES_MAX
    }

    /// Decodes bytes of the source, and counts the result.
    fn decode(&mut self, data: Bytes) -> Result<Bytes, Failure> {
        let Some(decoder) = &mut self.decoder else {
            return self.count(data);
        };
        let mut out = Vec::new();
        decoder
            .push(&data, &mut out)
            .map_err(|error| self.scope.failure(error.to_reason()))?;
        self.count(out.into())
    }

    /// Counts decoded bytes against the limit and the memory. Keeps them if the caller can need the
    /// original.
    fn count(&mut self, data: Bytes) -> Result<Bytes, Failure> {
        if let Some(left) = &mut self.bytes_left {
            let too_large = Reason::TooLarge("body", self.bytes_max as u64);
            *left = left
                .checked_sub(data.len())
                .ok_or_else(|| self.scope.failure(too_large))?;
        }
        if !data.is_empty() {
            self.read_bytes += data.len().max(FRAME_BYTES_MIN);
        }

        // Count the original and the edited body, and a third copy if the caller can need the
        // original.
        let copies = if self.originals.is_some() { 3 } else { 2 };
        self.reserve_memory(copies * self.read_bytes)?;
        if let Some(originals) = &mut self.originals {
            originals.push(data.clone());
        }
        Ok(data)
    }

    /// Reserves memory for `bytes` of the body and for the decoder.
    fn reserve_memory(&mut self, bytes: usize) -> Result<(), Failure> {
        let decoder = self.decoder.as_ref().map_or(0, Decoder::memory_bytes);
        let reserved = self
            .memory
            .grow_to(bytes.min(self.memory_bytes_max) + decoder);
        reserved.map_err(|error| self.scope.failure(error.into()))
    }

    fn failure_of(&self, error: &sealwire_relay_body::BodyError) -> Failure {
        self.scope.body_failure(error)
    }

    /// Moves pieces into a batch and starts its engine request. Pieces without a value need no
    /// request.
    fn start_batch(&mut self) {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut values = 0;
        while let Some(piece) = self.pending.front() {
            let is_hole = piece.hole().is_some();
            let is_full = values >= BATCH_VALUES_MAX || bytes >= BATCH_BYTES_MAX;
            if is_full {
                break;
            }
            values += usize::from(is_hole);
            bytes += piece.source().len();
            batch.extend(self.pending.pop_front());
        }

        self.pending_bytes -= bytes;
        self.pending_values -= values;
        if values == 0 && self.requests.is_empty() {
            self.output
                .extend(batch.into_iter().map(Piece::into_source));
            return;
        }

        let engine = self.engine.clone();
        let scope = Arc::clone(&self.scope);
        self.requests.push_back(Box::pin(async move {
            engine.replace_values(&scope, batch).await
        }));
    }
}
