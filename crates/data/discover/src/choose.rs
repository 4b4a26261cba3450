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
    let list = |name: &str| {
        let longest = builtin_entries(name)
            .map(|entry| entry.chars().count())
            .max()
            .unwrap_or(0);
        (length_max.is_none_or(|max| longest <= max)).then(|| format!("pseudonym(list={name})"))
    };
    let full_names = || {
        let longest = |name| {
            builtin_entries(name)
                .map(|entry: &str| entry.chars().count())
                .max()
                .unwrap_or(0)
        };
        let longest = longest("first_names") + 1 + longest("last_names");
        (length_max.is_none_or(|max| longest <= max))
            .then(|| "pseudonym(list=full_names)".to_owned())
    };
    let some = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| Some((*text).to_owned()))
            .collect::<Vec<_>>()
    };
    let mut texts: Vec<Option<String>> = match category {
        Category::Email => some(&["email"]),
        Category::Phone => some(&["phone", "fpe"]),
        Category::FirstName => vec![list("first_names")],
        Category::LastName => vec![list("last_names")],
        Category::FullName => vec![full_names(), list("last_names")],
        Category::Username => vec![hash.clone()],
        Category::Street => vec![list("streets")],
        Category::City => vec![list("cities")],
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
