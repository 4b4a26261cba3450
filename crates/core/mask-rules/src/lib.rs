//! Masking rules: which field of a document or column of a table is masked by which [`Function`].
//!
//! Programs that find values need only this crate: jobs, the Python package, the engine. The crate
//! uses no keys and masks nothing; `sealwire-mask` applies functions with an app's secret.
//! [`Finding`] reports the fields of a document that rules name. `docs/masking.md` describes rules,
//! functions and kinds.

mod finding;
mod function;
mod kinds;
pub mod limits;
mod lists;
mod lookup;
mod request;
mod rules;
mod subject;
mod value;

pub use finding::{Finding, Found};
pub use function::{
    Alphabet, FUNCTION_NAMES, Function, FunctionError, FunctionKind, Literal, NumberBounds, Period,
    REDACTED, work_of_text,
};
pub use kinds::{Kind, calling_code_digits, check_digit, iban_check_digits, luhn};
pub use lists::builtin_entries;
pub use lookup::{PathStep, index_max};
pub use request::{Column, VALUE_KEY, answers, payload, place};
pub use rules::{
    Entries, FieldDecision, Lists, Rule, RuleText, Rules, RulesBuilder, RulesError, Target,
    Unknown, detection_work,
};
pub use subject::Subjects;
pub use value::Value;
