//! A whole engine on loopback, in this process, with clients beside it: mutual TLS, one app, every
//! request authorized. No state and no audit log, so that only the threads of requests run.
//!
//! Engine and clients have separate runtimes with named threads, so that their CPU times can be
//! told apart. Names that begin with [`NETWORK`] and [`CRYPTO`] are the engine's; `caller` is the
//! clients'.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use sealwire_access::{Binding, Grant, Principal, Role, principal_key, role_key};
use sealwire_client::{Client, ClientConfig, Pem};
use sealwire_crypto::{AppId, EpochLifetime, Kek, Suite};
use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, Usage, Validity};
use sealwire_server::runtime;
pub use sealwire_server::runtime::{CRYPTO, NETWORK};
use sealwire_server::server::{Server, open_control};
use sealwire_settings::{Config, Mode};
use sealwire_store::ControlStore as _;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::document::APP;

/// A running engine and the settings that clients need to connect.
pub struct World {
    callers: Runtime,
    engine: Runtime,
    server: Server,
    config: ClientConfig,
    _folder: TempDir,
}

impl World {
    /// Starts an engine with default settings on ports that the system chooses.
    ///
    /// # Panics
    /// If anything on the way fails.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(|_| ())
    }

    /// Starts an engine; `inspect` gets its folder before.
    ///
    /// # Panics
    /// If anything on the way fails.
    #[must_use]
    pub fn start_with(inspect: impl FnOnce(&Path)) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let config = prepare(folder.path(), &["client"], Mode::Stateless);
        inspect(folder.path());
        let engine = runtime::start(&config).expect("a runtime");
        let server = engine.block_on(Server::start(&config)).expect("starts");
        let callers = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("caller")
            .enable_all()
            .build();
        let client = client_config(
            folder.path(),
            "client",
            server.address().expect("a data listener"),
        );
        Self {
            callers: callers.expect("a runtime"),
            engine,
            server,
            config: client,
            _folder: folder,
        }
    }

    /// Returns what a client needs to connect.
    #[must_use]
    pub fn client_config(&self) -> &ClientConfig {
        &self.config
    }

    /// Returns the clients' runtime.
    #[must_use]
    pub fn callers(&self) -> &Runtime {
        &self.callers
    }

    /// Makes a client with this many connections, of which the first is open.
    ///
    /// # Panics
    /// If the engine cannot be reached.
    #[must_use]
    pub fn client(&self, connections: usize) -> Client {
        let config = ClientConfig {
            connections,
            ..self.config.clone()
        };
        self.callers
            .block_on(Client::connect(config))
            .expect("connects")
    }

    /// Stops the clients and then the engine.
    pub fn stop(self) {
        drop(self.callers);
        self.engine.block_on(self.server.shutdown());
    }
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

/// Returns what a client with an identity in `folder` needs to connect to an engine.
#[must_use]
pub fn client_config(folder: &Path, name: &str, engine: SocketAddr) -> ClientConfig {
    let file = |name| Pem::File(folder.join(name));
    let (certificate, key) = (file(format!("{name}.pem")), file(format!("{name}.key")));
    let mut client = ClientConfig::new(
        engine.to_string(),
        "localhost",
        file("ca.pem".into()),
        certificate,
        key,
    );
    client.deadline = Duration::from_secs(120);
    client
}

/// Writes certificates, the key-encryption key and one app into `folder`: all that an engine needs
/// to start there, at the places that [`Config::defaults`] names. Each of `clients` is an identity
/// of its own, in `<name>.pem` and `<name>.key`; the authority is in `ca.pem`. The app is in the
/// state of `mode`. The addresses are of loopback, with ports that the system chooses.
///
/// # Panics
/// If a step fails.
#[must_use]
pub fn prepare(folder: &Path, clients: &[&str], mode: Mode) -> Config {
    let mut config = Config::defaults(folder);
    config.listen.address = Some("127.0.0.1:0".parse().expect("an address"));
    config.admin.address = "127.0.0.1:0".parse().expect("an address");
    let write = |path: &Path, text: &str| {
        std::fs::create_dir_all(path.parent().expect("in the folder")).expect("a folder");
        sealwire_dev_ca::write(path, text.as_bytes(), Access::Owner, Existing::Replace)
            .expect("writes");
    };
    let authority = Authority::create("bench", Validity::days(2)).expect("an authority");
    let issue = |name: &str, usage| {
        let names = vec![Name::Dns(name.to_owned())];
        let leaf = Leaf {
            common_name: name.to_owned(),
            names,
            usage,
            validity: Validity::days(1),
        };
        authority.issue(&leaf).expect("issues")
    };
    let server = issue("localhost", Usage::Server);
    write(&config.tls.certificate, &server.cert_pem);
    write(&config.tls.key, server.key_pem.expose());
    write(&config.tls.client_ca, authority.cert_pem());
    write(&folder.join("ca.pem"), authority.cert_pem());
    for name in clients {
        let client = issue(name, Usage::Client);
        write(&folder.join(format!("{name}.pem")), &client.cert_pem);
        write(&folder.join(format!("{name}.key")), client.key_pem.expose());
    }
    let kek = Kek::generate_hex().expect("random source");
    let sealwire_settings::KekSource::File(kek_file) = &config.kek else {
        unreachable!("the default is a file")
    };
    write(kek_file, &kek);
    config.state.mode = mode;
    // On a separate thread, because the caller can be inside a runtime.
    std::thread::scope(|scope| {
        scope
            .spawn(|| make_app(&config, clients))
            .join()
            .expect("an app")
    });
    config
}

fn make_app(config: &Config, clients: &[&str]) {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (control, _) = open_control(config).await.expect("a store");
        let app = AppId::new(APP).expect("a good name");
        control.create(&app, &Suite::ALL).await.expect("an app");
        let epoch = EpochLifetime::from_ms(EpochLifetime::MS_MAX).ok();
        control
            .configure(&app, move |settings| settings.epoch = epoch)
            .await
            .expect("is set");
        let grant = Grant::from_text("encrypt,decrypt,rewrap,mask apps=*").expect("a grant");
        let role = Role::new("bench", vec![grant]).expect("a role");
        let mut records = vec![(role_key(role.name()), role.to_record())];
        for client in clients {
            let principal = Principal::from_text(client).expect("a host name");
            let binding = Binding {
                principal,
                roles: vec![role.name().clone()],
            };
            records.push((principal_key(&binding.principal), binding.to_record()));
        }
        for (key, record) in records {
            let base = control.generation().await.expect("a generation");
            control
                .store()
                .commit(base, &key, Some(&record))
                .await
                .expect("writes");
        }
    });
}
