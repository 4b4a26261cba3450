//! The contract of token keys and rows.

use std::collections::HashSet;

use proptest::prelude::*;
use sha2::Sha256;
use zeroize::{ZeroizeOnDrop, Zeroizing};

use crate::token::row::subject_version;
use crate::token::{
    NewToken, RowBuffer, SubjectKey, TokenContext, TokenKeyVersion, TokenKeys, TokenSecret,
};
use sealwire_crypto::{CannotOpen, Datatype, Error, Kek, KeyPair, KeyState, Scalar};

const ACTIVE: KeyState = KeyState::Active;
const DISABLED: KeyState = KeyState::Disabled;

/// A version: its number, its state and the byte its secret is made of.
type Facts = (u32, KeyState, u8);

fn secret(byte: u8) -> TokenSecret {
    TokenSecret::new(Zeroizing::new([byte; 32]))
}

fn versions(list: &[Facts]) -> Vec<TokenKeyVersion> {
    list.iter()
        .map(|&(number, state, byte)| TokenKeyVersion {
            number,
            state,
            secret: secret(byte),
        })
        .collect()
}

fn keys(app: u32, list: &[Facts]) -> TokenKeys {
    TokenKeys::new(app, versions(list)).unwrap()
}

/// Seals a row of collection 3 that nothing has to be found by.
fn seal(
    keys: &TokenKeys,
    id: &[u8; 16],
    context: &TokenContext,
    token: &str,
    value: Option<(Datatype, &[u8])>,
) -> Result<Vec<u8>, Error> {
    keys.seal(&NewToken {
        collection: 3,
        id,
        context,
        fingerprint: None,
        subject: None,
        token,
        value,
    })
}

type RowFacts = (String, Option<(Datatype, Vec<u8>)>);

/// Opens a row by its place, then its value by the context.
fn open(
    keys: &TokenKeys,
    collection: u32,
    id: [u8; 16],
    context: &[u8],
    row: &[u8],
) -> Result<RowFacts, CannotOpen> {
    let mut buffer = RowBuffer::default();
    let opened = keys.open(collection, &id, None, row, &mut buffer)?;
    let value = opened.value(&keys.context(context))?;
    Ok((
        opened.token().to_owned(),
        value.map(|(datatype, value)| (datatype, value.to_vec())),
    ))
}

#[test]
fn object_terms_are_of_version_one_whatever_becomes_of_it() {
    // HKDF-SHA256 without salt of 32 times 01, info "sealwire/object/index/1": by Python's hmac.
    const OF_ONES: &str = "23dad8409e5a5afdd1d38afdf9aeec309f034f392e5e27ae610ae96547ec92f6";
    let hex = |keys: &TokenKeys| {
        keys.object_index_secret()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    for versions in [
        &[(1, ACTIVE, 1)][..],
        &[(1, DISABLED, 1)],
        &[(2, ACTIVE, 9), (1, DISABLED, 1)],
    ] {
        assert_eq!(hex(&keys(7, versions)), OF_ONES);
    }
    assert_ne!(hex(&keys(7, &[(1, ACTIVE, 2), (2, ACTIVE, 1)])), OF_ONES);
    assert!(
        !format!("{:?}", keys(7, &[(1, ACTIVE, 1)])).contains("object"),
        "it is not printed"
    );
}

#[test]
fn masks_are_of_version_one_whatever_becomes_of_it() {
    // HKDF-SHA256 without salt of 32 times 01, info "sealwire/mask/1": by Python's hmac, as in
    // proto/interop/tokens.py.
    const OF_ONES: &str = "cc2d92c519b446b45b8ea67356a32d38ff44f7d65b274678079e716ce7cee270";
    let hex = |keys: &TokenKeys| {
        keys.mask_secret()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    for versions in [
        &[(1, ACTIVE, 1)][..],
        &[(1, DISABLED, 1)],
        &[(2, ACTIVE, 9), (1, DISABLED, 1)],
    ] {
        assert_eq!(hex(&keys(7, versions)), OF_ONES);
    }
    assert_ne!(hex(&keys(7, &[(1, ACTIVE, 2), (2, ACTIVE, 1)])), OF_ONES);
    assert!(
        !format!("{:?}", keys(7, &[(1, ACTIVE, 1)])).contains("mask"),
        "it is not printed"
    );
}

#[test]
fn sealed_rows_open() {
    let keys = keys(7, &[(1, ACTIVE, 1)]);
    let long = "t".repeat(65_535);
    let mut buffer = RowBuffer::default();
    for (token, value) in [
        ("tok_1", Some((Datatype::String, &b"4242424242424242"[..]))),
        ("tok_2", Some((Datatype::Value, b"\x2a"))),
        ("tok_3", Some((Datatype::Binary, b"\xff\xfe"))),
        ("tok_4", Some((Datatype::String, b""))),
        ("tok_5", None),
        ("", None),
        ("\u{e9}", Some((Datatype::Binary, b""))),
        (&long, Some((Datatype::Binary, &[9; 70_000]))),
    ] {
        for context in [&b""[..], b"cards.pan", &[0; 4_096]] {
            let (id, context) = (keys.id(3, token), keys.context(context));
            let row = seal(&keys, &id, &context, token, value).unwrap();
            assert_eq!(
                row.len(),
                52 + token.len() + value.map_or(0, |(_, value)| value.len())
            );
            assert_eq!(row.capacity(), row.len(), "made in one piece");
            let opened = keys.open(3, &id, None, &row, &mut buffer).unwrap();
            assert_eq!((opened.token(), opened.value(&context)), (token, Ok(value)));
        }
    }
    let (id, context) = (keys.id(3, &(long.clone() + "t")), keys.context(b""));
    assert_eq!(
        seal(&keys, &id, &context, &(long + "t"), None),
        Err(Error::TokenTooLong)
    );
}

#[test]
fn a_row_is_sealed_anew_each_time() {
    let keys = keys(7, &[(1, ACTIVE, 1)]);
    let (id, context) = (keys.id(3, "t"), keys.context(b""));
    let rows: HashSet<_> = (0..64)
        .map(|_| seal(&keys, &id, &context, "t", None).unwrap())
        .collect();
    assert_eq!(rows.len(), 64);
}

/// The stored keys of two versions of two subjects, `[1; 16]` and `[2; 16]`.
fn subjects(keys: &TokenKeys) -> [SubjectKey; 4] {
    [(1, 1), (1, 3), (2, 1), (2, 3)]
        .map(|(id, version)| SubjectKey::generate(keys, 9, [id; 16], version).unwrap().0)
}

#[test]
fn a_row_of_a_subject_opens_with_its_key_only() {
    let keys = keys(7, &[(1, ACTIVE, 1)]);
    let subjects = subjects(&keys);
    let context = keys.context(b"ctx");
    let mut buffer = RowBuffer::default();
    for (fingerprint, value) in [
        (None, Some((Datatype::String, &b"4242"[..]))),
        (Some(&[5; 16]), None),
    ] {
        let new = NewToken {
            collection: 3,
            id: &[4; 16],
            context: &context,
            fingerprint,
            subject: Some(&subjects[0]),
            token: "tok",
            value,
        };
        let row = keys.seal(&new).unwrap();
        assert_eq!(row.capacity(), row.len(), "made in one piece");
        assert_eq!(row[..5], [3 + u8::from(fingerprint.is_some()), 0, 0, 0, 1]);
        assert_eq!(subject_version(&row), Some(1));
        let opened = keys
            .open(3, &[4; 16], Some(&subjects[0]), &row, &mut buffer)
            .unwrap();
        assert_eq!((opened.token(), opened.value(&context)), ("tok", Ok(value)));
        for wrong in [
            None,
            Some(&subjects[1]),
            Some(&subjects[2]),
            Some(&subjects[3]),
        ] {
            assert!(
                keys.open(3, &[4; 16], wrong, &row, &mut buffer).is_err(),
                "{wrong:?}"
            );
        }
        // A key of the same subject and version that was made anew, as after a loss.
        let (again, _) = SubjectKey::generate(&keys, 9, [1; 16], 1).unwrap();
        assert!(
            keys.open(3, &[4; 16], Some(&again), &row, &mut buffer)
                .is_err()
        );
        let plain = keys
            .seal(&NewToken {
                subject: None,
                ..new
            })
            .unwrap();
        assert_eq!(subject_version(&plain), None);
        assert!(
            keys.open(3, &[4; 16], Some(&subjects[0]), &plain, &mut buffer)
                .is_err()
        );
        for at in 0..row.len() {
            let mut altered = row.clone();
            altered[at] ^= 1;
            assert!(
                keys.open(3, &[4; 16], Some(&subjects[0]), &altered, &mut buffer)
                    .is_err(),
                "byte {at}"
            );
            assert!(
                keys.open(3, &[4; 16], Some(&subjects[0]), &row[..at], &mut buffer)
                    .is_err(),
                "{at} bytes"
            );
        }
    }
}

#[test]
fn a_row_is_resealed_without_the_key_of_its_subject() {
    let (old, new) = (
        keys(7, &[(1, ACTIVE, 1)]),
        keys(7, &[(1, ACTIVE, 1), (2, ACTIVE, 2)]),
    );
    let subjects = subjects(&old);
    let context = old.context(b"");
    let mut buffer = RowBuffer::default();
    for (subject, other) in [
        (None, Some(&[1; 16])),
        (Some(&subjects[0]), None),
        (Some(&subjects[0]), Some(&[2; 16])),
    ] {
        for fingerprint in [None, Some(&[5; 16])] {
            let value = Some((Datatype::String, &b"4242"[..]));
            let token = NewToken {
                collection: 3,
                id: &[4; 16],
                context: &context,
                fingerprint,
                subject,
                token: "tok",
                value,
            };
            let row = old.seal(&token).unwrap();
            let id = subject.map(SubjectKey::id);
            let resealed = new
                .reseal(3, &[4; 16], id, &row, &mut buffer)
                .unwrap()
                .unwrap();
            assert_eq!(
                (resealed[4], resealed.len(), resealed.capacity()),
                (2, row.len(), row.len())
            );
            assert_eq!(subject_version(&resealed), subject.map(SubjectKey::version));
            let opened = new
                .open(3, &[4; 16], subject, &resealed, &mut buffer)
                .unwrap();
            assert_eq!((opened.token(), opened.value(&context)), ("tok", Ok(value)));
            for (collection, id, subject) in
                [(3, [4; 16], other), (2, [4; 16], id), (3, [3; 16], id)]
            {
                assert_eq!(
                    new.reseal(collection, &id, subject, &row, &mut buffer),
                    Ok(None)
                );
            }
        }
    }
}

#[test]
fn values_of_other_subjects_have_other_fingerprints() {
    let keys = keys(7, &[(1, ACTIVE, 1)]);
    let contexts = [keys.context(b""), keys.context(b"ctx")];
    let mut scopes = contexts.to_vec();
    for context in &contexts {
        for (subject, version) in [([1; 16], 1), ([1; 16], 3), ([2; 16], 1)] {
            scopes.push(keys.subject_scope(context, &subject, version));
        }
    }
    let print =
        |scope: &TokenContext| keys.fingerprint_of_value(3, scope, Datatype::String, b"4242");
    assert_eq!(scopes.iter().map(print).collect::<HashSet<_>>().len(), 8);
}

/// Every bit of every byte, of every prefix, and a byte more. All refuse, and all refuse alike.
#[test]
fn altered_rows_do_not_open() {
    let keys = keys(7, &[(1, ACTIVE, 1), (2, ACTIVE, 2)]);
    for value in [Some((Datatype::String, &b"4242"[..])), None] {
        let id = keys.id(3, "tok");
        let row = seal(&keys, &id, &keys.context(b"ctx"), "tok", value).unwrap();
        let mut buffer = RowBuffer::default();
        for at in 0..row.len() {
            for bit in 0..8 {
                let mut flipped = row.clone();
                flipped[at] ^= 1 << bit;
                assert_eq!(
                    keys.open(3, &id, None, &flipped, &mut buffer).err(),
                    Some(CannotOpen),
                    "byte {at} bit {bit}"
                );
            }
            assert_eq!(
                keys.open(3, &id, None, &row[..at], &mut buffer).err(),
                Some(CannotOpen),
                "{at} bytes"
            );
        }
        assert!(
            keys.open(3, &id, None, &[&row[..], &[0]].concat(), &mut buffer)
                .is_err()
        );
        assert_eq!(
            keys.open(3, &id, None, &row, &mut buffer).unwrap().token(),
            "tok",
            "and still opens after all that"
        );
    }
}

#[test]
fn a_row_opens_in_its_place_only() {
    let (a, b) = ([(1, ACTIVE, 1)], [(1, ACTIVE, 2)]);
    let home = keys(7, &a);
    let id = home.id(3, "tok");
    let row = seal(
        &home,
        &id,
        &home.context(b"ctx"),
        "tok",
        Some((Datatype::String, b"x")),
    )
    .unwrap();
    let told = ("tok".to_owned(), Some((Datatype::String, b"x".to_vec())));
    assert_eq!(open(&home, 3, id, b"ctx", &row), Ok(told));
    for (why, keys, collection, id, context) in [
        (
            "another app of the same secret",
            keys(8, &a),
            3,
            id,
            &b"ctx"[..],
        ),
        ("another app", keys(8, &b), 3, id, b"ctx"),
        ("another secret", keys(7, &b), 3, id, b"ctx"),
        ("another collection", keys(7, &a), 4, id, b"ctx"),
        (
            "another token's id",
            keys(7, &a),
            3,
            home.id(3, "tok2"),
            b"ctx",
        ),
        (
            "another collection's id",
            keys(7, &a),
            3,
            home.id(4, "tok"),
            b"ctx",
        ),
        ("another context", keys(7, &a), 3, id, b"ctx2"),
        ("no context", keys(7, &a), 3, id, b""),
        (
            "the version disabled",
            keys(7, &[(1, DISABLED, 1)]),
            3,
            id,
            b"ctx",
        ),
        (
            "the version's secret under another number",
            keys(7, &[(1, ACTIVE, 2), (2, ACTIVE, 1)]),
            3,
            id,
            b"ctx",
        ),
    ] {
        assert_eq!(
            open(&keys, collection, id, context, &row),
            Err(CannotOpen),
            "{why}"
        );
    }
}

/// As one writes a value to compare it: here all integers that say five are one.
fn written(_: Datatype, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(if value == [0xcc, 5] { &[5] } else { value });
}

#[test]
fn a_row_belongs_to_the_fingerprint_and_the_value_that_it_was_sealed_for() {
    let keys = keys(7, &[(1, ACTIVE, 1)]);
    let (id, context) = (keys.id(3, "tok"), keys.context(b"ctx"));
    let (mut buffer, own, other) = (RowBuffer::default(), [1; 16], [2; 16]);
    let five = (Datatype::Value, &[5_u8][..]);
    for (fingerprint, value, len) in [
        (None, Some(five), 56),
        (Some(&own), Some(five), 72),
        (Some(&own), None, 71),
    ] {
        let new = NewToken {
            collection: 3,
            id: &id,
            context: &context,
            fingerprint,
            subject: None,
            token: "tok",
            value,
        };
        let row = keys.seal(&new).unwrap();
        assert_eq!((row.len(), row.capacity()), (len, len), "made in one piece");
        let opened = keys.open(3, &id, None, &row, &mut buffer).unwrap();
        assert_eq!((opened.token(), opened.value(&context)), ("tok", Ok(value)));
        assert!(opened.is_of(&own, None, five.0, five.1, written));
        assert!(opened.is_of(&own, Some(&context), five.0, five.1, written));
        assert!(!opened.is_of(&own, Some(&keys.context(b"other")), five.0, five.1, written));
        assert!(
            opened.is_of(&own, None, five.0, &[0xcc, 5], written),
            "the same in other words"
        );
        let (bound, held) = (fingerprint.is_some(), value.is_some());
        assert_eq!(
            opened.is_of(&other, Some(&context), five.0, five.1, written),
            !bound
        );
        assert_eq!(opened.is_of(&own, None, five.0, &[6], written), !held);
        assert_eq!(
            opened.is_of(&own, None, Datatype::Binary, five.1, written),
            !held
        );
        // Neither layout reads as the other.
        let mut relabelled = row.clone();
        relabelled[0] = 3 - relabelled[0];
        assert_eq!(
            keys.open(3, &id, None, &relabelled, &mut buffer).err(),
            Some(CannotOpen)
        );
    }
}

#[test]
fn the_token_is_told_without_the_context_and_the_value_is_not() {
    let keys = keys(7, &[(1, ACTIVE, 1)]);
    let mut buffer = RowBuffer::default();
    for value in [Some((Datatype::String, &b"x"[..])), None] {
        let id = keys.id(3, "tok");
        let row = seal(&keys, &id, &keys.context(b"ctx"), "tok", value).unwrap();
        let opened = keys.open(3, &id, None, &row, &mut buffer).unwrap();
        assert_eq!(opened.token(), "tok");
        for other in [&b""[..], b"ct", b"ctx\0", b"CTX"] {
            assert_eq!(opened.value(&keys.context(other)), Err(CannotOpen));
        }
        assert_eq!(opened.value(&keys.context(b"ctx")), Ok(value));
    }
}

#[test]
fn the_newest_active_version_seals_and_ids_stay() {
    let table: [(&[Facts], Option<u32>); 5] = [
        (&[(1, ACTIVE, 1)], Some(1)),
        (&[(3, ACTIVE, 3), (1, ACTIVE, 1), (2, ACTIVE, 2)], Some(3)),
        (&[(1, ACTIVE, 1), (2, ACTIVE, 2), (3, DISABLED, 3)], Some(2)),
        (&[(1, DISABLED, 1), (2, ACTIVE, 2)], Some(2)),
        (&[(1, DISABLED, 1), (2, DISABLED, 2)], None),
    ];
    let first = keys(7, &[(1, ACTIVE, 1)]);
    let context = first.context(b"ctx");
    let hashes = |keys: &TokenKeys| {
        let context = keys.context(b"ctx");
        let of_value = keys.fingerprint_of_value(3, &context, Datatype::String, b"x");
        let client = keys.principal("relay");
        let of_call =
            keys.fingerprint_of_request(3, &context, &client, b"k", 0, Datatype::String, b"x");
        (context.0, keys.id(3, "tok"), of_value, of_call)
    };
    let id = first.id(3, "tok");
    let row = seal(&first, &id, &context, "tok", None).unwrap();
    for (list, newest) in table {
        let keys = keys(7, list);
        assert_eq!(keys.newest(), newest, "{list:?}");
        assert_eq!(
            hashes(&keys),
            hashes(&first),
            "of version 1, whatever its state"
        );
        let sealed = seal(&keys, &id, &context, "tok", None);
        match newest {
            Some(number) => {
                let sealed = sealed.unwrap();
                assert_eq!(sealed[1..5], number.to_be_bytes());
                assert!(open(&keys, 3, id, b"ctx", &sealed).is_ok());
                assert_eq!(open(&first, 3, id, b"ctx", &sealed).is_ok(), number == 1);
            }
            None => assert_eq!(sealed, Err(Error::NoTokenKey)),
        }
        let first_is_active = list.contains(&(1, ACTIVE, 1));
        assert_eq!(
            open(&keys, 3, id, b"ctx", &row).is_ok(),
            first_is_active,
            "{list:?}"
        );
    }
}

#[test]
fn a_resealed_row_is_under_the_newest_version_and_holds_the_same() {
    let (old, both) = (
        keys(7, &[(1, ACTIVE, 1)]),
        keys(7, &[(1, ACTIVE, 1), (2, ACTIVE, 2)]),
    );
    let newest = keys(7, &[(1, DISABLED, 1), (2, ACTIVE, 2)]);
    let (id, context) = (old.id(3, "tok"), old.context(b"c"));
    let (mut buffer, print) = (RowBuffer::default(), [9; 16]);
    for fingerprint in [None, Some(&print)] {
        for value in [
            None,
            Some((Datatype::String, &b"42"[..])),
            Some((Datatype::Value, b"\x2a")),
        ] {
            let new = NewToken {
                collection: 3,
                id: &id,
                context: &context,
                fingerprint,
                subject: None,
                token: "tok",
                value,
            };
            let row = old.seal(&new).unwrap();
            let resealed = both
                .reseal(3, &id, None, &row, &mut buffer)
                .unwrap()
                .expect("it opens");
            assert_eq!(
                (resealed[0], &resealed[1..5], resealed.len()),
                (row[0], &[0, 0, 0, 2][..], row.len())
            );
            let value = value.map(|(datatype, value)| (datatype, value.to_vec()));
            assert_eq!(
                open(&newest, 3, id, b"c", &resealed),
                Ok(("tok".to_owned(), value))
            );
            assert_eq!(open(&newest, 3, id, b"d", &resealed), Err(CannotOpen));
            let opened = newest.open(3, &id, None, &resealed, &mut buffer).unwrap();
            assert!(
                opened.is_of(&print, None, Datatype::String, b"42", written) || new.value.is_some()
            );
            // In another place, and under a version that does not open, nothing is sealed.
            assert_eq!(both.reseal(4, &id, None, &row, &mut buffer), Ok(None));
            assert_eq!(newest.reseal(3, &id, None, &row, &mut buffer), Ok(None));
        }
    }
    let none = keys(7, &[(1, DISABLED, 1)]);
    let row = seal(&old, &id, &context, "tok", None).unwrap();
    assert_eq!(none.reseal(3, &id, None, &row, &mut buffer), Ok(None));
}

#[test]
fn versions_are_numbered_from_one() {
    for list in [
        &[][..],
        &[(2, ACTIVE, 2)],
        &[(0, ACTIVE, 0), (1, ACTIVE, 1)],
        &[(1, ACTIVE, 1), (1, DISABLED, 2)],
        &[(1, ACTIVE, 1), (5, ACTIVE, 2), (5, ACTIVE, 2)],
    ] {
        assert_eq!(
            TokenKeys::new(7, versions(list)).err(),
            Some(Error::InvalidTokenKeys),
            "{list:?}"
        );
    }
    assert_eq!(
        keys(7, &[(u32::MAX, ACTIVE, 2), (1, ACTIVE, 1)]).newest(),
        Some(u32::MAX),
        "numbers may be missing"
    );
}

#[test]
fn keys_are_the_same_as_those_of_the_same_facts() {
    let base = keys(7, &[(1, ACTIVE, 1), (2, ACTIVE, 2)]);
    assert!(
        base.is_same(&keys(7, &[(2, ACTIVE, 2), (1, ACTIVE, 1)])),
        "in any order"
    );
    for (app, list) in [
        (8, &[(1, ACTIVE, 1), (2, ACTIVE, 2)][..]),
        (7, &[(1, ACTIVE, 1)]),
        (7, &[(1, ACTIVE, 1), (2, DISABLED, 2)]),
        (7, &[(1, ACTIVE, 1), (3, ACTIVE, 2)]),
        (7, &[(1, ACTIVE, 1), (2, ACTIVE, 3)]),
        (7, &[(1, ACTIVE, 3), (2, ACTIVE, 2)]),
        (7, &[(1, ACTIVE, 1), (2, ACTIVE, 2), (3, ACTIVE, 3)]),
    ] {
        assert!(
            !base.is_same(&keys(app, list)) && !keys(app, list).is_same(&base),
            "{app} {list:?}"
        );
    }
}

/// All hashes of one app differ as soon as anything they are of does, also where parts meet.
#[test]
fn hash_inputs_are_unambiguous() {
    use Datatype::{Binary, String, Value};
    let (one, other) = (keys(7, &[(1, ACTIVE, 1)]), keys(8, &[(1, ACTIVE, 1)]));
    let mut seen = HashSet::new();
    let mut count = 0;
    let mut add = |hash: [u8; 16]| {
        count += 1;
        seen.insert(hash);
    };
    for keys in [&one, &other] {
        let clients = ["", "a", "ab", "\0", "cn:a"].map(|name| keys.principal(name));
        clients.iter().for_each(|client| add(client.0));
        for context in [&b""[..], b"a", b"ab", b"\0"] {
            let context = keys.context(context);
            add(context.0);
            for collection in [1, 2, 256] {
                for datatype in [String, Binary, Value] {
                    for value in [&b""[..], b"a", b"ab", b"\0"] {
                        add(keys.fingerprint_of_value(collection, &context, datatype, value));
                        for (key, index) in
                            [(&b""[..], 0), (b"a", 0), (b"ab", 0), (b"a", 1), (b"b", 256)]
                        {
                            for client in &clients {
                                add(keys.fingerprint_of_request(
                                    collection, &context, client, key, index, datatype, value,
                                ));
                            }
                        }
                    }
                }
            }
        }
        for collection in [1, 2, 256] {
            ["", "a", "ab", "\0"]
                .iter()
                .for_each(|token| add(keys.id(collection, token)));
        }
    }
    assert_eq!(seen.len(), count);
}

#[test]
fn a_wrapped_secret_opens_under_its_kek_and_record_only() {
    let kek = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
    let other = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
    let secret = TokenSecret::generate().unwrap();
    assert_ne!(secret.expose(), TokenSecret::generate().unwrap().expose());
    let wrapped = kek.wrap_secret(secret.expose(), b"shop/1").unwrap();
    assert_eq!(wrapped.len(), 60);
    assert_eq!(
        &*kek.unwrap_secret(&wrapped, b"shop/1").unwrap(),
        secret.expose()
    );
    let scalar = kek
        .wrap(&Scalar::new(Zeroizing::new(*secret.expose())), b"shop/1")
        .unwrap();
    for at in 0..wrapped.len() {
        let mut altered = wrapped.clone();
        altered[at] ^= 1;
        assert_eq!(
            kek.unwrap_secret(&altered, b"shop/1").err(),
            Some(Error::Unwrap)
        );
    }
    for (kek, wrapped, bound) in [
        (&kek, &wrapped[..], &b"shop/2"[..]),
        (&other, &wrapped, b"shop/1"),
        (&kek, &wrapped[1..], b"shop/1"),
        (&kek, &[], b"shop/1"),
        (&kek, &scalar, b"shop/1"),
    ] {
        assert_eq!(kek.unwrap_secret(wrapped, bound).err(), Some(Error::Unwrap));
    }
    assert_eq!(
        kek.unwrap(&wrapped, b"shop/1").err(),
        Some(Error::Unwrap),
        "a secret is no scalar"
    );
    let pair = KeyPair::generate(sealwire_crypto::Curve::P256)
        .unwrap()
        .scalar()
        .unwrap();
    assert!(
        kek.unwrap(&kek.wrap(&pair, b"shop/1").unwrap(), b"shop/1")
            .is_ok()
    );
}

/// Would not compile if a feature that wipes were lost.
#[test]
fn keyed_hashes_wipe_themselves() {
    fn wipes<T: ZeroizeOnDrop>() {}
    // HMAC is two of these and has no mark of its own.
    wipes::<Sha256>();
    wipes::<Zeroizing<[u8; 32]>>();
}

/// Formats every type that holds a secret, a token or a value and looks for it.
#[test]
fn secrets_are_not_printed() {
    let versions = versions(&[(1, ACTIVE, 0xab), (2, DISABLED, 0xcd)]);
    let before = format!("{versions:?}");
    let keys = TokenKeys::new(7, versions).unwrap();
    let (id, context) = (keys.id(3, "canary"), keys.context(b"canary"));
    let row = seal(
        &keys,
        &id,
        &context,
        "canary",
        Some((Datatype::String, b"canary")),
    )
    .unwrap();
    let mut buffer = RowBuffer::default();
    let opened = format!("{:?}", keys.open(3, &id, None, &row, &mut buffer).unwrap());
    let printed = format!("{before} {keys:?} {context:?} {opened} {buffer:?}");
    assert!(printed.contains("number: 2, state: Disabled"), "{printed}");
    for secret in ["abab", "171, 171", "cdcd", "205, 205", "canary", "99, 97"] {
        assert!(!printed.contains(secret), "{secret} in {printed}");
    }
}

proptest! {
    #[test]
    fn arbitrary_rows_never_open_and_never_panic(bytes: Vec<u8>, number in 0u32..3) {
        let keys = keys(7, &[(1, ACTIVE, 1)]);
        let mut buffer = RowBuffer::default();
        prop_assert!(keys.open(3, &[0; 16], None, &bytes, &mut buffer).is_err());
        let row = [&[1][..], &number.to_be_bytes(), &bytes].concat();
        prop_assert!(keys.open(3, &[0; 16], None, &row, &mut buffer).is_err());
    }

    /// Whatever an authentic plaintext holds, reading it gives what was sealed or nothing.
    #[test]
    fn arbitrary_plaintexts_never_panic(bytes: Vec<u8>, is_bound: bool) {
        let _ = super::super::row::OpenedToken::read(is_bound, &bytes);
    }
}
