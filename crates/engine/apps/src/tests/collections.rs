//! Tests of collections.

use super::*;

fn name(name: &str) -> CollectionName {
    CollectionName::new(name).unwrap()
}

fn rules(format: sealwire_records::token::Format) -> CollectionRules {
    CollectionRules {
        kind: CollectionKind::Deterministic,
        format,
        scope: Scope::Context,
        expires_s: Some(60),
        retention_s: None,
    }
}

pub(super) const PLAIN: CollectionRules = CollectionRules {
    kind: CollectionKind::Random,
    format: sealwire_records::token::Format::Opaque,
    scope: Scope::Collection,
    expires_s: None,
    retention_s: None,
};

#[tokio::test]
async fn a_collection_is_what_was_chosen_for_it() {
    let (control, _) = fresh();
    let shop = app("shop");
    control.create(&shop, &[]).await.unwrap();
    let ends = CardEnds::new(0, 4).unwrap();
    let formats = [
        sealwire_records::token::Format::Opaque,
        sealwire_records::token::Format::Uuid,
        sealwire_records::token::Format::Digits,
        sealwire_records::token::Format::Email,
        sealwire_records::token::Format::Card(CardEnds::default()),
        sealwire_records::token::Format::Card(ends),
    ];
    let mut all = Vec::new();
    for (at, format) in formats.into_iter().enumerate() {
        for (kind, scope) in [
            (CollectionKind::Random, Scope::Collection),
            (CollectionKind::OneWay, Scope::Context),
        ] {
            let rules = CollectionRules {
                kind,
                scope,
                ..rules(format)
            };
            let made = control
                .create_collection(&shop, &name(&format!("c{at}{}", kind.name())), rules)
                .await
                .unwrap();
            let found = (made.collection.collection.rules(), made.generation);
            assert_eq!(found, (Some(&rules), all.len() as u64 + 2));
            all.push(made.collection);
        }
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(control.collections(&shop).await.unwrap(), (13, all.clone()));
    let served = served(&control, "shop").await.unwrap();
    assert!(
        served
            .collections
            .iter()
            .eq(all.iter().map(|of| (&of.name, &of.collection)))
    );
    let found = served.collections.get("c0random").unwrap();
    assert_eq!(
        served.map(found),
        sealwire_store::MapId {
            app: served.number,
            collection: found.number
        }
    );
    let mut numbers: Vec<u32> = all.iter().map(|of| of.collection.number).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=12));
}

#[tokio::test]
async fn only_the_times_of_a_collection_change() {
    let (control, _) = fresh();
    let shop = app("shop");
    control.create(&shop, &[]).await.unwrap();
    let made = control
        .create_collection(&shop, &name("cards"), PLAIN)
        .await
        .unwrap()
        .collection;
    let max = CollectionRules::EXPIRES_S_MAX;
    let mut expected = made.collection;
    let mut rules = PLAIN;
    // A time that is not given does not change.
    for (expires_s, retention_s) in [
        (Some(Some(1)), None),
        (None, Some(Some(0))),
        (Some(Some(max)), Some(Some(max))),
        (None, None),
        (Some(None), None),
        (None, Some(None)),
    ] {
        rules.expires_s = expires_s.unwrap_or(rules.expires_s);
        rules.retention_s = retention_s.unwrap_or(rules.retention_s);
        expected.content = CollectionContent::Tokens(rules);
        let change = CollectionRulesChange {
            expires_s,
            retention_s,
        };
        let set = control
            .change_rules(&shop, &name("cards"), change)
            .await
            .unwrap()
            .collection
            .collection;
        assert_eq!(set, expected, "{change:?}");
        assert_eq!(
            control.collections(&shop).await.unwrap().1[0].collection,
            set
        );
        assert_eq!(
            served(&control, "shop").await.unwrap().collections[&name("cards")],
            set
        );
    }
    let before = control.generation().await.unwrap();
    for (expires_s, retention_s) in [
        (Some(0), None),
        (Some(max + 1), None),
        (None, Some(max + 1)),
    ] {
        let change = CollectionRulesChange {
            expires_s: expires_s.map(Some),
            retention_s: retention_s.map(Some),
        };
        let refused = control.change_rules(&shop, &name("cards"), change).await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))));
        let refused = control
            .create_collection(
                &shop,
                &name("new"),
                CollectionRules {
                    expires_s,
                    retention_s,
                    ..PLAIN
                },
            )
            .await;
        assert!(matches!(refused, Err(StoreError::Invalid(_))));
    }
    assert_eq!(control.generation().await.unwrap(), before);
}

#[tokio::test]
async fn a_collection_is_refused_where_it_is_not_or_is_already() {
    let (control, _) = fresh();
    let shop = app("shop");
    let nobody = app("nobody");
    let cards = name("cards");
    control.create(&shop, &[]).await.unwrap();
    assert!(matches!(
        control.create_collection(&nobody, &cards, PLAIN).await,
        Err(StoreError::NoApp { .. })
    ));
    assert!(matches!(
        control.collections(&nobody).await,
        Err(StoreError::NoApp { .. })
    ));
    assert!(matches!(
        control
            .change_rules(&shop, &cards, CollectionRulesChange::default())
            .await,
        Err(StoreError::NoCollection { .. })
    ));
    assert!(matches!(
        control.delete_collection(&shop, &cards).await,
        Err(StoreError::NoCollection { .. })
    ));
    control
        .create_collection(&shop, &cards, PLAIN)
        .await
        .unwrap();
    let refused = control.create_collection(&shop, &cards, PLAIN).await;
    assert!(matches!(refused, Err(StoreError::CollectionExists { .. })));
    // Collections of another app have a separate namespace.
    control.create(&app("other"), &[]).await.unwrap();
    let other = control
        .create_collection(&app("other"), &cards, PLAIN)
        .await
        .unwrap();
    assert_eq!(other.collection.collection.number, 1);
    control.delete(&shop, Target::App, WEEK).await.unwrap();
    let refused = control.create_collection(&shop, &name("late"), PLAIN).await;
    assert!(matches!(refused, Err(StoreError::Deleted { .. })));
    for bad in ["", ".hidden", "a/b", "a b", "\u{e9}", &"x".repeat(65)] {
        assert!(
            matches!(CollectionName::new(bad), Err(StoreError::Invalid(_))),
            "{bad}"
        );
    }
}

#[tokio::test]
async fn a_collections_name_is_used_again_when_it_is_safe_and_its_number_never() {
    let (control, _) = fresh();
    let shop = app("shop");
    let cards = name("cards");
    control.create(&shop, &[]).await.unwrap();
    control
        .create_collection(&shop, &cards, PLAIN)
        .await
        .unwrap();
    control.beat(&instance("a", 2)).await.unwrap();
    let gone = control.delete_collection(&shop, &cards).await.unwrap();
    assert_eq!((gone.generation, gone.collection.collection.number), (3, 1));
    assert!(control.collections(&shop).await.unwrap().1.is_empty());
    assert!(
        served(&control, "shop")
            .await
            .unwrap()
            .collections
            .is_empty()
    );
    assert!(matches!(
        control.delete_collection(&shop, &cards).await,
        Err(StoreError::NoCollection { .. })
    ));
    let refused = control.create_collection(&shop, &cards, PLAIN).await;
    assert!(
        matches!(refused, Err(StoreError::Conflict { generation: 3, .. })),
        "{refused:?}"
    );
    control.beat(&instance("a", 3)).await.unwrap();
    assert_eq!(
        control
            .create_collection(&shop, &cards, PLAIN)
            .await
            .unwrap()
            .collection
            .collection
            .number,
        2
    );
    assert_eq!(
        control
            .create_collection(&shop, &name("new"), PLAIN)
            .await
            .unwrap()
            .collection
            .collection
            .number,
        3
    );
    assert_eq!(
        control.maintain(u64::MAX).await.unwrap(),
        0,
        "tombstones stay"
    );
}

#[tokio::test]
async fn collections_go_with_their_app_and_another_of_its_name_has_none() {
    let (control, store) = fresh();
    let shop = app("shop");
    control.create(&shop, &[]).await.unwrap();
    for of in ["a", "b", "c"] {
        control
            .create_collection(&shop, &name(of), PLAIN)
            .await
            .unwrap();
    }
    control.delete_collection(&shop, &name("c")).await.unwrap();
    control.delete(&shop, Target::App, NOW).await.unwrap();
    // The app is removed first. A new app of that name must not find the old collections.
    let tombstone = control
        .read(|contents| Ok(removal(contents, u64::MAX)))
        .await
        .unwrap()
        .unwrap();
    let base = control.generation().await.unwrap();
    assert_eq!(tombstone.key, "app/shop");
    store
        .commit(base, &tombstone.key, tombstone.record.as_deref())
        .await
        .unwrap();
    control.create(&shop, &[]).await.unwrap();
    assert!(control.collections(&shop).await.unwrap().1.is_empty());
    let made = control
        .create_collection(&shop, &name("a"), PLAIN)
        .await
        .unwrap();
    assert_eq!(
        made.collection.collection.number, 1,
        "in an app of another number"
    );
    assert_eq!(control.load().await.unwrap().removal_unix_s, Some(0));
    assert_eq!(control.maintain(0).await.unwrap(), 2);
    assert_eq!(control.load().await.unwrap().removal_unix_s, None);
    assert_eq!(
        store
            .load()
            .await
            .unwrap()
            .records
            .into_keys()
            .collect::<Vec<_>>(),
        ["app/shop", "collection/shop/a"]
    );
}

#[tokio::test]
async fn a_map_is_deleted_only_if_it_was_there() {
    let (control, _) = fresh();
    let shop = app("shop");
    let other = app("other");
    let cards = name("cards");
    let map = |app, collection| sealwire_store::MapId { app, collection };
    let live = |app: &AppId, retention_s| MapState::Live {
        app: app.clone(),
        collection: cards.clone(),
        retention_s,
    };
    let deleted = |app: Option<&AppId>, collection: Option<&CollectionName>| MapState::Deleted {
        app: app.cloned(),
        collection: collection.cloned(),
    };
    let nothing = control.map_states().await.unwrap();
    control.create(&shop, &[]).await.unwrap();
    control
        .create_collection(&shop, &cards, PLAIN)
        .await
        .unwrap();
    let early = control.map_states().await.unwrap();
    control
        .change_rules(
            &shop,
            &cards,
            CollectionRulesChange {
                retention_s: Some(Some(9)),
                expires_s: None,
            },
        )
        .await
        .unwrap();
    let kept = control.map_states().await.unwrap();
    control.delete_collection(&shop, &cards).await.unwrap();
    let gone = control.map_states().await.unwrap();
    control
        .create_collection(&shop, &cards, PLAIN)
        .await
        .unwrap();
    control.create(&other, &[]).await.unwrap();
    control
        .create_collection(&other, &cards, PLAIN)
        .await
        .unwrap();
    let again = control.map_states().await.unwrap();
    control.delete(&shop, Target::App, WEEK).await.unwrap();
    let leaving = control.map_states().await.unwrap();
    control.delete(&shop, Target::App, NOW).await.unwrap();
    control.maintain(u64::MAX).await.unwrap();
    let left = control.map_states().await.unwrap();
    control.create(&shop, &[]).await.unwrap();
    let renewed = control.map_states().await.unwrap();
    // Records that are older than a map say nothing about the map.
    for (what, states, expected) in [
        (map(1, 1), &nothing, MapState::Unknown),
        (map(1, 1), &early, live(&shop, None)),
        (map(1, 2), &early, MapState::Unknown),
        (map(2, 1), &early, MapState::Unknown),
        (map(1, 1), &kept, live(&shop, Some(9))),
        (map(1, 1), &gone, deleted(Some(&shop), Some(&cards))),
        (map(1, 2), &gone, MapState::Unknown),
        (map(1, 1), &again, deleted(Some(&shop), None)),
        (map(1, 2), &again, live(&shop, None)),
        (map(2, 1), &again, live(&other, None)),
        (map(1, 2), &leaving, live(&shop, None)),
        (map(1, 1), &left, deleted(Some(&shop), None)),
        (map(1, 2), &left, deleted(Some(&shop), None)),
        (map(1, 9), &left, deleted(Some(&shop), None)),
        (map(2, 1), &left, live(&other, None)),
        (map(1, 2), &renewed, deleted(None, None)),
        (map(2, 1), &renewed, live(&other, None)),
        (map(3, 1), &renewed, MapState::Unknown),
        (map(4, 1), &renewed, MapState::Unknown),
    ] {
        assert_eq!(
            states.of(what),
            expected,
            "{what:?} at {}",
            states.generation()
        );
    }
}
