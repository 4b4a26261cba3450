//! Operations that need authorization: one for each such method, under the method's own name.
//!
//! `health`, `info` and `inspect` have no operation and use no app, key or token. Their responses
//! contain only engine information that is open to every client, or data from the request.

use std::fmt;

/// The kind of resource that an operation applies to. A grant must cover that resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResourceKind {
    /// The whole engine. Only a grant on all apps permits the operation.
    All,
    /// An app.
    App,
    /// An app with all of its collections. Only a grant on all collections permits the operation.
    Collections,
    /// A collection of an app.
    Collection,
}

/// The group of an operation: whether the built-in role `administrator` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Operations on data: values, tokens, objects and data subjects.
    Data,
    /// Operations on apps, keys, collections, roles and engines, which the role `administrator`
    /// has.
    Control,
}

/// The stored values that the response of an operation discloses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueAccess {
    /// No stored values. The response has metadata, sealed values, or results that the engine makes
    /// from values of the request.
    None,
    /// Values, through the mask of the grant if it has one.
    Maskable,
    /// Values of properties, as the grants of [`Operation::ObjectsGet`] show them.
    Properties,
    /// Values or parts of values that no mask can cover.
    Clear,
    /// No stored values, but the operation changes who can read values, or through which masks. It
    /// changes roles, the keys that seal values, the rules of authenticity, or who unwraps keys.
    Readers,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident = $name:literal $group:ident $about:ident $values:ident,)+) => {
        /// An operation that a role can grant. The list follows the order of the wire's tables.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation { $($(#[$doc])* $variant,)+ }

        impl Operation {
            /// Every operation.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the method name, which operators also write in grants.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Returns the group of the operation.
            pub const fn group(self) -> Group {
                match self { $(Self::$variant => Group::$group),+ }
            }

            pub(crate) const fn resource_kind(self) -> ResourceKind {
                match self { $(Self::$variant => ResourceKind::$about),+ }
            }

            /// Returns the stored values that the response discloses. Every operation states it in
            /// its row of the list.
            pub const fn value_access(self) -> ValueAccess {
                match self { $(Self::$variant => ValueAccess::$values),+ }
            }
        }
    };
}

operations! {
    /// Encrypts values into envelopes.
    /// All values are from the request.
    Encrypt = "encrypt" Data App None,
    /// Opens envelopes.
    Decrypt = "decrypt" Data App Maskable,
    /// Rewraps envelopes for the newest key. Changes who can read values: a request chooses among
    /// the keys that seal, and the operator who imported a key can still have it.
    Rewrap = "rewrap" Data App Readers,
    /// Replaces values with tokens.
    /// All values are from the request.
    Tokenize = "tokenize" Data Collection None,
    /// Returns the values of tokens.
    Detokenize = "detokenize" Data Collection Maskable,
    /// Masks values.
    /// All values are from the request.
    Mask = "mask" Data App None,
    /// Returns the metadata of tokens.
    TokensGet = "tokens.get" Data Collection None,
    /// Finds the token of a value.
    TokensFind = "tokens.find" Data Collection None,
    /// Lists tokens. Tokens of some formats keep digits of their values.
    TokensList = "tokens.list" Data Collection Clear,
    /// Removes tokens and their values.
    TokensDelete = "tokens.delete" Data Collection None,
    /// Changes the expiry of tokens.
    TokensExpire = "tokens.expire" Data Collection None,
    /// Archives expired tokens.
    TokensArchive = "tokens.archive" Data Collection None,
    /// Removes archived tokens.
    TokensPrune = "tokens.prune" Data Collection None,
    /// Adds objects.
    ObjectsAdd = "objects.add" Data Collection None,
    /// Returns objects by id.
    ObjectsGet = "objects.get" Data Collection Maskable,
    /// Changes objects.
    ObjectsUpdate = "objects.update" Data Collection None,
    /// Removes objects.
    ObjectsDelete = "objects.delete" Data Collection None,
    /// Finds objects by their properties.
    ObjectsQuery = "objects.query" Data Collection Properties,
    /// Lists objects.
    ObjectsList = "objects.list" Data Collection Properties,
    /// Changes the expiry of objects.
    ObjectsExpire = "objects.expire" Data Collection None,
    /// Archives expired objects.
    ObjectsArchive = "objects.archive" Data Collection None,
    /// Removes archived objects.
    ObjectsPrune = "objects.prune" Data Collection None,
    /// Finds a data subject.
    SubjectsFind = "subjects.find" Data Collections None,
    /// Returns all objects of a data subject, with all their values.
    SubjectsExport = "subjects.export" Data Collections Clear,
    /// Removes the key and the objects of a data subject.
    SubjectsErase = "subjects.erase" Data Collections None,
    /// Lists all apps.
    AppsList = "apps.list" Control All None,
    /// Creates an app.
    /// Engines generate its keys, and nothing is sealed under them yet.
    AppsCreate = "apps.create" Control App None,
    /// Creates an app's next key version.
    /// Engines generate the key; nobody else has its private part.
    AppsRotate = "apps.rotate" Control App None,
    /// Imports a key version that was created elsewhere.
    /// Whoever imports a key has the key, and can open values that are sealed under it.
    AppsImport = "apps.import" Control App Readers,
    /// Disables an app or key.
    /// Afterwards an older key, perhaps an imported one, can be the newest that seals.
    AppsDisable = "apps.disable" Control App Readers,
    /// Enables an app or key again.
    /// Afterwards an imported key can be the newest that seals.
    AppsEnable = "apps.enable" Control App Readers,
    /// Deletes an app or key.
    /// Deletion has the effects of [`Self::AppsDisable`].
    AppsDelete = "apps.delete" Control App Readers,
    /// Cancels a deletion.
    /// Restoring has the effects of [`Self::AppsEnable`].
    AppsRestore = "apps.restore" Control App Readers,
    /// Changes an app's settings. The suite decides which keys seal, perhaps imported ones, and
    /// what counts as sealed by an engine.
    AppsSet = "apps.set" Control App Readers,
    /// Exports the control state as stored, with wrapped keys.
    /// A person with a key-encryption key or the root key can unwrap these keys and read values
    /// without the engine and its masks.
    AppsExport = "apps.export" Control All Readers,
    /// Lists an app's collections.
    CollectionsList = "collections.list" Control Collections None,
    /// Creates a collection.
    /// The new collection is empty.
    CollectionsCreate = "collections.create" Control Collection None,
    /// Changes a collection's settings.
    /// The settings are times of expiry and retention.
    CollectionsSet = "collections.set" Control Collection None,
    /// Changes the schema of a collection of objects. Types, and so masks, of properties cannot be
    /// changed, and rows are under token keys, which engines generate.
    CollectionsAlter = "collections.alter" Control Collection None,
    /// Seals old records of a collection of objects again.
    /// Whoever could write the database can have moved values into a forged record. If the operator
    /// accepts it, principals with other grants can read these values.
    CollectionsMigrate = "collections.migrate" Control Collection Readers,
    /// Deletes a collection.
    /// A later collection of that name reads nothing of it.
    CollectionsDelete = "collections.delete" Control Collection None,
    /// Counts an app's rows by key version.
    KeysCensus = "keys.census" Control Collections None,
    /// Seals an app's rows again, under its newest key versions.
    /// Rows are under token keys, which engines generate.
    KeysRewrap = "keys.rewrap" Control Collections None,
    /// Lists the engines.
    InstancesList = "instances.list" Control All None,
    /// Lists roles.
    RolesList = "roles.list" Control All None,
    /// Creates or changes a role.
    RolesSet = "roles.set" Control All Readers,
    /// Deletes a role.
    RolesDelete = "roles.delete" Control All Readers,
    /// Lists principals with their roles.
    PrincipalsList = "principals.list" Control All None,
    /// Grants a role to a principal.
    PrincipalsGrant = "principals.grant" Control All Readers,
    /// Revokes a role from a principal.
    PrincipalsRevoke = "principals.revoke" Control All Readers,
    /// Reports the permissions of a principal.
    PrincipalsCheck = "principals.check" Control All None,
    /// Describes the root key and its slots.
    RootStatus = "root.status" Control All None,
    /// Creates the root key.
    /// The operation decides who unwraps the root key.
    RootInit = "root.init" Control All Readers,
    /// Replaces the root key.
    /// The providers stay the same.
    RootRotate = "root.rotate" Control All None,
    /// Seals the store.
    /// No client can read values of a sealed store.
    RootSeal = "root.seal" Control All None,
    /// Unseals the store.
    /// Values that were readable before are readable again, through the same masks.
    RootUnseal = "root.unseal" Control All None,
    /// Adds a slot for a provider.
    /// A further provider unwraps the root key.
    KekAdd = "kek.add" Control All Readers,
    /// Removes a slot.
    /// The operation only removes access.
    KekRemove = "kek.remove" Control All None,
    /// Unwraps every slot.
    KekVerify = "kek.verify" Control All None,
    /// Replaces every slot by a new copy of the root key.
    /// The providers stay the same.
    KekRotate = "kek.rotate" Control All None,
    /// Returns the public keys with which others seal for an app.
    /// A public key can seal, and cannot open anything.
    AppsPublicKeys = "apps.public_keys" Control App None,
}

impl Operation {
    /// Returns the operation with exactly this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|operation| operation.name() == name)
    }

    /// Returns true if the operation applies to collections, so that a grant's collections are
    /// checked.
    pub const fn has_collection(self) -> bool {
        matches!(
            self.resource_kind(),
            ResourceKind::Collection | ResourceKind::Collections
        )
    }

    /// Returns true if the operation applies to properties of objects, so that a grant of it must
    /// name properties.
    pub const fn has_property(self) -> bool {
        matches!(
            self,
            Self::ObjectsAdd | Self::ObjectsGet | Self::ObjectsUpdate | Self::ObjectsQuery
        )
    }

    /// Returns true if the response has stored values or parts of them.
    pub const fn returns_values(self) -> bool {
        match self.value_access() {
            ValueAccess::None | ValueAccess::Readers => false,
            ValueAccess::Maskable | ValueAccess::Properties | ValueAccess::Clear => true,
        }
    }

    /// Returns true if the response has values of properties that [`Self::ObjectsGet`] is granted
    /// for.
    pub const fn reads_properties(self) -> bool {
        matches!(self, Self::ObjectsGet) || matches!(self.value_access(), ValueAccess::Properties)
    }

    /// Returns true if a permit of the operation needs to know which properties it covers.
    pub(crate) const fn uses_properties(self) -> bool {
        self.has_property() || self.reads_properties()
    }

    /// Returns true if the operation applies to one app.
    pub const fn has_app(self) -> bool {
        !matches!(self.resource_kind(), ResourceKind::All)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of operations.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Operations(u64);

const _: () = assert!(Operation::ALL.len() <= 64, "one bit for each");

impl Operations {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Every data operation.
    pub const DATA: Self = Self::of_group(Group::Data);
    /// Operations that can be granted under a mask.
    pub const MASKABLE: Self = Self::of_value_access(ValueAccess::Maskable);
    /// Every control operation.
    pub const CONTROL: Self = Self::of_group(Group::Control);

    const fn of_group(group: Group) -> Self {
        let mut set = 0;
        let mut index = 0;
        while index < Operation::ALL.len() {
            let operation = Operation::ALL[index];
            if operation.group() as u8 == group as u8 {
                set |= 1_u64 << operation as u32;
            }
            index += 1;
        }
        Self(set)
    }

    const fn of_value_access(access: ValueAccess) -> Self {
        let mut set = 0;
        let mut index = 0;
        while index < Operation::ALL.len() {
            let operation = Operation::ALL[index];
            if operation.value_access() as u8 == access as u8 {
                set |= 1_u64 << operation as u32;
            }
            index += 1;
        }
        Self(set)
    }

    /// Parses an operator's text: the name of one operation, or a prefix and a star, as in
    /// `tokens.*`. Returns `None` if no operation matches.
    ///
    /// A star covers only operations that this version of the program knows. Operations that a
    /// later version adds are not granted.
    pub fn from_text(text: &str) -> Option<Self> {
        let Some(prefix) = text.strip_suffix('*') else {
            return Operation::from_name(text).map(Self::from);
        };
        let named: Self = Operation::ALL
            .into_iter()
            .filter(|operation| prefix.ends_with('.') && operation.name().starts_with(prefix))
            .collect();
        (!named.is_empty()).then_some(named)
    }

    /// Returns true if the set contains `operation`.
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & (1_u64 << operation as u32) != 0
    }

    /// Returns true if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the operations that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the operations in their declared order.
    pub fn iter(self) -> impl Iterator<Item = Operation> {
        Operation::ALL
            .into_iter()
            .filter(move |operation| self.contains(*operation))
    }
}

impl From<Operation> for Operations {
    fn from(operation: Operation) -> Self {
        Self(1_u64 << operation as u32)
    }
}

impl FromIterator<Operation> for Operations {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        operations
            .into_iter()
            .fold(Self::NONE, |set, operation| set.and(operation.into()))
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.iter().map(Operation::name))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_every_operation_is_of_one_plane() {
        for operation in Operation::ALL {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
            assert_ne!(
                Operations::DATA.contains(operation),
                Operations::CONTROL.contains(operation)
            );
        }
        assert_eq!(Operation::from_name("Encrypt"), None);
        assert!(
            Operations::DATA.contains(Operation::Detokenize)
                && !Operations::DATA.contains(Operation::AppsExport)
        );
    }

    #[test]
    fn value_access_follows_what_responses_contain() {
        use ValueAccess::{Clear, Maskable, Properties, Readers};
        let stated = [
            ("decrypt", Maskable),
            ("detokenize", Maskable),
            ("objects.get", Maskable),
            ("objects.query", Properties),
            ("objects.list", Properties),
            ("subjects.export", Clear),
            ("tokens.list", Clear),
            ("rewrap", Readers),
            ("apps.import", Readers),
            ("apps.disable", Readers),
            ("apps.enable", Readers),
            ("apps.delete", Readers),
            ("apps.restore", Readers),
            ("apps.set", Readers),
            ("apps.export", Readers),
            ("collections.migrate", Readers),
            ("roles.set", Readers),
            ("roles.delete", Readers),
            ("principals.grant", Readers),
            ("principals.revoke", Readers),
            ("root.init", Readers),
            ("kek.add", Readers),
        ];
        for operation in Operation::ALL {
            let expected = stated.iter().find(|(name, _)| *name == operation.name());
            let expected = expected.map_or(ValueAccess::None, |(_, access)| *access);
            assert_eq!(operation.value_access(), expected, "{operation}");
            let reads =
                ["objects.get", "objects.query", "objects.list"].contains(&operation.name());
            assert_eq!(operation.reads_properties(), reads, "{operation}");
            assert_eq!(
                operation.returns_values(),
                ![ValueAccess::None, Readers].contains(&expected),
                "{operation}"
            );
            assert_eq!(
                Operations::MASKABLE.contains(operation),
                expected == Maskable,
                "{operation}"
            );
            let is_of_data = Operations::DATA.contains(operation);
            assert!(
                is_of_data || !operation.returns_values(),
                "{operation}: control operations return no value"
            );
        }
    }

    #[test]
    fn a_star_stands_for_what_begins_so_and_for_nothing_wider() {
        let names = |text| {
            Operations::from_text(text)
                .map(|set| set.iter().map(Operation::name).collect::<Vec<_>>())
        };
        assert_eq!(names("encrypt"), Some(vec!["encrypt"]));
        assert_eq!(names("collections.*").unwrap().len(), 6);
        assert!(
            names("tokens.*")
                .unwrap()
                .iter()
                .all(|name| name.starts_with("tokens."))
        );
        for none in [
            "*",
            "",
            "token*",
            "tokens.",
            "tokens.*.*",
            "t*",
            ".*",
            "data",
            "nothing.*",
            "ENCRYPT",
        ] {
            assert_eq!(names(none), None, "{none}");
        }
    }
}
