//! The params of the control methods.

use std::fmt;

use super::declare::{Parameter, Parameters, Writer, field, operations, own, params, rows};
use super::rule::{
    CURSOR, DELAY, ENTRIES, EPOCH, EXPIRY, EXPIRY_OR_NIL, FIRST, FLAG, FORMAT_OF_APP, GRANTS, KEY,
    LAST, LONG_CURSOR, NAME, OBJECTS, OPERATION, PRINCIPAL, PRIVATE_KEY, PROPERTIES, PROVIDER,
    PROVIDERS, Param, Part, READ_SUITES, REASON, RETENTION, ROWS, Rule, SECONDS_OR_NIL, SLOT,
    SUITE_OF_IMPORT,
};
use super::{AlterCollection, CommonParams, Format, PropertySpec, Suite, names};
use crate::invalid_request::InvalidRequest;
use crate::method::{Method, Methods};
use crate::reading::Params;

names! {
    /// The kind of a collection: objects, or tokens. Kinds of tokens differ in whether equal values
    /// get equal tokens, and whether tokens can be detokenized.
    Kind {
        /// Every request creates new tokens.
        Random = "random",
        /// Equal values have the same token, in the collection or under one context.
        Deterministic = "deterministic",
        /// Deterministic tokens that cannot be detokenized: the value is not stored.
        OneWay = "one_way",
        /// Objects with typed properties.
        Objects = "objects",
    }
}

names! {
    /// The format of tokens.
    #[derive(Default)]
    TokenFormat {
        /// `tok_` and 22 letters and digits. The default.
        #[default]
        Opaque = "opaque",
        /// A UUID of version 4.
        Uuid = "uuid",
        /// Digits, as many as in the value.
        Digits = "digits",
        /// A card number that keeps the first and last digits of the value and passes the Luhn
        /// check.
        Card = "card",
        /// An email address that can never receive mail.
        Email = "email",
    }
}

names! {
    /// The scope in which equal values have equal tokens.
    #[derive(Default)]
    Scope {
        /// The whole collection. The default.
        #[default]
        Collection = "collection",
        /// A single context of the collection.
        Context = "context",
    }
}

names! {
    /// The app's key that a request rotates.
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
        /// The key pair of `p256` whose public key `apps.public_keys` publishes.
        P256Outside = "p256-outside",
        /// The key of `p256-mlkem768` whose public key `apps.public_keys` publishes.
        P256MlKem768Outside = "p256-mlkem768-outside",
        /// The key that seals the values of tokens.
        Token = "token",
    }
}

const SUITE: Rule = Suite::RULE;
const KIND: Rule = Kind::RULE;
const TOKEN_FORMAT: Rule = TokenFormat::RULE;
const SCOPE: Rule = Scope::RULE;
const ROTATE_KIND: Rule = RotateKind::RULE;

/// A private key in a request. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a str);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

params! {
    /// A page of a list, in the order of names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Page<'a> {
        /// The `next` of the previous page.
        after: Option<&'a str> = optional(LONG_CURSOR "the beginning" in AppsExport PrincipalsList
            | CURSOR "the beginning");
        /// Most entries of the page, 1 to 1,000; `None` is 100.
        limit: Option<u32> = optional(ENTRIES "100");
    }
}

params! {
    /// A change of one app.
    #[derive(Clone, Debug, PartialEq, Eq)]
    AppRequest<'a> {
        /// The name of the app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The change.
        operation: AppOperation<'a> = operation;
    }
}

operations! {
    /// A change of an app. `key` names one key version; `None` means the whole app.
    #[derive(Clone, Debug, PartialEq, Eq)]
    AppOperation<'a> {
        /// Creates the app, with a key of each kind.
        Create = AppsCreate,
        /// Creates the next key version, which then seals.
        Rotate = AppsRotate {
            /// The kind of the key.
            kind: RotateKind = required(ROTATE_KIND);
        },
        /// Imports a key pair.
        Import = AppsImport {
            /// The suite of the key pair, which must be a pure elliptic-curve suite.
            suite: Suite = required(SUITE_OF_IMPORT);
            /// The private key: PEM without a password, or 32 bytes in hexadecimal or base64.
            private_key: Secret<'a> = required(PRIVATE_KEY);
            /// True if the key seals after the import; false if it only opens.
            seals: bool = default(FLAG "false");
        },
        /// Disables the app or key version.
        Disable = AppsDisable {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
        },
        /// Enables the app or key version.
        Enable = AppsEnable {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
        },
        /// Disables the app or key version, and removes it after a delay.
        Delete = AppsDelete {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
            /// The delay in seconds, 0 to 31,536,000; `None` is a week.
            delay_s: Option<u64> = optional(DELAY "604800");
        },
        /// Cancels the removal.
        Restore = AppsRestore {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
        },
        /// Changes the settings of the app. A setting that is `None` stays unchanged.
        Set = AppsSet {
            /// Default format of requests: `native` or `evervault`.
            format: Option<Format> = optional(FORMAT_OF_APP "unchanged");
            /// How long one ephemeral key serves requests with key scope `epoch`, in milliseconds,
            /// 0 to 15,000; 0 disables this key scope.
            epoch_ms: Option<u32> = optional(EPOCH "unchanged");
            /// Default suite of requests.
            write_suite: Option<Suite> = optional(SUITE "unchanged");
            /// Suites whose envelopes open, and which requests can name.
            read_suites: Option<Vec<Suite>> = optional(READ_SUITES "unchanged");
        },
    }
}

params! {
    /// The params of `apps.public_keys`. Of the options, it supports only the generation and the
    /// reason.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PublicKeysRequest<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// Options of the request.
        options: CommonParams<'a> = options;
    }
}

params! {
    /// The params of `collections.list`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CollectionsRequest<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The requested page.
        page: Page<'a> = part;
    }
}

params! {
    /// A change of one collection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CollectionRequest<'a> {
        /// The app of the collection. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The name of the collection. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        collection: &'a str = required(NAME);
        /// The change.
        operation: CollectionOperation<'a> = operation;
    }
}

operations! {
    /// A change of a collection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CollectionOperation<'a> {
        /// Creates the collection. Later, only its times and its schema can change.
        Create(new: CreateCollection<'a>) = CollectionsCreate checked by has_only_params_of_its_kind,
        /// Changes the schema of the collection's objects.
        Alter(alter: AlterCollection<'a>) = CollectionsAlter,
        /// Changes the expiry of new tokens or objects, or the retention. An outer `None` leaves a
        /// time unchanged.
        Set = CollectionsSet {
            /// The time as in [`CreateCollection`].
            expires_s: Option<Option<u64>> = optional(EXPIRY_OR_NIL "as it is");
            /// The time as in [`CreateCollection`].
            retention_s: Option<Option<u64>> = optional(SECONDS_OR_NIL "as it is");
        },
        /// Removes the collection and its name. Tokens of the collection are not found afterwards.
        Delete = CollectionsDelete,
    }
}

params! {
    /// A new collection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CreateCollection<'a> {
        /// The kind of the collection.
        kind: Kind = required(KIND);
        /// For tokens: the format of the tokens.
        format: TokenFormat = default(TOKEN_FORMAT "\"opaque\"");
        /// For `card`: number of leading digits that tokens keep, 0 to 6; `None` is 6.
        first: Option<u8> = optional(FIRST "6");
        /// For `card`: number of trailing digits that tokens keep, 0 to 4; `None` is 4.
        last: Option<u8> = optional(LAST "4");
        /// For tokens: the scope in which equal values have equal tokens.
        scope: Scope = default(SCOPE "\"collection\"");
        /// For objects: the properties, 1 to 64. Required for objects.
        properties: Vec<PropertySpec<'a>> = default(PROPERTIES "none");
        /// For objects: the suite that seals them; `None` is `xaes`.
        suite: Option<Suite> = optional(SUITE "\"xaes\"");
        /// Default time until new tokens or objects expire, in seconds, 1 to 3,155,760,000; `None`:
        /// never.
        expires_s: Option<u64> = optional(EXPIRY "never");
        /// Seconds for which an archived row is kept, 0 to 3,155,760,000; `None`: until an operator
        /// prunes it.
        retention_s: Option<u64> = optional(RETENTION "for ever");
    }
}

impl<'a> CreateCollection<'a> {
    /// Creates the params of a collection with the defaults.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            format: TokenFormat::default(),
            first: None,
            last: None,
            scope: Scope::default(),
            properties: Vec::new(),
            suite: None,
            expires_s: None,
            retention_s: None,
        }
    }

    /// Creates the params of a collection of objects with these properties.
    pub fn of_objects(properties: Vec<PropertySpec<'a>>) -> Self {
        Self {
            properties,
            ..Self::new(Kind::Objects)
        }
    }
}

/// Checks that parameters of the other kind are absent.
fn has_only_params_of_its_kind(operation: &CollectionOperation<'_>) -> Result<(), InvalidRequest> {
    let CollectionOperation::Create(new) = operation else {
        return Ok(());
    };
    let has_token_params =
        (new.format, new.scope) != Default::default() || new.first.is_some() || new.last.is_some();
    let only_objects = "absent: only kind \"objects\" has it";
    let (key, rule) = match new.kind {
        Kind::Objects if new.properties.is_empty() => {
            return Err(InvalidRequest::Missing { key: "properties" });
        }
        Kind::Objects if has_token_params => (
            "format, scope, first, last",
            "absent: only tokens have them",
        ),
        Kind::Objects => return Ok(()),
        _ if !new.properties.is_empty() => ("properties", only_objects),
        _ if new.suite.is_some() => ("suite", only_objects),
        _ => return Ok(()),
    };
    Err(InvalidRequest::BreaksRule { key, rule })
}

params! {
    /// The params of `collections.migrate`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    MigrateRequest<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The collection of objects.
        collection: &'a str = required(NAME);
        /// Also migrate records that do not authenticate the sealer.
        accept_unauthenticated: bool = default(FLAG "false");
        /// Only report the result, without a change.
        dry_run: bool = default(FLAG "false");
        /// The `next` of the previous page.
        after: Option<&'a str> = optional(CURSOR "the beginning");
        /// Most rows to examine, 1 to 500; `None` is 100.
        limit: Option<u32> = optional(OBJECTS "100");
    }
}

params! {
    /// The params of `keys.census`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    CensusRequest<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// Fail with `conflict` while an engine could still write under an older key version.
        prove: bool = default(FLAG "false");
        /// The `next` of the previous page.
        after: Option<&'a str> = optional(CURSOR "the beginning");
        /// Most rows to examine, 1 to 10,000; `None` is 1,000.
        limit: Option<u32> = optional(ROWS "1000");
    }
}

params! {
    /// The params of `keys.rewrap`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    RewrapRowsRequest<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The collection; `None` means all collections.
        collection: Option<&'a str> = optional(NAME "all collections");
        /// The `next` of the previous page.
        after: Option<&'a str> = optional(CURSOR "the beginning");
        /// Most rows to rewrap, 1 to 500; `None` is 100.
        limit: Option<u32> = optional(OBJECTS "100");
    }
}

params! {
    /// A change of one role.
    #[derive(Clone, Debug, PartialEq, Eq)]
    RoleRequest<'a> {
        /// The name of the role. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        role: &'a str = required(NAME);
        /// The change.
        operation: RoleOperation<'a> = operation;
    }
}

operations! {
    /// A change of a role.
    #[derive(Clone, Debug, PartialEq, Eq)]
    RoleOperation<'a> {
        /// Creates the role or replaces its grants.
        Set = RolesSet {
            /// 1 to 64 grants in the syntax of operators: `encrypt,decrypt apps=shop`.
            grants: Vec<&'a str> = required(GRANTS);
        },
        /// Removes the role if no principal has it.
        Delete = RolesDelete,
    }
}

params! {
    /// A change of the roles of one principal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PrincipalRequest<'a> {
        /// A DNS name, a `spiffe://` URI, or `cn:` and a common name. 1 to 2,048 bytes.
        principal: &'a str = required(PRINCIPAL);
        /// The change.
        operation: PrincipalOperation<'a> = operation;
    }
}

operations! {
    /// A change of a principal's roles.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PrincipalOperation<'a> {
        /// Grants a role.
        Grant = PrincipalsGrant {
            /// The role, which must exist.
            role: &'a str = required(NAME);
        },
        /// Revokes one role or all roles.
        Revoke = PrincipalsRevoke {
            /// The role; `None` means every role.
            role: Option<&'a str> = optional(NAME "every role");
        },
    }
}

params! {
    /// The params of `principals.check`: a principal and the permission to check.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    CheckRequest<'a> {
        /// The principal, as in [`PrincipalRequest`].
        principal: &'a str = required(PRINCIPAL);
        /// The name of an operation, at most 64 bytes.
        operation: &'a str = required(OPERATION);
        /// The app; `None` means all apps.
        app: Option<&'a str> = optional(NAME "all apps");
        /// The collection, for operations on a collection; `None` means all collections.
        collection: Option<&'a str> = optional(NAME "all collections");
        /// The property of objects; `None` if the checked request does not name a property.
        property: Option<&'a str> = optional(NAME "not asked");
        /// The reason of the checked request.
        reason: Option<&'a str> = optional(REASON "none");
    }
}

operations! {
    /// A request on the store's root key and its slots.
    #[derive(Clone, Debug, PartialEq, Eq)]
    RootOperation<'a> {
        /// Describes the root key and its slots. Contacts no provider, and works while the store is
        /// sealed.
        Status = RootStatus,
        /// Creates the root key.
        Init = RootInit {
            /// The providers that get a slot, 1 to 8; `None` means all providers of the engine.
            providers: Option<Vec<&'a str>> = optional(PROVIDERS "all of the engine");
        },
        /// Replaces the root key, or continues an unfinished rotation.
        Rotate = RootRotate {
            /// Removes the incoming root key of an unfinished rotation instead.
            abandon: bool = default(FLAG "false");
        },
        /// Seals the store.
        Seal = RootSeal,
        /// Unseals the store.
        Unseal = RootUnseal,
        /// Adds a slot.
        AddSlot = KekAdd {
            /// Name of the slot's provider.
            provider: &'a str = required(PROVIDER);
        },
        /// Removes a slot.
        RemoveSlot = KekRemove {
            /// The number of the slot.
            slot: u32 = required(SLOT);
        },
        /// Unwraps every slot and records which slots are correct.
        Verify = KekVerify,
        /// Replaces every slot by a new wrapped copy of the root key.
        RotateSlots = KekRotate,
    }
}
