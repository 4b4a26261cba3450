//! Control operations on apps and collections of a store.

use std::time::Duration;

use sealwire_apps::{
    CollectionKind, CollectionName, CollectionRules, CollectionRulesChange, Control, KeyKind,
    Target,
};
use sealwire_crypto::{AppId, EpochLifetime, KeyPair, Suite, SuiteSet};
use sealwire_records::objects::Schema;
use sealwire_records::token::{CardEnds, Format};
use sealwire_store::ObjectStore;
use sealwire_wire::control::{
    AppChanged, AppOperation, AppRequest, Apps, CollectionChanged, CollectionOperation,
    CollectionRequest, Collections, CreateCollection, Kind, Page, Record, Records, RotateKind,
    Scope, TokenFormat,
};
use sealwire_wire::{self as wire, DELAY_S_DEFAULT, RpcError};

use super::rpc_error::{invalid_param, store_error};
use super::{schema, views};
use crate::suite;

/// Default number of entries on a page.
pub(crate) const PAGE_DEFAULT: u32 = 100;

/// Pause before a retry of a page that a concurrent change interrupted.
const EXPORT_RETRY_MS: u32 = 50;

/// `apps.list`.
pub async fn apps(control: &Control, page: Page<'_>) -> Result<Apps, RpcError> {
    let (generation, apps) = control.apps().await.map_err(store_error)?;
    let (apps, next) = truncate_page(apps, page, |app| app.app.as_str());
    Ok(Apps {
        apps: apps.into_iter().map(views::app).collect(),
        next,
        generation,
    })
}

/// `collections.list`.
pub async fn collections(
    control: &Control,
    app: &str,
    page: Page<'_>,
) -> Result<Collections, RpcError> {
    let (generation, found) = control
        .collections(&app_id(app)?)
        .await
        .map_err(store_error)?;
    let (found, next) = truncate_page(found, page, |collection| collection.name.as_str());
    Ok(Collections {
        collections: found.into_iter().map(views::collection).collect(),
        next,
        generation,
    })
}

/// `apps.export`.
pub async fn export(control: &Control, page: Page<'_>) -> Result<Records, RpcError> {
    // Also the records that authenticate the others, and the others as they are: the reader of the
    // file verifies them.
    let store = control.store().unverified();
    let mut snapshot = store.load().await.map_err(store_error)?;
    // Of those that are read one by one no more than could be on the page.
    let limit = page.limit.unwrap_or(PAGE_DEFAULT) as usize;
    let single = store
        .singles(page.after, limit + 1)
        .await
        .map_err(store_error)?;

    if single.generation != snapshot.generation {
        let error = RpcError::new(
            wire::ErrorCode::Unavailable,
            "something was changed meanwhile",
        );
        return Err(error.retry_after_ms(EXPORT_RETRY_MS));
    }

    snapshot.records.extend(single.records);
    let (records, next) =
        truncate_page(snapshot.records.into_iter().collect(), page, |(key, _)| key);
    let records = records
        .into_iter()
        .map(|(key, record)| {
            Ok(Record {
                key,
                record: String::from_utf8(record).map_err(|_| {
                    RpcError::new(wire::ErrorCode::Internal, "a record is not text")
                })?,
            })
        })
        .collect::<Result<_, RpcError>>()?;

    Ok(Records {
        records,
        next,
        generation: snapshot.generation,
    })
}

/// Cuts a page out of a sorted list. Returns the page and the cursor of the next one.
pub(crate) fn truncate_page<T>(
    list: Vec<T>,
    page: Page<'_>,
    name: impl Fn(&T) -> &str,
) -> (Vec<T>, Option<String>) {
    let limit = page.limit.unwrap_or(PAGE_DEFAULT) as usize;
    let mut rest: Vec<T> = list
        .into_iter()
        .filter(|entry| page.after.is_none_or(|after| name(entry) > after))
        .collect();
    let more = rest.len() > limit;
    rest.truncate(limit);
    let next = rest
        .last()
        .filter(|_| more)
        .map(|last| name(last).to_owned());
    (rest, next)
}

/// Every method that changes an app.
pub async fn change_app(
    control: &Control,
    request: AppRequest<'_>,
) -> Result<AppChanged, RpcError> {
    let app = &app_id(request.app)?;
    let changed = match request.operation {
        AppOperation::Create => {
            let stable: Vec<Suite> = Suite::ALL
                .into_iter()
                .filter(|suite| !suite.is_experimental())
                .collect();
            control.create(app, &stable).await
        }
        AppOperation::Rotate { kind } => {
            let kind = match kind {
                RotateKind::P256 => KeyKind::Suite(Suite::P256),
                RotateKind::Secp256k1 => KeyKind::Suite(Suite::Secp256k1),
                RotateKind::Xaes => KeyKind::Suite(Suite::Xaes),
                RotateKind::P256MlKem768 => KeyKind::Suite(Suite::P256MlKem768),
                RotateKind::P256Psk => KeyKind::Suite(Suite::P256Psk),
                RotateKind::Secp256k1Psk => KeyKind::Suite(Suite::Secp256k1Psk),
                RotateKind::P256Outside => KeyKind::Outside(Suite::P256),
                RotateKind::P256MlKem768Outside => KeyKind::Outside(Suite::P256MlKem768),
                RotateKind::Token => KeyKind::Token,
            };
            control.rotate(app, kind).await
        }
        AppOperation::Import {
            suite,
            private_key,
            seals,
        } => {
            let curve = suite::from_wire(suite)
                .curve()
                .ok_or_else(|| invalid_param("suite must be one of key pairs"))?;
            let pair = KeyPair::import(curve, private_key.0.as_bytes());
            control
                .import(
                    app,
                    pair.map_err(|error| invalid_param(format!("private_key: {error}")))?,
                    seals,
                )
                .await
        }
        AppOperation::Disable { key } => control.disable(app, parse_target(key)?).await,
        AppOperation::Enable { key } => control.enable(app, parse_target(key)?).await,
        AppOperation::Delete { key, delay_s } => {
            let delay = Duration::from_secs(delay_s.unwrap_or(DELAY_S_DEFAULT));
            control.delete(app, parse_target(key)?, delay).await
        }
        AppOperation::Restore { key } => control.restore(app, parse_target(key)?).await,
        AppOperation::Set {
            format,
            epoch_ms,
            write_suite,
            read_suites,
        } => {
            let read_suites: Option<SuiteSet> =
                read_suites.map(|all| all.into_iter().map(suite::from_wire).collect());
            let format =
                format.and_then(|format| sealwire_apps::DefaultFormat::from_name(format.name()));
            control
                .configure(app, move |settings| {
                    settings.format = format.unwrap_or(settings.format);
                    settings.write_suite =
                        write_suite.map_or(settings.write_suite, suite::from_wire);
                    settings.read_suites = read_suites.unwrap_or(settings.read_suites);
                    if let Some(ms) = epoch_ms {
                        // Only 0 fails here and turns epochs off. Other invalid lifetimes were rejected
                        // before.
                        settings.epoch = EpochLifetime::from_ms(ms).ok();
                    }
                })
                .await
        }
    };
    changed.map(views::changed).map_err(store_error)
}

/// Every method that changes a collection. `objects`: the store of objects; `None` if there are
/// none.
pub async fn change_collection(
    control: &Control,
    objects: Option<&dyn ObjectStore>,
    request: &CollectionRequest<'_>,
) -> Result<CollectionChanged, RpcError> {
    let app = &app_id(request.app)?;
    let name = &CollectionName::new(request.collection).map_err(store_error)?;
    let gone = request.operation == CollectionOperation::Delete;
    let changed = match &request.operation {
        CollectionOperation::Create(new) => {
            let kind = match new.kind {
                Kind::Random => CollectionKind::Random,
                Kind::Deterministic => CollectionKind::Deterministic,
                Kind::OneWay => CollectionKind::OneWay,
                Kind::Objects => return create_objects(control, app, name, new).await,
            };
            let scope = match new.scope {
                Scope::Collection => sealwire_apps::Scope::Collection,
                Scope::Context => sealwire_apps::Scope::Context,
            };
            let rules = CollectionRules {
                kind,
                format: token_format(new.format, new.first, new.last)?,
                scope,
                expires_s: new.expires_s,
                retention_s: new.retention_s,
            };
            control.create_collection(app, name, rules).await
        }
        &CollectionOperation::Set {
            expires_s,
            retention_s,
        } => {
            control
                .change_rules(
                    app,
                    name,
                    CollectionRulesChange {
                        expires_s,
                        retention_s,
                    },
                )
                .await
        }
        CollectionOperation::Alter(alter) => {
            return schema::alter(control, objects, (app, name), schema::change(alter)?).await;
        }
        CollectionOperation::Delete => control.delete_collection(app, name).await,
    }
    .map_err(store_error)?;

    let collection = (!gone).then(|| views::collection(changed.collection));
    Ok(CollectionChanged {
        collection,
        generation: changed.generation,
    })
}

async fn create_objects(
    control: &Control,
    app: &AppId,
    name: &CollectionName,
    new: &CreateCollection<'_>,
) -> Result<CollectionChanged, RpcError> {
    let specs = new
        .properties
        .iter()
        .map(schema::spec)
        .collect::<Result<Vec<_>, _>>()?;
    let suite = new.suite.map_or(Suite::Xaes, suite::from_wire);
    let schema = Schema {
        expires_s: new.expires_s,
        retention_s: new.retention_s,
        ..Schema::new(suite, &specs).map_err(invalid_param)?
    };
    let changed = control.create_objects(app, name, schema).await;
    let changed = changed.map_err(store_error)?;
    Ok(CollectionChanged {
        collection: Some(views::collection(changed.collection)),
        generation: changed.generation,
    })
}

fn token_format(
    format: TokenFormat,
    first: Option<u8>,
    last: Option<u8>,
) -> Result<Format, RpcError> {
    if format != TokenFormat::Card && (first.is_some() || last.is_some()) {
        return Err(invalid_param(
            "first and last must be absent: only format \"card\" keeps digits",
        ));
    }

    Ok(match format {
        TokenFormat::Opaque => Format::Opaque,
        TokenFormat::Uuid => Format::Uuid,
        TokenFormat::Digits => Format::Digits,
        TokenFormat::Card => Format::Card(
            CardEnds::new(first.unwrap_or(6), last.unwrap_or(4)).map_err(invalid_param)?,
        ),
        TokenFormat::Email => Format::Email,
    })
}

pub(super) fn app_id(app: &str) -> Result<AppId, RpcError> {
    AppId::new(app).map_err(|error| invalid_param(format!("app: {error}")))
}

fn parse_target(key: Option<&str>) -> Result<Target, RpcError> {
    let Some(key) = key else {
        return Ok(Target::App);
    };
    if let Some(number) = views::token_key_number(key) {
        return Ok(Target::TokenKey(number));
    }
    key.parse()
        .map(Target::Key)
        .map_err(|_| invalid_param("key must be 10 hexadecimal digits, or token-N"))
}
