//! Control operations on roles and their principals, over any store.
//!
//! Every change writes one record. The record is derived from the stored one and written only if
//! the stored one has not changed in between.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sealwire_access::{
    ADMINISTRATOR, AccessMode, AuthorizationRequest, Binding, Grant, MaskText, Operation,
    Principal, ROLES_MAX, RecordError, Role, RoleName, principal_key, role_key,
};
use sealwire_store::{Commit, ControlStore, StoreError};
use sealwire_wire::control::{
    CheckRequest, Checked, Page, PrincipalChanged, PrincipalOperation, PrincipalRequest,
    Principals, RoleChanged, RoleOperation, RoleRequest, Roles,
};
use sealwire_wire::{self as wire, ErrorCode, RpcError};

use super::apps::{PAGE_DEFAULT, truncate_page};
use super::rpc_error::{invalid_param, store_error};
use crate::access::{Authorizer, check_loaded, grants_of};
use crate::apps::readable_roles;

/// How often a change is made again when others come first.
const TRIES_MAX: u32 = 64;
/// Principals that are looked through at once.
const PAGE: usize = 1_000;

/// `roles.list`.
pub async fn roles(store: &dyn ControlStore, page: Page<'_>) -> Result<Roles, RpcError> {
    let snapshot = store.load().await.map_err(store_error)?;
    let mut all = vec![Role::administrator()];
    for (key, record) in snapshot
        .records
        .iter()
        .filter(|(key, _)| key.starts_with("role/"))
    {
        all.push(
            Role::from_record(key, record)
                .map_err(|error| store_error(damaged_record(key, &error)))?,
        );
    }

    all.sort_unstable_by(|one, other| one.name().cmp(other.name()));
    let (all, next) = truncate_page(all, page, |role| role.name().as_str());
    Ok(Roles {
        roles: all.iter().map(role_view).collect(),
        next,
        generation: snapshot.generation,
    })
}

/// Every method that changes a role.
pub async fn change_role(
    store: &dyn ControlStore,
    request: &RoleRequest<'_>,
) -> Result<RoleChanged, RpcError> {
    match &request.operation {
        RoleOperation::Set { grants } => {
            let grants = grants
                .iter()
                .enumerate()
                .map(|(at, text)| parse_grant(at, text))
                .collect::<Result<_, _>>()?;
            let role = Role::new(request.role, grants).map_err(invalid_param)?;
            let generation = set_role(store, &role).await?;
            Ok(RoleChanged {
                role: Some(role_view(&role)),
                generation,
            })
        }
        RoleOperation::Delete => delete_role(store, request.role).await,
    }
}

/// A grant of that place, its mask in the words that all masks are listed in.
fn parse_grant(at: usize, text: &str) -> Result<Grant, RpcError> {
    let mut grant = Grant::from_text(text).map_err(invalid_param)?;
    if let Some(mask) = &grant.mask {
        let function = crate::jobs::masks::parse_role_mask(mask.as_str())
            .map_err(|what| invalid_param(format!("mask of grant {}: {what}", at + 1)))?;
        grant.mask = Some(MaskText::new(&function.to_string()).map_err(invalid_param)?);
    }
    Ok(grant)
}

async fn set_role(store: &dyn ControlStore, role: &Role) -> Result<u64, RpcError> {
    for tries in 0..TRIES_MAX {
        let snapshot = store.load().await.map_err(store_error)?;
        let before = readable_roles(&snapshot.records);
        let mut after = readable_roles(&snapshot.records);
        after.insert(role.name().as_str().into(), Arc::new(role.clone()));
        let left = find_administrators(store, snapshot.generation, [&before, &after], None)
            .await
            .map_err(store_error)?;
        let Some([had, has]) = left else {
            pause_before_retry(tries).await;
            continue;
        };
        if had && !has {
            return Err(no_administrator_left(&format!(
                "with these grants of {}",
                role.name()
            )));
        }
        let done = store
            .commit(
                snapshot.generation,
                &role_key(role.name()),
                Some(&role.to_record()),
            )
            .await;
        match done.map_err(store_error)? {
            Commit::Done(generation) => return Ok(generation),
            Commit::Moved => pause_before_retry(tries).await,
        }
    }
    Err(change_conflict())
}

/// Returns whether some principal can grant roles for good, under each of two sets of roles, as of
/// one generation; `None`: it is another generation by now. `except`: without this principal.
async fn find_administrators(
    store: &dyn ControlStore,
    generation: u64,
    roles: [&HashMap<Box<str>, Arc<Role>>; 2],
    except: Option<&Principal>,
) -> Result<Option<[bool; 2]>, StoreError> {
    let (mut found, mut after): (_, Option<String>) = ([false; 2], None);
    loop {
        let page = store.singles(after.as_deref(), PAGE).await?;
        if page.generation != generation {
            return Ok(None);
        }
        // A record that cannot be read gives nobody a right.
        for binding in page
            .records
            .iter()
            .filter_map(|(key, record)| Binding::from_record(key, record).ok())
        {
            if except != Some(&binding.principal) {
                for (found, roles) in found.iter_mut().zip(roles) {
                    *found |= is_administrator(&binding, roles);
                }
            }
        }
        match page.records.into_iter().next_back() {
            Some((last, _)) if found != [true; 2] => after = Some(last),
            _ => return Ok(Some(found)),
        }
    }
}

/// Returns true if a principal can grant roles, without an end.
fn is_administrator(binding: &Binding, roles: &HashMap<Box<str>, Arc<Role>>) -> bool {
    let grant = AuthorizationRequest::new(Operation::PrincipalsGrant, None, None);
    grants_of(binding, roles).permitted(&grant).is_ok()
}

fn no_administrator_left(how: &str) -> RpcError {
    let text = format!(
        "{how} nobody could grant roles any more: first give another principal a role that can, such as {ADMINISTRATOR}"
    );
    RpcError::new(ErrorCode::Conflict, text)
}

async fn delete_role(store: &dyn ControlStore, name: &str) -> Result<RoleChanged, RpcError> {
    let name = RoleName::new(name).map_err(invalid_param)?;
    if name.as_str() == ADMINISTRATOR {
        return Err(invalid_param(
            "role administrator is built in and cannot be changed or deleted; choose another name",
        ));
    }

    let key = role_key(&name);
    for tries in 0..TRIES_MAX {
        let (base, record) = store.read(&key).await.map_err(store_error)?;
        if record.is_none() {
            return Err(RpcError::new(
                ErrorCode::NotFound,
                format!("role {name} does not exist; `sealwire roles list` shows which do"),
            ));
        }
        let holder = match find_role_holder(store, base, &name)
            .await
            .map_err(store_error)?
        {
            Some(holder) => holder,
            None => {
                pause_before_retry(tries).await;
                continue; // Something has changed meanwhile.
            }
        };
        if let Some(principal) = holder {
            let text = format!(
                "role {name} is in use by {}, and maybe by others; first revoke it with `sealwire principals revoke`",
                principal.to_text()
            );
            return Err(RpcError::new(ErrorCode::Conflict, text));
        }
        match store.commit(base, &key, None).await.map_err(store_error)? {
            Commit::Done(generation) => {
                return Ok(RoleChanged {
                    role: None,
                    generation,
                });
            }
            Commit::Moved => pause_before_retry(tries).await,
        }
    }
    Err(change_conflict())
}

/// Somebody who has that role, as of one generation; the outer `None`: it is another one by now.
async fn find_role_holder(
    store: &dyn ControlStore,
    generation: u64,
    role: &RoleName,
) -> Result<Option<Option<Principal>>, StoreError> {
    let mut after: Option<String> = None;
    loop {
        let page = store.singles(after.as_deref(), PAGE).await?;
        if page.generation != generation {
            return Ok(None);
        }
        for (key, record) in &page.records {
            let binding =
                Binding::from_record(key, record).map_err(|error| damaged_record(key, &error))?;
            if binding.roles.contains(role) {
                return Ok(Some(Some(binding.principal)));
            }
        }
        match page.records.into_iter().next_back() {
            Some((last, _)) => after = Some(last),
            None => return Ok(Some(None)),
        }
    }
}

/// `principals.list`.
pub async fn principals(store: &dyn ControlStore, page: Page<'_>) -> Result<Principals, RpcError> {
    let after = page
        .after
        .map(|after| parse_principal(after).map(|after| principal_key(&after)))
        .transpose()?;
    let limit = page.limit.unwrap_or(PAGE_DEFAULT) as usize;
    let mut found = store
        .singles(after.as_deref(), limit + 1)
        .await
        .map_err(store_error)?;
    let more = found.records.len() > limit;

    if more {
        found.records.pop_last();
    }

    let mut all = Vec::with_capacity(found.records.len());
    for (key, record) in &found.records {
        let binding = Binding::from_record(key, record)
            .map_err(|error| store_error(damaged_record(key, &error)))?;
        all.push(principal_view(&binding));
    }

    let next = all
        .last()
        .filter(|_| more)
        .map(|last| last.principal.clone());
    Ok(Principals {
        principals: all,
        next,
        generation: found.generation,
    })
}

/// Every method that changes the roles of a principal.
pub async fn change_principal(
    store: &dyn ControlStore,
    request: PrincipalRequest<'_>,
) -> Result<PrincipalChanged, RpcError> {
    let who = parse_principal(request.principal)?;
    let generation = match request.operation {
        PrincipalOperation::Grant { role } => {
            let name = RoleName::new(role).map_err(invalid_param)?;
            assign_role(store, &who, &name)
                .await
                .map_err(|error| match error {
                    BindError::NoRole => RpcError::new(
                        ErrorCode::NotFound,
                        format!("role {name} does not exist; `sealwire roles list` shows which do"),
                    ),
                    BindError::TooMany => {
                        invalid_param(format!("a principal has at most {ROLES_MAX} roles"))
                    }
                    BindError::Store(error) => store_error(error),
                })?
        }
        PrincipalOperation::Revoke { role } => revoke(store, &who, role).await?,
    };

    let (_, binding) = load_binding(store, &who).await.map_err(store_error)?;
    Ok(PrincipalChanged {
        principal: binding.as_ref().map(principal_view),
        generation,
    })
}

/// Why a principal does not get a role.
pub(super) enum BindError {
    NoRole,
    TooMany,
    Store(StoreError),
}

impl From<StoreError> for BindError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Gives a role to a principal, which may have it already. Gives the generation from which on it
/// has.
pub(super) async fn assign_role(
    store: &dyn ControlStore,
    who: &Principal,
    name: &RoleName,
) -> Result<u64, BindError> {
    let key = principal_key(who);
    for tries in 0..TRIES_MAX {
        let (base, binding) = load_binding(store, who).await?;
        if name.as_str() != ADMINISTRATOR {
            let (generation, role) = store.read(&role_key(name)).await?;
            if role.is_none() {
                return Err(BindError::NoRole);
            }
            if generation != base {
                continue;
            }
        }
        let mut roles = binding.map_or_else(Vec::new, |found| found.roles);
        match roles.binary_search(name) {
            Ok(_) => return Ok(base),
            Err(_) if roles.len() >= ROLES_MAX => {
                return Err(BindError::TooMany);
            }
            Err(at) => roles.insert(at, name.clone()),
        }
        let record = Binding {
            principal: who.clone(),
            roles,
        }
        .to_record();
        match store.commit(base, &key, Some(&record)).await? {
            Commit::Done(generation) => return Ok(generation),
            Commit::Moved => pause_before_retry(tries).await,
        }
    }

    Err(BindError::Store(StoreError::Unavailable(
        "other changes always came first".into(),
    )))
}

/// Returns the error for a principal without the role to revoke, or without any role.
fn no_such_role(who: &Principal, role: Option<&RoleName>) -> RpcError {
    let what = role.map_or("a role".to_owned(), |role| format!("role {role}"));
    RpcError::new(
        ErrorCode::NotFound,
        format!("{} does not have {what}", who.to_text()),
    )
}

async fn revoke(
    store: &dyn ControlStore,
    who: &Principal,
    role: Option<&str>,
) -> Result<u64, RpcError> {
    let role = role.map(RoleName::new).transpose().map_err(invalid_param)?;
    let key = principal_key(who);
    for tries in 0..TRIES_MAX {
        let (base, binding) = load_binding(store, who).await.map_err(store_error)?;
        let mut binding = binding.ok_or_else(|| no_such_role(who, role.as_ref()))?;
        let before = binding.clone();
        match &role {
            Some(role) if !binding.roles.contains(role) => {
                return Err(no_such_role(who, Some(role)));
            }
            Some(role) => binding.roles.retain(|one| one != role),
            None => binding.roles.clear(),
        }
        let snapshot = store.load().await.map_err(store_error)?;
        let roles = readable_roles(&snapshot.records);
        if is_administrator(&before, &roles) && !is_administrator(&binding, &roles) {
            let others = find_administrators(store, base, [&roles, &roles], Some(who))
                .await
                .map_err(store_error)?;
            match others {
                Some([true, _]) if snapshot.generation == base => (),
                Some([false, _]) if snapshot.generation == base => {
                    return Err(no_administrator_left(&format!(
                        "without this role of {}",
                        who.to_text()
                    )));
                }
                _ => {
                    pause_before_retry(tries).await;
                    continue;
                }
            }
        }
        let record = (!binding.roles.is_empty()).then(|| binding.to_record());
        match store
            .commit(base, &key, record.as_deref())
            .await
            .map_err(store_error)?
        {
            Commit::Done(generation) => return Ok(generation),
            Commit::Moved => pause_before_retry(tries).await,
        }
    }
    Err(change_conflict())
}

/// `principals.check`: what becomes of such a request at this engine.
///
/// # Errors
///
/// The request names no principal or operation, or a target that the operation does not have.
pub async fn check(
    authorizer: &Authorizer,
    request: &CheckRequest<'_>,
) -> Result<Checked, RpcError> {
    let (who, operation) = checked_request(request)?;
    Ok(authorizer.check(&who, operation, request.property).await)
}

/// `principals.check` on a store without an engine: what becomes of such a request at an engine in
/// this mode.
///
/// # Errors
///
/// As [`check`], and those of the store.
pub async fn check_store(
    store: &dyn ControlStore,
    mode: AccessMode,
    request: &CheckRequest<'_>,
) -> Result<Checked, RpcError> {
    let (who, operation) = checked_request(request)?;
    for tries in 0..TRIES_MAX {
        let snapshot = store.load().await.map_err(store_error)?;
        let (generation, binding) = load_binding(store, &who).await.map_err(store_error)?;
        if generation != snapshot.generation {
            pause_before_retry(tries).await;
            continue;
        }
        let roles = readable_roles(&snapshot.records);
        let grants = binding.map(|binding| grants_of(&binding, &roles));
        return Ok(check_loaded(
            mode,
            Ok(grants),
            operation,
            request.property,
            generation,
        ));
    }
    Err(change_conflict())
}

/// Returns the principal and the request that a check is about.
fn checked_request<'a>(
    request: &CheckRequest<'a>,
) -> Result<(Principal, AuthorizationRequest<'a>), RpcError> {
    let who = parse_principal(request.principal)?;
    let operation = Operation::from_name(request.operation).ok_or_else(|| {
        invalid_param("operation must be the name of a method that needs a role, such as encrypt")
    })?;

    if request.collection.is_some() && !operation.has_collection()
        || request.app.is_some() && !operation.has_app()
    {
        return Err(invalid_param(format!(
            "{operation} has no such target: leave out the app or collection that it does not have"
        )));
    }

    if request.property.is_some() && !operation.has_property() {
        return Err(invalid_param(format!(
            "{operation} is not about properties: leave property out"
        )));
    }

    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    Ok((
        who,
        AuthorizationRequest::new(operation, request.app, request.collection)
            .because(request.reason)
            .at(now),
    ))
}

/// Returns the binding of a principal, and its generation.
async fn load_binding(
    store: &dyn ControlStore,
    who: &Principal,
) -> Result<(u64, Option<Binding>), StoreError> {
    let key = principal_key(who);
    let (generation, record) = store.read(&key).await?;
    let binding = record
        .map(|record| Binding::from_record(&key, &record))
        .transpose();
    Ok((
        generation,
        binding.map_err(|error| damaged_record(&key, &error))?,
    ))
}

/// Puts a record there, whatever was, as often as another change comes first.
pub(super) async fn commit_record(
    store: &dyn ControlStore,
    key: &str,
    record: &[u8],
) -> Result<u64, StoreError> {
    for tries in 0..TRIES_MAX {
        let base = store.generation().await?;
        match store.commit(base, key, Some(record)).await? {
            Commit::Done(generation) => return Ok(generation),
            Commit::Moved => pause_before_retry(tries).await,
        }
    }
    Err(StoreError::Unavailable(
        "other changes always came first".into(),
    ))
}

fn parse_principal(text: &str) -> Result<Principal, RpcError> {
    Principal::from_text(text).ok_or_else(|| {
        invalid_param("principal must be a name that a certificate or token can have: a DNS name, a spiffe:// URI, cn: and a common name, or jwt:ISSUER:CLAIM")
    })
}

fn role_view(role: &Role) -> wire::control::Role {
    wire::control::Role {
        role: role.name().to_string(),
        grants: role.grants().iter().map(ToString::to_string).collect(),
        built_in: role.name().as_str() == ADMINISTRATOR,
    }
}

fn principal_view(binding: &Binding) -> wire::control::Principal {
    let roles = binding.roles.iter().map(ToString::to_string).collect();
    wire::control::Principal {
        principal: binding.principal.to_text(),
        roles,
    }
}

fn damaged_record(key: &str, error: &RecordError) -> StoreError {
    StoreError::Damaged {
        place: key.to_owned(),
        what: error.to_string(),
    }
}

fn change_conflict() -> RpcError {
    store_error(StoreError::Unavailable(
        "other changes always came first".into(),
    ))
}

/// Waits for a random time, so that changes that were too late do not repeat at the same moment.
async fn pause_before_retry(tries: u32) {
    tokio::time::sleep(Duration::from_millis(rand::random_range(
        0..1 << tries.min(5),
    )))
    .await;
}
