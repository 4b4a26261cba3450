//! Permissions seen from outside: every operation under every kind of certificate and role, and the
//! end of a role.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sealwire_access::PrincipalKind;
use sealwire_access::{
    Binding, Grant, Names, Operation, Operations, Principal, Role, RoleName, principal_key,
    role_key,
};
use sealwire_client::control::{CheckRequest, PrincipalOperation, RoleOperation};
use sealwire_client::{
    Client, ClientConfig, Decrypt, DetailValue, Encrypt, Error, ErrorCode, Pem, RpcError,
};
use sealwire_dev_ca::{Authority, Issued, Usage, Validity};
use sealwire_settings::{AccessMode, Config, ControlListen};
use sealwire_store::{Commit, ControlStore};
use tokio::time::Instant;

use crate::e2e::audit::records;
use crate::e2e::certificates::revoke;
use crate::e2e::harness::{APP, Harness, fields, leaf, rpc_error, run};
use crate::e2e::raw::{Heard, Raw};

pub(crate) const NOBODY: &str = "nobody";
pub(crate) const FULL: &str = "full";
const ELSEWHERE: &str = "elsewhere";

pub(crate) fn enforcing(config: &mut Config) {
    config.access.mode = AccessMode::Enforce;
    let name = |name: &str| (PrincipalKind::Dns, name.to_owned());
    let principals = [NOBODY, FULL, ELSEWHERE].map(name).into();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    config.control = Some(ControlListen {
        address,
        client_ca: None,
        client_crl: None,
        principals,
    });
}

pub(crate) async fn put(store: &dyn ControlStore, key: &str, record: Vec<u8>) {
    let base = store.generation().await.unwrap();
    assert!(matches!(
        store.commit(base, key, Some(&record)).await.unwrap(),
        Commit::Done(_)
    ));
}

/// Gives a principal a role that grants every operation on those apps.
pub(crate) async fn everything_on(store: &dyn ControlStore, caller: &str, apps: &str) {
    let grant = Grant {
        apps: Names::of([apps]).unwrap(),
        ..Grant::on_all(Operations::DATA.and(Operations::CONTROL))
    };
    let role = Role::new(caller, vec![grant]).unwrap();
    put(store, &role_key(role.name()), role.to_record()).await;
    let principal = Principal::from_text(caller).unwrap();
    let binding = Binding {
        principal: principal.clone(),
        roles: vec![RoleName::new(caller).unwrap()],
    };
    put(store, &principal_key(&principal), binding.to_record()).await;
}

/// Starts a server that enforces roles: `full` has all permissions, `elsewhere` all on another app,
/// `nobody` none.
pub(crate) async fn start() -> Harness {
    Harness::prepared(enforcing, async |control| {
        everything_on(&**control.store(), FULL, "*").await;
        everything_on(&**control.store(), ELSEWHERE, "elsewhere").await;
    })
    .await
}

/// Creates a role with these grants and gives it to a principal.
pub(crate) async fn grant_role(operator: &Client, caller: &str, role: &str, grants: &[&str]) {
    operator
        .change_role(role, RoleOperation::set(grants.to_vec()))
        .await
        .unwrap();
    operator
        .change_principal(caller, PrincipalOperation::grant(role))
        .await
        .unwrap();
}

/// Puts a role into the store without any checks, and waits until the engine serves it.
pub(crate) async fn put_role_record(harness: &Harness, role: &str, grant: &str) {
    let role = Role::new(role, vec![Grant::from_text(grant).unwrap()]).unwrap();
    harness
        .change(async |control, _| {
            put(&**control.store(), &role_key(role.name()), role.to_record()).await
        })
        .await;
}

/// Encodes a request of that operation on [`APP`] and its collection `people`.
fn message(operation: Operation) -> Vec<u8> {
    use sealwire_wire::control::*;
    use sealwire_wire::*;

    let (mut out, nil) = (Vec::new(), &[0xc0][..]);
    let app = |operation| {
        Control::App(AppRequest {
            app: APP,
            operation,
        })
    };
    let collection = |operation| {
        Control::Collection(CollectionRequest {
            app: APP,
            collection: "people",
            operation,
        })
    };
    let role = |operation| {
        Control::Role(RoleRequest {
            role: "spare",
            operation,
        })
    };
    let principal = |operation| {
        Control::Principal(PrincipalRequest {
            principal: "spare.internal",
            operation,
        })
    };
    let tokens = |operation| {
        Request::Tokens(TokensRequest {
            map: TokenMap::new(APP, "people"),
            operation,
        })
    };
    let objects = |operation| {
        Request::Objects(ObjectsRequest {
            map: TokenMap::new(APP, "people"),
            operation,
        })
    };
    let subjects = |operation| {
        Request::Subjects(SubjectsRequest {
            target: SubjectTarget::new(APP, SubjectName::Name("anna")),
            operation,
        })
    };
    let disclosure = PropertyDisclosure::default;
    // There is no such provider, and so the store stays without a root key, and is not sealed.
    let root = |operation| Request::Control(Control::Root(operation));
    let key = None;
    let call = match operation {
        Operation::Encrypt => {
            request::encrypt(&mut out, 1, &Encrypt::new(APP, nil));
            return out;
        }
        Operation::Decrypt => {
            request::decrypt(&mut out, 1, &Decrypt::new(APP, nil));
            return out;
        }
        Operation::Rewrap => {
            request::rewrap(&mut out, 1, &Rewrap::new(APP, nil));
            return out;
        }
        Operation::Tokenize => {
            let writing = TokenizeOptions {
                collection: "people",
                ..TokenizeOptions::default()
            };
            request::tokenize(
                &mut out,
                1,
                &Tokenize {
                    writing,
                    ..Tokenize::new(APP, nil)
                },
            );
            return out;
        }
        Operation::Detokenize => {
            let writing = TokenLookupScope {
                collection: "people",
            };
            request::detokenize(
                &mut out,
                1,
                &Detokenize {
                    writing,
                    ..Detokenize::new(APP, nil)
                },
            );
            return out;
        }
        Operation::Mask => {
            let rules = vec![MaskRule {
                fields: RuleFields::Path("$"),
                mask: "redact",
            }];
            let writing = Masking {
                rules,
                ..Masking::default()
            };
            request::mask(
                &mut out,
                1,
                &Mask {
                    writing,
                    ..Mask::new(APP, nil)
                },
            );
            return out;
        }
        Operation::TokensGet => tokens(TokensOperation::Get {
            tokens: vec!["tok"],
        }),
        Operation::TokensFind => tokens(TokensOperation::Find(TokenSearch {
            value: nil,
            context: b"",
            subject: None,
        })),
        Operation::TokensList => tokens(TokensOperation::List(Listing::default())),
        Operation::TokensDelete => tokens(TokensOperation::Delete {
            tokens: vec!["tok"],
        }),
        Operation::TokensExpire => tokens(TokensOperation::Expire {
            tokens: vec!["tok"],
            expires_s: None,
        }),
        Operation::TokensArchive => tokens(TokensOperation::Archive(Sweep::default())),
        Operation::TokensPrune => tokens(TokensOperation::Prune(Sweep::default())),
        Operation::ObjectsAdd => objects(ObjectsOperation::Add(AddObjects {
            objects: b"\x91\x80",
            ..AddObjects::default()
        })),
        Operation::ObjectsGet => objects(ObjectsOperation::Get {
            ids: vec!["id"],
            disclosure: disclosure(),
        }),
        Operation::ObjectsUpdate => objects(ObjectsOperation::Update {
            changes: b"\x91\x80",
        }),
        Operation::ObjectsDelete => objects(ObjectsOperation::Delete {
            ids: vec!["id"],
            versions: None,
        }),
        Operation::ObjectsQuery => {
            let (disclosure, after, limit) = (disclosure(), None, None);
            objects(ObjectsOperation::Query {
                clauses: b"\x91\x80",
                disclosure,
                after,
                limit,
            })
        }
        Operation::ObjectsList => objects(ObjectsOperation::List {
            listing: Listing::default(),
            disclosure: disclosure(),
        }),
        Operation::ObjectsExpire => objects(ObjectsOperation::Expire {
            ids: vec!["id"],
            expires_s: None,
        }),
        Operation::ObjectsArchive => objects(ObjectsOperation::Archive(Sweep::default())),
        Operation::ObjectsPrune => objects(ObjectsOperation::Prune(Sweep::default())),
        Operation::SubjectsFind => subjects(SubjectsOperation::Find),
        Operation::SubjectsExport => subjects(SubjectsOperation::Export {
            after: None,
            limit: None,
        }),
        Operation::SubjectsErase => subjects(SubjectsOperation::Erase {
            version: None,
            created: None,
        }),
        Operation::AppsList => Request::Control(Control::Apps(Page::default())),
        Operation::AppsCreate => Request::Control(app(AppOperation::Create)),
        Operation::AppsRotate => Request::Control(app(AppOperation::Rotate {
            kind: RotateKind::P256,
        })),
        Operation::AppsImport => Request::Control(app(AppOperation::Import {
            suite: Suite::P256,
            private_key: Secret("no key"),
            seals: false,
        })),
        Operation::AppsDisable => Request::Control(app(AppOperation::Disable { key })),
        Operation::AppsEnable => Request::Control(app(AppOperation::Enable { key })),
        Operation::AppsDelete => Request::Control(app(AppOperation::Delete { key, delay_s: None })),
        Operation::AppsRestore => Request::Control(app(AppOperation::Restore { key })),
        Operation::AppsSet => Request::Control(app(AppOperation::Set {
            format: None,
            epoch_ms: None,
            write_suite: None,
            read_suites: None,
        })),
        Operation::AppsExport => Request::Control(Control::Export(Page::default())),
        Operation::CollectionsList => Request::Control(Control::Collections(CollectionsRequest {
            app: APP,
            page: Page::default(),
        })),
        Operation::CollectionsCreate => {
            let (kind, format, scope) =
                (Kind::Deterministic, TokenFormat::Opaque, Scope::Collection);
            Request::Control(collection(CollectionOperation::Create(CreateCollection {
                format,
                scope,
                ..CreateCollection::new(kind)
            })))
        }
        Operation::CollectionsSet => Request::Control(collection(CollectionOperation::Set {
            expires_s: Some(None),
            retention_s: None,
        })),
        Operation::CollectionsAlter => {
            let alter = AlterCollection {
                drop: vec!["name"],
                ..AlterCollection::default()
            };
            Request::Control(collection(CollectionOperation::Alter(alter)))
        }
        Operation::CollectionsMigrate => {
            let call = MigrateRequest {
                app: APP,
                collection: "people",
                ..MigrateRequest::default()
            };
            Request::Control(Control::Migrate(call))
        }
        Operation::CollectionsDelete => Request::Control(collection(CollectionOperation::Delete)),
        Operation::KeysCensus => Request::Control(Control::Census(CensusRequest {
            app: APP,
            ..CensusRequest::default()
        })),
        Operation::KeysRewrap => Request::Control(Control::RewrapRows(RewrapRowsRequest {
            app: APP,
            ..RewrapRowsRequest::default()
        })),
        Operation::InstancesList => Request::Control(Control::Instances),
        Operation::RootStatus => root(RootOperation::Status),
        Operation::RootInit => root(RootOperation::Init {
            providers: Some(vec!["absent"]),
        }),
        Operation::RootRotate => root(RootOperation::Rotate { abandon: false }),
        Operation::RootSeal => root(RootOperation::Seal),
        Operation::RootUnseal => root(RootOperation::Unseal),
        Operation::KekAdd => root(RootOperation::AddSlot { provider: "local" }),
        Operation::KekRemove => root(RootOperation::RemoveSlot { slot: 1 }),
        Operation::KekVerify => root(RootOperation::Verify),
        Operation::KekRotate => root(RootOperation::RotateSlots),
        Operation::RolesList => Request::Control(Control::Roles(Page::default())),
        Operation::RolesSet => Request::Control(role(RoleOperation::Set {
            grants: vec!["encrypt apps=shop"],
        })),
        Operation::RolesDelete => Request::Control(role(RoleOperation::Delete)),
        Operation::PrincipalsList => Request::Control(Control::Principals(Page::default())),
        Operation::PrincipalsGrant => Request::Control(principal(PrincipalOperation::Grant {
            role: "administrator",
        })),
        Operation::PrincipalsRevoke => {
            Request::Control(principal(PrincipalOperation::Revoke { role: None }))
        }
        Operation::AppsPublicKeys => Request::Control(Control::PublicKeys(PublicKeysRequest {
            app: APP,
            options: CommonParams {
                min_generation: None,
                reason: None,
                ..CommonParams::default()
            },
        })),
        Operation::PrincipalsCheck => Request::Control(Control::Check(CheckRequest {
            principal: FULL,
            operation: "encrypt",
            ..CheckRequest::default()
        })),
    };
    request::call(&mut out, 1, &call);
    out
}

/// Returns the error of a permitted request whose subject is missing, or exists already; `None` for
/// a result.
fn permitted(operation: Operation) -> Option<ErrorCode> {
    match operation {
        Operation::AppsCreate => Some(ErrorCode::Conflict),
        Operation::AppsImport => Some(ErrorCode::BadRequest),
        // The collection has tokens, and so no schema.
        Operation::CollectionsAlter | Operation::CollectionsMigrate => Some(ErrorCode::BadRequest),
        // The app publishes no key.
        Operation::AppsPublicKeys => Some(ErrorCode::NotFound),
        // The store has no root key, and no provider has the name that `root.init` gives.
        Operation::RootInit
        | Operation::RootRotate
        | Operation::RootSeal
        | Operation::RootUnseal
        | Operation::KekAdd
        | Operation::KekRemove
        | Operation::KekVerify
        | Operation::KekRotate => Some(ErrorCode::BadRequest),
        // The collection is created by a later row.
        Operation::SubjectsFind | Operation::SubjectsExport | Operation::SubjectsErase => None,
        operation if operation.has_collection() && Operations::DATA.contains(operation) => {
            Some(ErrorCode::NotFound)
        }
        _ => None,
    }
}

#[derive(Debug, PartialEq)]
enum ExpectedOutcome {
    /// No connection, or a connection that is closed without a response.
    Out,
    Result,
    Refused(ErrorCode, Option<String>),
}

async fn outcome(
    harness: &Harness,
    operation: Operation,
    identity: Option<&Issued>,
) -> ExpectedOutcome {
    let is_control = Operations::CONTROL.contains(operation);
    let address = if is_control {
        harness.control_address()
    } else {
        harness.address
    };
    let Ok(mut raw) = Raw::connect(address, harness.authority.cert_pem(), identity).await else {
        return ExpectedOutcome::Out;
    };
    let _ = raw.try_send(&message(operation)).await;
    match raw.hear().await {
        Heard::End => ExpectedOutcome::Out,
        Heard::Response(1, Ok(_)) => ExpectedOutcome::Result,
        Heard::Response(1, Err(error)) => ExpectedOutcome::Refused(error.code, missing(&error)),
        other => panic!("{operation}: {other:?}"),
    }
}

fn missing(error: &RpcError) -> Option<String> {
    text(error, "missing")
}

fn text(error: &RpcError, key: &str) -> Option<String> {
    error
        .details
        .iter()
        .find(|detail| detail.key == key)
        .map(|detail| match &detail.value {
            DetailValue::Text(text) => text.to_string(),
            DetailValue::Number(_) | DetailValue::Errors(_) => panic!("{error}"),
        })
}

#[test]
fn operations_under_all_certificates_and_roles() {
    run(async {
        let mut harness = start().await;
        let stranger = Authority::create("e2e", Validity::days(1)).unwrap();
        let stranger = stranger.issue(&leaf(Usage::Client, FULL)).unwrap();
        let expired = harness.expired_caller();
        let [nobody, full, elsewhere, revoked] =
            [NOBODY, FULL, ELSEWHERE, FULL].map(|name| harness.another_caller(name));
        revoke(&mut harness, &[&revoked]).await;
        let forbidden = |missing: &str| {
            ExpectedOutcome::Refused(ErrorCode::Forbidden, Some(missing.to_owned()))
        };
        for operation in Operation::ALL {
            let with_role = match permitted(operation) {
                Some(code) => ExpectedOutcome::Refused(code, None),
                None => ExpectedOutcome::Result,
            };
            for (case, identity, expected) in [
                ("no certificate", None, ExpectedOutcome::Out),
                ("another authority's", Some(&stranger), ExpectedOutcome::Out),
                ("expired", Some(&expired), ExpectedOutcome::Out),
                ("revoked", Some(&revoked), ExpectedOutcome::Out),
                ("without a role", Some(&nobody), forbidden("role")),
                (
                    "with a role on another app",
                    Some(&elsewhere),
                    forbidden("app"),
                ),
                ("with a role", Some(&full), with_role),
            ] {
                assert_eq!(
                    outcome(&harness, operation, identity).await,
                    expected,
                    "{operation} {case}"
                );
            }
            let series = |missing| {
                format!(
                    "sealwire_access_denied_total{{operation=\"{operation}\",missing=\"{missing}\"}}"
                )
            };
            for missing in ["role", "app"] {
                assert_eq!(harness.metric(&series(missing)).await, 1.0, "{operation}");
            }
        }
    });
}

pub(crate) async fn connect(harness: &Harness, address: SocketAddr, name: &str) -> Client {
    let identity = harness.another_caller(name);
    let bytes = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
    let (ca, cert) = (
        bytes(harness.authority.cert_pem()),
        bytes(&identity.cert_pem),
    );
    let config = ClientConfig::new(
        address.to_string(),
        "localhost",
        ca,
        cert,
        bytes(identity.key_pem.expose()),
    );
    Client::connect(ClientConfig {
        connections: 1,
        attempts_max: 1,
        ..config
    })
    .await
    .unwrap()
}

#[test]
fn requests_after_the_response_to_a_revocation_fail() {
    run(async {
        let harness = Arc::new(start().await);
        let operator = connect(&harness, harness.control_address(), FULL).await;
        let operation = RoleOperation::set(["encrypt apps=shop"]);
        operator.change_role("relay", operation).await.unwrap();
        for round in 0..20 {
            operator
                .change_principal(NOBODY, PrincipalOperation::grant("relay"))
                .await
                .unwrap();
            let (over, passes) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicUsize::new(0)),
            );
            let mut callers = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let client = connect(&harness, harness.address, NOBODY).await;
                let (over, passes) = (Arc::clone(&over), Arc::clone(&passes));
                callers.spawn(async move {
                    let (payload, mut calls) = (fields(1), Vec::new());
                    // Sends one more request after the revocation, so that there is at least one.
                    let mut last = false;
                    while !last {
                        last = over.load(Ordering::SeqCst);
                        let began = Instant::now();
                        let passed = match client.encrypt(Encrypt::new(APP, &payload)).await {
                            Ok(_) => true,
                            Err(Error::Rpc(error)) if error.code == ErrorCode::Forbidden => false,
                            Err(other) => panic!("{other}"),
                        };
                        passes.fetch_add(usize::from(passed), Ordering::SeqCst);
                        calls.push((began, passed));
                    }
                    calls
                });
            }
            while passes.load(Ordering::SeqCst) < 16 {
                tokio::task::yield_now().await;
            }
            // Alternates between changing the principal and changing the role.
            if round % 2 == 0 {
                operator
                    .change_principal(NOBODY, PrincipalOperation::revoke("relay"))
                    .await
                    .unwrap();
            } else {
                let operation = RoleOperation::set(["decrypt apps=shop"]);
                operator.change_role("relay", operation).await.unwrap();
            }
            let answered = Instant::now();
            over.store(true, Ordering::SeqCst);
            let calls = callers.join_all().await.concat();
            let after: Vec<_> = calls
                .iter()
                .filter(|(began, _)| *began > answered)
                .collect();
            assert!(
                !after.is_empty() && after.iter().all(|(_, passed)| !passed),
                "round {round}: {after:?}"
            );
            let operation = RoleOperation::set(["encrypt apps=shop"]);
            operator.change_role("relay", operation).await.unwrap();
        }
    });
}

#[test]
fn resources_without_grant_look_the_same_present_or_absent() {
    run(async {
        let harness = start().await;
        let client = connect(&harness, harness.address, ELSEWHERE).await;
        let payload = fields(1);
        let there = rpc_error(client.encrypt(Encrypt::new(APP, &payload)).await);
        let not_there = rpc_error(client.encrypt(Encrypt::new("shap", &payload)).await);
        assert_eq!(there.message.replace(APP, "shap"), not_there.message);
        assert_eq!(
            (there.code, there.details),
            (not_there.code, not_there.details)
        );
        // With a permission, the error says that the app does not exist.
        let granted = rpc_error(client.encrypt(Encrypt::new("elsewhere", &payload)).await);
        assert_eq!(granted.code, ErrorCode::NotFound);
    });
}

#[test]
fn a_role_may_demand_a_reason() {
    run(async {
        let harness = start().await;
        let operator = connect(&harness, harness.control_address(), FULL).await;
        let operation = RoleOperation::set(["encrypt apps=shop reason"]);
        operator.change_role("support", operation).await.unwrap();
        operator
            .change_principal(NOBODY, PrincipalOperation::grant("support"))
            .await
            .unwrap();
        let client = connect(&harness, harness.address, NOBODY).await;
        let payload = fields(1);
        let refused = rpc_error(client.encrypt(Encrypt::new(APP, &payload)).await);
        assert_eq!(
            (refused.code, missing(&refused).as_deref()),
            (ErrorCode::Forbidden, Some("reason"))
        );
        client
            .encrypt(Encrypt::new(APP, &payload).reason("ticket 7"))
            .await
            .unwrap();
        let check = CheckRequest::new(NOBODY, "encrypt").app(APP);
        let checked = operator.check(check).await.unwrap();
        assert_eq!(
            (checked.permitted, checked.missing.as_deref()),
            (
                false,
                Some("encrypt on app shop needs a reason; send it in the parameter reason")
            )
        );
        let checked = operator.check(check.reason("why")).await.unwrap();
        assert_eq!(
            (checked.permitted, checked.role.as_deref()),
            (true, Some("support"))
        );
    });
}

#[test]
fn a_role_may_grant_so_many_fields_an_hour() {
    run(async {
        let harness = start().await;
        let operator = connect(&harness, harness.control_address(), FULL).await;
        let grants = vec![
            "encrypt apps=shop hourly=1000",
            "decrypt apps=shop mask=hash hourly=10",
        ];
        operator
            .change_role("guesser", RoleOperation::set(grants))
            .await
            .unwrap();
        operator
            .change_principal(NOBODY, PrincipalOperation::grant("guesser"))
            .await
            .unwrap();
        let client = connect(&harness, harness.address, NOBODY).await;
        let sealed = client
            .encrypt(Encrypt::new(APP, &fields(4)))
            .await
            .unwrap()
            .payload;
        let many = client
            .encrypt(Encrypt::new(APP, &fields(11)))
            .await
            .unwrap()
            .payload;
        let guess = async |payload: &[u8]| client.decrypt(Decrypt::new(APP, payload)).await;
        assert_eq!(rpc_error(guess(&many).await).code, ErrorCode::TooLarge);
        let mut passed = 0;
        let refused = loop {
            match guess(&sealed).await {
                Ok(_) => passed += 1,
                refused => break rpc_error(refused),
            }
        };
        assert!((1..=2).contains(&passed), "{passed}");
        assert_eq!(
            (refused.code, text(&refused, "reason").as_deref()),
            (ErrorCode::Overloaded, Some("hourly"))
        );
        assert!(refused.retry_after_ms.unwrap() > 60_000, "{refused:?}");
        // Other principals and separately counted operations are not affected.
        connect(&harness, harness.address, FULL)
            .await
            .decrypt(Decrypt::new(APP, &sealed))
            .await
            .unwrap();
        client.encrypt(Encrypt::new(APP, &fields(4))).await.unwrap();
    });
}

#[test]
fn decisions_and_their_reasons_are_in_the_audit_log() {
    run(async {
        let mut harness = Harness::prepared(
            |config| {
                enforcing(config);
                config.audit.folder = Some(config.state.folder.with_file_name("audit"));
            },
            async |control| everything_on(&**control.store(), FULL, "*").await,
        )
        .await;
        let operator = connect(&harness, harness.control_address(), FULL).await;
        let grants = ["encrypt apps=shop reason", "decrypt apps=shop"];
        operator
            .change_role("relay", RoleOperation::set(grants))
            .await
            .unwrap();
        operator
            .change_principal(NOBODY, PrincipalOperation::grant("relay"))
            .await
            .unwrap();
        let (client, payload) = (connect(&harness, harness.address, NOBODY).await, fields(1));
        rpc_error(client.encrypt(Encrypt::new(APP, &payload)).await);
        client
            .encrypt(Encrypt::new(APP, &payload).reason("ticket 7"))
            .await
            .unwrap();
        operator
            .change_principal(NOBODY, PrincipalOperation::revoke(None))
            .await
            .unwrap();
        harness.take_server().shutdown().await;

        let said: Vec<_> = records(harness.config.audit.folder.as_ref().unwrap())
            .into_iter()
            .filter(|record| record.event == "call")
            .map(|call| {
                let change = call
                    .change
                    .map(|change| serde_json::Value::from(change).to_string());
                format!(
                    "{} {} {} {} {}",
                    call.principal.unwrap(),
                    call.method.unwrap(),
                    call.outcome.unwrap(),
                    call.reason.unwrap_or_default(),
                    change.unwrap_or_default()
                )
            })
            .collect();
        let expected = [
            r#"full roles.set ok  {"grants":["encrypt apps=shop reason","decrypt apps=shop"],"role":"relay"}"#,
            r#"full principals.grant ok  {"principal":"nobody","role":"relay"}"#,
            "nobody encrypt forbidden  ",
            "nobody encrypt ok ticket 7 ",
            r#"full principals.revoke ok  {"principal":"nobody","role":null}"#,
        ];
        assert_eq!(said, expected);
    });
}

#[test]
fn observing_refuses_nothing_and_counts() {
    run(async {
        let harness = Harness::with(|config| config.access.mode = AccessMode::Observe).await;
        harness
            .client()
            .await
            .encrypt(Encrypt::new(APP, &fields(1)))
            .await
            .unwrap();
        let series = "sealwire_access_denied_total{operation=\"encrypt\",missing=\"role\"}";
        assert_eq!(harness.metric(series).await, 1.0);
    });
}

/// Announced length of a message, of which only a part is sent.
const ANNOUNCED_BYTES: u32 = 8 << 20;
const SENT_BYTES: usize = 1 << 20;

/// Encodes the beginning of a request: its head, and params with one long string.
fn long_beginning(msgid: u8, method: &str) -> Vec<u8> {
    let mut out = vec![0x94, 0, msgid];
    sealwire_msgpack::write::str(&mut out, method);
    out.extend_from_slice(b"\x91\x82\xa3app\xa4shop\xa7payload\xdb");
    out.extend_from_slice(&ANNOUNCED_BYTES.to_be_bytes());
    out.resize(SENT_BYTES, b'a');
    out
}

#[test]
fn a_principal_without_a_role_holds_no_memory_with_long_messages() {
    run(async {
        let harness = start().await;
        for method in ["encrypt", "decrypt", "tokens.get", "inspect", "explode"] {
            // Each connection begins a message and does not complete it.
            let mut connections = Vec::new();
            for msgid in 1..=4 {
                let mut raw = harness
                    .raw_as(Some(&harness.another_caller(NOBODY)))
                    .await
                    .unwrap();
                raw.send(&long_beginning(msgid, method)).await;
                let heard = tokio::select! {
                    heard = raw.hear() => heard,
                    _ = harness.metric_becomes("sealwire_bytes_in_flight", |bytes| bytes > (SENT_BYTES / 2) as f64) => {
                        panic!("{method}: memory is held before it is known who may")
                    }
                };
                let Heard::Response(answered, Err(error)) = heard else {
                    panic!("{method}: {heard:?}")
                };
                assert_eq!(
                    (answered, error.code),
                    (u32::from(msgid), ErrorCode::Forbidden),
                    "{method}"
                );
                connections.push(raw);
            }
            harness
                .metric_becomes("sealwire_bytes_in_flight", |bytes| bytes == 0.0)
                .await;
            // The rest is discarded, and the connection stays open.
            for mut raw in connections {
                let sent = long_beginning(1, method)
                    .iter()
                    .position(|byte| *byte == 0xdb)
                    .unwrap()
                    + 5;
                raw.send(&vec![b'a'; ANNOUNCED_BYTES as usize - (SENT_BYTES - sent)])
                    .await;
                raw.is_alive().await;
            }
        }
        // A principal with a role can send as much.
        let mut raw = harness
            .raw_as(Some(&harness.another_caller(FULL)))
            .await
            .unwrap();
        raw.send(&long_beginning(1, "encrypt")).await;
        harness
            .metric_becomes("sealwire_bytes_in_flight", |bytes| {
                bytes > (SENT_BYTES / 2) as f64
            })
            .await;
    });
}
