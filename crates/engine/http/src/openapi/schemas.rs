//! JSON Schemas of parameters and results, from the rows of their tables.

use sealwire_wire::rules::Accepts;
use sealwire_wire::{
    CONTEXT_BYTES_MAX, MASK_ENTRIES_MAX, MASK_ENTRY_BYTES_MAX, Param, SELECT_PATH_BYTES_MAX,
};
use serde_json::{Map, Value, json};

/// Texts that a header can carry: visible ASCII, and spaces and tabs that are not at the ends.
const HEADER_TEXT: &str = r"^([!-~]([\t -~]*[!-~])?)?$";
/// Items of a list in a header: without commas, or in double quotes. No item is empty.
const HEADER_ITEM: &str = r#"^([!#-+\--~]([\t -+\--~]*[!-+\--~])?|"([\t !#-\[\]-~]|\\[\t -~])+")$"#;
/// Most values of the operator `in` of a clause.
const VALUES_OF_IN_MAX: u64 = 64;

/// Returns the schema of a parameter in a request object.
pub(super) fn of_param(param: &Param) -> Value {
    let bounds = param.bounds;
    let mut schema = match param.types {
        "string" => text(bounds.least, bounds.most, bounds.accepts),
        "string or binary" => {
            let mut schema = text(bounds.least, bounds.most, bounds.accepts);
            schema["x-msgpack-types"] = json!(["string", "binary"]);
            schema
        }
        "integer" => integer(bounds.least, bounds.most),
        "integer or nil" => nullable(integer(bounds.least, bounds.most)),
        "boolean" => json!({"type": "boolean"}),
        "any value" => json!({}),
        "array of strings" => {
            let items = text(1, bounds.item_bytes_max as u64, bounds.accepts);
            list(bounds.least, bounds.most, items)
        }
        "array of integers" => list(bounds.least, bounds.most, integer(1, u64::MAX)),
        "array of maps" => list(bounds.least, bounds.most, map_of_rule(param.rule)),
        "map of arrays of strings" => {
            let entries = text(1, MASK_ENTRY_BYTES_MAX as u64, Accepts::Any);
            json!({
                "type": "object",
                "maxProperties": bounds.most,
                "propertyNames": text(1, sealwire_wire::APP_BYTES_MAX as u64, Accepts::Names),
                "additionalProperties": list(1, MASK_ENTRIES_MAX as u64, entries),
            })
        }
        "array or map" => contexts(param),
        other => of_words(other),
    };
    if let Some(names) = closed_set(param.rule) {
        schema = json!({"type": "string", "enum": names});
    }
    if let Some(default) = param.default.and_then(default_value) {
        schema["default"] = default;
    }
    schema
}

/// Returns the schema of a parameter in a header.
pub(super) fn of_header(param: &Param) -> Value {
    let mut schema = of_param(param);
    // Of a list or a map, a header has the list.
    if let Some(list) = schema["oneOf"].get(0).cloned() {
        schema = list;
    }
    // A header has no nil, and no binary.
    if let Some(types) = schema["type"].as_array() {
        schema["type"] = types.iter().find(|name| *name != "null").unwrap().clone();
    }
    schema.as_object_mut().unwrap().remove("x-msgpack-types");
    match schema["type"].as_str() {
        Some("string") if schema.get("enum").is_none() && schema.get("pattern").is_none() => {
            schema["pattern"] = HEADER_TEXT.into();
        }
        Some("array") => schema["items"]["pattern"] = HEADER_ITEM.into(),
        _ => (),
    }
    schema
}

/// Returns the schema of a value of a result, of these types of the contract. Lists of maps are not
/// among them.
pub(super) fn of_result(types: &str) -> Value {
    match types {
        "integer" => json!({"type": "integer", "format": "int64", "minimum": 0}),
        "array of integers" => json!({"type": "array", "items": of_result("integer")}),
        "array of strings" => json!({"type": "array", "items": {"type": "string"}}),
        other => of_words(other),
    }
}

/// Returns the schema that also takes nil.
pub(super) fn nullable(mut schema: Value) -> Value {
    match schema.get("type") {
        Some(Value::String(name)) => schema["type"] = json!([name, "null"]),
        None if schema.as_object().is_some_and(Map::is_empty) => (),
        _ => schema = json!({"anyOf": [schema, {"type": "null"}]}),
    }
    if let Some(Value::Array(names)) = schema.get_mut("enum") {
        names.push(Value::Null);
    }
    schema
}

/// Returns an object with these properties and no others.
pub(super) fn closed_object(properties: Map<String, Value>, required: &[&str]) -> Value {
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn text(least: u64, most: u64, accepts: Accepts) -> Value {
    // The contract counts bytes. A text has at most as many characters as bytes, and it has no
    // character if it has no byte.
    assert!(
        least <= 1,
        "a number of bytes is not a number of characters"
    );
    let mut schema = json!({"type": "string"});
    if least > 0 {
        schema["minLength"] = least.into();
    }
    if most < u64::from(u32::MAX) {
        schema["maxLength"] = most.into();
    }
    match accepts {
        Accepts::Any => (),
        Accepts::Names => schema["pattern"] = "^[A-Za-z0-9._-]*$".into(),
        Accepts::Roles => schema["pattern"] = "^[a-z0-9-]*$".into(),
        Accepts::Visible => schema["pattern"] = "^[!-~]*$".into(),
        Accepts::Printable => {
            schema["pattern"] = r"^[^\u0000-\u001f\u007f-\u009f]*$".into();
        }
        Accepts::Contexts => {
            schema["not"] = json!({"pattern": format!("^{}", sealwire_wire::CONTEXT_RESERVED)});
        }
        Accepts::Only(names) => schema["enum"] = json!(names),
    }
    schema
}

/// Returns the schema of a list of contexts, or of the path to the context of each item.
fn contexts(param: &Param) -> Value {
    let bounds = param.bounds;
    let context = text(1, CONTEXT_BYTES_MAX as u64, bounds.accepts);
    let path = text(1, SELECT_PATH_BYTES_MAX as u64, Accepts::Any);
    let members = [("path".to_owned(), path)].into_iter().collect();
    json!({"oneOf": [list(bounds.least, bounds.most, context), closed_object(members, &["path"])]})
}

/// Returns the schema of a header that carries a path.
pub(super) fn of_path_header() -> Value {
    let mut schema = text(1, SELECT_PATH_BYTES_MAX as u64, Accepts::Any);
    schema["pattern"] = HEADER_TEXT.into();
    schema
}

fn integer(least: u64, most: u64) -> Value {
    let format = if most > i64::MAX as u64 {
        "uint64"
    } else if most > i32::MAX as u64 {
        "int64"
    } else {
        "int32"
    };
    json!({"type": "integer", "format": format, "minimum": least, "maximum": most})
}

fn list(least: u64, most: u64, items: Value) -> Value {
    json!({"type": "array", "minItems": least, "maxItems": most, "items": items})
}

/// Returns the schema of types in the words of the contract, such as "array or map".
fn of_words(types: &str) -> Value {
    let names: Vec<&str> = types
        .split(" or ")
        .map(|word| match word {
            "string" | "boolean" | "integer" | "array" => word,
            "map" => "object",
            "nil" => "null",
            other => panic!("a schema of type {other:?} is missing here"),
        })
        .collect();
    let mut schema = match names[..] {
        [name] => json!({"type": name}),
        _ => json!({"type": names}),
    };
    if names.contains(&"object") {
        schema["additionalProperties"] = true.into();
    }
    if names.contains(&"array") {
        schema["items"] = json!({});
    }
    schema
}

/// Returns the schema of a map in a list, by the rule of the list.
fn map_of_rule(rule: &str) -> Value {
    let (_, members) = rule
        .split_once(" maps of ")
        .or_else(|| rule.split_once(", each a "))
        .unwrap_or_else(|| panic!("no members of a map in the rule {rule:?}"));
    if members.ends_with("names to values") {
        return json!({"type": "object", "additionalProperties": true});
    }
    let (members, bytes) = match members.split_once(", of 1 to ") {
        Some((members, bytes)) => (members, bytes.trim_end_matches(" bytes").parse().ok()),
        None => (members, None),
    };
    if let Some((required, optional)) = members.split_once(", and optionally ") {
        let required: Vec<&str> = required.split(", ").collect();
        return map_of_members(&required, &[optional], bytes);
    }
    let (required, alternatives) = members
        .split_once(" and one of ")
        .unwrap_or_else(|| panic!("no members of a map in {members:?}"));
    let objects = alternatives
        .split(", ")
        .map(|alternative| map_of_members(&[required, alternative], &[], bytes));
    json!({"oneOf": objects.collect::<Vec<_>>()})
}

fn map_of_members(required: &[&str], optional: &[&str], bytes_max: Option<u64>) -> Value {
    let names = required.iter().chain(optional);
    let properties = names.map(|name| ((*name).to_owned(), of_member(name, bytes_max)));
    closed_object(properties.collect(), required)
}

/// Returns the schema of a member of a map whose rule gives no types.
fn of_member(name: &str, bytes_max: Option<u64>) -> Value {
    match name {
        "set" => json!({"type": "object", "additionalProperties": true}),
        "if_version" => integer(0, u64::MAX),
        "eq" => json!({}),
        "in" => list(1, VALUES_OF_IN_MAX, json!({})),
        "id" | "property" | "prefix" | "mask" | "path" | "column" | "kind" => match bytes_max {
            Some(most) => text(1, most, Accepts::Any),
            None => json!({"type": "string"}),
        },
        other => panic!("the type of the member {other:?} is missing here"),
    }
}

/// Returns the names of a rule such as `"a" or "b"`.
fn closed_set(rule: &str) -> Option<Vec<&str>> {
    rule.split(" or ")
        .map(|name| name.strip_prefix('"')?.strip_suffix('"'))
        .collect()
}

/// Returns the default if it is a value. Other defaults are texts for people.
fn default_value(text: &str) -> Option<Value> {
    let is_value = text.starts_with('"') || text.parse::<u64>().is_ok();
    (is_value || matches!(text, "true" | "false")).then(|| serde_json::from_str(text).unwrap())
}

#[test]
fn rules_of_lists_give_the_members_of_maps() {
    let members = |schema: &Value| {
        let properties = schema["properties"].as_object().unwrap();
        properties.keys().cloned().collect::<Vec<_>>()
    };
    let change = map_of_rule("1 to 500 maps of id, set, and optionally if_version");
    assert_eq!(members(&change), ["id", "if_version", "set"]);
    assert_eq!(change["required"], json!(["id", "set"]));
    let rule = map_of_rule("1 to 9 rules, each a mask and one of path, kind, of 1 to 1024 bytes");
    assert_eq!(members(&rule["oneOf"][1]), ["kind", "mask"]);
    assert_eq!(rule["oneOf"][1]["properties"]["kind"]["maxLength"], 1024);
    let open = map_of_rule("1 to 500 maps of property names to values");
    assert_eq!(open["additionalProperties"], true);
}

#[test]
fn closed_sets_are_rules_of_quoted_names_only() {
    assert_eq!(closed_set("\"a\" or \"b-c\""), Some(vec!["a", "b-c"]));
    assert_eq!(closed_set("\"a\""), Some(vec!["a"]));
    assert_eq!(closed_set("1 to 6 of \"a\" or \"b\""), None);
    assert_eq!(closed_set("true or false"), None);
}
