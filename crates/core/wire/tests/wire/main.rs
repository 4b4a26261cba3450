//! Tests of the public interface, as one executable.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `contract` | the tables of `proto/README.md` against the code |
//! | `calls` | decoding of requests, valid and invalid |
//! | `properties` | properties of encoding, scanning and decoding |

#![allow(
    clippy::unwrap_used,
    reason = "these are tests, which the lint only recognizes in unit tests"
)]

mod calls;
mod contract;
mod properties;
mod requests;
