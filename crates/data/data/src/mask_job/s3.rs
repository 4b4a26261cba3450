//! Objects in S3-compatible stores: `s3://bucket/key`, read by ranges and written in parts.
//!
//! The crate `object_store` implements the protocol, signs requests and retries failed requests.
//! The requests go through a connector of this module, which trusts only the configured authority
//! and limits each request in time and size.
//!
//! Jobs read and write in threads that can block, so all functions here block. A separate thread of
//! this module drives the sockets.

mod completion;
mod connector;
mod failure;
mod read;
mod settings;
#[cfg(test)]
mod tests;
mod upload;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path as Key;
use object_store::{BackoffConfig, RetryConfig};
use tokio::runtime::{Builder, Runtime};

use crate::mask_job::error::JobError;
use completion::Completion;
use connector::{RequestTimeouts, S3Connector};
pub(crate) use read::S3Reader;
use settings::S3Account;
pub use settings::S3Settings;
pub(crate) use upload::S3Upload;

/// Maximum length of a key in bytes, the limit of S3.
const KEY_BYTES_MAX: usize = 1_024;
/// The scheme of the names of objects.
const SCHEME: &str = "s3://";
/// Maximum number of retries of a failed request.
const RETRIES_MAX: usize = 4;
/// Pause before the first retry. Later pauses are random, and at most twice the previous pause.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause before a retry.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// An S3-compatible store. Clones share its connections.
#[derive(Clone)]
pub struct S3Store(Arc<StoreState>);

struct StoreState {
    account: S3Account,
    connector: S3Connector,
    /// The runtime that drives the sockets. `None` while the state is dropped.
    runtime: Option<Runtime>,
}

impl Drop for StoreState {
    fn drop(&mut self) {
        // The default drop waits for the runtime, which asynchronous callers must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl S3Store {
    /// Prepares connections to a store. Opens no connection.
    ///
    /// # Errors
    /// [`JobError::Plan`] if a setting is missing or invalid. The message names the setting.
    pub fn new(settings: S3Settings) -> Result<Self, JobError> {
        Self::with_timeouts(settings, RequestTimeouts::DEFAULT)
    }

    fn with_timeouts(settings: S3Settings, timeouts: RequestTimeouts) -> Result<Self, JobError> {
        let account = settings.checked()?;
        let connector = S3Connector::new(account.tls.clone(), settings.plain, timeouts);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("s3")
            .enable_all()
            .build();
        let runtime = runtime
            .map_err(|error| JobError::Plan(format!("no thread for connections: {error}")))?;
        Ok(Self(Arc::new(StoreState {
            account,
            connector,
            runtime: Some(runtime),
        })))
    }

    /// Returns true if a name has the form of an object's name: `s3://bucket/key`.
    #[must_use]
    pub fn is_object_name(name: &str) -> bool {
        name.starts_with(SCHEME)
    }

    /// Creates a reference to an object from `s3://bucket/key`. The key is used unchanged, without
    /// percent decoding.
    ///
    /// # Errors
    /// [`JobError::Plan`] if the name is invalid.
    pub fn object(&self, name: &str) -> Result<S3Object, JobError> {
        let (bucket, key) =
            parse_name(name).map_err(|what| JobError::Plan(format!("{name}: {what}")))?;
        Ok(S3Object {
            store: self.clone(),
            bucket: bucket.to_owned(),
            key,
        })
    }

    /// Runs a future of the store to its end. Returns an error if `stopped` completes first.
    /// Blocks.
    fn run<T>(
        &self,
        stopped: impl Future<Output = ()>,
        future: impl Future<Output = T>,
    ) -> Result<T, JobError> {
        self.runtime().block_on(async {
            tokio::select! {
                biased;
                done = future => Ok(done),
                () = stopped => Err(JobError::Stopped),
            }
        })
    }

    fn runtime(&self) -> &Runtime {
        match &self.0.runtime {
            Some(runtime) => runtime,
            None => unreachable!("the runtime is there until the store is dropped"),
        }
    }
}

/// Splits `s3://bucket/key` into the bucket and the key.
fn parse_name(name: &str) -> Result<(&str, Key), &'static str> {
    let rest = name
        .strip_prefix(SCHEME)
        .ok_or("the name of an object is s3://bucket/key")?;
    let (bucket, key) = rest
        .split_once('/')
        .ok_or("name the bucket and the key: s3://bucket/key")?;
    let has_valid_characters = bucket
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    if !(3..=255).contains(&bucket.len()) || !has_valid_characters || bucket.starts_with('.') {
        return Err("the bucket must have 3 to 255 letters, digits, dots, underscores and hyphens");
    }
    let parsed = Key::parse(key)
        .ok()
        .filter(|parsed| parsed.as_ref() == key && !key.is_empty() && key.len() <= KEY_BYTES_MAX);
    let key = parsed.ok_or(
        "the key must have at most 1024 bytes, no empty part, no part . or .. and no control character",
    )?;
    Ok((bucket, key))
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3Store")
            .field(&self.0.account.endpoint)
            .finish()
    }
}

/// A reference to an object, which need not exist.
#[derive(Clone)]
pub struct S3Object {
    store: S3Store,
    bucket: String,
    key: Key,
}

impl S3Object {
    /// Creates a client for the bucket. A client of an upload has a completion.
    fn client(&self, completion: Option<Arc<Completion>>) -> Result<AmazonS3, JobError> {
        let account = &self.store.0.account;
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&self.bucket)
            .with_endpoint(&account.endpoint)
            .with_region(&account.region)
            .with_access_key_id(&account.access_key_id)
            .with_secret_access_key(&account.secret_access_key)
            // The connector checks the address of the peer instead.
            .with_allow_http(true)
            .with_retry(RetryConfig {
                max_retries: RETRIES_MAX,
                retry_timeout: self.store.0.connector.timeouts.retry,
                backoff: BackoffConfig {
                    init_backoff: PAUSE_MIN,
                    max_backoff: PAUSE_MAX,
                    base: 2.0,
                },
            })
            .with_http_connector(self.store.0.connector.for_upload(completion));
        if let Some(token) = &account.session_token {
            builder = builder.with_token(token);
        }
        // The error's text could contain a setting.
        builder
            .build()
            .map_err(|_| JobError::Plan(format!("{self}: the settings of the store do not fit")))
    }
}

impl PartialEq for S3Object {
    fn eq(&self, other: &Self) -> bool {
        (&self.bucket, &self.key) == (&other.bucket, &other.key)
            && self.store.0.account.endpoint == other.store.0.account.endpoint
    }
}

impl Eq for S3Object {}

impl fmt::Display for S3Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.key)
    }
}

impl fmt::Debug for S3Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Object({self})")
    }
}
