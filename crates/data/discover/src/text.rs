//! Writes a discovery as a rules file.

use std::fmt::Write as _;

use sealwire_mask_rules::Target;

use crate::{DiscoveredField, Discovery, FieldVerdict};

/// Quotes a text as a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Replaces line ends and other control characters in a comment.
fn on_a_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Appends a comment of one line.
fn push_comment(out: &mut String, text: &str) {
    out.push_str("# ");
    out.push_str(&on_a_line(text));
    out.push('\n');
}

fn fields_of(
    discovery: &Discovery,
    verdict: FieldVerdict,
) -> impl Iterator<Item = &DiscoveredField> {
    discovery
        .fields
        .iter()
        .filter(move |field| field.verdict == verdict)
}

pub(crate) fn toml(discovery: &Discovery) -> String {
    let mut out = String::from(
        "# Rules that discovery proposes. Read them, decide the uncertain fields below, and try them on the data, as\n\
         # `sealwire mask check` does for files. No sampled value is in this file.\n",
    );
    for note in &discovery.notes {
        push_comment(&mut out, &format!("Note: {note}."));
    }
    out.push_str("\n# Fields that no rule names are kept. `refuse` makes a job fail where a new field appears.\nunknown = \"keep\"\n");
    for field in fields_of(discovery, FieldVerdict::Sensitive) {
        out.push('\n');
        push_comment(&mut out, &evidence(field));
        for part in rule(field) {
            out.push_str(&part);
            out.push('\n');
        }
    }
    if fields_of(discovery, FieldVerdict::Uncertain)
        .next()
        .is_some()
    {
        out.push_str(
            "\n# Uncertain: decide on each, and remove the `#` of the rules that you want.\n",
        );
        for field in fields_of(discovery, FieldVerdict::Uncertain) {
            out.push_str("#\n");
            push_comment(&mut out, &format!("{}: {}", field.field, evidence(field)));
            match field.mask {
                Some(_) => rule(field)
                    .iter()
                    .for_each(|part| push_comment(&mut out, &format!("  {part}"))),
                None => push_comment(&mut out, "  No function fits its values and its column."),
            }
        }
    }
    let (read, empty): (Vec<_>, Vec<_>) =
        fields_of(discovery, FieldVerdict::Harmless).partition(|field| field.values > 0);
    if !read.is_empty() {
        out.push_str("\n# Judged harmless:\n");
        for field in read {
            push_comment(
                &mut out,
                &format!("  {} ({} values)", field.field, field.values),
            );
        }
    }
    if !empty.is_empty() {
        out.push_str("\n# Not judged but by name, since no value was read:\n");
        for field in empty {
            push_comment(&mut out, &format!("  {}", field.field));
        }
    }
    out
}

fn evidence(field: &DiscoveredField) -> String {
    let category = field.category.map_or("", super::Category::title);
    format!(
        "{category}. {}; confidence {:.2}",
        field.evidence.join("; "),
        field.confidence
    )
}

fn rule(field: &DiscoveredField) -> [String; 3] {
    let (key, name) = match &field.target {
        Some(Target::Path(path)) => ("path", path.as_str()),
        Some(Target::Column(column)) => ("column", column.as_str()),
        Some(Target::Kind(kind)) => ("kind", kind.name()),
        None => ("column", field.field.as_str()),
    };
    let mask = field.mask.as_deref().unwrap_or("redact");
    [
        "[[rule]]".to_owned(),
        format!("{key} = {}", quoted(name)),
        format!("mask = {}", quoted(mask)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_string_or_comment() {
        for text in ["a\"b", "a\\b", "a\nb", "é", "\u{7f}", "x\"\n[[rule]]\n"] {
            let parsed: Result<sealwire_mask_rules::Rules, _> =
                sealwire_mask_rules::Rules::from_toml(&format!(
                    "# {}\nunknown = \"keep\"\n[[rule]]\ncolumn = {}\nmask = \"redact\"\n",
                    on_a_line(text),
                    quoted(text)
                ));
            let rules = parsed.unwrap_or_else(|error| panic!("{text:?}: {error}"));
            assert_eq!(
                rules.get(0).map(|rule| rule.target.clone()),
                Some(Target::Column(text.to_owned()))
            );
        }
    }
}
