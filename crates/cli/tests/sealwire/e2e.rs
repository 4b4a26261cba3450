//! Tests of the engine from outside: real sockets on loopback, real mutual TLS, real apps in a
//! folder.
//!
//! Each module tests one guarantee to clients or operators. [`harness`] starts a separate server
//! for every test, so limits are set where they are tested. Many tests are tables. The tests do not
//! depend on the server's internals: values that are not visible on the wire are read from
//! `/metrics`, as an operator would.

mod access;
mod audit;
mod bad_input;
mod bearer;
mod cancel;
mod certificate_names;
mod certificates;
mod contexts;
mod control;
mod documents;
mod drain;
mod epoch;
mod evervault;
pub(crate) mod harness;
mod health;
mod hold;
mod http;
mod inline;
mod instances;
mod large;
mod limits;
mod masks;
mod objects;
mod outside;
mod overload;
mod pipelining;
mod poison;
mod raw;
mod reload;
mod retry;
mod rewrap;
mod seal;
mod state;
mod suites;
mod text_errors;
mod tls;
mod tokens;
pub(crate) mod traces;
