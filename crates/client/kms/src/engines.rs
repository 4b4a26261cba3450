//! The engines, and the choice of an engine for a request.
//!
//! Each engine has its own client. A request goes to the engine that succeeded last, and on
//! to the next engines if that one fails. The choice is not spread over the engines: after a
//! rotation, engines load the new key at different times, and the API server expects the key id of
//! `Status` from the next `Encrypt`, too.
//!
//! The plugin remembers the newest state that an engine reported, and requires it of all engines.
//! Otherwise an engine that is behind could bring an older key back.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant as StdInstant;

use sealwire_client::{Client, ClientConfig, Error, RequestOptions};
use sealwire_service::log_throttle::LogThrottle;
use tokio::time::{Instant, timeout_at};

use crate::error::Failure;

/// All engines.
#[derive(Debug)]
pub struct Engines {
    engines: Vec<Engine>,
    /// Index of the engine that succeeded last.
    preferred: AtomicUsize,
    /// Newest generation of the control state that an engine reported; 0 if unknown.
    newest: AtomicU64,
    failures: LogThrottle,
}

/// An engine.
#[derive(Debug)]
pub struct Engine {
    /// `host:port`, as configured.
    pub address: String,
    client: Client,
}

/// An attempt with one engine.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    end: Instant,
    min_generation: Option<u64>,
}

impl Attempt {
    /// Returns the options of a request of this attempt.
    pub fn options<'a>(&self, reason: &'a str) -> RequestOptions<'a> {
        RequestOptions::new()
            .deadline(self.end.saturating_duration_since(Instant::now()))
            .min_generation(self.min_generation)
            .reason(reason)
    }
}

/// The result of an attempt, with the generation that the engine reported.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The result.
    pub value: T,
    /// Generation of the engine's control state.
    pub generation: u64,
}

impl Engines {
    /// Creates the clients. Opens no connection. Reads the certificate files, so it blocks.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn new(configs: Vec<ClientConfig>) -> Result<Self, Error> {
        let mut engines = Vec::with_capacity(configs.len());
        for config in configs {
            let address = config.endpoints.first().map(|one| one.address.clone());
            engines.push(Engine {
                address: address.unwrap_or_default(),
                client: Client::lazy(config)?,
            });
        }
        Ok(Self {
            engines,
            preferred: AtomicUsize::new(0),
            newest: AtomicU64::new(0),
            failures: LogThrottle::new(),
        })
    }

    /// Returns the engines.
    pub fn iter(&self) -> impl Iterator<Item = &Engine> {
        self.engines.iter()
    }

    /// Returns why changed certificate files are not in use, if they are not.
    pub fn renewal_error(&self) -> Option<std::sync::Arc<str>> {
        self.engines
            .iter()
            .find_map(|engine| engine.client.renewal_error())
    }

    /// Runs an operation on an app with one engine after another until one succeeds. Each engine gets an equal
    /// part of the time that is left, so that an engine that hangs leaves time for the others.
    /// Safe to drop: the engine receives a cancel.
    ///
    /// # Errors
    /// The most telling failure.
    pub async fn run<T, F>(
        &self,
        deadline: Instant,
        app: &str,
        operation: impl Fn(Client, Attempt) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Outcome<T>, Failure>>,
    {
        let newest = self.newest.load(Ordering::Relaxed);
        let first = self.preferred.load(Ordering::Relaxed);
        let count = self.engines.len();
        let mut worst: Option<Failure> = None;
        let mut is_state_old = false;

        for step in 0..count {
            let index = (first + step) % count;
            let Some(engine) = self.engines.get(index) else {
                continue;
            };
            let attempt = Attempt {
                end: slice_end(Instant::now(), deadline, count - step),
                min_generation: (newest > 0).then_some(newest),
            };
            match engine.attempt(attempt, &operation).await {
                Ok(outcome) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    self.newest.fetch_max(outcome.generation, Ordering::Relaxed);
                    return Ok(outcome.value);
                }
                Err(failure) => {
                    if !failure.is_worth_another_engine() {
                        return Err(failure);
                    }
                    self.log_failure(engine, &failure.text(app));
                    is_state_old |= failure.is_old_state();
                    worst = Some(most_telling(worst, failure));
                }
            }
        }

        if is_state_old {
            self.accept_older_state(newest);
        }
        Err(worst.unwrap_or(Failure::Engine(Error::Deadline)))
    }

    /// Forgets a generation that no engine has any more, as after the restore of a backup. The
    /// plugin would otherwise fail until it is started again.
    fn accept_older_state(&self, newest: u64) {
        let forgotten =
            self.newest
                .compare_exchange(newest, 0, Ordering::Relaxed, Ordering::Relaxed);
        if forgotten.is_ok() {
            tracing::warn!(
                generation = newest,
                "no engine that responds has the state that an engine reported before; the next request accepts an older state"
            );
        }
    }

    fn log_failure(&self, engine: &Engine, failure: &str) {
        if let Some(suppressed) = self.failures.record(StdInstant::now()) {
            tracing::warn!(engine = %engine.address, error = failure, suppressed, "an engine failed");
        }
    }
}

impl Engine {
    /// Runs an operation with this engine alone.
    ///
    /// # Errors
    /// The failure of the operation.
    pub async fn run<T, F>(
        &self,
        deadline: Instant,
        operation: impl Fn(Client, Attempt) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Outcome<T>, Failure>>,
    {
        let attempt = Attempt {
            end: deadline,
            min_generation: None,
        };
        Ok(self.attempt(attempt, &operation).await?.value)
    }

    async fn attempt<T, F>(
        &self,
        attempt: Attempt,
        operation: &impl Fn(Client, Attempt) -> F,
    ) -> Result<Outcome<T>, Failure>
    where
        F: Future<Output = Result<Outcome<T>, Failure>>,
    {
        timeout_at(attempt.end, operation(self.client.clone(), attempt))
            .await
            .unwrap_or(Err(Failure::Engine(Error::Deadline)))
    }
}

/// Returns the end of the next attempt, if this number of engines is left.
fn slice_end(now: Instant, deadline: Instant, engines: usize) -> Instant {
    let left = deadline.saturating_duration_since(now);
    let engines = u32::try_from(engines).unwrap_or(u32::MAX).max(1);
    now + left / engines
}

/// Returns the failure that says more about the request.
fn most_telling(earlier: Option<Failure>, later: Failure) -> Failure {
    match earlier {
        Some(earlier) if earlier.weight() >= later.weight() => earlier,
        _ => later,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use sealwire_client::{ErrorCode, Pem, RpcError};
    use sealwire_dev_ca::{Authority, Leaf, Usage, Validity};
    use tonic::Code;

    use super::*;

    /// Creates clients of engines that do not exist.
    fn absent_engines(count: usize) -> Engines {
        let authority = Authority::create("test", Validity::days(2)).unwrap();
        let leaf = Leaf {
            common_name: "kms".into(),
            names: Vec::new(),
            usage: Usage::Client,
            validity: Validity::days(1),
        };
        let issued = authority.issue(&leaf).unwrap();
        let pem = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
        let config = ClientConfig::new(
            "127.0.0.1:1",
            "engine",
            pem(authority.cert_pem()),
            pem(&issued.cert_pem),
            pem(issued.key_pem.expose()),
        );
        Engines::new(vec![config; count]).unwrap()
    }

    /// Runs an operation whose attempts have these results: a generation, or the code of an error.
    /// Returns the number of attempts, the generations that they required, and the result.
    async fn run(
        engines: &Engines,
        results: &[Result<u64, ErrorCode>],
    ) -> (Vec<Option<u64>>, Result<(), Code>) {
        let required = Mutex::new(Vec::new());
        let deadline = Instant::now() + Duration::from_secs(60);
        let outcome = engines.run(deadline, "shop", |_, attempt: Attempt| {
            let mut required = required.lock().unwrap();
            required.push(attempt.min_generation);
            let result = results[required.len() - 1];
            async move {
                match result {
                    Ok(generation) => Ok(Outcome {
                        value: (),
                        generation,
                    }),
                    Err(code) => Err(Failure::Engine(Error::Rpc(RpcError::new(code, "")))),
                }
            }
        });
        let outcome = outcome.await.map_err(|failure| failure.code());
        (required.into_inner().unwrap(), outcome)
    }

    #[tokio::test]
    async fn failures_move_requests_on_unless_they_are_final() {
        use ErrorCode::{
            BadRequest, CannotOpen, Forbidden, Internal, NotFound, Overloaded, Unavailable,
        };
        for (results, attempts, expected) in [
            (&[Ok(0)][..], 1, Ok(())),
            (&[Err(Unavailable), Ok(0)], 2, Ok(())),
            (&[Err(Overloaded), Err(Internal), Ok(0)], 3, Ok(())),
            (&[Err(NotFound), Ok(0)], 2, Ok(())),
            (&[Err(CannotOpen), Ok(0)], 2, Ok(())),
            (&[Err(Forbidden)], 1, Err(Code::PermissionDenied)),
            (&[Err(BadRequest)], 1, Err(Code::InvalidArgument)),
            (&[Err(Unavailable); 3], 3, Err(Code::Unavailable)),
            (
                &[Err(Unavailable), Err(CannotOpen), Err(Unavailable)],
                3,
                Err(Code::InvalidArgument),
            ),
            (
                &[Err(Internal), Err(Unavailable), Err(NotFound)],
                3,
                Err(Code::FailedPrecondition),
            ),
        ] {
            let engines = absent_engines(3);
            let (required, outcome) = run(&engines, results).await;
            assert_eq!(
                (required.len(), outcome),
                (attempts, expected),
                "{results:?}"
            );
        }
    }

    #[tokio::test]
    async fn engines_that_worked_last_are_asked_first() {
        let engines = absent_engines(3);
        for (results, preferred) in [
            (&[Ok(0)][..], 0),
            (&[Err(ErrorCode::Unavailable), Ok(0)], 1),
            (&[Ok(0)], 1),
            (
                &[
                    Err(ErrorCode::Unavailable),
                    Err(ErrorCode::Unavailable),
                    Ok(0),
                ],
                0,
            ),
            (&[Err(ErrorCode::Unavailable); 3], 0),
        ] {
            let _ = run(&engines, results).await;
            assert_eq!(
                engines.preferred.load(Ordering::Relaxed),
                preferred,
                "{results:?}"
            );
        }
    }

    #[tokio::test]
    async fn older_states_are_required_until_no_engine_has_them() {
        let engines = absent_engines(2);
        let conflict = ErrorCode::Conflict;
        for (results, required, expected) in [
            (&[Ok(7)][..], &[None][..], Ok(())),
            (&[Ok(7)], &[Some(7)], Ok(())),
            // An engine that is behind is passed over.
            (&[Err(conflict), Ok(9)], &[Some(7), Some(7)], Ok(())),
            // An engine that is gone decides nothing, and one that is behind counts.
            (
                &[Err(ErrorCode::Unavailable); 2],
                &[Some(9), Some(9)],
                Err(Code::Unavailable),
            ),
            (
                &[Err(conflict), Err(ErrorCode::Unavailable)],
                &[Some(9), Some(9)],
                Err(Code::Unavailable),
            ),
            // After a restore, the older state is the state.
            (&[Ok(3)], &[None], Ok(())),
            (&[Ok(3)], &[Some(3)], Ok(())),
        ] {
            let found = run(&engines, results).await;
            assert_eq!(found, (required.to_vec(), expected), "{results:?}");
        }
    }

    #[test]
    fn slices_share_the_time_that_is_left() {
        let now = Instant::now();
        for (left_ms, engines, slice_ms) in [
            (3_000, 1, 3_000),
            (3_000, 3, 1_000),
            (2_000, 2, 1_000),
            (0, 2, 0),
        ] {
            let end = slice_end(now, now + Duration::from_millis(left_ms), engines);
            let expected = Duration::from_millis(slice_ms);
            assert_eq!(end - now, expected, "{left_ms} {engines}");
        }
        assert_eq!(slice_end(now, now - Duration::from_millis(1), 2), now);
    }
}
