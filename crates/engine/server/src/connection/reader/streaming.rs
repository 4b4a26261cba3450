//! Long messages, which are offered to the scheduler while they arrive and discarded when they are
//! rejected.

use std::sync::Arc;

use sealwire_schedule::{Class, Rejection, WorkSize};
use sealwire_wire::{Disposition, MessageHeader, Scanner};
use tokio::io::AsyncRead;
use tokio::time::Instant;

use super::super::audit::UnstartedRequest;
use super::super::{End, InFlightPermit};
use super::{ReadMode, Reader};
use sealwire_engine::jobs::cancel_token::CancelGuard;
use sealwire_engine::jobs::cost::OperationKind;
use sealwire_engine::jobs::error::RequestFailure;
use sealwire_engine::jobs::scheduler::{AdmissionPermit, AdmissionRequest};
use sealwire_engine::operations;
use sealwire_telemetry::metrics::MethodLabel;

/// A long message that was offered to the scheduler while it arrives. Only data requests have a
/// cancel token and an in-flight permit.
pub(super) struct StreamingRequest {
    pub(super) admission: AdmissionPermit,
    pub(super) cancel: Option<CancelGuard>,
    pub(super) in_flight: Option<InFlightPermit>,
    /// Number of bytes that had arrived when the cost was last estimated.
    estimated_bytes: usize,
}

/// Waits until the arriving message is admitted. Returns a rejection if the message has waited for
/// too long.
pub(super) async fn wait_for_admission(
    streaming: &mut Option<StreamingRequest>,
) -> Option<Rejection> {
    let Some(StreamingRequest { admission, .. }) = streaming else {
        return None;
    };
    let wait_bound = admission.wait_bound();
    tokio::select! {
        biased;
        () = admission.wait_until_admitted() => None,
        rejection = wait_bound.ended() => Some(rejection),
    }
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads more of a long message if the scheduler has memory for it. Otherwise pauses, or rejects
    /// the message. Offers the message first if it was not offered before.
    pub(super) async fn continue_long_message(&mut self) -> Result<(), End> {
        let bytes = self.input.buffer.len();
        let Some(streaming) = &mut self.streaming else {
            return self.offer_streaming(bytes).await;
        };

        if bytes / 2 >= streaming.estimated_bytes {
            // The size has doubled since the last estimate, so that estimate can be far off.
            streaming.estimated_bytes = bytes;
            let Preview {
                kind, work_size, ..
            } = preview(&self.scanner, &self.input.buffer);
            streaming.admission.correct_estimate(kind, work_size);
        }

        if streaming.admission.resize(bytes) {
            self.wait(ReadMode::On).await
        } else if streaming.admission.is_waiting() {
            // The memory quota of the principal is used up. Reading continues after the message is
            // admitted.
            self.wait(ReadMode::Paused { until: None }).await
        } else {
            let class = streaming.admission.class();
            self.reject_streaming(RequestFailure::no_memory(), class)
                .await
        }
    }

    /// Offers a long message whose first bytes have arrived.
    async fn offer_streaming(&mut self, bytes: usize) -> Result<(), End> {
        if let Some(reason) = self.shutdown.reason() {
            self.drop_permit(); // Otherwise the drain would wait for this permit.
            return self
                .reject_streaming(RequestFailure::Stopped(reason), Class::default())
                .await;
        }
        let connection = Arc::clone(&self.connection);
        // Usually cached. A lookup happens once per principal and cache lifetime.
        if let Err(failure) = connection
            .engine
            .decider
            .require_role(&connection.principal)
            .await
        {
            return self.reject_streaming(failure, Class::default()).await;
        }

        let scheduler = &connection.engine.scheduler;
        let Preview {
            kind,
            work_size,
            data_request,
        } = preview(&self.scanner, &self.input.buffer);
        let class = Class::of_cost(scheduler.estimate(kind, work_size));
        let mut in_flight = None;
        let mut cancel = None;
        let mut deadline = None;
        if let Some(DataRequest { msgid, deadline_ms }) = data_request {
            if let Some(until) = self.backoff.until(class) {
                return self.wait(ReadMode::Paused { until: Some(until) }).await;
            }
            in_flight = if self.deferred.is_empty() {
                self.in_flight
                    .take()
                    .or_else(|| connection.try_in_flight_permit())
            } else {
                None
            };
            if in_flight.is_none() {
                return self.wait(ReadMode::Paused { until: None }).await;
            }
            cancel = match connection.cancel_tokens.issue(msgid) {
                Some(cancel) => Some(cancel),
                None => return Err(connection.disconnect_for_msgid().await),
            };
            // The deadline of the request counts from its last byte, which is still to come. The
            // offer uses the earliest that is possible. Reading has a separate limit.
            deadline = Some((Instant::now() + connection.engine.deadline(deadline_ms)).into_std());
        }

        let has_waited = self
            .message_started
            .is_some_and(|start| self.backoff.take_ended(start.at));
        let offer = AdmissionRequest {
            principal: &connection.principal,
            kind,
            work_size,
            bytes,
            since: std::time::Instant::now(),
            deadline,
            has_body: false,
            has_waited,
        };
        match scheduler.offer(&offer, &connection.memory) {
            Ok(admission) => {
                self.streaming = Some(StreamingRequest {
                    admission,
                    cancel,
                    in_flight,
                    estimated_bytes: bytes,
                });
                Ok(())
            }
            Err(rejection) => {
                drop(cancel);
                self.reject_streaming(RequestFailure::Overloaded(rejection), class)
                    .await
            }
        }
    }

    /// Rejects the long message that is arriving and discards the rest of it.
    pub(super) async fn reject_streaming(
        &mut self,
        failure: RequestFailure,
        class: Class,
    ) -> Result<(), End> {
        if let RequestFailure::Overloaded(rejection) = &failure {
            self.backoff.after(rejection, class);
        }
        let header = self.scanner.header();
        let disposition = self.scanner.skip_rest();
        self.reject_incomplete(header, &failure, disposition).await
    }

    /// Rejects an incomplete message. A notification gets no response, but counts as a rejected
    /// request.
    pub(super) async fn reject_incomplete(
        &mut self,
        header: Option<MessageHeader>,
        failure: &RequestFailure,
        disposition: Disposition,
    ) -> Result<(), End> {
        // Ends the request, which releases its own msgid. A message that was not offered has no
        // token: its msgid can belong to another request in flight.
        let has_token = self
            .streaming
            .take()
            .is_some_and(|streaming| streaming.cancel.is_some());
        let connection = &self.connection;

        match header.and_then(|header| header.response_id()) {
            Some(msgid) if !has_token && connection.cancel_tokens.contains(msgid) => {
                return Err(connection.disconnect_for_msgid().await);
            }
            Some(msgid) => {
                let rejected = UnstartedRequest {
                    msgid,
                    method: method_label(header),
                    options: None,
                    bytes: self.input.buffer.len(),
                    arrived: Instant::now(),
                };
                connection.reject(&rejected, failure).await;
            }
            None => {
                connection.state.pace.count_rejection(Instant::now());
                if disposition == Disposition::Close {
                    connection
                        .send_protocol_error(&failure.to_rpc_error())
                        .await;
                }
            }
        }

        if disposition == Disposition::Close {
            Err(End::Disconnected)
        } else {
            Ok(())
        }
    }
}

/// The predicted work of an arriving message.
struct Preview {
    kind: OperationKind,
    work_size: WorkSize,
    /// Set for a data request.
    data_request: Option<DataRequest>,
}

/// The parameters of an arriving data request that are known before its end.
struct DataRequest {
    msgid: u32,
    deadline_ms: Option<u32>,
}

/// Predicts the work of an arriving message.
fn preview(scanner: &Scanner, buffered: &[u8]) -> Preview {
    let Some(request_preview) = scanner.preview(buffered) else {
        let (kind, work_size) = operations::preview_of_other(buffered.len() as u64);
        return Preview {
            kind,
            work_size,
            data_request: None,
        };
    };
    let (kind, work_size) = operations::preview(&request_preview, scanner.bytes_at_least());
    let msgid = scanner.header().and_then(|header| header.response_id());
    let deadline_ms = request_preview.deadline_ms;
    Preview {
        kind,
        work_size,
        data_request: msgid.map(|msgid| DataRequest { msgid, deadline_ms }),
    }
}

fn method_label(header: Option<MessageHeader>) -> MethodLabel {
    match header {
        Some(MessageHeader::Request {
            method: Some(method),
            ..
        }) => method.into(),
        _ => MethodLabel::UNKNOWN,
    }
}
