//! A job's lookup of rules by path, by column, and by kind.

use std::sync::Arc;

use sealwire_mask_rules::{Function, Rules, Target, Unknown, index_max};

use crate::mask_job::error::JobError;
use crate::mask_job::file_format::FileFormat;
use crate::mask_job::report::FieldReport;

pub(crate) use sealwire_mask_rules::PathStep as Step;

/// Rules prepared for lookup.
#[derive(Debug)]
pub(crate) struct Plan {
    rules: Arc<Rules>,
    /// Each rule's function as text.
    functions: Vec<String>,
    has_kinds: bool,
    has_subjects: bool,
    /// The greatest array index in a path.
    index_max: Option<u32>,
}

impl Plan {
    pub(crate) fn new(rules: Arc<Rules>) -> Self {
        let functions = rules.iter().map(|rule| rule.function.to_string()).collect();
        let has_kinds = rules
            .iter()
            .any(|rule| matches!(rule.target, Target::Kind(_)));
        let has_subjects = rules.iter().any(|rule| rule.function.subject().is_some());
        let indexes = rules.iter().filter_map(|rule| match &rule.target {
            Target::Path(path) => index_max(path),
            Target::Column(_) | Target::Kind(_) => None,
        });
        let index_max = indexes.max();
        Self {
            functions,
            has_kinds,
            has_subjects,
            index_max,
            rules,
        }
    }

    /// Prepares rules for a file format.
    pub(crate) fn for_file(rules: Arc<Rules>, format: FileFormat) -> Result<Self, JobError> {
        if let FileFormat::Csv { .. } = format {
            Self::without_paths(&rules, "CSV has columns")?;
        }
        Ok(Self::new(rules))
    }

    /// Returns an error if there are path rules.
    pub(crate) fn without_paths(rules: &Rules, why: &str) -> Result<(), JobError> {
        let path = rules
            .iter()
            .enumerate()
            .find_map(|(at, rule)| match &rule.target {
                Target::Path(path) => Some((at, path)),
                Target::Column(_) | Target::Kind(_) => None,
            });
        match path {
            None => Ok(()),
            Some((at, path)) => Err(JobError::Plan(format!(
                "rule {} names a path ({path}): {why}, so name a column instead",
                at + 1
            ))),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) fn has_kinds(&self) -> bool {
        self.has_kinds
    }

    pub(crate) fn has_subjects(&self) -> bool {
        self.has_subjects
    }

    pub(crate) fn index_max(&self) -> Option<u32> {
        self.index_max
    }

    pub(crate) fn rejects_unknown(&self) -> bool {
        self.rules.unknown() == Unknown::Refuse
    }

    pub(crate) fn is_subject(&self, key: &str) -> bool {
        self.rules
            .iter()
            .any(|rule| rule.function.subject() == Some(key))
    }

    fn function_of(&self, rule: usize) -> Option<&Function> {
        self.rules.get(rule).map(|rule| &rule.function)
    }

    pub(crate) fn subject(&self, rule: usize) -> Option<&str> {
        self.function_of(rule).and_then(Function::subject)
    }

    pub(crate) fn keeps(&self, rule: usize) -> bool {
        self.function_of(rule).is_some_and(Function::is_keep)
    }

    /// Returns the text of the rule's function.
    pub(crate) fn function(&self, rule: usize) -> &str {
        self.functions.get(rule).map_or("", String::as_str)
    }

    /// Returns the name of the rule's function.
    pub(crate) fn name(&self, rule: usize) -> &'static str {
        self.function_of(rule).map_or("", Function::name)
    }

    /// Returns the rule of a leaf at a path, found by a walk over a document.
    pub(crate) fn path_rule(&self, path: &[Step]) -> Option<usize> {
        self.rules.rule_at(path)
    }

    /// Returns the kind rule of a string that no path or column rule names.
    pub(crate) fn kind_rule(&self, text: &str) -> Option<usize> {
        self.rules.kind_of(text)
    }

    pub(crate) fn kind_name(&self, rule: usize) -> Option<String> {
        match &self.rules.get(rule)?.target {
            Target::Kind(kind) => Some(kind.name().to_owned()),
            Target::Path(_) | Target::Column(_) => None,
        }
    }

    /// Returns the rule of a column; `names` are the parts of the column's name.
    pub(crate) fn column_rule(&self, names: &[&str]) -> Option<usize> {
        self.rules.column(names)
    }

    /// Returns an error if a column rule matches none of the file's columns.
    pub(crate) fn check_columns_exist(&self, names: &[String]) -> Result<(), String> {
        let missing = self
            .rules
            .iter()
            .enumerate()
            .find_map(|(at, rule)| match &rule.target {
                Target::Column(column) if !names.contains(column) => Some((at, column)),
                _ => None,
            });
        match missing {
            None => Ok(()),
            Some((at, column)) => Err(format!(
                "rule {} names column {column}, which does not exist: the columns are {}",
                at + 1,
                names.join(", ")
            )),
        }
    }

    /// Returns an error if a rule by path or key has no row in the report of a file. A misspelt
    /// rule would leave its field in the clear.
    pub(crate) fn check_rules_matched(&self, fields: &[FieldReport]) -> Result<(), JobError> {
        let unmet = self
            .rules
            .iter()
            .enumerate()
            .filter(|(at, _)| fields.iter().all(|field| field.rule != Some(*at)))
            .find_map(|(at, rule)| match &rule.target {
                Target::Path(path) => Some(format!("rule {} (path {path})", at + 1)),
                Target::Column(column) => Some(format!("rule {} (column {column})", at + 1)),
                Target::Kind(_) => None,
            });
        match unmet {
            None => Ok(()),
            Some(rule) => Err(JobError::Plan(format!(
                "{rule} matches nothing: correct it, or permit rules that match nothing with --allow-unmatched"
            ))),
        }
    }

    /// Returns true if the rule's function also accepts decimal numbers as text and keeps their
    /// number of decimals.
    pub(crate) fn keeps_decimals(&self, rule: usize) -> bool {
        matches!(self.name(rule), "noise" | "generalize")
    }

    /// Creates a row of the report.
    pub(crate) fn field(
        &self,
        field: String,
        rule: Option<usize>,
        kind: Option<String>,
    ) -> FieldReport {
        let function = rule.map(|rule| self.function(rule).to_owned());
        FieldReport {
            field,
            function,
            rule,
            kind,
            ..FieldReport::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_get_the_rule_of_their_path() {
        let text = r#"
            unknown = "keep"
            [[rule]]
            path = "$.items[1].pan"
            mask = "keep"
            [[rule]]
            path = "$.items[*].pan"
            mask = "redact"
            [[rule]]
            path = "$.customer"
            mask = "redact"
            [[rule]]
            column = "email"
            mask = "email"
            [[rule]]
            kind = "card"
            mask = "redact"
        "#;
        let plan = Plan::new(Arc::new(Rules::from_toml(text).expect("rules")));
        let key = |key: &str| Step::Key(key.to_owned());
        assert_eq!(plan.index_max(), Some(1));
        for (path, expected) in [
            (vec![key("items"), Step::Index(1), key("pan")], Some(0)),
            (vec![key("items"), Step::Index(2), key("pan")], Some(1)),
            (vec![key("items"), Step::Index(0), key("pan")], Some(1)),
            (vec![key("items"), Step::Index(0), key("email")], Some(3)),
            (
                vec![key("customer"), key("a"), Step::Index(0), key("b")],
                Some(2),
            ),
            (vec![key("email"), key("deeper")], Some(3)),
            (vec![key("other")], None),
            (vec![], None),
        ] {
            assert_eq!(plan.path_rule(&path), expected, "{path:?}");
        }
    }
}
