//! A service that holds ciphertext alone, behind a CONNECT proxy: the third party gets the value.

use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sealwire_client::Encrypt;
use sealwire_dev_ca::Usage;
use sealwire_relay::egress::authority;
use time::OffsetDateTime;

use crate::e2e::harness::{APP, Harness, leaf, private, run};
use crate::relay::site::{Upstream, start_relay};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn a_third_party_gets_the_value_that_the_service_does_not_hold() {
    run(async {
        let engine = Harness::with(|config| config.crypto.threads = 1).await;
        let folder = tempfile::tempdir().unwrap();
        let issued = engine
            .authority
            .issue(&leaf(Usage::Server, "party"))
            .unwrap();
        let chain = vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.expose().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let tls = Arc::new(
            tls.with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap(),
        );
        let (party, other) = (
            Upstream::start(Some(Arc::clone(&tls))).await,
            Upstream::start(Some(tls)).await,
        );
        let file = |name: &str| folder.path().join(name).display().to_string();
        let new =
            authority::create_authority(&["localhost"], 1, OffsetDateTime::now_utc()).unwrap();
        std::fs::write(file("egress-ca.pem"), &new.cert_pem).unwrap();
        private(file("egress-ca-key.pem").as_ref(), &new.key_pem);
        private(file("tokens").as_ref(), TOKEN);
        let routes = format!(
            "[listen.egress]\naddress = '127.0.0.1:0'\nkind = 'forward'\nclients = 'bearer'\ntokens = '{}'\nauthority_certificate = '{}'\n\
             authority_key = '{}'\ntunnel = ['localhost:{}']\ntunnel_addresses = ['127.0.0.0/8', '::1/128']\n\
             [upstream.party]\nurl = 'https://localhost:{}'\nroots = '{}'\naddresses = ['127.0.0.0/8', '::1/128']\n\
             [[route]]\nname = 'charge'\nlisten = 'egress'\nhost = 'localhost'\npath = '/charge'\nupstream = 'party'\napp = '{APP}'\n\
             [[route.request]]\naction = 'decrypt'\nselect = ['$.pan']\n[[route.response]]\naction = 'encrypt'\nselect = ['$.pan']\n",
            file("tokens"),
            file("egress-ca.pem"),
            file("egress-ca-key.pem"),
            other.address.port(),
            party.address.port(),
            file("ca.pem"),
        );
        let unused = Upstream::start(None).await;
        let passed = "[[route]]\nname = 'p'\nlisten = 'public'\npath = '/p'\nupstream = 'shop'\npass = true\n";
        let relay = start_relay(
            &engine,
            engine.address,
            &folder,
            unused.address,
            &(routes + passed),
        )
        .await;
        let proxy = relay
            .addresses()
            .iter()
            .find(|(name, _)| &**name == "egress")
            .unwrap()
            .1;

        let mut payload = Vec::new();
        sealwire_msgpack::write::str(&mut payload, "4111111111111111");
        let sealed = engine
            .client()
            .await
            .encrypt(Encrypt::new(APP, &payload))
            .await
            .unwrap();
        let envelope = sealwire_msgpack::TokenReader::new(&sealed.payload)
            .str_utf8()
            .unwrap()
            .to_owned();
        let body = format!("{{\"pan\":\"{envelope}\"}}");
        let curl = async |port: u16, host: &str, user: &str, ca: &str, extra: &[&str]| {
            let mut command = Command::new("curl");
            command.args([
                "-sS",
                "-m",
                "60",
                "-x",
                &format!("http://{proxy}"),
                "-U",
                user,
                "--cacert",
                ca,
            ]);
            command.args([
                "-H",
                "content-type: application/json",
                "-w",
                "\n%{http_code} %{http_connect} %{http_version}",
                "-d",
                &body,
            ]);
            command
                .args(extra)
                .arg(format!("https://{host}:{port}/charge"));
            let output = tokio::task::spawn_blocking(move || command.output().unwrap())
                .await
                .unwrap();
            (
                String::from_utf8_lossy(&output.stdout).into_owned(),
                output.status.success(),
            )
        };
        let (user, ca) = (format!("service:{TOKEN}"), file("egress-ca.pem"));
        for (extra, version) in [(&[][..], "2"), (&["--http1.1"][..], "1.1")] {
            let (said, is_ok) = curl(party.address.port(), "localhost", &user, &ca, extra).await;
            assert!(
                is_ok && said.ends_with(&format!("\n200 200 {version}")),
                "{said}"
            );
            assert_eq!(&party.last_body()[..], b"{\"pan\":\"4111111111111111\"}");
            // The party's echo is sealed again on its way back.
            assert!(
                said.contains("sw1:") && !said.contains("4111111111111111"),
                "{said}"
            );
        }
        // A destination on the list passes untouched: the client sees the destination's own
        // certificate.
        let (said, is_ok) = curl(
            other.address.port(),
            "localhost",
            &user,
            &file("ca.pem"),
            &[],
        )
        .await;
        assert!(is_ok && said.contains(&envelope), "{said}");
        assert_eq!(other.last_body(), body);
        // No credentials, wrong ones, and destinations that nothing allows.
        for (host, port, user, expected) in [
            (
                "localhost",
                party.address.port(),
                "service:wrong-wrong-wrong-wrong",
                "407",
            ),
            ("unlisted.example", 443, user.as_str(), "403"),
            ("127.0.0.1", party.address.port(), user.as_str(), "403"),
        ] {
            let (said, is_ok) = curl(port, host, user, &ca, &[]).await;
            assert!(
                !is_ok && said.contains(&format!("000 {expected}")),
                "{host}: {said}"
            );
        }
        relay.shutdown().await;
    });
}
