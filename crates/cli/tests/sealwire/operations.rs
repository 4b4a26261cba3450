//! Checks the operators' files against the program: the guide, the dashboard, the alerts, the unit
//! and the container file.

mod container;
mod dashboard;
mod doctor;
mod guide;
mod objects_guide;
mod promql;
mod unit;

use std::path::{Path, PathBuf};

/// Returns the path of a file in the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}
