//! Classification of statement errors by the required reaction.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use sealwire_store::StoreError;

/// The reason why a statement has no result. Texts contain SQLSTATEs and constraint names, but
/// never row content.
#[derive(Clone, Debug)]
pub(super) enum SqlFault {
    /// The connection is unusable. The statement may have taken effect.
    Lost(String),
    /// A prepared statement does not fit the schema, or is unknown on this connection. The
    /// statement had no effect.
    Stale(String),
    /// The statement was aborted in favor of another transaction. The statement had no effect.
    Conflict(String),
    /// The database lacks disk, memory or time. The statement had no effect.
    Busy(String),
    /// A unique key already exists. The statement had no effect.
    Unique,
    /// The statement can never succeed. The statement had no effect.
    Invalid(String),
}

impl SqlFault {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Lost(what) | Self::Stale(what) | Self::Conflict(what) | Self::Busy(what) => {
                StoreError::Unavailable(what)
            }
            Self::Unique => damaged("another row already has this unique key"),
            Self::Invalid(what) => damaged(&what),
        }
    }
}

/// Returns the error for stored or accepted data that does not match this program's expectations.
pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::Damaged {
        place: "PostgreSQL, schema sealwire".into(),
        what: what.to_owned(),
    }
}

impl From<Error> for SqlFault {
    fn from(error: Error) -> Self {
        let what = describe(&error);
        let Some(code) = error.code() else {
            return Self::Lost(what);
        };

        // [`SqlState`] has no names for some states.
        match code.code() {
            "26000" => return Self::Stale(what),
            // An earlier statement failed without a receiver for its error, so the state of the
            // connection is unknown.
            "25P02" => return Self::Lost(what),
            "40003" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25006" => {
                return Self::Lost(what);
            }
            _ => {}
        }

        match code {
            &SqlState::UNIQUE_VIOLATION => Self::Unique,
            &SqlState::FEATURE_NOT_SUPPORTED => Self::Stale(what),
            &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED => {
                Self::Conflict(what)
            }
            &SqlState::QUERY_CANCELED | &SqlState::LOCK_NOT_AVAILABLE => Self::Busy(what),
            code => match code.code().get(..2) {
                Some("08") => Self::Lost(what),
                Some("53" | "58" | "XX") => Self::Busy(what),
                _ => Self::Invalid(what),
            },
        }
    }
}

/// Describes an error with its causes, outermost first. Server errors show message and state, but
/// never the detail, which contains keys.
pub(super) fn describe(error: &Error) -> String {
    if let Some(told) = error.as_db_error() {
        return format!("{} ({})", told.message(), told.code().code());
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
