//! State that all connections share, and the plan of a decoded request.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sealwire_access::Permit;
use sealwire_crypto::{self as crypto, evervault};
use sealwire_payload::Selection;
use sealwire_store::{self as store, App, AppState};
use sealwire_wire::{
    self as wire, Call, DocumentCall, Info, Inspect, Inspection, Methods, Tokenize, Unmatched, Writing,
};

use crate::access::Authorizer;
use crate::apps::{Apps, CachedApp};
use crate::audit::Audit;
use crate::cost::fields_max;
use crate::error::CallFailure;
use crate::failures::Failures;
use crate::field_errors::FieldErrors;
use crate::field_opener::{Evervault, FieldOpener};
use crate::field_sealer::FieldSealer;
use crate::inspect;
use crate::io_fairness::IoFairness;
use crate::job::{MakeWriter, Reading, Task};
use crate::masks::{self, MaskSpec};
use crate::scheduler::Scheduler;
use crate::sweeper::{Ledger, Swept};
use crate::tokens::detokenize::DetokenizeSpec;
use crate::tokens::store_io::{FRAME_BYTES, Tokens};
use crate::tokens::tokenize::{TOKEN_BYTES, TokenizeSpec};
use crate::tokens::{self, Bounds, Collection};
use sealwire_config::Limits;
use sealwire_telemetry::metrics::Metrics;
use sealwire_telemetry::metrics::{SweepAction, SweepOutcome};
use sealwire_telemetry::traces::Traces;

/// Bytes by which an Evervault string may be longer than an envelope of the same value: longer keys and metadata, and
/// numbers as text. Held by a test.
const EVERVAULT_MORE: usize = 128;

/// State that all connections share.
#[derive(Debug)]
pub struct Engine {
    /// Every bound.
    pub limits: Limits,
    /// Options for reading the Evervault format.
    pub evervault: Arc<sealwire_config::Evervault>,
    /// The apps and their keys.
    pub apps: Arc<Apps>,
    /// Decides on permissions.
    pub decider: Authorizer,
    /// The crypto threads, and who may use them.
    pub scheduler: Scheduler,
    /// The turns of network threads.
    pub turns: IoFairness,
    /// The token store, where there is one.
    pub tokens: Option<Tokens>,
    /// Where calls are recorded.
    pub audit: Audit,
    /// Where spans of calls go.
    pub traces: Traces,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Why the token store fails, for the log.
    pub failures: Failures,
}

impl Ledger for Arc<Engine> {
    fn is_ready(&self) -> bool {
        self.audit.ready().is_ok()
    }

    fn count(&self, action: SweepAction, rows: u64) {
        self.metrics.sweeps.rows(action, rows);
    }

    fn record(&self, swept: &Swept) {
        self.audit.swept(swept);
    }

    fn ended(&self, outcome: SweepOutcome) {
        self.metrics.sweeps.ended(outcome);
    }
}

/// A document request resolved against the apps.
pub struct Plan {
    /// The document, a part of the frame.
    pub payload: Bytes,
    /// Its fields.
    pub selection: Arc<Selection>,
    /// Effect of a path that selects no field.
    pub unmatched: Unmatched,
    /// Operation on the fields.
    pub task: Task,
    /// Format of sealed values.
    pub format: wire::Format,
    /// Bytes that the call takes beside its messages.
    pub beside_bytes: usize,
    /// By how much masks may make the reply longer than a call of its method else has it.
    pub growth_bytes: usize,
    /// The generation of the keys.
    pub generation: u64,
}

/// A collection that a call names, and the generation this is true of.
pub struct Located {
    /// The generation.
    pub generation: u64,
    /// The collection.
    pub collection: Arc<Collection>,
    /// Its app.
    app: Arc<CachedApp>,
}

impl Engine {
    /// Resolves a document call that is permitted, of a message with so many leaves.
    ///
    /// # Errors
    ///
    /// No such app, key or collection, a select path that does not parse, or an older generation than demanded.
    pub fn plan(&self, permit: &Permit<'_>, frame: &Bytes, call: &Call<'_>, leaves: u64) -> Result<Plan, CallFailure> {
        let fields = usize::try_from(fields_max(leaves)).unwrap_or(usize::MAX);
        match call {
            Call::Tokenize(call) => {
                let located = self.locate(permit, call.min_generation)?;
                let minting = self.minting(Arc::clone(&located.collection), call)?;
                let beside = minting.entry_bytes(fields, frame.len());
                plan_on_tokens(frame, call, &located, Task::Tokenize(minting, call.on_error), beside)
            }
            Call::Detokenize(call) => {
                let located = self.locate(permit, call.min_generation)?;
                let (collection, context) = (Arc::clone(&located.collection), call.context.into());
                let shown = located.app.shown(permit)?;
                let looking = DetokenizeSpec { collection, context, bounds: self.token_bounds(), shown };
                let beside = looking.entry_bytes(fields);
                plan_on_tokens(frame, call, &located, Task::Detokenize(looking, call.on_error), beside)
            }
            Call::Encrypt(call) => self.plan_on(permit, frame, call, Some(&call.writing), |app, format| {
                Ok(Task::Seal { writer: writer(app, call, format)?, on_error: call.on_error })
            }),
            Call::Decrypt(call) => {
                let mut growth = 0;
                let plan = self.plan_on(permit, frame, call, None, |app, _| {
                    let shown = app.shown(permit)?;
                    growth = shown.growth(fields, frame.len());
                    // What binds no context does not open for who asked for one.
                    let mut reading = self.reading(&app.keys, call, !call.context.is_empty());
                    if shown.mask().is_some() {
                        reading.reader.ignore_unauthenticated_types();
                    }
                    Ok(Task::Open(reading, shown))
                });
                Ok(Plan { growth_bytes: growth, ..plan? })
            }
            Call::Mask(call) => {
                let wanted = MaskSpec::of(&call.writing)?;
                let growth = wanted.growth(fields, call.payload.len());
                let plan = self.plan_on(permit, frame, call, None, |app, _| {
                    let keys = Arc::clone(&app.token_keys);
                    let masks = Box::new(move || wanted.into_masks(&masks::secret(&keys)));
                    Ok(Task::Mask(masks, call.on_error))
                });
                Ok(Plan { growth_bytes: growth, ..plan? })
            }
            Call::Rewrap(call) => self.plan_on(permit, frame, call, Some(&call.writing), |app, format| {
                let native_only = !call.context.is_empty() && call.writing.unbound == wire::Unbound::Refuse;
                Ok(Task::Rewrap(self.reading(&app.keys, call, native_only), writer(app, call, format)?))
            }),
            _ => Err(CallFailure::Internal("the scan and the decoder disagree on the method")),
        }
    }

    fn plan_on<W>(
        &self,
        permit: &Permit<'_>,
        frame: &Bytes,
        call: &DocumentCall<'_, W>,
        writing: Option<&Writing<'_>>,
        task: impl FnOnce(&CachedApp, wire::Format) -> Result<Task, CallFailure>,
    ) -> Result<Plan, CallFailure> {
        let (generation, app) = self.find(permit, call.min_generation)?;
        let format = match writing {
            Some(writing) => writing.format.unwrap_or(match app.settings.format {
                store::Format::Native => wire::Format::Native,
                store::Format::Evervault => wire::Format::Evervault,
            }),
            None => wire::Format::Native,
        };
        Ok(Plan {
            payload: frame.slice_ref(call.payload),
            task: task(&app, format)?,
            selection: Arc::new(selection(call.select.as_deref())?),
            unmatched: call.unmatched,
            format,
            beside_bytes: 0,
            growth_bytes: 0,
            generation,
        })
    }

    fn minting(&self, collection: Arc<Collection>, call: &Tokenize<'_>) -> Result<TokenizeSpec, CallFailure> {
        collection.keys.newest().ok_or(CallFailure::NoTokenKey)?;
        if collection.is_shared() && !call.context.is_empty() {
            // It would bind nothing, and who says one believes that it does.
            let rule =
                "must be empty: the collection's tokens are the same for all contexts; make one with scope \"context\"";
            return Err(CallFailure::Param { name: "context", rule });
        }
        let (created, writing) = (tokens::now(), &call.writing);
        let mut tags: Vec<String> = writing.tags.iter().map(|tag| (*tag).to_owned()).collect();
        tags.sort_unstable();
        tags.dedup();
        Ok(TokenizeSpec {
            context: call.context.into(),
            tags,
            expires: writing.expires_s.or(collection.expires_s).map(|seconds| created.saturating_add(seconds)),
            created,
            idempotency_key: writing.idempotency_key.map(Into::into),
            bounds: self.token_bounds(),
            collection,
        })
    }

    fn token_bounds(&self) -> Bounds {
        let limits = &self.limits;
        Bounds { fields_max: limits.tokens_per_call_max, value_bytes_max: limits.token_value_bytes_max }
    }

    /// The collection that is permitted.
    ///
    /// # Errors
    ///
    /// No such app or collection, or an older generation than demanded.
    pub fn locate(&self, permit: &Permit<'_>, min_generation: Option<u64>) -> Result<Located, CallFailure> {
        let (generation, app) = self.find(permit, min_generation)?;
        let collection = permit.collection().and_then(|name| app.collection(name));
        let collection = Arc::clone(collection.ok_or(CallFailure::NoCollection)?);
        Ok(Located { generation, collection, app })
    }

    /// The token store.
    ///
    /// # Errors
    ///
    /// [`CallFailure::NoTokens`] where there is none.
    pub fn tokens(&self) -> Result<&Tokens, CallFailure> {
        self.tokens.as_ref().ok_or(CallFailure::NoTokens)
    }

    fn reading<W>(&self, keys: &Arc<crypto::AppKeys>, call: &DocumentCall<'_, W>, native_only: bool) -> Reading {
        let native = crypto::Opener::new(Arc::clone(keys), call.context).keeping(self.apps.opened().cloned());
        let evervault = Evervault::new(Arc::clone(keys), Arc::clone(&self.evervault))
            .keeping(self.apps.opened().cloned())
            .refusing(native_only);
        let reader = FieldOpener::new(native, evervault, self.limits.depth_max as usize);
        Reading { reader: Box::new(reader), on_error: call.on_error }
    }

    /// The app that is permitted, and the generation this is true of.
    fn find(&self, permit: &Permit<'_>, min_generation: Option<u64>) -> Result<(u64, Arc<CachedApp>), CallFailure> {
        let (have, app) = self.apps.find(permit.app().ok_or(CallFailure::NoApp)?);
        if min_generation.is_some_and(|wanted| wanted > have) {
            self.apps.look();
            return Err(CallFailure::OldGeneration { have });
        }
        let app = app.ok_or(CallFailure::NoApp)?;
        match app.state {
            AppState::Active => Ok((have, app)),
            AppState::Disabled => Err(CallFailure::AppDisabled),
        }
    }

    /// The methods it serves. Any other does not exist here.
    pub fn methods(&self) -> Methods {
        if self.tokens.is_some() { Methods::DATA } else { Methods::DATA.without(Methods::TOKENS) }
    }

    /// The time that a caller names, or the default, cut to the limit.
    pub fn deadline(&self, wanted: Option<u32>) -> Duration {
        let limits = &self.limits;
        Duration::from_millis(wanted.map_or(limits.deadline_ms_default, u64::from).min(limits.deadline_ms_max))
    }

    /// Bytes to set aside for a reply before it is made: an upper bound, never more than the limit. `format` is what
    /// is written; before the call is decoded, the native one stands for it.
    pub fn reply_bytes(&self, method: wire::Method, format: wire::Format, message_bytes: usize, leaves: u64) -> usize {
        let may_list = method != wire::Method::Encrypt || format != wire::Format::Native;
        let faults = if may_list { FieldErrors::bytes(self.limits.errors_reported_max, leaves) } else { 0 };
        let mut leaves = usize::try_from(leaves).unwrap_or(usize::MAX);
        if method == wire::Method::Tokenize {
            leaves = leaves.min(self.limits.tokens_per_call_max);
        }
        let bytes = document_bytes_max(method, format, message_bytes, leaves);
        bytes.saturating_add(faults).saturating_add(FRAME_BYTES).min(self.limits.reply_bytes_max)
    }

    /// Answers `inspect`.
    ///
    /// # Errors
    ///
    /// [`CallFailure::Payload`] when it is no envelope.
    pub fn inspect(call: &Inspect<'_>) -> Result<Inspection, CallFailure> {
        inspect::inspect(call.envelope).ok_or_else(|| CallFailure::Payload("not an envelope".into()))
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
            methods: names(&mut self.methods().iter().map(wire::Method::name)),
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
                ("tokens_per_call_max".into(), limits.tokens_per_call_max as u64),
                ("token_value_bytes_max".into(), limits.token_value_bytes_max as u64),
                ("in_flight_per_connection_max".into(), limits.in_flight_per_connection_max as u64),
                ("deadline_ms_default".into(), limits.deadline_ms_default),
                ("deadline_ms_max".into(), limits.deadline_ms_max),
            ],
        }
    }
}

fn plan_on_tokens<W>(
    frame: &Bytes,
    call: &DocumentCall<'_, W>,
    located: &Located,
    task: Task,
    beside_bytes: usize,
) -> Result<Plan, CallFailure> {
    Ok(Plan {
        payload: frame.slice_ref(call.payload),
        task,
        selection: Arc::new(selection(call.select.as_deref())?),
        unmatched: call.unmatched,
        format: wire::Format::Native,
        beside_bytes,
        growth_bytes: 0,
        generation: located.generation,
    })
}

/// The longest document that can come of a message.
fn document_bytes_max(method: wire::Method, format: wire::Format, message_bytes: usize, leaves: usize) -> usize {
    let native = match method {
        wire::Method::Encrypt => {
            // Prefix, header, body overhead and a MessagePack header; base64 takes a third more.
            let per_leaf = crypto::Encoding::Text.sealed_bytes(0) + 8;
            leaves.saturating_mul(per_leaf).saturating_add(message_bytes / 3 * 4)
        }
        // The longest case, binary made text: a third more, and for each up to 2 bytes of rounding and 2 of header.
        wire::Method::Rewrap => message_bytes.div_ceil(3).saturating_mul(4).saturating_add(leaves.saturating_mul(4)),
        wire::Method::Tokenize => leaves.saturating_mul(TOKEN_BYTES).saturating_add(message_bytes),
        // What opens is shorter than its envelope; what tokens stand for is made room for when it is known.
        _ => message_bytes,
    };
    match format {
        wire::Format::Native => native,
        wire::Format::Evervault | wire::Format::EvervaultBare => {
            native.saturating_add(leaves.saturating_mul(EVERVAULT_MORE))
        }
    }
}

/// How a call's writer is made, on a crypto thread. What is not there, and what the format cannot do, is found out here.
fn writer(app: &App, call: &DocumentCall<'_, Writing<'_>>, format: wire::Format) -> Result<MakeWriter, CallFailure> {
    let writing = call.writing;
    let curve = match writing.curve {
        wire::Curve::R1 => crypto::Curve::P256,
        wire::Curve::K1 => crypto::Curve::Secp256k1,
    };
    let own = match writing.key_scope {
        wire::KeyScope::Request => Some(crypto::KeyScope::Request),
        wire::KeyScope::Field => Some(crypto::KeyScope::Field),
        wire::KeyScope::Epoch => None,
    };
    let newest = || app.keys.newest(curve).cloned().ok_or(CallFailure::NoKey);
    if let Some(form) = evervault_form(call, format)? {
        let rule = "must be \"request\" or \"field\" in this format";
        let scope = own.ok_or(CallFailure::Param { name: "key_scope", rule })?;
        let newest = newest()?;
        return Ok(Box::new(move || {
            Ok(FieldSealer::Evervault(Box::new(evervault::Sealer::new(newest, scope, &form)?)))
        }));
    }
    let encoding = match writing.encoding {
        wire::Encoding::Text => crypto::Encoding::Text,
        wire::Encoding::Binary => crypto::Encoding::Binary,
    };
    let context: Box<[u8]> = call.context.into();
    let (keys, newest) = (Arc::clone(&app.keys), newest()?);
    Ok(match own {
        Some(scope) => Box::new(move || {
            let sealer = crypto::Sealer::new(keys.app(), newest, scope, encoding, &context)?;
            Ok(FieldSealer::Native(sealer.into()))
        }),
        None => {
            let lifetime = app.settings.epoch.ok_or(CallFailure::NoEpoch)?;
            Box::new(move || {
                let sealer = crypto::Sealer::in_epoch(keys.app(), newest, lifetime, Instant::now, encoding, &context)?;
                Ok(FieldSealer::Native(sealer.into()))
            })
        }
    })
}

/// The form of Evervault strings a call writes; `None`: native envelopes.
fn evervault_form(
    call: &DocumentCall<'_, Writing<'_>>,
    format: wire::Format,
) -> Result<Option<evervault::Form>, CallFailure> {
    let writing = call.writing;
    let refused = |name, rule| Err(CallFailure::Param { name, rule });
    if writing.role.is_some() && format != wire::Format::Evervault {
        return refused("role", "must be absent: only format \"evervault\" has one");
    }
    if format == wire::Format::Native {
        return Ok(None);
    }
    if writing.encoding != wire::Encoding::Text {
        return refused("encoding", "must be \"text\": an Evervault string is text");
    }
    if !call.context.is_empty() {
        return refused("context", "must be empty: the Evervault format binds none");
    }
    if format == wire::Format::EvervaultBare {
        return Ok(Some(evervault::Form::Plain));
    }
    let Ok(role) = writing.role.map(evervault::Role::new).transpose() else {
        return Err(CallFailure::Internal("the decoder took a role that is none"));
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // The format ends in 2106, as its clients do.
    let encrypted_at = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
    Ok(Some(evervault::Form::Metadata { role, encrypted_at }))
}

fn selection(paths: Option<&[&str]>) -> Result<Selection, CallFailure> {
    paths.map_or(Ok(Selection::everything()), |paths| Ok(Selection::parse(paths.iter().copied())?))
}

#[cfg(test)]
mod tests {
    use sealwire_crypto::evervault::{Form, Role};
    use sealwire_crypto::{AppId, AppKeys, Curve, Datatype, Encoding, KeyPair, KeyScope, KeyState, KeyVersion};
    use sealwire_msgpack::TokenReader;

    use super::*;
    use crate::field_errors::Refusal;

    fn keys() -> Arc<AppKeys> {
        let version = |curve| KeyVersion::new(1, KeyState::Active, KeyPair::generate(curve).unwrap());
        Arc::new(AppKeys::new(AppId::new("shop").unwrap(), Curve::ALL.map(version).into()).unwrap())
    }

    fn evervault_sealer(keys: &AppKeys, curve: Curve, form: &Form) -> Box<evervault::Sealer> {
        let newest = Arc::clone(keys.newest(curve).unwrap());
        Box::new(evervault::Sealer::new(newest, KeyScope::Request, form).unwrap())
    }

    fn native_sealer(keys: &AppKeys, encoding: Encoding) -> Box<crypto::Sealer> {
        let newest = Arc::clone(keys.newest(Curve::P256).unwrap());
        crypto::Sealer::new(keys.app(), newest, KeyScope::Request, encoding, b"").unwrap().into()
    }

    fn with_metadata(role: Option<&str>) -> Form {
        Form::Metadata { role: role.map(|role| Role::new(role).unwrap()), encrypted_at: u32::MAX }
    }

    /// Values whose text is long beside their MessagePack, and the bytes of that.
    fn leaves() -> Vec<(Datatype, Vec<u8>, usize)> {
        let doubles = [f64::MIN, -f64::MIN_POSITIVE, -1.2345678901234567e-300];
        let singles = [f32::MIN, 1.2345679e-30];
        let value = |bytes: Vec<u8>| (Datatype::Value, bytes.len(), bytes);
        let values = doubles
            .map(|float| value([&[0xcb], &float.to_be_bytes()[..]].concat()))
            .into_iter()
            .chain(singles.map(|float| value([&[0xca], &float.to_be_bytes()[..]].concat())))
            .chain([
                value(vec![0xcf, 255, 255, 255, 255, 255, 255, 255, 255]),
                value(vec![0xd3, 128, 0, 0, 0, 0, 0, 0, 0]),
                value(vec![0xc2]),
                value(vec![0xd0, 0x80]),
            ]);
        let lengths = [0, 1, 2, 3, 31, 32, 70_000].into_iter().flat_map(|length| {
            [(Datatype::String, length + 1), (Datatype::Binary, length + 2)]
                .map(|(datatype, bytes)| (datatype, bytes, vec![b'x'; length]))
        });
        values.chain(lengths).map(|(datatype, bytes, plaintext)| (datatype, plaintext, bytes)).collect()
    }

    #[test]
    fn no_sealed_leaf_is_longer_than_what_is_set_aside_for_it() {
        let keys = keys();
        let evervault = |form| FieldSealer::Evervault(evervault_sealer(&keys, Curve::P256, form));
        let role = "r".repeat(20);
        let writers = [
            (wire::Format::Native, FieldSealer::Native(native_sealer(&keys, Encoding::Text)), false),
            (wire::Format::Evervault, evervault(&with_metadata(Some(&role))), true),
            (wire::Format::Evervault, evervault(&with_metadata(None)), false),
            (wire::Format::EvervaultBare, evervault(&Form::Plain), false),
        ];
        for (format, mut writer, has_role) in writers {
            for (datatype, plaintext, message_bytes) in leaves() {
                let mut out = Vec::new();
                let written = writer.write(datatype, &plaintext, &mut out);
                if has_role && datatype == Datatype::Binary {
                    assert_eq!(written, Err(Refusal::FileRole.into()));
                    continue;
                }
                assert_eq!(written, Ok(()), "{format:?} {datatype:?} {message_bytes}");
                let room = document_bytes_max(wire::Method::Encrypt, format, message_bytes, 1);
                assert!(out.len() <= room, "{format:?} {datatype:?} {message_bytes}: {} > {room}", out.len());
            }
        }
    }

    #[test]
    fn no_leaf_that_is_sealed_again_is_longer_than_what_is_set_aside_for_it() {
        let keys = keys();
        let longest = "r".repeat(80);
        let mut sources: Vec<(&str, FieldSealer)> = vec![
            ("native text", FieldSealer::Native(native_sealer(&keys, Encoding::Text))),
            ("native binary", FieldSealer::Native(native_sealer(&keys, Encoding::Binary))),
        ];
        let evervault = |curve, form: &Form| FieldSealer::Evervault(evervault_sealer(&keys, curve, form));
        for curve in Curve::ALL {
            let mut with_role = evervault_sealer(&keys, curve, &with_metadata(None));
            assert!(with_role.carry_role(Some(&longest)));
            sources.push(("with the longest role", FieldSealer::Evervault(with_role)));
            sources.push(("without a role", evervault(curve, &with_metadata(None))));
            sources.push(("bare", evervault(curve, &Form::Plain)));
        }
        let rules = sealwire_config::Evervault { legacy: false, open_roles: vec!["*".into()] };
        let native = crypto::Opener::new(Arc::clone(&keys), b"");
        let mut reader = FieldOpener::new(native, Evervault::new(Arc::clone(&keys), Arc::new(rules)), 64);
        for (source, writer) in &mut sources {
            for (datatype, plaintext, _) in leaves() {
                let mut sent = Vec::new();
                if writer.write(datatype, &plaintext, &mut sent) == Err(Refusal::FileRole.into()) {
                    assert!(datatype == Datatype::Binary && *source == "with the longest role");
                    continue;
                }
                let targets = [
                    (wire::Format::Native, FieldSealer::Native(native_sealer(&keys, Encoding::Text))),
                    (wire::Format::Evervault, evervault(Curve::P256, &with_metadata(None))),
                    (wire::Format::Evervault, evervault(Curve::Secp256k1, &with_metadata(None))),
                    (wire::Format::EvervaultBare, evervault(Curve::P256, &Form::Plain)),
                ];
                for (format, mut target) in targets {
                    let found = reader.open(TokenReader::new(&sent).token().unwrap()).unwrap().unwrap();
                    let mut out = Vec::new();
                    assert_eq!(target.rewrite(&found, &mut out), Ok(()), "{source} {datatype:?}");
                    let room = document_bytes_max(wire::Method::Rewrap, format, sent.len(), 1);
                    assert!(out.len() <= room, "{source} {datatype:?} to {format:?}: {} > {room}", out.len());
                }
            }
        }
    }
}
