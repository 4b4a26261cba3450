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

use super::apps::{PAGE_DEFAULT, cut};
use super::refusal::{bad, of as refused};
use crate::access::{Authorizer, check_loaded, grants_of};
use crate::apps::readable_roles;

/// How often a change is made again when others come first.
const TRIES_MAX: u32 = 64;
/// Principals that are looked through at once.
const PAGE: usize = 1_000;

/// `roles.list`.
pub async fn roles(store: &dyn ControlStore, page: Page<'_>) -> Result<Roles, RpcError> {
    let snapshot = store.load().await.map_err(refused)?;
    let mut all = vec![Role::administrator()];
    for (key, record) in snapshot
        .records
        .iter()
        .filter(|(key, _)| key.starts_with("role/"))
    {
        all.push(Role::from_record(key, record).map_err(|error| refused(damaged(key, &error)))?);
    }
    all.sort_unstable_by(|one, other| one.name().cmp(other.name()));
    let (all, next) = cut(all, page, |role| role.name().as_str());
    Ok(Roles {
        roles: all.iter().map(view).collect(),
        next,
        generation: snapshot.generation,
    })
}

/// Every method that changes a role.
pub async fn change_role(
    store: &dyn ControlStore,
    call: &RoleRequest<'_>,
) -> Result<RoleChanged, RpcError> {
    match &call.operation {
        RoleOperation::Set { grants } => {
            let grants = grants
                .iter()
                .enumerate()
                .map(|(at, text)| grant(at, text))
                .collect::<Result<_, _>>()?;
            let role = Role::new(call.role, grants).map_err(bad)?;
            let generation = set_role(store, &role).await?;
            Ok(RoleChanged {
                role: Some(view(&role)),
                generation,
            })
        }
        RoleOperation::Delete => delete_role(store, call.role).await,
    }
}

/// A grant of that place, its mask in the words that all masks are listed in.
fn grant(at: usize, text: &str) -> Result<Grant, RpcError> {
    let mut grant = Grant::from_text(text).map_err(bad)?;
    if let Some(mask) = &grant.mask {
        let wrong = |what| bad(format!("mask of grant {}: {what}", at + 1));
        let function = crate::jobs::masks::of_role(mask.as_str()).map_err(wrong)?;
        grant.mask = Some(MaskText::new(&function.to_string()).map_err(bad)?);
    }
    Ok(grant)
}

async fn set_role(store: &dyn ControlStore, role: &Role) -> Result<u64, RpcError> {
    for tries in 0..TRIES_MAX {
        let snapshot = store.load().await.map_err(refused)?;
        let before = readable_roles(&snapshot.records);
        let mut after = readable_roles(&snapshot.records);
        after.insert(role.name().as_str().into(), Arc::new(role.clone()));
        let left = administrators(store, snapshot.generation, [&before, &after], None)
            .await
            .map_err(refused)?;
        let Some([had, has]) = left else {
            pause(tries).await;
            continue;
        };
        if had && !has {
            return Err(locks_out(&format!("with these grants of {}", role.name())));
        }
        let done = store
            .commit(
                snapshot.generation,
                &role_key(role.name()),
                Some(&role.to_record()),
            )
            .await;
        match done.map_err(refused)? {
            Commit::Done(generation) => return Ok(generation),
            Commit::Moved => pause(tries).await,
        }
    }
    Err(moved())
}

/// Returns whether some principal can grant roles for good, under each of two sets of roles, as of
/// one generation; `None`: it is another generation by now. `except`: without this principal.
async fn administrators(
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
                    *found |= administers(&binding, roles);
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
fn administers(binding: &Binding, roles: &HashMap<Box<str>, Arc<Role>>) -> bool {
    let grant = AuthorizationRequest::new(Operation::PrincipalsGrant, None, None);
    grants_of(binding, roles).permitted(&grant).is_ok()
}

fn locks_out(how: &str) -> RpcError {
    let text = format!(
        "{how} nobody could grant roles any more: first give another principal a role that can, such as {ADMINISTRATOR}"
    );
    RpcError::new(ErrorCode::Conflict, text)
}

async fn delete_role(store: &dyn ControlStore, name: &str) -> Result<RoleChanged, RpcError> {
    let name = RoleName::new(name).map_err(bad)?;
    if name.as_str() == ADMINISTRATOR {
        return Err(bad("role administrator is built in"));
    }
    let key = role_key(&name);
    for tries in 0..TRIES_MAX {
        let (base, record) = store.read(&key).await.map_err(refused)?;
        if record.is_none() {
            return Err(RpcError::new(
                ErrorCode::NotFound,
                format!("there is no role {name}"),
            ));
        }
        let holder = match holder(store, base, &name).await.map_err(refused)? {
            Some(holder) => holder,
            None => {
                pause(tries).await;
                continue; // Something has changed meanwhile.
            }
        };
        if let Some(principal) = holder {
            let text = format!(
                "{} has role {name}, and others may: revoke it first",
                principal.to_text()
            );
            return Err(RpcError::new(ErrorCode::Conflict, text));
        }
        match store.commit(base, &key, None).await.map_err(refused)? {
            Commit::Done(generation) => {
                return Ok(RoleChanged {
                    role: None,
                    generation,
                });
            }
            Commit::Moved => pause(tries).await,
        }
    }
    Err(moved())
}

/// Somebody who has that role, as of one generation; the outer `None`: it is another one by now.
async fn holder(
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
                Binding::from_record(key, record).map_err(|error| damaged(key, &error))?;
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
        .map(|after| principal(after).map(|after| principal_key(&after)))
        .transpose()?;
    let limit = page.limit.unwrap_or(PAGE_DEFAULT) as usize;
    let mut found = store
        .singles(after.as_deref(), limit + 1)
        .await
        .map_err(refused)?;
    let more = found.records.len() > limit;
    if more {
        found.records.pop_last();
    }
    let mut all = Vec::with_capacity(found.records.len());
    for (key, record) in &found.records {
        let binding =
            Binding::from_record(key, record).map_err(|error| refused(damaged(key, &error)))?;
        all.push(view_of_principal(&binding));
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
    call: PrincipalRequest<'_>,
) -> Result<PrincipalChanged, RpcError> {
    let who = principal(call.principal)?;
    let generation = match call.operation {
        PrincipalOperation::Grant { role } => {
            let name = RoleName::new(role).map_err(bad)?;
            bind(store, &who, &name)
                .await
                .map_err(|error| match error {
                    BindError::NoRole => {
                        RpcError::new(ErrorCode::NotFound, format!("there is no role {name}"))
                    }
                    BindError::TooMany => bad(format!("a principal has at most {ROLES_MAX} roles")),
                    BindError::Store(error) => refused(error),
                })?
        }
        PrincipalOperation::Revoke { role } => revoke(store, &who, role).await?,
    };
    let (_, binding) = binding(store, &who).await.map_err(refused)?;
    Ok(PrincipalChanged {
        principal: binding.as_ref().map(view_of_principal),
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
pub(super) async fn bind(
    store: &dyn ControlStore,
    who: &Principal,
    name: &RoleName,
) -> Result<u64, BindError> {
    let key = principal_key(who);
    for tries in 0..TRIES_MAX {
        let (base, binding) = binding(store, who).await?;
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
            Commit::Moved => pause(tries).await,
        }
    }
    Err(BindError::Store(StoreError::Unavailable(
        "other changes always came first".into(),
    )))
}

async fn revoke(
    store: &dyn ControlStore,
    who: &Principal,
    role: Option<&str>,
) -> Result<u64, RpcError> {
    let role = role.map(RoleName::new).transpose().map_err(bad)?;
    let key = principal_key(who);
    let not_found = || {
        let what = role
            .as_ref()
            .map_or("a role".to_owned(), |role| format!("role {role}"));
        RpcError::new(
            ErrorCode::NotFound,
            format!("{} does not have {what}", who.to_text()),
        )
    };
    for tries in 0..TRIES_MAX {
        let (base, binding) = binding(store, who).await.map_err(refused)?;
        let mut binding = binding.ok_or_else(not_found)?;
        let before = binding.clone();
        match &role {
            Some(role) if !binding.roles.contains(role) => return Err(not_found()),
            Some(role) => binding.roles.retain(|one| one != role),
            None => binding.roles.clear(),
        }
        let snapshot = store.load().await.map_err(refused)?;
        let roles = readable_roles(&snapshot.records);
        if administers(&before, &roles) && !administers(&binding, &roles) {
            let others = administrators(store, base, [&roles, &roles], Some(who))
                .await
                .map_err(refused)?;
            match others {
                Some([true, _]) if snapshot.generation == base => (),
                Some([false, _]) if snapshot.generation == base => {
                    return Err(locks_out(&format!(
                        "without this role of {}",
                        who.to_text()
                    )));
                }
                _ => {
                    pause(tries).await;
                    continue;
                }
            }
        }
        let record = (!binding.roles.is_empty()).then(|| binding.to_record());
        match store
            .commit(base, &key, record.as_deref())
            .await
            .map_err(refused)?
        {
            Commit::Done(generation) => return Ok(generation),
            Commit::Moved => pause(tries).await,
        }
    }
    Err(moved())
}

/// `principals.check`: what becomes of such a request at this engine.
///
/// # Errors
///
/// The request names no principal or operation, or a target that the operation does not have.
pub async fn check(authorizer: &Authorizer, call: &CheckRequest<'_>) -> Result<Checked, RpcError> {
    let (who, operation) = checked_request(call)?;
    Ok(authorizer.check(&who, operation, call.property).await)
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
    call: &CheckRequest<'_>,
) -> Result<Checked, RpcError> {
    let (who, operation) = checked_request(call)?;
    for tries in 0..TRIES_MAX {
        let snapshot = store.load().await.map_err(refused)?;
        let (generation, binding) = binding(store, &who).await.map_err(refused)?;
        if generation != snapshot.generation {
            pause(tries).await;
            continue;
        }
        let roles = readable_roles(&snapshot.records);
        let grants = binding.map(|binding| grants_of(&binding, &roles));
        return Ok(check_loaded(
            mode,
            Ok(grants),
            operation,
            call.property,
            generation,
        ));
    }
    Err(moved())
}

/// Returns the principal and the request that a check is about.
fn checked_request<'a>(
    call: &CheckRequest<'a>,
) -> Result<(Principal, AuthorizationRequest<'a>), RpcError> {
    let who = principal(call.principal)?;
    let operation = Operation::from_name(call.operation).ok_or_else(|| {
        bad("operation must be the name of a method that needs a role, such as encrypt")
    })?;
    if call.collection.is_some() && !operation.has_collection()
        || call.app.is_some() && !operation.has_app()
    {
        return Err(bad(format!(
            "{operation} is not about that: leave out what it does not concern"
        )));
    }
    if call.property.is_some() && !operation.has_property() {
        return Err(bad(format!(
            "{operation} is not about properties: leave property out"
        )));
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    Ok((
        who,
        AuthorizationRequest::new(operation, call.app, call.collection)
            .because(call.reason)
            .at(now),
    ))
}

/// Returns the binding of a principal, and its generation.
async fn binding(
    store: &dyn ControlStore,
    who: &Principal,
) -> Result<(u64, Option<Binding>), StoreError> {
    let key = principal_key(who);
    let (generation, record) = store.read(&key).await?;
    let binding = record
        .map(|record| Binding::from_record(&key, &record))
        .transpose();
    Ok((generation, binding.map_err(|error| damaged(&key, &error))?))
}

/// Puts a record there, whatever was, as often as another change comes first.
pub(super) async fn put(
    store: &dyn ControlStore,
    key: &str,
    record: &[u8],
) -> Result<u64, StoreError> {
    for tries in 0..TRIES_MAX {
        let base = store.generation().await?;
        match store.commit(base, key, Some(record)).await? {
            Commit::Done(generation) => return Ok(generation),
            Commit::Moved => pause(tries).await,
        }
    }
    Err(StoreError::Unavailable(
        "other changes always came first".into(),
    ))
}

fn principal(text: &str) -> Result<Principal, RpcError> {
    Principal::from_text(text).ok_or_else(|| {
        bad("principal must be a name that a certificate can have: a DNS name, a spiffe:// URI, or cn: and a common name")
    })
}

fn view(role: &Role) -> wire::control::Role {
    wire::control::Role {
        role: role.name().to_string(),
        grants: role.grants().iter().map(ToString::to_string).collect(),
        built_in: role.name().as_str() == ADMINISTRATOR,
    }
}

fn view_of_principal(binding: &Binding) -> wire::control::Principal {
    let roles = binding.roles.iter().map(ToString::to_string).collect();
    wire::control::Principal {
        principal: binding.principal.to_text(),
        roles,
    }
}

fn damaged(key: &str, error: &RecordError) -> StoreError {
    StoreError::Damaged {
        place: key.to_owned(),
        what: error.to_string(),
    }
}

fn moved() -> RpcError {
    refused(StoreError::Unavailable(
        "other changes always came first".into(),
    ))
}

/// Waits for a random time, so that changes that were too late do not repeat at the same moment.
async fn pause(tries: u32) {
    tokio::time::sleep(Duration::from_millis(rand::random_range(
        0..1 << tries.min(5),
    )))
    .await;
}
