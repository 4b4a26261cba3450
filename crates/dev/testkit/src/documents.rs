//! Documents that are generated from the code. A test compares each with the program's output.

use std::path::Path;

/// Fails unless the repository's file equals the output of `sealwire COMMAND`. The message shows
/// the first difference and how to regenerate the file.
pub fn check_document(file: &str, printed: &str, command: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../..")
        .join(file);
    let held = std::fs::read_to_string(path).unwrap_or_default();
    if held == printed {
        return;
    }
    let (mut held, mut printed) = (held.lines(), printed.lines());
    let line = 1 + held
        .by_ref()
        .zip(printed.by_ref())
        .take_while(|(held, printed)| held == printed)
        .count();
    panic!(
        "{file} differs from the code from line {line} on. Write it with\n    cargo run --release -- {command} > {file}"
    );
}
