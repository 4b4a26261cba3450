//! Kills during writes of objects: every group is complete, and objects agree with the terms that
//! lead to them.
//!
//! Each task adds three objects in one group. A second group replaces the first object, removes the
//! second and sets the expiry time of the third. Some tasks race for a unique term, too.

use std::collections::{BTreeMap, HashSet};
use std::env;
use std::sync::mpsc;

use sealwire_store::{
    MapId, MapView, ObjectConflict, ObjectGroup, ObjectId, ObjectRow, ObjectStore as _,
    ObjectWrite, ObjectsWritten, Term,
};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::child::{self, Reports, report};
use sealwire_testkit::{Database, Postgres};

use super::nodes::Nodes;
use super::{PASSWORD, RACERS, ROUND, TASKS, URL, kill, options, runtime};

const MAP: MapId = MapId {
    app: 3,
    collection: 5,
};
/// Counts terms on which objects and tables of terms do not agree.
const AGREE: &str = include_str!("../../src/objects/tests/agree.sql");
const EXPIRES: u64 = 1_000_000;

/// The child process of the test below; passes at once if that test did not start it.
#[test]
fn child_process() {
    let Ok(url) = env::var(URL) else { return };
    runtime().block_on(load(options(
        url,
        env::var(PASSWORD).expect("the parent sets it"),
    )));
}

/// Names a group; the lowest byte of an id is the position in the group. `raced` names are of an
/// object per task.
fn name(round: u64, task: u64, n: u64) -> u128 {
    (u128::from(round + 1) << 80) + (u128::from(task) << 64) + (u128::from(n) << 8)
}

fn row(name: u128, at: u8, terms: &[u32]) -> ObjectRow {
    let id = name + u128::from(at);
    let hash = id.to_be_bytes();
    ObjectRow {
        id: ObjectId(hash),
        version: 1,
        created: 1,
        updated: 1,
        expires: None,
        archived: None,
        subject: None,
        key: [1; 5],
        tags: Vec::new(),
        unique: vec![Term { index: 1, hash }],
        terms: terms
            .iter()
            .map(|index| Term {
                index: *index,
                hash: [7; 16],
            })
            .collect(),
        sealed: vec![0xa5; 300].into(),
    }
}

/// Writes without end, and reports what is acknowledged.
async fn load(options: PostgresOptions) {
    let round: u64 = env::var(ROUND)
        .expect("the parent sets it")
        .parse()
        .expect("a number");
    let store = PostgresStore::connect(options)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let store = store.clone();
        tasks.spawn(async move {
            for n in 0.. {
                let name = name(round, task, n);
                let rows = [0, 1, 2].map(|at| row(name, at, &[2, 3]));
                let [first, second, third] = rows.clone();
                let replaced = ObjectRow {
                    version: 2,
                    terms: row(name, 0, &[3, 4]).terms,
                    ..first
                };
                let change = vec![
                    ObjectWrite::Replace(replaced),
                    ObjectWrite::Delete {
                        id: second.id,
                        version: Some(1),
                    },
                    ObjectWrite::Expire {
                        id: third.id,
                        expires: Some(EXPIRES),
                    },
                ];
                assert_eq!(
                    write(&store, rows.map(ObjectWrite::Add).to_vec()).await,
                    ObjectsWritten::Done
                );
                report(&format!("1 {name:x}"));
                assert_eq!(write(&store, change).await, ObjectsWritten::Done);
                report(&format!("2 {name:x}"));
                race(&store, (round, task, n)).await;
            }
        });
    }
    tasks.join_all().await;
}

/// Adds an object with a term that other tasks want, too.
async fn race(store: &PostgresStore, (round, task, n): (u64, u64, u64)) {
    let wanted = name(round, task / RACERS, n);
    let term = Term {
        index: 9,
        hash: wanted.to_be_bytes(),
    };
    let raced = row(name(round, task, n) + (1 << 120), 0, &[3]);
    let unique = [raced.unique.clone(), vec![term]].concat();
    match write(store, vec![ObjectWrite::Add(ObjectRow { unique, ..raced })]).await {
        ObjectsWritten::Done => {}
        conflict => {
            let unique = ObjectConflict::Unique { index: 9 };
            assert_eq!(conflict, ObjectsWritten::Conflicts(vec![(0, unique)]));
        }
    }
    report(&format!("3 {wanted:x}"));
}

async fn write(store: &PostgresStore, writes: Vec<ObjectWrite>) -> ObjectsWritten {
    let groups = vec![ObjectGroup {
        view: MapView {
            map: MAP,
            generation: 1,
        },
        writes,
        subjects: Vec::new(),
    }];
    store
        .write_objects(1, groups)
        .await
        .remove(0)
        .unwrap_or_else(|error| panic!("{error}"))
}

// The parent.

/// Reports of the child.
#[derive(Default)]
struct Acknowledged {
    /// The last acknowledged step of each group, 1 or 2.
    steps: BTreeMap<u128, u8>,
    /// Raced terms for which a task has a result.
    raced: HashSet<u128>,
}

#[test]
fn acknowledged_objects_survive_kills_of_either_end() {
    let runtime = runtime();
    let nodes = Nodes::start();
    let database = nodes.database(&runtime);
    let mut all = Acknowledged::default();
    for round in 0..child::rounds(6) {
        let acknowledged = kill(&nodes, &database, round, "objects::child_process", collect);
        all.steps.extend(acknowledged.steps);
        all.raced.extend(acknowledged.raced);
        runtime.block_on(verify(nodes.server(), &database, &all));
        println!(
            "round {round}: {} groups acknowledged so far",
            all.steps.len()
        );
    }
}

fn collect(reports: Reports, first: &mpsc::Sender<()>) -> Acknowledged {
    let mut acknowledged = Acknowledged::default();
    for line in reports {
        let (step, name) = line.split_once(' ').expect("two numbers");
        let name = u128::from_str_radix(name, 16).expect("hexadecimal");
        match step.parse().expect("a step") {
            3 => acknowledged.raced.extend([name]),
            step => acknowledged.steps.extend([(name, step)]),
        }
        let _ = first.send(());
    }
    acknowledged
}

async fn verify(server: &Postgres, database: &Database<'_>, acknowledged: &Acknowledged) {
    assert_eq!(
        database.sql(AGREE).expect("counts"),
        "0",
        "objects and terms do not agree"
    );
    let store =
        PostgresStore::connect(options(database.socket_url(), server.password().to_owned())).await;
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    let (mut groups, mut raced): (BTreeMap<u128, Vec<ObjectRow>>, HashSet<u128>) =
        Default::default();
    let mut after = None;
    loop {
        let page = store
            .scan_objects(after, 1_000)
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let Some((map, last)) = page.last() else {
            break;
        };
        after = Some((*map, last.id));
        for (_, row) in page {
            let taken = row.unique.iter().filter(|term| term.index == 9);
            raced.extend(taken.map(|term| u128::from_be_bytes(term.hash)));
            let id = u128::from_be_bytes(row.id.0);
            if id >> 120 == 0 {
                groups.entry(id & !0xff).or_default().push(row);
            }
        }
    }
    for (name, step) in &acknowledged.steps {
        let found = groups
            .get(name)
            .unwrap_or_else(|| panic!("{name:x} was acknowledged and is lost"));
        assert!(
            state(found) >= *step,
            "{name:x}: step {step} was acknowledged and is lost"
        );
    }
    for rows in groups.values() {
        state(rows);
    }
    assert!(
        acknowledged.raced.is_subset(&raced),
        "a raced term has no holder"
    );
}

/// Returns the last step of a group. Panics if a step is incomplete.
fn state(rows: &[ObjectRow]) -> u8 {
    let state: Vec<_> = rows
        .iter()
        .map(|row| (row.id.0[15], row.version, row.expires))
        .collect();
    match state[..] {
        [(0, 1, None), (1, 1, None), (2, 1, None)] => 1,
        [(0, 2, None), (2, 1, Some(EXPIRES))] => 2,
        _ => panic!("a group is incomplete: {state:?}"),
    }
}
