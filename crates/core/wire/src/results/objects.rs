//! The results of the methods on objects. Times are seconds since 1970-01-01 UTC.
//!
//! Values are MessagePack of any type, so these results are written and read without serde.

use std::fmt;

use sealwire_msgpack::{Malformed, TokenReader, write};
use serde::{Deserialize, Serialize};

use super::{MISSING, count, list, maps};
use crate::answer::at_end;
use crate::map::Map;

/// An object with the requested properties. `Debug` shows the count of properties only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// Its id.
    pub id: String,
    /// Number of its content, from 1.
    pub version: u64,
    /// When it was added.
    pub created: u64,
    /// When its content was changed last.
    pub updated: u64,
    /// When it expires or has expired; `None`: never.
    pub expires: Option<u64>,
    /// When it was archived.
    pub archived: Option<u64>,
    /// Its tags, sorted.
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
pub struct Objects {
    /// In the order of the request, or by id; `None` where there is no such object.
    pub objects: Vec<Option<Object>>,
    /// Cursor of the next page; `None` at the end.
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// An object that was added or changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectVersion {
    /// Its id.
    pub id: String,
    /// Number of its content.
    pub version: u64,
}

/// The result of `objects.add` and `objects.update`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsChanged {
    /// In the order of the request.
    pub objects: Vec<ObjectVersion>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of `subjects.find`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectFound {
    /// The id by which the audit trail knows the subject, 32 hexadecimal digits.
    pub id: String,
    /// True if the subject has a key.
    pub known: bool,
    /// Version of the key, which is odd, or of the erasure, which is even. 0 for a subject that
    /// never had a key.
    pub version: u64,
    /// When the subject was erased last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased: Option<u64>,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// The result of `subjects.erase`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubjectErased {
    /// The id by which the audit trail knows the subject, 32 hexadecimal digits.
    pub id: String,
    /// True if this request removed the key. False if there was none, or a newer one than the
    /// request names.
    pub erased: bool,
    /// Version of the key that was removed last. To repeat the request safely, name this version in
    /// it.
    pub version: u64,
    /// Number of objects that this request removed.
    pub objects: u64,
    /// Number of tokens that this request removed.
    #[serde(default)]
    pub tokens: u64,
    /// True if no object and no token is left that was sealed under this version or an earlier one.
    /// Otherwise repeat the request, or wait for the next sweep.
    pub done: bool,
    /// The server's generation when it worked.
    pub generation: u64,
}

/// A token with its value, which `Debug` omits.
#[derive(Clone, PartialEq, Eq)]
pub struct SubjectToken {
    /// The token.
    pub token: String,
    /// Its value, in MessagePack; `None` for a one-way token.
    pub value: Option<Vec<u8>>,
    /// When it was made.
    pub created: u64,
    /// When it expires or has expired; `None`: never.
    pub expires: Option<u64>,
    /// When it was archived.
    pub archived: Option<u64>,
    /// Its tags, sorted.
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
        let (mut token, mut value, mut created, mut expires, mut archived) =
            (None, None, None, None, None);
        let mut tags = Vec::new();
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "token" => token = Some(reader.str_utf8()?.to_owned()),
                "value" => value = Some(reader.value()?.to_vec()),
                "created" => created = Some(reader.u64()?),
                "expires" => expires = Some(reader.u64()?),
                "archived" => archived = Some(reader.u64()?),
                "tags" => tags = list(reader)?,
                _ => reader.skip_value()?,
            }
        }
        let (token, created) = (token.ok_or(MISSING)?, created.ok_or(MISSING)?);
        Ok(Self {
            token,
            value,
            created,
            expires,
            archived,
            tags,
        })
    }
}

/// The result of `subjects.export`: objects or tokens of one collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectExport {
    /// The collection; empty if there is nothing.
    pub collection: String,
    /// The objects by id, with all their properties.
    pub objects: Vec<Object>,
    /// The tokens with their values.
    pub tokens: Vec<SubjectToken>,
    /// Ids of objects, and keyed hashes of tokens, that do not open.
    pub unreadable: Vec<String>,
    /// Cursor of the next page, which can be of another collection; `None` at the end.
    pub next: Option<String>,
    /// The server's generation when it worked.
    pub generation: u64,
}

maps!(ObjectsChanged, SubjectFound, SubjectErased);

impl SubjectExport {
    /// Appends it as one map.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut map = Map::begin(out);
        map.text("collection", &self.collection);
        map.key("objects");
        write::array_len(map.out, count(self.objects.len()));
        self.objects
            .iter()
            .for_each(|object| object.encode(map.out));
        if !self.tokens.is_empty() {
            map.key("tokens");
            write::array_len(map.out, count(self.tokens.len()));
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

    /// Decodes the outcome of a reply. Ignores keys that it does not know.
    ///
    /// # Errors
    /// [`Malformed`] if a key is missing that is always there, or a value has another type.
    pub fn decode(result: &[u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let (mut collection, mut objects, mut tokens, mut unreadable) =
            (None, None, Vec::new(), Vec::new());
        let (mut next, mut generation) = (None, None);
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
                "unreadable" => unreadable = list(&mut reader)?,
                "next" => next = Some(reader.str_utf8()?.to_owned()),
                "generation" => generation = Some(reader.u64()?),
                _ => reader.skip_value()?,
            }
        }
        at_end(&reader)?;
        let (collection, objects) = (collection.ok_or(MISSING)?, objects.ok_or(MISSING)?);
        Ok(Self {
            collection,
            objects,
            tokens,
            unreadable,
            next,
            generation: generation.ok_or(MISSING)?,
        })
    }
}

impl Objects {
    /// Appends it as one map.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut map = Map::begin(out);
        map.key("objects");
        write::array_len(map.out, count(self.objects.len()));
        for object in &self.objects {
            match object {
                Some(object) => object.encode(map.out),
                None => write::nil(map.out),
            }
        }
        map.optional_text("next", self.next.as_deref());
        map.number("generation", Some(self.generation));
    }

    /// Decodes the outcome of a reply. Ignores keys that it does not know.
    ///
    /// # Errors
    /// [`Malformed`] if a key is missing that is always there, or a value has another type.
    pub fn decode(result: &[u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let (mut objects, mut next, mut generation) = (None, None, None);
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "objects" => {
                    // Not reserved by the announced count: the bytes have to be there for each.
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
        at_end(&reader)?;
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
            write::array_len(map.out, count(self.tags.len()));
            self.tags.iter().for_each(|tag| write::str(map.out, tag));
        }
        map.key("properties");
        write::map_len(map.out, count(self.properties.len()));
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
                "tags" => object.tags = list(reader)?,
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
        let shown = format!("{result:?}");
        assert!(
            shown.contains("id: \"0193\", version: 3, properties: 2"),
            "{shown}"
        );
        assert!(!shown.contains("163, 97, 64, 98"), "{shown}");
    }

    #[test]
    fn objects_come_back_as_they_were() {
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
    fn objects_of_a_subject_come_back_as_they_were() {
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
    fn what_lacks_a_part_is_rejected() {
        for wrong in [
            &b"\x80"[..],
            b"\x81\xa7objects\x90",
            b"\x82\xa7objects\x91\x80\xaageneration\x01",
        ] {
            assert!(Objects::decode(wrong).is_err(), "{wrong:02x?}");
        }
    }
}
