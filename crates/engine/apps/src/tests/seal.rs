//! Tests of sealing: the mark stops every load before a provider is asked, and only a holder of the
//! root key removes it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use async_trait::async_trait;
use sealwire_crypto::RootKey;
use sealwire_store::{Snapshot, everything};
use sealwire_store_embedded::FileStore;
use tokio::sync::Notify;

use super::roots::{Keyring, furnish, root, slot};
use super::*;

const SET: [u8; 16] = [0xd8; 16];

/// Counts what is asked of a keyring.
struct Watched {
    keyring: Keyring,
    finds: AtomicU32,
    wipes: AtomicU32,
    /// Makes [`FindKek::find`] wait.
    is_slow: AtomicBool,
    asked: Notify,
    go: Notify,
}

impl Watched {
    fn of(root: &Arc<RootKey>) -> Arc<Self> {
        Arc::new(Self {
            keyring: Keyring::of(&[root]),
            finds: AtomicU32::new(0),
            wipes: AtomicU32::new(0),
            is_slow: AtomicBool::new(false),
            asked: Notify::new(),
            go: Notify::new(),
        })
    }

    fn control(self: &Arc<Self>, store: &Arc<dyn ControlStore>) -> Control {
        Control::with_finder(Arc::clone(store), Arc::<Self>::clone(self))
    }

    fn finds(&self) -> u32 {
        self.finds.load(Ordering::SeqCst)
    }

    fn wipes(&self) -> u32 {
        self.wipes.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl FindKek for Watched {
    async fn find(&self, root: Option<&RootRecord>) -> Result<Arc<Kek>, StoreError> {
        self.finds.fetch_add(1, Ordering::SeqCst);
        if self.is_slow.load(Ordering::SeqCst) {
            self.asked.notify_one();
            self.go.notified().await;
        }
        self.keyring.find(root).await
    }

    fn wipe(&self) {
        self.wipes.fetch_add(1, Ordering::SeqCst);
    }
}

/// Creates a store with every kind of key under a root key.
async fn store_with(root: &Arc<RootKey>) -> Arc<dyn ControlStore> {
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let control = Keyring::of(&[root]).control(&store);
    furnish(&control).await;
    control
        .create_root(SET, root, vec![slot(1, "local"), slot(2, "hsm")])
        .await
        .unwrap();
    store
}

fn is_sealed<T>(result: Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Sealed))
}

async fn put_back(store: &Arc<dyn ControlStore>, state: &Snapshot) {
    let base = store.generation().await.unwrap();
    let state = Snapshot {
        generation: base + 1,
        records: state.records.clone(),
    };
    assert_eq!(
        store.replace(base, &state).await.unwrap(),
        Commit::Done(base + 1)
    );
}

fn keeps_nothing(control: &Control) -> bool {
    !control.store().keeps_a_key()
}

#[tokio::test]
async fn a_sealed_store_is_loaded_by_nobody_and_asks_no_provider() {
    let root = root();
    let store = store_with(&root).await;
    let one = Watched::of(&root);
    let two = Watched::of(&root);
    let sealing = one.control(&store);
    let other = two.control(&store);
    other.load().await.unwrap();
    let sealed = sealing.seal().await.unwrap();
    assert!(
        one.wipes() == 1 && keeps_nothing(&sealing),
        "the process that seals keeps no key"
    );
    assert_eq!(sealing.seal().await.unwrap(), sealed, "idempotent");
    assert!(
        sealing
            .root()
            .await
            .unwrap()
            .1
            .unwrap()
            .sealed_unix_s
            .is_some()
    );

    let fresh_keys = Watched::of(&root);
    let fresh = fresh_keys.control(&store);
    let finds = [&one, &two, &fresh_keys].map(|keys| keys.finds());
    for control in [&sealing, &other, &fresh] {
        assert!(is_sealed(control.load().await) && is_sealed(control.kek().await));
        assert!(is_sealed(control.apps().await) && is_sealed(control.map_states().await));
        assert!(is_sealed(control.create(&app("new"), &[Suite::P256]).await));
        assert!(is_sealed(control.rotate(&app("shop"), P256).await));
        assert!(is_sealed(control.maintain(u64::MAX - 1).await));
        assert!(is_sealed(
            control.stage_root(&root, vec![slot(3, "local")]).await
        ));
        assert!(is_sealed(control.abandon_root().await));
        assert!(is_sealed(
            control
                .set_slots(root.id(&SET).unwrap(), SlotChange::default())
                .await
        ));
        assert!(is_sealed(
            control
                .remove_root(Arc::new(Kek::from_hex(KEK).unwrap()))
                .await
        ));
        assert!(is_sealed(control.store().read("principal/a").await));
        assert!(is_sealed(control.store().singles(None, 10).await));
        assert!(is_sealed(
            control.store().commit(sealed, "role/x", Some(b"{}")).await
        ));
        assert!(keeps_nothing(control));
    }
    assert_eq!(
        [&one, &two, &fresh_keys].map(|keys| keys.finds()),
        finds,
        "no provider is asked"
    );
    assert!(two.wipes() > 0 && fresh_keys.wipes() > 0);
    assert_eq!(store.generation().await.unwrap(), sealed);
}

#[tokio::test]
async fn an_unsealed_store_has_every_key_again() {
    let root = root();
    let store = store_with(&root).await;
    let control = Keyring::of(&[&root]).control(&store);
    let before = everything(&*store).await.unwrap();
    let first = control.load().await.unwrap();
    control.seal().await.unwrap();
    let helper = Keyring::of(&[&root]).control(&store);
    let unsealed = helper.unseal().await.unwrap();
    assert_eq!(
        (helper.unseal().await.unwrap(), unsealed),
        (unsealed, before.generation + 2)
    );
    for control in [&control, &helper, &Keyring::of(&[&root]).control(&store)] {
        let state = control.load().await.unwrap();
        assert_eq!(state.apps.len(), first.apps.len());
        for (app, old) in state.apps.iter().zip(&first.apps) {
            assert!(app.keys.is_same(&old.keys) && app.token_keys.is_same(&old.token_keys));
        }
    }
    let after = everything(&*store).await.unwrap();
    assert_eq!(
        after.records[ROOT_RECORD], before.records[ROOT_RECORD],
        "the record is as before"
    );
    helper.create(&app("new"), &[Suite::P256]).await.unwrap();
}

#[tokio::test]
async fn a_store_without_a_root_key_or_with_another_one_is_not_unsealed() {
    let (control, _) = fresh();
    assert!(matches!(control.seal().await, Err(StoreError::Invalid(_))));
    assert!(matches!(
        control.unseal().await,
        Err(StoreError::Invalid(_))
    ));
    let first = root();
    let store = store_with(&first).await;
    let control = Keyring::of(&[&first]).control(&store);
    control.seal().await.unwrap();
    let stranger = Watched::of(&root());
    let strange = stranger.control(&store);
    assert!(matches!(
        strange.unseal().await,
        Err(StoreError::RootKey(_))
    ));
    assert!(stranger.wipes() == 1 && is_sealed(control.load().await));
}

#[tokio::test]
async fn a_mark_that_was_not_made_with_the_root_key_denies_service_and_nothing_more() {
    let root = root();
    let store = store_with(&root).await;
    let running = Watched::of(&root);
    let fresh = Watched::of(&root);
    let control = running.control(&store);
    control.load().await.unwrap();
    let good = everything(&*store).await.unwrap();
    let mut record = RootRecord::of(&good).unwrap().unwrap();
    record.sealed_unix_s = Some(1);
    // In the same generation, so that the mark alone is wrong.
    let mut marked = good.clone();
    marked
        .records
        .insert(ROOT_RECORD.into(), record.to_bytes().unwrap());
    let forged: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    forged.replace(0, &marked).await.unwrap();
    let fresh_keys = Watched::of(&root);
    let error = fresh_keys.control(&forged).unseal().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotAuthentic { key, .. } if key == ROOT_RECORD),
        "{error}"
    );
    let error = fresh_keys.control(&forged).seal().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotAuthentic { key, .. } if key == ROOT_RECORD),
        "{error}"
    );
    store
        .commit(
            good.generation,
            ROOT_RECORD,
            Some(&record.to_bytes().unwrap()),
        )
        .await
        .unwrap();
    for keys in [&running, &fresh] {
        let control = keys.control(&store);
        assert!(is_sealed(control.load().await));
        let wipes = keys.wipes();
        let error = control.unseal().await.unwrap_err();
        assert!(matches!(error, StoreError::NotAuthentic { .. }), "{error}");
        assert!(
            keys.wipes() > wipes && keeps_nothing(&control),
            "the key that verified it is wiped again"
        );
    }
    assert!(is_sealed(control.load().await));
    let state = Snapshot {
        generation: good.generation,
        ..good
    };
    let repaired: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    repaired.replace(0, &state).await.unwrap();
    assert!(
        fresh.control(&repaired).load().await.is_ok(),
        "the store from before is whole"
    );
}

#[tokio::test]
async fn a_mark_that_was_removed_without_the_root_key_is_missed() {
    let root = root();
    let store = store_with(&root).await;
    let running = Watched::of(&root);
    let control = running.control(&store);
    control.load().await.unwrap();
    let before = everything(&*store).await.unwrap();
    Keyring::of(&[&root]).control(&store).seal().await.unwrap();
    let sealed = everything(&*store).await.unwrap();
    assert!(is_sealed(control.load().await));

    let mut record = RootRecord::of(&sealed).unwrap().unwrap();
    record.sealed_unix_s = None;
    let mut unmarked = sealed.clone();
    unmarked
        .records
        .insert(ROOT_RECORD.into(), record.to_bytes().unwrap());
    // In the same generation, so that the missing mark alone is wrong.
    let forged: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    forged.replace(0, &unmarked).await.unwrap();
    let error = Watched::of(&root)
        .control(&forged)
        .load()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, StoreError::NotAuthentic { key, .. } if key == ROOT_RECORD),
        "{error}"
    );
    for state in [&unmarked, &before] {
        // Under a later generation, as a write of somebody without the root key.
        put_back(&store, state).await;
        for control in [&control, &Watched::of(&root).control(&store)] {
            let error = control.load().await.unwrap_err();
            assert!(matches!(error, StoreError::NotAuthentic { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn a_state_from_before_the_seal_is_rejected_by_whoever_saw_the_seal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let root = root();
    let store: Arc<dyn ControlStore> = Arc::new(FileStore::open(&path).unwrap());
    let running = Watched::of(&root).control(&store);
    let sealing = Keyring::of(&[&root]).control(&store);
    sealing.create(&app("shop"), &[Suite::P256]).await.unwrap();
    sealing
        .create_root(SET, &root, vec![slot(1, "local")])
        .await
        .unwrap();
    running.load().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    sealing.seal().await.unwrap();
    assert!(is_sealed(running.load().await));
    std::fs::write(&path, before).unwrap();
    for control in [&running, &sealing] {
        let error = control.load().await.unwrap_err();
        assert!(matches!(error, StoreError::RolledBack { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_load_that_began_before_the_seal_keeps_no_key() {
    let root = root();
    let store = store_with(&root).await;
    let keys = Watched::of(&root);
    let control = keys.control(&store);
    keys.is_slow.store(true, Ordering::SeqCst);
    let slow = control.clone();
    let loading = tokio::spawn(async move { slow.load().await.map(drop) });
    keys.asked.notified().await;
    Keyring::of(&[&root]).control(&store).seal().await.unwrap();
    assert!(is_sealed(control.load().await));
    keys.go.notify_one();
    loading.await.unwrap().unwrap();
    assert!(keeps_nothing(&control), "its state is of before the wipe");
}

#[test]
fn a_record_without_the_mark_has_the_form_of_earlier_versions() {
    let root = root();
    let active = RootEntry {
        id: root.id(&SET).unwrap(),
        created_unix_s: 1,
        slots: vec![slot(1, "local")],
    };
    let record = RootRecord {
        set: SET,
        active,
        incoming: None,
        wrapped_audit: vec![1],
        next_slot: 2,
        sealed_unix_s: None,
    };
    let bytes = record.to_bytes().unwrap();
    assert!(!String::from_utf8(bytes.clone()).unwrap().contains("sealed"));
    assert_eq!(RootRecord::parse(&bytes).unwrap(), record);
    let sealed = RootRecord {
        sealed_unix_s: Some(7),
        ..record
    };
    assert_eq!(
        RootRecord::parse(&sealed.to_bytes().unwrap()).unwrap(),
        sealed
    );
}
