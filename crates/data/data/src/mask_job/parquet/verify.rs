//! The leak check of a Parquet file: its values as texts.

use std::sync::Arc;

use arrow_schema::DataType;
use parquet::file::reader::Length;
use sealwire_columns::{Leaf, LeafDecision, each_value};
use sealwire_msgpack::{Token, TokenReader};

use super::layout::Layout;
use super::read::ChunkRows;
use super::source::{self, SourceFile};
use crate::mask_job::batch::write_scalar;
use crate::mask_job::error::JobError;
use crate::mask_job::leak::{Check, LeakReport};
use crate::mask_job::limits::Limits;
use crate::mask_job::output::Input;
use crate::mask_job::report::Progress;

/// Checks `target` for originals of the values that the rules mask in `source`.
pub(crate) fn verify(
    source: &Input,
    target: &Input,
    mut check: Check,
    limits: Limits,
    progress: &Progress,
) -> Result<LeakReport, JobError> {
    // All passes read the same open files or objects.
    let stop = progress.job_stop();
    let source = (source.name(), source::open(source, stop)?);
    let target = (target.name(), source::open(target, stop)?);
    let bytes = source.1.len() + target.1.len();
    for pass in 1.. {
        progress.set_totals(bytes * u64::from(pass), 0);
        add_originals(&source, &mut check, limits, progress)
            .map_err(|error| source.1.cause(error))?;
        check_values(&target, &mut check, limits, progress)
            .map_err(|error| target.1.cause(error))?;
        if !check.end_pass() {
            return Ok(check.into_report(pass));
        }
    }
    Ok(LeakReport::default())
}

/// Records the values of the source that rules mask.
fn add_originals(
    input: &(String, SourceFile),
    check: &mut Check,
    limits: Limits,
    progress: &Progress,
) -> Result<(), JobError> {
    let plan = Arc::clone(check.plan());
    each_text(
        input,
        check,
        limits,
        progress,
        |layout, column, check, text| {
            let (leaf, Some(text)) = (&layout.leaves[column].plan, text) else {
                return;
            };
            let rule = match leaf.decision {
                LeafDecision::Rule(rule) => Some(rule),
                LeafDecision::Kinds => plan.kind_rule(text).filter(|rule| !plan.keeps(*rule)),
                LeafDecision::Keep => None,
            };
            if let Some(rule) = rule {
                let field = check.field_number(leaf.path.text(), rule);
                check.add_original(field, text);
            }
        },
    )
}

/// Checks the values of the target.
fn check_values(
    input: &(String, SourceFile),
    check: &mut Check,
    limits: Limits,
    progress: &Progress,
) -> Result<(), JobError> {
    let mut numbers: Vec<Option<Vec<usize>>> = Vec::new();
    each_text(
        input,
        check,
        limits,
        progress,
        |layout, column, check, text| {
            let name = layout.leaves[column].plan.path.text();
            let Some(text) = text else {
                let why = match layout.is_readable(column) {
                    true => "some of its values are not UTF-8".to_owned(),
                    false => format!(
                        "its type {} cannot be read",
                        layout.leaves[column].plan.field.data_type()
                    ),
                };
                check.skip_column(name, &why);
                return;
            };
            numbers.resize(layout.leaves.len(), None);
            let numbers = numbers[column].get_or_insert_with(|| check.fields_named(name));
            check.check_value(name, numbers, text);
        },
    )
}

/// Calls `visit` with every value of a file as text. `visit` gets `None` for each binary value that is
/// not UTF-8, and once for each column of an unreadable type.
fn each_text(
    (name, file): &(String, SourceFile),
    check: &mut Check,
    limits: Limits,
    progress: &Progress,
    mut visit: impl FnMut(&Layout, usize, &mut Check, Option<&str>),
) -> Result<(), JobError> {
    let metadata = source::read_metadata(name, file)?;
    let layout = Layout::new(
        name.clone(),
        Arc::clone(check.plan()),
        metadata,
        super::is_masked,
    )?;
    let length = file.len();
    let file = Arc::new(file.clone());
    let mut text = Vec::new();
    for column in (0..layout.leaves.len()).filter(|column| !layout.is_readable(*column)) {
        visit(&layout, column, check, None);
    }
    for (at, group) in layout.metadata.row_groups().iter().enumerate() {
        for column in (0..layout.leaves.len()).filter(|column| layout.is_readable(*column)) {
            let chunk = ChunkRows {
                layout: &layout,
                source: &file,
                group,
                column,
                first_row: 0,
                limits,
            };
            chunk.read_all(|batch| {
                let leaf = &layout.leaves[column];
                let data_type = if leaf.is_binary_text {
                    &DataType::Binary
                } else {
                    leaf.plan.field.data_type()
                };
                let array = batch.values.to_arrow(data_type);
                let array = array.map_err(|(_, what)| layout.column_invalid(column, what))?;
                each_value(&Leaf::new(array), |_, value| {
                    text.clear();
                    let is_text = match TokenReader::new(value).token() {
                        Ok(Token::Bin(bytes)) => {
                            text.extend_from_slice(bytes);
                            true
                        }
                        Ok(token) => write_scalar(token, &mut text).is_some(),
                        Err(_) => false,
                    };
                    if is_text {
                        visit(&layout, column, check, std::str::from_utf8(&text).ok());
                    }
                });
                Ok(())
            })?;
        }
        let groups = layout.metadata.num_row_groups().max(1) as u64;
        let bytes_before = length * at as u64 / groups;
        let bytes_after = length * (at as u64 + 1) / groups;
        progress.add(bytes_after - bytes_before, 0);
    }
    Ok(())
}
