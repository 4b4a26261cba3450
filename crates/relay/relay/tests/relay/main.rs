//! A running relay on real sockets: hostile clients, limits, failures of engine and upstream, and
//! tunnels.
//!
//! No test depends on the speed of the machine: a test waits for an event, and its time limit only
//! ends a hang.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by a panic")]

mod abuse;
mod ext_proc;
mod failures;
mod limits;
mod output;
mod processor;
mod secrets;
mod shares;
mod spellings;
mod support;
mod tunnel;
