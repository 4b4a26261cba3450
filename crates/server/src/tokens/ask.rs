//! What is asked of the store, and what becomes of a call once it has answered.
//!
//! Runs on a connection's task and never on a crypto thread. While it waits the call holds its memory and its place, and
//! no work of it is in the scheduler's books. The store answers in bounded time; the call's own deadline and its cancel
//! drop the wait: what was not sent by then is not written, what was may be.

use std::sync::Arc;

use sealwire_store::{
    CallError, Coalescer, Fingerprint, Group, MapId, Row, StoreError, TokenId, TokenStore, WriteThrottle, Written,
};
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::Instant;

use super::now;
use crate::error::CallFailure;
use crate::faults::Faults;
use crate::metrics::{Metrics, RefusalReason, StoreLabel, TokenLabel};
use crate::scheduler::Place;
use crate::ticket::StopReason;
use crate::work::{Finished, Paused, TokenFields, Work};

/// Most keys of one call that the store is asked for at once: what comes back is counted when it is there.
const KEYS_MAX: usize = 512;
/// Calls at once that walk through collections: `tokens.list`, `tokens.archive` and `tokens.prune`.
const SWEEPS_MAX: usize = 4;

/// The token store, as calls use it.
pub struct Tokens {
    store: Coalescer,
    throttle: WriteThrottle,
    sweeps: Semaphore,
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
    Again(Box<Work>, oneshot::Receiver<Finished>),
}

impl Tokens {
    /// Over a store.
    pub fn new(store: Coalescer, throttle: WriteThrottle, metrics: Arc<Metrics>) -> Self {
        let (waiting, pressure) = (store.clone(), throttle.clone());
        metrics.watch_token_store(Box::new(move || (waiting.waiting(), pressure.pressure())));
        Self { store, throttle, sweeps: Semaphore::new(SWEEPS_MAX), metrics }
    }

    /// Takes nothing more; returns when all that was taken is answered.
    pub async fn close(&self) {
        self.store.close().await;
    }

    /// Asks what a walk left open. Safe to drop midway.
    ///
    /// # Errors
    ///
    /// What the store says; [`CallFailure::Exhausted`]; no memory for the values.
    pub async fn resume(
        &self,
        mut paused: Box<Paused>,
        place: &mut Place,
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
    async fn look_up(&self, paused: &mut Paused, place: &mut Place, deadline: Instant) -> Result<(), CallFailure> {
        let reply_bytes_max = paused.limits().reply_bytes_max;
        let errors_max = paused.limits().errors_reported_max;
        let (order, TokenFields::Detokenize(fields)) = (&mut paused.order, &mut paused.fields) else {
            return Err(CallFailure::Internal("tokens are looked up for detokenize alone"));
        };
        let room = |fits: bool| if fits { Ok(()) } else { Err(CallFailure::no_memory()) };
        loop {
            let keys = fields.keys(KEYS_MAX);
            if keys.is_empty() {
                break;
            }
            let held = fields.found(self.get(&keys, deadline).await?);
            room(place.resize(place.bytes().saturating_add(held)))?;
        }
        let (found, missing) = fields.outcome();
        self.metrics.tokens(TokenLabel::Found, found);
        self.metrics.tokens(TokenLabel::Missing, missing);
        let document = order.payload.len().saturating_add(fields.value_bytes());
        let errors = Faults::bytes(errors_max, order.leaves);
        let reply = document.saturating_add(errors).saturating_add(FRAME_BYTES).min(reply_bytes_max);
        room(place.resize((place.bytes() - order.reply_bytes).saturating_add(reply)))?;
        order.reply_bytes = reply;
        Ok(())
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

    /// The store for what is rare, and waits for nobody else's question.
    pub(super) fn store(&self) -> &dyn TokenStore {
        &**self.store.store()
    }

    /// Times a question of that kind.
    pub(super) fn asks(&self, what: StoreLabel) -> Asked<'_> {
        Asked::new(&self.metrics, what)
    }

    /// The turn of a call that walks through a collection. Safe to drop midway.
    pub(super) async fn sweep(&self) -> Option<SemaphorePermit<'_>> {
        self.sweeps.acquire().await.ok()
    }
}

/// Head, map keys and generation of a reply.
pub const FRAME_BYTES: usize = 128;

/// A question that the store has not answered.
pub(super) struct Asked<'a> {
    metrics: &'a Metrics,
    what: StoreLabel,
    began: Instant,
}

impl<'a> Asked<'a> {
    fn new(metrics: &'a Metrics, what: StoreLabel) -> Self {
        Self { metrics, what, began: Instant::now() }
    }

    pub(super) fn answered<T>(self, answer: Result<T, StoreError>) -> Result<T, CallFailure> {
        self.metrics.store_answered(self.what, self.began.elapsed(), answer.is_ok());
        answer.map_err(CallFailure::Store)
    }
}

impl From<CallError> for CallFailure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Store(error) => Self::Store(error),
            CallError::Late => Self::Stopped(StopReason::Deadline),
            CallError::Closed => Self::Stopped(StopReason::Drain),
        }
    }
}
