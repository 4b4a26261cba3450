//! Masking: replaces real values with values of similar form.
//!
//! [`Rules`] say which field of a document or column of a table is masked by which [`Function`]; they hold no key.
//! [`Masks`] combine rules with keys from an app's [`MaskSecret`]. [`Masking`] masks a document in a walk. [`Finding`]
//! only reports the fields that rules would mask. `docs/masking.md` lists the functions and the information that each
//! function reveals.
//!
//! This crate does no I/O, reads no clock and does not log. Every value takes bounded work ([`limits`]). A function
//! that does not fit a value returns [`Unfit`] and never passes the value through.

mod apply;
mod function;
mod keys;
mod kinds;
pub mod limits;
mod lists;
mod masks;
mod reference;
mod rules;
mod subject;
mod transform;
mod value;

pub use apply::Unfit;
pub use function::{Function, FunctionError};
pub use keys::MaskSecret;
pub use kinds::Kind;
pub use masks::{Mask, Masks, redact};
pub use reference::reference;
pub use rules::{FieldDecision, Rule, RuleText, Rules, RulesError, Target, Unknown};
pub use transform::{Finding, Found, Masking, MaskingError};
pub use value::Value;
