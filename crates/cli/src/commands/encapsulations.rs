//! Encapsulations (`enc` of HPKE) that are stored once for all fields of a document, in the member
//! `$sw1` of the document, instead of in every field (`proto/envelope.md`, "Encapsulations apart").

use sealwire_msgpack::{TokenReader, write};

use super::Failure;

/// Name of the member with the encapsulations.
const MEMBER: &str = "$sw1";
/// Prefix of an encapsulation.
const PREFIX: &str = "sw1h:";

/// Takes the encapsulations out of a document. Returns the document without its member `$sw1`, and
/// the encapsulations. If the document is not an object, or if the member holds other data, returns
/// the document unchanged and an empty list. Fails if the document is malformed.
pub(super) fn take_encapsulations(document: &[u8]) -> Result<(Vec<u8>, Vec<String>), Failure> {
    let mut reader = TokenReader::new(document);
    let Ok(count) = reader.map_len() else {
        return Ok((document.to_vec(), Vec::new()));
    };
    let mut members = Vec::with_capacity(document.len());
    let mut found = Vec::new();
    let mut kept = 0;
    for _ in 0..count {
        let key = reader.value()?;
        let value = reader.value()?;
        match read_member(key, value) {
            Some(texts) => found = texts,
            None => {
                kept += 1;
                members.extend_from_slice(key);
                members.extend_from_slice(value);
            }
        }
    }

    // The header of a map has at most 5 bytes.
    let mut rest = Vec::with_capacity(members.len() + 5);
    write::map_len(&mut rest, kept);
    rest.extend_from_slice(&members);
    Ok((rest, found))
}

/// Returns the encapsulations of the member `$sw1`, or `None` for any other member.
fn read_member(key: &[u8], value: &[u8]) -> Option<Vec<String>> {
    if TokenReader::new(key).str_utf8().ok()? != MEMBER {
        return None;
    }
    let mut reader = TokenReader::new(value);
    let count = reader.array_len().ok()?;
    let texts = (0..count).map(|_| {
        reader
            .str_utf8()
            .ok()
            .filter(|text| text.starts_with(PREFIX))
            .map(str::to_owned)
    });
    let texts: Vec<String> = texts.collect::<Option<_>>()?;
    // This program writes no empty list, so it is data of the document.
    (!texts.is_empty()).then_some(texts)
}

/// Adds the member `$sw1` with encapsulations, if there are any. Fails if the document is not an
/// object, or if it has a member of this name.
pub(super) fn put_encapsulations(document: &[u8], texts: &[String]) -> Result<Vec<u8>, Failure> {
    if texts.is_empty() {
        return Ok(document.to_vec());
    }
    let mut reader = TokenReader::new(document);
    let count = reader
        .map_len()
        .map_err(|_| "--apart stores encapsulations in the member $sw1 of the document, so the document must be an object")?;
    // An encapsulation has 1,551 characters.
    let mut out = Vec::with_capacity(document.len() + 2_000 * texts.len());
    write::map_len(
        &mut out,
        count
            .checked_add(1)
            .ok_or("the document has too many members")?,
    );
    for _ in 0..count {
        let key = reader.value()?;
        if TokenReader::new(key)
            .str_utf8()
            .is_ok_and(|name| name == MEMBER)
        {
            return Err("the document has a member $sw1 of its own, where --apart stores encapsulations: rename that member, or leave out --apart".into());
        }
        out.extend_from_slice(key);
        out.extend_from_slice(reader.value()?);
    }
    write::str(&mut out, MEMBER);
    write::array_len(&mut out, u32::try_from(texts.len())?);
    texts.iter().for_each(|text| write::str(&mut out, text));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encapsulations_in_a_document_are_taken_out_again() {
        let texts = [format!("{PREFIX}a"), format!("{PREFIX}b")];
        for members in [0, 1, 14, 15, 16, 70_000] {
            let mut document = Vec::new();
            write::map_len(&mut document, members);
            for member in 0..members {
                write::str(&mut document, &format!("m{member}"));
                write::uint(&mut document, member.into());
            }
            let with = put_encapsulations(&document, &texts).unwrap();
            assert_eq!(
                take_encapsulations(&with).unwrap(),
                (document.clone(), texts.to_vec())
            );
            assert_eq!(
                take_encapsulations(&document).unwrap(),
                (document.clone(), Vec::new())
            );
            assert_eq!(put_encapsulations(&document, &[]).unwrap(), document);
        }
    }

    #[test]
    fn encapsulations_do_not_replace_or_double_a_member_of_that_name() {
        let texts = [format!("{PREFIX}a")];
        for document in [
            &b"\x81\xa4$sw1\x01"[..],
            b"\x82\xa1a\x02\xa4$sw1\x91\xa1x",
            b"\x82\xa4$sw1\xc0\xa1a\x02",
        ] {
            assert!(
                put_encapsulations(document, &texts)
                    .unwrap_err()
                    .to_string()
                    .contains("rename that member, or leave out --apart")
            );
            assert_eq!(put_encapsulations(document, &[]).unwrap(), document);
        }
        // A value of that name is no member, and the member of an inner object is not touched.
        for document in [&b"\x81\xa1a\xa4$sw1"[..], b"\x81\xa1a\x81\xa4$sw1\x01"] {
            let with = put_encapsulations(document, &texts).unwrap();
            assert_eq!(
                take_encapsulations(&with).unwrap(),
                (document.to_vec(), texts.to_vec())
            );
        }
    }

    #[test]
    fn data_of_that_name_stays() {
        for document in [
            &b"\x81\xa4$sw1\x01"[..],
            b"\x81\xa4$sw1\x91\xa1x",
            b"\x81\xa4$sw1\x90",
            b"\x91\xa4$sw1",
            b"\x01",
            b"\x81\x01\x02",
        ] {
            assert_eq!(
                take_encapsulations(document).unwrap(),
                (document.to_vec(), Vec::new())
            );
        }
        assert!(
            put_encapsulations(b"\x90", &["sw1h:".into()])
                .unwrap_err()
                .to_string()
                .contains("an object")
        );
        assert!(take_encapsulations(b"\x82\x01").is_err());
    }
}
