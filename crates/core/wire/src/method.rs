//! The methods and notifications of the contract, and sets of methods.
//!
//! The data listener serves the data methods and the control listener the control methods. The
//! methods `apps.public_keys`, `info` and `health` are served by both listeners. A scanner treats a method that its listener does
//! not serve as unknown.

use std::fmt;

use crate::invalid_request::InvalidRequest;
use crate::params::declare::{self, Parameters};
use crate::params::rule::{self, Form, Part};
use crate::params::{
    AppRequest, CensusRequest, CheckRequest, CollectionRequest, CollectionsRequest, Decrypt,
    Detokenize, Encrypt, Inspect, Mask, MigrateRequest, ObjectsRequest, Page, Param,
    PrincipalRequest, PublicKeysRequest, Rewrap, RewrapRowsRequest, RoleRequest, RootOperation,
    SubjectsRequest, Tokenize, TokensRequest,
};
use crate::reading::Params;
use crate::request_decoder::{Control, Request};

/// Declares the methods, in the order of the contract's tables: the name on the wire, the listener,
/// the store that the method needs, and the request with its parameters.
macro_rules! methods {
    ($(
        $(#[$doc:meta])*
        $variant:ident = $name:literal on $plane:ident $($store:ident)?
            => $set:ident::$case:ident $(($request:ident))?,
    )+) => {
        /// A request's method.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Method { $($(#[$doc])* $variant,)+ }

        impl Method {
            /// Every method, in the order of the contract's tables: data methods, control methods,
            /// methods of both listeners.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The parameters of the method: the allowed keys of its params map.
            pub const fn params(self) -> &'static [Param] {
                match self {
                    $(Self::$variant => {
                        const PARTS: &[Part] =
                            &[$(Part::Group(<$request<'static> as Parameters<'static>>::PARTS))?];
                        const ROWS: &[Param] =
                            &rule::method_rows::<{ rule::row_count(PARTS, Method::$variant) }>(
                                PARTS,
                                Method::$variant,
                            );
                        ROWS
                    })+
                }
            }

            /// Reads the parameters of the method.
            pub(crate) fn read<'a>(self, params: &mut Params<'a>) -> Result<Request<'a>, InvalidRequest> {
                Ok(match self {
                    $(Self::$variant => {
                        Request::from(request!(self, params, $set::$case $($request)?))
                    })+
                })
            }
        }

        impl Methods {
            /// The methods that need a token store.
            pub const TOKENS: Self = Self(0 $(| bit!($variant of tokens $($store)?))+);
            /// The methods on objects and on their data subjects, which need an object store.
            pub const OBJECTS: Self = Self(0 $(| bit!($variant of objects $($store)?))+);
            /// The methods of the control listener.
            pub const CONTROL: Self = Self(0 $(| bit!($variant of control $plane))+).union(Self::BOTH);
            /// The methods of the data listener of an engine with a token store.
            pub const DATA: Self = Self(0 $(| bit!($variant of data $plane))+).union(Self::BOTH);
            /// The methods of both listeners.
            const BOTH: Self = Self(0 $(| bit!($variant of both $plane))+);
        }
    };
}

/// Returns the bit of a method if two words are the same, and 0 otherwise.
macro_rules! bit {
    ($variant:ident of tokens tokens) => {
        1 << Method::$variant as u64
    };
    ($variant:ident of objects objects) => {
        1 << Method::$variant as u64
    };
    ($variant:ident of control control) => {
        1 << Method::$variant as u64
    };
    ($variant:ident of data data) => {
        1 << Method::$variant as u64
    };
    ($variant:ident of both both) => {
        1 << Method::$variant as u64
    };
    ($variant:ident of $($other:ident)+) => {
        0
    };
}

/// Reads the parameters of a request. For a method without parameters, checks that the params map
/// is empty.
macro_rules! request {
    ($method:ident, $params:ident, $set:ident::$case:ident $request:ident) => {
        $set::$case(declare::read::<$request<'_>>($method, $params)?)
    };
    ($method:ident, $params:ident, $set:ident::$case:ident) => {{
        $params.expect_empty()?;
        $set::$case
    }};
}

methods! {
    /// Replaces the leaves of a payload by envelopes.
    Encrypt = "encrypt" on data => Request::Encrypt(Encrypt),
    /// Opens every envelope in a payload.
    Decrypt = "decrypt" on data => Request::Decrypt(Decrypt),
    /// Opens every envelope in a payload and seals it again to the newest key.
    Rewrap = "rewrap" on data => Request::Rewrap(Rewrap),
    /// Describes one envelope without opening it.
    Inspect = "inspect" on data => Request::Inspect(Inspect),
    /// Replaces the leaves of a payload by tokens.
    Tokenize = "tokenize" on data tokens => Request::Tokenize(Tokenize),
    /// Replaces the tokens in a payload by their values.
    Detokenize = "detokenize" on data tokens => Request::Detokenize(Detokenize),
    /// Masks the fields of a payload.
    Mask = "mask" on data => Request::Mask(Mask),
    /// Returns the metadata of tokens, without their values.
    TokensGet = "tokens.get" on data tokens => Request::Tokens(TokensRequest),
    /// Finds the token of a value.
    TokensFind = "tokens.find" on data tokens => Request::Tokens(TokensRequest),
    /// Lists the tokens of a collection.
    TokensList = "tokens.list" on data tokens => Request::Tokens(TokensRequest),
    /// Removes tokens and their values for good.
    TokensDelete = "tokens.delete" on data tokens => Request::Tokens(TokensRequest),
    /// Sets when tokens expire.
    TokensExpire = "tokens.expire" on data tokens => Request::Tokens(TokensRequest),
    /// Archives expired tokens.
    TokensArchive = "tokens.archive" on data tokens => Request::Tokens(TokensRequest),
    /// Removes archived tokens for good.
    TokensPrune = "tokens.prune" on data tokens => Request::Tokens(TokensRequest),
    /// Adds objects to a collection.
    ObjectsAdd = "objects.add" on data objects => Request::Objects(ObjectsRequest),
    /// Returns objects by id.
    ObjectsGet = "objects.get" on data objects => Request::Objects(ObjectsRequest),
    /// Changes objects.
    ObjectsUpdate = "objects.update" on data objects => Request::Objects(ObjectsRequest),
    /// Removes objects for good.
    ObjectsDelete = "objects.delete" on data objects => Request::Objects(ObjectsRequest),
    /// Finds objects by their indexed properties.
    ObjectsQuery = "objects.query" on data objects => Request::Objects(ObjectsRequest),
    /// Lists the objects of a collection.
    ObjectsList = "objects.list" on data objects => Request::Objects(ObjectsRequest),
    /// Sets when objects expire.
    ObjectsExpire = "objects.expire" on data objects => Request::Objects(ObjectsRequest),
    /// Archives expired objects.
    ObjectsArchive = "objects.archive" on data objects => Request::Objects(ObjectsRequest),
    /// Removes archived objects for good.
    ObjectsPrune = "objects.prune" on data objects => Request::Objects(ObjectsRequest),
    /// Returns the id of a data subject, and whether the subject was erased.
    SubjectsFind = "subjects.find" on data objects => Request::Subjects(SubjectsRequest),
    /// Returns the objects of a data subject.
    SubjectsExport = "subjects.export" on data objects => Request::Subjects(SubjectsRequest),
    /// Removes the key and the objects of a data subject for good.
    SubjectsErase = "subjects.erase" on data objects => Request::Subjects(SubjectsRequest),
    /// Lists apps with their key versions.
    AppsList = "apps.list" on control => Control::Apps(Page),
    /// Creates an app.
    AppsCreate = "apps.create" on control => Control::App(AppRequest),
    /// Creates an app's next key version.
    AppsRotate = "apps.rotate" on control => Control::App(AppRequest),
    /// Imports a private key.
    AppsImport = "apps.import" on control => Control::App(AppRequest),
    /// Disables an app or a key version.
    AppsDisable = "apps.disable" on control => Control::App(AppRequest),
    /// Enables a disabled app or key version.
    AppsEnable = "apps.enable" on control => Control::App(AppRequest),
    /// Disables an app or a key version, and removes it after a delay.
    AppsDelete = "apps.delete" on control => Control::App(AppRequest),
    /// Cancels a `delete` before its delay ends.
    AppsRestore = "apps.restore" on control => Control::App(AppRequest),
    /// Changes an app's settings.
    AppsSet = "apps.set" on control => Control::App(AppRequest),
    /// Returns the stored control state, with wrapped keys.
    AppsExport = "apps.export" on control => Control::Export(Page),
    /// Lists an app's collections.
    CollectionsList = "collections.list" on control => Control::Collections(CollectionsRequest),
    /// Creates a collection.
    CollectionsCreate = "collections.create" on control => Control::Collection(CollectionRequest),
    /// Changes a collection's settings.
    CollectionsSet = "collections.set" on control => Control::Collection(CollectionRequest),
    /// Changes the schema of a collection of objects.
    CollectionsAlter = "collections.alter" on control => Control::Collection(CollectionRequest),
    /// Seals old records of a collection of objects again, in the authenticated format.
    CollectionsMigrate = "collections.migrate" on control => Control::Migrate(MigrateRequest),
    /// Removes a collection.
    CollectionsDelete = "collections.delete" on control => Control::Collection(CollectionRequest),
    /// Counts the rows of an app by the key versions that sealed them.
    KeysCensus = "keys.census" on control => Control::Census(CensusRequest),
    /// Seals rows of an app again, under the newest key versions.
    KeysRewrap = "keys.rewrap" on control => Control::RewrapRows(RewrapRowsRequest),
    /// Lists the instances that serve this control state.
    InstancesList = "instances.list" on control => Control::Instances,
    /// Lists roles with their grants.
    RolesList = "roles.list" on control => Control::Roles(Page),
    /// Creates or replaces a role.
    RolesSet = "roles.set" on control => Control::Role(RoleRequest),
    /// Removes a role that no principal has.
    RolesDelete = "roles.delete" on control => Control::Role(RoleRequest),
    /// Lists principals with their roles.
    PrincipalsList = "principals.list" on control => Control::Principals(Page),
    /// Gives a role to a principal.
    PrincipalsGrant = "principals.grant" on control => Control::Principal(PrincipalRequest),
    /// Removes one role or all roles from a principal.
    PrincipalsRevoke = "principals.revoke" on control => Control::Principal(PrincipalRequest),
    /// Reports whether a principal has a permission, and by which role.
    PrincipalsCheck = "principals.check" on control => Control::Check(CheckRequest),
    /// Describes the root key and its slots.
    RootStatus = "root.status" on control => Control::Root(RootOperation),
    /// Creates the root key.
    RootInit = "root.init" on control => Control::Root(RootOperation),
    /// Replaces the root key.
    RootRotate = "root.rotate" on control => Control::Root(RootOperation),
    /// Seals the store.
    RootSeal = "root.seal" on control => Control::Root(RootOperation),
    /// Unseals the store.
    RootUnseal = "root.unseal" on control => Control::Root(RootOperation),
    /// Adds a slot for a provider.
    KekAdd = "kek.add" on control => Control::Root(RootOperation),
    /// Removes a slot.
    KekRemove = "kek.remove" on control => Control::Root(RootOperation),
    /// Unwraps every slot.
    KekVerify = "kek.verify" on control => Control::Root(RootOperation),
    /// Replaces every slot by a new copy of the root key.
    KekRotate = "kek.rotate" on control => Control::Root(RootOperation),
    /// Returns the signed public keys with which others seal for an app.
    AppsPublicKeys = "apps.public_keys" on both => Control::PublicKeys(PublicKeysRequest),
    /// Describes this server: its version, its methods and its limits.
    Info = "info" on both => Request::Info,
    /// Reports that the server is healthy.
    Health = "health" on both => Request::Health,
}

impl Method {
    /// Returns true if the params of the method have a `payload`.
    pub const fn takes_document(self) -> bool {
        const DOCUMENTS: Methods = Methods::with_document();
        DOCUMENTS.contains(self)
    }

    /// Returns the method with exactly this name.
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

/// A set of methods, for example those that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Methods(u64);

impl Methods {
    /// Every method.
    pub const ALL: Self = Self::of(&Method::ALL);
    /// Returns the set of these methods.
    pub const fn of(methods: &[Method]) -> Self {
        let mut set = 0;
        let mut index = 0;
        while index < methods.len() {
            set |= 1 << methods[index] as u32;
            index += 1;
        }
        Self(set)
    }

    /// Returns the set of these methods, or of every method if the slice is empty.
    pub(crate) const fn or_all(methods: &[Method]) -> Self {
        if methods.is_empty() {
            Self::ALL
        } else {
            Self::of(methods)
        }
    }

    const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn with_document() -> Self {
        let mut set = Self(0);
        let mut index = 0;
        while index < Method::ALL.len() {
            let method = Method::ALL[index];
            let mut row = 0;
            while row < method.params().len() {
                if matches!(
                    method.params()[row].bounds.form,
                    Form::Document | Form::Array
                ) {
                    set = set.union(Self::of(&[method]));
                }
                row += 1;
            }
            index += 1;
        }
        set
    }

    /// Returns the methods that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns true if the set contains the method.
    pub const fn contains(self, method: Method) -> bool {
        self.0 & (1 << method as u32) != 0
    }

    /// Returns the methods of the set, in the order of the contract's tables.
    pub fn iter(self) -> impl Iterator<Item = Method> {
        Method::ALL
            .into_iter()
            .filter(move |method| self.contains(*method))
    }
}

/// A notification: a message without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notification {
    /// Client to server, `[2, "cancel", [msgid]]`: cancel this request.
    Cancel,
    /// Client to server, `[2, "errors", ["text"]]`: send errors of this connection as text.
    Errors,
    /// Server to client, `[2, "error", [{code, message}]]`: the reason why the server closes the
    /// connection.
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

    /// Returns the notification with exactly this name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|notice| notice.name().as_bytes() == name)
    }
}
