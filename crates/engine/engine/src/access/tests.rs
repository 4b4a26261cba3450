use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sealwire_access::{Missing, Operation};
use sealwire_apps::Control;
use sealwire_crypto::Kek;
use sealwire_store::{Changes, Commit, ControlStore, Instance, MemoryStore, Snapshot, StoreError};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::Postgres;
use sealwire_wire::ErrorCode;
use sealwire_wire::control::{
    Page, PrincipalOperation, PrincipalRequest, RoleOperation, RoleRequest,
};
use tokio::task::JoinSet;

use super::*;
use crate::control::{change_principal, change_role, first_start, principals, roles};
use sealwire_settings::Config;

/// A key and the record that it gets; `None`: it is removed.
type Change = (&'static str, Option<Vec<u8>>);

/// A store that can be down, counts what it is asked, and may be changed by others between two
/// questions.
struct Faulty {
    store: Arc<dyn ControlStore>,
    down: AtomicBool,
    /// Records do not verify under the root key.
    not_authentic: AtomicBool,
    reads: AtomicU64,
    /// Changes that others make just after the next read, in this order.
    after_read: Mutex<Vec<Change>>,
}

impl Faulty {
    fn over(store: Arc<dyn ControlStore>) -> Self {
        let down = AtomicBool::default();
        let not_authentic = AtomicBool::default();
        let reads = AtomicU64::default();
        Self {
            store,
            down,
            not_authentic,
            reads,
            after_read: Mutex::default(),
        }
    }

    fn up(&self) -> Result<(), StoreError> {
        if self.not_authentic.load(Ordering::SeqCst) {
            let key = "principal/dns/relay.internal".to_owned();
            let what = "changed".to_owned();
            return Err(StoreError::NotAuthentic { key, what });
        }
        if self.down.load(Ordering::SeqCst) {
            Err(StoreError::Unavailable("down".into()))
        } else {
            Ok(())
        }
    }
}

#[async_trait::async_trait]
impl ControlStore for Faulty {
    async fn generation(&self) -> Result<u64, StoreError> {
        self.up()?;
        self.store.generation().await
    }

    async fn load(&self) -> Result<Snapshot, StoreError> {
        self.up()?;
        self.store.load().await
    }

    async fn read(&self, key: &str) -> Result<(u64, Option<Vec<u8>>), StoreError> {
        self.up()?;
        self.reads.fetch_add(1, Ordering::SeqCst);
        let found = self.store.read(key).await;
        let others = std::mem::take(&mut *self.after_read.lock().unwrap());
        for (key, record) in others {
            let base = self.store.generation().await?;
            self.store.commit(base, key, record.as_deref()).await?;
        }
        found
    }

    async fn singles(&self, after: Option<&str>, limit: usize) -> Result<Snapshot, StoreError> {
        self.up()?;
        self.store.singles(after, limit).await
    }

    async fn commit_all(&self, base: u64, changes: &Changes) -> Result<Commit, StoreError> {
        self.up()?;
        self.store.commit_all(base, changes).await
    }

    async fn replace(&self, base: u64, state: &Snapshot) -> Result<Commit, StoreError> {
        self.store.replace(base, state).await
    }

    async fn changed(&self) {
        self.store.changed().await;
    }

    async fn beat(&self, instance: &Instance) -> Result<(), StoreError> {
        self.store.beat(instance).await
    }

    async fn lease(&self, name: &str, holder: &str, time: Duration) -> Result<bool, StoreError> {
        self.store.lease(name, holder, time).await
    }

    async fn leave(&self, id: &str) -> Result<(), StoreError> {
        self.store.leave(id).await
    }

    async fn instances(&self, age_max: Duration) -> Result<Vec<Instance>, StoreError> {
        self.store.instances(age_max).await
    }
}

struct Under {
    store: Arc<Faulty>,
    apps: Arc<Apps>,
    decider: Authorizer,
}

async fn under(change: impl FnOnce(&mut sealwire_settings::Access)) -> Under {
    under_store(Arc::new(MemoryStore::default()), change).await
}

async fn under_store(
    store: Arc<dyn ControlStore>,
    change: impl FnOnce(&mut sealwire_settings::Access),
) -> Under {
    let store = Arc::new(Faulty::over(store));
    let control = Control::new(
        Arc::<Faulty>::clone(&store),
        Kek::from_hex(&"5a".repeat(32)).unwrap(),
    );
    let apps = Arc::new(Apps::load(control, "here".into(), None).await.unwrap());
    let mut access = Config::defaults(std::path::Path::new("nowhere")).access;
    change(&mut access);
    let decider = Authorizer::new(&access, &apps, &Arc::new(Metrics::new()));
    Under {
        store,
        apps,
        decider,
    }
}

fn relay() -> Principal {
    Principal::from_text("relay.internal").unwrap()
}

fn encrypt(app: &str) -> AuthorizationRequest<'_> {
    AuthorizationRequest::new(Operation::Encrypt, Some(app), None)
}

fn role_record(grant: &str) -> Vec<u8> {
    let grant = sealwire_access::Grant::from_text(grant).unwrap();
    sealwire_access::Role::new("relay", vec![grant])
        .unwrap()
        .to_record()
}

fn binding_record() -> Vec<u8> {
    let role = sealwire_access::RoleName::new("relay").unwrap();
    Binding {
        principal: relay(),
        roles: vec![role],
    }
    .to_record()
}

impl Under {
    async fn role(&self, grant: &str) {
        let call = RoleRequest {
            role: "relay",
            operation: RoleOperation::Set {
                grants: vec![grant],
            },
        };
        change_role(&*self.store, &call).await.unwrap();
    }

    async fn bind(&self) {
        let call = PrincipalRequest {
            principal: "relay.internal",
            operation: PrincipalOperation::Grant { role: "relay" },
        };
        change_principal(&*self.store, call).await.unwrap();
    }

    async fn revoke(&self) {
        let call = PrincipalRequest {
            principal: "relay.internal",
            operation: PrincipalOperation::Revoke {
                role: Some("relay"),
            },
        };
        change_principal(&*self.store, call).await.unwrap();
    }

    /// Returns the missing permission, if any.
    async fn missing(&self, app: &str) -> Option<Missing> {
        match self.decider.decide(&relay(), encrypt(app)).await {
            Ok(permit) => {
                assert_eq!(
                    (permit.operation(), permit.app()),
                    (Operation::Encrypt, Some(app))
                );
                None
            }
            Err(RequestFailure::Denied(denied)) => Some(denied.missing),
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_change_counts_for_every_call_after_it() {
    let under = under(|_| ()).await;
    assert_eq!(under.missing("shop").await, Some(Missing::Role));
    under.role("encrypt apps=shop").await;
    under.bind().await;
    under.apps.changed_here().await;
    for _ in 0..3 {
        assert_eq!(under.missing("shop").await, None);
    }
    assert_eq!(under.missing("other").await, Some(Missing::App));
    under.role("decrypt apps=shop").await;
    under.apps.changed_here().await;
    assert_eq!(under.missing("shop").await, Some(Missing::Operation));
    under.role("encrypt apps=*").await;
    under.apps.changed_here().await;
    assert_eq!(under.missing("other").await, None);
    under.revoke().await;
    under.apps.changed_here().await;
    assert_eq!(under.missing("other").await, Some(Missing::Role));
}

#[tokio::test]
async fn a_change_that_cannot_be_read_back_ends_what_was_granted() {
    let under = under(|access| access.stale_s = 3_600).await;
    under.role("encrypt apps=shop").await;
    under.bind().await;
    under.apps.changed_here().await;
    assert_eq!(under.missing("shop").await, None);
    under.revoke().await;
    under.store.down.store(true, Ordering::SeqCst);
    under.apps.changed_here().await;
    let refused = under
        .decider
        .decide(&relay(), encrypt("shop"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unavailable, "{refused}");
    under.store.down.store(false, Ordering::SeqCst);
    assert_eq!(under.missing("shop").await, Some(Missing::Role));
}

#[tokio::test]
async fn roles_and_those_who_have_them_are_of_one_generation() {
    let under = under(|_| ()).await;
    under.role("encrypt apps=shop").await;
    under.bind().await;
    under.apps.changed_here().await;
    // Between the two questions the role is taken away first and then widened: nobody ever had it
    // wide.
    let binding = principal_key(&relay());
    let binding: &'static str = Box::leak(binding.into_boxed_str());
    *under.store.after_read.lock().unwrap() = vec![
        (binding, None),
        ("role/relay", Some(role_record("encrypt apps=*"))),
    ];
    assert_eq!(
        under.missing("other").await,
        Some(Missing::App),
        "as it was when it was asked"
    );
    under.apps.changed_here().await;
    assert_eq!(under.missing("other").await, Some(Missing::Role));
    // The other way round: a change that this engine has not heard of is loaded before anybody is
    // judged by it.
    *under.store.after_read.lock().unwrap() =
        vec![("role/relay", Some(role_record("decrypt apps=*")))];
    let base = under.store.generation().await.unwrap();
    under
        .store
        .commit(base, binding, Some(&binding_record()))
        .await
        .unwrap();
    under.apps.changed_here().await;
    under
        .decider
        .decide(&relay(), encrypt("shop"))
        .await
        .unwrap();
    under.apps.changed_here().await;
    assert_eq!(under.missing("shop").await, Some(Missing::Operation));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_concurrent_requests_are_one_query_on_postgresql() {
    let server = Postgres::shared();
    let database = server.database().unwrap();
    let password = Some(server.password().into());
    let timeout = Duration::from_secs(60);
    let options = PostgresOptions {
        password,
        timeout,
        ..PostgresOptions::new(database.socket_url())
    };
    let under = under_store(
        Arc::new(PostgresStore::connect(options).await.unwrap()),
        |_| (),
    )
    .await;
    under.role("encrypt apps=shop").await;
    under.bind().await;
    under.apps.changed_here().await;
    let reads = under.store.reads.load(Ordering::SeqCst);
    let under = Arc::new(under);
    let mut calls = JoinSet::new();
    for _ in 0..10_000 {
        let under = Arc::clone(&under);
        calls.spawn(async move { under.missing("shop").await });
    }
    assert!(
        calls
            .join_all()
            .await
            .into_iter()
            .all(|missing| missing.is_none())
    );
    assert_eq!(under.store.reads.load(Ordering::SeqCst) - reads, 1);
}

#[tokio::test]
async fn access_mode_observe_permits_and_off_reads_no_roles() {
    let observes = under(|access| access.mode = AccessMode::Observe).await;
    assert_eq!(observes.missing("shop").await, None);
    observes.apps.changed_here().await;
    observes.store.down.store(true, Ordering::SeqCst);
    assert_eq!(
        observes.missing("shop").await,
        None,
        "what is not known passes too"
    );
    let off = under(|access| access.mode = AccessMode::Off).await;
    off.store.down.store(true, Ordering::SeqCst);
    assert!(
        off.decider
            .decide_now(&relay(), encrypt("shop"), Instant::now())
            .unwrap()
            .is_ok()
    );
    assert_eq!(off.store.reads.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn roles_that_cannot_be_read_pass_no_value_in_any_mode() {
    /// Makes the roles of the principal unreadable.
    type Damage = fn(&Under) -> (&'static str, Option<Vec<u8>>);
    let damages: [(&str, Damage); 5] = [
        ("a binding that is no record", |_| {
            ("principal/dns/relay.internal", Some(b"{}".to_vec()))
        }),
        ("a role that is no record", |_| {
            ("role/relay", Some(b"{}".to_vec()))
        }),
        ("a role that is missing", |_| ("role/relay", None)),
        ("records that are not authentic", |under| {
            under.store.not_authentic.store(true, Ordering::SeqCst);
            ("", None)
        }),
        ("a store that is down", |under| {
            under.store.down.store(true, Ordering::SeqCst);
            ("", None)
        }),
    ];
    for mode in [AccessMode::Off, AccessMode::Observe, AccessMode::Enforce] {
        for (case, damage) in &damages {
            let under = under(|access| access.mode = mode).await;
            under.role("decrypt apps=shop mask=hash").await;
            under.bind().await;
            under.apps.changed_here().await;
            let (key, record) = damage(&under);
            if !key.is_empty() {
                let base = under.store.generation().await.unwrap();
                under
                    .store
                    .commit(base, key, record.as_deref())
                    .await
                    .unwrap();
                under.apps.changed_here().await;
            }

            for operation in Operation::ALL {
                let ask = AuthorizationRequest::new(operation, Some("shop"), Some("people"));
                let decided = under.decider.decide(&relay(), ask).await;
                let discloses = operation.value_access() != sealwire_access::ValueAccess::None;
                let passes = match mode {
                    AccessMode::Off => true,
                    AccessMode::Observe => !discloses,
                    AccessMode::Enforce => false,
                };
                assert_eq!(
                    decided.is_ok(),
                    passes,
                    "{operation}, {}, {case}",
                    mode.name()
                );
                let checked = under.decider.check(&relay(), ask, None).await;
                assert_eq!(
                    (checked.permitted, &*checked.mode),
                    (passes, mode.name()),
                    "{operation}, {case}"
                );
            }
        }
    }
}

#[tokio::test]
async fn the_first_administrators_are_made_once() {
    let named = |access: &mut sealwire_settings::Access| {
        access.administrators = ["cn:root", "root.internal"]
            .map(|name| Principal::from_text(name).unwrap())
            .into();
    };
    let mut access = Config::defaults(std::path::Path::new("nowhere")).access;
    let names = async |store: &MemoryStore| {
        let page = Page {
            after: None,
            limit: None,
        };
        let found = principals(store, page).await.unwrap().principals;
        found
            .into_iter()
            .map(|one| format!("{}: {}", one.principal, one.roles.join(",")))
            .collect::<Vec<_>>()
    };
    let store = MemoryStore::default();
    assert!(
        !first_start(&access, &store).await.unwrap(),
        "nobody is named"
    );
    named(&mut access);
    let both = ["cn:root: administrator", "root.internal: administrator"];
    assert!(first_start(&access, &store).await.unwrap());
    assert_eq!(names(&store).await, both);
    assert!(!first_start(&access, &store).await.unwrap());
    let revoke = |principal| PrincipalRequest {
        principal,
        operation: PrincipalOperation::Revoke { role: None },
    };
    change_principal(&store, revoke("cn:root")).await.unwrap();
    let last = change_principal(&store, revoke("root.internal"))
        .await
        .unwrap_err();
    assert_eq!(
        last.code,
        ErrorCode::Conflict,
        "nobody could grant roles any more"
    );
    let key = principal_key(&Principal::from_text("root.internal").unwrap());
    store
        .commit(store.generation().await.unwrap(), &key, None)
        .await
        .unwrap();
    assert!(
        !first_start(&access, &store).await.unwrap(),
        "once in the life of a store"
    );
    assert!(names(&store).await.is_empty());

    let half = MemoryStore::default();
    change_principal(
        &half,
        PrincipalRequest {
            principal: "cn:root",
            operation: PrincipalOperation::Grant {
                role: "administrator",
            },
        },
    )
    .await
    .unwrap();
    assert!(
        first_start(&access, &half).await.unwrap(),
        "a start that ended midway"
    );
    assert_eq!(names(&half).await, both);

    let others = MemoryStore::default();
    let other = PrincipalRequest {
        principal: "other",
        operation: PrincipalOperation::Grant {
            role: "administrator",
        },
    };
    change_principal(&others, other).await.unwrap();
    assert!(
        !first_start(&access, &others).await.unwrap(),
        "somebody has a role"
    );
    assert_eq!(names(&others).await, ["other: administrator"]);
}

#[tokio::test]
async fn roles_and_principals_are_changed_by_name() {
    let store = MemoryStore::default();
    let set = async |role, grants| {
        change_role(
            &store,
            &RoleRequest {
                role,
                operation: RoleOperation::Set { grants },
            },
        )
        .await
    };
    let delete = async |role| {
        change_role(
            &store,
            &RoleRequest {
                role,
                operation: RoleOperation::Delete,
            },
        )
        .await
    };
    let ask = async |principal, operation| {
        change_principal(
            &store,
            PrincipalRequest {
                principal,
                operation,
            },
        )
        .await
    };
    let grant = async |principal, role| ask(principal, PrincipalOperation::Grant { role }).await;
    let revoke = async |principal, role| ask(principal, PrincipalOperation::Revoke { role }).await;
    let code = |error: sealwire_wire::RpcError| error.code;
    use ErrorCode::{BadRequest, Conflict, NotFound};
    assert_eq!(
        set("relay", vec!["encrypt apps=shop"])
            .await
            .unwrap()
            .generation,
        1
    );
    assert_eq!(
        set("relay", vec!["fly apps=shop"]).await.map_err(code),
        Err(BadRequest)
    );
    assert_eq!(
        set("administrator", vec!["encrypt apps=shop"])
            .await
            .map_err(code),
        Err(BadRequest)
    );
    assert_eq!(
        grant("relay.internal", "none").await.map_err(code),
        Err(NotFound)
    );
    assert_eq!(
        grant("not a host", "relay").await.map_err(code),
        Err(BadRequest)
    );
    let made = grant("Relay.internal", "relay").await.unwrap();
    assert_eq!(
        (made.generation, &made.principal.unwrap().roles[..]),
        (2, &["relay".to_owned()][..])
    );
    assert_eq!(
        grant("relay.internal", "relay").await.unwrap().generation,
        2,
        "it has it already"
    );
    assert_eq!(delete("relay").await.map_err(code), Err(Conflict));
    assert_eq!(delete("none").await.map_err(code), Err(NotFound));
    assert_eq!(delete("administrator").await.map_err(code), Err(BadRequest));
    assert_eq!(
        revoke("relay.internal", Some("none")).await.map_err(code),
        Err(NotFound)
    );
    assert_eq!(
        revoke("cn:relay.internal", None).await.map_err(code),
        Err(NotFound),
        "another principal"
    );
    assert_eq!(
        revoke("relay.internal", Some("relay"))
            .await
            .unwrap()
            .principal,
        None
    );
    assert_eq!(delete("relay").await.unwrap().generation, 4);
    let roles = roles(
        &store,
        Page {
            after: None,
            limit: None,
        },
    )
    .await
    .unwrap();
    assert_eq!(
        roles
            .roles
            .iter()
            .map(|role| (&*role.role, role.built_in))
            .collect::<Vec<_>>(),
        [("administrator", true)]
    );
}

#[tokio::test]
async fn principals_come_in_pages() {
    let store = MemoryStore::default();
    for n in 0..25 {
        let principal = format!("host-{n:02}.internal");
        let operation = PrincipalOperation::Grant {
            role: "administrator",
        };
        change_principal(
            &store,
            PrincipalRequest {
                principal: &principal,
                operation,
            },
        )
        .await
        .unwrap();
    }
    let (mut all, mut after): (Vec<String>, Option<String>) = (Vec::new(), None);
    loop {
        let page = principals(
            &store,
            Page {
                after: after.as_deref(),
                limit: Some(10),
            },
        )
        .await
        .unwrap();
        assert!(page.principals.len() <= 10 && page.generation == 25);
        all.extend(page.principals.into_iter().map(|one| one.principal));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(
        all.iter()
            .enumerate()
            .all(|(n, name)| *name == format!("host-{n:02}.internal"))
            && all.len() == 25
    );
}
