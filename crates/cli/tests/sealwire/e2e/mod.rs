//! The engine from outside: real sockets on loopback, real mutual TLS, real apps in a folder.
//!
//! Each module is one promise to callers or operators. [`harness`] starts a server of its own for every test, so limits
//! are set where they are tested; tests speak in tables. Nothing here knows how the server works inside: what cannot be
//! seen on the wire is read from `/metrics`, as an operator would.

mod access;
mod audit;
mod bad_input;
mod cancel;
mod certificates;
mod control;
mod documents;
mod drain;
mod epoch;
mod evervault;
mod harness;
mod health;
mod hold;
mod instances;
mod large;
mod limits;
mod masks;
mod overload;
mod pipelining;
mod raw;
mod reload;
mod retry;
mod rewrap;
mod state;
mod text_errors;
mod tls;
mod tokens;
mod traces;
