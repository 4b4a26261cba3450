//! Changes of a schema on three engines, while clients of each write and read objects.
//!
//! `SEALWIRE_SCHEMA_ROUNDS` sets the number of rounds of about five seconds. The default is 1, and
//! 720 is the long form.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire_client::control::PropertySpec;
use sealwire_client::{
    AddObjects, Client, CollectionTarget, ErrorCode, Listing, Objects, PropertyDisclosure,
};
use sealwire_testkit::Postgres;

use super::compare::compare;
use super::model::{History, Known, Level, Seen, TYPES, Written, check};
use super::{
    AGREE, add_property, alter, client, create, create_app, doc, drop_property, in_time, is_fenced,
    paths, query, rpc_error, text,
};
use crate::cluster::engines::{APP, Cluster, EngineProcess, run, until};

/// Times that `level` is dropped and added in a round.
const CHANGES: usize = 12;
/// Pause after each change.
const PAUSE: Duration = Duration::from_millis(150);
/// Acknowledged requests between two changes, at least.
const REQUESTS: u64 = 24;
/// Writers, and as many readers. Each uses all engines in turn.
const WRITERS: u64 = 6;
/// Values of the indexed property `name`.
pub(super) const GROUPS: u64 = 7;
/// Values of the unique property that writers race for.
const RACES: u64 = 40;

/// State that writers and readers of a round share.
struct Load {
    collection: String,
    clients: Vec<Client>,
    next: AtomicU64,
    /// Type of `level` that the operator added last.
    kind: AtomicU64,
    written: Mutex<Written>,
    seen: Mutex<Vec<Seen>>,
    /// Objects that were added, and the last values that were written.
    ids: Mutex<Vec<String>>,
    levels: Mutex<Vec<Level>>,
    acknowledged: AtomicU64,
    rejected: Mutex<BTreeMap<&'static str, u64>>,
    stop: AtomicBool,
}

#[test]
fn schemas_change_under_load_and_no_value_appears_under_another_property() {
    let rounds =
        std::env::var("SEALWIRE_SCHEMA_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let engines = ["one", "two", "three"].map(|name| cluster.engine(name));
        create_app(&cluster.operator(&engines[0])).await;
        for round in 0..rounds {
            one_round(&cluster, &engines, round).await;
        }
    });
}

async fn one_round(cluster: &Cluster<'_>, engines: &[EngineProcess; 3], round: u64) {
    let operators = engines
        .each_ref()
        .map(|engine| cluster.operator_once(engine));
    let load = Arc::new(Load::new(cluster, engines, format!("people-{round}")));
    let properties = vec![
        PropertySpec::new("email", "email")
            .unique(true)
            .nullable(false),
        PropertySpec::new("name", "string").index(true),
        level(0),
    ];
    let created = create(&operators[0], &load.collection, properties).await;
    cluster.agree(&engines.each_ref()).await;
    let mut writers = tokio::task::JoinSet::new();
    let mut readers = tokio::task::JoinSet::new();
    for task in 0..WRITERS {
        writers.spawn(Arc::clone(&load).writer(task));
        readers.spawn(Arc::clone(&load).reader(task));
    }
    let history = load.change_schema(&operators, created).await;
    load.stop.store(true, Ordering::Relaxed);
    let known: Vec<Known> = writers.join_all().await.concat();
    readers.join_all().await;
    cluster.agree(&engines.each_ref()).await;
    println!(
        "round {round}: {} requests acknowledged, {} objects left, rejected: {:?}",
        load.acknowledged.load(Ordering::Relaxed),
        known.len(),
        load.rejected.lock().unwrap(),
    );
    let written = load.written.lock().unwrap().clone();
    for seen in &*load.seen.lock().unwrap() {
        assert_eq!(check(seen, &history, &written), Ok(()), "{seen:?}");
    }
    for client in &load.clients[..3] {
        compare(client, load.map(), &known, &history, &written).await;
    }
    assert_eq!(
        cluster.database.sql(AGREE).unwrap(),
        "0",
        "objects and terms do not agree"
    );
}

/// The n-th `level`. One of the types is unique, so that unique terms change, too.
fn level(incarnation: usize) -> PropertySpec<'static> {
    let kind = incarnation % TYPES.len();
    PropertySpec::new("level", TYPES[kind])
        .index(true)
        .unique(kind == 1)
}

impl Load {
    fn new(cluster: &Cluster<'_>, engines: &[EngineProcess; 3], collection: String) -> Self {
        // Two clients of each engine: the first three are of different engines.
        let clients = engines
            .iter()
            .chain(engines)
            .map(|engine| client(cluster, engine))
            .collect();
        Self {
            collection,
            clients,
            next: AtomicU64::new(1),
            kind: AtomicU64::new(0),
            written: Mutex::default(),
            seen: Mutex::default(),
            ids: Mutex::default(),
            levels: Mutex::default(),
            acknowledged: AtomicU64::new(0),
            rejected: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    fn map(&self) -> CollectionTarget<'_> {
        CollectionTarget::new(APP, &self.collection)
    }

    /// Drops `level` and adds it with another type, again and again. Returns the schemas since
    /// generation `created`.
    async fn change_schema(&self, operators: &[Client; 3], created: u64) -> History {
        let mut history = History(vec![(created, Some(0))]);
        for incarnation in 1..=CHANGES {
            let operator = &operators[incarnation % 3];
            let dropped = alter(operator, &self.collection, drop_property("level"))
                .await
                .unwrap();
            history.0.push((dropped, None));
            self.goes_on().await;
            let added = until("all engines serve the drop", async || {
                let added =
                    alter(operator, &self.collection, add_property(level(incarnation))).await;
                added
                    .map_err(|error| {
                        assert!(is_fenced(&rpc_error(error)), "not an engine that lags")
                    })
                    .ok()
            });
            history.0.push((added.await, Some(incarnation)));
            self.kind
                .store((incarnation % TYPES.len()) as u64, Ordering::Relaxed);
            self.goes_on().await;
        }
        history
    }

    /// Waits for the pause, and until requests were acknowledged meanwhile.
    async fn goes_on(&self) {
        let enough = self.acknowledged.load(Ordering::Relaxed) + REQUESTS;
        tokio::time::sleep(PAUSE).await;
        until("the load goes on", async || {
            (self.acknowledged.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a new value of the type that the operator added last. The engines can be before or
    /// behind.
    fn level(&self) -> Level {
        Level {
            kind: self.kind.load(Ordering::Relaxed) as usize,
            number: self.number(),
        }
    }

    fn reject(&self, reason: &'static str) {
        *self.rejected.lock().unwrap().entry(reason).or_default() += 1;
    }

    /// Counts a rejected request. Panics unless the state of the schema explains the error.
    /// `raced`: the request has a unique value that other writers want.
    fn explain(&self, error: sealwire_client::Error, names_level: bool, raced: bool) {
        let error = rpc_error(error);
        let paths = paths(&error);
        let all =
            |property: &str| !paths.is_empty() && paths.iter().all(|path| path.ends_with(property));
        match error.code {
            ErrorCode::Conflict if error.retry_after_ms.is_some() => self.reject("fenced"),
            ErrorCode::Conflict if raced && all(".email") => self.reject("taken"),
            ErrorCode::BadRequest if names_level && (all(".level") || paths == ["$[0]"]) => {
                self.reject("level")
            }
            // The parameter `properties` is not a part of a payload.
            ErrorCode::BadRequest if names_level && paths.is_empty() => {
                self.reject("level, named to read")
            }
            _ => panic!("{error}: {paths:?}"),
        }
    }

    async fn writer(self: Arc<Self>, task: u64) -> Vec<Known> {
        let mut known: Vec<Known> = Vec::new();
        let mut round = task;
        while !self.stop.load(Ordering::Relaxed) {
            round += 1;
            // Engines change from request to request, so one object is changed through all of them.
            let client = &self.clients[(round % 6) as usize];
            match round % 5 {
                _ if known.len() < 3 => self.add(client, round, &mut known).await,
                0 => self.add(client, round, &mut known).await,
                1 => self.race(client, round, &mut known).await,
                2 => self.update(client, round, &mut known, false).await,
                3 if round.is_multiple_of(3) => self.delete(client, round, &mut known).await,
                _ => self.update(client, round, &mut known, true).await,
            }
        }
        known
    }

    /// Adds one to three objects, most of them with a level.
    async fn add(&self, client: &Client, round: u64, known: &mut Vec<Known>) {
        let with_level = !round.is_multiple_of(4);
        let made: Vec<(u64, Option<Level>)> = (0..1 + round % 3)
            .map(|_| (self.number(), with_level.then(|| self.level())))
            .collect();
        let parts: Vec<String> = made
            .iter()
            .map(|(number, level)| {
                let level = level
                    .map(|level| format!(r#", "level": {}"#, level.json()))
                    .unwrap_or_default();
                format!(
                    r#"{{"email": "n{number}@example.com", "name": "group {}"{level}}}"#,
                    number % GROUPS
                )
            })
            .collect();
        let objects = doc(&format!("[{}]", parts.join(",")));
        let add = AddObjects::new(&objects);
        match in_time(client.objects_add(self.map(), add)).await {
            Ok(added) => {
                for (object, (number, level)) in added.objects.into_iter().zip(made) {
                    let level = level.map(|level| (level, added.generation));
                    let email = format!("n{number}@example.com");
                    let (version, group) = (object.version, number % GROUPS);
                    self.acknowledge(
                        Known {
                            id: object.id,
                            version,
                            email,
                            group,
                            level,
                        },
                        known,
                    );
                }
            }
            Err(error) => self.explain(error, with_level, false),
        }
    }

    /// Adds an object with a unique value that other writers want, too.
    async fn race(&self, client: &Client, round: u64, known: &mut Vec<Known>) {
        let (email, group) = (format!("race{}@example.com", round % RACES), round % GROUPS);
        let objects = doc(&format!(
            r#"[{{"email": "{email}", "name": "group {group}"}}]"#
        ));
        let add = AddObjects::new(&objects);
        match in_time(client.objects_add(self.map(), add)).await {
            Ok(mut added) => {
                let object = added.objects.remove(0);
                let known_object = Known {
                    id: object.id,
                    version: object.version,
                    email,
                    group,
                    level: None,
                };
                self.acknowledge(known_object, known);
            }
            Err(error) => self.explain(error, false, true),
        }
    }

    fn acknowledge(&self, object: Known, known: &mut Vec<Known>) {
        if let Some((level, generation)) = object.level {
            self.wrote(level, &object.id, generation);
        }
        self.ids.lock().unwrap().push(object.id.clone());
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        known.push(object);
    }

    fn wrote(&self, level: Level, id: &str, generation: u64) {
        self.written
            .lock()
            .unwrap()
            .insert(level.number, (level, id.to_owned(), generation));
        self.levels.lock().unwrap().push(level);
    }

    /// Changes the level of an object, or its name.
    async fn update(&self, client: &Client, round: u64, known: &mut [Known], with_level: bool) {
        let at = (round * 7) as usize % known.len();
        let object = &mut known[at];
        let group = self.number() % GROUPS;
        // Every seventh level is removed.
        let level = (with_level && !round.is_multiple_of(7)).then(|| self.level());
        let set = match (with_level, level) {
            (true, level) => format!(
                r#""level": {}"#,
                level.map_or("null".to_owned(), Level::json)
            ),
            (false, _) => format!(r#""name": "group {group}""#),
        };
        let (id, version) = (&object.id, object.version);
        let change = doc(&format!(
            r#"[{{"id": "{id}", "set": {{{set}}}, "if_version": {version}}}]"#
        ));
        match in_time(client.objects_update(self.map(), &change)).await {
            Ok(updated) => {
                assert_eq!(updated.objects[0].version, version + 1);
                object.version += 1;
                if with_level {
                    object.level = level.map(|level| (level, updated.generation));
                    level
                        .into_iter()
                        .for_each(|level| self.wrote(level, &object.id, updated.generation));
                } else {
                    object.group = group;
                }
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.explain(error, with_level, false),
        }
    }

    async fn delete(&self, client: &Client, round: u64, known: &mut Vec<Known>) {
        let at = (round * 11) as usize % known.len();
        let Known { id, version, .. } = &known[at];
        match in_time(client.objects_delete(self.map(), &[id], Some(vec![*version]))).await {
            Ok(deleted) => {
                assert_eq!(deleted.count, 1);
                known.swap_remove(at);
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.explain(error, false, false),
        }
    }

    async fn reader(self: Arc<Self>, task: u64) {
        let mut round = task;
        while !self.stop.load(Ordering::Relaxed) {
            round += 1;
            let client = &self.clients[(round % 6) as usize];
            // Prefers what was written last.
            let ids: Vec<String> = self
                .ids
                .lock()
                .unwrap()
                .iter()
                .rev()
                .step_by(3)
                .take(12)
                .cloned()
                .collect();
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let level = self
                .levels
                .lock()
                .unwrap()
                .iter()
                .rev()
                .nth(round as usize % 50)
                .copied();
            let only = PropertyDisclosure::new()
                .properties(["level"])
                .masked(false);
            let all = PropertyDisclosure::default();
            let (found, names_level) = match (round % 5, level) {
                (0, _) if !ids.is_empty() => (
                    in_time(client.objects_get(self.map(), &ids, all)).await,
                    false,
                ),
                (1, _) if !ids.is_empty() => (
                    in_time(client.objects_get(self.map(), &ids, only)).await,
                    true,
                ),
                (2, Some(level)) => (self.find(client, level).await, true),
                (3, _) => {
                    let name = format!("\"group {}\"", round % GROUPS);
                    let found = query(client, self.map(), "name", &name).await;
                    self.check_names(&found, &name);
                    (found, false)
                }
                _ => {
                    let listing = Listing::new().limit(50);
                    (
                        in_time(client.objects_list(self.map(), listing, all)).await,
                        false,
                    )
                }
            };
            match found {
                Ok(found) => self.observe(found),
                Err(error) => self.explain(error, names_level, false),
            }
        }
    }

    /// Queries by a level. The objects that are found must have the level.
    async fn find(&self, client: &Client, level: Level) -> Result<Objects, sealwire_client::Error> {
        let found = query(client, self.map(), "level", &level.json()).await?;
        for object in found.objects.iter().flatten() {
            let value = object.properties.iter().find(|(name, _)| name == "level");
            assert_eq!(
                value.and_then(|(_, value)| Level::parse(&text(value))),
                Some(level)
            );
        }
        Ok(found)
    }

    fn check_names(&self, found: &Result<Objects, sealwire_client::Error>, wanted: &str) {
        for object in found
            .iter()
            .flat_map(|found| found.objects.iter().flatten())
        {
            let name = object.properties.iter().find(|(name, _)| name == "name");
            assert_eq!(name.map(|(_, value)| text(value)).as_deref(), Some(wanted));
        }
    }

    fn observe(&self, found: Objects) {
        let generation = found.generation;
        let seen = found.objects.into_iter().flatten().map(|object| {
            let level = object.properties.iter().find(|(name, _)| name == "level");
            Seen {
                generation,
                id: object.id,
                level: level.map(|(_, value)| Level::parse(&text(value))),
            }
        });
        self.seen.lock().unwrap().extend(seen);
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}
