//! A process that ends at any step of a change: what it leaves must be whole, and the next one must be able to go on.
//!
//! A failed step ends a change just where a crash would: nothing is tidied up after it. What was written and not synced
//! may be anything, so every file that is still aside is overwritten with rubbish before the folder is opened again.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use sealwire_crypto::{
    AppId, AppKeys, Curve, Datatype, Encoding, EpochLifetime, Kek, KeyPair, KeyScope, Opener, Sealer,
};

use super::{App, AppStore, AppSummary, FolderStore, KeySummary};
use crate::{Settings, StoreError};

thread_local! {
    /// Steps until the process ends.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// One step of a write.
pub(super) fn step() -> io::Result<()> {
    LEFT.with(|left| match left.get() {
        0 => Err(io::Error::other("the process ends here")),
        steps => {
            left.set(steps - 1);
            Ok(())
        }
    })
}

fn ends_after<T>(steps: usize, change: impl FnOnce() -> T) -> T {
    LEFT.set(steps);
    let outcome = change();
    LEFT.set(usize::MAX);
    outcome
}

fn store(folder: &Path) -> FolderStore {
    FolderStore::open(folder, Kek::from_hex(&"5a".repeat(32)).unwrap()).unwrap()
}

/// What an engine does that follows the store: it loads again when the number moved.
struct Engine {
    generation: u64,
    keys: Arc<AppKeys>,
    settings: Settings,
}

impl Engine {
    fn start(store: &FolderStore) -> Self {
        let (generation, mut apps) = store.load().unwrap();
        let App { keys, settings } = apps.pop().unwrap();
        Self { generation, keys, settings }
    }

    fn follow(&mut self, store: &FolderStore) {
        // Twice, for it may look while a number is in doubt.
        for _ in 0..2 {
            if store.generation().unwrap() != self.generation {
                *self = Self::start(store);
            }
        }
    }

    fn seal(&self, curve: Curve) -> Vec<u8> {
        let newest = Arc::clone(self.keys.newest(curve).unwrap());
        let mut sealer = Sealer::new(self.keys.app(), newest, KeyScope::Request, Encoding::Binary, b"").unwrap();
        let mut envelope = Vec::new();
        sealer.seal(Datatype::String, b"kept", &mut envelope).unwrap();
        envelope
    }

    fn opens(&self, envelope: &[u8]) -> bool {
        let mut opener = Opener::new(Arc::clone(&self.keys), b"");
        opener.open_binary(envelope).is_ok_and(|opened| opened.plaintext == b"kept")
    }

    fn has(&self, summary: &AppSummary) -> bool {
        let held = self.keys.versions().iter().map(|version| (version.id, version.number, version.state));
        held.eq(summary.keys.iter().map(|key| (key.id, key.number, key.state))) && self.settings == summary.settings
    }
}

/// Steps of one change: three files of six each.
const STEPS: usize = 18;

/// Runs `change` once for every step it could end at, and gives what is then in the folder to `check`.
fn at_every_step<T>(
    change: impl Fn(&FolderStore, &AppId) -> Result<T, StoreError>,
    check: impl Fn(&Path, &Engine, Engine, Result<T, StoreError>),
) {
    let shop = AppId::new("shop").unwrap();
    for steps in 0..=STEPS {
        let folder = tempfile::tempdir().unwrap();
        let before = store(folder.path());
        before.create(&shop, &Curve::ALL).unwrap();
        before.rotate(&shop, Curve::P256).unwrap();
        let (old, running) = (Engine::start(&before), Engine::start(&before));
        let outcome = ends_after(steps, || change(&before, &shop));
        assert_eq!(outcome.is_ok(), steps == STEPS, "at step {steps}");
        for aside in ["generation.new", "apps/shop.json.new"] {
            let aside = folder.path().join(aside);
            if aside.exists() {
                fs::write(aside, "{\"format\": 1, \"app\": \"sh").unwrap();
            }
        }
        println!("at step {steps}: {}", fs::read_to_string(folder.path().join("generation")).unwrap().trim());
        check(folder.path(), &old, running, outcome);
    }
}

#[test]
fn a_rotation_that_ends_anywhere_loses_no_version() {
    loses_no_version(|store, shop| store.rotate(shop, Curve::P256));
}

#[test]
fn an_import_that_ends_anywhere_loses_no_version() {
    loses_no_version(|store, shop| store.import(shop, &KeyPair::from_scalar(Curve::P256, &[1; 32])?, true));
}

fn loses_no_version(add: impl Fn(&FolderStore, &AppId) -> Result<KeySummary, StoreError>) {
    at_every_step(add, |folder, old, mut running, outcome| {
        let shop = old.keys.app().clone();
        let sealed = Curve::ALL.map(|curve| old.seal(curve));
        let after = store(folder);
        let found = after.list().unwrap().pop().unwrap();
        let numbers: Vec<u32> = found.keys.iter().map(|key| key.number).collect();
        assert!(numbers == [1, 1, 2] || numbers == [1, 1, 2, 3], "{numbers:?}");
        assert!(outcome.is_err() || numbers.len() == 4, "what was promised is there");

        // One that starts and one that runs come to the same state, and open everything.
        let started = Engine::start(&after);
        running.follow(&after);
        assert!(running.has(&found) && started.has(&found));
        assert!(sealed.iter().all(|envelope| started.opens(envelope) && running.opens(envelope)));
        let newest = started.seal(Curve::P256);

        let again = after.rotate(&shop, Curve::P256).unwrap();
        assert_eq!(again.number, numbers.last().unwrap() + 1);
        running.follow(&after);
        assert!(running.has(&after.list().unwrap()[0]));
        assert!(sealed.iter().chain([&newest]).all(|envelope| running.opens(envelope)));
        assert_eq!(running.generation, after.generation().unwrap());
    });
}

#[test]
fn a_stop_that_ends_anywhere_is_seen_by_all_once_it_is_repeated() {
    at_every_step(
        |store, shop| store.disable(shop, store.list()?[0].keys[0].id),
        |folder, old, mut running, _| {
            let after = store(folder);
            let found = after.list().unwrap().pop().unwrap();
            running.follow(&after);
            assert!(running.has(&found));
            let key = found.keys[0].id;
            after.disable(old.keys.app(), key).unwrap();
            running.follow(&after);
            assert!(running.keys.reader(Curve::P256, key).is_none());
            assert_eq!(running.keys.versions().len(), 3);
        },
    );
}

#[test]
fn a_setting_that_ends_anywhere_is_the_old_or_the_new_for_all() {
    let lifetime = |ms| EpochLifetime::from_ms(ms).ok();
    at_every_step(
        |store, shop| store.configure(shop, &|settings| settings.epoch = lifetime(15_000)),
        |folder, old, mut running, outcome| {
            let after = store(folder);
            let found = after.list().unwrap().pop().unwrap();
            let settings = found.settings;
            assert!(settings == old.settings || settings.epoch == lifetime(15_000));
            assert!(outcome.is_err() || settings.epoch == lifetime(15_000), "what was promised is there");
            running.follow(&after);
            assert!(running.has(&found) && Engine::start(&after).has(&found));
            assert_eq!(running.keys.versions().len(), 3, "no key is touched");

            after.configure(old.keys.app(), &|settings| settings.epoch = lifetime(1)).unwrap();
            running.follow(&after);
            assert_eq!((running.settings.epoch, running.generation), (lifetime(1), after.generation().unwrap()));
        },
    );
}

#[test]
fn a_number_in_doubt_is_loaded_again_until_it_is_settled() {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path());
    store.create(&AppId::new("shop").unwrap(), &Curve::ALL).unwrap();
    let file = folder.path().join("generation");
    fs::write(&file, "2 changing\n").unwrap();
    // A writer at work: readers neither settle it nor trust it.
    let writer = store.write_lock().unwrap();
    assert_eq!((store.generation().unwrap(), store.load().unwrap().0), (2, 1));
    assert_eq!(fs::read_to_string(&file).unwrap(), "2 changing\n");
    drop(writer);
    assert_eq!((store.generation().unwrap(), store.load().unwrap().0), (2, 2));
    assert_eq!(fs::read_to_string(&file).unwrap(), "2\n");
    fs::write(&file, "0 changing\n").unwrap();
    assert!(matches!(store.generation(), Err(StoreError::Damaged { .. })), "a change is never to 0");
}
