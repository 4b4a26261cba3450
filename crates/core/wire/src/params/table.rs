//! One table of keys per method, as `proto/README.md` prints them.

use crate::limits::{
    APP_BYTES_MAX, CLAUSES_MAX, CONTEXT_BYTES_MAX, CURSOR_BYTES_MAX, DEADLINE_MS_MAX,
    DELAY_S_DEFAULT, DELAY_S_MAX, ENCAPSULATION_BYTES_MAX, ENCAPSULATIONS_MAX, EPOCH_MS_MAX,
    EXPIRES_S_MAX, GRANT_BYTES_MAX, GRANTS_MAX, IDEMPOTENCY_KEY_BYTES_MAX, LONG_CURSOR_BYTES_MAX,
    MASK_BYTES_MAX, MASK_ENTRIES_MAX, MASK_ENTRY_BYTES_MAX, MASK_LISTS_BYTES_MAX, MASK_LISTS_MAX,
    MASK_RULES_MAX, OBJECTS_MAX, PRINCIPAL_BYTES_MAX, PRIVATE_KEY_BYTES_MAX, PROPERTIES_MAX,
    REASON_BYTES_MAX, ROLE_BYTES_MAX, SELECT_PATH_BYTES_MAX, SELECT_PATHS_MAX, SUBJECT_BYTES_MAX,
    SWEEP_ROWS_MAX, TAG_BYTES_MAX, TAGS_MAX, TOKEN_BYTES_MAX, TOKENS_MAX, TRACEPARENT_BYTES_MAX,
    VALUE_BYTES_MAX,
};
use crate::method::Method;

/// One row of a method's parameter table, as `proto/README.md` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// The key in the params map.
    pub name: &'static str,
    /// The MessagePack types it may have.
    pub types: &'static str,
    /// The meaning of an absent key; `None` if the key is required.
    pub default: Option<&'static str>,
    /// The rule beyond the type, which follows the words "must be".
    pub rule: &'static str,
}

const fn param(
    name: &'static str,
    types: &'static str,
    default: Option<&'static str>,
    rule: &'static str,
) -> Param {
    Param {
        name,
        types,
        default,
        rule,
    }
}

const NAME: &str = "1 to 64 bytes of A-Z a-z 0-9 . _ -";
const EXPIRY: &str = "1 to 3155760000";

const APP: Param = param("app", "string", None, NAME);
const COLLECTION: Param = param("collection", "string", None, NAME);
const SUBJECT: Param = param(
    "subject",
    "string",
    None,
    "1 to 256 bytes, with by_id 32 hexadecimal digits",
);
const BY_ID: Param = param("by_id", "boolean", Some("false"), "true or false");
const SUITE: Param = param("suite", "string", Some("the app's"), SUITES);
const SUITES: &str = "\"p256-psk\" or \"p256\" or \"secp256k1\" or \"xaes\" or \"p256-mlkem768\" or \"secp256k1-psk\"";
const KEY_SCOPE: Param = param(
    "key_scope",
    "string",
    Some("\"request\""),
    "\"request\" or \"field\" or \"epoch\"",
);
const FORMAT: Param = param(
    "format",
    "string",
    Some("the app's"),
    "\"native\" or \"evervault\" or \"evervault-bare\"",
);
const ENCODING: Param = param(
    "encoding",
    "string",
    Some("\"text\""),
    "\"text\" or \"binary\"",
);
const PAYLOAD: Param = param("payload", "any value", None, "one MessagePack value");
const ON_ERROR: Param = param(
    "on_error",
    "string",
    Some("\"fail\""),
    "\"fail\" or \"report\"",
);
const UNMATCHED: Param = param(
    "unmatched",
    "string",
    Some("\"report\""),
    "\"report\" or \"fail\"",
);
const CONTEXT: Param = param(
    "context",
    "string or binary",
    Some("empty"),
    "at most 4096 bytes, and must not begin with sealwire/",
);
const DEADLINE_MS: Param = param(
    "deadline_ms",
    "integer",
    Some("the server's"),
    "1 to 3600000",
);
const MIN_GENERATION: Param = param("min_generation", "integer", Some("0"), "0 or more");
const REASON: Param = param(
    "reason",
    "string",
    Some("none"),
    "1 to 256 bytes without control characters",
);
const TRACEPARENT: Param = param("traceparent", "string", Some("none"), "at most 256 bytes");
const ROLE_NAME: Param = param("role", "string", None, NAME);
const PRINCIPAL: Param = param("principal", "string", None, "1 to 2048 bytes");
const LONG_AFTER: Param = param(
    "after",
    "string",
    Some("the beginning"),
    "the next of an answer, at most 2112 bytes",
);
const TOKENS: Param = param(
    "tokens",
    "array of strings",
    None,
    "1 to 1000 tokens of 1 to 1024 bytes",
);
const EXPIRES_OR_NEVER: Param = param(
    "expires_s",
    "integer or nil",
    None,
    "0 to 3155760000, or nil",
);
const DRY_RUN: Param = param("dry_run", "boolean", Some("false"), "true or false");
const AFTER: Param = param(
    "after",
    "string",
    Some("the beginning"),
    "the next of an answer, at most 128 bytes",
);
const LIMIT: Param = param("limit", "integer", Some("100"), "1 to 1000");
const ROWS: Param = param("limit", "integer", Some("1000"), "1 to 10000");
const KEY: Param = param(
    "key",
    "string",
    Some("the whole app"),
    "a key's id, at most 64 bytes",
);
const FIRST: Param = param("first", "integer", Some("6"), "0 to 6");
const LAST: Param = param("last", "integer", Some("4"), "0 to 4");

const _: () = assert!(
    APP_BYTES_MAX == 64
        && SELECT_PATHS_MAX == 64
        && ENCAPSULATIONS_MAX == 32
        && ENCAPSULATION_BYTES_MAX == 1_551
        && SELECT_PATH_BYTES_MAX == 1_024
        && CONTEXT_BYTES_MAX == 4_096
        && DEADLINE_MS_MAX == 3_600_000
        && ROLE_BYTES_MAX == 20
        && TAGS_MAX == 16
        && TAG_BYTES_MAX == 64
        && EXPIRES_S_MAX == 3_155_760_000
        && IDEMPOTENCY_KEY_BYTES_MAX == 64
        && TOKENS_MAX == 1_000
        && TOKEN_BYTES_MAX == 1_024
        && VALUE_BYTES_MAX == 65_536
        && CURSOR_BYTES_MAX == 128
        && SWEEP_ROWS_MAX == 10_000
        && PRIVATE_KEY_BYTES_MAX == 65_536
        && DELAY_S_MAX == 31_536_000
        && DELAY_S_DEFAULT == 604_800
        && EPOCH_MS_MAX == 15_000
        && REASON_BYTES_MAX == 256
        && TRACEPARENT_BYTES_MAX == 256
        && PRINCIPAL_BYTES_MAX == 2_048
        && LONG_CURSOR_BYTES_MAX == 2_112
        && MASK_RULES_MAX == 256
        && MASK_BYTES_MAX == 1_024
        && MASK_LISTS_MAX == 16
        && MASK_ENTRIES_MAX == 10_000
        && MASK_ENTRY_BYTES_MAX == 256
        && MASK_LISTS_BYTES_MAX == 262_144
        && GRANTS_MAX == 64
        && OBJECTS_MAX == 500
        && SUBJECT_BYTES_MAX == 256
        && CLAUSES_MAX == 8
        && PROPERTIES_MAX == 64
        && GRANT_BYTES_MAX == 65_536,
    "the rules here quote these numbers"
);

/// A method on a document: what all of them take, around its own keys.
const fn document<const N: usize>(every: &'static str, own: &[Param]) -> [Param; N] {
    let select = param(
        "select",
        "array of strings",
        Some(every),
        "1 to 64 paths of 1 to 1024 bytes",
    );
    joined([
        &[APP, PAYLOAD, select, UNMATCHED],
        own,
        &[
            CONTEXT,
            ON_ERROR,
            DEADLINE_MS,
            MIN_GENERATION,
            REASON,
            TRACEPARENT,
        ],
    ])
}

/// A method on the tokens or objects of a collection.
const fn in_collection<const N: usize>(own: &[Param]) -> [Param; N] {
    joined([
        &[APP, COLLECTION],
        own,
        &[DEADLINE_MS, MIN_GENERATION, REASON, TRACEPARENT],
    ])
}

/// A method on a data subject.
const fn of_subject<const N: usize>(own: &[Param]) -> [Param; N] {
    joined([
        &[APP, SUBJECT, BY_ID],
        own,
        &[DEADLINE_MS, MIN_GENERATION, REASON, TRACEPARENT],
    ])
}

const fn joined<const N: usize>(parts: [&[Param]; 3]) -> [Param; N] {
    let mut table = [APP; N];
    let (mut at, mut part) = (0, 0);
    while part < parts.len() {
        let mut row = 0;
        while row < parts[part].len() {
            table[at] = parts[part][row];
            (at, row) = (at + 1, row + 1);
        }
        part += 1;
    }
    assert!(at == N, "a table of another length");
    table
}

const ENCAPSULATION: Param = param(
    "encapsulation",
    "string",
    Some("\"inline\""),
    "\"inline\" or \"apart\"",
);
const ENCAPSULATIONS: Param = param(
    "encapsulations",
    "array of strings",
    Some("none"),
    "1 to 32 texts of 1 to 1551 bytes",
);
const ENCRYPT: [Param; 16] = document(
    "every leaf",
    &[
        SUITE,
        KEY_SCOPE,
        FORMAT,
        param("role", "string", Some("none"), "1 to 20 bytes of a-z 0-9 -"),
        ENCODING,
        ENCAPSULATION,
    ],
);
const DECRYPT: [Param; 12] = document(
    "every envelope",
    &[
        ENCAPSULATIONS,
        param(
            "outside",
            "string",
            Some("\"accept\""),
            "\"accept\" or \"refuse\"",
        ),
    ],
);
const REWRAP: [Param; 18] = document(
    "every envelope",
    &[
        SUITE,
        KEY_SCOPE,
        FORMAT,
        ENCODING,
        ENCAPSULATION,
        ENCAPSULATIONS,
        param(
            "unbound",
            "string",
            Some("\"refuse\""),
            "\"refuse\" or \"bind\"",
        ),
        param(
            "outside",
            "string",
            Some("\"accept\""),
            "\"accept\" or \"refuse\" or \"adopt\"",
        ),
    ],
);
/// The data subject of a document or a value.
const OF_SUBJECT: Param = param("subject", "string", Some("none"), "1 to 256 bytes");
const TOKENIZE: [Param; 15] = document(
    "every leaf",
    &[
        COLLECTION,
        param(
            "tags",
            "array of strings",
            Some("none"),
            "1 to 16 tags of 1 to 64 bytes of visible ASCII",
        ),
        param("expires_s", "integer", Some("the collection's"), EXPIRY),
        param(
            "idempotency_key",
            "string or binary",
            Some("none"),
            "1 to 64 bytes",
        ),
        OF_SUBJECT,
    ],
);
const DETOKENIZE: [Param; 11] = document("every token", &[COLLECTION]);
const MASK: [Param; 10] = joined([
    &[APP, PAYLOAD],
    &[
        param(
            "rules",
            "array of maps",
            None,
            "1 to 256 rules, each a mask and one of path, column, kind, of 1 to 1024 bytes",
        ),
        param(
            "unknown",
            "string",
            Some("\"refuse\""),
            "\"refuse\" or \"keep\"",
        ),
        param(
            "lists",
            "map of arrays of strings",
            Some("none"),
            "at most 16 lists of 10000 texts of 1 to 256 bytes, 262144 bytes in all",
        ),
    ],
    &[ON_ERROR, DEADLINE_MS, MIN_GENERATION, REASON, TRACEPARENT],
]);
const INSPECT: [Param; 1] = [param(
    "envelope",
    "string or binary",
    None,
    "one envelope in either encoding",
)];
const TOKENS_NAMED: [Param; 7] = in_collection(&[TOKENS]);
const TOKENS_FIND: [Param; 9] = in_collection(&[
    param(
        "value",
        "any value",
        None,
        "one MessagePack value of at most 65536 bytes",
    ),
    CONTEXT,
    OF_SUBJECT,
]);
const TOKENS_LIST: [Param; 11] = in_collection(&[
    param(
        "tag",
        "string",
        Some("any"),
        "1 to 64 bytes of visible ASCII",
    ),
    param(
        "expired_before",
        "integer",
        Some("expired or not"),
        "0 or more",
    ),
    param("archived", "boolean", Some("false"), "true or false"),
    AFTER,
    LIMIT,
]);
const TOKENS_EXPIRE: [Param; 8] = in_collection(&[TOKENS, EXPIRES_OR_NEVER]);
const TOKENS_ARCHIVE: [Param; 10] = in_collection(&[
    param("expired_s", "integer", Some("0"), "0 or more"),
    DRY_RUN,
    AFTER,
    ROWS,
]);
const TOKENS_PRUNE: [Param; 10] = in_collection(&[
    param("archived_s", "integer", Some("2592000"), "0 or more"),
    DRY_RUN,
    AFTER,
    ROWS,
]);
const IDS: Param = param("ids", "array of strings", None, "1 to 500 ids of objects");
const PROPERTY_NAMES: &str = "1 to 64 names of properties";
const DISCLOSED: Param = param(
    "properties",
    "array of strings",
    Some("those that the role grants"),
    PROPERTY_NAMES,
);
const MASKED: Param = param("masked", "boolean", Some("false"), "true or false");
const OBJECTS_LIMIT: Param = param("limit", "integer", Some("100"), "1 to 500");
const OBJECTS_ADD: [Param; 11] = in_collection(&[
    param(
        "payload",
        "array of maps",
        None,
        "1 to 500 maps of property names to values",
    ),
    param(
        "tags",
        "array of strings",
        Some("none"),
        "1 to 16 tags of 1 to 64 bytes of visible ASCII",
    ),
    param("expires_s", "integer", Some("the collection's"), EXPIRY),
    param(
        "idempotency_key",
        "string or binary",
        Some("none"),
        "1 to 64 bytes",
    ),
    param(
        "subjects",
        "array of strings",
        Some("none"),
        "1 name of 1 to 256 bytes, or as many as objects",
    ),
]);
const SUBJECTS_NAMED: [Param; 7] = of_subject(&[]);
const SUBJECTS_ERASE: [Param; 9] = of_subject(&[
    param("version", "integer", Some("any version"), "0 or more"),
    param("created", "integer", Some("any time"), "0 or more"),
]);
const SUBJECTS_EXPORT: [Param; 9] = of_subject(&[AFTER, OBJECTS_LIMIT]);
const OBJECTS_GET: [Param; 9] = in_collection(&[IDS, DISCLOSED, MASKED]);
const OBJECTS_UPDATE: [Param; 7] = in_collection(&[param(
    "payload",
    "array of maps",
    None,
    "1 to 500 maps of id, set, and optionally if_version",
)]);
const OBJECTS_DELETE: [Param; 8] = in_collection(&[
    IDS,
    param(
        "versions",
        "array of integers",
        Some("any"),
        "as many as ids, each 1 or more",
    ),
]);
const OBJECTS_QUERY: [Param; 11] = in_collection(&[
    param(
        "payload",
        "array of maps",
        None,
        "1 to 8 maps of property and one of eq, in, prefix",
    ),
    DISCLOSED,
    MASKED,
    AFTER,
    OBJECTS_LIMIT,
]);
const OBJECTS_LIST: [Param; 13] = in_collection(&[
    param(
        "tag",
        "string",
        Some("any"),
        "1 to 64 bytes of visible ASCII",
    ),
    param(
        "expired_before",
        "integer",
        Some("expired or not"),
        "0 or more",
    ),
    param("archived", "boolean", Some("false"), "true or false"),
    DISCLOSED,
    MASKED,
    AFTER,
    OBJECTS_LIMIT,
]);
const OBJECTS_EXPIRE: [Param; 8] = in_collection(&[IDS, EXPIRES_OR_NEVER]);
const PAGE: [Param; 2] = [AFTER, LIMIT];
const APP_ONLY: [Param; 1] = [APP];
const APP_KEY: [Param; 2] = [APP, KEY];
const APPS_ROTATE: [Param; 2] = [
    APP,
    param(
        "kind",
        "string",
        None,
        "\"p256-psk\" or \"p256\" or \"secp256k1\" or \"xaes\" or \"p256-mlkem768\" or \"secp256k1-psk\" or \"p256-outside\" or \"p256-mlkem768-outside\" or \"token\"",
    ),
];
const APPS_PUBLIC_KEYS: [Param; 3] = [APP, MIN_GENERATION, REASON];
const APPS_IMPORT: [Param; 4] = [
    APP,
    param("suite", "string", None, "\"p256\" or \"secp256k1\""),
    param("private_key", "string", None, "at most 65536 bytes"),
    param("seals", "boolean", Some("false"), "true or false"),
];
const APPS_DELETE: [Param; 3] = [
    APP,
    KEY,
    param("delay_s", "integer", Some("604800"), "0 to 31536000"),
];
const APPS_SET: [Param; 5] = [
    APP,
    param(
        "format",
        "string",
        Some("unchanged"),
        "\"native\" or \"evervault\"",
    ),
    param("epoch_ms", "integer", Some("unchanged"), "0 to 15000"),
    param("write_suite", "string", Some("unchanged"), SUITES),
    param(
        "read_suites",
        "array of strings",
        Some("unchanged"),
        "1 to 6 of \"p256-psk\" or \"p256\" or \"secp256k1\" or \"xaes\" or \"p256-mlkem768\" or \"secp256k1-psk\"",
    ),
];
const COLLECTIONS_LIST: [Param; 3] = [APP, AFTER, LIMIT];
const COLLECTIONS_CREATE: [Param; 11] = [
    APP,
    COLLECTION,
    param(
        "kind",
        "string",
        None,
        "\"random\" or \"deterministic\" or \"one_way\" or \"objects\"",
    ),
    param(
        "format",
        "string",
        Some("\"opaque\""),
        "\"opaque\" or \"uuid\" or \"digits\" or \"card\" or \"email\"",
    ),
    FIRST,
    LAST,
    param(
        "scope",
        "string",
        Some("\"collection\""),
        "\"collection\" or \"context\"",
    ),
    param(
        "properties",
        "array of maps",
        Some("none"),
        "1 to 64 properties",
    ),
    param("suite", "string", Some("\"xaes\""), SUITES),
    param("expires_s", "integer", Some("never"), EXPIRY),
    param(
        "retention_s",
        "integer",
        Some("for ever"),
        "0 to 3155760000",
    ),
];
const COLLECTIONS_SET: [Param; 4] = [
    APP,
    COLLECTION,
    param(
        "expires_s",
        "integer or nil",
        Some("as it is"),
        "1 to 3155760000, or nil",
    ),
    param(
        "retention_s",
        "integer or nil",
        Some("as it is"),
        "0 to 3155760000, or nil",
    ),
];
const COLLECTIONS_ALTER: [Param; 8] = [
    APP,
    COLLECTION,
    param("add", "array of maps", Some("none"), "1 to 64 properties"),
    param("drop", "array of strings", Some("none"), PROPERTY_NAMES),
    param(
        "allow_duplicates",
        "array of strings",
        Some("none"),
        PROPERTY_NAMES,
    ),
    param(
        "allow_null",
        "array of strings",
        Some("none"),
        PROPERTY_NAMES,
    ),
    param(
        "drop_index",
        "array of strings",
        Some("none"),
        PROPERTY_NAMES,
    ),
    param("suite", "string", Some("unchanged"), SUITES),
];
const KEYS_CENSUS: [Param; 4] = [
    APP,
    param("prove", "boolean", Some("false"), "true or false"),
    AFTER,
    ROWS,
];
const KEYS_REWRAP: [Param; 4] = [
    APP,
    param("collection", "string", Some("all collections"), NAME),
    AFTER,
    OBJECTS_LIMIT,
];
const COLLECTIONS_MIGRATE: [Param; 6] = [
    APP,
    COLLECTION,
    param(
        "accept_unauthenticated",
        "boolean",
        Some("false"),
        "true or false",
    ),
    DRY_RUN,
    AFTER,
    OBJECTS_LIMIT,
];
const COLLECTIONS_DELETE: [Param; 2] = [APP, COLLECTION];
const LONG_PAGE: [Param; 2] = [LONG_AFTER, LIMIT];
const ROLES_SET: [Param; 2] = [
    ROLE_NAME,
    param(
        "grants",
        "array of strings",
        None,
        "1 to 64 grants of 1 to 65536 bytes",
    ),
];
const ROLES_DELETE: [Param; 1] = [ROLE_NAME];
const PRINCIPALS_GRANT: [Param; 2] = [PRINCIPAL, ROLE_NAME];
const PRINCIPALS_REVOKE: [Param; 2] =
    [PRINCIPAL, param("role", "string", Some("every role"), NAME)];
const PRINCIPALS_CHECK: [Param; 6] = [
    PRINCIPAL,
    param(
        "operation",
        "string",
        None,
        "the name of an operation, at most 64 bytes",
    ),
    param("app", "string", Some("all apps"), NAME),
    param("collection", "string", Some("all collections"), NAME),
    param("property", "string", Some("not asked"), NAME),
    REASON,
];

const ROOT_INIT: [Param; 1] = [param(
    "providers",
    "array of strings",
    Some("all of the engine"),
    "1 to 8 names of 1 to 64 bytes",
)];
const ROOT_ROTATE: [Param; 1] = [param("abandon", "boolean", Some("false"), "true or false")];
const KEK_ADD: [Param; 1] = [param("provider", "string", None, "at most 64 bytes")];
const KEK_REMOVE: [Param; 1] = [param("slot", "integer", None, "1 to 4294967295")];

impl Method {
    /// The keys its params map may have.
    pub const fn params(self) -> &'static [Param] {
        match self {
            Self::Encrypt => &ENCRYPT,
            Self::Decrypt => &DECRYPT,
            Self::Rewrap => &REWRAP,
            Self::Inspect => &INSPECT,
            Self::Tokenize => &TOKENIZE,
            Self::Detokenize => &DETOKENIZE,
            Self::Mask => &MASK,
            Self::TokensGet | Self::TokensDelete => &TOKENS_NAMED,
            Self::TokensFind => &TOKENS_FIND,
            Self::TokensList => &TOKENS_LIST,
            Self::TokensExpire => &TOKENS_EXPIRE,
            Self::TokensArchive => &TOKENS_ARCHIVE,
            Self::TokensPrune => &TOKENS_PRUNE,
            Self::ObjectsAdd => &OBJECTS_ADD,
            Self::ObjectsGet => &OBJECTS_GET,
            Self::ObjectsUpdate => &OBJECTS_UPDATE,
            Self::ObjectsDelete => &OBJECTS_DELETE,
            Self::ObjectsQuery => &OBJECTS_QUERY,
            Self::ObjectsList => &OBJECTS_LIST,
            Self::ObjectsExpire => &OBJECTS_EXPIRE,
            Self::ObjectsArchive => &TOKENS_ARCHIVE,
            Self::ObjectsPrune => &TOKENS_PRUNE,
            Self::SubjectsFind => &SUBJECTS_NAMED,
            Self::SubjectsErase => &SUBJECTS_ERASE,
            Self::SubjectsExport => &SUBJECTS_EXPORT,
            Self::AppsList | Self::RolesList => &PAGE,
            Self::AppsExport | Self::PrincipalsList => &LONG_PAGE,
            Self::RolesSet => &ROLES_SET,
            Self::RolesDelete => &ROLES_DELETE,
            Self::PrincipalsGrant => &PRINCIPALS_GRANT,
            Self::PrincipalsRevoke => &PRINCIPALS_REVOKE,
            Self::PrincipalsCheck => &PRINCIPALS_CHECK,
            Self::AppsCreate => &APP_ONLY,
            Self::AppsRotate => &APPS_ROTATE,
            Self::AppsPublicKeys => &APPS_PUBLIC_KEYS,
            Self::AppsImport => &APPS_IMPORT,
            Self::AppsDisable | Self::AppsEnable | Self::AppsRestore => &APP_KEY,
            Self::AppsDelete => &APPS_DELETE,
            Self::AppsSet => &APPS_SET,
            Self::CollectionsList => &COLLECTIONS_LIST,
            Self::CollectionsCreate => &COLLECTIONS_CREATE,
            Self::CollectionsSet => &COLLECTIONS_SET,
            Self::CollectionsAlter => &COLLECTIONS_ALTER,
            Self::CollectionsMigrate => &COLLECTIONS_MIGRATE,
            Self::CollectionsDelete => &COLLECTIONS_DELETE,
            Self::KeysCensus => &KEYS_CENSUS,
            Self::KeysRewrap => &KEYS_REWRAP,
            Self::RootInit => &ROOT_INIT,
            Self::RootRotate => &ROOT_ROTATE,
            Self::KekAdd => &KEK_ADD,
            Self::KekRemove => &KEK_REMOVE,
            Self::RootStatus
            | Self::RootSeal
            | Self::RootUnseal
            | Self::KekVerify
            | Self::KekRotate => &[],
            Self::InstancesList | Self::Info | Self::Health => &[],
        }
    }
}
