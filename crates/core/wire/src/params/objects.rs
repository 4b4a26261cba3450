//! Params of the methods on objects, and of the schemas of their collections.

use crate::method::Method;
use crate::params::{Suite, Sweep, TokenMap};

/// A call on the objects of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectsCall<'a> {
    /// The app and collection, and the params that every call has.
    pub map: TokenMap<'a>,
    /// The operation.
    pub ask: ObjectsOperation<'a>,
}

/// An operation of an [`ObjectsCall`]. Lists of ids hold 1 to 500 ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectsOperation<'a> {
    /// Adds objects: all or none.
    Add(AddObjects<'a>),
    /// Returns objects by id.
    Get {
        /// The objects.
        ids: Vec<&'a str>,
        /// The properties to return.
        disclosure: PropertyDisclosure<'a>,
    },
    /// Changes objects: all or none.
    Update {
        /// One MessagePack array of 1 to 500 maps `{id, set, if_version?}`.
        changes: &'a [u8],
    },
    /// Removes objects for good: all or none.
    Delete {
        /// The objects.
        ids: Vec<&'a str>,
        /// The version that each object must have, as many as ids; `None`: any.
        versions: Option<Vec<u64>>,
    },
    /// Finds objects by their indexed properties.
    Query {
        /// One MessagePack array of 1 to 8 maps `{property, eq | in | prefix}`, all of which must
        /// hold.
        clauses: &'a [u8],
        /// The properties to return.
        disclosure: PropertyDisclosure<'a>,
        /// The `next` of the page before.
        after: Option<&'a str>,
        /// Objects on the page at most, 1 to 500; `None` is 100.
        limit: Option<u32>,
    },
    /// A page of the collection's objects, by id.
    List {
        /// Only those with this tag.
        tag: Option<&'a str>,
        /// Only those that expired before this, in seconds since 1970-01-01 UTC.
        expired_before: Option<u64>,
        /// Only archived ones; otherwise only others.
        archived: bool,
        /// The properties to return.
        disclosure: PropertyDisclosure<'a>,
        /// The `next` of the page before.
        after: Option<&'a str>,
        /// Objects on the page at most, 1 to 500; `None` is 100.
        limit: Option<u32>,
    },
    /// Sets when objects expire.
    Expire {
        /// The objects.
        ids: Vec<&'a str>,
        /// In seconds from now, 0 to 3,155,760,000; `None`: never.
        expires_s: Option<u64>,
    },
    /// Archives objects that expired at least `older_s` seconds ago.
    Archive(Sweep<'a>),
    /// Removes for good the objects that were archived at least `older_s` seconds ago.
    Prune(Sweep<'a>),
}

impl ObjectsOperation<'_> {
    /// Returns the method of the operation.
    pub const fn method(&self) -> Method {
        match self {
            Self::Add(_) => Method::ObjectsAdd,
            Self::Get { .. } => Method::ObjectsGet,
            Self::Update { .. } => Method::ObjectsUpdate,
            Self::Delete { .. } => Method::ObjectsDelete,
            Self::Query { .. } => Method::ObjectsQuery,
            Self::List { .. } => Method::ObjectsList,
            Self::Expire { .. } => Method::ObjectsExpire,
            Self::Archive(_) => Method::ObjectsArchive,
            Self::Prune(_) => Method::ObjectsPrune,
        }
    }
}

/// Params of `objects.add`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct AddObjects<'a> {
    /// One MessagePack array of 1 to 500 maps of property names to values.
    pub objects: &'a [u8],
    /// Cleartext labels of every object. At most 16 of 1 to 64 bytes of visible ASCII.
    pub tags: Vec<&'a str>,
    /// When the objects expire, in seconds from now, 1 to 3,155,760,000; `None` is the
    /// collection's.
    pub expires_s: Option<u64>,
    /// A repeated request with this key returns the objects of the first one. 1 to 64 bytes.
    pub idempotency_key: Option<&'a [u8]>,
    /// Names of the data subjects, each of 1 to 256 bytes: none, one of all objects, or one per
    /// object.
    pub subjects: Vec<&'a str>,
}

/// Omits values, and the names of subjects.
impl std::fmt::Debug for AddObjects<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddObjects")
            .field("bytes", &self.objects.len())
            .field("tags", &self.tags)
            .field("expires_s", &self.expires_s)
            .field("subjects", &self.subjects.len())
            .finish_non_exhaustive()
    }
}

/// A request on a data subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectsCall<'a> {
    /// The subject, and the params that every request has.
    pub target: SubjectTarget<'a>,
    /// The operation.
    pub ask: SubjectsOperation<'a>,
}

/// A data subject of an app, and the params that every request on it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectTarget<'a> {
    /// The app.
    pub app: &'a str,
    /// The subject.
    pub subject: SubjectName<'a>,
    /// Time that the client gives, in milliseconds.
    pub deadline_ms: Option<u32>,
    /// Generation of the control state that the client demands.
    pub min_generation: Option<u64>,
    /// The reason for the request.
    pub reason: Option<&'a str>,
    /// The client's span.
    pub traceparent: Option<&'a str>,
}

impl<'a> SubjectTarget<'a> {
    /// Names a subject of an app.
    pub fn new(app: &'a str, subject: SubjectName<'a>) -> Self {
        Self {
            app,
            subject,
            deadline_ms: None,
            min_generation: None,
            reason: None,
            traceparent: None,
        }
    }
}

/// Names a data subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SubjectName<'a> {
    /// The name that clients gave, 1 to 256 bytes.
    Name(&'a str),
    /// The id by which the audit trail knows the subject, 32 hexadecimal digits.
    Id(&'a str),
}

/// Omits the name, which can be an email address.
impl std::fmt::Debug for SubjectName<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(_) => f.write_str("Name"),
            Self::Id(id) => f.debug_tuple("Id").field(id).finish(),
        }
    }
}

/// An operation of a [`SubjectsCall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectsOperation<'a> {
    /// Says how the subject is known, and whether it was erased.
    Find,
    /// Returns a page of the subject's objects, of one collection.
    Export {
        /// The `next` of the page before.
        after: Option<&'a str>,
        /// Objects on the page at most, 1 to 500; `None` is 100.
        limit: Option<u32>,
    },
    /// Removes the subject's key, and then its objects.
    Erase {
        /// Only a key of at most this version; `None`: any key.
        version: Option<u64>,
        /// Only a key that was made at or before this time, in seconds since 1970-01-01 UTC;
        /// `None`: any key.
        created: Option<u64>,
    },
}

impl SubjectsOperation<'_> {
    /// Returns the method of the operation.
    pub const fn method(&self) -> Method {
        match self {
            Self::Find => Method::SubjectsFind,
            Self::Export { .. } => Method::SubjectsExport,
            Self::Erase { .. } => Method::SubjectsErase,
        }
    }
}

/// The properties that a response has, and their form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyDisclosure<'a> {
    /// Names of 1 to 64 properties; `None`: those that the role grants.
    pub properties: Option<Vec<&'a str>>,
    /// True to get values through the mask of their type, also if the role would show more.
    pub masked: bool,
}

/// A property of a request to create or change a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertySpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Name of its type.
    pub property_type: &'a str,
    /// True if an object can be without a value. The default.
    pub nullable: bool,
    /// True if at most one object can have a value.
    pub unique: bool,
    /// True if objects can be found by a value.
    pub index: bool,
    /// Bits of a truncated index, 8 to 16; `None`: all.
    pub bits: Option<u8>,
    /// Lengths, in characters, of prefixes by which objects can be found.
    pub prefixes: Vec<u8>,
    /// True if the operator accepts what prefixes leak.
    pub accept_leak: bool,
    /// False if values are stored in the clear. The default is true.
    pub encrypted: bool,
    /// A text for people.
    pub description: &'a str,
}

impl<'a> PropertySpec<'a> {
    /// A property with the defaults.
    pub fn new(name: &'a str, property_type: &'a str) -> Self {
        Self {
            name,
            property_type,
            nullable: true,
            unique: false,
            index: false,
            bits: None,
            prefixes: Vec::new(),
            accept_leak: false,
            encrypted: true,
            description: "",
        }
    }
}

/// A change of the schema of a collection of objects. Changes apply at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlterCollection<'a> {
    /// Properties that are added. They must be nullable.
    pub add: Vec<PropertySpec<'a>>,
    /// Names of properties that are removed.
    pub drop: Vec<&'a str>,
    /// Names of properties of which several objects can have a value from then on.
    pub allow_duplicates: Vec<&'a str>,
    /// Names of properties without which an object can be from then on.
    pub allow_null: Vec<&'a str>,
    /// Names of properties by which objects are not found any more.
    pub drop_index: Vec<&'a str>,
    /// The suite that seals new objects; `None`: unchanged.
    pub suite: Option<Suite>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{TokenSearch, TokenizeOptions, TokensOperation};

    #[test]
    fn debug_output_of_a_subject_shows_no_name() {
        let call = |subject| SubjectsCall {
            target: SubjectTarget::new("shop", subject),
            ask: SubjectsOperation::Find,
        };
        let shown = format!("{:?}", call(SubjectName::Name("anna@example.com")));
        assert!(
            shown.contains("subject: Name") && !shown.contains("anna"),
            "{shown}"
        );
        assert!(format!("{:?}", call(SubjectName::Id("0123"))).contains("Id(\"0123\")"));
        let add = AddObjects {
            objects: b"anna",
            subjects: vec!["anna@example.com"],
            ..AddObjects::default()
        };
        let expected = "AddObjects { bytes: 4, tags: [], expires_s: None, subjects: 1, .. }";
        assert_eq!(format!("{add:?}"), expected);
        let options = TokenizeOptions {
            subject: Some("anna@example.com"),
            ..TokenizeOptions::default()
        };
        let search = TokenSearch {
            value: b"anna",
            subject: Some("anna@example.com"),
            ..TokenSearch::default()
        };
        let shown = format!("{options:?} {search:?} {:?}", TokensOperation::Find(search));
        assert!(
            shown.contains("subject: true") && !shown.contains("anna") && !shown.contains("97"),
            "{shown}"
        );
    }
}
