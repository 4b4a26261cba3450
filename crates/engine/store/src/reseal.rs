//! Resealing: the content of rows is sealed again under another key version, and the rest of the
//! row does not change.
//!
//! The content of a row is replaced by compare-and-set: only if it is still the content that was
//! read. A concurrent change is therefore never overwritten, and a retry is safe.

use std::fmt;

use bytes::Bytes;

use crate::{Page, fits_scan_bytes};

/// Maximum number of rows per call of `reseal` or `reseal_objects`.
pub const RESEAL_ROWS_MAX: usize = 500;

/// A row's sealed content, before and after. `I` is the type of the row's id.
#[derive(Clone, PartialEq, Eq)]
pub struct Reseal<I> {
    /// The row.
    pub id: I,
    /// The content that the row must have.
    pub old: Bytes,
    /// The content after the change.
    pub new: Bytes,
}

/// Omits the contents, because parts of an object's content can be unencrypted.
impl<I: fmt::Debug> fmt::Debug for Reseal<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reseal")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl<I> Reseal<I> {
    /// Returns the effect on a row that has the content `stored`. Returns `None` if the row has
    /// another content than `old` and `new`, because a concurrent request changed it.
    #[must_use]
    pub fn effect(&self, stored: &[u8]) -> Option<ResealEffect> {
        if stored == self.new {
            return Some(ResealEffect::Present);
        }
        (stored == self.old).then_some(ResealEffect::Replace)
    }
}

/// Effect of a [`Reseal`] on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResealEffect {
    /// The row gets the new content.
    Replace,
    /// The row already has the new content, because an earlier attempt wrote it.
    Present,
}

/// Cuts a page after the row with which its bytes reach [`SCAN_BYTES`](crate::SCAN_BYTES), and lets
/// the next page start after that row. Keeps at least one row if the page has any.
pub fn fit_page<R, I>(
    mut page: Page<Vec<R>, I>,
    bytes: impl Fn(&R) -> usize,
    id: impl Fn(&R) -> I,
) -> Page<Vec<R>, I> {
    let mut fits = fits_scan_bytes();
    let kept = page.found.iter().take_while(|row| fits(bytes(row))).count();
    if kept < page.found.len() {
        page.found.truncate(kept);
        page.next = page.found.last().map(id);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SCAN_BYTES;

    #[test]
    fn a_page_ends_at_its_bytes() {
        let page = |rows: &[usize], next| {
            let found = rows.iter().copied().enumerate().collect();
            let Page { found, next } =
                fit_page(Page { found, next }, |(_, bytes)| *bytes, |(at, _)| *at);
            (found.len(), next)
        };
        assert_eq!(page(&[], None), (0, None));
        assert_eq!(page(&[1, 1], None), (2, None));
        assert_eq!(page(&[1, 1], Some(9)), (2, Some(9)));
        assert_eq!(page(&[2 * SCAN_BYTES, 1, 1], None), (1, Some(0)));
        assert_eq!(page(&[1, SCAN_BYTES, 1], Some(9)), (2, Some(1)));
    }

    #[test]
    fn contents_are_kept_out_of_debug() {
        let reseal = Reseal {
            id: 7,
            old: Bytes::from_static(b"old"),
            new: Bytes::from_static(b"new"),
        };
        assert_eq!(format!("{reseal:?}"), "Reseal { id: 7, .. }");
        assert_eq!(reseal.effect(b"old"), Some(ResealEffect::Replace));
        assert_eq!(reseal.effect(b"new"), Some(ResealEffect::Present));
        assert_eq!(reseal.effect(b"other"), None);
    }
}
