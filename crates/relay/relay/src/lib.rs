//! An HTTP proxy that encrypts, decrypts, tokenizes and masks fields of the traffic that passes
//! through it.
//!
//! The relay never has a key. The relay finds the selected values of a request or response,
//! requests replacements from a Sealwire engine, and forwards all other bytes unchanged. If a value
//! cannot be replaced, the message does not pass. Read [`exchange`] first: it has the path of one
//! request.

pub mod admin;
pub mod body;
pub mod clients;
pub mod coding;
pub mod completion;
pub mod config;
pub mod connection;
pub mod doctor;
pub mod edit;
pub mod egress;
pub mod engine;
pub mod envelope;
pub mod error;
pub mod exchange;
pub mod ext_proc;
pub mod fields;
pub mod headers;
pub mod listener;
pub mod memory;
pub mod message;
pub mod metrics;
pub mod relay;
pub mod request_check;
pub mod response_body;
pub mod route;
pub mod route_edit;
pub mod route_table;
pub mod serve;
pub mod server_tls;
pub mod shares;
pub mod upstream;
pub mod usage;
pub mod websocket;
