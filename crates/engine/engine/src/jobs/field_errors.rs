//! Errors of single fields, and their effect on the request.

use sealwire_mask::MaskingError;
use sealwire_payload::Path;
use sealwire_wire::{ErrorCode, FieldError, OnError};

use crate::jobs::cancel_token::StopReason;
use crate::jobs::item_contexts::ContextProblem;

/// The reason for which one field was not replaced. `on_error` decides the effect on the request.
/// No variant contains data of the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldProblem {
    /// The field has the form of an envelope but does not open. There is only one variant, so that
    /// a client cannot learn the cause.
    #[error("cannot open")]
    CannotOpen,
    /// The field carries a data role that the operator has not listed. The text does not name the
    /// role, which only principals who can open the field may learn.
    #[error("the Evervault data role of the value does not permit decryption for this app")]
    Role,
    /// The field is a map, an array or an extension, and the format has only strings, numbers,
    /// booleans and files.
    #[error("the output format cannot represent this value")]
    NoForm,
    /// The field is binary, and the request sets a data role.
    #[error("the output format has no data role for binary values")]
    FileRole,
    /// Text or binary is longer than the format's readers accept.
    #[error("the output format holds at most 25 MiB in a value")]
    TooLong,
    /// The collection's tokens are digits, and the field contains something else.
    #[error("not a string of 1 to 64 digits, as the format of the collection requires")]
    NotDigits,
    /// The collection's tokens are card numbers, and the field is not a card number.
    #[error("not a card number of 12 to 19 digits, as the format of the collection requires")]
    NotCard,
    /// The value is longer than the limit of this engine for values of tokens.
    #[error("the value is longer than limits.token_value_bytes_max of the engine")]
    ValueTooLong,
    /// The token does not exist, has expired, or was made under another context. A client cannot
    /// tell these cases apart.
    #[error(
        "the token does not exist: it was deleted or has expired, or belongs to another collection"
    )]
    NoToken,
    /// No rule selects the field, or the rule's function does not apply to the value.
    #[error("{0}")]
    NotMasked(MaskingError),
    /// The request has a context for each item of the document, and the field has none.
    #[error("{0}")]
    NoContext(ContextProblem),
    /// The token is one-way, so its value is not stored.
    #[error(
        "a token of a one-way collection cannot be detokenized, because its value is not stored"
    )]
    OneWay,
}

impl FieldProblem {
    /// Returns the code that a client sees. No `_` arm: a new variant must choose its code here.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::CannotOpen => ErrorCode::CannotOpen,
            Self::Role | Self::OneWay => ErrorCode::Forbidden,
            Self::NoForm
            | Self::FileRole
            | Self::NotDigits
            | Self::NotCard
            | Self::NoContext(_)
            | Self::NotMasked(_) => ErrorCode::BadRequest,
            Self::TooLong | Self::ValueTooLong => ErrorCode::TooLarge,
            Self::NoToken => ErrorCode::NotFound,
        }
    }
}

/// The failure of the transform of one field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldFailure {
    /// The field could not be replaced.
    #[error("{0}")]
    Problem(#[from] FieldProblem),
    /// The field at this path could not be replaced, and the request fails.
    #[error("{0}")]
    ProblemAt(FieldProblem, String),
    /// The crypto library failed.
    #[error("the crypto library failed")]
    Library,
    /// The request was stopped.
    #[error("stopped")]
    Stopped(StopReason),
    /// The request exceeds this maximum number of tokens.
    #[error("more than {0} tokens")]
    TooManyFields(usize),
    /// Every tried token of the collection's format is already in use.
    #[error("all tokens of this format are in use; create a collection with a longer format")]
    Exhausted,
}

/// Field errors of one request, under `on_error`.
#[derive(Debug)]
pub struct FieldErrors {
    on_error: OnError,
    listed_max: usize,
    /// Bytes left for listed errors.
    bytes_left: usize,
    /// The first errors.
    pub listed: Vec<FieldError>,
    /// Number of errors that are not listed.
    pub omitted: u64,
}

impl FieldErrors {
    /// Creates a list of at most `listed_max` errors. The list takes at most the bytes that the
    /// response reserves for errors: see [`FieldErrors::bytes`].
    pub fn new(on_error: OnError, listed_max: usize, fields: u64) -> Self {
        Self {
            on_error,
            listed_max,
            bytes_left: Self::bytes(listed_max, fields),
            listed: Vec::new(),
            omitted: 0,
        }
    }

    /// Returns the effect of one failed field.
    pub fn on_error(&self) -> OnError {
        self.on_error
    }

    /// Returns the maximum bytes of errors in a response. A path repeats the keys above its field,
    /// so a list of every long path could make a response a hundred times as large as its request.
    pub fn bytes(listed_max: usize, fields: u64) -> usize {
        usize::try_from(fields)
            .unwrap_or(usize::MAX)
            .min(listed_max)
            .saturating_mul(ERROR_BYTES)
    }

    /// Returns the number of failed fields, listed or not.
    pub fn count(&self) -> u64 {
        self.listed.len() as u64 + self.omitted
    }

    fn report(&mut self, path: &Path<'_>, code: ErrorCode) {
        if self.listed.len() < self.listed_max {
            let path = bounded_text(path);
            if let Some(left) = self.bytes_left.checked_sub(ERROR_FRAME_BYTES + path.len()) {
                self.bytes_left = left;
                self.listed.push(FieldError { path, code });
                return;
            }
            // The list contains the first errors instead of the shortest ones, and the engine
            // writes no more paths only to discard them.
            self.listed_max = self.listed.len();
        }
        self.omitted += 1;
    }

    /// Records a field's failure, if the request continues after it.
    ///
    /// # Errors
    ///
    /// The failure ends the request.
    pub fn handle(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        match (failure, self.on_error) {
            (FieldFailure::Problem(problem), OnError::Report) => {
                self.report(path, problem.code());
                Ok(())
            }
            (FieldFailure::Problem(problem), OnError::Fail) => {
                Err(FieldFailure::ProblemAt(problem, bounded_text(path)))
            }
            (failure, _) => Err(failure),
        }
    }
}

/// Bytes reserved for each error in a response: the error's two keys, its code and a path of usual
/// length.
const ERROR_BYTES: usize = 128;
/// Bytes of [`ERROR_BYTES`] for everything except the path.
const ERROR_FRAME_BYTES: usize = 32;

/// Returns a path as text, cut at the same length as on the wire, so that long keys above many
/// failed fields take little memory.
fn bounded_text(path: &Path<'_>) -> String {
    path.prefix(sealwire_wire::FIELD_PATH_BYTES_MAX)
}
