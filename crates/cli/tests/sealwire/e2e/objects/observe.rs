//! Tests of `access.mode` "observe": it denies no request of a principal without a mask, and no
//! operation shows a value that a mask hides.

use sealwire_access::{Principal, RoleName, principal_key, role_key};
use sealwire_apps::{CollectionKind, CollectionRules, Scope};
use sealwire_client::control::{
    AppOperation, CheckRequest, Checked, PrincipalOperation, RoleOperation,
};
use sealwire_client::{
    CollectionTarget, Decrypt, Detokenize, Encrypt, Error, Listing, Mask, MaskRule, Page,
    PropertyDisclosure, Rewrap, Tokenize,
};
use sealwire_records::token::Format;
use sealwire_settings::AccessMode;

use super::subjects::{ANNA, named};
use super::*;
use crate::e2e::access::{NOBODY, grant_role, put};

/// A value that the tests look for in every response.
const SECRET: &str = "Sycorax";
const TOKENS: &str = "cards";
/// A principal without a role.
const FREE: &str = "elsewhere";

/// What a principal gets from an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    /// A response that contains [`SECRET`].
    Secret,
    /// A response that does not.
    Other,
    Failed(ErrorCode),
}

fn got<T: std::fmt::Debug>(outcome: Result<T, Error>, shown: impl Fn(&T) -> String) -> Got {
    match outcome {
        Ok(response) if shown(&response).contains(SECRET) => Got::Secret,
        Ok(_) => Got::Other,
        Err(error) => Got::Failed(rpc_error::<()>(Err(error)).code),
    }
}

/// An engine with a value in an envelope, in a token and in an object, both about a data subject.
struct Site {
    vault: Vault,
    envelope: Vec<u8>,
    tokens: Vec<u8>,
    id: String,
}

impl Site {
    async fn start(mode: AccessMode) -> Self {
        let prepare = async |control: &sealwire_apps::Control| {
            everything_on(&**control.store(), FULL, "*").await
        };
        let change = |config: &mut sealwire_settings::Config| {
            enforcing(config);
            config.access.mode = mode;
        };
        let vault = vault(Harness::prepared(change, prepare).await).await;
        let rules = CollectionRules {
            kind: CollectionKind::Random,
            format: Format::Opaque,
            scope: Scope::Collection,
            expires_s: None,
            retention_s: None,
        };
        vault.harness.create_collection(APP, TOKENS, rules).await;

        let payload = doc(&format!(r#"["{SECRET}"]"#));
        let envelope = vault
            .client
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap()
            .payload;
        let tokens = vault
            .client
            .tokenize(Tokenize::new(APP, TOKENS, &payload).subject(ANNA))
            .await
            .unwrap()
            .payload;
        let object = format!(r#"[{{"email": "anna@example.com", "name": "{SECRET}"}}]"#);
        let id = vault.add_about(PEOPLE, &object, &[ANNA]).await.remove(0);
        Self {
            vault,
            envelope: envelope.to_vec(),
            tokens: tokens.to_vec(),
            id,
        }
    }

    /// Sends a request of each operation that reaches values, and of some that do not.
    async fn reads(&self, client: &Client) -> Vec<(&'static str, Got)> {
        let all = PropertyDisclosure::default;
        let bytes = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let debug = |objects: &Vec<Option<Object>>| {
            let values = objects
                .iter()
                .flatten()
                .flat_map(|object| &object.properties);
            values.map(|(_, value)| bytes(value)).collect::<String>()
        };
        let own = doc(r#"["own"]"#);
        let clauses = doc(&format!(r#"[{{"property": "name", "eq": "{SECRET}"}}]"#));
        let opening = Detokenize::new(APP, TOKENS, &self.tokens);
        let rules = vec![MaskRule::path("$", "redact")];
        let masking = Mask::new(APP, &own, rules);
        let exported = |page: &sealwire_client::SubjectExport| {
            let objects = page
                .objects
                .iter()
                .flat_map(|object| &object.properties)
                .map(|(_, value)| bytes(value));
            let tokens = page
                .tokens
                .iter()
                .filter_map(|token| token.value.as_deref())
                .map(bytes);
            objects.chain(tokens).collect::<String>()
        };
        let map = || CollectionTarget::new(APP, TOKENS);
        vec![
            (
                "decrypt",
                got(
                    client.decrypt(Decrypt::new(APP, &self.envelope)).await,
                    |found| bytes(&found.payload),
                ),
            ),
            (
                "detokenize",
                got(client.detokenize(opening).await, |found| {
                    bytes(&found.payload)
                }),
            ),
            ("objects.get", {
                let found = client.objects_get(super::map(), &[&self.id], all()).await;
                got(found, |found| debug(&found.objects))
            }),
            ("objects.query", {
                let found = client
                    .objects_query(super::map(), &clauses, all(), Page::new())
                    .await;
                got(found, |found| debug(&found.objects))
            }),
            ("objects.list", {
                let found = client
                    .objects_list(super::map(), Listing::default(), all())
                    .await;
                got(found, |found| debug(&found.objects))
            }),
            (
                "subjects.export",
                got(
                    client.subjects_export(named(ANNA), Page::new()).await,
                    exported,
                ),
            ),
            ("subjects.export of tokens", {
                // The cursor of the token before the first one.
                let after = format!("token.0.{}", "0".repeat(32));
                got(
                    client
                        .subjects_export(named(ANNA), Page::new().after(&*after))
                        .await,
                    exported,
                )
            }),
            (
                "tokens.list",
                got(client.tokens_list(map(), Listing::default()).await, |_| {
                    String::new()
                }),
            ),
            (
                "rewrap",
                got(
                    client.rewrap(Rewrap::new(APP, &self.envelope)).await,
                    |_| String::new(),
                ),
            ),
            (
                "encrypt",
                got(client.encrypt(Encrypt::new(APP, &own)).await, |_| {
                    String::new()
                }),
            ),
            ("mask", got(client.mask(masking).await, |_| String::new())),
            ("tokenize", {
                let made = client.tokenize(Tokenize::new(APP, TOKENS, &own)).await;
                got(made, |_| String::new())
            }),
        ]
    }

    async fn check(&self, operation: &str) -> Checked {
        let call = CheckRequest::new(NOBODY, operation).app(APP);
        self.vault.operator.check(call).await.unwrap()
    }
}

/// Operations whose values a mask can cover, those whose values no mask can cover or which change
/// who can read them, and others.
fn expected(maskable: Got, unmaskable: Got, others: Got) -> Vec<(&'static str, Got)> {
    let list = match unmaskable {
        Got::Secret => Got::Other,
        denied => denied,
    };
    vec![
        ("decrypt", maskable),
        ("detokenize", maskable),
        ("objects.get", maskable),
        ("objects.query", maskable),
        ("objects.list", maskable),
        ("subjects.export", unmaskable),
        ("subjects.export of tokens", unmaskable),
        ("tokens.list", list),
        ("rewrap", list),
        ("encrypt", others),
        ("mask", others),
        ("tokenize", others),
    ]
}

#[test]
fn observing_shows_no_value_that_a_mask_hides() {
    run(async {
        let denied = Got::Failed(ErrorCode::Forbidden);
        let unavailable = Got::Failed(ErrorCode::Unavailable);
        let site = Site::start(AccessMode::Observe).await;
        let (harness, operator) = (&site.vault.harness, &site.vault.operator);
        let free = connect(harness, harness.address, FREE).await;
        assert_eq!(
            site.reads(&free).await,
            expected(Got::Secret, Got::Secret, Got::Other),
            "a principal without a role"
        );

        // The grants are on another app: nothing here is granted.
        grant_role(
            operator,
            NOBODY,
            "limited",
            &["decrypt apps=other mask=redact"],
        )
        .await;
        let masked = connect(harness, harness.address, NOBODY).await;
        assert_eq!(
            site.reads(&masked).await,
            expected(Got::Other, denied, Got::Other),
            "a principal with a mask"
        );
        let export = site.check("subjects.export").await;
        assert_eq!((export.permitted, &*export.mode), (false, "observe"));
        assert!(export.missing.unwrap().contains("access.mode \"observe\""));
        let decrypt = site.check("decrypt").await;
        assert_eq!(
            (decrypt.permitted, decrypt.role, decrypt.mask.as_deref()),
            (true, None, Some("redact"))
        );
        assert!(
            decrypt
                .missing
                .unwrap()
                .contains("no role of this principal grants decrypt")
        );

        // On the control listener, the principal cannot take its mask off.
        let control = connect(harness, harness.control_address(), NOBODY).await;
        let grant = PrincipalOperation::grant(FULL);
        assert_eq!(
            code(control.change_principal(NOBODY, grant).await),
            ErrorCode::Forbidden
        );
        let revoke = PrincipalOperation::revoke(None);
        assert_eq!(
            code(control.change_principal(NOBODY, revoke).await),
            ErrorCode::Forbidden
        );
        let set = RoleOperation::set(["decrypt apps=*"]);
        assert_eq!(
            code(control.change_role("limited", set).await),
            ErrorCode::Forbidden
        );
        // Nor is a key of its own the newest that seals, to which a rewrap would move every value.
        let private_key = "1111111111111111111111111111111111111111111111111111111111111111";
        let import = AppOperation::import(sealwire_wire::Suite::P256, private_key, true);
        assert_eq!(
            code(control.change_app(APP, import).await),
            ErrorCode::Forbidden
        );
        for operation in [AppOperation::disable(None), AppOperation::enable(None)] {
            assert_eq!(
                code(control.change_app(APP, operation).await),
                ErrorCode::Forbidden
            );
        }
        assert!(control.roles(Default::default()).await.is_ok());

        // A role that is in the store and cannot be read takes its mask along.
        let role = role_key(&RoleName::new("limited").unwrap());
        let damaged =
            br#"{"format":1,"role":"limited","grants":[{"operations":["later.operation"]}]}"#;
        harness
            .change(async |control, _| put(&**control.store(), &role, damaged.to_vec()).await)
            .await;
        assert_eq!(
            site.reads(&masked).await,
            expected(denied, denied, Got::Other),
            "an unreadable role"
        );
        assert!(!site.check("decrypt").await.permitted && site.check("encrypt").await.permitted);

        // So does a principal whose roles cannot be read.
        let key = principal_key(&Principal::from_text(NOBODY).unwrap());
        harness
            .change(async |control, _| put(&**control.store(), &key, b"{}".to_vec()).await)
            .await;
        assert_eq!(
            site.reads(&masked).await,
            expected(unavailable, unavailable, Got::Other),
            "unreadable roles"
        );
        assert!(
            !site.check("subjects.export").await.permitted && site.check("encrypt").await.permitted
        );
    });
}

#[test]
fn modes_that_do_not_observe_are_named_by_a_check() {
    run(async {
        for (mode, permitted, got) in [
            (AccessMode::Off, true, Got::Secret),
            (
                AccessMode::Enforce,
                false,
                Got::Failed(ErrorCode::Forbidden),
            ),
        ] {
            let site = Site::start(mode).await;
            let harness = &site.vault.harness;
            grant_role(
                &site.vault.operator,
                NOBODY,
                "limited",
                &["decrypt apps=other mask=redact"],
            )
            .await;
            let masked = connect(harness, harness.address, NOBODY).await;
            let others = if permitted { Got::Other } else { got };
            assert_eq!(
                site.reads(&masked).await,
                expected(got, got, others),
                "{}",
                mode.name()
            );
            let check = site.check("subjects.export").await;
            assert_eq!((check.permitted, &*check.mode), (permitted, mode.name()));
        }
    });
}
