//! A folder with one JSON file per app: `apps/NAME.json`, `generation`, and `lock` for writers.
//!
//! Files appear whole (written aside, synced, renamed) and are readable by their owner only. Several
//! processes may read and write: `sealwire apps create` works beside a running engine.
//!
//! A change replaces one app's file. `generation` says before that it is under way and after that it is made, so a
//! writer that dies in between cannot leave new content under an old number: whoever looks next settles it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::{AppId, AppKeys, Curve, EpochLifetime, Kek, KeyId, KeyPair, KeyState, KeyVersion};
use serde::{Deserialize, Serialize};

use crate::{Format, Settings, StoreError};

/// An app as it is served.
#[derive(Clone, Debug)]
pub struct App {
    /// Its keys, unwrapped.
    pub keys: Arc<AppKeys>,
    /// What its operator chose.
    pub settings: Settings,
}

/// What is publicly known of one key version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySummary {
    /// Names it in envelopes.
    pub id: KeyId,
    /// Its curve.
    pub curve: Curve,
    /// Counts the app's versions on this curve from 1.
    pub number: u32,
    /// Whether it may be used.
    pub state: KeyState,
    /// Whether it may seal, or only opens.
    pub seals: bool,
    /// When it was made, seconds since 1970-01-01 UTC.
    pub created_unix_s: u64,
}

/// What is publicly known of one app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppSummary {
    /// Its name.
    pub app: AppId,
    /// What its operator chose.
    pub settings: Settings,
    /// Its key versions, oldest first.
    pub keys: Vec<KeySummary>,
}

/// Where apps, their settings and their key versions rest.
pub trait AppStore: Send + Sync {
    /// Grows by at least one with every change. An equal generation means equal content.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    fn generation(&self) -> Result<u64, StoreError>;

    /// Every app with its keys unwrapped, and the generation they belong to.
    ///
    /// # Errors
    /// Any [`StoreError`]; one app that cannot be read fails the whole, so that no app silently disappears.
    fn load(&self) -> Result<(u64, Vec<App>), StoreError>;

    /// Every app, by name, without touching private keys.
    ///
    /// # Errors
    /// [`StoreError::Io`] or [`StoreError::Damaged`].
    fn list(&self) -> Result<Vec<AppSummary>, StoreError>;

    /// Makes an app with one key version per curve. Durable when it returns.
    ///
    /// # Errors
    /// [`StoreError::Exists`] when the name is taken; the app there is untouched. [`StoreError::WrongKek`] when the
    /// other apps' keys are under another one.
    fn create(&self, app: &AppId, curves: &[Curve]) -> Result<AppSummary, StoreError>;

    /// Makes the next key version of an app on `curve`: it seals from then on, and the older ones go on opening.
    /// Durable when it returns. However it ends, no version that was there is lost; after a failure the new one is
    /// there or not, and a retry makes another.
    ///
    /// # Errors
    /// [`StoreError::NoApp`]; [`StoreError::WrongKek`] when the app's other keys are under another one.
    fn rotate(&self, app: &AppId, curve: Curve) -> Result<KeySummary, StoreError>;

    /// Adds a key pair that was made elsewhere as the app's next version on its curve. Unless `seals` it only opens:
    /// others may hold it. Durable and safe as [`AppStore::rotate`] is.
    ///
    /// # Errors
    /// As for [`AppStore::rotate`]; [`StoreError::KeyTaken`] when the app has a key of that id.
    fn import(&self, app: &AppId, pair: &KeyPair, seals: bool) -> Result<KeySummary, StoreError>;

    /// Stops a key version: nothing opens or seals under it any more. The newest active one that is left on its curve
    /// seals instead; if none is, sealing on that curve stops, because a key that leaked must be stopped at once.
    /// Durable when it returns, and safe to repeat.
    ///
    /// # Errors
    /// [`StoreError::NoApp`] or [`StoreError::NoKey`].
    fn disable(&self, app: &AppId, key: KeyId) -> Result<KeySummary, StoreError>;

    /// Takes a mistaken [`AppStore::disable`] back.
    ///
    /// # Errors
    /// As for [`AppStore::disable`].
    fn enable(&self, app: &AppId, key: KeyId) -> Result<KeySummary, StoreError>;

    /// Changes an app's settings; what `change` leaves alone stays. Durable when it returns, and safe to repeat.
    ///
    /// # Errors
    /// [`StoreError::NoApp`].
    fn configure(&self, app: &AppId, change: &dyn Fn(&mut Settings)) -> Result<AppSummary, StoreError>;
}

/// See the module.
#[derive(Debug)]
pub struct FolderStore {
    folder: PathBuf,
    kek: Kek,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AppFile {
    /// Version of this file's shape.
    format: u32,
    app: String,
    #[serde(default, skip_serializing_if = "is_default")]
    settings: SettingsRecord,
    keys: Vec<KeyRecord>,
}

/// Holds only what differs from the default, so that a file without settings is one that older programs read.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsRecord {
    /// 0 is off.
    #[serde(default, skip_serializing_if = "is_default")]
    epoch_ms: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    format: FormatName,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FormatName {
    #[default]
    Native,
    Evervault,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRecord {
    id: String,
    curve: String,
    number: u32,
    state: StateName,
    /// It was imported to open, and seals nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    opens_only: bool,
    created_unix_s: u64,
    /// SEC 1 compressed, base64: says which key this is without the KEK.
    public_key: String,
    /// The scalar under the KEK, base64.
    wrapped: String,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StateName {
    Active,
    Disabled,
}

const FORMAT: u32 = 1;

/// What the file `generation` says.
#[derive(Clone, Copy)]
struct Generation {
    number: u64,
    /// A change is under way or its writer died: the content is that of `number` or of the one before.
    changing: bool,
}

/// Marks a generation whose change is under way.
const CHANGING: &str = " changing";

impl FolderStore {
    /// Opens a folder, made if it is absent, whose keys rest under `kek`.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the folder cannot be made.
    pub fn open(folder: &Path, kek: Kek) -> Result<Self, StoreError> {
        let apps = folder.join("apps");
        DirBuilder::new().recursive(true).mode(0o700).create(&apps).map_err(io(&apps))?;
        Ok(Self { folder: folder.to_owned(), kek })
    }

    fn app_path(&self, app: &AppId) -> PathBuf {
        self.folder.join("apps").join(format!("{app}.json"))
    }

    /// Held while a change is written, across processes. Released when the file closes.
    fn write_lock(&self) -> Result<File, StoreError> {
        let file = self.lock_file()?;
        file.lock().map_err(io(&self.folder))?;
        Ok(file)
    }

    fn lock_file(&self) -> Result<File, StoreError> {
        let path = self.folder.join("lock");
        OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path).map_err(io(&path))
    }

    fn read(&self, path: &Path) -> Result<(AppId, AppFile), StoreError> {
        let text = fs::read_to_string(path).map_err(io(path))?;
        let file: AppFile = serde_json::from_str(&text).map_err(|error| damaged(path, error.to_string()))?;
        if file.format != FORMAT {
            return Err(damaged(path, format!("format {} is not {FORMAT}", file.format)));
        }
        let app = AppId::new(&file.app).map_err(|error| damaged(path, error.to_string()))?;
        if path != self.app_path(&app) {
            return Err(damaged(path, "the file's name is not its app's".into()));
        }
        Ok((app, file))
    }

    fn read_app(&self, app: &AppId) -> Result<(PathBuf, AppFile), StoreError> {
        let path = self.app_path(app);
        match self.read(&path) {
            Ok((_, file)) => Ok((path, file)),
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Err(StoreError::NoApp { app: app.clone() })
            }
            Err(error) => Err(error),
        }
    }

    fn read_all(&self) -> Result<Vec<(PathBuf, AppId, AppFile)>, StoreError> {
        let folder = self.folder.join("apps");
        let mut all = Vec::new();
        for entry in fs::read_dir(&folder).map_err(io(&folder))? {
            let path = entry.map_err(io(&folder))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue; // A file that a crash left half-written ends in `.new`.
            }
            let (app, file) = self.read(&path)?;
            all.push((path, app, file));
        }
        all.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(all)
    }

    fn unwrap(&self, path: &Path, app: &AppId, record: &KeyRecord) -> Result<KeyVersion, StoreError> {
        let summary = record.summary(path)?;
        let wrapped = STANDARD.decode(&record.wrapped).map_err(|_| damaged(path, "wrapped is not base64".into()))?;
        let bound = bound(app, summary.curve, summary.number, summary.id);
        let scalar = self.kek.unwrap(&wrapped, &bound).map_err(|_| StoreError::WrongKek { app: app.clone() })?;
        let version =
            KeyVersion::new(summary.number, summary.state, KeyPair::from_scalar(summary.curve, scalar.expose())?)
                .sealing(summary.seals);
        if version.id == summary.id {
            Ok(version)
        } else {
            Err(damaged(path, "a key is not the one its id says".into()))
        }
    }

    /// A fresh key as version `number`. Its id is none that the app has, or the app could not be loaded any more.
    fn new_key(&self, app: &AppId, curve: Curve, number: u32, others: &[KeyRecord]) -> Result<KeyRecord, StoreError> {
        loop {
            let pair = KeyPair::generate(curve)?;
            let id = KeyId::of(pair.public());
            if others.iter().any(|other| other.id == id.to_string()) {
                continue; // Chance 2^-40 for each other key.
            }
            return self.record(app, &pair, number, true);
        }
    }

    /// A key pair wrapped, as version `number`.
    fn record(&self, app: &AppId, pair: &KeyPair, number: u32, seals: bool) -> Result<KeyRecord, StoreError> {
        let (curve, id) = (pair.public().curve(), KeyId::of(pair.public()));
        let wrapped = self.kek.wrap(&pair.scalar()?, &bound(app, curve, number, id))?;
        Ok(KeyRecord {
            id: id.to_string(),
            curve: curve.name().into(),
            number,
            state: StateName::Active,
            opens_only: !seals,
            created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            public_key: STANDARD.encode(pair.public().compressed()),
            wrapped: STANDARD.encode(wrapped),
        })
    }

    /// Adds what `record` makes, given the next number on `curve` and the app's keys.
    fn add(
        &self,
        app: &AppId,
        curve: Curve,
        record: impl FnOnce(u32, &[KeyRecord]) -> Result<KeyRecord, StoreError>,
    ) -> Result<KeySummary, StoreError> {
        let lock = self.write_lock()?;
        let (path, mut file) = self.read_app(app)?;
        // One key under another KEK would make the whole app unreadable.
        file.keys.iter().try_for_each(|record| self.unwrap(&path, app, record).map(drop))?;
        let numbers = file.keys.iter().filter(|record| record.curve == curve.name()).map(|record| record.number);
        let number =
            numbers.max().unwrap_or(0).checked_add(1).ok_or_else(|| damaged(&path, "no number left".into()))?;
        let record = record(number, &file.keys)?;
        let summary = record.summary(&path)?;
        file.keys.push(record);
        self.commit(&lock, &path, &file)?;
        Ok(summary)
    }

    /// Changes whether one key may be used. Also when it is so already, so that a retry is as good as a first try.
    fn set_state(&self, app: &AppId, key: KeyId, state: StateName) -> Result<KeySummary, StoreError> {
        let lock = self.write_lock()?;
        let (path, mut file) = self.read_app(app)?;
        let record = file.keys.iter_mut().find(|record| record.id.parse() == Ok(key));
        let record = record.ok_or_else(|| StoreError::NoKey { app: app.clone(), key })?;
        record.state = state;
        let summary = record.summary(&path)?;
        self.commit(&lock, &path, &file)?;
        Ok(summary)
    }

    /// Replaces one app's file, under the next generation.
    fn commit(&self, _lock: &File, path: &Path, file: &AppFile) -> Result<(), StoreError> {
        let text = serde_json::to_vec_pretty(file).map_err(|error| damaged(path, error.to_string()))?;
        let no_number = || damaged(&self.folder.join("generation"), "no number left".into());
        let number = self.read_generation()?.number.checked_add(1).ok_or_else(no_number)?;
        self.write_generation(Generation { number, changing: true })?;
        replace(path, &text)?;
        self.write_generation(Generation { number, changing: false })
    }

    fn read_generation(&self) -> Result<Generation, StoreError> {
        let path = self.folder.join("generation");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Generation { number: 0, changing: false }),
            Err(error) => return Err(io(&path)(error)),
        };
        let (number, changing) = match text.trim().strip_suffix(CHANGING) {
            Some(number) => (number, true),
            None => (text.trim(), false),
        };
        match number.parse() {
            Ok(number) if number > 0 || !changing => Ok(Generation { number, changing }),
            _ => Err(damaged(&path, "not a generation".into())),
        }
    }

    fn write_generation(&self, Generation { number, changing }: Generation) -> Result<(), StoreError> {
        let mark = if changing { CHANGING } else { "" };
        replace(&self.folder.join("generation"), format!("{number}{mark}\n").as_bytes())
    }

    /// Ends a change whose writer died, if there is one: what is in the folder is then what its number means.
    /// Where this process may not write, the number stays in doubt and content is simply loaded more often.
    fn settle(&self) {
        let Ok(lock) = self.lock_file() else { return };
        if lock.try_lock().is_err() {
            return; // Its writer lives.
        }
        if let Ok(Generation { number, changing: true }) = self.read_generation() {
            let _ = self.write_generation(Generation { number, changing: false });
        }
    }
}

impl AppStore for FolderStore {
    fn generation(&self) -> Result<u64, StoreError> {
        let generation = self.read_generation()?;
        if generation.changing {
            self.settle();
        }
        Ok(generation.number)
    }

    fn load(&self) -> Result<(u64, Vec<App>), StoreError> {
        // Read first: a change that lands meanwhile leaves an older number with newer content, so the next
        // look at the generation loads again. So does one that is under way.
        let Generation { number, changing } = self.read_generation()?;
        let generation = number - u64::from(changing);
        let load = |(path, app, file): (PathBuf, AppId, AppFile)| {
            let versions = file.keys.iter().map(|record| self.unwrap(&path, &app, record)).collect::<Result<_, _>>()?;
            Ok(App { keys: Arc::new(AppKeys::new(app, versions)?), settings: file.settings.read(&path)? })
        };
        let apps: Result<Vec<App>, StoreError> = self.read_all()?.into_iter().map(load).collect();
        Ok((generation, apps?))
    }

    fn list(&self) -> Result<Vec<AppSummary>, StoreError> {
        self.read_all()?.into_iter().map(|(path, app, file)| file.summary(&path, app)).collect()
    }

    fn create(&self, app: &AppId, curves: &[Curve]) -> Result<AppSummary, StoreError> {
        let lock = self.write_lock()?;
        let path = self.app_path(app);
        if path.exists() {
            return Err(StoreError::Exists { app: app.clone() });
        }
        // One app under another KEK would make the whole folder unreadable.
        for (path, app, file) in &self.read_all()? {
            file.keys.first().map_or(Ok(()), |record| self.unwrap(path, app, record).map(drop))?;
        }
        let mut keys = Vec::new();
        for curve in curves {
            keys.push(self.new_key(app, *curve, 1, &keys)?);
        }
        let settings = SettingsRecord::default();
        let file = AppFile { format: FORMAT, app: app.as_str().into(), settings, keys };
        self.commit(&lock, &path, &file)?;
        file.summary(&path, app.clone())
    }

    fn rotate(&self, app: &AppId, curve: Curve) -> Result<KeySummary, StoreError> {
        self.add(app, curve, |number, others| self.new_key(app, curve, number, others))
    }

    fn import(&self, app: &AppId, pair: &KeyPair, seals: bool) -> Result<KeySummary, StoreError> {
        let key = KeyId::of(pair.public());
        self.add(app, pair.public().curve(), |number, others| {
            if others.iter().any(|other| other.id.parse() == Ok(key)) {
                return Err(StoreError::KeyTaken { app: app.clone(), key });
            }
            self.record(app, pair, number, seals)
        })
    }

    fn disable(&self, app: &AppId, key: KeyId) -> Result<KeySummary, StoreError> {
        self.set_state(app, key, StateName::Disabled)
    }

    fn enable(&self, app: &AppId, key: KeyId) -> Result<KeySummary, StoreError> {
        self.set_state(app, key, StateName::Active)
    }

    fn configure(&self, app: &AppId, change: &dyn Fn(&mut Settings)) -> Result<AppSummary, StoreError> {
        let lock = self.write_lock()?;
        let (path, mut file) = self.read_app(app)?;
        let mut settings = file.settings.read(&path)?;
        change(&mut settings);
        file.settings = settings.into();
        self.commit(&lock, &path, &file)?;
        file.summary(&path, app.clone())
    }
}

impl AppFile {
    fn summary(&self, path: &Path, app: AppId) -> Result<AppSummary, StoreError> {
        let keys = self.keys.iter().map(|record| record.summary(path)).collect::<Result<_, _>>()?;
        Ok(AppSummary { app, settings: self.settings.read(path)?, keys })
    }
}

impl SettingsRecord {
    fn read(self, path: &Path) -> Result<Settings, StoreError> {
        let epoch = match self.epoch_ms {
            0 => None,
            ms => Some(EpochLifetime::from_ms(ms).map_err(|error| damaged(path, error.to_string()))?),
        };
        let format = match self.format {
            FormatName::Native => Format::Native,
            FormatName::Evervault => Format::Evervault,
        };
        Ok(Settings { epoch, format })
    }
}

impl From<Settings> for SettingsRecord {
    fn from(settings: Settings) -> Self {
        let format = match settings.format {
            Format::Native => FormatName::Native,
            Format::Evervault => FormatName::Evervault,
        };
        Self { epoch_ms: settings.epoch.map_or(0, EpochLifetime::as_ms), format }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl KeyRecord {
    fn summary(&self, path: &Path) -> Result<KeySummary, StoreError> {
        let curve = Curve::from_name(&self.curve).ok_or_else(|| damaged(path, "unknown curve".into()))?;
        let id = self.id.parse().map_err(|error: sealwire_crypto::Error| damaged(path, error.to_string()))?;
        let state = match self.state {
            StateName::Active => KeyState::Active,
            StateName::Disabled => KeyState::Disabled,
        };
        let Self { number, opens_only, created_unix_s, .. } = *self;
        Ok(KeySummary { id, curve, number, state, seals: !opens_only, created_unix_s })
    }
}

/// The public facts that a wrapped key is bound to. The app's name holds no zero byte, so this is unambiguous.
fn bound(app: &AppId, curve: Curve, number: u32, id: KeyId) -> Vec<u8> {
    [b"sealwire/kek/1".as_slice(), app.as_str().as_bytes(), &[0, curve.suite()], &number.to_be_bytes(), id.as_bytes()]
        .concat()
}

/// Replaces a file at once and durably: written aside, synced, renamed, folder synced.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let aside = path.with_added_extension("new");
    let write_aside = || {
        step()?;
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&aside)?;
        step()?;
        file.write_all(bytes)?;
        step()?;
        file.sync_all()
    };
    write_aside().map_err(io(&aside))?;
    step().and_then(|()| fs::rename(&aside, path)).map_err(io(path))?;
    let folder = path.parent().unwrap_or(path);
    step().and_then(|()| File::open(folder)?.sync_all()).map_err(io(folder))?;
    step().map_err(io(path))
}

/// Comes before every step of a write, and after the last: there tests let the process end.
#[cfg(not(test))]
fn step() -> std::io::Result<()> {
    Ok(())
}
#[cfg(test)]
use crashes::step;

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

fn damaged(path: &Path, what: String) -> StoreError {
    StoreError::Damaged { place: path.display().to_string(), what }
}

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const KEK: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

    fn store(folder: &Path) -> FolderStore {
        FolderStore::open(folder, Kek::from_hex(KEK).unwrap()).unwrap()
    }

    fn app(name: &str) -> AppId {
        AppId::new(name).unwrap()
    }

    #[test]
    fn a_created_app_is_there_again_with_the_same_keys() {
        let folder = tempfile::tempdir().unwrap();
        let first = store(folder.path());
        assert_eq!((first.generation().unwrap(), first.load().unwrap().1.len()), (0, 0));
        let shop = first.create(&app("shop"), &Curve::ALL).unwrap();
        first.create(&app("a.b-c_D"), &[Curve::P256]).unwrap();

        let again = store(folder.path());
        let (generation, apps) = again.load().unwrap();
        assert_eq!(generation, 2);
        assert_eq!(apps.iter().map(|app| app.keys.app().as_str()).collect::<Vec<_>>(), ["a.b-c_D", "shop"]);
        let ids: Vec<KeyId> = apps[1].keys.versions().iter().map(|version| version.id).collect();
        assert_eq!(ids, shop.keys.iter().map(|key| key.id).collect::<Vec<_>>());
        assert_eq!(again.list().unwrap()[1], shop);
    }

    #[test]
    fn a_taken_name_is_refused_and_untouched() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let shop = store.create(&app("shop"), &Curve::ALL).unwrap();
        assert!(matches!(store.create(&app("shop"), &Curve::ALL), Err(StoreError::Exists { .. })));
        assert_eq!((store.list().unwrap(), store.generation().unwrap()), (vec![shop], 1));
    }

    #[test]
    fn files_are_their_owners_and_hold_no_scalar() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        store.create(&app("shop"), &Curve::ALL).unwrap();
        let path = store.app_path(&app("shop"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(&path).unwrap();
        for version in store.load().unwrap().1[0].keys.versions() {
            let scalar = version.pair.scalar().unwrap();
            let hex: String = scalar.expose().iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(!text.contains(&hex) && !text.contains(&STANDARD.encode(scalar.expose())));
        }
    }

    #[test]
    fn what_is_damaged_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        store.create(&app("shop"), &[Curve::P256]).unwrap();
        let path = store.app_path(&app("shop"));
        let good = fs::read_to_string(&path).unwrap();
        let file: AppFile = serde_json::from_str(&good).unwrap();
        let wrapped = &file.keys[0].wrapped;
        let id = &file.keys[0].id;
        let check = |text: &str, expected: &str| {
            fs::write(&path, text).unwrap();
            let error = store.load().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("", "damaged");
        check(&good.replace("\"format\": 1", "\"format\": 2"), "format 2 is not 1");
        check(&good.replace("\"r1\"", "\"r9\""), "unknown curve");
        check(&good.replace(id, "xyz"), "10 hexadecimal digits");
        check(&good.replace(id, "+1+2+3+4+5"), "10 hexadecimal digits");
        check(&good.replace(id, "0000000000"), "does not open");
        check(&good.replace("\"number\": 1", "\"number\": 2"), "does not open");
        check(&good.replace(wrapped, "AAAA"), "does not open");
        check(&good.replace("\"shop\"", "\"pohs\""), "name is not its app's");
        check(&good.replace("\"number\"", "\"nummer\""), "unknown field");
        let with = |settings: &str| good.replace("\"keys\"", &format!("\"settings\": {settings}, \"keys\""));
        check(&with(r#"{"epoch_ms": 15001}"#), "an epoch lasts 1 to 15000 ms");
        check(&with(r#"{"epoch_ms": -1}"#), "damaged");
        check(&with(r#"{"epoch_s": 1}"#), "unknown field");
        check(&with(r#"{"format": "pgp"}"#), "unknown variant");
        for good in [with(r#"{"epoch_ms": 0}"#), with(r#"{"format": "native"}"#), with("{}"), good.clone()] {
            fs::write(&path, &good).unwrap();
            assert_eq!(store.load().unwrap().1[0].settings, Settings::default());
        }

        let other = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
        let error = FolderStore::open(folder.path(), other).unwrap().load().unwrap_err();
        assert!(matches!(error, StoreError::WrongKek { .. }), "{error}");
    }

    fn numbers(keys: &[KeySummary], curve: Curve) -> Vec<u32> {
        keys.iter().filter(|key| key.curve == curve).map(|key| key.number).collect()
    }

    #[test]
    fn a_rotation_adds_the_next_number_which_seals_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let shop = app("shop");
        let first = store.create(&shop, &Curve::ALL).unwrap().keys[0];
        let second = store.rotate(&shop, Curve::P256).unwrap();
        assert_eq!((second.curve, second.number, second.state), (Curve::P256, 2, KeyState::Active));
        store.rotate(&shop, Curve::Secp256k1).unwrap();
        let third = store.rotate(&shop, Curve::P256).unwrap();
        let keys = &store.list().unwrap()[0].keys;
        assert_eq!(numbers(keys, Curve::P256), [1, 2, 3]);
        assert_eq!(numbers(keys, Curve::Secp256k1), [1, 2]);
        let (generation, apps) = store.load().unwrap();
        assert_eq!((generation, apps[0].keys.newest(Curve::P256).unwrap().id), (4, third.id));
        assert!([first, second, third].iter().all(|key| apps[0].keys.reader(Curve::P256, key.id).is_some()));
        // An app that was made without a curve gets one.
        store.create(&app("one"), &[Curve::P256]).unwrap();
        assert_eq!(store.rotate(&app("one"), Curve::Secp256k1).unwrap().number, 1);
    }

    #[test]
    fn a_disabled_key_neither_opens_nor_seals_until_it_is_enabled() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let shop = app("shop");
        let first = store.create(&shop, &[Curve::P256]).unwrap().keys[0];
        let second = store.rotate(&shop, Curve::P256).unwrap();
        let active = |key: KeySummary| store.load().unwrap().1[0].keys.reader(Curve::P256, key.id).is_some();
        let newest = || store.load().unwrap().1[0].keys.newest(Curve::P256).map(|version| version.id);

        assert_eq!(store.disable(&shop, second.id).unwrap(), KeySummary { state: KeyState::Disabled, ..second });
        assert_eq!((active(first), active(second), newest()), (true, false, Some(first.id)));
        store.disable(&shop, first.id).unwrap();
        assert_eq!((active(first), newest()), (false, None), "the last one can be stopped too");
        let third = store.rotate(&shop, Curve::P256).unwrap();
        assert_eq!((third.number, newest()), (3, Some(third.id)), "a disabled number is not used again");
        assert_eq!(store.enable(&shop, first.id).unwrap(), first);
        assert_eq!((active(first), active(second), newest()), (true, false, Some(third.id)));
        let before = store.generation().unwrap();
        store.enable(&shop, first.id).unwrap();
        assert_eq!(store.generation().unwrap(), before + 1, "a repetition is a change like any other");
    }

    #[test]
    fn an_imported_key_opens_and_seals_only_if_it_is_told_to() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let shop = app("shop");
        let made = store.create(&shop, &[Curve::P256]).unwrap().keys[0];
        let newest = |curve| store.load().unwrap().1[0].keys.newest(curve).map(|version| version.id);
        let pair = |curve, scalar| KeyPair::from_scalar(curve, &[scalar; 32]).unwrap();

        let opens = store.import(&shop, &pair(Curve::P256, 1), false).unwrap();
        assert_eq!((opens.number, opens.state, opens.seals), (2, KeyState::Active, false));
        assert!(store.load().unwrap().1[0].keys.reader(Curve::P256, opens.id).is_some());
        store.import(&shop, &pair(Curve::Secp256k1, 1), false).unwrap();
        assert_eq!((newest(Curve::P256), newest(Curve::Secp256k1)), (Some(made.id), None));
        // A disabled one that is enabled again still does not seal.
        store.disable(&shop, opens.id).unwrap();
        assert_eq!(store.enable(&shop, opens.id).unwrap(), opens);
        assert_eq!(newest(Curve::P256), Some(made.id));

        let seals = store.import(&shop, &pair(Curve::P256, 2), true).unwrap();
        assert_eq!((seals.number, newest(Curve::P256)), (3, Some(seals.id)));
        assert_eq!(store.rotate(&shop, Curve::P256).unwrap().number, 4);
        assert_eq!(
            store.list().unwrap()[0].keys.iter().map(|key| key.seals).collect::<Vec<_>>(),
            [true, false, false, true, true]
        );
        let before = store.generation().unwrap();
        for (again, taken) in [(1, opens.id), (2, seals.id)] {
            let refused = store.import(&shop, &pair(Curve::P256, again), true);
            assert!(matches!(refused, Err(StoreError::KeyTaken { key, .. }) if key == taken));
        }
        let nobody = store.import(&app("nobody"), &pair(Curve::P256, 3), true);
        assert!(matches!(nobody, Err(StoreError::NoApp { .. })));
        assert_eq!(store.generation().unwrap(), before);
    }

    #[test]
    fn what_is_not_there_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let (shop, nobody) = (app("shop"), app("nobody"));
        let made = store.create(&shop, &[Curve::P256]).unwrap();
        let key = made.keys[0].id;
        assert!(matches!(store.rotate(&nobody, Curve::P256), Err(StoreError::NoApp { .. })));
        assert!(matches!(store.disable(&nobody, key), Err(StoreError::NoApp { .. })));
        let other = KeyId::from_bytes([0; 5]);
        assert!(matches!(store.disable(&shop, other), Err(StoreError::NoKey { key, .. }) if key == other));
        assert!(matches!(store.enable(&shop, other), Err(StoreError::NoKey { .. })));
        let other = FolderStore::open(folder.path(), Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap()).unwrap();
        assert!(matches!(other.rotate(&shop, Curve::P256), Err(StoreError::WrongKek { .. })));
        assert!(matches!(other.create(&nobody, &[Curve::P256]), Err(StoreError::WrongKek { .. })));
        assert_eq!((store.list().unwrap(), store.generation().unwrap()), (vec![made], 1));
        // A key can be stopped by whoever has not even the KEK.
        other.disable(&shop, key).unwrap();
    }

    #[test]
    fn rotations_at_once_get_a_number_each() {
        let folder = tempfile::tempdir().unwrap();
        let shop = app("shop");
        store(folder.path()).create(&shop, &Curve::ALL).unwrap();
        std::thread::scope(|scope| {
            let folder = folder.path();
            for curve in Curve::ALL {
                for _ in 0..6 {
                    scope.spawn(move || store(folder).rotate(&app("shop"), curve).unwrap());
                }
            }
        });
        let store = store(folder.path());
        let keys = &store.list().unwrap()[0].keys;
        assert_eq!(Curve::ALL.map(|curve| numbers(keys, curve)), [[1, 2, 3, 4, 5, 6, 7]; 2]);
        assert_eq!((store.load().unwrap().0, store.load().unwrap().1[0].keys.versions().len()), (13, 14));
    }

    #[test]
    fn settings_change_one_by_one_and_are_absent_by_default() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        let shop = app("shop");
        let made = store.create(&shop, &[Curve::P256]).unwrap();
        let file = || fs::read_to_string(store.app_path(&shop)).unwrap();
        assert!(made.settings == Settings::default() && !file().contains("settings"), "an older program reads it");
        let to = |ms| move |settings: &mut Settings| settings.epoch = EpochLifetime::from_ms(ms).ok();
        for ms in [1, 15_000, 1_000] {
            let summary = store.configure(&shop, &to(ms)).unwrap();
            assert_eq!(summary.settings.epoch.map(EpochLifetime::as_ms), Some(ms));
            assert_eq!(store.load().unwrap().1[0].settings, summary.settings);
            assert_eq!(store.list().unwrap(), [summary]);
        }
        let rotated = store.rotate(&shop, Curve::P256).unwrap();
        store.disable(&shop, rotated.id).unwrap();
        assert_eq!(store.load().unwrap().1[0].settings.epoch, EpochLifetime::from_ms(1_000).ok(), "keys change alone");
        assert_eq!(store.configure(&shop, &|_| ()).unwrap().settings.epoch, EpochLifetime::from_ms(1_000).ok());
        let format = |format| store.configure(&shop, &|settings| settings.format = format).unwrap();
        let set = format(Format::Evervault);
        assert_eq!((set.settings.format, set.settings.epoch), (Format::Evervault, EpochLifetime::from_ms(1_000).ok()));
        assert_eq!(store.load().unwrap().1[0].settings, set.settings);
        format(Format::Native);
        let off = store.configure(&shop, &to(0)).unwrap();
        assert!(off.settings == Settings::default() && off.keys.len() == 2 && !file().contains("settings"));
        assert_eq!(store.generation().unwrap(), 10, "every change, a repetition too");
        assert!(matches!(store.configure(&app("nobody"), &to(1)), Err(StoreError::NoApp { .. })));
        assert_eq!(store.generation().unwrap(), 10);
    }

    #[test]
    fn the_last_generation_is_followed_by_none() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        store.create(&app("shop"), &[Curve::P256]).unwrap();
        fs::write(folder.path().join("generation"), u64::MAX.to_string()).unwrap();
        for refused in [store.rotate(&app("shop"), Curve::P256).map(drop), store.create(&app("other"), &[]).map(drop)] {
            assert!(matches!(refused, Err(StoreError::Damaged { what, .. }) if what == "no number left"));
        }
        assert_eq!(store.list().unwrap().len(), 1, "nothing was changed");
    }

    #[test]
    fn a_half_written_file_is_no_app() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(folder.path());
        fs::write(folder.path().join("apps/shop.json.new"), "{\"form").unwrap();
        assert!(store.load().unwrap().1.is_empty());
        store.create(&app("shop"), &[Curve::P256]).unwrap();
        assert_eq!(store.load().unwrap().1.len(), 1);
    }

    #[test]
    fn of_many_who_create_one_name_one_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let made: usize = std::thread::scope(|scope| {
            let create = || usize::from(store(folder.path()).create(&app("shop"), &[Curve::P256]).is_ok());
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((made, store(folder.path()).generation().unwrap()), (1, 1));
    }
}
