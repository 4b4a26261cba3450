//! JSON objects in which no member occurs twice.
//!
//! Readers of JSON differ in which of two members they use, so a token with two would mean different
//! things to them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

/// The members of an object. Objects within the values are not checked, because their content is not
/// used.
#[derive(Default)]
pub(super) struct StrictObject(pub(super) Map<String, Value>);

impl<'de> Deserialize<'de> for StrictObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = StrictObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<StrictObject, A::Error> {
        let mut object = Map::new();
        while let Some((name, value)) = members.next_entry::<String, Value>()? {
            if object.insert(name, value).is_some() {
                return Err(A::Error::custom("a member occurs twice"));
            }
        }
        Ok(StrictObject(object))
    }
}
