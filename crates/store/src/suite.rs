//! What every implementation of a contract is held to. Each of them calls these from its own tests.

pub(crate) mod control;
mod model;
mod records;
pub(crate) mod tokens;

pub(crate) use control::control_promises;
