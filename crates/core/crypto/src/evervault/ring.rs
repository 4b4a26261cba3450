//! Candidate keys for a value: one Diffie-Hellman per ephemeral key and key version, cached for a
//! request.
//!
//! A value does not name its key version, so each active version of its curve is tried, newest
//! first. The version that opened the last value of an ephemeral key is tried first for the next
//! value. A value that opens under no version costs one Diffie-Hellman per version.

use std::collections::HashMap;
use std::sync::Arc;

use super::derive::{Derived, Kdf};
use super::text::{POINT_BYTES, POINT_CHARS, point};
use crate::aead::AeadKey;
use crate::open_key_cache::{CachedSchedule, HELD_MAX, ScheduleId};
use crate::{
    AppId, AppKeys, CannotOpen, Curve, KeyState, KeyVersion, OpenKeyCache, Origin, PublicKey, Suite,
};

/// Returns the active versions of `curve`, newest first; none if the app does not read the suite of
/// these key pairs. Values sealed outside are native envelopes.
pub(super) fn active(keys: &AppKeys, curve: Curve) -> Vec<Arc<KeyVersion>> {
    let suite = Suite::from(curve);
    if !keys.reads(suite) {
        return Vec::new();
    }
    let mut versions: Vec<_> = keys
        .versions()
        .iter()
        .filter(|version: &&Arc<KeyVersion>| {
            version.state == KeyState::Active && version.suite() == suite
        })
        .filter(|version: &&Arc<KeyVersion>| version.origin == Origin::Inside)
        .cloned()
        .collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version.number));
    versions
}

/// The key derivations that can apply to a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    /// The derivation that the tag or file version specifies.
    pub(super) kdf: Kdf,
    /// True if the other derivation is tried too.
    pub(super) is_mixed: bool,
}

/// Returns the `turn`-th pair to try of `versions` versions: first all versions under the specified
/// derivation, then all under the other.
pub(super) fn attempt(scheme: Scheme, versions: usize, turn: usize) -> Option<(usize, Kdf)> {
    if turn < versions {
        Some((turn, scheme.kdf))
    } else {
        (scheme.is_mixed && turn - versions < versions)
            .then(|| (turn - versions, scheme.kdf.other()))
    }
}

/// A key to try.
pub(super) struct Candidate<'a> {
    pub(super) key: &'a AeadKey,
    /// The app's compressed point.
    pub(super) app: &'a [u8; POINT_BYTES],
    pub(super) ephemeral: &'a [u8; POINT_BYTES],
}

/// The state of one ephemeral key.
struct Point {
    ephemeral: PublicKey,
    /// Cached keys, by index in the list of versions.
    versions: Vec<CachedKeys>,
    /// The attempt that opened the last value, for values that specify either derivation.
    likely: [usize; 2],
}

/// The cached keys of one ephemeral key with one version.
#[derive(Default)]
struct CachedKeys {
    derived: Option<Derived>,
    /// Keys from the cache shared between requests, or keys already added to that cache.
    kept: [Option<Arc<AeadKey>>; 2],
}

impl CachedKeys {
    fn is_held(&self) -> bool {
        self.derived.is_some() || self.kept.iter().any(Option::is_some)
    }
}

pub(super) struct Ring {
    app: AppId,
    versions: [Vec<Arc<KeyVersion>>; 2],
    /// The cache of keys that earlier requests opened, if enabled.
    kept: Option<Arc<OpenKeyCache>>,
    points: Vec<Point>,
    by_point: HashMap<(Curve, [u8; POINT_BYTES]), usize>,
    /// The last point, as text. In a document made by one client, every point is the same.
    last: Option<(Curve, [u8; POINT_CHARS], usize)>,
    /// Number of Diffie-Hellmans so far.
    agreements: usize,
    /// Called before each attempt, except the first attempt of a value.
    stop: Option<Box<dyn Fn() -> bool + Send>>,
    /// Number of versions of [`Ring::points`] with cached keys, or slightly more.
    held: usize,
}

impl Ring {
    pub(super) fn new(keys: &AppKeys) -> Self {
        Self {
            app: keys.app().clone(),
            versions: Curve::ALL.map(|curve| active(keys, curve)),
            kept: None,
            points: Vec::new(),
            by_point: HashMap::new(),
            last: None,
            agreements: 0,
            stop: None,
            held: 0,
        }
    }

    pub(super) fn keeping(self, kept: Option<Arc<OpenKeyCache>>) -> Self {
        Self { kept, ..self }
    }

    pub(super) fn stopping(self, stop: impl Fn() -> bool + Send + 'static) -> Self {
        Self {
            stop: Some(Box::new(stop)),
            ..self
        }
    }

    /// Returns the number of Diffie-Hellmans so far.
    pub(super) fn agreements(&self) -> usize {
        self.agreements
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.points
            .iter()
            .flat_map(|point| &point.versions)
            .filter(|known| known.is_held())
            .count()
    }

    pub(super) fn app(&self) -> &AppId {
        &self.app
    }

    /// Returns the index of a point given as text, adding the point if it is new.
    #[inline]
    pub(super) fn place_of_chars(
        &mut self,
        curve: Curve,
        chars: &[u8; POINT_CHARS],
    ) -> Result<usize, CannotOpen> {
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

    /// Returns the index of a point. A new point is checked to be on the curve.
    pub(super) fn place(
        &mut self,
        curve: Curve,
        point: [u8; POINT_BYTES],
    ) -> Result<usize, CannotOpen> {
        if let Some(place) = self.by_point.get(&(curve, point)) {
            return Ok(*place);
        }
        let ephemeral = PublicKey::from_sec1(curve, &point).map_err(|_| CannotOpen)?;
        // The last point can exceed the limit by the number of versions tried with it.
        if self.held >= HELD_MAX || self.points.len() >= HELD_MAX {
            self.points.clear();
            self.by_point.clear();
            self.last = None;
            self.held = 0;
        }
        let new = self.known(curve, ephemeral);
        self.held += new.versions.iter().filter(|known| known.is_held()).count();
        self.points.push(new);
        let place = self.points.len() - 1;
        self.by_point.insert((curve, point), place);
        Ok(place)
    }

    /// Creates a point with the keys that earlier requests cached for it. A version that opened a
    /// value then is tried first now.
    fn known(&self, curve: Curve, ephemeral: PublicKey) -> Point {
        let mut versions: Vec<CachedKeys> = self.versions[curve as usize]
            .iter()
            .map(|_| CachedKeys::default())
            .collect();
        let mut likely = [0; 2];
        let Some(kept) = &self.kept else {
            return Point {
                ephemeral,
                versions,
                likely,
            };
        };
        let count = versions.len();
        let names = self.versions[curve as usize].iter().flat_map(|version| {
            Kdf::ALL.map(|kdf| ScheduleId::Evervault {
                key: version.id,
                ephemeral: *ephemeral.compressed(),
                kdf,
            })
        });
        kept.get_each(&self.app, names, |at, schedule| {
            let place = at / Kdf::ALL.len();
            let kdf = Kdf::ALL[at % Kdf::ALL.len()];
            let CachedSchedule::Evervault(key) = schedule else {
                return;
            };
            versions[place].kept[kdf as usize] = Some(key);
            likely[kdf as usize] = place;
            // A value that specifies the other derivation was made with this derivation, unless the
            // key of the other is cached too.
            if versions[place].kept[kdf.other() as usize].is_none() {
                likely[kdf.other() as usize] = count + place;
            }
        });
        Point {
            ephemeral,
            versions,
            likely,
        }
    }

    /// Returns the attempt to make first. Clients that do not mix derivations never need the other
    /// derivation.
    fn likely(&self, place: usize, scheme: Scheme) -> usize {
        let point = &self.points[place];
        let likely = point.likely[scheme.kdf as usize];
        if scheme.is_mixed || likely < point.versions.len() {
            likely
        } else {
            0
        }
    }

    /// Returns the `turn`-th key to try, the likeliest first. Returns [`CannotOpen`] when all keys
    /// were tried or the request was stopped.
    #[inline]
    pub(super) fn candidate(
        &mut self,
        place: usize,
        scheme: Scheme,
        turn: usize,
    ) -> Result<Candidate<'_>, CannotOpen> {
        if turn > 0 && self.stop.as_ref().is_some_and(|stop| stop()) {
            return Err(CannotOpen);
        }
        let turn = reordered(self.likely(place, scheme), turn);
        let point = &mut self.points[place];
        let curve = point.ephemeral.curve();
        let (version, kdf) = attempt(scheme, point.versions.len(), turn).ok_or(CannotOpen)?;
        let own = self.versions[curve as usize][version]
            .pair()
            .map_err(|_| CannotOpen)?;
        let CachedKeys { derived, kept } = &mut point.versions[version];
        let key = match &kept[kdf as usize] {
            Some(key) => key,
            None => {
                if derived.is_none() {
                    self.agreements += 1;
                    self.held += 1;
                    *derived = Some(Derived::new(
                        own.agree(&point.ephemeral).map_err(|_| CannotOpen)?,
                    ));
                }
                let derived = derived.as_mut().ok_or(CannotOpen)?;
                derived
                    .key(kdf, curve, point.ephemeral.uncompressed())
                    .map_err(|_| CannotOpen)?
            }
        };
        Ok(Candidate {
            key,
            app: own.public().compressed(),
            ephemeral: point.ephemeral.compressed(),
        })
    }

    /// Records the attempt that opened a value, and caches its key for other requests.
    #[inline]
    pub(super) fn opened(&mut self, place: usize, scheme: Scheme, turn: usize) {
        let turn = reordered(self.likely(place, scheme), turn);
        self.points[place].likely[scheme.kdf as usize] = turn;
        if let Some(kept) = &self.kept {
            let Point {
                ephemeral,
                versions,
                ..
            } = &mut self.points[place];
            let Some((version, kdf)) = attempt(scheme, versions.len(), turn) else {
                return;
            };
            let CachedKeys {
                derived,
                kept: known,
            } = &mut versions[version];
            if known[kdf as usize].is_none()
                && let Some(Ok(key)) = derived
                    .as_mut()
                    .map(|d| d.key(kdf, ephemeral.curve(), ephemeral.uncompressed()))
            {
                let key = known[kdf as usize].insert(Arc::clone(key));
                let id = self.versions[ephemeral.curve() as usize][version].id;
                let name = ScheduleId::Evervault {
                    key: id,
                    ephemeral: *ephemeral.compressed(),
                    kdf,
                };
                kept.keep(&self.app, name, CachedSchedule::Evervault(Arc::clone(key)));
            }
        }
    }
}

/// Maps attempt 0 to the likely attempt and keeps the order of the others.
#[inline]
fn reordered(likely: usize, turn: usize) -> usize {
    match turn {
        0 => likely,
        turn if turn <= likely => turn - 1,
        turn => turn,
    }
}
