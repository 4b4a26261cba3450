//! A request with everything it owns, built from Python values and sent without the interpreter.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use sealwire_client::{
    Client, CommonParams, Document, DocumentParams, Encapsulation, Encoding, Envelope, Error,
    Format, Info, Inspect, Inspection, KeyScope, MaskList, MaskRule, Masking, OnError, Outside,
    Reading, RetryLimits, RuleFields, Suite, TokenLookupScope, TokenizeOptions, Unbound,
    UnknownFields, Unmatched, Writing, shared,
};

use crate::client::Running;
use crate::options::Options;
use crate::value::to_payload;

/// A request that can be sent. `Debug` shows no content, because the request holds the document.
#[pyclass(frozen, module = "sealwire._native")]
pub(crate) struct Request {
    pub(crate) call: Arc<Call>,
}

/// A method with its arguments.
pub(crate) enum Call {
    Document(Box<DocumentRequest>, Vec<u8>),
    InspectText(String),
    InspectBinary(Vec<u8>),
    Info,
    Health,
}

/// The result of a request.
pub(crate) enum Outcome {
    Document(Document),
    Inspection(Inspection),
    Info(Info),
    Health,
}

impl Call {
    /// Sends the request. Dropping the future cancels it on the engine.
    pub(crate) async fn send(&self, client: &Client) -> Result<Outcome, Error> {
        let inspect = async |envelope| {
            client
                .inspect(Inspect { envelope })
                .await
                .map(Outcome::Inspection)
        };
        match self {
            Self::Document(request, payload) => {
                request.send(client, payload).await.map(Outcome::Document)
            }
            Self::InspectText(envelope) => inspect(Envelope::Text(envelope)).await,
            Self::InspectBinary(envelope) => inspect(Envelope::Binary(envelope)).await,
            Self::Info => client.info().await.map(Outcome::Info),
            Self::Health => client.health().await.map(|_| Outcome::Health),
        }
    }
}

/// A request on a document, without the document.
#[derive(Default)]
pub(crate) struct DocumentRequest {
    app: String,
    select: Option<Vec<String>>,
    unmatched: Unmatched,
    encapsulations: Vec<String>,
    context: Vec<u8>,
    on_error: OnError,
    deadline_ms: Option<u32>,
    min_generation: Option<u64>,
    reason: Option<String>,
    traceparent: Option<String>,
    method: DocumentMethod,
}

type OwnedWriting = shared::Writing<String>;
type OwnedTokenize = shared::TokenizeOptions<String, Vec<u8>>;

enum DocumentMethod {
    Encrypt(OwnedWriting),
    Decrypt(Reading),
    Rewrap(OwnedWriting),
    Tokenize(OwnedTokenize),
    Detokenize { collection: String },
    Mask(MaskRequest),
}

impl Default for DocumentMethod {
    fn default() -> Self {
        Self::Decrypt(Reading::default())
    }
}

fn read_writing(options: &Options<'_>) -> PyResult<OwnedWriting> {
    Ok(OwnedWriting {
        suite: options.named("suite", Suite::ALL, Suite::name)?,
        key_scope: options
            .named("key_scope", KeyScope::ALL, KeyScope::name)?
            .unwrap_or_default(),
        format: options.named("format", Format::ALL, Format::name)?,
        encoding: options
            .named("encoding", Encoding::ALL, Encoding::name)?
            .unwrap_or_default(),
        encapsulation: options
            .named("encapsulation", Encapsulation::ALL, Encapsulation::name)?
            .unwrap_or_default(),
        ..OwnedWriting::default()
    })
}

fn writing(owned: &OwnedWriting) -> Writing<'_> {
    Writing {
        suite: owned.suite,
        key_scope: owned.key_scope,
        format: owned.format,
        role: owned.role.as_deref(),
        encoding: owned.encoding,
        encapsulation: owned.encapsulation,
        unbound: owned.unbound,
        outside: owned.outside,
    }
}

struct MaskRequest {
    /// The key of the fields, their text, and the function.
    rules: Vec<(RuleKey, String, String)>,
    unknown: UnknownFields,
    lists: Vec<(String, Vec<String>)>,
}

#[derive(Clone, Copy)]
enum RuleKey {
    Path,
    Column,
    Kind,
}

impl DocumentRequest {
    /// Reads the options of a method. Leaves options that the method does not take in `options`.
    pub(crate) fn read(method: &str, app: String, options: &Options<'_>) -> PyResult<Option<Self>> {
        let own = match method {
            "encrypt" => DocumentMethod::Encrypt(OwnedWriting {
                role: options.take("role", "a string")?,
                ..read_writing(options)?
            }),
            "decrypt" => DocumentMethod::Decrypt(Reading {
                outside: options
                    .named(
                        "outside",
                        &[Outside::Accept, Outside::Refuse],
                        Outside::name,
                    )?
                    .unwrap_or_default(),
            }),
            "rewrap" => DocumentMethod::Rewrap(OwnedWriting {
                unbound: options
                    .named("unbound", Unbound::ALL, Unbound::name)?
                    .unwrap_or_default(),
                outside: options
                    .named("outside", Outside::ALL, Outside::name)?
                    .unwrap_or_default(),
                ..read_writing(options)?
            }),
            "tokenize" => DocumentMethod::Tokenize(OwnedTokenize {
                collection: options.required("collection", "a string")?,
                tags: options.texts("tags")?.unwrap_or_default(),
                expires_s: options.take("expires_s", "a positive integer")?,
                idempotency_key: options.bytes("idempotency_key")?,
                subject: options.take("subject", "a string")?,
            }),
            "detokenize" => DocumentMethod::Detokenize {
                collection: options.required("collection", "a string")?,
            },
            "mask" => DocumentMethod::Mask(read_mask(options)?),
            _ => return Ok(None),
        };
        let mut request = Self {
            app,
            method: own,
            ..Self::default()
        };
        if !matches!(request.method, DocumentMethod::Mask(_)) {
            request.select = options.texts("select")?;
            request.unmatched = options
                .named("unmatched", Unmatched::ALL, Unmatched::name)?
                .unwrap_or_default();
            request.context = options.bytes("context")?.unwrap_or_default();
        }
        if matches!(
            request.method,
            DocumentMethod::Decrypt(_) | DocumentMethod::Rewrap(_)
        ) {
            request.encapsulations = options.texts("encapsulations")?.unwrap_or_default();
        }
        request.on_error = options
            .named("on_error", OnError::ALL, OnError::name)?
            .unwrap_or_default();
        request.deadline_ms =
            options.take("deadline_ms", "an integer of milliseconds, 1 to 3600000")?;
        request.min_generation = options.take("min_generation", "an integer, 0 or more")?;
        request.reason = options.take("reason", "a string")?;
        request.traceparent = options.take("traceparent", "a string")?;
        Ok(Some(request))
    }

    /// Sends the request with this document. Dropping the future cancels it on the engine.
    pub(crate) async fn send(&self, client: &Client, payload: &[u8]) -> Result<Document, Error> {
        self.send_as(client, payload, None, self.deadline_ms).await
    }

    /// Sends the request at the pace of the client, and repeats it within `retry_timeout` if that
    /// can help.
    pub(crate) async fn send_paced(
        &self,
        running: &Running,
        retry_timeout: Duration,
        payload: &[u8],
        part_key: Option<&[u8]>,
    ) -> Result<Document, Error> {
        let limits = RetryLimits {
            deadline: running.client().deadline_of(self.deadline_ms),
            retry_timeout,
        };
        let send =
            |deadline_ms| self.send_as(running.client(), payload, part_key, Some(deadline_ms));
        running.pacer().run(limits, send, |_, _| {}).await
    }

    /// Sends the request with this document and deadline and, if it makes tokens, under this
    /// idempotency key.
    async fn send_as(
        &self,
        client: &Client,
        payload: &[u8],
        part_key: Option<&[u8]>,
        deadline_ms: Option<u32>,
    ) -> Result<Document, Error> {
        match &self.method {
            DocumentMethod::Encrypt(options) => {
                client
                    .encrypt(self.call(payload, deadline_ms, writing(options)))
                    .await
            }
            DocumentMethod::Decrypt(reading) => {
                client
                    .decrypt(self.call(payload, deadline_ms, *reading))
                    .await
            }
            DocumentMethod::Rewrap(options) => {
                client
                    .rewrap(self.call(payload, deadline_ms, writing(options)))
                    .await
            }
            DocumentMethod::Tokenize(OwnedTokenize {
                collection,
                tags,
                expires_s,
                idempotency_key,
                subject,
            }) => {
                let writing = TokenizeOptions {
                    collection,
                    tags: texts(tags),
                    expires_s: *expires_s,
                    idempotency_key: part_key.or(idempotency_key.as_deref()),
                    subject: subject.as_deref(),
                };
                client
                    .tokenize(self.call(payload, deadline_ms, writing))
                    .await
            }
            DocumentMethod::Detokenize { collection } => {
                client
                    .detokenize(self.call(payload, deadline_ms, TokenLookupScope { collection }))
                    .await
            }
            DocumentMethod::Mask(mask) => {
                client
                    .mask(self.call(payload, deadline_ms, mask.masking()))
                    .await
            }
        }
    }

    fn call<'a, W: Default>(
        &'a self,
        payload: &'a [u8],
        deadline_ms: Option<u32>,
        writing: W,
    ) -> DocumentParams<'a, W> {
        DocumentParams {
            select: self.select.as_deref().map(texts),
            unmatched: self.unmatched,
            encapsulations: texts(&self.encapsulations),
            context: &self.context,
            on_error: self.on_error,
            options: CommonParams {
                deadline_ms,
                min_generation: self.min_generation,
                reason: self.reason.as_deref(),
                traceparent: self.traceparent.as_deref(),
            },
            writing,
            ..DocumentParams::new(&self.app, payload)
        }
    }
}

fn texts(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

impl MaskRequest {
    fn masking(&self) -> Masking<'_> {
        Masking {
            rules: self.rules.iter().map(rule_on_wire).collect(),
            unknown: self.unknown,
            lists: self
                .lists
                .iter()
                .map(|(name, entries)| MaskList {
                    name,
                    entries: texts(entries),
                })
                .collect(),
        }
    }
}

fn rule_on_wire((key, fields, mask): &(RuleKey, String, String)) -> MaskRule<'_> {
    let fields = match key {
        RuleKey::Path => RuleFields::Path(fields),
        RuleKey::Column => RuleFields::Column(fields),
        RuleKey::Kind => RuleFields::Kind(fields),
    };
    MaskRule { fields, mask }
}

fn read_mask(options: &Options<'_>) -> PyResult<MaskRequest> {
    let rules: Vec<Bound<'_, PyDict>> = options.required("rules", "a list of dictionaries")?;
    let lists: Option<Bound<'_, PyDict>> =
        options.take("lists", "a dictionary of lists of strings")?;
    let entries = |(name, entries): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        Ok((name.extract()?, entries.extract()?))
    };
    let lists: PyResult<Vec<_>> = lists
        .iter()
        .flat_map(|lists| lists.iter())
        .map(entries)
        .collect();
    Ok(MaskRequest {
        rules: rules
            .iter()
            .enumerate()
            .map(|(index, rule)| read_rule(index, rule))
            .collect::<PyResult<_>>()?,
        unknown: options
            .named("unknown", UnknownFields::ALL, UnknownFields::name)?
            .unwrap_or_default(),
        lists: lists.map_err(|_| {
            PyTypeError::new_err("mask() argument 'lists' must be a dictionary of lists of strings")
        })?,
    })
}

fn read_rule(index: usize, rule: &Bound<'_, PyDict>) -> PyResult<(RuleKey, String, String)> {
    let text = |key: &str| {
        rule.get_item(key)
            .ok()
            .flatten()
            .and_then(|text| text.extract::<String>().ok())
    };
    let fields = [
        (RuleKey::Path, "path"),
        (RuleKey::Column, "column"),
        (RuleKey::Kind, "kind"),
    ];
    let mut given = fields
        .iter()
        .filter_map(|(key, name)| Some((*key, text(name)?)));
    match (given.next(), given.next(), text("mask"), rule.len()) {
        (Some((key, fields)), None, Some(mask), 2) => Ok((key, fields, mask)),
        _ => Err(PyTypeError::new_err(format!(
            "mask() argument 'rules' at {index} must have a mask and one of path, column and kind, all strings"
        ))),
    }
}

/// Builds a request. `positional` are the arguments that the method takes by position.
#[pyfunction]
#[pyo3(signature = (method, positional, options))]
pub(crate) fn request(
    method: &str,
    positional: Vec<Bound<'_, PyAny>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Request> {
    let options = Options::new(method, options)?;
    let call = match (method, positional.as_slice()) {
        ("info", []) => Call::Info,
        ("health", []) => Call::Health,
        ("inspect", [envelope]) => inspect(envelope)?,
        (_, [app, payload]) => {
            let app = app.extract().map_err(|_| {
                PyTypeError::new_err(format!("{method}() argument 'app' must be a string"))
            })?;
            let Some(request) = DocumentRequest::read(method, app, &options)? else {
                return Err(unknown(method));
            };
            Call::Document(Box::new(request), to_payload(payload)?)
        }
        _ => return Err(unknown(method)),
    };
    options.finish()?;
    Ok(Request {
        call: Arc::new(call),
    })
}

fn inspect(envelope: &Bound<'_, PyAny>) -> PyResult<Call> {
    if let Ok(bytes) = envelope.cast::<PyBytes>() {
        return Ok(Call::InspectBinary(bytes.as_bytes().to_vec()));
    }
    let text = envelope
        .cast::<PyString>()
        .ok()
        .and_then(|text| text.to_str().ok());
    let text = text.ok_or_else(|| {
        PyTypeError::new_err("inspect() argument 'envelope' must be a string or bytes")
    })?;
    Ok(Call::InspectText(text.to_owned()))
}

fn unknown(method: &str) -> PyErr {
    PyTypeError::new_err(format!("no method {method} with these arguments"))
}
