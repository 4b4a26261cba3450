//! The table of functions in `docs/masking.md`.

/// The table, as Markdown.
#[must_use]
pub fn reference() -> String {
    String::new()
}
