//! A server for one test, with certificates, an app, a client and metrics.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sealwire_apps::{CollectionName, CollectionRules, Control, Settings};
use sealwire_client::{Client, ClientConfig, Error, ErrorCode, Pem, RpcError};
use sealwire_crypto::{AppId, Curve, EpochLifetime, Kek, KeyPair, Suite};
use sealwire_dev_ca::{Access, Authority, Existing, Issued, Leaf, Name, Usage, Validity};
use sealwire_engine::engine::Engine;
use sealwire_engine::jobs::inline_budget;
use sealwire_engine::stores::{self, Stores};
use sealwire_msgpack::write;
use sealwire_payload::{WalkLimits, json};
use sealwire_schedule::Cost;
use sealwire_server::server::{Server, open_control};
use sealwire_settings::{AccessMode, Config, KekSource, Mode};
use sealwire_store::{ObjectStore, TokenStore};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::e2e::hold::CryptoHold;
use crate::e2e::raw::Raw;

/// The app that every server of these tests has.
pub(crate) const APP: &str = "shop";

/// Longest wait for an expected event. Turns a hang into a failure, and says nothing about speed. A
/// machine ten times slower than usual, with its cores in use, stays far below it.
pub(crate) const HANG: Duration = Duration::from_secs(300);

/// Set in a process that runs one test alone.
const ALONE: &str = "SEALWIRE_TEST_ALONE";

/// Runs a test that measures the memory of its process, in a process of its own, because other
/// tests of this process allocate memory at any time. `name` is the test's full path.
pub(crate) fn run_in_own_process(name: &str, body: impl Future<Output = ()>) {
    if std::env::var_os(ALONE).is_some() {
        return run(body);
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this)
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{name} failed in its own process"
    );
}

/// Waits until a condition holds. Panics after a timeout.
pub(crate) async fn until(condition: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + HANG;
    while !holds().await {
        assert!(Instant::now() < end, "not within the time: {condition}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Converts a document in JSON to MessagePack.
pub(crate) fn doc(json: &str) -> Vec<u8> {
    json::to_msgpack(json.as_bytes(), WalkLimits::default()).unwrap()
}

/// Runs one test on a separate runtime. Fails the test if it hangs.
pub(crate) fn run(body: impl Future<Output = ()>) {
    run_within(2 * HANG, body);
}

/// As [`run`], for a test whose work the environment can multiply.
pub(crate) fn run_within(limit: Duration, body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        // More than a configuration allows: tests run beside others, and code that is not
        // optimized.
        .on_thread_unpark(|| inline_budget::renew(Cost::from_nanos(100_000_000)))
        .enable_all()
        .build()
        .unwrap();
    let done = runtime.block_on(async { timeout(limit, body).await });
    runtime.shutdown_timeout(Duration::from_secs(5));
    assert!(done.is_ok(), "the test hangs");
}

/// A certificate for a server, with the name `localhost`, or for a client, with its own name.
pub(crate) fn leaf(usage: Usage, name: &str) -> Leaf {
    let host = if usage == Usage::Server {
        "localhost"
    } else {
        name
    };
    Leaf {
        common_name: name.into(),
        names: vec![
            Name::Dns(host.into()),
            Name::Ip(IpAddr::from([127, 0, 0, 1])),
        ],
        usage,
        validity: Validity::days(1),
    }
}

/// A server on loopback. Its folder is removed together with the harness.
pub(crate) struct Harness {
    pub(crate) authority: Authority,
    pub(crate) config: Config,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    server: Option<Server>,
    client: Issued,
    _folder: TempDir,
}

impl Harness {
    /// Starts a server with default settings.
    pub(crate) async fn start() -> Self {
        Self::with(|_| ()).await
    }

    /// Starts a server with a changed configuration.
    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        Self::prepared(change, async |_| ()).await
    }

    /// Starts a server whose store is changed too, after its app was created.
    pub(crate) async fn prepared(
        change: impl FnOnce(&mut Config),
        prepare: impl AsyncFnOnce(&Control),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("e2e", Validity::days(10)).unwrap();
        let mut config = Config::defaults(folder.path());
        config.listen.address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        config.admin.address = SocketAddr::from(([127, 0, 0, 1], 0));
        config.crypto.threads = 2;
        // Permissions are tested in `access.rs`.
        config.access.mode = AccessMode::Off;
        // Making a precomputed table for each key takes longer than most tests; `documents` tests
        // tables.
        config.crypto.precomputed_tables = 0;
        // Long limits: only the overload tests may depend on predictions of a slow machine.
        config.limits.deadline_ms_default = config.limits.deadline_ms_max;
        config.schedule.wait_max_ms = 3_600_000;
        change(&mut config);

        let issued = authority.issue(&leaf(Usage::Server, "engine")).unwrap();
        let KekSource::File(kek) = &config.kek else {
            panic!("the default is a file")
        };
        for file in [
            &config.tls.certificate,
            &config.tls.key,
            &config.tls.client_ca,
            kek,
        ] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        }
        std::fs::write(&config.tls.certificate, &issued.cert_pem).unwrap();
        private(&config.tls.key, issued.key_pem.expose());
        std::fs::write(&config.tls.client_ca, authority.cert_pem()).unwrap();
        private(kek, &Kek::generate_hex().unwrap());
        let mut harness = Self {
            client: authority.issue(&leaf(Usage::Client, "relay")).unwrap(),
            authority,
            address: config.listen.address.unwrap(),
            admin: config.admin.address,
            config,
            server: None,
            _folder: folder,
        };
        let (control, stores) = open_control(&harness.config).await.unwrap();
        control.create(&shop(), &Suite::ALL).await.unwrap();
        prepare(&control).await;
        stores.close().await;
        let server = Server::start(&harness.config).await.unwrap();
        (harness.address, harness.admin) = (server.address().unwrap(), server.admin_address());
        harness.server = Some(server);
        harness
    }

    /// Opens the apps of the engine's store: a file as another process would, other stores through
    /// the engine.
    pub(crate) async fn control(&self) -> Control {
        match &self.server {
            Some(server) if self.config.state.mode != Mode::Stateless => {
                server.engine().apps.control().clone()
            }
            _ => open_control(&self.config).await.unwrap().0,
        }
    }

    /// Creates an app, without waiting until the engine serves it.
    pub(crate) async fn create_app(&self, name: &str) {
        self.control()
            .await
            .create(&AppId::new(name).unwrap(), &Suite::ALL)
            .await
            .unwrap();
    }

    /// Creates an app and waits until the engine serves it.
    pub(crate) async fn serve_app(&self, name: &str) {
        let app = AppId::new(name).unwrap();
        self.change(async |control, _| control.create(&app, &Suite::ALL).await.unwrap())
            .await;
    }

    /// Changes the app, and waits until the engine serves the change.
    pub(crate) async fn change<T>(&self, change: impl AsyncFnOnce(&Control, &AppId) -> T) -> T {
        let control = self.control().await;
        let changed = change(&control, &shop()).await;
        let generation = control.generation().await.unwrap();
        let client = self.client().await;
        let end = Instant::now() + HANG;
        while client.info().await.unwrap().generation < generation {
            assert!(Instant::now() < end, "the change is not served");
            sleep(Duration::from_millis(20)).await;
        }
        changed
    }

    /// Creates a collection, and waits until the engine serves it.
    pub(crate) async fn create_collection(&self, app: &str, name: &str, rules: CollectionRules) {
        let (app, name) = (AppId::new(app).unwrap(), CollectionName::new(name).unwrap());
        self.change(async |control, _| {
            control.create_collection(&app, &name, rules).await.unwrap()
        })
        .await;
    }

    /// Starts another server on the state of the last one.
    pub(crate) async fn restart(&mut self) {
        let server = Server::start(&self.config).await.unwrap();
        (self.address, self.admin) = (server.address().unwrap(), server.admin_address());
        self.server = Some(server);
    }

    /// Stops the server and starts another one with these stores of tokens and objects.
    pub(crate) async fn restart_on<S: TokenStore + ObjectStore + 'static>(
        &mut self,
        store: Arc<S>,
    ) {
        if let Some(server) = self.server.take() {
            server.shutdown().await;
        }
        let mut opened = Stores::open(&self.config, stores::Access::Serve)
            .await
            .unwrap();
        opened.tokens = Some(store.clone());
        opened.objects = Some(store);
        let server = Server::start_with(&self.config, opened).await.unwrap();
        (self.address, self.admin) = (server.address().unwrap(), server.admin_address());
        self.server = Some(server);
    }

    /// Stops the server and starts another one with a changed token store.
    pub(crate) async fn restart_with(
        &mut self,
        change: impl FnOnce(Arc<dyn TokenStore>) -> Arc<dyn TokenStore>,
    ) {
        if let Some(server) = self.server.take() {
            server.shutdown().await;
        }
        let mut opened = Stores::open(&self.config, stores::Access::Serve)
            .await
            .unwrap();
        opened.tokens = opened.tokens.take().map(change);
        let server = Server::start_with(&self.config, opened).await.unwrap();
        (self.address, self.admin) = (server.address().unwrap(), server.admin_address());
        self.server = Some(server);
    }

    /// Sets the lifetime of the app's epochs; 0 forbids epochs.
    pub(crate) async fn set_epoch(&self, ms: u32) {
        let set = move |settings: &mut Settings| settings.epoch = EpochLifetime::from_ms(ms).ok();
        self.change(async |control, app| control.configure(app, set).await.unwrap())
            .await;
    }

    /// Makes the server reload the configuration and the files.
    pub(crate) async fn reload(&self) {
        self.try_reload().await.unwrap();
    }

    /// As [`Self::reload`]. Returns the text of the error.
    pub(crate) async fn try_reload(&self) -> Result<(), String> {
        let server = self.server.as_ref().unwrap();
        let reloaded = server.reload(&self.config).await;
        reloaded.map(drop).map_err(|error| error.to_string())
    }

    /// Returns the state that the server's connections share.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        self.server.as_ref().unwrap().engine()
    }

    /// Occupies every crypto thread.
    pub(crate) async fn hold_crypto(&self) -> CryptoHold {
        CryptoHold::start(self.engine(), self.crypto_threads()).await
    }

    /// Returns the number of the server's crypto threads.
    pub(crate) fn crypto_threads(&self) -> usize {
        self.config
            .crypto
            .threads_on(std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Returns the address of the control listener.
    pub(crate) fn control_address(&self) -> SocketAddr {
        self.server.as_ref().unwrap().control_address().unwrap()
    }

    /// Returns the address of the HTTP listener.
    pub(crate) fn http_address(&self) -> SocketAddr {
        self.server.as_ref().unwrap().http_address().unwrap()
    }

    /// Returns the certificate of the usual client.
    pub(crate) fn client_certificate(&self) -> &Issued {
        &self.client
    }

    /// Takes the server out of the harness, to shut it down.
    pub(crate) fn take_server(&mut self) -> Server {
        self.server.take().unwrap()
    }

    /// Makes a client with one connection and without retries, so that each response is seen.
    pub(crate) async fn client(&self) -> Client {
        let config = ClientConfig {
            connections: 1,
            attempts_max: 1,
            ..self.client_config()
        };
        Client::connect(config).await.unwrap()
    }

    /// Returns the configuration of a client.
    pub(crate) fn client_config(&self) -> ClientConfig {
        let bytes = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
        ClientConfig::new(
            self.address.to_string(),
            "localhost",
            bytes(self.authority.cert_pem()),
            bytes(&self.client.cert_pem),
            bytes(self.client.key_pem.expose()),
        )
    }

    /// Opens a connection for arbitrary bytes, with the usual certificate.
    pub(crate) async fn raw(&self) -> Raw {
        self.raw_as(Some(&self.client)).await.unwrap()
    }

    /// Connects with another certificate, or none.
    pub(crate) async fn raw_as(&self, identity: Option<&Issued>) -> std::io::Result<Raw> {
        Raw::connect(self.address, self.authority.cert_pem(), identity).await
    }

    /// Issues a certificate of the server's authority for another client.
    pub(crate) fn another_caller(&self, name: &str) -> Issued {
        self.authority.issue(&leaf(Usage::Client, name)).unwrap()
    }

    /// Issues a certificate that expired an hour ago.
    pub(crate) fn expired_caller(&self) -> Issued {
        let now = OffsetDateTime::now_utc();
        let validity = Validity {
            not_before: now - time::Duration::hours(3),
            not_after: now - time::Duration::hours(1),
        };
        self.authority
            .issue(&Leaf {
                validity,
                ..leaf(Usage::Client, "late")
            })
            .unwrap()
    }

    /// Returns the value of a series of `/metrics`.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let (status, text) = http_get(self.admin, "/metrics").await;
        assert_eq!(status, 200);
        let line = text.lines().find(|line| {
            line.strip_prefix(series)
                .is_some_and(|rest| rest.starts_with(' '))
        });
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Waits until `holds` accepts the value of a series. Panics after a timeout.
    pub(crate) async fn metric_becomes(&self, series: &str, holds: impl Fn(f64) -> bool) -> f64 {
        let end = Instant::now() + HANG;
        let mut pause = Duration::from_millis(2);
        loop {
            let value = self.metric(series).await;
            if holds(value) {
                return value;
            }
            assert!(Instant::now() < end, "{series} stays {value}");
            // Each reading renders all series, which takes CPU time from the work that the test
            // waits for.
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(80));
        }
    }

    /// Waits until the server has no requests in flight and no reserved bytes.
    pub(crate) async fn settles(&self) {
        self.metric_becomes("sealwire_requests_in_flight", |calls| calls == 0.0)
            .await;
        self.metric_becomes("sealwire_bytes_in_flight", |bytes| bytes == 0.0)
            .await;
    }
}

/// Stores the apps in a file, which several servers can share.
pub(crate) fn stateless(config: &mut Config) {
    config.state.mode = Mode::Stateless;
}

/// Imports a key for the app, on both curves.
pub(crate) async fn import(control: &Control, scalar: &[u8; 32], seals: bool) {
    for curve in Curve::ALL {
        let pair = KeyPair::from_scalar(curve, scalar).unwrap();
        control.import(&shop(), pair, seals).await.unwrap();
    }
}

/// Returns the id of [`APP`].
pub(crate) fn shop() -> AppId {
    AppId::new(APP).unwrap()
}

pub(crate) fn private(path: &std::path::Path, contents: &str) {
    sealwire_dev_ca::write(path, contents.as_bytes(), Access::Owner, Existing::Replace).unwrap();
}

/// Sends one HTTP request on a separate connection. Returns status and body.
pub(crate) async fn http_get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (
        head.split(' ').nth(1).unwrap().parse().unwrap(),
        body.to_owned(),
    )
}

/// Makes a document: an array of `count` strings of 16 bytes.
pub(crate) fn fields(count: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::array_len(&mut out, count);
    for field in 0..count {
        write::str(&mut out, &format!("plain-{field:010}"));
    }
    out
}

/// Returns the error of the server's response.
pub(crate) fn rpc_error<T: std::fmt::Debug>(outcome: Result<T, Error>) -> RpcError {
    match outcome {
        Err(Error::Rpc(error)) => error,
        other => panic!("expected an answer with an error, got {other:?}"),
    }
}

/// Returns the error code of the server's response.
pub(crate) fn code<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ErrorCode {
    rpc_error(outcome).code
}

/// Pseudorandom numbers, identical in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns a number from 0 to `below - 1`.
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }
}

/// Shares a harness between tasks.
pub(crate) type Shared = Arc<Harness>;

/// Returns the resident memory of this process, which contains the server, in MiB.
pub(crate) fn resident_mib() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages / 256
}
