//! The description of the HTTP interface in OpenAPI 3.1, for generators of clients.
//!
//! `docs/openapi.json` is generated from the tables of parameters (`sealwire-wire`) and from the
//! contract (`proto/README.md`). The tests of this module compare the file with both, and write
//! the file anew with `SEALWIRE_BLESS=1`.

use bytes::Bytes;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};

#[cfg(test)]
mod contract_page;
#[cfg(test)]
mod generator;
#[cfg(test)]
mod schemas;
#[cfg(test)]
mod tests;

/// The path of the description.
pub(crate) const PATH: &str = "/openapi.json";

const DOCUMENT: &[u8] = include_bytes!("../../../../docs/openapi.json");

/// Returns the response with the description.
pub(crate) fn response() -> Response<Bytes> {
    let mut response = Response::new(Bytes::from_static(DOCUMENT));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(crate::body::JSON));
    // Another version of the engine has another description.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
