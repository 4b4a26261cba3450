//! Tests against moto, which speaks the protocol of KMS and STS, and against a server that fails as
//! it is told.
//!
//! Moto checks the encryption context and that the named key is the copy's. It does not check
//! signatures, credentials, permissions, web identity tokens, nor whether a key is disabled. Those
//! errors come from the other server.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use sealwire_testkit::{Certificates, Moto, TransitFault, TransitServer};
use tempfile::TempDir;

use super::*;
use crate::AwsCredentials;
use crate::test_log::CapturedLog;

const SLOT: WrapSlot = WrapSlot {
    set: [1; 16],
    root: [2; 16],
    number: 3,
};

fn root_key() -> RootBytes {
    Box::new(zeroize::Zeroizing::new(std::array::from_fn(|index| {
        index as u8
    })))
}

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

fn write_secret(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path
}

/// Returns options for a server on this machine, with a credentials file.
fn options(folder: &Path, certificates: &Certificates, url: &str) -> AwsKmsOptions {
    let text =
        "[default]\naws_access_key_id = AKIAEXAMPLE\naws_secret_access_key = hunter2-secret\n";
    let path = write_secret(folder, "credentials", text);
    let credentials = AwsCredentials::File {
        path,
        profile: "default".into(),
    };
    let mut options = AwsKmsOptions::new("alias/sealwire", "eu-central-1", credentials);
    options.endpoint_url = Some(url.into());
    options.ca = Some(certificates.ca.clone());
    // The machine may be slow.
    options.connect_timeout = Duration::from_secs(60);
    options.request_timeout = Duration::from_secs(60);
    options
}

/// A moto server with TLS.
struct MotoKms {
    /// Dropped before the folder, in which its log is.
    moto: Moto,
    folder: TempDir,
    certificates: Certificates,
}

impl MotoKms {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Certificates::make(folder.path(), "sealwire").unwrap();
        let moto = Moto::start(folder.path(), Some(&certificates)).unwrap();
        Self {
            moto,
            folder,
            certificates,
        }
    }

    fn options(&self) -> AwsKmsOptions {
        options(self.folder.path(), &self.certificates, &self.moto.url())
    }

    /// Makes a key and returns its ARN.
    async fn key(&self) -> String {
        let kms = AwsKms::new(self.options()).unwrap();
        kms.client
            .create_key()
            .send()
            .await
            .unwrap()
            .key_metadata
            .unwrap()
            .arn
            .unwrap()
    }
}

#[tokio::test]
async fn copies_open_in_their_own_slot_and_under_their_own_key_alone() {
    let moto = MotoKms::start();
    let (arn, other) = (moto.key().await, moto.key().await);
    let kms = AwsKms::new(AwsKmsOptions {
        key_id: arn.clone(),
        ..moto.options()
    })
    .unwrap();
    kms.client
        .create_alias()
        .alias_name("alias/sealwire")
        .target_key_id(&arn)
        .send()
        .await
        .unwrap();
    let wrapped = kms.wrap(&root_key(), &SLOT).await.unwrap();
    assert!(wrapped.len() <= WRAPPED_BYTES_MAX);
    let id = arn.rsplit('/').next().unwrap().to_owned();
    for key_id in [arn, id, "alias/sealwire".to_owned()] {
        let kms = AwsKms::new(AwsKmsOptions {
            key_id: key_id.clone(),
            ..moto.options()
        })
        .unwrap();
        assert_eq!(
            *kms.unwrap(&wrapped, &SLOT).await.unwrap(),
            *root_key(),
            "{key_id}"
        );
        let own = kms.wrap(&root_key(), &SLOT).await.unwrap();
        assert_eq!(
            *kms.unwrap(&own, &SLOT).await.unwrap(),
            *root_key(),
            "{key_id}"
        );
    }

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
        let result = kms.unwrap(&wrapped, &slot).await;
        assert_eq!(kind_of(&result), "does not unwrap", "{slot:?}: {result:?}");
    }

    // Moto's copies begin with 36 bytes of the key's id. For an unknown id it denies access.
    for index in 0..wrapped.len() {
        let mut copy = wrapped.clone();
        copy[index] ^= 1;
        let result = kms.unwrap(&copy, &SLOT).await;
        let expected = if index < 36 {
            &["does not unwrap", "denied"][..]
        } else {
            &["does not unwrap"]
        };
        assert!(
            expected.contains(&kind_of(&result)),
            "byte {index}: {result:?}"
        );
    }
    for (case, copy) in [
        ("nothing", Vec::new()),
        ("cut", wrapped[..wrapped.len() - 1].to_vec()),
        ("longer", [&wrapped[..], &[0]].concat()),
        ("too long", vec![0; CIPHERTEXT_BYTES_MAX + 1]),
    ] {
        let result = kms.unwrap(&copy, &SLOT).await;
        assert_eq!(kind_of(&result), "does not unwrap", "{case}: {result:?}");
    }

    // KMS responds with IncorrectKeyException, moto with AccessDeniedException.
    let result = AwsKms::new(AwsKmsOptions {
        key_id: other,
        ..moto.options()
    })
    .unwrap()
    .unwrap(&wrapped, &SLOT)
    .await;
    assert_eq!(kind_of(&result), "denied", "{result:?}");

    for key_id in ["alias/missing", "00000000-0000-0000-0000-000000000000"] {
        let missing = AwsKms::new(AwsKmsOptions {
            key_id: key_id.into(),
            ..moto.options()
        })
        .unwrap();
        let result = missing.wrap(&root_key(), &SLOT).await;
        assert_eq!(kind_of(&result), "not found", "{key_id}: {result:?}");
    }
}

#[tokio::test]
async fn a_web_identity_is_exchanged_for_credentials() {
    let moto = MotoKms::start();
    let key_id = moto.key().await;
    let token_file = write_secret(
        moto.folder.path(),
        "web-identity",
        "header.hunter2-claims.signature",
    );
    let credentials = AwsCredentials::WebIdentity {
        role_arn: "arn:aws:iam::123456789012:role/sealwire".into(),
        token_file: token_file.clone(),
        sts_endpoint_url: Some(format!("{}/", moto.moto.url())),
    };
    // As Kubernetes makes it.
    fs::set_permissions(&token_file, fs::Permissions::from_mode(0o644)).unwrap();
    let kms = AwsKms::new(AwsKmsOptions {
        key_id,
        credentials,
        ..moto.options()
    })
    .unwrap();
    let wrapped = kms.wrap(&root_key(), &SLOT).await.unwrap();
    assert_eq!(*kms.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
    fs::remove_file(token_file).unwrap();
    let result = kms.unwrap(&wrapped, &SLOT).await;
    assert_eq!(kind_of(&result), "not found", "{result:?}");
}

/// A server that fails as it is told.
struct Failing {
    folder: TempDir,
    certificates: Certificates,
    server: TransitServer,
}

impl Failing {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificates = Certificates::make(folder.path(), "sealwire").unwrap();
        let server = TransitServer::start(&certificates).unwrap();
        Self {
            folder,
            certificates,
            server,
        }
    }

    fn options(&self) -> AwsKmsOptions {
        options(
            self.folder.path(),
            &self.certificates,
            &self.server.address(),
        )
    }
}

#[tokio::test]
async fn faults_become_errors_without_secrets() {
    let failing = Failing::start();
    let kms = AwsKms::new(failing.options()).unwrap();
    let error = |status: u16, code: &str| {
        TransitFault::Response(
            status,
            format!(r#"{{"__type":"{code}","message":"hunter2"}}"#),
        )
    };
    let json = |text: &str| TransitFault::Response(200, text.to_owned());
    for (fault, expected, tries) in [
        (error(400, "AccessDeniedException"), "denied", 1),
        (error(400, "UnrecognizedClientException"), "denied", 1),
        (error(400, "ExpiredTokenException"), "denied", 1),
        (
            error(403, "com.amazonaws.kms#AccessDeniedException"),
            "denied",
            1,
        ),
        (error(403, "Hunter2Exception"), "denied", 1),
        (error(400, "InvalidSignatureException"), "denied", 1),
        (error(400, "NotFoundException"), "not found", 1),
        (error(400, "DisabledException"), "not found", 1),
        (error(400, "KMSInvalidStateException"), "not found", 1),
        (
            error(400, "InvalidCiphertextException"),
            "does not unwrap",
            1,
        ),
        (error(400, "IncorrectKeyException"), "does not unwrap", 1),
        (error(400, "InvalidKeyUsageException"), "settings", 1),
        (error(400, "ValidationException"), "settings", 1),
        (error(400, "ThrottlingException"), "unavailable", 3),
        (error(400, "LimitExceededException"), "unavailable", 3),
        (error(500, "DependencyTimeoutException"), "unavailable", 3),
        (error(500, "KeyUnavailableException"), "unavailable", 3),
        (error(500, "KMSInternalException"), "unavailable", 3),
        (error(503, "Hunter2Exception"), "unavailable", 3),
        (error(500, "InvalidCiphertextException"), "unavailable", 3),
        (error(400, "Hunter2Exception"), "wrong answer", 1),
        (error(418, "Hunter2Exception"), "wrong answer", 1),
        (
            TransitFault::Response(502, "<html>hunter2</html>".into()),
            "unavailable",
            3,
        ),
        (TransitFault::Garbage, "wrong answer", 1),
        (json("{}"), "wrong answer", 1),
        (json(r#"{"Plaintext":"aHVudGVyMg=="}"#), "wrong answer", 1),
        (json(r#"{"Plaintext":7}"#), "wrong answer", 1),
        (TransitFault::Long((64 << 10) + 1), "wrong answer", 1),
        (TransitFault::Disconnect, "unavailable", 3),
    ] {
        let _ = failing.server.take_requests();
        failing.server.fail("", usize::MAX, fault.clone());
        let result = kms.unwrap(b"a copy", &SLOT).await;
        assert_eq!(kind_of(&result), expected, "{fault:?}: {result:?}");
        let requests = failing.server.take_requests();
        assert_eq!(requests.len(), tries, "{fault:?}: {requests:?}");
        let text = format!("{result:?} {kms:?}").to_lowercase();
        assert!(
            !text.contains("hunter2") && !text.contains("akiaexample"),
            "{fault:?}: {text}"
        );
        failing.server.heal();
    }
}

#[tokio::test]
async fn logs_hold_no_secret_at_any_level() {
    let failing = Failing::start();
    let kms = AwsKms::new(failing.options()).unwrap();
    let (log, _guard) = CapturedLog::start();
    let response =
        r#"{"CiphertextBlob":"AAAA","Plaintext":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}"#;
    failing
        .server
        .fail("", usize::MAX, TransitFault::Response(200, response.into()));
    let wrapped = kms.wrap(&root_key(), &SLOT).await.unwrap();
    assert_eq!(*kms.unwrap(&wrapped, &SLOT).await.unwrap(), *root_key());
    let text = log.text();
    for secret in ["AAECAwQF", "hunter2", "AKIAEXAMPLE", "[0, 1, 2, 3"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}

#[tokio::test]
async fn a_passing_fault_is_passed_over() {
    let failing = Failing::start();
    let kms = AwsKms::new(failing.options()).unwrap();
    let plaintext = r#"{"Plaintext":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=","KeyId":"k"}"#;
    failing.server.fail(
        "",
        1,
        TransitFault::Response(400, r#"{"__type":"ThrottlingException"}"#.into()),
    );
    failing.server.fail("", 1, TransitFault::Disconnect);
    failing
        .server
        .fail("", 1, TransitFault::Response(200, plaintext.into()));
    assert_eq!(*kms.unwrap(b"a copy", &SLOT).await.unwrap(), *root_key());
}

#[tokio::test]
async fn a_server_that_does_not_respond_or_is_not_trusted_is_unavailable() {
    let failing = Failing::start();
    failing.server.fail("", usize::MAX, TransitFault::Hang);
    let options = AwsKmsOptions {
        request_timeout: Duration::from_millis(200),
        ..failing.options()
    };
    let result = AwsKms::new(options).unwrap().unwrap(b"a copy", &SLOT).await;
    assert_eq!(kind_of(&result), "unavailable", "{result:?}");

    let _ = failing.server.take_requests();
    let folder = tempfile::tempdir().unwrap();
    let strange = Certificates::make(folder.path(), "stranger").unwrap();
    let options = AwsKmsOptions {
        ca: Some(strange.ca),
        ..failing.options()
    };
    let result = AwsKms::new(options).unwrap().unwrap(b"a copy", &SLOT).await;
    assert_eq!(kind_of(&result), "unavailable", "{result:?}");
    assert!(result.unwrap_err().to_string().contains("certificate"));
    assert_eq!(failing.server.take_requests(), Vec::<String>::new());

    let options = AwsKmsOptions {
        ca: Some(folder.path().join("none")),
        ..failing.options()
    };
    let result = AwsKms::new(options).unwrap().unwrap(b"a copy", &SLOT).await;
    assert_eq!(kind_of(&result), "not found", "{result:?}");
}

#[tokio::test]
async fn logins_by_web_identity_fail_with_their_reason() {
    let failing = Failing::start();
    let token_file = write_secret(
        failing.folder.path(),
        "web-identity",
        "header.hunter2-claims.signature",
    );
    let credentials = AwsCredentials::WebIdentity {
        role_arn: "arn:aws:iam::123456789012:role/sealwire".into(),
        token_file,
        sts_endpoint_url: Some(failing.server.address()),
    };
    let kms = AwsKms::new(AwsKmsOptions {
        credentials,
        ..failing.options()
    })
    .unwrap();
    let error = |status: u16, code: &str| {
        let text = format!(
            "<ErrorResponse><Error><Code>{code}</Code><Message>hunter2</Message></Error></ErrorResponse>"
        );
        TransitFault::Response(status, text)
    };
    for (fault, expected) in [
        (error(400, "ExpiredTokenException"), "denied"),
        (error(400, "InvalidIdentityToken"), "denied"),
        (error(403, "AccessDenied"), "denied"),
        (error(400, "ValidationError"), "settings"),
        (error(400, "Hunter2"), "wrong answer"),
        (error(503, "ServiceUnavailable"), "unavailable"),
        (TransitFault::Garbage, "wrong answer"),
        (
            TransitFault::Response(200, "<AccessKeyId>hunter2</AccessKeyId>".into()),
            "wrong answer",
        ),
        (TransitFault::Disconnect, "unavailable"),
    ] {
        failing.server.fail("", usize::MAX, fault.clone());
        let result = kms.unwrap(b"a copy", &SLOT).await;
        assert_eq!(kind_of(&result), expected, "{fault:?}: {result:?}");
        assert!(
            !format!("{result:?}").to_lowercase().contains("hunter2"),
            "{fault:?}: {result:?}"
        );
        failing.server.heal();
    }
}

#[test]
fn encryption_contexts_name_the_slot() {
    let slot = WrapSlot {
        set: [0xab; 16],
        root: [0x01; 16],
        number: u32::MAX,
    };
    let expected = [
        ("sealwire-set", "ab".repeat(16)),
        ("sealwire-root", "01".repeat(16)),
        ("sealwire-slot", "4294967295".into()),
    ];
    assert_eq!(encryption_context(&slot), expected);
}

#[test]
fn options_out_of_their_limits_are_invalid() {
    let right = AwsKmsOptions {
        ca: Some("/ca.pem".into()),
        ..AwsKmsOptions::new(
            "alias/sealwire",
            "eu-central-1",
            AwsCredentials::Environment,
        )
    };
    assert!(AwsKms::new(right.clone()).is_ok());
    let changed = |change: &dyn Fn(&mut AwsKmsOptions)| {
        let mut options = right.clone();
        change(&mut options);
        options
    };
    let web = |role_arn: &str, url: &str| AwsCredentials::WebIdentity {
        role_arn: role_arn.into(),
        token_file: "/token".into(),
        sts_endpoint_url: Some(url.into()),
    };
    let arn = "arn:aws:iam::123456789012:role/sealwire";
    for (options, part) in [
        (changed(&|o| o.key_id = String::new()), "awskms.key_id"),
        (changed(&|o| o.key_id = "a b".into()), "awskms.key_id"),
        (changed(&|o| o.key_id = "k".repeat(2_049)), "awskms.key_id"),
        (changed(&|o| o.region = String::new()), "awskms.region"),
        (
            changed(&|o| o.region = "eu central".into()),
            "awskms.region",
        ),
        (
            changed(&|o| o.region = "evil.example/".into()),
            "awskms.region",
        ),
        (
            changed(&|o| o.endpoint_url = Some("http://kms.example".into())),
            "awskms.endpoint_url",
        ),
        (
            changed(&|o| o.endpoint_url = Some("https://kms.example/path".into())),
            "awskms.endpoint_url",
        ),
        (changed(&|o| o.ca = None), "awskms.ca"),
        (
            changed(&|o| o.credentials = web("arn", "https://sts.example")),
            "awskms.role_arn",
        ),
        (
            changed(&|o| o.credentials = web(arn, "http://sts.example")),
            "awskms.sts_endpoint_url",
        ),
        (
            changed(&|o| {
                o.credentials = AwsCredentials::File {
                    path: "/file".into(),
                    profile: "a]".into(),
                }
            }),
            "awskms.profile",
        ),
        (
            changed(&|o| o.connect_timeout = Duration::ZERO),
            "awskms.connect_timeout_ms",
        ),
        (
            changed(&|o| o.request_timeout = Duration::from_secs(61)),
            "awskms.request_timeout_ms",
        ),
    ] {
        let error = AwsKms::new(options.clone()).expect_err(part);
        assert!(
            matches!(&error, ProviderError::Settings(text) if text.contains(part)),
            "{options:?}: {error}"
        );
    }
}

#[test]
fn codes_are_known_once() {
    for (index, (code, _)) in CODES.iter().enumerate() {
        assert!(
            !CODES[..index].iter().any(|(other, _)| other == code),
            "{code}"
        );
    }
}
