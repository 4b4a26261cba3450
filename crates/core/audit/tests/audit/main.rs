//! All integration tests of the audit log, as one executable that is linked and started once.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `archive` | absent segments: archived, or permanently missing |
//! | `kills` | a log in a process that is killed, and on a full disk |
//! | `room` | the largest size of a folder, and the space reserved for permitted requests |
//! | `tamper` | every change to the files, and where verification finds it |
//! | `writing` | the thread that writes a record |

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests, which the lints only recognize in unit tests"
)]

mod archive;
mod kills;
mod room;
mod tamper;
mod writing;
