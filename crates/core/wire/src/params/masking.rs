//! Params of `mask` besides its document.
//!
//! Functions, paths and kinds stay text here: whoever masks knows them, and says what is wrong with
//! one.

use super::names;

names! {
    /// Handling of fields that no rule names.
    #[derive(Default)]
    UnknownFields {
        /// The call fails, and says which field. The default: what nobody thought of does not pass
        /// by silence.
        #[default]
        Refuse = "refuse",
        /// It stays as it came.
        Keep = "keep",
    }
}

/// How `mask` masks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Masking<'a> {
    /// Which function masks which fields: the first rule of a path or column that names a field,
    /// then the first of a kind. 1 to 256.
    pub rules: Vec<MaskRule<'a>>,
    /// Handling of the other fields.
    pub unknown: UnknownFields,
    /// Own lists for pseudonyms. At most 16, of 10,000 texts and 262,144 bytes in all.
    pub lists: Vec<MaskList<'a>>,
}

/// One rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskRule<'a> {
    /// The fields it is for.
    pub fields: RuleFields<'a>,
    /// The function, such as `email` or `partial(last=4)`. 1 to 1,024 bytes.
    pub mask: &'a str,
}

/// Which fields a rule is for. Texts of 1 to 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleFields<'a> {
    /// Those at a path, as in `select`.
    Path(&'a str),
    /// Those under a key of that name, at any depth.
    Column(&'a str),
    /// Strings that look like one: `card`, `email`, `iban`, `phone`, `national_id`, `ip_address` or
    /// `secret`.
    Kind(&'a str),
}

impl<'a> RuleFields<'a> {
    /// The key on the wire, and its text.
    pub const fn pair(&self) -> (&'static str, &'a str) {
        match self {
            Self::Path(text) => ("path", text),
            Self::Column(text) => ("column", text),
            Self::Kind(text) => ("kind", text),
        }
    }
}

/// A list that pseudonyms are taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskList<'a> {
    /// The name that rules use: `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub name: &'a str,
    /// The pseudonyms, 1 to 256 bytes each.
    pub entries: Vec<&'a str>,
}
