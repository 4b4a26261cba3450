//! Golden hashes, and what terms of different places have in common.

use proptest::prelude::*;
use zeroize::Zeroizing;

use super::*;
use crate::objects::value::tests::packed;
use crate::objects::{PropertyName, PropertyType, Values, check};

const COLLECTION: u32 = 3;

fn keys(app: u32) -> ObjectKeys {
    ObjectKeys::new(app, &Zeroizing::new(std::array::from_fn(|at| at as u8)))
}

fn index(number: u32, bits: Option<u8>, prefixes: &[u8]) -> Index {
    Index {
        number,
        bits,
        prefixes: prefixes.to_vec(),
        was_unique: false,
    }
}

fn property(property_type: PropertyType, index: Option<Index>) -> Property {
    let name = PropertyName::new("p").unwrap();
    let (nullable, unique, encrypted, description) = (true, false, true, String::new());
    Property {
        number: 1,
        name,
        property_type,
        nullable,
        unique,
        index,
        encrypted,
        description,
    }
}

fn hex(bytes: [u8; 16]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The expected hashes come from Python's hmac and the layout in the documentation of the modules.
#[test]
fn hashes_are_golden() {
    let keys = keys(7);
    let exact = |number, bits, normalized: &[u8]| {
        hex(keys
            .exact(COLLECTION, &index(number, bits, &[]), normalized)
            .hash)
    };
    let prefix = |chars, text: &str| {
        keys.prefix(COLLECTION, &index(5, None, &[]), chars, text.as_bytes())
            .map(|term| hex(term.hash))
    };
    let values = Values::from_iter([
        (9, Zeroizing::new(vec![5])),
        (1, Zeroizing::new(packed("x"))),
    ]);
    let id = std::array::from_fn(|at| at as u8);
    let cases = [
        (
            exact(5, None, b"jane@example.com"),
            "9ff3967f491f75282a1b6b28ea4c1c07",
        ),
        (
            exact(5, Some(12), b"jane@example.com"),
            "9ff00000000000000000000000000000",
        ),
        (
            exact(5, Some(8), b"jane@example.com"),
            "9f000000000000000000000000000000",
        ),
        (
            exact(6, None, b"jane@example.com"),
            "522ace0a7946d5ba7599ca2e6618290b",
        ),
        (exact(5, None, b""), "d9be72a55971ff0aad04e98b1c7c929a"),
        (exact(5, None, &[1]), "3761da79b3a443c9a4f3021c667fd48c"),
        (
            prefix(3, "josé").unwrap(),
            "cad08463338e461dd8753b12bc0c6c77",
        ),
        (
            prefix(4, "josé").unwrap(),
            "01efe27c9eea2007662ea754e83e6480",
        ),
        (
            hex(keys.id_of_request(COLLECTION, "spiffe://org/relay", b"order-17", 2)),
            "616192ca26e083e888eed68ef60deaf4",
        ),
        (
            hex(keys.creation_hash(COLLECTION, &id, &values, b"details")),
            "cc156d09e1d8a101cb995f9a7a96ce12",
        ),
    ];
    for (hash, expected) in cases {
        assert_eq!(hash, expected);
    }
    assert_eq!(prefix(5, "josé"), None);
    assert_eq!(prefix(0, "josé"), None);
    assert_eq!(
        keys.prefix(COLLECTION, &index(5, None, &[]), 1, &[0xff]),
        None
    );
}

#[test]
fn a_term_belongs_to_its_place() {
    let (normalized, place) = (b"jane", index(5, None, &[]));
    let term = keys(7).exact(COLLECTION, &place, normalized).hash;
    let others = [
        keys(8).exact(COLLECTION, &place, normalized).hash,
        keys(7).exact(COLLECTION + 1, &place, normalized).hash,
        keys(7)
            .exact(COLLECTION, &index(6, None, &[]), normalized)
            .hash,
        keys(7).exact(COLLECTION, &place, b"janet").hash,
        keys(7)
            .prefix(COLLECTION, &place, 4, normalized)
            .unwrap()
            .hash,
        ObjectKeys::new(7, &Zeroizing::new([9; 32]))
            .exact(COLLECTION, &place, normalized)
            .hash,
    ];
    assert!(!others.contains(&term));
}

#[test]
fn terms_of_a_value() {
    let keys = keys(7);
    let count = |property: &Property, text: &str| {
        let stored = check(property.property_type, &packed(text)).unwrap();
        keys.terms_of(COLLECTION, property, &stored).len()
    };
    let with = |index| property(PropertyType::Name, Some(index));
    assert_eq!(count(&property(PropertyType::Name, None), "Jane"), 0);
    assert_eq!(count(&with(index(5, None, &[])), "Jane"), 1);
    assert_eq!(count(&with(index(5, None, &[1, 2, 4, 5])), "Jane"), 4);
    assert_eq!(count(&with(index(5, None, &[1, 2, 4, 5])), "J"), 2);
    let unique = Property {
        unique: true,
        ..with(index(5, None, &[1]))
    };
    assert_eq!(count(&unique, "Jane"), 2);
    let stored = check(PropertyType::Name, &packed(" JANE ")).unwrap();
    let terms = keys.terms_of(COLLECTION, &unique, &stored);
    assert_eq!(
        terms[0],
        keys.exact(COLLECTION, unique.index.as_ref().unwrap(), b"jane")
    );
    assert_eq!(
        terms[1],
        keys.prefix(COLLECTION, unique.index.as_ref().unwrap(), 1, b"jane")
            .unwrap()
    );
}

#[test]
fn a_search_takes_the_longest_prefix_that_it_can() {
    let place = index(5, None, &[2, 4]);
    for (searched, expected) in [
        ("", None),
        ("é", None),
        ("éé", Some(2)),
        ("abc", Some(2)),
        ("abcdef", Some(4)),
    ] {
        assert_eq!(
            place.prefix_length_for(searched.as_bytes()),
            expected,
            "{searched}"
        );
    }
    assert_eq!(index(5, None, &[]).prefix_length_for(b"abc"), None);
    let stored = check(PropertyType::Name, &packed("Janet")).unwrap();
    let terms = keys(7).terms_of(
        COLLECTION,
        &property(PropertyType::Name, Some(place.clone())),
        &stored,
    );
    let searched = crate::objects::normalize_prefix(PropertyType::Name, "JANE").unwrap();
    let length = place.prefix_length_for(&searched).unwrap();
    assert_eq!(
        keys(7).prefix(COLLECTION, &place, length, &searched),
        terms.last().copied()
    );
}

#[test]
fn ids_are_uuids_of_version_8_and_differ() {
    let keys = keys(7);
    let id = keys.id_of_request(COLLECTION, "relay", b"key", 0);
    assert_eq!((id[6] >> 4, id[8] >> 6), (8, 2));
    assert_eq!(id, keys.id_of_request(COLLECTION, "relay", b"key", 0));
    for other in [
        keys.id_of_request(COLLECTION, "relay", b"key", 1),
        keys.id_of_request(COLLECTION, "relay", b"kez", 0),
        keys.id_of_request(COLLECTION + 1, "relay", b"key", 0),
        self::keys(8).id_of_request(COLLECTION, "relay", b"key", 0),
        keys.id_of_request(COLLECTION, "other", b"key", 0),
        keys.id_of_request(COLLECTION, "cn:relay", b"key", 0),
        keys.id_of_request(COLLECTION, "relayk", b"ey", 0),
        keys.id_of_request(COLLECTION, "rela", b"ykey", 0),
        keys.id_of_request(COLLECTION, "", b"relaykey", 0),
    ] {
        assert_ne!(id, other);
    }
}

#[test]
fn a_creation_hash_covers_values_and_details() {
    let keys = keys(7);
    let values = |value: &str| Values::from_iter([(1, Zeroizing::new(packed(value)))]);
    let hash = keys.creation_hash(COLLECTION, &[1; 16], &values("x"), b"d");
    assert_eq!(
        hash,
        keys.creation_hash(COLLECTION, &[1; 16], &values("x"), b"d")
    );
    for other in [
        keys.creation_hash(COLLECTION, &[2; 16], &values("x"), b"d"),
        keys.creation_hash(COLLECTION, &[1; 16], &values("y"), b"d"),
        keys.creation_hash(COLLECTION, &[1; 16], &values("x"), b"e"),
        keys.creation_hash(COLLECTION, &[1; 16], &Values::new(), b"d"),
        keys.creation_hash(COLLECTION + 1, &[1; 16], &values("x"), b"d"),
    ] {
        assert_ne!(hash, other);
    }
}

#[test]
fn debug_output_shows_no_key() {
    assert_eq!(format!("{:?}", keys(7)), "ObjectKeys { app: 7, .. }");
}

proptest! {
    #[test]
    fn terms_keep_their_bits_and_none_stands_twice(text in "\\PC{1,30}", bits in 8u8..=16) {
        prop_assume!(check(PropertyType::Name, &packed(&text)).is_ok());
        let stored = check(PropertyType::Name, &packed(&text)).unwrap();
        let of = |bits| {
            let property = property(PropertyType::Name, Some(index(5, bits, &[1, 2, 3, 4])));
            keys(7).terms_of(COLLECTION, &property, &stored)
        };
        let (full, few) = (of(None), of(Some(bits)));
        prop_assert!(few.len() <= full.len());
        for term in &few {
            prop_assert_eq!(u128::from_be_bytes(term.hash).trailing_zeros() >= 128 - u32::from(bits), true);
        }
        let cut = |hash: [u8; 16]| u128::from_be_bytes(hash) >> (128 - u32::from(bits));
        prop_assert_eq!(cut(full[0].hash), cut(few[0].hash));
        let mut apart = few.clone();
        apart.sort_unstable();
        apart.dedup();
        prop_assert_eq!(apart.len(), few.len());
    }
}
