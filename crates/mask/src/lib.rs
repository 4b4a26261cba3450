//! Masking: values that behave like the real ones without being them.
//!
//! [`Rules`] say which field of a document or column of a table is masked by which [`Function`]; they are texts and hold
//! no key. [`Masks`] are rules with an app's [`MaskSecret`], ready to be applied. [`Masking`] does it in a walk over a
//! document, [`Finding`] only tells what would be done. `docs/masking.md` lists the functions and what each gives away.
//!
//! Nothing here does I/O, reads a clock or logs. Every value takes bounded work ([`limits`]). A function that does not
//! fit a value says so ([`Unfit`]) and never lets it through.

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
pub use rules::{Rule, RuleText, Rules, RulesError, Ruling, Target, Unknown};
pub use transform::{Finding, Found, Masking, MaskingError};
pub use value::Value;
