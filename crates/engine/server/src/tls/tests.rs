use super::*;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, NamedGroup, ProtocolVersion, ServerConnection};
use sealwire_dev_ca::{Authority, Issued, Leaf, Name, Usage, Validity};
use sealwire_service::tls_files::PEM_BYTES_MAX;
use std::net::IpAddr;
use tempfile::TempDir;

/// Files as `sealwire dev` makes them, and the authority that signed them.
pub(crate) struct Files {
    pub(crate) folder: TempDir,
    pub(crate) authority: Authority,
    pub(crate) tls: Tls,
}

pub(crate) fn leaf(usage: Usage, name: &str) -> Leaf {
    Leaf {
        common_name: name.into(),
        names: vec![
            Name::Dns(name.into()),
            Name::Ip(IpAddr::from([127, 0, 0, 1])),
        ],
        usage,
        validity: Validity::days(1),
    }
}

pub(crate) fn private(path: &Path, contents: &str) {
    sealwire_dev_ca::write(
        path,
        contents.as_bytes(),
        sealwire_dev_ca::Access::Owner,
        sealwire_dev_ca::Existing::Replace,
    )
    .unwrap();
}

impl Files {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", Validity::days(10)).unwrap();
        let server = authority.issue(&leaf(Usage::Server, "localhost")).unwrap();
        let path = |name: &str| folder.path().join(name);
        let tls = Tls {
            certificate: path("server.pem"),
            key: path("server-key.pem"),
            client_ca: path("ca.pem"),
            client_crl: None,
            tls12: false,
            watch_s: 0,
        };
        std::fs::write(&tls.certificate, &server.cert_pem).unwrap();
        private(&tls.key, server.key_pem.expose());
        std::fs::write(&tls.client_ca, authority.cert_pem()).unwrap();
        Self {
            folder,
            authority,
            tls,
        }
    }

    pub(crate) fn client(&self) -> Issued {
        self.authority.issue(&leaf(Usage::Client, "relay")).unwrap()
    }

    fn error_text(&self) -> String {
        load(&self.tls).unwrap_err().to_string()
    }
}

/// The data listener's.
fn load(tls: &Tls) -> Result<ServerTls, TlsError> {
    super::load(tls, None).map(|loaded| loaded.data)
}

/// The control listener's.
fn load_control(tls: &Tls, control: &ControlListen) -> Result<ServerTls, TlsError> {
    super::load(tls, Some(control)).map(|loaded| loaded.control.unwrap())
}

/// A list of an authority that revokes these, and holds for that long from an hour ago.
pub(crate) fn list(authority: &Authority, revoked: &[&Issued], holds: time::Duration) -> String {
    use rcgen::{
        CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams,
        SerialNumber,
    };
    let valid_from = OffsetDateTime::now_utc() - time::Duration::hours(1);
    let revoke = |issued: &&Issued| {
        let der = der(issued);
        let serial = x509_parser::parse_x509_certificate(&der)
            .unwrap()
            .1
            .raw_serial()
            .to_vec();
        RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial),
            revocation_time: valid_from,
            reason_code: None,
            invalidity_date: None,
        }
    };
    let list = CertificateRevocationListParams {
        this_update: valid_from,
        next_update: valid_from + holds,
        crl_number: SerialNumber::from_slice(&[1]),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(revoke).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let key = KeyPair::from_pem(authority.key_pem().expose()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(authority.cert_pem(), key).unwrap();
    list.signed_by(&issuer).unwrap().pem().unwrap()
}

/// A certificate as a handshake shows it.
pub(crate) fn der(issued: &Issued) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap()
}

fn client_config(
    files: &Files,
    identity: Option<&Issued>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(files.authority.cert_pem().as_bytes()).unwrap())
        .unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        None => builder.with_no_client_auth(),
        Some(issued) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(issued.key_pem.expose().as_bytes()).unwrap(),
            )
            .unwrap(),
    }
}

/// Both ends after a handshake in memory, or the server's refusal.
fn shake(
    server: &ServerTls,
    client: ClientConfig,
) -> Result<(ServerConnection, ClientConnection), rustls::Error> {
    let mut server = ServerConnection::new(Arc::clone(&server.config)).unwrap();
    let mut client =
        ClientConnection::new(Arc::new(client), ServerName::try_from("localhost").unwrap())
            .unwrap();
    let mut bytes = Vec::new();
    for _ in 0..10 {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets()?;
        }
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    Ok((server, client))
}

const TLS12: &[&SupportedProtocolVersion] = &[&rustls::version::TLS12];

#[test]
fn a_caller_with_a_certificate_gets_tls13_and_post_quantum() {
    let files = Files::new();
    let tls = load(&files.tls).unwrap();
    let issued = files.client();
    let (server, client) = shake(&tls, client_config(&files, Some(&issued), TLS13)).unwrap();
    assert_eq!(server.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    let group = server.negotiated_key_exchange_group().unwrap().name();
    assert_eq!(group, NamedGroup::X25519MLKEM768);
    assert_eq!(server.alpn_protocol(), None);
    assert_eq!(client.tls13_tickets_received(), 0, "resumption is off");
    let certificate = &server.peer_certificates().unwrap()[0];
    assert_eq!(
        sealwire_access::Principal::from_certificate(certificate, &Default::default())
            .unwrap()
            .as_str(),
        "relay"
    );
}

#[test]
fn handshakes_never_resume_a_session() {
    let files = Files::new();
    let issued = files.client();
    for versions in [TLS13, TLS12] {
        let tls = load(&Tls {
            tls12: true,
            ..files.tls.clone()
        })
        .unwrap();
        let config = client_config(&files, Some(&issued), versions);
        for _ in 0..2 {
            let (server, _) = shake(&tls, config.clone()).unwrap();
            assert_ne!(
                server.handshake_kind(),
                Some(rustls::HandshakeKind::Resumed)
            );
            assert!(server.peer_certificates().is_some());
        }
    }
}

#[test]
fn clients_without_a_valid_certificate_are_rejected() {
    let files = Files::new();
    let tls = load(&files.tls).unwrap();
    let foreign = Files::new().client();
    let server_usage = files
        .authority
        .issue(&leaf(Usage::Server, "relay"))
        .unwrap();
    let now = OffsetDateTime::now_utc();
    let past = Validity {
        not_before: now - time::Duration::days(2),
        not_after: now - time::Duration::days(1),
    };
    let expired = files
        .authority
        .issue(&Leaf {
            validity: past,
            ..leaf(Usage::Client, "relay")
        })
        .unwrap();
    let cases = [
        ("none", None, TLS13),
        ("foreign authority", Some(&foreign), TLS13),
        ("server usage", Some(&server_usage), TLS13),
        ("expired", Some(&expired), TLS13),
    ];
    for (case, identity, versions) in cases {
        assert!(
            shake(&tls, client_config(&files, identity, versions)).is_err(),
            "{case}"
        );
    }
}

#[test]
fn tls12_needs_the_switch() {
    let files = Files::new();
    let issued = files.client();
    for (tls12, expected) in [(false, false), (true, true)] {
        let tls = load(&Tls {
            tls12,
            ..files.tls.clone()
        })
        .unwrap();
        let shaken = shake(&tls, client_config(&files, Some(&issued), TLS12));
        assert_eq!(shaken.is_ok(), expected, "tls12 = {tls12}");
    }
}

#[test]
fn only_revoked_certificates_are_rejected() {
    let mut files = Files::new();
    let revoked = files.client();
    let good = files.client();
    let file = files.folder.path().join("crl.pem");
    files.tls.client_crl = Some(file.clone());
    // An expired list stays in force.
    for holds in [time::Duration::days(1), time::Duration::minutes(1)] {
        std::fs::write(&file, list(&files.authority, &[&revoked], holds)).unwrap();
        let tls = load(&files.tls).unwrap();
        assert!(shake(&tls, client_config(&files, Some(&good), TLS13)).is_ok());
        assert!(shake(&tls, client_config(&files, Some(&revoked), TLS13)).is_err());
    }
    // The clients of an authority without a list are rejected. A lost list must not restore access
    // to clients with a revoked certificate.
    std::fs::write(
        &file,
        list(
            &Authority::create("other", Validity::days(1)).unwrap(),
            &[],
            time::Duration::days(1),
        ),
    )
    .unwrap();
    let tls = load(&files.tls).unwrap();
    assert!(shake(&tls, client_config(&files, Some(&good), TLS13)).is_err());
    std::fs::write(&file, "nothing").unwrap();
    assert!(files.error_text().contains("has no PEM revocation list"));
}

#[test]
fn certificate_lines_contain_no_secret() {
    let mut files = Files::new();
    let file = files.folder.path().join("crl.pem");
    std::fs::write(
        &file,
        list(
            &files.authority,
            &[&files.client()],
            time::Duration::minutes(1),
        ),
    )
    .unwrap();
    files.tls.client_crl = Some(file);
    let lines: Vec<String> = super::load(&files.tls, None)
        .unwrap()
        .certificates
        .iter()
        .map(CertificateInfo::to_string)
        .collect();
    let [server, ca, crl] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert!(
        server.starts_with("tls.certificate: localhost, 127.0.0.1, until "),
        "{server}"
    );
    assert!(
        ca.starts_with("tls.client_ca: test, until ") && ca.contains(" (9 days), SHA-256 "),
        "{ca}"
    );
    assert!(
        crl.starts_with("tls.client_crl: CN=test, 1 revoked, OVER since "),
        "{crl}"
    );
    let fingerprint = server.rsplit(' ').next().unwrap();
    assert!(
        fingerprint.len() == 64 && fingerprint.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{server}"
    );
}

#[test]
fn server_expiry_is_that_of_the_certificate() {
    let files = Files::new();
    let left = super::load(&files.tls, None)
        .unwrap()
        .server_expiry()
        .unwrap()
        - OffsetDateTime::now_utc();
    assert!(
        (time::Duration::hours(23)..=time::Duration::hours(24)).contains(&left),
        "{left}"
    );
}

#[test]
fn invalid_files_are_rejected_with_key_and_name() {
    type Break = fn(&mut Files);
    let cases: &[(&str, Break, &str)] = &[
        (
            "missing",
            |f| f.tls.certificate = f.folder.path().join("none.pem"),
            "cannot be read",
        ),
        (
            "folder",
            |f| f.tls.client_ca = f.folder.path().to_owned(),
            "cannot be read",
        ),
        (
            "key for certificate",
            |f| f.tls.certificate = f.tls.key.clone(),
            "has no PEM certificate",
        ),
        (
            "certificate for key",
            |f| private(&f.tls.key, f.authority.cert_pem()),
            "has no unencrypted PEM",
        ),
        (
            "encrypted key",
            |f| private(&f.tls.key, &labelled("ENCRYPTED PRIVATE KEY")),
            "has no unencrypted PEM",
        ),
        (
            "broken key",
            |f| private(&f.tls.key, &labelled("PRIVATE KEY")),
            "is not a key that TLS can use",
        ),
        (
            "cut key",
            |f| private(&f.tls.key, "-----BEGIN PRIVATE KEY-----\nAAAA"),
            "item 1 is malformed",
        ),
        (
            "other key",
            |f| private(&f.tls.key, f.client().key_pem.expose()),
            "does not belong to the first",
        ),
        (
            "empty CA",
            |f| std::fs::write(&f.tls.client_ca, "").unwrap(),
            "has no PEM certificate",
        ),
        (
            "broken CA",
            |f| {
                let text = format!("{}{}", f.authority.cert_pem(), labelled("CERTIFICATE"));
                std::fs::write(&f.tls.client_ca, text).unwrap();
            },
            "item 2 is malformed",
        ),
        (
            "expired",
            |f| {
                let now = OffsetDateTime::now_utc();
                let validity = Validity {
                    not_before: now - time::Duration::days(2),
                    not_after: now - time::Duration::days(1),
                };
                let old = f
                    .authority
                    .issue(&Leaf {
                        validity,
                        ..leaf(Usage::Server, "localhost")
                    })
                    .unwrap();
                std::fs::write(&f.tls.certificate, &old.cert_pem).unwrap();
                private(&f.tls.key, old.key_pem.expose());
            },
            "is not valid now",
        ),
        (
            "huge",
            |f| std::fs::write(&f.tls.client_ca, vec![b'\n'; PEM_BYTES_MAX as usize + 1]).unwrap(),
            "cannot be read",
        ),
    ];
    for (case, change, expected) in cases {
        let mut files = Files::new();
        change(&mut files);
        let refused = files.error_text();
        assert!(refused.starts_with("tls."), "{case}: {refused}");
        assert!(refused.contains(expected), "{case}: {refused}");
    }
}

/// PEM of that label around bytes that are nothing.
fn labelled(label: &str) -> String {
    format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n")
}

#[cfg(unix)]
#[test]
fn key_file_that_other_users_can_access_is_rejected() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    for (mode, accepted) in [
        (0o600, true),
        (0o400, true),
        (0o440, true),
        (0o640, true),
        (0o660, false),
        (0o644, false),
        (0o604, false),
    ] {
        std::fs::set_permissions(&files.tls.key, std::fs::Permissions::from_mode(mode)).unwrap();
        let loaded = load(&files.tls);
        assert_eq!(loaded.is_ok(), accepted, "{mode:o}");
        if let Err(error) = loaded {
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }
}

#[test]
fn a_second_load_picks_up_new_files() {
    let files = Files::new();
    let before = load(&files.tls).unwrap();
    let authority = Authority::create("next", Validity::days(10)).unwrap();
    std::fs::write(&files.tls.client_ca, authority.cert_pem()).unwrap();
    let after = load(&files.tls).unwrap();
    let caller = authority.issue(&leaf(Usage::Client, "relay")).unwrap();
    assert!(shake(&before, client_config(&files, Some(&caller), TLS13)).is_err());
    assert!(shake(&after, client_config(&files, Some(&caller), TLS13)).is_ok());
}

#[test]
fn an_authority_of_operators_without_a_list_is_not_that_of_all_callers() {
    let files = Files::new();
    let own = Authority::create("operators", Validity::days(10)).unwrap();
    // The authority of clients is itself signed by `own`: a client that sends both certificates is
    // accepted under it.
    let below = {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "callers");
        let root = rcgen::KeyPair::from_pem(own.key_pem().expose()).unwrap();
        let root = rcgen::Issuer::from_ca_cert_pem(own.cert_pem(), root).unwrap();
        params
            .signed_by(&rcgen::KeyPair::generate().unwrap(), &root)
            .unwrap()
            .pem()
    };
    let all = files.authority.cert_pem().to_owned();
    let own = own.cert_pem().to_owned();
    let file = files.folder.path().join("operators.pem");
    for (case, callers, operators, good) in [
        ("another", &all, &own, true),
        ("a copy", &all, &all, false),
        ("both", &all, &format!("{own}{all}"), false),
        ("both, the other way", &format!("{all}{own}"), &own, false),
        ("one above", &below, &own, false),
        ("one below", &own, &below, true),
    ] {
        std::fs::write(&files.tls.client_ca, callers).unwrap();
        std::fs::write(&file, operators).unwrap();
        let control = |principals: &[&str]| ControlListen {
            address: ([127, 0, 0, 1], 0).into(),
            client_ca: Some(file.clone()),
            client_crl: None,
            principals: principals
                .iter()
                .map(|name| (sealwire_access::PrincipalKind::Dns, (*name).into()))
                .collect(),
        };
        let loaded = load_control(&files.tls, &control(&[]));
        assert_eq!(loaded.is_ok(), good, "{case}");
        if let Err(error) = loaded {
            let says = error.to_string();
            assert!(
                says.starts_with("control.client_ca: ") && says.contains("control.principals"),
                "{case}: {says}"
            );
        }
        load_control(&files.tls, &control(&["operator"])).unwrap();
    }
}
