//! The results of the methods on objects. Times are seconds since 1970-01-01 UTC.
//!
//! Values are MessagePack of any type, so these results are written and read without serde.

use std::fmt;

use sealwire_msgpack::{Malformed, TokenReader, write};
use serde::{Deserialize, Serialize};

use super::{MISSING, ResultCodec, maps, read_strings, wire_len};
use crate::map::Map;
use crate::response_decoder::expect_end;

/// An object with the requested properties. `Debug` shows the count of properties only.
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Object {
    /// The id of the object.
    pub id: String,
    /// The version of the content, from 1.
    pub version: u64,
    /// When the object was added.
    pub created: u64,
    /// When the content was changed last.
    pub updated: u64,
    /// The time of expiry, which can be in the past; `None`: never.
    pub expires: Option<u64>,
    /// The time of archiving.
    pub archived: Option<u64>,
    /// The tags, sorted.
    pub tags: Vec<String>,
    /// Property names, and one MessagePack value each. A property without a value is nil.
    pub properties: Vec<(String, Vec<u8>)>,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("id", &self.id)
            .field("version", &self.version)
            .field("properties", &self.properties.len())
            .finish_non_exhaustive()
    }
}

/// The result of `objects.get`, `objects.query` and `objects.list`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Objects {
    /// The objects in the order of the request, or by id; `None` for an object that does not exist.
    pub objects: Vec<Option<Object>>,
    /// Cursor of the next page; `None` at the end.
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// An object that was added or changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct ObjectVersion {
    /// The id of the object.
    pub id: String,
    /// The version of the content.
    pub version: u64,
}

/// The result of `objects.add` and `objects.update`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct ObjectsChanged {
    /// The objects in the order of the request.
    pub objects: Vec<ObjectVersion>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of `subjects.find`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct SubjectFound {
    /// The id of the subject in the audit log, 32 hexadecimal digits.
    pub id: String,
    /// True if the subject has a key.
    pub known: bool,
    /// Version of the key, which is odd, or of the erasure, which is even. 0 for a subject that
    /// never had a key.
    pub version: u64,
    /// When the subject was erased last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased: Option<u64>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// The result of `subjects.erase`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct SubjectErased {
    /// The id of the subject in the audit log, 32 hexadecimal digits.
    pub id: String,
    /// True if this request removed the key. False if the subject has no key, or a newer version
    /// than the request names.
    pub erased: bool,
    /// Version of the last removed key. A repeated request is safe if it names this version.
    pub version: u64,
    /// Number of objects that this request removed.
    pub objects: u64,
    /// Number of tokens that this request removed.
    #[serde(default)]
    pub tokens: u64,
    /// True if no object and no token is left that was sealed under this version or an earlier
    /// version. Otherwise repeat the request, or wait for the next sweep.
    pub done: bool,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

/// A token with its value, which `Debug` omits.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct SubjectToken {
    /// The token.
    pub token: String,
    /// The value in MessagePack; `None` for a one-way token.
    pub value: Option<Vec<u8>>,
    /// When it was created.
    pub created: u64,
    /// The time of expiry, which can be in the past; `None`: never.
    pub expires: Option<u64>,
    /// The time of archiving.
    pub archived: Option<u64>,
    /// The tags, sorted.
    pub tags: Vec<String>,
}

impl fmt::Debug for SubjectToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectToken")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl SubjectToken {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut map = Map::begin(out);
        map.text("token", &self.token);
        if let Some(value) = &self.value {
            map.key("value");
            map.out.extend_from_slice(value);
        }
        map.number("created", Some(self.created));
        map.number("expires", self.expires);
        map.number("archived", self.archived);
        if !self.tags.is_empty() {
            map.texts(
                "tags",
                &self.tags.iter().map(String::as_str).collect::<Vec<_>>(),
            );
        }
    }

    fn read(reader: &mut TokenReader<'_>) -> Result<Self, Malformed> {
        let mut token = None;
        let mut value = None;
        let mut created = None;
        let mut expires = None;
        let mut archived = None;
        let mut tags = Vec::new();
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "token" => token = Some(reader.str_utf8()?.to_owned()),
                "value" => value = Some(reader.value()?.to_vec()),
                "created" => created = Some(reader.u64()?),
                "expires" => expires = Some(reader.u64()?),
                "archived" => archived = Some(reader.u64()?),
                "tags" => tags = read_strings(reader)?,
                _ => reader.skip_value()?,
            }
        }
        Ok(Self {
            token: token.ok_or(MISSING)?,
            value,
            created: created.ok_or(MISSING)?,
            expires,
            archived,
            tags,
        })
    }
}

/// The result of `subjects.export`: objects or tokens of one collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct SubjectExport {
    /// The collection; empty if the page has no rows.
    pub collection: String,
    /// The objects by id, with all their properties.
    pub objects: Vec<Object>,
    /// The tokens with their values.
    pub tokens: Vec<SubjectToken>,
    /// Ids of objects, and keyed hashes of tokens, that do not open.
    pub unreadable: Vec<String>,
    /// Cursor of the next page, which can be of another collection; `None` at the end.
    pub next: Option<String>,
    /// The server's generation when it handled the request.
    pub generation: u64,
}

maps!(ObjectsChanged, SubjectFound, SubjectErased);

impl ResultCodec for SubjectExport {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut map = Map::begin(out);
        map.text("collection", &self.collection);
        map.key("objects");
        write::array_len(map.out, wire_len(self.objects.len()));
        self.objects
            .iter()
            .for_each(|object| object.encode(map.out));
        if !self.tokens.is_empty() {
            map.key("tokens");
            write::array_len(map.out, wire_len(self.tokens.len()));
            self.tokens.iter().for_each(|token| token.encode(map.out));
        }
        if !self.unreadable.is_empty() {
            map.texts(
                "unreadable",
                &self
                    .unreadable
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>(),
            );
        }
        map.optional_text("next", self.next.as_deref());
        map.number("generation", Some(self.generation));
    }

    fn decode(result: &[u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let mut collection = None;
        let mut objects = None;
        let mut tokens = Vec::new();
        let mut unreadable = Vec::new();
        let mut next = None;
        let mut generation = None;
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "collection" => collection = Some(reader.str_utf8()?.to_owned()),
                "objects" => {
                    let mut found = Vec::new();
                    for _ in 0..reader.array_len()? {
                        found.push(Object::read(&mut reader)?);
                    }
                    objects = Some(found);
                }
                "tokens" => {
                    for _ in 0..reader.array_len()? {
                        tokens.push(SubjectToken::read(&mut reader)?);
                    }
                }
                "unreadable" => unreadable = read_strings(&mut reader)?,
                "next" => next = Some(reader.str_utf8()?.to_owned()),
                "generation" => generation = Some(reader.u64()?),
                _ => reader.skip_value()?,
            }
        }
        expect_end(&reader)?;
        Ok(Self {
            collection: collection.ok_or(MISSING)?,
            objects: objects.ok_or(MISSING)?,
            tokens,
            unreadable,
            next,
            generation: generation.ok_or(MISSING)?,
        })
    }
}

impl ResultCodec for Objects {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut map = Map::begin(out);
        map.key("objects");
        write::array_len(map.out, wire_len(self.objects.len()));
        for object in &self.objects {
            match object {
                Some(object) => object.encode(map.out),
                None => write::nil(map.out),
            }
        }
        map.optional_text("next", self.next.as_deref());
        map.number("generation", Some(self.generation));
    }

    fn decode(result: &[u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let mut objects = None;
        let mut next = None;
        let mut generation = None;
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "objects" => {
                    // The capacity does not follow the announced count, since a peer can announce
                    // more than it sends.
                    let mut found = Vec::new();
                    for _ in 0..reader.array_len()? {
                        found.push(if reader.take_nil() {
                            None
                        } else {
                            Some(Object::read(&mut reader)?)
                        });
                    }
                    objects = Some(found);
                }
                "next" => next = Some(reader.str_utf8()?.to_owned()),
                "generation" => generation = Some(reader.u64()?),
                _ => reader.skip_value()?,
            }
        }
        expect_end(&reader)?;
        Ok(Self {
            objects: objects.ok_or(MISSING)?,
            next,
            generation: generation.ok_or(MISSING)?,
        })
    }
}

impl Object {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut map = Map::begin(out);
        map.text("id", &self.id);
        map.number("version", Some(self.version));
        map.number("created", Some(self.created));
        map.number("updated", Some(self.updated));
        map.number("expires", self.expires);
        map.number("archived", self.archived);
        if !self.tags.is_empty() {
            map.key("tags");
            write::array_len(map.out, wire_len(self.tags.len()));
            self.tags.iter().for_each(|tag| write::str(map.out, tag));
        }
        map.key("properties");
        write::map_len(map.out, wire_len(self.properties.len()));
        for (name, value) in &self.properties {
            write::str(map.out, name);
            map.out.extend_from_slice(value);
        }
    }

    fn read(reader: &mut TokenReader<'_>) -> Result<Self, Malformed> {
        let mut object = Self::default();
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "id" => object.id = reader.str_utf8()?.to_owned(),
                "version" => object.version = reader.u64()?,
                "created" => object.created = reader.u64()?,
                "updated" => object.updated = reader.u64()?,
                "expires" => object.expires = Some(reader.u64()?),
                "archived" => object.archived = Some(reader.u64()?),
                "tags" => object.tags = read_strings(reader)?,
                "properties" => {
                    for _ in 0..reader.map_len()? {
                        let name = reader.str_utf8()?.to_owned();
                        object.properties.push((name, reader.value()?.to_vec()));
                    }
                }
                _ => reader.skip_value()?,
            }
        }
        if object.id.is_empty() || object.version == 0 {
            Err(MISSING)
        } else {
            Ok(object)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        Object {
            id: "0193".to_owned(),
            version: 3,
            created: 1,
            updated: 2,
            expires: Some(9),
            archived: None,
            tags: vec!["a".to_owned()],
            properties: vec![
                ("email".to_owned(), b"\xa3a@b".to_vec()),
                ("age".to_owned(), vec![0xc0]),
            ],
        }
    }

    #[test]
    fn debug_output_of_objects_shows_no_value() {
        let result = Objects {
            objects: vec![Some(object())],
            ..Objects::default()
        };
        let debug = format!("{result:?}");
        assert!(
            debug.contains("id: \"0193\", version: 3, properties: 2"),
            "{debug}"
        );
        assert!(!debug.contains("163, 97, 64, 98"), "{debug}");
    }

    #[test]
    fn objects_round_trip() {
        let objects = vec![
            Some(object()),
            None,
            Some(Object {
                tags: Vec::new(),
                archived: Some(4),
                ..object()
            }),
        ];
        for next in [None, Some("x".to_owned())] {
            let result = Objects {
                objects: objects.clone(),
                next,
                generation: 7,
            };
            let mut out = Vec::new();
            result.encode(&mut out);
            assert_eq!(Objects::decode(&out), Ok(result));
            assert!(Objects::decode(&out[..out.len() - 1]).is_err());
        }
    }

    #[test]
    fn subject_exports_round_trip() {
        for (collection, objects, next) in [
            ("", vec![], None),
            ("people", vec![object()], Some("x".to_owned())),
        ] {
            let unreadable = objects
                .iter()
                .map(|object: &Object| object.id.clone())
                .collect();
            let collection = collection.to_owned();
            let result = SubjectExport {
                collection,
                objects,
                unreadable,
                next,
                generation: 7,
                ..SubjectExport::default()
            };
            let mut out = Vec::new();
            result.encode(&mut out);
            assert_eq!(SubjectExport::decode(&out), Ok(result));
            assert!(SubjectExport::decode(&out[..out.len() - 1]).is_err());
        }
    }

    #[test]
    fn objects_decoder_rejects_missing_keys() {
        for wrong in [
            &b"\x80"[..],
            b"\x81\xa7objects\x90",
            b"\x82\xa7objects\x91\x80\xaageneration\x01",
        ] {
            assert!(Objects::decode(wrong).is_err(), "{wrong:02x?}");
        }
    }
}
