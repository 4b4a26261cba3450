//! Finds values that rules seal under other names and in other places.
//!
//! An upstream can find a selected value under another spelling of its name and in another place.
//! Some frameworks join query, form and JSON into one set of parameters, and read `user[ssn]` as
//! `{"user":{"ssn":..}}`. A [`Guard`] has the names of all values that the rules of one direction
//! seal. The guard rejects a message with such a name in a place where no rule seals the value.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use sealwire_payload::{Position, Selection};

use crate::BodyRule;
use crate::name::{self, BREAKS, NameSet, each_reading_of_levels, normal_form};

/// Most names of values per rule.
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

/// Names that must not occur where no rule seals their values.
#[derive(Clone, Debug)]
pub struct Guard {
    /// Paths in JSON.
    pub(crate) paths: Vec<GuardedPaths>,
    /// Names in forms, multipart bodies and queries.
    pub(crate) names: NameSet,
    /// Every name in a path to a value, in the spelling of the rules.
    selected: HashSet<Box<str>>,
    /// Names of other values, which pass in exactly this spelling.
    accepted: HashSet<Box<str>>,
}

/// Paths of the values of one rule, with names in their normal form.
#[derive(Clone, Debug)]
pub(crate) struct GuardedPaths {
    pub(crate) rule: usize,
    pub(crate) paths: Selection,
    /// True if the paths belong to another place than the body.
    pub(crate) is_foreign: bool,
    /// For paths reduced to their names, without wildcards and indexes: the index of the original
    /// paths in the guard.
    pub(crate) names_of: Option<usize>,
}

impl GuardedPaths {
    /// Returns the position of an array's element. Some parsers read a list of one value as this
    /// value, and some search engines read values in a list as values of the enclosing object. A
    /// path that continues with a name therefore also continues from the array.
    pub(crate) fn at_element(&self, array: Position, index: u32) -> Position {
        let next = self.paths.at_element(array, index);
        let has_names = self.paths.names_at(array).any(|name| !is_number(name));
        if !has_names || self.paths.selects(array) || self.continues_by_wildcard(array) {
            return next;
        }
        next.union(array)
    }

    /// Returns true if all paths that reach this value continue with elements.
    pub(crate) fn continues_by_element(&self, position: Position) -> bool {
        !position.is_nowhere() && self.paths.names_at(position).all(is_number)
    }

    /// Returns true if a path continues with an element.
    pub(crate) fn has_elements(&self, position: Position) -> bool {
        self.continues_by_element(position) || !self.paths.at_element(position, 0).is_nowhere()
    }

    fn continues_by_wildcard(&self, position: Position) -> bool {
        // No rule has this name, and a descent does not change the position.
        position.union(self.paths.at(position, b"\0")) != position
    }
}

fn is_number(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_digit)
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            names: NameSet::new(true),
            selected: HashSet::new(),
            accepted: HashSet::new(),
        }
    }
}

impl Guard {
    /// Creates a guard for the rules that seal. Returns `None` if a rule has too many names.
    pub fn new(sealed: &[SealedValues<'_>], accepted: &[Box<str>]) -> Option<Self> {
        let mut guard = Self {
            accepted: accepted.iter().cloned().collect(),
            ..Self::default()
        };
        for values in sealed {
            let rule = values.rule;
            let mut foreign = Vec::new();
            if let Some(selection) = values.body {
                let names_of = Some(guard.paths.len());
                guard.paths.push(GuardedPaths {
                    rule,
                    paths: in_normal_form(selection),
                    is_foreign: false,
                    names_of: None,
                });
                let mut alone = Vec::new();
                for names in selection.name_paths(NAMES_MAX)? {
                    guard
                        .selected
                        .extend(names.iter().map(|name| Box::from(*name)));
                    guard.names.insert_levels(&names, rule);
                    foreign.extend(path_of_levels(&names));
                    alone.extend((!names.is_empty()).then(|| quoted_path(&names)));
                }
                guard.add_names(rule, names_of, alone)?;
            }
            for name in values.query {
                guard.selected.insert(name.clone());
                guard.names.insert(name, rule);
                foreign.push(quoted_path(&[name]));
                foreign.extend(path_of_levels(&[name]));
            }
            guard.add_names(rule, None, foreign)?;
        }
        Some(guard)
    }

    /// Returns the names in forms, multipart bodies and queries.
    pub fn into_names(self) -> NameSet {
        self.names
    }

    /// Returns true for a name that the route accepts in addition to selected names.
    pub fn is_accepted(&self, name: &str) -> bool {
        self.accepted.contains(name)
    }

    /// Returns true for a name in a path to a value.
    pub fn is_selected(&self, name: &str) -> bool {
        self.selected.contains(name)
    }

    /// Returns true for another spelling of a name in a path to a value.
    pub fn is_other_spelling(&self, name: &str) -> bool {
        let form = normal_form(name);
        let is_like = self
            .selected
            .iter()
            .any(|selected| normal_form(selected) == form);
        !self.is_selected(name) && (is_like || self.matches(name))
    }

    /// Returns true if some parser finds a value under a name of a form, of a part or of a query.
    /// Ignores the accepted names.
    pub fn matches(&self, name: &str) -> bool {
        let levels: Vec<_> = name.split(BREAKS).map(normal_form).collect();
        let has_levels = name.contains(BREAKS)
            && self
                .paths
                .iter()
                .any(|guarded| reaches(&guarded.paths, &levels));
        self.names.matches(name) || has_levels
    }

    /// Returns the rules whose values some parser finds under a name of a form, of a part or of a
    /// query.
    pub fn rules_of(&self, name: &str) -> Vec<usize> {
        if self.is_accepted(name) {
            return Vec::new();
        }
        let mut rules = self.names.rules_of(name).to_vec();
        // A name with levels is also a path, which matches wildcards.
        each_reading_of_levels(name, |text| {
            if text.contains(BREAKS) {
                let levels: Vec<_> = text.split(BREAKS).map(normal_form).collect();
                let reached = self
                    .paths
                    .iter()
                    .filter(|guarded| reaches(&guarded.paths, &levels));
                rules.extend(reached.map(|guarded| guarded.rule));
            }
        });
        rules
    }

    /// Returns true for an ambiguous name, if the guard has names.
    pub fn is_unclear(&self, name: &str) -> bool {
        name::is_unclear(name) && !self.names.is_empty() && !self.is_accepted(name)
    }

    /// Adds paths that consist of names, each once.
    fn add_names(
        &mut self,
        rule: usize,
        names_of: Option<usize>,
        mut paths: Vec<String>,
    ) -> Option<()> {
        paths.sort();
        paths.dedup();
        self.add_parsed(rule, names_of, &paths)
    }

    /// Adds paths in the least number of selections. Returns `None` if a path does not fit into a
    /// selection.
    fn add_parsed(&mut self, rule: usize, names_of: Option<usize>, paths: &[String]) -> Option<()> {
        match Selection::parse(paths.iter().map(String::as_str)) {
            Ok(selection) if paths.is_empty() => debug_assert!(selection.is_empty()),
            Ok(selection) => {
                let is_foreign = names_of.is_none();
                self.paths.push(GuardedPaths {
                    rule,
                    paths: in_normal_form(&selection),
                    is_foreign,
                    names_of,
                });
            }
            Err(_) if paths.len() < 2 => return None,
            Err(_) => {
                let (first, second) = paths.split_at(paths.len() / 2);
                self.add_parsed(rule, names_of, first)?;
                self.add_parsed(rule, names_of, second)?;
            }
        }
        Some(())
    }
}

fn in_normal_form(selection: &Selection) -> Selection {
    selection.in_form(|name| normal_form(name).into_owned())
}

/// Returns true if a name with these levels is a selected value or a value within it.
fn reaches<T: Deref<Target = str>>(paths: &Selection, levels: &[T]) -> bool {
    let mut position = paths.root();
    for level in levels {
        let next = paths.at(position, level.as_bytes());
        // `[]` is the next element, and an empty level also follows each closing bracket.
        position = if level.is_empty() {
            position.union(next).union(paths.at_element(position, 0))
        } else {
            next
        };
        if paths.selects(position) || position.is_nowhere() {
            return !position.is_nowhere();
        }
    }
    false
}

/// Returns the position of a JSON key with these levels, such as `card.number`, for parsers that
/// read it as several keys. A key that continues below a selected value is within this value.
pub(crate) fn at_levels<T: Deref<Target = str>>(
    paths: &Selection,
    object: Position,
    levels: &[T],
) -> Position {
    let mut position = object;
    for level in levels {
        position = paths.at(position, level.as_bytes());
        if paths.selects(position) || position.is_nowhere() {
            break;
        }
    }
    position
}

/// Returns the JSON path that frameworks give to a name with levels, such as `user[ssn]`.
fn path_of_levels(names: &[&str]) -> Option<String> {
    let levels = names
        .iter()
        .flat_map(|name| name.split(BREAKS))
        .filter(|level| !level.is_empty());
    let levels: Vec<&str> = levels.collect();
    (levels.len() > names.len()).then(|| quoted_path(&levels))
}

fn quoted_path(names: &[&str]) -> String {
    names
        .iter()
        .fold("$".to_owned(), |path, name| path + &quoted_name(name))
}

/// Quotes a name as a step of a path.
fn quoted_name(name: &str) -> String {
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
        Self {
            rules: rules.into(),
            guard,
        }
    }

    /// Creates a set with all rules of a direction. Returns `None` if a rule has too many names.
    pub fn of_direction(rules: Vec<BodyRule>) -> Option<Self> {
        let sealed = rules.iter().enumerate().filter(|(_, rule)| rule.seals);
        let sealed: Vec<SealedValues<'_>> = sealed
            .map(|(rule, other)| SealedValues {
                rule,
                body: other.selection.as_deref(),
                query: &[],
            })
            .collect();
        let guard = Guard::new(&sealed, &[])?;
        Some(Self::new(rules, guard.into()))
    }

    /// Returns true if a rule names a key of the object at this position, other than with a
    /// wildcard.
    pub(crate) fn names_key(&self, rule: usize, object: Position, key: &[u8]) -> bool {
        let selection = self
            .rules
            .get(rule)
            .and_then(|rule| rule.selection.as_deref());
        selection.is_some_and(|selection| selection.names_at(object).any(|name| name == key))
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
