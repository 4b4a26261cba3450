//! Discovery of sensitive columns, which proposes rules for `mask`.
//!
//! Sampled values stay in this process: results hold names, counts and confidences. Without a
//! client, functions are chosen by type and form. With a client, each function is tried on the
//! sample by a request to the engine, like those of `mask`.

use std::time::Duration;

use arrow_array::RecordBatchReader;
use arrow_array::ffi_stream::RecordBatchStreamReader;
use arrow_pyarrow::FromPyArrow;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sealwire_client::{Error, ErrorCode, Malformed};
use sealwire_discover::{ArrowSamples, DiscoverOptions, FieldVerdict};
use sealwire_mask_rules::{Column, Function, RuleText, Target, Unknown, answers, payload, place};

use super::exchange::{ArrowData, checked};
use super::failed_path;
use super::rules::request_of_rule;
use crate::client::{NativeClient, Running};
use crate::errors;
use crate::options::Options;

/// Permitted sizes of a column's sample. An engine accepts as many values in a request.
const SAMPLES: std::ops::RangeInclusive<usize> = 10..=10_000;

/// A column of the data, and the decision on it.
#[pyclass(frozen, get_all, module = "sealwire.arrow", skip_from_py_object)]
#[derive(Clone)]
pub(crate) struct DiscoveredField {
    /// The path of the column in the grammar of rules, such as `$.address.street`.
    field: String,
    /// `sensitive`: a rule masks the column. `uncertain`: a person must decide. Or `harmless`.
    verdict: &'static str,
    /// The category of data, such as `email`, or `None`.
    category: Option<&'static str>,
    /// The confidence of the judgement, from 0 to 1.
    confidence: f64,
    /// The reasons, without values.
    evidence: Vec<String>,
    /// The function of the rule, or the proposed function of an uncertain column.
    mask: Option<String>,
    /// Number of values that were judged.
    values: usize,
}

#[pymethods]
impl DiscoveredField {
    fn __repr__(&self) -> String {
        format!(
            "DiscoveredField(field={:?}, verdict={:?}, confidence={:.2})",
            self.field, self.verdict, self.confidence
        )
    }
}

/// The result of a discovery. Holds no sampled value.
#[pyclass(frozen, module = "sealwire.arrow")]
pub(crate) struct Discovery(sealwire_discover::Discovery);

#[pymethods]
impl Discovery {
    /// Returns all columns, in the order of the schema.
    #[getter]
    fn fields(&self) -> Vec<DiscoveredField> {
        let fields = self.0.fields.iter().map(|field| DiscoveredField {
            field: field.field.clone(),
            verdict: field.verdict.name(),
            category: field.category.map(sealwire_discover::Category::name),
            confidence: field.confidence,
            evidence: field.evidence.clone(),
            mask: field.mask.clone(),
            values: field.values,
        });
        fields.collect()
    }

    /// Returns notes for the reader.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.0.notes.clone()
    }

    /// Returns the rules as TOML, with the evidence as comments.
    fn to_toml(&self) -> String {
        self.0.to_toml()
    }

    fn __repr__(&self) -> String {
        let count = |verdict| {
            self.0
                .fields
                .iter()
                .filter(|field| field.verdict == verdict)
                .count()
        };
        format!(
            "Discovery({} to mask, {} uncertain, {} harmless)",
            count(FieldVerdict::Sensitive),
            count(FieldVerdict::Uncertain),
            count(FieldVerdict::Harmless)
        )
    }
}

/// Settings of a discovery that are not settings of its requests.
struct Settings {
    options: DiscoverOptions,
    table: String,
    notes: Vec<String>,
    retry_timeout: Duration,
}

impl Settings {
    fn read(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = Options::new("discover", given)?;
        let mut settings = DiscoverOptions::new(options.required("this_year", "an integer")?);
        settings.sample = options
            .take("sample", "an integer")?
            .unwrap_or(settings.sample);
        settings.min_confidence = options
            .take("min_confidence", "a number")?
            .unwrap_or(settings.min_confidence);
        settings.seed = options
            .take("seed", "an integer from 0 to 2**64 - 1")?
            .unwrap_or(settings.seed);
        let read = Self {
            options: settings,
            table: options.take("table", "a string")?.unwrap_or_default(),
            notes: options.texts("notes")?.unwrap_or_default(),
            retry_timeout: Duration::from_millis(
                options
                    .take("retry_timeout_ms", "an integer, 0 or more")?
                    .unwrap_or(0),
            ),
        };
        options.finish()?;
        if !SAMPLES.contains(&read.options.sample) {
            return Err(PyValueError::new_err(format!(
                "sample must be in {SAMPLES:?}"
            )));
        }
        if !(0.0..=1.0).contains(&read.options.min_confidence) {
            return Err(PyValueError::new_err("min_confidence must be from 0 to 1"));
        }
        Ok(read)
    }
}

/// Samples a table, a record batch, or a stream of record batches. Only one batch of a stream is in
/// memory at a time. `engine` is the client and the app that try functions. `request` holds options
/// of the requests.
#[pyfunction]
#[pyo3(signature = (data, settings, engine, request))]
pub(crate) fn discover(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    settings: &Bound<'_, PyDict>,
    engine: Option<(PyRef<'_, NativeClient>, String)>,
    request: &Bound<'_, PyDict>,
) -> PyResult<Discovery> {
    let settings = Settings::read(settings)?;
    let engine = match &engine {
        Some((client, app)) => Some(EngineTrial {
            running: client.running(py)?,
            app,
            options: request,
            retry_timeout: settings.retry_timeout,
        }),
        None => None,
    };
    // Reject wrong options even if no column is tried.
    if let Some(engine) = &engine {
        engine.request(
            &"redact"
                .parse()
                .map_err(|_| PyValueError::new_err("no function"))?,
        )?;
    }
    let samples = sampled(py, data, settings.options)?;
    let judged = py.detach(|| samples.judge(&settings.table));
    let mut discovery = match engine {
        None => py.detach(|| judged.decide::<PyErr>(None))?,
        Some(engine) => judged.decide(Some(&mut |function: &Function, column: &Column| {
            engine.masks(py, function, column)
        }))?,
    };
    discovery.notes.splice(0..0, settings.notes);
    Ok(Discovery(discovery))
}

fn sampled(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    options: DiscoverOptions,
) -> PyResult<ArrowSamples> {
    if data.hasattr("__arrow_c_array__")? {
        let data = ArrowData::import(data)?;
        let mut samples = ArrowSamples::new(&data.schema(), options);
        py.detach(|| {
            data.batches()
                .iter()
                .for_each(|batch| samples.add_batch(batch))
        });
        return Ok(samples);
    }
    if !data.hasattr("__arrow_c_stream__")? {
        let expected =
            "data must be a table, a record batch or a stream with the Arrow PyCapsule interface";
        return Err(PyTypeError::new_err(expected));
    }
    let reader = RecordBatchStreamReader::from_pyarrow_bound(data)?;
    let mut samples = ArrowSamples::new(&reader.schema(), options);
    let read_all = || {
        reader
            .map(checked)
            .try_for_each(|batch| batch.map(|batch| samples.add_batch(&batch)))
    };
    // The producer can have written the text of the error, which can hold values.
    py.detach(read_all)
        .map_err(|_| PyValueError::new_err("the stream failed or is no valid Arrow data"))?;
    Ok(samples)
}

/// An engine that tries functions.
struct EngineTrial<'a, 'py> {
    running: std::sync::Arc<Running>,
    app: &'a str,
    options: &'a Bound<'py, PyDict>,
    retry_timeout: Duration,
}

impl EngineTrial<'_, '_> {
    fn request(&self, function: &Function) -> PyResult<crate::request::DocumentRequest> {
        let rule = RuleText {
            target: Target::Column("column".to_owned()),
            mask: function.to_string(),
        };
        let rules = sealwire_mask_rules::Rules::new(Unknown::Keep, vec![rule], Vec::new());
        let rules = rules.map_err(|error| PyValueError::new_err(error.to_string()))?;
        request_of_rule("discover", &rules, 0, self.app, self.options)
    }

    /// Returns the masks of a column's values, or `None` if the engine reports that the function
    /// does not fit one of them.
    fn masks(
        &self,
        py: Python<'_>,
        function: &Function,
        column: &Column,
    ) -> PyResult<Option<Vec<u8>>> {
        let request = self.request(function)?;
        let columns = std::slice::from_ref(column);
        let (document, _) = payload(columns, |_| None);
        self.running.count_values(column.count);
        let running = &self.running;
        let retry_timeout = self.retry_timeout;
        match running.wait(
            py,
            request.send_paced(running, retry_timeout, &document, None),
        )? {
            Ok(masked) => match answers(&masked.payload, columns) {
                Ok(mut values) => Ok(values.pop()),
                Err(_) => Err(errors::of_client(
                    py,
                    &Error::Protocol(Malformed::Truncated),
                )),
            },
            Err(error) if is_unfit(&error) => Ok(None),
            Err(error) => Err(errors::of_client(py, &error)),
        }
    }
}

/// Returns true if an error is about one value.
fn is_unfit(error: &Error) -> bool {
    let is_bad_request = matches!(error, Error::Rpc(error) if error.code == ErrorCode::BadRequest);
    is_bad_request && failed_path(error).and_then(place).is_some()
}
