//! The requests on tokens without a document, and the parts that requests on objects share with
//! them.

use std::time::Duration;

use sealwire_wire as wire;

use super::{RequestOptions, common_parameters, page_parameters, parameters};

/// The collection that a request on tokens or objects is about, and the options of the request.
///
/// ```no_run
/// use std::time::Duration;
/// use sealwire_client::{Client, CollectionTarget};
///
/// # async fn example(client: Client, token: &str) -> Result<(), sealwire_client::Error> {
/// let cards = CollectionTarget::new("shop", "cards").deadline(Duration::from_secs(2));
/// let found = client.tokens_get(cards, &[token]).await?;
/// let deleted = client.tokens_delete(cards, &[token]).await?;
/// println!("{} of {} tokens deleted", deleted.count, found.tokens.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionTarget<'a>(pub(crate) wire::TokenMap<'a>);

impl<'a> CollectionTarget<'a> {
    /// Names a collection of an app, with the default options. Both names have 1 to 64 bytes of
    /// `[A-Za-z0-9._-]`.
    pub fn new(app: &'a str, collection: &'a str) -> Self {
        Self(wire::TokenMap::new(app, collection))
    }

    parameters! {
        /// Replaces all options of the request, such as its deadline.
        options(options: RequestOptions<'a>) => |inner| inner.options = options.0;
    }

    common_parameters!(options.);
}

/// The value whose token a request finds. `Debug` omits the value.
///
/// ```no_run
/// use sealwire_client::{Client, CollectionTarget, TokenSearch, to_payload};
///
/// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
/// let value = to_payload("4111 1111 1111 1111")?;
/// let cards = CollectionTarget::new("shop", "cards");
/// let found = client
///     .tokens_find(cards, TokenSearch::new(&value).subject("ada@example.com"))
///     .await?;
/// println!("{}", found.token.as_deref().unwrap_or("no token"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSearch<'a>(pub(crate) wire::TokenSearch<'a>);

impl<'a> TokenSearch<'a> {
    /// Searches for a value: one MessagePack value of at most 65,536 bytes.
    pub fn new(value: &'a [u8]) -> Self {
        Self(wire::TokenSearch {
            value,
            ..wire::TokenSearch::default()
        })
    }

    parameters! {
        /// Sets the context under which the value was tokenized.
        ///
        /// Length: 0 to 4,096 bytes.
        /// Default: empty.
        context(context: &'a (impl AsRef<[u8]> + ?Sized)) => |inner| inner.context = context.as_ref();
        /// Names the data subject for whom the value was tokenized.
        ///
        /// Length: 1 to 256 bytes.
        /// Default: none.
        subject(subject: impl Into<Option<&'a str>>) => |inner| inner.subject = subject.into();
    }
}

/// The filter and page of a list of tokens or objects.
///
/// ```no_run
/// use sealwire_client::{Client, CollectionTarget, Listing};
///
/// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
/// let cards = CollectionTarget::new("shop", "cards");
/// let mut cursor: Option<String> = None;
/// loop {
///     let listing = Listing::new().tag("checkout").after(cursor.as_deref());
///     let page = client.tokens_list(cards, listing).await?;
///     println!("{} tokens", page.tokens.len());
///     cursor = page.next;
///     if cursor.is_none() {
///         break;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listing<'a>(pub(crate) wire::Listing<'a>);

impl<'a> Listing<'a> {
    /// Lists all entries that are not archived.
    pub fn new() -> Self {
        Self::default()
    }

    parameters! {
        /// Lists only entries with this tag.
        ///
        /// Default: any tag.
        tag(tag: impl Into<Option<&'a str>>) => |inner| inner.tag = tag.into();
        /// Lists only entries that expired before this time, in seconds since 1970-01-01 UTC.
        ///
        /// Default: expired or not.
        expired_before(unix_s: impl Into<Option<u64>>) => |inner|
            inner.expired_before = unix_s.into();
        /// Lists only archived entries if true.
        ///
        /// Default: false, only entries that are not archived.
        archived(archived: bool) => |inner| inner.archived = archived;
    }

    page_parameters!("Range: 1 to 1,000 tokens, or 1 to 500 objects.\nDefault: 100.");
}

/// One bounded step of archiving expired rows, or of removing archived rows.
///
/// ```no_run
/// use std::time::Duration;
/// use sealwire_client::{Client, CollectionTarget, Sweep};
///
/// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
/// let cards = CollectionTarget::new("shop", "cards");
/// let sweep = Sweep::new().older(Duration::from_secs(30 * 86_400)).dry_run(true);
/// let counted = client.tokens_prune(cards, sweep).await?;
/// println!("{} tokens would be removed", counted.count);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep<'a>(pub(crate) wire::Sweep<'a>);

impl<'a> Sweep<'a> {
    /// Creates a step with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    parameters! {
        /// Sets the least time since a row expired or was archived, in seconds, rounded up.
        ///
        /// Default to archive: 0.
        /// Default to prune: 30 days.
        older(time: impl Into<Option<Duration>>) => |inner|
            inner.older_s = time.into().map(crate::request::seconds);
        /// Only counts the rows if true.
        ///
        /// Default: false.
        dry_run(dry_run: bool) => |inner| inner.dry_run = dry_run;
    }

    page_parameters!("Range: 1 to 10,000 examined rows.\nDefault: 1,000.");
}
