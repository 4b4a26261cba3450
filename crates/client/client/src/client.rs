//! The requests for documents, and the client handle.
//!
//! Each request has one deadline that covers waiting for a connection, sending, the server's work
//! and the response. The server receives the remaining time. Within the deadline, a request is
//! retried as [`ClientConfig::attempts_max`] specifies.
//!
//! Cancel safety: every async function here can be dropped at any time. If the request was sent,
//! the server receives a `cancel`. The connection continues with the other requests, and a late
//! response is discarded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use sealwire_wire::{
    CommonParams, DEADLINE_MS_MAX, DocumentParams, ErrorCode, FieldError, Health, Info, Inspection,
    Malformed, ResultCodec, request,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::config::ClientConfig;
use crate::connection::{Bounds, Connection};
use crate::error::{Error, ResponseLimit, printable, rejected_certificate};
use crate::pool::{Connector, Pool, Renewals};
use crate::request::documents::{Decrypt, Detokenize, Encrypt, Inspect, Mask, Rewrap, Tokenize};
use crate::retry::{Course, Retries, Setback};
use crate::state::Failure;
use crate::tls::Dialer;

/// A document in a response.
///
/// ```no_run
/// # async fn example(client: sealwire_client::Client, payload: Vec<u8>) -> Result<(), sealwire_client::Error> {
/// use sealwire_client::{Encrypt, OnError};
///
/// let request = Encrypt::new("shop", &payload).select(["$.card", "$.iban"]);
/// let sealed = client.encrypt(request.on_error(OnError::Report)).await?;
/// for position in &sealed.unmatched {
///     eprintln!("path {position} matches nothing");
/// }
/// for error in &sealed.errors {
///     eprintln!("{} is not encrypted: {}", error.path, error.code);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "workspace"), non_exhaustive)]
pub struct Document {
    /// The payload as one MessagePack value, with the structure of the request's payload.
    pub payload: Bytes,
    /// The server's control state generation when it processed the request.
    pub generation: u64,
    /// Fields that were left unchanged because of errors, with `on_error: "report"`; at most 1,000.
    pub errors: Vec<FieldError>,
    /// Number of further field errors that are not listed.
    pub errors_omitted: u64,
    /// Positions of those paths in `select` that match nothing in the document.
    pub unmatched: Vec<u32>,
    /// Encapsulations that fields of the document refer to. Keep them with the document, for
    /// [`Decrypt::encapsulations`]: without them the fields do not open again.
    pub encapsulations: Vec<String>,
}

impl Document {
    /// Deserializes the payload into a Rust value.
    ///
    /// ```no_run
    /// # fn example(tokenized: sealwire_client::Document) -> Result<(), sealwire_client::Error> {
    /// let tokens: Vec<String> = tokenized.to_value()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Value`] if the payload does not have the structure of `T`.
    pub fn to_value<T: DeserializeOwned>(&self) -> Result<T, Error> {
        rmp_serde::from_slice(&self.payload).map_err(|error| Error::Value(Arc::new(error)))
    }

    fn decode(result: &Bytes) -> Result<Self, Malformed> {
        let document = sealwire_wire::Document::decode(result)?;
        Ok(Self {
            payload: result.slice_ref(document.payload),
            generation: document.generation,
            errors: document.errors,
            errors_omitted: document.errors_omitted,
            unmatched: document.unmatched,
            encapsulations: document.encapsulations,
        })
    }
}

/// Serializes a Rust value to a payload. Structs become maps with their field names as keys. A
/// `Vec<u8>` becomes an array of numbers, unless its type serializes as bytes, as `Bytes`-like
/// types and `serde_bytes` do.
///
/// ```
/// let payload = sealwire_client::to_payload(&("4111 1111 1111 1111", 12, true))?;
/// assert_eq!(payload[0], 0x93);
/// # Ok::<_, sealwire_client::Error>(())
/// ```
///
/// # Errors
/// [`Error::Value`] if the value cannot be serialised.
pub fn to_payload<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    rmp_serde::to_vec_named(value).map_err(|error| Error::Value(Arc::new(error)))
}

/// Counters of a client since its creation, from [`Client::stats`]. No counter ever decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of requests placed on a connection, including retries.
    pub attempts: u64,
    /// Number of retries of requests that a server may have seen. Each such retry is charged to the
    /// budget.
    pub retries: u64,
    /// Requests that ended with an error because the retry budget was used up. A growing number
    /// means that the servers are overloaded or failing.
    pub retries_refused: u64,
    /// Number of endpoint ejections.
    pub ejections: u64,
}

/// A client of one server, or of several servers that serve the same apps. Cloning is cheap, and
/// clones share the connections. Needs a tokio runtime with I/O and time enabled.
///
/// ```no_run
/// use sealwire_client::{Client, Error};
///
/// # async fn example(client: Client) -> Result<(), Error> {
/// let another = client.clone();
/// let task = tokio::spawn(async move { another.encrypt_value("shop", "4111 1111 1111 1111").await });
/// client.health().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<ClientState>,
    deadline: Duration,
}

/// Returns the reason why changed certificate files are not in use.
type RenewalStatus = Box<dyn Fn() -> Option<Arc<str>> + Send + Sync>;

struct ClientState {
    pool: Pool,
    renewal_status: Option<RenewalStatus>,
    retries: Retries,
    attempts: AtomicU64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client and makes one round trip with a server, so that a wrong address, name or
    /// certificate is reported here. Any response counts as connected, even an error such as
    /// `overloaded`. If there are several servers, one response is enough.
    ///
    /// ```no_run
    /// # async fn example(config: sealwire_client::ClientConfig) -> Result<(), sealwire_client::Error> {
    /// let client = sealwire_client::Client::connect(config).await?;
    /// println!("connected to version {}", client.info().await?.version);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Tls`] before a connection is opened; afterwards the errors of
    /// any request. [`Error::Rpc`] only if the server denies this certificate, with `forbidden` or
    /// `unauthenticated`.
    pub async fn connect(config: ClientConfig) -> Result<Self, Error> {
        let client = tokio::task::spawn_blocking(|| Self::lazy(config)).await;
        let client = client.map_err(|panicked| Error::Config(panicked.to_string().into()))??;
        match client.health().await {
            Err(Error::Rpc(error))
                if matches!(
                    error.code,
                    ErrorCode::Forbidden | ErrorCode::Unauthenticated
                ) =>
            {
                Err(Error::Rpc(error))
            }
            Ok(_) | Err(Error::Rpc(_)) => Ok(client),
            Err(error) => Err(error),
        }
    }

    /// Creates a client that opens its first connection for its first request. Blocks briefly if
    /// certificates are in files.
    ///
    /// ```no_run
    /// # async fn example(config: sealwire_client::ClientConfig) -> Result<(), sealwire_client::Error> {
    /// let client = sealwire_client::Client::lazy(config)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] and [`Error::Tls`].
    pub fn lazy(config: ClientConfig) -> Result<Self, Error> {
        config.check()?;
        let dialer = Arc::new(Dialer::new(&config)?);
        let renewals = dialer.may_change().then(|| -> Renewals {
            let dialer = Arc::clone(&dialer);
            Box::new(move || Box::pin(Arc::clone(&dialer).renewed()))
        });
        let status = Arc::clone(&dialer);
        let bounds = Bounds {
            request_bytes_max: config.request_bytes_max,
            response_bytes_max: config.response_bytes_max,
        };
        let connector: Connector = Box::new(move |endpoint| {
            let dialer = Arc::clone(&dialer);
            Box::pin(async move { Ok(Connection::start(dialer.dial(endpoint).await?, bounds)) })
        });
        let mut client = Self::over(&config, connector, renewals);
        if let Some(shared) = Arc::get_mut(&mut client.shared) {
            shared.renewal_status = Some(Box::new(move || status.renewal_error()));
        }
        Ok(client)
    }

    /// Creates a client with connections from the given connector.
    pub(crate) fn over(
        config: &ClientConfig,
        connector: Connector,
        renewals: Option<Renewals>,
    ) -> Self {
        let pool = Pool::new(config, connector, renewals);
        let shared = ClientState {
            pool,
            renewal_status: None,
            retries: Retries::new(config),
            attempts: AtomicU64::new(0),
        };
        Self {
            shared: Arc::new(shared),
            deadline: config.deadline,
        }
    }

    /// Encrypts a document.
    ///
    /// See [`Encrypt`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn encrypt(&self, request: Encrypt<'_>) -> Result<Document, Error> {
        self.document(request.0, Course::default(), request::encrypt)
            .await
    }

    /// Decrypts a document.
    ///
    /// See [`Decrypt`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn decrypt(&self, request: Decrypt<'_>) -> Result<Document, Error> {
        self.document(request.0, Course::default(), request::decrypt)
            .await
    }

    /// Opens every envelope of a document and seals the plaintext again with the app's newest key.
    ///
    /// See [`Rewrap`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn rewrap(&self, request: Rewrap<'_>) -> Result<Document, Error> {
        self.document(request.0, Course::default(), request::rewrap)
            .await
    }

    /// Replaces the leaves of a document by tokens. If the request names no idempotency key, the
    /// client draws one at random. An attempt after a lost response then gets the tokens that the
    /// first attempt made. In a collection of kind `random`, each token costs an entry in an index
    /// of the store. A client whose [`ClientConfig::repeat_sent`] is off draws no key.
    ///
    /// See [`Tokenize`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn tokenize(&self, request: Tokenize<'_>) -> Result<Document, Error> {
        let key: [u8; 16];
        let mut params = request.0;
        if params.writing.idempotency_key.is_none() && self.shared.retries.repeats_sent() {
            key = random()?;
            params.writing.idempotency_key = Some(&key);
        }

        self.document(params, Course::on_tokens(), request::tokenize)
            .await
    }

    /// Replaces the tokens in a document by their values.
    ///
    /// See [`Detokenize`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn detokenize(&self, request: Detokenize<'_>) -> Result<Document, Error> {
        self.document(request.0, Course::on_tokens(), request::detokenize)
            .await
    }

    /// Masks the fields of a document by rules. Safe to repeat: equal requests have equal
    /// responses, except for functions that draw at random.
    ///
    /// See [`Mask`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Value`.
    pub async fn mask(&self, request: Mask<'_>) -> Result<Document, Error> {
        self.document(request.0, Course::default(), request::mask)
            .await
    }

    async fn document<'a, W: Clone>(
        &self,
        params: DocumentParams<'a, W>,
        course: Course,
        encode: fn(&mut Vec<u8>, u32, &DocumentParams<'a, W>),
    ) -> Result<Document, Error> {
        request::check_payload(params.payload).map_err(Error::payload)?;
        let encode = |out: &mut Vec<u8>, msgid, options| {
            let params = params.clone();
            encode(out, msgid, &DocumentParams { options, ..params });
        };
        let result = self.call_on_data(params.options, course, encode).await?;
        Document::decode(&result).map_err(Error::protocol)
    }

    /// Encrypts every leaf of a Rust value, with default options.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// let sealed = client.encrypt_value("shop", &["4111 1111 1111 1111"]).await?;
    /// let opened: Vec<String> = client.decrypt_value("shop", &sealed.payload).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn encrypt_value<T: Serialize + ?Sized>(
        &self,
        app: &str,
        value: &T,
    ) -> Result<Document, Error> {
        let payload = to_payload(value)?;
        self.encrypt(Encrypt::new(app, &payload)).await
    }

    /// Opens every envelope of a payload, with default options, and deserializes the result into a
    /// Rust value.
    ///
    /// See [`Client::encrypt_value`] for an example.
    ///
    /// # Errors
    /// Any [`Error`].
    pub async fn decrypt_value<T: DeserializeOwned>(
        &self,
        app: &str,
        payload: &[u8],
    ) -> Result<T, Error> {
        self.decrypt(Decrypt::new(app, payload)).await?.to_value()
    }

    /// Returns the metadata of an envelope without opening it.
    ///
    /// See [`Inspect`] for an example.
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn inspect(&self, request: Inspect<'_>) -> Result<Inspection, Error> {
        let result = self
            .call(self.deadline, Course::immediate(), |out, msgid, _| {
                request::inspect(out, msgid, &request.0)
            })
            .await?;
        Inspection::decode(&result).map_err(Error::protocol)
    }

    /// Returns the server's version, methods, formats and limits.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// let info = client.info().await?;
    /// println!("{} {} supports {:?}", info.name, info.version, info.suites);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn info(&self) -> Result<Info, Error> {
        let result = self
            .call(self.deadline, Course::immediate(), |out, msgid, _| {
                request::info(out, msgid)
            })
            .await?;
        Info::decode(&result).map_err(Error::protocol)
    }

    /// Succeeds if the server responds.
    ///
    /// ```no_run
    /// # async fn example(client: sealwire_client::Client) -> Result<(), sealwire_client::Error> {
    /// client.health().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any [`Error`] but `Payload` and `Value`.
    pub async fn health(&self) -> Result<Health, Error> {
        let result = self
            .call(self.deadline, Course::immediate(), |out, msgid, _| {
                request::health(out, msgid)
            })
            .await?;
        Health::decode(&result).map_err(Error::protocol)
    }

    /// Returns the counters of this client and its clones.
    ///
    /// ```no_run
    /// # fn example(client: sealwire_client::Client) {
    /// let stats = client.stats();
    /// println!("{} attempts, {} retries", stats.attempts, stats.retries);
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        let ClientState {
            pool,
            retries,
            attempts,
            ..
        } = &*self.shared;
        Stats {
            attempts: attempts.load(Ordering::Relaxed),
            retries: retries.retries.load(Ordering::Relaxed),
            retries_refused: retries.refused.load(Ordering::Relaxed),
            ejections: pool.ejections(),
        }
    }

    /// Returns why renewed certificate files are not in use. Either they do not load, or no new
    /// connection succeeds with them. The client then keeps using the earlier certificates until
    /// those expire. Files are checked before each new connection, and every ten seconds while
    /// requests are made.
    ///
    /// ```no_run
    /// # fn example(client: sealwire_client::Client) {
    /// if let Some(reason) = client.renewal_error() {
    ///     eprintln!("the renewed certificate is not in use: {reason}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn renewal_error(&self) -> Option<Arc<str>> {
        let ClientState {
            pool,
            renewal_status,
            ..
        } = &*self.shared;
        renewal_status
            .as_ref()
            .and_then(|status| status())
            .or_else(|| pool.renewal_error())
    }

    /// Returns the number of free permits, and the number of requests in flight on all connections.
    #[cfg(test)]
    pub(crate) fn at_rest(&self) -> (usize, usize) {
        self.shared.pool.at_rest()
    }

    /// Returns the number of endpoints that are ejected now.
    #[cfg(test)]
    pub(crate) fn ejected_now(&self) -> usize {
        self.shared.pool.ejected_now()
    }

    /// Returns the deadline of requests that set none, [`ClientConfig::deadline`].
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the deadline of a request: its own deadline if set, otherwise the client's.
    pub(crate) fn deadline_of(&self, deadline_ms: Option<u32>) -> Duration {
        deadline_ms.map_or(self.deadline, |deadline_ms| {
            Duration::from_millis(u64::from(deadline_ms))
        })
    }

    /// Performs one data request. `encode` receives the options with the remaining time.
    pub(crate) async fn call_on_data<'a>(
        &self,
        options: CommonParams<'a>,
        course: Course,
        encode: impl Fn(&mut Vec<u8>, u32, CommonParams<'a>),
    ) -> Result<Bytes, Error> {
        let deadline = self.deadline_of(options.deadline_ms);
        let encode = |out: &mut Vec<u8>, msgid: u32, left_ms: u32| {
            encode(out, msgid, options.with_deadline(left_ms));
        };
        self.call(deadline, course, encode).await
    }

    /// Performs one request: repeats attempts until there is a result or a retry is pointless.
    pub(crate) async fn call(
        &self,
        deadline: Duration,
        mut course: Course,
        encode: impl Fn(&mut Vec<u8>, u32, u32),
    ) -> Result<Bytes, Error> {
        let ClientState { pool, retries, .. } = &*self.shared;
        let deadline = Instant::now() + deadline;
        retries.budget.deposit();
        loop {
            let setback = match self.attempt(deadline, &mut course, &encode).await {
                Ok(result) => return Ok(result),
                Err(setback) => setback,
            };
            if let Some(at) = retries.next(&mut course, setback, deadline, |wants| {
                pool.has_other(wants)
            })? {
                sleep_until(at).await;
            }
        }
    }

    /// Performs one attempt: leases a connection, sends the request with the remaining time, and
    /// waits for the result.
    async fn attempt(
        &self,
        deadline: Instant,
        course: &mut Course,
        encode: &impl Fn(&mut Vec<u8>, u32, u32),
    ) -> Result<Bytes, Setback> {
        let unplaced = |error| Setback {
            error,
            endpoint: None,
            sent: false,
            is_last: false,
        };
        let mut lease = loop {
            let lease = timeout_at(deadline, self.shared.pool.lease(course.wants())).await;
            let paused_until = match &lease {
                Ok(Ok(lease)) => course
                    .paused_until(lease.endpoint())
                    .filter(|until| *until > Instant::now()),
                Ok(Err(_)) | Err(_) => None,
            };
            match (lease, paused_until) {
                (Ok(lease), None) => break lease.map_err(unplaced)?,
                // The only endpoint that could take the request asked for a longer pause.
                (Ok(lease), Some(until)) if until < deadline => {
                    drop(lease);
                    sleep_until(until).await;
                }
                // The earlier error is more informative than a deadline that passed after it.
                _ => {
                    return Err(Setback {
                        is_last: true,
                        ..unplaced(course.last.take().unwrap_or(Error::Deadline))
                    });
                }
            }
        };
        self.shared.attempts.fetch_add(1, Ordering::Relaxed);
        let encode_now = |out: &mut Vec<u8>, msgid: u32| encode(out, msgid, left_ms(deadline));
        let answer = lease.connection().call(deadline, encode_now).await;
        lease.report(&answer, course);
        answer.map_err(|failure| Setback {
            sent: !matches!(
                failure,
                Failure::NotSent | Failure::Rejected { sent: false, .. }
            ),
            error: lease.connection().error(failure),
            endpoint: Some(lease.endpoint()),
            is_last: false,
        })
    }
}

/// Returns cryptographically random bytes.
fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider
        .secure_random
        .fill(&mut bytes)
        .map_err(|error| Error::tls(error.into()))?;
    Ok(bytes)
}

/// Returns the time until `deadline` in whole milliseconds, at least 1 and at most the limit of the
/// wire.
fn left_ms(deadline: Instant) -> u32 {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .as_millis();
    u32::try_from(left)
        .unwrap_or(u32::MAX)
        .clamp(1, DEADLINE_MS_MAX)
}

impl Connection {
    /// Converts a failure into the public error type.
    fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Rpc(error) if error.code == ErrorCode::DeadlineExceeded => Error::Deadline,
            Failure::Rpc(error) => Error::Rpc(printable(error)),
            Failure::NotSent => Error::Disconnected {
                why: "each connection ended before it took the request".into(),
            },
            Failure::Disconnected(why) => Error::Disconnected { why },
            Failure::Rejected { alert, .. } => rejected_certificate(alert),
            Failure::Deadline => Error::Deadline,
            Failure::TooLong => Error::RequestTooLong {
                max: self.bounds().request_bytes_max,
            },
            Failure::Refused(error) => Error::ResponseTooLarge(ResponseLimit(error)),
            Failure::Protocol(malformed) => Error::protocol(malformed),
        }
    }
}
