//! Matches the paths of rules while a text is read from start to end.

use std::sync::Arc;

use sealwire_payload::{Position, Selection};

use crate::guard::at_levels;
use crate::name::{self, BREAKS, normal_form};
use crate::{BodyError, BodyRule, Containers, RuleSet};

/// Error text for a value in place of a list.
const SINGLE: &str = "a single value in place of a list";

/// Positions of all rules at the current value and in the containers around it.
#[derive(Debug)]
pub(super) struct Matcher {
    rules: Arc<RuleSet>,
    /// Positions of each rule at each open container that a path reaches, outermost first.
    levels: Vec<Position>,
    /// Positions of each rule at the next value.
    here: Vec<Position>,
    /// Like `levels` and `here`, for each path of the guard, in every reading of some parser.
    guarded_levels: Vec<Position>,
    guarded_here: Vec<Position>,
    is_reached: bool,
    /// The rule that seals elements of the current value, which some parsers read as a list of this
    /// one value.
    single_of: Option<usize>,
    /// Rules that selected a value other than null.
    found: Vec<bool>,
}

impl Matcher {
    pub(super) fn new(rules: Arc<RuleSet>) -> Self {
        let found = vec![false; rules.len()];
        let mut matcher = Self {
            here: Vec::with_capacity(rules.len()),
            guarded_here: Vec::with_capacity(rules.guard().paths.len()),
            rules,
            levels: Vec::new(),
            guarded_levels: Vec::new(),
            is_reached: false,
            single_of: None,
            found,
        };
        matcher.restart();
        matcher
    }

    /// Moves to the root of a new text.
    pub(super) fn restart(&mut self) {
        self.here.clear();
        self.here.extend(self.rules.iter().map(BodyRule::root));
        self.guarded_here.clear();
        self.guarded_here.extend(
            self.rules
                .guard()
                .paths
                .iter()
                .map(|guarded| guarded.paths.root()),
        );
        self.is_reached = self
            .here
            .iter()
            .chain(&self.guarded_here)
            .any(|position| !position.is_nowhere());
        self.single_of = None;
        self.levels.clear();
        self.guarded_levels.clear();
        self.found.fill(false);
    }

    /// Returns true if a path reaches the current value or a value below it.
    #[inline]
    pub(super) const fn is_reached(&self) -> bool {
        self.is_reached
    }

    /// Enters the current value, which must be a container that a path reaches.
    pub(super) fn open_container(&mut self) {
        self.levels.extend_from_slice(&self.here);
        self.guarded_levels.extend_from_slice(&self.guarded_here);
    }

    /// Leaves the container that was entered last.
    pub(super) fn close_container(&mut self) {
        self.levels.truncate(self.levels.len() - self.rules.len());
        self.guarded_levels
            .truncate(self.guarded_levels.len() - self.rules.guard().paths.len());
    }

    /// Moves to a value that no path reaches.
    #[inline]
    pub(super) const fn skip_value(&mut self) {
        self.is_reached = false;
        self.single_of = None;
    }

    /// Moves to the value of an unescaped key of the innermost container. Rejects a value that a
    /// rule seals under another name or in another place.
    pub(super) fn enter_key(&mut self, key: &[u8]) -> Result<(), BodyError> {
        self.enter_child(|selection, position| selection.at(position, key));
        if self.guarded_here.is_empty() {
            return Ok(());
        }
        // The text was checked to be UTF-8.
        let key = std::str::from_utf8(key).unwrap_or_default();
        let guard = self.rules.guard();
        let level = &self.guarded_levels[self.guarded_levels.len() - guard.paths.len()..];

        let is_accepted = guard.is_accepted(key);
        let is_unclear = name::is_unclear(key) && !is_accepted;
        let mut unreadable = None;
        self.guarded_here.fill(Position::NOWHERE);
        let is_endless = name::each_reading_of_levels(key, |text| {
            let form = normal_form(text);
            // Some databases and search engines read `card.number` as two keys, and some frameworks
            // `card[number]`.
            let levels = text
                .split(BREAKS)
                .filter(|level| !level.is_empty() && text.contains(BREAKS) && !is_accepted);
            let levels: Vec<_> = levels.map(normal_form).collect();
            for ((guarded, position), here) in
                guard.paths.iter().zip(level).zip(&mut self.guarded_here)
            {
                // An accepted name matches only wildcards, like a name that no rule has.
                let form = if is_accepted { "\0" } else { &*form };
                *here = here.union(guarded.paths.at(*position, form.as_bytes()));
                if levels.len() > 1 {
                    *here = here.union(at_levels(&guarded.paths, *position, &levels));
                }
            }
        });

        // Rails stores a list that is the whole body under this name.
        if key == "_json" && self.guarded_levels.len() == level.len() {
            self.guarded_here
                .iter_mut()
                .zip(level)
                .for_each(|(here, root)| *here = here.union(*root));
        }
        if is_unclear || is_endless {
            unreadable = (0..level.len())
                .find(|at| guard.paths[*at].paths.names_at(level[*at]).next().is_some())
                .map(|at| guard.paths[at].rule);
        }
        if let Some(rule) = unreadable
            && !self.rule().is_some_and(|rule| self.rules[rule].seals)
        {
            return Err(BodyError::Value {
                rule,
                reason: if is_unclear {
                    name::UNCLEAR
                } else {
                    name::ALIAS
                },
            });
        }
        self.check_sealed(Some(key.as_bytes()))
    }

    /// Moves to an element of the innermost container. Rejects a value that a rule seals under a
    /// number as its key.
    pub(super) fn enter_element(&mut self, index: u32) -> Result<(), BodyError> {
        self.enter_child(|selection, position| selection.at_element(position, index));
        let guard = self.rules.guard();
        let level = &self.guarded_levels[self.guarded_levels.len() - guard.paths.len()..];
        for (at, guarded) in guard.paths.iter().enumerate() {
            // If the paths exclude an element, their names do not match it either.
            let is_left_out = guarded.names_of.is_some_and(|of| {
                self.guarded_here[of].is_nowhere()
                    && guard.paths[of].continues_by_element(level[of])
            });
            let position = if is_left_out {
                Position::NOWHERE
            } else {
                level[at]
            };
            self.guarded_here[at] = guarded.at_element(position, index);
        }
        self.check_sealed(None)
    }

    /// Rejects the current value if some parser finds a sealed value here and no rule seals the
    /// current value.
    fn check_sealed(&mut self, key: Option<&[u8]>) -> Result<(), BodyError> {
        let guarded = self.rules.guard().paths.iter().zip(&self.guarded_here);
        let is_reached = self
            .guarded_here
            .iter()
            .any(|position| !position.is_nowhere());
        let is_found = is_reached
            && guarded
                .clone()
                .any(|(paths, position)| paths.paths.selects(*position));
        self.is_reached |= is_reached;

        let applies = if is_found { self.rule() } else { None };
        if !is_found || applies.is_some_and(|rule| self.rules[rule].seals) {
            return Ok(());
        }
        // If the sealing rule is for another format, a rule that names the value in this format
        // decides.
        let level = &self.levels[self.levels.len() - self.rules.len()..];
        let is_named = applies
            .is_some_and(|rule| key.is_none_or(|key| self.rules.names_key(rule, level[rule], key)));
        for (guarded, position) in guarded {
            let is_here = guarded.paths.selects(*position) && !self.selects(guarded.rule);
            // The elements of a list are checked when they are reached.
            if is_here
                && let Some(of) = guarded.names_of
                && self.rules.guard().paths[of].has_elements(self.guarded_here[of])
            {
                self.single_of = Some(guarded.rule);
                continue;
            }
            let is_foreign = guarded.is_foreign || self.rules[guarded.rule].selection.is_none();
            if is_here && !(is_foreign && is_named) {
                return Err(BodyError::Value {
                    rule: guarded.rule,
                    reason: name::ALIAS,
                });
            }
        }
        Ok(())
    }

    #[inline]
    fn enter_child(&mut self, child: impl Fn(&Selection, Position) -> Position) {
        let level = &self.levels[self.levels.len() - self.rules.len()..];
        self.is_reached = false;
        self.single_of = None;
        for ((rule, position), here) in self.rules.iter().zip(level).zip(&mut self.here) {
            *here = match &rule.selection {
                Some(selection) if !position.is_nowhere() => child(selection, *position),
                _ => Position::NOWHERE,
            };
            self.is_reached |= !here.is_nowhere();
        }
    }

    /// Rejects a single value whose elements a rule seals, if the current value is neither null nor
    /// a container, and `applies`, the rule for it, does not seal.
    pub(super) fn check_single(&self, applies: Option<usize>) -> Result<(), BodyError> {
        match self.single_of {
            Some(rule) if !applies.is_some_and(|applies| self.rules[applies].seals) => {
                Err(BodyError::Value {
                    rule,
                    reason: SINGLE,
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the first rule that selects the current value.
    pub(super) fn rule(&self) -> Option<usize> {
        if !self.is_reached {
            return None;
        }
        (0..self.rules.len()).find(|rule| self.selects(*rule))
    }

    fn selects(&self, rule: usize) -> bool {
        let selection = self.rules[rule].selection.as_ref();
        selection.is_some_and(|selection| selection.selects(self.here[rule]))
    }

    pub(super) fn containers(&self, rule: usize) -> Containers {
        self.rules[rule].containers
    }

    /// Records that every rule that selects the current value found a value, and so did `leaf_of`,
    /// the rule whose leaf it is.
    pub(super) fn note_found(&mut self, leaf_of: Option<usize>) {
        if let Some(rule) = leaf_of {
            self.found[rule] = true;
        }
        if self.is_reached {
            (0..self.rules.len()).for_each(|rule| self.found[rule] |= self.selects(rule));
        }
    }

    pub(super) fn found(&self) -> &[bool] {
        &self.found
    }

    /// Rejects a text without a value that a rule requires.
    pub(super) fn check_required(&self) -> Result<(), BodyError> {
        check_required(&self.rules, &self.found)
    }
}

/// Rejects a body without a value that a rule requires.
pub(crate) fn check_required(rules: &[BodyRule], found: &[bool]) -> Result<(), BodyError> {
    match rules
        .iter()
        .zip(found)
        .position(|(rule, found)| rule.required && !found)
    {
        Some(rule) => Err(BodyError::Missing { rule }),
        None => Ok(()),
    }
}
