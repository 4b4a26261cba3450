//! Why the text of a function was refused.

/// The text of a function is wrong. The author's to mend; says what would be allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}, at column {}", .at + 1)]
pub struct FunctionError {
    /// Byte in the text, counted from 0.
    pub at: usize,
    /// What is wrong there and what to write instead.
    pub message: String,
}

impl FunctionError {
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}
