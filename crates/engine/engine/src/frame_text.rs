//! Text that is a part of a message.

use std::fmt;

use bytes::Bytes;
use sealwire_wire::shared::Source;

/// A text that shares the bytes of its message.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FrameText(Bytes);

impl FrameText {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        // The bytes come from a `str`, and names are short, so the cost of checking them again is
        // negligible.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A message, whose requests share its bytes.
pub(crate) struct Frame<'a>(pub(crate) &'a Bytes);

impl Source for Frame<'_> {
    type Text = FrameText;
    type Bytes = Bytes;

    fn text(&self, text: &str) -> FrameText {
        FrameText(self.bytes(text.as_bytes()))
    }

    /// An empty part keeps nothing of the message alive.
    fn bytes(&self, bytes: &[u8]) -> Bytes {
        if bytes.is_empty() {
            Bytes::new()
        } else {
            self.0.slice_ref(bytes)
        }
    }
}

/// Shows the length only: the text can be the name of a person.
impl fmt::Debug for FrameText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrameText({} bytes)", self.0.len())
    }
}
