//! All tests of the engine from outside, in one executable, which saves linking and starting one
//! per module.
//!
//! | module | what runs |
//! | --- | --- |
//! | `cli` | the built program, as a person uses it |
//! | `cluster` | several engines on one PostgreSQL |
//! | `e2e` | an engine in this process, called over real sockets and mutual TLS |
//! | `relay` | a relay with an engine, and real clients and upstreams around them |
//! | `no_alloc` | field operations, with their allocations counted |
//! | `operations` | the operators' guide, dashboard, alerts, unit and container file, compared with the program |

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests, which lints only know in unit tests"
)]

mod cli;
mod cluster;
mod e2e;
mod no_alloc;
mod old_roots;
mod operations;
mod relay;
