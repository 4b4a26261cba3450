//! Errors in a configuration, with messages for the operator. Messages name keys and never contain
//! their values.

use std::fmt;
use std::path::PathBuf;

/// Describes why a configuration is invalid. Contains every problem that was found, each with its
/// key.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Contains at least one problem.
    pub problems: Vec<Problem>,
}

impl ConfigError {
    pub(super) fn one(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
        }
    }

    pub(crate) fn unless_empty(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Self { problems })
        }
    }
}

impl fmt::Display for ConfigError {
    /// Writes one problem per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// A problem in a configuration. The operator must correct each problem. No variant contains a
/// value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is missing, too large, not UTF-8 or not readable by this process.
    #[error("{}: {problem}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        problem: String,
    },
    /// The file is not TOML.
    #[error("line {line}: not valid TOML: {problem}")]
    Syntax {
        /// Line of the file, counted from 1.
        line: usize,
        /// Expected syntax.
        problem: String,
    },
    /// The section does not exist.
    #[error("[{section}]: unknown section (line {line}){hint}")]
    UnknownSection {
        /// Name of the section.
        section: String,
        /// Line of the file, counted from 1.
        line: usize,
        /// The closest known name, or the command that lists all names.
        hint: String,
    },
    /// The name of a section has a plain value.
    #[error("[{section}]: must be a section (line {line})")]
    NotASection {
        /// Name of the section.
        section: &'static str,
        /// Line of the file, counted from 1.
        line: usize,
    },
    /// The key does not exist.
    #[error("{key}: unknown key (line {line}){hint}")]
    UnknownKey {
        /// `section.name`.
        key: String,
        /// Line of the file, counted from 1.
        line: usize,
        /// The closest known name, or the command that lists all names.
        hint: String,
    },
    /// An environment variable looks like an override, but no key has this name.
    #[error("{variable}: unknown environment variable{hint}")]
    UnknownVariable {
        /// Name of the variable.
        variable: String,
        /// The closest known name, or the command that lists all names.
        hint: String,
    },
    /// A value has the wrong kind or is out of range.
    #[error("{key}: {problem}{origin}")]
    Value {
        /// `section.name`.
        key: String,
        /// Source of the value.
        origin: Origin,
        /// Expected value.
        problem: String,
    },
    /// Two values are each valid, but exclude each other.
    #[error("{key}: {rule} (against {other})")]
    Conflict {
        /// `section.name` of the key to change.
        key: String,
        /// `section.name` of the other key.
        other: String,
        /// The violated rule.
        rule: &'static str,
    },
}

/// Source of an invalid value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Line of the file, counted from 1.
    Line(usize),
    /// Name of the environment variable.
    Variable(String),
    /// The file or the environment.
    Either,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, " (line {line})"),
            Self::Variable(variable) => write!(f, " ({variable})"),
            Self::Either => Ok(()),
        }
    }
}
