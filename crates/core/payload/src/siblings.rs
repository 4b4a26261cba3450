//! Siblings of a field, for transforms that need more than the field itself.

use sealwire_msgpack::{Token, TokenReader};

use crate::Path;

/// The innermost map that contains a field. Reads the document's bytes only on request. Such reads
/// can go beyond the walk's position, where the bytes are not validated yet.
#[derive(Clone, Copy, Debug)]
pub struct EnclosingMap<'a> {
    input: &'a [u8],
    start: usize,
    key_start: usize,
}

impl<'a> Path<'a> {
    /// Returns the innermost map that contains the value; `None` if only arrays contain it.
    pub fn enclosing_map(&self) -> Option<EnclosingMap<'a>> {
        let frame = self.frames.iter().rfind(|frame| frame.is_map)?;
        Some(EnclosingMap {
            input: self.input,
            start: frame.start,
            key_start: frame.key_start,
        })
    }
}

impl Path<'_> {
    /// Returns the offset of the outermost map that contains the value; `None` if only arrays
    /// contain it.
    pub fn outermost_map(&self) -> Option<usize> {
        self.frames
            .iter()
            .find(|frame| frame.is_map)
            .map(|frame| frame.start)
    }

    /// Returns true if the container that starts at an offset contains the value.
    pub fn is_within(&self, start: usize) -> bool {
        self.frames
            .binary_search_by_key(&start, |frame| frame.start)
            .is_ok()
    }
}

impl<'a> EnclosingMap<'a> {
    /// Returns the offset of the map's first byte in the document, which identifies the map.
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Returns the offset of the key under which the value is.
    pub const fn key_start(&self) -> usize {
        self.key_start
    }

    /// Returns the whole document.
    pub const fn document(&self) -> &'a [u8] {
        self.input
    }
}

/// A scan of a document for values under certain keys, with a separate stack.
///
/// Reads every byte once, however deeply maps are nested and however many keys are searched. Keeps
/// offsets, never the document.
#[derive(Clone, Debug, Default)]
pub struct SiblingScan {
    position: usize,
    frames: Vec<ScanFrame>,
    /// The searched key whose value is next.
    key: Option<u32>,
    is_over: bool,
}

/// A container that the scan is inside of.
#[derive(Clone, Copy, Debug)]
struct ScanFrame {
    start: usize,
    /// Number of values that have not started yet, including keys.
    remaining: u64,
    is_map: bool,
}

/// Result of one step of a [`SiblingScan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// A value under a searched key started.
    Found(FoundSibling),
    /// Any other token.
    Other,
    /// The innermost container ended.
    Left,
    /// The container at which the scan started has ended, or the bytes are not MessagePack.
    Over,
}

/// A value under a searched key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSibling {
    /// Offset of the map.
    pub map: usize,
    /// Number of the key.
    pub key: u32,
    /// Offset of the value.
    pub start: usize,
    /// End of the value; `None` for a container.
    pub end: Option<usize>,
}

impl SiblingScan {
    /// Returns the offset of the next byte to read.
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Returns true if there is nothing more to read.
    pub const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns true if the scan is inside the container that starts at an offset.
    pub fn is_within(&self, start: usize) -> bool {
        self.frames
            .binary_search_by_key(&start, |frame| frame.start)
            .is_ok()
    }

    /// Continues with the value at an offset.
    pub fn restart(&mut self, start: usize) {
        self.frames.clear();
        self.position = start;
        self.key = None;
        self.is_over = false;
    }

    /// Reads one token, or leaves one container. `number` returns the number of a searched key.
    pub fn step(&mut self, input: &[u8], number: impl Fn(&[u8]) -> Option<u32>) -> ScanStep {
        if self.is_over {
            return ScanStep::Over;
        }

        let mut map = None;
        let mut is_key = false;
        if let Some(frame) = self.frames.last_mut() {
            if frame.remaining == 0 {
                self.frames.pop();
                self.is_over = self.frames.is_empty();
                return ScanStep::Left;
            }
            is_key = frame.is_map && frame.remaining % 2 == 0;
            map = frame.is_map.then_some(frame.start);
            frame.remaining -= 1;
        }

        let start = self.position;
        let mut reader = TokenReader::at(input, start);
        let Ok(token) = reader.token() else {
            self.is_over = true;
            return ScanStep::Over;
        };
        self.position = reader.position();
        let is_map = matches!(token, Token::Map(_));
        let is_container = is_map || matches!(token, Token::Array(_));
        if is_container {
            self.frames.push(ScanFrame {
                start,
                remaining: token.children(),
                is_map,
            });
        } else if self.frames.is_empty() {
            self.is_over = true;
        }

        if is_key {
            self.key = if let Token::Str(key) = token {
                number(key)
            } else {
                None
            };
            return ScanStep::Other;
        }
        match (map, self.key.take()) {
            (Some(map), Some(key)) => {
                let end = (!is_container).then_some(self.position);
                ScanStep::Found(FoundSibling {
                    map,
                    key,
                    start,
                    end,
                })
            }
            _ => ScanStep::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::doc;
    use crate::{Budget, Containers, Field, Outcome, Selection, Transform, Walk, WalkLimits};

    /// Returns what a scan finds under the keys `id` (0) and `x` (1), and the number of tokens that
    /// it read.
    fn scan(input: &[u8]) -> (Vec<FoundSibling>, usize) {
        let mut scan = SiblingScan::default();
        let (mut found, mut tokens) = (Vec::new(), 0);
        loop {
            let number = |key: &[u8]| {
                [&b"id"[..], b"x"]
                    .iter()
                    .position(|other| *other == key)
                    .map(|at| at as u32)
            };
            match scan.step(input, number) {
                ScanStep::Found(sibling) => found.push(sibling),
                ScanStep::Other => (),
                ScanStep::Left => continue,
                ScanStep::Over => return (found, tokens),
            }
            tokens += 1;
        }
    }

    #[test]
    fn a_scan_finds_the_keys_of_all_maps() {
        let input = doc(r#"{"x": 1, "in": {"x": {"y": 2}, "id": 9, "list": [3, [4]]}, "id": 7}"#);
        let at = |text: &[u8]| {
            input
                .windows(text.len())
                .position(|part| part == text)
                .expect("is there")
        };
        let inner = 11;
        let (found, tokens) = scan(&input);
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.map, found.key, input[found.start], found.end))
            .collect();
        let deep = at(b"\xdf\0\0\0\x01\xa1y");
        assert_eq!(
            found,
            [
                (0, 1, 1, Some(8)),
                (inner, 1, input[deep], None),
                (inner, 0, 9, Some(at(b"\x09") + 1)),
                (0, 0, 7, Some(input.len())),
            ]
        );
        assert_eq!(tokens, 18, "each once");
    }

    #[test]
    fn only_keys_that_are_strings_count() {
        // {bin "id": 1, ["id", {"id": 4}]: 2, "a": 5, "id": 3}
        let key = [
            &[0x92, 0xa2, b'i', b'd', 0x81, 0xa2, b'i', b'd', 4][..],
            &[2],
        ]
        .concat();
        let input = [
            &[0x84, 0xc4, 2, b'i', b'd', 1][..],
            &key,
            &[0xa1, b'a', 5],
            &[0xa2, b'i', b'd', 3],
        ]
        .concat();
        let (found, _) = scan(&input);
        let found: Vec<_> = found
            .iter()
            .map(|found| (found.map, input[found.start]))
            .collect();
        assert_eq!(
            found,
            [(10, 4), (0, 3)],
            "one of the map within the key, and one of the outer map"
        );
    }

    #[test]
    fn a_scan_ends_where_the_bytes_break_off() {
        for broken in [
            &[0x82, 0xa1, b'x', 1][..],
            &[0x82, 0xa1, b'x', 1, 0xc1],
            &[0xdf, 255, 255, 255, 255, 0xa1, b'x', 1],
        ] {
            assert_eq!(scan(broken).0.len(), 1, "{broken:02x?}");
        }
        assert_eq!(
            (scan(&[]), scan(&[7]), scan(&[0x80, 1])),
            ((vec![], 0), (vec![], 1), (vec![], 1))
        );
    }

    /// The path of a field, the start of its outermost map, and the starts of its enclosing map and
    /// that map's key.
    type Surroundings = (String, Option<usize>, Option<(usize, usize)>);

    /// Notes, for every field, the maps and containers around it.
    #[derive(Default)]
    struct Around(Vec<Surroundings>);

    impl Transform for Around {
        type Error = ();

        fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
            let map = field.path.enclosing_map();
            if let Some(map) = &map {
                assert!(
                    field.path.is_within(map.start()) && !field.path.is_within(map.key_start())
                );
            }
            let map = map.map(|map| (map.start(), map.key_start()));
            self.0
                .push((field.path.to_string(), field.path.outermost_map(), map));
            Ok(Outcome::Keep)
        }

        fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
            Err(())
        }
    }

    /// Notes the item and the bytes of every field.
    #[derive(Default)]
    struct Items(Vec<(Option<u32>, Vec<u8>)>);

    impl Transform for Items {
        type Error = ();

        fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
            let document = field.path.input;
            assert_eq!(&document[field.range()], field.raw);
            self.0.push((field.path.item(), field.raw.to_vec()));
            Ok(Outcome::Keep)
        }

        fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
            Err(())
        }
    }

    #[test]
    fn fields_know_their_item_and_their_bytes() {
        for (document, select, expected) in [
            (
                "[1, [2], {\"a\": 3}]",
                "$..*",
                &[(Some(0), "1"), (Some(1), "[2]"), (Some(2), "{\"a\": 3}")][..],
            ),
            (
                "[1, {\"a\": [2, 3]}]",
                "$[1].a[*]",
                &[(Some(1), "2"), (Some(1), "3")],
            ),
            ("[1, {\"a\": [2, 3]}]", "$[1].a", &[(Some(1), "[2, 3]")]),
            ("[1, 2]", "$", &[(None, "[1, 2]")]),
            ("{\"a\": [2, 3]}", "$.a[1]", &[(None, "3")]),
            ("7", "$", &[(None, "7")]),
        ] {
            let input = doc(document);
            let mut items = Items::default();
            let selection = Selection::parse([select]).expect("path parses");
            let limits = WalkLimits::default();
            Walk::new(Arc::new(selection), Containers::Whole, limits)
                .advance(&input, &mut Vec::new(), &mut items, Budget::UNLIMITED)
                .expect("walks");
            let expected: Vec<_> = expected
                .iter()
                .map(|(item, value)| (*item, doc(value)))
                .collect();
            assert_eq!(items.0, expected, "{document} {select}");
        }
    }

    #[test]
    fn the_nearest_and_the_outermost_map_are_known() {
        let input = doc(r#"[1, {"a": [{"b": 2}, 3]}]"#);
        let mut around = Around::default();
        let mut walk = Walk::new(
            Arc::new(Selection::everything()),
            Containers::Descend,
            WalkLimits::default(),
        );
        walk.advance(&input, &mut Vec::new(), &mut around, Budget::UNLIMITED)
            .expect("walks");
        let expected = [
            ("$[0]", None, None),
            ("$[1].a[0].b", Some(6), Some((18, 23))),
            ("$[1].a[1]", Some(6), Some((6, 11))),
        ];
        assert_eq!(
            around.0,
            expected.map(|(path, outer, map)| (path.to_owned(), outer, map))
        );
    }
}
