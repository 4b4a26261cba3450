//! Reads an object by ranges. Every request names the version that was opened, so a change of the
//! object is an error.
//!
//! Bytes are fetched in windows that exceed the column chunk only slightly. Several windows are
//! kept, since a job reads several columns at once.

use std::ops::Range;
use std::sync::{Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use object_store::aws::AmazonS3;
use object_store::{GetOptions, GetRange, ObjectStore};

use super::S3Object;
use super::failure::{Purpose, job_error, status_of};
use crate::mask_job::error::JobError;
use crate::mask_job::stop::JobStop;

/// Maximum number of bytes of one request.
pub(super) const WINDOW_BYTES: u64 = 4 << 20;
/// Minimum number of bytes of one request. The latency of a request is about as long as the
/// transfer of this many bytes. A request at the end of the object can be shorter.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
/// Maximum number of bytes of one read, which is a page or the indexes. The store determines the
/// length of a page or index.
const READ_BYTES_MAX: usize = 1 << 30;
/// Maximum number of windows that are kept: one for each column that is read at the same time, and
/// one for the column that is copied.
const WINDOWS_MAX: usize = 8;

/// An opened object.
pub(crate) struct S3Reader {
    object: S3Object,
    client: AmazonS3,
    stop: JobStop,
    /// The entity tag of the opened version.
    etag: String,
    length: u64,
    /// The column chunks, in order. Unset until the footer is read.
    chunks: OnceLock<Vec<Range<u64>>>,
    /// The windows. The most recently used window is the last.
    windows: Mutex<Vec<(u64, Bytes)>>,
}

impl std::fmt::Debug for S3Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("S3Reader").field(&self.object).finish()
    }
}

impl S3Reader {
    /// Opens an object by reading its end, for a job that `stop` stops.
    pub(crate) fn open(object: &S3Object, stop: &JobStop) -> Result<Self, JobError> {
        let client = object.client(None)?;
        let options = GetOptions {
            range: Some(GetRange::Suffix(WINDOW_BYTES_MIN)),
            ..GetOptions::default()
        };
        let opened = object.store.run(stop.requested(), async {
            let opened = client.get_opts(&object.key, options).await?;
            let meta = opened.meta.clone();
            let start = opened.range.start;
            Ok((meta, start, opened.bytes().await?))
        })?;
        let (meta, start, bytes) = opened.map_err(|error| match status_of(&error) {
            Some(416) => JobError::Invalid {
                name: object.to_string(),
                what: "it is empty".to_owned(),
            },
            _ => job_error(object, Purpose::Read, &error),
        })?;
        let etag = meta.e_tag.ok_or_else(|| JobError::Store {
            name: object.to_string(),
            what: "the object store states no ETag, without which a change of the object would not be noticed"
                .to_owned(),
        })?;
        let windows = Mutex::new(vec![(start, bytes)]);
        let stop = stop.clone();
        Ok(Self {
            object: object.clone(),
            client,
            stop,
            etag,
            length: meta.size,
            chunks: OnceLock::new(),
            windows,
        })
    }

    pub(crate) fn object(&self) -> &S3Object {
        &self.object
    }

    pub(crate) fn len(&self) -> u64 {
        self.length
    }

    /// Sets the column chunks, so that windows end with them.
    pub(crate) fn set_chunks(&self, mut chunks: Vec<Range<u64>>) {
        chunks.sort_unstable_by_key(|chunk| chunk.start);
        let _ = self.chunks.set(chunks);
    }

    /// Reads some bytes from a position. Returns their number, which is 0 at the end of the object.
    pub(crate) fn read_at(&self, buffer: &mut [u8], start: u64) -> Result<usize, JobError> {
        if start >= self.length || buffer.is_empty() {
            return Ok(0);
        }
        let bytes = match self.cached_bytes(start) {
            Some(bytes) => bytes,
            None => self.fetch_window(start, 1)?,
        };
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    /// Reads a range, which must be within the object.
    pub(crate) fn read_exact(&self, start: u64, length: usize) -> Result<Bytes, JobError> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        if let Some(cached) = self
            .cached_bytes(start)
            .filter(|cached| cached.len() >= length)
        {
            return Ok(Bytes::copy_from_slice(&cached[..length]));
        }
        if length as u64 <= WINDOW_BYTES {
            // A copy, since the values of a page would otherwise keep the whole window in memory.
            return Ok(Bytes::copy_from_slice(
                &self.fetch_window(start, length as u64)?[..length],
            ));
        }
        if length > READ_BYTES_MAX {
            let what = format!("a range of {length} bytes exceeds the limit of {READ_BYTES_MAX}");
            return Err(JobError::Invalid {
                name: self.object.to_string(),
                what,
            });
        }
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let from = start + bytes.len() as u64;
            let count = ((length - bytes.len()) as u64).min(WINDOW_BYTES);
            bytes.extend_from_slice(&self.fetch(from..from + count)?);
        }
        Ok(bytes.into())
    }

    /// Returns the cached bytes from a position.
    fn cached_bytes(&self, start: u64) -> Option<Bytes> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let window = windows
            .iter()
            .rposition(|(at, bytes)| *at <= start && start - at < bytes.len() as u64)?;
        let window = windows.remove(window);
        let bytes = window.1.slice((start - window.0) as usize..);
        windows.push(window);
        Some(bytes)
    }

    /// Fetches a window of at least `length` bytes from a position, and keeps it.
    fn fetch_window(&self, start: u64, length: u64) -> Result<Bytes, JobError> {
        let bytes = self.fetch(start..window_end(start, length, self.length, self.chunks.get()))?;
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= WINDOWS_MAX {
            windows.remove(0);
        }
        windows.push((start, bytes.clone()));
        Ok(bytes)
    }

    fn fetch(&self, range: Range<u64>) -> Result<Bytes, JobError> {
        let length = range.end - range.start;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: Some(self.etag.clone()),
            ..GetOptions::default()
        };
        let fetched = self.object.store.run(self.stop.requested(), async {
            let fetched = self.client.get_opts(&self.object.key, options).await?;
            let etag = fetched.meta.e_tag.clone();
            Ok((etag, fetched.bytes().await?))
        })?;
        let (etag, bytes) =
            fetched.map_err(|error| job_error(&self.object, Purpose::Read, &error))?;
        // Some stores ignore the condition.
        if etag.as_ref() != Some(&self.etag) {
            return Err(self.error("the object changed while it was read: start the job again"));
        }
        if bytes.len() as u64 != length {
            return Err(self.error("the object store sent another number of bytes than requested"));
        }
        Ok(bytes)
    }

    fn error(&self, what: &str) -> JobError {
        JobError::Store {
            name: self.object.to_string(),
            what: what.to_owned(),
        }
    }
}

/// Returns the end of the window from a position: the end of the column chunk, within the limits of
/// a window.
fn window_end(start: u64, length: u64, object: u64, chunks: Option<&Vec<Range<u64>>>) -> u64 {
    let chunk = chunks
        .and_then(|chunks| chunks[..chunks.partition_point(|chunk| chunk.start <= start)].last());
    let chunk_end = chunk.map_or(start, |chunk| chunk.end);
    let length = chunk_end
        .saturating_sub(start)
        .clamp(WINDOW_BYTES_MIN, WINDOW_BYTES)
        .max(length);
    start.saturating_add(length).min(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_with_its_chunk() {
        const MIB: u64 = 1 << 20;
        let chunks = vec![4..MIB, MIB..10 * MIB, 12 * MIB..13 * MIB];
        for (start, length, end) in [
            (4, 1, MIB),
            (4, 100, MIB),
            (MIB - 1, 1, MIB - 1 + WINDOW_BYTES_MIN),
            (MIB, 1, 5 * MIB),
            (2 * MIB, 5 * MIB, 7 * MIB),
            (8 * MIB, 1, 10 * MIB),
            // Between chunks, and behind the last.
            (11 * MIB, 1, 11 * MIB + WINDOW_BYTES_MIN),
            (14 * MIB - 1, 1, 14 * MIB),
        ] {
            assert_eq!(
                window_end(start, length, 14 * MIB, Some(&chunks)),
                end,
                "{start}, {length}"
            );
        }
        assert_eq!(window_end(5, 1, 14 * MIB, None), 5 + WINDOW_BYTES_MIN);
        assert_eq!(window_end(0, 1, 14 * MIB, Some(&chunks)), WINDOW_BYTES_MIN);
    }
}
