//! Values that rules seal, under other names and in other places.
//!
//! A reader can find a selected value under another spelling of its name, and in another place: some frameworks join
//! query, form and JSON into one set of parameters, and take `user[ssn]` for `{"user":{"ssn":..}}`. A [`Guard`] knows the
//! names of all values that the rules of one direction seal. A message in which one of them stands where no rule seals it
//! is rejected.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use sealwire_payload::Selection;

use crate::BodyRule;
use crate::name::{self, NameSet, normal_form};

/// Most names of the values of one rule.
const NAMES_MAX: usize = 10_000;

/// The values that one rule seals.
#[derive(Clone, Copy, Debug)]
pub struct SealedValues<'a> {
    /// Position of the rule.
    pub rule: usize,
    /// Paths of values in bodies, of any format.
    pub body: Option<&'a Selection>,
    /// Names of query parameters.
    pub query: &'a [Box<str>],
}

/// Names that must not stand where no rule seals their values.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Paths in JSON.
    pub(crate) paths: Vec<GuardedPaths>,
    /// Names in forms, multipart bodies and queries.
    pub(crate) names: NameSet,
    /// Every name on the way to a value, as the rules spell it.
    selected: HashSet<Box<str>>,
    /// Names of other values, which pass as they are spelled here.
    accepted: HashSet<Box<str>>,
}

/// Paths of the values of one rule, with names in their normal form.
#[derive(Clone, Debug)]
pub(crate) struct GuardedPaths {
    pub(crate) rule: usize,
    pub(crate) paths: Selection,
    /// True if they are of another place than the body.
    pub(crate) is_foreign: bool,
}

impl Default for Guard {
    fn default() -> Self {
        Self { paths: Vec::new(), names: NameSet::new(true), selected: HashSet::new(), accepted: HashSet::new() }
    }
}

impl Guard {
    /// Creates a guard for the rules that seal. `None` if a rule has too many names.
    pub fn new(sealed: &[SealedValues<'_>], accepted: &[Box<str>]) -> Option<Self> {
        let mut guard = Self { accepted: accepted.iter().cloned().collect(), ..Self::default() };
        for values in sealed {
            let rule = values.rule;
            if let Some(selection) = values.body {
                let paths = selection.in_form(|name| normal_form(name).into_owned());
                guard.paths.push(GuardedPaths { rule, paths, is_foreign: false });
                for names in selection.name_paths(NAMES_MAX)? {
                    guard.selected.extend(names.iter().map(|name| Box::from(*name)));
                    guard.names.insert_levels(&names, rule);
                    guard.add_levels(&names, rule)?;
                }
            }
            for name in values.query {
                guard.selected.insert(name.clone());
                guard.names.insert(name, rule);
                guard.add_path(&[name], rule)?;
                guard.add_levels(&[name], rule)?;
            }
        }
        Some(guard)
    }

    /// Takes the names in forms, multipart bodies and queries.
    pub fn into_names(self) -> NameSet {
        self.names
    }

    /// Returns true for a name that the route accepts beside selected ones.
    pub fn is_accepted(&self, name: &str) -> bool {
        self.accepted.contains(name)
    }

    /// Returns true for a name that stands on the way to a value.
    pub fn is_selected(&self, name: &str) -> bool {
        self.selected.contains(name)
    }

    /// Returns true for another spelling of a name on the way to a value.
    pub fn is_other_spelling(&self, name: &str) -> bool {
        let form = normal_form(name);
        let is_like = self.selected.iter().any(|selected| normal_form(selected) == form);
        !self.is_selected(name) && (is_like || self.names.takes(name))
    }

    /// Returns the rules whose values some reader finds under a name of a form, of a part or of a query.
    pub fn rules_of(&self, name: &str) -> &[usize] {
        if self.is_accepted(name) { &[] } else { self.names.rules_of(name) }
    }

    /// Returns true for a name whose reading is not clear, where names are guarded.
    pub fn is_unclear(&self, name: &str) -> bool {
        name::is_unclear(name) && !self.names.is_empty() && !self.is_accepted(name)
    }

    /// Adds the path in JSON that frameworks give a name with levels, such as `user[ssn]`.
    fn add_levels(&mut self, names: &[&str], rule: usize) -> Option<()> {
        let levels: Vec<&str> =
            names.iter().flat_map(|name| name.split(['[', ']', '.'])).filter(|level| !level.is_empty()).collect();
        if levels.len() > names.len() { self.add_path(&levels, rule) } else { Some(()) }
    }

    fn add_path(&mut self, names: &[&str], rule: usize) -> Option<()> {
        let path: String = names.iter().map(|name| quoted(name)).collect();
        let paths = Selection::parse([format!("${path}").as_str()]).ok()?;
        let paths = paths.in_form(|name| normal_form(name).into_owned());
        self.paths.push(GuardedPaths { rule, paths, is_foreign: true });
        Some(())
    }
}

/// A name as a step of a path.
fn quoted(name: &str) -> String {
    format!("['{}']", name.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// Rules for one body, and the guard of their direction.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Box<[BodyRule]>,
    guard: Arc<Guard>,
}

impl RuleSet {
    /// Creates a set.
    pub fn new(rules: Vec<BodyRule>, guard: Arc<Guard>) -> Self {
        Self { rules: rules.into(), guard }
    }

    /// Creates a set of rules that are all of their direction. `None` if a rule has too many names.
    pub fn alone(rules: Vec<BodyRule>) -> Option<Self> {
        let sealed = rules.iter().enumerate().filter(|(_, rule)| rule.seals);
        let sealed: Vec<SealedValues<'_>> =
            sealed.map(|(rule, other)| SealedValues { rule, body: other.selection.as_deref(), query: &[] }).collect();
        let guard = Guard::new(&sealed, &[])?;
        Some(Self::new(rules, guard.into()))
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.guard
    }
}

impl Deref for RuleSet {
    type Target = [BodyRule];

    fn deref(&self) -> &[BodyRule] {
        &self.rules
    }
}
