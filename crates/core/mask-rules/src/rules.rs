//! Rules: the assignment of masking functions to fields of a document or columns of a table. Rules
//! contain no keys.
//!
//! Path and column rules apply first, in order. The first rule that names a field applies to the
//! field; a rule that names a container applies to every leaf in it. Kind rules, in order, apply to
//! string leaves that no path or column rule names. The setting `unknown` determines whether all
//! other leaves are kept or rejected. Map keys are never masked.

mod error;
mod file;
mod lists;

use std::sync::Arc;

use sealwire_payload::{ExtraWork, Field, PrioritizedEntry, Selection};

pub use error::RulesError;
pub use lists::{Entries, Lists};

use crate::kinds::Kind;
use crate::limits::RULES_MAX;
use crate::subject::SubjectKeys;
use crate::{Function, Value};
use error::RuleFault;

/// Number of kind checks that take as long as one field.
const DETECTIONS_PER_FIELD: u64 = 8;
/// Bytes of other work that take as long as checking one byte for a kind.
const DETECTION_BYTE_WORK: u64 = 1;

/// Returns the work of checking `strings` strings with `bytes` bytes in all for `kinds` kinds. Each
/// kind reads each string once.
#[must_use]
pub const fn detection_work(kinds: u64, strings: u64, bytes: u64) -> ExtraWork {
    ExtraWork {
        fields: kinds.saturating_mul(strings) / DETECTIONS_PER_FIELD,
        bytes: kinds
            .saturating_mul(bytes)
            .saturating_mul(DETECTION_BYTE_WORK),
    }
}

/// The treatment of a field that no rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Keep the field unchanged.
    Keep,
    /// Reject the field with an error.
    Refuse,
}

/// The fields that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Values of a document, by select path.
    Path(String),
    /// A column: `email`, `customers.email` or `shop.customers.email`. In a document: a key with
    /// exactly that name, at any depth.
    Column(String),
    /// Strings of this kind.
    Kind(Kind),
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The fields that the rule applies to.
    pub target: Target,
    /// The function that masks these fields.
    pub function: Function,
}

/// A rule as a request contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// The fields that the rule applies to.
    pub target: Target,
    /// The text of a function.
    pub mask: String,
}

/// The decision of the rules on one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldDecision {
    /// The rule with this index in [`Rules::iter`] applies. The rule's function can be `keep`.
    Rule(usize),
    /// No rule applies; the field stays unchanged.
    Keep,
    /// No rule applies; the field is rejected.
    Refuse,
}

/// Reads the rules of a request one by one, so that a scheduler can divide the work into slices.
#[derive(Debug)]
pub struct RulesBuilder {
    unknown: Unknown,
    texts: std::vec::IntoIter<RuleText>,
    rules: Vec<Rule>,
    entries: std::vec::IntoIter<(String, Vec<String>)>,
    lists: Lists,
}

impl RulesBuilder {
    /// Creates a builder that has not read any rule. `lists` are list names with their entries.
    #[must_use]
    pub fn new(unknown: Unknown, rules: Vec<RuleText>, lists: Vec<(String, Vec<String>)>) -> Self {
        let parsed = Vec::with_capacity(rules.len());
        let texts = rules.into_iter();
        let entries = lists.into_iter();
        Self {
            unknown,
            texts,
            rules: parsed,
            entries,
            lists: Lists::default(),
        }
    }

    /// Reads one list or one rule. Returns false after the last rule.
    ///
    /// # Errors
    /// The errors of [`Rules::new`].
    pub fn step(&mut self) -> Result<bool, RulesError> {
        if let Some((name, entries)) = self.entries.next() {
            self.lists
                .add(&name, entries)
                .map_err(|message| RuleFault::list(&name, message).into_error())?;
            return Ok(true);
        }

        let Some(RuleText { target, mask }) = self.texts.next() else {
            return Ok(false);
        };

        let function = mask
            .parse()
            .map_err(|error| RuleFault::function(self.rules.len(), error).into_error())?;
        self.rules.push(Rule { target, function });
        Ok(true)
    }

    /// Reads the remaining lists and rules.
    ///
    /// # Errors
    /// The errors of [`Rules::new`].
    pub fn finish(mut self) -> Result<Rules, RulesError> {
        while self.step()? {}
        Rules::of(self.unknown, self.rules, self.lists).map_err(RuleFault::into_error)
    }
}

/// Parsed and validated rules.
#[derive(Clone, Debug)]
pub struct Rules {
    unknown: Unknown,
    rules: Vec<Rule>,
    /// Indexes of path and column rules, in the order of the selection's paths.
    ranked: Vec<usize>,
    /// Index of the first rule of each kind, in order.
    kinds: Vec<(usize, Kind)>,
    selection: Arc<Selection>,
    subject_keys: Arc<SubjectKeys>,
    lists: Lists,
}

impl Rules {
    /// Parses a rules file whose lists are all inline.
    ///
    /// # Errors
    /// [`RulesError`] with line, column and the correct form.
    pub fn from_toml(text: &str) -> Result<Self, RulesError> {
        Self::from_toml_with(text, |_| {
            Err("lists in files are not read here: write the entries inline".to_owned())
        })
    }

    /// Parses a rules file. `read` returns the text of a list's file by the file name in the rules,
    /// one entry per line. `read` can also return an error message.
    ///
    /// # Errors
    /// The errors of [`Rules::from_toml`].
    pub fn from_toml_with(
        text: &str,
        read: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, RulesError> {
        file::read(text, read)
    }

    /// Creates rules from a request. `lists` are list names with their entries.
    ///
    /// # Errors
    /// [`RulesError`] without line and column. The message names the rule by its number, counted
    /// from 1.
    pub fn new(
        unknown: Unknown,
        rules: Vec<RuleText>,
        lists: Vec<(String, Vec<String>)>,
    ) -> Result<Self, RulesError> {
        RulesBuilder::new(unknown, rules, lists).finish()
    }

    fn of(unknown: Unknown, rules: Vec<Rule>, lists: Lists) -> Result<Self, RuleFault> {
        if rules.len() > RULES_MAX {
            return Err(RuleFault::rule(
                RULES_MAX,
                format!("more than {RULES_MAX} rules"),
            ));
        }

        let mut ranked = Vec::new();
        let mut named = Vec::new();
        let mut kinds = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            if let Some(list) = rule.function.list()
                && lists.find(list).is_none()
            {
                return Err(RuleFault::no_list(at, list, &lists));
            }
            match &rule.target {
                Target::Path(path) => {
                    Selection::parse([path.as_str()])
                        .map_err(|error| RuleFault::path(at, &error))?;
                    named.push(PrioritizedEntry::Path(path));
                    ranked.push(at);
                }
                Target::Column(name) if name.is_empty() => {
                    return Err(RuleFault::target(at, "a column has a name".to_owned()));
                }
                Target::Column(name) => {
                    named.push(PrioritizedEntry::Key(name));
                    ranked.push(at);
                }
                // Of several rules for a kind, only the first can apply, so later rules are omitted
                // here.
                Target::Kind(kind) if kinds.iter().any(|(_, other)| other == kind) => (),
                Target::Kind(kind) => kinds.push((at, *kind)),
            }
        }

        let selection = Selection::ranked(named.iter().copied())
            .map_err(|error| RuleFault::too_many(&error, &rules))?;
        let subject_keys = Arc::new(SubjectKeys::new(&rules));
        Ok(Self {
            unknown,
            rules,
            ranked,
            kinds,
            selection: Arc::new(selection),
            subject_keys,
            lists,
        })
    }

    /// Returns all rules in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the rule at an index.
    #[must_use]
    pub fn get(&self, rule: usize) -> Option<&Rule> {
        self.rules.get(rule)
    }

    /// Returns the treatment of fields that no rule names.
    #[must_use]
    pub fn unknown(&self) -> Unknown {
        self.unknown
    }

    /// Returns the names and entries of the custom lists. A request that repeats the rules must
    /// include these lists.
    pub fn lists(&self) -> impl Iterator<Item = (&str, impl ExactSizeIterator<Item = &str>)> {
        self.lists.own()
    }

    /// Returns the selection for a walk over a document. Every leaf is a field of the walk and
    /// carries its path or column rule.
    #[must_use]
    pub fn selection(&self) -> &Arc<Selection> {
        &self.selection
    }

    /// Returns the keys of subjects.
    pub(crate) fn subject_keys(&self) -> &Arc<SubjectKeys> {
        &self.subject_keys
    }

    /// Returns the number of kinds for which a string of `bytes` bytes is checked. Each kind reads
    /// the string once.
    #[must_use]
    pub fn checks(&self, bytes: usize) -> u64 {
        self.kinds
            .iter()
            .filter(|(_, kind)| bytes <= kind.bytes_max())
            .count() as u64
    }

    /// Returns the rule at a position in [`Self::selection`].
    pub(crate) fn ranked_rule(&self, rank: u32) -> Option<usize> {
        self.ranked.get(rank as usize).copied()
    }

    /// Returns the decision for a field of a walk under [`Rules::selection`].
    #[must_use]
    pub fn ruling(&self, field: &Field<'_>) -> FieldDecision {
        if let Some(rank) = field.rank() {
            return self
                .ranked
                .get(rank as usize)
                .map_or(FieldDecision::Refuse, |rule| FieldDecision::Rule(*rule));
        }
        match Value::of(field.token) {
            Some(value) => self.without_name(value),
            None => self.neither(),
        }
    }

    /// Returns the decision for a value that no path or column rule names.
    #[must_use]
    pub fn without_name(&self, value: Value<'_>) -> FieldDecision {
        match value {
            Value::Nil => FieldDecision::Keep,
            Value::Str(text) => self
                .kind_of(text)
                .map_or_else(|| self.neither(), FieldDecision::Rule),
            _ => self.neither(),
        }
    }

    /// Returns the first kind rule that matches a string.
    #[must_use]
    pub fn kind_of(&self, text: &str) -> Option<usize> {
        self.kinds
            .iter()
            .find(|(_, kind)| kind.knows(text))
            .map(|(rule, _)| *rule)
    }

    /// Returns the first column rule for a column with these name parts. A CSV column has one part,
    /// its name. In a database the parts are schema, table and column.
    #[must_use]
    pub fn column(&self, names: &[&str]) -> Option<usize> {
        self.rules
            .iter()
            .position(|rule: &Rule| match &rule.target {
                Target::Column(column) => {
                    (0..names.len()).any(|from| is_joined(column, &names[from..]))
                }
                Target::Path(_) | Target::Kind(_) => false,
            })
    }

    /// Returns the lists that functions of the rules can name.
    #[must_use]
    pub fn own_lists(&self) -> &Lists {
        &self.lists
    }

    fn neither(&self) -> FieldDecision {
        match self.unknown {
            Unknown::Keep => FieldDecision::Keep,
            Unknown::Refuse => FieldDecision::Refuse,
        }
    }
}

/// Returns true if `column` is `names` joined with dots.
fn is_joined(column: &str, names: &[&str]) -> bool {
    let rest = names
        .iter()
        .enumerate()
        .try_fold(column, |rest, (at, name)| {
            let rest = if at == 0 {
                rest
            } else {
                rest.strip_prefix('.')?
            };
            rest.strip_prefix(name)
        });
    rest == Some("")
}

#[cfg(test)]
mod tests;
