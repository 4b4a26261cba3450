//! Operations on collections: the named token maps of an app, and its collections of objects.

use std::sync::Arc;

use sealwire_crypto::AppId;
use sealwire_records::objects::{AcceptedRecords, Changed, Schema, SchemaChange};

use super::model::{
    Collection, CollectionChange, CollectionContent, CollectionName, CollectionRules,
    CollectionRulesChange, CollectionSummary,
};
use super::record::{
    CollectionEntry, CollectionRecord, CollectionTombstone, Contents, Entry, collection_key,
    damaged,
};
use super::{Control, RecordEdit, dropped_property, unix_s};
use sealwire_store::{ERASURES_COLLECTION, MapId, StoreError};

impl Control {
    /// Returns an app's collections, by name, and the generation of the records.
    ///
    /// # Errors
    /// [`StoreError::NoApp`], any error of the store, or [`StoreError::Damaged`].
    pub async fn collections(
        &self,
        app: &AppId,
    ) -> Result<(u64, Vec<CollectionSummary>), StoreError> {
        let app = app.clone();
        self.read(move |contents| {
            let number = contents.app(&app)?.number;
            let live = contents
                .collections(&app, number)
                .filter_map(|(name, entry)| Some((name, entry.live()?)));
            Ok((
                contents.generation,
                live.map(|(name, record)| {
                    Ok(CollectionSummary {
                        app: app.clone(),
                        name: name.clone(),
                        collection: record.read()?,
                    })
                })
                .collect::<Result<_, StoreError>>()?,
            ))
        })
        .await
    }

    /// Creates a token map.
    ///
    /// # Errors
    /// [`StoreError::NoApp`]; [`StoreError::Deleted`] while the app waits for its removal;
    /// [`StoreError::CollectionExists`] if the name is taken. [`StoreError::Conflict`] while an
    /// instance can still serve a removed collection of that name; [`StoreError::Invalid`] for a
    /// time out of range.
    pub async fn create_collection(
        &self,
        app: &AppId,
        name: &CollectionName,
        rules: CollectionRules,
    ) -> Result<CollectionChange, StoreError> {
        check_times(rules.expires_s, rules.retention_s)?;
        self.insert_collection(app, name, CollectionContent::Tokens(rules))
            .await
    }

    /// Creates a collection of objects.
    ///
    /// # Errors
    /// As for [`Control::create_collection`].
    pub async fn create_objects(
        &self,
        app: &AppId,
        name: &CollectionName,
        schema: Schema,
    ) -> Result<CollectionChange, StoreError> {
        check_times(schema.expires_s, schema.retention_s)?;
        self.insert_collection(app, name, CollectionContent::Objects(Arc::new(schema)))
            .await
    }

    async fn insert_collection(
        &self,
        app: &AppId,
        name: &CollectionName,
        content: CollectionContent,
    ) -> Result<CollectionChange, StoreError> {
        let app = app.clone();
        let name = name.clone();
        self.change_collection(move |contents| {
            let app_number = contents.staying(&app)?.number;
            let there: Vec<_> = contents.collections(&app, app_number).collect();
            if there
                .iter()
                .any(|(other, entry)| **other == name && entry.live().is_some())
            {
                return Err(StoreError::CollectionExists {
                    app: app.clone(),
                    collection: name.to_string(),
                });
            }
            let highest = there
                .iter()
                .map(|(_, entry)| entry.number())
                .max()
                .unwrap_or(0);
            let number = highest
                .checked_add(1)
                .filter(|number| *number < ERASURES_COLLECTION)
                .ok_or_else(|| damaged(&collection_key(&app, &name), "no number left".into()))?;
            let collection = Collection {
                number,
                content: content.clone(),
                created_unix_s: unix_s(),
            };
            let record = CollectionRecord::new(&app, app_number, &name, &collection);
            edit(&app, &name, collection, Entry::Live(record))
        })
        .await
    }

    /// Returns the map whose fence must be raised before a change of the schema, and the generation
    /// to raise it to. `None`: the change does not reuse the name of a dropped property.
    ///
    /// # Errors
    /// As for [`Control::alter_collection`].
    pub async fn reused_property(
        &self,
        app: &AppId,
        name: &CollectionName,
        change: &SchemaChange,
    ) -> Result<Option<(MapId, u64)>, StoreError> {
        let key = collection_key(app, name);
        let app = app.clone();
        let name = name.clone();
        let change = change.clone();
        let reused = self.read(move |contents| {
            let record = contents.collection(&app, &name)?;
            let changed = changed_schema(record, &change, contents.generation)?;
            let map = MapId {
                app: record.app_number,
                collection: record.number,
            };
            Ok(changed.reused.map(|generation| (map, generation)))
        });

        let Some((map, generation)) = reused.await? else {
            return Ok(None);
        };
        self.check_reuse(Some(generation), &dropped_property(&key))
            .await?;
        Ok(Some((map, generation)))
    }

    /// Changes the schema of a collection of objects. `fence`: the fence of its map, as
    /// [`Control::reused_property`] requires.
    ///
    /// # Errors
    /// [`StoreError::NoApp`], [`StoreError::NoCollection`]; [`StoreError::Invalid`] for a change
    /// that is not possible, or for a collection of tokens. [`StoreError::Conflict`] while an
    /// instance can still serve a dropped property whose name is reused.
    /// [`StoreError::Unavailable`] if the fence is too low, because another property was dropped in
    /// the meantime.
    pub async fn alter_collection(
        &self,
        app: &AppId,
        name: &CollectionName,
        change: SchemaChange,
        fence: Option<u64>,
    ) -> Result<CollectionChange, StoreError> {
        let app = app.clone();
        let name = name.clone();
        self.change_collection(move |contents| {
            let mut record = contents.collection(&app, &name)?.clone();
            let changed = changed_schema(&record, &change, contents.generation)?;
            if changed.reused > fence {
                return Err(StoreError::Unavailable(
                    "another change of this schema came first".into(),
                ));
            }
            record.set_schema(&changed.schema);
            let edit = edit(&app, &name, record.read()?, Entry::Live(record))?;
            Ok(RecordEdit {
                reused: changed.reused,
                ..edit
            })
        })
        .await
    }

    /// Advances a collection of objects to a state of its records, unless the collection is in a
    /// later state.
    ///
    /// The caller must raise the fence of the map to the generation, so that engines that serve an
    /// earlier state cannot write.
    ///
    /// # Errors
    /// [`StoreError::NoApp`], [`StoreError::NoCollection`]; [`StoreError::Invalid`] for a
    /// collection of tokens.
    pub async fn accept_records(
        &self,
        app: &AppId,
        name: &CollectionName,
        records: AcceptedRecords,
    ) -> Result<CollectionChange, StoreError> {
        let app = app.clone();
        let name = name.clone();
        self.change_collection(move |contents| {
            let mut record = contents.collection(&app, &name)?.clone();
            let mut schema = Schema::clone(record.read()?.schema().ok_or_else(has_tokens)?);
            schema.records = schema.records.max(records);
            record.set_schema(&schema);
            edit(&app, &name, record.read()?, Entry::Live(record))
        })
        .await
    }

    /// Changes the times of a collection. Expiry applies to new tokens; retention applies to all
    /// rows.
    ///
    /// # Errors
    /// [`StoreError::NoApp`], [`StoreError::NoCollection`], or [`StoreError::Invalid`] for a time
    /// out of range.
    pub async fn change_rules(
        &self,
        app: &AppId,
        name: &CollectionName,
        change: CollectionRulesChange,
    ) -> Result<CollectionChange, StoreError> {
        check_times(change.expires_s.flatten(), change.retention_s.flatten())?;
        let app = app.clone();
        let name = name.clone();
        self.change_collection(move |contents| {
            let mut record = contents.collection(&app, &name)?.clone();
            record.expires_s = change.expires_s.unwrap_or(record.expires_s);
            record.retention_s = change.retention_s.unwrap_or(record.retention_s);
            edit(&app, &name, record.read()?, Entry::Live(record))
        })
        .await
    }

    /// Removes a collection immediately. Lookups no longer find its tokens. The sweep removes its
    /// rows.
    ///
    /// # Errors
    /// [`StoreError::NoApp`] or [`StoreError::NoCollection`].
    pub async fn delete_collection(
        &self,
        app: &AppId,
        name: &CollectionName,
    ) -> Result<CollectionChange, StoreError> {
        let app = app.clone();
        let name = name.clone();
        self.change_collection(move |contents| {
            let record = contents.collection(&app, &name)?;
            let app_number = record.app_number;
            let number = record.number;
            let generation = contents.generation + 1;
            let tombstone = CollectionTombstone {
                app_number,
                number,
                generation,
            };
            edit(&app, &name, record.read()?, Entry::Deleted(tombstone))
        })
        .await
    }

    async fn change_collection(
        &self,
        edit: impl Fn(&Contents) -> Result<RecordEdit<CollectionSummary>, StoreError>
        + Send
        + Sync
        + 'static,
    ) -> Result<CollectionChange, StoreError> {
        let (generation, collection) = self.change(edit).await?;
        Ok(CollectionChange {
            generation,
            collection,
        })
    }
}

impl Contents {
    fn collection(
        &self,
        app: &AppId,
        name: &CollectionName,
    ) -> Result<&CollectionRecord, StoreError> {
        let number = self.app(app)?.number;
        let found = self
            .collections(app, number)
            .find(|(other, _)| *other == name);
        found
            .and_then(|(_, entry)| entry.live())
            .ok_or_else(|| StoreError::NoCollection {
                app: app.clone(),
                collection: name.to_string(),
            })
    }
}

fn edit(
    app: &AppId,
    name: &CollectionName,
    collection: Collection,
    entry: CollectionEntry,
) -> Result<RecordEdit<CollectionSummary>, StoreError> {
    let made = CollectionSummary {
        app: app.clone(),
        name: name.clone(),
        collection,
    };
    Ok(RecordEdit {
        key: collection_key(app, name),
        record: Some(entry.into_bytes()),
        made,
        reused: None,
    })
}

/// Returns the schema of a collection after a change in the generation that follows `generation`.
fn changed_schema(
    record: &CollectionRecord,
    change: &SchemaChange,
    generation: u64,
) -> Result<Changed, StoreError> {
    let collection = record.read()?;
    let schema = collection.schema().ok_or_else(has_tokens)?;
    schema
        .change(change, generation + 1)
        .map_err(|error| StoreError::Invalid(error.to_string()))
}

fn has_tokens() -> StoreError {
    StoreError::Invalid(
        "the collection has tokens: only a collection of objects has a schema".into(),
    )
}

fn check_times(expires_s: Option<u64>, retention_s: Option<u64>) -> Result<(), StoreError> {
    let max = CollectionRules::EXPIRES_S_MAX;
    if expires_s.is_some_and(|expires_s| !(1..=max).contains(&expires_s)) {
        return Err(StoreError::Invalid(format!(
            "tokens expire after 1 to {max} seconds"
        )));
    }
    if retention_s.is_some_and(|retention_s| retention_s > max) {
        return Err(StoreError::Invalid(format!(
            "archived rows are kept for 0 to {max} seconds"
        )));
    }
    Ok(())
}
