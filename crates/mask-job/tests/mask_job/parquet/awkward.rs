//! Files that are valid and unusual: old types, metadata of table formats, names that occur twice, maps, and binary text.

use arrow_array::builder::{MapBuilder, StringBuilder};
use parquet::basic::Type as PhysicalType;
use parquet::schema::types::Type;

use super::*;

fn batch_of(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).expect("a table")
}

/// Returns a file with a column of instants in `INT96`. Its Arrow schema states microseconds.
fn instants() -> Vec<u8> {
    let schema = Arc::new(parse_message_type("message old { optional int96 at; }").expect("a schema"));
    let stated = Field::new("at", DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, None), true);
    let stated = parquet::arrow::encode_arrow_schema(&Schema::new(vec![stated]));
    let entries = vec![KeyValue::new("ARROW:schema".to_owned(), stated)];
    let properties = WriterProperties::builder().set_key_value_metadata(Some(entries)).build();
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::new(properties)).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let mut column = group.next_column().expect("a column").expect("a column");
    let instants = [(5, 0, 2_440_588), (1_234_567_891, 7, 2_460_000)].map(|(low, high, day)| {
        let mut at = Int96::new();
        at.set_data(low, high, day);
        at
    });
    column.typed::<Int96Type>().write_batch(&instants, Some(&[1, 0, 1]), None).expect("writes");
    column.close().expect("closes");
    group.close().expect("closes");
    writer.close().expect("closes");
    out
}

#[test]
fn int96_comes_back_with_its_nanoseconds() {
    let source = Bytes::from(instants());
    let run = Run::new();
    let sealed = run.change(&source, &["$.at"], Direction::Seal).expect("encrypts");
    let opened = run.change(&sealed, &["$.at"], Direction::Open).expect("decrypts");
    let rows = |file: &Bytes| -> Vec<String> {
        let reader = SerializedFileReader::new(file.clone()).expect("a reader");
        let descriptor = reader.metadata().file_metadata().schema_descr_ptr();
        assert_eq!(descriptor.column(0).physical_type(), PhysicalType::INT96);
        let mut column = reader.get_row_group(0).expect("a group").get_column_reader(0).expect("a column");
        let parquet::column::reader::ColumnReader::Int96ColumnReader(column) = &mut column else { panic!("a type") };
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        column.read_records(9, Some(&mut levels), None, &mut values).expect("reads");
        values.iter().map(|value| format!("{:?}", value.data())).chain([format!("{levels:?}")]).collect()
    };
    assert_eq!(rows(&source), rows(&opened));
    let (schema, _) = table(&opened);
    assert!(schema.field(0).metadata().is_empty(), "{schema:?}");
}

#[test]
fn names_that_occur_twice_are_rejected() {
    let schema = "message m { required binary a (UTF8); required int32 b; required int32 a; }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let mut out = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut out, schema, Arc::default()).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    for column in 0..3 {
        let mut writer = group.next_column().expect("a column").expect("a column");
        match column {
            0 => drop(writer.typed::<ByteArrayType>().write_batch(&[ByteArray::from("x")], None, None)),
            _ => drop(writer.typed::<parquet::data_type::Int32Type>().write_batch(&[1], None, None)),
        }
        writer.close().expect("closes");
    }
    group.close().expect("closes");
    writer.close().expect("closes");
    let run = Run::new();
    for select in [&["$.a"][..], &[]] {
        let error = run.change(&out, select, Direction::Seal).expect_err("refused").to_string();
        assert!(error.contains("two columns are named a: rename one of them before"), "{error}");
        assert!(!run.path("out.parquet").exists());
    }
    let sealed = run.change(&out, &["$.b"], Direction::Seal).expect("encrypts");
    let metadata = metadata(&sealed);
    let root: &Type = metadata.file_metadata().schema();
    let types: Vec<_> = root.get_fields().iter().map(|field| field.get_physical_type()).collect();
    assert_eq!(types, [PhysicalType::BYTE_ARRAY, PhysicalType::BYTE_ARRAY, PhysicalType::INT32]);
}

#[test]
fn encryption_of_all_columns_does_not_leave_the_keys_of_maps() {
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    map.keys().append_value("ann@mail.test");
    map.values().append_value("secret");
    map.append(true).expect("appends");
    let source = file(&batch_of(vec![("m", Arc::new(map.finish()) as ArrayRef)]), settings());
    let run = Run::new();
    for direction in [Direction::Seal, Direction::Open] {
        let error = run.change(&source, &[], direction).expect_err("refused").to_string();
        assert!(error.contains("the keys of a map (m"), "{error}");
        assert!(error.contains("select the columns to change"), "{error}");
    }
    run.change(&source, &["$.m"], Direction::Seal).expect("encrypts the values");
}
