use proptest::prelude::*;

use super::*;

const SECRET: [u8; 32] = *b"an example of a recovery secret.";
const SET: [u8; 16] = [0xa5; 16];
const KEY: [u8; 5] = [1, 2, 3, 4, 5];

fn shares(threshold: u8, total: u8) -> Vec<Share> {
    split(&SECRET, SET, KEY, threshold, total).unwrap()
}

/// Joins the shares with these numbers.
fn joined(shares: &[Share], numbers: &[u8]) -> Result<Zeroizing<[u8; 32]>, JoinError> {
    join(
        &numbers
            .iter()
            .map(|&number| shares[usize::from(number) - 1].clone())
            .collect::<Vec<_>>(),
    )
}

#[test]
fn any_threshold_of_shares_joins_to_the_secret() {
    let three_of_five = shares(3, 5);
    let numbers: Vec<u8> = three_of_five.iter().map(Share::index).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    for chosen in 0..1 << 5 {
        let numbers: Vec<u8> = (1..=5)
            .filter(|number| chosen >> (number - 1) & 1 == 1)
            .collect();
        let result = joined(&three_of_five, &numbers);
        match numbers.len() {
            0 => assert_eq!(
                result,
                Err(JoinError::TooFew {
                    given: 0,
                    threshold: 0
                })
            ),
            given @ 1..3 => assert_eq!(
                result,
                Err(JoinError::TooFew {
                    given,
                    threshold: 3
                })
            ),
            _ => assert_eq!(*result.unwrap(), SECRET, "{numbers:?}"),
        }
    }
    for (threshold, total) in [(2, 2), (2, 255), (255, 255), (16, 20)] {
        let mut shares = shares(threshold, total);
        shares.reverse();
        assert_eq!(
            *join(&shares[..usize::from(threshold)]).unwrap(),
            SECRET,
            "{threshold} of {total}"
        );
    }
}

#[test]
fn a_threshold_that_cannot_be_is_rejected() {
    for (threshold, total) in [(0, 0), (0, 3), (1, 1), (1, 3), (4, 3), (2, 1), (255, 254)] {
        let result = split(&SECRET, SET, KEY, threshold, total);
        assert_eq!(result, Err(SplitError::Threshold { threshold, total }));
    }
}

#[test]
fn shares_that_do_not_belong_together_do_not_join() {
    let ours = shares(3, 5);
    assert_eq!(
        joined(&ours, &[1, 2, 2]),
        Err(JoinError::DuplicateIndex { index: 2 })
    );
    assert_eq!(
        joined(&ours, &[1, 2, 3, 1]),
        Err(JoinError::DuplicateIndex { index: 1 })
    );
    type Change = fn(&mut Share);
    let others: [(Change, JoinError); 5] = [
        (
            |share| share.set[15] ^= 1,
            JoinError::OtherKey { position: 3 },
        ),
        (
            |share| share.key[0] ^= 1,
            JoinError::OtherKey { position: 3 },
        ),
        (
            |share| share.split[3] ^= 1,
            JoinError::OtherSplit { position: 3 },
        ),
        (
            |share| share.threshold = 2,
            JoinError::OtherSplit { position: 3 },
        ),
        (
            |share| share.total = 6,
            JoinError::OtherSplit { position: 3 },
        ),
    ];
    for (other, error) in others {
        let mut shares = ours[..3].to_vec();
        other(&mut shares[2]);
        assert_eq!(join(&shares), Err(error));
    }
    // Two splits of one key differ in their random ids.
    let again = [ours[0].clone(), ours[1].clone(), shares(3, 5).remove(2)];
    assert_eq!(join(&again), Err(JoinError::OtherSplit { position: 3 }));
    // Another secret under the same names: only a surplus share shows it; the caller checks the
    // key.
    let mut false_share = split(&[0; 32], SET, KEY, 3, 5).unwrap().remove(3);
    false_share.split = ours[0].split;
    let three = [ours[0].clone(), ours[1].clone(), false_share.clone()];
    assert_ne!(*join(&three).unwrap(), SECRET);
    let four = [
        ours[0].clone(),
        ours[1].clone(),
        ours[2].clone(),
        false_share,
    ];
    assert_eq!(join(&four), Err(JoinError::Contradiction));
}

#[test]
fn fixed_shares_still_join() {
    // Made by another implementation: coefficient 7 i + 1 of byte i, polynomial 0x11b, split id
    // 0a0b0c0d, indexes 1, 2 and 255.
    let texts = [
        "sws1:AaWlpaWlpaWlpaWlpaWlpaUBAgMEBQoLDA0C_wFgZi9zZUVGQlUlZyEzfAJKAx0c6fvx6duJw9Ldt6mn9Fd0HWw",
        "sws1:AaWlpaWlpaWlpaWlpaWlpaUBAgMEBQoLDA0C_wJjfj5JQik7FB7lrvPMmKf0kJWdeHdWXyZpCBAE4-bJgWcPw9M",
        "sws1:AaWlpaWlpaWlpaWlpaWlpaUBAgMEBQoLDA0C__-e11I4hmIcLpHaVF2enhYRidgVPoS43SvRrXAwhtfdwYpJzxI",
    ];
    let shares: Vec<Share> = texts
        .iter()
        .map(|text| Share::parse(text).unwrap())
        .collect();
    for pair in [[0, 1], [0, 2], [1, 2], [2, 0]] {
        assert_eq!(*join(&pair.map(|at| shares[at].clone())).unwrap(), SECRET);
    }
    assert_eq!(*join(&shares).unwrap(), SECRET);
}

#[test]
fn coefficients_have_uniform_bytes() {
    // Of two shares with threshold 2, value = secret + coefficient * index: index 1 shows the
    // coefficient. Of threshold 3, value 2 + secret + 2 * (value 1 + secret) is the last
    // coefficient times 6.
    const SPLITS: usize = 2000;
    let double = |byte: u8| byte << 1 ^ if byte & 0x80 == 0 { 0 } else { 0x1b };
    let mut counts = [[0u32; 256]; 2];
    for _ in 0..SPLITS {
        let (two, three) = (shares(2, 2), shares(3, 3));
        for (at, secret) in SECRET.iter().enumerate() {
            counts[0][usize::from(two[0].value[at] ^ secret)] += 1;
            let last = three[1].value[at] ^ secret ^ double(three[0].value[at] ^ secret);
            counts[1][usize::from(last)] += 1;
        }
    }
    // 250 expected, standard deviation 15.8: beyond 9 of these by chance in less than one of 10^15
    // runs.
    for counts in counts {
        for (value, count) in counts.into_iter().enumerate() {
            assert!(
                (108..=392).contains(&count),
                "{value:02x} occurs {count} times of 64,000"
            );
        }
    }
}

#[test]
fn altered_characters_of_a_share_are_found() {
    let text = shares(2, 3)[1].to_text();
    assert_eq!(text.len(), TEXT_CHARS);
    assert_eq!(text.len(), 92);
    for at in 0..text.len() {
        for other in ["A", "b", "0", "-", "_", "=", "+", " ", ":", "\u{e9}", "\0"] {
            if !text[at..].starts_with(other) {
                let altered = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                assert!(Share::parse(&altered).is_err(), "{at}: {other}");
            }
        }
        assert!(Share::parse(&text[..at]).is_err(), "cut at {at}");
    }
    for text in [
        format!("{}A", *text),
        format!("{}=", *text),
        text.replacen("sws1", "sws2", 1),
        text.to_uppercase(),
    ] {
        assert_eq!(Share::parse(&text), Err(ShareError::Form));
    }
    assert!(Share::parse(&format!(" \t{}\r\n", *text)).is_ok());
}

#[test]
fn a_good_checksum_does_not_excuse_bad_numbers() {
    let body = |version: u8, numbers: [u8; 3]| {
        let mut bytes = [&[version][..], &SET, &KEY, &[9; 4], &numbers, &SECRET].concat();
        bytes.extend(checksum(&bytes));
        Share::parse(&(PREFIX.to_owned() + &BASE64URL_NOPAD.encode(&bytes)))
    };
    assert!(body(1, [2, 3, 3]).is_ok());
    for version in [0, 2, 255] {
        assert_eq!(body(version, [2, 3, 3]), Err(ShareError::Version(version)));
    }
    for [threshold, total, index] in [
        [0, 3, 1],
        [1, 3, 1],
        [4, 3, 1],
        [2, 3, 0],
        [2, 3, 4],
        [0, 0, 0],
        [2, 1, 1],
    ] {
        let result = body(1, [threshold, total, index]);
        assert_eq!(
            result,
            Err(ShareError::Numbers {
                index,
                total,
                threshold
            })
        );
    }
}

#[test]
fn debug_output_and_errors_hold_no_value() {
    let share = &shares(2, 3)[0];
    assert_eq!(format!("{share:?}"), "Share(1 of 3, threshold 2)");
    let text = share.to_text();
    let altered = text[..text.len() - 1].to_owned();
    let error = Share::parse(&altered).unwrap_err();
    assert!(!error.to_string().contains(&altered[5..20]));
}

proptest! {
    #[test]
    fn a_parsed_text_is_the_share_s_own(text in "(sws1:)?[A-Za-z0-9_-]{85,89}") {
        if let Ok(share) = Share::parse(&text) {
            prop_assert_eq!(&*share.to_text(), &text);
        }
    }

    #[test]
    fn any_text_is_parsed_or_rejected(text in any::<String>(), bytes in any::<[u8; BODY_BYTES]>()) {
        let _ = Share::parse(&text);
        let _ = Share::parse(&(PREFIX.to_owned() + &text));
        // With a right checksum, what parses is written as it was read.
        let bytes = [&bytes[..], &checksum(&bytes)].concat();
        let text = PREFIX.to_owned() + &BASE64URL_NOPAD.encode(&bytes);
        if let Ok(share) = Share::parse(&text) {
            prop_assert_eq!(&*share.to_text(), &text);
        }
    }

    #[test]
    fn shares_survive_their_text(
        secret in any::<[u8; 32]>(), set in any::<[u8; 16]>(), key in any::<[u8; 5]>(),
        threshold in 2u8..12, more in 0u8..8, skipped in 0u8..8,
    ) {
        let total = threshold + more;
        let shares = split(&secret, set, key, threshold, total).unwrap();
        let read: Vec<Share> = shares.iter().map(|share| Share::parse(&share.to_text()).unwrap()).collect();
        prop_assert_eq!(&read, &shares);
        let from = usize::from(skipped.min(more));
        prop_assert_eq!(*join(&read[from..]).unwrap(), secret);
    }
}
