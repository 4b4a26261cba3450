//! Erasure of data subjects on two engines, while clients add and read objects and tokens of the
//! same subjects, and while engines are killed.
//!
//! `SEALWIRE_SUBJECTS` sets the number of subjects that the store has besides; the default is
//! 2,000, and 100,000 is the long form. `SEALWIRE_KILL_ROUNDS` sets the number of kills; the
//! default is 10, and 100 is the long form.

use sealwire_client::{
    AddObjects, Client, CollectionTarget, Detokenize, Error, ErrorCode, OnError,
    PropertyDisclosure, SubjectErasure, SubjectTarget, Tokenize,
};
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sealwire_client::control::{Kind, PropertySpec, TokenFormat};
use sealwire_testkit::Postgres;

use super::{AGREE, create, create_app, doc, in_time, list};
use crate::cluster::engines::{APP, Cluster, EngineProcess, run, until};

const COLLECTION: &str = "people";
const TOKENS: &str = "cards";
const WRITERS: u64 = 6;
/// Subjects that are erased again and again, while objects are added about them.
const HOT: u64 = 4;

/// An acknowledged addition of an object or a token.
struct Added {
    /// The id of the object, or the token.
    id: String,
    is_token: bool,
    subject: u64,
    begun: Instant,
    acknowledged: Instant,
}

/// An erasure that has a response. `begun` is the time of its first attempt.
struct Erased {
    subject: u64,
    begun: Instant,
    answered: Instant,
}

struct Load {
    /// A client of each engine.
    clients: [Client; 2],
    added: Mutex<Vec<Added>>,
    erased: Mutex<Vec<Erased>>,
    acknowledged: AtomicU64,
    stop: AtomicBool,
}

fn map() -> CollectionTarget<'static> {
    CollectionTarget::new(APP, COLLECTION)
}

fn name(subject: u64) -> String {
    format!("hot {subject}")
}

#[test]
fn an_erased_subject_is_gone_on_both_engines_under_load() {
    let subjects =
        std::env::var("SEALWIRE_SUBJECTS").map_or(2_000, |subjects| subjects.parse().unwrap());
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let engines = start(&cluster).await;
        let load = Load::new(&cluster, &engines);
        let kept = load.fill(subjects).await;
        let writers = load.start();
        let mut slowest = Duration::ZERO;
        for round in 0..3 * HOT {
            load.goes_on().await;
            let (subject, begun) = (round % HOT, Instant::now());
            let erased = load.erase(subject, round as usize % 2).await;
            // Objects and tokens that were acknowledged before are gone on both engines.
            let before = [false, true].map(|is_token| load.before(subject, is_token, erased));
            let [ids, tokens] = before
                .each_ref()
                .map(|ids| ids.iter().map(String::as_str).collect::<Vec<_>>());
            for (client, ids) in load
                .clients
                .iter()
                .flat_map(|client| ids.chunks(500).map(move |ids| (client, ids)))
            {
                let found = in_time(client.objects_get(map(), ids, PropertyDisclosure::default()))
                    .await
                    .unwrap();
                assert!(
                    found.objects.iter().all(Option::is_none),
                    "an engine opens an object of an erased subject"
                );
            }
            for client in &load.clients {
                assert!(
                    there(client, &tokens).await.is_empty(),
                    "an engine finds a token of an erased subject"
                );
            }
            slowest = slowest.max(begun.elapsed());
        }
        load.stop.store(true, Ordering::Relaxed);
        writers.join_all().await;
        println!(
            "{subjects} subjects besides, {} requests acknowledged; the slowest erasure was seen on both engines after {slowest:?}",
            load.acknowledged.load(Ordering::Relaxed)
        );
        load.verify(&cluster, &kept).await;
    });
}

#[test]
fn kills_leave_nothing_of_an_erased_subject_and_all_of_the_others() {
    let rounds = std::env::var("SEALWIRE_KILL_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap());
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let mut engines = start(&cluster).await;
        let load = Load::new(&cluster, &engines);
        let kept = load.fill(500).await;
        let writers = load.start();
        let mut erasures = tokio::task::JoinSet::new();
        for engine in 0..2 {
            let load = Arc::clone(&load);
            erasures.spawn(async move {
                for round in 0.. {
                    if load.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    load.erase((round * 2 + engine as u64) % HOT, engine).await;
                }
            });
        }
        let mut pause = 0x2545_f491_u64;
        for round in 0..rounds {
            // xorshift: a different moment each time, but the same sequence in every run.
            pause ^= pause << 13;
            pause ^= pause >> 7;
            pause ^= pause << 17;
            load.goes_on().await;
            tokio::time::sleep(Duration::from_millis(pause % 50)).await;
            let engine = &mut engines[round % 2];
            engine.kill();
            engine.start();
        }
        load.goes_on().await;
        load.stop.store(true, Ordering::Relaxed);
        writers.join_all().await;
        erasures.join_all().await;
        println!(
            "{rounds} kills, {} erasures, {} additions",
            load.erased.lock().unwrap().len(),
            load.added.lock().unwrap().len()
        );
        load.verify(&cluster, &kept).await;
    });
}

async fn start(cluster: &Cluster<'_>) -> [EngineProcess; 2] {
    let engines = [cluster.engine("one"), cluster.engine("two")];
    let operator = cluster.operator(&engines[0]);
    create_app(&operator).await;
    let properties = vec![
        PropertySpec::new("name", "name").index(true),
        PropertySpec::new("seat", "string").unique(true),
    ];
    create(&operator, COLLECTION, properties).await;
    cluster
        .collection(
            &engines[0],
            TOKENS,
            Kind::Deterministic,
            TokenFormat::Opaque,
        )
        .await;
    cluster.agree(&engines.each_ref()).await;
    engines
}

/// Returns those of the tokens that an engine finds.
async fn there(client: &Client, tokens: &[&str]) -> BTreeSet<String> {
    let mut there = BTreeSet::new();
    for tokens in tokens.chunks(1_000) {
        let found = in_time(client.tokens_get(CollectionTarget::new(APP, TOKENS), tokens))
            .await
            .unwrap();
        there.extend(found.tokens.into_iter().flatten().map(|token| token.token));
    }
    there
}

impl Load {
    fn new(cluster: &Cluster<'_>, engines: &[EngineProcess; 2]) -> Arc<Self> {
        // Without retries, so that each response is of one attempt.
        let clients = engines
            .each_ref()
            .map(|engine| super::client(cluster, engine));
        let (added, erased) = (Mutex::default(), Mutex::default());
        Arc::new(Self {
            clients,
            added,
            erased,
            acknowledged: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// Adds one object about each of many subjects. Returns the ids.
    async fn fill(&self, subjects: u64) -> BTreeSet<String> {
        let mut ids = BTreeSet::new();
        let numbers: Vec<u64> = (0..subjects).collect();
        for (part, numbers) in numbers.chunks(500).enumerate() {
            let object = |n: &u64| format!(r#"{{"name": "kept {n}", "seat": "kept {n}"}}"#);
            let objects = doc(&format!(
                "[{}]",
                numbers.iter().map(object).collect::<Vec<_>>().join(",")
            ));
            let names: Vec<String> = numbers.iter().map(|n| format!("kept {n}")).collect();
            let subjects = names.iter().map(String::as_str);
            let add = AddObjects::new(&objects).subjects(subjects);
            let added = in_time(self.clients[part % 2].objects_add(map(), add))
                .await
                .unwrap();
            ids.extend(added.objects.into_iter().map(|object| object.id));
        }
        ids
    }

    fn start(self: &Arc<Self>) -> tokio::task::JoinSet<()> {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let load = Arc::clone(self);
            writers.spawn(async move {
                for n in 0.. {
                    if load.stop.load(Ordering::Relaxed) {
                        return;
                    }
                    match n % 2 {
                        0 => load.add(writer, n).await,
                        _ => load.tokenize(writer, n).await,
                    }
                }
            });
        }
        writers
    }

    /// Adds an object about a hot subject, and reads it.
    async fn add(&self, writer: u64, n: u64) {
        let (subject, client) = ((writer + n) % HOT, &self.clients[(writer % 2) as usize]);
        let objects = doc(&format!(
            r#"[{{"name": "hot", "seat": "hot {writer}-{n}"}}]"#
        ));
        let subject_name = name(subject);
        let add = AddObjects::new(&objects).subjects([&*subject_name]);
        let begun = Instant::now();
        let Some(added) = self
            .result(in_time(client.objects_add(map(), add)).await)
            .await
        else {
            return;
        };
        let id = added.objects[0].id.clone();
        let read = in_time(client.objects_get(map(), &[&id], PropertyDisclosure::default())).await;
        if let Some(read) = self.result(read).await {
            // An erasure may have come between.
            let seat = |object: &sealwire_client::Object| super::text(&object.properties[1].1);
            assert!(
                read.objects[0]
                    .as_ref()
                    .is_none_or(|object| seat(object) == format!("\"hot {writer}-{n}\""))
            );
        }
        self.added.lock().unwrap().push(Added {
            id,
            is_token: false,
            subject,
            begun,
            acknowledged: Instant::now(),
        });
    }

    /// Replaces a value about a hot subject by a token, and reads it.
    async fn tokenize(&self, writer: u64, n: u64) {
        let (subject, client) = ((writer + n / 2) % HOT, &self.clients[(writer % 2) as usize]);
        let (value, subject_name) = (doc(&format!("\"card {writer}-{n}\"")), name(subject));
        let begun = Instant::now();
        let made =
            in_time(client.tokenize(Tokenize::new(APP, TOKENS, &value).subject(&*subject_name)))
                .await;
        let Some(made) = self.result(made).await else {
            return;
        };
        let acknowledged = Instant::now();
        let call = Detokenize::new(APP, TOKENS, &made.payload).on_error(OnError::Report);
        if let Some(read) = self.result(in_time(client.detokenize(call)).await).await {
            // An erasure may have come between.
            assert!(
                read.payload == value || read.payload == made.payload,
                "another value"
            );
        }
        let id = super::text(&made.payload).trim_matches('"').to_owned();
        self.added.lock().unwrap().push(Added {
            id,
            is_token: true,
            subject,
            begun,
            acknowledged,
        });
    }

    /// Erases a subject. Repeats the request until it has a response and no object is left. Returns
    /// when it began.
    async fn erase(&self, subject: u64, engine: usize) -> Instant {
        let (begun, subject_name) = (Instant::now(), name(subject));
        let target = SubjectTarget::by_name(APP, &subject_name);
        let version = loop {
            let found = in_time(self.clients[engine].subjects_find(target)).await;
            if let Some(found) = self.result(found).await {
                break found.version;
            }
        };
        loop {
            let erased = in_time(
                self.clients[engine].subjects_erase(target, SubjectErasure::new().version(version)),
            )
            .await;
            if self.result(erased).await.is_some_and(|erased| erased.done) {
                self.erased.lock().unwrap().push(Erased {
                    subject,
                    begun,
                    answered: Instant::now(),
                });
                return begun;
            }
        }
    }

    /// Returns the objects or tokens of a subject that were acknowledged before a time.
    fn before(&self, subject: u64, is_token: bool, time: Instant) -> Vec<String> {
        let added = self.added.lock().unwrap();
        let is_before = |added: &&Added| added.is_token == is_token && added.acknowledged < time;
        let before = added
            .iter()
            .filter(|added| added.subject == subject)
            .filter(is_before);
        before.map(|added| added.id.clone()).collect()
    }

    async fn goes_on(&self) {
        let enough = self.acknowledged.load(Ordering::Relaxed) + 40;
        until("the load goes on", async || {
            (self.acknowledged.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
    }

    /// Counts a result. Panics at an error that a killed engine does not explain.
    async fn result<T>(&self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(result) => {
                self.acknowledged.fetch_add(1, Ordering::Relaxed);
                return Some(result);
            }
            Err(Error::Disconnected { .. } | Error::Connect(_) | Error::Deadline) => {}
            // A request whose subject is erased again and again gives up after some attempts.
            Err(Error::Rpc(error))
                if [ErrorCode::Unavailable, ErrorCode::Conflict].contains(&error.code) => {}
            Err(other) => {
                panic!("not a failure that a killed engine or an erasure explains: {other}")
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        None
    }

    /// Verifies through both engines that exactly those objects and tokens are there that no
    /// erasure took.
    async fn verify(&self, cluster: &Cluster<'_>, kept: &BTreeSet<String>) {
        let mut erasures: HashMap<u64, Vec<(Instant, Instant)>> = HashMap::new();
        for Erased {
            subject,
            begun,
            answered,
        } in &*self.erased.lock().unwrap()
        {
            erasures
                .entry(*subject)
                .or_default()
                .push((*begun, *answered));
        }
        for client in &self.clients {
            let mut there: BTreeSet<String> = list(client, map())
                .await
                .into_iter()
                .map(|object| object.id)
                .collect();
            assert!(
                kept.is_subset(&there),
                "an object of another subject is gone"
            );
            let rows = cluster
                .database
                .sql("SELECT count(*) FROM sealwire.objects WHERE collection = 1")
                .unwrap();
            assert_eq!(
                rows,
                there.len().to_string(),
                "rows are left that nobody sees"
            );
            let added = std::mem::take(&mut *self.added.lock().unwrap());
            let made: Vec<&str> = added
                .iter()
                .filter(|added| added.is_token)
                .map(|added| &*added.id)
                .collect();
            let tokens = self::there(client, &made).await;
            let rows = cluster
                .database
                .sql("SELECT count(*) FROM sealwire.tokens")
                .unwrap();
            // A request whose response was lost made a token, too.
            assert!(rows.parse::<usize>().unwrap() >= tokens.len());
            there.extend(tokens);
            for Added {
                id,
                subject,
                begun,
                acknowledged,
                ..
            } in &added
            {
                let of_subject = erasures.get(subject).map_or(&[][..], Vec::as_slice);
                if of_subject.iter().any(|(erased, _)| erased > acknowledged) {
                    assert!(
                        !there.contains(id),
                        "an object or token outlived the erasure of its subject"
                    );
                } else if of_subject.iter().all(|(_, answered)| answered < begun) {
                    assert!(
                        there.contains(id),
                        "an acknowledged object or token is lost"
                    );
                }
            }
            *self.added.lock().unwrap() = added;
        }
        self.verify_token_rows(cluster).await;
        assert_eq!(
            cluster.database.sql(AGREE).unwrap(),
            "0",
            "objects and terms do not agree"
        );
    }

    /// Verifies that every row of a token is under the present key of its subject.
    async fn verify_token_rows(&self, cluster: &Cluster<'_>) {
        let outdated = cluster.database.sql(
            "SELECT count(*) FROM sealwire.tokens t WHERE NOT EXISTS (SELECT 1 FROM sealwire.objects k
                WHERE k.app = t.app AND k.collection = 2147483647 AND k.id = t.subject
                    AND int8send(k.version) = substring(t.sealed FROM 6 FOR 8))",
        );
        assert_eq!(outdated.unwrap(), "0", "a row of an erased key is left");
    }
}
