//! Control state and token maps in a folder of one process: a log-structured database (fjall) with a journal.
//!
//! What is acknowledged is synced to disk. Changes of any number of calls share one sync (see `threads`), and each call's
//! are there whole or not at all, whenever the process ends. A part of the journal's end that a crash tore is dropped:
//! it was never acknowledged.
//!
//! Memory: [`Options::cache_bytes`], four times [`Options::write_buffer_bytes`] for each of two keyspaces, about
//! 16 MiB for a turn's changes, and what 1,024 calls that wait hold.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot, watch};

use self::database::Database;
use self::threads::{Order, ReadJob, Threads, WriteJob};
use self::write_batch::Turn;
use crate::StoreError;
use crate::control::{Beats, Commit, ControlStore, Instance, Snapshot};
use crate::tokens::{Filter, Fingerprint, Group, MapId, Page, Row, Sweep, TokenId, TokenStore, Written};

mod database;
mod manifest;
mod maps;
pub mod row;
mod threads;

mod write_batch;

/// How an [`EmbeddedStore`] uses the machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the files that stay in memory. Default 64 MiB.
    pub cache_bytes: u64,
    /// Bytes that are written to a keyspace before they leave memory for a file. Decided when the folder is first used.
    /// Default 16 MiB.
    pub write_buffer_bytes: u64,
    /// Threads that read. Default 2.
    pub readers: NonZeroUsize,
    /// How long a call may take. Default 5 s.
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

/// See the module. A call that is dropped midway may happen all the same.
pub struct EmbeddedStore {
    folder: PathBuf,
    timeout: Duration,
    threads: Threads,
    /// What `changed` has told of.
    told: Mutex<watch::Receiver<u64>>,
    beats: Beats,
}

impl std::fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedStore").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl EmbeddedStore {
    /// Opens the store in `folder`, or makes one there, readable by its owner only. Blocks, after a crash until the
    /// journals are read again (about a second at most).
    ///
    /// # Errors
    /// [`StoreError::InUse`] while another store has it open, in this process or another; [`StoreError::Io`];
    /// [`StoreError::Damaged`].
    pub fn open(folder: &Path, options: &Options) -> Result<Self, StoreError> {
        let threads = Threads::start(folder, options)?;
        let told = Mutex::new(threads.shared.generation.subscribe());
        Ok(Self { folder: folder.to_owned(), timeout: options.timeout, threads, told, beats: Beats::default() })
    }

    /// Finishes what was asked before, closes the database and gives up the folder; calls after it are refused as
    /// unavailable. A store that is dropped does the same, a moment later.
    pub async fn close(&self) {
        self.threads.end().await;
    }

    /// Lets `edit` make changes in the writer's next turn; its answer comes back once they are durable.
    async fn change<T: Send + 'static>(
        &self,
        edit: impl FnOnce(&mut Turn<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job: WriteJob = Box::new(move |turn| {
            let made = turn.map(edit).map_err(str::to_owned);
            Box::new(move |outcome| {
                let answer = made.and_then(|made| outcome.map(|()| made).map_err(str::to_owned));
                // Whoever has stopped waiting needs none.
                let _ = reply.send(answer);
            })
        });
        self.bounded(async {
            self.threads.writer.send(Order::Work(job)).await.map_err(|_| closed())?;
            answer.await.map_err(|_| self.ended(&self.threads.writer))?.map_err(StoreError::Unavailable)
        })
        .await
    }

    /// Lets `read` look at the database on a thread that may wait for the disk.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Database) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let job: ReadJob = Box::new(move |database| {
            if reply.is_closed() {
                return; // Nobody waits any more, and others do.
            }
            let answer = database.map_err(|why| StoreError::Unavailable(why.to_owned())).and_then(read);
            let _ = reply.send(answer);
        });
        self.bounded(async {
            self.threads.readers.send(Order::Work(job)).await.map_err(|_| closed())?;
            answer.await.map_err(|_| self.ended(&self.threads.readers))?
        })
        .await
    }

    /// Why a thread dropped what it was given: it ended before it came to that, or panicked over it.
    fn ended<J>(&self, thread: &mpsc::Sender<Order<J>>) -> StoreError {
        if thread.is_closed() { closed() } else { threads::damaged(&self.folder) }
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let late = |_| Err(StoreError::Unavailable(format!("no answer within {} ms", self.timeout.as_millis())));
        tokio::time::timeout(self.timeout, call).await.unwrap_or_else(late)
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("it is closed".to_owned())
}

#[async_trait]
impl ControlStore for EmbeddedStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        Ok(*self.threads.shared.generation.borrow())
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        self.read(|database| {
            let at = database.snapshot();
            Ok(Snapshot { generation: database.generation(&at)?, records: database.records_together(&at)? })
        })
        .await
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        let key = key.to_owned();
        self.read(move |database| {
            let at = database.snapshot();
            Ok((database.generation(&at)?, database.record(&at, &key)?))
        })
        .await
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        let after = after.map(str::to_owned);
        self.read(move |database| {
            let at = database.snapshot();
            let records = database.records_single(&at, after.as_deref(), limit)?;
            Ok(Snapshot { generation: database.generation(&at)?, records })
        })
        .await
    }

    async fn commit(&self, base: u64, key: &str, record: Option<&[u8]>) -> Result<Commit, StoreError> {
        let (key, record) = (key.to_owned(), record.map(<[u8]>::to_vec));
        self.change(move |turn| {
            turn.edit(|edit| {
                if edit.generation() != base {
                    return Ok(Commit::Moved);
                }
                edit.change_record(&key, record.as_deref()).map(Commit::Done)
            })
        })
        .await?
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        let state = state.clone();
        self.change(move |turn| {
            turn.edit(|edit| {
                if edit.generation() != base {
                    return Ok(Commit::Moved);
                }
                edit.replace_records(state).map(Commit::Done)
            })
        })
        .await?
    }

    async fn changed(&self) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if told.changed().await.is_err() {
            // The store owns the sender; a store that is gone changes no more.
            std::future::pending::<()>().await;
        }
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = told;
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

#[async_trait]
impl TokenStore for EmbeddedStore {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        let count = groups.len();
        let write = move |turn: &mut Turn<'_>| {
            groups.into_iter().map(|group| turn.edit(|edit| maps::write(edit, now, group))).collect()
        };
        self.change(write).await.unwrap_or_else(|error| {
            let why = error.to_string();
            let rest = (1..count).map(|_| Err(StoreError::Unavailable(why.clone()))).collect::<Vec<_>>();
            (count > 0).then_some(Err(error)).into_iter().chain(rest).collect()
        })
    }

    async fn get(&self, now: u64, keys: &[(MapId, TokenId)]) -> Result<Vec<Option<Row>>, StoreError> {
        let keys = keys.to_vec();
        self.read(move |database| maps::get(database, now, &keys)).await
    }

    async fn find(&self, now: u64, keys: &[(MapId, Fingerprint)]) -> Result<Vec<Option<Row>>, StoreError> {
        let keys = keys.to_vec();
        self.read(move |database| maps::find(database, now, &keys)).await
    }

    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        let ids = ids.to_vec();
        self.change(move |turn| turn.edit(|edit| maps::delete(edit, map, &ids))).await?
    }

    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        expires: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        let ids = ids.to_vec();
        self.change(move |turn| turn.edit(|edit| maps::expire(edit, now, map, &ids, expires))).await?
    }

    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        let filter = filter.clone();
        self.read(move |database| maps::list(database, map, &filter, after, limit)).await
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
        self.sweep_page(now, map, Sweep::Archive { expired_before }, after, limit, dry_run).await
    }

    async fn prune(
        &self,
        map: MapId,
        archived_before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.sweep_page(0, map, Sweep::Prune { archived_before }, after, limit, dry_run).await
    }

    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError> {
        self.sweep_page(now, map, sweep, after, limit, false).await
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.read(move |database| maps::next_map(database, after)).await
    }

    async fn scan(&self, after: Option<(MapId, TokenId)>, limit: usize) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.read(move |database| maps::scan(database, after, limit)).await
    }

    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        let rows = rows.to_vec();
        self.change(move |turn| turn.edit(|edit| maps::put(edit, rows))).await?
    }
}

impl EmbeddedStore {
    /// Finds due rows on a reading thread, and changes those that are still due on the writing thread.
    async fn sweep_page(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        let due = move |row: &Row| sweep.takes(now, row);
        let page = self.read(move |database| maps::walk(database, map, after, (limit, limit), due)).await?;
        let (next, ids) = (page.next, page.found.into_iter().map(|row| row.id).collect::<Vec<_>>());
        if dry_run || ids.is_empty() {
            return Ok(Page { found: ids.len() as u64, next });
        }
        let swept = self.change(move |turn| {
            turn.edit(|edit| {
                let mut count = 0;
                for id in ids {
                    let Some(row) = edit.row(map, id)?.filter(due) else { continue };
                    match sweep {
                        Sweep::Archive { .. } => maps::archive(edit, now, map, &row),
                        Sweep::Prune { .. } | Sweep::Erase => edit.remove(map, &row),
                    }
                    count += 1;
                }
                Ok(count)
            })
        });
        Ok(Page { found: swept.await??, next })
    }
}

#[cfg(test)]
mod tests;
