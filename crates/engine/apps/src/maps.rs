//! States of token maps according to the control records: in use, deleted, or unknown.
//!
//! Numbers of apps and collections only grow. A map counts as deleted only if its number was
//! assigned and no live record has the number. In outdated records, the number of a new map is not
//! yet assigned. So an instance that missed a change cannot mistake a new map for a deleted map.

use std::collections::BTreeMap;

use sealwire_crypto::AppId;

use super::Control;
use super::model::CollectionName;
use super::record::{AppEntry, CollectionEntry, Contents};
use sealwire_store::{MapId, StoreError};

/// The state of a token map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapState {
    /// A collection uses the map.
    Live {
        /// The collection's app.
        app: AppId,
        /// The collection.
        collection: CollectionName,
        /// See [`CollectionRules::retention_s`](crate::CollectionRules::retention_s).
        retention_s: Option<u64>,
    },
    /// The collection or its app was deleted permanently. The names are the names at the deletion,
    /// unless they were reused.
    Deleted {
        /// The collection's app.
        app: Option<AppId>,
        /// The collection.
        collection: Option<CollectionName>,
    },
    /// The records do not mention the map.
    Unknown,
}

/// The states of all token maps at one generation.
#[derive(Debug, Default)]
pub struct MapStates {
    generation: u64,
    /// The highest number ever assigned to an app.
    app_max: u32,
    /// Apps by number: existing apps, and deleted apps whose tombstone was not replaced.
    apps: BTreeMap<u32, AppMaps>,
}

#[derive(Debug)]
struct AppMaps {
    name: AppId,
    is_live: bool,
    /// The highest number ever assigned to a collection of the app.
    collection_max: u32,
    collections: BTreeMap<u32, CollectionMap>,
}

#[derive(Debug)]
struct CollectionMap {
    name: CollectionName,
    is_live: bool,
    retention_s: Option<u64>,
}

impl MapStates {
    /// Returns the generation of the records.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the state of one map.
    #[must_use]
    pub fn of(&self, map: MapId) -> MapState {
        if map.app > self.app_max {
            return MapState::Unknown;
        }

        let Some(app) = self.apps.get(&map.app) else {
            return MapState::Deleted {
                app: None,
                collection: None,
            };
        };
        let collection = app.collections.get(&map.collection);

        match collection {
            Some(collection) if app.is_live && collection.is_live => MapState::Live {
                app: app.name.clone(),
                collection: collection.name.clone(),
                retention_s: collection.retention_s,
            },
            _ if app.is_live && map.collection > app.collection_max => MapState::Unknown,
            _ => {
                let collection = collection.map(|collection| collection.name.clone());
                MapState::Deleted {
                    app: Some(app.name.clone()),
                    collection,
                }
            }
        }
    }

    pub(super) fn read(contents: &Contents) -> Self {
        let mut states = Self {
            generation: contents.generation,
            ..Self::default()
        };

        for (name, entry) in &contents.apps {
            states.app_max = states.app_max.max(entry.number());
            let is_live = matches!(entry, AppEntry::Live(_));
            let entries = contents.collections(name, entry.number());
            let collections: BTreeMap<u32, CollectionMap> = entries
                .map(|(name, of)| (of.number(), of.map(name)))
                .collect();
            let collection_max = collections.keys().copied().max().unwrap_or(0);
            states.apps.insert(
                entry.number(),
                AppMaps {
                    name: name.clone(),
                    is_live,
                    collection_max,
                    collections,
                },
            );
        }
        states
    }
}

impl CollectionEntry {
    fn map(&self, name: &CollectionName) -> CollectionMap {
        let retention_s = self.live().and_then(|record| record.retention_s);
        CollectionMap {
            name: name.clone(),
            is_live: self.live().is_some(),
            retention_s,
        }
    }
}

impl Control {
    /// Returns the state of every token map.
    ///
    /// # Errors
    /// Any error of the store; [`StoreError::Damaged`].
    pub async fn map_states(&self) -> Result<MapStates, StoreError> {
        self.read(|contents| Ok(MapStates::read(contents))).await
    }
}
