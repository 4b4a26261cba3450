//! Params of `mask` besides its document.
//!
//! Functions, paths and kinds stay text here: whoever masks knows them, and says what is wrong with
//! one.

use sealwire_msgpack::write;

use super::declare::{Parameter, Parameters, Writer, field, own, params, rows};
use super::names;
use super::rule::{Form, MASK_LISTS, MASK_RULES, Param, Part, Rule};
use super::value::write_len;
use crate::call_error::CallError;
use crate::limits::{
    APP_BYTES_MAX, MASK_BYTES_MAX, MASK_ENTRIES_MAX, MASK_ENTRY_BYTES_MAX, MASK_LISTS_BYTES_MAX,
};
use crate::method::{Method, Methods};
use crate::reading::{Params, breaks, cleaned, is_name};

const UNKNOWN: Rule = UnknownFields::RULE;

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

params! {
    /// How `mask` masks.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    Masking<'a> {
        /// Which function masks which fields: the first rule of a path or column that names a
        /// field, then the first of a kind. 1 to 256.
        rules: Vec<MaskRule<'a>> = required(MASK_RULES);
        /// Handling of the other fields.
        unknown: UnknownFields = default(UNKNOWN "\"refuse\"");
        /// Own lists for pseudonyms. At most 16, of 10,000 texts and 262,144 bytes in all.
        lists: Vec<MaskList<'a>> = default(MASK_LISTS "none");
    }
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

/// The rules and lists are read before the call is admitted, so all of their bounds are checked as
/// they come.
impl<'a> Parameter<'a> for Vec<MaskRule<'a>> {
    fn blank() -> Self {
        Self::new()
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, CallError> {
        (0..params.count(row)?)
            .map(|index| rule(index, row, params))
            .collect()
    }

    fn write(&self, _: Form, out: &mut Vec<u8>) {
        write_len(out, self.len());
        for rule in self {
            let (key, text) = rule.fields.pair();
            write::map_len(out, 2);
            for text in [key, text, "mask", rule.mask] {
                write::str(out, text);
            }
        }
    }
}

fn rule<'a>(
    index: usize,
    param: &'static Param,
    params: &mut Params<'a>,
) -> Result<MaskRule<'a>, CallError> {
    let wrong = |what| CallError::Rule { index, what };
    let (mut fields, mut mask) = (None, None);
    for _ in 0..params.map_len(param)? {
        let key = params.text(param, MASK_BYTES_MAX)?;
        let of: Option<fn(&'a str) -> RuleFields<'a>> = match key {
            "path" => Some(RuleFields::Path),
            "column" => Some(RuleFields::Column),
            "kind" => Some(RuleFields::Kind),
            "mask" => None,
            _ => {
                return Err(
                    params.unknown_in(format!("rules[{index}].{}", cleaned(key.as_bytes())))
                );
            }
        };
        let text = params.text(param, MASK_BYTES_MAX)?;
        if text.is_empty() {
            return Err(breaks(param));
        }
        let twice = match of {
            Some(of) => fields.replace(of(text)).is_some(),
            None => mask.replace(text).is_some(),
        };
        if twice {
            return Err(wrong(
                "must name one of path, column and kind, once, and one mask",
            ));
        }
    }
    Ok(MaskRule {
        fields: fields.ok_or(wrong("names no path, column or kind"))?,
        mask: mask.ok_or(wrong("has no mask"))?,
    })
}

impl<'a> Parameter<'a> for Vec<MaskList<'a>> {
    fn blank() -> Self {
        Self::new()
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, CallError> {
        let count = params.map_len(row)? as usize;
        if count as u64 > row.bounds.most {
            return Err(breaks(row));
        }
        let mut lists: Vec<MaskList<'a>> = Vec::with_capacity(count);
        let mut entries_left = MASK_ENTRIES_MAX;
        let mut bytes_left = MASK_LISTS_BYTES_MAX;
        for _ in 0..count {
            let name = params.text(row, APP_BYTES_MAX)?;
            if !is_name(name) || lists.iter().any(|list| list.name == name) {
                return Err(breaks(row));
            }
            let entries = params.texts(row, entries_left, MASK_ENTRY_BYTES_MAX)?;
            entries_left -= entries.len();
            let bytes = entries.iter().map(|entry| entry.len()).sum();
            bytes_left = bytes_left.checked_sub(bytes).ok_or(breaks(row))?;
            lists.push(MaskList { name, entries });
        }
        Ok(lists)
    }

    fn write(&self, form: Form, out: &mut Vec<u8>) {
        write::map_len(out, u32::try_from(self.len()).unwrap_or(u32::MAX));
        for list in self {
            write::str(out, list.name);
            list.entries.write(form, out);
        }
    }
}
