//! Operations on collections, the named token maps of an app.

use sealwire_crypto::AppId;

use super::model::{
    Collection, CollectionChange, CollectionName, CollectionRules, CollectionRulesChange, CollectionSummary,
};
use super::record::{CollectionEntry, CollectionRecord, CollectionTombstone, Contents, Entry, collection_key, damaged};
use super::{Control, RecordEdit, unix_s};
use sealwire_store::StoreError;

impl Control {
    /// Returns an app's collections, by name, and the generation of the records.
    ///
    /// # Errors
    /// [`StoreError::NoApp`], any error of the store, or [`StoreError::Damaged`].
    pub async fn collections(&self, app: &AppId) -> Result<(u64, Vec<CollectionSummary>), StoreError> {
        let app = app.clone();
        self.read(move |contents| {
            let number = contents.app(&app)?.number;
            let live = contents.collections(&app, number).filter_map(|(name, entry)| Some((name, entry.live()?)));
            let summary = |(name, record): (&CollectionName, &CollectionRecord)| {
                Ok(CollectionSummary { app: app.clone(), name: name.clone(), collection: record.read()? })
            };
            Ok((contents.generation, live.map(summary).collect::<Result<_, StoreError>>()?))
        })
        .await
    }

    /// Creates a collection.
    ///
    /// # Errors
    /// [`StoreError::NoApp`]; [`StoreError::Deleted`] while the app waits for its removal;
    /// [`StoreError::CollectionExists`] if the name is taken. [`StoreError::Conflict`] while an instance can still
    /// serve another collection of that name; [`StoreError::Invalid`] for a time out of range.
    pub async fn create_collection(
        &self,
        app: &AppId,
        name: &CollectionName,
        rules: CollectionRules,
    ) -> Result<CollectionChange, StoreError> {
        check_times(rules.expires_s, rules.retention_s)?;
        let (app, name) = (app.clone(), name.clone());
        self.change_collection(move |contents| {
            let app_number = contents.staying(&app)?.number;
            let there: Vec<_> = contents.collections(&app, app_number).collect();
            if there.iter().any(|(other, entry)| **other == name && entry.live().is_some()) {
                return Err(StoreError::CollectionExists { app: app.clone(), collection: name.to_string() });
            }
            let highest = there.iter().map(|(_, entry)| entry.number()).max().unwrap_or(0);
            let no_number = || damaged(&collection_key(&app, &name), "no number left".into());
            let number = highest.checked_add(1).ok_or_else(no_number)?;
            let collection = Collection { number, rules, created_unix_s: unix_s() };
            let record = CollectionRecord::new(&app, app_number, &name, collection);
            edit(&app, &name, collection, Entry::Live(record))
        })
        .await
    }

    /// Changes the rules of a collection. Expiry applies to new tokens; retention applies to all rows.
    ///
    /// # Errors
    /// [`StoreError::NoApp`], [`StoreError::NoCollection`], or [`StoreError::Invalid`] for a time out of range.
    pub async fn change_rules(
        &self,
        app: &AppId,
        name: &CollectionName,
        change: CollectionRulesChange,
    ) -> Result<CollectionChange, StoreError> {
        check_times(change.expires_s.flatten(), change.retention_s.flatten())?;
        let (app, name) = (app.clone(), name.clone());
        self.change_collection(move |contents| {
            let mut record = contents.collection(&app, &name)?.clone();
            record.expires_s = change.expires_s.unwrap_or(record.expires_s);
            record.retention_s = change.retention_s.unwrap_or(record.retention_s);
            edit(&app, &name, record.read()?, Entry::Live(record))
        })
        .await
    }

    /// Removes a collection immediately. Its tokens are no longer found. The sweep removes its rows.
    ///
    /// # Errors
    /// [`StoreError::NoApp`] or [`StoreError::NoCollection`].
    pub async fn delete_collection(&self, app: &AppId, name: &CollectionName) -> Result<CollectionChange, StoreError> {
        let (app, name) = (app.clone(), name.clone());
        self.change_collection(move |contents| {
            let record = contents.collection(&app, &name)?;
            let (app_number, number, generation) = (record.app_number, record.number, contents.generation + 1);
            let tombstone = CollectionTombstone { app_number, number, generation };
            edit(&app, &name, record.read()?, Entry::Deleted(tombstone))
        })
        .await
    }

    async fn change_collection(
        &self,
        edit: impl Fn(&Contents) -> Result<RecordEdit<CollectionSummary>, StoreError> + Send + Sync + 'static,
    ) -> Result<CollectionChange, StoreError> {
        let (generation, collection) = self.change(edit).await?;
        Ok(CollectionChange { generation, collection })
    }
}

impl Contents {
    fn collection(&self, app: &AppId, name: &CollectionName) -> Result<&CollectionRecord, StoreError> {
        let number = self.app(app)?.number;
        let missing = || StoreError::NoCollection { app: app.clone(), collection: name.to_string() };
        let found = self.collections(app, number).find(|(other, _)| *other == name);
        found.and_then(|(_, entry)| entry.live()).ok_or_else(missing)
    }
}

fn edit(
    app: &AppId,
    name: &CollectionName,
    collection: Collection,
    entry: CollectionEntry,
) -> Result<RecordEdit<CollectionSummary>, StoreError> {
    let made = CollectionSummary { app: app.clone(), name: name.clone(), collection };
    Ok(RecordEdit { key: collection_key(app, name), record: Some(entry.into_bytes()), made })
}

fn check_times(expires_s: Option<u64>, retention_s: Option<u64>) -> Result<(), StoreError> {
    let max = CollectionRules::EXPIRES_S_MAX;
    if expires_s.is_some_and(|expires_s| !(1..=max).contains(&expires_s)) {
        return Err(StoreError::Invalid(format!("tokens expire after 1 to {max} seconds")));
    }
    if retention_s.is_some_and(|retention_s| retention_s > max) {
        return Err(StoreError::Invalid(format!("archived rows are kept for 0 to {max} seconds")));
    }
    Ok(())
}
