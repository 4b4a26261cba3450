//! A request with everything it owns, built from Python values and sent without the interpreter.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use sealwire_client::{
    Client, Decrypt, Detokenize, Document, Encapsulation, Encoding, Encrypt, EnvelopeOptions,
    Error, Format, Info, Inspect, Inspection, KeyScope, Mask, MaskRule, OnError, Outside,
    RequestOptions, RetryLimits, Rewrap, Suite, Tokenize, Unbound, UnknownFields, Unmatched,
};

use crate::client::Running;
use crate::options::{Options, bytes_of};
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
        let inspect = async |request| client.inspect(request).await.map(Outcome::Inspection);
        match self {
            Self::Document(request, payload) => {
                request.send(client, payload).await.map(Outcome::Document)
            }
            Self::InspectText(envelope) => inspect(Inspect::text(envelope)).await,
            Self::InspectBinary(envelope) => inspect(Inspect::binary(envelope)).await,
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
    contexts: Option<Contexts>,
    on_error: OnError,
    deadline: Option<Duration>,
    min_generation: Option<u64>,
    reason: Option<String>,
    traceparent: Option<String>,
    method: DocumentMethod,
}

/// A context for each item of the document.
enum Contexts {
    Listed(Vec<Vec<u8>>),
    Path(String),
}

enum DocumentMethod {
    Encrypt {
        envelopes: EnvelopeOptions,
        role: Option<String>,
    },
    Decrypt {
        outside: Outside,
    },
    Rewrap {
        envelopes: EnvelopeOptions,
        unbound: Unbound,
        outside: Outside,
    },
    Tokenize(TokenizeRequest),
    Detokenize {
        collection: String,
    },
    Mask(MaskRequest),
}

struct TokenizeRequest {
    collection: String,
    tags: Vec<String>,
    expires_s: Option<u64>,
    idempotency_key: Option<Vec<u8>>,
    subject: Option<String>,
}

impl Default for DocumentMethod {
    fn default() -> Self {
        let outside = Outside::default();
        Self::Decrypt { outside }
    }
}

fn read_envelopes(options: &Options<'_>) -> PyResult<EnvelopeOptions> {
    let key_scope = options.named("key_scope", KeyScope::ALL, KeyScope::name)?;
    let encoding = options.named("encoding", Encoding::ALL, Encoding::name)?;
    let encapsulation = options.named("encapsulation", Encapsulation::ALL, Encapsulation::name)?;
    Ok(EnvelopeOptions::new()
        .suite(options.named("suite", Suite::ALL, Suite::name)?)
        .key_scope(key_scope.unwrap_or_default())
        .format(options.named("format", Format::ALL, Format::name)?)
        .encoding(encoding.unwrap_or_default())
        .encapsulation(encapsulation.unwrap_or_default()))
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
            "encrypt" => DocumentMethod::Encrypt {
                role: options.take("role", "a string")?,
                envelopes: read_envelopes(options)?,
            },
            "decrypt" => DocumentMethod::Decrypt {
                outside: options
                    .named(
                        "outside",
                        &[Outside::Accept, Outside::Refuse],
                        Outside::name,
                    )?
                    .unwrap_or_default(),
            },
            "rewrap" => DocumentMethod::Rewrap {
                unbound: options
                    .named("unbound", Unbound::ALL, Unbound::name)?
                    .unwrap_or_default(),
                outside: options
                    .named("outside", Outside::ALL, Outside::name)?
                    .unwrap_or_default(),
                envelopes: read_envelopes(options)?,
            },
            "tokenize" => DocumentMethod::Tokenize(TokenizeRequest {
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
            DocumentMethod::Decrypt { .. } | DocumentMethod::Rewrap { .. }
        ) {
            request.encapsulations = options.texts("encapsulations")?.unwrap_or_default();
        }
        request.on_error = options
            .named("on_error", OnError::ALL, OnError::name)?
            .unwrap_or_default();
        let deadline_ms: Option<u32> =
            options.take("deadline_ms", "an integer of milliseconds, 1 to 3600000")?;
        request.deadline = deadline_ms.map(|time| Duration::from_millis(time.into()));
        request.min_generation = options.take("min_generation", "an integer, 0 or more")?;
        request.reason = options.take("reason", "a string")?;
        request.traceparent = options.take("traceparent", "a string")?;
        Ok(Some(request))
    }

    /// Reads the options that give each item of the document its context. Columns do not have them,
    /// since their documents are batches of values.
    fn read_contexts(&mut self, options: &Options<'_>) -> PyResult<()> {
        if matches!(self.method, DocumentMethod::Mask(_)) {
            return Ok(());
        }
        let expected = "a list of bytes or strings, or a dictionary {'path': PATH}";
        let given: Option<Bound<'_, PyAny>> = options.take("contexts", expected)?;
        let contexts = given.map(|given| {
            let contexts = match given.cast::<PyDict>() {
                Ok(entries) => path_of(entries).map(Contexts::Path),
                Err(_) => bytes_of_each(&given).map(Contexts::Listed),
            };
            contexts.ok_or_else(|| options.wrong("contexts", expected))
        });
        self.contexts = contexts.transpose()?;
        Ok(())
    }

    /// Sends the request with this document. Dropping the future cancels it on the engine.
    pub(crate) async fn send(&self, client: &Client, payload: &[u8]) -> Result<Document, Error> {
        self.send_as(client, payload, None, self.deadline).await
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
        let deadline = self.deadline.unwrap_or(running.client().deadline());
        let limits = RetryLimits::new(deadline, retry_timeout);
        let send = |deadline| self.send_as(running.client(), payload, part_key, Some(deadline));
        running.pacer().run(limits, send, |_, _| {}).await
    }

    /// Sends the request with this document and deadline and, if it makes tokens, under this
    /// idempotency key.
    async fn send_as(
        &self,
        client: &Client,
        payload: &[u8],
        part_key: Option<&[u8]>,
        deadline: Option<Duration>,
    ) -> Result<Document, Error> {
        let app = &self.app;
        let options = RequestOptions::new()
            .deadline(deadline)
            .min_generation(self.min_generation)
            .reason(self.reason.as_deref())
            .traceparent(self.traceparent.as_deref());
        /// Adds the parameters that all methods but `mask` have.
        macro_rules! on_fields {
            ($request:expr) => {{
                let request = $request
                    .set_select(self.select.as_deref().map(texts))
                    .unmatched(self.unmatched)
                    .context(&self.context)
                    .on_error(self.on_error)
                    .options(options);
                match &self.contexts {
                    None => request,
                    Some(Contexts::Listed(contexts)) => request.contexts(contexts),
                    Some(Contexts::Path(path)) => request.context_path(path.as_str()),
                }
            }};
        }

        match &self.method {
            DocumentMethod::Encrypt { envelopes, role } => {
                let request = on_fields!(Encrypt::new(app, payload))
                    .envelope_options(*envelopes)
                    .role(role.as_deref());
                client.encrypt(request).await
            }
            DocumentMethod::Decrypt { outside } => {
                let request = on_fields!(Decrypt::new(app, payload))
                    .encapsulations(self.encapsulations.iter().map(String::as_str))
                    .outside(*outside);
                client.decrypt(request).await
            }
            DocumentMethod::Rewrap {
                envelopes,
                unbound,
                outside,
            } => {
                let request = on_fields!(Rewrap::new(app, payload))
                    .encapsulations(self.encapsulations.iter().map(String::as_str))
                    .envelope_options(*envelopes)
                    .unbound(*unbound)
                    .outside(*outside);
                client.rewrap(request).await
            }
            DocumentMethod::Tokenize(tokenize) => {
                let mut request = on_fields!(Tokenize::new(app, &tokenize.collection, payload))
                    .tags(tokenize.tags.iter().map(String::as_str))
                    .expires_after(tokenize.expires_s.map(Duration::from_secs))
                    .subject(tokenize.subject.as_deref());
                if let Some(key) = part_key.or(tokenize.idempotency_key.as_deref()) {
                    request = request.idempotency_key(key);
                }
                client.tokenize(request).await
            }
            DocumentMethod::Detokenize { collection } => {
                let request = on_fields!(Detokenize::new(app, collection, payload));
                client.detokenize(request).await
            }
            DocumentMethod::Mask(mask) => {
                let lists = mask.lists.iter();
                let request = Mask::new(app, payload, mask.rules.iter().map(mask_rule))
                    .unknown(mask.unknown)
                    .lists(lists.map(|(name, entries)| (name.as_str(), texts(entries))))
                    .on_error(self.on_error)
                    .options(options);
                client.mask(request).await
            }
        }
    }
}

/// Returns the path of a dictionary `{"path": PATH}`.
fn path_of(entries: &Bound<'_, PyDict>) -> Option<String> {
    let path = entries.get_item("path").ok()??;
    (entries.len() == 1).then(|| path.extract().ok())?
}

/// Returns the bytes of each item of a sequence. Strings and bytes are sequences of other values.
fn bytes_of_each(items: &Bound<'_, PyAny>) -> Option<Vec<Vec<u8>>> {
    let items: Vec<Bound<'_, PyAny>> = items.extract().ok()?;
    items.iter().map(bytes_of).collect()
}

fn texts(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

fn mask_rule((key, fields, function): &(RuleKey, String, String)) -> MaskRule<'_> {
    match key {
        RuleKey::Path => MaskRule::path(fields, function),
        RuleKey::Column => MaskRule::column(fields, function),
        RuleKey::Kind => MaskRule::kind(fields, function),
    }
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
            let Some(mut request) = DocumentRequest::read(method, app, &options)? else {
                return Err(unknown(method));
            };
            request.read_contexts(&options)?;
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
