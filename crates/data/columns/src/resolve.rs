//! Masking rules on the schema of a table.
//!
//! A row counts as a document, and a column as a key of it. A path rule selects columns by the
//! grammar of select paths. A column rule names columns or struct members of exactly its name, at
//! any depth. The first such rule that names a column applies to all values inside. The values of a
//! map are masked by the rule that names the map; the map's keys stay.

use std::sync::Arc;

use arrow_array::BooleanArray;
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};
use bytes::Bytes;
use sealwire_mask_rules::{
    Function, FunctionKind, Literal, PathStep, REDACTED, Rules, Target, Unknown, index_max,
};
use sealwire_msgpack::write;
use thiserror::Error;

use crate::ColumnError;
use crate::decode::{Removal, build_of};
use crate::path::{Leaf, Path, Step};
use crate::types::check;

/// Maximum number of columns that an error lists.
const LISTED_MAX: usize = 20;

/// A key of a map. Only wildcards and rules that name the whole map select it.
const MAP_KEY: &str = "\u{1}";

/// A reason why rules cannot apply to a schema, or to a value of it. No variant contains a value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ResolveError {
    /// A path rule names single items of a list.
    #[error("rule {} names items of a list by their index ({path}): name all items with [*]", .rule + 1)]
    Index {
        /// Index of the rule.
        rule: usize,
        /// The path in the rule.
        path: String,
    },
    /// A rule matches no column.
    #[error("rule {} names {target}, and there is no such column: there are {}", .rule + 1, listed(.columns))]
    Unmet {
        /// Index of the rule.
        rule: usize,
        /// The rule's path or column.
        target: String,
        /// The existing columns.
        columns: Vec<String>,
    },
    /// No rule names some columns, and the rules reject such columns.
    #[error("no rule names {}; name each in a rule (mask = \"keep\" keeps it) or say unknown = \"keep\"", listed(.columns))]
    Unknown {
        /// The columns.
        columns: Vec<String>,
    },
    /// No rule matches a string, and the rules reject such values.
    #[error("column {column}, value {row}: no rule names the column and no kind matches the value")]
    UnknownValue {
        /// The column.
        column: String,
        /// Index of the value in its leaf.
        row: usize,
    },
    /// A function does not fit the type of its column.
    #[error("column {column}: {function} does not fit type {data_type}: {problem}")]
    Function {
        /// The column.
        column: String,
        /// The rule's function.
        function: String,
        /// The type of the column.
        data_type: DataType,
        /// Description of the error.
        problem: &'static str,
    },
    /// The column of subjects is missing, or is neither a string nor an integer column.
    #[error("column {column}: its rule has subject={subject}, and {problem}")]
    Subject {
        /// The column.
        column: String,
        /// The subject's name.
        subject: String,
        /// Description of the error.
        problem: &'static str,
    },
    /// The type of a column cannot be masked.
    #[error(transparent)]
    Column(#[from] ColumnError),
}

fn listed(columns: &[String]) -> String {
    let mut text = columns
        .iter()
        .take(LISTED_MAX)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if columns.len() > LISTED_MAX {
        text.push_str(" and more");
    }
    text
}

/// The decision of the rules on the values of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafDecision {
    /// The rule with this index masks all values.
    Rule(usize),
    /// Kind rules apply: each value is a string and must be examined.
    Kinds,
    /// The values stay.
    Keep,
}

/// A leaf of a schema: a column, or a member or the items of a nested one.
#[derive(Clone, Debug)]
pub struct LeafPlan {
    /// The path of the leaf.
    pub path: Path,
    /// The field of the leaf.
    pub field: FieldRef,
    /// The decision.
    pub decision: LeafDecision,
    /// The path or column rule that names the leaf. If the decision is [`LeafDecision::Keep`], the
    /// rule's function is `keep`.
    pub rule: Option<usize>,
    /// For each rule that can apply and has a subject, the column of its subjects.
    pub(crate) subjects: Vec<SubjectPlan>,
}

/// The subjects of one rule for one leaf.
#[derive(Clone, Debug)]
pub(crate) struct SubjectPlan {
    pub(crate) rule: usize,
    pub(crate) path: Path,
    /// Number of the leaf's steps that lead to the struct that contains both the leaf and the
    /// subject.
    pub(crate) container_steps: usize,
    /// Index of the subject among the leaves.
    pub(crate) leaf: usize,
}

impl LeafPlan {
    /// Returns the rules that have subjects, each with the index of the subjects' column among all
    /// leaves.
    pub fn subject_leaves(&self) -> impl Iterator<Item = (usize, usize)> {
        self.subjects
            .iter()
            .map(|subject| (subject.rule, subject.leaf))
    }
}

/// A leaf of a schema before rules are known.
#[derive(Clone, Debug)]
pub struct SchemaLeaf {
    /// The path of the leaf.
    pub path: Path,
    /// The field of the leaf.
    pub field: FieldRef,
    /// Names of columns and struct members on the way to the leaf. `None` stands for the items of a
    /// list or the entries of a map.
    pub keys: Vec<Option<String>>,
    /// True if the leaf is within the keys of a map, which no rule changes.
    pub is_map_key: bool,
}

/// Returns the leaves of a schema, in its order.
#[must_use]
pub fn schema_leaves(schema: &Schema) -> Vec<SchemaLeaf> {
    let mut leaves = Leaves::default();
    leaves.members(schema.fields(), None);
    let found = leaves.found.into_iter().zip(leaves.documents);
    found
        .map(|(leaf, document)| SchemaLeaf {
            path: leaf.path,
            field: leaf.field,
            keys: document.into_iter().map(key_of_step).collect(),
            is_map_key: leaf.is_map_key,
        })
        .collect()
}

/// Returns the key of a step, unless the step leads to items or to the keys of a map.
fn key_of_step(step: PathStep) -> Option<String> {
    match step {
        PathStep::Key(key) if key != MAP_KEY => Some(key),
        PathStep::Key(_) | PathStep::Index(_) => None,
    }
}

/// Returns the decision for each leaf of a schema, in the order of the schema.
///
/// # Errors
/// [`ResolveError`] if the rules cannot apply: see its variants.
pub fn resolve(rules: &Rules, schema: &Schema) -> Result<Vec<LeafPlan>, ResolveError> {
    for (rule, path) in rules
        .iter()
        .enumerate()
        .filter_map(|(at, rule)| match &rule.target {
            Target::Path(path) => Some((at, path)),
            Target::Column(_) | Target::Kind(_) => None,
        })
    {
        if index_max(path).is_some() {
            return Err(ResolveError::Index {
                rule,
                path: path.clone(),
            });
        }
    }
    let mut leaves = Leaves::default();
    leaves.members(schema.fields(), None);
    if let Some(rule) = rules.unmet(&leaves.documents) {
        let target = match rules.get(rule).map(|rule| &rule.target) {
            Some(Target::Column(name)) => format!("column {name}"),
            Some(Target::Path(path)) => path.clone(),
            _ => String::new(),
        };
        let columns = leaves
            .found
            .iter()
            .map(|leaf| leaf.path.text().to_owned())
            .collect();
        return Err(ResolveError::Unmet {
            rule,
            target,
            columns,
        });
    }
    decide(rules, &leaves)
}

fn decide(rules: &Rules, leaves: &Leaves) -> Result<Vec<LeafPlan>, ResolveError> {
    let mut unknown = Vec::new();
    let mut plans = Vec::with_capacity(leaves.found.len());
    let kinds: Vec<usize> = (0..)
        .zip(rules.iter())
        .filter(|(_, rule)| is_kind(&rule.target))
        .map(|(at, _)| at)
        .collect();
    for (found, document) in leaves.found.iter().zip(&leaves.documents) {
        let column = found.path.text();
        let data_type = found.field.data_type();
        let rule = rules.rule_at(document).filter(|_| !found.is_map_key);
        let function = rule
            .and_then(|rule| rules.get(rule))
            .map(|rule| &rule.function);
        let decision = match (rule, function) {
            (Some(rule), Some(function)) if !function.is_keep() && *data_type != DataType::Null => {
                check(column, data_type)?;
                check_function(column, &found.field, function)?;
                LeafDecision::Rule(rule)
            }
            (Some(_), _) => LeafDecision::Keep,
            _ if found.is_map_key || *data_type == DataType::Null => LeafDecision::Keep,
            _ if !kinds.is_empty() && holds_text(data_type) => {
                check(column, data_type)?;
                LeafDecision::Kinds
            }
            _ => {
                if rules.unknown() == Unknown::Refuse {
                    unknown.push(column.to_owned());
                }
                LeafDecision::Keep
            }
        };
        let subjects = match decision {
            LeafDecision::Rule(rule) => leaves.subject(rules, found, rule)?.into_iter().collect(),
            // The kind may match no value, so a missing column of subjects is not an error.
            LeafDecision::Kinds => kinds
                .iter()
                .filter_map(|rule| leaves.subject(rules, found, *rule).ok().flatten())
                .collect(),
            LeafDecision::Keep => Vec::new(),
        };
        plans.push(LeafPlan {
            path: found.path.clone(),
            field: FieldRef::clone(&found.field),
            decision,
            rule,
            subjects,
        });
    }
    if unknown.is_empty() {
        Ok(plans)
    } else {
        Err(ResolveError::Unknown { columns: unknown })
    }
}

fn is_kind(target: &Target) -> bool {
    matches!(target, Target::Kind(_))
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

/// Returns true if a type can hold strings. Only nested types without leaves of this schema need to
/// be considered.
fn holds_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => holds_text(values),
        DataType::RunEndEncoded(_, values) => holds_text(values.data_type()),
        DataType::FixedSizeList(items, _)
        | DataType::List(items)
        | DataType::LargeList(items)
        | DataType::ListView(items)
        | DataType::LargeListView(items)
        | DataType::Map(items, _) => holds_text(items.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| holds_text(field.data_type())),
        DataType::Union(fields, _) => fields
            .iter()
            .any(|(_, field)| holds_text(field.data_type())),
        other => is_text(other),
    }
}

/// The leaves of a schema.
#[derive(Default)]
struct Leaves {
    found: Vec<FoundLeaf>,
    /// The path of each leaf in a document.
    documents: Vec<Vec<PathStep>>,
}

struct FoundLeaf {
    path: Path,
    field: FieldRef,
    is_map_key: bool,
    /// The struct or row that the leaf is in. `None` within a map.
    scope: Option<Scope>,
}

/// A struct or row.
#[derive(Clone)]
struct Scope {
    fields: Fields,
    /// The steps to the struct. `None` stands for the row.
    at: Option<(usize, Vec<Step>)>,
}

/// The way to a field.
#[derive(Clone)]
struct Way {
    text: String,
    column: usize,
    steps: Vec<Step>,
    document: Vec<PathStep>,
    scope: Option<Scope>,
    is_map_key: bool,
}

impl Leaves {
    /// Adds the leaves of the fields of a struct, or of a row.
    fn members(&mut self, fields: &Fields, of: Option<&Way>) {
        for (index, field) in fields.iter().enumerate() {
            let scope = Some(Scope {
                fields: fields.clone(),
                at: of.map(|way| (way.column, way.steps.clone())),
            });
            let key = PathStep::Key(field.name().clone());
            let way = match of {
                None => Way {
                    text: field.name().clone(),
                    column: index,
                    steps: Vec::new(),
                    document: vec![key],
                    scope,
                    is_map_key: false,
                },
                Some(of) => Way {
                    text: format!("{}.{}", of.text, field.name()),
                    scope,
                    ..of.clone().step(Step::Member(index), key)
                },
            };
            self.field(field, way);
        }
    }

    fn field(&mut self, field: &FieldRef, way: Way) {
        match field.data_type() {
            DataType::Struct(fields) => self.members(fields, Some(&way)),
            DataType::List(items) | DataType::LargeList(items) => {
                let text = format!("{}[*]", way.text);
                self.field(
                    items,
                    Way {
                        text,
                        ..way.step(Step::Items, PathStep::Index(0))
                    },
                );
            }
            DataType::Map(entries, _) => self.entries(entries, way),
            _ => {
                let Way {
                    text,
                    column,
                    steps,
                    document,
                    scope,
                    is_map_key,
                } = way;
                let path = Path::of(text, column, steps);
                self.found.push(FoundLeaf {
                    path,
                    field: FieldRef::clone(field),
                    is_map_key,
                    scope,
                });
                self.documents.push(document);
            }
        }
    }

    /// Adds the leaves of a map's keys and values.
    fn entries(&mut self, entries: &FieldRef, way: Way) {
        let DataType::Struct(fields) = entries.data_type() else {
            return;
        };
        for (index, field) in fields.iter().enumerate() {
            let mut entry = way
                .clone()
                .step(Step::Items, PathStep::Key(MAP_KEY.to_owned()));
            entry.steps.push(Step::Member(index));
            let is_map_key = index == 0 || way.is_map_key;
            let text = format!("{}[*].{}", way.text, field.name());
            self.field(
                field,
                Way {
                    text,
                    scope: None,
                    is_map_key,
                    ..entry
                },
            );
        }
    }

    /// Finds the column of a rule's subjects in the same struct as a leaf.
    fn subject(
        &self,
        rules: &Rules,
        leaf: &FoundLeaf,
        rule: usize,
    ) -> Result<Option<SubjectPlan>, ResolveError> {
        let Some(subject) = rules.get(rule).and_then(|rule| rule.function.subject()) else {
            return Ok(None);
        };
        let (path, container_steps) =
            subject_path(leaf, subject).map_err(|problem| ResolveError::Subject {
                column: leaf.path.text().to_owned(),
                subject: subject.to_owned(),
                problem,
            })?;
        let leaf = self
            .found
            .iter()
            .position(|other| other.path.is_same_place(&path));
        Ok(leaf.map(|leaf| SubjectPlan {
            rule,
            path,
            container_steps,
            leaf,
        }))
    }
}

/// Returns the path of a leaf's subject, and the number of steps to their common struct. The error
/// says why the column cannot be the subject.
fn subject_path(leaf: &FoundLeaf, subject: &str) -> Result<(Path, usize), &'static str> {
    const MISSING: &str = "there is no such column beside it";
    let scope = leaf.scope.as_ref().ok_or(MISSING)?;
    let mut named = scope
        .fields
        .iter()
        .enumerate()
        .filter(|(_, field)| field.name() == subject);
    let (index, field) = named.next().ok_or(MISSING)?;
    if named.next().is_some() {
        return Err("there are several such columns");
    }
    if !is_text(field.data_type()) && !field.data_type().is_integer() {
        return Err("that column holds neither strings nor integers");
    }

    Ok(match &scope.at {
        None => (Path::of(subject.to_owned(), index, Vec::new()), 0),
        Some((column, steps)) => {
            let own = steps.iter().copied().chain([Step::Member(index)]).collect();
            (Path::of(subject.to_owned(), *column, own), steps.len())
        }
    })
}

impl Way {
    fn step(mut self, step: Step, key: PathStep) -> Self {
        self.steps.push(step);
        self.document.push(key);
        self
    }
}

/// Rejects a function whose results a field cannot hold. `column` is the path of the field for the
/// error.
///
/// # Errors
/// [`ResolveError::Function`].
pub fn check_function(
    column: &str,
    field: &Field,
    function: &Function,
) -> Result<(), ResolveError> {
    match function_problem(field, function) {
        None => Ok(()),
        Some(problem) => Err(ResolveError::Function {
            column: column.to_owned(),
            function: function.to_string(),
            data_type: field.data_type().clone(),
            problem,
        }),
    }
}

/// Returns the reason why a field cannot hold the results of a function.
fn function_problem(field: &Field, function: &Function) -> Option<&'static str> {
    let data_type = field.data_type();
    let is_number = data_type.is_integer()
        || matches!(
            data_type,
            DataType::Float32 | DataType::Float64 | DataType::Decimal128(..)
        );
    let is_date = matches!(data_type, DataType::Date32 | DataType::Timestamp(..));
    let result = match function.kind() {
        FunctionKind::Keep => return None,
        FunctionKind::Null if field.is_nullable() => return None,
        FunctionKind::Null => return Some("the column holds no nulls"),
        FunctionKind::Redact { with } => redacted(data_type, with.as_deref()),
        FunctionKind::Fixed(literal) => constant(literal),
        FunctionKind::Partial { .. }
        | FunctionKind::Email { .. }
        | FunctionKind::Phone { .. }
        | FunctionKind::Card { .. }
        | FunctionKind::Iban
        | FunctionKind::Mac
        | FunctionKind::PostalCode
        | FunctionKind::Hash { .. }
        | FunctionKind::Pseudonym { .. }
        | FunctionKind::Truncate { .. } => {
            return (!is_text(data_type)).then_some("its results are strings");
        }
        FunctionKind::Fpe(_) => {
            return (!is_text(data_type) && !data_type.is_integer())
                .then_some("it takes strings and integers");
        }
        FunctionKind::ShiftBy { .. }
        | FunctionKind::ShiftWithin { .. }
        | FunctionKind::Coarsen(_) => {
            return (!is_text(data_type) && !is_date).then_some("it takes dates");
        }
        FunctionKind::Step { .. }
        | FunctionKind::NoisePercent { .. }
        | FunctionKind::NoiseBy { .. } => {
            return (!is_text(data_type) && !is_number).then_some("it takes numbers");
        }
    };
    (!holds(data_type, 1, result)).then_some("the type does not hold its result")
}

/// Returns true if `count` values can form a column of this type. `values` are consecutive
/// MessagePack scalars.
#[must_use]
pub fn holds(data_type: &DataType, count: usize, values: Vec<u8>) -> bool {
    let leaf = Leaf::new(Arc::new(BooleanArray::from(vec![true; count])));
    build_of(
        "",
        data_type,
        &leaf,
        &[Bytes::from(values)],
        false,
        Removal::Allowed,
    )
    .is_ok()
}

/// Writes what `redact` puts in place of a value of this type.
fn redacted(data_type: &DataType, with: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    match data_type {
        DataType::Boolean => write::bool(&mut out, false),
        DataType::Float32 | DataType::Float64 => write::f64(&mut out, 0.0),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => {
            write::bin(&mut out, b"");
        }
        other if other.is_integer() => write::int(&mut out, 0),
        _ => write::str(&mut out, with.unwrap_or(REDACTED)),
    }
    out
}

fn constant(literal: &Literal) -> Vec<u8> {
    let mut out = Vec::new();
    match literal {
        Literal::Int(value) => write::int(&mut out, *value),
        Literal::Float(bits) => write::f64(&mut out, f64::from_bits(*bits)),
        Literal::Bool(value) => write::bool(&mut out, *value),
        Literal::Word(text) | Literal::Text(text) => write::str(&mut out, text),
    }
    out
}
