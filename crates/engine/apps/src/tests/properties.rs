//! Two controls change one store randomly and concurrently. No created object is lost, and no
//! number is reused.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use sealwire_store::MapId;

const APPS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Copy, Debug)]
enum Change {
    Create,
    Rotate(Suite),
    RotateToken,
    Import(u8),
    Disable(u8),
    Enable(u8),
    DeleteKey(u8, bool),
    RestoreKey(u8),
    DeleteApp(bool),
    RestoreApp,
    CreateCollection(u8),
    DeleteCollection(u8),
    CollectionRules(u8),
}

fn change() -> impl Strategy<Value = (&'static str, Change)> {
    let suite = prop::sample::select(&Suite::ALL[..]);
    let which = 0..6u8;
    let change = prop_oneof![
        4 => Just(Change::Create),
        3 => suite.prop_map(Change::Rotate),
        1 => Just(Change::RotateToken),
        2 => (1..6u8).prop_map(Change::Import),
        1 => which.clone().prop_map(Change::Disable),
        1 => which.clone().prop_map(Change::Enable),
        2 => (which.clone(), any::<bool>()).prop_map(|(key, now)| Change::DeleteKey(key, now)),
        1 => which.clone().prop_map(Change::RestoreKey),
        1 => any::<bool>().prop_map(Change::DeleteApp),
        1 => Just(Change::RestoreApp),
        2 => which.clone().prop_map(Change::CreateCollection),
        1 => which.clone().prop_map(Change::DeleteCollection),
        1 => which.prop_map(Change::CollectionRules),
    ];
    (prop::sample::select(&APPS[..]), change)
}

/// Makes a random change, if there is something to change. Returns its generation.
async fn make(control: &Control, name: &str, change: Change) -> Option<u64> {
    let app = app(name);
    let key = async |at: u8| {
        let found = control.app(&app).await.ok()?;
        found
            .keys
            .get(usize::from(at) % found.keys.len().max(1))
            .map(|key| Target::Key(key.id))
    };
    let collection = |at: u8| CollectionName::new(&format!("c{}", at % 3)).unwrap();
    let rules = CollectionRules {
        kind: CollectionKind::Random,
        format: sealwire_records::token::Format::Uuid,
        scope: Scope::Collection,
        expires_s: None,
        retention_s: None,
    };
    let delay = |now| if now { NOW } else { WEEK };
    let pair = |scalar| KeyPair::from_scalar(Curve::P256, &[scalar; 32]).unwrap();
    let of_app = |made: Result<AppChange, StoreError>| made.map(|made| made.generation);
    let of_collection =
        |made: Result<CollectionChange, StoreError>| made.map(|made| made.generation);
    let made = match change {
        Change::Create => of_app(control.create(&app, &[Suite::P256]).await),
        Change::Rotate(suite) => of_app(control.rotate(&app, KeyKind::Suite(suite)).await),
        Change::RotateToken => of_app(control.rotate(&app, KeyKind::Token).await),
        Change::Import(scalar) => of_app(control.import(&app, pair(scalar), scalar % 2 == 0).await),
        Change::Disable(at) => of_app(control.disable(&app, key(at).await?).await),
        Change::Enable(at) => of_app(control.enable(&app, key(at).await?).await),
        Change::DeleteKey(at, now) => {
            of_app(control.delete(&app, key(at).await?, delay(now)).await)
        }
        Change::RestoreKey(at) => of_app(control.restore(&app, key(at).await?).await),
        Change::DeleteApp(now) => of_app(control.delete(&app, Target::App, delay(now)).await),
        Change::RestoreApp => of_app(control.restore(&app, Target::App).await),
        Change::CreateCollection(at) => of_collection(
            control
                .create_collection(&app, &collection(at), rules)
                .await,
        ),
        Change::DeleteCollection(at) => {
            of_collection(control.delete_collection(&app, &collection(at)).await)
        }
        Change::CollectionRules(at) => {
            let change = CollectionRulesChange {
                expires_s: Some(Some(at.into())),
                retention_s: None,
            };
            of_collection(control.change_rules(&app, &collection(at), change).await)
        }
    };
    match made {
        Ok(generation) => Some(generation),
        Err(
            StoreError::Unavailable(_)
            | StoreError::Damaged { .. }
            | StoreError::WrongKek { .. }
            | StoreError::Io { .. },
        ) => panic!("{made:?}"),
        Err(_) => None,
    }
}

/// Everything that was ever seen.
#[derive(Default)]
struct History {
    /// Name of each app, by app number.
    apps: HashMap<u32, AppId>,
    /// Key of each version, by app number, suite and version number.
    versions: HashMap<(u32, &'static str, u32), KeyId>,
    /// Name of each collection, by app number and collection number.
    collections: HashMap<(u32, u32), CollectionName>,
}

impl History {
    /// Checks that no id or number has changed its meaning, and that nothing has disappeared except
    /// what `may_go` allows.
    async fn check(
        &mut self,
        control: &Control,
        may_go: impl Fn(Option<u64>) -> bool,
        before: &[AppSummary],
    ) {
        let state = control.load().await.unwrap();
        let (_, apps) = control.apps().await.unwrap();
        assert_eq!(state.apps.len(), apps.len());
        for old in before {
            let Some(new) = apps.iter().find(|app| app.number == old.number) else {
                assert!(may_go(old.delete_unix_s), "{} is lost", old.app);
                continue;
            };
            for key in &old.keys {
                let kept = new.keys.iter().any(|it| it.id == key.id);
                assert!(
                    kept || may_go(key.delete_unix_s),
                    "key {} of {} is lost",
                    key.id,
                    old.app
                );
            }
            assert!(new.token_keys.len() >= old.token_keys.len());
        }
        for (app, served) in apps.iter().zip(&state.apps) {
            assert_eq!(
                self.apps
                    .entry(app.number)
                    .or_insert_with(|| app.app.clone()),
                &app.app
            );
            for key in &app.keys {
                let version = (app.number, key.suite.name(), key.number);
                assert_eq!(
                    *self.versions.entry(version).or_insert(key.id),
                    key.id,
                    "a number is used twice"
                );
            }
            let held = served
                .keys
                .versions()
                .iter()
                .map(|version| (version.id, version.number, version.state));
            assert!(held.eq(app.keys.iter().map(|key| (key.id, key.number, key.state))));
            for (name, collection) in &served.collections {
                let number = (app.number, collection.number);
                assert_eq!(
                    self.collections
                        .entry(number)
                        .or_insert_with(|| name.clone()),
                    name
                );
            }
        }
        // Among all maps that ever existed, those of live collections are live and all others are
        // deleted.
        let states = control.map_states().await.unwrap();
        for (app, collection) in self.collections.keys().copied() {
            let found = state.apps.iter().find(|served| served.number == app);
            let lives =
                found.is_some_and(|app| app.collections.values().any(|of| of.number == collection));
            match states.of(MapId { app, collection }) {
                MapState::Live { .. } => assert!(lives),
                MapState::Deleted { .. } => assert!(!lives),
                MapState::Unknown => panic!("map {app}/{collection} was there"),
            }
        }
    }
}

async fn run(steps: Vec<[(&'static str, Change); 2]>) {
    let store = MemoryStore::default();
    let one = control(&store);
    let two = control(&store);
    let mut history = History::default();
    for (at, [first, second]) in steps.into_iter().enumerate() {
        let (generation, before) = one.apps().await.unwrap();
        let made = tokio::join!(make(&one, first.0, first.1), make(&two, second.0, second.1));
        let mut made: Vec<u64> = [made.0, made.1].into_iter().flatten().collect();
        made.sort_unstable();
        let expected = (generation + 1..).take(made.len());
        assert!(
            made.iter().copied().eq(expected),
            "each change has a generation of its own: {made:?}"
        );
        assert_eq!(
            one.generation().await.unwrap(),
            generation + made.len() as u64
        );
        history.check(&two, |_| false, &before).await;
        if at % 4 == 3 {
            let (generation, before) = one.apps().await.unwrap();
            let now = unix_s();
            let removed = [one.maintain(now), two.maintain(now)];
            let [a, b] = removed.map(|removal| async { removal.await.unwrap() });
            let (a, b) = tokio::join!(a, b);
            assert_eq!(one.generation().await.unwrap(), generation + a + b);
            history
                .check(&two, |due| due.is_some_and(|due| due <= now), &before)
                .await;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn random_changes_at_once_lose_nothing(steps in prop::collection::vec([change(), change()], 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        runtime.block_on(run(steps));
    }
}
