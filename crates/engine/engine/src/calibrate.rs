//! Measures the cost of each kind of work once, at start, on keys made for that purpose.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use sealwire_crypto::{
    self as crypto, AppId, AppKeys, KeyMaterial, KeyState, KeyVersion, Opener, Sealer,
};
use sealwire_msgpack::write;
use sealwire_payload::{Containers, ExtraWork, Selection};
use sealwire_records::token::{Format, TokenKeyVersion, TokenKeys, TokenSecret};
use sealwire_schedule::{Coefficients, Cost, CostModel};
use sealwire_store::{FoundRow, MapId, Written};
use sealwire_wire::{
    Document, KeyScope, MaskRule, Masking, Method, OnError, Response, RuleFields, Suite, Unmatched,
};
use tokio::sync::oneshot::Receiver;

use crate::jobs::cost::{Costs, OperationKind, SliceBudget, WorkKind, thread_cpu};
use crate::jobs::error::RequestFailure;
use crate::jobs::field_opener::{Evervault, FieldOpener};
use crate::jobs::field_sealer::FieldSealer;
use crate::jobs::job::{
    FieldContext, Fields, Finished, Job, JobSpec, Outcome, Slices as _, StartFields, TokenFields,
};
use crate::jobs::masks::disclosure::Disclosure;
use crate::jobs::masks::{self, MaskSpec};
use crate::jobs::tokens::detokenize::{DetokenizeFields, DetokenizeSpec};
use crate::jobs::tokens::tokenize::{IdempotencyKey, TokenizeFields, TokenizeSpec};
use crate::jobs::tokens::{self, Bounds, Collection};
use crate::operations::{MaskFields, OpenSpec, SealFields, ShowFields};
use crate::suite;
use sealwire_settings::Limits;
use sealwire_telemetry::metrics::Metrics;

/// Number of fields that are measured to get the cost of one, with few bytes and with many.
const FIELDS: u32 = 256;
const SHORT: usize = 16;
const LONG: usize = 1_024;
/// Number of runs, of which the shortest counts: other work on the machine only makes runs longer.
const RUNS: usize = 5;

/// Runs some work of each kind, which takes about 30 ms of CPU. A process with several engines does
/// this once.
///
/// # Errors
///
/// The crypto library does not work here.
pub fn calibrate() -> Result<Costs, RequestFailure> {
    static COSTS: Mutex<Option<Costs>> = Mutex::new(None);
    // Held while it is measured: two measurements at a time would be of a busy machine.
    let mut costs = COSTS.lock().unwrap_or_else(PoisonError::into_inner);
    let measured = match &*costs {
        Some(costs) => costs.clone(),
        None => measure()?,
    };
    Ok(costs.insert(measured).clone())
}

fn measure() -> Result<Costs, RequestFailure> {
    let keys = token_keys()?;
    // Made once: their many series take longer to make than most of this work.
    let metrics = Arc::new(Metrics::new());
    let suites = Suite::ALL
        .iter()
        .map(|suite| Prices::of(*suite, &metrics))
        .collect::<Result<Vec<_>, _>>()?;
    let tokens = token_prices(&keys, &metrics)?;
    let mask = mask_price(&keys, &metrics)?;
    Ok(Costs::new(|kind| {
        let Prices { seal, open } = suites[kind.suite as usize];
        CostModel::new(match kind.operation {
            WorkKind::MakeTokens => tokens[0],
            WorkKind::OpenExisting => tokens[1],
            WorkKind::HashTokens => tokens[2],
            WorkKind::OpenRows => tokens[3],
            WorkKind::Mask => mask,
            // A first guess: an object is sealed like a row. The scheduler learns what collections
            // take.
            WorkKind::SealObjects => tokens[0],
            WorkKind::OpenObjects => tokens[3],
            WorkKind::Seal => seal,
            WorkKind::Open => open,
            WorkKind::Rewrap => Coefficients {
                request: seal.request,
                // A rewrap needs one agreement to open and one to seal. The model has only one cost
                // for both.
                key_agreement: f64::midpoint(seal.key_agreement, open.key_agreement),
                field: seal.field + open.field,
                byte: seal.byte + open.byte,
            },
        })
    }))
}

/// Measures sealing and opening of one suite.
#[derive(Clone, Copy)]
struct Prices {
    seal: Coefficients,
    open: Coefficients,
}

impl Prices {
    fn of(suite: Suite, metrics: &Arc<Metrics>) -> Result<Self, RequestFailure> {
        let suite = suite::from_wire(suite);
        let keys = keys(suite)?;
        let empty = SealAndOpenTimes::measure(&keys, suite, document(0, 0), metrics)?;
        let one = SealAndOpenTimes::measure(&keys, suite, document(1, SHORT), metrics)?;
        let short = SealAndOpenTimes::measure(&keys, suite, document(FIELDS, SHORT), metrics)?;
        let long = SealAndOpenTimes::measure(&keys, suite, document(FIELDS, LONG), metrics)?;
        // Opening an empty document takes only the fixed time of a request. Sealing an empty
        // document, or opening one field, also takes a key agreement.
        let fixed = empty.open;
        Ok(Self {
            seal: coefficients(fixed, empty.seal, short.seal, long.seal),
            open: coefficients(fixed, one.open, short.open, long.open),
        })
    }
}

/// Times of sealing and opening one document.
struct SealAndOpenTimes {
    seal: f64,
    open: f64,
}

impl SealAndOpenTimes {
    fn measure(
        keys: &Arc<AppKeys>,
        suite: crypto::Suite,
        document: Vec<u8>,
        metrics: &Arc<Metrics>,
    ) -> Result<Self, RequestFailure> {
        let (seal, sealed) = best(|| task(keys, suite, true), &document.into(), metrics)?;
        let (open, _) = best(|| task(keys, suite, false), &sealed, metrics)?;
        Ok(Self { seal, open })
    }
}

/// Derives the coefficients from the time of a request without work (`fixed`), of a request with
/// one key agreement, and of requests with [`FIELDS`] short and long fields.
fn coefficients(fixed: f64, with_key: f64, short: f64, long: f64) -> Coefficients {
    let byte = ((long - short) / f64::from(FIELDS) / (LONG - SHORT) as f64).max(0.0);
    Coefficients {
        request: fixed,
        // Without a key agreement the difference can be noise.
        key_agreement: (with_key - fixed).max(0.0),
        field: (short - with_key) / f64::from(FIELDS) - byte * SHORT as f64,
        byte,
    }
}

fn keys(suite: crypto::Suite) -> Result<Arc<AppKeys>, RequestFailure> {
    generate_keys(suite)
        .map(Arc::new)
        .map_err(|_| RequestFailure::Internal("cannot generate a key"))
}

fn generate_keys(suite: crypto::Suite) -> Result<AppKeys, crypto::Error> {
    let app = AppId::new("calibration")?;
    let material = KeyMaterial::generate(&app, suite)?;
    AppKeys::new(app, vec![KeyVersion::new(1, KeyState::Active, material)])
}

fn document(fields: u32, bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, fields);
    for _ in 0..fields {
        write::str(&mut out, &"x".repeat(bytes));
    }
    out
}

/// An operation to measure, and whether it takes containers as one field.
type Task = (Containers, Box<dyn StartFields>);

fn task(keys: &Arc<AppKeys>, suite: crypto::Suite, seals: bool) -> Task {
    let keys = Arc::clone(keys);
    if !seals {
        let native = Opener::new(Arc::clone(&keys), b"");
        let opener = FieldOpener::new(
            native,
            Evervault::new(keys, Arc::default()),
            Limits::default().depth_max as usize,
        );
        let open = OpenSpec {
            opener: Box::new(opener),
            on_error: OnError::Fail,
        };
        return start(Containers::Descend, |context| {
            Ok(Fields::Document(Box::new(ShowFields {
                open: open.start(context),
                disclosure: Disclosure::clear(),
            })))
        });
    }

    start(Containers::Whole, move |context| {
        let newest = keys.newest(suite).cloned().ok_or(RequestFailure::NoKey)?;
        let sealer = Sealer::new(
            keys.app(),
            newest,
            crypto::KeyScope::Request,
            crypto::Encoding::Text,
            b"",
        )
        .map_err(|_| RequestFailure::Internal("the crypto library failed"))?;
        let field_errors = context.errors(OnError::Fail);
        let cancel = context.cancel;
        Ok(Fields::Document(Box::new(SealFields {
            writer: FieldSealer::Native(sealer.into()),
            contexts: None,
            cancel,
            field_errors,
        })))
    })
}

fn start(
    containers: Containers,
    start: impl FnOnce(FieldContext) -> Result<Fields, RequestFailure> + Send + 'static,
) -> Task {
    (containers, Box::new(start))
}

/// Returns the least CPU time of a request on a document, in nanoseconds, and the document of its
/// response.
fn best(
    task: impl Fn() -> Task,
    payload: &Bytes,
    metrics: &Arc<Metrics>,
) -> Result<(f64, Bytes), RequestFailure> {
    let mut best_result = (f64::INFINITY, Bytes::new());
    for _ in 0..RUNS {
        let (time, outcome) = timed(job(task(), payload, metrics))?;
        if time < best_result.0 {
            best_result = (time, document_of(outcome)?);
        }
    }
    Ok(best_result)
}

fn job(task: Task, payload: &Bytes, metrics: &Arc<Metrics>) -> (Box<Job>, Receiver<Finished>) {
    job_of(task, payload, Selection::everything(), metrics)
}

fn job_of(
    (containers, start): Task,
    payload: &Bytes,
    selection: Selection,
    metrics: &Arc<Metrics>,
) -> (Box<Job>, Receiver<Finished>) {
    let spec = JobSpec {
        msgid: 0,
        method: Method::Encrypt.into(),
        kind: OperationKind::of(Method::Encrypt, Suite::P256, KeyScope::Request),
        payload: payload.clone(),
        selection: Arc::new(selection),
        containers,
        unmatched: Unmatched::default(),
        cancel: Arc::default(),
        generation: 0,
        leaves: u64::from(FIELDS),
        extra: ExtraWork::default(),
        context_bytes: 0,
        contexts: None,
        sealed: None,
        response_bytes: 2 * payload.len() + 64 * 1_024,
        estimate: Cost::default(),
    };
    Job::new(start, spec, &Limits::default(), Arc::clone(metrics))
}

/// Returns the CPU time in nanoseconds, and the outcome, of one walk.
fn timed(
    (mut work, mut finished): (Box<Job>, Receiver<Finished>),
) -> Result<(f64, Outcome), RequestFailure> {
    let started = thread_cpu();
    work.slice(&SliceBudget::UNLIMITED);
    let time = thread_cpu().saturating_sub(started);
    work.deliver();
    let finished = finished
        .try_recv()
        .map_err(|_| RequestFailure::Internal("calibration did not end"))?;
    Ok((time.as_nanos() as f64, finished.result?))
}

/// The document in a response.
fn document_of(outcome: Outcome) -> Result<Bytes, RequestFailure> {
    let none = RequestFailure::Internal("calibration gave no document");
    let Outcome::Response(response) = outcome else {
        return Err(none);
    };
    let response = Bytes::from(response);
    let payload = Response::decode(&response)
        .ok()
        .and_then(|response| response.outcome.ok())
        .and_then(|outcome| {
            let document = Document::decode(outcome).ok()?;
            Some(response.slice_ref(document.payload))
        });
    payload.ok_or(none)
}

fn token_keys() -> Result<Arc<TokenKeys>, RequestFailure> {
    let keys = TokenSecret::generate().and_then(|secret| {
        let version = TokenKeyVersion {
            number: 1,
            state: KeyState::Active,
            secret,
        };
        TokenKeys::new(1, vec![version])
    });
    keys.map(Arc::new)
        .map_err(|_| RequestFailure::Internal("cannot generate a key"))
}

/// Measures masking by a function of medium cost. The cost of the other functions is between a
/// tenth of this and ten times as much.
fn mask_price(
    keys: &Arc<TokenKeys>,
    metrics: &Arc<Metrics>,
) -> Result<Coefficients, RequestFailure> {
    let (empty, _) = best(|| mask_task(keys), &document(0, 0).into(), metrics)?;
    let (short, _) = best(|| mask_task(keys), &document(FIELDS, SHORT).into(), metrics)?;
    let (long, _) = best(|| mask_task(keys), &document(FIELDS, LONG).into(), metrics)?;
    Ok(coefficients(empty, empty, short, long))
}

fn mask_task(keys: &Arc<TokenKeys>) -> Task {
    let spec = MaskSpec::of(&Masking {
        rules: vec![MaskRule {
            fields: RuleFields::Path("$[*]"),
            mask: "hash",
        }],
        ..Masking::default()
    });

    let keys = Arc::clone(keys);
    start(Containers::Descend, move |context| {
        let masks = Arc::new(spec?.into_masks(masks::mask_secret(&keys))?);
        let field_errors = context.errors(OnError::Fail);
        let fields = MaskFields::new(masks, context.cancel, field_errors);
        Ok(Fields::Document(Box::new(fields)))
    })
}

/// Measures each walk over tokens, in the order of their kinds.
fn token_prices(
    keys: &Arc<TokenKeys>,
    metrics: &Arc<Metrics>,
) -> Result<[Coefficients; 4], RequestFailure> {
    let collection = Arc::new(Collection {
        keys: Arc::clone(keys),
        map: MapId {
            app: 1,
            collection: 1,
        },
        kind: tokens::CollectionKind::Random,
        format: Format::Opaque,
        per_context: false,
        expires_s: None,
    });

    let [empty, short, long] = [(0, 0), (FIELDS, SHORT), (FIELDS, LONG)].map(|(fields, bytes)| {
        let payload = Bytes::from(document(fields, bytes));
        (0..RUNS).try_fold([f64::INFINITY; 4], |best_result, _| {
            let time = walks(&collection, &payload, metrics)?;
            Ok::<_, RequestFailure>(std::array::from_fn(|walk| {
                best_result[walk].min(time[walk])
            }))
        })
    });

    let empty = empty?;
    let short = short?;
    let long = long?;
    Ok(std::array::from_fn(|walk| {
        let byte =
            ((long[walk] - short[walk]) / f64::from(FIELDS) / (LONG - SHORT) as f64).max(0.0);
        let field = (short[walk] - empty[walk]) / f64::from(FIELDS) - byte * SHORT as f64;
        Coefficients {
            request: empty[walk],
            key_agreement: 0.0,
            field,
            byte,
        }
    }))
}

/// The CPU of each walk of a round trip. The store has a token for every field already, which costs
/// the most.
fn walks(
    collection: &Arc<Collection>,
    payload: &Bytes,
    metrics: &Arc<Metrics>,
) -> Result<[f64; 4], RequestFailure> {
    let bounds = Bounds {
        fields_max: FIELDS as usize,
        value_bytes_max: LONG,
    };
    let tokenize_spec = TokenizeSpec {
        collection: Arc::clone(collection),
        context: Box::default(),
        tags: Vec::new(),
        expires: None,
        created: 0,
        idempotency_key: Some(IdempotencyKey {
            principal: "calibration".into(),
            key: (*b"calibration").into(),
        }),
        subject: None,
        bounds,
    };

    let disclosure = Disclosure::clear();
    let detokenize_spec = DetokenizeSpec {
        collection: Arc::clone(collection),
        context: Box::default(),
        bounds,
        disclosure,
    };
    let tokenize = start(Containers::Whole, move |context| {
        let field_errors = context.errors(OnError::Fail);
        let cancel = context.cancel;
        let fields = TokenizeFields::new(tokenize_spec, cancel, field_errors);
        Ok(Fields::Tokens(TokenFields::Tokenize(Box::new(fields))))
    });
    let detokenize = start(Containers::Descend, move |context| {
        let field_errors = context.errors(OnError::Fail);
        let cancel = context.cancel;
        let fields = DetokenizeFields::new(detokenize_spec, cancel, field_errors);
        Ok(Fields::Tokens(TokenFields::Detokenize(Box::new(fields))))
    });
    let (first_tokenize_walk, outcome) = timed(job(tokenize, payload, metrics))?;
    let mut rows = Vec::new();
    let mut second_tokenize_walk = first_tokenize_walk;
    let tokens = match outcome {
        Outcome::NeedsStore(mut suspended) => {
            if let TokenFields::Tokenize(fields) = &mut suspended.fields {
                rows = fields.group().rows;
                fields.apply_written(Written::Done(rows.iter().cloned().map(Some).collect()))?;
            }
            let (time, outcome) = timed(suspended.walk_again())?;
            second_tokenize_walk = time;
            document_of(outcome)?
        }
        outcome => document_of(outcome)?,
    };

    let (first_detokenize_walk, outcome) = timed(job(detokenize, &tokens, metrics))?;
    let second_detokenize_walk = match outcome {
        Outcome::NeedsStore(mut suspended) => {
            if let TokenFields::Detokenize(fields) = &mut suspended.fields {
                let found = rows.into_iter().map(|row| {
                    Some(FoundRow {
                        row,
                        subject_key: None,
                    })
                });
                fields.add_rows(found.collect());
            }
            timed(suspended.walk_again())?.0
        }
        Outcome::Response(_) => first_detokenize_walk,
    };

    Ok([
        first_tokenize_walk,
        second_tokenize_walk,
        first_detokenize_walk,
        second_detokenize_walk,
    ])
}

#[cfg(test)]
mod tests;
