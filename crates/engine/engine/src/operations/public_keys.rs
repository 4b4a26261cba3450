//! `apps.public_keys`, on a data listener.

use crate::jobs::cost::OperationKind;
use crate::jobs::error::RequestFailure;
use sealwire_settings::Limits;
use sealwire_wire::ResultCodec as _;

use crate::apps::Apps;
use crate::operation::{MessageSize, Operation, Plan, PlanContext};

/// Bytes of a response at most: a signed text with a key of each suite.
const RESPONSE_BYTES: usize = 4_096;

/// A decoded `apps.public_keys`.
pub(super) struct PublicKeys;

impl Operation for PublicKeys {
    fn kind(&self, _: &Apps, _: &str) -> OperationKind {
        OperationKind::HASH_TOKENS // The cheapest there is. A signature an hour does not count.
    }

    fn fields_max(&self, _: MessageSize) -> u64 {
        0
    }

    fn response_bytes(&self, _: MessageSize, _: &Limits) -> usize {
        RESPONSE_BYTES
    }

    fn plan(self: Box<Self>, context: &PlanContext<'_>) -> Result<Plan, RequestFailure> {
        let keys = context
            .engine
            .public_keys(context.permit, context.options.min_generation)?;
        let mut result = Vec::with_capacity(RESPONSE_BYTES);
        keys.encode(&mut result);
        Ok(Plan::Done(result))
    }
}
