//! Converts Python values to MessagePack and back, without a tree between them.
//!
//! A value that was sent returns with its type. A value that MessagePack cannot hold is rejected
//! rather than changed. The exceptions are listed in `python/README.md`. An error names the place
//! of a value and its type, and never the value.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyMemoryView, PyString, PyTuple,
};
use sealwire_columns::{append_timestamp, read_timestamp};
use sealwire_msgpack::{Malformed, Token, TokenReader, write};

use crate::errors;

/// Nested containers that are followed. An engine follows fewer, unless its operator has raised
/// `depth_max`. Ends a list that contains itself.
const DEPTH_MAX: usize = 256;

const SECONDS_PER_DAY: i64 = 86_400;

/// MessagePack distinguishes keys that are equal in Python.
const EQUAL_KEYS: &str = "a map of the document has keys that are equal in Python, such as 1, 1.0 and True, or the same key \
                          twice: a dict would lose an entry";

/// A MessagePack extension without a corresponding Python type.
#[pyclass(frozen, eq, hash, module = "sealwire", skip_from_py_object)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Extension {
    /// The type code, from -128 to 127.
    #[pyo3(get)]
    code: i8,
    data: Vec<u8>,
}

#[pymethods]
impl Extension {
    #[new]
    fn new(code: i8, data: Vec<u8>) -> Self {
        Self { code, data }
    }

    /// The content.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.data)
    }

    fn __repr__(&self) -> String {
        format!("Extension(code={}, {} bytes)", self.code, self.data.len())
    }
}

/// A step from a container to one of its values.
enum Step {
    Index(usize),
    Key(String),
}

/// A value that cannot be sent.
enum Unfit {
    Value {
        error: fn(String) -> PyErr,
        reason: String,
        /// From the value up to the root.
        steps: Vec<Step>,
    },
    /// An exception that is not about the value.
    PassedOn(PyErr),
}

impl Unfit {
    fn of_type(reason: impl Into<String>) -> Self {
        Self::Value {
            error: PyTypeError::new_err,
            reason: reason.into(),
            steps: Vec::new(),
        }
    }

    fn of_range(reason: impl Into<String>) -> Self {
        Self::Value {
            error: PyValueError::new_err,
            reason: reason.into(),
            steps: Vec::new(),
        }
    }

    /// Returns the error for a value whose Python code raised an exception.
    fn of_raised(py: Python<'_>, raised: PyErr, reason: &str) -> Self {
        if errors::is_passed_on(py, &raised) {
            Self::PassedOn(raised)
        } else {
            Self::of_range(reason)
        }
    }

    fn below(mut self, step: Step) -> Self {
        if let Self::Value { steps, .. } = &mut self {
            steps.push(step);
        }
        self
    }

    fn into_error(self) -> PyErr {
        let (error, reason, steps) = match self {
            Self::Value {
                error,
                reason,
                steps,
            } => (error, reason, steps),
            Self::PassedOn(raised) => return raised,
        };
        let mut path = "$".to_owned();
        for step in steps.iter().rev() {
            match step {
                Step::Index(index) => path.push_str(&format!("[{index}]")),
                Step::Key(key) => path.extend([".", key.as_str()]),
            }
        }
        error(format!("{path}: {reason}"))
    }
}

/// Writes a Python value as one MessagePack value.
pub(crate) fn to_payload(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut out = Vec::new();
    append(value, &mut out, 0).map_err(Unfit::into_error)?;
    Ok(out)
}

fn append(value: &Bound<'_, PyAny>, out: &mut Vec<u8>, depth: usize) -> Result<(), Unfit> {
    if append_scalar(value, out)? {
        return Ok(());
    }
    if depth == DEPTH_MAX {
        return Err(Unfit::of_range(format!(
            "more than {DEPTH_MAX} nested containers"
        )));
    }
    let py = value.py();
    // Containers are copied, because other threads can change them meanwhile, and so can code of
    // the values in them.
    if let Ok(map) = value.cast::<PyDict>() {
        let map = map
            .copy()
            .map_err(|raised| Unfit::of_raised(py, raised, "a map that cannot be read"))?;
        write::map_len(out, length(map.len())?);
        for (key, child) in map.iter() {
            if key.is_none()
                || key.is_instance_of::<PyBool>()
                || key.is_instance_of::<PyFloat>()
                || !append_scalar(&key, out)?
            {
                return Err(Unfit::of_type(format!(
                    "a key of type {} cannot be sent",
                    type_name(&key)
                )));
            }
            append(&child, out, depth + 1)
                .map_err(|unfit| unfit.below(Step::Key(key_text(&key))))?;
        }
    } else if let Ok(list) = value.cast::<PyList>() {
        let items = list.to_tuple();
        append_items(items.iter(), items.len(), out, depth)?;
    } else if let Ok(tuple) = value.cast::<PyTuple>() {
        append_items(tuple.iter(), tuple.len(), out, depth)?;
    } else {
        return Err(Unfit::of_type(format!(
            "a value of type {} cannot be sent",
            type_name(value)
        )));
    }
    Ok(())
}

fn append_items<'py>(
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    count: usize,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Unfit> {
    write::array_len(out, length(count)?);
    for (index, item) in items.enumerate() {
        append(&item, out, depth + 1).map_err(|unfit| unfit.below(Step::Index(index)))?;
    }
    Ok(())
}

/// Returns false if the value is not a scalar.
fn append_scalar(value: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> Result<bool, Unfit> {
    if let Ok(text) = value.cast::<PyString>() {
        // Python's own error quotes the string.
        let unfit = |raised| {
            Unfit::of_raised(
                value.py(),
                raised,
                "a string with lone surrogates cannot be sent",
            )
        };
        let text = text.to_str().map_err(unfit)?;
        write::str(out, text);
    } else if value.is_none() {
        write::nil(out);
    } else if let Ok(flag) = value.cast::<PyBool>() {
        write::bool(out, flag.is_true());
    } else if let Ok(number) = value.cast::<PyInt>() {
        append_integer(number, out)?;
    } else if let Ok(number) = value.cast::<PyFloat>() {
        write::f64(out, number.value());
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        write::bin(out, bytes.as_bytes());
    } else if let Ok(bytes) = value.cast::<PyByteArray>() {
        write::bin(out, &bytes.to_vec());
    } else if value.is_instance_of::<PyMemoryView>() {
        let bytes = value
            .call_method0("tobytes")
            .and_then(|bytes| Ok(bytes.cast_into::<PyBytes>()?));
        let unfit =
            |raised| Unfit::of_raised(value.py(), raised, "a memoryview that cannot be read");
        write::bin(out, bytes.map_err(unfit)?.as_bytes());
    } else if let Ok(extension) = value.cast::<Extension>() {
        let Extension { code, data } = extension.get();
        write::ext(out, *code, data);
    } else {
        return append_datetime(value, out);
    }
    Ok(true)
}

fn append_integer(number: &Bound<'_, PyInt>, out: &mut Vec<u8>) -> Result<(), Unfit> {
    if let Ok(number) = number.extract::<i64>() {
        write::int(out, number);
    } else if let Ok(number) = number.extract::<u64>() {
        write::uint(out, number);
    } else {
        return Err(Unfit::of_range(
            "an integer outside -2**63 to 2**64-1 cannot be sent",
        ));
    }
    Ok(())
}

fn length(len: usize) -> Result<u32, Unfit> {
    u32::try_from(len)
        .map_err(|_| Unfit::of_range("a container with 2**32 entries or more cannot be sent"))
}

fn type_name(value: &Bound<'_, PyAny>) -> String {
    value
        .get_type()
        .qualname()
        .map_or_else(|_| "unknown".to_owned(), |name| name.to_string())
}

fn key_text(key: &Bound<'_, PyAny>) -> String {
    match key.cast::<PyString>() {
        Ok(key) => key.to_string_lossy().into_owned(),
        Err(_) => "*".to_owned(),
    }
}

/// Names of Python's `datetime` module.
struct DateTimes {
    datetime: Py<PyAny>,
    timedelta: Py<PyAny>,
    /// 1970-01-01 in UTC.
    epoch: Py<PyAny>,
}

fn datetimes(py: Python<'_>) -> PyResult<&'static DateTimes> {
    static DATETIMES: PyOnceLock<DateTimes> = PyOnceLock::new();
    DATETIMES.get_or_try_init(py, || {
        let module = py.import("datetime")?;
        let datetime = module.getattr("datetime")?;
        let utc = module.getattr("timezone")?.getattr("utc")?;
        let epoch = datetime.call_method1("fromtimestamp", (0, utc))?;
        Ok(DateTimes {
            datetime: datetime.unbind(),
            timedelta: module.getattr("timedelta")?.unbind(),
            epoch: epoch.unbind(),
        })
    })
}

/// Writes a datetime with a time zone as a timestamp. Returns false for a value of another type.
fn append_datetime(value: &Bound<'_, PyAny>, out: &mut Vec<u8>) -> Result<bool, Unfit> {
    let unreadable =
        |raised: PyErr| Unfit::of_raised(value.py(), raised, "a datetime that cannot be read");
    let names = datetimes(value.py()).map_err(unreadable)?;
    if !value
        .is_instance(names.datetime.bind(value.py()))
        .map_err(unreadable)?
    {
        return Ok(false);
    }
    if value
        .call_method0("utcoffset")
        .map_err(unreadable)?
        .is_none()
    {
        return Err(Unfit::of_type(
            "a datetime without a time zone cannot be sent",
        ));
    }
    let since = value
        .sub(names.epoch.bind(value.py()))
        .map_err(unreadable)?;
    let part = |name: &str| {
        since
            .getattr(name)
            .and_then(|part| part.extract::<i64>())
            .map_err(unreadable)
    };
    // A datetime of a subclass, such as that of pandas.
    match value
        .getattr("nanosecond")
        .and_then(|part| part.extract::<i64>())
    {
        Ok(0) => {}
        Ok(_) => return Err(Unfit::of_range("a datetime with nanoseconds")),
        Err(raised) if errors::is_passed_on(value.py(), &raised) => {
            return Err(Unfit::PassedOn(raised));
        }
        // Python's own datetime has no such attribute.
        Err(_) => {}
    }
    append_timestamp(
        out,
        part("days")? * SECONDS_PER_DAY + part("seconds")?,
        part("microseconds")? as u32 * 1_000,
    );
    Ok(true)
}

/// Reads one MessagePack value as a Python value.
pub(crate) fn from_payload<'py>(py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let mut reader = TokenReader::new(payload);
    read(py, &mut reader, 0)
}

fn malformed(error: Malformed) -> PyErr {
    errors::protocol(&error.to_string())
}

fn read<'py>(
    py: Python<'py>,
    reader: &mut TokenReader<'_>,
    depth: usize,
) -> PyResult<Bound<'py, PyAny>> {
    if depth > DEPTH_MAX {
        return Err(errors::protocol("too many nested containers"));
    }
    Ok(match reader.token().map_err(malformed)? {
        Token::Nil => py.None().into_bound(py),
        Token::Bool(flag) => PyBool::new(py, flag).to_owned().into_any(),
        Token::Uint(number) => number.into_pyobject(py)?.into_any(),
        Token::Int(number) => number.into_pyobject(py)?.into_any(),
        Token::F32(number) => PyFloat::new(py, f64::from(number)).into_any(),
        Token::F64(number) => PyFloat::new(py, number).into_any(),
        Token::Str(bytes) => {
            let text = std::str::from_utf8(bytes).map_err(|_| malformed(Malformed::NotUtf8))?;
            PyString::new(py, text).into_any()
        }
        Token::Bin(bytes) => PyBytes::new(py, bytes).into_any(),
        Token::Ext(code, data) => read_extension(py, code, data)?,
        Token::Array(len) => {
            let list = PyList::empty(py);
            for _ in 0..len {
                list.append(read(py, reader, depth + 1)?)?;
            }
            list.into_any()
        }
        Token::Map(len) => {
            let map = PyDict::new(py);
            for entries in 1..=len as usize {
                let key = read(py, reader, depth + 1)?;
                // Unhashable keys are rejected by the dictionary, with the type's name.
                map.set_item(key, read(py, reader, depth + 1)?)?;
                if map.len() != entries {
                    return Err(errors::protocol(EQUAL_KEYS));
                }
            }
            map.into_any()
        }
    })
}

/// Reads a timestamp as a datetime in UTC, and all else as an [`Extension`]: also a timestamp that
/// a datetime cannot hold.
fn read_extension<'py>(py: Python<'py>, code: i8, data: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    if let Some((seconds, nanoseconds)) = read_timestamp(code, data)
        && nanoseconds.is_multiple_of(1_000)
    {
        let names = datetimes(py)?;
        let days = seconds.div_euclid(SECONDS_PER_DAY);
        let rest = (
            days,
            seconds.rem_euclid(SECONDS_PER_DAY),
            nanoseconds / 1_000,
        );
        let moment = names
            .timedelta
            .bind(py)
            .call1(rest)
            .and_then(|since| names.epoch.bind(py).add(since));
        match moment {
            Ok(moment) => return Ok(moment),
            Err(raised) if errors::is_passed_on(py, &raised) => return Err(raised),
            Err(_) => {}
        }
    }
    Ok(Bound::new(
        py,
        Extension {
            code,
            data: data.to_vec(),
        },
    )?
    .into_any())
}
