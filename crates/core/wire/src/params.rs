//! The parameters of every method: their types here and below, their names and rules in one table
//! per method.
//!
//! Clients fill and servers decode one struct per method, so the two sides cannot disagree on a
//! field. Defaults are part of the contract and filled in on decoding; an absent value and its
//! default mean the same.

mod control;
mod keys;
mod masking;
mod objects;
mod table;
mod tokens;

pub use control::{
    AppCall, AppOperation, CheckCall, CollectionCall, CollectionOperation, Control, Kind, Page,
    PrincipalCall, PrincipalOperation, PublicKeysCall, RoleCall, RoleOperation, RootOperation,
    RotateKind, Scope, Secret, TokenFormat,
};
pub use keys::{CensusCall, MigrateCall, RewrapRowsCall};
pub use masking::{MaskList, MaskRule, Masking, RuleFields, UnknownFields};
pub use objects::{
    AddObjects, AlterCollection, ObjectsCall, ObjectsOperation, PropertyDisclosure, PropertySpec,
    SubjectName, SubjectTarget, SubjectsCall, SubjectsOperation,
};
pub use table::Param;
pub use tokens::{
    Listing, Sweep, TokenLookupScope, TokenMap, TokenSearch, TokenizeOptions, TokensCall,
    TokensOperation,
};

/// A closed set of names, with the name of each and the way back.
macro_rules! names {
    ($(#[$doc:meta])* $kind:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// The cipher suite of envelopes, and of the key that seals and opens them. No default: a
    /// request that names none gets the app's.
    Suite {
        /// HPKE in PSK mode to a P-256 key pair. What new apps write.
        P256Psk = "p256-psk",
        /// HPKE in base mode to a P-256 key pair.
        P256 = "p256",
        /// HPKE in base mode to a secp256k1 key pair.
        Secp256k1 = "secp256k1",
        /// XAES-256-GCM under a symmetric key.
        Xaes = "xaes",
        /// HPKE to a key of ML-KEM-768 and P-256 together. Experimental.
        P256MlKem768 = "p256-mlkem768",
        /// HPKE in PSK mode to a secp256k1 key pair.
        Secp256k1Psk = "secp256k1-psk",
    }
}

names! {
    /// How far one ephemeral key reaches; of [`Suite::Xaes`], one derived key.
    #[derive(Default)]
    KeyScope {
        /// All fields of the call. The default.
        #[default]
        Request = "request",
        /// One field.
        Field = "field",
        /// All calls of the app's present epoch of that suite; only where its operator allows it,
        /// and not with [`Suite::Xaes`].
        Epoch = "epoch",
    }
}

names! {
    /// The format of envelopes.
    #[derive(Default)]
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
    #[derive(Default)]
    Encoding {
        /// As a string, `sw1:` and base64url. The default.
        #[default]
        Text = "text",
        /// As binary.
        Binary = "binary",
    }
}

names! {
    /// Where the encapsulation of envelopes of [`Suite::P256MlKem768`] is.
    #[derive(Default)]
    Encapsulation {
        /// In each envelope. The default.
        #[default]
        Inline = "inline",
        /// In the result, once for all fields of the call. A call that opens one of them gives it.
        Apart = "apart",
    }
}

names! {
    /// Effect of one bad field on its request.
    #[derive(Default)]
    OnError {
        /// The call fails. The default.
        #[default]
        Fail = "fail",
        /// The field stays as it came and is listed in the reply's `errors`.
        Report = "report",
    }
}

names! {
    /// Effect of a path of `select` that matches nothing in the document.
    #[derive(Default)]
    Unmatched {
        /// It is listed in the reply's `unmatched`. The default.
        #[default]
        Report = "report",
        /// The call fails.
        Fail = "fail",
    }
}

names! {
    /// Handling of a value that its format binds to no context, in a `rewrap` that names one.
    #[derive(Default)]
    Unbound {
        /// It does not open: whoever can write the document could have taken it from anywhere. The
        /// default.
        #[default]
        Refuse = "refuse",
        /// It opens, and is bound to the context from then on.
        Bind = "bind",
    }
}

names! {
    /// Handling of a value that was sealed outside: to a published key, which anybody can have.
    #[derive(Default)]
    Outside {
        /// It opens; `rewrap` seals it to the newest published key, so that it still tells where it
        /// is from. The default.
        #[default]
        Accept = "accept",
        /// It does not open. Nor does an Evervault value, which does not tell who sealed it.
        Refuse = "refuse",
        /// `rewrap` alone: it opens, and is sealed as a value of the engine's from then on.
        Adopt = "adopt",
    }
}

/// The params of a call on a document. `W` is what its method asks for besides: [`Writing`] of
/// envelopes, [`Reading`] of envelopes, [`TokenizeOptions`] of tokens, [`TokenLookupScope`] which
/// collection tokens are looked up, or [`Masking`] by which rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentCall<'a, W> {
    /// The app whose keys open and seal, or whose tokens they are. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// The document: one MessagePack value. Its content has not been checked, and its extent by the
    /// scan alone.
    pub payload: &'a [u8],
    /// Paths of what to work on; `None` for every leaf, envelope or token. 1 to 64 paths of 1 to
    /// 1,024 bytes.
    pub select: Option<Vec<&'a str>>,
    /// Effect of a path that matches nothing.
    pub unmatched: Unmatched,
    /// Encapsulations of envelopes to open that have them apart: at most 32.
    pub encapsulations: Vec<&'a str>,
    /// Bytes that envelopes and tokens are bound to, 0 to 4,096; absent and empty are the same.
    pub context: &'a [u8],
    /// Effect of one bad field.
    pub on_error: OnError,
    /// Stop after this long, in milliseconds, 1 to 3,600,000.
    pub deadline_ms: Option<u32>,
    /// Refuse with `conflict` if the server's generation is older.
    pub min_generation: Option<u64>,
    /// Why the call is made, for who looks at it later: 1 to 256 bytes without control characters.
    /// A role may demand it.
    pub reason: Option<&'a str>,
    /// The caller's span, as a W3C `traceparent` of at most 256 bytes: an engine that keeps traces
    /// puts its own beneath. One that is not valid is as good as none.
    pub traceparent: Option<&'a str>,
    /// Parameters of the method's own.
    pub writing: W,
}

/// How envelopes are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing<'a> {
    /// Which of the app's keys seals; `None` is the app's. Those that open are named by the
    /// envelopes.
    pub suite: Option<Suite>,
    /// How far one ephemeral key reaches.
    pub key_scope: KeyScope,
    /// The format; `None` is the app's.
    pub format: Option<Format>,
    /// The data role that Evervault strings carry. 1 to 20 of `a-z 0-9 -`.
    pub role: Option<&'a str>,
    /// String or binary envelopes.
    pub encoding: Encoding,
    /// Where the encapsulation is, if the suite has one.
    pub encapsulation: Encapsulation,
    /// Handling of values without a context, in a `rewrap` that names one.
    pub unbound: Unbound,
    /// Handling of values that were sealed outside, in a `rewrap`.
    pub outside: Outside,
}

/// Which envelopes are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Handling of values that were sealed outside: [`Outside::Accept`] or [`Outside::Refuse`].
    pub outside: Outside,
}

/// The params of `encrypt`.
pub type Encrypt<'a> = DocumentCall<'a, Writing<'a>>;
/// The params of `decrypt`.
pub type Decrypt<'a> = DocumentCall<'a, Reading>;
/// The params of `rewrap`.
pub type Rewrap<'a> = DocumentCall<'a, Writing<'a>>;
/// The params of `tokenize`.
pub type Tokenize<'a> = DocumentCall<'a, TokenizeOptions<'a>>;
/// The params of `detokenize`.
pub type Detokenize<'a> = DocumentCall<'a, TokenLookupScope<'a>>;
/// The params of `mask`. It takes neither `select` nor `context`: its rules say which fields.
pub type Mask<'a> = DocumentCall<'a, Masking<'a>>;

impl<'a, W: Default> DocumentCall<'a, W> {
    /// A call on all of `payload`, which is one MessagePack value, with the defaults.
    pub fn new(app: &'a str, payload: &'a [u8]) -> Self {
        Self {
            app,
            payload,
            select: None,
            encapsulations: Vec::new(),
            unmatched: Unmatched::default(),
            context: &[],
            on_error: OnError::default(),
            deadline_ms: None,
            min_generation: None,
            reason: None,
            traceparent: None,
            writing: W::default(),
        }
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
