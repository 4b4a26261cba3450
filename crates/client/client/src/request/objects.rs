//! The requests on objects and data subjects.

use std::time::Duration;

use sealwire_wire as wire;

use super::{RequestOptions, common_parameters, conversion, page_parameters, parameters};

/// New objects of a collection. `Debug` omits their values.
///
/// ```no_run
/// use serde::Serialize;
/// use sealwire_client::{AddObjects, Client, CollectionTarget, to_payload};
///
/// #[derive(Serialize)]
/// struct Customer {
///     name: &'static str,
///     iban: &'static str,
/// }
///
/// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
/// let customers = [Customer { name: "Ada Lovelace", iban: "DE89370400440532013000" }];
/// let objects = to_payload(&customers)?;
/// let request = AddObjects::new(&objects)
///     .idempotency_key("signup-4711")
///     .subjects(["ada@example.com"]);
/// let target = CollectionTarget::new("shop", "customers");
/// let added = client.objects_add(target, request).await?;
/// println!("{}", added.objects[0].id);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddObjects<'a>(pub(crate) wire::AddObjects<'a>);

impl<'a> AddObjects<'a> {
    /// Adds objects: a MessagePack array of 1 to 500 maps of property names to values.
    pub fn new(objects: &'a [u8]) -> Self {
        Self(wire::AddObjects {
            objects,
            ..wire::AddObjects::default()
        })
    }

    parameters! {
        /// Replaces the objects.
        objects(objects: &'a [u8]) => |inner| inner.objects = objects;
        /// Sets cleartext labels of every object.
        ///
        /// Length: at most 16 labels of 1 to 64 bytes of visible ASCII.
        /// Default: none.
        tags(tags: impl IntoIterator<Item = &'a str>) => |inner|
            inner.tags = tags.into_iter().collect();
        /// Sets the time after which the objects expire, in seconds, rounded up.
        ///
        /// Range: 1 to 3,155,760,000 s.
        /// Default: that of the collection.
        expires_after(time: impl Into<Option<Duration>>) => |inner|
            inner.expires_s = time.into().map(crate::request::seconds);
        /// Sets a key under which a repeated request returns the objects of the first request. The
        /// client repeats a request whose response was lost only if it has a key.
        ///
        /// Length: 1 to 64 bytes.
        /// Default: none.
        idempotency_key(key: &'a (impl AsRef<[u8]> + ?Sized)) => |inner|
            inner.idempotency_key = Some(key.as_ref());
        /// Names the data subjects: one for all objects, or one per object.
        ///
        /// Length: names of 1 to 256 bytes.
        /// Default: none.
        subjects(subjects: impl IntoIterator<Item = &'a str>) => |inner|
            inner.subjects = subjects.into_iter().collect();
    }
}

/// The properties in a response, and whether they are masked.
///
/// ```no_run
/// use sealwire_client::{Client, CollectionTarget, PropertyDisclosure};
///
/// # async fn example(client: Client, id: &str) -> Result<(), sealwire_client::Error> {
/// let disclosure = PropertyDisclosure::new().properties(["name", "iban"]).masked(true);
/// let target = CollectionTarget::new("shop", "customers");
/// let found = client.objects_get(target, &[id], disclosure).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyDisclosure<'a>(pub(crate) wire::PropertyDisclosure<'a>);

impl<'a> PropertyDisclosure<'a> {
    /// Requests the properties that the role grants, masked as the role says.
    pub fn new() -> Self {
        Self::default()
    }

    parameters! {
        /// Requests only these properties.
        ///
        /// Length: 1 to 64 names.
        /// Default: the properties that the role grants.
        properties(names: impl IntoIterator<Item = &'a str>) => |inner|
            inner.properties = Some(names.into_iter().collect());
        /// Requests only these properties. `None`: the properties that the role grants.
        set_properties(names: Option<Vec<&'a str>>) => |inner| inner.properties = names;
        /// Masks every value by its type if true, even if the role permits the clear value.
        ///
        /// Default: false.
        masked(masked: bool) => |inner| inner.masked = masked;
    }
}

/// A page of a list, in the order of the list.
///
/// ```
/// use sealwire_client::Page;
///
/// let first = Page::new().limit(500);
/// let second = first.after("the next of the first page");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page<'a>(pub(crate) wire::control::Page<'a>);

conversion!(Page);

impl<'a> Page<'a> {
    /// Requests the first page.
    pub fn new() -> Self {
        Self::default()
    }

    page_parameters!("Range: 1 to 1,000, or 1 to 500 objects.\nDefault: 100.");
}

/// A data subject of an app, and the options of a request on it. `Debug` omits the name, which can
/// be an email address.
///
/// ```no_run
/// use sealwire_client::{Client, SubjectErasure, SubjectTarget};
///
/// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
/// let ada = SubjectTarget::by_name("shop", "ada@example.com").reason("request of 2026-11-02");
/// let mut erasure = SubjectErasure::new();
/// loop {
///     let erased = client.subjects_erase(ada, erasure).await?;
///     if erased.done {
///         break;
///     }
///     erasure = SubjectErasure::new().version(erased.version);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectTarget<'a>(pub(crate) wire::SubjectTarget<'a>);

impl<'a> SubjectTarget<'a> {
    /// Names a subject by the name that applications gave it, 1 to 256 bytes.
    pub fn by_name(app: &'a str, name: &'a str) -> Self {
        Self(wire::SubjectTarget::new(app, wire::SubjectName::Name(name)))
    }

    /// Names a subject by its id in the audit log, 32 hexadecimal digits.
    pub fn by_id(app: &'a str, id: &'a str) -> Self {
        Self(wire::SubjectTarget::new(app, wire::SubjectName::Id(id)))
    }

    parameters! {
        /// Replaces all options of the request, such as its deadline.
        options(options: RequestOptions<'a>) => |inner| inner.options = options.0;
    }

    common_parameters!(options.);
}

/// The limits of an erasure of a data subject.
///
/// ```
/// use sealwire_client::SubjectErasure;
///
/// // Only the key that an earlier response named.
/// let erasure = SubjectErasure::new().version(3);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubjectErasure {
    pub(crate) version: Option<u64>,
    pub(crate) created: Option<u64>,
}

impl SubjectErasure {
    /// Removes the subject's key, whatever its version and age.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes only a key of at most this version.
    ///
    /// Default: any version.
    #[must_use]
    pub fn version(self, version: impl Into<Option<u64>>) -> Self {
        let version = version.into();
        Self { version, ..self }
    }

    /// Removes only a key that was created at or before this time, in seconds since 1970-01-01 UTC.
    ///
    /// Default: any time.
    #[must_use]
    pub fn created(self, unix_s: impl Into<Option<u64>>) -> Self {
        let created = unix_s.into();
        Self { created, ..self }
    }
}
