//! Converts the store's types to those of control responses.

use sealwire_apps::{
    AppChange, AppState, AppSummary, CollectionContent, CollectionSummary, KeySummary, Target,
    TokenKeySummary,
};
use sealwire_crypto::{EpochLifetime, KeyState, Origin, Suite};
use sealwire_records::objects::{AcceptedRecords, Property};
use sealwire_records::token::Format;
use sealwire_store::Instance;
use sealwire_wire::control::{self as wire, AppChanged, TokenFormat};

pub(super) fn app(app: AppSummary) -> wire::App {
    wire::App {
        state: state(app.state == AppState::Active, app.delete_unix_s),
        delete_unix_s: app.delete_unix_s,
        format: app.settings.format.name().into(),
        epoch_ms: app.settings.epoch.map_or(0, EpochLifetime::as_ms),
        write_suite: app.settings.write_suite.name().into(),
        read_suites: app
            .settings
            .read_suites
            .iter()
            .map(|suite| Suite::name(suite).into())
            .collect(),
        keys: app.keys.iter().map(key).collect(),
        token_keys: app.token_keys.iter().map(token_key).collect(),
        app: app.app.as_str().into(),
    }
}

pub(super) fn changed(change: AppChange) -> AppChanged {
    let key = match change.target {
        Target::App => None,
        Target::Key(id) => Some(id.to_string()),
        Target::TokenKey(number) => Some(token_key_id(number)),
    };
    AppChanged {
        app: Some(app(change.app)),
        key,
        generation: change.generation,
    }
}

/// How calls name a version of the token key.
pub(super) fn token_key_id(number: u32) -> String {
    format!("token-{number}")
}

/// The number in such a name.
pub(super) fn token_key_number(id: &str) -> Option<u32> {
    id.strip_prefix("token-")?.parse().ok()
}

pub(super) fn collection(found: CollectionSummary) -> wire::Collection {
    let created_unix_s = found.collection.created_unix_s;
    let rules = match &found.collection.content {
        CollectionContent::Tokens(rules) => *rules,
        CollectionContent::Objects(schema) => {
            return wire::Collection {
                app: found.app.as_str().into(),
                collection: found.name.as_str().into(),
                kind: "objects".into(),
                suite: schema.suite.name().into(),
                records: match schema.records {
                    AcceptedRecords::All => "all",
                    AcceptedRecords::Migrating => "migrating",
                    AcceptedRecords::Authenticated => "authenticated",
                }
                .into(),
                properties: schema.properties.iter().map(property).collect(),
                expires_s: schema.expires_s,
                retention_s: schema.retention_s,
                created_unix_s,
                ..wire::Collection::default()
            };
        }
    };

    let (format, ends) = match rules.format {
        Format::Opaque => (TokenFormat::Opaque, None),
        Format::Uuid => (TokenFormat::Uuid, None),
        Format::Digits => (TokenFormat::Digits, None),
        Format::Card(ends) => (TokenFormat::Card, Some(ends)),
        Format::Email => (TokenFormat::Email, None),
    };

    wire::Collection {
        app: found.app.as_str().into(),
        collection: found.name.as_str().into(),
        kind: rules.kind.name().into(),
        format: format.name().into(),
        first: ends.map(|ends| ends.first()),
        last: ends.map(|ends| ends.last()),
        scope: rules.scope.name().into(),
        suite: String::new(),
        records: String::new(),
        properties: Vec::new(),
        expires_s: rules.expires_s,
        retention_s: rules.retention_s,
        created_unix_s,
    }
}

fn property(property: &Property) -> wire::Property {
    let index = property.index.as_ref();
    wire::Property {
        name: property.name.as_str().into(),
        property_type: property.property_type.name().into(),
        nullable: property.nullable,
        unique: property.unique,
        index: index.is_some(),
        bits: index.and_then(|index| index.bits),
        prefixes: index.map_or_else(Vec::new, |index| index.prefixes.clone()),
        encrypted: property.encrypted,
        description: property.description.clone(),
    }
}

/// Converts an instance to its form on the wire.
pub fn instance(instance: Instance) -> wire::Instance {
    wire::Instance {
        id: instance.id,
        address: instance.address,
        version: instance.version,
        generation: instance.generation,
        age_ms: u64::try_from(instance.age.as_millis()).unwrap_or(u64::MAX),
    }
}

fn key(key: &KeySummary) -> wire::Key {
    wire::Key {
        id: key.id.to_string(),
        suite: key.suite.name().into(),
        version: key.number,
        state: state(key.state == KeyState::Active, key.delete_unix_s),
        seals: key.seals,
        outside: key.origin == Origin::Outside,
        created_unix_s: key.created_unix_s,
        delete_unix_s: key.delete_unix_s,
    }
}

fn token_key(key: &TokenKeySummary) -> wire::TokenKey {
    wire::TokenKey {
        version: key.number,
        state: state(key.state == KeyState::Active, None),
        created_unix_s: key.created_unix_s,
    }
}

pub(super) fn state(active: bool, delete_unix_s: Option<u64>) -> String {
    match (delete_unix_s, active) {
        (Some(_), _) => "deleting",
        (None, true) => "active",
        (None, false) => "disabled",
    }
    .into()
}
