//! The params that describe the properties of objects.

use super::Suite;
use super::declare::{Parameter, Parameters, Writer, field, own, params, rows};
use super::rule::{Form, PROPERTIES, PROPERTY_NAMES, Param, Part, Rule};
use super::value::write_len;
use crate::invalid_request::InvalidRequest;
use crate::limits::{DESCRIPTION_BYTES_MAX, NAME_BYTES_MAX, PREFIXES_MAX};
use crate::map::Map;
use crate::method::{Method, Methods};
use crate::reading::{Params, broken_rule, sanitized_name};

const SUITE: Rule = Suite::RULE;

params! {
    /// A change of the schema of a collection of objects. Changes apply at once.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    AlterCollection<'a> {
        /// Properties to add, which must be nullable.
        add: Vec<PropertySpec<'a>> = default(PROPERTIES "none");
        /// Names of properties to remove.
        drop: Vec<&'a str> = default(PROPERTY_NAMES "none");
        /// Names of properties that lose their uniqueness: several objects can then have the same
        /// value.
        allow_duplicates: Vec<&'a str> = default(PROPERTY_NAMES "none");
        /// Names of properties that become nullable.
        allow_null: Vec<&'a str> = default(PROPERTY_NAMES "none");
        /// Names of properties that lose their index: queries cannot use them any more.
        drop_index: Vec<&'a str> = default(PROPERTY_NAMES "none");
        /// The suite that seals new objects; `None`: unchanged.
        suite: Option<Suite> = optional(SUITE "unchanged");
    }
}

/// A property of a request to create or change a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertySpec<'a> {
    /// The name of the property.
    pub name: &'a str,
    /// The name of the property's type.
    pub property_type: &'a str,
    /// True if an object can be without a value. The default.
    pub nullable: bool,
    /// True if at most one object can have a value.
    pub unique: bool,
    /// True if objects can be found by a value.
    pub index: bool,
    /// Bits of a truncated index, 8 to 16; `None`: all.
    pub bits: Option<u8>,
    /// Lengths, in characters, of prefixes by which objects can be found.
    pub prefixes: Vec<u8>,
    /// True if the operator accepts what prefixes leak.
    pub accept_leak: bool,
    /// False if values are stored in the clear. The default is true.
    pub encrypted: bool,
    /// A text for people.
    pub description: &'a str,
}

impl<'a> PropertySpec<'a> {
    /// A property with the defaults.
    pub fn new(name: &'a str, property_type: &'a str) -> Self {
        Self {
            name,
            property_type,
            nullable: true,
            unique: false,
            index: false,
            bits: None,
            prefixes: Vec::new(),
            accept_leak: false,
            encrypted: true,
            description: "",
        }
    }
}

impl<'a> Parameter<'a> for Vec<PropertySpec<'a>> {
    fn blank() -> Self {
        Self::new()
    }

    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest> {
        (0..params.list_len(row)?)
            .map(|index| read_property(index, row, params))
            .collect()
    }

    fn write(&self, _: Form, out: &mut Vec<u8>) {
        write_len(out, self.len());
        for property in self {
            let mut map = Map::begin(out);
            map.text("name", property.name);
            map.text("type", property.property_type);
            map.flag("nullable", (!property.nullable).then_some(false));
            map.flag("unique", property.unique.then_some(true));
            map.flag("index", property.index.then_some(true));
            map.number("bits", property.bits.map(u64::from));
            if !property.prefixes.is_empty() {
                map.numbers(
                    "prefixes",
                    &property
                        .prefixes
                        .iter()
                        .map(|length| u64::from(*length))
                        .collect::<Vec<_>>(),
                );
            }
            map.flag("accept_leak", property.accept_leak.then_some(true));
            map.flag("encrypted", (!property.encrypted).then_some(false));
            map.optional_text(
                "description",
                Some(property.description).filter(|text| !text.is_empty()),
            );
        }
    }
}

fn read_property<'a>(
    index: usize,
    param: &'static Param,
    params: &mut Params<'a>,
) -> Result<PropertySpec<'a>, InvalidRequest> {
    let mut spec = PropertySpec::new("", "");
    let mut seen: Vec<&str> = Vec::new();
    for _ in 0..params.map_len(param)? {
        let key = params.text(param, NAME_BYTES_MAX)?;
        if seen.contains(&key) {
            return Err(InvalidRequest::DuplicateKey { key: param.name });
        }
        seen.push(key);
        match key {
            "name" => spec.name = params.text(param, NAME_BYTES_MAX)?,
            "type" => spec.property_type = params.text(param, NAME_BYTES_MAX)?,
            "nullable" => spec.nullable = params.flag(param)?,
            "unique" => spec.unique = params.flag(param)?,
            "index" => spec.index = params.flag(param)?,
            "bits" if params.reader.take_nil() => spec.bits = None,
            "bits" => spec.bits = Some(params.number_within(param, 8..=16)? as u8),
            "prefixes" => spec.prefixes = read_prefixes(param, params)?,
            "accept_leak" => spec.accept_leak = params.flag(param)?,
            "encrypted" => spec.encrypted = params.flag(param)?,
            "description" => spec.description = params.text(param, DESCRIPTION_BYTES_MAX)?,
            _ => {
                let key = sanitized_name(key.as_bytes());
                return Err(params.unknown_nested_key(format!("{}[{index}].{key}", param.name)));
            }
        }
    }
    if spec.name.is_empty() || spec.property_type.is_empty() {
        return Err(broken_rule(param));
    }
    Ok(spec)
}

fn read_prefixes(
    param: &'static Param,
    params: &mut Params<'_>,
) -> Result<Vec<u8>, InvalidRequest> {
    let count = params.array_len(param)? as usize;
    if count > PREFIXES_MAX {
        return Err(broken_rule(param));
    }
    (0..count)
        .map(|_| {
            params
                .number_within(param, 1..=16)
                .map(|length| length as u8)
        })
        .collect()
}
