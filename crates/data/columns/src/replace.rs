//! Puts new columns in the place of old ones.

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, FieldRef, SchemaRef};
use bytes::Bytes;

use crate::ColumnError;
use crate::decode::{Removal, build_of};
use crate::path::{Leaf, Path};
use crate::types::new_field;

/// The relation of a new column to the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Any type becomes text or binary, and the field notes the old type.
    Seal,
    /// The column gets the noted type again.
    Open,
    /// The type stays.
    Keep,
}

/// A column to replace.
#[derive(Clone, Copy, Debug)]
pub struct Replacement<'a> {
    /// The path of the column.
    pub path: &'a Path,
    /// The type of the new column. `None` stands for the type that the [`Direction`] gives.
    pub data_type: Option<&'a DataType>,
}

/// Puts new columns in place of the old columns, and returns the new schema. `leaves` and `results`
/// contain all batches of the first column, then all batches of the second, and so on. The results
/// of a leaf are arrays in MessagePack that hold its values in order.
///
/// # Errors
/// [`ColumnError`] if a result does not fit the type of its column.
pub fn replace_columns(
    schema: &SchemaRef,
    batches: &mut [RecordBatch],
    columns: &[Replacement<'_>],
    leaves: Vec<Leaf>,
    results: Vec<Vec<Bytes>>,
    direction: Direction,
) -> Result<SchemaRef, ColumnError> {
    let removal = if direction == Direction::Seal {
        Removal::Rejected
    } else {
        Removal::Allowed
    };
    let mut schema = SchemaRef::clone(schema);
    let mut work = leaves.into_iter().zip(results);
    for column in columns {
        let own: Vec<_> = work.by_ref().take(batches.len()).collect();
        let old = column.path.field(&schema)?;
        let field = new_field(&old, column.data_type, direction, &own)?;
        schema = column.path.replace_field(&schema, &field);
        for (batch, (leaf, results)) in batches.iter_mut().zip(own) {
            let values = build_of(
                column.path.text(),
                field.data_type(),
                &leaf,
                &results,
                true,
                removal,
            )?;
            *batch = replace_column(batch, &schema, column.path, &field, values)?;
        }
    }
    Ok(schema)
}

fn replace_column(
    batch: &RecordBatch,
    schema: &SchemaRef,
    path: &Path,
    field: &FieldRef,
    values: ArrayRef,
) -> Result<RecordBatch, ColumnError> {
    let columns = path.replace(batch, field, values)?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        SchemaRef::clone(schema),
        columns,
        &options,
    )?)
}
