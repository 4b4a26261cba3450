use super::*;

type Table<'a> = &'a [(&'a str, &'a str)];

fn table(settings: Table) -> BTreeMap<String, String> {
    settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn parse(kind: &str, settings: Table) -> Result<ProviderSettings, String> {
    ProviderSettings::parse("main", kind, &table(settings), Path::new("/etc/sealwire"))
        .map_err(|error| error.to_string())
}

/// `settings` with changes: an empty value removes a setting.
fn changed<'a>(settings: &[(&'a str, &'a str)], changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all: BTreeMap<&str, &str> = settings.iter().copied().collect();
    for &(name, value) in changes {
        match value {
            "" => all.remove(name),
            value => all.insert(name, value),
        };
    }
    all.into_iter().collect()
}

const PKCS11: Table =
    &[("module", "/usr/lib/hsm.so"), ("token", "sealwire"), ("key", "kek"), ("pin_file", "secrets/pin")];
const AWS_KMS: Table = &[("key", "alias/sealwire"), ("region", "eu-central-1")];
const TRANSIT: Table = &[
    ("address", "https://vault.internal:8200"),
    ("key", "sealwire"),
    ("ca", "vault.pem"),
    ("auth", "token"),
    ("token_file", "token"),
];

#[test]
fn each_kind_is_read() {
    let file = ProviderSettings::File { path: "/etc/sealwire/kek.key".into() };
    assert_eq!(parse("file", &[("path", "kek.key")]), Ok(file));
    let file = ProviderSettings::File { path: "/run/kek.key".into() };
    assert_eq!(parse("file", &[("path", "/run/kek.key")]), Ok(file));
    let environment = ProviderSettings::Environment { variable: "SEALWIRE_KEK".into() };
    assert_eq!(parse("environment", &[("variable", "SEALWIRE_KEK")]), Ok(environment));

    let options = Pkcs11Options {
        module: "/usr/lib/hsm.so".into(),
        token: Some("sealwire".into()),
        serial: None,
        key: "kek".into(),
        key_id: None,
        pin_file: "/etc/sealwire/secrets/pin".into(),
    };
    assert_eq!(parse("pkcs11", PKCS11), Ok(ProviderSettings::Pkcs11(options.clone())));
    let all = changed(PKCS11, &[("token", ""), ("serial", "0123456789abcdef"), ("key_id", "00fF")]);
    let options =
        Pkcs11Options { token: None, serial: Some("0123456789abcdef".into()), key_id: Some(vec![0, 255]), ..options };
    assert_eq!(parse("pkcs11", &all), Ok(ProviderSettings::Pkcs11(options)));

    let kms = |endpoint: Option<&str>, file: Option<&str>| ProviderSettings::AwsKms {
        key: "alias/sealwire".into(),
        region: "eu-central-1".into(),
        endpoint: endpoint.map(Into::into),
        credentials_file: file.map(Into::into),
    };
    assert_eq!(parse("awskms", AWS_KMS), Ok(kms(None, None)));
    let all = changed(AWS_KMS, &[("endpoint", "http://127.0.0.1:5000"), ("credentials_file", "aws")]);
    assert_eq!(parse("awskms", &all), Ok(kms(Some("http://127.0.0.1:5000"), Some("/etc/sealwire/aws"))));
}

#[test]
fn each_way_to_log_in_to_transit_is_read() {
    let transit = |auth: TransitAuth| ProviderSettings::Transit {
        address: "https://vault.internal:8200".into(),
        key: "sealwire".into(),
        mount: "transit".into(),
        ca: Some("/etc/sealwire/vault.pem".into()),
        namespace: None,
        auth,
        auth_mount: None,
    };
    let token = TransitAuth::Token { token_file: "/etc/sealwire/token".into() };
    assert_eq!(parse("transit", TRANSIT), Ok(transit(token)));
    let role = [("auth", "approle"), ("token_file", ""), ("role_id", "4711"), ("secret_id_file", "secret-id")];
    let auth = TransitAuth::AppRole { role_id: "4711".into(), secret_id_file: "/etc/sealwire/secret-id".into() };
    assert_eq!(parse("transit", &changed(TRANSIT, &role)), Ok(transit(auth)));
    let certificate =
        [("auth", "certificate"), ("token_file", ""), ("client_certificate", "c.pem"), ("client_key", "c.key")];
    let auth = TransitAuth::Certificate {
        client_certificate: "/etc/sealwire/c.pem".into(),
        client_key: "/etc/sealwire/c.key".into(),
    };
    assert_eq!(parse("transit", &changed(TRANSIT, &certificate)), Ok(transit(auth)));

    let more = [
        ("address", "http://[::1]:8200/"),
        ("ca", ""),
        ("mount", "keys/transit"),
        ("namespace", "team/a"),
        ("auth_mount", "k8s"),
    ];
    let Ok(ProviderSettings::Transit { mount, ca, namespace, auth_mount, .. }) =
        parse("transit", &changed(TRANSIT, &more))
    else {
        panic!("not read")
    };
    assert_eq!((&*mount, ca), ("keys/transit", None));
    assert_eq!((namespace.as_deref(), auth_mount.as_deref()), (Some("team/a"), Some("k8s")));
}

#[test]
fn every_setting_that_is_needed_is_named_when_it_is_missing() {
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
            assert!(error.starts_with(&format!("provider `main`: {name}: missing")), "{kind}: {error}");
        }
        for unknown in ["Path", "pin", "secret", "access_key_id", "\u{e9}"] {
            let error = parse(kind, &changed(settings, &[(unknown, "hunter2-value")])).unwrap_err();
            let shown = unknown.replace('\u{e9}', "?");
            assert!(error.starts_with(&format!("provider `main`: {shown}: unknown; kind {kind} has ")), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}

#[test]
fn a_setting_of_another_way_to_log_in_is_unknown() {
    let both = changed(TRANSIT, &[("role_id", "hunter2-value")]);
    let error = parse("transit", &both).unwrap_err();
    assert!(error.starts_with("provider `main`: role_id: unknown"), "{error}");
}

#[test]
fn malformed_values_are_named_but_never_repeated() {
    let long = "x".repeat(VALUE_BYTES_MAX + 1);
    let cases: &[(&str, Table, &str, &str)] = &[
        ("file", &[], "path", &long),
        ("file", &[], "path", "a\0hunter2"),
        ("file", &[], "path", "hunter2\n"),
        ("environment", &[], "variable", "hunter2"),
        ("environment", &[], "variable", "1HUNTER2"),
        ("environment", &[], "variable", "HUNTER2 "),
        ("pkcs11", PKCS11, "token", "hunter2-hunter2-hunter2-hunter2-h"),
        ("pkcs11", PKCS11, "serial", "hunter2-hunter2-h"),
        ("pkcs11", PKCS11, "key_id", "hunter2"),
        ("pkcs11", PKCS11, "key_id", "123"),
        ("awskms", AWS_KMS, "key", "hunter2 key"),
        ("awskms", AWS_KMS, "region", "hunter2/eu"),
        ("awskms", AWS_KMS, "endpoint", "http://hunter2.internal"),
        ("transit", TRANSIT, "address", "http://hunter2.internal:8200"),
        ("transit", TRANSIT, "address", "http://127.0.0.1.hunter2:8200"),
        ("transit", TRANSIT, "address", "http://localhost@hunter2:8200"),
        ("transit", TRANSIT, "address", "https://me:hunter2@vault:8200"),
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
        ("transit", TRANSIT, "auth_mount", "hunter2\\x"),
    ];
    for &(kind, settings, name, value) in cases {
        let error = parse(kind, &changed(settings, &[(name, value)])).unwrap_err();
        assert!(error.starts_with(&format!("provider `main`: {name}: must be ")), "{name} {value:?}: {error}");
        assert!(!error.contains("hunter2") && !error.contains("HUNTER2") && error.len() < 300, "{error}");
    }
    let empty = parse("file", &[("path", "")]).unwrap_err();
    assert!(empty.starts_with("provider `main`: path: must be "), "{empty}");
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
        assert!(error.contains("the name must be") && error.is_ascii() && !error.contains('\n'), "{error}");
    }
    for kind in ["", "File", "vault", "hunter2"] {
        let error = check("main", kind).unwrap_err();
        assert!(error.contains("the kind must be one of") && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn public_fields_say_where_the_kek_is_and_name_no_credential() {
    let cases: &[(&str, Table, Table, &str)] = &[
        ("file", &[("path", "kek.key")], &[], "path=/etc/sealwire/kek.key"),
        ("environment", &[("variable", "SEALWIRE_KEK")], &[], "variable=SEALWIRE_KEK"),
        (
            "pkcs11",
            PKCS11,
            &[("key_id", "0A"), ("serial", "77")],
            "key=kek key_id=0a module=/usr/lib/hsm.so serial=77 token=sealwire",
        ),
        ("awskms", AWS_KMS, &[("credentials_file", "c")], "key=alias/sealwire region=eu-central-1"),
        (
            "transit",
            TRANSIT,
            &[("auth", "approle"), ("token_file", ""), ("role_id", "r"), ("secret_id_file", "s"), ("namespace", "n")],
            "address=https://vault.internal:8200 auth=approle key=sealwire mount=transit namespace=n",
        ),
    ];
    for (kind, settings, more, expected) in cases {
        let settings = parse(kind, &changed(settings, more)).unwrap();
        let fields: Vec<String> =
            settings.public_fields().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(fields.join(" "), *expected);
        assert_eq!(settings.kind().name(), *kind);
    }
}

#[test]
fn a_provider_has_the_kind_of_its_settings() {
    for (kind, settings) in
        [("file", &[("path", "kek.key")][..]), ("environment", &[("variable", "SEALWIRE_KEK")]), ("pkcs11", PKCS11)]
    {
        let settings = parse(kind, settings).unwrap();
        assert_eq!(settings.provider().unwrap().kind(), settings.kind());
    }
}

#[test]
fn secret_files_are_the_files_whose_permissions_matter() {
    let certificate: Table =
        &[("auth", "certificate"), ("token_file", ""), ("client_certificate", "c.pem"), ("client_key", "c.key")];
    let role: Table = &[("auth", "approle"), ("token_file", ""), ("role_id", "4711"), ("secret_id_file", "secret-id")];
    let cases: &[(&str, Table, Table, &str)] = &[
        ("file", &[("path", "kek.key")], &[], "path=/etc/sealwire/kek.key"),
        ("environment", &[("variable", "SEALWIRE_KEK")], &[], ""),
        ("pkcs11", PKCS11, &[], "pin_file=/etc/sealwire/secrets/pin"),
        ("awskms", AWS_KMS, &[], ""),
        ("awskms", AWS_KMS, &[("credentials_file", "aws")], "credentials_file=/etc/sealwire/aws"),
        ("transit", TRANSIT, &[], "token_file=/etc/sealwire/token"),
        ("transit", TRANSIT, role, "secret_id_file=/etc/sealwire/secret-id"),
        ("transit", TRANSIT, certificate, "client_key=/etc/sealwire/c.key"),
    ];
    for (kind, settings, changes, expected) in cases {
        let settings = parse(kind, &changed(settings, changes)).unwrap();
        let files: Vec<String> =
            settings.secret_files().iter().map(|(name, file)| format!("{name}={}", file.display())).collect();
        assert_eq!(files.join(" "), *expected);
    }
}
