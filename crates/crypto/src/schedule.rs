//! The key schedule of one ephemeral key, and its precomputation ahead of requests.
//!
//! A key version that seals often gets a precomputed table and ready schedules. The table makes a Diffie-Hellman five
//! times cheaper. A ready schedule removes the Diffie-Hellman from the request. Idle threads make both
//! ([`KeyVersion::make_table`], [`KeyVersion::make_ready`]). Both are optional: without them, a schedule is computed
//! when it is needed.
//!
//! Important: a ready schedule is removed from its list before use, so no two sealers ever share a schedule. Resuming
//! one machine snapshot twice would break this guarantee. Both can therefore be switched off on such machines.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sealwire_fixed_base::FixedBase;

use crate::envelope::{HEADER_CHARS, Header, INFO_PREFIX};
use crate::epoch::Epoch;
use crate::hpke::{Context, ScheduleContext};
use crate::key::{Ephemeral, SharedX};
use crate::{AppId, Curve, Error, KeyVersion};

/// The key schedule of an ephemeral key. The ephemeral private key is already dropped.
pub(crate) struct Schedule {
    pub(crate) context: Context,
    pub(crate) header: Header,
    pub(crate) header_chars: [u8; HEADER_CHARS],
}

impl Schedule {
    /// Returns a schedule to seal one request or field under: a ready schedule if available, else a new one.
    pub(crate) fn take(app: &AppId, recipient: &KeyVersion) -> Result<Self, Error> {
        recipient.ahead.count_use();
        match recipient.ahead.take_ready(app) {
            Some(schedule) => Ok(schedule),
            None => Self::make(app, recipient),
        }
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

/// Precomputed material of one key version, and the key of its epoch.
#[derive(Default)]
pub(crate) struct Ahead {
    uses: AtomicU64,
    /// The common part of the version's schedules, with the app that it belongs to.
    context: OnceLock<(AppId, ScheduleContext)>,
    table: Mutex<Option<Arc<FixedBase>>>,
    ready: Mutex<Vec<(AppId, Schedule)>>,
    pub(crate) epoch: Mutex<Option<Arc<Epoch>>>,
}

impl Ahead {
    pub(crate) fn count_use(&self) {
        self.uses.fetch_add(1, Ordering::Relaxed);
    }

    fn table(&self) -> Option<Arc<FixedBase>> {
        lock(&self.table).clone()
    }

    fn take_ready(&self, app: &AppId) -> Option<Schedule> {
        // A key version belongs to one app. The filter keeps schedules separate even if two apps shared a version.
        lock(&self.ready).pop().filter(|(of, _)| of == app).map(|(_, schedule)| schedule)
    }
}

impl KeyVersion {
    /// Returns the number of ephemeral keys made for this version since it was loaded. The number shows if a table pays
    /// off.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.ahead.uses.load(Ordering::Relaxed)
    }

    /// Makes a fresh ephemeral key for a format other than the envelope. Returns its uncompressed point and the shared
    /// x coordinate. The private half is dropped.
    pub(crate) fn agree_fresh(&self) -> Result<([u8; 65], SharedX), Error> {
        self.ahead.count_use();
        let ephemeral = Ephemeral::generate(self.pair.public().curve())?;
        Ok((*ephemeral.public(), self.agree(&ephemeral)?))
    }

    /// Calls `derive` with the common part of all schedules of the app under this key. The first call computes that
    /// part.
    pub(crate) fn with_context<T>(&self, app: &AppId, derive: impl FnOnce(&ScheduleContext) -> T) -> T {
        let make = || ScheduleContext::new(self.pair.public().curve(), &[INFO_PREFIX, app.as_str().as_bytes()]);
        let (of, context) = self.ahead.context.get_or_init(|| (app.clone(), make()));
        // A key version belongs to one app. The check keeps contexts separate even if two apps shared a version.
        if of == app { derive(context) } else { derive(&make()) }
    }

    /// Computes a Diffie-Hellman with an ephemeral key, by table if there is one.
    fn agree(&self, ephemeral: &Ephemeral) -> Result<SharedX, Error> {
        match self.ahead.table() {
            Some(table) => ephemeral.agree_by(&table),
            None => ephemeral.agree(self.pair.public()),
        }
    }

    /// Makes this version's table, which takes about 20 ms and 150 KB. Does nothing if the table exists or the curve
    /// has none. Returns `true` if a table was made.
    ///
    /// # Errors
    /// [`Error::Library`]; sealing continues without a table.
    pub fn make_table(&self) -> Result<bool, Error> {
        let public = self.pair.public();
        if public.curve() != Curve::P256 || self.ahead.table().is_some() {
            return Ok(false);
        }
        let table = FixedBase::new(public.uncompressed()).map_err(|_| Error::Library)?;
        *lock(&self.ahead.table) = Some(Arc::new(table));
        Ok(true)
    }

    /// Makes one ready schedule unless there are `max`. Returns `true` if a schedule was made.
    ///
    /// # Errors
    /// [`Error::Library`]; sealing continues without a ready schedule.
    pub fn make_ready(&self, app: &AppId, max: usize) -> Result<bool, Error> {
        if lock(&self.ahead.ready).len() >= max {
            return Ok(false);
        }
        let schedule = Schedule::make(app, self)?;
        lock(&self.ahead.ready).push((app.clone(), schedule));
        Ok(true)
    }

    /// Drops this version's table, wipes its ready schedules and ends its epoch.
    pub fn cool(&self) {
        *lock(&self.ahead.table) = None;
        lock(&self.ahead.ready).clear();
        self.revoke_epoch();
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, ready, epoch) = (self.table().is_some(), lock(&self.ready).len(), lock(&self.epoch).is_some());
        f.debug_struct("Ahead").field("table", &table).field("ready", &ready).field("epoch", &epoch).finish()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded data is consistent between any two statements, so a poisoned lock is safe to use.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
