//! Engines as processes with a database, an authority, and clients of both listeners.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use sealwire_client::control::{
    AppOperation, CollectionOperation, CreateCollection, Kind, Scope, TokenFormat,
};
use sealwire_client::{Client, ClientConfig, Endpoint, Pem};
use sealwire_crypto::Kek;
use sealwire_dev_ca::{Access, Authority, Existing, Issued, Leaf, Name, Usage, Validity};
use sealwire_store_postgres::{PostgresOptions, distribute};
use sealwire_testkit::{
    Certificates, Citus, Database, Postgres, ROOT_TOKEN, TransitServer, free_ports,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The app that [`Cluster::furnish`] creates.
pub(crate) const APP: &str = "shop";
/// The app's collection of random tokens.
pub(crate) const RANDOM: &str = "people";
/// The app's collection of deterministic tokens.
pub(crate) const DETERMINISTIC: &str = "cards";
/// Timeout in seconds of every wait for an event. Guards against hangs; says nothing about speed.
pub(crate) const HANG_S: u64 = 300;

/// State shared by engines on one database.
pub(crate) struct Cluster<'a> {
    pub(crate) database: Database<'a>,
    authority: Authority,
    folder: TempDir,
    poll_s: u32,
    timeout_ms: u32,
    log_filter: &'static str,
    access: &'static str,
    /// Value of `access.cache_s`.
    cache_s: u32,
    more: String,
    /// More settings of the section `[kek]`.
    kek: String,
    environment: Vec<(&'static str, PathBuf)>,
}

/// An engine process.
pub(crate) struct EngineProcess {
    pub(crate) address: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) admin: SocketAddr,
    pub(crate) config: PathBuf,
    log: PathBuf,
    environment: Vec<(&'static str, PathBuf)>,
    child: Option<Child>,
}

/// Returns a server and a new database there. The shared server is replaced by a coordinator of
/// Citus, if there is one, and the database is then distributed.
fn home(postgres: &Postgres) -> (&Postgres, Database<'_>) {
    // Nodes share the settings of roles, and reject changes of them at once.
    static ROLES: Mutex<()> = Mutex::new(());
    let Some(citus) = Citus::shared().filter(|_| std::ptr::eq(postgres, Postgres::shared())) else {
        return (postgres, postgres.database().unwrap());
    };
    let _roles = ROLES.lock().unwrap_or_else(PoisonError::into_inner);
    let database = citus.database().unwrap();
    let password = Some(citus.coordinator().password().to_owned());
    let timeout = Duration::from_secs(60);
    let options = PostgresOptions {
        password,
        timeout,
        ..PostgresOptions::new(database.socket_url())
    };
    // The test can run in a runtime of its own.
    let distributed = thread::spawn(|| {
        Runtime::new()
            .unwrap()
            .block_on(distribute(options, None, false))
    });
    distributed.join().unwrap().unwrap();
    (citus.coordinator(), database)
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(postgres: &'a Postgres) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create("cluster", Validity::days(10)).unwrap();
        let issued = authority.issue(&leaf(Usage::Server, "engine")).unwrap();
        fs::write(folder.path().join("ca.pem"), authority.cert_pem()).unwrap();
        fs::write(folder.path().join("server.pem"), &issued.cert_pem).unwrap();
        private(
            &folder.path().join("server-key.pem"),
            issued.key_pem.expose(),
        );
        private(
            &folder.path().join("kek.key"),
            &Kek::generate_hex().unwrap(),
        );
        let (postgres, database) = home(postgres);
        private(&folder.path().join("password"), postgres.password());
        Self {
            database,
            authority,
            folder,
            poll_s: 30,
            timeout_ms: 30_000,
            log_filter: "info",
            access: "off",
            cache_s: 300,
            more: String::new(),
            kek: String::new(),
            environment: Vec::new(),
        }
    }

    /// Configures providers of the root key beside the file `kek.key`. `tables`: the content of the
    /// providers' file. `more`: settings of the section `[kek]`.
    pub(crate) fn providers(mut self, tables: &str, more: &str) -> Self {
        fs::write(self.path("providers.toml"), tables).unwrap();
        self.kek = format!("providers = \"../providers.toml\"\n{more}");
        self
    }

    /// Sets an environment variable of engines and commands.
    pub(crate) fn environment(mut self, name: &'static str, value: PathBuf) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Returns the path of a file that all engines share.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that all engines share, readable by its owner alone.
    pub(crate) fn secret(&self, name: &str, contents: &str) {
        private(&self.path(name), contents);
    }

    /// Starts a transit server. Returns it with the table of its provider, which has the same name.
    /// `more`: settings of the table.
    pub(crate) fn transit(&self, name: &str, more: &str) -> (TransitServer, String) {
        fs::create_dir(self.path(name)).unwrap();
        let certificates = Certificates::make(&self.path(name), "unused").unwrap();
        let server = TransitServer::start(&certificates).unwrap();
        server.add_key("transit", "sealwire");
        self.secret(&format!("{name}/token"), ROOT_TOKEN);
        let address = server.address();
        let table = format!(
            "[{name}]\nkind = \"transit\"\naddress = \"{address}\"\nca = \"{name}/ca.pem\"\nkey = \"sealwire\"\n\
             auth = \"token\"\ntoken_file = \"{name}/token\"\n{more}\n"
        );
        (server, table)
    }

    /// Lets engines wait only 2 s for the database, where a test lets it hang. On a busy machine a
    /// working database takes longer, too.
    pub(crate) fn short_store_timeout(mut self) -> Self {
        self.timeout_ms = 2_000;
        self
    }

    pub(crate) fn poll_s(mut self, poll_s: u32) -> Self {
        self.poll_s = poll_s;
        self
    }

    pub(crate) fn log_filter(mut self, filter: &'static str) -> Self {
        self.log_filter = filter;
        self
    }

    /// Makes engines deny what no role grants; `operator` is an administrator.
    pub(crate) fn enforcing(mut self) -> Self {
        self.access = "enforce";
        self
    }

    /// Sets the longest time for which engines cache permissions.
    pub(crate) fn cache_s(mut self, cache_s: u32) -> Self {
        self.cache_s = cache_s;
        self
    }

    /// Makes engines sweep continuously and record the sweeps.
    pub(crate) fn sweeping(mut self) -> Self {
        self.more =
            "[sweep]\ninterval_s = 1\nrows_per_s = 1000000\n[audit]\nfolder = \"audit\"\n".into();
        self
    }

    /// Gives engines a second provider of the root key, `spare`.
    pub(crate) fn with_spare_provider(mut self) -> Self {
        private(
            &self.folder.path().join("spare.key"),
            &Kek::generate_hex().unwrap(),
        );
        let table = "[spare]\nkind = \"file\"\npath = \"spare.key\"\n";
        fs::write(self.folder.path().join("providers.toml"), table).unwrap();
        self.kek = "providers = \"../providers.toml\"\n".into();
        self
    }

    /// Returns the options with which a command reaches an engine's control listener as the
    /// operator.
    pub(crate) fn operator_options(&self, engine: &EngineProcess) -> Vec<String> {
        let Issued {
            cert_pem, key_pem, ..
        } = self
            .authority
            .issue(&leaf(Usage::Client, "operator"))
            .unwrap();
        let at = |name: &str| self.folder.path().join(name);
        fs::write(at("operator.pem"), &cert_pem).unwrap();
        private(&at("operator-key.pem"), key_pem.expose());
        let mut options = vec!["--connect".to_owned(), engine.control.to_string()];
        options.extend(["--server-name".to_owned(), "localhost".to_owned()]);
        for (option, file) in [
            ("--ca", "ca.pem"),
            ("--cert", "operator.pem"),
            ("--key", "operator-key.pem"),
        ] {
            options.extend([option.to_owned(), at(file).display().to_string()]);
        }
        options
    }

    /// Makes engines record calls.
    pub(crate) fn audited(mut self) -> Self {
        self.more = "[audit]\nfolder = \"audit\"\n".into();
        self
    }

    /// Makes engines record calls in folders of at most this size.
    pub(crate) fn audited_in_mib(mut self, mib: u32) -> Self {
        self.more =
            format!("[audit]\nfolder = \"audit\"\nsegment_mib = 1\nfolder_mib_max = {mib}\n");
        self
    }

    /// Starts an engine on the database, which is sealed, and waits until it says so.
    pub(crate) fn engine_sealed(&self, name: &str) -> EngineProcess {
        let mut engine = self.prepared(
            name,
            &self.postgres(&self.database.socket_url(), ""),
            true,
            true,
        );
        engine.launch();
        engine.becomes_sealed();
        engine
    }

    /// Starts an engine on the database, and waits until it is ready.
    pub(crate) fn engine(&self, name: &str) -> EngineProcess {
        self.engine_on(name, &self.database.socket_url(), "")
    }

    /// Starts an engine that reaches the database by `url` over TLS, at one of `servers`, and waits
    /// until it is ready.
    pub(crate) fn engine_over_tls(
        &self,
        name: &str,
        url: &str,
        servers: &[&Postgres],
    ) -> EngineProcess {
        let authorities = servers
            .iter()
            .map(|server| fs::read_to_string(&server.certificates().ca).unwrap());
        fs::write(
            self.folder.path().join("database-ca.pem"),
            authorities.collect::<String>(),
        )
        .unwrap();
        self.engine_on(name, url, "ca = \"../database-ca.pem\"\n")
    }

    /// Starts an engine with its state in a folder of its own, and waits until it is ready.
    pub(crate) fn engine_embedded(&self, name: &str) -> EngineProcess {
        self.engine_with(name, "mode = \"embedded\"\nfolder = \"state\"")
    }

    /// Starts an engine on the database without a data listener, and waits until it is ready.
    pub(crate) fn engine_of_control_alone(&self, name: &str) -> EngineProcess {
        self.engine_listening(
            name,
            &self.postgres(&self.database.socket_url(), ""),
            false,
            true,
        )
    }

    /// Starts an engine on the database without a control listener, and waits until it is ready.
    pub(crate) fn engine_of_data_alone(&self, name: &str) -> EngineProcess {
        self.engine_listening(
            name,
            &self.postgres(&self.database.socket_url(), ""),
            true,
            false,
        )
    }

    fn engine_on(&self, name: &str, url: &str, postgres: &str) -> EngineProcess {
        self.engine_with(name, &self.postgres(url, postgres))
    }

    /// Returns the state section of an engine on a database, with more settings in `postgres`.
    fn postgres(&self, url: &str, postgres: &str) -> String {
        let mut text = format!(
            "mode = \"postgres\"\npoll_s = {}\n[postgres]\nurl = \"{url}\"\n",
            self.poll_s
        );
        writeln!(
            text,
            "password_file = \"../password\"\ntimeout_ms = {}\n{postgres}",
            self.timeout_ms
        )
        .unwrap();
        text
    }

    fn engine_with(&self, name: &str, state: &str) -> EngineProcess {
        self.engine_listening(name, state, true, true)
    }

    fn engine_listening(
        &self,
        name: &str,
        state: &str,
        data: bool,
        changes: bool,
    ) -> EngineProcess {
        let mut engine = self.prepared(name, state, data, changes);
        engine.start();
        engine
    }

    fn prepared(&self, name: &str, state: &str, data: bool, changes: bool) -> EngineProcess {
        let [address, control, admin] =
            free_ports::<3>().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let folder = self.folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let mut text = String::new();
        let listens = |on: bool, at: SocketAddr| if on { at.to_string() } else { String::new() };
        let (listen, control_listen) = (listens(data, address), listens(changes, control));
        writeln!(
            text,
            "[listen]\naddress = \"{listen}\"\n[admin]\naddress = \"{admin}\""
        )
        .unwrap();
        writeln!(
            text,
            "[control]\naddress = \"{control_listen}\"\nprincipals = [\"operator\", \"deputy\"]"
        )
        .unwrap();
        writeln!(
            text,
            "[tls]\ncertificate = \"../server.pem\"\nkey = \"../server-key.pem\""
        )
        .unwrap();
        writeln!(
            text,
            "client_ca = \"../ca.pem\"\n[kek]\nfile = \"../kek.key\"\n{}",
            self.kek
        )
        .unwrap();
        writeln!(
            text,
            "[access]\nmode = \"{}\"\nadministrators = [\"operator\"]",
            self.access
        )
        .unwrap();
        writeln!(
            text,
            "cache_s = {}\n{}[state]\n{state}",
            self.cache_s, self.more
        )
        .unwrap();
        // Long limits, so that no request is rejected because the machine is slow.
        writeln!(
            text,
            "[limits]\ndeadline_ms_default = 600000\n[schedule]\nwait_max_ms = 3600000"
        )
        .unwrap();
        writeln!(
            text,
            "[crypto]\nthreads = 1\nprecomputed_tables = 0\n[log]\nfilter = \"{}\"",
            self.log_filter
        )
        .unwrap();
        let (config, log) = (folder.join("sealwire.toml"), folder.join("log"));
        fs::write(&config, text).unwrap();
        let environment = self.environment.clone();
        EngineProcess {
            address,
            control,
            admin,
            config,
            log,
            environment,
            child: None,
        }
    }

    /// Makes a client of the data listeners of `engines`.
    pub(crate) fn client(&self, engines: &[&EngineProcess]) -> Client {
        self.client_at(
            &engines
                .iter()
                .map(|engine| engine.address)
                .collect::<Vec<_>>(),
            "relay",
            |_| (),
        )
    }

    /// Makes a client of the data listeners whose certificate has this name.
    pub(crate) fn client_named(&self, engines: &[&EngineProcess], name: &str) -> Client {
        self.client_at(
            &engines
                .iter()
                .map(|engine| engine.address)
                .collect::<Vec<_>>(),
            name,
            |_| (),
        )
    }

    /// Returns a client with a changed configuration.
    pub(crate) fn client_with(
        &self,
        engines: &[&EngineProcess],
        change: impl FnOnce(&mut ClientConfig),
    ) -> Client {
        self.client_at(
            &engines
                .iter()
                .map(|engine| engine.address)
                .collect::<Vec<_>>(),
            "relay",
            change,
        )
    }

    /// Makes a client of an engine's control listener that tries once.
    pub(crate) fn operator_once(&self, engine: &EngineProcess) -> Client {
        self.operator_named(engine, "operator")
    }

    /// Makes a client of an engine's control listener that tries once, for another operator.
    pub(crate) fn operator_named(&self, engine: &EngineProcess, name: &str) -> Client {
        self.client_at(&[engine.control], name, |config| {
            (config.connections, config.attempts_max) = (1, 1)
        })
    }

    /// Makes a client of an engine's control listener.
    pub(crate) fn operator(&self, engine: &EngineProcess) -> Client {
        self.client_at(&[engine.control], "operator", |config| {
            config.connections = 1
        })
    }

    /// Makes a client of other addresses, such as that of a balancer.
    pub(crate) fn client_at(
        &self,
        addresses: &[SocketAddr],
        name: &str,
        change: impl FnOnce(&mut ClientConfig),
    ) -> Client {
        let Issued {
            cert_pem, key_pem, ..
        } = self.authority.issue(&leaf(Usage::Client, name)).unwrap();
        let bytes = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
        let (ca, cert, key) = (
            bytes(self.authority.cert_pem()),
            bytes(&cert_pem),
            bytes(key_pem.expose()),
        );
        let mut config = ClientConfig::new(addresses[0].to_string(), "localhost", ca, cert, key);
        for address in &addresses[1..] {
            config
                .endpoints
                .push(Endpoint::new(address.to_string(), "localhost"));
        }
        change(&mut config);
        Client::lazy(config).unwrap()
    }

    /// Creates the app and its collections.
    pub(crate) async fn furnish(&self, engine: &EngineProcess) {
        let operator = self.operator(engine);
        operator
            .change_app(APP, AppOperation::create())
            .await
            .unwrap();
        for (collection, kind) in [(RANDOM, Kind::Random), (DETERMINISTIC, Kind::Deterministic)] {
            self.collection(engine, collection, kind, TokenFormat::Opaque)
                .await;
        }
    }

    /// Waits until all of `engines` have the generation of the first.
    pub(crate) async fn agree(&self, engines: &[&EngineProcess]) {
        let generation = self.client(&engines[..1]).info().await.unwrap().generation;
        for engine in engines {
            let client = self.client(&[engine]);
            let follows =
                async || (client.info().await.unwrap().generation >= generation).then_some(());
            until("an engine to follow", follows).await;
        }
    }

    /// Creates a collection of the app.
    pub(crate) async fn collection(
        &self,
        engine: &EngineProcess,
        name: &str,
        kind: Kind,
        format: TokenFormat,
    ) {
        let scope = Scope::Collection;
        let operation =
            CollectionOperation::create(CreateCollection::new(kind).format(format).scope(scope));
        self.operator(engine)
            .change_collection(APP, name, operation)
            .await
            .unwrap();
    }
}

impl EngineProcess {
    /// Starts the process, and waits until it is ready.
    pub(crate) fn start(&mut self) {
        self.launch();
        self.becomes(" 200 ");
    }

    /// Waits until `/ready` says that the store is sealed.
    pub(crate) fn becomes_sealed(&mut self) {
        self.becomes("failing: sealed");
    }

    /// Waits until the response of `/ready` contains a text.
    fn becomes(&mut self, text: &str) {
        let end = Instant::now() + Duration::from_secs(HANG_S);
        while !self.page("/ready").is_some_and(|page| page.contains(text)) {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(Instant::now() < end, "not ready: {}", self.log());
            if ended.is_some() {
                // As a supervisor would: on a busy machine the database can be late.
                let log = self.log();
                let last = log.trim_end().lines().last().unwrap_or_default();
                assert!(last.contains("the store does not respond"), "ended: {log}");
                self.launch();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts the process without waiting.
    pub(crate) fn launch(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let mut command = self.command(&["serve"]);
        self.child = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
    }

    /// Returns a command of the program on the engine's configuration.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        command
            .args(arguments)
            .arg("--config")
            .arg(&self.config)
            .stdin(Stdio::null());
        command.envs(self.environment.iter().cloned());
        command
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops the process with SIGTERM, which must drain and exit with status 0.
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Returns the status of `/ready`, or `None` without a response.
    pub(crate) fn ready(&self) -> Option<u16> {
        self.status("/ready")
    }

    /// Returns the status of a path of the health listener.
    pub(crate) fn status(&self, path: &str) -> Option<u16> {
        self.page(path)?.split_whitespace().nth(1)?.parse().ok()
    }

    /// Returns the value of a metric with its labels.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let page = self.page("/metrics").unwrap();
        let value = page
            .lines()
            .find_map(|line| line.strip_prefix(series))
            .unwrap();
        value.trim().parse().unwrap()
    }

    /// Reads a path of the health listener. Returns the response with its head.
    pub(crate) fn page(&self, path: &str) -> Option<String> {
        use std::io::{Read as _, Write as _};
        let patience = Duration::from_secs(HANG_S);
        let mut stream = std::net::TcpStream::connect_timeout(&self.admin, patience).ok()?;
        stream.set_read_timeout(Some(patience)).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    /// Returns the process's whole log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn leaf(usage: Usage, name: &str) -> Leaf {
    let host = if usage == Usage::Server {
        "localhost"
    } else {
        name
    };
    let names = vec![
        Name::Dns(host.into()),
        Name::Ip(IpAddr::from([127, 0, 0, 1])),
    ];
    Leaf {
        common_name: name.into(),
        names,
        usage,
        validity: Validity::days(1),
    }
}

fn private(path: &Path, contents: &str) {
    sealwire_dev_ca::write(path, contents.as_bytes(), Access::Owner, Existing::Replace).unwrap();
}

/// Waits until `check` returns a value. Panics after a timeout.
pub(crate) async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(HANG_S);
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(Instant::now() < end, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a test on a separate runtime.
pub(crate) fn run(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(body);
}
