//! Determines the outcome of an upload's completion: a store can complete an upload although its
//! response reports an error.
//!
//! A response can get lost, and a repeated completion then finds the object of the first
//! completion. So an upload carries a random marker in the user metadata of its object. The marker
//! distinguishes this object from the object of another writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use hyper::StatusCode;
use object_store::{Attribute, Attributes, GetResult};

use super::S3Object;
use super::failure::{Purpose, job_error, status_of};
use crate::mask_job::error::JobError;

/// Name of the user metadata that holds the marker. As a header it is `x-amz-meta-sealwire-upload`.
const MARKER: Attribute = Attribute::Metadata(std::borrow::Cow::Borrowed("sealwire-upload"));

/// The completion of an upload. The upload shares it with its connector, which sees each attempt.
#[derive(Debug, Default)]
pub(super) struct Completion {
    /// True if an existing object must not be replaced.
    pub(super) create_only: AtomicBool,
    /// True if an attempt may have taken effect, and no response confirms or denies this.
    is_unsure: AtomicBool,
}

impl Completion {
    /// Starts an attempt, whose request is about to be sent.
    pub(super) fn attempt(self: &Arc<Self>) -> Attempt {
        Attempt {
            completion: Arc::clone(self),
            is_settled: false,
        }
    }

    pub(super) fn is_unsure(&self) -> bool {
        self.is_unsure.load(Ordering::Relaxed)
    }
}

/// An attempt to complete an upload. If the attempt is dropped without a clear response, the
/// outcome of the completion is unsure.
pub(super) struct Attempt {
    completion: Arc<Completion>,
    is_settled: bool,
}

impl Attempt {
    /// Finishes the attempt with a response. Returns the body for `object_store`.
    pub(super) fn end(mut self, status: StatusCode, body: Bytes) -> Bytes {
        if status.is_success() {
            if !is_result(&body) {
                return body;
            }
            self.is_settled = true;
            // `object_store` treats a body as an error if it contains the name of an error element,
            // even within the object's name.
            return Bytes::from_static(
                b"<CompleteMultipartUploadResult><ETag></ETag></CompleteMultipartUploadResult>",
            );
        }
        // A store that does not support conditions does nothing. Any other server error can come
        // from a gateway before the store.
        self.is_settled = !status.is_server_error() || status == StatusCode::NOT_IMPLEMENTED;
        body
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_settled {
            self.completion.is_unsure.store(true, Ordering::Relaxed);
        }
    }
}

/// Returns true if the body of a response is the result of a completion. An error of the store has
/// another root element. Text within XML contains no `<`.
fn is_result(body: &[u8]) -> bool {
    contains(body, b"<CompleteMultipartUploadResult")
        && contains(body, b"</CompleteMultipartUploadResult>")
}

fn contains(body: &[u8], tag: &[u8]) -> bool {
    body.windows(tag.len()).any(|bytes| bytes == tag)
}

/// A random marker of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker(String);

impl Marker {
    pub(super) fn new() -> Result<Self, JobError> {
        let mut bytes = [0; 16];
        let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
        random
            .fill(&mut bytes)
            .map_err(|_| JobError::Plan("the system gives no random bytes".to_owned()))?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// Returns the attributes of the upload's object.
    pub(super) fn attributes(&self) -> Attributes {
        Attributes::from_iter([(MARKER, self.0.clone())])
    }

    /// Determines the owner of the object that was found. `length` is the length of the upload's
    /// object in bytes.
    pub(super) fn owner_of(&self, found: &GetResult, length: u64) -> Found {
        match found.attributes.get(&MARKER) {
            Some(marker) if **marker == *self.0 => Found::Ours,
            // The store can drop user metadata, so the length is compared instead.
            None if found.meta.size == length => Found::Unmarked,
            _ => Found::Others,
        }
    }
}

/// The result of the check for an object after a failed completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Ours,
    /// An object of another upload.
    Others,
    /// An object without a marker, with the same length as ours.
    Unmarked,
    Nothing,
    /// The check failed, or was not needed.
    Unknown,
}

/// Returns true if the object can exist although a completion failed with this status.
pub(super) fn needs_check(status: Option<u16>, is_unsure: bool) -> bool {
    is_unsure || matches!(status, Some(404 | 409 | 412))
}

/// Returns the outcome of a completion that failed with `error`. `create_only` is true if an
/// existing object must not be replaced.
pub(super) fn outcome(
    object: &S3Object,
    error: &object_store::Error,
    found: Found,
    is_unsure: bool,
    create_only: bool,
) -> Result<(), JobError> {
    let status = status_of(error);
    let exists = match found {
        Found::Ours => return Ok(()),
        Found::Others => true,
        Found::Unmarked => !is_unsure && matches!(status, Some(409 | 412)),
        // The condition failed, so an object existed.
        Found::Nothing | Found::Unknown => !is_unsure && status == Some(412),
    };
    if exists && create_only {
        return Err(JobError::Exists {
            path: object.to_string().into(),
        });
    }
    Err(job_error(object, Purpose::Complete { is_unsure }, error))
}
