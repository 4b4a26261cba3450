//! The clauses of `objects.query`: parsed, turned into index terms, and compared with opened
//! values.

use crate::jobs::cost::ExtraWork;
use crate::jobs::error::RequestFailure;
use sealwire_access::PropertyAccess;
use sealwire_msgpack::TokenReader;
use sealwire_records::objects::{
    Index, IndexTerm, PropertyType, Values, check, normalize, normalize_prefix,
};
use sealwire_store::{CLAUSE_TERMS_MAX, Clause, ObjectId, Term};
use zeroize::Zeroizing;

use super::payload::{invalid_item, split_items};
use crate::objects::{ObjectCollection, id_text, parse_id};
use crate::subjects::TERMS_PER_FIELD;
use sealwire_wire::ItemError;

/// The clauses of a request. All of them must be met.
pub(super) struct Query {
    conditions: Vec<Condition>,
    /// The terms of all clauses, which cursors are bound to.
    selected: Vec<u8>,
    pub(super) after: Option<ObjectId>,
    pub(super) limit: usize,
}

/// A clause of the query.
struct Condition {
    number: u32,
    property_type: PropertyType,
    test: Test,
    clause: Clause,
}

/// A condition on the normalized value.
enum Test {
    /// The value must be one of these.
    In(Vec<Zeroizing<Vec<u8>>>),
    /// The value must be a text with this prefix.
    Prefix(Zeroizing<Vec<u8>>),
}

impl Query {
    /// Resolves the clauses of a payload.
    ///
    /// # Errors
    /// The result of `denied` for a property that the role does not grant; [`RequestFailure::Items`]
    /// for invalid clauses; [`RequestFailure::Param`] for a cursor of another query.
    pub(super) fn new(
        collection: &ObjectCollection,
        payload: &bytes::Bytes,
        after: Option<&str>,
        limit: usize,
        access: &PropertyAccess,
        denied: impl Fn(&str) -> RequestFailure,
    ) -> Result<Self, RequestFailure> {
        let mut conditions = Vec::new();
        let mut errors = Vec::new();
        for (at, item) in split_items(payload)?.iter().enumerate() {
            let path = format!("$[{at}]");
            match RawClause::read(&path, item) {
                Ok(raw) if !access.uses(raw.property) => return Err(denied(raw.property)),
                Ok(raw) => match raw.parse_condition(collection, &path) {
                    Ok(condition) => conditions.push(condition),
                    Err(error) => errors.push(error),
                },
                Err(error) => errors.push(error),
            }
        }

        if !errors.is_empty() {
            return Err(RequestFailure::Items { errors });
        }

        let terms = conditions
            .iter()
            .flat_map(|condition| &condition.clause.terms);
        let terms: Vec<u8> = terms
            .flat_map(|term| [&term.index.to_be_bytes()[..], &term.hash].concat())
            .collect();
        let query = Self {
            conditions,
            selected: terms,
            after: None,
            limit,
        };
        let rule = "must be the next of a page with the same clauses";
        let after = after.map(|after| query.parse_cursor(collection, after));
        let after = after
            .map(|after| {
                after.ok_or(RequestFailure::Param {
                    name: "after",
                    rule,
                })
            })
            .transpose()?;
        Ok(Self { after, ..query })
    }

    pub(super) fn clauses(&self) -> Vec<Clause> {
        self.conditions
            .iter()
            .map(|condition| condition.clause.clone())
            .collect()
    }

    /// Returns the work of comparing an object with every clause: each normalizes a value, as for
    /// an index term.
    pub(super) fn work(&self) -> ExtraWork {
        ExtraWork {
            fields: (self.conditions.len() as u64).div_ceil(TERMS_PER_FIELD),
            bytes: 0,
        }
    }

    /// Returns true if the values meet every clause. Terms are hashes, and can be truncated.
    pub(super) fn is_met(&self, values: &Values) -> bool {
        self.conditions.iter().all(|condition| {
            let Some(value) = values.get(condition.number) else {
                return false;
            };
            let normalized = normalize(condition.property_type, value);
            match &condition.test {
                Test::In(wanted) => wanted.iter().any(|one| **one == *normalized),
                Test::Prefix(prefix) => normalized.starts_with(prefix),
            }
        })
    }

    /// Returns the cursor behind an object: its id, and a keyed hash of the clauses and the id.
    pub(super) fn cursor(&self, collection: &ObjectCollection, id: ObjectId) -> String {
        let tag =
            collection
                .object_keys
                .cursor_hash(collection.map.collection, &self.selected, &id.0);
        format!("{}.{:032x}", id_text(id), u128::from_be_bytes(tag))
    }

    fn parse_cursor(&self, collection: &ObjectCollection, text: &str) -> Option<ObjectId> {
        let id = parse_id(text.split_once('.')?.0)?;
        // The client knows the text already, so a comparison in variable time reveals nothing.
        (self.cursor(collection, id) == text).then_some(id)
    }
}

/// An unparsed clause.
struct RawClause<'a> {
    property: &'a str,
    operator: &'a str,
    operand: &'a [u8],
}

impl<'a> RawClause<'a> {
    fn read(path: &str, item: &'a [u8]) -> Result<Self, ItemError> {
        let mut reader = TokenReader::new(item);
        let mut property = None;
        let mut operation = None;
        if reader.map_len().ok() != Some(2) {
            return Err(invalid_item(path, CLAUSE_RULE));
        }

        for _ in 0..2 {
            match reader
                .str_utf8()
                .map_err(|_| invalid_item(path, CLAUSE_RULE))?
            {
                "property" => {
                    property = Some(
                        reader
                            .str_utf8()
                            .map_err(|_| invalid_item(path, CLAUSE_RULE))?,
                    )
                }
                operator @ ("eq" | "in" | "prefix") => {
                    operation = Some((
                        operator,
                        reader
                            .value()
                            .map_err(|_| invalid_item(path, CLAUSE_RULE))?,
                    ));
                }
                _ => return Err(invalid_item(path, CLAUSE_RULE)),
            }
        }

        let (Some(property), Some((operator, operand))) = (property, operation) else {
            return Err(invalid_item(path, CLAUSE_RULE));
        };
        Ok(Self {
            property,
            operator,
            operand,
        })
    }

    fn parse_condition(
        &self,
        collection: &ObjectCollection,
        path: &str,
    ) -> Result<Condition, ItemError> {
        let property = collection
            .schema
            .property(self.property)
            .ok_or_else(|| invalid_item(path, "names no property of the collection"))?;
        let index = property
            .index
            .as_ref()
            .ok_or_else(|| invalid_item(path, "names a property without an index"))?;
        let property_type = property.property_type;
        let (test, terms) = match self.operator {
            "prefix" => {
                let (prefix, term) = self.parse_prefix(collection, index, property_type, path)?;
                (Test::Prefix(prefix), vec![term])
            }
            operator => {
                let values = if operator == "eq" {
                    vec![self.operand]
                } else {
                    parse_list(self.operand).ok_or_else(|| invalid_item(path, IN_RULE))?
                };
                let wanted = values
                    .into_iter()
                    .map(|value| {
                        let canonical = check(property_type, value)
                            .map_err(|error| invalid_item(path, error.to_string()))?;
                        Ok::<_, ItemError>(normalize(property_type, &canonical))
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                let terms = wanted
                    .iter()
                    .map(|value| {
                        collection
                            .object_keys
                            .exact(collection.map.collection, index, value)
                    })
                    .collect();
                (Test::In(wanted), terms)
            }
        };

        let is_prefix = matches!(test, Test::Prefix(_));
        let mut terms: Vec<Term> = terms
            .into_iter()
            .map(|IndexTerm { index, hash }| Term { index, hash })
            .collect();
        terms.sort_unstable();
        terms.dedup();
        let clause = Clause {
            unique: !is_prefix && (property.unique || index.was_unique),
            shared: is_prefix || !property.unique,
            terms,
        };
        Ok(Condition {
            number: property.number,
            property_type,
            test,
            clause,
        })
    }

    /// Returns the normalized prefix, and the term of the longest indexed prefix that it has.
    fn parse_prefix(
        &self,
        collection: &ObjectCollection,
        index: &Index,
        property_type: PropertyType,
        path: &str,
    ) -> Result<(Zeroizing<Vec<u8>>, IndexTerm), ItemError> {
        let shortest = index
            .prefixes
            .first()
            .ok_or_else(|| invalid_item(path, "names a property without prefixes"))?;
        let text = TokenReader::new(self.operand)
            .str_utf8()
            .map_err(|_| invalid_item(path, "prefix must be text"))?;
        let prefix = normalize_prefix(property_type, text)
            .map_err(|error| invalid_item(path, error.to_string()))?;
        let keys = &collection.object_keys;
        let length = index.prefix_length_for(&prefix);
        let term = length
            .and_then(|length| keys.prefix(collection.map.collection, index, length, &prefix));
        let term = term.ok_or_else(|| {
            let message = format!("prefix must have at least {shortest} characters");
            invalid_item(path, message)
        })?;
        Ok((prefix, term))
    }
}

const CLAUSE_RULE: &str = "must be a map of property and one of eq, in, prefix";
const IN_RULE: &str = "in must be an array of 1 to 64 values";

/// Returns the items of an array of 1 to [`CLAUSE_TERMS_MAX`] values.
fn parse_list(operand: &[u8]) -> Option<Vec<&[u8]>> {
    let mut reader = TokenReader::new(operand);
    let count = reader.array_len().ok()?;
    if !(1..=CLAUSE_TERMS_MAX as u32).contains(&count) {
        return None;
    }
    (0..count).map(|_| reader.value().ok()).collect()
}
