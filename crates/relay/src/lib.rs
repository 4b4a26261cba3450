//! An HTTP proxy that encrypts, decrypts, tokenizes and masks fields of the traffic that passes through it.
//!
//! The relay holds no key. It finds the selected values of a request or response, lets a Sealwire engine replace them,
//! and forwards all other bytes as they came. If a value cannot be replaced, the message does not pass.
//! [`exchange`] is the path of one request: read it first.

pub mod coding;
pub mod error;
pub mod headers;
pub mod request_check;
pub mod route;
pub mod server_tls;
pub mod upstream;
