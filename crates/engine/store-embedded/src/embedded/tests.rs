//! Tests of features that only the embedded store has: folder, lock, persistence and damage. The
//! suites test the common contract.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::*;
use sealwire_store::contract_tests;
use sealwire_store::contract_tests::tokens::rows_of;

const MAP: MapId = MapId {
    app: 1,
    collection: 2,
};

/// Returns options with a time limit that no sync of a busy disk reaches, so that no test depends
/// on how fast the disk is. The default limit fails a request if one sync takes longer than 5 s.
pub(super) fn patient() -> Options {
    Options {
        timeout: Duration::from_secs(240),
        ..Options::default()
    }
}

fn open(folder: &Path) -> EmbeddedStore {
    EmbeddedStore::open(folder, &patient()).expect("opens")
}

fn row(number: u128, fingerprint: Option<u128>) -> Row {
    Row {
        id: TokenId(number.to_be_bytes()),
        fingerprint: fingerprint.map(|number| Fingerprint(number.to_be_bytes())),
        sealed: Bytes::from(vec![7; 40]),
        tags: Vec::new(),
        expires: None,
        created: 1,
        archived: None,
        subject: None,
    }
}

async fn write(store: &EmbeddedStore, rows: Vec<Row>) -> Result<Written, StoreError> {
    store
        .write(10, vec![Group { map: MAP, rows }])
        .await
        .pop()
        .expect("one answer per group")
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .expect("reads")
        .map(|entry| entry.expect("reads").path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files_below(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

async fn open_empty() -> (Arc<dyn ControlStore>, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("makes one");
    (Arc::new(open(folder.path())), folder)
}

sealwire_store::control_promises!(open_empty);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_contract_holds() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = Arc::new(open(folder.path()));
    contract_tests::token_store(Arc::<EmbeddedStore>::clone(&store)).await;
    contract_tests::token_subjects(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_contract_holds() {
    let folder = tempfile::tempdir().expect("makes one");
    contract_tests::object_store(Arc::new(open(folder.path()))).await;
}

#[tokio::test]
async fn rows_survive_a_close() {
    let folder = tempfile::tempdir().expect("makes one");
    let folder = folder.path().join("state");
    let store = open(&folder);
    assert_eq!(
        write(&store, vec![row(1, Some(1)), row(2, None)])
            .await
            .expect("writes"),
        Written::Done(vec![None; 2])
    );
    assert_eq!(
        store
            .commit(0, "app/a", Some(b"{}"))
            .await
            .expect("commits"),
        Commit::Done(1)
    );
    let loaded = store.load().await.expect("loads");
    store.close().await;
    for error in [
        store.get(10, &[]).await.expect_err("closed"),
        write(&store, vec![]).await.expect_err("closed"),
    ] {
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    }

    let store = open(&folder);
    let got = rows_of(
        store
            .get(10, &[(MAP, row(2, None).id), (MAP, row(3, None).id)])
            .await
            .expect("reads"),
    );
    assert_eq!(got, [Some(row(2, None)), None]);
    let found = store
        .find(10, &[(MAP, Fingerprint(1_u128.to_be_bytes()))])
        .await
        .expect("reads");
    assert_eq!(rows_of(found), [Some(row(1, Some(1)))]);
    assert_eq!(
        (
            store.generation().await.expect("known"),
            store.load().await.expect("loads")
        ),
        (1, loaded)
    );
    for folder in [folder.clone(), folder.join("database")] {
        assert_eq!(
            fs::metadata(folder).expect("is there").mode() & 0o777,
            0o700
        );
    }
}

#[tokio::test]
async fn folder_serves_one_store_at_a_time() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = open(folder.path());
    let error = EmbeddedStore::open(folder.path(), &Options::default()).expect_err("in use");
    assert!(
        matches!(&error, StoreError::InUse { folder: named, process: Some(process) }
        if named == folder.path() && *process == std::process::id())
    );
    let shown = error.to_string();
    assert!(
        shown.contains("in use by process") && shown.contains("stop that one"),
        "{shown}"
    );
    store.close().await;
    open(folder.path()).close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_write_one_row_per_fingerprint() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = Arc::new(open(folder.path()));
    let mut calls = JoinSet::new();
    for caller in 0..64_u128 {
        let store = store.clone();
        calls.spawn(async move {
            let mut given = Vec::new();
            for value in 0..20 {
                let made = row(caller << 64 | value, Some(value));
                let Written::Done(rows) = write(&store, vec![made.clone()]).await.expect("writes")
                else {
                    panic!("no id is used twice")
                };
                given.push(rows.into_iter().next().flatten().unwrap_or(made).id);
            }
            given
        });
    }
    let given = calls.join_all().await;
    assert!(given.iter().all(|ids| *ids == given[0]));
    assert_eq!(store.scan(None, 100).await.expect("reads").len(), 20);
}

#[tokio::test]
async fn damaged_row_fails_only_its_request() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = open(folder.path());
    write(&store, vec![row(1, Some(1))]).await.expect("writes");
    store.close().await;
    // Writes past the store, like a bug of this program or of a tool would.
    let database = Database::open(folder.path(), &Options::default()).expect("opens");
    let mut batch = database.start_batch();
    batch.insert(
        &database.rows,
        keys::row_key(MAP, TokenId([9; 16])),
        "no row",
    );
    batch.insert(
        &database.fingerprints,
        keys::fingerprint_key(MAP, Fingerprint([8; 16])),
        TokenId([7; 16]).0,
    );
    batch.insert(
        &database.fingerprints,
        keys::fingerprint_key(MAP, Fingerprint([9; 16])),
        TokenId([9; 16]).0,
    );
    batch.commit().expect("writes");
    drop(database);

    let store = open(folder.path());
    let lost = Row {
        fingerprint: Some(Fingerprint([8; 16])),
        ..row(3, None)
    };
    let unread = Row {
        fingerprint: Some(Fingerprint([9; 16])),
        ..row(4, None)
    };
    let groups = [vec![row(2, None)], vec![row(5, None), lost], vec![unread]]
        .map(|rows| Group { map: MAP, rows });
    let written = store.write(10, groups.into()).await;
    assert!(matches!(
        &written[..],
        [
            Ok(Written::Done(_)),
            Err(StoreError::Damaged { .. }),
            Err(StoreError::Damaged { .. })
        ]
    ));
    assert!(matches!(
        store.get(10, &[(MAP, TokenId([9; 16]))]).await,
        Err(StoreError::Damaged { .. })
    ));
    assert!(matches!(
        store.scan(None, 10).await,
        Err(StoreError::Damaged { .. })
    ));
    let got = rows_of(
        store
            .get(10, &[1, 2, 5].map(|id| (MAP, row(id, None).id)))
            .await
            .expect("these are whole"),
    );
    assert_eq!(got, [Some(row(1, Some(1))), Some(row(2, None)), None]);
}

/// After any single byte of any file is changed, opening and every request either succeed or name
/// the damage.
#[tokio::test]
async fn damaged_files_are_rejected_or_read_unchanged() {
    let folder = tempfile::tempdir().expect("makes one");
    let options = Options {
        write_buffer_bytes: 4 << 10,
        ..patient()
    };
    let store = EmbeddedStore::open(folder.path(), &options).expect("opens");
    let mut written = Vec::new();
    for batch in 0..40_u128 {
        let rows = (0..10)
            .map(|index| row(batch << 8 | index, Some(batch << 8 | index)))
            .collect::<Vec<_>>();
        write(&store, rows.clone()).await.expect("writes");
        written.extend(rows);
    }
    store.close().await;
    let files = files_below(&folder.path().join("database"));
    assert!(files.len() > 10, "some of it is in tables: {files:?}");
    let mut refused = 0;
    let content = content(folder.path());
    for (index, path) in files.iter().enumerate() {
        let copy = tempfile::tempdir().expect("makes one");
        write_folder(&content, copy.path());
        flip(
            &copy
                .path()
                .join(path.strip_prefix(folder.path()).expect("below it")),
            1 + 2 * (index as u64 % 2),
        );
        let Ok(store) = EmbeddedStore::open(copy.path(), &options) else {
            refused += 1;
            continue;
        };
        let keys = written.iter().map(|row| (MAP, row.id)).collect::<Vec<_>>();
        match store.get(10, &keys).await {
            // A torn journal end is dropped, so rows can be missing. The rows that exist are
            // unchanged.
            Ok(rows) => {
                assert!(
                    rows.iter()
                        .zip(&written)
                        .all(|(got, row)| got.as_ref().is_none_or(|got| got.row == *row))
                );
            }
            Err(_) => refused += 1,
        }
        // The request must return, with any result.
        let _ = write(&store, vec![row(1 << 100, None)]).await;
        store.close().await;
    }
    assert!(refused > 3, "{refused} of {}", files.len());
}

#[tokio::test]
async fn damaged_list_of_files_is_rejected_before_use() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = open(folder.path());
    write(&store, vec![row(1, None)]).await.expect("writes");
    store.close().await;
    let keyspace = folder.path().join("database/keyspaces/1");
    for name in ["current", "v0"] {
        let path = keyspace.join(name);
        let whole = fs::read(&path).expect("is there");
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x55;
            fs::write(&path, bytes).expect("writes");
            let error =
                EmbeddedStore::open(folder.path(), &Options::default()).expect_err("damaged");
            assert!(
                matches!(&error, StoreError::Damaged { what, .. } if what.contains("list of files")),
                "{error}"
            );
        }
        fs::write(&path, &whole[..whole.len() / 2]).expect("writes");
        EmbeddedStore::open(folder.path(), &Options::default()).expect_err("cut short");
        fs::write(&path, whole).expect("writes");
    }
    open(folder.path()).close().await;
}

#[tokio::test]
async fn files_without_a_pointer_to_their_list_are_rejected() {
    let folder = tempfile::tempdir().expect("makes one");
    open(folder.path()).close().await;
    let keyspace = folder.path().join("database/keyspaces/1");
    fs::write(keyspace.join("tables/0"), "rows").expect("writes");
    fs::remove_file(keyspace.join("current")).expect("is there");
    let error = EmbeddedStore::open(folder.path(), &Options::default())
        .expect_err("its rows would be gone");
    assert!(
        matches!(&error, StoreError::Damaged { what, .. } if what.contains("is missing")),
        "{error}"
    );
}

/// Removes the folder of a store's tables while three memtables are queued for flushing. Returns
/// the folder's path and the path to restore it from.
fn without_tables(store: &EmbeddedStore, folder: &Path) -> (PathBuf, PathBuf) {
    use fjall::AbstractTree as _;
    let (tables, away) = (
        folder.join("database/keyspaces/1/tables"),
        folder.join("away"),
    );
    let database = store.threads.shared.database();
    let database = database.as_ref().expect("it is open");
    let flushing = database.rows.tree.get_flush_lock();
    fs::rename(&tables, &away).expect("is there");
    for number in 100..103 {
        let mut batch = database.start_batch();
        let row = row(number, None);
        batch.insert(
            &database.rows,
            keys::row_key(MAP, row.id),
            row::encode(&row),
        );
        batch.commit().expect("the journal takes it");
        assert!(database.rows.rotate_memtable().expect("rotates"));
    }
    assert!(database.backlog().0 > 2);
    drop(flushing);
    (tables, away)
}

async fn in_time<T>(mut tried: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match tried().await {
            Ok(done) => return done,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn database_reopens_after_failed_flushes() {
    let folder = tempfile::tempdir().expect("makes one");
    let options = Options {
        timeout: Duration::from_millis(500),
        ..Options::default()
    };
    let store = EmbeddedStore::open(folder.path(), &options).expect("opens");
    in_time(async || write(&store, vec![row(1, None)]).await).await;
    let (tables, away) = without_tables(&store, folder.path());
    let error = write(&store, vec![row(2, None)])
        .await
        .expect_err("it cannot write");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    fs::rename(&away, &tables).expect("is there");
    in_time(async || write(&store, vec![row(3, None)]).await).await;
    let keys = [1, 3, 100, 101, 102].map(|number| (MAP, row(number, None).id));
    let got = in_time(async || store.get(10, &keys).await).await;
    assert!(got.iter().all(Option::is_some), "{got:?}");
}

#[tokio::test]
async fn reads_reopen_a_closed_database() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = open(folder.path());
    write(&store, vec![row(1, None)]).await.expect("writes");
    let (tables, away) = without_tables(&store, folder.path());
    write(&store, vec![row(2, None)])
        .await
        .expect_err("it cannot write");
    fs::rename(&away, &tables).expect("is there");
    // A keyspace that is not flushed meanwhile.
    let list = folder.path().join("database/keyspaces/4/current");
    let whole = fs::read(&list).expect("is there");
    fs::write(&list, "damaged").expect("writes");
    let deadline = Instant::now() + Duration::from_secs(60);
    let first = [(MAP, row(1, None).id)];
    while store.get(10, &first).await.is_ok() {
        assert!(Instant::now() < deadline, "it is not closed");
        let _ = write(&store, vec![row(2, None)]).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    fs::write(&list, whole).expect("writes");
    assert_eq!(
        rows_of(in_time(async || store.get(10, &first).await).await),
        [Some(row(1, None))]
    );
}

#[tokio::test]
async fn requests_left_at_shutdown_fail_as_closed() {
    let folder = tempfile::tempdir().expect("makes one");
    let store = EmbeddedStore::open(
        folder.path(),
        &Options {
            readers: NonZeroUsize::MIN,
            ..patient()
        },
    );
    let store = store.expect("opens");
    let (done, _) = oneshot::channel();
    let (free, held) = std::sync::mpsc::channel::<()>();
    let job: ReadJob = Box::new(move |_| held.recv().expect("is told"));
    assert!(
        store
            .threads
            .readers
            .try_send(ThreadMessage::Job(job))
            .is_ok()
    );
    assert!(
        store
            .threads
            .readers
            .try_send(ThreadMessage::ShutDown(done))
            .is_ok()
    );
    let (got, ()) = tokio::join!(store.get(10, &[]), async { free.send(()).expect("waits") });

    let (done, _) = oneshot::channel();
    let free = occupy_writer(&store);
    assert!(
        store
            .threads
            .writer
            .try_send(ThreadMessage::ShutDown(done))
            .is_ok()
    );
    let (written, ()) = tokio::join!(write(&store, vec![row(1, None)]), async {
        free.send(()).expect("waits")
    });
    for error in [got.expect_err("it ends"), written.expect_err("it ends")] {
        assert!(
            matches!(&error, StoreError::Unavailable(why) if why == "the database is closed"),
            "{error}"
        );
    }
}

/// Occupies the writer until the returned sender is used or dropped, as a sync that takes long
/// does.
fn occupy_writer(store: &EmbeddedStore) -> std::sync::mpsc::Sender<()> {
    let (free, held) = std::sync::mpsc::channel();
    let job: WriteJob = Box::new(move |_| Box::new(move |_| held.recv().unwrap_or_default()));
    assert!(
        store
            .threads
            .writer
            .try_send(ThreadMessage::Job(job))
            .is_ok()
    );
    free
}

#[tokio::test]
async fn late_write_fails_and_can_still_take_effect() {
    let folder = tempfile::tempdir().expect("makes one");
    let options = Options {
        timeout: Duration::from_millis(20),
        ..Options::default()
    };
    let store = EmbeddedStore::open(folder.path(), &options).expect("opens");
    let free = occupy_writer(&store);
    let error = write(&store, vec![row(1, None)])
        .await
        .expect_err("the writer is occupied");
    assert!(
        matches!(&error, StoreError::Unavailable(why) if why == "no answer within 20 ms"),
        "{error}"
    );
    drop(free);
    store.close().await;
    let store = open(folder.path());
    assert_eq!(
        rows_of(
            store
                .get(10, &[(MAP, row(1, None).id)])
                .await
                .expect("reads")
        ),
        [Some(row(1, None))]
    );
}

/// Returns the files below a folder: path, bytes up to the last nonzero byte, and length. Journals
/// are preallocated and consist mostly of zeros.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>, u64)> {
    const BLOCK: usize = 64 << 10;
    let read = |path: PathBuf| {
        let mut bytes = fs::read(&path).expect("reads");
        let length = bytes.len();
        let is_used = |block: &[u8]| block != &[0; BLOCK][..block.len()];
        bytes.truncate(
            bytes
                .chunks(BLOCK)
                .rposition(is_used)
                .map_or(0, |last| (last + 1) * BLOCK),
        );
        (
            path.strip_prefix(folder).expect("below it").to_owned(),
            bytes,
            length as u64,
        )
    };
    files_below(folder).into_iter().map(read).collect()
}

fn write_folder(content: &[(PathBuf, Vec<u8>, u64)], to: &Path) {
    for (path, bytes, length) in content {
        let target = to.join(path);
        fs::create_dir_all(target.parent().expect("has one")).expect("makes it");
        fs::write(&target, bytes).expect("writes");
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&target)
            .expect("opens");
        file.set_len(*length).expect("as long as before");
    }
}

/// Changes the byte at the given quarter of a file.
fn flip(path: &Path, quarter: u64) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .expect("opens");
    // Journals are preallocated; their content is at the beginning.
    let length = file.metadata().expect("is there").len().min(4_000);
    let at = length * quarter / 4;
    let mut byte = [0];
    if length > 0 {
        file.read_exact_at(&mut byte, at).expect("reads");
        file.write_all_at(&[byte[0] ^ 0x55], at).expect("writes");
    }
}
