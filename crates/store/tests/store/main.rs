//! All integration tests of the stores, as one executable: it is linked and started once.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `embedded_crashes` | the embedded store in a process that is killed, and on a full disk |
//! | `postgres_kills` | the PostgreSQL store while its process and its database server are killed |
//!
//! `child` starts the processes that are killed.

#![allow(clippy::print_stdout, reason = "helpers of tests, which the lint only recognizes in unit tests")]

mod child;
mod embedded_crashes;
mod postgres_kills;
