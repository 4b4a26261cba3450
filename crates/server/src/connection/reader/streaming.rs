//! Long messages: known to the scheduler while they arrive, given up at once where they are refused.

use std::sync::Arc;

use sealwire_schedule::{Class, Refusal, Shape};
use sealwire_wire::{Curve, Fate, Head, KeyScope, Method, Scanner};
use tokio::io::AsyncRead;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::super::End;
use super::super::audit::Refused;
use super::super::request::RequestOptions;
use super::{Reader, Reading};
use sealwire_engine::cancel_token::CancelGuard;
use sealwire_engine::cost::OperationKind;
use sealwire_engine::error::CallFailure;
use sealwire_engine::scheduler::{AdmissionPermit, AdmissionRequest};
use sealwire_telemetry::metrics::MethodLabel;

/// A long message that the scheduler knows while it arrives. Only a document call has a ticket and a seat.
pub(super) struct StreamingRequest {
    pub(super) place: AdmissionPermit,
    pub(super) ticket: Option<CancelGuard>,
    pub(super) seat: Option<OwnedSemaphorePermit>,
    /// Bytes of it that were there when its cost was estimated.
    looked_at: usize,
}

/// Waits until the call may go on. Returns the refusal of a call that has waited for too long.
pub(super) async fn admitted(arriving: &mut Option<StreamingRequest>) -> Option<Refusal> {
    let Some(StreamingRequest { place, .. }) = arriving else { return None };
    let patience = place.patience();
    tokio::select! {
        biased;
        () = place.admitted() => None,
        refusal = patience.ended() => Some(refusal),
    }
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Makes room for more of a long message: asks the scheduler, before more of its body is read.
    pub(super) async fn make_room(&mut self) -> Result<(), End> {
        let bytes = self.input.buffer.len();
        let Some(arriving) = &mut self.arriving else { return self.offer_arriving(bytes).await };
        if bytes / 2 >= arriving.looked_at {
            // What it seemed to become may have been far from it.
            arriving.looked_at = bytes;
            let (kind, shape, ..) = outlook(&self.scanner, &self.input.buffer);
            arriving.place.correct(kind, shape);
        }
        if arriving.place.resize(bytes) {
            self.connection.engine.turns.next().await;
            self.wait(Reading::On).await
        } else if arriving.place.waits() {
            // Its caller's share is taken. Read on once it has its turn.
            self.wait(Reading::Paused { until: None }).await
        } else {
            let class = arriving.place.class();
            self.refuse_arriving(CallFailure::no_memory(), class).await
        }
    }

    /// Offers a long message, of which the beginning is there.
    async fn offer_arriving(&mut self, bytes: usize) -> Result<(), End> {
        if let Some(reason) = self.ending.reason() {
            self.seat = None; // Or the drain would wait for it.
            return self.refuse_arriving(CallFailure::Stopped(reason), Class::default()).await;
        }
        let connection = Arc::clone(&self.connection);
        // Mostly known; a look-up happens once for each principal and time that the cache keeps it.
        if let Err(failure) = connection.engine.decider.has_role(&connection.principal).await {
            return self.refuse_arriving(failure, Class::default()).await;
        }
        let scheduler = &connection.engine.scheduler;
        let (kind, shape, document) = outlook(&self.scanner, &self.input.buffer);
        let class = Class::of_cost(scheduler.estimate(kind, shape));
        let (mut seat, mut ticket, mut deadline) = (None, None, None);
        if let Some((msgid, wanted)) = document {
            if let Some(until) = self.pauses.until(class) {
                return self.wait(Reading::Paused { until: Some(until) }).await;
            }
            seat = if self.parked.is_empty() { self.seat.take().or_else(|| connection.try_seat()) } else { None };
            if seat.is_none() {
                return self.wait(Reading::Paused { until: None }).await;
            }
            ticket = match connection.tickets.issue(msgid) {
                Some(ticket) => Some(ticket),
                None => return Err(connection.expel_for_msgid().await),
            };
            // Its time counts from when it is whole; for the reading there is another limit.
            deadline = Some((Instant::now() + connection.engine.deadline(wanted.deadline_ms)).into_std());
        }
        let (principal, since) = (&connection.principal, std::time::Instant::now());
        let offer = AdmissionRequest { principal, kind, shape, bytes, since, deadline, whole: false };
        match scheduler.offer(&offer, &connection.bytes) {
            Ok(place) => {
                self.arriving = Some(StreamingRequest { place, ticket, seat, looked_at: bytes });
                Ok(())
            }
            Err(refusal) => {
                drop(ticket);
                self.refuse_arriving(CallFailure::Overloaded(refusal), class).await
            }
        }
    }

    /// Gives up the long message that arrives.
    pub(super) async fn refuse_arriving(&mut self, failure: CallFailure, class: Class) -> Result<(), End> {
        if let CallFailure::Overloaded(refusal) = &failure {
            self.pauses.after(refusal, class);
        }
        let head = self.scanner.head();
        let fate = self.scanner.skip_rest();
        self.turn_away(head, &failure, fate).await
    }

    /// Turns away a message that is not whole. A notification has no answer.
    pub(super) async fn turn_away(&mut self, head: Option<Head>, failure: &CallFailure, fate: Fate) -> Result<(), End> {
        let own = self.arriving.take().is_some_and(|arriving| arriving.ticket.is_some());
        let connection = &self.connection;
        match head.and_then(|head| head.answer_to()) {
            Some(msgid) if !own && connection.tickets.contains(msgid) => {
                return Err(connection.expel_for_msgid().await);
            }
            Some(msgid) => {
                let (method, bytes, arrived) = (method_label(head), self.input.buffer.len(), Instant::now());
                let call = Refused { msgid, method, message: None, bytes, arrived };
                connection.refuse(&call, failure).await;
            }
            None if fate == Fate::Close => connection.send_protocol_error(&failure.answer()).await,
            None => (),
        }
        if fate == Fate::Close { Err(End::Expelled) } else { Ok(()) }
    }
}

/// What the message that arrives seems to become and, of a document call, its msgid and what it says of itself.
fn outlook(scanner: &Scanner, buffered: &[u8]) -> (OperationKind, Shape, Option<(u32, RequestOptions)>) {
    let Some(outlook) = scanner.outlook(buffered) else {
        // What is no document call costs as much as reading it.
        let kind = OperationKind::of(Method::Inspect, Curve::default(), KeyScope::default());
        return (kind, kind.done(true, 0, 0, buffered.len() as u64), None);
    };
    let wanted = RequestOptions::in_view(&outlook);
    let kind = OperationKind::of(outlook.method, wanted.curve, wanted.scope);
    let shape = match outlook.whole {
        Some(whole) => kind.shape(whole.leaves, whole.bytes),
        None => kind.shape(0, scanner.bytes_at_least()),
    };
    let msgid = scanner.head().and_then(|head| head.answer_to());
    (kind, shape, msgid.map(|msgid| (msgid, wanted)))
}

fn method_label(head: Option<Head>) -> MethodLabel {
    match head {
        Some(Head::Request { method: Some(method), .. }) => method.into(),
        _ => MethodLabel::UNKNOWN,
    }
}
