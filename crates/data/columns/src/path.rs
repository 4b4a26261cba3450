//! Paths to the values of a column: `name`, `address.street`, `tags[*]`, `people[*].email`.
//!
//! A path leads to one array of values in each record batch. A value under a null struct, or an
//! item to which no list refers, is not part of the table, regardless of its buffer. Such values
//! count as null.

use std::sync::Arc;

use arrow_array::builder::BooleanBufferBuilder;
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, GenericListArray, MapArray, OffsetSizeTrait, RecordBatch, StructArray,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use crate::ColumnError;

/// A path, checked against a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    text: String,
    column: usize,
    steps: Vec<Step>,
}

/// A part of a path's text.
#[derive(Clone, Copy)]
enum Segment<'a> {
    Name(&'a str),
    /// `[*]`
    Items,
}

/// A step from a column of containers to their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Member(usize),
    Items,
}

/// The values of one column in one record batch.
#[derive(Clone, Debug)]
pub struct Leaf {
    pub(crate) values: ArrayRef,
    /// Validity bitmap: which values are present. `None` if all values are present.
    pub(crate) present: Option<NullBuffer>,
}

impl Leaf {
    /// Creates a leaf of an array's values.
    #[must_use]
    pub fn new(values: ArrayRef) -> Self {
        Self {
            present: values.nulls().cloned(),
            values,
        }
    }

    /// Creates a leaf of values. `present` is the validity bitmap, or `None` if all values are
    /// present.
    #[must_use]
    pub fn with_validity(values: ArrayRef, present: Option<NullBuffer>) -> Self {
        Self { values, present }
    }

    /// Returns the values. A value that is not [present](Self::is_present) has no meaning.
    #[must_use]
    pub fn values(&self) -> &ArrayRef {
        &self.values
    }

    /// Returns the number of values, including nulls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns true if the leaf has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns true if the value at this index is present.
    #[must_use]
    pub fn is_present(&self, index: usize) -> bool {
        self.present
            .as_ref()
            .is_none_or(|present| present.is_valid(index))
    }

    /// Returns the number of nulls.
    #[must_use]
    pub fn null_count(&self) -> usize {
        self.present.as_ref().map_or(0, NullBuffer::null_count)
    }

    /// Returns true if some values are null.
    #[must_use]
    pub fn has_nulls(&self) -> bool {
        self.null_count() > 0
    }

    /// Returns the index of the `n`-th present value, counted from 0, at or after index `first`.
    #[must_use]
    pub fn nth_present(&self, first: usize, n: usize) -> Option<usize> {
        (first..self.len())
            .filter(|index| self.is_present(*index))
            .nth(n)
    }
}

/// Returns the position of the field with this name. Fails if several fields have the name, since
/// only one of them would be changed.
fn position(text: &str, name: &str, fields: &Fields) -> Result<Option<usize>, ColumnError> {
    let mut found = fields
        .iter()
        .enumerate()
        .filter(|(_, field)| field.name() == name)
        .map(|(at, _)| at);
    let first = found.next();
    match found.next() {
        None => Ok(first),
        Some(_) => Err(problem(
            text,
            format!("several columns or fields have the name {name}"),
        )),
    }
}

/// Splits `a.b[*]` into the name `a` of the column and the segments `b` and `[*]`.
fn split(text: &str) -> (&str, Vec<Segment<'_>>) {
    let mut segments = Vec::new();
    for part in text.split('.') {
        let name = part.trim_end_matches("[*]");
        let lists = (part.len() - name.len()) / "[*]".len();
        segments.push(Segment::Name(name));
        segments.extend(std::iter::repeat_n(Segment::Items, lists));
    }
    match segments.remove(0) {
        Segment::Name(column) => (column, segments),
        Segment::Items => unreachable!("every part begins with a name, which can be empty"),
    }
}

fn problem(path: &str, problem: String) -> ColumnError {
    ColumnError::Path {
        column: path.to_owned(),
        problem,
    }
}

impl Path {
    /// Parses a path. A column name takes precedence over a path of the same text.
    ///
    /// # Errors
    /// [`ColumnError::Path`] if the path leads to no column, or a name occurs twice.
    pub fn parse(text: &str, schema: &Schema) -> Result<Self, ColumnError> {
        if let Some(column) = position(text, text, schema.fields())? {
            return Ok(Self {
                text: text.to_owned(),
                column,
                steps: Vec::new(),
            });
        }
        let (name, segments) = split(text);
        let column = position(text, name, schema.fields())?.ok_or_else(|| missing(text, name))?;
        let mut data_type = schema.field(column).data_type();
        let mut steps = Vec::new();
        for segment in segments {
            let (step, next) = match (segment, data_type) {
                (Segment::Name(name), DataType::Struct(fields)) => {
                    let index = position(text, name, fields)?.ok_or_else(|| missing(text, name))?;
                    (Step::Member(index), &fields[index])
                }
                (
                    Segment::Items,
                    DataType::List(items) | DataType::LargeList(items) | DataType::Map(items, _),
                ) => (Step::Items, items),
                (Segment::Name(name), _) => {
                    let message = format!("{name} follows a value that is no struct");
                    return Err(problem(text, message));
                }
                (Segment::Items, _) => {
                    let message = "[*] follows a value that is neither a list nor a map";
                    return Err(problem(text, message.to_owned()));
                }
            };
            steps.push(step);
            data_type = next.data_type();
        }
        Ok(Self {
            text: text.to_owned(),
            column,
            steps,
        })
    }

    /// Returns the position of the column in the table.
    #[must_use]
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the original text of the path.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if the path leads into a list or map.
    #[must_use]
    pub fn is_in_list(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Items))
    }

    /// Creates a path from a column and steps that fit the schema.
    pub(crate) fn from_steps(text: String, column: usize, steps: Vec<Step>) -> Self {
        Self {
            text,
            column,
            steps,
        }
    }

    /// Returns true if both paths lead to the same values.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        self.column == other.column && self.steps == other.steps
    }

    /// Returns for each value of the path the index of the container that holds it. The first
    /// `container_steps` steps of the path lead to the containers. Returns `None` if each value has
    /// the index of its container, because no list or map lies between them.
    pub(crate) fn container_indexes(
        &self,
        batch: &RecordBatch,
        container_steps: usize,
    ) -> Option<Vec<usize>> {
        let mut values = ArrayRef::clone(batch.column(self.column));
        let mut indexes: Option<Vec<usize>> = None;
        for (at, step) in self.steps.iter().enumerate() {
            values = match step {
                Step::Member(index) => ArrayRef::clone(values.as_struct().column(*index)),
                Step::Items => {
                    if at >= container_steps {
                        let own = list_indexes(&values);
                        indexes = Some(match indexes {
                            None => own,
                            Some(outer) => own.into_iter().map(|list| outer[list]).collect(),
                        });
                    }
                    items(&values, None).0
                }
            };
        }
        indexes
    }

    /// Finds the values of a batch.
    #[must_use]
    pub fn find(&self, batch: &RecordBatch) -> Leaf {
        let mut values = ArrayRef::clone(batch.column(self.column));
        let mut present = values.nulls().cloned();
        for step in &self.steps {
            (values, present) = match step {
                Step::Member(index) => {
                    let child = ArrayRef::clone(values.as_struct().column(*index));
                    let both = NullBuffer::union(present.as_ref(), child.nulls());
                    (child, both)
                }
                Step::Items => items(&values, present.as_ref()),
            };
        }
        Leaf { values, present }
    }

    /// Returns the field that the path leads to.
    ///
    /// # Errors
    /// [`ColumnError::Path`] if the path was parsed for another schema.
    pub fn field(&self, schema: &Schema) -> Result<FieldRef, ColumnError> {
        let mut field = FieldRef::clone(&schema.fields()[self.column]);
        for step in &self.steps {
            field = match (step, field.data_type()) {
                (Step::Member(index), DataType::Struct(fields)) => FieldRef::clone(&fields[*index]),
                (
                    Step::Items,
                    DataType::List(items) | DataType::LargeList(items) | DataType::Map(items, _),
                ) => FieldRef::clone(items),
                _ => return Err(problem(&self.text, "the schema has changed".to_owned())),
            };
        }
        Ok(field)
    }

    /// Returns the schema with this field replaced.
    #[must_use]
    pub fn replace_field(&self, schema: &Schema, new: &FieldRef) -> SchemaRef {
        let fields = replace_in(schema.fields(), self.column, |old| {
            replace_field(old, &self.steps, new)
        });
        Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }

    /// Returns the columns of a batch with these values replaced.
    ///
    /// # Errors
    /// [`ColumnError::Arrow`] if the values do not fit.
    pub fn replace(
        &self,
        batch: &RecordBatch,
        field: &FieldRef,
        values: ArrayRef,
    ) -> Result<Vec<ArrayRef>, ColumnError> {
        let mut columns = batch.columns().to_vec();
        let old = &columns[self.column];
        columns[self.column] = replace(old, &self.steps, field, values)?;
        Ok(columns)
    }
}

/// Returns the items of a list or map column.
fn items(lists: &ArrayRef, present: Option<&NullBuffer>) -> (ArrayRef, Option<NullBuffer>) {
    match lists.data_type() {
        DataType::LargeList(_) => {
            let lists = lists.as_list::<i64>();
            present_items(lists.offsets(), ArrayRef::clone(lists.values()), present)
        }
        DataType::Map(..) => {
            let maps = lists.as_map();
            present_items(maps.offsets(), Arc::new(maps.entries().clone()), present)
        }
        DataType::List(_) => {
            let lists = lists.as_list::<i32>();
            present_items(lists.offsets(), ArrayRef::clone(lists.values()), present)
        }
        other => unreachable!("[*] of {other}: a path fits its schema"),
    }
}

/// Returns the error for a path with a name that the schema does not have.
fn missing(path: &str, name: &str) -> ColumnError {
    let message = if name.is_empty() {
        "a name is missing".to_owned()
    } else {
        format!("there is no column or field {name:?}")
    };
    problem(path, message)
}

/// Returns the items, and the validity bitmap of the items of present lists. Lists are in the order
/// of their items. Items between two lists, or of a null list, are not part of the table.
fn present_items<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    values: ArrayRef,
    present: Option<&NullBuffer>,
) -> (ArrayRef, Option<NullBuffer>) {
    let mut in_lists = BooleanBufferBuilder::new(values.len());
    for (list, range) in offsets.windows(2).enumerate() {
        let start = range[0].as_usize();
        let end = range[1].as_usize();
        if present.is_none_or(|present| present.is_valid(list)) && end > in_lists.len() {
            in_lists.append_n(start.saturating_sub(in_lists.len()), false);
            in_lists.append_n(end - in_lists.len(), true);
        }
    }
    in_lists.append_n(values.len() - in_lists.len(), false);
    let both = NullBuffer::union(Some(&NullBuffer::new(in_lists.finish())), values.nulls());
    (values, both)
}

/// Returns for each item the index of its list or map.
fn list_indexes(lists: &ArrayRef) -> Vec<usize> {
    fn indexes<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, items: usize) -> Vec<usize> {
        let mut indexes = vec![0; items];
        for (list, range) in offsets.windows(2).enumerate() {
            indexes[range[0].as_usize()..range[1].as_usize()].fill(list);
        }
        indexes
    }
    match lists.data_type() {
        DataType::LargeList(_) => indexes(
            lists.as_list::<i64>().offsets(),
            lists.as_list::<i64>().values().len(),
        ),
        DataType::Map(..) => indexes(lists.as_map().offsets(), lists.as_map().entries().len()),
        DataType::List(_) => indexes(
            lists.as_list::<i32>().offsets(),
            lists.as_list::<i32>().values().len(),
        ),
        other => unreachable!("[*] of {other}: a path fits its schema"),
    }
}

fn replace_in(fields: &Fields, index: usize, new: impl FnOnce(&FieldRef) -> FieldRef) -> Fields {
    let mut fields = fields.to_vec();
    fields[index] = new(&fields[index]);
    fields.into()
}

fn replace_field(old: &FieldRef, steps: &[Step], new: &FieldRef) -> FieldRef {
    let Some((step, rest)) = steps.split_first() else {
        return FieldRef::clone(new);
    };
    let data_type = match (step, old.data_type()) {
        (Step::Member(index), DataType::Struct(fields)) => {
            DataType::Struct(replace_in(fields, *index, |child| {
                replace_field(child, rest, new)
            }))
        }
        (_, DataType::List(items)) => DataType::List(replace_field(items, rest, new)),
        (_, DataType::LargeList(items)) => DataType::LargeList(replace_field(items, rest, new)),
        (_, DataType::Map(entries, ordered)) => {
            DataType::Map(replace_field(entries, rest, new), *ordered)
        }
        (_, other) => other.clone(),
    };
    Arc::new(Field::clone(old).with_data_type(data_type))
}

fn replace(
    old: &ArrayRef,
    steps: &[Step],
    field: &FieldRef,
    new: ArrayRef,
) -> Result<ArrayRef, arrow_schema::ArrowError> {
    let Some((step, rest)) = steps.split_first() else {
        return Ok(new);
    };
    Ok(match (step, old.data_type()) {
        (Step::Member(index), _) => {
            let (fields, mut columns, nulls) = old.as_struct().clone().into_parts();
            let length = old.len();
            columns[*index] = replace(&columns[*index], rest, field, new)?;
            let fields = replace_in(&fields, *index, |child| replace_field(child, rest, field));
            Arc::new(StructArray::try_new_with_length(
                fields, columns, nulls, length,
            )?)
        }
        (Step::Items, DataType::Map(entries, _)) => {
            let (_, offsets, values, nulls, ordered) = old.as_map().clone().into_parts();
            let values = replace(&(Arc::new(values) as ArrayRef), rest, field, new)?;
            let entries = replace_field(entries, rest, field);
            Arc::new(MapArray::try_new(
                entries,
                offsets,
                values.as_struct().clone(),
                nulls,
                ordered,
            )?)
        }
        (Step::Items, DataType::List(_)) => replace_items(old.as_list::<i32>(), rest, field, new)?,
        (Step::Items, DataType::LargeList(_)) => {
            replace_items(old.as_list::<i64>(), rest, field, new)?
        }
        (Step::Items, other) => unreachable!("[*] of {other}: a path fits its schema"),
    })
}

fn replace_items<O: OffsetSizeTrait>(
    old: &GenericListArray<O>,
    rest: &[Step],
    field: &FieldRef,
    new: ArrayRef,
) -> Result<ArrayRef, arrow_schema::ArrowError> {
    let (items, offsets, values, nulls) = old.clone().into_parts();
    let values = replace(&values, rest, field, new)?;
    Ok(Arc::new(GenericListArray::<O>::try_new(
        replace_field(&items, rest, field),
        offsets,
        values,
        nulls,
    )?))
}
