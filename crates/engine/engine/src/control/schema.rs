//! Changes of the schemas of collections of objects.

use sealwire_apps::{CollectionName, Control};
use sealwire_crypto::AppId;
use sealwire_records::objects::{PropertyName, PropertySpec, PropertyType, SchemaChange};
use sealwire_store::{ObjectStore, StoreError};
use sealwire_wire::RpcError;
use sealwire_wire::control::{self as wire, AlterCollection, CollectionChanged};

use super::rpc_error::{invalid_param, store_error};
use super::views;
use crate::suite;

/// Maximum number of attempts to change a schema that other requests change at the same time.
const TRIES_MAX: u32 = 8;

/// Converts a property of a request.
pub(super) fn spec(spec: &wire::PropertySpec<'_>) -> Result<PropertySpec, RpcError> {
    Ok(PropertySpec {
        name: property_name(spec.name)?,
        property_type: PropertyType::from_name(spec.property_type).ok_or_else(|| {
            let names: Vec<&str> = PropertyType::ALL.iter().map(|one| one.name()).collect();
            invalid_param(format!(
                "type of property {} must be one of {}",
                spec.name,
                names.join(", ")
            ))
        })?,
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

fn property_name(name: &str) -> Result<PropertyName, RpcError> {
    PropertyName::new(name).map_err(invalid_param)
}

fn property_names(names: &[&str]) -> Result<Vec<PropertyName>, RpcError> {
    names.iter().map(|name| property_name(name)).collect()
}

/// Converts a change of a schema.
pub(super) fn change(alter: &AlterCollection<'_>) -> Result<SchemaChange, RpcError> {
    let change = SchemaChange {
        add: alter.add.iter().map(spec).collect::<Result<_, _>>()?,
        drop: property_names(&alter.drop)?,
        relax_unique: property_names(&alter.allow_duplicates)?,
        relax_not_null: property_names(&alter.allow_null)?,
        drop_index: property_names(&alter.drop_index)?,
        suite: alter.suite.map(suite::from_wire),
        ..SchemaChange::default()
    };

    if change == SchemaChange::default() {
        return Err(invalid_param(
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
            .map_err(store_error)?;
        if let (Some((map, generation)), Some(objects)) = (reused, objects) {
            objects
                .raise_fence(map, generation)
                .await
                .map_err(store_error)?;
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
            Err(error) => return Err(store_error(error)),
        }
    }
    Err(invalid_param("the last attempt returns"))
}
