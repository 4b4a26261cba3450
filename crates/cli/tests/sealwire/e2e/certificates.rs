//! Certificates, authorities and revocation lists change while calls run: who may stay loses
//! nothing, who may not is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sealwire_access::PrincipalKind;
use sealwire_client::{Client, ClientConfig, Encrypt, ErrorCode, Pem};
use sealwire_dev_ca::{Authority, Issued, Leaf, Usage, Validity};
use sealwire_settings::ControlListen;
use time::OffsetDateTime;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::e2e::audit::records;
use crate::e2e::harness::{APP, HANG, Harness, fields, leaf, private, run};
use crate::e2e::raw::{Heard, Raw, encrypt, health, heavy, three_and_two_waiting};

const LOADED: &str = "sealwire_certificate_reloads_total{outcome=\"loaded\"}";
const ACCEPTED: &str = "sealwire_connections_total{outcome=\"accepted\"}";
const REVOKED: &str = "sealwire_disconnected_clients_total{reason=\"revoked\"}";

/// Makes a revocation list of the authority with these certificates.
fn list(authority: &Authority, revoked: &[&Issued]) -> String {
    let now = OffsetDateTime::now_utc();
    let revoke = |issued: &&Issued| {
        let der = CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap();
        let serial = x509_parser::parse_x509_certificate(&der)
            .unwrap()
            .1
            .raw_serial()
            .to_vec();
        RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial),
            revocation_time: now - time::Duration::hours(1),
            reason_code: None,
            invalidity_date: None,
        }
    };
    let list = CertificateRevocationListParams {
        this_update: now - time::Duration::hours(1),
        next_update: now + time::Duration::days(1),
        crl_number: SerialNumber::from_slice(&[1]),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(revoke).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let key = KeyPair::from_pem(authority.key_pem().expose()).unwrap();
    let issuer = Issuer::from_ca_cert_pem(authority.cert_pem(), key).unwrap();
    list.signed_by(&issuer).unwrap().pem().unwrap()
}

/// Revokes certificates of the server's authority.
pub(crate) async fn revoke(harness: &mut Harness, revoked: &[&Issued]) {
    let file = harness.config.tls.client_ca.with_file_name("crl.pem");
    std::fs::write(&file, list(&harness.authority, revoked)).unwrap();
    harness.config.tls.client_crl = Some(file);
    harness.reload().await;
}

/// A client pool under load.
struct BackgroundLoad {
    client: Client,
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    callers: JoinSet<Vec<String>>,
}

impl BackgroundLoad {
    /// Starts a load without retries, so that no failure is hidden.
    async fn start(harness: &Harness, identity: &Issued) -> Self {
        let bytes = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
        let (certificate, key) = (bytes(&identity.cert_pem), bytes(identity.key_pem.expose()));
        Self::of(ClientConfig {
            certificate,
            key,
            attempts_max: 1,
            ..harness.client_config()
        })
        .await
    }

    async fn of(config: ClientConfig) -> Self {
        let client = Client::connect(config).await.unwrap();
        let (stop, calls, mut callers) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicU64>::default(),
            JoinSet::new(),
        );
        for _ in 0..2 {
            let (client, stop, calls) = (client.clone(), Arc::clone(&stop), Arc::clone(&calls));
            callers.spawn(async move {
                let (payload, mut failures) = (fields(5), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    calls.fetch_add(1, Ordering::Relaxed);
                    if let Err(error) = client.encrypt(Encrypt::new(APP, &payload)).await {
                        failures.push(error.to_string());
                    }
                }
                failures
            });
        }
        Self {
            client,
            stop,
            calls,
            callers,
        }
    }

    /// Waits for `calls` more requests.
    async fn goes_on(&self, calls: u64) {
        let until = self.calls.load(Ordering::Relaxed) + calls;
        while self.calls.load(Ordering::Relaxed) < until {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the load. Returns the number of requests, and fails if any failed.
    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let failures = self.callers.join_all().await.concat();
        assert!(failures.is_empty(), "{failures:?}");
        self.calls.load(Ordering::Relaxed)
    }
}

/// Waits until a metric has this value, however slow the machine is.
async fn reaches(harness: &Harness, series: &str, value: f64) {
    let end = Instant::now() + HANG;
    while harness.metric(series).await != value {
        assert!(
            Instant::now() < end,
            "{series} stays {}",
            harness.metric(series).await
        );
        sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the server's certificate on a connection.
fn shown(raw: &Raw) -> CertificateDer<'static> {
    raw.stream.get_ref().1.peer_certificates().unwrap()[0]
        .clone()
        .into_owned()
}

#[test]
fn certificates_rotate_under_load_and_nothing_is_dropped() {
    run(async {
        let mut harness = Harness::with(|config| {
            config.tls.watch_s = 1;
            config.audit.folder = Some(config.state.folder.with_file_name("audit"));
        })
        .await;
        let relay = harness.another_caller("relay");
        let old = BackgroundLoad::start(&harness, &relay).await;
        reaches(&harness, "sealwire_connections_open", 2.0).await;
        let before = shown(&harness.raw().await);

        // 1. The server's certificate, whose change the file watch finds.
        let issued = harness
            .authority
            .issue(&leaf(Usage::Server, "engine"))
            .unwrap();
        private(&harness.config.tls.key, issued.key_pem.expose());
        std::fs::write(&harness.config.tls.certificate, &issued.cert_pem).unwrap();
        reaches(&harness, LOADED, 1.0).await;
        let mut raw = harness.raw().await;
        assert_ne!(shown(&raw), before, "a new connection sees the new one");
        raw.is_alive().await;

        // 2. The authority of clients: old and new together.
        let next = Authority::create("next", Validity::days(10)).unwrap();
        let both = format!("{}{}", harness.authority.cert_pem(), next.cert_pem());
        std::fs::write(&harness.config.tls.client_ca, both).unwrap();
        reaches(&harness, LOADED, 2.0).await;
        let new = BackgroundLoad::start(
            &harness,
            &next.issue(&leaf(Usage::Client, "relay-next")).unwrap(),
        )
        .await;

        // 3. Revocation lists: the old authority's revokes one client, the new authority's is
        //    empty.
        let leaver = harness.another_caller("leaver");
        let mut leaving = harness.raw_as(Some(&leaver)).await.unwrap();
        leaving.is_alive().await;
        let file = harness.config.tls.client_ca.with_file_name("crl.pem");
        let lists = |revoked: &[&Issued]| {
            format!("{}{}", list(&harness.authority, revoked), list(&next, &[]))
        };
        std::fs::write(&file, lists(&[])).unwrap();
        let (client_ca, lists) = (harness.config.tls.client_ca.clone(), lists(&[&leaver]));
        harness.config.tls.client_crl = Some(file.clone());
        harness.reload().await;
        leaving.is_alive().await;
        std::fs::write(&file, lists).unwrap();
        assert_eq!(
            leaving.ends().await.map(|notice| notice.code),
            Some(ErrorCode::Unauthenticated)
        );
        assert!(
            harness
                .raw_as(Some(&leaver))
                .await
                .unwrap()
                .refuses_to_speak()
                .await
        );
        reaches(&harness, LOADED, 4.0).await;

        // 4. The new authority alone.
        let old_calls = old.client.clone();
        let calls = old.end().await;
        std::fs::write(&client_ca, next.cert_pem()).unwrap();
        reaches(&harness, LOADED, 5.0).await;
        let untrusted = "sealwire_disconnected_clients_total{reason=\"untrusted\"}";
        // The pool's two connections, and the connection that saw the new certificate.
        reaches(&harness, untrusted, 3.0).await;
        assert!(old_calls.health().await.is_err());
        let sum = calls + new.end().await;
        assert_eq!(harness.metric(REVOKED).await, 1.0);
        println!("{sum} calls over five rotations, none failed, none tried again");
        // Two pools of two connections, and the three raw connections that were served.
        assert_eq!(
            harness.metric(ACCEPTED).await,
            7.0,
            "no caller had to connect again"
        );
        harness.take_server().shutdown().await;
        let records = records(harness.config.audit.folder.as_ref().unwrap());
        let reloads = records
            .iter()
            .filter(|record| record.event == "reload" && record.outcome.as_deref() == Some("ok"));
        assert_eq!(
            reloads.count(),
            5,
            "those found by the watch and the one that was asked for"
        );
    });
}

#[test]
fn a_relay_that_renews_its_files_loses_no_call_when_the_old_certificate_goes() {
    run(async {
        let mut harness = Harness::start().await;
        let folder = tempfile::tempdir().unwrap();
        let [certificate, key] =
            ["relay.pem", "relay-key.pem"].map(|name| folder.path().join(name));
        let renew = |issued: &Issued| {
            private(&key, issued.key_pem.expose());
            std::fs::write(&certificate, &issued.cert_pem).unwrap();
        };
        let old = harness.another_caller("relay");
        renew(&old);
        let config = harness.client_config();
        let (cert_file, key_file) = (Pem::File(certificate.clone()), Pem::File(key.clone()));
        let load = BackgroundLoad::of(ClientConfig {
            certificate: cert_file,
            key: key_file,
            ..config
        })
        .await;
        load.goes_on(50).await;
        renew(&harness.another_caller("relay"));
        // The server closes the connection before the client checks for a revocation.
        revoke(&mut harness, &[&old]).await;
        load.goes_on(100).await;
        let stats = load.client.stats();
        println!("{} calls, none failed; {stats:?}", load.end().await);
        assert_eq!((harness.metric(REVOKED).await, stats.ejections), (2.0, 0));
    });
}

#[test]
fn revoked_clients_finish_requests_and_start_none() {
    run(async {
        let mut harness = Harness::with(|config| {
            config.crypto.threads = 1;
            config.limits.drain_ms_max = 3_600_000;
        })
        .await;
        let caller = harness.another_caller("relay");
        let (mut busy, mut idle) = (
            harness.raw_as(Some(&caller)).await.unwrap(),
            harness.raw().await,
        );
        // The request is being processed while the thread is held.
        let mut hold = harness.hold_crypto().await;
        busy.send(&heavy(1, 100)).await;
        harness
            .metric_becomes("sealwire_requests_in_flight", |calls| calls == 1.0)
            .await;
        hold.run_one_slice().await;
        revoke(&mut harness, &[&caller]).await;
        busy.send(&[encrypt(2, &Encrypt::new(APP, &fields(1))), health(3)].concat())
            .await;
        for msgid in [2, 3] {
            assert_eq!(
                busy.answer(msgid).await.unwrap_err().code,
                ErrorCode::Unauthenticated
            );
        }
        drop(hold);
        busy.answer(1).await.expect("a running call finishes");
        let notice = busy.ends().await.expect("the peer is told");
        assert_eq!(
            (notice.code, &*notice.message),
            (
                ErrorCode::Unauthenticated,
                "the client certificate is revoked"
            )
        );
        idle.is_alive().await;
        assert!(
            harness
                .raw_as(Some(&caller))
                .await
                .unwrap()
                .refuses_to_speak()
                .await
        );
        harness.settles().await;
    });
}

#[test]
fn requests_longer_than_a_drain_get_responses() {
    run(async {
        let mut harness = Harness::with(|config| {
            config.limits.drain_ms_max = 100;
            config.limits.in_flight_per_connection_max = 3;
        })
        .await;
        let caller = harness.another_caller("leaver");
        let mut busy = harness.raw_as(Some(&caller)).await.unwrap();
        let hold = harness.hold_crypto().await;
        busy.send(&three_and_two_waiting()).await;
        reaches(&harness, "sealwire_requests_in_flight", 3.0).await;
        revoke(&mut harness, &[&caller]).await;
        let mut answered = Vec::new();
        let notice = loop {
            match busy.hear().await {
                Heard::Response(msgid, outcome) => {
                    assert_eq!(
                        outcome.unwrap_err().code,
                        ErrorCode::Unauthenticated,
                        "{msgid}"
                    );
                    answered.push(msgid);
                }
                Heard::Notice(notice) => break notice,
                Heard::End => panic!("the peer is not told"),
            }
        };
        answered.sort_unstable();
        assert_eq!(
            (answered, notice.code),
            (vec![1, 2, 3, 4, 5], ErrorCode::Unauthenticated)
        );
        assert_eq!(busy.hear().await, Heard::End);
        drop(hold);
        harness.settles().await;
    });
}

#[test]
fn a_certificate_that_ends_while_it_is_connected_ends_the_connection() {
    run(async {
        let harness = Harness::with(|config| config.tls.watch_s = 1).await;
        let mut other = harness.raw().await;
        // The certificate must be good until its connection is heard once; a machine that stands
        // still tries a longer one.
        let (mut raw, validity) = 'served: {
            for seconds in [2, 8, 32, 128] {
                let now = OffsetDateTime::now_utc();
                let not_after = now + time::Duration::seconds(seconds);
                let validity = Validity {
                    not_before: now - time::Duration::hours(1),
                    not_after,
                };
                let short = harness
                    .authority
                    .issue(&Leaf {
                        validity,
                        ..leaf(Usage::Client, "short")
                    })
                    .unwrap();
                let Ok(mut raw) = harness.raw_as(Some(&short)).await else {
                    continue;
                };
                let _ = raw.try_send(&health(1)).await;
                if matches!(raw.hear().await, Heard::Response(1, Ok(_))) {
                    break 'served (raw, validity);
                }
                assert!(
                    OffsetDateTime::now_utc() > not_after,
                    "turned away before its end"
                );
            }
            panic!("no certificate lasts for one request");
        };
        let notice = raw.ends().await.expect("the peer is told");
        assert_eq!(
            (notice.code, &*notice.message),
            (
                ErrorCode::Unauthenticated,
                "the client certificate has expired"
            )
        );
        assert!(OffsetDateTime::now_utc() > validity.not_after);
        other.is_alive().await;
    });
}

#[test]
fn an_operator_that_is_revoked_changes_nothing_any_more() {
    run(async {
        let mut harness = Harness::with(|config| {
            config.control = Some(ControlListen {
                address: ([127, 0, 0, 1], 0).into(),
                client_ca: None,
                client_crl: None,
                principals: ["leaver", "operator"]
                    .map(|name| (PrincipalKind::Dns, name.to_owned()))
                    .to_vec(),
            });
        })
        .await;
        let (leaver, operator) = (
            harness.another_caller("leaver"),
            harness.another_caller("operator"),
        );
        let connect = |identity| {
            Raw::connect(
                harness.control_address(),
                harness.authority.cert_pem(),
                Some(identity),
            )
        };
        let (mut leaving, mut staying) = (
            connect(&leaver).await.unwrap(),
            connect(&operator).await.unwrap(),
        );
        leaving.is_alive().await;
        revoke(&mut harness, &[&leaver]).await;
        let notice = leaving.ends().await.expect("the operator is told");
        assert_eq!(
            (notice.code, &*notice.message),
            (
                ErrorCode::Unauthenticated,
                "the client certificate is revoked"
            )
        );
        staying.is_alive().await;
    });
}
