//! The schemas of collections of objects: arguments of `create` and `alter`, and the wait for other
//! engines.

use std::path::PathBuf;
use std::time::Duration;

use sealwire_client::{Error, ErrorCode, RpcError};
use sealwire_service::output::errln;
use sealwire_wire::control::{
    AlterCollection, CollectionChanged, CollectionOperation, CollectionRequest, CreateCollection,
};
use tokio::time::Instant;

use crate::commands::Failure;
use crate::commands::connect::{RETRY_PAUSE, retry_pause};
use crate::commands::documents::SuiteName;
use crate::commands::operator::ControlTarget;
use crate::commands::properties::{self, PropertyInput};

/// Pause between lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Number of consecutive errors after which a request that is safe to repeat fails.
const FAILURES_MAX: u32 = 60;

/// Settings of a new collection of objects.
///
/// The parser does not demand `objects` where it conflicts with a given argument, so each option
/// also names `kind`.
#[derive(Debug, clap::Args)]
pub(super) struct ObjectRules {
    /// Create a collection of objects with these properties, instead of one of tokens
    #[arg(long, requires = "source", conflicts_with_all = ["kind", "format", "first", "last", "scope"])]
    objects: bool,
    #[command(flatten)]
    source: SchemaSource,
    /// Has no effect: objects are sealed under the token key of the app
    #[arg(long, value_enum, requires = "objects", conflicts_with = "kind")]
    suite: Option<SuiteName>,
}

#[derive(Debug, clap::Args)]
#[group(id = "source", multiple = false)]
struct SchemaSource {
    /// A property: NAME:TYPE and any of the words required (every object has a value), unique,
    /// index (objects are found by it), bits=N, prefixes=N,N, accept-leak, clear (not encrypted)
    /// and description="TEXT"; repeat for more. Types: string, integer, decimal, boolean, date,
    /// timestamp, json, blob, email, phone, card, iban, national_id, name, address, ip
    #[arg(long, value_name = "PROPERTY", value_parser = PropertyInput::from_text, requires = "objects", conflicts_with = "kind")]
    property: Vec<PropertyInput>,
    /// Read the properties from this JSON file: an array, with fields as `collections list --json`
    /// shows them
    #[arg(
        long,
        value_name = "FILE",
        requires = "objects",
        conflicts_with = "kind"
    )]
    schema: Option<PathBuf>,
}

impl ObjectRules {
    /// Returns the properties of the arguments or of the file.
    pub(super) fn properties(&self) -> Result<Vec<PropertyInput>, Failure> {
        self.source
            .schema
            .as_deref()
            .map_or_else(|| Ok(self.source.property.clone()), properties::from_file)
    }

    /// Returns the creation of a collection with these properties and times.
    pub(super) fn to_operation<'a>(
        &self,
        properties: &'a [PropertyInput],
        expires_s: Option<u64>,
        retention_s: Option<u64>,
    ) -> CollectionOperation<'a> {
        let properties = properties.iter().map(PropertyInput::spec).collect();
        CollectionOperation::Create(CreateCollection {
            suite: self.suite.map(Into::into),
            expires_s,
            retention_s,
            ..CreateCollection::of_objects(properties)
        })
    }
}

/// A change of a schema.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(super) struct SchemaChanges {
    /// Add a property, as in `collections create --property`, but not required; repeat for more, as
    /// with all options here
    #[arg(long, value_name = "PROPERTY", value_parser = PropertyInput::from_text)]
    add: Vec<PropertyInput>,
    /// Drop a property. All its values are hidden at once, and this cannot be undone
    #[arg(long, value_name = "NAME")]
    drop: Vec<String>,
    /// Let several objects have equal values of a unique property
    #[arg(long, value_name = "NAME")]
    allow_duplicates: Vec<String>,
    /// Let objects be without a value of a required property
    #[arg(long, value_name = "NAME")]
    allow_null: Vec<String>,
    /// Drop the index of a property. Objects are not found by it any more
    #[arg(long, value_name = "NAME")]
    drop_index: Vec<String>,
    /// Has no effect: objects are sealed under the token key of the app
    #[arg(long, value_enum)]
    suite: Option<SuiteName>,
}

impl SchemaChanges {
    /// Returns the change as requests carry it.
    pub(super) fn to_operation(&self) -> CollectionOperation<'_> {
        CollectionOperation::Alter(AlterCollection {
            add: self.add.iter().map(PropertyInput::spec).collect(),
            drop: as_strs(&self.drop),
            allow_duplicates: as_strs(&self.allow_duplicates),
            allow_null: as_strs(&self.allow_null),
            drop_index: as_strs(&self.drop_index),
            suite: self.suite.map(Into::into),
        })
    }
}

fn as_strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// Changes a schema. With `wait`, repeats the change while the response is a temporary conflict.
pub(super) async fn alter_schema(
    control: &ControlTarget,
    call: CollectionRequest<'_>,
    wait: bool,
) -> Result<CollectionChanged, Failure> {
    if wait {
        return repeat_during_conflict(
            async || control.change_collection(call.clone()).await,
            |message| errln!("waiting: {message}"),
        )
        .await;
    }
    control
        .change_collection(call)
        .await
        .map_err(|failure| match passing_conflict(&failure) {
            Some(_) => format!("{failure}; --wait repeats the change until it can be made").into(),
            None => failure,
        })
}

/// Repeats a change while it conflicts with a temporary state. Passes the conflict to `report` at
/// once, and then about every [`PROGRESS_EVERY`]. Dropping the future is safe, because a change is
/// atomic.
pub(super) async fn repeat_during_conflict<T>(
    change: impl AsyncFn() -> Result<T, Failure>,
    report: impl FnMut(&str),
) -> Result<T, Failure> {
    repeat_while(change, passing_conflict, report).await
}

/// Repeats a request that is safe to repeat, while it fails with a temporary error. Such an error
/// is a conflict, a missed deadline, an unavailable engine or database, or a lost response. Fails
/// after [`FAILURES_MAX`] such errors in sequence, but waits for conflicts without limit.
pub(in crate::commands) async fn repeat_safely<T>(
    request: impl AsyncFn() -> Result<T, Failure>,
    report: impl FnMut(&str),
) -> Result<T, Failure> {
    let mut failures = 0;
    repeat_while(
        request,
        |failure| {
            if let Some(conflict) = passing_conflict(failure) {
                failures = 0;
                return Some(conflict);
            }
            failures += 1;
            passing_failure(failure).filter(|_| failures <= FAILURES_MAX)
        },
        report,
    )
    .await
}

/// Returns the pause and the message of a temporary error.
fn passing_failure(failure: &Failure) -> Option<(Duration, String)> {
    let error = failure.downcast_ref::<Error>()?;
    let pause = match error {
        Error::Rpc(RpcError {
            code: ErrorCode::DeadlineExceeded,
            ..
        })
        | Error::Deadline => Some(RETRY_PAUSE),
        error => retry_pause(error),
    };
    Some((pause?, error.to_string()))
}

async fn repeat_while<T>(
    change: impl AsyncFn() -> Result<T, Failure>,
    mut passing: impl FnMut(&Failure) -> Option<(Duration, String)>,
    mut report: impl FnMut(&str),
) -> Result<T, Failure> {
    let mut last_report: Option<Instant> = None;
    loop {
        let failure = match change().await {
            Ok(changed) => return Ok(changed),
            Err(failure) => failure,
        };
        let Some((pause, message)) = passing(&failure) else {
            return Err(failure);
        };
        if last_report.is_none_or(|last_report| last_report.elapsed() >= PROGRESS_EVERY) {
            report(&message);
            last_report = Some(Instant::now());
        }
        tokio::time::sleep(pause.min(PROGRESS_EVERY)).await;
    }
}

/// Returns the pause and the message of a temporary conflict.
fn passing_conflict(failure: &Failure) -> Option<(Duration, String)> {
    match failure.downcast_ref::<Error>() {
        Some(Error::Rpc(RpcError {
            code: ErrorCode::Conflict,
            message,
            retry_after_ms: Some(pause),
            ..
        })) => Some((Duration::from_millis((*pause).into()), message.to_string())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rpc(code: ErrorCode, pause: Option<u32>) -> Error {
        Error::Rpc(RpcError {
            retry_after_ms: pause,
            ..RpcError::new(code, "engine 7 is behind")
        })
    }

    /// Repeats a change that fails `conflicts` times with a pause of 500 ms, and then ends with
    /// `last`. Returns the outcome and the lines of progress.
    fn repeat(conflicts: u32, last: Result<u32, Error>) -> (Result<u32, String>, Vec<String>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let (tries, mut last_report) = (std::cell::Cell::new(0), Vec::new());
        let change = async || {
            tries.set(tries.get() + 1);
            if tries.get() > conflicts {
                Ok(last.clone()?)
            } else {
                Err(rpc(ErrorCode::Conflict, Some(500)).into())
            }
        };
        let outcome = runtime.block_on(repeat_during_conflict(change, |message| {
            last_report.push(message.to_owned())
        }));
        (outcome.map_err(|failure| failure.to_string()), last_report)
    }

    #[test]
    fn a_safe_request_is_repeated_past_a_bounded_number_of_failures() {
        let lost = || Error::Disconnected {
            why: "reset".into(),
        };
        let run = |failures: u32, error: fn() -> Error| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .unwrap();
            let tries = std::cell::Cell::new(0);
            let request = async || {
                tries.set(tries.get() + 1);
                if tries.get() > failures {
                    Ok(7)
                } else {
                    Err(error().into())
                }
            };
            let outcome = runtime.block_on(repeat_safely(request, |_| ()));
            (outcome.ok(), tries.get())
        };
        assert_eq!(run(FAILURES_MAX, lost), (Some(7), FAILURES_MAX + 1));
        assert_eq!(run(u32::MAX, lost), (None, FAILURES_MAX + 1));
        assert_eq!(run(u32::MAX, || Error::Deadline), (None, FAILURES_MAX + 1));
        assert_eq!(
            run(200, || rpc(ErrorCode::Conflict, Some(5))),
            (Some(7), 201),
            "conflicts have no bound"
        );
        assert_eq!(run(u32::MAX, || rpc(ErrorCode::Forbidden, None)), (None, 1));
    }

    #[test]
    fn a_change_is_repeated_while_engines_are_behind() {
        for (conflicts, lines) in [(0, 0), (1, 1), (4, 1), (5, 2), (9, 3)] {
            let (outcome, last_report) = repeat(conflicts, Ok(7));
            assert_eq!(
                (outcome, last_report),
                (Ok(7), vec!["engine 7 is behind".to_owned(); lines]),
                "{conflicts}"
            );
        }
        for last in [
            rpc(ErrorCode::BadRequest, None),
            rpc(ErrorCode::Conflict, None),
            Error::Deadline,
        ] {
            let (outcome, last_report) = repeat(2, Err(last.clone()));
            assert_eq!((outcome, last_report.len()), (Err(last.to_string()), 1));
        }
    }

    #[test]
    fn only_a_conflict_with_a_retry_time_is_waited_for() {
        for (error, expected) in [
            (
                rpc(ErrorCode::Conflict, Some(250)),
                Some((Duration::from_millis(250), "engine 7 is behind")),
            ),
            (rpc(ErrorCode::Conflict, None), None),
            (rpc(ErrorCode::Unavailable, Some(250)), None),
            (Error::Deadline, None),
        ] {
            let found = passing_conflict(&error.into());
            assert_eq!(
                found.as_ref().map(|(pause, message)| (*pause, &**message)),
                expected
            );
        }
    }
}
