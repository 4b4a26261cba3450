//! Test suites for the contracts. Every implementation runs them from its own tests.

pub(crate) mod control;
mod model;
mod records;
pub(crate) mod tokens;

use std::sync::Arc;

pub(crate) use control::control_promises;

use crate::TokenStore;

/// Runs the tests of the [`TokenStore`] contract. The runtime needs two threads for the races to be effective.
pub(crate) async fn token_store(store: Arc<dyn TokenStore>) {
    tokens::write::all(&*store).await;
    tokens::keep::all(&*store).await;
    tokens::race::all(&store).await;
    model::all(store).await;
}
