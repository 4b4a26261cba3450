//! Grants for properties: what a role reads, through which mask, finds by, and writes.

use sealwire_client::control::CheckRequest;
use sealwire_client::{Client, ErrorCode, Page, PropertyDisclosure};

use super::{Vault, code, connect, doc, map, one_vault, rpc_error, run, text};
use crate::e2e::access::{NOBODY, grant_role};

const ANNA: &str =
    r#"[{"email": "anna@example.com", "name": "Anna", "card": "4111111111111111", "age": 41}]"#;

impl Vault {
    /// Returns a client with these grants alone.
    async fn limited(&self, grants: &[&str]) -> Client {
        grant_role(&self.operator, NOBODY, "limited", grants).await;
        connect(&self.harness, self.harness.address, NOBODY).await
    }
}

async fn properties(client: &Client, id: &str, disclosure: PropertyDisclosure<'_>) -> Vec<String> {
    let found = client
        .objects_get(map(), &[id], disclosure)
        .await
        .unwrap()
        .objects
        .remove(0)
        .unwrap();
    found
        .properties
        .iter()
        .map(|(name, value)| format!("{name}={}", text(value)))
        .collect()
}

#[test]
fn a_role_sees_the_properties_of_its_grants_through_their_masks() {
    run(async {
        let vault = one_vault().await;
        let id = vault.add(ANNA).await.unwrap().remove(0).id;
        let support = vault
            .limited(&[
                "objects.get apps=shop collections=people properties=card mask=partial(last=4)",
                "objects.get apps=shop collections=people properties=name reason",
            ])
            .await;
        let all = PropertyDisclosure::default;
        assert_eq!(
            properties(&support, &id, all()).await,
            ["card=\"************1111\""]
        );
        let because = map().reason("ticket 7");
        let found = support
            .objects_get(because, &[&id], all())
            .await
            .unwrap()
            .objects
            .remove(0)
            .unwrap();
        assert_eq!(
            found
                .properties
                .iter()
                .map(|(name, _)| &**name)
                .collect::<Vec<_>>(),
            ["name", "card"]
        );
        let named = |name| PropertyDisclosure::new().properties([name]).masked(false);
        for name in ["name", "email", "shoe"] {
            let error = rpc_error(support.objects_get(map(), &[&id], named(name)).await);
            assert_eq!(error.code, ErrorCode::Forbidden, "{name}");
            assert!(
                error
                    .message
                    .contains(&format!("objects.get for property {name}")),
                "{}",
                error.message
            );
        }
        // A request can ask for less than its role shows.
        let masked = PropertyDisclosure::new()
            .properties(["name", "card", "age"])
            .masked(true);
        let shown = properties(&vault.client, &id, masked).await;
        assert!(
            !shown[0].contains("Anna") && shown[1].contains("1111") && !shown[2].contains("41"),
            "{shown:?}"
        );
        let clauses = doc(r#"[{"property": "card", "eq": "4111111111111111"}]"#);
        let found = support
            .objects_query(map(), &clauses, all(), Page::new())
            .await;
        assert_eq!(code(found), ErrorCode::Forbidden);
    });
}

#[test]
fn finding_and_writing_need_grants_of_their_own() {
    run(async {
        let vault = one_vault().await;
        let id = vault.add(ANNA).await.unwrap().remove(0).id;
        let finder = vault
            .limited(&[
                "objects.query apps=shop collections=people properties=email",
                "objects.update apps=shop collections=people properties=age",
                "objects.add apps=shop collections=people properties=email",
            ])
            .await;
        let query = async |clauses: &str| {
            finder
                .objects_query(
                    map(),
                    &doc(clauses),
                    PropertyDisclosure::default(),
                    Page::new(),
                )
                .await
        };
        let found = query(r#"[{"property": "email", "eq": "anna@example.com"}]"#)
            .await
            .unwrap()
            .objects
            .remove(0)
            .unwrap();
        assert_eq!(
            (&found.id, found.properties.len()),
            (&id, 0),
            "found, and nothing of it is read"
        );
        let error = rpc_error(
            query(
                r#"[{"property": "email", "eq": "a@example.com"}, {"property": "age", "eq": 41}]"#,
            )
            .await,
        );
        assert_eq!(error.code, ErrorCode::Forbidden);
        assert!(
            error.message.contains("objects.query for property age"),
            "{}",
            error.message
        );
        let update = async |set: &str| {
            finder
                .objects_update(map(), &doc(&format!(r#"[{{"id": "{id}", "set": {set}}}]"#)))
                .await
        };
        update(r#"{"age": 42}"#).await.unwrap();
        assert_eq!(
            code(update(r#"{"age": 42, "name": "Eve"}"#).await),
            ErrorCode::Forbidden
        );
        let add = async |objects: &str| {
            let objects = doc(objects);
            let add = sealwire_client::AddObjects::new(&objects);
            finder.objects_add(map(), add).await
        };
        add(r#"[{"email": "b@example.com"}]"#).await.unwrap();
        assert_eq!(
            code(add(r#"[{"email": "c@example.com", "age": 1}]"#).await),
            ErrorCode::Forbidden
        );
        assert_eq!(
            code(finder.objects_delete(map(), &[&id], None).await),
            ErrorCode::Forbidden
        );
        assert_eq!(
            (
                vault.value(&id, "age").await,
                vault.value(&id, "name").await
            ),
            ("42".into(), "\"Anna\"".into())
        );
    });
}

#[test]
fn a_check_explains_properties() {
    run(async {
        let vault = one_vault().await;
        let _client = vault
            .limited(&[
                "objects.get apps=shop collections=people properties=card mask=partial(last=4)",
                "objects.get apps=shop collections=people properties=name until=2020-01-01T00:00:00Z",
            ])
            .await;
        let check = async |operation, property| {
            let (app, collection) = (Some("shop"), Some("people"));
            let call = CheckRequest::new(NOBODY, operation)
                .app(app)
                .collection(collection)
                .property(property);
            vault.operator.check(call).await
        };
        let card = check("objects.get", Some("card")).await.unwrap();
        assert_eq!(
            (card.permitted, card.mask.as_deref()),
            (true, Some("partial(last=4)"))
        );
        for (operation, property) in [
            ("objects.get", "name"),
            ("objects.get", "email"),
            ("objects.query", "card"),
        ] {
            assert!(
                !check(operation, Some(property)).await.unwrap().permitted,
                "{operation} {property}"
            );
        }
        assert_eq!(
            code(check("encrypt", Some("card")).await),
            ErrorCode::BadRequest
        );
    });
}
