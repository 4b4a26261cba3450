//! Control state in one JSON file, `{format, generation, records}`, for engines that do not store
//! tokens.
//!
//! The file is replaced atomically: written to a temporary file, synced, renamed, and its folder
//! synced. A writer that dies at any step leaves either the old or the new state. Only the owner
//! can read the file. Several processes can read and write; a lock file in the same folder
//! serializes writers. An engine opens the file read-only, and polls for changes made by the
//! deployment. Records that are JSON are stored as JSON, so that people can read them; other
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

/// Maximum file size. Sufficient for a hundred thousand apps.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// Maximum time that a writer waits for the lock.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
/// Minimum age of the last change. At this age, a further change is visible in the file's
/// timestamps.
const TIMES_SETTLE: Duration = Duration::from_secs(2);

/// The file store; see the module documentation. Instances of other processes are not visible.
#[derive(Debug)]
pub struct FileStore {
    file: Arc<FileState>,
    moved: Notify,
    beats: InstanceTable,
}

#[derive(Debug)]
struct FileState {
    path: PathBuf,
    writes: bool,
    /// Parsed content with the stamp of its file, cached when the file's timestamps are reliable.
    seen: Mutex<Option<(FileStamp, Arc<Snapshot>)>>,
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
    /// Opens a file for reading and writing. The folder is created if absent. The first change
    /// creates the file. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let folder = folder_of(path);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(io(folder))?;
        let store = Self::over(path, true);
        store.file.read().map(|_| store)
    }

    /// Opens a file read-only, so every change is rejected. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`], including a missing file, or [`StoreError::Damaged`].
    pub fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let store = Self::over(path, false);
        store.file.read().map(|_| store)
    }

    fn over(path: &Path, writes: bool) -> Self {
        let file = FileState {
            path: path.to_owned(),
            writes,
            seen: Mutex::default(),
            #[cfg(test)]
            steps: crashes::Steps::default(),
        };
        Self {
            file: Arc::new(file),
            moved: Notify::new(),
            beats: InstanceTable::default(),
        }
    }

    /// Applies a change to the whole state under the writers' lock.
    async fn change(
        &self,
        change: impl FnOnce(&str, &mut Snapshot) -> Result<Commit, StoreError> + Send + 'static,
    ) -> Result<Commit, StoreError> {
        let commit = self.blocking(move |file| file.change(change)).await?;
        if commit != Commit::Moved {
            self.moved.notify_one();
        }
        Ok(commit)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&FileState) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let file = Arc::clone(&self.file);
        let failed = |_| StoreError::Unavailable("the work on the file ended early".into());
        tokio::task::spawn_blocking(move || work(&file))
            .await
            .map_err(failed)?
    }
}

impl FileState {
    /// Reads the whole file. A missing file counts as empty if this store may create it.
    fn read(&self) -> Result<Arc<Snapshot>, StoreError> {
        let open = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.writes => {
                return Ok(Arc::default());
            }
            opened => opened.map_err(io(&self.path))?,
        };
        let looks = open.metadata().map_err(io(&self.path))?;
        let mut text = String::new();
        let read = open.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        match read {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                return Err(self.damaged("not text".into()));
            }
            read => read.map_err(io(&self.path))?,
        };
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(self.damaged(format!("longer than {FILE_BYTES_MAX} bytes")));
        }
        let found = Arc::new(content::read(&text).map_err(|what| self.damaged(what))?);
        *self.seen() = settled(&looks).then(|| (FileStamp::of(&looks), Arc::clone(&found)));
        Ok(found)
    }

    /// Returns the file's content. Reads the file only if its metadata has changed.
    fn look(&self) -> Result<Arc<Snapshot>, StoreError> {
        let seen = self.seen().clone();
        match seen {
            Some((stamp, found)) if self.looks().is_ok_and(|looks| looks == stamp) => Ok(found),
            _ => self.read(),
        }
    }

    fn looks(&self) -> std::io::Result<FileStamp> {
        fs::metadata(&self.path).map(|looks| FileStamp::of(&looks))
    }

    fn change(
        &self,
        change: impl FnOnce(&str, &mut Snapshot) -> Result<Commit, StoreError>,
    ) -> Result<Commit, StoreError> {
        if !self.writes {
            return Err(StoreError::ReadOnly);
        }
        let _lock = self.lock()?;
        let mut state = Arc::unwrap_or_clone(self.read()?);
        let commit = change(&self.place(), &mut state)?;
        if commit != Commit::Moved {
            self.replace(content::write(&state).as_bytes())?;
        }
        Ok(commit)
    }

    /// Takes the cross-process lock for a change. Closing the file releases the lock.
    fn lock(&self) -> Result<File, StoreError> {
        let path = self.path.with_added_extension("lock");
        let mut options = OpenOptions::new();
        options
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let file = options.open(&path).map_err(io(&path))?;
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_WAIT_MAX => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(StoreError::Unavailable(format!(
                        "another process holds {}",
                        path.display()
                    )));
                }
                Err(TryLockError::Error(error)) => return Err(io(&path)(error)),
            }
        }
    }

    /// Replaces the file atomically and durably.
    fn replace(&self, bytes: &[u8]) -> Result<(), StoreError> {
        let aside = self.path.with_added_extension("new");
        let write_aside = || {
            self.step()?;
            // Removes a leftover of a killed writer, or a link that an attacker created to redirect
            // the write.
            match fs::remove_file(&aside) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => (),
            }
            let mut file = OpenOptions::new()
                .create_new(true)
                .write(true)
                .mode(0o600)
                .open(&aside)?;
            self.step()?;
            file.write_all(bytes)?;
            self.step()?;
            file.sync_all()
        };
        write_aside().map_err(io(&aside))?;
        self.step()
            .and_then(|()| fs::rename(&aside, &self.path))
            .map_err(io(&self.path))?;
        let folder = folder_of(&self.path);
        self.step()
            .and_then(|()| File::open(folder)?.sync_all())
            .map_err(io(folder))?;
        self.step().map_err(io(&self.path))
    }

    /// Runs before every step of a write and after the last step. Tests use this hook to end the
    /// process.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests count the steps of each store")]
    fn step(&self) -> std::io::Result<()> {
        Ok(())
    }
    #[cfg(test)]
    fn step(&self) -> std::io::Result<()> {
        self.steps.take_one()
    }

    fn seen(&self) -> MutexGuard<'_, Option<(FileStamp, Arc<Snapshot>)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn of(looks: &Metadata) -> Self {
        Self {
            device: looks.dev(),
            inode: looks.ino(),
            bytes: looks.size(),
            modified: (looks.mtime(), looks.mtime_nsec()),
            changed: (looks.ctime(), looks.ctime_nsec()),
        }
    }
}

/// Returns true if any later change would be visible in the file's timestamps, which have a limited
/// resolution.
fn settled(looks: &Metadata) -> bool {
    let Ok(modified) = looks.modified() else {
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

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

#[async_trait]
impl ControlStore for FileStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        Ok(self.blocking(FileState::look).await?.generation)
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        Ok(self.blocking(FileState::read).await?.loaded())
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        Ok(self.blocking(FileState::look).await?.one(key))
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        Ok(self.blocking(FileState::look).await?.page(after, limit))
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        let changes = changes.clone();
        self.change(move |place, state| state.apply(place, base, &changes))
            .await
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        let new = state.clone();
        self.change(move |place, state| state.become_state(place, base, &new))
            .await
    }

    /// Reports only changes made by this store. Callers detect changes of other processes by
    /// polling the generation.
    async fn changed(&self) {
        self.moved.notified().await;
    }

    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.beats.beat(instance);
        Ok(())
    }

    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        Ok(self.beats.lease(name, holder, time))
    }

    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.beats.leave(id);
        Ok(())
    }

    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        Ok(self.beats.instances(age_max))
    }
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod tests;
