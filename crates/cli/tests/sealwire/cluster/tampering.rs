//! Tests of a database that someone writes without the root key while engines serve.

use std::process::{Command, Output};

use sealwire_access::{Binding, Grant, Principal, Role, RoleName, principal_key, role_key};
use sealwire_client::control::{PrincipalOperation, RoleOperation, RootOperation};
use sealwire_client::{Client, Decrypt, Encrypt, to_payload};
use sealwire_testkit::Postgres;

use crate::cluster::engines::{APP, Cluster, EngineProcess, run, until};

/// Writes what anyone with write access to the database can make: a role, and a principal that has
/// it.
struct Thief<'a>(&'a Cluster<'a>);

impl Thief<'_> {
    fn sql(&self, sql: &str) -> String {
        self.0.database.sql(sql).unwrap()
    }

    fn write(&self) {
        let name = RoleName::new("thief").unwrap();
        let role = Role::new(
            name.as_str(),
            vec![Grant::from_text("decrypt apps=*").unwrap()],
        )
        .unwrap();
        let principal = Principal::from_text("stranger").unwrap();
        let key = principal_key(&principal);
        // A role that engines know, too: it needs no load of the other record.
        let roles = vec![RoleName::new("relay").unwrap(), name.clone()];
        let binding = Binding { principal, roles };
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        };
        self.sql(&format!(
            "INSERT INTO sealwire.records VALUES ('{}', '\\x{}'); INSERT INTO sealwire.single_records VALUES ('\\x{}', '\\x{}')",
            role_key(&name),
            hex(&role.to_record()),
            hex(key.as_bytes()),
            hex(&binding.to_record())
        ));
    }

    fn remove(&self) {
        self.sql("DELETE FROM sealwire.records WHERE key = 'role/thief'");
        self.sql(
            "DELETE FROM sealwire.single_records WHERE convert_from(key, 'UTF8') LIKE '%stranger'",
        );
    }

    /// Lets every engine load the records.
    fn change_generation(&self, by: i32) {
        self.sql(&format!(
            "UPDATE sealwire.control SET generation = generation + {by}; NOTIFY sealwire_control"
        ));
    }
}

async fn reads(client: &Client, sealed: &[u8]) -> bool {
    client.decrypt(Decrypt::new(APP, sealed)).await.is_ok()
}

fn sealwire(engine: &EngineProcess, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    command
        .args(arguments)
        .arg("--config")
        .arg(&engine.config)
        .output()
        .unwrap()
}

/// Returns why another process refuses the store.
fn refusal(engine: &EngineProcess) -> String {
    let output = sealwire(engine, &["kek", "rotate"]);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn two_records_in_the_database_do_not_make_a_stranger_a_reader() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).enforcing();
        let engine = cluster.engine("one");
        cluster.furnish(&engine).await;
        let operator = cluster.operator(&engine);
        let set = RoleOperation::set(["encrypt apps=*", "decrypt apps=*"]);
        operator.change_role("relay", set).await.unwrap();
        let grant = PrincipalOperation::grant("relay");
        operator.change_principal("relay", grant).await.unwrap();
        let (relay, stranger) = (
            cluster.client(&[&engine]),
            cluster.client_named(&[&engine], "stranger"),
        );
        let payload = to_payload(&["value"]).unwrap();
        let sealed = relay
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap()
            .payload;
        let thief = Thief(&cluster);

        // Without a root key, the two records are all it takes.
        assert!(!reads(&stranger, &sealed).await);
        thief.write();
        thief.change_generation(1);
        until("the stranger reads", async || {
            reads(&stranger, &sealed).await.then_some(())
        })
        .await;
        thief.remove();
        thief.change_generation(1);
        until("the stranger is denied", async || {
            (!reads(&stranger, &sealed).await).then_some(())
        })
        .await;

        assert!(sealwire(&engine, &["kek", "init"]).status.success());
        until("the engine to verify records", async || {
            engine.log().contains("unwrapped").then_some(())
        })
        .await;
        cluster.agree(&[&engine]).await;
        // In the same generation, the engine asks for the principal's record only.
        thief.write();
        for _ in 0..3 {
            assert!(!reads(&stranger, &sealed).await && reads(&relay, &sealed).await);
        }
        // In another generation, it loads all records, and keeps the ones before.
        thief.change_generation(1);
        until("the engine to refuse them", async || {
            (engine.status("/ready/store") == Some(503)).then_some(())
        })
        .await;
        assert!(engine.page("/ready").unwrap().contains("control state"));
        assert!(!reads(&stranger, &sealed).await);
        let refused = refusal(&engine);
        assert!(
            refused.contains("record head is not authentic"),
            "{refused}"
        );
        thief.sql("UPDATE sealwire.control SET generation = generation - 1");
        let refused = refusal(&engine);
        assert!(
            refused.contains("record role/thief is not authentic: it was added"),
            "{refused}"
        );
        thief.remove();
        until("the engine to be ready again", async || {
            (engine.status("/ready/store") == Some(200)).then_some(())
        })
        .await;
        assert!(!reads(&stranger, &sealed).await && reads(&relay, &sealed).await);
    });
}

fn anchored(engine: &EngineProcess) -> u64 {
    let path = engine.config.with_file_name("audit").join("anchor.json");
    let anchor: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    anchor["generation"].as_u64().unwrap()
}

/// Copies all control records, and puts them back.
struct DatabaseCopy<'a>(&'a Thief<'a>, &'static str);

impl<'a> DatabaseCopy<'a> {
    fn make(thief: &'a Thief<'a>, name: &'static str) -> Self {
        for table in ["records", "single_records", "control"] {
            thief.sql(&format!(
                "DROP TABLE IF EXISTS {name}_{table}; CREATE TABLE {name}_{table} AS SELECT * FROM sealwire.{table}"
            ));
        }
        Self(thief, name)
    }

    fn put_back(&self) {
        let Self(thief, name) = self;
        for table in ["records", "single_records"] {
            thief.sql(&format!(
                "DELETE FROM sealwire.{table}; INSERT INTO sealwire.{table} SELECT * FROM {name}_{table}"
            ));
        }
        thief.sql(&format!(
            "UPDATE sealwire.control SET generation = (SELECT generation FROM {name}_control)"
        ));
    }
}

/// The engine is killed when the response of the seal has come, so that no later load can raise its
/// anchor.
#[test]
fn a_seal_outlives_a_restart_and_a_roll_back_of_the_database() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).audited();
        let mut engine = cluster.engine("one");
        cluster.furnish(&engine).await;
        assert!(sealwire(&engine, &["kek", "init"]).status.success());
        until("the engine to verify records", async || {
            engine.log().contains("unwrapped").then_some(())
        })
        .await;
        cluster.agree(&[&engine]).await;
        let thief = Thief(&cluster);
        for round in 0..3 {
            let before = DatabaseCopy::make(&thief, "before");
            let sealed = if round == 1 {
                // By a command on the store, of which the engine may not have heard yet.
                let output = sealwire(&engine, &["root", "seal", "--json"]);
                assert!(
                    output.status.success(),
                    "{}",
                    String::from_utf8_lossy(&output.stderr)
                );
                serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["generation"]
                    .as_u64()
                    .unwrap()
            } else {
                cluster
                    .operator_once(&engine)
                    .root(RootOperation::seal())
                    .await
                    .unwrap()
                    .generation
            };
            engine.kill();
            assert_eq!(anchored(&engine), sealed, "round {round}");
            let after = DatabaseCopy::make(&thief, "after");
            before.put_back();
            for command in [&["kek", "rotate"][..], &["serve"]] {
                let output = sealwire(&engine, command);
                let said = String::from_utf8(output.stderr).unwrap();
                let expected = format!("generation {sealed} was seen before");
                assert!(
                    !output.status.success() && said.contains(&expected),
                    "round {round}, {command:?}: {said}"
                );
            }
            after.put_back();
            let output = sealwire(&engine, &["root", "unseal"]);
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            engine.start();
        }
    });
}
