use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use sealwire_apps::{KeyKind, Settings, Target};
use sealwire_crypto::{AppId, Encoding, EpochLifetime, Kek, Sealer, Suite};
use sealwire_store::{Changes, Commit, ControlStore, MemoryStore, Snapshot};

use super::*;
use sealwire_telemetry::{Phase, State};

fn control(store: &MemoryStore) -> Control {
    Control::new(
        Arc::new(store.clone()),
        Kek::from_hex(&"5a".repeat(32)).unwrap(),
    )
}

fn shop() -> AppId {
    AppId::new("shop").unwrap()
}

async fn serving(store: &MemoryStore) -> Apps {
    Apps::load(control(store), "127.0.0.1:7443".into(), None)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_setting_changes_alone_and_what_was_made_ahead_stays() {
    let store = MemoryStore::default();
    let control = control(&store);
    control.create(&shop(), &Suite::ALL).await.unwrap();
    let apps = serving(&store).await;
    let find = || apps.find("shop").1.unwrap();
    let before = find();
    assert_eq!(
        before.settings,
        Settings {
            write_suite: Suite::P256Psk,
            ..Settings::default()
        }
    );

    let epoch = EpochLifetime::from_ms(5).ok();
    control
        .configure(&shop(), move |settings| settings.epoch = epoch)
        .await
        .unwrap();
    apps.refresh().await.unwrap();
    assert_eq!((find().settings.epoch, apps.generation()), (epoch, 2));
    assert!(
        Arc::ptr_eq(&before.keys, &find().keys)
            && Arc::ptr_eq(&before.token_keys, &find().token_keys)
    );

    control
        .rotate(&shop(), KeyKind::Suite(Suite::P256))
        .await
        .unwrap();
    apps.refresh().await.unwrap();
    assert_eq!(find().settings.epoch, epoch);
    assert!(
        !Arc::ptr_eq(&before.keys, &find().keys),
        "other keys are taken"
    );
    assert!(Arc::ptr_eq(&before.token_keys, &find().token_keys));

    control.rotate(&shop(), KeyKind::Token).await.unwrap();
    apps.refresh().await.unwrap();
    assert!(!Arc::ptr_eq(&before.token_keys, &find().token_keys));
}

#[tokio::test]
async fn an_epoch_ends_with_its_keys_its_setting_its_app_and_rather_early_than_late() {
    let store = MemoryStore::default();
    let control = control(&store);
    let first = control
        .create(&shop(), &[Suite::P256])
        .await
        .unwrap()
        .app
        .keys[0]
        .id;
    let lifetime = EpochLifetime::from_ms(15_000).unwrap();
    control
        .configure(&shop(), move |settings| settings.epoch = Some(lifetime))
        .await
        .unwrap();
    let apps = serving(&store).await;
    let begin = || {
        let keys = Arc::clone(&apps.find("shop").1.unwrap().keys);
        let newest = Arc::clone(keys.newest(Suite::P256).unwrap());
        Sealer::in_epoch(&shop(), newest, lifetime, Instant::now, Encoding::Text, b"").unwrap();
        keys
    };
    let has_epoch = |keys: &AppKeys| format!("{keys:?}").contains("epoch: true");
    let keys = begin();
    let now = Instant::now();
    for (later_ms, lives) in [(0, true), (13_000, true), (14_000, false)] {
        apps.end_epochs(now + Duration::from_millis(later_ms));
        assert_eq!(has_epoch(&keys), lives, "{later_ms}");
    }

    control
        .configure(&shop(), |settings| settings.epoch = None)
        .await
        .unwrap();
    begin();
    apps.refresh().await.unwrap();
    assert!(!has_epoch(&keys), "at once");

    control
        .configure(&shop(), move |settings| settings.epoch = Some(lifetime))
        .await
        .unwrap();
    apps.refresh().await.unwrap();
    for change in 0..3 {
        let keys = begin();
        assert!(has_epoch(&keys));
        let changed = match change {
            0 => control.rotate(&shop(), KeyKind::Suite(Suite::P256)).await,
            1 => control.disable(&shop(), Target::Key(first)).await,
            _ => control.disable(&shop(), Target::App).await,
        };
        changed.unwrap();
        apps.refresh().await.unwrap();
        assert!(!has_epoch(&keys), "at once");
    }
}

/// A store in memory that shows who was there when it was loaded.
#[derive(Default)]
struct RecordingStore {
    store: MemoryStore,
    at_load: Mutex<Vec<Vec<u64>>>,
    looks: AtomicU32,
    beats: AtomicU32,
    /// The beat of that number fails, counted from 1.
    lost_beat: AtomicU32,
}

async fn served(store: &dyn ControlStore) -> Vec<u64> {
    store
        .instances(Duration::from_secs(90))
        .await
        .unwrap()
        .iter()
        .map(|instance| instance.generation)
        .collect()
}

#[async_trait::async_trait]
impl ControlStore for RecordingStore {
    async fn generation(&self) -> Result<u64, StoreError> {
        self.looks.fetch_add(1, Relaxed);
        self.store.generation().await
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        let served = served(&self.store).await;
        self.at_load.lock().unwrap().push(served);
        self.store.load().await
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        self.store.read(key).await
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        self.store.singles(after, limit).await
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        self.store.commit_all(base, changes).await
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        self.store.replace(base, state).await
    }

    async fn changed(&self) {
        self.store.changed().await;
    }

    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        if self.beats.fetch_add(1, Relaxed) + 1 == self.lost_beat.load(Relaxed) {
            return Err(StoreError::Unavailable("lost".into()));
        }
        self.store.beat(instance).await
    }

    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        self.store.lease(name, holder, time).await
    }

    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.store.leave(id).await
    }

    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        self.store.instances(age_max).await
    }
}

#[tokio::test]
async fn instance_reports_its_generation_from_before_its_first_load_until_it_leaves() {
    let noting = Arc::new(RecordingStore::default());
    let store = noting.store.clone();
    let control = control(&store);
    control.create(&shop(), &[]).await.unwrap();
    let wrong = Control::new(
        Arc::new(store.clone()),
        Kek::from_hex(&"a5".repeat(32)).unwrap(),
    );
    assert!(Apps::load(wrong, "x".into(), None).await.is_err());
    assert!(served(&store).await.is_empty(), "it never served");

    let watched = || Control::new(noting.clone(), Kek::from_hex(&"5a".repeat(32)).unwrap());
    for lost in [1, 2] {
        noting.beats.store(0, Relaxed);
        noting.lost_beat.store(lost, Relaxed);
        assert!(Apps::load(watched(), "x".into(), None).await.is_err());
        assert!(
            served(&store).await.is_empty(),
            "it never served, beat {lost}"
        );
    }
    noting.at_load.lock().unwrap().clear();
    let apps = Apps::load(watched(), "127.0.0.1:7443".into(), None)
        .await
        .unwrap();
    assert_eq!(
        *noting.at_load.lock().unwrap(),
        [[0]],
        "before its first load"
    );
    assert_eq!(served(&store).await, [1]);
    apps.set_listen_address("127.0.0.1:1".into());
    control.disable(&shop(), Target::App).await.unwrap();
    apps.read_store(false).await.unwrap();
    apps.maintain().await.unwrap();
    assert_eq!(
        (
            served(&store).await,
            &*control.instances().await.unwrap()[0].address
        ),
        (vec![2], "127.0.0.1:1")
    );
    apps.leave().await.unwrap();
    assert!(served(&store).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_for_a_generation_cost_at_most_a_store_read_per_second() {
    let noting = Arc::new(RecordingStore::default());
    let control = control(&noting.store);
    control.create(&shop(), &[]).await.unwrap();
    let watched = Control::new(noting.clone(), Kek::from_hex(&"5a".repeat(32)).unwrap());
    let apps = Arc::new(
        Apps::load(watched, "127.0.0.1:7443".into(), None)
            .await
            .unwrap(),
    );
    apps.set_listen_address("127.0.0.1:1".into());
    let admin = Arc::new(Telemetry::default());
    let watch =
        tokio::spawn(Arc::clone(&apps).watch(Duration::from_secs(3_600), None, Arc::clone(&admin)));
    let settle = || tokio::time::sleep(Duration::from_millis(100));
    settle().await;
    assert_eq!(
        control.instances().await.unwrap()[0].address,
        "127.0.0.1:1",
        "said at once"
    );
    let looks = noting.looks.load(Relaxed);
    let beats = noting.beats.load(Relaxed);
    for _ in 0..10_000 {
        apps.request_refresh();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let asked = noting.looks.load(Relaxed) - looks;
    assert!((9..=11).contains(&asked), "{asked} looks in 10 s");
    assert_eq!(noting.beats.load(Relaxed), beats, "nothing new to say");
    // A change is told without a caller's help, and said.
    control.disable(&shop(), Target::App).await.unwrap();
    settle().await;
    assert_eq!(
        (apps.generation(), served(&noting.store).await),
        (2, vec![2])
    );
    assert_eq!(noting.beats.load(Relaxed), beats + 1);
    // The first who asks after a while is not kept waiting.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let looks = noting.looks.load(Relaxed);
    apps.request_refresh();
    settle().await;
    assert_eq!(noting.looks.load(Relaxed), looks + 1);
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn watch_serves_notified_changes_and_removes_due_records() {
    let store = MemoryStore::default();
    let control = control(&store);
    control.create(&shop(), &[]).await.unwrap();
    let apps = Arc::new(serving(&store).await);
    let admin = Arc::new(Telemetry::default());
    admin.readiness.enter(Phase::Ready);
    let watch = tokio::spawn(Arc::clone(&apps).watch(
        Duration::from_secs(30),
        Some(Duration::from_secs(60)),
        Arc::clone(&admin),
    ));
    let becomes = async |generation| {
        let begun = tokio::time::Instant::now();
        while apps.generation() != generation {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "it waits for the poll"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    control.disable(&shop(), Target::App).await.unwrap();
    becomes(2).await;
    assert_eq!(apps.find("shop").1.unwrap().state, AppState::Disabled);
    control
        .delete(&shop(), Target::App, Duration::ZERO)
        .await
        .unwrap();
    becomes(4).await;
    assert!(apps.find("shop").1.is_none());
    assert_eq!(admin.readiness.state(), State::Ready);

    // A record that nobody can read: the last good state stays in use.
    control
        .create(&AppId::new("kept").unwrap(), &[])
        .await
        .unwrap();
    becomes(5).await;
    control
        .store()
        .commit(5, "app/bad", Some(b"{}"))
        .await
        .unwrap();
    let begun = tokio::time::Instant::now();
    while admin.readiness.state() == State::Ready {
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody said so");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(
        admin.readiness.state(),
        State::ReadyWithoutStore("failing: store".into())
    );
    // Permissions are known for a time only.
    tokio::time::sleep_until(begun + Duration::from_secs(50)).await;
    assert!(admin.readiness.state().is_ready());
    tokio::time::sleep_until(begun + Duration::from_secs(70)).await;
    assert_eq!(
        admin.readiness.state(),
        State::NotReady("failing: store, permissions".into())
    );
    assert!(apps.generation() == 5 && apps.find("kept").1.is_some());
    control.store().commit(6, "app/bad", None).await.unwrap();
    becomes(7).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(admin.readiness.state(), State::Ready);
    watch.abort();
}
