//! The HPKE key schedule of one ephemeral key.

use crate::envelope::{HEADER_CHARS, Header};
use crate::hpke::Context;
use crate::key::{Ephemeral, SharedX};
use crate::{AppId, Error, KeyVersion};

/// The key schedule of an ephemeral key. The ephemeral private key is already dropped.
pub(crate) struct Schedule {
    pub(crate) context: Context,
    pub(crate) header: Header,
    pub(crate) header_chars: [u8; HEADER_CHARS],
}

impl Schedule {
    /// Returns a schedule to seal one request or field under: a ready schedule if available, else a new one.
    pub(crate) fn take(app: &AppId, recipient: &KeyVersion) -> Result<Self, Error> {
        recipient.precomputed.count_use();
        match recipient.precomputed.take_ready(app) {
            Some(schedule) => Ok(schedule),
            None => Self::make(app, recipient),
        }
    }

    /// Returns a ready schedule, if there is one.
    pub(crate) fn take_ready(app: &AppId, recipient: &KeyVersion) -> Option<Self> {
        let ready = recipient.precomputed.take_ready(app)?;
        recipient.precomputed.count_use();
        Some(ready)
    }

    /// Computes a fresh schedule by one key generation and one Diffie-Hellman. Uses the table if there is one.
    pub(crate) fn make(app: &AppId, recipient: &KeyVersion) -> Result<Self, Error> {
        Self::with_ephemeral(app, recipient, &Ephemeral::generate(recipient.pair.public().curve())?)
    }

    /// Computes the schedule of a given ephemeral key. A second schedule of the same key would repeat nonces.
    pub(crate) fn with_ephemeral(app: &AppId, recipient: &KeyVersion, ephemeral: &Ephemeral) -> Result<Self, Error> {
        Self::derive(app, recipient, ephemeral.public(), &recipient.agree(ephemeral)?)
    }

    fn derive(app: &AppId, recipient: &KeyVersion, enc: &[u8; 65], shared: &SharedX) -> Result<Self, Error> {
        let public = recipient.pair.public();
        let context = recipient.with_context(app, |context| {
            Context::derive(public.curve(), shared, enc, public.uncompressed(), context)
        })?;
        let header = Header::new(public.curve(), recipient.id, enc);
        Ok(Self { context, header, header_chars: header.chars() })
    }
}
