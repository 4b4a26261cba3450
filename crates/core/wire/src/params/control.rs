//! Params of the control methods.

use std::fmt;

use super::declare::{Parameter, Parameters, Writer, field, operations, own, params, rows};
use super::rule::{
    CURSOR, DELAY, ENTRIES, EPOCH, EXPIRY, EXPIRY_OR_NIL, FIRST, FLAG, FORMAT_OF_APP, GRANTS, KEY,
    LAST, LONG_CURSOR, NAME, OBJECTS, OPERATION, PRINCIPAL, PRIVATE_KEY, PROPERTIES, PROVIDER,
    PROVIDERS, Param, Part, READ_SUITES, REASON, RETENTION, ROWS, Rule, SECONDS_OR_NIL, SLOT,
    SUITE_OF_IMPORT,
};
use super::{AlterCollection, CallOptions, Format, PropertySpec, Suite, names};
use crate::call_error::CallError;
use crate::method::{Method, Methods};
use crate::reading::Params;

names! {
    /// Kinds of collection: of objects, or of tokens. Equal values get equal tokens or not, and
    /// tokens lead back to values or not.
    Kind {
        /// Every call makes new tokens.
        Random = "random",
        /// Equal values have one token, in the collection or under one context.
        Deterministic = "deterministic",
        /// As deterministic, and no token leads back: nothing of the value is kept.
        OneWay = "one_way",
        /// Objects of typed properties.
        Objects = "objects",
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
    /// A part of a list, in the order of names.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    Page<'a> {
        /// The `next` of the page before.
        after: Option<&'a str> = optional(LONG_CURSOR "the beginning" in AppsExport PrincipalsList
            | CURSOR "the beginning");
        /// Entries at most, 1 to 1,000; `None` is 100.
        limit: Option<u32> = optional(ENTRIES "100");
    }
}

params! {
    /// A change of one app.
    #[derive(Clone, Debug, PartialEq, Eq)]
    AppCall<'a> {
        /// Its name. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The change.
        ask: AppOperation<'a> = operation;
    }
}

operations! {
    /// A change of an app. A `key` names one key version, `None` the whole app.
    #[derive(Clone, Debug, PartialEq, Eq)]
    AppOperation<'a> {
        /// It is made, with a key of each kind.
        Create = AppsCreate,
        /// It gets a next key version, which seals from then on.
        Rotate = AppsRotate {
            /// Of which kind.
            kind: RotateKind = required(ROTATE_KIND);
        },
        /// It gets a key pair that was made elsewhere.
        Import = AppsImport {
            /// The suite of the key pair: one of key pairs on a curve alone.
            suite: Suite = required(SUITE_OF_IMPORT);
            /// The key: PEM without a password, or its 32 bytes in hexadecimal or base64.
            private_key: Secret<'a> = required(PRIVATE_KEY);
            /// True if the key seals from then on; false if it only opens.
            seals: bool = default(FLAG "false");
        },
        /// It stops.
        Disable = AppsDisable {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
        },
        /// It works again.
        Enable = AppsEnable {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
        },
        /// It stops, and is removed after a delay.
        Delete = AppsDelete {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
            /// How long until then, in seconds, 0 to 31,536,000; `None` is a week.
            delay_s: Option<u64> = optional(DELAY "604800");
        },
        /// Its removal is called off.
        Restore = AppsRestore {
            /// The key version.
            key: Option<&'a str> = optional(KEY "the whole app");
        },
        /// Its settings change; what is `None` stays.
        Set = AppsSet {
            /// Format for requests that name none: `native` or `evervault`.
            format: Option<Format> = optional(FORMAT_OF_APP "unchanged");
            /// How long one ephemeral key serves calls of key scope `epoch`, in milliseconds, 0 to
            /// 15,000; 0 forbids them.
            epoch_ms: Option<u32> = optional(EPOCH "unchanged");
            /// Suite for requests that name none.
            write_suite: Option<Suite> = optional(SUITE "unchanged");
            /// Suites whose envelopes open, and which requests may name.
            read_suites: Option<Vec<Suite>> = optional(READ_SUITES "unchanged");
        },
    }
}

params! {
    /// The params of `apps.public_keys`. Its options are a generation and a reason.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PublicKeysCall<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// Options of the request.
        options: CallOptions<'a> = options;
    }
}

params! {
    /// The params of `collections.list`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CollectionsCall<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// Which part.
        page: Page<'a> = part;
    }
}

params! {
    /// A change of one collection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CollectionCall<'a> {
        /// Its app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// Its name; the same alphabet.
        collection: &'a str = required(NAME);
        /// The change.
        ask: CollectionOperation<'a> = operation;
    }
}

operations! {
    /// A change of a collection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CollectionOperation<'a> {
        /// It is made. What it was made with stays for ever, but for its times and its schema.
        Create(new: CreateCollection<'a>) = CollectionsCreate checked by only_of_its_kind,
        /// The schema of its objects changes.
        Alter(alter: AlterCollection<'a>) = CollectionsAlter,
        /// Its expiry for new tokens or objects, or its retention changes. An outer `None` leaves a
        /// time as it is.
        Set = CollectionsSet {
            /// As in [`CreateCollection`].
            expires_s: Option<Option<u64>> = optional(EXPIRY_OR_NIL "as it is");
            /// As in [`CreateCollection`].
            retention_s: Option<Option<u64>> = optional(SECONDS_OR_NIL "as it is");
        },
        /// It is removed with its name, and no token of it is found any more.
        Delete = CollectionsDelete,
    }
}

params! {
    /// A new collection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    CreateCollection<'a> {
        /// What it holds.
        kind: Kind = required(KIND);
        /// Of tokens: their format.
        format: TokenFormat = default(TOKEN_FORMAT "\"opaque\"");
        /// Of `card`: digits kept in front, 0 to 6; `None` is 6.
        first: Option<u8> = optional(FIRST "6");
        /// Of `card`: digits kept at the end, 0 to 4; `None` is 4.
        last: Option<u8> = optional(LAST "4");
        /// Of tokens: how far equal values have equal tokens.
        scope: Scope = default(SCOPE "\"collection\"");
        /// Of objects, which must have some: their properties, 1 to 64.
        properties: Vec<PropertySpec<'a>> = default(PROPERTIES "none");
        /// Of objects: the suite that seals them; `None` is `xaes`.
        suite: Option<Suite> = optional(SUITE "\"xaes\"");
        /// When new tokens or objects expire that name no time, in seconds, 1 to 3,155,760,000;
        /// `None`: never.
        expires_s: Option<u64> = optional(EXPIRY "never");
        /// Seconds for which an archived row is kept, 0 to 3,155,760,000; `None`: until an operator
        /// prunes it.
        retention_s: Option<u64> = optional(RETENTION "for ever");
    }
}

impl<'a> CreateCollection<'a> {
    /// A collection with the defaults.
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

    /// A collection of objects with these properties.
    pub fn of_objects(properties: Vec<PropertySpec<'a>>) -> Self {
        Self {
            properties,
            ..Self::new(Kind::Objects)
        }
    }
}

/// Parameters of the other kind must be absent.
fn only_of_its_kind(ask: &CollectionOperation<'_>) -> Result<(), CallError> {
    let CollectionOperation::Create(new) = ask else {
        return Ok(());
    };
    let is_of_tokens =
        (new.format, new.scope) != Default::default() || new.first.is_some() || new.last.is_some();
    let only_objects = "absent: only kind \"objects\" has it";
    let (key, rule) = match new.kind {
        Kind::Objects if new.properties.is_empty() => {
            return Err(CallError::Missing { key: "properties" });
        }
        Kind::Objects if is_of_tokens => (
            "format, scope, first, last",
            "absent: only tokens have them",
        ),
        Kind::Objects => return Ok(()),
        _ if !new.properties.is_empty() => ("properties", only_objects),
        _ if new.suite.is_some() => ("suite", only_objects),
        _ => return Ok(()),
    };
    Err(CallError::BreaksRule { key, rule })
}

params! {
    /// The params of `collections.migrate`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    MigrateCall<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The collection of objects.
        collection: &'a str = required(NAME);
        /// Also convert records that do not prove who sealed them.
        accept_unauthenticated: bool = default(FLAG "false");
        /// Change nothing.
        dry_run: bool = default(FLAG "false");
        /// The `next` of the page before.
        after: Option<&'a str> = optional(CURSOR "the beginning");
        /// Rows to look at, 1 to 500; `None` is 100.
        limit: Option<u32> = optional(OBJECTS "100");
    }
}

params! {
    /// The params of `keys.census`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    CensusCall<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// Fail with `conflict` while an engine could still write under an older key version.
        prove: bool = default(FLAG "false");
        /// The `next` of the page before.
        after: Option<&'a str> = optional(CURSOR "the beginning");
        /// Rows to look at, 1 to 10,000; `None` is 1,000.
        limit: Option<u32> = optional(ROWS "1000");
    }
}

params! {
    /// The params of `keys.rewrap`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    RewrapRowsCall<'a> {
        /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        app: &'a str = required(NAME);
        /// The collection; `None`: all of them.
        collection: Option<&'a str> = optional(NAME "all collections");
        /// The `next` of the page before.
        after: Option<&'a str> = optional(CURSOR "the beginning");
        /// Rows to seal again, 1 to 500; `None` is 100.
        limit: Option<u32> = optional(OBJECTS "100");
    }
}

params! {
    /// A change of one role.
    #[derive(Clone, Debug, PartialEq, Eq)]
    RoleCall<'a> {
        /// Its name. `[A-Za-z0-9._-]`, 1 to 64 bytes.
        role: &'a str = required(NAME);
        /// The change.
        ask: RoleOperation<'a> = operation;
    }
}

operations! {
    /// A change of a role.
    #[derive(Clone, Debug, PartialEq, Eq)]
    RoleOperation<'a> {
        /// It grants this and nothing else, whether it was there or not.
        Set = RolesSet {
            /// 1 to 64 grants, each as operators write them: `encrypt,decrypt apps=shop`.
            grants: Vec<&'a str> = required(GRANTS);
        },
        /// It is removed, if nobody has it.
        Delete = RolesDelete,
    }
}

params! {
    /// A change of the roles of one principal.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PrincipalCall<'a> {
        /// A DNS name, a `spiffe://` URI, or `cn:` and a common name. 1 to 2,048 bytes.
        principal: &'a str = required(PRINCIPAL);
        /// The change.
        ask: PrincipalOperation<'a> = operation;
    }
}

operations! {
    /// A change of a principal's roles.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PrincipalOperation<'a> {
        /// It gets one more.
        Grant = PrincipalsGrant {
            /// Which. It must be there.
            role: &'a str = required(NAME);
        },
        /// It loses one, or all.
        Revoke = PrincipalsRevoke {
            /// Which; `None`: all.
            role: Option<&'a str> = optional(NAME "every role");
        },
    }
}

params! {
    /// A question: may this principal do that?
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    CheckCall<'a> {
        /// The principal, as in [`PrincipalCall`].
        principal: &'a str = required(PRINCIPAL);
        /// The name of an operation, at most 64 bytes.
        operation: &'a str = required(OPERATION);
        /// On which app; `None`: on all of them.
        app: Option<&'a str> = optional(NAME "all apps");
        /// On which collection, for operations that are about one; `None`: on all of them.
        collection: Option<&'a str> = optional(NAME "all collections");
        /// The property of objects; `None`: absent from the request.
        property: Option<&'a str> = optional(NAME "not asked");
        /// With this reason.
        reason: Option<&'a str> = optional(REASON "none");
    }
}

operations! {
    /// A request on the store's root key and its slots.
    #[derive(Clone, Debug, PartialEq, Eq)]
    RootOperation<'a> {
        /// Describes them. Asks no provider, and works while the store is sealed.
        Status = RootStatus,
        /// Creates the root key.
        Init = RootInit {
            /// The providers that get a slot, 1 to 8; `None`: all that the engine has.
            providers: Option<Vec<&'a str>> = optional(PROVIDERS "all of the engine");
        },
        /// Replaces the root key, or continues to.
        Rotate = RootRotate {
            /// Removes the root key of an unfinished rotation instead.
            abandon: bool = default(FLAG "false");
        },
        /// Seals the store.
        Seal = RootSeal,
        /// Unseals the store.
        Unseal = RootUnseal,
        /// Adds a slot.
        AddSlot = KekAdd {
            /// Name of its provider.
            provider: &'a str = required(PROVIDER);
        },
        /// Removes a slot.
        RemoveSlot = KekRemove {
            /// Its number.
            slot: u32 = required(SLOT);
        },
        /// Unwraps every slot, and records which ones are right.
        Verify = KekVerify,
        /// Replaces every slot by a new copy.
        RotateSlots = KekRotate,
    }
}
