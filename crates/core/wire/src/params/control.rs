//! Params of the control methods.

use std::fmt;

use super::keys::{CensusCall, MigrateCall, RewrapRowsCall};
use super::names;
use crate::method::Method;
use crate::params::{AlterCollection, Format, PropertySpec, Suite};

names! {
    /// Kinds of token: equal values get equal tokens or not, and tokens lead back to values or not.
    Kind {
        /// Every call makes new tokens.
        Random = "random",
        /// Equal values have one token, in the collection or under one context.
        Deterministic = "deterministic",
        /// As deterministic, and no token leads back: nothing of the value is kept.
        OneWay = "one_way",
    }
}

names! {
    /// Format of tokens.
    #[derive(Default)]
    TokenFormat {
        /// `tok_` and 22 letters and digits. The default.
        #[default]
        Opaque = "opaque",
        /// A UUID of version 4.
        Uuid = "uuid",
        /// As many digits as the value has.
        Digits = "digits",
        /// A card number that keeps the value's first and last digits and passes Luhn.
        Card = "card",
        /// An address that can never receive mail.
        Email = "email",
    }
}

names! {
    /// How far equal values have equal tokens.
    #[derive(Default)]
    Scope {
        /// In the whole collection. The default.
        #[default]
        Collection = "collection",
        /// Under one context of it.
        Context = "context",
    }
}

names! {
    /// Which of an app's keys is rotated.
    RotateKind {
        /// The key of `p256-psk`.
        P256Psk = "p256-psk",
        /// The key pair of `p256`.
        P256 = "p256",
        /// The key pair of `secp256k1`.
        Secp256k1 = "secp256k1",
        /// The symmetric key of `xaes`.
        Xaes = "xaes",
        /// The key of `p256-mlkem768`.
        P256MlKem768 = "p256-mlkem768",
        /// The key of `secp256k1-psk`.
        Secp256k1Psk = "secp256k1-psk",
        /// The key pair of `p256` whose public key `apps.public_keys` gives to others.
        P256Outside = "p256-outside",
        /// The key of `p256-mlkem768` whose public key `apps.public_keys` gives to others.
        P256MlKem768Outside = "p256-mlkem768-outside",
        /// The key that seals the values of tokens.
        Token = "token",
    }
}

/// A private key in a request. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// A part of a list, in the order of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page<'a> {
    /// The `next` of the page before.
    pub after: Option<&'a str>,
    /// Entries at most, 1 to 1,000; `None` is 100.
    pub limit: Option<u32>,
}

/// A call of a control method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// `apps.list`.
    Apps(Page<'a>),
    /// `apps.export`.
    Export(Page<'a>),
    /// A change of one app.
    App(AppCall<'a>),
    /// `collections.list`.
    Collections {
        /// The app.
        app: &'a str,
        /// Which part.
        page: Page<'a>,
    },
    /// A change of one collection.
    Collection(CollectionCall<'a>),
    /// `keys.census`.
    Census(CensusCall<'a>),
    /// `keys.rewrap`.
    RewrapRows(RewrapRowsCall<'a>),
    /// `collections.migrate`.
    Migrate(MigrateCall<'a>),
    /// `instances.list`.
    Instances,
    /// `roles.list`.
    Roles(Page<'a>),
    /// A change of one role.
    Role(RoleCall<'a>),
    /// `principals.list`.
    Principals(Page<'a>),
    /// A change of the roles of one principal.
    Principal(PrincipalCall<'a>),
    /// `principals.check`.
    Check(CheckCall<'a>),
    /// A request on the store's root key.
    Root(RootOperation<'a>),
    /// `apps.public_keys`, which the data listener answers as well.
    PublicKeys(PublicKeysCall<'a>),
}

impl Control<'_> {
    /// Which method it calls.
    pub const fn method(&self) -> Method {
        match self {
            Self::Apps(_) => Method::AppsList,
            Self::Export(_) => Method::AppsExport,
            Self::App(call) => call.ask.method(),
            Self::Collections { .. } => Method::CollectionsList,
            Self::Collection(call) => call.ask.method(),
            Self::Census(_) => Method::KeysCensus,
            Self::RewrapRows(_) => Method::KeysRewrap,
            Self::Migrate(_) => Method::CollectionsMigrate,
            Self::Instances => Method::InstancesList,
            Self::Roles(_) => Method::RolesList,
            Self::Role(call) => call.ask.method(),
            Self::Principals(_) => Method::PrincipalsList,
            Self::Principal(call) => call.ask.method(),
            Self::Check(_) => Method::PrincipalsCheck,
            Self::Root(ask) => ask.method(),
            Self::PublicKeys(_) => Method::AppsPublicKeys,
        }
    }
}

/// A request on the store's root key and its slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootOperation<'a> {
    /// Describes them. Asks no provider, and works while the store is sealed.
    Status,
    /// Creates the root key.
    Init {
        /// The providers that get a slot, 1 to 8; `None`: all that the engine has.
        providers: Option<Vec<&'a str>>,
    },
    /// Replaces the root key, or continues to.
    Rotate {
        /// Removes the root key of an unfinished rotation instead.
        abandon: bool,
    },
    /// Seals the store.
    Seal,
    /// Unseals the store.
    Unseal,
    /// Adds a slot.
    AddSlot {
        /// Name of its provider.
        provider: &'a str,
    },
    /// Removes a slot.
    RemoveSlot {
        /// Its number.
        slot: u32,
    },
    /// Unwraps every slot, and records which ones are right.
    Verify,
    /// Replaces every slot by a new copy.
    RotateSlots,
}

impl RootOperation<'_> {
    const fn method(&self) -> Method {
        match self {
            Self::Status => Method::RootStatus,
            Self::Init { .. } => Method::RootInit,
            Self::Rotate { .. } => Method::RootRotate,
            Self::Seal => Method::RootSeal,
            Self::Unseal => Method::RootUnseal,
            Self::AddSlot { .. } => Method::KekAdd,
            Self::RemoveSlot { .. } => Method::KekRemove,
            Self::Verify => Method::KekVerify,
            Self::RotateSlots => Method::KekRotate,
        }
    }
}

/// The params of `apps.public_keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKeysCall<'a> {
    /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// Refuse with `conflict` if the server's generation is older.
    pub min_generation: Option<u64>,
    /// Why the call is made: 1 to 256 bytes without control characters. A role may demand it.
    pub reason: Option<&'a str>,
}

/// A change of one app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppCall<'a> {
    /// Its name. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// The change.
    pub ask: AppOperation<'a>,
}

/// A change of an app. A `key` names one key version, `None` the whole app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppOperation<'a> {
    /// It is made, with a key of each kind.
    Create,
    /// It gets a next key version, which seals from then on.
    Rotate {
        /// Of which kind.
        kind: RotateKind,
    },
    /// It gets a key pair that was made elsewhere.
    Import {
        /// The suite of the key pair: one of key pairs on a curve alone.
        suite: Suite,
        /// The key: PEM without a password, or its 32 bytes in hexadecimal or base64.
        private_key: Secret<'a>,
        /// True if the key seals from then on; false if it only opens.
        seals: bool,
    },
    /// It stops.
    Disable {
        /// The key version.
        key: Option<&'a str>,
    },
    /// It works again.
    Enable {
        /// The key version.
        key: Option<&'a str>,
    },
    /// It stops, and is removed after a delay.
    Delete {
        /// The key version.
        key: Option<&'a str>,
        /// How long until then, in seconds, 0 to 31,536,000; `None` is a week.
        delay_s: Option<u64>,
    },
    /// Its removal is called off.
    Restore {
        /// The key version.
        key: Option<&'a str>,
    },
    /// Its settings change; what is `None` stays.
    Set {
        /// Format for requests that name none: `native` or `evervault`.
        format: Option<Format>,
        /// How long one ephemeral key serves calls of key scope `epoch`, in milliseconds, 0 to
        /// 15,000; 0 forbids them.
        epoch_ms: Option<u32>,
        /// Suite for requests that name none.
        write_suite: Option<Suite>,
        /// Suites whose envelopes open, and which requests may name.
        read_suites: Option<Vec<Suite>>,
    },
}

impl AppOperation<'_> {
    const fn method(&self) -> Method {
        match self {
            Self::Create => Method::AppsCreate,
            Self::Rotate { .. } => Method::AppsRotate,
            Self::Import { .. } => Method::AppsImport,
            Self::Disable { .. } => Method::AppsDisable,
            Self::Enable { .. } => Method::AppsEnable,
            Self::Delete { .. } => Method::AppsDelete,
            Self::Restore { .. } => Method::AppsRestore,
            Self::Set { .. } => Method::AppsSet,
        }
    }
}

/// A change of one collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectionCall<'a> {
    /// Its app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// Its name; the same alphabet.
    pub collection: &'a str,
    /// The change.
    pub ask: CollectionOperation<'a>,
}

/// A change of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectionOperation<'a> {
    /// A collection of tokens is made. Kind, format and scope stay for ever.
    Create {
        /// Which tokens it gives.
        kind: Kind,
        /// Format of its tokens.
        format: TokenFormat,
        /// Of `card`: digits kept in front, 0 to 6; `None` is 6.
        first: Option<u8>,
        /// Of `card`: digits kept at the end, 0 to 4; `None` is 4.
        last: Option<u8>,
        /// How far equal values have equal tokens.
        scope: Scope,
        /// When new tokens expire that name no time, in seconds, 1 to 3,155,760,000; `None`: never.
        expires_s: Option<u64>,
        /// Seconds for which an archived row is kept, 0 to 3,155,760,000; `None`: until an operator
        /// prunes it.
        retention_s: Option<u64>,
    },
    /// A collection of objects is made.
    CreateObjects {
        /// The suite that seals the objects; `None` is `xaes`.
        suite: Option<Suite>,
        /// Its properties, 1 to 64.
        properties: Vec<PropertySpec<'a>>,
        /// When new objects expire that name no time, in seconds, 1 to 3,155,760,000; `None`:
        /// never.
        expires_s: Option<u64>,
        /// Seconds for which an archived object is kept, 0 to 3,155,760,000; `None`: until an
        /// operator prunes it.
        retention_s: Option<u64>,
    },
    /// The schema of its objects changes.
    Alter(AlterCollection<'a>),
    /// Its expiry for new tokens or objects, or its retention changes. An outer `None` leaves a
    /// time as it is.
    Set {
        /// As above.
        expires_s: Option<Option<u64>>,
        /// As above.
        retention_s: Option<Option<u64>>,
    },
    /// It is removed with its name, and no token of it is found any more.
    Delete,
}

impl CollectionOperation<'_> {
    const fn method(&self) -> Method {
        match self {
            Self::Create { .. } | Self::CreateObjects { .. } => Method::CollectionsCreate,
            Self::Alter(_) => Method::CollectionsAlter,
            Self::Set { .. } => Method::CollectionsSet,
            Self::Delete => Method::CollectionsDelete,
        }
    }
}

/// A change of one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleCall<'a> {
    /// Its name. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub role: &'a str,
    /// The change.
    pub ask: RoleOperation<'a>,
}

/// A change of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleOperation<'a> {
    /// It grants this and nothing else, whether it was there or not.
    Set {
        /// 1 to 64 grants, each as operators write them: `encrypt,decrypt apps=shop`.
        grants: Vec<&'a str>,
    },
    /// It is removed, if nobody has it.
    Delete,
}

impl RoleOperation<'_> {
    const fn method(&self) -> Method {
        match self {
            Self::Set { .. } => Method::RolesSet,
            Self::Delete => Method::RolesDelete,
        }
    }
}

/// A change of the roles of one principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrincipalCall<'a> {
    /// A DNS name, a `spiffe://` URI, or `cn:` and a common name. 1 to 2,048 bytes.
    pub principal: &'a str,
    /// The change.
    pub ask: PrincipalOperation<'a>,
}

/// A change of a principal's roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrincipalOperation<'a> {
    /// It gets one more.
    Grant {
        /// Which. It must be there.
        role: &'a str,
    },
    /// It loses one, or all.
    Revoke {
        /// Which; `None`: all.
        role: Option<&'a str>,
    },
}

impl PrincipalOperation<'_> {
    const fn method(&self) -> Method {
        match self {
            Self::Grant { .. } => Method::PrincipalsGrant,
            Self::Revoke { .. } => Method::PrincipalsRevoke,
        }
    }
}

/// A question: may this principal do that?
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCall<'a> {
    /// The principal, as in [`PrincipalCall`].
    pub principal: &'a str,
    /// The name of an operation, at most 64 bytes.
    pub operation: &'a str,
    /// On which app; `None`: on all of them.
    pub app: Option<&'a str>,
    /// On which collection, for operations that are about one; `None`: on all of them.
    pub collection: Option<&'a str>,
    /// The property of objects; `None`: absent from the request.
    pub property: Option<&'a str>,
    /// With this reason.
    pub reason: Option<&'a str>,
}
