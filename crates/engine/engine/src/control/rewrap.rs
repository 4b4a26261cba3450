//! `keys.rewrap`: rewraps rows under the newest key versions, a page at a time.
//!
//! A page reads rows of one collection that are under other key versions, opens and seals them on a
//! thread of the blocking pool, and replaces each row whose content is still the one that was read.
//! So a change of a row that came first wins, a page that ended half way is repeated without harm,
//! and rows that do not open stay as they are.

use std::sync::Arc;
use std::time::Duration;

use crate::jobs::error::RequestFailure;
use crate::jobs::objects::Objects;
use crate::jobs::tokens::Collection;
use bytes::Bytes;
use sealwire_apps::App;
use sealwire_records::objects::{RecordFormat, token_key_id};
use sealwire_records::token::{RowBuffer, TokenKeys};
use sealwire_store::{
    MapId, MapView, ObjectId, ObjectRow, Reseal, SUBJECTS_COLLECTION, StoreError, SubjectId,
    TokenId,
};
use sealwire_wire::control::{RewrapRowsRequest, RewrappedRows};
use sealwire_wire::{ErrorCode, RpcError};
use tokio::time::Instant;

use super::keys::{KeyPermits, RowCursor, RowKind, check_stores, temporary_conflict};
use super::rpc_error::store_error;
use crate::apps::CachedApp;
use crate::engine::Engine;
use crate::objects::ObjectCollection;
use crate::operations::ObjectSealer;
use crate::subjects::{ReadableRow, stored_subjects, subjects_of};

/// Stands for the keys of data subjects in place of a collection. No collection has a space in its
/// name.
const SUBJECTS_NAME: &str = "data subjects";
/// Rows that a page seals where no limit is named.
const ROWS_DEFAULT: u32 = 100;
/// Longest time that a page waits for the write throttle.
pub(super) const THROTTLE_MAX: Duration = Duration::from_secs(10);
/// Longest time that a page waits for others.
pub(super) const PERMIT_WAIT: Duration = Duration::from_secs(2);

/// A collection whose rows are rewrapped.
struct RewrapTarget {
    name: String,
    number: u32,
    rows: TargetRows,
}

enum TargetRows {
    Objects(Arc<ObjectCollection>),
    /// The keys of data subjects, which are sealed as token rows are.
    Subjects(Arc<TokenKeys>),
    Tokens(Arc<Collection>),
}

impl RewrapTarget {
    /// Returns a cursor in this collection.
    fn cursor(&self, id: Option<[u8; 16]>) -> RowCursor {
        let (kind, collection) = self.position();
        RowCursor {
            kind,
            collection,
            id,
            proven: false,
        }
    }

    /// Returns the place of the collection in a walk.
    fn position(&self) -> (RowKind, u32) {
        let kind = match self.rows {
            TargetRows::Objects(_) | TargetRows::Subjects(_) => RowKind::Objects,
            TargetRows::Tokens(_) => RowKind::Tokens,
        };
        (kind, self.number)
    }
}

/// Result of a page of one collection.
#[derive(Default)]
struct RewrapPage {
    rewrapped: u64,
    changed: u64,
    unopened: u64,
    /// Objects whose format does not prove who sealed them.
    unauthenticated: u64,
    next: Option<[u8; 16]>,
}

impl RewrapPage {
    fn new(unopened: u64, resealed: &[bool], next: Option<[u8; 16]>) -> Self {
        let rewrapped = resealed.iter().filter(|is_done| **is_done).count();
        let changed = resealed.len() - rewrapped;
        Self {
            rewrapped: rewrapped as u64,
            changed: changed as u64,
            unopened,
            unauthenticated: 0,
            next,
        }
    }
}

/// `keys.rewrap`.
///
/// # Errors
/// The error response: no such app or collection, no key that seals, or an error of a store.
pub async fn rewrap(
    engine: &Engine,
    permits: &KeyPermits,
    request: &RewrapRowsRequest<'_>,
) -> Result<RewrappedRows, RpcError> {
    check_stores(engine)?;
    // A waiting control request occupies a permit that other requests need, so the wait is short.
    let permit = tokio::time::timeout(PERMIT_WAIT, permits.rewraps.acquire()).await;
    let Ok(Ok(_permit)) = permit else {
        return Err(temporary_conflict(
            "other rewraps are running".to_owned(),
            PERMIT_WAIT,
        ));
    };
    engine.apps.refresh().await.map_err(store_error)?;
    let (generation, app) = engine.apps.find_unsealed(request.app)?;
    let app = app.ok_or_else(|| RequestFailure::NoApp.to_rpc_error())?;
    let cursor = request
        .after
        .map_or_else(|| Ok(RowCursor::first(false)), RowCursor::parse)?;
    let targets = targets(engine, &app, request.collection)?;
    let mut targets = targets
        .into_iter()
        .filter(|target| target.position() >= (cursor.kind, cursor.collection));
    let Some(target) = targets.next() else {
        return Ok(RewrappedRows {
            generation,
            ..RewrappedRows::default()
        });
    };
    let is_started = target.position() == (cursor.kind, cursor.collection);
    let after = cursor.id.filter(|_| is_started);
    let limit = request.limit.unwrap_or(ROWS_DEFAULT) as usize;
    let page = match &target.rows {
        TargetRows::Objects(collection) => {
            let view = MapView {
                map: collection.map,
                generation,
            };
            rewrap_objects(engine, collection, view, after.map(ObjectId), limit).await
        }
        TargetRows::Subjects(keys) => {
            let view = MapView {
                map: MapId::of_subjects(app.number),
                generation,
            };
            rewrap_subjects(engine, keys, view, after.map(ObjectId), limit).await
        }
        TargetRows::Tokens(collection) => {
            rewrap_tokens(engine, collection, after.map(TokenId), limit).await
        }
    }?;

    let next = match page.next {
        Some(id) => Some(target.cursor(Some(id))),
        None => targets.next().map(|next| next.cursor(None)),
    };
    let RewrapPage {
        rewrapped,
        changed,
        unopened,
        unauthenticated,
        ..
    } = page;

    let next = next.map(|next| next.text());
    Ok(RewrappedRows {
        rewrapped,
        changed,
        unopened,
        unauthenticated,
        collection: target.name,
        next,
        generation,
    })
}

/// Returns the collections to walk through, in the order of the walk.
fn targets(
    engine: &Engine,
    app: &CachedApp,
    only: Option<&str>,
) -> Result<Vec<RewrapTarget>, RpcError> {
    let found: &App = app;
    let mut targets = Vec::new();
    for (name, collection) in &found.collections {
        let name = name.as_str();
        let rows = match (app.objects(name), app.collection(name)) {
            (Some(objects), _) if engine.objects.is_some() => {
                TargetRows::Objects(Arc::clone(objects))
            }
            (_, Some(tokens)) if engine.tokens.is_some() => TargetRows::Tokens(Arc::clone(tokens)),
            _ => continue,
        };
        if only.is_none_or(|only| only == name) {
            targets.push(RewrapTarget {
                name: name.to_owned(),
                number: collection.number,
                rows,
            });
        }
    }

    if only.is_some() && targets.is_empty() {
        return Err(RequestFailure::NoCollection.to_rpc_error());
    }

    if only.is_none() && engine.objects.is_some() {
        let rows = TargetRows::Subjects(Arc::clone(&found.token_keys));
        targets.push(RewrapTarget {
            name: SUBJECTS_NAME.to_owned(),
            number: SUBJECTS_COLLECTION,
            rows,
        });
    }

    targets.sort_by_key(RewrapTarget::position);
    Ok(targets)
}

async fn rewrap_objects(
    engine: &Engine,
    collection: &Arc<ObjectCollection>,
    view: MapView,
    after: Option<ObjectId>,
    limit: usize,
) -> Result<RewrapPage, RpcError> {
    let objects = engine.objects()?;
    let sealer = ObjectSealer::new(Arc::clone(collection))?;
    let key = sealer.key();
    let page = objects
        .sweep(view.map, move |store| async move {
            store.objects_of_other_keys(view, key, after, limit).await
        })
        .await?;
    // Sealing an old record again would authenticate a record that may be forged. Only
    // `collections.migrate` does so.
    let count = page.found.len();
    let authentic: Vec<ObjectRow> = page
        .found
        .into_iter()
        .filter(|row| RecordFormat::of(&row.sealed) == Some(RecordFormat::Authenticated))
        .collect();
    let unauthenticated = (count - authentic.len()) as u64;
    let (found, erased) = readable(objects, view, authentic).await?;
    let (rows, unopened) = blocking(move || reseal_objects(&sealer, found)).await?;
    let unopened = unopened + erased;
    let deadline = Instant::now() + THROTTLE_MAX;
    let resealed = objects.reseal(view, key, rows, deadline).await?;
    Ok(RewrapPage {
        unauthenticated,
        ..RewrapPage::new(unopened, &resealed, page.next.map(|id| id.0))
    })
}

/// Joins rows with the keys of their subjects. Returns the number of objects whose subject has
/// another key, too: it was erased, and the sweep has not removed them yet.
async fn readable(
    objects: &Objects,
    view: MapView,
    rows: Vec<ObjectRow>,
) -> Result<(Vec<ReadableRow>, u64), RequestFailure> {
    let subjects =
        stored_subjects(objects, view.generation, view.map.app, subjects_of(&rows)).await?;
    let count = rows.len();
    let readable: Vec<ReadableRow> = rows
        .into_iter()
        .filter_map(|row| ReadableRow::of(row, &subjects))
        .collect();
    let erased = count - readable.len();
    Ok((readable, erased as u64))
}

/// Seals the keys of data subjects under the newest version of the token key.
async fn rewrap_subjects(
    engine: &Engine,
    keys: &Arc<TokenKeys>,
    view: MapView,
    after: Option<ObjectId>,
    limit: usize,
) -> Result<RewrapPage, RpcError> {
    let objects = engine.objects()?;
    let number = keys
        .newest()
        .ok_or_else(|| RequestFailure::NoTokenKey.to_rpc_error())?;
    let key = token_key_id(number);
    let page = objects
        .sweep(view.map, move |store| async move {
            store.objects_of_other_keys(view, key, after, limit).await
        })
        .await?;
    // The rows of erased subjects are empty.
    let rows = page
        .found
        .into_iter()
        .filter(|row| !row.sealed.is_empty())
        .map(|row| (row.id, None, row.sealed))
        .collect();
    let keys = Arc::clone(keys);
    let (rows, unopened) =
        blocking(move || reseal_rows(&keys, SUBJECTS_COLLECTION, rows, |id| id.0)).await?;
    let deadline = Instant::now() + THROTTLE_MAX;
    let resealed = objects.reseal(view, key, rows, deadline).await?;
    Ok(RewrapPage::new(
        unopened,
        &resealed,
        page.next.map(|id| id.0),
    ))
}

/// Opens and seals objects. Returns the number of objects that do not open, too.
fn reseal_objects(
    sealer: &ObjectSealer,
    rows: Vec<ReadableRow>,
) -> Result<(Vec<Reseal<ObjectId>>, u64), RpcError> {
    let mut resealed = Vec::with_capacity(rows.len());
    let mut unopened = 0;
    for row in rows {
        match sealer.reseal(&row).map_err(seal_failed)? {
            Some(new) => resealed.push(Reseal {
                id: row.row.id,
                old: row.row.sealed,
                new: new.into(),
            }),
            None => unopened += 1,
        }
    }
    Ok((resealed, unopened))
}

async fn rewrap_tokens(
    engine: &Engine,
    collection: &Arc<Collection>,
    after: Option<TokenId>,
    limit: usize,
) -> Result<RewrapPage, RpcError> {
    let tokens = engine.tokens()?;
    let map = collection.map;
    let keys = Arc::clone(&collection.keys);
    let number = keys
        .newest()
        .ok_or_else(|| RequestFailure::NoTokenKey.to_rpc_error())?;
    let page = tokens
        .sweep(map.app, move |store| async move {
            store.rows_of_other_keys(map, number, after, limit).await
        })
        .await?;
    let rows = page
        .found
        .into_iter()
        .map(|row| (row.id, row.subject, row.sealed))
        .collect();
    let (rows, unopened) =
        blocking(move || reseal_rows(&keys, map.collection, rows, |id| id.0)).await?;
    let deadline = Instant::now() + THROTTLE_MAX;
    let resealed = tokens.reseal(map, rows, deadline).await?;
    Ok(RewrapPage::new(
        unopened,
        &resealed,
        page.next.map(|id| id.0),
    ))
}

/// Opens and seals rows of the token format, each with the data subject that it names. Returns the
/// number of rows that do not open, too.
fn reseal_rows<I: Copy>(
    keys: &TokenKeys,
    collection: u32,
    rows: Vec<(I, Option<SubjectId>, Bytes)>,
    bytes: fn(I) -> [u8; 16],
) -> Result<(Vec<Reseal<I>>, u64), RpcError> {
    let mut resealed = Vec::with_capacity(rows.len());
    let mut unopened = 0;
    let mut buffer = RowBuffer::default();
    for (id, subject, old) in rows {
        let subject = subject.as_ref().map(|subject| &subject.0);
        match keys
            .reseal(collection, &bytes(id), subject, &old, &mut buffer)
            .map_err(seal_failed)?
        {
            Some(new) => resealed.push(Reseal {
                id,
                old,
                new: new.into(),
            }),
            None => unopened += 1,
        }
    }
    Ok((resealed, unopened))
}

/// Returns the error for a row that opened and could not be sealed.
pub(super) fn seal_failed(error: impl std::fmt::Display) -> RpcError {
    RpcError::new(
        ErrorCode::Internal,
        format!("a row could not be rewrapped: {error}"),
    )
}

fn ended() -> RpcError {
    store_error(StoreError::Unavailable(
        "the work on its rows ended early".into(),
    ))
}

/// Runs `work` off the network threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(ended()))
}
