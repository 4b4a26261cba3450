//! Samples of Arrow data, column by column.
//!
//! A column is a leaf of the schema: a column of the table, or the members or items of a nested
//! column. [`ArrowSamples`] takes record batches. [`JudgedColumns`] are the same columns without
//! functions. [`JudgedColumns::decide`] chooses functions whose results fit the columns' types. The
//! rules then resolve on the schema (`columns`).

mod decide;
mod leaf;

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};
use sealwire_columns::{Leaf, SchemaLeaf, check, schema_leaves};

pub use decide::{ColumnTrial, JudgedColumns, column_trial};

use crate::DiscoverOptions;
use crate::judge::judge;
use crate::path::{PathPart, are_personal, hide_keys, names_of, path_text};
use crate::sample::Sample;
use decide::JudgedColumn;
use leaf::SampledLeaf;

/// Maximum bytes of the sampled values of all columns. Each column has an equal part.
const SAMPLES_BYTES_MAX: usize = 256 << 20;

/// Samples of the columns of Arrow data. Samples stay in memory. `Debug` shows neither values nor
/// names, since names can be data.
pub struct ArrowSamples {
    schema: Schema,
    leaves: Vec<SampledLeaf>,
    options: DiscoverOptions,
}

impl fmt::Debug for ArrowSamples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrowSamples")
            .field("leaves", &self.leaves.len())
            .finish_non_exhaustive()
    }
}

/// Returns the reason why columns of a type cannot be masked.
fn type_obstacle(data_type: &DataType) -> Option<String> {
    check("", data_type).is_err().then(|| match data_type {
        DataType::Dictionary(..) => {
            "the column is a dictionary: cast it to the type of its values".to_owned()
        }
        nested if nested.is_nested() => {
            "the column has a nested type that cannot be masked".to_owned()
        }
        other => format!("the column has type {other}, which cannot be masked"),
    })
}

impl ArrowSamples {
    /// Prepares samples of all columns.
    #[must_use]
    pub fn new(schema: &Schema, options: DiscoverOptions) -> Self {
        let leaves = schema_leaves(schema);
        let bytes_max = SAMPLES_BYTES_MAX / leaves.len().max(1);
        let leaves = (0..)
            .zip(leaves)
            .map(|(at, leaf): (u64, SchemaLeaf)| {
                let seed = options
                    .seed
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .wrapping_add(at);
                let obstacle = type_obstacle(leaf.field.data_type());
                SampledLeaf {
                    leaf,
                    sample: Sample::bounded(options.sample, seed, bytes_max),
                    obstacle,
                    binary_values: 0,
                }
            })
            .collect();
        Self {
            schema: schema.clone(),
            leaves,
            options,
        }
    }

    /// Marks a column that cannot be masked. Such columns are judged only by name.
    pub fn reject(&mut self, column: usize, why: &str) {
        if let Some(leaf) = self.leaves.get_mut(column) {
            leaf.obstacle.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Adds the values of a batch.
    pub fn add_batch(&mut self, batch: &RecordBatch) {
        for sampled in &mut self.leaves {
            let leaf = sampled.leaf.path.find(batch);
            sampled.add(&leaf);
        }
    }

    /// Adds values of the column with this index among all leaves.
    pub fn add_leaf(&mut self, column: usize, leaf: &Leaf) {
        if let Some(sampled) = self.leaves.get_mut(column) {
            sampled.add(leaf);
        }
    }

    /// Returns the sampled texts of a column.
    #[cfg(test)]
    pub(crate) fn texts(&self, column: usize) -> Vec<String> {
        self.leaves[column]
            .sample
            .texts()
            .map(str::to_owned)
            .collect()
    }

    /// Judges the columns. `table` is the name of the table or file.
    #[must_use]
    pub fn judge(self, table: &str) -> JudgedColumns {
        let Self {
            schema,
            leaves,
            options,
        } = self;
        let (keys, values): (Vec<_>, Vec<_>) = leaves
            .into_iter()
            .partition(|sampled| sampled.leaf.is_map_key);
        // Includes the paths of keys, since the path of a map can contain names that are data.
        let mut key_paths: Vec<Vec<PathPart>> =
            keys.iter().chain(&values).map(SampledLeaf::parts).collect();
        // The columns of a table have fixed names, even if there are many.
        let hidden = hide_keys(&mut key_paths, |prefix, keys| {
            (!prefix.is_empty() && are_personal(keys)).then_some(true)
        });
        let mut notes: Vec<String> = hidden
            .iter()
            .map(|(prefix, _)| personal_keys(prefix))
            .collect();
        let paths = key_paths.split_off(keys.len());
        for (sampled, parts) in keys.iter().zip(key_paths) {
            let texts: BTreeSet<String> = sampled.sample.texts().map(str::to_owned).collect();
            if are_personal(&texts) {
                let map = parts
                    .iter()
                    .rposition(|part| *part == PathPart::Any)
                    .unwrap_or(0);
                notes.push(personal_keys(&parts[..map]));
            }
        }
        let mut known: HashMap<Vec<PathPart>, usize> = HashMap::new();
        let mut columns: Vec<JudgedColumn> = Vec::new();
        for (parts, sampled) in paths.into_iter().zip(values) {
            let (name, parent) = names_of(&parts);
            let parent = if parent.is_empty() { table } else { parent };
            let class = sampled.class();
            let judgement = judge(name, parent, &class, &sampled.sample, options.this_year);
            let at = *known.entry(parts.clone()).or_insert(columns.len());
            match columns.get_mut(at) {
                // The most confident column with a name decides for all columns with that name.
                Some(column) => {
                    column.leaves.push(sampled);
                    if judgement.confidence > column.judgement.confidence {
                        (column.judgement, column.class) = (judgement, class);
                    }
                }
                None => columns.push(JudgedColumn {
                    parts,
                    leaves: vec![sampled],
                    judgement,
                    class,
                }),
            }
        }
        JudgedColumns {
            schema,
            columns,
            notes,
            options,
        }
    }
}

fn personal_keys(map: &[PathPart]) -> String {
    format!(
        "keys of the map {} have the form of personal data, and masking never changes keys",
        path_text(map)
    )
}
