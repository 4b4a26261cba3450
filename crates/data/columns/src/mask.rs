//! The values of a leaf that rules mask, and the masked values in their place.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Field, FieldRef, SchemaRef};
use bytes::Bytes;
use sealwire_mask_rules::{Column, Rules, Unknown};
use sealwire_msgpack::{TokenReader, write};

use crate::ColumnError;
use crate::decode::{Removal, build_of};
use crate::encode::{Instants, append_values};
use crate::path::Leaf;
use crate::resolve::{LeafDecision, LeafPlan, ResolveError};

/// The values of a leaf that rules mask.
#[derive(Clone, Debug)]
pub struct LeafMask {
    column: String,
    data_type: DataType,
    leaf: Leaf,
    selected: Vec<SelectedRows>,
    subjects: Vec<SubjectValues>,
}

/// The rows that one rule masks.
#[derive(Clone, Debug)]
struct SelectedRows {
    rule: usize,
    /// The rows in order. `None` stands for all rows whose values are present.
    rows: Option<Vec<usize>>,
}

/// The subjects of a rule for the values of a leaf.
#[derive(Clone, Debug)]
pub struct SubjectValues {
    /// The rule.
    pub rule: usize,
    /// The column of subjects.
    pub leaf: Leaf,
    /// The row in `leaf` of each row of values. `None` if the rows are the same.
    pub rows: Option<Vec<usize>>,
}

impl SubjectValues {
    fn append(&self, row: usize, out: &mut Vec<u8>) {
        let row = self.rows.as_ref().map_or(row, |rows| rows[row]);
        if self.leaf.is_present(row) {
            append_values(self.leaf.values(), Instants::Text, &mut |append| {
                append(row, out)
            });
        } else {
            write::nil(out);
        }
    }
}

impl LeafPlan {
    /// Selects the values of a batch that rules mask.
    ///
    /// # Errors
    /// [`ResolveError::UnknownValue`] if no kind matches a string and the rules reject such values.
    pub fn select(&self, rules: &Rules, batch: &RecordBatch) -> Result<LeafMask, ResolveError> {
        let subjects = self.subjects.iter().map(|subject| SubjectValues {
            rule: subject.rule,
            leaf: subject.path.find(batch),
            rows: self.path.container_rows(batch, subject.container_steps),
        });
        self.select_values(rules, self.path.find(batch), subjects.collect())
    }

    /// Selects the values of a leaf that rules mask. `subjects` are the subjects of each rule that
    /// has subjects.
    ///
    /// # Errors
    /// [`ResolveError::UnknownValue`] as [`Self::select`].
    pub fn select_values(
        &self,
        rules: &Rules,
        leaf: Leaf,
        subjects: Vec<SubjectValues>,
    ) -> Result<LeafMask, ResolveError> {
        let selected = match self.decision {
            LeafDecision::Rule(rule) => vec![SelectedRows { rule, rows: None }],
            LeafDecision::Keep => Vec::new(),
            LeafDecision::Kinds => self.kinds(rules, &leaf)?,
        };
        Ok(LeafMask {
            column: self.path.text().to_owned(),
            data_type: self.field.data_type().clone(),
            leaf,
            selected,
            subjects,
        })
    }

    fn kinds(&self, rules: &Rules, leaf: &Leaf) -> Result<Vec<SelectedRows>, ResolveError> {
        let mut selected: Vec<SelectedRows> = Vec::new();
        for row in (0..leaf.rows()).filter(|row| leaf.is_present(*row)) {
            let Some(rule) = text_at(leaf.values(), row).and_then(|text| rules.kind_of(text))
            else {
                if rules.unknown() == Unknown::Refuse {
                    return Err(ResolveError::UnknownValue {
                        column: self.path.text().to_owned(),
                        row,
                    });
                }
                continue;
            };
            match selected.iter_mut().find(|known| known.rule == rule) {
                Some(known) => known.rows.get_or_insert_default().push(row),
                None => selected.push(SelectedRows {
                    rule,
                    rows: Some(vec![row]),
                }),
            }
        }
        Ok(selected)
    }
}

fn text_at(array: &ArrayRef, row: usize) -> Option<&str> {
    match array.data_type() {
        DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
        DataType::Utf8View => Some(array.as_string_view().value(row)),
        _ => None,
    }
}

impl LeafMask {
    /// Returns the unmasked values.
    #[must_use]
    pub fn leaf(&self) -> &Leaf {
        &self.leaf
    }

    /// Returns the rules that mask some values, and the number of values of each.
    pub fn rules(&self) -> impl Iterator<Item = (usize, usize)> {
        let present = self.leaf.rows() - self.leaf.null_count();
        self.selected
            .iter()
            .map(move |part| (part.rule, part.rows.as_ref().map_or(present, Vec::len)))
    }

    /// Cuts the selected values into columns of requests, rule by rule, each of at most
    /// `values_max` values and about `bytes_max` bytes.
    pub fn pieces(&self, values_max: usize, bytes_max: usize) -> MaskPieces<'_> {
        MaskPieces {
            mask: self,
            values_max: values_max.max(1),
            bytes_max,
            part: 0,
            at: 0,
        }
    }

    /// Returns the row of a value by its number among the values of a rule.
    #[must_use]
    pub fn row(&self, rule: usize, number: usize) -> Option<usize> {
        match &self.selected.iter().find(|part| part.rule == rule)?.rows {
            Some(rows) => rows.get(number).copied(),
            None => self.leaf.row(0, number),
        }
    }

    /// Builds the leaf with the masked values in their places. `masked` contains the rule and the
    /// masked values of each piece, as consecutive MessagePack scalars, in the order of
    /// [`Self::pieces`].
    ///
    /// # Errors
    /// [`ColumnError`] if a masked value does not fit the type of the column.
    pub fn put_back(&self, masked: &[(usize, Bytes)]) -> Result<ArrayRef, ColumnError> {
        let results: Vec<Bytes> = match self.selected.as_slice() {
            [] => return Ok(ArrayRef::clone(self.leaf.values())),
            [SelectedRows { rows: None, .. }] => {
                masked.iter().map(|(_, values)| values.clone()).collect()
            }
            _ => vec![Bytes::from(self.merged(masked)?)],
        };
        build_of(
            &self.column,
            &self.data_type,
            &self.leaf,
            &results,
            false,
            Removal::Allowed,
        )
    }

    /// Returns all values of the leaf, with the masked values in their places.
    fn merged(&self, masked: &[(usize, Bytes)]) -> Result<Vec<u8>, ColumnError> {
        let runs: Vec<Vec<u8>> = self
            .selected
            .iter()
            .map(|part| {
                masked
                    .iter()
                    .filter(|(rule, _)| *rule == part.rule)
                    .flat_map(|(_, values)| values.iter().copied())
                    .collect()
            })
            .collect();
        let mut cursors: Vec<_> = self
            .selected
            .iter()
            .zip(&runs)
            .map(|(part, run)| {
                (
                    part.rows.as_deref().unwrap_or_default(),
                    TokenReader::new(run),
                )
            })
            .collect();

        let mut out = Vec::new();
        let mut is_complete = true;
        append_values(self.leaf.values(), Instants::Text, &mut |append| {
            for row in (0..self.leaf.rows()).filter(|row| self.leaf.is_present(*row)) {
                match cursors
                    .iter_mut()
                    .find(|(rows, _)| rows.first() == Some(&row))
                {
                    None => append(row, &mut out),
                    Some((rows, reader)) => {
                        *rows = &rows[1..];
                        match reader.value() {
                            Ok(value) => out.extend_from_slice(value),
                            Err(_) => is_complete = false,
                        }
                    }
                }
            }
        });

        if is_complete && cursors.iter().all(|(_, reader)| reader.is_at_end()) {
            Ok(out)
        } else {
            Err(ColumnError::Shape {
                column: self.column.clone(),
            })
        }
    }
}

/// Columns of requests, created on demand, so that only the columns in flight take memory.
#[derive(Clone, Debug)]
pub struct MaskPieces<'a> {
    mask: &'a LeafMask,
    values_max: usize,
    bytes_max: usize,
    part: usize,
    /// The next row of the leaf, or the next of the selected rows.
    at: usize,
}

impl Iterator for MaskPieces<'_> {
    type Item = Column;

    fn next(&mut self) -> Option<Column> {
        let mask = self.mask;
        loop {
            let part = mask.selected.get(self.part)?;
            let subjects = mask
                .subjects
                .iter()
                .find(|subjects| subjects.rule == part.rule);
            let end = part.rows.as_ref().map_or(mask.leaf.rows(), Vec::len);
            let mut column = Column {
                rule: part.rule,
                ..Column::default()
            };
            column.subjects = subjects.map(|_| Vec::new());
            append_values(mask.leaf.values(), Instants::Text, &mut |append| {
                while self.at < end
                    && column.count < self.values_max
                    && column.values.len() < self.bytes_max
                {
                    let row = part.rows.as_ref().map_or(self.at, |rows| rows[self.at]);
                    self.at += 1;
                    if !mask.leaf.is_present(row) {
                        continue;
                    }
                    append(row, &mut column.values);
                    column.count += 1;
                    if let (Some(subjects), Some(out)) = (subjects, &mut column.subjects) {
                        subjects.append(row, out);
                    }
                }
            });
            if self.at >= end {
                (self.part, self.at) = (self.part + 1, 0);
            }
            if column.count > 0 {
                return Some(column);
            }
        }
    }
}

/// Puts masked leaves in place of the old leaves in all batches of a table, and returns the new
/// schema. `arrays` holds the new values of each batch. A field becomes nullable if its new values
/// contain nulls, for example for items to which no list refers.
///
/// # Errors
/// [`ColumnError::Arrow`] if the values do not fit.
pub fn put_leaves(
    schema: &SchemaRef,
    batches: &mut [RecordBatch],
    leaves: Vec<(&LeafPlan, Vec<ArrayRef>)>,
) -> Result<SchemaRef, ColumnError> {
    let mut schema = SchemaRef::clone(schema);
    for (plan, arrays) in leaves {
        let old = plan.path.field(&schema)?;
        let is_nullable = old.is_nullable() || arrays.iter().any(|array| array.null_count() > 0);
        let field = FieldRef::new(Field::clone(&old).with_nullable(is_nullable));
        schema = plan.path.replace_field(&schema, &field);
        for (batch, array) in batches.iter_mut().zip(arrays) {
            let columns = plan.path.replace(batch, &field, array)?;
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            *batch =
                RecordBatch::try_new_with_options(SchemaRef::clone(&schema), columns, &options)?;
        }
    }
    Ok(schema)
}
