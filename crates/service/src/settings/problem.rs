//! Problems in a configuration, with messages for the operator. Messages name keys and never
//! contain their values, because a secret can be set for the wrong key.

use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::Lines;

/// A problem in a configuration, which the operator must solve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The file with the line, if it should be named.
    pub file: Option<PathBuf>,
    /// Line of the file, counted from 1, if known.
    pub line: Option<usize>,
    /// The key, the variable, or a place such as `route "orders", request rule 2`. Can be empty.
    pub place: String,
    /// What is wrong and what to do, without the value.
    pub message: String,
}

impl Problem {
    /// Creates a problem whose line is not known yet; see [`Problems::locate`].
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            file: None,
            line: None,
            place: place.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{}, line {line}: ", file.display())?,
            (Some(file), None) => write!(f, "{}: ", file.display())?,
            (None, Some(line)) => write!(f, "line {line}: ")?,
            (None, None) => {}
        }
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// Keeps only some problems.
    pub fn retain(&mut self, keeps: impl FnMut(&Problem) -> bool) {
        self.0.retain(keeps);
    }

    /// Adds the line to each problem whose place is in the file. A key that is not set gets the line
    /// of its table.
    pub fn locate(&mut self, lines: &Lines) {
        for problem in &mut self.0 {
            let table = || lines.get(problem.place.rsplit_once('.')?.0);
            problem.line = problem
                .line
                .or(lines.get(&problem.place).or_else(table).copied());
        }
    }

    /// Adds the file to each problem with a line.
    pub fn set_file(&mut self, file: &Path) {
        for problem in self.0.iter_mut().filter(|problem| problem.line.is_some()) {
            problem.file = Some(file.to_owned());
        }
    }

    /// Returns the problems as an error, in the order of their lines, if there are any.
    pub fn into_result(mut self) -> Result<(), Self> {
        self.0.sort_by_key(|problem| problem.line);
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl Deref for Problems {
    type Target = [Problem];

    fn deref(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for Problems {
    /// Writes one problem per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
