//! Simulates a process that ends at any step of a change. The remaining files must be complete and
//! usable by the next process.
//!
//! A failed step ends a change like a crash does: nothing is cleaned up. Unsynced data can be
//! arbitrary after a crash. A remaining temporary file is therefore overwritten with garbage before
//! the state is opened again.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sealwire_crypto::{
    AppId, AppKeys, Curve, Datatype, Encoding, EpochLifetime, Kek, KeyPair, KeyScope, Opener,
    Sealer, Suite,
};

use super::FileStore;
use sealwire_apps::{App, AppChange, AppSummary, Control, KeyKind, Settings, Target};
use sealwire_store::StoreError;

/// Number of steps until the process ends.
#[derive(Debug)]
pub(super) struct Steps(AtomicUsize);

impl Default for Steps {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl Steps {
    /// Counts one step of a write.
    pub(super) fn take_one(&self) -> io::Result<()> {
        let left = self.0.fetch_sub(1, Ordering::Relaxed);
        if left == 0 {
            Err(io::Error::other("the process ends here"))
        } else {
            Ok(())
        }
    }
}

fn control(store: FileStore) -> Control {
    Control::new(Arc::new(store), Kek::from_hex(&"5a".repeat(32)).unwrap())
}

fn open(folder: &Path) -> Control {
    control(FileStore::open(&folder.join("apps.json")).unwrap())
}

/// Creates a control whose process ends after `steps` steps.
fn ends_after(steps: usize, folder: &Path) -> Control {
    let store = FileStore::open(&folder.join("apps.json")).unwrap();
    store.file.steps.0.store(steps, Ordering::Relaxed);
    control(store)
}

/// A minimal engine that follows the store and reloads when the generation changes.
struct CrashingEngine {
    generation: u64,
    keys: Arc<AppKeys>,
    settings: Settings,
}

impl CrashingEngine {
    async fn start(control: &Control) -> Self {
        let mut state = control.load().await.unwrap();
        let App { keys, settings, .. } = state.apps.pop().unwrap();
        Self {
            generation: state.generation,
            keys,
            settings,
        }
    }

    async fn follow(&mut self, control: &Control) {
        if control.generation().await.unwrap() != self.generation {
            *self = Self::start(control).await;
        }
    }

    fn seal(&self, suite: Suite) -> Vec<u8> {
        let newest = Arc::clone(self.keys.newest(suite).unwrap());
        let mut sealer = Sealer::new(
            self.keys.app(),
            newest,
            KeyScope::Request,
            Encoding::Binary,
            b"",
        )
        .unwrap();
        let mut envelope = Vec::new();
        sealer
            .seal(Datatype::String, b"kept", &mut envelope)
            .unwrap();
        envelope
    }

    fn opens(&self, envelope: &[u8]) -> bool {
        let mut opener = Opener::new(Arc::clone(&self.keys), b"");
        opener
            .open_binary(envelope)
            .is_ok_and(|opened| opened.plaintext == b"kept")
    }

    fn has(&self, summary: &AppSummary) -> bool {
        let held = self
            .keys
            .versions()
            .iter()
            .map(|version| (version.id, version.number, version.state));
        held.eq(summary
            .keys
            .iter()
            .map(|key| (key.id, key.number, key.state)))
            && self.settings == summary.settings
    }
}

/// Number of steps of one change.
const STEPS: usize = 6;

fn shop() -> AppId {
    AppId::new("shop").unwrap()
}

/// Runs `change` once for every step at which it could end, and passes the resulting folder to
/// `check`.
async fn at_every_step(
    change: impl AsyncFn(&Control) -> Result<AppChange, StoreError>,
    check: impl AsyncFn(&Control, &CrashingEngine, CrashingEngine, Result<AppChange, StoreError>),
) {
    for steps in 0..=STEPS {
        let folder = tempfile::tempdir().unwrap();
        let before = open(folder.path());
        before.create(&shop(), &Suite::ALL).await.unwrap();
        before
            .rotate(&shop(), KeyKind::Suite(Suite::P256))
            .await
            .unwrap();
        let old = CrashingEngine::start(&before).await;
        let running = CrashingEngine::start(&before).await;
        let outcome = change(&ends_after(steps, folder.path())).await;
        assert_eq!(outcome.is_ok(), steps == STEPS, "at step {steps}");
        let aside = folder.path().join("apps.json.new");
        assert_eq!(aside.exists(), (1..=3).contains(&steps), "at step {steps}");
        if aside.exists() {
            fs::write(aside, "{\"format\": 1, \"gener").unwrap();
        }
        check(&open(folder.path()), &old, running, outcome).await;
    }
}

#[tokio::test]
async fn rotation_that_crashes_anywhere_loses_no_version() {
    loses_no_version(async |control| control.rotate(&shop(), KeyKind::Suite(Suite::P256)).await)
        .await;
}

#[tokio::test]
async fn import_that_crashes_anywhere_loses_no_version() {
    loses_no_version(async |control| {
        let pair = KeyPair::from_scalar(Curve::P256, &[1; 32]).unwrap();
        control.import(&shop(), pair, true).await
    })
    .await;
}

async fn loses_no_version(add: impl AsyncFn(&Control) -> Result<AppChange, StoreError>) {
    at_every_step(add, async |after, old, mut running, outcome| {
        let sealed = Suite::ALL.map(|suite| old.seal(suite));
        let found = after.app(&shop()).await.unwrap();
        let numbers: Vec<u32> = found.keys.iter().map(|key| key.number).collect();
        assert!(
            numbers == [1, 1, 1, 1, 1, 1, 2] || numbers == [1, 1, 1, 1, 1, 1, 2, 3],
            "{numbers:?}"
        );
        assert!(
            outcome.is_err() || numbers.len() == 8,
            "an acknowledged change is durable"
        );

        // A new engine and a running engine reach one state, and open all envelopes.
        let started = CrashingEngine::start(after).await;
        running.follow(after).await;
        assert!(running.has(&found) && started.has(&found));
        assert!(
            sealed
                .iter()
                .all(|envelope| started.opens(envelope) && running.opens(envelope))
        );
        let newest = started.seal(Suite::P256);

        let again = after
            .rotate(&shop(), KeyKind::Suite(Suite::P256))
            .await
            .unwrap();
        assert_eq!(again.key().unwrap().number, numbers.last().unwrap() + 1);
        running.follow(after).await;
        assert!(running.has(&again.app));
        assert!(
            sealed
                .iter()
                .chain([&newest])
                .all(|envelope| running.opens(envelope))
        );
        assert_eq!(running.generation, after.generation().await.unwrap());
    })
    .await;
}

#[tokio::test]
async fn disable_that_crashes_anywhere_is_seen_by_all_when_repeated() {
    at_every_step(
        async |control| {
            let key = control.app(&shop()).await?.keys[0].id;
            control.disable(&shop(), Target::Key(key)).await
        },
        async |after, _, mut running, _| {
            let found = after.app(&shop()).await.unwrap();
            running.follow(after).await;
            assert!(running.has(&found));
            let key = found.keys[0].id;
            after.disable(&shop(), Target::Key(key)).await.unwrap();
            running.follow(after).await;
            assert!(running.keys.reader(Curve::P256, key).is_none());
            assert_eq!(running.keys.versions().len(), 7);
        },
    )
    .await;
}

fn lifetime(ms: u32) -> Option<EpochLifetime> {
    EpochLifetime::from_ms(ms).ok()
}

fn set_epoch(ms: u32) -> impl Fn(&mut Settings) {
    move |settings| settings.epoch = lifetime(ms)
}

#[tokio::test]
async fn setting_that_crashes_anywhere_is_old_or_new_for_all() {
    at_every_step(
        async |control| control.configure(&shop(), set_epoch(15_000)).await,
        async |after, old, mut running, outcome| {
            let found = after.app(&shop()).await.unwrap();
            let settings = found.settings;
            assert!(settings == old.settings || settings.epoch == lifetime(15_000));
            assert!(
                outcome.is_err() || settings.epoch == lifetime(15_000),
                "an acknowledged change is durable"
            );
            running.follow(after).await;
            assert!(running.has(&found) && CrashingEngine::start(after).await.has(&found));
            assert_eq!(running.keys.versions().len(), 7, "no key is touched");

            let again = after.configure(&shop(), set_epoch(1)).await.unwrap();
            running.follow(after).await;
            assert_eq!(
                (running.settings.epoch, running.generation),
                (lifetime(1), again.generation)
            );
        },
    )
    .await;
}
