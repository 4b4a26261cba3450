//! Test suites for the contracts. Every implementation runs them from its own tests.

#![allow(
    missing_docs,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "these are tests, compiled as a library"
)]

pub mod control;
mod model;
pub mod objects;
mod records;
mod sweeps;
pub mod tokens;

use std::sync::Arc;

use crate::{ObjectStore, TokenStore};

/// Runs the tests of the [`TokenStore`] contract. The runtime needs two threads for the races to be
/// effective.
pub async fn token_store(store: Arc<dyn TokenStore>) {
    tokens::write::all(&*store).await;
    tokens::keep::all(&*store).await;
    tokens::reseal::all(&store).await;
    tokens::race::all(&store).await;
    model::all(store).await;
}

/// Runs the tests of rows that name data subjects, whose keys are objects. The runtime needs two
/// threads for the races to be effective.
pub async fn token_subjects<S: TokenStore + ObjectStore + 'static>(store: Arc<S>) {
    tokens::subjects::all(&store).await;
}

/// Runs the tests of the [`ObjectStore`] contract. The runtime needs two threads for the races to
/// be effective. Other tests must not write objects to the store at the same time.
pub async fn object_store(store: Arc<dyn ObjectStore>) {
    objects::write::all(&*store).await;
    objects::conflicts::all(&*store).await;
    objects::unique::all(&*store).await;
    objects::clauses::all(&*store).await;
    objects::query::all(&store).await;
    objects::keep::all(&*store).await;
    objects::copy::all(&*store).await;
    objects::fences::all(&*store).await;
    objects::subjects::all(&store).await;
    objects::reseal::all(&store).await;
    objects::race::all(&store).await;
    objects::model::all(store).await;
}
