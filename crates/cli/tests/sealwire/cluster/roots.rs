//! Tests of a root key that is created and rotated while engines serve.

use sealwire_client::{Decrypt, Encrypt, Error, ErrorCode, Page, to_payload};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sealwire_client::control::{
    AppOperation, PrincipalOperation, RoleOperation, RootOperation, RotateKind,
};
use sealwire_testkit::Postgres;

use crate::cluster::engines::{APP, Cluster, EngineProcess, run, until};

/// Runs a command on the store of an engine that serves.
fn sealwire(engine: &EngineProcess, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_sealwire"))
        .args(arguments)
        .arg("--config")
        .arg(&engine.config)
        .output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn engines_serve_on_while_the_root_key_is_created_rotated_and_removed() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let (mut first, mut second) = (cluster.engine("first"), cluster.engine("second"));
        cluster.furnish(&first).await;
        cluster.agree(&[&first, &second]).await;
        let payload = to_payload(&["value"]).unwrap();
        let sealed = cluster
            .client(&[&first])
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap()
            .payload;
        for change in [
            &["kek", "init"][..],
            &["root", "rotate"],
            &["kek", "rotate"],
            &["root", "remove", "--to-local"],
        ] {
            sealwire(&first, change);
            if change[1] == "remove" {
                // Engines that saw the root key accept no store without it.
                for engine in [&mut first, &mut second] {
                    engine.stop();
                    engine.start();
                }
            }
            // Each engine makes a change under the new key, which the other one then serves.
            for (maker, other) in [(&first, &second), (&second, &first)] {
                let operation = AppOperation::rotate(RotateKind::P256);
                cluster
                    .operator(maker)
                    .change_app(APP, operation)
                    .await
                    .unwrap();
                cluster.agree(&[maker, other]).await;
                let newest = cluster
                    .client(&[maker])
                    .encrypt(Encrypt::new(APP, &payload))
                    .await
                    .unwrap()
                    .payload;
                for value in [&sealed, &newest] {
                    let opened = cluster
                        .client(&[other])
                        .decrypt(Decrypt::new(APP, value))
                        .await
                        .unwrap();
                    assert_eq!(opened.payload, payload, "{change:?}");
                }
            }
            // A start finds the key as well.
            second.stop();
            second.start();
            let opened = cluster
                .client(&[&second])
                .decrypt(Decrypt::new(APP, &sealed))
                .await
                .unwrap();
            assert_eq!(opened.payload, payload, "{change:?}");
        }
        first.stop();
        second.stop();
    });
}

/// Returns the error of a request that a sealed engine must reject.
fn sealed(outcome: Result<impl std::fmt::Debug, Error>) {
    let Err(Error::Rpc(error)) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
    assert!(
        error.message.contains("sealed") && error.retry_after_ms.is_some(),
        "{error}"
    );
}

#[test]
fn engines_of_one_database_are_sealed_and_unsealed_together() {
    run(async {
        let cluster = Cluster::new(Postgres::shared()).enforcing().audited();
        let (mut first, mut second) = (cluster.engine("first"), cluster.engine("second"));
        cluster.furnish(&first).await;
        grant(&cluster, &first).await;
        sealwire(&first, &["kek", "init"]);
        cluster.agree(&[&first, &second]).await;
        let payload = to_payload(&["value"]).unwrap();
        let value = cluster
            .client(&[&first])
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap()
            .payload;
        let once = |engine: &EngineProcess| {
            cluster.client_with(&[engine], |config| config.attempts_max = 1)
        };

        sealwire(&first, &["root", "seal"]);
        let begun = std::time::Instant::now();
        for engine in [&first, &second] {
            until("a seal", async || {
                (engine.ready() == Some(503)).then_some(())
            })
            .await;
        }
        assert!(
            begun.elapsed().as_secs() < 15,
            "by the notification, since the poll takes 22 s and more"
        );
        sealwire(&first, &["root", "seal"]);
        let mut third = cluster.engine_sealed("third");
        for engine in [&first, &second, &third] {
            until("a seal", async || {
                (engine.ready() == Some(503)).then_some(())
            })
            .await;
            let page = engine.page("/ready").unwrap();
            assert!(page.contains("failing: sealed"), "{page}");
            assert_eq!(engine.status("/live"), Some(200));
            let metrics = engine.page("/metrics").unwrap();
            assert!(
                metrics.contains("sealwire_health_check_failing{condition=\"sealed\"} 1"),
                "{metrics}"
            );
            sealed(once(engine).encrypt(Encrypt::new(APP, &payload)).await);
            sealed(once(engine).decrypt(Decrypt::new(APP, &value)).await);
            let operator = cluster.operator_once(engine);
            sealed(
                operator
                    .change_app(APP, AppOperation::rotate(RotateKind::P256))
                    .await,
            );
            sealed(operator.apps(Page::default()).await);
            once(engine).info().await.unwrap();
        }
        // A restart changes nothing.
        second.stop();
        second.launch();
        second.becomes_sealed();
        sealed(once(&second).decrypt(Decrypt::new(APP, &value)).await);

        sealwire(&first, &["root", "unseal"]);
        for engine in [&first, &second, &third] {
            until("an unsealing", async || {
                (engine.ready() == Some(200)).then_some(())
            })
            .await;
            let opened = cluster
                .client(&[engine])
                .decrypt(Decrypt::new(APP, &value))
                .await
                .unwrap();
            assert_eq!(opened.payload, payload);
        }
        for engine in [&mut first, &mut second, &mut third] {
            engine.stop();
            sealwire(engine, &["audit", "verify"]);
        }
    });
}

/// Gives `relay` a role for the app, and makes `deputy` an administrator.
async fn grant(cluster: &Cluster<'_>, engine: &EngineProcess) {
    let operator = cluster.operator(engine);
    let grants = vec!["encrypt,decrypt apps=shop"];
    operator
        .change_role("relay", RoleOperation::set(grants))
        .await
        .unwrap();
    for (principal, role) in [("relay", "relay"), ("deputy", "administrator")] {
        let operation = PrincipalOperation::grant(role);
        operator
            .change_principal(principal, operation)
            .await
            .unwrap();
    }
}

#[test]
fn the_root_key_of_a_folder_changes_while_its_engine_serves() {
    run(async {
        let cluster = Cluster::new(Postgres::shared())
            .with_spare_provider()
            .enforcing()
            .audited();
        let mut engine = cluster.engine_embedded("folder");
        cluster.furnish(&engine).await;
        grant(&cluster, &engine).await;
        let options = cluster.operator_options(&engine);
        let control = |arguments: &[&str]| {
            let options = options.iter().map(String::as_str);
            let all: Vec<&str> = arguments.iter().copied().chain(options).collect();
            Command::new(env!("CARGO_BIN_EXE_sealwire"))
                .args(all)
                .output()
                .unwrap()
        };
        let done = |arguments: &[&str]| {
            let output = control(arguments);
            assert!(
                output.status.success(),
                "{arguments:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            String::from_utf8(output.stdout).unwrap()
        };

        let stop = Arc::new(AtomicBool::new(false));
        let (client, stopped) = (
            cluster.client_with(&[&engine], |config| config.attempts_max = 1),
            Arc::clone(&stop),
        );
        let traffic = tokio::spawn(async move {
            let (mut values, mut refused) = (Vec::new(), 0_u32);
            while !stopped.load(Ordering::SeqCst) {
                let payload = to_payload(&[values.len()]).unwrap();
                match client.encrypt(Encrypt::new(APP, &payload)).await {
                    Ok(value) => values.push((payload, value.payload)),
                    Err(Error::Rpc(error)) if error.message.contains("sealed") => {
                        refused += 1;
                        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                }
                let (payload, value) = values.last().unwrap();
                match client.decrypt(Decrypt::new(APP, value)).await {
                    Ok(opened) => assert_eq!(&opened.payload, payload),
                    Err(Error::Rpc(error)) if error.message.contains("sealed") => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            (values, refused)
        });

        assert!(done(&["kek", "list"]).contains("the store has no root key"));
        assert!(done(&["kek", "init", "--provider", "local"]).contains("1 slots"));
        assert!(done(&["kek", "add", "spare"]).contains("added slot 2 (provider spare)"));
        assert!(done(&["kek", "verify"]).contains("slot 2 (provider spare): unwraps the root key"));
        assert!(done(&["kek", "list"]).contains("not tried"));
        assert!(done(&["root", "rotate"]).contains("a new root key"));
        assert!(done(&["kek", "rotate"]).contains("2 slots"));
        assert!(done(&["kek", "remove", "5", "--yes"]).contains("removed slot 5"));
        let refused = control(&["kek", "remove", "6", "--yes"]);
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains("the last slot cannot be removed")
        );
        assert!(done(&["root", "seal"]).contains("the store is sealed"));
        assert_eq!(engine.ready(), Some(503));
        assert!(done(&["kek", "list"]).contains("sealed since "));
        for arguments in [
            &["kek", "add", "local"][..],
            &["kek", "verify"],
            &["root", "rotate"],
            &["apps", "list"],
        ] {
            let refused = control(&[arguments, &["--timeout", "1"]].concat());
            assert!(!refused.status.success(), "{arguments:?}");
            assert!(
                String::from_utf8_lossy(&refused.stderr).contains("sealed"),
                "{arguments:?}: {refused:?}"
            );
        }
        // Roles are not held now, and so the configuration decides.
        let deputy = cluster.operator_named(&engine, "deputy");
        for operation in [RootOperation::unseal(), RootOperation::status()] {
            let Err(Error::Rpc(error)) = deputy.root(operation).await else {
                panic!("permitted")
            };
            assert_eq!(error.code, ErrorCode::Forbidden, "{error}");
        }
        assert!(done(&["root", "unseal"]).contains("not sealed"));
        until("an unsealing", async || {
            (engine.ready() == Some(200)).then_some(())
        })
        .await;
        deputy.root(RootOperation::status()).await.unwrap();

        // An engine that starts on a sealed store is unsealed over its control listener as well.
        done(&["root", "seal"]);
        stop.store(true, Ordering::SeqCst);
        let (values, refused) = traffic.await.unwrap();
        assert!(
            refused > 0 && values.len() > 20,
            "{refused} refused, {} values",
            values.len()
        );
        engine.stop();
        engine.launch();
        engine.becomes_sealed();
        assert!(done(&["root", "unseal"]).contains("not sealed"));
        let client = cluster.client(&[&engine]);
        for (payload, value) in &values {
            assert_eq!(
                &client
                    .decrypt(Decrypt::new(APP, value))
                    .await
                    .unwrap()
                    .payload,
                payload
            );
        }
        engine.stop();
        sealwire(&engine, &["audit", "verify"]);
        let shown = sealwire(&engine, &["audit", "show"]);
        for method in [
            "root.init",
            "kek.add",
            "kek.remove",
            "root.rotate",
            "root.seal",
        ] {
            assert!(shown.contains(method), "{method}: {shown}");
        }
        assert_eq!(
            shown.matches("root.unseal").count(),
            3,
            "two done, one denied: {shown}"
        );
    });
}
