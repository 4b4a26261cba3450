//! `collections.migrate`: seals the old records of a collection of objects again, in the
//! authenticated format.
//!
//! Old records do not prove who sealed them (`sealwire_records::objects::old`). The first page
//! marks the collection as `migrating` and raises the fence of its map. Engines that write old
//! records cannot load this mark, and the fence rejects their writes. The last page of a walk that
//! left no old record marks the collection as `authenticated`. From then on records in an old
//! format do not open.

use std::sync::Arc;

use crate::jobs::error::RequestFailure;
use crate::jobs::objects::Objects;
use bytes::Bytes;
use sealwire_apps::CollectionName;
use sealwire_records::objects::{AcceptedRecords, RecordFormat, subject_version};
use sealwire_store::{
    CommitSteps, MapId, MapView, ObjectId, ObjectRow, ObjectStore, Reseal, StoreError,
};
use sealwire_wire::RpcError;
use sealwire_wire::control::{MigrateRequest, MigratedObjects};
use tokio::time::Instant;

use super::apps::app_id;
use super::keys::{KeyPermits, check_engines, fence, passing};
use super::refusal::{bad, of};
use super::rewrap::{PERMIT_WAIT, THROTTLE_MAX, blocking, seal_failed};
use crate::engine::Engine;
use crate::objects::{ObjectCollection, id_text, parse_id};
use crate::operations::ObjectSealer;
use crate::subjects::{ReadableRow, StoredSubjects, stored_subjects, subjects_of};

/// Rows that a page looks at where no limit is named.
const ROWS_DEFAULT: u32 = 100;

/// `collections.migrate`.
///
/// # Errors
/// The error response: no such app or collection, no token key that seals, a conflict that passes,
/// or an error of a store.
pub async fn migrate(
    engine: &Engine,
    permits: &KeyPermits,
    call: &MigrateRequest<'_>,
) -> Result<MigratedObjects, RpcError> {
    let objects = engine.objects().map_err(|failure| failure.to_rpc_error())?;
    let permit = tokio::time::timeout(PERMIT_WAIT, permits.rewraps.acquire()).await;
    let Ok(Ok(_permit)) = permit else {
        return Err(passing(
            "other rewraps are under way".to_owned(),
            PERMIT_WAIT,
        ));
    };
    let (mut view, mut collection) = located(engine, call).await?;
    let cursor = call
        .after
        .map(|after| MigrationCursor::parse(&collection, after))
        .transpose()?;
    if !collection.schema.records.has_old() {
        // The request before can have ended between the mark and the fence or the anchor.
        let generation = if call.dry_run {
            view.generation
        } else {
            mark_authenticated(engine, call, view.map).await?
        };
        return Ok(MigratedObjects {
            finished: true,
            generation,
            ..MigratedObjects::default()
        });
    }
    if !call.dry_run {
        if cursor.is_some() && collection.schema.records == AcceptedRecords::All {
            return Err(bad(
                "after must be the `next` of a page that was requested without dry_run",
            ));
        }
        (view, collection) = mark_migrating(engine, permits, call, (view, collection)).await?;
    }

    let limit = call.limit.unwrap_or(ROWS_DEFAULT) as usize;
    let (rows, next) = page(objects, view.map, cursor.map(|cursor| cursor.after), limit)
        .await
        .map_err(|failure| failure.to_rpc_error())?;
    let sealer =
        ObjectSealer::new(Arc::clone(&collection)).map_err(|failure| failure.to_rpc_error())?;
    let found = classified(objects, &sealer, view, rows, call.accept_unauthenticated).await?;

    // A dry run changes no record, so no walk that continues from it is clean.
    let is_clean = !call.dry_run && cursor.is_none_or(|cursor| cursor.is_clean) && found.left == 0;
    let ClassifiedRows {
        resealed,
        unauthenticated,
        unopened,
        erased,
        ..
    } = found;
    let next = next.map(|after| MigrationCursor { after, is_clean });
    let named = MigratedObjects {
        unauthenticated,
        unopened,
        erased,
        ..Default::default()
    };
    let mut done = MigratedObjects {
        generation: view.generation,
        ..named
    };
    done.next = next.map(|next| next.text(&collection));
    if call.dry_run {
        done.migrated = resealed.len() as u64;
        return Ok(done);
    }
    let deadline = Instant::now() + THROTTLE_MAX;
    let changes = objects
        .reseal(view, sealer.key(), resealed, deadline)
        .await
        .map_err(|failure| failure.to_rpc_error())?;
    done.migrated = changes.iter().filter(|is_done| **is_done).count() as u64;
    done.changed = changes.len() as u64 - done.migrated;
    if done.next.is_none() && is_clean {
        done.generation = mark_authenticated(engine, call, view.map).await?;
        done.finished = true;
    }
    Ok(done)
}

/// A collection, and the generation of its state.
type LocatedCollection = (MapView, Arc<ObjectCollection>);

/// Returns the collection in its newest state.
async fn located(
    engine: &Engine,
    call: &MigrateRequest<'_>,
) -> Result<LocatedCollection, RpcError> {
    engine.apps.refresh().await.map_err(of)?;
    let (generation, app) = engine
        .apps
        .find_unsealed(call.app)
        .map_err(|failure| failure.to_rpc_error())?;
    let app = app.ok_or_else(|| RequestFailure::NoApp.to_rpc_error())?;
    if app.collection(call.collection).is_some() {
        return Err(bad(
            "collection must be a collection of objects; token records are always authenticated",
        ));
    }
    let collection = app
        .objects(call.collection)
        .ok_or_else(|| RequestFailure::NoCollection.to_rpc_error())?;
    Ok((
        MapView {
            map: collection.map,
            generation,
        },
        Arc::clone(collection),
    ))
}

/// Marks the collection as being migrated, unless it is, and shuts out engines that write old
/// records. Fails while one of them is live, or can still write. Each page checks that.
async fn mark_migrating(
    engine: &Engine,
    permits: &KeyPermits,
    call: &MigrateRequest<'_>,
    (mut view, mut collection): LocatedCollection,
) -> Result<LocatedCollection, RpcError> {
    if collection.schema.records == AcceptedRecords::All {
        // A repeated command continues from here.
        set_accepted_records(engine, call, AcceptedRecords::Migrating)
            .await?
            .map_err(|error| of(error.unfinished()))?;
        (view, collection) = located(engine, call).await?;
    }
    check_engines(engine, view.generation).await?;
    fence(engine, permits, [view.map], view.generation).await?;
    Ok((view, collection))
}

/// Marks the collection as one that reads authenticated records only, and shuts out engines that do
/// not know that yet. Returns the generation.
async fn mark_authenticated(
    engine: &Engine,
    call: &MigrateRequest<'_>,
    map: MapId,
) -> Result<u64, RpcError> {
    let mut steps = CommitSteps::default();
    // The fence counts most where an older state could be put back unnoticed.
    let generation = steps
        .made(set_accepted_records(engine, call, AcceptedRecords::Authenticated).await?)
        .map_err(of)?;
    let objects = engine.objects().map_err(|failure| failure.to_rpc_error())?;
    objects
        .store()
        .raise_fence(map, generation)
        .await
        .map_err(of)?;
    engine.apps.changed_here().await;
    steps.end().map_err(|error| of(error.unfinished()))?;
    Ok(generation)
}

/// Marks the collection. Returns the generation, or the error of the commit.
async fn set_accepted_records(
    engine: &Engine,
    call: &MigrateRequest<'_>,
    records: AcceptedRecords,
) -> Result<Result<u64, StoreError>, RpcError> {
    let app = app_id(call.app)?;
    let name = CollectionName::new(call.collection).map_err(of)?;
    let changed = engine
        .apps
        .control()
        .accept_records(&app, &name, records)
        .await;
    Ok(changed.map(|changed| changed.generation))
}

/// Position of a walk, and whether it has left no old record behind.
///
/// As text it has a keyed hash: a client that could make one could end a migration before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MigrationCursor {
    after: ObjectId,
    is_clean: bool,
}

impl MigrationCursor {
    const CLEAN: &str = "clean";

    fn parse(collection: &ObjectCollection, text: &str) -> Result<Self, RpcError> {
        let parse = || {
            let mut parts = text.split('.');
            let cursor = Self {
                after: parse_id(parts.next()?)?,
                is_clean: parts.next()? == Self::CLEAN,
            };
            // Whole words are compared, so the time tells nothing of the hash.
            let tag = u128::from_str_radix(parts.next()?, 16).ok()?;
            (tag == cursor.tag(collection) && cursor.text(collection) == text).then_some(cursor)
        };
        parse().ok_or_else(|| bad("after must be the `next` of the page before"))
    }

    fn text(self, collection: &ObjectCollection) -> String {
        format!(
            "{}.{}.{:032x}",
            id_text(self.after),
            self.walk(),
            self.tag(collection)
        )
    }

    fn walk(self) -> &'static str {
        if self.is_clean { Self::CLEAN } else { "left" }
    }

    fn tag(self, collection: &ObjectCollection) -> u128 {
        // No query is hashed like this: it begins with the number of an index.
        let walk = ["migration: ", self.walk()].concat();
        let tag = collection.object_keys.cursor_hash(
            collection.map.collection,
            walk.as_bytes(),
            &self.after.0,
        );
        u128::from_be_bytes(tag)
    }
}

/// Returns the rows of a map that follow `after`, in every state, and the last id if more can
/// follow.
///
/// The rows are not selected by the key that they name: whoever can write the store writes that,
/// too.
async fn page(
    objects: &Objects,
    map: MapId,
    after: Option<ObjectId>,
    limit: usize,
) -> Result<(Vec<ObjectRow>, Option<ObjectId>), RequestFailure> {
    let before = (
        MapId {
            collection: map.collection - 1,
            ..map
        },
        ObjectId([0xff; 16]),
    );
    let from = after.map_or(before, |id| (map, id));
    let operation = move |store: Arc<dyn ObjectStore>| async move {
        store.scan_objects(Some(from), limit).await
    };
    let found = objects.sweep(map, operation).await?;
    let count = found.len();
    let rows: Vec<ObjectRow> = found
        .into_iter()
        .take_while(|(of, _)| *of == map)
        .map(|(_, row)| row)
        .collect();
    let next = rows
        .last()
        .map(|row| row.id)
        .filter(|_| rows.len() == count);
    Ok((rows, next))
}

/// The old records among the rows of a page.
#[derive(Default)]
struct ClassifiedRows {
    /// Rows to replace.
    resealed: Vec<Reseal<ObjectId>>,
    unauthenticated: Vec<String>,
    unopened: Vec<String>,
    /// Objects whose subject was erased, according to their row. The migration can end with such
    /// objects, because nothing opens them any more.
    erased: Vec<String>,
    /// Number of rows that stay unchanged.
    left: usize,
}

async fn classified(
    objects: &Objects,
    sealer: &ObjectSealer,
    view: MapView,
    rows: Vec<ObjectRow>,
    accepts: bool,
) -> Result<ClassifiedRows, RpcError> {
    let is_old =
        |row: &ObjectRow| RecordFormat::of(&row.sealed) != Some(RecordFormat::Authenticated);
    let rows: Vec<ObjectRow> = rows.into_iter().filter(is_old).collect();
    let subjects =
        stored_subjects(objects, view.generation, view.map.app, subjects_of(&rows)).await;
    let subjects = subjects.map_err(|failure| failure.to_rpc_error())?;
    let sealer = sealer.clone();
    blocking(move || classify(&sealer, rows, &subjects, accepts)).await
}

/// Opens old records and seals those that may be replaced.
fn classify(
    sealer: &ObjectSealer,
    rows: Vec<ObjectRow>,
    subjects: &StoredSubjects,
    accepts: bool,
) -> Result<ClassifiedRows, RpcError> {
    let mut found = ClassifiedRows::default();
    for row in rows {
        if is_erased(&row, subjects) {
            // Whoever can write the store writes the subject and the version of a row, too. So it
            // is named.
            found.erased.push(id_text(row.id));
            continue;
        }
        let (id, old): (ObjectId, Bytes) = (row.id, row.sealed.clone());
        let readable = ReadableRow::of(row, subjects);
        let resealed = readable
            .map(|readable| sealer.reseal(&readable))
            .transpose()
            .map_err(seal_failed)?;
        let Some(new) = resealed.flatten() else {
            found.unopened.push(id_text(id));
            found.left += 1;
            continue;
        };
        // The content of a record of a subject is under the subject's key, so an engine sealed it.
        if RecordFormat::of(&old) != Some(RecordFormat::OldOfSubject) {
            found.unauthenticated.push(id_text(id));
            if !accepts {
                found.left += 1;
                continue;
            }
        }
        found.resealed.push(Reseal {
            id,
            old,
            new: new.into(),
        });
    }
    Ok(found)
}

/// Returns true if the key of the row's subject was erased. Nothing opens such a row any more, and
/// the sweep removes it.
fn is_erased(row: &ObjectRow, subjects: &StoredSubjects) -> bool {
    let subject = row.subject.and_then(|id| subjects.get(&id));
    subject
        .zip(subject_version(&row.sealed))
        .is_some_and(|(subject, version)| version < subject.version)
}
