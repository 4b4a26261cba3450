//! The interface between the walk and transforms that encrypt, decrypt or mask.

use std::ops::Range;

use sealwire_msgpack::Token;

use crate::select::States;
use crate::{Path, Selection};

/// A transform of fields. The walk calls it in document order; it is monomorphised, since it sits
/// in the hot loop.
pub trait Transform {
    /// The reason why a field could not be replaced.
    type Error;

    /// Replaces one field: appends exactly one MessagePack value to `out` and returns
    /// [`Outcome::Replaced`], or returns [`Outcome::Keep`]. After `Keep` and after an error, the
    /// walk removes all appended bytes.
    ///
    /// # Errors
    /// Any error. The walk passes it to [`Transform::failed`] with the field's path.
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, Self::Error>;

    /// Returns true if the last field took so long that the walk must pause after it, whatever its
    /// budget. Called once after each field.
    #[inline]
    fn pauses(&mut self) -> bool {
        false
    }

    /// Returns true if the walk must pause although it is at no field. Called at least once per 4
    /// KiB without a field, a token counted as at least 16 bytes.
    #[inline]
    fn pauses_between(&mut self) -> bool {
        false
    }

    /// Returns the work so far that neither the number of fields nor their bytes include.
    #[inline]
    fn extra_work(&self) -> ExtraWork {
        ExtraWork::default()
    }

    /// Handles the failure of one field. `Ok` keeps the field's original bytes and continues.
    ///
    /// # Errors
    /// An error ends the walk with that error.
    fn failed(&mut self, path: &Path<'_>, error: Self::Error) -> Result<(), Self::Error>;

    /// Fills in bytes that `field` appended as placeholders, since the last call. Called at the end
    /// of every slice of the walk that had no error. Near the limit of the output, the walk calls it
    /// before and after each field, and writes that field to a separate output. `out` is the output
    /// since the start of the slice and before; its bytes are where `field` appended them.
    fn complete(&mut self, _out: &mut [u8]) {}
}

/// Work that the number and bytes of fields do not include, in units of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraWork {
    /// Work in units of fields.
    pub fields: u64,
    /// Work in units of bytes.
    pub bytes: u64,
}

impl ExtraWork {
    /// Returns the sum of both amounts.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            fields: self.fields.saturating_add(other.fields),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Returns the work since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            fields: self.fields.saturating_sub(before.fields),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

/// A selected value.
#[derive(Clone, Copy, Debug)]
pub struct Field<'a> {
    /// The value, or the header of a container that is selected as a whole. The bytes of a string
    /// are valid UTF-8.
    pub token: Token<'a>,
    /// The encoded bytes of the whole value in the document.
    pub raw: &'a [u8],
    /// The field's location.
    pub path: Path<'a>,
    /// Offset of the value in the document.
    pub(crate) start: usize,
    pub(crate) selection: &'a Selection,
    pub(crate) states: States,
}

impl Field<'_> {
    /// Returns the place of the value in the document's bytes.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.raw.len()
    }

    /// Returns the rank in a [ranked](Selection::ranked) selection; `None` if nothing selected the
    /// field. 0 under other selections.
    #[must_use]
    pub fn rank(&self) -> Option<u32> {
        self.selection.rank(self.states)
    }
}

/// Result of a [`Transform`] for a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The transform appended a replacement.
    Replaced,
    /// The field stays unchanged, byte for byte.
    Keep,
}

/// Handling of a selected array or map. Under [`Selection::everything`] and
/// [`Selection::ranked`] leaves are fields in either mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containers {
    /// The container is one field. The outermost selected container takes precedence.
    Whole,
    /// Every leaf in the container is a field.
    Descend,
}
