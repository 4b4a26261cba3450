//! What every connection shares, and how a decoded call becomes work.

use std::sync::Arc;

use bytes::Bytes;
use sealwire_crypto as crypto;
use sealwire_payload::Selection;
use sealwire_wire::{self as wire, Call, DocumentCall, Info, Inspect, Inspection, ValueKind, Writing};
use tokio::sync::Semaphore;

use crate::apps::Apps;
use crate::budget::GlobalBytes;
use crate::config;
use crate::error::CallFailure;
use crate::faults::Faults;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::pool::Pool;
use crate::reader::{Evervault, Reader};
use crate::work::{MakeSealer, Reading, Task};

/// What every connection shares.
#[derive(Debug)]
pub struct Engine {
    /// Every bound.
    pub limits: Limits,
    /// What is read of the Evervault format.
    pub evervault: Arc<config::Evervault>,
    /// The apps and their keys.
    pub apps: Arc<Apps>,
    /// The crypto threads.
    pub pool: Pool,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Bytes held over all connections.
    pub bytes: Arc<GlobalBytes>,
    /// Places for calls over all connections.
    pub calls: Arc<Semaphore>,
}

/// What a document call asks for, resolved against the apps.
pub struct Plan {
    /// The document, a part of the frame.
    pub payload: Bytes,
    /// Its fields.
    pub selection: Selection,
    /// What to do with them.
    pub task: Task,
    /// The generation of the keys.
    pub generation: u64,
    /// The deadline the caller names, cut to the limit.
    pub deadline_ms: u64,
}

impl Engine {
    /// Resolves a document call.
    ///
    /// # Errors
    ///
    /// No such app or key, a select path that does not parse, or an older generation than demanded.
    pub fn plan(&self, frame: &Bytes, call: &Call<'_>) -> Result<Plan, CallFailure> {
        match call {
            Call::Encrypt(call) => self.plan_on(frame, call, |keys| {
                let keyed = call.writing.key_scope == wire::KeyScope::Field;
                Ok(Task::Seal { sealer: sealer(keys, call)?, keyed })
            }),
            Call::Decrypt(call) => self.plan_on(frame, call, |keys| Ok(Task::Open(self.reading(keys, call)))),
            Call::Rewrap(call) => self.plan_on(frame, call, |keys| {
                Ok(Task::Rewrap(self.reading(Arc::clone(&keys), call), sealer(keys, call)?))
            }),
            Call::Inspect(_) | Call::Info | Call::Health => {
                Err(CallFailure::Internal("the scan and the decoder disagree on the method"))
            }
        }
    }

    fn plan_on<W>(
        &self,
        frame: &Bytes,
        call: &DocumentCall<'_, W>,
        task: impl FnOnce(Arc<crypto::AppKeys>) -> Result<Task, CallFailure>,
    ) -> Result<Plan, CallFailure> {
        let (generation, keys) = self.find(call.app, call.min_generation)?;
        Ok(Plan {
            payload: frame.slice_ref(call.payload),
            task: task(keys)?,
            selection: selection(call.select.as_deref())?,
            generation,
            deadline_ms: self.deadline_ms(call.deadline_ms),
        })
    }

    fn reading<W>(&self, keys: Arc<crypto::AppKeys>, call: &DocumentCall<'_, W>) -> Reading {
        let native = crypto::Opener::new(Arc::clone(&keys), call.context).keeping(self.apps.opened().cloned());
        let evervault = Evervault::new(keys, Arc::clone(&self.evervault)).refusing(!call.context.is_empty());
        let reader = Reader::new(native, evervault, self.limits.depth_max as usize);
        Reading { reader: Box::new(reader), on_error: call.on_error }
    }

    fn find(&self, app: &str, min_generation: Option<u64>) -> Result<(u64, Arc<crypto::AppKeys>), CallFailure> {
        let (have, keys) = self.apps.find(app);
        if min_generation.is_some_and(|wanted| wanted > have) {
            return Err(CallFailure::OldGeneration { have });
        }
        Ok((have, keys.ok_or(CallFailure::NoApp)?))
    }

    fn deadline_ms(&self, wanted: Option<u32>) -> u64 {
        wanted.map_or(self.limits.deadline_ms_default, u64::from).min(self.limits.deadline_ms_max)
    }

    /// Bytes to set aside for a reply before it is made: an upper bound, never more than the limit.
    pub fn reply_bytes(&self, method: wire::Method, message_bytes: usize, leaves: u64) -> usize {
        /// Head, map keys and generation.
        const FRAME: usize = 128;
        let bytes = match method {
            wire::Method::Encrypt => {
                let leaves = usize::try_from(leaves).unwrap_or(usize::MAX);
                // Prefix, header, body overhead and a MessagePack header; base64 takes a third more.
                let per_leaf = crypto::Encoding::Text.sealed_bytes(0) + 8;
                leaves.saturating_mul(per_leaf).saturating_add(message_bytes / 3 * 4)
            }
            wire::Method::Rewrap => {
                // The longest case, binary made text: a third more, and for each up to 2 bytes of rounding and 2 of header.
                let leaves_bytes = usize::try_from(leaves).unwrap_or(usize::MAX).saturating_mul(4);
                let sealed = message_bytes.div_ceil(3).saturating_mul(4).saturating_add(leaves_bytes);
                sealed.saturating_add(Faults::bytes(self.limits.errors_reported_max, leaves))
            }
            // What opens is shorter than its envelope; what does not may be listed.
            _ => message_bytes.saturating_add(Faults::bytes(self.limits.errors_reported_max, leaves)),
        };
        bytes.saturating_add(FRAME).min(self.limits.reply_bytes_max)
    }

    /// Answers `inspect`.
    ///
    /// # Errors
    ///
    /// [`CallFailure::Payload`] when it is no envelope.
    pub fn inspect(call: &Inspect<'_>) -> Result<Inspection, CallFailure> {
        let envelope = match call.envelope {
            wire::Envelope::Text(text) => crypto::Envelope::from_text(text.as_bytes()),
            wire::Envelope::Binary(bytes) => crypto::Envelope::from_binary(bytes),
        };
        let envelope = envelope.ok_or_else(|| CallFailure::Payload("not an envelope".into()))?;
        Ok(Inspection {
            format: wire::Format::Native,
            version: 1,
            curve: match envelope.curve {
                crypto::Curve::P256 => wire::Curve::R1,
                crypto::Curve::Secp256k1 => wire::Curve::K1,
            },
            key_id: envelope.key_id.to_string(),
            datatype: match envelope.datatype {
                crypto::Datatype::String => ValueKind::String,
                crypto::Datatype::Binary => ValueKind::Binary,
                crypto::Datatype::Value => ValueKind::Value,
            },
            sequence: envelope.sequence.into(),
            encoding: match envelope.encoding {
                crypto::Encoding::Text => wire::Encoding::Text,
                crypto::Encoding::Binary => wire::Encoding::Binary,
            },
            plaintext_bytes: envelope.plaintext_bytes as u64,
        })
    }

    /// Answers `info`.
    pub fn info(&self) -> Info {
        let limits = &self.limits;
        let names = |names: &mut dyn Iterator<Item = &'static str>| names.map(str::to_owned).collect();
        Info {
            name: "sealwire".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: wire::PROTOCOL,
            generation: self.apps.generation(),
            methods: names(&mut wire::Method::ALL.iter().map(|method| method.name())),
            curves: names(&mut wire::Curve::ALL.iter().map(|curve| curve.name())),
            formats: names(&mut wire::Format::ALL.iter().map(|format| format.name())),
            encodings: names(&mut wire::Encoding::ALL.iter().map(|encoding| encoding.name())),
            key_scopes: names(&mut wire::KeyScope::ALL.iter().map(|scope| scope.name())),
            limits: vec![
                ("message_bytes_max".into(), limits.message_bytes_max as u64),
                ("depth_max".into(), limits.depth_max.into()),
                ("elements_max".into(), limits.elements_max as u64),
                ("reply_bytes_max".into(), limits.reply_bytes_max as u64),
                ("discard_bytes_max".into(), limits.discard_bytes_max as u64),
                ("in_flight_per_connection_max".into(), limits.in_flight_per_connection_max as u64),
                ("deadline_ms_default".into(), limits.deadline_ms_default),
                ("deadline_ms_max".into(), limits.deadline_ms_max),
            ],
        }
    }
}

/// How a call's sealer is made, on a crypto thread. What is not there is found out here.
fn sealer(keys: Arc<crypto::AppKeys>, call: &DocumentCall<'_, Writing>) -> Result<MakeSealer, CallFailure> {
    let writing = call.writing;
    let curve = match writing.curve {
        wire::Curve::R1 => crypto::Curve::P256,
        wire::Curve::K1 => crypto::Curve::Secp256k1,
    };
    let scope = match writing.key_scope {
        wire::KeyScope::Request => crypto::KeyScope::Request,
        wire::KeyScope::Field => crypto::KeyScope::Field,
    };
    let encoding = match writing.encoding {
        wire::Encoding::Text => crypto::Encoding::Text,
        wire::Encoding::Binary => crypto::Encoding::Binary,
    };
    let newest = Arc::clone(keys.newest(curve).ok_or(CallFailure::NoKey)?);
    let context: Box<[u8]> = call.context.into();
    Ok(Box::new(move || crypto::Sealer::new(keys.app(), newest, scope, encoding, &context)))
}

fn selection(paths: Option<&[&str]>) -> Result<Selection, CallFailure> {
    paths.map_or(Ok(Selection::everything()), |paths| Ok(Selection::parse(paths.iter().copied())?))
}
