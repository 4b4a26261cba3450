//! Tests of a root key that is created and rotated while engines serve.

use std::process::Command;

use sealwire_client::control::{AppCall, AppOperation, RotateKind};
use sealwire_client::{Decrypt, Encrypt, to_payload};
use sealwire_testkit::Postgres;

use crate::cluster::engines::{APP, Cluster, EngineProcess, run};

/// Runs a command on the store of an engine that serves.
fn sealwire(engine: &EngineProcess, arguments: &[&str]) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_sealwire")).args(arguments).arg("--config").arg(&engine.config).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn engines_serve_on_while_the_root_key_is_created_rotated_and_removed() {
    run(async {
        let cluster = Cluster::new(Postgres::shared());
        let (mut first, mut second) = (cluster.engine("first"), cluster.engine("second"));
        cluster.furnish(&first).await;
        cluster.agree(&[&first, &second]).await;
        let payload = to_payload(&["value"]).unwrap();
        let sealed = cluster.client(&[&first]).encrypt(Encrypt::new(APP, &payload)).await.unwrap().payload;
        for change in [&["kek", "init"][..], &["root", "rotate"], &["kek", "rotate"], &["root", "remove", "--to-local"]]
        {
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
                let ask = AppOperation::Rotate { kind: RotateKind::P256 };
                cluster.operator(maker).change_app(AppCall { app: APP, ask }).await.unwrap();
                cluster.agree(&[maker, other]).await;
                let newest = cluster.client(&[maker]).encrypt(Encrypt::new(APP, &payload)).await.unwrap().payload;
                for value in [&sealed, &newest] {
                    let opened = cluster.client(&[other]).decrypt(Decrypt::new(APP, value)).await.unwrap();
                    assert_eq!(opened.payload, payload, "{change:?}");
                }
            }
            // A start finds the key as well.
            second.stop();
            second.start();
            let opened = cluster.client(&[&second]).decrypt(Decrypt::new(APP, &sealed)).await.unwrap();
            assert_eq!(opened.payload, payload, "{change:?}");
        }
        first.stop();
        second.stop();
    });
}
