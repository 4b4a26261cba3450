//! A record opens under its own binding, subject and key only, and malformed content is no panic.

use crate::token::{NewToken, RowBuffer, TokenKeyVersion, TokenSecret};
use proptest::prelude::*;
use sealwire_crypto::{AppId, AppKeys, Datatype, KeyMaterial, KeyState, KeyVersion, Suite};
use std::sync::Arc;

use super::*;
use crate::objects::value::tests::packed;

pub(super) const BINDING: ObjectBinding = ObjectBinding {
    app: 7,
    collection: 3,
    id: [9; 16],
    version: 4,
    created: 1_700_000_000,
};
pub(super) const COLLECTION: u32 = 9;

pub(super) fn values(all: &[(u32, &str)]) -> Values {
    all.iter()
        .map(|(number, text)| (*number, Zeroizing::new(packed(text))))
        .collect()
}

pub(super) fn jane() -> Values {
    values(&[(1, "jane@example.com"), (3, "Jane"), (100, "gold")])
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

pub(super) fn token_keys(app: u32) -> TokenKeys {
    token_keys_of(app, [KeyState::Active; 2])
}

/// Returns the keys of an app with two versions in these states.
fn token_keys_of(app: u32, states: [KeyState; 2]) -> TokenKeys {
    let versions = (1..).zip(states).map(|(number, state)| TokenKeyVersion {
        number,
        state,
        secret: TokenSecret::new(Zeroizing::new([number as u8; 32])),
    });
    TokenKeys::new(app, versions.collect()).unwrap()
}

fn is_clear(number: u32) -> bool {
    number >= 100
}

fn sealed(subject: Option<&SubjectKey>, keys: &TokenKeys) -> Vec<u8> {
    seal(&BINDING, &jane(), is_clear, Some([8; 16]), subject, keys).unwrap()
}

fn subject(id: u8, version: u64) -> SubjectKey {
    SubjectKey::generate(&token_keys(7), COLLECTION, [id; 16], version)
        .unwrap()
        .0
}

#[test]
fn records_open_with_what_was_sealed() {
    let keys = token_keys(7);
    let anna = subject(5, 3);
    for subject in [None, Some(&anna)] {
        for (all, creation) in [
            (jane(), Some([8; 16])),
            (values(&[(100, "a")]), None),
            (Values::new(), None),
        ] {
            let sealed = seal(&BINDING, &all, is_clear, creation, subject, &keys).unwrap();
            let opened = open(&BINDING, &sealed, subject, &keys).unwrap();
            assert_eq!((opened.values, opened.creation), (all, creation));
            assert_eq!(RecordFormat::of(&sealed), Some(RecordFormat::Authenticated));
            assert_eq!(key_of(&sealed), Some([0, 0, 0, 0, 2]), "the newest version");
            assert_eq!(subject_version(&sealed), subject.map(|_| 3));
            assert_eq!(sealed[0], if subject.is_some() { 4 } else { 3 });
        }
    }
}

#[test]
fn records_open_under_active_versions_of_the_token_key_only() {
    let (both, [active, disabled]) = (token_keys(7), [KeyState::Active, KeyState::Disabled]);
    let by_one = sealed(None, &token_keys_of(7, [active, disabled]));
    let by_two = sealed(None, &both);
    assert_eq!(
        [key_of(&by_one), key_of(&by_two)],
        [Some(token_key_id(1)), Some(token_key_id(2))]
    );
    for (states, expected) in [
        ([active, active], [true, true]),
        ([active, disabled], [true, false]),
        ([disabled, active], [false, true]),
    ] {
        let keys = token_keys_of(7, states);
        let opens = [&by_one, &by_two].map(|sealed| open(&BINDING, sealed, None, &keys).is_ok());
        assert_eq!(opens, expected, "{states:?}");
    }
    let none = seal(
        &BINDING,
        &jane(),
        is_clear,
        None,
        None,
        &token_keys_of(7, [disabled, disabled]),
    );
    assert_eq!(none, Err(SealError::Crypto(Error::NoTokenKey)));
    // The version that a record names is no choice of the store: it selects the key.
    let mut renamed = by_two.clone();
    renamed[4] = 1;
    assert_eq!(open(&BINDING, &renamed, None, &both), Err(CannotOpen));
}

#[test]
fn clear_values_are_readable_and_no_others() {
    let sealed = sealed(None, &token_keys(7));
    let has = |text: &str| {
        sealed
            .windows(text.len())
            .any(|window| window == text.as_bytes())
    };
    assert!(has("gold") && !has("Jane") && !has("jane"));
}

#[test]
fn records_do_not_open_with_a_changed_bit() {
    let keys = token_keys(7);
    let anna = subject(5, 3);
    for subject in [None, Some(&anna)] {
        let sealed = sealed(subject, &keys);
        for bit in 0..sealed.len() * 8 {
            let mut changed = sealed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                open(&BINDING, &changed, subject, &keys),
                Err(CannotOpen),
                "bit {bit}"
            );
        }
        for length in 0..sealed.len() {
            assert_eq!(
                open(&BINDING, &sealed[..length], subject, &keys),
                Err(CannotOpen),
                "{length} bytes"
            );
        }
        assert_eq!(
            open(&BINDING, &[&sealed[..], &[0]].concat(), subject, &keys),
            Err(CannotOpen)
        );
    }
}

#[test]
fn records_do_not_open_in_another_place_or_for_another_subject() {
    let keys = token_keys(7);
    let anna = subject(5, 3);
    let mut id = BINDING.id;
    id[15] ^= 1;
    let places = [
        ("another app", ObjectBinding { app: 8, ..BINDING }),
        (
            "another collection",
            ObjectBinding {
                collection: 4,
                ..BINDING
            },
        ),
        ("another id", ObjectBinding { id, ..BINDING }),
        (
            "another version",
            ObjectBinding {
                version: 5,
                ..BINDING
            },
        ),
        (
            "an earlier version",
            ObjectBinding {
                version: 3,
                ..BINDING
            },
        ),
        (
            "another creation time",
            ObjectBinding {
                created: BINDING.created + 1,
                ..BINDING
            },
        ),
    ];
    for subject in [None, Some(&anna)] {
        let sealed = sealed(subject, &keys);
        assert!(open(&BINDING, &sealed, subject, &keys).is_ok());
        for (case, place) in &places {
            assert_eq!(
                open(place, &sealed, subject, &keys),
                Err(CannotOpen),
                "{case}"
            );
        }
    }

    let of_anna = sealed(Some(&anna), &keys);
    let of_nobody = sealed(None, &keys);
    assert_eq!(
        open(&BINDING, &of_anna, None, &keys),
        Err(CannotOpen),
        "without the subject"
    );
    assert_eq!(
        open(&BINDING, &of_nobody, Some(&anna), &keys),
        Err(CannotOpen),
        "with a subject that it does not have"
    );
    for (id, version) in [(5, 3), (5, 5), (6, 3)] {
        let other = subject(id, version);
        assert_eq!(
            open(&BINDING, &of_anna, Some(&other), &keys),
            Err(CannotOpen),
            "{other:?}"
        );
    }
}

/// The parts of a record without the subject's version, and those behind it.
fn split(sealed: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let head = if sealed[0] == FORMAT { 5 } else { 13 };
    (sealed[1..5].to_vec(), sealed[head..].to_vec())
}

#[test]
fn records_of_one_format_do_not_open_as_another() {
    let keys = token_keys(7);
    let anna = subject(5, 3);
    let (number, rest) = split(&sealed(Some(&anna), &keys));
    let without = [&[FORMAT][..], &number, &rest].concat();
    assert_eq!(
        open(&BINDING, &without, None, &keys),
        Err(CannotOpen),
        "a record 04 as 03"
    );
    let (number, rest) = split(&sealed(None, &keys));
    let with = [
        &[FORMAT_OF_SUBJECT][..],
        &number,
        &3u64.to_be_bytes(),
        &rest,
    ]
    .concat();
    assert_eq!(
        open(&BINDING, &with, Some(&anna), &keys),
        Err(CannotOpen),
        "a record 03 as 04"
    );

    for format in [0, 1, 2, 5, 255] {
        for record in [sealed(None, &keys), sealed(Some(&anna), &keys)] {
            let changed = [&[format][..], &record[1..]].concat();
            assert_eq!(
                open(&BINDING, &changed, None, &keys),
                Err(CannotOpen),
                "{format}"
            );
            assert_eq!(
                open(&BINDING, &changed, Some(&anna), &keys),
                Err(CannotOpen),
                "{format}"
            );
        }
    }
}

#[test]
fn old_records_do_not_open_as_authenticated_ones() {
    let (id, keys, anna) = (AppId::new("shop").unwrap(), token_keys(7), subject(5, 3));
    for suite in Suite::ALL {
        let key = KeyMaterial::generate(&id, suite).unwrap();
        let app =
            AppKeys::new(id.clone(), vec![KeyVersion::new(1, KeyState::Active, key)]).unwrap();
        for subject in [None, Some(&anna)] {
            let recipient: &Arc<KeyVersion> = app.newest(suite).unwrap();
            let forged =
                old::seal(&BINDING, &jane(), is_clear, None, subject, &id, recipient).unwrap();
            assert_eq!(
                open(&BINDING, &forged, subject, &keys),
                Err(CannotOpen),
                "{suite:?}"
            );
            for format in [FORMAT, FORMAT_OF_SUBJECT] {
                let forged = [&[format][..], &forged[1..]].concat();
                assert_eq!(
                    open(&BINDING, &forged, subject, &keys),
                    Err(CannotOpen),
                    "{suite:?} as {format}"
                );
            }
        }
    }
}

#[test]
fn values_cannot_move() {
    let keys = token_keys(7);
    let seal_of = |binding: &ObjectBinding, all: &[(u32, &str)]| {
        seal(binding, &values(all), is_clear, None, None, &keys).unwrap()
    };
    let one = seal_of(
        &BINDING,
        &[(1, "jane@example.com"), (3, "Jane"), (100, "gold")],
    );
    let joe = ObjectBinding {
        id: [10; 16],
        ..BINDING
    };
    let other = seal_of(&joe, &[(1, "joe@example.com"), (3, "Joe"), (100, "iron")]);
    let join = |head: &[u8], clear: &[u8], ciphertext: &[u8]| {
        [
            &head[..17],
            &(clear.len() as u32).to_be_bytes(),
            clear,
            ciphertext,
        ]
        .concat()
    };
    let (of_one, of_other) = (Parts::of(&one).unwrap(), Parts::of(&other).unwrap());
    assert_eq!(join(&one, of_one.clear, of_one.ciphertext), one);
    assert!(
        open(
            &BINDING,
            &join(&one, of_other.clear, of_one.ciphertext),
            None,
            &keys
        )
        .is_err(),
        "another clear part"
    );
    assert!(
        open(
            &BINDING,
            &join(&other, of_one.clear, of_other.ciphertext),
            None,
            &keys
        )
        .is_err(),
        "another's values"
    );
    assert!(
        open(&BINDING, &join(&one, &[], of_one.ciphertext), None, &keys).is_err(),
        "no clear part"
    );
    // A part of the ciphertext does not pass as clear, nor the other way round.
    let shifted = [of_one.clear, &of_one.ciphertext[..4]].concat();
    assert!(
        open(
            &BINDING,
            &join(&one, &shifted, &of_one.ciphertext[4..]),
            None,
            &keys
        )
        .is_err(),
        "a longer clear part"
    );
    // The number of a clear value is not free either.
    let mut renumbered = of_one.clear.to_vec();
    renumbered[3] += 1;
    assert!(
        open(
            &BINDING,
            &join(&one, &renumbered, of_one.ciphertext),
            None,
            &keys
        )
        .is_err(),
        "another property"
    );
}

#[test]
fn keys_of_objects_open_no_rows_of_tokens_and_the_other_way_round() {
    let keys = token_keys(7);
    let new = NewToken {
        collection: BINDING.collection,
        id: &BINDING.id,
        context: &keys.context(b""),
        fingerprint: None,
        subject: None,
        token: "3",
        value: Some((Datatype::Binary, &[1; 32])),
    };
    let row = keys.seal(&new).unwrap();
    for format in [FORMAT, FORMAT_OF_SUBJECT] {
        let as_record = [&[format][..], &row[1..]].concat();
        assert_eq!(open(&BINDING, &as_record, None, &keys), Err(CannotOpen));
    }
    let record = sealed(None, &keys);
    let mut buffer = RowBuffer::default();
    for layout in [1, 2] {
        let as_row = [&[layout][..], &record[1..]].concat();
        assert!(
            keys.open(BINDING.collection, &BINDING.id, None, &as_row, &mut buffer)
                .is_err()
        );
    }
    let (number, objects) = keys.object_sealing().unwrap();
    let mut both = vec![7; 8];
    objects.seal([0; 12], b"", &mut both, 0).unwrap();
    let mut opened = both.clone();
    assert!(
        keys.object_opening(number)
            .unwrap()
            .open([0; 12], b"", &mut opened)
            .is_ok()
    );
    assert!(
        keys.object_opening(1)
            .unwrap()
            .open([0; 12], b"", &mut both)
            .is_err(),
        "each version has its own key"
    );
}

#[test]
fn a_stored_subject_key_opens_in_its_place_only() {
    let keys = token_keys(7);
    let (_, stored) = SubjectKey::generate(&keys, COLLECTION, [5; 16], 3).unwrap();
    assert_eq!(
        stored[1..5],
        [0, 0, 0, 2],
        "the newest version of the token key"
    );
    let opens = |keys: &TokenKeys, collection, id, version, stored: &[u8]| {
        SubjectKey::open(keys, collection, id, version, stored).is_ok()
    };
    assert!(opens(&keys, COLLECTION, [5; 16], 3, &stored));
    assert!(
        !opens(&token_keys(8), COLLECTION, [5; 16], 3, &stored),
        "another app"
    );
    assert!(
        !opens(&keys, COLLECTION + 1, [5; 16], 3, &stored),
        "another collection"
    );
    assert!(
        !opens(&keys, COLLECTION, [6; 16], 3, &stored),
        "another subject"
    );
    assert!(
        !opens(&keys, COLLECTION, [5; 16], 5, &stored),
        "another version"
    );
    assert!(!opens(&keys, COLLECTION, [5; 16], 3, &[]), "an erased key");
    // A row of a token map is no key.
    let new = NewToken {
        collection: COLLECTION,
        id: &[5; 16],
        context: &keys.context(b""),
        fingerprint: None,
        subject: None,
        token: "3",
        value: Some((Datatype::Binary, &[1; 32])),
    };
    assert!(
        !opens(&keys, COLLECTION, [5; 16], 3, &keys.seal(&new).unwrap()),
        "a token"
    );
}

#[test]
fn debug_output_of_a_subject_key_shows_no_key() {
    let (subject, _) = SubjectKey::generate(&token_keys(7), COLLECTION, [5; 16], 3).unwrap();
    let expected = "SubjectKey { id: \"05050505050505050505050505050505\", version: 3, .. }";
    assert_eq!(format!("{subject:?}"), expected);
}

#[test]
fn values_are_bounded() {
    let keys = token_keys(7);
    let sealed = |bytes: usize| {
        let values = Values::from_iter([(1, Zeroizing::new(vec![0; bytes]))]);
        seal(&BINDING, &values, |_| false, None, None, &keys)
    };
    let most = sealed(VALUES_BYTES_MAX - 8).unwrap();
    assert!(open(&BINDING, &most, None, &keys).is_ok());
    assert_eq!(sealed(VALUES_BYTES_MAX - 7), Err(SealError::TooLong));
}

#[test]
fn only_canonical_content_is_read() {
    let one = [0, 0, 0, 1, 0, 0, 0, 1, 5];
    let two = [0, 0, 0, 2, 0, 0, 0, 1, 6];
    let cases: [(&[u8], Vec<u8>, Option<usize>); 9] = [
        (&[], vec![0], Some(0)),
        (&one, [&[0], &two[..]].concat(), Some(2)),
        (&two, [&[0], &one[..]].concat(), Some(2)),
        (&[], [&[1], &[7; 16][..], &one].concat(), Some(1)),
        (&one, [&[0], &one[..]].concat(), None),
        (&[], vec![], None),
        (&[], vec![2], None),
        (&[], vec![1; 16], None),
        (&[0], vec![0], None),
    ];
    for (clear, plaintext, expected) in cases {
        let read = read_content(clear, &plaintext).map(|content| content.values.len());
        assert_eq!(read, expected, "{clear:x?} {plaintext:x?}");
    }
}

#[test]
fn key_of_needs_a_record() {
    let sealed = sealed(None, &token_keys(7));
    for bytes in [
        &[][..],
        &[1],
        &[1, 0, 0, 0, 0],
        &[3],
        &[3, 0, 0, 0, 1],
        &[5, 0, 0, 0, 1],
        &sealed[..20],
    ] {
        assert_eq!(
            (key_of(bytes), subject_version(bytes)),
            (None, None),
            "{bytes:x?}"
        );
    }
    for (first, expected) in [
        (1, true),
        (2, true),
        (3, true),
        (4, true),
        (0, false),
        (5, false),
    ] {
        assert_eq!(RecordFormat::of(&[first]).is_some(), expected, "{first}");
    }
}

#[test]
fn debug_output_shows_no_value() {
    let opened = OpenedObject {
        values: jane(),
        creation: Some([8; 16]),
    };
    assert_eq!(
        format!("{opened:?}"),
        "OpenedObject { values: Values(3), .. }"
    );
}

proptest! {
    #[test]
    fn malformed_content_is_no_panic(clear: Vec<u8>, plaintext in proptest::collection::vec(0u8..4, 0..60)) {
        if let Some(OpenedObject { values, creation }) = read_content(&clear, &plaintext) {
            let mut again = Vec::new();
            write_optional(creation.as_ref(), &mut again);
            let mut clear_values = Values::new();
            prop_assert!(clear_values.decode(&clear).is_some());
            values.encode(|number| clear_values.get(number).is_none(), &mut again);
            prop_assert_eq!(again, plaintext);
        }
    }

    #[test]
    fn malformed_objects_do_not_open(bytes: Vec<u8>) {
        let keys = token_keys(7);
        let framed = [&[FORMAT, 0, 0, 0, 2][..], &[0; 16], &bytes].concat();
        prop_assert_eq!(open(&BINDING, &bytes, None, &keys), Err(CannotOpen));
        prop_assert_eq!(open(&BINDING, &framed, None, &keys), Err(CannotOpen));
    }
}
