//! Files that announce more than they have, that decompress to far more, or that have very long
//! rows.

use std::io::Write;

use parquet::basic::{BrotliLevel, Encoding, GzipLevel};
use parquet::file::metadata::{ColumnChunkMetaData, FileMetaData, RowGroupMetaData};
use parquet::schema::types::SchemaDescriptor;
use sealwire_data::mask_job::fuzzing;

use super::*;

/// Encodes numbers of Thrift's compact protocol.
fn zigzag(number: i64) -> Vec<u8> {
    let mut rest = ((number << 1) ^ (number >> 63)) as u64;
    let mut out = Vec::new();
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out
}

/// Returns a struct whose fields 1, 2 and so on are numbers.
fn numbers(fields: &[i64]) -> Vec<u8> {
    let mut out: Vec<u8> = fields
        .iter()
        .flat_map(|number| [vec![0x15], zigzag(*number)].concat())
        .collect();
    out.push(0);
    out
}

/// Returns a page: its type, its length after decompression, the struct of its type, and its bytes.
fn page(kind: i64, uncompressed: i64, header: &[i64], bytes: &[u8]) -> Vec<u8> {
    let mut out = numbers(&[kind, uncompressed, bytes.len() as i64]);
    out.pop();
    out.push([0x2c, 0x1c, 0x4c, 0x5c][kind as usize]);
    out.extend(numbers(header));
    out.push(0);
    out.extend(bytes);
    out
}

const PLAIN: i64 = 0;
const RLE: i64 = 3;
const BIT_PACKED: i64 = 4;
const DELTA_LENGTH: i64 = 6;
const DELTA: i64 = 7;
const RLE_DICTIONARY: i64 = 8;

/// A page of data of version 1 without compression.
fn data(values: i64, encoding: i64, bytes: &[u8]) -> Vec<u8> {
    page(0, bytes.len() as i64, &[values, encoding, RLE, RLE], bytes)
}

/// Returns texts in plain encoding.
fn texts(texts: &[&[u8]]) -> Vec<u8> {
    texts
        .iter()
        .flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text].concat())
        .collect()
}

/// Returns a file of one column chunk with these pages. The column of this type is named `a`.
fn made(column: &str, codec: Compression, rows: i64, pages: &[u8]) -> Vec<u8> {
    made_of_groups(column, codec, &[(rows, rows, pages)])
}

/// Returns a file of one column. Each group has a number of rows, a number of values, and pages.
fn made_of_groups(column: &str, codec: Compression, groups: &[(i64, i64, &[u8])]) -> Vec<u8> {
    let schema = parse_message_type(&format!("message m {{ {column} }}")).expect("a schema");
    let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
    let mut out = b"PAR1".to_vec();
    let mut made = Vec::new();
    for (rows, values, pages) in groups {
        let chunk = ColumnChunkMetaData::builder(schema.column(0))
            .set_compression(codec)
            .set_num_values(*values)
            .set_total_compressed_size(pages.len() as i64)
            .set_total_uncompressed_size(pages.len() as i64)
            .set_encodings(vec![Encoding::PLAIN])
            .set_data_page_offset(out.len() as i64);
        let chunk = chunk.build().expect("a chunk");
        let group = RowGroupMetaData::builder(Arc::clone(&schema)).set_num_rows(*rows);
        made.push(
            group
                .set_column_metadata(vec![chunk])
                .build()
                .expect("a group"),
        );
        out.extend(*pages);
    }
    let file = FileMetaData::new(1, 1, None, None, schema, None);
    ParquetMetaDataWriter::new(&mut out, &ParquetMetaData::new(file, made))
        .finish()
        .expect("writes");
    out
}

const TEXT: &str = "required binary a (UTF8);";
const NO_CODEC: Compression = Compression::UNCOMPRESSED;

fn keep_all() -> Arc<Rules> {
    rules("unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"redact\"\n")
}

fn mask(file: &[u8], limits: Limits) -> Result<u64, String> {
    let masked = fuzzing::parquet(file, &keep_all(), limits, |column| column.values.clone());
    masked.map_err(|error| error.to_string())
}

#[test]
fn pages_that_are_valid_are_read() {
    let dictionary = page(2, 6, &[1, PLAIN], &texts(&[b"xy"]));
    // An empty page is not the end.
    let pages = [
        data(2, PLAIN, &texts(&[b"x", b""])),
        data(0, PLAIN, &[]),
        data(1, PLAIN, &texts(&[b"z"])),
    ]
    .concat();
    assert_eq!(
        mask(&made(TEXT, NO_CODEC, 3, &pages), Limits::default()),
        Ok(3)
    );
    let pages = [dictionary, data(9, RLE_DICTIONARY, &[1, 18, 0])].concat();
    assert_eq!(
        mask(&made(TEXT, NO_CODEC, 9, &pages), Limits::default()),
        Ok(9)
    );
}

#[test]
fn page_sizes_are_checked_before_memory_is_allocated() {
    const INVALID: &str = "a page has an invalid header";
    const ENCODING: &str = "a page is invalid in its encoding";
    let large = i64::from(i32::MAX);
    let text = texts(&[b"xy"]);
    let int = "required int32 a;";
    let list = "repeated binary a (UTF8);";
    for (column, codec, pages, expected) in [
        (
            TEXT,
            Compression::SNAPPY,
            page(0, large, &[1, PLAIN, RLE, RLE], &text),
            "a page has more than 268435456 bytes",
        ),
        (
            TEXT,
            Compression::SNAPPY,
            page(0, -1, &[1, PLAIN, RLE, RLE], &text),
            INVALID,
        ),
        (
            TEXT,
            NO_CODEC,
            page(0, 6, &[-1, PLAIN, RLE, RLE], &text),
            INVALID,
        ),
        (TEXT, NO_CODEC, page(1, 6, &[], &text), INVALID),
        (TEXT, NO_CODEC, vec![0xff; 9], INVALID),
        (
            TEXT,
            NO_CODEC,
            data(1, PLAIN, &text)[..20].to_vec(),
            "a page is longer than its column chunk",
        ),
        // A dictionary.
        (
            TEXT,
            NO_CODEC,
            page(2, 6, &[large, PLAIN], &text),
            "a page announces more values than it has",
        ),
        (
            TEXT,
            NO_CODEC,
            page(2, large / 16, &[large / 64, PLAIN], &text),
            "a dictionary has more than 4194304 values",
        ),
        (
            TEXT,
            NO_CODEC,
            page(2, 1 << 20, &[1 << 18, PLAIN], &text),
            "a dictionary announces more values than it has",
        ),
        (
            "required fixed_len_byte_array(0) a;",
            NO_CODEC,
            page(2, 0, &[large, PLAIN], &[]),
            "a dictionary has more",
        ),
        (TEXT, NO_CODEC, data(1, RLE_DICTIONARY, &[0, 2]), ENCODING),
        // Levels.
        (
            list,
            NO_CODEC,
            data(large, PLAIN, &text),
            "a page has more than 4194304 entries of lists",
        ),
        (
            list,
            NO_CODEC,
            page(0, 6, &[1000, PLAIN, BIT_PACKED, BIT_PACKED], &text),
            "a page ends within its levels",
        ),
        (
            list,
            NO_CODEC,
            data(1, PLAIN, &[255; 9]),
            "a page ends within its levels",
        ),
        (
            list,
            NO_CODEC,
            page(3, 6, &[1, 0, 1, PLAIN, large, large], &text),
            "a page announces more values than it has",
        ),
        (
            list,
            NO_CODEC,
            page(3, 6, &[1, 0, 1, PLAIN, 4, 4], &text),
            "a page announces more values than it has",
        ),
        // Lengths: 2^34 of them, more than the page has, blocks of 2^34, and prefixes that are
        // longer than the value before.
        (
            TEXT,
            NO_CODEC,
            data(
                1,
                DELTA_LENGTH,
                &[0x80, 1, 4, 0x80, 0x80, 0x80, 0x80, 0x40, 0],
            ),
            ENCODING,
        ),
        (
            TEXT,
            NO_CODEC,
            data(1, DELTA_LENGTH, &[0x80, 1, 4, 1, 8, b'x']),
            ENCODING,
        ),
        (
            TEXT,
            NO_CODEC,
            data(1, DELTA, &[0x80, 1, 4, 1, 8, 0x80, 1, 4, 1, 0]),
            ENCODING,
        ),
        (
            int,
            NO_CODEC,
            data(1, 5, &[0x80, 0x80, 0x80, 0x80, 0x40, 4, 1, 0]),
            ENCODING,
        ),
    ] {
        let file = made(column, codec, 1, &pages);
        assert!(file.len() < 500);
        let error = mask(&file, Limits::default()).expect_err(expected);
        assert!(error.contains(expected), "{error}, not: {expected}");
    }
}

#[test]
fn pages_that_decompress_to_more_than_announced_are_rejected() {
    let gzip = Compression::GZIP(GzipLevel::default());
    // One text of zeros.
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer
        .write_all(&((64_u32 << 20) - 4).to_le_bytes())
        .expect("writes");
    writer.write_all(&vec![0; (64 << 20) - 4]).expect("writes");
    let packed = writer.finish().expect("ends");
    assert!(packed.len() < 1 << 20);
    for (announced, expected) in [
        (4, "the length of a page differs from the announced length"),
        (64 << 20, ""),
    ] {
        let pages = page(0, announced, &[1, PLAIN, RLE, RLE], &packed);
        match mask(&made(TEXT, gzip, 1, &pages), Limits::default()) {
            Ok(rows) => assert_eq!((rows, expected), (1, "")),
            Err(error) => assert!(!expected.is_empty() && error.contains(expected), "{error}"),
        }
    }
}

#[test]
fn codecs_are_all_read() {
    let source = people();
    for codec in [
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        for version in [
            parquet::file::properties::WriterVersion::PARQUET_1_0,
            parquet::file::properties::WriterVersion::PARQUET_2_0,
        ] {
            let file = file(
                &source,
                rich().set_compression(codec).set_writer_version(version),
            );
            let run = Run::new();
            let same = run.job(&file, &rules(RULES), Arc::new(Same)).map(drop);
            same.unwrap_or_else(|error| panic!("{codec:?}: {error}"));
            let masked = fs::read(run.path("out.parquet"))
                .expect("the output")
                .into();
            assert_eq!(table(&masked), table(&file), "{codec:?}");
        }
    }
}

#[test]
fn numbers_that_metadata_states_do_not_overflow() {
    let pages = data(1, PLAIN, &texts(&[b"x"]));
    let keep = rules("unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"keep\"\n");
    let max = i64::MAX;
    const ROWS: &str = "the numbers of rows of its row groups are invalid";
    for (groups, expected) in [
        (
            vec![(1, max), (1, max), (1, max)],
            "the metadata of column a is invalid",
        ),
        (vec![(-1, 1)], ROWS),
        (vec![(1, -1)], "the metadata of column a is invalid"),
    ] {
        let made: Vec<_> = groups
            .iter()
            .map(|(rows, values)| (*rows, *values, &pages[..]))
            .collect();
        let file = made_of_groups(TEXT, NO_CODEC, &made);
        for given in [&keep, &keep_all()] {
            let masked = fuzzing::parquet(&file, given, Limits::default(), |column| {
                column.values.clone()
            });
            let error = masked.err().map(|error| error.to_string());
            let error = error.expect("rejected");
            assert!(error.contains(expected), "{error}");
        }
    }
}

/// An engine that masks nothing, and rejects requests that are long without need.
struct Bounded(usize);

impl Engine for Bounded {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        let bytes: usize = columns.iter().map(|column| column.values.len()).sum();
        let values: usize = columns.iter().map(|column| column.count).sum();
        if values > 1 && bytes > self.0 {
            return Err(EngineError::Failed(format!(
                "{values} values of {bytes} bytes"
            )));
        }
        Ok(columns.into_iter().map(|column| column.values).collect())
    }
}

#[test]
fn batches_are_bounded_though_values_become_long() {
    // Short values, and then long ones, which the dictionary has once.
    let rows = 20_000;
    let long = "x".repeat(100_000);
    let text: StringArray = (0..rows)
        .map(|row| Some(if row < 15_000 { "short" } else { &long }))
        .collect();
    let batch = RecordBatch::try_from_iter([("a", Arc::new(text) as ArrayRef)]).expect("a table");
    let limits = Limits {
        batch_bytes_max: 200_000,
        record_bytes_max: 100_000,
        ..Limits::default()
    };
    let source = file(&batch, WriterProperties::builder());
    let mut longest = 0;
    let mut values = 0;
    let masked = fuzzing::parquet(&source, &keep_all(), limits, |column| {
        longest = longest.max(column.values.len());
        values += column.count;
        b"\xa1x".repeat(column.count)
    });
    assert_eq!(masked.expect("masks"), rows);
    assert_eq!(values as u64, rows);
    assert!(longest < 300_000, "{longest}");
}

#[test]
fn a_row_that_is_too_long_is_named() {
    let limits = Limits {
        batch_bytes_max: 100,
        record_bytes_max: 1_000,
        ..Limits::default()
    };
    // 50 entries of a list have 400 bytes beside their values.
    let lists = |lengths: &[usize]| -> ArrayRef {
        let values: usize = lengths.iter().sum();
        let values: StringArray = (0..values).map(|at| Some(format!("tag-{at:06}"))).collect();
        let item = Arc::new(Field::new("item", DataType::Utf8, true));
        Arc::new(ListArray::new(
            item,
            OffsetBuffer::from_lengths(lengths.iter().copied()),
            Arc::new(values),
            None,
        ))
    };
    let text = |lengths: &[usize]| -> ArrayRef {
        Arc::new(
            lengths
                .iter()
                .map(|length| Some("x".repeat(*length)))
                .collect::<StringArray>(),
        )
    };
    let flat = rules("unknown = \"keep\"\n[[rule]]\npath = \"$.a\"\nmask = \"redact\"\n");
    let nested = rules("unknown = \"keep\"\n[[rule]]\npath = \"$.a[*]\"\nmask = \"redact\"\n");
    for (column, rules, too_long) in [
        (text(&[1, 1_000, 3]), &flat, None),
        (text(&[1, 2, 1_001]), &flat, Some(3)),
        (text(&[2_000]), &flat, Some(1)),
        (lists(&[1, 0, 55, 2]), &nested, None),
        (lists(&[1, 0, 56, 2]), &nested, Some(3)),
        (lists(&[3, 40, 4_000]), &nested, Some(3)),
    ] {
        for rows_of_page in [1, 20_000] {
            let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column))]).expect("a table");
            let properties = WriterProperties::builder()
                .set_data_page_row_count_limit(rows_of_page)
                .set_write_batch_size(rows_of_page)
                .set_data_page_size_limit(700);
            let result = Run {
                limits,
                ..Run::new()
            }
            .job(&file(&batch, properties), rules, Arc::new(Bounded(200)));
            match (result, too_long) {
                (Ok(_), None) => {}
                (
                    Err(JobError::RowTooLong {
                        row,
                        bytes_max: 1_000,
                        ..
                    }),
                    Some(expected),
                ) => assert_eq!(row, expected),
                (result, expected) => panic!("{expected:?}, not {result:?}"),
            }
        }
    }
}

/// Small files of several kinds.
fn small() -> Vec<Vec<u8>> {
    let batch = people().slice(0, 30);
    let version_2 = parquet::file::properties::WriterVersion::PARQUET_2_0;
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let gzip = Compression::GZIP(GzipLevel::default());
    let plain = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None);
    let encoded = |encoding| plain.clone().set_encoding(encoding);
    let texts = batch.project(&[1, 4]).expect("columns");
    vec![
        file(&batch, plain.clone()).to_vec(),
        file(&batch, WriterProperties::builder()).to_vec(),
        file(&batch, rich().set_writer_version(version_2)).to_vec(),
        file(&batch, WriterProperties::builder().set_compression(zstd)).to_vec(),
        file(
            &batch,
            plain
                .clone()
                .set_compression(gzip)
                .set_data_page_row_count_limit(7),
        )
        .to_vec(),
        file(
            &batch,
            plain
                .clone()
                .set_compression(Compression::SNAPPY)
                .set_writer_version(version_2),
        )
        .to_vec(),
        file(&batch, plain.clone().set_compression(Compression::LZ4)).to_vec(),
        file(
            &batch,
            plain
                .clone()
                .set_compression(Compression::BROTLI(BrotliLevel::default())),
        )
        .to_vec(),
        file(&texts, encoded(Encoding::DELTA_BYTE_ARRAY)).to_vec(),
        file(&texts, encoded(Encoding::DELTA_LENGTH_BYTE_ARRAY)).to_vec(),
        file(
            &people().slice(0, 30).project(&[0, 2]).expect("columns"),
            encoded(Encoding::DELTA_BINARY_PACKED),
        )
        .to_vec(),
    ]
}

/// Changes some bytes of a file. The stated length of the footer is adjusted.
fn mutated(file: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let tail = file.len() - 8;
    let footer = u32::from_le_bytes(file[tail..tail + 4].try_into().expect("four bytes")) as usize;
    let mut pages = file[..tail - footer].to_vec();
    let mut footer = file[tail - footer..tail].to_vec();
    for _ in 0..=numbers.below(3) {
        let part = if numbers.below(2) == 0 {
            &mut footer
        } else {
            &mut pages
        };
        let at = numbers.below(part.len());
        let byte = [0, 1, 0x7f, 0x80, 0xff, 0x0f, 0xf0, 2][numbers.below(8)];
        match numbers.below(6) {
            0 => part[at] ^= 1 << numbers.below(8),
            1 => part[at] = byte,
            2 => part[at] = part[at].wrapping_add([1, 255, 2, 254][numbers.below(4)]),
            3 => part.insert(at, byte),
            4 => drop(part.remove(at)),
            _ => {
                let end = (at + 1 + numbers.below(5)).min(part.len());
                part[at..end].fill(byte);
            }
        }
    }
    let length = (footer.len() as u32).to_le_bytes();
    [pages, footer, length.to_vec(), b"PAR1".to_vec()].concat()
}

#[test]
fn files_with_changed_bytes_give_an_error_or_an_output() {
    let cases = std::env::var("SEALWIRE_PARQUET_MUTATIONS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1_000);
    let files = small();
    let given = [
        rules(
            "unknown = \"keep\"\n[[rule]]\nkind = \"email\"\nmask = \"email\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n",
        ),
        rules("unknown = \"keep\"\n[[rule]]\npath = \"$\"\nmask = \"fixed(1)\"\n"),
        rules(RULES),
    ];
    let limits = Limits {
        batch_values_max: 7,
        batch_bytes_max: 100,
        ..Limits::default()
    };
    let mut ended_well = 0;
    for seed in 0..cases {
        let numbers = &mut Numbers(seed);
        let file = numbers.below(files.len());
        let bytes = mutated(&files[file], numbers);
        for given in &given {
            let outcome = std::panic::catch_unwind(|| {
                fuzzing::parquet(&bytes, given, limits, |column| column.values.clone())
            });
            let outcome = outcome.unwrap_or_else(|_| panic!("seed {seed}"));
            ended_well += u64::from(outcome.is_ok());
        }
    }
    assert!(ended_well > cases / 10, "{ended_well} of {cases}");
}

#[test]
fn a_footer_is_checked_before_memory_is_taken() {
    // A list of row groups of one byte each, which would take 200 bytes each in memory.
    let of_row_groups = |count: usize| {
        let groups = [
            &[0x15, 2, 0x19, 0x1c, 0x48, 1, b'm', 0, 0x16, 0, 0x19, 0xfc][..],
            &varint(count),
        ]
        .concat();
        [&groups[..], &vec![0; count], &[0]].concat()
    };
    // A chain of groups with long names, and leaves below them that each have all these names in
    // their path.
    let of_names = |leaves: usize| {
        let mut out = [&[0x29, 0xfc][..], &varint(leaves + 64)].concat();
        for at in 0..64 {
            let children = if at < 63 { 1 } else { leaves };
            out.extend(
                [
                    &[0x48][..],
                    &varint(20_000),
                    &[b'n'; 20_000],
                    &[0x15],
                    &zigzag(children as i64),
                    &[0],
                ]
                .concat(),
            );
        }
        (0..leaves).for_each(|_| out.extend([0x48, 1, b'l', 0]));
        out.push(0);
        out
    };
    for (footer, expected) in [
        (of_row_groups(100), "Required field"),
        (
            of_row_groups(3_000_000),
            "describes more columns and row groups than this program reads",
        ),
        (
            of_names(10_000),
            "describes more columns and row groups than this program reads",
        ),
    ] {
        let file = [
            &b"PAR1"[..],
            &footer,
            &(footer.len() as u32).to_le_bytes(),
            b"PAR1",
        ]
        .concat();
        let error = mask(&file, Limits::default()).expect_err("rejected");
        assert!(error.contains(expected), "{error}");
    }
}

/// Encodes an unsigned number of variable length.
fn varint(number: usize) -> Vec<u8> {
    // The zigzag form of a number is twice the number.
    if number.is_multiple_of(2) {
        zigzag(number as i64 / 2)
    } else {
        zigzag(-(number as i64 / 2) - 1)
    }
}
