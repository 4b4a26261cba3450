//! The parameters of every method, each declared once with its type, its rule and its default. The
//! declarations are the contract's tables in code. [`declare`] documents the syntax, [`rule`]
//! contains the rules.
//!
//! Clients encode and servers decode the same struct, so the two sides cannot disagree on a field.
//! Defaults are part of the contract. The decoder sets them, so an absent value and its default
//! mean the same.

mod contexts;
mod control;
pub(crate) mod declare;
mod document;
mod masking;
mod objects;
pub(crate) mod rule;
mod schema;
mod tokens;
mod value;

pub use contexts::Contexts;
pub use control::{
    AppOperation, AppRequest, CensusRequest, CheckRequest, CollectionOperation, CollectionRequest,
    CollectionsRequest, CreateCollection, Kind, MigrateRequest, Page, PrincipalOperation,
    PrincipalRequest, PublicKeysRequest, RewrapRowsRequest, RoleOperation, RoleRequest,
    RootOperation, RotateKind, Scope, Secret, TokenFormat,
};
pub use document::{
    CommonParams, Decrypt, Detokenize, DocumentParams, Encrypt, Envelope, Inspect, Mask, Reading,
    Rewrap, TokenLookupScope, Tokenize,
};
pub use masking::{MaskList, MaskRule, Masking, RuleFields, UnknownFields};
pub use objects::{ObjectsRequest, SubjectName, SubjectTarget, SubjectsRequest};
pub use rule::{Accepts, Bounds, Form, Param};
pub use schema::{AlterCollection, PropertySpec};
pub use tokens::{TokenMap, TokensRequest};

/// The parameters that a server keeps after it has read a message. The types are generic over texts
/// and bytes, which are borrowed from the message or shared by a [`Source`](shared::Source).
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
/// An operation of a [`TokensRequest`].
pub type TokensOperation<'a> = shared::TokensOperation<&'a str, &'a [u8]>;
/// The parameters of `tokens.find`: a value whose token is returned.
pub type TokenSearch<'a> = shared::TokenSearch<&'a str, &'a [u8]>;
/// The filter and page of `tokens.list` and `objects.list`.
pub type Listing<'a> = shared::Listing<&'a str>;
/// A bounded step of archiving or pruning.
pub type Sweep<'a> = shared::Sweep<&'a str>;
/// An operation of an [`ObjectsRequest`].
pub type ObjectsOperation<'a> = shared::ObjectsOperation<&'a str, &'a [u8]>;
/// The params of `objects.add`.
pub type AddObjects<'a> = shared::AddObjects<&'a str, &'a [u8]>;
/// The properties in a response, and whether they are masked.
pub type PropertyDisclosure<'a> = shared::PropertyDisclosure<&'a str>;
/// An operation of a [`SubjectsRequest`].
pub type SubjectsOperation<'a> = shared::SubjectsOperation<&'a str>;

/// Declares an enum for a closed set of names, with conversions to and from the names.
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
        #[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
        pub enum $kind { $(#[$first_doc])* $first, $($(#[$variant_doc])* $variant,)* }

        impl $kind {
            /// Every value. The default comes first, if there is one.
            pub const ALL: &'static [Self] = &[Self::$first $(, Self::$variant)*];
            /// The rule of a parameter of this type.
            #[allow(dead_code, reason = "some enums occur only in results")]
            pub(crate) const RULE: crate::params::rule::Rule = crate::params::rule::Rule::named(
                concat!("\"", $first_name, "\"" $(, " or \"", $name, "\"")*),
            );

            /// The name on the wire.
            pub const fn name(self) -> &'static str {
                match self { Self::$first => $first_name $(, Self::$variant => $name)* }
            }

            /// Returns the value with exactly this name.
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
            ) -> Result<Self, crate::invalid_request::InvalidRequest> {
                params.known_name(row, Self::from_name)
            }

            fn write(&self, _: crate::params::rule::Form, out: &mut Vec<u8>) {
                sealwire_msgpack::write::str(out, self.name());
            }
        }
    };
}
pub(crate) use names;

names! {
    /// The cipher suite of envelopes, and of the key that seals and opens them. A request without
    /// a suite gets the suite of the app.
    Suite {
        /// HPKE in PSK mode to a P-256 key pair. The suite of new apps.
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
    /// The scope of an ephemeral key; for [`Suite::Xaes`], of a derived key.
    #[derive(Default)]
    KeyScope {
        /// All fields of the request. The default.
        #[default]
        Request = "request",
        /// A single field.
        Field = "field",
        /// All requests in the current epoch of the app and suite. The operator must allow it, and
        /// [`Suite::Xaes`] does not support it.
        Epoch = "epoch",
    }
}

names! {
    /// The format of envelopes.
    #[derive(Default)]
    Format {
        /// The format of Sealwire, see `proto/envelope.md`.
        #[default]
        Native = "native",
        /// Evervault strings with metadata, `QkTC` and `S0lS`; see `proto/evervault.md`.
        Evervault = "evervault",
        /// Evervault strings without metadata, `Tk9D` and `RFVC`.
        EvervaultBare = "evervault-bare",
    }
}

names! {
    /// The encoding of envelopes.
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
    /// The position of the encapsulation for envelopes of [`Suite::P256MlKem768`].
    #[derive(Default)]
    Encapsulation {
        /// In each envelope. The default.
        #[default]
        Inline = "inline",
        /// In the result, once for all fields of the request. A later request must send it to open
        /// these envelopes.
        Apart = "apart",
    }
}

names! {
    /// The effect of one invalid field on its request.
    #[derive(Default)]
    OnError {
        /// The request fails. The default.
        #[default]
        Fail = "fail",
        /// The field stays unchanged and is listed in the `errors` of the response.
        Report = "report",
    }
}

names! {
    /// The effect of a path in `select` that matches nothing in the document.
    #[derive(Default)]
    Unmatched {
        /// The path is listed in the `unmatched` of the response. The default.
        #[default]
        Report = "report",
        /// The request fails.
        Fail = "fail",
    }
}

names! {
    /// How a `rewrap` with a context handles a value whose format binds it to no context.
    #[derive(Default)]
    Unbound {
        /// The value does not open, since a writer of the document could have copied it from
        /// another place. The default.
        #[default]
        Refuse = "refuse",
        /// The value opens, and the new envelope is bound to the context.
        Bind = "bind",
    }
}

names! {
    /// How a request handles a value that was sealed outside: to a published key, which anybody can
    /// have.
    #[derive(Default)]
    Outside {
        /// The value opens. `rewrap` seals it to the newest published key, so that its origin stays
        /// visible. The default.
        #[default]
        Accept = "accept",
        /// The value does not open. An Evervault value does not open either, since its format does
        /// not identify the sealer.
        Refuse = "refuse",
        /// Only for `rewrap`: the value opens and is sealed again as a value of the engine.
        Adopt = "adopt",
    }
}
