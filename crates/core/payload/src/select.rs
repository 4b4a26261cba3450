//! Compiled `select` paths, which determine the fields of a document.
//!
//! All paths of a selection form one nondeterministic automaton. Each path occupies adjacent bits:
//! one per segment, and one for "matched". The bits set after a value's path are the positions of
//! all select paths at that value. Moving to a child takes a shift and a few masks. The walk
//! therefore allocates nothing, and its cost per field does not grow with the number of paths.
//! Paths that need more than 127 bits are rejected, because this module has no slower fallback.

mod parse;
mod priority;
#[cfg(test)]
mod priority_tests;

pub(crate) use parse::is_bare_name;
pub use priority::PrioritizedEntry;

use priority::Ranks;
use thiserror::Error;

/// The positions of all select paths at one value: a set of automaton states.
pub(crate) type States = u128;

/// State that selects the value and every leaf beneath it.
pub(crate) const EVERYTHING: States = 1 << 127;

/// The empty set: no select path reaches this value or anything beneath it.
pub(crate) const NOTHING: States = 0;

/// Number of bits available for paths, without [`EVERYTHING`].
const STEPS_MAX: u32 = 127;

/// Names the fields of a document.
///
/// Paths follow the part of RFC 9535 (JSONPath) that one pass over the document can evaluate: `$`,
/// `.name`, `['any key']`, `[2]`, `.*` and `[*]`. A bracket can hold several selectors (`['a','b']`,
/// `[0,2]`), and `..` can precede any selector. Filters, slices, functions and negative indexes are
/// rejected.
///
/// Map keys that are not strings are matched by `*` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Returns the states at the document's root.
    start: States,
    /// States whose path is complete, so that the value is selected.
    accept: States,
    /// States that remain set beneath the value, for `..` segments.
    descend: States,
    /// States whose next segment matches any child.
    wild: States,
    /// All states that occur in `names`.
    named: States,
    /// All states that occur in `indexes`.
    indexed: States,
    /// Maps a key to the states whose next segment matches it; sorted by key.
    names: Vec<(Box<[u8]>, States)>,
    /// Lengths of the keys in `names`, as [`length_bit`]s.
    name_lengths: u64,
    /// Maps an index to the states whose next segment matches it; sorted by index.
    indexes: Vec<(u32, States)>,
    /// Ranks of paths and keys, in a ranked selection.
    ranks: Option<Box<Ranks>>,
}

/// The positions of all paths of a selection at one value of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position(States);

impl Position {
    /// The position of a value that no path reaches.
    pub const NOWHERE: Self = Self(NOTHING);

    /// Returns true if no path selects the value or anything beneath it.
    #[inline]
    pub const fn is_nowhere(self) -> bool {
        self.0 == NOTHING
    }

    /// Joins the positions of a value whose place can be read in two ways.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The reason why a list of select paths was rejected. An error of the client; retrying does not
/// help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    /// A path is not in the supported grammar.
    #[error("select path `{path}` at byte {at}: expected {expected}")]
    Syntax {
        /// The whole path as given.
        path: String,
        /// Byte offset in the path.
        at: usize,
        /// The accepted syntax at that position.
        expected: &'static str,
    },
    /// The paths together have too many steps. A path takes one step per segment, plus one.
    #[error("select paths have more than {steps_max} steps in all, from `{path}` on")]
    TooManySteps {
        /// The first path that did not fit.
        path: String,
        /// Maximum number of steps of one selection.
        steps_max: u32,
    },
}

impl Selection {
    /// Creates a selection in which every leaf of the document is a field.
    pub const fn everything() -> Self {
        Self::starting_with(EVERYTHING)
    }

    /// Creates the union of `paths`. Without paths, nothing is selected.
    ///
    /// # Errors
    /// [`SelectError`] names the first rejected path, the byte offset, and the expected syntax.
    pub fn parse<'p>(paths: impl IntoIterator<Item = &'p str>) -> Result<Self, SelectError> {
        Self::of(paths, STEPS_MAX)
    }

    /// Creates the selection of one value, by keys and indexes: of the document or, if `in_items`, of
    /// each item of a document that is an array.
    ///
    /// # Errors
    /// [`SelectError`]. A path is also rejected if it can lead to several values, or to the whole
    /// document or item.
    pub fn one_value(path: &str, in_items: bool) -> Result<Self, SelectError> {
        let mut segments = parse::parse_plain_segments(path)?;
        if in_items {
            segments.insert(0, parse::Segment::any_child());
        }
        let mut selection = Self::starting_with(NOTHING);
        selection.add_segments(path, segments, &mut 0, STEPS_MAX)?;
        selection.build_index();
        Ok(selection)
    }

    fn of<'p>(
        paths: impl IntoIterator<Item = &'p str>,
        steps_max: u32,
    ) -> Result<Self, SelectError> {
        let mut selection = Self::starting_with(NOTHING);
        let mut bits_used = 0;
        for path in paths {
            selection.add(path, &mut bits_used, steps_max)?;
        }
        selection.build_index();
        Ok(selection)
    }

    /// Sorts names and indexes, and computes the further fields that a lookup needs.
    fn build_index(&mut self) {
        self.names.sort_unstable();
        self.names.dedup_by(merge_same);
        self.indexes.sort_unstable();
        self.indexes.dedup_by(merge_same);
        self.named = self.names.iter().fold(0, |all, (_, states)| all | states);
        self.name_lengths = self
            .names
            .iter()
            .fold(0, |all, (key, _)| all | length_bit(key));
        self.indexed = self.indexes.iter().fold(0, |all, (_, states)| all | states);
    }

    /// Returns the selection with each name replaced by its form, for keys in that form. The result
    /// has indexes as names too, and names that are numbers as indexes. Some readers find elements
    /// of an array by keys, and values of an object by indexes. The selection must not be ranked.
    #[must_use]
    pub fn in_form(&self, form: impl Fn(&str) -> String) -> Self {
        let mut names = Vec::new();
        let mut indexes = self.indexes.clone();
        for (name, states) in &self.names {
            // Names were read from a text.
            let name = form(std::str::from_utf8(name).unwrap_or_default());
            indexes.extend(name.parse().ok().map(|index: u32| (index, *states)));
            names.push((name.into_bytes().into(), *states));
        }
        names.extend(
            self.indexes
                .iter()
                .map(|(index, states)| (index.to_string().into_bytes().into(), *states)),
        );
        let mut formed = Self {
            names,
            indexes,
            ..Self::starting_with(self.start)
        };
        formed.accept = self.accept;
        formed.descend = self.descend;
        formed.wild = self.wild;
        formed.build_index();
        formed
    }

    /// Returns the names on the way to each selected value, outermost first, without indexes and
    /// wildcards. `None` if there are more than `max` ways. The selection must not be ranked.
    pub fn name_paths(&self, max: usize) -> Option<Vec<Vec<&str>>> {
        let mut paths = Vec::new();
        let mut left = self.start;
        while left != NOTHING {
            let mut state = left & left.wrapping_neg();
            left &= left - 1;
            let mut ways = vec![Vec::new()];
            while state & (self.accept | EVERYTHING) == 0 {
                let named = self
                    .names
                    .iter()
                    .filter(|(_, states)| state & states != NOTHING);
                let names: Vec<&str> = named
                    .filter_map(|(name, _)| std::str::from_utf8(name).ok())
                    .collect();
                let has_others = state & (self.wild | self.indexed) != NOTHING;
                if ways.len() * (names.len() + usize::from(has_others)) + paths.len() > max {
                    return None;
                }
                let longer = ways.iter().flat_map(|way: &Vec<&str>| {
                    names.iter().map(|name| [&way[..], &[*name]].concat())
                });
                let longer: Vec<_> = longer.collect();
                ways.truncate(if has_others { ways.len() } else { 0 });
                ways.extend(longer);
                state <<= 1;
            }
            paths.extend(ways);
        }
        Some(paths)
    }

    /// Returns true if no document can have a field: the selection was parsed from no paths.
    pub const fn is_empty(&self) -> bool {
        self.start == NOTHING
    }

    /// Returns the position at the root of a document, for a walk over another format than
    /// MessagePack.
    #[inline]
    pub const fn root(&self) -> Position {
        Position(self.start)
    }

    /// Returns the position of an object's value under a key, which must not be escaped.
    #[inline]
    pub fn at(&self, object: Position, key: &[u8]) -> Position {
        // Most keys of a document have the length of no name, which spares the search.
        if self.name_lengths & length_bit(key) == 0
            && self.ranks.is_none()
            && object.0 & EVERYTHING == 0
        {
            return Position(self.moved(object.0, self.wild));
        }
        Position(self.at_key(object.0, key))
    }

    /// Names that a path has next at an object. A wildcard and a descent go on beneath any key, and
    /// have none.
    pub fn names_at(&self, object: Position) -> impl Iterator<Item = &[u8]> {
        self.names
            .iter()
            .filter(move |(_, states)| object.0 & states != NOTHING)
            .map(|(name, _)| name.as_ref())
    }

    /// Returns the position of an array's element.
    #[inline]
    pub fn at_element(&self, array: Position, index: u32) -> Position {
        Position(self.at_index(array.0, index))
    }

    /// Returns true if a path ends at the position, so that the value there is selected.
    #[inline]
    pub const fn selects(&self, position: Position) -> bool {
        position.0 & (self.accept | EVERYTHING) != 0
    }

    const fn starting_with(start: States) -> Self {
        Self {
            start,
            accept: 0,
            descend: 0,
            wild: 0,
            named: 0,
            indexed: 0,
            names: Vec::new(),
            name_lengths: 0,
            indexes: Vec::new(),
            ranks: None,
        }
    }

    fn add(&mut self, path: &str, bits_used: &mut u32, steps_max: u32) -> Result<(), SelectError> {
        let segments = parse::parse_segments(path)?;
        self.add_segments(path, segments, bits_used, steps_max)
    }

    fn add_segments(
        &mut self,
        path: &str,
        segments: Vec<parse::Segment>,
        bits_used: &mut u32,
        steps_max: u32,
    ) -> Result<(), SelectError> {
        let first = *bits_used;
        let last = u32::try_from(segments.len())
            .ok()
            .and_then(|len| first.checked_add(len))
            .filter(|last| *last < steps_max)
            .ok_or_else(|| SelectError::TooManySteps {
                path: path.to_owned(),
                steps_max,
            })?;
        *bits_used = last + 1;
        self.start |= 1 << first;
        self.accept |= 1 << last;
        for (segment, bit) in segments.into_iter().zip(first..) {
            let state = 1 << bit;
            if segment.descends {
                self.descend |= state;
            }
            for selector in segment.selectors {
                match selector {
                    parse::Selector::Wild => self.wild |= state,
                    parse::Selector::Name(name) => {
                        self.names.push((name.into_bytes().into(), state))
                    }
                    parse::Selector::Index(index) => self.indexes.push((index, state)),
                }
            }
        }
        Ok(())
    }

    /// Returns the positions of the paths that matched no value of a document, in order. `met` has
    /// the states of all processed values. `within` has the states of containers whose values were
    /// not processed one by one, because these containers were selected as a whole.
    pub(crate) fn unmatched(&self, met: States, within: States) -> Vec<u32> {
        let mut unmatched = Vec::new();
        let mut left = if self.is_ranked() { 0 } else { self.accept };
        let mut first = 0;
        for position in 0.. {
            if left == NOTHING {
                break;
            }
            let last = left.trailing_zeros();
            left &= left - 1;
            // All states of the path. A state reached inside such a container could have continued
            // to its end.
            let path = (((1 << last) - 1) | (1 << last)) & !((1 << first) - 1);
            if met & (1 << last) == 0 && within & path == 0 {
                unmatched.push(position);
            }
            first = last + 1;
        }
        unmatched
    }

    /// Returns the states at the document's root.
    #[inline]
    pub(crate) const fn start(&self) -> States {
        self.start
    }

    /// Returns true if a path is complete at a value with these states; not called for
    /// [`EVERYTHING`].
    #[inline]
    pub(crate) const fn accepts(&self, states: States) -> bool {
        states & self.accept != 0
    }

    /// Returns the states of an array's child.
    #[inline]
    pub(crate) fn at_index(&self, states: States, index: u32) -> States {
        if states & EVERYTHING != 0 || states == NOTHING {
            return states;
        }
        let mut matched = self.wild;
        if states & self.indexed != 0 {
            matched |= lookup(&self.indexes, |other| other.cmp(&index));
        }
        self.moved(states, matched)
    }

    /// Returns the states of a map's value under a string key.
    #[inline(always)] // Out of line, its result goes through memory: a tenth of a walk that selects everything.
    pub(crate) fn at_key(&self, states: States, key: &[u8]) -> States {
        if states & EVERYTHING != 0 || states == NOTHING {
            return states;
        }
        let mut matched = self.wild;
        if states & self.named != 0 {
            matched |= lookup(&self.names, |other| other.as_ref().cmp(key));
        }
        let moved = self.moved(states, matched);
        self.ranks
            .as_ref()
            .map_or(moved, |ranks| ranks.at_key(moved, key))
    }

    /// Returns the states of a map's value under a key that is not a string.
    #[inline]
    pub(crate) const fn at_other_key(&self, states: States) -> States {
        if states & EVERYTHING != 0 {
            return states;
        }
        self.moved(states, self.wild)
    }

    #[inline]
    const fn moved(&self, states: States, matched: States) -> States {
        // A complete path has no next segment. No mask has its bit, so the bit never shifts into
        // the next path.
        (states & self.descend) | ((states & matched) << 1)
    }
}

/// Merges `next` into `kept` if both have the same key. For `dedup_by` over sorted entries.
fn merge_same<K: PartialEq>(next: &mut (K, States), kept: &mut (K, States)) -> bool {
    let same = next.0 == kept.0;
    if same {
        kept.1 |= next.1;
    }
    same
}

/// Returns a bit for the length of a key; all long keys share one bit.
#[inline]
const fn length_bit(key: &[u8]) -> u64 {
    if key.len() < 63 {
        1 << key.len()
    } else {
        1 << 63
    }
}

#[inline]
fn lookup<K>(sorted: &[(K, States)], order: impl Fn(&K) -> std::cmp::Ordering) -> States {
    match sorted.binary_search_by(|(key, _)| order(key)) {
        Ok(found) => sorted[found].1,
        Err(_) => NOTHING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Containers;
    use crate::testing::{doc, fields, unmatched};

    const DOC: &str = r#"{
        "a": {"b": "1", "c": [10, {"b": true}, null], "n": null},
        "b": 2.5,
        "list": [{"pan": "p0", "x": {"pan": "p1"}}, {"pan": ["p2", "p3"]}, "s"],
        "weird key": {"it's": "w"},
        "": "empty"
    }"#;

    #[track_caller]
    fn check(paths: &[&str], containers: Containers, expected: &[&str]) {
        let selection = Selection::parse(paths.iter().copied()).expect("paths parse");
        assert_eq!(
            fields(selection, containers, &doc(DOC)),
            expected,
            "{paths:?} {containers:?}"
        );
    }

    /// Checks paths that select only leaves, where both modes agree.
    #[track_caller]
    fn check_both(paths: &[&str], expected: &[&str]) {
        check(paths, Containers::Whole, expected);
        check(paths, Containers::Descend, expected);
    }

    const LEAVES: [&str; 10] = [
        "$.a.b",
        "$.a.c[0]",
        "$.a.c[1].b",
        "$.b",
        "$.list[0].pan",
        "$.list[0].x.pan",
        "$.list[1].pan[0]",
        "$.list[1].pan[1]",
        "$.list[2]",
        "$['weird key']['it\\'s']",
    ];

    #[test]
    fn select_all_matches_leaves_except_nil() {
        let all = [&LEAVES[..], &["$['']"]].concat();
        for containers in [Containers::Whole, Containers::Descend] {
            assert_eq!(fields(Selection::everything(), containers, &doc(DOC)), all);
        }
        check(&["$"], Containers::Descend, &all);
        check(&["$..*"], Containers::Descend, &all);
    }

    #[test]
    fn a_path_selects_what_it_names() {
        check_both(&[], &[]);
        check_both(&["$.b"], &["$.b"]);
        check_both(&["$.a.b"], &["$.a.b"]);
        check_both(&["$['a'][\"b\"]"], &["$.a.b"]);
        check_both(&["$.a.c[1].b"], &["$.a.c[1].b"]);
        check_both(&["$.a.c[0]"], &["$.a.c[0]"]);
        check_both(&["$.list[*].pan[1]"], &["$.list[1].pan[1]"]);
        check_both(&["$.list[0,2].x.pan"], &["$.list[0].x.pan"]);
        check_both(&["$.a['b','n']"], &["$.a.b"]);
        check_both(&["$['weird key'].*"], &["$['weird key']['it\\'s']"]);
        check_both(&["$['']"], &["$['']"]);
        check_both(&["$..b"], &["$.a.b", "$.a.c[1].b", "$.b"]);
        check_both(&["$.a..b"], &["$.a.b", "$.a.c[1].b"]);
        check_both(&["$.list..x..pan"], &["$.list[0].x.pan"]);
        check_both(&["$..[1].b"], &["$.a.c[1].b"]);
        check_both(&["$..c..b", "$..c[0]"], &["$.a.c[0]", "$.a.c[1].b"]);
    }

    #[test]
    fn paths_of_one_selection_are_a_union() {
        check_both(&["$.b", "$.a.b", "$.b"], &["$.a.b", "$.b"]);
        check_both(
            &["$.a.b", "$.list[2]", "$.nowhere"],
            &["$.a.b", "$.list[2]"],
        );
        // Adjacent paths in the bit set: a complete path must not shift into the next one.
        check_both(&["$.a.z", "$.*.z", "$.b.b"], &[]);
    }

    #[test]
    fn a_path_that_fits_nothing_selects_nothing() {
        for path in [
            "$.nowhere",
            "$.a[0]",
            "$.a['0']",
            "$.list.pan",
            "$.list['0']",
            "$.b.b",
            "$.a.n",
            "$.A",
        ] {
            check_both(&[path], &[]);
        }
    }

    #[test]
    fn paths_that_match_nothing_are_known() {
        let (longest, many): (String, Vec<&str>) =
            ("$".to_owned() + &".a".repeat(126), vec!["$.a"; 63]);
        for (paths, expected) in [
            (&["$.a", "$.b", "$.list[0].pan"][..], &[][..]),
            // A null value matches a path, although it is not a field.
            (&["$.a.n", "$.a.c[2]"], &[]),
            (
                &[
                    "$.nowhere",
                    "$.b",
                    "$.a.z",
                    "$..x.pan",
                    "$..nowhere",
                    "$.list[9]",
                ],
                &[0, 2, 4, 5],
            ),
            (&["$.b.b", "$.A", "$.user.sn"], &[0, 1, 2]),
            // Values inside a container that is selected as a whole are not examined, so their
            // paths do not count as unmatched.
            (&["$.a", "$.a.b", "$..nowhere"], &[]),
            (&["$", "$.nowhere.at.all"], &[]),
            (&[&longest], &[0]),
            (&many, &[]),
            (&[], &[]),
        ] {
            for containers in [Containers::Whole, Containers::Descend] {
                let selection = Selection::parse(paths.iter().copied()).expect("paths parse");
                assert_eq!(
                    unmatched(selection, containers, &doc(DOC)),
                    expected,
                    "{paths:?} {containers:?}"
                );
            }
        }
        assert!(unmatched(Selection::everything(), Containers::Whole, &doc(DOC)).is_empty());
    }

    #[test]
    fn a_selected_container_is_one_field_or_all_its_leaves() {
        check(&["$"], Containers::Whole, &["$"]);
        check(&["$.a"], Containers::Whole, &["$.a"]);
        check(
            &["$.a"],
            Containers::Descend,
            &["$.a.b", "$.a.c[0]", "$.a.c[1].b"],
        );
        check(&["$.a", "$.a.b", "$..c"], Containers::Whole, &["$.a"]);
        check(
            &["$..pan"],
            Containers::Whole,
            &["$.list[0].pan", "$.list[0].x.pan", "$.list[1].pan"],
        );
        check(
            &["$..pan"],
            Containers::Descend,
            &[
                "$.list[0].pan",
                "$.list[0].x.pan",
                "$.list[1].pan[0]",
                "$.list[1].pan[1]",
            ],
        );
        check(
            &["$.*"],
            Containers::Whole,
            &["$.a", "$.b", "$.list", "$['weird key']", "$['']"],
        );
        check(
            &["$.list[*]"],
            Containers::Whole,
            &["$.list[0]", "$.list[1]", "$.list[2]"],
        );
    }

    #[test]
    fn a_scalar_root_is_selected_by_the_root_path_only() {
        for (path, expected) in [
            ("$", vec!["$"]),
            ("$.a", vec![]),
            ("$..*", vec![]),
            ("$[0]", vec![]),
        ] {
            let selection = Selection::parse([path]).expect("path parses");
            assert_eq!(
                fields(selection, Containers::Whole, &doc("7")),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn keys_that_are_not_strings_are_matched_by_wildcards_only() {
        // {1: "a", -1: "b", nil: "c", [0, "k"]: {"x": "d"}, bin 'a': "e", "a": "f"}
        let input = [
            &[0x86, 1, 0xa1, b'a', 0xff, 0xa1, b'b', 0xc0, 0xa1, b'c'][..],
            &[0x92, 0, 0xa1, b'k', 0x81, 0xa1, b'x', 0xa1, b'd'],
            &[0xc4, 1, b'a', 0xa1, b'e', 0xa1, b'a', 0xa1, b'f'],
        ]
        .concat();
        let all = [
            "$[key:1]",
            "$[key:-1]",
            "$[key:nil]",
            "$[key:0x9200a16b].x",
            "$[key:0xc40161]",
            "$.a",
        ];
        let check = |path: &str, expected: &[&str]| {
            let selection = Selection::parse([path]).expect("path parses");
            assert_eq!(
                fields(selection, Containers::Descend, &input),
                expected,
                "{path}"
            );
        };
        assert_eq!(
            fields(Selection::everything(), Containers::Whole, &input),
            all
        );
        check("$.*", &all);
        check("$.a", &["$.a"]);
        check("$[1]", &[]);
        check("$['1']", &[]);
        check("$.*.x", &["$[key:0x9200a16b].x"]);
        check("$..x", &["$[key:0x9200a16b].x"]);
        check("$..[1]", &[]);
    }

    #[test]
    fn steps_beyond_the_limit_are_rejected() {
        // 63 paths of one segment take 126 steps; the 127th is `$`.
        let names: Vec<String> = (0..63).map(|i| format!("$.k{i}")).collect();
        let with =
            |extra: &'static str| Selection::parse(names.iter().map(String::as_str).chain([extra]));
        assert!(with("$").is_ok());
        let refused = with("$.a").expect_err("128 steps");
        assert_eq!(
            refused.to_string(),
            "select paths have more than 127 steps in all, from `$.a` on"
        );
        let input = doc(r#"{"k0": 1, "k62": 2, "k63": 3}"#);
        let selection = Selection::parse(names.iter().map(String::as_str)).expect("126 steps");
        assert_eq!(
            fields(selection, Containers::Whole, &input),
            ["$.k0", "$.k62"]
        );

        let long = format!("${}", ".a".repeat(126));
        assert!(Selection::parse([long.as_str()]).is_ok());
        let longer = format!("{long}.a");
        assert!(Selection::parse([longer.as_str()]).is_err());
    }

    #[test]
    fn the_longest_path_reaches_its_end() {
        let path = format!("${}", ".a".repeat(126));
        let input = [[0x81, 0xa1, b'a'].repeat(126), vec![1]].concat();
        let selection = Selection::parse([path.as_str()]).expect("127 steps");
        assert_eq!(fields(selection, Containers::Whole, &input), [path]);
    }

    #[test]
    fn a_step_of_a_position_is_the_step_of_the_walk() {
        let long = "k".repeat(70);
        let (named, other_long) = (format!("$['{long}'].b"), "x".repeat(70));
        let entries = || [PrioritizedEntry::Path("$.a"), PrioritizedEntry::Key("abc")].into_iter();
        let selections = [
            Selection::parse([]).expect("no paths parse"),
            Selection::parse(["$.a", "$..bb[0].c", "$.*.dd", named.as_str()]).expect("paths parse"),
            Selection::ranked(entries()).expect("entries parse"),
            Selection::everything(),
        ];
        let keys = [
            "",
            "a",
            "b",
            "bb",
            "cc",
            "dd",
            "abc",
            "four",
            long.as_str(),
            other_long.as_str(),
        ];
        for selection in &selections {
            for first in keys {
                let position = selection.at(selection.root(), first.as_bytes());
                assert_eq!(
                    position.0,
                    selection.at_key(selection.start(), first.as_bytes()),
                    "{first}"
                );
                for second in keys {
                    let expected = selection.at_key(position.0, second.as_bytes());
                    assert_eq!(
                        selection.at(position, second.as_bytes()).0,
                        expected,
                        "{first} {second}"
                    );
                }
            }
        }
    }

    #[test]
    fn forms_of_names_are_compared() {
        let selection =
            Selection::parse(["$.Card.NUMBER", "$..Ssn", "$.items[2].x", "$.list['1']"])
                .expect("paths parse");
        let formed = selection.in_form(str::to_lowercase);
        for (path, is_selected) in [
            (&["card", "number"][..], true),
            (&["Card", "NUMBER"], false),
            (&["a", "ssn"], true),
            (&["items", "2", "x"], true),
            (&["items", "#2", "x"], true),
            (&["items", "#1", "x"], false),
            (&["list", "#1"], true),
            (&["list", "1"], true),
            (&["list", "#2"], false),
        ] {
            let step = |position, name: &&str| match name.strip_prefix('#') {
                Some(index) => formed.at_element(position, index.parse().expect("an index")),
                None => formed.at(position, name.as_bytes()),
            };
            let position = path.iter().fold(formed.root(), step);
            assert_eq!(formed.selects(position), is_selected, "{path:?}");
        }
    }

    #[test]
    fn paths_of_names_are_listed() {
        for (paths, expected) in [
            (&[][..], Some("")),
            (&["$"], Some("")),
            (&["$.a.b", "$..c"], Some("a.b c")),
            (&["$.a[*].b", "$.d[0]"], Some("a.b d")),
            (&["$['a','b'].c"], Some("a.c b.c")),
            (&["$['a',0].c"], Some("c a.c")),
            (&["$['a','b']['c','d']['e','f']"], None),
        ] {
            let selection = Selection::parse(paths.iter().copied()).expect("paths parse");
            let found = selection.name_paths(4);
            let found = found.map(|paths| {
                paths
                    .iter()
                    .map(|path| path.join("."))
                    .collect::<Vec<_>>()
                    .join(" ")
            });
            assert_eq!(found.as_deref(), expected, "{paths:?}");
        }
    }

    #[test]
    fn one_value_selects_the_path_in_the_document_or_in_each_item() {
        const ITEMS: &str = r#"[{"id": "a", "in": {"id": [1, 2]}}, "b", [7], {"id": 3, "x": 4}]"#;
        for (document, path, in_items, expected) in [
            (ITEMS, "$.id", true, &["$[0].id", "$[3].id"][..]),
            (ITEMS, "$.in.id[1]", true, &["$[0].in.id[1]"]),
            (ITEMS, "$.in", true, &["$[0].in"]),
            (ITEMS, "$[0]", true, &["$[2][0]"]),
            (ITEMS, "$[1]", false, &["$[1]"]),
            (ITEMS, "$.id", false, &[]),
            (r#"{"id": 1, "a": {"id": 2}}"#, "$.id", false, &["$.id"]),
        ] {
            let selection = Selection::one_value(path, in_items).expect("path parses");
            let found = fields(selection, Containers::Whole, &doc(document));
            assert_eq!(found, expected, "{path} {in_items}");
        }
        let long = format!("${}", ".a".repeat(126));
        assert!(Selection::one_value(&long, false).is_ok());
        assert!(matches!(
            Selection::one_value(&long, true),
            Err(SelectError::TooManySteps { .. })
        ));
        assert!(matches!(
            Selection::one_value("$[*].id", true),
            Err(SelectError::Syntax { at: 1, .. })
        ));
    }

    #[test]
    fn only_no_paths_are_empty() {
        assert!(Selection::parse([]).expect("no paths parse").is_empty());
        assert!(!Selection::parse(["$.a"]).expect("path parses").is_empty());
        assert!(!Selection::everything().is_empty());
    }
}
