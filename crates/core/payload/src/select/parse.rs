//! The grammar of a select path: converts text to segments.
//!
//! Implements RFC 9535 without negative indexes and slices, which a single pass cannot evaluate
//! because they need the length first. Filters and functions are also omitted, because field
//! selections do not need them. All other input is rejected with the byte offset and the expected
//! syntax, so that a typo never silently selects nothing.

use super::SelectError;

/// A step down into the document.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// True if it can skip any number of levels first (`..`).
    pub(super) descends: bool,
    /// Selectors of which at least one must match; never empty.
    pub(super) selectors: Vec<Selector>,
}

impl Segment {
    /// Returns the segment that matches every child.
    pub(super) fn any_child() -> Self {
        Self {
            descends: false,
            selectors: vec![Selector::Wild],
        }
    }

    /// Returns true if the segment matches at most one child: it is one key or one index.
    pub(super) fn is_plain(&self) -> bool {
        let is_one = matches!(
            &self.selectors[..],
            [Selector::Name(_) | Selector::Index(_)]
        );
        is_one && !self.descends
    }
}

/// Determines the children that a segment matches.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Selector {
    /// Any child.
    Wild,
    /// The value under this string key.
    Name(String),
    /// The value at this array index.
    Index(u32),
}

const AFTER_SEGMENT: &str = "`.`, `[` or the end of the path";
const NAME: &str = "a name, `*` or `[`; write a key with other characters as ['key']";
const SELECTOR: &str = "a quoted key, an index from 0 to 4294967295 or `*`";

const PLAIN: &str = "one key or one index, such as `.id` or `[0]`";

/// Parses the segments of `path`. The path `$` gives an empty list.
pub(super) fn parse_segments(path: &str) -> Result<Vec<Segment>, SelectError> {
    let mut cursor = Cursor::after_root(path)?;
    let mut segments = Vec::new();
    while !cursor.rest().is_empty() {
        segments.push(cursor.parse_segment()?);
    }
    Ok(segments)
}

/// Parses the segments of a path to one value, of which each is one key or one index.
pub(super) fn parse_plain_segments(path: &str) -> Result<Vec<Segment>, SelectError> {
    let mut cursor = Cursor::after_root(path)?;
    let mut segments = Vec::new();
    while segments.is_empty() || !cursor.rest().is_empty() {
        let start = cursor.at;
        if cursor.rest().is_empty() {
            return Err(cursor.syntax_error(PLAIN));
        }
        let segment = cursor.parse_segment()?;
        if !segment.is_plain() {
            cursor.at = start;
            return Err(cursor.syntax_error(PLAIN));
        }
        segments.push(segment);
    }
    Ok(segments)
}

struct Cursor<'p> {
    path: &'p str,
    at: usize,
}

impl<'p> Cursor<'p> {
    /// Starts behind the `$` of a path.
    fn after_root(path: &'p str) -> Result<Self, SelectError> {
        let mut cursor = Self { path, at: 0 };
        if !cursor.consume('$') {
            return Err(cursor.syntax_error("`$`"));
        }
        Ok(cursor)
    }
}

impl Cursor<'_> {
    fn parse_segment(&mut self) -> Result<Segment, SelectError> {
        let descends = self.rest().starts_with("..");
        if descends {
            self.at += 1;
        }
        let selectors = if self.consume('.') {
            if descends && self.consume('[') {
                self.parse_bracket()?
            } else {
                vec![self.parse_dotted_name()?]
            }
        } else if self.consume('[') {
            self.parse_bracket()?
        } else {
            return Err(self.syntax_error(AFTER_SEGMENT));
        };
        Ok(Segment {
            descends,
            selectors,
        })
    }

    /// Parses the part after a dot: `*` or a bare name.
    fn parse_dotted_name(&mut self) -> Result<Selector, SelectError> {
        if self.consume('*') {
            return Ok(Selector::Wild);
        }
        let rest = self.rest();
        let len = rest.find(|c| !is_name_char(c)).unwrap_or(rest.len());
        let name = &rest[..len];
        if !is_bare_name(name) {
            return Err(self.syntax_error(NAME));
        }
        let name = name.to_owned();
        self.at += len;
        Ok(Selector::Name(name))
    }

    /// Parses the content of a bracket, up to and including `]`.
    fn parse_bracket(&mut self) -> Result<Vec<Selector>, SelectError> {
        let mut selectors = Vec::new();
        loop {
            self.skip_blanks();
            selectors.push(self.parse_selector()?);
            self.skip_blanks();
            if self.consume(']') {
                return Ok(selectors);
            }
            if !self.consume(',') {
                return Err(self.syntax_error("`,` or `]`"));
            }
        }
    }

    fn parse_selector(&mut self) -> Result<Selector, SelectError> {
        if self.consume('*') {
            Ok(Selector::Wild)
        } else if self.consume('\'') {
            self.parse_quoted_key('\'').map(Selector::Name)
        } else if self.consume('"') {
            self.parse_quoted_key('"').map(Selector::Name)
        } else {
            self.parse_index().map(Selector::Index)
        }
    }

    fn parse_index(&mut self) -> Result<u32, SelectError> {
        let rest = self.rest();
        let len = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let digits = &rest[..len];
        if digits.len() > 1 && digits.starts_with('0') {
            return Err(self.syntax_error("an index without leading zeros"));
        }
        let index = digits.parse().map_err(|_| self.syntax_error(SELECTOR))?;
        self.at += len;
        Ok(index)
    }

    /// Parses a quoted key after its opening `quote`, up to and including the closing quote.
    fn parse_quoted_key(&mut self, quote: char) -> Result<String, SelectError> {
        let mut key = String::new();
        loop {
            match self.rest().chars().next() {
                None => return Err(self.syntax_error("a closing quote")),
                Some('\\') => key.push(self.parse_escape(quote)?),
                Some(c) if c == quote => {
                    self.at += 1;
                    return Ok(key);
                }
                Some(c) if c < ' ' => {
                    return Err(self.syntax_error("control characters written as \\uXXXX"));
                }
                Some(c) => {
                    self.at += c.len_utf8();
                    key.push(c);
                }
            }
        }
    }

    /// Parses an escape, starting at its backslash.
    fn parse_escape(&mut self, quote: char) -> Result<char, SelectError> {
        let start = self.at;
        self.at += 1;
        let named = match self.rest().chars().next() {
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(c) if c == quote || c == '\\' || c == '/' => c,
            Some('u') => {
                self.at += 1;
                return self.unicode_escape(start);
            }
            _ => {
                self.at = start;
                return Err(self
                    .syntax_error("an escape: \\b \\f \\n \\r \\t \\/ \\\\ \\uXXXX or the quote"));
            }
        };
        self.at += 1;
        Ok(named)
    }

    /// Parses the digits after `\u`, including the second half of a surrogate pair if there is one.
    fn unicode_escape(&mut self, start: usize) -> Result<char, SelectError> {
        let mut units = [self.hex_unit()?, 0];
        let mut len = 1;
        if (0xd800..0xdc00).contains(&units[0]) && self.rest().starts_with("\\u") {
            self.at += 2;
            units[1] = self.hex_unit()?;
            len = 2;
        }
        let decoded = char::decode_utf16(units[..len].iter().copied()).next();
        decoded.and_then(Result::ok).ok_or_else(|| {
            self.at = start;
            self.syntax_error("a character or a surrogate pair, not half of one")
        })
    }

    fn hex_unit(&mut self) -> Result<u16, SelectError> {
        let digits = self
            .rest()
            .get(..4)
            .filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = digits.and_then(|d| u16::from_str_radix(d, 16).ok());
        let unit = unit.ok_or_else(|| self.syntax_error("four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }

    fn rest(&self) -> &str {
        &self.path[self.at..]
    }

    fn consume(&mut self, wanted: char) -> bool {
        let found = self.rest().starts_with(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn skip_blanks(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
    }

    fn syntax_error(&self, expected: &'static str) -> SelectError {
        SelectError::Syntax {
            path: self.path.to_owned(),
            at: self.at,
            expected,
        }
    }
}

/// Returns true if a key can be written after a dot, by RFC 9535.
pub(crate) fn is_bare_name(key: &str) -> bool {
    key.chars().all(is_name_char) && key.starts_with(|c: char| !c.is_ascii_digit())
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: &[(bool, &[Selector])]) {
        let found = parse_segments(path).expect(path);
        let found: Vec<_> = found
            .iter()
            .map(|s| (s.descends, s.selectors.as_slice()))
            .collect();
        assert_eq!(found, expected, "{path}");
    }

    fn name(name: &str) -> Selector {
        Selector::Name(name.to_owned())
    }

    #[test]
    fn paths_are_segments() {
        check("$", &[]);
        check("$.a._b1", &[(false, &[name("a")]), (false, &[name("_b1")])]);
        check("$.größe", &[(false, &[name("größe")])]);
        check(
            "$.*[*]",
            &[(false, &[Selector::Wild]), (false, &[Selector::Wild])],
        );
        check(
            "$[0][4294967295]",
            &[
                (false, &[Selector::Index(0)]),
                (false, &[Selector::Index(u32::MAX)]),
            ],
        );
        check("$..a", &[(true, &[name("a")])]);
        check("$..*", &[(true, &[Selector::Wild])]);
        check("$..[3]", &[(true, &[Selector::Index(3)])]);
        check("$..['a b']", &[(true, &[name("a b")])]);
        check(
            "$[ 'a' ,\t\"b\", 2, * ]",
            &[(
                false,
                &[name("a"), name("b"), Selector::Index(2), Selector::Wild],
            )],
        );
        check("$['']", &[(false, &[name("")])]);
        check("$['a.b[0]']", &[(false, &[name("a.b[0]")])]);
        check(
            r#"$['it\'s']["say \"x\""]"#,
            &[(false, &[name("it's")]), (false, &[name("say \"x\"")])],
        );
        check(
            r#"$['"']["'"]"#,
            &[(false, &[name("\"")]), (false, &[name("'")])],
        );
        check(
            r"$['\b\f\n\r\t\/\\']",
            &[(false, &[name("\u{8}\u{c}\n\r\t/\\")])],
        );
        check(r"$['\u00e4\uD83D\uDE00']", &[(false, &[name("ä😀")])]);
    }

    #[track_caller]
    fn assert_rejected(path: &str, byte: usize, needle: &str) {
        match parse_segments(path) {
            Err(SelectError::Syntax {
                path: named,
                at,
                expected,
            }) => {
                assert_eq!(named, path);
                assert_eq!(at, byte, "{path}: {expected}");
                assert!(expected.contains(needle), "{path}: {expected}");
            }
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn invalid_paths_are_rejected_at_the_invalid_byte() {
        assert_rejected("", 0, "`$`");
        assert_rejected("a.b", 0, "`$`");
        assert_rejected(" $.a", 0, "`$`");
        assert_rejected("$a", 1, "`.`");
        assert_rejected("$.a b", 3, "`.`");
        assert_rejected("$.a ", 3, "end of the path");
        assert_rejected("$.", 2, "a name");
        assert_rejected("$..", 3, "a name");
        assert_rejected("$...a", 3, "a name");
        assert_rejected("$.[0]", 2, "a name");
        assert_rejected("$.1a", 2, "a name");
        assert_rejected("$.a-b", 3, "`.`");
        assert_rejected("$.['a']", 2, "a name");
        assert_rejected("$[", 2, "a quoted key");
        assert_rejected("$[]", 2, "a quoted key");
        assert_rejected("$[a]", 2, "a quoted key");
        assert_rejected("$['a'", 5, "`]`");
        assert_rejected("$['a',]", 6, "a quoted key");
        assert_rejected("$['a", 4, "closing quote");
        assert_rejected("$['a\"]", 6, "closing quote");
        assert_rejected("$[-1]", 2, "an index");
        assert_rejected("$[01]", 2, "leading zeros");
        assert_rejected("$[4294967296]", 2, "an index from 0");
        assert_rejected("$[1:2]", 3, "`]`");
        assert_rejected("$[:2]", 2, "an index");
        assert_rejected("$[?(@.a)]", 2, "a quoted key");
        assert_rejected("$[?@.a == 1]", 2, "a quoted key");
        assert_rejected("$.length()", 8, "`.`");
        assert_rejected(r"$['\x']", 3, "an escape");
        assert_rejected(r#"$['\"']"#, 3, "an escape");
        assert_rejected(r"$['\u12']", 5, "hexadecimal");
        assert_rejected(r"$['\u+123']", 5, "hexadecimal");
        assert_rejected(r"$['\uD800']", 3, "surrogate");
        assert_rejected(r"$['\uDC00\uD800']", 3, "surrogate");
        assert_rejected(r"$['\uD800\u0041']", 3, "surrogate");
        assert_rejected("$['a\nb']", 4, "control characters");
        assert_rejected("$['ä\u{1}']", 5, "control characters");
    }

    #[test]
    fn plain_paths_have_one_key_or_index_per_segment() {
        for path in ["$.id", "$['a b'].c", "$[0]", "$.rows[2].id", r#"$["*"]"#] {
            assert_eq!(parse_plain_segments(path), parse_segments(path), "{path}");
        }
        for (path, byte) in [
            ("$", 1),
            ("$.*", 1),
            ("$.a[*]", 3),
            ("$..id", 1),
            ("$.a..b", 3),
            ("$['a', 'b']", 1),
            ("$.a[0, 1]", 3),
        ] {
            match parse_plain_segments(path) {
                Err(SelectError::Syntax { at, expected, .. }) => {
                    assert_eq!((at, expected), (byte, PLAIN), "{path}");
                }
                other => panic!("{path}: {other:?}"),
            }
        }
        for path in ["", "id", "$.", "$.a[?(@.b)]", "$[-1]"] {
            assert_eq!(parse_plain_segments(path), parse_segments(path), "{path}");
        }
    }

    #[test]
    fn the_message_names_path_position_and_expectation() {
        let error = parse_segments("$.a[?(@.b)]").expect_err("filters are rejected");
        assert_eq!(
            error.to_string(),
            "select path `$.a[?(@.b)]` at byte 4: expected a quoted key, an index from 0 to 4294967295 or `*`"
        );
    }

    proptest::proptest! {
        #[test]
        fn random_text_parses_or_is_rejected_inside_itself(path in "\\$?[.$\\[\\]*'\"a0,:\\\\uäD8 -]{0,24}") {
            if let Err(SelectError::Syntax { at, .. }) = parse_segments(&path) {
                proptest::prop_assert!(path.is_char_boundary(at));
            }
        }
    }
}
