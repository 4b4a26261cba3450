//! Test suites for the contracts. Every implementation runs them from its own tests.

pub(crate) mod control;
mod model;
mod records;
pub(crate) mod tokens;

pub(crate) use control::control_promises;
