//! Why there are no figures, or none that may be believed. Each kind is an exit status of its own.

use serde::{Deserialize, Serialize};

/// Why a load gave no figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Fault {
    /// It could not be run: no engine, no certificate, or an argument that fits nothing.
    #[error("{0}")]
    Failed(String),
    /// No call succeeded.
    #[error("no call succeeded: {0}")]
    Unanswered(String),
    /// The engine answered something that is not the answer to the call.
    #[error("WRONG ANSWER: {0}")]
    Wrong(String),
    /// A connection ended while calls were under way.
    #[error("the engine was lost: {0}")]
    Lost(String),
    /// The generator could not do what it was told; the figures would be its own.
    #[error("the generator was the bottleneck: {0}")]
    Bottleneck(String),
}

impl Fault {
    /// The exit status of the program.
    pub const fn status(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Unanswered(_) => 1,
            // 2 is the argument parser's.
            Self::Wrong(_) => 3,
            Self::Lost(_) => 4,
            Self::Bottleneck(_) => 5,
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}
