//! Requests that cost no more than reading them: `health`, `info` and `inspect`, which reads the
//! clear metadata of envelopes, Evervault strings and Evervault files.

use bytes::Bytes;
use sealwire_crypto::{self as crypto, evervault};
use sealwire_wire::shared::Source;
use sealwire_wire::{
    Encapsulation, Encoding, Envelope, Format, Health, Inspect, Inspection, ResultCodec as _,
    ValueKind, response,
};

use crate::apps::Apps;
use crate::engine::Engine;
use crate::frame_text::{Frame, FrameText};
use crate::jobs::error::RequestFailure;
use crate::suite;

/// A request that is answered without a permission and admission. Never rejected for load.
pub enum Immediate {
    /// `health`.
    Health,
    /// `info`.
    Info,
    /// `inspect`, of an envelope as text.
    InspectText(FrameText),
    /// `inspect`, of a binary envelope.
    InspectBinary(Bytes),
}

impl Immediate {
    pub(super) fn inspect(frame: &Bytes, request: &Inspect<'_>) -> Self {
        match request.envelope {
            Envelope::Text(text) => Self::InspectText(Frame(frame).text(text)),
            Envelope::Binary(bytes) => Self::InspectBinary(Frame(frame).bytes(bytes)),
        }
    }

    /// Returns the response.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Payload`] for `inspect` of a value that is not an envelope; the audit log's
    /// error if nothing can be recorded.
    pub fn respond(&self, engine: &Engine, msgid: u32) -> Result<Vec<u8>, RequestFailure> {
        let mut out = Vec::with_capacity(512);
        response::start(&mut out, msgid);
        let envelope = match self {
            Self::Health => {
                Health.encode(&mut out);
                return Ok(out);
            }
            Self::Info => {
                engine.info().encode(&mut out);
                return Ok(out);
            }
            Self::InspectText(text) => Envelope::Text(text.as_str()),
            Self::InspectBinary(bytes) => Envelope::Binary(bytes),
        };

        engine.audit.check_ready()?;
        let inspection = inspect(envelope, &engine.apps);
        let inspection = inspection.ok_or_else(|| {
            RequestFailure::Payload(
                "not a whole envelope; an envelope begins with sw1: and must be copied to its end"
                    .into(),
            )
        })?;
        inspection.encode(&mut out);
        Ok(out)
    }
}

/// Returns the metadata of an envelope; `None` if the value has no known envelope format.
fn inspect(envelope: Envelope<'_>, apps: &Apps) -> Option<Inspection> {
    let native = match envelope {
        Envelope::Text(text) => crypto::Envelope::from_text(text.as_bytes()),
        Envelope::Binary(bytes) => crypto::Envelope::from_binary(bytes),
    };
    if let Some(native) = native {
        let is_outside = apps.is_published(native.suite, native.key_id);
        return Some(inspect_native(&native, is_outside));
    }

    match envelope {
        Envelope::Text(text) => Some(inspect_string(&evervault::inspect(text.as_bytes())?)),
        Envelope::Binary(bytes) => Some(inspect_file(&evervault::inspect_file(bytes)?)),
    }
}

fn inspect_native(envelope: &crypto::Envelope, outside: bool) -> Inspection {
    Inspection {
        format: Format::Native,
        version: Some(1),
        tag: None,
        suite: suite::to_wire(envelope.suite),
        key_id: Some(envelope.key_id.to_string()),
        outside,
        datatype: match envelope.datatype {
            crypto::Datatype::String => ValueKind::String,
            crypto::Datatype::Binary => ValueKind::Binary,
            crypto::Datatype::Value => ValueKind::Value,
        },
        sequence: Some(envelope.sequence.into()),
        encoding: match envelope.encoding {
            crypto::Encoding::Text => Encoding::Text,
            crypto::Encoding::Binary => Encoding::Binary,
        },
        plaintext_bytes: envelope.plaintext_bytes as u64,
        encapsulation: envelope.encapsulation.map(|place| match place {
            crypto::EncapsulationPlace::Inline => Encapsulation::Inline,
            crypto::EncapsulationPlace::Apart => Encapsulation::Apart,
        }),
        debug: None,
    }
}

fn inspect_string(envelope: &evervault::Inspection) -> Inspection {
    Inspection {
        format: Format::Evervault,
        version: None,
        tag: Some(envelope.tag.text().to_owned()),
        suite: suite::to_wire(envelope.curve.into()),
        key_id: None,
        outside: false,
        datatype: match envelope.datatype {
            evervault::Datatype::String => ValueKind::String,
            evervault::Datatype::Number => ValueKind::Number,
            evervault::Datatype::Boolean => ValueKind::Boolean,
        },
        sequence: None,
        encoding: Encoding::Text,
        plaintext_bytes: envelope.payload_bytes as u64,
        encapsulation: None,
        debug: Some(envelope.is_debug),
    }
}

fn inspect_file(envelope: &evervault::FileInspection) -> Inspection {
    Inspection {
        format: Format::Evervault,
        version: Some(envelope.version as u32),
        tag: None,
        suite: suite::to_wire(envelope.version.curve().into()),
        key_id: None,
        outside: false,
        datatype: ValueKind::Binary,
        sequence: None,
        encoding: Encoding::Binary,
        plaintext_bytes: envelope.content_bytes as u64,
        encapsulation: None,
        debug: Some(envelope.is_debug),
    }
}
