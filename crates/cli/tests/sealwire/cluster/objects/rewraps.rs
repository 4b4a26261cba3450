//! Kills of engine processes while they seal rows again, and while clients change the rows.
//!
//! `SEALWIRE_KILL_ROUNDS` sets the number of kills. The default is 4, and 1,000 is the long form.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sealwire_client::control::{
    AppOperation, Census, CensusRequest, Kind, PropertySpec, RewrapRowsRequest, RotateKind,
    TokenFormat,
};
use sealwire_client::{
    AddObjects, Client, CollectionTarget, Detokenize, Error, ErrorCode, Tokenize,
};
use sealwire_testkit::Postgres;

use super::{AGREE, create, create_app, doc, in_time, list, rpc_error, text};
use crate::cluster::engines::{APP, Cluster, RANDOM, run, until};

const COLLECTION: &str = "staff";
const OBJECTS: usize = 600;
const TOKENS: usize = 300;
/// Rows of a page, so that a walk has many pages.
const PAGE: u32 = 20;

/// State that rewraps, writers and kills share.
#[derive(Default)]
struct RewrapLoad {
    /// Rows that were sealed again.
    rewrapped: AtomicU64,
    /// Walks that found every row under the newest versions.
    walks: AtomicU64,
    updates: AtomicU64,
    stop: AtomicBool,
}

fn map() -> CollectionTarget<'static> {
    CollectionTarget::new(APP, COLLECTION)
}

#[test]
fn a_rewrap_that_is_killed_loses_nothing() {
    let rounds = std::env::var("SEALWIRE_KILL_ROUNDS").map_or(4, |rounds| rounds.parse().unwrap());
    run(async {
        let cluster = Cluster::new(Postgres::shared()).poll_s(1);
        let mut engines = [cluster.engine("one"), cluster.engine("two")];
        let operator = cluster.operator(&engines[0]);
        create_app(&operator).await;
        let note = PropertySpec::new("note", "string");
        let email = PropertySpec::new("email", "email")
            .unique(true)
            .nullable(false);
        create(&operator, COLLECTION, vec![email, note]).await;
        cluster
            .collection(&engines[0], RANDOM, Kind::Random, TokenFormat::Opaque)
            .await;
        cluster.agree(&engines.each_ref()).await;
        let client = super::client(&cluster, &engines[0]);
        let ids = add(&client).await;
        let (values, tokens) = tokenize(&client).await;

        let job = Arc::new(RewrapLoad::default());
        let mut rewraps = tokio::task::JoinSet::new();
        for engine in &engines {
            rewraps.spawn(Arc::clone(&job).rewrap(cluster.operator_once(engine)));
        }
        let both = cluster.client_with(&engines.each_ref(), |config| config.attempts_max = 1);
        let writer = tokio::spawn(Arc::clone(&job).update(both, ids.clone()));
        let mut pause = 0x9e37_79b9_u64;
        for round in 0..rounds {
            // xorshift: a different moment each time, but the same sequence in every run.
            pause ^= pause << 13;
            pause ^= pause >> 7;
            pause ^= pause << 17;
            rotate(&cluster.operator(&engines[(round + 1) % 2])).await;
            job.goes_on(60).await;
            tokio::time::sleep(Duration::from_millis(pause % 50)).await;
            let engine = &mut engines[round % 2];
            engine.kill();
            engine.start();
        }
        cluster.agree(&engines.each_ref()).await;
        job.ends().await;
        rewraps.join_all().await;
        let written = writer.await.unwrap();
        println!(
            "{rounds} kills, {} rows rewrapped, {} updates",
            job.rewrapped.load(Ordering::Relaxed),
            job.updates.load(Ordering::Relaxed)
        );
        for engine in &engines {
            let client = super::client(&cluster, engine);
            verify(&client, &ids, &written).await;
            let call = Detokenize::new(APP, RANDOM, &tokens);
            assert_eq!(client.detokenize(call).await.unwrap().payload, values);
        }
        assert_eq!(
            cluster.database.sql(AGREE).unwrap(),
            "0",
            "objects and terms do not agree"
        );
        // As if the killed engines had been silent for too long.
        cluster
            .database
            .sql("DELETE FROM sealwire.instances")
            .unwrap();
        for engine in &engines {
            only_the_newest_versions_have_rows(&cluster.operator_once(engine)).await;
        }
    });
}

/// Adds the objects. Returns their ids.
async fn add(client: &Client) -> Vec<String> {
    let mut ids = Vec::new();
    for from in (0..OBJECTS).step_by(300) {
        let object = |at| format!(r#"{{"email": "p{at}@example.com", "note": "0"}}"#);
        let objects = doc(&format!(
            "[{}]",
            (from..from + 300).map(object).collect::<Vec<_>>().join(",")
        ));
        let add = AddObjects::new(&objects);
        ids.extend(
            in_time(client.objects_add(map(), add))
                .await
                .unwrap()
                .objects
                .into_iter()
                .map(|object| object.id),
        );
    }
    ids
}

/// Makes tokens. Returns the values and the tokens.
async fn tokenize(client: &Client) -> (Vec<u8>, Vec<u8>) {
    let values = doc(&format!(
        "[{}]",
        (0..TOKENS)
            .map(|at| format!("\"v{at}\""))
            .collect::<Vec<_>>()
            .join(",")
    ));
    let tokens = in_time(client.tokenize(Tokenize::new(APP, RANDOM, &values)))
        .await
        .unwrap();
    (values.clone(), tokens.payload.to_vec())
}

/// Makes the next version of both keys.
async fn rotate(operator: &Client) {
    for kind in [RotateKind::Xaes, RotateKind::Token] {
        let operation = AppOperation::rotate(kind);
        in_time(operator.change_app(APP, operation)).await.unwrap();
    }
}

/// Version and note of an object.
type State = (u64, String);

/// Panics at an error that a killed engine, or one that follows a rotation, does not explain.
fn explained(error: Error) {
    match error {
        Error::Disconnected { .. } | Error::Connect(_) | Error::Deadline => {}
        Error::Rpc(error) if error.code == ErrorCode::Unavailable => {}
        Error::Rpc(error)
            if error.code == ErrorCode::Conflict && error.retry_after_ms.is_some() => {}
        other => panic!("not a failure that a killed engine explains: {other}"),
    }
}

impl RewrapLoad {
    /// Waits until `rows` more rows were sealed again.
    async fn goes_on(&self, rows: u64) {
        let enough = self.rewrapped.load(Ordering::Relaxed) + rows;
        until("the rewrap goes on", async || {
            (self.rewrapped.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
    }

    /// Waits for whole walks that seal nothing, and stops everything.
    async fn ends(&self) {
        let enough = self.walks.load(Ordering::Relaxed) + 4;
        until("the rewrap ends", async || {
            (self.walks.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Walks through all rows until it is stopped.
    async fn rewrap(self: Arc<Self>, operator: Client) {
        let (mut after, mut rows, mut unopened) = (None::<String>, 0, 0);
        while !self.stop.load(Ordering::Relaxed) {
            let call = RewrapRowsRequest::new(APP)
                .after(after.as_deref())
                .limit(PAGE);
            let page = match in_time(operator.keys_rewrap(call)).await {
                Ok(page) => page,
                Err(error) => {
                    explained(error);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                }
            };
            self.rewrapped.fetch_add(page.rewrapped, Ordering::Relaxed);
            (rows, unopened) = (
                rows + page.rewrapped + page.changed,
                unopened + page.unopened,
            );
            after = page.next;
            if after.is_none() {
                // An engine that has not heard of a rotation does not open what the other one has
                // sealed.
                self.walks
                    .fetch_add(u64::from(rows + unopened == 0), Ordering::Relaxed);
                (rows, unopened) = (0, 0);
            }
        }
    }

    /// Changes one object after the other until it is stopped. Returns the states that each can
    /// have: two if the response of its last change was lost, since the database can still commit
    /// what a killed engine sent. Such an object is left alone.
    async fn update(
        self: Arc<Self>,
        client: Client,
        ids: Vec<String>,
    ) -> BTreeMap<String, Vec<State>> {
        let mut known: BTreeMap<String, Vec<State>> = ids
            .iter()
            .map(|id| (id.clone(), vec![(1, "0".to_owned())]))
            .collect();
        for n in 1_u64.. {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let id = &ids[n as usize * 7 % ids.len()];
            let states = known.get_mut(id).expect("every object has a state");
            let [(version, _)] = states[..] else {
                tokio::task::yield_now().await;
                continue;
            };
            let change = doc(&format!(
                r#"[{{"id": "{id}", "set": {{"note": "{n}"}}, "if_version": {version}}}]"#
            ));
            let next = (version + 1, n.to_string());
            match in_time(client.objects_update(map(), &change)).await {
                Ok(changed) => {
                    assert_eq!(changed.objects[0].version, version + 1);
                    self.updates.fetch_add(1, Ordering::Relaxed);
                    *states = vec![next];
                }
                Err(error) => {
                    explained(error);
                    states.push(next);
                }
            }
        }
        known
    }
}

fn note_of(object: &sealwire_client::Object) -> String {
    let (_, note) = object
        .properties
        .iter()
        .find(|(name, _)| name == "note")
        .unwrap();
    text(note).trim_matches('"').to_owned()
}

/// Verifies that every object is there, whole and as its writer left it.
async fn verify(client: &Client, ids: &[String], written: &BTreeMap<String, Vec<State>>) {
    let objects = list(client, map()).await;
    let found: BTreeMap<_, _> = objects
        .iter()
        .map(|object| (object.id.clone(), (object.version, note_of(object))))
        .collect();
    assert_eq!(found.keys().collect::<BTreeSet<_>>(), ids.iter().collect());
    for (id, states) in written {
        assert!(
            states.contains(&found[id]),
            "{id}: {:?} instead of {states:?}",
            found[id]
        );
    }
}

/// Counts, with proof, and requires that only the newest versions have rows.
async fn only_the_newest_versions_have_rows(operator: &Client) {
    let (mut after, mut newest, mut rows) = (
        None::<String>,
        BTreeSet::new(),
        BTreeMap::<String, u64>::new(),
    );
    loop {
        let call = CensusRequest::new(APP)
            .prove(true)
            .after(after.as_deref())
            .limit(1_000);
        let count = async || match in_time(operator.keys_census(call)).await {
            Ok(page) => Some(page),
            Err(error) => {
                let error = rpc_error(error);
                assert!(
                    error.code == ErrorCode::Conflict && error.retry_after_ms.is_some(),
                    "{error}"
                );
                None
            }
        };
        let Census {
            counts,
            keys,
            proven,
            next,
            ..
        } = until("a proven count", count).await;
        assert!(proven);
        newest.extend(keys.into_iter().filter(|key| key.newest).map(|key| key.key));
        for count in counts {
            assert!(newest.contains(&count.key), "{count:?}");
            *rows.entry(count.kind).or_default() += count.rows;
        }
        after = next;
        if after.is_none() {
            break;
        }
    }
    let expected = [("objects", OBJECTS as u64), ("tokens", TOKENS as u64)];
    assert_eq!(
        rows,
        expected.map(|(kind, rows)| (kind.to_owned(), rows)).into()
    );
}
