//! Control operations: apps, keys, collections, roles and the principals that have them, changed in
//! a store.
//!
//! The control listener runs them for an engine; the command line also runs them on a file.

mod apps;
mod bootstrap;
mod keys;
mod migrate;
mod rewrap;
mod roles;
mod rpc_error;
mod schema;
mod views;

pub use apps::{apps, change_app, change_collection, collections, export};
pub use bootstrap::first_start;
pub use keys::{KeyPermits, census};
pub use migrate::migrate;
pub use rewrap::rewrap;
pub use roles::{change_principal, change_role, check, check_store, principals, roles};
pub use rpc_error::store_error;
pub use views::instance;
