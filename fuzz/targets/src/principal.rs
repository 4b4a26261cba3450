//! Names in certificates: a certificate names at most one principal, which is printable and
//! bounded.

use std::sync::LazyLock;

use sealwire_access::{Identity, Principal};
use sealwire_dev_ca::{Authority, Leaf, Name, Usage, Validity};

use crate::seed::words as list;
use crate::{Input, Seed};

/// Valid certificates to change. Parsing does not check signatures.
static HONEST: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let authority = Authority::create("fuzz", Validity::days(2)).expect("an authority");
    let dns = Name::Dns("relay.example.org".into());
    let lists = [
        vec![],
        vec![dns.clone()],
        vec![
            dns,
            Name::Uri("spiffe://example.org/relay".into()),
            Name::Ip("::1".parse().expect("an address")),
        ],
    ];
    lists.map(|names| issue_der(&authority, names)).to_vec()
});

fn issue_der(authority: &Authority, names: Vec<Name>) -> Vec<u8> {
    let leaf = Leaf {
        common_name: "relay".into(),
        names,
        usage: Usage::Client,
        validity: Validity::days(1),
    };
    let issued = authority.issue(&leaf).expect("a certificate");
    let (_, block) = x509_parser::pem::parse_x509_pem(issued.cert_pem.as_bytes()).expect("PEM");
    block.contents
}

/// Parses a valid certificate with bytes replaced, and foreign bytes. Settings: certificate,
/// replacements.
pub(crate) fn check_input(input: &[u8]) {
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
        check_counted_names(der);
        let name = principal.as_str();
        assert!(!name.is_empty() && name.len() <= 2_048);
        assert!(!name.chars().any(char::is_control), "{name:?}");
        assert!(!principal.to_string().chars().any(char::is_control));
        assert_eq!(Principal::from_text(&principal.to_text()), Some(principal));
    }
}

/// Checks that a certificate with a principal contains no invalid name of any kind. By default, all
/// kinds count. Examines the bytes of the names, not the parser's output.
fn check_counted_names(der: &[u8]) {
    let (rest, certificate) = x509_parser::parse_x509_certificate(der).expect("a certificate");
    assert!(rest.is_empty());
    let extensions: Vec<_> = certificate
        .extensions()
        .iter()
        .filter(|extension| extension.oid.to_id_string() == "2.5.29.17")
        .collect();
    assert!(extensions.len() <= 1, "several lists of names");
    let mut spiffe = 0;
    for (tag, name) in extensions
        .iter()
        .flat_map(|extension| elements(extension.value))
    {
        match tag {
            0x82 => {
                let is_host = name
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte));
                assert!(
                    !name.is_empty() && name.len() <= 253 && is_host,
                    "{name:x?}"
                );
            }
            0x86 => {
                assert!(
                    !name.is_empty() && name.iter().all(u8::is_ascii_graphic),
                    "{name:x?}"
                );
                spiffe += usize::from(name.to_ascii_lowercase().starts_with(b"spiffe:"));
            }
            _ => {}
        }
    }
    assert!(spiffe <= 1, "several SPIFFE URIs");

    let common_names: Vec<_> = certificate.subject().iter_common_name().collect();
    assert!(common_names.len() <= 1, "several common names");
    for name in common_names {
        let text = std::str::from_utf8(name.as_slice()).expect("UTF-8");
        assert!(
            !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control),
            "{text:?}"
        );
        let tag = name.attr_value().tag().0;
        assert!(
            tag == 12 || text.is_ascii() && [18, 19, 22].contains(&tag),
            "{tag}: {text:?}"
        );
    }
}

/// Returns tag and content of each element of an encoded SEQUENCE.
fn elements(sequence: &[u8]) -> Vec<(u8, &[u8])> {
    let (_, mut rest) = element(sequence);
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (tag, content) = element(rest);
        all.push((tag, content));
        let read = content.as_ptr() as usize - rest.as_ptr() as usize + content.len();
        rest = &rest[read..];
    }
    all
}

/// Returns tag and content of the first element. The certificate's parser has accepted the lengths.
fn element(bytes: &[u8]) -> (u8, &[u8]) {
    let tag = bytes[0];
    let length = bytes[1];
    let digits = if length < 0x80 {
        0
    } else {
        usize::from(length & 0x7f)
    };
    let length = match digits {
        0 => usize::from(length),
        _ => bytes[2..2 + digits]
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte)),
    };
    (tag, &bytes[2 + digits..2 + digits + length])
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (at, honest) in HONEST.iter().enumerate() {
        seeds.push(Seed::new(format!("unchanged-{at}"), &[at as u8, 0], []));
        seeds.push(Seed::new(
            format!("changed-{at}"),
            &[at as u8, 1, 0, 40, 1],
            [],
        ));
        seeds.push(Seed {
            is_random: true,
            ..Seed::new(format!("certificate-{at}"), &[0, 0], honest)
        });
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let mut words = list([
        "spiffe://",
        "relay.example.org",
        "spiffe://example.org/relay",
    ]);
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
