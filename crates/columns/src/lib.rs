//! Columns of Arrow data as the engine sees them.
//!
//! A [`Path`] leads to the values of a column: a [`Leaf`] in each record batch. [`Pieces`] writes the values as arrays in
//! MessagePack, one array per request, and [`replace_columns`] puts columns made from the results in place of the old ones.
//! Nulls are neither sent nor changed. A column that becomes text notes its type in its field ([`Direction::Seal`]).
//!
//! This crate holds no key, sends nothing, and has no I/O.

mod decode;
mod encode;
mod error;
mod path;
mod replace;
mod timestamp;
mod types;

pub use decode::build;
pub use encode::{Piece, Pieces, append_value};
pub use error::ColumnError;
pub use path::{Leaf, Path};
pub use replace::{Direction, Replacement, replace_columns};
pub use timestamp::{append_timestamp, read_timestamp};
pub use types::{check, new_field};
