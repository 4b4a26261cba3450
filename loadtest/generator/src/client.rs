//! Client side of a load.
//!
//! The module contains the description of a load and its requests, targets with certificates, and
//! connections for many small messages. A responder that does no work is also here. The module uses
//! only the client protocol. When a request is sent, and whether a response is correct, is decided
//! elsewhere.

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
