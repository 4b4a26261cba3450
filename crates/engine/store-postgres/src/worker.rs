//! A dedicated connection with a task that opens it, drives it, and replaces it when it breaks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::options::Settings;
use super::session::Session;
use super::sqlstate::SqlFault;
use sealwire_store::{StoreError, part_of};

/// Pauses between attempts to connect. The maximum bounds the delay after a database comes back.
const PAUSE_MIN: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of retries of a request after conflicts with other transactions.
const CONFLICT_RETRIES_MAX: u32 = 10;

/// A dedicated connection, or the attempts to open it. Dropping this value closes the connection.
pub(super) struct DedicatedConnection {
    state: watch::Receiver<WorkerState>,
    task: AbortHandle,
    timeout: Duration,
}

#[derive(Clone)]
enum WorkerState {
    Up(Arc<Session>),
    /// The time of the disconnect, and the reason.
    Down(Instant, Arc<str>),
}

impl DedicatedConnection {
    pub(super) fn start(settings: &Arc<Settings>) -> Self {
        let (sender, state) = watch::channel(WorkerState::Down(
            Instant::now(),
            "not connected yet".into(),
        ));
        let task = tokio::spawn(run_connection(Arc::clone(settings), sender)).abort_handle();
        Self {
            state,
            task,
            timeout: settings.options.timeout,
        }
    }

    /// Starts `count` connections.
    pub(super) fn start_many(settings: &Arc<Settings>, count: usize) -> Vec<Self> {
        (0..count).map(|_| Self::start(settings)).collect()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), WorkerState::Up(session) if !session.is_abandoned())
    }

    /// Starts a request on this connection, with the default timeout.
    pub(super) fn start_query(&self, repeatable: bool) -> Query<'_> {
        self.start_query_by(Instant::now() + self.timeout, repeatable)
    }

    /// Starts a request on this connection, with a deadline.
    pub(super) fn start_query_by(&self, deadline: Instant, repeatable: bool) -> Query<'_> {
        Query {
            connection: self,
            deadline,
            repeatable,
            session: None,
            stale: false,
            conflict_retries: 0,
            lost: false,
        }
    }

    /// Returns the connection, unless it is `broken`. Fails immediately if the database has been
    /// away for longer than the request timeout.
    async fn wait_for_session(
        &self,
        broken: Option<&Arc<Session>>,
        deadline: Instant,
    ) -> Result<Arc<Session>, StoreError> {
        let mut state = self.state.clone();
        loop {
            let (until, why) = match &*state.borrow_and_update() {
                WorkerState::Up(session)
                    if !session.is_abandoned()
                        && broken.is_none_or(|broken| !Arc::ptr_eq(session, broken)) =>
                {
                    return Ok(Arc::clone(session));
                }
                WorkerState::Up(_) => (deadline, Arc::from("the connection broke")),
                WorkerState::Down(since, why) => {
                    (deadline.min(*since + self.timeout), Arc::clone(why))
                }
            };

            match timeout_at(until, state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(StoreError::Unavailable("the store is closed".into())),
                Err(_) => return Err(StoreError::Unavailable(why.to_string())),
            }
        }
    }
}

impl Drop for DedicatedConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The attempts of one request, within one deadline.
pub(super) struct Query<'a> {
    connection: &'a DedicatedConnection,
    deadline: Instant,
    repeatable: bool,
    session: Option<Arc<Session>>,
    stale: bool,
    conflict_retries: u32,
    /// True if an attempt had no response, and so may have taken effect.
    pub(super) lost: bool,
}

impl Query<'_> {
    /// Returns the connection for the next attempt.
    pub(super) async fn next_session(&mut self) -> Result<Arc<Session>, StoreError> {
        let session = self
            .connection
            .wait_for_session(self.session.take().as_ref(), self.deadline)
            .await?;
        Ok(session)
    }

    /// Awaits an attempt until the deadline of the request. After the deadline the connection is
    /// abandoned, because the running statement would delay later requests. The server's timeout
    /// ends the statement.
    pub(super) async fn run_until_deadline<T>(
        &self,
        session: &Session,
        attempt: impl Future<Output = Result<T, SqlFault>>,
    ) -> Result<T, SqlFault> {
        match timeout_at(self.deadline, attempt).await {
            Ok(outcome) => outcome,
            Err(_) => {
                session.abandon();
                Err(SqlFault::Lost(format!(
                    "no answer in {} ms",
                    self.connection.timeout.as_millis()
                )))
            }
        }
    }

    /// Returns `Ok` if the request should be retried after this fault.
    ///
    /// # Errors
    /// The fault itself if the request must not be retried.
    pub(super) async fn prepare_retry(
        &mut self,
        session: Arc<Session>,
        fault: SqlFault,
    ) -> Result<(), SqlFault> {
        match &fault {
            SqlFault::Lost(_) => {
                session.abandon();
                self.session = Some(session);
                self.lost = true;
                if !self.repeatable || Instant::now() >= self.deadline {
                    return Err(fault);
                }
            }
            SqlFault::Stale(_) if !self.stale => {
                session.clear_prepared();
                self.stale = true;
            }
            SqlFault::Conflict(_) if self.conflict_retries < CONFLICT_RETRIES_MAX => {
                self.conflict_retries += 1;
                sleep(part_of(Duration::from_millis(2) * self.conflict_retries)).await;
            }
            _ => return Err(fault),
        }

        Ok(())
    }
}

/// Connects, drives the connection until it ends or is abandoned, and starts again, forever.
async fn run_connection(settings: Arc<Settings>, state: watch::Sender<WorkerState>) {
    let mut target = 0;
    let mut failures = 0;
    loop {
        match Session::open(&settings, &mut target).await {
            Ok((session, link)) => {
                let session = Arc::new(session);
                let since = Instant::now();
                state.send_replace(WorkerState::Up(Arc::clone(&session)));
                let why = tokio::select! {
                    ended = link => ended.err().map_or("the server closed the connection".into(), |error| super::sqlstate::describe(&error)),
                    () = session.wait_until_abandoned() => "the connection was abandoned after a timeout or an error".into(),
                };
                tracing::info!(%why, "connection to PostgreSQL lost");
                state.send_replace(WorkerState::Down(Instant::now(), why.into()));
                failures = if since.elapsed() > PAUSE_MAX {
                    0
                } else {
                    failures + 1
                };
            }
            Err(fault) => {
                let why: Arc<str> = match fault.error {
                    StoreError::Unavailable(what) => what.into(),
                    other => other.to_string().into(),
                };
                if failures == 0 {
                    tracing::warn!(%why, "no connection to PostgreSQL");
                }
                state.send_modify(|state| {
                    if let WorkerState::Down(_, reason) = state {
                        *reason = why;
                    }
                });
                failures += 1;
            }
        }

        sleep(reconnect_pause(failures)).await;
    }
}

/// Returns the pause after a number of failures. The pause doubles up to a maximum. Half of it is
/// random, so that engines do not reconnect all at once.
pub(super) fn reconnect_pause(failures: u32) -> Duration {
    let whole = PAUSE_MIN
        .saturating_mul(1 << failures.min(10))
        .min(PAUSE_MAX);
    whole / 2 + part_of(whole / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound() {
        for (failures, ms) in [(0, 25), (1, 50), (3, 200), (6, 1_000), (u32::MAX, 1_000)] {
            let whole = Duration::from_millis(ms);
            let pauses: Vec<Duration> = (0..100).map(|_| reconnect_pause(failures)).collect();
            assert!(
                pauses.iter().all(|it| (whole / 2..=whole).contains(it)),
                "{failures}: {pauses:?}"
            );
            assert!(
                pauses.iter().any(|it| *it != pauses[0]),
                "some of it is chance"
            );
        }
    }
}
