//! The normal form of names: JSON keys, fields of forms, parts, query parameters and headers.
//!
//! Readers take different spellings for one name. Go, Java and .NET ignore case, by several tables. PHP drops outer
//! blanks and ends a name at `[`, Rails and qs read `[card]` as `card`, and readers of protobuf take `card_number` for
//! `cardNumber`. All of these agree with `NormalForm`: a name that equals a selected one only in its normal form is
//! [`is_alias`] of it, and a message with such a name is rejected. The form is coarser than any reader's, because a
//! rejected message can be corrected and a value that passed cannot be called back.

use std::borrow::Cow;

use icu_casemap::CaseMapper;
use percent_encoding::percent_decode_str;
use sealwire_payload::Position;

use crate::BodyRule;

/// Most times that a name is decoded. One that then still has escapes is an alias of any name.
const DECODES_MAX: usize = 3;

/// Error text for an alias.
pub const ALIAS: &str = "a name that some readers take for a selected one: send it as the rule spells it";
/// Error text for [`is_unclear`].
pub const UNCLEAR: &str = "a name with a NUL character, or with bytes that are no character";

/// Returns true if `name` is another spelling of `selected`, which some reader takes for it. In names with levels, also
/// if `name` is for something within it, such as `card[0]` or `card.x` within `card`.
pub fn is_alias(name: &str, selected: &str, has_levels: bool) -> bool {
    if name == selected {
        return false;
    }
    let mut decoded = Cow::Borrowed(name);
    // Some readers decode twice, or decode what others leave.
    for _ in 0..=DECODES_MAX {
        let is_same = decoded == selected || is_alike(&decoded, selected);
        if is_same || (has_levels && has_alike_level(&decoded, selected)) {
            return true;
        }
        if !decoded.contains('%') {
            return false;
        }
        let next = percent_decode_str(&decoded).decode_utf8_lossy().into_owned();
        if next == decoded {
            return false;
        }
        decoded = Cow::Owned(next);
    }
    // Nobody escapes so often for a good reason, and each time costs as much as the name is long.
    true
}

/// Returns true for a name that readers cut, drop or replace: with a NUL character, or with U+FFFD, which stands for half of
/// a surrogate pair and for bytes that are not UTF-8.
pub fn is_unclear(name: &str) -> bool {
    name.contains('\0') || (!name.is_ascii() && name.contains('\u{fffd}'))
}

/// Returns the first rule whose value some reader finds under a name that no rule spells so, and the reason to reject it.
/// `positions` are those of the rules at the object that has the name. Rules that reveal values reject no name.
pub(crate) fn misread_rule(
    rules: &[BodyRule],
    positions: &[Position],
    name: &str,
    has_levels: bool,
) -> Option<(usize, &'static str)> {
    let names = |at: usize| {
        let selection = rules[at].selection.as_deref();
        let names = selection.zip(positions.get(at)).map(|(selection, position)| selection.names_at(*position));
        names.into_iter().flatten().filter_map(|name| std::str::from_utf8(name).ok())
    };
    if (0..rules.len()).any(|at| names(at).any(|selected| selected == name)) {
        return None;
    }
    let is_index = |at: usize| {
        let selection = rules[at].selection.as_deref().zip(positions.get(at));
        // Scripts and PHP read the elements of an array from an object with numbers as keys too.
        let index = name.parse::<u32>().ok().filter(|_| name.as_bytes()[0].is_ascii_digit());
        selection.zip(index).is_some_and(|((selection, position), index)| selection.has_index(*position, index))
    };
    let is_unclear = is_unclear(name);
    (0..rules.len()).filter(|at| rules[*at].rejects_near_keys).find_map(|at| {
        if is_index(at) || names(at).any(|selected| is_alias(name, selected, has_levels)) {
            return Some((at, ALIAS));
        }
        (is_unclear && names(at).next().is_some()).then_some((at, UNCLEAR))
    })
}

/// Number of characters of a name that count.
pub(crate) fn form_len(name: &str) -> usize {
    NormalForm::new(name).count()
}

fn is_alike(name: &str, selected: &str) -> bool {
    let mut form = NormalForm::new(selected).peekable();
    // A name of separators alone equals only itself.
    form.peek().is_some() && form.eq(NormalForm::new(name))
}

/// Compares what stands before each level of a name: before `[` and `.`, and behind `]`, where PHP ends a name. One pass,
/// because a name can consist of brackets.
fn has_alike_level(name: &str, selected: &str) -> bool {
    let form: Vec<char> = NormalForm::new(selected).collect();
    let mut left = form.iter();
    for (at, c) in name.char_indices() {
        if left.len() == 0 && !form.is_empty() && (matches!(c, '[' | '.') || (c == ']' && at + 1 < name.len())) {
            return true;
        }
        if is_dropped(c) {
            continue;
        }
        let is_alike = NormalForm::new(&name[at..at + c.len_utf8()]).all(|c| left.next() == Some(&c));
        if !is_alike {
            return false;
        }
    }
    false
}

/// Characters of a name without separators, blanks and invisible characters, in lower case.
struct NormalForm<'a> {
    rest: std::str::Chars<'a>,
    /// The rest of a character whose folding is longer.
    folded: std::vec::IntoIter<char>,
}

impl<'a> NormalForm<'a> {
    fn new(name: &'a str) -> Self {
        Self { rest: name.chars(), folded: Vec::new().into_iter() }
    }
}

impl Iterator for NormalForm<'_> {
    type Item = char;

    fn next(&mut self) -> Option<char> {
        if let Some(folded) = self.folded.next() {
            return Some(folded);
        }
        let next = self.rest.find(|c| !is_dropped(*c))?;
        if next.is_ascii() {
            return Some(next.to_ascii_lowercase());
        }
        self.folded = folded(next).into_iter();
        self.next()
    }
}

/// Lower case of upper case of lower case: U+017F, U+212A and the dotless i end at `s`, `k` and `i`, and the sharp s, small
/// or capital, at `ss`. Characters that are equal by Unicode's simple case folding are equal here.
fn folded(c: char) -> Vec<char> {
    let cases = CaseMapper::new();
    let lower = cases.simple_fold(c).to_lowercase().flat_map(char::to_uppercase).flat_map(char::to_lowercase);
    lower.map(|c| cases.simple_fold(c)).filter(|c| !is_dropped(*c)).collect()
}

/// Separators, blanks, brackets, quotes and the like, and characters that are not visible.
fn is_dropped(c: char) -> bool {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' => false,
        '#' | '$' | '%' | '&' | '/' | ':' | '@' => false,
        '!'..='~' => true,
        // The dot that lower case leaves of the capital I with a dot; soft hyphen; marks of joining and of order; variation
        // selectors; byte order mark; what replaces bytes that are not UTF-8.
        '\u{307}'
        | '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffd}' => true,
        _ => c.is_control() || c.is_whitespace(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_take_time_and_memory_in_proportion() {
        // Each once took a frame of the stack for every two characters, or time by the square of the length.
        let escaped = format!("%{}", "25".repeat(200_000));
        let brackets = "[".repeat(400_000);
        let both = format!("{brackets}{escaped}");
        for (name, is_one) in [(&escaped, true), (&both, true), (&brackets, false)] {
            for has_levels in [false, true] {
                assert_eq!(is_alias(name, "card", has_levels), is_one, "{}", &name[..8]);
            }
        }
        let dots = "a.".repeat(200_000);
        assert!(!is_alias(&dots, &"a".repeat(200_001), true) && is_alias(&dots, &"a".repeat(200_000), true));
        assert!(is_alias(&dots, "a", true));
    }

    #[test]
    fn names_that_a_reader_takes_for_a_selected_one_are_aliases() {
        for (selected, name, in_json, in_form) in [
            ("ssn", "ssn", false, false),
            ("ssn", "SSN", true, true),
            ("ssn", "\u{17f}sn", true, true),
            ("ssn", "s\u{17f}n", true, true),
            ("ssn", "\u{df}n", true, true),
            ("ssn", "\u{1e9e}n", true, true),
            ("token", "to\u{212a}en", true, true),
            ("id", "\u{131}d", true, true),
            ("id", "\u{130}D", true, true),
            ("grün", "GRÜN", true, true),
            ("σας", "ΣΑΣ", true, true),
            ("ssn", " ssn", true, true),
            ("ssn", "ssn\t", true, true),
            ("ssn", "\u{a0}ssn\u{3000}", true, true),
            ("ssn", "ssn\0", true, true),
            ("ssn", "s\0sn", true, true),
            ("ssn", "\u{feff}ssn", true, true),
            ("ssn", "s\u{200b}sn", true, true),
            ("ssn", "ssn\u{fffd}", true, true),
            ("ssn", "ssn[]", true, true),
            ("ssn", "[ssn]", true, true),
            ("ssn", ".ssn", true, true),
            ("ssn", "?ssn", true, true),
            ("ssn", "'ssn'", true, true),
            ("ssn", "ssn*", true, true),
            ("id", "@id", false, false),
            ("id", "$id", false, false),
            ("card_number", "card.number", true, true),
            ("card_number", "card-number", true, true),
            ("card_number", "card number", true, true),
            ("card_number", "card[number", true, true),
            ("card_number", "cardNumber", true, true),
            ("cardNumber", "card_number", true, true),
            ("x-card", "X_Card", true, true),
            ("card[number]", "card.number", true, true),
            ("card[number]", "card[Number]", true, true),
            ("card", "c%61rd", true, true),
            ("card", "c%2561rd", true, true),
            ("card", "card%00", true, true),
            ("card", "c%61rd%5Bx%5D", false, true),
            // Levels are of forms, queries and parts.
            ("card", "card[0]", false, true),
            ("card", "card[][x]", false, true),
            ("card[]", "card[0]", false, true),
            ("card[]", "card[]", false, false),
            ("card", "Card[x]", false, true),
            ("card", "card.x", false, true),
            ("card[number]", "card[number]x", false, true),
            ("card[number]", "card[number][0]", false, true),
            // Other names.
            ("card", "cards", false, false),
            ("card", "card_number", false, false),
            ("card", "cart", false, false),
            ("card", "", false, false),
            ("card", "[]", false, false),
            ("card", "kärd", false, false),
            ("card[number]", "card[expiry]", false, false),
            ("card[number]", "card", false, false),
            ("ssn", "ſs", false, false),
            ("größe", "grösse_", true, true),
            ("größe", "grosse", false, false),
            ("名前", "名", false, false),
            ("名前", "名前", false, false),
            ("100%", "100%25", true, true),
            ("card", "100%", false, false),
            ("card", "%zz", false, false),
            // A name of separators equals itself alone.
            ("_", "__", false, false),
            ("", ".", false, false),
            ("_", "", false, false),
        ] {
            assert_eq!(is_alias(name, selected, false), in_json, "{name:?} for {selected:?} in JSON");
            assert_eq!(is_alias(name, selected, true), in_form, "{name:?} for {selected:?} in a form");
        }
    }

    #[test]
    fn the_form_is_coarser_than_every_case_mapping_of_one_character() {
        let cases = CaseMapper::new();
        for c in '\0'..=char::MAX {
            // The filler keeps a dropped character from becoming the name of separators alone.
            let name = |text: String| format!("a{text}b");
            let original = name(c.into());
            let mapped = [cases.simple_fold(c), cases.simple_lowercase(c), cases.simple_uppercase(c)].map(String::from);
            let whole = [c.to_lowercase().to_string(), c.to_uppercase().to_string()];
            for other in mapped.into_iter().chain(whole).map(name) {
                assert!(original == other || is_alike(&original, &other), "U+{:04X}: {other}", u32::from(c));
            }
        }
    }

    #[test]
    fn names_that_readers_cut_are_unclear() {
        for (name, expected) in [
            ("card", false),
            ("kärd 名前", false),
            ("", false),
            ("First\nName", false),
            ("ca\0rd", true),
            ("card\u{fffd}", true),
        ] {
            assert_eq!(is_unclear(name), expected, "{name:?}");
        }
    }
}
