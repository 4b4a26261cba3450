//! The requests and responses of a control listener, which changes apps, collections, roles and
//! root keys.
//!
//! An operator connects with a certificate of the control listener's authority, to the address of
//! that listener:
//!
//! ```no_run
//! use sealwire_client::control::{AppOperation, CollectionOperation, CreateCollection, Kind};
//! use sealwire_client::{Client, ClientConfig, Page, Pem};
//!
//! # async fn example() -> Result<(), sealwire_client::Error> {
//! let file = |name: &str| Pem::File(format!("/etc/sealwire/{name}").into());
//! let config = ClientConfig::new(
//!     "engine-1.acme.example:31102",
//!     "engine-1.acme.example",
//!     file("ca.pem"),
//!     file("operator.pem"),
//!     file("operator.key"),
//! );
//! let operator = Client::connect(config).await?;
//!
//! operator.change_app("shop", AppOperation::create()).await?;
//! let cards = CollectionOperation::create(CreateCollection::new(Kind::Random));
//! operator.change_collection("shop", "cards", cards).await?;
//! for app in operator.apps(Page::new()).await?.apps {
//!     println!("{} is {}", app.app, app.state);
//! }
//! # Ok(())
//! # }
//! ```

pub use crate::request::control::{
    AlterCollection, AppOperation, AppSettings, CensusRequest, CheckRequest, CollectionOperation,
    CollectionSettings, CreateCollection, MigrateRequest, PrincipalOperation, PropertySpec,
    PublicKeysRequest, RewrapRowsRequest, RoleOperation, RootOperation,
};
pub use crate::request::objects::Page;
#[doc(inline)]
pub use sealwire_wire::control::{
    App, AppChanged, Apps, Census, CensusCount, CensusKey, Checked, Collection, CollectionChanged,
    Collections, Instance, Instances, Key, Kind, MigratedObjects, Principal, PrincipalChanged,
    Principals, Property, PublicKeys, Record, Records, RewrappedRows, Role, RoleChanged, Roles,
    RootKeyState, RootProvider, RootSlotState, RootState, RotateKind, Scope, TokenFormat, TokenKey,
};
