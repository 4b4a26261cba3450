//! Test suites for the contracts. Every implementation runs them from its own tests.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "these are tests, compiled as a library"
)]

pub mod control;
mod model;
mod records;
pub mod tokens;

use std::sync::Arc;

use crate::TokenStore;

/// Runs the tests of the [`TokenStore`] contract. The runtime needs two threads for the races to be effective.
pub async fn token_store(store: Arc<dyn TokenStore>) {
    tokens::write::all(&*store).await;
    tokens::keep::all(&*store).await;
    tokens::race::all(&store).await;
    model::all(store).await;
}
