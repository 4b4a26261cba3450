//! Threads of the store: one writer and a few readers, so that request threads never block on the
//! disk.
//!
//! The writer takes the queued requests, runs their changes in sequence, and commits them together.
//! Requests that arrive during a sync are in the next batch. Only this thread writes, so the rows
//! that a request has read do not change until its commit.
//!
//! After a failed write the database rejects further writes, because the journal's content is
//! uncertain. Reads continue. When the disk accepts writes again, the writer closes the database,
//! rewrites the journals and reopens the database. The rewrite is necessary because a failed sync
//! can leave data only in the page cache, and this data would otherwise count as durable. While the
//! database is closed, reads also fail, and make the writer retry.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};

use super::Options;
use super::database::{Database, Lock};
use super::write_batch::WriteBatch;
use sealwire_store::StoreError;

/// Maximum number of requests queued for a thread. Further requests wait for space in the queue.
const QUEUE_MAX: usize = 1_024;
/// Minimum time between two attempts to reopen a failed database.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Free space required to reopen, in addition to a copy of the largest journal, because the
/// database creates files when it opens.
const PROBE_BYTES: u64 = 4 << 20;
/// File extension of a journal's copy.
const COPY: &str = "copy";
/// Bytes per write of the space probe.
const PROBE_STEP: usize = 1 << 20;
/// Unflushed memtables and unmerged runs above which the writer waits for the background threads.
/// Must be below the counts at which the database would wait without a time limit.
const BACKLOG_MAX: (usize, usize) = (2, 18);

/// Receives the result of the commit: success, or the reason for the failure.
pub(super) type CommitCallback = Box<dyn FnOnce(Result<(), &str>) + Send>;
/// A job that makes changes in a batch. If the database cannot be written, the job receives the
/// reason instead of a batch.
pub(super) type WriteJob =
    Box<dyn FnOnce(Result<&mut WriteBatch<'_>, &str>) -> CommitCallback + Send>;
pub(super) type ReadJob = Box<dyn FnOnce(Result<&Database, &str>) + Send>;

/// A message to a thread.
pub(super) enum ThreadMessage<J> {
    Job(J),
    /// Ends the thread after the queued work, then notifies the sender.
    ShutDown(oneshot::Sender<()>),
}

pub(super) struct ThreadState {
    folder: PathBuf,
    options: Options,
    /// `None` while the database is closed.
    database: RwLock<Option<Database>>,
    pub(super) generation: watch::Sender<u64>,
}

impl ThreadState {
    pub(super) fn database(&self) -> RwLockReadGuard<'_, Option<Database>> {
        self.database.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the folder of the database's journals.
    fn journal_folder(&self) -> PathBuf {
        self.folder.join("database")
    }

    fn set_database(&self, database: Option<Database>) {
        *self
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner) = database;
    }

    fn open_database(&self) -> Result<(), StoreError> {
        remove_copies(&self.journal_folder());
        let database = Database::open(&self.folder, &self.options)?;
        let generation = database.generation(&database.snapshot())?;
        self.set_database(Some(database));
        self.generation
            .send_if_modified(|present| std::mem::replace(present, generation) != generation);
        Ok(())
    }
}

/// Handles to the threads.
pub(super) struct Threads {
    pub(super) shared: Arc<ThreadState>,
    pub(super) writer: mpsc::Sender<ThreadMessage<WriteJob>>,
    pub(super) readers: mpsc::Sender<ThreadMessage<ReadJob>>,
}

impl Threads {
    /// Takes the lock, opens the database on the writer thread, and starts the reader threads.
    /// Blocks.
    pub(super) fn start(folder: &Path, options: &Options) -> Result<Self, StoreError> {
        let lock = Lock::acquire(folder)?;
        let shared = Arc::new(ThreadState {
            folder: folder.to_owned(),
            options: options.clone(),
            database: RwLock::new(None),
            generation: watch::Sender::new(0),
        });
        let (open_sender, open_result) = std::sync::mpsc::channel();
        let (writer, jobs) = mpsc::channel(QUEUE_MAX);
        let state = Writer {
            shared: shared.clone(),
            jobs,
            failure: None,
            _lock: lock,
        };

        spawn_thread(folder, "store-write", move || {
            match state.shared.open_database() {
                Ok(()) => {
                    let _ = open_sender.send(Ok(()));
                    state.run_writer();
                }
                Err(error) => {
                    // Releases the folder before the error is reported.
                    drop(state);
                    let _ = open_sender.send(Err(error));
                }
            }
        })?;
        // The channel closes without a result if the database panics on its files.
        open_result
            .recv()
            .unwrap_or_else(|_| Err(panic_error(folder)))?;

        let (readers, jobs) = mpsc::channel(QUEUE_MAX);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..options.readers.get() {
            let shared = shared.clone();
            let jobs = jobs.clone();
            let writer = writer.downgrade();
            spawn_thread(folder, "store-read", move || {
                run_reader(&shared, &jobs, &writer)
            })?;
        }

        Ok(Self {
            shared,
            writer,
            readers,
        })
    }

    /// Finishes all earlier requests, closes the database and releases its lock.
    pub(super) async fn shut_down(&self) {
        // Ends the readers first, because the writer closes the database that they read.
        for _ in 0..self.shared.options.readers.get() {
            let (done, wait) = oneshot::channel();
            if self
                .readers
                .send(ThreadMessage::ShutDown(done))
                .await
                .is_ok()
            {
                let _ = wait.await;
            }
        }

        let (done, wait) = oneshot::channel();
        if self
            .writer
            .send(ThreadMessage::ShutDown(done))
            .await
            .is_ok()
        {
            let _ = wait.await;
        }
    }
}

fn spawn_thread(
    folder: &Path,
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<(), StoreError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map(drop).map_err(|source| StoreError::Io {
        path: folder.to_owned(),
        source,
    })
}

/// Returns the error for a panic within the database.
pub(super) fn panic_error(folder: &Path) -> StoreError {
    let what = "the database panicked on the files of the store".to_owned();
    StoreError::Damaged {
        place: folder.display().to_string(),
        what,
    }
}

fn run_reader(
    shared: &ThreadState,
    jobs: &Mutex<mpsc::Receiver<ThreadMessage<ReadJob>>>,
    writer: &mpsc::WeakSender<ThreadMessage<WriteJob>>,
) {
    loop {
        let message = jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv();
        match message {
            Some(ThreadMessage::Job(job)) => {
                if catch_unwind(AssertUnwindSafe(|| {
                    run_read_job(shared.database().as_ref(), job, writer);
                }))
                .is_err()
                {
                    tracing::error!(folder = %shared.folder.display(), "the token database panicked on a read");
                }
            }
            Some(ThreadMessage::ShutDown(done)) => {
                let _ = done.send(());
                return;
            }
            None => return,
        }
    }
}

fn run_read_job(
    database: Option<&Database>,
    job: ReadJob,
    writer: &mpsc::WeakSender<ThreadMessage<WriteJob>>,
) {
    if database.is_none() {
        wake_writer(writer);
    }
    job(database.ok_or("the database is closed because a write failed"));
}

/// Wakes the writer with an empty job, so that the writer tries to reopen the database. If the
/// queue is full, the writer is awake anyway.
fn wake_writer(writer: &mpsc::WeakSender<ThreadMessage<WriteJob>>) {
    if let Some(writer) = writer.upgrade() {
        let _ = writer.try_send(ThreadMessage::Job(Box::new(|_| Box::new(|_| ()))));
    }
}

/// The reason why writes are impossible, and the time of the next attempt.
struct WriteFailure {
    why: String,
    try_at: Instant,
}

impl WriteFailure {
    fn new(error: &StoreError) -> Self {
        let why = match error {
            StoreError::Unavailable(why) => why.clone(),
            other => other.to_string(),
        };
        Self {
            why,
            try_at: Instant::now() + REOPEN_PAUSE,
        }
    }
}

struct Writer {
    shared: Arc<ThreadState>,
    jobs: mpsc::Receiver<ThreadMessage<WriteJob>>,
    failure: Option<WriteFailure>,
    _lock: Lock,
}

impl Writer {
    fn run_writer(mut self) {
        let mut done = None;
        while done.is_none() {
            match self.jobs.blocking_recv() {
                Some(ThreadMessage::Job(job)) => {
                    let batch = catch_unwind(AssertUnwindSafe(|| self.run_batch(job)));
                    done = batch.unwrap_or_else(|_| {
                        tracing::error!(folder = %self.shared.folder.display(), "the token database panicked on a write");
                        None
                    });
                }
                Some(ThreadMessage::ShutDown(end)) => done = Some(end),
                None => break,
            }
        }

        self.shared.set_database(None);
        drop(self);
        if let Some(done) = done {
            let _ = done.send(());
        }
    }

    /// Runs a write batch: `first` and the jobs queued after it. If one of the messages is
    /// [`ThreadMessage::ShutDown`], returns its sender.
    fn run_batch(&mut self, first: WriteJob) -> Option<oneshot::Sender<()>> {
        self.reopen();
        let shared = self.shared.clone();
        let database = shared.database();
        let Some(database) = database.as_ref() else {
            let why = self
                .failure
                .as_ref()
                .map_or("the database is closed", |failure| &failure.why);
            first(Err(why))(Err(why));
            return None;
        };

        let mut batch = WriteBatch::new(database, *shared.generation.borrow());
        let mut callbacks = vec![first(Ok(&mut batch))];
        let mut end = None;
        while end.is_none() && batch.has_room() {
            match self.jobs.try_recv() {
                Ok(ThreadMessage::Job(job)) => callbacks.push(job(Ok(&mut batch))),
                Ok(ThreadMessage::ShutDown(done)) => end = Some(done),
                Err(_) => break,
            }
        }

        let outcome = self.commit_batch(database, batch);
        for callback in callbacks {
            callback(outcome.as_ref().copied().map_err(String::as_str));
        }

        end
    }

    fn commit_batch(&mut self, database: &Database, batch: WriteBatch<'_>) -> Result<(), String> {
        if batch.is_empty() {
            return Ok(());
        }

        if let Some(failure) = &self.failure {
            return Err(failure.why.clone());
        }

        let committed = match self.wait_for_room(database) {
            Ok(true) => batch.commit(),
            Ok(false) => return Err("the disk is too slow for the writes of this store".to_owned()),
            Err(error) => Err(error),
        };

        match committed {
            Ok(generation) => {
                self.shared.generation.send_if_modified(|present| {
                    std::mem::replace(present, generation) != generation
                });
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "a write to the token database failed; writes are rejected until the disk works again");
                Err(self.failure.insert(WriteFailure::new(&error)).why.clone())
            }
        }
    }

    /// Waits, in bounded time, until background flushes and merges have caught up. Returns true if
    /// the work has caught up. Returns an error if the background work has failed, because it then
    /// never catches up.
    fn wait_for_room(&self, database: &Database) -> Result<bool, StoreError> {
        let deadline = Instant::now() + self.shared.options.timeout;
        loop {
            let (memtables, runs) = database.backlog();
            if memtables <= BACKLOG_MAX.0 && runs <= BACKLOG_MAX.1 {
                return Ok(true);
            }
            database.check_writable()?;
            if Instant::now() >= deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Closes a failed database and reopens it when the disk accepts writes.
    fn reopen(&mut self) {
        // The failure remains until the database is open again, even if a step fails.
        let Some(failure) = self
            .failure
            .as_mut()
            .filter(|failure| Instant::now() >= failure.try_at)
        else {
            return;
        };
        failure.try_at = Instant::now() + REOPEN_PAUSE;
        let shared = &self.shared;
        let reopened = check_space(&shared.folder, &shared.journal_folder())
            .map_err(|_| failure.why.clone())
            .and_then(|()| {
                shared.set_database(None);
                rewrite_journals(&shared.journal_folder()).map_err(|error| error.to_string())?;
                shared.open_database().map_err(|error| error.to_string())
            });
        match reopened {
            Ok(()) => {
                self.failure = None;
                tracing::info!("the token database accepts writes again");
            }
            Err(why) => {
                self.failure = Some(WriteFailure {
                    why,
                    try_at: Instant::now() + REOPEN_PAUSE,
                })
            }
        }
    }
}

/// Checks that the disk has space for the reopening: a copy of one journal at a time, and the files
/// that the database creates.
fn check_space(folder: &Path, journals: &Path) -> io::Result<()> {
    let mut largest = 0;
    for path in files_with_extension(journals, "jnl")? {
        largest = largest.max(fs::metadata(path)?.len());
    }

    let path = folder.join("probe");
    let mut file = File::create(&path)?;
    let step = vec![0x5a; PROBE_STEP];
    let mut left = largest.saturating_add(PROBE_BYTES);
    let mut written = Ok(());
    while left > 0 && written.is_ok() {
        let some = usize::try_from(left).unwrap_or(PROBE_STEP).min(PROBE_STEP);
        written = file.write_all(&step[..some]);
        left -= some as u64;
    }

    let written = written.and_then(|()| file.sync_all());
    fs::remove_file(&path)?;
    written
}

/// Returns the files with an extension.
fn files_with_extension(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    paths
        .filter(|path| {
            path.as_ref().map_or(true, |path: &PathBuf| {
                path.extension().is_some_and(|it| it == extension)
            })
        })
        .collect()
}

/// Replaces every journal with a synced copy.
fn rewrite_journals(journals: &Path) -> io::Result<()> {
    for path in files_with_extension(journals, "jnl")? {
        let copy = path.with_extension(COPY);
        let copied = fs::copy(&path, &copy).and_then(|_| File::open(&copy)?.sync_all());
        copied
            .and_then(|()| fs::rename(&copy, &path))
            .inspect_err(|_| remove_copies(journals))?;
    }
    File::open(journals)?.sync_all()
}

/// Removes leftover copies of journals.
fn remove_copies(journals: &Path) {
    // A remaining copy only takes space, so errors are ignored.
    for path in files_with_extension(journals, COPY).unwrap_or_default() {
        let _ = fs::remove_file(path);
    }
}
