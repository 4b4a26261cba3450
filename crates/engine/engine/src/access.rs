//! Authorization of every data and control request, with a cache of the principals' permissions.
//!
//! A decision needs the principal's roles (one record, read at the principal's first request) and
//! the grants of these roles (records that the engine holds, with the apps). If the two are not of
//! one generation, the lookup is repeated. The cache is purged when the served generation changes
//! and after every change by this engine. So a request that starts after the response to a change
//! is never decided by the permissions before the change.

mod hourly_limit;
mod operation;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sealwire_access::{
    AccessMode, AuthorizationRequest, Binding, Cache, CacheBounds, Decision, Denied, Grants,
    Identity, LoadError, Loader, Operation, Permit, Permitted, Principal, Role, ValueVisibility,
    principal_key,
};
use sealwire_store::ControlStore as _;
use sealwire_wire::control::Checked;
use tokio::time::Instant;

use crate::apps::Apps;
use crate::jobs::error::RequestFailure;
pub use operation::{RequestTarget, control_authorization};
use sealwire_telemetry::LogThrottle;
use sealwire_telemetry::metrics::{Metrics, RejectionLabel};

/// Maximum number of concurrent loads. More would not be faster, because the store handles control
/// requests one after the other.
const LOADS_MAX: usize = 16;
/// Maximum number of principals whose permissions are being loaded or wait for a load.
const WAITING_MAX: usize = 4_096;
/// Longest time of a load, including its wait.
const LOAD_MAX: Duration = Duration::from_secs(5);
/// Maximum number of attempts of a load while roles or grants change.
const TRIES_MAX: u32 = 16;

/// A cache of the grants of each principal.
type Policies = Cache<Principal, Grants, GrantLoader>;

/// Decides on requests by the roles of their principals and by `access.mode`.
#[derive(Debug)]
pub struct Authorizer {
    mode: AccessMode,
    identity: Identity,
    apps: Arc<Apps>,
    /// `None` with `access.mode = "off"`, which needs no permissions.
    policies: Option<Arc<Policies>>,
    metrics: Arc<Metrics>,
    observe_log: LogThrottle,
    hourly_limiter: hourly_limit::HourlyLimiter,
}

impl Authorizer {
    /// Creates an authorizer over the apps. Every load of apps purges the authorizer's cache.
    pub fn new(
        config: &sealwire_settings::Access,
        apps: &Arc<Apps>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let bounds = CacheBounds {
            entries: config.cache_entries,
            time: Duration::from_secs(config.cache_s),
            negative_time: Duration::from_secs(config.cache_negative_s),
            stale: Duration::from_secs(config.stale_s),
            loads: LOADS_MAX,
            waiting: WAITING_MAX,
            load_time: LOAD_MAX,
        };

        metrics.access.set_mode(config.mode);
        match config.mode {
            AccessMode::Enforce => {}
            AccessMode::Observe => {
                tracing::warn!(
                    "access.mode is \"observe\": requests that no role grants are permitted, except those that could show masked values; set \"enforce\" to deny them"
                )
            }
            AccessMode::Off => {
                tracing::warn!(
                    "access.mode is \"off\": every client with a certificate of tls.client_ca can use every app; set \"enforce\" to check roles"
                )
            }
        }

        let policies = (config.mode != AccessMode::Off)
            .then(|| Arc::new(Cache::new(GrantLoader(Arc::downgrade(apps)), bounds)));
        if let Some(policies) = &policies {
            let purged = Arc::clone(policies);
            apps.on_change(Box::new(move || purged.purge()));
            let watched = Arc::clone(policies);
            metrics
                .access
                .watch_cache(Box::new(move || watched.stats()));
        }

        let mode = config.mode;
        let identity = config.identity;
        let metrics = Arc::clone(metrics);
        Self {
            mode,
            identity,
            apps: Arc::clone(apps),
            policies,
            metrics,
            observe_log: LogThrottle::default(),
            hourly_limiter: hourly_limit::HourlyLimiter::default(),
        }
    }

    /// Loads permissions again that a change of roles removed from the cache. If the store then
    /// fails, all principals that were cached before keep their access. Never returns. Cancel-safe.
    pub async fn reload_permissions(&self) {
        match &self.policies {
            Some(policies) => Arc::clone(policies).reload_purged().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the kinds of certificate names that can be a principal, in order of precedence
    /// (`access.name_order`).
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Decides on a request. Returns `None` if the decision needs a read of the store.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Denied`], or [`RequestFailure::Sealed`] because the roles of a sealed
    /// store cannot be read.
    pub fn decide_now<'a>(
        &self,
        principal: &Principal,
        request: AuthorizationRequest<'a>,
        now: Instant,
    ) -> Option<Result<Permit<'a>, RequestFailure>> {
        if let Err(sealed) = self.apps.check_unsealed() {
            return Some(Err(sealed));
        }
        let grants = match &self.policies {
            Some(policies) => policies.hit(principal, now)?,
            None => None,
        };
        Some(self.apply_mode(principal, grants.as_deref(), request))
    }

    /// Decides on a request after the principal's permissions are known. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Denied`], [`RequestFailure::Sealed`], or
    /// [`RequestFailure::PermissionsUnknown`] if the store does not respond.
    pub async fn decide<'a>(
        &self,
        principal: &Principal,
        request: AuthorizationRequest<'a>,
    ) -> Result<Permit<'a>, RequestFailure> {
        self.apps.check_unsealed()?;
        let grants = match &self.policies {
            Some(policies) => policies.get(principal).await,
            None => Ok(None),
        };
        // The load can have failed because the store was sealed in the meantime.
        self.apps.check_unsealed()?;

        match grants {
            Ok(grants) => self.apply_mode(principal, grants.as_deref(), request),
            Err(error) => match self.mode.unknown(request) {
                Some(permit) => {
                    self.metrics.access.count_unknown(request.operation());
                    self.observe(principal, &error);
                    Ok(permit)
                }
                None => {
                    self.metrics.access.count_unknown(request.operation());
                    Err(RequestFailure::PermissionsUnknown(error))
                }
            },
        }
    }

    /// Checks that a principal has a role, if the mode is `enforce`. A long message needs this
    /// check before its method and app are known, so that a principal without a role cannot occupy
    /// memory. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::LongWithoutRole`], [`RequestFailure::Sealed`], or
    /// [`RequestFailure::PermissionsUnknown`] if the permissions cannot be loaded.
    pub async fn require_role(&self, principal: &Principal) -> Result<(), RequestFailure> {
        self.apps.check_unsealed()?;
        let Some(policies) = self
            .policies
            .as_ref()
            .filter(|_| self.mode == AccessMode::Enforce)
        else {
            return Ok(());
        };

        match policies.get(principal).await {
            Ok(grants) if grants.as_ref().is_none_or(|grants| grants.is_empty()) => {
                Err(RequestFailure::LongWithoutRole)
            }
            Ok(_) => Ok(()),
            Err(error) => Err(RequestFailure::PermissionsUnknown(error)),
        }
    }

    /// Reports whether this engine would permit a request of a principal, by which role and through
    /// which mask, for `principals.check`. If `property` is set, a grant must also cover this
    /// property of objects. Reads the principal's roles from the store, not from the cache.
    pub async fn check(
        &self,
        principal: &Principal,
        request: AuthorizationRequest<'_>,
        property: Option<&str>,
    ) -> Checked {
        match self.mode {
            AccessMode::Off => {
                check_loaded(self.mode, Ok(None), request, property, self.apps.roles().0)
            }
            AccessMode::Enforce | AccessMode::Observe => {
                match load_grants(&self.apps, principal).await {
                    Ok((generation, grants)) => {
                        check_loaded(self.mode, Ok(grants), request, property, generation)
                    }
                    Err(error) => check_loaded(
                        self.mode,
                        Err(error),
                        request,
                        property,
                        self.apps.roles().0,
                    ),
                }
            }
        }
    }

    /// Counts the fields of a request against the principal's hourly limit, if the permit has one.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::HourlyLimitReached`] if the fields do not fit now;
    /// [`RequestFailure::AboveHourlyLimit`] if they can never fit.
    pub fn charge_hourly(
        &self,
        principal: &Principal,
        permit: &Permit<'_>,
        fields: u64,
    ) -> Result<(), RequestFailure> {
        let charged = self
            .hourly_limiter
            .charge(principal, permit, fields, Instant::now());
        if charged.is_err() {
            self.metrics.count_rejection(RejectionLabel::Hourly);
        }
        charged
    }

    fn apply_mode<'a>(
        &self,
        principal: &Principal,
        grants: Option<&Grants>,
        request: AuthorizationRequest<'a>,
    ) -> Result<Permit<'a>, RequestFailure> {
        let decided = self.mode.decide(grants, request);
        let denied = match &decided {
            Ok(Decision { observed, .. }) => observed.as_ref(),
            Err(denied) => Some(denied),
        };

        if let Some(Denied {
            operation, missing, ..
        }) = denied
        {
            self.metrics.access.count_denied(*operation, *missing);
        }

        let Decision { permit, observed } = decided?;
        if let Some(denied) = observed {
            self.observe(principal, &denied);
        }
        Ok(permit)
    }

    fn observe(&self, principal: &Principal, why: &dyn std::fmt::Display) {
        if let Some(suppressed) = self.observe_log.record(std::time::Instant::now()) {
            tracing::warn!(%principal, %why, suppressed, "a request was permitted that access.mode \"enforce\" would deny");
        }
    }
}

/// Reports whether a mode permits a request, by which role and through which mask. `loaded` has the
/// principal's grants, or the error of reading them.
pub(crate) fn check_loaded(
    mode: AccessMode,
    loaded: Result<Option<Grants>, LoadError>,
    request: AuthorizationRequest<'_>,
    property: Option<&str>,
    generation: u64,
) -> Checked {
    let base = Checked {
        permitted: false,
        role: None,
        mask: None,
        missing: None,
        mode: mode.name().into(),
        generation,
    };
    let grants = match loaded {
        _ if mode == AccessMode::Off => {
            return Checked {
                permitted: true,
                ..base
            };
        }
        Ok(grants) => grants.unwrap_or_default(),
        Err(error) => {
            let missing = Some(format!(
                "the roles of this principal cannot be read: {error}"
            ));
            return Checked {
                permitted: mode.unknown(request).is_some(),
                missing,
                ..base
            };
        }
    };

    let granted = match property {
        Some(property) => grants.permitted_property(&request, property),
        None => grants.permitted(&request),
    };
    let (role, role_mask, missing) = match granted {
        Ok(Permitted { role, mask, .. }) => {
            (Some(role.to_string()), mask.map(ToString::to_string), None)
        }
        Err(denied) => (None, None, Some(denied.to_string())),
    };

    match mode.decide(Some(&grants), request) {
        Ok(Decision { permit, .. }) => {
            let (permitted, mask) = permission_and_mask(&permit, property);
            let mask = mask.or(role_mask).filter(|_| permitted);
            Checked {
                permitted,
                role,
                mask,
                missing,
                ..base
            }
        }
        Err(denied) => Checked {
            missing: Some(denied.to_string()),
            ..base
        },
    }
}

/// Returns whether a permit covers `property` (true without a property), and the mask through which
/// values are shown, if any.
fn permission_and_mask(permit: &Permit<'_>, property: Option<&str>) -> (bool, Option<String>) {
    let visibility = match property {
        None => Some(permit.visibility()),
        Some(property) if permit.operation() == Operation::ObjectsGet => {
            permit.properties().read(property)
        }
        Some(property) => permit
            .properties()
            .uses(property)
            .then_some(ValueVisibility::Clear),
    };

    match visibility {
        Some(ValueVisibility::Masked(mask)) => (true, Some(mask.to_string())),
        Some(ValueVisibility::Clear) => (true, None),
        None => (false, None),
    }
}

/// Loads the permissions of principals for the cache.
struct GrantLoader(Weak<Apps>);

impl Loader<Principal, Grants> for GrantLoader {
    async fn load(&self, principal: Principal) -> Result<Option<Grants>, LoadError> {
        let apps = self
            .0
            .upgrade()
            .ok_or_else(|| LoadError::failed("the engine has ended"))?;
        Ok(load_grants(&apps, &principal).await?.1)
    }
}

/// Reads the grants of a principal from the store. Returns them with the generation to which they
/// belong, or `None` if the principal has no role.
async fn load_grants(
    apps: &Apps,
    principal: &Principal,
) -> Result<(u64, Option<Grants>), LoadError> {
    let key = principal_key(principal);
    for _ in 0..TRIES_MAX {
        let (generation, record) = apps
            .control()
            .store()
            .read(&key)
            .await
            .map_err(LoadError::failed)?;
        let (served, roles) = apps.roles();
        if generation != served {
            // Records of two generations could combine to grants that never existed.
            if generation > served {
                apps.refresh().await.map_err(LoadError::failed)?;
            }
            continue;
        }
        let Some(record) = record else {
            return Ok((generation, None));
        };
        let binding = Binding::from_record(&key, &record);
        let binding = binding.map_err(|error| LoadError::failed(format_args!("{key}: {error}")))?;

        return Ok((generation, Some(grants_of(&binding, &roles))));
    }
    Err(LoadError::failed(
        "the roles changed during each attempt to read them; retry",
    ))
}

/// Combines the grants of the roles that `binding` names. A role that is not in `roles`, which has
/// the readable roles, makes the result incomplete.
pub(crate) fn grants_of(binding: &Binding, roles: &HashMap<Box<str>, Arc<Role>>) -> Grants {
    let named: Vec<_> = binding
        .roles
        .iter()
        .filter_map(|role| roles.get(role.as_str()).cloned())
        .collect();
    let is_complete = named.len() == binding.roles.len();
    let grants = Grants::of(named);
    if is_complete {
        grants
    } else {
        grants.and_unreadable_roles()
    }
}

#[cfg(test)]
mod tests;
