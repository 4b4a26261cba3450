//! Tests of what observes providers: probes, metrics, audit records, time limits and pauses.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sealwire_apps::Target;
use sealwire_audit::{AuditKey, Filter, Follow, RecordView};
use sealwire_kek::{ProviderKind, RootBytes};
use sealwire_telemetry::{Phase, State, Telemetry};
use sealwire_testkit::child;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::apps::Apps;

const DAY: Duration = Duration::from_secs(86_400);
/// Set in the child process of a test.
const CHILD: &str = "SEALWIRE_TEST_CHILD_USES";

/// How a provider answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behavior {
    Right,
    Down,
    Never,
    Panic,
}

/// A provider whose answers a test chooses.
#[derive(Debug)]
struct ScriptedProvider {
    inner: Arc<dyn Provider>,
    behavior: Mutex<Behavior>,
    delay: Duration,
    unwraps: AtomicU32,
}

impl ScriptedProvider {
    fn set(&self, behavior: Behavior) {
        *self.behavior.lock().unwrap() = behavior;
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    fn kind(&self) -> ProviderKind {
        self.inner.kind()
    }

    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        self.inner.wrap(root, slot).await
    }

    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError> {
        self.unwraps.fetch_add(1, Relaxed);
        tokio::time::sleep(self.delay).await;
        let behavior = *self.behavior.lock().unwrap();
        match behavior {
            Behavior::Right => self.inner.unwrap(wrapped, slot).await,
            Behavior::Down => Err(ProviderError::Unavailable("the network is gone".into())),
            Behavior::Never => std::future::pending().await,
            Behavior::Panic => panic!("a provider of a test panics"),
        }
    }
}

/// An engine's unsealer with scripted providers.
struct ObservedEngine {
    deployment: Deployment,
    unsealer: Arc<Unsealer>,
    control: Control,
    local: Arc<ScriptedProvider>,
    east: Arc<ScriptedProvider>,
    telemetry: Arc<Telemetry>,
    draining: watch::Sender<bool>,
}

impl ObservedEngine {
    /// Creates a store with two slots, of `local` and `east`. `local` answers first.
    async fn new() -> Self {
        let (deployment, _) = Deployment::with_root(&["local", "east"]).await;
        let mut unsealer = Unsealer::open(&deployment.config).unwrap();
        let mut providers = Providers::load(&deployment.config).unwrap();
        let mut script = |name: &str, delay_ms| {
            let provider = &mut providers.0.get_mut(name).unwrap().provider;
            let scripted = Arc::new(ScriptedProvider {
                inner: provider.clone().unwrap(),
                behavior: Mutex::new(Behavior::Right),
                delay: Duration::from_millis(delay_ms),
                unwraps: AtomicU32::new(0),
            });
            *provider = Ok(Arc::<ScriptedProvider>::clone(&scripted));
            scripted
        };
        let local = script("local", 1);
        let east = script("east", 5_000);
        unsealer.providers = Arc::new(providers);
        let unsealer = Arc::new(unsealer);
        let control = Control::with_finder(
            Arc::clone(&deployment.store),
            Arc::<Unsealer>::clone(&unsealer),
        );
        let telemetry = Arc::new(Telemetry::default());
        let draining = watch::Sender::new(false);
        telemetry.readiness.enter(Phase::Ready);
        Self {
            deployment,
            unsealer,
            control,
            local,
            east,
            telemetry,
            draining,
        }
    }

    fn observe(&self, audit: Audit) {
        self.unsealer
            .providers()
            .observe(Arc::clone(&self.telemetry.metrics), audit);
    }

    fn probe(&self, interval: Duration) -> JoinHandle<()> {
        tokio::spawn(SlotProber::new(&self.unsealer, interval, self.draining.subscribe()).run())
    }

    fn metric(&self, series: &str) -> f64 {
        let text = self.telemetry.metrics.encode();
        let line = text.lines().find_map(|line| {
            line.strip_prefix("sealwire_provider_")?
                .strip_prefix(series)
        });
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}"))
            .trim()
            .parse()
            .unwrap()
    }

    fn uses(&self, provider: &str, operation: &str, outcome: &str) -> f64 {
        self.metric(&format!(
            "requests_total{{provider=\"{provider}\",kind=\"file\",operation=\"{operation}\",outcome=\"{outcome}\"}}"
        ))
    }

    fn slots(&self, provider: &str) -> [f64; 3] {
        ["working", "failing", "unchecked"].map(|state| {
            self.metric(&format!(
                "slots{{provider=\"{provider}\",kind=\"file\",state=\"{state}\"}}"
            ))
        })
    }
}

/// The log lines of a test's thread.
#[derive(Clone, Default)]
struct CapturedLines(Arc<Mutex<Vec<u8>>>);

impl CapturedLines {
    fn count(&self, part: &str) -> usize {
        String::from_utf8(self.0.lock().unwrap().clone())
            .unwrap()
            .lines()
            .filter(|line| line.contains(part))
            .count()
    }
}

impl io::Write for CapturedLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for CapturedLines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test(start_paused = true)]
async fn slots_are_probed_soon_after_the_start_and_then_daily() {
    let engine = ObservedEngine::new().await;
    engine.control.load().await.unwrap();
    engine.observe(Audit::default());
    let probing = engine.probe(DAY);
    assert_eq!(
        (engine.slots("local"), engine.slots("east")),
        ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
    );
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        (
            engine.uses("local", "unwrap", "ok"),
            engine.uses("east", "unwrap", "abandoned")
        ),
        (1.0, 1.0)
    );
    let probes = || {
        (
            engine.uses("local", "probe", "ok"),
            engine.uses("east", "probe", "ok"),
        )
    };
    assert_eq!(
        probes(),
        (0.0, 1.0),
        "the slot that did not answer at the start"
    );
    assert_eq!(engine.slots("east"), [1.0, 0.0, 0.0]);
    for day in 1..=3 {
        tokio::time::sleep(DAY).await;
        let (local, east) = probes();
        let most = f64::from(day) / 0.75;
        assert!(
            (f64::from(day)..=most).contains(&local),
            "{local} probes in {day} days"
        );
        assert!(
            (f64::from(day)..=most).contains(&(east - 1.0)),
            "{east} probes in {day} days"
        );
    }
    assert!(engine.metric("verified_timestamp_seconds{provider=\"east\",kind=\"file\"}") > 1e9);
    assert_eq!(
        engine.metric("verified_timestamp_seconds{provider=\"west\",kind=\"file\"}"),
        f64::INFINITY
    );
    engine.draining.send_replace(true);
    probing.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slots_are_not_probed_with_an_interval_of_zero() {
    let engine = ObservedEngine::new().await;
    engine.control.load().await.unwrap();
    let before = engine.east.unwraps.load(Relaxed);
    engine.probe(Duration::ZERO).await.unwrap();
    assert_eq!(engine.east.unwraps.load(Relaxed), before);
}

/// A slot that fails shows in metrics and log, and nowhere else. The log is captured in a process
/// of its own, because tests beside this one decide which log lines exist.
#[test]
fn a_slot_that_fails_its_probe_is_an_alert_and_no_outage() {
    let mut child = child::command("root::tests::uses::child_process");
    assert!(child.env(CHILD, "1").status().unwrap().success());
}

/// The child process of the test above; passes at once if that test did not start it.
#[tokio::test(start_paused = true)]
async fn child_process() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let lines = CapturedLines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(lines.clone())
        .with_ansi(false)
        .finish();
    let _captured = tracing::subscriber::set_default(subscriber);
    let engine = ObservedEngine::new().await;
    engine.control.load().await.unwrap();
    engine.observe(Audit::default());
    let _probing = engine.probe(DAY);
    for behavior in [Behavior::Down, Behavior::Never, Behavior::Panic] {
        engine.east.set(behavior);
        tokio::time::sleep(DAY).await;
        assert_eq!(
            (engine.slots("local"), engine.slots("east")),
            ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
            "{behavior:?}"
        );
        assert_eq!(engine.telemetry.readiness.state(), State::Ready);
        engine.control.load().await.unwrap();
        engine.east.set(Behavior::Right);
        tokio::time::sleep(Duration::from_secs(3_700)).await;
        assert_eq!(
            engine.slots("east"),
            [1.0, 0.0, 0.0],
            "checked again within an hour"
        );
    }
    let failed =
        lines.count("a slot does not unwrap the root key slot=2 provider=\"east\" reason=\"the network is gone\"");
    assert!(
        (20..=40).contains(&failed),
        "{failed} lines for hourly probes of a day"
    );
    assert!(
        lines.count("no answer within 30 seconds") >= 1
            && lines.count("the provider panicked") >= 1
    );
    assert_eq!(lines.count("a slot unwraps the root key again slot=2"), 3);
    assert!(engine.uses("east", "probe", "unavailable") > 20.0);
    assert_eq!(engine.uses("local", "probe", "unavailable"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_an_unknown_provider_counts_as_failing() {
    let engine = ObservedEngine::new().await;
    engine.control.load().await.unwrap();
    let (_, control) = engine.deployment.open();
    let (_, record) = control.root().await.unwrap();
    let record = record.unwrap();
    let root = engine
        .unsealer
        .unseal(record.set, &record.active)
        .await
        .unwrap();
    let add = engine.deployment.slots(&["west"], &root, 3).await;
    control
        .set_slots(
            record.active.id,
            sealwire_apps::SlotChange {
                add,
                ..Default::default()
            },
        )
        .await
        .unwrap();
    // This engine was started before the provider was configured.
    let mut unsealer = Unsealer::open(&engine.deployment.config).unwrap();
    let mut providers = Providers::load(&engine.deployment.config).unwrap();
    providers.0.remove("west");
    unsealer.providers = Arc::new(providers);
    let engine = ObservedEngine {
        unsealer: Arc::new(unsealer),
        ..engine
    };
    let control = Control::with_finder(
        Arc::clone(&engine.deployment.store),
        Arc::<Unsealer>::clone(&engine.unsealer),
    );
    control.load().await.unwrap();
    engine.observe(Audit::default());
    let _probing = engine.probe(DAY);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        engine.metric("slots{provider=\"?\",kind=\"?\",state=\"failing\"}"),
        1.0
    );
}

/// Returns the records of uses in an audit folder, without their times.
fn provider_records(folder: &Path) -> Vec<RecordView> {
    let filter = Filter {
        event: Some("provider".into()),
        ..Filter::default()
    };
    let mut records = Vec::new();
    let mut read = |line: &[u8]| {
        records.extend(filter.take(line));
        Ok(())
    };
    Follow::new(folder.to_owned()).poll(&mut read).unwrap();
    records
}

#[tokio::test(start_paused = true)]
async fn provider_uses_are_audited_even_before_the_audit_log_opens() {
    let engine = ObservedEngine::new().await;
    engine.control.load().await.unwrap();
    let folder = engine.deployment.path("audit");
    let key = AuditKey::new(&zeroize::Zeroizing::new([7; 32]));
    let audit = Audit::new(&engine.deployment.config.audit);
    audit
        .open(
            &engine.deployment.config.audit,
            key,
            "run".into(),
            &engine.telemetry,
        )
        .unwrap();
    // Aborted tasks end when the runtime runs next.
    tokio::time::sleep(Duration::from_millis(1)).await;
    engine.observe(audit.clone());
    engine.east.set(Behavior::Down);
    let probing = engine.probe(DAY);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (_, record) = engine.control.root().await.unwrap();
    let (set, active) = record.map(|record| (record.set, record.active)).unwrap();
    let root = engine.unsealer.unseal(set, &active).await.unwrap();
    engine
        .unsealer
        .providers()
        .new_slot("west", set, &root, 9)
        .await
        .unwrap();
    probing.abort();
    audit.close();
    let shown: Vec<_> = provider_records(&folder)
        .iter()
        .map(|record| {
            assert_eq!(record.root.as_deref(), Some(&*active.to_string()));
            assert!(record.used.as_ref().unwrap() <= &record.time && record.instance == "run");
            let text = |text: &Option<String>| text.clone().unwrap();
            let operation = text(&record.operation);
            let outcome = text(&record.outcome);
            let provider = format!(
                "{} ({})",
                text(&record.provider),
                text(&record.provider_kind)
            );
            format!(
                "{operation} of slot {} by {provider}: {outcome}",
                record.slot.unwrap()
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "unwrap of slot 1 by local (file): ok",
            "unwrap of slot 2 by east (file): abandoned",
            "probe of slot 2 by east (file): unavailable",
            "wrap of slot 9 by west (file): ok",
            "unwrap of slot 9 by west (file): ok",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn uses_before_the_audit_log_are_kept_up_to_a_limit() {
    let engine = ObservedEngine::new().await;
    let (_, record) = engine.control.root().await.unwrap();
    let record = record.unwrap();
    for _ in 0..100 {
        let unwrapped = engine.unsealer.providers().unwrap_slot(
            record.set,
            &record.active,
            &record.active.slots[0],
        );
        unwrapped.await.unwrap();
    }
    engine.observe(Audit::default());
    assert_eq!(engine.uses("local", "unwrap", "ok"), 64.0);
}

#[tokio::test(start_paused = true)]
async fn providers_that_never_answer_end_an_unseal_by_name() {
    let engine = ObservedEngine::new().await;
    let (_, record) = engine.control.root().await.unwrap();
    let record = record.unwrap();
    for (behavior, expected) in [
        (
            Behavior::Never,
            "slot 1 (provider local): no answer within 30 seconds; slot 2 (provider east): the network is gone",
        ),
        (
            Behavior::Panic,
            "slot 1 (provider local): the provider panicked; slot 2 (provider east): the network is gone",
        ),
    ] {
        engine.local.set(behavior);
        engine.east.set(Behavior::Down);
        let started = Instant::now();
        let error = engine
            .unsealer
            .unseal(record.set, &record.active)
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(error, format!("root key: no slot unwraps it: {expected}"));
        assert!(
            started.elapsed() < USE_TIME_MAX + Duration::from_secs(1),
            "{:?}",
            started.elapsed()
        );
        engine.unsealer.retry_at_next_load();
    }
}

#[tokio::test(start_paused = true)]
async fn providers_that_are_down_are_asked_less_often_and_a_change_is_served_once_they_return() {
    let engine = ObservedEngine::new().await;
    let apps = Apps::load(engine.control.clone(), "here".into(), None)
        .await
        .unwrap();
    let apps = Arc::new(apps);
    let unsealer = Arc::clone(&engine.unsealer);
    apps.before_first_try(Box::new(move || unsealer.retry_at_next_load()));
    let _watch = tokio::spawn(Arc::clone(&apps).watch(
        Duration::from_secs(3_600),
        None,
        Arc::clone(&engine.telemetry),
    ));
    // Another process begins a rotation of the root key while this engine reaches no provider.
    let (_, other) = engine.deployment.open();
    engine.local.set(Behavior::Down);
    let second = RootKey::generate().unwrap();
    let asked = || engine.local.unwraps.load(Relaxed);
    let before = asked();
    let staged = other
        .stage_root(
            &second,
            engine.deployment.slots(&["local"], &second, 3).await,
        )
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let count = asked() - before;
    assert!(
        (12..=24).contains(&count),
        "asked {count} times in 10 minutes"
    );
    assert_ne!(engine.telemetry.readiness.state(), State::Ready);
    assert!(apps.generation() < staged);

    // The providers return: at most the longest pause later the engine serves the new state.
    engine.local.set(Behavior::Right);
    tokio::time::sleep(Duration::from_secs(62)).await;
    assert_eq!(
        (apps.generation(), engine.telemetry.readiness.state()),
        (staged, State::Ready)
    );

    // A change is tried at once, however long the pause is.
    engine.local.set(Behavior::Down);
    other.abandon_root().await.unwrap();
    let third = RootKey::generate().unwrap();
    other
        .stage_root(&third, engine.deployment.slots(&["local"], &third, 4).await)
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_ne!(engine.telemetry.readiness.state(), State::Ready);
    engine.local.set(Behavior::Right);
    let app = AppId::new("shop").unwrap();
    other.disable(&app, Target::App).await.unwrap();
    let changed = engine.deployment.store.generation().await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(apps.generation(), changed);
}
