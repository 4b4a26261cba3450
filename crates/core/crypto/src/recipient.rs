//! The receiving side of one request: finds the key of a header and makes the context that opens
//! its fields.

use std::collections::HashMap;
use std::sync::Arc;

use crate::context::Context;
use crate::envelope::{Encapsulation, Header, Parts};
use crate::hpke::ScheduleContext;
use crate::hybrid::{self, ENC_BYTES};
use crate::open_key_cache::{CachedSchedule, ScheduleId};
use crate::{
    AppId, AppKeys, CannotOpen, KeyMaterial, KeyVersion, OpenKeyCache, Origin, PublicKey, Suite,
};

/// The inputs of the contexts of one request. Each thread that works on the request has a clone.
#[derive(Clone)]
pub(crate) struct Recipient {
    keys: Arc<AppKeys>,
    /// True if envelopes that were sealed outside may be opened.
    opens_outside: bool,
    /// Encapsulations that are apart from the fields, by the headers that name them.
    given: HashMap<Header, Box<[u8; ENC_BYTES]>>,
    /// The cache of schedules that earlier requests opened, if enabled.
    cache: Option<Arc<OpenKeyCache>>,
}

/// The context of one header of a request.
pub(crate) struct HeldContext {
    pub(crate) context: Arc<Context>,
    pub(crate) header: Header,
    pub(crate) origin: Origin,
    /// True if the context is in the cache of other requests, or was offered to it.
    is_cached: bool,
}

impl Recipient {
    pub(crate) fn new(keys: Arc<AppKeys>) -> Self {
        Self {
            keys,
            opens_outside: true,
            given: HashMap::new(),
            cache: None,
        }
    }

    pub(crate) fn inside_only(self, inside_only: bool) -> Self {
        Self {
            opens_outside: !inside_only,
            ..self
        }
    }

    pub(crate) fn with_cache(self, cache: Option<Arc<OpenKeyCache>>) -> Self {
        Self { cache, ..self }
    }

    pub(crate) fn app(&self) -> &AppId {
        self.keys.app()
    }

    /// Takes the text of an encapsulation that is apart.
    pub(crate) fn give(&mut self, encapsulation: &[u8]) -> Result<(), CannotOpen> {
        let (header, enc) = Encapsulation::from_text(encapsulation).ok_or(CannotOpen)?;
        self.given.insert(header, enc);
        Ok(())
    }

    /// Returns true if the encapsulation of an envelope is apart and was not given. The envelope
    /// then does not open, even if its schedule is cached: the result must not depend on other
    /// requests.
    pub(crate) fn lacks_encapsulation(&self, parts: &Parts<'_>) -> bool {
        let is_apart =
            parts.header.suite() == Suite::P256MlKem768 && parts.encapsulation.is_empty();
        is_apart && !self.given.contains_key(&parts.header)
    }

    /// Returns the key version that opens a header.
    pub(crate) fn key_version(&self, header: Header) -> Result<&Arc<KeyVersion>, CannotOpen> {
        let version = self
            .keys
            .reader(header.suite(), header.key_id())
            .ok_or(CannotOpen)?;
        if self.opens_outside || version.origin == Origin::Inside {
            Ok(version)
        } else {
            Err(CannotOpen)
        }
    }

    /// Returns a context under which an earlier request opened a field, with a version of this
    /// origin.
    pub(crate) fn cached_context(&self, header: Header, origin: Origin) -> Option<HeldContext> {
        match self
            .cache
            .as_ref()?
            .get(self.app(), ScheduleId::Envelope(header))?
        {
            CachedSchedule::Envelope(context) => Some(HeldContext {
                context,
                header,
                origin,
                is_cached: true,
            }),
            _ => None,
        }
    }

    /// Returns true if [`Self::cached_context`] would return a context. Does not count as a use.
    pub(crate) fn is_cached(&self, header: Header) -> bool {
        self.cache
            .as_ref()
            .is_some_and(|cache| cache.contains(self.app(), ScheduleId::Envelope(header)))
    }

    /// Offers a context, under which a field has opened, to other requests.
    #[inline]
    pub(crate) fn add_to_cache(&self, held: &mut HeldContext) {
        if held.is_cached {
            return;
        }
        held.is_cached = true;
        if let Some(cache) = &self.cache {
            cache.keep(
                self.app(),
                ScheduleId::Envelope(held.header),
                CachedSchedule::Envelope(Arc::clone(&held.context)),
            );
        }
    }

    /// Makes the context of a header by one Diffie-Hellman. `enc`: the encapsulation of
    /// [`Suite::P256MlKem768`], unless it was given.
    pub(crate) fn agree(
        &self,
        header: Header,
        enc: Option<&[u8; ENC_BYTES]>,
    ) -> Result<HeldContext, CannotOpen> {
        let version = self.key_version(header)?;
        let enc = enc.or_else(|| self.given.get(&header).map(|enc| &**enc));
        let context = match (&version.material, enc) {
            (KeyMaterial::Hybrid(key), Some(enc)) => {
                let secret = key.decapsulate(enc).map_err(|_| CannotOpen)?;
                version.with_context(self.app(), hybrid::KEM_ID, |context: &ScheduleContext| {
                    Context::key_schedule(hybrid::KEM_ID, &secret, context)
                })
            }
            (KeyMaterial::Pair(_) | KeyMaterial::Psk(_), None) => {
                let pair = match &version.material {
                    KeyMaterial::Psk(key) => key.pair().map_err(|_| CannotOpen)?,
                    _ => version.pair().map_err(|_| CannotOpen)?,
                };
                let curve = header.suite().dhkem_curve().ok_or(CannotOpen)?;
                let ephemeral =
                    PublicKey::from_sec1(curve, header.ephemeral()).map_err(|_| CannotOpen)?;
                version.with_context(self.app(), curve.kem_id(), |context: &ScheduleContext| {
                    Context::recipient(pair, &ephemeral, context)
                })
            }
            _ => return Err(CannotOpen),
        };
        let context = Arc::new(context.map_err(|_| CannotOpen)?);
        Ok(HeldContext {
            context,
            header,
            origin: version.origin,
            is_cached: false,
        })
    }
}
