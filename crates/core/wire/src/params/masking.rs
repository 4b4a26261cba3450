//! The params of `mask`, except its document.
//!
//! Functions, paths and kinds are texts here. The masking code parses them and reports invalid
//! ones.

use sealwire_msgpack::write;

use super::declare::{Parameter, Parameters, Writer, field, own, params, rows};
use super::names;
use super::rule::{Form, MASK_LISTS, MASK_RULES, Param, Part, Rule};
use super::value::write_len;
use crate::invalid_request::InvalidRequest;
use crate::limits::{
    APP_BYTES_MAX, MASK_BYTES_MAX, MASK_ENTRIES_MAX, MASK_ENTRY_BYTES_MAX, MASK_LISTS_BYTES_MAX,
};
use crate::method::{Method, Methods};
use crate::reading::{Params, broken_rule, is_name, sanitized_name};

const UNKNOWN: Rule = UnknownFields::RULE;

names! {
    /// How `mask` handles fields that match no rule.
    #[derive(Default)]
    UnknownFields {
        /// The request fails, and the error names the field. The default, so that a forgotten field
        /// is not passed through unmasked.
        #[default]
        Refuse = "refuse",
        /// The field stays unchanged.
        Keep = "keep",
    }
}

params! {
    /// The masking rules of a `mask` request.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    Masking<'a> {
        /// The rules, 1 to 256. The first path or column rule that matches a field masks it. If
        /// none matches, the first kind rule does.
        rules: Vec<MaskRule<'a>> = required(MASK_RULES);
        /// How fields that match no rule are handled.
        unknown: UnknownFields = default(UNKNOWN "\"refuse\"");
        /// Custom lists for pseudonyms: at most 16 lists, with 10,000 texts and 262,144 bytes in
        /// total.
        lists: Vec<MaskList<'a>> = default(MASK_LISTS "none");
    }
}

/// A masking rule: fields and a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskRule<'a> {
    /// The fields of the rule.
    pub fields: RuleFields<'a>,
    /// The function, such as `email` or `partial(last=4)`. 1 to 1,024 bytes.
    pub mask: &'a str,
}

/// The fields of a rule. Texts have 1 to 1,024 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleFields<'a> {
    /// The fields at a path, as in `select`.
    Path(&'a str),
    /// The fields under a key of this name, at any depth.
    Column(&'a str),
    /// Strings that look like a value of this kind: `card`, `email`, `iban`, `phone`,
    /// `national_id`, `ip_address` or `secret`.
    Kind(&'a str),
}

impl<'a> RuleFields<'a> {
    /// Returns the key on the wire and its text.
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

/// Rules and lists are read before the request is admitted, so the decoder checks every limit while
/// it reads them.
impl<'a> Parameter<'a> for Vec<MaskRule<'a>> {
    fn blank() -> Self {
        Self::new()
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        (0..params.list_len(row)?)
            .map(|index| read_rule(index, row, params))
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

fn read_rule<'a>(
    index: usize,
    param: &'static Param,
    params: &mut Params<'a>,
) -> Result<MaskRule<'a>, InvalidRequest> {
    let mut fields = None;
    let mut mask = None;
    for _ in 0..params.map_len(param)? {
        let key = params.text(param, MASK_BYTES_MAX)?;
        let selector: Option<fn(&'a str) -> RuleFields<'a>> = match key {
            "path" => Some(RuleFields::Path),
            "column" => Some(RuleFields::Column),
            "kind" => Some(RuleFields::Kind),
            "mask" => None,
            _ => {
                return Err(params.unknown_nested_key(format!(
                    "rules[{index}].{}",
                    sanitized_name(key.as_bytes())
                )));
            }
        };
        let text = params.text(param, MASK_BYTES_MAX)?;
        if text.is_empty() {
            return Err(broken_rule(param));
        }
        let is_repeated = match selector {
            Some(selector) => fields.replace(selector(text)).is_some(),
            None => mask.replace(text).is_some(),
        };
        if is_repeated {
            return Err(InvalidRequest::Rule {
                index,
                what: "must name one of path, column and kind, once, and one mask",
            });
        }
    }
    Ok(MaskRule {
        fields: fields.ok_or(InvalidRequest::Rule {
            index,
            what: "lacks a path, column or kind",
        })?,
        mask: mask.ok_or(InvalidRequest::Rule {
            index,
            what: "has no mask",
        })?,
    })
}

impl<'a> Parameter<'a> for Vec<MaskList<'a>> {
    fn blank() -> Self {
        Self::new()
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        let count = params.map_len(row)? as usize;
        if count as u64 > row.bounds.most {
            return Err(broken_rule(row));
        }
        let mut lists: Vec<MaskList<'a>> = Vec::with_capacity(count);
        let mut entries_left = MASK_ENTRIES_MAX;
        let mut bytes_left = MASK_LISTS_BYTES_MAX;
        for _ in 0..count {
            let name = params.text(row, APP_BYTES_MAX)?;
            if !is_name(name) || lists.iter().any(|list| list.name == name) {
                return Err(broken_rule(row));
            }
            let entries = params.texts(row, entries_left, MASK_ENTRY_BYTES_MAX)?;
            entries_left -= entries.len();
            let bytes = entries.iter().map(|entry| entry.len()).sum();
            bytes_left = bytes_left.checked_sub(bytes).ok_or(broken_rule(row))?;
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
