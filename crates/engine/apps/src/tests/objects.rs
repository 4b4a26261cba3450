//! Collections of objects: schemas at rest, their changes, and names of properties that are used
//! again.

use sealwire_records::objects::{
    AcceptedRecords, PropertyName, PropertySpec, PropertyType, Schema, SchemaChange,
};
use sealwire_store::MapId;

use super::collections::PLAIN;
use super::*;

fn name(name: &str) -> CollectionName {
    CollectionName::new(name).unwrap()
}

fn property(name: &str) -> PropertyName {
    PropertyName::new(name).unwrap()
}

fn spec(name: &str, property_type: PropertyType) -> PropertySpec {
    PropertySpec::new(property(name), property_type)
}

fn people() -> Schema {
    let specs = [
        PropertySpec {
            unique: true,
            nullable: false,
            ..spec("email", PropertyType::Email)
        },
        PropertySpec {
            index: true,
            prefixes: vec![3],
            accept_leak: true,
            ..spec("name", PropertyType::Name)
        },
        PropertySpec {
            index: true,
            bits: Some(12),
            encrypted: false,
            ..spec("city", PropertyType::String)
        },
        PropertySpec {
            description: "of birth".into(),
            ..spec("born", PropertyType::Date)
        },
    ];
    Schema {
        expires_s: Some(60),
        retention_s: Some(0),
        ..Schema::new(Suite::Xaes, &specs).unwrap()
    }
}

async fn with_people() -> (Control, MemoryStore) {
    let (control, store) = fresh();
    control.create(&app("shop"), &[]).await.unwrap();
    control
        .create_objects(&app("shop"), &name("people"), people())
        .await
        .unwrap();
    (control, store)
}

async fn schema(control: &Control) -> Arc<Schema> {
    let collections = served(control, "shop").await.unwrap().collections;
    Arc::clone(collections[&name("people")].schema().unwrap())
}

fn drop_name() -> SchemaChange {
    SchemaChange {
        drop: vec![property("name")],
        ..SchemaChange::default()
    }
}

fn add_name() -> SchemaChange {
    SchemaChange {
        add: vec![spec("name", PropertyType::String)],
        ..SchemaChange::default()
    }
}

async fn alter(
    control: &Control,
    change: SchemaChange,
    fence: Option<u64>,
) -> Result<CollectionChange, StoreError> {
    control
        .alter_collection(&app("shop"), &name("people"), change, fence)
        .await
}

#[tokio::test]
async fn a_schema_rests_and_comes_back() {
    let (control, store) = with_people().await;
    assert_eq!(*schema(&control).await, people());
    let record = store
        .read("collection/shop/people")
        .await
        .unwrap()
        .1
        .unwrap();
    let text = String::from_utf8(record).unwrap();
    for part in [
        "\"kind\":\"objects\"",
        "\"suite\":\"xaes\"",
        "\"clear\":true",
        "\"prefixes\":[3]",
        "\"expires_s\":60",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let set = CollectionRulesChange {
        expires_s: Some(None),
        retention_s: None,
    };
    control
        .change_rules(&app("shop"), &name("people"), set)
        .await
        .unwrap();
    assert_eq!(
        *schema(&control).await,
        Schema {
            expires_s: None,
            ..people()
        }
    );
}

#[tokio::test]
async fn records_of_a_collection_only_move_on() {
    let (control, store) = with_people().await;
    let app = app("shop");
    let name = name("people");
    let key = "collection/shop/people";
    let text = String::from_utf8(store.read(key).await.unwrap().1.unwrap()).unwrap();
    let mark = "\"records\":\"authenticated\",";
    assert!(text.contains(mark), "a new collection has the mark: {text}");
    // The record of an engine that knows no marks.
    let old = text.replacen(mark, "", 1);
    store
        .commit(store.generation().await.unwrap(), key, Some(old.as_bytes()))
        .await
        .unwrap();
    assert_eq!(schema(&control).await.records, AcceptedRecords::All);

    use AcceptedRecords::{All, Authenticated, Migrating};
    for (to, expected) in [
        (All, All),
        (Migrating, Migrating),
        (All, Migrating),
        (Authenticated, Authenticated),
    ] {
        control.accept_records(&app, &name, to).await.unwrap();
        assert_eq!(schema(&control).await.records, expected);
    }
    for to in [All, Migrating, Authenticated] {
        control.accept_records(&app, &name, to).await.unwrap();
        assert_eq!(schema(&control).await.records, Authenticated);
    }
    alter(&control, drop_name(), None).await.unwrap();
    let set = CollectionRulesChange {
        expires_s: Some(None),
        retention_s: None,
    };
    control.change_rules(&app, &name, set).await.unwrap();
    assert_eq!(
        schema(&control).await.records,
        Authenticated,
        "other changes leave the mark"
    );
    let unknown = text.replacen("\"authenticated\"", "\"some\"", 1);
    store
        .commit(
            store.generation().await.unwrap(),
            key,
            Some(unknown.as_bytes()),
        )
        .await
        .unwrap();
    assert!(
        matches!(control.load().await, Err(StoreError::Damaged { .. })),
        "a state that is not known"
    );
}

#[tokio::test]
async fn a_record_that_is_no_schema_is_damaged() {
    let (control, store) = with_people().await;
    let text = String::from_utf8(
        store
            .read("collection/shop/people")
            .await
            .unwrap()
            .1
            .unwrap(),
    )
    .unwrap();
    for (from, to) in [
        ("\"type\":\"email\"", "\"type\":\"fax\""),
        ("\"suite\":\"xaes\"", "\"suite\":\"rot13\""),
        ("\"kind\":\"objects\"", "\"kind\":\"random\""),
        ("\"name\":\"city\"", "\"name\":\"City\""),
        ("\"name\":\"city\"", "\"name\":\"email\""),
        ("\"prefixes\":[3]", "\"prefixes\":[3,3]"),
        ("\"next\":", "\"more\":1,\"next\":"),
        // The numbers of the maps of data subjects.
        ("\"number\":1,\"kind\"", "\"number\":2147483647,\"kind\""),
        ("\"number\":1,\"kind\"", "\"number\":2147483646,\"kind\""),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from}");
        let base = store.generation().await.unwrap();
        store
            .commit(base, "collection/shop/people", Some(changed.as_bytes()))
            .await
            .unwrap();
        assert!(
            matches!(control.load().await, Err(StoreError::Damaged { .. })),
            "{to}"
        );
    }
}

#[tokio::test]
async fn a_change_is_made_at_once_or_explained() {
    let (control, _) = with_people().await;
    let before = schema(&control).await;
    let changed = alter(&control, drop_name(), None).await.unwrap();
    let after = schema(&control).await;
    assert_eq!(changed.collection.collection.schema(), Some(&after));
    assert!(after.property("name").is_none() && after.next_number == before.next_number);
    assert_eq!(after.dropped[0].generation, changed.generation);
    let refused = alter(&control, drop_name(), None).await;
    assert!(
        matches!(&refused, Err(StoreError::Invalid(_))),
        "{refused:?}"
    );
    let not_null = PropertySpec {
        nullable: false,
        ..spec("age", PropertyType::Integer)
    };
    let refused = alter(
        &control,
        SchemaChange {
            add: vec![not_null],
            ..SchemaChange::default()
        },
        None,
    )
    .await;
    assert!(
        matches!(&refused, Err(StoreError::Invalid(_))),
        "{refused:?}"
    );
    control
        .create_collection(&app("shop"), &name("cards"), PLAIN)
        .await
        .unwrap();
    let tokens = control
        .alter_collection(&app("shop"), &name("cards"), drop_name(), None)
        .await;
    assert!(
        matches!(&tokens, Err(StoreError::Invalid(why)) if why.contains("tokens")),
        "{tokens:?}"
    );
    let missing = control
        .alter_collection(&app("shop"), &name("none"), drop_name(), None)
        .await;
    assert!(matches!(missing, Err(StoreError::NoCollection { .. })));
}

#[tokio::test]
async fn the_name_of_a_dropped_property_waits_for_engines_and_for_the_fence() {
    let (control, store) = with_people().await;
    let old = Instance {
        id: "old".into(),
        address: String::new(),
        version: String::new(),
        generation: 0,
        age: NOW,
    };
    let beat = async |generation| {
        store
            .beat(&Instance {
                generation,
                ..old.clone()
            })
            .await
            .unwrap()
    };
    let reused = async || {
        control
            .reused_property(&app("shop"), &name("people"), &add_name())
            .await
    };
    let before = control.generation().await.unwrap();
    beat(before).await;
    assert!(reused().await.is_err(), "the name is in use");
    let dropped = alter(&control, drop_name(), None).await.unwrap().generation;
    for generation in [before, dropped - 1] {
        beat(generation).await;
        let refused = reused().await;
        assert!(
            matches!(&refused, Err(StoreError::Conflict { generation, .. }) if *generation == dropped),
            "{refused:?}"
        );
        let refused = alter(&control, add_name(), Some(dropped)).await;
        assert!(
            matches!(&refused, Err(StoreError::Conflict { .. })),
            "{refused:?}"
        );
    }
    beat(dropped).await;
    let map = MapId {
        app: 1,
        collection: 1,
    };
    assert_eq!(reused().await.unwrap(), Some((map, dropped)));
    for fence in [None, Some(dropped - 1)] {
        assert!(
            matches!(
                alter(&control, add_name(), fence).await,
                Err(StoreError::Unavailable(_))
            ),
            "{fence:?}"
        );
    }
    alter(&control, add_name(), Some(dropped)).await.unwrap();
    let after = schema(&control).await;
    assert_eq!(
        after.property("name").unwrap().property_type,
        PropertyType::String
    );
    assert_ne!(
        after.property("name").unwrap().number,
        people().property("name").unwrap().number
    );
    // A name that was never used waits for nobody.
    beat(0).await;
    let other = SchemaChange {
        add: vec![spec("age", PropertyType::Integer)],
        ..SchemaChange::default()
    };
    assert_eq!(
        control
            .reused_property(&app("shop"), &name("people"), &other)
            .await
            .unwrap(),
        None
    );
    alter(&control, other, None).await.unwrap();
}
