//! The C libraries are built with their assembly: without it they still work, several times slower.
//!
//! Read from the symbol table of this very test program, which links the libraries as the engine
//! does. OpenSSL's P-256 is `ecp_nistz256`, which goes before the `ec_nistp_64_gcc_128` code that a
//! build without assembly may have for it (`ec_curve.c`); and what `fixed-base` says of tables is
//! said of `ecp_nistz256`.

use std::collections::HashSet;

use object::{Object as _, ObjectSymbol as _, SymbolKind};

/// The crates that link a library, and the symbols that only its assembly defines.
const ROUTINES: [(&str, &[&str]); 2] = [
    (
        "openssl",
        &[
            "ecp_nistz256_point_add_affine",
            "ecp_nistz256_avx2_gather_w7",
            "aesni_ctr32_encrypt_blocks",
            "aesni_gcm_encrypt",
            "ossl_aes_gcm_encrypt_avx512",
            "ossl_vaes_vpclmulqdq_capable",
        ],
    ),
    (
        "aws_lc",
        &[
            "p256_montjscalarmul",
            "ecp_nistz256_avx2_select_w7",
            "aesni_gcm_encrypt",
            "aes_gcm_encrypt_avx512",
        ],
    ),
];

/// A symbol as (library, routine). AWS-LC puts itself and its version before every name.
fn attribute(symbol: &str) -> (&str, &str) {
    match symbol.strip_prefix("aws_lc_") {
        Some(versioned) => (
            "aws_lc",
            versioned.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_'),
        ),
        None => ("openssl", symbol),
    }
}

#[test]
fn openssl_and_aws_lc_have_their_assembly() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let program = object::File::parse(&program[..]).unwrap();
    let defined: HashSet<_> = program
        .symbols()
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .map(|symbol| attribute(symbol.name().unwrap()))
        .collect();
    assert!(!defined.is_empty(), "a stripped program cannot tell");
    let wanted = ROUTINES
        .iter()
        .flat_map(|(library, names)| names.iter().map(move |name| (*library, *name)));
    let missing: Vec<_> = wanted
        .filter(|routine| !defined.contains(routine))
        .collect();
    assert!(missing.is_empty(), "built without assembly: {missing:?}");
}

#[test]
fn a_symbol_is_its_librarys() {
    assert_eq!(
        attribute("aws_lc_0_47_0_aesni_gcm_encrypt"),
        ("aws_lc", "aesni_gcm_encrypt")
    );
    assert_eq!(
        attribute("aesni_gcm_encrypt"),
        ("openssl", "aesni_gcm_encrypt")
    );
}
