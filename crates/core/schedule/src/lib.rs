//! Decides which request can start and which runs next. Large requests do not keep small ones
//! waiting, and one tenant does not keep another waiting. Overload delays all requests a little
//! rather than some of them for long.
//!
//! A [`Core`] is bookkeeping only: no I/O, no threads, no async, and time is an argument. So the
//! simulation in this crate's tests runs the production code. The core does not know the operation
//! of a request: it sees a tenant, an estimate, a number of bytes and a deadline. Admission needs
//! no timer, since every event that can admit a waiting request (work done, a request closed, an
//! idle worker) passes through the core. Only expiry needs one: see [`Core::expire_request`].
//!
//! ```
//! use std::num::NonZeroU32;
//! use sealwire_schedule::{AdmissionDecision, Core, Cost, OfferedRequest, SchedulerOptions, Slice, Time};
//!
//! let mut core = Core::<&str, (), &str>::new(SchedulerOptions::new(NonZeroU32::MIN));
//! let now = Time::from_nanos(0);
//! // From a request's header, before its body is read.
//! let cost = Cost::from_nanos(150_000);
//! let (since, deadline) = (now, Time::NEVER);
//! let request = OfferedRequest { tenant: &"relay-1", weight: 1, cost, bytes: 4_096, since, deadline, has_body: false, has_waited: false };
//! let AdmissionDecision::Admitted { id, .. } = core.offer(now, &request, || ()) else { panic!("no other request") };
//! // Once its body is there, with a better estimate. Then any worker runs slices until the work ends.
//! core.submit(id, cost, "work").unwrap();
//! let Some(Slice { id, work, budget }) = core.next_slice(now) else { panic!("there is one") };
//! assert_eq!(core.finish_slice(now, id, budget, Some(work)), None); // 100 us done, 50 us left
//! let Some(Slice { id, .. }) = core.next_slice(now) else { panic!("and again") };
//! assert_eq!(core.finish_slice(now, id, Cost::from_nanos(50_000), None), None);
//! assert!(core.next_promoted().is_none(), "no request waited");
//! // After the response is written, or when the request is cancelled.
//! core.close(now, id);
//! assert_eq!(core.gauges().bytes, 0);
//! ```

mod admission;
mod arena;
mod class;
mod consensus;
mod core;
mod correction;
mod cost;
mod decaying_rate;
mod fair;
mod heap;
mod memory_quota;
mod request;
#[cfg(test)]
mod sim;
mod tenant;
mod throughput;
mod tuning;
mod units;

pub use self::core::Core;
pub use admission::{Rejection, RejectionReason};
pub use arena::Id;
pub use class::Class;
pub use consensus::{Sample, TenantConsensus};
pub use correction::Corrections;
pub use cost::{Coefficients, CostModel, WorkSize};
pub use request::{AdmissionDecision, Closed, Expiry, Gauges, OfferedRequest, Slice};
pub use tuning::{RunOrder, SchedulerOptions};
pub use units::{Cost, Time};
