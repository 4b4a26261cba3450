//! Applies one function to many items on the crypto threads, in slices.

use std::sync::Arc;

use sealwire_schedule::WorkSize;
use tokio::sync::oneshot;

use crate::jobs::cancel_token::CancelToken;
use crate::jobs::cost::{ExtraWork, OperationKind, SliceBudget};
use crate::jobs::error::RequestFailure;
use crate::jobs::job::{Slice, Slices};
use crate::jobs::scheduler::AdmissionPermit;

/// Function to apply.
type Step<I, O> = Box<dyn FnMut(I) -> O + Send>;

/// Predicts the work of an item, in fields and bytes.
type ItemWork<I> = Box<dyn Fn(&I) -> ExtraWork + Send>;

struct BatchWork<I, O> {
    kind: OperationKind,
    left: std::vec::IntoIter<I>,
    done: Vec<O>,
    has_started: bool,
    cancel: Arc<CancelToken>,
    work: ItemWork<I>,
    step: Step<I, O>,
    finished: oneshot::Sender<Result<Vec<O>, RequestFailure>>,
}

/// Applies `step` to every item on the crypto threads, under the admission of a request. If the
/// future is dropped, the work ends with its present slice.
///
/// # Errors
///
/// [`RequestFailure::Stopped`] as the cancel token says; [`RequestFailure::Internal`] when a step panics.
pub async fn run_each<I: Send + 'static, O: Send + 'static>(
    admission: &mut AdmissionPermit,
    kind: OperationKind,
    cancel: &Arc<CancelToken>,
    items: Vec<I>,
    step: impl FnMut(I) -> O + Send + 'static,
) -> Result<Vec<O>, RequestFailure> {
    run_each_sized(
        admission,
        kind,
        cancel,
        items,
        |_| ExtraWork {
            fields: 1,
            bytes: 0,
        },
        step,
    )
    .await
}

/// Applies `step` to every item, as [`run_each`] does. `work`: that of an item, which bounds a slice as
/// well.
///
/// # Errors
///
/// As for [`run_each`].
pub async fn run_each_sized<I: Send + 'static, O: Send + 'static>(
    admission: &mut AdmissionPermit,
    kind: OperationKind,
    cancel: &Arc<CancelToken>,
    items: Vec<I>,
    work: impl Fn(&I) -> ExtraWork + Send + 'static,
    step: impl FnMut(I) -> O + Send + 'static,
) -> Result<Vec<O>, RequestFailure> {
    let (finished, ends) = oneshot::channel();
    let done = Vec::with_capacity(items.len());
    let left = items.into_iter();
    let cancel = Arc::clone(cancel);
    let work = Box::new(work);
    let step = Box::new(step);
    admission.submit(Box::new(BatchWork {
        kind,
        left,
        done,
        has_started: false,
        cancel,
        work,
        step,
        finished,
    }));
    ends.await
        .map_err(|_| RequestFailure::Internal("the work panicked"))?
}

impl<I: Send, O: Send> Slices for BatchWork<I, O> {
    fn kind(&self) -> OperationKind {
        self.kind
    }

    fn work_size(&self) -> WorkSize {
        self.kind.done(true, self.left.len() as u64, 0, 0)
    }

    /// Returns the bytes of the next item. If further items are larger, the budget of bytes ends
    /// the slice.
    fn field_bytes(&self) -> u64 {
        self.left
            .as_slice()
            .first()
            .map_or(0, |item| (self.work)(item).bytes)
    }

    fn has_started(&self) -> bool {
        self.has_started
    }

    fn slice(&mut self, budget: &SliceBudget) -> Slice {
        let first = !std::mem::replace(&mut self.has_started, true);
        let stopped = self.cancel.stop_reason();
        let mut work = ExtraWork::default();
        let fields_max = budget.fields.max(1) as u64;
        let bytes_max = budget.bytes as u64;

        while stopped.is_none() && work.fields < fields_max && work.bytes <= bytes_max {
            let Some(item) = self.left.next() else { break };
            work = work.plus((self.work)(&item));
            self.done.push((self.step)(item));
            if budget.timer.is_over() {
                break;
            }
        }

        let done = self.kind.done(first, work.fields, 0, work.bytes);
        let more = stopped.is_none() && self.left.len() > 0;
        Slice { done, more }
    }

    fn deliver(self: Box<Self>) {
        let stopped = self.cancel.stop_reason().filter(|_| self.left.len() > 0);
        // The receiver is gone if the request was stopped.
        let _ = self
            .finished
            .send(stopped.map_or(Ok(self.done), |reason| Err(RequestFailure::Stopped(reason))));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::jobs::cancel_token::StopReason;
    use crate::jobs::connection_memory::ConnectionMemory;
    use crate::jobs::cost::Costs;
    use crate::jobs::scheduler::{AdmissionRequest, Scheduler};
    use sealwire_access::Principal;
    use sealwire_schedule::{Coefficients, CostModel};
    use sealwire_settings::Config;

    /// Costs that do not depend on this machine.
    fn costs() -> Costs {
        let each = Coefficients {
            request: 5_000.0,
            key_agreement: 50_000.0,
            field: 500.0,
            byte: 0.5,
        };
        Costs::new(|_| CostModel::new(each))
    }

    fn admission() -> (Scheduler, AdmissionPermit) {
        let spare = Arc::new(|| false);
        let threads = NonZeroU32::new(2).unwrap();
        let config = Config::defaults(Path::new("nowhere")).schedule;
        let scheduler = Scheduler::start(threads, &config, costs(), spare);
        let principal = Principal::from_text("relay").unwrap();
        let offer = AdmissionRequest {
            principal: &principal,
            kind: OperationKind::HASH_TOKENS,
            work_size: OperationKind::HASH_TOKENS.work_size(100, 0),
            bytes: 0,
            since: std::time::Instant::now(),
            deadline: None,
            has_body: true,
            has_waited: false,
        };
        let admission = scheduler
            .offer(&offer, &ConnectionMemory::new(1 << 20))
            .unwrap();
        (scheduler, admission)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn request_can_continue_as_soon_as_its_batch_is_delivered() {
        let (scheduler, mut admission) = admission();
        for round in 0..5_000_u64 {
            let numbers = (0..round % 3).collect();
            let doubled = run_each(
                &mut admission,
                OperationKind::HASH_TOKENS,
                &Arc::default(),
                numbers,
                |number| number * 2,
            )
            .await
            .unwrap();
            assert_eq!(
                doubled,
                (0..round % 3).map(|number| number * 2).collect::<Vec<_>>()
            );
        }
        drop(admission);
        assert_eq!(scheduler.gauges().requests, 0);
    }

    #[test]
    fn a_slice_ends_at_its_bytes_and_does_one_item_at_least() {
        for (fields, bytes, expected) in [
            (10, 1_000, 3),
            (2, 1_000, 2),
            (10, 0, 1),
            (10, 399, 1),
            (10, 400, 2),
            (0, 0, 1),
        ] {
            let (finished, _ends) = oneshot::channel();
            let mut each = BatchWork {
                kind: OperationKind::OPEN_OBJECTS,
                left: vec![400_usize; 20].into_iter(),
                done: Vec::new(),
                has_started: false,
                cancel: Arc::default(),
                work: Box::new(|bytes| ExtraWork {
                    fields: 1,
                    bytes: *bytes as u64,
                }),
                step: Box::new(|bytes| bytes),
                finished,
            };
            let slice = each.slice(&SliceBudget {
                fields,
                bytes,
                ..SliceBudget::UNLIMITED
            });
            assert_eq!(
                (each.done.len(), slice.done.bytes),
                (expected, 400 * expected as u64),
                "{fields} {bytes}"
            );
            assert!(slice.more);
        }
    }

    #[test]
    fn a_slice_ends_at_the_work_of_its_items_and_by_time() {
        use crate::jobs::slice_timer::SliceTimer;
        use crate::jobs::slice_timer::testing::{STEP, stepping};

        let none = SliceTimer::UNLIMITED;
        for (fields, timer, expected) in [
            (usize::MAX, none, 20),
            (100, none, 3),
            (41, none, 2),
            (1, none, 1),
            (usize::MAX, SliceTimer::start(4 * STEP, stepping), 4),
        ] {
            let (finished, _ends) = oneshot::channel();
            let mut each = BatchWork {
                kind: OperationKind::SEAL_OBJECTS,
                left: vec![40_u64; 20].into_iter(),
                done: Vec::new(),
                has_started: false,
                cancel: Arc::default(),
                work: Box::new(|properties| ExtraWork {
                    fields: *properties,
                    bytes: 0,
                }),
                step: Box::new(|properties| properties),
                finished,
            };
            let slice = each.slice(&SliceBudget {
                fields,
                timer,
                ..SliceBudget::UNLIMITED
            });
            assert_eq!(
                (each.done.len(), slice.done.fields),
                (expected, 40 * expected as u64),
                "{fields}"
            );
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn stopped_work_ends_within_a_slice_and_panicking_work_fails() {
        let (_scheduler, mut admission) = admission();
        let cancel = Arc::new(crate::jobs::cancel_token::CancelToken::default());
        let stops = Arc::clone(&cancel);
        let stopped = run_each(
            &mut admission,
            OperationKind::HASH_TOKENS,
            &cancel,
            (0..1_000_000).collect(),
            move |at| {
                std::thread::sleep(Duration::from_micros(10));
                if at == 50 {
                    stops.stop(StopReason::Cancel);
                }
                assert!(at < 100_000, "it goes on and on");
            },
        )
        .await;
        assert!(matches!(
            stopped,
            Err(RequestFailure::Stopped(StopReason::Cancel))
        ));
        let panicked = run_each(
            &mut admission,
            OperationKind::HASH_TOKENS,
            &Arc::default(),
            vec![()],
            |()| panic!("on purpose"),
        )
        .await;
        assert!(matches!(panicked, Err(RequestFailure::Internal(_))));
    }
}
