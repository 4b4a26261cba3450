//! A running plugin on a real Unix socket, with real engines behind it.
//!
//! No test depends on the speed of the machine: a test waits for an event, and its time limit only
//! ends a hang.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by a panic")]

mod api_server;
mod documents;
mod outages;
mod program;
mod service;
mod site;
