//! Combines the votes for one field into a category, a confidence and the evidence.

use std::collections::HashSet;

use crate::names::{self, NameVote};
use crate::sample::{Sample, ValueType};
use crate::values::{self, ValueVote};
use crate::{Category, FieldClass};

/// Minimum number of values that can contradict a name.
const CONTRADICTION_MIN: usize = 5;
const CONFIDENCE_MAX: f64 = 0.99;
/// Number of values from which few distinct values mean that they are not names of persons.
const REPEATED_MIN: usize = 20;
/// Minimum number of distinct values among [`REPEATED_MIN`] or more values that can be names of
/// persons.
const DISTINCT_MIN: usize = 3;

/// The judgement on one field.
#[derive(Clone, Debug)]
pub struct Judgement {
    /// The most likely category.
    pub category: Option<Category>,
    /// Between 0 and 1.
    pub confidence: f64,
    /// The reasons, without values.
    pub evidence: Vec<String>,
}

/// Judges a field by its name, table, class and values.
#[must_use]
pub fn judge(
    name: &str,
    table: &str,
    class: &FieldClass,
    sample: &Sample,
    this_year: i32,
) -> Judgement {
    let by_name = names::vote(name, table).filter(|vote| class.can_hold(vote.category));
    let mut by_value = values::votes(sample, this_year);
    by_value.retain(|vote| class.can_hold(vote.category));
    if names::is_of_persons(table) {
        by_value
            .iter_mut()
            .filter(|vote| matches!(vote.category, Category::BirthDate | Category::City))
            .for_each(|vote| vote.weight += 0.15);
    }
    if *class == FieldClass::Inet {
        let of = sample.values.len();
        let form = "the type of an IP address";
        by_value.push(ValueVote {
            category: Category::IpAddress,
            weight: 0.95,
            matching: of,
            of,
            form,
        });
    }
    let best = by_value
        .iter()
        .max_by(|a, b| a.weight.total_cmp(&b.weight))
        .cloned();
    let mut evidence = Vec::new();
    let (category, mut confidence) = match (by_name, best) {
        (None, None) => (None, 0.0),
        (None, Some(vote)) => {
            evidence.push(told(&vote));
            (Some(vote.category), vote.weight)
        }
        (Some(vote), best) => {
            evidence.push(format!("name: contains `{}`", vote.word));
            let agreeing = by_value
                .iter()
                .find(|other| other.category.is_like(vote.category));
            match (agreeing, best) {
                (Some(other), _) => {
                    evidence.push(told(other));
                    (
                        Some(vote.category),
                        1.0 - (1.0 - vote.weight) * (1.0 - other.weight),
                    )
                }
                // Values of another strict form outweigh the name.
                (None, Some(other)) if other.weight >= 0.85 && !other.category.is_name() => {
                    evidence.push(told(&other));
                    (Some(other.category), other.weight)
                }
                (None, _) => {
                    let weight = by_name_alone(vote, class, sample, &mut evidence);
                    (Some(vote.category), weight)
                }
            }
        }
    };
    if confidence < 0.4 && sample.long * 2 > sample.seen {
        let evidence = vec![format!(
            "{} of {} values were too long to be read",
            sample.long, sample.seen
        )];
        return Judgement {
            category: Some(Category::FreeText),
            confidence: 0.4,
            evidence,
        };
    }
    let texts: HashSet<&str> = sample.texts().collect();
    if texts.len() == 1 && sample.values.len() >= 50 && by_name.is_none_or(|vote| vote.weight < 0.8)
    {
        evidence.push("all sampled values are equal".to_owned());
        confidence *= 0.6;
    }
    Judgement {
        category,
        confidence: confidence.min(CONFIDENCE_MAX),
        evidence,
    }
}

fn told(vote: &ValueVote) -> String {
    format!("{} of {} values have {}", vote.matching, vote.of, vote.form)
}

/// Lowers the weight of a name whose values contradict it.
fn by_name_alone(
    vote: NameVote,
    class: &FieldClass,
    sample: &Sample,
    evidence: &mut Vec<String>,
) -> f64 {
    let texts: Vec<&str> = sample.texts().collect();
    if texts.len() < CONTRADICTION_MIN {
        let sampled = if texts.is_empty() {
            "no values".to_owned()
        } else {
            format!("only {} values", texts.len())
        };
        evidence.push(format!("{sampled} to judge by"));
        return vote.weight;
    }
    let matching = texts
        .iter()
        .filter(|text| is_plausible(vote.category, text));
    let share = matching.count() as f64 / texts.len() as f64;
    if share < 0.3 && !matches!(class, FieldClass::Date) {
        evidence.push(format!(
            "few values have the form of {}",
            vote.category.title()
        ));
        return vote.weight * 0.4;
    }
    let distinct = texts.iter().collect::<HashSet<_>>().len();
    if texts.len() >= REPEATED_MIN && distinct < DISTINCT_MIN && is_of_many(vote.category) {
        evidence.push(format!(
            "only {distinct} distinct values, which cannot tell persons apart"
        ));
        return vote.weight * 0.4;
    }
    evidence.push("the values do not contradict the name".to_owned());
    vote.weight
}

/// Returns true if a text can be a value of a category.
fn is_plausible(category: Category, text: &str) -> bool {
    let digits = text.chars().filter(char::is_ascii_digit).count();
    let has_letters = text.chars().any(char::is_alphabetic);
    let is_date = values::year_of_date(text).is_some();
    match category {
        Category::Email => text.contains('@'),
        Category::Phone => digits >= 3,
        Category::BirthDate => is_date || digits >= 4,
        Category::Card => digits >= 12,
        Category::BankAccount | Category::NationalId => digits >= 4,
        Category::PostalCode => text.len() <= 12 && !is_date,
        Category::FirstName | Category::LastName | Category::FullName => digits <= 1 && has_letters,
        Category::City => digits <= 2 && has_letters,
        Category::Street => !is_date,
        Category::Username | Category::Secret | Category::Special => {
            !is_date && !matches!(text, "true" | "false")
        }
        // SQL writes money with a currency sign and separators.
        Category::Pay => digits > 0 && !has_letters,
        Category::Location => text.parse::<f64>().is_ok(),
        Category::IpAddress => text.contains(['.', ':']),
        Category::Identifier | Category::FreeText | Category::Photo => true,
    }
}

/// Returns true for categories whose values are about as numerous as the persons.
fn is_of_many(category: Category) -> bool {
    category.is_name() || matches!(category, Category::Username | Category::Street)
}

/// Returns the class of a field of a file, by the types and texts of its values.
#[must_use]
pub fn class_of(sample: &Sample) -> FieldClass {
    if sample.is_all(ValueType::Boolean) {
        return FieldClass::Boolean;
    }
    if sample.is_all(ValueType::Number) {
        return FieldClass::Number;
    }
    FieldClass::Text {
        characters_max: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_need_distinct_values_and_tables_of_persons() {
        let attributes: &[&str] = &["phoneNumber", "locale"];
        let persons: &[&str] = &["Xaver Quill", "Ora Vint", "Ulf Marn", "Ida Sool"];
        for (name, table, values, count, is_sensitive) in [
            ("name", "user_attribute", attributes, 2, false),
            ("name", "user_attribute", attributes, 100, false),
            ("name", "user_attribute", persons, 100, false),
            ("name", "customer_settings", attributes, 4, false),
            ("name", "users", attributes, 100, false),
            ("full_name", "t", attributes, 100, false),
            ("name", "users", persons, 100, true),
            ("name", "users", persons, 2, true),
            ("full_name", "user_attribute", persons, 100, true),
            ("email", "user_attribute", &["a@mail.test"], 100, true),
        ] {
            let mut sample = Sample::new(200, 7);
            (0..count).for_each(|at| sample.add(ValueType::Text, values[at % values.len()]));
            let class = FieldClass::Text {
                characters_max: None,
            };
            let judged = judge(name, table, &class, &sample, 2025);
            assert_eq!(
                judged.confidence >= 0.5,
                is_sensitive,
                "{table}.{name} of {count}: {judged:?}"
            );
        }
    }

    #[test]
    fn amounts_of_money_are_pay() {
        for (values, is_sensitive) in [
            (
                ["$1,234.00", "$2,000.50", "-$3.00", "4.500,00 €", "$5.00"],
                true,
            ),
            (["1234.00", "2000.50", "3", "4500", "5"], true),
            (["low", "high", "low", "mid", "high"], false),
        ] {
            let mut sample = Sample::new(10, 7);
            values
                .iter()
                .for_each(|text| sample.add(ValueType::Text, text));
            let judged = judge("salary", "employees", &FieldClass::Number, &sample, 2025);
            assert_eq!(judged.confidence >= 0.5, is_sensitive, "{judged:?}");
        }
    }
}
