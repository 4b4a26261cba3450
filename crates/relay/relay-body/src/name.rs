//! The normal form of names: JSON keys, fields of forms, parts, query parameters and headers.
//!
//! Parsers accept different spellings of a name. Go, Java and .NET ignore case, by different
//! tables. PHP drops outer blanks and ends a name at `[`. Rails and qs read `[card]` as `card`, and
//! protobuf parsers read `card_number` as `cardNumber`. Go's `json/v2` also reads `_id` as `id`.
//! Swift compares accented characters by canonical equivalence, and collations ignore invisible
//! characters.
//!
//! [`normal_form`] covers all of these spellings. A name that equals a selected name only in its
//! normal form is an alias, and a message with an alias is rejected. The form is coarser than that
//! of any parser, because a client can correct a rejected message, but a value that passed unsealed
//! cannot be recalled.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use icu_casemap::CaseMapper;
use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_properties::CodePointSetData;
use icu_properties::props::DefaultIgnorableCodePoint;
use percent_encoding::percent_decode_str;

/// Most times that a name is decoded. A name that still has escapes afterwards is an alias of any
/// name.
const DECODES_MAX: usize = 3;
/// Characters between the levels of a name, such as `card[number]`, `card.number` and Rails'
/// `date(1i)`.
pub(crate) const BREAKS: [char; 4] = ['[', ']', '.', '('];

/// Error text for an alias.
pub const ALIAS: &str =
    "a name that some parsers confuse with a selected name: send it as the rule spells it";
/// Error text for [`is_unclear`].
pub const UNCLEAR: &str = "a name with a NUL character or with invalid characters";

/// Returns true for an ambiguous name, which parsers truncate, drop or replace. Such a name
/// contains a NUL character or U+FFFD, the replacement for an unpaired surrogate or invalid UTF-8.
pub fn is_unclear(name: &str) -> bool {
    name.contains('\0') || (!name.is_ascii() && name.contains('\u{fffd}'))
}

/// Returns the normal form of a name: decomposed, in lower case, and without separators, blanks and
/// invisible characters. A number has no leading zeros. A name that consists of separators equals
/// only itself.
pub fn normal_form(name: &str) -> Cow<'_, str> {
    if name.bytes().all(is_normal) {
        return Cow::Borrowed(name);
    }
    let mut form = String::with_capacity(name.len());
    push_form(&mut form, name);
    if form.is_empty() {
        return Cow::Borrowed(name);
    }
    if form.bytes().all(|byte| byte.is_ascii_digit()) {
        let zeros = form.len() - form.trim_start_matches('0').len();
        form.drain(..zeros.min(form.len() - 1));
    }
    Cow::Owned(form)
}

const fn is_normal(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'1'..=b'9' | b'#' | b'$' | b'%' | b'&' | b'/' | b':' | b'@')
}

/// Returns a text decomposed, in lower case and without invisible characters, since servers can
/// ignore these differences. Unlike [`normal_form`], the result keeps separators.
pub fn fold_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    push_folded(&mut out, text, is_invisible);
    out
}

/// Passes a name to `visit` unchanged and with its escapes decoded, because some parsers decode
/// twice, or decode escapes that others keep. Returns true if escapes are left after
/// [`DECODES_MAX`] steps, which no ordinary client sends.
fn each_reading(name: &str, mut visit: impl FnMut(&str)) -> bool {
    let mut decoded = Cow::Borrowed(name);
    for _ in 0..=DECODES_MAX {
        visit(&decoded);
        if !decoded.contains('%') {
            return false;
        }
        let next = percent_decode_str(&decoded)
            .decode_utf8_lossy()
            .into_owned();
        if next == decoded {
            return false;
        }
        decoded = Cow::Owned(next);
    }
    true
}

/// Like [`each_reading`]. Also visits each name with levels without the characters that some
/// parsers ignore, such as the `x` in `[user]x[ssn]`.
pub(crate) fn each_reading_of_levels(name: &str, mut visit: impl FnMut(&str)) -> bool {
    each_reading(name, |text| {
        visit(text);
        if let Some(text) = in_brackets(text) {
            visit(&text);
        }
    })
}

/// Returns a name in the reading of qs: the text before the first pair of brackets, and the
/// brackets with their content. Returns `None` if this is the whole name.
fn in_brackets(name: &str) -> Option<String> {
    let mut kept = String::new();
    let mut start = None;
    for (at, c) in name.char_indices() {
        match (c, start) {
            ('[', _) => start = Some(at),
            (']', Some(from)) => {
                if kept.is_empty() {
                    kept.push_str(&name[..from]);
                }
                kept.push_str(&name[from..=at]);
                start = None;
            }
            _ => {}
        }
    }
    (!kept.is_empty() && kept.len() < name.len()).then_some(kept)
}

/// Names by their normal form. The cost of a look-up grows with the length of the name, not with
/// the size of the set.
#[derive(Clone, Debug, Default)]
pub struct NameSet {
    /// Rules by the normal form of their names. A dot separates levels, since the form of a single
    /// name contains no dot.
    forms: HashMap<Box<str>, Vec<usize>>,
    /// Every rule with a name.
    rules: Vec<usize>,
    /// Lengths of the forms in bytes. `form_bytes_max` is the greatest length.
    form_bytes: HashSet<usize>,
    form_bytes_max: usize,
    has_levels: bool,
}

impl NameSet {
    /// Creates an empty set. If `has_levels`, names within a name of the set match it, such as
    /// `card[0]` and `card.x` within `card`, and numbers of elements are ignored.
    pub fn new(has_levels: bool) -> Self {
        Self {
            has_levels,
            ..Self::default()
        }
    }

    /// Creates a set of names without levels.
    pub fn from_names(names: &[&str]) -> Self {
        let mut set = Self::new(false);
        names
            .iter()
            .enumerate()
            .for_each(|(at, name)| set.insert(name, at));
        set
    }

    /// Adds a name of a rule.
    pub fn insert(&mut self, name: &str, rule: usize) {
        if !self.has_levels {
            return self.insert_form(normal_form(name).into_owned(), rule);
        }
        let mut levels = Levels::default();
        name.split(BREAKS).for_each(|level| levels.push(level));
        if levels.flat.is_empty() {
            return self.insert_form(name.to_owned(), rule);
        }
        self.insert_form(levels.dotted, rule);
        self.insert_form(levels.flat, rule);
    }

    /// Adds a name with these levels, which parsers of forms and queries know as `user[ssn]` or
    /// `user.ssn`.
    pub fn insert_levels(&mut self, names: &[&str], rule: usize) {
        if let [name] = names {
            return self.insert(name, rule);
        }
        let mut levels = Levels::default();
        names
            .iter()
            .flat_map(|name| name.split(BREAKS))
            .for_each(|level| levels.push(level));
        if !levels.dotted.is_empty() {
            self.insert_form(levels.dotted, rule);
        }
    }

    fn insert_form(&mut self, form: String, rule: usize) {
        self.form_bytes.insert(form.len());
        self.form_bytes_max = self.form_bytes_max.max(form.len());
        for rules in [self.forms.entry(form.into()).or_default(), &mut self.rules] {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
    }

    /// Returns true if the set has no name.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns true if the normal form of a truncated name is so short that the name can continue
    /// with a name of the set.
    pub(crate) fn may_start(&self, name: &str) -> bool {
        let mut form = String::new();
        push_form(&mut form, name);
        form.len() <= self.form_bytes_max
    }

    /// Returns the rules with a name that some parser confuses with `name`. A name of the set
    /// matches itself.
    pub fn rules_of(&self, name: &str) -> &[usize] {
        if self.is_empty() {
            return &[];
        }
        let mut found: &[usize] = &[];
        let is_endless = each_reading_of_levels(name, |text| {
            if found.is_empty() {
                found = self.rules_of_reading(text);
            }
        });
        if is_endless && found.is_empty() {
            &self.rules
        } else {
            found
        }
    }

    /// Returns true if some parser confuses `name` with a name of the set.
    pub fn matches(&self, name: &str) -> bool {
        !self.rules_of(name).is_empty()
    }

    fn rules_of_reading(&self, name: &str) -> &[usize] {
        if !self.has_levels {
            return self.rules_of_form(&normal_form(name));
        }
        let mut levels = Levels::default();
        let mut looked_up = 0;
        for level in name.split(BREAKS) {
            levels.push(level);
            if levels.flat.len() > self.form_bytes_max {
                return &[];
            }
            // A form is looked up after it grew, so at most once for each length in the set.
            if levels.flat.len() == looked_up {
                continue;
            }
            looked_up = levels.flat.len();
            for form in [&levels.flat, &levels.dotted] {
                let found = self.rules_of_form(form);
                if !found.is_empty() {
                    return found;
                }
            }
        }
        if levels.flat.is_empty() {
            self.rules_of_form(name)
        } else {
            &[]
        }
    }

    fn rules_of_form(&self, form: &str) -> &[usize] {
        if !self.form_bytes.contains(&form.len()) {
            return &[];
        }
        #[cfg(test)]
        tests::LOOK_UPS.with(|count| count.set(count.get() + 1));
        self.forms.get(form).map_or(&[], Vec::as_slice)
    }
}

/// The levels of a name so far, in their normal form, without numbers of elements.
#[derive(Default)]
struct Levels {
    flat: String,
    /// With a dot between levels.
    dotted: String,
}

impl Levels {
    fn push(&mut self, level: &str) {
        let start = self.flat.len();
        push_form(&mut self.flat, level);
        let is_number = self.flat[start..].bytes().all(|byte| byte.is_ascii_digit());
        if start > 0 && is_number {
            self.flat.truncate(start);
        } else if start < self.flat.len() {
            self.dotted.push_str(if start > 0 { "." } else { "" });
            self.dotted.push_str(&self.flat[start..]);
        }
    }
}

fn push_form(out: &mut String, text: &str) {
    push_folded(out, text, is_dropped);
}

/// Appends a text in compatibility decomposition (Unicode's NFKD) and in lower case, without the
/// characters for which `is_dropped` returns true.
fn push_folded(out: &mut String, text: &str, is_dropped: fn(char) -> bool) {
    if text.is_ascii() {
        out.extend(
            text.chars()
                .filter(|c| !is_dropped(*c))
                .map(|c| c.to_ascii_lowercase()),
        );
        return;
    }
    let nfkd = DecomposingNormalizerBorrowed::new_nfkd();
    let fold_case = nfkd
        .normalize_iter(text.chars())
        .filter(|c| !is_dropped(*c))
        .flat_map(fold_case);
    // The lower-case characters can have a decomposition again, or must be dropped.
    out.extend(nfkd.normalize_iter(fold_case).filter(|c| !is_dropped(*c)));
}

/// Maps a character to lower case, upper case and lower case again. U+017F, U+212A and the dotless
/// i become `s`, `k` and `i`; the small and the capital sharp s become `ss`. Characters that are
/// equal by Unicode's simple case folding are equal here.
fn fold_case(c: char) -> impl Iterator<Item = char> {
    let cases = CaseMapper::new();
    let fold_case = cases
        .simple_fold(c)
        .to_lowercase()
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase);
    fold_case.map(move |c| cases.simple_fold(c))
}

/// Returns true for separators, blanks, brackets, quotes and similar characters, and for invisible
/// characters.
fn is_dropped(c: char) -> bool {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' => false,
        '#' | '$' | '%' | '&' | '/' | ':' | '@' => false,
        '!'..='~' => true,
        _ => is_invisible(c),
    }
}

/// Returns true for blanks, controls, and characters that Unicode permits parsers to ignore.
fn is_invisible(c: char) -> bool {
    match c {
        '!'..='~' => false,
        // The combining dot in the lower case of the capital I with a dot; the blank of Braille;
        // annotation marks; the replacement character for invalid UTF-8.
        '\u{307}' | '\u{2800}' | '\u{fff9}'..='\u{fffd}' => true,
        _ => {
            c.is_control()
                || c.is_whitespace()
                || CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use icu_normalizer::ComposingNormalizerBorrowed;

    use super::*;

    thread_local! {
        /// Number of look-ups of forms.
        pub(super) static LOOK_UPS: Cell<usize> = const { Cell::new(0) };
    }

    /// Returns true if `name` is another spelling of `selected`.
    fn is_alias(name: &str, selected: &str, has_levels: bool) -> bool {
        let mut set = NameSet::new(has_levels);
        set.insert(selected, 0);
        name != selected && set.matches(name)
    }

    #[test]
    fn look_ups_do_not_grow_with_the_number_of_names() {
        let names = [
            "card",
            "another_name12",
            "x[y].z",
            "a.b.c.d.e.f",
            "%63ard",
            &"[".repeat(10_000),
            &"a[1]".repeat(10_000),
        ];
        let counts = [1, 100, 10_000].map(|len| {
            let mut set = NameSet::new(true);
            (0..len).for_each(|at| set.insert(&format!("selected{at:05}"), at));
            names.map(|name| {
                LOOK_UPS.set(0);
                assert!(!set.matches(name), "{name}");
                LOOK_UPS.get()
            })
        });
        assert!(counts.iter().all(|other| *other == counts[0]), "{counts:?}");
        assert!(counts[0].iter().all(|count| *count <= 2), "{counts:?}");
    }

    #[test]
    fn long_names_take_time_and_memory_in_proportion() {
        // Each once took a frame of the stack for every two characters, or time by the square of
        // the length.
        let escaped = format!("%{}", "25".repeat(200_000));
        let brackets = "[".repeat(400_000);
        let both = format!("{brackets}{escaped}");
        for (name, is_one) in [(&escaped, true), (&both, true), (&brackets, false)] {
            for has_levels in [false, true] {
                assert_eq!(is_alias(name, "card", has_levels), is_one, "{}", &name[..8]);
            }
        }
        let dots = "a.".repeat(200_000);
        assert!(
            !is_alias(&dots, &"a".repeat(200_001), true)
                && is_alias(&dots, &"a".repeat(200_000), true)
        );
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
            // Code points that are ignored by default, and other forms of a character.
            ("ssn", "s\u{e0041}sn", true, true),
            ("ssn", "ss\u{e0100}n", true, true),
            ("ssn", "\u{3164}ssn", true, true),
            ("ssn", "ssn\u{115f}", true, true),
            ("ssn", "ssn\u{1160}", true, true),
            ("ssn", "ssn\u{ffa0}", true, true),
            ("ssn", "ssn\u{180b}", true, true),
            ("ssn", "ssn\u{180f}", true, true),
            ("ssn", "ssn\u{17b4}", true, true),
            ("ssn", "ssn\u{1bca0}", true, true),
            ("ssn", "ssn\u{2800}", true, true),
            ("ssn", "\u{ff53}\u{ff53}\u{ff4e}", true, true),
            ("caf\u{e9}", "cafe\u{301}", true, true),
            ("cafe\u{301}", "CAF\u{c9}", true, true),
            ("caf\u{e9}", "cafe", false, false),
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
            ("card[number]", "card[number]x", true, true),
            ("card[number]", "card[number][0]", false, true),
            // An element of a list has names without its number.
            ("items[0]", "items[]", false, true),
            ("items[0]", "items", false, true),
            ("items[0][x]", "items[][x]", false, true),
            ("items[0]", "item", false, false),
            ("items[0]", "items[1]", false, true),
            // Prefixes of Spring's forms.
            ("ssn", "_ssn", true, true),
            ("ssn", "!ssn", true, true),
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
            assert_eq!(
                is_alias(name, selected, false),
                in_json,
                "{name:?} for {selected:?} in JSON"
            );
            assert_eq!(
                is_alias(name, selected, true),
                in_form,
                "{name:?} for {selected:?} in a form"
            );
        }
    }

    #[test]
    fn the_form_is_coarser_than_every_case_mapping_of_one_character() {
        let cases = CaseMapper::new();
        for c in '\0'..=char::MAX {
            // The filler keeps a dropped character from becoming the name of separators alone.
            let name = |text: String| format!("a{text}b");
            let original = name(c.into());
            let mapped = [
                cases.simple_fold(c),
                cases.simple_lowercase(c),
                cases.simple_uppercase(c),
            ]
            .map(String::from);
            let whole = [c.to_lowercase().to_string(), c.to_uppercase().to_string()];
            for other in mapped.into_iter().chain(whole).map(name) {
                assert_eq!(
                    normal_form(&original),
                    normal_form(&other),
                    "U+{:04X}: {other}",
                    u32::from(c)
                );
            }
        }
    }

    #[test]
    fn the_form_is_coarser_than_every_normalization_of_one_character() {
        for c in '\0'..=char::MAX {
            let name = format!("a{c}b");
            let other = DecomposingNormalizerBorrowed::new_nfd()
                .normalize(&name)
                .into_owned();
            let compatible = ComposingNormalizerBorrowed::new_nfkc()
                .normalize(&name)
                .into_owned();
            for other in [other, compatible] {
                assert_eq!(
                    normal_form(&name),
                    normal_form(&other),
                    "U+{:04X}",
                    u32::from(c)
                );
            }
            let has_form = normal_form(&name) != "ab";
            let is_ignored = CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c);
            assert!(!(has_form && is_ignored), "U+{:04X}", u32::from(c));
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
