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

/// In seconds. Paused time passes at once, but for the time that work takes.
const WATCH_S: u64 = 5;
/// The bound that SECURITY.md promises, with a moment for the check itself.
const BOUND: Duration = Duration::from_millis(WATCH_S * 1_000 + 1_000 + 200);

/// An engine's certificates, kept.
struct Kept {
    folder: tests::Files,
    admin: Arc<Telemetry>,
    gate: Arc<ConnectionRegistry>,
    reload: Reload,
}

impl Kept {
    fn start(folder: tests::Files) -> Self {
        let mut config = Config::defaults(folder.folder.path());
        config.tls = Tls {
            watch_s: WATCH_S,
            ..folder.tls.clone()
        };
        let admin = Arc::<Telemetry>::default();
        let (certificates, reload) = Certificates::load(&config, &admin).unwrap();
        let gate = certificates.data_gate();
        tokio::spawn(certificates.keep(|_| ()));
        Self {
            folder,
            admin,
            gate,
            reload,
        }
    }

    fn enter(&self, issued: &Issued) -> connection_registry::Caller {
        self.gate
            .enter(&[der(issued)], &self.gate.entrance())
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

    /// Loaded, refused, and whether what is there now is refused.
    fn reloads(&self) -> [f64; 3] {
        [
            self.metric("sealwire_certificate_reloads_total{outcome=\"loaded\"}"),
            self.metric("sealwire_certificate_reloads_total{outcome=\"refused\"}"),
            self.metric("sealwire_certificate_files_rejected"),
        ]
    }

    /// Waits for three looks.
    async fn looks(&self) {
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

/// Files with a list that revokes nobody.
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

async fn expelled(caller: &connection_registry::Caller) -> DisconnectLabel {
    let mut expelled = caller.expelled();
    expelled.wait_for(Option::is_some).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_is_revoked_is_expelled_within_the_bound_and_nobody_else() {
    let kept = Kept::start(with_list());
    let (revoked, good) = (kept.folder.client(), kept.folder.client());
    let connections = [kept.enter(&revoked), kept.enter(&revoked)];
    let other = kept.enter(&good);
    // The longest way: just after a look.
    sleep(Duration::from_secs(WATCH_S) + Duration::from_millis(1)).await;
    let told = Instant::now();
    kept.revoke(&[&revoked]);
    for connection in &connections {
        assert_eq!(expelled(connection).await, DisconnectLabel::Revoked);
    }
    assert!(told.elapsed() <= BOUND, "{:?}", told.elapsed());
    kept.looks().await;
    assert_eq!(*other.expelled().borrow(), None);
    assert_eq!(
        kept.metric("sealwire_disconnected_clients_total{reason=\"revoked\"}"),
        2.0
    );
    assert_eq!(kept.reloads(), [1.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_a_change_overtakes_is_judged_by_the_change() {
    let kept = Kept::start(with_list());
    let (revoked, good) = (kept.folder.client(), kept.folder.client());
    let before = kept.gate.entrance();
    kept.revoke(&[&revoked]);
    kept.looks().await;
    assert_eq!(
        kept.gate.enter(&[der(&revoked)], &before).err(),
        Some(DisconnectLabel::Revoked)
    );
    assert!(kept.gate.enter(&[der(&good)], &before).is_ok());
}

#[tokio::test(start_paused = true)]
async fn authorities_come_and_go() {
    let kept = Kept::start(tests::Files::new());
    let old = kept.enter(&kept.folder.client());
    let next = Authority::create("next", Validity::days(10)).unwrap();
    let file = &kept.folder.tls.client_ca;
    kept.write(
        file,
        &format!("{}{}", kept.folder.authority.cert_pem(), next.cert_pem()),
    );
    kept.looks().await;
    let new = kept.enter(&next.issue(&leaf(Usage::Client, "relay")).unwrap());
    assert_eq!(
        (*old.expelled().borrow(), *new.expelled().borrow()),
        (None, None)
    );
    kept.write(file, next.cert_pem());
    assert_eq!(expelled(&old).await, DisconnectLabel::Untrusted);
    kept.looks().await;
    assert_eq!(*new.expelled().borrow(), None);
    assert_eq!(kept.reloads(), [2.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_ends_ends_its_connections() {
    let kept = Kept::start(tests::Files::new());
    let long = kept.enter(&kept.folder.client());
    // By the clock of the machine, of which paused time knows nothing: it holds for as long as this
    // test is that far.
    let now = OffsetDateTime::now_utc();
    let validity = Validity {
        not_before: now - time::Duration::hours(1),
        not_after: now + time::Duration::seconds(5),
    };
    let short = Leaf {
        validity,
        ..leaf(Usage::Client, "short")
    };
    let short = kept.enter(&kept.folder.authority.issue(&short).unwrap());
    assert_eq!(*short.expelled().borrow(), None);
    assert_eq!(expelled(&short).await, DisconnectLabel::Expired);
    assert!(
        OffsetDateTime::now_utc() > validity.not_after,
        "not before its end"
    );
    assert_eq!(*long.expelled().borrow(), None);
    assert_eq!(
        kept.metric("sealwire_disconnected_clients_total{reason=\"expired\"}"),
        1.0
    );
}

#[tokio::test(start_paused = true)]
async fn what_does_not_load_leaves_what_was_in_service() {
    let kept = Kept::start(with_list());
    let caller = kept.enter(&kept.folder.client());
    let good = std::fs::read_to_string(kept.crl()).unwrap();
    let tls = &kept.folder.tls;
    let ca = std::fs::read_to_string(&tls.client_ca).unwrap();
    let before = kept.gate.entrance().config;
    let mut refused = 0.0;
    for (file, text) in [
        (kept.crl(), "nothing"),
        (kept.crl(), &good[..good.len() / 2]),
        (&tls.client_ca, &ca[..ca.len() - 40]),
        (&tls.client_ca, ""),
    ] {
        let whole = std::fs::read_to_string(file).unwrap();
        kept.write(file, text);
        kept.looks().await;
        refused += 1.0;
        assert_eq!(
            kept.reloads(),
            [0.0, refused, 1.0],
            "once for each fault, however often it is looked at"
        );
        assert!(Arc::ptr_eq(&before, &kept.gate.entrance().config));
        assert!(
            !kept.admin.readiness.is_failing(Condition::Certificate),
            "what serves is good"
        );
        kept.write(file, &whole);
        kept.looks().await;
        assert_eq!(kept.reloads(), [0.0, refused, 0.0], "back as it was");
    }
    std::fs::remove_file(kept.crl()).unwrap();
    kept.looks().await;
    assert_eq!(kept.reloads(), [0.0, refused + 1.0, 1.0]);
    kept.write(
        kept.crl(),
        &list(&kept.folder.authority, &[], time::Duration::days(60)),
    );
    kept.looks().await;
    assert_eq!(kept.reloads(), [1.0, refused + 1.0, 0.0]);
    assert_eq!(*caller.expelled().borrow(), None);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_and_its_key_may_come_one_after_the_other() {
    let kept = Kept::start(tests::Files::new());
    let (tls, before) = (&kept.folder.tls, kept.gate.entrance().config);
    for pause in [Duration::from_millis(300), Duration::from_secs(60)] {
        let issued = kept
            .folder
            .authority
            .issue(&leaf(Usage::Server, "localhost"))
            .unwrap();
        let reloads = kept.reloads();
        kept.write(&tls.certificate, &issued.cert_pem);
        sleep(pause).await;
        private(&tls.key, issued.key_pem.expose());
        kept.looks().await;
        let refused = if pause > SETTLE { 1.0 } else { 0.0 };
        assert_eq!(
            kept.reloads(),
            [reloads[0] + 1.0, reloads[1] + refused, 0.0],
            "{pause:?}"
        );
    }
    assert!(!Arc::ptr_eq(&before, &kept.gate.entrance().config));
}

#[tokio::test(start_paused = true)]
async fn files_are_found_anew_under_names_that_are_swapped() {
    // As Kubernetes mounts a secret: names lead through a link to a folder, and only the link is
    // moved.
    let mut folder = with_list();
    let root = folder.folder.path().to_owned();
    let (one, two, data) = (root.join("one"), root.join("two"), root.join("..data"));
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
    let kept = Kept::start(folder);
    symlink(&two, root.join("..new")).unwrap();
    std::fs::rename(root.join("..new"), &data).unwrap();
    kept.looks().await;
    assert_eq!(kept.reloads(), [1.0, 0.0, 0.0]);
    // Renamed into place, of the same length and time: a list with another number.
    let next = root.join("next.pem");
    std::fs::write(
        &next,
        list(&kept.folder.authority, &[], time::Duration::days(31)),
    )
    .unwrap();
    let as_before = std::fs::metadata(kept.crl()).unwrap().modified().unwrap();
    std::fs::File::options()
        .write(true)
        .open(&next)
        .unwrap()
        .set_modified(as_before)
        .unwrap();
    std::fs::rename(&next, kept.crl()).unwrap();
    kept.looks().await;
    assert_eq!(kept.reloads(), [2.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn files_that_never_hold_still_are_not_loaded() {
    let kept = Kept::start(with_list());
    let good = std::fs::read_to_string(kept.crl()).unwrap();
    for round in 0..60 {
        kept.write(kept.crl(), &format!("{good}{}", "\n".repeat(round % 7 + 1)));
        sleep(SETTLE - Duration::from_millis(50)).await;
    }
    assert_eq!(kept.reloads(), [0.0, 1.0, 1.0]);
    kept.looks().await;
    assert_eq!(kept.reloads(), [1.0, 1.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn an_operators_word_reloads_at_once_and_changes_nothing_where_something_is_wrong() {
    let kept = Kept::start(with_list());
    let revoked = kept.folder.client();
    let caller = kept.enter(&revoked);
    let tls = Tls {
        watch_s: 0,
        ..kept.folder.tls.clone()
    };
    let elsewhere = |name: &str| Some(kept.folder.folder.path().join(name));
    let absent = Tls {
        client_crl: elsewhere("absent.pem"),
        ..tls.clone()
    };
    let error = kept
        .reload
        .ask(absent, None)
        .await
        .unwrap_err()
        .with_cause();
    assert!(
        error.starts_with("tls.client_crl: ") && error.contains("No such file"),
        "{error}"
    );
    assert_eq!(kept.reloads(), [0.0; 3]);
    std::fs::write(
        elsewhere("lists.pem").unwrap(),
        list(&kept.folder.authority, &[&revoked], time::Duration::days(1)),
    )
    .unwrap();
    kept.reload
        .ask(
            Tls {
                client_crl: elsewhere("lists.pem"),
                ..tls.clone()
            },
            None,
        )
        .await
        .unwrap();
    assert_eq!(
        *caller.expelled().borrow(),
        Some(DisconnectLabel::Revoked),
        "judged by when the operator has an answer"
    );
    // Nobody looks by itself now.
    std::fs::remove_file(elsewhere("lists.pem").unwrap()).unwrap();
    kept.looks().await;
    assert_eq!(kept.reloads(), [1.0, 0.0, 0.0]);
    assert!(
        kept.reload
            .ask(
                Tls {
                    client_crl: elsewhere("lists.pem"),
                    ..tls
                },
                None
            )
            .await
            .is_err()
    );
    assert_eq!(kept.reloads(), [1.0, 1.0, 1.0]);
}

#[tokio::test]
async fn ends_are_said_once_at_each_stage_and_decide_readiness() {
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
    assert_eq!(lines(), "", "nothing is near its end");
    let held = certificates.held.clone();
    let year = |mut held: Vec<CertificateInfo>, left: time::Duration| {
        for held in &mut held {
            held.ends = Some(OffsetDateTime::now_utc() + left);
            held.begins = OffsetDateTime::now_utc() - time::Duration::days(365);
        }
        held
    };
    let mut count = 0;
    for (left, is_ready) in [
        (time::Duration::days(29), true),
        (time::Duration::days(6), true),
        (time::Duration::hours(23), true),
        (time::Duration::seconds(-1), false),
    ] {
        certificates.held = year(held.clone(), left);
        certificates.say_ends();
        certificates.say_ends();
        count += held.len();
        assert_eq!(lines().lines().count(), count, "{left}: {}", lines());
        assert_eq!(admin.readiness.state() == State::Ready, is_ready, "{left}");
    }
    assert!(
        lines().contains("ERROR") && lines().contains("tls.client_crl"),
        "{}",
        lines()
    );
    // A good one comes into service.
    certificates.hold(held);
    assert_eq!(
        (admin.readiness.state(), lines().lines().count()),
        (State::Ready, count)
    );
}

#[tokio::test(start_paused = true)]
async fn thousands_of_certificates_are_judged_in_slices() {
    let kept = Kept::start(with_list());
    let issued: Vec<Issued> = (0..400).map(|_| kept.folder.client()).collect();
    let callers: Vec<_> = issued.iter().map(|issued| kept.enter(issued)).collect();
    kept.revoke(&issued.iter().step_by(2).collect::<Vec<_>>());
    kept.looks().await;
    for (index, caller) in callers.iter().enumerate() {
        let expected = (index % 2 == 0).then_some(DisconnectLabel::Revoked);
        assert_eq!(*caller.expelled().borrow(), expected, "{index}");
    }
    let began = std::time::Instant::now();
    let judged = kept.gate.judge_all().await;
    println!(
        "{} certificates judged again in {:?}, without the rests",
        judged.chains,
        began.elapsed()
    );
    drop(callers);
    assert_eq!(
        kept.gate.judge_all().await,
        connection_registry::JudgedConnections::default(),
        "nothing is kept of those that left"
    );
}

#[tokio::test]
async fn who_comes_back_after_an_expulsion_is_new() {
    let kept = Kept::start(with_list());
    let caller = kept.folder.client();
    let first = kept.enter(&caller);
    kept.revoke(&[&caller]);
    kept.reload
        .ask(kept.folder.tls.clone(), None)
        .await
        .unwrap();
    // Put right before the first connection has ended.
    kept.revoke(&[]);
    kept.reload
        .ask(kept.folder.tls.clone(), None)
        .await
        .unwrap();
    let second = kept.enter(&caller);
    drop(first);
    let ending = Shutdown::new(watch::channel(false).1, second.expelled());
    assert_eq!(
        (ending.close_reason(), kept.gate.judge_all().await.chains),
        (None, 1)
    );
    kept.revoke(&[&caller]);
    kept.reload
        .ask(kept.folder.tls.clone(), None)
        .await
        .unwrap();
    assert_eq!(
        ending.close_reason().unwrap().code,
        ErrorCode::Unauthenticated
    );
}
