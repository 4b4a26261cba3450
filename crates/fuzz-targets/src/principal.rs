//! Names in certificates: a certificate names one principal, printable and bounded, or none.

use std::sync::LazyLock;

use sealwire_access::{Identity, Principal};
use sealwire_dev_ca::{Authority, Leaf, Name, Usage, Validity};

use crate::seed::words as list;
use crate::{Input, Seed};

/// Honest certificates to change. Reading checks no signature.
static HONEST: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let authority = Authority::create("fuzz", Validity::days(2)).expect("an authority");
    let issue = |names| {
        let validity = Validity::days(1);
        let leaf = Leaf { common_name: "relay".into(), names, usage: Usage::Client, validity };
        let issued = authority.issue(&leaf).expect("a certificate");
        x509_parser::pem::parse_x509_pem(issued.cert_pem.as_bytes()).expect("PEM").1.contents
    };
    let dns = || Name::Dns("relay.example.org".into());
    vec![
        issue(vec![]),
        issue(vec![dns()]),
        issue(vec![
            dns(),
            Name::Uri("spiffe://example.org/relay".into()),
            Name::Ip("::1".parse().expect("an address")),
        ]),
    ]
});

/// Reads a certificate with bytes replaced, and bytes from elsewhere. Settings: certificate, replacements.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input(input);
    let mut der = HONEST[usize::from(input.byte()) % HONEST.len()].clone();
    for (at, byte) in input.edits() {
        let at = usize::from(at) % der.len();
        der[at] = byte;
    }
    check(&der);
    check(input.0);
}

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

pub(crate) fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (at, honest) in HONEST.iter().enumerate() {
        seeds.push(Seed::new(format!("unchanged-{at}"), &[at as u8, 0], []));
        seeds.push(Seed::new(format!("changed-{at}"), &[at as u8, 1, 0, 40, 1], []));
        seeds.push(Seed { is_random: true, ..Seed::new(format!("certificate-{at}"), &[0, 0], honest) });
    }
    seeds
}

pub(crate) fn words() -> Vec<Vec<u8>> {
    let mut words = list(["spiffe://", "relay.example.org", "spiffe://example.org/relay"]);
    // Object identifiers of the subject alternative name, the common name, and key usages.
    words.extend(list([
        &[0x55u8, 0x1d, 0x11][..],
        &[0x55, 4, 3],
        &[0x55, 0x1d, 0x25],
        &[0x30, 0x82],
        &[0x82, 0x11],
        &[0x86, 0x1a],
    ]));
    words
}
