//! The metadata of Evervault strings and files.

use sealwire_crypto::evervault::fuzzing::{ROLE_BYTES_MAX, in_front, parse, split, stamp};

use crate::input::text;
use crate::seed::{packed, packed_words};
use crate::{Input, Seed};

/// Reads maps. Settings: bytes of a piece, origin, time, role up to a zero byte.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let piece = input.byte();
    let origin = input.byte() % 128;
    let time = input.short();
    let role = input.until(0);
    let map = input.0;
    let mut front = u16::try_from(map.len())
        .unwrap_or_default()
        .to_le_bytes()
        .to_vec();
    front.extend_from_slice(map);
    front.extend_from_slice(b"text");

    let parsed = parse(map);
    assert_eq!(
        split(&front).map(|(fields, _)| fields),
        if map.len() < 1 << 16 {
            parsed
        } else {
            parse(&[])
        }
    );
    let piece = usize::from(piece);
    if let Ok(Some(fields)) = in_front(&front, piece) {
        assert_eq!(
            Some(fields),
            parsed,
            "metadata in front is a map that parses"
        );
    }
    let _ = in_front(map, piece);

    let role = Some(text(&role[..role.len().min(ROLE_BYTES_MAX)])).filter(|role| !role.is_empty());
    let stamped = [stamp(origin, u32::from(time), role), b"text".to_vec()].concat();
    let fields = (role, Some(u64::from(origin)), Some(u64::from(time)));
    assert_eq!(split(&stamped), Some((fields, &b"text"[..])));
    assert_eq!(in_front(&stamped, piece), Ok(Some(fields)));
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let maps = [
        r#"{"dr":"support","eo":83,"et":1700000000}"#,
        r#"{"eo":5,"et":1700000000}"#,
        r#"{"et":1,"x":[1,{"y":null}],"dr":"a-1"}"#,
        r#"{"dr":"a","dr2":1,"eo":"text","et":-1}"#,
        r#"{"dr":7}"#,
        "{}",
        "[1]",
    ];
    let seeds = maps.iter().zip(1..).map(|(map, piece)| {
        Seed::new(
            format!("map-{piece}"),
            &[piece, 83, 101, 83, b'r', b'o', b'l', b'e', 0],
            packed(map),
        )
    });
    let twice = [
        vec![0x82],
        packed("\"dr\""),
        packed("\"a\""),
        packed("\"dr\""),
        packed("\"b\""),
    ]
    .concat();
    seeds
        .chain([Seed::new("twice", &[3, 1, 0, 1, 0], twice)])
        .collect()
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let mut words = packed_words(["dr", "eo", "et", "support"]);
    words.extend([
        vec![0x83],
        vec![0xce, 0, 0, 0, 1],
        vec![0xde, 0, 2],
        vec![0xd9, 2, b'd', b'r'],
        vec![0xda, 0, 2, b'd', b'r'],
    ]);
    words
}
