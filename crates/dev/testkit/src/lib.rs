//! Environment of tests and benches: a private PostgreSQL, its certificates, PKCS #11 tokens, free
//! ports, a proxy that breaks connections, a transit server, and a moto server. Never part of the
//! program.
//!
//! Every helper here blocks and starts its own threads and processes. Each is removed after its
//! owner ends, in whatever way. Linux only, because the crate reads `/proc`.

mod certificates;
pub mod child;
mod documents;
mod moto;
mod ports;
mod postgres;
mod proxy;
pub mod softhsm;
mod transit;

pub use certificates::Certificates;
pub use documents::check_document;
pub use moto::{Moto, MotoResponse};
pub use ports::free_ports;
pub use postgres::{CITUS_VARIABLE, Citus, Database, Failure, Options, Postgres, Stop};
pub use proxy::{Direction, Proxy};
pub use transit::{ROOT_TOKEN, TransitFault, TransitServer};
