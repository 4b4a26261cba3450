//! What every implementation of a contract is held to. Each of them calls these from its own tests.

mod model;
pub(crate) mod tokens;
