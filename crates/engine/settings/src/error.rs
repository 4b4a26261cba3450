//! Why a configuration is refused, in words for the operator. Names of keys, never their values.

use std::fmt;
use std::path::PathBuf;

/// Why a configuration is refused: every problem that was found, each with its key.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// At least one.
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
    /// One problem per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// One thing wrong with a configuration. All are the operator's to mend; none carries a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is missing, too large, not UTF-8 or not ours to read.
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
        /// Where, counted from 1.
        line: usize,
        /// Expected syntax.
        problem: String,
    },
    /// A section that does not exist.
    #[error("[{section}]: unknown section (line {line}); see `sealwire config template`")]
    UnknownSection {
        /// Its name.
        section: String,
        /// Where, counted from 1.
        line: usize,
    },
    /// A section's name with a plain value.
    #[error("[{section}]: must be a section (line {line})")]
    NotASection {
        /// Its name.
        section: &'static str,
        /// Where, counted from 1.
        line: usize,
    },
    /// A key that does not exist.
    #[error("{key}: unknown key (line {line}); see `sealwire config template`")]
    UnknownKey {
        /// `section.name`.
        key: String,
        /// Where, counted from 1.
        line: usize,
    },
    /// A variable that looks like an override and is none.
    #[error("{variable}: unknown environment variable; see `sealwire config template`")]
    UnknownVariable {
        /// Its name.
        variable: String,
    },
    /// A value of the wrong kind or out of range.
    #[error("{key}: {problem}{origin}")]
    Value {
        /// `section.name`.
        key: String,
        /// Where the value came from.
        origin: Origin,
        /// Expected value.
        problem: String,
    },
    /// Two values, each fine alone, that cannot stand together.
    #[error("{key}: {rule} (against {other})")]
    Conflict {
        /// `section.name` of the one to change.
        key: String,
        /// `section.name` of the other.
        other: String,
        /// The rule.
        rule: &'static str,
    },
}

/// Where a refused value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This line of the file, counted from 1.
    Line(usize),
    /// This environment variable.
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
