//! The methods and notifications that exist, and sets of them.
//!
//! Two listeners share this wire: one takes the data methods, the other the control methods, and
//! both answer `apps.public_keys`, `info` and `health`. To a scanner a method that its listener
//! does not serve does not exist.

use std::fmt;

/// The methods, in the order of the contract's tables.
macro_rules! methods {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)+) => {
        /// A request's method.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method { $($(#[$doc])* $variant,)+ }

        impl Method {
            /// Every method, in the order of the contract's tables: data, control, and what both
            /// listeners answer.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

methods! {
    /// Replaces the leaves of a payload by envelopes.
    Encrypt = "encrypt",
    /// Opens every envelope in a payload.
    Decrypt = "decrypt",
    /// Opens every envelope in a payload and seals it again to the newest key.
    Rewrap = "rewrap",
    /// Says what one envelope states about itself, without opening it.
    Inspect = "inspect",
    /// Replaces the leaves of a payload by tokens.
    Tokenize = "tokenize",
    /// Replaces the tokens in a payload by their values.
    Detokenize = "detokenize",
    /// Masks the fields of a payload.
    Mask = "mask",
    /// Says what is known of tokens, without their values.
    TokensGet = "tokens.get",
    /// Finds the token of a value.
    TokensFind = "tokens.find",
    /// Lists the tokens of a collection.
    TokensList = "tokens.list",
    /// Removes tokens and their values for good.
    TokensDelete = "tokens.delete",
    /// Sets when tokens expire.
    TokensExpire = "tokens.expire",
    /// Takes expired tokens out of use.
    TokensArchive = "tokens.archive",
    /// Removes archived tokens for good.
    TokensPrune = "tokens.prune",
    /// Adds objects to a collection.
    ObjectsAdd = "objects.add",
    /// Returns objects by id.
    ObjectsGet = "objects.get",
    /// Changes objects.
    ObjectsUpdate = "objects.update",
    /// Removes objects for good.
    ObjectsDelete = "objects.delete",
    /// Finds objects by their indexed properties.
    ObjectsQuery = "objects.query",
    /// Lists the objects of a collection.
    ObjectsList = "objects.list",
    /// Sets when objects expire.
    ObjectsExpire = "objects.expire",
    /// Archives expired objects.
    ObjectsArchive = "objects.archive",
    /// Removes archived objects for good.
    ObjectsPrune = "objects.prune",
    /// Says how a data subject is known, and whether it was erased.
    SubjectsFind = "subjects.find",
    /// Returns the objects of a data subject.
    SubjectsExport = "subjects.export",
    /// Removes the key and the objects of a data subject for good.
    SubjectsErase = "subjects.erase",
    /// Lists apps with their key versions.
    AppsList = "apps.list",
    /// Makes an app.
    AppsCreate = "apps.create",
    /// Makes an app's next key version.
    AppsRotate = "apps.rotate",
    /// Adds a private key that was made elsewhere.
    AppsImport = "apps.import",
    /// Stops an app or a key version.
    AppsDisable = "apps.disable",
    /// Takes a `disable` back.
    AppsEnable = "apps.enable",
    /// Stops an app or a key version, and removes it after a delay.
    AppsDelete = "apps.delete",
    /// Takes a `delete` back while its delay lasts.
    AppsRestore = "apps.restore",
    /// Changes an app's settings.
    AppsSet = "apps.set",
    /// Gives the control state as it rests, keys wrapped.
    AppsExport = "apps.export",
    /// Lists an app's collections.
    CollectionsList = "collections.list",
    /// Makes a collection.
    CollectionsCreate = "collections.create",
    /// Changes a collection's settings.
    CollectionsSet = "collections.set",
    /// Changes the schema of a collection of objects.
    CollectionsAlter = "collections.alter",
    /// Seals old records of a collection of objects again, in the authenticated format.
    CollectionsMigrate = "collections.migrate",
    /// Removes a collection.
    CollectionsDelete = "collections.delete",
    /// Counts the rows of an app by the key versions that sealed them.
    KeysCensus = "keys.census",
    /// Seals rows of an app again, under the newest key versions.
    KeysRewrap = "keys.rewrap",
    /// Lists the instances that serve this control state.
    InstancesList = "instances.list",
    /// Lists roles with what they grant.
    RolesList = "roles.list",
    /// Makes or changes a role.
    RolesSet = "roles.set",
    /// Removes a role that nobody has.
    RolesDelete = "roles.delete",
    /// Lists principals with their roles.
    PrincipalsList = "principals.list",
    /// Gives a role to a principal.
    PrincipalsGrant = "principals.grant",
    /// Takes a role from a principal, or all.
    PrincipalsRevoke = "principals.revoke",
    /// Says whether a principal may do something, and by which role.
    PrincipalsCheck = "principals.check",
    /// Describes the root key and its slots.
    RootStatus = "root.status",
    /// Creates the root key.
    RootInit = "root.init",
    /// Replaces the root key.
    RootRotate = "root.rotate",
    /// Seals the store.
    RootSeal = "root.seal",
    /// Unseals the store.
    RootUnseal = "root.unseal",
    /// Adds a slot for a provider.
    KekAdd = "kek.add",
    /// Removes a slot.
    KekRemove = "kek.remove",
    /// Unwraps every slot.
    KekVerify = "kek.verify",
    /// Replaces every slot by a new copy of the root key.
    KekRotate = "kek.rotate",
    /// Gives the public keys to which others seal for an app, signed.
    AppsPublicKeys = "apps.public_keys",
    /// Says what this server is and what it accepts.
    Info = "info",
    /// Answers while the server serves.
    Health = "health",
}

impl Method {
    /// Returns true if its params have a `payload`.
    pub const fn takes_document(self) -> bool {
        matches!(
            self,
            Self::Encrypt
                | Self::Decrypt
                | Self::Rewrap
                | Self::Tokenize
                | Self::Detokenize
                | Self::Mask
                | Self::ObjectsAdd
                | Self::ObjectsUpdate
                | Self::ObjectsQuery
        )
    }

    /// The method of that exact name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|method| method.name().as_bytes() == name)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of methods: what a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods(u64);

impl Methods {
    /// Every method.
    pub const ALL: Self = Self::of(&Method::ALL);
    /// The methods that need a token store.
    pub const TOKENS: Self = Self::of(&[
        Method::Tokenize,
        Method::Detokenize,
        Method::TokensGet,
        Method::TokensFind,
        Method::TokensList,
        Method::TokensDelete,
        Method::TokensExpire,
        Method::TokensArchive,
        Method::TokensPrune,
    ]);
    /// The methods on objects and on their data subjects, which need an object store.
    pub const OBJECTS: Self = Self::of(&[
        Method::ObjectsAdd,
        Method::ObjectsGet,
        Method::ObjectsUpdate,
        Method::ObjectsDelete,
        Method::ObjectsQuery,
        Method::ObjectsList,
        Method::ObjectsExpire,
        Method::ObjectsArchive,
        Method::ObjectsPrune,
        Method::SubjectsFind,
        Method::SubjectsExport,
        Method::SubjectsErase,
    ]);
    /// The methods of the control listener.
    pub const CONTROL: Self = Self::of(&[
        Method::AppsList,
        Method::AppsCreate,
        Method::AppsRotate,
        Method::AppsImport,
        Method::AppsDisable,
        Method::AppsEnable,
        Method::AppsDelete,
        Method::AppsRestore,
        Method::AppsSet,
        Method::AppsExport,
        Method::CollectionsList,
        Method::CollectionsCreate,
        Method::CollectionsSet,
        Method::CollectionsAlter,
        Method::CollectionsMigrate,
        Method::CollectionsDelete,
        Method::KeysCensus,
        Method::KeysRewrap,
        Method::InstancesList,
        Method::RolesList,
        Method::RolesSet,
        Method::RolesDelete,
        Method::PrincipalsList,
        Method::PrincipalsGrant,
        Method::PrincipalsRevoke,
        Method::PrincipalsCheck,
        Method::RootStatus,
        Method::RootInit,
        Method::RootRotate,
        Method::RootSeal,
        Method::RootUnseal,
        Method::KekAdd,
        Method::KekRemove,
        Method::KekVerify,
        Method::KekRotate,
        Method::AppsPublicKeys,
        Method::Info,
        Method::Health,
    ]);
    /// The methods of both listeners.
    const BOTH: Self = Self::of(&[Method::AppsPublicKeys, Method::Info, Method::Health]);
    /// The methods of the data listener of an engine with a token store.
    pub const DATA: Self = Self(Self::ALL.without(Self::CONTROL).0 | Self::BOTH.0);

    /// The set of these.
    pub const fn of(methods: &[Method]) -> Self {
        let (mut set, mut index) = (0, 0);
        while index < methods.len() {
            set |= 1 << methods[index] as u32;
            index += 1;
        }
        Self(set)
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if the set contains the method.
    pub const fn contains(self, method: Method) -> bool {
        self.0 & (1 << method as u32) != 0
    }

    /// Its methods, in the order of the contract's tables.
    pub fn iter(self) -> impl Iterator<Item = Method> {
        Method::ALL
            .into_iter()
            .filter(move |method| self.contains(*method))
    }
}

/// A notification: a message that gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notification {
    /// Caller to server, `[2, "cancel", [msgid]]`: stop that call.
    Cancel,
    /// Client to server, `[2, "errors", ["text"]]`: answer failed requests of this connection with
    /// text.
    Errors,
    /// Server to caller, `[2, "error", [{code, message}]]`: why the connection is about to close.
    Error,
}

impl Notification {
    /// Every notification, in the order of the contract's table.
    pub const ALL: [Self; 3] = [Self::Cancel, Self::Errors, Self::Error];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Errors => "errors",
            Self::Error => "error",
        }
    }

    /// The notification of that exact name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|notice| notice.name().as_bytes() == name)
    }
}
