//! Binary row format, version 1: the value that the embedded store keeps under a row's map and id.
//!
//! `version 1 | flags 1 | created u64 | [fingerprint 16] | [expires u64] | [archived u64] | [subject 16] | [tags] | sealed`.
//! Numbers are big endian. Each bracketed part is present if its flag is set. `tags` is
//! `count u32`, then per tag `bytes u32 | UTF-8`. The rest is the sealed part. The encoding is
//! canonical: decoded bytes always encode to the same bytes.

use bytes::Bytes;

use sealwire_store::{Fingerprint, Row, SubjectId, TokenId};

const VERSION: u8 = 1;
const FINGERPRINT: u8 = 1;
const EXPIRES: u8 = 1 << 1;
const ARCHIVED: u8 = 1 << 2;
const TAGS: u8 = 1 << 3;
const SUBJECT: u8 = 1 << 4;

/// The bytes are not a row of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a row {0}")]
pub struct Malformed(pub(super) &'static str);

/// Encodes a row without its id.
#[must_use]
pub fn encode(row: &Row) -> Vec<u8> {
    let tags: usize = row.tags.iter().map(|tag| 4 + tag.len()).sum();
    let mut out = Vec::with_capacity(62 + tags + row.sealed.len());
    out.push(VERSION);
    out.push(
        flag_if(row.fingerprint.is_some(), FINGERPRINT)
            | flag_if(row.expires.is_some(), EXPIRES)
            | flag_if(row.archived.is_some(), ARCHIVED)
            | flag_if(!row.tags.is_empty(), TAGS)
            | flag_if(row.subject.is_some(), SUBJECT),
    );
    out.extend(row.created.to_be_bytes());
    out.extend(row.fingerprint.iter().flat_map(|fingerprint| fingerprint.0));
    out.extend(
        row.expires
            .iter()
            .chain(&row.archived)
            .flat_map(|time| time.to_be_bytes()),
    );
    out.extend(row.subject.iter().flat_map(|subject| subject.0));
    put_tags(&mut out, &row.tags);
    out.extend_from_slice(&row.sealed);
    out
}

/// Returns `flag` if the part that it announces is present, or 0.
pub(super) fn flag_if(is_present: bool, flag: u8) -> u8 {
    if is_present { flag } else { 0 }
}

/// Appends tags, or nothing if `tags` is empty.
pub(super) fn put_tags(out: &mut Vec<u8>, tags: &[String]) {
    if tags.is_empty() {
        return;
    }
    out.extend(encode_length(tags.len()));
    for tag in tags {
        out.extend(encode_length(tag.len()));
        out.extend_from_slice(tag.as_bytes());
    }
}

pub(super) fn encode_length(length: usize) -> [u8; 4] {
    u32::try_from(length)
        .expect("requests are limited to less than 4 GiB")
        .to_be_bytes()
}

/// Decodes the row with the given id.
///
/// # Errors
/// [`Malformed`] for any invalid bytes.
pub fn decode(id: TokenId, bytes: &[u8]) -> Result<Row, Malformed> {
    let mut rest = Rest(bytes);
    let [version, flags] = rest.array()?;
    if version != VERSION {
        return Err(Malformed("of an unknown version"));
    }

    if flags & !(FINGERPRINT | EXPIRES | ARCHIVED | TAGS | SUBJECT) != 0 {
        return Err(Malformed("with unknown flags"));
    }

    let created = rest.u64()?;
    let fingerprint = (flags & FINGERPRINT != 0)
        .then(|| rest.array().map(Fingerprint))
        .transpose()?;
    let expires = (flags & EXPIRES != 0).then(|| rest.u64()).transpose()?;
    let archived = (flags & ARCHIVED != 0).then(|| rest.u64()).transpose()?;
    let subject = (flags & SUBJECT != 0)
        .then(|| rest.array().map(SubjectId))
        .transpose()?;
    let tags = if flags & TAGS != 0 {
        rest.tags()?
    } else {
        Vec::new()
    };

    Ok(Row {
        id,
        fingerprint,
        sealed: Bytes::copy_from_slice(rest.0),
        tags,
        expires,
        created,
        archived,
        subject,
    })
}

/// Bytes that remain to be read.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl Rest<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (array, rest) = self
            .0
            .split_first_chunk()
            .ok_or(Malformed("that is cut short"))?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn length(&mut self) -> Result<usize, Malformed> {
        self.array().map(|bytes| u32::from_be_bytes(bytes) as usize)
    }

    pub(super) fn tags(&mut self) -> Result<Vec<String>, Malformed> {
        let count = self.length()?;
        if count == 0 {
            return Err(Malformed("with an empty list of tags"));
        }

        // Limits the allocation for a damaged count to the number that the bytes can contain.
        let mut tags = Vec::with_capacity(count.min(self.0.len() / 4));
        for _ in 0..count {
            let length = self.length()?;
            let (tag, rest) = self
                .0
                .split_at_checked(length)
                .ok_or(Malformed("that is cut short"))?;
            self.0 = rest;
            tags.push(
                str::from_utf8(tag)
                    .map_err(|_| Malformed("with a tag that is not text"))?
                    .to_owned(),
            );
        }

        Ok(tags)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows() -> impl Strategy<Value = Row> {
        let time = || proptest::option::of(any::<u64>());
        (
            any::<[u8; 16]>(),
            proptest::option::of(any::<[u8; 16]>()),
            proptest::collection::vec(any::<u8>(), 0..200),
            proptest::collection::vec(".{0,20}", 0..5),
            time(),
            any::<u64>(),
            time(),
            proptest::option::of(any::<[u8; 16]>()),
        )
            .prop_map(
                |(id, fingerprint, sealed, tags, expires, created, archived, subject)| Row {
                    id: TokenId(id),
                    fingerprint: fingerprint.map(Fingerprint),
                    sealed: sealed.into(),
                    tags,
                    expires,
                    created,
                    archived,
                    subject: subject.map(SubjectId),
                },
            )
    }

    proptest! {
        #[test]
        fn rows_survive_encoding(row in rows()) {
            prop_assert_eq!(decode(row.id, &encode(&row)), Ok(row));
        }

        #[test]
        fn decoded_rows_have_one_form(bytes in proptest::collection::vec(any::<u8>(), 0..100), flags in 0_u8..32) {
            let id = TokenId([7; 16]);
            for bytes in [bytes.clone(), [&[VERSION, flags], bytes.as_slice()].concat()] {
                if let Ok(row) = decode(id, &bytes) {
                    prop_assert_eq!(encode(&row), bytes);
                }
            }
        }

        #[test]
        fn rows_cut_before_the_sealed_part_are_rejected(row in rows(), at in any::<proptest::sample::Index>()) {
            let bytes = encode(&row);
            let cut = at.index(bytes.len() - row.sealed.len());
            prop_assert_eq!(decode(row.id, &bytes[..cut]), Err(Malformed("that is cut short")));
        }
    }

    #[test]
    fn the_form_is_the_documented_one() {
        let full = Row {
            id: TokenId([9; 16]),
            fingerprint: Some(Fingerprint([5; 16])),
            sealed: Bytes::from_static(b"sealed"),
            tags: vec!["a".to_owned(), "bc".to_owned()],
            expires: Some(3),
            created: 2,
            archived: Some(4),
            subject: Some(SubjectId([7; 16])),
        };
        let bytes = [
            &[1, 0b1_1111, 0, 0, 0, 0, 0, 0, 0, 2][..],
            &[5; 16],
            &[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4],
            &[7; 16],
            b"\0\0\0\x02\0\0\0\x01a\0\0\0\x02bcsealed",
        ]
        .concat();
        assert_eq!(encode(&full), bytes);
        let bare = Row {
            fingerprint: None,
            tags: Vec::new(),
            expires: None,
            archived: None,
            subject: None,
            ..full
        };
        assert_eq!(encode(&bare), b"\x01\0\0\0\0\0\0\0\0\x02sealed");
    }

    #[test]
    fn damage_is_named() {
        let check = |bytes: &[u8], why| {
            assert_eq!(
                decode(TokenId([0; 16]), bytes),
                Err(Malformed(why)),
                "{bytes:?}"
            )
        };
        check(b"", "that is cut short");
        check(b"\x02\0\0\0\0\0\0\0\0\0", "of an unknown version");
        check(b"\x01\x20\0\0\0\0\0\0\0\0", "with unknown flags");
        check(
            b"\x01\x08\0\0\0\0\0\0\0\0\0\0\0\0",
            "with an empty list of tags",
        );
        check(
            b"\x01\x08\0\0\0\0\0\0\0\0\xff\xff\xff\xff",
            "that is cut short",
        );
        check(
            b"\x01\x08\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\x01\xff",
            "with a tag that is not text",
        );
    }
}
