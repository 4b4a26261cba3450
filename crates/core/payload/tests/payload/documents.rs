//! Arbitrary MessagePack documents, built as bytes so that every encoding of a value occurs,
//! including overlong ones.

use proptest::collection::vec;
use proptest::prelude::*;

/// Generates a document with any kinds of values and keys, nested up to 6 levels deep.
pub(crate) fn document() -> impl Strategy<Value = Vec<u8>> {
    leaf().prop_recursive(6, 96, 8, |value| {
        prop_oneof![
            (width(), vec(value.clone(), 0..8))
                .prop_map(|(width, values)| container(ARRAY, width, &values)),
            (width(), vec((key(value.clone()), value), 0..8)).prop_map(|(width, pairs)| {
                let pairs: Vec<_> = pairs
                    .into_iter()
                    .map(|(key, value)| [key, value].concat())
                    .collect();
                container(MAP, width, &pairs)
            }),
        ]
    })
}

/// Generates a document with a few changed bytes, or truncated.
pub(crate) fn broken_document() -> impl Strategy<Value = Vec<u8>> {
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (
        document(),
        changes,
        any::<prop::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(mut bytes, changes, cut, is_cut)| {
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if is_cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        })
}

/// Generates the number of extra steps in the width of a length, as far as the kind allows.
fn width() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0), 1 => 0..4_usize]
}

fn key(value: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    // Few names, so that select paths match them.
    let name = "[a-d]".prop_map(|name| [&[0xa1], name.as_bytes()].concat());
    prop_oneof![8 => name, 2 => text(), 1 => value]
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    (width(), any::<String>()).prop_map(|(width, text)| {
        let header = match (width, text.len()) {
            (0, len @ 0..32) => vec![0xa0 | len as u8],
            (0 | 1, len @ 0..256) => vec![0xd9, len as u8],
            (0..=2, len) => [&[0xda][..], &(len as u16).to_be_bytes()].concat(),
            (_, len) => [&[0xdb][..], &(len as u32).to_be_bytes()].concat(),
        };
        [header, text.into_bytes()].concat()
    })
}

fn leaf() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(vec![0xc0]),
        any::<bool>().prop_map(|value| vec![0xc2 + u8::from(value)]),
        (0..0x80_u8).prop_map(|marker| vec![marker]),
        (0xe0..=0xff_u8).prop_map(|marker| vec![marker]),
        // The fixed-size numbers: floats from 0xca, integers up to 0xd3. Every bit pattern is
        // valid.
        (0..10_usize, any::<[u8; 8]>()).prop_map(|(kind, bytes)| {
            let len = [4, 8, 1, 2, 4, 8, 1, 2, 4, 8][kind];
            [&[0xca + kind as u8], &bytes[..len]].concat()
        }),
        text(),
        (0..3_usize, vec(any::<u8>(), 0..20)).prop_map(|(width, bytes)| with_length(
            0xc4,
            width,
            &[],
            &bytes
        )),
        (0..3_usize, any::<u8>(), vec(any::<u8>(), 0..20))
            .prop_map(|(width, kind, bytes)| with_length(0xc7, width, &[kind], &bytes)),
        (0..5_usize, any::<[u8; 17]>()).prop_map(|(kind, bytes)| [
            &[0xd4 + kind as u8],
            &bytes[..1 + (1 << kind)]
        ]
        .concat()),
    ]
}

/// Encodes binary data or an extension with a length of 1, 2 or 4 bytes. The markers of the three
/// widths are consecutive.
fn with_length(marker: u8, width: usize, kind: &[u8], bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u32).to_be_bytes();
    [
        &[marker + width as u8],
        &len[4 - (1 << width)..],
        kind,
        bytes,
    ]
    .concat()
}

const ARRAY: (u8, u8) = (0x90, 0xdc);
const MAP: (u8, u8) = (0x80, 0xde);

fn container((short, long): (u8, u8), width: usize, items: &[Vec<u8>]) -> Vec<u8> {
    let len = (items.len() as u32).to_be_bytes();
    let header = match width {
        0 | 1 => vec![short | len[3]],
        2 => vec![long, len[2], len[3]],
        _ => [&[long + 1], &len[..]].concat(),
    };
    [header, items.concat()].concat()
}
