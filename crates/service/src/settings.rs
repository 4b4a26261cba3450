//! Declares settings: keys with their kind, default and documentation. Generates the template and
//! the Markdown reference from these declarations.
//!
//! A program declares its keys once, in [`Section`]s with its own [`Kind`] of values. The program
//! checks the values itself, because rules and errors differ between programs.

use std::fmt::Write;

/// Type of a key's values.
pub trait Kind: Copy {
    /// Prefix of the environment variables that override keys, such as `SEALWIRE_`.
    const PREFIX: &'static str;

    /// Describes the values in a sentence for the template, such as `Takes a path.`
    fn takes(self) -> String;
}

/// A configuration key.
#[derive(Clone, Copy, Debug)]
pub struct Key<K: 'static> {
    /// Section of the key.
    pub section: &'static str,
    /// Name of the key in its section.
    pub name: &'static str,
    /// Type of the values.
    pub kind: K,
    /// Value if the key is not set.
    pub default: Literal,
    /// Description for the operator, in one or more lines.
    pub doc: &'static str,
}

/// The default of a key, as a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Literal {
    /// Text, paths, addresses and choices.
    Text(&'static str),
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Number(u64),
    /// A list without entries.
    NoEntries,
    /// The key must be set. Contains an example in TOML.
    Required(&'static str),
    /// The key has no default. Contains an example in TOML, which the template sets.
    Unset(&'static str),
    /// Like [`Literal::Unset`], but the template marks the example as not set.
    Rare(&'static str),
}

impl Literal {
    /// Returns the default as a configuration file contains it, or the example if the key has no
    /// default.
    pub fn toml(self) -> String {
        match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Flag(flag) => flag.to_string(),
            Self::Number(number) => grouped(number),
            Self::NoEntries => "[]".into(),
            Self::Required(example) | Self::Unset(example) | Self::Rare(example) => example.into(),
        }
    }

    /// Formats the default for a Markdown table.
    fn cell(self) -> String {
        match self {
            Self::Required(_) => "required".into(),
            Self::Unset(_) | Self::Rare(_) => "none".into(),
            default => format!("`{}`", default.toml()),
        }
    }
}

impl<K: Kind> Key<K> {
    /// Returns `section.name`, the notation of errors and documents.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// Returns the environment variable that overrides the key: `<PREFIX><SECTION>_<KEY>`.
    pub fn variable(&self) -> String {
        format!("{}{}_{}", K::PREFIX, self.section, self.name).to_uppercase()
    }
}

/// Form of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[name]`. Environment variables can override its keys.
    Table,
    /// `[name.NAME]`, any number of times. Contains the name for the example.
    Named(&'static str),
    /// `[[name]]`, any number of times.
    List,
}

/// A section of the file.
#[derive(Debug)]
pub struct Section<K: 'static> {
    /// Name of the section, such as `limits` or `route.request`.
    pub name: &'static str,
    /// Form of the section, which determines how often a file can contain it.
    pub form: Form,
    /// Description for the operator, in one or more lines.
    pub doc: &'static str,
    /// Keys of the section.
    pub keys: &'static [Key<K>],
}

impl<K: Kind> Section<K> {
    /// Returns the key with this name, if it exists.
    pub fn key(&self, name: &str) -> Option<&'static Key<K>> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Returns the header line of the section. A section of the form [`Form::Named`] gets this
    /// name.
    fn header_named(&self, name: &str) -> String {
        match self.form {
            Form::Table => format!("[{}]", self.name),
            Form::Named(_) => format!("[{}.{name}]", self.name),
            Form::List => format!("[[{}]]", self.name),
        }
    }

    /// Returns the header line of the section.
    pub fn header(&self) -> String {
        match self.form {
            Form::Named(example) => self.header_named(example),
            Form::Table | Form::List => self.header_named(""),
        }
    }
}

/// Declares the keys of a section: `keys!("section": "name", kind, default, "doc"; ...)`.
#[macro_export]
macro_rules! keys {
    ($section:literal: $($name:literal, $kind:expr, $default:expr, $doc:expr;)+) => {
        &[$($crate::settings::Key {
            section: $section,
            name: $name,
            kind: $kind,
            default: $default,
            doc: $doc,
        },)+]
    };
}

/// Generates a commented configuration with every key. `unset` is written before keys that have
/// their default value.
pub fn template<K: Kind>(head: &str, sections: &[Section<K>], unset: &str) -> String {
    let mut text = String::from(head);
    for section in sections {
        text.push('\n');
        comment(&mut text, section.doc);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", section.header());
        for key in section.keys {
            comment(&mut text, key.doc);
            comment(&mut text, &key.kind.takes());
            let prefix = match key.default {
                Literal::Required(_) | Literal::Unset(_) => "",
                _ => unset,
            };
            let _ = writeln!(text, "{prefix}{} = {}", key.name, key.default.toml());
        }
    }
    text
}

fn comment(text: &mut String, doc: &str) {
    for line in doc.lines() {
        let _ = writeln!(text, "# {}", line.trim());
    }
}

/// Generates the reference in Markdown, with a table per section. `meaning` is the title of the
/// last column.
pub fn markdown<K: Kind>(head: &str, sections: &[Section<K>], meaning: &str) -> String {
    let mut text = String::from(head);
    for section in sections {
        let header = section.header_named("NAME");
        let doc = section.doc.replace('\n', " ");
        let _ = write!(
            text,
            "\n## `{header}`\n\n{doc}\n\n| key | takes | default | {meaning} |\n| --- | --- | --- | --- |\n"
        );
        for key in section.keys {
            let takes = key.kind.takes();
            let takes = takes.strip_prefix("Takes ").unwrap_or(&takes);
            let takes = takes.strip_suffix('.').unwrap_or(takes);
            let doc = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                key.name,
                cell(takes),
                key.default.cell(),
                cell(&doc)
            );
        }
    }
    text
}

/// Escapes a text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Formats a number with separators that TOML accepts, such as `67_108_864`.
pub fn grouped(number: u64) -> String {
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

/// Makes a name from a file safe for a terminal: printable ASCII, at most 64 characters.
pub fn shown(name: &str) -> String {
    name.chars()
        .take(64)
        .map(|char| if char.is_ascii_graphic() { char } else { '?' })
        .collect()
}

/// Longest name in a configuration, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum edit distance between an unknown name and a suggested name.
const TYPOS_MAX: usize = 3;

/// Suggests the known name that is closest to an unknown name, as the end of an error message.
/// Returns an empty text if no known name is similar.
pub fn hint<'k>(name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    if name.len() > NAME_BYTES_MAX {
        return String::new();
    }
    let closest = known
        .into_iter()
        .map(|known| (strsim::levenshtein(name, known), known))
        .min();
    match closest {
        Some((distance, known)) if distance <= (1 + known.len() / 4).min(TYPOS_MAX) => {
            format!("; did you mean {known}?")
        }
        _ => String::new(),
    }
}

/// Returns the line number of an offset in a text, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    1 + text
        .bytes()
        .take(offset)
        .filter(|byte| *byte == b'\n')
        .count()
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
    fn shown_names_are_short_and_printable() {
        assert_eq!(shown("a b\u{1b}[1m\u{e9}"), "a?b?[1m?");
        assert_eq!(shown(&"x".repeat(65)).len(), 64);
    }

    #[test]
    fn hints_name_the_closest_known_name() {
        for (name, expected) in [
            ("adress", "; did you mean address?"),
            ("depht_max", "; did you mean depth_max?"),
            ("client-ca", "; did you mean client_ca?"),
            ("depth", ""),
            ("limits_threads_max", ""),
            ("", ""),
            ("\u{e9}\u{e9}", ""),
            (&"x".repeat(10_000), ""),
        ] {
            let known = ["address", "client_ca", "depth_max", "limits_handshakes_max"];
            assert_eq!(hint(name, known), expected, "{name}");
        }
        assert_eq!(hint("adress", []), "");
    }

    #[test]
    fn lines_are_counted_from_one() {
        for (offset, line) in [(0, 1), (1, 1), (2, 2), (99, 3)] {
            assert_eq!(line_of("a\nb\nc", offset), line, "{offset}");
        }
    }
}
