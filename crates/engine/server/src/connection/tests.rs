//! Requests from their bytes to the decision on them, on an engine without sockets.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use sealwire_access::{Binding, Grant, Role, RoleName, principal_key, role_key};
use sealwire_apps::Control;
use sealwire_crypto::{AppId, Kek, Suite};
use sealwire_store::{Commit, ControlStore, MemoryStore};
use sealwire_wire::{Encrypt, Scan, Scanner, request};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, advance};

use super::audit::UnstartedRequest;
use super::request::{PlannedTask, Prepared, Rejected, Request, Task, authorize_and_plan, prepare};
use super::*;
use sealwire_engine::access::Authorizer;
use sealwire_engine::apps::Apps;
use sealwire_engine::audit::Audit;
use sealwire_engine::jobs::scheduler::Scheduler;
use sealwire_engine::operation::Operation;
use sealwire_engine::operations::{self, Decoded};
use sealwire_service::spans::Traces;
use sealwire_settings::CALL_BYTES;
use sealwire_settings::Config;
use sealwire_telemetry::Telemetry;

/// How long the engine keeps what a principal may do.
const CACHE: Duration = Duration::from_secs(300);

async fn put(store: &dyn ControlStore, key: &str, record: Option<Vec<u8>>) {
    let base = store.generation().await.unwrap();
    assert!(matches!(
        store.commit(base, key, record.as_deref()).await.unwrap(),
        Commit::Done(_)
    ));
}

/// A connection of a principal that can encrypt for the app `shop`, on an engine that has not been
/// asked anything yet.
async fn connection() -> Arc<Connection> {
    connection_with_audit(None).await
}

/// Returns such a connection of an engine that keeps its audit records in `folder`.
async fn connection_with_audit(folder: Option<PathBuf>) -> Arc<Connection> {
    connection_with(|config| config.audit.folder = folder).await
}

/// Returns such a connection of an engine with a changed configuration.
async fn connection_with(change: impl FnOnce(&mut Config)) -> Arc<Connection> {
    let mut config = Config::defaults(Path::new("nowhere"));
    config.access.cache_s = CACHE.as_secs();
    change(&mut config);
    let kek = Kek::from_hex(&"5a".repeat(32)).unwrap();
    let key = sealwire_audit::AuditKey::new(kek.audit_secret());
    let control = Control::new(Arc::new(MemoryStore::default()), kek);
    control
        .create(&AppId::new("shop").unwrap(), &Suite::ALL)
        .await
        .unwrap();
    let principal = Principal::from_text("relay").unwrap();
    let role = Role::new(
        "relay",
        vec![Grant::from_text("encrypt apps=shop").unwrap()],
    )
    .unwrap();
    let binding = Binding {
        principal: principal.clone(),
        roles: vec![RoleName::new("relay").unwrap()],
    };
    put(
        &**control.store(),
        &role_key(role.name()),
        Some(role.to_record()),
    )
    .await;
    put(
        &**control.store(),
        &principal_key(&principal),
        Some(binding.to_record()),
    )
    .await;
    let apps = Arc::new(Apps::load(control, "here".into(), None).await.unwrap());
    let state = Arc::new(Telemetry::default());
    let metrics = Arc::clone(&state.metrics);
    let audit = Audit::new(&config.audit);
    audit
        .open(&config.audit, key, apps.instance_id(), &state)
        .unwrap();
    let engine = Engine {
        decider: Authorizer::new(&config.access, &apps, &metrics),
        scheduler: Scheduler::start(
            NonZeroU32::MIN,
            &config.schedule,
            sealwire_engine::calibrate::calibrate().unwrap(),
            Arc::new(|| false),
        ),
        tokens: None,
        objects: None,
        audit,
        traces: Traces::default(),
        limits: config.limits.clone(),
        evervault: Arc::default(),
        failures: sealwire_engine::jobs::failures::Failures::default(),
        metrics,
        apps,
    };
    Arc::new(Connection {
        principal,
        state: Arc::new(PrincipalState::new(
            &engine.limits,
            &NetworkScheduler::new(1),
        )),
        cancel_tokens: CancelTokens::default(),
        memory: ConnectionMemory::new(engine.limits.bytes_per_connection_max),
        in_flight_permits: Arc::new(Semaphore::new(1)),
        recordings: Arc::new(Semaphore::new(1)),
        responses: mpsc::channel(1).0,
        text_errors: AtomicBool::new(false),
        engine: Arc::new(engine),
    })
}

/// A request that arrived then, with its operation.
fn arrived(connection: &Connection, msgid: u32, arrived: Instant) -> (Request, Box<dyn Operation>) {
    let mut out = Vec::new();
    request::encrypt(
        &mut out,
        msgid,
        &Encrypt::new("shop", b"\x93\xa1a\xa1b\xa1c"),
    );
    let Scan::Message(layout) = Scanner::for_requests(sealwire_wire::Limits::default()).scan(&out)
    else {
        panic!("not whole")
    };
    let Ok(Decoded::Data(options, operation)) = operations::decode(&out.into(), &layout) else {
        panic!("no request on data")
    };
    let cancel = connection.cancel_tokens.issue(msgid).unwrap();
    let kind = operation.kind(&connection.engine.apps, "shop");
    let size = layout.into();
    let extra = operation.extra_work(size);
    (
        Request {
            msgid,
            options,
            kind,
            size,
            extra,
            arrived,
            since: arrived,
            has_waited: false,
            cancel,
        },
        operation,
    )
}

fn prepared(
    connection: &Connection,
    (request, operation): (Request, Box<dyn Operation>),
) -> (Request, Prepared) {
    let prepared = prepare(connection, &request, operation, None);
    let prepared = prepared.unwrap_or_else(|Rejected { failure, .. }| panic!("{failure}"));
    (request, prepared)
}

/// Looks up what the principal may do.
async fn authorize(
    connection: &Connection,
    request: &Request,
    prepared: Prepared,
) -> Result<PlannedTask, RequestFailure> {
    let Prepared {
        mut admission,
        task: Task::PermissionsUnknown(operation),
        ..
    } = prepared
    else {
        panic!("authorized")
    };
    authorize_and_plan(connection, request, operation, &mut admission).await
}

/// Has the engine look up what the principal may do, as a first request does.
async fn look_up(connection: &Connection, msgid: u32) -> Result<(), RequestFailure> {
    let (request, operation) = arrived(connection, msgid, Instant::now());
    let prepared =
        prepare(connection, &request, operation, None).map_err(|rejected| rejected.failure)?;
    authorize(connection, &request, prepared).await.map(drop)
}

#[tokio::test(start_paused = true)]
async fn waiting_request_is_authorized_when_it_starts() {
    let connection = connection().await;
    look_up(&connection, 0).await.unwrap();
    let at_once = arrived(&connection, 1, Instant::now());
    let (_at_once, known) = prepared(&connection, at_once);
    assert!(
        matches!(known.task, Task::Planned(PlannedTask::Document(..))),
        "known from the cache"
    );
    // Read now, and deferred for longer than the cache holds. Meanwhile another engine takes the
    // role away.
    let deferred = arrived(&connection, 2, Instant::now());
    let store = connection.engine.apps.control().store();
    put(&**store, &principal_key(&connection.principal), None).await;
    advance(CACHE + Duration::from_secs(1)).await;
    let (deferred, unknown) = prepared(&connection, deferred);
    assert!(
        matches!(unknown.task, Task::PermissionsUnknown(_)),
        "decided by what held when it arrived"
    );
    let decided = authorize(&connection, &deferred, unknown).await;
    assert!(matches!(decided, Err(RequestFailure::Denied(_))));
}

#[tokio::test(start_paused = true)]
async fn memory_beyond_the_message_is_not_reserved_before_the_decision() {
    let connection = connection().await;
    let reserved_bytes = || connection.engine.scheduler.gauges().bytes;
    let first = arrived(&connection, 0, Instant::now());
    let (
        first,
        Prepared {
            mut admission,
            task,
            ..
        },
    ) = prepared(&connection, first);
    let Task::PermissionsUnknown(operation) = task else {
        panic!("nothing is cached")
    };
    assert_eq!(
        reserved_bytes(),
        (first.size.bytes + CALL_BYTES) as u64,
        "the message, and no reply"
    );
    drop(
        authorize_and_plan(&connection, &first, operation, &mut admission)
            .await
            .unwrap(),
    );
    assert!(
        reserved_bytes() > (first.size.bytes + CALL_BYTES) as u64,
        "the reply too, once it is permitted"
    );
    drop((first, admission));
    let store = connection.engine.apps.control().store();
    put(&**store, &principal_key(&connection.principal), None).await;
    advance(CACHE + Duration::from_secs(1)).await;
    // The first look-up makes the engine load the change, which empties the cache.
    for msgid in [1, 2] {
        assert!(matches!(
            look_up(&connection, msgid).await,
            Err(RequestFailure::Denied(_))
        ));
    }
    // Denied from the cache: nothing is reserved, and the scheduler is not asked.
    let (denied, operation) = arrived(&connection, 3, Instant::now());
    let rejected = prepare(&connection, &denied, operation, None);
    assert!(matches!(
        rejected,
        Err(Rejected {
            failure: RequestFailure::Denied(_),
            ..
        })
    ));
    assert_eq!(reserved_bytes(), 0);
}

/// Records a request.
fn recorded(connection: &Connection) -> sealwire_engine::audit::Recording {
    let method = sealwire_wire::Method::Inspect.into();
    let request = UnstartedRequest {
        msgid: 1,
        method,
        options: None,
        bytes: 1,
        arrived: Instant::now(),
    };
    connection.record_unstarted(&request, sealwire_telemetry::metrics::ResponseCode::OK)
}

/// Until a record is written, other records wait with it. So its request must not wait for a client
/// that reads slowly.
#[tokio::test]
async fn a_record_that_others_wait_for_waits_for_no_client() {
    let folder = tempfile::tempdir().unwrap();
    let connection = connection_with_audit(Some(folder.path().join("audit"))).await;
    // On a slow machine, the writer thread may not sleep yet.
    let recording = loop {
        let recording = recorded(&connection);
        if recording.is_writer() {
            break recording;
        }
        recording.wait_until_durable(false).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let other = recorded(&connection);
    // As many responses wait for their records as may.
    let _all = connection.recordings.acquire().await.unwrap();
    let sent = connection.send_recorded(1, Vec::new(), recording);
    tokio::time::timeout(Duration::from_secs(60), sent)
        .await
        .expect("waits for other responses");
    other.wait_until_durable(false).await.unwrap();
}

/// A principal over its share of the network threads is not polled for a while. The records of
/// others do not wait for it.
#[tokio::test]
async fn a_group_of_records_is_written_without_the_principal_of_its_first() {
    let folder = tempfile::tempdir().unwrap();
    let connection = connection_with_audit(Some(folder.path().join("audit"))).await;
    let (first, other) = loop {
        let first = recorded(&connection);
        if first.is_writer() {
            break (first, recorded(&connection));
        }
        first.wait_until_durable(false).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let mut first = Box::pin(first.wait_until_durable(true));
    assert!(
        first
            .as_mut()
            .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
            .is_pending()
    );
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(matches!(other.outcome(), Some(Ok(()))), "not written");
    first.await.unwrap();
}

/// Messages that get no request begun, by name, each with the fraction of a rejected request that
/// it counts as.
fn cheap_messages() -> [(&'static str, Vec<u8>, u32); 9] {
    let nested = |message: &[u8]| [message, &[0x91; 100], &[0x01]].concat();
    [
        (
            "cancel of no request",
            b"\x93\x02\xa6cancel\x91\x07".to_vec(),
            10,
        ),
        ("malformed cancel", b"\x93\x02\xa6cancel\x90".to_vec(), 10),
        ("unknown notification", b"\x93\x02\xa3foo\x90".to_vec(), 10),
        (
            "format of errors",
            b"\x93\x02\xa6errors\x91\xa3map".to_vec(),
            10,
        ),
        ("health", b"\x94\x00\x07\xa6health\x91\x80".to_vec(), 10),
        ("unknown method", b"\x94\x00\x07\xa3foo\x91\x80".to_vec(), 1),
        (
            "request without params",
            b"\x94\x00\x07\xa7encrypt\x91\x80".to_vec(),
            1,
        ),
        (
            "request nested too deep",
            nested(b"\x94\x00\x07\xa7encrypt\x91\x81\xa1k"),
            1,
        ),
        (
            "notification nested too deep",
            nested(b"\x93\x02\xa3foo\x91"),
            1,
        ),
    ]
}

#[tokio::test]
async fn messages_of_all_kinds_end_slices_and_count_in_the_pace() {
    // A second of the flood, less than what is a burst at this rate: reading is never paused.
    const MESSAGES: u32 = 6_400;
    for (name, message, counts) in cheap_messages() {
        let connection =
            connection_with(|config| config.limits.rejected_per_s_max = 1_000_000).await;
        let flood = message.repeat(MESSAGES as usize);
        let (mut theirs, ours) = tokio::io::duplex(flood.len());
        theirs.write_all(&flood).await.unwrap();
        drop(theirs);
        let (_drain, draining) = watch::channel(false);
        let (_disconnect, disconnected) = watch::channel(None);
        let mut reader = Reader::new(
            Arc::clone(&connection),
            ours,
            Shutdown::new(draining, disconnected),
        );
        assert_eq!(connection.state.pace.counted(), Duration::ZERO);
        assert_eq!(reader.read_requests().await, End::Closed, "{name}");

        assert!(
            reader.slices_ended() >= u64::from(MESSAGES / 64),
            "{name}: {}",
            reader.slices_ended()
        );
        let counted = Duration::from_secs(1) / 1_000_000 / counts * MESSAGES;
        assert_eq!(connection.state.pace.counted(), counted, "{name}");
    }
}

#[tokio::test]
async fn requests_in_flight_are_bounded_by_principal_beside_the_connection() {
    let first = connection().await;
    let limits = Limits {
        in_flight_per_principal_max: 1,
        ..first.engine.limits.clone()
    };
    let state = Arc::new(PrincipalState::new(&limits, &NetworkScheduler::new(1)));
    let of_principal = |state: &Arc<PrincipalState>| {
        let engine = Arc::clone(&first.engine);
        let memory = ConnectionMemory::new(usize::MAX);
        Connection {
            engine,
            principal: first.principal.clone(),
            state: Arc::clone(state),
            cancel_tokens: CancelTokens::default(),
            memory,
            in_flight_permits: Arc::new(Semaphore::new(10)),
            responses: mpsc::channel(1).0,
            recordings: Arc::new(Semaphore::new(1)),
            text_errors: AtomicBool::new(false),
        }
    };
    let one = of_principal(&state);
    let two = of_principal(&state);
    let other = of_principal(&Arc::new(PrincipalState::new(
        &limits,
        &NetworkScheduler::new(1),
    )));
    let permit = one.try_in_flight_permit().unwrap();
    assert!(one.try_in_flight_permit().is_none() && two.try_in_flight_permit().is_none());
    assert_eq!(
        two.in_flight_permits.available_permits(),
        10,
        "a permit of the connection alone is given back"
    );
    assert!(other.try_in_flight_permit().is_some());
    let waits = tokio::spawn(async move { Arc::new(two).acquire_in_flight().await.is_some() });
    tokio::task::yield_now().await;
    assert!(!waits.is_finished());
    drop(permit);
    assert!(waits.await.unwrap());
}

#[tokio::test]
async fn a_reader_without_a_request_that_waits_holds_no_permit_of_the_principal() {
    let connection = connection().await;
    let mut message = Vec::new();
    request::encrypt(
        &mut message,
        7,
        &Encrypt::new("shop", b"\x93\xa1a\xa1b\xa1c"),
    );
    let (_drain, draining) = watch::channel(false);
    let (_disconnect, disconnected) = watch::channel(None);
    let (mut theirs, ours) = tokio::io::duplex(1 << 10);
    let mut reader = Reader::new(
        Arc::clone(&connection),
        ours,
        Shutdown::new(draining, disconnected),
    );
    let permits = || connection.state.in_flight_permits.available_permits();
    let all = permits();

    // The connection has its one request in flight, so the next is deferred.
    let permit = connection.try_in_flight_permit().unwrap();
    theirs.write_all(&message).await.unwrap();
    assert!(
        tokio::time::timeout(Duration::ZERO, reader.read_requests())
            .await
            .is_err()
    );
    assert!(reader.waits_for_permit(), "the request is deferred");

    // Its client cancels it before the permit is free.
    theirs
        .write_all(b"\x93\x02\xa6cancel\x91\x07")
        .await
        .unwrap();
    assert!(
        tokio::time::timeout(Duration::ZERO, reader.read_requests())
            .await
            .is_err()
    );
    drop(permit);
    assert!(
        tokio::time::timeout(Duration::ZERO, reader.read_requests())
            .await
            .is_err()
    );
    assert!(!reader.waits_for_permit());
    assert_eq!(
        (permits(), connection.in_flight_permits.available_permits()),
        (all, 1)
    );
}
