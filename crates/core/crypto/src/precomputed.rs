//! Precomputed tables and key schedules, made ahead of requests.
//!
//! A key version that seals often gets a precomputed table and ready schedules. The table makes a
//! Diffie-Hellman five times cheaper. A ready schedule removes the Diffie-Hellman from the request.
//! Idle threads make tables and schedules ([`KeyVersion::make_table`], [`KeyVersion::make_ready`]).
//! Each is optional: without them, a schedule is computed when it is needed.
//!
//! Important: a ready schedule is removed from its list before use, so no two sealers ever share a
//! schedule. Resuming one machine snapshot twice would break this guarantee. So tables and ready
//! schedules can be switched off on such machines.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use sealwire_fixed_base::FixedBase;

use crate::envelope::INFO_PREFIX;
use crate::epoch::Epoch;
use crate::hpke::ScheduleContext;
use crate::key::{Ephemeral, SharedX};
use crate::key_schedule::Schedule;
use crate::mutex::lock;
use crate::{AppId, Error, KeyMaterial, KeyVersion, Suite};

/// Precomputed material of one key version, and the key of its epoch.
#[derive(Default)]
pub(crate) struct Precomputed {
    uses: AtomicU64,
    /// The common part of the version's schedules, with the app that it belongs to.
    context: OnceLock<(AppId, ScheduleContext)>,
    table: Mutex<Option<Arc<FixedBase>>>,
    ready: Mutex<Vec<(AppId, Schedule)>>,
    pub(crate) epoch: Mutex<Option<Arc<Epoch>>>,
}

impl Precomputed {
    /// Counts one use and returns the number of uses before it.
    pub(crate) fn count_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn set_uses(&self, uses: u64) {
        self.uses.store(uses, Ordering::Relaxed);
    }

    fn table(&self) -> Option<Arc<FixedBase>> {
        lock(&self.table).clone()
    }

    pub(crate) fn take_ready(&self, app: &AppId) -> Option<Schedule> {
        // A key version belongs to one app. The filter keeps schedules separate even if two apps
        // shared a version.
        lock(&self.ready)
            .pop()
            .filter(|(of, _)| of == app)
            .map(|(_, schedule)| schedule)
    }
}

impl KeyVersion {
    /// Returns the number of headers made with this version since it was loaded; for a key pair,
    /// the number of ephemeral keys. The number shows whether a table is worth its cost.
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.precomputed.uses.load(Ordering::Relaxed)
    }

    /// Makes a fresh ephemeral key for a format other than the envelope. Returns its uncompressed
    /// point and the shared x coordinate. The private half is dropped.
    pub(crate) fn agree_fresh(&self) -> Result<([u8; 65], SharedX), Error> {
        let curve = self.suite().curve().ok_or(Error::NoKeyPair)?;
        self.precomputed.count_use();
        let ephemeral = Ephemeral::generate(curve)?;
        Ok((*ephemeral.public(), self.agree(&ephemeral)?))
    }

    fn compute_context(&self, app: &AppId, kem_id: u16) -> ScheduleContext {
        let psk = if let KeyMaterial::Psk(key) = &self.material {
            Some(key.psk())
        } else {
            None
        };
        ScheduleContext::new(kem_id, &[INFO_PREFIX, app.as_str().as_bytes()], psk)
    }

    /// Calls `derive` with the common part of all schedules of the app under this key of the HPKE
    /// KEM `kem_id`. The part is of PSK mode if the key has a pre-shared key. It is computed once.
    pub(crate) fn with_context<T>(
        &self,
        app: &AppId,
        kem_id: u16,
        derive: impl FnOnce(&ScheduleContext) -> T,
    ) -> T {
        let (of, context) = self
            .precomputed
            .context
            .get_or_init(|| (app.clone(), self.compute_context(app, kem_id)));
        // A key version belongs to one app. The check keeps contexts separate even if two apps
        // shared a version.
        if of == app {
            derive(context)
        } else {
            derive(&self.compute_context(app, kem_id))
        }
    }

    /// Computes a Diffie-Hellman of this version's public key with an ephemeral key, by table if
    /// there is one.
    pub(crate) fn agree(&self, ephemeral: &Ephemeral) -> Result<SharedX, Error> {
        match self.precomputed.table() {
            Some(table) => ephemeral.agree_by(&table),
            None => ephemeral.agree(self.public()?),
        }
    }

    /// Makes this version's table, which takes about 20 ms and 150 KB. Does nothing if the table
    /// exists or the suite uses no table. Returns `true` if a table was made.
    ///
    /// # Errors
    /// [`Error::Library`]; sealing continues without a table.
    pub fn make_table(&self) -> Result<bool, Error> {
        if !matches!(
            self.suite(),
            Suite::P256 | Suite::P256Psk | Suite::P256MlKem768
        ) || self.precomputed.table().is_some()
        {
            return Ok(false);
        }
        let table = FixedBase::new(self.public()?.uncompressed()).map_err(|_| Error::Library)?;
        *lock(&self.precomputed.table) = Some(Arc::new(table));
        Ok(true)
    }

    /// Makes one ready schedule unless there are `max`. Does nothing for a symmetric key, whose
    /// schedules cost little. Returns `true` if a schedule was made.
    ///
    /// # Errors
    /// [`Error::Library`]; sealing continues without a ready schedule.
    pub fn make_ready(&self, app: &AppId, max: usize) -> Result<bool, Error> {
        if self.suite() == Suite::Xaes || lock(&self.precomputed.ready).len() >= max {
            return Ok(false);
        }
        let schedule = Schedule::make(app, self)?;
        lock(&self.precomputed.ready).push((app.clone(), schedule));
        Ok(true)
    }

    /// Drops this version's table, wipes its ready schedules and ends its epoch.
    pub fn cool(&self) {
        *lock(&self.precomputed.table) = None;
        lock(&self.precomputed.ready).clear();
        self.revoke_epoch();
    }
}

impl fmt::Debug for Precomputed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table().is_some();
        let ready = lock(&self.ready).len();
        let epoch = lock(&self.epoch).is_some();
        f.debug_struct("Precomputed")
            .field("table", &table)
            .field("ready", &ready)
            .field("epoch", &epoch)
            .finish()
    }
}
