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
    let model = |kind: OperationKind| {
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
    };
    Ok(Costs::new(model))
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
        let timed = |document: Vec<u8>| {
            let (sealing, sealed) = best(|| task(&keys, suite, true), &document.into(), metrics)?;
            let (opening, _) = best(|| task(&keys, suite, false), &sealed, metrics)?;
            Ok::<_, RequestFailure>((sealing, opening))
        };
        let empty = timed(document(0, 0))?;
        let one = timed(document(1, SHORT))?;
        let short = timed(document(FIELDS, SHORT))?;
        let long = timed(document(FIELDS, LONG))?;
        // To open nothing takes a call's own time, to seal nothing also a key, to open one field
        // also a key.
        let call = empty.1;
        let line = |with_key: f64, short: f64, long: f64| {
            let byte = ((long - short) / f64::from(FIELDS) / (LONG - SHORT) as f64).max(0.0);
            let field = (short - with_key) / f64::from(FIELDS) - byte * SHORT as f64;
            // Without an agreement the difference can be noise.
            Coefficients {
                request: call,
                key_agreement: (with_key - call).max(0.0),
                field,
                byte,
            }
        };
        Ok(Self {
            seal: line(empty.0, short.0, long.0),
            open: line(one.1, short.1, long.1),
        })
    }
}

fn keys(suite: crypto::Suite) -> Result<Arc<AppKeys>, RequestFailure> {
    let make = || {
        let app = AppId::new("calibration")?;
        let material = KeyMaterial::generate(&app, suite)?;
        AppKeys::new(app, vec![KeyVersion::new(1, KeyState::Active, material)])
    };
    make()
        .map(Arc::new)
        .map_err(|_| RequestFailure::Internal("cannot make a key"))
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
        let reader = FieldOpener::new(
            native,
            Evervault::new(keys, Arc::default()),
            Limits::default().depth_max as usize,
        );
        let open = OpenSpec {
            reader: Box::new(reader),
            on_error: OnError::Fail,
        };
        return start(Containers::Descend, |context| {
            Ok(Fields::Document(Box::new(ShowFields {
                open: open.start(context),
                shown: Disclosure::clear(),
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

/// The least CPU that a call on a document takes, in nanoseconds, and the document that comes back.
fn best(
    task: impl Fn() -> Task,
    payload: &Bytes,
    metrics: &Arc<Metrics>,
) -> Result<(f64, Bytes), RequestFailure> {
    let mut least = (f64::INFINITY, Bytes::new());
    for _ in 0..RUNS {
        let (took, outcome) = timed(job(task(), payload, metrics))?;
        if took < least.0 {
            least = (took, document_of(outcome)?);
        }
    }
    Ok(least)
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
    let order = JobSpec {
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
        sealed: None,
        reply_bytes: 2 * payload.len() + 64 * 1_024,
        estimate: Cost::default(),
    };
    Job::new(start, order, &Limits::default(), Arc::clone(metrics))
}

/// Returns the CPU time in nanoseconds, and the outcome, of one walk.
fn timed(
    (mut work, mut finished): (Box<Job>, Receiver<Finished>),
) -> Result<(f64, Outcome), RequestFailure> {
    let began = thread_cpu();
    work.slice(&SliceBudget::UNLIMITED);
    let took = thread_cpu().saturating_sub(began);
    work.deliver();
    let finished = finished
        .try_recv()
        .map_err(|_| RequestFailure::Internal("calibration did not end"))?;
    Ok((took.as_nanos() as f64, finished.result?))
}

/// The document in a reply.
fn document_of(outcome: Outcome) -> Result<Bytes, RequestFailure> {
    let none = RequestFailure::Internal("calibration gave no document");
    let Outcome::Response(reply) = outcome else {
        return Err(none);
    };
    let reply = Bytes::from(reply);
    let payload = Response::decode(&reply)
        .ok()
        .and_then(|reply| reply.outcome.ok())
        .and_then(|outcome| {
            let document = Document::decode(outcome).ok()?;
            Some(reply.slice_ref(document.payload))
        });
    payload.ok_or(none)
}

fn token_keys() -> Result<Arc<TokenKeys>, RequestFailure> {
    let made = TokenSecret::generate().and_then(|secret| {
        let version = TokenKeyVersion {
            number: 1,
            state: KeyState::Active,
            secret,
        };
        TokenKeys::new(1, vec![version])
    });
    made.map(Arc::new)
        .map_err(|_| RequestFailure::Internal("cannot make a key"))
}

/// Measures masking by a function of medium cost. The cost of the other functions is between a
/// tenth of this and ten times as much.
fn mask_price(
    keys: &Arc<TokenKeys>,
    metrics: &Arc<Metrics>,
) -> Result<Coefficients, RequestFailure> {
    let task = || {
        let rule = MaskRule {
            fields: RuleFields::Path("$[*]"),
            mask: "hash",
        };
        let wanted = MaskSpec::of(&Masking {
            rules: vec![rule],
            ..Masking::default()
        });
        let keys = Arc::clone(keys);
        start(Containers::Descend, move |context| {
            let masks = Arc::new(wanted?.into_masks(masks::secret(&keys))?);
            let field_errors = context.errors(OnError::Fail);
            let cancel = context.cancel;
            Ok(Fields::Document(Box::new(MaskFields::new(
                masks,
                cancel,
                field_errors,
            ))))
        })
    };
    let took =
        |fields, bytes| best(task, &document(fields, bytes).into(), metrics).map(|(took, _)| took);
    let empty = took(0, 0)?;
    let short = took(FIELDS, SHORT)?;
    let long = took(FIELDS, LONG)?;
    let byte = ((long - short) / f64::from(FIELDS) / (LONG - SHORT) as f64).max(0.0);
    let field = (short - empty) / f64::from(FIELDS) - byte * SHORT as f64;
    Ok(Coefficients {
        request: empty,
        key_agreement: 0.0,
        field,
        byte,
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
        (0..RUNS).try_fold([f64::INFINITY; 4], |least, _| {
            let took = walks(&collection, &payload, metrics)?;
            Ok::<_, RequestFailure>(std::array::from_fn(|walk| least[walk].min(took[walk])))
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
    let minting = TokenizeSpec {
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
    let shown = Disclosure::clear();
    let looking = DetokenizeSpec {
        collection: Arc::clone(collection),
        context: Box::default(),
        bounds,
        shown,
    };
    let tokenize = start(Containers::Whole, move |context| {
        let field_errors = context.errors(OnError::Fail);
        let cancel = context.cancel;
        let fields = TokenizeFields::new(minting, cancel, field_errors);
        Ok(Fields::Tokens(TokenFields::Tokenize(Box::new(fields))))
    });
    let detokenize = start(Containers::Descend, move |context| {
        let field_errors = context.errors(OnError::Fail);
        let cancel = context.cancel;
        let fields = DetokenizeFields::new(looking, cancel, field_errors);
        Ok(Fields::Tokens(TokenFields::Detokenize(Box::new(fields))))
    });
    let (mint, outcome) = timed(job(tokenize, payload, metrics))?;
    let mut rows = Vec::new();
    let mut settle = mint;
    let tokens = match outcome {
        Outcome::NeedsStore(mut paused) => {
            if let TokenFields::Tokenize(fields) = &mut paused.fields {
                rows = fields.group().rows;
                fields.apply_written(Written::Done(rows.iter().cloned().map(Some).collect()))?;
            }
            let (took, outcome) = timed(paused.walk_again())?;
            settle = took;
            document_of(outcome)?
        }
        outcome => document_of(outcome)?,
    };
    let (look, outcome) = timed(job(detokenize, &tokens, metrics))?;
    let reveal = match outcome {
        Outcome::NeedsStore(mut paused) => {
            if let TokenFields::Detokenize(fields) = &mut paused.fields {
                let found = rows.into_iter().map(|row| {
                    Some(FoundRow {
                        row,
                        subject_key: None,
                    })
                });
                fields.add_rows(found.collect());
            }
            timed(paused.walk_again())?.0
        }
        Outcome::Response(_) => look,
    };
    Ok([mint, settle, look, reveal])
}

#[cfg(test)]
mod tests;
