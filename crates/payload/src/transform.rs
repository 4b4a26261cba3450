//! The interface between the walk and transforms that encrypt, decrypt or mask.

use sealwire_msgpack::Token;

use crate::select::States;
use crate::{Path, Selection};

/// A transform of fields. The walk calls it in document order; it is monomorphised, since it sits in the hot loop.
pub trait Transform {
    /// Why one field could not be replaced.
    type Error;

    /// Replaces one field: appends exactly one MessagePack value to `out` and returns [`Outcome::Replaced`], or
    /// returns [`Outcome::Keep`]. Whatever it appended is taken back after `Keep` and after an error.
    ///
    /// # Errors
    /// Any; it goes to [`Transform::failed`] with the field's path.
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, Self::Error>;

    /// Returns true if the last field took so long that the walk must pause after it, whatever its budget. Called once
    /// after each field.
    #[inline]
    fn pauses(&mut self) -> bool {
        false
    }

    /// Decides what the failure of one field means: `Ok` keeps the field's original bytes and goes on.
    ///
    /// # Errors
    /// Ends the walk with that error.
    fn failed(&mut self, path: &Path<'_>, error: Self::Error) -> Result<(), Self::Error>;
}

/// One selected value.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The value, or the header of a container that was selected whole. The bytes of a string are valid UTF-8.
    pub token: Token<'a>,
    /// The whole value as it stands in the document.
    pub raw: &'a [u8],
    /// Where it sits.
    pub path: Path<'a>,
    pub(crate) selection: &'a Selection,
    pub(crate) states: States,
}

impl Field<'_> {
    /// Returns the rank in a [ranked](Selection::ranked) selection; `None` if nothing selected the field. 0 under other
    /// selections.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        self.selection.rank(self.states)
    }
}

/// Result of a [`Transform`] for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It appended a replacement.
    Replaced,
    /// The field stays as it is, byte for byte.
    Keep,
}

/// Handling of a selected array or map. Under [`Selection::everything`] and
/// [`Selection::ranked`] leaves are fields in either mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containers {
    /// It is one field. The outermost selected container wins.
    Whole,
    /// Every leaf beneath it is a field.
    Descend,
}
