//! Tests of the names in client certificates over real TLS: an invalid name of a kind that counts
//! rejects the certificate, although the authority signed it and another name is valid.

use std::path::Path;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer,
    KeyPair, SigningKey as _,
};
use sealwire_access::Identity;
use sealwire_dev_ca::{Authority, Issued, SecretPem};

use crate::e2e::harness::{Harness, run_in_own_process};

const UTF8: u8 = 0x0c;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const EMAIL: u8 = 0x81;
const NAMELESS: &str = "sealwire_connections_total{outcome=\"nameless\"}";
const TLS_FAILED: &str = "sealwire_connections_total{outcome=\"tls_failed\"}";

/// Encodes a DER element with that tag.
fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap().to_be_bytes();
    let header = match content.len() {
        0..=127 => vec![tag, length[1]],
        128..=255 => vec![tag, 0x81, length[1]],
        _ => vec![tag, 0x82, length[0], length[1]],
    };
    [header, content.to_vec()].concat()
}

/// Splits off the first DER element, with its header.
fn element(bytes: &[u8]) -> (&[u8], &[u8]) {
    let (header, length) = match bytes[1] {
        short @ 0..=0x7f => (2, usize::from(short)),
        0x81 => (3, usize::from(bytes[2])),
        0x82 => (4, usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))),
        other => panic!("{other}"),
    };
    bytes.split_at(header + length)
}

fn content(element: &[u8]) -> &[u8] {
    let header = if element[1] < 0x80 {
        2
    } else {
        2 + usize::from(element[1] & 0x7f)
    };
    &element[header..]
}

/// Returns a subjectAltName extension with these names.
fn alternative(names: &[(u8, &[u8])]) -> CustomExtension {
    let names: Vec<u8> = names
        .iter()
        .flat_map(|(tag, name)| tlv(*tag, name))
        .collect();
    CustomExtension::from_oid_content(&[2, 5, 29, 17], tlv(0x30, &names))
}

/// Issues a client certificate of the authority whose common name has this tag and these bytes,
/// with these extensions.
fn issue(
    authority: &Authority,
    (tag, common_name): (u8, &[u8]),
    extensions: Vec<CustomExtension>,
) -> Issued {
    let authority_key = KeyPair::from_pem(authority.key_pem().expose()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(authority.cert_pem(), &authority_key).unwrap();
    let placeholder = "#".repeat(common_name.len());
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, placeholder.clone());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.custom_extensions = extensions;
    let key = KeyPair::generate().unwrap();
    let der = params.signed_by(&key, &issuer).unwrap().der().to_vec();

    // The library writes no bytes that are not text, so they are put in place, and the certificate
    // is signed again.
    let (signed, rest) = element(content(&der));
    let (algorithm, _) = element(rest);
    let (made, wanted) = (tlv(UTF8, placeholder.as_bytes()), tlv(tag, common_name));
    let at = signed
        .windows(made.len())
        .position(|window| window == made)
        .unwrap();
    let signed = [&signed[..at], &wanted, &signed[at + made.len()..]].concat();
    let signature = tlv(
        0x03,
        &[&[0][..], &authority_key.sign(&signed).unwrap()].concat(),
    );
    let der = tlv(0x30, &[&signed, algorithm, &signature].concat());
    let lines: String = STANDARD
        .encode(der)
        .as_bytes()
        .chunks(64)
        .map(|line| format!("{}\n", std::str::from_utf8(line).unwrap()))
        .collect();
    let cert_pem = format!("-----BEGIN CERTIFICATE-----\n{lines}-----END CERTIFICATE-----\n");
    Issued {
        cert_pem,
        key_pem: SecretPem::new(key.serialize_pem()),
    }
}

/// Writes the log of this process to a file, with all levels.
fn log_to(file: &Path) {
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false);
    let log = log
        .with_writer(Mutex::new(std::fs::File::create(file).unwrap()))
        .finish();
    tracing::subscriber::set_global_default(log).unwrap();
}

#[test]
fn certificate_with_invalid_name_is_rejected_over_tls() {
    run_in_own_process(
        "e2e::certificate_names::certificate_with_invalid_name_is_rejected_over_tls",
        async {
            let folder = tempfile::tempdir().unwrap();
            let log = folder.path().join("log");
            log_to(&log);
            let harness = Harness::start().await;
            let relay = (UTF8, &b"relay"[..]);
            let good = (DNS, &b"relay.example"[..]);
            let id = (URI, &b"spiffe://org/relay"[..]);
            let evil = b"evil\x1b[31m\n2026 WARN forged\xff".as_slice();
            /// A common name, a further name with its tag, further extensions, and whether the
            /// certificate is accepted.
            type Row<'a> = (&'a str, (u8, &'a [u8]), Vec<CustomExtension>, bool);
            let rows: Vec<Row<'_>> = vec![
                (
                    "a DNS name that is not UTF-8",
                    relay,
                    vec![alternative(&[(DNS, evil)])],
                    false,
                ),
                (
                    "a URI that is not UTF-8",
                    relay,
                    vec![alternative(&[good, (URI, evil)])],
                    false,
                ),
                (
                    "a common name that is not UTF-8",
                    (UTF8, evil),
                    vec![alternative(&[good])],
                    false,
                ),
                (
                    "a DNS name with NUL",
                    relay,
                    vec![alternative(&[(DNS, b"relay\0.example")])],
                    false,
                ),
                (
                    "an empty DNS name",
                    relay,
                    vec![alternative(&[(DNS, b"")])],
                    false,
                ),
                (
                    "a DNS name with a space",
                    relay,
                    vec![alternative(&[(DNS, b"relay ")])],
                    false,
                ),
                (
                    "a DNS name beyond ASCII",
                    relay,
                    vec![alternative(&[(DNS, "rel\u{e9}y".as_bytes())])],
                    false,
                ),
                (
                    "a wildcard behind a good DNS name",
                    relay,
                    vec![alternative(&[good, (DNS, b"*.example")])],
                    false,
                ),
                (
                    "a wildcard beside a SPIFFE ID",
                    relay,
                    vec![alternative(&[id, (DNS, b"*.example")])],
                    false,
                ),
                (
                    "a long DNS name",
                    relay,
                    vec![alternative(&[(DNS, &[b'a'; 254])])],
                    false,
                ),
                (
                    "a SPIFFE URI with a space in front",
                    relay,
                    vec![alternative(&[good, (URI, b" spiffe://org/x")])],
                    false,
                ),
                (
                    "a SPIFFE URI without slashes",
                    relay,
                    vec![alternative(&[good, (URI, b"spiffe:org/x")])],
                    false,
                ),
                (
                    "two SPIFFE IDs",
                    relay,
                    vec![alternative(&[id, (URI, b"spiffe://org/other")])],
                    false,
                ),
                (
                    "a common name as BMPString",
                    (0x1e, b"\0r\0e"),
                    vec![alternative(&[good])],
                    false,
                ),
                (
                    "a common name as TeletexString",
                    (0x14, b"relay"),
                    vec![alternative(&[good])],
                    false,
                ),
                (
                    "a common name as UniversalString",
                    (0x1c, b"\0\0\0r"),
                    vec![alternative(&[good])],
                    false,
                ),
                (
                    "a common name in latin-1",
                    (0x13, b"rel\xe9y"),
                    vec![alternative(&[good])],
                    false,
                ),
                (
                    "a common name with white space",
                    (UTF8, b" relay"),
                    vec![alternative(&[good])],
                    false,
                ),
                (
                    "a common name beside a SPIFFE ID",
                    (UTF8, b"re\nlay"),
                    vec![alternative(&[id])],
                    false,
                ),
                (
                    "two lists of names",
                    relay,
                    vec![alternative(&[good]), alternative(&[id])],
                    false,
                ),
                (
                    "an undefined kind of name",
                    relay,
                    vec![alternative(&[good, (0x89, b"x")])],
                    false,
                ),
                (
                    "an invalid name of a kind that never counts",
                    relay,
                    vec![alternative(&[good, (EMAIL, b"\xff")])],
                    true,
                ),
                ("good names", relay, vec![alternative(&[good, id])], true),
            ];

            let rejections =
                async || harness.metric(NAMELESS).await + harness.metric(TLS_FAILED).await;
            let mut rejected = 0.0;
            for (case, common_name, extensions, is_good) in rows {
                let issued = issue(&harness.authority, common_name, extensions);
                if is_good {
                    harness
                        .raw_as(Some(&issued))
                        .await
                        .unwrap()
                        .is_alive()
                        .await;
                } else {
                    let refused = match harness.raw_as(Some(&issued)).await {
                        Ok(mut raw) => raw.refuses_to_speak().await,
                        Err(_) => true,
                    };
                    assert!(refused, "{case}");
                    rejected += 1.0;
                }
                assert_eq!(rejections().await, rejected, "{case}");
            }
            assert!(
                harness.metric(NAMELESS).await >= 20.0,
                "the TLS library rejects two lists alone"
            );

            // The log says why once in ten seconds, and never in the words of the certificate.
            let log = std::fs::read(&log).unwrap();
            assert!(
                log.iter()
                    .all(|byte| byte.is_ascii_graphic() || b" \n".contains(byte)),
                "only visible ASCII"
            );
            let text = String::from_utf8(log).unwrap();
            assert!(!text.contains("evil") && !text.contains("forged"), "{text}");
            let line = text
                .lines()
                .find(|line| line.contains("no name in it can be a principal"))
                .unwrap();
            assert!(
                line.contains("WARN") && line.contains("has a DNS name that is not a host name"),
                "{line}"
            );
            let sha256 = line
                .split("sha256=")
                .nth(1)
                .unwrap()
                .trim_start_matches('"');
            assert!(
                sha256.bytes().take_while(u8::is_ascii_hexdigit).count() == 64,
                "{line}"
            );
            assert!(line.contains("access.name_order"), "{line}");
        },
    );
}

#[test]
fn names_of_other_kinds_let_their_certificates_in() {
    crate::e2e::harness::run(async {
        let harness =
            Harness::with(|config| config.access.identity = Identity::from_names(["dns"]).unwrap())
                .await;
        let names = || vec![alternative(&[(DNS, b"relay"), (URI, b"\xff")])];
        let issued = issue(&harness.authority, (0x1e, b"\0r"), names());
        harness
            .raw_as(Some(&issued))
            .await
            .unwrap()
            .is_alive()
            .await;
        assert_eq!(harness.metric(NAMELESS).await, 0.0);
    });
}
