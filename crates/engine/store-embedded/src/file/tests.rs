use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::*;

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("made/apps.json")
}

async fn open() -> (Arc<dyn ControlStore>, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (Arc::new(FileStore::open(&path(&folder)).unwrap()), folder)
}

sealwire_store::control_promises!(open);

async fn put(store: &FileStore, key: &str, record: &str) -> u64 {
    let base = store.generation().await.unwrap();
    match store
        .commit(base, key, Some(record.as_bytes()))
        .await
        .unwrap()
    {
        Commit::Done(generation) => generation,
        Commit::Moved => panic!("nobody else writes"),
    }
}

#[tokio::test]
async fn file_is_readable_json_for_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(&path(&folder)).unwrap();
    assert!(!path(&folder).exists(), "it is made with the first change");
    put(
        &store,
        "app/shop",
        r#"{"format":1,"live":{"z":1,"a":[1.50,"é"]}}"#,
    )
    .await;
    for file in [path(&folder), path(&folder).with_added_extension("lock")] {
        assert_eq!(
            fs::metadata(file).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
    assert_eq!(
        fs::metadata(folder_of(&path(&folder)))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );
    let expected = "{\n  \"format\": 1,\n  \"generation\": 1,\n  \"records\": {\n    \"app/shop\": \
                    {\"format\":1,\"live\":{\"z\":1,\"a\":[1.50,\"é\"]}}\n  }\n}\n";
    assert_eq!(fs::read_to_string(path(&folder)).unwrap(), expected);
}

#[tokio::test]
async fn links_in_the_folder_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let victim = folder.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    let store = FileStore::open(&path(&folder)).unwrap();
    std::os::unix::fs::symlink(&victim, path(&folder).with_added_extension("new")).unwrap();
    put(&store, "k", "1").await;
    assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    let lock = path(&folder).with_added_extension("lock");
    fs::remove_file(&lock).unwrap();
    std::os::unix::fs::symlink(&victim, &lock).unwrap();
    assert!(matches!(
        store.commit(1, "k", Some(b"2")).await,
        Err(StoreError::Io { .. })
    ));
}

#[tokio::test]
async fn read_only_store_changes_nothing_and_sees_changes() {
    let folder = tempfile::tempdir().unwrap();
    assert!(
        matches!(
            FileStore::open_read_only(&path(&folder)),
            Err(StoreError::Io { .. })
        ),
        "there is no file"
    );
    let writer = FileStore::open(&path(&folder)).unwrap();
    put(&writer, "k", "1").await;
    let reader = FileStore::open_read_only(&path(&folder)).unwrap();
    for refused in [
        reader.commit(1, "k", None).await,
        reader.replace(1, &Snapshot::default()).await,
    ] {
        assert!(matches!(refused, Err(StoreError::ReadOnly)));
    }
    // Successive changes of equal length within one tick of the file's timestamps.
    for round in 0..50 {
        let generation = put(&writer, "k", &(round % 10).to_string()).await;
        assert_eq!(reader.generation().await.unwrap(), generation);
        assert_eq!(reader.load().await.unwrap(), writer.load().await.unwrap());
    }
    fs::remove_file(path(&folder)).unwrap();
    assert!(matches!(
        reader.generation().await,
        Err(StoreError::Io { .. })
    ));
}

#[tokio::test]
async fn file_with_unchanged_metadata_is_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(&path(&folder)).unwrap();
    put(&store, "k", "1").await;
    let old = SystemTime::now() - 2 * TIMES_SETTLE;
    let age = |to| {
        File::options()
            .write(true)
            .open(path(&folder))
            .unwrap()
            .set_modified(to)
            .unwrap()
    };
    loop {
        let changed = SystemTime::now();
        age(changed);
        store.generation().await.unwrap();
        let is_seen = store.file.cached().is_some();
        // On a slow machine this check can come too late.
        if changed.elapsed().is_ok_and(|since| since < TIMES_SETTLE) {
            assert!(!is_seen, "a second change might look like this one");
            break;
        }
    }
    age(old);
    assert_eq!(store.generation().await.unwrap(), 1);
    let (stamp, _) = store.file.cached().clone().unwrap();
    *store.file.cached() = Some((
        stamp,
        Arc::new(Snapshot {
            generation: 77,
            ..Snapshot::default()
        }),
    ));
    assert_eq!(
        store.generation().await.unwrap(),
        77,
        "it is as it was seen"
    );
    age(old + Duration::from_secs(1));
    assert_eq!(store.generation().await.unwrap(), 1, "it looks otherwise");
}

#[test]
fn damaged_files_are_rejected_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    FileStore::open(&path(&folder)).unwrap();
    let good = r#"{"format": 1, "generation": 3, "records": {"k": {"a": 1}}}"#;
    for (text, expected) in [
        (String::new(), "EOF"),
        (good[..good.len() - 9].into(), "EOF"),
        (good.replace("1,", "2,"), "format 2 is not 1"),
        (
            good.replace("\"format\": 1, ", ""),
            "missing field `format`",
        ),
        (
            good.replace("\"records\"", "\"apps\""),
            "unknown field `apps`",
        ),
        (good.replace('3', "-3"), "invalid value"),
        (good.replace('3', "18446744073709551616"), "invalid type"),
        (
            good.replace("{\"a\": 1}", "{\"base64\": \"!\"}"),
            "\"k\" is not base64",
        ),
        (good.replace("{\"a\": 1}", "{a: 1}"), "key must be a string"),
        (format!("{good} {good}"), "trailing characters"),
    ] {
        fs::write(path(&folder), &text).unwrap();
        for opened in [
            FileStore::open(&path(&folder)),
            FileStore::open_read_only(&path(&folder)),
        ] {
            let error = opened.unwrap_err();
            assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
            let error = error.to_string();
            assert!(
                error.contains(expected) && error.contains("apps.json: damaged"),
                "{error}"
            );
        }
    }
    fs::write(path(&folder), [b'"', 0xff, b'"']).unwrap();
    assert!(matches!(
        FileStore::open(&path(&folder)),
        Err(StoreError::Damaged { .. })
    ));
    fs::write(path(&folder), good).unwrap();
    FileStore::open(&path(&folder)).unwrap();
}

#[tokio::test]
async fn generation_does_not_overflow() {
    let folder = tempfile::tempdir().unwrap();
    let store = FileStore::open(&path(&folder)).unwrap();
    let text = format!(
        r#"{{"format": 1, "generation": {}, "records": {{}}}}"#,
        u64::MAX
    );
    fs::write(path(&folder), &text).unwrap();
    let refused = store.commit(u64::MAX, "k", Some(b"{}")).await;
    assert!(
        matches!(refused, Err(StoreError::Damaged { what, .. }) if what == "no generation left")
    );
    assert_eq!(fs::read_to_string(path(&folder)).unwrap(), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_of_one_file_have_one_winner_per_base() {
    let folder = tempfile::tempdir().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let store = FileStore::open(&path(&folder)).unwrap();
        tasks.spawn(async move {
            store
                .commit(0, &writer.to_string(), Some(b"{}"))
                .await
                .unwrap()
        });
    }
    let outcomes = tasks.join_all().await;
    assert_eq!(
        outcomes
            .iter()
            .filter(|outcome| **outcome == Commit::Done(1))
            .count(),
        1
    );
    let found = FileStore::open(&path(&folder))
        .unwrap()
        .load()
        .await
        .unwrap();
    assert_eq!((found.generation, found.records.len()), (1, 1));
}
