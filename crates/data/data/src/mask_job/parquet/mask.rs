//! Masks the values of a batch.

use std::sync::Arc;

use arrow_array::Array;
use sealwire_columns::{ColumnError, Leaf, LeafMask, ResolveError};
use sealwire_mask_rules::Column;
use sealwire_msgpack::TokenReader;

use super::layout::Layout;
use super::read::ReadBatch;
use super::{BatchWork, ChangedBatch, JobState};
use crate::mask_job::batch::check_masked;
use crate::mask_job::engine::{Engine, EngineError};
use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::report::Counts;

/// Masks batches.
pub(super) struct MaskWork<E> {
    pub(super) engine: Arc<E>,
}

impl<E: Engine> BatchWork for MaskWork<E> {
    async fn change(
        &self,
        job: &Arc<JobState>,
        batch: ReadBatch,
    ) -> Result<ChangedBatch, JobError> {
        let selected = job
            .on_thread(batch, |job, batch| select(&job.layout, job.limits, batch))
            .await??;
        let masked = selected
            .send(&job.layout, job.limits, self.engine.as_ref())
            .await?;
        job.on_thread((selected, masked), |job, (selected, masked)| {
            selected.put_back(&job.layout, masked)
        })
        .await?
    }
}

/// Masks a batch on this thread. `mask` returns one scalar per value of a column.
pub(super) fn mask_batch(
    layout: &Layout,
    limits: Limits,
    batch: ReadBatch,
    mask: impl FnMut(&Column) -> Vec<u8>,
) -> Result<ChangedBatch, JobError> {
    let selected = select(layout, limits, batch)?;
    let masked = check_pieces(&selected.pieces, selected.pieces.iter().map(mask).collect());
    let masked = masked.map_err(|error| JobError::Engine(error.to_string()))?;
    selected.put_back(layout, masked)
}

/// A batch whose values to mask are selected.
struct SelectedBatch {
    batch: ReadBatch,
    mask: LeafMask,
    pieces: Vec<Column>,
}

/// Selects the values of a batch that rules mask.
fn select(
    layout: &Layout,
    limits: Limits,
    mut batch: ReadBatch,
) -> Result<SelectedBatch, JobError> {
    let leaf = &layout.leaves[batch.column];
    let array = layout.to_arrow(batch.column, &batch.values);
    let array = array.map_err(|(at, what)| layout.value_error(&batch, at, what))?;
    let subjects = std::mem::take(&mut batch.subjects)
        .into_iter()
        .map(|subjects| {
            subjects
                .values(layout)
                .map_err(|(column, what)| layout.column_invalid(column, what))
        });
    let subjects = subjects.collect::<Result<Vec<_>, _>>()?;
    let mask = leaf
        .plan
        .select_values(layout.plan.rules(), Leaf::new(array), subjects);
    let mask = mask.map_err(|error| match error {
        ResolveError::UnknownValue { row, .. } => layout.value_error(
            &batch,
            row,
            "no rule names the column, and no kind matches the value",
        ),
        error => layout.column_invalid(batch.column, &error.to_string()),
    })?;
    let pieces = mask
        .pieces(limits.batch_values_max, limits.batch_bytes_max)
        .collect();
    Ok(SelectedBatch {
        batch,
        mask,
        pieces,
    })
}

impl SelectedBatch {
    /// Has the engine mask the selected values. Returns the masked values of each piece.
    async fn send<E: Engine>(
        &self,
        layout: &Layout,
        limits: Limits,
        engine: &E,
    ) -> Result<Vec<Vec<u8>>, JobError> {
        let mut all = Vec::with_capacity(self.pieces.len());
        let mut rest = &self.pieces[..];
        while !rest.is_empty() {
            // Kind rules select many small pieces, which are sent in one request.
            let (now, later) = rest.split_at(request_len(rest, limits));
            let masked = engine
                .mask(now.to_vec())
                .await
                .and_then(|masked| check_pieces(now, masked));
            all.extend(masked.map_err(|error| {
                self.locate_error(layout, self.pieces.len() - rest.len(), error)
            })?);
            rest = later;
        }
        Ok(all)
    }

    /// Adds the row and column of the value to the engine's error. `first` is the number of the
    /// request's first piece.
    fn locate_error(&self, layout: &Layout, first: usize, error: EngineError) -> JobError {
        let EngineError::Unfit { column, value, why } = error else {
            return JobError::Engine(error.to_string());
        };
        let Some(piece) = self.pieces.get(first + column) else {
            return JobError::Engine(why);
        };
        let earlier = self.pieces[..first + column]
            .iter()
            .filter(|other| other.rule == piece.rule);
        let number = earlier.map(|other| other.count).sum::<usize>() + value;
        let what = format!("{} does not fit: {why}", layout.plan.function(piece.rule));
        match self.mask.row(piece.rule, number) {
            Some(at) => layout.value_error(&self.batch, at, &what),
            None => JobError::Engine(what),
        }
    }

    /// Puts the masked values in their places.
    fn put_back(self, layout: &Layout, masked: Vec<Vec<u8>>) -> Result<ChangedBatch, JobError> {
        let Self {
            mut batch,
            mask,
            pieces,
        } = self;
        let leaf = &layout.leaves[batch.column];
        let mut counts = Counts::default();
        let mut masked_count = 0;
        for (piece, masks) in pieces.iter().zip(&masked) {
            masked_count += piece.count as u64;
            let label = leaf.label(piece.rule);
            let mut old = TokenReader::new(&piece.values);
            let mut new = TokenReader::new(masks);
            (0..piece.count)
                .for_each(|_| counts.add_masked(label, old.value().ok() == new.value().ok()));
        }
        counts.add_kept(
            leaf.kept,
            (batch.values.len() as u64).saturating_sub(masked_count),
        );
        counts.add_nulls(leaf.kept, leaf.nulls(&batch.levels));

        let rules = pieces.iter().map(|piece| piece.rule);
        let masked: Vec<_> = rules
            .zip(masked.into_iter().map(bytes::Bytes::from))
            .collect();
        let array = mask.put_back(&masked).map_err(|error| match error {
            ColumnError::Unfit {
                row,
                found,
                data_type,
                ..
            } => layout.value_error(
                &batch,
                row,
                &format!("its mask is {found}, which type {data_type} does not hold"),
            ),
            error => layout.column_invalid(batch.column, &error.to_string()),
        })?;
        let values = batch.values.convert_array(&array, leaf.width);
        let mut values = values
            .ok_or_else(|| layout.value_error(&batch, 0, "a mask does not fit the column"))?;
        if leaf.is_binary_text {
            values.restore_binary(&batch.values, |at| array.is_valid(at));
        }
        if array.null_count() > 0 {
            if !leaf.is_optional {
                return Err(layout.column_invalid(
                    batch.column,
                    "a mask is null, and the column is not nullable",
                ));
            }
            let levels_of_values = batch
                .levels
                .definitions
                .iter_mut()
                .filter(|level| **level == leaf.definition_max);
            for (at, level) in levels_of_values.enumerate() {
                *level -= i16::from(array.is_null(at));
            }
        }
        layout.running_report.add(&counts);
        Ok(ChangedBatch {
            column: batch.column,
            values,
            levels: batch.levels,
            permit: batch.permit,
        })
    }
}

/// Returns the number of pieces that fit in one request, at least one.
fn request_len(pieces: &[Column], limits: Limits) -> usize {
    let mut values = 0;
    let mut bytes = 0;
    let fitting = pieces.iter().take_while(|piece| {
        values += piece.count;
        bytes += piece.values.len() + piece.subjects.as_ref().map_or(0, Vec::len);
        values <= limits.batch_values_max && bytes <= limits.batch_bytes_max
    });
    fitting.count().max(1)
}

/// Checks that the engine returned as many masked values for each piece as the piece has values.
fn check_pieces(pieces: &[Column], masked: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, EngineError> {
    let sent: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.rule, piece.count))
        .collect();
    check_masked(&sent, &masked)?;
    Ok(masked)
}
