//! Tests of rows that name data subjects: claims of their keys, walks through their rows, and
//! erasure.

use tokio::task::JoinSet;

use super::*;
use crate::contract_tests::objects;
use crate::{ObjectGroup, ObjectRow, ObjectStore, ObjectsWritten, Page, SubjectClaim, SubjectId};

const ONE: SubjectId = SubjectId([1; 16]);
const TWO: SubjectId = SubjectId([2; 16]);

pub async fn all<S: TokenStore + ObjectStore + 'static>(store: &Arc<S>) {
    a_row_is_written_under_the_current_key_only(&**store).await;
    a_claim_fails_its_group_only(&**store).await;
    a_row_is_absent_without_its_key(&**store).await;
    a_known_fingerprint_needs_the_key_too(&**store).await;
    rows_are_found_by_their_subject(&**store).await;
    a_walk_through_a_subject_has_pages(&**store).await;
    an_erasure_removes_rows_of_older_keys(&**store).await;
    no_row_is_written_after_its_key_went(store).await;
}

/// Returns a row that is sealed under a version of a subject's key.
fn of(subject: SubjectId, version: u64, row: Row) -> Row {
    let sealed = [&[3, 0, 0, 0, 1], &version.to_be_bytes()[..], &row.sealed]
        .concat()
        .into();
    Row {
        subject: Some(subject),
        sealed,
        ..row
    }
}

fn key(subject: SubjectId, version: u64) -> ObjectRow {
    let sealed = if version % 2 == 1 {
        format!("key {version}").into()
    } else {
        Bytes::new()
    };
    ObjectRow {
        id: subject.row(),
        version,
        sealed,
        ..objects::object(0)
    }
}

/// Sets the key of a subject, which must have the version before.
async fn set_key(store: &dyn ObjectStore, app: u32, subject: SubjectId, version: u64) {
    let row = key(subject, version);
    let claim = if version % 2 == 1 {
        SubjectClaim::New(row)
    } else {
        SubjectClaim::Erased(row)
    };
    let view = objects::view(MapId::of_erasures(app));
    let group = ObjectGroup {
        view,
        writes: Vec::new(),
        subjects: vec![claim],
    };
    assert_eq!(
        store.write_objects(1, vec![group]).await.remove(0).unwrap(),
        ObjectsWritten::Done
    );
}

async fn a_row_is_written_under_the_current_key_only<S: TokenStore + ObjectStore>(store: &S) {
    let map = fresh();
    let mut n = 0;
    for stored in 0..4 {
        if stored > 0 {
            set_key(store, map.app, ONE, stored).await;
        }
        for claimed in 0..5 {
            for has_fingerprint in [false, true] {
                n += 1;
                let row = of(
                    ONE,
                    claimed,
                    if has_fingerprint {
                        printed(n, n)
                    } else {
                        row(n)
                    },
                );
                let fits = claimed == stored && stored % 2 == 1;
                let expected = if fits {
                    Written::Done(vec![None])
                } else {
                    Written::SubjectsChanged
                };
                assert_eq!(
                    write(store, 1, map, &[row]).await,
                    expected,
                    "{claimed} at {stored}"
                );
            }
        }
    }
    assert_eq!(scanned(store, map).await.len(), 4);
}

async fn a_claim_fails_its_group_only<S: TokenStore + ObjectStore>(store: &S) {
    let (map, other) = (fresh(), fresh());
    set_key(store, map.app, ONE, 1).await;
    // The same subject of another app has no key.
    let groups = [
        (map, vec![of(ONE, 1, printed(1, 1)), row(2)]),
        (other, vec![of(ONE, 1, printed(1, 1))]),
        (map, vec![row(3), of(TWO, 1, row(4))]),
        (other, vec![printed(5, 5)]),
        (map, vec![of(ONE, 1, printed(6, 1))]),
    ];
    let known = of(ONE, 1, printed(1, 1));
    let expected = [
        Written::Done(vec![None, None]),
        Written::SubjectsChanged,
        Written::SubjectsChanged,
        Written::Done(vec![None]),
        Written::Done(vec![Some(known.clone())]),
    ];
    let groups = groups.map(|(map, rows)| Group { map, rows }).to_vec();
    let written: Vec<_> = store
        .write(1, groups)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(written, expected);
    assert_eq!(scanned(store, map).await, [known, row(2)]);
    assert_eq!(scanned(store, other).await, [printed(5, 5)]);
}

async fn a_row_is_absent_without_its_key<S: TokenStore + ObjectStore>(store: &S) {
    let map = fresh();
    let rows = [
        of(ONE, 1, printed(1, 1)),
        of(TWO, 1, printed(2, 2)),
        printed(3, 3),
    ];
    for subject in [ONE, TWO] {
        set_key(store, map.app, subject, 1).await;
    }
    assert_eq!(
        write(store, 1, map, &rows).await,
        Written::Done(vec![None; 3])
    );
    let check = async |expected: [Option<&str>; 3]| {
        let ids: Vec<_> = rows.iter().map(|row| (map, row.id)).collect();
        let prints: Vec<_> = [1, 2, 3].map(|n| (map, print(n))).to_vec();
        for found in [
            store.get(1, &ids).await.unwrap(),
            store.find(1, &prints).await.unwrap(),
        ] {
            for ((found, row), expected) in found.into_iter().zip(&rows).zip(expected) {
                let key = expected
                    .filter(|key| !key.is_empty())
                    .map(|key| Bytes::from(key.to_owned()));
                assert_eq!(
                    found,
                    expected.map(|_| FoundRow {
                        row: row.clone(),
                        subject_key: key
                    })
                );
            }
        }
        // One key alone is looked up by another statement.
        for ((key, row), expected) in ids.iter().zip(&rows).zip(expected) {
            let found = store.get(1, &[*key]).await.unwrap();
            assert_eq!(rows_of(found), [expected.map(|_| row.clone())]);
        }
    };
    check([Some("key 1"), Some("key 1"), Some("")]).await;
    set_key(store, map.app, ONE, 2).await;
    check([None, Some("key 1"), Some("")]).await;
    set_key(store, map.app, ONE, 3).await;
    check([None, Some("key 1"), Some("")]).await;
    // The row remains until it is removed.
    assert_eq!(scanned(store, map).await, rows);
}

async fn a_known_fingerprint_needs_the_key_too<S: TokenStore + ObjectStore>(store: &S) {
    let map = fresh();
    set_key(store, map.app, ONE, 1).await;
    let first = of(ONE, 1, printed(1, 1));
    assert_eq!(
        write(store, 1, map, std::slice::from_ref(&first)).await,
        Written::Done(vec![None])
    );
    let again = [of(ONE, 1, printed(2, 1))];
    assert_eq!(
        write(store, 1, map, &again).await,
        Written::Done(vec![Some(first)])
    );
    set_key(store, map.app, ONE, 2).await;
    assert_eq!(write(store, 1, map, &again).await, Written::SubjectsChanged);
}

async fn rows_are_found_by_their_subject<S: TokenStore + ObjectStore>(store: &S) {
    let map = fresh();
    let second = MapId {
        collection: map.collection + 1,
        ..map
    };
    let strange = fresh();
    for app in [map.app, strange.app] {
        set_key(store, app, ONE, 1).await;
        set_key(store, app, TWO, 1).await;
    }
    let one = Row {
        expires: Some(2),
        ..of(ONE, 1, printed(1, 1))
    };
    let rows = [one, of(TWO, 1, row(2)), row(3), of(ONE, 1, row(4))];
    write(store, 1, map, &rows).await;
    write(store, 1, second, &[of(ONE, 1, row(1))]).await;
    write(store, 1, strange, &[of(ONE, 1, row(9))]).await;
    let found = async |subject| {
        store
            .subject_rows(map.app, subject, None, 10)
            .await
            .unwrap()
    };
    let expected = [
        (map, rows[0].clone()),
        (map, rows[3].clone()),
        (second, of(ONE, 1, row(1))),
    ];
    assert_eq!(found(ONE).await, expected);
    assert_eq!(found(TWO).await, [(map, rows[1].clone())]);
    assert_eq!(found(SubjectId([3; 16])).await, []);
    // In any state, and after any change.
    store.archive(9, map, 9, None, 10, false).await.unwrap();
    let archived = Row {
        archived: Some(9),
        fingerprint: None,
        ..rows[0].clone()
    };
    assert_eq!(found(ONE).await[0], (map, archived));
    store.expire(1, map, &[id(4)], Some(99)).await.unwrap();
    assert_eq!(
        found(ONE).await[1],
        (
            map,
            Row {
                expires: Some(99),
                ..rows[3].clone()
            }
        )
    );
    store.prune(map, 99, None, 10, false).await.unwrap();
    assert_eq!(found(ONE).await.len(), 2);
    store.delete(second, &[id(1)]).await.unwrap();
    assert_eq!(found(ONE).await.len(), 1);
    store
        .put(&[(map, of(TWO, 1, row(4))), (second, of(ONE, 1, row(7)))])
        .await
        .unwrap();
    assert_eq!(found(ONE).await, [(second, of(ONE, 1, row(7)))]);
    assert_eq!(
        found(TWO).await,
        [(map, rows[1].clone()), (map, of(TWO, 1, row(4)))]
    );
    while store
        .sweep(9, map, crate::Sweep::Erase, None, 10)
        .await
        .unwrap()
        .next
        .is_some()
    {}
    assert_eq!(found(TWO).await, []);
}

async fn a_walk_through_a_subject_has_pages<S: TokenStore + ObjectStore>(store: &S) {
    let map = fresh();
    let second = MapId {
        collection: map.collection + 1,
        ..map
    };
    let large = |n| {
        of(
            ONE,
            1,
            Row {
                sealed: vec![7; 1 << 20].into(),
                ..row(n)
            },
        )
    };
    let rows: Vec<_> = (0..9).map(large).collect();
    let put = rows
        .iter()
        .map(|row| (map, row.clone()))
        .chain([(second, large(1))])
        .collect::<Vec<_>>();
    for row in &put {
        store.put(std::slice::from_ref(row)).await.unwrap();
    }
    for limit in [1, 2, 100] {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = store
                .subject_rows(map.app, ONE, after, limit)
                .await
                .unwrap();
            assert!(
                page.len() <= limit.min(6),
                "{} rows of a MiB each",
                page.len()
            );
            let Some((at, row)) = page.last() else { break };
            after = Some((*at, row.id));
            found.extend(page);
        }
        assert!(found == put, "{limit}");
    }
}

async fn an_erasure_removes_rows_of_older_keys<S: TokenStore + ObjectStore>(store: &S) {
    for limit in [1, 2, 100] {
        let map = fresh();
        let second = MapId {
            collection: map.collection + 1,
            ..map
        };
        let archived = Row {
            archived: Some(5),
            ..of(ONE, 1, row(5))
        };
        let kept = [of(ONE, 3, printed(1, 1)), of(TWO, 1, row(2)), row(3)];
        let erased = [of(ONE, 1, printed(4, 4)), archived, of(ONE, 1, row(6))];
        let all: Vec<_> = kept
            .iter()
            .chain(&erased)
            .map(|row| (map, row.clone()))
            .collect();
        store.put(&all).await.unwrap();
        store.put(&[(second, of(ONE, 1, row(1)))]).await.unwrap();
        // A row that is no row of a subject's form is of no key, and goes too.
        store
            .put(&[(
                second,
                Row {
                    subject: Some(ONE),
                    ..row(2)
                },
            )])
            .await
            .unwrap();
        let (mut after, mut count) = (None, 0);
        loop {
            let Page { found, next } = store
                .erase_subject_rows(map.app, ONE, 2, after, limit)
                .await
                .unwrap();
            assert!(found <= limit as u64);
            count += found;
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(count, 5, "{limit}");
        assert_eq!(scanned(store, map).await, kept);
        assert_eq!(scanned(store, second).await, []);
        assert_eq!(
            store.subject_rows(map.app, ONE, None, 9).await.unwrap(),
            [(map, kept[0].clone())]
        );
        // The fingerprint of a removed row is free.
        assert_eq!(
            write(store, 1, map, &[printed(14, 4)]).await,
            Written::Done(vec![None])
        );
    }
}

/// Tasks write rows under a key until it is erased. Whatever was acknowledged was written before.
async fn no_row_is_written_after_its_key_went<S: TokenStore + ObjectStore + 'static>(
    store: &Arc<S>,
) {
    const TASKS: u128 = 8;
    let map = fresh();
    set_key(&**store, map.app, ONE, 1).await;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(store);
        tasks.spawn(async move {
            let mut written = 0;
            for n in 0.. {
                let n = task * 1_000_000 + n;
                let rows = [of(ONE, 1, printed(n, n)), row(n + 500_000)];
                match write(&*store, 1, map, &rows).await {
                    Written::Done(_) => written += 2,
                    Written::SubjectsChanged => break,
                    taken @ Written::Taken(_) => panic!("{taken:?}"),
                }
            }
            written
        });
    }
    while scanned(&**store, map).await.len() < 40 {
        tokio::task::yield_now().await;
    }
    set_key(&**store, map.app, ONE, 2).await;
    let there = scanned(&**store, map).await.len();
    assert_eq!(tasks.join_all().await.into_iter().sum::<usize>(), there);
    assert_eq!(scanned(&**store, map).await.len(), there);
}
