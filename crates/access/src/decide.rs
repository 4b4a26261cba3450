//! One decision for each call, and the proof that it was made.
//!
//! What is not granted is refused; grants of all roles add up; nothing denies. The answer names what was missing in the
//! caller's own words, and never what else there is: whether an app exists plays no part in it. Where grants differ in
//! what they let see, one without a mask wins, then one without a number of fields by the hour, then the first of the first role.
//!
//! With [`Mode::Observe`] calls pass that no role grants. Masks still apply: a principal with a mask sees all values through it.

use std::sync::Arc;

use crate::mask::MaskText;
use crate::operation::{About, Operation, Operations};
use crate::role::{Grant, Role, RoleName};

/// What becomes of calls that no role grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are refused.
    #[default]
    Enforce,
    /// They pass, and are counted. Values are shown through the principal's masks, if it has any.
    Observe,
    /// Nothing is looked at: a certificate is enough.
    Off,
}

/// How far an operation reaches in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent<'a> {
    /// It is not about that.
    None,
    /// All there are.
    Every,
    /// That one.
    One(&'a str),
}

/// What a call wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    operation: Operation,
    app: Extent<'a>,
    collection: Extent<'a>,
    reason: Option<&'a str>,
}

impl<'a> Ask<'a> {
    /// An operation on the app and collection that the call names. What the operation is not about is left out, and
    /// what it is about and the call does not name is all there is.
    pub fn new(operation: Operation, app: Option<&'a str>, collection: Option<&'a str>) -> Self {
        let one = |name: Option<&'a str>| name.map_or(Extent::Every, Extent::One);
        let (app, collection) = match operation.about() {
            About::All => (Extent::Every, Extent::None),
            About::App => (one(app), Extent::None),
            About::Collections => (one(app), Extent::Every),
            About::Collection => (one(app), one(collection)),
        };
        Self { operation, app, collection, reason: None }
    }

    /// The same with the caller's words on why.
    #[must_use]
    pub fn because(mut self, reason: Option<&'a str>) -> Self {
        self.reason = reason;
        self
    }

    /// What is to be done.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// What a grant lacks for this; `None`: it permits it.
    fn lacks(&self, grant: &Grant) -> Option<Missing> {
        let covers = |names: &crate::Names, extent| match extent {
            Extent::None => true,
            Extent::Every => *names == crate::Names::All,
            Extent::One(name) => names.contains(name),
        };
        if !grant.operations.contains(self.operation) {
            Some(Missing::Operation)
        } else if !covers(&grant.apps, self.app) {
            Some(Missing::App)
        } else if !covers(&grant.collections, self.collection) {
            Some(Missing::Collection)
        } else if grant.reason && self.reason.is_none() {
            Some(Missing::Reason)
        } else {
            None
        }
    }
}

/// What stands between a call and its permit: of all grants the one that came closest. In that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Missing {
    /// The principal has no role.
    Role,
    /// No grant has the operation.
    Operation,
    /// Those that have it are on other apps.
    App,
    /// Or on other collections.
    Collection,
    /// Only the caller's reason.
    Reason,
}

impl Missing {
    /// Every kind.
    pub const ALL: [Self; 5] = [Self::Role, Self::Operation, Self::App, Self::Collection, Self::Reason];

    /// Its name; also a good metric label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Role => "role",
            Self::Operation => "operation",
            Self::App => "app",
            Self::Collection => "collection",
            Self::Reason => "reason",
        }
    }
}

/// A call that is not permitted. Its text is for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Denied {
    /// What it wanted.
    pub operation: Operation,
    /// What was missing.
    pub missing: Missing,
    app: Option<Box<str>>,
    collection: Option<Box<str>>,
}

impl Denied {
    fn of(ask: &Ask<'_>, missing: Missing) -> Self {
        let name = |extent| match extent {
            Extent::One(name) => Some(Box::from(name)),
            Extent::None | Extent::Every => None,
        };
        Self { operation: ask.operation, missing, app: name(ask.app), collection: name(ask.collection) }
    }

    fn text(&self) -> String {
        let operation = self.operation;
        let on = match (&self.app, &self.collection) {
            (Some(app), Some(collection)) => format!(" on collection {collection} of app {app}"),
            (Some(app), None) => format!(" on app {app}"),
            (None, _) => String::new(),
        };
        match self.missing {
            Missing::Role => format!("no role grants {operation}{on}: this principal has none"),
            Missing::Operation => format!("no role of this principal grants {operation}"),
            Missing::App if self.app.is_none() => format!("no role of this principal grants {operation} on all apps"),
            Missing::App => format!("no role of this principal grants {operation}{on}"),
            Missing::Collection if self.collection.is_none() => {
                format!("no role of this principal grants {operation}{on} with all collections")
            }
            Missing::Collection => format!("no role of this principal grants {operation}{on}"),
            Missing::Reason => format!("{operation}{on} needs a reason"),
        }
    }
}

/// What a principal may do: its roles, put together.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    roles: Box<[Arc<Role>]>,
    operations: Operations,
}

impl Grants {
    /// Of these roles.
    pub fn of(roles: impl IntoIterator<Item = Arc<Role>>) -> Self {
        let roles: Box<[Arc<Role>]> = roles.into_iter().collect();
        let operations = roles.iter().fold(Operations::NONE, |all, role| all.and(role.operations()));
        Self { roles, operations }
    }

    /// Whether there is no role among them.
    pub fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }

    /// What permits it, or what is missing.
    fn judge(&self, ask: &Ask<'_>) -> Result<Permitted<'_>, Missing> {
        if self.roles.is_empty() {
            return Err(Missing::Role);
        }
        if !self.operations.contains(ask.operation) {
            return Err(Missing::Operation);
        }
        let (mut closest, mut widest) = (Missing::Operation, None);
        for role in &self.roles {
            for grant in role.grants() {
                if let Some(missing) = ask.lacks(grant) {
                    closest = closest.max(missing);
                    continue;
                }
                let found = Permitted { role: role.name(), mask: grant.mask.as_ref(), hourly: grant.hourly };
                match found.bounds() {
                    (false, false) => return Ok(found),
                    bounds if widest.is_none_or(|widest: Permitted<'_>| bounds < widest.bounds()) => {
                        widest = Some(found)
                    }
                    _ => (),
                }
            }
        }
        widest.ok_or(closest)
    }

    /// Returns the mask for values that no grant covers, with [`Mode::Observe`]: the mask of the principal's grants, or one that
    /// shows nothing if the grants have several masks.
    fn observed_mask(&self) -> Option<MaskText> {
        let mut masks = self.roles.iter().flat_map(|role| role.grants()).filter_map(|grant| grant.mask.as_ref());
        let first = masks.next()?;
        Some(if masks.all(|mask| mask == first) { first.clone() } else { MaskText::redact() })
    }

    /// Decides on a call, strictly.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn decide<'a>(&self, ask: Ask<'a>) -> Result<Permit<'a>, Denied> {
        match self.judge(&ask) {
            Ok(permitted) => Ok(Permit::of(ask, permitted.mask, permitted.hourly)),
            Err(missing) => Err(Denied::of(&ask, missing)),
        }
    }

    /// What permits a call.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn permitted(&self, ask: &Ask<'_>) -> Result<Permitted<'_>, Denied> {
        self.judge(ask).map_err(|missing| Denied::of(ask, missing))
    }
}

/// What permits a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted<'a> {
    /// The role.
    pub role: &'a RoleName,
    /// What values are shown through.
    pub mask: Option<&'a MaskText>,
    /// Fields per hour for the principal.
    pub hourly: Option<u32>,
}

impl Permitted<'_> {
    /// Returns the grant's restrictions. Of several grants the one with fewer restrictions applies.
    fn bounds(&self) -> (bool, bool) {
        (self.mask.is_some(), self.hourly.is_some())
    }
}

/// The decision on a call.
#[derive(Debug)]
pub struct Decision<'a> {
    /// The proof that it may go on.
    pub permit: Permit<'a>,
    /// Why it would have been refused, where that is only observed.
    pub observed: Option<Denied>,
}

impl Mode {
    /// Decides on a call of somebody who may do what `grants` says; `None` is nothing.
    ///
    /// # Errors
    /// [`Denied`], where it is enforced.
    pub fn decide<'a>(self, grants: Option<&Grants>, ask: Ask<'a>) -> Result<Decision<'a>, Denied> {
        let judged = match (self, grants) {
            (Self::Off, _) => Ok((None, None)),
            (_, Some(grants)) => grants.judge(&ask).map(|permitted| (permitted.mask, permitted.hourly)),
            (_, None) => Err(Missing::Role),
        };
        match judged.map_err(|missing| Denied::of(&ask, missing)) {
            Ok((mask, hourly)) => Ok(Decision { permit: Permit::of(ask, mask, hourly), observed: None }),
            Err(denied) if self == Self::Observe => {
                let mask = grants.and_then(Grants::observed_mask);
                Ok(Decision { permit: Permit::of(ask, mask.as_ref(), None), observed: Some(denied) })
            }
            Err(denied) => Err(denied),
        }
    }

    /// The permit of a call of somebody of whom nothing is known, which passes all the same; `None` where it does not. What gives
    /// values does not: they might have to be masked.
    pub fn unknown(self, ask: Ask<'_>) -> Option<Permit<'_>> {
        let passes = match self {
            Self::Enforce => false,
            Self::Observe => !Operations::VALUES.contains(ask.operation),
            Self::Off => true,
        };
        passes.then(|| Permit::of(ask, None, None))
    }
}

/// The proof that a decision was made and what it was about. Only a decision makes one, and handlers take the names from
/// it, so that what is done is what was permitted.
#[derive(Debug, PartialEq, Eq)]
pub struct Permit<'a> {
    operation: Operation,
    app: Option<&'a str>,
    collection: Option<&'a str>,
    mask: Option<MaskText>,
    hourly: Option<u32>,
}

/// What of values a permit lets see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sight<'p> {
    /// The values.
    Clear,
    /// Every value through this, and none that it does not fit.
    Masked(&'p MaskText),
}

impl<'a> Permit<'a> {
    fn of(ask: Ask<'a>, mask: Option<&MaskText>, hourly: Option<u32>) -> Self {
        let name = |extent| match extent {
            Extent::One(name) => Some(name),
            Extent::None | Extent::Every => None,
        };
        let mask = mask.cloned();
        Self { operation: ask.operation, app: name(ask.app), collection: name(ask.collection), mask, hourly }
    }

    /// Returns the principal's fields per hour for this operation; `None` if they are not limited.
    pub fn hourly(&self) -> Option<u32> {
        self.hourly
    }

    /// How values may be given.
    pub fn sight(&self) -> Sight<'_> {
        self.mask.as_ref().map_or(Sight::Clear, Sight::Masked)
    }

    /// What was permitted.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// On which app, if it is about one.
    pub fn app(&self) -> Option<&'a str> {
        self.app
    }

    /// On which collection, if it is about one.
    pub fn collection(&self) -> Option<&'a str> {
        self.collection
    }
}

#[cfg(test)]
mod tests;
