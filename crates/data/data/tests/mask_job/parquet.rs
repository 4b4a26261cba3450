//! Parquet jobs: masked values and nothing of the originals, unchanged columns, invalid files, and
//! failed jobs.

#[path = "../../../columns/tests/columns/random.rs"]
mod random;

#[path = "parquet/awkward.rs"]
mod awkward;
#[path = "parquet/hostile.rs"]
mod hostile;
#[path = "parquet/readers.rs"]
mod readers;

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Int32Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, Date32Array, DictionaryArray, Float64Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray, StructArray, TimestampMicrosecondArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, parquet_to_arrow_schema};
use parquet::basic::{Compression, ZstdLevel};
use parquet::bloom_filter::Sbbf;
use parquet::data_type::{ByteArray, ByteArrayType, Int96, Int96Type};
use parquet::file::metadata::{
    ColumnChunkMetaDataBuilder, KeyValue, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
    ParquetMetaDataWriter, SortingColumn,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RowAccessor;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use sealwire_data::mask_job::{
    Column, ColumnsJob, Direction, DocumentEngine, Engine, EngineError, FieldReport, FileFormat,
    FileJob, Input, JobError, LeakLimits, LeakVerdict, Limits, Output, Progress, Report,
    change_columns, mask_file, named_type, verify_files,
};
use sealwire_mask_rules::Rules;
use sealwire_msgpack::{TokenReader, write as msgpack};

use crate::common::{Local, rules};
use random::Numbers;

/// Rows of the test table. They are in row groups of 400.
const ROWS: usize = 1_000;

struct Run {
    folder: tempfile::TempDir,
    limits: Limits,
}

impl Run {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("folder"),
            limits: Limits::default(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn job<E: Engine>(
        &self,
        input: &[u8],
        rules: &Arc<Rules>,
        engine: Arc<E>,
    ) -> Result<Report, JobError> {
        fs::write(self.path("in.parquet"), input).expect("writes");
        let job = FileJob {
            input: Input::File(self.path("in.parquet")),
            output: Output::File {
                path: self.path("out.parquet"),
                replace: true,
            },
            format: FileFormat::from_name("in.parquet").expect("a format"),
            limits: self.limits,
            allow_unmatched: true,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("runtime");
        runtime.block_on(mask_file(
            job,
            Arc::clone(rules),
            engine,
            Arc::new(Progress::default()),
        ))
    }

    fn mask(&self, input: &[u8], rules: &Arc<Rules>) -> Result<(Bytes, Report), JobError> {
        let report = self.job(input, rules, Local::new(rules))?;
        Ok((
            fs::read(self.path("out.parquet"))
                .expect("the output")
                .into(),
            report,
        ))
    }

    /// Returns the error of a job, which leaves nothing.
    fn refused(&self, input: &[u8], rules: &Arc<Rules>) -> String {
        let error = self
            .job(input, rules, Local::new(rules))
            .expect_err("refused")
            .to_string();
        assert!(
            !self.path("out.parquet").exists(),
            "an output is left after: {error}"
        );
        error.replace(&self.path("in.parquet").display().to_string(), "FILE")
    }
}

/// An engine that masks nothing.
struct Same;

impl Engine for Same {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        Ok(columns.into_iter().map(|column| column.values).collect())
    }
}

fn file(batch: &RecordBatch, properties: WriterPropertiesBuilder) -> Bytes {
    let mut out = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut out, batch.schema(), Some(properties.build())).expect("a writer");
    writer.write(batch).expect("writes");
    writer.close().expect("closes");
    out.into()
}

fn metadata(file: &Bytes) -> ParquetMetaData {
    let reader = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Optional);
    reader.parse_and_finish(file).expect("metadata")
}

fn table(file: &Bytes) -> (SchemaRef, Vec<ArrayRef>) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(file.clone()).expect("a reader");
    let schema = Arc::clone(reader.schema());
    let reader = reader.with_batch_size(1 << 20).build().expect("a reader");
    let batches: Vec<_> = reader.collect::<Result<_, _>>().expect("reads");
    let [batch] = batches.as_slice() else {
        return (schema, Vec::new());
    };
    (schema, batch.columns().to_vec())
}

/// Returns texts that occur nowhere by chance.
fn secret(column: &str, row: usize) -> String {
    format!(
        "{column}-{:016x}",
        (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    )
}

fn number(row: usize) -> i64 {
    ((row as u64 + 7).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 1) as i64
}

/// Returns a table with secrets in columns of several types, and columns without.
fn people() -> RecordBatch {
    let rows = 0..ROWS;
    let email: StringArray = rows
        .clone()
        .map(|row| (row % 7 > 0).then(|| secret("mail", row % 300)))
        .collect();
    let number: Int64Array = rows
        .clone()
        .map(|row| (row % 5 > 0).then(|| number(row)))
        .collect();
    let city: DictionaryArray<Int32Type> = rows
        .clone()
        .map(|row| {
            if row % 9 > 0 {
                Some(["Bonn", "Kiel", "Ulm"][row % 3])
            } else {
                None
            }
        })
        .collect();
    let id: Int32Array = rows.clone().map(|row| Some(row as i32)).collect();
    let tags: StringArray = (0..ROWS * 2)
        .map(|at| (at % 3 > 0).then(|| secret("tag", at)))
        .collect();
    let tags = ListArray::new(
        Arc::new(Field::new("item", DataType::Utf8, true)),
        OffsetBuffer::from_lengths((0..ROWS).map(|row| [0, 4, 2, 2][row % 4])),
        Arc::new(tags),
        None,
    );
    let name: StringArray = rows.clone().map(|row| Some(secret("name", row))).collect();
    let score: Float64Array = rows.clone().map(|row| Some(row as f64 / 3.0)).collect();
    let customer = StructArray::from(vec![
        (
            Arc::new(Field::new("name", DataType::Utf8, false)),
            Arc::new(name) as ArrayRef,
        ),
        (
            Arc::new(Field::new("score", DataType::Float64, true)),
            Arc::new(score) as ArrayRef,
        ),
    ]);
    let dictionary = city.data_type().clone();
    let meta = std::collections::HashMap::from([("note".to_owned(), "kept".to_owned())]);
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int32, false).with_metadata(meta),
        Field::new("email", DataType::Utf8, true),
        Field::new("number", DataType::Int64, true),
        Field::new("city", dictionary, true),
        Field::new("tags", tags.data_type().clone(), true),
        Field::new("customer", customer.data_type().clone(), true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(id),
        Arc::new(email),
        Arc::new(number),
        Arc::new(city),
        Arc::new(tags),
        Arc::new(customer),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).expect("a table")
}

fn originals() -> Vec<Vec<u8>> {
    let texts =
        |column: &'static str, count| (0..count).map(move |row| secret(column, row).into_bytes());
    let tags = (0..ROWS * 2)
        .filter(|at| at % 3 > 0)
        .map(|at| secret("tag", at).into_bytes());
    let numbers = (0..ROWS)
        .filter(|row| row % 5 > 0)
        .map(|row| number(row).to_le_bytes().to_vec());
    texts("mail", 300)
        .chain(texts("name", ROWS))
        .chain(tags)
        .chain(numbers)
        .collect()
}

fn settings() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_max_row_group_row_count(Some(400))
        .set_compression(Compression::UNCOMPRESSED)
}

/// Settings under which a file contains all structures that can hold a value.
fn rich() -> WriterPropertiesBuilder {
    let sorted = |column_idx| SortingColumn {
        column_idx,
        descending: false,
        nulls_first: false,
    };
    settings()
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_write_page_header_statistics(true)
        .set_bloom_filter_enabled(true)
        .set_bloom_filter_max_ndv(500)
        .set_data_page_row_count_limit(90)
        .set_sorting_columns(Some(vec![sorted(0), sorted(1), sorted(2)]))
        .set_key_value_metadata(Some(vec![KeyValue::new(
            "origin".to_owned(),
            "warehouse".to_owned(),
        )]))
        .set_created_by("another program version 9.9".to_owned())
}

const RULES: &str = r#"
unknown = "keep"
[[rule]]
column = "email"
mask = "hash"
[[rule]]
column = "number"
mask = "fpe"
[[rule]]
path = "$.tags[*]"
mask = "redact"
[[rule]]
path = "$.customer.name"
mask = "pseudonym(list=full_names)"
"#;

fn contains(file: &[u8], what: &[u8]) -> bool {
    memchr::memmem::find(file, what).is_some()
}

#[test]
fn parquet_output_contains_no_original_bytes() {
    let plain = settings().set_dictionary_enabled(false);
    for (name, properties) in [
        (
            "plain",
            plain
                .clone()
                .set_statistics_enabled(EnabledStatistics::None),
        ),
        (
            "plain with all statistics",
            plain
                .set_statistics_enabled(EnabledStatistics::Page)
                .set_bloom_filter_enabled(true),
        ),
        ("rich", rich()),
        (
            "pages of version 2",
            rich().set_writer_version(parquet::file::properties::WriterVersion::PARQUET_2_0),
        ),
    ] {
        let source = file(&people(), properties);
        let (masked, report) = Run::new().mask(&source, &rules(RULES)).expect(name);
        let mut found = 0;
        for original in originals() {
            assert!(!contains(&masked, &original), "{name}: {original:02x?}");
            found += usize::from(contains(&source, &original));
        }
        // The search proves something only if it finds the originals in the input. Delta encodings
        // hide some originals.
        assert!(found > originals().len() / 3, "{name}: {found}");
        assert!(
            report
                .fields
                .iter()
                .filter(|field| field.masked > 0)
                .all(|field| field.unchanged == 0),
            "{name}"
        );
        check_filters(name, &source, &masked);
    }
}

/// Checks that bloom filters of masked columns contain no original.
fn check_filters(name: &str, source: &Bytes, masked: &Bytes) {
    for (file, knows) in [(source, true), (masked, false)] {
        for group in metadata(file).row_groups() {
            let Some(filter) =
                Sbbf::read_from_column_chunk(group.column(1), file).expect("a filter")
            else {
                return;
            };
            let known = (0..300)
                .filter(|row| filter.check(secret("mail", *row).as_str()))
                .count();
            assert_eq!(known > 150, knows, "{name}: {known} originals are known");
        }
    }
}

#[test]
fn bounding_boxes_go_from_each_place() {
    let people = people();
    // The writer repeats the metadata of the schema in the key of the Arrow schema.
    let boxes = [(
        "geo".to_owned(),
        r#"{"columns":{"e\\u006dail":{"bbox":[11.5,48.1]}}}"#.to_owned(),
    )];
    let schema = arrow_schema::Schema::clone(&people.schema())
        .with_metadata(std::collections::HashMap::from(boxes));
    let people = people
        .with_schema(Arc::new(schema))
        .expect("the same fields");
    let source = file(&people, settings());
    let (masked, _) = Run::new().mask(&source, &rules(RULES)).expect("masks");
    for (file, has_boxes) in [(&source, true), (&masked, false)] {
        let metadata = metadata(file);
        let file = metadata.file_metadata();
        let schema = parquet_to_arrow_schema(file.schema_descr(), file.key_value_metadata())
            .expect("a schema");
        assert_eq!(schema.metadata().contains_key("geo"), has_boxes);
    }
    assert_eq!(table(&source).0.fields(), table(&masked).0.fields());
}

#[test]
fn parquet_masking_keeps_unmasked_columns() {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        zstd,
    ] {
        let properties = if codec == Compression::LZ4_RAW {
            settings()
        } else {
            rich()
        };
        let properties = properties.set_compression(codec);
        let source = file(&people(), properties);
        let (masked, report) = Run::new().mask(&source, &rules(RULES)).expect("masks");
        let ((schema, before), (schema_after, after)) = (table(&source), table(&masked));
        // Names, types, nullability, the dictionary type of Arrow, and the metadata of fields.
        assert_eq!(schema, schema_after);
        for (at, field) in schema.fields().iter().enumerate() {
            let is_masked =
                ["email", "number", "tags", "customer"].contains(&field.name().as_str());
            assert_eq!(*before[at] != *after[at], is_masked, "{field}");
            assert_eq!(before[at].nulls(), after[at].nulls(), "{field}");
        }
        assert_eq!(
            before[5].as_struct().column(1),
            after[5].as_struct().column(1),
            "beside a masked member"
        );
        let lengths = |array: &ArrayRef| array.as_list::<i32>().offsets().clone();
        assert_eq!(lengths(&before[4]), lengths(&after[4]));
        let old = metadata(&source);
        let new = metadata(&masked);
        assert_eq!(
            old.file_metadata().schema_descr(),
            new.file_metadata().schema_descr()
        );
        assert_eq!(
            old.file_metadata().created_by(),
            new.file_metadata().created_by()
        );
        assert_eq!(
            old.file_metadata().key_value_metadata(),
            new.file_metadata().key_value_metadata()
        );
        assert_eq!(old.num_row_groups(), new.num_row_groups());
        for (group, (before, after)) in old.row_groups().iter().zip(new.row_groups()).enumerate() {
            assert_eq!(before.num_rows(), after.num_rows());
            // The order by `email` and `number` does not hold any more.
            let first = before
                .sorting_columns()
                .map(|columns| columns[..1].to_vec());
            assert_eq!(after.sorting_columns(), first.as_ref());
            for (column, (before, after)) in
                before.columns().iter().zip(after.columns()).enumerate()
            {
                assert_eq!(before.compression(), after.compression());
                assert_eq!(
                    before.dictionary_page_offset().is_some(),
                    after.dictionary_page_offset().is_some()
                );
                assert_eq!(
                    before.bloom_filter_offset().is_some(),
                    after.bloom_filter_offset().is_some()
                );
                let index = |metadata: &ParquetMetaData| {
                    let index = metadata.page_index().expect("an index");
                    (
                        index.column_index(group, column).cloned(),
                        index.offset_index(group, column).is_some(),
                    )
                };
                assert_eq!(index(&old).0.is_some(), index(&new).0.is_some());
                assert_eq!(index(&old).1, index(&new).1);
                if [0, 3, 6].contains(&column) {
                    let bytes = |file: &Bytes, (start, length): (u64, u64)| {
                        file.slice(start as usize..(start + length) as usize)
                    };
                    assert_eq!(
                        bytes(&source, before.byte_range()),
                        bytes(&masked, after.byte_range())
                    );
                    assert_eq!(before.statistics(), after.statistics());
                    assert_eq!(before.page_encoding_stats(), after.page_encoding_stats());
                    assert_eq!(index(&old).0, index(&new).0);
                    let filter = |chunk, file: &Bytes| {
                        let filter = Sbbf::read_from_column_chunk(chunk, file).expect("a filter");
                        filter.map(|filter| {
                            let mut out = Vec::new();
                            filter.write_bitset(&mut out).expect("writes");
                            out
                        })
                    };
                    assert_eq!(filter(before, &source), filter(after, &masked));
                } else {
                    assert_ne!(before.statistics(), after.statistics());
                }
            }
        }
        assert_eq!(
            (report.records, report.bytes_in),
            (ROWS as u64, source.len() as u64)
        );
        assert_eq!(report.bytes_out, masked.len() as u64);
    }
}

fn counts(report: &Report, name: &str) -> (u64, u64, u64) {
    let of: Vec<&FieldReport> = report
        .fields
        .iter()
        .filter(|field| field.field == name)
        .collect();
    let sum = |count: fn(&FieldReport) -> u64| of.iter().map(|field| count(field)).sum();
    (
        sum(|field| field.masked),
        sum(|field| field.kept),
        sum(|field| field.nulls),
    )
}

#[test]
fn the_report_counts_values_and_nulls() {
    let (_, report) = Run::new()
        .mask(&file(&people(), rich()), &rules(RULES))
        .expect("masks");
    for (name, expected) in [
        ("id", (0, 1_000, 0)),
        ("email", (857, 0, 143)),
        ("number", (800, 0, 200)),
        ("city", (0, 888, 112)),
        ("tags[*]", (1_333, 0, 667)),
        ("customer.name", (1_000, 0, 0)),
        ("customer.score", (0, 1_000, 0)),
    ] {
        assert_eq!(counts(&report, name), expected, "{name}");
    }
}

#[test]
fn the_output_does_not_depend_on_the_size_of_batches() {
    let source = file(&people(), rich());
    let masked = |limits: Limits| {
        let run = Run {
            limits,
            ..Run::new()
        };
        let (masked, _) = run.mask(&source, &rules(RULES)).expect("masks");
        table(&masked)
    };
    let expected = masked(Limits::default());
    for (batch_values_max, batch_bytes_max) in [(1, 1), (3, 100), (50, 1 << 20)] {
        let limits = Limits {
            batch_values_max,
            batch_bytes_max,
            workers: 2,
            ..Limits::default()
        };
        assert_eq!(masked(limits), expected);
    }
}

#[test]
fn kinds_examine_every_string() {
    let note: StringArray = (0..ROWS)
        .map(|row| match row % 4 {
            0 => Some(format!("ann{row}@mail.test")),
            1 => Some("free text".to_owned()),
            2 => None,
            _ => Some("4111 1111 1111 1111".to_owned()),
        })
        .collect();
    let batch =
        RecordBatch::try_from_iter([("note", Arc::new(note) as ArrayRef)]).expect("a table");
    let source = file(&batch, settings());
    let text = |unknown| {
        format!(
            "unknown = \"{unknown}\"\n[[rule]]\nkind = \"email\"\nmask = \"email\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n"
        )
    };
    let run = Run {
        limits: Limits {
            batch_values_max: 7,
            ..Limits::default()
        },
        ..Run::new()
    };
    let (masked, report) = run.mask(&source, &rules(&text("keep"))).expect("masks");
    let (_, columns) = table(&masked);
    let notes = columns[0].as_string::<i32>();
    for row in 0..ROWS {
        match row % 4 {
            0 => assert!(
                notes.value(row).contains("@example."),
                "{}",
                notes.value(row)
            ),
            1 => assert_eq!(notes.value(row), "free text"),
            2 => assert!(notes.is_null(row)),
            _ => assert!(
                notes.value(row).ends_with("1111") && notes.value(row) != "4111 1111 1111 1111"
            ),
        }
    }
    assert_eq!(counts(&report, "note"), (500, 250, 250));

    // Rows of one batch: of several batches that fail, the first to end names its row.
    let few = file(&batch.slice(0, 40), settings());
    let refused = Run::new().refused(&few, &rules(&text("refuse")));
    assert_eq!(
        refused,
        "FILE, column note, row 2: no rule names the column, and no kind matches the value"
    );
}

#[test]
fn dates_follow_the_subject_in_their_row() {
    let day: Date32Array = (0..ROWS).map(|row| Some(18_000 + row as i32)).collect();
    let customer: Int64Array = (0..ROWS).map(|row| Some((row % 4) as i64)).collect();
    let at: TimestampMicrosecondArray = (0..ROWS)
        .map(|row| Some(1_600_000_000_123_456 + row as i64))
        .collect();
    let batch = RecordBatch::try_from_iter([
        ("day", Arc::new(day) as ArrayRef),
        ("customer", Arc::new(customer) as ArrayRef),
        ("at", Arc::new(at) as ArrayRef),
    ]);
    let source = file(&batch.expect("a table"), settings());
    let text = "unknown = \"keep\"\n[[rule]]\npath = \"$.day\"\nmask = \"date_shift(within=300, subject=customer)\"\n[[rule]]\ncolumn = \"at\"\nmask = \"date_shift(days=2)\"\n";
    let (masked, _) = Run::new().mask(&source, &rules(text)).expect("masks");
    let (_, columns) = table(&masked);
    let days = columns[0].as_primitive::<Date32Type>();
    let shifts: Vec<_> = (0..ROWS)
        .map(|row| days.value(row) - 18_000 - row as i32)
        .collect();
    for row in 4..ROWS {
        assert_eq!(shifts[row], shifts[row % 4]);
    }
    assert!(shifts[..4].iter().any(|shift| *shift != shifts[0]));
    let instants = columns[2].as_primitive::<TimestampMicrosecondType>();
    assert_eq!(
        instants.value(9),
        1_600_000_000_123_456 + 9 + 2 * 86_400_000_000
    );
}

#[test]
fn old_forms_of_lists_and_instants_are_masked() {
    let schema =
        "message old { required int96 at; repeated binary tag (UTF8); optional binary plain; }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::default()).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let mut column = group.next_column().expect("a column").expect("a column");
    let mut at = Int96::new();
    at.set_data(5, 0, 2_440_588);
    column
        .typed::<Int96Type>()
        .write_batch(&[at, at], None, None)
        .expect("writes");
    column.close().expect("closes");
    let mut column = group.next_column().expect("a column").expect("a column");
    let tags = ["secret-1", "secret-2"].map(ByteArray::from);
    column
        .typed::<ByteArrayType>()
        .write_batch(&tags, Some(&[1, 1, 0]), Some(&[0, 1, 0]))
        .expect("writes");
    column.close().expect("closes");
    let mut column = group.next_column().expect("a column").expect("a column");
    column
        .typed::<ByteArrayType>()
        .write_batch(&[ByteArray::from("x")], Some(&[1, 0]), None)
        .expect("writes");
    column.close().expect("closes");
    group.close().expect("closes");
    writer.close().expect("closes");

    let text = "unknown = \"keep\"\n[[rule]]\npath = \"$.tag[*]\"\nmask = \"redact\"\n[[rule]]\ncolumn = \"at\"\nmask = \"date_shift(days=1)\"\n[[rule]]\ncolumn = \"plain\"\nmask = \"null\"\n";
    let (masked, _) = Run::new().mask(&out, &rules(text)).expect("masks");
    let reader = SerializedFileReader::new(masked).expect("a reader");
    let rows: Vec<_> = reader
        .get_row_iter(None)
        .expect("rows")
        .collect::<Result<_, _>>()
        .expect("rows");
    let tags = rows[0].get_list(1).expect("a list");
    assert_eq!(
        tags.elements()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["\"[redacted]\"", "\"[redacted]\""]
    );
    assert_eq!(rows[1].get_list(1).expect("a list").len(), 0);
    assert_eq!(
        rows[0].get_timestamp_millis(0).expect("an instant"),
        86_400_000
    );
    assert!(
        rows.iter()
            .all(|row| row.to_string().contains("plain: null")),
        "{rows:?}"
    );
}

#[test]
fn rules_that_cannot_apply_are_rejected_before_work_begins() {
    let source = file(&people(), rich());
    let unmet = "unknown = \"keep\"\n[[rule]]\ncolumn = \"mail\"\nmask = \"redact\"\n";
    for (text, expected) in [
        (
            unmet,
            "FILE: rule 1 names column mail, and there is no such column: there are id, email, number, city, tags[*], customer.name, customer.score",
        ),
        (
            "unknown = \"refuse\"\n[[rule]]\ncolumn = \"customer\"\nmask = \"keep\"\n",
            "FILE: no rule names id, email, number, city, tags[*]; name each in a rule (mask = \"keep\" keeps it) or say unknown = \"keep\"",
        ),
        (
            "unknown = \"keep\"\n[[rule]]\ncolumn = \"name\"\nmask = \"null\"\n",
            "FILE: column customer.name: null does not fit type Utf8: the column holds no nulls",
        ),
        (
            "unknown = \"keep\"\n[[rule]]\ncolumn = \"number\"\nmask = \"hash\"\n",
            "FILE: column number: hash does not fit type Int64: its results are strings",
        ),
        (
            "unknown = \"keep\"\n[[rule]]\npath = \"$.tags[0]\"\nmask = \"hash\"\n",
            "FILE: rule 1 names items of a list by their index ($.tags[0]): name all items with [*]",
        ),
    ] {
        assert_eq!(Run::new().refused(&source, &rules(text)), expected);
    }
}

#[test]
fn a_value_that_its_function_does_not_take_is_named_by_its_row() {
    let source = file(&people(), rich());
    // Many rows fail, and the first that is found is named.
    for (text, (place, reason)) in [
        (
            "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"card\"\n",
            ("FILE, column email, row ", ": card does not fit: "),
        ),
        (
            "unknown = \"keep\"\n[[rule]]\npath = \"$.tags[*]\"\nmask = \"email\"\n",
            ("FILE, column tags[*], row ", ": email does not fit: "),
        ),
        (
            "unknown = \"keep\"\n[[rule]]\ncolumn = \"score\"\nmask = \"noise(percent=1)\"\n[[rule]]\ncolumn = \"number\"\nmask = \"noise(percent=90)\"\n",
            ("FILE, column number, row ", ": "),
        ),
    ] {
        let refused = Run::new().refused(&source, &rules(text));
        let rest = refused
            .strip_prefix(place)
            .unwrap_or_else(|| panic!("{refused}"));
        let after_row = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        assert!(
            after_row.len() < rest.len() && after_row.starts_with(reason),
            "{refused}"
        );
        assert!(
            !originals()
                .iter()
                .any(|original| contains(refused.as_bytes(), original)),
            "{refused}"
        );
    }
}

#[test]
fn a_failed_job_leaves_nothing() {
    let source = file(&people(), rich());
    for after in [0, 500, 2_000] {
        let run = Run::new();
        let given = rules(RULES);
        let error = run
            .job(&source, &given, Local::failing(&given, after))
            .expect_err("fails");
        assert!(matches!(error, JobError::Engine(_)), "{error}");
        let names: Vec<_> = fs::read_dir(run.folder.path()).expect("folder").collect();
        assert_eq!(names.len(), 1, "after {after}");
    }
}

#[test]
fn the_output_is_only_for_its_owner_and_never_the_input() {
    use std::os::unix::fs::PermissionsExt;
    let run = Run::new();
    run.mask(&file(&people(), settings()), &rules(RULES))
        .expect("masks");
    let mode = File::open(run.path("out.parquet"))
        .expect("opens")
        .metadata()
        .expect("metadata")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);

    let input = Input::File(run.path("in.parquet"));
    let given = rules(RULES);
    let output = Output::File {
        path: run.path("in.parquet"),
        replace: true,
    };
    let job = FileJob {
        input,
        output,
        format: FileFormat::Parquet,
        limits: Limits::default(),
        allow_unmatched: true,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .build()
        .expect("runtime");
    let mask = |job: FileJob| {
        runtime
            .block_on(mask_file(
                job,
                Arc::clone(&given),
                Local::new(&given),
                Arc::default(),
            ))
            .expect_err("fails")
    };
    assert!(matches!(mask(job.clone()), JobError::SameFile { .. }));
    let error = mask(FileJob {
        input: Input::Stdin,
        output: Output::Nowhere,
        ..job
    });
    assert!(matches!(error, JobError::Plan(_)), "{error}");
}

#[test]
fn files_that_are_no_parquet_are_rejected() {
    let source = file(&people(), settings());
    let length = source.len();
    let ends = |bytes: &[u8]| [&source[..length - bytes.len()], bytes].concat();
    for (input, expected) in [
        (b"PAR1".to_vec(), "FILE: it is too short for a Parquet file"),
        (b"{\"email\": \"no parquet at all\"}".to_vec(), "FILE: "),
        (
            ends(b"PARE"),
            "FILE: it is encrypted, and only Parquet files without encryption can be masked",
        ),
        (
            ends(b"\xff\xff\xff\x7fPAR1"),
            "FILE: its footer is longer than the file",
        ),
        (source[..length - 1].to_vec(), "FILE: "),
    ] {
        let refused = Run::new().refused(&input, &rules(RULES));
        assert!(refused.starts_with(expected), "{refused}");
    }
}

/// Returns the file with other metadata of the columns of its first row group, and without the
/// other row groups.
fn forged(
    source: &Bytes,
    change: impl Fn(usize, ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder,
) -> Vec<u8> {
    let old = metadata(source);
    let group = &old.row_groups()[0];
    let columns = group.columns().iter().enumerate();
    let columns = columns.map(|(at, chunk)| {
        change(at, chunk.clone().into_builder())
            .build()
            .expect("a chunk")
    });
    let group = group
        .clone()
        .into_builder()
        .set_column_metadata(columns.collect())
        .build()
        .expect("a group");
    let forged = ParquetMetaData::new(old.file_metadata().clone(), vec![group]);
    let mut out = source.to_vec();
    ParquetMetaDataWriter::new(&mut out, &forged)
        .finish()
        .expect("writes");
    out
}

#[test]
fn chunks_that_overlap_are_rejected() {
    // A column that stays could copy the bytes of a masked one.
    let source = file(&people(), settings().set_dictionary_enabled(false));
    let email = metadata(&source).row_groups()[0].column(1).byte_range().0 as i64;
    let id = metadata(&source).row_groups()[0].column(0).byte_range().0 as i64;
    for (at, offset, expected) in [
        (0, email, "FILE: the columns id and email overlap"),
        (0, email + 9, "overlap"),
        (0, 3, "FILE: the metadata of column id is invalid"),
        (0, -5, "FILE: the metadata of column id is invalid"),
        (0, 1 << 40, "FILE: the metadata of column id is invalid"),
        (1, id, "overlap"),
    ] {
        let change = |column, chunk: ColumnChunkMetaDataBuilder| {
            if column == at {
                chunk.set_data_page_offset(offset)
            } else {
                chunk
            }
        };
        let refused = Run::new().refused(&forged(&source, change), &rules(RULES));
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn an_index_of_another_column_is_not_copied() {
    let source = file(&people(), rich());
    let email = metadata(&source).row_groups()[0].column(1).clone();
    for part in ["column index", "offset index", "bloom filter"] {
        let change = |column, chunk: ColumnChunkMetaDataBuilder| match (column, part) {
            (0, "column index") => chunk
                .set_column_index_offset(email.column_index_offset())
                .set_column_index_length(email.column_index_length()),
            (0, "offset index") => chunk
                .set_offset_index_offset(email.offset_index_offset())
                .set_offset_index_length(email.offset_index_length()),
            (0, _) => chunk
                .set_bloom_filter_offset(Some(email.byte_range().0 as i64))
                .set_bloom_filter_length(Some(100)),
            _ => chunk,
        };
        let refused = Run::new().refused(&forged(&source, change), &rules(RULES));
        assert!(refused.contains("overlap"), "{part}: {refused}");
    }
}

#[test]
fn a_bloom_filter_without_a_stated_length_is_not_longer_than_its_place() {
    let source = file(&people(), rich());
    let at = metadata(&source).row_groups()[0]
        .column(0)
        .bloom_filter_offset()
        .expect("a filter") as usize;
    let change = |column, chunk: ColumnChunkMetaDataBuilder| {
        if column == 0 {
            chunk.set_bloom_filter_length(None)
        } else {
            chunk
        }
    };
    let (masked, _) = Run::new()
        .mask(&forged(&source, change), &rules(RULES))
        .expect("masks");
    assert!(
        Sbbf::read_from_column_chunk(metadata(&masked).row_group(0).column(0), &masked)
            .expect("a filter")
            .is_some()
    );
    // The header begins with the number of bytes, which has two bytes.
    assert!(source[at] == 0x15 && source[at + 1] >= 0x80 && source[at + 2] < 0x7f);
    let mut longer = source.to_vec();
    longer[at + 2] = 0x7f;
    let refused = Run::new().refused(&forged(&longer.into(), change), &rules(RULES));
    assert!(refused.contains("overlap"), "{refused}");
}

#[test]
fn codecs_that_this_program_lacks_concern_masked_columns_and_subjects_only() {
    let source = file(&people(), settings());
    let dates =
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"noise(by=3, subject=id)\"\n";
    for (at, text, expected) in [
        (
            1,
            RULES,
            "FILE: column email: it is compressed with LZO, which this program lacks",
        ),
        (
            0,
            dates,
            "FILE: column id: it is compressed with LZO, which this program lacks",
        ),
    ] {
        let change = |column, chunk: ColumnChunkMetaDataBuilder| {
            if column == at {
                chunk.set_compression(Compression::LZO)
            } else {
                chunk
            }
        };
        assert_eq!(
            Run::new().refused(&forged(&source, change), &rules(text)),
            expected
        );
    }
    let change = |column, chunk: ColumnChunkMetaDataBuilder| {
        if column == 0 {
            chunk.set_compression(Compression::LZO)
        } else {
            chunk
        }
    };
    let (masked, _) = Run::new()
        .mask(&forged(&source, change), &rules(RULES))
        .expect("masks");
    assert_eq!(
        metadata(&masked).row_groups()[0].column(0).compression(),
        Compression::LZO
    );
}

#[test]
fn the_leak_check_finds_originals_and_nothing_in_masked_files() {
    let source = file(&people(), rich());
    let run = Run::new();
    run.mask(&source, &rules(RULES)).expect("masks");
    let verify = |text: &str, masked: &str| {
        let source = run.path("in.parquet");
        let masked = run.path(masked);
        let limits = Limits::default();
        let leak = LeakLimits::default();
        verify_files(
            &Input::File(source.clone()),
            &Input::File(masked.clone()),
            FileFormat::Parquet,
            rules(text),
            limits,
            leak,
            &Progress::default(),
        )
    };
    let report = verify(RULES, "out.parquet").expect("reads");
    let names: Vec<_> = report
        .fields
        .iter()
        .map(|field| (field.field.as_str(), field.verdict))
        .collect();
    let clean = |name| (name, LeakVerdict::Clean);
    assert_eq!(
        names,
        [
            clean("email"),
            clean("number"),
            clean("tags[*]"),
            clean("customer.name")
        ]
    );
    // A rule that the job did not have.
    let more = format!("{RULES}[[rule]]\ncolumn = \"score\"\nmask = \"noise(by=3)\"\n");
    let report = verify(&more, "out.parquet").expect("reads");
    assert_eq!(
        report.fields.last().map(|field| field.verdict),
        Some(LeakVerdict::Leak)
    );
    let report = verify(RULES, "in.parquet").expect("reads");
    assert!(
        report
            .fields
            .iter()
            .all(|field| field.verdict == LeakVerdict::Leak),
        "{report:?}"
    );
}

/// An engine that turns values into hexadecimal text, and back.
struct Hexadecimal(Direction);

impl DocumentEngine for Hexadecimal {
    async fn convert(&self, payload: Vec<u8>) -> Result<Bytes, EngineError> {
        let mut reader = TokenReader::new(&payload);
        let count = reader.array_len().expect("an array");
        let mut out = Vec::new();
        msgpack::array_len(&mut out, count);
        for _ in 0..count {
            let value = reader.value().expect("a value");
            if self.0 == Direction::Seal {
                let text: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
                msgpack::str(&mut out, &format!("sealed:{text}"));
            } else {
                let text = TokenReader::new(value)
                    .str_utf8()
                    .expect("text")
                    .strip_prefix("sealed:")
                    .expect("sealed");
                let bytes = (0..text.len())
                    .step_by(2)
                    .map(|at| u8::from_str_radix(&text[at..at + 2], 16));
                out.extend(bytes.map(|byte| byte.expect("hexadecimal")));
            }
        }
        Ok(out.into())
    }
}

impl Run {
    fn change(
        &self,
        input: &[u8],
        select: &[&str],
        direction: Direction,
    ) -> Result<Bytes, JobError> {
        self.change_to(input, select, direction, &[])
    }

    fn change_to(
        &self,
        input: &[u8],
        select: &[&str],
        direction: Direction,
        types: &[(&str, &str)],
    ) -> Result<Bytes, JobError> {
        let typed =
            |(column, name): &(&str, &str)| ((*column).to_owned(), named_type(name).expect(name));
        fs::write(self.path("in.parquet"), input).expect("writes");
        let job = ColumnsJob {
            input: Input::File(self.path("in.parquet")),
            output: Output::File {
                path: self.path("out.parquet"),
                replace: true,
            },
            select: select.iter().map(|path| (*path).to_owned()).collect(),
            types: types.iter().map(typed).collect(),
            direction,
            limits: self.limits,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .expect("runtime");
        runtime.block_on(change_columns(
            job,
            Arc::new(Hexadecimal(direction)),
            Arc::default(),
        ))?;
        Ok(fs::read(self.path("out.parquet"))
            .expect("the output")
            .into())
    }
}

#[test]
fn columns_are_encrypted_to_text_and_come_back_with_their_types() {
    let source = file(&people(), rich());
    let run = Run {
        limits: Limits {
            batch_values_max: 70,
            ..Limits::default()
        },
        ..Run::new()
    };
    for select in [
        &[
            "$.email",
            "$.number",
            "$.tags[*]",
            "$.customer.name",
            "$.city",
        ][..],
        &["$.customer"],
        &[],
    ] {
        let sealed = run
            .change(&source, select, Direction::Seal)
            .expect("encrypts");
        let ((schema, before), (sealed_schema, between)) = (table(&source), table(&sealed));
        for (at, field) in schema.fields().iter().enumerate() {
            let is_selected = select.is_empty()
                || select
                    .iter()
                    .any(|path| path[2..].starts_with(field.name().as_str()));
            assert_eq!(*before[at] != *between[at], is_selected, "{field}");
            assert_eq!(before[at].nulls(), between[at].nulls(), "{field}");
        }
        if select.len() != 1 {
            let field = sealed_schema.field_with_name("number").expect("a field");
            assert_eq!(*field.data_type(), DataType::Utf8);
            assert_eq!(
                field.metadata().get("sealwire:type").map(String::as_str),
                Some("l")
            );
            assert!(
                originals()
                    .iter()
                    .all(|original| !contains(&sealed, original))
            );
        }
        let opened = run
            .change(&sealed, select, Direction::Open)
            .expect("decrypts");
        let (opened_schema, after) = table(&opened);
        for (at, field) in schema.fields().iter().enumerate() {
            // An Arrow dictionary is text in Parquet, and comes back as such.
            if *field.name() != "city" || !(select.is_empty() || select.len() > 1) {
                assert_eq!(field, &opened_schema.fields()[at]);
                assert_eq!(&before[at], &after[at], "{field}");
            }
        }
    }
}

#[test]
fn copied_chunks_end_where_their_pages_end() {
    let source = file(&people(), settings());
    let chunk = |column: usize| metadata(&source).row_groups()[0].column(column).clone();
    // A kept column: its length without the last bytes of its pages, and other numbers of values
    // and rows.
    let length = chunk(0).compressed_size();
    let values = chunk(0).num_values();
    let cases: [(
        &dyn Fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder,
        &str,
    ); 3] = [
        (
            &|chunk| chunk.set_total_compressed_size(length - 9),
            "a page is longer than its column chunk",
        ),
        (
            &|chunk| chunk.set_total_compressed_size(3),
            "invalid header",
        ),
        (
            &|chunk| chunk.set_num_values(values - 1),
            "the metadata of column id is invalid",
        ),
    ];
    for (change, expected) in cases {
        let forge = |column, chunk| if column == 0 { change(chunk) } else { chunk };
        let refused = Run::new().refused(&forged(&source, forge), &rules(RULES));
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn metadata_of_the_schema_stays_but_for_bounds() {
    let noted = |file: &Bytes| {
        let entries = metadata(file)
            .file_metadata()
            .key_value_metadata()
            .cloned()
            .unwrap_or_default();
        let arrow: Vec<_> = entries
            .into_iter()
            .filter(|entry| entry.key == "ARROW:schema")
            .collect();
        let schema =
            parquet_to_arrow_schema(metadata(file).file_metadata().schema_descr(), Some(&arrow));
        let mut keys: Vec<_> = schema
            .expect("a schema")
            .metadata()
            .keys()
            .cloned()
            .collect();
        keys.sort_unstable();
        keys
    };
    for (keys, expected) in [
        (&["pandas", "x"][..], &["pandas", "x"][..]),
        (&["geo", "pandas", "x"], &["pandas", "x"]),
    ] {
        let batch = people();
        let entries: std::collections::HashMap<String, String> = keys
            .iter()
            .map(|key| ((*key).to_owned(), "{}".to_owned()))
            .collect();
        let schema = Arc::new(Schema::new_with_metadata(
            batch.schema().fields().clone(),
            entries,
        ));
        let source = file(
            &RecordBatch::try_new(schema, batch.columns().to_vec()).expect("a batch"),
            settings(),
        );
        assert_eq!(noted(&source), keys);
        let run = Run::new();
        let (masked, _) = run.mask(&source, &rules(RULES)).expect("masks");
        assert_eq!(noted(&masked), expected, "masked");
        let sealed = run
            .change(&source, &["$.email"], Direction::Seal)
            .expect("encrypts");
        assert_eq!(noted(&sealed), expected, "encrypted");
        let opened = run
            .change(&sealed, &["$.email"], Direction::Open)
            .expect("decrypts");
        assert_eq!(noted(&opened), expected, "decrypted");
    }
}

#[test]
fn rows_that_no_job_could_decrypt_are_not_encrypted() {
    // A value of n bytes becomes text of 2 n + 13 bytes or so.
    let limits = Limits {
        record_bytes_max: 400,
        ..Limits::default()
    };
    let run = Run {
        limits,
        ..Run::new()
    };
    for (length, fits) in [(100, true), (180, true), (198, false), (390, false)] {
        let text = "x".repeat(length);
        let column: ArrayRef = Arc::new(StringArray::from(vec![
            Some("short"),
            None,
            Some(text.as_str()),
        ]));
        let source = file(
            &RecordBatch::try_from_iter([("mail", column)]).expect("a batch"),
            settings(),
        );
        let sealed = run.change(&source, &["$.mail"], Direction::Seal);
        match sealed {
            Ok(sealed) if fits => {
                let opened = run
                    .change(&sealed, &["$.mail"], Direction::Open)
                    .expect("decrypts");
                assert_eq!(table(&opened).1, table(&source).1, "{length}");
            }
            Err(error) if !fits => {
                let expected = "row 3: the result has more than 400 bytes, which no job reads";
                assert!(error.to_string().contains(expected), "{length}: {error}");
            }
            other => panic!("{length}: {other:?}"),
        }
    }
}

#[test]
fn types_that_are_not_noted_any_more_are_named_or_text_comes_back() {
    let source = file(&people(), rich());
    let run = Run::new();
    let select = ["$.number", "$.tags[*]"];
    let sealed = run
        .change(&source, &select, Direction::Seal)
        .expect("encrypts");
    // A copy by a program that keeps no metadata of fields.
    let (schema, columns) = table(&sealed);
    let plain = schema.fields().iter().map(|field| {
        field
            .as_ref()
            .clone()
            .with_metadata(std::collections::HashMap::new())
    });
    let plain = Arc::new(Schema::new(plain.collect::<Vec<_>>()));
    let copy = file(
        &RecordBatch::try_new(plain, columns).expect("a batch"),
        settings(),
    );
    let (_, before) = table(&source);
    let number = schema.index_of("number").expect("a column");
    for (types, expected) in [
        (&[("$.number", "int64")][..], Ok(true)),
        (&[("number", "int64"), ("tags[*]", "string")], Ok(true)),
        (&[], Err("which type Utf8 does not hold")),
        (&[("$.number", "date32")], Err("does not hold")),
        (
            &[("$.nothing", "int64")],
            Err("a type is given for $.nothing, which is not a column to decrypt"),
        ),
        (
            &[("$.city", "string"), ("$.number", "int64")],
            Err("a type is given for $.city"),
        ),
    ] {
        match (
            run.change_to(&copy, &select, Direction::Open, types),
            expected,
        ) {
            (Ok(opened), Ok(_)) => {
                assert_eq!(&table(&opened).1[number], &before[number], "{types:?}")
            }
            (Err(error), Err(expected)) => {
                assert!(error.to_string().contains(expected), "{types:?}: {error}")
            }
            (outcome, expected) => panic!("{types:?}: {outcome:?}, and not {expected:?}"),
        }
    }
}

#[test]
fn columns_that_are_no_text_and_paths_that_lead_nowhere_are_rejected() {
    let source = file(&people(), rich());
    let run = Run::new();
    for (select, direction, expected) in [
        (
            "$.mail",
            Direction::Seal,
            "names $.mail, and there is no such column",
        ),
        ("$.tags[1]", Direction::Seal, "name all items with [*]"),
        ("$[", Direction::Seal, "rule 1"),
        (
            "$.number",
            Direction::Open,
            "column number has type Int64, and envelopes are text or binary",
        ),
    ] {
        let error = run
            .change(&source, &[select], direction)
            .expect_err("refused")
            .to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!run.path("out.parquet").exists());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn encrypted_tables_come_back(seed: u64) {
        let numbers = &mut Numbers(seed);
        let batch = random::batch(numbers);
        let source = file(&batch, settings().set_max_row_group_row_count(Some(3)));
        let run = Run { limits: Limits { batch_values_max: 2, ..Limits::default() }, ..Run::new() };
        let sealed = run.change(&source, &["$.a"], Direction::Seal).expect("encrypts");
        let opened = run.change(&sealed, &["$.a"], Direction::Open).expect("decrypts");
        prop_assert_eq!(table(&opened), table(&source));
    }
}

fn some_rules(numbers: &mut Numbers) -> Vec<Arc<Rules>> {
    let kinds = "unknown = \"keep\"\n[[rule]]\nkind = \"email\"\nmask = \"email\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n";
    let functions = [
        "fixed(1)",
        "fixed(true)",
        "hash",
        "date_shift(days=1)",
        "noise(by=3)",
        "redact",
        "null",
    ];
    let column = ["a", "b", "c"][numbers.below(3)];
    let function = functions[numbers.below(functions.len())];
    vec![
        rules(&format!(
            "{kinds}[[rule]]\npath = \"$.{column}\"\nmask = \"{function}\"\n"
        )),
        rules(kinds),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn an_engine_that_masks_nothing_changes_nothing(seed: u64) {
        let numbers = &mut Numbers(seed);
        let batch = random::batch(numbers);
        let properties = rich().set_sorting_columns(None).set_dictionary_enabled(numbers.below(2) == 0);
        let source = file(&batch, properties.set_max_row_group_row_count(Some(3)));
        let limits = Limits { batch_values_max: 1 + numbers.below(5), batch_bytes_max: 1 + numbers.below(64), ..Limits::default() };
        for given in some_rules(numbers) {
            let run = Run { limits, ..Run::new() };
            match run.job(&source, &given, Arc::new(Same)) {
                Ok(_) => {
                    let masked = fs::read(run.path("out.parquet")).expect("the output").into();
                    prop_assert_eq!(table(&masked), table(&source));
                }
                // The function does not fit the random types, or columns of these types cannot be
                // masked.
                Err(error) => prop_assert!(matches!(error, JobError::Plan(_)), "{}", error),
            }
        }
    }

    #[test]
    fn invalid_files_give_an_error_and_nothing_else(at: prop::sample::Index, byte: u8, cut: Option<prop::sample::Index>) {
        let batch = people().slice(0, 60);
        let mut source = file(&batch, rich().set_max_row_group_row_count(Some(20))).to_vec();
        // Half of the damage affects the footer.
        let from = if byte.is_multiple_of(2) { source.len() - 3_000 } else { 0 };
        let at = from + at.index(source.len() - from);
        source[at] ^= byte;
        if let Some(cut) = cut {
            source.truncate(cut.index(source.len()));
        }
        let run = Run::new();
        if run.job(&source, &rules(RULES), Local::new(&rules(RULES))).is_err() {
            prop_assert!(!run.path("out.parquet").exists());
        }
    }
}
