//! Requests that wait to start: for an in-flight permit, or because a request of their size class
//! was recently rejected.

use std::time::Duration;

use sealwire_schedule::{Class, Cost, Rejection, RejectionReason};
use tokio::io::AsyncRead;
use tokio::time::Instant;

use super::super::InFlightPermit;
use super::super::request::Request;
use super::Reader;
use sealwire_engine::jobs::cancel_token::StopReason;
use sealwire_engine::jobs::error::RequestFailure;
use sealwire_engine::operation::Operation;
use sealwire_telemetry::metrics::ClassLabel;

/// Maximum pause that a rejection causes.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Minimum `retry_after` in a response.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(5);
/// Memory of a deferred request in addition to its message. At most 64 requests are deferred.
const DEFERRED_BYTES: usize = 512;
/// Number of size classes.
const CLASSES: usize = ClassLabel::ALL.len();

/// A complete request that waits to start.
pub(super) struct DeferredRequest {
    pub(super) request: Request,
    operation: Box<dyn Operation>,
    estimate: Cost,
    pub(super) deadline: Instant,
    /// Time at which the request is rejected if a pause still delays it. `None` for a request that
    /// waits for an in-flight permit.
    pub(super) expires: Option<Instant>,
}

impl DeferredRequest {
    fn bytes(&self) -> usize {
        self.request.size.bytes + DEFERRED_BYTES
    }

    pub(super) fn class(&self) -> Class {
        Class::of_cost(self.estimate)
    }
}

/// The end of the pause per size class. A rejection of a request of the same or a smaller class
/// causes the pause.
pub(super) struct ClassBackoff(pub(super) [Option<Instant>; CLASSES]);

impl ClassBackoff {
    /// Pauses a class and all larger classes. Reading requests only to reject them would take time
    /// from accepted requests.
    pub(super) fn after(&mut self, rejection: &Rejection, class: Class) {
        let until = Instant::now() + rejection.retry_after.min(PAUSE_MAX);
        for pause in &mut self.0[class.index()..] {
            *pause = (*pause).max(Some(until));
        }
    }

    /// Returns the end of the pause of a class, if it is paused.
    pub(super) fn until(&self, class: Class) -> Option<Instant> {
        self.0[class.index()].filter(|until| *until > Instant::now())
    }

    /// Returns true if a request that arrived at `arrived` is the first one after a pause. Removes
    /// the pauses that had ended by then.
    pub(super) fn take_ended(&mut self, arrived: Instant) -> bool {
        let mut ended = false;
        for pause in &mut self.0 {
            ended |= pause.take_if(|until| *until <= arrived).is_some();
        }
        ended
    }

    pub(super) fn is_clear(&self) -> bool {
        Class::all().all(|class| self.until(class).is_none())
    }
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Returns an in-flight permit if there is no pause and no deferred request.
    pub(super) fn try_permit(&mut self) -> Option<InFlightPermit> {
        let is_free = self.deferred.is_empty() && self.backoff.is_clear();
        if is_free {
            self.in_flight
                .take()
                .or_else(|| self.connection.try_in_flight_permit())
        } else {
            None
        }
    }

    /// Keeps a request until it can start.
    pub(super) fn defer(&mut self, request: Request, operation: Box<dyn Operation>) {
        let engine = &self.connection.engine;
        let estimate = engine.scheduler.estimate(request.kind, request.work_size());
        let deadline = request.deadline(engine);
        let is_paused = self.backoff.until(Class::of_cost(estimate)).is_some();
        let expires = is_paused.then(|| request.arrived + 2 * engine.scheduler.wait_max());
        let deferred = DeferredRequest {
            request,
            operation,
            estimate,
            deadline,
            expires,
        };

        self.deferred_bytes += deferred.bytes();
        self.deferred.push_back(deferred);
    }

    /// Starts the deferred requests that can start, oldest first, and rejects requests whose
    /// deadline has passed.
    pub(super) async fn start_deferred(&mut self) {
        if self.deferred.is_empty() {
            return;
        }
        if self.shutdown.reason().is_some() {
            return self.reject_all_deferred().await;
        }

        let now = Instant::now();
        while let Some(index) = self
            .deferred
            .iter()
            .position(|deferred| deferred.deadline <= now)
        {
            self.stop_deferred(index, StopReason::Deadline).await;
        }

        while let Some((index, until)) = self.expired_deferred(now) {
            self.reject_deferred(index, until - now).await;
        }

        while let Some(index) = self.next_deferred() {
            let Some(in_flight) = self
                .in_flight
                .take()
                .or_else(|| self.connection.try_in_flight_permit())
            else {
                return;
            };
            if let Some(mut deferred) = self.take_deferred(index) {
                if deferred.expires.is_none() {
                    // The connection had its maximum of requests in flight. The client controls
                    // this wait, so it does not count.
                    deferred.request.since = Instant::now();
                }
                self.start_request(deferred.request, deferred.operation, in_flight, None)
                    .await;
                self.slice.count_unit(0).await;
            }
        }
    }

    /// Returns the oldest deferred request that is not paused.
    pub(super) fn next_deferred(&self) -> Option<usize> {
        self.deferred
            .iter()
            .position(|deferred| self.backoff.until(deferred.class()).is_none())
    }

    /// Returns a deferred request that a pause has delayed for too long, and the end of that pause.
    fn expired_deferred(&self, now: Instant) -> Option<(usize, Instant)> {
        self.deferred
            .iter()
            .enumerate()
            .find_map(|(index, deferred)| {
                let is_expired = deferred.expires.is_some_and(|expires| expires <= now);
                Some((
                    index,
                    self.backoff
                        .until(deferred.class())
                        .filter(|_| is_expired)?,
                ))
            })
    }

    /// Rejects a deferred request, which can be retried after `retry_after`.
    async fn reject_deferred(&mut self, index: usize, retry_after: Duration) {
        let Some(deferred) = self.take_deferred(index) else {
            return;
        };
        let retry_after = retry_after.max(RETRY_AFTER_MIN);
        let rejection = Rejection {
            reason: RejectionReason::Backlog,
            retry_after,
            predicted: retry_after,
        };
        self.reject(deferred.request, &RequestFailure::Overloaded(rejection))
            .await;
    }

    fn take_deferred(&mut self, index: usize) -> Option<DeferredRequest> {
        let deferred = self.deferred.remove(index)?;
        self.deferred_bytes -= deferred.bytes();
        Some(deferred)
    }

    /// Responds to a deferred request that is stopped.
    pub(super) async fn stop_deferred(&mut self, index: usize, reason: StopReason) {
        let Some(deferred) = self.take_deferred(index) else {
            return;
        };
        let saved = Duration::from_nanos(deferred.estimate.as_nanos());
        let fields = deferred.request.size.fields_max();
        if let Some(cancel_reason) = reason.cancel_reason() {
            self.connection
                .engine
                .metrics
                .count_stopped_request(cancel_reason, fields, saved);
        }
        self.reject(deferred.request, &RequestFailure::Stopped(reason))
            .await;
    }

    /// Rejects the deferred requests when the connection ends.
    pub(in crate::connection) async fn reject_all_deferred(&mut self) {
        self.drop_permit(); // Otherwise the drain would wait for it.
        let reason = self.shutdown.reason().unwrap_or(StopReason::Drain);
        while let Some(deferred) = self.take_deferred(0) {
            self.reject(deferred.request, &RequestFailure::Stopped(reason))
                .await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rejection_pauses_its_class_and_above_for_its_retry_after() {
        let class = |index| Class::all().nth(index).unwrap();
        let rejection = |millis| Rejection {
            reason: RejectionReason::Backlog,
            retry_after: Duration::from_millis(millis),
            predicted: Duration::ZERO,
        };
        let mut backoff = ClassBackoff(Default::default());
        assert!(backoff.is_clear());
        for (millis, rejected_class, at_ms, paused) in [
            (
                5_000,
                5,
                0,
                [false, false, false, false, false, true, true, true],
            ),
            (6, 2, 0, [false, false, true, true, true, true, true, true]),
            (
                6,
                2,
                7,
                [false, false, false, false, false, true, true, true],
            ),
            (
                6,
                7,
                3,
                [false, false, false, false, false, true, true, true],
            ),
        ] {
            backoff.after(&rejection(millis), class(rejected_class));
            tokio::time::advance(Duration::from_millis(at_ms)).await;
            let now: Vec<_> = Class::all()
                .map(|class| backoff.until(class).is_some())
                .collect();
            assert_eq!(
                now, paused,
                "{millis} ms from class {rejected_class} on, {at_ms} ms later"
            );
        }
        tokio::time::advance(Duration::from_millis(990)).await;
        assert!(backoff.is_clear(), "a second at most");
    }

    #[tokio::test(start_paused = true)]
    async fn first_request_after_a_pause_has_waited_unless_it_came_earlier() {
        let class = |index| Class::all().nth(index).unwrap();
        let retry_after = Duration::from_millis(50);
        let rejection = Rejection {
            reason: RejectionReason::Proportion,
            retry_after,
            predicted: Duration::ZERO,
        };
        let mut backoff = ClassBackoff(Default::default());
        assert!(!backoff.take_ended(Instant::now()), "nothing was rejected");
        backoff.after(&rejection, class(3));
        let early = Instant::now() + Duration::from_millis(49);
        tokio::time::advance(Duration::from_millis(60)).await;
        assert!(!backoff.take_ended(early), "it came during the pause");
        assert!(backoff.take_ended(Instant::now()));
        assert!(!backoff.take_ended(Instant::now()), "the second one");
    }
}
