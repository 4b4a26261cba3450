//! Every commit is noted before its result is known, by whatever method it was made.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::roots::{Keyring, root, slot};
use super::*;

const SET: [u8; 16] = [0xa5; 16];

/// Notes commits, as an engine does in its anchor.
struct Noting {
    keyring: Keyring,
    noted: Mutex<Vec<(StateId, Vec<[u8; 16]>)>>,
    fails: AtomicBool,
}

impl Noting {
    /// Returns what was noted since the last call.
    fn take(&self) -> Vec<(StateId, Vec<[u8; 16]>)> {
        std::mem::take(&mut *self.noted.lock().unwrap())
    }
}

#[async_trait::async_trait]
impl FindKek for Noting {
    async fn find(&self, root: Option<&RootRecord>) -> Result<Arc<Kek>, StoreError> {
        self.keyring.find(root).await
    }

    async fn committed(&self, state: &StateId, roots: &[[u8; 16]]) -> Result<(), StoreError> {
        self.noted.lock().unwrap().push((*state, roots.to_vec()));
        match self.fails.load(Ordering::SeqCst) {
            true => Err(StoreError::NotAnchored {
                generation: state.generation,
                what: "disk full".into(),
            }),
            false => Ok(()),
        }
    }
}

#[tokio::test]
async fn commits_are_noted_before_their_result() {
    let store = MemoryStore::default();
    let first = root();
    let second = root();
    let keyring = Keyring::of(&[&first, &second]);
    let noting = Arc::new(Noting {
        keyring,
        noted: Mutex::default(),
        fails: AtomicBool::new(false),
    });
    let control = Control::with_finder(Arc::new(store.clone()), Arc::<Noting>::clone(&noting));
    let shop = app("shop");
    control.create(&shop, &[Suite::P256]).await.unwrap();
    assert!(
        noting.take().is_empty(),
        "a store without a root key has no authentic states"
    );

    let ids = [&first, &second].map(|root| root.id(&SET).unwrap());
    // Checks that one state was noted: the one that the store has now.
    let check = async |generation: u64, roots: &[[u8; 16]]| {
        let noted = noting.take();
        let (now, head) = store.read("head").await.unwrap();
        let [(id, found)] = &noted[..] else {
            panic!("{noted:?}")
        };
        assert_eq!(
            (id.set, id.generation, now, &found[..]),
            (SET, generation, generation, roots)
        );
        assert_eq!(
            crate::record_index::code_of(&head.unwrap()).unwrap(),
            id.code
        );
    };
    let active = &ids[..1];
    check(
        control
            .create_root(SET, &first, vec![slot(1, "local")])
            .await
            .unwrap(),
        active,
    )
    .await;
    check(
        control
            .create(&app("bank"), &[Suite::P256])
            .await
            .unwrap()
            .generation,
        active,
    )
    .await;
    check(
        control
            .rotate(&shop, KeyKind::Token)
            .await
            .unwrap()
            .generation,
        active,
    )
    .await;
    check(
        control
            .disable(&shop, Target::App)
            .await
            .unwrap()
            .generation,
        active,
    )
    .await;
    check(
        control.enable(&shop, Target::App).await.unwrap().generation,
        active,
    )
    .await;
    check(
        control
            .delete(&app("bank"), Target::App, NOW)
            .await
            .unwrap()
            .generation,
        active,
    )
    .await;
    assert_eq!(control.maintain(u64::MAX - 1).await.unwrap(), 1);
    check(control.generation().await.unwrap(), active).await;
    // Records of others, such as roles, erased subjects and schemas.
    let base = control.generation().await.unwrap();
    control
        .store()
        .commit(base, "principal/a", Some(b"{}"))
        .await
        .unwrap();
    check(base + 1, active).await;
    let change = SlotChange {
        verified: vec![1],
        ..Default::default()
    };
    check(control.set_slots(ids[0], change).await.unwrap(), active).await;
    check(
        control
            .stage_root(&second, vec![slot(2, "local")])
            .await
            .unwrap(),
        &ids,
    )
    .await;
    check(control.abandon_root().await.unwrap(), active).await;
    check(
        control
            .stage_root(&second, vec![slot(3, "local")])
            .await
            .unwrap(),
        &ids,
    )
    .await;
    let active = &ids[1..];
    check(control.activate_root(&second).await.unwrap(), active).await;
    check(control.seal().await.unwrap(), active).await;
    // Sealed again, because a response was lost: noted again.
    check(control.seal().await.unwrap(), active).await;
    check(control.unseal().await.unwrap(), active).await;
    check(control.skip_generations(100).await.unwrap(), active).await;
    control.load().await.unwrap();
    control.apps().await.unwrap();
    assert!(noting.take().is_empty(), "reads commit nothing");

    // A failure is told, and undoes nothing.
    noting.fails.store(true, Ordering::SeqCst);
    let sealed = control.seal().await;
    assert!(
        matches!(
            sealed,
            Err(StoreError::NotAnchored {
                generation: 102,
                ..
            })
        ),
        "{sealed:?}"
    );
    check(102, active).await;
    assert!(matches!(control.load().await, Err(StoreError::Sealed)));
    assert!(!control.store().keeps_a_key(), "its keys are wiped");
    assert!(matches!(
        control.seal().await,
        Err(StoreError::NotAnchored {
            generation: 102,
            ..
        })
    ));
    noting.take();
    let unsealed = control.unseal().await;
    assert!(
        matches!(
            unsealed,
            Err(StoreError::NotAnchored {
                generation: 103,
                ..
            })
        ),
        "{unsealed:?}"
    );
    check(103, active).await;
    assert!(control.store().keeps_a_key(), "the store is unsealed");
    control.load().await.unwrap();
    noting.fails.store(false, Ordering::SeqCst);
    control
        .remove_root(Arc::new(Kek::from_hex(KEK).unwrap()))
        .await
        .unwrap();
    assert!(
        noting.take().is_empty(),
        "nothing authenticates the state any more"
    );
}
