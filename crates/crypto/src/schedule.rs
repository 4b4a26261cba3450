//! One ephemeral key's schedule, and the work that can be done for it ahead of a request.
//!
//! A key version that seals often is given a table, which makes the Diffie-Hellman with it five times cheaper, and
//! ready schedules, which take it off the request altogether. Both are made by whoever has time for it
//! ([`KeyVersion::make_table`], [`KeyVersion::make_ready`]) and are optional: without them a schedule is made on the spot.
//!
//! The one fact to hold on to: a ready schedule is taken out of its list to be used, so no two sealers ever share one.
//! A snapshot of the machine that is resumed twice would break that; so both can be switched off where that happens.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sealwire_fixed_base::FixedBase;

use crate::envelope::{HEADER_CHARS, Header, INFO_PREFIX};
use crate::epoch::Epoch;
use crate::hpke::{Context, ScheduleContext};
use crate::key::{Ephemeral, SharedX};
use crate::{AppId, Curve, Error, KeyVersion};

/// An ephemeral key's schedule. The ephemeral private key is already gone.
pub(crate) struct Schedule {
    pub(crate) context: Context,
    pub(crate) header: Header,
    pub(crate) header_chars: [u8; HEADER_CHARS],
}

impl Schedule {
    /// A schedule to seal one request or field under: a ready one if there is one, else made now.
    pub(crate) fn take(app: &AppId, recipient: &KeyVersion) -> Result<Self, Error> {
        recipient.ahead.count_use();
        match recipient.ahead.take_ready(app) {
            Some(schedule) => Ok(schedule),
            None => Self::make(app, recipient),
        }
    }

    /// A fresh schedule: one key generation and one Diffie-Hellman, by table if there is one.
    pub(crate) fn make(app: &AppId, recipient: &KeyVersion) -> Result<Self, Error> {
        Self::with_ephemeral(app, recipient, &Ephemeral::generate(recipient.pair.public().curve())?)
    }

    /// The schedule of a given ephemeral key. A second one of the same key would repeat nonces.
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

/// What has been made ahead for one key version, and the key of its epoch.
#[derive(Default)]
pub(crate) struct Ahead {
    uses: AtomicU64,
    /// What its schedules have in common, and the app that it is of.
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
        // A key version belongs to one app; if one were ever shared, its schedules would not be.
        lock(&self.ready).pop().filter(|(of, _)| of == app).map(|(_, schedule)| schedule)
    }
}

impl KeyVersion {
    /// How many ephemeral keys have been made for it since it was loaded: says whether it is worth a table.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.ahead.uses.load(Ordering::Relaxed)
    }

    /// A fresh ephemeral key for a format other than the envelope: its point, uncompressed, and the shared x
    /// coordinate. The private half is gone.
    pub(crate) fn agree_fresh(&self) -> Result<([u8; 65], SharedX), Error> {
        self.ahead.count_use();
        let ephemeral = Ephemeral::generate(self.pair.public().curve())?;
        Ok((*ephemeral.public(), self.agree(&ephemeral)?))
    }

    /// Has `derive` use what all schedules of the app under this key have in common, made at the first.
    pub(crate) fn with_context<T>(&self, app: &AppId, derive: impl FnOnce(&ScheduleContext) -> T) -> T {
        let make = || ScheduleContext::new(self.pair.public().curve(), &[INFO_PREFIX, app.as_str().as_bytes()]);
        let (of, context) = self.ahead.context.get_or_init(|| (app.clone(), make()));
        // A key version belongs to one app; if one were ever shared, its schedules would not be.
        if of == app { derive(context) } else { derive(&make()) }
    }

    /// Diffie-Hellman with an ephemeral key, by table if there is one.
    fn agree(&self, ephemeral: &Ephemeral) -> Result<SharedX, Error> {
        match self.ahead.table() {
            Some(table) => ephemeral.agree_by(&table),
            None => ephemeral.agree(self.pair.public()),
        }
    }

    /// Makes its table, about 20 ms and 150 KB, unless it has one or its curve has none. `true`: made now.
    ///
    /// # Errors
    /// [`Error::Library`]; sealing goes on without it.
    pub fn make_table(&self) -> Result<bool, Error> {
        let public = self.pair.public();
        if public.curve() != Curve::P256 || self.ahead.table().is_some() {
            return Ok(false);
        }
        let table = FixedBase::new(public.uncompressed()).map_err(|_| Error::Library)?;
        *lock(&self.ahead.table) = Some(Arc::new(table));
        Ok(true)
    }

    /// Makes one ready schedule unless there are `max`. `true`: made now.
    ///
    /// # Errors
    /// [`Error::Library`]; sealing goes on without it.
    pub fn make_ready(&self, app: &AppId, max: usize) -> Result<bool, Error> {
        if lock(&self.ahead.ready).len() >= max {
            return Ok(false);
        }
        let schedule = Schedule::make(app, self)?;
        lock(&self.ahead.ready).push((app.clone(), schedule));
        Ok(true)
    }

    /// Drops its table, wipes its ready schedules and ends its epoch.
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
    // What is locked here is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
