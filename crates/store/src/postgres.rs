//! Everything in PostgreSQL: for production, and for several engines on one state.
//!
//! Every connection is dedicated: some write tokens, some read them, one has the control state, one does what is slow or rare, one hears of changes.
//! Each has a task that connects it again when it breaks. Every call ends within one time-out, whatever the database
//! does: the server has it as its own limit for a statement, and where it says nothing at all the connection is replaced.
//! The SQL is what databases that speak PostgreSQL's language over many machines take as well: keys begin with the app,
//! no sequences, no foreign keys, no locks of our own but one to migrate.

mod bulk_import;
mod conflict_plan;
mod control;
mod inspect;
mod listen;
mod migrate;
mod options;
mod rows;
mod session;
mod sqlstate;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
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

pub use inspect::{Examined, examine};
pub use options::{PostgresOptions, PostgresTls};

use crate::StoreError;
use options::Settings;
use session::Params;
use sqlstate::Fault;
use worker::{Call, Lane};
use writers::Writers;

/// Control state and token maps in the schema `sealwire` of a PostgreSQL database. A clone shares the connections.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

struct Shared {
    writers: Writers,
    readers: Vec<Lane>,
    /// What engines agree by: no walk through a map may hold it up.
    control: Lane,
    slow: Lane,
    /// The turn of a walk through a map, on the one connection for that.
    walks: Arc<Semaphore>,
    /// The turn of a change to rows that are there: most connections that write are for new ones.
    changes: Arc<Semaphore>,
    next_reader: AtomicUsize,
    told: Mutex<watch::Receiver<()>>,
    listening: AbortHandle,
    timeout: Duration,
    news: write::News,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl PostgresStore {
    /// Connects, brings the schema forward if it is older than this program, and opens the connections. Needs a tokio
    /// runtime, on which their tasks live as long as the store.
    ///
    /// # Errors
    /// [`StoreError::Setting`] for an option that cannot stand; [`StoreError::Newer`]; [`StoreError::Unavailable`], at
    /// once where waiting is no use, as for a wrong password, and else when the time-out has passed.
    pub async fn connect(options: PostgresOptions) -> Result<Self, StoreError> {
        let settings = Arc::new(Settings::new(options)?);
        migrate::migrate(&settings).await?;
        let limit = settings.options.timeout;
        let lanes = |count| (0..count).map(|_| Lane::start(&settings)).collect();
        let (telling, told) = watch::channel(());
        let (listens, mut ready) = watch::channel(false);
        let listening = tokio::spawn(listen::listen(Arc::clone(&settings), telling, listens)).abort_handle();
        let shared = Shared {
            writers: Writers::new(lanes(settings.options.writers)),
            readers: lanes(settings.options.readers),
            control: Lane::start(&settings),
            slow: Lane::start(&settings),
            walks: Arc::new(Semaphore::new(1)),
            changes: Arc::new(Semaphore::new(1)),
            next_reader: AtomicUsize::new(0),
            told: Mutex::new(told),
            listening,
            timeout: limit,
            news: write::News::default(),
        };
        // A change that comes right after this is not missed. A database that cannot tell is no hindrance.
        let _ = timeout(limit, ready.wait_for(|ready| *ready)).await;
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether the database answers: there is a connection to read by, and one to write by.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.writers.is_up() && self.shared.readers.iter().any(Lane::is_up)
    }

    /// How many connections are there, of those that write, read and have the control state, and how many are not.
    #[must_use]
    pub fn links(&self) -> (usize, usize) {
        let shared = &self.shared;
        let lanes = shared.writers.lanes().chain(&shared.readers).chain([&shared.control, &shared.slow]);
        let (up, all) = lanes.fold((0, 0), |(up, all), lane| (up + usize::from(lane.is_up()), all + 1));
        (up, all - up)
    }

    /// A reader that is connected if there is one, in turns.
    fn reader(&self) -> &Lane {
        let (readers, turn) = (&self.shared.readers, self.shared.next_reader.fetch_add(1, Ordering::Relaxed));
        let turns = (0..readers.len()).map(|step| &readers[turn.wrapping_add(step) % readers.len()]);
        turns.clone().find(|lane| lane.is_up()).unwrap_or(&readers[turn % readers.len()])
    }

    /// Does `work`, one after another of those that take `turns`. Once it has begun it goes on to its end, and keeps its
    /// turn, whoever stops waiting: what was sent runs on in the database, before whatever comes next on its connection.
    async fn in_turn<T: Send + 'static, F: Future<Output = Result<T, StoreError>> + Send + 'static>(
        &self,
        turns: &Arc<Semaphore>,
        work: impl FnOnce(Self, Instant) -> F,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.shared.timeout;
        let work = work(self.clone(), deadline);
        let turn = timeout_at(deadline, Arc::clone(turns).acquire_owned()).await;
        let turn = turn.map_err(|_| StoreError::Unavailable("others of its kind are before it".into()))?;
        let done = tokio::spawn(async move {
            let done = work.await;
            drop(turn);
            done
        });
        done.await.unwrap_or_else(|_| Err(StoreError::Unavailable("a call failed".into())))
    }

    /// One statement, its own transaction. Only what is `repeatable` is repeated after its connection broke.
    async fn query(
        &self,
        lane: &Lane,
        repeatable: bool,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        answered(lane.call(repeatable), sql, params).await
    }

    /// One that must end by then.
    async fn query_by(
        &self,
        deadline: Instant,
        lane: &Lane,
        repeatable: bool,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        answered(lane.call_by(deadline, repeatable), sql, params).await
    }
}

/// The attempts of a call that is one statement.
async fn answered(mut call: Call<'_>, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
    loop {
        let session = call.session().await?;
        match call.bound(&session, session.query(sql, params)).await {
            Ok(rows) => return Ok(rows),
            Err(fault) => call.again(session, fault).await.map_err(Fault::into_error)?,
        }
    }
}
