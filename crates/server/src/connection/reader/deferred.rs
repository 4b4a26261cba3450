//! Calls that may not begin yet, and why: no seat, or one of that size was refused a moment ago.

use std::time::Duration;

use sealwire_schedule::{Class, Cost, Reason, Refusal};
use sealwire_wire::Call;
use tokio::io::AsyncRead;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::super::request::{Request, RequestOptions};
use super::Reader;
use sealwire_engine::cancel_token::StopReason;
use sealwire_engine::cost::fields_max;
use sealwire_engine::error::CallFailure;
use sealwire_telemetry::metrics::ClassLabel;

/// Longest time for which a refusal keeps calls from beginning.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Shortest time to stay away that an answer names.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(5);
/// Bytes of a deferred request beside its message. At most 64 are deferred.
const PARKED_BYTES: usize = 512;
/// Size classes of calls.
const CLASSES: usize = ClassLabel::ALL.len();

/// A whole call that may not begin yet.
pub(super) struct DeferredRequest {
    pub(super) request: Request,
    estimate: Cost,
    pub(super) deadline: Instant,
    /// When it is rejected if a pause still keeps it then; none of a call that waits for a seat.
    pub(super) expires: Option<Instant>,
}

impl DeferredRequest {
    fn bytes(&self) -> usize {
        self.request.frame.len() + PARKED_BYTES
    }

    pub(super) fn class(&self) -> Class {
        Class::of_cost(self.estimate)
    }
}

/// Until when calls of each class do not begin, because one of that size or below was refused.
pub(super) struct ClassBackoff(pub(super) [Option<Instant>; CLASSES]);

impl ClassBackoff {
    /// To read calls only to refuse them would take the time of those that are served.
    pub(super) fn after(&mut self, refusal: &Refusal, class: Class) {
        let until = Instant::now() + refusal.retry_after.min(PAUSE_MAX);
        for pause in &mut self.0[class.index()..] {
            *pause = (*pause).max(Some(until));
        }
    }

    /// Until when calls of `class` wait, if they do.
    pub(super) fn until(&self, class: Class) -> Option<Instant> {
        self.0[class.index()].filter(|until| *until > Instant::now())
    }

    pub(super) fn none(&self) -> bool {
        Class::all().all(|class| self.until(class).is_none())
    }
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// A seat for a call that nothing holds back.
    pub(super) fn seat_at_once(&mut self) -> Option<OwnedSemaphorePermit> {
        let free = self.parked.is_empty() && self.pauses.none();
        if free { self.seat.take().or_else(|| self.connection.try_seat()) } else { None }
    }

    /// Keeps a call until it may begin. One that does not decode need not wait for its answer.
    pub(super) async fn park(&mut self, request: Request) {
        let engine = &self.connection.engine;
        let wanted = match Call::decode(&request.frame, &request.boundary) {
            Ok(call) => RequestOptions::of(&call),
            Err(error) => return self.refuse(request, &error.into()).await,
        };
        let estimate = engine.scheduler.estimate(request.kind(&wanted), request.shape(&wanted));
        let deadline = request.arrived + engine.deadline(wanted.deadline_ms);
        let paused = self.pauses.until(Class::of_cost(estimate)).is_some();
        let expires = paused.then(|| request.arrived + 2 * engine.scheduler.wait_max());
        let parked = DeferredRequest { request, estimate, deadline, expires };
        self.parked_bytes += parked.bytes();
        self.parked.push_back(parked);
    }

    /// Begins every parked call that may, oldest first, and answers those whose time is up.
    pub(super) async fn begin_parked(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        if self.ending.reason().is_some() {
            return self.turn_all_away().await;
        }
        let now = Instant::now();
        while let Some(index) = self.parked.iter().position(|parked| parked.deadline <= now) {
            self.stop_parked(index, StopReason::Deadline).await;
        }
        while let Some((index, until)) = self.expired_parked(now) {
            self.refuse_parked(index, until - now).await;
        }
        while let Some(index) = self.next_parked() {
            let Some(seat) = self.seat.take().or_else(|| self.connection.try_seat()) else { return };
            if let Some(mut parked) = self.unpark(index) {
                if parked.expires.is_none() {
                    // Its connection had as many calls in flight as it may have, which is for its peer to bound.
                    parked.request.since = Instant::now();
                }
                self.begin(parked.request, seat, None).await;
            }
        }
    }

    /// The oldest parked call that no pause holds back.
    pub(super) fn next_parked(&self) -> Option<usize> {
        self.parked.iter().position(|parked| self.pauses.until(parked.class()).is_none())
    }

    /// A parked call that a pause has kept for too long, and until when it would.
    fn expired_parked(&self, now: Instant) -> Option<(usize, Instant)> {
        self.parked.iter().enumerate().find_map(|(index, parked)| {
            let expired = parked.expires.is_some_and(|expires| expires <= now);
            Some((index, self.pauses.until(parked.class()).filter(|_| expired)?))
        })
    }

    /// Rejects a parked call, which may come again after `retry_after`.
    async fn refuse_parked(&mut self, index: usize, retry_after: Duration) {
        let Some(parked) = self.unpark(index) else { return };
        let retry_after = retry_after.max(RETRY_AFTER_MIN);
        let refusal = Refusal { reason: Reason::Backlog, retry_after, predicted: retry_after };
        self.refuse(parked.request, &CallFailure::Overloaded(refusal)).await;
    }

    fn unpark(&mut self, index: usize) -> Option<DeferredRequest> {
        let parked = self.parked.remove(index)?;
        self.parked_bytes -= parked.bytes();
        Some(parked)
    }

    /// Answers a parked call that is stopped, since nobody else will for a while.
    pub(super) async fn stop_parked(&mut self, index: usize, reason: StopReason) {
        let Some(parked) = self.unpark(index) else { return };
        let saved = Duration::from_nanos(parked.estimate.as_nanos());
        let fields = fields_max(parked.request.boundary.leaves);
        if let Some(counted) = reason.counted() {
            self.connection.engine.metrics.call_stopped(counted, fields, saved);
        }
        self.refuse(parked.request, &CallFailure::Stopped(reason)).await;
    }

    /// Answers what is parked when the connection ends.
    pub(in crate::connection) async fn turn_all_away(&mut self) {
        self.seat = None; // Or the drain would wait for it.
        let reason = self.ending.reason().unwrap_or(StopReason::Drain);
        while let Some(parked) = self.unpark(0) {
            self.refuse(parked.request, &CallFailure::Stopped(reason)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_refusal_holds_back_its_size_and_above_for_as_long_as_it_says() {
        let class = |index| Class::all().nth(index).unwrap();
        let refusal = |millis| Refusal {
            reason: Reason::Backlog,
            retry_after: Duration::from_millis(millis),
            predicted: Duration::ZERO,
        };
        let mut pauses = ClassBackoff(Default::default());
        assert!(pauses.none());
        for (millis, refused, at_ms, held) in [
            (5_000, 5, 0, [false, false, false, false, false, true, true, true]),
            (6, 2, 0, [false, false, true, true, true, true, true, true]),
            (6, 2, 7, [false, false, false, false, false, true, true, true]),
            (6, 7, 3, [false, false, false, false, false, true, true, true]),
        ] {
            pauses.after(&refusal(millis), class(refused));
            tokio::time::advance(Duration::from_millis(at_ms)).await;
            let now: Vec<_> = Class::all().map(|class| pauses.until(class).is_some()).collect();
            assert_eq!(now, held, "{millis} ms from class {refused} on, {at_ms} ms later");
        }
        tokio::time::advance(Duration::from_millis(990)).await;
        assert!(pauses.none(), "a second at most");
    }
}
