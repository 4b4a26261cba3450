//! Tests against the transit server of the test kit, or against a real one: the environment
//! variable `SEALWIRE_TEST_OPENBAO` names the program of a Vault or OpenBao server.

mod harness;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use sealwire_testkit::TransitFault;
use serde_json::json;

use super::*;
use crate::test_log::CapturedLog;
use harness::{KEY, SLOT, TransitHarness, root_key};

/// Returns a short name of an error's kind.
fn kind_of<T>(result: &Result<T, ProviderError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(ProviderError::Unavailable(_)) => "unavailable",
        Err(ProviderError::Denied(_)) => "denied",
        Err(ProviderError::NotFound(_)) => "not found",
        Err(ProviderError::DoesNotUnwrap(_)) => "does not unwrap",
        Err(ProviderError::WrongAnswer(_)) => "wrong answer",
        Err(ProviderError::Settings(_)) => "settings",
        Err(ProviderError::NeedsHolders) => "needs holders",
    }
}

async fn check_round_trip(transit: &Transit, case: &str) {
    let wrapped = transit
        .wrap(&root_key(), &SLOT)
        .await
        .unwrap_or_else(|error| panic!("{case}: {error}"));
    let unwrapped = transit
        .unwrap(&wrapped, &SLOT)
        .await
        .unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(*unwrapped, *root_key(), "{case}");
}

#[tokio::test]
async fn logins_of_all_kinds_wrap_and_unwrap() {
    let harness = TransitHarness::start().await;
    for (case, options) in [
        ("token file", harness.by_token(&[KEY]).await),
        ("AppRole", harness.by_approle(&[KEY]).await),
        (
            "AppRole, wrapped secret id",
            harness.by_wrapped_approle(&[KEY]).await,
        ),
        ("certificate", harness.by_certificate(None).await),
        (
            "certificate with a role",
            harness.by_certificate(Some("sealwire")).await,
        ),
    ] {
        check_round_trip(&Transit::new(options).unwrap(), case).await;
    }
}

#[tokio::test]
async fn a_namespace_holds_its_own_keys() {
    let harness = TransitHarness::start_in_namespace("team").await;
    let options = harness.by_wrapped_approle(&[KEY]).await;
    check_round_trip(&Transit::new(options.clone()).unwrap(), "namespace").await;
    let outside = TransitOptions {
        namespace: None,
        ..harness.by_approle(&[KEY]).await
    };
    let result = Transit::new(outside)
        .unwrap()
        .wrap(&root_key(), &SLOT)
        .await;
    assert_ne!(kind_of(&result), "ok");
}

#[tokio::test]
async fn copies_open_in_their_own_slot_alone() {
    let harness = TransitHarness::start().await;
    let transit = Transit::new(harness.by_token(&[KEY]).await).unwrap();
    let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
    let mut slots = vec![WrapSlot {
        number: SLOT.number + 1,
        ..SLOT
    }];
    for index in 0..16 {
        let (mut set, mut root) = (SLOT.set, SLOT.root);
        (set[index], root[index]) = (set[index] ^ 1, root[index] ^ 1);
        slots.extend([WrapSlot { set, ..SLOT }, WrapSlot { root, ..SLOT }]);
    }
    for slot in slots {
        let result = transit.unwrap(&wrapped, &slot).await;
        assert_eq!(kind_of(&result), "does not unwrap", "{slot:?}: {result:?}");
    }
    let text = String::from_utf8(wrapped.clone()).unwrap();
    let sealed = text.strip_prefix("vault:v1:").unwrap();
    let mut altered: Vec<(String, Vec<u8>)> = [
        ("nothing", String::new()),
        ("no prefix", sealed.to_owned()),
        ("prefix alone", "vault:v1:".to_owned()),
        ("no version", format!("vault:v:{sealed}")),
        ("version 0", format!("vault:v0:{sealed}")),
        ("version 01", format!("vault:v01:{sealed}")),
        ("version +1", format!("vault:v+1:{sealed}")),
        ("later version", format!("vault:v2:{sealed}")),
        ("cut", text[..text.len() - 4].to_owned()),
        ("no base64", format!("{text}!")),
        ("longer", format!("{text}AAAA")),
        ("a line break", format!("{text}\n")),
        (
            "a line break within",
            format!("{}\n{}", &text[..20], &text[20..]),
        ),
        (
            "too long",
            format!("vault:v1:{}", "A".repeat(WRAPPED_BYTES_MAX)),
        ),
    ]
    .into_iter()
    .map(|(case, text)| (case.to_owned(), text.into_bytes()))
    .collect();
    altered.push(("not UTF-8".to_owned(), [&wrapped[..], &[0xff]].concat()));
    let bytes = BASE64.decode(sealed).unwrap();
    for index in 0..bytes.len() {
        let mut bytes = bytes.clone();
        bytes[index] ^= 1;
        altered.push((
            format!("byte {index}"),
            format!("vault:v1:{}", BASE64.encode(&bytes)).into_bytes(),
        ));
    }
    for (case, copy) in altered {
        let result = transit.unwrap(&copy, &SLOT).await;
        assert_eq!(kind_of(&result), "does not unwrap", "{case}: {result:?}");
    }
    assert_eq!(*transit.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
}

#[tokio::test]
async fn earlier_versions_of_the_key_open_until_it_forbids_them() {
    let harness = TransitHarness::start().await;
    let transit = Transit::new(harness.by_token(&[KEY]).await).unwrap();
    let first = transit.wrap(&root_key(), &SLOT).await.unwrap();
    harness
        .admin("POST", &format!("transit/keys/{KEY}/rotate"), json!({}))
        .await;
    let second = transit.wrap(&root_key(), &SLOT).await.unwrap();
    assert!(first.starts_with(b"vault:v1:") && second.starts_with(b"vault:v2:"));
    for copy in [&first, &second] {
        assert_eq!(*transit.unwrap(copy, &SLOT).await.unwrap(), *root_key());
    }
    let config = json!({ "min_decryption_version": 2 });
    harness
        .admin("POST", &format!("transit/keys/{KEY}/config"), config)
        .await;
    assert_eq!(
        kind_of(&transit.unwrap(&first, &SLOT).await),
        "does not unwrap"
    );
    assert_eq!(kind_of(&transit.unwrap(&second, &SLOT).await), "ok");
}

#[tokio::test]
async fn keys_of_other_kinds_and_missing_ones_are_told_apart() {
    let harness = TransitHarness::start().await;
    let transit = Transit::new(harness.by_token(&[KEY]).await).unwrap();
    let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
    harness
        .admin("POST", "transit/keys/rsa", json!({ "type": "rsa-2048" }))
        .await;
    let root = harness.by_root_token();
    for (case, options, expected_wrap, expected_unwrap) in [
        (
            "key of another",
            TransitOptions {
                key: "other".into(),
                ..harness.by_token(&[KEY]).await
            },
            "denied",
            "denied",
        ),
        (
            "mount",
            TransitOptions {
                mount: "elsewhere".into(),
                ..root.clone()
            },
            "not found",
            "not found",
        ),
        (
            "RSA",
            TransitOptions {
                key: "rsa".into(),
                ..root.clone()
            },
            "settings",
            "settings",
        ),
        (
            "namespace",
            TransitOptions {
                namespace: Some("none".into()),
                ..root.clone()
            },
            "not found",
            "not found",
        ),
    ] {
        let transit = Transit::new(options).unwrap();
        let result = transit.wrap(&root_key(), &SLOT).await;
        assert_eq!(kind_of(&result), expected_wrap, "{case}: {result:?}");
        let result = transit.unwrap(&wrapped, &SLOT).await;
        assert_eq!(kind_of(&result), expected_unwrap, "{case}: {result:?}");
    }
    let missing = Transit::new(TransitOptions {
        key: "missing".into(),
        ..root
    })
    .unwrap();
    let result = missing.unwrap(&wrapped, &SLOT).await;
    assert_eq!(kind_of(&result), "not found", "{result:?}");
}

#[tokio::test]
async fn a_token_that_is_revoked_is_replaced_by_one_login() {
    let harness = TransitHarness::start().await;
    for (case, options) in [
        ("AppRole", harness.by_approle(&[KEY]).await),
        ("certificate", harness.by_certificate(None).await),
        (
            "wrapped secret id",
            harness.by_wrapped_approle(&[KEY]).await,
        ),
    ] {
        let transit = Transit::new(options).unwrap();
        check_round_trip(&transit, case).await;
        let first = harness::token_of(&transit).await;
        harness.revoke(&first).await;
        let _ = harness.take_requests();
        check_round_trip(&transit, case).await;
        assert_ne!(harness::token_of(&transit).await, first, "{case}");
        if let Some(requests) = harness.take_requests() {
            let logins = requests
                .iter()
                .filter(|request| request.ends_with("/login"))
                .count();
            assert_eq!((logins, requests.len()), (1, 4), "{case}: {requests:?}");
        }
    }
}

#[tokio::test]
async fn a_token_file_is_read_again_when_its_token_ends() {
    let harness = TransitHarness::start().await;
    let options = harness.by_token(&[KEY]).await;
    let TransitLogin::TokenFile(file) = options.login.clone() else {
        panic!("a token file")
    };
    let transit = Transit::new(options).unwrap();
    check_round_trip(&transit, "first").await;
    harness.revoke(&harness::token_of(&transit).await).await;
    let result = transit.wrap(&root_key(), &SLOT).await;
    assert_eq!(kind_of(&result), "denied", "{result:?}");
    harness::write_secret(&file, &harness.token(&[KEY], 600).await);
    check_round_trip(&transit, "second").await;
    fs::remove_file(&file).unwrap();
    check_round_trip(&transit, "the file is not read for each call").await;
    harness.revoke(&harness::token_of(&transit).await).await;
    let result = transit.wrap(&root_key(), &SLOT).await;
    assert_eq!(kind_of(&result), "not found", "{result:?}");
}

#[tokio::test]
async fn credentials_that_do_not_fit_are_denied() {
    let harness = TransitHarness::start().await;
    let approle = harness.by_approle(&[KEY]).await;
    let with_secret_id = |text: &str| {
        let file = harness.secret_file("wrong-secret-id", text);
        let TransitLogin::AppRole { mount, role_id, .. } = approle.login.clone() else {
            panic!("AppRole")
        };
        let login = TransitLogin::AppRole {
            mount,
            role_id,
            secret_id: SecretIdSource::File(file),
        };
        TransitOptions {
            login,
            ..approle.clone()
        }
    };
    let with_role_id = || {
        let TransitLogin::AppRole {
            mount, secret_id, ..
        } = approle.login.clone()
        else {
            panic!("AppRole")
        };
        TransitOptions {
            login: TransitLogin::AppRole {
                mount,
                role_id: "nobody".into(),
                secret_id,
            },
            ..approle.clone()
        }
    };
    let elsewhere = || {
        let TransitLogin::AppRole {
            role_id, secret_id, ..
        } = approle.login.clone()
        else {
            panic!("AppRole")
        };
        TransitOptions {
            login: TransitLogin::AppRole {
                mount: "none".into(),
                role_id,
                secret_id,
            },
            ..approle.clone()
        }
    };
    let token = TransitLogin::TokenFile(harness.secret_file("wrong-token", "hunter2"));
    for (case, options, expected) in [
        ("secret id", with_secret_id("hunter2"), &["denied"][..]),
        ("role id", with_role_id(), &["denied"]),
        // Real servers do not tell whether an auth method exists.
        ("auth method", elsewhere(), &["denied", "not found"]),
        (
            "token",
            TransitOptions {
                login: token,
                ..approle.clone()
            },
            &["denied"],
        ),
        (
            "certificate",
            harness.by_strange_certificate().await,
            &["denied"],
        ),
        (
            "certificate role",
            harness.by_certificate(Some("nobody")).await,
            &["denied"],
        ),
    ] {
        let result = Transit::new(options)
            .unwrap()
            .wrap(&root_key(), &SLOT)
            .await;
        assert!(expected.contains(&kind_of(&result)), "{case}: {result:?}");
        assert!(
            !format!("{result:?}").contains("hunter2"),
            "{case}: {result:?}"
        );
    }
}

#[tokio::test]
async fn a_wrapping_token_is_used_once_and_only_if_its_path_is_right() {
    let harness = TransitHarness::start().await;
    let options = harness.by_wrapped_approle(&[KEY]).await;
    let with_path = |path: &str| {
        let TransitLogin::AppRole {
            mount,
            role_id,
            secret_id,
        } = options.login.clone()
        else {
            panic!("AppRole")
        };
        let SecretIdSource::Wrapped { file, .. } = secret_id else {
            panic!("wrapped")
        };
        let secret_id = SecretIdSource::Wrapped {
            file,
            creation_path: path.into(),
        };
        TransitOptions {
            login: TransitLogin::AppRole {
                mount,
                role_id,
                secret_id,
            },
            ..options.clone()
        }
    };
    let result = Transit::new(with_path("sys/wrapping/wrap"))
        .unwrap()
        .wrap(&root_key(), &SLOT)
        .await;
    assert_eq!(kind_of(&result), "denied", "{result:?}");
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("was not created at")
    );

    let transit = Transit::new(options.clone()).unwrap();
    check_round_trip(&transit, "the token of another path was left alone").await;

    let result = Transit::new(options.clone())
        .unwrap()
        .wrap(&root_key(), &SLOT)
        .await;
    assert_eq!(kind_of(&result), "denied", "{result:?}");
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("the wrapping token was already used")
    );

    harness.revoke(&harness::token_of(&transit).await).await;
    check_round_trip(&transit, "the secret id stays in memory").await;

    let TransitLogin::AppRole {
        secret_id: SecretIdSource::Wrapped { file, .. },
        ..
    } = &options.login
    else {
        panic!("wrapped");
    };
    harness::write_secret(file, &harness.wrapping_token().await);
    harness.revoke(&harness::token_of(&transit).await).await;
    check_round_trip(&transit, "a new wrapping token in the file").await;
    fs::remove_file(file).unwrap();
    harness.revoke(&harness::token_of(&transit).await).await;
    check_round_trip(&transit, "the file is gone").await;
}

#[tokio::test]
async fn a_due_token_is_renewed_and_keeps_its_name() {
    let harness = TransitHarness::start().await;
    for (case, options) in [
        ("token file", harness.by_token(&[KEY]).await),
        ("AppRole", harness.by_approle(&[KEY]).await),
        // A server renews the token of a certificate only for a connection with that certificate.
        ("certificate", harness.by_certificate(None).await),
    ] {
        let transit = Transit::new(options).unwrap();
        check_round_trip(&transit, case).await;
        let first = harness::token_of(&transit).await;
        let granted = harness::granted(&transit).await;
        // The token lives for 600 s.
        harness::advance(Duration::from_secs(401)).await;
        harness::until(async || harness::granted(&transit).await > granted).await;
        assert_eq!(harness::token_of(&transit).await, first, "{case}");
        check_round_trip(&transit, case).await;
    }
}

#[tokio::test]
async fn a_server_that_is_not_trusted_gets_no_request_until_the_file_is_replaced() {
    let harness = TransitHarness::start().await;
    let options = harness.by_token(&[KEY]).await;
    let ca = options.ca.clone().unwrap();
    let right = fs::read(&ca).unwrap();
    let transit = Transit::new(options.clone()).unwrap();
    let _ = harness.take_requests();
    fs::write(&ca, harness.strange_ca()).unwrap();
    let result = transit.wrap(&root_key(), &SLOT).await;
    assert_eq!(kind_of(&result), "unavailable", "{result:?}");
    assert!(result.unwrap_err().to_string().contains("certificate"));
    assert!(
        harness
            .take_requests()
            .is_none_or(|requests| requests.is_empty())
    );
    fs::write(&ca, "no certificate").unwrap();
    assert_eq!(kind_of(&transit.wrap(&root_key(), &SLOT).await), "settings");
    fs::write(&ca, right).unwrap();
    check_round_trip(&transit, "the file is right again").await;
}

#[tokio::test]
async fn logs_hold_no_secret_at_any_level() {
    let harness = TransitHarness::start().await;
    let transit = Transit::new(harness.by_wrapped_approle(&[KEY]).await).unwrap();
    let (log, _guard) = CapturedLog::start();
    let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
    assert_eq!(*transit.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
    let text = format!("{} {transit:?}", log.text());
    let secrets = [
        BASE64.encode(root_key().as_slice()),
        harness::token_of(&transit).await,
        "[0, 1, 2, 3".into(),
    ];
    for secret in secrets {
        assert!(!text.contains(&secret), "{secret}: {text}");
    }
}

#[tokio::test]
async fn calls_at_once_share_one_login() {
    let harness = TransitHarness::start().await;
    let transit = Arc::new(Transit::new(harness.by_approle(&[KEY]).await).unwrap());
    let _ = harness.take_requests();
    let calls = (0..8).map(|_| {
        let transit = Arc::clone(&transit);
        tokio::spawn(async move { check_round_trip(&transit, "at once").await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    if let Some(requests) = harness.take_requests() {
        assert_eq!(
            requests
                .iter()
                .filter(|request| request.ends_with("/login"))
                .count(),
            1,
            "{requests:?}"
        );
    }
}

// The following tests need faults, which only the server of the test kit has.

#[tokio::test]
async fn faults_become_errors_without_secrets() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let options = TransitOptions {
        request_timeout: Duration::from_secs(60),
        ..harness.by_approle(&[KEY]).await
    };
    let transit = Transit::new(options).unwrap();
    let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
    let secrets = [
        BASE64.encode(root_key().as_slice()),
        harness::token_of(&transit).await,
        String::from_utf8(wrapped.clone()).unwrap(),
        "hunter2".to_owned(),
    ];
    // Each unwrap sends a request to `decrypt`, and `tries` of them if it can help to try again.
    for (fault, expected, tries) in [
        (TransitFault::Status(301), "unavailable", 3),
        (TransitFault::Status(307), "unavailable", 3),
        (TransitFault::Status(400), "does not unwrap", 1),
        (TransitFault::Status(403), "denied", 2),
        (TransitFault::Status(404), "not found", 1),
        (TransitFault::Status(405), "wrong answer", 1),
        (TransitFault::Status(412), "unavailable", 3),
        (TransitFault::Status(418), "wrong answer", 1),
        (TransitFault::Status(429), "unavailable", 3),
        (TransitFault::Status(500), "unavailable", 3),
        (TransitFault::Status(502), "unavailable", 3),
        (TransitFault::Status(503), "unavailable", 3),
        (TransitFault::Status(204), "wrong answer", 1),
        (TransitFault::Garbage, "wrong answer", 1),
        (TransitFault::Response(200, "{}".into()), "wrong answer", 1),
        (
            TransitFault::Response(200, "null".into()),
            "wrong answer",
            1,
        ),
        (
            TransitFault::Response(200, r#"{"data":{"plaintext":7}}"#.into()),
            "wrong answer",
            1,
        ),
        (
            TransitFault::Response(200, r#"{"data":{"plaintext":"hunter2"}}"#.into()),
            "wrong answer",
            1,
        ),
        (
            TransitFault::Response(200, r#"{"data":{"plaintext":"aHVudGVyMg=="}}"#.into()),
            "wrong answer",
            1,
        ),
        (
            TransitFault::Response(
                200,
                format!(r#"{{"data":{{"plaintext":"{}"}}}}"#, "A".repeat(60_000)),
            ),
            "wrong answer",
            1,
        ),
        (TransitFault::Long((64 << 10) + 1), "wrong answer", 1),
        (TransitFault::Disconnect, "unavailable", 3),
        (TransitFault::LoseResponse, "unavailable", 3),
    ] {
        let _ = harness.take_requests();
        harness
            .server()
            .fail("transit/decrypt", usize::MAX, fault.clone());
        let result = transit.unwrap(&wrapped, &SLOT).await;
        assert_eq!(kind_of(&result), expected, "{fault:?}: {result:?}");
        let requests = harness.take_requests().unwrap_or_default();
        let decrypts = requests
            .iter()
            .filter(|request| request.contains("decrypt"))
            .count();
        let logins = requests
            .iter()
            .filter(|request| request.contains("login"))
            .count();
        assert_eq!(decrypts, tries, "{fault:?}: {requests:?}");
        assert!(logins <= 1, "{fault:?}: {requests:?}");
        let text = format!("{result:?} {transit:?}");
        for secret in secrets.iter().chain([&harness::token_of(&transit).await]) {
            assert!(!text.contains(&**secret), "{fault:?}: {text}");
        }
        harness.server().heal();
        assert_eq!(
            *transit.unwrap(&wrapped, &SLOT).await.unwrap(),
            *root_key(),
            "{fault:?}"
        );
    }
}

#[tokio::test]
async fn passing_faults_are_passed_over() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let options = TransitOptions {
        request_timeout: Duration::from_secs(60),
        ..harness.by_approle(&[KEY]).await
    };
    for (path, count, fault) in [
        ("transit/encrypt", 2, TransitFault::Status(503)),
        ("transit/encrypt", 2, TransitFault::LoseResponse),
        (
            "transit/encrypt",
            1,
            TransitFault::Slow(Duration::from_millis(50)),
        ),
        ("transit/decrypt", 2, TransitFault::Disconnect),
        ("approle/login", 2, TransitFault::Status(500)),
        ("approle/login", 1, TransitFault::LoseResponse),
    ] {
        harness.server().fail(path, count, fault.clone());
        check_round_trip(
            &Transit::new(options.clone()).unwrap(),
            &format!("{path} {fault:?}"),
        )
        .await;
        harness.server().heal();
    }
    for (path, count, fault, expected) in [
        (
            "transit/encrypt",
            3,
            TransitFault::Status(503),
            "unavailable",
        ),
        // The token is of a login of this call, so there is no other login.
        ("transit/encrypt", 1, TransitFault::Status(403), "denied"),
        ("approle/login", 3, TransitFault::Disconnect, "unavailable"),
        ("approle/login", 1, TransitFault::Garbage, "wrong answer"),
        (
            "approle/login",
            1,
            TransitFault::Response(200, r#"{"auth":null}"#.into()),
            "wrong answer",
        ),
        (
            "approle/login",
            1,
            TransitFault::Response(
                200,
                r#"{"auth":{"client_token":"","lease_duration":1,"renewable":true}}"#.into(),
            ),
            "wrong answer",
        ),
    ] {
        harness.server().fail(path, count, fault.clone());
        let result = Transit::new(options.clone())
            .unwrap()
            .wrap(&root_key(), &SLOT)
            .await;
        assert_eq!(kind_of(&result), expected, "{path} {fault:?}: {result:?}");
        harness.server().heal();
    }
}

#[tokio::test]
async fn a_server_that_does_not_respond_is_unavailable() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let options = TransitOptions {
        request_timeout: Duration::from_millis(200),
        ..harness.by_token(&[KEY]).await
    };
    harness.server().fail("", usize::MAX, TransitFault::Hang);
    let result = Transit::new(options.clone())
        .unwrap()
        .wrap(&root_key(), &SLOT)
        .await;
    assert_eq!(kind_of(&result), "unavailable", "{result:?}");
    // A port that accepts connections and never speaks TLS, and one that nobody listens on.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let options = TransitOptions {
        connect_timeout: Duration::from_millis(100),
        ..options
    };
    let options = TransitOptions {
        address: format!("https://{address}"),
        ..options
    };
    let result = Transit::new(options.clone())
        .unwrap()
        .wrap(&root_key(), &SLOT)
        .await;
    assert_eq!(kind_of(&result), "unavailable", "{result:?}");
    drop(silent);
    let result = Transit::new(options)
        .unwrap()
        .wrap(&root_key(), &SLOT)
        .await;
    assert_eq!(kind_of(&result), "unavailable", "{result:?}");
}

#[tokio::test]
async fn a_server_that_ignores_associated_data_is_found_out() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let plaintext = BASE64.encode(root_key().as_slice());
    let response = json!({ "data": { "plaintext": plaintext } }).to_string();
    harness.server().fail(
        "transit/decrypt",
        usize::MAX,
        TransitFault::Response(200, response),
    );
    let result = Transit::new(harness.by_token(&[KEY]).await)
        .unwrap()
        .wrap(&root_key(), &SLOT)
        .await;
    assert_eq!(kind_of(&result), "settings", "{result:?}");
}

#[tokio::test]
async fn a_wrapping_token_whose_response_is_lost_is_not_sent_again() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let options = harness.by_wrapped_approle(&[KEY]).await;
    let transit = Transit::new(options).unwrap();
    let _ = harness.take_requests();
    harness
        .server()
        .fail("wrapping/unwrap", usize::MAX, TransitFault::LoseResponse);
    assert_eq!(
        kind_of(&transit.wrap(&root_key(), &SLOT).await),
        "unavailable"
    );
    let requests = harness.take_requests().unwrap_or_default();
    assert_eq!(
        requests
            .iter()
            .filter(|request| request.ends_with("wrapping/unwrap"))
            .count(),
        1,
        "{requests:?}"
    );
    harness.server().heal();
    let result = transit.wrap(&root_key(), &SLOT).await;
    assert_eq!(kind_of(&result), "denied", "{result:?}");
}

#[tokio::test]
async fn a_dropped_call_does_not_lose_an_unwrapped_secret_id() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let transit = Arc::new(Transit::new(harness.by_wrapped_approle(&[KEY]).await).unwrap());
    let _ = harness.take_requests();
    harness.server().fail(
        "wrapping/unwrap",
        1,
        TransitFault::Slow(Duration::from_millis(200)),
    );
    let call = {
        let transit = Arc::clone(&transit);
        tokio::spawn(async move { transit.wrap(&root_key(), &SLOT).await })
    };
    let unwrapping = |request: &String| request.ends_with("wrapping/unwrap");
    harness::until(async || {
        harness
            .take_requests()
            .unwrap_or_default()
            .iter()
            .any(unwrapping)
    })
    .await;
    call.abort();
    check_round_trip(&transit, "after a dropped call").await;
}

#[tokio::test]
async fn tokens_that_cannot_be_renewed_are_replaced() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    // Lifetime, maximum lifetime, how far both clocks go ahead, and the requests of the next call.
    for (case, ttl, max_ttl, ahead, renewal, expected) in [
        ("fresh", 600, 0, 399, None, &["decrypt"][..]),
        ("renewed", 600, 0, 401, None, &["renew-self", "decrypt"]),
        (
            "renewed close to its maximum, once",
            600,
            700,
            401,
            None,
            &["renew-self", "decrypt"],
        ),
        (
            "renewal not permitted",
            600,
            0,
            401,
            Some(400),
            &["renew-self", "login", "decrypt"],
        ),
        (
            "token unknown",
            600,
            0,
            401,
            Some(403),
            &["renew-self", "login", "decrypt"],
        ),
        (
            "renewal breaks",
            600,
            0,
            401,
            Some(500),
            &["renew-self", "login", "decrypt"],
        ),
        ("expired", 600, 0, 601, None, &["login", "decrypt"]),
    ] {
        let transit = Transit::new(harness.by_approle_with(&[KEY], ttl, max_ttl).await).unwrap();
        let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
        // The next call renews, not the task.
        transit.inner.replace_renewal(None);
        let _ = harness.take_requests();
        if let Some(status) = renewal {
            harness
                .server()
                .fail("renew-self", 1, TransitFault::Status(status));
        }
        harness.server().advance(Duration::from_secs(ahead));
        harness::advance(Duration::from_secs(ahead)).await;
        let result = transit.unwrap(&wrapped, &SLOT).await;
        assert_eq!(kind_of(&result), "ok", "{case}: {result:?}");
        let requests = harness.take_requests().unwrap_or_default();
        let matches = requests
            .iter()
            .zip(expected)
            .all(|(request, part)| request.contains(part));
        assert!(
            matches && requests.len() == expected.len(),
            "{case}: {requests:?}"
        );
        harness.server().heal();
    }
}

#[tokio::test]
async fn at_its_maximum_lifetime_a_token_is_not_renewed_without_end() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let transit = Transit::new(harness.by_approle_with(&[KEY], 600, 700).await).unwrap();
    let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
    transit.inner.replace_renewal(None);
    // At 401 s of 700 s the server grants 299 s more, which is less than half of the 600 s before.
    for (ahead, expected) in [(401, "renew-self"), (210, "login")] {
        let _ = harness.take_requests();
        harness.server().advance(Duration::from_secs(ahead));
        harness::advance(Duration::from_secs(ahead)).await;
        assert_eq!(*transit.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
        let requests = harness.take_requests().unwrap_or_default();
        assert!(
            requests.len() == 2 && requests[0].contains(expected),
            "{requests:?}"
        );
    }
}

#[tokio::test]
async fn a_token_file_is_read_again_when_its_token_cannot_be_renewed() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let options = harness.by_token(&[KEY]).await;
    let TransitLogin::TokenFile(file) = options.login.clone() else {
        panic!("a token file")
    };
    let first = harness
        .token_with(&[KEY], json!({ "ttl": 600, "renewable": false }))
        .await;
    harness::write_secret(&file, &first);
    let transit = Transit::new(options).unwrap();
    let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
    assert_eq!(harness::token_of(&transit).await, first);
    let second = harness.token(&[KEY], 600).await;
    harness::write_secret(&file, &second);
    for (ahead, expected) in [(390, &first), (20, &second)] {
        harness::advance(Duration::from_secs(ahead)).await;
        assert_eq!(*transit.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
        assert_eq!(
            harness::token_of(&transit).await,
            *expected,
            "after {ahead} s more"
        );
    }
}

#[tokio::test]
async fn an_outage_does_not_discard_a_token_that_still_lives() {
    let Some(harness) = TransitHarness::start_with_faults().await else {
        return;
    };
    let transit = Transit::new(harness.by_approle(&[KEY]).await).unwrap();
    let wrapped = transit.wrap(&root_key(), &SLOT).await.unwrap();
    transit.inner.replace_renewal(None);
    harness
        .server()
        .fail("auth/", usize::MAX, TransitFault::Disconnect);
    harness::advance(Duration::from_secs(401)).await;
    assert_eq!(*transit.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
    harness.server().heal();
    harness
        .server()
        .fail("auth/", usize::MAX, TransitFault::Status(400));
    assert_eq!(*transit.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
    harness::advance(Duration::from_secs(200)).await;
    assert_eq!(kind_of(&transit.unwrap(&wrapped, &SLOT).await), "denied");
}

#[tokio::test]
async fn the_task_that_renews_ends_with_its_provider() {
    let harness = TransitHarness::start().await;
    let transit = Transit::new(harness.by_approle(&[KEY]).await).unwrap();
    check_round_trip(&transit, "before").await;
    let inner = Arc::downgrade(&transit.inner);
    let task = transit.inner.renewal.lock().unwrap().clone().unwrap();
    assert!(!task.is_finished());
    drop(transit);
    harness::until(async || task.is_finished() && inner.strong_count() == 0).await;
}

#[test]
fn options_out_of_their_limits_are_invalid() {
    let login = || TransitLogin::TokenFile("/token".into());
    let approle = |mount: &str, role_id: &str, secret_id: SecretIdSource| TransitLogin::AppRole {
        mount: mount.into(),
        role_id: role_id.into(),
        secret_id,
    };
    let file = || SecretIdSource::File("/secret-id".into());
    let right = TransitOptions {
        ca: Some("/ca.pem".into()),
        ..TransitOptions::new("https://vault:8200", KEY, login())
    };
    assert!(Transit::new(right.clone()).is_ok());
    let changed = |change: &dyn Fn(&mut TransitOptions)| {
        let mut options = right.clone();
        change(&mut options);
        options
    };
    for (options, part) in [
        (
            changed(&|o| o.address = "http://vault:8200".into()),
            "transit.address",
        ),
        (changed(&|o| o.ca = None), "transit.ca"),
        (
            changed(&|o| o.client_key = Some("/key".into())),
            "must be set together",
        ),
        (
            changed(&|o| o.client_certificate = Some("/certificate".into())),
            "must be set together",
        ),
        (changed(&|o| o.key = String::new()), "transit.key"),
        (changed(&|o| o.key = "a/b".into()), "transit.key"),
        (changed(&|o| o.key = "..".into()), "transit.key"),
        (changed(&|o| o.key = "a?b".into()), "transit.key"),
        (changed(&|o| o.key = "a%2fb".into()), "transit.key"),
        (changed(&|o| o.key = "k".repeat(257)), "transit.key"),
        (changed(&|o| o.mount = "a//b".into()), "transit.mount"),
        (changed(&|o| o.mount = "/a".into()), "transit.mount"),
        (changed(&|o| o.mount = "a/../sys".into()), "transit.mount"),
        (
            changed(&|o| o.namespace = Some("a b".into())),
            "transit.namespace",
        ),
        (
            changed(&|o| o.namespace = Some("a\nb".into())),
            "transit.namespace",
        ),
        (
            changed(&|o| o.login = approle("", "role", file())),
            "transit.approle_mount",
        ),
        (
            changed(&|o| o.login = approle("approle", "", file())),
            "transit.role_id",
        ),
        (
            changed(&|o| {
                let wrapped = SecretIdSource::Wrapped {
                    file: "/wrapped".into(),
                    creation_path: String::new(),
                };
                o.login = approle("approle", "role", wrapped);
            }),
            "transit.wrapped_creation_path",
        ),
        (
            changed(&|o| {
                o.login = TransitLogin::Certificate {
                    mount: "cert".into(),
                    role: None,
                }
            }),
            "is required by this login",
        ),
        (
            changed(&|o| o.connect_timeout = Duration::from_millis(99)),
            "transit.connect_timeout_ms",
        ),
        (
            changed(&|o| o.connect_timeout = Duration::from_millis(60_001)),
            "transit.connect_timeout_ms",
        ),
        (
            changed(&|o| o.request_timeout = Duration::ZERO),
            "transit.request_timeout_ms",
        ),
        (
            changed(&|o| o.request_timeout = Duration::MAX),
            "transit.request_timeout_ms",
        ),
    ] {
        let result = Transit::new(options.clone());
        let error = result.expect_err(part);
        assert!(
            matches!(&error, ProviderError::Settings(text) if text.contains(part)),
            "{options:?}: {error}"
        );
    }
}

#[test]
fn texts_of_transit_have_one_form() {
    let longest = format!(
        "vault:v1:{}",
        "A".repeat((WRAPPED_BYTES_MAX - "vault:v1:".len()) / 4 * 4)
    );
    for (text, expected) in [
        ("vault:v1:AAAA", true),
        ("vault:v12:AA==", true),
        (&*longest, true),
        (&*format!("{longest}AAAA"), false),
        ("vault:v1:AB==", false),
        ("vault:v1:AA=", false),
        ("vault:v1:AA", false),
        ("vault:v1:A-_A", false),
        ("vault:v1:AA AA", false),
        ("vault:v1:AAAA\n", false),
        ("vault:v1:", false),
        ("vault:v1", false),
        ("vault:v:AAAA", false),
        ("vault:v0:AAAA", false),
        ("vault:v01:AAAA", false),
        ("vault:v-1:AAAA", false),
        ("vault:1:AAAA", false),
        ("VAULT:v1:AAAA", false),
        (" vault:v1:AAAA", false),
        ("", false),
    ] {
        assert_eq!(is_ciphertext(text), expected, "{text}");
    }
}

#[test]
fn requests_are_json_whatever_their_texts_hold() {
    for fields in [
        &[][..],
        &[("a", "b")],
        &[("a", "\"\\\n\u{1}\u{e9}"), ("plaintext", "AAAA==")],
    ] {
        let parsed: serde_json::Value = serde_json::from_slice(&encode_json(fields)).unwrap();
        let expected = fields
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect();
        assert_eq!(parsed, serde_json::Value::Object(expected));
    }
}
