//! What a load needs to reach an engine: the description of a load and its requests, targets with
//! certificates, connections for many small messages, and a responder that does no work.
//!
//! The module uses only the client protocol. It decides neither when a request is sent nor what a
//! response is worth.

pub(crate) mod ask;
pub(crate) mod calls;
pub mod certs;
pub(crate) mod fault;
pub(crate) mod frames;
pub(crate) mod host;
pub(crate) mod load;
pub(crate) mod null_server;
pub(crate) mod random;
pub(crate) mod stream;
pub(crate) mod target;
