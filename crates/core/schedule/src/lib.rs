//! Decides which call may begin and which runs next, so that the small are not kept waiting by the
//! large, nor one tenant by another, and overload makes everybody a little later rather than some
//! very late.
//!
//! A [`Core`] is bookkeeping only: no I/O, no threads, no async, and time is an argument, so what
//! runs in production is what the simulation in this crate's tests runs. It refuses to know what a
//! call does: it sees a tenant, an estimate, a number of bytes and a deadline. Admission needs no
//! timer, since whatever may end a wait well (work done, a call closed, an idle worker) passes
//! through the core. A timer ends it badly: see [`Core::expire`].
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
//! let request = OfferedRequest { tenant: &"relay-1", weight: 1, cost, bytes: 4_096, since, deadline, whole: false, has_waited: false };
//! let AdmissionDecision::Admitted { id, .. } = core.offer(now, &request, || ()) else { panic!("no other request") };
//! // With its body, which may tell better what it costs. Then any worker takes slices until the work ends.
//! core.submit(id, cost, "work").unwrap();
//! let Some(Slice { id, work, budget }) = core.pick(now) else { panic!("there is one") };
//! assert_eq!(core.done(now, id, budget, Some(work)), None); // 100 us done, 50 us left
//! let Some(Slice { id, .. }) = core.pick(now) else { panic!("and again") };
//! assert_eq!(core.done(now, id, Cost::from_nanos(50_000), None), None);
//! assert!(core.promoted().is_none(), "nobody waited for this");
//! // With its reply written, or whenever nobody wants it any more.
//! core.close(now, id);
//! assert_eq!(core.gauges().bytes, 0);
//! ```

mod admission;
mod agreement;
mod arena;
mod call;
mod class;
mod core;
mod correction;
mod cost;
mod decaying_rate;
mod fair;
mod heap;
mod memory_quota;
#[cfg(test)]
mod sim;
mod tenant;
mod throughput;
mod tuning;
mod units;

pub use self::core::Core;
pub use admission::{Reason, Rejection};
pub use agreement::{Agreement, Sample};
pub use arena::Id;
pub use call::{AdmissionDecision, Closed, Expiry, Gauges, OfferedRequest, Slice};
pub use class::Class;
pub use correction::Corrections;
pub use cost::{Coefficients, CostModel, WorkSize};
pub use tuning::{Order, SchedulerOptions};
pub use units::{Cost, Time};
