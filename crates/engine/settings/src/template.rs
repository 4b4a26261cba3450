//! The reference, made from the table of keys: a commented configuration with every key at its
//! default, and the same for people to read (`docs/configuration.md`).
//!
//! It is written from what the parser reads, so it cannot say anything that does not hold.

use std::fmt::Write;

use super::key::{Key, Literal, ValueKind};
use super::keys::SECTIONS;

const HEAD: &str = "\
# Sealwire configuration: every key, at its default. A file needs only the keys that differ.
# Relative paths are taken from this file's folder.
# Each key can be overridden by the environment variable SEALWIRE_<SECTION>_<KEY>.
";

/// The whole text. Parses to the defaults.
pub(super) fn text() -> String {
    let mut text = String::from(HEAD);
    for section in SECTIONS {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n# {}\n[{}]\n", section.doc, section.name);
        for key in section.keys {
            write_key(&mut text, key);
        }
    }
    text
}

const MARKDOWN_HEAD: &str = "\
# Configuration

One TOML file, given by `--config`; it needs only the keys that differ from their defaults. Relative paths are taken from its
folder. The environment variable `SEALWIRE_<SECTION>_<KEY>` overrides a key. `sealwire config check` says everything that is
wrong with a file at once, by key and line; nothing else is accepted. `sealwire config template` prints this as a file to start from.

Written by `sealwire config template --markdown`; a test compares it with the program.
";

/// Returns the reference as Markdown, a table per section.
pub(super) fn markdown() -> String {
    let mut text = String::from(MARKDOWN_HEAD);
    for section in SECTIONS {
        let _ = write!(text, "\n## `[{}]`\n\n{}\n", section.name, section.doc);
        let _ = writeln!(
            text,
            "\n| key | takes | default | what it is |\n| --- | --- | --- | --- |"
        );
        for key in section.keys {
            let takes = takes(key.kind);
            let takes = takes
                .strip_prefix("Takes ")
                .unwrap_or(&takes)
                .trim_end_matches('.');
            let doc = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
            let (takes, doc) = (cell(takes), cell(&doc));
            let _ = writeln!(
                text,
                "| `{}` | {takes} | `{}` | {doc} |",
                key.name,
                default(key.default)
            );
        }
    }
    text
}

/// Text that stays within its cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// A default as a file writes it.
fn default(literal: Literal) -> String {
    match literal {
        Literal::Text(default) => format!("{default:?}"),
        Literal::Flag(default) => default.to_string(),
        Literal::Number(default) => grouped(default),
        Literal::NoEntries => "[]".into(),
    }
}

fn write_key(text: &mut String, key: &Key) {
    for line in key.doc.lines() {
        let _ = writeln!(text, "# {}", line.trim());
    }
    let _ = writeln!(text, "# {}", takes(key.kind));
    let _ = writeln!(text, "{} = {}", key.name, default(key.default));
}

/// Describes the values of a key in one line.
fn takes(kind: ValueKind) -> String {
    match kind {
        ValueKind::Address => "Takes ip:port.".into(),
        ValueKind::OptionalAddress => "Takes ip:port, or \"\" for none.".into(),
        ValueKind::Path => "Takes a path.".into(),
        ValueKind::OptionalPath => "Takes a path, or \"\" for none.".into(),
        ValueKind::OptionalUrl => "Takes http://host:port/path, or \"\" for none.".into(),
        ValueKind::Variable => "Takes the name of an environment variable.".into(),
        ValueKind::Text => "Takes text.".into(),
        ValueKind::Flag => "Takes true or false.".into(),
        ValueKind::Fraction => "Takes a number from 0 to 1.".into(),
        ValueKind::Roles | ValueKind::Principals | ValueKind::Identity => {
            "Takes a list of texts; in the environment, separated by commas.".into()
        }
        ValueKind::Weights => {
            "Takes a list of \"name=weight\"; in the environment, separated by commas.".into()
        }
        ValueKind::Choice(choices) => format!("Takes one of: \"{}\".", choices.join("\", \"")),
        ValueKind::Number { unit, min, max } => {
            format!("Unit: {unit}. From {} to {}.", grouped(min), grouped(max))
        }
    }
}

/// `67_108_864`, which TOML reads and people can count.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('_');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1_000"),
            (67_108_864, "67_108_864"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn the_configuration_document_is_the_table_of_keys() {
        sealwire_testkit::check_document(
            "docs/configuration.md",
            &markdown(),
            "config template --markdown",
        );
    }
}
