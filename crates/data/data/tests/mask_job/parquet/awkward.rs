//! Files that are valid and unusual: old types, metadata of table formats, names that occur twice,
//! maps, and binary text.

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::{BinaryArray, FixedSizeBinaryArray, Time64MicrosecondArray};
use parquet::basic::Type as PhysicalType;
use parquet::schema::types::Type;

use super::*;

fn batch_of(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter(columns).expect("a table")
}

#[test]
fn keys_of_table_formats_that_bound_values_go() {
    let keys = [
        "hoodie_min_record_key",
        "hoodie_max_record_key",
        "org.apache.hudi.bloomfilter",
        "origin",
    ];
    let entries = keys.map(|key| KeyValue::new(key.to_owned(), secret("mail", 1)));
    let source = file(
        &people(),
        settings().set_key_value_metadata(Some(entries.to_vec())),
    );
    let names = |file: &Bytes| -> Vec<String> {
        let metadata = metadata(file);
        let entries = metadata
            .file_metadata()
            .key_value_metadata()
            .cloned()
            .unwrap_or_default();
        entries
            .into_iter()
            .map(|entry| entry.key)
            .filter(|key| key != "ARROW:schema")
            .collect()
    };
    assert_eq!(names(&source), keys);
    let (masked, _) = Run::new().mask(&source, &rules(RULES)).expect("masks");
    assert_eq!(names(&masked), ["origin"]);
    let sealed = Run::new()
        .change(&source, &["$.email"], Direction::Seal)
        .expect("encrypts");
    assert_eq!(names(&sealed), ["origin"]);
    // Nothing is changed.
    let kept = rules("unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"keep\"\n");
    let (copy, _) = Run::new().mask(&source, &kept).expect("copies");
    assert_eq!(names(&copy), keys);
}

#[test]
fn the_leak_check_names_columns_that_it_cannot_search() {
    let email: StringArray = (0..20).map(|row| Some(secret("mail", row))).collect();
    let time: Time64MicrosecondArray = (0..20).map(Some).collect();
    let text: BinaryArray = (0..20)
        .map(|row| Some(format!("text {row}").into_bytes()))
        .collect();
    let bytes: BinaryArray = (0..20).map(|row| Some(vec![0xff, row])).collect();
    let batch = batch_of(vec![
        ("email", Arc::new(email) as ArrayRef),
        ("time", Arc::new(time)),
        ("text", Arc::new(text)),
        ("bytes", Arc::new(bytes)),
    ]);
    let run = Run::new();
    for kinds in ["", "[[rule]]\nkind = \"card\"\nmask = \"card\"\n"] {
        let text =
            format!("unknown = \"keep\"\n[[rule]]\ncolumn = \"email\"\nmask = \"redact\"\n{kinds}");
        run.mask(&file(&batch, settings()), &rules(&text))
            .expect("masks");
        let [source, masked] =
            ["in.parquet", "out.parquet"].map(|name| Input::File(run.path(name)));
        let limits = Limits::default();
        let leak = LeakLimits::default();
        let report = verify_files(
            &source,
            &masked,
            FileFormat::Parquet,
            rules(&text),
            limits,
            leak,
            &Progress::default(),
        );
        let report = report.expect("reads");
        assert!(report.passed);
        let skipped: Vec<_> = report
            .skipped
            .iter()
            .map(|column| (column.field.as_str(), column.why.as_str()))
            .collect();
        let expected = [
            ("time", "its type Time64(µs) cannot be read"),
            ("bytes", "some of its values are not UTF-8"),
        ];
        assert_eq!(skipped, expected);
    }
}

#[test]
fn kinds_examine_binary_values_that_are_text() {
    let values: Vec<Option<&[u8]>> = vec![
        Some(b"4111111111111111"),
        Some(b"\xff4111111111111111"),
        None,
        Some(b"free text"),
        Some(b"ann@mail.test"),
        Some(b"\xfe"),
        Some(b""),
    ];
    let plain: ArrayRef = Arc::new(BinaryArray::from(values.clone()));
    let fixed =
        FixedSizeBinaryArray::try_from_iter((0..7).map(|_| b"4111111111111111")).expect("an array");
    let source = file(
        &batch_of(vec![("a", plain), ("fixed", Arc::new(fixed))]),
        settings(),
    );
    let kinds = "unknown = \"keep\"\n[[rule]]\nkind = \"card\"\nmask = \"redact\"\n[[rule]]\nkind = \"email\"\nmask = \"null\"\n";
    let run = Run {
        limits: Limits {
            batch_values_max: 3,
            ..Limits::default()
        },
        ..Run::new()
    };
    let (masked, report) = run.mask(&source, &rules(kinds)).expect("masks");
    let (schema, columns) = table(&masked);
    assert_eq!(*schema.field(0).data_type(), DataType::Binary);
    let mut expected = values;
    (expected[0], expected[4]) = (Some(&b"[redacted]"[..]), None);
    assert_eq!(
        columns[0].as_binary::<i32>().iter().collect::<Vec<_>>(),
        expected
    );
    assert_eq!(
        columns[1].as_fixed_size_binary().value(0),
        b"4111111111111111"
    );
    assert_eq!(counts(&report, "a"), (2, 4, 1));
    // A rule that names the column goes before kinds.
    let named = format!("{kinds}[[rule]]\ncolumn = \"a\"\nmask = \"keep\"\n");
    let (masked, _) = Run::new().mask(&source, &rules(&named)).expect("masks");
    assert_eq!(table(&masked), table(&source));
}

/// Returns a file with a column of instants in `INT96`. Its Arrow schema states microseconds.
fn instants() -> Vec<u8> {
    let schema =
        Arc::new(parse_message_type("message old { optional int96 at; }").expect("a schema"));
    let stated = Field::new(
        "at",
        DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, None),
        true,
    );
    let stated = parquet::arrow::encode_arrow_schema(&Schema::new(vec![stated]));
    let entries = vec![KeyValue::new("ARROW:schema".to_owned(), stated)];
    let properties = WriterProperties::builder()
        .set_key_value_metadata(Some(entries))
        .build();
    let mut out = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut out, schema, Arc::new(properties)).expect("a writer");
    let mut group = writer.next_row_group().expect("a group");
    let mut column = group.next_column().expect("a column").expect("a column");
    let instants = [(5, 0, 2_440_588), (1_234_567_891, 7, 2_460_000)].map(|(low, high, day)| {
        let mut at = Int96::new();
        at.set_data(low, high, day);
        at
    });
    column
        .typed::<Int96Type>()
        .write_batch(&instants, Some(&[1, 0, 1]), None)
        .expect("writes");
    column.close().expect("closes");
    group.close().expect("closes");
    writer.close().expect("closes");
    out
}

#[test]
fn int96_comes_back_with_its_nanoseconds() {
    let source = Bytes::from(instants());
    let run = Run::new();
    let sealed = run
        .change(&source, &["$.at"], Direction::Seal)
        .expect("encrypts");
    let opened = run
        .change(&sealed, &["$.at"], Direction::Open)
        .expect("decrypts");
    let rows = |file: &Bytes| -> Vec<String> {
        let reader = SerializedFileReader::new(file.clone()).expect("a reader");
        let descriptor = reader.metadata().file_metadata().schema_descr_ptr();
        assert_eq!(descriptor.column(0).physical_type(), PhysicalType::INT96);
        let mut column = reader
            .get_row_group(0)
            .expect("a group")
            .get_column_reader(0)
            .expect("a column");
        let parquet::column::reader::ColumnReader::Int96ColumnReader(column) = &mut column else {
            panic!("a type")
        };
        let mut values = Vec::new();
        let mut levels = Vec::new();
        column
            .read_records(9, Some(&mut levels), None, &mut values)
            .expect("reads");
        values
            .iter()
            .map(|value| format!("{:?}", value.data()))
            .chain([format!("{levels:?}")])
            .collect()
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
            0 => drop(writer.typed::<ByteArrayType>().write_batch(
                &[ByteArray::from("x")],
                None,
                None,
            )),
            _ => drop(writer.typed::<parquet::data_type::Int32Type>().write_batch(
                &[1],
                None,
                None,
            )),
        }
        writer.close().expect("closes");
    }
    group.close().expect("closes");
    writer.close().expect("closes");
    let run = Run::new();
    for select in [&["$.a"][..], &[]] {
        let error = run
            .change(&out, select, Direction::Seal)
            .expect_err("refused")
            .to_string();
        assert!(
            error.contains("two columns are named a: rename one of them before"),
            "{error}"
        );
        assert!(!run.path("out.parquet").exists());
    }
    let sealed = run
        .change(&out, &["$.b"], Direction::Seal)
        .expect("encrypts");
    let metadata = metadata(&sealed);
    let root: &Type = metadata.file_metadata().schema();
    let types: Vec<_> = root
        .get_fields()
        .iter()
        .map(|field| field.get_physical_type())
        .collect();
    assert_eq!(
        types,
        [
            PhysicalType::BYTE_ARRAY,
            PhysicalType::BYTE_ARRAY,
            PhysicalType::INT32
        ]
    );
}

#[test]
fn encryption_of_all_columns_does_not_leave_the_keys_of_maps() {
    let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    map.keys().append_value("ann@mail.test");
    map.values().append_value("secret");
    map.append(true).expect("appends");
    let source = file(
        &batch_of(vec![("m", Arc::new(map.finish()) as ArrayRef)]),
        settings(),
    );
    let run = Run::new();
    for direction in [Direction::Seal, Direction::Open] {
        let error = run
            .change(&source, &[], direction)
            .expect_err("refused")
            .to_string();
        assert!(error.contains("the keys of a map (m"), "{error}");
        assert!(error.contains("select the columns to change"), "{error}");
    }
    run.change(&source, &["$.m"], Direction::Seal)
        .expect("encrypts the values");
}
