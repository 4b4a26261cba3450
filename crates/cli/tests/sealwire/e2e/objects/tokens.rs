//! Tests of tokens that name a data subject: read, exported and erased with the subject's objects,
//! on every store.

use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_client::{
    CollectionTarget, Detokenize, Document, Listing, Page, SubjectErasure, TokenSearch, Tokenize,
};
use sealwire_records::token::Format;
use sealwire_store::{ObjectGroup, ObjectId, ObjectsWritten, SubjectClaim, SubjectId};

use super::subjects::{ANNA, named};
use super::*;
use crate::e2e::audit::records;
use CollectionKind::{Deterministic, OneWay, Random};

const KINDS: [(CollectionKind, &str); 3] = [
    (Random, "random"),
    (Deterministic, "deterministic"),
    (OneWay, "one_way"),
];
const CARDS: &str = r#"["4242424242424242", "5555555555554444"]"#;

impl Vault {
    async fn create_token_maps(&self) {
        for (kind, name) in KINDS {
            let rules = CollectionRules {
                kind,
                format: Format::Opaque,
                scope: Scope::Collection,
                expires_s: None,
                retention_s: None,
            };
            self.harness.create_collection(APP, name, rules).await;
        }
    }

    async fn try_tokenize(
        &self,
        collection: &str,
        document: &str,
        subject: Option<&str>,
    ) -> Result<Document, sealwire_client::Error> {
        let payload = doc(document);
        self.client
            .tokenize(Tokenize::new(APP, collection, &payload).subject(subject))
            .await
    }

    /// Returns the tokens of [`CARDS`].
    async fn tokens(&self, collection: &str, subject: Option<&str>) -> Vec<String> {
        let tokens = self.try_tokenize(collection, CARDS, subject).await.unwrap();
        serde_json::from_str(&text(&tokens.payload)).unwrap()
    }

    async fn try_detokenize(
        &self,
        collection: &str,
        tokens: &[String],
    ) -> Result<String, sealwire_client::Error> {
        let payload = doc(&serde_json::to_string(tokens).unwrap());
        let found = self
            .client
            .detokenize(Detokenize::new(APP, collection, &payload))
            .await?;
        Ok(text(&found.payload))
    }

    async fn find_token(&self, collection: &str, subject: Option<&str>) -> Option<String> {
        let value = doc(r#""4242424242424242""#);
        let search = TokenSearch::new(&value).subject(subject);
        self.client
            .tokens_find(CollectionTarget::new(APP, collection), search)
            .await
            .unwrap()
            .token
    }

    async fn listed(&self, collection: &str) -> usize {
        let listed = self
            .client
            .tokens_list(CollectionTarget::new(APP, collection), Listing::default())
            .await
            .unwrap();
        assert!(listed.tokens.iter().all(Option::is_some));
        listed.tokens.len()
    }

    /// Returns the collection, the token and the value of each exported token.
    async fn exported_tokens(
        &self,
        name: &str,
        limit: u32,
    ) -> Vec<(String, String, Option<String>)> {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self
                .client
                .subjects_export(
                    named(name),
                    Page::new().after(after.as_deref()).limit(limit),
                )
                .await
                .unwrap();
            assert!(page.tokens.len() <= limit as usize && page.unreadable.is_empty());
            let token = |token: &sealwire_client::SubjectToken| {
                token.value.as_ref().map(|value| text(value))
            };
            found.extend(
                page.tokens
                    .iter()
                    .map(|of| (page.collection.clone(), of.token.clone(), token(of))),
            );
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    }

    async fn erase_person(&self, name: &str) -> (bool, u64, u64, bool) {
        let erased = self
            .client
            .subjects_erase(named(name), SubjectErasure::new())
            .await
            .unwrap();
        (erased.erased, erased.objects, erased.tokens, erased.done)
    }

    /// Returns all rows of the subject in token maps.
    async fn token_rows(&self, name: &str) -> Vec<(MapId, sealwire_store::Row)> {
        let id = self.client.subjects_find(named(name)).await.unwrap().id;
        let id = SubjectId(u128::from_str_radix(&id, 16).unwrap().to_be_bytes());
        let operation = move |store: Arc<dyn sealwire_store::TokenStore>| async move {
            store.subject_rows(1, id, None, 100).await
        };
        self.harness
            .engine()
            .tokens()
            .unwrap()
            .sweep(1, operation)
            .await
            .unwrap()
    }
}

#[test]
fn tokens_of_a_subject_are_found_and_read_like_others() {
    run(async {
        for vault in vaults().await {
            vault.create_token_maps().await;
            for (kind, name) in KINDS {
                let (anna, bob) = (
                    vault.tokens(name, Some(ANNA)).await,
                    vault.tokens(name, Some("bob")).await,
                );
                let nobody = vault.tokens(name, None).await;
                let mut all = [&anna[..], &bob, &nobody].concat();
                match kind {
                    OneWay => {
                        let refused = vault.try_detokenize(name, &anna).await;
                        assert_eq!(code(refused), ErrorCode::Forbidden);
                    }
                    _ => {
                        let found = vault.try_detokenize(name, &all).await.unwrap();
                        let value = |_| ["\"4242424242424242\"", "\"5555555555554444\""];
                        assert_eq!(
                            found,
                            format!("[{}]", (0..3).flat_map(value).collect::<Vec<_>>().join(","))
                        );
                    }
                }
                // Equal values have equal tokens within a person only.
                let again = vault.tokens(name, Some(ANNA)).await;
                assert_eq!(again == anna, kind != Random);
                if kind != Random {
                    for (subject, tokens) in
                        [(Some(ANNA), &anna), (Some("bob"), &bob), (None, &nobody)]
                    {
                        assert_eq!(
                            vault.find_token(name, subject).await.as_ref(),
                            Some(&tokens[0])
                        );
                    }
                    assert_eq!(vault.find_token(name, Some("stranger")).await, None);
                }
                all.sort_unstable();
                all.dedup();
                assert_eq!(
                    (all.len(), vault.listed(name).await),
                    (6, if kind == Random { 8 } else { 6 })
                );
            }
            for wrong in ["", &"x".repeat(257)] {
                assert_eq!(
                    code(vault.try_tokenize("random", CARDS, Some(wrong)).await),
                    ErrorCode::BadRequest
                );
            }
        }
    });
}

#[test]
fn an_export_has_the_tokens_behind_the_objects() {
    run(async {
        for vault in vaults().await {
            vault.create_token_maps().await;
            vault
                .add_about(PEOPLE, r#"[{"email": "anna@example.com"}]"#, &[ANNA])
                .await;
            let mut expected = Vec::new();
            for (kind, name) in KINDS {
                vault.tokens(name, Some("bob")).await;
                for (token, value) in vault
                    .tokens(name, Some(ANNA))
                    .await
                    .into_iter()
                    .zip(["4242424242424242", "5555555555554444"])
                {
                    expected.push((
                        name.to_owned(),
                        token,
                        (kind != OneWay).then(|| format!("\"{value}\"")),
                    ));
                }
            }
            expected.sort_unstable();
            for limit in [1, 2, 100] {
                let mut found = vault.exported_tokens(ANNA, limit).await;
                found.sort_unstable();
                assert_eq!(found, expected, "{limit}");
            }
            // A value under a context, and one that is no string, are exported, too.
            let payload = doc(r#"{"a": [1, {"b": null}]}"#);
            let call = Tokenize::new(APP, "random", &payload)
                .context(b"orders")
                .select(["$.a"])
                .subject("eve");
            vault.client.tokenize(call).await.unwrap();
            let eve = vault.exported_tokens("eve", 10).await;
            assert_eq!(
                eve.iter()
                    .map(|(.., value)| value.as_deref())
                    .collect::<Vec<_>>(),
                [Some(r#"[1,{"b":null}]"#)]
            );
            assert_eq!(vault.exported_tokens("stranger", 10).await, []);
        }
    });
}

#[test]
fn an_erasure_reaches_tokens() {
    run(async {
        for vault in vaults().await {
            vault.create_token_maps().await;
            vault
                .add_about(PEOPLE, r#"[{"email": "anna@example.com"}]"#, &[ANNA])
                .await;
            let mut tokens = Vec::new();
            for (_, name) in KINDS {
                tokens.push((
                    name,
                    vault.tokens(name, Some(ANNA)).await,
                    vault.tokens(name, Some("bob")).await,
                ));
            }
            assert_eq!(vault.erase_person(ANNA).await, (true, 1, 6, true));
            assert_eq!(vault.token_rows(ANNA).await, []);
            assert_eq!(vault.exported_tokens(ANNA, 10).await, []);
            for (name, anna, bob) in &tokens {
                assert_eq!(
                    code(vault.try_detokenize(name, anna).await),
                    ErrorCode::NotFound
                );
                assert_eq!(vault.listed(name).await, 2);
                let there = vault
                    .client
                    .tokens_get(CollectionTarget::new(APP, name), &[&anna[0], &bob[0]])
                    .await
                    .unwrap();
                assert_eq!(
                    there.tokens.iter().map(Option::is_some).collect::<Vec<_>>(),
                    [false, true]
                );
            }
            assert_eq!(
                vault
                    .try_detokenize("random", &tokens[0].2)
                    .await
                    .unwrap()
                    .len(),
                39
            );
            // The same person can come back, with other tokens.
            let back = vault.tokens("deterministic", Some(ANNA)).await;
            assert!(back.iter().all(|token| !tokens[1].1.contains(token)));
            assert_eq!(vault.erase_person(ANNA).await, (true, 0, 2, true));
            assert_eq!(vault.erase_person(ANNA).await, (false, 0, 0, true));
        }
    });
}

#[test]
fn an_erasure_takes_effect_before_any_token_is_removed() {
    run(async {
        for vault in vaults().await {
            vault.create_token_maps().await;
            let mut tokens = Vec::new();
            for (_, name) in KINDS {
                tokens.push((name, vault.tokens(name, Some(ANNA)).await));
            }
            // As an engine does that is killed right then.
            let id = vault.client.subjects_find(named(ANNA)).await.unwrap().id;
            let id = ObjectId(u128::from_str_radix(&id, 16).unwrap().to_be_bytes());
            let view = |map| MapView {
                map,
                generation: u64::MAX,
            };
            let key = vault
                .store()
                .get_objects(1, view(MapId::of_subjects(1)), &[id])
                .await
                .unwrap()
                .remove(0)
                .unwrap();
            let claim = SubjectClaim::Erased(ObjectRow {
                version: 2,
                sealed: Vec::new().into(),
                ..key
            });
            let group = ObjectGroup {
                view: view(MapId::of_erasures(1)),
                writes: Vec::new(),
                subjects: vec![claim],
            };
            let written = vault
                .store()
                .write_objects(1, vec![group])
                .await
                .remove(0)
                .unwrap();
            assert_eq!(written, ObjectsWritten::Done);
            assert_eq!(vault.token_rows(ANNA).await.len(), 6);
            for (name, tokens) in &tokens {
                assert_eq!(
                    code(vault.try_detokenize(name, tokens).await),
                    ErrorCode::NotFound
                );
                assert_eq!(vault.listed(name).await, 0);
                let there = vault
                    .client
                    .tokens_get(CollectionTarget::new(APP, name), &[&tokens[0]])
                    .await
                    .unwrap();
                assert_eq!(there.tokens, [None]);
            }
            assert_eq!(vault.find_token("deterministic", Some(ANNA)).await, None);
            assert_eq!(vault.exported_tokens(ANNA, 10).await, []);
            // Tokens that are made after the erasure are under another key, and stay.
            let since = vault.tokens("deterministic", Some(ANNA)).await;
            assert!(since.iter().all(|token| !tokens[1].1.contains(token)));
            let erased = vault
                .client
                .subjects_erase(named(ANNA), SubjectErasure::new().version(1))
                .await
                .unwrap();
            assert_eq!(
                (erased.erased, erased.tokens, erased.done),
                (false, 6, true)
            );
            assert_eq!(
                vault.try_detokenize("deterministic", &since).await.unwrap(),
                CARDS.replace(' ', "")
            );

            // A repetition ends, however many tokens there are since.
            let store = Arc::clone(vault.harness.engine().tokens().unwrap().store());
            let (map, row) = vault.token_rows(ANNA).await.remove(0);
            let newer = |n: u32| {
                let id = sealwire_store::TokenId(u128::from(n).to_be_bytes());
                (
                    map,
                    sealwire_store::Row {
                        id,
                        fingerprint: None,
                        ..row.clone()
                    },
                )
            };
            store
                .put(&(0..9_000).map(newer).collect::<Vec<_>>())
                .await
                .unwrap();
            let again = vault
                .client
                .subjects_erase(named(ANNA), SubjectErasure::new().version(1))
                .await
                .unwrap();
            assert_eq!((again.erased, again.tokens, again.done), (false, 0, true));
            assert_eq!(vault.erase_person(ANNA).await, (true, 0, 9_002, true));
        }
    });
}

#[test]
fn rows_of_subjects_open_under_their_own_key_only() {
    run(async {
        for vault in vaults().await {
            vault.create_token_maps().await;
            let name = "canary-7f3a@example.com";
            let (mine, _) = (
                vault.tokens("random", Some(name)).await,
                vault.tokens("random", Some("bob")).await,
            );
            let (rows, other) = (
                vault.token_rows(name).await,
                vault.token_rows("bob").await[0].1.subject,
            );
            for (_, row) in &rows {
                let stored = format!("{row:?} {}", String::from_utf8_lossy(&row.sealed));
                for form in [
                    name,
                    "canary",
                    "63616e617279",
                    "Y2FuYXJ5",
                    "4242424242424242",
                ] {
                    assert!(!stored.contains(form), "{form}");
                }
            }
            let store = Arc::clone(vault.harness.engine().tokens().unwrap().store());
            for subject in [other, None] {
                let moved: Vec<_> = rows
                    .iter()
                    .map(|(map, row)| {
                        (
                            *map,
                            sealwire_store::Row {
                                subject,
                                ..row.clone()
                            },
                        )
                    })
                    .collect();
                store.put(&moved).await.unwrap();
                assert_eq!(
                    code(vault.try_detokenize("random", &mine).await),
                    ErrorCode::CannotOpen
                );
            }
            store.put(&rows).await.unwrap();
            assert_eq!(
                vault.try_detokenize("random", &mine).await.unwrap(),
                CARDS.replace(' ', "")
            );
        }
    });
}

#[test]
fn the_audit_log_names_the_subjects_of_requests_on_tokens() {
    run(async {
        let prepare = async |control: &sealwire_apps::Control| {
            everything_on(&**control.store(), FULL, "*").await
        };
        let change = |config: &mut sealwire_settings::Config| {
            enforcing(config);
            config.audit.folder = Some(config.state.folder.parent().unwrap().join("audit"));
        };
        let vault = vault(Harness::prepared(change, prepare).await).await;
        vault.create_token_maps().await;
        let folder = vault.harness.config.audit.folder.clone().unwrap();
        let tokens = vault.tokens("deterministic", Some(ANNA)).await;
        let anna = vault.client.subjects_find(named(ANNA)).await.unwrap().id;
        vault
            .try_detokenize("deterministic", &tokens)
            .await
            .unwrap();
        vault.find_token("deterministic", Some(ANNA)).await;
        vault.listed("deterministic").await;
        vault
            .client
            .tokens_get(CollectionTarget::new(APP, "deterministic"), &[&tokens[0]])
            .await
            .unwrap();
        vault.erase_person(ANNA).await;
        let _ = vault.try_detokenize("deterministic", &tokens).await;
        let of_anna = records(&folder)
            .into_iter()
            .filter(|record| record.subjects.contains(&anna));
        let methods: Vec<_> = of_anna.filter_map(|record| record.method).collect();
        let expected = [
            "tokenize",
            "subjects.find",
            "detokenize",
            "tokens.find",
            "tokens.list",
            "tokens.get",
            "subjects.erase",
        ];
        assert_eq!(methods, expected);

        // A request about many persons names all of them, in several records.
        let mut tokens = Vec::new();
        for n in 0..501 {
            let made = vault
                .try_tokenize("random", "4", Some(&format!("person {n}")))
                .await
                .unwrap();
            tokens.push(text(&made.payload).trim_matches('"').to_owned());
        }
        vault.try_detokenize("random", &tokens).await.unwrap();
        let records = self::records(&folder);
        let last: Vec<_> = records
            .iter()
            .filter(|record| record.method.as_deref() == Some("detokenize"))
            .skip(2)
            .collect();
        let named: std::collections::BTreeSet<_> =
            last.iter().flat_map(|record| &record.subjects).collect();
        assert_eq!((last.len(), named.len()), (2, 501));
        assert_eq!(
            last.iter().map(|record| record.fields).collect::<Vec<_>>(),
            [0, 501]
        );
    });
}
