//! Encrypts and decrypts columns.
//!
//! An encrypted column becomes text, and the Arrow schema of the file notes its type
//! (`sealwire:type`), from which decryption restores it. Nulls are neither sent nor changed.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::ArrayRef;
use arrow_schema::{DataType, Field, FieldRef, Schema, TimeUnit};
use bytes::Bytes;
use parquet::arrow::{
    ARROW_SCHEMA_META_KEY, ArrowSchemaConverter, encode_arrow_schema, parquet_to_arrow_schema,
};
use parquet::basic::{Repetition, Type as PhysicalType};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::schema::types::{SchemaDescriptor, Type, TypePtr};
pub use sealwire_columns::Direction;
pub use sealwire_columns::named_type;
use sealwire_columns::{ColumnError, Leaf, LeafPlan, Pieces, build, check, new_field, resolve};
use sealwire_mask_rules::{RuleText, Rules, Target, Unknown};
use tokio::task::spawn_blocking;

use super::column_rows::ENTRY_BYTES;
use super::layout::{Indexing, Layout, without_bounds};
use super::read::ReadBatch;
use super::values::Values;
use super::{BatchWork, ChangedBatch, JobState, open_job};
use crate::mask_job::engine::EngineError;
use crate::mask_job::error::JobError;
use crate::mask_job::limits::Limits;
use crate::mask_job::output::{Input, Output};
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Counts, Progress, Report};

/// Key of file metadata with the types of columns for Apache Spark. After the change, these types
/// would be wrong, and Spark would rely on them.
const SPARK: &str = "org.apache.spark.sql.parquet.row.metadata";

/// Key of an encrypted field's metadata with its physical type in Parquet, if the Arrow type does
/// not determine it.
const PHYSICAL_TYPE: &str = "sealwire:parquet";
const INT96: &str = "INT96";

/// A job that encrypts or decrypts columns of a Parquet file.
#[derive(Clone, Debug)]
pub struct ColumnsJob {
    /// The input.
    pub input: Input,
    /// The output.
    pub output: Output,
    /// Select paths of the columns, such as `$.email` and `$.tags[*]`. Empty: all columns.
    pub select: Vec<String>,
    /// Types of decrypted columns without a noted type, by path. Programs that copy a file can drop
    /// the note.
    pub types: Vec<(String, DataType)>,
    /// Encryption ([`Direction::Seal`]) or decryption ([`Direction::Open`]).
    pub direction: Direction,
    /// Limits of the job.
    pub limits: Limits,
}

/// Encrypts or decrypts arrays of values.
pub trait DocumentEngine: Send + Sync + 'static {
    /// Returns the results for a MessagePack array of values, as an array of the same length. Jobs
    /// call this concurrently. The future can be dropped.
    fn convert(&self, payload: Vec<u8>) -> impl Future<Output = Result<Bytes, EngineError>> + Send;
}

/// Encrypts or decrypts columns of a Parquet file. The output appears only on success.
/// [`Progress::stop`] stops the job.
///
/// # Errors
/// [`JobError`].
pub async fn change_columns<E: DocumentEngine>(
    job: ColumnsJob,
    engine: Arc<E>,
    progress: Arc<Progress>,
) -> Result<Report, JobError> {
    let started_at = Instant::now();
    let limits = job.limits;
    let stop = progress.job_stop().clone();
    let opened = spawn_blocking(move || {
        let mut columns = Vec::new();
        let opened = open_job(&job.input, &job.output, &stop, |name, metadata| {
            let (layout, found) = prepare_layout(&job, name, metadata)?;
            columns = found;
            Ok(layout)
        });
        opened.map(|opened| (opened, columns))
    });
    let (opened, columns) = opened.await??;
    opened
        .run(
            limits,
            Arc::new(SealWork { engine, columns }),
            progress,
            started_at,
        )
        .await
}

/// The type of a column in the output.
#[derive(Clone, Debug)]
struct NewColumn {
    data_type: DataType,
    physical: PhysicalType,
    width: i32,
}

/// Prepares a job. Returns the new type of each column that changes.
fn prepare_layout(
    job: &ColumnsJob,
    name: String,
    metadata: ParquetMetaData,
) -> Result<(Layout, Vec<Option<NewColumn>>), JobError> {
    let all = ["$".to_owned()];
    let select = if job.select.is_empty() {
        &all[..]
    } else {
        &job.select
    };
    // Rules with the function `keep` serve as the selection of columns.
    let rules = select
        .iter()
        .map(|path| RuleText {
            target: Target::Path(path.clone()),
            mask: "keep".to_owned(),
        })
        .collect();
    let rules = Rules::new(Unknown::Keep, rules, Vec::new())
        .map_err(|error| JobError::Plan(error.to_string()))?;
    let plan = Arc::new(Plan::new(Arc::new(rules)));

    let file = metadata.file_metadata();
    let mut schema = noted_schema(&metadata).map_err(|what| JobError::Invalid {
        name: name.clone(),
        what,
    })?;
    let mut root = file.schema_descr().root_schema_ptr();
    let mut layout = Layout::new(name.clone(), Arc::clone(&plan), metadata, |leaf| {
        leaf.rule.is_some()
    })?;
    check_names(&layout)?;
    if job.select.is_empty() {
        reject_map_keys(&layout)?;
    }

    let leaves = resolve(plan.rules(), &schema)
        .map_err(|error| JobError::Plan(format!("{name}: {error}")))?;
    let is_same = leaves.len() == layout.leaves.len();
    let mut columns = vec![None; layout.leaves.len()];
    let mut types = job.types.clone();
    for column in layout.changed_columns().collect::<Vec<_>>() {
        let plan = &layout.leaves[column].plan;
        let path = if is_same {
            &leaves[column].path
        } else {
            &plan.path
        };
        let old = path
            .field(&schema)
            .map_err(|error| column_error(&name, &error))?;
        let physical = layout
            .metadata
            .file_metadata()
            .schema_descr()
            .column(column)
            .physical_type();
        let old = sent_field(&old, plan, physical);
        check(path.text(), old.data_type()).map_err(|error| column_error(&name, &error))?;
        if job.direction == Direction::Open && !is_text(plan) {
            let error = ColumnError::Type {
                column: path.text().to_owned(),
                problem: format!(
                    "has type {}, and envelopes are text or binary: name the columns to decrypt, such as --select '$.email'",
                    plan.field.data_type()
                ),
            };
            return Err(column_error(&name, &error));
        }

        let named = types
            .iter()
            .position(|(named, _)| column_name(named) == column_name(path.text()));
        let named = named.map(|at| types.swap_remove(at).1);
        let field = new_field(&old, named.as_ref(), job.direction, &[])
            .map_err(|error| column_error(&name, &error))?;
        let (field, is_int96) = with_physical(&field, physical, job.direction);
        schema = Schema::clone(&path.replace_field(&schema, &field));

        let (leaf, data_type) =
            parquet_type(&field, is_int96).map_err(|what| layout.column_invalid(column, &what))?;
        let column_path = layout
            .metadata
            .file_metadata()
            .schema_descr()
            .column(column)
            .path()
            .clone();
        root = replace_leaf(&root, column_path.parts(), &leaf)
            .map_err(|what| layout.column_invalid(column, &what))?;
        columns[column] = Some(NewColumn {
            data_type,
            physical: leaf.get_physical_type(),
            width: fixed_length(&leaf),
        });
    }
    if let Some((unused, _)) = types.first() {
        return Err(JobError::Plan(format!(
            "{name}: a type is given for {unused}, which is not a column to decrypt"
        )));
    }

    layout.output.columns = Arc::new(SchemaDescriptor::new(root));
    layout.output.indexing = if job.direction == Direction::Seal {
        Indexing::Off
    } else {
        Indexing::Usual
    };
    let entries = layout.output.key_values.get_or_insert_default();
    entries.retain(|entry| entry.key != ARROW_SCHEMA_META_KEY && entry.key != SPARK);
    let mut schema = without_bounds(schema);
    schema.metadata.remove(SPARK);
    entries.push(KeyValue::new(
        ARROW_SCHEMA_META_KEY.to_owned(),
        encode_arrow_schema(&schema),
    ));
    Ok((layout, columns))
}

fn column_error(file: &str, error: &ColumnError) -> JobError {
    JobError::Plan(format!("{file}: {error}"))
}

/// Returns an error if the file has a map. The rules name every column except the keys of maps.
fn reject_map_keys(layout: &Layout) -> Result<(), JobError> {
    let keys = layout
        .leaves
        .iter()
        .find(|leaf| leaf.plan.rule.is_none() && *leaf.plan.field.data_type() != DataType::Null);
    keys.map_or(Ok(()), |keys| {
        Err(JobError::Plan(format!(
            "{}: the keys of a map ({}) cannot be encrypted or decrypted: select the columns to change",
            layout.name,
            keys.plan.path.text()
        )))
    })
}

/// Returns a path without the root, which errors and paths of columns leave out.
fn column_name(path: &str) -> &str {
    path.strip_prefix("$.").unwrap_or(path)
}

/// Rejects a changed column whose name occurs twice: a reader could not distinguish the encrypted
/// column from the other.
fn check_names(layout: &Layout) -> Result<(), JobError> {
    let schema = layout.metadata.file_metadata().schema_descr();
    for column in layout.changed_columns() {
        let path = schema.column(column).path().clone();
        if schema
            .columns()
            .iter()
            .filter(|other| *other.path() == path)
            .count()
            > 1
        {
            return Err(JobError::Plan(format!(
                "{}: two columns are named {}: rename one of them before",
                layout.name,
                layout.leaves[column].plan.path.text()
            )));
        }
    }
    Ok(())
}

/// Returns the Arrow schema in the file's metadata, or else the schema that follows from the
/// Parquet types.
fn noted_schema(metadata: &ParquetMetaData) -> Result<Schema, String> {
    let file = metadata.file_metadata();
    let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata());
    schema.map_err(|error| error.to_string())
}

/// Returns the field with or without a note of the physical type `INT96`, from which decryption
/// restores this type. Returns true if the output's values are `INT96`.
fn with_physical(
    field: &FieldRef,
    physical: PhysicalType,
    direction: Direction,
) -> (FieldRef, bool) {
    let mut metadata = field.metadata().clone();
    let is_noted = metadata
        .remove(PHYSICAL_TYPE)
        .is_some_and(|noted| noted == INT96);
    if direction == Direction::Seal && physical == PhysicalType::INT96 {
        metadata.insert(PHYSICAL_TYPE.to_owned(), INT96.to_owned());
    }
    let is_instant = matches!(
        field.data_type(),
        DataType::Timestamp(TimeUnit::Nanosecond, _)
    );
    let is_int96 = is_noted && is_instant && direction == Direction::Open;
    (
        Arc::new(Field::clone(field).with_metadata(metadata)),
        is_int96,
    )
}

/// Returns the field with the type under which its values are sent. For example, Arrow's
/// dictionaries are text in Parquet.
fn sent_field(field: &FieldRef, plan: &LeafPlan, physical: PhysicalType) -> FieldRef {
    let noted = field.data_type();
    let own = plan.field.data_type();
    let is_same_form = match own {
        // Values of type `INT96` have nanoseconds, which a coarser unit would lose after
        // decryption.
        _ if physical == PhysicalType::INT96 => false,
        DataType::Utf8 => matches!(
            noted,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
        ),
        DataType::Binary => matches!(
            noted,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView
        ),
        DataType::Timestamp(..) => matches!(noted, DataType::Timestamp(..)),
        own => noted == own,
    };
    let data_type = if is_same_form { noted } else { own };
    Arc::new(Field::clone(field).with_data_type(data_type.clone()))
}

fn is_text(plan: &LeafPlan) -> bool {
    matches!(plan.field.data_type(), DataType::Utf8 | DataType::Binary)
}

/// Returns the Parquet type of a field, and the Arrow type that its values have without a noted
/// schema.
fn parquet_type(field: &FieldRef, is_int96: bool) -> Result<(TypePtr, DataType), String> {
    if is_int96 {
        let leaf = Type::primitive_type_builder("c", PhysicalType::INT96)
            .with_repetition(Repetition::OPTIONAL)
            .build();
        let leaf = leaf.map_err(|error| error.to_string())?;
        return Ok((
            Arc::new(leaf),
            DataType::Timestamp(TimeUnit::Nanosecond, None),
        ));
    }
    let data_type = match field.data_type() {
        // Parquet has no seconds.
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
        }
        other => other.clone(),
    };
    let schema = Schema::new(vec![Field::new("c", data_type, true)]);
    let converted = ArrowSchemaConverter::new()
        .convert(&schema)
        .map_err(|error| error.to_string())?;
    let arrow = parquet_to_arrow_schema(&converted, None).map_err(|error| error.to_string())?;
    Ok((
        converted.column(0).self_type_ptr(),
        arrow.field(0).data_type().clone(),
    ))
}

fn fixed_length(leaf: &Type) -> i32 {
    match leaf {
        Type::PrimitiveType { type_length, .. } => *type_length,
        Type::GroupType { .. } => 0,
    }
}

/// Returns a schema with another type of the leaf at a path. The leaf keeps its name, id and
/// repetition.
fn replace_leaf(node: &TypePtr, path: &[String], leaf: &Type) -> Result<TypePtr, String> {
    let Some((first, rest)) = path.split_first() else {
        let old = node.get_basic_info();
        let new = leaf.get_basic_info();
        let (precision, scale) = match leaf {
            Type::PrimitiveType {
                precision, scale, ..
            } => (*precision, *scale),
            Type::GroupType { .. } => (-1, -1),
        };
        let changed = Type::primitive_type_builder(old.name(), leaf.get_physical_type())
            .with_repetition(old.repetition())
            .with_id(old.has_id().then(|| old.id()))
            .with_logical_type(new.logical_type_ref().cloned())
            .with_converted_type(new.converted_type())
            .with_length(fixed_length(leaf))
            .with_precision(precision)
            .with_scale(scale)
            .build();
        return changed.map(Arc::new).map_err(|error| error.to_string());
    };
    let info = node.get_basic_info();
    let mut fields = node.get_fields().to_vec();
    let child = fields
        .iter_mut()
        .find(|child| child.name() == first)
        .ok_or("it is not in the schema")?;
    *child = replace_leaf(child, rest, leaf)?;
    let builder = Type::group_type_builder(info.name())
        .with_fields(fields)
        .with_id(info.has_id().then(|| info.id()))
        .with_logical_type(info.logical_type_ref().cloned())
        .with_converted_type(info.converted_type());
    let builder = if info.has_repetition() {
        builder.with_repetition(info.repetition())
    } else {
        builder
    };
    builder
        .build()
        .map(Arc::new)
        .map_err(|error| error.to_string())
}

/// Encrypts or decrypts batches.
struct SealWork<E> {
    engine: Arc<E>,
    columns: Vec<Option<NewColumn>>,
}

impl<E: DocumentEngine> BatchWork for SealWork<E> {
    async fn change(
        &self,
        job: &Arc<JobState>,
        batch: ReadBatch,
    ) -> Result<ChangedBatch, JobError> {
        let (batch, leaf, pieces) = job.on_thread(batch, divide_batch).await??;
        let mut results = Vec::with_capacity(pieces.len());
        for mut piece in pieces {
            let result = self
                .engine
                .convert(std::mem::take(&mut piece.payload))
                .await
                .map_err(|error| match error {
                    EngineError::Unfit { value, why, .. } => {
                        let at = piece
                            .part_of(value)
                            .and_then(|(part, number)| leaf.row(part.first_row, number));
                        job.layout.value_error(&batch, at.unwrap_or(0), &why)
                    }
                    EngineError::Failed(why) => JobError::Engine(why),
                })?;
            let divided = piece.divide(&result);
            let divided = divided.ok_or_else(|| {
                JobError::Engine("a result has another number of values than its request".into())
            })?;
            results.extend(divided.into_iter().map(|(_, values)| values));
        }
        let new = self.columns.get(batch.column).cloned().flatten();
        let new = new.ok_or_else(|| {
            job.layout
                .column_invalid(batch.column, "it has no type in the output")
        })?;
        job.on_thread(
            (batch, leaf, results),
            move |job, (batch, leaf, results)| put_back(job, &new, batch, &leaf, &results),
        )
        .await?
    }
}

fn divide_batch(
    job: &JobState,
    batch: ReadBatch,
) -> Result<(ReadBatch, Leaf, Vec<sealwire_columns::Piece>), JobError> {
    let data_type = job.layout.leaves[batch.column].plan.field.data_type();
    let array = batch
        .values
        .to_arrow(data_type)
        .map_err(|(at, what)| job.layout.value_error(&batch, at, what))?;
    let leaf = Leaf::new(array);
    let pieces = Pieces::new(std::slice::from_ref(&leaf), 1, job.limits.batch_values_max).collect();
    Ok((batch, leaf, pieces))
}

/// Returns an error if a row became longer than the limit of a record: another job, such as
/// decryption, could not read the row.
fn check_rows(job: &JobState, batch: &ReadBatch, values: &Values) -> Result<(), JobError> {
    let leaf = &job.layout.leaves[batch.column];
    let mut row_bytes = 0;
    let mut at = 0;
    for entry in 0..batch.entries {
        let is_in_list = leaf.repetition_max > 0;
        if !is_in_list || batch.levels.repetitions[entry] == 0 {
            row_bytes = 0;
        }
        row_bytes += ENTRY_BYTES * usize::from(is_in_list);
        if leaf.definition_max > 0 && batch.levels.definitions[entry] != leaf.definition_max {
            continue;
        }
        row_bytes += values.value_bytes(at);
        if row_bytes > job.limits.record_bytes_max {
            let what = format!(
                "the result has more than {} bytes, which no job reads",
                job.limits.record_bytes_max
            );
            return Err(job.layout.value_error(batch, at, &what));
        }
        at += 1;
    }
    Ok(())
}

fn put_back(
    job: &JobState,
    new: &NewColumn,
    batch: ReadBatch,
    leaf: &Leaf,
    results: &[Bytes],
) -> Result<ChangedBatch, JobError> {
    let layout = &job.layout;
    let own = &layout.leaves[batch.column];
    let array: ArrayRef = build(own.plan.path.text(), &new.data_type, leaf, results).map_err(
        |error| match error {
            ColumnError::Unfit {
                row,
                found,
                data_type,
                ..
            } => layout.value_error(
                &batch,
                row,
                &format!("the result is {found}, which type {data_type} does not hold"),
            ),
            error => layout.column_invalid(batch.column, &error.to_string()),
        },
    )?;
    let values = Values::empty(new.physical).convert_array(&array, new.width);
    let values =
        values.ok_or_else(|| layout.value_error(&batch, 0, "a result does not fit the column"))?;
    if values.len() != batch.values.len() {
        return Err(layout.column_invalid(batch.column, "a result is null"));
    }
    check_rows(job, &batch, &values)?;
    let mut counts = Counts::default();
    (0..values.len()).for_each(|_| counts.add_masked(own.kept, false));
    counts.add_nulls(own.kept, own.nulls(&batch.levels));
    layout.running_report.add(&counts);
    Ok(ChangedBatch {
        column: batch.column,
        values,
        levels: batch.levels,
        permit: batch.permit,
    })
}
