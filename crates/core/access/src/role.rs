//! Roles and their grants.

use std::collections::BTreeSet;
use std::fmt;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::{GRANTS_MAX, HOURLY_MAX, NAMES_MAX, RoleError};
use crate::mask::MaskText;
use crate::operation::{Operation, Operations};

/// Longest name of a role, an app, a collection or a property, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The role that every engine has: all control operations on everything, and no data operation.
/// Administering keys and access therefore does not include reading values.
pub const ADMINISTRATOR: &str = "administrator";

/// The name of a role: 1 to 64 letters, digits, dots, underscores and hyphens, no dot in front.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RoleName(Box<str>);

impl RoleName {
    /// Validates and wraps a role name.
    ///
    /// # Errors
    /// [`RoleError::Name`].
    pub fn new(name: &str) -> Result<Self, RoleError> {
        if is_name(name) {
            Ok(Self(name.into()))
        } else {
            Err(RoleError::Name)
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

/// A set of names of apps, of collections or of properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// All existing and future names.
    All,
    /// The listed names, which need not exist.
    Only(BTreeSet<Box<str>>),
}

impl Names {
    /// Parses names as an operator writes them. A single `*` means all names.
    ///
    /// # Errors
    /// [`RoleError::Names`] or [`RoleError::NotAName`].
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, RoleError> {
        let names: BTreeSet<Box<str>> = names.into_iter().map(Into::into).collect();
        if names.len() == 1 && names.contains("*") {
            return Ok(Self::All);
        }
        if !(1..=NAMES_MAX).contains(&names.len()) {
            return Err(RoleError::Names);
        }
        match names.iter().find(|name| !is_name(name)) {
            Some(other) => Err(RoleError::NotAName(shown(other))),
            None => Ok(Self::Only(names)),
        }
    }

    /// Returns the names as an operator writes them.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::All => vec!["*"],
            Self::Only(names) => names.iter().map(|name| &**name).collect(),
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }
}

/// A permission for some operations on some apps and collections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Permitted operations.
    pub operations: Operations,
    /// Apps on which the operations are permitted. Only [`Names::All`] grants operations on the
    /// whole engine.
    pub apps: Names,
    /// Collections on which the operations are permitted, for operations that apply to a
    /// collection.
    pub collections: Names,
    /// Properties of objects on which the operations are permitted. Required for operations that
    /// apply to properties.
    pub properties: Option<Names>,
    /// True if each request must give a reason.
    pub reason: bool,
    /// Mask for returned values. Only for operations of [`Operations::MASKABLE`].
    pub mask: Option<MaskText>,
    /// Maximum number of fields per hour for each principal and operation. Only for data
    /// operations.
    pub hourly: Option<u32>,
    /// Time from which the grant permits nothing, in seconds since 1970-01-01 UTC.
    pub until: Option<u64>,
}

impl Grant {
    /// Creates a grant of these operations on all apps, collections and properties, without
    /// conditions.
    pub fn on_all(operations: Operations) -> Self {
        let of_properties = operations.iter().any(Operation::has_property);
        Self {
            operations,
            apps: Names::All,
            collections: Names::All,
            properties: of_properties.then_some(Names::All),
            reason: false,
            mask: None,
            hourly: None,
            until: None,
        }
    }

    /// Parses an operator's text, such as
    /// `encrypt,tokens.* apps=shop,web collections=people reason`,
    /// `decrypt apps=shop mask=partial(last=4) hourly=1000` or
    /// `objects.get apps=shop collections=people properties=name,email until=2027-01-31T00:00:00Z`.
    ///
    /// Operations come first; the other parts follow in any order. Without `collections=` the grant
    /// covers all collections.
    ///
    /// # Errors
    /// [`RoleError`], which names the part that is wrong.
    pub fn from_text(text: &str) -> Result<Self, RoleError> {
        let mut operations = Operations::NONE;
        let (names, mut rest) = next_part(text);
        for name in names.split(',') {
            let known = Operations::from_text(name)
                .ok_or_else(|| RoleError::NoSuchOperation(shown(name)))?;
            operations = operations.and(known);
        }

        let mut apps = None;
        let mut collections = None;
        let mut properties = None;
        let mut reason = false;
        let mut mask = None;
        let mut hourly = None;
        let mut until = None;
        loop {
            let (part, behind) = next_part(rest);
            if part.is_empty() {
                break;
            }
            if let Some(text) = rest.trim_ascii_start().strip_prefix("mask=") {
                let (found, behind) = MaskText::split(text)?;
                if mask.replace(found).is_some()
                    || !(behind.is_empty() || behind.starts_with(is_space))
                {
                    return Err(RoleError::Part(shown(part)));
                }
                rest = behind;
                continue;
            }
            rest = behind;
            let (place, names) = match part.split_once('=') {
                Some(("apps", names)) => (&mut apps, names),
                Some(("collections", names)) => (&mut collections, names),
                Some(("properties", names)) => (&mut properties, names),
                Some(("until", time)) if until.is_none() => {
                    until = Some(parse_time(time)?);
                    continue;
                }
                Some(("hourly", count)) if hourly.is_none() => {
                    hourly = Some(count.parse().map_err(|_| RoleError::Hourly)?);
                    continue;
                }
                None if part == "reason" && !reason => {
                    reason = true;
                    continue;
                }
                _ => return Err(RoleError::Part(shown(part))),
            };
            if place.replace(Names::of(names.split(','))?).is_some() {
                return Err(RoleError::Part(shown(part)));
            }
        }
        let apps = apps.ok_or(RoleError::NoApps)?;
        let collections = collections.unwrap_or(Names::All);
        Ok(Self {
            operations,
            apps,
            collections,
            properties,
            reason,
            mask,
            hourly,
            until,
        })
    }
}

impl Grant {
    fn has_control_operation(&self) -> bool {
        Operations::CONTROL
            .iter()
            .any(|operation| self.operations.contains(operation))
    }

    /// Returns true if this grant shows, without a mask, all values that the grant `masked` shows
    /// masked. Collections, reasons and ends of the grants are not compared.
    fn unmasks(&self, masked: &Self) -> bool {
        self.mask.is_none()
            && (self.apps == Names::All || self.apps == masked.apps)
            && Operations::MASKABLE.iter().all(|operation| {
                self.operations.contains(operation) || !masked.operations.contains(operation)
            })
    }
}

/// Parses the time of `until=`.
fn parse_time(text: &str) -> Result<u64, RoleError> {
    let time = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| RoleError::Until)?;
    u64::try_from(time.unix_timestamp()).map_err(|_| RoleError::Until)
}

/// Formats a time as [`parse_time`] reads it.
fn format_time(seconds: u64) -> String {
    let time = i64::try_from(seconds)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    time.and_then(|time| time.format(&Rfc3339).ok())
        .unwrap_or_else(|| seconds.to_string())
}

/// Splits off the first word. Returns the word and the rest.
fn next_part(text: &str) -> (&str, &str) {
    let text = text.trim_ascii_start();
    text.split_at(text.find(is_space).unwrap_or(text.len()))
}

fn is_space(sign: char) -> bool {
    sign.is_ascii_whitespace()
}

impl fmt::Display for Grant {
    /// Writes the text that [`Grant::from_text`] reads, with every operation under its own name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operations: Vec<_> = self.operations.iter().map(Operation::name).collect();
        write!(
            f,
            "{} apps={}",
            operations.join(","),
            self.apps.texts().join(",")
        )?;
        if self.collections != Names::All {
            write!(f, " collections={}", self.collections.texts().join(","))?;
        }
        if let Some(properties) = &self.properties {
            write!(f, " properties={}", properties.texts().join(","))?;
        }
        if let Some(mask) = &self.mask {
            write!(f, " mask={mask}")?;
        }
        if let Some(hourly) = self.hourly {
            write!(f, " hourly={hourly}")?;
        }
        if let Some(until) = self.until {
            write!(f, " until={}", format_time(until))?;
        }
        if self.reason {
            f.write_str(" reason")
        } else {
            Ok(())
        }
    }
}

/// Prepares an operator's word for an error message: removes control characters and cuts long
/// words.
fn shown(word: &str) -> String {
    word.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// A named list of grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    name: RoleName,
    grants: Box<[Grant]>,
}

impl Role {
    /// Creates a role with these grants. A role without grants permits nothing.
    ///
    /// # Errors
    /// [`RoleError`], also for the built-in name.
    pub fn new(name: &str, grants: Vec<Grant>) -> Result<Self, RoleError> {
        let name = RoleName::new(name)?;
        if name.as_str() == ADMINISTRATOR {
            return Err(RoleError::BuiltIn);
        }
        if grants.len() > GRANTS_MAX {
            return Err(RoleError::Grants);
        }
        if grants.iter().any(|grant| grant.operations.is_empty()) {
            return Err(RoleError::NoOperation);
        }
        if grants
            .iter()
            .any(|grant| (grant.reason || grant.hourly.is_some()) && grant.has_control_operation())
        {
            return Err(RoleError::ReasonOfControl);
        }
        if grants
            .iter()
            .filter_map(|grant| grant.hourly)
            .any(|hourly| !(1..=HOURLY_MAX).contains(&hourly))
        {
            return Err(RoleError::Hourly);
        }
        for grant in &grants {
            let of_property = grant
                .operations
                .iter()
                .find(|operation| operation.has_property());
            match (of_property, &grant.properties) {
                (Some(operation), None) => return Err(RoleError::NoProperties(operation)),
                (None, Some(_)) => return Err(RoleError::PropertiesOfNone),
                _ => {}
            }
        }
        for grant in grants.iter().filter(|grant| grant.mask.is_some()) {
            if let Some(other) = grant.operations.without(Operations::MASKABLE).iter().next() {
                return Err(RoleError::MaskOf(other));
            }
        }
        Ok(Self {
            name,
            grants: grants.into(),
        })
    }

    /// Returns the built-in role [`ADMINISTRATOR`].
    pub fn administrator() -> Self {
        let grant = Grant::on_all(Operations::CONTROL);
        Self {
            name: RoleName(ADMINISTRATOR.into()),
            grants: Box::new([grant]),
        }
    }

    /// Returns true if a principal with this role, which shows values masked, could find values by
    /// unlimited guessing. The principal can encrypt or mask a guess and compare the masked
    /// results, or tokenize it if equal values have equal tokens, or search objects by it.
    pub fn can_guess(&self) -> bool {
        let mut masked = self.grants.iter().filter(|grant| grant.mask.is_some());
        let is_masked = masked.clone().next().is_some();
        let sees_all = masked.all(|masked| self.grants.iter().any(|grant| grant.unmasks(masked)));
        let compares_masks = self
            .grants
            .iter()
            .filter(|grant| {
                grant
                    .mask
                    .as_ref()
                    .is_some_and(|mask| !mask.tells_nothing())
            })
            .any(|grant| grant.hourly.is_none());

        is_masked
            && !sees_all
            && ((compares_masks && self.has_unlimited(&[Operation::Encrypt, Operation::Mask]))
                || self.has_unlimited(&[Operation::Tokenize, Operation::TokensFind])
                || self.has_unlimited(&[Operation::ObjectsQuery]))
    }

    /// Returns true if a grant without an hourly limit has any of these operations.
    fn has_unlimited(&self, operations: &[Operation]) -> bool {
        let mut unlimited = self.grants.iter().filter(|grant| grant.hourly.is_none());
        unlimited.any(|grant| {
            operations
                .iter()
                .any(|operation| grant.operations.contains(*operation))
        })
    }

    /// Returns the role's name.
    pub fn name(&self) -> &RoleName {
        &self.name
    }

    /// Returns the role's grants.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Returns the union of all granted operations.
    pub fn operations(&self) -> Operations {
        self.grants
            .iter()
            .fold(Operations::NONE, |all, grant| all.and(grant.operations))
    }

    /// Returns true if a grant of the role has `operation`.
    pub fn has(&self, operation: Operation) -> bool {
        self.operations().contains(operation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_alphabet_of_apps_or_a_star_alone() {
        assert_eq!(Names::of(["*"]), Ok(Names::All));
        assert_eq!(
            Names::of(["shop", "shop", "a.b_c-d"]).unwrap().texts(),
            ["a.b_c-d", "shop"]
        );
        let not_a_name = |name: &str| Err(RoleError::NotAName(name.into()));
        assert_eq!(Names::of([]), Err(RoleError::Names));
        for (names, error) in [
            (vec!["*", "shop"], not_a_name("*")),
            (vec![""], not_a_name("")),
            (vec!["sh*"], not_a_name("sh*")),
            (vec![".shop"], not_a_name(".shop")),
            (vec!["a\u{1b}[2Jb"], not_a_name("a[2Jb")),
        ] {
            assert_eq!(Names::of(names.iter().copied()), error, "{names:?}");
        }
        let many: Vec<String> = (0..=NAMES_MAX).map(|n| format!("app{n}")).collect();
        assert_eq!(
            Names::of(many.iter().map(|name| &**name)),
            Err(RoleError::Names)
        );
        assert!(Names::of(many[1..].iter().map(|name| &**name)).is_ok());
    }

    #[test]
    fn grants_round_trip_through_text() {
        for (text, written) in [
            ("encrypt apps=shop", "encrypt apps=shop"),
            (
                "decrypt,encrypt apps=b,a,b reason",
                "encrypt,decrypt apps=a,b reason",
            ),
            (
                "  tokenize   collections=people apps=* ",
                "tokenize apps=* collections=people",
            ),
            (
                "encrypt reason apps=* collections=*",
                "encrypt apps=* reason",
            ),
            (
                "collections.*,encrypt apps=*",
                "encrypt,collections.list,collections.create,collections.set,collections.alter,collections.migrate,collections.delete apps=*",
            ),
            (
                "decrypt apps=shop mask=partial(last=4)",
                "decrypt apps=shop mask=partial(last=4)",
            ),
            (
                "decrypt  mask=\"partial(first=1, last=4)\"  apps=a reason",
                "decrypt apps=a mask=partial(first=1, last=4) reason",
            ),
            (
                "detokenize,decrypt mask=fixed(\"n a\") collections=x apps=*",
                "decrypt,detokenize apps=* collections=x mask=fixed(\"n a\")",
            ),
            (
                "objects.get properties=name,email apps=a collections=c mask=redact until=2027-01-31T01:00:00+01:00",
                "objects.get apps=a collections=c properties=email,name mask=redact until=2027-01-31T00:00:00Z",
            ),
            (
                "objects.query apps=a properties=*",
                "objects.query apps=a properties=*",
            ),
        ] {
            let grant = Grant::from_text(text).unwrap();
            assert_eq!(grant.to_string(), written);
            assert_eq!(Grant::from_text(written), Ok(grant));
        }
        let part = |word: &str| RoleError::Part(word.into());
        let operation = |word: &str| RoleError::NoSuchOperation(word.into());
        for (text, error) in [
            ("", operation("")),
            ("encrypt", RoleError::NoApps),
            ("apps=shop", operation("apps=shop")),
            ("encrypt, apps=shop", operation("")),
            ("encrypt,fly apps=shop", operation("fly")),
            ("* apps=shop", operation("*")),
            ("encrypt apps=", RoleError::NotAName(String::new())),
            ("encrypt apps=shop apps=web", part("apps=web")),
            ("encrypt apps=shop reason reason", part("reason")),
            ("encrypt apps=shop reason=yes", part("reason=yes")),
            ("encrypt app=shop", part("app=shop")),
            ("decrypt apps=shop mask=", RoleError::Mask),
            ("decrypt apps=shop mask=partial(last=4", RoleError::Mask),
            ("decrypt apps=shop mask=redact mask=hash", part("mask=hash")),
            (
                "decrypt apps=shop mask=\"redact\"reason",
                part("mask=\"redact\"reason"),
            ),
            ("decrypt apps=shop mask", part("mask")),
            ("mask=redact apps=shop", operation("mask=redact")),
            ("decrypt apps=shop until=2027-01-31", RoleError::Until),
            (
                "decrypt apps=shop until=1969-12-31T23:59:59Z",
                RoleError::Until,
            ),
            (
                "objects.get apps=a properties=",
                RoleError::NotAName(String::new()),
            ),
            (
                "encrypt apps=shop collections=../x",
                RoleError::NotAName("../x".into()),
            ),
        ] {
            assert_eq!(Grant::from_text(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_role_by_which_one_can_guess_is_known() {
        for (grants, expected) in [
            (&["encrypt,tokenize apps=*"][..], false),
            (&["decrypt apps=* mask=hash"], false),
            (&["decrypt apps=* mask=hash", "encrypt apps=*"], true),
            (&["decrypt apps=* mask=hash", "mask apps=*"], true),
            (&["detokenize apps=* mask=redact", "encrypt apps=*"], false),
            (&["detokenize apps=* mask=redact", "tokenize apps=*"], true),
            (&["detokenize apps=* mask=redact", "tokens.* apps=*"], true),
            // An hourly limit applies, or the values are visible anyway.
            (
                &["decrypt apps=* mask=hash hourly=100", "encrypt apps=*"],
                false,
            ),
            (
                &["decrypt apps=* mask=hash", "encrypt apps=* hourly=100"],
                false,
            ),
            (
                &[
                    "detokenize apps=* mask=redact",
                    "tokenize apps=* hourly=100",
                ],
                false,
            ),
            (
                &[
                    "objects.get apps=* properties=* mask=hash",
                    "objects.query apps=* properties=*",
                ],
                true,
            ),
            (
                &[
                    "objects.get apps=* properties=* mask=hash",
                    "objects.list apps=*",
                ],
                false,
            ),
            (
                &["decrypt apps=* mask=hash", "decrypt,encrypt apps=*"],
                false,
            ),
            (
                &["decrypt apps=* mask=hash", "decrypt,encrypt apps=shop"],
                true,
            ),
        ] {
            let role = Role::new(
                "r",
                grants
                    .iter()
                    .map(|text| Grant::from_text(text).unwrap())
                    .collect(),
            )
            .unwrap();
            assert_eq!(role.can_guess(), expected, "{grants:?}");
        }
    }

    #[test]
    fn a_role_has_a_name_of_its_own_and_no_empty_grant() {
        let grant = Grant::on_all;
        let encrypt = || grant(Operation::Encrypt.into());
        let redact = || Some(MaskText::new("redact").unwrap());
        let long = "r".repeat(65);
        for (name, grants, outcome) in [
            ("relay", vec![encrypt()], Ok(())),
            ("relay", vec![], Ok(())),
            (&long[1..], vec![encrypt(); GRANTS_MAX], Ok(())),
            (&long, vec![], Err(RoleError::Name)),
            ("", vec![], Err(RoleError::Name)),
            ("a/b", vec![], Err(RoleError::Name)),
            (ADMINISTRATOR, vec![encrypt()], Err(RoleError::BuiltIn)),
            (
                "relay",
                vec![encrypt(); GRANTS_MAX + 1],
                Err(RoleError::Grants),
            ),
            (
                "relay",
                vec![encrypt(), grant(Operations::NONE)],
                Err(RoleError::NoOperation),
            ),
            (
                "relay",
                vec![Grant {
                    reason: true,
                    ..encrypt()
                }],
                Ok(()),
            ),
            (
                "relay",
                vec![Grant {
                    reason: true,
                    ..grant(Operations::CONTROL.and(Operation::Encrypt.into()))
                }],
                Err(RoleError::ReasonOfControl),
            ),
            (
                "relay",
                vec![Grant {
                    mask: redact(),
                    ..grant(Operations::MASKABLE)
                }],
                Ok(()),
            ),
            (
                "relay",
                vec![Grant {
                    mask: redact(),
                    ..grant(Operations::MASKABLE.and(Operation::TokensGet.into()))
                }],
                Err(RoleError::MaskOf(Operation::TokensGet)),
            ),
            (
                "relay",
                vec![Grant {
                    mask: redact(),
                    ..encrypt()
                }],
                Err(RoleError::MaskOf(Operation::Encrypt)),
            ),
            ("relay", vec![grant(Operation::ObjectsGet.into())], Ok(())),
            (
                "relay",
                vec![Grant {
                    properties: None,
                    ..grant(Operation::ObjectsGet.into())
                }],
                Err(RoleError::NoProperties(Operation::ObjectsGet)),
            ),
            (
                "relay",
                vec![Grant {
                    properties: Some(Names::All),
                    ..encrypt()
                }],
                Err(RoleError::PropertiesOfNone),
            ),
        ] {
            assert_eq!(Role::new(name, grants).map(drop), outcome, "{name}");
        }
    }

    #[test]
    fn an_administrator_may_change_everything_and_read_no_value() {
        let role = Role::administrator();
        for operation in Operation::ALL {
            assert_eq!(
                role.has(operation),
                Operations::CONTROL.contains(operation),
                "{operation}"
            );
        }
    }
}
