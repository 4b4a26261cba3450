//! The params of the methods on objects and on data subjects.

use super::declare::{
    BytesValue, Own, Parameter, Parameters, Source, TextValue, Writer, field, operations, own,
    params, rows,
};
use super::rule::{
    CHANGES, CLAUSES, CURSOR, EXPIRY, FLAG, IDEMPOTENCY_KEY, IDS, NAME, NEW_OBJECTS, NUMBER,
    OBJECTS, PROPERTY_NAMES, Param, Part, SECONDS_OR_NIL, SUBJECT_OR_ID, SUBJECTS, TAGS, VERSIONS,
};
use super::tokens::{Listing, Sweep};
use super::{CommonParams, TokenMap};
use crate::invalid_request::InvalidRequest;
use crate::method::{Method, Methods};
use crate::reading::Params;

/// Number of digits in the id of a data subject.
const SUBJECT_ID_DIGITS: usize = 32;

params! {
    /// A request on the objects of a collection.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ObjectsRequest<'a> {
        /// The app and collection, and the options.
        map: TokenMap<'a> = part;
        /// The operation.
        operation: ObjectsOperation<&'a str, &'a [u8]> = operation;
    }
}

operations! {
    /// An operation of an [`ObjectsRequest`]. Lists of ids hold 1 to 500 ids.
    #[derive(Clone, Debug, PartialEq, Eq)]
    ObjectsOperation<Text: TextValue, Bytes: BytesValue> {
        /// Adds objects atomically.
        Add(add: AddObjects<Text, Bytes>) = ObjectsAdd,
        /// Returns objects by id.
        Get = ObjectsGet {
            /// The objects.
            ids: Vec<Text> = required(IDS);
            /// The properties to return.
            disclosure: PropertyDisclosure<Text> = part;
        },
        /// Changes objects atomically.
        Update = ObjectsUpdate {
            /// A MessagePack array of 1 to 500 maps `{id, set, if_version?}`.
            changes: Bytes = required(CHANGES as "payload");
        },
        /// Removes objects for good, atomically.
        Delete = ObjectsDelete checked by has_one_version_per_id {
            /// The objects.
            ids: Vec<Text> = required(IDS);
            /// The version that each object must have, one per id; `None` means any version.
            versions: Option<Vec<u64>> = optional(VERSIONS "any");
        },
        /// Finds objects by their indexed properties.
        Query = ObjectsQuery {
            /// A MessagePack array of 1 to 8 maps `{property, eq | in | prefix}`. An object must
            /// match all of them.
            clauses: Bytes = required(CLAUSES as "payload");
            /// The properties to return.
            disclosure: PropertyDisclosure<Text> = part;
            /// The `next` of the previous page.
            after: Option<Text> = optional(CURSOR "the beginning");
            /// Most objects on the page, 1 to 500; `None` is 100.
            limit: Option<u32> = optional(OBJECTS "100");
        },
        /// Returns a page of the collection's objects, by id.
        List = ObjectsList {
            /// The part of the collection.
            listing: Listing<Text> = part;
            /// The properties to return.
            disclosure: PropertyDisclosure<Text> = part;
        },
        /// Sets when objects expire.
        Expire = ObjectsExpire {
            /// The objects.
            ids: Vec<Text> = required(IDS);
            /// Time until they expire, in seconds from now, 0 to 3,155,760,000; `None`: never.
            expires_s: Option<u64> = required(SECONDS_OR_NIL);
        },
        /// Archives objects that expired at least `older_s` seconds ago.
        Archive(sweep: Sweep<Text>) = ObjectsArchive,
        /// Removes for good the objects that were archived at least `older_s` seconds ago.
        Prune(sweep: Sweep<Text>) = ObjectsPrune,
    }
}

params! {
    /// The params of `objects.add`.
    #[derive(Clone, Default, PartialEq, Eq)]
    AddObjects<Text: TextValue, Bytes: BytesValue> {
        /// A MessagePack array of 1 to 500 maps of property names to values.
        objects: Bytes = required(NEW_OBJECTS as "payload");
        /// Cleartext labels of every object. At most 16 of 1 to 64 bytes of visible ASCII.
        tags: Vec<Text> = default(TAGS "none");
        /// Time until the objects expire, in seconds from now, 1 to 3,155,760,000; `None` means the
        /// default of the collection.
        expires_s: Option<u64> = optional(EXPIRY "the collection's");
        /// A repeated request with this key returns the objects of the first request. 1 to 64
        /// bytes.
        idempotency_key: Option<Bytes> = optional(IDEMPOTENCY_KEY "none");
        /// Names of the data subjects, each of 1 to 256 bytes: no name, one name for all objects,
        /// or one name per object.
        subjects: Vec<Text> = default(SUBJECTS "none");
    }
}

params! {
    /// The properties in a response, and whether they are masked.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    PropertyDisclosure<Text: TextValue> {
        /// Names of 1 to 64 properties; `None` means the properties that the role grants.
        properties: Option<Vec<Text>> = optional(PROPERTY_NAMES "those that the role grants");
        /// True to mask every value by its type, even if the role permits the clear value.
        masked: bool = default(FLAG "false");
    }
}

params! {
    /// A request on a data subject.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    SubjectsRequest<'a> {
        /// The subject, and the options.
        target: SubjectTarget<'a> = part;
        /// The operation.
        operation: SubjectsOperation<&'a str> = operation;
    }
}

params! {
    /// A data subject of an app, and the options of a request on it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    SubjectTarget<'a> {
        /// The app.
        app: &'a str = required(NAME);
        /// The subject.
        subject: SubjectName<'a> = part;
        /// Options of the request.
        options: CommonParams<'a> = options;
    }
}

operations! {
    /// An operation of a [`SubjectsRequest`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    SubjectsOperation<Text: TextValue> {
        /// Returns the id of the subject, and whether it was erased.
        Find = SubjectsFind,
        /// Returns a page of the subject's objects, of one collection.
        Export = SubjectsExport {
            /// The `next` of the previous page.
            after: Option<Text> = optional(CURSOR "the beginning");
            /// Most objects on the page, 1 to 500; `None` is 100.
            limit: Option<u32> = optional(OBJECTS "100");
        },
        /// Removes the subject's key, and then the subject's objects.
        Erase = SubjectsErase {
            /// Removes only a key of at most this version; `None` means any key.
            version: Option<u64> = optional(NUMBER "any version");
            /// Removes only a key that was created at or before this time, in seconds since
            /// 1970-01-01 UTC; `None` means any key.
            created: Option<u64> = optional(NUMBER "any time");
        },
    }
}

/// Omits values, and the names of subjects.
impl<Text: std::fmt::Debug, Bytes> std::fmt::Debug for AddObjects<Text, Bytes> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AddObjects")
            .field("tags", &self.tags)
            .field("expires_s", &self.expires_s)
            .field("subjects", &self.subjects.len())
            .finish_non_exhaustive()
    }
}

/// Checks that each id has one version, if versions are given.
fn has_one_version_per_id<Text, Bytes>(
    operation: &ObjectsOperation<Text, Bytes>,
) -> Result<(), InvalidRequest> {
    match operation {
        ObjectsOperation::Delete {
            ids,
            versions: Some(versions),
        } if versions.len() != ids.len() => Err(InvalidRequest::BreaksRule {
            key: "versions",
            rule: "as many as ids, each 1 or more",
        }),
        _ => Ok(()),
    }
}

impl<'a> SubjectTarget<'a> {
    /// Names a subject of an app.
    pub fn new(app: &'a str, subject: SubjectName<'a>) -> Self {
        let options = CommonParams::default();
        Self {
            app,
            subject,
            options,
        }
    }
}

/// Names a data subject.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SubjectName<'a> {
    /// The name that clients gave, 1 to 256 bytes.
    Name(&'a str),
    /// The id of the subject in the audit log, 32 hexadecimal digits.
    Id(&'a str),
}

/// The name has two keys: `subject`, and the flag `by_id` for the kind of the name.
const SUBJECT_ROWS: [Param; 2] = [
    Param::new("subject", SUBJECT_OR_ID, &[], Methods::ALL),
    Param::new("by_id", FLAG, &["false"], Methods::ALL),
];

impl<'a> Parameters<'a> for SubjectName<'a> {
    const PARTS: &'static [Part] = &[
        Part::Field(SUBJECT_ROWS.split_at(1).0),
        Part::Field(SUBJECT_ROWS.split_at(1).1),
    ];

    fn blank(_: Method) -> Option<Self> {
        Some(Self::Name(""))
    }

    fn read(
        &mut self,
        row: &'static Param,
        params: &mut Params<'a>,
    ) -> Result<bool, InvalidRequest> {
        let (Self::Name(name) | Self::Id(name)) = *self;
        let mut by_id = matches!(self, Self::Id(_));
        let mut name = name;
        match row.name {
            "subject" => name = Parameter::read(params, row)?,
            "by_id" => by_id = Parameter::read(params, row)?,
            _ => return Ok(false),
        }
        *self = if by_id {
            Self::Id(name)
        } else {
            Self::Name(name)
        };
        Ok(true)
    }

    fn check(&self) -> Result<(), InvalidRequest> {
        match self {
            Self::Id(id)
                if id.len() != SUBJECT_ID_DIGITS
                    || !id.bytes().all(|digit| digit.is_ascii_hexdigit()) =>
            {
                Err(InvalidRequest::BreaksRule {
                    key: "subject",
                    rule: "32 hexadecimal digits with by_id",
                })
            }
            _ => Ok(()),
        }
    }

    fn text(&self, _: &str) -> Option<&'a str> {
        None
    }

    fn write(&self, writer: &mut Writer<'_>) {
        let (Self::Name(name) | Self::Id(name)) = self;
        writer.parameter(&SUBJECT_ROWS[..1], name);
        if matches!(self, Self::Id(_)) {
            writer.parameter(&SUBJECT_ROWS[1..], &true);
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{AddObjects, TokenSearch, TokenizeOptions, TokensOperation};

    #[test]
    fn debug_output_of_a_subject_shows_no_name() {
        let call = |subject| SubjectsRequest {
            target: SubjectTarget::new("shop", subject),
            operation: SubjectsOperation::Find,
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
        let expected = "AddObjects { tags: [], expires_s: None, subjects: 1, .. }";
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
