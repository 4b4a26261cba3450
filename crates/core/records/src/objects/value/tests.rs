//! Tables of valid and invalid values.

use proptest::prelude::*;
use sealwire_msgpack::write;

use super::*;

/// Encodes a string.
pub(crate) fn packed(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write::str(&mut out, text);
    out
}

fn binary(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write::bin(&mut out, bytes);
    out
}

/// Checks strings. An expected `None` is an error.
fn check_texts<'a>(
    property_type: PropertyType,
    cases: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
) {
    for (given, expected) in cases {
        let stored = check(property_type, &packed(given)).ok();
        assert_eq!(
            stored.as_ref().map(|stored| stored.to_vec()),
            expected.map(packed),
            "{property_type} {given:?}"
        );
        if let Some(stored) = stored {
            assert_eq!(
                check(property_type, &stored).unwrap(),
                stored,
                "{property_type} {given:?} twice"
            );
        }
    }
}

#[test]
fn strings() {
    let longest = "x".repeat(VALUE_BYTES_MAX);
    let longer = "x".repeat(VALUE_BYTES_MAX + 1);
    check_texts(
        PropertyType::String,
        [
            ("", Some("")),
            ("a\0b", Some("a\0b")),
            (&longest, Some(&longest)),
            (&longer, None),
        ],
    );
    assert!(check(PropertyType::String, &[0xa1, 0xff]).is_err());
    assert!(
        check(PropertyType::String, &[0xd9, 1, b'a']).is_ok_and(|stored| *stored == packed("a"))
    );
    let indexed = packed(&"x".repeat(INDEXED_STRING_BYTES_MAX));
    assert!(check_indexed(PropertyType::String, &indexed).is_ok());
    let long = packed(&"x".repeat(INDEXED_STRING_BYTES_MAX + 1));
    assert!(check_indexed(PropertyType::String, &long).is_err());
    assert!(check_indexed(PropertyType::Name, &long).is_ok());
}

#[test]
fn integers() {
    let cases: [(&[u8], Option<&[u8]>); 9] = [
        (&[5], Some(&[5])),
        (&[0xd3, 0, 0, 0, 0, 0, 0, 0, 5], Some(&[5])),
        (
            &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255],
            Some(&[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]),
        ),
        (
            &[0xd3, 128, 0, 0, 0, 0, 0, 0, 0],
            Some(&[0xd3, 128, 0, 0, 0, 0, 0, 0, 0]),
        ),
        (&[0xff], Some(&[0xff])),
        (&[0xcb, 0x40, 0x14, 0, 0, 0, 0, 0, 0], None),
        (&[0xa1, b'5'], None),
        (&[5, 5], None),
        (&[], None),
    ];
    for (given, expected) in cases {
        let stored = check(PropertyType::Integer, given).ok();
        assert_eq!(
            stored.as_ref().map(|stored| &stored[..]),
            expected,
            "{given:x?}"
        );
    }
}

#[test]
fn decimals() {
    let most = "9".repeat(38);
    let more = format!("0.{}", "9".repeat(38));
    check_texts(
        PropertyType::Decimal,
        [
            ("-12.50", Some("-12.50")),
            ("+7", Some("7")),
            ("007.10", Some("7.10")),
            ("0", Some("0")),
            ("-0.00", Some("-0.00")),
            (&most, Some(&most)),
            (&more, None),
            ("", None),
            ("-", None),
            (".5", None),
            ("5.", None),
            ("1e3", None),
            ("1,5", None),
            ("1.2.3", None),
            ("--1", None),
            (" 1", None),
            ("NaN", None),
            ("١", None),
        ],
    );
    let stored = check(PropertyType::Decimal, &[0xd0, 0xf4]).unwrap();
    assert_eq!(*stored, packed("-12"));
    assert!(check(PropertyType::Decimal, &[0xca, 0, 0, 0, 0]).is_err());
}

#[test]
fn booleans() {
    for (given, is_valid) in [
        (&[0xc3][..], true),
        (&[0xc2], true),
        (&[1], false),
        (&[0xc0], false),
        (&[], false),
    ] {
        assert_eq!(
            check(PropertyType::Boolean, given).is_ok_and(|stored| *stored == given),
            is_valid,
            "{given:x?}"
        );
    }
}

#[test]
fn dates() {
    check_texts(
        PropertyType::Date,
        [
            ("2024-02-29", Some("2024-02-29")),
            ("2000-02-29", Some("2000-02-29")),
            ("0001-01-01", Some("0001-01-01")),
            ("9999-12-31", Some("9999-12-31")),
            ("1900-02-29", None),
            ("2023-02-29", None),
            ("2023-04-31", None),
            ("2023-13-01", None),
            ("2023-00-01", None),
            ("2023-01-00", None),
            ("0000-01-01", None),
            ("23-01-01", None),
            ("2023-1-1", None),
            ("2023/01/01", None),
            ("+023-01-01", None),
            ("2023-01-01T00:00:00Z", None),
            ("", None),
        ],
    );
}

#[test]
fn timestamps() {
    check_texts(
        PropertyType::Timestamp,
        [
            ("2026-01-31T12:00:00+01:00", Some("2026-01-31T11:00:00Z")),
            ("2026-01-01T00:30:00+01:00", Some("2025-12-31T23:30:00Z")),
            (
                "2025-12-31T23:30:00.250-01:30",
                Some("2026-01-01T01:00:00.250Z"),
            ),
            ("2026-01-31t12:00:00z", Some("2026-01-31T12:00:00Z")),
            (
                "2026-01-31T12:00:00.123456789Z",
                Some("2026-01-31T12:00:00.123456789Z"),
            ),
            ("2026-01-31T12:00:00-00:00", Some("2026-01-31T12:00:00Z")),
            ("2026-01-31T12:00:00.1234567890Z", None),
            ("2026-01-31T12:00:00.Z", None),
            ("2026-01-31T12:00:00", None),
            ("2026-01-31 12:00:00Z", None),
            ("2026-01-31T24:00:00Z", None),
            ("2026-01-31T12:60:00Z", None),
            ("2016-12-31T23:59:60Z", None),
            ("2026-01-31T12:00:00+24:00", None),
            ("2026-01-31T12:00:00+01:60", None),
            ("2026-01-31T12:00:00+0100", None),
            ("2026-02-30T12:00:00Z", None),
            ("0001-01-01T00:00:00+01:00", None),
            ("9999-12-31T23:59:59-01:00", None),
            ("2026-01-31T12:00Z", None),
            ("", None),
        ],
    );
}

#[test]
fn timestamp_extensions() {
    let extensions: [(&[u8], Option<&str>); 8] = [
        (&[0xd6, 0xff, 0, 0, 0, 1], Some("1970-01-01T00:00:01Z")),
        (
            &[0xd7, 0xff, 0, 0, 0, 4, 0, 0, 0, 1],
            Some("1970-01-01T00:00:01.000000001Z"),
        ),
        (
            &[
                0xc7, 12, 0xff, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
            ],
            Some("1969-12-31T23:59:59Z"),
        ),
        (
            &[
                0xc7, 12, 0xff, 0, 0, 0, 0, 127, 255, 255, 255, 255, 255, 255, 255,
            ],
            None,
        ),
        (
            &[0xc7, 12, 0xff, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            None,
        ),
        (&[0xc7, 3, 0xff, 0, 0, 0], None),
        (&[0xd6, 1, 0, 0, 0, 1], None),
        (&[1], None),
    ];
    for (given, expected) in extensions {
        let stored = check(PropertyType::Timestamp, given).ok();
        assert_eq!(
            stored.map(|stored| stored.to_vec()),
            expected.map(packed),
            "{given:x?}"
        );
    }
}

#[test]
fn json() {
    let deep = |depth: usize| [vec![0x91; depth], vec![1]].concat();
    let cases: [(Vec<u8>, Option<Vec<u8>>); 11] = [
        (
            vec![0x81, 0xd9, 1, b'a', 0xcd, 0, 5],
            Some(vec![0x81, 0xa1, b'a', 5]),
        ),
        (
            vec![0x82, 0xa1, b'b', 1, 0xa1, b'a', 0xc0],
            Some(vec![0x82, 0xa1, b'b', 1, 0xa1, b'a', 0xc0]),
        ),
        (vec![0x90], Some(vec![0x90])),
        (vec![0xc4, 1, 0xff], Some(vec![0xc4, 1, 0xff])),
        (deep(JSON_DEPTH_MAX), Some(deep(JSON_DEPTH_MAX))),
        (deep(JSON_DEPTH_MAX + 1), None),
        (vec![0xc0], None),
        (vec![0x91, 0xd4, 1, 1], None),
        (vec![0x91, 0xa1, 0xff], None),
        (vec![0xdf, 255, 255, 255, 255, 1], None),
        (vec![1, 1], None),
    ];
    for (given, expected) in cases {
        assert_eq!(
            check(PropertyType::Json, &given)
                .ok()
                .map(|stored| stored.to_vec()),
            expected,
            "{given:x?}"
        );
    }
    assert!(
        check(
            PropertyType::Json,
            &packed(&"x".repeat(VALUE_BYTES_MAX - 5))
        )
        .is_ok()
    );
    assert!(check(PropertyType::Json, &packed(&"x".repeat(VALUE_BYTES_MAX))).is_err());
    // Long encodings of short values: 64 KiB of integers in 9 bytes each.
    let wide = [
        vec![0xdc, 255, 255],
        [0xd3, 0, 0, 0, 0, 0, 0, 0, 1].repeat(65535),
    ]
    .concat();
    assert!(check(PropertyType::Json, &wide).is_err());
}

#[test]
fn blobs() {
    let cases: [(Vec<u8>, Option<&[u8]>); 9] = [
        (binary(&[1, 2]), Some(&[1, 2])),
        (binary(&[]), Some(&[])),
        (packed("AQI="), Some(&[1, 2])),
        (packed(""), Some(&[])),
        (packed("AQI"), None),
        (packed("AQJ="), None),
        (packed("AQ I="), None),
        (packed("-_-_"), None),
        (vec![1], None),
    ];
    for (given, expected) in cases {
        let stored = check(PropertyType::Blob, &given).ok();
        assert_eq!(
            stored.map(|stored| stored.to_vec()),
            expected.map(binary),
            "{given:x?}"
        );
    }
    assert!(check(PropertyType::Blob, &binary(&vec![0; VALUE_BYTES_MAX])).is_ok());
    assert!(check(PropertyType::Blob, &binary(&vec![0; VALUE_BYTES_MAX + 1])).is_err());
    assert!(
        check(
            PropertyType::Blob,
            &packed(&STANDARD.encode(vec![0; VALUE_BYTES_MAX]))
        )
        .is_ok()
    );
    assert!(
        check(
            PropertyType::Blob,
            &packed(&STANDARD.encode(vec![0; VALUE_BYTES_MAX + 1]))
        )
        .is_err()
    );
}

/// Checks that strings are stored as given, or are invalid.
fn check_as_given(property_type: PropertyType, valid: &[&str], invalid: &[&str]) {
    check_texts(
        property_type,
        valid
            .iter()
            .map(|text| (*text, Some(*text)))
            .chain(invalid.iter().map(|text| (*text, None))),
    );
}

/// Returns the longest email address of 254 bytes.
fn longest_email() -> String {
    format!(
        "{}@{}.example.com",
        "a".repeat(64),
        ["b".repeat(63), "c".repeat(63), "d".repeat(49)].join(".")
    )
}

#[test]
fn emails() {
    let longest = longest_email();
    assert_eq!(longest.len(), 254);
    let valid = [
        "jane@example.com",
        "Jane.Doe+news@Example.COM",
        "jörg@münchen.example",
        "用户@例え.テスト",
        "\"a b\"@example.com",
        "\"a@b\"@example.com",
        "\"a\\\"b\"@example.com",
        "o'neil@example.co.uk",
        &longest,
    ];
    check_as_given(PropertyType::Email, &valid, &[]);
}

#[test]
fn invalid_emails() {
    let longer = longest_email().replacen("dd", "ddd", 1);
    let long_local = format!("{}@example.com", "a".repeat(65));
    let invalid = [
        "",
        "jane",
        "@example.com",
        "jane@",
        "jane@localhost",
        "jane@example.com.",
        "jane@exa mple.com",
        "jane@-example.com",
        "jane@example..com",
        "jane@[192.0.2.1]",
        "jane@exam_ple.com",
        "a@b@example.com",
        "Jane <jane@example.com>",
        "jane@example.com, joe@example.com",
        "ja ne@example.com",
        "jane\n@example.com",
        "\"a\"b\"@example.com",
        "\"a\\\"@example.com",
        "\"@example.com",
        &longer,
        &long_local,
    ];
    check_as_given(PropertyType::Email, &[], &invalid);
}

#[test]
fn phones() {
    let valid = [
        "+49 151 23456789",
        "0049 151/2345.678",
        "+1 (415) 555-2671",
        "+39 06 6982",
        "+1234567",
        "+123456789012345",
    ];
    let invalid = [
        "",
        "0151 2345678",
        "415-555-2671",
        "+123456",
        "+1234567890123456",
        "+49 (0) 151 2345678",
        "+0491512345",
        "00 0491512345",
        "+49 151 abc 4567",
        "+49151234567 ext 5",
        "++49151234567",
        "+٤٩١٥١٢٣٤٥",
        "+1234567                                                               ",
    ];
    check_as_given(PropertyType::Phone, &valid, &invalid);
    let error = check(PropertyType::Phone, &packed("0151 2345678")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a value of type phone must begin with + or 00 and the country code, like +49 or 0049"
    );
}

#[test]
fn cards() {
    let visa = Some("4242424242424242");
    check_texts(
        PropertyType::Card,
        [
            ("4242424242424242", visa),
            ("4242 4242 4242 4242", visa),
            ("4242-4242-4242-4242", visa),
            ("3782 822463 10005", Some("378282246310005")),
            ("6304000000000000001", None),
            ("4242424242424243", None),
            ("4242  4242 4242 4242", None),
            (" 4242424242424242", None),
            ("4242424242424242-", None),
            ("4242.4242.4242.4242", None),
            ("42424242424", None),
            ("42424242424242424242", None),
            ("", None),
        ],
    );
}

#[test]
fn ibans() {
    check_texts(
        PropertyType::Iban,
        [
            (
                "DE89 3704 0044 0532 0130 00",
                Some("DE89370400440532013000"),
            ),
            ("de89370400440532013000", Some("DE89370400440532013000")),
            (
                "GB82 WEST 1234 5698 7654 32",
                Some("GB82WEST12345698765432"),
            ),
            ("NO93 8601 1117 947", Some("NO9386011117947")),
            ("DE88 3704 0044 0532 0130 00", None),
            ("D389370400440532013000", None),
            ("DE89-3704-0044-0532-0130-00", None),
            ("DE89", None),
            ("", None),
            ("DE893704004405320130003704004405320", None),
        ],
    );
}

#[test]
fn national_ids() {
    let longest = "a".repeat(32);
    let longer = "a".repeat(33);
    let valid = [
        "078-05-1120",
        "12345678Z",
        "AB 12 34 56 C",
        "123.456.789-09",
        "СН123456",
        "A/123",
        &longest,
        "12/345",
    ];
    let invalid = [
        "", "123", "....", "A-1-2", "1234_5", "12345\n", "(1234)", &longer,
    ];
    check_as_given(PropertyType::NationalId, &valid, &["A/12"]);
    check_as_given(PropertyType::NationalId, &[], &invalid);
}

#[test]
fn names_and_addresses() {
    let (longest, longer) = ("n".repeat(1024), "n".repeat(1025));
    let invalid = [
        "", " ", "\u{200B}", "a\nb", "a\tb", "a\u{7f}", "a\u{85}", &longer,
    ];
    check_as_given(
        PropertyType::Name,
        &["Jane", "  Jane ", "Ma\u{200B}ry", "王", &longest],
        &invalid,
    );
    let (longest, longer) = ("a".repeat(4096), "a".repeat(4097));
    let valid = [
        "1 Main Street\nSpringfield",
        "1 Main Street\r\nSpringfield",
        &longest,
    ];
    check_as_given(
        PropertyType::Address,
        &valid,
        &["", "\n", "a\tb", "a\rb", "a\0", &longer],
    );
}

#[test]
fn ips() {
    check_texts(
        PropertyType::Ip,
        [
            ("192.0.2.1", Some("192.0.2.1")),
            ("2001:DB8:0:0::1", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("::ffff:192.0.2.1")),
            ("192.0.2", None),
            ("192.0.2.256", None),
            ("192.0.02.1", None),
            ("192.0.2.1/24", None),
            ("fe80::1%eth0", None),
            ("[::1]", None),
            ("", None),
        ],
    );
}

#[test]
fn nil_and_other_kinds_are_no_values() {
    for property_type in PropertyType::ALL {
        assert!(
            check(property_type, &[0xc0]).is_err(),
            "{property_type} nil"
        );
        assert!(
            check(property_type, &[0xc1]).is_err(),
            "{property_type} reserved"
        );
        assert!(
            check(property_type, &[]).is_err(),
            "{property_type} nothing"
        );
        assert!(
            property_type == PropertyType::Json || check(property_type, &[0x90]).is_err(),
            "{property_type} array"
        );
    }
}

#[test]
fn errors_show_no_value() {
    for property_type in PropertyType::ALL {
        let Err(error) = check(property_type, &packed("Qz\u{1}~QzCanary")) else {
            continue;
        };
        let shown = format!("{error} {error:?}");
        assert!(
            shown.contains(property_type.name()) && !shown.contains("Qz"),
            "{shown}"
        );
    }
}

proptest! {
    #[test]
    fn a_stored_value_is_stored_again(bytes: Vec<u8>, text in "[ -~à-ü０-９@.+\u{200b}-]{0,40}") {
        for property_type in PropertyType::ALL {
            for raw in [bytes.clone(), packed(&text)] {
                if let Ok(stored) = check(property_type, &raw) {
                    prop_assert_eq!(&check(property_type, &stored), &Ok(stored));
                }
            }
        }
    }

    #[test]
    fn timestamps_agree_with_the_calendar(seconds in -62_135_596_800i64..=253_402_300_799) {
        let bytes = [&[0xc7, 12, 0xff, 0, 0, 0, 0][..], &seconds.to_be_bytes()].concat();
        let stored = check(PropertyType::Timestamp, &bytes).unwrap();
        let text = text_of(&stored).unwrap();
        let at = time::OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        prop_assert_eq!(&text[..10], at.date().to_string());
        prop_assert_eq!(&check(PropertyType::Timestamp, &packed(text)).unwrap(), &stored);
    }
}
