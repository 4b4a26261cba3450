//! The requests that the control listener serves: apps, collections, keys, roles and the root key.

use std::time::Duration;

use sealwire_wire::control as wire;

use super::{conversion, page_parameters, parameters};
use crate::Format;
use crate::Suite;
use crate::control::{Kind, RotateKind, Scope, TokenFormat};

/// Declares a request that wraps a struct or an operation of the codec. `: Copy` derives `Copy`.
macro_rules! wrapper {
    ($(#[$doc:meta])* $name:ident $(: $copy:ident)?) => {
        $(#[$doc])*
        #[derive(Clone, $($copy,)? Debug, PartialEq, Eq)]
        pub struct $name<'a>(pub(crate) wire::$name<'a>);

        conversion!($name);
    };
}

wrapper! {
    /// A change of an app, for [`Client::change_app`](crate::Client::change_app).
    ///
    /// A `key` is the id of one key version: 10 hexadecimal digits, or `token-N` for version N of
    /// the token key. Without a key, the operation is about the whole app.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use sealwire_client::Client;
    /// use sealwire_client::control::{AppOperation, RotateKind};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// operator.change_app("shop", AppOperation::create()).await?;
    /// let rotated = operator.change_app("shop", AppOperation::rotate(RotateKind::Xaes)).await?;
    /// println!("new key {:?}", rotated.key);
    /// let delay = Duration::from_secs(30 * 86_400);
    /// operator.change_app("shop", AppOperation::delete("0123456789", delay)).await?;
    /// operator.change_app("shop", AppOperation::restore("0123456789")).await?;
    /// # Ok(())
    /// # }
    /// ```
    AppOperation
}

impl<'a> AppOperation<'a> {
    /// Creates the app, with a first key version of each suite, and one for tokens.
    pub fn create() -> Self {
        Self(wire::AppOperation::Create)
    }

    /// Creates the next key version of a kind. New values are then sealed with this version.
    pub fn rotate(kind: RotateKind) -> Self {
        Self(wire::AppOperation::Rotate { kind })
    }

    /// Imports a private key of suite [`Suite::P256`] or [`Suite::Secp256k1`]: PEM without a
    /// password, or 32 bytes in hexadecimal or base64. `Debug` omits the key. If `seals` is true,
    /// the key seals after the import; otherwise it only opens.
    pub fn import(suite: Suite, private_key: &'a str, seals: bool) -> Self {
        Self(wire::AppOperation::Import {
            suite,
            private_key: wire::Secret(private_key),
            seals,
        })
    }

    /// Disables the app or the key version.
    pub fn disable(key: impl Into<Option<&'a str>>) -> Self {
        Self(wire::AppOperation::Disable { key: key.into() })
    }

    /// Enables the app or the key version.
    pub fn enable(key: impl Into<Option<&'a str>>) -> Self {
        Self(wire::AppOperation::Enable { key: key.into() })
    }

    /// Disables the app or the key version, and removes it after a delay.
    ///
    /// Range of the delay: 0 to 365 days, rounded up to seconds.
    /// Default of the delay: a week.
    pub fn delete(key: impl Into<Option<&'a str>>, delay: impl Into<Option<Duration>>) -> Self {
        Self(wire::AppOperation::Delete {
            key: key.into(),
            delay_s: delay.into().map(crate::request::seconds),
        })
    }

    /// Cancels the removal of the app or the key version.
    pub fn restore(key: impl Into<Option<&'a str>>) -> Self {
        Self(wire::AppOperation::Restore { key: key.into() })
    }

    /// Changes settings of the app.
    pub fn set(settings: AppSettings) -> Self {
        Self(wire::AppOperation::Set {
            format: settings.format,
            epoch_ms: settings.epoch_ms,
            write_suite: settings.write_suite,
            read_suites: settings.read_suites,
        })
    }
}

/// New settings of an app. A setting that is not set stays unchanged.
///
/// ```
/// use std::time::Duration;
/// use sealwire_client::Suite;
/// use sealwire_client::control::{AppOperation, AppSettings};
///
/// let settings = AppSettings::new()
///     .write_suite(Suite::Xaes)
///     .read_suites([Suite::Xaes, Suite::P256])
///     .epoch(Duration::from_secs(5));
/// let operation = AppOperation::set(settings);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppSettings {
    format: Option<Format>,
    epoch_ms: Option<u32>,
    write_suite: Option<Suite>,
    read_suites: Option<Vec<Suite>>,
}

impl AppSettings {
    /// Leaves all settings unchanged.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the default format of requests: [`Format::Native`] or [`Format::Evervault`].
    ///
    /// Default: unchanged.
    #[must_use]
    pub fn format(mut self, format: impl Into<Option<Format>>) -> Self {
        self.format = format.into();
        self
    }

    /// Sets how long one ephemeral key serves requests with key scope `epoch`, in
    /// milliseconds, rounded up. Zero disables this key scope.
    ///
    /// Range: 0 to 15 s.
    /// Default: unchanged.
    #[must_use]
    pub fn epoch(mut self, time: impl Into<Option<Duration>>) -> Self {
        let milliseconds =
            |time: Duration| u32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX);
        self.epoch_ms = time.into().map(milliseconds);
        self
    }

    /// Sets the default suite of requests.
    ///
    /// Default: unchanged.
    #[must_use]
    pub fn write_suite(mut self, suite: impl Into<Option<Suite>>) -> Self {
        self.write_suite = suite.into();
        self
    }

    /// Sets the suites whose envelopes open, and which requests can name.
    ///
    /// Length: 1 to 6.
    /// Default: unchanged.
    #[must_use]
    pub fn read_suites(mut self, suites: impl IntoIterator<Item = Suite>) -> Self {
        self.read_suites = Some(suites.into_iter().collect());
        self
    }
}

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
    /// A request to count the rows of an app by key version, page by page.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::CensusRequest};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let census = operator.keys_census(CensusRequest::new("shop").prove(true)).await?;
    /// for count in &census.counts {
    ///     println!("{} rows of {} under {}", count.rows, count.collection, count.key);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    CensusRequest: Copy
}

impl<'a> CensusRequest<'a> {
    /// Counts the rows of an app.
    pub fn new(app: &'a str) -> Self {
        Self(wire::CensusRequest {
            app,
            ..wire::CensusRequest::default()
        })
    }

    parameters! {
        /// Fails with `conflict` while an engine could still write under an older key version, if
        /// true.
        ///
        /// Default: false.
        prove(prove: bool) => |inner| inner.prove = prove;
    }

    page_parameters!("Range: 1 to 10,000 examined rows.\nDefault: 1,000.");
}

wrapper! {
    /// A request to seal the rows of an app again under the newest key version, page by page.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::RewrapRowsRequest};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let request = RewrapRowsRequest::new("shop").collection("customers").limit(500);
    /// println!("{} rows rewrapped", operator.keys_rewrap(request).await?.rewrapped);
    /// # Ok(())
    /// # }
    /// ```
    RewrapRowsRequest: Copy
}

impl<'a> RewrapRowsRequest<'a> {
    /// Rewraps the rows of an app.
    pub fn new(app: &'a str) -> Self {
        Self(wire::RewrapRowsRequest {
            app,
            ..wire::RewrapRowsRequest::default()
        })
    }

    parameters! {
        /// Rewraps only the rows of this collection.
        ///
        /// Default: all collections.
        collection(collection: impl Into<Option<&'a str>>) => |inner|
            inner.collection = collection.into();
    }

    page_parameters!("Range: 1 to 500.\nDefault: 100.");
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

wrapper! {
    /// A change of a role, for [`Client::change_role`](crate::Client::change_role).
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::RoleOperation};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let grants = RoleOperation::set(["encrypt,decrypt apps=shop"]);
    /// operator.change_role("checkout", grants).await?;
    /// operator.change_role("former-checkout", RoleOperation::delete()).await?;
    /// # Ok(())
    /// # }
    /// ```
    RoleOperation
}

impl<'a> RoleOperation<'a> {
    /// Creates the role or replaces its grants: 1 to 64 texts in the syntax of `sealwire roles
    /// set`, such as `encrypt,decrypt apps=shop`.
    pub fn set(grants: impl IntoIterator<Item = &'a str>) -> Self {
        let grants = grants.into_iter().collect();
        Self(wire::RoleOperation::Set { grants })
    }

    /// Removes the role if no principal has it.
    pub fn delete() -> Self {
        Self(wire::RoleOperation::Delete)
    }
}

wrapper! {
    /// A change of the roles of a principal, for
    /// [`Client::change_principal`](crate::Client::change_principal).
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::PrincipalOperation};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let checkout = "checkout.acme.example";
    /// operator.change_principal(checkout, PrincipalOperation::grant("checkout")).await?;
    /// // Revokes every role.
    /// operator.change_principal(checkout, PrincipalOperation::revoke(None)).await?;
    /// # Ok(())
    /// # }
    /// ```
    PrincipalOperation: Copy
}

impl<'a> PrincipalOperation<'a> {
    /// Grants a role, which must exist.
    pub fn grant(role: &'a str) -> Self {
        Self(wire::PrincipalOperation::Grant { role })
    }

    /// Revokes one role, or every role if `role` is `None`.
    pub fn revoke(role: impl Into<Option<&'a str>>) -> Self {
        Self(wire::PrincipalOperation::Revoke { role: role.into() })
    }
}

wrapper! {
    /// A principal, and the permission to check.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::CheckRequest};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let request = CheckRequest::new("checkout.acme.example", "decrypt").app("shop");
    /// let checked = operator.check(request).await?;
    /// match checked.role {
    ///     Some(role) => println!("permitted by {role}"),
    ///     None => println!("missing: {:?}", checked.missing),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    CheckRequest: Copy
}

impl<'a> CheckRequest<'a> {
    /// Checks an operation, such as `decrypt`. The principal is a DNS name, a `spiffe://` URI, or
    /// `cn:` and a common name.
    pub fn new(principal: &'a str, operation: &'a str) -> Self {
        Self(wire::CheckRequest {
            principal,
            operation,
            ..wire::CheckRequest::default()
        })
    }

    parameters! {
        /// Checks the operation on this app.
        ///
        /// Default: all apps.
        app(app: impl Into<Option<&'a str>>) => |inner| inner.app = app.into();
        /// Checks the operation on this collection.
        ///
        /// Default: all collections.
        collection(collection: impl Into<Option<&'a str>>) => |inner|
            inner.collection = collection.into();
        /// Checks the operation on this property of objects.
        ///
        /// Default: the request names no property.
        property(property: impl Into<Option<&'a str>>) => |inner| inner.property = property.into();
        /// Sets the reason of the checked request.
        ///
        /// Default: none.
        reason(reason: impl Into<Option<&'a str>>) => |inner| inner.reason = reason.into();
    }
}

wrapper! {
    /// A request for the public keys to which others seal for an app.
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::PublicKeysRequest};
    ///
    /// # async fn example(client: Client) -> Result<(), sealwire_client::Error> {
    /// let keys = client.public_keys(PublicKeysRequest::new("shop")).await?;
    /// println!("{}, signed by {}", keys.keys, keys.signer);
    /// # Ok(())
    /// # }
    /// ```
    PublicKeysRequest: Copy
}

impl<'a> PublicKeysRequest<'a> {
    /// Requests the public keys of an app.
    pub fn new(app: &'a str) -> Self {
        let options = sealwire_wire::CommonParams::default();
        Self(wire::PublicKeysRequest { app, options })
    }

    parameters! {
        /// Requires that the server has applied the change with this generation. Otherwise the
        /// request fails with `conflict`.
        ///
        /// Default: 0.
        min_generation(generation: impl Into<Option<u64>>) => |inner|
            inner.options.min_generation = generation.into();
        /// States why the application makes the request, for the audit log.
        ///
        /// Length: 1 to 256 bytes without control characters.
        /// Default: none.
        reason(reason: impl Into<Option<&'a str>>) => |inner| inner.options.reason = reason.into();
    }
}

wrapper! {
    /// An operation on the store's root key and its slots, for
    /// [`Client::root`](crate::Client::root).
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::RootOperation};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let state = operator.root(RootOperation::verify()).await?;
    /// for slot in state.roots.iter().flat_map(|root| &root.slots) {
    ///     println!("slot {} of {}: {:?}", slot.number, slot.provider, slot.unwraps);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    RootOperation
}

impl<'a> RootOperation<'a> {
    /// Describes the root key and its slots. Contacts no provider, and works while the store is
    /// sealed.
    pub fn status() -> Self {
        Self(wire::RootOperation::Status)
    }

    /// Creates the root key. The 1 to 8 providers get a slot each; `None` means all providers of
    /// the engine.
    pub fn init(providers: impl Into<Option<Vec<&'a str>>>) -> Self {
        Self(wire::RootOperation::Init {
            providers: providers.into(),
        })
    }

    /// Replaces the root key, or continues an unfinished rotation.
    pub fn rotate() -> Self {
        Self(wire::RootOperation::Rotate { abandon: false })
    }

    /// Removes the incoming root key of an unfinished rotation.
    pub fn abandon_rotation() -> Self {
        Self(wire::RootOperation::Rotate { abandon: true })
    }

    /// Seals the store.
    pub fn seal() -> Self {
        Self(wire::RootOperation::Seal)
    }

    /// Unseals the store.
    pub fn unseal() -> Self {
        Self(wire::RootOperation::Unseal)
    }

    /// Adds a slot of this provider.
    pub fn add_slot(provider: &'a str) -> Self {
        Self(wire::RootOperation::AddSlot { provider })
    }

    /// Removes the slot with this number.
    pub fn remove_slot(slot: u32) -> Self {
        Self(wire::RootOperation::RemoveSlot { slot })
    }

    /// Unwraps every slot, and records the time of the test in the slots that unwrap.
    pub fn verify() -> Self {
        Self(wire::RootOperation::Verify)
    }

    /// Replaces every slot by a new wrapped copy of the root key.
    pub fn rotate_slots() -> Self {
        Self(wire::RootOperation::RotateSlots)
    }

    /// Returns true if the operation can be retried without harm. `Verify` only records the time of
    /// the last successful test.
    pub(crate) fn can_be_retried(&self) -> bool {
        matches!(
            self.0,
            wire::RootOperation::Status | wire::RootOperation::Verify
        )
    }
}
