//! Jobs: the work on the fields of a document, in slices on the crypto threads.
//!
//! [`scheduler::Scheduler`] admits requests and runs their [`job::Job`]s. A job walks its document
//! once and seals, opens, masks or tokenizes each selected field. This crate does not read requests
//! and decides no permissions.

pub mod cancel_token;
pub mod connection_memory;
pub mod cost;
pub mod error;
pub mod failures;
pub mod fair_semaphore;
pub mod field_errors;
pub mod field_opener;
pub mod field_sealer;
pub mod inline_budget;
pub mod item_contexts;
pub mod job;
pub mod masks;
pub mod objects;
pub mod read_ahead;
pub mod scheduler;
pub mod slice_timer;
mod store_calls;
pub mod tokens;
