//! Parts that load tests need to reach an engine: the description of a load and its requests,
//! targets with certificates, connections for many small messages, a delaying relay, and a
//! responder that does no work.
//!
//! The crate uses only the client protocol. It decides neither when a request is sent nor what a
//! response is worth.

pub mod ask;
pub mod calls;
pub mod certs;
pub mod delay;
pub mod fault;
pub mod frames;
pub mod host;
pub mod load;
pub mod null_server;
mod pem;
pub mod random;
pub mod stream;
pub mod target;
