//! Discovery of personal data and secrets, which proposes masking rules.
//!
//! A source adds the values of each field to a [`Sample`]. [`judge()`] combines votes by the
//! field's name, by the form of its values and by their distribution. [`candidates`] returns the
//! functions to try. [`Discovery`] contains names, counts and confidences, but no sampled value.
//! Sampled values stay in memory and appear in no output, error or log.
//!
//! This crate uses no keys and does no I/O. Jobs sample files and databases.

mod arrow;
mod choose;
mod field;
mod judge;
mod names;
mod path;
mod sample;
#[cfg(test)]
mod tests;
mod text;
mod values;

use std::fmt;

use sealwire_mask_rules::{Function, Target, Value};
use serde::{Serialize, Serializer};

pub use arrow::{ArrowSamples, ColumnTrial, JudgedColumns, column_trial};
pub use choose::{DemandSource, Demands, candidates};
pub use field::decide_field;
pub use judge::{Judgement, class_of, judge};
pub use names::is_of_persons;
pub use path::{MergedFields, PathPart, hide_map_keys, merge_maps, names_of, path_text};
pub use sample::{Sample, SampleRandom, VALUE_BYTES_MAX, ValueType};
pub use values::is_value_like;

/// Applies a function to a value under any key, and appends the mask as MessagePack. Returns
/// `false` if the function does not fit the value.
pub type Trial<'t> = &'t (dyn Fn(&Function, Value<'_>, &mut Vec<u8>) -> bool + Sync);

/// Settings of a discovery.
#[derive(Clone, Copy, Debug)]
pub struct DiscoverOptions {
    /// Number of values per field of a file, or of rows per table. Default 1,000.
    pub sample: usize,
    /// Confidence from which a field gets a rule, between 0 and 1. Default 0.7.
    pub min_confidence: f64,
    /// Seed of the sample. Default 1.
    pub seed: u64,
    /// The current year, by which ages are judged.
    pub this_year: i32,
}

impl DiscoverOptions {
    /// Creates the default settings.
    #[must_use]
    pub fn new(this_year: i32) -> Self {
        Self {
            sample: 1_000,
            min_confidence: 0.7,
            seed: 1,
            this_year,
        }
    }
}

/// Minimum confidence at which a field without a rule is listed as uncertain.
pub const UNCERTAIN_MIN: f64 = 0.3;

/// Maximum number of steps of all path rules, with a reserve below the limit of a selection.
pub const RULE_STEPS_MAX: usize = 108;

/// A category of sensitive data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Category {
    Email,
    Phone,
    FirstName,
    LastName,
    FullName,
    Username,
    Street,
    City,
    PostalCode,
    BirthDate,
    NationalId,
    Card,
    BankAccount,
    IpAddress,
    Secret,
    Identifier,
    Pay,
    Special,
    Location,
    FreeText,
    Photo,
}

impl Category {
    /// Returns the category as text.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Email => "an e-mail address",
            Self::Phone => "a telephone number",
            Self::FirstName => "a first name",
            Self::LastName => "a last name",
            Self::FullName => "a person's name",
            Self::Username => "a user name",
            Self::Street => "a street address",
            Self::City => "a place",
            Self::PostalCode => "a postal code",
            Self::BirthDate => "a date of birth",
            Self::NationalId => "a national id",
            Self::Card => "a card number",
            Self::BankAccount => "a bank account",
            Self::IpAddress => "an IP address",
            Self::Secret => "a secret",
            Self::Identifier => "an identifier of a person or device",
            Self::Pay => "an income",
            Self::Special => "a personal attribute",
            Self::Location => "a location",
            Self::FreeText => "text about persons",
            Self::Photo => "a picture",
        }
    }

    /// Returns the category's name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Email => "email",
            Self::Phone => "phone",
            Self::FirstName => "first_name",
            Self::LastName => "last_name",
            Self::FullName => "full_name",
            Self::Username => "username",
            Self::Street => "street",
            Self::City => "city",
            Self::PostalCode => "postal_code",
            Self::BirthDate => "birth_date",
            Self::NationalId => "national_id",
            Self::Card => "card",
            Self::BankAccount => "bank_account",
            Self::IpAddress => "ip_address",
            Self::Secret => "secret",
            Self::Identifier => "identifier",
            Self::Pay => "pay",
            Self::Special => "special",
            Self::Location => "location",
            Self::FreeText => "free_text",
            Self::Photo => "photo",
        }
    }

    fn is_name(self) -> bool {
        matches!(self, Self::FirstName | Self::LastName | Self::FullName)
    }

    fn is_like(self, other: Self) -> bool {
        self == other || self.is_name() && other.is_name()
    }

    /// Returns true if equal values must have equal masks, and different values different masks.
    fn is_kept_apart(self) -> bool {
        matches!(
            self,
            Self::Email
                | Self::Phone
                | Self::Username
                | Self::NationalId
                | Self::Card
                | Self::BankAccount
                | Self::Identifier
        )
    }
}

impl Serialize for Category {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The class of a field's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldClass {
    /// Text.
    Text {
        /// Maximum length, in characters.
        characters_max: Option<usize>,
    },
    /// Numbers.
    Number,
    /// Booleans.
    Boolean,
    /// Dates and instants.
    Date,
    /// IP addresses.
    Inet,
    /// Binary values.
    Bytes,
    /// JSON documents.
    Json,
    /// Arrays as whole texts.
    Array,
    /// Enums, UUIDs, times and all other types.
    Other,
}

impl FieldClass {
    fn can_hold(&self, category: Category) -> bool {
        match self {
            Self::Text { .. } | Self::Array | Self::Json => true,
            Self::Number => matches!(
                category,
                Category::Phone
                    | Category::PostalCode
                    | Category::BirthDate
                    | Category::NationalId
                    | Category::Card
                    | Category::BankAccount
                    | Category::Secret
                    | Category::Identifier
                    | Category::Pay
                    | Category::Location
            ),
            Self::Boolean => false,
            Self::Date => category == Category::BirthDate,
            Self::Inet => category == Category::IpAddress,
            Self::Bytes => matches!(category, Category::Photo | Category::Secret),
            Self::Other => matches!(
                category,
                Category::Special | Category::Location | Category::Identifier
            ),
        }
    }
}

/// The decision on a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldVerdict {
    /// A rule masks the field.
    Sensitive,
    /// A person must decide.
    Uncertain,
    /// The field holds nothing that must be masked.
    Harmless,
}

impl Serialize for FieldVerdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FieldVerdict {
    /// Returns the verdict's name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sensitive => "sensitive",
            Self::Uncertain => "uncertain",
            Self::Harmless => "harmless",
        }
    }
}

/// The paths of columns of Arrow data. `Debug` shows none, since the names of members can be data.
#[derive(Clone, Default)]
pub struct ColumnPaths(pub(crate) Vec<String>);

impl fmt::Debug for ColumnPaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} columns", self.0.len())
    }
}

/// A field of the source.
#[derive(Clone, Debug, Serialize)]
pub struct DiscoveredField {
    /// The path of a document's field, or the name of a column.
    pub field: String,
    /// The decision.
    pub verdict: FieldVerdict,
    /// The category, if any vote was for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// The confidence, between 0 and 1.
    pub confidence: f64,
    /// The reasons, without values.
    pub evidence: Vec<String>,
    /// The function of the rule, or the one proposed for an uncertain field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<String>,
    /// Number of values that were judged.
    pub values: usize,
    /// The target of the rule. `None` stands for the column `field`.
    #[serde(skip)]
    pub target: Option<Target>,
    /// The function that replaces `mask` if `mask` does not fit all values. `None` if no function
    /// replaces it.
    #[serde(skip)]
    pub fallback: Option<String>,
    /// The paths of the columns of Arrow data that the field stands for.
    #[serde(skip)]
    pub columns: ColumnPaths,
}

impl DiscoveredField {
    fn redact(&mut self, unfit: &str) {
        let old = std::mem::replace(&mut self.mask, self.fallback.clone()).unwrap_or_default();
        match &self.mask {
            Some(mask) => self
                .evidence
                .push(format!("`{old}` does not fit {unfit}, so `{mask}`")),
            None => {
                self.evidence.push(format!("`{old}` does not fit {unfit}"));
                self.verdict = FieldVerdict::Uncertain;
            }
        }
    }
}

/// The result of a discovery.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Discovery {
    /// All fields, in the order of the source.
    pub fields: Vec<DiscoveredField>,
    /// True if all records of a file were read.
    #[serde(skip)]
    pub read_whole: bool,
    /// Notes for the reader: limits that were reached, keys that hold data.
    pub notes: Vec<String>,
}

impl Discovery {
    /// Replaces the functions of rules that do not fit all values by constants. `unfit` are indexes
    /// of rules, each with the number of its values.
    pub fn redact(&mut self, unfit: &[(usize, u64)]) {
        let sensitive = self
            .fields
            .iter_mut()
            .filter(|field| field.verdict == FieldVerdict::Sensitive);
        for (rule, field) in sensitive.enumerate() {
            if let Some((_, values)) = unfit.iter().find(|(of, _)| *of == rule) {
                field.redact(&format!("{values} of the values"));
            }
        }
    }

    /// Replaces the function of a column of Arrow data by a constant, because the column's type
    /// does not hold a mask. Returns false if no rule with another function names the column.
    pub fn redact_column(&mut self, column: &str) -> bool {
        let field = self.fields.iter_mut().find(|field| {
            field.verdict == FieldVerdict::Sensitive
                && field.mask != field.fallback
                && field.columns.0.iter().any(|name| name == column)
        });
        field
            .map(|field| field.redact("the type of the column"))
            .is_some()
    }

    /// Returns the rules as TOML, with the evidence as comments.
    #[must_use]
    pub fn to_toml(&self) -> String {
        text::toml(self)
    }
}

/// Tries functions on values until one fits all of them.
fn first_fitting<'s>(
    functions: Vec<Function>,
    values: impl Iterator<Item = Value<'s>> + Clone,
    trial: Trial<'_>,
) -> Option<Function> {
    functions.into_iter().find(|function| {
        let mut out = Vec::new();
        values.clone().all(|value| {
            out.clear();
            trial(function, value, &mut out)
        })
    })
}
