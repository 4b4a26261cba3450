//! The parameters of every method: their types here, their names and rules in one table per method.
//!
//! The same struct is what a client fills and what a server decodes, so the two sides cannot disagree on a field.
//! Defaults are part of the contract and filled in on decoding; an absent value and its default are the same call.

use crate::limits::{
    APP_BYTES_MAX, CONTEXT_BYTES_MAX, DEADLINE_MS_MAX, ROLE_BYTES_MAX, SELECT_PATH_BYTES_MAX, SELECT_PATHS_MAX,
};
use crate::method::Method;

/// A closed set of names, with the name of each and the way back.
macro_rules! names {
    ($(#[$doc:meta])* $kind:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        pub enum $kind { $($(#[$variant_doc])* $variant,)+ }

        impl $kind {
            /// Every value, the default first if there is one.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value of that exact name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }
    };
}
pub(crate) use names;

names! {
    /// The curve of the key agreement.
    Curve {
        /// P-256, secp256r1. The default.
        #[default]
        R1 = "r1",
        /// secp256k1.
        K1 = "k1",
    }
}

names! {
    /// How far one ephemeral key reaches.
    KeyScope {
        /// All fields of the call. The default.
        #[default]
        Request = "request",
        /// One field.
        Field = "field",
        /// All calls of the app's present epoch on that curve; only where its operator allows it.
        Epoch = "epoch",
    }
}

names! {
    /// The format of envelopes.
    Format {
        /// Sealwire's own, `proto/envelope.md`.
        #[default]
        Native = "native",
        /// Evervault strings with metadata, `QkTC` and `S0lS`; see `proto/evervault.md`.
        Evervault = "evervault",
        /// Evervault strings without metadata, `Tk9D` and `RFVC`.
        EvervaultBare = "evervault-bare",
    }
}

names! {
    /// How an envelope is written.
    Encoding {
        /// As a string, `sw1:` and base64url. The default.
        #[default]
        Text = "text",
        /// As binary.
        Binary = "binary",
    }
}

names! {
    /// What one bad field does to its call.
    OnError {
        /// The call fails. The default.
        #[default]
        Fail = "fail",
        /// The field stays as it came and is listed in the reply's `errors`.
        Report = "report",
    }
}

names! {
    /// What becomes of a value that its format binds to no context, in a `rewrap` that names one.
    Unbound {
        /// It does not open: whoever can write the document could have taken it from anywhere. The default.
        #[default]
        Refuse = "refuse",
        /// It opens, and is bound to the context from then on.
        Bind = "bind",
    }
}

/// The params of a call on a document. `W` is what it says of what it writes: [`Writing`], or `()` where it only reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentCall<'a, W> {
    /// The app whose keys open and seal. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// The document: one MessagePack value. Its content has not been checked, and its extent by the scan alone.
    pub payload: &'a [u8],
    /// Paths of what to work on; `None` for every leaf or envelope. 1 to 64 paths of 1 to 1,024 bytes.
    pub select: Option<Vec<&'a str>>,
    /// Bytes the envelopes are bound to, 0 to 4,096; absent and empty are the same.
    pub context: &'a [u8],
    /// What one bad field does.
    pub on_error: OnError,
    /// Stop after this long, in milliseconds, 1 to 3,600,000.
    pub deadline_ms: Option<u32>,
    /// Refuse with `conflict` if the server's generation is older.
    pub min_generation: Option<u64>,
    /// How to write envelopes.
    pub writing: W,
}

/// How envelopes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing<'a> {
    /// Which of the app's keys seals. Those that open are named by the envelopes.
    pub curve: Curve,
    /// How far one ephemeral key reaches.
    pub key_scope: KeyScope,
    /// The format; `None` is the app's.
    pub format: Option<Format>,
    /// The data role that Evervault strings carry. 1 to 20 of `a-z 0-9 -`.
    pub role: Option<&'a str>,
    /// String or binary envelopes.
    pub encoding: Encoding,
    /// Of a `rewrap` with a context: whether it takes in what came without one.
    pub unbound: Unbound,
}

/// The params of `encrypt`.
pub type Encrypt<'a> = DocumentCall<'a, Writing<'a>>;
/// The params of `decrypt`.
pub type Decrypt<'a> = DocumentCall<'a, ()>;
/// The params of `rewrap`.
pub type Rewrap<'a> = DocumentCall<'a, Writing<'a>>;

impl<'a, W: Default> DocumentCall<'a, W> {
    /// A call on all of `payload`, which is one MessagePack value, with the defaults.
    pub fn new(app: &'a str, payload: &'a [u8]) -> Self {
        Self {
            app,
            payload,
            select: None,
            context: &[],
            on_error: OnError::default(),
            deadline_ms: None,
            min_generation: None,
            writing: W::default(),
        }
    }
}

impl<'a, W> DocumentCall<'a, W> {
    /// The same call, of a method that writes otherwise.
    pub(crate) fn writing<V>(self, writing: V) -> DocumentCall<'a, V> {
        let Self { app, payload, select, context, on_error, deadline_ms, min_generation, writing: _ } = self;
        DocumentCall { app, payload, select, context, on_error, deadline_ms, min_generation, writing }
    }
}

/// An envelope in either encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Envelope<'a> {
    /// As a string.
    Text(&'a str),
    /// As binary.
    Binary(&'a [u8]),
}

/// The params of `inspect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect<'a> {
    /// The envelope to describe.
    pub envelope: Envelope<'a>,
}

/// One row of a method's parameter table, as `proto/README.md` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// The key in the params map.
    pub name: &'static str,
    /// The MessagePack types it may have.
    pub types: &'static str,
    /// What an absent key means; `None` if it may not be absent.
    pub default: Option<&'static str>,
    /// What holds beyond the type; "must be" goes before it.
    pub rule: &'static str,
}

const fn param(name: &'static str, types: &'static str, default: Option<&'static str>, rule: &'static str) -> Param {
    Param { name, types, default, rule }
}

const APP: Param = param("app", "string", None, "1 to 64 bytes of A-Z a-z 0-9 . _ -");
const PAYLOAD: Param = param("payload", "any value", None, "one MessagePack value");
const SELECT: Param = param("select", "array of strings", Some("every leaf"), "1 to 64 paths of 1 to 1024 bytes");
const SELECT_ENVELOPES: Param =
    param("select", "array of strings", Some("every envelope"), "1 to 64 paths of 1 to 1024 bytes");
const CURVE: Param = param("curve", "string", Some("\"r1\""), "\"r1\" or \"k1\"");
const KEY_SCOPE: Param = param("key_scope", "string", Some("\"request\""), "\"request\" or \"field\" or \"epoch\"");
const FORMAT: Param = param("format", "string", Some("the app's"), "\"native\" or \"evervault\" or \"evervault-bare\"");
const ENCODING: Param = param("encoding", "string", Some("\"text\""), "\"text\" or \"binary\"");
const CONTEXT: Param = param("context", "string or binary", Some("empty"), "at most 4096 bytes");
const ON_ERROR: Param = param("on_error", "string", Some("\"fail\""), "\"fail\" or \"report\"");
const DEADLINE_MS: Param = param("deadline_ms", "integer", Some("the server's"), "1 to 3600000");
const MIN_GENERATION: Param = param("min_generation", "integer", Some("0"), "0 or more");

const _: () = assert!(
    APP_BYTES_MAX == 64
        && SELECT_PATHS_MAX == 64
        && SELECT_PATH_BYTES_MAX == 1_024
        && CONTEXT_BYTES_MAX == 4_096
        && DEADLINE_MS_MAX == 3_600_000
        && ROLE_BYTES_MAX == 20,
    "the rules above quote these numbers"
);

const ENCRYPT: &[Param] = &[
    APP,
    PAYLOAD,
    SELECT,
    CURVE,
    KEY_SCOPE,
    FORMAT,
    param("role", "string", Some("none"), "1 to 20 bytes of a-z 0-9 -"),
    ENCODING,
    CONTEXT,
    ON_ERROR,
    DEADLINE_MS,
    MIN_GENERATION,
];

const DECRYPT: &[Param] = &[APP, PAYLOAD, SELECT_ENVELOPES, CONTEXT, ON_ERROR, DEADLINE_MS, MIN_GENERATION];

const REWRAP: &[Param] = &[
    APP,
    PAYLOAD,
    SELECT_ENVELOPES,
    CURVE,
    KEY_SCOPE,
    FORMAT,
    ENCODING,
    CONTEXT,
    param("unbound", "string", Some("\"refuse\""), "\"refuse\" or \"bind\""),
    ON_ERROR,
    DEADLINE_MS,
    MIN_GENERATION,
];

const INSPECT: &[Param] = &[param("envelope", "string or binary", None, "one envelope in either encoding")];

impl Method {
    /// The keys its params map may have.
    pub const fn params(self) -> &'static [Param] {
        match self {
            Self::Encrypt => ENCRYPT,
            Self::Decrypt => DECRYPT,
            Self::Rewrap => REWRAP,
            Self::Inspect => INSPECT,
            Self::Info | Self::Health => &[],
        }
    }
}
