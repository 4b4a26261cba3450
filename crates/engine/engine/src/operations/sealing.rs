//! How `encrypt` and `rewrap` write values: format, suite, key scope and encoding.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use sealwire_apps::App;
use sealwire_crypto::{
    self as crypto, AppKeys, EncapsulationPlace, EpochLifetime, KeyVersion, Sealer, evervault,
};
use sealwire_wire::shared::{Own, Writing};
use sealwire_wire::{self as wire, Encapsulation, Encoding, Format, KeyScope, Method, Suite};

use super::USUAL_SUITE;
use crate::apps::Apps;
use crate::frame_text::{Frame, FrameText};
use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_sealer::FieldSealer;
use crate::jobs::job::SealedBound;
use crate::operation::RequestDocument;
use crate::suite;
use sealwire_settings::Limits;

/// Bytes by which an Evervault string may be longer than an envelope of the same value: longer keys
/// and metadata, and numbers as text. Held by a test.
const EVERVAULT_EXTRA: usize = 128;

/// Maximum number of encapsulations that a response has apart: those of the request's sealer, and
/// in a rewrap one of the sealer of values that were sealed outside.
const RESPONSE_ENCAPSULATIONS_MAX: usize = crypto::SEALER_ENCAPSULATIONS_MAX + 1;

// `decrypt` must accept the encapsulations of one response.
const _: () = assert!(RESPONSE_ENCAPSULATIONS_MAX <= sealwire_wire::ENCAPSULATIONS_MAX);

/// Bytes that a `decrypt` of a sealed document can have besides those of the request that sealed
/// it: a longer message id, `on_error`, a deadline, a generation, a `traceparent` and a `reason`.
const DECRYPT_PARAMS_BYTES: usize = 512;

/// The sealer of a request, before it is made.
pub struct SealerSpec {
    source: KeySource,
    /// Made with a key that was there.
    ready: Option<Sealer>,
}

enum KeySource {
    /// Keys of the request.
    Own(AppKeySpec, crypto::KeyScope),
    /// The key of the app's epoch.
    Epoch(AppKeySpec, EpochLifetime),
    /// Keys of the request, in the Evervault format.
    Evervault(Arc<KeyVersion>, crypto::KeyScope, evervault::Form),
}

/// The keys under which native envelopes are sealed.
pub(super) struct AppKeySpec {
    keys: Arc<AppKeys>,
    version: Arc<KeyVersion>,
    encoding: crypto::Encoding,
    place: EncapsulationPlace,
    context: Bytes,
}

impl SealerSpec {
    fn new(source: KeySource) -> Self {
        Self {
            source,
            ready: None,
        }
    }

    /// Takes the one key that the request needs, if it is ready.
    pub(super) fn take_ready_key(&mut self) -> bool {
        self.ready = self.ready.take().or_else(|| match &self.source {
            KeySource::Own(
                AppKeySpec {
                    keys,
                    version,
                    encoding,
                    place,
                    context,
                },
                crypto::KeyScope::Request,
            ) => Some(Sealer::if_ready(keys.app(), version, *encoding, context)?.placing(*place)),
            KeySource::Epoch(
                AppKeySpec {
                    keys,
                    version,
                    encoding,
                    place,
                    context,
                },
                lifetime,
            ) => {
                let sealer = Sealer::if_in_epoch(
                    keys.app(),
                    version,
                    *lifetime,
                    Instant::now,
                    *encoding,
                    context,
                )?;
                Some(sealer.placing(*place))
            }
            KeySource::Own(_, crypto::KeyScope::Field) | KeySource::Evervault(..) => None,
        });
        self.ready.is_some()
    }

    /// Makes the sealer: without a ready key by one key generation and one Diffie-Hellman, so on a
    /// crypto thread.
    pub(super) fn make(self) -> Result<FieldSealer, RequestFailure> {
        let sealer = match (self.ready, self.source) {
            (Some(ready), _) => Ok(ready),
            (
                None,
                KeySource::Own(
                    AppKeySpec {
                        keys,
                        version,
                        encoding,
                        place,
                        context,
                    },
                    scope,
                ),
            ) => Sealer::new(keys.app(), version, scope, encoding, &context)
                .map(|sealer| sealer.placing(place)),
            (
                None,
                KeySource::Epoch(
                    AppKeySpec {
                        keys,
                        version,
                        encoding,
                        place,
                        context,
                    },
                    lifetime,
                ),
            ) => Sealer::in_epoch(
                keys.app(),
                version,
                lifetime,
                Instant::now,
                encoding,
                &context,
            )
            .map(|sealer| sealer.placing(place)),
            (None, KeySource::Evervault(version, scope, form)) => {
                let sealer =
                    evervault::Sealer::new(version, scope, &form).map_err(library_failed)?;
                return Ok(FieldSealer::Evervault(Box::new(sealer)));
            }
        };
        Ok(FieldSealer::Native(sealer.map_err(library_failed)?.into()))
    }
}

/// How a request writes values.
pub(super) struct SealOptions {
    pub(super) writing: Writing<FrameText>,
}

impl SealOptions {
    pub(super) fn new(frame: &Bytes, writing: &wire::Writing<'_>) -> Self {
        let writing = writing.own(&Frame(frame));
        Self { writing }
    }

    /// Returns the bytes of an envelope of nothing, as text.
    pub(super) fn empty_bytes(&self, suite: Suite) -> usize {
        let suite = suite::from_wire(suite);
        match self.writing.encapsulation {
            Encapsulation::Inline => crypto::Encoding::Text.sealed_bytes(suite, 0),
            Encapsulation::Apart => crypto::Encoding::Text.sealed_bytes_apart(suite, 0),
        }
    }

    /// Returns the bytes of encapsulations that a response has apart.
    pub(super) fn encapsulations_bytes(&self) -> usize {
        match self.writing.encapsulation {
            Encapsulation::Inline => 0,
            Encapsulation::Apart => {
                RESPONSE_ENCAPSULATIONS_MAX * (crypto::ENCAPSULATION_TEXT_BYTES + 8)
            }
        }
    }

    /// Returns the bound of the document that a request of `message_bytes` about a document of
    /// `payload_bytes` seals. A `decrypt` with the same parameters must take it. A document that
    /// does not grow is never too long, because the engine took it already.
    pub(super) fn sealed_bound(
        &self,
        format: Format,
        payload_bytes: usize,
        message_bytes: usize,
        limits: &Limits,
    ) -> SealedBound {
        let around = message_bytes
            .saturating_sub(payload_bytes)
            .saturating_add(self.encapsulations_bytes());
        let room = limits
            .message_bytes_max
            .saturating_sub(around.saturating_add(DECRYPT_PARAMS_BYTES));
        SealedBound {
            document_bytes_max: room.max(payload_bytes),
            binary_is_shorter: self.writing.encoding == Encoding::Text && format == Format::Native,
        }
    }

    /// Returns the format that the request names, or else the app's.
    pub(super) fn format_in(&self, app: &App) -> Format {
        self.writing.format.unwrap_or(match app.settings.format {
            sealwire_apps::DefaultFormat::Native => Format::Native,
            sealwire_apps::DefaultFormat::Evervault => Format::Evervault,
        })
    }

    /// Returns the suite that the request names, or else the app's. In an Evervault format, the
    /// suite of the key pair.
    pub(super) fn suite_in(&self, app: &App, format: Format) -> Suite {
        self.writing.suite.unwrap_or_else(|| match format {
            Format::Native => suite::to_wire(app.settings.write_suite),
            Format::Evervault | Format::EvervaultBare => Suite::P256,
        })
    }

    /// Returns the kind of work of a request for the app of this name.
    pub(super) fn kind(&self, method: Method, apps: &Apps, app: &str) -> OperationKind {
        OperationKind::of(
            method,
            self.writing
                .suite
                .or_else(|| {
                    apps.find(app)
                        .1
                        .map(|app| self.suite_in(&app, self.format_in(&app)))
                })
                .unwrap_or(USUAL_SUITE),
            self.writing.key_scope,
        )
    }

    /// Returns the parameters of the request's sealer. Checks that the key exists and that the
    /// format supports the request.
    pub(super) fn sealer(
        &self,
        app: &App,
        document: &RequestDocument,
        format: Format,
    ) -> Result<SealerSpec, RequestFailure> {
        let context = &document.context;
        let suite = suite::from_wire(self.suite_in(app, format));
        let own = match self.writing.key_scope {
            KeyScope::Request => Some(crypto::KeyScope::Request),
            KeyScope::Field => Some(crypto::KeyScope::Field),
            KeyScope::Epoch => None,
        };

        if self.writing.encapsulation == Encapsulation::Apart {
            if suite != crypto::Suite::P256MlKem768 || format != Format::Native {
                let rule =
                    "must be \"inline\": only suite \"p256-mlkem768\" has encapsulations apart";
                return Err(RequestFailure::Param {
                    name: "encapsulation",
                    rule,
                });
            }
            if self.writing.key_scope == KeyScope::Field {
                let rule = "must be \"request\" or \"epoch\" with encapsulation \"apart\"";
                return Err(RequestFailure::Param {
                    name: "key_scope",
                    rule,
                });
            }
        }

        let is_off = !app.settings.read_suites.contains(suite);
        if let Some(form) = self.evervault_form(document, format)? {
            let rule = "must be \"request\" or \"field\" in this format";
            let scope = own.ok_or(RequestFailure::Param {
                name: "key_scope",
                rule,
            })?;
            if suite.curve().is_none() {
                let rule = "must be \"p256\" or \"secp256k1\" in this format";
                return Err(RequestFailure::Param {
                    name: "suite",
                    rule,
                });
            }
            // Values that are sealed under this suite would not open.
            if is_off {
                return Err(RequestFailure::SuiteOff {
                    suite: suite.name(),
                });
            }
            return Ok(SealerSpec::new(KeySource::Evervault(
                newest_key(app, suite)?,
                scope,
                form,
            )));
        }

        if is_off {
            return Err(RequestFailure::SuiteOff {
                suite: suite.name(),
            });
        }

        if suite == crypto::Suite::Xaes && own.is_none() {
            let rule = "must be \"request\" or \"field\" with suite \"xaes\"";
            return Err(RequestFailure::Param {
                name: "key_scope",
                rule,
            });
        }

        let spec = self.spec(app, newest_key(app, suite)?, context);
        Ok(SealerSpec::new(match own {
            Some(scope) => KeySource::Own(spec, scope),
            None => KeySource::Epoch(spec, app.settings.epoch.ok_or(RequestFailure::NoEpoch)?),
        }))
    }

    /// Returns the sealers of values that were sealed outside, so that they keep that origin. Each
    /// has the suite of its values, or `None` for values of every suite. If the request names a
    /// suite of which the app publishes a key, all values are sealed to that key. Otherwise each
    /// value keeps its suite, so that none loses its protection from quantum computers unnoticed.
    pub(super) fn outside_sealers(
        &self,
        app: &App,
        context: &Bytes,
        format: Format,
    ) -> Vec<(Option<crypto::Suite>, SealerSpec)> {
        let scope = match self.writing.key_scope {
            KeyScope::Request | KeyScope::Epoch => crypto::KeyScope::Request,
            KeyScope::Field => crypto::KeyScope::Field,
        };
        let named = self
            .writing
            .suite
            .filter(|_| format == Format::Native)
            .map(suite::from_wire);

        if let Some(version) = named.and_then(|suite| app.keys.newest_outside(suite)) {
            let spec = self.spec(app, Arc::clone(version), context);
            return vec![(None, SealerSpec::new(KeySource::Own(spec, scope)))];
        }

        crypto::Suite::PUBLISHED
            .into_iter()
            .filter_map(|suite| {
                let version = app.keys.newest_outside(suite)?;
                let spec = self.spec(app, Arc::clone(version), context);
                Some((Some(suite), SealerSpec::new(KeySource::Own(spec, scope))))
            })
            .collect()
    }

    fn spec(&self, app: &App, version: Arc<KeyVersion>, context: &Bytes) -> AppKeySpec {
        let encoding = match self.writing.encoding {
            Encoding::Text => crypto::Encoding::Text,
            Encoding::Binary => crypto::Encoding::Binary,
        };
        let place = match self.writing.encapsulation {
            Encapsulation::Inline => EncapsulationPlace::Inline,
            Encapsulation::Apart => EncapsulationPlace::Apart,
        };
        AppKeySpec {
            keys: Arc::clone(&app.keys),
            version,
            encoding,
            place,
            context: context.clone(),
        }
    }

    /// Returns the form of the Evervault strings to write; `None` for native envelopes.
    fn evervault_form(
        &self,
        document: &RequestDocument,
        format: Format,
    ) -> Result<Option<evervault::Form>, RequestFailure> {
        if self.writing.role.is_some() && format != Format::Evervault {
            return Err(RequestFailure::Param {
                name: "role",
                rule: "must be absent: only format \"evervault\" has one",
            });
        }

        if format == Format::Native {
            return Ok(None);
        }

        if self.writing.encoding != Encoding::Text {
            return Err(RequestFailure::Param {
                name: "encoding",
                rule: "must be \"text\": an Evervault string is text",
            });
        }

        if !document.context.is_empty() {
            return Err(RequestFailure::Param {
                name: "context",
                rule: "must be empty: the Evervault format binds none",
            });
        }

        if document.contexts.is_some() {
            return Err(RequestFailure::Param {
                name: "contexts",
                rule: "must be absent: the Evervault format binds none",
            });
        }

        if format == Format::EvervaultBare {
            return Ok(Some(evervault::Form::Plain));
        }

        let role = self.writing.role.as_ref().map(FrameText::as_str);
        let Ok(role) = role.map(evervault::Role::new).transpose() else {
            return Err(RequestFailure::Internal(
                "the decoder accepted an invalid role",
            ));
        };
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        // The format ends in 2106, as its clients do.
        let encrypted_at = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        Ok(Some(evervault::Form::Metadata { role, encrypted_at }))
    }
}

fn newest_key(app: &App, suite: crypto::Suite) -> Result<Arc<KeyVersion>, RequestFailure> {
    app.keys.newest(suite).cloned().ok_or(RequestFailure::NoKey)
}

fn library_failed(error: crypto::Error) -> RequestFailure {
    match error {
        crypto::Error::KeyUsedUp => RequestFailure::NoKey,
        _ => RequestFailure::Internal("the crypto library failed"),
    }
}

/// Returns the longest document in `format`, if it has at most `native` bytes with native
/// envelopes.
pub(super) fn document_bytes_in(format: Format, native: usize, leaves: u64) -> usize {
    match format {
        Format::Native => native,
        Format::Evervault | Format::EvervaultBare => {
            native.saturating_add(times(leaves, EVERVAULT_EXTRA))
        }
    }
}

/// Returns `leaves` times `bytes`.
pub(super) fn times(leaves: u64, bytes: usize) -> usize {
    usize::try_from(leaves)
        .unwrap_or(usize::MAX)
        .saturating_mul(bytes)
}

#[cfg(test)]
mod tests {
    use sealwire_crypto::evervault::{Form, Role};
    use sealwire_crypto::{
        AppId, AppKeys, Curve, Datatype, Encoding, KeyMaterial, KeyScope, KeyState, KeyVersion,
        Suite,
    };
    use sealwire_msgpack::TokenReader;
    use sealwire_wire::Format;

    use super::super::encrypt::sealed_bytes;
    use super::super::rewrap::rewrapped_bytes;
    use super::{Arc, EncapsulationPlace, crypto, evervault};
    use crate::jobs::field_errors::FieldProblem;
    use crate::jobs::field_opener::{Evervault, FieldOpener};
    use crate::jobs::field_sealer::FieldSealer;
    use crate::operation::MessageSize;

    fn keys() -> Arc<AppKeys> {
        let app = AppId::new("shop").unwrap();
        let versions = Suite::ALL.map(|suite| {
            KeyVersion::new(
                1,
                KeyState::Active,
                KeyMaterial::generate(&app, suite).unwrap(),
            )
        });
        Arc::new(AppKeys::new(app, versions.into()).unwrap())
    }

    fn evervault_sealer(keys: &AppKeys, curve: Curve, form: &Form) -> Box<evervault::Sealer> {
        let newest = Arc::clone(keys.newest(curve).unwrap());
        Box::new(evervault::Sealer::new(newest, KeyScope::Request, form).unwrap())
    }

    fn native_sealer(keys: &AppKeys, suite: Suite, encoding: Encoding) -> Box<crypto::Sealer> {
        let newest = Arc::clone(keys.newest(suite).unwrap());
        crypto::Sealer::new(keys.app(), newest, KeyScope::Request, encoding, b"")
            .unwrap()
            .into()
    }

    fn with_metadata(role: Option<&str>) -> Form {
        Form::Metadata {
            role: role.map(|role| Role::new(role).unwrap()),
            encrypted_at: u32::MAX,
        }
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
            [
                (Datatype::String, length + 1),
                (Datatype::Binary, length + 2),
            ]
            .map(|(datatype, bytes)| (datatype, bytes, vec![b'x'; length]))
        });
        values
            .chain(lengths)
            .map(|(datatype, bytes, plaintext)| (datatype, plaintext, bytes))
            .collect()
    }

    #[test]
    fn sealed_leaves_fit_their_reserved_bytes() {
        let keys = keys();
        let evervault = |form| FieldSealer::Evervault(evervault_sealer(&keys, Curve::P256, form));
        let role = "r".repeat(20);
        let writers = [
            (
                Format::Native,
                FieldSealer::Native(native_sealer(&keys, Suite::P256, Encoding::Text)),
                false,
            ),
            (
                Format::Native,
                FieldSealer::Native(native_sealer(&keys, Suite::Xaes, Encoding::Text)),
                false,
            ),
            (
                Format::Native,
                FieldSealer::Native(native_sealer(&keys, Suite::P256MlKem768, Encoding::Text)),
                false,
            ),
            (
                Format::Evervault,
                evervault(&with_metadata(Some(&role))),
                true,
            ),
            (Format::Evervault, evervault(&with_metadata(None)), false),
            (Format::EvervaultBare, evervault(&Form::Plain), false),
        ];
        for (format, mut writer, has_role) in writers {
            for (datatype, plaintext, message_bytes) in leaves() {
                let mut out = Vec::new();
                let written = writer.write(datatype, &plaintext, &mut out);
                writer.complete(&mut out);
                if has_role && datatype == Datatype::Binary {
                    assert_eq!(written, Err(FieldProblem::FileRole.into()));
                    continue;
                }
                assert_eq!(written, Ok(()), "{format:?} {datatype:?} {message_bytes}");
                let suite = if let FieldSealer::Native(sealer) = &writer {
                    sealer.suite()
                } else {
                    Suite::P256
                };
                let empty = crypto::Encoding::Text.sealed_bytes(suite, 0);
                let room = sealed_bytes(
                    format,
                    empty,
                    MessageSize {
                        bytes: message_bytes,
                        leaves: 1,
                    },
                );
                assert!(
                    out.len() <= room,
                    "{format:?} {datatype:?} {message_bytes}: {} > {room}",
                    out.len()
                );
            }
        }
    }

    #[test]
    fn resealed_leaves_fit_their_reserved_bytes() {
        let keys = keys();
        let longest = "r".repeat(80);
        let mut sources: Vec<(&str, FieldSealer)> = vec![
            (
                "p256 text",
                FieldSealer::Native(native_sealer(&keys, Suite::P256, Encoding::Text)),
            ),
            (
                "p256 binary",
                FieldSealer::Native(native_sealer(&keys, Suite::P256, Encoding::Binary)),
            ),
            (
                "xaes text",
                FieldSealer::Native(native_sealer(&keys, Suite::Xaes, Encoding::Text)),
            ),
            (
                "xaes binary",
                FieldSealer::Native(native_sealer(&keys, Suite::Xaes, Encoding::Binary)),
            ),
            (
                "hybrid text",
                FieldSealer::Native(native_sealer(&keys, Suite::P256MlKem768, Encoding::Text)),
            ),
        ];
        let evervault =
            |curve, form: &Form| FieldSealer::Evervault(evervault_sealer(&keys, curve, form));
        for curve in Curve::ALL {
            let mut with_role = evervault_sealer(&keys, curve, &with_metadata(None));
            assert!(with_role.carry_role(Some(&longest)));
            sources.push(("with the longest role", FieldSealer::Evervault(with_role)));
            sources.push(("without a role", evervault(curve, &with_metadata(None))));
            sources.push(("bare", evervault(curve, &Form::Plain)));
        }
        let rules = sealwire_settings::Evervault {
            legacy: false,
            open_roles: vec!["*".into()],
        };
        let native = crypto::Opener::new(Arc::clone(&keys), b"");
        let mut reader = FieldOpener::new(
            native,
            Evervault::new(Arc::clone(&keys), Arc::new(rules)),
            64,
        );
        for (source, writer) in &mut sources {
            for (datatype, plaintext, _) in leaves() {
                let mut sent = Vec::new();
                if writer.write(datatype, &plaintext, &mut sent)
                    == Err(FieldProblem::FileRole.into())
                {
                    assert!(datatype == Datatype::Binary && *source == "with the longest role");
                    continue;
                }
                writer.complete(&mut sent);
                let targets = [
                    (
                        Format::Native,
                        FieldSealer::Native(native_sealer(&keys, Suite::P256, Encoding::Text)),
                    ),
                    (
                        Format::Native,
                        FieldSealer::Native(native_sealer(&keys, Suite::Xaes, Encoding::Text)),
                    ),
                    (
                        Format::Native,
                        FieldSealer::Native(native_sealer(
                            &keys,
                            Suite::P256MlKem768,
                            Encoding::Text,
                        )),
                    ),
                    (
                        Format::Evervault,
                        evervault(Curve::P256, &with_metadata(None)),
                    ),
                    (
                        Format::Evervault,
                        evervault(Curve::Secp256k1, &with_metadata(None)),
                    ),
                    (Format::EvervaultBare, evervault(Curve::P256, &Form::Plain)),
                ];
                for (format, mut target) in targets {
                    let found = reader
                        .open(TokenReader::new(&sent).token().unwrap())
                        .unwrap()
                        .unwrap();
                    let mut out = Vec::new();
                    assert_eq!(
                        target.rewrite(&found, &mut out),
                        Ok(()),
                        "{source} {datatype:?}"
                    );
                    let suite = if let FieldSealer::Native(sealer) = &target {
                        sealer.suite()
                    } else {
                        Suite::P256
                    };
                    let empty = crypto::Encoding::Text.sealed_bytes(suite, 0);
                    let room = rewrapped_bytes(
                        format,
                        empty,
                        MessageSize {
                            bytes: sent.len(),
                            leaves: 1,
                        },
                    );
                    assert!(
                        out.len() <= room,
                        "{source} {datatype:?} to {format:?}: {} > {room}",
                        out.len()
                    );
                }
            }
        }
    }
    #[test]
    fn values_that_keep_their_suite_fit_their_reserved_bytes() {
        let keys = keys();
        let mut opener = crypto::Opener::new(Arc::clone(&keys), b"");
        let mut cases = Vec::new();
        for suite in Suite::PUBLISHED {
            for encoding in [Encoding::Text, Encoding::Binary] {
                // The request writes the suite with the shortest header.
                cases.push((suite, encoding, EncapsulationPlace::Inline, Suite::Xaes));
            }
        }
        for encoding in [Encoding::Text, Encoding::Binary] {
            // The encapsulation comes to be in the value.
            cases.push((
                Suite::P256MlKem768,
                encoding,
                EncapsulationPlace::Apart,
                Suite::P256MlKem768,
            ));
        }
        let mut sent = Vec::new();
        for (suite, encoding, place, sized_by) in cases {
            let mut source =
                FieldSealer::Native(native_sealer(&keys, suite, encoding).placing(place).into());
            for (datatype, plaintext, _) in leaves() {
                let mut field = Vec::new();
                source.write(datatype, &plaintext, &mut field).unwrap();
                source.complete(&mut field);
                sent.push((suite, sized_by, field));
            }
            source
                .take_encapsulations()
                .iter()
                .for_each(|text| opener.give(text.as_bytes()).unwrap());
        }
        let mut reader = FieldOpener::new(
            opener,
            Evervault::new(Arc::clone(&keys), Arc::default()),
            64,
        );
        for (suite, sized_by, field) in sent {
            let found = reader
                .open(TokenReader::new(&field).token().unwrap())
                .unwrap()
                .unwrap();
            let mut target = FieldSealer::Native(native_sealer(&keys, suite, Encoding::Text));
            let mut out = Vec::new();
            target.rewrite(&found, &mut out).unwrap();
            let empty = crypto::Encoding::Text.sealed_bytes(sized_by, 0);
            let room = rewrapped_bytes(
                Format::Native,
                empty,
                MessageSize {
                    bytes: field.len(),
                    leaves: 1,
                },
            );
            assert!(
                out.len() <= room,
                "{suite:?} for {sized_by:?}: {} > {room}",
                out.len()
            );
        }
    }
}
