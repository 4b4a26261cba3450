//! Tests of the [`TokenStore`] contract, as tables. Each test works in its own maps, so that one
//! store serves all tests.

pub mod keep;
pub mod race;
pub mod reseal;
pub mod subjects;
pub mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;

use crate::{
    Fingerprint, FoundRow, Group, MapId, Row, SECONDS_MAX, StoreError, TokenId, TokenStore, Written,
};

/// Returns a map that no other test uses.
pub fn fresh() -> MapId {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    MapId {
        app: NEXT.fetch_add(1, Ordering::Relaxed),
        collection: 1,
    }
}

pub fn id(n: u128) -> TokenId {
    TokenId(n.to_be_bytes())
}

pub fn print(n: u128) -> Fingerprint {
    Fingerprint(n.to_be_bytes())
}

/// Returns a row with this id, without a fingerprint, that never expires.
pub fn row(n: u128) -> Row {
    let sealed = Bytes::from(format!("sealed {n}"));
    Row {
        id: id(n),
        fingerprint: None,
        sealed,
        tags: Vec::new(),
        expires: None,
        created: 1,
        archived: None,
        subject: None,
    }
}

/// Returns a row with this id and fingerprint.
pub fn printed(n: u128, fingerprint: u128) -> Row {
    Row {
        fingerprint: Some(print(fingerprint)),
        ..row(n)
    }
}

/// Writes one group.
pub async fn write(store: &dyn TokenStore, now: u64, map: MapId, rows: &[Row]) -> Written {
    let mut answers = store
        .write(
            now,
            vec![Group {
                map,
                rows: rows.to_vec(),
            }],
        )
        .await;
    assert_eq!(answers.len(), 1);
    answers.remove(0).unwrap()
}

/// Returns every row of a map, in any state.
pub async fn scanned(store: &dyn TokenStore, map: MapId) -> Vec<Row> {
    let before = MapId {
        app: map.app,
        collection: map.collection - 1,
    };
    let mut after = (before, TokenId([0xff; 16]));
    let mut rows = Vec::new();
    loop {
        let page = store.scan(Some(after), 64).await.unwrap();
        assert!(page.len() <= 64);
        for (at, row) in &page {
            assert!((*at, row.id) > after, "a scan goes up");
            after = (*at, row.id);
        }
        let end = page.len();
        rows.extend(
            page.into_iter()
                .filter(|(at, _)| *at == map)
                .map(|(_, row)| row),
        );
        if end == 0 || after.0 != map && after.0 != before {
            return rows;
        }
    }
}

fn ids(rows: &[Row]) -> Vec<TokenId> {
    rows.iter().map(|row| row.id).collect()
}

/// Returns what lookups found, without the keys of subjects.
pub fn rows_of(found: Vec<Option<FoundRow>>) -> Vec<Option<Row>> {
    found.into_iter().map(|found| Some(found?.row)).collect()
}

async fn get_all(
    store: &dyn TokenStore,
    now: u64,
    map: MapId,
    ids: &[TokenId],
) -> Vec<Option<Row>> {
    let keys: Vec<_> = ids.iter().map(|id| (map, *id)).collect();
    rows_of(store.get(now, &keys).await.unwrap())
}

async fn find_all(
    store: &dyn TokenStore,
    now: u64,
    map: MapId,
    prints: &[u128],
) -> Vec<Option<Row>> {
    let keys: Vec<_> = prints.iter().map(|n| (map, print(*n))).collect();
    rows_of(store.find(now, &keys).await.unwrap())
}

fn is_out_of_range<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::TimeOutOfRange { .. }))
}

const TIMES_TOO_LATE: [u64; 4] = [
    SECONDS_MAX + 1,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX,
];
