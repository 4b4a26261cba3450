//! The requests on documents.

use std::fmt;
use std::time::Duration;

use sealwire_wire as wire;

use super::{RequestOptions, common_parameters, parameters};
use crate::{
    Encapsulation, Encoding, Format, KeyScope, OnError, Outside, Suite, Unbound, UnknownFields,
    Unmatched,
};

/// Declares a request on a document.
macro_rules! document {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq)]
        pub struct $name<'a>(pub(crate) wire::$name<'a>);

        #[cfg(feature = "workspace")]
        impl<'a> $name<'a> {
            /// Returns the request of the codec, for programs that send frames themselves.
            #[doc(hidden)]
            pub fn into_wire(self) -> wire::$name<'a> {
                self.0
            }
        }

        /// Omits the document.
        impl fmt::Debug for $name<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("app", &self.0.app)
                    .field("payload_bytes", &self.0.payload.len())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Declares the parameters that all requests on documents have.
macro_rules! document_parameters {
    () => {
        parameters! {
            /// Decides what happens if one field is invalid.
            ///
            /// Default: [`OnError::Fail`], the request fails.
            on_error(on_error: OnError) => |inner| inner.on_error = on_error;
            /// Replaces all options of the request, such as its deadline.
            options(options: RequestOptions<'a>) => |inner| inner.options = options.0;
        }
        common_parameters!(options.);
    };
}

/// Declares the parameters that select fields and bind them to a context.
macro_rules! field_parameters {
    ($default:literal, $context:literal) => { parameters! {
        #[doc = concat!(
            "Selects the fields to process by JSONPath, such as `$.card.number`.\n\n",
            "Length: 1 to 64 paths of 1 to 1,024 bytes.\n",
            "Default: ", $default, "."
        )]
        select(paths: impl IntoIterator<Item = &'a str>) => |inner|
            inner.select = Some(paths.into_iter().collect());
        #[doc = concat!(
            "Selects the fields to process. `None`: ", $default, "."
        )]
        set_select(paths: Option<Vec<&'a str>>) => |inner| inner.select = paths;
        /// Decides what happens if a selected path matches nothing.
        ///
        /// Default: [`Unmatched::Report`], the response lists the path.
        unmatched(unmatched: Unmatched) => |inner| inner.unmatched = unmatched;
        #[doc = concat!(
            $context, "\n\n",
            "Length: 0 to 4,096 bytes.\n",
            "Default: empty."
        )]
        context(context: &'a (impl AsRef<[u8]> + ?Sized)) => |inner| inner.context = context.as_ref();
        /// Gives each item of the document, an array, a context of its own, in order. Replaces
        /// `context_path`, and excludes `context`.
        ///
        /// Length: as many as items, at most 10,000 of 1 to 4,096 bytes, 262,144 bytes in all.
        /// Default: none.
        contexts(contexts: impl IntoIterator<Item = &'a (impl AsRef<[u8]> + ?Sized + 'a)>) => |inner| {
            let contexts = contexts.into_iter().map(AsRef::as_ref).collect();
            inner.contexts = Some(wire::Contexts::Listed(contexts));
        };
        /// Gives each item of the document the string or integer at this path in the item as its
        /// context, such as `$.id`. The items are those of an array; any other document is one item.
        /// Replaces `contexts`, and excludes `context`.
        ///
        /// Length: 1 to 1,024 bytes, keys and indexes only.
        /// Default: none.
        context_path(path: impl Into<Option<&'a str>>) => |inner|
            inner.contexts = path.into().map(wire::Contexts::Path);
    } };
}

/// Declares the parameters of new envelopes.
macro_rules! seal_parameters {
    ($($path:ident.)?) => { parameters! {
        /// Chooses the cipher suite of the key that seals.
        ///
        /// Default: the suite of the app.
        suite(suite: impl Into<Option<Suite>>) => |inner| inner.$($path.)?suite = suite.into();
        /// Chooses the scope of an ephemeral key.
        ///
        /// Default: [`KeyScope::Request`].
        key_scope(key_scope: KeyScope) => |inner| inner.$($path.)?key_scope = key_scope;
        /// Chooses the format of envelopes.
        ///
        /// Default: the format of the app.
        format(format: impl Into<Option<Format>>) => |inner| inner.$($path.)?format = format.into();
        /// Chooses the encoding of envelopes.
        ///
        /// Default: [`Encoding::Text`].
        encoding(encoding: Encoding) => |inner| inner.$($path.)?encoding = encoding;
        /// Chooses the position of the encapsulation, if the suite has one.
        ///
        /// Default: [`Encapsulation::Inline`].
        encapsulation(encapsulation: Encapsulation) => |inner|
            inner.$($path.)?encapsulation = encapsulation;
    } };
}

/// Declares the parameter for encapsulations that are not in the document.
macro_rules! encapsulation_parameters {
    () => {
        parameters! {
            /// Passes the encapsulations that fields of the document refer to: those of
            /// [`Document::encapsulations`](crate::Document::encapsulations) when the fields were sealed.
            ///
            /// Length: at most 32.
            /// Default: none.
            encapsulations(encapsulations: impl IntoIterator<Item = &'a str>) => |inner|
                inner.encapsulations = encapsulations.into_iter().collect();
        }
    };
}

/// How envelopes are sealed. Build these options once to use them in several requests:
///
/// ```
/// use sealwire_client::{Encoding, Encrypt, EnvelopeOptions, Suite};
///
/// let envelope_options = EnvelopeOptions::new().suite(Suite::Xaes).encoding(Encoding::Binary);
/// let payload = sealwire_client::to_payload(&["4111 1111 1111 1111", "5500 0000 0000 0004"])?;
/// let request = Encrypt::new("shop", &payload).envelope_options(envelope_options);
/// # Ok::<_, sealwire_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnvelopeOptions(pub(crate) wire::Writing<'static>);

impl EnvelopeOptions {
    /// Creates options with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    seal_parameters!();

    /// Puts these options in the place of earlier ones. Keeps the parameters that only one method
    /// has.
    fn replace<'a>(self, other: wire::Writing<'a>) -> wire::Writing<'a> {
        wire::Writing {
            role: other.role,
            unbound: other.unbound,
            outside: other.outside,
            ..self.0
        }
    }
}

document! {
    /// A request that encrypts a document.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use sealwire_client::{Client, Encrypt, to_payload};
    ///
    /// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
    /// let payload = to_payload(&[("card", "4111 1111 1111 1111"), ("name", "Ada Lovelace")])?;
    /// let request = Encrypt::new("shop", &payload)
    ///     .select(["$[0][1]"])
    ///     .context("orders")
    ///     .deadline(Duration::from_secs(2));
    /// let sealed = client.encrypt(request).await?;
    /// println!("{} bytes", sealed.payload.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Many rows in one request, each bound to its own id:
    ///
    /// ```no_run
    /// use std::collections::HashMap;
    /// use sealwire_client::{Client, Encrypt, to_payload};
    ///
    /// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
    /// let rows = ["17", "18"].map(|id| HashMap::from([("id", id), ("card", "4111 1111 1111 1111")]));
    /// let payload = to_payload(&rows)?;
    /// let request = Encrypt::new("shop", &payload).select(["$[*].card"]).context_path("$.id");
    /// let sealed = client.encrypt(request).await?;
    /// # Ok(())
    /// # }
    /// ```
    Encrypt
}

impl<'a> Encrypt<'a> {
    /// Creates a request on the whole `payload`, one MessagePack value, with the keys of `app`.
    pub fn new(app: &'a str, payload: &'a [u8]) -> Self {
        Self(wire::Encrypt::new(app, payload))
    }

    field_parameters!(
        "every leaf",
        "Binds the fields to a context, such as the name of a table and the id of a row. Fields open only in the context in which they were sealed."
    );
    seal_parameters!(writing.);

    parameters! {
        /// Replaces the options of new envelopes.
        envelope_options(options: EnvelopeOptions) => |inner| inner.writing = options.replace(inner.writing);
        /// Sets the data role that Evervault strings carry.
        ///
        /// Length: 1 to 20 of `a-z 0-9 -`.
        /// Default: none.
        role(role: impl Into<Option<&'a str>>) => |inner| inner.writing.role = role.into();
    }

    document_parameters!();
}

document! {
    /// A request that decrypts a document.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, Decrypt, OnError};
    ///
    /// # async fn example(client: Client, sealed: Vec<u8>) -> Result<(), sealwire_client::Error> {
    /// let request = Decrypt::new("shop", &sealed)
    ///     .context("orders")
    ///     .on_error(OnError::Report);
    /// let opened = client.decrypt(request).await?;
    /// for error in &opened.errors {
    ///     eprintln!("{} did not open: {}", error.path, error.code);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    Decrypt
}

impl<'a> Decrypt<'a> {
    /// Creates a request on the whole `payload`, one MessagePack value, with the keys of `app`.
    pub fn new(app: &'a str, payload: &'a [u8]) -> Self {
        Self(wire::Decrypt::new(app, payload))
    }

    field_parameters!(
        "every envelope",
        "Binds the fields to a context, such as the name of a table and the id of a row. Fields open only in the context in which they were sealed."
    );
    encapsulation_parameters!();

    parameters! {
        /// Decides what happens with values that were sealed to a published key, which anybody can
        /// have. [`Outside::Adopt`] is not for this request.
        ///
        /// Default: [`Outside::Accept`].
        outside(outside: Outside) => |inner| inner.writing.outside = outside;
    }

    document_parameters!();
}

document! {
    /// A request that opens every envelope of a document and seals the plaintext with the newest
    /// key of the app.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, Rewrap, Suite};
    ///
    /// # async fn example(client: Client, sealed: Vec<u8>) -> Result<(), sealwire_client::Error> {
    /// let request = Rewrap::new("shop", &sealed).suite(Suite::Xaes).context("orders");
    /// let sealed_again = client.rewrap(request).await?;
    /// # Ok(())
    /// # }
    /// ```
    Rewrap
}

impl<'a> Rewrap<'a> {
    /// Creates a request on the whole `payload`, one MessagePack value, with the keys of `app`.
    pub fn new(app: &'a str, payload: &'a [u8]) -> Self {
        Self(wire::Rewrap::new(app, payload))
    }

    field_parameters!(
        "every envelope",
        "Binds the fields to a context, such as the name of a table and the id of a row. Fields open only in the context in which they were sealed."
    );
    seal_parameters!(writing.);
    encapsulation_parameters!();

    parameters! {
        /// Replaces the options of new envelopes.
        envelope_options(options: EnvelopeOptions) => |inner| inner.writing = options.replace(inner.writing);
        /// Decides what happens with values whose format binds them to no context, if the request
        /// has a context.
        ///
        /// Default: [`Unbound::Refuse`], the value does not open.
        unbound(unbound: Unbound) => |inner| inner.writing.unbound = unbound;
        /// Decides what happens with values that were sealed to a published key, which anybody can
        /// have.
        ///
        /// Default: [`Outside::Accept`].
        outside(outside: Outside) => |inner| inner.writing.outside = outside;
    }

    document_parameters!();
}

document! {
    /// A request that replaces the leaves of a document by tokens.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use sealwire_client::{Client, Tokenize, to_payload};
    ///
    /// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
    /// let payload = to_payload(&["4111 1111 1111 1111"])?;
    /// let request = Tokenize::new("shop", "cards", &payload)
    ///     .tags(["checkout"])
    ///     .expires_after(Duration::from_secs(90 * 86_400))
    ///     .subject("ada@example.com");
    /// let tokens: Vec<String> = client.tokenize(request).await?.to_value()?;
    /// # Ok(())
    /// # }
    /// ```
    Tokenize
}

impl<'a> Tokenize<'a> {
    /// Creates a request on the whole `payload`, one MessagePack value. The collection of `app`
    /// determines the kind and format of the tokens.
    pub fn new(app: &'a str, collection: &'a str, payload: &'a [u8]) -> Self {
        let mut request = wire::Tokenize::new(app, payload);
        request.writing.collection = collection;
        Self(request)
    }

    field_parameters!(
        "every leaf",
        "Binds the tokens to a context, in a collection of scope `context` only. In other collections, `tokenize` fails with a context."
    );

    parameters! {
        /// Sets cleartext labels of each new token, by which tokens can be listed.
        ///
        /// Length: at most 16 labels of 1 to 64 bytes of visible ASCII.
        /// Default: none.
        tags(tags: impl IntoIterator<Item = &'a str>) => |inner|
            inner.writing.tags = tags.into_iter().collect();
        /// Sets the time after which new tokens expire, in seconds, rounded up.
        ///
        /// Range: 1 to 3,155,760,000 s.
        /// Default: that of the collection.
        expires_after(time: impl Into<Option<Duration>>) => |inner|
            inner.writing.expires_s = time.into().map(crate::request::seconds);
        /// Sets a key under which a repeated request gets the tokens of the first request.
        ///
        /// Length: 1 to 64 bytes.
        /// Default: a random key, see [`Client::tokenize`](crate::Client::tokenize).
        idempotency_key(key: &'a (impl AsRef<[u8]> + ?Sized)) => |inner|
            inner.writing.idempotency_key = Some(key.as_ref());
        /// Names the data subject whom the document is about. Equal values of two subjects have
        /// different tokens.
        ///
        /// Length: 1 to 256 bytes.
        /// Default: none.
        subject(subject: impl Into<Option<&'a str>>) => |inner|
            inner.writing.subject = subject.into();
    }

    document_parameters!();
}

document! {
    /// A request that replaces the tokens in a document by their values.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, Detokenize, to_payload};
    ///
    /// # async fn example(client: Client, token: &str) -> Result<(), sealwire_client::Error> {
    /// let payload = to_payload(&[token])?;
    /// let request = Detokenize::new("shop", "cards", &payload).reason("refund of order 4711");
    /// let cards: Vec<String> = client.detokenize(request).await?.to_value()?;
    /// # Ok(())
    /// # }
    /// ```
    Detokenize
}

impl<'a> Detokenize<'a> {
    /// Creates a request on the whole `payload`, one MessagePack value. The tokens are looked up in
    /// the collection of `app`.
    pub fn new(app: &'a str, collection: &'a str, payload: &'a [u8]) -> Self {
        let mut request = wire::Detokenize::new(app, payload);
        request.writing.collection = collection;
        Self(request)
    }

    field_parameters!(
        "every token",
        "Sets the context of the tokens, in a collection of scope `context`."
    );
    document_parameters!();
}

document! {
    /// A request that masks the fields of a document by rules.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, Mask, MaskRule, UnknownFields, to_payload};
    ///
    /// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
    /// let payload = to_payload(&[("card", "4111 1111 1111 1111")])?;
    /// let rules = [
    ///     MaskRule::path("$[*][1]", "partial(last=4)"),
    ///     MaskRule::kind("email", "email"),
    /// ];
    /// let request = Mask::new("shop", &payload, rules).unknown(UnknownFields::Keep);
    /// let masked = client.mask(request).await?;
    /// # Ok(())
    /// # }
    /// ```
    Mask
}

impl<'a> Mask<'a> {
    /// Creates a request on the whole `payload`, one MessagePack value, with 1 to 256 rules. The
    /// first path or column rule that matches a field masks it. If none matches, the first kind
    /// rule does.
    pub fn new(
        app: &'a str,
        payload: &'a [u8],
        rules: impl IntoIterator<Item = MaskRule<'a>>,
    ) -> Self {
        let mut request = wire::Mask::new(app, payload);
        request.writing.rules = rules.into_iter().map(|rule| rule.0).collect();
        Self(request)
    }

    parameters! {
        /// Decides what happens with fields that match no rule.
        ///
        /// Default: [`UnknownFields::Refuse`], the request fails.
        unknown(unknown: UnknownFields) => |inner| inner.writing.unknown = unknown;
        /// Sets lists of pseudonyms, which rules use by their names.
        ///
        /// Length of a name: 1 to 64 bytes of `[A-Za-z0-9._-]`.
        /// Length of all lists: at most 16 lists, 10,000 texts of 1 to 256 bytes and 262,144 bytes.
        /// Default: none.
        lists(lists: impl IntoIterator<Item = (&'a str, Vec<&'a str>)>) => |inner|
            inner.writing.lists = lists
                .into_iter()
                .map(|(name, entries)| wire::MaskList { name, entries })
                .collect();
    }

    document_parameters!();
}

/// A rule of a [`Mask`] request: fields, and the function that masks them.
///
/// ```
/// use sealwire_client::MaskRule;
///
/// let rules = [
///     MaskRule::path("$.card.number", "partial(last=4)"),
///     MaskRule::column("email", "email"),
///     MaskRule::kind("iban", "partial(last=4)"),
/// ];
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskRule<'a>(wire::MaskRule<'a>);

impl<'a> MaskRule<'a> {
    /// Masks the fields at a path, as in [`Encrypt::select`]. Texts have 1 to 1,024 bytes.
    pub fn path(path: &'a str, function: &'a str) -> Self {
        Self::new(wire::RuleFields::Path(path), function)
    }

    /// Masks the fields under a key of this name, at any depth.
    pub fn column(name: &'a str, function: &'a str) -> Self {
        Self::new(wire::RuleFields::Column(name), function)
    }

    /// Masks strings that look like a value of this kind: `card`, `email`, `iban`, `phone`,
    /// `national_id`, `ip_address` or `secret`.
    pub fn kind(kind: &'a str, function: &'a str) -> Self {
        Self::new(wire::RuleFields::Kind(kind), function)
    }

    fn new(fields: wire::RuleFields<'a>, mask: &'a str) -> Self {
        Self(wire::MaskRule { fields, mask })
    }
}

/// A request that describes an envelope without opening it.
///
/// ```no_run
/// use sealwire_client::{Client, Inspect};
///
/// # async fn example(client: Client, envelope: &str) -> Result<(), sealwire_client::Error> {
/// let inspection = client.inspect(Inspect::text(envelope)).await?;
/// println!("{} under key {:?}", inspection.suite.name(), inspection.key_id);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect<'a>(pub(crate) wire::Inspect<'a>);

impl<'a> Inspect<'a> {
    /// Describes an envelope of [`Encoding::Text`], or an Evervault string.
    pub fn text(envelope: &'a str) -> Self {
        let envelope = wire::Envelope::Text(envelope);
        Self(wire::Inspect { envelope })
    }

    /// Describes an envelope of [`Encoding::Binary`].
    pub fn binary(envelope: &'a [u8]) -> Self {
        let envelope = wire::Envelope::Binary(envelope);
        Self(wire::Inspect { envelope })
    }
}
