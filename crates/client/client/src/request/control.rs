//! The requests that the control listener serves: apps, collections, keys, roles and the root key.

mod apps;
mod collections;
mod keys;
mod roles;
mod root;

pub use apps::{AppOperation, AppSettings};
pub use collections::{
    AlterCollection, CollectionOperation, CollectionSettings, CreateCollection, MigrateRequest,
    PropertySpec,
};
pub use keys::{CensusRequest, PublicKeysRequest, RewrapRowsRequest};
pub use roles::{CheckRequest, PrincipalOperation, RoleOperation};
pub use root::RootOperation;

/// Declares a request that wraps a struct or an operation of the codec. `: Copy` derives `Copy`.
macro_rules! wrapper {
    ($(#[$doc:meta])* $name:ident $(: $copy:ident)?) => {
        $(#[$doc])*
        #[derive(Clone, $($copy,)? Debug, PartialEq, Eq)]
        pub struct $name<'a>(pub(crate) sealwire_wire::control::$name<'a>);

        crate::request::conversion!($name);
    };
}
use wrapper;
