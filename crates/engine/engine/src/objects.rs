//! Collections of objects as requests use them: schema, keys, and the ids of objects.

use std::sync::Arc;

use crate::apps::CachedApp;
use crate::jobs::error::RequestFailure;
use crate::jobs::masks::disclosure::{Disclosure, RoleMasks};
use sealwire_access::{MaskText, PropertyAccess, ValueVisibility};
use sealwire_crypto::AppKeys;
use sealwire_records::objects::{ObjectKeys, Property, Schema};
use sealwire_records::token::TokenKeys;
use sealwire_store::{MapId, MapView, ObjectId};

/// A collection of objects.
#[derive(Debug)]
pub struct ObjectCollection {
    /// The app's keys of suites, which open old records.
    pub(crate) keys: Arc<AppKeys>,
    /// The keys of index terms.
    pub(crate) object_keys: Arc<ObjectKeys>,
    /// The app's token keys, which seal and open objects. Masks are derived from them.
    pub(crate) token_keys: Arc<TokenKeys>,
    /// Names its rows.
    pub(crate) map: MapId,
    /// The schema.
    pub(crate) schema: Arc<Schema>,
}

/// A collection of objects as a request found it.
#[derive(Clone, Debug)]
pub(crate) struct LocatedObjects {
    /// The generation of the lookup.
    pub(crate) generation: u64,
    /// The collection.
    pub(crate) collection: Arc<ObjectCollection>,
    /// The collection's app.
    pub(crate) app: Arc<CachedApp>,
}

impl LocatedObjects {
    /// Returns the map and the generation of its schema, as requests to the store name them.
    pub(crate) fn view(&self) -> MapView {
        MapView {
            map: self.collection.map,
            generation: self.generation,
        }
    }
}

impl ObjectCollection {
    /// Returns the properties that a request reads, each with the form of its values. `named`: the
    /// properties that the request names. `masked`: values must pass through a mask.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Denied`] for a named property that is not granted, [`RequestFailure::Param`] for
    /// one that does not exist, and [`RequestFailure::RoleMask`].
    pub(crate) fn disclosed(
        &self,
        named: Option<&[&str]>,
        masked: bool,
        access: &PropertyAccess,
        denied: impl Fn(&str) -> RequestFailure,
        masks: &RoleMasks,
    ) -> Result<Vec<DisclosedProperty>, RequestFailure> {
        let mut disclosed = Vec::new();
        let Some(names) = named else {
            for property in &self.schema.properties {
                if let Some(visibility) = access.read(property.name.as_str()) {
                    disclosed.push(self.disclosed_property(property, visibility, masked, masks)?);
                }
            }
            return Ok(disclosed);
        };

        for (at, name) in names.iter().enumerate() {
            let visibility = access.read(name).ok_or_else(|| denied(name))?;
            let unknown = RequestFailure::Param {
                name: "properties",
                rule: "must name properties of the collection, each once",
            };
            if names[..at].contains(name) {
                return Err(unknown);
            }
            let property = self.schema.property(name).ok_or(unknown)?;
            disclosed.push(self.disclosed_property(property, visibility, masked, masks)?);
        }
        Ok(disclosed)
    }

    fn disclosed_property(
        &self,
        property: &Property,
        visibility: ValueVisibility<'_>,
        masked: bool,
        masks: &RoleMasks,
    ) -> Result<DisclosedProperty, RequestFailure> {
        let default_mask;
        let visibility = match visibility {
            ValueVisibility::Clear if masked => {
                default_mask = MaskText::new(property.property_type.default_mask())
                    .map_err(|error| RequestFailure::RoleMask(error.to_string()))?;
                ValueVisibility::Masked(&default_mask)
            }
            visibility => visibility,
        };

        Ok(DisclosedProperty {
            number: property.number,
            name: property.name.as_str().to_owned(),
            disclosure: masks.disclosure(visibility, &self.token_keys)?,
        })
    }
}

/// A property that a response has.
#[derive(Clone, Debug)]
pub(crate) struct DisclosedProperty {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) disclosure: Disclosure,
}

/// Creates the id of an object that a request adds, a UUID of version 7 (RFC 9562, sections 5.7 and
/// 6.2, method 1). The objects of a request are in its order, and those of later requests behind
/// them. `ms`: time of the request, in milliseconds since 1970-01-01 UTC. `position`: index of the
/// object in the request, below 4,096.
pub(crate) fn new_id(ms: u64, position: usize) -> ObjectId {
    let mut id: [u8; 16] = rand::random();
    id[..6].copy_from_slice(&ms.to_be_bytes()[2..]);
    id[6] = 0x70 | (position >> 8) as u8 & 0x0f;
    id[7] = position as u8;
    id[8] = 0x80 | id[8] & 0x3f;
    ObjectId(id)
}

/// Formats an id as a UUID.
pub(crate) fn id_text(id: ObjectId) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(id.0));
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

/// Parses an id in the form that [`id_text`] gives.
pub(crate) fn parse_id(text: &str) -> Option<ObjectId> {
    let hex: String = text.split('-').collect();
    let is_hex = hex.len() == 32
        && hex
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let id = ObjectId(
        u128::from_str_radix(&hex, 16)
            .ok()
            .filter(|_| is_hex)?
            .to_be_bytes(),
    );
    (id_text(id) == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_uuid_of_version_7_in_one_form() {
        let id = new_id(1_800_000_000_000, 0x123);
        let text = id_text(id);
        assert_eq!(&text[..18], "01a3185c-5000-7123");
        assert!(id < new_id(1_800_000_000_000, 0x124) && id < new_id(1_800_000_000_001, 0));
        assert_eq!(
            (text.len(), text.as_bytes()[14], parse_id(&text)),
            (36, b'7', Some(id))
        );
        assert!(matches!(text.as_bytes()[19], b'8' | b'9' | b'a' | b'b'));
        let zeros = "00000000-0000-0000-0000-000000000000";
        assert_eq!(parse_id(zeros), Some(ObjectId([0; 16])));
        for wrong in [
            "",
            &text.to_uppercase(),
            &text.replace('-', ""),
            &format!("{text}0"),
            &zeros.replace("0-0", "-00"),
            "é",
        ] {
            assert!(parse_id(wrong).is_none(), "{wrong}");
        }
    }
}
