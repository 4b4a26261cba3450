//! Masking jobs over Parquet.

use std::panic;
use std::sync::{Arc, LazyLock, Once};

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterVersion,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use sealwire_data::mask_job::{Limits, fuzzing};

use crate::job::{Choice, MaskChoice};
use crate::{Input, Seed};

/// Bytes of the footer's length and of the magic number.
const TAIL_BYTES: usize = 8;

static RULES: LazyLock<Choice> = LazyLock::new(|| {
    Choice::new(&[
        "unknown = \"keep\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n[[rule]]\nkind = \"email\"\nmask = \"email\"\n",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"redact\"\n",
        "unknown = \"keep\"\n[[rule]]\npath = \"$\"\nmask = \"fixed(1)\"\n",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"n\"\nmask = \"noise(by=3, subject=a)\"\n",
        "unknown = \"refuse\"\n[[rule]]\npath = \"$\"\nmask = \"null\"\n",
    ])
});

/// Masks a file. Settings: rules, masked values, and two bytes for the length of the data before
/// the footer. The footer's length in the file is computed from the input, since few inputs would
/// contain a correct length.
pub(crate) fn check_input(input: &[u8]) {
    ignore_panics_of_the_library();
    let mut input = Input(input);
    let rules = RULES.of(input.byte());
    let answer = MaskChoice::of(input.byte());
    let pages = usize::from(u16::from_le_bytes([input.byte(), input.byte()])).min(input.0.len());
    let footer = (input.0.len() - pages) as u32;
    let file = [input.0, &footer.to_le_bytes(), b"PAR1"].concat();
    let [whole, cut] = [
        Limits {
            workers: 1,
            ..Limits::default()
        },
        Limits {
            workers: 1,
            batch_values_max: 3,
            batch_bytes_max: 16,
            ..Limits::default()
        },
    ]
    .map(|limits| {
        let mut sent = 0;
        let masked = fuzzing::parquet(&file, rules, limits, |column| {
            sent += column.count;
            answer.mask(column)
        });
        masked.map(|rows| (rows, sent))
    });
    match (whole, cut) {
        (Ok(whole), Ok(cut)) => assert_eq!(whole, cut),
        (Err(whole), Err(cut)) => [whole, cut]
            .iter()
            .for_each(|error| assert!(!error.to_string().is_empty())),
        (whole, cut) => panic!("whole: {whole:?}\nin batches: {cut:?}"),
    }
}

/// The job turns panics of the `parquet` crate into errors, but libFuzzer's hook would end the
/// process before that.
fn ignore_panics_of_the_library() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !info
                .location()
                .is_some_and(|location| location.file().contains("/parquet-"))
            {
                before(info);
            }
        }));
    });
}

/// Writes a file with texts, numbers, a list and values of a fixed length.
fn file(settings: WriterPropertiesBuilder) -> Vec<u8> {
    let schema = "message m { required binary a (UTF8); optional int64 n; repeated int32 l; optional fixed_len_byte_array(3) f; optional binary b; }";
    let schema = Arc::new(parse_message_type(schema).expect("a schema"));
    let mut out = Vec::new();
    let mut writer =
        SerializedFileWriter::new(&mut out, schema, Arc::new(settings.build())).expect("a writer");
    for _ in 0..2 {
        let mut group = writer.next_row_group().expect("a group");
        let mut column = group.next_column().expect("a column").expect("a column");
        let texts = ["x@example.com", "4111111111111111", "", "x@example.com"].map(ByteArray::from);
        column
            .typed::<ByteArrayType>()
            .write_batch(&texts, None, None)
            .expect("writes");
        column.close().expect("closes");
        let mut column = group.next_column().expect("a column").expect("a column");
        column
            .typed::<Int64Type>()
            .write_batch(&[7, -1, 1 << 40], Some(&[1, 1, 0, 1]), None)
            .expect("writes");
        column.close().expect("closes");
        let mut column = group.next_column().expect("a column").expect("a column");
        let levels = (Some(&[1, 1, 0, 1, 1][..]), Some(&[0, 1, 0, 0, 0][..]));
        column
            .typed::<Int32Type>()
            .write_batch(&[1, 2, 3, 4], levels.0, levels.1)
            .expect("writes");
        column.close().expect("closes");
        let mut column = group.next_column().expect("a column").expect("a column");
        let fixed = ["abc", "abc"].map(|text| ByteArray::from(text).into());
        column
            .typed::<FixedLenByteArrayType>()
            .write_batch(&fixed, Some(&[1, 0, 0, 1]), None)
            .expect("writes");
        column.close().expect("closes");
        let mut column = group.next_column().expect("a column").expect("a column");
        let bytes = [ByteArray::from(vec![0xff, 0]), ByteArray::from("text")];
        column
            .typed::<ByteArrayType>()
            .write_batch(&bytes, Some(&[1, 0, 1, 0]), None)
            .expect("writes");
        column.close().expect("closes");
        group.close().expect("closes");
    }
    writer.close().expect("closes");
    out
}

/// Returns settings without a dictionary and statistics.
fn plain() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let text = "a".into();
    let files = [
        ("plain", plain()),
        (
            "dictionary",
            WriterProperties::builder()
                .set_bloom_filter_enabled(true)
                .set_bloom_filter_max_ndv(4),
        ),
        (
            "version-2",
            WriterProperties::builder().set_writer_version(WriterVersion::PARQUET_2_0),
        ),
        (
            "pages",
            plain()
                .set_data_page_row_count_limit(1)
                .set_write_batch_size(1),
        ),
        ("snappy", plain().set_compression(Compression::SNAPPY)),
        (
            "zstd",
            plain().set_compression(Compression::ZSTD(ZstdLevel::default())),
        ),
        (
            "gzip",
            plain().set_compression(Compression::GZIP(parquet::basic::GzipLevel::default())),
        ),
        ("lz4", plain().set_compression(Compression::LZ4)),
        (
            "delta",
            plain().set_column_encoding(text, Encoding::DELTA_BYTE_ARRAY),
        ),
        (
            "delta-length",
            plain().set_column_encoding("a".into(), Encoding::DELTA_LENGTH_BYTE_ARRAY),
        ),
        (
            "delta-numbers",
            plain().set_column_encoding("n".into(), Encoding::DELTA_BINARY_PACKED),
        ),
    ];
    let mut seeds = Vec::new();
    for (name, settings) in files {
        let file = file(settings);
        let tail = file.len() - TAIL_BYTES;
        let footer =
            u32::from_le_bytes([file[tail], file[tail + 1], file[tail + 2], file[tail + 3]]);
        let pages = ((tail - footer as usize) as u16).to_le_bytes();
        for rules in [0, 1, 3] {
            seeds.push(Seed::new(
                format!("{name}-{rules}"),
                &[rules, 0, pages[0], pages[1]],
                &file[..tail],
            ));
        }
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    vec![
        b"PAR1".to_vec(),
        // Numbers near the limits of 32 bits, in Thrift's compact protocol.
        vec![0xfe, 0xff, 0xff, 0xff, 0x0f],
        vec![0xff, 0xff, 0xff, 0xff, 0x0f],
        // A field with a number, a text, a list of structs and a struct.
        vec![0x15, 0x02],
        vec![0x18, 0x01, b'a'],
        vec![0x19, 0x1c],
        vec![0x1c, 0x00],
        // Runs of levels.
        vec![0x08, 0x01],
        vec![0x02, 0x00, 0x00, 0x00, 0x08, 0x01],
        // The header of a delta encoding.
        vec![0x80, 0x01, 0x04],
    ]
}
