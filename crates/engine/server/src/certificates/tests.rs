use std::os::unix::fs::symlink;
use std::path::Path;

use sealwire_wire::ErrorCode;
use tokio::sync::watch;

use super::*;
use crate::shutdown::Shutdown;
use crate::tls::tests::{self, der, leaf, list, private};
use sealwire_dev_ca::{Authority, Issued, Leaf, Usage, Validity};
use sealwire_telemetry::State;
use sealwire_telemetry::metrics::DisconnectLabel;

/// Interval between checks of the files, in seconds. Paused time passes immediately, except while work
/// runs.
const WATCH_S: u64 = 5;
/// The bound that SECURITY.md promises, plus time for the check itself.
const BOUND: Duration = Duration::from_millis(WATCH_S * 1_000 + 1_000 + 200);

/// The certificates of an engine, with the task that manages them.
struct TestCertificates {
    folder: tests::Files,
    admin: Arc<Telemetry>,
    registry: Arc<ConnectionRegistry>,
    reload: Reload,
}

impl TestCertificates {
    fn start(folder: tests::Files) -> Self {
        let mut config = Config::defaults(folder.folder.path());
        config.tls = Tls {
            watch_s: WATCH_S,
            ..folder.tls.clone()
        };
        let admin = Arc::<Telemetry>::default();
        let (certificates, reload) = Certificates::load(&config, &admin).unwrap();
        let registry = certificates.data_registry();
        tokio::spawn(certificates.run(|_| ()));
        Self {
            folder,
            admin,
            registry,
            reload,
        }
    }

    fn enter(&self, issued: &Issued) -> connection_registry::ConnectionGuard {
        self.registry
            .register(&[der(issued)], &self.registry.handshake_config())
            .ok()
            .unwrap()
    }

    fn metric(&self, series: &str) -> f64 {
        let text = self.admin.metrics.encode();
        let line = text.lines().find(|line| {
            line.strip_prefix(series)
                .is_some_and(|rest| rest.starts_with(' '))
        });
        line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Returns the numbers of successful and failed reloads, and 1 if the current files failed to load.
    fn reloads(&self) -> [f64; 3] {
        [
            self.metric("sealwire_certificate_reloads_total{outcome=\"loaded\"}"),
            self.metric("sealwire_certificate_reloads_total{outcome=\"refused\"}"),
            self.metric("sealwire_certificate_files_rejected"),
        ]
    }

    /// Waits until the files were checked three times.
    async fn wait_for_checks(&self) {
        sleep(Duration::from_secs(3 * (WATCH_S + 1))).await;
    }

    fn crl(&self) -> &Path {
        self.folder.tls.client_crl.as_deref().unwrap()
    }

    fn write(&self, file: &Path, text: &str) {
        std::fs::write(file, text).unwrap();
    }

    fn revoke(&self, revoked: &[&Issued]) {
        self.write(
            self.crl(),
            &list(&self.folder.authority, revoked, time::Duration::days(30)),
        );
    }
}

/// Creates files with an empty revocation list.
fn with_list() -> tests::Files {
    let mut folder = tests::Files::new();
    let file = folder.folder.path().join("crl.pem");
    std::fs::write(
        &file,
        list(&folder.authority, &[], time::Duration::days(30)),
    )
    .unwrap();
    folder.tls.client_crl = Some(file);
    folder
}

async fn disconnected(connection: &connection_registry::ConnectionGuard) -> DisconnectLabel {
    let mut disconnected = connection.disconnected();
    disconnected
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_revoked_clients_are_disconnected_and_within_the_bound() {
    let fixture = TestCertificates::start(with_list());
    let revoked = fixture.folder.client();
    let good = fixture.folder.client();
    let connections = [fixture.enter(&revoked), fixture.enter(&revoked)];
    let other = fixture.enter(&good);
    // The worst case: the files change just after a check.
    sleep(Duration::from_secs(WATCH_S) + Duration::from_millis(1)).await;
    let revoked_at = Instant::now();
    fixture.revoke(&[&revoked]);
    for connection in &connections {
        assert_eq!(disconnected(connection).await, DisconnectLabel::Revoked);
    }
    assert!(revoked_at.elapsed() <= BOUND, "{:?}", revoked_at.elapsed());
    fixture.wait_for_checks().await;
    assert_eq!(*other.disconnected().borrow(), None);
    assert_eq!(
        fixture.metric("sealwire_disconnected_clients_total{reason=\"revoked\"}"),
        2.0
    );
    assert_eq!(fixture.reloads(), [1.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn handshake_is_verified_by_a_change_that_overtakes_it() {
    let fixture = TestCertificates::start(with_list());
    let revoked = fixture.folder.client();
    let good = fixture.folder.client();
    let before = fixture.registry.handshake_config();
    fixture.revoke(&[&revoked]);
    fixture.wait_for_checks().await;
    assert_eq!(
        fixture.registry.register(&[der(&revoked)], &before).err(),
        Some(DisconnectLabel::Revoked)
    );
    assert!(fixture.registry.register(&[der(&good)], &before).is_ok());
}

#[tokio::test(start_paused = true)]
async fn authorities_can_be_added_and_removed() {
    let fixture = TestCertificates::start(tests::Files::new());
    let old = fixture.enter(&fixture.folder.client());
    let next = Authority::create("next", Validity::days(10)).unwrap();
    let file = &fixture.folder.tls.client_ca;
    fixture.write(
        file,
        &format!("{}{}", fixture.folder.authority.cert_pem(), next.cert_pem()),
    );
    fixture.wait_for_checks().await;
    let new = fixture.enter(&next.issue(&leaf(Usage::Client, "relay")).unwrap());
    assert_eq!(
        (*old.disconnected().borrow(), *new.disconnected().borrow()),
        (None, None)
    );
    fixture.write(file, next.cert_pem());
    assert_eq!(disconnected(&old).await, DisconnectLabel::Untrusted);
    fixture.wait_for_checks().await;
    assert_eq!(*new.disconnected().borrow(), None);
    assert_eq!(fixture.reloads(), [2.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn expired_certificate_closes_its_connections() {
    let fixture = TestCertificates::start(tests::Files::new());
    let long = fixture.enter(&fixture.folder.client());
    // Certificates expire by the clock of the machine, which paused time does not affect.
    let now = OffsetDateTime::now_utc();
    let validity = Validity {
        not_before: now - time::Duration::hours(1),
        not_after: now + time::Duration::seconds(5),
    };
    let short = Leaf {
        validity,
        ..leaf(Usage::Client, "short")
    };
    let short = fixture.enter(&fixture.folder.authority.issue(&short).unwrap());
    assert_eq!(*short.disconnected().borrow(), None);
    assert_eq!(disconnected(&short).await, DisconnectLabel::Expired);
    assert!(
        OffsetDateTime::now_utc() > validity.not_after,
        "not before its end"
    );
    assert_eq!(*long.disconnected().borrow(), None);
    assert_eq!(
        fixture.metric("sealwire_disconnected_clients_total{reason=\"expired\"}"),
        1.0
    );
}

#[tokio::test(start_paused = true)]
async fn files_that_do_not_load_leave_the_earlier_files_in_service() {
    let fixture = TestCertificates::start(with_list());
    let connection = fixture.enter(&fixture.folder.client());
    let good = std::fs::read_to_string(fixture.crl()).unwrap();
    let tls = &fixture.folder.tls;
    let ca = std::fs::read_to_string(&tls.client_ca).unwrap();
    let before = fixture.registry.handshake_config().config;
    let mut failed = 0.0;
    for (file, text) in [
        (fixture.crl(), "nothing"),
        (fixture.crl(), &good[..good.len() / 2]),
        (&tls.client_ca, &ca[..ca.len() - 40]),
        (&tls.client_ca, ""),
    ] {
        let original = std::fs::read_to_string(file).unwrap();
        fixture.write(file, text);
        fixture.wait_for_checks().await;
        failed += 1.0;
        assert_eq!(
            fixture.reloads(),
            [0.0, failed, 1.0],
            "each failure counts once, however often the files are checked"
        );
        assert!(Arc::ptr_eq(
            &before,
            &fixture.registry.handshake_config().config
        ));
        assert!(
            !fixture.admin.readiness.is_failing(Condition::Certificate),
            "the certificates in service are valid"
        );
        fixture.write(file, &original);
        fixture.wait_for_checks().await;
        assert_eq!(fixture.reloads(), [0.0, failed, 0.0], "back as it was");
    }
    std::fs::remove_file(fixture.crl()).unwrap();
    fixture.wait_for_checks().await;
    assert_eq!(fixture.reloads(), [0.0, failed + 1.0, 1.0]);
    fixture.write(
        fixture.crl(),
        &list(&fixture.folder.authority, &[], time::Duration::days(60)),
    );
    fixture.wait_for_checks().await;
    assert_eq!(fixture.reloads(), [1.0, failed + 1.0, 0.0]);
    assert_eq!(*connection.disconnected().borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn certificate_and_key_can_change_one_after_the_other() {
    let fixture = TestCertificates::start(tests::Files::new());
    let tls = &fixture.folder.tls;
    let before = fixture.registry.handshake_config().config;
    for pause in [Duration::from_millis(300), Duration::from_secs(60)] {
        let issued = fixture
            .folder
            .authority
            .issue(&leaf(Usage::Server, "localhost"))
            .unwrap();
        let reloads = fixture.reloads();
        fixture.write(&tls.certificate, &issued.cert_pem);
        sleep(pause).await;
        private(&tls.key, issued.key_pem.expose());
        fixture.wait_for_checks().await;
        let failed = if pause > SETTLE { 1.0 } else { 0.0 };
        assert_eq!(
            fixture.reloads(),
            [reloads[0] + 1.0, reloads[1] + failed, 0.0],
            "{pause:?}"
        );
    }
    assert!(!Arc::ptr_eq(
        &before,
        &fixture.registry.handshake_config().config
    ));
}

#[tokio::test(start_paused = true)]
async fn files_behind_a_replaced_symlink_are_read_again() {
    // Kubernetes mounts a secret like this: the paths lead through a symlink to a folder, and an
    // update replaces only the symlink.
    let mut folder = with_list();
    let root = folder.folder.path().to_owned();
    let one = root.join("one");
    let two = root.join("two");
    let data = root.join("..data");
    for version in [&one, &two] {
        std::fs::create_dir(version).unwrap();
        let issued = folder
            .authority
            .issue(&leaf(Usage::Server, "localhost"))
            .unwrap();
        std::fs::write(version.join("tls.crt"), &issued.cert_pem).unwrap();
        private(&version.join("tls.key"), issued.key_pem.expose());
    }
    symlink(&one, &data).unwrap();
    (folder.tls.certificate, folder.tls.key) = (data.join("tls.crt"), data.join("tls.key"));
    let fixture = TestCertificates::start(folder);
    symlink(&two, root.join("..new")).unwrap();
    std::fs::rename(root.join("..new"), &data).unwrap();
    fixture.wait_for_checks().await;
    assert_eq!(fixture.reloads(), [1.0, 0.0, 0.0]);
    // A renamed file of the same length and modification time, with another content.
    let next = root.join("next.pem");
    std::fs::write(
        &next,
        list(&fixture.folder.authority, &[], time::Duration::days(31)),
    )
    .unwrap();
    let as_before = std::fs::metadata(fixture.crl())
        .unwrap()
        .modified()
        .unwrap();
    std::fs::File::options()
        .write(true)
        .open(&next)
        .unwrap()
        .set_modified(as_before)
        .unwrap();
    std::fs::rename(&next, fixture.crl()).unwrap();
    fixture.wait_for_checks().await;
    assert_eq!(fixture.reloads(), [2.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn files_that_keep_changing_are_not_loaded() {
    let fixture = TestCertificates::start(with_list());
    let good = std::fs::read_to_string(fixture.crl()).unwrap();
    for round in 0..60 {
        fixture.write(
            fixture.crl(),
            &format!("{good}{}", "\n".repeat(round % 7 + 1)),
        );
        sleep(SETTLE - Duration::from_millis(50)).await;
    }
    assert_eq!(fixture.reloads(), [0.0, 1.0, 1.0]);
    fixture.wait_for_checks().await;
    assert_eq!(fixture.reloads(), [1.0, 1.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn reload_takes_effect_at_once_and_invalid_files_change_nothing() {
    let fixture = TestCertificates::start(with_list());
    let revoked = fixture.folder.client();
    let connection = fixture.enter(&revoked);
    let tls = Tls {
        watch_s: 0,
        ..fixture.folder.tls.clone()
    };
    let elsewhere = |name: &str| Some(fixture.folder.folder.path().join(name));
    let absent = Tls {
        client_crl: elsewhere("absent.pem"),
        ..tls.clone()
    };
    let error = fixture
        .reload
        .reload(absent, None)
        .await
        .unwrap_err()
        .with_cause();
    assert!(
        error.starts_with("tls.client_crl: ") && error.contains("No such file"),
        "{error}"
    );
    assert_eq!(fixture.reloads(), [0.0; 3]);
    std::fs::write(
        elsewhere("lists.pem").unwrap(),
        list(
            &fixture.folder.authority,
            &[&revoked],
            time::Duration::days(1),
        ),
    )
    .unwrap();
    fixture
        .reload
        .reload(
            Tls {
                client_crl: elsewhere("lists.pem"),
                ..tls.clone()
            },
            None,
        )
        .await
        .unwrap();
    assert_eq!(
        *connection.disconnected().borrow(),
        Some(DisconnectLabel::Revoked),
        "verified before the reload returns"
    );
    // The files are no longer checked periodically.
    std::fs::remove_file(elsewhere("lists.pem").unwrap()).unwrap();
    fixture.wait_for_checks().await;
    assert_eq!(fixture.reloads(), [1.0, 0.0, 0.0]);
    assert!(
        fixture
            .reload
            .reload(
                Tls {
                    client_crl: elsewhere("lists.pem"),
                    ..tls
                },
                None
            )
            .await
            .is_err()
    );
    assert_eq!(fixture.reloads(), [1.0, 1.0, 1.0]);
}

#[tokio::test]
async fn expiry_is_logged_once_per_stage_and_decides_readiness() {
    let folder = with_list();
    let mut config = Config::defaults(folder.folder.path());
    config.tls = folder.tls.clone();
    let admin = Arc::<Telemetry>::default();
    admin.readiness.enter(sealwire_telemetry::Phase::Ready);
    let file = tempfile::NamedTempFile::new().unwrap();
    let log = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false);
    let log = log
        .with_writer(std::sync::Mutex::new(file.reopen().unwrap()))
        .finish();
    let _log = tracing::subscriber::set_default(log);
    let (mut certificates, _reload) = Certificates::load(&config, &admin).unwrap();
    let lines = || std::fs::read_to_string(file.path()).unwrap();
    assert_eq!(lines(), "", "no certificate expires soon");
    let infos = certificates.certificates.clone();
    let mut count = 0;
    for (left, is_ready) in [
        (time::Duration::days(29), true),
        (time::Duration::days(6), true),
        (time::Duration::hours(23), true),
        (time::Duration::seconds(-1), false),
    ] {
        certificates.certificates = infos.clone();
        for info in &mut certificates.certificates {
            info.expires_at = Some(OffsetDateTime::now_utc() + left);
            info.valid_from = OffsetDateTime::now_utc() - time::Duration::days(365);
        }

        certificates.log_expiry();
        certificates.log_expiry();
        count += infos.len();
        assert_eq!(lines().lines().count(), count, "{left}: {}", lines());
        assert_eq!(admin.readiness.state() == State::Ready, is_ready, "{left}");
    }
    assert!(
        lines().contains("ERROR") && lines().contains("tls.client_crl"),
        "{}",
        lines()
    );
    // Valid certificates are put in service.
    certificates.set_certificates(infos);
    assert_eq!(
        (admin.readiness.state(), lines().lines().count()),
        (State::Ready, count)
    );
}

#[tokio::test(start_paused = true)]
async fn many_certificates_are_verified_in_slices() {
    let fixture = TestCertificates::start(with_list());
    let issued: Vec<Issued> = (0..400).map(|_| fixture.folder.client()).collect();
    let callers: Vec<_> = issued.iter().map(|issued| fixture.enter(issued)).collect();
    fixture.revoke(&issued.iter().step_by(2).collect::<Vec<_>>());
    fixture.wait_for_checks().await;
    for (index, connection) in callers.iter().enumerate() {
        let expected = (index % 2 == 0).then_some(DisconnectLabel::Revoked);
        assert_eq!(*connection.disconnected().borrow(), expected, "{index}");
    }
    let started = std::time::Instant::now();
    let result = fixture.registry.verify_all().await;
    println!(
        "{} certificates verified again in {:?}, without the pauses",
        result.chains,
        started.elapsed()
    );
    drop(callers);
    assert_eq!(
        fixture.registry.verify_all().await,
        connection_registry::VerificationResult::default(),
        "closed connections leave no entries"
    );
}

#[tokio::test]
async fn client_that_reconnects_after_a_disconnect_is_verified_anew() {
    let fixture = TestCertificates::start(with_list());
    let connection = fixture.folder.client();
    let first = fixture.enter(&connection);
    fixture.revoke(&[&connection]);
    fixture
        .reload
        .reload(fixture.folder.tls.clone(), None)
        .await
        .unwrap();
    // The revocation is undone before the first connection has ended.
    fixture.revoke(&[]);
    fixture
        .reload
        .reload(fixture.folder.tls.clone(), None)
        .await
        .unwrap();
    let second = fixture.enter(&connection);
    drop(first);
    let shutdown = Shutdown::new(watch::channel(false).1, second.disconnected());
    assert_eq!(
        (
            shutdown.close_reason(),
            fixture.registry.verify_all().await.chains
        ),
        (None, 1)
    );
    fixture.revoke(&[&connection]);
    fixture
        .reload
        .reload(fixture.folder.tls.clone(), None)
        .await
        .unwrap();
    assert_eq!(
        shutdown.close_reason().unwrap().code,
        ErrorCode::Unauthenticated
    );
}
