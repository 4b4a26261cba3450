//! Segment file names, and helpers to create, open and lock files in the audit folder.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::chain::SEQ_MAX;

/// Lock file held while an engine writes to the folder.
pub(crate) const LOCK_FILE: &str = "lock";
const PREFIX: &str = "audit-";
const SUFFIX: &str = ".jsonl";
/// Number of digits in a file name. Zero-padded record numbers make names sort in record order.
const DIGITS: usize = 16;

/// The file of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Number of the first record in the segment.
    pub(crate) first: u64,
    pub(crate) name: String,
}

impl Segment {
    pub(crate) fn from(first: u64) -> Self {
        Self {
            first,
            name: format!("{PREFIX}{first:0DIGITS$}{SUFFIX}"),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        let first = digits
            .parse()
            .ok()
            .filter(|first| (1..=SEQ_MAX).contains(first))?;
        Some(Self::from(first)).filter(|segment| segment.name == name)
    }
}

/// Lists the segments in a folder, ordered by their first record.
pub(crate) fn segments(folder: &Path) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        found.extend(entry?.file_name().to_str().and_then(Segment::parse));
    }
    found.sort_by_key(|segment| segment.first);
    Ok(found)
}

/// Returns the total size of all files in a folder, in bytes.
pub(crate) fn folder_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        match entry?.metadata() {
            Ok(file) => bytes += file.len(),
            // Another process moved the file in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Returns the bytes that can still be written to a folder, limited by the disk and by
/// `folder_bytes_max`.
pub(crate) fn bytes_left(folder: &Path, folder_bytes_max: Option<u64>) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let Some(max) = folder_bytes_max else {
        return Ok(free);
    };
    Ok(free.min(max.saturating_sub(folder_bytes(folder)?)))
}

/// Creates the folder with access for its owner only, if it does not exist.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Creates a new file for appending, with access for its owner only.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Opens a file for reading and writing. Creates the file with access for its owner only, if it
/// does not exist.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Opens an existing segment for appending.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// Flushes the folder's directory entries to disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// An exclusive lock between processes.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Drop for Lock {
    /// Unlocks explicitly, because a forked child can hold a copy of the file until its exec.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Takes a lock. Returns `None` if another process holds the lock.
pub(crate) fn lock(path: &Path) -> io::Result<Option<Lock>> {
    let file = open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(Lock { file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Returns the path of the file that keeps bytes torn off a segment.
pub(crate) fn torn(folder: &Path, segment: &Segment) -> PathBuf {
    folder.join(format!("{}.torn", segment.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_lock_is_free_although_a_child_holds_a_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(LOCK_FILE);
        let held = lock(&path).unwrap().unwrap();
        let copy = held.file.try_clone().unwrap();
        assert!(lock(&path).unwrap().is_none());
        drop(held);
        assert!(lock(&path).unwrap().is_some());
        drop(copy);
    }

    #[test]
    fn names_are_read_as_they_are_written_and_sort_as_records_do() {
        for first in [1, 9, 10, 123_456, SEQ_MAX] {
            assert_eq!(
                Segment::parse(&Segment::from(first).name),
                Some(Segment::from(first))
            );
        }
        assert!(Segment::from(9).name < Segment::from(10).name);
        for other in [
            "audit-1.jsonl",
            "audit-0000000000000001.jsonl.torn",
            "audit-000000000000000x.jsonl",
            "head.json",
            "",
            "audit-0000000000000000.jsonl",
            "audit-10000000000000000.jsonl",
        ] {
            assert_eq!(Segment::parse(other), None, "{other}");
        }
    }
}
