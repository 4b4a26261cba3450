//! The rules and lists of `mask`.
//!
//! They are read before the call is admitted, so all of their bounds are checked as they come.

use super::document::OwnParams;
use super::reading::{Params, breaks, cleaned};
use crate::call_error::CallError;
use crate::limits::{
    APP_BYTES_MAX, MASK_BYTES_MAX, MASK_ENTRIES_MAX, MASK_ENTRY_BYTES_MAX, MASK_LISTS_BYTES_MAX,
    MASK_LISTS_MAX, MASK_RULES_MAX,
};
use crate::params::{MaskList, MaskRule, Masking, Param, RuleFields, UnknownFields};

impl<'a> OwnParams<'a> for Masking<'a> {
    fn read(&mut self, param: &'static Param, params: &mut Params<'a>) -> Result<(), CallError> {
        match param.name {
            "rules" => self.rules = rules(param, params)?,
            "unknown" => self.unknown = params.name(param, UnknownFields::from_name)?,
            "lists" => self.lists = lists(param, params)?,
            other => return Err(params.unknown(other.as_bytes())),
        }
        Ok(())
    }
}

pub(super) fn rules<'a>(
    param: &'static Param,
    params: &mut Params<'a>,
) -> Result<Vec<MaskRule<'a>>, CallError> {
    let count = params.array_len(param)? as usize;
    if !(1..=MASK_RULES_MAX).contains(&count) {
        return Err(breaks(param));
    }
    (0..count).map(|index| rule(index, param, params)).collect()
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

pub(super) fn lists<'a>(
    param: &'static Param,
    params: &mut Params<'a>,
) -> Result<Vec<MaskList<'a>>, CallError> {
    let count = params.map_len(param)? as usize;
    if count > MASK_LISTS_MAX {
        return Err(breaks(param));
    }
    let mut lists: Vec<MaskList<'a>> = Vec::with_capacity(count);
    let (mut entries_left, mut bytes_left) = (MASK_ENTRIES_MAX, MASK_LISTS_BYTES_MAX);
    for _ in 0..count {
        let name = params.text(param, APP_BYTES_MAX)?;
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if name.is_empty()
            || !name.bytes().all(of_name)
            || lists.iter().any(|list| list.name == name)
        {
            return Err(breaks(param));
        }
        let entries = params.texts(param, entries_left, MASK_ENTRY_BYTES_MAX)?;
        entries_left -= entries.len();
        let bytes = entries.iter().map(|entry| entry.len()).sum();
        bytes_left = bytes_left.checked_sub(bytes).ok_or(breaks(param))?;
        lists.push(MaskList { name, entries });
    }
    Ok(lists)
}
