//! Async Rust client for Sealwire, an engine that encrypts, tokenizes and stores sensitive fields.
//!
//! An application keeps one [`Client`]. The client keeps a few mTLS connections open to each of its
//! engines and pipelines requests on each connection. The client avoids engines that fail. A failed
//! request is retried if that can help, within its deadline and a budget. Payloads are never
//! logged.
//!
//! Every request future can be dropped at any time: the engine receives a cancel, and no state of
//! the request remains.
//!
//! # Connect
//!
//! Both sides authenticate by certificates. A certificate in a file is read again when the file
//! changes.
//!
//! ```no_run
//! use sealwire_client::{Client, ClientConfig, Pem};
//!
//! # async fn example() -> Result<(), sealwire_client::Error> {
//! let file = |name: &str| Pem::File(format!("/etc/shop/sealwire/{name}").into());
//! let config = ClientConfig::new(
//!     "engine-1.acme.example:31101",
//!     "engine-1.acme.example",
//!     file("ca.pem"),
//!     file("shop.pem"),
//!     file("shop.key"),
//! );
//! let client = Client::connect(config).await?;
//! # Ok(())
//! # }
//! ```
//!
//! With several engines, a request goes to the less busy of two of them. An engine that fails gets
//! no requests for a while.
//!
//! ```no_run
//! use std::time::Duration;
//! use sealwire_client::{Client, ClientConfig, Endpoint};
//!
//! # async fn example(mut config: ClientConfig) -> Result<(), sealwire_client::Error> {
//! for name in ["engine-2.acme.example", "engine-3.acme.example"] {
//!     config.endpoints.push(Endpoint::new(format!("{name}:31101"), name));
//! }
//! config.deadline = Duration::from_secs(5);
//! let client = Client::connect(config).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Encrypt and decrypt a document
//!
//! A document is one MessagePack value. [`to_payload`] and [`Document::to_value`] convert Rust
//! values. Without [`Encrypt::select`], every leaf of the document is encrypted.
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use sealwire_client::{Client, Decrypt, Encrypt, to_payload};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order {
//!     id: u64,
//!     card: String,
//! }
//!
//! # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
//! let order = Order { id: 4711, card: "4111 1111 1111 1111".to_owned() };
//! let payload = to_payload(&order)?;
//! let request = Encrypt::new("shop", &payload).select(["$.card"]).context("orders");
//! let sealed = client.encrypt(request).await?;
//!
//! let request = Decrypt::new("shop", &sealed.payload).context("orders");
//! let opened: Order = client.decrypt(request).await?.to_value()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Handle an overload
//!
//! The client has already retried when it returns an error. [`Error::retry_after`] tells how long a
//! job that can wait should pause. [`Pacer`] does so for the requests of a whole job.
//!
//! ```no_run
//! use sealwire_client::{Client, Document, Encrypt, Error, ErrorCode};
//!
//! # async fn example(client: Client, payload: Vec<u8>) -> Result<Document, Error> {
//! loop {
//!     match client.encrypt(Encrypt::new("shop", &payload)).await {
//!         Err(Error::Rpc(error)) if error.code == ErrorCode::Overloaded => {
//!             let pause = Error::Rpc(error).retry_after().unwrap_or_default();
//!             tokio::time::sleep(pause).await;
//!         }
//!         outcome => return outcome,
//!     }
//! }
//! # }
//! ```
//!
//! # Tokens
//!
//! A token stands for a value that the engine stores. An operator creates the collection first.
//!
//! ```no_run
//! use sealwire_client::{Client, Detokenize, Tokenize, to_payload};
//!
//! # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
//! let payload = to_payload("4111 1111 1111 1111")?;
//! let token = client.tokenize(Tokenize::new("shop", "cards", &payload)).await?;
//! let card = client.detokenize(Detokenize::new("shop", "cards", &token.payload)).await?;
//! assert_eq!(card.to_value::<String>()?, "4111 1111 1111 1111");
//! # Ok(())
//! # }
//! ```
//!
//! # Objects
//!
//! An object has typed properties, each sealed by the engine, which can be found by their indexes.
//!
//! ```no_run
//! use std::collections::BTreeMap;
//! use sealwire_client::{
//!     AddObjects, Client, CollectionTarget, Page, PropertyDisclosure, to_payload,
//! };
//!
//! # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
//! let customers = CollectionTarget::new("shop", "customers");
//! let objects = to_payload(&[BTreeMap::from([("email", "ada@example.com")])])?;
//! client.objects_add(customers, AddObjects::new(&objects)).await?;
//!
//! let clauses = to_payload(&[BTreeMap::from([("property", "email"), ("eq", "ada@example.com")])])?;
//! let found = client
//!     .objects_query(customers, &clauses, PropertyDisclosure::new(), Page::new())
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Control
//!
//! The requests of operators, on apps, collections, roles and root keys, are in [`control`].
//!
//! # Features
//!
//! No feature is on by default.
//!
//! * `public-keys`: checks the public keys of an app, and seals documents to them without an engine
//!   (module `public_keys`). Links the cryptography of fields.
//! * `workspace`: for the crates of the engine only, see below.
//!
//! # Compatibility
//!
//! Requests are built by methods. Structs of results and enums can grow, and so are
//! `non_exhaustive`. The feature `workspace` makes them exhaustive, so an application that enables
//! it loses this promise. Without it, a `match` needs an arm for later variants. This one does not
//! compile:
//!
#![cfg_attr(not(feature = "workspace"), doc = "```compile_fail,E0004")]
#![cfg_attr(feature = "workspace", doc = "```")]
//! # fn example(encoding: sealwire_client::Encoding) -> &'static str {
//! use sealwire_client::Encoding;
//!
//! match encoding {
//!     Encoding::Text => "a string",
//!     Encoding::Binary => "bytes",
//! }
//! # }
//! ```

mod addresses;
mod client;
mod config;
mod connection;
pub mod control;
mod control_calls;
mod endpoints;
mod error;
mod health;
mod jitter;
mod objects;
mod pacer;
mod pool;
mod request;
mod retry;
mod state;
mod tls;
mod tokens;

#[cfg(test)]
mod peer;
#[cfg(test)]
mod tests;

pub use client::{Client, Document, Stats, to_payload};
pub use config::{ClientConfig, Endpoint, Pem};
pub use error::{Error, InvalidMessage, ResponseLimit, TlsError};
pub use pacer::{Pacer, PacerStats, RetryLimits};
pub use request::RequestOptions;
pub use request::documents::{
    Decrypt, Detokenize, Encrypt, EnvelopeOptions, Inspect, Mask, MaskRule, Rewrap, Tokenize,
};
pub use request::objects::{AddObjects, Page, PropertyDisclosure, SubjectErasure, SubjectTarget};
pub use request::tokens::{CollectionTarget, Listing, Sweep, TokenSearch};
/// Public keys of apps, and sealing to them without an engine.
#[cfg(feature = "public-keys")]
pub use sealwire_public_keys as public_keys;
#[doc(inline)]
pub use sealwire_wire::{
    Counted, Detail, DetailValue, Encapsulation, Encoding, ErrorCode, FieldError, Format, Found,
    Health, Info, Inspection, ItemError, KeyScope, Object, ObjectVersion, Objects, ObjectsChanged,
    OnError, Outside, RpcError, SubjectErased, SubjectExport, SubjectFound, SubjectToken, Suite,
    Token, Tokens, Unbound, UnknownFields, Unmatched, ValueKind,
};
