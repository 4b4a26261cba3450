//! Tests of [`Control`] over the in-memory store.

use sealwire_crypto::{AppKeys, Curve, Encoding, EpochLifetime, KeyId, KeyScope, Sealer, SuiteSet};
use sealwire_records::token::CardEnds;

use super::*;
use sealwire_store::MemoryStore;

mod collections;
mod commits;
mod objects;
mod properties;
mod records;
mod roots;
mod seal;
mod tampering;

const KEK: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Creates a separate [`Control`] on a shared store, as another process would.
fn control(store: &MemoryStore) -> Control {
    Control::new(Arc::new(store.clone()), Kek::from_hex(KEK).unwrap())
}

fn other_kek(store: &MemoryStore) -> Control {
    Control::new(
        Arc::new(store.clone()),
        Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap(),
    )
}

fn fresh() -> (Control, MemoryStore) {
    let store = MemoryStore::default();
    (control(&store), store)
}

fn app(name: &str) -> AppId {
    AppId::new(name).unwrap()
}

async fn keys(control: &Control, of: &str) -> Arc<AppKeys> {
    served(control, of).await.unwrap().keys
}

async fn served(control: &Control, of: &str) -> Option<App> {
    control
        .load()
        .await
        .unwrap()
        .apps
        .into_iter()
        .find(|app| app.keys.app().as_str() == of)
}

fn numbers(app: &AppSummary, suite: Suite) -> Vec<u32> {
    app.keys
        .iter()
        .filter(|key| key.suite == suite)
        .map(|key| key.number)
        .collect()
}

const P256: KeyKind = KeyKind::Suite(Suite::P256);
/// The settings of an app that was made with a key of each suite.
fn of_new_app() -> Settings {
    Settings {
        write_suite: Suite::P256Psk,
        ..Settings::default()
    }
}

const WEEK: Duration = DELETE_DELAY;
const NOW: Duration = Duration::ZERO;

#[tokio::test]
async fn a_created_app_is_there_again_with_the_same_keys() {
    let (first, store) = fresh();
    let state = first.load().await.unwrap();
    assert_eq!((state.generation, state.apps.len()), (0, 0));
    let shop = first.create(&app("shop"), &Suite::ALL).await.unwrap();
    let other = first.create(&app("a.b-c_D"), &[Suite::P256]).await.unwrap();
    assert_eq!(
        (
            shop.generation,
            other.generation,
            shop.app.number,
            other.app.number
        ),
        (1, 2, 1, 2)
    );

    let again = control(&store);
    let state = again.load().await.unwrap();
    assert_eq!(state.generation, 2);
    assert_eq!(
        state
            .apps
            .iter()
            .map(|app| app.keys.app().as_str())
            .collect::<Vec<_>>(),
        ["a.b-c_D", "shop"]
    );
    let served = &state.apps[1];
    let ids: Vec<KeyId> = served
        .keys
        .versions()
        .iter()
        .map(|version| version.id)
        .collect();
    assert_eq!(
        ids,
        shop.app.keys.iter().map(|key| key.id).collect::<Vec<_>>()
    );
    assert_eq!(
        (
            served.number,
            served.token_keys.app(),
            served.token_keys.newest()
        ),
        (1, 1, Some(1))
    );
    assert_eq!(
        (served.state, served.settings),
        (AppState::Active, of_new_app())
    );
    assert!(served.collections.is_empty());
    assert_eq!(
        again.apps().await.unwrap(),
        (2, vec![other.app, shop.app.clone()])
    );
    assert_eq!(again.app(&app("shop")).await.unwrap(), shop.app);
}

#[tokio::test]
async fn a_taken_name_is_refused_and_untouched() {
    let (control, _) = fresh();
    let shop = control.create(&app("shop"), &Suite::ALL).await.unwrap();
    for _ in 0..2 {
        assert!(matches!(
            control.create(&app("shop"), &Suite::ALL).await,
            Err(StoreError::Exists { .. })
        ));
        assert_eq!(
            control.apps().await.unwrap().0,
            control.generation().await.unwrap()
        );
        // An app that waits for its removal still has its name.
        control
            .delete(&app("shop"), Target::App, WEEK)
            .await
            .unwrap();
    }
    assert_eq!(control.app(&app("shop")).await.unwrap().keys, shop.app.keys);
}

#[tokio::test]
async fn a_rotation_adds_the_next_number_which_seals_from_then_on() {
    let (control, _) = fresh();
    let shop = app("shop");
    let made = control.create(&shop, &Suite::ALL).await.unwrap().app;
    let first = made
        .keys
        .iter()
        .find(|key| key.suite == Suite::P256)
        .unwrap()
        .id;
    let second = control.rotate(&shop, P256).await.unwrap();
    let key = *second.key().unwrap();
    assert_eq!(
        (key.suite, key.number, key.state),
        (Suite::P256, 2, KeyState::Active)
    );
    control
        .rotate(&shop, KeyKind::Suite(Suite::Secp256k1))
        .await
        .unwrap();
    let third = control.rotate(&shop, P256).await.unwrap();
    assert_eq!(numbers(&third.app, Suite::P256), [1, 2, 3]);
    assert_eq!(numbers(&third.app, Suite::Secp256k1), [1, 2]);
    let found = keys(&control, "shop").await;
    assert_eq!(
        (third.generation, found.newest(Suite::P256).unwrap().id),
        (4, third.key().unwrap().id)
    );
    assert!(
        [first, key.id, third.key().unwrap().id]
            .iter()
            .all(|id| found.reader(Suite::P256, *id).is_some())
    );
    // An app that was created without a suite can get a key.
    control.create(&app("one"), &[Suite::P256]).await.unwrap();
    let added = control
        .rotate(&app("one"), KeyKind::Suite(Suite::Secp256k1))
        .await
        .unwrap();
    assert_eq!(added.key().unwrap().number, 1);
}

#[tokio::test]
async fn a_token_key_is_rotated_and_stopped_like_any_other_and_never_deleted() {
    let (control, store) = fresh();
    let shop = app("shop");
    control.create(&shop, &[]).await.unwrap();
    let before = served(&control, "shop").await.unwrap().token_keys;
    let second = control.rotate(&shop, KeyKind::Token).await.unwrap();
    assert_eq!(
        (second.target, second.app.token_keys.len()),
        (Target::TokenKey(2), 2)
    );
    let newest = async || served(&control, "shop").await.unwrap().token_keys.newest();
    assert_eq!(newest().await, Some(2));
    assert!(
        !served(&control, "shop")
            .await
            .unwrap()
            .token_keys
            .is_same(&before)
    );
    for (number, left) in [(2, Some(1)), (1, None)] {
        let stopped = control
            .disable(&shop, Target::TokenKey(number))
            .await
            .unwrap();
        assert_eq!(
            stopped.app.token_keys[number as usize - 1].state,
            KeyState::Disabled
        );
        assert_eq!(newest().await, left);
    }
    control.enable(&shop, Target::TokenKey(1)).await.unwrap();
    assert_eq!(newest().await, Some(1));
    let generation = control.generation().await.unwrap();
    let refused = control.delete(&shop, Target::TokenKey(1), WEEK).await;
    assert!(matches!(refused, Err(StoreError::Invalid(_))));
    let refused = control.disable(&shop, Target::TokenKey(3)).await;
    assert!(matches!(
        refused,
        Err(StoreError::NoTokenKey { number: 3, .. })
    ));
    let refused = other_kek(&store).rotate(&shop, KeyKind::Token).await;
    assert!(matches!(refused, Err(StoreError::WrongKek { .. })));
    assert_eq!(control.generation().await.unwrap(), generation);
}

#[tokio::test]
async fn a_disabled_key_neither_opens_nor_seals_until_it_is_enabled() {
    let (control, _) = fresh();
    let shop = app("shop");
    let first = control
        .create(&shop, &[Suite::P256])
        .await
        .unwrap()
        .app
        .keys[0];
    let second = *control.rotate(&shop, P256).await.unwrap().key().unwrap();
    let active = async |key: KeySummary| {
        keys(&control, "shop")
            .await
            .reader(Suite::P256, key.id)
            .is_some()
    };
    let newest = async || {
        keys(&control, "shop")
            .await
            .newest(Suite::P256)
            .map(|version| version.id)
    };

    let disabled = control
        .disable(&shop, Target::Key(second.id))
        .await
        .unwrap();
    assert_eq!(
        disabled.key(),
        Some(&KeySummary {
            state: KeyState::Disabled,
            ..second
        })
    );
    assert_eq!(
        (active(first).await, active(second).await, newest().await),
        (true, false, Some(first.id))
    );
    control.disable(&shop, Target::Key(first.id)).await.unwrap();
    assert_eq!(
        (active(first).await, newest().await),
        (false, None),
        "the last one can be stopped too"
    );
    let third = *control.rotate(&shop, P256).await.unwrap().key().unwrap();
    assert_eq!(
        (third.number, newest().await),
        (3, Some(third.id)),
        "a disabled number is not used again"
    );
    assert_eq!(
        control
            .enable(&shop, Target::Key(first.id))
            .await
            .unwrap()
            .key(),
        Some(&first)
    );
    assert_eq!(
        (active(first).await, active(second).await, newest().await),
        (true, false, Some(third.id))
    );
    let before = control.generation().await.unwrap();
    let again = control.enable(&shop, Target::Key(first.id)).await.unwrap();
    assert_eq!(
        again.generation,
        before + 1,
        "a repetition is a change like any other"
    );
}

#[tokio::test]
async fn a_disabled_app_keeps_all_it_has() {
    let (control, _) = fresh();
    let shop = app("shop");
    let made = control.create(&shop, &[Suite::P256]).await.unwrap().app;
    let stopped = control.disable(&shop, Target::App).await.unwrap().app;
    assert_eq!(
        stopped,
        AppSummary {
            state: AppState::Disabled,
            ..made.clone()
        }
    );
    assert_eq!(
        served(&control, "shop").await.unwrap().state,
        AppState::Disabled
    );
    // The keys of a disabled app can be changed.
    let rotated = control.rotate(&shop, P256).await.unwrap().app;
    assert_eq!((rotated.state, rotated.keys.len()), (AppState::Disabled, 2));
    assert_eq!(
        control.enable(&shop, Target::App).await.unwrap().app.state,
        AppState::Active
    );
}

#[tokio::test]
async fn an_imported_key_opens_and_seals_only_if_it_is_told_to() {
    let (control, _) = fresh();
    let shop = app("shop");
    let made = control
        .create(&shop, &[Suite::P256])
        .await
        .unwrap()
        .app
        .keys[0];
    let newest = async |suite| {
        keys(&control, "shop")
            .await
            .newest(suite)
            .map(|version| version.id)
    };
    let pair = |curve, scalar| KeyPair::from_scalar(curve, &[scalar; 32]).unwrap();
    let import = async |pair, seals| {
        *control
            .import(&shop, pair, seals)
            .await
            .unwrap()
            .key()
            .unwrap()
    };

    let opens = import(pair(Curve::P256, 1), false).await;
    assert_eq!(
        (opens.number, opens.state, opens.seals),
        (2, KeyState::Active, false)
    );
    assert!(
        keys(&control, "shop")
            .await
            .reader(Suite::P256, opens.id)
            .is_some()
    );
    import(pair(Curve::Secp256k1, 1), false).await;
    assert_eq!(
        (newest(Suite::P256).await, newest(Suite::Secp256k1).await),
        (Some(made.id), None)
    );
    // A disabled open-only key that is enabled again still does not seal.
    control.disable(&shop, Target::Key(opens.id)).await.unwrap();
    assert_eq!(
        control
            .enable(&shop, Target::Key(opens.id))
            .await
            .unwrap()
            .key(),
        Some(&opens)
    );
    assert_eq!(newest(Suite::P256).await, Some(made.id));

    let seals = import(pair(Curve::P256, 2), true).await;
    assert_eq!(
        (seals.number, newest(Suite::P256).await),
        (3, Some(seals.id))
    );
    let rotated = control.rotate(&shop, P256).await.unwrap();
    assert_eq!(
        rotated
            .app
            .keys
            .iter()
            .map(|key| key.seals)
            .collect::<Vec<_>>(),
        [true, false, false, true, true]
    );
    for (again, taken) in [(1, opens.id), (2, seals.id)] {
        let refused = control.import(&shop, pair(Curve::P256, again), true).await;
        assert!(matches!(refused, Err(StoreError::KeyTaken { key, .. }) if key == taken));
    }
    let nobody = control
        .import(&app("nobody"), pair(Curve::P256, 3), true)
        .await;
    assert!(matches!(nobody, Err(StoreError::NoApp { .. })));
    assert_eq!(control.generation().await.unwrap(), rotated.generation);
}

#[tokio::test]
async fn a_published_key_is_a_pair_of_its_own_and_one_key_signs_for_all_apps() {
    for suite in Suite::PUBLISHED {
        check_published_keys(suite).await;
    }
}

async fn check_published_keys(suite: Suite) {
    let (control, store) = fresh();
    let shop = app("shop");
    let outside = KeyKind::Outside(suite);
    let made = control.create(&shop, &Suite::ALL).await.unwrap().app;
    let inside = made.keys.iter().find(|key| key.suite == suite).unwrap().id;
    assert!(control.load().await.unwrap().signing_key.is_none());
    for unpublished in [
        Suite::Secp256k1,
        Suite::Xaes,
        Suite::P256Psk,
        Suite::Secp256k1Psk,
    ] {
        let refused = control.rotate(&shop, KeyKind::Outside(unpublished)).await;
        assert!(
            matches!(refused, Err(StoreError::Invalid(why)) if why.contains(unpublished.name()))
        );
    }
    assert!(
        control.load().await.unwrap().signing_key.is_none(),
        "what is refused makes nothing"
    );
    let other = other_kek(&store).rotate(&shop, outside).await;
    assert!(matches!(other, Err(StoreError::WrongKek { .. })));

    let first = *control.rotate(&shop, outside).await.unwrap().key().unwrap();
    assert_eq!(
        (first.suite, first.number, first.origin, first.seals),
        (suite, 2, Origin::Outside, true)
    );
    let found = keys(&control, "shop").await;
    assert_eq!(
        found.newest(suite).unwrap().id,
        inside,
        "engines seal to their own key"
    );
    assert_eq!(found.newest_outside(suite).unwrap().id, first.id);
    assert_eq!(
        found.reader(suite, first.id).unwrap().origin,
        Origin::Outside
    );
    let signer = async || {
        *control
            .load()
            .await
            .unwrap()
            .signing_key
            .unwrap()
            .verifying_key()
    };
    let before = signer().await;
    let second = *control.rotate(&shop, outside).await.unwrap().key().unwrap();
    let found = keys(&control, "shop").await;
    assert_eq!(
        (found.newest_outside(suite).unwrap().id, second.number),
        (second.id, 3)
    );
    control.create(&app("other"), &[]).await.unwrap();
    control.rotate(&app("other"), outside).await.unwrap();
    assert_eq!(signer().await, before);
    // The one before is published again.
    control
        .disable(&shop, Target::Key(second.id))
        .await
        .unwrap();
    assert_eq!(
        keys(&control, "shop")
            .await
            .newest_outside(suite)
            .unwrap()
            .id,
        first.id
    );
}

#[tokio::test]
async fn missing_apps_and_keys_are_not_changed() {
    let (control, store) = fresh();
    let shop = app("shop");
    let nobody = app("nobody");
    let made = control.create(&shop, &[Suite::P256]).await.unwrap().app;
    let no_key = KeyId::from_bytes([0; 5]);
    assert!(matches!(
        control.rotate(&nobody, P256).await,
        Err(StoreError::NoApp { .. })
    ));
    assert!(matches!(
        control.app(&nobody).await,
        Err(StoreError::NoApp { .. })
    ));
    for target in [
        Target::App,
        Target::Key(made.keys[0].id),
        Target::TokenKey(1),
    ] {
        for refused in [
            control.disable(&nobody, target).await,
            control.enable(&nobody, target).await,
            control.delete(&nobody, target, WEEK).await,
            control.restore(&nobody, target).await,
        ] {
            assert!(matches!(refused, Err(StoreError::NoApp { .. })));
        }
    }
    for refused in [
        control.disable(&shop, Target::Key(no_key)).await,
        control.enable(&shop, Target::Key(no_key)).await,
        control.delete(&shop, Target::Key(no_key), WEEK).await,
        control.restore(&shop, Target::Key(no_key)).await,
    ] {
        assert!(matches!(refused, Err(StoreError::NoKey { key, .. }) if key == no_key));
    }
    let other = other_kek(&store);
    assert!(matches!(
        other.rotate(&shop, P256).await,
        Err(StoreError::WrongKek { .. })
    ));
    assert!(matches!(
        other.create(&nobody, &[Suite::P256]).await,
        Err(StoreError::WrongKek { .. })
    ));
    assert!(matches!(
        other.load().await,
        Err(StoreError::WrongKek { .. })
    ));
    assert_eq!(control.apps().await.unwrap(), (1, vec![made.clone()]));
    // A key can be disabled by an operator without the KEK.
    other
        .disable(&shop, Target::Key(made.keys[0].id))
        .await
        .unwrap();
}

#[tokio::test]
async fn settings_change_one_by_one() {
    let (control, _) = fresh();
    let shop = app("shop");
    control.create(&shop, &[Suite::P256]).await.unwrap();
    let to = |ms| move |settings: &mut Settings| settings.epoch = EpochLifetime::from_ms(ms).ok();
    for ms in [1, 15_000, 1_000] {
        let changed = control.configure(&shop, to(ms)).await.unwrap().app;
        assert_eq!(changed.settings.epoch.map(EpochLifetime::as_ms), Some(ms));
        assert_eq!(
            served(&control, "shop").await.unwrap().settings,
            changed.settings
        );
    }
    let rotated = control.rotate(&shop, P256).await.unwrap().app;
    assert_eq!(
        rotated.settings.epoch,
        EpochLifetime::from_ms(1_000).ok(),
        "keys change alone"
    );
    let set = control
        .configure(&shop, |settings| settings.format = DefaultFormat::Evervault)
        .await
        .unwrap()
        .app
        .settings;
    assert_eq!(
        (set.format, set.epoch),
        (DefaultFormat::Evervault, EpochLifetime::from_ms(1_000).ok())
    );
    control
        .configure(&shop, |settings| settings.format = DefaultFormat::Native)
        .await
        .unwrap();
    let off = control.configure(&shop, to(0)).await.unwrap().app;
    assert!(off.settings == Settings::default() && off.keys.len() == 2);
    let refused = control.configure(&app("nobody"), to(1)).await;
    assert!(matches!(refused, Err(StoreError::NoApp { .. })));
    assert_eq!(control.generation().await.unwrap(), 8);
}

#[tokio::test]
async fn a_deleted_key_stops_at_once_and_is_gone_after_its_delay() {
    let (control, _) = fresh();
    let shop = app("shop");
    control.create(&shop, &[Suite::P256]).await.unwrap();
    let second = *control.rotate(&shop, P256).await.unwrap().key().unwrap();
    let target = Target::Key(second.id);
    let deleted = *control
        .delete(&shop, target, WEEK)
        .await
        .unwrap()
        .key()
        .unwrap();
    let due = deleted.delete_unix_s.unwrap();
    assert_eq!(
        deleted,
        KeySummary {
            state: KeyState::Disabled,
            delete_unix_s: Some(due),
            ..second
        }
    );
    let opens = async || {
        keys(&control, "shop")
            .await
            .reader(Suite::P256, second.id)
            .is_some()
    };
    assert!(!opens().await);
    assert!(matches!(
        control.enable(&shop, target).await,
        Err(StoreError::Deleted { .. })
    ));
    assert_eq!(control.load().await.unwrap().removal_unix_s, Some(due));
    assert_eq!(control.maintain(due - 1).await.unwrap(), 0);
    assert_eq!(
        control.restore(&shop, target).await.unwrap().key(),
        Some(&second)
    );
    assert!(
        opens().await && control.maintain(u64::MAX).await.unwrap() == 0,
        "it stays"
    );
    assert_eq!(control.load().await.unwrap().removal_unix_s, None);

    // A restored target has its former state: a disabled one stays disabled.
    control.disable(&shop, target).await.unwrap();
    control.delete(&shop, target, WEEK).await.unwrap();
    assert_eq!(
        control
            .restore(&shop, target)
            .await
            .unwrap()
            .key()
            .unwrap()
            .state,
        KeyState::Disabled
    );
    control.enable(&shop, target).await.unwrap();

    control.delete(&shop, target, NOW).await.unwrap();
    assert!(
        matches!(
            control.restore(&shop, target).await,
            Err(StoreError::Deleted { .. })
        ),
        "too late"
    );
    assert_eq!(control.maintain(unix_s()).await.unwrap(), 1);
    assert_eq!(
        numbers(&control.app(&shop).await.unwrap(), Suite::P256),
        [1]
    );
    assert!(matches!(
        control.restore(&shop, target).await,
        Err(StoreError::NoKey { .. })
    ));
    let third = control.rotate(&shop, P256).await.unwrap();
    assert_eq!(
        third.key().unwrap().number,
        3,
        "the number that went is not used again"
    );
}

#[tokio::test]
async fn a_deleted_app_stops_at_once_and_leaves_its_number() {
    let (control, _) = fresh();
    let shop = app("shop");
    let made = control.create(&shop, &[Suite::P256]).await.unwrap().app;
    let deleted = control.delete(&shop, Target::App, WEEK).await.unwrap().app;
    assert_eq!(
        (deleted.state, deleted.delete_unix_s.is_some()),
        (AppState::Disabled, true)
    );
    assert_eq!(
        served(&control, "shop").await.unwrap().state,
        AppState::Disabled
    );
    let pair = KeyPair::from_scalar(Curve::P256, &[1; 32]).unwrap();
    for refused in [
        control.enable(&shop, Target::App).await,
        control.rotate(&shop, P256).await,
        control.rotate(&shop, KeyKind::Token).await,
        control.import(&shop, pair, true).await,
    ] {
        assert!(
            matches!(refused, Err(StoreError::Deleted { .. })),
            "{refused:?}"
        );
    }
    assert_eq!(control.restore(&shop, Target::App).await.unwrap().app, made);
    control.delete(&shop, Target::App, NOW).await.unwrap();
    assert_eq!(control.maintain(unix_s()).await.unwrap(), 1);
    assert!(served(&control, "shop").await.is_none() && control.apps().await.unwrap().1.is_empty());
    assert!(matches!(
        control.restore(&shop, Target::App).await,
        Err(StoreError::NoApp { .. })
    ));
    let again = control.create(&shop, &[Suite::P256]).await.unwrap().app;
    assert_eq!(again.number, made.number + 1);
    assert_eq!(
        control.create(&app("other"), &[]).await.unwrap().app.number,
        made.number + 2
    );
}

fn instance(id: &str, generation: u64) -> Instance {
    let address = "127.0.0.1:7443".into();
    let version = "0.1.0".into();
    Instance {
        id: id.into(),
        address,
        version,
        generation,
        age: Duration::ZERO,
    }
}

#[tokio::test]
async fn a_name_is_used_again_when_no_instance_may_serve_the_old_app() {
    let (control, _) = fresh();
    let shop = app("shop");
    control.create(&shop, &[]).await.unwrap();
    control.beat(&instance("a", 1)).await.unwrap();
    control.beat(&instance("b", 1)).await.unwrap();
    control.delete(&shop, Target::App, NOW).await.unwrap();
    control.maintain(u64::MAX).await.unwrap();
    let gone = control.generation().await.unwrap();
    assert_eq!(gone, 3);
    let behind = async || match control.create(&shop, &[]).await {
        Err(StoreError::Conflict {
            key,
            generation,
            instances,
        }) => {
            assert_eq!((&*key, generation), ("app/shop", gone));
            instances
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(behind().await, ["127.0.0.1:7443 (a)", "127.0.0.1:7443 (b)"]);
    control.beat(&instance("a", 3)).await.unwrap();
    assert_eq!(behind().await, ["127.0.0.1:7443 (b)"]);
    // An instance that starts can be about to load the old records.
    control.beat(&instance("c", 0)).await.unwrap();
    assert_eq!(behind().await, ["127.0.0.1:7443 (b)", "127.0.0.1:7443 (c)"]);
    control
        .create(&app("fresh"), &[])
        .await
        .expect("a new name is no one's");
    control.leave("c").await.unwrap();
    control.beat(&instance("b", 4)).await.unwrap();
    assert_eq!(control.create(&shop, &[]).await.unwrap().app.number, 3);
    assert_eq!(
        control
            .instances()
            .await
            .unwrap()
            .iter()
            .map(|it| &*it.id)
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_at_once_all_come_to_be() {
    let (control, store) = fresh();
    control.create(&app("shop"), &Suite::ALL).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for suite in Suite::ALL {
        for _ in 0..6 {
            let control = super::tests::control(&store);
            tasks.spawn(async move {
                control
                    .rotate(&app("shop"), KeyKind::Suite(suite))
                    .await
                    .unwrap()
                    .generation
            });
        }
    }
    let mut generations = tasks.join_all().await;
    generations.sort_unstable();
    assert!(generations.into_iter().eq(2..=37));
    let found = control.app(&app("shop")).await.unwrap();
    assert_eq!(
        Suite::ALL.map(|suite| numbers(&found, suite)),
        [[1, 2, 3, 4, 5, 6, 7]; 6]
    );
    assert_eq!(keys(&control, "shop").await.versions().len(), 42);

    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let control = super::tests::control(&store);
        tasks.spawn(async move { usize::from(control.create(&app("new"), &[]).await.is_ok()) });
    }
    assert_eq!(
        tasks.join_all().await.iter().sum::<usize>(),
        1,
        "of many who create one name one succeeds"
    );
}

#[tokio::test]
async fn stored_keys_of_all_suites_seal_under_their_suite() {
    let (control, store) = fresh();
    control.create(&app("shop"), &Suite::ALL).await.unwrap();
    let keys = keys(&super::tests::control(&store), "shop").await;
    for suite in Suite::ALL {
        let version = keys.newest(suite).unwrap();
        assert_eq!(version.suite(), suite);
        // A key whose curve is not that of its suite has another id, and seals nothing.
        Sealer::new(
            keys.app(),
            Arc::clone(version),
            KeyScope::Field,
            Encoding::Text,
            b"",
        )
        .unwrap();
    }
}

#[test]
fn debug_output_of_key_holders_contains_no_key() {
    let (control, _) = fresh();
    assert_eq!(format!("{control:?}"), "Control { .. }");
}

#[tokio::test]
async fn requests_write_a_suite_only_if_its_envelopes_open_again() {
    let (first, store) = fresh();
    let shop = app("shop");
    let p256 = first.create(&shop, &[Suite::P256]).await.unwrap().app.keys[0].id;
    let set = async |write_suite, read: &[Suite]| {
        let read_suites: SuiteSet = read.iter().copied().collect();
        let change = move |settings: &mut Settings| {
            *settings = Settings {
                write_suite,
                read_suites,
                ..*settings
            }
        };
        first
            .configure(&shop, change)
            .await
            .map(|changed| changed.app.settings)
    };
    for (write, read, why) in [
        (
            Suite::Xaes,
            &Suite::ALL[..],
            "app shop has no active xaes key; rotate xaes first",
        ),
        (
            Suite::P256,
            &[Suite::Xaes],
            "read_suites must have the write_suite p256",
        ),
        (
            Suite::P256,
            &[],
            "read_suites must have the write_suite p256",
        ),
    ] {
        assert!(
            matches!(set(write, read).await, Err(StoreError::Invalid(found)) if found == why),
            "{why}"
        );
    }
    let xaes = first
        .rotate(&shop, KeyKind::Suite(Suite::Xaes))
        .await
        .unwrap()
        .key()
        .unwrap()
        .id;
    let reads = async || {
        let keys = keys(&control(&store), "shop").await;
        (
            keys.reader(Suite::P256, p256).is_some(),
            keys.reader(Suite::Xaes, xaes).is_some(),
        )
    };
    for (write, read, opens) in [
        (Suite::Xaes, &[Suite::P256, Suite::Xaes][..], (true, true)),
        (Suite::Xaes, &[Suite::Xaes], (false, true)),
        (Suite::P256, &[Suite::P256], (true, false)),
        (Suite::P256, &Suite::ALL, (true, true)),
    ] {
        let settings = set(write, read).await.unwrap();
        assert_eq!(
            served(&control(&store), "shop").await.unwrap().settings,
            settings
        );
        assert_eq!(
            (settings.write_suite, reads().await),
            (write, opens),
            "{read:?}"
        );
    }
    // A leaked key is disabled at once, even if nothing is sealed after that.
    set(Suite::Xaes, &Suite::ALL).await.unwrap();
    first.disable(&shop, Target::Key(xaes)).await.unwrap();
    assert!(keys(&first, "shop").await.newest(Suite::Xaes).is_none());
}
