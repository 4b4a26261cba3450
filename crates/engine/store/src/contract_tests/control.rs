//! Tests of the [`ControlStore`](crate::ControlStore) contract. Each promise is a function of an
//! empty store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

pub use super::records::what_is_read_one_by_one_agrees_with_a_model;
use crate::{Changes, Commit, ControlStore, Instance, Snapshot, everything};

/// Creates a module of tests, one per promise. `$open` must be an async function in scope. It
/// returns an empty `Arc<dyn ControlStore>` and a value that must live as long as the store.
#[macro_export]
macro_rules! control_promises {
    ($open:ident) => {
        $crate::control_promises!(@
            $open:
            begins_empty_at_zero,
            a_change_is_there_under_the_next_generation,
            a_change_from_another_base_is_not_made,
            many_records_change_together,
            keys_and_records_are_kept_to_the_byte,
            a_state_takes_the_place_of_everything,
            of_changes_at_once_one_wins_per_base,
            loads_are_whole_while_changes_go_on,
            what_is_read_one_by_one_agrees_with_a_model,
            a_change_wakes_who_waits,
            a_change_between_two_waits_is_not_missed,
            a_dropped_wait_loses_nothing,
            instances_say_what_they_serve_until_they_leave,
            instances_age,
            a_lease_has_one_holder
        );
    };
    (@ $open:ident: $($promise:ident),+) => {
        mod control_promises {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $promise() {
                    let (store, _held) = super::$open().await;
                    $crate::contract_tests::control::$promise(store).await;
                }
            )+
        }
    };
}
type Store = Arc<dyn ControlStore>;

/// Timeout for change notifications, longer than any store needs. A test that waits this long
/// fails.
const SOON: Duration = Duration::from_secs(60);

async fn put(store: &Store, key: &str, record: &[u8]) -> u64 {
    let base = store.generation().await.unwrap();
    match store.commit(base, key, Some(record)).await.unwrap() {
        Commit::Done(generation) => generation,
        Commit::Moved => panic!("nobody else writes"),
    }
}

pub async fn begins_empty_at_zero(store: Store) {
    assert_eq!(store.generation().await.unwrap(), 0);
    assert_eq!(store.load().await.unwrap(), Snapshot::default());
    assert!(
        store
            .instances(Duration::from_secs(3_600))
            .await
            .unwrap()
            .is_empty()
    );
}

pub async fn a_change_is_there_under_the_next_generation(store: Store) {
    let changes = [
        ("app/a", Some("{\"one\":1}")),
        ("app/b", Some("{}")),
        ("app/a", Some("{\"one\":2}")),
        ("app/a", Some("{\"one\":2}")),
        ("app/b", None),
        ("app/b", None),
    ];
    let mut records = BTreeMap::new();
    for (base, (key, record)) in changes.into_iter().enumerate() {
        let generation = base as u64 + 1;
        let commit = store
            .commit(base as u64, key, record.map(str::as_bytes))
            .await
            .unwrap();
        assert_eq!(commit, Commit::Done(generation));
        assert_eq!(store.generation().await.unwrap(), generation);
        match record {
            Some(record) => records.insert(key.to_owned(), record.into()),
            None => records.remove(key),
        };
        let records = records.clone();
        assert_eq!(
            store.load().await.unwrap(),
            Snapshot {
                generation,
                records
            }
        );
    }
}

pub async fn a_change_from_another_base_is_not_made(store: Store) {
    for base in [1, 2, 1 << 40] {
        assert_eq!(
            store.commit(base, "k", Some(b"{}")).await.unwrap(),
            Commit::Moved,
            "{base}"
        );
    }
    assert_eq!(store.load().await.unwrap(), Snapshot::default());
    put(&store, "k", b"{}").await;
    put(&store, "k", b"{\"a\":1}").await;
    let before = store.load().await.unwrap();
    for (base, record) in [
        (0, Some(&b"{}"[..])),
        (1, Some(b"{}")),
        (3, Some(b"{}")),
        (1, None),
    ] {
        assert_eq!(
            store.commit(base, "k", record).await.unwrap(),
            Commit::Moved,
            "{base}"
        );
        assert_eq!(store.load().await.unwrap(), before);
    }
}

/// Changes of records that are loaded and records that are read one by one, in one generation.
pub async fn many_records_change_together(store: Store) {
    let changes = |all: &[(&str, Option<&str>)]| {
        all.iter()
            .map(|(key, record)| ((*key).to_owned(), record.map(|of| of.as_bytes().to_vec())))
            .collect::<Changes>()
    };
    let rounds = [
        changes(&[
            ("app/a", Some("1")),
            ("app/b", Some("{}")),
            ("principal/a", Some("2")),
            ("principal/b", Some("3")),
        ]),
        changes(&[
            ("app/a", None),
            ("app/b", Some("4")),
            ("app/c", Some("")),
            ("principal/a", None),
            ("principal/c", None),
        ]),
        changes(&[]),
        changes(&[("principal/b", Some("5")), ("none", None)]),
    ];
    let mut model = Snapshot::default();
    for (base, round) in (0..).zip(rounds) {
        for wrong in [base + 1, base + 100, u64::MAX] {
            assert_eq!(
                store.commit_all(wrong, &round).await.unwrap(),
                Commit::Moved
            );
        }
        assert_eq!(everything(&*store).await.unwrap(), model);
        assert_eq!(
            store.commit_all(base, &round).await.unwrap(),
            Commit::Done(base + 1)
        );
        model.apply("model", base, &round).unwrap();
        assert_eq!(everything(&*store).await.unwrap(), model);
    }
    let keys: Vec<_> = model.records.keys().map(String::as_str).collect();
    assert_eq!(keys, ["app/b", "app/c", "principal/b"]);
}

pub async fn keys_and_records_are_kept_to_the_byte(store: Store) {
    let long_key = "k".repeat(512);
    let big: Vec<u8> = (0..1 << 20)
        .map(|at: u32| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    let big_json = format!("{{\"text\":\"{}\"}}", "é\\u0000\\\"".repeat(100_000));
    let cases: [(&str, &[u8]); 14] = [
        ("", b"{}"),
        ("app/shop", b"{\"b\":1,\"a\":2}"),
        ("APP/shop", b"{ \"spaced\" : [ 1 , 2 ] }"),
        ("app/shop/", b" {}\n"),
        ("app/../shop", b""),
        ("app\\shop", b"null"),
        ("\"app\"", b"\"text\""),
        ("app/\n\t\u{7f}", b"1e400"),
        ("app/\u{fc}\u{1f511}\u{202e}", b"{\"base64\":\"AAAA\"}"),
        ("'; drop table records; --", b"not json"),
        ("%_*", &[0, 0xff, 0xfe, 0]),
        (&long_key, b"{\"k\":\"\\u0000\"}"),
        ("big", &big),
        ("big json", big_json.as_bytes()),
    ];
    let mut records = BTreeMap::new();
    for (key, record) in cases {
        put(&store, key, record).await;
        records.insert(key.to_owned(), record.to_vec());
    }
    let found = store.load().await.unwrap();
    assert_eq!(found.generation, 14);
    for (key, record) in &records {
        assert!(found.records.get(key) == Some(record), "{key:?}");
    }
    assert_eq!(found.records.len(), records.len());
    // Removes only one of the records.
    assert_eq!(
        store.commit(14, "app/shop", None).await.unwrap(),
        Commit::Done(15)
    );
    records.remove("app/shop");
    assert!(store.load().await.unwrap().records == records);
}

pub async fn a_state_takes_the_place_of_everything(store: Store) {
    let state = |generation: u64, keys: &[&str]| {
        let records = keys
            .iter()
            .map(|key| ((*key).to_owned(), generation.to_string().into_bytes()))
            .collect();
        Snapshot {
            generation,
            records,
        }
    };
    let mut base = 0;
    // The state to write, and the expected generation.
    for (given, after) in [
        (state(0, &[]), 1),
        (state(40, &["", "app/a", "app/b"]), 40),
        (state(40, &["app/b", "app/c"]), 41),
        (state(7, &["app/b"]), 42),
        (state(1 << 40, &[]), 1 << 40),
    ] {
        for wrong in [base + 1, base + (1 << 20)] {
            assert_eq!(store.replace(wrong, &given).await.unwrap(), Commit::Moved);
        }
        assert_eq!(
            store.replace(base, &given).await.unwrap(),
            Commit::Done(after)
        );
        assert_eq!(store.generation().await.unwrap(), after);
        assert_eq!(
            store.load().await.unwrap(),
            Snapshot {
                generation: after,
                ..given
            }
        );
        base = after;
    }
    assert_eq!(put(&store, "app/d", b"{}").await, (1 << 40) + 1);
    wait(&store, "nobody was told").await;
}

pub async fn of_changes_at_once_one_wins_per_base(store: Store) {
    const TASKS: usize = 16;
    const EACH: usize = 4;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut won = Vec::new();
            while won.len() < EACH {
                let base = store.generation().await.unwrap();
                let key = format!("{task}/{}", won.len());
                if let Commit::Done(generation) =
                    store.commit(base, &key, Some(b"{}")).await.unwrap()
                {
                    assert_eq!(generation, base + 1);
                    won.push(generation);
                }
            }
            won
        });
    }
    let mut won = tasks.join_all().await.concat();
    won.sort_unstable();
    let all = (TASKS * EACH) as u64;
    assert!(
        won.into_iter().eq(1..=all),
        "each generation has one change"
    );
    let found = store.load().await.unwrap();
    assert_eq!((found.generation, found.records.len() as u64), (all, all));

    // Of many changes from one base, exactly one succeeds.
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            store
                .commit(all, "same", Some(task.to_string().as_bytes()))
                .await
                .unwrap()
        });
    }
    let outcomes = tasks.join_all().await;
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == Commit::Done(all + 1))
            .count(),
        1
    );
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == Commit::Moved)
            .count(),
        TASKS - 1
    );
}

pub async fn loads_are_whole_while_changes_go_on(store: Store) {
    const CHANGES: u64 = 60;
    let writer = Arc::clone(&store);
    let writing = tokio::spawn(async move {
        for base in 0..CHANGES {
            let record = (base + 1).to_string();
            writer
                .commit(
                    base,
                    ["a", "b"][(base % 2) as usize],
                    Some(record.as_bytes()),
                )
                .await
                .unwrap();
        }
    });
    let mut last = 0;
    while last < CHANGES {
        let found = store.load().await.unwrap();
        assert!(found.generation >= last, "it never goes back");
        last = found.generation;
        let newest = found
            .records
            .values()
            .map(|record| String::from_utf8_lossy(record).parse::<u64>().unwrap());
        assert_eq!(
            newest.max().unwrap_or(0),
            last,
            "records are those of their generation"
        );
        tokio::task::yield_now().await;
    }
    writing.await.unwrap();
}

async fn wait(store: &Store, why: &str) {
    assert!(
        tokio::time::timeout(SOON, store.changed()).await.is_ok(),
        "{why}"
    );
}

/// Consumes pending notifications of earlier changes, so that the next wait blocks.
async fn quiet(store: &Store) {
    while tokio::time::timeout(Duration::from_millis(50), store.changed())
        .await
        .is_ok()
    {}
}

pub async fn a_change_wakes_who_waits(store: Store) {
    quiet(&store).await;
    let waiter = Arc::clone(&store);
    let waiting = tokio::spawn(async move {
        wait(&waiter, "nobody was woken").await;
        waiter.generation().await.unwrap()
    });
    tokio::task::yield_now().await;
    put(&store, "k", b"{}").await;
    assert_eq!(waiting.await.unwrap(), 1);
}

pub async fn a_change_between_two_waits_is_not_missed(store: Store) {
    quiet(&store).await;
    for round in 0..5 {
        put(&store, "k", round.to_string().as_bytes()).await;
        wait(&store, "a change was missed").await;
        quiet(&store).await;
    }
}

pub async fn a_dropped_wait_loses_nothing(store: Store) {
    quiet(&store).await;
    for round in 0..5 {
        let mut waiting = Box::pin(store.changed());
        assert!(
            looked_at(&mut waiting).await.is_none(),
            "nothing has changed"
        );
        put(&store, "k", round.to_string().as_bytes()).await;
        drop(waiting);
        wait(&store, "a change went with the wait that was dropped").await;
        quiet(&store).await;
    }
}

/// Polls a future once.
async fn looked_at<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = std::future::ready(()) => None,
    }
}

fn instance(id: &str, generation: u64) -> Instance {
    let address = format!("127.0.0.1:{}", 7_443 + id.len());
    Instance {
        id: id.into(),
        address,
        version: "0.1.0".into(),
        generation,
        age: Duration::from_secs(7),
    }
}

pub async fn instances_say_what_they_serve_until_they_leave(store: Store) {
    const HOUR: Duration = Duration::from_secs(3_600);
    for beat in [
        instance("b", 0),
        instance("a", 3),
        instance("b", 5),
        instance("\u{fc}'\"", 1 << 40),
    ] {
        store.beat(&beat).await.unwrap();
    }
    let found = async || {
        let found = store.instances(HOUR).await.unwrap();
        assert!(
            found.iter().all(|it| it.age < HOUR),
            "the age is the store's"
        );
        let plain = |it: Instance| Instance {
            age: Duration::from_secs(7),
            ..it
        };
        found.into_iter().map(plain).collect::<Vec<_>>()
    };
    assert_eq!(
        found().await,
        [
            instance("a", 3),
            instance("b", 5),
            instance("\u{fc}'\"", 1 << 40)
        ]
    );
    for gone in ["b", "b", "nobody"] {
        store.leave(gone).await.unwrap();
        assert_eq!(
            found().await,
            [instance("a", 3), instance("\u{fc}'\"", 1 << 40)]
        );
    }
    assert_eq!(
        store.load().await.unwrap(),
        Snapshot::default(),
        "no instance is a change"
    );
}

pub async fn instances_age(store: Store) {
    let pause = Duration::from_millis(20);
    store.beat(&instance("a", 1)).await.unwrap();
    tokio::time::sleep(pause).await;
    let found = store.instances(Duration::from_secs(3_600)).await.unwrap();
    assert!(found[0].age >= pause, "{:?}", found[0].age);
    assert!(
        store.instances(Duration::ZERO).await.unwrap().is_empty(),
        "it is older than that"
    );
    store.beat(&instance("a", 2)).await.unwrap();
    let again = store.instances(Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(
        again.iter().map(|it| it.generation).collect::<Vec<_>>(),
        [2]
    );
}

pub async fn a_lease_has_one_holder(store: Store) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let take =
        async |name: &str, holder: &str, time| store.lease(name, holder, time).await.unwrap();
    assert!(take("sweep", "a", HOUR).await);
    assert!(!take("sweep", "b", HOUR).await, "a has it");
    assert!(take("other", "b", HOUR).await, "another lease");
    assert!(take("sweep", "a", HOUR).await, "extended");
    // An expired lease goes to the first instance that requests it.
    assert!(take("sweep", "a", Duration::ZERO).await);
    assert!(take("sweep", "b", HOUR).await);
    assert!(!take("sweep", "a", Duration::ZERO).await, "b has it");
    // An instance that leaves releases its own leases and no others.
    store.leave("a").await.unwrap();
    assert!(!take("sweep", "a", HOUR).await);
    store.leave("b").await.unwrap();
    assert!(take("sweep", "a", HOUR).await && take("other", "a", HOUR).await);
    assert_eq!(
        store.load().await.unwrap(),
        Snapshot::default(),
        "no lease is a change"
    );
}
