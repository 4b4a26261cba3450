//! A folder with one JSON file per app: `apps/NAME.json`, `generation`, and `lock` for writers.
//!
//! Files appear whole (written aside, synced, renamed) and are readable by their owner only. Several
//! processes may read and write: `sealwire apps create` works beside a running engine.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::{AppId, AppKeys, Curve, Kek, KeyId, KeyPair, KeyState, KeyVersion};
use serde::{Deserialize, Serialize};

use crate::{AppStore, AppSummary, KeySummary, StoreError};

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
    keys: Vec<KeyRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRecord {
    id: String,
    curve: String,
    number: u32,
    state: StateName,
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
        let path = self.folder.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.map_err(io(&path))?;
        file.lock().map_err(io(&path))?;
        Ok(file)
    }

    fn read_all(&self) -> Result<Vec<(PathBuf, AppId, AppFile)>, StoreError> {
        let folder = self.folder.join("apps");
        let mut all = Vec::new();
        for entry in fs::read_dir(&folder).map_err(io(&folder))? {
            let path = entry.map_err(io(&folder))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue; // A file that a crash left half-written ends in `.new`.
            }
            let text = fs::read_to_string(&path).map_err(io(&path))?;
            let file: AppFile = serde_json::from_str(&text).map_err(|error| damaged(&path, error.to_string()))?;
            if file.format != FORMAT {
                return Err(damaged(&path, format!("format {} is not {FORMAT}", file.format)));
            }
            let app = AppId::new(&file.app).map_err(|error| damaged(&path, error.to_string()))?;
            if path != self.app_path(&app) {
                return Err(damaged(&path, "the file's name is not its app's".into()));
            }
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
            KeyVersion::new(summary.number, summary.state, KeyPair::from_scalar(summary.curve, scalar.expose())?);
        if version.id == summary.id {
            Ok(version)
        } else {
            Err(damaged(path, "a key is not the one its id says".into()))
        }
    }

    fn new_key(&self, app: &AppId, curve: Curve, created_unix_s: u64) -> Result<KeyRecord, StoreError> {
        let pair = KeyPair::generate(curve)?;
        let (id, number) = (KeyId::of(pair.public()), 1);
        let wrapped = self.kek.wrap(&pair.scalar()?, &bound(app, curve, number, id))?;
        Ok(KeyRecord {
            id: id.to_string(),
            curve: curve.name().into(),
            number,
            state: StateName::Active,
            created_unix_s,
            public_key: STANDARD.encode(pair.public().compressed()),
            wrapped: STANDARD.encode(wrapped),
        })
    }

    fn bump_generation(&self) -> Result<(), StoreError> {
        let next = self.generation()? + 1;
        replace(&self.folder.join("generation"), format!("{next}\n").as_bytes())
    }
}

impl AppStore for FolderStore {
    fn generation(&self) -> Result<u64, StoreError> {
        let path = self.folder.join("generation");
        match fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map_err(|_| damaged(&path, "not a number".into())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(io(&path)(error)),
        }
    }

    fn load(&self) -> Result<(u64, Vec<AppKeys>), StoreError> {
        // Read first: a change that lands meanwhile leaves an older number with newer content, so the next
        // look at the generation loads again.
        let generation = self.generation()?;
        let load = |(path, app, file): (PathBuf, AppId, AppFile)| {
            let versions = file.keys.iter().map(|record| self.unwrap(&path, &app, record)).collect::<Result<_, _>>()?;
            Ok(AppKeys::new(app, versions)?)
        };
        let apps: Result<Vec<AppKeys>, StoreError> = self.read_all()?.into_iter().map(load).collect();
        Ok((generation, apps?))
    }

    fn list(&self) -> Result<Vec<AppSummary>, StoreError> {
        let summary = |(path, app, file): (PathBuf, AppId, AppFile)| {
            let keys = file.keys.iter().map(|record| record.summary(&path)).collect::<Result<_, _>>()?;
            Ok(AppSummary { app, keys })
        };
        self.read_all()?.into_iter().map(summary).collect()
    }

    fn create(&self, app: &AppId, curves: &[Curve]) -> Result<AppSummary, StoreError> {
        let _lock = self.write_lock()?;
        let path = self.app_path(app);
        if path.exists() {
            return Err(StoreError::Exists { app: app.clone() });
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let keys = curves.iter().map(|curve| self.new_key(app, *curve, now)).collect::<Result<Vec<_>, _>>()?;
        let summaries = keys.iter().map(|record| record.summary(&path)).collect::<Result<_, _>>()?;
        let file = AppFile { format: FORMAT, app: app.as_str().into(), keys };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| damaged(&path, error.to_string()))?;
        replace(&path, &text)?;
        self.bump_generation()?;
        Ok(AppSummary { app: app.clone(), keys: summaries })
    }
}

impl KeyRecord {
    fn summary(&self, path: &Path) -> Result<KeySummary, StoreError> {
        let curve = Curve::from_name(&self.curve).ok_or_else(|| damaged(path, "unknown curve".into()))?;
        let id = parse_id(&self.id).ok_or_else(|| damaged(path, "a key id is not 10 hexadecimal digits".into()))?;
        let state = match self.state {
            StateName::Active => KeyState::Active,
            StateName::Disabled => KeyState::Disabled,
        };
        Ok(KeySummary { id, curve, number: self.number, state, created_unix_s: self.created_unix_s })
    }
}

fn parse_id(text: &str) -> Option<KeyId> {
    let bytes: [u8; 10] = text.as_bytes().try_into().ok()?;
    let mut id = [0; 5];
    for (byte, pair) in id.iter_mut().zip(bytes.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(KeyId::from_bytes(id))
}

/// The public facts that a wrapped key is bound to. The app's name holds no zero byte, so this is unambiguous.
fn bound(app: &AppId, curve: Curve, number: u32, id: KeyId) -> Vec<u8> {
    [b"sealwire/kek/1".as_slice(), app.as_str().as_bytes(), &[0, curve.suite()], &number.to_be_bytes(), id.as_bytes()]
        .concat()
}

/// Replaces a file at once and durably: written aside, synced, renamed, folder synced.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let aside = path.with_added_extension("new");
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&aside).map_err(io(&aside))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io(&aside))?;
    fs::rename(&aside, path).map_err(io(path))?;
    let folder = path.parent().unwrap_or(path);
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io(folder))
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

fn damaged(path: &Path, what: String) -> StoreError {
    StoreError::Damaged { path: path.to_owned(), what }
}

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
        assert_eq!(apps.iter().map(|keys| keys.app().as_str()).collect::<Vec<_>>(), ["a.b-c_D", "shop"]);
        let ids: Vec<KeyId> = apps[1].versions().iter().map(|version| version.id).collect();
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
        for version in store.load().unwrap().1[0].versions() {
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
        check(&good.replace(id, "0000000000"), "does not open");
        check(&good.replace("\"number\": 1", "\"number\": 2"), "does not open");
        check(&good.replace(wrapped, "AAAA"), "does not open");
        check(&good.replace("\"shop\"", "\"pohs\""), "name is not its app's");
        check(&good.replace("\"number\"", "\"nummer\""), "unknown field");
        fs::write(&path, &good).unwrap();
        store.load().unwrap();

        let other = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
        let error = FolderStore::open(folder.path(), other).unwrap().load().unwrap_err();
        assert!(matches!(error, StoreError::WrongKek { .. }), "{error}");
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
