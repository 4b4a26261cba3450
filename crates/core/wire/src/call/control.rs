//! The control methods.

use super::objects;
use super::reading::{NAME_BYTES_MAX, Params, breaks};
use crate::call_error::CallError;
use crate::limits::{
    APP_BYTES_MAX, CURSOR_BYTES_MAX, DELAY_S_MAX, EPOCH_MS_MAX, EXPIRES_S_MAX, GRANT_BYTES_MAX,
    GRANTS_MAX, LONG_CURSOR_BYTES_MAX, OBJECTS_MAX, PRIVATE_KEY_BYTES_MAX, PROPERTIES_MAX,
    SLOTS_MAX, SWEEP_ROWS_MAX, TOKENS_MAX,
};
use crate::method::Method;
use crate::params::{
    AlterCollection, AppCall, AppOperation, CensusCall, CheckCall, CollectionCall,
    CollectionOperation, Control, Format, Kind, MigrateCall, Page, Param, PrincipalCall,
    PrincipalOperation, PropertySpec, PublicKeysCall, RewrapRowsCall, RoleCall, RoleOperation,
    RootOperation, RotateKind, Scope, Secret, Suite, TokenFormat,
};

/// The params of all control methods, as they are read.
#[derive(Default)]
struct ControlParams<'a> {
    app: Option<&'a str>,
    collection: Option<&'a str>,
    page: Page<'a>,
    key: Option<&'a str>,
    rotate: Option<RotateKind>,
    imported_suite: Option<Suite>,
    write_suite: Option<Suite>,
    read_suites: Option<Vec<Suite>>,
    private_key: &'a str,
    seals: bool,
    delay_s: Option<u64>,
    format: Option<Format>,
    epoch_ms: Option<u32>,
    kind: Option<CollectionKind>,
    properties: Option<Vec<PropertySpec<'a>>>,
    objects_suite: Option<Suite>,
    alter: AlterCollection<'a>,
    token_format: TokenFormat,
    first: Option<u8>,
    last: Option<u8>,
    scope: Scope,
    expires_s: Option<Option<u64>>,
    retention_s: Option<Option<u64>>,
    role: Option<&'a str>,
    grants: Vec<&'a str>,
    principal: &'a str,
    operation: &'a str,
    property: Option<&'a str>,
    reason: Option<&'a str>,
    min_generation: Option<u64>,
    providers: Option<Vec<&'a str>>,
    provider: &'a str,
    slot: u32,
    abandon: bool,
    prove: bool,
    accept_unauthenticated: bool,
    dry_run: bool,
}

pub(super) fn call<'a>(method: Method, params: &mut Params<'a>) -> Result<Control<'a>, CallError> {
    let said = read(method, params)?;
    let ControlParams {
        key,
        expires_s,
        retention_s,
        ..
    } = said;
    // The method's table has seen to it that what it requires is there.
    let (app_name, collection_name) = (
        said.app.unwrap_or_default(),
        said.collection.unwrap_or_default(),
    );
    let role_name = said.role.unwrap_or_default();
    let app = |ask| Control::App(AppCall { app: app_name, ask });
    let collection = |ask| {
        Control::Collection(CollectionCall {
            app: app_name,
            collection: collection_name,
            ask,
        })
    };
    let role = |ask| {
        Control::Role(RoleCall {
            role: role_name,
            ask,
        })
    };
    let principal = |ask| {
        Control::Principal(PrincipalCall {
            principal: said.principal,
            ask,
        })
    };
    Ok(match method {
        Method::AppsList => Control::Apps(said.page),
        Method::AppsExport => Control::Export(said.page),
        Method::AppsCreate => app(AppOperation::Create),
        Method::AppsRotate => app(AppOperation::Rotate {
            kind: said.rotate.ok_or(CallError::Missing { key: "kind" })?,
        }),
        Method::AppsImport => {
            let private_key = Secret(said.private_key);
            let suite = said
                .imported_suite
                .ok_or(CallError::Missing { key: "suite" })?;
            app(AppOperation::Import {
                suite,
                private_key,
                seals: said.seals,
            })
        }
        Method::AppsDisable => app(AppOperation::Disable { key }),
        Method::AppsEnable => app(AppOperation::Enable { key }),
        Method::AppsDelete => app(AppOperation::Delete {
            key,
            delay_s: said.delay_s,
        }),
        Method::AppsRestore => app(AppOperation::Restore { key }),
        Method::AppsSet => app(AppOperation::Set {
            format: said.format,
            epoch_ms: said.epoch_ms,
            write_suite: said.write_suite,
            read_suites: said.read_suites,
        }),
        Method::CollectionsList => Control::Collections {
            app: app_name,
            page: said.page,
        },
        Method::CollectionsCreate => collection(create(said)?),
        Method::CollectionsAlter => collection(CollectionOperation::Alter(said.alter)),
        Method::CollectionsSet => collection(CollectionOperation::Set {
            expires_s,
            retention_s,
        }),
        Method::CollectionsDelete => collection(CollectionOperation::Delete),
        Method::KeysCensus => {
            let Page { after, limit } = said.page;
            Control::Census(CensusCall {
                app: app_name,
                prove: said.prove,
                after,
                limit,
            })
        }
        Method::KeysRewrap => {
            let Page { after, limit } = said.page;
            Control::RewrapRows(RewrapRowsCall {
                app: app_name,
                collection: said.collection,
                after,
                limit,
            })
        }
        Method::CollectionsMigrate => {
            let Page { after, limit } = said.page;
            let (accept_unauthenticated, dry_run) = (said.accept_unauthenticated, said.dry_run);
            let (app, collection) = (app_name, collection_name);
            Control::Migrate(MigrateCall {
                app,
                collection,
                accept_unauthenticated,
                dry_run,
                after,
                limit,
            })
        }
        Method::InstancesList => Control::Instances,
        Method::RolesList => Control::Roles(said.page),
        Method::RolesSet => role(RoleOperation::Set {
            grants: said.grants,
        }),
        Method::RolesDelete => role(RoleOperation::Delete),
        Method::PrincipalsList => Control::Principals(said.page),
        Method::PrincipalsGrant => principal(PrincipalOperation::Grant { role: role_name }),
        Method::PrincipalsRevoke => principal(PrincipalOperation::Revoke { role: said.role }),
        Method::PrincipalsCheck => Control::Check(CheckCall {
            principal: said.principal,
            operation: said.operation,
            app: said.app,
            collection: said.collection,
            property: said.property,
            reason: said.reason,
        }),
        Method::RootStatus => Control::Root(RootOperation::Status),
        Method::RootInit => Control::Root(RootOperation::Init {
            providers: said.providers,
        }),
        Method::RootRotate => Control::Root(RootOperation::Rotate {
            abandon: said.abandon,
        }),
        Method::RootSeal => Control::Root(RootOperation::Seal),
        Method::RootUnseal => Control::Root(RootOperation::Unseal),
        Method::KekAdd => Control::Root(RootOperation::AddSlot {
            provider: said.provider,
        }),
        Method::KekRemove => Control::Root(RootOperation::RemoveSlot { slot: said.slot }),
        Method::KekVerify => Control::Root(RootOperation::Verify),
        Method::KekRotate => Control::Root(RootOperation::RotateSlots),
        Method::AppsPublicKeys => Control::PublicKeys(PublicKeysCall {
            app: app_name,
            min_generation: said.min_generation,
            reason: said.reason,
        }),
        // Not control methods: the caller has dealt with them.
        _ => {
            return Err(CallError::UnknownMethod {
                method: method.name().to_owned(),
            });
        }
    })
}

/// The kind of a collection: one of tokens, or objects.
enum CollectionKind {
    Tokens(Kind),
    Objects,
}

impl CollectionKind {
    fn from_name(name: &str) -> Option<Self> {
        if name == "objects" {
            Some(Self::Objects)
        } else {
            Kind::from_name(name).map(Self::Tokens)
        }
    }
}

/// The collection to create. Parameters of the other kind must be absent.
fn create(said: ControlParams<'_>) -> Result<CollectionOperation<'_>, CallError> {
    let only_objects = |key| {
        Err(CallError::BreaksRule {
            key,
            rule: "absent: only kind \"objects\" has it",
        })
    };
    let (expires_s, retention_s) = (said.expires_s.flatten(), said.retention_s.flatten());
    let (format, first, last, scope) = (said.token_format, said.first, said.last, said.scope);
    match (
        said.kind.ok_or(CallError::Missing { key: "kind" })?,
        said.properties,
    ) {
        (CollectionKind::Tokens(_), Some(_)) => only_objects("properties"),
        (CollectionKind::Tokens(_), None) if said.objects_suite.is_some() => only_objects("suite"),
        (CollectionKind::Tokens(kind), None) => Ok(CollectionOperation::Create {
            kind,
            format,
            first,
            last,
            scope,
            expires_s,
            retention_s,
        }),
        (CollectionKind::Objects, None) => Err(CallError::Missing { key: "properties" }),
        (CollectionKind::Objects, Some(properties)) => {
            if (format, scope) != Default::default() || first.is_some() || last.is_some() {
                return Err(CallError::BreaksRule {
                    key: "format, scope, first, last",
                    rule: "absent: only tokens have them",
                });
            }
            let suite = said.objects_suite;
            Ok(CollectionOperation::CreateObjects {
                suite,
                properties,
                expires_s,
                retention_s,
            })
        }
    }
}

/// The params. The method's table has refused what is not its own.
fn read<'a>(method: Method, params: &mut Params<'a>) -> Result<ControlParams<'a>, CallError> {
    let mut said = ControlParams::default();
    while let Some(param) = params.next()? {
        match (param.name, method) {
            ("app", _) => said.app = Some(params.app(param)?),
            ("collection", _) => said.collection = Some(params.app(param)?),
            ("role", _) => said.role = Some(params.app(param)?),
            ("grants", _) => said.grants = params.texts(param, GRANTS_MAX, GRANT_BYTES_MAX)?,
            ("principal", _) => said.principal = params.principal(param)?,
            ("operation", _) => said.operation = params.text(param, APP_BYTES_MAX)?,
            ("property", _) => said.property = Some(params.app(param)?),
            ("reason", _) => said.reason = Some(params.reason(param)?),
            ("providers", _) => {
                said.providers = Some(params.texts(param, SLOTS_MAX, APP_BYTES_MAX)?)
            }
            ("provider", _) => said.provider = params.text(param, APP_BYTES_MAX)?,
            ("slot", _) => said.slot = params.within(param, 1..=u64::from(u32::MAX))? as u32,
            ("prove", _) => said.prove = params.flag(param)?,
            ("accept_unauthenticated", _) => said.accept_unauthenticated = params.flag(param)?,
            ("dry_run", _) => said.dry_run = params.flag(param)?,
            ("abandon", _) => said.abandon = params.flag(param)?,
            ("min_generation", _) => said.min_generation = Some(params.integer(param)?),
            ("after", Method::AppsExport | Method::PrincipalsList) => {
                said.page.after = Some(params.text(param, LONG_CURSOR_BYTES_MAX)?);
            }
            ("after", _) => said.page.after = Some(params.text(param, CURSOR_BYTES_MAX)?),
            ("limit", Method::KeysCensus) => {
                said.page.limit = Some(params.within(param, 1..=SWEEP_ROWS_MAX as u64)? as u32);
            }
            ("limit", Method::KeysRewrap | Method::CollectionsMigrate) => {
                said.page.limit = Some(params.within(param, 1..=OBJECTS_MAX as u64)? as u32);
            }
            ("limit", _) => {
                said.page.limit = Some(params.within(param, 1..=TOKENS_MAX as u64)? as u32)
            }
            ("key", _) => said.key = Some(params.text(param, APP_BYTES_MAX)?),
            ("kind", Method::AppsRotate) => {
                said.rotate = Some(params.name(param, RotateKind::from_name)?)
            }
            ("suite", Method::CollectionsCreate) => {
                said.objects_suite = Some(params.name(param, Suite::from_name)?)
            }
            ("suite", Method::CollectionsAlter) => {
                said.alter.suite = Some(params.name(param, Suite::from_name)?)
            }
            ("properties", _) => said.properties = Some(objects::properties(param, params)?),
            ("add", _) => said.alter.add = objects::properties(param, params)?,
            ("drop", _) => said.alter.drop = params.texts(param, PROPERTIES_MAX, NAME_BYTES_MAX)?,
            ("allow_duplicates", _) => {
                said.alter.allow_duplicates =
                    params.texts(param, PROPERTIES_MAX, NAME_BYTES_MAX)?;
            }
            ("allow_null", _) => {
                said.alter.allow_null = params.texts(param, PROPERTIES_MAX, NAME_BYTES_MAX)?
            }
            ("drop_index", _) => {
                said.alter.drop_index = params.texts(param, PROPERTIES_MAX, NAME_BYTES_MAX)?
            }
            ("suite", _) => said.imported_suite = Some(params.name(param, imported_suite)?),
            ("write_suite", _) => said.write_suite = Some(params.name(param, Suite::from_name)?),
            ("read_suites", _) => said.read_suites = Some(suites(param, params)?),
            ("private_key", _) => said.private_key = params.text(param, PRIVATE_KEY_BYTES_MAX)?,
            ("seals", _) => said.seals = params.flag(param)?,
            ("delay_s", _) => said.delay_s = Some(params.within(param, 0..=DELAY_S_MAX)?),
            ("format", Method::AppsSet) => said.format = Some(params.name(param, app_format)?),
            ("epoch_ms", _) => {
                said.epoch_ms = Some(params.within(param, 0..=u64::from(EPOCH_MS_MAX))? as u32)
            }
            ("kind", _) => said.kind = Some(params.name(param, CollectionKind::from_name)?),
            ("format", _) => said.token_format = params.name(param, TokenFormat::from_name)?,
            ("first", _) => said.first = Some(params.within(param, 0..=6)? as u8),
            ("last", _) => said.last = Some(params.within(param, 0..=4)? as u8),
            ("scope", _) => said.scope = params.name(param, Scope::from_name)?,
            ("expires_s", Method::CollectionsSet) => {
                said.expires_s =
                    Some(params.or_nil(|params| params.within(param, 1..=EXPIRES_S_MAX))?);
            }
            ("expires_s", _) => {
                said.expires_s = Some(Some(params.within(param, 1..=EXPIRES_S_MAX)?))
            }
            ("retention_s", Method::CollectionsSet) => {
                said.retention_s =
                    Some(params.or_nil(|params| params.within(param, 0..=EXPIRES_S_MAX))?);
            }
            ("retention_s", _) => {
                said.retention_s = Some(Some(params.within(param, 0..=EXPIRES_S_MAX)?))
            }
            (other, _) => return Err(params.unknown(other.as_bytes())),
        }
    }
    Ok(said)
}

/// A suite whose keys can be imported.
fn imported_suite(name: &str) -> Option<Suite> {
    Suite::from_name(name).filter(|suite| matches!(suite, Suite::P256 | Suite::Secp256k1))
}

/// Reads suites, each at most once.
fn suites<'a>(param: &'static Param, params: &mut Params<'a>) -> Result<Vec<Suite>, CallError> {
    let names = params.texts(param, Suite::ALL.len(), NAME_BYTES_MAX)?;
    let found: Option<Vec<_>> = names.iter().map(|name| Suite::from_name(name)).collect();
    let once = |suites: &Vec<Suite>| {
        suites
            .iter()
            .enumerate()
            .all(|(at, suite)| !suites[..at].contains(suite))
    };
    found.filter(once).ok_or(breaks(param))
}

/// A format that an app may write by default.
fn app_format(name: &str) -> Option<Format> {
    Format::from_name(name).filter(|format| *format != Format::EvervaultBare)
}
