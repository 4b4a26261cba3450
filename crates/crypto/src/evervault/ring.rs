//! The keys that might open a value: one Diffie-Hellman per ephemeral key and key version, kept for a request.
//!
//! A value names no key version, so each active version of its curve is tried, newest first, and the one that opened
//! an ephemeral key's last value is tried first for its next. A value that opens under none costs one
//! Diffie-Hellman per version.

use std::collections::HashMap;
use std::sync::Arc;

use super::derive::{Derived, Kdf};
use super::text::{POINT_BYTES, POINT_CHARS, point};
use crate::aead::AeadKey;
use crate::{AppKeys, CannotOpen, Curve, KeyState, KeyVersion, PublicKey};

/// Diffie-Hellman results one request may hold at once, about 2 KiB each at most. A request with more still opens;
/// it computes some of them again.
const DERIVED_MAX: usize = 1024;

/// Active versions of `curve`, newest first.
pub(super) fn active(keys: &AppKeys, curve: Curve) -> Vec<Arc<KeyVersion>> {
    let is_active =
        |version: &&Arc<KeyVersion>| version.state == KeyState::Active && version.pair.public().curve() == curve;
    let mut versions: Vec<_> = keys.versions().iter().filter(is_active).cloned().collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version.number));
    versions
}

/// The derivations a value may have been made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    /// The one its tag or file version stands for.
    pub(super) kdf: Kdf,
    /// Whether the other is tried too.
    pub(super) is_mixed: bool,
}

/// The `turn`-th pair to try of `versions` versions: all of them under the named derivation, then the other.
pub(super) fn attempt(scheme: Scheme, versions: usize, turn: usize) -> Option<(usize, Kdf)> {
    if turn < versions {
        Some((turn, scheme.kdf))
    } else {
        (scheme.is_mixed && turn - versions < versions).then(|| (turn - versions, scheme.kdf.other()))
    }
}

/// A key to try.
pub(super) struct Candidate<'a> {
    pub(super) key: &'a AeadKey,
    /// The app's compressed point.
    pub(super) app: &'a [u8; POINT_BYTES],
    pub(super) ephemeral: &'a [u8; POINT_BYTES],
}

/// One ephemeral key.
struct Point {
    ephemeral: PublicKey,
    /// By place in the list of versions.
    derived: Vec<Option<Derived>>,
    /// The turn that opened the last value, for values that name either derivation.
    likely: [usize; 2],
}

pub(super) struct Ring {
    versions: [Vec<Arc<KeyVersion>>; 2],
    points: Vec<Point>,
    by_point: HashMap<(Curve, [u8; POINT_BYTES]), usize>,
    /// The point seen last, as text: in a document made by one client, every point.
    last: Option<(Curve, [u8; POINT_CHARS], usize)>,
    derived: usize,
}

impl Ring {
    pub(super) fn new(keys: &AppKeys) -> Self {
        let versions = Curve::ALL.map(|curve| active(keys, curve));
        Self { versions, points: Vec::new(), by_point: HashMap::new(), last: None, derived: 0 }
    }

    /// The place of a point given as text.
    #[inline]
    pub(super) fn place_of_chars(&mut self, curve: Curve, chars: &[u8; POINT_CHARS]) -> Result<usize, CannotOpen> {
        if let Some((last_curve, last, place)) = &self.last
            && *last_curve == curve
            && last == chars
        {
            return Ok(*place);
        }
        let place = self.place(curve, point(chars)?)?;
        self.last = Some((curve, *chars, place));
        Ok(place)
    }

    /// The place of a point; it is checked to be on the curve when it is new.
    pub(super) fn place(&mut self, curve: Curve, point: [u8; POINT_BYTES]) -> Result<usize, CannotOpen> {
        if let Some(place) = self.by_point.get(&(curve, point)) {
            return Ok(*place);
        }
        let ephemeral = PublicKey::from_sec1(curve, &point).map_err(|_| CannotOpen)?;
        if self.derived >= DERIVED_MAX || self.points.len() >= DERIVED_MAX {
            self.points.clear();
            self.by_point.clear();
            self.last = None;
            self.derived = 0;
        }
        let derived = self.versions[curve as usize].iter().map(|_| None).collect();
        self.points.push(Point { ephemeral, derived, likely: [0; 2] });
        let place = self.points.len() - 1;
        self.by_point.insert((curve, point), place);
        Ok(place)
    }

    /// The `turn`-th key to try, the likeliest first; [`CannotOpen`] when all were tried.
    #[inline]
    pub(super) fn candidate(&mut self, place: usize, scheme: Scheme, turn: usize) -> Result<Candidate<'_>, CannotOpen> {
        let point = &mut self.points[place];
        let versions = &self.versions[point.ephemeral.curve() as usize];
        let turn = reordered(point.likely[scheme.kdf as usize], turn);
        let (version, kdf) = attempt(scheme, versions.len(), turn).ok_or(CannotOpen)?;
        let own = &versions[version].pair;
        let derived = &mut point.derived[version];
        if derived.is_none() {
            self.derived += 1;
            *derived = Some(Derived::new(own.agree(&point.ephemeral).map_err(|_| CannotOpen)?));
        }
        let derived = derived.as_mut().ok_or(CannotOpen)?;
        let (curve, uncompressed) = (point.ephemeral.curve(), point.ephemeral.uncompressed());
        let key = derived.key(kdf, curve, uncompressed).map_err(|_| CannotOpen)?;
        Ok(Candidate { key, app: own.public().compressed(), ephemeral: point.ephemeral.compressed() })
    }

    /// Remembers which turn opened a value.
    #[inline]
    pub(super) fn opened(&mut self, place: usize, scheme: Scheme, turn: usize) {
        if turn != 0 {
            let likely = &mut self.points[place].likely[scheme.kdf as usize];
            *likely = reordered(*likely, turn);
        }
    }
}

/// Turn 0 is the likely one, and the others keep their order.
#[inline]
fn reordered(likely: usize, turn: usize) -> usize {
    match turn {
        0 => likely,
        turn if turn <= likely => turn - 1,
        turn => turn,
    }
}
