//! Settings of programs: a schema of all keys, from which the reader, the template and the Markdown
//! reference are generated.
//!
//! A program declares its keys once, in the [`Section`]s of a [`Schema`]. [`Schema::read`] checks a
//! file and the environment, inserts defaults, and reports every problem at once. Programs convert
//! the values and check the rules between keys.

mod document;
mod endpoint;
mod kind;
mod problem;
mod template;

use std::path::Path;

use toml::Value;

pub use document::{Document, Lines};
pub use endpoint::{host_of, is_endpoint};
pub use kind::{Kind, ListKind, ends_in_key, is_key};
pub use problem::{Problem, Problems};

/// A configuration key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Section of the key.
    pub section: &'static str,
    /// Name of the key in its section.
    pub name: &'static str,
    /// Type of the values.
    pub kind: Kind,
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

    /// Returns the default.
    fn value(self) -> Option<Value> {
        match self {
            Self::Text(text) => Some(text.into()),
            Self::Flag(flag) => Some(flag.into()),
            // Every default is in the range of its kind, which ends below 2^63.
            Self::Number(number) => Some((number as i64).into()),
            Self::NoEntries => Some(Value::Array(Vec::new())),
            Self::Required(_) | Self::Unset(_) | Self::Rare(_) => None,
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

impl Key {
    /// Returns `section.name`, the notation of problems and documents.
    pub fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }
}

/// All keys of a program's configuration.
#[derive(Debug)]
pub struct Schema {
    /// Prefix of the environment variables that override keys, such as `SEALWIRE_`. Every variable
    /// with this prefix must override a key.
    pub prefix: &'static str,
    /// Sections in the order of the template.
    pub sections: &'static [Section],
    /// Command that prints the template.
    pub template_command: &'static str,
    /// Section and name of a key that names a variable with a secret. This variable overrides no
    /// key, even if it has the name of one.
    pub secret_variable: Option<(&'static str, &'static str)>,
    /// True if names of variables are compared without regard to case.
    pub variables_ignore_case: bool,
}

impl Schema {
    /// Returns the section with this name.
    pub fn section(&self, name: &str) -> Option<&'static Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Returns the sections whose keys environment variables can override.
    fn tables(&self) -> impl Iterator<Item = &'static Section> {
        self.sections
            .iter()
            .filter(|section| section.form == Form::Table)
    }

    /// Returns the environment variable that overrides a key: `<PREFIX><SECTION>_<KEY>`.
    pub fn variable(&self, key: &Key) -> String {
        format!("{}{}_{}", self.prefix, key.section, key.name).to_uppercase()
    }
}

/// Form of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `[name]`. Environment variables can override its keys.
    Table,
    /// `[name.NAME]`, any number of times. Contains the name for the example.
    Named(&'static str),
    /// `[[name]]`, any number of times. Beneath each, there can be lists of rules with these names.
    /// Their keys are those of the section `<name>.<first of these names>`.
    List(&'static [&'static str]),
}

impl Form {
    /// Returns the names of the lists of rules.
    fn rules(self) -> &'static [&'static str] {
        match self {
            Self::List(rules) => rules,
            Self::Table | Self::Named(_) => &[],
        }
    }
}

/// A section of the file.
#[derive(Debug)]
pub struct Section {
    /// Name of the section, such as `limits` or `route.request`.
    pub name: &'static str,
    /// Form of the section, which determines how often a file can contain it.
    pub form: Form,
    /// Description for the operator, in one or more lines.
    pub doc: &'static str,
    /// Keys of the section.
    pub keys: &'static [Key],
}

impl Section {
    /// Returns the key with this name, if it exists.
    pub fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Returns the header line of the section. A section of the form [`Form::Named`] gets this
    /// name.
    fn header_named(&self, name: &str) -> String {
        match self.form {
            Form::Table => format!("[{}]", self.name),
            Form::Named(_) => format!("[{}.{name}]", self.name),
            Form::List(_) => format!("[[{}]]", self.name),
        }
    }

    /// Returns the header line of the section.
    pub fn header(&self) -> String {
        match self.form {
            Form::Named(example) => self.header_named(example),
            Form::Table | Form::List(_) => self.header_named(""),
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

/// Maximum edit distance between an unknown name and a suggested name.
const TYPOS_MAX: usize = 3;

/// Longest name in a configuration, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Returns true if a text is a valid name of a table, such as a listener. Names are labels of
/// metrics.
fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Maximum size of a configuration file, in bytes. A larger file indicates a wrong path.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads a configuration file. Blocks.
///
/// # Errors
///
/// The file is missing, too long, not UTF-8 or not readable by this process.
pub fn read_file(file: &Path) -> Result<String, Problems> {
    let failed =
        |message: String| Problems::from(Problem::new(file.display().to_string(), message));
    let unreadable = |error: std::io::Error| failed(format!("cannot be read: {error}"));
    if std::fs::metadata(file).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(failed(format!("must have at most {FILE_BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(file).map_err(unreadable)
}

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
