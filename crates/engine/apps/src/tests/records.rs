//! Tests of stored records.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use sealwire_store::Snapshot;

async fn text(store: &MemoryStore, key: &str) -> String {
    String::from_utf8(store.load().await.unwrap().records[key].clone()).unwrap()
}

async fn put(store: &MemoryStore, key: &str, record: &str) {
    let base = store.generation().await.unwrap();
    store
        .commit(base, key, Some(record.as_bytes()))
        .await
        .unwrap();
}

#[tokio::test]
async fn records_hold_no_secret_and_no_setting_that_is_the_default() {
    let (control, store) = fresh();
    control.create(&app("shop"), &Suite::ALL).await.unwrap();
    let text = text(&store, "app/shop").await;
    for version in keys(&control, "shop").await.versions() {
        let Ok(pair) = version.pair() else { continue };
        let scalar = pair.scalar().unwrap();
        let hex: String = scalar
            .expose()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert!(!text.contains(&hex) && !text.contains(&STANDARD.encode(scalar.expose())));
    }
    for absent in [
        "epoch_ms",
        "read_suites",
        "delete_unix_s",
        "opens_only",
        "deleted",
    ] {
        assert!(!text.contains(absent), "{absent}");
    }
}

/// What an app writes is in its record from the first on: a record that names no suite is older,
/// and means `p256`.
#[tokio::test]
async fn new_app_names_the_suite_that_it_writes_and_old_record_means_p256() {
    let (control, store) = fresh();
    let written = async |name: &str| served(&control, name).await.unwrap().settings.write_suite;
    control.create(&app("new"), &Suite::ALL).await.unwrap();
    let record = text(&store, "app/new").await;
    assert_eq!(written("new").await, Suite::P256Psk);
    assert!(
        record.contains("\"settings\":{\"write_suite\":\"p256-psk\"}"),
        "{record}"
    );

    // As engines wrote it before they knew PSK mode, and as they still write it for an app without
    // such a key.
    put(
        &store,
        "app/new",
        &record.replace("\"settings\":{\"write_suite\":\"p256-psk\"},", ""),
    )
    .await;
    assert_eq!(written("new").await, Suite::P256);
    control.create(&app("old"), &[Suite::P256]).await.unwrap();
    assert!(!text(&store, "app/old").await.contains("settings"));
    assert_eq!(written("old").await, Suite::P256);

    // An operator moves it, and back.
    let set = async |suite| {
        control
            .configure(&app("old"), move |settings| settings.write_suite = suite)
            .await
    };
    assert!(
        matches!(set(Suite::P256Psk).await, Err(StoreError::Invalid(why)) if why.contains("p256-psk"))
    );
    control
        .rotate(&app("old"), KeyKind::Suite(Suite::P256Psk))
        .await
        .unwrap();
    set(Suite::P256Psk).await.unwrap();
    assert_eq!(written("old").await, Suite::P256Psk);
    assert!(
        text(&store, "app/old")
            .await
            .contains("\"write_suite\":\"p256-psk\"")
    );
    set(Suite::P256).await.unwrap();
    assert!(!text(&store, "app/old").await.contains("settings"));
}

/// An engine that does not know a suite says so, and leaves the record alone.
#[tokio::test]
async fn unknown_suite_of_a_key_or_a_setting_is_named() {
    let (control, store) = fresh();
    control.create(&app("shop"), &Suite::ALL).await.unwrap();
    let record = text(&store, "app/shop").await;
    for (from, to) in [
        ("\"curve\":\"p256-psk\"", "\"curve\":\"p999-psk\""),
        (
            "\"write_suite\":\"p256-psk\"",
            "\"write_suite\":\"p999-psk\"",
        ),
    ] {
        put(&store, "app/shop", &record.replace(from, to)).await;
        let error = control.load().await.unwrap_err().to_string();
        assert!(
            error.contains("app/shop: damaged: unknown suite \"p999-psk\""),
            "{error}"
        );
    }
}

/// A seed belongs to its suite, app, version and origin, as other keys do.
#[tokio::test]
async fn psk_seed_does_not_move_to_another_suite_app_or_version() {
    let (control, store) = fresh();
    for name in ["shop", "web"] {
        control.create(&app(name), &[Suite::P256Psk]).await.unwrap();
        control
            .rotate(&app(name), KeyKind::Suite(Suite::P256Psk))
            .await
            .unwrap();
        control
            .rotate(&app(name), KeyKind::Suite(Suite::Secp256k1Psk))
            .await
            .unwrap();
    }
    let shop = text(&store, "app/shop").await;
    let web = text(&store, "app/web").await;
    let wrapped = |record: &str, at: usize| {
        record
            .split("\"wrapped\":\"")
            .nth(at)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .to_owned()
    };
    for (what, record) in [
        (
            "another app",
            shop.replace(&wrapped(&shop, 1), &wrapped(&web, 1)),
        ),
        (
            "another version",
            shop.replace(&wrapped(&shop, 1), &wrapped(&shop, 2)),
        ),
        (
            "another suite's seed",
            shop.replace(&wrapped(&shop, 1), &wrapped(&shop, 3)),
        ),
        (
            "base mode",
            shop.replacen("\"curve\":\"p256-psk\"", "\"curve\":\"r1\"", 1),
        ),
        (
            "the other curve",
            shop.replacen("\"curve\":\"p256-psk\"", "\"curve\":\"secp256k1-psk\"", 1),
        ),
        (
            "published",
            shop.replacen(
                "\"created_unix_s\"",
                "\"outside\":true,\"created_unix_s\"",
                1,
            ),
        ),
    ] {
        assert_ne!(record, shop, "{what}");
        put(&store, "app/shop", &record).await;
        let error = control.load().await.unwrap_err().to_string();
        assert!(error.contains("does not open"), "{what}: {error}");
    }
}

/// Whoever reads the store could seal to a public key of base mode. Only published keys have theirs
/// there.
#[tokio::test]
async fn records_hold_no_public_key_that_nobody_else_may_seal_to() {
    let (control, store) = fresh();
    control.create(&app("shop"), &Suite::ALL).await.unwrap();
    let pair = KeyPair::generate(Curve::P256).unwrap();
    control.import(&app("shop"), pair, true).await.unwrap();
    control
        .rotate(&app("shop"), KeyKind::Outside(Suite::P256))
        .await
        .unwrap();
    let text = text(&store, "app/shop").await;
    let mut published = 0;
    for version in keys(&control, "shop").await.versions() {
        let Ok(public) = version.public() else {
            continue;
        };
        for point in [
            &public.compressed()[..],
            public.uncompressed(),
            &public.compressed()[1..],
        ] {
            let found = text.contains(&STANDARD.encode(point));
            assert!(!found || version.origin == Origin::Outside, "{version:?}");
            published += usize::from(found);
        }
    }
    assert_eq!(published, 1, "the published key");
}

#[tokio::test]
async fn damaged_records_are_rejected_by_name() {
    let (control, store) = fresh();
    control
        .create(&app("shop"), &[Suite::P256, Suite::Xaes])
        .await
        .unwrap();
    let cards = CollectionName::new("cards").unwrap();
    let rules = CollectionRules {
        kind: CollectionKind::Random,
        format: sealwire_records::token::Format::Opaque,
        scope: Scope::Collection,
        expires_s: None,
        retention_s: None,
    };
    control
        .create_collection(&app("shop"), &cards, rules)
        .await
        .unwrap();
    let good = text(&store, "app/shop").await;
    let collection = text(&store, "collection/shop/cards").await;
    let id = &control.app(&app("shop")).await.unwrap().keys[0]
        .id
        .to_string();
    let wrapped = |at: usize| {
        good.split("\"wrapped\":\"")
            .nth(at)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
    };
    let check_of_xaes = good
        .split("\"public_key\":\"")
        .nth(2)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let check = async |key: &str, record: &str, expected: &str| {
        let before = text(&store, key).await;
        put(&store, key, record).await;
        let error = control.load().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        put(&store, key, &before).await;
        control.load().await.unwrap();
    };
    for (record, expected) in [
        (String::new(), "app/shop: damaged"),
        (
            good.replace("\"format\":1", "\"format\":2"),
            "format 2 is not 1",
        ),
        (
            good.replace("\"format\":1", "\"format\":2")
                .replace("\"number\"", "\"new\""),
            "format 2 is not 1",
        ),
        ("{\"format\":1}".into(), "neither live nor deleted"),
        (good.replace("\"r1\"", "\"r9\""), "unknown suite"),
        (good.replace(id, "xyz"), "10 hexadecimal digits"),
        (good.replace(id, "+1+2+3+4+5"), "10 hexadecimal digits"),
        (good.replace(id, "0000000000"), "does not open"),
        (
            good.replace("\"number\":1,\"state\"", "\"number\":2,\"state\""),
            "does not open",
        ),
        (good.replace(wrapped(1), "AAAA"), "does not open"),
        (good.replace(wrapped(2), "AAAA"), "does not open"),
        (good.replace(wrapped(2), wrapped(1)), "does not open"),
        (
            good.replace(check_of_xaes, "AAAA"),
            "a key does not match its check",
        ),
        (good.replace(wrapped(3), "AAAA"), "does not open"),
        (good.replace(wrapped(3), "!"), "not base64"),
        (good.replace(wrapped(3), wrapped(1)), "does not open"),
        (
            good.replace("\"shop\"", "\"pohs\""),
            "the key is not its app's",
        ),
        (
            good.replace("\"created_unix_s\"", "\"made\""),
            "unknown field",
        ),
        (
            good.replace("\"keys\"", "\"settings\":{\"epoch_ms\":15001},\"keys\""),
            "an epoch lasts 1 to 15000 ms",
        ),
        (
            good.replace("\"keys\"", "\"settings\":{\"epoch_ms\":-1},\"keys\""),
            "damaged",
        ),
        (
            good.replace("\"keys\"", "\"settings\":{\"epoch_s\":1},\"keys\""),
            "unknown field",
        ),
        (
            good.replace("\"keys\"", "\"settings\":{\"format\":\"pgp\"},\"keys\""),
            "unknown variant",
        ),
        (
            good.replace(
                "\"keys\"",
                "\"settings\":{\"write_suite\":\"rot13\"},\"keys\"",
            ),
            "unknown suite",
        ),
        (
            good.replace("\"keys\"", "\"settings\":{\"read_suites\":[\"\"]},\"keys\""),
            "unknown suite",
        ),
    ] {
        assert_ne!(record, good, "{expected}");
        check("app/shop", &record, expected).await;
    }
    for (record, expected) in [
        (
            collection.replace("opaque", "card"),
            "collection/shop/cards: damaged: unknown format",
        ),
        (
            collection.replace(
                "\"format\":\"opaque\"",
                "\"format\":\"uuid\",\"keeps\":[6,4]",
            ),
            "unknown format",
        ),
        (
            collection.replace(
                "\"format\":\"opaque\"",
                "\"format\":\"card\",\"keeps\":[7,4]",
            ),
            "card",
        ),
        (collection.replace("random", "usual"), "unknown kind"),
        (
            collection.replace("\"scope\":\"collection\"", "\"scope\":\"world\""),
            "unknown scope",
        ),
        (
            collection.replace("\"shop\"", "\"pohs\""),
            "the key is not its collection's",
        ),
        (
            collection.replace("\"cards\"", "\"card\""),
            "the key is not its collection's",
        ),
        (
            "{\"format\":1,\"deleted\":{\"number\":1,\"generation\":3}}".into(),
            "missing field",
        ),
    ] {
        assert_ne!(record, collection, "{expected}");
        check("collection/shop/cards", &record, expected).await;
    }
}

#[tokio::test]
async fn the_origin_and_the_signer_of_public_keys_cannot_be_rewritten() {
    for suite in Suite::PUBLISHED {
        check_rewritten_records(suite).await;
    }
}

async fn check_rewritten_records(suite: Suite) {
    let (control, store) = fresh();
    control.create(&app("shop"), &[suite]).await.unwrap();
    let made = control
        .rotate(&app("shop"), KeyKind::Outside(suite))
        .await
        .unwrap();
    let id = made.key().unwrap().id.to_string();
    let apps = text(&store, "app/shop").await;
    let signer = text(&store, SIGNING_KEY).await;
    let public = STANDARD.encode(
        control
            .load()
            .await
            .unwrap()
            .signing_key
            .unwrap()
            .verifying_key()
            .as_bytes(),
    );
    let other = keys::new_signing_key(&Kek::from_hex(KEK).unwrap()).unwrap();
    let of_other_kek =
        keys::new_signing_key(&Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap()).unwrap();
    let inside_first = "\"state\":\"active\",\"created";
    let outside = "\"outside\":true,";
    let wrapped = signer
        .split("\"wrapped\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    for (key, record, expected) in [
        // The engine would seal to keys that others seal to, and the other way round.
        ("app/shop", apps.replace(outside, ""), "does not open"),
        (
            "app/shop",
            apps.replacen(
                inside_first,
                &inside_first.replace("\"created", "\"outside\":true,\"created"),
                1,
            ),
            "does not open",
        ),
        ("app/shop", apps.replace(&id, "0000000000"), "does not open"),
        (
            SIGNING_KEY,
            signer.replace(&public, &other.public_key),
            "wrapped under another key-encryption key",
        ),
        (
            SIGNING_KEY,
            signer.replace(wrapped, &other.wrapped),
            "wrapped under another key-encryption key",
        ),
        (
            SIGNING_KEY,
            signer.replace(wrapped, "AAAA"),
            "wrapped under another key-encryption key",
        ),
        (SIGNING_KEY, signer.replace(&public, "AAAA"), "not 32 bytes"),
        (
            SIGNING_KEY,
            signer.replace("\"wrapped\"", "\"seed\""),
            "signing-key: damaged",
        ),
        (
            SIGNING_KEY,
            String::from_utf8(SigningKeyEntry::Live(of_other_kek).into_bytes()).unwrap(),
            "wrapped under another key-encryption key",
        ),
    ] {
        let before = text(&store, key).await;
        assert_ne!(record, before, "{expected}");
        put(&store, key, &record).await;
        let error = control.load().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        put(&store, key, &before).await;
        control.load().await.unwrap();
    }
}

#[test]
fn a_key_of_another_program_is_refused() {
    for key in [
        "",
        "app",
        "app/",
        "app/a/b",
        "app/.a",
        "collection/shop",
        "collection/shop/",
        "policy/x",
        "\n",
    ] {
        let records = [(
            key.to_owned(),
            b"{\"format\":1,\"deleted\":{\"number\":1,\"generation\":1}}".to_vec(),
        )];
        let read = Contents::read(&Snapshot {
            generation: 1,
            records: records.into(),
        });
        assert!(matches!(read, Err(StoreError::Damaged { .. })), "{key:?}");
    }
}

#[tokio::test]
async fn the_last_generation_and_the_last_number_are_followed_by_none() {
    let (control, store) = fresh();
    let last = format!(
        "{{\"format\":1,\"deleted\":{{\"number\":{},\"generation\":1}}}}",
        u32::MAX
    );
    put(&store, "app/last", &last).await;
    let refused = control.create(&app("shop"), &[]).await;
    assert!(matches!(refused, Err(StoreError::Damaged { what, .. }) if what == "no number left"));
    assert_eq!(control.generation().await.unwrap(), 1);
}
