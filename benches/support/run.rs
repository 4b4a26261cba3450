//! Settings of a bench run and the location of its results.

use std::env;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::Criterion;

/// Configures Criterion for this workspace. Runs are shorter than its defaults, because there are
/// many benches and only ratios matter.
#[must_use]
pub fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1_500))
        .nresamples(10_000)
        .configure_from_args()
}

/// Returns whether this is a smoke run: `cargo bench` passes `--bench`, `cargo test` does not.
/// Criterion applies this rule too.
#[must_use]
pub fn is_smoke_run() -> bool {
    let mut bench = false;
    for argument in env::args() {
        if argument == "--test" {
            return true;
        }
        bench |= argument == "--bench";
    }
    !bench
}

/// Writes a line to standard output.
///
/// # Errors
/// If standard output is closed.
pub fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// Returns Cargo's target folder: this program is `<target>/<profile>/deps/<name>`.
#[must_use]
pub fn target() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    program
        .ancestors()
        .nth(3)
        .unwrap_or(Path::new("target"))
        .to_owned()
}
