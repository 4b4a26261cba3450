use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use sealwire_testkit::softhsm::{CONFIGURATION, SoftHsm};
use sealwire_testkit::{Certificates, TransitFault, TransitServer, child};

use super::*;
use crate::WrapSlot;

type Table<'a> = &'a [(&'a str, &'a str)];

fn table(settings: Table) -> BTreeMap<String, String> {
    settings
        .iter()
        .map(|&(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn parse(kind: &str, settings: Table) -> Result<ProviderSettings, String> {
    ProviderSettings::parse("main", kind, &table(settings), Path::new("/etc/sealwire"))
        .map_err(|error| error.to_string())
}

/// `settings` with changes: an empty value removes a setting.
fn changed<'a>(
    settings: &[(&'a str, &'a str)],
    changes: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let mut all: BTreeMap<&str, &str> = settings.iter().copied().collect();
    for &(name, value) in changes {
        match value {
            "" => all.remove(name),
            value => all.insert(name, value),
        };
    }
    all.into_iter().collect()
}

const PKCS11: Table = &[
    ("module", "/usr/lib/hsm.so"),
    ("token", "sealwire"),
    ("key", "kek"),
    ("pin_file", "secrets/pin"),
];
const AWS_KMS: Table = &[
    ("key_id", "alias/sealwire"),
    ("region", "eu-central-1"),
    ("ca", "aws.pem"),
];
const ROLE_ARN: &str = "arn:aws:iam::123456789012:role/sealwire";
const TRANSIT: Table = &[
    ("address", "https://vault.internal:8200"),
    ("key", "sealwire"),
    ("ca", "vault.pem"),
    ("auth", "token"),
    ("token_file", "token"),
];

#[test]
fn provider_kinds_are_read() {
    let file = ProviderSettings::File {
        path: "/etc/sealwire/kek.key".into(),
    };
    assert_eq!(parse("file", &[("path", "kek.key")]), Ok(file));
    let file = ProviderSettings::File {
        path: "/run/kek.key".into(),
    };
    assert_eq!(parse("file", &[("path", "/run/kek.key")]), Ok(file));
    let environment = ProviderSettings::Environment {
        variable: "SEALWIRE_KEK".into(),
    };
    assert_eq!(
        parse("environment", &[("variable", "SEALWIRE_KEK")]),
        Ok(environment)
    );

    let options = Pkcs11Options {
        module: "/usr/lib/hsm.so".into(),
        token: Some("sealwire".into()),
        serial: None,
        key: "kek".into(),
        key_id: None,
        pin_file: "/etc/sealwire/secrets/pin".into(),
    };
    assert_eq!(
        parse("pkcs11", PKCS11),
        Ok(ProviderSettings::Pkcs11(options.clone()))
    );
    let all = changed(
        PKCS11,
        &[
            ("token", ""),
            ("serial", "0123456789abcdef"),
            ("key_id", "00fF"),
        ],
    );
    let options = Pkcs11Options {
        token: None,
        serial: Some("0123456789abcdef".into()),
        key_id: Some(vec![0, 255]),
        ..options
    };
    assert_eq!(parse("pkcs11", &all), Ok(ProviderSettings::Pkcs11(options)));

    let kms = |credentials: AwsCredentials| AwsKmsOptions {
        ca: Some("/etc/sealwire/aws.pem".into()),
        ..AwsKmsOptions::new("alias/sealwire", "eu-central-1", credentials)
    };
    let file = |profile: &str| AwsCredentials::File {
        path: "/etc/sealwire/aws".into(),
        profile: profile.into(),
    };
    let identity = |url: Option<&str>| AwsCredentials::WebIdentity {
        role_arn: ROLE_ARN.into(),
        token_file: "/run/token".into(),
        sts_endpoint_url: url.map(Into::into),
    };
    let by_identity = [
        ("credentials", "web_identity"),
        ("role_arn", ROLE_ARN),
        ("web_identity_token_file", "/run/token"),
    ];
    let at_sts = [
        &by_identity[..],
        &[("sts_endpoint_url", "https://sts.internal")],
    ]
    .concat();
    let by_file = [("credentials", "file"), ("credentials_file", "aws")];
    let cases: &[(Table, AwsKmsOptions)] = &[
        (&[], kms(AwsCredentials::Environment)),
        (
            &[("credentials", "environment")],
            kms(AwsCredentials::Environment),
        ),
        (&by_file, kms(file("default"))),
        (
            &[by_file[0], by_file[1], ("profile", "ops")],
            kms(file("ops")),
        ),
        (&by_identity, kms(identity(None))),
        (&at_sts, kms(identity(Some("https://sts.internal")))),
        (
            &[
                ("ca", ""),
                ("endpoint_url", "http://127.0.0.1:5000"),
                ("connect_timeout_ms", "100"),
            ],
            AwsKmsOptions {
                ca: None,
                endpoint_url: Some("http://127.0.0.1:5000".into()),
                connect_timeout: Duration::from_millis(100),
                ..kms(AwsCredentials::Environment)
            },
        ),
    ];
    for (changes, options) in cases {
        assert_eq!(
            parse("awskms", &changed(AWS_KMS, changes)),
            Ok(ProviderSettings::AwsKms(options.clone()))
        );
    }
}

#[test]
fn transit_logins_are_read() {
    let transit = |login: TransitLogin| TransitOptions {
        ca: Some("/etc/sealwire/vault.pem".into()),
        ..TransitOptions::new("https://vault.internal:8200", "sealwire", login)
    };
    let token = transit(TransitLogin::TokenFile("/etc/sealwire/token".into()));
    let role = |mount: &str, secret_id: SecretIdSource| {
        transit(TransitLogin::AppRole {
            mount: mount.into(),
            role_id: "4711".into(),
            secret_id,
        })
    };
    let file = SecretIdSource::File("/etc/sealwire/secret-id".into());
    let creation_path = "auth/approle/role/sealwire/secret-id";
    let wrapped = SecretIdSource::Wrapped {
        file: "/etc/sealwire/wrapped".into(),
        creation_path: creation_path.into(),
    };
    let certificate = |mount: &str, role: Option<&str>| TransitOptions {
        client_certificate: Some("/etc/sealwire/c.pem".into()),
        client_key: Some("/etc/sealwire/c.key".into()),
        ..transit(TransitLogin::Certificate {
            mount: mount.into(),
            role: role.map(Into::into),
        })
    };
    let by_role = [("auth", "approle"), ("token_file", ""), ("role_id", "4711")];
    let by_file = [&by_role[..], &[("secret_id_file", "secret-id")]].concat();
    let by_wrapped = [
        &by_role[..],
        &[
            ("wrapped_secret_id_file", "wrapped"),
            ("wrapped_creation_path", creation_path),
        ],
    ]
    .concat();
    let by_certificate = [
        ("auth", "certificate"),
        ("token_file", ""),
        ("client_certificate", "c.pem"),
        ("client_key", "c.key"),
    ];
    let cases: &[(Table, TransitOptions)] = &[
        (&[], token.clone()),
        (&by_file, role("approle", file.clone())),
        (
            &[&by_file[..], &[("approle_mount", "team/role")]].concat(),
            role("team/role", file),
        ),
        (&by_wrapped, role("approle", wrapped)),
        (&by_certificate, certificate("cert", None)),
        (
            &[
                &by_certificate[..],
                &[("cert_mount", "mtls"), ("cert_role", "sealwire")],
            ]
            .concat(),
            certificate("mtls", Some("sealwire")),
        ),
        (
            &[
                ("address", "http://[::1]:8200/"),
                ("ca", ""),
                ("mount", "keys/transit"),
                ("namespace", "team/a"),
                ("connect_timeout_ms", "100"),
                ("request_timeout_ms", "60000"),
            ],
            TransitOptions {
                address: "http://[::1]:8200/".into(),
                ca: None,
                mount: "keys/transit".into(),
                namespace: Some("team/a".into()),
                connect_timeout: Duration::from_millis(100),
                request_timeout: Duration::from_secs(60),
                ..token
            },
        ),
    ];
    for (changes, options) in cases {
        assert_eq!(
            parse("transit", &changed(TRANSIT, changes)),
            Ok(ProviderSettings::Transit(options.clone()))
        );
    }
}

#[test]
fn missing_settings_are_named() {
    let kinds: [(&str, Table); 5] = [
        ("file", &[("path", "kek.key")]),
        ("environment", &[("variable", "SEALWIRE_KEK")]),
        ("pkcs11", PKCS11),
        ("awskms", AWS_KMS),
        ("transit", TRANSIT),
    ];
    for (kind, settings) in kinds {
        assert!(parse(kind, settings).is_ok(), "{kind}");
        for (name, _) in settings {
            let error = parse(kind, &changed(settings, &[(name, "")])).unwrap_err();
            let problem = error.strip_prefix(&format!("provider `main`: {name}: "));
            let named = problem
                .is_some_and(|text| text.starts_with("missing") || text.starts_with("is required"));
            assert!(named, "{kind}: {error}");
        }
        let secret = "0123456789abcdef".repeat(4);
        let long = "hunter".repeat(6);
        for (unknown, shown) in [
            ("pin", true),
            ("secret", true),
            ("access_key_id", true),
            ("Path", false),
            ("hunter2", false),
            ("hunter-x", false),
            (&*secret, false),
            (&*long, false),
            ("\u{e9}", false),
        ] {
            let error = parse(kind, &changed(settings, &[(unknown, "hunter2-value")])).unwrap_err();
            let start = if shown {
                format!("{unknown}: unknown; kind {kind} has ")
            } else {
                "a setting is unknown, ".to_owned()
            };
            assert!(
                error.starts_with(&format!("provider `main`: {start}")),
                "{error}"
            );
            assert!(
                !error.contains("hunter") && (shown || !error.contains(unknown)),
                "{error}"
            );
        }
    }
}

#[test]
fn a_setting_of_another_way_to_log_in_is_unknown() {
    let both = changed(TRANSIT, &[("role_id", "hunter2-value")]);
    let error = parse("transit", &both).unwrap_err();
    assert!(
        error.starts_with("provider `main`: role_id: unknown"),
        "{error}"
    );
}

#[test]
fn malformed_values_are_named_but_never_repeated() {
    let long = "x".repeat(VALUE_BYTES_MAX + 1);
    let key = "0123456789abcdef".repeat(4);
    let (upper_key, key_below) = (key.replace('0', "A").to_uppercase(), format!("/etc/{key}/"));
    let cases: &[(&str, Table, &str, &str)] = &[
        ("file", &[], "path", &long),
        ("file", &[], "path", "a\0hunter2"),
        ("file", &[], "path", "hunter2\n"),
        ("environment", &[], "variable", "hunter2"),
        ("environment", &[], "variable", "1HUNTER2"),
        ("environment", &[], "variable", "HUNTER2 "),
        (
            "pkcs11",
            PKCS11,
            "token",
            "hunter2-hunter2-hunter2-hunter2-h",
        ),
        ("pkcs11", PKCS11, "serial", "hunter2-hunter2-h"),
        ("pkcs11", PKCS11, "key_id", "hunter2"),
        ("pkcs11", PKCS11, "key_id", "123"),
        ("file", &[], "path", &key),
        ("file", &[], "path", &key_below),
        ("environment", &[], "variable", &upper_key),
        ("pkcs11", PKCS11, "pin_file", &key),
        ("pkcs11", PKCS11, "module", &key_below),
        ("transit", TRANSIT, "token_file", &key),
        ("awskms", AWS_KMS, "key_id", "hunter2 key"),
        ("awskms", AWS_KMS, "region", "hunter2/eu"),
        ("awskms", AWS_KMS, "endpoint_url", "http://hunter2.internal"),
        ("awskms", AWS_KMS, "credentials", "hunter2"),
        ("awskms", AWS_KMS, "connect_timeout_ms", "hunter2"),
        ("awskms", AWS_KMS, "connect_timeout_ms", "99"),
        ("awskms", AWS_KMS, "request_timeout_ms", "60001"),
        ("transit", TRANSIT, "connect_timeout_ms", "+500"),
        ("transit", TRANSIT, "request_timeout_ms", "5s"),
        (
            "transit",
            TRANSIT,
            "address",
            "http://hunter2.internal:8200",
        ),
        (
            "transit",
            TRANSIT,
            "address",
            "http://127.0.0.1.hunter2:8200",
        ),
        (
            "transit",
            TRANSIT,
            "address",
            "http://localhost@hunter2:8200",
        ),
        (
            "transit",
            TRANSIT,
            "address",
            "https://me:hunter2@vault:8200",
        ),
        ("transit", TRANSIT, "address", "https://vault:8200/hunter2"),
        ("transit", TRANSIT, "address", "https://vault:8200/?hunter2"),
        ("transit", TRANSIT, "address", "https://vault:8200/#hunter2"),
        ("transit", TRANSIT, "address", "https://hunter2:0"),
        ("transit", TRANSIT, "address", "https://hunter2:70000"),
        ("transit", TRANSIT, "address", "https://hunter2:"),
        ("transit", TRANSIT, "address", "hunter2:8200"),
        ("transit", TRANSIT, "address", "ftp://hunter2"),
        ("transit", TRANSIT, "address", "https://"),
        ("transit", TRANSIT, "key", "hunter2/key"),
        ("transit", TRANSIT, "key", ".."),
        ("transit", TRANSIT, "mount", "hunter2/../sys"),
        ("transit", TRANSIT, "mount", "/hunter2"),
        ("transit", TRANSIT, "mount", "hunter2/"),
        ("transit", TRANSIT, "namespace", "hunter2?x"),
        ("transit", TRANSIT, "namespace", "hunter2%2f"),
        ("transit", TRANSIT, "auth", "hunter2"),
    ];
    for &(kind, settings, name, value) in cases {
        let error = parse(kind, &changed(settings, &[(name, value)])).unwrap_err();
        assert!(
            error.starts_with(&format!("provider `main`: {name}: ")),
            "{name} {value:?}: {error}"
        );
        assert!(
            !error.contains("hunter2")
                && !error.contains("HUNTER2")
                && !error.contains("123456789")
                && error.len() < 300,
            "{error}"
        );
    }
    let empty = parse("file", &[("path", "")]).unwrap_err();
    assert!(
        empty.starts_with("provider `main`: path: must be "),
        "{empty}"
    );
}

#[test]
fn names_and_kinds_are_checked() {
    let check = |name: &str, kind: &str| {
        ProviderSettings::parse(name, kind, &table(&[("path", "x")]), Path::new("/"))
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let longest = "a".repeat(NAME_BYTES_MAX);
    for name in ["a", "main", "hsm-2_b", longest.as_str()] {
        assert_eq!(check(name, "file"), Ok(()), "{name}");
    }
    let long = "a".repeat(NAME_BYTES_MAX + 1);
    for name in ["", "Main", "a b", "a.b", "\u{e9}", "a\n", long.as_str()] {
        let error = check(name, "file").unwrap_err();
        assert!(
            error.contains("the name must be") && error.is_ascii() && !error.contains('\n'),
            "{error}"
        );
    }
    for kind in ["", "File", "vault", "hunter2"] {
        let error = check("main", kind).unwrap_err();
        assert!(
            error.contains("the kind must be one of") && !error.contains("hunter2"),
            "{error}"
        );
    }
}

#[test]
fn public_fields_say_where_the_kek_is_and_name_no_credential() {
    let cases: &[(&str, Table, Table, &str)] = &[
        (
            "file",
            &[("path", "kek.key")],
            &[],
            "path=/etc/sealwire/kek.key",
        ),
        (
            "environment",
            &[("variable", "SEALWIRE_KEK")],
            &[],
            "variable=SEALWIRE_KEK",
        ),
        (
            "pkcs11",
            PKCS11,
            &[("key_id", "0A"), ("serial", "77")],
            "key=kek key_id=0a module=/usr/lib/hsm.so serial=77 token=sealwire",
        ),
        (
            "awskms",
            AWS_KMS,
            &[("credentials", "file"), ("credentials_file", "c")],
            "credentials=file key_id=alias/sealwire region=eu-central-1",
        ),
        (
            "transit",
            TRANSIT,
            &[
                ("auth", "approle"),
                ("token_file", ""),
                ("role_id", "r"),
                ("secret_id_file", "s"),
                ("namespace", "n"),
            ],
            "address=https://vault.internal:8200 auth=approle key=sealwire mount=transit namespace=n",
        ),
    ];
    for (kind, settings, more, expected) in cases {
        let settings = parse(kind, &changed(settings, more)).unwrap();
        let fields: Vec<String> = settings
            .public_fields()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(fields.join(" "), *expected);
        assert_eq!(settings.kind().name(), *kind);
    }
}

/// Names the folder of the test to its child process.
const FOLDER: &str = "SEALWIRE_TEST_SETTINGS_FOLDER";
const VARIABLE: &str = "SEALWIRE_TEST_SETTINGS_KEK";

#[test]
fn provider_kinds_are_parsed_built_and_used() {
    let hsm = SoftHsm::new().unwrap_or_else(|error| panic!("{error}"));
    hsm.add_token("sealwire", "correct-pin")
        .unwrap_or_else(|error| panic!("{error}"));
    let status = child::command("settings::tests::child_process")
        .env(FOLDER, hsm.folder())
        .env("SEALWIRE_TEST_SETTINGS_MODULE", hsm.module())
        .env(CONFIGURATION, hsm.configuration())
        .env(VARIABLE, "0f".repeat(32))
        .status()
        .unwrap();
    assert!(status.success());
}

/// The child process of the test above; passes at once if that test did not start it.
#[tokio::test]
async fn child_process() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
        return;
    };
    let write = |name: &str, text: &str| {
        fs::write(folder.join(name), text).unwrap();
        fs::set_permissions(folder.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("kek.key", &"0f".repeat(32));
    write("pin", "correct-pin");
    write("token", "hunter2");
    write(
        "aws",
        "[default]\naws_access_key_id = id\naws_secret_access_key = hunter2\n",
    );
    let certificates = Certificates::make(&folder, "sealwire").unwrap();
    let (ca, module) = (
        certificates.ca.display().to_string(),
        std::env::var("SEALWIRE_TEST_SETTINGS_MODULE").unwrap(),
    );
    let root = Box::new(zeroize::Zeroizing::new([7; 32]));
    let slot = WrapSlot {
        set: [1; 16],
        root: [2; 16],
        number: 3,
    };
    let encoded = BASE64.encode(root.as_slice());
    let response = |fields: String| {
        let server = TransitServer::start(&certificates).unwrap();
        server.fail("", usize::MAX, TransitFault::Response(200, fields));
        server
    };
    let vault = response(format!(r#"{{"data":{{"ttl":0,"plaintext":"{encoded}"}}}}"#));
    let kms = response(format!(r#"{{"Plaintext":"{encoded}","KeyId":"k"}}"#));
    let (vault_url, kms_url) = (vault.address(), kms.address());
    let pkcs11 = changed(PKCS11, &[("module", &module), ("pin_file", "pin")]);
    let Ok(ProviderSettings::Pkcs11(options)) =
        ProviderSettings::parse("main", "pkcs11", &table(&pkcs11), &folder)
    else {
        panic!("not read")
    };
    Pkcs11Provider::new(options).generate_key().await.unwrap();
    let long = [
        ("connect_timeout_ms", "60000"),
        ("request_timeout_ms", "60000"),
        ("ca", &ca),
    ];
    let by_file = [
        ("endpoint_url", &*kms_url),
        ("credentials", "file"),
        ("credentials_file", "aws"),
    ];
    type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, Option<&'a [u8]>);
    let cases: [Case; 5] = [
        ("file", vec![("path", "kek.key")], None),
        ("environment", vec![("variable", VARIABLE)], None),
        ("pkcs11", pkcs11, None),
        (
            "awskms",
            changed(AWS_KMS, &[&by_file[..], &long].concat()),
            Some(b"a copy"),
        ),
        (
            "transit",
            changed(TRANSIT, &[&[("address", &*vault_url)][..], &long].concat()),
            Some(b"vault:v1:AAAA"),
        ),
    ];
    for (kind, settings, recorded) in cases {
        let settings = ProviderSettings::parse("main", kind, &table(&settings), &folder).unwrap();
        let provider = match settings.provider() {
            Err(ProviderError::Settings(text)) if kind == "awskms" && !cfg!(feature = "awskms") => {
                assert!(text.contains("built without"), "{text}");
                continue;
            }
            provider => provider.unwrap(),
        };
        assert_eq!(
            (provider.kind(), provider.kind().name()),
            (settings.kind(), kind)
        );
        // The servers know recorded responses alone.
        let copy = match recorded {
            Some(copy) => copy.to_vec(),
            None => provider.wrap(&root, &slot).await.unwrap(),
        };
        assert_eq!(
            provider.unwrap(&copy, &slot).await,
            Ok(root.clone()),
            "{kind}"
        );
        let longer = vec![b'x'; crate::WRAPPED_BYTES_MAX + 1];
        let result = provider.unwrap(&longer, &slot).await;
        assert!(
            matches!(&result, Err(ProviderError::DoesNotUnwrap(text)) if text.contains("at most 8192 bytes")),
            "{kind}: {result:?}"
        );
    }
}

#[test]
fn secret_files_are_the_files_whose_permissions_matter() {
    let certificate: Table = &[
        ("auth", "certificate"),
        ("token_file", ""),
        ("client_certificate", "c.pem"),
        ("client_key", "c.key"),
    ];
    let role: Table = &[
        ("auth", "approle"),
        ("token_file", ""),
        ("role_id", "4711"),
        ("secret_id_file", "secret-id"),
    ];
    let cases: &[(&str, Table, Table, &str)] = &[
        (
            "file",
            &[("path", "kek.key")],
            &[],
            "path=/etc/sealwire/kek.key",
        ),
        ("environment", &[("variable", "SEALWIRE_KEK")], &[], ""),
        ("pkcs11", PKCS11, &[], "pin_file=/etc/sealwire/secrets/pin"),
        ("awskms", AWS_KMS, &[], ""),
        (
            "awskms",
            AWS_KMS,
            &[("credentials", "file"), ("credentials_file", "aws")],
            "credentials_file=/etc/sealwire/aws",
        ),
        (
            "awskms",
            AWS_KMS,
            &[
                ("credentials", "web_identity"),
                ("role_arn", ROLE_ARN),
                ("web_identity_token_file", "token"),
            ],
            "",
        ),
        ("transit", TRANSIT, &[], "token_file=/etc/sealwire/token"),
        (
            "transit",
            TRANSIT,
            role,
            "secret_id_file=/etc/sealwire/secret-id",
        ),
        (
            "transit",
            TRANSIT,
            certificate,
            "client_key=/etc/sealwire/c.key",
        ),
    ];
    for (kind, settings, changes, expected) in cases {
        let settings = parse(kind, &changed(settings, changes)).unwrap();
        let files: Vec<String> = secret_files(&settings)
            .iter()
            .map(|(name, file)| format!("{name}={}", file.display()))
            .collect();
        assert_eq!(files.join(" "), *expected);
    }
}

fn secret_files(settings: &ProviderSettings) -> Vec<(&'static str, &Path)> {
    let files = settings
        .files()
        .into_iter()
        .filter(|(_, _, kind)| *kind == FileKind::Secret);
    files.map(|(name, file, _)| (name, file)).collect()
}

#[test]
fn a_recovery_public_key_is_a_file() {
    let shares = ProviderSettings::Shares {
        public_key: "/etc/sealwire/recovery.pub".into(),
    };
    assert_eq!(
        parse("shares", &[("public_key", "recovery.pub")]).as_ref(),
        Ok(&shares)
    );
    assert_eq!(
        (shares.kind().name(), secret_files(&shares)),
        ("shares", vec![]),
        "nothing in it is secret"
    );
    let public_key = (
        "public_key",
        Path::new("/etc/sealwire/recovery.pub"),
        FileKind::Public,
    );
    assert_eq!(shares.files(), [public_key]);
    assert_eq!(
        shares.public_fields()["public_key"],
        "/etc/sealwire/recovery.pub"
    );
    let missing = parse("shares", &[]).unwrap_err();
    assert!(
        missing.contains("public_key: missing, and kind shares needs it"),
        "{missing}"
    );
    let unknown = parse("shares", &[("public_key", "recovery.pub"), ("share", "1")]).unwrap_err();
    assert!(unknown.contains("share"), "{unknown}");
}
