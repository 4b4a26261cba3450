//! Changes of the schemas of collections of objects.

use sealwire_apps::{CollectionName, Control};
use sealwire_crypto::AppId;
use sealwire_records::objects::{PropertyName, PropertySpec, PropertyType, SchemaChange};
use sealwire_store::{ObjectStore, StoreError};
use sealwire_wire::RpcError;
use sealwire_wire::control::{self as wire, AlterCollection, CollectionChanged};

use super::refusal::{bad, of};
use super::views;
use crate::suite;

/// Attempts to change a schema when other changes of it come first.
const TRIES_MAX: u32 = 8;

/// Converts a property of a request.
pub(super) fn spec(spec: &wire::PropertySpec<'_>) -> Result<PropertySpec, RpcError> {
    let types = || {
        let names: Vec<&str> = PropertyType::ALL.iter().map(|one| one.name()).collect();
        bad(format!(
            "type of property {} must be one of {}",
            spec.name,
            names.join(", ")
        ))
    };
    Ok(PropertySpec {
        name: name(spec.name)?,
        property_type: PropertyType::from_name(spec.property_type).ok_or_else(types)?,
        nullable: spec.nullable,
        unique: spec.unique,
        index: spec.index,
        bits: spec.bits,
        prefixes: spec.prefixes.clone(),
        accept_leak: spec.accept_leak,
        encrypted: spec.encrypted,
        description: spec.description.to_owned(),
    })
}

fn name(name: &str) -> Result<PropertyName, RpcError> {
    PropertyName::new(name).map_err(bad)
}

/// Converts a change of a schema.
pub(super) fn change(alter: &AlterCollection<'_>) -> Result<SchemaChange, RpcError> {
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|one| name(one))
            .collect::<Result<Vec<_>, _>>()
    };
    let change = SchemaChange {
        add: alter.add.iter().map(spec).collect::<Result<_, _>>()?,
        drop: names(&alter.drop)?,
        relax_unique: names(&alter.allow_duplicates)?,
        relax_not_null: names(&alter.allow_null)?,
        drop_index: names(&alter.drop_index)?,
        suite: alter.suite.map(suite::from_wire),
        ..SchemaChange::default()
    };
    if change == SchemaChange::default() {
        return Err(bad(
            "name a change: add, drop, allow_duplicates, allow_null, drop_index or suite",
        ));
    }
    Ok(change)
}

/// Changes a schema. Raises the fence of the map before the name of a dropped property is used
/// again. A paused engine that still knows the dropped property then cannot read or write objects.
pub(super) async fn alter(
    control: &Control,
    objects: Option<&dyn ObjectStore>,
    (app, name): (&AppId, &CollectionName),
    change: SchemaChange,
) -> Result<CollectionChanged, RpcError> {
    for tries in 1.. {
        let reused = control
            .reused_property(app, name, &change)
            .await
            .map_err(of)?;
        if let (Some((map, generation)), Some(objects)) = (reused, objects) {
            objects.raise_fence(map, generation).await.map_err(of)?;
        }
        let fence = reused.map(|(_, generation)| generation);
        match control
            .alter_collection(app, name, change.clone(), fence)
            .await
        {
            Ok(changed) => {
                let collection = Some(views::collection(changed.collection));
                return Ok(CollectionChanged {
                    collection,
                    generation: changed.generation,
                });
            }
            Err(StoreError::Unavailable(_)) if tries < TRIES_MAX => {}
            Err(error) => return Err(of(error)),
        }
    }
    Err(bad("the last attempt returns"))
}
