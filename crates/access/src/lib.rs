//! Who may do what: the name in a client certificate, roles, and one decision for each call.
//!
//! A [`Principal`] is bound to roles; a [`Role`] is a list of [`Grant`]s, each some [`Operation`]s on some apps and
//! collections. What is not granted is refused, grants add up, and no grant takes anything away. A [`Decision`] lets a
//! call pass only with a [`Permit`], which handlers demand and nothing else makes. It says whether values may be seen or are
//! shown through a mask ([`Sight`]). A [`Cache`] keeps what principals may do, so that a call need not ask the store.
//!
//! This crate refuses to know sockets and stores: certificates are given as bytes, records as JSON, and what a principal
//! is bound to comes through a [`Loader`].

mod cache;
mod decide;
mod mask;
mod operation;
mod principal;
mod record;
mod role;

pub use cache::{Cache, CacheBounds, LoadError, Loader, Stats};
pub use decide::{Ask, Decision, Denied, Extent, Grants, Missing, Mode, Permit, Permitted, Sight};
pub use mask::{MASK_BYTES_MAX, MaskText};
pub use operation::{Group, Operation, Operations};
pub use principal::{Identity, Principal, PrincipalError, PrincipalKind, is_host_name};
pub use record::{Binding, ROLES_MAX, RecordError, principal_key, role_key};
pub use role::{ADMINISTRATOR, GRANTS_MAX, Grant, HOURLY_MAX, NAMES_MAX, Names, Role, RoleError, RoleName};
