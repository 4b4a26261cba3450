//! Changes of a schema while objects are there.

use sealwire_client::control::{
    AlterCollection, CollectionOperation, CollectionRequest, CreateCollection, Kind, Page,
    PropertySpec,
};
use sealwire_client::{ErrorCode, PropertyDisclosure};
use sealwire_wire::control::Collection;

use super::{APP, PEOPLE, Vault, code, map, one_vault, rpc_error, run, vaults};

impl Vault {
    async fn collection(&self) -> Collection {
        let found = self
            .operator
            .collections(APP, Page::default())
            .await
            .unwrap()
            .collections;
        found
            .into_iter()
            .find(|collection| collection.collection == PEOPLE)
            .unwrap()
    }
}

fn drop_property(name: &str) -> AlterCollection<'_> {
    AlterCollection {
        drop: vec![name],
        ..AlterCollection::default()
    }
}

fn add_property(spec: PropertySpec<'_>) -> AlterCollection<'_> {
    AlterCollection {
        add: vec![spec],
        ..AlterCollection::default()
    }
}

#[test]
fn properties_come_and_go_under_objects() {
    run(async {
        for vault in vaults().await {
            let id = vault
                .add(r#"[{"email": "a@example.com", "age": 41, "name": "Anna"}]"#)
                .await
                .unwrap()
                .remove(0)
                .id;
            vault
                .alter(add_property(PropertySpec::new("nick", "string")))
                .await
                .unwrap();
            assert_eq!(vault.value(&id, "nick").await, "null");
            vault
                .update(&format!(
                    r#"[{{"id": "{id}", "set": {{"nick": "Annie"}}}}]"#
                ))
                .await
                .unwrap();
            vault.alter(drop_property("age")).await.unwrap();
            let named = PropertyDisclosure {
                properties: Some(vec!["age"]),
                masked: false,
            };
            assert_eq!(
                code(vault.client.objects_get(map(), &[&id], named).await),
                ErrorCode::BadRequest
            );
            assert_eq!(
                code(vault.add(r#"[{"email": "b@example.com", "age": 1}]"#).await),
                ErrorCode::BadRequest
            );
            // The name with another type: nothing of the dropped values appears.
            let age = PropertySpec {
                index: true,
                ..PropertySpec::new("age", "string")
            };
            vault.alter_waiting(add_property(age)).await;
            assert_eq!(
                (
                    vault.value(&id, "age").await,
                    vault.value(&id, "nick").await
                ),
                ("null".into(), "\"Annie\"".into())
            );
            vault
                .update(&format!(r#"[{{"id": "{id}", "set": {{"age": "old"}}}}]"#))
                .await
                .unwrap();
            assert_eq!(vault.value(&id, "age").await, "\"old\"");
            // A row that is written again holds no term of a dropped property.
            let row = vault.rows().await.remove(0);
            let known = [row.unique.len(), row.terms.len()];
            assert_eq!(known, [1, 4], "email; name with two prefixes, and age");
        }
    });
}

#[test]
fn relaxed_properties_accept_more_at_once() {
    run(async {
        for vault in vaults().await {
            vault
                .add(r#"[{"email": "a@example.com", "city": "Bern"}]"#)
                .await
                .unwrap();
            let relaxed = AlterCollection {
                allow_duplicates: vec!["email"],
                allow_null: vec!["email"],
                drop_index: vec!["city"],
                ..AlterCollection::default()
            };
            vault.alter(relaxed).await.unwrap();
            vault
                .add(r#"[{"email": "a@example.com"}, {"email": "a@example.com"}, {"name": "X"}]"#)
                .await
                .unwrap();
            let clauses = super::doc(r#"[{"property": "email", "eq": "a@example.com"}]"#);
            let found = vault
                .client
                .objects_query(map(), &clauses, PropertyDisclosure::default(), None, None)
                .await
                .unwrap();
            assert_eq!(
                found.objects.len(),
                3,
                "also the one that is unique in the index"
            );
            let collection = vault.collection().await;
            let property = |name: &str| {
                collection
                    .properties
                    .iter()
                    .find(|of| of.name == name)
                    .unwrap()
            };
            assert!(
                property("email").nullable && !property("email").unique && property("email").index
            );
            assert!(!property("city").index);
        }
    });
}

#[test]
fn invalid_schema_changes_are_explained() {
    run(async {
        let vault = one_vault().await;
        let spec = PropertySpec::new;
        for (alter, message) in [
            (AlterCollection::default(), "name a change"),
            (drop_property("shoe"), "shoe"),
            (add_property(spec("age", "string")), "age"),
            (
                add_property(spec("x", "fax")),
                "must be one of string, integer",
            ),
            (
                add_property(PropertySpec {
                    nullable: false,
                    ..spec("x", "string")
                }),
                "nullable",
            ),
            (
                add_property(PropertySpec {
                    index: true,
                    ..spec("x", "boolean")
                }),
                "index",
            ),
            (
                add_property(PropertySpec {
                    index: true,
                    prefixes: vec![2],
                    ..spec("x", "name")
                }),
                "accept_leak",
            ),
            (
                add_property(PropertySpec {
                    encrypted: false,
                    ..spec("x", "card")
                }),
                "card",
            ),
            (add_property(spec("Bad Name", "string")), "a-z"),
        ] {
            let error = rpc_error(vault.alter(alter.clone()).await);
            assert_eq!(error.code, ErrorCode::BadRequest, "{alter:?}");
            assert!(
                error.message.contains(message),
                "{alter:?}: {}",
                error.message
            );
        }
        let tokens = CollectionOperation::Create(CreateCollection::new(Kind::Random));
        vault
            .operator
            .change_collection(CollectionRequest {
                app: APP,
                collection: "cards",
                operation: tokens,
            })
            .await
            .unwrap();
        let of_tokens = sealwire_client::TokenMap::new(APP, "cards");
        let found = vault
            .client
            .objects_get(of_tokens, &["x"], PropertyDisclosure::default())
            .await;
        assert!(rpc_error(found).message.contains("has tokens"));
        let found = vault.client.tokens_get(map(), &["x"]).await;
        assert!(rpc_error(found).message.contains("has objects"));
    });
}
