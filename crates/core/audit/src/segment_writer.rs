//! Writes the segments and the checkpoint, one process at a time. Also recovers a trail after a
//! shutdown or crash of its engine.
//!
//! Records that are appended together are written together or not at all, because a failed write is
//! undone. This module starts no threads; [`Trail`](crate::Trail) has the writer thread.

use std::fs::File;
use std::io::{self, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::chain::{Checkpoint, Link};
use crate::checkpoint::CHECKPOINT_FILE;
use crate::digest::Digest;
use crate::files::{self, Segment};
use crate::json;
use crate::key::{AuditKey, same};
use crate::note::NoteError;
use crate::record::begin;
use crate::segment::{Header, Lines};
use crate::statement::{ARCHIVED_FILE, Archived};
use crate::timestamp::Timestamp;
use crate::verify::TRIES_MAX;

/// Capacity in bytes that the buffer keeps after a large group.
const BUFFER_BYTES_KEPT: usize = 256 << 10;

/// Largest size of the checkpoint file.
const HEAD_BYTES_MAX: u64 = 1_024;

/// Location and segment limits of an audit log.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder, created if it does not exist. Only one engine can use it.
    pub folder: PathBuf,
    /// Size in bytes at which a segment ends. The write that reaches this size is the last of the
    /// segment.
    pub segment_bytes: u64,
    /// Age at which a segment ends, before its next write.
    pub segment_age: Duration,
    /// Largest total size of the folder's files. Further writes fail as on a full disk. `None`:
    /// limited only by the disk.
    pub folder_bytes_max: Option<u64>,
    /// If true, records count as written after `fdatasync`; if false, after `write`.
    pub sync: bool,
    /// Name of this run of the engine.
    pub instance: String,
}

/// The reason why an audit log cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// Another process writes to the folder.
    #[error("{}: another engine writes its audit log here; give each engine a separate folder", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A file operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The random source failed.
    #[error("the random source failed")]
    Random,
}

/// The condition of an audit log when it was opened. Recorded at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundSegment {
    /// The folder did not contain an audit log.
    New,
    /// Unchanged since the last run.
    Clean,
    /// The log has records after the checkpoint, because the engine was killed between the two
    /// writes.
    Ahead,
    /// The record that the checkpoint names is missing.
    Cut,
    /// The checkpoint is missing.
    HeadMissing,
    /// The checkpoint is damaged or forged.
    HeadDamaged,
    /// The checkpoint is authenticated with another key.
    OtherKey,
    /// The last segment fails verification.
    Broken,
    /// Segments that were not archived are missing.
    SegmentsMissing,
}

impl FoundSegment {
    /// Returns the name used in records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Clean => "clean",
            Self::Ahead => "ahead",
            Self::Cut => "cut",
            Self::HeadMissing => "head_missing",
            Self::HeadDamaged => "head_damaged",
            Self::OtherKey => "other_key",
            Self::Broken => "broken",
            Self::SegmentsMissing => "segments_missing",
        }
    }

    /// Returns true if the state can result from normal engine operation, including crashes.
    #[must_use]
    pub const fn is_sound(self) -> bool {
        matches!(self, Self::New | Self::Clean | Self::Ahead)
    }
}

/// An audit log that is open for writing.
#[derive(Debug)]
pub struct Journal {
    options: Options,
    key: AuditKey,
    chain: [u8; 16],
    link: Link,
    open: Option<OpenSegment>,
    /// The reason for the next segment, stated in its first record.
    reason: &'static str,
    /// File name of the previous segment.
    previous: Option<String>,
    head: File,
    /// Content of the checkpoint, without number and hash of the last record.
    note: Checkpoint,
    note_buffer: Vec<u8>,
    found: FoundSegment,
    torn_bytes: u64,
    out: Vec<u8>,
    /// Last known total size of the files. An archive move can have reduced the size since the
    /// folder was read.
    folder_bytes: u64,
    _lock: files::Lock,
}

#[derive(Debug)]
struct OpenSegment {
    file: File,
    segment: Segment,
    /// Number of valid bytes in the file.
    bytes: u64,
    since: Timestamp,
    /// True if the file has bytes after the valid bytes.
    excess: bool,
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { path, source }
}

impl Journal {
    /// Opens the audit log of a folder, or creates one. A line that a killed engine left incomplete
    /// is moved to a separate file.
    ///
    /// # Errors
    ///
    /// [`JournalError`]. Tampering is not an error: the log continues, and the next record reports
    /// the condition.
    pub fn open(options: Options, key: AuditKey) -> Result<Self, JournalError> {
        let folder = options.folder.clone();
        files::make_folder(&folder).map_err(io_error(&folder))?;
        let lock = files::lock(&folder.join(files::LOCK_FILE)).map_err(io_error(&folder))?;
        let lock = lock.ok_or_else(|| JournalError::InUse {
            folder: folder.clone(),
        })?;
        let written = Checkpoint::read(&folder, Some(&key));
        let named = written.as_ref().ok().map(|head| head.seq);
        let (tail, torn_bytes) = tail(&folder, &key, named).map_err(io_error(&folder))?;
        let head = files::open(&folder.join(CHECKPOINT_FILE))
            .map_err(io_error(&folder.join(CHECKPOINT_FILE)))?;
        let mut state = SegmentState::from_head_and_tail(written, tail)?;
        if state.found == FoundSegment::New && folder.join(ARCHIVED_FILE).exists() {
            state.found = FoundSegment::HeadMissing;
        } else if state.found.is_sound()
            && !is_complete(&folder, &key).map_err(io_error(&folder))?
        {
            state.found = FoundSegment::SegmentsMissing;
        }

        let note = Checkpoint {
            chain: state.chain,
            key: key.id(),
            seq: state.link.seq,
            hash: state.link.hash,
            file: String::new(),
        };

        let mut journal = Self {
            chain: state.chain,
            note,
            note_buffer: Vec::new(),
            link: state.link,
            open: None,
            reason: state.found.name(),
            previous: state.previous,
            head,
            found: state.found,
            torn_bytes,
            out: Vec::new(),
            folder_bytes: files::folder_bytes(&folder).map_err(io_error(&folder))?,
            _lock: lock,
            options,
            key,
        };

        if let Some((segment, bytes, since)) = state.goes_on {
            let path = folder.join(&segment.name);
            let file = files::append(&path).map_err(io_error(&path))?;
            journal.open = Some(OpenSegment {
                file,
                segment,
                bytes,
                since,
                excess: false,
            });
        }

        if state.found == FoundSegment::New {
            // The checkpoint is written before the first segment, so that a segment never exists
            // without a checkpoint.
            let link = journal.link;
            journal
                .write_head(&link, "")
                .map_err(io_error(&folder.join(CHECKPOINT_FILE)))?;
            journal
                .head
                .sync_all()
                .and_then(|()| files::sync_folder(&folder))
                .map_err(io_error(&folder.join(CHECKPOINT_FILE)))?;
        }

        Ok(journal)
    }

    /// Returns the condition of the audit log when it was opened.
    #[must_use]
    pub fn found(&self) -> FoundSegment {
        self.found
    }

    /// Returns the number of torn bytes that were moved to a separate file.
    #[must_use]
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// Returns the number and hash of the last record.
    #[must_use]
    pub fn last(&self) -> (u64, Digest) {
        (self.link.seq, self.link.hash)
    }

    /// Returns the file name of the current segment, if it exists.
    #[must_use]
    pub fn segment(&self) -> Option<&str> {
        self.open.as_ref().map(|open| &*open.segment.name)
    }

    /// Appends all records or none. Each record starts with the comma after its number. Returns
    /// true if a new segment was started.
    ///
    /// # Errors
    ///
    /// The system's error. The trail does not change, and the next call tries again.
    pub fn append<'a>(
        &mut self,
        at: Timestamp,
        records: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<bool> {
        self.mend()?;
        self.out.clear();
        self.out.shrink_to(BUFFER_BYTES_KEPT);
        let mut link = self.link;
        let begins = self.is_due(at);
        let mut target = match self.open.take_if(|_| !begins) {
            Some(open) => open,
            None => self.begin_segment(at, &mut link)?,
        };

        for record in records {
            link.seal(&self.key, record, &mut self.out);
        }

        match self.put(&mut target.file, &target.segment.name, link) {
            Ok(()) => {
                target.bytes += self.out.len() as u64;
                self.link = link;
                self.previous = Some(target.segment.name.clone());
                self.open = Some(target);
                Ok(begins)
            }
            Err(error) if begins => {
                // If the removal fails, the file remains without a valid record, and the next
                // attempt replaces it.
                let _ = std::fs::remove_file(self.options.folder.join(&target.segment.name));
                Err(error)
            }
            Err(error) => {
                target.excess = true;
                self.open = Some(target);
                let mended = self.mend();
                if self.options.sync && mended.is_ok() {
                    // After a failed sync the content of the file on disk is unknown.
                    self.open = None;
                    self.reason = "failure";
                }
                Err(error)
            }
        }
    }

    /// Flushes all written records to disk. Closed segments need no further sync.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn sync(&mut self) -> io::Result<()> {
        if let Some(open) = &self.open {
            open.file.sync_data()?;
        }
        self.head.sync_data()
    }

    /// Makes every later [`Journal::sync`] fail: a device cannot be flushed.
    #[cfg(test)]
    pub(crate) fn break_sync(&mut self) {
        self.head = File::open("/dev/null").expect("opens");
    }

    fn is_due(&self, at: Timestamp) -> bool {
        self.open.as_ref().is_none_or(|open| {
            open.bytes >= self.options.segment_bytes
                || at.since(open.since) >= self.options.segment_age
        })
    }

    /// Creates the next segment's file and puts its first record into the buffer.
    fn begin_segment(&mut self, at: Timestamp, link: &mut Link) -> io::Result<OpenSegment> {
        let segment = Segment::from(link.seq + 1);
        let path = self.options.folder.join(&segment.name);
        let file = match files::create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // An existing file with this number has no valid records.
                std::fs::remove_file(&path)?;
                files::create(&path)?
            }
            created => created?,
        };

        if self.options.sync {
            files::sync_folder(&self.options.folder)?;
        }

        let reason = if self.open.is_some() {
            "rotation"
        } else {
            self.reason
        };

        let mut body = Vec::with_capacity(512);
        begin(&mut body, at, "segment", &self.options.instance);
        json::count(&mut body, "format", 1);
        json::key(&mut body, "chain");
        body.push(b'"');
        json::hex(&mut body, &self.chain);
        body.push(b'"');
        json::text(&mut body, "key", &self.key.id());
        json::text(&mut body, "reason", reason);
        json::key(&mut body, "previous");
        body.extend_from_slice(b"{\"seq\":");
        json::number(&mut body, link.seq);
        json::text(&mut body, "hash", &link.hash.to_string());
        if let Some(previous) = &self.previous {
            json::text(&mut body, "file", previous);
        }

        body.push(b'}');
        link.seal(&self.key, &body, &mut self.out);
        Ok(OpenSegment {
            file,
            segment,
            bytes: 0,
            since: at,
            excess: false,
        })
    }

    /// Writes the buffer, then the checkpoint.
    fn put(&mut self, file: &mut File, name: &str, link: Link) -> io::Result<()> {
        self.make_room()?;
        file.write_all(&self.out)?;
        self.folder_bytes += self.out.len() as u64;
        if self.options.sync {
            file.sync_data()?;
        }

        self.write_head(&link, name)?;
        if self.options.sync {
            self.head.sync_data()
        } else {
            Ok(())
        }
    }

    /// Fails if writing the buffer would exceed the size limit of the folder.
    fn make_room(&mut self) -> io::Result<()> {
        let Some(max) = self.options.folder_bytes_max else {
            return Ok(());
        };

        let more = self.out.len() as u64 + HEAD_BYTES_MAX;
        if self.folder_bytes + more > max {
            self.folder_bytes = files::folder_bytes(&self.options.folder)?;
        }

        if self.folder_bytes + more <= max {
            return Ok(());
        }

        let said = "the folder has its largest size, audit.folder_mib_max: move old segments away";
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, said))
    }

    fn write_head(&mut self, link: &Link, file: &str) -> io::Result<()> {
        (self.note.seq, self.note.hash) = (link.seq, link.hash);
        file.clone_into(&mut self.note.file);
        self.note
            .write(&self.head, &self.key, &mut self.note_buffer)
    }

    /// Removes the bytes of a failed write.
    fn mend(&mut self) -> io::Result<()> {
        if let Some(open) = self.open.as_mut().filter(|open| open.excess) {
            open.file.set_len(open.bytes)?;
            open.excess = false;
        }
        Ok(())
    }
}

/// Results of reading the last segment.
struct Tail {
    segment: Segment,
    link: Link,
    header: Option<Header>,
    /// The record that the checkpoint names, if it is in this segment.
    named: Option<Link>,
    bytes: u64,
    /// True if every line follows from the previous line, under this key.
    sound: bool,
}

/// The state from which writing continues.
struct SegmentState {
    found: FoundSegment,
    chain: [u8; 16],
    link: Link,
    previous: Option<String>,
    goes_on: Option<(Segment, u64, Timestamp)>,
}

impl SegmentState {
    /// Returns the state at the start of a chain.
    fn start(found: FoundSegment, chain: [u8; 16]) -> Self {
        let link = Link {
            seq: 0,
            hash: Digest::genesis(&chain),
        };
        Self {
            found,
            chain,
            link,
            previous: None,
            goes_on: None,
        }
    }

    fn from_head_and_tail(
        head: Result<Checkpoint, NoteError>,
        tail: Option<Tail>,
    ) -> Result<Self, JournalError> {
        let found = match &head {
            Ok(_) => FoundSegment::Clean,
            Err(NoteError::Missing) => FoundSegment::HeadMissing,
            Err(NoteError::OtherKey(_)) => FoundSegment::OtherKey,
            Err(NoteError::Damaged | NoteError::Forged | NoteError::Io(_)) => {
                FoundSegment::HeadDamaged
            }
        };

        match (head, tail) {
            (Err(error), None) => {
                let mut chain = [0; 16];
                aws_lc_rs::rand::fill(&mut chain).map_err(|_| JournalError::Random)?;
                Ok(Self::start(
                    if matches!(error, NoteError::Missing) {
                        FoundSegment::New
                    } else {
                        found
                    },
                    chain,
                ))
            }
            (Ok(head), None) if head.seq == 0 => Ok(Self::start(FoundSegment::New, head.chain)),
            (Ok(head), None) => {
                let found = FoundSegment::SegmentsMissing;
                let previous = Some(head.file.clone());
                Ok(Self {
                    found,
                    chain: head.chain,
                    link: head.link(),
                    previous,
                    goes_on: None,
                })
            }
            (head, Some(tail)) => Ok(Self::behind(found, head.ok(), tail)),
        }
    }

    /// Returns the state of a folder with segments.
    fn behind(found: FoundSegment, head: Option<Checkpoint>, tail: Tail) -> Self {
        let Tail {
            segment,
            link,
            header,
            named,
            bytes,
            sound,
        } = tail;
        let chain = header
            .as_ref()
            .map(|header| header.chain)
            .or(head.as_ref().map(|head| head.chain));
        let chain = chain.unwrap_or_default();
        let previous = Some(segment.name.clone());
        let Some(head) = head else {
            return Self {
                found,
                chain,
                link,
                previous,
                goes_on: None,
            };
        };

        let found = match named {
            _ if head.seq > link.seq => FoundSegment::Cut,
            _ if !sound || head.chain != chain => FoundSegment::Broken,
            Some(named) if named != head.link() => FoundSegment::Broken,
            _ if head.seq == link.seq => FoundSegment::Clean,
            _ => FoundSegment::Ahead,
        };

        match (found, header) {
            (FoundSegment::Cut, _) => Self {
                found,
                chain: head.chain,
                link: head.link(),
                previous,
                goes_on: None,
            },
            (FoundSegment::Broken, _) | (_, None) => Self {
                found,
                chain,
                link,
                previous,
                goes_on: None,
            },
            (_, Some(header)) => Self {
                found,
                chain,
                link,
                previous,
                goes_on: Some((segment, bytes, header.time)),
            },
        }
    }
}

/// Returns true if every segment exists, from record 1 or from the record after the archived
/// records. Reads only first lines: `verify` finds missing records within segments.
fn is_complete(folder: &Path, key: &AuditKey) -> io::Result<bool> {
    for _ in 1..TRIES_MAX {
        match is_complete_now(folder, key) {
            // The file was archived in the meantime. The new statement covers it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            looked => return looked,
        }
    }
    is_complete_now(folder, key)
}

fn is_complete_now(folder: &Path, key: &AuditKey) -> io::Result<bool> {
    let segments = files::segments(folder)?;
    // Read after the list of segments, so that the statement covers segments that were moved in
    // between.
    let archived = Archived::read(folder, Some(key)).map_or(0, |archived| archived.link().seq);
    // Archived segments that were copied back do not need predecessors.
    let again = segments
        .windows(2)
        .take_while(|pair| pair[1].first <= archived + 1)
        .count();
    let mut before: Option<Segment> = None;
    for segment in segments.into_iter().skip(again) {
        // Another check reports an unreadable first line.
        if let Some(header) = Header::read(&folder.join(&segment.name))? {
            let follows = match &before {
                None => header.previous.seq <= archived,
                Some(before) => header.previous_file == before.name,
            };
            if !follows {
                return Ok(false);
            }
        }

        before = Some(segment);
    }

    Ok(true)
}

/// Reads the last segment that has a complete line, and moves incomplete lines after it to separate
/// files.
fn tail(folder: &Path, key: &AuditKey, named: Option<u64>) -> io::Result<(Option<Tail>, u64)> {
    let mut torn_bytes = 0;
    let mut segments = files::segments(folder)?;
    while let Some(segment) = segments.pop() {
        let path = folder.join(&segment.name);
        let tail = scan(&path, &segment, key, named)?;
        let bytes = std::fs::metadata(&path)?.len();
        if bytes > tail.bytes {
            torn_bytes += bytes - tail.bytes;
            set_aside(folder, &segment, tail.bytes)?;
        }
        if tail.bytes > 0 {
            return Ok((Some(tail), torn_bytes));
        }
        // The file was created, but has no complete line.
        std::fs::remove_file(&path)?;
    }

    Ok((None, torn_bytes))
}

fn scan(path: &Path, segment: &Segment, key: &AuditKey, named: Option<u64>) -> io::Result<Tail> {
    let mut lines = Lines::new(BufReader::with_capacity(1 << 20, File::open(path)?));
    let first = Link {
        seq: segment.first.saturating_sub(1),
        hash: Digest([0; 32]),
    };

    let mut tail = Tail {
        segment: segment.clone(),
        link: first,
        header: None,
        named: None,
        bytes: 0,
        sound: true,
    };

    let mut number = 0_u64;
    while let Some(raw) = lines.next()?.filter(|raw| raw.is_whole) {
        number += 1;
        tail.bytes = raw.end;
        let Some(line) = raw.line() else {
            tail.sound = false;
            continue;
        };
        if number == 1 {
            tail.header = Header::parse(&line);
            if let Some(header) = &tail.header {
                tail.link = header.previous;
                tail.sound &= header.key == key.id();
            }
        }

        let follows =
            line.seq == tail.link.seq + 1 && tail.link.hash.with(line.sealed) == line.hash;
        tail.sound &=
            tail.header.is_some() && follows && same(&key.line_mac(&line.hash), &line.mac);
        // Record numbers never decrease, even if the line claims a lower number, so that no number
        // is used twice.
        tail.link = Link {
            seq: line.seq.max(tail.link.seq),
            hash: line.hash,
        };
        if Some(line.seq) == named {
            tail.named = Some(Link {
                seq: line.seq,
                hash: line.hash,
            });
        }
    }

    Ok(tail)
}

/// Moves everything after the first `bytes` bytes of a segment to a separate file.
fn set_aside(folder: &Path, segment: &Segment, bytes: u64) -> io::Result<()> {
    use std::io::{Seek as _, SeekFrom};
    let path = folder.join(&segment.name);
    let mut file = File::options().read(true).write(true).open(&path)?;
    file.seek(SeekFrom::Start(bytes))?;
    let mut torn = files::open(&files::torn(folder, segment))?;
    torn.seek(SeekFrom::End(0))?;
    io::copy(&mut file, &mut torn)?;
    torn.write_all(b"\n")?;
    file.set_len(bytes)
}
