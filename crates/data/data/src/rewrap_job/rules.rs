//! Rules: the columns of a job, as a TOML text.

use std::ops::Range;

use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

/// Maximum size of a rules text in bytes.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of rules.
const RULES_MAX: usize = 1_000;
/// Maximum size of the text of a context in bytes. The engine checks the size of each context.
const CONTEXT_BYTES_MAX: usize = 4_096;

/// The columns of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// A column whose values are rewrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The table, with or without its schema.
    pub table: String,
    /// The column.
    pub column: String,
    /// The app whose keys open and seal.
    pub app: String,
    /// The key columns of the walk. If empty, the columns of the primary key are used.
    pub key: Vec<String>,
    /// The context of the values.
    pub(crate) context: ContextTemplate,
}

/// The context of a column's values: constant text and columns of the row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContextTemplate {
    parts: Vec<ContextPart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ContextPart {
    Constant(String),
    Column(String),
}

/// Invalid rules, reported to their author.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {message}")]
pub struct RulesError {
    /// Line in the rules text, counted from 1.
    pub line: usize,
    /// Character in that line, counted from 1.
    pub column: usize,
    /// The error and the correct form.
    pub message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Spanned<RuleEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    table: Option<Spanned<String>>,
    column: Option<Spanned<String>>,
    app: Option<Spanned<String>>,
    context: Option<Spanned<String>>,
    key: Option<Spanned<KeyColumns>>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a key is the name of a column, or an array of names"
)]
enum KeyColumns {
    One(String),
    Several(Vec<String>),
}

impl Rules {
    /// Parses a rules text.
    ///
    /// # Errors
    /// [`RulesError`] with line, column and the correct form.
    pub fn from_toml(text: &str) -> Result<Self, RulesError> {
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
        if file.rule.is_empty() || file.rule.len() > RULES_MAX {
            return Err(RulesError::at(
                text,
                0,
                format!("rules are 1 to {RULES_MAX} tables [[rule]]"),
            ));
        }
        let rules = file
            .rule
            .into_iter()
            .map(|entry| rule(text, entry))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self { rules })
    }

    /// Returns the rules in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }
}

impl RulesError {
    /// Creates an error at byte `at` of `text`.
    fn at(text: &str, at: usize, message: String) -> Self {
        let before = &text[..text.floor_char_boundary(at)];
        let line = 1 + before.matches('\n').count();
        let column = 1 + before
            .rsplit('\n')
            .next()
            .unwrap_or_default()
            .chars()
            .count();
        Self {
            line,
            column,
            message,
        }
    }
}

fn rule(text: &str, entry: Spanned<RuleEntry>) -> Result<Rule, RulesError> {
    let start = entry.span().start;
    let entry = entry.into_inner();
    let table = required(
        text,
        start,
        entry.table,
        "its table, such as table = \"shop.customers\"",
    )?;
    let column = required(
        text,
        start,
        entry.column,
        "its column, such as column = \"ssn\"",
    )?;
    let app = required(
        text,
        start,
        entry.app,
        "the app whose keys encrypt the column, such as app = \"shop\"",
    )?;

    let context = match entry.context {
        None => ContextTemplate::default(),
        Some(context) => ContextTemplate::parse(context.get_ref())
            .map_err(|message| RulesError::at(text, context.span().start, message))?,
    };
    let key = entry.key.map_or(Ok(Vec::new()), |key| {
        key_columns(text, &key.span(), key.into_inner())
    })?;
    if key.contains(&column) || context.columns().any(|name| name == column) {
        let message =
            "the column of a rule is neither its key nor its context, because the job changes it";
        return Err(RulesError::at(text, start, message.to_owned()));
    }
    Ok(Rule {
        table,
        column,
        app,
        key,
        context,
    })
}

/// Returns a value that every rule must have. `rule_start` is the position of the rule, for the
/// error if the value is missing.
fn required(
    text: &str,
    rule_start: usize,
    value: Option<Spanned<String>>,
    example: &str,
) -> Result<String, RulesError> {
    let start = value
        .as_ref()
        .map_or(rule_start, |value| value.span().start);
    value
        .map(Spanned::into_inner)
        .filter(|value| !value.is_empty() && !value.contains('\0'))
        .ok_or_else(|| RulesError::at(text, start, format!("a rule names {example}")))
}

fn key_columns(
    text: &str,
    span: &Range<usize>,
    key: KeyColumns,
) -> Result<Vec<String>, RulesError> {
    let key = match key {
        KeyColumns::One(name) => vec![name],
        KeyColumns::Several(names) => names,
    };
    let is_repeated = key
        .iter()
        .enumerate()
        .any(|(at, name)| key[..at].contains(name));
    if key.is_empty() || key.iter().any(String::is_empty) || is_repeated {
        let message =
            "a key is one column or more, each once: key = \"id\" or key = [\"tenant\", \"id\"]";
        return Err(RulesError::at(text, span.start, message.to_owned()));
    }
    Ok(key)
}

impl ContextTemplate {
    /// Parses the text of a context. `{NAME}` stands for a column of the row; `{{` and `}}` stand
    /// for braces.
    fn parse(text: &str) -> Result<Self, String> {
        const FORM: &str = "in a context {NAME} is a column of the row, and {{ and }} are braces";
        if text.len() > CONTEXT_BYTES_MAX {
            return Err(format!("a context has at most {CONTEXT_BYTES_MAX} bytes"));
        }
        let mut parts = Vec::new();
        let mut constant = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            constant.push_str(&rest[..at]);
            let (brace, after) = rest[at..].split_at(1);
            if let Some(after) = after.strip_prefix(brace) {
                constant.push_str(brace);
                rest = after;
                continue;
            }
            let (name, after) = after.split_once('}').filter(|_| brace == "{").ok_or(FORM)?;
            if name.is_empty() || name.contains('{') {
                return Err(FORM.to_owned());
            }
            if !constant.is_empty() {
                parts.push(ContextPart::Constant(std::mem::take(&mut constant)));
            }
            parts.push(ContextPart::Column(name.to_owned()));
            rest = after;
        }
        constant.push_str(rest);
        if !constant.is_empty() {
            parts.push(ContextPart::Constant(constant));
        }
        Ok(Self { parts })
    }

    /// Returns the names of the columns, in the order of the text.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            ContextPart::Column(name) => Some(name.as_str()),
            ContextPart::Constant(_) => None,
        })
    }

    /// Returns the context of a row with these values of [`Self::columns`]. Returns `None` if a
    /// value is null.
    pub(crate) fn render<'v>(
        &self,
        values: impl IntoIterator<Item = Option<&'v str>>,
    ) -> Option<String> {
        let mut values = values.into_iter();
        let mut context = String::new();
        for part in &self.parts {
            match part {
                ContextPart::Constant(text) => context.push_str(text),
                ContextPart::Column(_) => context.push_str(values.next()??),
            }
        }
        Some(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "[[rule]]\ntable = \"shop.customers\"\ncolumn = \"ssn\"\napp = \"shop\"\n";

    #[test]
    fn a_rule_has_a_table_a_column_and_an_app() {
        let text = format!(
            "{RULE}\n{RULE}key = [\"tenant\", \"id\"]\ncontext = \"c.{{id}}\"\n{RULE}key = 'email'"
        );
        let rules = Rules::from_toml(&text).expect("rules");
        let [first, second, third] = &rules.rules[..] else {
            panic!("{rules:?}")
        };
        assert_eq!(
            (&*first.table, &*first.column, &*first.app),
            ("shop.customers", "ssn", "shop")
        );
        assert!(first.key.is_empty() && first.context.render([]).as_deref() == Some(""));
        assert_eq!(
            (&second.key[..], &third.key[..]),
            (&["tenant".into(), "id".into()][..], &["email".into()][..])
        );
        assert_eq!(second.context.render([Some("17")]).as_deref(), Some("c.17"));
    }

    #[test]
    fn an_invalid_rule_says_where_and_how() {
        let without = |line: &str| {
            RULE.lines()
                .filter(|other| !other.starts_with(line))
                .collect::<Vec<_>>()
                .join("\n")
        };
        for (text, line, expected) in [
            (String::new(), 1, "[[rule]]"),
            (without("table"), 1, "table = \"shop.customers\""),
            (without("column"), 1, "column = \"ssn\""),
            (without("app"), 1, "app = \"shop\""),
            (RULE.replace("\"ssn\"", "\"\""), 3, "column = \"ssn\""),
            (format!("{RULE}mask = 'x'"), 5, "unknown field `mask`"),
            (format!("{RULE}key = []"), 5, "key = \"id\""),
            (format!("{RULE}key = ['id', 'id']"), 5, "each once"),
            (format!("{RULE}key = 7"), 5, "a key is the name of a column"),
            (
                format!("{RULE}key = 'ssn'"),
                1,
                "neither its key nor its context",
            ),
            (
                format!("{RULE}context = 'x{{ssn}}'"),
                1,
                "neither its key nor its context",
            ),
            (format!("{RULE}context = 'x{{id'"), 5, "{NAME}"),
            (format!("{RULE}context = 'x}}'"), 5, "{NAME}"),
            (format!("{RULE}context = '{{}}'"), 5, "{NAME}"),
            (
                format!("{RULE}context = '{}'", "x".repeat(4_097)),
                5,
                "4096",
            ),
            (RULE.repeat(1_001), 1, "1000"),
        ] {
            let error = Rules::from_toml(&text).expect_err(&text);
            assert!(
                error.line == line && error.message.contains(expected),
                "{text:.200}: {error}"
            );
        }
    }

    #[test]
    fn a_context_takes_columns_of_the_row() {
        let render = |text: &str, values: &[Option<&str>]| {
            ContextTemplate::parse(text)
                .expect(text)
                .render(values.iter().copied())
        };
        for (text, values, expected) in [
            ("", &[][..], Some("")),
            ("cards.pan", &[], Some("cards.pan")),
            ("{id}", &[Some("7")], Some("7")),
            (
                "a.{id}.b.{tenant}",
                &[Some("7"), Some("x{y}")],
                Some("a.7.b.x{y}"),
            ),
            ("{{id}}", &[], Some("{id}")),
            ("{{{id}}}", &[Some("7")], Some("{7}")),
            ("a.{id}", &[None], None),
        ] {
            assert_eq!(render(text, values).as_deref(), expected, "{text}");
        }
        let parsed = ContextTemplate::parse("a.{id}.{my col}").expect("a context");
        assert_eq!(parsed.columns().collect::<Vec<_>>(), ["id", "my col"]);
    }
}
