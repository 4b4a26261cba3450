//! Tests of the alerts of `ops/prometheus` with a running Prometheus, which scrapes engines that
//! fail.

use std::fs;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use sealwire_testkit::{Options, Postgres, Stop, free_ports};

use crate::cluster::engines::{Cluster, EngineProcess, run, until};
use crate::e2e::harness::http_get;
use crate::operations::read;
use crate::relay::site::{not_tried, program};

/// A running Prometheus with the alerts of engines. An alert fires as soon as its condition holds
/// for a second.
struct Prometheus {
    address: SocketAddr,
    child: Child,
}

impl Prometheus {
    fn start(prometheus: &str, cluster: &Cluster<'_>, engines: &[&EngineProcess]) -> Self {
        let [port] = free_ports();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut rules = String::new();
        for line in read("ops/prometheus/sealwire.rules.yml").lines() {
            rules.push_str(if line.trim_start().starts_with("for: ") {
                "        for: 1s"
            } else {
                line
            });
            rules.push('\n');
        }
        fs::write(cluster.path("rules.yml"), rules).unwrap();
        let targets: Vec<_> = engines
            .iter()
            .map(|engine| format!("\"{}\"", engine.admin))
            .collect();
        let config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\nscrape_configs:\n\
             - job_name: sealwire\n  static_configs:\n  - targets: [{}]\n",
            targets.join(", ")
        );
        let file = cluster.path("prometheus.yml");
        fs::write(&file, config).unwrap();
        let child = Command::new(prometheus)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                cluster.path("prometheus").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(cluster.path("prometheus.log")).unwrap())
            .spawn()
            .unwrap();
        Self { address, child }
    }

    /// Waits until an alert fires.
    async fn fires(&self, alert: &str) {
        let path = format!(
            "/api/v1/query?query=ALERTS%7Balertname=%22{alert}%22,alertstate=%22firing%22%7D"
        );
        until(alert, async || {
            tokio::net::TcpStream::connect(self.address).await.ok()?;
            http_get(self.address, &path)
                .await
                .1
                .contains(alert)
                .then_some(())
        })
        .await;
        println!("{alert} fires");
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn alerts_fire_in_a_running_prometheus() {
    let Some(prometheus) = program("prometheus") else {
        return not_tried("prometheus");
    };
    let postgres = Postgres::start(Options::default()).unwrap();
    run(async {
        // A small folder for audit records, authorization switched off, and certificates that end
        // within days.
        let cluster = Cluster::new(&postgres).audited_in_mib(16);
        let mut engines = ["first", "second"].map(|name| cluster.engine(name));
        cluster.furnish(&engines[0]).await;
        let monitor = Prometheus::start(&prometheus, &cluster, &[&engines[0], &engines[1]]);
        for alert in [
            "SealwireAccessNotEnforced",
            "SealwireCertificateEnds",
            "SealwireCertificateEndsSoon",
            "SealwireClientAuthorityEnds",
            "SealwireAuditDiskFills",
        ] {
            monitor.fires(alert).await;
        }

        fs::write(cluster.path("server.pem"), "no certificate").unwrap();
        monitor.fires("SealwireCertificateFilesRejected").await;

        for change in [["kek", "init"], ["root", "seal"]] {
            assert!(
                engines[0]
                    .command(&change)
                    .output()
                    .unwrap()
                    .status
                    .success()
            );
        }
        for alert in ["SealwireSealed", "SealwireNotReady"] {
            monitor.fires(alert).await;
        }
        assert!(
            engines[0]
                .command(&["root", "unseal"])
                .output()
                .unwrap()
                .status
                .success()
        );

        postgres.stop(Stop::Kill);
        for alert in ["SealwireConditionFailing", "SealwireStoreDisconnected"] {
            monitor.fires(alert).await;
        }

        engines[0].kill();
        monitor.fires("SealwireDown").await;
        engines[1].kill();
        monitor.fires("SealwireAbsent").await;
    });
}
