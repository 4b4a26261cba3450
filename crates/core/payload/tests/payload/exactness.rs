//! Every kind of leaf reaches the transform exactly as encoded in the document, and is output
//! unchanged.

use std::convert::Infallible;
use std::sync::Arc;

use sealwire_msgpack::{Token, write};
use sealwire_payload::{Containers, Field, Outcome, Path, Selection, Transform};

use crate::transforms::{AT_ONCE, Unwrap, Wrap, run};

/// Lists fields as text, because tokens with NaN are never equal.
#[derive(Default)]
struct Seen(Vec<(String, Vec<u8>)>);

impl Transform for Seen {
    type Error = Infallible;

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        let token = match field.token {
            Token::F32(value) => format!("F32 {:08x}", value.to_bits()),
            Token::F64(value) => format!("F64 {:016x}", value.to_bits()),
            token => format!("{token:?}"),
        };
        self.0.push((token, field.raw.to_vec()));
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, error: Infallible) -> Result<(), Infallible> {
        Err(error)
    }
}

fn check(leaf: &[u8], expected: &str) {
    let everything = Arc::new(Selection::everything());
    // Alone, in an array, as a map's value, and under keys that are not strings.
    let key = [0x82, 0xa1, b'k'];
    let contexts = [
        leaf.to_vec(),
        [&[0x92], leaf, leaf].concat(),
        [&key[..], leaf, &[0x91, 0xc0], leaf].concat(),
        [&[0x81], leaf, &[0x91, 0x81, 0xc0], leaf].concat(),
    ];
    for (input, count) in contexts.iter().zip([1, 2, 2, 1]) {
        let mut seen = Seen::default();
        let (out, _) =
            run(&everything, Containers::Whole, AT_ONCE, input, &mut seen).expect("walks");
        assert_eq!(&out, input);
        assert_eq!(
            seen.0,
            vec![(expected.to_owned(), leaf.to_vec()); count],
            "{input:02x?}"
        );
        let (wrapped, _) =
            run(&everything, Containers::Whole, AT_ONCE, input, &mut Wrap).expect("walks");
        let (back, _) = run(
            &everything,
            Containers::Whole,
            AT_ONCE,
            &wrapped,
            &mut Unwrap,
        )
        .expect("walks");
        assert_eq!(&back, input);
    }
}

#[test]
fn integers_are_exact_to_both_ends() {
    check(&[0x00], "Uint(0)");
    check(
        &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255],
        "Uint(18446744073709551615)",
    );
    check(
        &[0xd3, 0x7f, 255, 255, 255, 255, 255, 255, 255],
        "Int(9223372036854775807)",
    );
    check(
        &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0],
        "Int(-9223372036854775808)",
    );
    check(&[0xff], "Int(-1)");
    // The value 5 encoded in nine bytes keeps its nine bytes.
    check(&[0xcf, 0, 0, 0, 0, 0, 0, 0, 5], "Uint(5)");
    check(&[0xd0, 5], "Int(5)");
}

#[test]
fn floats_are_exact_to_the_bit() {
    for bits in [
        0,
        0x8000_0000_0000_0000,
        1,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        // Quiet and signalling NaNs with payloads.
        0x7ff8_0000_0000_0001,
        0xfff8_dead_beef_cafe,
        0x7ff0_0000_0000_0001,
        0x3fb9_9999_9999_999a_u64,
    ] {
        check(
            &[&[0xcb][..], &bits.to_be_bytes()].concat(),
            &format!("F64 {bits:016x}"),
        );
    }
    for bits in [
        0x8000_0000,
        0x7fc0_0001,
        0x7f80_0001,
        0xff80_0000_u32,
        0x3dcc_cccd,
    ] {
        check(
            &[&[0xca][..], &bits.to_be_bytes()].concat(),
            &format!("F32 {bits:08x}"),
        );
    }
}

#[test]
fn strings_binary_booleans_and_extensions_are_exact() {
    check(&[0xa0], "Str([])");
    check(&[0xdb, 0, 0, 0, 0], "Str([])");
    check(&[0xd9, 1, b'a'], "Str([97])");
    check(&[0xa3, 0, 0xc2, 0x80], "Str([0, 194, 128])");
    check(&[0xc2], "Bool(false)");
    check(&[0xc3], "Bool(true)");
    check(&[0xc4, 0], "Bin([])");
    check(&[0xc6, 0, 0, 0, 2, 0xc1, 0xff], "Bin([193, 255])");
    check(&[0xd4, 0xff, 0], "Ext(-1, [0])");
    check(&[0xc9, 0, 0, 0, 0, 7], "Ext(7, [])");
}

#[test]
fn long_strings_and_binary_are_exact() {
    for len in [31, 32, 255, 256, 65_535, 65_536, 1 << 20] {
        let mut leaf = Vec::new();
        write::str(&mut leaf, &"é".repeat(len / 2));
        let input = [&[0x91][..], &leaf].concat();
        let mut seen = Seen::default();
        let everything = Arc::new(Selection::everything());
        run(&everything, Containers::Whole, AT_ONCE, &input, &mut seen).expect("walks");
        assert!(seen.0.len() == 1 && seen.0[0].1 == leaf);
    }
}

#[test]
fn nil_and_empty_containers_are_no_fields() {
    let everything = Arc::new(Selection::everything());
    for input in [
        &[0xc0][..],
        &[0x90],
        &[0x80],
        &[0xdd, 0, 0, 0, 0],
        &[0x93, 0xc0, 0x80, 0x91, 0x90],
    ] {
        let mut seen = Seen::default();
        let outcome = run(&everything, Containers::Whole, AT_ONCE, input, &mut seen);
        assert_eq!(outcome, Ok((input.to_vec(), input.len())));
        assert!(seen.0.is_empty());
    }
}
