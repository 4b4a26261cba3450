//! Tests of concurrent requests.

use std::collections::{BTreeMap, BTreeSet};

use tokio::task::JoinSet;

use super::*;

const TASKS: u128 = 64;
const PRINTS: u128 = 24;

pub async fn all(store: &Arc<dyn TokenStore>) {
    everybody_gets_the_same_row(store, fresh()).await;
    expired_holders_give_way_once(store).await;
    an_id_goes_to_one(store).await;
}

/// Every task writes all fingerprints under its own ids, in its own groups and order.
async fn everybody_gets_the_same_row(store: &Arc<dyn TokenStore>, map: MapId) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let mut rows: Vec<Row> = (0..PRINTS)
                .map(|n| printed((task + 1) * 1_000 + n, n))
                .collect();
            rows.rotate_left((task % PRINTS) as usize);
            if task % 2 == 0 {
                rows.reverse();
            }
            let mut mine = Vec::new();
            for chunk in rows.chunks([1, 5, 24][task as usize % 3]) {
                let Written::Done(answer) = write(&*store, 20, map, chunk).await else {
                    panic!("ids are free")
                };
                mine.extend(
                    chunk
                        .iter()
                        .zip(answer)
                        .map(|(row, known)| (known.is_none(), known.unwrap_or(row.clone()))),
                );
            }
            mine
        });
    }
    let mut winners: BTreeMap<_, BTreeSet<TokenId>> = BTreeMap::new();
    let mut written = 0;
    for (new, row) in tasks.join_all().await.into_iter().flatten() {
        winners.entry(row.fingerprint).or_default().insert(row.id);
        written += u128::from(new);
    }
    assert_eq!(written, PRINTS, "each once");
    assert_eq!(winners.len() as u128, PRINTS);
    for (print, ids) in winners {
        let found = store
            .find(20, &[(map, print.expect("asked with one"))])
            .await
            .unwrap();
        assert_eq!(
            found[0]
                .as_ref()
                .map(|found| BTreeSet::from([found.row.id])),
            Some(ids)
        );
    }
}

async fn expired_holders_give_way_once(store: &Arc<dyn TokenStore>) {
    let map = fresh();
    let expired: Vec<Row> = (0..PRINTS)
        .map(|n| Row {
            expires: Some(10),
            ..printed(n, n)
        })
        .collect();
    assert_eq!(
        write(&**store, 1, map, &expired).await,
        Written::Done(vec![None; PRINTS as usize])
    );
    everybody_gets_the_same_row(store, map).await;
    let there = scanned(&**store, map).await;
    assert_eq!(there.len() as u128, 2 * PRINTS);
    let archived: Vec<Row> = expired
        .into_iter()
        .map(|row| Row {
            archived: Some(20),
            fingerprint: None,
            ..row
        })
        .collect();
    assert_eq!(there[..PRINTS as usize], archived);
}

async fn an_id_goes_to_one(store: &Arc<dyn TokenStore>) {
    let map = fresh();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(store);
        tasks.spawn(async move { write(&*store, 1, map, &[row(100 + task), row(task % 4)]).await });
    }
    let answers = tasks.join_all().await;
    assert_eq!(
        answers
            .iter()
            .filter(|answer| **answer == Written::Done(vec![None, None]))
            .count(),
        4
    );
    assert_eq!(
        answers
            .iter()
            .filter(|answer| **answer == Written::Taken(vec![1]))
            .count(),
        TASKS as usize - 4
    );
    assert_eq!(scanned(&**store, map).await.len(), 8);
}
