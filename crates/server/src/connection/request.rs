//! A call as it came, and what it says of itself before anything is looked up.

use bytes::Bytes;
use sealwire_schedule::Shape;
use sealwire_wire::{Boundary, Call, Curve, Format, KeyScope, Method, Methods, Outlook};
use tokio::time::Instant;

use sealwire_engine::cancel_token::CancelGuard;
use sealwire_engine::cost::OperationKind;

/// A call with work, whose message is there.
pub(super) struct Request {
    pub(super) msgid: u32,
    pub(super) method: Method,
    pub(super) frame: Bytes,
    pub(super) boundary: Boundary,
    pub(super) arrived: Instant,
    /// When its wait for admission and for a crypto thread began, which has a bound.
    pub(super) since: Instant,
    pub(super) ticket: CancelGuard,
}

impl Request {
    pub(super) fn kind(&self, wanted: &RequestOptions) -> OperationKind {
        OperationKind::of(self.method, wanted.curve, wanted.scope)
    }

    pub(super) fn shape(&self, wanted: &RequestOptions) -> Shape {
        self.kind(wanted).shape(self.boundary.leaves, self.boundary.bytes as u64)
    }
}

/// Options of a document request, before anything is looked up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestOptions {
    pub(super) deadline_ms: Option<u32>,
    pub(super) curve: Curve,
    pub(super) scope: KeyScope,
    pub(super) format: Option<Format>,
}

impl RequestOptions {
    pub(super) fn of(call: &Call<'_>) -> Self {
        let (deadline_ms, writing) = match call {
            Call::Encrypt(call) | Call::Rewrap(call) => (call.deadline_ms, call.writing),
            Call::Decrypt(call) => return Self { deadline_ms: call.deadline_ms, ..Self::default() },
            Call::Tokenize(call) => return Self { deadline_ms: call.deadline_ms, ..Self::default() },
            Call::Detokenize(call) => return Self { deadline_ms: call.deadline_ms, ..Self::default() },
            Call::Mask(call) => return Self { deadline_ms: call.deadline_ms, ..Self::default() },
            Call::Tokens(call) => return Self { deadline_ms: call.map.deadline_ms, ..Self::default() },
            Call::Inspect(_) | Call::Info | Call::Health | Call::Control(_) => return Self::default(),
        };
        Self { deadline_ms, curve: writing.curve, scope: writing.key_scope, format: writing.format }
    }

    /// As far as it has arrived.
    pub(super) fn in_view(outlook: &Outlook) -> Self {
        Self {
            deadline_ms: outlook.deadline_ms,
            curve: outlook.curve.unwrap_or_default(),
            scope: outlook.key_scope.unwrap_or_default(),
            format: outlook.format,
        }
    }
}

/// Returns true if the method needs an in-flight permit and admission. Other methods cost no more than reading them.
pub(super) fn needs_place(method: Method) -> bool {
    method.takes_document() || Methods::TOKENS.contains(method)
}
