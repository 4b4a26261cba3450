//! States that someone without the root key wrote to the store. None of them is accepted.

use std::collections::BTreeSet;

use sealwire_store::{Changes, Snapshot, everything};
use sealwire_store_embedded::FileStore;

use super::roots::{Keyring, furnish, root, slot};
use super::*;
use crate::record_index::HEAD;

const SET: [u8; 16] = [0xb6; 16];

const READER: &[u8] =
    b"{\"format\":1,\"live\":{\"role\":\"reader\",\"grants\":[\"decrypt on shop\"]}}";
const WRITER: &[u8] =
    b"{\"format\":1,\"live\":{\"role\":\"writer\",\"grants\":[\"encrypt on shop\"]}}";
const NOBODY: &[u8] = b"{\"format\":1,\"live\":{\"roles\":[\"writer\"]}}";
const ADMIN: &[u8] = b"{\"format\":1,\"live\":{\"roles\":[\"administrator\"]}}";

/// A store with records of every kind, and the states that it went through, as they are stored.
struct History {
    keyring: Keyring,
    /// By generation.
    states: Vec<Snapshot>,
}

impl History {
    /// Creates a store whose records change several times under a root key.
    async fn of(set: [u8; 16]) -> Self {
        let root = root();
        let keyring = Keyring::of(&[&root]);
        let memory = MemoryStore::default();
        let store: Arc<dyn ControlStore> = Arc::new(memory.clone());
        let control = keyring.control(&store);
        furnish(&control).await;
        control
            .create_root(set, &root, vec![slot(1, "local"), slot(2, "hsm")])
            .await
            .unwrap();
        let mut states = Vec::new();
        let mut note = async || states.push(everything(&memory).await.unwrap());
        for name in ["shop", "bank"] {
            let rules = super::collections::PLAIN;
            control
                .create_collection(&app(name), &CollectionName::new("cards").unwrap(), rules)
                .await
                .unwrap();
        }
        for (key, record) in [
            ("role/reader", WRITER),
            ("role/writer", WRITER),
            ("role/reader", READER),
            ("principal/service", ADMIN),
            ("principal/other", ADMIN),
            ("principal/service", NOBODY),
            ("principal/gone", ADMIN),
        ] {
            note().await;
            put(&control, key, Some(record)).await;
        }
        note().await;
        put(&control, "principal/gone", None).await;
        put(&control, "access/administrators", Some(b"{\"format\":1}")).await;
        for name in ["shop", "bank"] {
            note().await;
            control.rotate(&app(name), P256).await.unwrap();
            let change = CollectionRulesChange {
                expires_s: Some(Some(60)),
                ..CollectionRulesChange::default()
            };
            control
                .change_rules(&app(name), &CollectionName::new("cards").unwrap(), change)
                .await
                .unwrap();
        }
        let id = control.root().await.unwrap().1.unwrap().active.id;
        control
            .set_slots(
                id,
                SlotChange {
                    add: vec![slot(3, "cloud")],
                    ..SlotChange::default()
                },
            )
            .await
            .unwrap();
        note().await;
        Self { keyring, states }
    }

    fn now(&self) -> &Snapshot {
        self.states.last().unwrap()
    }

    /// Returns the latest earlier form of a record that differs from today's.
    fn earlier(&self, key: &str) -> Option<Vec<u8>> {
        let now = self.now().records.get(key);
        self.states
            .iter()
            .rev()
            .map(|state| state.records.get(key))
            .find(|record| *record != now)
            .flatten()
            .cloned()
    }

    /// Reads everything in a store with this state, as a fresh process would.
    async fn read(&self, state: &Snapshot) -> Result<(), StoreError> {
        let store = MemoryStore::default();
        store.replace(0, state).await.unwrap();
        let store: Arc<dyn ControlStore> = Arc::new(store);
        let control = self.keyring.control(&store);
        control.load().await?;
        for key in [
            "principal/service",
            "principal/other",
            "principal/gone",
            "principal/stranger",
        ] {
            self.keyring.control(&store).store().read(key).await?;
        }
        Ok(())
    }
}

async fn put(control: &Control, key: &str, record: Option<&[u8]>) -> u64 {
    let base = control.generation().await.unwrap();
    match control.store().commit(base, key, record).await.unwrap() {
        Commit::Done(generation) => generation,
        Commit::Moved => panic!("nobody else writes"),
    }
}

/// A change of a root record by someone without the root key.
type RootEdit = fn(&mut RootRecord);

/// A tampered state, and a part of the error that must name it.
struct Tampered {
    what: String,
    state: Snapshot,
    error: String,
}

struct States<'a> {
    history: &'a History,
    all: Vec<Tampered>,
}

impl States<'_> {
    fn add(
        &mut self,
        what: impl Into<String>,
        error: impl Into<String>,
        edit: impl FnOnce(&mut Snapshot),
    ) {
        let mut state = self.history.now().clone();
        edit(&mut state);
        let what = what.into();
        assert_ne!(&state, self.history.now(), "{what}");
        self.all.push(Tampered {
            what,
            state,
            error: error.into(),
        });
    }

    fn set(&mut self, what: &str, key: &str, record: Option<Vec<u8>>, error: &str) {
        self.add(format!("{what}: {key}"), error, |state| {
            match record {
                Some(record) => state.records.insert(key.to_owned(), record),
                None => state.records.remove(key),
            };
        });
    }
}

fn edited(record: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = str::from_utf8(record).unwrap();
    assert!(text.contains(from), "{from:?} in {text}");
    text.replacen(from, to, 1).into_bytes()
}

/// Rewrites the rows of the index, as anybody can.
fn reindex(state: &mut Snapshot) {
    state
        .records
        .retain(|key, _| key == HEAD || !crate::record_index::is_of_index(key));
    let mut records = state.records.clone();
    records.remove(HEAD);
    state
        .records
        .extend(crate::record_index::RecordIndex::of(&records).into_rows());
}

fn tampered(history: &History, other: &History) -> Vec<Tampered> {
    let now = history.now().clone();
    let mut states = States {
        history,
        all: Vec::new(),
    };
    let of = |key: &str| format!("record {key} is not authentic");

    let fields = [
        ("app/shop", "\"number\":1", "\"number\":9"),
        ("app/bank", "\"state\":\"active\"", "\"state\":\"disabled\""),
        ("app/gone", "\"number\":3", "\"number\":2"),
        ("collection/shop/cards", "\"number\":1", "\"number\":2"),
        ("role/reader", "decrypt", "encrypt"),
        ("role/writer", "encrypt", "decrypt"),
        ("access/administrators", "1}", "1 }"),
        ("signing-key", "\"created_unix_s\":", "\"created_unix_s\":1"),
        ("root", "\"next_slot\":4", "\"next_slot\":5"),
        ("principal/service", "writer", "reader"),
        ("principal/other", "administrator", "reader"),
    ];
    for (key, from, to) in fields {
        states.set(
            "field changed",
            key,
            Some(edited(&now.records[key], from, to)),
            &of(key),
        );
        states.set("deleted", key, None, &of(key));
        if let Some(earlier) = history.earlier(key) {
            states.set("rolled back", key, Some(earlier), &of(key));
        }
    }
    for (one, two) in [
        ("app/shop", "app/bank"),
        ("collection/shop/cards", "collection/bank/cards"),
        ("role/reader", "role/writer"),
        ("principal/service", "principal/other"),
    ] {
        // Some of them do not even parse under the other's key, but the index is verified first.
        states.add(
            format!("swapped: {one} and {two}"),
            "is not authentic",
            |state| {
                let first = state.records[one].clone();
                let second = state.records.insert(two.into(), first).unwrap();
                state.records.insert(one.into(), second);
            },
        );
    }
    for (key, record) in [
        ("role/thief", READER),
        ("principal/stranger", ADMIN),
        ("principal/gone", ADMIN),
        ("app/mine", &now.records["app/shop"]),
        (
            "collection/shop/stolen",
            &now.records["collection/shop/cards"],
        ),
        ("unknown", b"{}"),
    ] {
        states.set("added", key, Some(record.to_vec()), &of(key));
    }

    // Whoever changes a record can also rewrite the index, but not the head.
    for (key, record) in [
        ("role/writer", Some(READER)),
        ("principal/stranger", Some(ADMIN)),
        ("role/writer", None),
    ] {
        states.add(
            format!(
                "index rewritten for {key}, which {}",
                if record.is_some() { "changed" } else { "went" }
            ),
            of(HEAD),
            |state| {
                match record {
                    Some(record) => state.records.insert(key.into(), record.to_vec()),
                    None => state.records.remove(key),
                };
                reindex(state);
            },
        );
    }
    let rows: Vec<String> = now
        .records
        .keys()
        .filter(|key| key.contains("index/"))
        .cloned()
        .collect();
    states.set("index row deleted", &rows[0], None, &of(HEAD));
    states.set(
        "index row of another",
        &rows[0],
        Some(now.records[&rows[1]].clone()),
        &of(HEAD),
    );
    states.set(
        "index row added",
        "index/fff",
        Some(now.records[&rows[0]].clone()),
        &of(HEAD),
    );
    let old_row = rows
        .iter()
        .find_map(|row| Some((row, history.earlier(row)?)))
        .unwrap();
    states.set(
        "index row rolled back",
        old_row.0,
        Some(old_row.1),
        &of(HEAD),
    );
    states.add(
        "index and records rolled back, but not the head",
        of(HEAD),
        |state| {
            let head = state.records[HEAD].clone();
            *state = history.states[2].clone();
            state.records.insert(HEAD.into(), head);
        },
    );
    states.add("index removed", of(HEAD), |state| {
        state.records.retain(|key, _| !key.contains("index/"))
    });
    states.set("head removed", HEAD, None, &of(HEAD));
    states.set("head rolled back", HEAD, history.earlier(HEAD), &of(HEAD));
    states.set(
        "head of another store",
        HEAD,
        Some(other.now().records[HEAD].clone()),
        &of(HEAD),
    );
    let head = &now.records[HEAD];
    let generation = now.generation;
    let number = format!("\"generation\":{generation}");
    let later = edited(head, &number, &format!("\"generation\":{}", generation + 1));
    states.set(
        "head of a later generation",
        HEAD,
        Some(later.clone()),
        &of(HEAD),
    );
    states.add("head and store of a later generation", of(HEAD), |state| {
        state.records.insert(HEAD.into(), later);
        state.generation += 1;
    });
    let code = str::from_utf8(head)
        .unwrap()
        .split("\"code\":\"")
        .nth(1)
        .unwrap()[..43]
        .to_owned();
    for (what, to) in [
        ("no", ""),
        ("a short", &code[..20]),
        ("a zero", &"A".repeat(43)),
        ("a wrong", "no base64!"),
    ] {
        states.set(
            &format!("head with {what} code"),
            HEAD,
            Some(edited(head, &code, to)),
            &of(HEAD),
        );
    }
    states.set(
        "head without a code",
        HEAD,
        Some(b"{\"format\":1,\"live\":{\"generation\":9}}".to_vec()),
        "head",
    );
    states.set(
        "head that is a tombstone",
        HEAD,
        Some(b"{\"format\":1,\"deleted\":null}".to_vec()),
        "head",
    );

    states.add("head and index removed", of("app/"), |state| {
        state
            .records
            .retain(|key, _| !crate::record_index::is_of_index(key));
    });
    states.all.last_mut().unwrap().error = of(HEAD);
    states.add(
        "root, head and index removed",
        "the key-encryption key does not open the keys of app",
        |state| {
            state
                .records
                .retain(|key, _| !crate::record_index::is_of_index(key) && key != ROOT_RECORD);
        },
    );
    states.set("root removed", ROOT_RECORD, None, &of(ROOT_RECORD));
    states.set(
        "root of another store",
        ROOT_RECORD,
        Some(other.now().records[ROOT_RECORD].clone()),
        "root key",
    );
    let slots: [(&str, RootEdit); 9] = [
        ("slot replaced", |root| {
            root.active.slots[0].wrapped = vec![9; 60]
        }),
        ("slot of another provider", |root| {
            root.active.slots[0].provider = "mine".into()
        }),
        ("slots exchanged", |root| {
            let first = root.active.slots[0].wrapped.clone();
            root.active.slots[1].wrapped = first;
            root.active.slots[0].wrapped = vec![8; 60];
        }),
        ("slot removed", |root| drop(root.active.slots.pop())),
        ("slot added", |root| {
            root.active.slots.push(slot(4, "mine"));
            root.next_slot = 5;
        }),
        ("slot fields changed", |root| {
            drop(
                root.active.slots[1]
                    .fields
                    .insert("path".into(), "/tmp/mine".into()),
            )
        }),
        ("slot said to be verified", |root| {
            root.active.slots[1].verified_unix_s = 1 << 40
        }),
        ("incoming root added", |root| {
            let entry = RootEntry {
                id: [1; 16],
                created_unix_s: 1,
                slots: vec![slot(4, "mine")],
            };
            root.incoming = Some(IncomingRoot {
                entry,
                generation: 3,
            });
            root.next_slot = 5;
        }),
        ("creation time changed", |root| {
            root.active.created_unix_s += 1
        }),
    ];
    for (what, edit) in slots {
        let mut root = RootRecord::parse(&now.records[ROOT_RECORD]).unwrap();
        edit(&mut root);
        states.set(
            what,
            ROOT_RECORD,
            Some(root.to_bytes().unwrap()),
            &of(ROOT_RECORD),
        );
    }
    let mut root = RootRecord::parse(&now.records[ROOT_RECORD]).unwrap();
    root.wrapped_audit[20] ^= 1;
    states.set(
        "audit secret changed",
        ROOT_RECORD,
        Some(root.to_bytes().unwrap()),
        "wrapped key does not open",
    );

    states.add("generation lowered", of(HEAD), |state| {
        state.generation -= 1
    });
    states.add("generation raised", of(HEAD), |state| state.generation += 1);
    states.all
}

#[tokio::test]
async fn tampered_states_are_rejected() {
    let history = History::of(SET).await;
    let other = History::of([0xc7; 16]).await;
    history.read(history.now()).await.unwrap();
    let all = tampered(&history, &other);
    let distinct: BTreeSet<&str> = all.iter().map(|state| &*state.what).collect();
    assert!(
        distinct.len() == all.len() && all.len() >= 60,
        "{} of {}",
        distinct.len(),
        all.len()
    );
    for Tampered { what, state, error } in all {
        let found = history
            .read(&state)
            .await
            .err()
            .unwrap_or_else(|| panic!("{what}: accepted"));
        assert!(
            found.to_string().contains(&error),
            "{what}: {found}, not {error}"
        );
    }
}

#[tokio::test]
async fn principals_are_listed_completely_or_not_at_all() {
    let history = History::of(SET).await;
    for (what, key, record) in [
        ("changed", "principal/other", Some(NOBODY)),
        ("removed", "principal/service", None),
        ("added", "principal/stranger", Some(ADMIN)),
    ] {
        let mut state = history.now().clone();
        let changes = Changes::from([(key.to_owned(), record.map(<[u8]>::to_vec))]);
        state.apply("memory", state.generation, &changes).unwrap();
        state.generation -= 1;
        let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
        store.replace(0, &state).await.unwrap();
        let control = history.keyring.control(&store);
        for limit in [1, 2, 100] {
            let pages = async {
                let mut after: Option<String> = None;
                loop {
                    let page = control.store().singles(after.as_deref(), limit).await?;
                    match page.records.into_keys().next_back() {
                        Some(last) => after = Some(last),
                        None => return Ok::<_, StoreError>(()),
                    }
                }
            };
            let error = pages
                .await
                .err()
                .unwrap_or_else(|| panic!("{what}, {limit}: accepted"));
            assert!(
                matches!(&error, StoreError::NotAuthentic { key: of, .. } if of == key),
                "{what}: {error}"
            );
        }
        // A change of other records does not make it true.
        control
            .stage_root(&root(), vec![slot(4, "next")])
            .await
            .unwrap();
        let error = control.store().read(key).await.unwrap_err();
        assert!(
            matches!(&error, StoreError::NotAuthentic { key: of, .. } if of == key),
            "{what}: {error}"
        );
    }
}

#[tokio::test]
async fn an_older_state_is_rejected_by_whoever_saw_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let first = root();
    let keyring = Keyring::of(&[&first]);
    let store: Arc<dyn ControlStore> = Arc::new(FileStore::open(&path).unwrap());
    let control = keyring.control(&store);
    control.create(&app("shop"), &[Suite::P256]).await.unwrap();
    control
        .create_root(SET, &first, vec![slot(1, "local")])
        .await
        .unwrap();
    let old = std::fs::read(&path).unwrap();
    put(&control, "role/reader", Some(READER)).await;
    let seen = put(&control, "role/reader", None).await;
    let new = std::fs::read(&path).unwrap();

    std::fs::write(&path, &old).unwrap();
    for _ in 0..2 {
        let error = control.load().await.unwrap_err();
        assert!(
            matches!(error, StoreError::RolledBack { generation, seen: of } if of == seen && generation < of)
        );
        assert!(control.store().read("principal/a").await.is_err());
        assert!(control.create(&app("other"), &[Suite::P256]).await.is_err());
    }
    // A process that never saw the later one cannot know.
    let fresh = Keyring::of(&[&first]).control(&store);
    fresh.load().await.unwrap();
    std::fs::write(&path, &new).unwrap();
    control.load().await.unwrap();
}

/// Two records that anyone with write access to the database can make: a role, and a principal that
/// has it.
#[tokio::test]
async fn plain_records_do_not_make_a_reader() {
    let history = History::of(SET).await;
    for bump in [0, 1] {
        let mut state = history.now().clone();
        state.records.insert("role/thief".into(), READER.to_vec());
        state.records.insert(
            "principal/stranger".into(),
            edited(ADMIN, "administrator", "thief"),
        );
        state.generation += bump;
        let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
        store.replace(0, &state).await.unwrap();
        let control = history.keyring.control(&store);
        assert!(
            control
                .load()
                .await
                .unwrap_err()
                .to_string()
                .contains("not authentic")
        );
        assert!(control.store().read("principal/stranger").await.is_err());
        assert!(control.store().singles(None, 10).await.is_err());
    }
    // The principal alone, with a role that others have.
    let mut state = history.now().clone();
    state
        .records
        .insert("principal/stranger".into(), ADMIN.to_vec());
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    store.replace(0, &state).await.unwrap();
    let control = history.keyring.control(&store);
    control.load().await.unwrap();
    let error = control
        .store()
        .read("principal/stranger")
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("principal/stranger is not authentic: it was added"),
        "{error}"
    );
}

/// A file whose state anyone can replace, also by an older one.
struct Rewritten {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
}

impl Rewritten {
    async fn with(state: &Snapshot) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        let file = Self {
            _folder: folder,
            path,
        };
        file.write(state.generation, state).await;
        file
    }

    fn store(&self) -> Arc<dyn ControlStore> {
        Arc::new(FileStore::open(&self.path).unwrap())
    }

    async fn write(&self, generation: u64, state: &Snapshot) {
        let _ = std::fs::remove_file(&self.path);
        let state = Snapshot {
            generation,
            records: state.records.clone(),
        };
        self.store().replace(0, &state).await.unwrap();
    }
}

/// Removes everything that tells of a root key, and makes a stranger an administrator.
fn stripped(state: &Snapshot) -> Snapshot {
    let mut state = state.clone();
    state
        .records
        .retain(|key, _| !crate::record_index::is_of_index(key) && key != ROOT_RECORD);
    state
        .records
        .insert("principal/stranger".into(), ADMIN.to_vec());
    state
}

#[tokio::test]
async fn a_running_process_accepts_no_store_that_lost_its_root_key() {
    let history = History::of(SET).await;
    let file = Rewritten::with(history.now()).await;
    let control = history.keyring.control(&file.store());
    let served = control.load().await.unwrap().generation;
    let forged = stripped(history.now());
    // Another generation makes the process forget its index, and the served one is what it asks
    // principals in.
    for generation in [served + 1, served, served + 1] {
        file.write(generation, &forged).await;
        let refused = [
            control.store().read("principal/stranger").await.err(),
            control.store().singles(None, 10).await.err(),
            control.load().await.err(),
            control.apps().await.err(),
        ];
        for error in refused {
            assert!(
                matches!(error, Some(StoreError::NotAuthentic { .. })),
                "{generation}: {error:?}"
            );
        }
        let changed = control
            .store()
            .commit(generation, "role/mine", Some(READER))
            .await;
        assert!(!matches!(changed, Ok(Commit::Done(_))), "{generation}");
    }
    file.write(served, history.now()).await;
    control.load().await.unwrap();
    let changed = put(&control, "principal/service", Some(ADMIN)).await;
    assert_eq!(
        control.store().read("principal/stranger").await.unwrap(),
        (changed, None)
    );
    history.keyring.control(&file.store()).load().await.unwrap();
}

#[tokio::test]
async fn a_running_process_accepts_no_other_set_and_no_state_from_before_the_root_key() {
    let first = root();
    let second = root();
    let keyring = Keyring::of(&[&first, &second]);
    let file = Rewritten::with(&Snapshot::default()).await;
    let maker = keyring.control(&file.store());
    maker.create(&app("shop"), &[Suite::P256]).await.unwrap();
    let plain = std::fs::read(&file.path).unwrap();
    maker
        .create_root(SET, &first, vec![slot(1, "local")])
        .await
        .unwrap();
    let earlier_set = std::fs::read(&file.path).unwrap();
    maker
        .remove_root(Arc::new(Kek::from_hex(KEK).unwrap()))
        .await
        .unwrap();
    maker
        .create_root([0xcc; 16], &second, vec![slot(1, "local")])
        .await
        .unwrap();
    let control = keyring.control(&file.store());
    control.load().await.unwrap();
    for state in [earlier_set, plain] {
        std::fs::write(&file.path, state).unwrap();
        let error = control.load().await.unwrap_err();
        assert!(
            error
                .to_string()
                .contains("record root is not authentic: it was removed"),
            "{error}"
        );
    }
}

/// A failover loses a change, and another process makes another one of the same generation.
#[tokio::test]
async fn two_histories_of_one_generation_are_not_mixed() {
    let history = History::of(SET).await;
    let file = Rewritten::with(history.now()).await;
    let engine = history.keyring.control(&file.store());
    engine.load().await.unwrap();
    let lost = put(&engine, "role/lost", Some(READER)).await;
    file.write(history.now().generation, history.now()).await;
    let other = history.keyring.control(&file.store());
    assert_eq!(put(&other, "role/other", Some(WRITER)).await, lost);
    // The engine has an index of this generation, and it is not that of the store.
    assert_eq!(
        engine
            .store()
            .commit(lost, "role/third", Some(READER))
            .await
            .unwrap(),
        Commit::Moved
    );
    let error = engine.load().await.unwrap_err();
    assert!(
        matches!(error, StoreError::RolledBack { generation, seen } if generation == lost && seen == lost)
    );
    assert!(error.to_string().contains("with other records"), "{error}");
    assert!(
        engine
            .store()
            .commit(lost, "role/third", Some(READER))
            .await
            .is_err()
    );
    // Accepted, it goes on from the state that the store has.
    let accepted = other.skip_generations(lost).await.unwrap();
    assert_eq!(accepted, lost + 1);
    engine.load().await.unwrap();
    put(&engine, "role/third", Some(READER)).await;
    let fresh = history.keyring.control(&file.store()).load().await.unwrap();
    let roles: Vec<&str> = fresh
        .access
        .keys()
        .map(String::as_str)
        .filter(|key| key.starts_with("role/"))
        .collect();
    assert_eq!(
        roles,
        ["role/other", "role/reader", "role/third", "role/writer"]
    );
}
