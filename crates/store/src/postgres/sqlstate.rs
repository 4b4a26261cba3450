//! What went wrong with a statement, and so what to do about it.

use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use crate::StoreError;

/// Why a statement has no result. Texts name SQLSTATEs and constraints, never rows.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The connection is of no use any more. What was sent may have taken effect.
    Lost(String),
    /// What was prepared does not fit the schema, or is not known on this connection. Nothing happened.
    Stale(String),
    /// It gave way to another transaction. Nothing happened.
    Clash(String),
    /// The database could not do it now: no disk, no memory, no time. Nothing happened.
    Busy(String),
    /// A unique key is there already. Nothing happened.
    Unique,
    /// It is not to be had, however often it is asked for. Nothing happened.
    Refused(String),
}

impl Fault {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Lost(what) | Self::Stale(what) | Self::Clash(what) | Self::Busy(what) => {
                StoreError::Unavailable(what)
            }
            Self::Unique => damaged("a row has this unique key already"),
            Self::Refused(what) => damaged(&what),
        }
    }
}

/// What the database holds or takes is not what this program expects of it.
pub(super) fn damaged(what: &str) -> StoreError {
    StoreError::Damaged { place: "PostgreSQL, schema sealwire".into(), what: what.to_owned() }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        let what = describe(&error);
        let Some(code) = error.code() else { return Self::Lost(what) };
        // Some of its own states it has no names for.
        match code.code() {
            "26000" => return Self::Stale(what),
            "40003" | "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25006" => return Self::Lost(what),
            _ => {}
        }
        match code {
            &SqlState::UNIQUE_VIOLATION => Self::Unique,
            &SqlState::FEATURE_NOT_SUPPORTED => Self::Stale(what),
            &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED => Self::Clash(what),
            &SqlState::QUERY_CANCELED | &SqlState::LOCK_NOT_AVAILABLE => Self::Busy(what),
            code => match code.code().get(..2) {
                Some("08") => Self::Lost(what),
                Some("53" | "58" | "XX") => Self::Busy(what),
                _ => Self::Refused(what),
            },
        }
    }
}

/// The causes from the outermost in; of what the server says the message and its state, never the detail, which holds keys.
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
