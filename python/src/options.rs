//! Keyword arguments of the Python functions.
//!
//! A single reader serves all functions, so that each option is read and rejected alike in every
//! method. An option that is `None` counts as absent. Messages name options and never values.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::errors;

/// The keyword arguments of one call that have not been read.
pub(crate) struct Options<'py> {
    /// The name of the Python function, for messages.
    function: String,
    left: Bound<'py, PyDict>,
}

impl<'py> Options<'py> {
    /// Takes a copy of `given`.
    pub(crate) fn new(function: &str, given: &Bound<'py, PyDict>) -> PyResult<Self> {
        Ok(Self {
            function: function.to_owned(),
            left: given.copy()?,
        })
    }

    fn object(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let found = self.left.get_item(name)?;
        if found.is_some() {
            self.left.del_item(name)?;
        }
        Ok(found.filter(|value| !value.is_none()))
    }

    /// Creates the error for an option of another type.
    pub(crate) fn wrong(&self, name: &str, expected: &str) -> PyErr {
        PyTypeError::new_err(format!(
            "{}() argument '{name}' must be {expected}",
            self.function
        ))
    }

    /// Reads an option. `expected` completes the sentence "must be".
    pub(crate) fn take<T: FromPyObjectOwned<'py>>(
        &self,
        name: &str,
        expected: &str,
    ) -> PyResult<Option<T>> {
        let Some(value) = self.object(name)? else {
            return Ok(None);
        };
        // Reading an option can run Python code, for example of a sequence.
        let wrong = |error: T::Error| {
            let raised: PyErr = error.into();
            errors::unless_passed_on(value.py(), raised, || self.wrong(name, expected))
        };
        value.extract().map(Some).map_err(wrong)
    }

    /// Reads an option that must be given.
    pub(crate) fn required<T: FromPyObjectOwned<'py>>(
        &self,
        name: &str,
        expected: &str,
    ) -> PyResult<T> {
        self.take(name, expected)?.ok_or_else(|| {
            PyTypeError::new_err(format!(
                "{}() missing required keyword argument '{name}'",
                self.function
            ))
        })
    }

    /// Reads bytes, or a text as its UTF-8 bytes.
    pub(crate) fn bytes(&self, name: &str) -> PyResult<Option<Vec<u8>>> {
        let Some(value) = self.object(name)? else {
            return Ok(None);
        };
        bytes_of(&value)
            .map(Some)
            .ok_or_else(|| self.wrong(name, "bytes or a string"))
    }

    /// Reads a list of strings. A single string is rejected.
    pub(crate) fn texts(&self, name: &str) -> PyResult<Option<Vec<String>>> {
        self.take(name, "a list of strings")
    }

    /// Reads one of a closed set of names.
    pub(crate) fn named<T: Copy>(
        &self,
        name: &str,
        all: &[T],
        name_of: impl Fn(T) -> &'static str,
    ) -> PyResult<Option<T>> {
        let Some(given) = self.take::<String>(name, "a string")? else {
            return Ok(None);
        };
        let found = all.iter().copied().find(|value| name_of(*value) == given);
        found.map(Some).ok_or_else(|| {
            let names: Vec<_> = all
                .iter()
                .map(|value| format!("'{}'", name_of(*value)))
                .collect();
            PyValueError::new_err(format!(
                "{}() argument '{name}' must be one of {}",
                self.function,
                names.join(", ")
            ))
        })
    }

    /// Rejects options that were not read.
    pub(crate) fn finish(self) -> PyResult<()> {
        let Some(unknown) = self.left.keys().iter().next() else {
            return Ok(());
        };
        Err(PyTypeError::new_err(format!(
            "{}() got an unexpected keyword argument '{unknown}'",
            self.function
        )))
    }
}

/// Returns bytes, or the UTF-8 bytes of a text.
pub(crate) fn bytes_of(value: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Some(bytes.as_bytes().to_vec());
    }
    let text = value.cast::<PyString>().ok()?;
    Some(text.to_str().ok()?.as_bytes().to_vec())
}
