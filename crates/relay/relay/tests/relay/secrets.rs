//! Files with certificates and secrets: those that other users can read, and changed ones.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use sealwire_relay::config;
use sealwire_relay::egress::authority;
use sealwire_relay::serve::Server;
use time::OffsetDateTime;

use super::support::{Relay, engine_files, parse, private, server_files, until};

const TEXT: &str = "[listen.public]\naddress = '127.0.0.1:0'\ncertificate = '{dir}/s.pem'\nkey = '{dir}/s-key.pem'\n\
    client_ca = '{dir}/s-ca.pem'\n\
    [listen.tap]\naddress = '127.0.0.1:0'\nkind = 'forward'\nclients = 'bearer'\ntokens = '{dir}/tokens'\n\
    authority_certificate = '{dir}/tap.pem'\nauthority_key = '{dir}/tap-key.pem'\n\
    [upstream.u]\nurl = 'https://localhost'\nroots = '{dir}/s-ca.pem'\ncertificate = '{dir}/s.pem'\nkey = '{dir}/u-key.pem'\n\
    [[route]]\nname = 'r'\nlisten = 'public'\npath = '/'\nupstream = 'u'\npass = true\n";

/// The error of a relay that starts with these files, or an empty text.
async fn start(files: &Path) -> String {
    let config = parse(files, TEXT);
    let compiled = config::compile(&config).unwrap_or_else(|errors| panic!("{errors:?}"));
    match Server::start(&config, compiled).await {
        Ok(server) => {
            server.shutdown().await;
            String::new()
        }
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_relay_does_not_start_with_secrets_that_other_users_can_read() {
    let files = engine_files();
    let file = |name: &str| files.path().join(name);
    let (chain, key) = server_files(files.path(), "s");
    private(&file("s.pem"), &chain);
    private(&file("s-key.pem"), &key);
    private(&file("u-key.pem"), &key);
    let new = authority::create_authority(&["a.example"], 1, OffsetDateTime::now_utc()).unwrap();
    private(&file("tap.pem"), &new.cert_pem);
    private(&file("tap-key.pem"), &new.key_pem);
    private(&file("tokens"), "0123456789abcdefghij");
    let chmod = |name: &str, mode| {
        std::fs::set_permissions(file(name), std::fs::Permissions::from_mode(mode)).unwrap()
    };
    assert_eq!(start(files.path()).await, "");
    for (name, place) in [
        ("relay-key.pem", "engine.key: "),
        ("u-key.pem", "upstream.u.key: "),
        ("s-key.pem", "listen.public.key: "),
        ("tap-key.pem", "listen.tap.authority_key: "),
        ("tokens", "listen.tap.tokens: "),
    ] {
        for mode in [0o604, 0o644, 0o602, 0o620] {
            chmod(name, mode);
            let error = start(files.path()).await;
            assert!(
                error.starts_with(place) && error.contains(name) && error.contains("chmod 600"),
                "{name} {mode:o}: {error}"
            );
            assert!(
                !error.contains("0123456789") && !error.contains("PRIVATE"),
                "{error}"
            );
        }
        // Without the right to write, and with that of a group of the process.
        for mode in [0o400, 0o600, 0o640] {
            chmod(name, mode);
            assert_eq!(start(files.path()).await, "", "{name} {mode:o}");
        }
    }
    // A certificate is no secret.
    chmod("s.pem", 0o644);
    assert_eq!(start(files.path()).await, "");
}

#[tokio::test]
async fn changed_certificates_that_are_rejected_are_told() {
    let files = engine_files();
    let folder = files.path().to_owned();
    let (chain, key) = server_files(&folder, "s");
    let write = |chain: &str| {
        private(&folder.join("s.pem"), chain);
        private(&folder.join("s-key.pem"), &key);
    };
    write(&chain);
    let text = "[listen.public]\naddress = '127.0.0.1:0'\ncertificate = '{dir}/s.pem'\nkey = '{dir}/s-key.pem'\n\
        clients = 'open'\n[upstream.u]\nurl = 'http://127.0.0.1:1'\naddresses = ['127.0.0.0/8']\n\
        [[route]]\nname = 'r'\nlisten = 'public'\npath = '/'\nupstream = 'u'\npass = true\n";
    let relay = Relay::start_in(files, text).await;
    let rejected = || {
        relay.metric(
            "sealwire_relay_certificates_rejected",
            "listener=\"public\"",
        )
    };
    until(|| relay.metric("sealwire_relay_certificates_rejected", "") == 0).await;
    write("no certificate");
    until(|| rejected() == 1).await;
    write(&chain);
    until(|| rejected() == 0).await;
}
