//! Arrow data from Python and back, by the Arrow PyCapsule interface: buffers are shared and not
//! copied.

use arrow_array::ffi::FFI_ArrowArray;
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{
    Array, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray, make_array,
};
use arrow_data::ArrayData;
use arrow_pyarrow::FromPyArrow;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::sync::Arc;

/// Arrow data that a Python program passed.
pub(crate) struct ArrowData {
    kind: Kind,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

#[derive(Clone, Copy)]
enum Kind {
    Table,
    Batch,
    Column,
}

impl ArrowData {
    /// Takes a table or another stream of record batches, which is read to its end, a record batch,
    /// or a column.
    pub(crate) fn import(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        if data.hasattr("__arrow_c_array__")? {
            let array = ArrayData::from_pyarrow_bound(data)?;
            if matches!(array.data_type(), DataType::Struct(_)) {
                if array.null_count() > 0 {
                    return Err(PyTypeError::new_err(
                        "a column of structs with nulls must be within a table",
                    ));
                }
                let batch = RecordBatch::from_pyarrow_bound(data)?;
                return Ok(Self {
                    kind: Kind::Batch,
                    schema: batch.schema(),
                    batches: vec![batch],
                });
            }
            let metadata = if data.hasattr("__arrow_c_schema__")? {
                Field::from_pyarrow_bound(data)?.metadata().clone()
            } else {
                Default::default()
            };
            let field = Field::new("", array.data_type().clone(), true).with_metadata(metadata);
            let schema = Arc::new(Schema::new(vec![field]));
            let batch = RecordBatch::try_new(SchemaRef::clone(&schema), vec![make_array(array)])
                .map_err(unusable)?;
            return Ok(Self {
                kind: Kind::Column,
                schema,
                batches: vec![batch],
            });
        }
        if data.hasattr("__arrow_c_stream__")? {
            let reader = RecordBatchStreamReader::from_pyarrow_bound(data)?;
            let schema = reader.schema();
            let batches = data
                .py()
                .detach(|| reader.map(checked).collect::<Result<Vec<_>, _>>());
            // The producer can have written the text of the error, which can hold values.
            let batches = batches.map_err(|_| {
                PyValueError::new_err("the stream failed or is no valid Arrow data")
            })?;
            return Ok(Self {
                kind: Kind::Table,
                schema,
                batches,
            });
        }
        Err(PyTypeError::new_err(
            "data must be a table, a record batch or a column with the Arrow PyCapsule interface",
        ))
    }

    pub(crate) fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    pub(crate) fn batches(&self) -> Vec<RecordBatch> {
        self.batches.clone()
    }

    /// Returns an object of the same kind.
    pub(crate) fn export<'py>(
        &self,
        py: Python<'py>,
        schema: SchemaRef,
        mut batches: Vec<RecordBatch>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match (self.kind, batches.len()) {
            (Kind::Batch, 1) => Ok(Bound::new(
                py,
                ArrowBatch {
                    batch: batches.swap_remove(0),
                },
            )?
            .into_any()),
            (Kind::Column, 1) => {
                let field = FieldRef::clone(&schema.fields()[0]);
                let values = ArrayRef::clone(batches[0].column(0));
                Ok(Bound::new(py, ArrowColumn { field, values })?.into_any())
            }
            _ => Ok(Bound::new(py, ArrowTable { schema, batches })?.into_any()),
        }
    }
}

/// Rejects a batch whose buffers do not fit its types, because they are read without further
/// checks.
pub(super) fn checked(batch: Result<RecordBatch, ArrowError>) -> Result<RecordBatch, ArrowError> {
    let batch = batch?;
    batch
        .columns()
        .iter()
        .try_for_each(|column| column.to_data().validate_full())?;
    Ok(batch)
}

fn unusable(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn schema_capsule<'py, T>(py: Python<'py>, of: T) -> PyResult<Bound<'py, PyCapsule>>
where
    FFI_ArrowSchema: TryFrom<T, Error = ArrowError>,
{
    PyCapsule::new_with_value(
        py,
        FFI_ArrowSchema::try_from(of).map_err(unusable)?,
        c"arrow_schema",
    )
}

fn array_capsule<'py>(py: Python<'py>, array: &ArrayData) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArray::new(array), c"arrow_array")
}

/// A schema and an array, as `__arrow_c_array__` returns them.
type Capsules<'py> = (Bound<'py, PyCapsule>, Bound<'py, PyCapsule>);

/// A table in a result.
#[pyclass(frozen, module = "sealwire.arrow")]
pub(crate) struct ArrowTable {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

#[pymethods]
impl ArrowTable {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &*self.schema)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The consumer casts if it wants other types.
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok);
        let reader = RecordBatchIterator::new(batches, SchemaRef::clone(&self.schema));
        PyCapsule::new_with_value(
            py,
            FFI_ArrowArrayStream::new(Box::new(reader)),
            c"arrow_array_stream",
        )
    }
}

/// A record batch in a result.
#[pyclass(frozen, module = "sealwire.arrow")]
pub(crate) struct ArrowBatch {
    batch: RecordBatch,
}

#[pymethods]
impl ArrowBatch {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &*self.batch.schema())
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Capsules<'py>> {
        let _ = requested_schema;
        let array = StructArray::from(self.batch.clone()).into_data();
        Ok((self.__arrow_c_schema__(py)?, array_capsule(py, &array)?))
    }
}

/// A column in a result.
#[pyclass(frozen, module = "sealwire.arrow")]
pub(crate) struct ArrowColumn {
    field: FieldRef,
    values: ArrayRef,
}

#[pymethods]
impl ArrowColumn {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &*self.field)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Capsules<'py>> {
        let _ = requested_schema;
        Ok((
            self.__arrow_c_schema__(py)?,
            array_capsule(py, &self.values.to_data())?,
        ))
    }
}
