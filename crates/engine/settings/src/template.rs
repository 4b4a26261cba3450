//! The configuration reference, generated from the table of keys. The template is a commented
//! configuration with every key at its default. The Markdown text is the page
//! `docs/configuration.md`.
//!
//! The parser uses the same table, so the reference always matches the program.

use super::keys::SCHEMA;

const HEAD: &str = "\
# Sealwire configuration: every key, at its default. A file needs only the keys that differ.
# Relative paths are taken from this file's folder.
# Each key can be overridden by the environment variable SEALWIRE_<SECTION>_<KEY>. A list is in TOML there, or separated by commas.
";

/// Returns the template. Parsing it results in the defaults.
pub(super) fn text() -> String {
    SCHEMA.template(HEAD, "")
}

const MARKDOWN_HEAD: &str = "\
# Configuration

A TOML file, given by `--config`, with the keys that differ from their defaults. Relative paths start at its folder.
The environment variable `SEALWIRE_<SECTION>_<KEY>` overrides a key. A list is in TOML there, or separated by commas.
`sealwire config check` lists all problems of a file at once, by line and key; unknown keys are problems, too.
`sealwire config template` prints this as a file to start from.

Written by `sealwire config template --markdown`; a test compares it with the program.
";

/// Returns the reference as Markdown, a table per section.
pub(super) fn markdown() -> String {
    SCHEMA.markdown(MARKDOWN_HEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_document_is_the_table_of_keys() {
        sealwire_testkit::check_document(
            "docs/configuration.md",
            &markdown(),
            "config template --markdown",
        );
    }
}
