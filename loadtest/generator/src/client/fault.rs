//! Reasons why a load gives no figures or no valid figures. Each class has its own exit status.

use sealwire_service::tls_files::TlsFileError;
use serde::{Deserialize, Serialize};

/// The reason why a load gave no figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Fault {
    /// The load could not run: no engine, no certificate, or an invalid argument.
    #[error("{0}")]
    Failed(String),
    /// No request succeeded.
    #[error("no call succeeded: {0}")]
    Unanswered(String),
    /// The engine sent a wrong response.
    #[error("WRONG ANSWER: {0}")]
    Wrong(String),
    /// A connection ended with requests in flight.
    #[error("the engine was lost: {0}")]
    Lost(String),
    /// The generator was later than its schedule, so the figures would describe the generator.
    #[error("the generator was the bottleneck: {0}")]
    Bottleneck(String),
}

impl From<TlsFileError> for Fault {
    fn from(error: TlsFileError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Fault {
    /// Returns the program's exit status for this fault.
    pub(crate) const fn status(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Unanswered(_) => 1,
            // Exit status 2 belongs to the argument parser.
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
