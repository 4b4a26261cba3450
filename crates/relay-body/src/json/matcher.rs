//! The values that rules select, while a text is read from its begin to its end.

use std::sync::Arc;

use sealwire_payload::{Position, Selection};

use crate::{BodyError, BodyRule, Containers, name};

/// Positions of all rules at the present value and the containers around it.
#[derive(Debug)]
pub(super) struct Matcher {
    rules: Arc<[BodyRule]>,
    /// Positions of each rule at each open container that a path reaches, outermost first.
    levels: Vec<Position>,
    /// Positions of each rule at the value that comes next.
    here: Vec<Position>,
    is_reached: bool,
    /// Rules that selected a value other than null.
    found: Vec<bool>,
}

impl Matcher {
    pub(super) fn new(rules: Arc<[BodyRule]>) -> Self {
        let found = vec![false; rules.len()];
        let mut matcher =
            Self { here: Vec::with_capacity(rules.len()), rules, levels: Vec::new(), is_reached: false, found };
        matcher.restart();
        matcher
    }

    /// Moves to the root of a new text.
    pub(super) fn restart(&mut self) {
        let root = |rule: &BodyRule| rule.selection.as_ref().map_or(Position::NOWHERE, |selection| selection.root());
        self.here.clear();
        self.here.extend(self.rules.iter().map(root));
        self.is_reached = self.here.iter().any(|position| !position.is_nowhere());
        self.levels.clear();
        self.found.fill(false);
    }

    /// Returns true if a path reaches the present value or anything beneath it.
    #[inline]
    pub(super) const fn is_reached(&self) -> bool {
        self.is_reached
    }

    /// Enters the present value, which is a container that a path reaches.
    pub(super) fn open(&mut self) {
        self.levels.extend_from_slice(&self.here);
    }

    /// Leaves a container that was entered.
    pub(super) fn close(&mut self) {
        self.levels.truncate(self.levels.len() - self.rules.len());
    }

    /// Moves to a value that no path reaches.
    #[inline]
    pub(super) const fn skip(&mut self) {
        self.is_reached = false;
    }

    /// Moves to the value of an unescaped key of the innermost container. Rejects a key that some readers take for a
    /// selected one.
    pub(super) fn key(&mut self, key: &[u8]) -> Result<(), BodyError> {
        self.child(|selection, position| selection.at(position, key));
        let level = &self.levels[self.levels.len() - self.rules.len()..];
        // The text was checked to be UTF-8.
        let key = std::str::from_utf8(key).unwrap_or_default();
        match name::misread_rule(&self.rules, level, key, false) {
            Some((rule, reason)) if self.rule().is_none() => Err(BodyError::Value { rule, reason }),
            _ => Ok(()),
        }
    }

    /// Moves to an element of the innermost container.
    pub(super) fn element(&mut self, index: u32) {
        self.child(|selection, position| selection.at_element(position, index));
    }

    #[inline]
    fn child(&mut self, child: impl Fn(&Selection, Position) -> Position) {
        let level = &self.levels[self.levels.len() - self.rules.len()..];
        self.is_reached = false;
        for ((rule, position), here) in self.rules.iter().zip(level).zip(&mut self.here) {
            *here = match &rule.selection {
                Some(selection) if !position.is_nowhere() => child(selection, *position),
                _ => Position::NOWHERE,
            };
            self.is_reached |= !here.is_nowhere();
        }
    }

    /// The first rule that selects the present value.
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

    /// Notes that a value was found by every rule that selects it, and by the rule whose leaf it is.
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
    match rules.iter().zip(found).position(|(rule, found)| rule.required && !found) {
        Some(rule) => Err(BodyError::Missing { rule }),
        None => Ok(()),
    }
}
