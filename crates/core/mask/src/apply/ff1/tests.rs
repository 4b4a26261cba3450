//! NIST's samples with the numerals of [`super`], and every length compared with the numerals of
//! the `fpe` crate.

use aes::{Aes128, Aes192, Aes256, Aes256Enc};
use fpe::ff1::{FF1, FlexibleNumeralString};
use proptest::prelude::*;

use super::{Ff1, Numerals, len_max, len_min};

/// Key, tweak, radix, plain and encrypted numerals of FF1 samples 1 to 9:
/// https://csrc.nist.gov/projects/cryptographic-standards-and-guidelines/example-values
const SAMPLES: [(&str, &str, u32, &str, &str); 9] = [
    (
        "2b7e151628aed2a6abf7158809cf4f3c",
        "",
        10,
        "0123456789",
        "2433477484",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3c",
        "39383736353433323130",
        10,
        "0123456789",
        "6124200773",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3c",
        "3737373770717273373737",
        36,
        "0123456789abcdefghi",
        "a9tv40mll9kdu509eum",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3cef4359d8d580aa4f",
        "",
        10,
        "0123456789",
        "2830668132",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3cef4359d8d580aa4f",
        "39383736353433323130",
        10,
        "0123456789",
        "2496655549",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3cef4359d8d580aa4f",
        "3737373770717273373737",
        36,
        "0123456789abcdefghi",
        "xbj3kv35jrawxv32ysr",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3cef4359d8d580aa4f7f036d6f04fc6a94",
        "",
        10,
        "0123456789",
        "6657667009",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3cef4359d8d580aa4f7f036d6f04fc6a94",
        "39383736353433323130",
        10,
        "0123456789",
        "1001623463",
    ),
    (
        "2b7e151628aed2a6abf7158809cf4f3cef4359d8d580aa4f7f036d6f04fc6a94",
        "3737373770717273373737",
        36,
        "0123456789abcdefghi",
        "xs8a0azh2avyalyzuwd",
    ),
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"))
        .collect()
}

fn numerals(text: &str) -> Vec<u8> {
    text.chars()
        .map(|c| c.to_digit(36).expect("a numeral") as u8)
        .collect()
}

#[test]
fn nists_samples_come_out() {
    for (at, (key, tweak, radix, plain, sealed)) in SAMPLES.into_iter().enumerate() {
        let (key, tweak, plain, sealed) =
            (bytes(key), bytes(tweak), numerals(plain), numerals(sealed));
        let input = Numerals::read(&plain, radix);
        let output = match key.len() {
            16 => FF1::<Aes128>::new(&key, radix)
                .expect("a radix")
                .encrypt(&tweak, &input),
            24 => FF1::<Aes192>::new(&key, radix)
                .expect("a radix")
                .encrypt(&tweak, &input),
            _ => FF1::<Aes256>::new(&key, radix)
                .expect("a radix")
                .encrypt(&tweak, &input),
        };
        let mut found = vec![0; plain.len()];
        output.expect("long enough").write(&mut found);
        assert_eq!(found, sealed, "sample {}", at + 1);
        if key.len() == 32 {
            let ff1 = Ff1::new(FF1::new(&key, radix).expect("a radix"), radix);
            let mut text = plain.clone();
            ff1.encrypt(&tweak, &mut text).expect("long enough");
            assert_eq!(text, sealed);
            ff1.decrypt(&tweak, &mut text).expect("long enough");
            assert_eq!(text, plain);
        }
    }
}

#[test]
fn small_domains_and_what_does_not_fit_are_refused() {
    let bounds = |radix| (len_min(radix), len_max(radix));
    assert_eq!(bounds(10), (6, 56));
    assert_eq!(bounds(16), (5, 48));
    assert_eq!(bounds(26), (5, 40));
    assert_eq!(bounds(36), (4, 36));
    assert_eq!(bounds(52), (4, 32));
    assert_eq!(bounds(62), (4, 32));
    for radix in [10, 16, 26, 36, 52, 62] {
        let (min, max) = bounds(radix);
        let ff1 = Ff1::new(
            FF1::<Aes256Enc>::new(&[7; 32], radix).expect("a radix"),
            radix,
        );
        for len in 0..=60 {
            let mut text = vec![radix as u8 - 1; len];
            assert_eq!(
                ff1.encrypt(b"", &mut text).is_ok(),
                (min..=max).contains(&len),
                "{radix} {len}"
            );
        }
    }
}

proptest! {
    #[test]
    fn our_numerals_come_out_as_those_of_the_library(
        key: [u8; 32],
        tweak in proptest::collection::vec(any::<u8>(), 0..40),
        (radix, text) in prop_oneof![Just(10_u32), Just(16), Just(26), Just(36), Just(52), Just(62)]
            .prop_flat_map(|radix| {
                let numeral = prop_oneof![0..radix as u8, Just(0), Just(radix as u8 - 1)];
                (Just(radix), proptest::collection::vec(numeral, len_min(radix)..=len_max(radix)))
            }),
    ) {
        let library = FF1::<Aes256>::new(&key, radix).expect("a radix");
        let theirs = FlexibleNumeralString::from(text.iter().map(|n| u16::from(*n)).collect::<Vec<_>>());
        let theirs: Vec<u16> = library.encrypt(&tweak, &theirs).expect("long enough").into();
        let ff1 = Ff1::new(FF1::new(&key, radix).expect("a radix"), radix);
        let mut ours = text.clone();
        ff1.encrypt(&tweak, &mut ours).expect("long enough");
        prop_assert_eq!(ours.iter().map(|n| u16::from(*n)).collect::<Vec<_>>(), theirs);
        ff1.decrypt(&tweak, &mut ours).expect("long enough");
        prop_assert_eq!(ours, text);
    }
}
