//! Requests that change objects, and the error of each part of them.

use sealwire_client::{
    AddObjects, Client, Counted, DetailValue, Error, ErrorCode, ItemError, ObjectsChanged, RpcError,
};
use sealwire_service::output::errln;
use sealwire_wire::{IDEMPOTENCY_KEY_BYTES_MAX, OBJECTS_MAX};

use super::input::{ItemBatch, ItemBatches, ItemLocation};
use super::output::ObjectPrinter;
use super::{AddArgs, InputArgs, Named};
use crate::commands::Failure;
use crate::commands::documents::DocumentProgress;
use crate::commands::failure::{self, RequestFailure};
use crate::commands::tokens::{Common, When, print_count, read_names};

/// Longest idempotency key, in bytes: the number of the request is appended to it.
const KEY_BYTES_MAX: usize = IDEMPOTENCY_KEY_BYTES_MAX - 14;

/// Checks an idempotency key.
pub(super) fn key(text: &str) -> Result<String, String> {
    if (1..=KEY_BYTES_MAX).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(format!("write 1 to {KEY_BYTES_MAX} bytes"))
    }
}

/// Runs requests on one connection.
pub(super) fn run<T>(
    common: &Common,
    calls: impl AsyncFnOnce(Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    common
        .connect
        .run(async { calls(common.connect.client().await?).await })
}

pub(super) fn add(args: &AddArgs) -> Result<(), Failure> {
    let common = &args.common;
    write(
        &args.input,
        common,
        "added",
        async |client, batch, number| {
            let key = args
                .idempotency_key
                .as_ref()
                .map(|key| numbered(key, number));
            let subjects = match &args.subject_from {
                Some(property) => batch.texts(property)?,
                None => args.subject.iter().cloned().collect(),
            };
            let add = AddObjects {
                objects: &batch.payload,
                tags: args.tag.iter().map(String::as_str).collect(),
                expires_s: args.expires_s,
                idempotency_key: key.as_ref().map(String::as_bytes),
                subjects: subjects.iter().map(String::as_str).collect(),
            };
            Ok(client.objects_add(common.map(), add).await)
        },
    )
}

/// Returns the idempotency key of a request. The first request has the given key; later requests
/// append their number.
fn numbered(key: &str, number: usize) -> String {
    if number == 1 {
        key.to_owned()
    } else {
        format!("{key}.{number}")
    }
}

pub(super) fn update(input: &InputArgs, common: &Common) -> Result<(), Failure> {
    write(input, common, "updated", async |client, batch, _| {
        Ok(client.objects_update(common.map(), &batch.payload).await)
    })
}

/// Sends the items of a file in requests of bounded size. `send` receives the number of the
/// request, from 1.
fn write(
    input: &InputArgs,
    common: &Common,
    done: &str,
    send: impl AsyncFn(&Client, &ItemBatch, usize) -> Result<Result<ObjectsChanged, Error>, Failure>,
) -> Result<(), Failure> {
    let batches = ItemBatches::open(&input.file)?;
    let progress = DocumentProgress::start();
    let mut count = 0;
    let outcome = run(common, async |client| {
        let mut printer = ObjectPrinter::new(common.json);
        for (number, batch) in (1..).zip(batches) {
            let batch = batch?;
            let changed = send(&client, &batch, number).await?;
            let changed = changed.map_err(|error| explained(error, &batch.places))?;
            count += changed.objects.len();
            progress.say(&format!("{count} {done}"));
            printer.versions(&changed.objects)?;
        }
        Ok(())
    });
    progress.end();
    match outcome {
        Err(found) if count > 0 => {
            let text = format!("{found}; {count} objects before were {done}");
            Err(failure::reworded(&*found, text))
        }
        outcome => outcome,
    }
}

pub(super) fn delete(named: &Named, versions: &[u64], common: &Common) -> Result<(), Failure> {
    let ids = read_names(&named.ids)?;
    if !versions.is_empty() && versions.len() != ids.len() {
        return Err(format!(
            "--versions has {} numbers for {} ids",
            versions.len(),
            ids.len()
        )
        .into());
    }
    each(&ids, common, "removed", async |client, ids, from| {
        let versions = versions.get(from..from + ids.len()).map(<[u64]>::to_vec);
        client.objects_delete(common.map(), ids, versions).await
    })
}

pub(super) fn expire(named: &Named, when: &When, common: &Common) -> Result<(), Failure> {
    each(
        &read_names(&named.ids)?,
        common,
        "changed",
        async |client, ids, _| client.objects_expire(common.map(), ids, when.in_s).await,
    )
}

/// Changes named objects in requests of bounded size. `change` receives the position of the first
/// of its ids.
fn each(
    ids: &[String],
    common: &Common,
    done: &str,
    change: impl AsyncFn(&Client, &[&str], usize) -> Result<Counted, Error>,
) -> Result<(), Failure> {
    let progress = DocumentProgress::start();
    let mut count = 0;
    let outcome = run(common, async |client| {
        for (part, ids) in ids.chunks(OBJECTS_MAX).enumerate() {
            let names: Vec<&str> = ids.iter().map(String::as_str).collect();
            let places: Vec<ItemLocation> = ids.iter().cloned().map(ItemLocation::Name).collect();
            let counted = change(&client, &names, part * OBJECTS_MAX).await;
            count += counted.map_err(|error| explained(error, &places))?.count;
            progress.say(&format!("{count} {done}"));
        }
        Ok(())
    });
    progress.end();
    match outcome {
        Err(found) if count > 0 => {
            let text = format!("{found}; {count} objects before were {done}");
            Err(failure::reworded(&*found, text))
        }
        Err(failure) => Err(failure),
        Ok(()) => print_count(common, done, count, false),
    }
}

/// Prints the error of each part of a request on a separate line, and returns the error of the
/// request. `places` holds the places of the request's items.
fn explained(error: Error, places: &[ItemLocation]) -> Failure {
    match &error {
        Error::Rpc(rpc) if tell_parts(rpc, places) => {
            let from_to = match places {
                [first, .., last] => format!(" from {first} to {last}"),
                _ => String::new(),
            };
            RequestFailure::failure(
                format!("{}: nothing{from_to} was changed", rpc.code),
                error.clone(),
            )
        }
        Error::Disconnected { .. } | Error::Deadline => {
            let hint = "the change may have been made: look before you repeat it; --idempotency-key makes it safe to add again";
            RequestFailure::failure(format!("{error}; {hint}"), error.clone())
        }
        _ => of_request(error),
    }
}

/// Explains the error of a request that changes nothing. Prints parts as [`explained`] does.
pub(super) fn explained_read(error: Error, places: &[ItemLocation]) -> Failure {
    match &error {
        Error::Rpc(rpc) if tell_parts(rpc, places) => RequestFailure::failure(
            format!("{}: the request is not possible", rpc.code),
            error.clone(),
        ),
        _ => of_request(error),
    }
}

/// Prints the errors of the parts of a request. Returns false if the response has no such errors.
fn tell_parts(error: &RpcError, places: &[ItemLocation]) -> bool {
    let parts = error.details.iter().find_map(|detail| match &detail.value {
        DetailValue::Errors(errors) => Some(&**errors),
        _ => None,
    });
    let parts = parts.unwrap_or_default();
    for ItemError { path, message, .. } in parts {
        errln!("{}: {message}", located(path, places));
    }
    !parts.is_empty()
}

/// Adds a hint to the error of a request as a whole.
fn of_request(error: Error) -> Failure {
    match &error {
        Error::Rpc(RpcError {
            code: ErrorCode::NotFound,
            ..
        }) => {
            let text = format!("{error}; `sealwire collections list APP` shows which there are");
            RequestFailure::failure(text, error.clone())
        }
        _ => error.into(),
    }
}

/// Returns the place of a part for people. A path in a request starts with the position of an item:
/// `$[2].email`.
fn located(path: &str, places: &[ItemLocation]) -> String {
    let item = path
        .strip_prefix("$[")
        .and_then(|rest| rest.split_once(']'));
    let place = item.and_then(|(at, rest)| Some((places.get(at.parse::<usize>().ok()?)?, rest)));
    place.map_or_else(|| path.to_owned(), |(place, rest)| place.part(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_places_of_the_input() {
        let lines: Vec<ItemLocation> = (501..=503).map(ItemLocation::Line).collect();
        for (path, places, expected) in [
            ("$[2].email", &lines[..], "line 503: $.email"),
            ("$[0]", &lines, "line 501"),
            ("$[3].email", &lines, "$[3].email"),
            ("$", &lines, "$"),
            ("$[x]", &lines, "$[x]"),
            (
                "$[0].set.age",
                &[ItemLocation::Element(500)],
                "$[500].set.age",
            ),
            ("$[0].eq", &[], "$[0].eq"),
        ] {
            assert_eq!(located(path, places), expected, "{path}");
        }
    }

    #[test]
    fn requests_have_distinct_keys() {
        assert_eq!([numbered("k", 1), numbered("k", 2)], ["k", "k.2"]);
        let longest = "k".repeat(KEY_BYTES_MAX);
        assert!(
            key(&longest).is_ok()
                && numbered(&longest, 9_999_999_999_999).len() <= IDEMPOTENCY_KEY_BYTES_MAX
        );
        assert!(key("").is_err() && key(&"k".repeat(KEY_BYTES_MAX + 1)).is_err());
    }
}
