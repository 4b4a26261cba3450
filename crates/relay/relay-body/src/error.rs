//! Errors of bodies. No error contains a byte or a key of the body.

/// The reason why a body cannot be edited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// The body is invalid in its format.
    #[error("at byte {at}: {reason}")]
    Malformed {
        /// Offset in the body. For JSON lines, in the line; for an event stream, in the data of the
        /// event.
        at: u64,
        /// The reason.
        reason: &'static str,
    },
    /// A part of the body exceeds a limit on length, depth or count.
    #[error("{limit} exceeds {max}")]
    TooLarge {
        /// Name of the limit.
        limit: &'static str,
        /// The greatest permitted number.
        max: u64,
    },
    /// A selected value cannot be replaced.
    #[error("{reason}")]
    Value {
        /// Position of the rule.
        rule: usize,
        /// The reason.
        reason: &'static str,
    },
    /// A required value is absent or null.
    #[error("a required value is missing")]
    Missing {
        /// Position of the rule.
        rule: usize,
    },
    /// The content type cannot be read.
    #[error("{0}")]
    Unsupported(&'static str),
}

impl BodyError {
    /// Returns a fixed text, without the offset.
    pub const fn text(&self) -> &'static str {
        match self {
            Self::Malformed { reason, .. }
            | Self::Value { reason, .. }
            | Self::Unsupported(reason) => reason,
            Self::TooLarge { limit, .. } => limit,
            Self::Missing { .. } => "a required value is missing",
        }
    }
}
