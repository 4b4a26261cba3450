//! Entry points for fuzz targets. Not part of the public API.

pub use crate::file::content::{read as read_state, write as write_state};
