//! Tests of sweeps by an engine whose clock differs from the database's clock.

use std::time::{SystemTime, UNIX_EPOCH};

use super::open;
use sealwire_store::contract_tests::tokens::{fresh, row, scanned};
use sealwire_store::{Row, SECONDS_MAX, Sweep, TokenStore as _};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_ahead_sweeps_nothing_early() {
    const HOUR: u64 = 3_600;
    let store = open(false).await;
    let map = fresh();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let expiring = |n, expires| Row {
        expires: Some(expires),
        ..row(n)
    };
    let archived = |n, archived| Row {
        archived: Some(archived),
        ..row(n)
    };
    let rows = [
        expiring(1, now - HOUR),
        expiring(2, now + HOUR),
        archived(3, now - 2 * HOUR),
        archived(4, now - HOUR / 2),
    ];
    store
        .put(&rows.clone().map(|row| (map, row)))
        .await
        .unwrap();
    // The clock is a year ahead, and at its maximum. Archived rows are kept for an hour.
    for ahead in [now + 365 * 24 * HOUR, SECONDS_MAX] {
        let archive = Sweep::Archive {
            expired_before: ahead,
        };
        let prune = Sweep::Prune {
            archived_before: ahead - HOUR,
        };
        let archives = store
            .sweep(ahead, map, archive, None, 10)
            .await
            .unwrap()
            .found;
        let prunes = store
            .sweep(ahead, map, prune, None, 10)
            .await
            .unwrap()
            .found;
        let is_first = ahead != SECONDS_MAX;
        assert_eq!(
            (archives, prunes),
            (u64::from(is_first), u64::from(is_first)),
            "{ahead}"
        );
        let left = scanned(&store, map).await;
        assert_eq!(
            left.iter().map(|row| row.id).collect::<Vec<_>>(),
            [rows[0].id, rows[1].id, rows[3].id]
        );
        assert_eq!(left[1], rows[1]);
        let at = left[0].archived.unwrap();
        assert!(
            (now..now + HOUR).contains(&at),
            "by the database's clock: {at}"
        );
    }
}
