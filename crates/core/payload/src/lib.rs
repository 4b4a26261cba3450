//! Processes a MessagePack document in one pass, from the bytes of a request to the bytes of the
//! response.
//!
//! [`Walk`] finds the fields that a [`Selection`] names, lets a [`Transform`] replace each, and
//! copies everything else byte for byte, odd encodings included. A walk can stop after any field
//! and continue later, so a scheduler can slice it. A walk rejects malformed input, strings that
//! are not UTF-8, and documents beyond its [`WalkLimits`]. This crate has no cryptography. A walk
//! builds no tree, does not allocate per field and never recurses. Map keys are never fields.
//!
//! [`json`] converts JSON text to MessagePack and back without changing a value.

mod frame;
pub mod json;
mod limits;
mod path;
mod select;
mod siblings;
#[cfg(test)]
mod testing;
mod transform;
mod walk;

pub use limits::{Budget, WalkLimits};
pub use path::{Path, push_name};
pub use select::{Position, PrioritizedEntry, SelectError, Selection};
pub use siblings::{EnclosingMap, FoundSibling, ScanStep, SiblingScan};
pub use transform::{Containers, ExtraWork, Field, Outcome, Transform};
pub use walk::{Progress, Walk, WalkError};
