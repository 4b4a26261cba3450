//! The native part of the Python package `sealwire`: the client, conversion of values, and Arrow
//! columns.
//!
//! The Python files of the package hold the signatures; this module does the work. A request is
//! built from Python values while the interpreter is held ([`request`]), and sent without it. The
//! calling thread sends it ([`client`]), or the client's runtime for an event loop
//! ([`event_loop`]). Columns are sent in batches ([`arrow`]).

mod arrow;
mod client;
mod errors;
mod event_loop;
mod options;
mod request;
mod results;
mod value;

use pyo3::prelude::*;

/// The module `sealwire._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<client::NativeClient>()?;
    module.add_class::<event_loop::EventLoop>()?;
    module.add_class::<request::Request>()?;
    module.add_class::<arrow::ArrowTable>()?;
    module.add_class::<arrow::ArrowBatch>()?;
    module.add_class::<arrow::ArrowColumn>()?;
    module.add_class::<arrow::Rules>()?;
    module.add_class::<arrow::Discovery>()?;
    module.add_class::<arrow::DiscoveredField>()?;
    module.add_function(wrap_pyfunction!(arrow::discover, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::transform, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::check_columns, module)?)?;
    module.add_function(wrap_pyfunction!(arrow::mask_by_rules, module)?)?;
    module.add_class::<results::Document>()?;
    module.add_class::<results::FieldError>()?;
    module.add_class::<value::Extension>()?;
    module.add_function(wrap_pyfunction!(request::request, module)?)?;
    Ok(())
}
