//! How columns are cut into requests, and their results divided.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use sealwire_columns::{
    ColumnError, Direction, Leaf, Path, Piece, Pieces, Replacement, replace_columns,
};
use sealwire_msgpack::write;

const VALUES: [Option<i64>; 11] = [
    Some(1),
    None,
    Some(3),
    Some(4),
    None,
    Some(6),
    Some(7),
    Some(8),
    None,
    Some(10),
    Some(11),
];

/// Returns the leaves of a column whose batches have these lengths.
fn leaves(lengths: &[usize]) -> Vec<Leaf> {
    let mut rest = &VALUES[..];
    let mut leaves = Vec::new();
    for length in lengths {
        let (own, others) = rest.split_at(*length);
        leaves.push(Leaf::new(
            Arc::new(Int64Array::from(own.to_vec())) as ArrayRef
        ));
        rest = others;
    }
    leaves
}

fn array(values: &[i64]) -> Bytes {
    let mut out = Vec::new();
    write::array_len(&mut out, values.len() as u32);
    values.iter().for_each(|value| write::int(&mut out, *value));
    out.into()
}

fn pieces(leaves: &[Leaf], column_leaves: usize, fields_max: usize) -> Vec<Piece> {
    Pieces::new(leaves, column_leaves, fields_max).collect()
}

#[test]
fn pieces_do_not_depend_on_the_lengths_of_batches() {
    for fields_max in [1, 3, 8, 100] {
        let whole: Vec<_> = pieces(&leaves(&[11]), 1, fields_max);
        for lengths in [
            &[11][..],
            &[5, 6],
            &[0, 2, 0, 9, 0],
            &[1; 11],
            &[2, 1, 1, 7],
        ] {
            // The same column twice.
            let both = [leaves(lengths), leaves(lengths)].concat();
            let cut = pieces(&both, lengths.len(), fields_max);
            let requests = |pieces: &[Piece]| {
                pieces
                    .iter()
                    .map(|piece| (piece.earlier, piece.payload.clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                requests(&cut),
                [requests(&whole), requests(&whole)].concat(),
                "{lengths:?} {fields_max}"
            );
            for piece in &cut {
                assert_eq!(
                    piece.parts.iter().map(|part| part.count).sum::<usize>(),
                    piece.count
                );
                let columns = piece.parts.iter().map(|part| part.leaf / lengths.len());
                assert!(
                    columns
                        .clone()
                        .all(|column| Some(column) == columns.clone().next()),
                    "one column each"
                );
            }
        }
    }
}

#[test]
fn a_result_goes_to_the_leaves_of_its_values() {
    let leaves = leaves(&[3, 2, 6]);
    let cut = pieces(&leaves, 3, 4);
    let divided = cut[0]
        .divide(&array(&[10, 20, 30, 40]))
        .expect("it has four values");
    let parts: Vec<_> = divided.iter().map(|(leaf, _)| *leaf).collect();
    assert_eq!(parts, [0, 1, 2]);
    for (number, leaf, row) in [(0, 0, 0), (1, 0, 2), (2, 1, 0), (3, 2, 0)] {
        let (part, within) = cut[0].part_of(number).expect("it is there");
        assert_eq!(
            (part.leaf, leaves[leaf].nth_present(part.first_row, within)),
            (leaf, Some(row)),
            "{number}"
        );
    }
    assert_eq!(cut[0].part_of(4), None);
}

#[test]
fn a_result_of_another_length_is_rejected() {
    for lengths in [&[11][..], &[5, 6]] {
        let cut = pieces(&leaves(lengths), lengths.len(), 100);
        for count in [0, 1, 7, 9, 100] {
            assert_eq!(cut[0].divide(&array(&vec![1; count])), None, "{count}");
        }
        for bytes in [&[][..], &[0xc0], &[0x81, 1, 1], &[0xdd, 0, 0, 0]] {
            assert_eq!(cut[0].divide(&Bytes::copy_from_slice(bytes)), None);
        }
        assert!(cut[0].divide(&array(&[1; 8])).is_some());
    }
}

#[test]
fn nil_in_place_of_an_envelope_is_an_error() {
    for (direction, is_accepted) in [
        (Direction::Seal, false),
        (Direction::Open, true),
        (Direction::Keep, true),
    ] {
        let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Utf8, true)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![values]).expect("a batch");
        let path = Path::parse("n", &schema).expect("it is there");
        let leaves = vec![path.find(&batch)];
        let result = Bytes::from_static(b"\x92\xa1x\xc0");
        let column = Replacement {
            path: &path,
            data_type: None,
        };
        let replaced = replace_columns(
            &schema,
            &mut [batch],
            &[column],
            leaves,
            vec![vec![result]],
            direction,
        );
        match replaced {
            Ok(_) => assert!(is_accepted, "{direction:?}"),
            Err(error) => {
                assert!(!is_accepted, "{direction:?}");
                assert!(
                    matches!(
                        error,
                        ColumnError::Unfit {
                            row: 1,
                            found: "nil",
                            ..
                        }
                    ),
                    "{error}"
                );
            }
        }
    }
}
