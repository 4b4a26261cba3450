//! Runs random changes of control state on a store and on a minimal model. Both must agree after
//! every step, for records that are loaded together and for individually read records.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::{Commit, ControlStore, SINGLE, Snapshot, everything};

const CASES: u32 = 24;

/// Keys on both sides of the prefix, close to it, and with bytes that collations sort differently.
const KEYS: [&str; 14] = [
    "app/a",
    "principal",
    "principal/",
    "principal/cn/A b",
    "principal/cn/a b",
    "principal/cn/a-b",
    "principal/cn/\u{e4}",
    "principal/dns/relay",
    "principal/spiffe/spiffe://org/relay/x",
    "principal0",
    "principals/x",
    "role/relay",
    "Principal/x",
    "",
];

#[derive(Clone, Debug)]
enum Step {
    /// A commit from a base that is the given number of generations behind.
    Commit(u64, &'static str, Option<Vec<u8>>),
    Replace(u64, u64, Vec<(&'static str, Vec<u8>)>),
}

fn step() -> impl Strategy<Value = Step> {
    let behind = || prop_oneof![5 => Just(0_u64), 1 => 1_u64..3];
    let record = || vec(any::<u8>(), 0..6);
    prop_oneof![
        6 => (behind(), select(KEYS.to_vec()), option::weighted(0.7, record()))
            .prop_map(|(behind, key, record)| Step::Commit(behind, key, record)),
        1 => (behind(), 0_u64..60, vec((select(KEYS.to_vec()), record()), 0..6))
            .prop_map(|(behind, generation, records)| Step::Replace(behind, generation, records)),
    ]
}

pub async fn what_is_read_one_by_one_agrees_with_a_model(store: Arc<dyn ControlStore>) {
    let runtime = tokio::runtime::Handle::current();
    let run = move || {
        let config = Config {
            cases: CASES,
            failure_persistence: None,
            max_shrink_iters: 200,
            ..Config::default()
        };
        TestRunner::new(config).run(&vec(step(), 1..12), |steps| {
            runtime.block_on(agree(&*store, steps))
        })
    };
    if let Err(error) = tokio::task::spawn_blocking(run)
        .await
        .expect("does not panic")
    {
        panic!("{error}");
    }
}

/// Starts with the records that the previous case left.
async fn agree(store: &dyn ControlStore, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut model = everything(store).await.unwrap();
    for step in steps {
        let now = model.generation;
        let (made, base) = match &step {
            Step::Commit(behind, key, record) => {
                let base = now.saturating_sub(*behind);
                (
                    store.commit(base, key, record.as_deref()).await.unwrap(),
                    base,
                )
            }
            Step::Replace(behind, generation, records) => {
                let base = now.saturating_sub(*behind);
                let records = records
                    .iter()
                    .map(|(key, of)| ((*key).to_owned(), of.clone()))
                    .collect();
                let state = Snapshot {
                    generation: *generation,
                    records,
                };
                (store.replace(base, &state).await.unwrap(), base)
            }
        };
        if base == now {
            model.generation = match &step {
                Step::Commit(_, key, Some(record)) => {
                    model.records.insert((*key).to_owned(), record.clone());
                    now + 1
                }
                Step::Commit(_, key, None) => {
                    model.records.remove(*key);
                    now + 1
                }
                Step::Replace(_, generation, records) => {
                    model.records = records
                        .iter()
                        .map(|(key, of)| ((*key).to_owned(), of.clone()))
                        .collect();
                    (now + 1).max(*generation)
                }
            };
            prop_assert_eq!(made, Commit::Done(model.generation), "{:?}", step);
        } else {
            prop_assert_eq!(made, Commit::Moved, "{:?}", step);
        }
        compare(store, &model, &step).await?;
    }
    Ok(())
}

async fn compare(
    store: &dyn ControlStore,
    model: &Snapshot,
    step: &Step,
) -> Result<(), TestCaseError> {
    let (single, together): (BTreeMap<_, _>, BTreeMap<_, _>) = model
        .records
        .clone()
        .into_iter()
        .partition(|(key, _)| key.starts_with(SINGLE));
    let generation = model.generation;
    prop_assert_eq!(
        store.load().await.unwrap(),
        Snapshot {
            generation,
            records: together
        },
        "{:?}",
        step
    );
    for key in KEYS {
        let one = (generation, model.records.get(key).cloned());
        prop_assert_eq!(store.read(key).await.unwrap(), one, "{:?}: {:?}", step, key);
    }
    // From any start key, and in pages of any size.
    for after in [None]
        .into_iter()
        .chain(KEYS.map(Some))
        .chain([Some("principal/zz"), Some("z")])
    {
        for limit in [0, 1, 3, 100] {
            let behind = single
                .iter()
                .filter(|(key, _)| after.is_none_or(|after| key.as_str() > after));
            let records = behind
                .take(limit)
                .map(|(key, of)| (key.clone(), of.clone()))
                .collect();
            let page = store.singles(after, limit).await.unwrap();
            prop_assert_eq!(
                page,
                Snapshot {
                    generation,
                    records
                },
                "{:?}: after {:?}, {}",
                step,
                after,
                limit
            );
        }
    }
    prop_assert_eq!(&everything(store).await.unwrap(), model);
    Ok(())
}
