//! The template and the Markdown reference, generated from a schema. The reader uses the same
//! schema, so both always match the program.

use std::fmt::Write;

use super::{Form, Literal, Schema};

/// Precedes the lines of a section that a template only shows.
const EXAMPLE: &str = "#: ";

impl Schema {
    /// Generates a commented configuration with every key. `unset` is written before keys that have
    /// their default value. If `unset` is empty, the text contains every key at its default, and
    /// sections that a file can contain several times stand there as comments.
    pub fn template(&self, head: &str, unset: &str) -> String {
        let mut text = self.fill(head, "");
        for section in self.sections {
            text.push('\n');
            comment(&mut text, section.doc);
            let is_example = unset.is_empty() && section.form != Form::Table;
            let unset = if is_example { EXAMPLE } else { unset };
            let set = if is_example { EXAMPLE } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{set}{}", section.header());
            for key in section.keys {
                comment(&mut text, key.doc);
                comment(&mut text, &format!("Takes {}.", key.kind.takes()));
                let prefix = match key.default {
                    Literal::Required(_) | Literal::Unset(_) => set,
                    _ => unset,
                };
                let _ = writeln!(text, "{prefix}{} = {}", key.name, key.default.toml());
            }
        }
        text
    }

    /// Generates the reference in Markdown, with a table per section.
    pub fn markdown(&self, head: &str) -> String {
        let mut text = self.fill(head, "`");
        for section in self.sections {
            let header = section.header_named("NAME");
            let doc = section.doc.replace('\n', " ");
            let _ = write!(
                text,
                "\n## `{header}`\n\n{doc}\n\n| key | takes | default | meaning |\n| --- | --- | --- | --- |\n"
            );
            for key in section.keys {
                let doc = key.doc.split_whitespace().collect::<Vec<_>>().join(" ");
                let _ = writeln!(
                    text,
                    "| `{}` | {} | {} | {} |",
                    key.name,
                    cell(&key.kind.takes()),
                    key.default.cell(),
                    cell(&doc)
                );
            }
        }
        text
    }

    /// Replaces `{tables}` by the names of the sections whose keys have variables.
    fn fill(&self, head: &str, quote: &str) -> String {
        let names: Vec<String> = self
            .tables()
            .map(|section| format!("{quote}{}{quote}", section.name))
            .collect();
        let (last, others) = names.split_last().expect("a schema has sections");
        head.replace("{tables}", &format!("{} and {last}", others.join(", ")))
    }
}

fn comment(text: &mut String, doc: &str) {
    for line in doc.lines() {
        let _ = writeln!(text, "# {}", line.trim());
    }
}

/// Escapes a text for a cell of a Markdown table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
