//! Changes of collections, and the migration of their objects.

use std::time::Duration;

use sealwire_wire::control as wire;

use super::wrapper;
use crate::Suite;
use crate::control::{Kind, Scope, TokenFormat};
use crate::request::{page_parameters, parameters};

wrapper! {
    /// A change of a collection, for
    /// [`Client::change_collection`](crate::Client::change_collection).
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use sealwire_client::Client;
    /// use sealwire_client::control::{
    ///     CollectionOperation, CollectionSettings, CreateCollection, Kind, PropertySpec,
    /// };
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let customers = CreateCollection::of_objects([
    ///     PropertySpec::new("name", "string"),
    ///     PropertySpec::new("email", "email").nullable(false).unique(true),
    /// ]);
    /// operator
    ///     .change_collection("shop", "customers", CollectionOperation::create(customers))
    ///     .await?;
    /// let cards = CreateCollection::new(Kind::Deterministic);
    /// operator.change_collection("shop", "cards", CollectionOperation::create(cards)).await?;
    /// let settings = CollectionSettings::new().expires_after(Duration::from_secs(86_400));
    /// operator.change_collection("shop", "cards", CollectionOperation::set(settings)).await?;
    /// # Ok(())
    /// # }
    /// ```
    CollectionOperation
}

impl<'a> CollectionOperation<'a> {
    /// Creates the collection. Later, only its times and its schema can change.
    pub fn create(new: CreateCollection<'a>) -> Self {
        Self(wire::CollectionOperation::Create(new.0))
    }

    /// Changes the schema of the collection's objects.
    pub fn alter(alter: AlterCollection<'a>) -> Self {
        Self(wire::CollectionOperation::Alter(alter.0))
    }

    /// Changes settings of the collection.
    pub fn set(settings: CollectionSettings) -> Self {
        Self(wire::CollectionOperation::Set {
            expires_s: settings.expires_s,
            retention_s: settings.retention_s,
        })
    }

    /// Removes the collection and its name. Its tokens or objects are not found afterwards.
    pub fn delete() -> Self {
        Self(wire::CollectionOperation::Delete)
    }
}

/// New settings of a collection. A setting that is not set stays unchanged.
///
/// ```
/// use std::time::Duration;
/// use sealwire_client::control::CollectionSettings;
///
/// let settings = CollectionSettings::new()
///     .expires_after(None)
///     .retention(Duration::from_secs(90 * 86_400));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectionSettings {
    expires_s: Option<Option<u64>>,
    retention_s: Option<Option<u64>>,
}

impl CollectionSettings {
    /// Leaves all settings unchanged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time after which new tokens or objects expire, in seconds, rounded up. `None`: never.
    ///
    /// Range: 1 to 3,155,760,000 s.
    /// Default: unchanged.
    #[must_use]
    pub fn expires_after(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.expires_s = Some(time.into().map(crate::request::seconds));
        self
    }

    /// Sets how long an archived row is kept, in seconds, rounded up. `None`: until an operator prunes
    /// it.
    ///
    /// Range: 0 to 3,155,760,000 s.
    /// Default: unchanged.
    #[must_use]
    pub fn retention(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.retention_s = Some(time.into().map(crate::request::seconds));
        self
    }
}

wrapper! {
    /// A new collection.
    ///
    /// ```
    /// use sealwire_client::control::{CreateCollection, Kind, Scope, TokenFormat};
    ///
    /// let cards = CreateCollection::new(Kind::Deterministic)
    ///     .format(TokenFormat::Card)
    ///     .first(6)
    ///     .last(4)
    ///     .scope(Scope::Context);
    /// ```
    CreateCollection
}

impl<'a> CreateCollection<'a> {
    /// Creates a collection of this kind with the defaults.
    pub fn new(kind: Kind) -> Self {
        Self(wire::CreateCollection::new(kind))
    }

    /// Creates a collection of objects with 1 to 64 properties.
    pub fn of_objects(properties: impl IntoIterator<Item = PropertySpec<'a>>) -> Self {
        let properties = properties.into_iter().map(|property| property.0).collect();
        Self(wire::CreateCollection::of_objects(properties))
    }

    parameters! {
        /// For tokens: chooses the format.
        ///
        /// Default: [`TokenFormat::Opaque`].
        format(format: TokenFormat) => |inner| inner.format = format;
        /// For [`TokenFormat::Card`]: sets the number of leading digits that tokens keep.
        ///
        /// Range: 0 to 6.
        /// Default: 6.
        first(digits: impl Into<Option<u8>>) => |inner| inner.first = digits.into();
        /// For [`TokenFormat::Card`]: sets the number of trailing digits that tokens keep.
        ///
        /// Range: 0 to 4.
        /// Default: 4.
        last(digits: impl Into<Option<u8>>) => |inner| inner.last = digits.into();
        /// For tokens: chooses the scope in which equal values have equal tokens.
        ///
        /// Default: [`Scope::Collection`].
        scope(scope: Scope) => |inner| inner.scope = scope;
        /// For objects: chooses the suite that seals them.
        ///
        /// Default: [`Suite::Xaes`].
        suite(suite: impl Into<Option<Suite>>) => |inner| inner.suite = suite.into();
        /// Sets the time after which new tokens or objects expire, in seconds, rounded up.
        ///
        /// Range: 1 to 3,155,760,000 s.
        /// Default: never.
        expires_after(time: impl Into<Option<Duration>>) => |inner|
            inner.expires_s = time.into().map(crate::request::seconds);
        /// Sets how long an archived row is kept, in seconds, rounded up.
        ///
        /// Range: 0 to 3,155,760,000 s.
        /// Default: until an operator prunes it.
        retention(time: impl Into<Option<Duration>>) => |inner|
            inner.retention_s = time.into().map(crate::request::seconds);
    }
}

wrapper! {
    /// A change of the schema of a collection of objects. Changes apply at once.
    ///
    /// ```
    /// use sealwire_client::control::{AlterCollection, CollectionOperation, PropertySpec};
    ///
    /// let alter = AlterCollection::new()
    ///     .add_properties([PropertySpec::new("phone", "phone").index(true)])
    ///     .drop_properties(["fax"]);
    /// let operation = CollectionOperation::alter(alter);
    /// ```
    AlterCollection
}

impl<'a> AlterCollection<'a> {
    /// Changes nothing.
    pub fn new() -> Self {
        Self(wire::AlterCollection::default())
    }

    parameters! {
        /// Adds properties, which must be nullable.
        ///
        /// Default: none.
        add_properties(properties: impl IntoIterator<Item = PropertySpec<'a>>) => |inner|
            inner.add = properties.into_iter().map(|property| property.0).collect();
        /// Removes the properties with these names.
        ///
        /// Default: none.
        drop_properties(names: impl IntoIterator<Item = &'a str>) => |inner|
            inner.drop = names.into_iter().collect();
        /// Lets several objects have the same value of these properties.
        ///
        /// Default: none.
        allow_duplicates(names: impl IntoIterator<Item = &'a str>) => |inner|
            inner.allow_duplicates = names.into_iter().collect();
        /// Makes these properties nullable.
        ///
        /// Default: none.
        allow_null(names: impl IntoIterator<Item = &'a str>) => |inner|
            inner.allow_null = names.into_iter().collect();
        /// Removes the index of these properties: queries cannot use them any more.
        ///
        /// Default: none.
        drop_index(names: impl IntoIterator<Item = &'a str>) => |inner|
            inner.drop_index = names.into_iter().collect();
        /// Chooses the suite that seals new objects.
        ///
        /// Default: unchanged.
        suite(suite: impl Into<Option<Suite>>) => |inner| inner.suite = suite.into();
    }
}

impl Default for AlterCollection<'_> {
    fn default() -> Self {
        Self::new()
    }
}

wrapper! {
    /// A property of objects.
    ///
    /// ```
    /// use sealwire_client::control::PropertySpec;
    ///
    /// let email = PropertySpec::new("email", "email")
    ///     .nullable(false)
    ///     .unique(true)
    ///     .description("Login of the customer");
    /// ```
    PropertySpec
}

impl<'a> PropertySpec<'a> {
    /// Describes a property of this name and type with the defaults.
    pub fn new(name: &'a str, property_type: &'a str) -> Self {
        Self(wire::PropertySpec::new(name, property_type))
    }

    parameters! {
        /// Permits objects without this property, if true.
        ///
        /// Default: true.
        nullable(nullable: bool) => |inner| inner.nullable = nullable;
        /// Rejects a value that another object already has, if true.
        ///
        /// Default: false.
        unique(unique: bool) => |inner| inner.unique = unique;
        /// Makes an index by which objects can be found, if true.
        ///
        /// Default: false.
        index(index: bool) => |inner| inner.index = index;
        /// Truncates the index to this number of bits, so that it reveals less about the values.
        ///
        /// Range: 8 to 16.
        /// Default: all bits.
        bits(bits: impl Into<Option<u8>>) => |inner| inner.bits = bits.into();
        /// Sets the lengths, in characters, of prefixes by which objects can be found.
        ///
        /// Range of a length: 1 to 16.
        /// Default: none.
        prefixes(lengths: impl IntoIterator<Item = u8>) => |inner|
            inner.prefixes = lengths.into_iter().collect();
        /// Accepts, if true, that prefixes reveal most values to anyone who can read the store.
        /// Required with [`prefixes`](Self::prefixes).
        ///
        /// Default: false.
        accept_leak(accept_leak: bool) => |inner| inner.accept_leak = accept_leak;
        /// Stores values in the clear if false.
        ///
        /// Default: true.
        encrypted(encrypted: bool) => |inner| inner.encrypted = encrypted;
        /// Sets a description for people who read the schema.
        ///
        /// Default: empty.
        description(description: &'a str) => |inner| inner.description = description;
    }
}

wrapper! {
    /// A request to seal the objects of an older collection again in the authenticated format, page
    /// by page.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::MigrateRequest};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let request = MigrateRequest::new("shop", "customers").dry_run(true);
    /// println!("{} objects", operator.collections_migrate(request).await?.migrated);
    /// # Ok(())
    /// # }
    /// ```
    MigrateRequest: Copy
}

impl<'a> MigrateRequest<'a> {
    /// Migrates the objects of a collection.
    pub fn new(app: &'a str, collection: &'a str) -> Self {
        Self(wire::MigrateRequest {
            app,
            collection,
            ..wire::MigrateRequest::default()
        })
    }

    parameters! {
        /// Also migrates objects whose old format does not prove who sealed them, if true.
        ///
        /// Default: false.
        accept_unauthenticated(accept: bool) => |inner| inner.accept_unauthenticated = accept;
        /// Only reports the result, without a change, if true.
        ///
        /// Default: false.
        dry_run(dry_run: bool) => |inner| inner.dry_run = dry_run;
    }

    page_parameters!("Range: 1 to 500 examined rows.\nDefault: 100.");
}
