//! Votes by the values of a field: kinds, bundled lists, forms, and the spread of dates.

use std::collections::HashSet;
use std::sync::LazyLock;

use sealwire_mask_rules::{Kind, builtin_entries};

use crate::Category;
use crate::sample::Sample;

/// Minimum number of values for a vote by list or distribution.
const VALUES_MIN: usize = 20;
/// Ages in years of most persons, for recognizing dates of birth.
const AGES: std::ops::RangeInclusive<i32> = 18..=100;

/// A vote by values.
#[derive(Clone, Debug)]
pub(crate) struct ValueVote {
    pub(crate) category: Category,
    pub(crate) weight: f64,
    pub(crate) matching: usize,
    pub(crate) of: usize,
    /// The form that values have, for the evidence.
    pub(crate) form: &'static str,
}

fn lowered(list: &str) -> HashSet<String> {
    builtin_entries(list).map(str::to_lowercase).collect()
}

static FIRST_NAMES: LazyLock<HashSet<String>> = LazyLock::new(|| lowered("first_names"));
static LAST_NAMES: LazyLock<HashSet<String>> = LazyLock::new(|| lowered("last_names"));
static CITIES: LazyLock<HashSet<String>> = LazyLock::new(|| lowered("cities"));

/// Words of street addresses in several languages.
const STREET_WORDS: &[&str] = &[
    "street",
    "st",
    "st.",
    "road",
    "rd",
    "rd.",
    "avenue",
    "ave",
    "ave.",
    "lane",
    "ln",
    "drive",
    "dr",
    "dr.",
    "way",
    "boulevard",
    "blvd",
    "court",
    "ct",
    "place",
    "square",
    "terrace",
    "weg",
    "platz",
    "allee",
    "rue",
    "calle",
    "via",
    "avenida",
    "plaza",
    "paseo",
    "chemin",
    "parkway",
    "manor",
    "loop",
    "highway",
];

/// Returns all votes for a sample.
pub(crate) fn votes(sample: &Sample, this_year: i32) -> Vec<ValueVote> {
    let texts: Vec<&str> = sample.texts().collect();
    let of = texts.len();
    let mut votes = Vec::new();
    if of == 0 {
        return votes;
    }
    for kind in Kind::ALL {
        let matching = texts.iter().filter(|text| kind.knows(text)).count();
        let share = matching as f64 / of as f64;
        let (category, share_min, form) = match kind {
            Kind::Card => (Category::Card, 0.5, "the form of a card number"),
            Kind::Email => (Category::Email, 0.02, "the form of an e-mail address"),
            Kind::Iban => (Category::BankAccount, 0.02, "the form of an IBAN"),
            Kind::Phone => (Category::Phone, 0.2, "the form of a telephone number"),
            Kind::NationalId => (Category::NationalId, 0.3, "the form of a national id"),
            Kind::IpAddress => (Category::IpAddress, 0.3, "the form of an IP address"),
            Kind::Secret => (Category::Secret, 0.01, "the form of a key or token"),
        };
        if matching > 0 && share >= share_min {
            let weight = (0.7 + 0.3 * share).min(if of < 3 { 0.9 } else { 0.98 });
            votes.push(ValueVote {
                category,
                weight,
                matching,
                of,
                form,
            });
        }
    }

    let embedded = texts
        .iter()
        .filter(|text| {
            text.contains(char::is_whitespace) && text.split_whitespace().any(is_embedded)
        })
        .count();
    if embedded > 0 && embedded * 100 >= of {
        let form = "an e-mail address or a key among other words";
        votes.push(ValueVote {
            category: Category::FreeText,
            weight: 0.85,
            matching: embedded,
            of,
            form,
        });
    }

    let streets = texts.iter().filter(|text| is_street(text)).count();
    if of >= 5 && streets * 10 >= of * 4 {
        let weight = if streets * 10 >= of * 7 { 0.85 } else { 0.7 };
        let form = "the form of a street address";
        votes.push(ValueVote {
            category: Category::Street,
            weight,
            matching: streets,
            of,
            form,
        });
    }
    if of >= VALUES_MIN {
        lists(&texts, &mut votes);
        dates(&texts, this_year, &mut votes);
    }
    votes
}

fn lists(texts: &[&str], votes: &mut Vec<ValueVote>) {
    let of = texts.len();
    for (category, matching, strong, form) in [
        (
            Category::FirstName,
            count_entries(texts, &FIRST_NAMES),
            0.8,
            "an entry of the list of first names",
        ),
        (
            Category::LastName,
            count_entries(texts, &LAST_NAMES),
            0.75,
            "an entry of the list of last names",
        ),
        (
            Category::FullName,
            texts.iter().filter(|text| is_full_name(text)).count(),
            0.8,
            "a first name of the list and one to three further words",
        ),
        (
            Category::City,
            count_entries(texts, &CITIES),
            0.6,
            "an entry of the list of cities",
        ),
    ] {
        let share = matching as f64 / of as f64;
        if share >= 0.3 {
            let weight = if share >= 0.5 { strong } else { strong - 0.2 };
            votes.push(ValueVote {
                category,
                weight,
                matching,
                of,
                form,
            });
        }
    }
}

fn count_entries(texts: &[&str], list: &HashSet<String>) -> usize {
    texts
        .iter()
        .filter(|text| list.contains(&text.to_lowercase()))
        .count()
}

/// Returns true for a first name of the list and one to three further words.
fn is_full_name(text: &str) -> bool {
    let text = text.to_lowercase();
    let words: Vec<&str> = text
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    (2..=4).contains(&words.len())
        && words.iter().any(|word| FIRST_NAMES.contains(*word))
        && words.iter().all(|word| {
            word.chars()
                .all(|c| c.is_alphabetic() || matches!(c, '-' | '\'' | '.'))
        })
}

fn dates(texts: &[&str], this_year: i32, votes: &mut Vec<ValueVote>) {
    let years: Vec<i32> = texts.iter().filter_map(|text| year_of_date(text)).collect();
    if years.len() * 10 < texts.len() * 9 {
        return;
    }
    let matching = years
        .iter()
        .filter(|year| AGES.contains(&(this_year - **year)))
        .count();
    let distinct: HashSet<&&str> = texts.iter().collect();
    let span = years
        .iter()
        .max()
        .zip(years.iter().min())
        .map_or(0, |(max, min)| max - min);
    if matching * 10 >= texts.len() * 9 && span >= 25 && distinct.len() * 3 >= texts.len() {
        let form = "a date 18 to 100 years ago";
        votes.push(ValueVote {
            category: Category::BirthDate,
            weight: 0.6,
            matching,
            of: texts.len(),
            form,
        });
    }
}

/// Returns the year of an ISO date, alone or before a time.
pub(crate) fn year_of_date(text: &str) -> Option<i32> {
    let bytes = text.as_bytes();
    let is_date = are_digits(bytes, 0..4)
        && bytes.get(4) == Some(&b'-')
        && are_digits(bytes, 5..7)
        && bytes.get(7) == Some(&b'-')
        && are_digits(bytes, 8..10)
        && matches!(bytes.get(10), None | Some(b'T' | b' '));
    is_date
        .then(|| text.get(..4).and_then(|year| year.parse().ok()))
        .flatten()
}

fn are_digits(bytes: &[u8], range: std::ops::Range<usize>) -> bool {
    bytes
        .get(range)
        .is_some_and(|part| part.iter().all(u8::is_ascii_digit))
}

fn is_embedded(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_alphanumeric());
    Kind::Email.knows(word) || Kind::Secret.knows(word)
}

fn is_street(text: &str) -> bool {
    let lower = text.to_lowercase();
    text.chars().any(|c| c.is_ascii_digit())
        && lower.contains(' ')
        && lower.split_whitespace().any(is_street_word)
}

fn is_street_word(word: &str) -> bool {
    STREET_WORDS.contains(&word.trim_end_matches(','))
        || word.ends_with("straße")
        || word.ends_with("strasse")
        || word.ends_with("str.")
        || word.ends_with("gasse")
        || word.len() > 5
            && (word.ends_with("weg") || word.ends_with("platz") || word.ends_with("allee"))
}

/// Returns true if a key of a JSON object or a header of CSV looks like a value, and so must not be
/// shown.
#[must_use]
pub fn is_value_like(key: &str) -> bool {
    let digits = key.chars().filter(char::is_ascii_digit).count();
    let length = key.chars().count();
    Kind::ALL.iter().any(|kind| kind.knows(key))
        || length > 64
        || key.contains('@')
        || digits >= 6
        || length >= 24 && digits >= 4
        || year_of_date(key).is_some()
        || key.split_whitespace().any(is_embedded)
        || key.contains(char::is_whitespace) && is_name(key)
}

/// Returns true if a key of a JSON object looks like a value or is mostly digits. Such an object is
/// a map.
pub(crate) fn is_data_key(key: &str) -> bool {
    let digits = key.chars().filter(char::is_ascii_digit).count();
    is_value_like(key) || digits > 0 && digits * 2 > key.chars().count()
}

/// Returns true for two to four words if one of them is a first or last name in the lists.
fn is_name(text: &str) -> bool {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    (2..=4).contains(&words.len())
        && words
            .iter()
            .any(|word| FIRST_NAMES.contains(*word) || LAST_NAMES.contains(*word))
}

/// Returns true if the text is an entry of a list of names of persons.
pub(crate) fn is_listed_name(text: &str) -> bool {
    let lower = text.to_lowercase();
    FIRST_NAMES.contains(&lower) || LAST_NAMES.contains(&lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_look_like_values_are_told_from_names() {
        for (key, expected) in [
            ("email", false),
            ("address2", false),
            ("first name", false),
            ("Telefonnummer", false),
            ("a@b.example", true),
            ("4111111111111111", true),
            ("192.0.2.1", true),
            ("2024-02-29", true),
            ("9f8b3c1e-52d4-4b7a-9d0e-0c1f2a3b4c5d", true),
            ("42", false),
            ("2023", false),
            ("Anna Smith", true),
        ] {
            assert_eq!(is_value_like(key), expected, "{key}");
        }
        for (key, expected) in [
            ("42", true),
            ("2023", true),
            ("address2", false),
            ("", false),
        ] {
            assert_eq!(is_data_key(key), expected, "{key}");
        }
    }

    #[test]
    fn streets_and_dates_have_a_form() {
        for (text, expected) in [
            ("12 Main Street", true),
            ("Hauptstraße 5", true),
            ("5 rue de Lyon", true),
            ("Main Street", false),
            ("12 apples", false),
        ] {
            assert_eq!(is_street(text), expected, "{text}");
        }
        for (text, expected) in [
            ("1980-01-02", Some(1980)),
            ("1980-01-02 03:04:05+00", Some(1980)),
            ("1980-1-2", None),
            ("1980-01-020", None),
            ("é980-01-02", None),
        ] {
            assert_eq!(year_of_date(text), expected, "{text}");
        }
    }
}
