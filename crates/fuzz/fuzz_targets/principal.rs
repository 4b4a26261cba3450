//! A certificate names one principal, always the same, printable and bounded, or nobody.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use sealwire_server::pki::{Authority, Identity, Leaf, Name, Principal, Usage, Validity};

/// Honest certificates to change, so that the fuzzer need not find ASN.1 on its own. Reading checks no signature.
static HONEST: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let authority = Authority::create("fuzz", Validity::days(2)).unwrap();
    let issue = |names| {
        let validity = Validity::days(1);
        let leaf = Leaf { common_name: "relay".into(), names, usage: Usage::Client, validity };
        let issued = authority.issue(&leaf).unwrap();
        x509_parser::pem::parse_x509_pem(issued.cert_pem.as_bytes()).unwrap().1.contents
    };
    let dns = || Name::Dns("relay.example.org".into());
    vec![
        issue(vec![]),
        issue(vec![dns()]),
        issue(vec![dns(), Name::Uri("spiffe://example.org/relay".into()), Name::Ip("::1".parse().unwrap())]),
    ]
});

fuzz_target!(|input: (u8, Vec<(u16, u8)>, &[u8])| {
    let (which, changes, bytes) = input;
    check(bytes);
    let mut der = HONEST[usize::from(which) % HONEST.len()].clone();
    for (at, byte) in changes {
        let at = usize::from(at) % der.len();
        der[at] = byte;
    }
    check(&der);
});

fn check(der: &[u8]) {
    let identity = Identity::default();
    let principal = Principal::from_certificate(der, &identity);
    assert_eq!(principal, Principal::from_certificate(der, &identity));
    if let Ok(principal) = principal {
        let name = principal.as_str();
        assert!(!name.is_empty() && name.len() <= 2_048);
        assert!(!name.chars().any(char::is_control), "{name:?}");
        assert!(!principal.to_string().chars().any(char::is_control));
        assert_eq!(Principal::from_text(&principal.to_text()), Some(principal));
    }
}
