//! A file and the decision for each of its columns.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::{DataType, Field, FieldRef, Schema};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema, parquet_to_arrow_schema};
use parquet::basic::{Compression, Repetition};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::schema::types::SchemaDescPtr;
use sealwire_columns::{LeafDecision, LeafPlan, resolve};
use sealwire_mask_rules::Target;

use super::read::ReadBatch;
use super::values::{Levels, Values};
use crate::mask_job::error::JobError;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Counts, Label, RunningReport};

/// Keys of file metadata that hold or bound values of columns: the bounding boxes of GeoParquet,
/// and the least and greatest record key and the bloom filter of record keys of Apache Hudi.
pub(super) const VALUES_OF_COLUMNS: [&str; 6] = [
    "geo",
    "hoodie_min_record_key",
    "hoodie_max_record_key",
    "hoodie_bloom_filter_type_code",
    "org.apache.hudi.bloomfilter",
    "com.uber.hoodie.bloomfilter",
];

/// Returns a schema without the metadata entries that bound values of columns. Readers such as
/// pyarrow take the metadata of the file from the schema.
pub(super) fn without_bounds(mut schema: Schema) -> Schema {
    schema
        .metadata
        .retain(|key, _| !VALUES_OF_COLUMNS.contains(&key.as_str()));
    schema
}

/// A checked file, with the decision for each of its columns.
pub(super) struct Layout {
    pub(super) name: String,
    pub(super) plan: Arc<Plan>,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) leaves: Vec<LeafLayout>,
    pub(super) running_report: RunningReport,
    pub(super) output: OutputLayout,
}

/// The schema, metadata and settings of the output.
pub(super) struct OutputLayout {
    pub(super) columns: SchemaDescPtr,
    pub(super) key_values: Option<Vec<KeyValue>>,
    /// The dictionary, statistics and bloom filters of changed columns.
    pub(super) indexing: Indexing,
}

/// The dictionary, statistics and bloom filters of changed columns in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Indexing {
    /// As in the input.
    Kept,
    /// Writes no dictionary, statistics or bloom filters: each value is different, and the order of
    /// values has no meaning.
    Off,
    /// Writes a dictionary, and statistics of chunks.
    Usual,
}

/// A column of the file: a leaf of its schema.
pub(super) struct LeafLayout {
    pub(super) plan: LeafPlan,
    /// True if the values of the column are replaced.
    pub(super) is_changed: bool,
    /// True if rules by kind examine the UTF-8 values of a binary column.
    pub(super) is_binary_text: bool,
    pub(super) definition_max: i16,
    pub(super) repetition_max: i16,
    pub(super) is_optional: bool,
    /// The length of values, if the type has a fixed length.
    pub(super) width: i32,
    /// The label of each rule that can mask the column.
    labels: Vec<(usize, Label)>,
    /// The label under which nulls and kept values are counted.
    pub(super) kept: Label,
}

impl LeafLayout {
    pub(super) fn label(&self, rule: usize) -> Label {
        self.labels
            .iter()
            .find(|(of, _)| *of == rule)
            .map_or(self.kept, |(_, label)| *label)
    }

    /// Returns the number of nulls, without empty lists and without values whose struct is null.
    pub(super) fn nulls(&self, levels: &Levels) -> u64 {
        if !self.is_optional {
            return 0;
        }
        levels
            .definitions
            .iter()
            .filter(|level| **level == self.definition_max - 1)
            .count() as u64
    }
}

impl Layout {
    /// Prepares a job that changes the columns for which `is_changed` is true.
    pub(super) fn new(
        name: String,
        plan: Arc<Plan>,
        metadata: ParquetMetaData,
        is_changed: impl Fn(&LeafPlan) -> bool,
    ) -> Result<Self, JobError> {
        let schema = metadata.file_metadata().schema_descr_ptr();
        // Ignores the Arrow schema that the file may contain, so that the types are those of
        // Parquet.
        let arrow = parquet_to_arrow_schema(&schema, None)
            .map_err(|error| invalid_file(&name, &error.to_string()))?;
        let plans = resolve(plan.rules(), &arrow)
            .map_err(|error| JobError::Plan(format!("{name}: {error}")))?;
        if plans.len() != schema.num_columns() || plans.is_empty() {
            return Err(invalid_file(
                &name,
                "it has columns of a kind that cannot be read",
            ));
        }

        let running_report = RunningReport::default();
        let mut leaves = Vec::with_capacity(plans.len());
        let texts = if plan.has_kinds() {
            with_texts(&plan, &arrow)
        } else {
            Vec::new()
        };
        for (at, (plan_of_leaf, column)) in plans.into_iter().zip(schema.columns()).enumerate() {
            let is_unnamed_binary =
                plan_of_leaf.rule.is_none() && *plan_of_leaf.field.data_type() == DataType::Binary;
            let as_text = texts
                .get(at)
                .filter(|text| is_unnamed_binary && text.decision == LeafDecision::Kinds);
            let is_binary_text = as_text.is_some();
            let plan_of_leaf = as_text.cloned().unwrap_or(plan_of_leaf);
            let leaf = LeafLayout {
                // A column of type null has no values to change.
                is_changed: *plan_of_leaf.field.data_type() != DataType::Null
                    && is_changed(&plan_of_leaf),
                is_binary_text,
                definition_max: column.max_def_level(),
                repetition_max: column.max_rep_level(),
                is_optional: column.self_type().get_basic_info().has_repetition()
                    && column.self_type().get_basic_info().repetition() == Repetition::OPTIONAL,
                width: column.type_length(),
                labels: rule_labels(&plan, &running_report, &plan_of_leaf),
                kept: kept_label(&plan, &running_report, &plan_of_leaf),
                plan: plan_of_leaf,
            };
            leaves.push(leaf);
        }

        let file = metadata.file_metadata();
        let output = OutputLayout {
            columns: file.schema_descr_ptr(),
            key_values: file.key_value_metadata().cloned(),
            indexing: Indexing::Kept,
        };
        let mut layout = Self {
            name,
            plan,
            metadata: Arc::new(metadata),
            leaves,
            running_report,
            output,
        };
        layout.drop_bounds();
        layout.check_changed()?;
        layout.count_copied();
        Ok(layout)
    }

    pub(super) fn changed_columns(&self) -> impl Iterator<Item = usize> {
        (0..self.leaves.len()).filter(|column| self.is_changed(*column))
    }

    pub(super) fn is_changed(&self, column: usize) -> bool {
        self.leaves[column].is_changed
    }

    /// Rejects changed columns, and columns of their subjects, that cannot be read or written.
    pub(super) fn check_changed(&self) -> Result<(), JobError> {
        for column in self.changed_columns() {
            self.check_column(column)?;
            for (_, subject) in self.leaves[column].plan.subject_leaves() {
                self.check_column(subject)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_column(&self, column: usize) -> Result<(), JobError> {
        self.column_problem(column).map_or(Ok(()), |what| {
            Err(JobError::Plan(format!(
                "{}: column {}: {what}",
                self.name,
                self.leaves[column].plan.path.text()
            )))
        })
    }

    /// Returns the reason why a column cannot be read or written.
    fn column_problem(&self, column: usize) -> Option<String> {
        let plan = &self.leaves[column].plan;
        let descriptor = self.metadata.file_metadata().schema_descr().column(column);
        if let Err((_, what)) =
            Values::empty(descriptor.physical_type()).to_arrow(plan.field.data_type())
        {
            return Some(format!("{what} (as {})", plan.field.data_type()));
        }

        let mut codecs = self
            .metadata
            .row_groups()
            .iter()
            .map(|group| group.column(column).compression());
        let codec = codecs.find_map(unknown_codec)?;
        Some(format!(
            "it is compressed with {codec}, which this program lacks"
        ))
    }

    /// If a column is changed, removes the entries of the file's metadata that bound values of
    /// columns. Some writers repeat this metadata within the Arrow schema.
    fn drop_bounds(&mut self) {
        let is_changed = self.changed_columns().next().is_some();
        let file = self.metadata.file_metadata();
        let Some(entries) = self.output.key_values.as_mut().filter(|_| is_changed) else {
            return;
        };
        let before = entries.len();
        entries.retain(|entry| !VALUES_OF_COLUMNS.contains(&entry.key.as_str()));
        let had_bounds = entries.len() < before;
        let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata()).ok();

        // The Arrow schema may not fit the file, for example after a column was renamed. Such a
        // schema is kept if the file had no entries to remove, since the schema then repeats none.
        if schema
            .as_ref()
            .map_or(!had_bounds, |schema| !has_bounds(schema))
        {
            return;
        }
        if let Some(at) = entries
            .iter()
            .position(|entry| entry.key == ARROW_SCHEMA_META_KEY)
        {
            match schema.map(without_bounds) {
                Some(schema) => entries[at].value = Some(encode_arrow_schema(&schema)),
                None => drop(entries.remove(at)),
            }
        }
    }

    /// Returns values of a column as Arrow values. `Err` describes the problem with a value, and
    /// contains the value's index if known.
    pub(super) fn to_arrow(
        &self,
        column: usize,
        values: &Values,
    ) -> Result<ArrayRef, (usize, &'static str)> {
        let leaf = &self.leaves[column];
        match values.to_texts().filter(|_| leaf.is_binary_text) {
            Some(texts) => Ok(texts),
            None => values.to_arrow(leaf.plan.field.data_type()),
        }
    }

    /// Returns the Arrow schema that follows from the file's Parquet types.
    pub(super) fn schema(&self) -> Result<Schema, JobError> {
        let schema = self.metadata.file_metadata().schema_descr();
        parquet_to_arrow_schema(schema, None).map_err(|error| self.invalid(&error.to_string()))
    }

    /// Returns true if the values of a column can be read as Arrow values of a type that masks
    /// know.
    pub(super) fn is_readable(&self, column: usize) -> bool {
        let physical = self
            .metadata
            .file_metadata()
            .schema_descr()
            .column(column)
            .physical_type();
        Values::empty(physical)
            .to_arrow(self.leaves[column].plan.field.data_type())
            .is_ok()
    }

    /// Counts the values of columns that are copied, as the metadata states them.
    pub(super) fn count_copied(&self) {
        let mut counts = Counts::default();
        for column in (0..self.leaves.len()).filter(|column| !self.is_changed(*column)) {
            for chunk in self
                .metadata
                .row_groups()
                .iter()
                .map(|group| group.column(column))
            {
                let values = u64::try_from(chunk.num_values()).unwrap_or(0);
                let nulls = chunk
                    .statistics()
                    .and_then(|statistics| statistics.null_count_opt())
                    .unwrap_or(0);
                counts.add_kept(self.leaves[column].kept, values.saturating_sub(nulls));
                counts.add_nulls(self.leaves[column].kept, nulls);
            }
        }
        self.running_report.add(&counts);
    }

    pub(super) fn invalid(&self, what: &str) -> JobError {
        invalid_file(&self.name, what)
    }

    pub(super) fn column_invalid(&self, column: usize, what: &str) -> JobError {
        self.invalid(&format!(
            "column {}: {what}",
            self.leaves[column].plan.path.text()
        ))
    }

    /// Creates the error for the value with this index in its batch.
    pub(super) fn value_error(&self, batch: &ReadBatch, at: usize, what: &str) -> JobError {
        let leaf = &self.leaves[batch.column];
        let entry = (0..batch.entries)
            .filter(|entry| {
                leaf.definition_max == 0 || batch.levels.definitions[*entry] == leaf.definition_max
            })
            .nth(at)
            .unwrap_or(0);
        let row = match leaf.repetition_max {
            0 => entry as u64,
            _ => batch.levels.repetitions[1..=entry]
                .iter()
                .filter(|level| **level == 0)
                .count() as u64,
        };
        JobError::Row {
            table: self.name.clone(),
            column: leaf.plan.path.text().to_owned(),
            row: batch.first_row + row + 1,
            what: what.to_owned(),
        }
    }
}

fn invalid_file(name: &str, what: &str) -> JobError {
    JobError::Invalid {
        name: name.to_owned(),
        what: what.to_owned(),
    }
}

/// Returns true if a schema repeats metadata that bounds values of columns.
fn has_bounds(schema: &Schema) -> bool {
    VALUES_OF_COLUMNS
        .iter()
        .any(|key| schema.metadata().contains_key(key))
}

/// Returns the decisions under which binary columns are text. Old writers do not annotate text
/// columns as text.
fn with_texts(plan: &Plan, schema: &Schema) -> Vec<LeafPlan> {
    let fields = schema.fields().iter().map(as_text).collect::<Vec<_>>();
    resolve(plan.rules(), &Schema::new(fields)).unwrap_or_default()
}

fn as_text(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Binary => DataType::Utf8,
        DataType::List(item) => DataType::List(as_text(item)),
        DataType::Map(entries, is_sorted) => DataType::Map(as_text(entries), *is_sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(as_text).collect()),
        other => other.clone(),
    };
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// Returns the label of each rule that can mask a column.
fn rule_labels(
    plan: &Plan,
    running_report: &RunningReport,
    leaf: &LeafPlan,
) -> Vec<(usize, Label)> {
    let name = leaf.path.text();
    match leaf.decision {
        LeafDecision::Rule(rule) => vec![(
            rule,
            running_report.label(plan.field(name.to_owned(), Some(rule), None)),
        )],
        LeafDecision::Keep => Vec::new(),
        LeafDecision::Kinds => {
            let kinds = plan
                .rules()
                .iter()
                .enumerate()
                .filter(|(_, rule)| matches!(rule.target, Target::Kind(_)));
            kinds
                .map(|(rule, _)| {
                    let field = plan.field(name.to_owned(), Some(rule), plan.kind_name(rule));
                    (rule, running_report.label(field))
                })
                .collect()
        }
    }
}

/// Returns the label under which nulls and kept values of a column are counted.
fn kept_label(plan: &Plan, running_report: &RunningReport, leaf: &LeafPlan) -> Label {
    running_report.label(plan.field(leaf.path.text().to_owned(), leaf.rule, None))
}

/// Returns the name of a codec that this program cannot write.
fn unknown_codec(compression: Compression) -> Option<&'static str> {
    match compression {
        Compression::UNCOMPRESSED
        | Compression::SNAPPY
        | Compression::GZIP(_)
        | Compression::BROTLI(_)
        | Compression::LZ4
        | Compression::LZ4_RAW
        | Compression::ZSTD(_) => None,
        Compression::LZO => Some("LZO"),
    }
}
