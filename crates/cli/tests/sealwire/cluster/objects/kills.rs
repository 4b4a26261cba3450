//! Kills of engine processes while clients add and change objects.
//!
//! `SEALWIRE_KILL_ROUNDS` sets the number of kills. The default is 10, and 1,000 is the long form.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire_client::control::PropertySpec;
use sealwire_client::{AddObjects, Client, Error, ErrorCode, PropertyDisclosure, TokenMap};
use sealwire_testkit::Postgres;

use super::{AGREE, create, create_app, doc, in_time, list, query, text};
use crate::cluster::engines::{APP, Cluster, run, until};

const COLLECTION: &str = "people";
const WRITERS: u64 = 8;
/// Writers that want the same seats.
const RACERS: u64 = 4;
/// Objects of a bulk request.
const BULK: usize = 5;

/// Acknowledged requests.
#[derive(Default)]
struct Acknowledged {
    /// The last acknowledged version of the objects of a bulk request.
    bulks: Mutex<HashMap<String, u64>>,
    /// Raced seats that are known to be taken.
    seats: Mutex<BTreeSet<String>>,
    count: AtomicU64,
    lost: AtomicU64,
    stop: AtomicBool,
}

fn map() -> TokenMap<'static> {
    TokenMap::new(APP, COLLECTION)
}

#[test]
fn acknowledged_objects_survive_kills_of_engines_complete() {
    let rounds = std::env::var("SEALWIRE_KILL_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap());
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let mut engines = [cluster.engine("one"), cluster.engine("two")];
        let operator = cluster.operator(&engines[0]);
        create_app(&operator).await;
        let properties = vec![
            PropertySpec {
                unique: true,
                nullable: false,
                ..PropertySpec::new("email", "email")
            },
            PropertySpec {
                index: true,
                ..PropertySpec::new("bulk", "string")
            },
            PropertySpec {
                unique: true,
                ..PropertySpec::new("seat", "string")
            },
            PropertySpec::new("note", "string"),
        ];
        create(&operator, COLLECTION, properties).await;
        cluster.agree(&engines.each_ref()).await;
        // Without retries, so that each response is of one attempt.
        let client = cluster.client_with(&engines.each_ref(), |config| config.attempts_max = 1);
        let acknowledged = Arc::new(Acknowledged::default());
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            writers.spawn(Arc::clone(&acknowledged).writer(client.clone(), writer));
        }
        let mut pause = 0x9e37_79b9_u64;
        for round in 0..rounds {
            // xorshift: a different moment each time, but the same sequence in every run.
            pause ^= pause << 13;
            pause ^= pause >> 7;
            pause ^= pause << 17;
            acknowledged.goes_on().await;
            tokio::time::sleep(Duration::from_millis(pause % 100)).await;
            let engine = &mut engines[round % 2];
            engine.kill();
            engine.start();
        }
        acknowledged.goes_on().await;
        acknowledged.stop.store(true, Ordering::Relaxed);
        writers.join_all().await;
        let (count, lost) = (
            acknowledged.count.load(Ordering::Relaxed),
            acknowledged.lost.load(Ordering::Relaxed),
        );
        println!("{rounds} kills, {count} requests acknowledged, {lost} without a result");
        for engine in &engines {
            acknowledged.verify(&super::client(&cluster, engine)).await;
        }
        assert_eq!(
            cluster.database.sql(AGREE).unwrap(),
            "0",
            "objects and terms do not agree"
        );
    });
}

impl Acknowledged {
    /// Waits for more acknowledged requests.
    async fn goes_on(&self) {
        let enough = self.count.load(Ordering::Relaxed) + 30;
        until("the load goes on", async || {
            (self.count.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
    }

    async fn writer(self: Arc<Self>, client: Client, writer: u64) {
        for n in 0.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            self.race(&client, writer, n).await;
            // A bulk request whose result is unknown is left as it is.
            let bulk = format!("{writer}-{n}");
            let Some(ids) = self.add(&client, &bulk).await else {
                continue;
            };
            self.bulks.lock().unwrap().insert(bulk.clone(), 1);
            if self.update(&client, &ids).await {
                self.bulks.lock().unwrap().insert(bulk, 2);
            }
        }
    }

    async fn add(&self, client: &Client, bulk: &str) -> Option<Vec<String>> {
        let object = |at| {
            format!(r#"{{"email": "{bulk}-{at}@example.com", "bulk": "{bulk}", "note": "first"}}"#)
        };
        let objects = doc(&format!(
            "[{}]",
            (0..BULK).map(object).collect::<Vec<_>>().join(",")
        ));
        let add = AddObjects {
            objects: &objects,
            ..AddObjects::default()
        };
        let added = self
            .result(in_time(client.objects_add(map(), add)).await)
            .await?;
        Some(added.objects.into_iter().map(|object| object.id).collect())
    }

    async fn update(&self, client: &Client, ids: &[String]) -> bool {
        let change = |id: &String| format!(r#"{{"id": "{id}", "set": {{"note": "second"}}}}"#);
        let changes = doc(&format!(
            "[{}]",
            ids.iter().map(change).collect::<Vec<_>>().join(",")
        ));
        self.result(in_time(client.objects_update(map(), &changes)).await)
            .await
            .is_some()
    }

    /// Adds an object with a seat that other writers want, too.
    async fn race(&self, client: &Client, writer: u64, n: u64) {
        let seat = format!("seat {}-{n}", writer / RACERS);
        let objects = doc(&format!(
            r#"[{{"email": "racer{writer}-{n}@example.com", "seat": "{seat}"}}]"#
        ));
        let add = AddObjects {
            objects: &objects,
            ..AddObjects::default()
        };
        match in_time(client.objects_add(map(), add)).await {
            Err(Error::Rpc(error)) if error.code == ErrorCode::Conflict => {
                assert_eq!(super::paths(&error), ["$[0].seat"]);
                self.seats.lock().unwrap().insert(seat);
            }
            result => {
                if self.result(result).await.is_some() {
                    self.seats.lock().unwrap().insert(seat);
                }
            }
        }
    }

    /// Counts a result. Panics at an error that a killed engine does not explain.
    async fn result<T>(&self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(result) => {
                self.count.fetch_add(1, Ordering::Relaxed);
                return Some(result);
            }
            Err(Error::Disconnected { .. } | Error::Connect(_) | Error::Deadline) => {}
            Err(Error::Rpc(error)) if error.code == ErrorCode::Unavailable => {}
            Err(other) => panic!("not a failure that a killed engine explains: {other}"),
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(5)).await;
        None
    }

    /// Verifies all objects through one engine.
    async fn verify(&self, client: &Client) {
        let (mut bulks, mut seats) = (
            BTreeMap::<String, BTreeSet<_>>::new(),
            BTreeMap::<String, u64>::new(),
        );
        let mut emails = BTreeSet::new();
        for object in list(client, map()).await {
            let value = |name: &str| {
                let (_, value) = object.properties.iter().find(|(of, _)| of == name).unwrap();
                text(value).trim_matches('"').to_owned()
            };
            let email = value("email");
            assert!(
                emails.insert(email.clone()),
                "two objects have one unique value"
            );
            if email.starts_with("racer") {
                *seats.entry(value("seat")).or_default() += 1;
            } else {
                bulks.entry(value("bulk")).or_default().insert((
                    email,
                    object.version,
                    value("note"),
                ));
            }
        }
        for (bulk, objects) in &bulks {
            let of = |version, note: &str| {
                let object = |at| (format!("{bulk}-{at}@example.com"), version, note.to_owned());
                (0..BULK).map(object).collect::<BTreeSet<_>>()
            };
            let acknowledged = self.bulks.lock().unwrap().get(bulk).copied().unwrap_or(0);
            let is_whole =
                acknowledged < 2 && *objects == of(1, "first") || *objects == of(2, "second");
            assert!(
                is_whole,
                "{bulk} is incomplete, version {acknowledged} was acknowledged: {objects:?}"
            );
        }
        let acknowledged: BTreeSet<String> = self.bulks.lock().unwrap().keys().cloned().collect();
        assert!(
            acknowledged.iter().all(|bulk| bulks.contains_key(bulk)),
            "an acknowledged request was lost"
        );
        assert!(
            seats.values().all(|holders| *holders == 1),
            "a seat was given twice"
        );
        let taken = self.seats.lock().unwrap().clone();
        assert!(
            taken.iter().all(|seat| seats.contains_key(seat)),
            "a seat that was taken is lost"
        );
        for bulk in acknowledged.iter().step_by(1 + acknowledged.len() / 100) {
            let found = query(client, map(), "bulk", &format!("\"{bulk}\""))
                .await
                .unwrap()
                .objects;
            assert_eq!(found.len(), BULK);
            let email = format!("\"{bulk}-0@example.com\"");
            let found = query(client, map(), "email", &email).await.unwrap().objects;
            let ids: Vec<&str> = found.iter().flatten().map(|object| &*object.id).collect();
            assert_eq!(ids.len(), 1);
            let again = in_time(client.objects_get(map(), &ids, PropertyDisclosure::default()))
                .await
                .unwrap();
            assert_eq!(again.objects, found);
        }
    }
}
