//! Siblings of a field, for transforms that need more than the field itself.

use sealwire_msgpack::{Token, TokenReader};

use crate::Path;

/// The innermost map that contains a field. Reads the document's bytes only on request. Such reads can go beyond the
/// walk's position, where the bytes are not validated yet.
#[derive(Clone, Copy, Debug)]
pub struct EnclosingMap<'a> {
    input: &'a [u8],
    start: usize,
    depth: usize,
}

impl<'a> Path<'a> {
    /// Returns the innermost map that contains the value; `None` if only arrays contain it.
    pub fn enclosing_map(&self) -> Option<EnclosingMap<'a>> {
        let depth = self.frames.iter().rposition(|frame| frame.is_map)?;
        Some(EnclosingMap { input: self.input, start: self.frames[depth].start, depth })
    }
}

impl<'a> EnclosingMap<'a> {
    /// Returns the offset of the map's first byte in the document, which identifies the map.
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Returns the number of containers around the map.
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the offset in the document of the first value under `key`. Considers only values that end within
    /// `bytes_max` of the map's first byte.
    pub fn find(&self, key: &str, bytes_max: usize) -> Option<usize> {
        let end = self.start.saturating_add(bytes_max).min(self.input.len());
        let mut reader = TokenReader::at(self.input.get(..end)?, self.start);
        let pairs = reader.map_len().ok()?;
        for _ in 0..pairs {
            let is_key = reader.peek().ok()? == Token::Str(key.as_bytes());
            reader.skip_value().ok()?;
            let value_at = reader.position();
            reader.skip_value().ok()?;
            if is_key {
                return Some(value_at);
            }
        }
        None
    }

    /// Returns the document's bytes from an offset on.
    pub fn bytes_from(&self, offset: usize) -> &'a [u8] {
        self.input.get(offset..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sealwire_msgpack::write;

    use crate::testing::doc;
    use crate::{Budget, Containers, Field, Outcome, Path, Selection, Transform, Walk, WalkLimits};

    /// Returns, for every field, the value under a key of its enclosing map.
    struct Siblings<'k> {
        key: &'k str,
        bytes_max: usize,
        found: Vec<(String, Option<u64>)>,
    }

    impl Transform for Siblings<'_> {
        type Error = ();

        fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
            let beside = field.path.enclosing_map().and_then(|map| {
                assert!(map.depth() < 4);
                let at = map.find(self.key, self.bytes_max)?;
                Some(map.bytes_from(at)[0].into())
            });
            self.found.push((field.path.to_string(), beside));
            Ok(Outcome::Keep)
        }

        fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
            Err(())
        }
    }

    fn beside(key: &str, bytes_max: usize, input: &[u8]) -> Vec<(String, Option<u64>)> {
        let mut beside = Siblings { key, bytes_max, found: Vec::new() };
        // One token per step: the lookup does not depend on the position of the walk.
        let mut walk = Walk::new(Arc::new(Selection::everything()), Containers::Descend, WalkLimits::default());
        let step = Budget { fields_max: 1, bytes_max: 1 };
        while walk.advance(input, &mut Vec::new(), &mut beside, step) == Ok(crate::Progress::More) {}
        beside.found
    }

    #[test]
    fn the_nearest_map_is_searched() {
        let input = doc(r#"{"x": 1, "in": {"x": {"y": 2}, "id": 9, "list": [3, [4]]}, "id": 7}"#);
        let found = beside("id", usize::MAX, &input);
        let expected = [
            ("$.x", Some(7)),
            ("$.in.x.y", None),
            ("$.in.id", Some(9)),
            ("$.in.list[0]", Some(9)),
            ("$.in.list[1][0]", Some(9)),
            ("$.id", Some(7)),
        ];
        let expected = expected.map(|(path, beside)| (path.to_owned(), beside));
        assert_eq!(found, expected);
        assert_eq!(beside("id", usize::MAX, &doc("[1, [2]]")).iter().filter(|(_, beside)| beside.is_some()).count(), 0);
        assert_eq!(beside("x", 3, &input)[0].1, None);
    }

    #[test]
    fn only_keys_that_are_strings_count_and_only_near_ones() {
        // {bin "id": 1, ["id"]: 2, "a": "....", "id": 3}
        let mut input = vec![0x84, 0xc4, 2, b'i', b'd', 1, 0x91, 0xa2, b'i', b'd', 2, 0xa1, b'a'];
        write::str(&mut input, "....");
        input.extend_from_slice(&[0xa2, b'i', b'd', 3]);
        let len = input.len();
        let mut last = beside("id", len, &input);
        assert_eq!(last.pop().expect("a field").1, Some(3));
        let mut short = beside("id", len - 1, &input);
        assert_eq!(short.pop().expect("a field").1, None);
    }

    #[test]
    fn what_breaks_off_behind_the_field_is_not_there() {
        for broken in
            [&[0x82, 0xa1, b'a', 1][..], &[0x82, 0xa1, b'a', 1, 0xc1], &[0xdf, 255, 255, 255, 255, 0xa1, b'a', 1]]
        {
            assert_eq!(beside("id", usize::MAX, broken), [("$.a".to_owned(), None)]);
        }
    }
}
