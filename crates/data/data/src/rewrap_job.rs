//! Rewraps the envelopes in columns of a user's PostgreSQL database to the newest keys of their
//! apps, in place.
//!
//! A job walks each table by its key, and sends the envelopes of a page to the engine. The job
//! writes each result only if the column still has the value that was read. A concurrent change by
//! the application therefore always wins. A job needs no keys and sees no plaintext: an [`Engine`]
//! rewraps. All state is in the table, so a job can be killed at any time and repeated.

mod catalog;
mod classify;
mod engine;
mod error;
mod job;
mod pass;
mod report;
mod rules;
mod statements;

pub use crate::mask_job::Database;
pub use engine::{Encoding, Engine, EngineError, RewrapRequest, RewrapResponse};
pub use error::RewrapError;
pub use job::{PAGE_ROWS_MAX, PreparedJob, RewrapJob};
pub use report::{KeyCount, LEFT_LISTED_MAX, LeftReason, LeftValue, Progress, Report, RuleReport};
pub use rules::{Rule, Rules, RulesError};
