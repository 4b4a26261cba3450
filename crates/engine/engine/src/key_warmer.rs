//! Makes precomputed tables and ready keys for the key versions that seal most, in idle time.
//!
//! Once per second it reads how many ephemeral keys each version took. The busiest versions get a
//! table, made one at a time outside the crypto threads. Idle crypto threads make ready keys for
//! those versions. Versions that are no longer busy lose both. No request waits for them: without a
//! ready key, a request makes its own.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sealwire_crypto::{AppKeys, KeyId, KeyVersion, Suite};

use crate::apps::Apps;

/// How often uses are counted.
const PERIOD: Duration = Duration::from_secs(1);
/// Uses in one period that make a version hot. A table saves 30 us a use and costs 20 ms, so at
/// this rate it pays within a quarter of a minute.
const HOT_USES: u64 = 50;
/// Periods without that many uses after which a version is no longer hot.
const COLD_PERIODS: u32 = 60;

/// The hot key versions. See the module.
#[derive(Debug)]
pub struct KeyWarmer {
    tables_max: usize,
    ready_max: usize,
    hot: RwLock<Arc<[Hot]>>,
}

#[derive(Clone, Debug)]
struct Hot {
    keys: Arc<AppKeys>,
    version: Arc<KeyVersion>,
    idle_periods: u32,
}

impl KeyWarmer {
    /// Nothing is hot yet.
    pub fn new(config: &sealwire_settings::Crypto) -> Arc<Self> {
        let hot = RwLock::new(Arc::from([]));
        Arc::new(Self {
            tables_max: config.precomputed_tables,
            ready_max: config.ready_keys,
            hot,
        })
    }

    fn hot(&self) -> Arc<[Hot]> {
        Arc::clone(&self.hot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes one ready key where one is missing; for a crypto thread without work. `false`: none is
    /// missing.
    pub fn make_ready(&self) -> bool {
        if self.ready_max == 0 {
            return false;
        }
        self.hot().iter().any(|hot| {
            hot.version
                .make_ready(hot.keys.app(), self.ready_max)
                .unwrap_or(false)
        })
    }

    /// Counts uses and makes tables until dropped.
    pub async fn follow(self: Arc<Self>, apps: Arc<Apps>) {
        if self.tables_max == 0 && self.ready_max == 0 {
            return;
        }

        let mut uses_before = HashMap::new();
        loop {
            tokio::time::sleep(PERIOD).await;
            self.update(&apps.all(), &mut uses_before);
            for hot in self.hot().iter().take(self.tables_max) {
                let version = Arc::clone(&hot.version);
                let made = tokio::task::spawn_blocking(move || version.make_table()).await;
                if !matches!(made, Ok(Ok(_))) {
                    tracing::warn!(app = %hot.keys.app(), key = %hot.version.id, "a key table could not be made");
                }
            }
        }
    }

    fn update(&self, all: &[Arc<AppKeys>], uses_before: &mut HashMap<KeyId, u64>) {
        let before: HashMap<KeyId, Hot> = self
            .hot()
            .iter()
            .map(|hot| (hot.version.id, hot.clone()))
            .collect();
        let mut uses_now = HashMap::new();
        let mut hot: Vec<Hot> = Vec::new();
        // A symmetric key has no table to precompute.
        let newest = all.iter().flat_map(|keys| {
            Suite::ALL
                .into_iter()
                .filter(|suite| *suite != Suite::Xaes)
                .filter_map(move |suite| Some((keys, keys.newest(suite)?)))
        });

        for (keys, version) in newest {
            let uses = version.uses();
            let recent =
                uses.saturating_sub(uses_before.get(&version.id).copied().unwrap_or_default());
            uses_now.insert(version.id, uses);
            let idle_periods = match before.get(&version.id) {
                _ if recent >= HOT_USES => 0,
                Some(hot) if hot.idle_periods < COLD_PERIODS => hot.idle_periods + 1,
                _ => continue,
            };
            hot.push(Hot {
                keys: Arc::clone(keys),
                version: Arc::clone(version),
                idle_periods,
            });
        }

        *uses_before = uses_now;
        hot.sort_by_key(|hot| hot.idle_periods);
        hot.truncate(self.tables_max.max(1));
        for old in before.values() {
            if !hot
                .iter()
                .any(|hot| Arc::ptr_eq(&hot.version, &old.version))
            {
                old.version.cool();
            }
        }
        *self.hot.write().unwrap_or_else(PoisonError::into_inner) = hot.into();
    }
}

#[cfg(test)]
mod tests {
    use sealwire_crypto::{AppId, Curve, Encoding, KeyPair, KeyScope, KeyState, Sealer};

    use super::*;

    fn app(name: &str) -> Arc<AppKeys> {
        let version = KeyVersion::new(1, KeyState::Active, KeyPair::generate(Curve::P256).unwrap());
        Arc::new(AppKeys::new(AppId::new(name).unwrap(), vec![version]).unwrap())
    }

    fn config(tables: usize, ready_keys: usize) -> sealwire_settings::Crypto {
        sealwire_settings::Crypto {
            threads: 1,
            precomputed_tables: tables,
            ready_keys,
            open_key_cache_entries: 0,
            open_key_cache_s: 1,
        }
    }

    fn use_often(keys: &AppKeys) {
        for _ in 0..HOT_USES {
            let newest = Arc::clone(keys.newest(Curve::P256).unwrap());
            Sealer::new(keys.app(), newest, KeyScope::Request, Encoding::Text, b"").unwrap();
        }
    }

    fn hot_apps(ahead: &KeyWarmer) -> Vec<String> {
        ahead
            .hot()
            .iter()
            .map(|hot| hot.keys.app().to_string())
            .collect()
    }

    #[test]
    fn the_busy_become_hot_and_the_idle_are_cooled() {
        let ahead = KeyWarmer::new(&config(2, 3));
        let busy = app("busy");
        let quiet = app("quiet");
        let all = [Arc::clone(&busy), Arc::clone(&quiet)];
        let mut uses = HashMap::new();
        ahead.update(&all, &mut uses);
        assert!(!ahead.make_ready(), "nothing is hot");
        use_often(&busy);
        ahead.update(&all, &mut uses);
        assert_eq!(hot_apps(&ahead), ["busy"]);
        let made = std::iter::from_fn(|| ahead.make_ready().then_some(())).count();
        assert_eq!(made, 3, "as many ready keys as configured");
        for _ in 0..COLD_PERIODS {
            ahead.update(&all, &mut uses);
        }
        assert_eq!(hot_apps(&ahead), ["busy"]);
        ahead.update(&all, &mut uses);
        assert!(hot_apps(&ahead).is_empty());
        let debug = format!("{:?}", busy.newest(Curve::P256).unwrap());
        assert!(debug.contains("ready: 0"), "{debug}");
    }

    #[test]
    fn the_least_busy_make_room() {
        let ahead = KeyWarmer::new(&config(2, 0));
        let all = ["a", "b", "c"].map(app);
        let mut uses = HashMap::new();
        use_often(&all[0]);
        ahead.update(&all, &mut uses);
        use_often(&all[1]);
        use_often(&all[2]);
        ahead.update(&all, &mut uses);
        assert_eq!(hot_apps(&ahead), ["b", "c"]);
        assert!(!ahead.make_ready(), "ready keys are switched off");
    }
}
