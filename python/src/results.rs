//! Results of requests as Python values.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sealwire_client::{Info, Inspection};

use crate::request::Outcome;
use crate::value::from_payload;

/// A field that a request with `on_error="report"` left unchanged.
#[pyclass(frozen, get_all, eq, hash, module = "sealwire", skip_from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct FieldError {
    /// The path of the field, such as `$.card.number`.
    path: String,
    /// The error code, such as `cannot_open`.
    code: String,
}

#[pymethods]
impl FieldError {
    fn __repr__(&self) -> String {
        format!("FieldError(path={:?}, code={:?})", self.path, self.code)
    }
}

/// A document in a response. `Debug` shows nothing of its payload.
#[pyclass(frozen, get_all, module = "sealwire")]
pub(crate) struct Document {
    /// The document, with the structure of the document that was sent.
    payload: Py<PyAny>,
    /// The engine's control state generation when it processed the request.
    generation: u64,
    /// Fields left unchanged because of errors, with `on_error="report"`; at most 1,000.
    errors: Py<PyList>,
    /// Number of further field errors that are not listed.
    errors_omitted: u64,
    /// Positions of those paths in `select` that match nothing.
    unmatched: Vec<u32>,
    /// Encapsulations that must be kept with the document: without them its fields do not open.
    encapsulations: Vec<String>,
}

#[pymethods]
impl Document {
    fn __repr__(&self, py: Python<'_>) -> String {
        let errors = self.errors.bind(py).len() as u64 + self.errors_omitted;
        format!("Document(generation={}, {errors} errors)", self.generation)
    }
}

impl Outcome {
    /// Converts the result.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Document(document) => Ok(Bound::new(py, of_document(py, document)?)?.into_any()),
            Self::Inspection(inspection) => Ok(of_inspection(py, inspection)?.into_any()),
            Self::Info(info) => Ok(of_info(py, info)?.into_any()),
            Self::Health => Ok(py.None().into_bound(py)),
        }
    }
}

fn of_document(py: Python<'_>, document: sealwire_client::Document) -> PyResult<Document> {
    let errors = PyList::empty(py);
    for error in document.errors {
        errors.append(Bound::new(
            py,
            FieldError {
                path: error.path,
                code: error.code.name().to_owned(),
            },
        )?)?;
    }
    Ok(Document {
        payload: from_payload(py, &document.payload)?.unbind(),
        generation: document.generation,
        errors: errors.unbind(),
        errors_omitted: document.errors_omitted,
        unmatched: document.unmatched,
        encapsulations: document.encapsulations,
    })
}

/// Returns the inspection as the map that is on the wire. Parts that an envelope does not have are
/// absent.
fn of_inspection(py: Python<'_>, inspection: Inspection) -> PyResult<Bound<'_, PyDict>> {
    let map = PyDict::new(py);
    map.set_item("format", inspection.format.name())?;
    map.set_item("suite", inspection.suite.name())?;
    map.set_item("datatype", inspection.datatype.name())?;
    map.set_item("encoding", inspection.encoding.name())?;
    map.set_item("plaintext_bytes", inspection.plaintext_bytes)?;
    set_optional(&map, "version", inspection.version)?;
    set_optional(&map, "tag", inspection.tag)?;
    set_optional(&map, "key_id", inspection.key_id)?;
    set_optional(&map, "outside", inspection.outside.then_some(true))?;
    set_optional(&map, "sequence", inspection.sequence)?;
    set_optional(
        &map,
        "encapsulation",
        inspection.encapsulation.map(|place| place.name()),
    )?;
    set_optional(&map, "debug", inspection.debug)?;
    Ok(map)
}

fn set_optional<'py>(
    map: &Bound<'py, PyDict>,
    key: &str,
    value: Option<impl IntoPyObject<'py>>,
) -> PyResult<()> {
    value.map_or(Ok(()), |value| map.set_item(key, value))
}

fn of_info(py: Python<'_>, info: Info) -> PyResult<Bound<'_, PyDict>> {
    let map = PyDict::new(py);
    map.set_item("name", info.name)?;
    map.set_item("version", info.version)?;
    map.set_item("protocol", info.protocol)?;
    map.set_item("generation", info.generation)?;
    map.set_item("methods", info.methods)?;
    map.set_item("suites", info.suites)?;
    map.set_item("formats", info.formats)?;
    map.set_item("encodings", info.encodings)?;
    map.set_item("key_scopes", info.key_scopes)?;
    let limits = PyDict::new(py);
    for (name, limit) in info.limits {
        limits.set_item(name, limit)?;
    }
    map.set_item("limits", limits)?;
    Ok(map)
}
