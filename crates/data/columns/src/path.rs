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
    /// The mask of present values. `None` if all values are present.
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

    /// Creates a leaf of values with the mask of present values. `None` if all values are present.
    #[must_use]
    pub fn of(values: ArrayRef, present: Option<NullBuffer>) -> Self {
        Self { values, present }
    }

    /// Returns the values. A value that is not [present](Self::is_present) has no meaning.
    #[must_use]
    pub fn values(&self) -> &ArrayRef {
        &self.values
    }

    /// Returns the number of values, including nulls.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.values.len()
    }

    /// Returns true if the value of the row is present.
    #[must_use]
    pub fn is_present(&self, row: usize) -> bool {
        self.present
            .as_ref()
            .is_none_or(|present| present.is_valid(row))
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

    /// Returns the row of the value with number `number` among the present values from row `first`
    /// on.
    #[must_use]
    pub fn row(&self, first: usize, number: usize) -> Option<usize> {
        (first..self.rows())
            .filter(|row| self.is_present(*row))
            .nth(number)
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
            format!("there are several of the name {name}"),
        )),
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
        let mut segments = text.split('.').flat_map(|segment| {
            let name = segment.trim_end_matches("[*]");
            let lists = (segment.len() - name.len()) / "[*]".len();
            [Some(name)]
                .into_iter()
                .chain(std::iter::repeat_n(None, lists))
        });
        let name = segments.next().flatten().unwrap_or_default();
        let column = position(text, name, schema.fields())?.ok_or_else(|| missing(text, name))?;
        let mut data_type = schema.field(column).data_type();
        let mut steps = Vec::new();
        for segment in segments {
            let (step, next) = match (segment, data_type) {
                (Some(name), DataType::Struct(fields)) => {
                    let index = position(text, name, fields)?.ok_or_else(|| missing(text, name))?;
                    (Step::Member(index), &fields[index])
                }
                (
                    None,
                    DataType::List(items) | DataType::LargeList(items) | DataType::Map(items, _),
                ) => (Step::Items, items),
                (Some(name), _) => {
                    return Err(problem(text, format!("{name} is not within a struct")));
                }
                (None, _) => return Err(problem(text, "[*] is not of a list".to_owned())),
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
    pub(crate) fn of(text: String, column: usize, steps: Vec<Step>) -> Self {
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

    /// Returns for each value of the path the row of its container, to which the first `steps`
    /// steps lead. Returns `None` if each value has the same row as its container.
    pub(crate) fn container_rows(&self, batch: &RecordBatch, steps: usize) -> Option<Vec<usize>> {
        let mut values = ArrayRef::clone(batch.column(self.column));
        let mut rows: Option<Vec<usize>> = None;
        for (at, step) in self.steps.iter().enumerate() {
            values = match step {
                Step::Member(index) => ArrayRef::clone(values.as_struct().column(*index)),
                Step::Items => {
                    if at >= steps {
                        let own = list_rows(&values);
                        rows = Some(match rows {
                            None => own,
                            Some(outer) => own.into_iter().map(|row| outer[row]).collect(),
                        });
                    }
                    items(&values, None).0
                }
            };
        }
        rows
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
            referred(lists.offsets(), ArrayRef::clone(lists.values()), present)
        }
        DataType::Map(..) => {
            let maps = lists.as_map();
            referred(maps.offsets(), Arc::new(maps.entries().clone()), present)
        }
        _ => {
            let lists = lists.as_list::<i32>();
            referred(lists.offsets(), ArrayRef::clone(lists.values()), present)
        }
    }
}

/// Returns the error for a path with a name that the schema does not have.
fn missing(path: &str, name: &str) -> ColumnError {
    problem(path, format!("there is no {name}"))
}

/// Returns the items, and the mask of items to which a present list refers.
fn referred<O: OffsetSizeTrait>(
    offsets: &OffsetBuffer<O>,
    values: ArrayRef,
    present: Option<&NullBuffer>,
) -> (ArrayRef, Option<NullBuffer>) {
    let mut referred = BooleanBufferBuilder::new(values.len());
    for (row, ends) in offsets.windows(2).enumerate() {
        let start = ends[0].as_usize();
        let end = ends[1].as_usize();
        if present.is_none_or(|present| present.is_valid(row)) && end > referred.len() {
            referred.append_n(start.saturating_sub(referred.len()), false);
            referred.append_n(end - referred.len(), true);
        }
    }
    referred.append_n(values.len() - referred.len(), false);
    let both = NullBuffer::union(Some(&NullBuffer::new(referred.finish())), values.nulls());
    (values, both)
}

/// Returns for each item the row of its list.
fn list_rows(lists: &ArrayRef) -> Vec<usize> {
    fn rows<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, items: usize) -> Vec<usize> {
        let mut rows = vec![0; items];
        for (row, ends) in offsets.windows(2).enumerate() {
            rows[ends[0].as_usize()..ends[1].as_usize()].fill(row);
        }
        rows
    }
    match lists.data_type() {
        DataType::LargeList(_) => rows(
            lists.as_list::<i64>().offsets(),
            lists.as_list::<i64>().values().len(),
        ),
        DataType::Map(..) => rows(lists.as_map().offsets(), lists.as_map().entries().len()),
        _ => rows(
            lists.as_list::<i32>().offsets(),
            lists.as_list::<i32>().values().len(),
        ),
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
        (Step::Items, _) => replace_items(old.as_list::<i64>(), rest, field, new)?,
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
