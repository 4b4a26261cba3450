//! Objects found by their indexed properties.

use sealwire_client::{Error, ErrorCode, Objects, PropertyDisclosure};

use super::{Vault, code, doc, map, one_vault, rpc_error, run, text, vaults};

impl Vault {
    async fn query(
        &self,
        clauses: &str,
        after: Option<&str>,
        limit: Option<u32>,
    ) -> Result<Objects, Error> {
        let named = PropertyDisclosure {
            properties: Some(vec!["email"]),
            masked: false,
        };
        self.client
            .objects_query(map(), &doc(clauses), named, after, limit)
            .await
    }

    /// Returns the sorted local parts of the addresses of the objects that a query finds, page by
    /// page.
    async fn found(&self, clauses: &str, limit: u32) -> String {
        let (mut names, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self
                .query(clauses, after.as_deref(), Some(limit))
                .await
                .unwrap();
            assert!(page.objects.len() <= limit as usize);
            for object in page.objects.into_iter().flatten() {
                names.push(
                    text(&object.properties[0].1)
                        .trim_matches('"')
                        .split('@')
                        .next()
                        .unwrap()
                        .to_owned(),
                );
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        names.sort_unstable();
        names.join(" ")
    }
}

#[test]
fn a_query_finds_what_its_clauses_say() {
    run(async {
        for vault in vaults().await {
            vault
                .add(
                    r#"[{"email": "a@example.com", "name": "Straße Anna", "phone": "+49 89 111 2222", "city": "Bern", "age": 7},
                    {"email": "b@example.com", "name": "STRASSE anna", "phone": "0049-89-111-2222", "city": "bern", "age": 7},
                    {"email": "c@example.com", "name": "Müller", "phone": "+41 44 111 22 33", "city": "Bern", "age": 8},
                    {"email": "d@example.com", "name": "Mu", "city": "Bern"}]"#,
                )
                .await
                .unwrap();
            for (clauses, expected) in [
                (r#"[{"property": "email", "eq": "A@EXAMPLE.com"}]"#, "a"),
                (
                    r#"[{"property": "email", "in": ["d@example.com", "c@example.com", "c@example.com", "x@example.com"]}]"#,
                    "c d",
                ),
                (r#"[{"property": "name", "eq": "strasse  ANNA"}]"#, "a b"),
                (r#"[{"property": "name", "eq": "Strasse"}]"#, ""),
                (
                    r#"[{"property": "phone", "eq": "+49 (89) 1112222"}]"#,
                    "a b",
                ),
                (r#"[{"property": "city", "eq": "Bern"}]"#, "a c d"),
                (r#"[{"property": "age", "in": [7, 8, 9]}]"#, "a b c"),
                (
                    r#"[{"property": "age", "eq": 7}, {"property": "city", "eq": "Bern"}]"#,
                    "a",
                ),
                (
                    r#"[{"property": "age", "eq": 8}, {"property": "city", "eq": "bern"}]"#,
                    "",
                ),
                (r#"[{"property": "name", "prefix": "m"}]"#, "c d"),
                (r#"[{"property": "name", "prefix": "MÜL"}]"#, "c"),
                (
                    r#"[{"property": "name", "prefix": "Strasse A"}, {"property": "city", "in": ["Bern", "bern"]}]"#,
                    "a b",
                ),
                (r#"[{"property": "name", "prefix": "Strassen"}]"#, ""),
            ] {
                for limit in [1, 2, 500] {
                    assert_eq!(
                        vault.found(clauses, limit).await,
                        expected,
                        "{clauses} {limit}"
                    );
                }
            }
        }
    });
}

#[test]
fn invalid_queries_are_explained() {
    run(async {
        let vault = one_vault().await;
        for (clauses, message) in [
            (
                r#"[{"property": "iban", "eq": "DE89370400440532013000"}]"#,
                "names a property without an index",
            ),
            (
                r#"[{"property": "shoe", "eq": 1}]"#,
                "names no property of the collection",
            ),
            (
                r#"[{"property": "age", "eq": "7"}]"#,
                "a value of type integer must",
            ),
            (
                r#"[{"property": "age", "prefix": "7"}]"#,
                "names a property without prefixes",
            ),
            (
                r#"[{"property": "name", "prefix": ""}]"#,
                "must not be empty, also as a prefix",
            ),
            (
                r#"[{"property": "name", "prefix": 7}]"#,
                "prefix must be text",
            ),
            (
                r#"[{"property": "age", "in": []}]"#,
                "in must be an array of 1 to 64 values",
            ),
            (
                r#"[{"property": "age", "above": 7}]"#,
                "must be a map of property and one of eq, in, prefix",
            ),
            (
                r#"[{"property": "age"}]"#,
                "must be a map of property and one of eq, in, prefix",
            ),
            (
                r#"[7]"#,
                "must be a map of property and one of eq, in, prefix",
            ),
        ] {
            let error = rpc_error(vault.query(clauses, None, None).await);
            assert_eq!(error.code, ErrorCode::BadRequest);
            assert!(
                error.message.contains(message),
                "{clauses}: {}",
                error.message
            );
        }
    });
}

#[test]
fn a_cursor_is_of_its_query() {
    run(async {
        let vault = one_vault().await;
        let object = |at: usize| {
            format!(
                r#"{{"email": "a{at}@example.com", "city": "Bern", "age": {}}}"#,
                at % 2
            )
        };
        let objects: Vec<String> = (0..6).map(object).collect();
        vault
            .add(&format!("[{}]", objects.join(",")))
            .await
            .unwrap();
        let (bern, ages) = (
            r#"[{"property": "city", "eq": "Bern"}]"#,
            r#"[{"property": "age", "eq": 1}]"#,
        );
        let next = vault
            .query(bern, None, Some(2))
            .await
            .unwrap()
            .next
            .unwrap();
        assert_eq!(
            vault
                .query(bern, Some(&next), None)
                .await
                .unwrap()
                .objects
                .len(),
            4
        );
        let id = next.split_once('.').unwrap().0;
        let other = if next.as_bytes()[35] == b'0' {
            '1'
        } else {
            '0'
        };
        let forged = format!("{}{other}.{}", &next[..35], &next[37..]);
        for (clauses, cursor) in [(ages, &*next), (bern, id), (bern, &forged), (bern, "x")] {
            assert_eq!(
                code(vault.query(clauses, Some(cursor), None).await),
                ErrorCode::BadRequest,
                "{cursor}"
            );
        }
    });
}
