use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rcgen::{
    CertificateParams, CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, SerialNumber,
};
use sealwire_apps::{CollectionName, FIRST_SLOT};
use sealwire_crypto::{AppId, Kek, RootKey, Suite};
use sealwire_engine::root::Providers;
use sealwire_records::objects::{
    AcceptedRecords, PropertyName, PropertySpec, PropertyType, Schema,
};
use sealwire_testkit::{Citus, Options, Postgres, Stop};
use tempfile::TempDir;
use time::OffsetDateTime;

use super::*;
use sealwire_dev_ca::{Authority, Leaf, Name, Usage, Validity};
use sealwire_server::server::{Server, open_control};

/// A deployment without problems, in a folder of its own.
struct Deployment {
    folder: TempDir,
    authority: Authority,
    config: String,
}

impl Deployment {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("doctor", Validity::days(900)).unwrap();
        // Ports that are free when the deployment is made. Each test has its own.
        let config = "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
                      [access]\nadministrators = [\"operator\"]\n[audit]\nfolder = \"audit\"\n\
                      [schedule]\nmemory_mib = 700\n";
        let config = config.to_owned();
        let deployment = Self {
            folder,
            authority,
            config,
        };
        fs::create_dir(deployment.path("tls")).unwrap();
        deployment.write("tls/client-ca.pem", deployment.authority.cert_pem());
        deployment.certify(Validity::days(400));
        deployment.write("kek.key", &Kek::generate_hex().unwrap());
        fs::create_dir(deployment.path("state")).unwrap();
        fs::set_permissions(deployment.path("state"), fs::Permissions::from_mode(0o700)).unwrap();
        deployment
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that only its owner can read.
    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
        self.mode(name, 0o600);
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn certify(&self, validity: Validity) {
        let names = vec![Name::Dns("localhost".into())];
        let leaf = Leaf {
            common_name: "server".into(),
            names,
            usage: Usage::Server,
            validity,
        };
        let issued = self.authority.issue(&leaf).unwrap();
        self.write("tls/server.pem", &issued.cert_pem);
        self.write("tls/server-key.pem", issued.key_pem.expose());
    }

    /// Writes a self-signed server certificate, with properties that the dev authority does not
    /// issue.
    fn self_made(&self, change: impl FnOnce(&mut CertificateParams)) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        change(&mut params);
        self.write("tls/server.pem", &params.self_signed(&key).unwrap().pem());
        self.write("tls/server-key.pem", &key.serialize_pem());
    }

    fn revoke_nobody(&self, next_update: OffsetDateTime) {
        let ca_key = KeyPair::from_pem(self.authority.key_pem().expose()).unwrap();
        let issuer = Issuer::from_ca_cert_pem(self.authority.cert_pem(), ca_key).unwrap();
        let list = CertificateRevocationListParams {
            this_update: next_update - time::Duration::days(10),
            next_update,
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.write(
            "tls/crl.pem",
            &list.signed_by(&issuer).unwrap().pem().unwrap(),
        );
    }

    async fn check_deployment(&self) -> Report {
        self.write("sealwire.toml", &self.config);
        let report = check_deployment(&self.path("sealwire.toml"), &Environment::default()).await;
        for finding in &report.findings {
            assert_destroys_nothing(&finding.remedy);
        }
        report
    }

    /// Asserts that the report has a finding of this check and level that contains `says`.
    async fn finds(&self, level: Level, check: &str, says: &str) {
        let report = self.check_deployment().await;
        let found = report
            .findings
            .iter()
            .find(|it| it.check == check && it.level == level && it.what.contains(says));
        let found = found.unwrap_or_else(|| {
            panic!(
                "no {level:?} of {check} with {says:?} in {:#?}",
                report.findings
            )
        });
        if level != Level::Good {
            assert!(
                !found.why.is_empty() && !found.remedy.is_empty(),
                "{found:?}"
            );
        }
        assert!(report.worst_level() >= level);
    }
}

/// Asserts that whoever does what a remedy says loses no key. A key that seems to be wrong can be
/// the only one that opens what was sealed.
fn assert_destroys_nothing(remedy: &str) {
    const DESTROYS: [&str; 12] = [
        "remove",
        "delete",
        "rm ",
        "replace",
        "overwrite",
        "generate",
        "random",
        "hexadecimal",
        "openssl",
        "new key",
        "another key there",
        "empty",
    ];
    // What forbids it, and files without keys.
    let harmless = ["never write another key there"];
    let rest = harmless
        .iter()
        .fold(remedy.to_lowercase(), |rest, words| rest.replace(words, ""));
    let found = DESTROYS.iter().find(|word| rest.contains(**word));
    assert!(found.is_none(), "{found:?} in the remedy: {remedy}");
}

/// Findings that depend on the machine of the tests.
const OF_THE_MACHINE: [&str; 5] = ["processor", "swap", "disk", "memory", "file descriptors"];

#[tokio::test(flavor = "multi_thread")]
async fn a_good_deployment_has_nothing_wrong() {
    let deployment = Deployment::new();
    let report = deployment.check_deployment().await;
    let bad: Vec<_> = report
        .findings
        .iter()
        .filter(|it| it.level != Level::Good)
        .collect();
    assert!(
        bad.iter().all(|it| OF_THE_MACHINE.contains(&it.check)),
        "{bad:#?}"
    );
    deployment
        .finds(Level::Good, "state", "the keys of 0 apps open")
        .await;
    deployment
        .finds(
            Level::Good,
            "roles",
            "the next start creates the administrators",
        )
        .await;
    deployment
        .finds(Level::Good, "audit log", "is created at the first start")
        .await;
    deployment
        .finds(Level::Good, "core dumps", "disables its own")
        .await;
    deployment.finds(Level::Good, "entropy", "seeded").await;
}

/// A function that breaks one part of a good deployment.
type Break = fn(&mut Deployment);

#[tokio::test(flavor = "multi_thread")]
async fn broken_settings_are_found() {
    use Level::{Warning, Wrong};
    let cases: &[(Break, Level, &str, &str)] = &[
        (
            |d| d.config.push_str("depht_max = 1\n"),
            Wrong,
            "configuration",
            "schedule.depht_max: unknown key",
        ),
        (
            |d| d.config.push_str("slice_us = 1\n[log]\nformat = \"xml\"\n"),
            Wrong,
            "configuration",
            "log.format",
        ),
        (
            |d| fs::remove_file(d.path("tls/server.pem")).unwrap(),
            Wrong,
            "certificates",
            "tls.certificate",
        ),
        (
            |d| d.write("tls/server-key.pem", "nothing"),
            Wrong,
            "certificates",
            "tls.key",
        ),
        (
            |d| d.mode("tls/server-key.pem", 0o644),
            Wrong,
            "files",
            "tls.key",
        ),
        (
            |d| d.mode("kek.key", 0o640),
            Level::Good,
            "files",
            "2 files",
        ),
        (|d| d.mode("kek.key", 0o664), Wrong, "files", "kek.file"),
        (
            |d| {
                d.config.push_str("[kek]\nproviders = \"providers.toml\"\n");
                d.write(
                    "providers.toml",
                    "[safe]\nkind = \"file\"\npath = \"safe.key\"\n",
                );
                d.write("safe.key", &Kek::generate_hex().unwrap());
                d.mode("safe.key", 0o644);
            },
            Wrong,
            "files",
            "provider safe: path",
        ),
        (
            |d| d.config.push_str("[kek]\nproviders = \"absent.toml\"\n"),
            Wrong,
            "key-encryption key",
            "absent.toml",
        ),
        (|d| d.mode("state", 0o777), Wrong, "files", "state.folder"),
        (
            |d| d.config = d.config.replace("folder = \"audit\"", ""),
            Warning,
            "audit log",
            "no records are kept",
        ),
        (
            |d| {
                fs::create_dir(d.path("audit")).unwrap();
                d.write("audit/audit-0000000000000001.jsonl", "");
            },
            Wrong,
            "audit log",
            "head.json is missing",
        ),
        (
            |d| {
                fs::create_dir(d.path("audit")).unwrap();
                d.write("audit/head.json", "{}");
            },
            Wrong,
            "audit log",
            "head.json is damaged",
        ),
        (
            |d| d.config = d.config.replace("[\"operator\"]", "[]"),
            Wrong,
            "roles",
            "no principal has a role",
        ),
        (
            |d| d.config = d.config.replace("[access]", "[access]\nmode = \"off\""),
            Warning,
            "roles",
            "is \"off\"",
        ),
        (
            |d| d.config = d.config.replace("[access]", "[access]\nmode = \"observe\""),
            Warning,
            "roles",
            "is \"observe\"",
        ),
        (
            |d| d.certify(Validity::days(5)),
            Warning,
            "certificates",
            "expires in",
        ),
        (
            |d| {
                let now = OffsetDateTime::now_utc();
                let day = time::Duration::days(1);
                // The authority is valid only from an hour ago, so the expired certificate is
                // self-signed.
                d.self_made(|params| {
                    (params.not_before, params.not_after) = (now - day * 3, now - day)
                });
            },
            Wrong,
            "certificates",
            "expired on",
        ),
        (
            |d| {
                let now = OffsetDateTime::now_utc();
                d.self_made(|params| params.not_before = now + time::Duration::days(2));
            },
            Wrong,
            "certificates",
            "is valid only from",
        ),
        (
            |d| d.self_made(|_| {}),
            Wrong,
            "certificates",
            "has no subject alternative names",
        ),
        (
            |d| {
                let names = vec![Name::Dns("client".into())];
                let leaf = Leaf {
                    common_name: "x".into(),
                    names,
                    usage: Usage::Client,
                    validity: Validity::days(90),
                };
                let issued = d.authority.issue(&leaf).unwrap();
                d.write("tls/server.pem", &issued.cert_pem);
                d.write("tls/server-key.pem", issued.key_pem.expose());
            },
            Wrong,
            "certificates",
            "is not for servers",
        ),
        (
            |d| {
                let other = Authority::create("other", Validity::days(90)).unwrap();
                let leaf = fs::read_to_string(d.path("tls/server.pem")).unwrap();
                d.write("tls/server.pem", &(leaf + other.cert_pem()));
            },
            Wrong,
            "certificates",
            "did not issue it",
        ),
        (
            |d| {
                let leaf = fs::read_to_string(d.path("tls/server.pem")).unwrap();
                d.write("tls/client-ca.pem", &leaf);
            },
            Wrong,
            "certificates",
            "may not issue certificates",
        ),
        (
            |d| {
                d.revoke_nobody(OffsetDateTime::now_utc() - time::Duration::days(1));
                d.config.push_str("[tls]\nclient_crl = \"tls/crl.pem\"\n");
            },
            Warning,
            "certificates",
            "was due on",
        ),
        (
            |d| {
                d.revoke_nobody(OffsetDateTime::now_utc() + time::Duration::days(9));
                d.config.push_str("[tls]\nclient_crl = \"tls/crl.pem\"\n");
            },
            Level::Good,
            "certificates",
            "is 1 day old",
        ),
        (
            |d| {
                d.revoke_nobody(OffsetDateTime::now_utc() + time::Duration::days(9));
                let other = Authority::create("other", Validity::days(90)).unwrap();
                d.write(
                    "tls/client-ca.pem",
                    &format!("{}{}", d.authority.cert_pem(), other.cert_pem()),
                );
                d.config.push_str("[tls]\nclient_crl = \"tls/crl.pem\"\n");
            },
            Wrong,
            "certificates",
            "has no list of",
        ),
        (
            |d| fs::remove_file(d.path("kek.key")).unwrap(),
            Wrong,
            "key-encryption key",
            "kek.key",
        ),
        (
            |d| d.write("kek.key", "abc"),
            Wrong,
            "key-encryption key",
            "kek.key",
        ),
        (
            |d| {
                fs::create_dir_all(d.path("state/database/keyspaces/0")).unwrap();
                fs::write(
                    d.path("state/database/keyspaces/0/current"),
                    "not what this program writes",
                )
                .unwrap();
            },
            Wrong,
            "state",
            "damaged",
        ),
        (
            |d| fs::remove_dir(d.path("state")).unwrap(),
            Level::Good,
            "state",
            "created at the first start",
        ),
        (
            |d| {
                d.config
                    .push_str("[state]\nmode = \"stateless\"\nfile = \"none.json\"\n")
            },
            Wrong,
            "state",
            "none.json",
        ),
        (
            |d| {
                let resource = rustix::process::Resource::Nofile;
                let maximum = rustix::process::getrlimit(resource).maximum;
                let maximum = Some(maximum.map_or(8_192, |most| most.min(8_192)));
                rustix::process::setrlimit(
                    resource,
                    rustix::process::Rlimit {
                        current: maximum,
                        maximum,
                    },
                )
                .unwrap();
                d.config.push_str("[limits]\nconnections_max = 65536\n");
            },
            Warning,
            "file descriptors",
            "needs 65792",
        ),
        (
            |d| {
                d.config = d
                    .config
                    .replace("memory_mib = 700", "memory_mib = 1_048_576")
            },
            Wrong,
            "memory",
            "schedule.memory_mib lets requests hold 1048576 MiB",
        ),
        (
            |d| d.config = d.config.replacen("127.0.0.1:0", "192.0.2.1:7443", 1),
            Wrong,
            "ports",
            "listen.address: this machine has no address",
        ),
        (
            |d| {
                d.config = d.config.replace(
                    "[admin]\naddress = \"127.0.0.1:0",
                    "[admin]\naddress = \"0.0.0.0:0",
                )
            },
            Warning,
            "ports",
            "every address",
        ),
        (
            |d| {
                d.config.push_str(
                    "[state]\nmode = \"postgres\"\n[postgres]\nurl = \"postgres://u@127.0.0.1:1/d\"\ntls = \"off\"\n",
                )
            },
            Wrong,
            "database",
            "127.0.0.1:1",
        ),
    ];
    for (case, (break_it, level, check, says)) in cases.iter().enumerate() {
        let mut deployment = Deployment::new();
        break_it(&mut deployment);
        println!("case {case}: {check}: {says}");
        deployment.finds(*level, check, says).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_program_has_is_told_from_an_engine_that_runs() {
    let mut deployment = Deployment::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("[listen]\naddress = \"{}\"", other.local_addr().unwrap());
    deployment.config = deployment
        .config
        .replace("[listen]\naddress = \"127.0.0.1:0\"", &taken);
    deployment
        .finds(Level::Wrong, "ports", "no engine responds at admin.address")
        .await;

    let deployment = Deployment::new();
    deployment.write("sealwire.toml", &deployment.config);
    let load = |config: &str| {
        Config::parse(config, &Environment::default(), deployment.folder.path()).unwrap()
    };
    let server = Server::start(&load(&deployment.config)).await.unwrap();
    let running = format!(
        "[listen]\naddress = \"{}\"\n[admin]\naddress = \"{}\"\n",
        server.address().unwrap(),
        server.admin_address()
    );
    let deployment = Deployment {
        config: running,
        ..deployment
    };
    deployment.finds(Level::Good, "engine", "is ready").await;
    deployment
        .finds(Level::Good, "ports", "is in use, and an engine runs here")
        .await;
    deployment
        .finds(Level::Good, "state", "in use by the running engine")
        .await;
    deployment
        .finds(
            Level::Good,
            "file descriptors",
            "the running engine can open",
        )
        .await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_does_not_open_the_state_is_found() {
    let deployment = Deployment::new();
    let config = Config::parse(
        &deployment.config,
        &Environment::default(),
        deployment.folder.path(),
    )
    .unwrap();
    let (control, stores) = open_control(&config).await.unwrap();
    control
        .create(&AppId::new("shop").unwrap(), &[Suite::P256])
        .await
        .unwrap();
    stores.close().await;
    deployment
        .finds(Level::Good, "state", "the keys of 1 app open")
        .await;
    deployment.write("kek.key", &Kek::generate_hex().unwrap());
    deployment
        .finds(Level::Wrong, "state", "does not open the keys of app shop")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn collections_that_read_old_records_are_named() {
    let deployment = Deployment::new();
    let config = Config::parse(
        &deployment.config,
        &Environment::default(),
        deployment.folder.path(),
    )
    .unwrap();
    let (control, stores) = open_control(&config).await.unwrap();
    let shop = AppId::new("shop").unwrap();
    control.create(&shop, &[Suite::P256]).await.unwrap();
    let schema = Schema::new(
        Suite::Xaes,
        &[PropertySpec::new(
            PropertyName::new("city").unwrap(),
            PropertyType::String,
        )],
    )
    .unwrap();
    for (name, records) in [
        ("people", AcceptedRecords::All),
        ("cities", AcceptedRecords::Authenticated),
    ] {
        let schema = Schema {
            records,
            ..schema.clone()
        };
        control
            .create_objects(&shop, &CollectionName::new(name).unwrap(), schema)
            .await
            .unwrap();
    }
    stores.close().await;
    deployment
        .finds(
            Level::Warning,
            "object records",
            "read old records: people of shop",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_says_what_it_would_lose() {
    let server = Postgres::start(
        Options {
            fsync: false,
            ..Options::default()
        }
        .set("max_connections", "12"),
    )
    .unwrap();
    let database = server.database().unwrap();
    let mut deployment = Deployment::new();
    deployment.write("password", server.password());
    deployment.mode("password", 0o600);
    deployment.config.push_str(&format!(
        "[state]\nmode = \"postgres\"\n[postgres]\nurl = \"{}\"\npassword_file = \"password\"\n",
        database.socket_url()
    ));
    deployment
        .finds(Level::Good, "database", "it has no schema yet")
        .await;
    deployment
        .finds(Level::Wrong, "database", "fsync is off")
        .await;
    deployment.mode("password", 0o644);
    deployment
        .finds(Level::Wrong, "files", "postgres.password_file")
        .await;
    deployment.mode("password", 0o600);
    let config = Config::parse(
        &deployment.config,
        &Environment::default(),
        deployment.folder.path(),
    )
    .unwrap();
    open_control(&config).await.unwrap().1.close().await;
    deployment
        .finds(Level::Good, "database", "its schema is version 6")
        .await;
    deployment
        .finds(Level::Good, "state", "the keys of 0 apps open")
        .await;
    let many = deployment.config.clone() + "writers = 30\n";
    let deployment = Deployment {
        config: many,
        ..deployment
    };
    deployment
        .finds(
            Level::Warning,
            "database",
            "connections are free, and an engine takes 35",
        )
        .await;
    deployment.write("password", "wrong");
    deployment
        .finds(Level::Wrong, "database", "postgres.password_file")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_says_what_does_not_hold() {
    let citus = Citus::start(
        &Options {
            fsync: false,
            ..Options::default()
        },
        2,
    )
    .unwrap();
    // Without Citus the extension is not mentioned.
    let plain = citus
        .is_none()
        .then(|| Postgres::start(Options::default()).unwrap());
    let server = citus
        .as_ref()
        .map_or_else(|| plain.as_ref().unwrap(), Citus::coordinator);
    let database = citus
        .as_ref()
        .map_or_else(|| server.database(), Citus::database)
        .unwrap();
    let mut deployment = Deployment::new();
    deployment.write("password", server.password());
    deployment.mode("password", 0o600);
    deployment.config.push_str(&format!(
        "[state]\nmode = \"postgres\"\n[postgres]\nurl = \"{}\"\npassword_file = \"password\"\n",
        database.socket_url()
    ));
    let Some(citus) = &citus else {
        let report = deployment.check_deployment().await;
        assert!(
            !report.findings.iter().any(|it| it.what.contains("Citus")),
            "{report:#?}"
        );
        return;
    };
    deployment
        .finds(Level::Warning, "database", "its tables are not distributed")
        .await;
    let config = Config::parse(
        &deployment.config,
        &Environment::default(),
        deployment.folder.path(),
    )
    .unwrap();
    let options = || sealwire_engine::stores::postgres_options(&config.postgres);
    sealwire_store_postgres::distribute(options(), None, false)
        .await
        .unwrap();
    deployment
        .finds(
            Level::Good,
            "database",
            "object_fences by app over 2 workers",
        )
        .await;
    let worker = &citus.workers()[1];
    deployment
        .finds(
            Level::Wrong,
            "database",
            &format!("fsync is off on worker 127.0.0.1:{}", worker.port()),
        )
        .await;
    open_control(&config).await.unwrap().1.close().await;
    deployment
        .finds(Level::Good, "state", "the keys of 0 apps open")
        .await;
    database
        .sql("SELECT undistribute_table('sealwire.object_fences')")
        .unwrap();
    deployment
        .finds(
            Level::Wrong,
            "database",
            "not where the rest of an app is: object_fences",
        )
        .await;
    sealwire_store_postgres::distribute(options(), None, false)
        .await
        .unwrap();
    deployment
        .finds(
            Level::Good,
            "database",
            "object_fences by app over 2 workers",
        )
        .await;
    worker.stop(Stop::Fast);
    deployment
        .finds(
            Level::Wrong,
            "database",
            &format!("worker 127.0.0.1:{} does not respond", worker.port()),
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn providers_and_slots_of_the_root_key_are_checked() {
    use Level::{Good, Warning, Wrong};
    let mut deployment = Deployment::new();
    deployment
        .config
        .push_str("[kek]\nproviders = \"providers.toml\"\n");
    let table = |name: &str| format!("[{name}]\nkind = \"file\"\npath = \"{name}.key\"\n");
    deployment.write("providers.toml", &(table("safe") + &table("spare")));
    deployment.write("safe.key", &Kek::generate_hex().unwrap());
    deployment.write("spare.key", &Kek::generate_hex().unwrap());
    deployment
        .finds(Warning, "providers", "the store has no root key")
        .await;

    let config = Config::parse(
        &deployment.config,
        &Environment::default(),
        deployment.folder.path(),
    )
    .unwrap();
    let change = async |names: &[&str]| {
        let (control, stores) = open_control(&config).await.unwrap();
        let providers = Providers::load(&config).unwrap();
        let (root, mut slots) = (RootKey::generate().unwrap(), Vec::new());
        for (name, number) in names.iter().zip(FIRST_SLOT..) {
            slots.push(
                providers
                    .new_slot(name, [3; 16], &root, number)
                    .await
                    .unwrap(),
            );
        }
        control.create_root([3; 16], &root, slots).await.unwrap();
        stores.close().await;
    };
    change(&["local", "safe"]).await;
    deployment
        .finds(
            Good,
            "providers",
            "slot 1 (provider local, file) unwraps root key",
        )
        .await;
    deployment
        .finds(Good, "providers", "the last `kek verify` was 0 hours ago")
        .await;
    deployment
        .finds(Good, "providers", "provider safe works with a test value")
        .await;
    deployment
        .finds(Warning, "providers", "provider spare (file) has no slot")
        .await;
    deployment
        .finds(Warning, "providers", "kek.root_key is not \"required\"")
        .await;
    let report = deployment.check_deployment().await;
    assert!(
        !report
            .findings
            .iter()
            .any(|it| it.what.contains("has one slot")),
        "{report:#?}"
    );

    // A provider that is down is a warning while another slot works.
    let safe = fs::read_to_string(deployment.path("safe.key")).unwrap();
    fs::remove_file(deployment.path("safe.key")).unwrap();
    deployment
        .finds(
            Warning,
            "providers",
            "slot 2 (provider safe, file) does not unwrap root key",
        )
        .await;
    deployment
        .finds(
            Warning,
            "providers",
            "provider safe does not work with a test value",
        )
        .await;
    assert_ne!(deployment.check_deployment().await.worst_level(), Wrong);
    fs::remove_file(deployment.path("kek.key")).unwrap();
    deployment
        .finds(
            Wrong,
            "providers",
            "slot 2 (provider safe, file) does not unwrap root key",
        )
        .await;
    deployment.write("safe.key", &safe);
    deployment.config.push_str("root_key = \"required\"\n");
    deployment
        .finds(
            Warning,
            "providers",
            "slot 1 (provider local, file) does not unwrap root key",
        )
        .await;
    let report = deployment.check_deployment().await;
    assert!(
        !report
            .findings
            .iter()
            .any(|it| it.what.contains("kek.root_key")),
        "{report:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_key_with_one_slot_has_no_redundancy() {
    let deployment = Deployment::new();
    let config = Config::parse(
        &deployment.config,
        &Environment::default(),
        deployment.folder.path(),
    )
    .unwrap();
    let (control, stores) = open_control(&config).await.unwrap();
    let root = RootKey::generate().unwrap();
    let slot = Providers::load(&config)
        .unwrap()
        .new_slot("local", [3; 16], &root, FIRST_SLOT)
        .await
        .unwrap();
    control
        .create_root([3; 16], &root, vec![slot])
        .await
        .unwrap();
    stores.close().await;
    deployment
        .finds(
            Level::Warning,
            "providers",
            "has one slot that starts an engine, of provider local",
        )
        .await;
}
