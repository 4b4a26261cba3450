//! Reasons why a request to a store failed, and advice.
//!
//! Messages never quote a response: messages contain only the status and known error codes.

use std::error::Error as StdError;

use sealwire_service::http_client::HttpClientError;

use super::S3Object;
use crate::mask_job::error::JobError;

/// A request was rejected, or got no usable response.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreFailure {
    #[error("{}", exchange_text(.0))]
    Exchange(#[from] HttpClientError),
    #[error("status {status}{}", .code.map(|code| format!(", {code}")).unwrap_or_default())]
    Status {
        status: u16,
        code: Option<&'static str>,
    },
}

/// Returns a message with the object store, and the settings that can be wrong.
fn exchange_text(error: &HttpClientError) -> String {
    match error {
        HttpClientError::Connect(error) => format!("no connection to the object store: {error}"),
        HttpClientError::ConnectTimeout(limit) => format!(
            "no connection to the object store within {} s",
            limit.as_secs()
        ),
        HttpClientError::Tls(error) => format!(
            "TLS: {error}; is --s3-ca (or AWS_CA_BUNDLE) the authority of the object store's certificate, and AWS_ENDPOINT_URL its name?"
        ),
        HttpClientError::Broken => "the connection to the object store broke".to_owned(),
        HttpClientError::Timeout(limit) => {
            format!(
                "no response of the object store within {} s",
                limit.as_secs()
            )
        }
        HttpClientError::TooLong(_) => {
            "the response of the object store is longer than requested".to_owned()
        }
        HttpClientError::NotHttp => {
            "the response of the object store is not HTTP: see AWS_ENDPOINT_URL".to_owned()
        }
        HttpClientError::NotLoopback => format!("{error}: use https://, or --s3-plain"),
    }
}

/// The purpose of a request, which determines the advice in an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Read,
    Write,
    /// Completion of an upload. If `is_unsure`, the completion may have taken effect.
    Complete {
        is_unsure: bool,
    },
}

/// Appended to the error of a completion that may have taken effect.
pub(super) const NOT_KNOWN: &str =
    "; whether the object was made is not known: look before you repeat the job";

/// Known error codes, with advice. Unknown codes are text of the server and are not quoted.
const CODES: &[(&str, &str)] = &[
    ("AccessDenied", ""),
    ("AllAccessDisabled", "the account or the bucket is disabled"),
    (
        "AuthorizationHeaderMalformed",
        "the bucket is in another region: set AWS_REGION",
    ),
    ("EntityTooLarge", "the store accepts no object of this size"),
    ("EntityTooSmall", "the store demands larger parts"),
    ("ExpiredToken", "the credentials are expired: get new ones"),
    (
        "IllegalLocationConstraintException",
        "the bucket is in another region: set AWS_REGION",
    ),
    ("InternalError", ""),
    (
        "InvalidAccessKeyId",
        "the store does not know the access key: see AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL",
    ),
    (
        "InvalidBucketName",
        "the store does not accept the bucket's name",
    ),
    (
        "InvalidObjectState",
        "the object is archived: restore it first",
    ),
    (
        "InvalidToken",
        "the session token does not fit the access key: see AWS_SESSION_TOKEN",
    ),
    (
        "NoSuchBucket",
        "the bucket does not exist: see its name, AWS_ENDPOINT_URL and AWS_REGION",
    ),
    ("NoSuchKey", "the object does not exist"),
    (
        "NoSuchUpload",
        "the unfinished upload is gone: somebody else, or a rule of the bucket, ended it",
    ),
    ("NotImplemented", "the store lacks this function"),
    (
        "PermanentRedirect",
        "the bucket is in another region: set AWS_REGION",
    ),
    ("PreconditionFailed", ""),
    ("QuotaExceeded", "the account's quota is exhausted"),
    ("RequestTimeTooSkewed", "this machine's clock is wrong"),
    ("ServiceUnavailable", ""),
    (
        "SignatureDoesNotMatch",
        "the secret key is wrong: see AWS_SECRET_ACCESS_KEY",
    ),
    ("SlowDown", ""),
    (
        "TemporaryRedirect",
        "the bucket is in another region: set AWS_REGION",
    ),
];

/// Returns the error code of a response if the code is known.
pub(super) fn known_code(body: &[u8]) -> Option<&'static str> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    CODES
        .iter()
        .find(|(known, _)| *known == code)
        .map(|(known, _)| *known)
}

/// Finds the failure among the causes of an error.
pub(super) fn failure_of(error: &object_store::Error) -> Option<&StoreFailure> {
    let mut source: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(failure) = cause.downcast_ref() {
            return Some(failure);
        }
        source = cause.source();
    }
    None
}

/// Returns the status of a rejected request.
pub(super) fn status_of(error: &object_store::Error) -> Option<u16> {
    match failure_of(error) {
        Some(StoreFailure::Status { status, .. }) => Some(*status),
        _ => None,
    }
}

/// Converts an error for a job. Error texts of `object_store` can quote the server, so they are
/// dropped.
pub(super) fn job_error(
    object: &S3Object,
    purpose: Purpose,
    error: &object_store::Error,
) -> JobError {
    let mut what = match failure_of(error) {
        Some(failure) => failure_text(purpose, failure),
        None => "the object store's response does not conform to the S3 protocol".to_owned(),
    };
    if purpose == (Purpose::Complete { is_unsure: true }) {
        what += NOT_KNOWN;
    }
    JobError::Store {
        name: object.to_string(),
        what,
    }
}

fn failure_text(purpose: Purpose, failure: &StoreFailure) -> String {
    let StoreFailure::Status { status, code } = failure else {
        return failure.to_string();
    };
    let advice = code
        .and_then(|code| CODES.iter().find(|(known, _)| *known == code))
        .map_or("", |(_, advice)| *advice);
    let advice = match (advice, status) {
        ("", 301 | 307) => "the bucket is in another region: set AWS_REGION",
        ("", 401 | 403) if purpose == Purpose::Read => {
            "access denied: the credentials need s3:GetObject for this object, and s3:ListBucket to tell that it is missing"
        }
        ("", 401 | 403) => {
            "access denied: the credentials need s3:PutObject and s3:AbortMultipartUpload for this object"
        }
        ("", 404) => "the object or the bucket does not exist",
        ("", 412) if purpose == Purpose::Read => {
            "the object changed while it was read: start the job again"
        }
        ("", 409 | 412) => "another request made or changed the object at the same time",
        ("", 429 | 500..=599) => "the object store failed or throttles: try again later",
        ("", _) => "an unexpected response of the object store",
        (advice, _) => advice,
    };
    format!("{advice} ({failure})")
}
