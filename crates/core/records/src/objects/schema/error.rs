//! Errors of schemas and of their changes.

use super::PropertyName;
use crate::objects::PropertyType;

/// A schema, or a change of one, that breaks a rule. The operator must correct the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A name of another form.
    #[error("a property name is 1 to 40 of a-z, 0-9 and _, and begins with a letter")]
    InvalidName,
    /// A name that every object uses for something else.
    #[error("`{0}` is a built-in field of every object: choose another name")]
    ReservedName(&'static str),
    /// A name stands twice, or the schema already has it.
    #[error("property `{0}` is named twice, or exists already")]
    Repeated(PropertyName),
    /// A change names a property that the schema does not have.
    #[error("no property `{0}`")]
    Unknown(PropertyName),
    /// More than 64 properties.
    #[error("a collection has at most 64 properties")]
    TooManyProperties,
    /// More than 16 indexes.
    #[error("a collection has at most 16 indexes")]
    TooManyIndexes,
    /// More than 256 dropped properties. The stored schema is damaged.
    #[error("a schema has more than 256 dropped properties")]
    TooManyDropped,
    /// A number is used twice or was never given out.
    #[error("the numbers of properties and indexes are damaged")]
    InvalidNumbers,
    /// All 2^32 numbers are used.
    #[error(
        "the numbers of properties and indexes are used up: make a new collection and copy the objects"
    )]
    NumbersUsedUp,
    /// A description is too long or has control characters.
    #[error("the description of `{0}` must have at most 256 bytes and no control characters")]
    InvalidDescription(PropertyName),
    /// A type that cannot have an index.
    #[error("`{0}` of type {1} cannot have an index")]
    CannotIndex(PropertyName, PropertyType),
    /// A type that cannot have prefixes.
    #[error(
        "`{0}` of type {1} cannot have prefixes: only string, name, email, phone, card, iban and national_id can"
    )]
    CannotPrefix(PropertyName, PropertyType),
    /// Bits outside of 8 to 16.
    #[error("`bits` of `{0}` must be 8 to 16; without it terms have 128 bits")]
    InvalidBits(PropertyName),
    /// Bits of a unique property.
    #[error("`{0}` is unique, so it cannot have `bits`: other values would share its terms")]
    BitsOfUnique(PropertyName),
    /// Prefixes of another form.
    #[error("`prefixes` of `{0}` must be at most 4 lengths of 1 to 16 characters, ascending")]
    InvalidPrefixes(PropertyName),
    /// Prefixes without consent.
    #[error(
        "prefixes of `{0}` let everyone who reads the store, its backups or its logs see which values begin alike; \
         with public statistics most names can be guessed from that. Set `accept_leak` to accept it"
    )]
    PrefixesLeak(PropertyName),
    /// Bits or prefixes without an index.
    #[error("`bits` and `prefixes` of `{0}` need `index` or `unique`")]
    NeedsIndex(PropertyName),
    /// A stored unique property lacks its index.
    #[error("unique property `{0}` has no index")]
    UniqueNeedsIndex(PropertyName),
    /// A readable property of a type that must be sealed.
    #[error("`{0}` of type {1} must be encrypted")]
    MustEncrypt(PropertyName, PropertyType),
    /// An added property that cannot be null.
    #[error("added property `{0}` must be nullable, because existing objects have no value of it")]
    AddedNotNullable(PropertyName),
    /// The same change drops and adds a name.
    #[error(
        "`{0}` is dropped and added in one change: do it in two, once every engine has seen the first"
    )]
    DroppedAndAdded(PropertyName),
    /// The same change drops a property and changes it otherwise.
    #[error("`{0}` is dropped and changed in one change")]
    DroppedAndChanged(PropertyName),
    /// A constraint or an index to remove that the property does not have.
    #[error("`{0}` {1}, so there is nothing to change")]
    NothingToChange(PropertyName, &'static str),
    /// The index of a unique property holds its uniqueness.
    #[error("`{0}` is unique, so it needs its index: relax `unique` first")]
    IndexOfUnique(PropertyName),
    /// A change that an existing property does not permit.
    #[error(
        "the type, index settings and encryption of a property cannot change, nor can it become unique or not nullable: \
         add a new property, copy the values, drop the old one"
    )]
    NotInPlace,
}
