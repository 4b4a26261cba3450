//! The PEM files of TLS: certificates, private keys and revocation lists.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevocationReason,
    RevokedCertParams, SerialNumber,
};
use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, Usage, Validity, write};
use sealwire_server::tls::load;
use sealwire_settings::Tls;

use crate::input::edited;
use crate::seed::words as list;
use crate::{Input, Seed};

/// Files of a configuration, in the order certificate, key, authority, revocation list.
struct Authorities {
    tls: Tls,
    files: [(PathBuf, &'static str, Vec<u8>); 4],
}

static WORLD: LazyLock<Authorities> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let authority = Authority::create("fuzz", Validity::days(10)).expect("an authority");
    let names = vec![Name::Dns("localhost".into())];
    let leaf = Leaf {
        common_name: "localhost".into(),
        names,
        usage: Usage::Server,
        validity: Validity::days(1),
    };
    let server = authority.issue(&leaf).expect("a certificate");
    let files = [
        ("server.pem", "CERTIFICATE", server.cert_pem.as_str()),
        ("server-key.pem", "PRIVATE KEY", server.key_pem.expose()),
        ("ca.pem", "CERTIFICATE", authority.cert_pem()),
        ("crl.pem", "X509 CRL", &revocations(&authority)),
    ]
    .map(|(name, label, pem)| (folder.join(name), label, der_of(pem)));
    let tls = Tls {
        certificate: folder.join("server.pem"),
        key: folder.join("server-key.pem"),
        client_ca: folder.join("ca.pem"),
        client_crl: Some(folder.join("crl.pem")),
        tls12: false,
        watch_s: 0,
    };
    for (path, label, der) in &files {
        put(path, &pem(label, der));
    }
    Authorities { tls, files }
});

fn der_of(pem: &str) -> Vec<u8> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).expect("PEM");
    block.contents
}

fn put(path: &Path, contents: &[u8]) {
    write(path, contents, Access::Owner, Existing::Replace).expect("a file");
}

fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        STANDARD.encode(der)
    )
    .into_bytes()
}

/// Creates a list that revokes one certificate.
fn revocations(authority: &Authority) -> String {
    let began = time::OffsetDateTime::now_utc() - time::Duration::hours(1);
    let revoked = RevokedCertParams {
        serial_number: SerialNumber::from_slice(&[1, 2, 3]),
        revocation_time: began,
        reason_code: Some(RevocationReason::KeyCompromise),
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: began,
        next_update: began + time::Duration::days(9),
        crl_number: SerialNumber::from_slice(&[1]),
        issuing_distribution_point: None,
        revoked_certs: vec![revoked],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let key = KeyPair::from_pem(authority.key_pem().expose()).expect("a key");
    let issuer = Issuer::from_ca_cert_pem(authority.cert_pem(), key).expect("an issuer");
    list.signed_by(&issuer).expect("a list").pem().expect("PEM")
}

/// Loads TLS with one file changed. Settings: file, form, changes of its DER; then bytes that
/// replace the file's contents or follow them.
pub(crate) fn check_input(input: &[u8]) {
    let Authorities { tls, files } = &*WORLD;
    let mut input = Input(input);
    let (path, label, der) = &files[usize::from(input.byte() % 4)];
    let form = input.byte() % 4;
    let changed = edited(der, &input.edits());
    let contents = match form {
        0 => pem(label, &changed),
        1 => [pem(label, &changed), input.0.to_vec()].concat(),
        2 => pem(label, input.0),
        _ => input.0.to_vec(),
    };
    std::fs::write(path, &contents).expect("the changed file");
    let loaded = load(tls, None);
    std::fs::write(path, pem(label, der)).expect("the original file");
    match loaded {
        Ok(_) => assert!(!contents.is_empty(), "an empty file is accepted"),
        Err(error) => {
            let shown = error.to_string();
            assert!(
                !shown.is_empty() && !shown.chars().any(|c| c.is_control() && c != '\n'),
                "{shown:?}"
            );
            assert!(
                form > 0 || changed != *der,
                "honest files do not load: {shown}"
            );
            assert!(
                !shown.contains(&STANDARD.encode(&files[1].2)[60..80]),
                "an error shows the private key"
            );
        }
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (at, (_, label, der)) in WORLD.files.iter().enumerate() {
        let at = at as u8;
        seeds.push(Seed::new(format!("unchanged-{at}"), &[at, 0, 0], []));
        seeds.push(Seed::new(
            format!("changed-{at}"),
            &[at, 0, 1, 0, 30, 1],
            [],
        ));
        seeds.push(Seed::new(
            format!("behind-{at}"),
            &[at, 1, 0],
            "# comment\n-----BEGIN X-----\nAA==\n-----END X-----\n",
        ));
        seeds.push(Seed::new(
            format!("cut-{at}"),
            &[at, 3, 0],
            "-----BEGIN CERTIFICATE-----\nAA",
        ));
        if at != 1 {
            seeds.push(Seed {
                is_random: true,
                ..Seed::new(format!("der-{at}"), &[at, 2, 0], der)
            });
            seeds.push(Seed {
                is_random: true,
                ..Seed::new(format!("pem-{at}"), &[at, 3, 0], pem(label, der))
            });
        }
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let mut words = list([
        "-----BEGIN ",
        "-----END ",
        "CERTIFICATE-----\n",
        "PRIVATE KEY-----\n",
        "EC PRIVATE KEY-----\n",
        "X509 CRL-----\n",
        "RSA PRIVATE KEY-----\n",
        "\r\n",
    ]);
    // Object identifiers: basic constraints, key usage, CRL number, reason code, ECDSA with
    // SHA-256.
    words.extend(list([
        &[0x55u8, 0x1d, 0x13][..],
        &[0x55, 0x1d, 0x0f],
        &[0x55, 0x1d, 0x14],
        &[0x55, 0x1d, 0x15],
        &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2],
        &[0x30, 0x82],
        &[0x17, 0x0d],
    ]));
    words
}
