use super::Kind;

#[track_caller]
fn check(kind: Kind, yes: &[&str], no: &[&str]) {
    for text in yes {
        assert!(kind.knows(text), "{kind}: {text}");
    }
    for text in no {
        assert!(!kind.knows(text), "{kind}: {text}");
    }
    for text in yes {
        for around in
            [format!(" {text}"), format!("{text} "), format!("{text}\n"), format!("no. {text}"), String::new()]
        {
            assert!(!kind.knows(&around), "{kind}: {around:?}");
        }
    }
}

#[test]
fn cards() {
    check(
        Kind::Card,
        &[
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "5555555555554444",
            "378282246310005",
            "3782 822463 10005",
            "6011111111111117",
            "30569309025904",
            "2223003122003222",
            "4222222222222",
            "6304000000000000000",
        ],
        &[
            "4111111111111112",
            "4111111111111121",
            "411111111111111",
            "4111  1111 1111 1111",
            "4111.1111.1111.1111",
            "4111 1111 1111 111a",
            "0000000000000000",
            "4444444444444444",
            "1111111111111117",
            "9111111111111111",
            "63040000000000000000",
            "４１１１１１１１１１１１１１１１",
            "",
        ],
    );
}

#[test]
fn emails() {
    check(
        Kind::Email,
        &[
            "a@b.co",
            "first.last+tag@mail.example.com",
            "o'brien@example.ie",
            "josé@correo.españa.es",
            "用户@例子.公司",
            "A_B@X-Y.ORG",
        ],
        &[
            "a@b",
            "a@localhost",
            "@example.com",
            "a@",
            "a b@example.com",
            ".a@example.com",
            "a.@example.com",
            "a..b@example.com",
            "a@example..com",
            "a@-example.com",
            "a@example-.com",
            "a@example.c",
            "a@192.168.0.1",
            "a@b@example.com",
            "a@example.com,",
            "<a@example.com>",
            "a@exa_mple.com",
            "\"a\"@example.com",
        ],
    );
    assert!(Kind::Email.knows(&format!("{}@example.com", "x".repeat(64))));
    assert!(!Kind::Email.knows(&format!("{}@example.com", "x".repeat(65))));
    assert!(!Kind::Email.knows(&format!("a@{}.com", "x".repeat(64))));
}

#[test]
fn ibans() {
    check(
        Kind::Iban,
        &[
            "GB82WEST12345698765432",
            "GB82 WEST 1234 5698 7654 32",
            "DE89370400440532013000",
            "DE89 3704 0044 0532 0130 00",
            "NO9386011117947",
            "FR1420041010050500013M02606",
            "MT84MALT011000012345MTLCAST001S",
            "ES9121000418450200051332",
        ],
        &[
            "GB82WEST12345698765433",
            "GB83WEST12345698765432",
            "GB82 WEST1234 5698 7654 32",
            "GB82  WEST 1234 5698 7654 32",
            "GB82-WEST-1234-5698-7654-32",
            "gb82west12345698765432",
            "82GBWEST12345698765432",
            "NO93860111179",
            "GB82WEST1234569876543210000000000000000000",
        ],
    );
}

#[test]
fn phones() {
    check(
        Kind::Phone,
        &[
            "+34 600 123 456",
            "+34600123456",
            "+1 (415) 555-2671",
            "+44 20 7946 0958",
            "+353 1 234 5678",
            "0034 600 123 456",
            "+7 495 123-45-67",
            "415-555-2671",
            "415.555.2671",
            "(415) 555-2671",
            "(415)555-2671",
        ],
        &[
            "4155552671",
            "600123456",
            "+34 600",
            "+0 600 123 456",
            "+34 600 123 456 789 0123",
            "+34  -600 123 456",
            "+34 600 123 45x",
            "+ 34 600 123 456",
            "+34 (600 123 456",
            "115-555-2671",
            "415-155-2671",
            "911-555-2671",
            "415-911-2671",
            "415-555-267",
            "415-555-26711",
            "2024-02-29",
            "192.168.100.200",
            "00 34 600 123 456",
        ],
    );
}

#[test]
fn national_ids() {
    check(
        Kind::NationalId,
        &[
            // United States.
            "219-09-9999",
            "078-05-1120",
            "899-99-9999",
            // United Kingdom.
            "AB123456C",
            "AB 12 34 56 C",
            "JG103759A",
            // Spain: DNI, NIE.
            "12345678Z",
            "X1234567L",
            "Y0000000Z",
            // France, and Corsica.
            "255081416802538",
            "180012A00100161",
            // Italy.
            "RSSMRA85T10A562S",
            // Brazil.
            "529.982.247-25",
        ],
        &[
            "000-12-3456",
            "666-12-3456",
            "900-12-3456",
            "219-00-9999",
            "219-09-0000",
            "219099999",
            "219 09 9999",
            "219-09-999a",
            "DA123456C",
            "AO123456C",
            "BG123456C",
            "AB123456E",
            "AB12345C",
            "ab123456c",
            "AB  1234 56 C",
            "12345678A",
            "12345678z",
            "X1234567X",
            "W1234567L",
            "255081416802539",
            "955081416802538",
            "255131416802538",
            "RSSMRA85T10A562T",
            "RSSMRA85X10A562S",
            "529.982.247-26",
            "111.111.111-11",
            "52998224725",
            "123456789",
        ],
    );
}

#[test]
fn names_read_back_and_others_are_refused() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let refused = "Card".parse::<Kind>().expect_err("capitals");
    assert_eq!(refused, "`Card` is no kind: write one of `card`, `email`, `iban`, `phone`, `national_id`");
}

#[test]
fn a_digit_off_is_another_thing() {
    for (kind, text) in [
        (Kind::Card, "4111111111111111"),
        (Kind::Iban, "DE89370400440532013000"),
        (Kind::NationalId, "255081416802538"),
    ] {
        for at in (0..text.len()).filter(|at| text.as_bytes()[*at].is_ascii_digit()) {
            for digit in '0'..='9' {
                let mut other = text.to_owned();
                other.replace_range(at..=at, digit.encode_utf8(&mut [0; 4]));
                assert_eq!(kind.knows(&other), other == text, "{kind}: {other}");
            }
        }
    }
}
