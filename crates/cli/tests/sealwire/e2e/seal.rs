//! A seal while requests run: they end, at their deadline at the latest, and new ones fail.

use std::time::Duration;

use sealwire_client::{Decrypt, Encrypt, ErrorCode};
use sealwire_crypto::RootKey;
use sealwire_engine::root::{LOCAL_PROVIDER, Providers};

use crate::e2e::harness::{APP, Harness, fields, http_get, rpc_error, run};

const SET: [u8; 16] = [6; 16];

/// Starts an engine on a store with a root key.
async fn rooted() -> Harness {
    let harness = Harness::start().await;
    let root = RootKey::generate().unwrap();
    let providers = Providers::load(&harness.config).unwrap();
    let slot = providers
        .new_slot(LOCAL_PROVIDER, SET, &root, 1)
        .await
        .unwrap();
    let apps = &harness.engine().apps;
    apps.control()
        .create_root(SET, &root, vec![slot])
        .await
        .unwrap();
    apps.changed_here().await;
    harness
}

#[test]
fn requests_that_run_when_the_store_is_sealed_end_and_new_ones_fail() {
    run(async {
        let harness = rooted().await;
        let client = harness.client().await;
        let payload = fields(100);
        let value = client
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap()
            .payload;
        let hold = harness.hold_crypto().await;
        let begin = |deadline_ms: Option<u32>| {
            let (client, value) = (client.clone(), value.clone());
            tokio::spawn(async move {
                client
                    .decrypt(
                        Decrypt::new(APP, &value)
                            .deadline(deadline_ms.map(|time| Duration::from_millis(time.into()))),
                    )
                    .await
                    .map(|opened| opened.payload)
            })
        };
        let (patient, hasty) = (begin(None), begin(Some(1_000)));
        harness
            .metric_becomes("sealwire_requests_in_flight", |calls| calls == 2.0)
            .await;
        let apps = &harness.engine().apps;
        let keys = std::sync::Arc::downgrade(&apps.find(APP).1.unwrap().keys);
        apps.control().seal().await.unwrap();
        apps.changed_here().await;
        assert!(
            keys.upgrade().is_some(),
            "the requests that run hold the keys"
        );
        let refused = rpc_error(client.decrypt(Decrypt::new(APP, &value)).await);
        assert_eq!(refused.code, ErrorCode::Unavailable);
        assert!(
            refused.message.contains("sealed") && refused.retry_after_ms.is_some(),
            "{refused}"
        );
        harness
            .metric_becomes(
                "sealwire_health_check_failing{condition=\"sealed\"}",
                |failing| failing == 1.0,
            )
            .await;
        assert_eq!(http_get(harness.admin, "/ready").await.0, 503);
        assert_eq!(http_get(harness.admin, "/live").await.0, 200);
        assert!(hasty.await.unwrap().is_err(), "it ends at its deadline");
        drop(hold);
        assert_eq!(patient.await.unwrap().unwrap(), payload);
        harness.settles().await;
        while keys.upgrade().is_some() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }

        apps.control().unseal().await.unwrap();
        apps.changed_here().await;
        let opened = client.decrypt(Decrypt::new(APP, &value)).await.unwrap();
        assert_eq!(opened.payload, payload);
        harness
            .metric_becomes(
                "sealwire_health_check_failing{condition=\"sealed\"}",
                |failing| failing == 0.0,
            )
            .await;
        assert_eq!(http_get(harness.admin, "/ready").await.0, 200);
    });
}
