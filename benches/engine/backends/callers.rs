//! Clients that each take the next secret, write or read it, and continue when they have the
//! response.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sealwire_benches::stats::Summary;
use sealwire_store::{Group, Row, Written};
use tokio::task::JoinSet;

use crate::backends::Turn;
use crate::backends::secrets::MAP;
use crate::backends::store::{StorePlace, failed};

/// Step between the secrets of consecutive reads, so that reads do not follow the order of writes.
/// The step is prime, so reads visit each secret once if the prime does not divide their count.
const STEP: usize = 7_919;

/// Performs the engine's steps for a write: acquire a permit, form a group, commit.
pub(crate) async fn write(
    place: &StorePlace,
    secrets: &[Group],
    callers: usize,
) -> io::Result<Turn> {
    let (coalescer, throttle) = (Arc::clone(&place.coalescer), Arc::clone(&place.throttle));
    run(secrets.to_vec(), callers, move |secret| {
        let (coalescer, throttle) = (Arc::clone(&coalescer), Arc::clone(&throttle));
        async move {
            let (rows, bytes) = (secret.rows.len(), secret.rows.iter().map(Row::bytes).sum());
            let permit = throttle
                .reserve(rows, bytes, None)
                .await
                .map_err(|_| failed("refused by the throttle"))?;
            match coalescer
                .write(1, secret, None, Some(permit))
                .await
                .map_err(failed)?
            {
                Written::Done(held) if held.iter().all(Option::is_none) => Ok(()),
                other => Err(failed(format!("a new secret was not written: {other:?}"))),
            }
        }
    })
    .await
}

/// Reads all values of a secret in one look-up, and compares them with the written values.
pub(crate) async fn read(
    place: &StorePlace,
    secrets: &[Group],
    callers: usize,
) -> io::Result<Turn> {
    let count = secrets.len();
    let step = if count.is_multiple_of(STEP) { 1 } else { STEP };
    let shuffled = (0..count)
        .map(|at| secrets[at * step % count].clone())
        .collect();
    let coalescer = Arc::clone(&place.coalescer);
    run(shuffled, callers, move |secret| {
        let coalescer = Arc::clone(&coalescer);
        async move {
            let keys: Vec<_> = secret.rows.iter().map(|row| (MAP, row.id)).collect();
            let found = coalescer.get(1, &keys, None).await.map_err(failed)?;
            let is_same = found
                .iter()
                .map(|found| Some(&found.as_ref()?.row))
                .eq(secret.rows.iter().map(Some));
            if is_same {
                Ok(())
            } else {
                Err(failed("a secret was not read as it was written"))
            }
        }
    })
    .await
}

async fn run<C, A>(secrets: Vec<Group>, callers: usize, call: C) -> io::Result<Turn>
where
    C: Fn(Group) -> A + Clone + Send + 'static,
    A: Future<Output = io::Result<()>> + Send + 'static,
{
    let count = secrets.len();
    let (secrets, next) = (Arc::new(secrets), Arc::new(AtomicUsize::new(0)));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (secrets, next, call) = (Arc::clone(&secrets), Arc::clone(&next), call.clone());
        tasks.spawn(async move {
            let mut times = Vec::new();
            while let Some(secret) = secrets.get(next.fetch_add(1, Ordering::Relaxed)) {
                let secret = secret.clone();
                let since = Instant::now();
                call(secret).await?;
                times.push(since.elapsed().as_secs_f64() * 1e6);
            }
            Ok(times)
        });
    }
    let times = tasks
        .join_all()
        .await
        .into_iter()
        .collect::<io::Result<Vec<_>>>()?
        .concat();
    let took = begun.elapsed().as_secs_f64();
    debug_assert_eq!(times.len(), count);
    Ok(Turn {
        per_s: count as f64 / took,
        us: Summary::of(times),
    })
}
