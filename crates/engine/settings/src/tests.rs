use std::collections::HashSet;

use super::*;
use sealwire_service::bearer::{Algorithm, IssuerOptions, JwksUrl, KeySource};
use sealwire_service::settings::{FILE_BYTES_MAX, Key, Kind};
use toml::Value;

fn parse(text: &str, variables: &[(&str, &str)]) -> Result<Config, Problems> {
    Config::parse(
        text,
        &Environment::from_pairs(variables.iter().copied()),
        Path::new("/etc/sealwire"),
    )
}

/// The one problem that is found, as an operator reads it.
fn refusal(text: &str, variables: &[(&str, &str)]) -> String {
    let error = parse(text, variables).expect_err(text);
    assert_eq!(error.len(), 1, "{error}");
    error.to_string()
}

#[test]
fn the_reference_parses_to_the_defaults() {
    let folder = Path::new("/etc/sealwire");
    assert_eq!(
        parse(&Config::reference(), &[]).unwrap(),
        Config::defaults(folder)
    );
    assert_eq!(parse("", &[]).unwrap(), Config::defaults(folder));
    assert_eq!(Config::defaults(folder).limits, Limits::default());
}

#[test]
fn keys_are_read_and_documented() {
    let mut values = Values(SCHEMA.read("", []).unwrap().values);
    Config::build(&mut values, Path::new(""), &mut Problems::default());
    let is_taken = |section: &Value| section.as_table().unwrap().is_empty();
    assert!(
        values.0.values().all(is_taken),
        "in the table, but no field takes it: {}",
        values.0
    );
    let reference = Config::reference();
    for key in keys::all() {
        assert!(
            reference.contains(&format!("\n{} = ", key.name)),
            "{}",
            key.path()
        );
        assert!(
            key.doc.trim_end().ends_with('.'),
            "{}: one sentence at least",
            key.path()
        );
    }
}

#[test]
fn paths_and_variables_of_keys_are_unique() {
    let paths: HashSet<_> = keys::all().map(Key::path).collect();
    let variables: HashSet<_> = keys::all().map(keys::variable).collect();
    assert_eq!(paths.len(), keys::all().count());
    assert_eq!(variables.len(), keys::all().count());
    for variable in variables {
        assert!(is_of_section(&variable), "{variable}");
    }
}

#[test]
fn the_environment_overrides_every_key() {
    for key in keys::all() {
        let list = |texts: &[&str]| Value::from(texts.to_vec());
        let (text, expected) = match (key.kind, key.name) {
            (Kind::Flag, _) => ("true".to_owned(), Value::from(true)),
            (Kind::Fraction, _) => ("0.25".to_owned(), Value::from(0.25)),
            (Kind::Number { min, .. }, _) => (min.to_string(), Value::from(min as i64)),
            (Kind::Choice(choices), _) => {
                let last = *choices.last().unwrap();
                (last.to_owned(), last.into())
            }
            (Kind::List(_), "open_roles") => ("support, *".to_owned(), list(&["support", "*"])),
            (Kind::List(_), "weights") => ("a=2, b=3".to_owned(), list(&["a=2", "b=3"])),
            (Kind::List(_), "name_order") => ("dns, cn".to_owned(), list(&["dns", "cn"])),
            (Kind::List(_), _) => ("[\"a\", \"cn:b\"]".to_owned(), list(&["a", "cn:b"])),
            (Kind::Address | Kind::OptionalAddress, _) => ("[::1]:9".to_owned(), "[::1]:9".into()),
            (Kind::OptionalUrl, _) => ("http://a:1/b".to_owned(), "http://a:1/b".into()),
            _ => ("CHANGED".to_owned(), "CHANGED".into()),
        };
        let values = SCHEMA
            .read("", [(keys::variable(key), text.into())])
            .unwrap()
            .values;
        let mut changed = SCHEMA.read("", []).unwrap().values;
        changed[key.section][key.name] = expected;
        assert_eq!(values, changed, "{}", key.path());
    }
}

#[test]
fn numbers_of_variables_need_no_toml() {
    let config = parse(
        "",
        &[
            ("SEALWIRE_LIMITS_DEPTH_MAX", "007"),
            ("SEALWIRE_LIMITS_TOKENS_PER_CALL_MAX", "1_000"),
            ("SEALWIRE_TRACES_SAMPLE_RATIO", ".5"),
            ("SEALWIRE_EVERVAULT_OPEN_ROLES", ""),
        ],
    )
    .unwrap();
    assert_eq!(config.limits.depth_max, 7);
    assert_eq!(config.limits.tokens_per_call_max, 1_000);
    assert_eq!(config.traces.sample_ppm, 500_000);
    assert_eq!(config.evervault, Evervault::default());
}

#[test]
fn the_environment_wins_over_the_file() {
    let text = "[listen]\naddress = \"127.0.0.1:1\"\n[limits]\ndepth_max = 10\n";
    let config = parse(text, &[("SEALWIRE_LISTEN_ADDRESS", "127.0.0.1:2")]).unwrap();
    assert_eq!(config.listen.address.unwrap().port(), 2);
    assert_eq!(config.limits.depth_max, 10);
}

#[test]
fn a_file_says_every_kind_of_value() {
    let text = r#"
        [tls]
        certificate = "/abs/server.pem"
        client_crl = "crl.pem"
        tls12 = true
        [kek]
        provider = "environment"
        env_var = "MY_KEK"
        [limits]
        depth_max = 0x20
        connections_max = 2_048
        [crypto]
        threads = 3
        [evervault]
        legacy = true
        open_roles = ["support", "card-number"]
        [log]
        format = "json"
        filter = "info,sealwire_server::connection=debug"
    "#;
    let config = parse(text, &[]).unwrap();
    assert_eq!(config.tls.certificate, Path::new("/abs/server.pem"));
    assert_eq!(
        config.tls.key,
        Path::new("/etc/sealwire/tls/server-key.pem")
    );
    assert_eq!(
        config.tls.client_crl.as_deref(),
        Some(Path::new("/etc/sealwire/crl.pem"))
    );
    assert!(config.tls.tls12);
    assert_eq!(config.kek, KekSource::Environment("MY_KEK".into()));
    assert_eq!(
        (config.limits.depth_max, config.limits.connections_max),
        (32, 2_048)
    );
    assert_eq!(config.crypto.threads_on(8), 3);
    assert_eq!(config.log.format, LogFormat::Json);
    let opens = |role| config.evervault.opens(Some(role));
    assert!(
        config.evervault.legacy
            && opens("support")
            && opens("card-number")
            && config.evervault.opens(None)
    );
    assert!(
        !opens("")
            && !opens("*")
            && !opens("Support")
            && !Evervault::default().opens(Some("support"))
    );
}

#[test]
fn weights_are_of_names_of_a_kind() {
    let config = parse(
        "[schedule]\nweights = [\"Relay.Internal=3\", \"spiffe://shop/a=b=2\", \"cn:Old Relay=4\"]",
        &[],
    );
    let weights = config.unwrap().schedule.weights;
    for (kind, name, weight) in [
        (PrincipalKind::Dns, "relay.internal", Some(3)),
        (PrincipalKind::Spiffe, "spiffe://shop/a=b", Some(2)),
        (PrincipalKind::CommonName, "Old Relay", Some(4)),
        (PrincipalKind::CommonName, "relay.internal", None),
    ] {
        assert_eq!(
            weights.get(&(kind, name.to_owned())).copied(),
            weight,
            "{kind:?} {name}"
        );
    }
}

#[test]
fn the_control_listener_is_off_or_closed_to_all_but_operators() {
    assert_eq!(
        parse("[control]\nprincipals = [\"a\"]", &[])
            .unwrap()
            .control,
        None
    );
    let control = |more: &str| {
        parse(&format!("[control]\naddress = \"[::1]:0\"\n{more}"), &[])
            .unwrap()
            .control
            .unwrap()
    };
    let listed = control("principals = [\"Ops.Internal\", \"cn:Operator\", \"spiffe://org/ops\"]");
    let names = [
        (PrincipalKind::Dns, "ops.internal"),
        (PrincipalKind::CommonName, "Operator"),
        (PrincipalKind::Spiffe, "spiffe://org/ops"),
    ];
    assert_eq!(
        listed.principals,
        names.map(|(kind, name)| (kind, name.to_owned()))
    );
    assert_eq!((listed.client_ca, listed.client_crl), (None, None));
    let own = control("client_ca = \"ops.pem\"\nclient_crl = \"/crl.pem\"");
    assert_eq!(
        own.client_ca.as_deref(),
        Some(Path::new("/etc/sealwire/ops.pem"))
    );
    assert_eq!(own.client_crl.as_deref(), Some(Path::new("/crl.pem")));
    assert!(own.principals.is_empty());
}

/// A configuration with an issuer that has these settings.
fn issuer(settings: &str) -> String {
    format!("[http]\naddress = \"[::1]:1\"\n[issuer.ci]\n{settings}")
}

#[test]
fn issuers_are_tables_with_names() {
    assert_eq!(parse("", &[]).unwrap().issuers, Issuers::default());
    let text = issuer(
        r#"issuer = "https://ci.example"
        audiences = ["sealwire", "other"]
        jwks_file = "keys.json"
        [issuer.k8s]
        issuer = "https://kubernetes"
        audiences = ["sealwire"]
        algorithms = ["EdDSA", "PS384"]
        jwks_url = "https://kubernetes/keys"
        jwks_ca = "/ca.pem"
        jwks_refresh_s = 60
        jwks_stale_s = 120
        principal_claim = "client_id"
        skew_s = 0"#,
    );
    let issuers = parse(&text, &[]).unwrap().issuers.0;
    let [ci, k8s] = &issuers[..] else {
        panic!("{issuers:?}")
    };
    assert_eq!(
        *ci,
        IssuerOptions {
            name: "ci".into(),
            issuer: "https://ci.example".into(),
            audiences: vec!["sealwire".into(), "other".into()],
            algorithms: vec![Algorithm::Es256, Algorithm::Rs256],
            principal_claim: "sub".into(),
            skew_s: 60,
            keys: KeySource::File("/etc/sealwire/keys.json".into()),
        }
    );
    assert_eq!(
        *k8s,
        IssuerOptions {
            name: "k8s".into(),
            issuer: "https://kubernetes".into(),
            audiences: vec!["sealwire".into()],
            algorithms: vec![Algorithm::EdDsa, Algorithm::Ps384],
            principal_claim: "client_id".into(),
            skew_s: 0,
            keys: KeySource::Url {
                url: JwksUrl::parse("https://kubernetes/keys").unwrap(),
                ca: "/ca.pem".into(),
                refresh: Duration::from_secs(60),
                stale: Duration::from_secs(120),
            },
        }
    );
}

#[test]
fn wrong_issuers_are_rejected_by_key() {
    const GOOD: &str =
        "issuer = \"https://ci.example\"\naudiences = [\"sealwire\"]\njwks_file = \"keys.json\"\n";
    parse(&issuer(GOOD), &[]).unwrap();
    for (from, to, expected) in [
        (
            "issuer = \"https://ci.example\"",
            "",
            "line 3: issuer.ci.issuer: is missing",
        ),
        (
            "issuer = \"https://ci.example\"",
            "issuer = \"\"",
            "issuer.ci.issuer: must be 1 to 1,024 visible",
        ),
        (
            "https://ci.example",
            "https://ci example",
            "issuer.ci.issuer: must be 1 to 1,024 visible",
        ),
        (
            "https://ci.example",
            "\\\"",
            "issuer.ci.issuer: must be 1 to 1,024 visible",
        ),
        (
            "audiences = [\"sealwire\"]",
            "",
            "issuer.ci.audiences: is missing",
        ),
        (
            "[\"sealwire\"]",
            "[]",
            "issuer.ci.audiences: must be a list of at least one text",
        ),
        (
            "[\"sealwire\"]",
            "[\"\"]",
            "issuer.ci.audiences: must be a list of at least one text",
        ),
        (
            "[\"sealwire\"]",
            "\"sealwire\"",
            "issuer.ci.audiences: must be a list of at least one text",
        ),
        (
            "jwks_file",
            "algorithms = [\"HS256\"]\njwks_file",
            "issuer.ci.algorithms: must be a list of ES256",
        ),
        (
            "jwks_file",
            "algorithms = [\"none\"]\njwks_file",
            "issuer.ci.algorithms: must be a list of ES256",
        ),
        (
            "jwks_file",
            "algorithms = [\"ES256\", \"ES256\"]\njwks_file",
            "issuer.ci.algorithms: must be a list of ES256",
        ),
        (
            "jwks_file = \"keys.json\"",
            "",
            "issuer.ci.jwks_file: is empty, and so is jwks_url",
        ),
        (
            "jwks_file",
            "jwks_url = \"https://ci.example\"\njwks_file",
            "issuer.ci.jwks_url: is set, and so is jwks_file",
        ),
        (
            "jwks_file",
            "jwks_ca = \"ca.pem\"\njwks_file",
            "issuer.ci.jwks_ca: is for jwks_url only",
        ),
        (
            "jwks_file = \"keys.json\"",
            "jwks_url = \"https://ci.example\"",
            "issuer.ci.jwks_ca: is empty, so the server",
        ),
        (
            "jwks_file = \"keys.json\"",
            "jwks_url = \"http://ci.example\"\njwks_ca = \"ca.pem\"",
            "issuer.ci.jwks_url: must be a URL such as https://",
        ),
        (
            "jwks_file = \"keys.json\"",
            "jwks_url = \"https://ci.example\"\njwks_ca = \"ca.pem\"\njwks_stale_s = 60",
            "issuer.ci.jwks_stale_s: must be greater than jwks_refresh_s",
        ),
        (
            "jwks_file",
            "principal_claim = \"\"\njwks_file",
            "issuer.ci.principal_claim: must be the name of a claim",
        ),
        (
            "jwks_file",
            "skew_s = 301\njwks_file",
            "issuer.ci.skew_s: must be a whole number from 0 to 300 s",
        ),
        (
            "jwks_file",
            "jwks_refresh_s = 1\njwks_file",
            "issuer.ci.jwks_refresh_s: must be a whole number from 30",
        ),
        (
            "jwks_file",
            "claim = \"sub\"\njwks_file",
            "issuer.ci.claim: unknown key",
        ),
    ] {
        let text = issuer(&GOOD.replacen(from, to, 1));
        let error = refusal(&text, &[]);
        assert!(error.contains(expected), "{to}: {error}");
    }
    let twice = issuer(GOOD) + "[issuer.again]\n" + GOOD;
    let error = refusal(&twice, &[]);
    assert!(
        error.contains(".issuer: is that of another table too"),
        "{error}"
    );
    let error = refusal(
        &format!("[issuer.\"a:b\"]\n{GOOD}\n[http]\naddress = \"[::1]:1\""),
        &[],
    );
    assert!(
        error.contains("the name must be 1 to 64 letters"),
        "{error}"
    );
    let error = refusal(&format!("[issuer.ci]\n{GOOD}"), &[]);
    assert!(
        error.contains("http.address: is empty, and tokens"),
        "{error}"
    );
    let error = refusal(&format!("[[issuer]]\n{GOOD}"), &[]);
    assert!(
        error.contains("issuer: must be tables: [issuer.NAME]"),
        "{error}"
    );
    // Environment variables cannot name a table.
    let error = refusal("", &[("SEALWIRE_ISSUER_CI_ISSUER", "x")]);
    assert!(error.contains("is not the variable of any key"), "{error}");
}

#[test]
fn principals_of_tokens_are_not_operators() {
    for (key, section) in [("principals", "control"), ("administrators", "access")] {
        let text = format!("[{section}]\n{key} = [\"jwt:ci:operator\"]");
        let error = refusal(&text, &[]);
        assert!(
            error.contains("must be a list of names in certificates"),
            "{error}"
        );
    }
    let text = "[schedule]\nweights = [\"jwt:ci:a=b=3\"]";
    let weights = parse(text, &[]).unwrap().schedule.weights;
    let principal = Principal::from_text("jwt:ci:a=b").unwrap();
    let key = (principal.kind(), principal.as_str().to_owned());
    assert_eq!(weights.get(&key), Some(&3));
}

#[test]
fn zero_threads_follow_the_cores() {
    let config = parse("", &[]).unwrap();
    for (cores, crypto, network) in [(0, 1, 1), (1, 1, 1), (8, 8, 1), (9, 9, 2), (64, 64, 4)] {
        assert_eq!(
            (
                config.crypto.threads_on(cores),
                config.network.threads_on(cores)
            ),
            (crypto, network)
        );
    }
}

#[test]
fn wrong_files_are_refused_by_key_and_line() {
    for (text, expected) in [
        (
            "[listen]\nadress = \"x\"",
            "line 2: listen.adress: unknown key; did you mean address?",
        ),
        (
            "[listem]",
            "line 1: listem: unknown section; did you mean listen?",
        ),
        (
            "address = \"127.0.0.1:1\"",
            "line 1: address: unknown section; see `sealwire config template`",
        ),
        ("listen = 1", "line 1: listen: must be a table: [listen]"),
        (
            "\n[[listen]]\naddress = \"127.0.0.1:1\"",
            "line 2: listen: must be a table: [listen]",
        ),
        (
            "[listen]\naddress = 7443",
            "line 2: listen.address: must be an IP address and a port",
        ),
        (
            "[listen]\naddress = -1",
            "line 2: listen.address: must be an IP address and a port",
        ),
        (
            "[listen]\naddress = \"localhost:1\"",
            "listen.address: must be an IP address and a port",
        ),
        (
            "[evervault]\nopen_roles = [1]",
            "line 2: evervault.open_roles: must be a list of roles of 1 to 64 bytes",
        ),
        (
            "[evervault]\nopen_roles = \"*\"",
            "evervault.open_roles: must be a list of roles of 1 to 64 bytes",
        ),
        (
            "[evervault]\nopen_roles = [\"\"]",
            "evervault.open_roles: must be a list of roles of 1 to 64 bytes",
        ),
        (
            "[evervault]\nlegacy = 1",
            "line 2: evervault.legacy: must be true or false",
        ),
        (
            "[listen]\naddress = \"\"",
            "listen.address: is empty, and so are http.address and control.address",
        ),
        (
            "[http]\naddress = \"nowhere\"",
            "http.address: must be an IP address and a port",
        ),
        (
            "[http]\naddress = \"127.0.0.1:7443\"",
            "http.address: is the same as listen.address",
        ),
        (
            "[http]\naddress = \"127.0.0.1:7444\"",
            "http.address: is the same as admin.address",
        ),
        (
            "[http]\naddress = \"127.0.0.1:1\"\n[control]\naddress = \"127.0.0.1:1\"\nclient_ca = \"ops.pem\"",
            "control.address: is the same as http.address",
        ),
        (
            "[http]\naddress = \"0.0.0.0:7443\"",
            "http.address: has the port of listen.address, and one of the two is for all addresses",
        ),
        (
            "[listen]\naddress = \"[::]:7444\"",
            "admin.address: has the port of listen.address, and one of the two is for all addresses",
        ),
        (
            "[http]\naddress = \"127.0.0.1:1\"\n[control]\naddress = \"0.0.0.0:1\"\nclient_ca = \"ops.pem\"",
            "control.address: has the port of http.address, and one of the two is for all addresses",
        ),
        (
            "[listen]\naddress = [1]",
            "listen.address: must be an IP address and a port",
        ),
        (
            "[listen]\naddress = \"127.0.0.1:7444\"",
            "admin.address: is the same as listen.address",
        ),
        (
            "[control]\naddress = \"nowhere\"",
            "control.address: must be an IP address and a port",
        ),
        (
            "[control]\naddress = \"127.0.0.1:1\"",
            "control.principals: is empty, and control.client_ca is that of",
        ),
        (
            "[control]\naddress = \"127.0.0.1:1\"\nclient_ca = \"tls/client-ca.pem\"",
            "control.principals: is empty, and control.client_ca is that of",
        ),
        (
            "[control]\naddress = \"127.0.0.1:7443\"\nclient_ca = \"ops.pem\"",
            "control.address: is the same as listen.address",
        ),
        (
            "[control]\nprincipals = [\"\"]",
            "control.principals: must be a list of names",
        ),
        (
            "[control]\nprincipals = [\"cn:\"]",
            "control.principals: must be a list of names",
        ),
        (
            "[access]\nmode = \"audit\"",
            "access.mode: must be one of \"enforce\", \"observe\", \"off\"",
        ),
        (
            "[access]\nadministrators = [\"no host\"]",
            "access.administrators: must be a list of names",
        ),
        (
            "[access]\nname_order = [\"dns\", \"dns\"]",
            "access.name_order: must be a list of",
        ),
        (
            "[access]\nname_order = [\"ip\"]",
            "access.name_order: must be a list of",
        ),
        (
            "[traces]\nendpoint = \"https://collector/v1/traces\"",
            "traces.endpoint: must be a URL in plain HTTP",
        ),
        (
            "[traces]\nendpoint = \"http://me:secret@collector/\"",
            "traces.endpoint: must be a URL in plain HTTP",
        ),
        (
            "[traces]\nendpoint = \"127.0.0.1:4318\"",
            "traces.endpoint: must be a URL in plain HTTP",
        ),
        (
            "[traces]\nendpoint = \"http://collector:0/\"",
            "traces.endpoint: must be a URL in plain HTTP",
        ),
        (
            "[traces]\nendpoint = \"http://collector:70000/\"",
            "traces.endpoint: must be a URL in plain HTTP",
        ),
        (
            "[traces]\nendpoint = \"/v1/traces\"",
            "traces.endpoint: must be a URL in plain HTTP",
        ),
        (
            "[traces]\nsample_ratio = 1.5",
            "traces.sample_ratio: must be a number from 0 to 1",
        ),
        (
            "[traces]\nsample_ratio = -1",
            "traces.sample_ratio: must be a number from 0 to 1",
        ),
        (
            "[traces]\nsample_ratio = \"all\"",
            "traces.sample_ratio: must be a number from 0 to 1",
        ),
        (
            "[tls]\n\ntls12 = \"yes\"",
            "line 3: tls.tls12: must be true or false",
        ),
        (
            "[tls]\nkey = \"\"",
            "line 2: tls.key: must be the path of a file or folder, in quotes and not empty",
        ),
        (
            "[tls]\nkey = \"a\\u0000b\"",
            "line 2: tls.key: must be the path of a file, not its content",
        ),
        (
            "[tls]\nkey = \"-----BEGIN PRIVATE KEY-----\"",
            "tls.key: must be the path of a file, not its content",
        ),
        (
            "[tls]\nkey = \"MC4CAQ\\nAwBQYDK2\"",
            "tls.key: must be the path of a file, not its content",
        ),
        (
            "[kek]\nfile = \"0123456789ABCDEFabcdef0123456789ABCDEFabcdef0123456789ABCDEFabcd\"",
            "line 2: kek.file: must be the path of a file, not its content",
        ),
        (
            "[kek]\nenv_var = \"ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789\"",
            "line 2: kek.env_var: must be the name of an environment variable",
        ),
        (
            "[kek]\nprovider = \"vault\"",
            "line 2: kek.provider: must be one of \"file\", \"environment\"",
        ),
        (
            "[kek]\nenv_var = \"lower\"",
            "kek.env_var: must be the name of an environment variable",
        ),
        (
            "[limits]\ndepth_max = 0",
            "line 2: limits.depth_max: must be a whole number from 4 to 1_024 levels",
        ),
        (
            "[limits]\ndepth_max = -1",
            "line 2: limits.depth_max: must be a whole number from 4 to 1_024 levels",
        ),
        (
            "[limits]\ndepth_max = 99999999999999999999",
            "line 2: limits.depth_max: must be a whole number from 4 to 1_024 levels",
        ),
        (
            "[limits]\ndepth_max = 5.0",
            "limits.depth_max: must be a whole number from",
        ),
        (
            "[limits]\ndepth_max = \"64\"",
            "line 2: limits.depth_max: must be a whole number",
        ),
        (
            "[schedule]\nmemory_mib = 640",
            "schedule.memory_mib: must be at least",
        ),
        (
            "[schedule]\nwait_max_ms = 0",
            "schedule.wait_max_ms: must be a whole number from 1 to 3_600_000 ms",
        ),
        (
            "[schedule]\norder = \"lifo\"",
            "schedule.order: must be one of \"fair\", \"arrival\"",
        ),
        (
            "[schedule]\nweights = [\"billing\"]",
            "schedule.weights: must be a list of name=weight",
        ),
        (
            "[schedule]\nweights = [\"=3\"]",
            "schedule.weights: must be a list of name=weight",
        ),
        (
            "[schedule]\nweights = [\"cn:=3\"]",
            "schedule.weights: must be a list of name=weight",
        ),
        (
            "[schedule]\nweights = [\"a=1\", \"A=2\"]",
            "schedule.weights: must be a list of name=weight, each name once",
        ),
        (
            "[schedule]\nweights = [\"billing=0\"]",
            "schedule.weights: must be a list of name=weight",
        ),
        (
            "[schedule]\nweights = [\"billing=1001\"]",
            "schedule.weights: must be a list of name=weight",
        ),
        (
            "[log]\nfilter = \"info,x=loudly\"",
            "log.filter: must be a level",
        ),
        (
            "[log]\nformat = \"xml\"",
            "line 2: log.format: must be one of \"human\", \"json\"",
        ),
        (
            "[listen]\naddress = \"127.0.0.1:1\"\naddress = \"127.0.0.1:2\"",
            "line 3: this key or section occurs twice. Remove one of them",
        ),
        ("[listen]\naddress = ", "line 2: is not valid TOML"),
    ] {
        let mut refused = refusal(text, &[]);
        if let Some((line, problem)) = refused.split_once(": ")
            && line.starts_with("line ")
            && !expected.starts_with("line ")
        {
            refused = problem.to_owned();
        }
        assert!(
            refused.starts_with(expected),
            "{text:?}\n  says {refused:?}\n  not  {expected:?}"
        );
    }
}

#[test]
fn wrong_variables_are_refused_by_name() {
    for (variable, value, expected) in [
        (
            "SEALWIRE_LISTEN_ADRESS",
            "x",
            "SEALWIRE_LISTEN_ADRESS: is not the variable of any key; did you mean SEALWIRE_LISTEN_ADDRESS?",
        ),
        (
            "SEALWIRE_KEK_FIEL",
            "x",
            "SEALWIRE_KEK_FIEL: is not the variable of any key; did you mean SEALWIRE_KEK_FILE?",
        ),
        (
            "SEALWIRE_LISTEN_address",
            "127.0.0.1:1",
            "SEALWIRE_LISTEN_address: is not the variable of any key",
        ),
        (
            "SEALWIRE_LIMITS_DEPTH_MAX",
            "many",
            "SEALWIRE_LIMITS_DEPTH_MAX: must be a whole number from 4 to 1_024 levels",
        ),
        (
            "SEALWIRE_LIMITS_DEPTH_MAX",
            "+",
            "SEALWIRE_LIMITS_DEPTH_MAX: must be a whole number",
        ),
        (
            "SEALWIRE_LIMITS_DEPTH_MAX",
            "3",
            "SEALWIRE_LIMITS_DEPTH_MAX: must be a whole number from 4 to 1_024 levels",
        ),
        (
            "SEALWIRE_TLS_TLS12",
            "1",
            "SEALWIRE_TLS_TLS12: must be true or false",
        ),
        (
            "SEALWIRE_TLS_KEY",
            "",
            "SEALWIRE_TLS_KEY: must be the path of a file or folder, in quotes and not empty",
        ),
    ] {
        let refused = refusal("", &[(variable, value)]);
        assert!(
            refused.starts_with(expected),
            "{variable}\n  says {refused:?}\n  not  {expected:?}"
        );
    }
}

#[test]
fn spaces_around_the_values_of_variables_have_no_meaning() {
    let variables = [
        ("SEALWIRE_LIMITS_DEPTH_MAX", " 10 "),
        ("SEALWIRE_TLS_TLS12", "true "),
        ("SEALWIRE_TRACES_SAMPLE_RATIO", "0.5 "),
        ("SEALWIRE_ACCESS_NAME_ORDER", "[\"cn\"] "),
    ];
    let config = parse("", &variables).unwrap();
    assert_eq!(config.limits.depth_max, 10);
    assert!(config.tls.tls12);
}

#[test]
fn variables_of_others_are_left_alone() {
    parse(
        "",
        &[
            ("SEALWIRE_KEK", "key"),
            ("SEALWIRE_LOG", "x"),
            ("SEALWIRE_PEER", "x"),
            ("PATH", "/bin"),
        ],
    )
    .unwrap();
    for injected in [
        "SERVICE_HOST",
        "SERVICE_PORT_METRICS",
        "PORT",
        "PORT_7444_TCP_ADDR",
    ] {
        parse("", &[(format!("SEALWIRE_ADMIN_{injected}").as_str(), "x")]).unwrap();
    }
    // The variable with the key may be named like an override of its section.
    let named = [
        ("SEALWIRE_KEK_ENV_VAR", "SEALWIRE_KEK_PROD"),
        ("SEALWIRE_KEK_PROD", "key"),
    ];
    parse("[kek]\nprovider = \"environment\"", &named).unwrap();
    parse("[kek]\nenv_var = \"SEALWIRE_KEK_PROD\"", &named[1..]).unwrap();
}

#[test]
fn problems_never_repeat_a_value() {
    const SECRET: &str = "hunter2hunter2";
    for key in keys::all() {
        let value = if matches!(key.kind, Kind::Number { .. } | Kind::Flag | Kind::Fraction) {
            "1"
        } else {
            "\""
        };
        for text in [
            format!("[{}]\n{} = \"\\u0000 {SECRET}\"", key.section, key.name),
            format!("[{}]\n{} = {SECRET}", key.section, key.name),
            format!("[{}]\n{} = \"{SECRET}\n", key.section, key.name),
            format!("[{}]\n{} = {value}{SECRET}", key.section, key.name),
        ] {
            if let Err(error) = parse(&text, &[]) {
                assert!(!error.to_string().contains(SECRET), "{error}");
                assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
            }
        }
        if let Err(error) = parse(
            "",
            &[(keys::variable(key).as_str(), &format!("\0{SECRET}"))],
        ) {
            assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
        }
    }
}

#[test]
fn problems_are_reported_together() {
    let text = "[listen]\naddress = 1\n[limits]\ndepth_max = 0\nwidth_max = 1\n[nothing]\n";
    let error = parse(text, &[("SEALWIRE_LOG_COLOUR", "red")]).unwrap_err();
    assert_eq!(error.len(), 5, "{error}");
    assert_eq!(error.to_string().lines().count(), 5);
}

#[test]
fn names_from_the_file_cannot_play_with_the_terminal() {
    let refused = refusal("[listen]\n\"\\u001b[2J\\u202e\" = 1", &[]);
    assert!(
        refused.chars().all(|c| c.is_ascii_graphic() || c == ' '),
        "{refused:?}"
    );
    assert!(refusal(&format!("[{}]", "x".repeat(5_000)), &[]).len() < 200);
}

#[test]
fn state_is_kept_where_its_mode_says() {
    let mode = |mode: &str| format!("[state]\nmode = \"{mode}\"\npoll_s = 7\n");
    let polled = |text: &str| {
        (
            parse(text, &[]).unwrap().state.mode,
            parse(text, &[]).unwrap().state.poll(),
        )
    };
    let seconds = Duration::from_secs;
    assert_eq!(polled(""), (Mode::Embedded, seconds(30)));
    assert_eq!(polled(&mode("embedded")), (Mode::Embedded, seconds(7)));
    assert_eq!(polled(&mode("stateless")), (Mode::Stateless, seconds(1)));
    assert!(
        refusal(&mode("postgres"), &[])
            .contains("postgres.url: is empty, but state.mode is \"postgres\"")
    );
    let url = "[postgres]\nurl = \"postgres://a@b/c\"\nca = \"ca.pem\"\ntls = \"off\"";
    let secret = ("SEALWIRE_POSTGRES_PASSWORD", "do-not-print");
    let config = parse(&(mode("postgres") + url), &[secret]).unwrap();
    assert!(config.state.mode == Mode::Postgres && !format!("{config:?}").contains(secret.1));
    assert_eq!(
        (config.postgres.url.as_str(), config.postgres.tls),
        ("postgres://a@b/c", PostgresTls::Off)
    );
    assert_eq!(
        config.postgres.ca.as_deref(),
        Some(Path::new("/etc/sealwire/ca.pem"))
    );
    assert_eq!(
        (config.postgres.password_file, config.postgres.client_key),
        (None, None)
    );
    // It is no key of a file.
    assert!(refusal("[postgres]\npassword = \"do-not-print\"", &[]).contains("postgres.password"));
}

#[cfg(unix)]
#[test]
fn a_variable_must_be_utf8() {
    use std::os::unix::ffi::OsStringExt;
    let environment =
        Environment::from_pairs([("SEALWIRE_TLS_KEY", OsString::from_vec(vec![0xff]))]);
    let error = Config::parse("", &environment, Path::new("")).unwrap_err();
    assert_eq!(error.to_string(), "SEALWIRE_TLS_KEY: must be UTF-8");
}

#[test]
fn files_that_cannot_be_read_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sealwire.toml");
    let load = || Config::load(&file, &Environment::default());
    assert!(load().unwrap_err().to_string().contains("sealwire.toml"));
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    assert!(load().is_err());
    std::fs::write(&file, " ".repeat(FILE_BYTES_MAX as usize + 1)).unwrap();
    assert!(load().unwrap_err().to_string().contains("at most"));
    std::fs::write(&file, "[state]\nfolder = \"data\"").unwrap();
    assert_eq!(load().unwrap().state.folder, folder.path().join("data"));
}

#[test]
fn a_collector_is_a_host_a_port_and_a_path() {
    for (text, authority, path) in [
        (
            "http://127.0.0.1:4318/v1/traces",
            "127.0.0.1:4318",
            "/v1/traces",
        ),
        ("http://collector", "collector:80", "/"),
        (
            "http://[::1]:4318/otlp/v1/traces?team=a",
            "[::1]:4318",
            "/otlp/v1/traces?team=a",
        ),
    ] {
        let config = parse(&format!("[traces]\nendpoint = \"{text}\""), &[]).unwrap();
        let expected = Endpoint {
            origin: sealwire_service::http_client::Origin::new(&authority.parse().unwrap(), 0)
                .unwrap(),
            path: path.into(),
        };
        assert_eq!(config.traces.endpoint, Some(expected), "{text}");
    }
    assert_eq!(parse("", &[]).unwrap().traces.endpoint, None);
}
