//! Columns of Arrow data as the engine sees them.
//!
//! A [`Path`] leads to the values of a column: a [`Leaf`] in each record batch. [`Pieces`] writes
//! the values as arrays in MessagePack, one array per request. [`replace_columns`] replaces the old
//! columns by columns made from the results. Nulls are neither sent nor changed. A column that
//! becomes text notes its type in its field ([`Direction::Seal`]).
//!
//! For masking by rules, [`resolve()`] gives a [`LeafPlan`] for each leaf of a schema.
//! [`LeafPlan::select`] finds the values of a batch that rules mask, and [`LeafMask::pieces`] cuts
//! them into columns of requests. [`LeafMask::put_back`] builds the masked leaf, and [`put_leaves`]
//! puts the leaf into the table.
//!
//! This crate uses no keys, sends no requests, and does no I/O.

mod decode;
mod encode;
mod error;
mod mask;
mod path;
mod replace;
mod resolve;
mod timestamp;
mod types;

pub use decode::build;
pub use encode::{AppendRow, Piece, PiecePart, Pieces, each_value, with_values};
pub use error::ColumnError;
pub use mask::{LeafMask, MaskPieces, SubjectValues, put_leaves};
pub use path::{Leaf, Path};
pub use replace::{Direction, Replacement, replace_columns};
pub use resolve::{
    LeafDecision, LeafPlan, ResolveError, SchemaLeaf, check_function, holds, resolve, schema_leaves,
};
pub use timestamp::{append_timestamp, read_timestamp};
pub use types::{check, named_type, new_field};
