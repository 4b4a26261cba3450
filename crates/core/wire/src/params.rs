//! The parameters of every method, each declared once with its type, its rule and its default: the
//! contract's tables in code. [`declare`] says how to read a declaration, [`rule`] has the rules.
//!
//! Clients fill and servers decode one struct per method, so the two sides cannot disagree on a
//! field. Defaults are part of the contract and filled in on decoding; an absent value and its
//! default mean the same.

mod control;
pub(crate) mod declare;
mod document;
mod masking;
mod objects;
pub(crate) mod rule;
mod schema;
mod tokens;
mod value;

pub use control::{
    AppCall, AppOperation, CensusCall, CheckCall, CollectionCall, CollectionOperation,
    CollectionsCall, CreateCollection, Kind, MigrateCall, Page, PrincipalCall, PrincipalOperation,
    PublicKeysCall, RewrapRowsCall, RoleCall, RoleOperation, RootOperation, RotateKind, Scope,
    Secret, TokenFormat,
};
pub use document::{
    CallOptions, Decrypt, Detokenize, DocumentCall, Encrypt, Envelope, Inspect, Mask, Reading,
    Rewrap, TokenLookupScope, Tokenize,
};
pub use masking::{MaskList, MaskRule, Masking, RuleFields, UnknownFields};
pub use objects::{ObjectsCall, SubjectName, SubjectTarget, SubjectsCall};
pub use rule::Param;
pub use schema::{AlterCollection, PropertySpec};
pub use tokens::{TokenMap, TokensCall};

/// The parameters that a server keeps after it has read a message, generic over their texts and
/// bytes: as they are borrowed from the message, or as a [`Source`](shared::Source) shares them.
pub mod shared {
    pub use super::declare::{Own, Source};
    pub use super::document::{TokenizeOptions, Writing};
    pub use super::objects::{AddObjects, ObjectsOperation, PropertyDisclosure, SubjectsOperation};
    pub use super::tokens::{Listing, Sweep, TokenSearch, TokensOperation};
}

/// How envelopes are written.
pub type Writing<'a> = shared::Writing<&'a str>;
/// How `tokenize` makes tokens.
pub type TokenizeOptions<'a> = shared::TokenizeOptions<&'a str, &'a [u8]>;
/// An operation of a [`TokensCall`].
pub type TokensOperation<'a> = shared::TokensOperation<&'a str, &'a [u8]>;
/// The value whose token `tokens.find` returns.
pub type TokenSearch<'a> = shared::TokenSearch<&'a str, &'a [u8]>;
/// Which tokens `tokens.list` gives, or which objects `objects.list`.
pub type Listing<'a> = shared::Listing<&'a str>;
/// One bounded step of a walk that archives or prunes.
pub type Sweep<'a> = shared::Sweep<&'a str>;
/// An operation of an [`ObjectsCall`].
pub type ObjectsOperation<'a> = shared::ObjectsOperation<&'a str, &'a [u8]>;
/// Params of `objects.add`.
pub type AddObjects<'a> = shared::AddObjects<&'a str, &'a [u8]>;
/// The properties that a response has, and their form.
pub type PropertyDisclosure<'a> = shared::PropertyDisclosure<&'a str>;
/// An operation of a [`SubjectsCall`].
pub type SubjectsOperation<'a> = shared::SubjectsOperation<&'a str>;

/// A closed set of names, with the name of each and the way back.
macro_rules! names {
    (
        $(#[$doc:meta])*
        $kind:ident {
            $(#[$first_doc:meta])* $first:ident = $first_name:literal,
            $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $kind { $(#[$first_doc])* $first, $($(#[$variant_doc])* $variant,)* }

        impl $kind {
            /// Every value, the default first if there is one.
            pub const ALL: &'static [Self] = &[Self::$first $(, Self::$variant)*];
            /// The rule of a parameter of this type.
            #[allow(dead_code, reason = "results have names, too")]
            pub(crate) const RULE: crate::params::rule::Rule = crate::params::rule::Rule::named(
                concat!("\"", $first_name, "\"" $(, " or \"", $name, "\"")*),
            );

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { Self::$first => $first_name $(, Self::$variant => $name)* }
            }

            /// The value of that exact name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }
        }

        crate::params::declare::owned!($kind);

        impl<'a> crate::params::declare::Parameter<'a> for $kind {
            fn blank() -> Self {
                Self::$first
            }

            fn read(
                params: &mut crate::reading::Params<'a>,
                row: &'static crate::params::Param,
            ) -> Result<Self, crate::call_error::CallError> {
                params.name(row, Self::from_name)
            }

            fn write(&self, _: crate::params::rule::Form, out: &mut Vec<u8>) {
                sealwire_msgpack::write::str(out, self.name());
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
