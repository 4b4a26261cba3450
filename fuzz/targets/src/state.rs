//! The state file, and the records of apps and collections in it.

use std::sync::{Arc, LazyLock};

use sealwire_apps::{
    CollectionKind, CollectionName, CollectionRules, Control, KeyKind, Scope, Target,
};
use sealwire_crypto::{AppId, Kek, RootKey, Suite};
use sealwire_store::{ControlStore, Snapshot, StoreError};
use sealwire_store_embedded::FileStore;
use zeroize::Zeroizing;

use crate::Seed;
use crate::input::text;
use crate::seed::words as list;

fn kek() -> Kek {
    Kek::new(&Zeroizing::new([7; 32])).expect("a KEK")
}

static KEK: LazyLock<Kek> = LazyLock::new(kek);

/// The KEK of a root key, which authenticates records.
static ROOT_KEK: LazyLock<Kek> = LazyLock::new(|| {
    let root = RootKey::from_bytes(Zeroizing::new([8; 32]));
    root.kek(&[9; 16], Zeroizing::default()).expect("a KEK")
});

/// Reads a file, its records, and the keys in the records.
pub(crate) fn check_input(input: &[u8]) {
    let text = text(input);
    let snapshot = match sealwire_store_embedded::fuzzing::read_state(text) {
        Ok(snapshot) => snapshot,
        Err(what) => return assert!(!what.is_empty()),
    };
    let written = sealwire_store_embedded::fuzzing::write_state(&snapshot);
    assert_eq!(
        sealwire_store_embedded::fuzzing::read_state(&written).as_ref(),
        Ok(&snapshot)
    );
    assert_eq!(
        sealwire_store_embedded::fuzzing::write_state(&snapshot),
        written
    );
    // Records verify only with the index that was computed with the root key.
    let is_verified = check_shown(sealwire_apps::fuzzing::verified(
        &ROOT_KEK,
        &snapshot.loaded(),
    ))
    .is_some();
    if let Some(authenticated) = sealwire_apps::fuzzing::authenticated(&ROOT_KEK, &snapshot) {
        assert!(!is_verified);
        let verified = sealwire_apps::fuzzing::verified(&ROOT_KEK, &authenticated.loaded());
        assert_eq!(verified.expect("they are authentic"), snapshot.loaded());
    }
    if let Some(again) = check_shown(sealwire_apps::fuzzing::records(&snapshot)) {
        assert_eq!(again.generation, snapshot.generation);
        assert!(again.records.keys().eq(snapshot.records.keys()));
        let twice = sealwire_apps::fuzzing::records(&again).expect("records that were written");
        assert_eq!(twice, again, "a record has one form");
        if let Some(state) = check_shown(sealwire_apps::fuzzing::load(&KEK, &snapshot)) {
            let same = sealwire_apps::fuzzing::load(&KEK, &again).expect("the same records");
            assert_eq!(state.apps.len(), same.apps.len());
            for (one, other) in state.apps.iter().zip(&same.apps) {
                assert!(one.number == other.number && one.keys.is_same(&other.keys));
                assert_eq!(one.collections, other.collections);
            }
        }
    }
}

/// Returns a result. Checks that an error has a message.
fn check_shown<T>(result: Result<T, StoreError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            None
        }
    }
}

/// Creates the file of an engine with two apps.
fn make_state() -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.json");
    let make = async {
        let store: Arc<dyn ControlStore> = Arc::new(FileStore::open(&path)?);
        let control = Control::new(store, kek());
        let shop = AppId::new("shop")?;
        let web = AppId::new("web")?;
        control.create(&shop, &Suite::ALL).await?;
        control.create(&web, &[Suite::P256]).await?;
        control.rotate(&shop, KeyKind::Token).await?;
        let rules = CollectionRules {
            kind: CollectionKind::Deterministic,
            format: sealwire_records::token::Format::Card(Default::default()),
            scope: Scope::Context,
            expires_s: Some(3_600),
            retention_s: Some(86_400),
        };
        control
            .create_collection(&shop, &CollectionName::new("cards")?, rules)
            .await?;
        let rules = CollectionRules {
            kind: CollectionKind::OneWay,
            format: sealwire_records::token::Format::Opaque,
            scope: Scope::Collection,
            expires_s: None,
            retention_s: None,
        };
        control
            .create_collection(&shop, &CollectionName::new("people")?, rules)
            .await?;
        control
            .delete_collection(&shop, &CollectionName::new("people")?)
            .await?;
        control.disable(&web, Target::App).await?;
        Ok::<_, StoreError>(())
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(make).expect("a state");
    std::fs::read_to_string(path).expect("the file")
}

/// Adds the index of a file's records to the file.
fn authenticate_file(file: &str) -> String {
    let snapshot = sealwire_store_embedded::fuzzing::read_state(file).expect("a state");
    let authenticated = sealwire_apps::fuzzing::authenticated(&ROOT_KEK, &snapshot)
        .expect("records without an index");
    sealwire_store_embedded::fuzzing::write_state(&authenticated)
}

/// Returns a state file with these records.
fn state_file(records: &[(&str, &str)]) -> String {
    let records = records
        .iter()
        .map(|(key, record)| ((*key).to_owned(), record.as_bytes().to_vec()));
    sealwire_store_embedded::fuzzing::write_state(&Snapshot {
        generation: 9,
        records: records.collect(),
    })
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let deleted = r#"{"format":1,"deleted":{"number":3,"generation":7}}"#;
    let gone = r#"{"format":1,"deleted":{"app_number":1,"number":3,"generation":7}}"#;
    let collection = r#"{"format":1,"live":{"app":"shop","app_number":1,"name":"people","number":1,"kind":"random","format":"card","keeps":[6,4],"scope":"collection","expires_s":60,"created_unix_s":1700000000}}"#;
    let app = r#"{"format":1,"live":{"app":"shop","number":1,"state":"active","settings":{"epoch_ms":60000,"format":"evervault"},"highest":{"r1":1},"keys":[],"token_keys":[]}}"#;
    vec![
        Seed {
            is_random: true,
            ..Seed::new("two-apps", &[], make_state())
        },
        Seed {
            is_random: true,
            ..Seed::new("authenticated", &[], authenticate_file(&make_state()))
        },
        Seed::new("empty", &[], state_file(&[])),
        Seed::new(
            "tombstones",
            &[],
            state_file(&[("app/web", deleted), ("collection/shop/cards", gone)]),
        ),
        Seed::new(
            "collection",
            &[],
            state_file(&[("app/shop", app), ("collection/shop/people", collection)]),
        ),
        Seed::new(
            "other-keys",
            &[],
            state_file(&[("role/x", "{}"), ("access/y", " 1 "), ("other", "2")]),
        ),
        Seed::new(
            "base64",
            &[],
            r#"{"format":1,"generation":2,"records":{"role/x":{"base64":"AAEC"}}}"#,
        ),
        Seed::new("other-format", &[], r#"{"format":2}"#),
    ]
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "\"format\":1",
        "\"generation\":",
        "\"records\":{",
        "\"base64\":",
        "\"live\":{",
        "\"deleted\":{",
        "\"app\":\"shop\"",
        "\"number\":",
        "\"state\":\"active\"",
        "\"state\":\"disabled\"",
        "\"settings\":{",
        "\"epoch_ms\":",
        "\"highest\":{",
        "\"keys\":[",
        "\"token_keys\":[",
        "\"curve\":\"r1\"",
        "\"curve\":\"k1\"",
        "\"opens_only\":true",
        "\"delete_unix_s\":",
        "\"kind\":\"one_way\"",
        "\"format\":\"card\"",
        "\"keeps\":[6,4]",
        "\"scope\":\"context\"",
        "\"expires_s\":",
        "app/shop",
        "collection/shop/",
        "role/",
        "root",
        "head",
        "index/",
        "single-index/",
        "\"code\":",
        "\\u0041",
    ])
}
