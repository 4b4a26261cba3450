//! Tests of root keys: changes of the KEK keep every key, are atomic, and leave nothing to the KEK
//! before.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::RootKey;
use sealwire_store::{Changes, Snapshot};
use sealwire_store_embedded::embedded::{EmbeddedStore, Options};

use super::*;

const SET: [u8; 16] = [0xa5; 16];

/// Finds the KEK with the root keys that it holds, as an engine does. Without a root record, the
/// plain KEK.
#[derive(Clone)]
pub(super) struct Keyring {
    plain: Arc<Kek>,
    roots: Arc<Mutex<Vec<Arc<RootKey>>>>,
}

impl Keyring {
    pub(super) fn of(roots: &[&Arc<RootKey>]) -> Self {
        let roots = roots.iter().map(|root| Arc::clone(root)).collect();
        let plain = Arc::new(Kek::from_hex(KEK).unwrap());
        Self {
            plain,
            roots: Arc::new(Mutex::new(roots)),
        }
    }

    pub(super) fn control(&self, store: &Arc<dyn ControlStore>) -> Control {
        Control::with_finder(Arc::clone(store), Arc::new(self.clone()))
    }
}

#[async_trait]
impl FindKek for Keyring {
    async fn find(&self, root: Option<&RootRecord>) -> Result<Arc<Kek>, StoreError> {
        let Some(record) = root else {
            return Ok(Arc::clone(&self.plain));
        };
        let roots = self.roots.lock().unwrap();
        let found = roots
            .iter()
            .find(|root| root.id(&record.set).unwrap() == record.active.id);
        let found = found.ok_or_else(|| StoreError::RootKey("not in the keyring".into()))?;
        Ok(Arc::new(found.kek_with_wrapped_audit(
            &record.set,
            &record.wrapped_audit,
        )?))
    }
}

pub(super) fn root() -> Arc<RootKey> {
    Arc::new(RootKey::generate().unwrap())
}

/// A slot whose copy is not looked at.
pub(super) fn slot(number: u32, provider: &str) -> RootSlot {
    RootSlot {
        number,
        provider: provider.into(),
        kind: "file".into(),
        fields: [("path".to_owned(), "/etc/kek".to_owned())].into(),
        wrapped: vec![7; 60],
        created_unix_s: 1,
        verified_unix_s: 1,
    }
}

/// Creates every kind of key, in two apps, and a record that is read one by one.
pub(super) async fn furnish(control: &Control) {
    for name in ["shop", "bank"] {
        control.create(&app(name), &Suite::ALL).await.unwrap();
        control.rotate(&app(name), KeyKind::Token).await.unwrap();
        control
            .rotate(&app(name), KeyKind::Outside(Suite::P256))
            .await
            .unwrap();
    }
    let pair = KeyPair::from_scalar(Curve::Secp256k1, &[9; 32]).unwrap();
    let imported = control.import(&app("shop"), pair, false).await.unwrap();
    control
        .disable(&app("shop"), Target::Key(imported.key().unwrap().id))
        .await
        .unwrap();
    let first = control.app(&app("bank")).await.unwrap().keys[0].id;
    control
        .delete(&app("bank"), Target::Key(first), WEEK)
        .await
        .unwrap();
    control.create(&app("gone"), &[Suite::P256]).await.unwrap();
    control
        .delete(&app("gone"), Target::App, NOW)
        .await
        .unwrap();
    control.maintain(u64::MAX - 1).await.unwrap();
    let base = control.generation().await.unwrap();
    control
        .store()
        .commit(base, "principal/a", Some(b"{}"))
        .await
        .unwrap();
}

/// All of a store, in the clear: the records without `wrapped` and `root`, and every secret.
async fn plain_content(
    control: &Control,
    keyring: &Keyring,
) -> (Vec<(String, String)>, Vec<Vec<u8>>) {
    let snapshot = sealwire_store::everything(&**control.store())
        .await
        .unwrap();
    let kek = keyring
        .find(RootRecord::of(&snapshot).unwrap().as_ref())
        .await
        .unwrap();
    let contents = Contents::read(&snapshot.loaded()).unwrap();
    let mut secrets = vec![kek.audit_secret().to_vec()];
    for (app, record) in contents
        .apps
        .iter()
        .filter_map(|(app, entry)| Some((app, entry.live()?)))
    {
        for key in &record.keys {
            let of = key.summary(&app_key(app)).unwrap();
            let context = keys::key_context(app, of.suite, of.number, of.id, of.origin);
            let wrapped = STANDARD.decode(&key.wrapped).unwrap();
            // Secrets of all suites are wrapped alike.
            secrets.push(
                kek.unwrap_xaes(&wrapped, &context)
                    .unwrap()
                    .expose()
                    .to_vec(),
            );
        }
        for key in &record.token_keys {
            let context = keys::token_key_context(app, record.number, key.number);
            let wrapped = STANDARD.decode(&key.wrapped).unwrap();
            secrets.push(kek.unwrap_secret(&wrapped, &context).unwrap().to_vec());
        }
    }
    if let Some(signer) = control.load().await.unwrap().signing_key {
        secrets.push(signer.verifying_key().as_bytes().to_vec());
    }
    let text = |(key, record): (String, Vec<u8>)| {
        let parts = String::from_utf8(record).unwrap();
        let mut parts = parts.split("\"wrapped\":\"");
        let first = parts.next().unwrap().to_owned();
        (
            key,
            parts.fold(first, |all, part| all + part.split_once('"').unwrap().1),
        )
    };
    let records = snapshot
        .records
        .into_iter()
        .filter(|(key, _)| key != ROOT_RECORD)
        .map(text)
        .collect();
    (records, secrets)
}

/// Older records have the public key of each key pair, to which whoever reads the store could seal.
#[tokio::test]
async fn public_keys_in_older_records_end_with_the_next_root_key() {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let control = Keyring::of(&[&first]).control(&store);
    control.create(&app("shop"), &Suite::ALL).await.unwrap();
    control
        .rotate(&app("shop"), KeyKind::Outside(Suite::P256))
        .await
        .unwrap();
    let record = async || {
        String::from_utf8(store.load().await.unwrap().records["app/shop"].clone()).unwrap()
    };
    let versions = async || {
        let keys = Arc::clone(&served(&control, "shop").await.unwrap().keys);
        keys.versions()
            .iter()
            .map(|version| (version.id, version.origin))
            .collect::<Vec<_>>()
    };
    let public_keys = async || {
        let record: serde_json::Value = serde_json::from_str(&record().await).unwrap();
        let all = record["live"]["keys"].as_array().unwrap().iter();
        all.map(|key| key["public_key"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let new = public_keys().await;
    let ids = versions().await;

    let mut old: serde_json::Value = serde_json::from_str(&record().await).unwrap();
    for key in old["live"]["keys"].as_array_mut().unwrap() {
        if key["public_key"] == "" {
            key["public_key"] = STANDARD.encode([2; 33]).into();
        }
    }
    let base = control.generation().await.unwrap();
    control
        .store()
        .commit(base, "app/shop", Some(old.to_string().as_bytes()))
        .await
        .unwrap();
    assert!(
        public_keys().await != new && versions().await == ids,
        "older records load"
    );

    control
        .create_root(SET, &first, vec![slot(1, "local")])
        .await
        .unwrap();
    assert_eq!(
        (public_keys().await, versions().await),
        (new, ids),
        "the published one and the check stay"
    );
}

/// Creates, rotates and removes the root key of a store.
async fn whole_life(store: Arc<dyn ControlStore>) {
    let first = root();
    let second = root();
    let keyring = Keyring::of(&[&first, &second]);
    let control = keyring.control(&store);
    furnish(&control).await;
    let before = plain_content(&control, &keyring).await;
    assert_eq!(
        before.1.len(),
        1 + 7 + 1 + 6 + 2 + 2 + 1,
        "audit, keys of both apps, token keys, signing key"
    );
    let opens = async |keyring: Keyring| keyring.control(&store).load().await.is_ok();

    let generation = control
        .create_root(SET, &first, vec![slot(1, "local"), slot(2, "hsm")])
        .await
        .unwrap();
    assert_eq!(control.generation().await.unwrap(), generation);
    assert_eq!(plain_content(&control, &keyring).await, before);
    assert!(
        opens(Keyring::of(&[&first])).await
            && !opens(Keyring::of(&[&second])).await
            && !opens(Keyring::of(&[])).await
    );
    let plain = Control::new(Arc::clone(&store), Kek::from_hex(KEK).unwrap());
    for refused in [
        plain.load().await.err(),
        plain.rotate(&app("shop"), P256).await.err(),
    ] {
        assert!(
            matches!(refused, Some(StoreError::RootKey(why)) if why.contains("the store has a root key"))
        );
    }
    // Under the KEK before, no record opens, even without the root record.
    let mut stripped = control.store().load().await.unwrap();
    stripped.records.remove(ROOT_RECORD);
    let old = fuzzing::load(&keyring.plain, &stripped);
    assert!(matches!(old, Err(StoreError::WrongKek { .. })));

    let staged = control
        .stage_root(&second, vec![slot(3, "local")])
        .await
        .unwrap();
    assert_eq!(plain_content(&control, &keyring).await, before);
    assert!(
        opens(Keyring::of(&[&first])).await,
        "the incoming root key is not in use yet"
    );
    assert_eq!(
        control
            .root()
            .await
            .unwrap()
            .1
            .unwrap()
            .incoming
            .unwrap()
            .generation,
        staged
    );
    control.activate_root(&second).await.unwrap();
    assert_eq!(plain_content(&control, &keyring).await, before);
    assert!(opens(Keyring::of(&[&second])).await && !opens(Keyring::of(&[&first])).await);
    let record = control.root().await.unwrap().1.unwrap();
    assert_eq!(
        (record.set, record.incoming, record.next_slot),
        (SET, None, 4)
    );
    assert_eq!(record.active.id, second.id(&SET).unwrap());

    // Keys made under a root key are kept like the others.
    control.rotate(&app("shop"), P256).await.unwrap();
    control.create(&app("new"), &Suite::ALL).await.unwrap();
    let before = plain_content(&control, &keyring).await;
    control
        .remove_root(Arc::clone(&keyring.plain))
        .await
        .unwrap();
    assert_eq!(plain_content(&control, &keyring).await, before);
    assert_eq!(control.root().await.unwrap().1, None);
    assert!(plain.load().await.is_ok());
}

#[tokio::test]
async fn keys_and_the_audit_secret_outlive_root_keys() {
    whole_life(Arc::new(MemoryStore::default())).await;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(EmbeddedStore::open(folder.path(), &Options::default()).unwrap());
    whole_life(Arc::<EmbeddedStore>::clone(&store)).await;
    store.close().await;
}

#[tokio::test]
async fn without_the_root_key_nothing_is_believed_or_changed() {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let keyring = Keyring::of(&[&first]);
    let control = keyring.control(&store);
    furnish(&control).await;
    control
        .create_root(SET, &first, vec![slot(1, "local")])
        .await
        .unwrap();
    let before = sealwire_store::everything(&*store).await.unwrap();
    let control = Keyring::of(&[]).control(&store);
    let shop = app("shop");
    let slots = SlotChange {
        add: vec![slot(2, "hsm")],
        ..SlotChange::default()
    };
    for refused in [
        control.apps().await.err(),
        control.app(&shop).await.err(),
        control.collections(&shop).await.err(),
        control.map_states().await.err(),
        control.disable(&shop, Target::App).await.err(),
        control.configure(&shop, |_| ()).await.err(),
        control.maintain(0).await.err(),
        control.create(&app("new"), &[]).await.err(),
        control.rotate(&shop, P256).await.err(),
        control.load().await.err(),
        control.store().read("principal/a").await.err(),
        control.store().singles(None, 1).await.err(),
        control
            .store()
            .commit(before.generation, "role/a", Some(b"{}"))
            .await
            .err(),
        control
            .set_slots(first.id(&SET).unwrap(), slots)
            .await
            .err(),
    ] {
        assert!(matches!(refused, Some(StoreError::RootKey(why)) if why == "not in the keyring"));
    }
    assert_eq!(sealwire_store::everything(&*store).await.unwrap(), before);
    assert_eq!(
        control.root().await.unwrap().1.unwrap().active.id,
        first.id(&SET).unwrap(),
        "it is public"
    );
}

#[tokio::test]
async fn slots_are_added_verified_and_removed_and_one_stays() {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let control = Keyring::of(&[&first]).control(&store);
    let id = first.id(&SET).unwrap();
    let change = SlotChange::default;
    let refused = async |change: SlotChange| match control.set_slots(id, change).await {
        Err(StoreError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(change()).await, "the store has no root key");
    for slots in [
        vec![],
        vec![slot(2, "a")],
        vec![slot(1, "a"), slot(3, "b")],
        vec![slot(1, "a"), slot(2, "a")],
    ] {
        let made = control.create_root(SET, &first, slots.clone()).await;
        assert!(
            matches!(made, Err(StoreError::Invalid(_))),
            "{slots:?}: {made:?}"
        );
    }
    assert_eq!(control.generation().await.unwrap(), 0);
    control
        .create_root(SET, &first, vec![slot(1, "a")])
        .await
        .unwrap();
    let again = control.create_root(SET, &first, vec![slot(1, "a")]).await;
    assert!(
        matches!(again, Err(StoreError::Invalid(why)) if why == "the store has a root key already")
    );

    let numbers = async || {
        let record = control.root().await.unwrap().1.unwrap();
        record
            .active
            .slots
            .iter()
            .map(|slot| slot.number)
            .collect::<Vec<_>>()
    };
    assert!(
        refused(SlotChange {
            remove: vec![1],
            ..change()
        })
        .await
        .contains("0 slots")
    );
    control
        .set_slots(
            id,
            SlotChange {
                add: vec![slot(2, "b"), slot(3, "c")],
                ..change()
            },
        )
        .await
        .unwrap();
    control
        .set_slots(
            id,
            SlotChange {
                remove: vec![1, 3],
                ..change()
            },
        )
        .await
        .unwrap();
    assert_eq!(numbers().await, [2]);
    // A copy is replaced in one change; numbers are not used again.
    control
        .set_slots(
            id,
            SlotChange {
                add: vec![slot(4, "b")],
                remove: vec![2],
                ..change()
            },
        )
        .await
        .unwrap();
    assert_eq!(numbers().await, [4]);
    control
        .set_slots(
            id,
            SlotChange {
                verified: vec![4],
                ..change()
            },
        )
        .await
        .unwrap();
    assert!(control.root().await.unwrap().1.unwrap().active.slots[0].verified_unix_s > 1);
    let all: Vec<_> = (5..=12)
        .map(|number| slot(number, &format!("p{number}")))
        .collect();
    for (wrong, why) in [
        (
            SlotChange {
                add: vec![slot(4, "c")],
                ..change()
            },
            "numbered from 5 on",
        ),
        (
            SlotChange {
                add: vec![slot(5, "b")],
                ..change()
            },
            "provider b has two slots",
        ),
        (
            SlotChange {
                add: vec![slot(5, "B")],
                ..change()
            },
            "invalid provider",
        ),
        (
            SlotChange {
                add: all,
                ..change()
            },
            "9 slots, not 1 to 8",
        ),
        (
            SlotChange {
                remove: vec![2],
                ..change()
            },
            "no slot 2",
        ),
        (
            SlotChange {
                verified: vec![3],
                ..change()
            },
            "no slot 3",
        ),
    ] {
        let found = refused(wrong).await;
        assert!(found.contains(why), "{found}");
    }
    assert!(matches!(
        control.set_slots([0; 16], change()).await,
        Err(StoreError::Invalid(_))
    ));
    assert_eq!(numbers().await, [4]);
}

#[tokio::test]
async fn an_incoming_root_key_waits_for_every_live_instance() {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let second = root();
    let control = Keyring::of(&[&first, &second]).control(&store);
    let invalid = |result: Result<u64, StoreError>| matches!(result, Err(StoreError::Invalid(_)));
    furnish(&control).await;
    assert!(invalid(
        control.stage_root(&second, vec![slot(1, "a")]).await
    ));
    assert!(invalid(control.activate_root(&second).await));
    assert!(invalid(control.abandon_root().await));
    let created = control
        .create_root(SET, &first, vec![slot(1, "a")])
        .await
        .unwrap();
    assert!(invalid(control.activate_root(&second).await));
    assert!(
        invalid(control.stage_root(&first, vec![slot(2, "a")]).await),
        "the same root key"
    );
    control.beat(&instance("a", created)).await.unwrap();
    control.beat(&instance("b", created)).await.unwrap();
    let staged = control
        .stage_root(&second, vec![slot(2, "a")])
        .await
        .unwrap();
    assert!(invalid(
        control.stage_root(&root(), vec![slot(3, "a")]).await
    ));
    assert!(invalid(control.remove_root(Keyring::of(&[]).plain).await));
    let behind = async || match control.activate_root(&second).await {
        Err(StoreError::NotServed {
            generation,
            instances,
        }) if generation == staged => instances,
        other => panic!("{other:?}"),
    };
    assert_eq!(behind().await, ["127.0.0.1:7443 (a)", "127.0.0.1:7443 (b)"]);
    control.beat(&instance("a", staged)).await.unwrap();
    assert_eq!(behind().await, ["127.0.0.1:7443 (b)"]);
    control.leave("b").await.unwrap();
    // An instance that starts can be about to load the records before.
    control.beat(&instance("c", 0)).await.unwrap();
    assert_eq!(behind().await, ["127.0.0.1:7443 (c)"]);
    control.beat(&instance("c", staged + 1)).await.unwrap();
    assert!(
        matches!(
            control.activate_root(&first).await,
            Err(StoreError::RootKey(_))
        ),
        "not the incoming one"
    );
    control.activate_root(&second).await.unwrap();

    control
        .stage_root(&first, vec![slot(3, "a")])
        .await
        .unwrap();
    control.abandon_root().await.unwrap();
    let record = control.root().await.unwrap().1.unwrap();
    assert_eq!(
        (record.active.id, record.incoming, record.next_slot),
        (second.id(&SET).unwrap(), None, 4)
    );
    let other = Arc::new(Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap());
    assert!(
        invalid(control.remove_root(other).await),
        "the audit secret would change"
    );
}

#[tokio::test]
async fn a_wrapped_key_still_cannot_be_moved() {
    let memory = MemoryStore::default();
    let store: Arc<dyn ControlStore> = Arc::new(memory.clone());
    let first = root();
    let control = Keyring::of(&[&first]).control(&store);
    furnish(&control).await;
    control
        .create_root(SET, &first, vec![slot(1, "a")])
        .await
        .unwrap();
    let text = |key: &str, all: &Snapshot| String::from_utf8(all.records[key].clone()).unwrap();
    let all = store.load().await.unwrap();
    let shop = text("app/shop", &all);
    let bank = text("app/bank", &all);
    let wrapped = |of: &str, at: usize| {
        of.split("\"wrapped\":\"")
            .nth(at)
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .to_owned()
    };
    let count = shop.matches("\"wrapped\"").count();
    for (at, from) in [
        (1, wrapped(&bank, 1)),
        (count, wrapped(&bank, 1)),
        (1, wrapped(&shop, 2)),
        (count, wrapped(&shop, count - 1)),
    ] {
        let moved = shop.replace(&wrapped(&shop, at), &from);
        assert_ne!(moved, shop);
        control
            .store()
            .commit(
                store.generation().await.unwrap(),
                "app/shop",
                Some(moved.as_bytes()),
            )
            .await
            .unwrap();
        assert!(matches!(
            control.load().await,
            Err(StoreError::WrongKek { .. })
        ));
        control
            .store()
            .commit(
                store.generation().await.unwrap(),
                "app/shop",
                Some(shop.as_bytes()),
            )
            .await
            .unwrap();
        control.load().await.unwrap();
    }
}

#[tokio::test]
async fn a_damaged_root_record_is_refused_by_name() {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let second = root();
    let control = Keyring::of(&[&first, &second]).control(&store);
    control
        .create_root(SET, &first, vec![slot(1, "a"), slot(2, "b")])
        .await
        .unwrap();
    control
        .stage_root(&second, vec![slot(3, "a")])
        .await
        .unwrap();
    let good = String::from_utf8(store.read(ROOT_RECORD).await.unwrap().1.unwrap()).unwrap();
    let parsed = RootRecord::parse(good.as_bytes()).unwrap();
    assert_eq!(
        String::from_utf8(parsed.to_bytes().unwrap()).unwrap(),
        good,
        "a record has one form"
    );
    let [one, two] = [first.id(&SET).unwrap(), second.id(&SET).unwrap()]
        .map(|id| data_encoding::HEXLOWER.encode(&id));
    let copy = STANDARD.encode([7; 60]);
    let generation = format!("\"generation\":{},", parsed.incoming.unwrap().generation);
    for (record, expected) in [
        (String::new(), "damaged"),
        (
            good.replace("\"format\":1", "\"format\":2"),
            "format 2 is not 1",
        ),
        (
            "{\"format\":1,\"live\":null}".into(),
            "neither live nor deleted",
        ),
        (
            good.replacen("\"set\"", "\"more\":1,\"set\"", 1),
            "unknown field",
        ),
        (
            good.replacen("\"id\"", "\"more\":1,\"id\"", 1),
            "unknown field",
        ),
        (
            good.replacen("\"number\"", "\"more\":1,\"number\"", 1),
            "unknown field",
        ),
        (
            good.replace(&"a5".repeat(16), "a5"),
            "32 hexadecimal digits",
        ),
        (
            good.replace(&"a5".repeat(16), &"A5".repeat(16)),
            "32 hexadecimal digits",
        ),
        (good.replace(&one, "zz"), "32 hexadecimal digits"),
        (good.replace(&two, &one), "both root keys have the same id"),
        (
            good.replace("\"incoming\"", "\"retired\""),
            "unknown variant",
        ),
        (
            good.replace("\"incoming\"", "\"active\""),
            "an active root key must not",
        ),
        (
            good.replace("\"active\"", "\"incoming\""),
            "an incoming root key must have a generation",
        ),
        (
            good.replace("\"incoming\"", "\"active\"")
                .replace(&generation, ""),
            "in the same state",
        ),
        (
            good.replace(&generation, ""),
            "an incoming root key must have a generation",
        ),
        (
            good.replace("\"next_slot\":4", "\"next_slot\":3"),
            "slot number 3",
        ),
        (
            good.replace("\"number\":3", "\"number\":1"),
            "slot number 1 is used twice",
        ),
        (
            good.replace("\"provider\":\"b\"", "\"provider\":\"a\""),
            "provider a has two slots",
        ),
        (
            good.replace("\"provider\":\"b\"", "\"provider\":\"../b\""),
            "slot 2 has an invalid provider",
        ),
        (
            good.replace("\"provider\":\"b\"", "\"provider\":\"\""),
            "slot 2 has an invalid provider",
        ),
        (
            good.replacen("\"kind\":\"file\"", "\"kind\":\"\"", 1),
            "slot 1 has an invalid provider or kind",
        ),
        (
            good.replacen("/etc/kek", "\\u0007", 1),
            "slot 1 has invalid fields",
        ),
        (
            good.replacen("/etc/kek", &"x".repeat(4_097), 1),
            "slot 1 has invalid fields",
        ),
        (
            good.replacen(&copy, "", 1),
            "the copy in slot 1 has 0 bytes",
        ),
        (
            good.replacen(&copy, &STANDARD.encode([7; 8_193]), 1),
            "the copy in slot 1 has 8193 bytes",
        ),
        (good.replacen(&copy, "!", 1), "not base64"),
    ] {
        assert_ne!(record, good, "{expected}");
        let error = RootRecord::parse(record.as_bytes())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("root: damaged") && error.contains(expected),
            "{expected}: {error}"
        );
        control
            .store()
            .commit(
                store.generation().await.unwrap(),
                ROOT_RECORD,
                Some(record.as_bytes()),
            )
            .await
            .unwrap();
        for error in [
            control.load().await.unwrap_err(),
            control.apps().await.unwrap_err(),
            control.root().await.unwrap_err(),
        ] {
            assert!(error.to_string().starts_with("root: damaged"), "{error}");
        }
        control
            .store()
            .commit(
                store.generation().await.unwrap(),
                ROOT_RECORD,
                Some(good.as_bytes()),
            )
            .await
            .unwrap();
        control.load().await.unwrap();
    }
    // An altered or foreign audit secret does not unwrap.
    let audit = good
        .split("\"audit\":\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let record = good.replace(audit, &copy);
    control
        .store()
        .commit(
            store.generation().await.unwrap(),
            ROOT_RECORD,
            Some(record.as_bytes()),
        )
        .await
        .unwrap();
    assert!(control.load().await.is_err());
}

/// A store that fails from some call on, as if the process were killed there: before the call, or
/// after the store did it.
struct Dying {
    store: Arc<dyn ControlStore>,
    /// Steps that are left. A call has two: before it and after it.
    steps: AtomicU64,
}

impl Dying {
    fn step(&self) -> Result<(), StoreError> {
        let left = self
            .steps
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        left.map(drop)
            .map_err(|_| StoreError::Unavailable("killed".into()))
    }

    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        self.step()?;
        let done = call.await;
        self.step()?;
        done
    }
}

#[async_trait]
impl ControlStore for Dying {
    async fn generation(&self) -> Result<u64, StoreError> {
        self.call(self.store.generation()).await
    }
    async fn load(&self) -> Result<Snapshot, StoreError> {
        self.call(self.store.load()).await
    }
    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        self.call(self.store.read(key)).await
    }
    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        self.call(self.store.singles(after, limit)).await
    }
    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        self.call(self.store.commit_all(base, changes)).await
    }
    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        self.call(self.store.replace(base, state)).await
    }
    async fn changed(&self) {
        self.store.changed().await;
    }
    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.call(self.store.beat(instance)).await
    }
    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        self.call(self.store.lease(name, holder, time)).await
    }
    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.call(self.store.leave(id)).await
    }
    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        self.call(self.store.instances(age_max)).await
    }
}

/// The changes of a root key's life, each done once: creation, staging, activation, removal.
async fn do_next(
    control: &Control,
    [first, second]: [&RootKey; 2],
    plain: &Arc<Kek>,
    done: usize,
) -> Result<u64, StoreError> {
    match done {
        0 => control.create_root(SET, first, vec![slot(1, "a")]).await,
        1 => control.stage_root(second, vec![slot(2, "a")]).await,
        2 => control.activate_root(second).await,
        _ => control.remove_root(Arc::clone(plain)).await,
    }
}

#[tokio::test]
async fn a_change_that_is_killed_at_any_step_loses_nothing_and_can_be_repeated() {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let second = root();
    let keyring = Keyring::of(&[&first, &second]);
    let control = keyring.control(&store);
    furnish(&control).await;
    let before = plain_content(&control, &keyring).await;
    let mut kills = 0;
    for change in 0..4 {
        let control = keyring.control(&store);
        let start = sealwire_store::everything(&**control.store())
            .await
            .unwrap();
        for steps in 0.. {
            let dying: Arc<dyn ControlStore> = Arc::new(Dying {
                store: Arc::clone(&store),
                steps: AtomicU64::new(steps),
            });
            let result = do_next(
                &keyring.control(&dying),
                [&first, &second],
                &keyring.plain,
                change,
            )
            .await;
            // Of another process: one that saw the root key accepts no store without it.
            let control = keyring.control(&store);
            assert_eq!(
                plain_content(&control, &keyring).await,
                before,
                "change {change}, killed at step {steps}"
            );
            if result.is_ok() {
                break;
            }
            kills += 1;
            if control.generation().await.unwrap() != start.generation {
                // It was made, and nobody was told: a repetition says so, or changes nothing else.
                let again = do_next(&control, [&first, &second], &keyring.plain, change).await;
                assert!(matches!(again, Err(StoreError::Invalid(_))), "{again:?}");
                // Back to the state before, under a new generation, to be killed elsewhere.
                let base = control.generation().await.unwrap();
                assert!(matches!(
                    control.store().replace(base, &start).await.unwrap(),
                    Commit::Done(_)
                ));
            }
        }
    }
    assert!(kills > 20, "{kills}");
}

#[tokio::test]
async fn a_change_that_is_dropped_midway_loses_nothing() {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let second = root();
    let keyring = Keyring::of(&[&first, &second]);
    let control = keyring.control(&store);
    furnish(&control).await;
    let before = plain_content(&control, &keyring).await;
    for change in 0..4 {
        let start = control.generation().await.unwrap();
        for polls in 1.. {
            let mut running =
                Box::pin(do_next(&control, [&first, &second], &keyring.plain, change));
            let mut left = polls;
            // Polls the change so many times, and drops it then.
            let done = std::future::poll_fn(|context| match running.as_mut().poll(context) {
                std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
                std::task::Poll::Pending => {
                    left -= 1;
                    if left == 0 {
                        std::task::Poll::Ready(None)
                    } else {
                        std::task::Poll::Pending
                    }
                }
            })
            .await;
            drop(running);
            assert_eq!(
                plain_content(&control, &keyring).await,
                before,
                "change {change}, dropped at poll {polls}"
            );
            if control.generation().await.unwrap() != start {
                assert!(done.is_none_or(|done| done.is_ok()));
                break;
            }
        }
    }
    assert_eq!(control.root().await.unwrap().1, None);
}

#[tokio::test]
async fn a_change_beside_others_keeps_what_they_made() {
    /// Makes another change just before each change, a few times.
    struct Busy {
        store: Arc<dyn ControlStore>,
        others: Control,
        left: AtomicU64,
    }
    #[async_trait]
    impl ControlStore for Busy {
        async fn generation(&self) -> Result<u64, StoreError> {
            self.store.generation().await
        }
        async fn load(&self) -> Result<Snapshot, StoreError> {
            self.store.load().await
        }
        async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
            self.store.read(key).await
        }
        async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
            self.store.singles(after, limit).await
        }
        async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
            if self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                    left.checked_sub(1)
                })
                .is_ok()
            {
                self.others.rotate(&app("shop"), P256).await?;
            }
            self.store.commit_all(base, changes).await
        }
        async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
            self.store.replace(base, state).await
        }
        async fn changed(&self) {
            self.store.changed().await;
        }
        async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
            self.store.beat(instance).await
        }
        async fn lease(
            &self,
            name: &str,
            holder: &str,
            time: Duration,
        ) -> Result<bool, StoreError> {
            self.store.lease(name, holder, time).await
        }
        async fn leave(&self, id: &str) -> Result<(), StoreError> {
            self.store.leave(id).await
        }
        async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
            self.store.instances(age_max).await
        }
    }
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let first = root();
    let keyring = Keyring::of(&[&first]);
    let others = keyring.control(&store);
    others.create(&app("shop"), &[Suite::P256]).await.unwrap();
    let busy = Busy {
        store: Arc::clone(&store),
        others: others.clone(),
        left: AtomicU64::new(3),
    };
    let busy: Arc<dyn ControlStore> = Arc::new(busy);
    keyring
        .control(&busy)
        .create_root(SET, &first, vec![slot(1, "a")])
        .await
        .unwrap();
    assert_eq!(
        numbers(&others.app(&app("shop")).await.unwrap(), Suite::P256),
        [1, 2, 3, 4]
    );
    assert!(others.load().await.is_ok());
}
