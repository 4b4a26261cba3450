//! Chooses a masking function for a category, in the order of preference.

use sealwire_mask_rules::{Function, builtin_entries};

use crate::{Category, FieldClass, names};

/// Length of `hash` for columns that do not limit it.
const HASH_LENGTH: usize = 32;
const HASH_LENGTH_MIN: usize = 16;

/// Noise of one degree that returns valid degrees of latitude.
const LATITUDE_NOISE: &str = "noise(by=1, min=-90, max=90)";
/// Noise of one degree that returns valid degrees of longitude.
const LONGITUDE_NOISE: &str = "noise(by=1, min=-180, max=180)";

/// Returns true if the name of a location field means a latitude.
fn is_latitude(name: &str) -> bool {
    names::words(name)
        .iter()
        .any(|word| word == "lat" || word.contains("latitude"))
}

/// A source of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemandSource {
    /// A text file, whose values have the types of JSON.
    File,
    /// A database, where dates are texts, and values of arrays are whole texts.
    Database,
    /// Arrow data, where dates and decimals are texts.
    Arrow,
}

/// Requirements of a column that its masks must meet.
#[derive(Clone, Copy, Debug)]
pub struct Demands<'c> {
    /// The name of the column.
    pub name: &'c str,
    /// The class of the values.
    pub class: &'c FieldClass,
    /// True if different values must have different masks.
    pub is_unique: bool,
    /// True if a mask can be null.
    pub is_nullable: bool,
    /// The source of the values.
    pub source: DemandSource,
}

/// Returns functions in the order of preference. The caller tries each on the sample.
#[must_use]
pub fn candidates(category: Category, demands: Demands<'_>) -> Vec<Function> {
    let length_max = match demands.class {
        FieldClass::Text { characters_max } => *characters_max,
        _ => None,
    };
    let hash = length_max.unwrap_or(HASH_LENGTH).min(HASH_LENGTH);
    let hash = (hash >= HASH_LENGTH_MIN).then(|| format!("hash(length={hash})"));

    let mut texts: Vec<Option<String>> = match category {
        Category::Email => some(&["email"]),
        Category::Phone => some(&["phone", "fpe"]),
        Category::FirstName => vec![pseudonym("first_names", length_max)],
        Category::LastName => vec![pseudonym("last_names", length_max)],
        Category::FullName => vec![
            full_name_pseudonym(length_max),
            pseudonym("last_names", length_max),
        ],
        Category::Username => vec![hash.clone()],
        Category::Street => vec![pseudonym("streets", length_max)],
        Category::City => vec![pseudonym("cities", length_max)],
        Category::PostalCode => some(&["postal_code", "fpe", "fpe(alphabet=alphanumeric_upper)"]),
        Category::BirthDate => some(&["date_shift(within=365)", "generalize(step=10)"]),
        Category::BankAccount => some(&[
            "iban",
            "fpe",
            "fpe(alphabet=alphanumeric_upper)",
            "fpe(alphabet=alphanumeric)",
        ]),
        Category::NationalId | Category::Identifier => some(&[
            "fpe",
            "fpe(alphabet=alphanumeric_upper)",
            "fpe(alphabet=alphanumeric)",
        ]),
        Category::Card => some(&["card", "fpe"]),
        Category::Secret | Category::FreeText | Category::Photo | Category::Special => Vec::new(),
        Category::IpAddress => some(&["fixed(\"192.0.2.1\")"]),
        Category::Pay => some(&["noise(percent=10)"]),
        Category::Location if is_latitude(demands.name) => {
            some(&[LATITUDE_NOISE, LONGITUDE_NOISE, "noise(by=1)"])
        }
        Category::Location => some(&[LONGITUDE_NOISE, "noise(by=1)"]),
    };
    if demands.is_unique {
        texts.push(hash);
        texts.extend(some(&[
            "fpe",
            "fpe(alphabet=alphanumeric)",
            "date_shift(days=173)",
        ]));
    } else {
        if category.is_kept_apart() {
            texts.push(hash);
        }
        texts.extend(some(&["redact", "fixed(\"x\")", "fixed(\"\")"]));
        texts.extend(match demands.source {
            DemandSource::File => Vec::new(),
            DemandSource::Database => {
                some(&["fixed(\"{}\")", "fixed(\"1970-01-01\")", "fixed(\"0\")"])
            }
            DemandSource::Arrow => some(&[
                "fixed(\"1970-01-01\")",
                "fixed(\"1970-01-01T00:00:00Z\")",
                "fixed(\"0\")",
            ]),
        });
        if demands.is_nullable {
            texts.push(Some("null".to_owned()));
        }
    }
    texts
        .into_iter()
        .flatten()
        .filter_map(|text| text.parse().ok())
        .collect()
}

/// Returns the function that selects from a list, if the entries fit in `length_max` characters.
fn pseudonym(list: &str, length_max: Option<usize>) -> Option<String> {
    let fits = length_max.is_none_or(|max| longest_entry(list) <= max);
    fits.then(|| format!("pseudonym(list={list})"))
}

fn full_name_pseudonym(length_max: Option<usize>) -> Option<String> {
    let longest = longest_entry("first_names") + 1 + longest_entry("last_names");
    let fits = length_max.is_none_or(|max| longest <= max);
    fits.then(|| "pseudonym(list=full_names)".to_owned())
}

/// Returns the number of characters of the longest entry of a list.
fn longest_entry(list: &str) -> usize {
    builtin_entries(list)
        .map(|entry| entry.chars().count())
        .max()
        .unwrap_or(0)
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_of_locations_is_bounded_by_their_names() {
        for (name, expected) in [
            ("latitude", LATITUDE_NOISE),
            ("home_lat", LATITUDE_NOISE),
            ("geoLatitude", LATITUDE_NOISE),
            ("longitude", LONGITUDE_NOISE),
            ("lng", LONGITUDE_NOISE),
            ("coordinates", LONGITUDE_NOISE),
            ("platform_lon", LONGITUDE_NOISE),
        ] {
            let class = &FieldClass::Number;
            let demands = Demands {
                name,
                class,
                is_unique: false,
                is_nullable: true,
                source: DemandSource::Database,
            };
            let functions = candidates(Category::Location, demands);
            assert_eq!(
                functions.first().map(Function::to_string).as_deref(),
                Some(expected),
                "{name}"
            );
        }
    }
}
