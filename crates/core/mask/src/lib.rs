//! Masking: replaces real values with values of similar form.
//!
//! [`Rules`] say which field of a document or column of a table is masked by which [`Function`],
//! without keys. [`Masks`] combine rules with keys from an app's [`MaskSecret`]. [`Masking`] masks a
//! document in a walk. [`Finding`] only reports the fields that rules would mask.
//! `docs/masking.md` lists the functions and the information that each function reveals.
//!
//! This crate does no I/O, reads no clock and does not log. Every value takes bounded work
//! ([`limits`]). A function that does not fit a value returns [`Unfit`] and never passes the value
//! through.

mod apply;
mod keys;
mod masks;
mod reference;
mod transform;

pub use apply::Unfit;
pub use keys::MaskSecret;
pub use masks::{Mask, Masks, MasksBuilder, redact};
pub use reference::reference;
pub use sealwire_mask_rules::{
    FieldDecision, Finding, Found, Function, FunctionError, Kind, Rule, RuleText, Rules,
    RulesBuilder, RulesError, Subjects, Target, Unknown, Value, detection_work, limits,
    work_of_text,
};
pub use transform::{Masking, MaskingError};
