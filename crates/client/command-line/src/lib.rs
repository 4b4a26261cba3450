//! Code that command-line programs for an engine share.
//!
//! Results go to standard output, everything else to standard error, so that a pipe carries
//! documents only. `--json` prints results, and the error of the command, for programs. Exit
//! status: 0 success, 1 failure, 2 invalid arguments (from the argument parser), 64 invalid
//! configuration, 141 if nobody reads standard output.

pub mod connect;
pub mod dev_folder;
pub mod documents;
pub mod failure;
pub mod object_store;
pub mod program;

use std::error::Error;

/// Any failure of a command, printed as `a: b: c`.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Formats an error and its causes as `a: b: c`. Omits a cause if the preceding text already ends
/// with it.
pub fn chain(failure: &(dyn Error + 'static)) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
