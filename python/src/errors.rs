//! Turns errors of the client into Python exceptions.
//!
//! The classes are in `sealwire/errors.py`, one for each code. The message comes from the engine or
//! the client, which put parameters, limits and methods into messages, but no values.

use std::error::Error as _;

use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};
use sealwire_client::{DetailValue, Error, RpcError};

/// Returns the exception of a code. `details` are its facts for programs.
fn exception(
    py: Python<'_>,
    code: &str,
    message: &str,
    retry_after_ms: Option<u32>,
    details: Option<Bound<'_, PyDict>>,
) -> PyErr {
    static FROM_CODE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = FROM_CODE
        .import(py, "sealwire.errors", "_from_code")
        .and_then(|from_code| from_code.call1((code, message, retry_after_ms, details)));
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Returns `other` in place of an exception that the conversion of a value raised, because its text
/// can hold the value. An exception that says nothing about the value is returned unchanged:
/// Ctrl-C, the end of the program or of a task, and lack of memory.
pub(crate) fn unless_passed_on(
    py: Python<'_>,
    raised: PyErr,
    other: impl FnOnce() -> PyErr,
) -> PyErr {
    if is_passed_on(py, &raised) {
        raised
    } else {
        other()
    }
}

/// Returns true for an exception that a conversion must not replace.
pub(crate) fn is_passed_on(py: Python<'_>, raised: &PyErr) -> bool {
    raised.is_instance_of::<PyMemoryError>(py) || !raised.is_instance_of::<PyException>(py)
}

/// Returns the exception for a response that breaks the protocol.
pub(crate) fn protocol(message: &str) -> PyErr {
    Python::attach(|py| exception(py, "protocol", message, None, None))
}

/// Returns the exception for a client that can no longer be used, or not here.
pub(crate) fn unusable(py: Python<'_>, message: &str) -> PyErr {
    exception(py, "config", message, None, None)
}

/// Returns the exception for an error of the client.
pub(crate) fn of_client(py: Python<'_>, error: &Error) -> PyErr {
    let code = match error {
        Error::Rpc(error) => return of_engine(py, error).unwrap_or_else(|failed| failed),
        Error::Deadline => "deadline_exceeded",
        Error::Disconnected { .. } => "disconnected",
        Error::Connect(_) => "connect",
        Error::Tls(_) | Error::Config(_) => "config",
        Error::RequestTooLong { .. } | Error::ResponseTooLarge(_) => "too_large",
        Error::Payload(_) | Error::Protocol(_) | Error::Value(_) => "protocol",
    };
    let mut message = error.to_string();
    // The source of the error tells why no connection could be made.
    if let (Error::Connect(_) | Error::Tls(_), Some(source)) = (error, error.source()) {
        message = format!("{message}: {source}");
    }
    exception(py, code, &message, None, None)
}

fn of_engine(py: Python<'_>, error: &RpcError) -> PyResult<PyErr> {
    let details = PyDict::new(py);
    for detail in &error.details {
        match &detail.value {
            DetailValue::Text(text) => details.set_item(&*detail.key, &**text)?,
            DetailValue::Number(number) => details.set_item(&*detail.key, number)?,
            DetailValue::Errors(errors) => {
                let list = PyList::empty(py);
                for part in errors {
                    let entry = PyDict::new(py);
                    entry.set_item("path", &part.path)?;
                    entry.set_item("code", part.code.name())?;
                    entry.set_item("message", &*part.message)?;
                    list.append(entry)?;
                }
                details.set_item(&*detail.key, list)?;
            }
        }
    }
    Ok(exception(
        py,
        error.code.name(),
        &error.message,
        error.retry_after_ms,
        Some(details),
    ))
}
