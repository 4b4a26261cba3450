//! Tests of unsealing: any slot serves, a right root key stays in memory, and the audit key needs
//! no store.

mod uses;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use sealwire_apps::Control;
use sealwire_crypto::{AppId, Suite};
use sealwire_store::{ControlStore, MemoryStore};

use super::*;

const SET: [u8; 16] = [3; 16];

/// A configuration with the provider `local` and two more, whose keys are files.
struct Deployment {
    folder: tempfile::TempDir,
    config: Config,
    store: Arc<dyn ControlStore>,
}

impl Deployment {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::defaults(folder.path());
        config.kek_providers = Some(folder.path().join("providers.toml"));
        config.audit.folder = Some(folder.path().join("audit"));
        let deployment = Self {
            folder,
            config,
            store: Arc::new(MemoryStore::default()),
        };
        fs::create_dir(deployment.path("audit")).unwrap();
        for name in ["kek.key", "east.key", "west.key"] {
            deployment.write(name, &Kek::generate_hex().unwrap());
        }
        let table = |name: &str| format!("[{name}]\nkind = \"file\"\npath = \"{name}.key\"\n");
        deployment.write("providers.toml", &(table("east") + &table("west")));
        deployment
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn remove(&self, names: &[&str]) {
        names
            .iter()
            .for_each(|name| fs::remove_file(self.path(name)).unwrap());
    }

    /// Opens the store as another process does.
    fn open(&self) -> (Arc<Unsealer>, Control) {
        let unsealer = Arc::new(Unsealer::open(&self.config).unwrap());
        let control =
            Control::with_finder(Arc::clone(&self.store), Arc::<Unsealer>::clone(&unsealer));
        (unsealer, control)
    }

    async fn slots(&self, names: &[&str], root: &RootKey, first: u32) -> Vec<RootSlot> {
        let providers = Providers::load(&self.config).unwrap();
        let mut slots = Vec::new();
        for (name, number) in names.iter().zip(first..) {
            slots.push(providers.new_slot(name, SET, root, number).await.unwrap());
        }
        slots
    }

    /// Creates an app and a root key.
    async fn with_root(names: &[&str]) -> (Self, RootKey) {
        let deployment = Self::new();
        let (_, control) = deployment.open();
        control
            .create(&AppId::new("shop").unwrap(), &[Suite::P256])
            .await
            .unwrap();
        let root = RootKey::generate().unwrap();
        let slots = deployment.slots(names, &root, 1).await;
        control.create_root(SET, &root, slots).await.unwrap();
        // Tests of the anchor write one themselves.
        deployment.remove(&["audit/anchor.json"]);
        (deployment, root)
    }

    async fn error_text(&self) -> String {
        match self.open().1.load().await {
            Err(StoreError::RootKey(why)) => why,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn any_one_slot_unseals_the_store() {
    let all = ["kek.key", "east.key", "west.key"];
    for left in all {
        let (deployment, _) = Deployment::with_root(&["local", "east", "west"]).await;
        let gone: Vec<&str> = all.into_iter().filter(|name| *name != left).collect();
        deployment.remove(&gone);
        assert_eq!(
            deployment.open().1.load().await.unwrap().apps.len(),
            1,
            "{left}"
        );
    }
}

#[tokio::test]
async fn a_store_without_a_right_slot_names_each_with_its_reason() {
    let (deployment, root) = Deployment::with_root(&["local", "east", "west"]).await;
    deployment.remove(&["kek.key"]);
    let other = Kek::generate_hex().unwrap();
    deployment.write("east.key", &other);
    deployment.write(
        "providers.toml",
        "[east]\nkind = \"file\"\npath = \"east.key\"\n",
    );
    let why = deployment.error_text().await;
    let parts: Vec<&str> = why.split("; ").collect();
    assert!(
        parts[0].starts_with("no slot unwraps it: slot 1 (provider local): ")
            && parts[0].contains("kek.key"),
        "{why}"
    );
    assert!(
        parts[1].starts_with("slot 2 (provider east): ") && parts[1].contains("another key's"),
        "{why}"
    );
    assert_eq!(parts[2..], ["slot 3 (provider west): not configured here"]);
    let digits = hex_of(root.expose());
    assert!(!why.contains(&*other) && !why.contains(&digits));
}

fn hex_of(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_provider_that_gives_another_root_key_is_refused_and_the_others_are_awaited() {
    /// A provider that answers at once, with another root key.
    #[derive(Debug)]
    struct Liar;
    #[async_trait]
    impl Provider for Liar {
        fn kind(&self) -> sealwire_kek::ProviderKind {
            sealwire_kek::ProviderKind::File
        }
        async fn wrap(
            &self,
            _: &sealwire_kek::RootBytes,
            _: &WrapSlot,
        ) -> Result<Vec<u8>, ProviderError> {
            Ok(vec![1])
        }
        async fn unwrap(
            &self,
            _: &[u8],
            _: &WrapSlot,
        ) -> Result<sealwire_kek::RootBytes, ProviderError> {
            Ok(Box::new(zeroize::Zeroizing::new([9; 32])))
        }
    }
    let (deployment, root) = Deployment::with_root(&["local", "east"]).await;
    let record = deployment.open().1.root().await.unwrap().1.unwrap();
    let lying = |name: &str| {
        let mut unsealer = Unsealer::open(&deployment.config).unwrap();
        let mut providers = Providers::load(&deployment.config).unwrap();
        providers.0.get_mut(name).unwrap().provider = Ok(Arc::new(Liar));
        unsealer.providers = Arc::new(providers);
        unsealer
    };
    let found = lying("local").unseal(SET, &record.active).await.unwrap();
    assert_eq!(found.expose(), root.expose());
    let error = lying("local")
        .providers
        .new_slot("local", SET, &root, 9)
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "root key: provider local: the copy unwraps to another root key"
    );
    deployment.remove(&["east.key"]);
    let error = lying("local")
        .unseal(SET, &record.active)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("slot 1 (provider local): the copy unwraps to another root key; slot 2"),
        "{error}"
    );
}

#[tokio::test]
async fn an_unwrapped_root_key_outlives_its_providers_and_no_longer_than_its_record() {
    let (deployment, first) = Deployment::with_root(&["local", "east"]).await;
    let (unsealer, control) = deployment.open();
    control.load().await.unwrap();
    deployment.remove(&["kek.key", "east.key"]);
    control.load().await.unwrap();
    assert!(deployment.error_text().await.contains("kek.key"));

    // An incoming root key must be there before the load succeeds.
    let second = RootKey::generate().unwrap();
    control
        .stage_root(&second, deployment.slots(&["west"], &second, 3).await)
        .await
        .unwrap();
    let staged = fs::read_to_string(deployment.path("west.key")).unwrap();
    deployment.remove(&["west.key"]);
    let error = control.load().await.unwrap_err().to_string();
    assert!(error.contains("slot 3 (provider west)"), "{error}");
    deployment.write("west.key", &staged);
    unsealer.retry_at_next_load();
    control.load().await.unwrap();
    let unwrapped_ids = || {
        unsealer
            .unwrapped()
            .keys()
            .copied()
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(
        unwrapped_ids(),
        [first.id(&SET).unwrap(), second.id(&SET).unwrap()].into()
    );
    control.activate_root(&second).await.unwrap();
    deployment.remove(&["west.key"]);
    control.load().await.unwrap();
    assert_eq!(unwrapped_ids(), [second.id(&SET).unwrap()].into());
}

#[tokio::test]
async fn the_audit_key_needs_no_store_and_stays_the_same() {
    let (deployment, _) = Deployment::with_root(&["local", "east"]).await;
    let copy = deployment.path("audit").join(ROOT_COPY_FILE);
    let local = fs::read_to_string(deployment.path("kek.key")).unwrap();
    let secret = Kek::from_hex(&local).unwrap().audit_secret().clone();
    let offline = async || {
        audit_kek(&deployment.config, None)
            .await
            .map(|kek| kek.audit_secret().clone())
    };
    assert_eq!(
        offline().await.unwrap(),
        secret,
        "without a copy, by the configured key"
    );

    let (unsealer, control) = deployment.open();
    unsealer.keep_copy(&deployment.path("audit")).await;
    assert!(!copy.exists(), "nothing was loaded yet");
    control.load().await.unwrap();
    assert_eq!(
        fs::metadata(&copy).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        fs::read(&copy).unwrap(),
        deployment.store.read("root").await.unwrap().1.unwrap()
    );
    let other = Kek::generate_hex().unwrap();
    deployment.write("kek.key", &other);
    assert_eq!(offline().await.unwrap(), secret, "by the other slot");
    deployment.write("kek.key", &local);

    // Another root key, and none.
    let second = RootKey::generate().unwrap();
    control
        .stage_root(&second, deployment.slots(&["west"], &second, 3).await)
        .await
        .unwrap();
    control.activate_root(&second).await.unwrap();
    control.load().await.unwrap();
    assert_eq!(
        fs::read(&copy).unwrap(),
        deployment.store.read("root").await.unwrap().1.unwrap()
    );
    assert_eq!(offline().await.unwrap(), secret);
    fs::write(&copy, "{}").unwrap();
    assert!(
        offline()
            .await
            .unwrap_err()
            .to_string()
            .contains("root.json: root: damaged")
    );
    control
        .remove_root(Arc::new(Kek::from_hex(&local).unwrap()))
        .await
        .unwrap();
    control.load().await.unwrap();
    assert!(!copy.exists());
    assert_eq!(offline().await.unwrap(), secret);
}

#[test]
fn a_file_of_providers_is_refused_by_name_and_without_its_values() {
    let deployment = Deployment::new();
    for (text, expected) in [
        ("[hsm", "line 1: must be tables of providers"),
        ("\n\n[hsm]\nkind = 7", "line 4: must be tables of providers"),
        ("kind = \"file\"", "line 1: must be tables of providers"),
        (
            "[local]\nkind = \"file\"\npath = \"a\"",
            "`local` is the one that `kek.provider` configures",
        ),
        (
            "[hsm]\npath = \"a\"",
            "provider `hsm`: the kind must be one of",
        ),
        (
            "[HSM]\nkind = \"file\"\npath = \"a\"",
            "provider `?`: the name must be",
        ),
        (
            "[hsm]\nkind = \"file\"\npath = \"a\"\npni_file = \"hunter2\"",
            "provider `hsm`: pni_file: unknown",
        ),
        ("[hsm]\nkind = \"hunter2\"", "the kind must be one of"),
        (
            "[hsm]\nkind = \"file\"\npath = hunter2",
            "line 3: must be tables of providers",
        ),
    ] {
        deployment.write("providers.toml", text);
        let error = Unsealer::open(&deployment.config).unwrap_err().to_string();
        assert!(
            error.starts_with("kek: ") && error.contains("providers.toml"),
            "{error}"
        );
        assert!(
            error.contains(expected) && !error.contains("hunter2"),
            "{expected}: {error}"
        );
    }
    deployment.remove(&["providers.toml"]);
    assert!(
        Unsealer::open(&deployment.config)
            .unwrap_err()
            .to_string()
            .contains("providers.toml")
    );
}

#[tokio::test]
async fn the_configured_key_may_be_absent_only_beside_other_providers() {
    let (mut deployment, _) = Deployment::with_root(&["east"]).await;
    // One that others can read is no reason to start without it.
    fs::set_permissions(
        deployment.path("kek.key"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let exposed = Unsealer::open(&deployment.config).unwrap_err().to_string();
    assert!(
        exposed.contains("mode 644") && exposed.contains("kek.key"),
        "{exposed}"
    );
    deployment.remove(&["kek.key"]);
    deployment.open().1.load().await.unwrap();
    let empty = Control::with_finder(Arc::new(MemoryStore::default()), deployment.open().0);
    assert!(
        matches!(empty.load().await, Err(StoreError::Setting { key: "kek", what }) if what.contains("kek.key"))
    );
    deployment.config.kek_providers = None;
    assert!(
        Unsealer::open(&deployment.config)
            .unwrap_err()
            .to_string()
            .contains("kek.key")
    );
}

#[tokio::test]
async fn a_required_root_key_that_was_removed_is_missed() {
    let (mut deployment, _) = Deployment::with_root(&["local", "east"]).await;
    let (unsealer, control) = deployment.open();
    control.load().await.unwrap();
    deployment.config.kek_needs_root = true;
    let strict = deployment.open().1;
    strict.load().await.unwrap();
    let local = Kek::from_hex(&fs::read_to_string(deployment.path("kek.key")).unwrap()).unwrap();
    control.remove_root(Arc::new(local)).await.unwrap();
    assert!(
        matches!(strict.load().await, Err(StoreError::NotAuthentic { .. })),
        "it saw the root key"
    );
    assert!(deployment.error_text().await.contains("kek.root_key"));
    control.load().await.unwrap();
    assert!(
        unsealer.unwrapped().is_empty(),
        "the removed root key is wiped"
    );
}

#[tokio::test]
async fn an_older_record_drops_no_root_key_of_a_newer_one() {
    let (deployment, _) = Deployment::with_root(&["local"]).await;
    let (unsealer, control) = deployment.open();
    unsealer.keep_copy(&deployment.path("audit")).await;
    let older = control.root().await.unwrap().1.unwrap();
    let second = RootKey::generate().unwrap();
    control
        .stage_root(&second, deployment.slots(&["east"], &second, 2).await)
        .await
        .unwrap();
    control.load().await.unwrap();
    let copy = fs::read(deployment.path("audit").join(ROOT_COPY_FILE)).unwrap();
    // An operation that had read the store before comes to its end.
    unsealer.find(Some(&older)).await.unwrap();
    deployment.remove(&["kek.key", "east.key"]);
    control.load().await.unwrap();
    assert_eq!(
        fs::read(deployment.path("audit").join(ROOT_COPY_FILE)).unwrap(),
        copy
    );
}

#[tokio::test]
async fn a_slot_of_shares_unwraps_with_their_holders_alone() {
    let (deployment, root) = Deployment::with_root(&["local"]).await;
    let key = sealwire_kek::RecoveryKey::generate(SET).unwrap();
    let table = "[board]\nkind = \"shares\"\npublic_key = \"recovery.pub\"\n";
    deployment.write("providers.toml", table);
    deployment.write("recovery.pub", &key.public().unwrap().to_text());
    fs::set_permissions(
        deployment.path("recovery.pub"),
        fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    let slots = deployment.slots(&["board"], &root, 2).await;
    assert_eq!(slots[0].verified_unix_s, 0, "it was not unwrapped");
    let (unsealer, control) = deployment.open();
    assert!(unsealer.providers().needs_holders(&slots[0]));
    let damaged = RootSlot {
        wrapped: vec![1; 60],
        ..slots[0].clone()
    };
    assert!(
        !unsealer.providers().needs_holders(&damaged),
        "holders do not help"
    );
    let record = control.root().await.unwrap().1.unwrap();
    let local = &record.active.slots[0];
    assert!(!unsealer.providers().needs_holders(local));
    control
        .set_slots(
            record.active.id,
            sealwire_apps::SlotChange {
                add: slots,
                ..Default::default()
            },
        )
        .await
        .unwrap();

    deployment.remove(&["kek.key"]);
    let why = deployment.error_text().await;
    assert!(
        why.ends_with(
            "slot 2 (provider board): needs the holders of shares: `sealwire root recover`"
        ),
        "{why}"
    );
    let (unsealer, control) = deployment.open();
    let record = control.root().await.unwrap().1.unwrap();
    let slot = WrapSlot {
        set: SET,
        root: record.active.id,
        number: 2,
    };
    let other = unsealer
        .set_unwrapped(SET, &record.active, RootKey::generate().unwrap())
        .unwrap_err()
        .to_string();
    assert!(other.contains("another root key"), "{other}");
    let found = key.unwrap(&record.active.slots[1].wrapped, &slot).unwrap();
    unsealer
        .set_unwrapped(SET, &record.active, RootKey::from_bytes(found))
        .unwrap();
    assert_eq!(control.load().await.unwrap().apps.len(), 1);
}

/// Strips a store of everything that tells of its root key, in another generation and in the one
/// that is served, and then puts the records back.
#[tokio::test]
async fn a_store_that_is_stripped_and_put_back_makes_nobody_an_administrator() {
    use sealwire_access::{
        ADMINISTRATOR, AuthorizationRequest, Binding, Operation, Principal, RoleName, principal_key,
    };
    use sealwire_store_embedded::FileStore;
    use sealwire_wire::control::{
        PrincipalOperation, PrincipalRequest, RoleOperation, RoleRequest,
    };

    let (mut deployment, _) = Deployment::with_root(&["east", "west"]).await;
    let maker = deployment.open().1;
    let grants = vec!["decrypt apps=*"];
    let call = RoleRequest {
        role: "relay",
        operation: RoleOperation::Set { grants },
    };
    crate::control::change_role(&**maker.store(), &call)
        .await
        .unwrap();
    let truth = sealwire_store::everything(&*deployment.store)
        .await
        .unwrap();
    let path = deployment.path("state.json");
    let write = async |state: &sealwire_store::Snapshot| {
        let _ = fs::remove_file(&path);
        FileStore::open(&path)
            .unwrap()
            .replace(0, state)
            .await
            .unwrap();
    };
    write(&truth).await;
    deployment.store = Arc::new(FileStore::open(&path).unwrap());
    let (_, control) = deployment.open();
    let apps = Arc::new(
        crate::apps::Apps::load(control, "here".into(), None)
            .await
            .unwrap(),
    );
    let access = Config::defaults(Path::new("nowhere")).access;
    let authorizer = crate::access::Authorizer::new(&access, &apps, &Arc::new(Metrics::new()));
    let other_principal = Principal::from_text("stranger").unwrap();
    let decrypt = || AuthorizationRequest::new(Operation::Decrypt, Some("shop"), None);

    let mut forged = truth.clone();
    forged
        .records
        .retain(|key, _| key != "root" && key != "head" && !key.contains("index/"));
    let roles = vec![
        RoleName::new(ADMINISTRATOR).unwrap(),
        RoleName::new("relay").unwrap(),
    ];
    let binding = Binding {
        principal: other_principal.clone(),
        roles,
    }
    .to_record();
    forged
        .records
        .insert(principal_key(&other_principal), binding);
    for generation in [truth.generation + 1, truth.generation] {
        forged.generation = generation;
        write(&forged).await;
        assert!(
            authorizer
                .decide(&other_principal, decrypt())
                .await
                .is_err(),
            "{generation}"
        );
    }
    let operation = PrincipalOperation::Grant { role: "relay" };
    let call = || PrincipalRequest {
        principal: "stranger",
        operation,
    };
    assert!(
        crate::control::change_principal(&**apps.control().store(), call())
            .await
            .is_err(),
        "no binding is read"
    );
    write(&truth).await;
    assert!(apps.control().apps().await.is_ok());
    assert!(
        authorizer
            .decide(&other_principal, decrypt())
            .await
            .is_err(),
        "nobody gave a role"
    );
    // An operator does. Of the forged roles, none comes with it.
    crate::control::change_principal(&**apps.control().store(), call())
        .await
        .unwrap();
    let fresh = deployment.open().1;
    fresh.load().await.unwrap();
    let (_, found) = fresh
        .store()
        .read(&principal_key(&other_principal))
        .await
        .unwrap();
    let found = Binding::from_record(&principal_key(&other_principal), &found.unwrap()).unwrap();
    assert_eq!(found.roles, [RoleName::new("relay").unwrap()]);
}

/// An older state that is served is not changed by the engine itself: first administrators,
/// maintenance, sweeps.
#[tokio::test]
async fn an_older_state_that_is_served_fails_no_start_and_loses_nothing() {
    let (mut deployment, _) = Deployment::with_root(&["east", "west"]).await;
    let (_, control) = deployment.open();
    let app = AppId::new("gone").unwrap();
    control.create(&app, &[Suite::P256]).await.unwrap();
    control
        .delete(&app, sealwire_apps::Target::App, std::time::Duration::ZERO)
        .await
        .unwrap();
    let set = HEXLOWER.encode(&SET);
    let code = "00".repeat(32);
    let anchor =
        format!("{{\"format\":1,\"set\":\"{set}\",\"generation\":1000,\"code\":\"{code}\"}}");
    deployment.write("audit/anchor.json", &anchor);
    assert!(matches!(
        deployment.open().1.load().await,
        Err(StoreError::RolledBack { seen: 1_000, .. })
    ));
    deployment.config.state.serves_rolled_back = true;
    let (_, control) = deployment.open();
    let apps = crate::apps::Apps::load(control, "here".into(), None)
        .await
        .unwrap();
    assert_eq!(apps.control().store().rolled_back(), Some(1_000));
    let mut access = Config::defaults(Path::new("nowhere")).access;
    access.administrators = vec![sealwire_access::Principal::from_text("operator").unwrap()];
    assert!(
        !crate::control::first_start(&access, &**apps.control().store())
            .await
            .unwrap()
    );
    let before = sealwire_store::everything(&*deployment.store)
        .await
        .unwrap();
    let telemetry = Arc::new(sealwire_telemetry::Telemetry::default());
    let watching = Arc::new(apps);
    let watch = tokio::spawn(Arc::clone(&watching).watch(
        std::time::Duration::from_millis(5),
        None,
        Arc::clone(&telemetry),
    ));
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    watch.abort();
    assert!(
        !telemetry
            .readiness
            .is_failing(sealwire_telemetry::Condition::Store),
        "maintenance is no failure"
    );
    assert_eq!(
        sealwire_store::everything(&*deployment.store)
            .await
            .unwrap(),
        before
    );
}

#[tokio::test]
async fn an_anchor_names_the_set_of_root_keys() {
    let (deployment, _) = Deployment::with_root(&["east", "west"]).await;
    let code = "00".repeat(32);
    let anchor =
        format!("{{\"format\":1,\"set\":\"{code}\",\"generation\":1,\"code\":\"{code}\"}}");
    deployment.write(
        "audit/anchor.json",
        &anchor.replacen(&code, &"ee".repeat(16), 1),
    );
    for store in [
        Arc::clone(&deployment.store),
        Arc::new(MemoryStore::default()),
    ] {
        let unsealer = Arc::new(Unsealer::open(&deployment.config).unwrap());
        let error = Control::with_finder(store, unsealer)
            .load()
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("record root is not authentic")
                && error.contains("remove the anchor file"),
            "{error}"
        );
    }
}

/// What this machine knows of root keys, from what files.
#[tokio::test]
async fn known_root_keys_come_from_the_anchor_and_the_copied_record() {
    let (deployment, _) = Deployment::with_root(&["local", "east"]).await;
    let (unsealer, control) = deployment.open();
    let genuine = control.root().await.unwrap().1.unwrap();
    let mut forged = genuine.clone();
    forged.active.id = [9; 16];
    let other_set = RootRecord {
        set: [9; 16],
        ..genuine.clone()
    };
    let look_up = |record: &RootRecord| {
        KnownRoots::read(&deployment.config)
            .unwrap()
            .look_up(record)
    };
    let anchor = deployment.path("audit/anchor.json");
    let copy = deployment.path("audit").join(ROOT_COPY_FILE);
    assert_eq!(look_up(&genuine), RootKnowledge::Unknown);
    control
        .disable(&AppId::new("shop").unwrap(), sealwire_apps::Target::App)
        .await
        .unwrap();
    for (files, other) in [("anchor", &anchor), ("both", &anchor), ("copy", &copy)] {
        match files {
            "both" => {
                unsealer.keep_copy(&deployment.path("audit")).await;
                control.load().await.unwrap();
            }
            "copy" => fs::remove_file(&anchor).unwrap(),
            _ => {}
        }
        assert_eq!(look_up(&genuine), RootKnowledge::Confirmed, "{files}");
        for foreign in [&forged, &other_set] {
            assert_eq!(
                look_up(foreign),
                RootKnowledge::Other(other.clone()),
                "{files}"
            );
        }
    }
    // A command rotates the root key, and no engine has heard of it.
    let earlier = fs::read(&copy).unwrap();
    let second = RootKey::generate().unwrap();
    control
        .stage_root(&second, deployment.slots(&["west"], &second, 3).await)
        .await
        .unwrap();
    control.activate_root(&second).await.unwrap();
    let rotated = control.root().await.unwrap().1.unwrap();
    fs::write(&copy, earlier).unwrap();
    assert_eq!(look_up(&rotated), RootKnowledge::Confirmed);
    assert_eq!(
        look_up(&genuine),
        RootKnowledge::Other(anchor.clone()),
        "a retired root key is not confirmed"
    );
    // An anchor of an earlier version names none.
    let text = fs::read_to_string(&anchor)
        .unwrap()
        .replace("\"format\":2", "\"format\":1");
    fs::write(
        &anchor,
        text.split(",\"roots\"").next().unwrap().to_owned() + "}",
    )
    .unwrap();
    assert_eq!(look_up(&rotated), RootKnowledge::Other(copy.clone()));
    fs::write(&copy, "{}").unwrap();
    assert!(
        KnownRoots::read(&deployment.config)
            .unwrap_err()
            .to_string()
            .contains("root.json")
    );
}
