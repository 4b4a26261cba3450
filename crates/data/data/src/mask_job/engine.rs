//! The interface to the engine, which masks values and has the keys. A job only finds the values.
//!
//! [`sealwire_mask_rules::payload`] encodes a batch of columns as the document of a `mask` RPC.
//! [`decode_response`] decodes the response.

use std::future::Future;

use sealwire_mask_rules::Column;
use thiserror::Error;

/// A reason why a batch was not masked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The function does not fit a value.
    #[error("value {value} of column {column}: {why}")]
    Unfit {
        /// Index of the column in the batch.
        column: usize,
        /// Index of the value in the column.
        value: usize,
        /// The function's requirement. Never contains the value.
        why: String,
    },
    /// The engine rejected the request or is unreachable.
    #[error("{0}")]
    Failed(String),
}

/// Masks batches of values with an app's secret.
pub trait Engine: Send + Sync + 'static {
    /// Returns the masked values: per column a sequence of MessagePack scalars, one per value, in
    /// the same order. Jobs call this concurrently for several batches. The future can be dropped;
    /// its results are then discarded.
    fn mask(
        &self,
        columns: Vec<Column>,
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, EngineError>> + Send;
}

/// Decodes the masked values from the response document for these columns.
///
/// # Errors
/// [`EngineError::Failed`] if the response does not have the form of the request.
pub fn decode_response(document: &[u8], columns: &[Column]) -> Result<Vec<Vec<u8>>, EngineError> {
    sealwire_mask_rules::answers(document, columns).map_err(|_| {
        EngineError::Failed(
            "the engine's response does not have the structure of the request".to_owned(),
        )
    })
}
