//! Sweeps that tokens and objects have in common, and what they do to six rows.
//!
//! Row 0 is live for ever; 1, 2 and 3 expire at 10, 11 and 30; 4 was archived at 20 and 5 at 21.

use crate::Sweep;

/// A sweep, `now`, and the indexes of the rows that are archived and removed.
type Case = (Sweep, u64, &'static [usize], &'static [usize]);

pub(super) const CASES: [Case; 10] = [
    (archive(10), 20, &[], &[]),
    (archive(11), 20, &[1], &[]),
    (archive(u64::MAX), 20, &[1, 2], &[]),
    // Rows that are live at `now` are never archived.
    (archive(u64::MAX), 10, &[1], &[]),
    (archive(u64::MAX), 9, &[], &[]),
    (prune(20), 100, &[], &[]),
    (prune(21), 0, &[], &[4]),
    (prune(u64::MAX), 0, &[], &[4, 5]),
    (archive(31), 30, &[1, 2, 3], &[]),
    (Sweep::Erase, 0, &[], &[0, 1, 2, 3, 4, 5]),
];

const fn archive(expired_before: u64) -> Sweep {
    Sweep::Archive { expired_before }
}

const fn prune(archived_before: u64) -> Sweep {
    Sweep::Prune { archived_before }
}
