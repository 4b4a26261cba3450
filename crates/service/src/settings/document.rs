//! Reads a TOML document and the environment into a table with a checked value for every key.
//!
//! The walk finds every unknown, missing and invalid key before a program uses the values. It
//! records the line of every place, for later errors between keys.

use std::collections::BTreeMap;
use std::ffi::OsString;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::{Form, Literal, Problem, Problems, Schema, Section, hint, is_name, line_of, shown};

/// Maximum number of syntax errors in a report, because one error can cause others.
const SYNTAX_ERRORS_MAX: usize = 5;

/// Lines of the places in problems, counted from 1.
pub type Lines = BTreeMap<String, usize>;

/// The checked values of a configuration.
#[derive(Debug)]
pub struct Document {
    /// Every section with the values of its keys. A key without a value and without a default is
    /// absent.
    pub values: Table,
    /// Lines of the keys and sections of the file. Keys that a variable overrides have no line.
    pub lines: Lines,
}

impl Schema {
    /// Reads a text. Variables of the environment override its keys, and defaults are inserted for
    /// keys that neither contains.
    ///
    /// # Errors
    ///
    /// All problems together. If the text is not TOML, only these problems.
    pub fn read(
        &'static self,
        text: &str,
        environment: impl IntoIterator<Item = (String, OsString)>,
    ) -> Result<Document, Problems> {
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut problems = Problems::default();
        for error in errors.iter().take(SYNTAX_ERRORS_MAX) {
            // Uses only the parser's message. The full error text quotes the line, which can contain
            // a secret value.
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            let message = format!("not valid TOML: {}", error.message());
            problems.push(Problem {
                line: Some(line),
                ..Problem::new("", message)
            });
        }
        problems.into_result()?;

        let mut problems = Problems::default();
        let overrides = self.overrides(root.get_ref(), environment, &mut problems);
        let mut reader = Reader {
            schema: self,
            text,
            overrides,
            lines: Lines::new(),
            problems,
        };
        let values = reader.root(root.get_ref());
        reader.problems.into_result()?;
        Ok(Document {
            values,
            lines: reader.lines,
        })
    }

    /// Reads the variables that override keys. Returns the values by the paths of their keys.
    fn overrides(
        &self,
        root: &DeTable<'_>,
        environment: impl IntoIterator<Item = (String, OsString)>,
        problems: &mut Problems,
    ) -> BTreeMap<String, Value> {
        let environment: BTreeMap<String, OsString> = environment
            .into_iter()
            .filter(|(name, _)| name.starts_with(self.prefix))
            .collect();
        // The variable with a secret can look like an override, for example SEALWIRE_KEK_PROD. This
        // variable is only read by its configured name.
        let secret = self.secret_variable(root, &environment);
        let mut overrides = BTreeMap::new();
        for (variable, text) in &environment {
            if secret == Some(variable.as_str()) {
                continue;
            }
            let name = if self.variables_ignore_case {
                variable.to_ascii_uppercase()
            } else {
                variable.clone()
            };
            let keys = || self.tables().flat_map(|section| section.keys);
            let Some(key) = keys().find(|key| self.variable(key) == name) else {
                if !is_injected(&name) {
                    let known: Vec<String> = keys().map(|key| self.variable(key)).collect();
                    let hint = self.hint(&name, known.iter().map(String::as_str));
                    let message = format!("overrides no key{hint}");
                    problems.push(Problem::new(shown(variable), message));
                }
                continue;
            };
            let value = match text.to_str() {
                Some(text) => key.kind.check(key.kind.parse(text)),
                None => Err("must be UTF-8".into()),
            };
            match value {
                Ok(value) => drop(overrides.insert(key.path(), value)),
                Err(problem) => problems.push(Problem::new(variable, problem)),
            }
        }
        overrides
    }

    /// Returns the name of the variable with a secret.
    fn secret_variable<'v>(
        &self,
        root: &'v DeTable<'_>,
        environment: &'v BTreeMap<String, OsString>,
    ) -> Option<&'v str> {
        let key = self
            .section(self.secret_variable?.0)?
            .key(self.secret_variable?.1)?;
        let in_file = root
            .get(key.section)
            .and_then(|section| section.get_ref().get(key.name))
            .and_then(|name| name.get_ref().as_str());
        environment
            .get(&self.variable(key))
            .and_then(|name| name.to_str())
            .or(in_file)
            .or(match key.default {
                Literal::Text(name) => Some(name),
                _ => None,
            })
    }

    /// Suggests the closest known name, or else the command that lists all names.
    fn hint<'k>(&self, name: &str, known: impl IntoIterator<Item = &'k str>) -> String {
        match hint(name, known) {
            closest if closest.is_empty() => format!("; see `{}`", self.template_command),
            closest => closest,
        }
    }
}

/// Returns true for variables that Kubernetes sets in every container if a service has the name of
/// the program or of a section: `SEALWIRE_ADMIN_PORT_7444_TCP_ADDR`.
fn is_injected(variable: &str) -> bool {
    let has_port_number = variable
        .split("_PORT_")
        .skip(1)
        .any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    variable.ends_with("_PORT")
        || has_port_number
        || ["_SERVICE_HOST", "_SERVICE_PORT"]
            .iter()
            .any(|part| variable.contains(part))
}

/// The state of a walk.
struct Reader<'t> {
    schema: &'static Schema,
    text: &'t str,
    /// Values of variables by the paths of their keys.
    overrides: BTreeMap<String, Value>,
    lines: Lines,
    problems: Problems,
}

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        line_of(self.text, offset)
    }

    fn problem(&mut self, line: usize, place: impl Into<String>, message: impl Into<String>) {
        self.problems.push(Problem {
            line: Some(line),
            ..Problem::new(place, message)
        });
    }

    /// Reads all sections.
    fn root(&mut self, root: &DeTable<'_>) -> Table {
        let mut values = Table::new();
        for (name, value) in root {
            let line = self.line(name.span().start);
            let Some(section) = self.schema.section(name.get_ref()) else {
                let known = self.schema.sections.iter().map(|section| section.name);
                let known = known.filter(|name| !name.contains('.'));
                let hint = self.schema.hint(name.get_ref(), known);
                self.problem(
                    line,
                    shown(name.get_ref()),
                    format!("unknown section{hint}"),
                );
                continue;
            };
            self.lines.insert(section.name.to_owned(), line);
            let value = self.section(section, line, value);
            values.insert(section.name.to_owned(), value);
        }
        for section in self.schema.sections {
            if section.form == Form::Table && !values.contains_key(section.name) {
                let table = self.table(section, section.name, 1, &DeTable::new());
                self.lines.remove(section.name);
                values.insert(section.name.to_owned(), table.into());
            }
        }
        values
    }

    /// Reads a section, which must have the form that the schema defines.
    fn section(
        &mut self,
        section: &'static Section,
        line: usize,
        value: &Spanned<DeValue<'_>>,
    ) -> Value {
        match (section.form, value.get_ref()) {
            (Form::Table, DeValue::Table(table)) => {
                self.table(section, section.name, line, table).into()
            }
            (Form::Named(_), DeValue::Table(tables)) => self.named(section, tables).into(),
            (Form::List(_), DeValue::Array(items)) => self.list(section, items).into(),
            (form, _) => {
                let tables = if form == Form::Table {
                    "a table"
                } else {
                    "tables"
                };
                let message = format!("must be {tables}: {}", section.header_named("NAME"));
                self.problem(line, section.name, message);
                Table::new().into()
            }
        }
    }

    /// Reads the tables `[section.NAME]`.
    fn named(&mut self, section: &'static Section, tables: &DeTable<'_>) -> Table {
        let mut values = Table::new();
        for (name, value) in tables {
            let line = self.line(name.span().start);
            let place = format!("{}.{}", section.name, shown(name.get_ref()));
            if !is_name(name.get_ref()) {
                let message = "the name must be 1 to 64 letters, digits, -, _ or .";
                self.problem(line, &place, message);
            }
            match value.get_ref() {
                DeValue::Table(table) => {
                    let table = self.table(section, &place, line, table);
                    values.insert(name.get_ref().to_string(), table.into());
                }
                _ => self.problem(line, place, "must be a table"),
            }
        }
        values
    }

    /// Reads the tables `[[section]]`. Problems name a table by its key `name`, or else by its
    /// position.
    fn list(&mut self, section: &'static Section, items: &[Spanned<DeValue<'_>>]) -> Vec<Value> {
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let line = self.line(item.span().start);
            let DeValue::Table(table) = item.get_ref() else {
                let message = format!("must be tables: {}", section.header());
                self.problem(line, section.name, message);
                continue;
            };
            let name = table
                .get("name")
                .and_then(|name| name.get_ref().as_str())
                .filter(|name| is_name(name));
            let place = match name {
                Some(name) => format!("{} \"{name}\"", section.name),
                None => format!("{} {}", section.name, index + 1),
            };
            values.push(self.table(section, &place, line, table).into());
        }
        values
    }

    /// Reads the keys of a table.
    fn table(
        &mut self,
        section: &'static Section,
        place: &str,
        line: usize,
        table: &DeTable<'_>,
    ) -> Table {
        // If two places have the same name, problems use the line of the first.
        self.lines.entry(place.to_owned()).or_insert(line);
        let mut values = Table::new();
        for (name, value) in table {
            let line = self.line(name.span().start);
            let path = format!("{place}.{}", shown(name.get_ref()));
            if section.form.rules().contains(&&**name.get_ref()) {
                let rules = self.rules(section, place, name.get_ref(), line, value);
                values.insert(name.get_ref().to_string(), rules.into());
                continue;
            }
            let Some(key) = section.key(name.get_ref()) else {
                let known = section.keys.iter().map(|key| key.name);
                let hint = self.schema.hint(name.get_ref(), known);
                self.problem(line, path, format!("unknown key{hint}"));
                continue;
            };
            if self.overrides.contains_key(&path) {
                continue;
            }
            match key.kind.check(to_value(value.get_ref())) {
                Ok(value) => drop(values.insert(key.name.to_owned(), value)),
                Err(problem) => self.problem(line, &path, problem),
            }
            self.lines.insert(path, line);
        }
        for key in section.keys {
            let path = format!("{place}.{}", key.name);
            if let Some(value) = self.overrides.remove(&path) {
                values.insert(key.name.to_owned(), value);
            } else if !table.contains_key(key.name) {
                match key.default.value() {
                    Some(default) => drop(values.insert(key.name.to_owned(), default)),
                    None if matches!(key.default, Literal::Required(_)) => {
                        self.problem(line, path, "is missing");
                    }
                    None => {}
                }
            }
        }
        values
    }

    /// Reads the rules beneath a table: the tables `[[section.direction]]`.
    fn rules(
        &mut self,
        section: &'static Section,
        place: &str,
        direction: &str,
        line: usize,
        value: &Spanned<DeValue<'_>>,
    ) -> Vec<Value> {
        let header = format!("[[{}.{direction}]]", section.name);
        let first = section.form.rules().first();
        let rule =
            first.and_then(|first| self.schema.section(&format!("{}.{first}", section.name)));
        let (DeValue::Array(items), Some(rule)) = (value.get_ref(), rule) else {
            let place = format!("{place}.{direction}");
            self.problem(line, place, format!("must be tables: {header}"));
            return Vec::new();
        };
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let line = self.line(item.span().start);
            let place = format!("{place}, {direction} rule {}", index + 1);
            match item.get_ref() {
                DeValue::Table(table) => values.push(self.table(rule, &place, line, table).into()),
                _ => self.problem(line, place, format!("must be a table: {header}")),
            }
        }
        values
    }
}

/// Converts a value. Returns `None` for values that no key takes: dates and integers beyond 64 bits.
fn to_value(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(flag) => Value::Boolean(*flag),
        DeValue::Integer(number) => {
            Value::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok()?)
        }
        DeValue::Float(number) => Value::Float(number.as_str().parse().ok()?),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| to_value(item.get_ref()));
            Value::Array(items.collect::<Option<_>>()?)
        }
        DeValue::Table(table) => {
            let entries = table.iter().map(|(name, value)| {
                Some((name.get_ref().to_string(), to_value(value.get_ref())?))
            });
            Value::Table(entries.collect::<Option<_>>()?)
        }
        DeValue::Datetime(_) => return None,
    })
}
