//! Control state, token maps and object collections in a folder of a single process. The data is in
//! a log-structured database (fjall) with a journal.
//!
//! Acknowledged changes are synced to disk. The changes of many requests share one sync (see
//! `threads`). The changes of each request are stored completely or not at all, even if the process
//! crashes. After a crash, an incomplete end of the journal is dropped, because those changes were
//! never acknowledged.
//!
//! Memory: [`Options::cache_bytes`], plus four times [`Options::write_buffer_bytes`] for each of
//! seven keyspaces, plus about 16 MiB for a write batch. Four of the keyspaces are for objects, and
//! one indexes tokens by data subject; an unused keyspace needs almost no memory. Up to 1,024
//! queued requests need additional memory.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use self::database::Database;
use self::threads::{ReadJob, ThreadMessage, Threads, WriteJob};
use self::walk::{Stored, count_by, list_page, next_map, scan_page, walk_map};
use self::write_batch::WriteBatch;
use sealwire_store::{
    Changes, Commit, ControlStore, Filter, Fingerprint, FoundRow, Group, Instance, InstanceTable,
    MapId, Page, Reseal, Row, Snapshot, StoreError, SubjectId, Sweep, TokenId, TokenStore, Written,
    fit_page,
};

mod database;
mod keys;
mod manifest;
mod maps;
pub mod object_row;
mod objects;
pub mod row;
mod threads;
mod walk;
mod write_batch;

/// Resource settings of an [`EmbeddedStore`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of file content cached in memory. Default 64 MiB.
    pub cache_bytes: u64,
    /// Bytes written to a keyspace before they are flushed from memory to a file. Fixed when the
    /// folder is first used. Default 16 MiB.
    pub write_buffer_bytes: u64,
    /// Number of reader threads. Default 2.
    pub readers: NonZeroUsize,
    /// Maximum duration of a request. Default 5 s.
    pub timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            write_buffer_bytes: 16 << 20,
            readers: NonZeroUsize::MIN.saturating_add(1),
            timeout: Duration::from_secs(5),
        }
    }
}

/// The embedded store; see the module documentation. A cancelled request can still take effect.
pub struct EmbeddedStore {
    folder: PathBuf,
    timeout: Duration,
    threads: Threads,
    /// The generation that `changed` reported last.
    reported_generation: Mutex<watch::Receiver<u64>>,
    instances: InstanceTable,
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens the store in `folder`, or creates a store that only its owner can read. Blocks. After
    /// a crash, also reads the journals, which takes at most about a second.
    ///
    /// # Errors
    /// [`StoreError::InUse`] while another store has the folder open, in this process or another;
    /// [`StoreError::Io`]; [`StoreError::Damaged`].
    pub fn open(folder: &Path, options: &Options) -> Result<Self, StoreError> {
        let threads = Threads::start(folder, options)?;
        let reported_generation = Mutex::new(threads.shared.generation.subscribe());
        Ok(Self {
            folder: folder.to_owned(),
            timeout: options.timeout,
            threads,
            reported_generation,
            instances: InstanceTable::default(),
        })
    }

    /// Finishes all earlier requests, closes the database and releases the folder. Later requests
    /// fail as unavailable. Dropping the store does the same, asynchronously.
    pub async fn close(&self) {
        self.threads.shut_down().await;
    }

    /// Runs `edit` in the writer's next batch. Returns its result once the changes are durable.
    async fn run_write<T: Send + 'static>(
        &self,
        edit: impl FnOnce(&mut WriteBatch<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job: WriteJob = Box::new(move |batch| {
            let result = batch.map(edit).map_err(str::to_owned);
            Box::new(move |outcome| {
                let result =
                    result.and_then(|result| outcome.map(|()| result).map_err(str::to_owned));
                // The receiver was dropped if the request was cancelled.
                let _ = sender.send(result);
            })
        });
        self.with_timeout(async {
            self.threads
                .writer
                .send(ThreadMessage::Job(job))
                .await
                .map_err(|_| closed_error())?;
            receiver
                .await
                .map_err(|_| self.dropped_job_error(&self.threads.writer))?
                .map_err(StoreError::Unavailable)
        })
        .await
    }

    /// Runs `read` on a thread that can block on the disk.
    async fn run_read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job: ReadJob = Box::new(move |database| {
            if sender.is_closed() {
                return; // The request was cancelled, and other requests wait.
            }
            let result = database
                .map_err(|why| StoreError::Unavailable(why.to_owned()))
                .and_then(read);
            let _ = sender.send(result);
        });
        self.with_timeout(async {
            self.threads
                .readers
                .send(ThreadMessage::Job(job))
                .await
                .map_err(|_| closed_error())?;
            receiver
                .await
                .map_err(|_| self.dropped_job_error(&self.threads.readers))?
        })
        .await
    }

    /// Returns the error for a request that a thread dropped, because the thread ended or panicked.
    fn dropped_job_error<J>(&self, thread: &mpsc::Sender<ThreadMessage<J>>) -> StoreError {
        if thread.is_closed() {
            closed_error()
        } else {
            threads::panic_error(&self.folder)
        }
    }

    async fn with_timeout<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        tokio::time::timeout(self.timeout, request)
            .await
            .unwrap_or_else(|_| {
                Err(StoreError::Unavailable(format!(
                    "no answer within {} ms",
                    self.timeout.as_millis()
                )))
            })
    }
}

/// Returns the results of groups whose batch failed.
fn failed_groups<T>(count: usize, error: StoreError) -> Vec<Result<T, StoreError>> {
    let why = error.to_string();
    let rest = (1..count)
        .map(|_| Err(StoreError::Unavailable(why.clone())))
        .collect::<Vec<_>>();
    (count > 0)
        .then_some(Err(error))
        .into_iter()
        .chain(rest)
        .collect()
}

fn closed_error() -> StoreError {
    StoreError::Unavailable("the database is closed".to_owned())
}

#[async_trait]
impl ControlStore for EmbeddedStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        Ok(*self.threads.shared.generation.borrow())
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        self.run_read(|database| {
            let at = database.snapshot();
            Ok(Snapshot {
                generation: database.generation(&at)?,
                records: database.records_together(&at)?,
            })
        })
        .await
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        let key = key.to_owned();
        self.run_read(move |database| {
            let at = database.snapshot();
            Ok((database.generation(&at)?, database.find_record(&at, &key)?))
        })
        .await
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        let after = after.map(str::to_owned);
        self.run_read(move |database| {
            let at = database.snapshot();
            let records = database.records_single(&at, after.as_deref(), limit)?;
            Ok(Snapshot {
                generation: database.generation(&at)?,
                records,
            })
        })
        .await
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        let changes = changes.clone();
        self.run_write(move |batch| {
            batch.edit(|edit| {
                if edit.generation() != base {
                    return Ok(Commit::Moved);
                }
                edit.change_records(changes).map(Commit::Done)
            })
        })
        .await?
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        let state = state.clone();
        self.run_write(move |batch| {
            batch.edit(|edit| {
                if edit.generation() != base {
                    return Ok(Commit::Moved);
                }
                edit.replace_records(state).map(Commit::Done)
            })
        })
        .await?
    }

    async fn changed(&self) {
        let mut receiver = self
            .reported_generation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if receiver.changed().await.is_err() {
            // The store owns the sender, so it was closed. A closed store never changes again.
            std::future::pending::<()>().await;
        }

        *self
            .reported_generation
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = receiver;
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

#[async_trait]
impl TokenStore for EmbeddedStore {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        let count = groups.len();
        self.run_write(move |batch: &mut WriteBatch<'_>| {
            groups
                .into_iter()
                .map(|group| batch.edit(|edit| maps::write_group(edit, now, group)))
                .collect()
        })
        .await
        .unwrap_or_else(|error| failed_groups(count, error))
    }

    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        let keys = keys.to_vec();
        self.run_read(move |database| maps::get_rows(database, now, &keys))
            .await
    }

    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        let keys = keys.to_vec();
        self.run_read(move |database| maps::find_rows(database, now, &keys))
            .await
    }

    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        let ids = ids.to_vec();
        self.run_write(move |batch| batch.edit(|edit| maps::delete_rows(edit, map, &ids)))
            .await?
    }

    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        let ids = ids.to_vec();
        self.run_write(move |batch| {
            batch.edit(|edit| maps::expire_rows(edit, now, map, &ids, expires))
        })
        .await?
    }

    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        let filter = filter.clone();
        self.run_read(move |database| {
            list_page(
                database,
                &database.snapshot(),
                map,
                after,
                limit,
                move |row: &Row| filter.lets_through(row),
            )
        })
        .await
    }

    async fn archive(
        &self,
        now: u64,
        map: MapId,
        expired_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.sweep_page::<Row>(
            now,
            map,
            Sweep::Archive { expired_before },
            after,
            limit,
            dry_run,
        )
        .await
    }

    async fn prune(
        &self,
        map: MapId,
        archived_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.sweep_page::<Row>(
            0,
            map,
            Sweep::Prune { archived_before },
            after,
            limit,
            dry_run,
        )
        .await
    }

    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError> {
        self.sweep_page::<Row>(now, map, sweep, after, limit, false)
            .await
    }

    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        self.run_read(move |database| count_by(database, map, after, limit, Row::key_number))
            .await
    }

    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        let page = self.run_read(move |database| {
            list_page(
                database,
                &database.snapshot(),
                map,
                after,
                limit,
                move |row: &Row| row.key_number() != number,
            )
        });
        Ok(fit_page(page.await?, Row::bytes, |row| row.id))
    }

    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError> {
        let rows = rows.to_vec();
        self.run_write(move |batch| batch.edit(|edit| maps::reseal_rows(edit, map, &rows)))
            .await?
    }

    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.run_read(move |database| maps::subject_page(database, (app, subject), after, limit))
            .await
    }

    /// Finds rows on a reader thread, and removes the rows that must still be erased on the writer
    /// thread.
    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        let page = self.subject_rows(app, subject, after, limit).await?;
        let rows: Vec<_> = page.iter().map(|(map, row)| (*map, row.id)).collect();
        let next = rows.last().copied();
        let erased = self.run_write(move |batch| {
            batch.edit(|edit| maps::erase_rows(edit, subject, version, &rows))
        });
        Ok(Page {
            found: erased.await??,
            next,
        })
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.run_read(move |database| next_map::<Row>(database, after))
            .await
    }

    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.run_read(move |database| scan_page(database, after, limit))
            .await
    }

    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        let rows = rows.to_vec();
        self.run_write(move |batch| batch.edit(|edit| maps::import_rows(edit, rows)))
            .await?
    }
}

impl EmbeddedStore {
    /// Finds due rows on a reader thread, and changes the rows that are still due on the writer
    /// thread.
    async fn sweep_page<R: Stored>(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<R::Id>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64, R::Id>, StoreError> {
        let page = self
            .run_read(move |database: &Database| {
                walk_map(
                    database,
                    &database.snapshot(),
                    map,
                    after,
                    (limit, limit),
                    move |row: &R| row.is_due(sweep, now),
                )
            })
            .await?;
        let next = page.next;
        let ids = page.found.iter().map(R::id).collect::<Vec<_>>();
        if dry_run || ids.is_empty() {
            return Ok(Page {
                found: ids.len() as u64,
                next,
            });
        }

        let swept = self.run_write(move |batch| {
            batch.edit(|edit| {
                let mut count = 0;
                for id in ids {
                    let Some(row) = R::load_from(edit, map, id)? else {
                        continue;
                    };
                    if row.is_due(sweep, now) {
                        row.sweep(edit, now, map, sweep);
                        count += 1;
                    }
                }
                Ok(count)
            })
        });
        Ok(Page {
            found: swept.await??,
            next,
        })
    }
}

#[cfg(test)]
mod object_tests;
#[cfg(test)]
mod tests;
