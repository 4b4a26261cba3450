//! `keys.census`: counts the rows of an app by key version, and proves that no engine writes under
//! an older one.
//!
//! Only a write can add a row under a key version. So if a count starts after the last engine has
//! stopped sealing under a version, and the count finds no row, then no such row exists. Two
//! conditions stop engines from sealing under the version: every live engine has loaded the
//! generation of the count, and a fence on each map of objects rejects all engines that have not.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sealwire_apps::{App, AppSummary, CollectionContent, KeySummary};
use sealwire_crypto::{KeyState, Origin};
use sealwire_store::{
    ERASURES_COLLECTION, MapId, ObjectId, ObjectStore, SUBJECTS_COLLECTION, TokenId,
};
use sealwire_wire::control::{Census, CensusCount, CensusKey, CensusRequest};
use sealwire_wire::{ErrorCode, RpcError};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::apps::app_id;
use super::rpc_error::{invalid_param, store_error};
use super::views;
use crate::engine::Engine;

/// Rows that a page looks at where no limit is named.
const ROWS_DEFAULT: u32 = 1_000;
/// Concurrent pages of rewraps. Each holds memory for its rows and works on a thread of the
/// blocking pool.
const REWRAPS_MAX: usize = 2;
/// Longest time after which a request that must wait for engines or writes is repeated.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// State that the operations on the rows of key versions share.
#[derive(Debug)]
pub struct KeyPermits {
    /// Fences that this engine raised: the generation, and when it was reached.
    fences: Mutex<HashMap<MapId, (u64, Instant)>>,
    pub(super) rewraps: Semaphore,
}

impl Default for KeyPermits {
    fn default() -> Self {
        Self {
            fences: Mutex::default(),
            rewraps: Semaphore::new(REWRAPS_MAX),
        }
    }
}

impl KeyPermits {
    /// Returns when this engine raised the fence of a map to a generation.
    fn last_raise(&self, map: MapId, generation: u64) -> Option<Instant> {
        let fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences
            .get(&map)
            .filter(|(raised, _)| *raised == generation)
            .map(|(_, since)| *since)
    }

    fn record_raise(&self, map: MapId, generation: u64) -> Instant {
        let since = Instant::now();
        self.fences
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(map, (generation, since));
        since
    }
}

/// Kinds of rows, in the order of walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RowKind {
    Objects,
    Tokens,
}

impl RowKind {
    fn name(self) -> &'static str {
        match self {
            Self::Objects => "objects",
            Self::Tokens => "tokens",
        }
    }
}

/// Position of a walk through the rows of an app: a map, and the id that the next rows follow.
/// Without an id, a census continues with the map behind the named one, and a rewrap at the
/// beginning of the named one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowCursor {
    pub(super) kind: RowKind,
    pub(super) collection: u32,
    pub(super) id: Option<[u8; 16]>,
    /// True if the first page proved that no engine writes under an older key version.
    pub(super) proven: bool,
}

impl RowCursor {
    pub(super) fn first(proven: bool) -> Self {
        Self {
            kind: RowKind::Objects,
            collection: 0,
            id: None,
            proven,
        }
    }

    /// Parses the cursor of a request.
    ///
    /// # Errors
    /// An error for a text that [`RowCursor::text`] did not return.
    pub(super) fn parse(text: &str) -> Result<Self, RpcError> {
        Self::try_parse(text)
            .ok_or_else(|| invalid_param("after must be the next of the page before"))
    }

    fn try_parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let kind = match parts.next()? {
            "objects" => RowKind::Objects,
            "tokens" => RowKind::Tokens,
            _ => return None,
        };
        let collection = parts.next()?.parse().ok()?;
        let id = match parts.next()? {
            "" => None,
            hex => Some(u128::from_str_radix(hex, 16).ok()?.to_be_bytes()),
        };
        let cursor = Self {
            kind,
            collection,
            id,
            proven: parts.next()? == "proven",
        };
        (cursor.text() == text && collection <= SUBJECTS_COLLECTION).then_some(cursor)
    }

    pub(super) fn text(&self) -> String {
        let id = self.id.map_or_else(String::new, |id| {
            format!("{:032x}", u128::from_be_bytes(id))
        });
        let proven = if self.proven { "proven" } else { "" };
        format!("{}.{}.{id}.{proven}", self.kind.name(), self.collection)
    }
}

/// `keys.census`.
///
/// # Errors
/// The error response: no such app, a conflict that passes, or an error of a store.
pub async fn census(
    engine: &Engine,
    permits: &KeyPermits,
    request: &CensusRequest<'_>,
) -> Result<Census, RpcError> {
    check_stores(engine)?;
    let control = engine.apps.control();
    engine.apps.refresh().await.map_err(store_error)?;
    // The summary must be read before the generation. Then the newest versions in the summary are
    // the newest ones, or older, for engines that have loaded that generation.
    let summary = control
        .app(&app_id(request.app)?)
        .await
        .map_err(store_error)?;
    let generation = control.generation().await.map_err(store_error)?;
    let cursor = match request.after {
        Some(text) => RowCursor::parse(text)?,
        None => {
            if request.prove {
                check_proof(engine, permits, summary.number, request.app, generation).await?;
            }
            RowCursor::first(request.prove)
        }
    };

    let keys = if request.after.is_none() {
        key_versions(&summary)
    } else {
        Vec::new()
    };
    let limit = request.limit.unwrap_or(ROWS_DEFAULT) as usize;
    let page = count_page(engine, &summary, cursor, limit).await?;
    let (_, cached) = engine.apps.find(request.app);
    let counts = page
        .counts
        .into_iter()
        .map(|(number, key, rows)| {
            let (kind, name) = match number {
                SUBJECTS_COLLECTION => ("subjects", None),
                _ => (
                    page.kind.name(),
                    cached
                        .as_deref()
                        .and_then(|app| collection_name(app, number)),
                ),
            };
            CensusCount {
                kind: kind.into(),
                collection: name.unwrap_or_default(),
                number,
                key,
                rows,
            }
        })
        .collect();

    Ok(Census {
        counts,
        keys,
        proven: cursor.proven,
        next: page.next.map(|next| next.text()),
        generation,
    })
}

/// Fails if the engine has no stores of rows, because a count without stores proves nothing.
pub(super) fn check_stores(engine: &Engine) -> Result<(), RpcError> {
    engine
        .objects()
        .and(engine.tokens().map(drop))
        .map_err(RpcError::from)
}

/// Returns the name of a collection of this number.
fn collection_name(app: &App, number: u32) -> Option<String> {
    app.collections
        .iter()
        .find(|(_, collection)| collection.number == number)
        .map(|(name, _)| name.as_str().to_owned())
}

/// Returns true if requests seal with this key: it is the newest active key of its suite.
fn is_newest_sealing_key(app: &AppSummary, key: &KeySummary) -> bool {
    app.keys
        .iter()
        .filter(|other| {
            other.seals && other.origin == Origin::Inside && other.state == KeyState::Active
        })
        .filter(|other| other.suite == key.suite)
        .max_by_key(|other| other.number)
        .is_some_and(|newest| newest.id == key.id)
}

/// Returns the key versions of an app.
fn key_versions(app: &AppSummary) -> Vec<CensusKey> {
    let keys = app.keys.iter().map(|key| CensusKey {
        key: key.id.to_string(),
        suite: key.suite.name().into(),
        version: key.number,
        state: views::state(key.state == KeyState::Active, key.delete_unix_s),
        newest: is_newest_sealing_key(app, key),
    });

    let active = app
        .token_keys
        .iter()
        .filter(|key| key.state == KeyState::Active);
    let newest = active.map(|key| key.number).max();
    let token_keys = app.token_keys.iter().map(|key| CensusKey {
        key: views::token_key_id(key.number),
        suite: String::new(),
        version: key.number,
        state: views::state(key.state == KeyState::Active, None),
        newest: Some(key.number) == newest,
    });
    keys.chain(token_keys).collect()
}

/// Fails while an engine could still write objects, or a live engine tokens, by a state before
/// `generation`.
async fn check_proof(
    engine: &Engine,
    permits: &KeyPermits,
    app: u32,
    name: &str,
    generation: u64,
) -> Result<(), RpcError> {
    check_engines(engine, generation).await?;
    let Some(objects) = &engine.objects else {
        return Ok(());
    };
    let maps = object_maps(engine, &**objects.store(), app, name).await?;
    raise_fences(engine, permits, maps, generation).await
}

/// Fails while an engine that serves a state before `generation` is live.
pub(super) async fn check_engines(engine: &Engine, generation: u64) -> Result<(), RpcError> {
    let instances = engine
        .apps
        .control()
        .instances()
        .await
        .map_err(store_error)?;
    let behind = instances
        .iter()
        .filter(|instance| instance.generation < generation);
    let behind: Vec<&str> = behind.map(|instance| instance.id.as_str()).collect();

    if behind.is_empty() {
        return Ok(());
    }

    let text = format!(
        "not every live engine serves generation {generation} yet: {}",
        behind.join(", ")
    );
    Err(temporary_conflict(text, RETRY_MAX))
}

/// Raises the fences of maps of objects. Fails while a write that passed a lower fence can still
/// end.
pub(super) async fn raise_fences(
    engine: &Engine,
    permits: &KeyPermits,
    maps: impl IntoIterator<Item = MapId>,
    generation: u64,
) -> Result<(), RpcError> {
    let Some(objects) = &engine.objects else {
        return Ok(());
    };
    let store = objects.store();
    let mut wait = Duration::ZERO;

    for map in maps {
        let since = match permits.last_raise(map, generation) {
            Some(since) => since,
            None => {
                store
                    .raise_fence(map, generation)
                    .await
                    .map_err(store_error)?;
                permits.record_raise(map, generation)
            }
        };
        wait = wait.max(store.fence_delay().saturating_sub(since.elapsed()));
    }

    if wait.is_zero() {
        return Ok(());
    }

    let text = format!(
        "earlier writes can still finish for {} ms",
        wait.as_millis() + 1
    );
    Err(temporary_conflict(text, wait.min(RETRY_MAX)))
}

/// Creates the error for a conflict that passes by itself.
pub(super) fn temporary_conflict(text: String, pause: Duration) -> RpcError {
    let pause = u32::try_from(pause.as_millis()).unwrap_or(u32::MAX).max(1);
    RpcError::new(ErrorCode::Conflict, text).retry_after_ms(pause)
}

/// Returns the maps of objects of an app: those of its collections and data subjects, and those
/// that have an object.
async fn object_maps(
    engine: &Engine,
    store: &dyn ObjectStore,
    app: u32,
    name: &str,
) -> Result<BTreeSet<MapId>, RpcError> {
    let (_, cached) = engine.apps.find(name);
    let Some(cached) = cached.filter(|cached| cached.number == app) else {
        return Err(temporary_conflict(
            "this engine does not serve the app yet".to_owned(),
            RETRY_MAX,
        ));
    };
    let of_collections = cached
        .collections
        .values()
        .filter(|collection| matches!(collection.content, CollectionContent::Objects(_)))
        .map(|collection| cached.map(collection));
    // Also without rows: an engine could write the first key of a data subject.
    let mut maps: BTreeSet<MapId> = of_collections
        .chain([MapId::of_subjects(app), MapId::of_erasures(app)])
        .collect();
    let mut after = MapId { app, collection: 0 };

    while let Some(map) = store
        .next_object_map(Some(after))
        .await
        .map_err(store_error)?
        .filter(|map| map.app == app)
    {
        maps.insert(map);
        after = map;
    }
    Ok(maps)
}

/// A page of a count: collection numbers, key versions and rows.
struct CountPage {
    kind: RowKind,
    counts: Vec<(u32, String, u64)>,
    next: Option<RowCursor>,
}

/// Counts rows behind a cursor: objects first, then tokens.
async fn count_page(
    engine: &Engine,
    app: &AppSummary,
    cursor: RowCursor,
    limit: usize,
) -> Result<CountPage, RpcError> {
    let mut cursor = cursor;
    if cursor.kind == RowKind::Objects {
        if let Some(page) = count_objects(engine, app, cursor, limit).await? {
            return Ok(page);
        }
        cursor = RowCursor {
            kind: RowKind::Tokens,
            collection: 0,
            id: None,
            ..cursor
        };
    }

    let page = count_tokens(engine, app.number, cursor, limit).await?;
    Ok(page.unwrap_or(CountPage {
        kind: RowKind::Tokens,
        counts: Vec::new(),
        next: None,
    }))
}

/// Counts objects. Returns `None` if no map follows.
async fn count_objects(
    engine: &Engine,
    app: &AppSummary,
    cursor: RowCursor,
    limit: usize,
) -> Result<Option<CountPage>, RpcError> {
    let Some(objects) = &engine.objects else {
        return Ok(None);
    };
    let mut map = MapId {
        app: app.number,
        collection: cursor.collection,
    };
    let after = cursor.id.map(ObjectId);

    if after.is_none() {
        let found = objects
            .sweep(map, move |store| async move {
                store.next_object_map(Some(map)).await
            })
            .await?;
        let Some(found) = found.filter(|found| found.app == app.number) else {
            return Ok(None);
        };
        map = found;
    }

    let page = objects
        .sweep(map, move |store| async move {
            store.count_object_keys(map, after, limit).await
        })
        .await?;
    // Rows of erased subjects, and of unfinished erasures, are under no key.
    let counts = page
        .found
        .into_iter()
        .filter(|(key, _)| map.collection < ERASURES_COLLECTION || *key != [0; 5])
        .map(|(key, rows)| (map.collection, key_name(app, map.collection, key), rows))
        .collect();
    let next = RowCursor {
        collection: map.collection,
        id: page.next.map(|id| id.0),
        ..cursor
    };
    Ok(Some(CountPage {
        kind: RowKind::Objects,
        counts,
        next: Some(next),
    }))
}

/// Returns the name of the key version that rows of a collection name by `key`: a version of the
/// token key, or the key of the envelope in an old record.
fn key_name(app: &AppSummary, collection: u32, key: [u8; 5]) -> String {
    let is_of_suite = app.keys.iter().any(|of| *of.id.as_bytes() == key);
    match key {
        [0, number @ ..] if collection == SUBJECTS_COLLECTION || !is_of_suite => {
            views::token_key_id(u32::from_be_bytes(number))
        }
        key => key.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Counts tokens. Returns `None` if no map follows.
async fn count_tokens(
    engine: &Engine,
    app: u32,
    cursor: RowCursor,
    limit: usize,
) -> Result<Option<CountPage>, RpcError> {
    let Some(tokens) = &engine.tokens else {
        return Ok(None);
    };
    let mut map = MapId {
        app,
        collection: cursor.collection,
    };
    let after = cursor.id.map(TokenId);

    if after.is_none() {
        let found = tokens
            .sweep(
                app,
                move |store| async move { store.next_map(Some(map)).await },
            )
            .await?;
        let Some(found) = found.filter(|found| found.app == app) else {
            return Ok(None);
        };
        map = found;
    }

    let page = tokens
        .sweep(app, move |store| async move {
            store.count_keys(map, after, limit).await
        })
        .await?;
    let found: BTreeMap<u32, u64> = page.found;
    let counts = found
        .into_iter()
        .map(|(number, rows)| (map.collection, views::token_key_id(number), rows))
        .collect();
    let next = RowCursor {
        collection: map.collection,
        id: page.next.map(|id| id.0),
        ..cursor
    };
    Ok(Some(CountPage {
        kind: RowKind::Tokens,
        counts,
        next: Some(next),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_has_one_form() {
        for kind in [RowKind::Objects, RowKind::Tokens] {
            for (collection, id, proven) in [
                (0, None, false),
                (7, Some([0; 16]), true),
                (SUBJECTS_COLLECTION, Some([0xff; 16]), false),
            ] {
                let cursor = RowCursor {
                    kind,
                    collection,
                    id,
                    proven,
                };
                assert_eq!(RowCursor::parse(&cursor.text()), Ok(cursor));
                assert!(cursor.text().len() <= sealwire_wire::CURSOR_BYTES_MAX);
            }
        }
        for wrong in [
            "",
            "objects",
            "objects.1..",
            "objects.01..",
            "tokens.1.ff.",
            "keys.1..",
            "objects.2147483648..",
            "objects.1...",
            "objects.1..x",
        ] {
            let parsed = RowCursor::parse(wrong);
            assert_eq!(parsed.is_ok(), wrong == "objects.1..", "{wrong}");
        }
    }
}
