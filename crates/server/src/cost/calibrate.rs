//! What each kind of work costs on this machine: some of each is done once, at start, on keys made for that.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sealwire_crypto::{self as crypto, AppId, AppKeys, KeyPair, KeyState, KeyVersion, Opener, Sealer};
use sealwire_msgpack::write;
use sealwire_payload::Selection;
use sealwire_schedule::{Coefficients, CostModel, Work as Cost};
use sealwire_wire::{Curve, Document, KeyScope, Method, OnError, Reply};

use super::{Allowance, Costs, Kind, Operation, thread_cpu};
use crate::error::CallFailure;
use crate::limits::Limits;
use crate::metrics::{MethodLabel, Metrics};
use crate::reader::{Evervault, Reader};
use crate::work::{Order, Reading, Task, Work};
use crate::writer::Writer;

/// Fields from which the price of one is taken, of a few bytes and of many.
const FIELDS: u32 = 256;
const SHORT: usize = 16;
const LONG: usize = 1_024;
/// The least of so many runs counts: whatever disturbs makes it longer.
const RUNS: usize = 5;

/// Does some of each kind of work: about 20 ms of CPU.
///
/// # Errors
///
/// The crypto library does not work here.
pub fn calibrate() -> Result<Costs, CallFailure> {
    let (r1, k1) = (Prices::on(Curve::R1)?, Prices::on(Curve::K1)?);
    let model = |kind: Kind| {
        let Prices { seal, open } = if kind.curve == Curve::R1 { r1 } else { k1 };
        CostModel::new(match kind.operation {
            Operation::Seal => seal,
            Operation::Open => open,
            Operation::Rewrap => Coefficients {
                call: seal.call,
                // One to open and one to seal, which count alike.
                key: f64::midpoint(seal.key, open.key),
                field: seal.field + open.field,
                byte: seal.byte + open.byte,
            },
        })
    };
    let models: Vec<_> = Kind::all().map(model).collect();
    Ok(Costs(models.try_into().unwrap_or_else(|_| unreachable!("as many as kinds"))))
}

/// What sealing and opening cost on one curve.
#[derive(Clone, Copy)]
struct Prices {
    seal: Coefficients,
    open: Coefficients,
}

impl Prices {
    fn on(curve: Curve) -> Result<Self, CallFailure> {
        let keys = keys(curve)?;
        let timed = |document: Vec<u8>| {
            let (sealing, sealed) = best(|| task(&keys, curve, true), &document.into())?;
            let (opening, _) = best(|| task(&keys, curve, false), &sealed)?;
            Ok::<_, CallFailure>((sealing, opening))
        };
        let (empty, one) = (timed(document(0, 0))?, timed(document(1, SHORT))?);
        let (short, long) = (timed(document(FIELDS, SHORT))?, timed(document(FIELDS, LONG))?);
        // To open nothing takes a call's own time, to seal nothing also a key, to open one field also a key.
        let call = empty.1;
        let line = |with_key: f64, short: f64, long: f64| {
            let byte = ((long - short) / f64::from(FIELDS) / (LONG - SHORT) as f64).max(0.0);
            let field = (short - with_key) / f64::from(FIELDS) - byte * SHORT as f64;
            Coefficients { call, key: with_key - call, field, byte }
        };
        Ok(Self { seal: line(empty.0, short.0, long.0), open: line(one.1, short.1, long.1) })
    }
}

fn keys(curve: Curve) -> Result<Arc<AppKeys>, CallFailure> {
    let curve = match curve {
        Curve::R1 => crypto::Curve::P256,
        Curve::K1 => crypto::Curve::Secp256k1,
    };
    let made = KeyPair::generate(curve).and_then(|pair| {
        let version = KeyVersion::new(1, KeyState::Active, pair);
        AppKeys::new(AppId::new("calibration")?, vec![version])
    });
    made.map(Arc::new).map_err(|_| CallFailure::Internal("cannot make a key"))
}

fn document(fields: u32, bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, fields);
    for _ in 0..fields {
        write::str(&mut out, &"x".repeat(bytes));
    }
    out
}

fn task(keys: &Arc<AppKeys>, curve: Curve, seals: bool) -> Task {
    let keys = Arc::clone(keys);
    if !seals {
        let native = Opener::new(Arc::clone(&keys), b"");
        let reader = Reader::new(native, Evervault::new(keys, Arc::default()), Limits::default().depth_max as usize);
        return Task::Open(Reading { reader: Box::new(reader), on_error: OnError::Fail });
    }
    let curve = match curve {
        Curve::R1 => crypto::Curve::P256,
        Curve::K1 => crypto::Curve::Secp256k1,
    };
    let writer = move || {
        let newest = keys.newest(curve).cloned().ok_or(crypto::Error::KeyIdTaken)?;
        let sealer = Sealer::new(keys.app(), newest, crypto::KeyScope::Request, crypto::Encoding::Text, b"")?;
        Ok(Writer::Native(sealer.into()))
    };
    Task::Seal { writer: Box::new(writer), on_error: OnError::Fail }
}

/// The CPU that a call on a document takes, in nanoseconds, and the document that comes back.
fn best(task: impl Fn() -> Task, payload: &Bytes) -> Result<(f64, Bytes), CallFailure> {
    let (limits, metrics) = (Limits::default(), Arc::new(Metrics::new()));
    let mut least = (Duration::MAX, Bytes::new());
    for _ in 0..RUNS {
        let order = Order {
            msgid: 0,
            method: MethodLabel::Encrypt,
            kind: Kind::of(Method::Encrypt, Curve::R1, KeyScope::Request),
            payload: payload.clone(),
            selection: Arc::new(Selection::everything()),
            ticket: Arc::default(),
            generation: 0,
            leaves: u64::from(FIELDS),
            reply_bytes: 2 * payload.len() + 64 * 1_024,
            estimate: Cost::default(),
        };
        let (mut work, mut finished) = Work::new(task(), order, &limits, Arc::clone(&metrics));
        let began = thread_cpu();
        work.slice(&Allowance::UNLIMITED);
        let took = thread_cpu().saturating_sub(began);
        let finished = finished.try_recv().map_err(|_| CallFailure::Internal("calibration did not end"))?;
        if took < least.0 {
            least = (took, Bytes::from(finished.result?));
        }
    }
    Ok((least.0.as_nanos() as f64, document_of(&least.1).ok_or(CallFailure::Internal("calibration gave no document"))?))
}

/// The document in a reply.
fn document_of(reply: &Bytes) -> Option<Bytes> {
    let outcome = Reply::decode(reply).ok()?.outcome.ok()?;
    Some(reply.slice_ref(Document::decode(outcome).ok()?.payload))
}
