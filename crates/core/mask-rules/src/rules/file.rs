//! Rules as a TOML text.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::error::{RuleFault, RulePosition};
use super::{Lists, Rule, Rules, RulesError, Target, Unknown};
use crate::Function;
use crate::limits::FILE_BYTES_MAX;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    unknown: Option<Spanned<String>>,
    #[serde(default)]
    rule: Vec<Spanned<RuleEntry>>,
    #[serde(default)]
    lists: BTreeMap<Spanned<String>, List>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    path: Option<Spanned<String>>,
    column: Option<Spanned<String>>,
    kind: Option<Spanned<String>>,
    mask: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a list is an array of texts, or the name of a file"
)]
enum List {
    Inline(Vec<String>),
    File(String),
}

/// Positions of the parts of one rule.
struct Spans {
    rule: usize,
    target: Range<usize>,
    mask: Range<usize>,
}

pub(super) fn read(
    text: &str,
    mut read_list: impl FnMut(&str) -> Result<String, String>,
) -> Result<Rules, RulesError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(RulesError::at(
            text,
            0,
            format!("rules of more than {FILE_BYTES_MAX} bytes"),
        ));
    }

    let file: File = toml::from_str(text).map_err(|error| {
        RulesError::at(
            text,
            error.span().map_or(0, |span| span.start),
            error.message().to_owned(),
        )
    })?;
    let mut lists = Lists::default();
    for (name, list) in file.lists {
        let at = name.span().start;
        let name = name.into_inner();
        let added = entries(list, &mut read_list).and_then(|entries| lists.add(&name, entries));
        added
            .map_err(|message| RulesError::at(text, at, RuleFault::list(&name, message).message))?;
    }

    let unknown = unknown(file.unknown).map_err(|fault| located(text, &[], fault))?;
    let mut rules = Vec::new();
    let mut spans = Vec::new();
    for (at, entry) in file.rule.into_iter().enumerate() {
        let start = entry.span().start;
        spans.push(Spans {
            rule: start,
            target: start..start,
            mask: start..start,
        });
        let rule = rule(at, entry.into_inner(), &mut spans[at])
            .map_err(|fault| located(text, &spans, fault))?;
        rules.push(rule);
    }

    Rules::of(unknown, rules, lists).map_err(|fault| located(text, &spans, fault))
}

fn entries(
    list: List,
    read: &mut impl FnMut(&str) -> Result<String, String>,
) -> Result<Vec<String>, String> {
    match list {
        List::Inline(entries) => Ok(entries),
        List::File(name) => {
            let text = read(&name)?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            Ok(lines.map(str::to_owned).collect())
        }
    }
}

fn unknown(word: Option<Spanned<String>>) -> Result<Unknown, RuleFault> {
    const IS: &str =
        "unknown = \"keep\" or unknown = \"refuse\": what happens to fields that no rule names";
    let Some(word) = word else {
        return Err(RuleFault {
            place: RulePosition::Text(0..0),
            message: format!("before the first rule, write {IS}"),
        });
    };

    match word.get_ref().as_str() {
        "keep" => Ok(Unknown::Keep),
        "refuse" => Ok(Unknown::Refuse),
        other => Err(RuleFault {
            place: RulePosition::Text(word.span()),
            message: format!("`{other}`: write {IS}"),
        }),
    }
}

fn rule(at: usize, entry: RuleEntry, spans: &mut Spans) -> Result<Rule, RuleFault> {
    let target = match (entry.path, entry.column, entry.kind) {
        (Some(path), None, None) => {
            spans.target = path.span();
            Target::Path(path.into_inner())
        }
        (None, Some(column), None) => {
            spans.target = column.span();
            Target::Column(column.into_inner())
        }
        (None, None, Some(kind)) => {
            spans.target = kind.span();
            Target::Kind(
                kind.get_ref()
                    .parse()
                    .map_err(|message| RuleFault::target(at, message))?,
            )
        }
        _ => {
            return Err(RuleFault::rule(
                at,
                "a rule has one of `path`, `column` and `kind`".to_owned(),
            ));
        }
    };

    let Some(mask) = entry.mask else {
        return Err(RuleFault::rule(
            at,
            "a rule has a `mask`, such as mask = \"redact\" or mask = \"keep\"".to_owned(),
        ));
    };

    spans.mask = mask.span();
    let function: Function = mask
        .get_ref()
        .parse()
        .map_err(|error| RuleFault::function(at, error))?;
    Ok(Rule { target, function })
}

/// Adds the position in the text to a fault.
fn located(text: &str, spans: &[Spans], fault: RuleFault) -> RulesError {
    let at = match fault.place {
        RulePosition::Rule(rule) => spans.get(rule).map_or(0, |spans| spans.rule),
        RulePosition::Target(rule, byte) => spans
            .get(rule)
            .map_or(0, |spans| inside(text, &spans.target, byte)),
        RulePosition::Mask(rule, byte) => spans
            .get(rule)
            .map_or(0, |spans| inside(text, &spans.mask, byte)),
        RulePosition::List => 0,
        RulePosition::Text(span) => span.start,
    };

    RulesError::at(text, at, fault.message)
}

/// Returns the position of byte `byte` of the string at `span`. If the string has escapes, returns
/// the position of its opening quote.
fn inside(text: &str, span: &Range<usize>, byte: usize) -> usize {
    let written = text.get(span.clone()).unwrap_or_default();
    let is_plain = written.starts_with('\'') && !written.starts_with("'''")
        || written.starts_with('"') && !written.starts_with("\"\"\"") && !written.contains('\\');
    if is_plain {
        span.start + 1 + byte
    } else {
        span.start
    }
}
