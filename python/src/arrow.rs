//! Columns of Arrow data. The values go to the engine in batches, several in flight, and return in
//! order.
//!
//! Data arrives and leaves through the Arrow C data interface. Columns that are not named keep
//! their buffers. The values of one column of one record batch are cut into pieces, and each piece
//! becomes a request on an array. A new column is built from the results (`columns`). Nulls are
//! neither sent nor changed.

mod discovery;
mod exchange;
mod rules;

use std::ops::RangeInclusive;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_pyarrow::FromPyArrow;
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sealwire_client::{DetailValue, Error};
use sealwire_columns::{
    ColumnError, Direction, Leaf, Path, Piece, Pieces, Replacement, check, replace_columns,
};
use sha2::{Digest, Sha256};

pub(crate) use discovery::{DiscoveredField, Discovery, discover};
pub(crate) use exchange::{ArrowBatch, ArrowColumn, ArrowTable};
pub(crate) use rules::{Rules, mask_by_rules};

use crate::client::{NativeClient, Running};
use crate::errors;
use crate::options::Options;
use crate::request::DocumentRequest;
use exchange::ArrowData;

/// Maximum number of requests of one call that are in flight at once.
const IN_FLIGHT_MAX: usize = 1_024;
/// Number of fields per request. Larger requests gain little, and smaller ones share a key
/// agreement among fewer values. In flight, more fields gain nothing.
const BATCH_FIELDS: usize = 1_000;
const IN_FLIGHT: usize = 8;
/// Permitted lengths of a seed in bytes. A shorter seed could be guessed; a longer one is probably
/// a document.
const SEED_BYTES: RangeInclusive<usize> = 16..=64;
/// Default number of fields that an engine accepts in a request on tokens. The operator can set
/// another limit.
const BATCH_FIELDS_MAX: usize = 10_000;

/// Options that have no meaning for a column, or that would apply to several requests at once.
const NOT_FOR_COLUMNS: [&str; 6] = [
    "select",
    "unmatched",
    "on_error",
    "encapsulation",
    "encapsulations",
    "idempotency_key",
];

/// A column to work on.
struct Column {
    path: Path,
    request: DocumentRequest,
    /// The type of the new column, if the caller names one.
    data_type: Option<DataType>,
}

impl Column {
    fn replacement(&self) -> Replacement<'_> {
        Replacement {
            path: &self.path,
            data_type: self.data_type.as_ref(),
        }
    }
}

/// Sizes and limits of a call.
struct Batching {
    batch_fields: usize,
    in_flight: usize,
    retry_timeout: Duration,
    /// Start of the idempotency keys of requests for tokens.
    idempotency_seed: Option<Vec<u8>>,
}

impl Batching {
    fn read(method: &str, given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = Options::new(method, given)?;
        let batching = Self {
            batch_fields: options
                .take("batch_fields", "an integer")?
                .unwrap_or(BATCH_FIELDS),
            in_flight: options
                .take("in_flight", "an integer")?
                .unwrap_or(IN_FLIGHT),
            retry_timeout: Duration::from_millis(
                options
                    .take("retry_timeout_ms", "an integer, 0 or more")?
                    .unwrap_or(0),
            ),
            idempotency_seed: options.bytes("idempotency_seed")?,
        };
        options.finish()?;
        if !(1..=BATCH_FIELDS_MAX).contains(&batching.batch_fields) {
            return Err(PyValueError::new_err(format!(
                "batch_fields must be in 1..={BATCH_FIELDS_MAX}"
            )));
        }
        if !(1..=IN_FLIGHT_MAX).contains(&batching.in_flight) {
            return Err(PyValueError::new_err(format!(
                "in_flight must be in 1..={IN_FLIGHT_MAX}"
            )));
        }
        if batching
            .idempotency_seed
            .as_ref()
            .is_some_and(|seed| !SEED_BYTES.contains(&seed.len()))
        {
            let (least, most) = SEED_BYTES.into_inner();
            return Err(PyValueError::new_err(format!(
                "idempotency_seed must have {least} to {most} bytes"
            )));
        }
        Ok(batching)
    }

    /// Returns the idempotency key of a piece, derived from the seed, the column, the place and the
    /// values. So equal values of two columns, places or tables do not get equal tokens under one
    /// seed. The division of rows among record batches does not change the key.
    fn part_key(&self, column: &Path, piece: &Piece) -> Option<[u8; 32]> {
        let seed = self.idempotency_seed.as_ref()?;
        let mut hash = Sha256::new();
        for part in [seed.as_slice(), column.text().as_bytes(), &piece.payload] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update((piece.earlier as u64).to_be_bytes());
        Some(hash.finalize().into())
    }
}

/// The error of one piece.
struct PieceError {
    error: Error,
    column: String,
    /// The row, unless the column is within a list.
    row: Option<usize>,
}

/// Transforms the columns of a table, a record batch or a column. Each entry of `columns` is a
/// path, the type that the column gets, and the options of its requests.
#[pyfunction]
pub(crate) fn transform<'py>(
    py: Python<'py>,
    client: &NativeClient,
    method: &str,
    app: &str,
    data: &Bound<'py, PyAny>,
    columns: Vec<(String, Option<Bound<'py, PyAny>>, Bound<'py, PyDict>)>,
    batching: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let batching = Batching::read(method, batching)?;
    let running = client.running(py)?;
    let data = ArrowData::import(data)?;
    let schema = data.schema();
    let columns = columns
        .into_iter()
        .map(|(path, data_type, options)| {
            read_column(&schema, method, app, &path, data_type, &options)
        })
        .collect::<PyResult<Vec<_>>>()?;
    let direction = match method {
        "encrypt" | "tokenize" => Direction::Seal,
        "decrypt" | "detokenize" => Direction::Open,
        _ => Direction::Keep,
    };
    let mut batches = data.batches();
    let leaves = find_leaves(&columns, &batches);
    let work = send_all(&running, &columns, &leaves, &batching);
    let results = running
        .wait(py, work)?
        .map_err(|failed| piece_error(py, &failed))?;
    let schema = py
        .detach(|| {
            let columns: Vec<_> = columns.iter().map(Column::replacement).collect();
            replace_columns(&schema, &mut batches, &columns, leaves, results, direction)
        })
        .map_err(column_error)?;
    data.export(py, schema, batches)
}

/// Checks that the values of columns can be sent.
#[pyfunction]
pub(crate) fn check_columns(schema: &Bound<'_, PyAny>, columns: Vec<String>) -> PyResult<()> {
    let schema = Schema::from_pyarrow_bound(schema)?;
    columns.iter().try_for_each(|path| {
        let path = Path::parse(path, &schema).map_err(column_error)?;
        let field = path.field(&schema).map_err(column_error)?;
        check(path.text(), field.data_type()).map_err(column_error)
    })
}

fn column_error(error: ColumnError) -> PyErr {
    PyTypeError::new_err(error.to_string())
}

fn read_column(
    schema: &Schema,
    method: &str,
    app: &str,
    path: &str,
    data_type: Option<Bound<'_, PyAny>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Column> {
    for name in NOT_FOR_COLUMNS {
        if options.contains(name)? {
            return Err(PyTypeError::new_err(format!(
                "{method}() got an unexpected keyword argument '{name}'"
            )));
        }
    }
    let options = Options::new(method, options)?;
    let request = DocumentRequest::read(method, app.to_owned(), &options)?;
    let request =
        request.ok_or_else(|| PyTypeError::new_err(format!("no method {method} for columns")))?;
    options.finish()?;
    let data_type = data_type
        .map(|data_type| read_type(&data_type))
        .transpose()?;
    let path = Path::parse(path, schema).map_err(column_error)?;
    let old = path.field(schema).map_err(column_error)?;
    for data_type in [Some(old.data_type()), data_type.as_ref()]
        .into_iter()
        .flatten()
    {
        check(path.text(), data_type).map_err(column_error)?;
    }
    Ok(Column {
        path,
        request,
        data_type,
    })
}

/// Reads a type. polars gives its types as a schema of one column.
fn read_type(data_type: &Bound<'_, PyAny>) -> PyResult<DataType> {
    Ok(match DataType::from_pyarrow_bound(data_type)? {
        DataType::Struct(fields) if fields.len() == 1 => fields[0].data_type().clone(),
        other => other,
    })
}

/// Finds the values of each column in each batch, in the order of columns and then batches.
fn find_leaves(columns: &[Column], batches: &[RecordBatch]) -> Vec<Leaf> {
    columns
        .iter()
        .flat_map(|column| batches.iter().map(|batch| column.path.find(batch)))
        .collect()
}

/// Sends all values. Returns the payloads of each leaf's results, in the order of its values. The
/// first error ends the work, even while earlier requests are in flight.
async fn send_all(
    running: &Running,
    columns: &[Column],
    leaves: &[Leaf],
    batching: &Batching,
) -> Result<Vec<Vec<Bytes>>, PieceError> {
    let batches = leaves.len().checked_div(columns.len()).unwrap_or(0);
    let send = async |(number, piece): (usize, Piece)| {
        let first = piece.parts[0].leaf / batches * batches;
        let column = &columns[first / batches];
        running.count_values(piece.count);
        let part_key = batching.part_key(&column.path, &piece);
        let part_key = part_key.as_ref().map(|key| key.as_slice());
        let failed = |error: Error| {
            let place = failed_field(&error).and_then(|field| piece.part_of(field));
            let row = place
                .filter(|_| !column.path.is_in_list())
                .and_then(|(part, number)| {
                    let earlier = leaves[first..part.leaf]
                        .iter()
                        .map(Leaf::len)
                        .sum::<usize>();
                    Some(earlier + leaves[part.leaf].nth_present(part.first_row, number)?)
                });
            PieceError {
                error,
                column: column.path.text().to_owned(),
                row,
            }
        };
        let sent = column
            .request
            .send_paced(running, batching.retry_timeout, &piece.payload, part_key)
            .await;
        let divided = piece.divide(&sent.map_err(failed)?.payload);
        Ok((
            number,
            divided.ok_or_else(|| failed(Error::incomplete_document()))?,
        ))
    };
    let pieces =
        stream::iter(Pieces::new(leaves, batches, batching.batch_fields).enumerate()).map(send);
    let mut arrived: Vec<_> = pieces
        .buffer_unordered(batching.in_flight)
        .try_collect()
        .await?;
    arrived.sort_unstable_by_key(|(number, _)| *number);
    let mut results = vec![Vec::new(); leaves.len()];
    for (leaf, values) in arrived.into_iter().flat_map(|(_, divided)| divided) {
        results[leaf].push(values);
    }
    Ok(results)
}

/// Returns the position, within its request, of the field that caused an error.
fn failed_field(error: &Error) -> Option<usize> {
    failed_path(error)?
        .strip_prefix("$[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

/// Returns the path of the field that caused an error.
fn failed_path(error: &Error) -> Option<&str> {
    let Error::Rpc(error) = error else {
        return None;
    };
    let path = error.details.iter().find(|detail| detail.key == "path")?;
    let DetailValue::Text(path) = &path.value else {
        return None;
    };
    Some(path)
}

/// Returns the client's exception with the column and the row among its details, instead of the
/// path in the request.
fn piece_error(py: Python<'_>, failed: &PieceError) -> PyErr {
    let error = errors::of_client(py, &failed.error);
    match set_place(py, &error, failed) {
        Ok(()) => error,
        Err(other) => other,
    }
}

fn set_place(py: Python<'_>, error: &PyErr, failed: &PieceError) -> PyResult<()> {
    let details = error.value(py).getattr("details")?.cast_into::<PyDict>()?;
    if details.contains("path")? {
        details.del_item("path")?;
    }
    if !failed.column.is_empty() {
        details.set_item("column", &failed.column)?;
    }
    failed
        .row
        .map_or(Ok(()), |row| details.set_item("row", row))
}
