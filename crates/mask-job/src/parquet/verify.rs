//! The leak check of a Parquet file: its values as texts.

use std::sync::Arc;

use parquet::file::reader::Length;
use sealwire_columns::{Leaf, LeafDecision, each_value};
use sealwire_msgpack::{Token, TokenReader};

use super::layout::Layout;
use super::read::ChunkRows;
use super::source::{self, SourceFile};
use crate::batch::plain;
use crate::error::JobError;
use crate::leak::{Check, LeakReport};
use crate::limits::Limits;
use crate::output::Input;
use crate::report::Progress;

/// Checks `target` for originals of the values that the rules mask in `source`.
pub(crate) fn verify(
    source: &Input,
    target: &Input,
    mut check: Check,
    limits: Limits,
    progress: &Progress,
) -> Result<LeakReport, JobError> {
    // All passes read what was opened.
    let open = |input: &Input| source::open(input).map(|opened| (input.name(), opened));
    let (source, target) = (open(source)?, open(target)?);
    let bytes = source.1.len() + target.1.len();
    for pass in 1.. {
        progress.expect(bytes * u64::from(pass), 0);
        originals(&source, &mut check, limits, progress).map_err(|error| source.1.cause(error))?;
        seen(&target, &mut check, limits, progress).map_err(|error| target.1.cause(error))?;
        if !check.end_pass() {
            return Ok(check.report(pass));
        }
    }
    Ok(LeakReport::default())
}

/// Records the values of the source that rules mask.
fn originals(
    input: &(String, SourceFile),
    check: &mut Check,
    limits: Limits,
    progress: &Progress,
) -> Result<(), JobError> {
    let plan = Arc::clone(check.plan());
    each_text(input, check, limits, progress, |layout, column, check, text| {
        let leaf = &layout.leaves[column].plan;
        let rule = match leaf.decision {
            LeafDecision::Rule(rule) => Some(rule),
            LeafDecision::Kinds => plan.kind_rule(text).filter(|rule| !plan.keeps(*rule)),
            LeafDecision::Keep => None,
        };
        if let Some(rule) = rule {
            let field = check.field(leaf.path.text(), rule);
            check.original(field, text);
        }
    })
}

/// Checks the values of the target.
fn seen(input: &(String, SourceFile), check: &mut Check, limits: Limits, progress: &Progress) -> Result<(), JobError> {
    let mut numbers: Vec<Option<Vec<usize>>> = Vec::new();
    each_text(input, check, limits, progress, |layout, column, check, text| {
        let name = layout.leaves[column].plan.path.text();
        numbers.resize(layout.leaves.len(), None);
        let numbers = numbers[column].get_or_insert_with(|| check.fields_named(name));
        check.seen(name, numbers, text);
    })
}

/// Calls `met` with every value of a file, as text. Binary values that are no UTF-8 are left out, and so are columns of
/// types that cannot be masked.
fn each_text(
    (name, file): &(String, SourceFile),
    check: &mut Check,
    limits: Limits,
    progress: &Progress,
    mut met: impl FnMut(&Layout, usize, &mut Check, &str),
) -> Result<(), JobError> {
    let metadata = source::read_metadata(name, file)?;
    let layout = Layout::new(name.clone(), Arc::clone(check.plan()), metadata, super::is_masked)?;
    let (length, file) = (file.len(), Arc::new(file.clone()));
    let mut text = Vec::new();
    for (at, group) in layout.metadata.row_groups().iter().enumerate() {
        for column in (0..layout.leaves.len()).filter(|column| layout.is_readable(*column)) {
            let chunk = ChunkRows { layout: &layout, source: &file, group, column, first_row: 0, limits };
            chunk.read_all(|batch| {
                let data_type = layout.leaves[column].plan.field.data_type();
                let array = batch.values.to_arrow(data_type);
                let array = array.map_err(|(_, what)| layout.column_invalid(column, what))?;
                each_value(&Leaf::new(array), |_, value| {
                    text.clear();
                    let is_text = match TokenReader::new(value).token() {
                        Ok(Token::Bin(bytes)) => {
                            text.extend_from_slice(bytes);
                            true
                        }
                        Ok(token) => plain(token, &mut text).is_some(),
                        Err(_) => false,
                    };
                    if let (true, Ok(text)) = (is_text, std::str::from_utf8(&text)) {
                        met(&layout, column, check, text);
                    }
                });
                Ok(())
            })?;
        }
        let groups = layout.metadata.num_row_groups() as u64;
        let share = |part: u64| length * part / groups.max(1);
        progress.add(share(at as u64 + 1) - share(at as u64), 0);
    }
    Ok(())
}
