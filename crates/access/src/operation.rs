//! What can be permitted: one operation for each method that needs a decision, under the method's own name.
//!
//! `health`, `info` and `inspect` have none: they answer with what the engine says to any caller, or with what the caller
//! has sent, and touch no app, key or token.

use std::fmt;

/// Whom or what an operation is about, and so what a grant must name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// The whole engine: only a grant on all apps permits it.
    All,
    /// One app.
    App,
    /// One app with all of its collections: only a grant on all collections permits it.
    Collections,
    /// One collection of an app.
    Collection,
}

/// Which plane an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Values are sealed, opened, or stand behind tokens.
    Data,
    /// What the engine works with is looked at or changed.
    Control,
}

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident = $name:literal $group:ident $about:ident,)+) => {
        /// What a call does, as far as somebody has to permit it. The whole list, in the order of the wire's tables.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Operation { $($(#[$doc])* $variant,)+ }

        impl Operation {
            /// Every operation.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// What operators write, and callers call.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Which plane it belongs to.
            pub const fn group(self) -> Group {
                match self { $(Self::$variant => Group::$group),+ }
            }

            pub(crate) const fn about(self) -> About {
                match self { $(Self::$variant => About::$about),+ }
            }
        }
    };
}

operations! {
    /// Values become envelopes.
    Encrypt = "encrypt" Data App,
    /// Envelopes are opened.
    Decrypt = "decrypt" Data App,
    /// Envelopes are moved to the newest key.
    Rewrap = "rewrap" Data App,
    /// Values become tokens.
    Tokenize = "tokenize" Data Collection,
    /// Tokens become values.
    Detokenize = "detokenize" Data Collection,
    /// Values are masked.
    Mask = "mask" Data App,
    /// What is known of tokens is read.
    TokensGet = "tokens.get" Data Collection,
    /// Whether a value has a token is found out.
    TokensFind = "tokens.find" Data Collection,
    /// Tokens are listed.
    TokensList = "tokens.list" Data Collection,
    /// Tokens and their values are removed.
    TokensDelete = "tokens.delete" Data Collection,
    /// When tokens expire is changed.
    TokensExpire = "tokens.expire" Data Collection,
    /// Expired tokens are taken out of use.
    TokensArchive = "tokens.archive" Data Collection,
    /// Archived tokens are removed.
    TokensPrune = "tokens.prune" Data Collection,
    /// All apps are listed.
    AppsList = "apps.list" Control All,
    /// An app is made.
    AppsCreate = "apps.create" Control App,
    /// An app gets its next key version.
    AppsRotate = "apps.rotate" Control App,
    /// An app gets a key that was made elsewhere.
    AppsImport = "apps.import" Control App,
    /// An app or key is stopped.
    AppsDisable = "apps.disable" Control App,
    /// An app or key works again.
    AppsEnable = "apps.enable" Control App,
    /// An app or key is removed.
    AppsDelete = "apps.delete" Control App,
    /// A removal is called off.
    AppsRestore = "apps.restore" Control App,
    /// An app's settings are changed.
    AppsSet = "apps.set" Control App,
    /// The control state is read as it rests, keys wrapped.
    AppsExport = "apps.export" Control All,
    /// An app's collections are listed.
    CollectionsList = "collections.list" Control Collections,
    /// A collection is made.
    CollectionsCreate = "collections.create" Control Collection,
    /// A collection's settings are changed.
    CollectionsSet = "collections.set" Control Collection,
    /// A collection is removed.
    CollectionsDelete = "collections.delete" Control Collection,
    /// The engines are listed.
    InstancesList = "instances.list" Control All,
    /// Roles are listed.
    RolesList = "roles.list" Control All,
    /// A role is made or changed.
    RolesSet = "roles.set" Control All,
    /// A role is removed.
    RolesDelete = "roles.delete" Control All,
    /// Principals are listed with their roles.
    PrincipalsList = "principals.list" Control All,
    /// A principal gets a role.
    PrincipalsGrant = "principals.grant" Control All,
    /// A principal loses a role.
    PrincipalsRevoke = "principals.revoke" Control All,
    /// What a principal may do is asked.
    PrincipalsCheck = "principals.check" Control All,
}

impl Operation {
    /// The operation of that exact name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// Whether it is about a collection, so that a grant's collections count.
    pub const fn has_collection(self) -> bool {
        matches!(self.about(), About::Collection | About::Collections)
    }

    /// Whether it is about one app.
    pub const fn has_app(self) -> bool {
        !matches!(self.about(), About::All)
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
    /// None.
    pub const NONE: Self = Self(0);
    /// Every data operation.
    pub const DATA: Self = Self::of_group(Group::Data);
    /// Those that give values, and so can be permitted under a mask.
    pub const VALUES: Self = Self(1 << Operation::Decrypt as u32 | 1 << Operation::Detokenize as u32);
    /// Every control operation.
    pub const CONTROL: Self = Self::of_group(Group::Control);

    const fn of_group(group: Group) -> Self {
        let (mut set, mut index) = (0, 0);
        while index < Operation::ALL.len() {
            let operation = Operation::ALL[index];
            if operation.group() as u8 == group as u8 {
                set |= 1 << operation as u32;
            }
            index += 1;
        }
        Self(set)
    }

    /// What an operator wrote: the name of one operation, or the beginning of several and a star, as in `tokens.*`. `None`
    /// if there is no such operation.
    ///
    /// A star stands for the operations that this program knows: one that comes with a later version is not granted by it.
    pub fn from_text(text: &str) -> Option<Self> {
        let Some(prefix) = text.strip_suffix('*') else { return Operation::from_name(text).map(Self::from) };
        let named: Self = Operation::ALL
            .into_iter()
            .filter(|operation| prefix.ends_with('.') && operation.name().starts_with(prefix))
            .collect();
        (!named.is_empty()).then_some(named)
    }

    /// Whether it holds that one.
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & (1 << operation as u32) != 0
    }

    /// Whether it holds none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Those of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Its operations, in their order.
    pub fn iter(self) -> impl Iterator<Item = Operation> {
        Operation::ALL.into_iter().filter(move |operation| self.contains(*operation))
    }
}

impl From<Operation> for Operations {
    fn from(operation: Operation) -> Self {
        Self(1 << operation as u32)
    }
}

impl FromIterator<Operation> for Operations {
    fn from_iter<I: IntoIterator<Item = Operation>>(operations: I) -> Self {
        operations.into_iter().fold(Self::NONE, |set, operation| set.and(operation.into()))
    }
}

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Operation::name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_every_operation_is_of_one_plane() {
        for operation in Operation::ALL {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
            assert_ne!(Operations::DATA.contains(operation), Operations::CONTROL.contains(operation));
        }
        assert_eq!(Operation::from_name("Encrypt"), None);
        assert!(Operations::DATA.contains(Operation::Detokenize) && !Operations::DATA.contains(Operation::AppsExport));
    }

    #[test]
    fn a_star_stands_for_what_begins_so_and_for_nothing_wider() {
        let names = |text| Operations::from_text(text).map(|set| set.iter().map(Operation::name).collect::<Vec<_>>());
        assert_eq!(names("encrypt"), Some(vec!["encrypt"]));
        assert_eq!(names("collections.*").unwrap().len(), 4);
        assert!(names("tokens.*").unwrap().iter().all(|name| name.starts_with("tokens.")));
        for none in ["*", "", "token*", "tokens.", "tokens.*.*", "t*", ".*", "data", "nothing.*", "ENCRYPT"] {
            assert_eq!(names(none), None, "{none}");
        }
    }
}
