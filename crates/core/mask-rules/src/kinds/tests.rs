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
        for around in [
            format!(" {text}"),
            format!("{text} "),
            format!("{text}\n"),
            format!("no. {text}"),
            String::new(),
        ] {
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
    assert_eq!(
        refused,
        "`Card` is not a kind: write one of `card`, `email`, `iban`, `phone`, `national_id`, `ip_address`, `secret`"
    );
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

#[test]
fn national_ids_with_check_digits() {
    check(
        Kind::NationalId,
        &[
            // Germany.
            "86095742719",
            "86 095 742 719",
            "47036892816",
            "65929970489",
            // Poland, and born in 2002.
            "44051401359",
            "02270803624",
            // Norway, and a D-number.
            "15108695088",
            "01010750160",
            // Sweden.
            "811218-9876",
            "19811218-9876",
            "880320-0016",
            // Finland.
            "131052-308T",
            "131052A308T",
            // Netherlands.
            "1112.22.333",
            // Denmark.
            "070761-4285",
            "211062-5629",
            // Chile.
            "12.345.678-5",
            "12.531.909-2",
            // India.
            "2341 2341 2346",
            "2341-2341-2346",
            // Belgium.
            "85.07.30-033.28",
            // Switzerland.
            "756.9217.0769.85",
            // China.
            "11010519491231002X",
        ],
        &[
            "86095742718",
            "06095742719",
            "86-095-742-719",
            "12345678901",
            "11111111111",
            "44051401358",
            "44131401359",
            "44053201359",
            "15108695089",
            "55108695088",
            "811218-9875",
            "8112189876",
            "811318-9876",
            "17811218-9876",
            "131052-308U",
            "131052*308T",
            "131352-308T",
            "131052-308t",
            "111222333",
            "111.222.333",
            "1112.22.334",
            "0000.00.000",
            "070761-4286",
            "0707614285",
            "12.345.678-4",
            "12345678-5",
            "00.000.000-0",
            "2341 2341 2347",
            "234123412346",
            "1341 2341 2346",
            "85.07.30-033.29",
            "85.13.30-033.28",
            "756.9217.0769.84",
            "755.9217.0769.85",
            "7569217076985",
            "110105194912310021",
            "11010519491331002X",
            "11010518491231002X",
            "11010519491231002x",
            "２３４１ ２３４１ ２３４６",
        ],
    );
}

#[test]
fn ip_addresses() {
    check(
        Kind::IpAddress,
        &[
            "192.0.2.17",
            "8.8.8.8",
            "127.0.0.1",
            "2001:db8::1",
            "fe80::1",
            "2001:DB8:0:0:8:800:200C:417A",
            "::ffff:192.0.2.1",
        ],
        &[
            "192.0.2",
            "192.0.2.256",
            "192.0.2.017",
            "192.0.2.1.5",
            "192.0.2.1/24",
            "192.0.2.1:80",
            "[2001:db8::1]",
            "fe80::1%eth0",
            "0.0.0.0",
            "::",
            "::1",
            "12::30",
            "12:30:45",
            "00:1b:44:11:3a:b7",
            "3232235777",
            "2001:db8::1::2",
        ],
    );
}

#[test]
fn secrets() {
    let (long, base32) = ("a1B2".repeat(16), "ABCDEFGH234567AB");
    let token = |header: &str, body: &str| format!("{header}.{body}.{long}");
    let pem = |label: &str| {
        format!(
            "-----BEGIN {label}-----\n{}\n-----END {label}-----",
            long.repeat(20)
        )
    };
    let yes = [
        pem("PRIVATE KEY"),
        pem("RSA PRIVATE KEY"),
        pem("ENCRYPTED PRIVATE KEY"),
        token("eyJhbGciOiJIUzI1NiJ9", "eyJzdWIiOiIxIn0"),
        format!("AKIA{base32}"),
        format!("ASIA{base32}"),
        format!("ghp_{}", &long[..36]),
        format!("github_pat_{long}"),
        format!("glpat-{}", &long[..20]),
        format!("xoxb-12345-{long}"),
        format!("sk_live_{}", &long[..24]),
        format!("whsec_{}", &long[..32]),
        format!("AIza{}", &long[..35]),
        format!("npm_{}", &long[..36]),
    ];
    for text in &yes {
        assert!(Kind::Secret.knows(text), "{text}");
        for around in [
            format!(" {text}"),
            format!("{text} "),
            format!("key={text}"),
        ] {
            assert!(!Kind::Secret.knows(&around), "{around}");
        }
    }
    assert!(Kind::Secret.knows(&format!("{}\n", yes[0])));
    let no = [
        pem("CERTIFICATE"),
        pem("PUBLIC KEY"),
        yes[0].replace("END PRIVATE", "END RSA PRIVATE"),
        "-----BEGIN PRIVATE KEY----------END PRIVATE KEY-----".to_owned(),
        token("eyJh", "eyJzdWIiOiIxIn0"),
        format!("{}.x", yes[3]),
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.".to_owned(),
        format!("AKIA{}", base32.to_lowercase()),
        format!("AKIA{base32}A"),
        format!("AKIB{base32}"),
        "ghp_short".to_owned(),
        format!("sk_live_{}", "x".repeat(24)),
        // Random strings, hashes and identifiers have no recognizable form.
        long.clone(),
        "5f4dcc3b5aa765d61d8327deb882cf99".to_owned(),
        "9f8b3c1e-52d4-4b7a-9d0e-0c1f2a3b4c5d".to_owned(),
        String::new(),
        format!("ghp_{}", "a1".repeat(20_000)),
    ];
    for text in &no {
        assert!(!Kind::Secret.knows(text), "{}", &text[..text.len().min(80)]);
    }
}

proptest::proptest! {
    #[test]
    fn kinds_never_panic(text in ".{0,40}", digits in "[0-9 .+-]{9,18}[A-Z0-9]?") {
        for kind in Kind::ALL {
            let _ = (kind.knows(&text), kind.knows(&digits));
        }
    }

    /// Of the numbers that differ in the last digit only, exactly one passes.
    #[test]
    fn check_digit_is_unique(body in "[2-9][0-9]{3} [0-9]{4} [0-9]{3}", serial in "756\\.[0-9]{4}\\.[0-9]{4}\\.[0-9]") {
        for body in [body, serial] {
            let passing = ('0'..='9').filter(|digit| Kind::NationalId.knows(&format!("{body}{digit}"))).count();
            assert_eq!(passing, 1, "{body}");
        }
    }
}

#[test]
fn bare_numbers_rarely_match() {
    // Steps of this size, coprime to the range, spread over all numbers of eleven digits.
    let (range, step) = (90_000_000_000_u64, 55_623_058_987);
    let numbers = (0..200_000_u64).map(|at| 10_000_000_000 + at.wrapping_mul(step) % range);
    let passing = numbers
        .filter(|number| Kind::NationalId.knows(&number.to_string()))
        .count();
    assert!((1..=5_000).contains(&passing), "{passing} of 200,000");
}
