//! Looks up subjects. The subject of a field is another value in the same map, on which the field's
//! mask depends. For example, the subject of `born` can be the value of `customer_id`.
//!
//! A walk visits one field of a document at a time. One scan of the document, ahead of the walk,
//! finds the subjects of all rules in all maps. So every byte is read at most once more, regardless
//! of the number of rules and fields and of the nesting of maps. A subject counts only if it ends
//! within the first [`SUBJECT_BYTES_MAX`] bytes of its map. So the scan is at most about this
//! distance ahead of the walk.

use std::collections::HashMap;
use std::sync::Arc;

use sealwire_payload::{EnclosingMap, ExtraWork, FoundSibling, Path, ScanStep, SiblingScan};

use crate::limits::SUBJECT_BYTES_MAX;
use crate::{Rule, Rules, Value, detection_work};

/// Minimum work per token of a scan, in bytes.
const TOKEN_BYTES_MIN: usize = 16;
/// Number of stored subjects at which the subjects of finished maps are removed for the first time.
const KEPT_MIN: usize = 1_024;

/// The keys of the subjects that rules name.
#[derive(Debug, Default)]
pub(crate) struct SubjectKeys {
    /// Distinct keys, sorted.
    keys: Vec<Box<[u8]>>,
    /// Lengths of the keys, as [`length_bit`]s.
    lengths: u64,
    /// For each rule, the number of its key.
    of_rules: Vec<Option<u32>>,
}

impl SubjectKeys {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut keys: Vec<Box<[u8]>> = rules
            .iter()
            .filter_map(|rule: &Rule| rule.function.subject().map(|key| Box::from(key.as_bytes())))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let lengths = keys.iter().fold(0, |all, key| all | length_bit(key));

        let of_rules = rules
            .iter()
            .map(|rule| position_of(&keys, rule.function.subject()?.as_bytes()))
            .collect();
        Self {
            keys,
            lengths,
            of_rules,
        }
    }

    fn number(&self, key: &[u8]) -> Option<u32> {
        // Most keys of a document differ in length from all subjects, so this test avoids most
        // searches.
        if self.lengths & length_bit(key) == 0 {
            return None;
        }
        position_of(&self.keys, key)
    }
}

/// Returns the position of a key in sorted keys.
fn position_of(keys: &[Box<[u8]>], key: &[u8]) -> Option<u32> {
    keys.binary_search_by(|other| (**other).cmp(key))
        .ok()
        .map(|at| at as u32)
}

/// Returns the bit for the length of a key. All keys of 63 bytes or more share one bit.
const fn length_bit(key: &[u8]) -> u64 {
    if key.len() < 63 {
        1 << key.len()
    } else {
        1 << 63
    }
}

/// The search for subjects in one document. The search covers the whole walk and keeps its results
/// between slices.
#[derive(Debug)]
pub struct Subjects {
    keys: Arc<SubjectKeys>,
    scan: SiblingScan,
    /// Offsets of values by the offset of their map and the number of their key. `None`: the value
    /// is a container.
    found: HashMap<(usize, u32), Option<usize>>,
    /// Number of subjects at which the subjects of finished maps are removed.
    kept_max: usize,
    work: ExtraWork,
    /// Number of kind checks of strings, and the number of bytes that they read.
    checks: (u64, u64),
}

impl Subjects {
    /// Creates the search for the subjects of rules.
    #[must_use]
    pub fn new(rules: &Rules) -> Self {
        let keys = Arc::clone(rules.subject_keys());
        // Allocated once: a document with many small maps needs no further allocation.
        let found = HashMap::with_capacity(if keys.keys.is_empty() { 0 } else { KEPT_MIN });
        Self {
            keys,
            scan: SiblingScan::default(),
            found,
            kept_max: KEPT_MIN,
            work: ExtraWork::default(),
            checks: (0, 0),
        }
    }

    /// Returns true if no rule has a subject.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.keys.keys.is_empty()
    }

    /// Returns the work so far: the bytes that were read, with at least 16 for each token, and what
    /// [`count`](Self::count) and [`count_checks`](Self::count_checks) added.
    #[must_use]
    pub fn work(&self) -> ExtraWork {
        let (checks, bytes) = self.checks;
        self.work.plus(detection_work(1, checks, bytes))
    }

    /// Adds `kinds` kind checks of a string of `bytes` bytes.
    pub fn count_checks(&mut self, kinds: u64, bytes: usize) {
        // A check takes less work than a field, so work is rounded in the sum, not for each string.
        let (checks, read) = self.checks;
        self.checks = (
            checks.saturating_add(kinds),
            read.saturating_add(kinds.saturating_mul(bytes as u64)),
        );
    }

    /// Adds other work of the same walk.
    pub fn count(&mut self, work: ExtraWork) {
        self.work = self.work.plus(work);
    }

    /// Continues the scan, so that later lookups find their subjects. Returns true when the
    /// document is scanned up to `until`, and false if `work_max` bytes are read before that.
    /// `path` is the position of the walk, which has read `walked` bytes.
    pub fn scan_ahead(
        &mut self,
        document: &[u8],
        path: &Path<'_>,
        walked: usize,
        until: usize,
        work_max: usize,
    ) -> bool {
        self.forget(path, walked);
        let end = self.work.bytes.saturating_add(work_max as u64);
        while self.scan.position() < until && !self.scan.is_over() {
            if self.work.bytes >= end {
                return false;
            }
            self.step(document);
        }
        true
    }

    /// Returns the subject of a rule for the field at `path`. Returns `None` if the rule has no
    /// subject or the field is in no map. Also returns `None` if the key is missing or too far from
    /// the map's start, or if its value is a container.
    pub fn find<'a>(&mut self, path: &Path<'a>, rule: usize) -> Option<Value<'a>> {
        let key = (*self.keys.of_rules.get(rule)?)?;
        let map = path.enclosing_map()?;
        let start = self.search(path, &map, key)?;
        Value::read(map.document().get(start..)?)
    }

    fn search(&mut self, path: &Path<'_>, map: &EnclosingMap<'_>, key: u32) -> Option<usize> {
        self.forget(path, map.key_start());
        let outermost = path.outermost_map()?;
        if self.scan.position() <= outermost {
            // No later field can be in the maps before this offset.
            self.scan.restart(outermost);
        }

        let end = map.start().saturating_add(SUBJECT_BYTES_MAX);
        let mut is_changed = true;
        loop {
            if is_changed {
                if let Some(found) = self.found.get(&(map.start(), key)) {
                    return *found;
                }
                let is_left =
                    self.scan.position() > map.start() && !self.scan.is_within(map.start());
                if is_left || self.scan.is_over() {
                    return None;
                }
            }

            if self.scan.position() >= end {
                return None;
            }
            is_changed = self.step(map.document());
        }
    }

    /// Reads one token. Returns true if a subject was found or a container ended.
    fn step(&mut self, document: &[u8]) -> bool {
        let before = self.scan.position();
        let step = self.scan.step(document, |key| self.keys.number(key));
        self.work.bytes += (self.scan.position() - before).max(TOKEN_BYTES_MIN) as u64;
        match step {
            ScanStep::Found(FoundSibling {
                map,
                key,
                start,
                end,
            }) => {
                let value = end.map(|end| (start, end));
                if value.is_none_or(|(_, end)| end - map <= SUBJECT_BYTES_MAX) {
                    // Of equal keys, the first counts.
                    self.found
                        .entry((map, key))
                        .or_insert(value.map(|(start, _)| start));
                }
                true
            }
            ScanStep::Left | ScanStep::Over => true,
            ScanStep::Other => false,
        }
    }

    /// Removes subjects of maps that start before `walked` and have ended, if there are many.
    fn forget(&mut self, path: &Path<'_>, walked: usize) {
        if self.found.len() < self.kept_max {
            return;
        }
        self.found
            .retain(|(map, _), _| *map >= walked || path.is_within(*map));
        self.kept_max = KEPT_MIN.max(2 * self.found.len());
    }
}

#[cfg(test)]
mod tests {
    use sealwire_msgpack::write;
    use sealwire_payload::{Budget, Containers, Field, Outcome, Transform, Walk, WalkLimits};

    use super::*;
    use crate::{RuleText, Target, Unknown};

    /// Rules for columns `born0`, `born1`, ... whose subjects are `id0`, `id1`, ...
    fn rules(count: usize) -> Rules {
        let rule = |at| RuleText {
            target: Target::Column(format!("born{at}")),
            mask: format!("date_shift(within=30, subject=id{at})"),
        };
        Rules::new(Unknown::Keep, (0..count).map(rule).collect(), Vec::new()).expect("rules")
    }

    /// Looks up the subject of every field that a rule names.
    struct LookUp<'r> {
        rules: &'r Rules,
        subjects: Subjects,
        found: Vec<Option<u64>>,
        kept_max: usize,
    }

    impl Transform for LookUp<'_> {
        type Error = ();

        fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
            if let crate::FieldDecision::Rule(rule) = self.rules.ruling(&field) {
                let found = self.subjects.find(&field.path, rule);
                self.found.push(found.map(|found| {
                    if let Value::Uint(id) = found {
                        id
                    } else {
                        panic!("{found:?}")
                    }
                }));
            }
            self.kept_max = self.kept_max.max(self.subjects.found.len());
            Ok(Outcome::Keep)
        }

        fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
            Err(())
        }
    }

    fn look_up<'r>(rules: &'r Rules, document: &[u8]) -> LookUp<'r> {
        let mut look_up = LookUp {
            rules,
            subjects: Subjects::new(rules),
            found: Vec::new(),
            kept_max: 0,
        };
        let limits = WalkLimits::default();
        let mut walk =
            Walk::new(Arc::clone(rules.selection()), Containers::Descend, limits).without_output();
        let _ = walk.advance(document, &mut Vec::new(), &mut look_up, Budget::UNLIMITED);
        look_up
    }

    /// Maps inside each other that share filler: each has a date for every rule, then the inner
    /// map, then its subjects.
    fn nested(depth: usize, rules: usize, filler: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for _ in 0..depth {
            write::map_len(&mut out, 2 * rules as u32 + 1);
            for rule in 0..rules {
                write::str(&mut out, &format!("born{rule}"));
                write::str(&mut out, "2000-01-15");
            }
            write::str(&mut out, "in");
        }
        write::array_len(&mut out, filler as u32);
        (0..filler).for_each(|_| write::uint(&mut out, 1));
        for level in 0..depth {
            for rule in 0..rules {
                write::str(&mut out, &format!("id{rule}"));
                write::uint(&mut out, (level * rules + rule) as u64);
            }
        }
        out
    }

    #[test]
    fn subjects_of_all_rules_and_maps_are_found_in_one_scan() {
        for (depth, count, filler) in [
            (1, 250, 20_000),
            (100, 2, 20_000),
            (20, 20, 10_000),
            (1, 1, 60_000),
        ] {
            let (rules, document) = (rules(count), nested(depth, count, filler));
            let look_up = look_up(&rules, &document);
            let expected = (0..depth)
                .rev()
                .flat_map(|level| (0..count).map(move |rule| level * count + rule));
            let expected: Vec<_> = expected.map(|id| Some(id as u64)).collect();
            assert_eq!(look_up.found, expected, "{depth} {count} {filler}");
            // A token of one byte counts 16.
            let work = look_up.subjects.work().bytes;
            assert!(
                work <= 16 * document.len() as u64,
                "{depth} {count} {filler}: {work} of {}",
                document.len()
            );
            assert!(look_up.subjects.scan.position() <= document.len());
        }
    }

    #[test]
    fn subjects_of_maps_that_were_left_are_forgotten() {
        let rules = rules(1);
        let mut document = Vec::new();
        write::map_len(&mut document, 3);
        write::str(&mut document, "id0");
        write::uint(&mut document, 7);
        write::str(&mut document, "rows");
        write::array_len(&mut document, 20_000);
        for row in 0..20_000 {
            write::map_len(&mut document, 2);
            write::str(&mut document, "born0");
            write::str(&mut document, "2000-01-15");
            write::str(&mut document, "id0");
            write::uint(&mut document, row);
        }
        write::str(&mut document, "born0");
        write::str(&mut document, "2000-01-15");
        let look_up = look_up(&rules, &document);
        // The subject of the outer map is still known at the end.
        assert!(
            look_up
                .found
                .iter()
                .copied()
                .eq((0..20_000).chain([7]).map(Some))
        );
        assert!(look_up.kept_max <= KEPT_MIN, "{}", look_up.kept_max);
    }

    #[test]
    fn a_subject_is_the_first_value_that_ends_near_the_start_of_its_map() {
        let rules = rules(1);
        let document = |filler: usize, values: &[&[u8]]| {
            let mut out = Vec::new();
            write::map_len(&mut out, 2 + values.len() as u32);
            write::str(&mut out, "born0");
            write::str(&mut out, "2000-01-15");
            write::str(&mut out, "f");
            write::bin(&mut out, &vec![0; filler]);
            for value in values {
                write::str(&mut out, "id0");
                out.extend_from_slice(value);
            }
            out
        };
        let found = |document: &[u8]| look_up(&rules, document).found;
        let head = document(300, &[&[5]]).len() - 300;
        let last = SUBJECT_BYTES_MAX - head;
        assert_eq!(found(&document(0, &[&[5], &[6]])), [Some(5)]);
        assert_eq!(
            found(&document(0, &[&[0x90], &[6]])),
            [None],
            "a container is no subject"
        );
        assert_eq!(found(&document(last, &[&[5]])), [Some(5)]);
        assert_eq!(found(&document(last + 1, &[&[5]])), [None]);
        assert_eq!(found(&document(0, &[])), [None]);
        // What breaks off behind the field is not there.
        assert_eq!(found(&document(0, &[&[0xc1]])), [None]);
        assert_eq!(found(&document(300, &[&[5]])[..200]), [None]);
    }

    #[test]
    fn checks_for_kinds_count_as_they_are_predicted() {
        for (kinds, strings, bytes) in [
            (7, 1_000, 10),
            (1, 8, 0),
            (1, 7, 3),
            (8, 1, 320),
            (0, 1_000, 10),
        ] {
            let mut subjects = Subjects::new(&rules(1));
            (0..strings).for_each(|_| subjects.count_checks(kinds, bytes));
            let predicted = detection_work(kinds, strings, strings * bytes as u64);
            assert_eq!(subjects.work(), predicted, "{kinds} {strings} {bytes}");
            assert_eq!(predicted.fields, kinds * strings / 8);
        }
    }

    #[test]
    fn a_scan_ahead_stops_at_its_bounds_and_lookups_use_it() {
        let (rules, document) = (rules(2), nested(3, 2, 1_000));
        let mut ahead = LookUp {
            rules: &rules,
            subjects: Subjects::new(&rules),
            found: Vec::new(),
            kept_max: 0,
        };
        let mut walk = Walk::new(
            Arc::clone(rules.selection()),
            Containers::Descend,
            WalkLimits::default(),
        );
        assert!(
            !ahead
                .subjects
                .scan_ahead(&document, &walk.path(&document), 0, usize::MAX, 1_600)
        );
        assert!((1_600..1_700).contains(&ahead.subjects.work().bytes));
        assert!(
            ahead
                .subjects
                .scan_ahead(&document, &walk.path(&document), 0, 500, 1 << 20)
        );
        assert!((500..520).contains(&ahead.subjects.scan.position()));
        assert!(ahead.subjects.scan_ahead(
            &document,
            &walk.path(&document),
            0,
            usize::MAX,
            1 << 20
        ));
        let work = ahead.subjects.work();
        walk.advance(&document, &mut Vec::new(), &mut ahead, Budget::UNLIMITED)
            .expect("walks");
        assert_eq!(
            (ahead.found.len(), ahead.subjects.work()),
            (6, work),
            "no lookup reads anything"
        );
        assert!(
            ahead.found.iter().all(Option::is_some)
                && Subjects::new(&rules).work() == ExtraWork::default()
        );
    }
}
