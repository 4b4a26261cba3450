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
use sealwire_store::{CommitSteps, MapId, MapView, ObjectId, ObjectRow, Reseal, StoreError};
use sealwire_wire::RpcError;
use sealwire_wire::control::{MigrateRequest, MigratedObjects};
use tokio::time::Instant;

use super::apps::app_id;
use super::keys::{KeyPermits, check_engines, raise_fences, temporary_conflict};
use super::rewrap::{PERMIT_WAIT, THROTTLE_MAX, blocking, seal_failed};
use super::rpc_error::{invalid_param, store_error};
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
    request: &MigrateRequest<'_>,
) -> Result<MigratedObjects, RpcError> {
    let objects = engine.objects()?;
    let permit = tokio::time::timeout(PERMIT_WAIT, permits.rewraps.acquire()).await;
    let Ok(Ok(_permit)) = permit else {
        return Err(temporary_conflict(
            "other rewraps are running".to_owned(),
            PERMIT_WAIT,
        ));
    };
    let (mut view, mut collection) = locate_collection(engine, request).await?;
    let cursor = request
        .after
        .map(|after| MigrationCursor::parse(&collection, after))
        .transpose()?;
    if !collection.schema.records.has_old() {
        // The request before can have ended between the mark and the fence or the anchor.
        let generation = if request.dry_run {
            view.generation
        } else {
            mark_authenticated(engine, request, view.map).await?
        };
        return Ok(MigratedObjects {
            finished: true,
            generation,
            ..MigratedObjects::default()
        });
    }
    if !request.dry_run {
        if cursor.is_some() && collection.schema.records == AcceptedRecords::All {
            return Err(invalid_param(
                "after must be the `next` of a page that was requested without dry_run",
            ));
        }
        (view, collection) = mark_migrating(engine, permits, request, (view, collection)).await?;
    }

    let limit = request.limit.unwrap_or(ROWS_DEFAULT) as usize;
    let (rows, next) =
        migrate_page(objects, view.map, cursor.map(|cursor| cursor.after), limit).await?;
    let sealer = ObjectSealer::new(Arc::clone(&collection))?;
    let found = classify_rows(objects, &sealer, view, rows, request.accept_unauthenticated).await?;

    // A dry run changes no record, so no walk that continues from it is clean.
    let is_clean =
        !request.dry_run && cursor.is_none_or(|cursor| cursor.is_clean) && found.left == 0;
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
    if request.dry_run {
        done.migrated = resealed.len() as u64;
        return Ok(done);
    }
    let deadline = Instant::now() + THROTTLE_MAX;
    let changes = objects
        .reseal(view, sealer.key(), resealed, deadline)
        .await?;
    done.migrated = changes.iter().filter(|is_done| **is_done).count() as u64;
    done.changed = changes.len() as u64 - done.migrated;
    if done.next.is_none() && is_clean {
        done.generation = mark_authenticated(engine, request, view.map).await?;
        done.finished = true;
    }
    Ok(done)
}

/// A collection, and the generation of its state.
type LocatedCollection = (MapView, Arc<ObjectCollection>);

/// Returns the collection in its newest state.
async fn locate_collection(
    engine: &Engine,
    request: &MigrateRequest<'_>,
) -> Result<LocatedCollection, RpcError> {
    engine.apps.refresh().await.map_err(store_error)?;
    let (generation, app) = engine.apps.find_unsealed(request.app)?;
    let app = app.ok_or_else(|| RequestFailure::NoApp.to_rpc_error())?;
    if app.collection(request.collection).is_some() {
        return Err(invalid_param(
            "collection must be a collection of objects; token records are always authenticated",
        ));
    }

    let collection = app
        .objects(request.collection)
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
    request: &MigrateRequest<'_>,
    (mut view, mut collection): LocatedCollection,
) -> Result<LocatedCollection, RpcError> {
    if collection.schema.records == AcceptedRecords::All {
        // A repeated command continues from here.
        set_accepted_records(engine, request, AcceptedRecords::Migrating)
            .await?
            .map_err(|error| store_error(error.unfinished()))?;
        (view, collection) = locate_collection(engine, request).await?;
    }
    check_engines(engine, view.generation).await?;
    raise_fences(engine, permits, [view.map], view.generation).await?;
    Ok((view, collection))
}

/// Marks the collection as one that reads authenticated records only, and shuts out engines that do
/// not know that yet. Returns the generation.
async fn mark_authenticated(
    engine: &Engine,
    request: &MigrateRequest<'_>,
    map: MapId,
) -> Result<u64, RpcError> {
    let mut steps = CommitSteps::default();
    // The fence counts most where an older state could be put back unnoticed.
    let generation = steps
        .made(set_accepted_records(engine, request, AcceptedRecords::Authenticated).await?)
        .map_err(store_error)?;
    let objects = engine.objects()?;
    objects
        .store()
        .raise_fence(map, generation)
        .await
        .map_err(store_error)?;
    engine.apps.changed_here().await;
    steps
        .end()
        .map_err(|error| store_error(error.unfinished()))?;
    Ok(generation)
}

/// Marks the collection. Returns the generation, or the error of the commit.
async fn set_accepted_records(
    engine: &Engine,
    request: &MigrateRequest<'_>,
    records: AcceptedRecords,
) -> Result<Result<u64, StoreError>, RpcError> {
    let app = app_id(request.app)?;
    let name = CollectionName::new(request.collection).map_err(store_error)?;
    let changed = engine
        .apps
        .control()
        .accept_records(&app, &name, records)
        .await;
    Ok(changed.map(|changed| changed.generation))
}

/// Position of a walk, and whether it has left no old record behind.
///
/// The text contains a keyed hash, because a client that could forge a cursor could end a migration
/// early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MigrationCursor {
    after: ObjectId,
    is_clean: bool,
}

impl MigrationCursor {
    const CLEAN: &str = "clean";

    fn parse(collection: &ObjectCollection, text: &str) -> Result<Self, RpcError> {
        Self::try_parse(collection, text)
            .ok_or_else(|| invalid_param("after must be the `next` of the page before"))
    }

    fn try_parse(collection: &ObjectCollection, text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let cursor = Self {
            after: parse_id(parts.next()?)?,
            is_clean: parts.next()? == Self::CLEAN,
        };
        // The hash is compared as one integer, so the time of the comparison reveals nothing.
        let tag = u128::from_str_radix(parts.next()?, 16).ok()?;
        (tag == cursor.keyed_hash(collection) && cursor.text(collection) == text).then_some(cursor)
    }

    fn text(self, collection: &ObjectCollection) -> String {
        format!(
            "{}.{}.{:032x}",
            id_text(self.after),
            self.walk_name(),
            self.keyed_hash(collection)
        )
    }

    fn walk_name(self) -> &'static str {
        if self.is_clean { Self::CLEAN } else { "left" }
    }

    fn keyed_hash(self, collection: &ObjectCollection) -> u128 {
        // No query is hashed like this: it begins with the number of an index.
        let walk = ["migration: ", self.walk_name()].concat();
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
async fn migrate_page(
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
    let found = objects
        .sweep(map, move |store| async move {
            store.scan_objects(Some(from), limit).await
        })
        .await?;
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

async fn classify_rows(
    objects: &Objects,
    sealer: &ObjectSealer,
    view: MapView,
    rows: Vec<ObjectRow>,
    accepts: bool,
) -> Result<ClassifiedRows, RpcError> {
    let rows: Vec<ObjectRow> = rows
        .into_iter()
        .filter(|row| RecordFormat::of(&row.sealed) != Some(RecordFormat::Authenticated))
        .collect();
    let subjects =
        stored_subjects(objects, view.generation, view.map.app, subjects_of(&rows)).await;
    let subjects = subjects?;
    let sealer = sealer.clone();
    blocking(move || seal_and_classify(&sealer, rows, &subjects, accepts)).await
}

/// Opens old records and seals those that may be replaced.
fn seal_and_classify(
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
