//! Tests of the index against its definition, and of what it must not accept.

use proptest::prelude::*;
use sealwire_crypto::RootKey;
use zeroize::Zeroizing;

use super::*;

const SET: [u8; 16] = [3; 16];

fn with_key<T>(byte: u8, work: impl FnOnce(&StateKey) -> T) -> T {
    let root = RootKey::from_bytes(Zeroizing::new([byte; 32]));
    work(
        root.kek(&SET, Zeroizing::default())
            .unwrap()
            .state_key()
            .unwrap(),
    )
}

fn records(pairs: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
    pairs
        .iter()
        .map(|(key, record)| ((*key).to_owned(), record.as_bytes().to_vec()))
        .collect()
}

/// Returns what [`ControlStore::load`](sealwire_store::ControlStore::load) returns after a write of
/// these records.
fn stored(key: &StateKey, generation: u64, all: &BTreeMap<String, Vec<u8>>) -> Snapshot {
    let index = RecordIndex::of(all);
    let mut records = all.clone();
    records.insert(HEAD.into(), head(generation, &index.code(key, generation)));
    records.extend(index.into_rows());
    Snapshot {
        generation,
        records,
    }
    .loaded()
}

#[test]
fn the_head_of_a_vector() {
    // Computed with Python's hmac and hashlib, and the xxh3 of the keys.
    let all = records(&[("app/shop", "{}"), ("principal/a", "{\"format\":1}")]);
    let (head, rows) = with_key(7, |key| {
        let index = RecordIndex::of(&all);
        (
            head(258, &index.code(key, 258)),
            index.into_rows().collect::<Vec<_>>(),
        )
    });
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let rows: Vec<_> = rows
        .into_iter()
        .map(|(key, row)| (key, text(row)))
        .collect();
    let row = |key: &str, of: &str, digest: &str| {
        (
            key.to_owned(),
            format!("{{\"format\":1,\"live\":{{\"{of}\":\"{digest}\"}}}}"),
        )
    };
    let expected = [
        row(
            "index/390",
            "app/shop",
            "RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o",
        ),
        row(
            "single-index/30b",
            "principal/a",
            "PwqZJWvuuJprnyeTiFKRpkVJKP10kDFZqy5RRSsT328",
        ),
    ];
    assert_eq!(rows, expected);
    let code = "jALwkc5PRZtLmZZra4yjHu3tS2eA2+Ywh3I0SQ/d1uA";
    assert_eq!(
        text(head),
        format!("{{\"format\":1,\"live\":{{\"generation\":258,\"code\":\"{code}\"}}}}")
    );
}

#[test]
fn records_open_in_their_generation_under_their_key_alone() {
    let all = records(&[
        ("app/shop", "1"),
        ("role/reader", "2"),
        ("principal/a", "3"),
        ("root", "4"),
    ]);
    let (snapshot, index) = with_key(1, |key| {
        RecordIndex::open(key, stored(key, 9, &all)).unwrap()
    });
    assert_eq!(
        snapshot,
        Snapshot {
            generation: 9,
            records: all.clone()
        }
        .loaded()
    );
    assert_eq!(index, RecordIndex::of(&all));
    for (other, generation, what) in [
        (2, 9, "its code is not"),
        (1, 8, "generation 9"),
        (1, 10, "generation 9"),
    ] {
        let mut found = with_key(1, |key| stored(key, 9, &all));
        found.generation = generation;
        let error = with_key(other, |key| RecordIndex::open(key, found)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn the_index_is_written_with_other_records_only() {
    let index = RecordIndex::of(&records(&[("app/shop", "1")]));
    for key in [HEAD, "index/000", "index/zzz", "single-index/000"] {
        let changes = Changes::from([(key.to_owned(), Some(b"{}".to_vec()))]);
        assert!(
            matches!(index.changed(&changes), Err(StoreError::Invalid(_))),
            "{key}"
        );
    }
}

fn a_key() -> impl Strategy<Value = String> {
    prop_oneof![
        "(app|role|collection/a)/[a-c]{1,2}",
        "principal/[a-d]{1,2}",
        "[a-z\"\\\\\u{e9}/]{0,6}"
    ]
    .prop_filter("not of the index", |key| !is_of_index(key))
}

fn some_records() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
    proptest::collection::btree_map(
        a_key(),
        proptest::collection::vec(any::<u8>(), 0..40),
        0..12,
    )
}

proptest! {
    #[test]
    fn changes_give_the_index_of_the_changed_records(
        all in some_records(),
        changes in proptest::collection::btree_map(a_key(), proptest::option::of(Just(b"new".to_vec())), 0..8),
    ) {
        let before = RecordIndex::of(&all);
        let mut state = Snapshot { generation: 1, records: all.clone() };
        state.apply("model", 1, &changes).unwrap();
        let (after, rows) = before.changed(&changes).unwrap();
        prop_assert_eq!(&after, &RecordIndex::of(&state.records));
        let mut written: BTreeMap<_, _> = before.into_rows().collect();
        for (key, row) in rows {
            match row {
                Some(row) => written.insert(key, row),
                None => written.remove(&key),
            };
        }
        prop_assert_eq!(written, after.clone().into_rows().collect::<BTreeMap<_, _>>());
        for (key, record) in &state.records {
            prop_assert!(after.check(key, Some(record)).is_ok());
            prop_assert!(after.check(key, None).is_err());
            prop_assert!(after.check(key, Some(b"another")).is_err());
        }
    }

    /// Everything that a store returns but did not get is rejected, unless it is equal.
    #[test]
    fn an_altered_load_never_opens(
        all in some_records(),
        at in any::<prop::sample::Index>(),
        from in any::<prop::sample::Index>(),
        kind in 0..4,
    ) {
        let mut found = with_key(1, |key| stored(key, 5, &all));
        let original = found.clone();
        let keys: Vec<String> = found.records.keys().cloned().collect();
        let key = &keys[at.index(keys.len())];
        let other = &keys[from.index(keys.len())];
        match kind {
            0 => drop(found.records.remove(key)),
            1 => drop(found.records.insert(key.clone(), original.records[other].clone())),
            2 => drop(found.records.insert(format!("{key}x"), original.records[key].clone())),
            _ => {
                let record = found.records.get_mut(key).unwrap();
                if record.is_empty() { record.push(0) } else { let at = from.index(record.len()); record[at] ^= 1 }
            }
        }
        let opened = with_key(1, |key| RecordIndex::open(key, found.clone()));
        prop_assert_eq!(opened.is_ok(), found == original, "{:?}", key);
    }

    #[test]
    fn pages_are_complete(
        all in some_records(),
        after in proptest::option::of(a_key()),
        limit in 1_usize..6,
        gone in any::<prop::sample::Index>(),
    ) {
        let state = Snapshot { generation: 1, records: all };
        let singles = RecordIndex::of(&state.records).singles().unwrap();
        let mut page = state.page(after.as_deref(), limit);
        prop_assert!(check_page(&singles, after.as_deref(), limit, &page.records).is_ok());
        if page.records.is_empty() {
            return Ok(());
        }
        let key = page.records.keys().nth(gone.index(page.records.len())).unwrap().clone();
        let record = page.records.remove(&key).unwrap();
        // Without the record, the page is not full, so that it claims to reach the end.
        prop_assert!(check_page(&singles, after.as_deref(), limit, &page.records).is_err());
        page.records.insert(key, [record, b"x".to_vec()].concat());
        prop_assert!(check_page(&singles, after.as_deref(), limit, &page.records).is_err());
    }
}
