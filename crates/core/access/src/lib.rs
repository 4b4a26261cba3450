//! Principals and authorization: the name in a client certificate, roles, and one decision per
//! request.
//!
//! A [`Principal`] is bound to roles. A [`Role`] is a list of [`Grant`]s. Each grant permits some
//! [`Operation`]s on some apps and collections. Everything else is denied; grants add up, and no
//! grant takes a permission away. A [`Decision`] contains a [`Permit`], which handlers require and
//! only a decision creates. The permit says whether values are shown unmasked or through a mask
//! ([`ValueVisibility`]). A [`Cache`] keeps the permissions of principals, to avoid a store query
//! per request.
//!
//! This crate has no sockets and no store. Certificates are given as bytes and records as JSON. A
//! [`Loader`] provides the bindings of principals.

mod cache;
mod decide;
mod error;
mod mask;
mod operation;
mod principal;
mod properties;
mod record;
mod role;

pub use cache::{Cache, CacheBounds, LoadError, Loader, Stats};
pub use decide::{
    AccessMode, AccessScope, AuthorizationRequest, Decision, Denied, Grants, Missing, Permit,
    Permitted, ValueVisibility,
};
pub use error::{GRANTS_MAX, HOURLY_MAX, MASK_BYTES_MAX, NAMES_MAX, RoleError};
pub use mask::MaskText;
pub use operation::{Group, Operation, Operations, ValueAccess};
pub use principal::{Identity, Principal, PrincipalError, PrincipalKind, is_host_name};
pub use properties::PropertyAccess;
pub use record::{Binding, ROLES_MAX, RecordError, principal_key, role_key};
pub use role::{ADMINISTRATOR, Grant, Names, Role, RoleName};
