//! Sweeps over a store in memory. Time stands still but for what the sweeper sleeps.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use sealwire_apps::{CollectionKind, CollectionName, CollectionRules, Scope, Target};
use sealwire_crypto::{AppId, Kek};
use sealwire_records::token::Format;
use sealwire_store::{ControlStore as _, MemoryStore, ObjectRow, Row, TokenId};

use super::*;
use crate::subjects::{erased_row, key_row, unfinished};

const NOW: u64 = 1_000_000;

/// Keeps all that it is told.
#[derive(Default)]
struct TestRecorder {
    is_full: AtomicBool,
    counted: Mutex<u64>,
    records: Mutex<Vec<Swept>>,
    outcomes: Mutex<Vec<SweepOutcome>>,
}

impl SweepRecorder for Arc<TestRecorder> {
    fn is_ready(&self) -> bool {
        !self.is_full.load(Ordering::SeqCst)
    }

    fn count(&self, _: SweepAction, rows: u64) {
        *self.counted.lock().unwrap() += rows;
    }

    fn record(&self, swept: &Swept) {
        self.records.lock().unwrap().push(swept.clone());
    }

    fn count_sweep(&self, outcome: SweepOutcome) {
        self.outcomes.lock().unwrap().push(outcome);
    }
}

struct SweepWorld {
    store: Arc<MemoryStore>,
    control: Control,
    test_recorder: Arc<TestRecorder>,
    drain: watch::Sender<bool>,
}

fn app() -> AppId {
    AppId::new("shop").unwrap()
}

impl SweepWorld {
    /// An app with collections 1 and 2, which keep archived rows for ever and for 100 seconds.
    async fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let kek = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
        let control = Control::new(Arc::<MemoryStore>::clone(&store), kek);
        control.create(&app(), &[]).await.unwrap();
        for (name, retention_s) in [("kept", None), ("short", Some(100))] {
            let kind = CollectionKind::Random;
            let format = Format::Opaque;
            let scope = Scope::Collection;
            let rules = CollectionRules {
                kind,
                format,
                scope,
                expires_s: None,
                retention_s,
            };
            control
                .create_collection(&app(), &CollectionName::new(name).unwrap(), rules)
                .await
                .unwrap();
        }
        Self {
            store,
            control,
            test_recorder: Arc::default(),
            drain: watch::Sender::new(false),
        }
    }

    fn sweeper(&self, instance: &str, rows_per_s: u64) -> Sweeper<Arc<TestRecorder>> {
        let control = self.control.clone();
        let tokens = Arc::clone(&self.store) as Arc<dyn TokenStore>;
        let objects = Arc::clone(&self.store) as Arc<dyn ObjectStore>;
        let options = sealwire_settings::SweepSettings {
            interval_s: 60,
            rows_per_s,
        };
        let recorder = Arc::clone(&self.test_recorder);
        Sweeper::new(
            control,
            (tokens, objects),
            instance.into(),
            options,
            recorder,
            || NOW,
            self.drain.subscribe(),
        )
    }

    /// Puts rows without any time from id `from` on.
    async fn fill(&self, map: MapId, from: u64, count: u64) {
        let rows: Vec<_> = (from..from + count)
            .map(|id| (map, row(id, None, None)))
            .collect();
        self.store.put(&rows).await.unwrap();
    }

    /// The ids of a map, with those of archived rows negative.
    async fn ids(&self, map: MapId) -> Vec<i64> {
        let mut rows = Vec::new();
        let mut after = (
            MapId {
                app: map.app,
                collection: map.collection - 1,
            },
            TokenId([0xff; 16]),
        );
        loop {
            let page = self.store.scan(Some(after), 1_000).await.unwrap();
            let Some(last) = page.last() else { return rows };
            after = (last.0, last.1.id);
            for (_, row) in page.into_iter().filter(|(found, _)| *found == map) {
                let id = i64::from_be_bytes(row.id.0[8..].try_into().unwrap());
                rows.push(if row.archived.is_some() { -id } else { id });
            }
        }
    }

    fn records(&self) -> Vec<(SweepAction, Option<String>, u64)> {
        let records = self.test_recorder.records.lock().unwrap();
        records
            .iter()
            .map(|swept| (swept.action, swept.collection.clone(), swept.rows))
            .collect()
    }
}

fn row(id: u64, expires: Option<u64>, archived: Option<u64>) -> Row {
    let id = TokenId(u128::from(id).to_be_bytes());
    Row {
        id,
        fingerprint: None,
        sealed: "sealed".into(),
        tags: Vec::new(),
        expires,
        created: 1,
        archived,
        subject: None,
    }
}

const KEPT: MapId = MapId {
    app: 1,
    collection: 1,
};
const SHORT: MapId = MapId {
    app: 1,
    collection: 2,
};

#[tokio::test(start_paused = true)]
async fn rows_go_when_their_time_has_come() {
    let world = SweepWorld::new().await;
    let rows = [
        row(1, None, None),
        row(2, Some(NOW - 61), None),
        row(3, Some(NOW - 60), None),
        row(4, Some(NOW + 1), None),
        row(5, None, Some(NOW - 100)),
        row(6, None, Some(NOW - 101)),
        row(7, None, Some(0)),
    ];
    // No collection has these numbers yet: nothing says that they were deleted.
    let future = MapId {
        app: 1,
        collection: 3,
    };
    let foreign = MapId {
        app: 2,
        collection: 1,
    };
    for map in [KEPT, SHORT, future, foreign] {
        world
            .store
            .put(&rows.clone().map(|row| (map, row)))
            .await
            .unwrap();
    }
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.ids(KEPT).await, [1, -2, 3, 4, -5, -6, -7]);
    assert_eq!(world.ids(SHORT).await, [1, -2, 3, 4, -5]);
    assert_eq!(world.ids(future).await, [1, 2, 3, 4, -5, -6, -7]);
    assert_eq!(world.ids(foreign).await, [1, 2, 3, 4, -5, -6, -7]);
    let kept = Some("kept".to_owned());
    let short = Some("short".to_owned());
    let expected = [
        (SweepAction::Archived, kept, 1),
        (SweepAction::Archived, short.clone(), 1),
        (SweepAction::Pruned, short, 2),
    ];
    assert_eq!(world.records(), expected);
    assert_eq!(*world.test_recorder.counted.lock().unwrap(), 4);
}

fn object(id: u128, expires: Option<u64>, archived: Option<u64>) -> ObjectRow {
    ObjectRow {
        id: ObjectId(id.to_be_bytes()),
        version: 1,
        created: 1,
        updated: 1,
        expires,
        archived,
        subject: None,
        key: [0; 5],
        tags: Vec::new(),
        unique: Vec::new(),
        terms: Vec::new(),
        sealed: "sealed".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn objects_go_as_token_rows_do() {
    let world = SweepWorld::new().await;
    let rows = [
        object(1, None, None),
        object(2, Some(NOW - 61), None),
        object(3, None, Some(NOW - 101)),
    ];
    for map in [KEPT, SHORT] {
        world
            .store
            .put_objects(&rows.clone().map(|row| (map, row)))
            .await
            .unwrap();
    }
    let left = async |map: MapId| {
        let rows = world.store.scan_objects(None, 100).await.unwrap();
        let rows = rows.into_iter().filter(|(of, _)| *of == map);
        rows.map(|(_, row)| (row.id.0[15], row.archived.is_some()))
            .collect::<Vec<_>>()
    };
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(left(KEPT).await, [(1, false), (2, true), (3, true)]);
    assert_eq!(left(SHORT).await, [(1, false), (2, true)]);
    let short = CollectionName::new("short").unwrap();
    world
        .control
        .delete_collection(&app(), &short)
        .await
        .unwrap();
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!((left(KEPT).await.len(), left(SHORT).await.len()), (3, 0));
    assert_eq!(*world.test_recorder.counted.lock().unwrap(), 5);
}

/// Returns an object of a subject, sealed under a version of the subject's key.
fn object_of(id: u128, subject: SubjectId, version: u64) -> ObjectRow {
    let sealed = [&[2][..], &version.to_be_bytes(), &[0; 4]].concat().into();
    ObjectRow {
        subject: Some(subject),
        sealed,
        ..object(id, None, None)
    }
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_erasure_of_a_subject_is_finished() {
    let world = SweepWorld::new().await;
    let [erased, back, whole] = [1, 2, 3].map(|n| SubjectId([n; 16]));
    let subjects = MapId::of_subjects(1);
    let marks = MapId::of_erasures(1);
    let key = |id: SubjectId, version| {
        key_row(
            id,
            version,
            1,
            if version % 2 == 1 {
                vec![1]
            } else {
                Vec::new()
            },
        )
    };
    let mark = |id, version| unfinished(id, version, 1, None).row().unwrap().clone();
    // The first subject was erased and has 1,201 objects left. The second one was erased, too, and
    // came back.
    let keys = [erased_row(&key(erased, 1), 1), key(back, 3), key(whole, 1)];
    world
        .store
        .put_objects(&keys.map(|row| (subjects, row)))
        .await
        .unwrap();
    world
        .store
        .put_objects(&[mark(erased, 2), mark(back, 2)].map(|row| (marks, row)))
        .await
        .unwrap();
    let mut rows: Vec<_> = (0..1_200)
        .map(|n| ([KEPT, SHORT][n % 2], object_of(n as u128, erased, 1)))
        .collect();
    rows.push((
        KEPT,
        ObjectRow {
            archived: Some(1),
            ..object_of(2_000, erased, 1)
        },
    ));
    rows.push((KEPT, object_of(2_001, back, 1)));
    rows.push((KEPT, object_of(2_002, back, 3)));
    rows.push((KEPT, object_of(2_003, whole, 1)));
    rows.push((KEPT, object(2_004, None, None)));
    world.store.put_objects(&rows).await.unwrap();
    let token = |id: u64, subject, version: u64| {
        let sealed = [&[3, 0, 0, 0, 1], &version.to_be_bytes()[..]]
            .concat()
            .into();
        Row {
            subject,
            sealed,
            ..row(id, None, None)
        }
    };
    let tokens: Vec<_> = (1..=1_100)
        .map(|n| ([KEPT, SHORT][n as usize % 2], token(n, Some(erased), 1)))
        .collect();
    world.store.put(&tokens).await.unwrap();
    let others = [
        token(2_001, Some(back), 1),
        token(2_002, Some(back), 3),
        token(2_003, Some(whole), 1),
        token(2_004, None, 0),
    ];
    world
        .store
        .put(&others.map(|row| (KEPT, row)))
        .await
        .unwrap();
    for round in 0..2 {
        assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
        assert_eq!(
            (world.ids(KEPT).await, world.ids(SHORT).await),
            (vec![2_002, 2_003, 2_004], vec![])
        );
        let left = world.store.scan_objects(None, 5_000).await.unwrap();
        let ids: Vec<u128> = left
            .iter()
            .map(|(_, row)| u128::from_be_bytes(row.id.0))
            .collect();
        assert_eq!(ids[..3], [2_002, 2_003, 2_004], "{round}");
        let keys: Vec<_> = left[3..]
            .iter()
            .map(|(map, row)| (*map, row.version))
            .collect();
        assert_eq!(keys, [(subjects, 2), (subjects, 3), (subjects, 1)]);
        assert_eq!(*world.test_recorder.counted.lock().unwrap(), 2_303);
    }
    assert_eq!(
        world.records(),
        [
            (SweepAction::Erased, None, 2_301),
            (SweepAction::Erased, None, 2)
        ]
    );
    // The keys go with their app, and not before.
    world
        .control
        .delete(&app(), Target::App, Duration::from_secs(3_600))
        .await
        .unwrap();
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.store.scan_objects(None, 100).await.unwrap().len(), 6);
    world.control.maintain(u64::MAX).await.unwrap();
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.store.scan_objects(None, 100).await.unwrap().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_is_stopped_is_recorded_and_goes_on() {
    let world = SweepWorld::new().await;
    let subject = SubjectId([1; 16]);
    let marks = MapId::of_erasures(1);
    let mark = unfinished(subject, 2, 1, None).row().unwrap().clone();
    world.store.put_objects(&[(marks, mark)]).await.unwrap();
    let rows: Vec<_> = (0..30).map(|n| (KEPT, object_of(n, subject, 1))).collect();
    world.store.put_objects(&rows).await.unwrap();
    // At this rate a statement removes ten rows, and then the sweep rests for a second.
    let mut sweeper = world.sweeper("a", 50);
    sweeper.options.rows_per_s = 50;
    let stopped = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        world.drain.send(true).unwrap();
    };
    let (outcome, ()) = tokio::join!(sweeper.sweep(), stopped);
    assert!(matches!(outcome, Err(End::Outcome(SweepOutcome::Stopped))));
    let left = world.store.scan_objects(None, 100).await.unwrap().len() as u64;
    assert!((2..31).contains(&left), "{left}");
    assert_eq!(world.records(), [(SweepAction::Erased, None, 31 - left)]);
    world.drain.send(false).unwrap();
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.store.scan_objects(None, 100).await.unwrap().len(), 0);
    assert_eq!(*world.test_recorder.counted.lock().unwrap(), 30);
}

#[tokio::test(start_paused = true)]
async fn rows_of_deleted_collections_and_apps_go() {
    let world = SweepWorld::new().await;
    world.fill(KEPT, 0, 10).await;
    world.fill(SHORT, 0, 2_500).await;
    let short = CollectionName::new("short").unwrap();
    world
        .control
        .delete_collection(&app(), &short)
        .await
        .unwrap();
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(
        (world.ids(KEPT).await.len(), world.ids(SHORT).await.len()),
        (10, 0)
    );
    assert_eq!(
        world.records(),
        [(SweepAction::Erased, Some("short".to_owned()), 2_500)]
    );
    // An app that can be restored keeps its rows.
    world
        .control
        .delete(&app(), Target::App, Duration::from_secs(3_600))
        .await
        .unwrap();
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.ids(KEPT).await.len(), 10);
    world.control.maintain(u64::MAX).await.unwrap();
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.ids(KEPT).await.len(), 0);
    assert_eq!(
        world.records().last(),
        Some(&(SweepAction::Erased, None, 10))
    );
}

#[tokio::test(start_paused = true)]
async fn a_sweep_takes_the_time_that_its_rate_allows() {
    for (rows_per_s, seconds) in [(100, 50), (1_000, 5), (5_000, 1)] {
        let world = SweepWorld::new().await;
        world.fill(SHORT, 0, 5_000).await;
        world
            .control
            .delete_collection(&app(), &CollectionName::new("short").unwrap())
            .await
            .unwrap();
        let started = Instant::now();
        assert!(world.sweeper("a", rows_per_s).sweep().await.is_ok());
        assert_eq!(
            started.elapsed().as_secs(),
            seconds,
            "{rows_per_s} rows a second"
        );
        assert_eq!(*world.test_recorder.counted.lock().unwrap(), 5_000);
        assert_eq!(
            world.records().iter().map(|(_, _, rows)| rows).sum::<u64>(),
            5_000
        );
    }
}

#[tokio::test(start_paused = true)]
async fn sweep_runs_on_one_of_two_engines() {
    let world = SweepWorld::new().await;
    world.fill(SHORT, 0, 1_000).await;
    world
        .control
        .delete_collection(&app(), &CollectionName::new("short").unwrap())
        .await
        .unwrap();
    let [a, b] = ["a", "b"].map(|instance| tokio::spawn(world.sweeper(instance, 5_000).run()));
    tokio::time::sleep(Duration::from_secs(600)).await;
    world.drain.send(true).unwrap();
    a.await.unwrap();
    b.await.unwrap();
    assert_eq!(
        world.records(),
        [(SweepAction::Erased, Some("short".to_owned()), 1_000)]
    );
    let outcomes = world.test_recorder.outcomes.lock().unwrap();
    let of = |wanted| {
        outcomes
            .iter()
            .filter(|outcome| **outcome == wanted)
            .count()
    };
    assert!(
        of(SweepOutcome::Done) >= 9 && of(SweepOutcome::Elsewhere) >= 9,
        "{outcomes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_sweep_ends_with_its_lease_and_with_its_engine() {
    let world = SweepWorld::new().await;
    world.fill(SHORT, 0, 10_000).await;
    world
        .control
        .delete_collection(&app(), &CollectionName::new("short").unwrap())
        .await
        .unwrap();
    // The lease is looked at again after 5 s, which are 500 rows.
    let mut a = world.sweeper("a", 100);
    let sweep = tokio::spawn(async move { a.sweep().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.store.leave("a").await.unwrap();
    assert!(world.store.lease(LEASE, "b", LEASE_TIME).await.unwrap());
    assert!(matches!(
        sweep.await.unwrap(),
        Err(End::Outcome(SweepOutcome::Elsewhere))
    ));
    let after_lease = world.ids(SHORT).await.len();
    assert!((9_400..10_000).contains(&after_lease), "{after_lease}");
    let mut b = world.sweeper("b", 100);
    let sweep = tokio::spawn(async move { b.sweep().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.drain.send(true).unwrap();
    assert!(matches!(
        sweep.await.unwrap(),
        Err(End::Outcome(SweepOutcome::Stopped))
    ));
    let left = world.ids(SHORT).await.len();
    assert!((after_lease - 200..after_lease).contains(&left), "{left}");
    // All that is gone is counted and recorded.
    let gone = (10_000 - left) as u64;
    assert_eq!(*world.test_recorder.counted.lock().unwrap(), gone);
    assert_eq!(
        world.records().iter().map(|(_, _, rows)| rows).sum::<u64>(),
        gone
    );
}

#[tokio::test(start_paused = true)]
async fn sweep_removes_nothing_while_the_audit_log_fails() {
    let world = SweepWorld::new().await;
    world.fill(SHORT, 0, 10).await;
    world
        .control
        .delete_collection(&app(), &CollectionName::new("short").unwrap())
        .await
        .unwrap();
    world.test_recorder.is_full.store(true, Ordering::SeqCst);
    assert!(matches!(
        world.sweeper("a", 5_000).sweep().await,
        Err(End::Outcome(SweepOutcome::Unrecorded))
    ));
    assert_eq!(world.ids(SHORT).await.len(), 10);
    world.test_recorder.is_full.store(false, Ordering::SeqCst);
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.ids(SHORT).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_retention_time_that_changes_counts_during_a_sweep() {
    let world = SweepWorld::new().await;
    let rows: Vec<_> = (0..2_000)
        .map(|id| (SHORT, row(id, None, Some(1))))
        .collect();
    world.store.put(&rows).await.unwrap();
    let mut a = world.sweeper("a", 100);
    let sweep = tokio::spawn(async move { a.sweep().await });
    // For 20 s it looks for expired rows among all of them; then it prunes.
    tokio::time::sleep(Duration::from_secs(22)).await;
    let change = sealwire_apps::CollectionRulesChange {
        retention_s: Some(None),
        expires_s: None,
    };
    world
        .control
        .change_rules(&app(), &CollectionName::new("short").unwrap(), change)
        .await
        .unwrap();
    assert!(sweep.await.unwrap().is_ok());
    let left = world.ids(SHORT).await.len();
    assert!((1_400..2_000).contains(&left), "{left}");
}

/// An older state that was put back can have deleted a collection that exists again, or keep rows
/// for a shorter time.
#[tokio::test(start_paused = true)]
async fn sweep_removes_nothing_by_an_older_served_state() {
    struct Older(Arc<Kek>);
    #[async_trait::async_trait]
    impl sealwire_apps::FindKek for Older {
        async fn find(
            &self,
            _: Option<&sealwire_apps::RootRecord>,
        ) -> Result<Arc<Kek>, StoreError> {
            Ok(Arc::clone(&self.0))
        }
        async fn verified(
            &self,
            _: Option<(&sealwire_apps::RootRecord, &sealwire_apps::StateId)>,
            _: Option<&sealwire_apps::StateId>,
        ) -> Result<sealwire_apps::Freshness, StoreError> {
            Ok(sealwire_apps::Freshness::RolledBack { seen: 1_000 })
        }
    }
    let mut world = SweepWorld::new().await;
    world.fill(SHORT, 0, 10).await;
    world
        .control
        .delete_collection(&app(), &CollectionName::new("short").unwrap())
        .await
        .unwrap();
    let kek = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
    let store = Arc::clone(&world.store);
    let latest = std::mem::replace(
        &mut world.control,
        Control::with_finder(store, Arc::new(Older(Arc::new(kek)))),
    );
    let swept = world.sweeper("a", 5_000).sweep().await;
    assert!(matches!(
        swept,
        Err(End::Store(StoreError::RolledBack { seen: 1_000, .. }))
    ));
    assert_eq!(world.ids(SHORT).await.len(), 10);
    world.control = latest;
    assert!(world.sweeper("a", 5_000).sweep().await.is_ok());
    assert_eq!(world.ids(SHORT).await.len(), 0);
}
