//! Reads the sections, tables and examples of a page such as `proto/README.md`.

use std::collections::BTreeMap;

use serde_json::Value;

/// The member of an object that stands for a binary value of an example, in hexadecimal.
const BINARY: &str = "$binary";

/// A page in Markdown.
pub(super) struct Page(&'static str);

/// A part of the text of a section.
#[derive(Debug, PartialEq, Eq)]
enum Block {
    Paragraph(String),
    Bullet(String),
}

/// The text of a section about parameters.
#[derive(Debug, Default)]
pub(super) struct Prose {
    /// The paragraphs, and the bullets about nothing in particular.
    pub(super) text: String,
    /// The bullets about one parameter, by its name.
    pub(super) params: BTreeMap<String, String>,
}

/// A request of the contract's examples, with its result.
pub(super) struct Example {
    /// The parameters.
    pub(super) params: Value,
    /// The result.
    pub(super) result: Value,
}

impl Page {
    pub(super) const fn new(text: &'static str) -> Self {
        Self(text)
    }

    /// Returns the lines of a section, up to the next heading.
    fn lines(&self, section: &str) -> Vec<&'static str> {
        let is_heading =
            |line: &&str| line.starts_with('#') && line.trim_start_matches('#').trim() == section;
        let mut lines = self.0.lines().skip_while(|line| !is_heading(line));
        assert!(lines.next().is_some(), "no section {section}");
        lines.take_while(|line| !line.starts_with('#')).collect()
    }

    /// Returns the rows of the first table of a section whose first cell is `head`, or `None` if the
    /// section has no such table.
    pub(super) fn table(&self, section: &str, head: &str) -> Option<Vec<Vec<String>>> {
        let lines = self.lines(section);
        let start = lines
            .iter()
            .position(|line| line.starts_with(&format!("| {head} |")))?;
        let rows = lines[start + 2..]
            .iter()
            .take_while(|line| line.starts_with('|'))
            .map(|line| cells(line));
        Some(rows.collect())
    }

    /// Returns the section to which a link within the page leads.
    pub(super) fn section_of(&self, anchor: &str) -> &'static str {
        let mut headings = self
            .0
            .lines()
            .filter(|line| line.starts_with('#'))
            .map(|line| line.trim_start_matches('#').trim());
        headings
            .find(|heading| heading.to_lowercase().replace(' ', "-") == anchor)
            .unwrap_or_else(|| panic!("no section #{anchor}"))
    }

    /// Returns the rows of every table whose first cell begins with "of a", in any section.
    pub(super) fn tables_of_entries(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut is_inside = false;
        for line in self.0.lines() {
            is_inside = line.starts_with('|') && (is_inside || line.starts_with("| of a"));
            if is_inside && line.starts_with("| `") {
                rows.push(cells(line));
            }
        }
        rows
    }

    /// Returns the text of a section without its tables.
    pub(super) fn prose(&self, section: &str) -> Prose {
        let mut prose = Prose::default();
        for block in blocks(&self.lines(section)) {
            let text = match block {
                Block::Paragraph(text) => plain(&text),
                Block::Bullet(text) => match param_of_bullet(&plain(&text)) {
                    Some((name, text)) => {
                        prose.params.insert(name, capitalized(&text));
                        continue;
                    }
                    None => format!("* {}", plain(&text)),
                },
            };
            let last_line = prose.text.rsplit('\n').next();
            let is_list =
                text.starts_with("* ") && last_line.is_some_and(|line| line.starts_with("* "));
            if !prose.text.is_empty() {
                prose.text.push_str(if is_list { "\n" } else { "\n\n" });
            }
            prose.text.push_str(&text);
        }
        prose
    }

    /// Returns the examples of the data listener, by method.
    pub(super) fn examples(&self) -> BTreeMap<String, Example> {
        let (_, rest) = self
            .0
            .split_once("The data listener:\n\n```text\n")
            .unwrap();
        let (messages, _) = rest.split_once("```").unwrap();
        let mut examples = BTreeMap::new();
        for pair in messages.split("\n\n") {
            let pair = pair.trim_end().replace("\n    ", " ");
            let (request, response) = pair.split_once("\n<- ").unwrap();
            let request = parse_diagnostic(request.strip_prefix("-> ").unwrap());
            let response = parse_diagnostic(response);
            let method = request[2].as_str().unwrap().to_owned();
            let example = Example {
                params: request[3][0].clone(),
                result: response[3].clone(),
            };
            examples.entry(method).or_insert(example);
        }
        examples
    }
}

/// Returns the cells of a row.
fn cells(line: &str) -> Vec<String> {
    let line = line.strip_prefix("| ").unwrap_or(line);
    let line = line.strip_suffix(" |").unwrap_or(line);
    let cells = line.split(" | ");
    cells.map(|cell| cell.trim().to_owned()).collect()
}

/// Joins lines to paragraphs and bullets. Lines of tables are left out.
fn blocks(lines: &[&str]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut is_open = false;
    for line in lines {
        let line = line.trim_end();
        if line.is_empty() || line.starts_with('|') {
            is_open = false;
        } else if let Some(bullet) = line.strip_prefix("* ") {
            blocks.push(Block::Bullet(bullet.into()));
            is_open = true;
        } else if is_open {
            let (Block::Paragraph(text) | Block::Bullet(text)) = blocks.last_mut().unwrap();
            let line = line.trim_start();
            text.push_str(if line.starts_with("* ") { "\n" } else { " " });
            text.push_str(line);
        } else {
            blocks.push(Block::Paragraph(line.trim_start().into()));
            is_open = true;
        }
    }
    blocks
}

/// Returns the parameter that a bullet describes, and its text.
fn param_of_bullet(text: &str) -> Option<(String, String)> {
    let (name, text) = text.strip_prefix('`')?.split_once("`: ")?;
    (!name.contains('`')).then(|| (name.to_owned(), text.to_owned()))
}

/// Returns a text without its links, which are relative to the page.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    // A link in parentheses is a hint where to read on.
    while let Some(middle) = rest.find("](") {
        let Some(start) = rest[..middle].rfind('[') else {
            break;
        };
        let end = middle + rest[middle..].find(')').unwrap() + 1;
        let before = &rest[..start];
        match (before.strip_suffix(" ("), rest[end..].strip_prefix(')')) {
            (Some(before), Some(behind)) => {
                out.push_str(before);
                rest = behind;
            }
            _ => {
                out.push_str(before);
                out.push_str(&rest[start + 1..middle]);
                rest = &rest[end..];
            }
        }
    }
    out + rest
}

/// Returns a text that begins with a capital letter.
pub(super) fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).collect()
}

/// Parses the notation of the examples: JSON with `nil`, and with binary as `h'..'`.
fn parse_diagnostic(text: &str) -> Value {
    let mut json = String::new();
    let mut rest = text;
    let mut is_in_string = false;
    while let Some(character) = rest.chars().next() {
        if !is_in_string && let Some(behind) = rest.strip_prefix("nil") {
            json.push_str("null");
            rest = behind;
        } else if !is_in_string && let Some(behind) = rest.strip_prefix("h'") {
            let (digits, behind) = behind.split_once('\'').unwrap();
            json.push_str(&format!(r#"{{"{BINARY}":"{digits}"}}"#));
            rest = behind;
        } else {
            let mut length = character.len_utf8();
            if is_in_string && character == '\\' {
                length += 1;
            }
            is_in_string ^= character == '"';
            json.push_str(&rest[..length]);
            rest = &rest[length..];
        }
    }
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// Returns true if a part of the value is binary, which JSON does not have.
pub(super) fn has_binary(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_binary),
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| name == BINARY || has_binary(value)),
        _ => false,
    }
}

#[test]
fn texts_lose_links_and_keep_brackets() {
    for (text, expected) in [
        ("as in [types](#types) and `[1]`", "as in types and `[1]`"),
        ("[`decrypt`](#decrypt-params)", "`decrypt`"),
        ("`$[0]` (see [a](b.md))", "`$[0]` (see a)"),
        ("last ([why](#w)), or [a](b)", "last, or a"),
        ("no link", "no link"),
    ] {
        assert_eq!(plain(text), expected);
    }
}

#[test]
fn prose_separates_params_from_other_text() {
    let page = Page::new(
        "# one\n\n### m params\n\n| key |\n| --- |\n| `a` |\n\nFirst line\nsecond line.\n\n\
         * `a`: what [it](x.md) is\n  * nested\n  more\n* `b` and c: [other\n  things](y.md)\n* Third.\n\n### next\n",
    );
    let prose = page.prose("m params");
    assert_eq!(
        prose.text,
        "First line second line.\n\n* `b` and c: other things\n* Third."
    );
    assert_eq!(prose.params["a"], "What it is\n* nested more");
    assert_eq!(prose.params.len(), 1);
}

#[test]
fn examples_are_json_with_nil_and_binary() {
    let value = parse_diagnostic(r#"[nil, "nil \" h'00'", {"a": h'00ff'}]"#);
    assert_eq!(
        value,
        serde_json::json!([null, "nil \" h'00'", {"a": {"$binary": "00ff"}}])
    );
    assert!(has_binary(&value) && !has_binary(&serde_json::json!(["h'00'"])));
}
