//! Control state in one JSON file, `{format, generation, records}`, for engines that store no
//! tokens and no objects (`state.file`).
//!
//! The file is replaced atomically: written to a temporary file, synced, renamed, and its folder
//! synced. A writer that dies at any step leaves either the old or the new state. Only the owner
//! can read the file.
//!
//! Several processes can read and write: a lock file in the same folder serializes the writers. An
//! engine opens the file read-only and polls for changes, which commands such as `sealwire apps` or
//! a deployment make. Records that are JSON are stored as JSON, so that people can read them. Other
//! records are stored as base64.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use rustix::fs::OFlags;
use tokio::sync::Notify;

use sealwire_store::{
    Changes, Commit, ControlStore, Instance, InstanceTable, Snapshot, StoreError,
};

pub(crate) mod content;

/// Maximum size of the file, in bytes: enough for 100,000 apps.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Maximum time that a writer waits for the lock.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// Age of a file from which its content is cached. File systems round timestamps, to 2 seconds at
/// worst. A later change therefore gets another timestamp.
const TIMES_SETTLE: Duration = Duration::from_secs(2);

/// A control store in one file. Instances of the engine in other processes are not listed.
#[derive(Debug)]
pub struct FileStore {
    file: Arc<FileState>,
    change_signal: Notify,
    instances: InstanceTable,
}

#[derive(Debug)]
struct FileState {
    path: PathBuf,
    /// True if this store can change the file.
    writes: bool,
    /// Parsed content with the stamp of its file, cached when the file's timestamps are reliable.
    cached: Mutex<Option<(FileStamp, Arc<Snapshot>)>>,
    #[cfg(test)]
    steps: crashes::Steps,
}

/// File metadata that changes when the file is replaced or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStore {
    /// Opens a file for reading and writing. Creates the folder if it does not exist. The first
    /// change creates the file. Blocks on the file system.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let folder = folder_of(path);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(io_error(folder))?;
        let store = Self::new(path, true);
        store.file.read_file().map(|_| store)
    }

    /// Opens a file read-only. Every change fails with [`StoreError::ReadOnly`]. Blocks on the file
    /// system.
    ///
    /// # Errors
    /// [`StoreError::Io`], including a missing file, or [`StoreError::Damaged`].
    pub fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let store = Self::new(path, false);
        store.file.read_file().map(|_| store)
    }

    fn new(path: &Path, writes: bool) -> Self {
        let file = FileState {
            path: path.to_owned(),
            writes,
            cached: Mutex::default(),
            #[cfg(test)]
            steps: crashes::Steps::default(),
        };

        Self {
            file: Arc::new(file),
            change_signal: Notify::new(),
            instances: InstanceTable::default(),
        }
    }

    /// Applies a change to the whole state under the writers' lock.
    async fn run_change(
        &self,
        change: impl FnOnce(&str, &mut Snapshot) -> Result<Commit, StoreError> + Send + 'static,
    ) -> Result<Commit, StoreError> {
        let commit = self
            .run_blocking(move |file| file.apply_change(change))
            .await?;
        if commit != Commit::Moved {
            self.change_signal.notify_one();
        }
        Ok(commit)
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FileState) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        tokio::task::spawn_blocking(move || work(&file))
            .await
            .map_err(|_| {
                StoreError::Unavailable(
                    "the work on the state file ended early; see the log".into(),
                )
            })?
    }
}

impl FileState {
    /// Reads the whole file. A missing file counts as empty if this store may create it.
    fn read_file(&self) -> Result<Arc<Snapshot>, StoreError> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.writes => {
                return Ok(Arc::default());
            }
            opened => opened.map_err(io_error(&self.path))?,
        };

        let metadata = file.metadata().map_err(io_error(&self.path))?;
        let mut text = String::new();
        let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        match read {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(self.damaged("not UTF-8".into()));
            }
            read => read.map_err(io_error(&self.path))?,
        };

        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(self.damaged(format!("longer than {FILE_BYTES_MAX} bytes")));
        }

        let found = Arc::new(content::read(&text).map_err(|what| self.damaged(what))?);
        *self.cached() = has_settled(&metadata)
            .then(|| (FileStamp::from_metadata(&metadata), Arc::clone(&found)));
        Ok(found)
    }

    /// Returns the file's content. Reads the file unless content with its present stamp is cached.
    fn current(&self) -> Result<Arc<Snapshot>, StoreError> {
        let cached = self.cached().clone();
        match cached {
            Some((stamp, found)) if self.read_stamp().is_ok_and(|present| present == stamp) => {
                Ok(found)
            }
            _ => self.read_file(),
        }
    }

    fn read_stamp(&self) -> std::io::Result<FileStamp> {
        fs::metadata(&self.path).map(|metadata| FileStamp::from_metadata(&metadata))
    }

    fn apply_change(
        &self,
        change: impl FnOnce(&str, &mut Snapshot) -> Result<Commit, StoreError>,
    ) -> Result<Commit, StoreError> {
        if !self.writes {
            return Err(StoreError::ReadOnly);
        }
        let _lock = self.acquire_lock()?;
        let mut state = Arc::unwrap_or_clone(self.read_file()?);
        let commit = change(&self.place(), &mut state)?;
        if commit != Commit::Moved {
            self.replace_file(content::write(&state).as_bytes())?;
        }
        Ok(commit)
    }

    /// Takes the cross-process lock for a change. Closing the file releases the lock.
    fn acquire_lock(&self) -> Result<File, StoreError> {
        let path = self.path.with_added_extension("lock");
        let mut options = OpenOptions::new();
        options
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path).map_err(io_error(&path))?;
        let started = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_WAIT_MAX => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Unavailable(format!(
                        "another process has locked {} for {} seconds; retry when its change has ended",
                        path.display(),
                        LOCK_WAIT_MAX.as_secs()
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(io_error(&path)(error)),
            }
        }
    }

    /// Replaces the file atomically and durably.
    fn replace_file(&self, bytes: &[u8]) -> Result<(), StoreError> {
        let temporary = self.path.with_added_extension("new");
        self.write_new(&temporary, bytes)
            .map_err(io_error(&temporary))?;
        self.before_step()
            .and_then(|()| fs::rename(&temporary, &self.path))
            .map_err(io_error(&self.path))?;
        let folder = folder_of(&self.path);
        self.before_step()
            .and_then(|()| File::open(folder)?.sync_all())
            .map_err(io_error(folder))?;
        self.before_step().map_err(io_error(&self.path))
    }

    /// Writes a new file with `bytes` and syncs it.
    fn write_new(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        self.before_step()?;
        // Removes a leftover of a killed writer, or a link that an attacker created to redirect
        // the write.
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => (),
        }

        let mut file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .mode(0o600)
            .open(path)?;

        self.before_step()?;
        file.write_all(bytes)?;

        self.before_step()?;
        file.sync_all()
    }

    /// Called before each step of a write and after the last one. Tests make a step fail here, as
    /// if the process had ended.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests count the steps of each store")]
    fn before_step(&self) -> std::io::Result<()> {
        Ok(())
    }
    #[cfg(test)]
    fn before_step(&self) -> std::io::Result<()> {
        self.steps.take_one()
    }

    fn cached(&self) -> MutexGuard<'_, Option<(FileStamp, Arc<Snapshot>)>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn damaged(&self, what: String) -> StoreError {
        StoreError::Damaged {
            place: self.place(),
            what,
        }
    }
}

impl FileStamp {
    fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// Returns true if any later change would be visible in the file's timestamps, which have a limited
/// resolution.
fn has_settled(metadata: &Metadata) -> bool {
    let Ok(modified) = metadata.modified() else {
        return false;
    };
    SystemTime::now()
        .duration_since(modified)
        .is_ok_and(|since| since > TIMES_SETTLE)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

#[async_trait]
impl ControlStore for FileStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        Ok(self.run_blocking(FileState::current).await?.generation)
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(self.run_blocking(FileState::read_file).await?.loaded())
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        Ok(self.run_blocking(FileState::current).await?.one(key))
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        Ok(self
            .run_blocking(FileState::current)
            .await?
            .page(after, limit))
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        let changes = changes.clone();
        self.run_change(move |place, state| state.apply(place, base, &changes))
            .await
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        let new = state.clone();
        self.run_change(move |place, state| state.become_state(place, base, &new))
            .await
    }

    /// Reports only changes made by this store. Callers detect changes of other processes by
    /// polling the generation.
    async fn changed(&self) {
        self.change_signal.notified().await;
    }

    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.instances.beat(instance);
        Ok(())
    }

    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        Ok(self.instances.lease(name, holder, time))
    }

    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.instances.leave(id);
        Ok(())
    }

    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        Ok(self.instances.instances(age_max))
    }
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod tests;
