//! Tests of the command that migrates one engine's folder to the database of several, and compares
//! the copy.

use std::path::Path;
use std::process::{Command, Output};

use sealwire_testkit::Postgres;

use crate::cluster::engines::{Cluster, run};
use crate::cluster::ledger::Ledger;

fn copy(from: &Path, to: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    command
        .args(["store", "migrate", "--json", "--from"])
        .arg(from)
        .arg("--to")
        .arg(to)
        .output()
        .unwrap()
}

fn refused(output: &Output, says: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(says), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn state_of_a_folder_is_served_from_a_database_after_a_move() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let mut alone = cluster.engine_embedded("alone");
        cluster.furnish(&alone).await;
        let ledger = Ledger::patient();
        let client = cluster.client(&[&alone]);
        let callers = ledger.callers(&client, 8);
        ledger.goes_on(200).await;
        ledger.stop();
        callers.join_all().await;

        let mut shared = cluster.engine("shared");
        refused(&copy(&alone.config, &shared.config), "in use by process");
        alone.stop();
        refused(&copy(&alone.config, &shared.config), "stop it first");
        shared.stop();
        let copied = copy(&alone.config, &shared.config);
        assert!(
            copied.status.success(),
            "{}",
            String::from_utf8_lossy(&copied.stderr)
        );
        println!("{}", String::from_utf8_lossy(&copied.stdout));
        refused(&copy(&alone.config, &shared.config), "empty");

        shared.start();
        let client = cluster.client(&[&shared]);
        ledger.verify(&client, &cluster.database).await;
        // The load continues on the copy: known values keep their tokens.
        let more = ledger.again();
        let callers = more.callers(&client, 4);
        more.goes_on(100).await;
        more.stop();
        callers.join_all().await;
        assert_eq!(more.failures(), []);
        more.verify(&client, &cluster.database).await;
    });
}
