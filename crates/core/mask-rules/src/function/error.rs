//! The error for an invalid function text.

/// An invalid function text, reported to its author. The message says which text is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}, at column {}", .at + 1)]
pub struct FunctionError {
    /// Byte offset in the text, counted from 0.
    pub at: usize,
    /// The error and the correct form.
    pub message: String,
}

impl FunctionError {
    pub(crate) fn new(at: usize, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
        }
    }
}
