//! Binary format of objects, version 1: the value that the embedded store keeps under an object's
//! map and id.
//!
//! `format 1 | flags 1 | version u64 | created u64 | updated u64 | key 5 | [expires u64] |
//! [archived u64] | [subject 16]
//! | [tags] | [unique] | [terms] | sealed`. Numbers are big endian. Each bracketed part is present if its flag is set.
//! `tags` is as in `row`. `unique` and `terms` are `count u32`, then per term
//! `index u32 | hash 16`. The sealed part is the rest. The encoding is canonical: decoded bytes
//! always encode to the same bytes.

use bytes::Bytes;

use super::row::{self, Rest, encode_length, flag_if, put_tags};
use sealwire_store::{ObjectId, ObjectRow, SubjectId, Term};

const FORMAT: u8 = 1;
const EXPIRES: u8 = 1;
const ARCHIVED: u8 = 1 << 1;
const SUBJECT: u8 = 1 << 2;
const TAGS: u8 = 1 << 3;
const UNIQUE: u8 = 1 << 4;
const TERMS: u8 = 1 << 5;
/// Length of an encoded term in bytes.
const TERM_BYTES: usize = 20;

/// The bytes are not an object of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an object {0}")]
pub struct Malformed(&'static str);

impl From<row::Malformed> for Malformed {
    fn from(error: row::Malformed) -> Self {
        Self(error.0)
    }
}

/// Encodes an object without its id.
#[must_use]
pub fn encode(object: &ObjectRow) -> Vec<u8> {
    let mut out = Vec::with_capacity(object.bytes());
    out.push(FORMAT);
    out.push(
        flag_if(object.expires.is_some(), EXPIRES)
            | flag_if(object.archived.is_some(), ARCHIVED)
            | flag_if(object.subject.is_some(), SUBJECT)
            | flag_if(!object.tags.is_empty(), TAGS)
            | flag_if(!object.unique.is_empty(), UNIQUE)
            | flag_if(!object.terms.is_empty(), TERMS),
    );
    out.extend(
        [object.version, object.created, object.updated]
            .map(u64::to_be_bytes)
            .as_flattened(),
    );
    out.extend(object.key);
    out.extend(
        object
            .expires
            .iter()
            .chain(&object.archived)
            .flat_map(|time| time.to_be_bytes()),
    );
    out.extend(object.subject.iter().flat_map(|subject| subject.0));
    put_tags(&mut out, &object.tags);
    put_terms(&mut out, &object.unique);
    put_terms(&mut out, &object.terms);
    out.extend_from_slice(&object.sealed);
    out
}

/// Appends terms, or nothing if `terms` is empty.
fn put_terms(out: &mut Vec<u8>, terms: &[Term]) {
    if terms.is_empty() {
        return;
    }
    out.extend(encode_length(terms.len()));
    for term in terms {
        out.extend(term.index.to_be_bytes());
        out.extend(term.hash);
    }
}

/// Decodes the object with the given id.
///
/// # Errors
/// [`Malformed`] for any invalid bytes.
pub fn decode(id: ObjectId, bytes: &[u8]) -> Result<ObjectRow, Malformed> {
    let mut rest = Rest(bytes);
    let [format, flags] = rest.array()?;
    if format != FORMAT {
        return Err(Malformed("of an unknown version"));
    }

    if flags & !(EXPIRES | ARCHIVED | SUBJECT | TAGS | UNIQUE | TERMS) != 0 {
        return Err(Malformed("with unknown flags"));
    }

    Ok(ObjectRow {
        id,
        version: rest.u64()?,
        created: rest.u64()?,
        updated: rest.u64()?,
        key: rest.array()?,
        expires: (flags & EXPIRES != 0).then(|| rest.u64()).transpose()?,
        archived: (flags & ARCHIVED != 0).then(|| rest.u64()).transpose()?,
        subject: (flags & SUBJECT != 0)
            .then(|| rest.array().map(SubjectId))
            .transpose()?,
        tags: if flags & TAGS != 0 {
            rest.tags()?
        } else {
            Vec::new()
        },
        unique: if flags & UNIQUE != 0 {
            read_terms(&mut rest)?
        } else {
            Vec::new()
        },
        terms: if flags & TERMS != 0 {
            read_terms(&mut rest)?
        } else {
            Vec::new()
        },
        sealed: Bytes::copy_from_slice(rest.0),
    })
}

fn read_terms(rest: &mut Rest<'_>) -> Result<Vec<Term>, Malformed> {
    let count = rest.length()?;
    if count == 0 {
        return Err(Malformed("with an empty list of terms"));
    }

    // Limits the allocation for a damaged count to the number that the bytes can contain.
    let mut terms = Vec::with_capacity(count.min(rest.0.len() / TERM_BYTES));
    for _ in 0..count {
        terms.push(Term {
            index: u32::from_be_bytes(rest.array()?),
            hash: rest.array()?,
        });
    }

    Ok(terms)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn objects() -> impl Strategy<Value = ObjectRow> {
        let time = || option::of(any::<u64>());
        let term =
            || (any::<u32>(), any::<[u8; 16]>()).prop_map(|(index, hash)| Term { index, hash });
        (
            (
                any::<[u8; 16]>(),
                any::<u64>(),
                any::<u64>(),
                any::<u64>(),
                time(),
                time(),
            ),
            (
                option::of(any::<[u8; 16]>()),
                any::<[u8; 5]>(),
                vec(".{0,20}", 0..5),
            ),
            (
                vec(term(), 0..6),
                vec(term(), 0..6),
                vec(any::<u8>(), 0..200),
            ),
        )
            .prop_map(|(numbers, (subject, key, tags), (unique, terms, sealed))| {
                let (id, version, created, updated, expires, archived) = numbers;
                let (id, subject, sealed) = (ObjectId(id), subject.map(SubjectId), sealed.into());
                ObjectRow {
                    id,
                    version,
                    created,
                    updated,
                    expires,
                    archived,
                    subject,
                    key,
                    tags,
                    unique,
                    terms,
                    sealed,
                }
            })
    }

    proptest! {
        #[test]
        fn objects_survive_encoding(object in objects()) {
            prop_assert_eq!(decode(object.id, &encode(&object)), Ok(object));
        }

        #[test]
        fn decoded_bytes_have_one_form(bytes in vec(any::<u8>(), 0..200), flags in 0_u8..64) {
            let id = ObjectId([7; 16]);
            for bytes in [bytes.clone(), [&[FORMAT, flags], bytes.as_slice()].concat()] {
                if let Ok(object) = decode(id, &bytes) {
                    prop_assert_eq!(encode(&object), bytes);
                }
            }
        }

        #[test]
        fn objects_with_a_changed_byte_have_one_form(
            object in objects(),
            at in any::<prop::sample::Index>(),
            change in 1_u8..,
        ) {
            let mut bytes = encode(&object);
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            if let Ok(other) = decode(object.id, &bytes) {
                prop_assert_ne!(&other, &object);
                prop_assert_eq!(encode(&other), bytes);
            }
        }

        #[test]
        fn objects_cut_before_the_sealed_part_are_rejected(object in objects(), at in any::<prop::sample::Index>()) {
            let bytes = encode(&object);
            let cut = at.index(bytes.len() - object.sealed.len());
            prop_assert_eq!(decode(object.id, &bytes[..cut]), Err(Malformed("that is cut short")));
        }
    }

    #[test]
    fn the_form_is_the_documented_one() {
        let full = ObjectRow {
            id: ObjectId([9; 16]),
            version: 2,
            created: 3,
            updated: 4,
            expires: Some(5),
            archived: Some(6),
            subject: Some(SubjectId([7; 16])),
            key: *b"keyid",
            tags: vec!["a".to_owned(), "bc".to_owned()],
            unique: vec![Term {
                index: 1,
                hash: [8; 16],
            }],
            terms: vec![
                Term {
                    index: 1,
                    hash: [8; 16],
                },
                Term {
                    index: 0x0102_0304,
                    hash: [0xff; 16],
                },
            ],
            sealed: Bytes::from_static(b"sealed"),
        };
        let bytes = [
            &[1, 0b11_1111][..],
            b"\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04keyid",
            b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x06",
            &[7; 16],
            b"\0\0\0\x02\0\0\0\x01a\0\0\0\x02bc",
            b"\0\0\0\x01\0\0\0\x01",
            &[8; 16],
            b"\0\0\0\x02\0\0\0\x01",
            &[8; 16],
            &[1, 2, 3, 4],
            &[0xff; 16],
            b"sealed",
        ]
        .concat();
        assert_eq!(encode(&full), bytes);
        let bare = ObjectRow {
            expires: None,
            archived: None,
            subject: None,
            tags: Vec::new(),
            unique: Vec::new(),
            terms: Vec::new(),
            ..full
        };
        assert_eq!(
            encode(&bare),
            b"\x01\0\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04keyidsealed"
        );
    }

    #[test]
    fn damage_is_named() {
        let check = |flags: u8, parts: &[u8], why| {
            let bytes = [&[1, flags][..], &[0; 29], parts].concat();
            assert_eq!(
                decode(ObjectId([0; 16]), &bytes),
                Err(Malformed(why)),
                "{bytes:?}"
            );
        };
        check(EXPIRES, b"\0\0\0\0\0\0\0", "that is cut short");
        check(1 << 6, b"", "with unknown flags");
        check(1 << 7, b"", "with unknown flags");
        check(TAGS, b"\0\0\0\0", "with an empty list of tags");
        check(
            TAGS,
            b"\0\0\0\x01\0\0\0\x01\xff",
            "with a tag that is not text",
        );
        check(UNIQUE, b"\0\0\0\0", "with an empty list of terms");
        check(TERMS, b"\0\0\0\0", "with an empty list of terms");
        check(TERMS, b"\xff\xff\xff\xff", "that is cut short");
        check(
            UNIQUE | TERMS,
            &[&[0, 0, 0, 1][..], &[0; 20]].concat(),
            "that is cut short",
        );
        for (bytes, why) in [
            (&b""[..], "that is cut short"),
            (b"\x02\0", "of an unknown version"),
        ] {
            assert_eq!(decode(ObjectId([0; 16]), bytes), Err(Malformed(why)));
        }
    }
}
