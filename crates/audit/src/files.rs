//! The folder: which files are segments, and how they are made.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::chain::SEQ_MAX;

/// Held while an engine writes here.
pub(crate) const LOCK_FILE: &str = "lock";
const PREFIX: &str = "audit-";
const SUFFIX: &str = ".jsonl";
/// Digits of the first record's number in a name: names sort as records do.
const DIGITS: usize = 16;

/// A segment's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The number of its first record.
    pub(crate) first: u64,
    pub(crate) name: String,
}

impl Segment {
    pub(crate) fn from(first: u64) -> Self {
        Self { first, name: format!("{PREFIX}{first:0DIGITS$}{SUFFIX}") }
    }

    fn parse(name: &str) -> Option<Self> {
        let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
        let first = digits.parse().ok().filter(|first| (1..=SEQ_MAX).contains(first))?;
        Some(Self::from(first)).filter(|segment| segment.name == name)
    }
}

/// The segments in a folder, in order.
pub(crate) fn segments(folder: &Path) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        found.extend(entry?.file_name().to_str().and_then(Segment::parse));
    }
    found.sort_by_key(|segment| segment.first);
    Ok(found)
}

/// Returns the bytes of all files in a folder.
pub(crate) fn folder_bytes(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        match entry?.metadata() {
            Ok(file) => bytes += file.len(),
            // Moved away meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Returns the bytes that can still be written into a folder with a largest size.
pub(crate) fn bytes_left(folder: &Path, folder_bytes_max: Option<u64>) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(folder)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let Some(max) = folder_bytes_max else { return Ok(free) };
    Ok(free.min(max.saturating_sub(folder_bytes(folder)?)))
}

/// Makes the folder, if it is not there, for its owner alone.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// A new file for its owner alone.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
}

/// A file that is there or not, for its owner alone, to be written anywhere.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// A segment that is there, to go on with.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// Puts the folder's entries on disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A lock file is this process's as long as it is open. `None`: another has it.
pub(crate) fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Where what was torn off a segment is kept.
pub(crate) fn torn(folder: &Path, segment: &Segment) -> PathBuf {
    folder.join(format!("{}.torn", segment.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_sort_as_records_do() {
        for first in [1, 9, 10, 123_456, SEQ_MAX] {
            assert_eq!(Segment::parse(&Segment::from(first).name), Some(Segment::from(first)));
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
