//! Errors in rules, with their positions.

use std::ops::Range;

use sealwire_payload::SelectError;

use super::{Lists, Rule, Target};
use crate::FunctionError;

/// Invalid rules, reported to their author.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", place(.line, .column))]
pub struct RulesError {
    /// Line in the rules text, counted from 1; 0 if the rules are not a text.
    pub line: usize,
    /// Character in that line, counted from 1; 0 if the rules are not a text.
    pub column: usize,
    /// The error and the correct form.
    pub message: String,
}

fn place(line: &usize, column: &usize) -> String {
    if *line == 0 {
        String::new()
    } else {
        format!("line {line}, column {column}: ")
    }
}

impl RulesError {
    /// Creates an error at byte `at` of `text`.
    pub(super) fn at(text: &str, at: usize, message: String) -> Self {
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

/// An error in the rules, before its position in the text is known.
#[derive(Debug)]
pub(super) struct RuleFault {
    pub(super) place: RulePosition,
    pub(super) message: String,
}

/// The invalid part of the rules.
#[derive(Debug)]
pub(super) enum RulePosition {
    /// A rule as a whole, by its index.
    Rule(usize),
    /// The target of a rule (by index), from this byte of the target.
    Target(usize, usize),
    /// The mask of a rule (by index), from this byte of the mask.
    Mask(usize, usize),
    /// A list.
    List,
    /// A byte range of the text.
    Text(Range<usize>),
}

impl RuleFault {
    pub(super) fn rule(at: usize, message: String) -> Self {
        Self {
            place: RulePosition::Rule(at),
            message,
        }
    }

    pub(super) fn target(at: usize, message: String) -> Self {
        Self {
            place: RulePosition::Target(at, 0),
            message,
        }
    }

    pub(super) fn path(at: usize, error: &SelectError) -> Self {
        let byte = if let SelectError::Syntax { at, .. } = error {
            *at
        } else {
            0
        };
        Self {
            place: RulePosition::Target(at, byte),
            message: error.to_string(),
        }
    }

    pub(super) fn function(at: usize, error: FunctionError) -> Self {
        Self {
            place: RulePosition::Mask(at, error.at),
            message: error.message,
        }
    }

    pub(super) fn list(name: &str, message: String) -> Self {
        Self {
            place: RulePosition::List,
            message: format!("list `{name}`: {message}"),
        }
    }

    pub(super) fn no_list(at: usize, list: &str, lists: &Lists) -> Self {
        let message = format!(
            "unknown list `{list}`: write one of {}, or add it under [lists]",
            lists.names()
        );
        Self {
            place: RulePosition::Mask(at, 0),
            message,
        }
    }

    /// Creates an error for paths that exceed the total step limit.
    pub(super) fn too_many(error: &SelectError, rules: &[Rule]) -> Self {
        let message = format!("{error}: name containers instead, or columns, which take none");
        Self::rule(
            rules
                .iter()
                .rposition(|rule: &Rule| match (error, &rule.target) {
                    (SelectError::TooManySteps { path, .. }, Target::Path(other)) => path == other,
                    _ => false,
                })
                .unwrap_or(0),
            message,
        )
    }

    /// Converts the fault for rules that do not come from a text.
    pub(super) fn into_error(self) -> RulesError {
        let message = match self.place {
            RulePosition::Rule(at) => format!("rule {}: {}", at + 1, self.message),
            RulePosition::Target(at, _) => format!("rule {}: {}", at + 1, self.message),
            RulePosition::Mask(at, byte) => format!(
                "rule {}: mask: {}, at column {}",
                at + 1,
                self.message,
                byte + 1
            ),
            RulePosition::List | RulePosition::Text(_) => self.message,
        };

        RulesError {
            line: 0,
            column: 0,
            message,
        }
    }
}
