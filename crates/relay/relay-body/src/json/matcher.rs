//! Matches the paths of rules while a text is read from start to end.

use std::sync::Arc;

use sealwire_payload::{Position, Selection};

use crate::guard::at_levels;
use crate::name::{self, BREAKS, normal_form};
use crate::{BodyError, BodyRule, Containers, RuleSet};

/// Error text for a single value where a rule selects elements.
const SINGLE: &str = "a single value where the rule selects elements of a list: send a list";

/// Positions of all rules at the current value and in the containers around it.
#[derive(Debug)]
pub(super) struct Matcher {
    rules: Arc<RuleSet>,
    /// Positions of each rule at each open container that a path reaches, outermost first.
    levels: Vec<Position>,
    /// Positions of each rule at the next value.
    here: Vec<Position>,
    /// Like `levels` and `here`, for each entry of the guard's paths: the union of the positions that
    /// any parser could reach with its reading of the keys.
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
        let is_endless = self.enter_guarded_key(key);
        self.check_readable(key, is_endless)?;
        self.check_sealed(Some(key.as_bytes()))
    }

    /// Moves the guard's paths to the value of a key, in every reading that some parser has of the
    /// key. Returns true if the key has more readings than are checked.
    fn enter_guarded_key(&mut self, key: &str) -> bool {
        let guard = self.rules.guard();
        let first = self.guarded_levels.len() - guard.paths.len();
        let positions = &self.guarded_levels[first..];
        let is_accepted = guard.is_accepted(key);

        self.guarded_here.fill(Position::NOWHERE);
        let is_endless = name::each_reading_of_levels(key, |text| {
            let form = normal_form(text);
            // Some databases and search engines read `card.number` as two keys, and some frameworks
            // `card[number]`.
            let parts = text
                .split(BREAKS)
                .filter(|part| !part.is_empty() && text.contains(BREAKS) && !is_accepted);
            let parts: Vec<_> = parts.map(normal_form).collect();
            for ((guarded, position), here) in guard
                .paths
                .iter()
                .zip(positions)
                .zip(&mut self.guarded_here)
            {
                // An accepted name matches only wildcards, like a name that no rule has.
                let form = if is_accepted { "\0" } else { &*form };
                *here = here.union(guarded.paths.at(*position, form.as_bytes()));
                if parts.len() > 1 {
                    *here = here.union(at_levels(&guarded.paths, *position, &parts));
                }
            }
        });

        // Rails stores a list that is the whole body under this name.
        if key == "_json" && first == 0 {
            self.guarded_here
                .iter_mut()
                .zip(positions)
                .for_each(|(here, root)| *here = here.union(*root));
        }
        is_endless
    }

    /// Rejects a key that parsers can read as the name of a sealed value in ways that are not
    /// checked, unless a rule seals its value.
    fn check_readable(&self, key: &str, is_endless: bool) -> Result<(), BodyError> {
        let guard = self.rules.guard();
        let is_unclear = name::is_unclear(key) && !guard.is_accepted(key);
        if !is_unclear && !is_endless {
            return Ok(());
        }
        let positions = &self.guarded_levels[self.guarded_levels.len() - guard.paths.len()..];
        let unreadable = guard
            .paths
            .iter()
            .zip(positions)
            .find(|(guarded, position)| guarded.paths.names_at(**position).next().is_some());
        match unreadable {
            Some((guarded, _)) if !self.rule().is_some_and(|rule| self.rules[rule].seals) => {
                Err(BodyError::Value {
                    rule: guarded.rule,
                    reason: if is_unclear {
                        name::UNCLEAR
                    } else {
                        name::ALIAS
                    },
                })
            }
            _ => Ok(()),
        }
    }

    /// Moves to an element of the innermost container. Rejects an element that a rule seals as the
    /// value of a key: some parsers do not tell the element 0 from the key `0`.
    pub(super) fn enter_element(&mut self, index: u32) -> Result<(), BodyError> {
        self.enter_child(|selection, position| selection.at_element(position, index));
        let guard = self.rules.guard();
        let positions = &self.guarded_levels[self.guarded_levels.len() - guard.paths.len()..];
        for (at, guarded) in guard.paths.iter().enumerate() {
            // If the paths exclude an element, their names do not match it either.
            let is_left_out = guarded.names_of.is_some_and(|of| {
                self.guarded_here[of].is_nowhere()
                    && guard.paths[of].continues_by_element(positions[of])
            });
            let position = if is_left_out {
                Position::NOWHERE
            } else {
                positions[at]
            };
            self.guarded_here[at] = guarded.at_element(position, index);
        }
        self.check_sealed(None)
    }

    /// Rejects the current value if some parser finds a sealed value here and no rule seals the
    /// current value.
    fn check_sealed(&mut self, key: Option<&[u8]>) -> Result<(), BodyError> {
        let positions = self.rules.guard().paths.iter().zip(&self.guarded_here);
        let is_reached = self
            .guarded_here
            .iter()
            .any(|position| !position.is_nowhere());
        let is_found = is_reached
            && positions
                .clone()
                .any(|(guarded, position)| guarded.paths.selects(*position));
        self.is_reached |= is_reached;

        let selecting_rule = if is_found { self.rule() } else { None };
        if !is_found || selecting_rule.is_some_and(|rule| self.rules[rule].seals) {
            return Ok(());
        }
        // A rule that seals only in the query or in another format of body does not forbid the value
        // if a rule for this format names it.
        let level = &self.levels[self.levels.len() - self.rules.len()..];
        let is_named = selecting_rule
            .is_some_and(|rule| key.is_none_or(|key| self.rules.names_key(rule, level[rule], key)));
        for (guarded, position) in positions {
            let is_unsealed = guarded.paths.selects(*position) && !self.selects(guarded.rule);
            // The elements of a list are checked when they are reached.
            if is_unsealed
                && let Some(of) = guarded.names_of
                && self.rules.guard().paths[of].has_elements(self.guarded_here[of])
            {
                self.single_of = Some(guarded.rule);
                continue;
            }
            let is_foreign = guarded.is_foreign || self.rules[guarded.rule].selection.is_none();
            if is_unsealed && !(is_foreign && is_named) {
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

    /// Marks rules as found: every rule that selects the current value, and `leaf_of`, the rule that
    /// selected a container around it with [`Containers::Leaves`].
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
