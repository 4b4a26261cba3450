//! Requests to the token store, and how a job goes on with the response.
//!
//! Runs on a connection's task and never on a crypto thread. While it waits the call holds its memory and its place, and
//! no work of it is in the scheduler's books. The store answers in bounded time; the call's own deadline and its cancel
//! drop the wait: what was not sent by then is not written, what was may be. What is long or changes rows that are there
//! goes by turns, and keeps its turn until the store is done with it.

use std::sync::Arc;

use sealwire_store::{
    CallError, Coalescer, Fingerprint, Group, MapId, Row, StoreError, TokenId, TokenStore, WriteThrottle, Written,
};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::fair_semaphore::Turns;
use super::now;
use crate::cancel_token::StopReason;
use crate::error::CallFailure;
use crate::field_errors::FieldErrors;
use crate::job::{Finished, Job, Paused, TokenFields};
use crate::scheduler::AdmissionPermit;
use sealwire_telemetry::metrics::{Metrics, RefusalReason, StoreLabel, TokenLabel};

/// Most keys of one call that the store is asked for at once: what comes back is counted when it is there.
const KEYS_MAX: usize = 512;
/// Most bytes that these may bring, if all their values are as long as may be.
const KEYS_BYTES_MAX: usize = 16 << 20;
/// Most rows that are fetched whole at once, and most bytes of them; these are set aside before.
const ROWS_MAX: usize = 128;
const ROWS_BYTES_MAX: usize = 4 << 20;
/// Bytes of a row beside its value: token, tags and the overhead of sealing.
pub const ROW_BYTES: usize = 1 << 10;
/// Questions at once that walk through collections: those of `tokens.list`, `tokens.archive` and `tokens.prune`.
const SWEEPS_MAX: usize = 4;
/// Changes at once to rows that are there: of `tokens.delete` and `tokens.expire`. The store's other connections write.
const CHANGES_MAX: usize = 1;

/// The token store, as calls use it.
pub struct Tokens {
    store: Coalescer,
    throttle: WriteThrottle,
    sweeps: Turns,
    changes: Turns,
    /// Largest row, in bytes.
    row_bytes_max: usize,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokens").finish_non_exhaustive()
    }
}

/// How a call goes on.
pub enum Resumed {
    /// With its reply.
    Reply(Vec<u8>),
    /// With another walk.
    Again(Box<Job>, oneshot::Receiver<Finished>),
}

impl Tokens {
    /// Over a store, whose rows take no more than that.
    pub fn new(store: Coalescer, throttle: WriteThrottle, row_bytes_max: usize, metrics: Arc<Metrics>) -> Self {
        let (waiting, pressure) = (store.clone(), throttle.clone());
        metrics.watch_token_store(Box::new(move || (waiting.waiting(), pressure.pressure())));
        let (sweeps, changes) = (Turns::new(SWEEPS_MAX), Turns::new(CHANGES_MAX));
        Self { store, throttle, sweeps, changes, row_bytes_max, metrics }
    }

    /// Takes nothing more; returns when all that was taken is answered.
    pub async fn close(&self) {
        self.store.close().await;
    }

    /// Asks what a walk left open. Safe to drop midway.
    ///
    /// # Errors
    ///
    /// The store's error; [`CallFailure::Exhausted`]; no memory for the values.
    pub async fn resume(
        &self,
        mut paused: Box<Paused>,
        place: &mut AdmissionPermit,
        deadline: Instant,
    ) -> Result<Resumed, CallFailure> {
        let again = match &mut paused.fields {
            TokenFields::Tokenize(fields) => {
                let written = self.write(fields.group(), deadline).await?;
                self.count(&written);
                fields.answered(written)?
            }
            TokenFields::Detokenize(_) => {
                self.look_up(&mut paused, place, deadline).await?;
                true
            }
        };
        Ok(if again {
            let (work, finished) = paused.again();
            Resumed::Again(work, finished)
        } else {
            Resumed::Reply(paused.reply())
        })
    }

    /// Fetches the rows of every token, and makes room for the values.
    async fn look_up(
        &self,
        paused: &mut Paused,
        place: &mut AdmissionPermit,
        deadline: Instant,
    ) -> Result<(), CallFailure> {
        let reply_bytes_max = paused.limits().reply_bytes_max;
        let errors_max = paused.limits().errors_reported_max;
        let (order, TokenFields::Detokenize(fields)) = (&mut paused.order, &mut paused.fields) else {
            return Err(CallFailure::Internal("tokens are looked up for detokenize alone"));
        };
        let most = (KEYS_BYTES_MAX / self.row_bytes_max).clamp(1, KEYS_MAX);
        loop {
            let keys = fields.keys(most);
            if keys.is_empty() {
                break;
            }
            let held = fields.found(self.get(&keys, deadline).await?);
            self.resize(place, place.bytes().saturating_add(held))?;
        }
        let (found, missing) = fields.outcome();
        self.metrics.tokens(TokenLabel::Found, found);
        self.metrics.tokens(TokenLabel::Missing, missing);
        let document = order.payload.len().saturating_add(fields.value_bytes());
        let errors = FieldErrors::bytes(errors_max, order.leaves);
        let reply = document.saturating_add(errors).saturating_add(FRAME_BYTES).min(reply_bytes_max);
        self.resize(place, (place.bytes() - order.reply_bytes).saturating_add(reply))?;
        order.reply_bytes = reply;
        Ok(())
    }

    fn resize(&self, place: &mut AdmissionPermit, bytes: usize) -> Result<(), CallFailure> {
        if place.resize(bytes) {
            return Ok(());
        }
        self.metrics.refused(RefusalReason::Memory);
        Err(CallFailure::no_memory())
    }

    /// How many rows may be fetched whole at once, of so many that are wanted. Room for them is set aside in the place,
    /// until they are given back.
    pub(super) fn reserve(&self, place: &mut AdmissionPermit, wanted: usize) -> Result<Rows, CallFailure> {
        let most = wanted.min((ROWS_BYTES_MAX / self.row_bytes_max).clamp(1, ROWS_MAX));
        let bytes = most.saturating_mul(self.row_bytes_max);
        self.resize(place, place.bytes().saturating_add(bytes))?;
        Ok(Rows { most, bytes })
    }

    /// Counts rows that were found by a value and are of another one.
    pub(super) fn mismatched(&self, rows: u64) {
        self.metrics.tokens(TokenLabel::Mismatched, rows);
    }

    fn count(&self, written: &Written) {
        match written {
            Written::Done(given) => {
                let reused = given.iter().flatten().count();
                self.metrics.tokens(TokenLabel::Reused, reused as u64);
                self.metrics.tokens(TokenLabel::Made, (given.len() - reused) as u64);
            }
            Written::Taken(taken) => self.metrics.tokens(TokenLabel::Taken, taken.len() as u64),
        }
    }

    /// Has rows kept, once the store can follow.
    async fn write(&self, group: Group, deadline: Instant) -> Result<Written, CallFailure> {
        let (came, bytes) = (Instant::now(), group.rows.iter().map(Row::bytes).sum());
        let permit = self.throttle.reserve(group.rows.len(), bytes, Some(deadline)).await.map_err(|refusal| {
            self.metrics.refused(RefusalReason::Storage);
            CallFailure::StoreBehind(refusal)
        })?;
        self.metrics.throttled(came.elapsed());
        Ok(self.store.write(now(), group, Some(deadline), Some(permit)).await?)
    }

    /// Live rows, by token.
    pub(super) async fn get(
        &self,
        keys: &[(MapId, TokenId)],
        deadline: Instant,
    ) -> Result<Vec<Option<Row>>, CallFailure> {
        Ok(self.store.get(now(), keys, Some(deadline)).await?)
    }

    /// Live rows, by value.
    pub(super) async fn find(
        &self,
        keys: &[(MapId, Fingerprint)],
        deadline: Instant,
    ) -> Result<Vec<Option<Row>>, CallFailure> {
        Ok(self.store.find(now(), keys, Some(deadline)).await?)
    }

    /// Asks the store for a walk, when it is the app's turn.
    pub(super) async fn sweep<T: Send + 'static, F: Future<Output = Result<T, StoreError>> + Send + 'static>(
        &self,
        app: u32,
        ask: impl FnOnce(Arc<dyn TokenStore>) -> F,
    ) -> Result<T, CallFailure> {
        self.in_turn(&self.sweeps, app, StoreLabel::Sweep, ask(Arc::clone(self.store.store()))).await
    }

    /// Has the store change rows that are there, when it is the app's turn.
    pub(super) async fn change<T: Send + 'static, F: Future<Output = Result<T, StoreError>> + Send + 'static>(
        &self,
        app: u32,
        ask: impl FnOnce(Arc<dyn TokenStore>) -> F,
    ) -> Result<T, CallFailure> {
        self.in_turn(&self.changes, app, StoreLabel::Change, ask(Arc::clone(self.store.store()))).await
    }

    /// The turn ends with the store's work and not with the wait for it: else who asks and leaves would have the store
    /// do all of that at once.
    async fn in_turn<T: Send + 'static>(
        &self,
        turns: &Turns,
        app: u32,
        what: StoreLabel,
        asking: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, CallFailure> {
        let turn = turns.take(app).await?;
        let metrics = Arc::clone(&self.metrics);
        let answer = tokio::spawn(async move {
            let began = Instant::now();
            let answer = asking.await;
            drop(turn);
            metrics.store_answered(what, began.elapsed(), answer.is_ok());
            answer.map_err(CallFailure::Store)
        });
        answer.await.unwrap_or(Err(CallFailure::Internal("a question to the store panicked")))
    }
}

/// Room for rows in a place.
#[must_use]
pub(super) struct Rows {
    /// How many.
    pub(super) most: usize,
    bytes: usize,
}

impl Rows {
    /// The rows are gone.
    pub(super) fn give_back(self, place: &mut AdmissionPermit) {
        // Less always fits.
        let _ = place.resize(place.bytes().saturating_sub(self.bytes));
    }
}

/// Head, map keys and generation of a reply.
pub const FRAME_BYTES: usize = 128;

impl From<CallError> for CallFailure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Store(error) => Self::Store(error),
            CallError::Late => Self::Stopped(StopReason::Deadline),
            CallError::Closed => Self::Stopped(StopReason::Drain),
        }
    }
}
