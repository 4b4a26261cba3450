//! Fields that are not replaced: why, and what that does to their call.

use sealwire_mask::MaskingError;
use sealwire_payload::Path;
use sealwire_wire::{ErrorCode, FieldError, OnError};

use crate::jobs::cancel_token::StopReason;

/// Why one field was refused. `on_error` decides what becomes of its call. None carries anything of
/// the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldProblem {
    /// It claims to be an envelope and does not open: one variant, so nobody can tell why.
    #[error("cannot open")]
    CannotOpen,
    /// It carries a data role that the operator has not listed. Which one is for those who may open
    /// it.
    #[error("a data role of the value forbids it")]
    Role,
    /// A map, an array or an extension, for a format of strings, numbers, booleans and files.
    #[error("the format has no form for this value")]
    NoForm,
    /// Binary under a call's role.
    #[error("the format has no role for binary")]
    FileRole,
    /// Text or binary beyond what the format's readers take.
    #[error("the format holds at most 25 MiB in a value")]
    TooLong,
    /// The collection's tokens are digits, and it is something else.
    #[error("not a string of 1 to 64 digits, as the collection's format wants it")]
    NotDigits,
    /// The collection's tokens are card numbers, and it is something else.
    #[error("not a card number of 12 to 19 digits, as the collection's format wants it")]
    NotCard,
    /// Longer than what a token may stand for here.
    #[error("longer than limits.token_value_bytes_max")]
    ValueTooLong,
    /// A token that is not there, has expired, or was made under another context: nobody can tell
    /// which.
    #[error("no such token")]
    NoToken,
    /// No rule names it, or its rule's function has nothing for it.
    #[error("{0}")]
    NotMasked(MaskingError),
    /// A token whose value was not kept.
    #[error("a one-way token leads back to nothing")]
    OneWay,
}

impl FieldProblem {
    /// The code a peer sees. No `_` arm: a new variant must choose its code here.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::CannotOpen => ErrorCode::CannotOpen,
            Self::Role | Self::OneWay => ErrorCode::Forbidden,
            Self::NoForm
            | Self::FileRole
            | Self::NotDigits
            | Self::NotCard
            | Self::NotMasked(_) => ErrorCode::BadRequest,
            Self::TooLong | Self::ValueTooLong => ErrorCode::TooLarge,
            Self::NoToken => ErrorCode::NotFound,
        }
    }
}

/// Why one field was not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldFault {
    /// It was refused.
    #[error("{0}")]
    Refused(#[from] FieldProblem),
    /// Turns a field's rejection into the failure of the call, at the path that the walk reported.
    #[error("{0}")]
    RefusedAt(FieldProblem, String),
    /// The crypto library failed.
    #[error("the crypto library failed")]
    Library,
    /// The call was stopped.
    #[error("stopped")]
    Stopped(StopReason),
    /// More tokens than one call may have.
    #[error("more than {0} tokens")]
    TooManyFields(usize),
    /// No token of the collection's format was found that is free.
    #[error("no token of this format is free")]
    Exhausted,
}

/// Field errors of one call, under `on_error`.
#[derive(Debug)]
pub struct FieldErrors {
    on_error: OnError,
    listed_max: usize,
    /// Bytes that may still be listed.
    bytes_left: usize,
    /// The first ones.
    pub listed: Vec<FieldError>,
    /// How many more there were.
    pub omitted: u64,
}

impl FieldErrors {
    /// Lists at most `listed_max`, and no more bytes than the reply has set aside for them: see
    /// [`FieldErrors::bytes`].
    pub fn new(on_error: OnError, listed_max: usize, fields: u64) -> Self {
        Self {
            on_error,
            listed_max,
            bytes_left: Self::bytes(listed_max, fields),
            listed: Vec::new(),
            omitted: 0,
        }
    }

    /// Effect of one bad field.
    pub fn on_error(&self) -> OnError {
        self.on_error
    }

    /// Bytes of a reply that errors may take. A path repeats the keys above its field: listing
    /// every long one could make a reply a hundred times as large as its request.
    pub fn bytes(listed_max: usize, fields: u64) -> usize {
        usize::try_from(fields)
            .unwrap_or(usize::MAX)
            .min(listed_max)
            .saturating_mul(ERROR_BYTES)
    }

    /// Fields that were refused, listed or not.
    pub fn count(&self) -> u64 {
        self.listed.len() as u64 + self.omitted
    }

    fn report(&mut self, path: &Path<'_>, code: ErrorCode) {
        if self.listed.len() < self.listed_max {
            let path = bounded(path);
            if let Some(left) = self.bytes_left.checked_sub(ERROR_FRAME_BYTES + path.len()) {
                self.bytes_left = left;
                self.listed.push(FieldError { path, code });
                return;
            }
            // The first ones are listed, not the short ones; and no more paths are written to be
            // thrown away.
            self.listed_max = self.listed.len();
        }
        self.omitted += 1;
    }

    /// Effect of a field's error on its call.
    ///
    /// # Errors
    ///
    /// The call ends of it.
    pub fn decide(&mut self, path: &Path<'_>, fault: FieldFault) -> Result<(), FieldFault> {
        match (fault, self.on_error) {
            (FieldFault::Refused(refusal), OnError::Report) => {
                self.report(path, refusal.code());
                Ok(())
            }
            (FieldFault::Refused(refusal), OnError::Fail) => {
                Err(FieldFault::RefusedAt(refusal, bounded(path)))
            }
            (fault, _) => Err(fault),
        }
    }
}

/// Bytes set aside for each error in a reply: its two keys, its code and a path of usual length.
const ERROR_BYTES: usize = 128;
/// Of those, what is not the path.
const ERROR_FRAME_BYTES: usize = 32;

/// A path as text, cut where the wire cuts it, so that long keys over many bad fields stay small
/// here too.
fn bounded(path: &Path<'_>) -> String {
    path.prefix(sealwire_wire::FIELD_PATH_BYTES_MAX)
}
