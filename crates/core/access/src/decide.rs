//! Authorization: one decision for each request, and the permit that proves the decision.
//!
//! With [`AccessMode::Enforce`], everything that is not granted is denied. Grants of all roles add
//! up; no grant takes a permission away. A denial names the missing part in the words of the
//! request. The decision does not depend on an app's existence, so a denial cannot reveal it.
//!
//! If several grants permit a request, a grant without a mask takes precedence, then a grant
//! without an hourly limit. Among equals the first grant of the first role applies.
//!
//! With [`AccessMode::Observe`], requests that no role grants pass, except where the response could
//! show a value that a mask hides. A principal with a mask sees all values through that mask.
//! Without a grant, it is denied operations whose values no mask can cover, and those that change
//! who can read values ([`ValueAccess::Readers`]), with which it could take its mask off. If a role
//! of the principal is missing or unreadable, its masks are unknown. Then every ungranted operation
//! that returns values or changes who can read them is denied.

use std::sync::Arc;

use crate::mask::MaskText;
use crate::operation::{Operation, Operations, ResourceKind, ValueAccess};
use crate::properties::PropertyAccess;
use crate::role::{Grant, Names, Role, RoleName};

/// The treatment of requests that no role grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessMode {
    /// Deny the request.
    #[default]
    Enforce,
    /// Let the request pass and count it, unless the response could show a value that a mask of the
    /// principal hides.
    Observe,
    /// Skip authorization: a valid certificate is enough.
    Off,
}

impl AccessMode {
    /// Returns the value of the configuration key `access.mode`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }
}

/// The scope of an operation in one dimension (apps or collections).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessScope<'a> {
    /// The operation does not apply to this dimension.
    None,
    /// All names of this dimension.
    Every,
    /// A single name.
    One(&'a str),
}

impl<'a> AccessScope<'a> {
    /// Returns true if `names` of a grant cover the scope.
    fn is_covered_by(self, names: &Names) -> bool {
        match self {
            Self::None => true,
            Self::Every => *names == Names::All,
            Self::One(name) => names.contains(name),
        }
    }

    /// Returns the name of a scope with a single name.
    fn single_name(self) -> Option<&'a str> {
        match self {
            Self::One(name) => Some(name),
            Self::None | Self::Every => None,
        }
    }
}

/// A request for authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthorizationRequest<'a> {
    operation: Operation,
    app: AccessScope<'a>,
    collection: AccessScope<'a>,
    reason: Option<&'a str>,
    /// The time of the request, in seconds since 1970-01-01 UTC. `None` means that every grant with
    /// an end has ended.
    at: Option<u64>,
}

impl<'a> AuthorizationRequest<'a> {
    /// Creates a request for an operation on the named app and collection. A name is ignored if the
    /// operation does not apply to that dimension. A missing name in an applicable dimension means
    /// all names.
    pub fn new(operation: Operation, app: Option<&'a str>, collection: Option<&'a str>) -> Self {
        let app = app.map_or(AccessScope::Every, AccessScope::One);
        let collection = collection.map_or(AccessScope::Every, AccessScope::One);
        let (app, collection) = match operation.resource_kind() {
            ResourceKind::All => (AccessScope::Every, AccessScope::None),
            ResourceKind::App => (app, AccessScope::None),
            ResourceKind::Collections => (app, AccessScope::Every),
            ResourceKind::Collection => (app, collection),
        };
        Self {
            operation,
            app,
            collection,
            reason: None,
            at: None,
        }
    }

    /// Sets the reason that the client gave, if any.
    #[must_use]
    pub fn because(mut self, reason: Option<&'a str>) -> Self {
        self.reason = reason;
        self
    }

    /// Adds the time of the request, in seconds since 1970-01-01 UTC. Without it, no grant with a
    /// time limit applies.
    #[must_use]
    pub fn at(mut self, unix_s: u64) -> Self {
        self.at = Some(unix_s);
        self
    }

    /// Returns the requested operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns true if `grant` permits `operation` in the place and time of this request.
    fn is_covered(&self, grant: &Grant, operation: Operation) -> bool {
        Self { operation, ..*self }.missing_part(grant).is_none()
    }

    /// Returns the first part of the request that `grant` does not cover, or `None` if `grant`
    /// permits the request.
    fn missing_part(&self, grant: &Grant) -> Option<Missing> {
        if !grant.operations.contains(self.operation) {
            Some(Missing::Operation)
        } else if !self.app.is_covered_by(&grant.apps) {
            Some(Missing::App)
        } else if !self.collection.is_covered_by(&grant.collections) {
            Some(Missing::Collection)
        } else if grant
            .until
            .is_some_and(|until| self.at.is_none_or(|at| at >= until))
        {
            Some(Missing::Time)
        } else if grant.reason && self.reason.is_none() {
            Some(Missing::Reason)
        } else {
            None
        }
    }
}

/// The part of a request that no grant covers. If several grants fall short, the closest one
/// counts; later variants are closer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// The principal has no role.
    Role,
    /// No grant has the operation.
    Operation,
    /// Grants with the operation are on other apps.
    App,
    /// Grants with the operation and app are on other collections.
    Collection,
    /// Grants with the operation, app and collection are on other properties.
    Property,
    /// A grant that covers the request has ended.
    Time,
    /// A grant covers the request but requires a reason.
    Reason,
}

impl Missing {
    /// All variants.
    pub const ALL: [Self; 7] = [
        Self::Role,
        Self::Operation,
        Self::App,
        Self::Collection,
        Self::Property,
        Self::Time,
        Self::Reason,
    ];

    /// Returns the variant's name, which is also a metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Operation => "operation",
            Self::App => "app",
            Self::Collection => "collection",
            Self::Property => "property",
            Self::Time => "time",
            Self::Reason => "reason",
        }
    }
}

/// A denied request. The client receives the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Denied {
    /// The denied operation.
    pub operation: Operation,
    /// The missing part.
    pub missing: Missing,
    app: Option<Box<str>>,
    collection: Option<Box<str>>,
    property: Option<Box<str>>,
    /// True if [`AccessMode::Observe`] denied the request.
    while_observing: bool,
}

impl Denied {
    fn of(request: &AuthorizationRequest<'_>, missing: Missing) -> Self {
        Self {
            operation: request.operation,
            missing,
            app: request.app.single_name().map(Box::from),
            collection: request.collection.single_name().map(Box::from),
            property: None,
            while_observing: false,
        }
    }

    fn text(&self) -> String {
        let mut text = self.missing_text();
        if self.while_observing {
            let why = match self.operation.value_access() {
                ValueAccess::Readers => "it changes who can read masked values",
                _ => "it could show masked values",
            };
            text.push_str("; access.mode \"observe\" denies it, because ");
            text.push_str(why);
        } else if self.is_solved_by_grant() {
            text.push_str("; an administrator can grant a role that permits it with `sealwire principals grant`");
        }
        text
    }

    /// Returns true if an administrator can solve the denial by granting a role.
    fn is_solved_by_grant(&self) -> bool {
        !matches!(self.missing, Missing::Time | Missing::Reason)
    }

    fn missing_text(&self) -> String {
        let operation = self.operation;
        let on = match (&self.app, &self.collection) {
            (Some(app), Some(collection)) => format!(" on collection {collection} of app {app}"),
            (Some(app), None) => format!(" on app {app}"),
            (None, _) => String::new(),
        };
        match self.missing {
            Missing::Role => format!("this principal has no role, so {operation}{on} is denied"),
            Missing::Operation => format!("no role of this principal grants {operation}"),
            Missing::App if self.app.is_none() => {
                format!("no role of this principal grants {operation} on all apps")
            }
            Missing::App => format!("no role of this principal grants {operation}{on}"),
            Missing::Collection if self.collection.is_none() => {
                format!("no role of this principal grants {operation}{on} with all collections")
            }
            Missing::Collection => format!("no role of this principal grants {operation}{on}"),
            Missing::Property => {
                let property = self.property.as_deref().unwrap_or("*");
                format!("no role of this principal grants {operation} for property {property}{on}")
            }
            Missing::Time => format!(
                "the grant of {operation}{on} has ended; an administrator can extend it with `sealwire roles set`"
            ),
            Missing::Reason => {
                format!("{operation}{on} needs a reason; send it in the parameter reason")
            }
        }
    }
}

/// The combined roles of a principal.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    roles: Box<[Arc<Role>]>,
    operations: Operations,
    /// True if the principal has further roles that are missing or unreadable.
    is_incomplete: bool,
}

impl Grants {
    /// Combines these roles.
    pub fn of(roles: impl IntoIterator<Item = Arc<Role>>) -> Self {
        let roles: Box<[Arc<Role>]> = roles.into_iter().collect();
        let operations = roles
            .iter()
            .fold(Operations::NONE, |all, role| all.and(role.operations()));
        Self {
            roles,
            operations,
            is_incomplete: false,
        }
    }

    /// Records that the principal has further roles, which are missing or unreadable. Such roles
    /// grant nothing, and their masks are unknown.
    #[must_use]
    pub fn and_unreadable_roles(self) -> Self {
        Self {
            is_incomplete: true,
            ..self
        }
    }

    /// Returns true if the principal has no readable role.
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }

    /// Returns the grant that permits the request, or the missing part.
    fn find_grant(&self, request: &AuthorizationRequest<'_>) -> Result<Permitted<'_>, Missing> {
        if self.roles.is_empty() {
            return Err(Missing::Role);
        }
        if !self.operations.contains(request.operation) {
            return Err(Missing::Operation);
        }

        let mut closest = Missing::Operation;
        let mut widest = None;
        for role in &self.roles {
            for grant in role.grants() {
                if let Some(missing) = request.missing_part(grant) {
                    closest = closest.max(missing);
                    continue;
                }
                let found = Permitted {
                    role: role.name(),
                    mask: grant.mask.as_ref(),
                    hourly: grant.hourly,
                };
                match found.bounds() {
                    (false, false) => return Ok(found),
                    bounds
                        if widest.is_none_or(|widest: Permitted<'_>| bounds < widest.bounds()) =>
                    {
                        widest = Some(found)
                    }
                    _ => (),
                }
            }
        }
        widest.ok_or(closest)
    }

    /// Returns the access to properties that the grants give to a permitted request, and the
    /// smallest hourly limit of these grants. `objects.query` and `objects.list` read values by the
    /// grants of `objects.get`, so the limits of these grants apply too.
    fn property_access(&self, request: &AuthorizationRequest<'_>) -> (PropertyAccess, Option<u32>) {
        let grants = self.roles.iter().flat_map(|role| role.grants());
        let hourly = grants
            .clone()
            .filter(|grant| {
                request.is_covered(grant, request.operation)
                    || (request.operation.reads_properties()
                        && request.is_covered(grant, Operation::ObjectsGet))
            })
            .filter_map(|grant| grant.hourly)
            .min();

        let properties = PropertyAccess::of(request.operation, grants, |grant, operation| {
            request.is_covered(grant, operation)
        });
        (properties, hourly)
    }

    /// Returns the grants that have a mask.
    fn masked_grants(&self) -> impl Iterator<Item = &Grant> {
        self.roles
            .iter()
            .flat_map(|role| role.grants())
            .filter(|grant| grant.mask.is_some())
    }

    /// Returns the mask for values that no grant covers, with [`AccessMode::Observe`]. If the
    /// principal's grants have different masks, the result is a mask that hides the whole value.
    fn observed_mask(&self) -> Option<MaskText> {
        let mut masks = self.masked_grants().filter_map(|grant| grant.mask.as_ref());
        let first = masks.next()?;
        Some(if masks.all(|mask| mask == first) {
            first.clone()
        } else {
            MaskText::redact()
        })
    }

    /// Returns the permit with which [`AccessMode::Observe`] lets a request pass that no grant
    /// covers. `None`: the response, or a later one, could show a value that a mask hides.
    fn observe<'a>(&self, request: AuthorizationRequest<'a>) -> Option<Permit<'a>> {
        let mask = self.observed_mask();
        match request.operation.value_access() {
            ValueAccess::None => Some(Permit::unrestricted(request, mask)),
            ValueAccess::Maskable | ValueAccess::Properties if !self.is_incomplete => {
                // A principal could find masked values by guessing if its requests were not
                // limited.
                let hourly = self.masked_grants().filter_map(|grant| grant.hourly).min();
                Some(Permit {
                    hourly,
                    ..Permit::unrestricted(request, mask)
                })
            }
            ValueAccess::Clear | ValueAccess::Readers if !self.is_incomplete && mask.is_none() => {
                Some(Permit::unrestricted(request, None))
            }
            ValueAccess::Maskable
            | ValueAccess::Properties
            | ValueAccess::Clear
            | ValueAccess::Readers => None,
        }
    }

    /// Decides on a request as [`AccessMode::Enforce`] does.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn decide<'a>(&self, request: AuthorizationRequest<'a>) -> Result<Permit<'a>, Denied> {
        match self.find_grant(&request) {
            Ok(permitted) => Ok(Permit::granted(request, self, &permitted)),
            Err(missing) => Err(Denied::of(&request, missing)),
        }
    }

    /// Returns the role, mask and hourly limit of the grant that permits a request for one property
    /// of objects. A grant without a mask takes precedence, then the first one.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn permitted_property(
        &self,
        request: &AuthorizationRequest<'_>,
        property: &str,
    ) -> Result<Permitted<'_>, Denied> {
        self.permitted(request)?;

        let mut found = self
            .roles
            .iter()
            .flat_map(|role| role.grants().iter().map(move |grant| (role.name(), grant)))
            .filter(|(_, grant)| {
                request.is_covered(grant, request.operation)
                    && grant
                        .properties
                        .as_ref()
                        .is_some_and(|properties| properties.contains(property))
            });
        let Some((role, grant)) = found.next() else {
            return Err(Denied {
                property: Some(property.into()),
                ..Denied::of(request, Missing::Property)
            });
        };

        let first = Permitted {
            role,
            mask: grant.mask.as_ref(),
            hourly: grant.hourly,
        };
        let clear = found
            .find(|(_, grant)| grant.mask.is_none())
            .filter(|_| first.mask.is_some());
        Ok(clear.map_or(first, |(role, grant)| Permitted {
            role,
            mask: None,
            hourly: grant.hourly,
        }))
    }

    /// Returns the role and limits that permit a request.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn permitted(&self, request: &AuthorizationRequest<'_>) -> Result<Permitted<'_>, Denied> {
        self.find_grant(request)
            .map_err(|missing| Denied::of(request, missing))
    }
}

/// The role and limits that permit a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted<'a> {
    /// The role that permits the request.
    pub role: &'a RoleName,
    /// The mask for returned values, if any.
    pub mask: Option<&'a MaskText>,
    /// Maximum number of fields per hour for the principal and the operation, if limited.
    pub hourly: Option<u32>,
}

impl Permitted<'_> {
    /// Returns whether the grant has a mask, and whether it has an hourly limit. Of the grants that
    /// permit a request, the first one with the smallest pair applies.
    fn bounds(&self) -> (bool, bool) {
        (self.mask.is_some(), self.hourly.is_some())
    }
}

/// The decision on a request that may proceed.
#[derive(Debug)]
pub struct Decision<'a> {
    /// The proof of the decision.
    pub permit: Permit<'a>,
    /// The reason for a denial that [`AccessMode::Observe`] did not enforce.
    pub observed: Option<Denied>,
}

impl AccessMode {
    /// Decides on a request of a principal with these grants. `None` means a principal without
    /// roles.
    ///
    /// # Errors
    /// [`Denied`], if the mode enforces denials.
    pub fn decide<'a>(
        self,
        grants: Option<&Grants>,
        request: AuthorizationRequest<'a>,
    ) -> Result<Decision<'a>, Denied> {
        let no_roles = Grants::default();
        let grants = grants.unwrap_or(&no_roles);
        if self == Self::Off {
            return Ok(Decision {
                permit: Permit::unrestricted(request, None),
                observed: None,
            });
        }

        let enforced = grants.decide(request);
        if self == Self::Enforce {
            return enforced.map(|permit| Decision {
                permit,
                observed: None,
            });
        }
        match enforced {
            Ok(permit) if request.operation.uses_properties() => {
                // The request can use properties that no grant covers. This crate does not know
                // which properties a request uses.
                let hourly = permit.hourly;
                let permit = grants
                    .observe(request)
                    .map_or(permit, |observed| Permit { hourly, ..observed });
                Ok(Decision {
                    permit,
                    observed: None,
                })
            }
            Ok(permit) => Ok(Decision {
                permit,
                observed: None,
            }),
            Err(denied) => match grants.observe(request) {
                Some(permit) => Ok(Decision {
                    permit,
                    observed: Some(denied),
                }),
                None => Err(Denied {
                    while_observing: true,
                    ..denied
                }),
            },
        }
    }

    /// Decides on a request of a principal whose grants cannot be read. Returns `None` if the mode
    /// denies the request. In [`AccessMode::Observe`], operations that return values or change
    /// who can read them do not pass, since the principal might have a mask.
    pub fn unknown(self, request: AuthorizationRequest<'_>) -> Option<Permit<'_>> {
        let passes = match self {
            Self::Enforce => false,
            Self::Observe => request.operation.value_access() == ValueAccess::None,
            Self::Off => true,
        };
        passes.then(|| Permit::unrestricted(request, None))
    }
}

/// The proof of an authorization decision. Only a decision creates a permit. Handlers take the
/// names of app and collection from the permit, so they act only on permitted resources.
#[derive(Debug, PartialEq, Eq)]
pub struct Permit<'a> {
    operation: Operation,
    app: Option<&'a str>,
    collection: Option<&'a str>,
    mask: Option<MaskText>,
    hourly: Option<u32>,
    properties: PropertyAccess,
}

/// The way in which a permit discloses values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum ValueVisibility<'p> {
    /// Values are returned unmasked.
    Clear,
    /// Every value is returned through this mask. A value that the mask does not fit is not
    /// returned.
    Masked(&'p MaskText),
}

impl<'a> Permit<'a> {
    /// Returns the permit for a request that grants cover.
    fn granted(
        request: AuthorizationRequest<'a>,
        grants: &Grants,
        permitted: &Permitted<'_>,
    ) -> Self {
        let permit = Self {
            hourly: permitted.hourly,
            ..Self::unrestricted(request, permitted.mask.cloned())
        };
        if !request.operation.uses_properties() {
            return permit;
        }
        let (properties, hourly) = grants.property_access(&request);
        Self {
            properties,
            hourly,
            mask: None,
            ..permit
        }
    }

    /// Returns the permit for a request whose values are shown through `mask` and which has no
    /// other limits.
    fn unrestricted(request: AuthorizationRequest<'a>, mask: Option<MaskText>) -> Self {
        let properties = if request.operation.uses_properties() {
            PropertyAccess::all(mask.clone())
        } else {
            PropertyAccess::NONE
        };
        Self {
            operation: request.operation,
            app: request.app.single_name(),
            collection: request.collection.single_name(),
            mask,
            hourly: None,
            properties,
        }
    }

    /// Returns the access to properties of objects.
    pub fn properties(&self) -> &PropertyAccess {
        &self.properties
    }

    /// Returns the denial of a request for a property that no grant covers for `operation`.
    pub fn property_denied(&self, operation: Operation, property: &str) -> Denied {
        Denied {
            operation,
            missing: Missing::Property,
            app: self.app.map(Box::from),
            collection: self.collection.map(Box::from),
            property: Some(property.into()),
            while_observing: false,
        }
    }

    /// Returns the principal's fields per hour for this operation; `None` if they are not limited.
    pub fn hourly(&self) -> Option<u32> {
        self.hourly
    }

    /// Returns whether values are returned unmasked or through a mask.
    pub fn visibility(&self) -> ValueVisibility<'_> {
        self.mask
            .as_ref()
            .map_or(ValueVisibility::Clear, ValueVisibility::Masked)
    }

    /// Returns the permitted operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the permitted app, if the request names one.
    pub fn app(&self) -> Option<&'a str> {
        self.app
    }

    /// Returns the permitted collection, if the request names one.
    pub fn collection(&self) -> Option<&'a str> {
        self.collection
    }
}

#[cfg(test)]
mod tests;
