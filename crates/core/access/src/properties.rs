//! Properties of objects that a permit covers: which a request may read, search by, and write, and
//! through which masks.

use crate::decide::ValueVisibility;
use crate::mask::MaskText;
use crate::operation::Operation;
use crate::role::{Grant, Names};

/// Properties that one kind of access covers.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CoveredProperties {
    /// All properties, through a mask if there is one.
    All(Option<MaskText>),
    /// The properties of grants, each with its mask.
    Granted(Vec<(Names, Option<MaskText>)>),
}

impl CoveredProperties {
    /// Returns the properties of grants, each with its mask.
    fn of_grants<'g>(grants: impl Iterator<Item = &'g Grant>) -> Self {
        Self::Granted(
            grants
                .filter_map(|grant| Some((grant.properties.clone()?, grant.mask.clone())))
                .collect(),
        )
    }

    /// Returns how values of a property are shown, or `None` if no grant covers the property. A
    /// grant without a mask takes precedence; otherwise the first one applies.
    fn find(&self, property: &str) -> Option<ValueVisibility<'_>> {
        match self {
            Self::All(mask) => Some(
                mask.as_ref()
                    .map_or(ValueVisibility::Clear, ValueVisibility::Masked),
            ),
            Self::Granted(grants) => {
                let mut covering = grants
                    .iter()
                    .filter(|(names, _)| names.contains(property))
                    .map(|(_, mask)| mask);
                let first = covering.next()?;
                let Some(mask) = first else {
                    return Some(ValueVisibility::Clear);
                };
                let is_clear = covering.any(Option::is_none);
                Some(if is_clear {
                    ValueVisibility::Clear
                } else {
                    ValueVisibility::Masked(mask)
                })
            }
        }
    }
}

/// Access of a permitted request to the properties of objects. Empty for other requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    read: CoveredProperties,
    /// Properties that the operation searches by (`objects.query`) or writes (`objects.add` and
    /// `objects.update`).
    used: CoveredProperties,
}

impl PropertyAccess {
    /// No property.
    pub(crate) const NONE: Self = Self {
        read: CoveredProperties::Granted(Vec::new()),
        used: CoveredProperties::Granted(Vec::new()),
    };

    /// All properties; values are read through `mask`, if there is one.
    pub(crate) fn all(mask: Option<MaskText>) -> Self {
        Self {
            read: CoveredProperties::All(mask),
            used: CoveredProperties::All(None),
        }
    }

    /// Returns the properties of the grants that cover a request. `covers` decides whether a grant
    /// covers an operation in the place and time of the request.
    pub(crate) fn of<'g>(
        operation: Operation,
        grants: impl Iterator<Item = &'g Grant> + Clone,
        covers: impl Fn(&Grant, Operation) -> bool,
    ) -> Self {
        let mut access = Self::NONE;
        if operation.reads_properties() {
            let granted = grants
                .clone()
                .filter(|grant| covers(grant, Operation::ObjectsGet));
            access.read = CoveredProperties::of_grants(granted);
        }
        if operation.has_property() {
            let granted = grants.filter(|grant| covers(grant, operation));
            access.used = CoveredProperties::of_grants(granted);
        }
        access
    }

    /// Returns how the response shows values of a property, or `None` if it does not show them.
    #[must_use]
    pub fn read(&self, property: &str) -> Option<ValueVisibility<'_>> {
        self.read.find(property)
    }

    /// Returns true if the request can search by the property (`objects.query`), or write it
    /// (`objects.add` and `objects.update`).
    #[must_use]
    pub fn uses(&self, property: &str) -> bool {
        self.used.find(property).is_some()
    }
}
