//! The reference: a commented configuration with every key at its default, made from the table of keys.
//!
//! It is written from what the parser reads, so it cannot say anything that does not hold.

use std::fmt::Write;

use super::keys::{Key, Kind, Literal, SECTIONS};

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

fn write_key(text: &mut String, key: &Key) {
    for line in key.doc.lines() {
        let _ = writeln!(text, "# {}", line.trim());
    }
    let _ = writeln!(text, "# {}", takes(key.kind));
    let _ = match key.default {
        Literal::Text(default) => writeln!(text, "{} = {default:?}", key.name),
        Literal::Flag(default) => writeln!(text, "{} = {default}", key.name),
        Literal::Number(default) => writeln!(text, "{} = {}", key.name, grouped(default)),
        Literal::NoEntries => writeln!(text, "{} = []", key.name),
    };
}

/// What a key takes, in one line.
fn takes(kind: Kind) -> String {
    match kind {
        Kind::Address => "Takes ip:port.".into(),
        Kind::OptionalAddress => "Takes ip:port, or \"\" for none.".into(),
        Kind::Path => "Takes a path.".into(),
        Kind::OptionalPath => "Takes a path, or \"\" for none.".into(),
        Kind::Variable => "Takes the name of an environment variable.".into(),
        Kind::Text => "Takes text.".into(),
        Kind::Flag => "Takes true or false.".into(),
        Kind::Roles | Kind::Principals => "Takes a list of texts; in the environment, separated by commas.".into(),
        Kind::Weights => "Takes a list of \"name=weight\"; in the environment, separated by commas.".into(),
        Kind::Choice(choices) => format!("Takes one of: \"{}\".", choices.join("\", \"")),
        Kind::Number { unit, min, max } => format!("Unit: {unit}. From {} to {}.", grouped(min), grouped(max)),
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
        for (number, text) in [(0, "0"), (999, "999"), (1_000, "1_000"), (67_108_864, "67_108_864")] {
            assert_eq!(grouped(number), text);
        }
    }
}
