//! Text that is a part of a message.

use std::fmt;

use bytes::Bytes;

/// A text that shares the bytes of the message it came in.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FrameText(Bytes);

impl FrameText {
    /// Shares `text`, which must be a part of `frame`.
    pub fn new(frame: &Bytes, text: &str) -> Self {
        if text.is_empty() {
            Self::default()
        } else {
            Self(frame.slice_ref(text.as_bytes()))
        }
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // It was made of a `str`; the names that it holds are short, so checking them again costs
        // nothing that counts.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Shows the length only: the text can be the name of a person.
impl fmt::Debug for FrameText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameText({} bytes)", self.0.len())
    }
}
