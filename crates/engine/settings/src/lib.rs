//! The configuration of an engine: one TOML file with overrides from the environment. The file is
//! parsed once and checked completely before a port is bound.
//!
//! The table [`keys`] defines every key. Parsing results in a [`Config`] with a value for every
//! setting, or in an error that names every invalid key and its line. Errors never repeat values,
//! because a secret in the wrong key must not reach a log.
//!
//! The file overrides the defaults, and the environment overrides the file. Of the process, only
//! the variables in [`Environment`] are read.

mod issuer;
mod key;
pub mod keys;
mod limits;
mod reload;
mod template;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealwire_audit::OnFailure;
use sealwire_schedule::RunOrder;
use sealwire_service::settings::{Document, read_file};
pub use sealwire_service::settings::{Problem, Problems};
use sealwire_service::spans::Endpoint;
pub use sealwire_service::spans::Settings as TraceSettings;
use sealwire_store_postgres::PostgresTls;

pub use issuer::Issuers;
use key::Values;
use keys::SCHEMA;
pub use limits::{CALL_BYTES, Limits};
pub use sealwire_access::AccessMode;
use sealwire_access::{Identity, Principal, PrincipalKind};

/// All settings of an engine. Paths are absolute or relative to the working folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The data listener for clients.
    pub listen: Listen,
    /// HTTP listener for clients.
    pub http: HttpListen,
    /// Issuers of bearer tokens for the HTTP listener.
    pub issuers: Issuers,
    /// The health and metrics listener for operators.
    pub admin: Admin,
    /// The listener on which operators change apps, keys and collections.
    pub control: Option<ControlListen>,
    /// Roles and permissions.
    pub access: Access,
    /// Certificates.
    pub tls: Tls,
    /// The store of control state and tokens.
    pub state: State,
    /// The database of [`Mode::Postgres`].
    pub postgres: Postgres,
    /// The source of the key-encryption key.
    pub kek: KekSource,
    /// `kek.providers`: file of further providers of key-encryption keys.
    pub kek_providers: Option<PathBuf>,
    /// `kek.root_key`: true if the engine must not start on a store without a root key.
    pub kek_needs_root: bool,
    /// `kek.probe_interval_s`: seconds between two checks of a slot of the root key. 0 disables the
    /// checks.
    pub kek_probe_interval_s: u64,
    /// Settings of the crypto threads and key caches.
    pub crypto: Crypto,
    /// Options for reading the Evervault format.
    pub evervault: Evervault,
    /// Settings of the network threads.
    pub network: Network,
    /// Admission and order of requests.
    pub schedule: Schedule,
    /// All limits.
    pub limits: Limits,
    /// Audit log of requests.
    pub audit: Audit,
    /// Removal of expired rows.
    pub sweep: SweepSettings,
    /// Export of spans.
    pub traces: TraceSettings,
    /// Log level and format.
    pub log: Log,
}

/// `[listen]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address of the data listener. `None` if the engine has no data listener. Port 0 lets the
    /// system choose.
    pub address: Option<SocketAddr>,
}

/// `[http]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpListen {
    /// Address of the HTTP listener. `None` if the engine has none. Port 0 lets the system choose.
    pub address: Option<SocketAddr>,
}

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Address of the health and metrics listener. Port 0 lets the system choose.
    pub address: SocketAddr,
}

/// The certificate field that names a client, and the name.
pub type Caller = (PrincipalKind, String);

/// `[control]`, if it sets an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlListen {
    /// Address of the control listener. Port 0 lets the system choose.
    pub address: SocketAddr,
    /// PEM file with the authorities of its clients. `None`: the authorities of `[tls]`.
    pub client_ca: Option<PathBuf>,
    /// PEM file with the revocation lists of those authorities.
    pub client_crl: Option<PathBuf>,
    /// Principals that can connect. If the list is empty, `client_ca` is a separate authority and
    /// every client of that authority can connect.
    pub principals: Vec<Caller>,
}

/// `[access]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Effect on requests that no role grants.
    pub mode: AccessMode,
    /// Principals that get the role `administrator` while no principal has any role.
    pub administrators: Vec<Principal>,
    /// Order in which the names of a certificate are used to find its principal.
    pub identity: Identity,
    /// Maximum number of principals whose permissions are cached.
    pub cache_entries: usize,
    /// Maximum time for which permissions are cached, in seconds.
    pub cache_s: u64,
    /// Maximum time for which the absence of a role is cached, in seconds.
    pub cache_negative_s: u64,
    /// Additional time for which cached permissions are used while the store is down, in seconds.
    pub stale_s: u64,
}

impl Access {
    fn take(values: &mut Values) -> Self {
        let administrators = values.list("access", "administrators");
        let identity = values.list("access", "name_order");
        Self {
            mode: match &*values.text("access", "mode") {
                "observe" => AccessMode::Observe,
                "off" => AccessMode::Off,
                _ => AccessMode::Enforce,
            },
            administrators: administrators
                .iter()
                .filter_map(|name| Principal::from_text(name))
                .collect(),
            identity: Identity::from_names(identity.iter().map(String::as_str)).unwrap_or_default(),
            cache_entries: values.number("access", "cache_entries") as usize,
            cache_s: values.number("access", "cache_s"),
            cache_negative_s: values.number("access", "cache_negative_s"),
            stale_s: values.number("access", "stale_s"),
        }
    }

    /// Time for which cached permissions are used while the store cannot be read. `None` if
    /// requests need no permission.
    pub fn stale(&self) -> Option<Duration> {
        (self.mode != AccessMode::Off).then(|| Duration::from_secs(self.stale_s))
    }
}

/// `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the server's certificate, followed by intermediates.
    pub certificate: PathBuf,
    /// PEM file with the private key of the certificate.
    pub key: PathBuf,
    /// PEM file with the authorities of client certificates.
    pub client_ca: PathBuf,
    /// PEM file with the revocation lists of those authorities.
    pub client_crl: Option<PathBuf>,
    /// Also accepts TLS 1.2.
    pub tls12: bool,
    /// Seconds between two checks of the files for changes. 0: the files are only reloaded on
    /// request.
    pub watch_s: u64,
}

/// `[state]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Kind of store.
    pub mode: Mode,
    /// File for [`Mode::Stateless`].
    pub file: PathBuf,
    /// Folder for [`Mode::Embedded`].
    pub folder: PathBuf,
    /// Seconds between two checks for changes by other processes.
    pub poll_s: u64,
    /// `state.anchor_file`.
    pub anchor_file: Option<PathBuf>,
    /// True if `state.on_rollback` is "read_only".
    pub serves_rolled_back: bool,
}

/// The kind of store in which an engine keeps its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No store. Another program writes the file with apps and keys, and no tokens are stored.
    Stateless,
    /// A folder that no other process uses.
    Embedded,
    /// A PostgreSQL database that several engines share.
    Postgres,
}

impl State {
    /// Returns the interval at which the store's generation is read. For a file, this only reads
    /// the file's times.
    pub fn poll(&self) -> Duration {
        match self.mode {
            Mode::Stateless => Duration::from_secs(1),
            Mode::Embedded | Mode::Postgres => Duration::from_secs(self.poll_s),
        }
    }
}

/// `[postgres]`. The password is in [`Self::password_file`] or in the environment variable
/// [`Postgres::PASSWORD`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Postgres {
    /// Address of the database, without a password.
    pub url: String,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// PEM file with the authority of the server's certificate.
    pub ca: Option<PathBuf>,
    /// PEM file with the client certificate.
    pub client_certificate: Option<PathBuf>,
    /// PEM file with the key of the client certificate.
    pub client_key: Option<PathBuf>,
    /// Encryption of TCP connections.
    pub tls: PostgresTls,
    /// Number of connections that write tokens.
    pub writers: usize,
    /// Number of connections that read tokens.
    pub readers: usize,
    /// Timeout of a query, in milliseconds.
    pub timeout_ms: u64,
}

impl Postgres {
    /// The environment variable for the password. The variable is read when the store is opened,
    /// and its value is not kept.
    pub const PASSWORD: &str = "SEALWIRE_POSTGRES_PASSWORD";

    fn take(values: &mut Values, folder: &Path) -> Self {
        let tls = if values.text("postgres", "tls") == "off" {
            PostgresTls::Off
        } else {
            PostgresTls::Require
        };
        Self {
            url: values.text("postgres", "url"),
            password_file: values.optional_path("postgres", "password_file", folder),
            ca: values.optional_path("postgres", "ca", folder),
            client_certificate: values.optional_path("postgres", "client_certificate", folder),
            client_key: values.optional_path("postgres", "client_key", folder),
            tls,
            writers: values.number("postgres", "writers") as usize,
            readers: values.number("postgres", "readers") as usize,
            timeout_ms: values.number("postgres", "timeout_ms"),
        }
    }
}

/// `[kek]`: the source of the key-encryption key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KekSource {
    /// A file that contains the key.
    File(PathBuf),
    /// The name of an environment variable that contains the key.
    Environment(String),
}

/// `[crypto]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crypto {
    /// Threads for cryptography; 0 means one per core. See [`Crypto::threads_on`].
    pub threads: usize,
    /// Number of key versions with a table of precomputed multiples, 150 KB each. 0 disables the
    /// tables.
    pub precomputed_tables: usize,
    /// Number of ephemeral keys that are prepared per frequently used key version. 0 disables the
    /// preparation.
    pub ready_keys: usize,
    /// Number of opened key schedules in the cache that all requests share. 0 disables the cache.
    pub open_key_cache_entries: usize,
    /// Maximum time for which an opened key schedule is cached, in seconds, counted from its first
    /// use.
    pub open_key_cache_s: u64,
}

impl Crypto {
    /// Returns the number of threads to start on a machine with `cores` cores. The result is at
    /// least 1.
    pub fn threads_on(&self, cores: usize) -> usize {
        if self.threads == 0 {
            cores.max(1)
        } else {
            self.threads
        }
    }
}

/// `[evervault]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evervault {
    /// Also reads tags and file versions that the vendor no longer supports.
    pub legacy: bool,
    /// Data roles whose values are decrypted. `*` stands for every role.
    pub open_roles: Vec<String>,
}

impl Evervault {
    /// Returns true if a value with this data role, or without a data role, is decrypted.
    pub fn opens(&self, role: Option<&str>) -> bool {
        role.is_none_or(|role| {
            self.open_roles
                .iter()
                .any(|open| open == role || open == "*")
        })
    }
}

/// `[network]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Threads for sockets; 0 chooses by the number of cores. See [`Network::threads_on`].
    pub threads: usize,
}

impl Network {
    /// Returns the number of threads to start on a machine with `cores` cores: one per eight cores,
    /// from 1 to 4.
    pub fn threads_on(&self, cores: usize) -> usize {
        if self.threads == 0 {
            cores.div_ceil(8).clamp(1, 4)
        } else {
            self.threads
        }
    }
}

/// `[schedule]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Predicted wait, in milliseconds, at which a request of ordinary size is rejected.
    pub wait_max_ms: u64,
    /// Time for which a crypto thread works between two scheduling decisions, in microseconds.
    pub slice_us: u64,
    /// Work that a network thread can do itself each time it wakes up, in microseconds.
    pub inline_us: u64,
    /// Memory for requests and responses over all connections, in MiB.
    pub memory_mib: u64,
    /// Weights of principals. Principals that are not listed have weight 1.
    pub weights: HashMap<(PrincipalKind, String), u32>,
    /// Order of requests.
    pub order: RunOrder,
}

impl Schedule {
    /// [`Self::memory_mib`] in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_mib << 20
    }
}

/// `[audit]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Folder of the audit log. `None` if the audit log is off.
    pub folder: Option<PathBuf>,
    /// Effect on requests that cannot be recorded.
    pub on_failure: OnFailure,
    /// Syncs each write to disk before the write counts as complete.
    pub sync: bool,
    /// Size in MiB at which a segment ends.
    pub segment_mib: u64,
    /// Age in hours at which a segment ends.
    pub segment_hours: u64,
    /// Maximum total size of the files in MiB. 0: limited only by the disk.
    pub folder_mib_max: u64,
    /// Space in MiB that is reserved for records of permitted requests.
    pub reserve_mib: u64,
    /// Maximum number of queued records.
    pub queue_records: usize,
    /// Maximum size of the queued records in MiB.
    pub queue_mib: usize,
}

impl Audit {
    fn take(values: &mut Values, folder: &Path) -> Self {
        Self {
            folder: values.optional_path("audit", "folder", folder),
            on_failure: on_failure(&values.text("audit", "on_failure")),
            sync: values.flag("audit", "sync"),
            segment_mib: values.number("audit", "segment_mib"),
            segment_hours: values.number("audit", "segment_hours"),
            folder_mib_max: values.number("audit", "folder_mib_max"),
            reserve_mib: values.number("audit", "reserve_mib"),
            queue_records: values.number("audit", "queue_records") as usize,
            queue_mib: values.number("audit", "queue_mib") as usize,
        }
    }
}

/// `[sweep]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepSettings {
    /// Seconds between two sweeps. 0 disables sweeps.
    pub interval_s: u64,
    /// Maximum number of rows read per second.
    pub rows_per_s: u64,
}

/// `[traces]`.
fn traces(values: &mut Values) -> TraceSettings {
    TraceSettings {
        endpoint: Endpoint::parse(&values.text("traces", "endpoint")),
        sample_ppm: values.millionths("traces", "sample_ratio"),
        spans_per_s_max: values.number("traces", "spans_per_s_max") as u32,
        queue_spans: values.number("traces", "queue_spans") as usize,
        batch_spans: values.number("traces", "batch_spans") as usize,
        batch: Duration::from_millis(values.number("traces", "batch_ms")),
        timeout: Duration::from_millis(values.number("traces", "timeout_ms")),
    }
}

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Format of a log line.
    pub format: LogFormat,
    /// Level, or levels per module, in the syntax of `tracing_subscriber::filter::Targets`:
    /// `info,sealwire_server=debug`.
    pub filter: String,
}

/// Format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for a terminal.
    Human,
    /// A JSON object per line.
    Json,
}

/// The `SEALWIRE_` variables of the configuration. Has no `Debug`, because a value can be a secret.
#[derive(Default)]
pub struct Environment(BTreeMap<String, OsString>);

impl Environment {
    /// Returns the variables of this process.
    pub fn of_process() -> Self {
        Self::from_pairs(
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
        )
    }

    /// Keeps the given variables that belong to a section of the configuration. Drops all others,
    /// so that no key material is kept.
    pub fn from_pairs<N: Into<String>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let pairs = pairs
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        Self(pairs.filter(|(name, _)| is_of_section(name)).collect())
    }
}

/// Returns true if a variable begins with the name of a section, so that it should override a key.
/// `SEALWIRE_LISTEN_ADDRESS` belongs to `listen`; `SEALWIRE_KEK` belongs to no section.
fn is_of_section(variable: &str) -> bool {
    // The password variable is not a key. No file can contain the password, and no problem names the
    // variable.
    variable != Postgres::PASSWORD
        && SCHEMA.sections.iter().any(|section| {
            let prefix = format!("{}{}_", SCHEMA.prefix, section.name).to_uppercase();
            variable.starts_with(&prefix)
        })
}

impl Config {
    /// Reads the file, applies the environment and checks the result.
    ///
    /// Relative paths in the file are relative to the file's folder. An unreadable file is an
    /// error, even though every key has a default.
    ///
    /// # Errors
    ///
    /// All problems together, by key name.
    pub fn load(file: &Path, environment: &Environment) -> Result<Self, Problems> {
        let text = read_file(file)?;
        let folder = file.parent().unwrap_or(Path::new(""));
        Self::parse(&text, environment, folder).map_err(|mut problems| {
            problems.set_file(file);
            problems
        })
    }

    /// Parses a configuration. Relative paths are joined to `folder`.
    ///
    /// # Errors
    ///
    /// All problems together, by key name.
    pub fn parse(text: &str, environment: &Environment, folder: &Path) -> Result<Self, Problems> {
        let variables = environment.0.iter();
        let variables = variables.map(|(name, value)| (name.clone(), value.clone()));
        let Document { values, lines } = SCHEMA.read(text, variables)?;
        let mut problems = Problems::default();
        let config = Self::build(&mut Values(values), folder, &mut problems);

        config.limits.check_rules(&mut problems);
        config.check(&mut problems);
        problems.locate(&lines);
        problems.into_result()?;
        Ok(config)
    }

    /// Returns a commented file with every key at its default, as `sealwire config template` prints
    /// it.
    pub fn reference() -> String {
        template::text()
    }

    /// Returns the reference as Markdown, as `sealwire config template --markdown` prints it. The
    /// page `docs/configuration.md` has the same content.
    pub fn reference_markdown() -> String {
        template::markdown()
    }

    /// Returns every default, with paths relative to `folder`.
    pub fn defaults(folder: &Path) -> Self {
        match SCHEMA.read("", []) {
            Ok(document) => {
                let mut values = Values(document.values);
                Self::build(&mut values, folder, &mut Problems::default())
            }
            Err(problems) => unreachable!("every key has a valid default: {problems}"),
        }
    }

    /// Converts checked values. Problems are rules that a conversion finds violated.
    fn build(values: &mut Values, folder: &Path, problems: &mut Problems) -> Self {
        let provider = values.text("kek", "provider");
        let (file, variable) = (
            folder.join(values.text("kek", "file")),
            values.text("kek", "env_var"),
        );
        let format = values.text("log", "format");
        Self {
            listen: Listen {
                address: optional_address(values, "listen"),
            },
            http: HttpListen {
                address: optional_address(values, "http"),
            },
            issuers: Issuers::take(values, folder, problems),
            admin: Admin {
                address: address(values, "admin"),
            },
            control: control(values, folder),
            access: Access::take(values),
            tls: Tls {
                certificate: folder.join(values.text("tls", "certificate")),
                key: folder.join(values.text("tls", "key")),
                client_ca: folder.join(values.text("tls", "client_ca")),
                client_crl: values.optional_path("tls", "client_crl", folder),
                tls12: values.flag("tls", "tls12"),
                watch_s: values.number("tls", "watch_s"),
            },
            state: State {
                mode: match &*values.text("state", "mode") {
                    "stateless" => Mode::Stateless,
                    "postgres" => Mode::Postgres,
                    _ => Mode::Embedded,
                },
                file: folder.join(values.text("state", "file")),
                folder: folder.join(values.text("state", "folder")),
                poll_s: values.number("state", "poll_s"),
                anchor_file: values.optional_path("state", "anchor_file", folder),
                serves_rolled_back: values.text("state", "on_rollback") == "read_only",
            },
            postgres: Postgres::take(values, folder),
            kek: if provider == "file" {
                KekSource::File(file)
            } else {
                KekSource::Environment(variable)
            },
            kek_providers: values.optional_path("kek", "providers", folder),
            kek_needs_root: values.text("kek", "root_key") == "required",
            kek_probe_interval_s: values.number("kek", "probe_interval_s"),
            crypto: Crypto {
                threads: values.number("crypto", "threads") as usize,
                precomputed_tables: values.number("crypto", "precomputed_tables") as usize,
                ready_keys: values.number("crypto", "ready_keys") as usize,
                open_key_cache_entries: values.number("crypto", "open_key_cache_entries") as usize,
                open_key_cache_s: values.number("crypto", "open_key_cache_s"),
            },
            evervault: Evervault {
                legacy: values.flag("evervault", "legacy"),
                open_roles: values.list("evervault", "open_roles"),
            },
            network: Network {
                threads: values.number("network", "threads") as usize,
            },
            schedule: Schedule {
                wait_max_ms: values.number("schedule", "wait_max_ms"),
                slice_us: values.number("schedule", "slice_us"),
                inline_us: values.number("schedule", "inline_us"),
                memory_mib: values.number("schedule", "memory_mib"),
                weights: weights(&values.list("schedule", "weights")),
                order: if values.text("schedule", "order") == "arrival" {
                    RunOrder::Arrival
                } else {
                    RunOrder::Fair
                },
            },
            limits: Limits::take(values),
            audit: Audit::take(values, folder),
            sweep: SweepSettings {
                interval_s: values.number("sweep", "interval_s"),
                rows_per_s: values.number("sweep", "rows_per_s"),
            },
            traces: traces(values),
            log: Log {
                format: if format == "json" {
                    LogFormat::Json
                } else {
                    LogFormat::Human
                },
                filter: values.text("log", "filter"),
            },
        }
    }

    /// Checks that only operators can change keys: by a separate authority or by a list of
    /// principals.
    fn check_control(&self, control: &ControlListen, problems: &mut Problems) {
        let own_ca = control
            .client_ca
            .as_ref()
            .is_some_and(|ca| *ca != self.tls.client_ca);
        if control.principals.is_empty() && !own_ca {
            problems.push(Problem::new(
                "control.principals",
                "is empty, and control.client_ca is that of the data listener, so any client could change keys. List the operators, or set a separate control.client_ca",
            ));
        }
    }

    /// Checks that each listener has a separate port.
    fn check_addresses(&self, problems: &mut Problems) {
        let control = self.control.as_ref().map(|control| control.address);
        let listeners = [
            ("listen.address", self.listen.address, "Requests on data"),
            (
                "admin.address",
                Some(self.admin.address),
                "Health checks and metrics",
            ),
            ("http.address", self.http.address, "HTTP"),
            ("control.address", control, "Operators' requests"),
        ];
        for (position, (key, address, subject)) in listeners.iter().enumerate() {
            for (other, other_address, _) in &listeners[..position] {
                let (Some(address), Some(other_address)) = (address, other_address) else {
                    continue;
                };
                if address.port() == 0 || address.port() != other_address.port() {
                    continue;
                }
                let verb = if *subject == "HTTP" { "needs" } else { "need" };
                let message = if address.ip() == other_address.ip() {
                    format!("is the same as {other}. {subject} {verb} a separate port")
                } else if covers(*address, *other_address) || covers(*other_address, *address) {
                    format!(
                        "has the port of {other}, and one of the two is for all addresses of the machine. {subject} {verb} a separate port"
                    )
                } else {
                    continue;
                };
                problems.push(Problem::new(*key, message));
            }
        }
    }

    /// Checks the rules between keys of different sections.
    fn check(&self, problems: &mut Problems) {
        let one_call = self
            .limits
            .message_bytes_max
            .saturating_add(self.limits.reply_bytes_max);
        if self.schedule.memory_bytes() / 2 < (one_call + CALL_BYTES) as u64 {
            let needed = (2 * (one_call + CALL_BYTES) as u64).div_ceil(1 << 20);
            let message = format!(
                "must be at least {needed} MiB, because the longest request (limits.message_bytes_max + \
                 limits.reply_bytes_max) must fit into the half that one client can get"
            );
            problems.push(Problem::new("schedule.memory_mib", message));
        }
        if self.listen.address.is_none() && self.http.address.is_none() && self.control.is_none() {
            problems.push(Problem::new(
                "listen.address",
                "is empty, and so are http.address and control.address, so the engine would listen nowhere. Set at least one of them",
            ));
        }
        self.check_addresses(problems);
        if !self.issuers.0.is_empty() && self.http.address.is_none() {
            problems.push(Problem::new(
                "http.address",
                "is empty, and tokens of an issuer are accepted by that listener only. Set it, or remove the tables [issuer.NAME]",
            ));
        }
        if let Some(control) = &self.control {
            self.check_control(control, problems);
        }
        if self.state.mode == Mode::Postgres && self.postgres.url.is_empty() {
            problems.push(Problem::new(
                "postgres.url",
                "is empty, but state.mode is \"postgres\". Set it to the URL of the database, such as \"postgres://sealwire@db.internal/sealwire\"",
            ));
        }
        if self
            .log
            .filter
            .parse::<tracing_subscriber::filter::Targets>()
            .is_err()
        {
            problems.push(Problem::new(
                "log.filter",
                "must be a level (error, warn, info, debug, trace) or a list of module=level",
            ));
        }
    }
}

/// Returns true if `all` stands for all addresses of the machine and therefore for `one`. That of
/// IPv6 also stands for those of IPv4.
const fn covers(all: SocketAddr, one: SocketAddr) -> bool {
    all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4())
}

fn control(values: &mut Values, folder: &Path) -> Option<ControlListen> {
    let client_ca = values.optional_path("control", "client_ca", folder);
    let client_crl = values.optional_path("control", "client_crl", folder);
    let principals = values
        .list("control", "principals")
        .iter()
        .filter_map(|name| key::caller(name))
        .collect();
    let address = optional_address(values, "control")?;
    Some(ControlListen {
        address,
        client_ca,
        client_crl,
        principals,
    })
}

fn weights(list: &[String]) -> HashMap<Caller, u32> {
    list.iter().filter_map(|text| key::weight(text)).collect()
}

fn address(values: &mut Values, section: &'static str) -> SocketAddr {
    optional_address(values, section)
        .unwrap_or_else(|| unreachable!("{section}.address was checked"))
}

/// Takes a checked address. Returns `None` if the address is empty.
fn optional_address(values: &mut Values, section: &'static str) -> Option<SocketAddr> {
    values.text(section, "address").parse().ok()
}

fn on_failure(text: &str) -> OnFailure {
    if text == "continue" {
        OnFailure::Continue
    } else {
        OnFailure::Reject
    }
}

#[cfg(test)]
mod tests;
