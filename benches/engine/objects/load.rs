//! Callers that send the next request as soon as they have the response.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire_benches::stats::Random;
use tokio::task::JoinSet;

use super::Operation;

/// Measurements of one window.
pub(super) struct Window {
    pub(super) per_s: f64,
    /// Latencies of requests, in seconds.
    pub(super) latencies: Vec<f64>,
    pub(super) rejected: u64,
}

/// A side of the comparison.
pub(super) trait Target: Send + Sync + 'static {
    /// Makes one request and checks its response. `random`: selects what is read. Returns false if
    /// the request was rejected because of overload.
    fn call(
        &self,
        operation: Operation,
        random: u64,
    ) -> impl Future<Output = io::Result<bool>> + Send;
}

pub(super) async fn window<T: Target>(
    target: &Arc<T>,
    operation: Operation,
    callers: u64,
    window: Duration,
) -> io::Result<Window> {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let target = Arc::clone(target);
        tasks.spawn(async move {
            let (mut random, mut latencies, mut rejected) =
                (Random::new(caller + 1), Vec::new(), 0);
            while begun.elapsed() < window {
                let since = Instant::now();
                if target.call(operation, random.bits()).await? {
                    latencies.push(since.elapsed().as_secs_f64());
                } else {
                    rejected += 1;
                }
            }
            Ok((latencies, rejected))
        });
    }
    let done = tasks
        .join_all()
        .await
        .into_iter()
        .collect::<io::Result<Vec<(Vec<f64>, u64)>>>()?;
    let took = begun.elapsed().as_secs_f64();
    let rejected = done.iter().map(|(_, rejected)| rejected).sum();
    let latencies: Vec<f64> = done
        .into_iter()
        .flat_map(|(latencies, _)| latencies)
        .collect();
    let objects = latencies.len() as f64 * operation.objects() as f64;
    Ok(Window {
        per_s: objects / took,
        latencies,
        rejected,
    })
}
