//! Rules: which field of a document, or column of a table, is masked by which function. No keys.
//!
//! Path and column rules come first, in their order: the first that names a field wins, and one that names a container
//! holds for every leaf beneath it. String leaves that none of them names are looked at for kinds, in order. What is
//! left is unknown: kept or refused, as the rules say. Map keys are never masked.

mod error;
mod file;
mod lists;

use std::sync::Arc;

use sealwire_payload::{Field, Ranked, Selection};

pub use error::RulesError;
pub(crate) use lists::{Entries, Lists};

use crate::kinds::Kind;
use crate::limits::RULES_MAX;
use crate::{Function, Value};
use error::Fault;

/// What happens to a field that no rule names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// It stays as it is.
    Keep,
    /// It is an error.
    Refuse,
}

/// What a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Values of a document by select path.
    Path(String),
    /// A column: `email`, `customers.email` or `shop.customers.email`. In a document a key of exactly that name, at any
    /// depth.
    Column(String),
    /// Strings that look like it.
    Kind(Kind),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it names.
    pub target: Target,
    /// What replaces it.
    pub function: Function,
}

/// A rule as a call sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleText {
    /// What it names.
    pub target: Target,
    /// The text of a function.
    pub mask: String,
}

/// What the rules say of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// The rule of this place among [`Rules::iter`]. Its function may be `keep`.
    Rule(usize),
    /// No rule: it stays.
    Keep,
    /// No rule: it must not pass.
    Refuse,
}

/// Rules, read and checked.
#[derive(Clone, Debug)]
pub struct Rules {
    unknown: Unknown,
    rules: Vec<Rule>,
    /// Places of path and column rules among all, in the order of the selection's paths.
    ranked: Vec<usize>,
    /// Places of kind rules, in order.
    kinds: Vec<(usize, Kind)>,
    selection: Arc<Selection>,
    lists: Lists,
}

impl Rules {
    /// Reads a rules file whose lists are all inline.
    ///
    /// # Errors
    /// [`RulesError`] names line, column and what to write instead.
    pub fn from_toml(text: &str) -> Result<Self, RulesError> {
        Self::from_toml_with(text, |_| Err("lists in files are not read here: write the entries inline".to_owned()))
    }

    /// Reads a rules file. `read` gives the text of a list's file by the name that the rules have it under, one entry a
    /// line, or says why it cannot.
    ///
    /// # Errors
    /// As [`Rules::from_toml`].
    pub fn from_toml_with(text: &str, read: impl FnMut(&str) -> Result<String, String>) -> Result<Self, RulesError> {
        file::read(text, read)
    }

    /// Rules of a call. `lists` are names with their entries.
    ///
    /// # Errors
    /// [`RulesError`] without line and column; it names the rule by its place, counted from 1.
    pub fn new(unknown: Unknown, rules: Vec<RuleText>, lists: Vec<(String, Vec<String>)>) -> Result<Self, RulesError> {
        let mut own = Lists::default();
        for (name, entries) in lists {
            own.add(&name, entries).map_err(|message| Fault::list(&name, message).into_error())?;
        }
        let read = |(at, rule): (usize, RuleText)| {
            let function = rule.mask.parse().map_err(|error| Fault::function(at, error).into_error())?;
            Ok(Rule { target: rule.target, function })
        };
        let rules = rules.into_iter().enumerate().map(read).collect::<Result<_, RulesError>>()?;
        Self::of(unknown, rules, own).map_err(Fault::into_error)
    }

    fn of(unknown: Unknown, rules: Vec<Rule>, lists: Lists) -> Result<Self, Fault> {
        if rules.len() > RULES_MAX {
            return Err(Fault::rule(RULES_MAX, format!("more than {RULES_MAX} rules")));
        }
        let (mut ranked, mut named, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        for (at, rule) in rules.iter().enumerate() {
            if let Some(list) = rule.function.list()
                && lists.find(list).is_none()
            {
                return Err(Fault::no_list(at, list, &lists));
            }
            match &rule.target {
                Target::Path(path) => {
                    Selection::parse([path.as_str()]).map_err(|error| Fault::path(at, &error))?;
                    named.push(Ranked::Path(path));
                    ranked.push(at);
                }
                Target::Column(name) if name.is_empty() => {
                    return Err(Fault::target(at, "a column has a name".to_owned()));
                }
                Target::Column(name) => {
                    named.push(Ranked::Key(name));
                    ranked.push(at);
                }
                Target::Kind(kind) => kinds.push((at, *kind)),
            }
        }
        let selection = Selection::ranked(named.iter().copied()).map_err(|error| Fault::too_many(&error, &rules))?;
        Ok(Self { unknown, rules, ranked, kinds, selection: Arc::new(selection), lists })
    }

    /// All rules in their order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The rule of a place.
    #[must_use]
    pub fn get(&self, rule: usize) -> Option<&Rule> {
        self.rules.get(rule)
    }

    /// What happens to fields that no rule names.
    #[must_use]
    pub fn unknown(&self) -> Unknown {
        self.unknown
    }

    /// Lists of one's own: names and entries. A call that repeats rules sends them along.
    pub fn lists(&self) -> impl Iterator<Item = (&str, impl ExactSizeIterator<Item = &str>)> {
        self.lists.own()
    }

    /// For a walk over a document: every leaf is a field and knows its path or column rule.
    #[must_use]
    pub fn selection(&self) -> &Arc<Selection> {
        &self.selection
    }

    /// What holds for a field of a walk under [`Rules::selection`].
    #[must_use]
    pub fn ruling(&self, field: &Field<'_>) -> Ruling {
        if let Some(rank) = field.rank() {
            return self.ranked.get(rank as usize).map_or(Ruling::Refuse, |rule| Ruling::Rule(*rule));
        }
        match Value::of(field.token) {
            Some(value) => self.without_name(value),
            None => self.neither(),
        }
    }

    /// What holds for a value that no path or column rule names.
    #[must_use]
    pub fn without_name(&self, value: Value<'_>) -> Ruling {
        match value {
            Value::Nil => Ruling::Keep,
            Value::Str(text) => self.kind_of(text).map_or_else(|| self.neither(), Ruling::Rule),
            _ => self.neither(),
        }
    }

    /// The first kind rule that knows a string.
    #[must_use]
    pub fn kind_of(&self, text: &str) -> Option<usize> {
        self.kinds.iter().find(|(_, kind)| kind.knows(text)).map(|(rule, _)| *rule)
    }

    /// The first column rule for a column whose name's parts are `names`: of CSV its name; of a table schema, table and
    /// column.
    #[must_use]
    pub fn column(&self, names: &[&str]) -> Option<usize> {
        let is_named = |rule: &Rule| match &rule.target {
            Target::Column(column) => (0..names.len()).any(|from| is_joined(column, &names[from..])),
            Target::Path(_) | Target::Kind(_) => false,
        };
        self.rules.iter().position(is_named)
    }

    pub(crate) fn own_lists(&self) -> &Lists {
        &self.lists
    }

    fn neither(&self) -> Ruling {
        match self.unknown {
            Unknown::Keep => Ruling::Keep,
            Unknown::Refuse => Ruling::Refuse,
        }
    }
}

/// Whether `column` is `names` with points between them.
fn is_joined(column: &str, names: &[&str]) -> bool {
    let rest = names.iter().enumerate().try_fold(column, |rest, (at, name)| {
        let rest = if at == 0 { rest } else { rest.strip_prefix('.')? };
        rest.strip_prefix(name)
    });
    rest == Some("")
}

#[cfg(test)]
mod tests;
