//! Documents that are made from the code: a test holds each to what the program prints.

use std::path::Path;

/// Fails unless the file of the repository is what `sealwire COMMAND` prints, with where they part and how to write it anew.
pub fn check_document(file: &str, printed: &str, command: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file);
    let held = std::fs::read_to_string(path).unwrap_or_default();
    if held == printed {
        return;
    }
    let (mut held, mut printed) = (held.lines(), printed.lines());
    let line = 1 + held.by_ref().zip(printed.by_ref()).take_while(|(held, printed)| held == printed).count();
    panic!(
        "{file} is not what the code says, from line {line} on. Write it with\n    cargo run --release -- {command} > {file}"
    );
}
