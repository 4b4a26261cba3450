//! Private keys that another program exported.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::{Curve, KeyPair};

use crate::Seed;
use crate::seed::{numbered, unhex, words as list};

/// Imports a text as a key of each curve.
pub(crate) fn check_input(input: &[u8]) {
    for curve in Curve::ALL {
        let pair = match KeyPair::import(curve, input) {
            Ok(pair) => pair,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        let scalar = pair.scalar().expect("the scalar");
        let hex: String = scalar
            .expose()
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let again =
            KeyPair::import(curve, format!(" {hex}\n").as_bytes()).expect("hexadecimal digits");
        assert_eq!(again.public().compressed(), pair.public().compressed());
        let again =
            KeyPair::import(curve, STANDARD.encode(scalar.expose()).as_bytes()).expect("base64");
        assert_eq!(again.public().compressed(), pair.public().compressed());
    }
}

/// The scalar 1 on P-256 with its public key: `EC PRIVATE KEY` of SEC 1.
const SEC1: &str = "30770201010420000000000000000000000000000000000000000000000000000000000000000\
1a00a06082a8648ce3d030107a144034200046b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c2964fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5";
/// The scalar 1 without a public key: `PRIVATE KEY` of PKCS #8.
const PKCS8_P256: &str = "3041020100301306072a8648ce3d020106082a8648ce3d030107042730250201010420\
0000000000000000000000000000000000000000000000000000000000000001";
const PKCS8_SECP256K1: &str = "303e020100301006072a8648ce3d020106052b8104000a042730250201010420\
0000000000000000000000000000000000000000000000000000000000000001";

fn pem(label: &str, hex: &str) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(unhex(hex))
    )
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let one = "0000000000000000000000000000000000000000000000000000000000000001";
    let order = "FFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551";
    let texts = [
        pem("EC PRIVATE KEY", SEC1),
        pem("PRIVATE KEY", PKCS8_P256),
        pem("PRIVATE KEY", PKCS8_SECP256K1),
        pem("ENCRYPTED PRIVATE KEY", PKCS8_P256),
        pem("CERTIFICATE", SEC1),
        one.to_owned(),
        order.to_owned(),
        "0".repeat(64),
        STANDARD.encode(unhex(one)),
        STANDARD.encode(unhex(one)).trim_end_matches('=').to_owned(),
        format!("\n {one}\r\n"),
    ];
    numbered("key", &[], texts)
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "-----BEGIN ",
        "-----END ",
        "EC PRIVATE KEY-----\n",
        "PRIVATE KEY-----\n",
        "ENCRYPTED PRIVATE KEY-----\n",
        "EC PARAMETERS-----\n",
        "Proc-Type: 4,ENCRYPTED\n",
        "DEK-Info: AES-128-CBC,00\n\n",
        "MHcCAQEEI",
        "KoZIzj0DAQc",
        "KoZIzj0CAQ",
        "K4EEAAo",
        "00000000",
        "=",
    ])
}
