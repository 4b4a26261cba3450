//! The three methods: round trips, key ids, rotation, and what is rejected.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message as _;
use sealwire_apps::{KeyKind, Target};
use sealwire_crypto::{KeyId, Suite};
use sealwire_kms::proto::{DECRYPT, DecryptRequest, ENCRYPT, EncryptRequest, EncryptResponse};

use crate::api_server::{
    ApiServer, DEADLINE_EXCEEDED, FAILED_PRECONDITION, INVALID_ARGUMENT, OUT_OF_RANGE,
    PERMISSION_DENIED, UNIMPLEMENTED,
};
use crate::site::{FORBIDDEN, Site, until};

/// A data key, as the API server makes it.
const DEK: [u8; 32] = [7; 32];

#[tokio::test(flavor = "multi_thread")]
async fn data_keys_return_and_the_status_names_their_key() {
    let site = Site::start(1).await;
    for suite in ["'app'", "'xaes'"] {
        let cluster = format!("cluster = 'prod'\nsuite = {suite}");
        let (plugin, api_server) = site.plugin(&[("cluster = 'prod'", &cluster)]).await;
        let status = api_server.status().await;
        assert_eq!((&*status.version, &*status.healthz), ("v2", "ok"));

        for plaintext in [&DEK[..], &[0], &[9; 512]] {
            let sealed = api_server.encrypt(plaintext).await;
            assert_eq!(sealed.key_id, status.key_id);
            assert!(sealed.ciphertext.len() <= 1_024);
            assert!(sealed.ciphertext.windows(8).all(|part| part != [7; 8]));
            assert_eq!(api_server.decrypt(&sealed).await.unwrap(), plaintext);
        }
        let [first, second] = [
            api_server.encrypt(&DEK).await,
            api_server.encrypt(&DEK).await,
        ];
        assert_ne!(first.ciphertext, second.ciphertext);
        plugin.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_changes_the_key_id_and_old_data_keys_decrypt() {
    let site = Site::start(2).await;
    let (plugin, api_server) = site.plugin(&[]).await;
    let old = api_server.encrypt(&DEK).await;
    assert_eq!(api_server.status().await.key_id, old.key_id);
    // Another change of the app is no change of the key that encrypts.
    site.change(async |control, app| {
        control
            .rotate(app, KeyKind::Suite(Suite::Xaes))
            .await
            .unwrap();
    })
    .await;

    site.rotate().await;
    until(async || api_server.status().await.key_id != old.key_id).await;
    let new_id = api_server.status().await.key_id;
    // No engine that is behind brings the old key back.
    for _ in 0..20 {
        assert_eq!(api_server.encrypt(&DEK).await.key_id, new_id);
        assert_eq!(api_server.status().await.key_id, new_id);
    }
    assert_eq!(api_server.decrypt(&old).await.unwrap(), DEK);

    // The key id is the same after a restart.
    plugin.shutdown().await;
    let (_plugin, api_server) = site.plugin(&[]).await;
    assert_eq!(api_server.status().await.key_id, new_id);
    assert_eq!(api_server.decrypt(&old).await.unwrap(), DEK);
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_keys_do_not_decrypt() {
    let site = Site::start(1).await;
    let (_plugin, api_server) = site.plugin(&[]).await;
    let old = api_server.encrypt(&DEK).await;
    assert_eq!(api_server.decrypt(&old).await.unwrap(), DEK);
    site.rotate().await;
    let id: KeyId = old.key_id.parse().unwrap();
    site.change(async |control, app| control.disable(app, Target::Key(id)).await.unwrap())
        .await;
    // Nothing is cached, so the end of the key is the end of its data keys.
    until(async || api_server.decrypt(&old).await.is_err()).await;
    let (code, text) = api_server.decrypt(&old).await.unwrap_err();
    assert_eq!(code, INVALID_ARGUMENT);
    assert!(text.contains("does not open"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ciphertexts_of_other_clusters_and_changed_ones_do_not_decrypt() {
    let site = Site::start(1).await;
    let (plugin, api_server) = site.plugin(&[("'prod'", "'staging'")]).await;
    let of_staging = api_server.encrypt(&DEK).await;
    plugin.shutdown().await;

    let (_plugin, api_server) = site.plugin(&[]).await;
    let sealed = api_server.encrypt(&DEK).await;
    assert_eq!(of_staging.key_id, sealed.key_id);
    let changed = |at: usize| {
        let mut changed = sealed.clone();
        changed.ciphertext[at] ^= 1;
        changed
    };
    let with_key_id = |key_id: &str| EncryptResponse {
        key_id: key_id.into(),
        ..sealed.clone()
    };
    let of_bytes = |bytes: &[u8]| EncryptResponse {
        ciphertext: bytes.to_vec(),
        ..sealed.clone()
    };
    let last = sealed.ciphertext.len() - 1;
    let binary_file = b"%EVENC".to_vec();
    for (name, request, expected) in [
        ("another cluster", of_staging, "does not open"),
        ("a changed tag", changed(last), "does not open"),
        ("a changed body", changed(last - 20), "does not open"),
        ("another key", changed(4), "key_id is not the id"),
        ("a changed prefix", changed(0), "envelope"),
        (
            "another key id",
            with_key_id("0000000000"),
            "key_id is not the id",
        ),
        (
            "no key id",
            with_key_id(""),
            "key_id must have 1 to 1,024 bytes",
        ),
        (
            "a long key id",
            with_key_id(&"x".repeat(1_025)),
            "key_id must have",
        ),
        // `decrypt` of the engine returns bytes that are no envelope as they came.
        ("no envelope", of_bytes(&DEK), "envelope"),
        ("an envelope as text", of_bytes(b"sw1:AAAA"), "envelope"),
        ("another format", of_bytes(&binary_file), "envelope"),
        (
            "a cut envelope",
            of_bytes(&sealed.ciphertext[..30]),
            "envelope",
        ),
        (
            "nothing",
            of_bytes(b""),
            "ciphertext must have 1 to 1,024 bytes",
        ),
        (
            "a long ciphertext",
            of_bytes(&[0; 1_025]),
            "ciphertext must have",
        ),
    ] {
        let (code, text) = api_server.decrypt(&request).await.unwrap_err();
        assert_eq!(code, INVALID_ARGUMENT, "{name}: {text}");
        assert!(text.contains(expected), "{name}: {text}");
    }
    assert_eq!(api_server.decrypt(&sealed).await.unwrap(), DEK);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_plaintexts_and_messages_are_rejected() {
    let site = Site::start(1).await;
    let (_plugin, api_server) = site.plugin(&[]).await;
    for (plaintext, expected) in [
        (vec![], "plaintext must not be empty"),
        (vec![1; 513], "at most 512 bytes"),
    ] {
        let (code, text) = api_server.try_encrypt(&plaintext).await.unwrap_err();
        assert_eq!(code, INVALID_ARGUMENT, "{text}");
        assert!(text.contains(expected), "{text}");
    }

    let message = |bytes: &[u8], flag: u8| -> Bytes {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&[flag], &length[..], bytes].concat().into()
    };
    let long = EncryptRequest {
        plaintext: vec![1; 65 << 10],
        uid: String::new(),
    };
    let internal = 13;
    for (name, path, body, expected) in [
        (
            "a long message",
            ENCRYPT,
            message(&long.encode_to_vec(), 0),
            OUT_OF_RANGE,
        ),
        (
            "a length without end",
            ENCRYPT,
            Bytes::from_static(&[0, 255, 255, 255, 255, 1]),
            OUT_OF_RANGE,
        ),
        ("no protobuf", ENCRYPT, message(&[0x0a, 0xff], 0), internal),
        ("a compressed message", ENCRYPT, message(b"x", 1), internal),
        (
            "KMS v1",
            "/v1beta1.KeyManagementService/Version",
            message(b"", 0),
            UNIMPLEMENTED,
        ),
        (
            "another method",
            "/v2.KeyManagementService/Rotate",
            message(b"", 0),
            UNIMPLEMENTED,
        ),
    ] {
        let (code, text) = api_server.send(path, body, "60S").await.unwrap_err();
        assert_eq!(code, expected, "{name}: {text}");
    }
    assert_eq!(api_server.status().await.healthz, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_of_the_api_server_end_requests() {
    let site = Site::start(1).await;
    let (_plugin, api_server) = site.plugin(&[]).await;
    let request = DecryptRequest {
        ciphertext: vec![1],
        uid: String::new(),
        key_id: "1".into(),
    };
    let bytes = request.encode_to_vec();
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    let body: Bytes = [&[0], &length[..], &bytes].concat().into();
    site.proxies[0].black_hole(true);
    let (code, text) = api_server.send(DECRYPT, body, "50m").await.unwrap_err();
    assert_eq!(code, DEADLINE_EXCEEDED, "{text}");
    site.proxies[0].black_hole(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_apps_and_suites_are_reported() {
    let site = Site::start(1).await;
    for (app, expected_code, expected) in [
        (FORBIDDEN, PERMISSION_DENIED, "encrypt,decrypt apps=payroll"),
        (
            "absent",
            FAILED_PRECONDITION,
            "app absent or its key does not exist",
        ),
    ] {
        let app = format!("'{app}'");
        let (plugin, api_server) = site.plugin(&[("'kubernetes'", &app)]).await;
        let (code, text) = api_server.try_encrypt(&DEK).await.unwrap_err();
        assert_eq!(code, expected_code, "{text}");
        assert!(text.contains(expected), "{text}");
        let status = api_server.status().await;
        assert!(status.healthz.contains(expected), "{}", status.healthz);
        assert_eq!(status.key_id, "");
        plugin.shutdown().await;
    }

    // Such ciphertexts are longer than the API server accepts.
    site.change(async |control, app| {
        let set =
            |settings: &mut sealwire_apps::Settings| settings.write_suite = Suite::P256MlKem768;
        control.configure(app, set).await.unwrap();
    })
    .await;
    let (_plugin, api_server) = site.plugin(&[]).await;
    until(async || api_server.status().await.healthz != "ok").await;
    let (code, text) = api_server.try_encrypt(&DEK).await.unwrap_err();
    assert_eq!(code, FAILED_PRECONDITION);
    assert!(text.contains("plugin.suite = \"xaes\""), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_succeed_on_several_connections() {
    let site = Site::start(2).await;
    let (_plugin, first) = site.plugin(&[]).await;
    let second = ApiServer::connect(&site.socket()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..300_u16 {
        let api_server = [&first, &second][usize::from(index % 2)].clone();
        tasks.spawn(async move {
            let plaintext = index.to_be_bytes().repeat(16);
            let sealed = api_server.encrypt(&plaintext).await;
            assert_eq!(api_server.decrypt(&sealed).await.unwrap(), plaintext);
            sealed
        });
    }
    let sealed = tasks.join_all().await;
    let ids: BTreeSet<_> = sealed.iter().map(|sealed| &sealed.key_id).collect();
    let ciphertexts: BTreeSet<_> = sealed.iter().map(|sealed| &sealed.ciphertext).collect();
    assert_eq!((ids.len(), ciphertexts.len()), (1, 300));
}
