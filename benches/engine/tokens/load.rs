//! Clients with one token each, served as in the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire_benches::stats::Random;
use sealwire_store::{Group, Written};
use tokio::task::JoinSet;

use crate::tokens::Window;
use crate::tokens::place::{MAP, Place, id};

/// Runs clients that write one token after another: acquire a permit, form a group, commit.
pub(crate) async fn write(
    place: &Arc<Place>,
    callers: usize,
    printed: bool,
    window: Duration,
) -> Window {
    let call = move |place: Arc<Place>, _| async move {
        let rows = place.fresh(1, printed);
        let permit = place
            .throttle
            .reserve(1, rows[0].bytes(), None)
            .await
            .expect("is never refused");
        let written = place
            .coalescer
            .write(1, Group { map: MAP, rows }, None, Some(permit))
            .await;
        assert_eq!(written.expect("writes"), Written::Done(vec![None]));
    };
    run(place, callers, window, call).await
}

/// Runs clients that look up one token after another.
pub(crate) async fn look_up(place: &Arc<Place>, callers: usize, window: Duration) -> Window {
    let call = |place: Arc<Place>, random: u64| async move {
        let key = (MAP, id(random % place.there()));
        let rows = place.coalescer.get(1, &[key], None).await.expect("reads");
        assert_eq!(rows[0].as_ref().map(|found| found.row.id), Some(key.1));
    };
    run(place, callers, window, call).await
}

/// Runs clients that send the next request as soon as they have the response.
async fn run<C, A>(place: &Arc<Place>, callers: usize, window: Duration, call: C) -> Window
where
    C: Fn(Arc<Place>, u64) -> A + Clone + Send + 'static,
    A: Future<Output = ()> + Send + 'static,
{
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (place, call) = (Arc::clone(place), call.clone());
        tasks.spawn(async move {
            let mut random = Random::new(caller as u64 + 1);
            let mut latencies = Vec::new();
            while begun.elapsed() < window {
                let since = Instant::now();
                call(Arc::clone(&place), random.bits()).await;
                latencies.push(since.elapsed().as_secs_f64());
            }
            latencies
        });
    }
    let latencies = tasks.join_all().await.concat();
    Window {
        rate: latencies.len() as f64 / begun.elapsed().as_secs_f64(),
        latencies,
    }
}
