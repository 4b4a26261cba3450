//! The reasons why a role or grant is invalid, and the bounds that they name.

use crate::operation::Operation;

/// Maximum number of grants per role.
pub const GRANTS_MAX: usize = 64;
/// Maximum number of apps, of collections or of properties that one grant names. A grant for more
/// names must use `*`.
pub const NAMES_MAX: usize = 1_000;
/// Largest hourly limit of a grant, in fields.
pub const HOURLY_MAX: u32 = 1_000_000_000;
/// Longest text of a mask, in bytes.
pub const MASK_BYTES_MAX: usize = 1_024;

/// A reason why a role or grant is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// The role name has the wrong length or an invalid character.
    #[error(
        "the name of a role must be 1 to 64 letters, digits, dots, underscores or hyphens, and not start with a dot"
    )]
    Name,
    /// The name belongs to the built-in role, which cannot be changed.
    #[error("role administrator is built in and cannot be changed or deleted; choose another name")]
    BuiltIn,
    /// Too many grants.
    #[error("a role has at most {GRANTS_MAX} grants")]
    Grants,
    /// The grant is without operations.
    #[error("a grant must name at least one operation, such as decrypt")]
    NoOperation,
    /// A list of apps, collections or properties is empty or too long.
    #[error(
        "apps=, collections= and properties= must each have 1 to {NAMES_MAX} names, or \"*\" for all"
    )]
    Names,
    /// The text cannot be the name of an app, a collection or a property.
    #[error(
        "\"{0}\" cannot be the name of an app, a collection or a property: use 1 to 64 letters, digits, dots, underscores or hyphens, and no dot at the start"
    )]
    NotAName(String),
    /// The word is not the name of an operation.
    #[error(
        "\"{0}\" is not an operation. Examples are encrypt, decrypt, tokenize, tokens.* and apps.rotate"
    )]
    NoSuchOperation(String),
    /// The word is not a part of a grant, or the part occurs twice.
    #[error(
        "\"{0}\" is not a part of a grant: after the operations come apps=, collections=, properties=, mask=, hourly=, until= and reason, each once"
    )]
    Part(String),
    /// The grant is without apps.
    #[error("a grant must name its apps: add apps=NAME,NAME, or apps=* for all")]
    NoApps,
    /// The grant has a reason or an hourly limit but names control operations. Control requests
    /// carry no reason and no fields.
    #[error("reason and hourly work only with data operations, such as decrypt; remove them")]
    ReasonOfControl,
    /// The hourly limit is outside 1 to [`HOURLY_MAX`].
    #[error("hourly must be 1 to {HOURLY_MAX}")]
    Hourly,
    /// The text is not the syntax of a mask function.
    #[error(
        "a mask must be a function of at most {MASK_BYTES_MAX} bytes, such as mask=partial(last=4)"
    )]
    Mask,
    /// A grant of an operation on properties names none.
    #[error("{0} needs properties=NAME,NAME, or properties=* for all and future ones")]
    NoProperties(Operation),
    /// A grant names properties, and no operation that applies to them.
    #[error(
        "properties= works only with objects.add, objects.get, objects.update and objects.query; remove it"
    )]
    PropertiesOfNone,
    /// The time of `until=` is invalid.
    #[error("until must be a time such as 2027-01-31T00:00:00Z")]
    Until,
    /// A grant with a mask names an operation outside of
    /// [`Operations::MASKABLE`](crate::Operations::MASKABLE).
    #[error(
        "mask= works only with decrypt, detokenize and objects.get; put {0} into a separate grant without a mask"
    )]
    MaskOf(Operation),
}
