//! Control state, token maps and object collections in PostgreSQL: for production, and for several
//! engines that share one state.
//!
//! Every connection is dedicated to one purpose: writing tokens, reading tokens, control state,
//! slow or rare operations, or notifications. Each connection has a task that reconnects it. Every
//! request ends within one timeout. The server has the timeout as its statement limit, and an
//! unresponsive connection is replaced.
//!
//! The SQL also suits distributed databases that speak the PostgreSQL dialect. Keys start with the
//! app. Sequences and foreign keys are not used. The only explicit lock is the lock of the
//! migration. [`distribute()`] spreads the tables over the workers of Citus.

mod batches;
mod bulk_import;
mod citus;
mod conflict_plan;
mod control;
mod distribute;
mod inspect;
mod listen;
mod migrate;
mod objects;
mod options;
mod reseal;
mod rows;
mod session;
mod sqlstate;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod token_subjects;
mod tokens;
mod transaction_guard;
mod worker;
mod write;
mod writers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::Row;

pub use distribute::{Distribution, distribute};
pub use inspect::{CitusCluster, CitusWorker, DatabaseInspection, inspect_database};
pub use options::{PostgresOptions, PostgresTls};

use options::Settings;
use sealwire_store::StoreError;
use session::Params;
use sqlstate::SqlFault;
use worker::{DedicatedConnection, Query};
use writers::Writers;

/// Control state, token maps and object collections in the schema `sealwire` of a PostgreSQL
/// database. A clone shares the connections.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

struct Shared {
    writers: Writers,
    readers: Vec<DedicatedConnection>,
    /// Connection for control state, which engines depend on. Separate, so that a walk through a
    /// map cannot delay control state.
    control: DedicatedConnection,
    slow: DedicatedConnection,
    /// Serializes walks through maps, which use the `slow` connection.
    walks: Arc<Semaphore>,
    /// Limits changes of existing rows, so that most write connections serve new rows.
    changes: Arc<Semaphore>,
    next_reader: AtomicUsize,
    control_changes: Mutex<watch::Receiver<()>>,
    listening: AbortHandle,
    timeout: Duration,
    new_row_predictor: write::NewRowPredictor,
    /// True if Citus distributes the tables by app. Requests are then split by app.
    is_distributed: bool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl PostgresStore {
    /// Connects, migrates an older schema to this program's version, and opens the connections.
    /// Needs a tokio runtime. The connection tasks live as long as the store.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for an invalid option; [`StoreError::Newer`].
    /// [`StoreError::Unavailable`] immediately if retrying is useless, as for a wrong password, and
    /// otherwise after the timeout.
    pub async fn connect(options: PostgresOptions) -> Result<Self, StoreError> {
        let settings = Arc::new(Settings::new(options)?);
        let found = migrate::migrate_schema(&settings, true).await?;
        let is_distributed = *settings.is_distributed.get_or_init(|| found);
        let limit = settings.options.timeout;
        let (change_sender, control_changes) = watch::channel(());
        let (ready_sender, mut ready) = watch::channel(false);
        let listening = tokio::spawn(listen::listen_for_changes(
            Arc::clone(&settings),
            change_sender,
            ready_sender,
        ))
        .abort_handle();
        let shared = Shared {
            writers: Writers::new(DedicatedConnection::start_many(
                &settings,
                settings.options.writers,
            )),
            readers: DedicatedConnection::start_many(&settings, settings.options.readers),
            control: DedicatedConnection::start(&settings),
            slow: DedicatedConnection::start(&settings),
            walks: Arc::new(Semaphore::new(1)),
            changes: Arc::new(Semaphore::new(1)),
            next_reader: AtomicUsize::new(0),
            control_changes: Mutex::new(control_changes),
            listening,
            timeout: limit,
            new_row_predictor: write::NewRowPredictor::default(),
            is_distributed,
        };

        // Waits for the listener, so that a change right after this call is not missed. A database
        // without notifications is accepted.
        let _ = timeout(limit, ready.wait_for(|ready| *ready)).await;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// Returns true if at least one read connection and one write connection are up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.writers.is_up() && self.shared.readers.iter().any(DedicatedConnection::is_up)
    }

    /// Returns the number of connections that are up and down. The notification connection is not
    /// counted.
    #[must_use]
    pub fn connection_counts(&self) -> (usize, usize) {
        let shared = &self.shared;
        let connections = shared
            .writers
            .connections()
            .chain(&shared.readers)
            .chain([&shared.control, &shared.slow]);
        let (up, all) = connections.fold((0, 0), |(up, all), connection| {
            (up + usize::from(connection.is_up()), all + 1)
        });
        (up, all - up)
    }

    /// Picks a read connection round-robin, preferring connections that are up.
    fn next_reader(&self) -> &DedicatedConnection {
        let readers = &self.shared.readers;
        let turn = self.shared.next_reader.fetch_add(1, Ordering::Relaxed);
        let turns =
            (0..readers.len()).map(|step| &readers[turn.wrapping_add(step) % readers.len()]);
        turns
            .clone()
            .find(|connection| connection.is_up())
            .unwrap_or(&readers[turn % readers.len()])
    }

    /// Runs `work` under a permit of `permits`. Once started, the work continues to its end and keeps
    /// the permit, even if the request is cancelled. The reason is that started statements continue
    /// in the database, and later statements on the connection would wait for them.
    async fn run_with_permit<
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    >(
        &self,
        permits: &Arc<Semaphore>,
        work: impl FnOnce(Self, Instant) -> F,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.shared.timeout;
        let work = work(self.clone(), deadline);
        let turn = timeout_at(deadline, Arc::clone(permits).acquire_owned()).await;
        let turn = turn.map_err(|_| {
            StoreError::Unavailable(
                "the wait for earlier requests of this kind took too long".into(),
            )
        })?;
        let done = tokio::spawn(async move {
            let done = work.await;
            drop(turn);
            done
        });
        done.await.unwrap_or_else(|_| {
            Err(StoreError::Unavailable(
                "a task of the store ended early".into(),
            ))
        })
    }

    /// Runs one statement as its own transaction. The statement is retried after a broken
    /// connection only if it is `repeatable`.
    async fn query(
        &self,
        connection: &DedicatedConnection,
        repeatable: bool,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        run_statement(connection.start_query(repeatable), sql, params).await
    }

    /// Like `query`, with a given deadline.
    async fn query_by(
        &self,
        deadline: Instant,
        connection: &DedicatedConnection,
        repeatable: bool,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        run_statement(connection.start_query_by(deadline, repeatable), sql, params).await
    }
}

/// Runs the attempts of a request that consists of one statement.
async fn run_statement(
    mut query: Query<'_>,
    sql: &'static str,
    params: Params<'_>,
) -> Result<Vec<Row>, StoreError> {
    loop {
        let session = query.next_session().await?;
        match query
            .run_until_deadline(&session, session.query(sql, params))
            .await
        {
            Ok(rows) => return Ok(rows),
            Err(fault) => query
                .prepare_retry(session, fault)
                .await
                .map_err(SqlFault::into_error)?,
        }
    }
}
