//! Engines that are gone, hang, and come back.

use crate::api_server::UNAVAILABLE;
use crate::site::{Site, until};

const DEK: [u8; 32] = [7; 32];

#[tokio::test(flavor = "multi_thread")]
async fn requests_move_to_another_engine() {
    let site = Site::start(2).await;
    let (_plugin, api_server) = site.plugin(&[]).await;
    let sealed = api_server.encrypt(&DEK).await;
    for gone in [0, 1, 0] {
        site.set_gone(gone, true);
        for _ in 0..5 {
            let status = api_server.status().await;
            assert_eq!((&*status.healthz, &status.key_id), ("ok", &sealed.key_id));
            assert_eq!(api_server.decrypt(&sealed).await.unwrap(), DEK);
            assert_eq!(api_server.encrypt(&DEK).await.key_id, sealed.key_id);
        }
        site.set_gone(gone, false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_that_hang_leave_time_for_others() {
    let site = Site::start(2).await;
    let (plugin, api_server) = site.plugin(&[]).await;
    let sealed = api_server.encrypt(&DEK).await;
    plugin.shutdown().await;
    let (_plugin, api_server) = site
        .plugin(&[("deadline_ms = 60000", "deadline_ms = 4000")])
        .await;
    for hanging in [0, 1] {
        site.proxies[hanging].black_hole(true);
        until(async || api_server.decrypt(&sealed).await == Ok(DEK.to_vec())).await;
        site.proxies[hanging].black_hole(false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_engines_the_plugin_is_unhealthy_and_recovers() {
    let site = Site::start(2).await;
    let (_plugin, api_server) = site.plugin(&[]).await;
    let sealed = api_server.encrypt(&DEK).await;
    site.set_gone(0, true);
    site.set_gone(1, true);
    let status = api_server.status().await;
    assert!(
        status
            .healthz
            .starts_with("no engine of engine.endpoints can serve"),
        "{}",
        status.healthz
    );
    assert_eq!((&*status.version, &*status.key_id), ("v2", ""));
    for outcome in [
        api_server.decrypt(&sealed).await,
        api_server
            .try_encrypt(&DEK)
            .await
            .map(|sealed| sealed.ciphertext),
    ] {
        let (code, text) = outcome.unwrap_err();
        assert_eq!(code, UNAVAILABLE, "{text}");
    }

    site.set_gone(1, false);
    until(async || api_server.status().await.healthz == "ok").await;
    assert_eq!(api_server.decrypt(&sealed).await.unwrap(), DEK);
    assert_eq!(api_server.status().await.key_id, sealed.key_id);
}
